/* Many uneven jobs on four simulated devices of different modelled speed: where they are placed, how long that takes by the model, and
 * the best that is known. All of it follows from the model and the seed: nothing depends on how fast this machine is.
 *
 * Jobs are placed while no device has begun, with what an earlier runtime has learnt of the kernels, or without. What a placement takes
 * is then computed from where each job went: a device runs its jobs one after the other, and before them brings, once, what they read
 * and it lacks. */
#ifndef MUSTER_TESTS_SCHEDULER_MAKESPAN_H
#define MUSTER_TESTS_SCHEDULER_MAKESPAN_H

#include <stdbool.h>
#include <stdint.h>

enum { MAKESPAN_JOBS = 1000, MAKESPAN_DEVICES = 4 };

typedef enum makespan_shape {
    MAKESPAN_UNEVEN,    /* one block to a hundred, as often small by a factor as large */
    MAKESPAN_HEAVY,     /* mostly a few blocks, and half of all work in one job of twenty */
    MAKESPAN_GROWING,   /* uneven, the largest last: the worst order for who places job by job */
    MAKESPAN_SHRINKING, /* uneven, the largest first */
    MAKESPAN_EQUAL,
    MAKESPAN_SHAPES
} makespan_shape;

typedef struct makespan_case {
    makespan_shape shape;
    bool data; /* each job reads one of 40 buffers, which are spread over the devices, and writes one of its own */
    bool learnt;
    const char *placement; /* a policy's name */
    uint64_t seed;
} makespan_case;

typedef struct makespan {
    double placed_us; /* of the placement */
    double best_us;   /* longest jobs first, each where it ends soonest (LPT), all of them known beforehand */
    double bound_us;  /* all work by all speeds: nothing can be faster */
    uint32_t jobs[MAKESPAN_DEVICES];
} makespan;

extern const char *const makespan_shape_names[MAKESPAN_SHAPES];

/* Ends the process with a line on stderr when anything fails. `directory` is for the caches, and empty. */
void makespan_run(const makespan_case *c, const char *directory, makespan *result);

#endif
