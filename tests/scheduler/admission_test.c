/* Admission: who gets a device's memory, who waits for it, who is refused, and that waiting ends. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/tuning.h"
#include "device/sim/sim.h"
#include "tests/scheduler/residency_fixture.h"

enum { MIB = 1 << 20, BUDGET = 64 * MIB };

/* A budget with room for what is fixed (bursts, modules), so that jobs can be given exact shares of the rest. */
static uint64_t open_small(residency *r, uint64_t admission_wait_ns) {
    muster_config config = {
        .struct_size = sizeof config, .budget_bytes = BUDGET, .admission_wait_ns = admission_wait_ns};
    residency_open(r, NULL, &config);
    muster_dispatch probe = residency_reverse(r, 1, 0);
    muster_preflight_report report = {.struct_size = sizeof report};
    OK(muster_preflight_dispatch(r->fixture.runtime, &probe, 0, MUSTER_PREFLIGHT_CHEAP, &report, &reported));
    return report.budget_bytes;
}

/* A graph of one job that fills a buffer of its own. */
typedef struct filler {
    muster_buffer *buffer;
    muster_graph *graph;
    muster_run *run;
} filler;

static filler start_filler(residency *r, uint64_t bytes, uint32_t pattern) {
    filler f = {.buffer = fixture_buffer(&r->fixture, bytes, NULL), .graph = fixture_graph(&r->fixture)};
    OK(muster_graph_fill(f.graph, f.buffer, 0, bytes, pattern, 4, NULL, &reported));
    f.run = fixture_submit(&r->fixture, f.graph);
    return f;
}

/* Lets time pass until the worker has decided about so many jobs. */
static muster_device_stats decided(residency *r, uint64_t admitted, uint64_t waiting) {
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    muster_device_stats stats;
    do {
        sched_yield();
        stats = residency_stats(r);
        if (mu_now_ns() > deadline)
            fail_msg("%llu admitted and %llu waiting, not %llu and %llu", (unsigned long long)stats.admissions,
                     (unsigned long long)stats.admission_waits, (unsigned long long)admitted,
                     (unsigned long long)waiting);
    } while (stats.admissions < admitted || stats.admission_waits < waiting);
    return stats;
}

static void more_than_the_budget_is_refused_before_anything_is_allocated(void **state) {
    (void)state;
    residency r;
    uint64_t budget = open_small(&r, 0);
    uint64_t allocations = residency_calls(&r, "mem_alloc_from_pool_async"),
             copies = residency_calls(&r, "memcpy_htod_async");
    /* One buffer, and two that fit one by one but not together. */
    filler f = start_filler(&r, budget + 4, 1);
    FAILS(MUSTER_NEVER_FITS, "budget|fills of fewer", muster_run_wait(f.run, fixture_wait_ns, &reported));
    muster_buffer *a = fixture_buffer(&r.fixture, 40 * MIB, NULL), *b = fixture_buffer(&r.fixture, 40 * MIB, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    OK(muster_graph_copy(graph, a, 0, b, 0, 40 * MIB, NULL, &reported));
    muster_run *run = fixture_submit(&r.fixture, graph);
    FAILS(MUSTER_NEVER_FITS, "83886080|budget", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(residency_calls(&r, "mem_alloc_from_pool_async"), allocations);
    assert_int_equal(residency_calls(&r, "memcpy_htod_async"), copies);
    assert_int_equal(residency_stats(&r).refusals, 2);
    assert_int_equal(residency_stats(&r).admission_waits, 0);
    /* The same when one of them is on the device already. */
    graph = fixture_graph(&r.fixture);
    OK(muster_graph_fill(graph, a, 0, 40 * MIB, 3, 4, NULL, &reported));
    OK(muster_graph_copy(graph, b, 0, a, 0, 40 * MIB, NULL, &reported));
    run = fixture_submit(&r.fixture, graph);
    FAILS(MUSTER_NEVER_FITS, "83886080", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, 0).status, MUSTER_OK);
    assert_int_equal(fixture_word(a, 10 * MIB - 1), 3);
    fixture_close(&r.fixture);
}

static void exactly_the_budget_is_admitted(void **state) {
    (void)state;
    residency r;
    uint64_t budget = open_small(&r, 0) / (2 * MIB) * (2 * MIB); /* what large sizes are rounded to */
    filler f = start_filler(&r, budget, 7);
    OK(muster_run_wait(f.run, fixture_wait_ns, &reported));
    assert_int_equal(residency_stats(&r).pool_bytes_in_use, budget);
    f = start_filler(&r, budget + 1 * MIB, 7);
    FAILS(MUSTER_NEVER_FITS, "", muster_run_wait(f.run, fixture_wait_ns, &reported));
    fixture_close(&r.fixture);
}

static void what_does_not_fit_now_waits_and_then_runs(void **state) {
    (void)state;
    residency r;
    open_small(&r, 0);
    muster_device_stats before = residency_stats(&r);
    fixture_hold(&r.fixture, 0, true);
    filler first = start_filler(&r, 40 * MIB, 1), second = start_filler(&r, 40 * MIB, 2);
    muster_device_stats stats = decided(&r, before.admissions + 1, 1);
    assert_int_equal(stats.admissions, before.admissions + 1);
    assert_int_equal(stats.admission_waits, 1);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(second.run, 0, &reported));
    fixture_hold(&r.fixture, 0, false);
    OK(muster_run_wait(first.run, fixture_wait_ns, &reported));
    OK(muster_run_wait(second.run, fixture_wait_ns, &reported));
    assert_int_equal(residency_stats(&r).admission_waits, 1); /* once for each job, however often it is looked at */
    assert_int_equal(residency_stats(&r).refusals, 0);
    assert_int_equal(fixture_word(first.buffer, 0), 1);
    assert_int_equal(fixture_word(second.buffer, 10 * MIB - 1), 2);
    fixture_close(&r.fixture);
}

/* Jobs that fit may pass one that waits, but not for ever. */
static void at_most_64_admissions_pass_a_job_that_waits(void **state) {
    (void)state;
    enum { SMALL = 150 };
    residency r;
    open_small(&r, 0);
    muster_device_stats before = residency_stats(&r);
    filler small[SMALL];
    fixture_hold(&r.fixture, 0, true);
    filler large = start_filler(&r, 40 * MIB, 1);
    decided(&r, before.admissions + 1, 0);
    filler waiting = start_filler(&r, 40 * MIB, 2);
    decided(&r, before.admissions + 1, 1);
    for (uint32_t i = 0; i < SMALL; i++) small[i] = start_filler(&r, 4096, 100 + i);
    muster_device_stats stats = decided(&r, before.admissions + 1 + MU_OVERTAKES_MAX, 1 + SMALL - MU_OVERTAKES_MAX);
    assert_int_equal(stats.admissions, before.admissions + 1 + MU_OVERTAKES_MAX);
    assert_int_equal(stats.admission_waits, 1 + SMALL - MU_OVERTAKES_MAX);
    fixture_hold(&r.fixture, 0, false);
    OK(muster_run_wait(large.run, fixture_wait_ns, &reported));
    OK(muster_run_wait(waiting.run, fixture_wait_ns, &reported));
    for (uint32_t i = 0; i < SMALL; i++) {
        OK(muster_run_wait(small[i].run, fixture_wait_ns, &reported));
        assert_int_equal(fixture_word(small[i].buffer, 1023), 100 + i);
    }
    fixture_close(&r.fixture);
}

/* A job that needs no memory is no one's competitor: it always goes on. */
static void resident_jobs_pass_whoever_waits(void **state) {
    (void)state;
    enum { RUNS = 100 };
    residency r;
    open_small(&r, 0);
    muster_buffer *resident = fixture_buffer(&r.fixture, 4096, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    fixture_affine(&r.fixture, graph, resident, 1, 1);
    fixture_run(&r.fixture, graph);
    muster_device_stats before = residency_stats(&r);
    fixture_hold(&r.fixture, 0, true);
    muster_run *runs[RUNS] = {fixture_submit(&r.fixture, graph)}; /* in use, so that it is not evicted for the others */
    decided(&r, before.admissions + 1, before.admission_waits);
    filler large = start_filler(&r, 40 * MIB, 1), waiting = start_filler(&r, 40 * MIB, 2);
    decided(&r, before.admissions + 2, before.admission_waits + 1);
    for (int i = 1; i < RUNS; i++) runs[i] = fixture_submit(&r.fixture, graph);
    muster_device_stats stats = decided(&r, before.admissions + 1 + RUNS, before.admission_waits + 1);
    assert_int_equal(stats.admission_waits, before.admission_waits + 1);
    fixture_hold(&r.fixture, 0, false);
    for (int i = 0; i < RUNS; i++) OK(muster_run_wait(runs[i], fixture_wait_ns, &reported));
    OK(muster_run_wait(large.run, fixture_wait_ns, &reported));
    OK(muster_run_wait(waiting.run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(resident, 0), RUNS + 1);
    fixture_close(&r.fixture);
}

static void a_waiting_job_leaves_the_queue_when_its_run_is_cancelled(void **state) {
    (void)state;
    enum { SMALL = 80 };
    residency r;
    open_small(&r, 0);
    muster_device_stats before = residency_stats(&r);
    fixture_hold(&r.fixture, 0, true);
    filler large = start_filler(&r, 40 * MIB, 1);
    decided(&r, before.admissions + 1, 0);
    filler waiting = start_filler(&r, 40 * MIB, 2), small[SMALL];
    decided(&r, before.admissions + 1, 1);
    for (uint32_t i = 0; i < SMALL; i++) small[i] = start_filler(&r, 4096, i);
    decided(&r, before.admissions + 1 + MU_OVERTAKES_MAX, 1 + SMALL - MU_OVERTAKES_MAX);
    OK(muster_run_cancel(waiting.run, &reported));
    /* Nobody is in front of the others any more, though nothing has been released. */
    decided(&r, before.admissions + 1 + SMALL, 1);
    fixture_hold(&r.fixture, 0, false);
    FAILS(MUSTER_CANCELLED, "cancelled", muster_run_wait(waiting.run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(waiting.run, 0).status, MUSTER_CANCELLED);
    OK(muster_run_wait(large.run, fixture_wait_ns, &reported));
    for (uint32_t i = 0; i < SMALL; i++) OK(muster_run_wait(small[i].run, fixture_wait_ns, &reported));
    void *pointer;
    FAILS(MUSTER_DATA_UNDEFINED, "",
          muster_buffer_acquire(waiting.buffer, 0, 0, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    OK(muster_run_cancel(large.run, &reported)); /* it has ended and stays as it is */
    OK(muster_run_wait(large.run, 0, &reported));
    fixture_close(&r.fixture);
}

static void a_waiting_job_leaves_the_queue_when_a_fault_ends_its_run(void **state) {
    (void)state;
    residency r;
    open_small(&r, 0);
    muster_device_stats before = residency_stats(&r);
    fixture_hold(&r.fixture, 0, true);
    filler large = start_filler(&r, 40 * MIB, 1), waiting = start_filler(&r, 40 * MIB, 2);
    decided(&r, before.admissions + 1, 1);
    mu_sim_lose_device(fixture_driver(&r.fixture), 0);
    fixture_hold(&r.fixture, 0, false);
    FAILS(MUSTER_DEVICE_LOST, "", muster_run_wait(waiting.run, fixture_wait_ns, &reported));
    FAILS(MUSTER_DEVICE_LOST, "", muster_run_wait(large.run, fixture_wait_ns, &reported));
    fixture_close(&r.fixture);
}

/* Unstarted jobs of a cancelled run end; a job on the device goes on to its end, and what follows the run comes after it. */
static void cancelling_ends_what_has_not_begun(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *first = fixture_graph(&fixture), *second = fixture_graph(&fixture), *last = fixture_graph(&fixture);
    for (int i = 0; i < 3; i++) fixture_affine(&fixture, first, buffer, 1, 1);
    for (int i = 0; i < 1000; i++) fixture_affine(&fixture, second, buffer, 1, 1000);
    OK(muster_graph_fill(last, buffer, 0, 400, 5, 4, NULL, &reported));
    fixture_hold_all(&fixture, true);
    muster_run *runs[3] = {fixture_submit(&fixture, first), fixture_submit(&fixture, second), NULL};
    OK(muster_run_cancel(runs[1], &reported));
    runs[2] = fixture_submit(&fixture, last);
    fixture_hold_all(&fixture, false);
    OK(muster_run_wait(runs[0], fixture_wait_ns, &reported));
    muster_status status = muster_run_wait(runs[1], fixture_wait_ns, &reported);
    assert_int_equal(status, MUSTER_CANCELLED);
    OK(muster_run_wait(runs[2], fixture_wait_ns, &reported));
    bool ended = false;
    for (muster_job job = 0; job < 1000; job++) {
        muster_status one = fixture_result(runs[1], job).status;
        assert_true(one == MUSTER_CANCELLED || (one == MUSTER_OK && !ended)); /* they depend on each other */
        ended |= one == MUSTER_CANCELLED;
    }
    assert_true(ended);
    assert_int_equal(fixture_word(buffer, 99), 5);
    FAILS(MUSTER_INVALID_ARGUMENT, "run", muster_run_cancel(NULL, &reported));
    fixture_close(&fixture);
}

/* Another process has the memory: nothing of ours can bring it back. */
static void a_wait_that_nothing_of_ours_can_end_gives_try_later(void **state) {
    (void)state;
    residency r;
    muster_config config = {.struct_size = sizeof config, .admission_wait_ns = 20000000};
    residency_open(&r, "{\"devices\": [{\"preset\": \"H200\", \"memory_bytes\": 1073741824}]}", &config);
    mu_sim_set_other_memory(fixture_driver(&r.fixture), 0, 1000 * (uint64_t)MIB);
    filler f = start_filler(&r, 256 * MIB, 1);
    FAILS(MUSTER_OUT_OF_DEVICE_MEMORY, "268435456|budget|in use|device 0",
          muster_run_wait(f.run, fixture_wait_ns, &reported));
    assert_int_equal(muster_status_recovery(MUSTER_OUT_OF_DEVICE_MEMORY), MUSTER_RECOVERY_TRY_LATER);
    assert_int_equal(residency_stats(&r).refusals, 1);
    assert_int_equal(residency_stats(&r).admission_waits, 1);
    mu_sim_set_other_memory(fixture_driver(&r.fixture), 0, 0);
    fixture_run(&r.fixture, f.graph); /* later */
    assert_int_equal(fixture_word(f.buffer, 64 * MIB - 1), 1);
    fixture_close(&r.fixture);
}

static void live_memory_is_sampled_at_the_start_and_not_per_job(void **state) {
    (void)state;
    residency r;
    residency_open(&r, NULL, NULL);
    uint64_t samples = residency_calls(&r, "mem_get_info");
    assert_true(samples >= 1);
    for (uint32_t i = 0; i < 20; i++) {
        filler f = start_filler(&r, 1 * MIB, i);
        OK(muster_run_wait(f.run, fixture_wait_ns, &reported));
    }
    assert_int_equal(residency_calls(&r, "mem_get_info"), samples);
    fixture_close(&r.fixture);
}

/* One launch, and the event and the value by which its end is seen: that is all a resident job costs of the driver. */
static void a_resident_job_makes_no_driver_call_but_its_launch(void **state) {
    (void)state;
    residency r;
    residency_open(&r, NULL, NULL);
    static const char *const completion[] = {"launch_kernel", "event_record", "event_query", "stream_write_value32",
                                             NULL};
    muster_graph *graph = fixture_graph(&r.fixture);
    fixture_affine(&r.fixture, graph, r.out, 3, 1);
    fixture_run(&r.fixture, graph);
    fixture_run(&r.fixture, graph);
    uint64_t launches = residency_calls(&r, "launch_kernel"), records = residency_calls(&r, "event_record");
    uint64_t others = residency_calls_but(&r, completion);
    for (int i = 0; i < 10; i++) fixture_run(&r.fixture, graph);
    assert_int_equal(residency_calls(&r, "launch_kernel"), launches + 10);
    assert_int_equal(residency_calls(&r, "event_record"), records + 10);
    assert_int_equal(residency_calls_but(&r, completion), others);
    fixture_close(&r.fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_than_the_budget_is_refused_before_anything_is_allocated),
        cmocka_unit_test(exactly_the_budget_is_admitted),
        cmocka_unit_test(what_does_not_fit_now_waits_and_then_runs),
        cmocka_unit_test(at_most_64_admissions_pass_a_job_that_waits),
        cmocka_unit_test(resident_jobs_pass_whoever_waits),
        cmocka_unit_test(a_waiting_job_leaves_the_queue_when_its_run_is_cancelled),
        cmocka_unit_test(a_waiting_job_leaves_the_queue_when_a_fault_ends_its_run),
        cmocka_unit_test(cancelling_ends_what_has_not_begun),
        cmocka_unit_test(a_wait_that_nothing_of_ours_can_end_gives_try_later),
        cmocka_unit_test(live_memory_is_sampled_at_the_start_and_not_per_job),
        cmocka_unit_test(a_resident_job_makes_no_driver_call_but_its_launch),
    };
    return cmocka_run_group_tests_name("admission", tests, NULL, NULL);
}
