/* Placement: which device runs a job that is ready. A policy, for jobs that are not pinned, is one function behind this table. */
#ifndef MUSTER_SCHEDULER_PLACEMENT_H
#define MUSTER_SCHEDULER_PLACEMENT_H

#include "scheduler/coherence.h"
#include "scheduler/graph.h"

typedef struct mu_placement {
    const char *name;
    /* One of the candidates, a mask of devices that is not empty. Any thread; must not block. */
    int (*place)(muster_runtime *runtime, const muster_graph *graph, const mu_node *node, mu_location_mask candidates);
} mu_placement;

/* The device of a node: where it is pinned; else one that is not lost, and has memory enough if any has. A shard goes where it was
 * meant to when the dispatch was cut, if that is one of these. With every device lost, any. Any thread. */
int mu_place(muster_runtime *runtime, const muster_graph *graph, const mu_node *node);

/* By name; NULL when there is none. mu_placement_names lists them for messages. */
const mu_placement *mu_placement_find(const char *name);
extern const char mu_placement_names[];

#endif
