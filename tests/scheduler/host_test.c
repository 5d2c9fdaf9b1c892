/* The host thread: what is posted runs once, in order, on one thread of its own. */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

enum { POSTERS = 4, CALLS = MU_TSAN ? 2000 : 20000 };

/* What the host thread sees; not atomic, so that ThreadSanitizer would tell of a second thread. */
typedef struct record {
    uint32_t seen[POSTERS];
    uint32_t out_of_order;
    pthread_t thread;
    sem_t all;
    uint32_t left;
} record;

typedef struct numbered {
    mu_host_call call;
    record *record;
    uint32_t poster, number;
} numbered;

static void note(mu_host_call *call) {
    numbered *self = (numbered *)call;
    record *r = self->record;
    if (r->seen[self->poster]++ != self->number) r->out_of_order++;
    if (!pthread_equal(r->thread, pthread_self())) r->out_of_order++;
    if (--r->left == 0) sem_post(&r->all);
}

static void note_first(mu_host_call *call) {
    numbered *self = (numbered *)call;
    self->record->thread = pthread_self();
    note(call);
}

static void a_call_runs_on_a_thread_of_its_own(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    record record = {.left = 1};
    sem_init(&record.all, 0, 0);
    numbered one = {.call = {.run = note_first}, .record = &record};
    mu_host_post(fixture.runtime, &one.call);
    sem_wait(&record.all);
    assert_int_equal(record.out_of_order, 0);
    assert_false(pthread_equal(record.thread, pthread_self()));
    char name[16];
    assert_int_equal(pthread_getname_np(record.thread, name, sizeof name), 0);
    assert_string_equal(name, "muster-host");
    sem_destroy(&record.all);
    fixture_close(&fixture);
}

typedef struct poster {
    muster_runtime *runtime;
    numbered *calls;
} poster;

static void *post_all(void *argument) {
    poster *self = argument;
    for (uint32_t i = 0; i < CALLS; i++) mu_host_post(self->runtime, &self->calls[i].call);
    return NULL;
}

static void every_poster_is_served_in_its_order(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    record record = {.left = POSTERS * CALLS + 1};
    sem_init(&record.all, 0, 0);
    numbered first = {.call = {.run = note_first}, .record = &record};
    mu_host_post(fixture.runtime, &first.call);
    pthread_t threads[POSTERS];
    poster posters[POSTERS];
    numbered *calls = calloc(POSTERS * CALLS, sizeof *calls);
    assert_non_null(calls);
    for (uint32_t i = 0; i < POSTERS * CALLS; i++)
        calls[i] = (numbered){
            .call = {.run = note}, .record = &record, .poster = i / CALLS, .number = i % CALLS + (i / CALLS == 0)};
    for (uint32_t p = 0; p < POSTERS; p++) {
        posters[p] = (poster){fixture.runtime, calls + p * CALLS};
        assert_int_equal(pthread_create(&threads[p], NULL, post_all, &posters[p]), 0);
    }
    for (uint32_t p = 0; p < POSTERS; p++) pthread_join(threads[p], NULL);
    sem_wait(&record.all);
    assert_int_equal(record.out_of_order, 0);
    for (uint32_t p = 0; p < POSTERS; p++) assert_int_equal(record.seen[p], CALLS + (p == 0));
    free(calls);
    sem_destroy(&record.all);
    fixture_close(&fixture);
}

/* Runs `left` times, posting itself again. */
typedef struct rolling {
    mu_host_call call;
    muster_runtime *runtime;
    uint32_t left;
    atomic_uint *runs;
    sem_t *gate;
} rolling;

static void roll(mu_host_call *call) {
    rolling *self = (rolling *)call;
    if (self->gate) sem_wait(self->gate);
    self->gate = NULL;
    atomic_fetch_add(self->runs, 1);
    if (--self->left)
        mu_host_post(self->runtime, call);
    else
        free(self);
}

/* The calls are still held up when destroy begins, post themselves again meanwhile, and free themselves. */
static void destroying_the_runtime_runs_what_was_posted(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    atomic_uint runs = 0;
    sem_t gate;
    sem_init(&gate, 0, 0);
    for (int i = 0; i < 3; i++) {
        rolling *call = calloc(1, sizeof *call);
        assert_non_null(call);
        *call = (rolling){{.run = roll}, fixture.runtime, 100, &runs, i ? NULL : &gate};
        mu_host_post(fixture.runtime, &call->call);
    }
    sem_post(&gate);
    fixture_close(&fixture);
    assert_int_equal(runs, 300);
    sem_destroy(&gate);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_runs_on_a_thread_of_its_own),
        cmocka_unit_test(every_poster_is_served_in_its_order),
        cmocka_unit_test(destroying_the_runtime_runs_what_was_posted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
