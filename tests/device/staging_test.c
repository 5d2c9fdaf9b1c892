/* Staged copies: every byte arrives, whatever the size, with others beside it, and when any driver call fails; nothing waits for the
 * device; nothing is touched after a copy is over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <malloc.h>
#include <sched.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/sanitizer.h"
#include "base/tuning.h"
#include "device/device.h"
#include "device/sim/sim.h"
#include "device/staging.h"
#include "tests/device/fake_driver.h"

#define KIB ((uint64_t)1 << 10)
#define SLOT ((uint64_t)MU_STAGING_SLOT_BYTES)

static mu_driver *driver;
static mu_device *device;
static mu_copier *copier;
static mu_staging *staging;
static atomic_uint wakes;

static void wake(void *user) { atomic_fetch_add_explicit((atomic_uint *)user, 1, memory_order_relaxed); }

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        muster_error failure = {0};                                                                                    \
        muster_status status_of_call = (call);                                                                         \
        if (status_of_call) fail_msg("%s: %s", #call, failure.message);                                                \
    } while (0)

/* ------------------------------------------------------------------------------------------------------------ setup -- */

static void open_staging(uint32_t threads) {
    OK(mu_copier_create(threads, &copier, &failure));
    OK(mu_staging_create(device, copier, wake, &wakes, &staging, &failure));
}

static void close_staging(void) {
    mu_staging_destroy(staging);
    mu_copier_destroy(copier);
}

static int open_sim(void **state) {
    (void)state;
    OK(mu_driver_open("sim", "{\"devices\": 2}", &driver, &failure));
    OK(mu_device_open(driver, &(mu_device_options){0}, &device, &failure));
    OK(mu_device_enter(device, &failure));
    open_staging(3);
    return 0;
}

static int close_sim(void **state) {
    (void)state;
    close_staging();
    mu_device_leave(device);
    mu_device_close(device);
    mu_driver_release(driver);
    return 0;
}

static mu_address allocate(uint64_t bytes) {
    mu_address address = 0;
    assert_int_equal(mu_ledger_reserve(mu_device_ledger(device), bytes), MU_GRANTED);
    OK(mu_device_alloc(device, MU_LANE_UPLOAD, bytes, &address, &failure));
    OK(mu_lane_synchronize(device, MU_LANE_UPLOAD, &failure));
    return address;
}

static void release(mu_address address, uint64_t bytes) {
    OK(mu_device_free(device, MU_LANE_UPLOAD, address, bytes, &failure));
}

/* Words that differ everywhere, so that a piece in the wrong place shows. */
static uint64_t word(uint64_t index, unsigned seed) { return (index + seed) * 0x9e3779b97f4a7c15u; }

/* Host memory with a guard before and behind it. */
enum { GUARD = 64, GUARD_BYTE = 0xa5 };

static unsigned char *host_memory(uint64_t bytes) {
    unsigned char *made = malloc(bytes + 2 * GUARD);
    assert_non_null(made);
    memset(made, GUARD_BYTE, bytes + 2 * GUARD);
    return made + GUARD;
}

static unsigned char *patterned(uint64_t bytes, unsigned seed) {
    unsigned char *made = host_memory(bytes);
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t value = word(i, seed);
        memcpy(made + i, &value, bytes - i < 8 ? bytes - i : 8);
    }
    return made;
}

static void check(const unsigned char *host, uint64_t bytes, unsigned seed) {
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t value = word(i, seed);
        if (memcmp(host + i, &value, bytes - i < 8 ? bytes - i : 8))
            fail_msg("bytes at %llu of %llu", (unsigned long long)i, (unsigned long long)bytes);
    }
    for (int i = 0; i < GUARD; i++)
        if (host[bytes + (uint64_t)i] != GUARD_BYTE || host[i - GUARD] != GUARD_BYTE) fail_msg("guard byte %d", i);
}

static void drop(unsigned char *host) { free(host - GUARD); }

static void begin(mu_staged_copy *copy, mu_staged_way way, void *host, mu_address address, uint64_t bytes) {
    *copy = (mu_staged_copy){.way = way,
                             .lane = way == MU_STAGED_UP ? MU_LANE_UPLOAD : MU_LANE_DOWNLOAD,
                             .host = host,
                             .device = address,
                             .bytes = bytes};
    mu_staging_begin(staging, copy);
}

/* As a worker does, without its sleep; a minute is forever. */
static void finish(const mu_staged_copy *copy) {
    uint64_t deadline = mu_deadline_ns(60000000000u);
    while (!copy->over) {
        if (!mu_staging_advance(staging)) sched_yield();
        if (mu_now_ns() > deadline)
            fail_msg("%llu of %llu bytes after a minute", (unsigned long long)copy->settled_bytes,
                     (unsigned long long)copy->bytes);
    }
}

static void finish_well(const mu_staged_copy *copy) {
    finish(copy);
    if (copy->status) fail_msg("%s", copy->error.message);
}

static uint64_t pinned_made(void) { return mu_sim_calls(driver, "mem_host_alloc"); }

/* ------------------------------------------------------------------------------------------------------- the copies -- */

static void test_every_size_goes_there_and_back(void **state) {
    (void)state;
    static const uint64_t sizes[] = {1,        3000, 64 * KIB, 64 * KIB + 1, 1024 * KIB + 1,
                                     SLOT - 1, SLOT, SLOT + 1, 8 * SLOT,     21 * SLOT + 77777};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t bytes = sizes[i];
        unsigned char *sent = patterned(bytes, (unsigned)i), *received = host_memory(bytes);
        mu_address address = allocate(bytes);
        mu_staged_copy copy;
        begin(&copy, MU_STAGED_UP, sent, address, bytes);
        finish_well(&copy);
        OK(mu_lane_synchronize(device, MU_LANE_UPLOAD, &failure));
        begin(&copy, MU_STAGED_DOWN, received, address, bytes);
        finish_well(&copy);
        check(received, bytes, (unsigned)i);
        check(sent, bytes, (unsigned)i);
        release(address, bytes);
        drop(sent);
        drop(received);
    }
    assert_false(mu_staging_is_active(staging));
    assert_null(mu_staging_refusal(staging));
    assert_int_equal(pinned_made(), 2 * MU_STAGING_SLOTS);
    assert_true(atomic_load(&wakes) > 0);
}

/* Rows wider than a slot and narrower, few and many: theirs arrive, and what is between them stays. */
static void test_rows_go_there_and_back(void **state) {
    (void)state;
    static const struct {
        uint64_t width, pitch, rows;
    } cases[] = {{1, 3, 100000},          {700, 1001, 2},          {4096, 4100, 3000},        {SLOT - 1, SLOT + 9, 3},
                 {SLOT + 5, SLOT + 7, 4}, {3 * SLOT, 4 * SLOT, 2}, {100 * KIB, 100 * KIB, 50}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t width = cases[i].width, pitch = cases[i].pitch, rows = cases[i].rows,
                 bytes = (rows - 1) * pitch + width;
        unsigned char *sent = patterned(bytes, 1), *before = patterned(bytes, 2), *received = patterned(bytes, 3),
                      *other = patterned(bytes, 3);
        mu_address address = allocate(bytes);
        mu_staged_copy copy;
        begin(&copy, MU_STAGED_UP, before, address, bytes);
        finish_well(&copy);
        for (int way = MU_STAGED_UP; way <= MU_STAGED_DOWN; way++) {
            OK(mu_lane_synchronize(device, MU_LANE_UPLOAD, &failure));
            copy = (mu_staged_copy){.way = (mu_staged_way)way,
                                    .lane = way == MU_STAGED_UP ? MU_LANE_UPLOAD : MU_LANE_DOWNLOAD,
                                    .host = way == MU_STAGED_UP ? sent : received,
                                    .device = address,
                                    .bytes = width * rows,
                                    .width = width,
                                    .pitch = pitch};
            mu_staging_begin(staging, &copy);
            finish_well(&copy);
        }
        /* The rows of what came back, and the memory between them. */
        for (uint64_t row = 0; row < rows; row++) {
            assert_memory_equal(received + row * pitch, sent + row * pitch, width);
            if (row + 1 < rows)
                assert_memory_equal(received + row * pitch + width, other + row * pitch + width, pitch - width);
        }
        begin(&copy, MU_STAGED_DOWN, other, address, bytes);
        finish_well(&copy);
        for (uint64_t row = 0; row + 1 < rows; row++)
            assert_memory_equal(other + row * pitch + width, before + row * pitch + width, pitch - width);
        check(sent, bytes, 1);
        release(address, bytes);
        drop(sent), drop(before), drop(received), drop(other);
    }
}

static void test_no_bytes_touch_nothing(void **state) {
    (void)state;
    mu_staged_copy copy;
    begin(&copy, MU_STAGED_UP, NULL, 0, 0);
    assert_true(copy.over && !copy.status);
    begin(&copy, MU_STAGED_DOWN, NULL, 0, 0);
    assert_true(copy.over && !copy.status);
    assert_int_equal(mu_sim_calls(driver, "memcpy_htod_async") + mu_sim_calls(driver, "memcpy_dtoh_async"), 0);
}

static void test_slots_are_made_as_they_are_needed(void **state) {
    (void)state;
    unsigned char *host = patterned(3 * SLOT, 1);
    mu_address address = allocate(3 * SLOT);
    mu_staged_copy copy;
    assert_int_equal(pinned_made(), 0);
    begin(&copy, MU_STAGED_UP, host, address, 64 * KIB); /* the driver's own affair */
    assert_true(copy.over && !copy.status);
    assert_int_equal(pinned_made(), 0);
    begin(&copy, MU_STAGED_UP, host, address, 100 * KIB);
    finish_well(&copy);
    assert_int_equal(pinned_made(), 1);
    OK(mu_lane_synchronize(device, MU_LANE_UPLOAD, &failure));
    mu_staging_advance(staging); /* its slot is free again */
    begin(&copy, MU_STAGED_UP, host, address, 3 * SLOT);
    finish_well(&copy);
    assert_in_range(pinned_made(), 2, 3); /* one piece may have had the slot of another */
    release(address, 3 * SLOT);
    drop(host);
}

enum { MANY = 12 };

static void test_many_copies_both_ways_at_once(void **state) {
    (void)state;
    unsigned char *sent[MANY], *received[MANY];
    mu_address address[MANY];
    mu_staged_copy up[MANY], down[MANY];
    uint64_t bytes[MANY];
    for (unsigned i = 0; i < MANY; i++) {
        bytes[i] = i % 3 ? 100 * KIB * i + 17 : SLOT * (i / 3 + 1) + i;
        sent[i] = patterned(bytes[i], i);
        received[i] = host_memory(bytes[i]);
        address[i] = allocate(bytes[i]);
        begin(&up[i], MU_STAGED_UP, sent[i], address[i], bytes[i]);
    }
    /* Each comes back as soon as it is there, while others are on their way up. */
    bool returning[MANY] = {false};
    for (unsigned left = MANY; left;) {
        mu_staging_advance(staging);
        for (unsigned i = 0; i < MANY; i++) {
            if (returning[i] || !up[i].over) continue;
            mu_event event;
            OK(mu_event_create(device, &event, &failure));
            OK(mu_event_record(device, MU_LANE_UPLOAD, event, &failure));
            OK(mu_event_wait(device, MU_LANE_DOWNLOAD, event, &failure));
            mu_event_destroy(device, event);
            begin(&down[i], MU_STAGED_DOWN, received[i], address[i], bytes[i]);
            returning[i] = true;
            left--;
        }
    }
    for (unsigned i = 0; i < MANY; i++) {
        finish_well(&down[i]);
        check(received[i], bytes[i], i);
        release(address[i], bytes[i]);
        drop(sent[i]);
        drop(received[i]);
    }
    assert_int_equal(pinned_made(), 2 * MU_STAGING_SLOTS);
}

static void test_a_small_copy_is_not_held_up_by_a_large_one(void **state) {
    (void)state;
    for (int way = 0; way < MU_STAGED_WAYS; way++) {
        uint64_t bytes = 24 * SLOT;
        unsigned char *large_host = host_memory(bytes), *small_host = host_memory(200 * KIB);
        mu_address large_address = allocate(bytes), small_address = allocate(200 * KIB);
        OK(mu_fill(device, MU_LANE_UPLOAD, large_address, 0, 4, bytes, &failure));
        OK(mu_fill(device, MU_LANE_UPLOAD, small_address, 0, 4, 200 * KIB, &failure));
        OK(mu_lane_synchronize(device, MU_LANE_UPLOAD, &failure));
        mu_staged_copy large, small;
        begin(&large, way, large_host, large_address, bytes);
        begin(&small, way, small_host, small_address, 200 * KIB);
        finish_well(&small);
        assert_false(large.over);
        assert_true(large.handed_bytes <= bytes / 2);
        finish_well(&large);
        release(large_address, bytes);
        release(small_address, 200 * KIB);
        drop(large_host);
        drop(small_host);
    }
}

/* ------------------------------------------------------------------------------------------------------ never waiting -- */

/* Nothing comes off the lanes, and still all of this returns: the test would hang otherwise. */
static void test_nothing_waits_for_the_device(void **state) {
    (void)state;
    uint64_t bytes = 2 * MU_STAGING_SLOTS * SLOT;
    unsigned char *sent = patterned(bytes, 5), *received = host_memory(bytes), *byte = host_memory(1);
    mu_address address = allocate(bytes), other = allocate(1);
    mu_staged_copy up, down, least;
    mu_sim_hold(driver, 0, true);
    begin(&up, MU_STAGED_UP, sent, address, bytes);
    begin(&least, MU_STAGED_DOWN, byte, other, 1);
    while (mu_sim_calls(driver, "memcpy_htod_async") < MU_STAGING_SLOTS ||
           mu_sim_calls(driver, "memcpy_dtoh_async") < 1)
        if (!mu_staging_advance(staging)) sched_yield();
    for (int i = 0; i < 1000; i++) mu_staging_advance(staging);
    assert_false(up.over);
    assert_false(least.over);
    assert_int_equal(up.handed_bytes, MU_STAGING_SLOTS * SLOT);
    assert_int_equal(*byte, GUARD_BYTE);
    mu_sim_hold(driver, 0, false);
    finish_well(&up);
    finish_well(&least);
    OK(mu_lane_synchronize(device, MU_LANE_UPLOAD, &failure));
    begin(&down, MU_STAGED_DOWN, received, address, bytes);
    finish_well(&down);
    check(received, bytes, 5);
    release(address, bytes);
    release(other, 1);
    drop(sent);
    drop(received);
    drop(byte);
}

/* Only the oldest piece of each direction is asked about. */
static void test_one_question_a_look(void **state) {
    (void)state;
    uint64_t bytes = MU_STAGING_SLOTS * SLOT;
    unsigned char *sent = patterned(bytes, 6);
    mu_address address = allocate(bytes);
    mu_staged_copy up;
    mu_sim_hold(driver, 0, true);
    begin(&up, MU_STAGED_UP, sent, address, bytes);
    finish_well(&up);
    uint64_t before = mu_sim_calls(driver, "event_query");
    for (int i = 0; i < 10; i++) mu_staging_advance(staging);
    assert_int_equal(mu_sim_calls(driver, "event_query"), before + 10);
    mu_sim_hold(driver, 0, false);
    release(address, bytes);
    drop(sent);
}

/* ------------------------------------------------------------------------------------------------------------- loss -- */

static void test_a_lost_device_ends_its_copies(void **state) {
    (void)state;
    uint64_t bytes = 4 * MU_STAGING_SLOTS * SLOT;
    unsigned char *sent = patterned(bytes, 7), *received = host_memory(bytes);
    mu_address address = allocate(2 * bytes);
    mu_staged_copy up, down, late;
    begin(&up, MU_STAGED_UP, sent, address, bytes);
    begin(&down, MU_STAGED_DOWN, received, address + bytes, bytes);
    while (up.settled_bytes < 2 * SLOT)
        if (!mu_staging_advance(staging)) sched_yield();
    mu_sim_lose_device(driver, 0);
    finish(&up);
    finish(&down);
    assert_int_equal(up.status, MUSTER_DEVICE_LOST);
    assert_int_equal(down.status, MUSTER_DEVICE_LOST);
    assert_int_equal(down.error.status, MUSTER_DEVICE_LOST);
    assert_true(mu_device_is_lost(device));
    memset(received, GUARD_BYTE, bytes); /* it is ours again */
    begin(&late, MU_STAGED_UP, sent, address, bytes);
    assert_true(late.over);
    assert_int_equal(late.status, MUSTER_DEVICE_LOST);
    while (mu_staging_advance(staging)) {
    }
    close_staging(); /* whatever the copy threads would still do, they have done */
    for (uint64_t i = 0; i < bytes; i++)
        if (received[i] != GUARD_BYTE) fail_msg("byte %llu was written late", (unsigned long long)i);
    open_staging(1);
    drop(sent);
    drop(received);
}

static void test_a_loss_that_is_told_makes_no_call(void **state) {
    (void)state;
    uint64_t bytes = 4 * MU_STAGING_SLOTS * SLOT;
    unsigned char *sent = patterned(bytes, 8), *received = host_memory(bytes);
    mu_address address = allocate(2 * bytes);
    mu_staged_copy up, down;
    begin(&up, MU_STAGED_UP, sent, address, bytes);
    begin(&down, MU_STAGED_DOWN, received, address + bytes, bytes);
    while (up.settled_bytes < SLOT) mu_staging_advance(staging);
    muster_error error = {.status = MUSTER_KERNEL_FAULT, .message = "another device's fault"};
    mu_staging_lose(staging, &error);
    uint64_t calls = mu_sim_calls(driver, "memcpy_htod_async") + mu_sim_calls(driver, "memcpy_dtoh_async") +
                     mu_sim_calls(driver, "event_query") + mu_sim_calls(driver, "event_record");
    finish(&up);
    finish(&down);
    assert_int_equal(up.status, MUSTER_KERNEL_FAULT);
    assert_string_equal(down.error.message, "another device's fault");
    assert_int_equal(calls, mu_sim_calls(driver, "memcpy_htod_async") + mu_sim_calls(driver, "memcpy_dtoh_async") +
                                mu_sim_calls(driver, "event_query") + mu_sim_calls(driver, "event_record"));
    OK(mu_lane_synchronize(device, MU_LANE_UPLOAD, &failure));
    OK(mu_lane_synchronize(device, MU_LANE_DOWNLOAD, &failure));
    release(address, 2 * bytes);
    drop(sent);
    drop(received);
}

/* ---------------------------------------------------------------------------------------------------- failing calls -- */

static void open_fake(void) {
    fake_driver_create();
    OK(mu_device_open(&fake->table, &(mu_device_options){0}, &device, &failure));
    OK(mu_device_enter(device, &failure));
    open_staging(1); /* one thread, so that the order of its calls is always the same */
}

static void close_fake(void) {
    close_staging();
    mu_device_leave(device);
    mu_device_close(device);
    mu_driver_release(&fake->table);
    fake_driver_finish();
}

/* A copy there and one back. False: one of them failed, clearly. */
static bool round_trip(uint64_t bytes, unsigned seed) {
    unsigned char *sent = patterned(bytes, seed), *received = host_memory(bytes);
    unsigned char *memory = calloc(1, bytes); /* device memory is host memory to the fake */
    assert_non_null(memory);
    mu_staged_copy up, down = {0};
    begin(&up, MU_STAGED_UP, sent, (uintptr_t)memory, bytes);
    finish(&up);
    if (!up.status) {
        begin(&down, MU_STAGED_DOWN, received, (uintptr_t)memory, bytes);
        finish(&down);
    }
    muster_status status = up.status ? up.status : down.status;
    const muster_error *error = up.status ? &up.error : &down.error;
    if (status) assert_int_equal(error->status, status);
    if (status) assert_true(strlen(error->message) > 20);
    if (!status) check(received, bytes, seed);
    free(memory);
    drop(sent);
    drop(received);
    return !status;
}

/* The copies after the one that failed are well: its slots are used again. */
static void fail_each_call(CUresult code, bool fatal) {
    uint64_t failures = 0;
    bool reached = true;
    for (uint64_t n = 1; reached; n += MU_TSAN ? 5 : 1) {
        open_fake();
        uint64_t number = fake_total_calls() + n;
        fake_fail_call(number, code);
        bool well = round_trip(SLOT + 5000, 1);
        well &= round_trip(100 * KIB, 2);
        reached = fake_total_calls() >= number;
        fake_fail_call(0, CUDA_SUCCESS);
        failures += !well;
        if (!reached) assert_true(well);
        bool again = round_trip(3 * SLOT, 3);
        assert_true(again || (fatal && mu_device_is_lost(device)));
        if (fatal && mu_device_is_lost(device)) {
            close_staging();
            mu_device_leave(device);
            mu_device_close(device);
            while (fake_current_depth() > 0) fake_drop_current();
            fake->live = (fake_live){0};
            mu_driver_release(&fake->table);
            fake_driver_finish();
        } else {
            close_fake();
        }
        assert_true(n < 1000);
    }
    assert_true(failures > (MU_TSAN ? 0 : 10));
}

static void test_every_call_may_fail(void **state) {
    (void)state;
    fail_each_call(CUDA_ERROR_INVALID_VALUE, false);
    fail_each_call(CUDA_ERROR_OUT_OF_MEMORY, false);
}

static void test_every_call_may_tell_of_a_fault(void **state) {
    (void)state;
    fail_each_call(CUDA_ERROR_ILLEGAL_ADDRESS, true);
}

/* Events that are never told about must end copies, not hang them. */
static void test_events_that_never_work_fail_the_copies(void **state) {
    (void)state;
    static const enum fake_entry entries[] = {FAKE_event_record, FAKE_event_query, FAKE_event_create};
    for (size_t i = 0; i < 3; i++) {
        open_fake();
        fake->fail_entry_code[entries[i]] = CUDA_ERROR_INVALID_VALUE;
        for (int k = 0; k < 2 * MU_STAGING_SLOTS; k++) assert_false(round_trip(3 * SLOT, 1));
        fake->fail_entry_code[entries[i]] = CUDA_SUCCESS;
        assert_true(round_trip((MU_STAGING_SLOTS + 2) * SLOT, 2));
        close_fake();
    }
}

static void test_without_pinned_memory_the_driver_stages(void **state) {
    (void)state;
    open_fake();
    fake->fail_entry_code[FAKE_mem_host_alloc] = CUDA_ERROR_OUT_OF_MEMORY;
    assert_true(round_trip(MU_STAGING_SLOTS * SLOT + 1, 1));
    assert_true(round_trip(70 * KIB, 2));
    assert_non_null(mu_staging_refusal(staging));
    assert_int_equal(mu_staging_refusal(staging)->status, MUSTER_OUT_OF_HOST_MEMORY);
    assert_int_equal(fake->live.pinned, 0);
    assert_int_equal(fake->calls[FAKE_memcpy_htod_async], 2);
    assert_int_equal(fake->calls[FAKE_mem_host_alloc], 2 * MU_STAGING_SLOTS); /* not asked again */
    close_fake();
}

static void test_the_slots_there_are_do_all_the_work(void **state) {
    (void)state;
    open_fake();
    fake->fail_entry_code[FAKE_mem_host_alloc] = CUDA_ERROR_OUT_OF_MEMORY;
    fake->fail_entry_times[FAKE_mem_host_alloc] = MU_STAGING_SLOTS - 1;
    assert_true(round_trip(MU_STAGING_SLOTS * SLOT + 1, 1));
    assert_non_null(mu_staging_refusal(staging));
    assert_int_equal(fake->live.pinned, 1 + MU_STAGING_SLOTS);
    assert_int_equal(fake->calls[FAKE_memcpy_htod_async], MU_STAGING_SLOTS + 1);
    close_fake();
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    fake_driver_create();
    OK(mu_device_open(&fake->table, &(mu_device_options){0}, &device, &failure));
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        muster_error error = {0};
        mu_copier *made = NULL;
        mu_staging *staged = NULL;
        mu_alloc_fail_at(n, false);
        muster_status status = mu_copier_create(2, &made, &error);
        if (!status) status = mu_staging_create(device, made, wake, &wakes, &staged, &error);
        failed = mu_alloc_fail_hits() > 0;
        mu_alloc_fail_at(0, false);
        assert_int_equal(status, failed ? MUSTER_OUT_OF_HOST_MEMORY : MUSTER_OK);
        assert_int_equal(error.status, status);
        mu_staging_destroy(staged);
        mu_copier_destroy(made);
    }
    mu_device_close(device);
    mu_driver_release(&fake->table);
    fake_driver_finish();
}

/* ------------------------------------------------------------------------------------------------------ copy threads -- */

static uint32_t threads_on(int cores) {
    cpu_set_t all, some;
    CPU_ZERO(&some);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int found = 0;
    for (int i = 0; i < CPU_SETSIZE && found < cores; i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &some), found++;
    if (found < cores) return 0;
    assert_int_equal(sched_setaffinity(0, sizeof some, &some), 0);
    mu_copier *made;
    OK(mu_copier_create(0, &made, &failure));
    uint32_t count = mu_copier_thread_count(made);
    mu_copier_destroy(made);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    return count;
}

static void test_as_many_threads_as_half_of_the_cores(void **state) {
    (void)state;
    assert_int_equal(threads_on(1), 1);
    static const struct {
        int cores;
        uint32_t threads;
    } cases[] = {{2, 1}, {3, 1}, {4, 2}, {8, 4}, {16, 8}, {32, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t threads = threads_on(cases[i].cores); /* 0: this machine has not so many */
        if (threads) assert_int_equal(threads, cases[i].threads);
    }
}

typedef struct counted_job {
    mu_copy_job job;
    atomic_uint seen[16], done;
} counted_job;

static void count_part(mu_copy_job *job, uint32_t part) { atomic_fetch_add(&((counted_job *)job)->seen[part], 1); }

static void count_done(mu_copy_job *job) {
    counted_job *counted = (counted_job *)job;
    for (uint32_t i = 0; i < counted->job.parts; i++) assert_int_equal(atomic_load(&counted->seen[i]) > 0, 1);
    atomic_fetch_add(&counted->done, 1);
}

static void test_each_part_runs_once_and_the_end_is_told_once(void **state) {
    (void)state;
    enum { JOBS = 50, ROUNDS = 40 };
    static counted_job jobs[JOBS];
    mu_copier *made;
    OK(mu_copier_create(4, &made, &failure));
    for (uint32_t i = 0; i < JOBS; i++)
        jobs[i].job = (mu_copy_job){.run = count_part, .done = count_done, .parts = i % 16 + 1};
    for (unsigned round = 1; round <= ROUNDS; round++) {
        for (uint32_t i = 0; i < JOBS; i++) {
            while (atomic_load(&jobs[i].done) < round - 1) sched_yield();
            mu_copier_post(made, &jobs[i].job);
        }
    }
    for (uint32_t i = 0; i < JOBS; i++) {
        mu_copier_leave(made, &jobs[i].job);
        assert_int_equal(atomic_load(&jobs[i].done), ROUNDS);
        for (uint32_t k = 0; k < 16; k++)
            assert_int_equal(atomic_load(&jobs[i].seen[k]), k < jobs[i].job.parts ? ROUNDS : 0);
    }
    mu_copier_destroy(made);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_sim, close_sim)
    const struct CMUnitTest tests[] = {
        TEST(test_every_size_goes_there_and_back),
        TEST(test_rows_go_there_and_back),
        TEST(test_no_bytes_touch_nothing),
        TEST(test_slots_are_made_as_they_are_needed),
        TEST(test_many_copies_both_ways_at_once),
        TEST(test_a_small_copy_is_not_held_up_by_a_large_one),
        TEST(test_nothing_waits_for_the_device),
        TEST(test_one_question_a_look),
        TEST(test_a_lost_device_ends_its_copies),
        TEST(test_a_loss_that_is_told_makes_no_call),
        cmocka_unit_test(test_every_call_may_fail),
        cmocka_unit_test(test_every_call_may_tell_of_a_fault),
        cmocka_unit_test(test_events_that_never_work_fail_the_copies),
        cmocka_unit_test(test_without_pinned_memory_the_driver_stages),
        cmocka_unit_test(test_the_slots_there_are_do_all_the_work),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_as_many_threads_as_half_of_the_cores),
        cmocka_unit_test(test_each_part_runs_once_and_the_end_is_told_once),
    };
    /* Large blocks are kept and used again: fresh pages would be most of the time. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
