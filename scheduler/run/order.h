/* The order of runs: runs (and host acquisitions) that share a buffer take effect in the order they entered, atomically
 * over all their buffers, unless both only read it; others are unordered.
 *
 * An entry is *ready* when every entry it follows has passed, *passes* when all its jobs are enqueued (so that what follows
 * can be enqueued behind them), and *leaves* when it is complete. For each device it carries the epoch that its last job
 * there belongs to; a follower's gate is the latest of those, and its work on another device waits for them.
 *
 * One lock per runtime, held for a few pointer operations per buffer; never over a driver call, an allocation or a callback. */
#ifndef MUSTER_SCHEDULER_RUN_ORDER_H
#define MUSTER_SCHEDULER_RUN_ORDER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "muster.h"

typedef struct mu_order_entry mu_order_entry;
typedef struct mu_order_use mu_order_use;
typedef struct mu_order_edge mu_order_edge;

/* Embedded in each buffer; zero-initialised. */
typedef struct mu_order_state {
    mu_order_entry *writer; /* the last writer that has not left */
    mu_order_use *readers;  /* readers since, that have not left */
} mu_order_state;

struct mu_order_use {
    mu_order_state *state;
    mu_order_entry *entry;
    bool writes, linked;
    mu_order_use *previous, *next; /* among the readers */
};

struct mu_order_edge {
    mu_order_entry *follower;
    mu_order_edge *next;
};

struct mu_order_entry {
    mu_order_use *uses; /* one per buffer */
    uint32_t use_count;
    uint32_t pending; /* entries it follows that have not passed, and 1 while it enters */
    bool passed;
    mu_order_edge *followers;
    mu_order_edge *edges; /* owned: the edges that lead here */
    void *owned;          /* what the uses and epochs lie in; NULL: the caller's memory */
    uint64_t *last;       /* per device: the last epoch of its own jobs; written by the workers before it passes */
    uint64_t *gate;       /* per device: the epochs its work comes after; complete once it is ready */
    void (*ready)(mu_order_entry *entry); /* called without the lock, by the thread that made it ready */
};

typedef struct mu_order {
    pthread_mutex_t lock;
    uint32_t device_count;
} mu_order;

void mu_order_init(mu_order *order, uint32_t device_count);
void mu_order_destroy(mu_order *order);

/* Allocates what an entry with `use_count` buffers needs; the caller then fills uses[].state and .writes, and ready. */
muster_status mu_order_entry_init(mu_order *order, mu_order_entry *entry, uint32_t use_count, muster_error *error);
/* The same in memory of the caller's, so many bytes from a multiple of 8 on, which is there until the entry is destroyed. */
size_t mu_order_entry_bytes(const mu_order *order, uint32_t use_count);
void mu_order_entry_place(const mu_order *order, mu_order_entry *entry, uint32_t use_count, void *memory);
void mu_order_entry_destroy(mu_order_entry *entry); /* after it left, or was never entered */

/* Takes its place behind everything that has entered. Calls entry->ready before it returns when it follows nothing.
 * OUT_OF_HOST_MEMORY: it has not entered. */
muster_status mu_order_enter(mu_order *order, mu_order_entry *entry, muster_error *error);
/* The same if it would be ready at once; else BUSY, and it has not entered. */
muster_status mu_order_try_enter(mu_order *order, mu_order_entry *entry, muster_error *error);
/* Calls `ready` of what has waited for it: before it returns, or, when that is called from within a `ready`, soon after. */
void mu_order_pass(mu_order *order, mu_order_entry *entry);
/* After its work is complete, which implies that all it follows is: its last epochs on each device come after waits for its
 * gate. So what enters later need not wait for entries that this one followed, even if they have not left yet. */
void mu_order_leave(mu_order *order, mu_order_entry *entry);

#endif
