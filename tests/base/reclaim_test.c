/* Epoch reclamation: nothing is reclaimed under a section that could see it, and everything is in the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/reclaim.h"

typedef struct object {
    mu_reclaim_entry entry;
    int reclaimed;
} object;

static void reclaim(mu_reclaim_entry *entry) { ((object *)(void *)entry)->reclaimed++; }

static void without_sections_a_poll_reclaims_all(void **state) {
    (void)state;
    mu_reclaim domain;
    assert_true(mu_reclaim_init(&domain));
    mu_reclaim_reader *reader = mu_reclaim_reader_create(&domain);
    object objects[20] = {0};
    for (int i = 0; i < 20; i++) mu_reclaim_defer(&domain, &objects[i].entry, reclaim);
    assert_int_equal(domain.pending, 20);
    mu_reclaim_poll(&domain);
    for (int i = 0; i < 20; i++) assert_int_equal(objects[i].reclaimed, 1);
    assert_int_equal(domain.pending, 0);
    mu_reclaim_reader_destroy(reader);
    mu_reclaim_destroy(&domain);
}

static void an_open_section_holds_back_what_it_could_see(void **state) {
    (void)state;
    mu_reclaim domain;
    assert_true(mu_reclaim_init(&domain));
    mu_reclaim_reader *a = mu_reclaim_reader_create(&domain), *b = mu_reclaim_reader_create(&domain);
    object seen = {0};
    mu_reclaim_enter(a);
    mu_reclaim_enter(a); /* sections nest */
    mu_reclaim_defer(&domain, &seen.entry, reclaim);
    for (int i = 0; i < 10; i++) {
        mu_reclaim_enter(b); /* another reader comes and goes meanwhile */
        mu_reclaim_poll(&domain);
        mu_reclaim_leave(b);
        mu_reclaim_poll(&domain);
        assert_int_equal(seen.reclaimed, 0);
    }
    mu_reclaim_leave(a);
    for (int i = 0; i < 10; i++) mu_reclaim_poll(&domain);
    assert_int_equal(seen.reclaimed, 0);
    mu_reclaim_leave(a);
    mu_reclaim_poll(&domain);
    assert_int_equal(seen.reclaimed, 1);
    mu_reclaim_destroy(&domain);
}

/* Sections that begin after the removal do not hold it back for ever, however many overlap. */
static void new_sections_let_the_epoch_move(void **state) {
    (void)state;
    mu_reclaim domain;
    assert_true(mu_reclaim_init(&domain));
    mu_reclaim_reader *readers[2] = {mu_reclaim_reader_create(&domain), mu_reclaim_reader_create(&domain)};
    object removed = {0};
    mu_reclaim_enter(readers[0]);
    mu_reclaim_defer(&domain, &removed.entry, reclaim);
    for (int i = 1; i < 10 && !removed.reclaimed; i++) {
        mu_reclaim_enter(readers[i % 2]);
        mu_reclaim_leave(readers[(i + 1) % 2]); /* at every moment somebody is inside */
        mu_reclaim_poll(&domain);
    }
    assert_int_equal(removed.reclaimed, 1);
    mu_reclaim_destroy(&domain);
}

static void destroy_runs_what_is_left(void **state) {
    (void)state;
    mu_reclaim domain;
    assert_true(mu_reclaim_init(&domain));
    object objects[3] = {0};
    for (int i = 0; i < 3; i++) mu_reclaim_defer(&domain, &objects[i].entry, reclaim);
    mu_reclaim_destroy(&domain);
    for (int i = 0; i < 3; i++) assert_int_equal(objects[i].reclaimed, 1);
}

static void readers_are_reused(void **state) {
    (void)state;
    mu_reclaim domain;
    assert_true(mu_reclaim_init(&domain));
    mu_reclaim_reader *first = mu_reclaim_reader_create(&domain);
    mu_reclaim_reader_destroy(first);
    mu_reclaim_reader_destroy(NULL);
    assert_ptr_equal(mu_reclaim_reader_create(&domain), first);
    assert_ptr_not_equal(mu_reclaim_reader_create(&domain), first);
    mu_reclaim_destroy(&domain);
}

static void short_memory_is_told(void **state) {
    (void)state;
    mu_reclaim domain;
    mu_alloc_fail_at(1, true);
    assert_false(mu_reclaim_init(&domain));
    mu_alloc_fail_at(0, false);
    assert_true(mu_reclaim_init(&domain));
    mu_alloc_fail_at(1, true);
    assert_null(mu_reclaim_reader_create(&domain));
    mu_alloc_fail_at(0, false);
    mu_reclaim_destroy(&domain);
}

/* Readers follow a pointer that a writer replaces and whose old target it poisons and frees on reclamation: a
 * premature one is a wrong value here and a use after free under the sanitizers. */
typedef struct node {
    mu_reclaim_entry entry;
    uint64_t value, check;
} node;

static struct {
    mu_reclaim domain;
    _Atomic(node *) current;
    atomic_bool stop;
    atomic_uint wrong;
    atomic_uint_fast64_t reads;
} shared;

static void free_node(mu_reclaim_entry *entry) {
    memset((void *)entry, 0xdd, sizeof(node));
    mu_free(entry);
}

static void *read_on(void *argument) {
    mu_reclaim_reader *reader = argument;
    while (!atomic_load_explicit(&shared.stop, memory_order_relaxed)) {
        mu_reclaim_enter(reader);
        const node *node = atomic_load_explicit(&shared.current, memory_order_acquire); /* pairs with the exchange */
        if (node->check != ~node->value) atomic_fetch_add(&shared.wrong, 1);
        mu_reclaim_leave(reader);
        atomic_fetch_add_explicit(&shared.reads, 1, memory_order_relaxed);
    }
    return NULL;
}

static node *make_node(uint64_t value) {
    node *node = mu_alloc_zeroed(1, sizeof *node);
    assert_non_null(node);
    node->value = value;
    node->check = ~value;
    return node;
}

static void replaced_under_readers(void **state) {
    (void)state;
    enum { READERS = 4, REPLACEMENTS = 20000 };
    assert_true(mu_reclaim_init(&shared.domain));
    atomic_store(&shared.current, make_node(0));
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_on, mu_reclaim_reader_create(&shared.domain)), 0);
    for (uint64_t i = 1; i <= REPLACEMENTS; i++) {
        node *old = atomic_exchange_explicit(&shared.current, make_node(i), memory_order_acq_rel);
        mu_reclaim_defer(&shared.domain, &old->entry, free_node);
        mu_reclaim_poll(&shared.domain);
    }
    while (atomic_load(&shared.reads) < 1000) sched_yield();
    atomic_store(&shared.stop, true);
    for (int i = 0; i < READERS; i++) pthread_join(threads[i], NULL);
    mu_free(atomic_load(&shared.current));
    mu_reclaim_destroy(&shared.domain);
    assert_int_equal(atomic_load(&shared.wrong), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_sections_a_poll_reclaims_all),
        cmocka_unit_test(an_open_section_holds_back_what_it_could_see),
        cmocka_unit_test(new_sections_let_the_epoch_move),
        cmocka_unit_test(destroy_runs_what_is_left),
        cmocka_unit_test(readers_are_reused),
        cmocka_unit_test(short_memory_is_told),
        cmocka_unit_test(replaced_under_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
