#include "scheduler/actor/mailbox.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void mu_mailbox_init(mu_mailbox *mailbox) {
    atomic_init(&mailbox->newest, NULL);
    atomic_init(&mailbox->parked, 0);
    atomic_init(&mailbox->nudged, 0);
    atomic_init(&mailbox->wakes, 0);
}

static void futex_wake_one(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

void mu_mailbox_rouse(mu_mailbox *mailbox) {
    if (atomic_load_explicit(&mailbox->parked, memory_order_relaxed) &&
        atomic_exchange_explicit(&mailbox->parked, 0, memory_order_relaxed))
        futex_wake_one(&mailbox->parked);
}

/* The fences: store-load order between the push (or nudge) and the look at `parked`, against park's store of `parked` and its look at the
 * stack: one of the two sees the other, so a message is never left to a sleeping worker. */

void mu_mailbox_post(mu_mailbox *mailbox, mu_message *message) {
    /* Release publishes the message's content and its link; pairs with the acquire of the exchange in drain. */
    struct mu_link *newest = atomic_load_explicit(&mailbox->newest, memory_order_relaxed);
    do {
        message->link.next = newest;
    } while (!atomic_compare_exchange_weak_explicit(&mailbox->newest, &newest, &message->link, memory_order_release,
                                                    memory_order_relaxed));
    atomic_thread_fence(memory_order_seq_cst);
    mu_mailbox_rouse(mailbox);
}

void mu_mailbox_nudge(mu_mailbox *mailbox) {
    /* Release publishes what there is to look at; pairs with the acquire in park. */
    atomic_store_explicit(&mailbox->nudged, 1, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    mu_mailbox_rouse(mailbox);
}

mu_message *mu_mailbox_drain(mu_mailbox *mailbox) {
    if (!mu_mailbox_has_mail(mailbox)) return NULL;
    /* Messages pushed before the last one are ordered too: each push is part of the release sequence. */
    struct mu_link *newest = atomic_exchange_explicit(&mailbox->newest, NULL, memory_order_acquire);
    struct mu_link *oldest = NULL;
    while (newest) {
        struct mu_link *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return (mu_message *)oldest;
}

mu_message *mu_message_next(const mu_message *message) { return (mu_message *)message->link.next; }

bool mu_mailbox_has_mail(const mu_mailbox *mailbox) {
    return atomic_load_explicit(&mailbox->newest, memory_order_relaxed) != NULL;
}

void mu_mailbox_park(mu_mailbox *mailbox, uint64_t timeout_ns) {
    atomic_store_explicit(&mailbox->parked, 1, memory_order_relaxed);
    /* Pairs with the fences of post and nudge. */
    atomic_thread_fence(memory_order_seq_cst);
    if (!mu_mailbox_has_mail(mailbox) && !atomic_load_explicit(&mailbox->nudged, memory_order_relaxed)) {
        struct timespec timeout = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
        syscall(SYS_futex, &mailbox->parked, FUTEX_WAIT_PRIVATE, 1, timeout_ns == UINT64_MAX ? NULL : &timeout, NULL,
                0);
        atomic_fetch_add_explicit(&mailbox->wakes, 1, memory_order_relaxed);
    }
    atomic_store_explicit(&mailbox->parked, 0, memory_order_relaxed);
    /* The worker looks at everything next. An exchange, so that a nudge it takes away is one whose past it sees. */
    atomic_exchange_explicit(&mailbox->nudged, 0, memory_order_acquire);
}
