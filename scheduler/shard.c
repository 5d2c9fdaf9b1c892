#include "scheduler/shard.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/bind.h"
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

/* A copy of each reduced argument for the shards of one device; those of the first device reduce into the range itself. */
static muster_status add_partials(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked, int pin,
                                  muster_buffer **partials, muster_error *error) {
    const muster_dispatch *dispatch = checked->dispatch;
    muster_status status = MUSTER_OK;
    for (uint32_t i = 0; i < dispatch->arg_count && !status; i++) {
        const muster_arg *arg = &dispatch->args[i];
        if (!is_reduced(arg)) continue;
        status = mu_buffer_create_internal(graph->handle.runtime, mu_arg_bytes(arg), &partials[i], error);
        if (!status) status = mu_reduce_add_fill(graph, job, pin, arg, partials[i], error);
        if (!status) graph->nodes[graph->node_count - 1].flags |= MU_NODE_SHARD;
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

/* ------------------------------------------------------------------------------------------------------------ waves -- */

/* What a shard of so many slices needs at most on a device: a shard in the middle, which has neighbours on both sides. Asked of a node
 * as it would be added, which is taken back. */
static muster_status shard_need(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked,
                                uint32_t slices, uint64_t *bytes, muster_error *error) {
    mu_graph_mark mark = mu_graph_get_mark(graph);
    size_t node = graph->node_count;
    uint32_t first = (checked->grid[checked->axis] - slices) / 2;
    mu_checked_dispatch once = *checked;
    once.iterations = 1;
    muster_status status = mu_shard_add_node(graph, job, &once, first, first + slices, MUSTER_ANY_DEVICE, NULL, error);
    if (!status) status = mu_bind_required(graph, &graph->nodes[node], bytes, error);
    mu_graph_rewind(graph, &mark);
    return status;
}

/* The most slices of which a shard needs no more than `limit`; 0: not even one. */
static muster_status most_slices(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked, uint32_t most,
                                 uint64_t limit, uint32_t *slices, muster_error *error) {
    uint32_t fits = 0, too_many = most + 1;
    while (too_many - fits > 1) {
        uint32_t middle = fits + (too_many - fits) / 2;
        uint64_t bytes;
        muster_status status = shard_need(graph, job, checked, middle, &bytes, error);
        if (status) return status;
        if (bytes <= limit)
            fits = middle;
        else
            too_many = middle;
    }
    *slices = fits;
    return MUSTER_OK;
}

static muster_status refuse_to_cut(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked,
                                   uint64_t capacity, muster_error *error) {
    uint64_t one = 0, fixed = 0;
    const muster_dispatch *dispatch = checked->dispatch;
    muster_status status = shard_need(graph, job, checked, 1, &one, error);
    if (status) return status;
    for (uint32_t i = 0; i < dispatch->arg_count; i++) {
        const muster_arg *arg = &dispatch->args[i];
        if (arg->kind == MUSTER_ARG_SCRATCH) fixed += arg->bytes;
        if (arg->kind == MUSTER_ARG_BUFFER && (arg->cut == MUSTER_CUT_REPLICATE || arg->cut == MUSTER_CUT_REDUCE))
            fixed += mu_arg_bytes(arg);
    }
    return mu_fail(
        error, MUSTER_UNCUTTABLE,
        "even one of the %u slices needs %llu bytes on a device, which can give %llu; %llu of them are replicated, "
        "reduced and scratch arguments, which every shard has whole: cut those, make the slices smaller, or "
        "raise the budget",
        checked->grid[checked->axis], (unsigned long long)one, (unsigned long long)capacity, (unsigned long long)fixed);
}

/* How many shards, unless the dispatch says it: one for each device if they fit; else so many that several fit on a device, for the
 * next to arrive and the last to be written back while one runs. */
static muster_status choose_parts(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked,
                                  uint32_t *parts, muster_error *error) {
    const muster_runtime *runtime = graph->handle.runtime;
    uint32_t extent = checked->grid[checked->axis], devices = runtime->device_count, slices = 0;
    *parts = checked->dispatch->max_shards ? checked->dispatch->max_shards : devices;
    if (*parts > extent) *parts = extent;
    if (checked->dispatch->max_shards) return MUSTER_OK;
    uint64_t capacity = UINT64_MAX, bytes;
    for (uint32_t d = 0; d < devices; d++) {
        uint64_t one = mu_ledger_capacity(mu_device_ledger(runtime->actors[d].device));
        if (one < capacity) capacity = one;
    }
    uint32_t most = (uint32_t)(((uint64_t)extent + *parts - 1) / *parts);
    muster_status status = shard_need(graph, job, checked, most, &bytes, error);
    if (status || bytes <= capacity) return status;
    for (uint64_t depth = MU_WAVE_DEPTH; depth && slices == 0; depth--)
        if ((status = most_slices(graph, job, checked, most, capacity / depth, &slices, error))) return status;
    if (slices == 0) return refuse_to_cut(graph, job, checked, capacity, error);
    *parts = (uint32_t)(((uint64_t)extent + slices - 1) / slices);
    if (*parts <= MU_MAX_SHARDS) return MUSTER_OK;
    return mu_fail(error, MUSTER_LIMIT_REACHED,
                   "the dispatch would run in %u waves; at most %d are possible: raise the "
                   "budget",
                   *parts, MU_MAX_SHARDS);
}

/* -------------------------------------------------------------------------------------------------------------- add -- */

/* Shards of one device share the copies of reduced arguments: partials[slot][argument]. */
static muster_status add_shards(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked,
                                const uint32_t *bounds, uint32_t count, uint32_t slots, muster_buffer **partials,
                                muster_error *error) {
    uint32_t arguments = checked->dispatch->arg_count;
    bool waves = count > slots && !checked->dispatch->max_shards;
    muster_status status = MUSTER_OK;
    for (uint32_t shard = 0; shard < count && !status; shard++) {
        uint32_t slot = shard % slots;
        muster_buffer **own = slot ? partials + (size_t)slot * arguments : NULL;
        if (own && shard == slot) status = add_partials(graph, job, checked, (int)slot, own, error);
        size_t node = graph->node_count;
        if (!status)
            status = mu_shard_add_node(graph, job, checked, bounds[shard], bounds[shard + 1], (int)slot, own, error);
        if (!status && waves) graph->nodes[node].flags |= MU_NODE_WAVE;
    }
    for (uint32_t slot = 1; slot < slots && !status; slot++)
        status = add_combines(graph, job, checked, partials + (size_t)slot * arguments, error);
    return status;
}

muster_status mu_shard_add(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked,
                           muster_error *error) {
    uint32_t arguments = checked->dispatch->arg_count, parts;
    muster_status status = choose_parts(graph, job, checked, &parts, error);
    if (status) return status;
    uint32_t slots = parts < graph->handle.runtime->device_count ? parts : graph->handle.runtime->device_count;
    uint32_t *bounds = mu_alloc(((size_t)parts + 1) * sizeof *bounds);
    muster_buffer **partials = mu_alloc_zeroed((size_t)slots * arguments + 1, sizeof(muster_buffer *));
    if (!bounds || !partials) {
        status = mu_fail_host_memory(error, "the shards of a dispatch", (size_t)parts * sizeof *bounds);
        goto free_arrays;
    }
    uint32_t count = mu_partition(checked->grid[checked->axis], parts, NULL, bounds);
    status = add_shards(graph, job, checked, bounds, count, slots, partials, error);
    /* The graph holds what it uses of them. */
    for (size_t i = 0; i < (size_t)slots * arguments; i++)
        if (partials[i]) mu_buffer_release(partials[i]);
free_arrays:
    mu_free(bounds);
    mu_free(partials);
    return status;
}
