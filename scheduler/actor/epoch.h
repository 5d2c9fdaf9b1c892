/* The epochs of an actor: what its worker remembers of the work between two events on its dispatch lane (scheduler/actor/timeline.h),
 * from when it is enqueued until it has ended. One is open and takes what is enqueued; closed ones are retired in order.
 *
 * All by the actor's worker. */
#ifndef MUSTER_SCHEDULER_ACTOR_EPOCH_H
#define MUSTER_SCHEDULER_ACTOR_EPOCH_H

#include "scheduler/actor/actor.h"

/* Of the open epoch and those that are not retired. */
static inline mu_epoch *mu_epoch_at(mu_actor *actor, uint64_t number) { return &actor->epochs[number % MU_EPOCH_RING]; }
static inline mu_task_ref mu_epoch_first(const mu_epoch *epoch) { return epoch->tasks ? epoch->first : MU_NO_TASK; }

/* What the run still has to enqueue, if the open epoch's tasks are its own. */
static inline uint32_t mu_epoch_left(mu_actor *actor, const muster_run *run) {
    uint32_t left = atomic_load_explicit(&run->unenqueued, memory_order_relaxed);
    /* The open epoch's tasks are not subtracted yet. */
    uint32_t enqueued = mu_epoch_at(actor, actor->timeline.open)->tasks;
    return left > enqueued ? left - enqueued : 0;
}

/* The timeline's open epoch is empty. */
void mu_epoch_open(mu_actor *actor);

/* Puts the task in the open epoch, and counts calls as mu_epoch_add_calls does. */
void mu_epoch_add_task(mu_actor *actor, mu_task *task, uint32_t calls);
/* Counts calls on the device's streams against the enqueue-ahead bound, until the open epoch is done. */
void mu_epoch_add_calls(mu_actor *actor, uint32_t calls);
/* The open epoch waits for so much on the upload lane. */
void mu_epoch_add_upload(mu_actor *actor, uint64_t bytes);
/* A transfer record of the open epoch. NULL: out of host memory. */
mu_transfer *mu_epoch_add_transfer(mu_actor *actor);
/* What it brings comes from `source`, behind epoch `stamp` there. */
void mu_transfer_note(mu_actor *actor, mu_transfer *transfer, muster_buffer *buffer, const mu_area *area, int source,
                      uint64_t stamp);
/* What is bound from now on has seen every loss that is known: if the open epoch holds tasks that may not have, it is closed. */
void mu_epoch_note_losses(mu_actor *actor);

/* Closes the open epoch if anything is in it. */
muster_status mu_epoch_close(mu_actor *actor, muster_error *error);
/* The epoch is closed: what it comes after on other devices. */
void mu_epoch_note_waits(mu_actor *actor, uint64_t number);
/* Everything enqueued in the epoch counts as enqueued with its runs; as ended, with what the epoch held given back. */
void mu_epoch_enqueued(mu_actor *actor, uint64_t number);
void mu_epoch_retire(mu_actor *actor, uint64_t number);

#endif
