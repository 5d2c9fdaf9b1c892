/* Fields of descriptors that nothing would look at: set, they are a forgotten flag or a mistake, and are refused. Pure; any thread. */
#ifndef MUSTER_SCHEDULER_GRAPH_FIELDS_H
#define MUSTER_SCHEDULER_GRAPH_FIELDS_H

#include <stdbool.h>

#include "muster.h"

/* A buffer that is not cut, or a value, with nothing else set: as most arguments are. With one comparison, for dispatches are added a
 * million at a time. */
static inline bool mu_arg_is_plain(const muster_arg *a) {
    uint64_t cutting = a->slice_bytes | a->pitch_bytes | a->slice_elements | a->total_elements | a->halo_before |
                       a->halo_after | a->rows | (uint64_t)a->type | (uint64_t)a->reduction | (uint64_t)a->cut;
    if (a->kind == MUSTER_ARG_BUFFER) return (cutting | a->value_bytes) == 0;
    if (a->kind != MUSTER_ARG_VALUE) return false;
    return (cutting | (uint64_t)a->access | a->offset_bytes | a->bytes) == 0 && !a->buffer;
}

/* INVALID_ARGUMENT: `arg` is of no kind or cut that there is, or has a field set that its kind and cut have no use for. `index` is for the
 * message. How an argument is cut matters to sharded dispatches only, but is consistent in itself everywhere. */
muster_status mu_arg_check_fields(const muster_arg *arg, uint32_t index, muster_error *error);

/* A pin of a dispatch or an enqueue job. INVALID_ARGUMENT: it is neither 0 nor 1, or not set and a device is named all the same;
 * OUT_OF_RANGE: there is no such device. */
muster_status mu_check_pin(int pin_device, int device, uint32_t device_count, muster_error *error);

/* INVALID_ARGUMENT: no axis, several shards without SHARDED, a cluster of no blocks along x. */
muster_status mu_dispatch_check_fields(const muster_dispatch *dispatch, muster_error *error);

#endif
