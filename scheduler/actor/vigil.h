/* How long a parked worker sleeps before it looks again at what its device has to do.
 *
 * No call of the driver wakes a thread at a kernel's end in less than 130 us (cuEventSynchronize with CU_EVENT_BLOCKING_SYNC 135, at worst
 * 600; cuLaunchHostFunc 144; H200), so the worker looks. Where it is known when the kernels end, it sleeps until shortly before; else in
 * equal steps, as many as take MU_POLL_PERMILLE of a core: what one look costs, waking included, is measured while it does so. */
#ifndef MUSTER_SCHEDULER_ACTOR_VIGIL_H
#define MUSTER_SCHEDULER_ACTOR_VIGIL_H

#include <stdint.h>

typedef struct mu_actor mu_actor;

/* More launches than these in one epoch are short, and when they end need not be foreseen. */
enum { MU_VIGIL_TASKS = 8 };

typedef struct mu_vigil {
    uint64_t interval_ns; /* of the steps; 0: nothing measured yet */
    uint64_t cpu_ns;      /* of the thread, when the looks that are counted began */
    uint32_t looks;       /* in a row, without other work between them */
} mu_vigil;

/* The worker, about to park at `now` with work in flight or something else to look at. */
uint64_t mu_vigil_sleep_ns(mu_actor *actor, uint64_t now);
/* The worker did something: what is measured is looks alone. */
void mu_vigil_break(mu_actor *actor);

/* The step at which looks of `cpu_ns` each take MU_POLL_PERMILLE of a core, within the limits of base/tuning.h. */
uint64_t mu_vigil_interval_ns(uint64_t cpu_ns);

#endif
