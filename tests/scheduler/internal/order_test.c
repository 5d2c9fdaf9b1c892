/* The order of runs against its definition: an entry is ready once every earlier entry it shares a buffer with (not both
 * reading) has passed; its gate is at least the epochs of those whose work is not complete, but for work that something it
 * follows waits for already. */
#include "scheduler/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"

enum { BUFFERS = 4, ENTRIES = 40, DEVICES = 2 };

typedef struct subject {
    mu_order_entry entry;
    int use[BUFFERS]; /* 0: none, 1: reads, 2: writes */
    bool entered, ready, passed, complete, left;
} subject;

static uint64_t random_state;

static uint32_t draw(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static void note_ready(mu_order_entry *entry) {
    subject *s = (subject *)entry;
    assert_false(s->ready);
    s->ready = true;
}

static bool conflict(const subject *a, const subject *b) {
    for (int i = 0; i < BUFFERS; i++)
        if (a->use[i] && b->use[i] && (a->use[i] == 2 || b->use[i] == 2)) return true;
    return false;
}

static void enter(mu_order *order, mu_order_state *buffers, subject *s) {
    uint32_t uses = 0;
    for (int i = 0; i < BUFFERS; i++) uses += s->use[i] != 0;
    assert_int_equal(mu_order_entry_init(order, &s->entry, uses, NULL), MUSTER_OK);
    uint32_t at = 0;
    for (int i = 0; i < BUFFERS; i++) {
        if (!s->use[i]) continue;
        s->entry.uses[at].state = &buffers[i];
        s->entry.uses[at++].writes = s->use[i] == 2;
    }
    s->entry.ready = note_ready;
    assert_int_equal(mu_order_enter(order, &s->entry, NULL), MUSTER_OK);
    s->entered = true;
}

static bool waits_through_another(const subject *subjects, int i, int j) {
    for (int k = j + 1; k < i; k++)
        if (conflict(&subjects[i], &subjects[k]) && conflict(&subjects[k], &subjects[j])) return true;
    return false;
}

static void check_all(const subject *subjects, int count) {
    for (int i = 0; i < count; i++) {
        bool free_to_go = true;
        for (int j = 0; j < i; j++) {
            if (!conflict(&subjects[i], &subjects[j])) continue;
            if (!subjects[j].passed) free_to_go = false;
            if (subjects[j].passed && !subjects[j].complete && !waits_through_another(subjects, i, j))
                for (int d = 0; d < DEVICES; d++)
                    assert_true(subjects[i].entry.gate[d] >= subjects[j].entry.last[d]);
        }
        assert_int_equal(subjects[i].ready, free_to_go);
    }
}

/* Devices complete an entry's work after the work it waits for, though workers may notice in another order. */
static bool can_complete(const subject *subjects, const subject *s) {
    for (const subject *before = subjects; before < s; before++)
        if (conflict(before, s) && !before->complete) return false;
    return true;
}

static void test_generated_orders_follow_the_definition(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        random_state = seed;
        mu_order order;
        mu_order_state buffers[BUFFERS];
        memset(buffers, 0, sizeof buffers);
        mu_order_init(&order, DEVICES);
        subject *subjects = calloc(ENTRIES, sizeof *subjects);
        int count = 0;
        for (bool busy = true; busy;) {
            if (count < ENTRIES && draw(2)) {
                for (int i = 0; i < BUFFERS; i++) subjects[count].use[i] = draw(3) ? 0 : 1 + (int)draw(2);
                enter(&order, buffers, &subjects[count]);
                count++;
            }
            busy = count < ENTRIES;
            for (int i = 0; i < count; i++) {
                subject *s = &subjects[i];
                busy |= !s->left;
                if (s->ready && !s->passed && draw(3) == 0) {
                    s->entry.last[draw(DEVICES)] = 1 + draw(1000);
                    s->passed = true;
                    mu_order_pass(&order, &s->entry);
                } else if (s->passed && !s->complete && draw(3) == 0) {
                    s->complete = can_complete(subjects, s);
                } else if (s->complete && !s->left && draw(3) == 0) {
                    s->left = true;
                    mu_order_leave(&order, &s->entry);
                }
            }
            check_all(subjects, count);
        }
        for (int i = 0; i < BUFFERS; i++) {
            assert_null(buffers[i].writer);
            assert_null(buffers[i].readers);
        }
        for (int i = 0; i < count; i++) mu_order_entry_destroy(&subjects[i].entry);
        free(subjects);
        mu_order_destroy(&order);
    }
}

static void test_an_entry_without_memory_has_not_entered(void **state) {
    (void)state;
    mu_order order;
    mu_order_state buffer;
    memset(&buffer, 0, sizeof buffer);
    mu_order_init(&order, DEVICES);
    subject first = {.use = {2}}, second = {.use = {2}};
    enter(&order, &buffer, &first);
    assert_int_equal(mu_order_entry_init(&order, &second.entry, 1, NULL), MUSTER_OK);
    second.entry.uses[0].state = &buffer;
    second.entry.uses[0].writes = true;
    second.entry.ready = note_ready;
    mu_alloc_fail_at(1, false);
    assert_int_equal(mu_order_enter(&order, &second.entry, NULL), MUSTER_OUT_OF_HOST_MEMORY);
    mu_alloc_fail_at(0, false);
    mu_order_pass(&order, &first.entry);
    assert_false(second.ready);
    mu_order_leave(&order, &first.entry);
    assert_null(buffer.writer);
    mu_order_entry_destroy(&first.entry);
    mu_order_entry_destroy(&second.entry);
    mu_order_destroy(&order);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated_orders_follow_the_definition),
        cmocka_unit_test(test_an_entry_without_memory_has_not_entered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
