/* Open runs: graphs added while others execute, one numbering of jobs, and everything about runs on the whole. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/sanitizer.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

static muster_graph *affine_graph(const fixture *fixture, muster_buffer *buffer, uint32_t factor, uint32_t term) {
    muster_graph *graph = fixture_graph(fixture);
    fixture_affine(fixture, graph, buffer, factor, term);
    return graph;
}

static muster_run *open_run(const fixture *fixture) {
    muster_run *run = NULL;
    OK(muster_run_open(fixture->runtime, &run, &reported));
    return run;
}

static muster_job add(muster_run *run, muster_graph *graph) {
    muster_job first = MUSTER_NO_JOB;
    OK(muster_run_add(run, graph, &first, &reported));
    return first;
}

static bool is_over(muster_run *run) { return muster_run_wait(run, 0, NULL) != MUSTER_TIMEOUT; }

/* ------------------------------------------------------------------------------------------------------------ order -- */

static void graphs_take_effect_in_the_order_of_adding(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_run *run = open_run(&fixture);
    uint32_t expected = 0;
    for (uint32_t i = 1; i <= 20; i++) {
        muster_graph *graph = affine_graph(&fixture, buffer, 2 * i + 1, i);
        assert_int_equal(add(run, graph), 2 * (i - 1));
        assert_int_equal(add(run, graph), 2 * i - 1); /* the same once more */
        muster_graph_destroy(graph);
        for (int twice = 0; twice < 2; twice++) expected = (2 * i + 1) * expected + i;
        /* It executes while the run is open, and a plain run has its place between. */
        if (i % 5 == 0) {
            assert_int_equal(fixture_word(buffer, 99), expected);
            fixture_run(&fixture, affine_graph(&fixture, buffer, 1, 7));
            expected += 7;
        }
    }
    FAILS(MUSTER_TIMEOUT, "open|close", muster_run_wait(run, 0, &reported));
    OK(muster_run_close(run, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 0), expected);
    muster_run_destroy(run);
    fixture_close(&fixture);
}

static void a_graph_may_change_its_arguments_between_adds(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = affine_graph(&fixture, buffer, 10, 0);
    muster_run *run = open_run(&fixture);
    uint32_t expected = 0;
    fixture_hold_all(&fixture, true);
    for (uint32_t i = 1; i < 9; i++) {
        OK(muster_graph_set_argument(graph, 0, 2, &i, sizeof i, &reported));
        add(run, graph);
        expected = 10 * expected + i;
    }
    fixture_hold_all(&fixture, false);
    OK(muster_run_close(run, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 3), expected);
    fixture_close(&fixture);
}

static void jobs_are_numbered_through(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *buffer = fixture_buffer(&fixture, 3000, NULL);
    muster_graph *graph = fixture_graph(&fixture), *empty = fixture_graph(&fixture);
    for (int device = 0; device < 3; device++) {
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "affine"), 4, 64,
                             ARGS(muster_range_arg(buffer, MUSTER_READ_WRITE, 1000 * (uint64_t)device, 1000),
                                  muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(250)));
        dispatch.pin_device = 1;
        dispatch.device = device;
        fixture_add(graph, &dispatch);
    }
    muster_run *run = open_run(&fixture);
    muster_job_result result = {.struct_size = sizeof result, .device = -9};
    FAILS(MUSTER_OUT_OF_RANGE, "0", muster_run_job_result(run, 0, &result, &reported));
    assert_int_equal(add(run, empty), 0);
    assert_int_equal(add(run, graph), 0);
    assert_int_equal(add(run, empty), 3);
    assert_int_equal(add(run, empty), 3);
    OK(muster_run_add(run, graph, NULL, &reported));
    assert_int_equal(add(run, graph), 6);
    assert_int_equal(add(run, empty), 9);
    FAILS(MUSTER_OUT_OF_RANGE, "9", muster_run_job_result(run, 9, &result, &reported));
    OK(muster_run_close(run, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    for (muster_job job = 0; job < 9; job++) {
        result = fixture_result(run, job);
        assert_int_equal(result.status, MUSTER_OK);
        assert_int_equal(result.device, job % 3);
        assert_int_equal(result.shards, 1);
    }
    FAILS(MUSTER_OUT_OF_RANGE, "9", muster_run_job_result(run, 9, &result, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "", muster_run_job_result(run, MUSTER_NO_JOB, &result, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "9", muster_run_job_result(run, 9, &result, &reported));
    assert_int_equal(fixture_word(buffer, 500), 3);
    fixture_close(&fixture);
}

static void a_result_is_there_once_its_job_has_ended(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *free_one = fixture_buffer(&fixture, 400, NULL), *lent = fixture_buffer(&fixture, 400, NULL);
    void *pointer;
    OK(muster_buffer_acquire(lent, 0, 0, MUSTER_WRITE, 0, &pointer, &reported));
    muster_run *run = open_run(&fixture);
    add(run, affine_graph(&fixture, lent, 1, 1));
    add(run, affine_graph(&fixture, free_one, 1, 1));
    assert_int_equal(fixture_word(free_one, 0), 1);
    muster_job_result result = {.struct_size = sizeof result};
    while (muster_run_job_result(run, 1, &result, NULL) == MUSTER_INVALID_STATE) sched_yield();
    assert_int_equal(result.status, MUSTER_OK);
    FAILS(MUSTER_INVALID_STATE, "job 0", muster_run_job_result(run, 0, &result, &reported));
    memset(pointer, 0, 400);
    OK(muster_buffer_release(lent, pointer, &reported));
    OK(muster_run_close(run, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, 0).status, MUSTER_OK);
    fixture_close(&fixture);
}

/* ---------------------------------------------------------------------------------------------------------- failures -- */

static muster_job add_pinned(muster_run *run, const fixture *fixture, muster_buffer *buffer, int device) {
    muster_graph *graph = fixture_graph(fixture);
    OK(muster_graph_fill(graph, buffer, 0, 8, 1, 4, NULL, &reported));
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(fixture, "affine"), 4, 32,
        ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(100)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    fixture_add(graph, &dispatch);
    return add(run, graph);
}

/* The later graph fails first, while the earlier one waits for its buffer and fails then. */
static void the_lowest_job_that_failed_is_reported(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(2,
                         "[{\"kind\": \"fail\", \"entry\": \"launch_kernel\", \"device\": 0, \"nth\": 1, \"code\": "
                         "\"INVALID_VALUE\"}, {\"kind\": \"fail\", \"entry\": \"launch_kernel\", \"device\": 1, "
                         "\"nth\": 1, \"code\": \"INVALID_VALUE\"}]",
                         spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture;
    fixture_open_with(&fixture, 2, &config);
    muster_buffer *lent = fixture_buffer(&fixture, 400, NULL), *bad = fixture_buffer(&fixture, 400, NULL);
    muster_buffer *good = fixture_buffer(&fixture, 400, NULL);
    void *pointer;
    OK(muster_buffer_acquire(lent, 0, 0, MUSTER_READ, 0, &pointer, &reported));
    muster_run *run = open_run(&fixture);
    assert_int_equal(add_pinned(run, &fixture, lent, 0), 0);
    assert_int_equal(add_pinned(run, &fixture, bad, 1), 2);
    muster_job_result result = {.struct_size = sizeof result};
    while (muster_run_job_result(run, 3, &result, NULL)) sched_yield(); /* the next launch on device 1 is not refused */
    assert_int_equal(add_pinned(run, &fixture, good, 1), 4);            /* does not depend on what failed */
    muster_graph *reader = fixture_graph(&fixture), *writer = fixture_graph(&fixture);
    OK(muster_graph_copy(reader, good, 0, bad, 0, 4, NULL, &reported));
    OK(muster_graph_fill(writer, bad, 0, 400, 9, 4, NULL, &reported));
    assert_int_equal(add(run, reader), 6); /* does */
    assert_int_equal(add(run, writer), 7);
    assert_int_equal(add(run, reader), 8); /* does not any more */
    OK(muster_run_close(run, &reported));
    assert_int_equal(fixture_word(good, 0), 9);
    assert_int_equal(fixture_word(good, 1), 2);
    FAILS(MUSTER_TIMEOUT, "closed|1 of its 6", muster_run_wait(run, 0, &reported));
    OK(muster_buffer_release(lent, pointer, &reported));
    FAILS(MUSTER_LAUNCH_FAILED, "affine", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(reported.job, 1);
    assert_int_equal(reported.device, 0);
    static const muster_status expected[9] = {MUSTER_OK,
                                              MUSTER_LAUNCH_FAILED,
                                              MUSTER_OK,
                                              MUSTER_LAUNCH_FAILED,
                                              MUSTER_OK,
                                              MUSTER_OK,
                                              MUSTER_DATA_UNDEFINED,
                                              MUSTER_OK,
                                              MUSTER_OK};
    for (muster_job job = 0; job < 9; job++) assert_int_equal(fixture_result(run, job).status, expected[job]);
    fixture_close(&fixture);
}

static void cancelling_ends_all_of_it_and_refuses_more(void **state) {
    (void)state;
    static const muster_status reasons[2] = {MUSTER_CANCELLED, MUSTER_DEADLINE_PASSED};
    for (int i = 0; i < 2; i++) {
        fixture fixture;
        fixture_open(&fixture, 2);
        muster_buffer *lent = fixture_buffer(&fixture, 400, NULL), *done = fixture_buffer(&fixture, 400, NULL);
        void *pointer;
        OK(muster_buffer_acquire(lent, 0, 0, MUSTER_READ, 0, &pointer, &reported));
        muster_run *run = open_run(&fixture);
        muster_graph *ended = affine_graph(&fixture, done, 1, 5), *waits = affine_graph(&fixture, lent, 1, 1);
        add(run, ended);
        assert_int_equal(fixture_word(done, 0), 5);
        for (int graphs = 0; graphs < 3; graphs++) add(run, waits);
        if (i == 0)
            OK(muster_run_cancel(run, &reported));
        else
            OK(muster_run_set_deadline(run, 100000, &reported));
        while (!mu_run_stopped(run)) sched_yield();
        muster_job first = 77;
        FAILS(reasons[i], "nothing was added", muster_run_add(run, ended, &first, &reported));
        assert_int_equal(first, 77);
        OK(muster_buffer_release(lent, pointer, &reported));
        FAILS(MUSTER_TIMEOUT, "open", muster_run_wait(run, 2000000, &reported)); /* until it is closed */
        OK(muster_run_close(run, &reported));
        FAILS(reasons[i], "job 1", muster_run_wait(run, fixture_wait_ns, &reported));
        assert_int_equal(reported.job, 1);
        for (muster_job job = 0; job < 4; job++)
            assert_int_equal(fixture_result(run, job).status, job ? reasons[i] : MUSTER_OK);
        FAILS(MUSTER_DATA_UNDEFINED, "",
              muster_buffer_acquire(lent, 0, 0, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
        assert_int_equal(fixture_word(done, 0), 5);
        fixture_close(&fixture);
    }
}

static void a_run_with_nothing_left_to_end_keeps_its_success(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_run *run = open_run(&fixture), *empty = open_run(&fixture);
    add(run, affine_graph(&fixture, buffer, 1, 1));
    assert_int_equal(fixture_word(buffer, 0), 1);
    OK(muster_run_cancel(run, &reported));
    OK(muster_run_set_deadline(empty, 0, &reported));
    OK(muster_run_close(run, &reported));
    OK(muster_run_close(empty, &reported));
    OK(muster_run_wait(empty, 0, &reported)); /* at once */
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    fixture_close(&fixture);
}

static void what_is_wrong_is_refused(void **state) {
    (void)state;
    fixture fixture, other;
    fixture_open(&fixture, 1);
    fixture_open(&other, 1);
    muster_graph *graph = fixture_graph(&fixture), *foreign = fixture_graph(&other);
    muster_run *run = open_run(&fixture), *submitted = fixture_submit(&fixture, graph), *none = (muster_run *)&other;
    muster_job first = 5;
    FAILS(MUSTER_INVALID_ARGUMENT, "runtime", muster_run_open(NULL, &none, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "run", muster_run_open(fixture.runtime, NULL, &reported));
    FAILS(MUSTER_INVALID_HANDLE, "graph", muster_run_open((muster_runtime *)graph, &none, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "run", muster_run_add(NULL, graph, &first, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "graph", muster_run_add(run, NULL, &first, &reported));
    FAILS(MUSTER_INVALID_HANDLE, "run", muster_run_add(run, (muster_graph *)submitted, &first, &reported));
    FAILS(MUSTER_WRONG_RUNTIME, "graph", muster_run_add(run, foreign, &first, &reported));
    FAILS(MUSTER_INVALID_STATE, "submitted", muster_run_add(submitted, graph, &first, &reported));
    FAILS(MUSTER_INVALID_STATE, "submitted", muster_run_close(submitted, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "run", muster_run_close(NULL, &reported));
    /* A cycle is found when the graph is added, as it is at submit. */
    muster_graph *cycle = fixture_graph(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    for (int i = 0; i < 2; i++) fixture_affine(&fixture, cycle, buffer, 1, 1);
    OK(muster_graph_after(cycle, 0, 1, &reported));
    FAILS(MUSTER_GRAPH_CYCLE, "", muster_run_add(run, cycle, &first, &reported));
    OK(muster_run_close(run, &reported));
    OK(muster_run_close(run, &reported)); /* does nothing */
    FAILS(MUSTER_INVALID_STATE, "closed", muster_run_add(run, graph, &first, &reported));
    assert_int_equal(first, 5);
    OK(muster_run_wait(run, 0, &reported));
    fixture_close(&fixture);
    fixture_close(&other);
}

static void the_queue_has_one_bound_for_all(void **state) {
    (void)state;
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .max_queued_jobs = 10};
    fixture_open_with(&fixture, 2, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < 4; i++) fixture_affine(&fixture, graph, buffer, 1, 1);
    muster_run *run = open_run(&fixture);
    muster_job first = MUSTER_NO_JOB;
    fixture_hold_all(&fixture, true);
    muster_run *plain = fixture_submit(&fixture, graph);
    add(run, graph);
    FAILS(MUSTER_QUEUE_FULL, "8|4|10", muster_run_add(run, graph, &first, &reported));
    assert_int_equal(first, MUSTER_NO_JOB);
    fixture_hold_all(&fixture, false);
    OK(muster_run_wait(plain, fixture_wait_ns, &reported));
    while (muster_run_add(run, graph, &first, NULL) == MUSTER_QUEUE_FULL) sched_yield();
    assert_int_equal(first, 4); /* the refused one took no numbers */
    OK(muster_run_close(run, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 0), 12);
    fixture_close(&fixture);
}

static void an_open_run_does_not_hold_up_a_global(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    static const char source[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .u32 mark;\n"
        ".visible .entry put(.param .u64 p_out)\n{\n.reg .b64 %rd<3>;\n.reg .b32 %r<2>;\n"
        "ld.param.u64 %rd1, [p_out];\ncvta.to.global.u64 %rd2, %rd1;\n"
        "ld.global.u32 %r1, [mark];\nst.global.u32 [%rd2], %r1;\nret;\n}\n";
    muster_program *program = NULL;
    muster_kernel *put = NULL;
    OK(muster_program_from_ptx(fixture.runtime, source, 0, "mark", &program, &reported));
    OK(muster_program_kernel(program, "put", &put, &reported));
    muster_buffer *buffer = fixture_buffer(&fixture, 4, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch dispatch = fixture_dispatch(put, 1, 1, ARGS(muster_buffer_arg(buffer, MUSTER_WRITE)));
    fixture_add(graph, &dispatch);
    muster_run *run = open_run(&fixture);
    uint32_t value = 41;
    OK(muster_program_set_global(program, "mark", 0, &value, 4, fixture_wait_ns, &reported));
    fixture_hold_all(&fixture, true);
    add(run, graph);
    value = 42;
    FAILS(MUSTER_TIMEOUT, "1 runs", muster_program_set_global(program, "mark", 0, &value, 4, 1000000, &reported));
    fixture_hold_all(&fixture, false);
    assert_int_equal(fixture_word(buffer, 0), 41);
    OK(muster_program_set_global(program, "mark", 0, &value, 4, fixture_wait_ns, &reported));
    add(run, graph);
    assert_int_equal(fixture_word(buffer, 0), 42);
    muster_run_destroy(run);
    fixture_close(&fixture);
}

/* -------------------------------------------------------------------------------------------------------- completion -- */

typedef struct told {
    sem_t called;
    uint32_t calls;
    muster_status status;
    muster_run *more; /* gets another graph */
    muster_graph *graph;
} told;

static void tell(void *user, muster_run *run, muster_status status) {
    told *self = user;
    self->calls++;
    self->status = muster_run_wait(run, 0, NULL) == status ? status : MUSTER_INTERNAL;
    if (self->more && muster_run_add(self->more, self->graph, NULL, NULL)) self->status = MUSTER_INTERNAL;
    sem_post(&self->called);
}

static void the_end_is_told_once_for_the_whole(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_run *run = open_run(&fixture);
    told told = {.calls = 0};
    sem_init(&told.called, 0, 0);
    struct pollfd one = {.events = POLLIN};
    OK(muster_run_on_complete(run, tell, &told, &reported));
    OK(muster_run_completion_fd(run, &one.fd, &reported));
    for (int i = 0; i < 10; i++) add(run, affine_graph(&fixture, buffer, 1, 1));
    assert_int_equal(fixture_word(buffer, 0), 10);
    assert_false(is_over(run));
    assert_int_equal(poll(&one, 1, 0), 0);
    fixture_hold_all(&fixture, true);
    add(run, affine_graph(&fixture, buffer, 1, 1));
    OK(muster_run_close(run, &reported));
    assert_int_equal(poll(&one, 1, 0), 0); /* closed, and not over */
    assert_int_equal(sem_trywait(&told.called), -1);
    fixture_hold_all(&fixture, false);
    assert_int_equal(poll(&one, 1, (int)(fixture_wait_ns / 1000000)), 1);
    sem_wait(&told.called);
    OK(muster_run_wait(run, 0, &reported));
    muster_run_destroy(run);
    fixture_close(&fixture);
    assert_int_equal(told.calls, 1);
    assert_int_equal(told.status, MUSTER_OK);
    sem_destroy(&told.called);
}

/* Destroyed without being closed, with graphs under way: they go on, and the end is told. */
static void destroying_closes(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = affine_graph(&fixture, buffer, 1, 1);
    told told[3] = {{.calls = 0}};
    fixture_hold_all(&fixture, true);
    for (int i = 0; i < 3; i++) {
        sem_init(&told[i].called, 0, 0);
        muster_run *run = open_run(&fixture);
        for (int graphs = 0; graphs < 4 * i; graphs++) add(run, graph);
        OK(muster_run_on_complete(run, tell, &told[i], &reported));
        muster_run_destroy(run);
    }
    muster_graph_destroy(graph);
    sem_wait(&told[0].called); /* nothing was in it */
    assert_int_equal(told[1].calls + told[2].calls, 0);
    fixture_hold_all(&fixture, false);
    for (int i = 1; i < 3; i++) sem_wait(&told[i].called);
    assert_int_equal(fixture_word(buffer, 0), 12);
    fixture_close(&fixture);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(told[i].calls, 1);
        assert_int_equal(told[i].status, MUSTER_OK);
        sem_destroy(&told[i].called);
    }
}

/* Several are open; the end of the one that is closed first adds to the next, which is told of its own end only then. */
static void the_runtime_closes_what_is_open_at_last(void **state) {
    (void)state;
    enum { RUNS = 4 };
    uint32_t words[100] = {0};
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, words);
    muster_graph *graph = affine_graph(&fixture, buffer, 1, 1);
    told told[RUNS] = {{.calls = 0}};
    muster_run *runs[RUNS];
    for (int i = 0; i < RUNS; i++) {
        runs[i] = open_run(&fixture);
        for (int graphs = 0; graphs < 5; graphs++) add(runs[i], graph);
        sem_init(&told[i].called, 0, 0);
        told[i].graph = graph;
        OK(muster_run_on_complete(runs[i], tell, &told[i], &reported));
    }
    void *pointer;
    OK(muster_buffer_acquire(buffer, 0, 0, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    add(runs[0], graph);
    FAILS(MUSTER_TIMEOUT, "1 runs", muster_runtime_destroy(fixture.runtime, 1000000, &reported));
    OK(muster_buffer_release(buffer, pointer, &reported));
    add(runs[1], graph); /* none was closed */
    for (int i = 0; i < RUNS; i++) assert_int_equal(told[i].calls, 0);
    OK(muster_runtime_destroy(fixture.runtime, fixture_wait_ns, &reported));
    for (int i = 0; i < RUNS; i++) {
        assert_int_equal(told[i].calls, 1);
        assert_int_equal(told[i].status, MUSTER_OK);
        sem_destroy(&told[i].called);
    }
}

static void a_callback_may_add(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = affine_graph(&fixture, buffer, 1, 1);
    muster_run *run = open_run(&fixture), *plain = fixture_submit(&fixture, graph);
    told told = {.more = run, .graph = graph};
    sem_init(&told.called, 0, 0);
    OK(muster_run_on_complete(plain, tell, &told, &reported));
    sem_wait(&told.called);
    assert_int_equal(told.status, MUSTER_OK);
    OK(muster_run_close(run, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, 0).status, MUSTER_OK);
    assert_int_equal(fixture_word(buffer, 0), 2);
    fixture_close(&fixture);
    sem_destroy(&told.called);
}

/* ------------------------------------------------------------------------------------------------------------ memory -- */

static void what_finds_no_memory_adds_nothing(void **state) {
    (void)state;
    enum { ADDS = 12 };
    fixture fixture;
    fixture_count_memory();
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_run *run = NULL;
    uint32_t failures = 0;
    muster_status status = MUSTER_OUT_OF_HOST_MEMORY;
    for (uint64_t nth = 1; status; nth++) {
        mu_alloc_fail_at(nth, false);
        status = muster_run_open(fixture.runtime, &run, &reported);
        mu_alloc_fail_at(0, false);
        assert_true(status == MUSTER_OK || status == MUSTER_OUT_OF_HOST_MEMORY);
    }
    /* The graphs wait for the buffer, so that nothing but the adds allocates. */
    void *pointer;
    OK(muster_buffer_acquire(buffer, 0, 0, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    for (muster_job i = 0; i < ADDS; i++) {
        muster_graph *graph = affine_graph(&fixture, buffer, 1, 1);
        muster_job first = MUSTER_NO_JOB;
        status = MUSTER_OUT_OF_HOST_MEMORY;
        for (uint64_t nth = 1; status; nth++) {
            mu_alloc_fail_at(nth, false);
            status = muster_run_add(run, graph, &first, &reported);
            mu_alloc_fail_at(0, false);
            assert_true(status == MUSTER_OK || status == MUSTER_OUT_OF_HOST_MEMORY);
            failures += status != MUSTER_OK;
        }
        assert_int_equal(first, i);
        muster_graph_destroy(graph);
    }
    assert_in_range(failures, 4 * ADDS, 20 * ADDS);
    OK(muster_buffer_release(buffer, pointer, &reported));
    OK(muster_run_close(run, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 0), ADDS);
    fixture_close(&fixture);
    assert_int_equal(fixture_live_blocks(), 0);
}

/* ----------------------------------------------------------------------------------------------------------- threads -- */

enum { THREADS = 4, ADDS = MU_TSAN || MU_ASAN ? 40 : 200 };

typedef struct adder {
    fixture *fixture;
    muster_run *run;
    muster_graph *graph;
    uint32_t factor, term;
    muster_job first[ADDS];
    uint32_t added;
    muster_status refused; /* what the first refusal was */
} adder;

static void *add_many(void *argument) {
    adder *self = argument;
    for (uint32_t i = 0; i < ADDS && !self->refused; i++) {
        self->refused = muster_run_add(self->run, self->graph, &self->first[self->added], NULL);
        if (!self->refused) self->added++;
    }
    return NULL;
}

/* All threads apply maps that do not commute to one buffer: replayed in the order of the job numbers, they give what is there. */
static void several_threads_add_in_the_order_of_the_numbers(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
    muster_run *run = open_run(&fixture);
    static adder own[THREADS];
    pthread_t thread[THREADS];
    static int by_number[THREADS * ADDS];
    for (uint32_t t = 0; t < THREADS; t++) {
        own[t] = (adder){&fixture, run, affine_graph(&fixture, buffer, 2 * t + 3, t + 1), 2 * t + 3, t + 1, {0}, 0, 0};
        assert_int_equal(pthread_create(&thread[t], NULL, add_many, &own[t]), 0);
    }
    for (int i = 0; i < THREADS * ADDS; i++) by_number[i] = -1;
    for (int t = 0; t < THREADS; t++) {
        pthread_join(thread[t], NULL);
        assert_int_equal(own[t].added, ADDS);
        for (int i = 0; i < ADDS; i++) {
            assert_in_range(own[t].first[i], 0, THREADS * ADDS - 1);
            assert_int_equal(by_number[own[t].first[i]], -1);
            by_number[own[t].first[i]] = t;
        }
    }
    OK(muster_run_close(run, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    uint32_t expected = 0;
    for (int i = 0; i < THREADS * ADDS; i++) expected = own[by_number[i]].factor * expected + own[by_number[i]].term;
    assert_int_equal(fixture_word(buffer, 15), expected);
    fixture_close(&fixture);
}

/* Closed, cancelled or past its deadline while threads add: what was accepted has a result, and the rest was refused for the reason. */
static void adding_races_with_ending(void **state) {
    (void)state;
    static const muster_status reasons[3] = {MUSTER_INVALID_STATE, MUSTER_CANCELLED, MUSTER_DEADLINE_PASSED};
    fixture fixture;
    fixture_open(&fixture, 2);
    for (uint32_t round = 0; round < (MU_TSAN || MU_ASAN ? 9 : 45); round++) {
        muster_run *run = open_run(&fixture);
        static adder own[THREADS];
        pthread_t thread[THREADS];
        uint32_t added = 0, ended[2] = {0};
        for (uint32_t t = 0; t < THREADS; t++) {
            muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
            own[t] = (adder){&fixture, run, affine_graph(&fixture, buffer, 1, 1), 1, 1, {0}, 0, 0};
            assert_int_equal(pthread_create(&thread[t], NULL, add_many, &own[t]), 0);
        }
        if (round % 3 == 0) OK(muster_run_close(run, &reported));
        if (round % 3 == 1) OK(muster_run_cancel(run, &reported));
        if (round % 3 == 2) OK(muster_run_set_deadline(run, 20000 * (round % 5), &reported));
        for (int t = 0; t < THREADS; t++) {
            pthread_join(thread[t], NULL);
            assert_true(own[t].refused == reasons[round % 3] || own[t].added == ADDS);
            added += own[t].added;
        }
        OK(muster_run_close(run, &reported));
        muster_status status = muster_run_wait(run, fixture_wait_ns, NULL);
        for (muster_job job = 0; job < added; job++) {
            muster_status one = fixture_result(run, job).status;
            assert_true(one == MUSTER_OK || one == reasons[round % 3] || one == MUSTER_DATA_UNDEFINED);
            ended[one != MUSTER_OK]++;
        }
        assert_int_equal(status != MUSTER_OK, ended[1] != 0);
        muster_job_result result = {.struct_size = sizeof result};
        FAILS(MUSTER_OUT_OF_RANGE, "", muster_run_job_result(run, added, &result, &reported));
        muster_run_destroy(run);
    }
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_take_effect_in_the_order_of_adding),
        cmocka_unit_test(a_graph_may_change_its_arguments_between_adds),
        cmocka_unit_test(jobs_are_numbered_through),
        cmocka_unit_test(a_result_is_there_once_its_job_has_ended),
        cmocka_unit_test(the_lowest_job_that_failed_is_reported),
        cmocka_unit_test(cancelling_ends_all_of_it_and_refuses_more),
        cmocka_unit_test(a_run_with_nothing_left_to_end_keeps_its_success),
        cmocka_unit_test(what_is_wrong_is_refused),
        cmocka_unit_test(the_queue_has_one_bound_for_all),
        cmocka_unit_test(an_open_run_does_not_hold_up_a_global),
        cmocka_unit_test(the_end_is_told_once_for_the_whole),
        cmocka_unit_test(destroying_closes),
        cmocka_unit_test(the_runtime_closes_what_is_open_at_last),
        cmocka_unit_test(a_callback_may_add),
        cmocka_unit_test(what_finds_no_memory_adds_nothing),
        cmocka_unit_test(several_threads_add_in_the_order_of_the_numbers),
        cmocka_unit_test(adding_races_with_ending),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
