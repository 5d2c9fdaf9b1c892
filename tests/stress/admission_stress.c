/* Many threads whose jobs together need far more memory than the devices may use.
 *
 *     admission_stress [--threads T] [--seconds S] [--devices D] [--seed X]
 *
 * Without arguments: 8 threads for 5 seconds on 4 simulated devices, which is what a test run does; an hour is --seconds 3600.
 *
 * Each thread has buffers of random sizes up to nearly the budget of a device, and jobs over one or two of them: some wait, some
 * push the data of others out, some can never fit, which preflight knows beforehand. Each job that changes a buffer adds one to
 * its first words, so that a job that is lost or runs twice shows; all threads also add to one shared buffer. Another thread
 * watches the ledgers: at no instant is more committed than the budget. At the end each is back where it began. */
#include <inttypes.h>
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
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

enum { MAX_THREADS = 64, OWN = 3, OUTSTANDING = 4, WORDS = 16, MIB = 1 << 20, BUDGET = 8 * MIB };

static struct {
    uint32_t threads, devices;
    uint64_t seconds, seed;
} option = {.threads = 8, .devices = 4, .seconds = 5, .seed = 1};

typedef struct shared {
    fixture fixture;
    muster_kernel *affine, *nothing;
    muster_buffer *sum;
    uint64_t end_ns;
    atomic_bool stop; /* relaxed: the watcher looks again soon */
    uint64_t looks, over, highest;
} shared;

typedef struct worker {
    shared *shared;
    uint64_t random;
    uint32_t index;
    muster_buffer *own[OWN];
    uint32_t added[OWN], added_to_sum;
    struct {
        muster_run *run;
        muster_status wanted;
    } outstanding[OUTSTANDING];
    uint64_t submitted, refused;
    char failure[320];
} worker;

static uint32_t below(worker *self, uint32_t bound) {
    self->random = self->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(self->random >> 33) % bound;
}

static bool expect(worker *self, const char *what, muster_status status, muster_status wanted,
                   const muster_error *error) {
    if (status == wanted) return true;
    if (!self->failure[0])
        snprintf(self->failure, sizeof self->failure, "thread %" PRIu32 ", run %" PRIu64 ": %s: %s, not %s: %.160s",
                 self->index, self->submitted, what, muster_status_name(status), muster_status_name(wanted),
                 status ? error->message : "");
    return false;
}

/* A buffer of zeros of any size that fits; large ones are charged in steps of 2 MiB. */
static bool new_buffer(worker *self, uint32_t i) {
    muster_error error = {0};
    uint64_t bytes = 4 * (WORDS + (uint64_t)below(self, (BUDGET - 2 * MIB) / 4 - WORDS));
    self->added[i] = 0;
    return expect(self, "creating a buffer",
                  muster_buffer_create(self->shared->fixture.runtime, bytes, NULL, &self->own[i], &error), MUSTER_OK,
                  &error);
}

/* Adds one to the first words. */
static muster_status add_one(worker *self, muster_graph *graph, muster_buffer *buffer, muster_error *error) {
    muster_dispatch dispatch = fixture_dispatch(self->shared->affine, 1, WORDS,
                                                ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(1),
                                                     muster_u32_arg(1), muster_u32_arg(WORDS)));
    return muster_graph_dispatch(graph, &dispatch, NULL, error);
}

/* Needs both at once and changes neither. */
static muster_status add_both(worker *self, muster_graph *graph, uint32_t a, uint32_t b, muster_error *error) {
    muster_dispatch dispatch = fixture_dispatch(
        self->shared->nothing, 1, 1,
        ARGS(muster_buffer_arg(self->own[a], MUSTER_READ), muster_buffer_arg(self->own[b], MUSTER_READ)));
    return muster_graph_dispatch(graph, &dispatch, NULL, error);
}

static bool finish(worker *self, uint32_t slot) {
    muster_error error = {0};
    muster_run *run = self->outstanding[slot].run;
    self->outstanding[slot].run = NULL;
    if (!run) return true;
    bool ok = expect(self, "waiting", muster_run_wait(run, 2 * fixture_wait_ns, &error), self->outstanding[slot].wanted,
                     &error);
    muster_run_destroy(run);
    return ok;
}

static bool new_run(worker *self) {
    muster_runtime *runtime = self->shared->fixture.runtime;
    muster_error error = {0};
    muster_graph *graph;
    muster_preflight_report report = {.struct_size = sizeof report};
    uint32_t a = below(self, OWN), b = (a + 1) % OWN, slot = (uint32_t)(self->submitted % OUTSTANDING);
    if (!finish(self, slot)) return false;
    if (!expect(self, "creating a graph", muster_graph_create(runtime, &graph, &error), MUSTER_OK, &error))
        return false;
    muster_status status;
    switch (below(self, 4)) {
        case 0: status = add_both(self, graph, a, b, &error); break;
        case 1:
            self->added_to_sum++;
            status = add_one(self, graph, self->shared->sum, &error);
            if (status) break;
            /* fallthrough */
        default: self->added[a]++; status = add_one(self, graph, self->own[a], &error);
    }
    bool ok = expect(self, "adding a job", status, MUSTER_OK, &error) &&
              expect(self, "preflight", muster_preflight(graph, 0, 0, MUSTER_PREFLIGHT_CHEAP, &report, &error),
                     MUSTER_OK, &error) &&
              expect(self, "submitting", muster_submit(runtime, graph, &self->outstanding[slot].run, &error), MUSTER_OK,
                     &error);
    self->outstanding[slot].wanted = report.status;
    self->refused += report.status != MUSTER_OK;
    self->submitted++;
    muster_graph_destroy(graph);
    return ok;
}

static bool check_buffer(worker *self, muster_buffer *buffer, uint32_t wanted) {
    muster_error error = {0};
    void *pointer;
    if (!expect(self, "acquiring",
                muster_buffer_acquire(buffer, 0, 4 * WORDS, MUSTER_READ, 2 * fixture_wait_ns, &pointer, &error),
                MUSTER_OK, &error))
        return false;
    uint32_t first = ((uint32_t *)pointer)[0], last = ((uint32_t *)pointer)[WORDS - 1];
    if ((first != wanted || last != wanted) && !self->failure[0])
        snprintf(self->failure, sizeof self->failure,
                 "thread %" PRIu32 ": %" PRIu32 " and %" PRIu32 " jobs ran, not %" PRIu32, self->index, first, last,
                 wanted);
    return expect(self, "releasing", muster_buffer_release(buffer, pointer, &error), MUSTER_OK, &error) &&
           !self->failure[0];
}

static void *work(void *argument) {
    worker *self = argument;
    bool ok = true;
    for (uint32_t i = 0; ok && i < OWN; i++) ok = new_buffer(self, i);
    while (ok && mu_now_ns() < self->shared->end_ns) {
        ok = new_run(self);
        if (!ok || below(self, 20)) continue;
        /* Another size now and then; its jobs may still be on their way. */
        uint32_t i = below(self, OWN);
        ok = check_buffer(self, self->own[i], self->added[i]);
        muster_buffer_destroy(self->own[i]);
        self->own[i] = NULL;
        ok = ok && new_buffer(self, i);
    }
    for (uint32_t slot = 0; slot < OUTSTANDING; slot++) ok &= finish(self, slot);
    for (uint32_t i = 0; i < OWN; i++) {
        if (ok && self->own[i]) ok = check_buffer(self, self->own[i], self->added[i]);
        muster_buffer_destroy(self->own[i]);
    }
    return NULL;
}

static uint64_t committed(const shared *all, uint32_t device) {
    const mu_ledger *ledger = mu_device_ledger(all->fixture.runtime->actors[device].device);
    return atomic_load_explicit(&ledger->committed, memory_order_relaxed);
}

/* One atomic counter holds what is in use, reserved and fixed: a look at it is exact. */
static void *watch(void *argument) {
    shared *all = argument;
    while (!atomic_load_explicit(&all->stop, memory_order_relaxed)) {
        for (uint32_t d = 0; d < option.devices; d++) {
            uint64_t now = committed(all, d);
            if (now > all->highest) all->highest = now;
            all->over += now > BUDGET;
            all->looks++;
        }
        if (all->looks % 64 == 0) sched_yield();
    }
    return NULL;
}

static void the_budget_holds_and_no_job_is_lost(void **state) {
    (void)state;
    static shared all;
    static worker workers[MAX_THREADS];
    pthread_t threads[MAX_THREADS], watcher;
    uint64_t begun[MU_MAX_DEVICES], runs = 0, refused = 0, total = 0;
    muster_config config = {
        .struct_size = sizeof config, .budget_bytes = BUDGET, .admission_wait_ns = 2 * fixture_wait_ns};
    fixture_open_with(&all.fixture, option.devices, &config);
    all.affine = fixture_kernel(&all.fixture, "affine");
    all.nothing = fixture_kernel(&all.fixture, "nothing");
    for (uint32_t d = 0; d < option.devices; d++) begun[d] = committed(&all, d);
    all.sum = fixture_buffer(&all.fixture, 4 * WORDS, NULL);
    all.end_ns = mu_now_ns() + option.seconds * 1000000000u;
    assert_int_equal(pthread_create(&watcher, NULL, watch, &all), 0);
    for (uint32_t i = 0; i < option.threads; i++) {
        workers[i] = (worker){.shared = &all, .random = option.seed * 1000 + i, .index = i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < option.threads; i++) {
        pthread_join(threads[i], NULL);
        runs += workers[i].submitted;
        refused += workers[i].refused;
        total += workers[i].added_to_sum;
    }
    atomic_store_explicit(&all.stop, true, memory_order_relaxed);
    pthread_join(watcher, NULL);
    for (uint32_t i = 0; i < option.threads; i++)
        if (workers[i].failure[0]) fail_msg("%s", workers[i].failure);
    assert_int_equal(fixture_word(all.sum, WORDS - 1), (uint32_t)total);
    if (all.over)
        fail_msg("%" PRIu64 " of %" PRIu64 " looks found more committed than the budget", all.over, all.looks);
    muster_buffer_destroy(all.sum);
    uint64_t waits = 0, deadline = mu_deadline_ns(fixture_wait_ns);
    for (uint32_t d = 0; d < option.devices; d++) {
        /* Buffers go once their workers have been told. */
        while (committed(&all, d) != begun[d]) {
            if (mu_now_ns() > deadline)
                fail_msg("device %" PRIu32 ": %" PRIu64 " bytes committed at the end, %" PRIu64 " at the start", d,
                         committed(&all, d), begun[d]);
            sched_yield();
        }
        muster_device_stats stats = {.struct_size = sizeof stats};
        OK(muster_device_get_stats(all.fixture.runtime, (int)d, &stats, &reported));
        waits += stats.admission_waits;
    }
    print_message("%" PRIu64 " runs, %" PRIu64 " never fit, %" PRIu64 " jobs waited for memory; at most %" PRIu64
                  " of %d bytes in %" PRIu64 " looks\n",
                  runs, refused, waits, all.highest, BUDGET, all.looks);
    assert_true(runs > refused);
    fixture_close(&all.fixture);
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
        } else if (given && strcmp(argv[i], "--devices") == 0 && number(argv[i + 1], 1, 16, &value)) {
            option.devices = (uint32_t)value;
        } else if (given && strcmp(argv[i], "--seconds") == 0 && number(argv[i + 1], 1, 1000000, &value)) {
            option.seconds = value;
        } else if (given && strcmp(argv[i], "--seed") == 0 && number(argv[i + 1], 0, UINT32_MAX, &value)) {
            option.seed = value;
        } else {
            fprintf(stderr, "usage: admission_stress [--threads T] [--seconds S] [--devices D] [--seed X]\n");
            return 2;
        }
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_budget_holds_and_no_job_is_lost)};
    return cmocka_run_group_tests_name("admission stress", tests, NULL, NULL);
}
