/* Enqueueing one task on its device: its waits for other devices, its data, its launch. */
#ifndef MUSTER_SCHEDULER_ACTOR_ENQUEUE_H
#define MUSTER_SCHEDULER_ACTOR_ENQUEUE_H

#include "scheduler/actor/actor.h"

typedef enum mu_enqueue {
    MU_ENQUEUED,       /* it is in the open epoch, also when it failed (its status says so) */
    MU_ENQUEUE_AWAIT,  /* *device must close an epoch (task->epoch) first */
    MU_ENQUEUE_BEHIND, /* held in the actor: *device must be done with an epoch (task->epoch) first */
    MU_ENQUEUE_HELD,   /* it waits in an arrival, a detour, or among the writers */
    MU_ENQUEUE_STARVED /* no memory now */
} mu_enqueue;

/* By the actor's worker. */
mu_enqueue mu_enqueue_task(mu_actor *actor, muster_run *run, mu_task *task, int *device);

/* The task ends with `error`: it joins the open epoch, so that it ends in order, and its successors are told. */
void mu_enqueue_failed(mu_actor *actor, muster_run *run, mu_task *task, const muster_error *error);

/* A task of a burst that was refused: launches it by itself. It is in the open epoch already; when it fails, or a predecessor
 * failed so, its run's tasks are told to look. */
void mu_enqueue_again(mu_actor *actor, mu_task_ref ref);

#endif
