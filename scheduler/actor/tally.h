/* Counting launches by shape: launches mostly have one of some shapes, so what is counted for each (threads, occupancy) is worked out
 * once, and added for many launches together when the epoch is closed. By the actor's worker. */
#ifndef MUSTER_SCHEDULER_ACTOR_TALLY_H
#define MUSTER_SCHEDULER_ACTOR_TALLY_H

#include "device/launch.h"

typedef struct mu_actor mu_actor;

/* A shape is looked for in MU_TALLY_REACH places, from where its key says on. When 64 shapes are in use, a quarter of the places is taken,
 * and hardly any has to make room for another. */
enum { MU_TALLY_SHAPES = 256, MU_TALLY_REACH = 8 };

typedef struct mu_tally_shape {
    mu_function function; /* NULL: empty */
    uint32_t grid[3], block[3], dynamic_shared_bytes;
    int occupancy; /* blocks per multiprocessor; negative when it cannot be told */
    uint32_t launches;
} mu_tally_shape;

typedef struct mu_tally {
    mu_tally_shape shapes[MU_TALLY_SHAPES];
    uint64_t pending[MU_TALLY_SHAPES / 64]; /* a bit for each that has launches to count */
    /* The shape of the last launch, and its tag; NULL: none since the last flush. */
    mu_tally_shape *last;
    const void *last_tag;
} mu_tally;

/* One launch. Launches with one tag have the same shape until the next flush, so that it is not looked for again; NULL says nothing. */
void mu_tally_add(mu_actor *actor, const mu_launch *launch, const void *tag);
/* Blocks of it per multiprocessor, from the occupancy cache; negative when it cannot be told. */
int mu_tally_occupancy(mu_actor *actor, const mu_launch *launch);
/* The device's counters are right then. */
void mu_tally_flush(mu_actor *actor);
/* The function's module is about to be unloaded. */
void mu_tally_forget(mu_actor *actor, mu_function function);

#endif
