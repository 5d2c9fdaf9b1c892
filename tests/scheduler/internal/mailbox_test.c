/* The mailbox: nothing lost, nothing twice, each producer's order kept, and a parked worker always wakes. */
#include "scheduler/mailbox.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"

enum { PRODUCERS = 4, LETTERS = 20000 };

typedef struct letter {
    mu_message message;
    uint32_t producer, number;
} letter;

typedef struct producer {
    mu_mailbox *mailbox;
    letter *letters;
} producer;

static void *post_all(void *argument) {
    producer *p = argument;
    for (uint32_t i = 0; i < LETTERS; i++) mu_mailbox_post(p->mailbox, &p->letters[i].message);
    return NULL;
}

static mu_mailbox *make_mailbox(void) {
    mu_mailbox *mailbox = aligned_alloc(MU_CACHE_LINE, sizeof *mailbox);
    assert_non_null(mailbox);
    mu_mailbox_init(mailbox);
    return mailbox;
}

static void test_every_letter_arrives_once_and_in_its_producers_order(void **state) {
    (void)state;
    mu_mailbox *mailbox = make_mailbox();
    producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    for (uint32_t p = 0; p < PRODUCERS; p++) {
        producers[p] = (producer){mailbox, calloc(LETTERS, sizeof(letter))};
        assert_non_null(producers[p].letters);
        for (uint32_t i = 0; i < LETTERS; i++) producers[p].letters[i].producer = p, producers[p].letters[i].number = i;
        assert_int_equal(pthread_create(&threads[p], NULL, post_all, &producers[p]), 0);
    }
    uint32_t next[PRODUCERS] = {0}, received = 0;
    while (received < PRODUCERS * LETTERS) {
        mu_message *message = mu_mailbox_drain(mailbox);
        /* Parks with mail arriving all the time: a lost wake-up would hang here. */
        if (!message) mu_mailbox_park(mailbox, UINT64_MAX);
        while (message) {
            mu_message *following = mu_message_next(message);
            letter *l = (letter *)message;
            assert_int_equal(l->number, next[l->producer]);
            next[l->producer]++;
            received++;
            message = following;
        }
    }
    assert_null(mu_mailbox_drain(mailbox));
    for (uint32_t p = 0; p < PRODUCERS; p++) {
        pthread_join(threads[p], NULL);
        free(producers[p].letters);
    }
    free(mailbox);
}

static void test_parking_with_mail_returns_at_once_and_without_mail_after_its_time(void **state) {
    (void)state;
    mu_mailbox *mailbox = make_mailbox();
    mu_message message = {.kind = 7};
    mu_mailbox_post(mailbox, &message);
    assert_true(mu_mailbox_has_mail(mailbox));
    mu_mailbox_park(mailbox, UINT64_MAX); /* hangs if it sleeps */
    assert_ptr_equal(mu_mailbox_drain(mailbox), &message);
    assert_false(mu_mailbox_has_mail(mailbox));
    uint64_t before = mu_now_ns();
    mu_mailbox_park(mailbox, 2000000);
    assert_true(mu_now_ns() - before >= 1000000); /* a futex may wake early, by a signal for one; not by half here */
    free(mailbox);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_letter_arrives_once_and_in_its_producers_order),
        cmocka_unit_test(test_parking_with_mail_returns_at_once_and_without_mail_after_its_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
