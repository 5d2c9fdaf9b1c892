/* The argument table: slots in order, typed values, the reference ABI, reuse without allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/arguments.h"

static void test_one_slot_for_each_binding_then_the_parameter_block(void **state) {
    (void)state;
    mu_argument_table table = {0};
    mu_launch launch = {0};
    const mu_address bindings[] = {0x1000, 0x2000, 0x3000};
    mu_address seen;
    assert_int_equal(mu_arguments_bindings(&table, bindings, 3, 0x9000, &launch, NULL), MUSTER_OK);
    assert_int_equal(launch.parameter_count, 4);
    assert_int_equal(launch.slot_count, 4);
    for (int i = 0; i < 4; i++) {
        memcpy(&seen, launch.parameters[i], sizeof seen);
        assert_true(seen == (i < 3 ? bindings[i] : 0x9000));
    }
    assert_int_equal(mu_arguments_bindings(&table, bindings, 2, 0, &launch, NULL), MUSTER_OK);
    assert_int_equal(launch.slot_count, 2);
    assert_int_equal(mu_arguments_bindings(&table, NULL, 0, 0, &launch, NULL), MUSTER_OK);
    assert_int_equal(launch.slot_count, 0);
    mu_arguments_free(&table);
}

static void test_typed_values_are_copied_whole_and_aligned(void **state) {
    (void)state;
    mu_argument_table table = {0};
    mu_launch launch = {0};
    struct {
        char text[37];
    } large = {"a struct passed by value"};
    int8_t small = -3;
    double wide = 2.5;
    assert_int_equal(mu_arguments_begin(&table, 4, sizeof large + sizeof small + sizeof wide + 8, NULL), MUSTER_OK);
    assert_int_equal(mu_arguments_value(&table, &small, sizeof small, NULL), MUSTER_OK);
    assert_int_equal(mu_arguments_value(&table, &large, sizeof large, NULL), MUSTER_OK);
    assert_int_equal(mu_arguments_value(&table, &wide, sizeof wide, NULL), MUSTER_OK);
    assert_int_equal(mu_arguments_address(&table, 0x1234, NULL), MUSTER_OK);
    small = 0, wide = 0, large.text[0] = 0;
    assert_int_equal(mu_arguments_finish(&table, &launch, NULL), MUSTER_OK);
    assert_int_equal(*(int8_t *)launch.parameters[0], -3);
    assert_string_equal((char *)launch.parameters[1], "a struct passed by value");
    assert_true(*(double *)launch.parameters[2] == 2.5);
    assert_true(*(mu_address *)launch.parameters[3] == 0x1234);
    for (int i = 0; i < 4; i++) assert_int_equal((uintptr_t)launch.parameters[i] % 16, 0);
    mu_arguments_free(&table);
}

static void test_count_is_checked(void **state) {
    (void)state;
    mu_argument_table table = {0};
    mu_launch launch = {.slot_count = 99};
    muster_error error;
    assert_int_equal(mu_arguments_begin(&table, 2, 16, NULL), MUSTER_OK);
    assert_int_equal(mu_arguments_address(&table, 1, NULL), MUSTER_OK);
    assert_int_equal(mu_arguments_finish(&table, &launch, &error), MUSTER_ARGUMENT_MISMATCH);
    assert_non_null(strstr(error.message, "1 of 2 arguments"));
    assert_int_equal(launch.slot_count, 99);
    assert_int_equal(mu_arguments_address(&table, 2, NULL), MUSTER_OK);
    assert_int_equal(mu_arguments_address(&table, 3, &error), MUSTER_ARGUMENT_MISMATCH);
    assert_non_null(strstr(error.message, "more than the 2"));
    assert_int_equal(mu_arguments_finish(&table, &launch, NULL), MUSTER_OK);
    assert_int_equal(launch.slot_count, 2);
    assert_int_equal(mu_arguments_value(&table, &launch, 0, &error), MUSTER_INVALID_ARGUMENT);
    mu_arguments_free(&table);
}

static void test_more_bytes_than_announced_are_refused(void **state) {
    (void)state;
    mu_argument_table table = {0};
    static const char large[4096];
    muster_error error;
    assert_int_equal(mu_arguments_begin(&table, 2, 16, NULL), MUSTER_OK);
    assert_int_equal(mu_arguments_value(&table, large, sizeof large, &error), MUSTER_ARGUMENT_MISMATCH);
    assert_non_null(strstr(error.message, "4096 bytes"));
    assert_int_equal(mu_arguments_address(&table, 1, NULL), MUSTER_OK);
    assert_int_equal(mu_arguments_begin(&table, 1, SIZE_MAX, &error), MUSTER_OUT_OF_HOST_MEMORY);
    mu_arguments_free(&table);
}

static void test_announced_bytes_always_fit(void **state) {
    (void)state;
    mu_argument_table table = {0};
    static const char bytes[64];
    /* The worst padding: odd sizes everywhere, on a table that holds no more than it must. */
    for (uint32_t count = 1; count < 40; count++)
        for (size_t size = 1; size <= 33; size += 8) {
            assert_int_equal(mu_arguments_begin(&table, count, count * size, NULL), MUSTER_OK);
            for (uint32_t i = 0; i < count; i++)
                assert_int_equal(mu_arguments_value(&table, bytes, size, NULL), MUSTER_OK);
        }
    mu_arguments_free(&table);
}

static void test_reuse_allocates_nothing(void **state) {
    (void)state;
    mu_argument_table table = {0};
    mu_launch launch = {0};
    const mu_address bindings[] = {1, 2, 3, 4, 5};
    assert_int_equal(mu_arguments_bindings(&table, bindings, 5, 6, &launch, NULL), MUSTER_OK);
    mu_alloc_fail_at(1, true);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(mu_arguments_bindings(&table, bindings, 5, 6, &launch, NULL), MUSTER_OK);
        assert_int_equal(mu_arguments_bindings(&table, bindings, 3, 0, &launch, NULL), MUSTER_OK);
        assert_int_equal(launch.slot_count, 3);
    }
    assert_int_equal(mu_alloc_fail_hits(), 0);
    mu_alloc_fail_at(0, false);
    mu_arguments_free(&table);
}

static void test_allocation_failure_names_the_table(void **state) {
    (void)state;
    const mu_address binding = 1;
    for (uint64_t n = 1; n <= 2; n++) {
        mu_argument_table table = {0};
        mu_launch launch = {0};
        muster_error error;
        mu_alloc_fail_at(n, false);
        assert_int_equal(mu_arguments_bindings(&table, &binding, 1, 0, &launch, &error), MUSTER_OUT_OF_HOST_MEMORY);
        mu_alloc_fail_at(0, false);
        assert_non_null(strstr(error.message, "argument table"));
        assert_int_equal(mu_arguments_bindings(&table, &binding, 1, 0, &launch, &error), MUSTER_OK);
        mu_arguments_free(&table);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_slot_for_each_binding_then_the_parameter_block),
        cmocka_unit_test(test_typed_values_are_copied_whole_and_aligned),
        cmocka_unit_test(test_count_is_checked),
        cmocka_unit_test(test_more_bytes_than_announced_are_refused),
        cmocka_unit_test(test_announced_bytes_always_fit),
        cmocka_unit_test(test_reuse_allocates_nothing),
        cmocka_unit_test(test_allocation_failure_names_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
