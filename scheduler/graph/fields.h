/* Fields of descriptors that nothing would look at: set, they are a forgotten flag or a mistake, and are refused. Pure; any thread. */
#ifndef MUSTER_SCHEDULER_GRAPH_FIELDS_H
#define MUSTER_SCHEDULER_GRAPH_FIELDS_H

#include "muster.h"

/* INVALID_ARGUMENT: `arg` is of no kind or cut that there is, or has a field set that its kind and cut have no use for. `index` is for the
 * message. How an argument is cut matters to sharded dispatches only, but is consistent in itself everywhere. */
muster_status mu_arg_check_fields(const muster_arg *arg, uint32_t index, muster_error *error);

/* A pin of a dispatch or an enqueue job. INVALID_ARGUMENT: it is neither 0 nor 1, or not set and a device is named all the same;
 * OUT_OF_RANGE: there is no such device. */
muster_status mu_check_pin(int pin_device, int device, uint32_t device_count, muster_error *error);

/* INVALID_ARGUMENT: no axis, several shards without SHARDED, a cluster of no blocks along x. */
muster_status mu_dispatch_check_fields(const muster_dispatch *dispatch, muster_error *error);

#endif
