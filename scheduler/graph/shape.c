#include "scheduler/graph/shape.h"

#include <string.h>

#include "base/error.h"
#include "device/geometry.h"
#include "device/residency.h"
#include "scheduler/program/program.h"

/* The largest cluster that every device with clusters has. */
enum { CLUSTER_BLOCKS_MAX = 8 };

static const uint32_t no_cluster[3];

mu_shape_request mu_shape_of_node(const muster_graph *graph, const mu_node *node) {
    const mu_extra *extra = mu_node_extra(graph, node);
    return (mu_shape_request){
        .kernel = node->as.dispatch->kernel,
        .grid = node->as.dispatch->grid,
        .block = node->as.dispatch->block,
        .cluster = extra ? extra->cluster : no_cluster,
        .dynamic_shared_bytes = node->as.dispatch->dynamic_shared_bytes,
        .cooperative = node->flags & MU_NODE_COOPERATIVE,
        .fallback = extra ? extra->fallback : MUSTER_FALLBACK_NONE,
        .phases = extra ? graph->phases + extra->phase_first : NULL,
        .phase_count = extra ? extra->phase_count : 0,
    };
}

static uint64_t product(const uint32_t axes[3]) { return (uint64_t)axes[0] * axes[1] * axes[2]; }

static muster_status check_cluster(const mu_capability *capability, const mu_shape_request *r, muster_error *error) {
    const uint32_t *cluster = r->cluster;
    if (cluster[0] == 0) return MUSTER_OK;
    if (!capability->cluster_launch)
        return mu_fail(
            error, MUSTER_CAPABILITY_MISSING,
            "kernel %.64s is launched in clusters, which %.40s (compute capability %d.%d) does not have; leave "
            "cluster out, or run it on compute capability 9.0 or later",
            r->kernel->name, capability->name, capability->compute_major, capability->compute_minor);
    /* Each axis first, so that the product cannot overflow. */
    bool large = false;
    for (int axis = 0; axis < 3; axis++) large |= cluster[axis] > CLUSTER_BLOCKS_MAX;
    if (large || product(cluster) > CLUSTER_BLOCKS_MAX)
        return mu_fail(error, MUSTER_INVALID_GEOMETRY, "a cluster of %u x %u x %u blocks exceeds %d; use a smaller one",
                       cluster[0], cluster[1], cluster[2], CLUSTER_BLOCKS_MAX);
    for (int axis = 0; axis < 3; axis++)
        if (r->grid[axis] % cluster[axis])
            return mu_fail(
                error, MUSTER_INVALID_GEOMETRY,
                "the grid of %u blocks along axis %d is not a multiple of the cluster's %u; round the grid up",
                r->grid[axis], axis, cluster[axis]);
    return MUSTER_OK;
}

/* What one kernel allows a block; `kernel` may be one of the phases. */
static muster_status check_kernel(const mu_capability *capability, const mu_shape_request *r,
                                  const muster_kernel *kernel, uint64_t threads, muster_error *error) {
    const mu_function_info *info = &kernel->info;
    if (threads > (uint64_t)info->max_threads)
        return mu_fail(
            error, MUSTER_INVALID_GEOMETRY,
            "%llu threads per block exceed the %d that kernel %.64s can run with on %.40s; use a smaller block",
            (unsigned long long)threads, info->max_threads, kernel->name, capability->name);
    uint64_t shared = (uint64_t)r->dynamic_shared_bytes + (uint64_t)info->static_shared_bytes;
    if (capability->shared_bytes_optin > 0 && shared > (uint64_t)capability->shared_bytes_optin)
        return mu_fail(
            error, MUSTER_INVALID_GEOMETRY,
            "%u dynamic and %d static bytes of shared memory of kernel %.64s exceed the %d a block can have on "
            "%.40s; use smaller tiles",
            r->dynamic_shared_bytes, info->static_shared_bytes, kernel->name, capability->shared_bytes_optin,
            capability->name);
    return MUSTER_OK;
}

/* The grid is not resident as `status` says: the declared fallback, or the refusal that is in `error` already. */
static muster_status fall_back(const mu_shape_request *r, muster_status status, mu_shape *shape) {
    if (status != MUSTER_COOPERATIVE_TOO_LARGE) return status;
    if (r->fallback == MUSTER_FALLBACK_CLAMP && !mu_residency_clamp(r->grid, shape->limit, shape->grid)) return status;
    if (r->fallback == MUSTER_FALLBACK_NONE) return status;
    shape->fallback = r->fallback;
    return MUSTER_OK;
}

muster_status mu_shape_resolve(const mu_capability *capability, const mu_shape_request *r, int occupancy, mu_shape *out,
                               muster_error *error) {
    mu_shape shape = {.fallback = MUSTER_FALLBACK_NONE};
    uint64_t blocks, threads;
    muster_status status;
    if ((status = mu_geometry_check(capability, r->grid, r->block, error)) ||
        (status = mu_axis_product(r->grid, "grid", &blocks, error)) ||
        (status = mu_axis_product(r->block, "block", &threads, error)) ||
        (status = check_cluster(capability, r, error)))
        return status;
    memcpy(shape.grid, r->grid, sizeof shape.grid);
    if (r->cooperative) {
        shape.limit = mu_resident_limit_of_device(capability, threads);
        status = fall_back(r, mu_residency_stage1(capability, r->kernel->name, blocks, threads, error), &shape);
        if (status) return status;
    }
    if ((status = check_kernel(capability, r, r->kernel, threads, error))) return status;
    for (uint32_t i = 0; i < r->phase_count; i++)
        if ((status = check_kernel(capability, r, r->phases[i], threads, error))) return status;
    if (r->cooperative && occupancy >= 0) {
        uint64_t limit;
        if ((status = mu_resident_limit_of_function(capability, occupancy, &limit, error))) return status;
        /* The device's own bound holds whatever the occupancy is. */
        if (limit < shape.limit) shape.limit = limit;
        if (!mu_grid_is_resident(blocks, shape.limit)) {
            status = mu_residency_stage2(capability, r->kernel->name, blocks, threads, r->dynamic_shared_bytes,
                                         occupancy, error);
            if (status) status = fall_back(r, status, &shape);
        }
        if (status) return status;
    }
    *out = shape;
    return MUSTER_OK;
}
