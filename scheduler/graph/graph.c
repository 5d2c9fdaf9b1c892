#include "scheduler/graph/graph.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/graph/dispatch.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

/* ---------------------------------------------------------------------------------------------------------- values -- */

static mu_values *values_create(size_t capacity) {
    mu_values *values = mu_alloc_zeroed(1, sizeof *values);
    if (!values) return NULL;
    atomic_init(&values->references, 1);
    if (capacity && !mu_grow(&values->data, &values->capacity, capacity, 1)) {
        mu_free(values);
        return NULL;
    }
    return values;
}

mu_values *mu_values_retain(mu_values *values) {
    atomic_fetch_add_explicit(&values->references, 1, memory_order_relaxed);
    return values;
}

void mu_values_release(mu_values *values) {
    if (!values || atomic_fetch_sub_explicit(&values->references, 1, memory_order_acq_rel) != 1) return;
    mu_free(values->data);
    mu_free(values);
}

/* --------------------------------------------------------------------------------------------------- create, destroy -- */

muster_status muster_graph_create(muster_runtime *runtime, muster_graph **out, muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status) return status;
    if (!out) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "graph is NULL; pass where to store the handle");
    muster_graph *graph = mu_alloc_zeroed(1, sizeof *graph);
    mu_values *values = values_create(0);
    if (!graph || !values) {
        mu_free(graph);
        mu_values_release(values);
        return mu_fail_host_memory(error, "a graph", sizeof *graph + sizeof *values);
    }
    graph->values = values;
    pthread_mutex_init(&graph->lock, NULL);
    mu_handle_init(&graph->handle, MU_TAG_GRAPH, runtime);
    *out = graph;
    return MUSTER_OK;
}

void mu_graph_release(muster_graph *graph) {
    if (!mu_handle_release(&graph->handle)) return;
    mu_handle_finish(&graph->handle);
    for (size_t i = 0; i < graph->buffer_count; i++) mu_buffer_release(graph->buffers[i].buffer);
    for (size_t i = 0; i < graph->kernel_count; i++) mu_program_release(graph->kernels[i]->program);
    while (graph->counter_count) mu_counter_free(graph->counters[--graph->counter_count]);
    mu_values_release(graph->values);
    mu_free(graph->nodes);
    mu_free(graph->job_nodes);
    mu_free(graph->accesses);
    mu_free(graph->parameters);
    mu_free(graph->edges);
    mu_free(graph->buffers);
    mu_free(graph->buffer_index);
    for (mu_shape_block *block; (block = graph->shapes);) {
        graph->shapes = block->next;
        mu_free(block);
    }
    mu_free(graph->callbacks);
    mu_free(graph->kernels);
    mu_free(graph->extras);
    mu_free(graph->phases);
    mu_free(graph->counters);
    mu_free(graph->scratches);
    mu_free(graph->leads);
    while (graph->spread_count) mu_free(graph->spreads[--graph->spread_count]);
    mu_free(graph->spreads);
    mu_free(graph->strides);
    mu_free(graph->preds);
    mu_free(graph->succs);
    mu_free(graph->roots);
    pthread_mutex_destroy(&graph->lock);
    mu_free(graph);
}

void muster_graph_destroy(muster_graph *graph) {
    if (!graph || graph->handle.tag != MU_TAG_GRAPH) return;
    graph->handle.released = true;
    mu_graph_release(graph);
}

/* ------------------------------------------------------------------------------------------------------- appending -- */

mu_graph_mark mu_graph_get_mark(const muster_graph *graph) {
    return (mu_graph_mark){.nodes = graph->node_count,
                           .jobs = graph->job_count,
                           .accesses = graph->access_count,
                           .parameters = graph->parameter_count,
                           .edges = graph->edge_count,
                           .buffers = graph->buffer_count,
                           .kernels = graph->kernel_count,
                           .extras = graph->extra_count,
                           .phases = graph->phase_count,
                           .counters = graph->counter_count,
                           .scratches = graph->scratch_count,
                           .leads = graph->lead_count,
                           .spreads = graph->spread_count,
                           .callbacks = graph->callback_count,
                           .shapes = graph->shape_count,
                           .strides = graph->stride_count,
                           .value_bytes = graph->values->bytes,
                           .host_nodes = graph->host_node_count};
}

static inline size_t index_slot(const muster_graph *graph, const muster_buffer *buffer) {
    size_t mask = graph->buffer_index_size - 1;
    size_t slot = (((uintptr_t)buffer >> 4) * 0x9e3779b97f4a7c15u >> 20) & mask;
    while (graph->buffer_index[slot] && graph->buffers[graph->buffer_index[slot] - 1].buffer != buffer)
        slot = (slot + 1) & mask;
    return slot;
}

static void rebuild_index(muster_graph *graph) {
    memset(graph->buffer_index, 0, graph->buffer_index_size * sizeof *graph->buffer_index);
    for (size_t i = 0; i < graph->buffer_count; i++)
        graph->buffer_index[index_slot(graph, graph->buffers[i].buffer)] = (uint32_t)i + 1;
}

static size_t shape_slot(const mu_kernel_shape *shape) {
    uint64_t mixed = (uint64_t)(uintptr_t)shape->kernel >> 4;
    mixed += shape->grid[0] + ((uint64_t)shape->grid[1] << 16) + ((uint64_t)shape->grid[2] << 32);
    mixed ^= shape->block[0] + ((uint64_t)shape->block[1] << 20) + ((uint64_t)shape->dynamic_shared_bytes << 36);
    return mixed * UINT64_C(0x9e3779b97f4a7c15) >> 58;
}
_Static_assert(MU_SHAPE_RECENT == 1 << (64 - 58), "shape_slot takes as many bits");

/* By member: they were just written one by one, and reading them in larger pieces would wait for that. */
static bool same_shape(const mu_kernel_shape *a, const mu_kernel_shape *b) {
    return a->kernel == b->kernel && a->grid[0] == b->grid[0] && a->grid[1] == b->grid[1] && a->grid[2] == b->grid[2] &&
           a->block[0] == b->block[0] && a->block[1] == b->block[1] && a->block[2] == b->block[2] &&
           a->dynamic_shared_bytes == b->dynamic_shared_bytes && a->extra == b->extra;
}

/* A block that stayed empty is used the next time. */
static bool add_shape_block(muster_graph *graph) {
    if (graph->shapes && graph->shape_count <= graph->shapes->first) return true;
    mu_shape_block *block = mu_alloc(sizeof *block);
    if (!block) return false;
    block->next = graph->shapes;
    block->first = graph->shape_count;
    graph->shapes = block;
    return true;
}

static void drop_shapes(muster_graph *graph, size_t count) {
    if (graph->shape_count == count) return;
    graph->shape_count = count;
    memset(graph->recent_shapes, 0, sizeof graph->recent_shapes);
    while (graph->shapes && graph->shapes->first > count) {
        mu_shape_block *block = graph->shapes;
        graph->shapes = block->next;
        mu_free(block);
    }
}

const mu_kernel_shape *mu_graph_find_shape(const muster_graph *graph, const mu_kernel_shape *shape) {
    const mu_kernel_shape *recent = graph->recent_shapes[shape_slot(shape)];
    return recent && same_shape(recent, shape) ? recent : NULL;
}

mu_kernel_shape *mu_graph_add_shape(muster_graph *graph, const mu_kernel_shape *shape) {
    mu_kernel_shape **recent = &graph->recent_shapes[shape_slot(shape)];
    if (mu_graph_find_shape(graph, shape)) return *recent;
    size_t index = graph->shape_count % MU_SHAPE_BLOCK;
    if (index == 0 && !add_shape_block(graph)) return NULL;
    if (!mu_graph_hold_kernel(graph, shape->kernel)) return NULL;
    graph->shape_count++;
    *recent = &graph->shapes->shapes[index];
    **recent = *shape;
    return *recent;
}

void mu_graph_rewind(muster_graph *graph, const mu_graph_mark *mark) {
    bool buffers_added = graph->buffer_count > mark->buffers;
    while (graph->buffer_count > mark->buffers) mu_buffer_release(graph->buffers[--graph->buffer_count].buffer);
    while (graph->kernel_count > mark->kernels) mu_program_release(graph->kernels[--graph->kernel_count]->program);
    while (graph->counter_count > mark->counters) mu_counter_free(graph->counters[--graph->counter_count]);
    if (buffers_added) rebuild_index(graph);
    graph->extra_count = mark->extras;
    graph->phase_count = mark->phases;
    graph->scratch_count = mark->scratches;
    graph->lead_count = mark->leads;
    while (graph->spread_count > mark->spreads) mu_free(graph->spreads[--graph->spread_count]);
    graph->callback_count = mark->callbacks;
    drop_shapes(graph, mark->shapes);
    graph->stride_count = mark->strides;
    graph->node_count = mark->nodes;
    graph->job_count = mark->jobs;
    graph->access_count = mark->accesses;
    graph->parameter_count = mark->parameters;
    graph->edge_count = mark->edges;
    graph->values->bytes = mark->value_bytes;
    graph->host_node_count = mark->host_nodes;
}

bool mu_graph_add_job(muster_graph *graph, muster_job *job) {
    if (!mu_grow(&graph->job_nodes, &graph->job_capacity, graph->job_count + 1, sizeof *graph->job_nodes)) return false;
    *job = (muster_job)graph->job_count;
    graph->job_nodes[graph->job_count++] = (uint32_t)graph->node_count;
    return true;
}

mu_node *mu_graph_add_node(muster_graph *graph, mu_node_kind kind, muster_job job, int pin) {
    if (!mu_grow(&graph->nodes, &graph->node_capacity, graph->node_count + 1, sizeof *graph->nodes)) return NULL;
    mu_node *node = &graph->nodes[graph->node_count++];
    *node = (mu_node){.kind = (uint8_t)kind,
                      .pin = (int16_t)pin,
                      .job = job,
                      .access_first = (uint32_t)graph->access_count,
                      .parameter_first = (uint32_t)graph->parameter_count};
    return node;
}

/* With a reference. UINT32_MAX: out of host memory. */
static uint32_t add_buffer(muster_graph *graph, muster_buffer *buffer) {
    if (!mu_grow(&graph->buffers, &graph->buffer_capacity, graph->buffer_count + 1, sizeof *graph->buffers))
        return UINT32_MAX;
    if (2 * (graph->buffer_count + 1) > graph->buffer_index_size) {
        size_t size = graph->buffer_index_size ? 2 * graph->buffer_index_size : 16;
        uint32_t *index = mu_alloc(size * sizeof *index);
        if (!index) return UINT32_MAX;
        mu_free(graph->buffer_index);
        graph->buffer_index = index;
        graph->buffer_index_size = size;
        rebuild_index(graph);
    }
    mu_handle_retain(&buffer->handle);
    graph->buffers[graph->buffer_count++] = (mu_graph_buffer){buffer, false};
    graph->buffer_index[index_slot(graph, buffer)] = (uint32_t)graph->buffer_count;
    return (uint32_t)graph->buffer_count - 1;
}

/* Index of `buffer` in the graph; added when it is new. UINT32_MAX: out of host memory. */
static inline uint32_t find_or_add_buffer(muster_graph *graph, muster_buffer *buffer) {
    uint32_t found = graph->buffer_index_size ? graph->buffer_index[index_slot(graph, buffer)] : 0;
    return found ? found - 1 : add_buffer(graph, buffer);
}

/* There is room for it. */
static inline bool put_access(muster_graph *graph, mu_node *node, muster_buffer *buffer, muster_access mode,
                              uint64_t low, uint64_t high, bool exact) {
    uint32_t index = find_or_add_buffer(graph, buffer);
    if (index == UINT32_MAX) return false;
    graph->accesses[graph->access_count++] = (mu_access){low, high, index, (uint8_t)mode, exact, 0};
    if (mode & MUSTER_WRITE) graph->buffers[index].writes = true;
    node->access_count++;
    return true;
}

static bool reserve_accesses(muster_graph *graph, size_t count) {
    return mu_grow(&graph->accesses, &graph->access_capacity, graph->access_count + count, sizeof *graph->accesses);
}

bool mu_graph_add_access(muster_graph *graph, mu_node *node, muster_buffer *buffer, muster_access mode, uint64_t low,
                         uint64_t high, bool exact) {
    return reserve_accesses(graph, 1) && put_access(graph, node, buffer, mode, low, high, exact);
}

bool mu_graph_set_stride(muster_graph *graph, uint64_t pitch, uint32_t rows) {
    size_t i = graph->stride_count; /* the latest is the likeliest */
    while (i > 0 && (graph->strides[i - 1].pitch != pitch || graph->strides[i - 1].rows != rows)) i--;
    if (i == 0) {
        if (!mu_grow(&graph->strides, &graph->stride_capacity, graph->stride_count + 1, sizeof *graph->strides))
            return false;
        graph->strides[graph->stride_count++] = (mu_stride){pitch, rows};
        i = graph->stride_count;
    }
    graph->accesses[graph->access_count - 1].stride = (uint16_t)i;
    return true;
}

static bool reserve_parameters(muster_graph *graph, size_t count) {
    return mu_grow(&graph->parameters, &graph->parameter_capacity, graph->parameter_count + count,
                   sizeof *graph->parameters);
}

/* There is room for it. */
static inline void put_parameter(muster_graph *graph, mu_node *node, mu_parameter parameter) {
    graph->parameters[graph->parameter_count++] = parameter;
    node->parameter_count++;
}

static bool add_parameter(muster_graph *graph, mu_node *node, mu_parameter parameter) {
    if (!reserve_parameters(graph, 1)) return false;
    put_parameter(graph, node, parameter);
    return true;
}

bool mu_graph_add_address(muster_graph *graph, mu_node *node, uint32_t access, uint64_t lead) {
    if (lead == 0) return add_parameter(graph, node, (mu_parameter){.index = access});
    if (!mu_grow(&graph->leads, &graph->lead_capacity, graph->lead_count + 1, sizeof *graph->leads)) return false;
    graph->leads[graph->lead_count] = (mu_lead){lead, access};
    return add_parameter(graph, node, (mu_parameter){.index = (uint32_t)graph->lead_count++, .lead = true});
}

bool mu_graph_add_scratch(muster_graph *graph, mu_node *node, uint64_t bytes) {
    if (!mu_grow(&graph->scratches, &graph->scratch_capacity, graph->scratch_count + 1, sizeof *graph->scratches))
        return false;
    graph->scratches[graph->scratch_count] = bytes;
    node->flags |= MU_NODE_SCRATCH;
    return add_parameter(graph, node, (mu_parameter){.index = (uint32_t)graph->scratch_count++, .scratch = true});
}

/* There is room for the parameter. */
static inline bool put_value(muster_graph *graph, mu_node *node, const void *value, uint32_t bytes, bool derived) {
    mu_values *values = graph->values;
    size_t offset = ((size_t)values->bytes + 15) & ~(size_t)15; /* the strictest alignment of a kernel parameter */
    if (offset + bytes > UINT32_MAX || !mu_grow(&values->data, &values->capacity, offset + bytes, 1)) return false;
    memcpy(values->data + offset, value, bytes);
    values->bytes = (uint32_t)(offset + bytes);
    put_parameter(graph, node, (mu_parameter){.index = (uint32_t)offset, .bytes = bytes, .derived = derived});
    return true;
}

bool mu_graph_add_value(muster_graph *graph, mu_node *node, const void *value, uint32_t bytes, bool derived) {
    return reserve_parameters(graph, 1) && put_value(graph, node, value, bytes, derived);
}

/* There is room for the parameter, and for an access. */
static inline bool put_argument(muster_graph *graph, mu_node *node, const muster_arg *arg) {
    uint64_t whole = arg->kind == MUSTER_ARG_SHARD_COUNT ? arg->total_elements : 0;
    switch (arg->kind) {
        case MUSTER_ARG_BUFFER:
            put_parameter(graph, node, (mu_parameter){.index = node->access_count});
            return put_access(graph, node, arg->buffer, arg->access, arg->offset_bytes,
                              arg->offset_bytes + mu_arg_bytes(arg), false);
        case MUSTER_ARG_SCRATCH: return mu_graph_add_scratch(graph, node, arg->bytes);
        case MUSTER_ARG_SHARD_OFFSET:
        case MUSTER_ARG_SHARD_COUNT: return put_value(graph, node, &whole, arg->value_bytes, true);
        case MUSTER_ARG_VALUE: break;
    }
    const void *value =
        arg->value_bytes <= sizeof arg->value.inline_bytes ? arg->value.inline_bytes : arg->value.pointer;
    return put_value(graph, node, value, arg->value_bytes, false);
}

bool mu_graph_add_arguments(muster_graph *graph, mu_node *node, const muster_arg *args, uint32_t count) {
    if (!reserve_accesses(graph, count) || !reserve_parameters(graph, count)) return false;
    for (uint32_t i = 0; i < count; i++)
        if (!put_argument(graph, node, &args[i])) return false;
    return true;
}

bool mu_graph_hold_kernel(muster_graph *graph, muster_kernel *kernel) {
    for (size_t i = graph->kernel_count; i > 0; i--)
        if (graph->kernels[i - 1] == kernel) return true;
    if (!mu_grow(&graph->kernels, &graph->kernel_capacity, graph->kernel_count + 1, sizeof *graph->kernels))
        return false;
    mu_program_retain(kernel->program);
    graph->kernels[graph->kernel_count++] = kernel;
    return true;
}

const char *mu_node_kernel_name(const mu_node *node) { return node->as.dispatch->kernel->name; }

static bool add_edge(muster_graph *graph, uint32_t node, uint32_t pred) {
    if (!mu_grow(&graph->edges, &graph->edge_capacity, graph->edge_count + 1, sizeof *graph->edges)) return false;
    graph->edges[graph->edge_count++] = (mu_edge){node, pred};
    return true;
}

static bool is_repeat(const muster_graph *graph, uint32_t node) { return graph->nodes[node].flags & MU_NODE_REPEAT; }

/* Of repeated nodes, which follow each other anyway, the first waits and the last is waited for. */
bool mu_graph_add_edges(muster_graph *graph, muster_job job, muster_job pred) {
    uint32_t pred_end = mu_graph_job_end(graph, pred);
    for (uint32_t node = graph->job_nodes[job]; node < mu_graph_job_end(graph, job); node++) {
        if (is_repeat(graph, node)) continue;
        for (uint32_t before = graph->job_nodes[pred]; before < pred_end; before++)
            if ((before + 1 == pred_end || !is_repeat(graph, before + 1)) && !add_edge(graph, node, before))
                return false;
    }
    return true;
}

bool mu_graph_repeat(muster_graph *graph, uint32_t times) {
    for (uint32_t i = 0; i < times; i++) {
        uint32_t last = (uint32_t)graph->node_count - 1;
        mu_node *node = mu_graph_add_node(graph, MU_NODE_DISPATCH, graph->nodes[last].job, graph->nodes[last].pin);
        if (!node || !add_edge(graph, last + 1, last)) return false;
        *node = graph->nodes[last];
        node->flags |= MU_NODE_REPEAT;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------- copies, fills, edges -- */

muster_status mu_graph_check_open(const muster_graph *graph, muster_error *error) {
    if (graph->sealed)
        return mu_fail(error, MUSTER_INVALID_STATE,
                       "the graph was submitted and can no longer change; build a new graph for more jobs");
    if (graph->job_count >= MUSTER_NO_JOB - 1 || graph->node_count >= MU_NONE - 4096)
        return mu_fail(error, MUSTER_LIMIT_REACHED, "the graph has %zu jobs; split it", graph->job_count);
    return MUSTER_OK;
}

muster_status mu_graph_check_range(const muster_buffer *buffer, uint64_t offset, uint64_t bytes, const char *name,
                                   muster_error *error) {
    if (offset > buffer->bytes || bytes > buffer->bytes - offset)
        return mu_fail(error, MUSTER_OUT_OF_RANGE,
                       "%s: %llu bytes at offset %llu exceed the buffer's %llu; shorten the range", name,
                       (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)buffer->bytes);
    return MUSTER_OK;
}

muster_status mu_graph_check_target(const muster_graph *graph, const muster_buffer *buffer, uint64_t offset,
                                    uint64_t bytes, muster_error *error) {
    muster_status status;
    if ((status = mu_handle_check(graph, MU_TAG_GRAPH, NULL, "graph", error)) ||
        (status = mu_handle_check(buffer, MU_TAG_BUFFER, graph->handle.runtime, "buffer", error)) ||
        (status = mu_graph_check_open(graph, error)))
        return status;
    return mu_graph_check_range(buffer, offset, bytes, "buffer", error);
}

/* An empty copy or fill is a job like any other that touches nothing. */
static muster_status add_simple_job(muster_graph *graph, mu_node_kind kind, muster_job *job, mu_node **node,
                                    muster_error *error) {
    if (mu_graph_add_job(graph, job) && (*node = mu_graph_add_node(graph, kind, *job, MUSTER_ANY_DEVICE)))
        return MUSTER_OK;
    return mu_fail_host_memory(error, "a job", sizeof(mu_node));
}

muster_status muster_graph_copy(muster_graph *graph, muster_buffer *destination, uint64_t destination_offset,
                                muster_buffer *source, uint64_t source_offset, uint64_t bytes, muster_job *job,
                                muster_error *error) {
    muster_status status;
    if ((status = mu_handle_check(graph, MU_TAG_GRAPH, NULL, "graph", error)) ||
        (status = mu_handle_check(destination, MU_TAG_BUFFER, graph->handle.runtime, "destination", error)) ||
        (status = mu_handle_check(source, MU_TAG_BUFFER, graph->handle.runtime, "source", error)) ||
        (status = mu_graph_check_open(graph, error)) ||
        (status = mu_graph_check_range(destination, destination_offset, bytes, "destination", error)) ||
        (status = mu_graph_check_range(source, source_offset, bytes, "source", error)))
        return status;
    if (destination == source && bytes && destination_offset < source_offset + bytes &&
        source_offset < destination_offset + bytes)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "the ranges of a copy within one buffer overlap: %llu bytes from %llu to %llu; copy through "
                       "another buffer",
                       (unsigned long long)bytes, (unsigned long long)source_offset,
                       (unsigned long long)destination_offset);
    mu_graph_mark mark = mu_graph_get_mark(graph);
    muster_job added;
    mu_node *node;
    status = add_simple_job(graph, bytes ? MU_NODE_COPY : MU_NODE_JOIN, &added, &node, error);
    if (!status && bytes &&
        (!mu_graph_add_access(graph, node, source, MUSTER_READ, source_offset, source_offset + bytes, false) ||
         !mu_graph_add_access(graph, node, destination, MUSTER_WRITE, destination_offset, destination_offset + bytes,
                              false)))
        status = mu_fail_host_memory(error, "a copy", 2 * sizeof(mu_access));
    if (status)
        mu_graph_rewind(graph, &mark);
    else if (job)
        *job = added;
    return status;
}

muster_status muster_graph_fill(muster_graph *graph, muster_buffer *buffer, uint64_t offset, uint64_t bytes,
                                uint32_t pattern, uint32_t pattern_bytes, muster_job *job, muster_error *error) {
    muster_status status = mu_graph_check_target(graph, buffer, offset, bytes, error);
    if (status) return status;
    if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "a fill pattern has 1, 2 or 4 bytes, not %u", pattern_bytes);
    if (offset % pattern_bytes || bytes % pattern_bytes)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "a fill of %llu bytes at offset %llu is not a multiple of its pattern's %u bytes",
                       (unsigned long long)bytes, (unsigned long long)offset, pattern_bytes);
    mu_graph_mark mark = mu_graph_get_mark(graph);
    muster_job added;
    mu_node *node;
    status = add_simple_job(graph, bytes ? MU_NODE_FILL : MU_NODE_JOIN, &added, &node, error);
    if (!status && bytes) {
        node->as.fill.pattern = pattern;
        node->as.fill.pattern_bytes = pattern_bytes;
        if (!mu_graph_add_access(graph, node, buffer, MUSTER_WRITE, offset, offset + bytes, false))
            status = mu_fail_host_memory(error, "a fill", sizeof(mu_access));
    }
    if (status)
        mu_graph_rewind(graph, &mark);
    else if (job)
        *job = added;
    return status;
}

muster_status muster_graph_prefetch(muster_graph *graph, muster_buffer *buffer, uint64_t offset, uint64_t bytes,
                                    int device, muster_job *job, muster_error *error) {
    muster_status status = mu_graph_check_target(graph, buffer, offset, bytes, error);
    if (status) return status;
    if (device < 0 || device >= (int)graph->handle.runtime->device_count)
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "device %d: the runtime has %u", device,
                       graph->handle.runtime->device_count);
    if (bytes == 0) bytes = buffer->bytes - offset;
    mu_graph_mark mark = mu_graph_get_mark(graph);
    muster_job added;
    mu_node *node;
    status = add_simple_job(graph, bytes ? MU_NODE_PREFETCH : MU_NODE_JOIN, &added, &node, error);
    if (!status) node->pin = (int16_t)device;
    if (!status && bytes && !mu_graph_add_access(graph, node, buffer, MUSTER_READ, offset, offset + bytes, false))
        status = mu_fail_host_memory(error, "a prefetch", sizeof(mu_access));
    if (status)
        mu_graph_rewind(graph, &mark);
    else if (job)
        *job = added;
    return status;
}

muster_status muster_graph_after(muster_graph *graph, muster_job job, muster_job predecessor, muster_error *error) {
    muster_status status = mu_handle_check(graph, MU_TAG_GRAPH, NULL, "graph", error);
    if (status || (status = mu_graph_check_open(graph, error))) return status;
    if (job >= graph->job_count || predecessor >= graph->job_count)
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "job %u after job %u: the graph has %zu jobs", job, predecessor,
                       graph->job_count);
    size_t edges = graph->edge_count;
    if (mu_graph_add_edges(graph, job, predecessor)) return MUSTER_OK;
    graph->edge_count = edges;
    return mu_fail_host_memory(error, "a dependency", sizeof(mu_edge));
}

/* -------------------------------------------------------------------------------------------------------- priority -- */

muster_status mu_graph_check_priority(int32_t priority, muster_error *error) {
    if (priority >= MUSTER_PRIORITY_LOWEST && priority <= MUSTER_PRIORITY_HIGHEST) return MUSTER_OK;
    return mu_fail(error, MUSTER_OUT_OF_RANGE, "a priority is %d to %d, not %d", (int)MUSTER_PRIORITY_LOWEST,
                   (int)MUSTER_PRIORITY_HIGHEST, (int)priority);
}

void mu_graph_prioritise(muster_graph *graph, muster_job job, int32_t priority) {
    for (uint32_t i = graph->job_nodes[job]; i < mu_graph_job_end(graph, job); i++)
        graph->nodes[i].priority = (int8_t)priority;
}

muster_status muster_graph_set_priority(muster_graph *graph, muster_job job, int32_t priority, muster_error *error) {
    muster_status status = mu_handle_check(graph, MU_TAG_GRAPH, NULL, "graph", error);
    if (status || (status = mu_graph_check_open(graph, error))) return status;
    if (job >= graph->job_count)
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "job %u: the graph has %zu jobs", job, graph->job_count);
    if ((status = mu_graph_check_priority(priority, error))) return status;
    if (mu_node_is_host(&graph->nodes[graph->job_nodes[job]]))
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "job %u is a read-back or host job, which no device runs; give the jobs before it a priority",
                       job);
    mu_graph_prioritise(graph, job, priority);
    return MUSTER_OK;
}

/* ---------------------------------------------------------------------------------------------------- set argument -- */

muster_status muster_graph_set_argument(muster_graph *graph, muster_job job, uint32_t index, const void *value,
                                        uint32_t bytes, muster_error *error) {
    muster_status status = mu_handle_check(graph, MU_TAG_GRAPH, NULL, "graph", error);
    if (status) return status;
    if (!value) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "value is NULL");
    if (job >= graph->job_count)
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "job %u: the graph has %zu jobs", job, graph->job_count);
    pthread_mutex_lock(&graph->lock);
    if (atomic_load_explicit(&graph->values->references, memory_order_acquire) > 1) {
        /* A run still reads the values: later runs get a copy. */
        mu_values *copy = values_create(graph->values->bytes);
        if (!copy) {
            status = mu_fail_host_memory(error, "the values of a graph", graph->values->bytes);
            goto unlock;
        }
        if (graph->values->bytes) memcpy(copy->data, graph->values->data, graph->values->bytes);
        copy->bytes = graph->values->bytes;
        mu_values_release(graph->values);
        graph->values = copy;
    }
    bool set = false;
    for (uint32_t i = graph->job_nodes[job]; i < mu_graph_job_end(graph, job); i++) {
        const mu_node *node = &graph->nodes[i];
        if (node->kind != MU_NODE_DISPATCH || (node->flags & MU_NODE_BUILT_IN)) continue;
        if (node->parameter_count <= index) {
            status = mu_fail(error, MUSTER_OUT_OF_RANGE, "argument %u of job %u: it has %u", index, job,
                             (unsigned)node->parameter_count);
            break;
        }
        const mu_parameter *parameter = &graph->parameters[node->parameter_first + index];
        if (parameter->derived) {
            status = mu_fail(error, MUSTER_INVALID_ARGUMENT,
                             "argument %u of job %u is a shard offset or count, which Muster fills", index, job);
            break;
        }
        if (parameter->bytes == 0) {
            status = mu_fail(error, MUSTER_ARGUMENT_MISMATCH,
                             "argument %u of job %u is %s, not a value: only values can be replaced", index, job,
                             parameter->scratch ? "scratch memory" : "a buffer");
            break;
        }
        if (parameter->bytes != bytes) {
            status = mu_fail(error, MUSTER_ARGUMENT_MISMATCH, "argument %u of job %u is a value of %u bytes, not of %u",
                             index, job, (unsigned)parameter->bytes, bytes);
            break;
        }
        memcpy(graph->values->data + parameter->index, value, bytes);
        set = true;
    }
    if (!status && !set)
        status = mu_fail(error, MUSTER_INVALID_ARGUMENT, "job %u is not a dispatch, and has no values to replace", job);
unlock:
    pthread_mutex_unlock(&graph->lock);
    return status;
}
