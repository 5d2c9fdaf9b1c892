#include "scheduler/shard.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/buffer.h"
#include "scheduler/dispatch.h"
#include "scheduler/program.h"
#include "scheduler/runtime.h"

uint32_t mu_partition(uint32_t extent, uint32_t parts, const uint64_t *weights, uint32_t *bounds) {
    unsigned __int128 total = 0, before = 0;
    for (uint32_t i = 0; i < parts; i++) total += weights ? weights[i] : 1;
    if (total == 0) return mu_partition(extent, parts, NULL, bounds);
    uint32_t count = 0;
    bounds[0] = 0;
    for (uint32_t i = 0; i < parts; i++) {
        before += weights ? weights[i] : 1;
        /* floor(extent * before / total) never decreases and ends at extent: exact cover; equal bounds are skipped. The
         * product needs 32 + 70 bits at most. */
        uint32_t bound = (uint32_t)(extent * before / total);
        if (bound > bounds[count]) bounds[++count] = bound;
    }
    return count;
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Where slice `slice` of the argument begins, in bytes of its range; the last slice may be short. The products cannot overflow:
 * (extent - 1) * slice_bytes < bytes was checked. */
static uint64_t slice_begin(const muster_arg *arg, uint64_t bytes, uint32_t extent, uint32_t slice) {
    return slice < extent ? slice * arg->slice_bytes : bytes;
}

static bool add_buffer_argument(muster_graph *graph, mu_node *node, const mu_checked_dispatch *checked,
                                const muster_arg *arg, uint32_t first, uint32_t end, muster_buffer *partial) {
    uint32_t access = node->access_count, extent = checked->grid[checked->axis];
    if (partial)
        return mu_graph_add_access(graph, node, partial, MUSTER_READ_WRITE, 0, partial->bytes, true) &&
               mu_graph_add_address(graph, node, access, 0);
    uint64_t bytes = mu_arg_bytes(arg), low = 0, high = bytes, lead = 0;
    bool cut = arg->cut == MUSTER_CUT_BLOCK || arg->cut == MUSTER_CUT_HALO;
    if ((checked->dispatch->flags & MUSTER_DISPATCH_SHARDED) && cut) {
        uint32_t before = arg->cut == MUSTER_CUT_HALO ? (uint32_t)smaller(arg->halo_before, first) : 0;
        uint32_t after = arg->cut == MUSTER_CUT_HALO ? (uint32_t)smaller(arg->halo_after, extent - end) : 0;
        low = slice_begin(arg, bytes, extent, first - before);
        high = slice_begin(arg, bytes, extent, end + after);
        lead = before * arg->slice_bytes;
    }
    return mu_graph_add_access(graph, node, arg->buffer, arg->access, arg->offset_bytes + low, arg->offset_bytes + high,
                               high - low < bytes) &&
           mu_graph_add_address(graph, node, access, lead);
}

/* Elements before slice `slice`: the last slice may be short. */
static uint64_t elements_before(const muster_arg *arg, uint64_t slice) {
    unsigned __int128 elements = (unsigned __int128)slice * arg->slice_elements;
    return elements < arg->total_elements ? (uint64_t)elements : arg->total_elements;
}

static bool add_argument(muster_graph *graph, mu_node *node, const mu_checked_dispatch *checked, uint32_t index,
                         uint32_t first, uint32_t end, muster_buffer *partial) {
    const muster_arg *arg = &checked->dispatch->args[index];
    switch (arg->kind) {
        case MUSTER_ARG_BUFFER: return add_buffer_argument(graph, node, checked, arg, first, end, partial);
        case MUSTER_ARG_VALUE:
            return mu_graph_add_value(
                graph, node,
                arg->value_bytes <= sizeof arg->value.inline_bytes ? arg->value.inline_bytes : arg->value.pointer,
                arg->value_bytes, false);
        case MUSTER_ARG_SCRATCH: return mu_graph_add_scratch(graph, node, arg->bytes);
        case MUSTER_ARG_SHARD_OFFSET:
        case MUSTER_ARG_SHARD_COUNT: break;
    }
    bool last = end == checked->grid[checked->axis];
    uint64_t begin = elements_before(arg, first);
    uint64_t limit = last ? arg->total_elements : elements_before(arg, end);
    uint64_t value = arg->kind == MUSTER_ARG_SHARD_OFFSET ? begin : limit - begin;
    /* Little-endian, as every host of the CUDA driver is: the low bytes of the 64-bit value. */
    return mu_graph_add_value(graph, node, &value, arg->value_bytes, true);
}

muster_status mu_shard_add_node(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked, uint32_t first,
                                uint32_t end, int pin, muster_buffer *const *partials, muster_error *error) {
    const muster_dispatch *dispatch = checked->dispatch;
    mu_node *node = mu_graph_add_node(graph, MU_NODE_DISPATCH, job, pin);
    if (!node || !mu_graph_hold_kernel(graph, dispatch->kernel))
        return mu_fail_host_memory(error, "a dispatch", sizeof *node);
    if (dispatch->flags & MUSTER_DISPATCH_COOPERATIVE) node->flags |= MU_NODE_COOPERATIVE;
    if (dispatch->flags & MUSTER_DISPATCH_SHARDED) node->flags |= MU_NODE_SHARD;
    node->as.dispatch.kernel = dispatch->kernel;
    memcpy(node->as.dispatch.grid, checked->grid, sizeof checked->grid);
    memcpy(node->as.dispatch.block, checked->block, sizeof checked->block);
    node->as.dispatch.grid[checked->axis] = end - first;
    node->as.dispatch.dynamic_shared_bytes = dispatch->dynamic_shared_bytes;
    node->as.dispatch.extra = checked->extra;
    for (uint32_t i = 0; i < dispatch->arg_count; i++)
        if (!add_argument(graph, node, checked, i, first, end, partials ? partials[i] : NULL))
            return mu_fail_host_memory(error, "the arguments of a dispatch",
                                       dispatch->arg_count * sizeof(mu_parameter));
    if (!mu_graph_repeat(graph, checked->iterations - 1))
        return mu_fail_host_memory(error, "the iterations of a dispatch", checked->iterations * sizeof *node);
    return MUSTER_OK;
}

static bool is_reduced(const muster_arg *arg) {
    return arg->kind == MUSTER_ARG_BUFFER && arg->cut == MUSTER_CUT_REDUCE;
}

/* The copies of one shard but the first, which reduces into the range itself. */
static muster_status add_partials(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked, int pin,
                                  muster_buffer **partials, muster_error *error) {
    const muster_dispatch *dispatch = checked->dispatch;
    muster_status status = MUSTER_OK;
    for (uint32_t i = 0; i < dispatch->arg_count && !status; i++) {
        const muster_arg *arg = &dispatch->args[i];
        if (!is_reduced(arg)) continue;
        status = mu_buffer_create_internal(graph->handle.runtime, mu_arg_bytes(arg), &partials[i], error);
        if (!status) status = mu_reduce_add_fill(graph, job, pin, arg, partials[i], error);
    }
    return status;
}

static muster_status add_combines(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked,
                                  muster_buffer *const *partials, muster_error *error) {
    const muster_dispatch *dispatch = checked->dispatch;
    muster_status status = MUSTER_OK;
    for (uint32_t i = 0; i < dispatch->arg_count && !status; i++)
        if (partials[i]) status = mu_reduce_add_combine(graph, job, &dispatch->args[i], partials[i], error);
    return status;
}

muster_status mu_shard_add(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked,
                           muster_error *error) {
    const muster_dispatch *dispatch = checked->dispatch;
    uint32_t devices = graph->handle.runtime->device_count;
    uint32_t extent = checked->grid[checked->axis];
    uint32_t parts = dispatch->max_shards ? dispatch->max_shards : devices;
    if (parts > extent) parts = extent;
    uint32_t *bounds = mu_alloc(((size_t)parts + 1) * sizeof *bounds);
    muster_buffer **partials = mu_alloc_zeroed((size_t)parts * dispatch->arg_count + 1, sizeof(muster_buffer *));
    muster_status status = MUSTER_OK;
    if (!bounds || !partials) {
        status = mu_fail_host_memory(error, "the shards of a dispatch", (size_t)parts * sizeof *bounds);
        goto free_arrays;
    }
    uint32_t count = mu_partition(extent, parts, NULL, bounds);
    for (uint32_t shard = 0; shard < count && !status; shard++) {
        int pin = (int)(shard % devices);
        muster_buffer **own = shard ? partials + (size_t)shard * dispatch->arg_count : NULL;
        if (own) status = add_partials(graph, job, checked, pin, own, error);
        if (!status) status = mu_shard_add_node(graph, job, checked, bounds[shard], bounds[shard + 1], pin, own, error);
    }
    for (uint32_t shard = 1; shard < count && !status; shard++)
        status = add_combines(graph, job, checked, partials + (size_t)shard * dispatch->arg_count, error);
    /* The graph holds what it uses of them. */
    for (size_t i = 0; i < (size_t)parts * dispatch->arg_count; i++)
        if (partials[i]) mu_buffer_release(partials[i]);
free_arrays:
    mu_free(bounds);
    mu_free(partials);
    return status;
}
