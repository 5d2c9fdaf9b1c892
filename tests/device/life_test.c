/* The device layer over a driver that really executes: the simulator, or the real one. The argument says which.
 *
 * The last test faults a kernel on purpose: after it no device of the process can be used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sched.h>

#include "base/alloc.h"
#include "device/admission.h"
#include "device/arguments.h"
#include "device/burst.h"
#include "device/device.h"
#include "device/diagnostic.h"
#include "device/driver.h"
#include "device/launch.h"
#include "device/residency.h"
#include "device/sim/sim.h"
#include "tests/device/life_kernels.h"

enum { MAX_OPEN = 2, WORDS = 100000 };

static const char *driver_name = "sim";
static mu_driver *driver;
static mu_device *devices[MAX_OPEN];
static mu_module modules[MAX_OPEN];
static int device_count;

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        muster_error failure = {0};                                                                                    \
        muster_status status_of_call = (call);                                                                         \
        if (status_of_call) fail_msg("%s: %s", #call, failure.message);                                                \
    } while (0)

static mu_address allocate(mu_device *device, uint64_t bytes) {
    mu_address address = 0;
    OK(mu_device_admit(device, bytes, "a test", &failure));
    OK(mu_device_alloc(device, MU_LANE_UPLOAD, bytes, &address, &failure));
    return address;
}

static void release(mu_device *device, mu_address address, uint64_t bytes) {
    OK(mu_device_free(device, MU_LANE_DISPATCH, address, bytes, &failure));
}

/* Orders what `to` gets from now on after what `from` has got. */
static void order(mu_device *device, mu_lane from, mu_lane to, mu_event event) {
    OK(mu_event_record(device, from, event, &failure));
    OK(mu_event_wait(device, to, event, &failure));
}

static void await(mu_device *device, mu_lane lane, mu_event event) {
    bool done = false;
    OK(mu_event_record(device, lane, event, &failure));
    while (!done) {
        OK(mu_event_poll(device, event, &done, &failure));
        if (!done) sched_yield();
    }
}

static mu_function find(int device, const char *entry, mu_function_info *info) {
    mu_function function = NULL;
    OK(mu_module_function(devices[device], modules[device], entry, &function, info, &failure));
    return function;
}

/* ------------------------------------------------------------------------------------------------------------ setup -- */

static int close_all(void **state) {
    (void)state;
    for (int i = 0; i < device_count; i++) {
        mu_module_unload(devices[i], modules[i]);
        if (i == 0) mu_device_leave(devices[i]);
        mu_device_close(devices[i]);
    }
    mu_driver_release(driver);
    return 0;
}

static void say(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "%s\n", line);
}

static int open_all(void **state) {
    (void)state;
    muster_error error = {0};
    static const char spec[] =
        "{\"devices\": [{\"preset\": \"H200\", \"count\": 2, \"sms\": 4, \"memory_bytes\": 1073741824}]}";
    muster_status status = mu_driver_open(driver_name, spec, &driver, &error);
    if (status) {
        fprintf(stderr, "skipped: %s\n", error.message);
        exit(status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE ? 0 : 1);
    }
    if (mu_driver_is_simulated(driver)) mu_sim_on_fault(driver, say, NULL);
    OK(mu_driver_device_count(driver, &device_count, &failure));
    if (device_count > MAX_OPEN) device_count = MAX_OPEN;
    for (int i = 0; i < device_count; i++) {
        OK(mu_device_open(driver, &(mu_device_options){.ordinal = i, .index = i}, &devices[i], &failure));
        OK(mu_module_load(devices[i], life_ptx, sizeof life_ptx, "life", &modules[i], &failure));
    }
    OK(mu_device_enter(devices[0], &failure));
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------ tests -- */

static void test_capability_is_plausible(void **state) {
    (void)state;
    for (int i = 0; i < device_count; i++) {
        const mu_capability *found = mu_device_capability(devices[i]);
        assert_int_equal(found->ordinal, i);
        assert_int_equal(found->simulated, mu_driver_is_simulated(driver));
        assert_true(strlen(found->name) > 0);
        assert_true(found->native_sm >= 70 && found->ptx_target_sm >= 70);
        assert_int_equal(found->warp_size, 32);
        assert_true(found->multiprocessors > 0 && found->max_threads_per_multiprocessor >= 1024);
        assert_true(found->max_threads_per_block == 1024 && found->max_block[2] == 64);
        assert_true(found->memory_bytes >= (uint64_t)1 << 30);
        assert_true(found->memory_pools && found->unified_addressing && found->cooperative_launch);
        assert_int_equal(found->peer_count >= device_count, 1);
        assert_int_equal(mu_device_ledger(devices[i])->budget,
                         found->memory_bytes / 10 * 9 + found->memory_bytes % 10 * 9 / 10);
        int sm = 0;
        OK(mu_device_target(devices[i], &sm, &failure));
        assert_int_equal(sm, found->ptx_target_sm);
    }
    if (device_count > 1)
        assert_memory_not_equal(mu_device_capability(devices[0])->uuid, mu_device_capability(devices[1])->uuid, 16);
}

static void test_saxpy_through_all_lanes(void **state) {
    (void)state;
    mu_device *device = devices[0];
    uint64_t bytes = WORDS * sizeof(float);
    float *host = NULL;
    OK(mu_pinned_alloc(device, 2 * bytes, (void **)&host, &failure));
    for (int i = 0; i < WORDS; i++) host[i] = (float)(i % 1000), host[WORDS + i] = 7;
    mu_address x = allocate(device, bytes), y = allocate(device, bytes);
    mu_event event;
    mu_function_info info;
    mu_argument_table table = {0};
    float a = 2;
    uint32_t n = WORDS;
    OK(mu_event_create(device, &event, &failure));
    OK(mu_copy_to_device(device, MU_LANE_UPLOAD, x, host, bytes, &failure));
    OK(mu_copy_to_device(device, MU_LANE_UPLOAD, y, host + WORDS, bytes, &failure));
    order(device, MU_LANE_UPLOAD, MU_LANE_DISPATCH, event);
    mu_launch launch = {.function = find(0, "saxpy", &info),
                        .kernel_name = "saxpy",
                        .grid = {(WORDS + 255) / 256, 1, 1},
                        .block = {256, 1, 1},
                        .element_count = WORDS};
    if (info.parameters_known) {
        assert_int_equal(info.parameter_count, 4);
        assert_int_equal(info.parameter_bytes[0], 4);
        assert_int_equal(info.parameter_bytes[1], 8);
        assert_int_equal(info.parameter_bytes[3], 4);
    }
    OK(mu_arguments_begin(&table, 4, 24, &failure));
    OK(mu_arguments_value(&table, &a, sizeof a, &failure));
    OK(mu_arguments_address(&table, x, &failure));
    OK(mu_arguments_address(&table, y, &failure));
    OK(mu_arguments_value(&table, &n, sizeof n, &failure));
    OK(mu_arguments_finish(&table, &launch, &failure));
    OK(mu_launch_validated(device, &launch, &failure));
    OK(mu_launch_prepared(device, &launch, &failure));
    mu_arguments_free(&table); /* the values were read when the launch returned */
    order(device, MU_LANE_DISPATCH, MU_LANE_DOWNLOAD, event);
    OK(mu_copy_to_host(device, MU_LANE_DOWNLOAD, host, y, bytes, &failure));
    await(device, MU_LANE_DOWNLOAD, event);
    for (int i = 0; i < WORDS; i++)
        if (host[i] != 7 + 4 * (float)(i % 1000)) fail_msg("element %d is %g", i, (double)host[i]);
    mu_event_destroy(device, event);
    release(device, x, bytes), release(device, y, bytes);
    mu_pinned_free(device, host);
}

static uint32_t blocks_of(int device, uint32_t threads, mu_function phases) {
    int occupancy = 0;
    uint64_t limit = 0;
    OK(mu_function_occupancy(devices[device], phases, threads, 0, &occupancy, &failure));
    assert_true(occupancy > 0);
    OK(mu_resident_limit_of_function(mu_device_capability(devices[device]), occupancy, &limit, &failure));
    assert_true(limit <= mu_resident_limit_of_device(mu_device_capability(devices[device]), threads));
    return (uint32_t)limit;
}

static void test_cooperative_grid_and_its_barrier_counter(void **state) {
    (void)state;
    mu_device *device = devices[0];
    enum { ROUNDS = 4 };
    mu_launch launch = {
        .function = find(0, "phases", NULL), .kernel_name = "phases", .block = {64, 1, 1}, .cooperative = true};
    uint32_t most = blocks_of(0, 64, launch.function), blocks = most < 32 ? most : 32, rounds = ROUNDS;
    uint64_t bytes = (uint64_t)blocks * 2 * sizeof(uint32_t);
    uint32_t *host = mu_alloc(bytes);
    mu_address data = allocate(device, bytes);
    void *slots[] = {&data, &rounds};
    OK(mu_module_global(device, modules[0], "arrivals", &launch.counter, &launch.counter_bytes, &failure));
    launch.grid[0] = blocks, launch.grid[1] = launch.grid[2] = 1;
    launch.parameters = slots, launch.parameter_count = launch.slot_count = 2;
    OK(mu_fill(device, MU_LANE_UPLOAD, data, 0, 4, bytes, &failure));
    OK(mu_lane_synchronize(device, MU_LANE_UPLOAD, &failure));
    /* Each launch leaves the counter high: without its reset the next one's barriers would let everybody through. */
    for (int i = 0; i < 3; i++) OK(mu_launch_validated(device, &launch, &failure));
    OK(mu_copy_to_host(device, MU_LANE_DISPATCH, host, data, bytes, &failure));
    OK(mu_lane_synchronize(device, MU_LANE_DISPATCH, &failure));
    for (uint32_t i = 0; i < blocks; i++) assert_int_equal(host[i], 3 * ROUNDS);
    launch.grid[0] = most + 1;
    uint64_t launches = mu_counter_read(&mu_device_get_counters(device)->launches);
    assert_int_equal(mu_launch_validated(device, &launch, NULL), MUSTER_COOPERATIVE_TOO_LARGE);
    assert_int_equal(mu_counter_read(&mu_device_get_counters(device)->launches), launches);
    /* The driver itself agrees, and is none the worse for being asked. */
    assert_int_equal(mu_launch_prepared(device, &launch, NULL), MUSTER_COOPERATIVE_TOO_LARGE);
    OK(mu_lane_synchronize(device, MU_LANE_DISPATCH, &failure));
    mu_free(host);
    release(device, data, bytes);
}

static void test_much_dynamic_shared_memory(void **state) {
    (void)state;
    mu_device *device = devices[0];
    uint32_t words = 60 * 1024 / 4;
    if (mu_device_capability(device)->shared_bytes_optin < 60 * 1024) {
        fprintf(stderr, "skipped: the device has less than 60 KiB of shared memory in a block\n");
        skip();
    }
    uint32_t *host = mu_alloc(words * 4);
    mu_address out = allocate(device, words * 4);
    void *slots[] = {&out, &words};
    mu_launch launch = {.function = find(0, "staged", NULL),
                        .kernel_name = "staged",
                        .grid = {1, 1, 1},
                        .block = {128, 1, 1},
                        .dynamic_shared_bytes = words * 4,
                        .parameters = slots,
                        .parameter_count = 2,
                        .slot_count = 2};
    OK(mu_lane_synchronize(device, MU_LANE_UPLOAD, &failure));
    OK(mu_launch_validated(device, &launch, &failure));
    OK(mu_copy_to_host(device, MU_LANE_DISPATCH, host, out, words * 4, &failure));
    OK(mu_lane_synchronize(device, MU_LANE_DISPATCH, &failure));
    for (uint32_t i = 0; i < words; i++)
        if (host[i] != (words - 1 - i) * 3) fail_msg("word %u is %u", i, host[i]);
    mu_free(host);
    release(device, out, words * 4);
}

/* x += y or y += x, by turns that a bit decides: the order of the nodes shows in the result. */
static void test_burst_runs_in_order_and_is_re_parameterised_in_flight(void **state) {
    (void)state;
    enum { CAPACITY = 6, LAUNCHES = 5 };
    static const uint32_t lengths[LAUNCHES] = {6, 3, 5, 1, 6};
    mu_device *device = devices[0];
    mu_burst *burst = NULL;
    float model[2] = {1, 1}, host[2] = {1, 1};
    mu_address cells[2];
    uint32_t turns = 0x35a96d3, n = 1;
    float a = 1;
    OK(mu_burst_create(device, 1, CAPACITY, MU_BURST_CHAINS, &burst, &failure));
    for (int i = 0; i < 2; i++) {
        cells[i] = allocate(device, sizeof(float));
        OK(mu_copy_to_device(device, MU_LANE_UPLOAD, cells[i], &host[i], sizeof(float), &failure));
    }
    OK(mu_lane_synchronize(device, MU_LANE_UPLOAD, &failure));
    mu_function saxpy = find(0, "saxpy", NULL);
    for (int i = 0; i < LAUNCHES; i++) {
        for (uint32_t j = 0; j < lengths[i]; j++, turns >>= 1) {
            uint32_t to = turns & 1;
            void *slots[] = {&a, &cells[1 - to], &cells[to], &n};
            mu_launch launch = {.function = saxpy,
                                .kernel_name = "saxpy",
                                .grid = {1, 1, 1},
                                .block = {32, 1, 1},
                                .parameters = slots,
                                .parameter_count = 4,
                                .slot_count = 4};
            OK(mu_burst_set(burst, j, &launch, &failure));
            model[to] += model[1 - to];
        }
        OK(mu_burst_launch(burst, &failure));
    }
    for (int i = 0; i < 2; i++)
        OK(mu_copy_to_host(device, MU_LANE_DISPATCH, &host[i], cells[i], sizeof(float), &failure));
    OK(mu_lane_synchronize(device, MU_LANE_DISPATCH, &failure));
    assert_true(host[0] == model[0] && host[1] == model[1]);
    mu_burst_destroy(burst);
    for (int i = 0; i < 2; i++) release(device, cells[i], sizeof(float));
}

static void test_refused_launches_leave_the_device_usable(void **state) {
    (void)state;
    mu_device *device = devices[0];
    muster_error error = {0};
    mu_address address = 8;
    void *slots[] = {&address};
    mu_launch launch = {.function = find(0, "wild", NULL),
                        .kernel_name = "wild",
                        .grid = {1, 1, 1},
                        .block = {1024, 2, 1},
                        .parameters = slots,
                        .parameter_count = 1,
                        .slot_count = 1};
    assert_int_equal(mu_launch_validated(device, &launch, &error), MUSTER_INVALID_GEOMETRY);
    assert_int_equal(mu_launch_prepared(device, &launch, &error), MUSTER_LAUNCH_FAILED);
    assert_int_not_equal(error.driver_code, 0);
    assert_non_null(strstr(error.message, "CUDA_ERROR_INVALID_VALUE"));
    assert_false(mu_device_is_lost(device));
    OK(mu_lane_synchronize(device, MU_LANE_DISPATCH, &failure));
}

static void test_bad_programs_say_where(void **state) {
    (void)state;
    static const char bad[] =
        ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k()\n{\n  frobnicate.u32 %r1;\n"
        "  ret;\n}\n";
    mu_module module = (mu_module)1;
    mu_function function;
    muster_error error = {0};
    assert_int_equal(mu_module_load(devices[0], bad, sizeof bad, "bad", &module, &error), MUSTER_PROGRAM_INVALID);
    assert_ptr_equal(module, (mu_module)1);
    assert_non_null(strstr(error.message, "line 6"));
    assert_int_equal(mu_module_function(devices[0], modules[0], "saxp", &function, NULL, &error),
                     MUSTER_ENTRY_NOT_FOUND);
    assert_non_null(strstr(error.message, "\"saxp\""));
    if (driver->module_get_function_count && driver->module_enumerate_functions && driver->func_get_name) {
        assert_non_null(strstr(error.message, "saxpy"));
        assert_non_null(strstr(error.message, "phases"));
    }
}

static void test_compiled_image_loads_and_a_cut_one_does_not(void **state) {
    (void)state;
    void *cubin = NULL;
    size_t bytes = 0;
    mu_module module;
    mu_function function;
    OK(mu_module_compile(devices[0], life_ptx, sizeof life_ptx, "life", &cubin, &bytes, &failure));
    OK(mu_module_load(devices[0], cubin, bytes, "life", &module, &failure));
    OK(mu_module_function(devices[0], module, "staged", &function, NULL, &failure));
    mu_module_unload(devices[0], module);
    for (size_t cut = 1; cut < 64 && cut < bytes; cut++) {
        void *part = mu_alloc(bytes - cut);
        memcpy(part, cubin, bytes - cut);
        assert_int_equal(mu_module_load(devices[0], part, bytes - cut, "cut", &module, NULL), MUSTER_PROGRAM_INVALID);
        mu_free(part);
    }
    mu_free(cubin);
}

static void test_memory_runs_out_and_comes_back(void **state) {
    (void)state;
    mu_device *device = devices[0];
    mu_ledger *ledger = mu_device_ledger(device);
    muster_error error = {0};
    mu_address address = 77;
    assert_int_equal(mu_device_admit(device, ledger->total, "too much", &error), MUSTER_NEVER_FITS);
    /* Behind the ledger's back: the driver's own refusal. */
    assert_int_equal(mu_device_alloc(device, MU_LANE_UPLOAD, ledger->total * 2, &address, &error),
                     MUSTER_OUT_OF_DEVICE_MEMORY);
    assert_int_equal(address, 77);
    uint64_t most = mu_ledger_available(ledger), half = most / 2 & ~(uint64_t)0x1fffff;
    address = allocate(device, half);
    OK(mu_fill(device, MU_LANE_UPLOAD, address, 0, 4, 4096, &failure));
    OK(mu_lane_synchronize(device, MU_LANE_UPLOAD, &failure)); /* it is freed in the order of another lane */
    assert_int_equal(mu_device_admit(device, most, "too much for now", &error), MUSTER_OUT_OF_DEVICE_MEMORY);
    release(device, address, half);
    OK(mu_lane_synchronize(device, MU_LANE_DISPATCH, &failure));
    OK(mu_device_trim(device, &failure));
    OK(mu_device_sample_memory(device, &failure));
    assert_true(mu_ledger_available(ledger) >= half);
    assert_int_equal(ledger->underflows, 0);
}

static void test_peers_are_connected_and_deliver(void **state) {
    (void)state;
    if (device_count < 2) {
        fprintf(stderr, "skipped: one device only\n");
        skip();
    }
    enum { BYTES = 1 << 20 };
    bool direct[2] = {false, false};
    uint32_t *host = mu_alloc(BYTES);
    OK(mu_device_connect_peer(devices[0], devices[1], &direct[0], &failure));
    OK(mu_device_connect_peer(devices[1], devices[0], &direct[1], &failure));
    OK(mu_device_connect_peer(devices[0], devices[1], &direct[0], &failure)); /* again: enabled already */
    assert_int_equal(direct[0], mu_device_capability(devices[0])->peers[1].access);
    mu_address there = allocate(devices[1], BYTES), here = allocate(devices[0], BYTES);
    for (uint32_t i = 0; i < BYTES / 4; i++) host[i] = i * 2654435761u;
    OK(mu_copy_to_device(devices[1], MU_LANE_UPLOAD, there, host, BYTES, &failure));
    OK(mu_lane_synchronize(devices[1], MU_LANE_UPLOAD, &failure));
    memset(host, 0, BYTES);
    OK(mu_copy_from_peer(devices[0], MU_LANE_UPLOAD, here, devices[1], there, BYTES, &failure));
    OK(mu_copy_to_host(devices[0], MU_LANE_UPLOAD, host, here, BYTES, &failure));
    OK(mu_lane_synchronize(devices[0], MU_LANE_UPLOAD, &failure));
    for (uint32_t i = 0; i < BYTES / 4; i++)
        if (host[i] != i * 2654435761u) fail_msg("word %u is %u", i, host[i]);
    mu_free(host);
    release(devices[1], there, BYTES), release(devices[0], here, BYTES);
}

static void test_timed_events_measure(void **state) {
    (void)state;
    mu_device *device = devices[0];
    mu_event start, end;
    uint64_t elapsed = UINT64_MAX;
    bool done = false;
    mu_address address = allocate(device, 1 << 20);
    OK(mu_event_create_timed(device, &start, &failure));
    OK(mu_event_create_timed(device, &end, &failure));
    OK(mu_event_record(device, MU_LANE_UPLOAD, start, &failure));
    OK(mu_fill(device, MU_LANE_UPLOAD, address, 1, 1, 1 << 20, &failure));
    OK(mu_event_record(device, MU_LANE_UPLOAD, end, &failure));
    while (!done) OK(mu_event_poll(device, end, &done, &failure));
    OK(mu_event_elapsed(device, start, end, &elapsed, &failure));
    assert_true(elapsed < UINT64_C(10000000000));
    mu_event_destroy(device, start);
    mu_event_destroy(device, end);
    release(device, address, 1 << 20);
}

static void test_callers_current_context_survives(void **state) {
    (void)state;
    CUcontext before = NULL, after = NULL;
    mu_device *again;
    mu_device_leave(devices[0]);
    assert_int_equal(driver->ctx_get_current(&before), CUDA_SUCCESS);
    for (int own = 0; own < 2; own++) {
        OK(mu_device_open(driver, &(mu_device_options){.own_context = own}, &again, &failure));
        OK(mu_device_sample_memory(again, &failure));
        OK(mu_device_enter(again, &failure));
        mu_device_leave(again);
        mu_device_close(again);
        assert_int_equal(driver->ctx_get_current(&after), CUDA_SUCCESS);
        assert_ptr_equal(before, after);
    }
    OK(mu_device_enter(devices[0], &failure));
}

static void test_kernel_fault_ends_every_device(void **state) {
    (void)state;
    mu_device *device = devices[0];
    muster_error error = {0};
    mu_address nowhere = 0x10;
    mu_event event;
    bool done = false;
    void *slots[] = {&nowhere};
    mu_launch launch = {.function = find(0, "wild", NULL),
                        .kernel_name = "wild",
                        .grid = {1, 1, 1},
                        .block = {1, 1, 1},
                        .parameters = slots,
                        .parameter_count = 1,
                        .slot_count = 1};
    OK(mu_event_create(device, &event, &failure));
    OK(mu_launch_validated(device, &launch, &failure));
    muster_status status = mu_event_record(device, MU_LANE_DISPATCH, event, &error);
    while (!status && !done) status = mu_event_poll(device, event, &done, &error);
    assert_int_equal(status, MUSTER_KERNEL_FAULT);
    assert_int_equal(error.driver_code, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_true(mu_device_is_lost(device));
    assert_int_equal(mu_lane_synchronize(device, MU_LANE_DISPATCH, &error), MUSTER_KERNEL_FAULT);
    for (int i = 1; i < device_count; i++) mu_device_abandon(devices[i], error.driver_code);
}

int main(int argc, char **argv) {
    if (argc > 1) driver_name = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capability_is_plausible),
        cmocka_unit_test(test_saxpy_through_all_lanes),
        cmocka_unit_test(test_cooperative_grid_and_its_barrier_counter),
        cmocka_unit_test(test_much_dynamic_shared_memory),
        cmocka_unit_test(test_burst_runs_in_order_and_is_re_parameterised_in_flight),
        cmocka_unit_test(test_refused_launches_leave_the_device_usable),
        cmocka_unit_test(test_bad_programs_say_where),
        cmocka_unit_test(test_compiled_image_loads_and_a_cut_one_does_not),
        cmocka_unit_test(test_memory_runs_out_and_comes_back),
        cmocka_unit_test(test_peers_are_connected_and_deliver),
        cmocka_unit_test(test_timed_events_measure),
        cmocka_unit_test(test_callers_current_context_survives),
        cmocka_unit_test(test_kernel_fault_ends_every_device),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
