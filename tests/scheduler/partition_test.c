/* Cutting [0, extent) into parts: exact cover, none empty, proportional, for every 32-bit extent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/graph/cut.h"

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

/* ------------------------------------------------------------------------------------------- shares and generated cases -- */

static uint64_t drawn(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Any size, small ones as often as large ones. */
static uint64_t sized(uint64_t *state) { return drawn(state) >> drawn(state) % 64; }

static uint32_t drawn_extent(uint64_t *state) {
    static const uint32_t edges[] = {1, 2, INT32_MAX, (uint32_t)INT32_MAX + 1, UINT32_MAX - 1, UINT32_MAX};
    if (drawn(state) % 4 == 0) return edges[drawn(state) % 6];
    uint32_t extent = (uint32_t)(sized(state) >> 32);
    return extent ? extent : 1;
}

/* floor(a * b / c) by schoolbook long division, bit by bit, in sums that cannot overflow: not the arithmetic under test. */
static uint64_t floor_ratio(uint32_t a, const uint64_t *b_parts, uint32_t b_count, const uint64_t *c_parts,
                            uint32_t c_count) {
    /* q grows from the top bit as long as q * c <= a * b; both sides as 160-bit numbers of 32-bit digits. */
    uint64_t best = 0;
    for (int bit = 32; bit >= 0; bit--) {
        uint64_t q = best | UINT64_C(1) << bit;
        uint64_t left[6] = {0}, right[6] = {0};
        for (int side = 0; side < 2; side++) {
            const uint64_t *parts = side ? b_parts : c_parts;
            uint64_t *sum = side ? right : left, factor = side ? a : q;
            for (uint32_t i = 0; i < (side ? b_count : c_count); i++) {
                uint64_t carry = 0, digits[2] = {parts[i] & UINT32_MAX, parts[i] >> 32};
                for (int d = 0; d < 2; d++) { /* factor may have 33 bits: split it too */
                    uint64_t product = digits[d] * (factor & UINT32_MAX), high = factor >> 32 ? digits[d] : 0;
                    uint64_t at = sum[d] + (product & UINT32_MAX);
                    sum[d] = at & UINT32_MAX;
                    carry = (at >> 32) + (product >> 32) + high;
                    for (int k = d + 1; carry && k < 6; k++) {
                        carry += sum[k];
                        sum[k] = carry & UINT32_MAX;
                        carry >>= 32;
                    }
                }
            }
        }
        int order = 0;
        for (int k = 5; k >= 0 && !order; k--) order = left[k] < right[k] ? -1 : left[k] > right[k];
        if (order <= 0) best = q;
    }
    return best;
}

static void any_weights_are_followed_exactly(void **state) {
    (void)state;
    uint64_t random = 1;
    for (int round = 0; round < 4000; round++) {
        uint32_t bounds[MOST_PARTS + 1], extent = drawn_extent(&random), parts = 1 + (uint32_t)(drawn(&random) % 24);
        uint64_t weights[MOST_PARTS], any = 0;
        for (uint32_t i = 0; i < parts; i++) any |= weights[i] = drawn(&random) % 5 ? sized(&random) : 0;
        uint32_t count = cut(extent, parts, weights, bounds), at = 0;
        if (!any) continue;
        for (uint32_t i = 1; i <= parts; i++) {
            uint64_t end = floor_ratio(extent, weights, i, weights, parts);
            if (end == bounds[at]) continue;
            assert_int_equal(bounds[++at], end);
        }
        assert_int_equal(at, count);
    }
}

static unsigned __int128 ends(uint32_t devices, const uint64_t *paces, const uint32_t *shares) {
    unsigned __int128 last = 0;
    for (uint32_t d = 0; d < devices; d++) {
        unsigned __int128 end = (unsigned __int128)shares[d] * paces[d];
        if (end > last) last = end;
    }
    return last;
}

/* The earliest possible end: the smallest time in which all slices can be done, found by bisection. */
static unsigned __int128 earliest(uint32_t extent, uint32_t devices, const uint64_t *paces) {
    unsigned __int128 low = 0, high = (unsigned __int128)1 << 96;
    while (high - low > 1) {
        unsigned __int128 middle = low + (high - low) / 2, done = 0;
        for (uint32_t d = 0; d < devices; d++)
            if (paces[d]) done += middle / paces[d];
        if (done >= extent)
            high = middle;
        else
            low = middle;
    }
    return high;
}

static void shares_end_as_early_as_possible(void **state) {
    (void)state;
    uint64_t random = 2;
    for (int round = 0; round < 4000; round++) {
        uint32_t devices = 1 + (uint32_t)(drawn(&random) % 32), shares[32], extent = drawn_extent(&random);
        uint64_t paces[32], covered = 0;
        for (uint32_t d = 0; d < devices; d++) paces[d] = drawn(&random) % 6 ? 1 + (sized(&random) >> 2) : 0;
        if (round % 3 == 0) /* within a few percent of each other, as devices are */
            for (uint32_t d = 0; d < devices; d++) paces[d] = paces[d] ? 1000000 + drawn(&random) % 100000 : 0;
        paces[drawn(&random) % devices] = 1 + (sized(&random) >> 2);
        mu_cut_shares(extent, devices, paces, shares);
        for (uint32_t d = 0; d < devices; d++) {
            covered += shares[d];
            if (!paces[d]) assert_int_equal(shares[d], 0);
        }
        assert_int_equal(covered, extent);
        unsigned __int128 found = ends(devices, paces, shares), best = earliest(extent, devices, paces);
        assert_true(found >= best && found - best <= best >> 24); /* speeds are kept to 26 bits at least */
        if (round % 3 == 0) assert_true(found == best || best >> 50);
    }
}

static void equal_paces_give_equal_shares(void **state) {
    (void)state;
    for (uint32_t devices = 1; devices <= 32; devices++)
        for (uint32_t extent = 1; extent < 100; extent++) {
            uint64_t paces[32];
            uint32_t shares[32];
            for (uint32_t d = 0; d < devices; d++) paces[d] = 7919;
            mu_cut_shares(extent, devices, paces, shares);
            for (uint32_t d = 0; d < devices; d++)
                assert_int_equal(shares[d], extent / devices + (d < extent % devices));
        }
}

static void what_is_left_out_would_not_have_paid(void **state) {
    (void)state;
    uint64_t random = 3;
    uint32_t left_out = 0, kept = 0;
    for (int round = 0; round < 3000; round++) {
        uint32_t devices = 1 + (uint32_t)(drawn(&random) % 8), extent = 1 + (uint32_t)(drawn(&random) % 5000);
        uint64_t paces[8], given[8], part = drawn(&random) % 3000000;
        for (uint32_t d = 0; d < devices; d++)
            given[d] = paces[d] = 1 + (drawn(&random) % 100000 >> drawn(&random) % 12);
        mu_cut_leave_out(extent, devices, paces, part);
        uint64_t slowest_kept = 0, quickest_left = UINT64_MAX;
        uint32_t count = 0, slowest = 0;
        for (uint32_t d = 0; d < devices; d++) {
            assert_true(paces[d] == 0 || paces[d] == given[d]);
            count += paces[d] != 0;
            if (paces[d] > slowest_kept) slowest_kept = paces[d], slowest = d;
            if (!paces[d] && given[d] < quickest_left) quickest_left = given[d];
        }
        assert_true(count >= 1 && slowest_kept <= quickest_left);
        left_out += devices - count;
        kept += count;
        unsigned __int128 end = earliest(extent, devices, paces);
        if (count > 1) { /* the next would have been missed */
            paces[slowest] = 0;
            assert_true(earliest(extent, devices, paces) > end + part);
            paces[slowest] = slowest_kept;
        }
        if (count < devices) { /* the one before would not */
            for (uint32_t d = 0; d < devices; d++)
                if (!paces[d] && given[d] == quickest_left) {
                    paces[d] = given[d];
                    break;
                }
            assert_true(end <= earliest(extent, devices, paces) + part);
        }
    }
    assert_true(left_out > 1000 && kept > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_parts_differ_by_one_at_most),
        cmocka_unit_test(weights_are_followed_within_one),
        cmocka_unit_test(extremes_do_not_overflow),
        cmocka_unit_test(any_weights_are_followed_exactly),
        cmocka_unit_test(shares_end_as_early_as_possible),
        cmocka_unit_test(equal_paces_give_equal_shares),
        cmocka_unit_test(what_is_left_out_would_not_have_paid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
