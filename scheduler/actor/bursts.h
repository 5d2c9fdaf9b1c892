/* Launching a backlog in bursts: consecutive launches of the dispatch lane are collected in a graph that is there already, and go
 * out with one call.
 *
 * A burst is opened only when more launches are expected, is as long as what is expected and what the device still has to
 * do, and is flushed before anything else is put on the dispatch lane: waits, copies, events. So a lone job goes out by
 * itself, and the order of the lane is the order of enqueueing.
 *
 * In a chain the launches keep that order. A burst of independent launches keeps none, in launch order not even along its chains
 * (device/burst.h), so only launches that have no path between them may share one: tasks that were in the ready queue together when it
 * was opened. None of them can come after another, for a task is ready only when everything before it is enqueued; what any of them
 * releases is put in the queue later. Such a burst is planned from the queue's front, and is flushed before any task that is not part of
 * its plan is enqueued. As the order is free, each launch goes to a node that holds its kernel and grid already, where there is one. By the
 * actor's worker. */
#ifndef MUSTER_SCHEDULER_ACTOR_BURSTS_H
#define MUSTER_SCHEDULER_ACTOR_BURSTS_H

#include "scheduler/actor/burst_pool.h"
#include "scheduler/run/run.h"

/* A run that has fewer jobs left to enqueue does not promise any launches. */
enum { MU_BURST_FORESEEN = 8 };

/* How long bursts may be: switching nodes off costs as much as running them. */
typedef struct mu_burst_reach {
    uint32_t longest; /* as the last one that had to be flushed became, or more since that */
    uint32_t full;    /* that were not cut short since then */
} mu_burst_reach;

typedef struct mu_bursts {
    mu_burst_pool pool;
    mu_burst_kind *kind;                    /* of the open burst */
    mu_burst *open;                         /* the burst being filled, or NULL */
    uint32_t count;                         /* launches in it; together they are one call, counted when it is made */
    bool took;                              /* the last launch that was offered is in a burst */
    uint32_t singles;                       /* launches that went out by themselves, one after the other */
    mu_burst_reach chain_reach, plan_reach; /* of chains, and of bursts of independent launches */
    uint64_t reshapes;                      /* the device's counter when the open burst was opened */
    mu_task_ref tasks[MU_BURST_LONGEST];
    /* A plan for the front of the ready queue: `at` of its `count` tasks have been taken from there. */
    struct {
        uint32_t count, at;
        bool current; /* the task being enqueued is planned: number at - 1 */
        const mu_task *tasks[MU_BURST_LONGEST];
        uint16_t nodes[MU_BURST_LONGEST]; /* of the open burst */
    } plan;
    bool probing;        /* the next burst is a chain, to be measured */
    uint32_t plan_after; /* tasks to enqueue before the queue's front is looked at again */
} mu_bursts;

/* Makes what bursts are kept at hand. A driver that cannot is no failure: then there are no bursts. OUT_OF_HOST_MEMORY, or the device's
 * loss. */
muster_status mu_bursts_create(mu_actor *actor, muster_error *error);
void mu_bursts_destroy(mu_actor *actor);

/* The ready queue's front is about to be enqueued: plans a burst of independent launches for it, if one serves it better than a chain, and
 * sends the chain that is open. */
void mu_bursts_plan(mu_actor *actor);
/* `task` has been taken from the ready queue and is enqueued next. */
void mu_bursts_begin(mu_actor *actor, const mu_task *task);
/* It is in the open epoch, or where it waits: what is full goes out. */
void mu_bursts_end(mu_actor *actor);
/* No more is taken from the queue for now: a burst that was planned goes out as it is. */
void mu_bursts_end_plan(mu_actor *actor);

/* Takes the launch of `task` into the open burst, or where there is none opens one when at least `expected` launches, this one
 * included, are likely to follow each other. *taken false: the launch is the caller's, to go out by itself (after mu_bursts_flush). Argument
 * values are read before it returns. */
muster_status mu_bursts_add(mu_actor *actor, const mu_task *task, const mu_launch *launch, uint32_t expected,
                            bool *taken, muster_error *error);

/* Launches the open burst; a plan is over. Tasks whose launch the driver refuses one by one, too, end with that failure, and so do
 * those that depend on them. Before everything else on the dispatch lane. */
void mu_bursts_flush(mu_actor *actor);

/* The device has nothing to do: sees to one burst, so that it serves better, or makes one that would have been of use. Whether there was
 * any. */
bool mu_bursts_grow(mu_actor *actor);

/* The function's module is about to be unloaded, if no other program has it too. An open burst goes out first. */
muster_status mu_bursts_forget(mu_actor *actor, mu_function function, muster_error *error);

#endif
