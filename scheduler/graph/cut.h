/* How a sharded dispatch is cut: how many parts, where they end, and which device each is meant for.
 *
 * Devices that are alike, by what the kernel took on them or else by what they are, get one equal part each. Unlike ones get parts in
 * proportion to what they do in the same time, each cut once more so that some can go elsewhere when the dispatch runs
 * (scheduler/placement/spread.h); one that would save less than its part costs gets none. A device whose part exceeds its own budget gets
 * it in waves. The application's own number of shards stands. */
#ifndef MUSTER_SCHEDULER_GRAPH_CUT_H
#define MUSTER_SCHEDULER_GRAPH_CUT_H

#include "scheduler/graph/shard.h"

typedef struct mu_cut_part {
    uint32_t end; /* it begins where the one before ends, the first at 0 */
    int16_t device;
    bool wave; /* one of several because all would not fit */
} mu_cut_part;

typedef struct mu_cut {
    uint32_t count; /* at least 1 */
    bool spread;    /* a part may go to another device when the graph runs */
    mu_cut_part *parts;
} mu_cut;

/* Blocks for nothing; the graph is as before, its arrays may have grown.
 * Errors: UNCUTTABLE (even one slice does not fit; a written argument is replicated), LIMIT_REACHED, OUT_OF_HOST_MEMORY. */
muster_status mu_cut_plan(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked, mu_cut *cut,
                          muster_error *error);
void mu_cut_free(mu_cut *cut);

/* The rest is pure. */

/* Cuts [0, extent) into at most `parts` contiguous ranges in proportion to `weights` (NULL: equal). bounds[0] = 0 <
 * bounds[1] < ... < bounds[count] = extent: every slice exactly once, none empty. Returns count, at least 1; bounds has
 * room for parts + 1. Exact for every 32-bit extent and any weights; all weights zero count as equal. */
uint32_t mu_partition(uint32_t extent, uint32_t parts, const uint64_t *weights, uint32_t *bounds);

/* How many of `extent` slices each device gets so that the last of them ends as early as possible, if a slice takes paces[d] on it,
 * in any unit; 0: it gets none. Of equal ones the first get more. Some pace is not 0. Exact cover. */
void mu_cut_shares(uint32_t extent, uint32_t devices, const uint64_t *paces, uint32_t *shares);
/* Sets the paces of those devices to 0 without which the rest ends no more than `part` later, the slowest first. */
void mu_cut_leave_out(uint32_t extent, uint32_t devices, uint64_t *paces, uint64_t part);

#endif
