/* The order of runs against a model: whoever shares a buffer and is not only reading comes one after the other. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/sanitizer.h"
#include "scheduler/run/order.h"

enum { STATES = 4, DEVICES = 3, ENTRIES = 30, HISTORIES = MU_TSAN ? 10 : 60 };

typedef struct subject {
    mu_order_entry entry;  /* first */
    uint32_t uses[STATES]; /* 0: none, 1: reads, 2: writes */
    bool entered, ready, passed, left;
    uint64_t epoch[DEVICES]; /* its own last epochs, once it passed */
} subject;

static uint64_t random_state;
static uint32_t below(uint32_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

static void became_ready(mu_order_entry *entry) {
    subject *self = (subject *)entry;
    assert_false(self->ready);
    self->ready = true;
}

static bool conflict(const subject *one, const subject *other) {
    for (int s = 0; s < STATES; s++)
        if (one->uses[s] && other->uses[s] && (one->uses[s] == 2 || other->uses[s] == 2)) return true;
    return false;
}

static void make(mu_order *order, subject *self, mu_order_state states[STATES]) {
    memset(self, 0, sizeof *self);
    uint32_t count = 0;
    for (int s = 0; s < STATES; s++) count += (self->uses[s] = below(3)) != 0;
    assert_int_equal(mu_order_entry_init(order, &self->entry, count, NULL), MUSTER_OK);
    uint32_t use = 0;
    for (int s = 0; s < STATES; s++)
        if (self->uses[s]) {
            self->entry.uses[use].state = &states[s];
            self->entry.uses[use++].writes = self->uses[s] == 2;
        }
    self->entry.ready = became_ready;
}

/* Ready exactly when everything before it that conflicts has passed; and its gate covers, directly or through one between
 * them, the epochs of everything before it that conflicts and has not left. */
static void check(const subject *subjects, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        bool expected = true;
        for (uint32_t before = 0; before < i; before++)
            expected &= !conflict(&subjects[before], &subjects[i]) || subjects[before].passed;
        assert_int_equal(subjects[i].ready, expected);
        if (!subjects[i].ready || subjects[i].left) continue;
        for (uint32_t before = 0; before < i; before++)
            for (int d = 0; d < DEVICES && conflict(&subjects[before], &subjects[i]) && !subjects[before].left; d++)
                assert_true(subjects[i].entry.gate[d] >= subjects[before].epoch[d]);
    }
}

/* Entries enter, pass and leave in random order. Each takes an epoch on every device, later than all before, as a run
 * does that waited for its gate. */
static void random_histories_match_the_model(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < HISTORIES; seed++) {
        mu_order order;
        mu_order_state states[STATES] = {{0}};
        subject *subjects = calloc(ENTRIES, sizeof *subjects);
        assert_non_null(subjects);
        random_state = seed * 991 + 3;
        mu_order_init(&order, DEVICES);
        uint64_t epoch = 0;
        uint32_t entered = 0, left = 0;
        while (left < ENTRIES) {
            uint32_t dice = below(3);
            if (dice == 0 && entered < ENTRIES) {
                make(&order, &subjects[entered], states);
                assert_int_equal(mu_order_enter(&order, &subjects[entered].entry, NULL), MUSTER_OK);
                entered++;
            } else if (dice == 1 && entered) {
                subject *self = &subjects[below(entered)];
                if (!self->ready || self->passed) continue;
                epoch++;
                for (int d = 0; d < DEVICES; d++) self->entry.last[d] = self->epoch[d] = epoch;
                self->passed = true;
                mu_order_pass(&order, &self->entry);
            } else if (dice == 2 && entered) {
                /* Runs that follow each other also complete in that order. */
                subject *self = &subjects[below(entered)];
                bool first = self->passed && !self->left;
                for (const subject *before = subjects; first && before < self; before++)
                    first = before->left || !conflict(before, self);
                if (!first) continue;
                self->left = true;
                mu_order_leave(&order, &self->entry);
                left++;
            }
            check(subjects, entered);
        }
        for (uint32_t i = 0; i < ENTRIES; i++) mu_order_entry_destroy(&subjects[i].entry);
        for (int s = 0; s < STATES; s++) assert_true(!states[s].writer && !states[s].readers);
        mu_order_destroy(&order);
        free(subjects);
    }
}

static void readers_do_not_follow_each_other(void **state) {
    (void)state;
    mu_order order;
    mu_order_state buffer = {0};
    subject reader[3] = {{.ready = false}}, writer = {.ready = false};
    mu_order_init(&order, DEVICES);
    for (int i = 0; i < 4; i++) {
        subject *self = i < 3 ? &reader[i] : &writer;
        assert_int_equal(mu_order_entry_init(&order, &self->entry, 1, NULL), MUSTER_OK);
        self->entry.uses[0].state = &buffer;
        self->entry.uses[0].writes = i == 3;
        self->entry.ready = became_ready;
        assert_int_equal(mu_order_enter(&order, &self->entry, NULL), MUSTER_OK);
        assert_int_equal(self->ready, i < 3);
    }
    const int ends[3] = {1, 2, 0};
    for (int i = 0; i < 3; i++) {
        assert_false(writer.ready);
        mu_order_pass(&order, &reader[ends[i]].entry);
        mu_order_leave(&order, &reader[ends[i]].entry);
    }
    assert_true(writer.ready);
    mu_order_pass(&order, &writer.entry);
    mu_order_leave(&order, &writer.entry);
    for (int i = 0; i < 3; i++) mu_order_entry_destroy(&reader[i].entry);
    mu_order_entry_destroy(&writer.entry);
    mu_order_destroy(&order);
}

/* An entry that found no memory for its place has not entered: nothing follows it. */
static void entering_without_memory_leaves_no_trace(void **state) {
    (void)state;
    mu_order order;
    mu_order_state buffer = {0};
    subject self[3] = {{.ready = false}};
    mu_order_init(&order, DEVICES);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mu_order_entry_init(&order, &self[i].entry, 1, NULL), MUSTER_OK);
        self[i].entry.uses[0].state = &buffer;
        self[i].entry.uses[0].writes = true;
        self[i].entry.ready = became_ready;
        if (i == 1) mu_alloc_fail_at(1, false);
        muster_status status = mu_order_enter(&order, &self[i].entry, NULL);
        mu_alloc_fail_at(0, false);
        assert_int_equal(status, i == 1 ? MUSTER_OUT_OF_HOST_MEMORY : MUSTER_OK);
    }
    assert_true(self[0].ready && !self[1].ready && !self[2].ready);
    mu_order_pass(&order, &self[0].entry);
    assert_true(self[2].ready && !self[1].ready);
    for (int i = 0; i < 3; i++) {
        if (i == 2) mu_order_pass(&order, &self[i].entry);
        if (i != 1) mu_order_leave(&order, &self[i].entry);
    }
    for (int i = 0; i < 3; i++) mu_order_entry_destroy(&self[i].entry);
    mu_order_destroy(&order);
}

/* ---------------------------------------------------------------------------------------------------------- threads -- */

enum { THREADS = 4, ROUNDS = MU_TSAN ? 300 : 2000 };

typedef struct racing_entry {
    mu_order_entry entry; /* first */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ready;
} racing_entry;

typedef struct racer {
    mu_order *order;
    mu_order_state *states;
    uint64_t *counters; /* one per state, protected by the order alone: ThreadSanitizer judges it */
    uint32_t index;
    uint64_t added[STATES];
} racer;

static void racing_ready(mu_order_entry *entry) {
    racing_entry *self = (racing_entry *)entry;
    pthread_mutex_lock(&self->lock);
    self->ready = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static void *race(void *argument) {
    racer *self = argument;
    uint32_t random = self->index * 7919 + 1;
    racing_entry e;
    pthread_mutex_init(&e.lock, NULL);
    pthread_cond_init(&e.changed, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        random = random * 1664525 + 1013904223;
        uint32_t first = (random >> 8) % STATES, second = (first + 1 + (random >> 16) % (STATES - 1)) % STATES;
        e.ready = false;
        if (mu_order_entry_init(self->order, &e.entry, 2, NULL) != MUSTER_OK) return NULL;
        e.entry.uses[0].state = &self->states[first];
        e.entry.uses[0].writes = true;
        e.entry.uses[1].state = &self->states[second];
        e.entry.uses[1].writes = (random >> 24) % 2;
        e.entry.ready = racing_ready;
        if (mu_order_enter(self->order, &e.entry, NULL) != MUSTER_OK) return NULL;
        pthread_mutex_lock(&e.lock);
        while (!e.ready) pthread_cond_wait(&e.changed, &e.lock);
        pthread_mutex_unlock(&e.lock);
        self->counters[first]++;
        self->added[first]++;
        if (e.entry.uses[1].writes) {
            self->counters[second]++;
            self->added[second]++;
        }
        mu_order_pass(self->order, &e.entry);
        mu_order_leave(self->order, &e.entry);
        mu_order_entry_destroy(&e.entry);
    }
    pthread_cond_destroy(&e.changed);
    pthread_mutex_destroy(&e.lock);
    return NULL;
}

/* Atomic over all buffers of an entry: two that take the same two the other way round do not deadlock. */
static void threads_exclude_each_other_without_deadlock(void **state) {
    (void)state;
    mu_order order;
    mu_order_state states[STATES] = {{0}};
    uint64_t counters[STATES] = {0}, expected[STATES] = {0};
    racer own[THREADS];
    pthread_t thread[THREADS];
    mu_order_init(&order, DEVICES);
    for (uint32_t t = 0; t < THREADS; t++) {
        own[t] = (racer){.order = &order, .states = states, .counters = counters, .index = t};
        assert_int_equal(pthread_create(&thread[t], NULL, race, &own[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(thread[t], NULL);
        for (int s = 0; s < STATES; s++) expected[s] += own[t].added[s];
    }
    assert_memory_equal(counters, expected, sizeof counters);
    mu_order_destroy(&order);
}

static mu_order *order_of_chain;

static void passes_at_once(mu_order_entry *entry) {
    became_ready(entry);
    mu_order_pass(order_of_chain, entry);
    mu_order_leave(order_of_chain, entry);
}

/* Acquisitions that nobody waits for any more are such entries: as many as somebody who polls has given up. */
static void a_long_chain_that_passes_at_once_takes_no_stack(void **state) {
    (void)state;
    enum { LENGTH = MU_TSAN ? 50000 : 500000 };
    mu_order order;
    mu_order_state shared = {0};
    subject *subjects = calloc(LENGTH, sizeof *subjects);
    assert_non_null(subjects);
    mu_order_init(&order, 1);
    order_of_chain = &order;
    for (uint32_t i = 0; i < LENGTH; i++) {
        mu_order_entry *entry = &subjects[i].entry;
        assert_int_equal(mu_order_entry_init(&order, entry, 1, NULL), MUSTER_OK);
        entry->uses[0].state = &shared;
        entry->uses[0].writes = true;
        entry->ready = i ? passes_at_once : became_ready;
        assert_int_equal(mu_order_enter(&order, entry, NULL), MUSTER_OK);
        assert_int_equal(subjects[i].ready, i == 0);
    }
    mu_order_pass(&order, &subjects[0].entry);
    mu_order_leave(&order, &subjects[0].entry);
    for (uint32_t i = 0; i < LENGTH; i++) {
        assert_true(subjects[i].ready);
        mu_order_entry_destroy(&subjects[i].entry);
    }
    assert_null(shared.writer);
    mu_order_destroy(&order);
    free(subjects);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_match_the_model),
        cmocka_unit_test(a_long_chain_that_passes_at_once_takes_no_stack),
        cmocka_unit_test(readers_do_not_follow_each_other),
        cmocka_unit_test(entering_without_memory_leaves_no_trace),
        cmocka_unit_test(threads_exclude_each_other_without_deadlock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
