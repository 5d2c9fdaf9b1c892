/* Counters of one device: one list, from which the struct, the JSON and the Prometheus text are made.
 *
 * A counter has one writer, the device's worker (slow_callbacks: the watch thread; placements_refused: whoever
 * places, by atomic additions); anyone may read. Each is exact once the device is idle, and no order
 * between two of them is promised. */
#ifndef MUSTER_DEVICE_TELEMETRY_H
#define MUSTER_DEVICE_TELEMETRY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "muster.h"

/* X(member, "help text of the export"). Append freely; members that cache/ and scheduler/ count are here too, so that a
 * device has one set. */
#define MU_DEVICE_COUNTERS(X)                                                                                          \
    X(launches, "kernel launches")                                                                                     \
    X(cooperative_launches, "of these, cooperative ones")                                                              \
    X(bursts, "backlogs encoded into a graph")                                                                         \
    X(graph_launches, "graphs launched")                                                                               \
    X(burst_jobs, "jobs that ran as nodes of a burst")                                                                 \
    X(branch_bursts, "bursts whose jobs could run side by side")                                                       \
    X(burst_updates, "nodes of bursts that were given other arguments or another kernel")                              \
    X(burst_reshapes, "of these, given another kernel, grid or block")                                                 \
    X(bytes_to_device, "bytes copied from the host")                                                                   \
    X(bytes_to_host, "bytes copied to the host")                                                                       \
    X(bytes_from_peer, "bytes copied from another device")                                                             \
    X(bytes_within_device, "bytes copied within the device")                                                           \
    X(peer_copies, "copies from another device")                                                                       \
    X(fills, "fills")                                                                                                  \
    X(events_recorded, "events recorded")                                                                              \
    X(event_waits, "waits of a stream for an event")                                                                   \
    X(synchronisations, "times a thread waited for a stream")                                                          \
    X(module_loads, "modules loaded")                                                                                  \
    X(module_unloads, "modules unloaded")                                                                              \
    X(device_stalls, "calls that may have waited for the device to drain")                                             \
    X(allocations, "allocations from the pool")                                                                        \
    X(pool_hits, "of these, served from memory the pool held")                                                         \
    X(pool_trims, "times the pool gave its cached memory back")                                                        \
    X(memory_samples, "times the driver was asked for free memory")                                                    \
    X(occupancy_queries, "occupancy queries")                                                                          \
    X(occupancy_measured, "launches whose occupancy is known")                                                         \
    X(occupancy_unmeasured, "launches whose occupancy is not known")                                                   \
    X(occupancy_sum_basis_points, "sum of the known occupancies, in 1/10000")                                          \
    X(threads_scheduled, "thread slots of the launched blocks, in whole warps")                                        \
    X(threads_wasted, "of these, slots beyond the block size or the element count")                                    \
    X(memory_cache_hits, "programs found in the PTX cache")                                                            \
    X(memory_cache_misses, "programs compiled for the PTX cache")                                                      \
    X(memory_cache_evictions, "programs evicted from the PTX cache")                                                   \
    X(disk_cache_hits, "programs found on disk")                                                                       \
    X(disk_cache_misses, "programs not found on disk")                                                                 \
    X(disk_cache_evictions, "programs removed from disk")                                                              \
    X(module_cache_hits, "modules found loaded")                                                                       \
    X(module_cache_misses, "modules that had to be loaded")                                                            \
    X(module_cache_evictions, "modules unloaded for others")                                                           \
    X(compiles, "compilations")                                                                                        \
    X(admissions, "jobs admitted")                                                                                     \
    X(admission_waits, "jobs that waited for memory")                                                                  \
    X(evictions, "device copies given up to make room")                                                                \
    X(write_backs, "of these, copies whose content went to the host first")                                            \
    X(arrivals, "transfers to the device that only their jobs waited for, not its stream")                             \
    X(jobs_held, "times a job was held back for its input or for a long job elsewhere, and others went first")         \
    X(waves, "parts of dispatches that ran one after the other for want of memory")                                    \
    X(refusals, "jobs refused")                                                                                        \
    X(callbacks, "enqueue callbacks called")                                                                           \
    X(slow_callbacks, "of these, not returned within enqueue_limit_ns")                                                \
    X(placements_refused, "jobs that came here because the placement policy named no candidate")                       \
    X(steals, "jobs taken from the queue of another device")                                                           \
    X(steals_given, "jobs given to another device")                                                                    \
    X(steal_requests, "times another device was asked for jobs")                                                       \
    X(overflows, "additions dropped because a counter would have overflowed")

typedef struct mu_device_counters {
#define MU_COUNTER_MEMBER(member, help) atomic_uint_fast64_t member;
    MU_DEVICE_COUNTERS(MU_COUNTER_MEMBER)
#undef MU_COUNTER_MEMBER
} mu_device_counters;

/* The one writer adds. A sum beyond 64 bits leaves the counter and counts an overflow. Relaxed: nothing is published
 * through a counter, and with one writer a load and a store do not lose an addition. */
static inline void mu_count(mu_device_counters *counters, atomic_uint_fast64_t *counter, uint64_t amount) {
    uint64_t sum;
    if (__builtin_add_overflow((uint64_t)atomic_load_explicit(counter, memory_order_relaxed), amount, &sum)) {
        counter = &counters->overflows;
        sum = atomic_load_explicit(counter, memory_order_relaxed) + 1;
        if (sum == 0) return;
    }
    atomic_store_explicit(counter, sum, memory_order_relaxed);
}

static inline uint64_t mu_counter_read(const atomic_uint_fast64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Sets every counter to zero; nothing else is touched, caches least of all. By the writer, or while the device idles. */
void mu_counters_reset(mu_device_counters *counters);

/* Occupancy of a launch in 1/10000 of the warps a multiprocessor can hold, rounded down, at most 10000:
 *     blocks * ceil(block_threads / warp) * 10000 / (threads_per_multiprocessor / warp)
 * -1: not measurable (no blocks or threads, or the warp size or thread count of the device is not known). */
int mu_occupancy_basis_points(int blocks, uint64_t block_threads, int warp_size, int threads_per_multiprocessor);

/* Of so many equal launches: counts their occupancy (-1: unmeasured), and their thread slots: `elements` of 0 means one per thread. */
void mu_count_occupancy(mu_device_counters *counters, int basis_points, uint64_t times);
void mu_count_threads(mu_device_counters *counters, uint64_t grid_blocks, uint64_t block_threads, int warp_size,
                      uint64_t elements, uint64_t times);

/* Mean of the measured occupancies in 1/10000, 0 when none was measured. */
uint64_t mu_mean_occupancy(const mu_device_counters *counters);

/* ------------------------------------------------------------------------------------------------------- export -- */

typedef struct mu_telemetry_source {
    int device;
    const char *name; /* of the device; may be NULL */
    const mu_device_counters *counters;
} mu_telemetry_source;

/* {"devices": [{"device": 0, "name": "...", "counters": {"launches": 0, ...}, "mean_occupancy_basis_points": 0}]}
 * Counters beyond 2^63 - 1, which JSON readers do not take, are written as that. `*text` is the caller's, freed with
 * mu_free. Any thread. Errors: OUT_OF_HOST_MEMORY. */
muster_status mu_telemetry_json(const mu_telemetry_source *sources, size_t count, char **text, muster_error *error);

/* The Prometheus text format: muster_<member>_total{device="0",name="..."} 0, each with its HELP and TYPE. */
muster_status mu_telemetry_prometheus(const mu_telemetry_source *sources, size_t count, char **text,
                                      muster_error *error);

#endif
