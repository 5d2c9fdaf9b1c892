/* Calls at a point in time: one thread per runtime, "muster-watch", for deadlines of runs and for watchdogs.
 *
 * A watch is embedded in what it watches; zeroed, it is not set. The thread sleeps until the earliest is due, and for ever when
 * none is set. Setting and cancelling are short: a lock, a few links of a heap, and a wake-up only when the new one is earliest.
 * What a watch runs is ours and short: an atomic store, a post. It holds up every other watch of the runtime meanwhile. */
#ifndef MUSTER_SCHEDULER_RUNTIME_WATCH_H
#define MUSTER_SCHEDULER_RUNTIME_WATCH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "muster.h"

typedef struct mu_watch mu_watch;
struct mu_watch {
    /* Called by the watch thread at or after due_ns, once for each time it is set, without any lock. It may set the watch again,
     * and may free it. */
    void (*run)(mu_watch *watch);
    uint64_t due_ns; /* of mu_now_ns; the rest belongs to the heap, under its lock */
    bool set;
    mu_watch *child, *next, **link; /* eldest child, next sibling, and the pointer that leads here */
};

/* Embedded in the runtime. */
typedef struct mu_watches {
    pthread_mutex_t lock;    /* everything below */
    pthread_cond_t changed;  /* on the monotonic clock: an earlier watch is set, or the thread must stop */
    pthread_cond_t returned; /* `running` has changed, and somebody wants to know */
    pthread_t thread;
    mu_watch *earliest; /* the root of a pairing heap */
    mu_watch *running;
    uint32_t waiting; /* threads that wait for `returned` */
    bool started, stopping;
} mu_watches;

/* With the runtime, and at its end: no watch may be set any more. OUT_OF_HOST_MEMORY: no thread could be had. Stopping what was
 * not started does nothing. */
muster_status mu_watches_start(muster_runtime *runtime, muster_error *error);
void mu_watches_stop(muster_runtime *runtime);

/* Any thread. Runs the watch at due_ns, in place of the time it was set to. UINT64_MAX takes that away and sets none, and does not
 * wait for a call that is under way. */
void mu_watch_set(muster_runtime *runtime, mu_watch *watch, uint64_t due_ns);

/* Any thread. True: it was set, and will not run. False: it was not set, or it has run. It is not running either way when this
 * returns, for which it may block for the length of a call; but when the watch cancels itself. The caller holds no lock that the
 * watch takes. */
bool mu_watch_cancel(muster_runtime *runtime, mu_watch *watch);

#endif
