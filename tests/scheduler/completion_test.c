/* Deadlines of runs, callbacks at their end, and descriptors that become readable then. */
#include <fcntl.h>
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
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/sanitizer.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

static const uint64_t hour_ns = 3600000000000u;

static muster_graph *affine_graph(const fixture *fixture, muster_buffer *buffer, uint32_t jobs) {
    muster_graph *graph = fixture_graph(fixture);
    for (uint32_t i = 0; i < jobs; i++) fixture_affine(fixture, graph, buffer, 1, 1);
    return graph;
}

/* A buffer that the application has acquired: runs that use it wait. */
typedef struct lent {
    muster_buffer *buffer;
    void *pointer;
} lent;

static lent lend(const fixture *fixture) {
    lent lent = {fixture_buffer(fixture, 400, NULL), NULL};
    OK(muster_buffer_acquire(lent.buffer, 0, 0, MUSTER_READ_WRITE, 0, &lent.pointer, &reported));
    return lent;
}

static void give_back(lent lent) { OK(muster_buffer_release(lent.buffer, lent.pointer, &reported)); }

static void until_stopped(const muster_run *run) {
    while (!mu_run_stopped(run)) sched_yield();
}

static void is_undefined(muster_buffer *buffer) {
    void *pointer;
    FAILS(MUSTER_DATA_UNDEFINED, "",
          muster_buffer_acquire(buffer, 0, 0, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
}

/* No watch is left behind by runs that have ended. */
static void no_watch_is_set(const fixture *fixture) {
    mu_watches *watches = &fixture->runtime->watches;
    pthread_mutex_lock(&watches->lock);
    assert_null(watches->earliest);
    pthread_mutex_unlock(&watches->lock);
}

/* -------------------------------------------------------------------------------------------------------- deadlines -- */

static void a_deadline_ends_a_run_that_waits_for_a_released_buffer(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    lent lent = lend(&fixture);
    muster_buffer *other = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = affine_graph(&fixture, lent.buffer, 2);
    fixture_affine(&fixture, graph, other, 1, 1);
    muster_run *run = fixture_submit(&fixture, graph);
    OK(muster_run_set_deadline(run, 1000000, &reported));
    until_stopped(run);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 0, &reported)); /* it keeps its turn */
    give_back(lent);
    FAILS(MUSTER_DEADLINE_PASSED, "deadline|job 0", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(reported.job, 0);
    for (muster_job job = 0; job < 3; job++) assert_int_equal(fixture_result(run, job).status, MUSTER_DEADLINE_PASSED);
    is_undefined(lent.buffer);
    is_undefined(other);
    no_watch_is_set(&fixture);
    fixture_close(&fixture);
}

/* The first run is on the device, the second waits for its turn behind it, the third comes after both. */
static void a_deadline_ends_a_run_that_waits_for_an_earlier_one(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    lent lent = lend(&fixture);
    muster_graph *first = affine_graph(&fixture, buffer, 1), *last = fixture_graph(&fixture);
    fixture_affine(&fixture, first, lent.buffer, 1, 1);
    OK(muster_graph_fill(last, buffer, 0, 400, 7, 4, NULL, &reported));
    muster_run *runs[3] = {fixture_submit(&fixture, first)};
    runs[1] = fixture_submit(&fixture, affine_graph(&fixture, buffer, 5));
    OK(muster_run_set_deadline(runs[1], 1, &reported));
    until_stopped(runs[1]);
    runs[2] = fixture_submit(&fixture, last);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(runs[2], 0, &reported));
    give_back(lent);
    OK(muster_run_wait(runs[0], fixture_wait_ns, &reported));
    FAILS(MUSTER_DEADLINE_PASSED, "", muster_run_wait(runs[1], fixture_wait_ns, &reported));
    OK(muster_run_wait(runs[2], fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 99), 7);
    fixture_close(&fixture);
}

/* More jobs than a worker enqueues ahead: some are on the device already, and go on to their end. */
static void what_is_on_the_device_outlives_the_deadline(void **state) {
    (void)state;
    enum { JOBS = MU_ENQUEUE_AHEAD_TASKS + 500 };
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 4, NULL);
    fixture_hold_all(&fixture, true);
    muster_run *run = fixture_submit(&fixture, affine_graph(&fixture, buffer, JOBS));
    while (mu_timeline_closed(&fixture.runtime->actors[0].timeline) < 2) sched_yield();
    OK(muster_run_set_deadline(run, 1, &reported));
    until_stopped(run);
    fixture_hold_all(&fixture, false);
    FAILS(MUSTER_DEADLINE_PASSED, "deadline", muster_run_wait(run, fixture_wait_ns, &reported));
    muster_job first = reported.job;
    assert_in_range(first, 1, JOBS - 1);
    for (muster_job job = 0; job < JOBS; job++)
        assert_int_equal(fixture_result(run, job).status, job < first ? MUSTER_OK : MUSTER_DEADLINE_PASSED);
    fixture_close(&fixture);
}

static void a_deadline_is_replaced_or_taken_away(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    lent lent = lend(&fixture);
    muster_graph *graph = affine_graph(&fixture, lent.buffer, 1);
    muster_run *runs[4];
    for (int i = 0; i < 4; i++) runs[i] = fixture_submit(&fixture, graph);
    OK(muster_run_set_deadline(runs[0], hour_ns, &reported));
    OK(muster_run_set_deadline(runs[0], MUSTER_FOREVER, &reported));
    no_watch_is_set(&fixture);
    OK(muster_run_set_deadline(runs[1], hour_ns, &reported));
    OK(muster_run_set_deadline(runs[1], 2 * hour_ns, &reported));
    OK(muster_run_set_deadline(runs[1], 1000, &reported)); /* earlier after all */
    until_stopped(runs[1]);
    OK(muster_run_set_deadline(runs[1], MUSTER_FOREVER, &reported)); /* too late */
    OK(muster_run_set_deadline(runs[2], MUSTER_FOREVER, &reported));
    OK(muster_run_set_deadline(runs[3], hour_ns, &reported));
    OK(muster_run_set_deadline(runs[3], 0, &reported));
    assert_int_equal(mu_run_stopped(runs[3]), MUSTER_DEADLINE_PASSED); /* at once */
    no_watch_is_set(&fixture);
    give_back(lent);
    static const muster_status expected[4] = {MUSTER_OK, MUSTER_DEADLINE_PASSED, MUSTER_DATA_UNDEFINED,
                                              MUSTER_DEADLINE_PASSED};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(muster_run_wait(runs[i], fixture_wait_ns, NULL), expected[i]);
        OK(muster_run_set_deadline(runs[i], 0, &reported)); /* it has ended, and stays as it is */
        OK(muster_run_set_deadline(runs[i], hour_ns, &reported));
        assert_int_equal(muster_run_wait(runs[i], 0, NULL), expected[i]);
    }
    no_watch_is_set(&fixture);
    FAILS(MUSTER_INVALID_ARGUMENT, "run", muster_run_set_deadline(NULL, 0, &reported));
    FAILS(MUSTER_INVALID_HANDLE, "graph", muster_run_set_deadline((muster_run *)graph, 0, &reported));
    fixture_close(&fixture);
}

static void of_cancel_and_deadline_the_first_counts(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    lent lent = lend(&fixture);
    muster_graph *graph = affine_graph(&fixture, lent.buffer, 1);
    muster_run *runs[2] = {fixture_submit(&fixture, graph), fixture_submit(&fixture, graph)};
    OK(muster_run_cancel(runs[0], &reported));
    OK(muster_run_set_deadline(runs[0], 0, &reported));
    OK(muster_run_set_deadline(runs[1], 0, &reported));
    OK(muster_run_cancel(runs[1], &reported));
    give_back(lent);
    FAILS(MUSTER_CANCELLED, "cancelled", muster_run_wait(runs[0], fixture_wait_ns, &reported));
    FAILS(MUSTER_DEADLINE_PASSED, "deadline", muster_run_wait(runs[1], fixture_wait_ns, &reported));
    fixture_close(&fixture);
}

static void a_run_that_ends_in_time_leaves_no_deadline(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = affine_graph(&fixture, buffer, 2);
    for (uint32_t i = 0; i < 50; i++) {
        muster_run *run = fixture_submit(&fixture, graph);
        OK(muster_run_set_deadline(run, hour_ns + i, &reported));
        if (i % 2) OK(muster_run_wait(run, fixture_wait_ns, &reported));
        muster_run_destroy(run);
    }
    assert_int_equal(fixture_word(buffer, 0), 100);
    fixture_close(&fixture); /* not in an hour */
}

/* -------------------------------------------------------------------------------------------------------- callbacks -- */

/* What callbacks saw; written by the host thread only, not atomic. */
typedef struct log {
    uint32_t calls, wrong;
    char order[64];
    muster_status status;
    sem_t called;
} log;

typedef struct caller {
    log *log;
    char name;
    muster_run *run; /* as submit gave it; NULL: not compared */
} caller;

static void log_open(log *log) {
    memset(log, 0, sizeof *log);
    sem_init(&log->called, 0, 0);
}

static void log_close(log *log, uint32_t calls) {
    for (uint32_t i = 0; i < calls; i++) sem_wait(&log->called);
    assert_int_equal(log->calls, calls);
    assert_int_equal(log->wrong, 0);
    sem_destroy(&log->called);
}

static void on_end(void *user, muster_run *run, muster_status status) {
    caller *self = user;
    char name[16];
    pthread_getname_np(pthread_self(), name, sizeof name);
    self->log->wrong += strcmp(name, "muster-host") != 0;
    self->log->wrong += self->run && self->run != run;
    self->log->wrong += muster_run_wait(run, 0, NULL) != status;
    self->log->status = status;
    self->log->order[self->log->calls++ % 64] = self->name;
    sem_post(&self->log->called);
}

static void callbacks_come_once_in_order_when_the_run_has_ended(void **state) {
    (void)state;
    fixture fixture;
    log log;
    log_open(&log);
    fixture_open(&fixture, 2);
    lent lent = lend(&fixture);
    muster_run *run = fixture_submit(&fixture, affine_graph(&fixture, lent.buffer, 3));
    caller callers[4];
    for (int i = 0; i < 4; i++) callers[i] = (caller){&log, (char)('a' + i), run};
    for (int i = 0; i < 3; i++) OK(muster_run_on_complete(run, on_end, &callers[i], &reported));
    assert_int_equal(sem_trywait(&log.called), -1);
    give_back(lent);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    OK(muster_run_on_complete(run, on_end, &callers[3], &reported)); /* at once, on the same thread */
    log_close(&log, 4);
    assert_string_equal(log.order, "abcd");
    assert_int_equal(log.status, MUSTER_OK);
    FAILS(MUSTER_INVALID_ARGUMENT, "fn", muster_run_on_complete(run, NULL, NULL, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "run", muster_run_on_complete(NULL, on_end, NULL, &reported));
    muster_run_destroy(run);
    fixture_close(&fixture);
}

static void a_callback_gets_the_status_that_wait_gives(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(1, FIXTURE_FAIL_LAUNCH(0, 1), spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture;
    log log;
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    static const muster_status expected[3] = {MUSTER_LAUNCH_FAILED, MUSTER_CANCELLED, MUSTER_OK};
    for (int i = 0; i < 3; i++) {
        log_open(&log);
        lent lent = lend(&fixture);
        muster_graph *graph = i == 2 ? fixture_graph(&fixture) : affine_graph(&fixture, lent.buffer, 2);
        if (i == 0) fixture_affine(&fixture, graph, buffer, 1, 1);
        muster_run *run = fixture_submit(&fixture, graph); /* the last is empty and has ended */
        caller caller = {&log, 'x', run};
        OK(muster_run_on_complete(run, on_end, &caller, &reported));
        if (i == 1) OK(muster_run_cancel(run, &reported));
        give_back(lent);
        log_close(&log, 1);
        assert_int_equal(log.status, expected[i]);
    }
    fixture_close(&fixture);
}

static void destroy_it(void *user, muster_run *run, muster_status status) {
    on_end(user, run, status);
    muster_run_destroy(run);
}

/* The application's handle is gone before the end, or during the call: what the callback gets is valid. */
static void a_callback_outlives_the_handle(void **state) {
    (void)state;
    fixture fixture;
    log log;
    log_open(&log);
    fixture_open(&fixture, 2);
    lent lent = lend(&fixture);
    muster_graph *graph = affine_graph(&fixture, lent.buffer, 1);
    caller callers[20];
    for (int i = 0; i < 20; i++) {
        muster_run *run = fixture_submit(&fixture, graph);
        callers[i] = (caller){&log, 'x', run};
        OK(muster_run_on_complete(run, i % 2 ? on_end : destroy_it, &callers[i], &reported));
        if (i % 2) muster_run_destroy(run);
    }
    muster_graph_destroy(graph);
    give_back(lent);
    log_close(&log, 20);
    assert_int_equal(fixture_word(lent.buffer, 0), 20);
    fixture_close(&fixture);
}

typedef struct chain {
    const fixture *fixture;
    muster_graph *graph;
    muster_buffer *buffer;
    uint32_t left, wrong;
} chain;

/* Uses what the header allows: submits, acquires, releases, destroys. */
static void submit_next(void *user, muster_run *run, muster_status status) {
    chain *self = user;
    muster_error error;
    void *pointer;
    uint32_t done = 30 - self->left;
    self->wrong += status != MUSTER_OK;
    if (muster_buffer_acquire(self->buffer, 0, 4, MUSTER_READ, fixture_wait_ns, &pointer, &error))
        self->wrong++;
    else {
        self->wrong += *(uint32_t *)pointer != done + 1;
        self->wrong += muster_buffer_release(self->buffer, pointer, &error) != MUSTER_OK;
    }
    self->wrong += muster_runtime_destroy(self->fixture->runtime, MUSTER_FOREVER, &error) != MUSTER_INVALID_STATE;
    muster_run_destroy(run);
    if (self->left-- == 0) return;
    muster_run *next;
    if (muster_submit(self->fixture->runtime, self->graph, &next, &error))
        self->wrong++;
    else if (muster_run_on_complete(next, submit_next, self, &error))
        self->wrong++;
}

/* Destroying the runtime waits for the last of runs that each submit the next. */
static void a_callback_may_submit(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    chain chain = {&fixture, affine_graph(&fixture, buffer, 1), buffer, 30, 0};
    OK(muster_run_on_complete(fixture_submit(&fixture, chain.graph), submit_next, &chain, &reported));
    OK(muster_runtime_destroy(fixture.runtime, fixture_wait_ns, &reported));
    assert_int_equal(chain.left, UINT32_MAX);
    assert_int_equal(chain.wrong, 0);
}

static void stand_in_gate(void *user, muster_run *run, muster_status status) {
    (void)run;
    (void)status;
    sem_wait(user);
}

static void the_runtime_waits_for_callbacks(void **state) {
    (void)state;
    enum { RUNS = 40 };
    fixture fixture;
    log log;
    sem_t gate;
    caller callers[RUNS];
    log_open(&log);
    sem_init(&gate, 0, 0);
    fixture_open(&fixture, 3);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = affine_graph(&fixture, buffer, 1);
    muster_run *first = fixture_submit(&fixture, graph);
    OK(muster_run_on_complete(first, stand_in_gate, &gate, &reported));
    for (int i = 0; i < RUNS; i++) {
        muster_run *run = fixture_submit(&fixture, graph);
        callers[i] = (caller){&log, 'x', NULL};
        if (i % 3 == 0) OK(muster_run_wait(run, fixture_wait_ns, &reported));
        OK(muster_run_on_complete(run, on_end, &callers[i], &reported));
        if (i % 3 == 1) muster_run_destroy(run);
    }
    OK(muster_run_wait(first, fixture_wait_ns, &reported));
    FAILS(MUSTER_TIMEOUT, "callbacks", muster_runtime_destroy(fixture.runtime, 1000000, &reported));
    assert_int_equal(sem_trywait(&log.called), -1);
    OK(muster_run_wait(first, 0, &reported)); /* nothing was destroyed */
    sem_post(&gate);
    OK(muster_runtime_destroy(fixture.runtime, fixture_wait_ns, &reported));
    log_close(&log, RUNS); /* each of them, before destroy returned */
    sem_destroy(&gate);
}

/* ------------------------------------------------------------------------------------------------------ descriptors -- */

static bool readable(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, 0) == 1 && one.revents == POLLIN;
}

static void a_descriptor_is_readable_once_the_run_has_ended(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    lent lent = lend(&fixture);
    muster_run *run = fixture_submit(&fixture, affine_graph(&fixture, lent.buffer, 1));
    int fd = -1, again = -1;
    OK(muster_run_completion_fd(run, &fd, &reported));
    OK(muster_run_completion_fd(run, &again, &reported));
    assert_int_equal(fd, again);
    assert_int_not_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    assert_false(readable(fd));
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = run}, seen = {0};
    assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    assert_int_equal(epoll_wait(set, &seen, 1, 0), 0);
    give_back(lent);
    struct pollfd one = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&one, 1, (int)(fixture_wait_ns / 1000000)), 1);
    OK(muster_run_wait(run, 0, &reported)); /* it has ended when it is readable */
    assert_true(readable(fd));              /* and stays so */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(epoll_wait(set, &seen, 1, 0), 1);
        assert_ptr_equal(seen.data.ptr, run);
    }
    muster_run_destroy(run);
    assert_int_equal(fcntl(fd, F_GETFD), -1); /* closed with it, and gone from the set */
    assert_int_equal(epoll_wait(set, &seen, 1, 0), 0);
    close(set);
    fixture_close(&fixture);
}

static void a_descriptor_of_an_ended_run_is_readable(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_run *run = fixture_submit(&fixture, affine_graph(&fixture, buffer, 1));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    int fd = -1;
    OK(muster_run_completion_fd(run, &fd, &reported));
    assert_true(readable(fd));
    FAILS(MUSTER_INVALID_ARGUMENT, "fd", muster_run_completion_fd(run, NULL, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "run", muster_run_completion_fd(NULL, &fd, &reported));
    fixture_close(&fixture); /* the runtime takes it along */
    assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void a_descriptor_closes_with_the_handle_of_an_unfinished_run(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    lent lent = lend(&fixture);
    muster_run *run = fixture_submit(&fixture, affine_graph(&fixture, lent.buffer, 1));
    int fd = -1;
    OK(muster_run_completion_fd(run, &fd, &reported));
    muster_run_destroy(run);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    give_back(lent);
    assert_int_equal(fixture_word(lent.buffer, 0), 1);
    fixture_close(&fixture);
}

static void no_descriptor_is_left(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_run *run = fixture_submit(&fixture, fixture_graph(&fixture));
    struct rlimit limit, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 0;
    int fd = -5;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    FAILS(MUSTER_OUT_OF_HOST_MEMORY, "descriptor|limit", muster_run_completion_fd(run, &fd, &reported));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(fd, -5);
    OK(muster_run_completion_fd(run, &fd, &reported));
    assert_true(readable(fd));
    fixture_close(&fixture);
}

/* ---------------------------------------------------------------------------------------------------------- failures -- */

static void what_finds_no_memory_changes_nothing(void **state) {
    (void)state;
    fixture fixture;
    log log;
    fixture_count_memory();
    log_open(&log);
    fixture_open(&fixture, 1);
    lent lent = lend(&fixture);
    muster_graph *graph = affine_graph(&fixture, lent.buffer, 1);
    caller caller = {&log, 'x', NULL};
    uint32_t failures = 0;
    for (int what = 0; what < 3; what++) {
        muster_run *run = fixture_submit(&fixture, graph);
        int fd = -1;
        muster_status status = MUSTER_OUT_OF_HOST_MEMORY;
        for (uint64_t nth = 1; status; nth++) {
            mu_alloc_fail_at(nth, false);
            status = what == 0   ? muster_run_on_complete(run, on_end, &caller, &reported)
                     : what == 1 ? muster_run_completion_fd(run, &fd, &reported)
                                 : muster_run_set_deadline(run, hour_ns, &reported);
            mu_alloc_fail_at(0, false);
            assert_true(status == MUSTER_OK || status == MUSTER_OUT_OF_HOST_MEMORY);
            failures += status != MUSTER_OK;
        }
        if (what == 1) assert_false(readable(fd));
        muster_run_destroy(run);
    }
    assert_int_equal(failures, 4); /* two for the callback, one for each of the others */
    give_back(lent);
    log_close(&log, 1);
    assert_int_equal(fixture_word(lent.buffer, 0), 3);
    fixture_close(&fixture);
    assert_int_equal(fixture_live_blocks(), 0);
}

/* ---------------------------------------------------------------------------------------------------------- threads -- */

enum { THREADS = 4, ROUNDS = MU_TSAN || MU_ASAN ? 60 : 400 };

typedef struct asker {
    fixture *fixture;
    muster_graph *graph;
    uint32_t index;
    uint64_t random;
    atomic_uint *called;
    uint32_t asked;
    muster_status worst;
} asker;

static void count_call(void *user, muster_run *run, muster_status status) {
    (void)run;
    (void)status;
    atomic_fetch_add_explicit((atomic_uint *)user, 1, memory_order_relaxed);
}

/* Everything that can be asked of a run, at any moment of its life, in any order. */
static void *ask(void *argument) {
    asker *self = argument;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        muster_run *run;
        muster_status status = muster_submit(self->fixture->runtime, self->graph, &run, NULL);
        if (status) self->worst = status;
        if (status) continue;
        for (uint32_t step = 0; step < 5; step++) {
            self->random = self->random * 6364136223846793005u + 1442695040888963407u;
            uint32_t draw = (uint32_t)(self->random >> 33);
            int fd;
            switch (draw % 6) {
                case 0: status = muster_run_on_complete(run, count_call, self->called, NULL); break;
                case 1: status = muster_run_completion_fd(run, &fd, NULL); break;
                case 2: status = muster_run_set_deadline(run, draw % 100000, NULL); break;
                case 3: status = muster_run_set_deadline(run, MUSTER_FOREVER, NULL); break;
                case 4: status = muster_run_cancel(run, NULL); break;
                default: muster_run_wait(run, draw % 50000, NULL); break;
            }
            if (status) self->worst = status;
            if (draw % 6 == 0) self->asked++;
        }
        muster_run_destroy(run);
    }
    return NULL;
}

static void everything_may_be_asked_at_any_moment(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *shared = fixture_buffer(&fixture, 400, NULL);
    pthread_t thread[THREADS];
    asker own[THREADS];
    atomic_uint called;
    atomic_init(&called, 0);
    uint32_t asked = 0;
    for (uint32_t t = 0; t < THREADS; t++) {
        muster_graph *graph = affine_graph(&fixture, fixture_buffer(&fixture, 400, NULL), 3);
        OK(muster_graph_fill(graph, shared, 100 * t, 100, t, 4, NULL, &reported));
        own[t] = (asker){&fixture, graph, t, t + 1, &called, 0, MUSTER_OK};
        assert_int_equal(pthread_create(&thread[t], NULL, ask, &own[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(thread[t], NULL);
        assert_int_equal(own[t].worst, MUSTER_OK);
        asked += own[t].asked;
    }
    fixture_close(&fixture);
    assert_int_equal(atomic_load(&called), asked);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadline_ends_a_run_that_waits_for_a_released_buffer),
        cmocka_unit_test(a_deadline_ends_a_run_that_waits_for_an_earlier_one),
        cmocka_unit_test(what_is_on_the_device_outlives_the_deadline),
        cmocka_unit_test(a_deadline_is_replaced_or_taken_away),
        cmocka_unit_test(of_cancel_and_deadline_the_first_counts),
        cmocka_unit_test(a_run_that_ends_in_time_leaves_no_deadline),
        cmocka_unit_test(callbacks_come_once_in_order_when_the_run_has_ended),
        cmocka_unit_test(a_callback_gets_the_status_that_wait_gives),
        cmocka_unit_test(a_callback_outlives_the_handle),
        cmocka_unit_test(a_callback_may_submit),
        cmocka_unit_test(the_runtime_waits_for_callbacks),
        cmocka_unit_test(a_descriptor_is_readable_once_the_run_has_ended),
        cmocka_unit_test(a_descriptor_of_an_ended_run_is_readable),
        cmocka_unit_test(a_descriptor_closes_with_the_handle_of_an_unfinished_run),
        cmocka_unit_test(no_descriptor_is_left),
        cmocka_unit_test(what_finds_no_memory_changes_nothing),
        cmocka_unit_test(everything_may_be_asked_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
