/* muster_graph_dispatch: everything about a dispatch that can be refused before it runs. */

#include "scheduler/graph/dispatch.h"

#include <string.h>

#include "base/error.h"
#include "device/geometry.h"
#include "device/launch.h"
#include "scheduler/graph/fields.h"
#include "scheduler/graph/graph.h"
#include "scheduler/graph/shape.h"
#include "scheduler/graph/shard.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

enum { MAX_PHASES = 64 };

static bool sharded(const muster_dispatch *dispatch) { return dispatch->flags & MUSTER_DISPATCH_SHARDED; }

/* Puts the argument's number in front of a message; only failures pay for it. */
static muster_status name_argument(muster_error *error, muster_status status, uint32_t index) {
    if (!error) return status;
    muster_error told = *error;
    return mu_fail(error, status, "argument %u: %.460s", index, told.message);
}

uint64_t mu_arg_row_bytes(const muster_arg *arg, uint32_t extent) {
    if (!arg->rows) return mu_arg_bytes(arg);
    uint64_t width = mu_arg_bytes(arg) - (arg->rows - 1) * arg->pitch_bytes;
    if (arg->rows > 1 && width > arg->pitch_bytes) width = arg->pitch_bytes;
    unsigned __int128 slices = (unsigned __int128)extent * arg->slice_bytes;
    return slices < width ? (uint64_t)slices : width;
}

/* Every slice has a part of each row, and all rows are in the range. */
static muster_status check_pitch(const muster_graph *graph, const muster_arg *arg, uint32_t index, uint32_t extent,
                                 muster_error *error) {
    uint64_t bytes = mu_arg_bytes(arg);
    if (arg->rows == 0)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "argument %u has a pitch of %llu bytes and 0 rows; set rows to how often the pitch repeats",
                       index, (unsigned long long)arg->pitch_bytes);
    unsigned __int128 before_last = (unsigned __int128)(arg->rows - 1) * arg->pitch_bytes;
    unsigned __int128 before_end = (unsigned __int128)(extent - 1) * arg->slice_bytes;
    if (arg->rows > 1 && before_end >= arg->pitch_bytes)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "argument %u has a pitch of %llu bytes, which is not enough for %u slices of %llu bytes in each "
                       "row (the last may be short but not empty); give the bytes from one row to the next",
                       index, (unsigned long long)arg->pitch_bytes, extent, (unsigned long long)arg->slice_bytes);
    if (before_last + before_end >= bytes)
        return mu_fail(error, MUSTER_BUFFER_TOO_SMALL,
                       "argument %u has %llu bytes, which is not enough for %u rows at a pitch of %llu bytes with %u "
                       "slices of %llu bytes (the last may be short but not empty); enlarge the buffer or shrink the "
                       "grid",
                       index, (unsigned long long)bytes, arg->rows, (unsigned long long)arg->pitch_bytes, extent,
                       (unsigned long long)arg->slice_bytes);
    if (graph->stride_count >= MU_STRIDES_MAX)
        return mu_fail(error, MUSTER_LIMIT_REACHED, "the graph has %zu different pitches and numbers of rows; split it",
                       graph->stride_count);
    return MUSTER_OK;
}

/* The cut of one buffer argument of a sharded dispatch over `extent` slices. */
static muster_status check_cut(const muster_graph *graph, const muster_arg *arg, uint32_t index, uint32_t extent,
                               bool several, muster_error *error) {
    uint64_t bytes = mu_arg_bytes(arg);
    switch (arg->cut) {
        case MUSTER_CUT_REPLICATE:
            if ((arg->access & MUSTER_WRITE) && several)
                return mu_fail(error, MUSTER_UNCUTTABLE,
                               "argument %u is replicated and written: the shards would write the same %llu bytes; cut "
                               "it in blocks, reduce it, or do not shard the dispatch",
                               index, (unsigned long long)bytes);
            return MUSTER_OK;
        case MUSTER_CUT_HALO:
            if (arg->access != MUSTER_READ)
                return mu_fail(error, MUSTER_UNCUTTABLE,
                               "argument %u has a halo and is written: a shard would see its neighbours' slices before "
                               "or after they are; write to another buffer, and exchange the two",
                               index);
            /* fall through */
        case MUSTER_CUT_BLOCK:
            if (arg->slice_bytes == 0)
                return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                               "argument %u is cut in blocks of 0 bytes; set slice_bytes to what one block of the grid "
                               "uses",
                               index);
            if (arg->rows || arg->pitch_bytes) return check_pitch(graph, arg, index, extent, error);
            if ((unsigned __int128)(extent - 1) * arg->slice_bytes >= bytes)
                return mu_fail(error, MUSTER_BUFFER_TOO_SMALL,
                               "argument %u has %llu bytes, which is not enough for %u slices of %llu bytes (the last "
                               "may be short but not empty); enlarge the buffer or shrink the grid",
                               index, (unsigned long long)bytes, extent, (unsigned long long)arg->slice_bytes);
            return MUSTER_OK;
        case MUSTER_CUT_REDUCE:
            if (mu_reduce_check(arg->type, arg->reduction, error))
                return name_argument(error, MUSTER_INVALID_ARGUMENT, index);
            if (arg->access != MUSTER_READ_WRITE)
                return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                               "argument %u is reduced, so its access is MUSTER_READ_WRITE", index);
            if (arg->offset_bytes % mu_type_bytes(arg->type))
                return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                               "argument %u begins at offset %llu, which is no multiple of its %u-byte elements: where "
                               "shards are added up it would be misaligned; choose another offset",
                               index, (unsigned long long)arg->offset_bytes, mu_type_bytes(arg->type));
            if (bytes % mu_type_bytes(arg->type))
                return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                               "argument %u has %llu bytes, not a whole number of %u-byte elements", index,
                               (unsigned long long)bytes, mu_type_bytes(arg->type));
            return MUSTER_OK;
    }
    return MUSTER_OK;
}

/* What mu_arg_check_buffer would find nothing wrong with, mostly. */
static inline bool is_good_buffer(const muster_graph *graph, const muster_arg *arg) {
    const muster_buffer *buffer = arg->buffer;
    return buffer && buffer->handle.tag == MU_TAG_BUFFER && buffer->handle.runtime == graph->handle.runtime &&
           arg->offset_bytes < buffer->bytes && arg->bytes <= buffer->bytes - arg->offset_bytes &&
           arg->access >= MUSTER_READ && arg->access <= MUSTER_READ_WRITE;
}

muster_status mu_arg_check_buffer(const muster_graph *graph, const muster_arg *arg, uint32_t index,
                                  muster_error *error) {
    if (is_good_buffer(graph, arg)) return MUSTER_OK;
    muster_status status = mu_handle_check(arg->buffer, MU_TAG_BUFFER, graph->handle.runtime, "buffer", error);
    if (!status) status = mu_graph_check_range(arg->buffer, arg->offset_bytes, arg->bytes, "buffer", error);
    if (status) return name_argument(error, status, index);
    if (arg->access < MUSTER_READ || arg->access > MUSTER_READ_WRITE)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: %d is not an access", index, (int)arg->access);
    if (mu_arg_bytes(arg) == 0)
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "argument %u: offset %llu leaves no bytes of the buffer's %llu",
                       index, (unsigned long long)arg->offset_bytes, (unsigned long long)arg->buffer->bytes);
    return MUSTER_OK;
}

static muster_status check_buffer_arg(const muster_graph *graph, const muster_dispatch *dispatch, uint32_t index,
                                      uint32_t extent, muster_error *error) {
    muster_status status = mu_arg_check_buffer(graph, &dispatch->args[index], index, error);
    if (status || !sharded(dispatch)) return status;
    uint32_t devices = graph->handle.runtime->device_count;
    uint32_t parts = dispatch->max_shards ? dispatch->max_shards : devices;
    return check_cut(graph, &dispatch->args[index], index, extent, parts > 1 && extent > 1, error);
}

muster_status mu_arg_check_scratch(const muster_arg *arg, uint32_t index, muster_error *error) {
    if (arg->bytes && arg->bytes <= UINT64_MAX / 2) return MUSTER_OK;
    return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: scratch memory of %llu bytes; give 1 to 2^63 - 1",
                   index, (unsigned long long)arg->bytes);
}

static muster_status check_value_arg(const muster_arg *arg, uint32_t index, bool cut, uint32_t extent,
                                     muster_error *error) {
    if (arg->kind == MUSTER_ARG_VALUE) {
        if (arg->value_bytes == 0 || arg->value_bytes > 4096)
            return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: a value has 1 to 4096 bytes, not %u", index,
                           arg->value_bytes);
        if (arg->value_bytes > sizeof arg->value.inline_bytes && !arg->value.pointer)
            return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: its value is NULL", index);
        return MUSTER_OK;
    }
    if (arg->kind == MUSTER_ARG_SCRATCH) return mu_arg_check_scratch(arg, index, error);
    if (arg->value_bytes != 4 && arg->value_bytes != 8)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: a shard offset or count has 4 or 8 bytes, not %u",
                       index, arg->value_bytes);
    if (arg->value_bytes == 4 && arg->total_elements > UINT32_MAX)
        return mu_fail(error, MUSTER_OUT_OF_RANGE,
                       "argument %u: %llu elements do not fit its 4 bytes; use an 8-byte parameter", index,
                       (unsigned long long)arg->total_elements);
    if (cut && (unsigned __int128)extent * arg->slice_elements < arg->total_elements)
        return mu_fail(
            error, MUSTER_OUT_OF_RANGE,
            "argument %u: %u slices of %llu elements do not cover the %llu declared; enlarge the grid or the "
            "slices",
            index, extent, (unsigned long long)arg->slice_elements, (unsigned long long)arg->total_elements);
    return MUSTER_OK;
}

muster_status mu_args_check_overlaps(const muster_arg *args, uint32_t count, muster_error *error) {
    for (uint32_t i = 0; i < count; i++) {
        const muster_arg *a = &args[i];
        if (a->kind != MUSTER_ARG_BUFFER) continue;
        for (uint32_t j = 0; j < i; j++) {
            const muster_arg *b = &args[j];
            if (b->kind != MUSTER_ARG_BUFFER || b->buffer != a->buffer || !((a->access | b->access) & MUSTER_WRITE) ||
                a->offset_bytes >= b->offset_bytes + mu_arg_bytes(b) ||
                b->offset_bytes >= a->offset_bytes + mu_arg_bytes(a))
                continue;
            return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                           "arguments %u and %u are overlapping ranges of one buffer and one is written; pass it once "
                           "as MUSTER_READ_WRITE, or separate ranges",
                           j, i);
        }
    }
    return MUSTER_OK;
}

/* What check_arguments would find nothing wrong with, mostly: buffers and numbers of a dispatch that is not cut. */
static bool are_good_arguments(const muster_graph *graph, const muster_dispatch *dispatch) {
    const mu_function_info *info = &dispatch->kernel->info;
    uint32_t access = 0;
    if (!info->parameters_known || info->parameter_count != dispatch->arg_count || !dispatch->args) return false;
    for (uint32_t i = 0; i < info->parameter_count; i++) {
        const muster_arg *arg = &dispatch->args[i];
        if (!mu_arg_is_plain(arg)) return false;
        if (arg->kind == MUSTER_ARG_BUFFER) {
            if (info->parameter_bytes[i] != sizeof(mu_address) || !is_good_buffer(graph, arg)) return false;
            access |= (uint32_t)arg->access;
        } else if (arg->value_bytes != info->parameter_bytes[i] || arg->value_bytes > sizeof arg->value.inline_bytes) {
            return false;
        }
    }
    return !(access & MUSTER_WRITE) || mu_args_check_overlaps(dispatch->args, dispatch->arg_count, NULL) == MUSTER_OK;
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
        muster_status status = mu_arg_check_fields(arg, i, error);
        if (status) return status;
        status = arg->kind == MUSTER_ARG_BUFFER ? check_buffer_arg(graph, dispatch, i, extent, error)
                                                : check_value_arg(arg, i, sharded(dispatch), extent, error);
        if (status) return status;
        uint32_t bytes = arg->kind == MUSTER_ARG_BUFFER || arg->kind == MUSTER_ARG_SCRATCH ? 8 : arg->value_bytes;
        if (info->parameters_known && info->parameter_bytes[i] != bytes)
            return mu_fail(error, MUSTER_ARGUMENT_MISMATCH, "parameter %u of kernel %s has %u bytes; argument has %u",
                           i, dispatch->kernel->name, info->parameter_bytes[i], bytes);
    }
    return mu_args_check_overlaps(dispatch->args, dispatch->arg_count, error);
}

/* Whether each device it may run on could launch the shape, as far as that is known before it runs. How long a shard is along the
 * axis is up to the cut. */
static muster_status check_devices(const muster_graph *graph, const mu_checked_dispatch *checked, muster_error *error) {
    const muster_runtime *runtime = graph->handle.runtime;
    const muster_dispatch *dispatch = checked->dispatch;
    uint32_t grid[3];
    memcpy(grid, checked->shape.grid, sizeof grid);
    if (sharded(dispatch) && grid[checked->axis]) grid[checked->axis] = 1;
    const mu_shape_request request = {
        .kernel = dispatch->kernel,
        .grid = grid,
        .block = checked->shape.block,
        .cluster = checked->cluster,
        .dynamic_shared_bytes = dispatch->dynamic_shared_bytes,
        .cooperative = dispatch->flags & MUSTER_DISPATCH_COOPERATIVE,
        .fallback = dispatch->fallback,
        .phases = dispatch->phases,
        .phase_count = dispatch->phase_count,
    };
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        if (checked->pin != MUSTER_ANY_DEVICE && checked->pin != (int)d) continue;
        mu_shape shape;
        muster_status status =
            mu_shape_resolve(mu_device_capability(runtime->actors[d].device), &request, -1, &shape, error);
        if (status) {
            if (error) error->device = (int)d;
            return status;
        }
    }
    return MUSTER_OK;
}

/* One parameter table serves the kernel and its phases. */
static muster_status check_phase(const muster_graph *graph, const muster_dispatch *dispatch, uint32_t index,
                                 muster_error *error) {
    const muster_kernel *phase = dispatch->phases[index];
    muster_status status = mu_handle_check(phase, MU_TAG_KERNEL, graph->handle.runtime, "dispatch->phases", error);
    if (status) return status;
    const mu_function_info *a = &dispatch->kernel->info, *b = &phase->info;
    if (!a->parameters_known || !b->parameters_known) return MUSTER_OK;
    if (a->parameter_count == b->parameter_count &&
        memcmp(a->parameter_bytes, b->parameter_bytes, a->parameter_count * sizeof a->parameter_bytes[0]) == 0)
        return MUSTER_OK;
    return mu_fail(
        error, MUSTER_ARGUMENT_MISMATCH,
        "phase %u, kernel %.64s, does not have the parameters of kernel %.64s (%u and %u); they get the same "
        "arguments",
        index, phase->name, dispatch->kernel->name, b->parameter_count, a->parameter_count);
}

static muster_status check_fallback(const muster_graph *graph, const muster_dispatch *dispatch, muster_error *error) {
    if (dispatch->fallback < MUSTER_FALLBACK_NONE || dispatch->fallback > MUSTER_FALLBACK_CLAMP)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%d is not a fallback", (int)dispatch->fallback);
    if (dispatch->fallback && !(dispatch->flags & MUSTER_DISPATCH_COOPERATIVE))
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "only a cooperative dispatch has a fallback; set MUSTER_DISPATCH_COOPERATIVE or drop it");
    if (dispatch->fallback == MUSTER_FALLBACK_CLAMP && dispatch->cluster.x)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "a grid of clusters cannot be clamped; drop one of the two");
    if (dispatch->fallback != MUSTER_FALLBACK_SPLIT) {
        if (dispatch->phase_count == 0) return MUSTER_OK;
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%u phases without MUSTER_FALLBACK_SPLIT; set it, or give none",
                       dispatch->phase_count);
    }
    if (dispatch->phase_count == 0 || dispatch->phase_count > MAX_PHASES || !dispatch->phases)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "a split dispatch names the kernels of its 1 to %d phases, not %u%s", MAX_PHASES,
                       dispatch->phase_count, dispatch->phases ? "" : " (phases is NULL)");
    for (uint32_t i = 0; i < dispatch->phase_count; i++) {
        muster_status status = check_phase(graph, dispatch, i, error);
        if (status) return status;
    }
    return MUSTER_OK;
}

static muster_status check_iterations(const muster_graph *graph, const muster_dispatch *dispatch, uint32_t *iterations,
                                      muster_error *error) {
    bool asked = dispatch->flags & MUSTER_DISPATCH_ITERATED;
    if (!asked && dispatch->iterations)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "%u iterations without MUSTER_DISPATCH_ITERATED; set the flag, or leave the number 0",
                       dispatch->iterations);
    if (asked && dispatch->iterations == 0)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "iterations is 0 with MUSTER_DISPATCH_ITERATED; set how many, or drop the flag");
    muster_status status = mu_launch_iterations(asked ? &dispatch->iterations : NULL, iterations, error);
    if (status) return status;
    uint64_t shards = 1;
    if (sharded(dispatch)) shards = dispatch->max_shards ? dispatch->max_shards : graph->handle.runtime->device_count;
    if (shards * *iterations > MU_JOB_LAUNCHES_MAX)
        return mu_fail(
            error, MUSTER_LIMIT_REACHED,
            "%u iterations of %llu shards exceed the %d launches a job may have; spread them over several jobs",
            *iterations, (unsigned long long)shards, MU_JOB_LAUNCHES_MAX);
    return MUSTER_OK;
}

static mu_kernel_shape shape_of(const muster_dispatch *dispatch) {
    const muster_dim3 grid = dispatch->grid, block = dispatch->block;
    return (mu_kernel_shape){.kernel = dispatch->kernel,
                             .grid = {grid.x, grid.y ? grid.y : 1, grid.z ? grid.z : 1},
                             .block = {block.x, block.y ? block.y : 1, block.z ? block.z : 1},
                             .dynamic_shared_bytes = dispatch->dynamic_shared_bytes};
}

/* What is wrong with the grid of a sharded dispatch however it is cut. */
static muster_status check_whole(const mu_kernel_shape *shape, uint32_t axis, muster_error *error) {
    const uint32_t *grid = shape->grid;
    uint64_t blocks;
    if (grid[axis] == 0)
        return mu_fail(error, MUSTER_INVALID_GEOMETRY, "a grid of 0 blocks along axis %u cannot be cut", axis);
    if (mu_axis_product(grid, "grid", &blocks, NULL))
        return mu_fail(error, MUSTER_INVALID_GEOMETRY,
                       "the grid of %u x %u x %u has more than 2^64 - 1 blocks; spread them over several dispatches",
                       grid[0], grid[1], grid[2]);
    return MUSTER_OK;
}

static muster_status check_dispatch(const muster_graph *graph, const muster_dispatch *dispatch, bool shapes,
                                    mu_checked_dispatch *checked, muster_error *error) {
    if (!dispatch) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "dispatch is NULL");
    if (dispatch->struct_size != sizeof *dispatch)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "dispatch->struct_size is %zu; set it to sizeof(muster_dispatch), %zu", dispatch->struct_size,
                       sizeof *dispatch);
    muster_status status =
        mu_handle_check(dispatch->kernel, MU_TAG_KERNEL, graph->handle.runtime, "dispatch->kernel", error);
    if (status) return status;
    const uint32_t known = MUSTER_DISPATCH_COOPERATIVE | MUSTER_DISPATCH_SHARDED | MUSTER_DISPATCH_ITERATED;
    if (dispatch->flags & ~known)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "flags 0x%x has bits this version does not know",
                       dispatch->flags);
    if (sharded(dispatch) && (dispatch->flags & MUSTER_DISPATCH_COOPERATIVE))
        return mu_fail(error, MUSTER_UNCUTTABLE,
                       "a cooperative grid synchronises as a whole and cannot be cut; drop one of the two flags");
    if ((status = mu_dispatch_check_fields(dispatch, error)) ||
        (status = mu_check_pin(dispatch->pin_device, dispatch->device, graph->handle.runtime->device_count, error)))
        return status;
    if (sharded(dispatch) && dispatch->pin_device)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "a sharded dispatch cannot be pinned to one device");
    if (dispatch->max_shards > MU_MAX_SHARDS)
        return mu_fail(error, MUSTER_LIMIT_REACHED, "max_shards is at most %d, not %u", MU_MAX_SHARDS,
                       dispatch->max_shards);
    uint32_t iterations;
    if ((status = mu_graph_check_priority(dispatch->priority, error)) ||
        (status = check_fallback(graph, dispatch, error)) ||
        (status = check_iterations(graph, dispatch, &iterations, error)))
        return status;
    *checked = (mu_checked_dispatch){
        .dispatch = dispatch,
        .shape = shape_of(dispatch),
        .axis = dispatch->shard_axis,
        .pin = dispatch->pin_device ? dispatch->device : MUSTER_ANY_DEVICE,
        .iterations = iterations,
    };
    if (dispatch->cluster.x) {
        checked->cluster[0] = dispatch->cluster.x;
        checked->cluster[1] = dispatch->cluster.y ? dispatch->cluster.y : 1;
        checked->cluster[2] = dispatch->cluster.z ? dispatch->cluster.z : 1;
    }
    if (sharded(dispatch) && checked->cluster[checked->axis] > 1)
        return mu_fail(error, MUSTER_UNCUTTABLE,
                       "clusters of %u blocks along axis %u cannot be cut along it; shard another axis",
                       checked->cluster[checked->axis], checked->axis);
    if (shapes && (status = check_devices(graph, checked, error))) return status;
    checked->everywhere = shapes && checked->pin == MUSTER_ANY_DEVICE && !dispatch->cluster.x && !dispatch->fallback &&
                          !(dispatch->flags & MUSTER_DISPATCH_COOPERATIVE);
    if (sharded(dispatch) && (status = check_whole(&checked->shape, checked->axis, error))) return status;
    return check_arguments(graph, dispatch, checked->shape.grid[checked->axis], error);
}

muster_status mu_graph_check_after(const muster_graph *graph, const muster_job *after, uint32_t count,
                                   muster_error *error) {
    if (count && !after) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "after is NULL");
    for (uint32_t i = 0; i < count; i++)
        if (after[i] >= graph->job_count)
            return mu_fail(error, MUSTER_OUT_OF_RANGE, "after[%u] is job %u: the graph has %zu jobs", i, after[i],
                           graph->job_count);
    return MUSTER_OK;
}

/* The shape of one launch on whichever device, if the graph has checked such a one: then nothing but the arguments can be wrong. */
static const mu_kernel_shape *shape_like_before(const muster_graph *graph, const muster_dispatch *dispatch) {
    if (!dispatch || dispatch->struct_size != sizeof *dispatch || dispatch->flags || dispatch->pin_device ||
        dispatch->device || dispatch->shard_axis || dispatch->max_shards || dispatch->iterations ||
        dispatch->fallback || dispatch->phase_count || dispatch->cluster.x || dispatch->cluster.y ||
        dispatch->cluster.z || dispatch->barrier_counter || dispatch->priority)
        return NULL;
    const mu_kernel_shape wanted = shape_of(dispatch);
    const mu_kernel_shape *known = mu_graph_find_shape(graph, &wanted);
    return known && known->checked ? known : NULL;
}

static bool add_plain(muster_graph *graph, const muster_dispatch *dispatch, const mu_kernel_shape *shape,
                      muster_job job) {
    mu_node *node = mu_graph_add_node(graph, MU_NODE_DISPATCH, job, MUSTER_ANY_DEVICE);
    if (!node) return false;
    node->as.dispatch = shape;
    return mu_graph_add_arguments(graph, node, dispatch->args, dispatch->arg_count);
}

static muster_status add_checked(muster_graph *graph, muster_job job, mu_checked_dispatch *checked,
                                 muster_error *error) {
    muster_status status = mu_graph_add_extra(graph, checked, &checked->shape.extra, error);
    if (status) return status;
    if (sharded(checked->dispatch)) return mu_shard_add(graph, job, checked, error);
    return mu_shard_add_node(graph, job, checked, 0, checked->shape.grid[checked->axis], checked->pin, NULL, error);
}

muster_status mu_dispatch_add(muster_graph *graph, const muster_dispatch *dispatch, bool shapes, muster_job *job,
                              muster_error *error) {
    mu_checked_dispatch checked;
    muster_status status;
    if ((status = mu_graph_check_open(graph, error))) return status;
    const mu_kernel_shape *known = shape_like_before(graph, dispatch);
    if (!known)
        status = check_dispatch(graph, dispatch, shapes, &checked, error);
    else if (!are_good_arguments(graph, dispatch))
        status = check_arguments(graph, dispatch, 1, error);
    if (status || (status = mu_graph_check_after(graph, dispatch->after, dispatch->after_count, error))) return status;
    mu_graph_mark mark = mu_graph_get_mark(graph);
    muster_job added;
    if (!mu_graph_add_job(graph, &added) || (known && !add_plain(graph, dispatch, known, added)))
        status = mu_fail_host_memory(error, "a dispatch", sizeof(mu_node) + dispatch->arg_count * sizeof(mu_access));
    else if (!known)
        status = add_checked(graph, added, &checked, error);
    for (uint32_t i = 0; !status && i < dispatch->after_count; i++)
        if (!mu_graph_add_edges(graph, added, dispatch->after[i]))
            status = mu_fail_host_memory(error, "a dependency", sizeof(mu_edge));
    if (status) {
        mu_graph_rewind(graph, &mark);
        return status;
    }
    if (dispatch->priority) mu_graph_prioritise(graph, added, dispatch->priority);
    if (job) *job = added;
    return MUSTER_OK;
}

muster_status muster_graph_dispatch(muster_graph *graph, const muster_dispatch *dispatch, muster_job *job,
                                    muster_error *error) {
    muster_status status = mu_handle_check(graph, MU_TAG_GRAPH, NULL, "graph", error);
    return status ? status : mu_dispatch_add(graph, dispatch, true, job, error);
}
