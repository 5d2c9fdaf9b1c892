/* Input on its way, prefetches, scratch memory: what waits for what, and what is copied. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/sanitizer.h"
#include "base/tuning.h"
#include "device/telemetry.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

enum { MIB = 1 << 20, LONG_BYTES = 64 * MIB, SHORT_BYTES = 4096 };

static uint64_t counted(const fixture *fixture, int device, size_t member) {
    const mu_device_counters *counters = mu_device_get_counters(fixture->runtime->actors[device].device);
    return atomic_load((const atomic_uint_fast64_t *)((const char *)counters + member));
}
#define COUNTED(fixture, device, member) counted(fixture, device, offsetof(mu_device_counters, member))

/* Lets time pass until so many jobs have been put on the device's streams. */
static void wait_for_admissions(const fixture *fixture, int device, uint64_t count) {
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    while (COUNTED(fixture, device, admissions) < count) {
        sched_yield();
        assert_true(mu_now_ns() < deadline);
    }
}

/* The job that needs the long upload comes first and everything else goes on: that the device is held shows that nothing was
 * decided by how fast it is. */
static void a_long_upload_holds_up_no_other_job(void **state) {
    (void)state;
    fixture fixture;
    enum { OTHERS = 100 };
    fixture_open(&fixture, 1);
    uint32_t *content = calloc(1, LONG_BYTES);
    assert_non_null(content);
    content[5] = 20;
    muster_buffer *large = fixture_buffer(&fixture, LONG_BYTES, content);
    muster_buffer *resident = fixture_buffer(&fixture, SHORT_BYTES, NULL);
    muster_graph *others = fixture_graph(&fixture), *slow = fixture_graph(&fixture);
    fixture_affine(&fixture, others, resident, 1, 1);
    fixture_run(&fixture, others);
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(&fixture, "affine"), 4, 64,
        ARGS(muster_buffer_arg(large, MUSTER_READ_WRITE), muster_u32_arg(2), muster_u32_arg(2), muster_u32_arg(256)));
    fixture_add(slow, &dispatch);
    uint64_t before = COUNTED(&fixture, 0, admissions);
    assert_int_equal(COUNTED(&fixture, 0, arrivals), 0);
    fixture_hold(&fixture, 0, true);
    muster_run *first = fixture_submit(&fixture, slow), *runs[OTHERS];
    for (int i = 0; i < OTHERS; i++) runs[i] = fixture_submit(&fixture, others);
    wait_for_admissions(&fixture, 0, before + OTHERS);
    assert_int_equal(COUNTED(&fixture, 0, admissions), before + OTHERS); /* the first has not been launched */
    assert_int_equal(COUNTED(&fixture, 0, arrivals), 1);
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(first, fixture_wait_ns, &reported));
    for (int i = 0; i < OTHERS; i++) OK(muster_run_wait(runs[i], fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(large, 5), 42);
    assert_int_equal(fixture_word(resident, 0), OTHERS + 1);
    fixture_close(&fixture);
    free(content);
}

static void a_short_upload_is_joined(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    uint32_t content[SHORT_BYTES / 4] = {7};
    muster_buffer *buffer = fixture_buffer(&fixture, SHORT_BYTES, content);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 3, 0);
    fixture_run(&fixture, graph);
    assert_int_equal(COUNTED(&fixture, 0, arrivals), 0);
    assert_int_equal(COUNTED(&fixture, 0, jobs_held), 0);
    assert_int_equal(fixture_word(buffer, 0), 21);
    fixture_close(&fixture);
}

/* 50 jobs that read one long input make one copy of it. */
static void what_is_on_its_way_is_not_copied_again(void **state) {
    (void)state;
    fixture fixture;
    enum { READERS = 50 };
    fixture_open(&fixture, 2);
    uint32_t *content = calloc(1, LONG_BYTES);
    assert_non_null(content);
    for (uint32_t i = 0; i < 1024; i++) content[i] = i;
    muster_buffer *input = fixture_buffer(&fixture, LONG_BYTES, content), *outputs[READERS];
    muster_graph *graph = fixture_graph(&fixture);
    muster_kernel *kernel = fixture_kernel(&fixture, "mix32");
    for (int i = 0; i < READERS; i++) {
        outputs[i] = fixture_buffer(&fixture, SHORT_BYTES, NULL);
        muster_dispatch dispatch =
            fixture_dispatch(kernel, 16, 64,
                             ARGS(muster_buffer_arg(outputs[i], MUSTER_WRITE), muster_buffer_arg(input, MUSTER_READ),
                                  muster_u32_arg((uint32_t)i), muster_u32_arg(0), muster_u32_arg(1024)));
        dispatch.pin_device = 1;
        dispatch.device = 1;
        fixture_add(graph, &dispatch);
    }
    fixture_run(&fixture, graph);
    assert_int_equal(COUNTED(&fixture, 1, arrivals), 1);
    assert_int_equal(COUNTED(&fixture, 1, bytes_to_device), LONG_BYTES);
    assert_int_equal(COUNTED(&fixture, 1, jobs_held), READERS);
    fixture_close(&fixture);
    free(content);
}

/* Between devices that do not reach each other content goes by way of the host, and no worker waits for it. */
static void devices_without_peer_access_exchange_content_through_the_host(void **state) {
    (void)state;
    fixture fixture;
    muster_config config = {
        .struct_size = sizeof config,
        .sim = "{\"devices\": [{\"count\": 2}], \"peers\": \"none\"}",
    };
    fixture_open_with(&fixture, 2, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, MIB, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < 6; i++) {
        muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&fixture, "affine"), 4, 64,
                                                    ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE),
                                                         muster_u32_arg(3), muster_u32_arg(1), muster_u32_arg(256)));
        dispatch.pin_device = 1;
        dispatch.device = i % 2;
        fixture_add(graph, &dispatch);
    }
    fixture_run(&fixture, graph);
    assert_int_equal(fixture_word(buffer, 255), 364);
    assert_int_equal(COUNTED(&fixture, 0, peer_copies) + COUNTED(&fixture, 1, peer_copies), 0);
    assert_int_equal(COUNTED(&fixture, 0, bytes_to_host) + COUNTED(&fixture, 1, bytes_to_host),
                     5 * MIB + 4); /* 5 hops, 1 look at a word */
    fixture_close(&fixture);
}

/* A cancelled run still takes its turn behind what it asked for: the next run overwrites nothing that is arriving. */
static void a_cancelled_reader_leaves_its_input_alone(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    uint32_t *content = calloc(1, LONG_BYTES);
    assert_non_null(content);
    content[5] = 5;
    muster_buffer *buffer = fixture_buffer(&fixture, LONG_BYTES, content);
    muster_graph *reader = fixture_graph(&fixture), *writer = fixture_graph(&fixture);
    OK(muster_graph_prefetch(reader, buffer, 0, 0, 0, NULL, &reported));
    OK(muster_graph_fill(writer, buffer, 0, LONG_BYTES, 9, 4, NULL, &reported));
    fixture_hold(&fixture, 0, true);
    muster_run *first = fixture_submit(&fixture, reader);
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    while (COUNTED(&fixture, 0, arrivals) == 0) assert_true(sched_yield() == 0 && mu_now_ns() < deadline);
    OK(muster_run_cancel(first, &reported));
    muster_run *second = fixture_submit(&fixture, writer);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(first, 1000000, &reported));
    fixture_hold(&fixture, 0, false);
    FAILS(MUSTER_CANCELLED, "", muster_run_wait(first, fixture_wait_ns, &reported));
    OK(muster_run_wait(second, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 5), 9);
    assert_int_equal(fixture_word(buffer, LONG_BYTES / 4 - 1), 9);
    fixture_close(&fixture);
    free(content);
}

/* A job that reads both, the large one first, on device 0, which is held until both are on their way; then it is cancelled or `ends`
 * otherwise. Whatever it waits for, the run ends only when nothing reads the host memory any more. */
static void two_inputs_on_their_way(const char *plan, muster_status wanted, bool cancel) {
    fixture fixture;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(2, plan, spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture_open_with(&fixture, 2, &config);
    enum { MORE_BYTES = 24 * MIB, LESS_BYTES = 256 << 10 }; /* more than there is room for in slots */
    char *content[2] = {calloc(1, MORE_BYTES), calloc(1, LESS_BYTES)};
    assert_true(content[0] && content[1]);
    muster_buffer *large = fixture_buffer(&fixture, MORE_BYTES, content[0]);
    muster_buffer *less = fixture_buffer(&fixture, LESS_BYTES, content[1]);
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "nothing"), 1, 1,
                         ARGS(muster_buffer_arg(large, MUSTER_READ), muster_buffer_arg(less, MUSTER_READ)));
    dispatch.pin_device = 1;
    fixture_add(graph, &dispatch);
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, graph);
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    while (COUNTED(&fixture, 0, arrivals) < 2) assert_true(sched_yield() == 0 && mu_now_ns() < deadline);
    if (cancel) OK(muster_run_cancel(run, &reported));
    fixture_hold(&fixture, 0, false);
    FAILS(wanted, "", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_null(fixture.runtime->actors[0].staged_arrivals);
    assert_null(fixture.runtime->actors[0].arrivals.first);
    muster_run_destroy(run);
    muster_graph_destroy(graph);
    muster_buffer_destroy(large);
    muster_buffer_destroy(less);
    for (int i = 0; i < 2; i++) free(content[i]);
    fixture_close(&fixture);
}

static void a_cancelled_job_ends_after_all_its_inputs(void **state) {
    (void)state;
    two_inputs_on_their_way("[]", MUSTER_CANCELLED, true);
}

/* Whichever piece fails, and when the device is lost meanwhile. */
static void a_job_whose_input_fails_ends_after_the_rest_of_it(void **state) {
    (void)state;
    for (int nth = 3; nth <= 12; nth += MU_TSAN ? 3 : 1) {
        char plan[256];
        snprintf(plan, sizeof plan,
                 "[{\"kind\": \"fail\", \"entry\": \"memcpy_htod_async\", \"device\": 0, \"nth\": %d, \"repeat\": "
                 "\"forever\", \"code\": \"INVALID_VALUE\"}]",
                 nth);
        two_inputs_on_their_way(plan, MUSTER_TRANSFER_FAILED, false);
        snprintf(plan, sizeof plan,
                 "[{\"kind\": \"lose\", \"entry\": \"memcpy_htod_async\", \"device\": 0, \"nth\": %d}]", nth);
        two_inputs_on_their_way(plan, MUSTER_DEVICE_LOST, false);
    }
}

static void a_prefetch_brings_content_once(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    uint32_t content[SHORT_BYTES / 4] = {[1] = 11};
    muster_buffer *buffer = fixture_buffer(&fixture, SHORT_BYTES, content);
    muster_graph *graph = fixture_graph(&fixture), *use = fixture_graph(&fixture);
    OK(muster_graph_prefetch(graph, buffer, 0, 0, 1, NULL, &reported));
    OK(muster_graph_prefetch(graph, buffer, 0, 0, 0, NULL, &reported));
    OK(muster_graph_prefetch(graph, buffer, 128, 64, 1, NULL, &reported));
    OK(muster_graph_prefetch(graph, buffer, SHORT_BYTES, 0, 1, NULL, &reported)); /* nothing */
    fixture_run(&fixture, graph);
    uint64_t bytes = COUNTED(&fixture, 0, bytes_to_device) + COUNTED(&fixture, 1, bytes_to_device) +
                     COUNTED(&fixture, 0, bytes_from_peer) + COUNTED(&fixture, 1, bytes_from_peer);
    assert_int_equal(bytes, 2 * SHORT_BYTES);
    fixture_affine(&fixture, use, buffer, 2, 0);
    fixture_run(&fixture, use);
    assert_int_equal(COUNTED(&fixture, 0, bytes_to_device) + COUNTED(&fixture, 1, bytes_to_device) +
                         COUNTED(&fixture, 0, bytes_from_peer) + COUNTED(&fixture, 1, bytes_from_peer),
                     bytes);
    assert_int_equal(fixture_word(buffer, 1), 22);
    graph = fixture_graph(&fixture);
    FAILS(MUSTER_OUT_OF_RANGE, "device 2|2", muster_graph_prefetch(graph, buffer, 0, 0, 2, NULL, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "device -1", muster_graph_prefetch(graph, buffer, 0, 0, -1, NULL, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "4097", muster_graph_prefetch(graph, buffer, 0, 4097, 0, NULL, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "buffer", muster_graph_prefetch(graph, NULL, 0, 0, 0, NULL, &reported));
    fixture_close(&fixture);
}

/* A kernel writes its scratch memory, and launches that are in flight together have memory of their own. */
static void scratch_memory_is_the_launch_s_own_and_charged(void **state) {
    (void)state;
    fixture fixture;
    enum { LAUNCHES = 20, SCRATCH = 3 * MIB };
    fixture_open(&fixture, 1);
    muster_device_stats stats = {.struct_size = sizeof stats};
    OK(muster_device_get_stats(fixture.runtime, 0, &stats, &reported));
    uint64_t idle_bytes = stats.pool_bytes_in_use;
    muster_graph *graph = fixture_graph(&fixture);
    muster_kernel *kernel = fixture_kernel(&fixture, "affine");
    muster_dispatch dispatch = fixture_dispatch(
        kernel, 4, 64, ARGS(muster_scratch_arg(SCRATCH), muster_u32_arg(0), muster_u32_arg(3), muster_u32_arg(256)));
    for (int i = 0; i < LAUNCHES; i++) fixture_add(graph, &dispatch);
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, graph);
    wait_for_admissions(&fixture, 0, LAUNCHES);
    OK(muster_device_get_stats(fixture.runtime, 0, &stats, &reported));
    assert_true(stats.pool_bytes_in_use >= idle_bytes + (uint64_t)LAUNCHES * SCRATCH);
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    do {
        sched_yield();
        OK(muster_device_get_stats(fixture.runtime, 0, &stats, &reported));
        assert_true(mu_now_ns() < deadline);
    } while (stats.pool_bytes_in_use > idle_bytes);
    dispatch = fixture_dispatch(
        kernel, 4, 64,
        ARGS(muster_scratch_arg(UINT64_C(1) << 50), muster_u32_arg(0), muster_u32_arg(3), muster_u32_arg(256)));
    muster_graph *never = fixture_graph(&fixture);
    fixture_add(never, &dispatch);
    run = fixture_submit(&fixture, never);
    FAILS(MUSTER_NEVER_FITS, "1125899906842624", muster_run_wait(run, fixture_wait_ns, &reported));
    dispatch = fixture_dispatch(kernel, 4, 64,
                                ARGS(muster_scratch_arg(0), muster_u32_arg(0), muster_u32_arg(3), muster_u32_arg(256)));
    muster_graph *bad = fixture_graph(&fixture);
    FAILS(MUSTER_INVALID_ARGUMENT, "scratch", muster_graph_dispatch(bad, &dispatch, NULL, &reported));
    fixture_close(&fixture);
}

/* More scratch memory than there is at once: the launches wait for each other. */
static void launches_wait_for_scratch_memory(void **state) {
    (void)state;
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 64 * MIB};
    fixture_open_with(&fixture, 1, &config);
    muster_graph *graph = fixture_graph(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, SHORT_BYTES, NULL);
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(&fixture, "pair"), 16, 64,
        ARGS(muster_scratch_arg(40 * MIB), muster_buffer_arg(buffer, MUSTER_READ_WRITE),
             muster_scratch_arg(SHORT_BYTES), muster_u32_arg(0), muster_u32_arg(0), muster_u32_arg(0)));
    for (int i = 0; i < 30; i++) fixture_add(graph, &dispatch);
    fixture_run(&fixture, graph);
    assert_true(COUNTED(&fixture, 0, admission_waits) > 0);
    fixture_close(&fixture);
}

/* Many jobs wait for scratch memory until a buffer is destroyed, and then could have it all at once. They are handed to the device as
 * others are, no more than it may have ahead: or the driver would keep the worker waiting. */
static void jobs_that_waited_for_memory_are_handed_over_in_steps(void **state) {
    (void)state;
    enum { JOBS = 900 };
    fixture fixture;
    muster_config config = {
        .struct_size = sizeof config, .budget_bytes = (uint64_t)2048 * MIB, .host_budget_bytes = MIB};
    fixture_open_with(&fixture, 1, &config);
    uint64_t bytes = mu_ledger_available(mu_device_ledger(fixture.runtime->actors[0].device)) / MIB * MIB - MIB;
    muster_buffer *large = fixture_buffer(&fixture, bytes, NULL), *small = fixture_buffer(&fixture, SHORT_BYTES, NULL);
    muster_graph *first = fixture_graph(&fixture), *second = fixture_graph(&fixture), *graph = fixture_graph(&fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "nothing"), 1, 1,
                         ARGS(muster_buffer_arg(large, MUSTER_WRITE), muster_buffer_arg(small, MUSTER_READ)));
    fixture_add(first, &dispatch);
    fixture_run(&fixture, first);
    muster_graph_destroy(first);
    dispatch = fixture_dispatch(fixture_kernel(&fixture, "nothing"), 1, 1,
                                ARGS(muster_scratch_arg(4), muster_scratch_arg(2 * MIB)));
    for (int j = 0; j < JOBS; j++) fixture_add(graph, &dispatch);
    fixture_affine(&fixture, second, small, 1, 1);
    fixture_hold(&fixture, 0, true);
    uint64_t before = COUNTED(&fixture, 0, admissions), deadline = mu_deadline_ns(fixture_wait_ns);
    muster_run *busy = fixture_submit(&fixture, second);
    wait_for_admissions(&fixture, 0, before + 1);
    muster_run *run = fixture_submit(&fixture, graph);
    while (COUNTED(&fixture, 0, admission_waits) < JOBS) assert_true(sched_yield() == 0 && mu_now_ns() < deadline);
    muster_buffer_destroy(large);
    wait_for_admissions(&fixture, 0, before + MU_ENQUEUE_AHEAD_CALLS / 4);
    mu_actors_pass(fixture.runtime);
    assert_true(COUNTED(&fixture, 0, admissions) <= before + MU_ENQUEUE_AHEAD_CALLS);
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(busy, fixture_wait_ns, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_upload_holds_up_no_other_job),
        cmocka_unit_test(a_short_upload_is_joined),
        cmocka_unit_test(what_is_on_its_way_is_not_copied_again),
        cmocka_unit_test(devices_without_peer_access_exchange_content_through_the_host),
        cmocka_unit_test(a_cancelled_reader_leaves_its_input_alone),
        cmocka_unit_test(a_cancelled_job_ends_after_all_its_inputs),
        cmocka_unit_test(a_job_whose_input_fails_ends_after_the_rest_of_it),
        cmocka_unit_test(a_prefetch_brings_content_once),
        cmocka_unit_test(scratch_memory_is_the_launch_s_own_and_charged),
        cmocka_unit_test(launches_wait_for_scratch_memory),
        cmocka_unit_test(jobs_that_waited_for_memory_are_handed_over_in_steps),
    };
    return cmocka_run_group_tests_name("arrivals", tests, NULL, NULL);
}
