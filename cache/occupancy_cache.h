/* Resident blocks per multiprocessor by launch shape, for one device: the driver is asked once per (function, threads
 * of a block, dynamic shared bytes). Entries die with their module (mu_occupancy_cache_forget, which the module cache
 * calls). A failed query is not remembered, and running out of host memory only means asking again.
 *
 * Threading: the device's worker only. Nothing blocks. */
#ifndef MUSTER_CACHE_OCCUPANCY_CACHE_H
#define MUSTER_CACHE_OCCUPANCY_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "muster.h"

typedef struct mu_occupancy_cache mu_occupancy_cache;

/* Shapes kept; one more and the cache starts over, for a program that varies its shared memory without end. */
enum { MU_OCCUPANCY_SHAPES_MAX = 8192 };

/* Errors: OUT_OF_HOST_MEMORY. */
muster_status mu_occupancy_cache_create(mu_device *device, mu_occupancy_cache **cache, muster_error *error);
void mu_occupancy_cache_destroy(mu_occupancy_cache *cache); /* NULL is ignored */

/* Active blocks per multiprocessor. Errors: those of mu_function_occupancy, LAUNCH_FAILED among them. */
muster_status mu_occupancy_cache_get(mu_occupancy_cache *cache, mu_function function, uint32_t block_threads,
                                     uint64_t dynamic_shared_bytes, int *blocks, muster_error *error);

/* The function is gone; a later one may have its address. */
void mu_occupancy_cache_forget(mu_occupancy_cache *cache, mu_function function);

typedef struct mu_occupancy_cache_stats {
    uint64_t hits, queries, failures;
    uint64_t shapes; /* now */
} mu_occupancy_cache_stats;

void mu_occupancy_cache_get_stats(const mu_occupancy_cache *cache, mu_occupancy_cache_stats *stats);

#endif
