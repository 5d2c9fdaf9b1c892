/* The queue in front of an actor: any thread posts, the actor's worker alone drains, in batches and in order.
 *
 * Intrusive and unbounded, so that posting never waits, allocates or fails and two actors can never block each other.
 * A stack: push by compare-and-swap, drain by one exchange, in C11 atomics that ThreadSanitizer follows; draining reverses the batch, so that messages of
 * one producer arrive in the order it posted them. */
#ifndef MUSTER_SCHEDULER_ACTOR_MAILBOX_H
#define MUSTER_SCHEDULER_ACTOR_MAILBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/tuning.h"

/* Embedded first in whatever is posted. Owned by the mailbox from post to drain. */
typedef struct mu_message {
    struct mu_link {
        struct mu_link *next;
    } link;
    uint32_t kind;   /* for the receiver (scheduler/actor/actor.h) */
    uint32_t weight; /* likewise, in what would be padding: of a task, what it is estimated to take, in ns */
} mu_message;

typedef struct mu_mailbox {
    /* Written by producers and, by exchange, by the worker. */
    _Alignas(MU_CACHE_LINE) _Atomic(struct mu_link *) newest;
    /* Written by the worker when it parks and by the producer that wakes it. 1: parked or about to; a futex word. */
    _Alignas(MU_CACHE_LINE) atomic_uint parked;
    atomic_uint nudged; /* 1: by a producer that has no message; 0: by the worker when it parks */
    /* Written by the worker only. */
    _Alignas(MU_CACHE_LINE) atomic_uint_fast64_t wakes;
} mu_mailbox;

void mu_mailbox_init(mu_mailbox *mailbox);

/* Any thread. Wakes the worker if it has announced that it parks (2 us then, some 20 ns otherwise). */
void mu_mailbox_post(mu_mailbox *mailbox, mu_message *message);

/* Any thread. Wakes the worker likewise, or keeps it from parking next time: it has something to look at that is no message. What the
 * caller wrote before, the worker sees after it has parked, or not parked. */
void mu_mailbox_nudge(mu_mailbox *mailbox);

/* Any thread. Wakes a worker that sleeps, for what the caller is about to post: it is up when that comes. A hint: it may park again before. */
void mu_mailbox_rouse(mu_mailbox *mailbox);

/* Worker only. Takes everything posted so far, oldest first, linked by mu_message_next; NULL when empty. */
mu_message *mu_mailbox_drain(mu_mailbox *mailbox);
mu_message *mu_message_next(const mu_message *message);

/* Worker only. Sleeps until something is posted or timeout_ns passed (MUSTER_FOREVER: no limit). Returns at once when
 * mail is there or it was nudged since it parked last. May wake early. */
void mu_mailbox_park(mu_mailbox *mailbox, uint64_t timeout_ns);

/* Worker only. Whether a drain would find something; a plain look, for spinning. */
bool mu_mailbox_has_mail(const mu_mailbox *mailbox);

#endif
