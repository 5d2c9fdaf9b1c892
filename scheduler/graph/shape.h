/* What a dispatch becomes on one device: whether its shape can be launched there, whether a cooperative grid can be resident,
 * and which of the declared fallbacks applies. Building a graph, preflight and the launch ask the same functions, so that they
 * cannot disagree. Pure; any thread. */
#ifndef MUSTER_SCHEDULER_GRAPH_SHAPE_H
#define MUSTER_SCHEDULER_GRAPH_SHAPE_H

#include "device/capability.h"
#include "scheduler/graph/graph.h"

/* What was asked for. The pointers are the asker's. */
typedef struct mu_shape_request {
    const muster_kernel *kernel;
    const uint32_t *grid, *block, *cluster; /* three each; cluster[0] 0: none */
    uint32_t dynamic_shared_bytes;
    bool cooperative;
    muster_fallback fallback;
    muster_kernel *const *phases;
    uint32_t phase_count;
} mu_shape_request;

mu_shape_request mu_shape_of_node(const muster_graph *graph, const mu_node *node); /* a dispatch */

typedef struct mu_shape {
    uint32_t grid[3];         /* smaller than asked for when clamped */
    muster_fallback fallback; /* what was used of the declared one */
    uint64_t limit;           /* resident blocks; 0 when not cooperative */
} mu_shape;

/* In this order: geometry; clusters; for a cooperative dispatch whether the device alone refuses it (stage 1), which a
 * fallback turns into its use; what the loaded kernel allows, and its phases; with its occupancy (active blocks per
 * multiprocessor; negative: not known yet) whether the grid is resident (stage 2), or again the fallback.
 * Errors: INVALID_GEOMETRY, CAPABILITY_MISSING, COOPERATIVE_TOO_LARGE, DRIVER_ERROR (an impossible occupancy). */
muster_status mu_shape_resolve(const mu_capability *capability, const mu_shape_request *request, int occupancy,
                               mu_shape *shape, muster_error *error);

#endif
