/* Counting launches by shape: consecutive launches mostly have one of a few shapes, so what is counted for each (threads, occupancy) is
 * worked out once, and added for many launches together when the epoch is closed. By the actor's worker. */
#ifndef MUSTER_SCHEDULER_ACTOR_TALLY_H
#define MUSTER_SCHEDULER_ACTOR_TALLY_H

#include "device/launch.h"

typedef struct mu_actor mu_actor;

enum { MU_TALLY_SHAPES = 16 };

typedef struct mu_tally {
    struct mu_tally_shape {
        mu_function function; /* NULL: empty */
        uint32_t grid[3], block[3], dynamic_shared_bytes;
        int occupancy; /* blocks per multiprocessor; negative when it cannot be told */
        uint32_t launches;
    } shapes[MU_TALLY_SHAPES]; /* where each is follows from its function */
    uint32_t pending;          /* a bit for each that has launches to count */
} mu_tally;

/* One launch. */
void mu_tally_add(mu_actor *actor, const mu_launch *launch);
/* Blocks of it per multiprocessor, from the occupancy cache; negative when it cannot be told. */
int mu_tally_occupancy(mu_actor *actor, const mu_launch *launch);
/* The device's counters are right then. */
void mu_tally_flush(mu_actor *actor);
/* The function's module is about to be unloaded. */
void mu_tally_forget(mu_actor *actor, mu_function function);

#endif
