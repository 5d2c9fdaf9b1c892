/* A device's life over a driver table: what opening asks for, whose context is current, errors, loss. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "device/device.h"
#include "tests/device/fake_driver.h"

static int setup(void **state) {
    *state = fake_driver_create();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    mu_driver_release(&fake->table);
    fake_driver_finish();
    return 0;
}

static mu_device *open_device(int ordinal) {
    mu_device *device = NULL;
    muster_error error = {0};
    mu_device_options options = {.ordinal = ordinal, .index = ordinal + 10};
    if (mu_device_open(&fake->table, &options, &device, &error)) fail_msg("%s", error.message);
    return device;
}

/* ------------------------------------------------------------------------------------------------------------ open -- */

static void test_open_and_close_leave_nothing(void **state) {
    (void)state;
    mu_device *device = open_device(1);
    assert_int_equal(mu_device_index(device), 11);
    assert_int_equal(fake->live.primaries, 1);
    assert_int_equal(fake->live.streams, MU_LANE_COUNT);
    assert_int_equal(fake->live.pools, 1);
    mu_device_close(device);
    assert_true(fake_nothing_live());
}

static void test_probe_reads_every_field(void **state) {
    (void)state;
    mu_device *device = open_device(1);
    const mu_capability *found = mu_device_capability(device);
    assert_int_equal(found->ordinal, 1);
    assert_false(found->simulated);
    assert_string_equal(found->name, "Fake 1");
    assert_int_equal(found->uuid[0], 2);
    assert_int_equal(found->uuid[15], 2);
    assert_string_equal(found->pci_bus_id, "ffff:01:00.0");
    assert_int_equal(found->numa_node, -1);
    assert_int_equal(found->compute_major, 9);
    assert_int_equal(found->compute_minor, 0);
    assert_int_equal(found->native_sm, 90);
    assert_int_equal(found->ptx_target_sm, 90);
    assert_int_equal(found->driver_version, 13000);
    assert_true(found->memory_bytes == fake->total_memory);
    assert_true(found->unified_addressing && found->memory_pools && found->concurrent_kernels);
    assert_int_equal(found->max_threads_per_block, 1024);
    assert_int_equal(found->max_block[2], 64);
    assert_int_equal(found->max_grid[0], 2147483647);
    assert_int_equal(found->max_grid[1], 65535);
    assert_int_equal(found->max_threads_per_multiprocessor, 2048);
    assert_int_equal(found->max_blocks_per_multiprocessor, 32);
    assert_int_equal(found->registers_per_block, 65536);
    assert_int_equal(found->registers_per_multiprocessor, 65536);
    assert_int_equal(found->shared_bytes_per_block, 49152);
    assert_int_equal(found->shared_bytes_optin, 232448);
    assert_int_equal(found->shared_bytes_per_multiprocessor, 233472);
    assert_int_equal(found->warp_size, 32);
    assert_int_equal(found->multiprocessors, 132);
    assert_int_equal(found->copy_engines, 3);
    assert_true(found->cooperative_launch && found->cluster_launch);
    assert_int_equal(found->peer_count, 2);
    assert_true(found->peers[0].access && found->peers[0].native_atomics);
    assert_int_equal(found->peers[0].performance_rank, 3);
    assert_false(found->peers[1].access);
    mu_device_close(device);
}

static void test_unreported_attributes_are_zero(void **state) {
    (void)state;
    static const int values[] = {0, -1, -1000};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        fake->attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR] = values[i];
        fake->attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = values[i];
        fake->attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE] = values[i];
        mu_device *device = open_device(0);
        assert_int_equal(mu_device_capability(device)->max_blocks_per_multiprocessor, 0);
        assert_int_equal(mu_device_capability(device)->max_threads_per_multiprocessor, 0);
        assert_int_equal(mu_device_capability(device)->warp_size, 0);
        mu_device_close(device);
    }
}

static void test_device_is_probed_once(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    uint64_t asked = fake->calls[FAKE_device_get_attribute];
    assert_true(asked > 0);
    (void)mu_device_capability(device);
    assert_int_equal(fake->calls[FAKE_device_get_attribute], asked);
    assert_int_equal(fake->calls[FAKE_device_total_mem], 1);
    mu_device_close(device);
}

static void test_streams_never_wait_for_the_legacy_stream(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    assert_int_equal(fake->last_stream_flags, CU_STREAM_NON_BLOCKING);
    mu_device_close(device);
}

static void test_pool_keeps_memory_and_hides_no_dependency(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    assert_true(fake->pool_threshold[0] == UINT64_MAX);
    assert_int_equal(fake->pool_internal_dependencies[0], 0);
    mu_device_close(device);
}

static void test_unknown_ordinal_names_the_range(void **state) {
    (void)state;
    static const int ordinals[] = {-1, 2, INT32_MAX};
    for (size_t i = 0; i < sizeof ordinals / sizeof *ordinals; i++) {
        mu_device *device = (mu_device *)1;
        muster_error error;
        mu_device_options options = {.ordinal = ordinals[i], .index = 4};
        assert_int_equal(mu_device_open(&fake->table, &options, &device, &error), MUSTER_OUT_OF_RANGE);
        assert_ptr_equal(device, (mu_device *)1);
        assert_int_equal(error.device, 4);
        assert_non_null(strstr(error.message, "the driver has 2"));
    }
}

static void test_device_without_pools_is_refused(void **state) {
    (void)state;
    mu_device *device;
    muster_error error;
    fake->attributes[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 0;
    assert_int_equal(mu_device_open(&fake->table, &(mu_device_options){0}, &device, &error), MUSTER_CAPABILITY_MISSING);
    assert_non_null(strstr(error.message, "memory pools"));
}

static void test_budget_of_options_reaches_the_ledger(void **state) {
    (void)state;
    mu_device *device;
    mu_device_options options = {.budget_permille = 500};
    assert_int_equal(mu_device_open(&fake->table, &options, &device, NULL), MUSTER_OK);
    assert_true(mu_device_ledger(device)->budget == fake->total_memory / 2);
    mu_device_close(device);
    options = (mu_device_options){.budget_bytes = 12345};
    assert_int_equal(mu_device_open(&fake->table, &options, &device, NULL), MUSTER_OK);
    assert_int_equal(mu_device_ledger(device)->budget, 12345);
    mu_device_close(device);
    options = (mu_device_options){.budget_permille = 1001};
    assert_int_equal(mu_device_open(&fake->table, &options, &device, NULL), MUSTER_INVALID_CONFIG);
}

static void test_live_query_failure_is_a_configuration_error(void **state) {
    (void)state;
    mu_device *device = (mu_device *)1;
    muster_error error;
    fake->fail_entry_code[FAKE_mem_get_info] = CUDA_ERROR_UNKNOWN;
    assert_int_equal(mu_device_open(&fake->table, &(mu_device_options){0}, &device, &error), MUSTER_INVALID_CONFIG);
    assert_ptr_equal(device, (mu_device *)1);
    assert_int_equal(error.driver_code, CUDA_ERROR_UNKNOWN);
    assert_non_null(strstr(error.message, "check the driver"));
    assert_true(fake_nothing_live());
}

/* --------------------------------------------------------------------------------------------------------- context -- */

static void test_primary_context_is_used_and_its_flags_untouched(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    assert_int_equal(fake->calls[FAKE_primary_ctx_retain], 1);
    assert_int_equal(fake->calls[FAKE_ctx_create], 0);
    mu_device_close(device);
    assert_int_equal(fake->calls[FAKE_primary_ctx_release], 1);
}

static void test_own_context_is_made_and_destroyed(void **state) {
    (void)state;
    mu_device *device;
    mu_device_options options = {.own_context = true};
    assert_int_equal(mu_device_open(&fake->table, &options, &device, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_primary_ctx_retain], 0);
    assert_int_equal(fake->live.contexts, 1);
    assert_int_equal(fake_current_depth(), 0);
    mu_device_close(device);
    assert_int_equal(fake->live.contexts, 0);
}

static void test_callers_context_is_left_as_found(void **state) {
    (void)state;
    fake_set_current(fake_foreign_context());
    for (int own = 0; own < 2; own++) {
        mu_device *device;
        mu_device_options options = {.own_context = own};
        assert_int_equal(mu_device_open(&fake->table, &options, &device, NULL), MUSTER_OK);
        assert_int_equal(fake_current_depth(), 1);
        assert_ptr_equal(fake_current(), fake_foreign_context());
        mu_event event;
        assert_int_equal(mu_event_create(device, &event, NULL), MUSTER_OK);
        assert_int_equal(mu_device_sample_memory(device, NULL), MUSTER_OK);
        assert_int_equal(fake_current_depth(), 1);
        mu_event_destroy(device, event);
        mu_device_close(device);
        assert_int_equal(fake_current_depth(), 1);
        assert_ptr_equal(fake_current(), fake_foreign_context());
    }
    fake_drop_current();
}

static void test_entered_thread_pushes_once(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    fake_set_current(fake_foreign_context());
    assert_int_equal(mu_device_enter(device, NULL), MUSTER_OK);
    uint64_t pushes = fake->calls[FAKE_ctx_push_current];
    mu_address address;
    mu_ledger_reserve(mu_device_ledger(device), 100);
    assert_int_equal(mu_device_alloc(device, MU_LANE_UPLOAD, 100, &address, NULL), MUSTER_OK);
    assert_int_equal(mu_fill(device, MU_LANE_DISPATCH, address, 0, 4, 100, NULL), MUSTER_OK);
    assert_int_equal(mu_device_free(device, MU_LANE_DISPATCH, address, 100, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_ctx_push_current], pushes);
    mu_device_leave(device);
    assert_ptr_equal(fake_current(), fake_foreign_context());
    fake_drop_current();
    mu_device_close(device);
}

/* How the calling thread takes part in captures of streams. */
static CUstreamCaptureMode mode_of_thread(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED, own;
    assert_int_equal(fake->table.thread_exchange_stream_capture_mode(&mode), CUDA_SUCCESS);
    own = mode;
    assert_int_equal(fake->table.thread_exchange_stream_capture_mode(&mode), CUDA_SUCCESS);
    return own;
}

static void test_thread_takes_no_part_in_captures_of_others(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    assert_int_equal(mode_of_thread(), CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(mu_device_enter(device, NULL), MUSTER_OK);
    assert_int_equal(mode_of_thread(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    mu_device_leave(device);
    assert_int_equal(mode_of_thread(), CU_STREAM_CAPTURE_MODE_GLOBAL);
    /* A driver that cannot leaves it as it is. */
    fake->fail_entry_code[FAKE_thread_exchange_stream_capture_mode] = CUDA_ERROR_NOT_SUPPORTED;
    fake->fail_entry_times[FAKE_thread_exchange_stream_capture_mode] = 1;
    assert_int_equal(mu_device_enter(device, NULL), MUSTER_OK);
    mu_device_leave(device);
    assert_int_equal(mode_of_thread(), CU_STREAM_CAPTURE_MODE_GLOBAL);
    mu_device_close(device);
    assert_int_equal(mode_of_thread(), CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static void test_thread_enters_one_device(void **state) {
    (void)state;
    mu_device *first = open_device(0), *second = open_device(1);
    muster_error error;
    assert_int_equal(mu_device_enter(first, NULL), MUSTER_OK);
    assert_int_equal(mu_device_enter(second, &error), MUSTER_INVALID_STATE);
    assert_int_equal(mu_device_enter(first, &error), MUSTER_INVALID_STATE);
    mu_device_leave(second); /* not entered: nothing happens */
    assert_int_equal(fake_current_depth(), 1);
    mu_device_leave(first);
    assert_int_equal(mu_device_enter(second, NULL), MUSTER_OK);
    mu_device_leave(second);
    mu_device_close(second);
    mu_device_close(first);
}

/* ---------------------------------------------------------------------------------------------------------- events -- */

static void test_events_are_counted_and_untimed(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    const mu_device_counters *counters = mu_device_get_counters(device);
    mu_event event, timed;
    bool done = true;
    assert_int_equal(mu_event_create(device, &event, NULL), MUSTER_OK);
    assert_int_equal(fake->last_event_flags, CU_EVENT_DISABLE_TIMING);
    assert_int_equal(mu_event_create_timed(device, &timed, NULL), MUSTER_OK);
    assert_int_equal(fake->last_event_flags, CU_EVENT_DEFAULT);
    assert_int_equal(mu_event_record(device, MU_LANE_DISPATCH, event, NULL), MUSTER_OK);
    assert_int_equal(mu_event_wait(device, MU_LANE_UPLOAD, event, NULL), MUSTER_OK);
    fake->fail_entry_code[FAKE_event_query] = CUDA_ERROR_NOT_READY;
    fake->fail_entry_times[FAKE_event_query] = 1;
    assert_int_equal(mu_event_poll(device, event, &done, NULL), MUSTER_OK);
    assert_false(done);
    assert_int_equal(mu_event_poll(device, event, &done, NULL), MUSTER_OK);
    assert_true(done);
    uint64_t elapsed = 0;
    assert_int_equal(mu_event_elapsed(device, timed, timed, &elapsed, NULL), MUSTER_OK);
    assert_int_equal(elapsed, 1500000);
    fake->fail_entry_code[FAKE_event_elapsed_time] = CUDA_ERROR_NOT_READY;
    assert_int_equal(mu_event_elapsed(device, timed, timed, &elapsed, NULL), MUSTER_INVALID_STATE);
    assert_int_equal(mu_lane_synchronize(device, MU_LANE_DISPATCH, NULL), MUSTER_OK);
    assert_int_equal(mu_counter_read(&counters->events_recorded), 1);
    assert_int_equal(mu_counter_read(&counters->event_waits), 1);
    assert_int_equal(mu_counter_read(&counters->synchronisations), 1);
    mu_event_destroy(device, event);
    mu_event_destroy(device, timed);
    mu_event_destroy(device, NULL);
    mu_device_close(device);
}

/* ------------------------------------------------------------------------------------------------------------ loss -- */

static void test_signals_are_sent_where_the_driver_can(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    mu_signal *signal, *none;
    assert_int_equal(mu_signal_create(device, &signal, NULL), MUSTER_OK);
    assert_int_equal(mu_signal_value(signal), 0);
    assert_true(mu_signal_send(device, MU_LANE_DISPATCH, signal, 7));
    assert_int_equal(mu_signal_value(signal), 7);
    fake->fail_entry_code[FAKE_stream_write_value32] = CUDA_ERROR_NOT_SUPPORTED;
    assert_false(mu_signal_send(device, MU_LANE_DISPATCH, signal, 8));
    assert_false(mu_device_is_lost(device));
    assert_int_equal(mu_signal_value(signal), 7);
    mu_signal_destroy(device, signal);
    fake->fail_entry_code[FAKE_mem_host_alloc] = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(mu_signal_create(device, &none, NULL), MUSTER_OK);
    assert_null(none);
    fake->fail_entry_code[FAKE_mem_host_alloc] = CUDA_SUCCESS;
    fake->table.stream_write_value32 = NULL;
    assert_int_equal(mu_signal_create(device, &none, NULL), MUSTER_OK);
    assert_null(none);
    mu_signal_destroy(device, none);
    mu_device_close(device);
}

static void test_errors_carry_device_code_and_name(void **state) {
    (void)state;
    mu_device *device = open_device(1);
    muster_error error = {0};
    mu_event event;
    fake->fail_entry_code[FAKE_event_create] = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(mu_event_create(device, &event, &error), MUSTER_OUT_OF_DEVICE_MEMORY);
    assert_int_equal(error.status, MUSTER_OUT_OF_DEVICE_MEMORY);
    assert_int_equal(error.device, 11);
    assert_int_equal(error.driver_code, CUDA_ERROR_OUT_OF_MEMORY);
    assert_non_null(strstr(error.message, "CUDA_ERROR_OUT_OF_MEMORY (2)"));
    assert_false(mu_device_is_lost(device));
    mu_device_close(device);
}

static void test_no_driver_call_after_a_fault(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    mu_event event;
    mu_address address = 64;
    void *pinned = NULL;
    bool done;
    muster_error error;
    assert_int_equal(mu_event_create(device, &event, NULL), MUSTER_OK);
    assert_int_equal(mu_device_enter(device, NULL), MUSTER_OK);
    fake->fail_entry_code[FAKE_event_query] = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(mu_event_poll(device, event, &done, &error), MUSTER_KERNEL_FAULT);
    assert_non_null(strstr(error.message, "CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
    assert_true(mu_device_is_lost(device));
    uint64_t calls = fake->total_calls;
    assert_int_equal(mu_event_poll(device, event, &done, &error), MUSTER_KERNEL_FAULT);
    assert_int_equal(error.driver_code, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(mu_event_record(device, MU_LANE_DISPATCH, event, NULL), MUSTER_KERNEL_FAULT);
    assert_int_equal(mu_event_wait(device, MU_LANE_DISPATCH, event, NULL), MUSTER_KERNEL_FAULT);
    assert_int_equal(mu_lane_synchronize(device, MU_LANE_DISPATCH, NULL), MUSTER_KERNEL_FAULT);
    assert_int_equal(mu_device_alloc(device, MU_LANE_DISPATCH, 1, &address, NULL), MUSTER_KERNEL_FAULT);
    assert_int_equal(mu_device_free(device, MU_LANE_DISPATCH, address, 1, NULL), MUSTER_KERNEL_FAULT);
    assert_int_equal(mu_pinned_alloc(device, 1, &pinned, NULL), MUSTER_KERNEL_FAULT);
    assert_int_equal(mu_fill(device, MU_LANE_DISPATCH, address, 0, 1, 1, NULL), MUSTER_KERNEL_FAULT);
    assert_int_equal(mu_copy_to_device(device, MU_LANE_UPLOAD, address, &done, 1, NULL), MUSTER_KERNEL_FAULT);
    assert_int_equal(mu_device_sample_memory(device, NULL), MUSTER_KERNEL_FAULT);
    assert_int_equal(mu_device_trim(device, NULL), MUSTER_KERNEL_FAULT);
    mu_event_destroy(device, event);
    mu_device_leave(device);
    mu_device_close(device);
    assert_int_equal(fake->total_calls, calls);
    fake_drop_current(); /* leaving could not */
    /* Left to the process's end, on purpose. */
    assert_int_equal(fake->live.primaries, 1);
    assert_int_equal(fake->live.streams, MU_LANE_COUNT);
    fake->table.event_destroy((CUevent)event);
}

static void test_abandoned_device_makes_no_call(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    muster_error error;
    uint64_t calls = fake->total_calls;
    mu_device_abandon(device, CUDA_ERROR_ASSERT);
    mu_device_abandon(device, CUDA_ERROR_ILLEGAL_ADDRESS); /* the first stays */
    assert_true(mu_device_is_lost(device));
    assert_int_equal(mu_lane_synchronize(device, MU_LANE_DISPATCH, &error), MUSTER_KERNEL_FAULT);
    assert_int_equal(error.driver_code, CUDA_ERROR_ASSERT);
    mu_device_close(device);
    assert_int_equal(fake->total_calls, calls);
}

static void test_abandoned_for_no_code_is_lost(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    mu_device_abandon(device, 0);
    assert_int_equal(mu_lane_synchronize(device, MU_LANE_DISPATCH, NULL), MUSTER_DEVICE_LOST);
    mu_device_close(device);
}

static void *abandon(void *device) {
    mu_device_abandon(device, CUDA_ERROR_ILLEGAL_ADDRESS);
    return NULL;
}

static void test_abandoned_from_another_thread(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    mu_event event;
    pthread_t thread;
    muster_status status;
    assert_int_equal(mu_event_create(device, &event, NULL), MUSTER_OK);
    assert_int_equal(pthread_create(&thread, NULL, abandon, device), 0);
    do status = mu_event_record(device, MU_LANE_DISPATCH, event, NULL);
    while (status == MUSTER_OK);
    assert_int_equal(status, MUSTER_KERNEL_FAULT);
    pthread_join(thread, NULL);
    mu_device_close(device);
    fake->table.event_destroy((CUevent)event);
}

static int teardown_of_lost(void **state) {
    fake->live = (fake_live){0};
    (void)state;
    mu_driver_release(&fake->table);
    assert_true(fake->references_gone);
    fake_driver_finish();
    return 0;
}

static void test_loss_at_close_is_noticed(void **state) {
    (void)state;
    mu_device *device = open_device(0);
    fake->fail_entry_code[FAKE_stream_synchronize] = CUDA_ERROR_ECC_UNCORRECTABLE;
    mu_device_close(device);
    assert_int_equal(fake->calls[FAKE_stream_synchronize], 1);
    assert_int_equal(fake->calls[FAKE_stream_destroy], 0);
    assert_int_equal(fake->calls[FAKE_primary_ctx_release], 0);
    assert_int_equal(fake_current_depth(), 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define LOST(name) cmocka_unit_test_setup_teardown(name, setup, teardown_of_lost)
    const struct CMUnitTest tests[] = {
        TEST(test_open_and_close_leave_nothing),
        TEST(test_probe_reads_every_field),
        TEST(test_unreported_attributes_are_zero),
        TEST(test_device_is_probed_once),
        TEST(test_streams_never_wait_for_the_legacy_stream),
        TEST(test_pool_keeps_memory_and_hides_no_dependency),
        TEST(test_unknown_ordinal_names_the_range),
        TEST(test_device_without_pools_is_refused),
        TEST(test_budget_of_options_reaches_the_ledger),
        TEST(test_live_query_failure_is_a_configuration_error),
        TEST(test_primary_context_is_used_and_its_flags_untouched),
        TEST(test_own_context_is_made_and_destroyed),
        TEST(test_callers_context_is_left_as_found),
        TEST(test_entered_thread_pushes_once),
        TEST(test_thread_enters_one_device),
        TEST(test_thread_takes_no_part_in_captures_of_others),
        TEST(test_events_are_counted_and_untimed),
        TEST(test_signals_are_sent_where_the_driver_can),
        TEST(test_errors_carry_device_code_and_name),
        LOST(test_no_driver_call_after_a_fault),
        LOST(test_abandoned_device_makes_no_call),
        LOST(test_abandoned_for_no_code_is_lost),
        LOST(test_abandoned_from_another_thread),
        LOST(test_loss_at_close_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
