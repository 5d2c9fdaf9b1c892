/* Host memory of which a chosen allocation fails, and where allocations come from. A program makes the same allocation again and
 * again, in loops and for each of many alike things; allocations are told apart by their path, the calls that lead to them, so that
 * a test may try each path a few times instead of each allocation once. */
#ifndef MUSTER_TESTS_SCHEDULER_FAILING_MEMORY_H
#define MUSTER_TESTS_SCHEDULER_FAILING_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* Begins: Muster's host memory is counted, and one allocation fails, with all after it when `sticky`: the first that has this path,
 * of those around the one numbered `near` from now on (1: the first; 0: none fails). Threads make it uncertain which number an
 * allocation has, so the 64 before and after are looked at. No runtime may exist, and none at the end. Paths that lead through
 * the calling function begin there. */
void failing_memory_begin(uint64_t near, uint64_t path, bool sticky);

typedef struct failing_memory_report {
    long live_blocks;  /* that were allocated since the beginning and are not freed */
    uint64_t failures; /* allocations that were refused */
} failing_memory_report;

/* Ends: memory is malloc's again. */
failing_memory_report failing_memory_end(void);

/* A list of allocations, by path. */
typedef struct memory_census {
    uint64_t *path; /* of each allocation, the first is path[0]; owned by the caller, who frees it */
    uint64_t count;
} memory_census;

/* From the next failing_memory_begin on the path of every allocation is noted, which takes some microseconds for each, until _end,
 * which is instead of failing_memory_end. */
void memory_census_prepare(void);
memory_census memory_census_end(void);

/* How many of the first n allocations have the path of the nth (1: it is the first of its path). 1 <= n <= count. */
uint64_t memory_census_rank(const memory_census *census, uint64_t n);

#endif
