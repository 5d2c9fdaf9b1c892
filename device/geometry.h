/* Launch geometry against a device's limits. Pure; any thread; free of CUDA types. */
#ifndef MUSTER_DEVICE_GEOMETRY_H
#define MUSTER_DEVICE_GEOMETRY_H

#include "device/capability.h"

/* x * y * z. INVALID_GEOMETRY when the product exceeds 64 bits: names `what` ("grid" or "block") and advises to shard. */
muster_status mu_axis_product(const uint32_t axes[3], const char *what, uint64_t *product, muster_error *error);

/* Checks a launch in this order: a zero dimension of grid or block; overflow of the block's product; more threads than a
 * block may have; a block axis; a grid axis; overflow of the grid's product. The first failure is reported, with its
 * numbers. INVALID_GEOMETRY. */
muster_status mu_geometry_check(const mu_capability *capability, const uint32_t grid[3], const uint32_t block[3],
                                muster_error *error);

#endif
