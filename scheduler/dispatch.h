/* Adding a dispatch to a graph, for muster_graph_dispatch and for preflight. */
#ifndef MUSTER_SCHEDULER_DISPATCH_H
#define MUSTER_SCHEDULER_DISPATCH_H

#include "scheduler/graph.h"

/* As muster_graph_dispatch; with `shapes` false without asking whether the devices could launch it. */
muster_status mu_dispatch_add(muster_graph *graph, const muster_dispatch *dispatch, bool shapes, muster_job *job,
                              muster_error *error);

#endif
