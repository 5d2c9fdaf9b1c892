/* Areas against sets of bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/memory/area.h"

enum { BYTES = 400 };

static uint64_t random_state;
static uint32_t below(uint32_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

static mu_area draw(void) {
    uint64_t width = 1 + below(20), pitch = width + below(20), low = below(80);
    if (below(3) == 0) pitch = 24 > width ? 24 : width; /* often the same */
    return (mu_area){low, low + width, pitch, 1 + below(7)};
}

static void mark(const mu_area *area, bool in[BYTES]) {
    memset(in, 0, BYTES);
    for (uint32_t row = 0; row < area->rows; row++)
        for (uint64_t i = 0; i < area->high - area->low; i++) in[area->low + row * area->pitch + i] = true;
}

static void overlap_is_a_byte_in_both(void **state) {
    (void)state;
    uint32_t both = 0, neither = 0;
    for (random_state = 1; both + neither < 200000;) {
        static bool in_a[BYTES], in_b[BYTES];
        mu_area a = draw(), b = draw();
        mark(&a, in_a), mark(&b, in_b);
        bool overlap = false;
        for (int i = 0; i < BYTES; i++) overlap |= in_a[i] && in_b[i];
        assert_int_equal(mu_areas_overlap(&a, &b), overlap);
        assert_int_equal(mu_areas_overlap(&b, &a), overlap);
        *(overlap ? &both : &neither) += 1;
    }
    assert_true(both > 20000 && neither > 20000);
}

static void rows_are_found(void **state) {
    (void)state;
    random_state = 2;
    for (int i = 0; i < 20000; i++) {
        mu_area area = draw();
        uint64_t position = below(BYTES);
        uint32_t row = 0;
        while (row < area.rows && area.low + row * area.pitch + (area.high - area.low) <= position) row++;
        assert_int_equal(mu_area_find(&area, position), row);
        assert_int_equal(mu_area_end(&area), mu_area_row(&area, area.rows - 1) + mu_area_width(&area));
        assert_int_equal(mu_area_bytes(&area), area.rows * (area.high - area.low));
        uint32_t first = below(area.rows), count = 1 + below(area.rows - first);
        mu_area part = mu_area_rows(&area, first, count);
        assert_int_equal(part.low, mu_area_row(&area, first));
        assert_int_equal(mu_area_end(&part), mu_area_row(&area, first + count - 1) + mu_area_width(&area));
    }
}

/* Columns of terabytes cost no more than small ones, and nothing overflows below 2^63. */
static void large_areas_are_exact(void **state) {
    (void)state;
    const uint64_t pitch = UINT64_C(1) << 31;
    mu_area left = {0, pitch / 2, pitch, UINT32_MAX}, right = {pitch / 2, pitch, pitch, UINT32_MAX};
    assert_false(mu_areas_overlap(&left, &right));
    right.low--;
    assert_true(mu_areas_overlap(&left, &right));
    mu_area last = mu_area_of(mu_area_end(&left) - 1, mu_area_end(&left));
    assert_true(mu_areas_overlap(&left, &last));
    assert_int_equal(mu_area_find(&left, mu_area_end(&left) - 1), UINT32_MAX - 1);
    assert_int_equal(mu_area_find(&left, mu_area_end(&left)), UINT32_MAX);
    mu_area wrapped = {pitch / 2 + 1, pitch + 1, pitch, 3}; /* the end of its rows is in the beginning of the next */
    assert_true(mu_areas_overlap(&left, &wrapped));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap_is_a_byte_in_both),
        cmocka_unit_test(rows_are_found),
        cmocka_unit_test(large_areas_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
