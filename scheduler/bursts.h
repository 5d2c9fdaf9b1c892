/* Launching a backlog in bursts: consecutive launches of the dispatch lane are collected in a chain that was instantiated
 * when the device started, and go out with one call.
 *
 * A burst is opened only when more launches are expected, is as long as what is expected and what the device still has to
 * do, and is flushed before anything else is put on the dispatch lane: waits, copies, events. So a lone job goes out by
 * itself, and the order of the lane is the order of enqueueing. By the actor's worker. */
#ifndef MUSTER_SCHEDULER_BURSTS_H
#define MUSTER_SCHEDULER_BURSTS_H

#include "device/burst.h"
#include "scheduler/run.h"

typedef struct mu_actor mu_actor;

enum { MU_BURST_SIZES = 3, MU_BURST_LONGEST = 128 };

typedef struct mu_bursts {
    mu_burst *chains[MU_BURST_SIZES]; /* by size; NULL: the driver made none, and launches go out one by one */
    mu_burst *open;                   /* the chain being filled, or NULL */
    uint32_t count;                   /* launches in it */
    uint32_t reach;                   /* how long recent bursts became before they had to be flushed */
    mu_task_ref tasks[MU_BURST_LONGEST];
} mu_bursts;

/* Instantiates the chains. A driver that cannot is no failure: then there are no bursts. OUT_OF_HOST_MEMORY. */
muster_status mu_bursts_create(mu_actor *actor, muster_error *error);
void mu_bursts_destroy(mu_actor *actor);

/* Takes the launch of `task` into the open burst, or opens one when at least `expected` launches, this one included, are
 * likely to follow each other. *taken false: the launch is the caller's, to go out by itself (after mu_bursts_flush). Argument
 * values are read before it returns. */
muster_status mu_bursts_add(mu_actor *actor, const mu_task *task, const mu_launch *launch, uint32_t expected,
                            bool *taken, muster_error *error);

/* Launches the open burst. Tasks whose launch the driver refuses one by one, too, end with that failure, and so do those
 * that depend on them. Before everything else on the dispatch lane. */
void mu_bursts_flush(mu_actor *actor);

/* The function's module is about to be unloaded. */
muster_status mu_bursts_forget(mu_actor *actor, mu_function function, muster_error *error);

#endif
