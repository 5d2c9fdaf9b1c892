/* Launch geometry: the order of its checks, its numbers, and axis products. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/geometry.h"

static const mu_capability device = {
    .max_threads_per_block = 1024, .max_block = {1024, 512, 64}, .max_grid = {2147483647, 65535, 1000}};

#define DIM(x, y, z) ((const uint32_t[3]){x, y, z})

static muster_status check(const uint32_t grid[3], const uint32_t block[3], const char *expected) {
    muster_error error = {0};
    muster_status status = mu_geometry_check(&device, grid, block, &error);
    if (status) {
        assert_non_null(expected);
        if (!strstr(error.message, expected)) fail_msg("\"%s\" does not say \"%s\"", error.message, expected);
    } else {
        assert_null(expected);
    }
    return status;
}

static void test_launchable_geometry_passes(void **state) {
    (void)state;
    assert_int_equal(check(DIM(1, 1, 1), DIM(1, 1, 1), NULL), MUSTER_OK);
    assert_int_equal(check(DIM(2147483647, 65535, 1000), DIM(1024, 1, 1), NULL), MUSTER_OK);
    assert_int_equal(check(DIM(1, 1, 1), DIM(4, 4, 64), NULL), MUSTER_OK);
}

static void test_zero_dimension_is_checked_first(void **state) {
    (void)state;
    /* Everything else is wrong too. */
    for (int axis = 0; axis < 3; axis++) {
        uint32_t zero[3] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
        char expected[32];
        zero[axis] = 0;
        snprintf(expected, sizeof expected, "zero along %c", "xyz"[axis]);
        assert_int_equal(check(DIM(1, 1, UINT32_MAX), zero, expected), MUSTER_INVALID_GEOMETRY);
        assert_int_equal(check(zero, DIM(UINT32_MAX, 1, 1), expected), MUSTER_INVALID_GEOMETRY);
    }
}

static void test_block_overflow_comes_before_thread_count(void **state) {
    (void)state;
    assert_int_equal(check(DIM(1, 1, UINT32_MAX), DIM(UINT32_MAX, UINT32_MAX, 2), "more than 2^64"),
                     MUSTER_INVALID_GEOMETRY);
}

static void test_thread_count_comes_before_axes(void **state) {
    (void)state;
    assert_int_equal(check(DIM(1, 1, UINT32_MAX), DIM(1, 2, 1024), "2048 threads"), MUSTER_INVALID_GEOMETRY);
    assert_int_equal(check(DIM(1, 1, UINT32_MAX), DIM(1025, 1, 1), "1025 threads"), MUSTER_INVALID_GEOMETRY);
    assert_int_equal(check(DIM(1, 1, 1), DIM(1025, 1, 1), "1024"), MUSTER_INVALID_GEOMETRY);
}

static void test_block_axis_comes_before_grid_axis(void **state) {
    (void)state;
    assert_int_equal(check(DIM(1, 1, UINT32_MAX), DIM(1, 1, 65), "block of 1 x 1 x 65 is 65 along z"),
                     MUSTER_INVALID_GEOMETRY);
    assert_int_equal(check(DIM(1, 65536, 1), DIM(1, 513, 1), "513 along y where the device allows 512"),
                     MUSTER_INVALID_GEOMETRY);
}

static void test_grid_axis_names_axis_and_limit(void **state) {
    (void)state;
    assert_int_equal(
        check(DIM(2147483648u, 1, 1), DIM(1, 1, 1), "2147483648 along x where the device allows 2147483647"),
        MUSTER_INVALID_GEOMETRY);
    assert_int_equal(check(DIM(1, 65536, 1), DIM(1, 1, 1), "65536 along y where the device allows 65535"),
                     MUSTER_INVALID_GEOMETRY);
    assert_int_equal(check(DIM(1, 1, 1001), DIM(1, 1, 1), "1001 along z where the device allows 1000"),
                     MUSTER_INVALID_GEOMETRY);
}

static void test_grid_product_overflow_is_refused(void **state) {
    (void)state;
    const mu_capability wide = {
        .max_threads_per_block = 1024, .max_block = {1024, 1024, 64}, .max_grid = {INT32_MAX, INT32_MAX, INT32_MAX}};
    muster_error error;
    assert_int_equal(mu_geometry_check(&wide, DIM(INT32_MAX, INT32_MAX, 8), DIM(1, 1, 1), &error),
                     MUSTER_INVALID_GEOMETRY);
    assert_non_null(strstr(error.message, "grid"));
    assert_non_null(strstr(error.message, "shard"));
}

static void test_axis_product_is_exact_or_names_its_subject(void **state) {
    (void)state;
    uint64_t product = 77;
    muster_error error;
    assert_int_equal(mu_axis_product(DIM(UINT32_MAX, UINT32_MAX, 1), "grid", &product, &error), MUSTER_OK);
    assert_true(product == (uint64_t)UINT32_MAX * UINT32_MAX);
    assert_int_equal(mu_axis_product(DIM(1u << 31, 1u << 31, 3), "grid", &product, &error), MUSTER_OK);
    assert_true(product == UINT64_C(3) << 62);
    product = 77;
    assert_int_equal(mu_axis_product(DIM(1u << 31, 1u << 31, 4), "grid", &product, &error), MUSTER_INVALID_GEOMETRY);
    assert_int_equal(product, 77);
    assert_non_null(strstr(error.message, "the grid of"));
    assert_non_null(strstr(error.message, "shard"));
    assert_int_equal(mu_axis_product(DIM(UINT32_MAX, UINT32_MAX, UINT32_MAX), "block", &product, &error),
                     MUSTER_INVALID_GEOMETRY);
    assert_non_null(strstr(error.message, "the block of"));
    uint64_t random = 5;
    for (int i = 0; i < 100000; i++) {
        uint32_t axes[3];
        for (int j = 0; j < 3; j++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            axes[j] = (uint32_t)(random >> 32) >> (random >> 8) % 32;
        }
        unsigned __int128 expected = (unsigned __int128)axes[0] * axes[1] * axes[2];
        muster_status status = mu_axis_product(axes, "grid", &product, NULL);
        assert_int_equal(status, expected > UINT64_MAX ? MUSTER_INVALID_GEOMETRY : MUSTER_OK);
        if (!status) assert_true(product == (uint64_t)expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launchable_geometry_passes),
        cmocka_unit_test(test_zero_dimension_is_checked_first),
        cmocka_unit_test(test_block_overflow_comes_before_thread_count),
        cmocka_unit_test(test_thread_count_comes_before_axes),
        cmocka_unit_test(test_block_axis_comes_before_grid_axis),
        cmocka_unit_test(test_grid_axis_names_axis_and_limit),
        cmocka_unit_test(test_grid_product_overflow_is_refused),
        cmocka_unit_test(test_axis_product_is_exact_or_names_its_subject),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
