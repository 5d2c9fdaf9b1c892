/* Placement: which device runs a job that is ready and not pinned. A policy is one function behind this table. */
#ifndef MUSTER_SCHEDULER_PLACEMENT_H
#define MUSTER_SCHEDULER_PLACEMENT_H

#include "scheduler/graph.h"

typedef struct mu_placement {
    const char *name;
    /* The index of a device of the runtime. Any thread; must not block. */
    int (*place)(muster_runtime *runtime, const muster_graph *graph, const mu_node *node);
} mu_placement;

/* By name; NULL when there is none. mu_placement_names lists them for messages. */
const mu_placement *mu_placement_find(const char *name);
extern const char mu_placement_names[];

#endif
