/* Adding a dispatch to a graph, for muster_graph_dispatch and for preflight; and the checks that other jobs with arguments share
 * with it. */
#ifndef MUSTER_SCHEDULER_GRAPH_DISPATCH_H
#define MUSTER_SCHEDULER_GRAPH_DISPATCH_H

#include "scheduler/graph/graph.h"
#include "scheduler/memory/buffer.h"

/* As muster_graph_dispatch; with `shapes` false without asking whether the devices could launch it. */
muster_status mu_dispatch_add(muster_graph *graph, const muster_dispatch *dispatch, bool shapes, muster_job *job,
                              muster_error *error);

/* A buffer argument's handle, range and access; `index` is for the message. */
muster_status mu_arg_check_buffer(const muster_graph *graph, const muster_arg *arg, uint32_t index,
                                  muster_error *error);
muster_status mu_arg_check_scratch(const muster_arg *arg, uint32_t index, muster_error *error);
/* Buffer arguments that have been checked: no two may overlap when one is written. */
muster_status mu_args_check_overlaps(const muster_arg *args, uint32_t count, muster_error *error);
/* Explicit predecessors of a job to be added. */
muster_status mu_graph_check_after(const muster_graph *graph, const muster_job *after, uint32_t count,
                                   muster_error *error);

/* Of an argument that is cut over `extent` slices, and has been checked: what each row has of it, or all of it when it has no pitch. */
uint64_t mu_arg_row_bytes(const muster_arg *arg, uint32_t extent);

/* Of the range of a buffer argument whose offset has been checked. */
static inline uint64_t mu_arg_bytes(const muster_arg *arg) {
    return arg->bytes ? arg->bytes : arg->buffer->bytes - arg->offset_bytes;
}

#endif
