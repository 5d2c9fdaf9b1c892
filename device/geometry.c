#include "device/geometry.h"

#include <inttypes.h>

#include "base/error.h"

static const char axis_names[3] = {'x', 'y', 'z'};

#define SIZE "%" PRIu32 " x %" PRIu32 " x %" PRIu32

muster_status mu_axis_product(const uint32_t axes[3], const char *what, uint64_t *product, muster_error *error) {
    uint64_t result = (uint64_t)axes[0] * axes[1];
    if (__builtin_mul_overflow(result, (uint64_t)axes[2], &result))
        return mu_fail(error, MUSTER_INVALID_GEOMETRY,
                       "the %s of " SIZE " has more than 2^64 - 1 elements; shard the dispatch into smaller ones", what,
                       axes[0], axes[1], axes[2]);
    *product = result;
    return MUSTER_OK;
}

static muster_status check_zero(const uint32_t axes[3], const char *what, muster_error *error) {
    for (int i = 0; i < 3; i++)
        if (axes[i] == 0)
            return mu_fail(error, MUSTER_INVALID_GEOMETRY,
                           "the %s of " SIZE " is zero along %c; give at least 1 along each axis", what, axes[0],
                           axes[1], axes[2], axis_names[i]);
    return MUSTER_OK;
}

static muster_status check_block_axes(const uint32_t block[3], const int limits[3], muster_error *error) {
    for (int i = 0; i < 3; i++)
        if (block[i] > (uint32_t)(limits[i] > 0 ? limits[i] : 0))
            return mu_fail(error, MUSTER_INVALID_GEOMETRY,
                           "the block of " SIZE " is %" PRIu32
                           " along %c where the device allows %d; use smaller blocks",
                           block[0], block[1], block[2], block[i], axis_names[i], limits[i]);
    return MUSTER_OK;
}

static muster_status check_grid_axes(const uint32_t grid[3], const int limits[3], muster_error *error) {
    for (int i = 0; i < 3; i++)
        if (grid[i] > (uint32_t)(limits[i] > 0 ? limits[i] : 0))
            return mu_fail(error, MUSTER_INVALID_GEOMETRY,
                           "the grid of " SIZE " is %" PRIu32
                           " along %c where the device allows %d; move work to another axis, or shard the dispatch "
                           "along %c",
                           grid[0], grid[1], grid[2], grid[i], axis_names[i], limits[i], axis_names[i]);
    return MUSTER_OK;
}

muster_status mu_geometry_check(const mu_capability *capability, const uint32_t grid[3], const uint32_t block[3],
                                muster_error *error) {
    uint64_t threads = 0, blocks = 0;
    muster_status status = check_zero(grid, "grid", error);
    if (!status) status = check_zero(block, "block", error);
    if (!status) status = mu_axis_product(block, "block", &threads, error);
    if (status) return status;
    if (threads > (uint64_t)capability->max_threads_per_block)
        return mu_fail(error, MUSTER_INVALID_GEOMETRY,
                       "the block of " SIZE " has %" PRIu64 " threads where the device allows %d; use smaller blocks",
                       block[0], block[1], block[2], threads, capability->max_threads_per_block);
    status = check_block_axes(block, capability->max_block, error);
    if (!status) status = check_grid_axes(grid, capability->max_grid, error);
    if (!status) status = mu_axis_product(grid, "grid", &blocks, error);
    return status;
}
