/* How long a parked worker sleeps before it looks again at what its device has to do.
 *
 * No call of the driver wakes a thread at a kernel's end in less than 130 us (cuEventSynchronize with CU_EVENT_BLOCKING_SYNC 135, at worst
 * 600; cuLaunchHostFunc 144; H200), so the worker looks. Where it is known when the kernels end, it sleeps until shortly before; else it
 * looks as often as takes MU_POLL_PERMILLE of a core in the long run, by what a look costs, waking included, which is measured. What it
 * did not use for a while it may use up, MU_POLL_CREDIT_NS at most: the first milliseconds of a kernel are looked at more often. */
#ifndef MUSTER_SCHEDULER_ACTOR_VIGIL_H
#define MUSTER_SCHEDULER_ACTOR_VIGIL_H

#include <stdint.h>

typedef struct mu_actor mu_actor;

/* More launches than these in one epoch are short, and when they end need not be foreseen. */
enum { MU_VIGIL_TASKS = 8 };

typedef struct mu_vigil {
    uint64_t look_ns;   /* CPU time of a look, measured; 0: not yet */
    uint64_t credit_ns; /* CPU time that may be used beyond the long run's */
    uint64_t looked_ns; /* when it was last reckoned; 0: never */
    uint64_t cpu_ns;    /* of the thread, when the looks that are counted began */
    uint32_t looks;     /* in a row, without other work between them */
} mu_vigil;

/* The worker, about to park at `now` with work in flight or something else to look at. */
uint64_t mu_vigil_sleep_ns(mu_actor *actor, uint64_t now);
/* The worker did something: what is measured is looks alone. */
void mu_vigil_break(mu_actor *actor);

/* The step after a look at `now`, where nothing is known of an end: between MU_POLL_INTERVAL_MIN_NS and MU_POLL_INTERVAL_MAX_NS. */
uint64_t mu_vigil_step_ns(mu_vigil *vigil, uint64_t now);

#endif
