/* Cooperative residency: both stages, the one bounds function, refusals, clamping, and the cheap preflight. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/residency.h"

/* 2048 threads per multiprocessor, 24 blocks, 170 multiprocessors. */
static mu_capability fixture(void) {
    return (mu_capability){.compute_major = 8,
                           .compute_minor = 9,
                           .cooperative_launch = true,
                           .max_threads_per_multiprocessor = 2048,
                           .max_blocks_per_multiprocessor = 24,
                           .multiprocessors = 170,
                           .max_threads_per_block = 1024,
                           .max_block = {1024, 1024, 64},
                           .max_grid = {INT32_MAX, 65535, 65535},
                           .shared_bytes_optin = 101376};
}

static void test_stage1_limit_of_the_fixture(void **state) {
    (void)state;
    mu_capability device = fixture();
    assert_int_equal(mu_resident_limit_of_device(&device, 256), 1360);
    assert_int_equal(mu_resident_limit_of_device(&device, 32), 24 * 170);
    assert_int_equal(mu_resident_limit_of_device(&device, 1024), 2 * 170);
    assert_int_equal(mu_resident_limit_of_device(&device, 2048), 170);
    assert_int_equal(mu_resident_limit_of_device(&device, 2049), 0);
}

static void test_stage1_limit_is_zero_without_block_or_support(void **state) {
    (void)state;
    mu_capability device = fixture();
    assert_int_equal(mu_resident_limit_of_device(&device, 0), 0);
    device.cooperative_launch = false;
    assert_int_equal(mu_resident_limit_of_device(&device, 256), 0);
    device = fixture();
    device.compute_major = 5, device.compute_minor = 3;
    assert_int_equal(mu_resident_limit_of_device(&device, 256), 0);
    device = fixture();
    device.max_threads_per_multiprocessor = 0;
    assert_int_equal(mu_resident_limit_of_device(&device, 256), 0);
}

static void test_unreported_blocks_do_not_clamp(void **state) {
    (void)state;
    mu_capability device = fixture();
    device.max_blocks_per_multiprocessor = 0;
    assert_int_equal(mu_resident_limit_of_device(&device, 32), 64 * 170);
    device.max_blocks_per_multiprocessor = -3;
    assert_int_equal(mu_resident_limit_of_device(&device, 32), 64 * 170);
}

static void test_stage2_limit_is_occupancy_times_multiprocessors_checked(void **state) {
    (void)state;
    mu_capability device = fixture();
    muster_error error;
    uint64_t limit = 77;
    assert_int_equal(mu_resident_limit_of_function(&device, 5, &limit, NULL), MUSTER_OK);
    assert_int_equal(limit, 850);
    assert_int_equal(mu_resident_limit_of_function(&device, 0, &limit, NULL), MUSTER_OK);
    assert_int_equal(limit, 0);
    limit = 77;
    assert_int_equal(mu_resident_limit_of_function(&device, -1, &limit, &error), MUSTER_DRIVER_ERROR);
    assert_non_null(strstr(error.message, "-1"));
    assert_int_equal(mu_resident_limit_of_function(&device, INT64_MAX, &limit, &error), MUSTER_DRIVER_ERROR);
    assert_non_null(strstr(error.message, "64 bits"));
    assert_int_equal(limit, 77);
}

static void test_refusals_carry_blocks_limit_and_detail(void **state) {
    (void)state;
    mu_capability device = fixture();
    muster_error error;
    assert_int_equal(mu_residency_stage1(&device, "k", 1360, 256, &error), MUSTER_OK);
    assert_int_equal(mu_residency_stage1(&device, "k", 1361, 256, &error), MUSTER_COOPERATIVE_TOO_LARGE);
    assert_non_null(strstr(error.message, "1361 blocks"));
    assert_non_null(strstr(error.message, "at most 1360"));
    assert_non_null(strstr(error.message, "2048 threads and 24 blocks on each of 170"));
    assert_int_equal(mu_residency_stage2(&device, "k", 510, 256, 4096, 3, &error), MUSTER_OK);
    assert_int_equal(mu_residency_stage2(&device, "k", 511, 256, 4096, 3, &error), MUSTER_COOPERATIVE_TOO_LARGE);
    assert_non_null(strstr(error.message, "511 blocks"));
    assert_non_null(strstr(error.message, "at most 510"));
    assert_non_null(strstr(error.message, "occupancy: 3 blocks of 256 threads and 4096 bytes"));
    assert_int_equal(mu_residency_stage2(&device, "k", 1, 256, 0, 0, &error), MUSTER_COOPERATIVE_TOO_LARGE);
    assert_int_equal(mu_residency_stage2(&device, "k", 1, 256, 0, -1, &error), MUSTER_DRIVER_ERROR);
    device.cooperative_launch = false;
    assert_int_equal(mu_residency_stage1(&device, "k", 1, 32, &error), MUSTER_COOPERATIVE_TOO_LARGE);
    assert_non_null(strstr(error.message, "no grid-wide synchronisation"));
}

static mu_preflight_query query(uint32_t blocks, uint32_t threads) {
    return (mu_preflight_query){.grid = {blocks, 1, 1},
                                .block = {threads, 1, 1},
                                .cooperative = true,
                                .program_grid_sync = true,
                                .occupancy = -1};
}

static void test_preflight_routing_and_launch_never_disagree(void **state) {
    (void)state;
    uint64_t random = 17;
    for (int i = 0; i < 100000; i++) {
        mu_capability device = fixture();
        random = random * 6364136223846793005u + 1442695040888963407u;
        device.max_blocks_per_multiprocessor = (int)(random >> 60);
        device.multiprocessors = (int)(random >> 50 & 15);
        device.cooperative_launch = (random >> 49 & 7) != 0;
        uint32_t threads = 1 + (uint32_t)(random >> 40) % 1024, blocks = 1 + (uint32_t)(random >> 20) % 400;
        bool fits = mu_grid_is_resident(blocks, mu_resident_limit_of_device(&device, threads));
        mu_preflight_query asked = query(blocks, threads);
        assert_int_equal(mu_preflight(&device, &asked), fits ? MU_PREFLIGHT_UNKNOWN : MU_PREFLIGHT_NO);
        assert_int_equal(mu_residency_stage1(&device, "k", blocks, threads, NULL) == MUSTER_OK, fits);
        asked.occupancy = (int)(random >> 10 & 31);
        bool loaded = fits && mu_residency_stage2(&device, "k", blocks, threads, 0, asked.occupancy, NULL) == MUSTER_OK;
        assert_int_equal(mu_preflight(&device, &asked), loaded ? MU_PREFLIGHT_YES : MU_PREFLIGHT_NO);
    }
}

static void test_preflight_is_false_without_error_lacking_grid_sync(void **state) {
    (void)state;
    mu_capability device = fixture();
    mu_preflight_query asked = query(1, 32);
    assert_int_equal(mu_preflight(&device, &asked), MU_PREFLIGHT_UNKNOWN);
    asked.program_grid_sync = false;
    assert_int_equal(mu_preflight(&device, &asked), MU_PREFLIGHT_NO);
    asked = query(1, 32);
    device.compute_major = 5;
    assert_int_equal(mu_preflight(&device, &asked), MU_PREFLIGHT_NO);
    asked.cooperative = false;
    assert_int_equal(mu_preflight(&device, &asked), MU_PREFLIGHT_UNKNOWN);
}

static void test_preflight_refuses_geometry_and_shared_memory(void **state) {
    (void)state;
    mu_capability device = fixture();
    mu_preflight_query asked = query(1, 1025);
    assert_int_equal(mu_preflight(&device, &asked), MU_PREFLIGHT_NO);
    asked = query(0, 32);
    assert_int_equal(mu_preflight(&device, &asked), MU_PREFLIGHT_NO);
    asked = query(1, 32);
    asked.dynamic_shared_bytes = 101376;
    assert_int_equal(mu_preflight(&device, &asked), MU_PREFLIGHT_UNKNOWN);
    asked.dynamic_shared_bytes++;
    assert_int_equal(mu_preflight(&device, &asked), MU_PREFLIGHT_NO);
    asked = query(1, 32);
    asked.cooperative = false;
    asked.occupancy = 0;
    assert_int_equal(mu_preflight(&device, &asked), MU_PREFLIGHT_NO);
    asked.occupancy = 1;
    assert_int_equal(mu_preflight(&device, &asked), MU_PREFLIGHT_YES);
}

static void test_clamped_grid_is_within_the_limit_and_the_grid(void **state) {
    (void)state;
    uint32_t clamped[3] = {7, 7, 7};
    assert_false(mu_residency_clamp((const uint32_t[]){4, 4, 4}, 0, clamped));
    assert_int_equal(clamped[0], 7);
    assert_true(mu_residency_clamp((const uint32_t[]){1000, 1, 1}, 132, clamped));
    assert_int_equal(clamped[0], 132);
    assert_true(mu_residency_clamp((const uint32_t[]){100, 3, 2}, 132, clamped));
    assert_int_equal(clamped[0], 22);
    assert_int_equal(clamped[1], 3);
    assert_int_equal(clamped[2], 2);
    uint64_t random = 23;
    for (int i = 0; i < 100000; i++) {
        uint32_t grid[3];
        for (int j = 0; j < 3; j++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            grid[j] = 1 + ((uint32_t)(random >> 32) >> (random >> 8) % 32);
            if (grid[j] == 0) grid[j] = 1;
        }
        uint64_t limit = 1 + (random >> 40) % 5000;
        unsigned __int128 size = (unsigned __int128)grid[0] * grid[1] * grid[2];
        assert_true(mu_residency_clamp(grid, limit, clamped));
        uint64_t clamped_size = (uint64_t)clamped[0] * clamped[1] * clamped[2];
        assert_true(clamped_size >= 1 && clamped_size <= limit);
        for (int j = 0; j < 3; j++) assert_true(clamped[j] >= 1 && clamped[j] <= grid[j]);
        if (size <= limit) assert_memory_equal(grid, clamped, sizeof grid);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stage1_limit_of_the_fixture),
        cmocka_unit_test(test_stage1_limit_is_zero_without_block_or_support),
        cmocka_unit_test(test_unreported_blocks_do_not_clamp),
        cmocka_unit_test(test_stage2_limit_is_occupancy_times_multiprocessors_checked),
        cmocka_unit_test(test_refusals_carry_blocks_limit_and_detail),
        cmocka_unit_test(test_preflight_routing_and_launch_never_disagree),
        cmocka_unit_test(test_preflight_is_false_without_error_lacking_grid_sync),
        cmocka_unit_test(test_preflight_refuses_geometry_and_shared_memory),
        cmocka_unit_test(test_clamped_grid_is_within_the_limit_and_the_grid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
