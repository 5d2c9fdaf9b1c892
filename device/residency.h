/* Whether a cooperative grid can be resident at once. Pure; any thread; free of CUDA types.
 *
 * Stage 1 needs only the device; stage 2 needs the occupancy of the loaded function. Placement, preflight and launch all
 * ask the same two functions, so that they cannot disagree. */
#ifndef MUSTER_DEVICE_RESIDENCY_H
#define MUSTER_DEVICE_RESIDENCY_H

#include "device/capability.h"

/* Stage 1's bound, in blocks: min(threads per multiprocessor / block, blocks per multiprocessor where reported) times
 * multiprocessors. 0: no cooperative launch on this device, or not with this block. */
uint64_t mu_resident_limit_of_device(const mu_capability *capability, uint64_t block_threads);

/* Stage 2's bound: the occupancy (active blocks per multiprocessor) times multiprocessors.
 * DRIVER_ERROR when the occupancy is negative or the product overflows. */
muster_status mu_resident_limit_of_function(const mu_capability *capability, int64_t occupancy, uint64_t *limit,
                                            muster_error *error);

/* The one bounds function. */
static inline bool mu_grid_is_resident(uint64_t grid_blocks, uint64_t limit) {
    return limit > 0 && grid_blocks <= limit;
}

/* Both stages, as the launch checks them. `kernel` is for messages. COOPERATIVE_TOO_LARGE carries blocks, limit and what
 * the limit follows from. */
muster_status mu_residency_stage1(const mu_capability *capability, const char *kernel, uint64_t grid_blocks,
                                  uint64_t block_threads, muster_error *error);
muster_status mu_residency_stage2(const mu_capability *capability, const char *kernel, uint64_t grid_blocks,
                                  uint64_t block_threads, uint64_t dynamic_shared_bytes, int64_t occupancy,
                                  muster_error *error);

/* For a grid-stride kernel: shrinks the grid to at most `limit` blocks, keeping as much of y and z as fits and cutting x
 * first. False when the limit is 0. A grid that fits is returned as it is. */
bool mu_residency_clamp(const uint32_t grid[3], uint64_t limit, uint32_t clamped[3]);

typedef enum mu_preflight_answer {
    MU_PREFLIGHT_NO = 0,
    MU_PREFLIGHT_YES = 1,
    MU_PREFLIGHT_UNKNOWN = 2 /* not known before the kernel is loaded: its occupancy decides */
} mu_preflight_answer;

typedef struct mu_preflight_query {
    uint32_t grid[3], block[3];
    uint64_t dynamic_shared_bytes;
    bool cooperative;       /* the dispatch asks for all blocks at once ... */
    bool program_grid_sync; /* ... and whether the program was written for that */
    int occupancy;          /* active blocks per multiprocessor of the loaded kernel in this shape; -1: not loaded */
} mu_preflight_query;

/* The cheap preflight: nothing is allocated, loaded or asked of the driver. Bad geometry, and a cooperative dispatch on a
 * device or of a program without grid-wide synchronisation, are "no", without an error. What is not loaded may still be
 * refused for its registers and shared memory, so that is "unknown"; what is loaded gets the launch's own verdict. */
mu_preflight_answer mu_preflight(const mu_capability *capability, const mu_preflight_query *query);

#endif
