/* Compiling, loading, entries, target choice: over a driver table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/device.h"
#include "device/target.h"
#include "tests/device/fake_driver.h"

static mu_device *device;

static int setup(void **state) {
    *state = fake_driver_create();
    assert_int_equal(mu_device_open(&fake->table, &(mu_device_options){.index = 2}, &device, NULL), MUSTER_OK);
    return mu_device_enter(device, NULL);
}

static int teardown(void **state) {
    (void)state;
    mu_device_leave(device);
    mu_device_close(device);
    mu_driver_release(&fake->table);
    fake_driver_finish();
    return 0;
}

static mu_module load(void) {
    mu_module module = NULL;
    muster_error error = {0};
    if (mu_module_load(device, fake_ptx, strlen(fake_ptx), "test", &module, &error)) fail_msg("%s", error.message);
    return module;
}

/* ------------------------------------------------------------------------------------------------------------ load -- */

static void test_text_needs_no_terminator_and_may_have_several(void **state) {
    (void)state;
    char text[1024] = {0};
    mu_module module;
    size_t length = strlen(fake_ptx);
    memcpy(text, fake_ptx, length);
    for (size_t extra = 0; extra < 3; extra++) {
        memset(text + length + extra, extra ? '\0' : 'X', 1); /* what follows an unterminated text is not read */
        assert_int_equal(mu_module_load(device, text, length + extra, "test", &module, NULL), MUSTER_OK);
        mu_module_unload(device, module);
        text[length] = '\0';
    }
}

static void test_modules_are_charged_what_they_take(void **state) {
    (void)state;
    mu_module module = load();
    mu_ledger *ledger = mu_device_ledger(device);
    assert_int_equal(mu_ledger_read(ledger).fixed, 2 << 20);
    mu_module_unload(device, module);
    assert_int_equal(mu_ledger_read(ledger).fixed, 0);
    assert_int_equal(ledger->underflows, 0);
    mu_module_unload(device, NULL);
    const mu_device_counters *counters = mu_device_get_counters(device);
    assert_int_equal(mu_counter_read(&counters->module_loads), 1);
    assert_int_equal(mu_counter_read(&counters->module_unloads), 1);
    assert_int_equal(mu_counter_read(&counters->device_stalls), 2);
}

static void test_module_loads_when_free_memory_cannot_be_told(void **state) {
    (void)state;
    fake->fail_entry_code[FAKE_mem_get_info] = CUDA_ERROR_UNKNOWN;
    mu_module module = load();
    assert_int_equal(mu_ledger_read(mu_device_ledger(device)).fixed, 0);
    mu_module_unload(device, module);
}

/* Freed buffers stay in the pool: they make way, once. */
static void test_module_for_which_there_is_no_memory_is_loaded_behind_a_trim(void **state) {
    (void)state;
    mu_module module;
    muster_error error;
    mu_ledger *ledger = mu_device_ledger(device);
    fake->fail_entry_code[FAKE_module_load_data_ex] = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(mu_module_load(device, fake_ptx, strlen(fake_ptx), "mine", &module, &error),
                     MUSTER_OUT_OF_DEVICE_MEMORY);
    assert_non_null(strstr(error.message, "mine"));
    assert_int_equal(fake->calls[FAKE_module_load_data_ex], 2);
    assert_int_equal(fake->calls[FAKE_mem_pool_trim_to], 1);
    assert_int_equal(mu_ledger_read(ledger).fixed, 0);
    fake->fail_entry_times[FAKE_module_load_data_ex] = 1;
    assert_int_equal(mu_module_load(device, fake_ptx, strlen(fake_ptx), "mine", &module, &error), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_module_load_data_ex], 4);
    assert_int_equal(fake->calls[FAKE_mem_pool_trim_to], 2);
    assert_int_equal(mu_ledger_read(ledger).fixed, 2 << 20);
    mu_module_unload(device, module);
    /* What else may be wrong is not tried again. */
    fake->fail_entry_code[FAKE_module_load_data_ex] = CUDA_ERROR_INVALID_IMAGE;
    fake->fail_entry_times[FAKE_module_load_data_ex] = 1;
    assert_int_equal(mu_module_load(device, fake_ptx, strlen(fake_ptx), "mine", &module, &error),
                     MUSTER_PROGRAM_INVALID);
    assert_int_equal(fake->calls[FAKE_mem_pool_trim_to], 2);
}

static void expect_bad(const char *text, size_t bytes, const char *message) {
    mu_module module = (mu_module)1;
    muster_error error = {0};
    assert_int_equal(mu_module_load(device, text, bytes, "mine", &module, &error), MUSTER_PROGRAM_INVALID);
    assert_ptr_equal(module, (mu_module)1);
    if (!strstr(error.message, message)) fail_msg("\"%s\" does not say \"%s\"", error.message, message);
    assert_null(strchr(error.message, '\n'));
    assert_non_null(strstr(error.message, "mine"));
}

static void test_bad_programs_carry_the_compilers_log_on_one_line(void **state) {
    (void)state;
    static const char text[] = ".version 7.8\n.target sm_80\nbogus";
    expect_bad(text, strlen(text), "line 4; error : Unknown opcode 'bogus' fatal");
    void *cubin = NULL;
    size_t cubin_bytes;
    muster_error error;
    assert_int_equal(mu_module_compile(device, text, strlen(text), "mine", &cubin, &cubin_bytes, &error),
                     MUSTER_PROGRAM_INVALID);
    assert_non_null(strstr(error.message, "Unknown opcode"));
    assert_int_equal(error.driver_code, CUDA_ERROR_INVALID_PTX);
    assert_int_equal(error.device, 2);
    assert_null(cubin);
    assert_int_equal(fake->live.links, 0);
}

static void test_images_the_driver_would_trust_are_checked_first(void **state) {
    (void)state;
    uint64_t calls = fake->calls[FAKE_module_load_data_ex];
    expect_bad("", 0, "empty");
    expect_bad("\0\0\0", 3, "empty");
    expect_bad(".version\0.target", 16, "NUL");
    expect_bad("\177ELF", 4, "cut short");
    expect_bad("\x50\xed\x55\xba", 4, "cut short");
    assert_int_equal(fake->calls[FAKE_module_load_data_ex], calls);
}

static void test_compiling_loads_nothing_and_the_result_loads(void **state) {
    (void)state;
    void *cubin = NULL;
    size_t bytes = 0;
    mu_module module;
    mu_function function;
    assert_int_equal(mu_module_compile(device, fake_ptx, strlen(fake_ptx), NULL, &cubin, &bytes, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_module_load_data_ex], 0);
    assert_int_equal(mu_counter_read(&mu_device_get_counters(device)->device_stalls), 0);
    assert_int_equal(mu_module_load(device, cubin, bytes, NULL, &module, NULL), MUSTER_OK);
    assert_int_equal(mu_module_function(device, module, "add", &function, NULL, NULL), MUSTER_OK);
    mu_module_unload(device, module);
    mu_free(cubin);
}

static void test_only_text_is_compiled(void **state) {
    (void)state;
    muster_error error;
    void *cubin = NULL;
    size_t bytes = 0;
    const unsigned char fatbin[16] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16};
    assert_int_equal(mu_module_compile(device, fatbin, sizeof fatbin, "f", &cubin, &bytes, &error),
                     MUSTER_INVALID_ARGUMENT);
}

/* ------------------------------------------------------------------------------------------------------- functions -- */

static void test_function_info_tells_the_parameters(void **state) {
    (void)state;
    mu_module module = load();
    mu_function add, again, plain;
    mu_function_info info;
    fake->static_shared = 96, fake->max_threads = 512, fake->registers = 40;
    assert_int_equal(mu_module_function(device, module, "add", &add, &info, NULL), MUSTER_OK);
    assert_true(info.parameters_known);
    assert_int_equal(info.parameter_count, 3);
    assert_int_equal(info.parameter_bytes[0], 8);
    assert_int_equal(info.parameter_bytes[1], 8);
    assert_int_equal(info.parameter_bytes[2], 4);
    assert_int_equal(info.static_shared_bytes, 96);
    assert_int_equal(info.max_threads, 512);
    assert_int_equal(info.registers, 40);
    assert_int_equal(mu_module_function(device, module, "plain", &plain, &info, NULL), MUSTER_OK);
    assert_int_equal(info.parameter_count, 0);
    assert_ptr_not_equal(plain, add);
    uint64_t calls = fake->total_calls;
    assert_int_equal(mu_module_function(device, module, "add", &again, &info, NULL), MUSTER_OK);
    assert_ptr_equal(again, add);
    assert_int_equal(info.parameter_count, 3);
    assert_int_equal(fake->total_calls, calls);
    mu_module_unload(device, module);
}

static void test_function_is_loaded_when_found_not_when_launched(void **state) {
    (void)state;
    mu_module module = load();
    mu_function function;
    assert_int_equal(mu_module_function(device, module, "add", &function, NULL, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_func_load], 1);
    mu_module_unload(device, module);
}

static void test_older_drivers_cannot_tell(void **state) {
    (void)state;
    mu_module module = load();
    mu_function function = (mu_function)1;
    mu_function_info info;
    muster_error error;
    fake->table.func_get_param_info = NULL;
    fake->table.func_load = NULL;
    fake->table.module_get_function_count = NULL;
    assert_int_equal(mu_module_function(device, module, "add", &function, &info, NULL), MUSTER_OK);
    assert_false(info.parameters_known);
    assert_int_equal(info.parameter_count, 0);
    assert_int_equal(mu_module_function(device, module, "ad", &function, &info, &error), MUSTER_ENTRY_NOT_FOUND);
    assert_null(strstr(error.message, "it has"));
    mu_module_unload(device, module);
}

static void test_unknown_entry_lists_those_there_are(void **state) {
    (void)state;
    mu_module module = load();
    mu_function function = (mu_function)1;
    muster_error error;
    assert_int_equal(mu_module_function(device, module, "ad", &function, NULL, &error), MUSTER_ENTRY_NOT_FOUND);
    assert_ptr_equal(function, (mu_function)1);
    assert_non_null(strstr(error.message, "no entry \"ad\"; it has add, plain;"));
    assert_int_equal(error.device, 2);
    assert_int_equal(error.driver_code, CUDA_ERROR_NOT_FOUND);
    mu_module_unload(device, module);
}

static void test_too_many_parameters_are_refused(void **state) {
    (void)state;
    char text[8000];
    size_t used = (size_t)snprintf(text, sizeof text, ".version 7.8\n.target sm_80\n.visible .entry wide(");
    for (int i = 0; i < MU_MAX_PARAMETERS + 1; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, ".param .u8 p, ");
    snprintf(text + used, sizeof text - used, ") { ret; }\n");
    mu_module module;
    mu_function function;
    muster_error error;
    assert_int_equal(mu_module_load(device, text, strlen(text), "wide", &module, NULL), MUSTER_OK);
    assert_int_equal(mu_module_function(device, module, "wide", &function, NULL, &error), MUSTER_LIMIT_REACHED);
    assert_non_null(strstr(error.message, "more than 128 parameters"));
    mu_module_unload(device, module);
}

static void test_globals_are_found_by_name(void **state) {
    (void)state;
    mu_module module = load();
    mu_address address = 0;
    uint64_t bytes = 0;
    muster_error error;
    assert_int_equal(mu_module_global(device, module, "counter", &address, &bytes, NULL), MUSTER_OK);
    assert_int_equal(bytes, 8);
    address = 77;
    assert_int_equal(mu_module_global(device, module, "nowhere", &address, &bytes, &error), MUSTER_ENTRY_NOT_FOUND);
    assert_int_equal(address, 77);
    assert_non_null(strstr(error.message, "\"nowhere\""));
    mu_module_unload(device, module);
}

/* ---------------------------------------------------------------------------------------------------------- target -- */

static void expect_targets(int native, const int *expected, int count) {
    int targets[MU_MAX_TARGETS] = {0};
    assert_int_equal(mu_target_candidates(native, targets), count);
    for (int i = 0; i < count; i++) assert_int_equal(targets[i], expected[i]);
}

static void test_target_candidates_are_native_then_lower_ones(void **state) {
    (void)state;
    expect_targets(90, (const int[]){90, 89, 86, 80, 75, 70}, 6);
    expect_targets(120, (const int[]){120, 89, 86, 80, 75, 70}, 6);
    expect_targets(89, (const int[]){89, 86, 80, 75, 70}, 5);
    expect_targets(87, (const int[]){87, 86, 80, 75, 70}, 5);
    expect_targets(80, (const int[]){80, 75, 70}, 3);
    expect_targets(70, (const int[]){70}, 1);
    expect_targets(61, (const int[]){61}, 1);
}

static mu_device *open_with_failing_targets_from(int sm) {
    mu_device *opened = NULL;
    fake->lowest_failing_target = sm;
    assert_int_equal(mu_device_open(&fake->table, &(mu_device_options){.index = 5}, &opened, NULL), MUSTER_OK);
    return opened;
}

static void test_target_is_the_first_that_compiles(void **state) {
    (void)state;
    static const struct {
        int fails_from, target;
    } cases[] = {{0, 90}, {91, 90}, {90, 89}, {89, 86}, {86, 80}, {80, 75}, {75, 70}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t before = fake->calls[FAKE_link_create];
        mu_device *opened = open_with_failing_targets_from(cases[i].fails_from);
        int sm = 0;
        assert_int_equal(mu_device_target(opened, &sm, NULL), MUSTER_OK);
        assert_int_equal(sm, cases[i].target);
        assert_int_equal(mu_device_capability(opened)->ptx_target_sm, cases[i].target);
        assert_int_equal(mu_device_capability(opened)->native_sm, 90);
        /* Really compiled, and no further than needed. */
        assert_int_equal(fake->calls[FAKE_link_create] - before, i < 2 ? 1 : i);
        mu_device_close(opened);
    }
}

static void test_no_target_lists_each_failure(void **state) {
    (void)state;
    mu_device *opened = open_with_failing_targets_from(1);
    muster_error error;
    int sm = 77;
    assert_int_equal(mu_device_target(opened, &sm, &error), MUSTER_CAPABILITY_MISSING);
    assert_int_equal(sm, 77);
    assert_int_equal(error.device, 5);
    static const char *const parts[] = {"sm_90:", "sm_89:", "sm_86:", "sm_80:", "sm_75:", "sm_70:", "(222)"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(error.message, parts[i])) fail_msg("\"%s\" does not list %s", error.message, parts[i]);
    assert_int_equal(mu_device_capability(opened)->ptx_target_sm, 0);
    mu_device_close(opened);
}

static void test_no_warp_size_has_no_target(void **state) {
    (void)state;
    muster_error error;
    int sm;
    fake->attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 0;
    mu_device *opened = open_with_failing_targets_from(0);
    assert_int_equal(mu_device_target(opened, &sm, &error), MUSTER_CAPABILITY_MISSING);
    assert_non_null(strstr(error.message, "warp size"));
    mu_device_close(opened);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_text_needs_no_terminator_and_may_have_several),
        TEST(test_modules_are_charged_what_they_take),
        TEST(test_module_loads_when_free_memory_cannot_be_told),
        TEST(test_module_for_which_there_is_no_memory_is_loaded_behind_a_trim),
        TEST(test_bad_programs_carry_the_compilers_log_on_one_line),
        TEST(test_images_the_driver_would_trust_are_checked_first),
        TEST(test_compiling_loads_nothing_and_the_result_loads),
        TEST(test_only_text_is_compiled),
        TEST(test_function_info_tells_the_parameters),
        TEST(test_function_is_loaded_when_found_not_when_launched),
        TEST(test_older_drivers_cannot_tell),
        TEST(test_unknown_entry_lists_those_there_are),
        TEST(test_too_many_parameters_are_refused),
        TEST(test_globals_are_found_by_name),
        TEST(test_target_candidates_are_native_then_lower_ones),
        TEST(test_target_is_the_first_that_compiles),
        TEST(test_no_target_lists_each_failure),
        TEST(test_no_warp_size_has_no_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
