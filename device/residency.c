#include "device/residency.h"

#include <inttypes.h>

#include "base/error.h"
#include "device/geometry.h"

uint64_t mu_resident_limit_of_device(const mu_capability *capability, uint64_t block_threads) {
    if (block_threads == 0 || !mu_has_grid_sync(capability)) return 0;
    if (capability->max_threads_per_multiprocessor <= 0 || capability->multiprocessors <= 0) return 0;
    uint64_t blocks = (uint64_t)capability->max_threads_per_multiprocessor / block_threads;
    int cap = capability->max_blocks_per_multiprocessor;
    if (cap > 0 && blocks > (uint64_t)cap) blocks = (uint64_t)cap;
    return blocks * (uint64_t)capability->multiprocessors;
}

muster_status mu_resident_limit_of_function(const mu_capability *capability, int64_t occupancy, uint64_t *limit,
                                            muster_error *error) {
    uint64_t product;
    if (occupancy < 0 || capability->multiprocessors < 0)
        return mu_fail(error, MUSTER_DRIVER_ERROR,
                       "the driver reports %" PRId64 " active blocks on each of %d multiprocessors; update the driver",
                       occupancy, capability->multiprocessors);
    if (__builtin_mul_overflow((uint64_t)occupancy, (uint64_t)capability->multiprocessors, &product))
        return mu_fail(error, MUSTER_DRIVER_ERROR,
                       "%" PRId64 " active blocks on each of %d multiprocessors exceed 64 bits; update the driver",
                       occupancy, capability->multiprocessors);
    *limit = product;
    return MUSTER_OK;
}

static muster_status no_cooperative(const mu_capability *capability, const char *kernel, muster_error *error) {
    return mu_fail(
        error, MUSTER_COOPERATIVE_TOO_LARGE,
        "kernel %.64s is cooperative, but the device (%.40s, compute capability %d.%d, cooperative launch %s) "
        "has no grid-wide synchronisation: 0 blocks can be resident; run it elsewhere or split it into phases",
        kernel, capability->name, capability->compute_major, capability->compute_minor,
        capability->cooperative_launch ? "yes" : "no");
}

muster_status mu_residency_stage1(const mu_capability *capability, const char *kernel, uint64_t grid_blocks,
                                  uint64_t block_threads, muster_error *error) {
    if (!mu_has_grid_sync(capability)) return no_cooperative(capability, kernel, error);
    uint64_t limit = mu_resident_limit_of_device(capability, block_threads);
    if (mu_grid_is_resident(grid_blocks, limit)) return MUSTER_OK;
    return mu_fail(
        error, MUSTER_COOPERATIVE_TOO_LARGE,
        "kernel %.64s needs %" PRIu64 " blocks of %" PRIu64 " threads resident at once where at most %" PRIu64
        " are (%d threads and %d blocks on each of %d multiprocessors; 0: not reported); use a smaller grid, a "
        "grid-stride loop, or phases",
        kernel, grid_blocks, block_threads, limit, capability->max_threads_per_multiprocessor,
        capability->max_blocks_per_multiprocessor, capability->multiprocessors);
}

muster_status mu_residency_stage2(const mu_capability *capability, const char *kernel, uint64_t grid_blocks,
                                  uint64_t block_threads, uint64_t dynamic_shared_bytes, int64_t occupancy,
                                  muster_error *error) {
    uint64_t limit = 0;
    muster_status status = mu_resident_limit_of_function(capability, occupancy, &limit, error);
    if (status || mu_grid_is_resident(grid_blocks, limit)) return status;
    return mu_fail(
        error, MUSTER_COOPERATIVE_TOO_LARGE,
        "kernel %.64s needs %" PRIu64 " blocks resident at once where at most %" PRIu64 " are (occupancy: %" PRId64
        " blocks of %" PRIu64 " threads and %" PRIu64
        " bytes of dynamic shared memory on each of %d multiprocessors); use a smaller grid, less shared memory "
        "or fewer registers, a grid-stride loop, or phases",
        kernel, grid_blocks, limit, occupancy, block_threads, dynamic_shared_bytes, capability->multiprocessors);
}

bool mu_residency_clamp(const uint32_t grid[3], uint64_t limit, uint32_t clamped[3]) {
    if (limit == 0) return false;
    uint64_t left = limit;
    uint32_t kept[3];
    for (int axis = 2; axis >= 0; axis--) {
        uint64_t size = grid[axis] ? grid[axis] : 1;
        kept[axis] = (uint32_t)(size < left ? size : left);
        left /= kept[axis];
    }
    for (int axis = 0; axis < 3; axis++) clamped[axis] = kept[axis];
    return true;
}

mu_preflight_answer mu_preflight(const mu_capability *capability, const mu_preflight_query *query) {
    uint64_t blocks, threads, limit;
    if (mu_geometry_check(capability, query->grid, query->block, NULL) ||
        mu_axis_product(query->grid, "grid", &blocks, NULL) || mu_axis_product(query->block, "block", &threads, NULL))
        return MU_PREFLIGHT_NO;
    if (query->dynamic_shared_bytes > (uint64_t)capability->shared_bytes_optin) return MU_PREFLIGHT_NO;
    if (query->cooperative && !query->program_grid_sync) return MU_PREFLIGHT_NO;
    if (query->cooperative && !mu_grid_is_resident(blocks, mu_resident_limit_of_device(capability, threads)))
        return MU_PREFLIGHT_NO;
    if (query->occupancy < 0) return MU_PREFLIGHT_UNKNOWN;
    if (!query->cooperative) return query->occupancy > 0 ? MU_PREFLIGHT_YES : MU_PREFLIGHT_NO;
    if (mu_resident_limit_of_function(capability, query->occupancy, &limit, NULL)) return MU_PREFLIGHT_NO;
    return mu_grid_is_resident(blocks, limit) ? MU_PREFLIGHT_YES : MU_PREFLIGHT_NO;
}
