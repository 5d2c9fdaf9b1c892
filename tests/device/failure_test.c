/* Every driver call and every allocation of a whole life fails once: each run ends in a clear error or succeeds without
 * what failed, and gives everything back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/admission.h"
#include "device/arguments.h"
#include "device/burst.h"
#include "device/device.h"
#include "device/launch.h"
#include "tests/device/fake_driver.h"

enum { BYTES = 4096 };

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        muster_status tried = (call);                                                                                  \
        if (tried) return tried;                                                                                       \
    } while (0)

static muster_status run_kernel(mu_device *device, mu_module module, mu_address address, muster_error *error) {
    mu_function function;
    mu_function_info info;
    mu_argument_table table = {0};
    mu_launch launch = {.kernel_name = "add", .grid = {4, 1, 1}, .block = {64, 1, 1}, .cooperative = true};
    uint32_t n = 5;
    TRY(mu_module_function(device, module, "add", &function, &info, error));
    launch.function = function;
    launch.dynamic_shared_bytes = 100 << 10;
    TRY(mu_module_global(device, module, "counter", &launch.counter, &launch.counter_bytes, error));
    muster_status status = mu_arguments_begin(&table, 3, 20, error);
    if (!status) status = mu_arguments_address(&table, address, error);
    if (!status) status = mu_arguments_address(&table, address, error);
    if (!status) status = mu_arguments_value(&table, &n, sizeof n, error);
    if (!status) status = mu_arguments_finish(&table, &launch, error);
    if (!status) status = mu_launch_validated(device, &launch, error);
    if (!status) status = mu_launch_synchronise(device, &launch, error);
    mu_arguments_free(&table);
    return status;
}

static muster_status run_burst(mu_device *device, mu_module module, mu_burst_order order, muster_error *error) {
    mu_function function;
    mu_burst *burst;
    TRY(mu_module_function(device, module, "plain", &function, NULL, error));
    TRY(mu_burst_create(device, 1, 3, order, &burst, error));
    mu_launch launch = {.function = function, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    muster_status status = mu_burst_set(burst, 0, &launch, error);
    if (!status) status = mu_burst_set(burst, 1, &launch, error);
    if (!status) status = mu_burst_launch(burst, error);
    if (!status) status = mu_lane_synchronize(device, MU_LANE_DISPATCH, error);
    if (!status) status = mu_burst_forget(burst, function, error);
    mu_burst_destroy(burst);
    return status;
}

static muster_status use_memory(mu_device *device, mu_device *peer, mu_module module, mu_address address,
                                muster_error *error) {
    unsigned char bytes[BYTES] = {1};
    mu_event event;
    bool done;
    void *pinned;
    TRY(mu_pinned_alloc(device, BYTES, &pinned, error));
    memset(pinned, 0, BYTES);
    mu_pinned_free(device, pinned);
    TRY(mu_copy_to_device(device, MU_LANE_UPLOAD, address, bytes, BYTES, error));
    TRY(mu_fill(device, MU_LANE_DISPATCH, address, 1, 2, BYTES, error));
    TRY(mu_copy_from_peer(device, MU_LANE_UPLOAD, address, peer, address, BYTES / 2, error));
    TRY(run_kernel(device, module, address, error));
    TRY(run_burst(device, module, MU_BURST_CHAINS, error));
    TRY(run_burst(device, module, MU_BURST_INDEPENDENT, error));
    TRY(mu_event_create(device, &event, error));
    muster_status status = mu_event_record(device, MU_LANE_DISPATCH, event, error);
    if (!status) status = mu_event_wait(device, MU_LANE_DOWNLOAD, event, error);
    if (!status) status = mu_event_poll(device, event, &done, error);
    mu_event_destroy(device, event);
    if (status) return status;
    TRY(mu_copy_to_host(device, MU_LANE_DOWNLOAD, bytes, address, BYTES, error));
    TRY(mu_lane_synchronize(device, MU_LANE_DOWNLOAD, error));
    TRY(mu_device_trim(device, error));
    return mu_device_sample_memory(device, error);
}

static muster_status use_module(mu_device *device, mu_device *peer, mu_module module, muster_error *error) {
    mu_address address;
    TRY(mu_device_admit(device, BYTES, "the life", error));
    muster_status status = mu_device_alloc(device, MU_LANE_UPLOAD, BYTES, &address, error);
    if (status) {
        mu_ledger_release(mu_device_ledger(device), BYTES);
        return status;
    }
    status = use_memory(device, peer, module, address, error);
    muster_status freed = mu_device_free(device, MU_LANE_DISPATCH, address, BYTES, status ? NULL : error);
    return status ? status : freed;
}

static muster_status use_device(mu_device *device, mu_device *peer, muster_error *error) {
    mu_module module;
    void *cubin;
    size_t cubin_bytes;
    bool direct;
    TRY(mu_device_connect_peer(device, peer, &direct, error));
    TRY(mu_device_enter(device, error));
    muster_status status = mu_module_compile(device, fake_ptx, strlen(fake_ptx), "life", &cubin, &cubin_bytes, error);
    if (status) goto leave;
    status = mu_module_load(device, cubin, cubin_bytes, "life", &module, error);
    mu_free(cubin);
    if (status) goto leave;
    status = use_module(device, peer, module, error);
    mu_module_unload(device, module);
leave:
    mu_device_leave(device);
    return status;
}

/* One life: two devices, all that is done with one. */
static muster_status live(bool own_context, muster_error *error) {
    mu_device *device, *peer;
    mu_device_options options = {.ordinal = 0, .index = 0, .own_context = own_context};
    TRY(mu_device_open(&fake->table, &options, &device, error));
    options.ordinal = options.index = 1;
    muster_status status = mu_device_open(&fake->table, &options, &peer, error);
    if (!status) {
        status = use_device(device, peer, error);
        mu_device_close(peer);
    }
    mu_device_close(device);
    return status;
}

static void finish(void) {
    mu_driver_release(&fake->table);
    fake_driver_finish();
}

/* Without anything failing the life is a success, with as many calls as returned. */
static uint64_t calls_of_a_life(bool own_context) {
    muster_error error;
    fake_driver_create();
    if (live(own_context, &error)) fail_msg("%s", error.message);
    uint64_t calls = fake->total_calls;
    finish();
    return calls;
}

static void fail_each_call(bool own_context, CUresult code) {
    uint64_t calls = calls_of_a_life(own_context), failures = 0;
    assert_true(calls > 100);
    for (uint64_t n = 1; n <= calls; n++) {
        muster_error error = {0};
        fake_driver_create();
        fake->fail_at = n;
        fake->fail_code = code;
        muster_status status = live(own_context, &error);
        assert_true(fake->total_calls >= n);
        if (status) {
            failures++;
            assert_int_equal(error.status, status);
            assert_true(strlen(error.message) > 20);
        }
        assert_int_equal(fake_current_depth(), 0);
        assert_true(fake_nothing_live());
        finish();
    }
    /* Some calls may fail without harm (optional attributes, a probe that has alternatives); most may not. */
    assert_true(failures > calls / 4);
}

static void test_every_driver_call_may_fail(void **state) {
    (void)state;
    fail_each_call(false, CUDA_ERROR_INVALID_VALUE);
    fail_each_call(true, CUDA_ERROR_INVALID_VALUE);
    fail_each_call(false, CUDA_ERROR_OUT_OF_MEMORY);
}

static void drop_contexts(void) {
    while (fake_current_depth() > 0) fake_drop_current();
}

/* After a fault nothing of that device is called any more, whichever call told of it. */
static void test_every_driver_call_may_be_the_one_that_tells_of_a_fault(void **state) {
    (void)state;
    uint64_t calls = calls_of_a_life(false);
    for (uint64_t n = 1; n <= calls; n++) {
        muster_error error = {0};
        fake_driver_create();
        fake->fail_at = n;
        fake->fail_code = CUDA_ERROR_ILLEGAL_ADDRESS;
        muster_status status = live(false, &error);
        if (status && muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST) {
            assert_int_equal(status, MUSTER_KERNEL_FAULT);
            assert_int_equal(error.driver_code, CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        drop_contexts();
        fake->live = (fake_live){0};
        finish();
    }
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    for (int sticky = 0; sticky < 2; sticky++) {
        bool failed = true;
        for (uint64_t n = 1; failed; n++) {
            muster_error error = {0};
            fake_driver_create();
            mu_alloc_fail_at(n, sticky);
            muster_status status = live(false, &error);
            failed = mu_alloc_fail_hits() > 0;
            mu_alloc_fail_at(0, false);
            if (!failed) assert_int_equal(status, MUSTER_OK);
            if (status) assert_int_equal(status, MUSTER_OUT_OF_HOST_MEMORY);
            if (status) assert_int_equal(error.status, status);
            assert_int_equal(fake_current_depth(), 0);
            assert_true(fake_nothing_live());
            finish();
            assert_true(n < 1000);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_driver_call_may_fail),
        cmocka_unit_test(test_every_driver_call_may_be_the_one_that_tells_of_a_fault),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
