/* Cutting an axis: exact cover, no empty part, proportional, exact at the ends of the number range. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "scheduler/shard.h"

static uint64_t random_state = 1;

static uint64_t draw(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static void check_cover(uint32_t extent, uint32_t parts, const uint32_t *bounds, uint32_t count) {
    assert_true(count >= 1 && count <= parts);
    assert_int_equal(bounds[0], 0);
    assert_int_equal(bounds[count], extent);
    for (uint32_t i = 0; i < count; i++) assert_true(bounds[i] < bounds[i + 1]);
}

static void test_generated_cuts_cover_exactly_without_empty_parts(void **state) {
    (void)state;
    uint32_t bounds[65];
    uint64_t weights[64];
    for (int i = 0; i < 20000; i++) {
        uint32_t parts = 1 + (uint32_t)(draw() % 64);
        uint32_t shift = (uint32_t)(draw() % 32);
        uint32_t extent = (uint32_t)draw() >> shift;
        if (extent == 0) extent = 1;
        for (uint32_t p = 0; p < parts; p++) weights[p] = draw() >> (draw() % 64) & (draw() % 4 ? UINT64_MAX : 0);
        check_cover(extent, parts, bounds, mu_partition(extent, parts, draw() % 2 ? weights : NULL, bounds));
    }
}

static void test_equal_cuts_differ_by_one_slice_at_most(void **state) {
    (void)state;
    uint32_t bounds[9];
    for (uint32_t extent = 1; extent < 200; extent++)
        for (uint32_t parts = 1; parts <= 8; parts++) {
            uint32_t count = mu_partition(extent, parts, NULL, bounds);
            assert_int_equal(count, extent < parts ? extent : parts);
            for (uint32_t i = 0; i < count; i++) {
                uint32_t length = bounds[i + 1] - bounds[i];
                assert_true(length == extent / parts || length == extent / parts + 1);
            }
        }
}

static void test_cuts_follow_the_weights(void **state) {
    (void)state;
    uint32_t bounds[4];
    assert_int_equal(mu_partition(1000, 3, (uint64_t[]){1, 2, 7}, bounds), 3);
    assert_int_equal(bounds[1], 100);
    assert_int_equal(bounds[2], 300);
    assert_int_equal(bounds[3], 1000);
    /* A part with no weight gets nothing, and is left out. */
    assert_int_equal(mu_partition(10, 3, (uint64_t[]){1, 0, 1}, bounds), 2);
    assert_int_equal(bounds[1], 5);
    assert_int_equal(bounds[2], 10);
    assert_int_equal(mu_partition(10, 2, (uint64_t[]){0, 0}, bounds), 2);
    assert_int_equal(bounds[1], 5);
}

static void test_no_overflow_at_the_ends_of_the_range(void **state) {
    (void)state;
    uint32_t bounds[5];
    assert_int_equal(mu_partition(UINT32_MAX, 2, (uint64_t[]){UINT64_MAX, UINT64_MAX}, bounds), 2);
    assert_int_equal(bounds[1], UINT32_MAX / 2);
    assert_int_equal(mu_partition(1u << 31, 4, (uint64_t[]){UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}, bounds), 4);
    assert_int_equal(bounds[1], 1u << 29);
    assert_int_equal(mu_partition(UINT32_MAX, 2, (uint64_t[]){1, (uint64_t)1 << 63}, bounds), 1);
    assert_int_equal(bounds[1], UINT32_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated_cuts_cover_exactly_without_empty_parts),
        cmocka_unit_test(test_equal_cuts_differ_by_one_slice_at_most),
        cmocka_unit_test(test_cuts_follow_the_weights),
        cmocka_unit_test(test_no_overflow_at_the_ends_of_the_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
