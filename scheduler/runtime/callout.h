/* Calling the application: what its callbacks tell, and enqueue callbacks, which the worker of a device calls.
 *
 * A worker can do nothing about a callback that does not return; but others can see it. The actor publishes since when one has been
 * running, the watch thread looks whether it is still the same after enqueue_limit_ns, and who waits for a run in vain is told.
 * The watch is armed at most once per limit, not once per callback: waking a thread costs more than most callbacks. */
#ifndef MUSTER_SCHEDULER_RUNTIME_CALLOUT_H
#define MUSTER_SCHEDULER_RUNTIME_CALLOUT_H

#include <stdatomic.h>

#include "device/device.h"
#include "scheduler/graph/graph.h"
#include "scheduler/runtime/watch.h"

typedef struct mu_actor mu_actor;

/* Of an actor. */
typedef struct mu_callout {
    mu_watch watch;
    mu_actor *actor;
    /* Written by the worker: when the callback that is running began, 0 when none is, and its job. Release on the job pairs with
     * acquire of who reads it: it is that callback's, if the time is still the same afterwards. */
    atomic_uint_fast64_t since_ns;
    atomic_uint job;
    /* The watch is set, or is about to look. Sequentially consistent, as since_ns where it matters: either the worker sees it
     * false and sets the watch, or the watch sees the callback that has begun. */
    atomic_bool armed;
    atomic_uint_fast64_t reported_ns; /* since_ns of the last one that was named; relaxed, the watch thread's */
} mu_callout;

void mu_callout_init(mu_callout *callout, mu_actor *actor);
/* Takes the watch back. No callback is running. */
void mu_callout_stop(mu_actor *actor);

/* By the actor's worker, with the burst flushed: calls the enqueue callback of a node whose arguments are bound; `addresses` as of
 * mu_task_binding. CALLBACK_FAILED, also when it left another context current. */
muster_status mu_callout_call(mu_actor *actor, const muster_run *run, const mu_node *node, const mu_address *addresses,
                              muster_error *error);

/* Adds to a message of `error` which callbacks hold up a device now. Any thread. */
void mu_callouts_tell(const muster_runtime *runtime, muster_error *error);

/* CALLBACK_FAILED, with what a callback told made one line. `what` is "host" or "enqueue". */
muster_status mu_callback_failed(const char *what, muster_status status, muster_error *told, muster_error *error);

#endif
