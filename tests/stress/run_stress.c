/* Many threads that do everything there is to do with the same runs, at once.
 *
 *     run_stress [--threads T] [--steps N] [--seconds S] [--devices D] [--seed X]
 *
 * Without arguments: 6 threads with 1,500 steps each (200 under a sanitizer) on 3 simulated devices. With --seconds every thread
 * goes on until that time is over, whatever --steps says.
 *
 * There are a few places for runs, which all threads use: a thread takes a run from its place and cancels it, gives it a deadline,
 * waits for it, asks for a callback or a descriptor, looks at results, adds graphs to it or closes it when it is an open one, or
 * puts another in its place; the last thread that has a run destroys it. Others acquire the buffers meanwhile. What must hold: a run
 * whose end was waited for reports what its jobs report; callbacks come once each; and nothing is left in the end, neither work nor
 * memory, and all buffers are as good as new. At most QUEUED jobs are under way, so that runs end while somebody has them. */
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/sanitizer.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

enum { MAX_THREADS = 64, PLACES = 5, BUFFERS = 4, GRAPHS = 8, JOBS = 5, QUEUED = 100 };

static struct {
    uint32_t threads, steps, devices;
    uint64_t seconds, seed;
} option = {.threads = 6, .steps = MU_TSAN || MU_ASAN ? 200 : 1500, .devices = 3, .seed = 1};

/* A run that threads share. */
typedef struct entry {
    muster_run *run;
    uint32_t users; /* under its place's lock while the place has it; the last one destroys the run */
    pthread_mutex_t lock;
    bool open;
} entry;

typedef struct place {
    pthread_mutex_t lock;
    entry *entry;
} place;

typedef struct shared {
    fixture fixture;
    muster_buffer *buffer[BUFFERS];
    muster_graph *graph[GRAPHS];
    place places[PLACES];
    uint64_t end_ns; /* 0: by number of steps */
    atomic_uint_fast64_t called;
} shared;

typedef struct worker {
    shared *shared;
    uint64_t random;
    uint32_t index;
    uint64_t steps, asked, runs, waited, failed;
    char failure[256];
} worker;

static uint32_t below(worker *self, uint32_t bound) {
    self->random = self->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(self->random >> 33) % bound;
}

static void complain(worker *self, const char *what, uint64_t value) {
    if (self->failure[0]) return;
    snprintf(self->failure, sizeof self->failure, "thread %" PRIu32 ", step %" PRIu64 ": %s, %" PRIu64, self->index,
             self->steps, what, value);
}

static void expect(worker *self, const char *what, bool holds, uint64_t value) {
    if (!holds) complain(self, what, value);
}

/* ------------------------------------------------------------------------------------------------------------ runs -- */

static void drop(entry *one) {
    pthread_mutex_lock(&one->lock);
    bool last = --one->users == 0;
    pthread_mutex_unlock(&one->lock);
    if (!last) return;
    muster_run_destroy(one->run);
    pthread_mutex_destroy(&one->lock);
    free(one);
}

static entry *take(place *place) {
    pthread_mutex_lock(&place->lock);
    entry *one = place->entry;
    if (one) {
        pthread_mutex_lock(&one->lock);
        one->users++;
        pthread_mutex_unlock(&one->lock);
    }
    pthread_mutex_unlock(&place->lock);
    return one;
}

static void replace(worker *self, place *place) {
    muster_runtime *runtime = self->shared->fixture.runtime;
    entry *one = calloc(1, sizeof *one);
    if (!one) return;
    one->users = 1;
    one->open = below(self, 3) == 0;
    pthread_mutex_init(&one->lock, NULL);
    muster_status status = one->open
                               ? muster_run_open(runtime, &one->run, NULL)
                               : muster_submit(runtime, self->shared->graph[below(self, GRAPHS)], &one->run, NULL);
    expect(self, "a run cannot be made", status == MUSTER_OK || status == MUSTER_QUEUE_FULL, status);
    if (status) {
        pthread_mutex_destroy(&one->lock);
        free(one);
        sched_yield();
        return;
    }
    pthread_mutex_lock(&place->lock);
    entry *old = place->entry;
    place->entry = one;
    pthread_mutex_unlock(&place->lock);
    if (old) drop(old);
    self->runs++;
}

static bool is_ending(muster_status status) { return status == MUSTER_CANCELLED || status == MUSTER_DEADLINE_PASSED; }

/* A run that has ended says what its jobs say. */
static void check_ended(worker *self, const entry *one, muster_status status, const muster_error *error) {
    muster_job_result result = {.struct_size = sizeof result};
    muster_job failed = MUSTER_NO_JOB;
    self->waited++;
    self->failed += status != MUSTER_OK;
    muster_status seen;
    for (muster_job job = 0; (seen = muster_run_job_result(one->run, job, &result, NULL)) == MUSTER_OK; job++) {
        if (!result.status || result.status == MUSTER_PREDECESSOR_FAILED) continue;
        expect(self, "a job's status", is_ending(result.status) || result.status == MUSTER_DATA_UNDEFINED,
               result.status);
        if (failed == MUSTER_NO_JOB) failed = job;
        if (failed == job) expect(self, "the first failure's status", status == result.status, result.status);
    }
    expect(self, "what ends the jobs of an ended run", seen == MUSTER_OUT_OF_RANGE, seen);
    if (status) expect(self, "the first failure's job", error->job == failed, failed);
    if (!status) expect(self, "a failure in a run that succeeded", failed == MUSTER_NO_JOB, failed);
}

static void count_call(void *user, muster_run *run, muster_status status) {
    shared *all = user;
    (void)run;
    (void)status;
    atomic_fetch_add_explicit(&all->called, 1, memory_order_relaxed);
}

static void look_at_descriptor(worker *self, entry *one) {
    struct pollfd fd = {.events = POLLIN};
    muster_status status = muster_run_completion_fd(one->run, &fd.fd, NULL);
    expect(self, "a descriptor", status == MUSTER_OK, status);
    int ready = status ? 0 : poll(&fd, 1, (int)below(self, 2));
    if (ready == 1) {
        status = muster_run_wait(one->run, 0, NULL);
        expect(self, "a descriptor is readable before the end", status != MUSTER_TIMEOUT, status);
    }
}

static void add(worker *self, entry *one) {
    muster_job first = MUSTER_NO_JOB;
    muster_status status = muster_run_add(one->run, self->shared->graph[below(self, GRAPHS)], &first, NULL);
    if (!one->open || status == MUSTER_INVALID_STATE)
        expect(self, "adding to what takes none", status == MUSTER_INVALID_STATE, status);
    else
        expect(self, "adding", status == MUSTER_OK || status == MUSTER_QUEUE_FULL || is_ending(status), status);
    if (!status) expect(self, "the number of the first job", first % JOBS == 0, first);
}

/* While it has the buffer, runs that use it wait: those that it makes now are ended before their turn, or not. */
static void lend(worker *self) {
    muster_buffer *buffer = self->shared->buffer[below(self, BUFFERS)];
    void *pointer;
    muster_access access = below(self, 2) ? MUSTER_READ : MUSTER_WRITE;
    uint64_t timeout_ns = below(self, 2) ? below(self, 2000000) : fixture_wait_ns;
    muster_status status = muster_buffer_acquire(buffer, 0, 0, access, timeout_ns, &pointer, NULL);
    if (status == MUSTER_OK) {
        if (access == MUSTER_WRITE) memset(pointer, 0, muster_buffer_bytes(buffer));
        for (uint32_t more = below(self, 4); more; more--) {
            place *place = &self->shared->places[below(self, PLACES)];
            replace(self, place);
            entry *one = below(self, 2) ? take(place) : NULL;
            if (!one) continue;
            status = below(self, 2) ? muster_run_cancel(one->run, NULL)
                                    : muster_run_set_deadline(one->run, below(self, 20000), NULL);
            expect(self, "ending a run", status == MUSTER_OK, status);
            drop(one);
        }
        status = muster_buffer_release(buffer, pointer, NULL);
        expect(self, "releasing", status == MUSTER_OK, status);
    } else {
        expect(self, "acquiring",
               (status == MUSTER_TIMEOUT && timeout_ns != fixture_wait_ns) || status == MUSTER_DATA_UNDEFINED, status);
    }
}

static void step(worker *self) {
    place *place = &self->shared->places[below(self, PLACES)];
    uint32_t what = below(self, 24);
    self->steps++;
    if (what < 5) {
        replace(self, place);
        return;
    }
    if (what == 5) {
        lend(self);
        return;
    }
    entry *one = take(place);
    if (!one) return;
    muster_status status = MUSTER_OK;
    muster_error error = {0};
    switch (what) {
        case 6: status = muster_run_cancel(one->run, NULL); break;
        case 7: status = muster_run_set_deadline(one->run, below(self, 1000000), NULL); break;
        case 8: status = muster_run_set_deadline(one->run, below(self, 2) ? MUSTER_FOREVER : 0, NULL); break;
        case 9:
        case 10:
            status = muster_run_on_complete(one->run, count_call, self->shared, NULL);
            self->asked += status == MUSTER_OK;
            break;
        case 11: look_at_descriptor(self, one); break;
        case 12:
        case 13:
        case 14:
        case 15: add(self, one); break;
        case 16:
            if (one->open) status = muster_run_close(one->run, NULL);
            break;
        case 17:
            if (one->open) status = muster_run_close(one->run, NULL);
            /* fallthrough */
        default: {
            muster_status end = muster_run_wait(one->run, below(self, 3000000), &error);
            if (end != MUSTER_TIMEOUT) check_ended(self, one, end, &error);
        }
    }
    expect(self, "a call on a run", status == MUSTER_OK, status);
    drop(one);
}

static void *work(void *argument) {
    worker *self = argument;
    while (!self->failure[0] &&
           (self->shared->end_ns ? mu_now_ns() < self->shared->end_ns : self->steps < option.steps))
        step(self);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------------ whole -- */

/* Every graph has as many jobs, some of which define what they write whatever was there. */
static void make_graphs(shared *all) {
    worker draw = {.random = option.seed};
    for (uint32_t b = 0; b < BUFFERS; b++) all->buffer[b] = fixture_buffer(&all->fixture, 256 << 2 * b, NULL);
    for (uint32_t g = 0; g < GRAPHS; g++) {
        all->graph[g] = fixture_graph(&all->fixture);
        for (uint32_t job = 0; job < JOBS; job++) {
            muster_buffer *buffer = all->buffer[(g + below(&draw, 2)) % BUFFERS];
            if (below(&draw, 3) == 0)
                OK(muster_graph_fill(all->graph[g], buffer, 0, muster_buffer_bytes(buffer), job, 4, NULL, &reported));
            else
                fixture_affine(&all->fixture, all->graph[g], buffer, 3, job);
        }
    }
}

static void buffers_are_as_good_as_new(shared *all) {
    for (uint32_t b = 0; b < BUFFERS; b++) {
        uint64_t bytes = muster_buffer_bytes(all->buffer[b]);
        muster_graph *graph = fixture_graph(&all->fixture);
        OK(muster_graph_fill(graph, all->buffer[b], 0, bytes, b, 4, NULL, &reported));
        fixture_affine(&all->fixture, graph, all->buffer[b], 5, 1);
        fixture_run(&all->fixture, graph);
        assert_int_equal(fixture_word(all->buffer[b], 0), 5 * b + 1);
        assert_int_equal(fixture_word(all->buffer[b], bytes / 4 - 1), 5 * b + 1);
        muster_graph_destroy(graph);
    }
}

static void everything_is_done_to_the_same_runs(void **state) {
    (void)state;
    static shared all;
    static worker workers[MAX_THREADS];
    pthread_t thread[MAX_THREADS];
    uint64_t asked = 0, runs = 0, waited = 0, failed = 0;
    fixture_count_memory();
    muster_config config = {.struct_size = sizeof config, .max_queued_jobs = QUEUED};
    fixture_open_with(&all.fixture, option.devices, &config);
    atomic_init(&all.called, 0);
    make_graphs(&all);
    for (uint32_t p = 0; p < PLACES; p++) pthread_mutex_init(&all.places[p].lock, NULL);
    all.end_ns = option.seconds ? mu_now_ns() + option.seconds * 1000000000u : 0;
    for (uint32_t t = 0; t < option.threads; t++) {
        workers[t] = (worker){.shared = &all, .random = option.seed * 1000 + t, .index = t};
        assert_int_equal(pthread_create(&thread[t], NULL, work, &workers[t]), 0);
    }
    for (uint32_t t = 0; t < option.threads; t++) {
        pthread_join(thread[t], NULL);
        asked += workers[t].asked;
        runs += workers[t].runs;
        waited += workers[t].waited;
        failed += workers[t].failed;
    }
    for (uint32_t t = 0; t < option.threads; t++)
        if (workers[t].failure[0]) fail_msg("%s", workers[t].failure);
    for (uint32_t p = 0; p < PLACES; p++) {
        if (all.places[p].entry) drop(all.places[p].entry);
        pthread_mutex_destroy(&all.places[p].lock);
    }
    /* Runs that were destroyed before their end are still on their way. */
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    while (atomic_load_explicit(&all.fixture.runtime->queued_jobs, memory_order_acquire) && mu_now_ns() < deadline)
        sched_yield();
    assert_int_equal(atomic_load_explicit(&all.fixture.runtime->queued_jobs, memory_order_acquire), 0);
    buffers_are_as_good_as_new(&all);
    fixture_close(&all.fixture);
    assert_int_equal(atomic_load_explicit(&all.called, memory_order_relaxed), asked);
    assert_int_equal(fixture_live_blocks(), 0);
    print_message("%" PRIu64 " runs, %" PRIu64 " callbacks, %" PRIu64 " ends waited for, %" PRIu64
                  " of them failures\n",
                  runs, asked, waited, failed);
    assert_true(waited > failed);
}

static bool number(const char *text, uint64_t low, uint64_t high, uint64_t *value) {
    char *end;
    *value = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && *value >= low && *value <= high;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        uint64_t value = 0;
        bool given = i + 1 < argc;
        if (given && strcmp(argv[i], "--threads") == 0 && number(argv[i + 1], 1, MAX_THREADS, &value)) {
            option.threads = (uint32_t)value;
        } else if (given && strcmp(argv[i], "--steps") == 0 && number(argv[i + 1], 1, UINT32_MAX, &value)) {
            option.steps = (uint32_t)value;
        } else if (given && strcmp(argv[i], "--devices") == 0 && number(argv[i + 1], 1, 16, &value)) {
            option.devices = (uint32_t)value;
        } else if (given && strcmp(argv[i], "--seconds") == 0 && number(argv[i + 1], 1, 1000000, &value)) {
            option.seconds = value;
        } else if (given && strcmp(argv[i], "--seed") == 0 && number(argv[i + 1], 0, UINT32_MAX, &value)) {
            option.seed = value;
        } else {
            fprintf(stderr, "usage: run_stress [--threads T] [--steps N] [--seconds S] [--devices D] [--seed X]\n");
            return 2;
        }
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything_is_done_to_the_same_runs)};
    return cmocka_run_group_tests_name("run stress", tests, NULL, NULL);
}
