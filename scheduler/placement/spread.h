/* Shards that go where they end first.
 *
 * A dispatch over unlike devices is cut so that by what is known all end at once (scheduler/graph/cut.h). When it runs, a shard leaves the device
 * that it is meant for if it ends clearly earlier elsewhere: there is more queued here, what it reads is there, or the kernel has turned
 * out to be slower here than when the graph was built. What its siblings will add to each device counts, so the order in which
 * they become ready does not. */
#ifndef MUSTER_SCHEDULER_PLACEMENT_SPREAD_H
#define MUSTER_SCHEDULER_PLACEMENT_SPREAD_H

#include "scheduler/run/run.h"

/* All nodes of the job that are marked MU_NODE_SPREAD; it is the last. False: out of host memory. */
bool mu_spread_add(muster_graph *graph, muster_job job);

/* What a run keeps of it: blocks that have no device yet. Begin needs nothing else of the run; end is harmless without. */
muster_status mu_spread_begin(muster_run *run, const muster_graph *graph, muster_error *error);
void mu_spread_end(muster_run *run);

/* The device of a ready node that is marked, called once for each. Any thread; takes the locks of the range tables. */
int mu_spread_place(muster_runtime *runtime, muster_run *run, const mu_node *node);

#endif
