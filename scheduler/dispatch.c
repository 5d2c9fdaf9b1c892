/* muster_graph_dispatch: everything about a dispatch that can be refused before it runs. */

#include "base/alloc.h"
#include "base/error.h"
#include "device/geometry.h"
#include "device/residency.h"
#include "scheduler/buffer.h"
#include "scheduler/graph.h"
#include "scheduler/program.h"
#include "scheduler/runtime.h"
#include "scheduler/shard.h"

enum { MAX_SHARDS = 65536 };

static uint64_t range_bytes(const muster_arg *arg) {
    return arg->bytes ? arg->bytes : arg->buffer->bytes - arg->offset_bytes;
}

static bool sharded(const muster_dispatch *dispatch) { return dispatch->flags & MUSTER_DISPATCH_SHARDED; }

/* The cut of one buffer argument of a sharded dispatch over `extent` slices. */
static muster_status check_cut(const muster_arg *arg, uint32_t index, uint32_t extent, bool several,
                               muster_error *error) {
    uint64_t bytes = range_bytes(arg);
    switch (arg->cut) {
        case MUSTER_CUT_REPLICATE:
            if ((arg->access & MUSTER_WRITE) && several)
                return mu_fail(error, MUSTER_UNCUTTABLE,
                               "argument %u is replicated and written: the shards would write the same %llu bytes; cut "
                               "it in blocks, reduce it, or do not shard the dispatch",
                               index, (unsigned long long)bytes);
            return MUSTER_OK;
        case MUSTER_CUT_BLOCK:
            if (arg->slice_bytes == 0)
                return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                               "argument %u is cut in blocks of 0 bytes; set slice_bytes to what one block of the grid "
                               "uses",
                               index);
            if ((unsigned __int128)(extent - 1) * arg->slice_bytes >= bytes)
                return mu_fail(error, MUSTER_BUFFER_TOO_SMALL,
                               "argument %u has %llu bytes, which is not enough for %u slices of %llu bytes (the last "
                               "may be short but not empty); enlarge the buffer or shrink the grid",
                               index, (unsigned long long)bytes, extent, (unsigned long long)arg->slice_bytes);
            return MUSTER_OK;
        case MUSTER_CUT_REDUCE:
            if (mu_type_bytes(arg->type) == 0)
                return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: %d is not a type that can be summed",
                               index, (int)arg->type);
            if (arg->access != MUSTER_READ_WRITE)
                return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                               "argument %u is reduced, so its access is MUSTER_READ_WRITE", index);
            if (bytes % mu_type_bytes(arg->type))
                return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                               "argument %u has %llu bytes, not a whole number of %u-byte elements", index,
                               (unsigned long long)bytes, mu_type_bytes(arg->type));
            return MUSTER_OK;
    }
    return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: %d is not a cut", index, (int)arg->cut);
}

/* Puts the argument's number in front of a message; only failures pay for it. */
static muster_status name_argument(muster_error *error, muster_status status, uint32_t index) {
    if (!error) return status;
    muster_error told = *error;
    return mu_fail(error, status, "argument %u: %.460s", index, told.message);
}

static muster_status check_buffer_arg(const muster_graph *graph, const muster_dispatch *dispatch, uint32_t index,
                                      uint32_t extent, muster_error *error) {
    const muster_arg *arg = &dispatch->args[index];
    muster_status status = mu_handle_check(arg->buffer, MU_TAG_BUFFER, graph->handle.runtime, "buffer", error);
    if (!status) status = mu_graph_check_range(arg->buffer, arg->offset_bytes, arg->bytes, "buffer", error);
    if (status) return name_argument(error, status, index);
    if (arg->access < MUSTER_READ || arg->access > MUSTER_READ_WRITE)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: %d is not an access", index, (int)arg->access);
    if (range_bytes(arg) == 0)
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "argument %u: offset %llu leaves no bytes of the buffer's %llu",
                       index, (unsigned long long)arg->offset_bytes, (unsigned long long)arg->buffer->bytes);
    if (!sharded(dispatch)) return MUSTER_OK;
    uint32_t devices = graph->handle.runtime->device_count;
    uint32_t parts = dispatch->max_shards ? dispatch->max_shards : devices;
    return check_cut(arg, index, extent, parts > 1 && extent > 1, error);
}

static muster_status check_value_arg(const muster_arg *arg, uint32_t index, muster_error *error) {
    if (arg->kind == MUSTER_ARG_VALUE) {
        if (arg->value_bytes == 0 || arg->value_bytes > 4096)
            return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: a value has 1 to 4096 bytes, not %u", index,
                           arg->value_bytes);
        if (arg->value_bytes > sizeof arg->value.inline_bytes && !arg->value.pointer)
            return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: its value is NULL", index);
        return MUSTER_OK;
    }
    if (arg->value_bytes != 4 && arg->value_bytes != 8)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: a shard offset or count has 4 or 8 bytes, not %u",
                       index, arg->value_bytes);
    if (arg->value_bytes == 4 && arg->total_elements > UINT32_MAX)
        return mu_fail(error, MUSTER_OUT_OF_RANGE,
                       "argument %u: %llu elements do not fit its 4 bytes; use an 8-byte parameter", index,
                       (unsigned long long)arg->total_elements);
    return MUSTER_OK;
}

static muster_status check_overlaps(const muster_dispatch *dispatch, muster_error *error) {
    for (uint32_t i = 0; i < dispatch->arg_count; i++) {
        const muster_arg *a = &dispatch->args[i];
        if (a->kind != MUSTER_ARG_BUFFER) continue;
        for (uint32_t j = 0; j < i; j++) {
            const muster_arg *b = &dispatch->args[j];
            if (b->kind != MUSTER_ARG_BUFFER || b->buffer != a->buffer ||
                !((a->access | b->access) & MUSTER_WRITE) ||
                a->offset_bytes >= b->offset_bytes + range_bytes(b) ||
                b->offset_bytes >= a->offset_bytes + range_bytes(a))
                continue;
            return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                           "arguments %u and %u are overlapping ranges of one buffer and one is written; pass it once "
                           "as MUSTER_READ_WRITE, or separate ranges",
                           j, i);
        }
    }
    return MUSTER_OK;
}

static muster_status check_arguments(const muster_graph *graph, const muster_dispatch *dispatch, uint32_t extent,
                                     muster_error *error) {
    const mu_function_info *info = &dispatch->kernel->info;
    if (dispatch->arg_count && !dispatch->args) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "args is NULL");
    if (dispatch->arg_count > MU_MAX_PARAMETERS)
        return mu_fail(error, MUSTER_LIMIT_REACHED, "a kernel has at most %d parameters, not %u", MU_MAX_PARAMETERS,
                       dispatch->arg_count);
    if (info->parameters_known && info->parameter_count != dispatch->arg_count)
        return mu_fail(error, MUSTER_ARGUMENT_MISMATCH, "kernel %s has %u parameters; %u arguments were given",
                       dispatch->kernel->name, info->parameter_count, dispatch->arg_count);
    for (uint32_t i = 0; i < dispatch->arg_count; i++) {
        const muster_arg *arg = &dispatch->args[i];
        if (arg->kind < MUSTER_ARG_BUFFER || arg->kind > MUSTER_ARG_SHARD_COUNT)
            return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: %d is not a kind of argument", i,
                           (int)arg->kind);
        muster_status status = arg->kind == MUSTER_ARG_BUFFER
                                   ? check_buffer_arg(graph, dispatch, i, extent, error)
                                   : check_value_arg(arg, i, error);
        if (status) return status;
        uint32_t bytes = arg->kind == MUSTER_ARG_BUFFER ? 8 : arg->value_bytes;
        if (info->parameters_known && info->parameter_bytes[i] != bytes)
            return mu_fail(error, MUSTER_ARGUMENT_MISMATCH, "parameter %u of kernel %s has %u bytes; argument has %u",
                           i, dispatch->kernel->name, info->parameter_bytes[i], bytes);
    }
    return check_overlaps(dispatch, error);
}

/* Whether the shape can be launched on one device: geometry, the kernel's own limits, cooperative stage 1. */
static muster_status check_shape(const mu_checked_dispatch *checked, const mu_capability *capability,
                                 muster_error *error) {
    const muster_dispatch *dispatch = checked->dispatch;
    const mu_function_info *info = &dispatch->kernel->info;
    muster_status status = mu_geometry_check(capability, checked->grid, checked->block, error);
    if (status) return status;
    uint64_t threads = (uint64_t)checked->block[0] * checked->block[1] * checked->block[2];
    if (threads > (uint64_t)info->max_threads)
        return mu_fail(error, MUSTER_INVALID_GEOMETRY,
                       "%llu threads per block exceed the %d that kernel %s can run with on %s; use a smaller block",
                       (unsigned long long)threads, info->max_threads, dispatch->kernel->name, capability->name);
    uint64_t shared = (uint64_t)dispatch->dynamic_shared_bytes + (uint64_t)info->static_shared_bytes;
    if (capability->shared_bytes_optin > 0 && shared > (uint64_t)capability->shared_bytes_optin)
        return mu_fail(error, MUSTER_INVALID_GEOMETRY,
                       "%u dynamic and %d static bytes of shared memory exceed the %d a block can have on %s",
                       dispatch->dynamic_shared_bytes, info->static_shared_bytes, capability->shared_bytes_optin,
                       capability->name);
    if (!(dispatch->flags & MUSTER_DISPATCH_COOPERATIVE)) return MUSTER_OK;
    uint64_t blocks;
    status = mu_axis_product(checked->grid, "grid", &blocks, error);
    return status ? status : mu_residency_stage1(capability, dispatch->kernel->name, blocks, threads, error);
}

static muster_status check_devices(const muster_graph *graph, const mu_checked_dispatch *checked, muster_error *error) {
    const muster_runtime *runtime = graph->handle.runtime;
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        if (checked->pin != MUSTER_ANY_DEVICE && checked->pin != (int)d) continue;
        muster_status status = check_shape(checked, mu_device_capability(runtime->actors[d].device), error);
        if (status) {
            if (error) error->device = (int)d;
            return status;
        }
    }
    return MUSTER_OK;
}

static muster_status check_dispatch(const muster_graph *graph, const muster_dispatch *dispatch,
                                    mu_checked_dispatch *checked, muster_error *error) {
    if (!dispatch) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "dispatch is NULL");
    if (dispatch->struct_size != sizeof *dispatch)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "dispatch->struct_size is %zu; set it to sizeof(muster_dispatch), %zu",
                       dispatch->struct_size, sizeof *dispatch);
    muster_status status =
        mu_handle_check(dispatch->kernel, MU_TAG_KERNEL, graph->handle.runtime, "dispatch->kernel", error);
    if (status) return status;
    const uint32_t known = MUSTER_DISPATCH_COOPERATIVE | MUSTER_DISPATCH_SHARDED;
    if (dispatch->flags & ~known)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "flags 0x%x has bits this version does not know",
                       dispatch->flags);
    if (sharded(dispatch) && (dispatch->flags & MUSTER_DISPATCH_COOPERATIVE))
        return mu_fail(error, MUSTER_UNCUTTABLE,
                       "a cooperative grid synchronises as a whole and cannot be cut; drop one of the two flags");
    if (sharded(dispatch) && dispatch->pin_device)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "a sharded dispatch cannot be pinned to one device");
    if (dispatch->shard_axis > 2)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "shard_axis is 0, 1 or 2, not %u", dispatch->shard_axis);
    if (dispatch->max_shards > MAX_SHARDS)
        return mu_fail(error, MUSTER_LIMIT_REACHED, "max_shards is at most %d, not %u", MAX_SHARDS,
                       dispatch->max_shards);
    int devices = (int)graph->handle.runtime->device_count;
    if (dispatch->pin_device && (dispatch->device < 0 || dispatch->device >= devices))
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "device %d: the runtime has %d", dispatch->device, devices);
    *checked = (mu_checked_dispatch){
        .dispatch = dispatch,
        .grid = {dispatch->grid.x, dispatch->grid.y ? dispatch->grid.y : 1, dispatch->grid.z ? dispatch->grid.z : 1},
        .block = {dispatch->block.x, dispatch->block.y ? dispatch->block.y : 1,
                  dispatch->block.z ? dispatch->block.z : 1},
        .axis = dispatch->shard_axis,
        .pin = dispatch->pin_device ? dispatch->device : MUSTER_ANY_DEVICE,
    };
    status = check_devices(graph, checked, error);
    if (status) return status;
    return check_arguments(graph, dispatch, checked->grid[checked->axis], error);
}

static muster_status check_after(const muster_graph *graph, const muster_dispatch *dispatch, muster_error *error) {
    if (dispatch->after_count && !dispatch->after) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "after is NULL");
    for (uint32_t i = 0; i < dispatch->after_count; i++)
        if (dispatch->after[i] >= graph->job_count)
            return mu_fail(error, MUSTER_OUT_OF_RANGE, "after[%u] is job %u: the graph has %zu jobs", i,
                           dispatch->after[i], graph->job_count);
    return MUSTER_OK;
}

muster_status muster_graph_dispatch(muster_graph *graph, const muster_dispatch *dispatch, muster_job *job,
                                    muster_error *error) {
    mu_checked_dispatch checked;
    muster_status status;
    if ((status = mu_handle_check(graph, MU_TAG_GRAPH, NULL, "graph", error)) ||
        (status = mu_graph_check_open(graph, error)) ||
        (status = check_dispatch(graph, dispatch, &checked, error)) ||
        (status = check_after(graph, dispatch, error)))
        return status;
    mu_graph_mark mark = mu_graph_get_mark(graph);
    muster_job added;
    if (!mu_graph_add_job(graph, &added))
        status = mu_fail_host_memory(error, "a job", sizeof(uint32_t));
    else if (sharded(dispatch))
        status = mu_shard_add(graph, added, &checked, error);
    else
        status = mu_shard_add_node(graph, added, &checked, 0, checked.grid[checked.axis], checked.pin, NULL, error);
    for (uint32_t i = 0; !status && i < dispatch->after_count; i++)
        if (!mu_graph_add_edges(graph, added, dispatch->after[i]))
            status = mu_fail_host_memory(error, "a dependency", sizeof(mu_edge));
    if (status)
        mu_graph_rewind(graph, &mark);
    else if (job)
        *job = added;
    return status;
}
