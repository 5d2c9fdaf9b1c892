/* Counters, occupancy, and both exports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "device/telemetry.h"

static void test_basis_points_are_exact_floored_and_clamped(void **state) {
    (void)state;
    assert_int_equal(mu_occupancy_basis_points(8, 256, 32, 2048), 10000);
    assert_int_equal(mu_occupancy_basis_points(4, 256, 32, 2048), 5000);
    assert_int_equal(mu_occupancy_basis_points(1, 1, 32, 2048), 156);  /* 1 of 64 warps: 156.25 */
    assert_int_equal(mu_occupancy_basis_points(1, 33, 32, 2048), 312); /* partial warps count whole */
    assert_int_equal(mu_occupancy_basis_points(16, 256, 32, 2048), 10000);
    assert_int_equal(mu_occupancy_basis_points(INT32_MAX, UINT64_MAX, 32, 2048), 10000);
    assert_int_equal(mu_occupancy_basis_points(INT32_MAX, UINT64_MAX, 1, INT32_MAX), 10000);
    assert_int_equal(mu_occupancy_basis_points(1, 32, 32, INT32_MAX), 0);
    for (int blocks = 1; blocks < 40; blocks++)
        for (uint64_t threads = 1; threads <= 1024; threads += 31) {
            uint64_t expected = (uint64_t)blocks * ((threads + 31) / 32) * 10000 / 48;
            assert_int_equal(mu_occupancy_basis_points(blocks, threads, 32, 1536), expected > 10000 ? 10000 : expected);
        }
}

static void test_unmeasurable_occupancy_counts_as_unmeasured(void **state) {
    (void)state;
    mu_device_counters counters = {0};
    assert_int_equal(mu_occupancy_basis_points(-1, 32, 32, 2048), -1);
    assert_int_equal(mu_occupancy_basis_points(0, 32, 32, 2048), -1);
    assert_int_equal(mu_occupancy_basis_points(1, 0, 32, 2048), -1);
    assert_int_equal(mu_occupancy_basis_points(1, 32, 0, 2048), -1);
    assert_int_equal(mu_occupancy_basis_points(1, 32, 32, 0), -1);
    assert_int_equal(mu_occupancy_basis_points(1, 32, 32, 31), -1);
    mu_count_occupancy(&counters, -1, 1);
    mu_count_occupancy(&counters, 5000, 1);
    mu_count_occupancy(&counters, 7001, 1);
    assert_int_equal(counters.occupancy_unmeasured, 1);
    assert_int_equal(counters.occupancy_measured, 2);
    assert_int_equal(counters.occupancy_sum_basis_points, 12001);
    assert_int_equal(mu_mean_occupancy(&counters), 6000);
}

static void test_mean_of_nothing_is_zero(void **state) {
    (void)state;
    mu_device_counters counters = {0};
    assert_int_equal(mu_mean_occupancy(&counters), 0);
}

static void test_overflowing_add_leaves_the_counter_and_counts(void **state) {
    (void)state;
    mu_device_counters counters = {0};
    mu_count(&counters, &counters.launches, UINT64_MAX - 1);
    mu_count(&counters, &counters.launches, 1);
    assert_true(counters.launches == UINT64_MAX);
    assert_int_equal(counters.overflows, 0);
    mu_count(&counters, &counters.launches, 1);
    mu_count(&counters, &counters.launches, 5);
    assert_true(counters.launches == UINT64_MAX);
    assert_int_equal(counters.overflows, 2);
    /* The count of overflows stops at its own end. */
    counters.overflows = UINT64_MAX;
    mu_count(&counters, &counters.launches, 5);
    assert_true(counters.overflows == UINT64_MAX);
    mu_count(&counters, &counters.overflows, 5);
    assert_true(counters.overflows == UINT64_MAX);
}

static void test_threads_scheduled_and_wasted(void **state) {
    (void)state;
    mu_device_counters counters = {0};
    mu_count_threads(&counters, 10, 100, 32, 0, 1); /* 128 slots a block, 28 beyond it */
    assert_int_equal(counters.threads_scheduled, 1280);
    assert_int_equal(counters.threads_wasted, 280);
    mu_count_threads(&counters, 2, 128, 32, 200, 1);
    assert_int_equal(counters.threads_scheduled, 1280 + 256);
    assert_int_equal(counters.threads_wasted, 280 + 56);
    /* A grid-stride kernel has more elements than threads. */
    mu_count_threads(&counters, 2, 128, 32, 100000, 1);
    assert_int_equal(counters.threads_wasted, 280 + 56);
    mu_count_threads(&counters, UINT64_MAX, 1024, 32, 1, 1);
    assert_int_equal(counters.overflows, 2);
}

static void test_reset_zeroes_every_counter(void **state) {
    (void)state;
    mu_device_counters counters, zero = {0};
#define SET(member, help) counters.member = 7;
    MU_DEVICE_COUNTERS(SET)
#undef SET
    mu_counters_reset(&counters);
    assert_memory_equal(&counters, &zero, sizeof zero);
}

/* ---------------------------------------------------------------------------------------------------------- export -- */

/* Every counter has a value of its own. */
static void number(mu_device_counters *counters, uint64_t base) {
#define SET(member, help) counters->member = base++;
    MU_DEVICE_COUNTERS(SET)
#undef SET
}

static void test_every_counter_appears_in_json(void **state) {
    (void)state;
    mu_device_counters first, second;
    number(&first, 1000);
    number(&second, 5000);
    char *text = NULL;
    const mu_telemetry_source sources[] = {{0, "A \"quoted\" name", &first}, {3, NULL, &second}};
    assert_int_equal(mu_telemetry_json(sources, 2, &text, NULL), MUSTER_OK);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    json_t *devices = json_object_get(root, "devices");
    assert_int_equal(json_array_size(devices), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(devices, 0), "name")), "A \"quoted\" name");
    assert_int_equal(json_integer_value(json_object_get(json_array_get(devices, 1), "device")), 3);
    for (size_t i = 0; i < 2; i++) {
        json_t *counters = json_object_get(json_array_get(devices, i), "counters");
        json_int_t expected = i ? 5000 : 1000;
        size_t count = 0;
#define CHECK(member, help)                                                                                            \
    assert_int_equal(json_integer_value(json_object_get(counters, #member)), expected++), count++;
        MU_DEVICE_COUNTERS(CHECK)
#undef CHECK
        assert_int_equal(json_object_size(counters), count);
    }
    json_decref(root);
    mu_free(text);
}

static void test_every_counter_appears_in_prometheus(void **state) {
    (void)state;
    mu_device_counters first, second;
    number(&first, 1000);
    number(&second, 5000);
    char *text = NULL, line[256];
    const mu_telemetry_source sources[] = {{0, "back\\slash", &first}, {3, "say \"hi\"\n", &second}};
    assert_int_equal(mu_telemetry_prometheus(sources, 2, &text, NULL), MUSTER_OK);
    uint64_t expected = 0;
#define CHECK(member, help)                                                                                            \
    snprintf(line, sizeof line,                                                                                        \
             "\n# TYPE muster_" #member "_total counter\nmuster_" #member                                              \
             "_total{device=\"0\",name=\"back\\\\slash\"} %d\nmuster_" #member                                         \
             "_total{device=\"3\",name=\"say \\\"hi\\\"\\n\"} %d\n",                                                   \
             (int)(1000 + expected), (int)(5000 + expected));                                                          \
    expected++;                                                                                                        \
    if (!strstr(text, line)) fail_msg("no %s in the text", line);                                                      \
    assert_non_null(strstr(text, "# HELP muster_" #member "_total " help "\n"));
    MU_DEVICE_COUNTERS(CHECK)
#undef CHECK
    /* Each line is a comment or a sample with a value. */
    for (char *at = text; *at;) {
        char *end = strchr(at, '\n');
        assert_non_null(end);
        *end = '\0';
        assert_true(strncmp(at, "# HELP ", 7) == 0 || strncmp(at, "# TYPE ", 7) == 0 || strncmp(at, "muster_", 7) == 0);
        at = end + 1;
    }
    mu_free(text);
}

static void test_values_json_cannot_hold_are_cut(void **state) {
    (void)state;
    mu_device_counters counters = {.launches = UINT64_MAX};
    char *text = NULL;
    assert_int_equal(mu_telemetry_json(&(mu_telemetry_source){0, "\xff not UTF-8", &counters}, 1, &text, NULL),
                     MUSTER_OK);
    assert_non_null(strstr(text, "9223372036854775807"));
    mu_free(text);
    assert_int_equal(mu_telemetry_prometheus(&(mu_telemetry_source){0, "x", &counters}, 1, &text, NULL), MUSTER_OK);
    assert_non_null(strstr(text, " 18446744073709551615\n"));
    mu_free(text);
}

static void test_export_without_memory_fails_and_leaks_nothing(void **state) {
    (void)state;
    mu_device_counters counters = {0};
    const mu_telemetry_source source = {0, "x", &counters};
    for (int which = 0; which < 2; which++) {
        bool failed = true;
        for (uint64_t n = 1; failed; n++) {
            char *text = (char *)"untouched";
            mu_alloc_fail_at(n, false);
            muster_status status =
                which ? mu_telemetry_json(&source, 1, &text, NULL) : mu_telemetry_prometheus(&source, 1, &text, NULL);
            failed = mu_alloc_fail_hits() > 0;
            mu_alloc_fail_at(0, false);
            assert_int_equal(status, failed ? MUSTER_OUT_OF_HOST_MEMORY : MUSTER_OK);
            if (failed)
                assert_string_equal(text, "untouched");
            else
                mu_free(text);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_basis_points_are_exact_floored_and_clamped),
        cmocka_unit_test(test_unmeasurable_occupancy_counts_as_unmeasured),
        cmocka_unit_test(test_mean_of_nothing_is_zero),
        cmocka_unit_test(test_overflowing_add_leaves_the_counter_and_counts),
        cmocka_unit_test(test_threads_scheduled_and_wasted),
        cmocka_unit_test(test_reset_zeroes_every_counter),
        cmocka_unit_test(test_every_counter_appears_in_json),
        cmocka_unit_test(test_every_counter_appears_in_prometheus),
        cmocka_unit_test(test_values_json_cannot_hold_are_cut),
        cmocka_unit_test(test_export_without_memory_fails_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
