/* The launch boundary: guards, launchers, shared memory, validation, the order of resolving, accounting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"
#include "device/launch.h"
#include "device/state.h"
#include "tests/device/fake_driver.h"

static mu_device *device;
static mu_module module;
static mu_function add, plain;
static mu_function_info add_info, plain_info;

static int setup(void **state) {
    *state = fake_driver_create();
    assert_int_equal(mu_device_open(&fake->table, &(mu_device_options){.index = 3}, &device, NULL), MUSTER_OK);
    assert_int_equal(mu_device_enter(device, NULL), MUSTER_OK);
    assert_int_equal(mu_module_load(device, fake_ptx, strlen(fake_ptx), "test", &module, NULL), MUSTER_OK);
    assert_int_equal(mu_module_function(device, module, "add", &add, &add_info, NULL), MUSTER_OK);
    assert_int_equal(mu_module_function(device, module, "plain", &plain, &plain_info, NULL), MUSTER_OK);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    mu_module_unload(device, module);
    mu_device_leave(device);
    mu_device_close(device);
    mu_driver_release(&fake->table);
    fake_driver_finish();
    return 0;
}

static uint64_t counted(const atomic_uint_fast64_t *counter) { return mu_counter_read(counter); }
static const mu_device_counters *counters(void) { return mu_device_get_counters(device); }

static uint64_t launcher_calls(void) {
    return fake->calls[FAKE_launch_kernel] + fake->calls[FAKE_launch_cooperative_kernel] +
           fake->calls[FAKE_launch_kernel_ex];
}

static uint64_t values[3];
static void *slots[3];

static mu_launch launch_of(mu_function function) {
    for (int i = 0; i < 3; i++) slots[i] = &values[i];
    bool is_add = function == add;
    return (mu_launch){.function = function,
                       .kernel_name = is_add ? "add" : "plain",
                       .grid = {4, 2, 1},
                       .block = {64, 2, 1},
                       .parameter_count = is_add ? 3 : 0,
                       .parameters = is_add ? slots : NULL,
                       .slot_count = is_add ? 3 : 0};
}

/* Both entrances refuse alike, with this message, before any driver call. */
static void refused(const mu_launch *launch, muster_status status, const char *message) {
    muster_status (*const entrances[])(mu_device *, const mu_launch *, muster_error *) = {mu_launch_prepared,
                                                                                          mu_launch_validated};
    for (size_t i = 0; i < 2; i++) {
        muster_error error = {0};
        uint64_t calls = fake->total_calls;
        assert_int_equal(entrances[i](device, launch, &error), status);
        assert_int_equal(fake->total_calls, calls);
        assert_int_equal(error.device, 3);
        if (!strstr(error.message, message)) fail_msg("\"%s\" does not say \"%s\"", error.message, message);
    }
    assert_int_equal(counted(&counters()->launches), 0);
}

/* ---------------------------------------------------------------------------------------------------------- guards -- */

static void test_guards_come_in_order_before_any_driver_call(void **state) {
    (void)state;
    mu_launch launch = launch_of(add);
    slots[1] = slots[2] = NULL;
    launch.slot_count = 2;
    launch.function = NULL;
    refused(&launch, MUSTER_INVALID_ARGUMENT, "the function is NULL");
    launch.function = add;
    CUstream stream = device->lanes[MU_LANE_DISPATCH];
    device->lanes[MU_LANE_DISPATCH] = NULL;
    refused(&launch, MUSTER_INVALID_ARGUMENT, "the stream is NULL");
    device->lanes[MU_LANE_DISPATCH] = stream;
    refused(&launch, MUSTER_INVALID_ARGUMENT, "2 slots for 3 parameters");
    launch.slot_count = 3;
    refused(&launch, MUSTER_INVALID_ARGUMENT, "slot 1 of the argument table is NULL");
    slots[1] = &values[1];
    refused(&launch, MUSTER_INVALID_ARGUMENT, "slot 2 of the argument table is NULL");
}

static void test_table_is_measured_by_the_kernels_own_parameters(void **state) {
    (void)state;
    mu_launch launch = launch_of(add);
    launch.parameter_count = launch.slot_count = 1; /* the caller believes in one */
    refused(&launch, MUSTER_INVALID_ARGUMENT, "1 slots for 3 parameters");
    launch.parameters = NULL;
    launch.slot_count = 3;
    refused(&launch, MUSTER_INVALID_ARGUMENT, "0 slots for 3 parameters");
}

static void test_kernel_without_parameters_needs_no_table(void **state) {
    (void)state;
    mu_launch launch = launch_of(plain);
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
    assert_null(fake->last_launch.parameters);
}

/* ------------------------------------------------------------------------------------------------------- launchers -- */

static void test_launch_passes_everything_on_to_the_dispatch_lane(void **state) {
    (void)state;
    mu_launch launch = launch_of(add);
    launch.dynamic_shared_bytes = 512;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
    const fake_launch *seen = &fake->last_launch;
    assert_int_equal(seen->launcher, FAKE_launch_kernel);
    assert_memory_equal(seen->grid, launch.grid, sizeof launch.grid);
    assert_memory_equal(seen->block, launch.block, sizeof launch.block);
    assert_int_equal(seen->shared, 512);
    assert_ptr_equal(seen->parameters, slots);
    assert_non_null(seen->stream);
    assert_int_equal(launcher_calls(), 1);
    assert_int_equal(counted(&counters()->launches), 1);
    assert_int_equal(counted(&counters()->cooperative_launches), 0);
}

static void test_each_kind_has_its_launcher(void **state) {
    (void)state;
    mu_launch launch = launch_of(plain);
    launch.cooperative = true;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
    assert_int_equal(fake->last_launch.launcher, FAKE_launch_cooperative_kernel);
    launch.cluster[0] = 2, launch.cluster[1] = 2, launch.cluster[2] = 1;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
    assert_int_equal(fake->last_launch.launcher, FAKE_launch_kernel_ex);
    assert_memory_equal(fake->last_launch.cluster, launch.cluster, sizeof launch.cluster);
    assert_int_equal(fake->last_launch.cooperative, 1);
    launch.cooperative = false;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
    assert_int_equal(fake->last_launch.cooperative, 0);
    assert_int_equal(counted(&counters()->launches), 3);
    assert_int_equal(counted(&counters()->cooperative_launches), 2);
    assert_int_equal(launcher_calls(), 3);
}

static void test_cluster_must_divide_the_grid(void **state) {
    (void)state;
    muster_error error;
    mu_launch launch = launch_of(plain);
    launch.cluster[0] = 3, launch.cluster[1] = 1, launch.cluster[2] = 1;
    assert_int_equal(mu_launch_validated(device, &launch, &error), MUSTER_INVALID_GEOMETRY);
    assert_non_null(strstr(error.message, "multiple of the cluster's 3"));
    launch.cluster[0] = 4, launch.cluster[2] = 0;
    assert_int_equal(mu_launch_validated(device, &launch, &error), MUSTER_INVALID_GEOMETRY);
    assert_int_equal(launcher_calls(), 0);
}

static void test_cluster_without_its_launcher_fails(void **state) {
    (void)state;
    muster_error error;
    mu_launch launch = launch_of(plain);
    fake->table.launch_kernel_ex = NULL;
    launch.cluster[0] = launch.cluster[1] = launch.cluster[2] = 1;
    assert_int_equal(mu_launch_prepared(device, &launch, &error), MUSTER_LAUNCH_FAILED);
    assert_non_null(strstr(error.message, "no such launcher"));
}

static void test_launch_failure_carries_everything(void **state) {
    (void)state;
    muster_error error;
    mu_launch launch = launch_of(add);
    launch.element_count = 12345;
    fake->fail_entry_code[FAKE_launch_kernel] = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    assert_int_equal(mu_launch_prepared(device, &launch, &error), MUSTER_LAUNCH_FAILED);
    assert_int_equal(error.driver_code, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    static const char *const parts[] = {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)",
                                        "cuLaunchKernel of add",
                                        "grid 4 x 2 x 1",
                                        "block 64 x 2 x 1",
                                        "12345 elements",
                                        "sm_90",
                                        "use smaller blocks",
                                        "device 3"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(error.message, parts[i])) fail_msg("\"%s\" does not say \"%s\"", error.message, parts[i]);
    assert_int_equal(counted(&counters()->launches), 0);
    launch.element_count = 0;
    assert_int_equal(mu_launch_prepared(device, &launch, &error), MUSTER_LAUNCH_FAILED);
    assert_non_null(strstr(error.message, "1024 elements"));
    launch.cooperative = true;
    fake->fail_entry_code[FAKE_launch_cooperative_kernel] = CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    assert_int_equal(mu_launch_prepared(device, &launch, &error), MUSTER_COOPERATIVE_TOO_LARGE);
    assert_non_null(strstr(error.message, "cuLaunchCooperativeKernel"));
    assert_false(mu_device_is_lost(device));
}

static void test_refused_launch_is_no_loss_and_next_one_goes(void **state) {
    (void)state;
    mu_launch launch = launch_of(plain);
    fake->fail_entry_code[FAKE_launch_kernel] = CUDA_ERROR_INVALID_VALUE;
    fake->fail_entry_times[FAKE_launch_kernel] = 1;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_LAUNCH_FAILED);
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
}

/* --------------------------------------------------------------------------------------------------- shared memory -- */

static void test_shared_limit_is_raised_once_beyond_48_kib(void **state) {
    (void)state;
    mu_launch launch = launch_of(plain);
    launch.dynamic_shared_bytes = 48 << 10;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_func_set_attribute], 0);
    launch.dynamic_shared_bytes = 100 << 10;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_func_set_attribute], 1);
    assert_int_equal(fake->last_dynamic_limit, 100 << 10);
    assert_true(fake_position(FAKE_func_set_attribute, 0) < fake_position(FAKE_launch_kernel, 1));
    launch.dynamic_shared_bytes = 64 << 10;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_func_set_attribute], 1);
    launch.dynamic_shared_bytes = 227 << 10;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_func_set_attribute], 2);
}

static void test_static_shared_memory_counts_towards_the_limit(void **state) {
    (void)state;
    mu_function function;
    mu_function_info info;
    mu_module other;
    fake->static_shared = 40 << 10;
    assert_int_equal(mu_module_load(device, fake_ptx, strlen(fake_ptx), "other", &other, NULL), MUSTER_OK);
    assert_int_equal(mu_module_function(device, other, "plain", &function, &info, NULL), MUSTER_OK);
    mu_launch launch = launch_of(function);
    launch.dynamic_shared_bytes = 16 << 10;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
    assert_int_equal(fake->last_dynamic_limit, 16 << 10);
    mu_module_unload(device, other);
}

static void test_more_shared_memory_than_the_device_has_is_refused(void **state) {
    (void)state;
    mu_launch launch = launch_of(plain);
    launch.dynamic_shared_bytes = (227 << 10) + 1;
    refused(&launch, MUSTER_CAPABILITY_MISSING, "232449 bytes");
}

static void test_occupancy_query_sees_the_raised_limit(void **state) {
    (void)state;
    int blocks = 0;
    assert_int_equal(mu_function_occupancy(device, plain, 256, 100 << 10, &blocks, NULL), MUSTER_OK);
    assert_int_equal(blocks, 4);
    assert_true(fake_position(FAKE_func_set_attribute, 0) < fake_position(FAKE_occupancy_max_active_blocks, 0));
    assert_int_equal(counted(&counters()->occupancy_queries), 1);
}

/* ------------------------------------------------------------------------------------------------- barrier counters -- */

static void test_barrier_counter_is_zeroed_before_every_launch(void **state) {
    (void)state;
    mu_launch launch = launch_of(plain);
    uint32_t value[2];
    assert_int_equal(mu_module_global(device, module, "counter", &launch.counter, &launch.counter_bytes, NULL),
                     MUSTER_OK);
    assert_int_equal(launch.counter_bytes, 8);
    for (uint64_t i = 0; i < 3; i++) {
        memset((void *)(uintptr_t)launch.counter, 0xff, 8); /* what a run leaves behind */
        assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
        memcpy(value, (void *)(uintptr_t)launch.counter, 8);
        assert_int_equal(value[0] | value[1], 0);
        assert_true(fake_position(FAKE_memset_d32_async, i) < fake_position(FAKE_launch_kernel, i));
    }
    launch.counter_bytes = 7;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_INVALID_ARGUMENT);
    launch.counter_bytes = 8;
    fake->fail_entry_code[FAKE_memset_d32_async] = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_LAUNCH_FAILED);
    assert_int_equal(launcher_calls(), 3);
}

/* -------------------------------------------------------------------------------------------------------- validate -- */

static void test_validated_launch_repeats_geometry_and_both_stages(void **state) {
    (void)state;
    muster_error error;
    mu_launch launch = launch_of(plain);
    launch.grid[1] = 65536;
    assert_int_equal(mu_launch_validated(device, &launch, &error), MUSTER_INVALID_GEOMETRY);
    assert_int_equal(error.device, 3);
    launch = launch_of(plain);
    launch.cooperative = true;
    launch.grid[0] = 132 * 16 + 1, launch.grid[1] = 1; /* 128 threads: 16 blocks on each of 132 */
    assert_int_equal(mu_launch_validated(device, &launch, &error), MUSTER_COOPERATIVE_TOO_LARGE);
    assert_int_equal(counted(&counters()->occupancy_queries), 0);
    launch.grid[0] = 132 * 4 + 1; /* the function itself allows 4 */
    assert_int_equal(mu_launch_validated(device, &launch, &error), MUSTER_COOPERATIVE_TOO_LARGE);
    assert_int_equal(counted(&counters()->occupancy_queries), 1);
    assert_int_equal(launcher_calls(), 0);
    launch.grid[0] = 132 * 4;
    assert_int_equal(mu_launch_validated(device, &launch, &error), MUSTER_OK);
    assert_int_equal(launcher_calls(), 1);
}

static void test_prepared_launch_validates_nothing_again(void **state) {
    (void)state;
    mu_launch launch = launch_of(plain);
    launch.cooperative = true;
    launch.grid[0] = 1000000;
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_OK);
    assert_int_equal(counted(&counters()->occupancy_queries), 0);
}

static void test_function_limits_threads(void **state) {
    (void)state;
    mu_function function;
    mu_function_info info;
    mu_module other;
    muster_error error;
    fake->max_threads = 127;
    assert_int_equal(mu_module_load(device, fake_ptx, strlen(fake_ptx), "other", &other, NULL), MUSTER_OK);
    assert_int_equal(mu_module_function(device, other, "plain", &function, &info, NULL), MUSTER_OK);
    mu_launch launch = launch_of(function);
    assert_int_equal(mu_launch_validated(device, &launch, &error), MUSTER_INVALID_GEOMETRY);
    assert_non_null(strstr(error.message, "at most 127 threads"));
    mu_module_unload(device, other);
}

/* --------------------------------------------------------------------------------------------------------- resolve -- */

typedef struct recorder {
    char order[16];
    muster_status function_status;
    int occupancy;
} recorder;

static muster_status record_function(void *user, mu_function *function, mu_function_info *info, muster_error *error) {
    recorder *to = user;
    (void)error;
    strcat(to->order, "f");
    if (to->function_status) return to->function_status;
    *function = plain;
    *info = plain_info;
    return MUSTER_OK;
}

static muster_status record_occupancy(void *user, mu_function function, uint32_t block_threads,
                                      uint64_t dynamic_shared_bytes, int *blocks, muster_error *error) {
    recorder *to = user;
    (void)error;
    assert_ptr_equal(function, plain);
    assert_int_equal(block_threads, 128);
    assert_int_equal(dynamic_shared_bytes, 0);
    strcat(to->order, "o");
    *blocks = to->occupancy;
    return MUSTER_OK;
}

static muster_status resolve(mu_launch *launch, recorder *to) {
    to->order[0] = '\0';
    return mu_launch_resolve(mu_device_capability(device), launch,
                             &(mu_resolver){record_function, record_occupancy, to}, NULL);
}

static void test_bad_grid_costs_no_compile(void **state) {
    (void)state;
    recorder to = {.occupancy = 4};
    mu_launch launch = launch_of(NULL);
    launch.grid[2] = 0;
    assert_int_equal(resolve(&launch, &to), MUSTER_INVALID_GEOMETRY);
    assert_string_equal(to.order, "");
    launch = launch_of(NULL);
    launch.cooperative = true;
    launch.grid[0] = 100000;
    assert_int_equal(resolve(&launch, &to), MUSTER_COOPERATIVE_TOO_LARGE);
    assert_string_equal(to.order, "");
    assert_null(launch.function);
}

static void test_resolve_asks_module_then_occupancy(void **state) {
    (void)state;
    recorder to = {.occupancy = 4};
    mu_launch launch = launch_of(NULL);
    launch.cooperative = true;
    assert_int_equal(resolve(&launch, &to), MUSTER_OK);
    assert_string_equal(to.order, "fo");
    assert_ptr_equal(launch.function, plain);
    launch.function = NULL;
    to.occupancy = 0;
    assert_int_equal(resolve(&launch, &to), MUSTER_COOPERATIVE_TOO_LARGE);
    assert_string_equal(to.order, "fo");
    assert_null(launch.function);
    to.function_status = MUSTER_PROGRAM_INVALID;
    assert_int_equal(resolve(&launch, &to), MUSTER_PROGRAM_INVALID);
    assert_string_equal(to.order, "f");
    to.function_status = MUSTER_OK;
    launch.cooperative = false;
    assert_int_equal(resolve(&launch, &to), MUSTER_OK);
    assert_string_equal(to.order, "f");
}

/* ----------------------------------------------------------------------------------------------------------- after -- */

static void test_synchronising_is_counted_and_names_the_kernel(void **state) {
    (void)state;
    mu_launch launch = launch_of(plain);
    muster_error error;
    assert_int_equal(mu_launch_synchronise(device, &launch, NULL), MUSTER_OK);
    assert_int_equal(counted(&counters()->synchronisations), 1);
    fake->fail_entry_code[FAKE_stream_synchronize] = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(mu_launch_synchronise(device, &launch, &error), MUSTER_DRIVER_ERROR);
    assert_non_null(strstr(error.message, "after kernel plain, grid 4 x 2 x 1, block 64 x 2 x 1"));
    assert_int_equal(counted(&counters()->synchronisations), 1);
}

static void test_launches_are_accounted_for(void **state) {
    (void)state;
    mu_launch launch = launch_of(plain);
    mu_launch_account(device, &launch, 1, 8);
    assert_int_equal(counted(&counters()->synchronisations), 0);
    assert_int_equal(counted(&counters()->threads_scheduled), 1024);
    assert_int_equal(counted(&counters()->occupancy_measured), 1);
    assert_int_equal(counted(&counters()->occupancy_sum_basis_points), 5000);
    mu_launch_account(device, &launch, 3, -1);
    assert_int_equal(counted(&counters()->occupancy_unmeasured), 3);
    assert_int_equal(counted(&counters()->threads_scheduled), 4096);
    mu_launch_account(device, &launch, 2, 8);
    assert_int_equal(counted(&counters()->occupancy_measured), 3);
    assert_int_equal(counted(&counters()->occupancy_sum_basis_points), 15000);
}

static void test_iterations_default_to_one_and_zero_is_refused(void **state) {
    (void)state;
    uint32_t iterations = 77, asked = 5;
    muster_error error;
    assert_int_equal(mu_launch_iterations(NULL, &iterations, NULL), MUSTER_OK);
    assert_int_equal(iterations, 1);
    assert_int_equal(mu_launch_iterations(&asked, &iterations, NULL), MUSTER_OK);
    assert_int_equal(iterations, 5);
    asked = 0;
    assert_int_equal(mu_launch_iterations(&asked, &iterations, &error), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(iterations, 5);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_guards_come_in_order_before_any_driver_call),
        TEST(test_table_is_measured_by_the_kernels_own_parameters),
        TEST(test_kernel_without_parameters_needs_no_table),
        TEST(test_launch_passes_everything_on_to_the_dispatch_lane),
        TEST(test_each_kind_has_its_launcher),
        TEST(test_cluster_must_divide_the_grid),
        TEST(test_cluster_without_its_launcher_fails),
        TEST(test_launch_failure_carries_everything),
        TEST(test_refused_launch_is_no_loss_and_next_one_goes),
        TEST(test_shared_limit_is_raised_once_beyond_48_kib),
        TEST(test_static_shared_memory_counts_towards_the_limit),
        TEST(test_more_shared_memory_than_the_device_has_is_refused),
        TEST(test_occupancy_query_sees_the_raised_limit),
        TEST(test_barrier_counter_is_zeroed_before_every_launch),
        TEST(test_validated_launch_repeats_geometry_and_both_stages),
        TEST(test_prepared_launch_validates_nothing_again),
        TEST(test_function_limits_threads),
        TEST(test_bad_grid_costs_no_compile),
        TEST(test_resolve_asks_module_then_occupancy),
        TEST(test_synchronising_is_counted_and_names_the_kernel),
        TEST(test_launches_are_accounted_for),
        TEST(test_iterations_default_to_one_and_zero_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
