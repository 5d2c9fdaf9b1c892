#include "scheduler/mailbox.h"

#include <ck_pr.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/sanitizer.h"

void mu_mailbox_init(mu_mailbox *mailbox) {
    ck_stack_init(&mailbox->stack);
    atomic_init(&mailbox->parked, 0);
    atomic_init(&mailbox->wakes, 0);
}

static void futex_wake_one(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

void mu_mailbox_post(mu_mailbox *mailbox, mu_message *message) {
    /* The push publishes the message's content: ck's store fence and compare-and-swap pair with the exchange in drain.
     * ThreadSanitizer cannot see either, hence the annotation, matched in drain. */
    MU_TSAN_RELEASE(&mailbox->stack);
    ck_stack_push_upmc(&mailbox->stack, &message->link);
    /* Store-load order between the push and the look at `parked`, against park's store of `parked` and its look at the
     * stack: one of the two sees the other, so a message is never left to a sleeping worker. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&mailbox->parked, memory_order_relaxed) &&
        atomic_exchange_explicit(&mailbox->parked, 0, memory_order_relaxed))
        futex_wake_one(&mailbox->parked);
}

mu_message *mu_mailbox_drain(mu_mailbox *mailbox) {
    if (!mu_mailbox_has_mail(mailbox)) return NULL;
    ck_stack_entry_t *newest = ck_stack_batch_pop_upmc(&mailbox->stack);
    MU_TSAN_ACQUIRE(&mailbox->stack);
    ck_stack_entry_t *oldest = NULL;
    while (newest) {
        ck_stack_entry_t *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return (mu_message *)oldest;
}

mu_message *mu_message_next(const mu_message *message) { return (mu_message *)message->link.next; }

bool mu_mailbox_has_mail(const mu_mailbox *mailbox) { return ck_pr_load_ptr(&mailbox->stack.head) != NULL; }

void mu_mailbox_park(mu_mailbox *mailbox, uint64_t timeout_ns) {
    atomic_store_explicit(&mailbox->parked, 1, memory_order_relaxed);
    /* Pairs with the fence in post. */
    atomic_thread_fence(memory_order_seq_cst);
    if (!mu_mailbox_has_mail(mailbox)) {
        struct timespec timeout = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
        syscall(SYS_futex, &mailbox->parked, FUTEX_WAIT_PRIVATE, 1, timeout_ns == UINT64_MAX ? NULL : &timeout, NULL,
                0);
        atomic_fetch_add_explicit(&mailbox->wakes, 1, memory_order_relaxed);
    }
    atomic_store_explicit(&mailbox->parked, 0, memory_order_relaxed);
}
