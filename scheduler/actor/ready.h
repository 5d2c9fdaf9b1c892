/* The ready queue of an actor: tasks to enqueue, those of higher priority first, and of one priority the oldest first.
 *
 * It is one list in that order, actor->ready, which anybody on the worker may look at, but only these functions change. While all
 * tasks in it have one priority, as is usual, nothing else is kept, and adding or taking a task costs one comparison more than with
 * any list. Otherwise actor->ready_levels knows where the tasks of each priority end. By the actor's worker. */
#ifndef MUSTER_SCHEDULER_ACTOR_READY_H
#define MUSTER_SCHEDULER_ACTOR_READY_H

#include "scheduler/actor/actor.h"

/* Puts a task where its priority belongs: not behind any of a lower one, and behind the others of its own. */
void mu_ready_insert(mu_actor *actor, mu_task *task);
static inline void mu_ready_put(mu_actor *actor, mu_task *task) {
    if (actor->ready.last && actor->ready.last->priority != task->priority)
        mu_ready_insert(actor, task);
    else
        mu_task_list_append(&actor->ready, task);
}

/* Puts tasks in front of those of their priorities, in their order; the list is empty then. They have waited longer. */
void mu_ready_put_first(mu_actor *actor, mu_task_list *tasks);

/* The next one; NULL when there is none. */
void mu_ready_forget(mu_actor *actor, const mu_task *task);
static inline mu_task *mu_ready_take(mu_actor *actor) {
    mu_task *task = mu_task_list_take(&actor->ready);
    if (actor->ready_levels.above && task) mu_ready_forget(actor, task);
    return task;
}

/* Before a task is taken to be handed over. When many have passed some of lower priority, the oldest of one of these gets the highest
 * priority that is there, and the first place: each level in its turn, so that none waits for ever. Not while the front is `planned`. */
void mu_ready_promote(mu_actor *actor);
static inline void mu_ready_age(mu_actor *actor, bool planned) {
    if (actor->ready_levels.above && ++actor->ready_levels.passes >= MU_PRIORITY_PASSES_MAX && !planned)
        mu_ready_promote(actor);
}

/* Takes the one behind `before`; both are in the queue. */
void mu_ready_take_after(mu_actor *actor, mu_task *before);

#endif
