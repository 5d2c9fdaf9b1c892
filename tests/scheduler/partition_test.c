/* Cutting [0, extent) into parts: exact cover, none empty, proportional, for every 32-bit extent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/shard.h"

enum { MOST_PARTS = 64 };

/* Exact cover without empty parts; returns their number. */
static uint32_t cut(uint32_t extent, uint32_t parts, const uint64_t *weights, uint32_t bounds[MOST_PARTS + 1]) {
    memset(bounds, 0xff, (MOST_PARTS + 1) * sizeof *bounds);
    uint32_t count = mu_partition(extent, parts, weights, bounds);
    assert_in_range(count, 1, parts);
    assert_int_equal(bounds[0], 0);
    for (uint32_t i = 0; i < count; i++) assert_true(bounds[i] < bounds[i + 1]);
    assert_int_equal(bounds[count], extent);
    for (uint32_t i = parts + 1; i <= MOST_PARTS; i++) assert_int_equal(bounds[i], UINT32_MAX); /* no write beyond */
    return count;
}

static void equal_parts_differ_by_one_at_most(void **state) {
    (void)state;
    uint32_t bounds[MOST_PARTS + 1];
    static const uint32_t extents[] = {1, 2, 3, 7, 8, 63, 64, 65, 1000003, INT32_MAX, UINT32_MAX - 1, UINT32_MAX};
    for (size_t e = 0; e < sizeof extents / sizeof extents[0]; e++)
        for (uint32_t parts = 1; parts <= MOST_PARTS; parts++) {
            uint32_t count = cut(extents[e], parts, NULL, bounds), smallest = UINT32_MAX, largest = 0;
            assert_int_equal(count, parts < extents[e] ? parts : extents[e]);
            for (uint32_t i = 0; i < count; i++) {
                uint32_t length = bounds[i + 1] - bounds[i];
                smallest = length < smallest ? length : smallest;
                largest = length > largest ? length : largest;
            }
            assert_true(largest - smallest <= 1);
        }
}

static void weights_are_followed_within_one(void **state) {
    (void)state;
    uint32_t bounds[MOST_PARTS + 1];
    static const uint64_t weights[][4] = {{1, 2, 3, 4}, {1, 1, 1, 1000}, {5, 0, 5, 0}, {0, 0, 0, 1}, {7, 7, 7, 7}};
    for (size_t w = 0; w < sizeof weights / sizeof weights[0]; w++) {
        uint64_t total = weights[w][0] + weights[w][1] + weights[w][2] + weights[w][3];
        for (uint32_t extent = 1; extent < 3000; extent += extent < 30 ? 1 : 101) {
            uint32_t count = cut(extent, 4, weights[w], bounds), part = 0;
            /* The parts that are left are those that are not empty, in order: their ends are floor(extent * sum / total). */
            uint64_t before = 0;
            uint32_t last = 0;
            for (int i = 0; i < 4; i++) {
                before += weights[w][i];
                uint32_t end = (uint32_t)(extent * before / total);
                if (end == last) continue;
                last = end;
                assert_int_equal(bounds[++part], end);
            }
            assert_int_equal(part, count);
        }
    }
}

static void extremes_do_not_overflow(void **state) {
    (void)state;
    uint32_t bounds[MOST_PARTS + 1];
    uint64_t weights[MOST_PARTS];
    for (int i = 0; i < MOST_PARTS; i++) weights[i] = UINT64_MAX;
    assert_int_equal(cut(UINT32_MAX, MOST_PARTS, weights, bounds), MOST_PARTS);
    for (uint32_t i = 0; i < MOST_PARTS; i++)
        assert_in_range(bounds[i + 1] - bounds[i], UINT32_MAX / MOST_PARTS, UINT32_MAX / MOST_PARTS + 1);
    weights[0] = 1; /* too small a share for even one slice */
    assert_int_equal(cut(UINT32_MAX, MOST_PARTS, weights, bounds), MOST_PARTS - 1);
    memset(weights, 0, sizeof weights); /* nothing known: equal */
    assert_int_equal(cut(UINT32_MAX, MOST_PARTS, weights, bounds), MOST_PARTS);
    assert_int_equal(cut(3, MOST_PARTS, weights, bounds), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_parts_differ_by_one_at_most),
        cmocka_unit_test(weights_are_followed_within_one),
        cmocka_unit_test(extremes_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
