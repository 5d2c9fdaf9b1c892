/* The parts of scaling_bench: each measures and prints its rows. With one device, those that need two print nothing. */
#ifndef MUSTER_TESTS_BENCH_SCALING_H
#define MUSTER_TESTS_BENCH_SCALING_H

#include "tests/bench/bench.h"

typedef struct scaling {
    bench *bench;
    uint32_t milliseconds; /* that a compute-bound dispatch takes on one device */
    uint32_t mib;          /* of each device's part of a transfer, and of a copy between devices */
    uint32_t jobs;         /* small ones, of each device */
    uint32_t hops;         /* of a chain across devices */
    uint32_t rows, width;  /* of the stencil, in elements of 4 bytes */
    uint32_t steps;
} scaling;

/* The GPU that a device of the runtime is on: itself, unless there are several actors on each. */
static inline uint32_t scaling_gpu(const scaling *scaling, uint32_t device) { return device / scaling->bench->actors; }

void scaling_compute(const scaling *scaling);  /* one dispatch, cut over all devices, that computes */
void scaling_transfer(const scaling *scaling); /* the same, that is bound by its upload */
void scaling_uneven(const scaling *scaling);   /* the first, with one device slowed by something else */
void scaling_jobs(const scaling *scaling);     /* small jobs on each device */
void scaling_copies(const scaling *scaling);   /* from one device to another */
void scaling_chain(const scaling *scaling);    /* jobs that depend on each other, from device to device */
void scaling_stencil(const scaling *scaling);  /* halos that are exchanged in each step */

#endif
