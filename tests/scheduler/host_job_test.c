/* Host jobs: when they are called, with what, and what becomes of their failure. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/sim/sim.h"
#include "tests/scheduler/callbacks.h"

enum { WORDS = 1000, BYTES = 4 * WORDS };

/* --------------------------------------------------------------------------------------------------------------- order -- */

typedef struct sum {
    gate gate;
    uint32_t words[2];
} sum;

static muster_status note_words(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)error;
    sum *self = user;
    for (uint32_t i = 0; i < count; i++) self->words[i] = ((const uint32_t *)pointers[i])[WORDS - 1];
    return count_call(&self->gate, pointers, count, error);
}

/* One device is held: what is enqueued there has not completed. The second host job, which does not need it, shows that the first
 * had its chance to start too early. */
static void it_starts_when_what_it_comes_after_has_completed(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *buffer[2] = {fixture_buffer(&fixture, BYTES, NULL), fixture_buffer(&fixture, BYTES, NULL)};
    muster_graph *graph = fixture_graph(&fixture);
    add_affine_on(&fixture, graph, buffer[0], 0, 1, 5);
    add_affine_on(&fixture, graph, buffer[1], 1, 1, 6);
    sum both, one;
    gate_init(&both.gate);
    gate_init(&one.gate);
    muster_job job =
        add_host(graph, note_words, &both,
                 ARGS(muster_buffer_arg(buffer[0], MUSTER_READ), muster_buffer_arg(buffer[1], MUSTER_READ)));
    add_host(graph, note_words, &one, ARGS(muster_buffer_arg(buffer[0], MUSTER_READ)));
    fixture_hold(&fixture, 1, true);
    muster_run *run = fixture_submit(&fixture, graph);
    sem_wait(&one.gate.called);
    assert_int_equal(one.words[0], 5);
    assert_int_equal(both.gate.calls, 0);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 0, &reported));
    fixture_hold(&fixture, 1, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(both.gate.calls, 1);
    assert_int_equal(both.words[0], 5);
    assert_int_equal(both.words[1], 6);
    muster_job_result result = fixture_result(run, job);
    assert_int_equal(result.status, MUSTER_OK);
    assert_int_equal(result.device, MUSTER_ANY_DEVICE);
    assert_int_equal(result.shards, 1);
    gate_destroy(&both.gate);
    gate_destroy(&one.gate);
    fixture_close(&fixture);
}

/* An explicit predecessor and the runs before count like data, also for a job that only writes. */
static void it_starts_after_jobs_and_runs_it_shares_no_content_with(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL), *other = fixture_buffer(&fixture, BYTES, NULL);
    gate after, later, free_one;
    gate_init(&after);
    gate_init(&later);
    gate_init(&free_one);
    muster_graph *graph = fixture_graph(&fixture), *next = fixture_graph(&fixture), *apart = fixture_graph(&fixture);
    muster_job before = add_affine_on(&fixture, graph, buffer, 1, 1, 5);
    add_host_after(graph, count_call, &after, NO_ARGS, 1, &before);
    add_host(next, count_call, &later, ARGS(muster_range_arg(buffer, MUSTER_WRITE, 0, 4)));
    add_host(apart, count_call, &free_one, ARGS(muster_buffer_arg(other, MUSTER_WRITE)));
    fixture_hold(&fixture, 1, true);
    muster_run *run[3] = {fixture_submit(&fixture, graph), fixture_submit(&fixture, next),
                          fixture_submit(&fixture, apart)};
    OK(muster_run_wait(run[2], fixture_wait_ns, &reported));
    assert_int_equal(free_one.calls, 1);
    assert_int_equal(after.calls + later.calls, 0);
    fixture_hold(&fixture, 1, false);
    OK(muster_run_wait(run[1], fixture_wait_ns, &reported));
    assert_int_equal(after.calls, 1);
    assert_int_equal(later.calls, 1);
    gate_destroy(&after);
    gate_destroy(&later);
    gate_destroy(&free_one);
    fixture_close(&fixture);
}

/* What depends on it, in its run and in later ones, waits until it has returned; what does not goes on. */
static void what_comes_after_it_waits_for_its_return(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL), *other = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture), *next = fixture_graph(&fixture), *apart = fixture_graph(&fixture);
    gate gate;
    gate_init(&gate);
    muster_job job = add_host(graph, stop_at_gate, &gate, ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE)));
    muster_job dependant = fixture_affine(&fixture, graph, buffer, 1, 1);
    muster_job independent = fixture_affine(&fixture, graph, other, 1, 1);
    fixture_affine(&fixture, next, buffer, 3, 1);
    fixture_affine(&fixture, apart, other, 3, 1);
    muster_run *run[3] = {fixture_submit(&fixture, graph), fixture_submit(&fixture, next), NULL};
    sem_wait(&gate.called);
    /* The devices are free: what is not held up ends. */
    muster_job_result result = {.struct_size = sizeof result};
    while (muster_run_job_result(run[0], independent, &result, NULL) == MUSTER_INVALID_STATE) sched_yield();
    assert_int_equal(muster_run_job_result(run[0], dependant, &result, NULL), MUSTER_INVALID_STATE);
    assert_int_equal(muster_run_job_result(run[0], job, &result, NULL), MUSTER_INVALID_STATE);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run[1], 0, &reported));
    void *pointer;
    FAILS(MUSTER_TIMEOUT, "", muster_buffer_acquire(buffer, 0, 0, MUSTER_READ, 0, &pointer, &reported));
    sem_post(&gate.open);
    OK(muster_run_wait(run[1], fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 7), 4);
    run[2] = fixture_submit(&fixture, apart);
    OK(muster_run_wait(run[2], fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(other, 7), 4);
    gate_destroy(&gate);
    fixture_close(&fixture);
}

/* ---------------------------------------------------------------------------------------------------------------- data -- */

static muster_status square(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)user, (void)error;
    const uint32_t *in = pointers[0];
    uint32_t *out = pointers[1], *both = pointers[2];
    assert_int_equal(count, 3);
    for (uint32_t i = 0; i < WORDS; i++) out[i] = in[i] * in[i];
    for (uint32_t i = 0; i < 10; i++) both[i] += i;
    return MUSTER_OK;
}

/* Device, host, device, host, on several devices and with every placement; against the same in plain C. */
static void content_follows_it_both_ways(void **state) {
    (void)state;
    static const char *const placements[] = {"locality", "round-robin", "random"};
    for (uint32_t p = 0; p < 6; p++) {
        fixture fixture;
        muster_config config = {.struct_size = sizeof config,
                                .placement = placements[p % 3],
                                .seed = p,
                                .flags = p == 5 ? MUSTER_RUNTIME_SERIAL : 0};
        fixture_open_with(&fixture, 1 + p % 4, &config);
        static uint32_t host[WORDS], expected[WORDS], squares[WORDS], seen[WORDS];
        for (uint32_t i = 0; i < WORDS; i++) expected[i] = host[i] = i;
        muster_buffer *in = fixture_buffer(&fixture, BYTES, host), *out = fixture_buffer(&fixture, BYTES, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        muster_buffer *little = fixture_buffer(&fixture, 80, NULL);
        for (uint32_t round = 0; round < 5; round++) {
            fixture_affine(&fixture, graph, in, 3, round);
            add_host(graph, square, NULL,
                     ARGS(muster_buffer_arg(in, MUSTER_READ), muster_buffer_arg(out, MUSTER_WRITE),
                          muster_range_arg(little, MUSTER_READ_WRITE, 40, 40)));
            fixture_affine(&fixture, graph, out, 1, 1);
            fixture_affine(&fixture, graph, little, 2, 0);
            OK(muster_graph_copy(graph, in, 0, out, 400, 400, NULL, &reported));
        }
        fixture_run(&fixture, graph);
        uint32_t few[20] = {0}, few_seen[20];
        for (uint32_t round = 0; round < 5; round++) {
            for (uint32_t i = 0; i < WORDS; i++) expected[i] = 3 * expected[i] + round;
            for (uint32_t i = 0; i < WORDS; i++) squares[i] = expected[i] * expected[i] + 1;
            for (uint32_t i = 0; i < 20; i++) few[i] = 2 * (few[i] + (i < 10 ? 0 : i - 10));
            memcpy(expected, squares + 100, 400);
        }
        fixture_read(in, 0, BYTES, seen);
        assert_memory_equal(seen, expected, BYTES);
        fixture_read(out, 0, BYTES, seen);
        assert_memory_equal(seen, squares, BYTES);
        fixture_read(little, 0, 80, few_seen);
        assert_memory_equal(few_seen, few, 80);
        fixture_close(&fixture);
    }
}

typedef struct pointers {
    void *given[3];
} pointers;

static muster_status note_pointers(void *user, void *const *given, uint32_t count, muster_error *error) {
    (void)error;
    memcpy(((pointers *)user)->given, given, count * sizeof *given);
    for (int i = 0; i < 20; i++) assert_int_equal(((uint32_t *)given[1])[i], 0);
    return MUSTER_OK;
}

static void pointers_lead_to_the_ranges_in_order(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    static uint32_t host[WORDS];
    muster_buffer *mine = fixture_buffer(&fixture, BYTES, host), *yours = fixture_buffer(&fixture, 160, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    pointers seen = {0};
    add_host(graph, note_pointers, &seen,
             ARGS(muster_range_arg(mine, MUSTER_WRITE, 400, 40), muster_range_arg(yours, MUSTER_READ, 80, 0),
                  muster_range_arg(mine, MUSTER_READ, 40, 8)));
    fixture_run(&fixture, graph);
    assert_ptr_equal(seen.given[0], host + 100);
    assert_ptr_equal(seen.given[2], host + 10);
    void *pointer;
    OK(muster_buffer_acquire(yours, 0, 0, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    assert_ptr_equal(seen.given[1], (char *)pointer + 80);
    OK(muster_buffer_release(yours, pointer, &reported));
    fixture_close(&fixture);
}

/* Without arguments, and many: each ends the next, on the stack of none. */
static void long_chains_of_small_ones(void **state) {
    (void)state;
    enum { LENGTH = 20000 };
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    gate gate;
    gate_init(&gate);
    muster_job before = add_host(graph, count_call, &gate, NO_ARGS);
    for (uint32_t i = 1; i < LENGTH; i++) {
        muster_job job;
        if (i < LENGTH / 2) {
            job = add_host_after(graph, count_call, &gate, NO_ARGS, 1, &before);
        } else {
            OK(muster_graph_read_back(graph, buffer, 0, 4, &job, &reported));
            OK(muster_graph_after(graph, job, before, &reported));
        }
        before = job;
    }
    fixture_run(&fixture, graph);
    assert_int_equal(gate.calls, LENGTH / 2);
    fixture_run(&fixture, graph);
    assert_int_equal(gate.calls, LENGTH);
    gate_destroy(&gate);
    fixture_close(&fixture);
}

/* ------------------------------------------------------------------------------------------------------------ failures -- */

static muster_status complain(void *user, void *const *given, uint32_t count, muster_error *error) {
    (void)given, (void)count;
    if (user) snprintf(error->message, sizeof error->message, "%s", (const char *)user);
    return MUSTER_TIMEOUT;
}

static void a_failing_callback_fails_its_job_and_what_follows_only(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *bad = fixture_buffer(&fixture, BYTES, NULL), *good = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    gate gate;
    gate_init(&gate);
    muster_job first = fixture_affine(&fixture, graph, bad, 1, 1);
    muster_job failing =
        add_host(graph, complain, "no room on\nthe disk", ARGS(muster_range_arg(bad, MUSTER_WRITE, 0, 400)));
    muster_job device = fixture_affine(&fixture, graph, bad, 1, 1);
    muster_job host = add_host(graph, count_call, &gate, ARGS(muster_range_arg(bad, MUSTER_READ, 0, 4)));
    muster_job back;
    OK(muster_graph_read_back(graph, bad, 0, 400, &back, &reported));
    muster_job apart = fixture_affine(&fixture, graph, good, 1, 1);
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_CALLBACK_FAILED, "host callback|MUSTER_TIMEOUT|no room on the disk",
          muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(reported.job, failing);
    assert_int_equal(fixture_result(run, first).status, MUSTER_OK);
    assert_int_equal(fixture_result(run, failing).status, MUSTER_CALLBACK_FAILED);
    assert_int_equal(fixture_result(run, device).status, MUSTER_PREDECESSOR_FAILED);
    assert_int_equal(fixture_result(run, host).status, MUSTER_PREDECESSOR_FAILED);
    assert_int_equal(fixture_result(run, back).status, MUSTER_PREDECESSOR_FAILED);
    assert_int_equal(fixture_result(run, apart).status, MUSTER_OK);
    assert_int_equal(gate.calls, 0);
    assert_int_equal(muster_status_recovery(MUSTER_CALLBACK_FAILED), MUSTER_RECOVERY_JOB_FAILED);
    void *pointer;
    FAILS(MUSTER_DATA_UNDEFINED, "",
          muster_buffer_acquire(bad, 0, 4, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    assert_int_equal(fixture_word(good, 0), 1);
    /* A callback that says nothing, and one that reads what is undefined: in later runs. */
    muster_graph *later = fixture_graph(&fixture), *reading = fixture_graph(&fixture);
    add_host(later, complain, NULL, NO_ARGS);
    FAILS(MUSTER_CALLBACK_FAILED, "no message",
          muster_run_wait(fixture_submit(&fixture, later), fixture_wait_ns, &reported));
    add_host(reading, count_call, &gate, ARGS(muster_range_arg(bad, MUSTER_READ, 396, 8)));
    FAILS(MUSTER_DATA_UNDEFINED, "", muster_run_wait(fixture_submit(&fixture, reading), fixture_wait_ns, &reported));
    assert_int_equal(gate.calls, 0);
    gate_destroy(&gate);
    fixture_close(&fixture);
}

/* The driver refuses a launch that was taken for enqueued: the host job after it does not run. */
static void it_does_not_run_after_a_launch_that_failed(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(1, FIXTURE_FAIL_LAUNCH(0, 1), spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture;
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    gate gate;
    gate_init(&gate);
    fixture_affine(&fixture, graph, buffer, 1, 1);
    muster_job job = add_host(graph, count_call, &gate, ARGS(muster_buffer_arg(buffer, MUSTER_READ)));
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_LAUNCH_FAILED, "", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, job).status, MUSTER_PREDECESSOR_FAILED);
    assert_int_equal(gate.calls, 0);
    gate_destroy(&gate);
    fixture_close(&fixture);
}

/* The host thread is busy with another run's callback when the run is cancelled. */
static void a_cancelled_run_calls_no_more(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *busy = fixture_graph(&fixture), *graph = fixture_graph(&fixture), *later = fixture_graph(&fixture);
    gate gate, never;
    gate_init(&gate);
    gate_init(&never);
    add_host(busy, stop_at_gate, &gate, NO_ARGS);
    muster_job job = add_host(graph, count_call, &never, ARGS(muster_buffer_arg(buffer, MUSTER_WRITE)));
    muster_job back;
    OK(muster_graph_read_back(graph, buffer, 0, 0, &back, &reported));
    fixture_affine(&fixture, later, buffer, 1, 1);
    muster_run *first = fixture_submit(&fixture, busy);
    sem_wait(&gate.called);
    muster_run *run = fixture_submit(&fixture, graph), *after = fixture_submit(&fixture, later);
    OK(muster_run_cancel(run, &reported));
    sem_post(&gate.open);
    FAILS(MUSTER_CANCELLED, "", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, job).status, MUSTER_CANCELLED);
    assert_int_equal(fixture_result(run, back).status, MUSTER_CANCELLED);
    assert_int_equal(never.calls, 0);
    OK(muster_run_wait(first, fixture_wait_ns, &reported));
    FAILS(MUSTER_DATA_UNDEFINED, "", muster_run_wait(after, fixture_wait_ns, &reported));
    gate_destroy(&gate);
    gate_destroy(&never);
    fixture_close(&fixture);
}

/* One that runs, one that waits for the faulting kernel, and one that waits for the host thread. */
static void a_fault_ends_those_that_wait(void **state) {
    (void)state;
    for (uint32_t devices = 1; devices <= 3; devices += 2) {
        fixture fixture;
        fixture_open(&fixture, devices);
        muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL), *other = fixture_buffer(&fixture, BYTES, NULL);
        gate gate, never;
        gate_init(&gate);
        gate_init(&never);
        muster_graph *running = fixture_graph(&fixture), *bad = fixture_graph(&fixture),
                     *queued = fixture_graph(&fixture);
        add_host(running, stop_at_gate, &gate, ARGS(muster_buffer_arg(other, MUSTER_WRITE)));
        add_host(queued, count_call, &never, NO_ARGS);
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "illegal"), 1, 1,
                             ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u64_arg(1ull << 40)));
        dispatch.pin_device = 1;
        dispatch.device = (int)devices - 1;
        fixture_add(bad, &dispatch);
        add_host(bad, count_call, &never, ARGS(muster_buffer_arg(buffer, MUSTER_READ)));
        muster_job back;
        OK(muster_graph_read_back(bad, buffer, 0, 0, &back, &reported));
        muster_run *run[3] = {fixture_submit(&fixture, running)};
        sem_wait(&gate.called);
        run[1] = fixture_submit(&fixture, queued);
        run[2] = fixture_submit(&fixture, bad);
        muster_job_result result = {.struct_size = sizeof result};
        while (muster_run_job_result(run[2], 0, &result, NULL) == MUSTER_INVALID_STATE) sched_yield();
        assert_int_equal(muster_status_recovery(result.status), MUSTER_RECOVERY_DEVICE_LOST);
        sem_post(&gate.open);
        assert_int_equal(muster_run_wait(run[0], fixture_wait_ns, NULL), MUSTER_OK); /* it had begun */
        for (int i = 1; i < 3; i++)
            assert_int_equal(muster_status_recovery(muster_run_wait(run[i], fixture_wait_ns, NULL)),
                             MUSTER_RECOVERY_DEVICE_LOST);
        assert_int_equal(never.calls, 0);
        muster_status status = fixture_result(run[2], back).status;
        assert_true(status == MUSTER_PREDECESSOR_FAILED || status == MUSTER_DEVICE_LOST ||
                    status == MUSTER_KERNEL_FAULT);
        gate_destroy(&gate);
        gate_destroy(&never);
        fixture_close(&fixture);
    }
}

/* What another device or the host has too is read as ever; what only the lost one had is undefined. */
static void a_lost_device_fails_who_needs_what_only_it_had(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *both = fixture_buffer(&fixture, BYTES, NULL), *one = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *before = fixture_graph(&fixture), *graph = fixture_graph(&fixture);
    add_affine_on(&fixture, before, both, 1, 1, 4);
    add_affine_on(&fixture, before, one, 1, 1, 5);
    OK(muster_graph_prefetch(before, both, 0, 0, 0, NULL, &reported));
    fixture_run(&fixture, before);
    sum first, second;
    gate_init(&first.gate);
    gate_init(&second.gate);
    muster_job good = add_host(graph, note_words, &first, ARGS(muster_buffer_arg(both, MUSTER_READ)));
    muster_job bad = add_host(graph, note_words, &second, ARGS(muster_buffer_arg(one, MUSTER_READ)));
    muster_job home, gone;
    OK(muster_graph_read_back(graph, both, 0, 0, &home, &reported));
    OK(muster_graph_read_back(graph, one, 0, 0, &gone, &reported));
    mu_sim_lose_device(fixture_driver(&fixture), 1);
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_DATA_UNDEFINED, "device 1 was lost", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, good).status, MUSTER_OK);
    assert_int_equal(fixture_result(run, home).status, MUSTER_OK);
    assert_int_equal(fixture_result(run, bad).status, MUSTER_DATA_UNDEFINED);
    assert_int_equal(fixture_result(run, gone).status, MUSTER_DATA_UNDEFINED);
    assert_int_equal(first.words[0], 4);
    assert_int_equal(second.gate.calls, 0);
    gate_destroy(&first.gate);
    gate_destroy(&second.gate);
    fixture_close(&fixture);
}

/* ------------------------------------------------------------------------------------------------------- threads, ends -- */

typedef struct submitter {
    const fixture *fixture;
    muster_graph *graph;
    pthread_barrier_t *start;
    uint32_t rounds;
    muster_status worst;
} submitter;

static void *submit_rounds(void *argument) {
    submitter *self = argument;
    pthread_barrier_wait(self->start);
    for (uint32_t i = 0; i < self->rounds; i++) {
        muster_run *run;
        muster_status status = muster_submit(self->fixture->runtime, self->graph, &run, NULL);
        if (status != MUSTER_OK) self->worst = status;
        if (status == MUSTER_OK) muster_run_destroy(run);
    }
    return NULL;
}

static muster_status step(void *user, void *const *given, uint32_t count, muster_error *error) {
    (void)count, (void)error;
    uint32_t *words = given[0];
    for (uint32_t i = 0; i < WORDS; i++) words[i] = 5 * words[i] + 2;
    ++*(uint32_t *)user; /* the host thread is one: not atomic, so that ThreadSanitizer would tell of a second */
    return MUSTER_OK;
}

/* Every run does the same two steps, so their order does not matter, but that they are not mixed does. */
static void runs_of_several_threads_keep_their_order(void **state) {
    (void)state;
    enum { THREADS = 4, ROUNDS = 20 };
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    pthread_barrier_t start;
    pthread_t thread[THREADS];
    submitter own[THREADS];
    uint32_t calls = 0;
    pthread_barrier_init(&start, NULL, THREADS);
    for (uint32_t t = 0; t < THREADS; t++) {
        muster_graph *graph = fixture_graph(&fixture);
        add_affine_on(&fixture, graph, buffer, (int)(t % 3), 3, 1);
        add_host(graph, step, &calls, ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE)));
        own[t] = (submitter){&fixture, graph, &start, ROUNDS, MUSTER_OK};
        assert_int_equal(pthread_create(&thread[t], NULL, submit_rounds, &own[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(thread[t], NULL);
        assert_int_equal(own[t].worst, MUSTER_OK);
    }
    uint32_t expected = 0, words[WORDS];
    for (int i = 0; i < THREADS * ROUNDS; i++) expected = 5 * (3 * expected + 1) + 2;
    fixture_read(buffer, 0, BYTES, words);
    for (int w = 0; w < WORDS; w++) assert_int_equal(words[w], expected);
    assert_int_equal(calls, THREADS * ROUNDS);
    pthread_barrier_destroy(&start);
    fixture_close(&fixture);
}

/* Everything is destroyed while the callback runs, and nothing stays behind. */
static void what_it_uses_may_be_destroyed_meanwhile(void **state) {
    (void)state;
    fixture_count_memory();
    fixture fixture;
    fixture_open(&fixture, 2);
    static uint32_t host[WORDS];
    memset(host, 0, sizeof host);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, host);
    muster_graph *graph = fixture_graph(&fixture);
    gate gate;
    gate_init(&gate);
    uint32_t calls = 0;
    fixture_affine(&fixture, graph, buffer, 1, 1);
    add_host(graph, stop_at_gate, &gate, ARGS(muster_buffer_arg(buffer, MUSTER_READ)));
    add_host(graph, step, &calls, ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE)));
    muster_run *run = fixture_submit(&fixture, graph);
    sem_wait(&gate.called);
    muster_run_destroy(run);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
    FAILS(MUSTER_TIMEOUT, "1 runs", muster_runtime_destroy(fixture.runtime, 1000000, &reported));
    sem_post(&gate.open);
    fixture_close(&fixture);
    assert_int_equal(calls, 1);
    for (int w = 0; w < WORDS; w++) assert_int_equal(host[w], 7);
    gate_destroy(&gate);
    assert_int_equal(fixture_live_blocks(), 0);
}

/* ------------------------------------------------------------------------------------------------------------ refusals -- */

static void refuse(muster_graph *graph, muster_status status, const char *words, muster_host_job host) {
    muster_job job = 77;
    FAILS(status, words, muster_graph_host(graph, &host, &job, &reported));
    assert_int_equal(job, 77);
}

static void bad_input_is_refused(void **state) {
    (void)state;
    fixture fixture, strange;
    fixture_open(&fixture, 1);
    fixture_open(&strange, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL), *foreign = fixture_buffer(&strange, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    gate gate;
    gate_init(&gate);
    muster_host_job good = {.struct_size = sizeof good, .run = count_call, .user = &gate}, host = good;
    FAILS(MUSTER_INVALID_ARGUMENT, "host", muster_graph_host(graph, NULL, NULL, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "graph", muster_graph_host(NULL, &host, NULL, &reported));
    host.struct_size--;
    refuse(graph, MUSTER_INVALID_ARGUMENT, "struct_size", host);
    host = good;
    host.run = NULL;
    refuse(graph, MUSTER_INVALID_ARGUMENT, "function", host);
    host = good;
    host.arg_count = 1;
    refuse(graph, MUSTER_INVALID_ARGUMENT, "args", host);
    host.arg_count = 129;
    host.args = &(muster_arg){0};
    refuse(graph, MUSTER_LIMIT_REACHED, "128|129", host);
    const struct {
        muster_arg arg;
        muster_status status;
        const char *words;
    } bad[] = {
        {muster_u32_arg(1), MUSTER_INVALID_ARGUMENT, "argument 1|user"},
        {muster_scratch_arg(64), MUSTER_INVALID_ARGUMENT, "argument 1"},
        {muster_shard_offset_arg(1, 1, 4), MUSTER_INVALID_ARGUMENT, "argument 1"},
        {muster_buffer_arg(NULL, MUSTER_READ), MUSTER_INVALID_ARGUMENT, "argument 1"},
        {muster_buffer_arg(foreign, MUSTER_READ), MUSTER_WRONG_RUNTIME, "argument 1"},
        {muster_buffer_arg(buffer, (muster_access)4), MUSTER_INVALID_ARGUMENT, "argument 1|4"},
        {muster_range_arg(buffer, MUSTER_READ, 4, BYTES), MUSTER_OUT_OF_RANGE, "argument 1|4000"},
        {muster_range_arg(buffer, MUSTER_READ, BYTES, 0), MUSTER_OUT_OF_RANGE, "argument 1"},
        {muster_range_arg(buffer, MUSTER_WRITE, 0, 8), MUSTER_INVALID_ARGUMENT, "0 and 1|overlap"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        muster_arg args[2] = {muster_range_arg(buffer, MUSTER_READ, 0, 8), bad[i].arg};
        host = good;
        host.arg_count = 2;
        host.args = args;
        refuse(graph, bad[i].status, bad[i].words, host);
    }
    host = good;
    host.after_count = 1;
    refuse(graph, MUSTER_INVALID_ARGUMENT, "after", host);
    host.after = &(muster_job){0};
    refuse(graph, MUSTER_OUT_OF_RANGE, "job 0|0 jobs", host);
    /* Nothing of all that was added. */
    muster_job job;
    OK(muster_graph_host(graph, &good, &job, &reported));
    assert_int_equal(job, 0);
    uint32_t value = 0;
    FAILS(MUSTER_INVALID_ARGUMENT, "not a dispatch", muster_graph_set_argument(graph, job, 0, &value, 4, &reported));
    fixture_run(&fixture, graph);
    assert_int_equal(gate.calls, 1);
    FAILS(MUSTER_INVALID_STATE, "submitted", muster_graph_host(graph, &good, NULL, &reported));
    muster_preflight_report report = {.struct_size = sizeof report};
    OK(muster_preflight(graph, job, 0, MUSTER_PREFLIGHT_FULL, &report, &reported));
    assert_int_equal(report.answer, MUSTER_ANSWER_YES);
    assert_int_equal(report.required_bytes, 0);
    gate_destroy(&gate);
    fixture_close(&strange);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_starts_when_what_it_comes_after_has_completed),
        cmocka_unit_test(it_starts_after_jobs_and_runs_it_shares_no_content_with),
        cmocka_unit_test(what_comes_after_it_waits_for_its_return),
        cmocka_unit_test(content_follows_it_both_ways),
        cmocka_unit_test(pointers_lead_to_the_ranges_in_order),
        cmocka_unit_test(long_chains_of_small_ones),
        cmocka_unit_test(a_failing_callback_fails_its_job_and_what_follows_only),
        cmocka_unit_test(it_does_not_run_after_a_launch_that_failed),
        cmocka_unit_test(a_cancelled_run_calls_no_more),
        cmocka_unit_test(a_fault_ends_those_that_wait),
        cmocka_unit_test(a_lost_device_fails_who_needs_what_only_it_had),
        cmocka_unit_test(runs_of_several_threads_keep_their_order),
        cmocka_unit_test(what_it_uses_may_be_destroyed_meanwhile),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
