#include "scheduler/graph/shard.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/graph/cut.h"
#include "scheduler/graph/dispatch.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/placement/spread.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Where slice `slice` of the argument begins, in bytes of its range; the last slice may be short. The products cannot overflow:
 * (extent - 1) * slice_bytes < bytes was checked. */
static uint64_t slice_begin(const muster_arg *arg, uint64_t bytes, uint32_t extent, uint32_t slice) {
    return slice < extent ? slice * arg->slice_bytes : bytes;
}

static bool add_buffer_argument(muster_graph *graph, mu_node *node, const mu_checked_dispatch *checked,
                                const muster_arg *arg, uint32_t first, uint32_t end, muster_buffer *partial) {
    uint32_t access = node->access_count, extent = checked->shape.grid[checked->axis];
    if (partial)
        return mu_graph_add_access(graph, node, partial, MUSTER_READ_WRITE, 0, partial->bytes, true) &&
               mu_graph_add_address(graph, node, access, 0);
    uint64_t bytes = mu_arg_bytes(arg), low = 0, high = bytes, lead = 0;
    uint32_t rows = 1;
    bool cut = (checked->dispatch->flags & MUSTER_DISPATCH_SHARDED) &&
               (arg->cut == MUSTER_CUT_BLOCK || arg->cut == MUSTER_CUT_HALO);
    if (cut) {
        uint32_t before = arg->cut == MUSTER_CUT_HALO ? (uint32_t)smaller(arg->halo_before, first) : 0;
        uint32_t after = arg->cut == MUSTER_CUT_HALO ? (uint32_t)smaller(arg->halo_after, extent - end) : 0;
        uint64_t row_bytes = mu_arg_row_bytes(arg, extent);
        low = slice_begin(arg, row_bytes, extent, first - before);
        high = slice_begin(arg, row_bytes, extent, end + after);
        lead = before * arg->slice_bytes;
        if (arg->rows > 1) {
            if (high - low < arg->pitch_bytes) rows = arg->rows;
            high += (arg->rows - 1) * arg->pitch_bytes;
        }
    }
    /* With its halo a part may be all of the range, and still none of the rest of the buffer. */
    return mu_graph_add_access(graph, node, arg->buffer, arg->access, arg->offset_bytes + low, arg->offset_bytes + high,
                               cut && end - first < extent) &&
           (rows == 1 || mu_graph_set_stride(graph, arg->pitch_bytes, rows)) &&
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
    if (arg->kind == MUSTER_ARG_BUFFER) return add_buffer_argument(graph, node, checked, arg, first, end, partial);
    if (arg->kind != MUSTER_ARG_SHARD_OFFSET && arg->kind != MUSTER_ARG_SHARD_COUNT)
        return mu_graph_add_arguments(graph, node, arg, 1);
    bool last = end == checked->shape.grid[checked->axis];
    uint64_t begin = elements_before(arg, first);
    uint64_t limit = last ? arg->total_elements : elements_before(arg, end);
    uint64_t value = arg->kind == MUSTER_ARG_SHARD_OFFSET ? begin : limit - begin;
    /* Little-endian, as every host of the CUDA driver is: the low bytes of the 64-bit value. */
    return mu_graph_add_value(graph, node, &value, arg->value_bytes, true);
}

static const mu_kernel_shape *add_shape(muster_graph *graph, const mu_checked_dispatch *checked, uint32_t slices) {
    mu_kernel_shape wanted = checked->shape;
    wanted.grid[checked->axis] = slices;
    mu_kernel_shape *shape = mu_graph_add_shape(graph, &wanted);
    if (shape && slices == checked->shape.grid[checked->axis]) shape->checked |= checked->everywhere;
    return shape;
}

muster_status mu_shard_add_node(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked, uint32_t first,
                                uint32_t end, int pin, muster_buffer *const *partials, muster_error *error) {
    const muster_dispatch *dispatch = checked->dispatch;
    const mu_kernel_shape *shape = add_shape(graph, checked, end - first);
    mu_node *node = mu_graph_add_node(graph, MU_NODE_DISPATCH, job, pin);
    if (!node || !shape) return mu_fail_host_memory(error, "a dispatch", sizeof *node);
    if (dispatch->flags & MUSTER_DISPATCH_COOPERATIVE) node->flags |= MU_NODE_COOPERATIVE;
    if (dispatch->flags & MUSTER_DISPATCH_SHARDED) node->flags |= MU_NODE_SHARD;
    node->as.dispatch = shape;
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

/* -------------------------------------------------------------------------------------------------------------- add -- */

/* Room for all shards at once: growing step by step costs more than they do. Without it they find what they need themselves. */
static void reserve(muster_graph *graph, const mu_checked_dispatch *checked, size_t count) {
    size_t arguments = count * checked->dispatch->arg_count;
    (void)mu_grow(&graph->nodes, &graph->node_capacity, graph->node_count + count * checked->iterations,
                  sizeof *graph->nodes);
    (void)mu_grow(&graph->accesses, &graph->access_capacity, graph->access_count + arguments, sizeof *graph->accesses);
    (void)mu_grow(&graph->parameters, &graph->parameter_capacity, graph->parameter_count + arguments,
                  sizeof *graph->parameters);
}

/* Shards meant for one device share the copies of reduced arguments, partials[device][argument], also where they are run elsewhere; those
 * of the first reduce into the range itself. */
static muster_status add_shards(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked,
                                const mu_cut *cut, muster_buffer **partials, muster_error *error) {
    uint32_t arguments = checked->dispatch->arg_count, first = 0;
    int last = MUSTER_ANY_DEVICE, direct = cut->parts[0].device;
    muster_status status = MUSTER_OK;
    reserve(graph, checked, cut->count);
    for (uint32_t i = 0; i < cut->count && !status; i++) {
        const mu_cut_part *part = &cut->parts[i];
        muster_buffer **own = part->device != direct ? partials + (size_t)part->device * arguments : NULL;
        /* Each device's parts follow each other. */
        if (own && part->device != last) status = add_partials(graph, job, checked, part->device, own, error);
        last = part->device;
        size_t node = graph->node_count;
        if (!status) status = mu_shard_add_node(graph, job, checked, first, part->end, part->device, own, error);
        for (size_t n = node; n < graph->node_count; n++) {
            if (part->wave) graph->nodes[n].flags |= MU_NODE_WAVE;
            if (cut->spread) graph->nodes[n].flags |= MU_NODE_SPREAD;
        }
        first = part->end;
    }
    for (uint32_t d = 0; d < graph->handle.runtime->device_count && !status; d++)
        status = add_combines(graph, job, checked, partials + (size_t)d * arguments, error);
    if (!status && cut->spread && !mu_spread_add(graph, job))
        status = mu_fail_host_memory(error, "the shards of a dispatch", sizeof(mu_spread));
    return status;
}

muster_status mu_shard_add(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked,
                           muster_error *error) {
    size_t copies = (size_t)graph->handle.runtime->device_count * checked->dispatch->arg_count;
    mu_cut cut;
    muster_status status = mu_cut_plan(graph, job, checked, &cut, error);
    if (status) return status;
    muster_buffer **partials = mu_alloc_zeroed(copies + 1, sizeof *partials);
    if (partials)
        status = add_shards(graph, job, checked, &cut, partials, error);
    else
        status = mu_fail_host_memory(error, "the copies of reduced arguments", copies * sizeof *partials);
    /* The graph holds what it uses of them. */
    for (size_t i = 0; partials && i < copies; i++)
        if (partials[i]) mu_buffer_release(partials[i]);
    mu_free(partials);
    mu_cut_free(&cut);
    return status;
}
