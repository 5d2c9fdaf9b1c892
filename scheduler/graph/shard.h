/* Cutting one dispatch along an axis of its grid, and the nodes that come of it. */
#ifndef MUSTER_SCHEDULER_GRAPH_SHARD_H
#define MUSTER_SCHEDULER_GRAPH_SHARD_H

#include "scheduler/graph/graph.h"

/* A dispatch whose descriptor has been checked. */
typedef struct mu_checked_dispatch {
    const muster_dispatch *dispatch;
    mu_kernel_shape shape; /* of the whole */
    uint32_t cluster[3];   /* {0, 0, 0}: none */
    uint32_t axis;
    int pin;
    bool everywhere;     /* every device takes the shape as an ordinary launch */
    uint32_t iterations; /* at least 1 */
} mu_checked_dispatch;

/* scheduler/graph/extra.c: the side record of a dispatch, as its nodes name it; 0 when it needs none. Looks up a barrier counter on
 * the devices when the graph does not know it: blocks then. The caller rewinds the graph on failure.
 * Errors: ENTRY_NOT_FOUND, INVALID_ARGUMENT (a counter that is not whole words), OUT_OF_HOST_MEMORY. */
muster_status mu_graph_add_extra(muster_graph *graph, const mu_checked_dispatch *checked, uint32_t *index,
                                 muster_error *error);

/* Adds one dispatch node, or one for each iteration, for slices [first, end) of the axis. `partials[i]`, where not NULL, replaces argument i. */
muster_status mu_shard_add_node(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked, uint32_t first,
                                uint32_t end, int pin, muster_buffer *const *partials, muster_error *error);

/* Adds the nodes of a sharded dispatch: its shards, and for each reduced argument the partial sums' fills and their
 * addition to the range. The caller rewinds the graph on failure. Blocks when it is the first reduction of the runtime. */
muster_status mu_shard_add(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked,
                           muster_error *error);

/* scheduler/graph/reduce.c: whether there is such a reduction. */
muster_status mu_reduce_check(muster_type type, muster_reduction reduction, muster_error *error);
/* Add to the graph: a node that fills `copy` with the identity of the reduced argument, and one that combines it with the
 * argument's range. Block when they are the runtime's first of their kind: the kernel is looked up. */
muster_status mu_reduce_add_fill(muster_graph *graph, muster_job job, int pin, const muster_arg *arg,
                                 muster_buffer *copy, muster_error *error);
muster_status mu_reduce_add_combine(muster_graph *graph, muster_job job, const muster_arg *arg, muster_buffer *copy,
                                    muster_error *error);
void mu_reduce_destroy(muster_runtime *runtime);
uint32_t mu_type_bytes(muster_type type); /* 0: not a type */

#endif
