/* Memory of a device over a driver table: allocation and its books, admission with one reclaim, copies and fills. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/admission.h"
#include "device/device.h"
#include "tests/device/fake_driver.h"

#define MIB ((uint64_t)1 << 20)

static mu_device *device;

static int setup(void **state) {
    *state = fake_driver_create();
    assert_int_equal(mu_device_open(&fake->table, &(mu_device_options){0}, &device, NULL), MUSTER_OK);
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

static uint64_t counted(const atomic_uint_fast64_t *counter) { return mu_counter_read(counter); }

static mu_address allocate(uint64_t bytes) {
    mu_address address = 0;
    assert_int_equal(mu_ledger_reserve(mu_device_ledger(device), bytes), MU_GRANTED);
    assert_int_equal(mu_device_alloc(device, MU_LANE_UPLOAD, bytes, &address, NULL), MUSTER_OK);
    assert_true(address != 0);
    return address;
}

static void release(mu_address address, uint64_t bytes) {
    assert_int_equal(mu_device_free(device, MU_LANE_DISPATCH, address, bytes, NULL), MUSTER_OK);
}

/* ------------------------------------------------------------------------------------------------------ allocation -- */

static void test_allocation_turns_its_reservation_into_use(void **state) {
    (void)state;
    mu_ledger *ledger = mu_device_ledger(device);
    mu_address address = allocate(5000);
    assert_int_equal(fake->requested_bytes, 5000);
    mu_ledger_view view = mu_ledger_read(ledger);
    assert_int_equal(view.in_use, 5000);
    assert_int_equal(view.reserved, 0);
    release(address, 5000);
    view = mu_ledger_read(ledger);
    assert_int_equal(view.in_use, 0);
    assert_int_equal(view.reserved, 0);
    assert_int_equal(ledger->underflows, 0);
    release(0, 5000); /* nothing */
    assert_int_equal(ledger->underflows, 0);
}

static void test_failed_allocation_trims_and_retries_once(void **state) {
    (void)state;
    mu_ledger *ledger = mu_device_ledger(device);
    mu_address address = 0;
    fake->fail_entry_code[FAKE_mem_alloc_from_pool_async] = CUDA_ERROR_OUT_OF_MEMORY;
    fake->fail_entry_times[FAKE_mem_alloc_from_pool_async] = 1;
    assert_int_equal(mu_ledger_reserve(ledger, 64), MU_GRANTED);
    assert_int_equal(mu_device_alloc(device, MU_LANE_UPLOAD, 64, &address, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_mem_alloc_from_pool_async], 2);
    assert_int_equal(fake->calls[FAKE_mem_pool_trim_to], 1);
    release(address, 64);
}

static void test_allocation_that_fails_twice_keeps_its_reservation_and_samples(void **state) {
    (void)state;
    mu_ledger *ledger = mu_device_ledger(device);
    mu_address address = 77;
    muster_error error;
    uint64_t samples = counted(&mu_device_get_counters(device)->memory_samples);
    fake->other_memory = fake->total_memory - 10 * MIB; /* another process took nearly all since the sample */
    assert_int_equal(mu_ledger_reserve(ledger, 100 * MIB), MU_GRANTED);
    assert_int_equal(mu_device_alloc(device, MU_LANE_UPLOAD, 100 * MIB, &address, &error), MUSTER_OUT_OF_DEVICE_MEMORY);
    assert_int_equal(address, 77);
    assert_int_equal(error.driver_code, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(fake->calls[FAKE_mem_alloc_from_pool_async], 2);
    assert_int_equal(counted(&mu_device_get_counters(device)->memory_samples), samples + 1);
    assert_int_equal(mu_ledger_read(ledger).reserved, 100 * MIB);
    assert_int_equal(mu_ledger_read(ledger).in_use, 0);
    mu_ledger_release(ledger, 100 * MIB);
    /* Now the ledger knows. */
    assert_int_equal(mu_ledger_reserve(ledger, 100 * MIB), MU_NOT_NOW);
}

static void test_zero_bytes_still_have_an_address(void **state) {
    (void)state;
    mu_address address = 0;
    assert_int_equal(mu_device_alloc(device, MU_LANE_UPLOAD, 0, &address, NULL), MUSTER_OK);
    assert_true(address != 0);
    release(address, 0);
    assert_int_equal(mu_device_ledger(device)->underflows, 0);
}

static void test_pool_hits_are_those_that_grow_nothing(void **state) {
    (void)state;
    const mu_device_counters *counters = mu_device_get_counters(device);
    mu_address first = allocate(MIB);
    assert_int_equal(counted(&counters->allocations), 1);
    assert_int_equal(counted(&counters->pool_hits), 0);
    mu_address second = allocate(MIB);
    assert_int_equal(counted(&counters->pool_hits), 1);
    mu_address third = allocate(31 * MIB);
    assert_int_equal(counted(&counters->allocations), 3);
    assert_int_equal(counted(&counters->pool_hits), 1);
    release(first, MIB), release(second, MIB), release(third, 31 * MIB);
}

/* ------------------------------------------------------------------------------------------------------- admission -- */

static void test_admission_below_the_budget_makes_no_driver_call(void **state) {
    (void)state;
    uint64_t calls = fake->total_calls;
    assert_int_equal(mu_device_admit(device, MIB, "a job", NULL), MUSTER_OK);
    assert_int_equal(mu_device_admit(device, 0, "an empty job", NULL), MUSTER_OK);
    assert_int_equal(fake->total_calls, calls);
    assert_int_equal(counted(&mu_device_get_counters(device)->admissions), 2);
    mu_ledger_release(mu_device_ledger(device), MIB);
}

static void test_requirement_equal_to_the_budget_is_admitted(void **state) {
    (void)state;
    mu_ledger *ledger = mu_device_ledger(device);
    uint64_t left = mu_ledger_available(ledger);
    assert_int_equal(mu_device_admit(device, left, "a job", NULL), MUSTER_OK);
    assert_int_equal(mu_device_admit(device, 1, "a job", NULL), MUSTER_OUT_OF_DEVICE_MEMORY);
    mu_ledger_release(ledger, left);
    assert_int_equal(mu_device_admit(device, left + 1, "a job", NULL), MUSTER_NEVER_FITS);
}

static void test_reclaim_rereads_once_and_never_loops(void **state) {
    (void)state;
    mu_ledger *ledger = mu_device_ledger(device);
    /* Another process had nearly everything at the last sample, and has given it back since. */
    mu_ledger_sample(ledger, MIB, 0, 1);
    uint64_t infos = fake->calls[FAKE_mem_get_info], trims = fake->calls[FAKE_mem_pool_trim_to];
    assert_int_equal(mu_device_admit(device, 100 * MIB, "a job", NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_mem_get_info], infos + 1);
    assert_int_equal(fake->calls[FAKE_mem_pool_trim_to], trims + 1);
    assert_true(fake_position(FAKE_mem_pool_trim_to, trims) < fake_position(FAKE_mem_get_info, infos));
    mu_ledger_release(ledger, 100 * MIB);
    /* Still not there: one more reading, and the refusal. */
    fake->other_memory = fake->total_memory - 50 * MIB;
    mu_ledger_sample(ledger, MIB, 0, 1);
    assert_int_equal(mu_device_admit(device, 100 * MIB, "a job", NULL), MUSTER_OUT_OF_DEVICE_MEMORY);
    assert_int_equal(fake->calls[FAKE_mem_get_info], infos + 2);
    assert_int_equal(fake->calls[FAKE_mem_pool_trim_to], trims + 2);
}

static void test_reclaim_never_takes_what_is_in_use(void **state) {
    (void)state;
    mu_address kept = allocate(40 * MIB), freed = allocate(200 * MIB);
    release(freed, 200 * MIB);
    assert_int_equal(fake->pool_reserved[0], 256 * MIB);
    assert_int_equal(mu_device_trim(device, NULL), MUSTER_OK);
    assert_int_equal(fake->pool_reserved[0], 64 * MIB);
    assert_int_equal(fake->pool_used[0], 40 * MIB);
    release(kept, 40 * MIB);
}

static void test_never_fits_asks_nothing(void **state) {
    (void)state;
    muster_error error;
    uint64_t calls = fake->total_calls;
    assert_int_equal(mu_device_admit(device, fake->total_memory, "dispatch of saxpy", &error), MUSTER_NEVER_FITS);
    assert_int_equal(fake->total_calls, calls);
    assert_int_equal(error.device, 0);
}

static void test_refusals_name_numbers_and_advice(void **state) {
    (void)state;
    muster_error error;
    char number[32];
    uint64_t budget = mu_device_ledger(device)->budget;
    assert_int_equal(mu_device_admit(device, budget + 1, "dispatch of saxpy", &error), MUSTER_NEVER_FITS);
    assert_non_null(strstr(error.message, "dispatch of saxpy requires"));
    snprintf(number, sizeof number, "%llu bytes", (unsigned long long)budget + 1);
    assert_non_null(strstr(error.message, number));
    static const char *const advice[] = {"shrink", "shard", "resident", "raise the budget"};
    for (size_t i = 0; i < 4; i++) assert_non_null(strstr(error.message, advice[i]));
    assert_int_equal(mu_device_admit(device, budget - 10, "the first", NULL), MUSTER_OK);
    assert_int_equal(mu_device_admit(device, 11, "the second", &error), MUSTER_OUT_OF_DEVICE_MEMORY);
    assert_non_null(strstr(error.message, "the second requires 11 bytes, but the budget left is 10"));
    for (size_t i = 0; i < 4; i++) assert_non_null(strstr(error.message, advice[i]));
    assert_int_equal(counted(&mu_device_get_counters(device)->refusals), 2);
    mu_ledger_release(mu_device_ledger(device), budget - 10);
}

static void test_failing_live_query_is_never_no_memory(void **state) {
    (void)state;
    muster_error error;
    mu_ledger_sample(mu_device_ledger(device), 0, 0, 1);
    fake->fail_entry_code[FAKE_mem_get_info] = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(mu_device_admit(device, MIB, "a job", &error), MUSTER_INVALID_CONFIG);
    assert_int_equal(error.driver_code, CUDA_ERROR_INVALID_VALUE);
    assert_non_null(strstr(error.message, "check the driver"));
    assert_int_equal(mu_ledger_read(mu_device_ledger(device)).reserved, 0);
}

/* ----------------------------------------------------------------------------------------------- copies and fills -- */

static void test_copies_go_round_and_are_counted(void **state) {
    (void)state;
    enum { BYTES = 1000 };
    const mu_device_counters *counters = mu_device_get_counters(device);
    unsigned char sent[BYTES], received[BYTES] = {0};
    for (int i = 0; i < BYTES; i++) sent[i] = (unsigned char)(i * 7);
    mu_address first = allocate(BYTES), second = allocate(BYTES);
    assert_int_equal(mu_copy_to_device(device, MU_LANE_UPLOAD, first, sent, BYTES, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_within(device, MU_LANE_DISPATCH, second, first, BYTES, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_to_host(device, MU_LANE_DOWNLOAD, received, second, BYTES, NULL), MUSTER_OK);
    assert_memory_equal(sent, received, BYTES);
    assert_int_equal(counted(&counters->bytes_to_device), BYTES);
    assert_int_equal(counted(&counters->bytes_within_device), BYTES);
    assert_int_equal(counted(&counters->bytes_to_host), BYTES);
    release(first, BYTES), release(second, BYTES);
}

enum { WIDTH = 7, ROWS = 5, PITCH = 11, HOST_PITCH = 9, HELD = (ROWS - 1) * PITCH + WIDTH };

static void test_rows_go_round_with_a_call_each_way(void **state) {
    (void)state;
    const mu_device_counters *counters = mu_device_get_counters(device);
    unsigned char sent[ROWS * HOST_PITCH], received[ROWS * HOST_PITCH], held[HELD];
    for (int i = 0; i < ROWS * HOST_PITCH; i++) sent[i] = (unsigned char)(i * 7), received[i] = 0xee;
    mu_address at = allocate(HELD);
    assert_int_equal(mu_fill(device, MU_LANE_UPLOAD, at, 0x11, 1, HELD, NULL), MUSTER_OK);
    const mu_rows up = {WIDTH, ROWS, PITCH, HOST_PITCH}, down = {WIDTH, ROWS, HOST_PITCH, PITCH};
    assert_int_equal(mu_rows_to_device(device, MU_LANE_UPLOAD, at, sent, &up, NULL), MUSTER_OK);
    assert_int_equal(mu_rows_to_host(device, MU_LANE_DOWNLOAD, received, at, &down, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_memcpy_2d_async], 2);
    assert_int_equal(mu_copy_to_host(device, MU_LANE_DOWNLOAD, held, at, HELD, NULL), MUSTER_OK);
    for (int row = 0; row < ROWS; row++) {
        assert_memory_equal(&received[row * HOST_PITCH], &sent[row * HOST_PITCH], WIDTH);
        assert_int_equal(received[row * HOST_PITCH + WIDTH], 0xee);
        if (row + 1 < ROWS) assert_int_equal(held[row * PITCH + WIDTH], 0x11);
    }
    assert_int_equal(counted(&counters->bytes_to_device), WIDTH * ROWS);
    assert_int_equal(counted(&counters->bytes_to_host), WIDTH * ROWS + HELD);
    assert_int_equal(mu_rows_clear(device, MU_LANE_UPLOAD, at, &up, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_to_host(device, MU_LANE_DOWNLOAD, held, at, HELD, NULL), MUSTER_OK);
    for (int i = 0; i < HELD; i++) assert_int_equal(held[i], i % PITCH < WIDTH ? 0 : 0x11);
    assert_int_equal(fake->calls[FAKE_memset_d2d8_async], 1);
    release(at, HELD);
}

/* One row, or rows without anything in between, are a plain copy. A pitch that the driver has not is walked by Muster. */
static void test_rows_that_need_no_pitch_are_one_range(void **state) {
    (void)state;
    unsigned char sent[ROWS * WIDTH], received[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++) sent[i] = (unsigned char)(i * 7);
    mu_address at = allocate(ROWS * WIDTH);
    const mu_rows dense = {WIDTH, ROWS, WIDTH, WIDTH}, one = {WIDTH, 1, UINT64_MAX, 0},
                  far = {WIDTH, 1, UINT64_C(1) << 40, UINT64_C(1) << 40}, none = {WIDTH, 0, 9, 9};
    assert_int_equal(mu_rows_to_device(device, MU_LANE_UPLOAD, at, sent, &dense, NULL), MUSTER_OK);
    assert_int_equal(mu_rows_to_host(device, MU_LANE_UPLOAD, received, at, &dense, NULL), MUSTER_OK);
    assert_memory_equal(received, sent, sizeof sent);
    assert_int_equal(mu_rows_to_device(device, MU_LANE_UPLOAD, at, sent + 1, &one, NULL), MUSTER_OK);
    assert_int_equal(mu_rows_to_host(device, MU_LANE_UPLOAD, received, at, &far, NULL), MUSTER_OK);
    assert_memory_equal(received, sent + 1, WIDTH);
    uint64_t calls = fake->total_calls;
    assert_int_equal(mu_rows_to_device(device, MU_LANE_UPLOAD, at, sent, &none, NULL), MUSTER_OK);
    assert_int_equal(mu_rows_to_host(device, MU_LANE_UPLOAD, received, at, &none, NULL), MUSTER_OK);
    assert_int_equal(mu_rows_clear(device, MU_LANE_UPLOAD, at, &none, NULL), MUSTER_OK);
    assert_int_equal(fake->total_calls, calls);
    assert_int_equal(fake->calls[FAKE_memcpy_2d_async], 0);
    release(at, ROWS * WIDTH);
}

static void test_zero_bytes_touch_nothing(void **state) {
    (void)state;
    uint64_t calls = fake->total_calls;
    assert_int_equal(mu_copy_to_device(device, MU_LANE_UPLOAD, 8, NULL, 0, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_to_host(device, MU_LANE_UPLOAD, NULL, 8, 0, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_within(device, MU_LANE_UPLOAD, 8, 16, 0, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_from_peer(device, MU_LANE_UPLOAD, 8, device, 16, 0, NULL), MUSTER_OK);
    assert_int_equal(mu_fill(device, MU_LANE_UPLOAD, 8, 1, 4, 0, NULL), MUSTER_OK);
    assert_int_equal(fake->total_calls, calls);
}

static void test_fill_patterns_of_each_width(void **state) {
    (void)state;
    unsigned char bytes[16];
    mu_address address = allocate(16);
    for (uint32_t width = 1; width <= 4; width *= 2) {
        uint32_t pattern = 0xa1b2c3d4;
        assert_int_equal(mu_fill(device, MU_LANE_DISPATCH, address, pattern, width, 16, NULL), MUSTER_OK);
        assert_int_equal(mu_copy_to_host(device, MU_LANE_DISPATCH, bytes, address, 16, NULL), MUSTER_OK);
        for (uint32_t i = 0; i < 16; i++) assert_int_equal(bytes[i], pattern >> 8 * (i % width) & 255);
    }
    assert_int_equal(counted(&mu_device_get_counters(device)->fills), 3);
    release(address, 16);
}

static void test_fill_refuses_what_the_pattern_does_not_divide(void **state) {
    (void)state;
    muster_error error;
    uint64_t calls = fake->total_calls;
    assert_int_equal(mu_fill(device, MU_LANE_DISPATCH, 8, 0, 3, 12, &error), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(mu_fill(device, MU_LANE_DISPATCH, 8, 0, 0, 12, &error), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(mu_fill(device, MU_LANE_DISPATCH, 8, 0, 4, 13, &error), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(mu_fill(device, MU_LANE_DISPATCH, 6, 0, 4, 12, &error), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(fake->total_calls, calls);
}

static void test_refused_transfers_say_so(void **state) {
    (void)state;
    muster_error error;
    char byte = 0;
    fake->fail_entry_code[FAKE_memcpy_htod_async] = CUDA_ERROR_INVALID_VALUE;
    fake->fail_entry_code[FAKE_memcpy_dtoh_async] = CUDA_ERROR_INVALID_VALUE;
    fake->fail_entry_code[FAKE_memcpy_dtod_async] = CUDA_ERROR_INVALID_VALUE;
    fake->fail_entry_code[FAKE_memset_d8_async] = CUDA_ERROR_INVALID_VALUE;
    fake->fail_entry_code[FAKE_memcpy_2d_async] = CUDA_ERROR_INVALID_VALUE;
    fake->fail_entry_code[FAKE_memset_d2d8_async] = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(mu_copy_to_device(device, MU_LANE_UPLOAD, 8, &byte, 1, &error), MUSTER_TRANSFER_FAILED);
    assert_int_equal(error.driver_code, CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(error.status, MUSTER_TRANSFER_FAILED);
    assert_int_equal(mu_copy_to_host(device, MU_LANE_UPLOAD, &byte, 8, 1, &error), MUSTER_TRANSFER_FAILED);
    assert_int_equal(mu_copy_within(device, MU_LANE_UPLOAD, 8, 9, 1, &error), MUSTER_TRANSFER_FAILED);
    assert_int_equal(mu_fill(device, MU_LANE_UPLOAD, 8, 9, 1, 1, &error), MUSTER_TRANSFER_FAILED);
    const mu_rows rows = {1, 2, 3, 3};
    assert_int_equal(mu_rows_to_device(device, MU_LANE_UPLOAD, 8, &byte, &rows, &error), MUSTER_TRANSFER_FAILED);
    assert_non_null(strstr(error.message, "2 rows of 1 bytes"));
    assert_int_equal(mu_rows_to_host(device, MU_LANE_UPLOAD, &byte, 8, &rows, &error), MUSTER_TRANSFER_FAILED);
    assert_int_equal(mu_rows_clear(device, MU_LANE_UPLOAD, 8, &rows, &error), MUSTER_TRANSFER_FAILED);
    const mu_device_counters *counters = mu_device_get_counters(device);
    assert_int_equal(counted(&counters->bytes_to_device) + counted(&counters->bytes_to_host) +
                         counted(&counters->bytes_within_device) + counted(&counters->fills),
                     0);
}

static void test_host_memory_is_pinned_and_registered(void **state) {
    (void)state;
    void *pinned = NULL, *untouched = &pinned;
    char own[64];
    muster_error error;
    assert_int_equal(mu_pinned_alloc(device, 4096, &pinned, NULL), MUSTER_OK);
    memset(pinned, 1, 4096);
    mu_pinned_free(device, pinned);
    mu_pinned_free(device, NULL);
    fake->fail_entry_code[FAKE_mem_host_alloc] = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(mu_pinned_alloc(device, 4096, &untouched, &error), MUSTER_OUT_OF_HOST_MEMORY);
    assert_ptr_equal(untouched, &pinned);
    assert_int_equal(mu_host_register(device, own, sizeof own, NULL), MUSTER_OK);
    assert_int_equal(fake->live.registered, 1);
    mu_host_unregister(device, own);
    fake->fail_entry_code[FAKE_mem_host_register] = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    assert_int_equal(mu_host_register(device, own, sizeof own, &error), MUSTER_INVALID_STATE);
    fake->fail_entry_code[FAKE_mem_host_register] = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(mu_host_register(device, own, sizeof own, &error), MUSTER_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "64 bytes"));
    /* Both kinds of freeing may stall a busy device: counted. */
    assert_int_equal(counted(&mu_device_get_counters(device)->device_stalls), 2);
}

static void test_host_memory_is_looked_at(void **state) {
    (void)state;
    char own[64];
    void *pinned = NULL;
    assert_int_equal(mu_host_look(device, own, sizeof own), MU_HOST_PAGEABLE);
    assert_int_equal(mu_pinned_alloc(device, 4096, &pinned, NULL), MUSTER_OK);
    assert_int_equal(mu_host_look(device, pinned, 4096), MU_HOST_PINNED);
    assert_int_equal(mu_host_look(device, (char *)pinned + 96, 4000), MU_HOST_PINNED);
    assert_int_equal(mu_host_look(device, (char *)pinned + 97, 4000), MU_HOST_PAGEABLE); /* not all of it */
    mu_pinned_free(device, pinned);
    assert_int_equal(mu_host_register(device, own + 8, 40, NULL), MUSTER_OK);
    assert_int_equal(mu_host_look(device, own + 8, 40), MU_HOST_PINNED);
    assert_int_equal(mu_host_look(device, own, 16), MU_HOST_PAGEABLE);
    mu_host_unregister(device, own + 8);
    assert_int_equal(mu_host_look(device, own + 8, 40), MU_HOST_PAGEABLE);
    mu_address address = allocate(64);
    assert_int_equal(mu_host_look(device, (void *)(uintptr_t)address, 64), MU_HOST_OF_DEVICE);
    release(address, 64);
    /* What the driver does not know is pageable; that it has lost its device is not forgotten. */
    fake->fail_entry_code[FAKE_pointer_get_attribute] = CUDA_ERROR_NOT_SUPPORTED;
    assert_int_equal(mu_host_look(device, own, 64), MU_HOST_PAGEABLE);
    assert_false(mu_device_is_lost(device));
    fake->fail_entry_code[FAKE_pointer_get_attribute] = CUDA_ERROR_ECC_UNCORRECTABLE;
    assert_int_equal(mu_host_look(device, own, 64), MU_HOST_PAGEABLE);
    assert_true(mu_device_is_lost(device));
    uint64_t calls = fake->total_calls;
    assert_int_equal(mu_host_look(device, own, 64), MU_HOST_PAGEABLE);
    assert_int_equal(fake->total_calls, calls);
    fake->live = (fake_live){0}; /* the driver keeps what a lost device had */
    fake_drop_current();
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_allocation_turns_its_reservation_into_use),
        TEST(test_failed_allocation_trims_and_retries_once),
        TEST(test_allocation_that_fails_twice_keeps_its_reservation_and_samples),
        TEST(test_zero_bytes_still_have_an_address),
        TEST(test_pool_hits_are_those_that_grow_nothing),
        TEST(test_admission_below_the_budget_makes_no_driver_call),
        TEST(test_requirement_equal_to_the_budget_is_admitted),
        TEST(test_reclaim_rereads_once_and_never_loops),
        TEST(test_reclaim_never_takes_what_is_in_use),
        TEST(test_never_fits_asks_nothing),
        TEST(test_refusals_name_numbers_and_advice),
        TEST(test_failing_live_query_is_never_no_memory),
        TEST(test_copies_go_round_and_are_counted),
        TEST(test_rows_go_round_with_a_call_each_way),
        TEST(test_rows_that_need_no_pitch_are_one_range),
        TEST(test_zero_bytes_touch_nothing),
        TEST(test_fill_patterns_of_each_width),
        TEST(test_fill_refuses_what_the_pattern_does_not_divide),
        TEST(test_refused_transfers_say_so),
        TEST(test_host_memory_is_pinned_and_registered),
        TEST(test_host_memory_is_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
