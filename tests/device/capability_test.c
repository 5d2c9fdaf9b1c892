/* Predicates, feature flags and the missing warp size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/capability.h"

static mu_capability of(int major, int minor) {
    return (mu_capability){.compute_major = major, .compute_minor = minor, .warp_size = 32};
}

typedef bool (*predicate)(const mu_capability *);

/* The predicate holds from major.minor on, and only from there. */
static void holds_from(predicate holds, int major, int minor) {
    for (int i = 0; i < 15; i++)
        for (int j = 0; j < 10; j++) {
            mu_capability capability = of(i, j);
            capability.cooperative_launch = true;
            assert_int_equal(holds(&capability), i * 10 + j >= major * 10 + minor);
        }
}

static void test_predicates_follow_the_architecture(void **state) {
    (void)state;
    holds_from(mu_has_f16, 5, 3);
    holds_from(mu_has_bf16, 8, 0);
    holds_from(mu_has_tensor_cores, 7, 0);
    holds_from(mu_has_grid_sync, 6, 0);
}

static void test_grid_sync_needs_the_attribute_too(void **state) {
    (void)state;
    mu_capability capability = of(9, 0);
    assert_false(mu_has_grid_sync(&capability));
    capability.cooperative_launch = true;
    assert_true(mu_has_grid_sync(&capability));
}

static void test_async_compute_is_either_of_two(void **state) {
    (void)state;
    mu_capability capability = of(9, 0);
    assert_false(mu_has_async_compute(&capability));
    capability.copy_engines = -1;
    assert_false(mu_has_async_compute(&capability));
    capability.copy_engines = 1;
    assert_true(mu_has_async_compute(&capability));
    capability.copy_engines = 0, capability.concurrent_kernels = true;
    assert_true(mu_has_async_compute(&capability));
}

static void test_feature_bits_are_each_their_own(void **state) {
    (void)state;
    assert_int_equal(MU_FEATURE_SUBGROUP, 1);
    assert_int_equal(MU_FEATURE_F16, 2);
    assert_int_equal(MU_FEATURE_BF16, 4);
    assert_int_equal(MU_FEATURE_TENSOR_CORES, 8);
    assert_int_equal(MU_FEATURE_ASYNC_COMPUTE, 16);
    mu_capability capability = of(9, 0);
    capability.copy_engines = 2;
    assert_int_equal(mu_capability_features(&capability, true), 31);
    assert_int_equal(mu_capability_features(&capability, false), 31 - 8);
    capability = of(6, 1);
    assert_int_equal(mu_capability_features(&capability, true), 1 + 2);
    capability = of(7, 5);
    assert_int_equal(mu_capability_features(&capability, true), 1 + 2 + 8);
    capability = of(5, 0);
    capability.warp_size = 0;
    assert_int_equal(mu_capability_features(&capability, true), 0);
}

static void test_no_warp_size_lowers_nothing(void **state) {
    (void)state;
    mu_capability capability = of(9, 0);
    muster_error error;
    assert_int_equal(mu_capability_check(&capability, &error), MUSTER_OK);
    capability.warp_size = 0;
    assert_int_equal(mu_capability_check(&capability, &error), MUSTER_CAPABILITY_MISSING);
    assert_non_null(strstr(error.message, "fix the probe"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predicates_follow_the_architecture),
        cmocka_unit_test(test_grid_sync_needs_the_attribute_too),
        cmocka_unit_test(test_async_compute_is_either_of_two),
        cmocka_unit_test(test_feature_bits_are_each_their_own),
        cmocka_unit_test(test_no_warp_size_lowers_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
