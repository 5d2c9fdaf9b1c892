/* Placement: which device runs a job that is ready. For jobs that are not pinned a policy decides (muster_placement_policy in
 * muster.h; those that Muster comes with are in scheduler/placement/): this gathers what the policy wants to know, asks it, and
 * does not trust the answer. With one candidate nothing is gathered and nobody asked. */
#ifndef MUSTER_SCHEDULER_PLACEMENT_PLACEMENT_H
#define MUSTER_SCHEDULER_PLACEMENT_PLACEMENT_H

#include "scheduler/graph/graph.h"
#include "scheduler/memory/coherence.h"

/* The device of a node: where it is pinned; else one that is not lost, and has memory enough if any has. A shard goes where it was
 * meant to when the dispatch was cut, if that is one of these. With every device lost, any. Any thread. */
int mu_place(muster_runtime *runtime, const muster_graph *graph, const mu_node *node);

/* The devices that the node can go to as things are; none: all are lost. */
mu_location_mask mu_place_candidates(const muster_runtime *runtime, const muster_graph *graph, const mu_node *node);
/* How long each of them would have other things to do: what is queued there, and bringing what the node reads. */
void mu_place_costs(const muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                    mu_location_mask candidates, uint64_t costs_ns[MU_MAX_DEVICES]);

/* What there is to know about the candidates as places for the node: all but `missing` and `hops` for others is 0. Any thread. */
void mu_place_look(const muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                   mu_location_mask candidates, muster_placement_device devices[MU_MAX_DEVICES]);

#endif
