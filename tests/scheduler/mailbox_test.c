/* Mailboxes: nothing lost, each producer in its order, nobody left asleep. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "muster.h"
#include "scheduler/actor/mailbox.h"

enum { PRODUCERS = 4, MESSAGES = MU_TSAN ? 3000 : 30000 };

typedef struct letter {
    mu_message message; /* first */
    uint32_t producer, number;
} letter;

static void an_empty_mailbox_drains_nothing(void **state) {
    (void)state;
    mu_mailbox mailbox;
    mu_mailbox_init(&mailbox);
    assert_false(mu_mailbox_has_mail(&mailbox));
    assert_null(mu_mailbox_drain(&mailbox));
    mu_mailbox_park(&mailbox, 0); /* returns */
    mu_mailbox_park(&mailbox, 1000000);
    assert_null(mu_mailbox_drain(&mailbox));
}

static void a_batch_arrives_in_the_order_of_posting(void **state) {
    (void)state;
    mu_mailbox mailbox;
    letter letters[100];
    mu_mailbox_init(&mailbox);
    for (uint32_t i = 0; i < 100; i++) {
        letters[i].number = i;
        mu_mailbox_post(&mailbox, &letters[i].message);
    }
    assert_true(mu_mailbox_has_mail(&mailbox));
    mu_mailbox_park(&mailbox, MUSTER_FOREVER); /* there is mail: returns at once */
    uint32_t expected = 0;
    for (mu_message *message = mu_mailbox_drain(&mailbox); message; message = mu_message_next(message))
        assert_int_equal(((letter *)message)->number, expected++);
    assert_int_equal(expected, 100);
    assert_null(mu_mailbox_drain(&mailbox));
}

typedef struct producer {
    mu_mailbox *mailbox;
    letter *letters;
    uint32_t index;
} producer;

static void *produce(void *argument) {
    producer *self = argument;
    for (uint32_t i = 0; i < MESSAGES; i++) {
        self->letters[i].producer = self->index;
        self->letters[i].number = i;
        mu_mailbox_post(self->mailbox, &self->letters[i].message);
    }
    return NULL;
}

/* The consumer parks without limit whenever it finds nothing: a lost wake-up would hang the test. */
static void many_producers_lose_nothing_and_wake_the_sleeper(void **state) {
    (void)state;
    mu_mailbox mailbox;
    producer own[PRODUCERS];
    pthread_t thread[PRODUCERS];
    uint32_t next[PRODUCERS] = {0}, received = 0;
    mu_mailbox_init(&mailbox);
    for (uint32_t p = 0; p < PRODUCERS; p++) {
        own[p] = (producer){&mailbox, calloc(MESSAGES, sizeof(letter)), p};
        assert_non_null(own[p].letters);
        assert_int_equal(pthread_create(&thread[p], NULL, produce, &own[p]), 0);
    }
    while (received < PRODUCERS * MESSAGES) {
        mu_message *message = mu_mailbox_drain(&mailbox);
        if (!message) mu_mailbox_park(&mailbox, MUSTER_FOREVER);
        for (; message; message = mu_message_next(message)) {
            const letter *got = (const letter *)message;
            assert_int_equal(got->number, next[got->producer]);
            next[got->producer]++;
            received++;
        }
    }
    for (int p = 0; p < PRODUCERS; p++) {
        pthread_join(thread[p], NULL);
        assert_int_equal(next[p], MESSAGES);
        free(own[p].letters);
    }
    assert_null(mu_mailbox_drain(&mailbox));
}

typedef struct echo {
    mu_mailbox here, there;
    letter ball;
} echo;

static void *play(void *argument) {
    echo *self = argument;
    for (uint32_t i = 0; i < MESSAGES / 10; i++) {
        mu_message *message;
        while (!(message = mu_mailbox_drain(&self->there))) mu_mailbox_park(&self->there, MUSTER_FOREVER);
        mu_mailbox_post(&self->here, message);
    }
    return NULL;
}

/* One message back and forth: at each moment one side sleeps or is about to. */
static void ping_pong_never_sleeps_through(void **state) {
    (void)state;
    static echo echo;
    pthread_t thread;
    mu_mailbox_init(&echo.here);
    mu_mailbox_init(&echo.there);
    assert_int_equal(pthread_create(&thread, NULL, play, &echo), 0);
    for (uint32_t i = 0; i < MESSAGES / 10; i++) {
        mu_message *message;
        mu_mailbox_post(&echo.there, &echo.ball.message);
        while (!(message = mu_mailbox_drain(&echo.here))) mu_mailbox_park(&echo.here, MUSTER_FOREVER);
        assert_ptr_equal(message, &echo.ball.message);
    }
    pthread_join(thread, NULL);
}

typedef struct tug {
    mu_mailbox here, there;
    atomic_uint sent, answered;
} tug;

static void *answer(void *argument) {
    tug *self = argument;
    for (uint32_t i = 1; i <= MESSAGES / 10; i++) {
        while (atomic_load_explicit(&self->sent, memory_order_relaxed) < i)
            mu_mailbox_park(&self->there, MUSTER_FOREVER);
        atomic_store_explicit(&self->answered, i, memory_order_relaxed);
        mu_mailbox_nudge(&self->here);
    }
    return NULL;
}

/* What the nudger wrote before is seen after parking, even when it is written relaxed. */
static void a_nudge_is_never_slept_through(void **state) {
    (void)state;
    static tug tug;
    pthread_t thread;
    mu_mailbox_init(&tug.here);
    mu_mailbox_init(&tug.there);
    assert_int_equal(pthread_create(&thread, NULL, answer, &tug), 0);
    for (uint32_t i = 1; i <= MESSAGES / 10; i++) {
        atomic_store_explicit(&tug.sent, i, memory_order_relaxed);
        mu_mailbox_nudge(&tug.there);
        while (atomic_load_explicit(&tug.answered, memory_order_relaxed) < i)
            mu_mailbox_park(&tug.here, MUSTER_FOREVER);
    }
    pthread_join(thread, NULL);
    assert_null(mu_mailbox_drain(&tug.here));
}

typedef struct sleeper {
    mu_mailbox mailbox;
    atomic_uint woken;
    bool over;
} sleeper;

static void *sleep_on(void *argument) {
    sleeper *self = argument;
    while (!self->over) {
        mu_mailbox_park(&self->mailbox, MUSTER_FOREVER);
        self->over = mu_mailbox_drain(&self->mailbox) != NULL;
        atomic_fetch_add_explicit(&self->woken, 1, memory_order_release);
    }
    return NULL;
}

/* Once, and it is as it was before: without mail it parks again. */
static void who_is_roused_wakes(void **state) {
    (void)state;
    enum { TIMES = 1000 };
    static sleeper sleeper;
    static letter last;
    pthread_t thread;
    mu_mailbox_init(&sleeper.mailbox);
    assert_int_equal(pthread_create(&thread, NULL, sleep_on, &sleeper), 0);
    for (uint32_t i = 0; i <= TIMES; i++) {
        while (atomic_load_explicit(&sleeper.woken, memory_order_acquire) < i) sched_yield();
        while (!atomic_load_explicit(&sleeper.mailbox.parked, memory_order_relaxed)) sched_yield();
        if (i < TIMES) mu_mailbox_rouse(&sleeper.mailbox);
    }
    assert_int_equal(atomic_load_explicit(&sleeper.woken, memory_order_acquire), TIMES);
    mu_mailbox_post(&sleeper.mailbox, &last.message);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load_explicit(&sleeper.woken, memory_order_acquire), TIMES + 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_mailbox_drains_nothing),
        cmocka_unit_test(a_batch_arrives_in_the_order_of_posting),
        cmocka_unit_test(many_producers_lose_nothing_and_wake_the_sleeper),
        cmocka_unit_test(ping_pong_never_sleeps_through),
        cmocka_unit_test(a_nudge_is_never_slept_through),
        cmocka_unit_test(who_is_roused_wakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
