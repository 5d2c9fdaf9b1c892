/* Watches: run when due, in the order of their times, once for each time they are set, and never after a cancel. */
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

#include "base/clock.h"
#include "base/sanitizer.h"
#include "scheduler/runtime/runtime.h"

/* Only its watches are used. */
static muster_runtime *runtime;

static int open_watches(void **state) {
    (void)state;
    runtime = calloc(1, sizeof *runtime);
    return !runtime || mu_watches_start(runtime, NULL);
}

static int close_watches(void **state) {
    (void)state;
    mu_watches_stop(runtime);
    mu_watches_stop(runtime); /* does nothing */
    free(runtime);
    return 0;
}

/* Keeps the watch thread inside a call until it is opened. */
typedef struct gate {
    mu_watch watch;
    sem_t entered, open;
    bool left; /* written by the call at its end, not atomic */
} gate;

static void stand_in_gate(mu_watch *watch) {
    gate *self = (gate *)watch;
    sem_post(&self->entered);
    sem_wait(&self->open);
    self->left = true;
}

static void close_gate(gate *self) {
    *self = (gate){.watch = {.run = stand_in_gate}};
    sem_init(&self->entered, 0, 0);
    sem_init(&self->open, 0, 0);
    mu_watch_set(runtime, &self->watch, 0);
    sem_wait(&self->entered);
}

static void open_gate(gate *self) {
    sem_post(&self->open);
    assert_false(mu_watch_cancel(runtime, &self->watch)); /* waits until the call has returned */
    assert_true(self->left);
    sem_destroy(&self->entered);
    sem_destroy(&self->open);
}

typedef struct noted {
    mu_watch watch;
    uint32_t number;
    uint64_t due_ns, ran_ns; /* ran_ns: of the last call */
    uint32_t runs;
} noted;

enum { MANY = 300 };
static uint32_t seen[MANY], seen_count; /* the watch thread's; read when it is known to have finished */

static void note(mu_watch *watch) {
    noted *self = (noted *)watch;
    self->ran_ns = mu_now_ns();
    self->runs++;
    seen[seen_count++ % MANY] = self->number;
}

static void finish(mu_watch *watch) {
    (void)watch;
    sem_post((sem_t *)(watch + 1));
}

/* Returns when everything that is due by now has run. */
static void let_run(void) {
    struct {
        mu_watch watch;
        sem_t done;
    } last = {.watch = {.run = finish}};
    sem_init(&last.done, 0, 0);
    mu_watch_set(runtime, &last.watch, mu_now_ns());
    sem_wait(&last.done);
    mu_watch_cancel(runtime, &last.watch);
    sem_destroy(&last.done);
}

static void a_watch_runs_once_and_not_before_its_time(void **state) {
    (void)state;
    for (uint64_t ahead_ns = 0; ahead_ns <= 4000000; ahead_ns += 2000000) {
        struct {
            mu_watch watch;
            sem_t done;
        } due = {.watch = {.run = finish}};
        sem_init(&due.done, 0, 0);
        uint64_t due_ns = mu_now_ns() + ahead_ns;
        mu_watch_set(runtime, &due.watch, due_ns);
        sem_wait(&due.done);
        assert_true(mu_now_ns() >= due_ns);
        let_run();
        assert_int_equal(sem_trywait(&due.done), -1);
        assert_false(mu_watch_cancel(runtime, &due.watch)); /* it has run */
        sem_destroy(&due.done);
    }
}

static void due_watches_run_in_the_order_of_their_times(void **state) {
    (void)state;
    static noted watches[MANY];
    for (uint32_t seed = 1; seed <= 8; seed++) {
        gate gate;
        close_gate(&gate);
        seen_count = 0;
        uint64_t draw = seed;
        bool kept[MANY];
        /* Times 1 to MANY, in the order of a full cycle through them; a third is moved, and a third of all cancelled. */
        for (uint32_t i = 0, at = seed; i < MANY; i++, at = (at + 77) % MANY) {
            watches[at] = (noted){.watch = {.run = note}, .number = at};
            bool moved = (draw = draw * 6364136223846793005u + 1442695040888963407u) >> 62 == 0;
            mu_watch_set(runtime, &watches[at].watch, moved ? 1 + (draw >> 40) % MANY : 1 + at);
            if (moved) mu_watch_set(runtime, &watches[at].watch, 1 + at);
        }
        for (uint32_t i = 0; i < MANY; i++) {
            draw = draw * 6364136223846793005u + 1442695040888963407u;
            kept[i] = (draw >> 60) % 3 != 0;
            if (kept[i]) continue;
            assert_true(mu_watch_cancel(runtime, &watches[i].watch));
            assert_false(mu_watch_cancel(runtime, &watches[i].watch));
        }
        open_gate(&gate);
        let_run();
        uint32_t position = 0;
        for (uint32_t i = 0; i < MANY; i++) {
            assert_int_equal(watches[i].runs, kept[i]);
            if (kept[i]) assert_int_equal(seen[position++], i);
        }
        assert_int_equal(seen_count, position);
    }
}

static void what_is_never_due_does_not_run(void **state) {
    (void)state;
    noted never = {.watch = {.run = note}}, later = {.watch = {.run = note}};
    gate gate;
    close_gate(&gate);
    mu_watch_set(runtime, &never.watch, 0);
    mu_watch_set(runtime, &never.watch, UINT64_MAX);
    mu_watch_set(runtime, &later.watch, mu_now_ns() + 3600000000000u);
    open_gate(&gate);
    let_run();
    assert_false(mu_watch_cancel(runtime, &never.watch));
    assert_true(mu_watch_cancel(runtime, &later.watch));
    assert_int_equal(never.runs + later.runs, 0);
    mu_watch_set(runtime, &later.watch, mu_now_ns() + 3600000000000u);
    mu_watch_set(runtime, &later.watch, 0); /* earlier after all */
    let_run();
    assert_int_equal(later.runs, 1);
}

static void *cancel_gate(void *argument) {
    gate *self = argument;
    mu_watch_cancel(runtime, &self->watch);
    return self->left ? self : NULL;
}

static void cancelling_waits_for_the_call_to_return(void **state) {
    (void)state;
    gate gate;
    pthread_t thread[3];
    void *result;
    close_gate(&gate);
    for (int t = 0; t < 3; t++) assert_int_equal(pthread_create(&thread[t], NULL, cancel_gate, &gate), 0);
    for (uint32_t waiting = 0; waiting < 3; sched_yield()) {
        pthread_mutex_lock(&runtime->watches.lock);
        waiting = runtime->watches.waiting;
        pthread_mutex_unlock(&runtime->watches.lock);
    }
    open_gate(&gate);
    for (int t = 0; t < 3; t++) {
        pthread_join(thread[t], &result);
        assert_ptr_equal(result, &gate);
    }
}

typedef struct repeated {
    mu_watch watch;
    uint32_t left;
    bool cancelled;
    sem_t *done;
} repeated;

static void run_again(mu_watch *watch) {
    repeated *self = (repeated *)watch;
    if (self->left--) {
        mu_watch_set(runtime, watch, mu_now_ns() + (self->left % 3) * 10000);
        return;
    }
    mu_watch_set(runtime, watch, 0);
    self->cancelled = mu_watch_cancel(runtime, watch); /* its own: does not wait for itself */
    sem_t *done = self->done;
    if (!self->cancelled) abort();
    free(self);
    sem_post(done);
}

static void a_watch_may_set_cancel_and_free_itself(void **state) {
    (void)state;
    sem_t done;
    sem_init(&done, 0, 0);
    repeated *self = calloc(1, sizeof *self);
    assert_non_null(self);
    *self = (repeated){.watch = {.run = run_again}, .left = 50, .done = &done};
    mu_watch_set(runtime, &self->watch, mu_now_ns());
    sem_wait(&done);
    let_run();
    sem_destroy(&done);
}

/* ---------------------------------------------------------------------------------------------------------- threads -- */

enum { THREADS = 4, OWN = 16, ROUNDS = MU_TSAN ? 2000 : 20000, FORCE_EVERY = 500 };

typedef struct last_one {
    mu_watch watch;
    sem_t ran;
} last_one;

typedef struct setter {
    uint32_t seed;
    uint64_t set, cancelled;
    noted watches[OWN];
    last_one last;
} setter;

static void count(mu_watch *watch) { ((noted *)watch)->runs++; }
static void tell(mu_watch *watch) { sem_post(&((last_one *)watch)->ran); }

/* The watch runs once, however slow the machine is, and is cancelled once. */
static void run_and_cancel(setter *self, noted *one) {
    uint64_t now = mu_now_ns();
    mu_watch_set(runtime, &one->watch, now);
    mu_watch_set(runtime, &self->last.watch, now + 1); /* runs behind it */
    sem_wait(&self->last.ran);
    mu_watch_set(runtime, &one->watch, MUSTER_FOREVER - 1);
    self->set += 2;
    self->cancelled += mu_watch_cancel(runtime, &one->watch);
}

/* Every time a watch is set it runs, or is cancelled, or is replaced: the thread knows of the last two. `runs` is not atomic:
 * the cancel orders it. */
static void *set_and_cancel(void *argument) {
    setter *self = argument;
    uint64_t draw = self->seed;
    for (int i = 0; i < OWN; i++) self->watches[i] = (noted){.watch = {.run = count}};
    self->last.watch = (mu_watch){.run = tell};
    sem_init(&self->last.ran, 0, 0);
    for (int round = 0; round < ROUNDS; round++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        noted *one = &self->watches[(draw >> 33) % OWN];
        if (mu_watch_cancel(runtime, &one->watch)) self->cancelled++;
        if (round % FORCE_EVERY == 0) run_and_cancel(self, one);
        mu_watch_set(runtime, &one->watch, mu_now_ns() + (draw >> 40) % 200000);
        self->set++;
    }
    for (int i = 0; i < OWN; i++)
        if (mu_watch_cancel(runtime, &self->watches[i].watch)) self->cancelled++;
    mu_watch_cancel(runtime, &self->last.watch); /* its call has returned then */
    sem_destroy(&self->last.ran);
    return NULL;
}

static void every_setting_runs_or_is_cancelled(void **state) {
    (void)state;
    static setter own[THREADS];
    pthread_t thread[THREADS];
    for (uint32_t t = 0; t < THREADS; t++) {
        own[t] = (setter){.seed = t + 1};
        assert_int_equal(pthread_create(&thread[t], NULL, set_and_cancel, &own[t]), 0);
    }
    uint64_t runs = 0, set = 0, cancelled = 0;
    for (int t = 0; t < THREADS; t++) {
        pthread_join(thread[t], NULL);
        set += own[t].set;
        cancelled += own[t].cancelled;
        for (int i = 0; i < OWN; i++) runs += own[t].watches[i].runs;
    }
    assert_int_equal(set, runs + cancelled);
    assert_true(runs >= THREADS * ROUNDS / FORCE_EVERY && cancelled >= THREADS * ROUNDS / FORCE_EVERY);
}

/* Each thread moves watches of all without cancelling. */
static noted shared_watches[OWN];

static void *move(void *argument) {
    uint64_t draw = *(const uint32_t *)argument;
    for (int round = 0; round < ROUNDS; round++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        mu_watch_set(runtime, &shared_watches[(draw >> 33) % OWN].watch, mu_now_ns() + (draw >> 40) % 100000);
    }
    return NULL;
}

static void threads_may_set_the_same_watches(void **state) {
    (void)state;
    pthread_t thread[THREADS];
    uint32_t seeds[THREADS];
    for (int i = 0; i < OWN; i++) shared_watches[i] = (noted){.watch = {.run = count}};
    for (uint32_t t = 0; t < THREADS; t++) {
        seeds[t] = t + 100;
        assert_int_equal(pthread_create(&thread[t], NULL, move, &seeds[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) pthread_join(thread[t], NULL);
    for (int i = 0; i < OWN; i++) mu_watch_set(runtime, &shared_watches[i].watch, 0);
    let_run();
    for (int i = 0; i < OWN; i++) {
        assert_false(mu_watch_cancel(runtime, &shared_watches[i].watch));
        assert_int_not_equal(shared_watches[i].runs, 0);
    }
}

static void stopping_leaves_what_is_set(void **state) {
    (void)state;
    noted later = {.watch = {.run = note}};
    mu_watch_set(runtime, &later.watch, mu_now_ns() + 3600000000000u);
    mu_watches_stop(runtime);
    assert_int_equal(later.runs, 0);
    assert_true(later.watch.set);
}

int main(void) {
#define WATCH_TEST(name) cmocka_unit_test_setup_teardown(name, open_watches, close_watches)
    const struct CMUnitTest tests[] = {
        WATCH_TEST(a_watch_runs_once_and_not_before_its_time),
        WATCH_TEST(due_watches_run_in_the_order_of_their_times),
        WATCH_TEST(what_is_never_due_does_not_run),
        WATCH_TEST(cancelling_waits_for_the_call_to_return),
        WATCH_TEST(a_watch_may_set_cancel_and_free_itself),
        WATCH_TEST(every_setting_runs_or_is_cancelled),
        WATCH_TEST(threads_may_set_the_same_watches),
        WATCH_TEST(stopping_leaves_what_is_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
