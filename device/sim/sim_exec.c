/* Executable graphs. A launch takes a snapshot of every node's work, so that updating the graph never touches launches
 * that are in flight. */
#include <string.h>

#include "device/sim/sim_graph.h"

/* The nodes' order, shared by the executable graph and its launches; immutable. */
typedef struct shape {
    atomic_uint references; /* release on decrement pairs with acquire on the last one */
    uint32_t count;
    bool chain;      /* every node comes after the end of the one before, and nothing else */
    bool early;      /* some node does not wait for another's end */
    uint32_t *first; /* first[i]..first[i + 1]: node i's part of `dependencies` */
    uint32_t *order; /* nodes, each behind those that it depends on */
    sim_edge dependencies[];
} shape;

struct sim_exec {
    sim_object object;
    sim_context *context;
    uint64_t origin; /* serial of the graph it was made from */
    shape *shape;
    sim_work **works; /* NULL: an empty node */
    bool *disabled;
};

/* ---------------------------------------------------------------------------------------------------- making one -- */

/* Whether it does not wait for the other's end. Kernels here never say themselves when the next may begin, so that the programmatic port
 * is their end too. */
static bool is_early(const sim_edge *edge) { return edge->port == CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER; }

static void drop_shape(shape *dropped) {
    if (atomic_fetch_sub_explicit(&dropped->references, 1, memory_order_acq_rel) != 1) return;
    sim_free_unordered(dropped->first);
    sim_free_unordered(dropped->order);
    sim_free_unordered(dropped);
}

/* Fills shape->order. Edges usually lead from earlier nodes to later ones; then it takes one pass. False: there is a cycle. */
static bool put_in_order(shape *made, bool *placed) {
    uint32_t count = 0, before;
    do {
        before = count;
        for (uint32_t i = 0; i < made->count; i++) {
            bool ready = !placed[i];
            for (uint32_t d = made->first[i]; ready && d < made->first[i + 1]; d++)
                ready = placed[made->dependencies[d].from];
            if (!ready) continue;
            placed[i] = true;
            made->order[count++] = i;
        }
    } while (count > before && count < made->count);
    return count == made->count;
}

static void fill_shape(shape *made, const sim_graph *graph) {
    atomic_init(&made->references, 1);
    made->count = (uint32_t)graph->count;
    made->chain = true;
    made->early = false;
    uint32_t at = 0;
    for (size_t i = 0; i < graph->count; i++) {
        const sim_node *node = graph->nodes[i];
        made->first[i] = at;
        for (uint32_t d = 0; d < node->dependency_count; d++) {
            made->dependencies[at++] = node->dependencies[d];
            made->early |= is_early(&node->dependencies[d]);
        }
        made->chain = made->chain && (i == 0 ? node->dependency_count == 0
                                             : node->dependency_count == 1 && node->dependencies[0].from == i - 1);
    }
    made->first[graph->count] = at;
    made->chain = made->chain && !made->early;
}

/* CUDA_ERROR_INVALID_VALUE: the graph has a cycle. */
static CUresult make_shape(const sim_graph *graph, shape **out) {
    size_t total = 0;
    for (size_t i = 0; i < graph->count; i++) total += graph->nodes[i]->dependency_count;
    shape *made = mu_alloc_zeroed(1, sizeof *made + total * sizeof made->dependencies[0]);
    bool *placed = mu_alloc_zeroed(graph->count + 1, sizeof *placed);
    CUresult code = made && placed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (made) {
        made->first = mu_alloc((graph->count + 1) * sizeof *made->first);
        made->order = mu_alloc((graph->count + 1) * sizeof *made->order);
        if (!made->first || !made->order) code = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (code == CUDA_SUCCESS) {
        fill_shape(made, graph);
        if (!put_in_order(made, placed)) code = CUDA_ERROR_INVALID_VALUE;
    }
    mu_free(placed);
    if (code == CUDA_SUCCESS) {
        *out = made;
        return CUDA_SUCCESS;
    }
    if (made) {
        mu_free(made->first);
        mu_free(made->order);
    }
    mu_free(made);
    return code;
}

/* The context of a graph's kernels; all must be of one. NULL for none, or when they differ (*mixed). */
static sim_context *graph_context(const sim_graph *graph, bool *mixed) {
    sim_context *context = NULL;
    *mixed = false;
    for (size_t i = 0; i < graph->count; i++) {
        if (!graph->nodes[i]->work) continue;
        sim_context *own = graph->nodes[i]->work->kernel->image->context;
        if (context && own != context) *mixed = true;
        context = own;
    }
    return context;
}

static void free_parts(sim_exec *exec) {
    if (exec->works)
        for (uint32_t i = 0; exec->shape && i < exec->shape->count; i++) sim_work_drop(exec->works[i]);
    if (exec->shape) drop_shape(exec->shape);
    mu_free(exec->works);
    mu_free(exec->disabled);
    mu_free(exec);
}

void sim_exec_free(sim_exec *exec) {
    sim_handle_remove(exec->context->driver, &exec->object);
    free_parts(exec);
}

static CUresult make_exec(sim_context *context, const sim_graph *graph, sim_exec **out) {
    sim_exec *exec = mu_alloc_zeroed(1, sizeof *exec);
    if (!exec) return CUDA_ERROR_OUT_OF_MEMORY;
    exec->context = context;
    exec->origin = graph->serial;
    CUresult code = make_shape(graph, &exec->shape);
    if (code != CUDA_SUCCESS) goto fail;
    code = CUDA_ERROR_OUT_OF_MEMORY;
    /* As programmatic dependent launch, which the devices of that time brought. */
    if (exec->shape->early && context->device->config->major < 9) {
        code = CUDA_ERROR_NOT_SUPPORTED;
        goto fail;
    }
    exec->works = mu_alloc_zeroed(graph->count, sizeof *exec->works);
    exec->disabled = mu_alloc_zeroed(graph->count, sizeof *exec->disabled);
    if (!exec->works || !exec->disabled) goto fail;
    for (size_t i = 0; i < graph->count; i++) {
        exec->works[i] = graph->nodes[i]->work;
        sim_work_retain(exec->works[i]);
    }
    if (!sim_handle_add(context->driver, &exec->object, SIM_TAG_EXEC, context)) goto fail;
    *out = exec;
    return CUDA_SUCCESS;
fail:
    free_parts(exec);
    return code;
}

/* Waits for the device, and holds up launches of the context meanwhile. */
CUresult sim_do_graph_instantiate(sim_driver *driver, CUgraphExec *handle, CUgraph graph_handle,
                                  unsigned long long flags) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    sim_graph *graph = sim_find(driver, SIM_TAG_GRAPH, graph_handle);
    const unsigned long long known =
        CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if (!handle || !graph || flags & ~known) return CUDA_ERROR_INVALID_VALUE;
    bool mixed;
    sim_context *kernels = graph_context(graph, &mixed);
    if (mixed) return CUDA_ERROR_NOT_SUPPORTED; /* one executable graph, one context */
    sim_lock(driver);
    code = sim_device_drain(kernels ? kernels : context);
    sim_unlock(driver);
    if (code != CUDA_SUCCESS) return code;
    sim_exec *exec;
    code = make_exec(kernels ? kernels : context, graph, &exec);
    if (code == CUDA_SUCCESS) *handle = SIM_HANDLE(CUgraphExec, exec);
    return code;
}

static CUresult find_exec(sim_driver *driver, CUgraphExec handle, sim_exec **exec) {
    *exec = sim_find(driver, SIM_TAG_EXEC, handle);
    return *exec ? sim_context_error((*exec)->context) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_do_graph_exec_destroy(sim_driver *driver, CUgraphExec handle) {
    sim_exec *exec;
    CUresult code = find_exec(driver, handle, &exec);
    if (exec) sim_exec_free(exec);
    return code;
}

/* ------------------------------------------------------------------------------------------------------ updating -- */

static CUresult find_node(sim_driver *driver, const sim_exec *exec, CUgraphNode handle, uint32_t *index) {
    sim_node *node = sim_find(driver, SIM_TAG_NODE, handle);
    if (!node || node->graph->serial != exec->origin || node->index >= exec->shape->count)
        return CUDA_ERROR_INVALID_VALUE;
    /* The driver compares with the function that the node was made with: it must be loaded still. */
    if (node->function && !sim_find(driver, SIM_TAG_KERNEL, node->function)) return CUDA_ERROR_INVALID_HANDLE;
    *index = node->index;
    return exec->works[*index] ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool is_work_of(const sim_work *work, const sim_kernel *kernel, const CUDA_KERNEL_NODE_PARAMS *parameters) {
    return work->kernel == kernel && work->grid[0] == parameters->gridDimX && work->grid[1] == parameters->gridDimY &&
           work->grid[2] == parameters->gridDimZ && work->block[0] == parameters->blockDimX &&
           work->block[1] == parameters->blockDimY && work->block[2] == parameters->blockDimZ &&
           work->shared_bytes == parameters->sharedMemBytes && parameters->kernelParams;
}

CUresult sim_do_graph_exec_kernel_node_set_params(sim_driver *driver, CUgraphExec handle, CUgraphNode node,
                                                  const CUDA_KERNEL_NODE_PARAMS *parameters) {
    sim_exec *exec;
    CUresult code = find_exec(driver, handle, &exec);
    if (code != CUDA_SUCCESS) return code;
    uint32_t index;
    code = find_node(driver, exec, node, &index);
    if (code != CUDA_SUCCESS) return code;
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    sim_kernel *kernel = sim_find(driver, SIM_TAG_KERNEL, parameters->func);
    if (kernel && kernel->image->context != exec->context) return CUDA_ERROR_INVALID_VALUE;
    /* In null mode nobody reads the arguments, and a shape that was accepted still is. */
    if (driver->null_mode && is_work_of(exec->works[index], kernel, parameters)) return CUDA_SUCCESS;
    return sim_node_work(driver, parameters, &exec->works[index]);
}

CUresult sim_do_graph_node_set_enabled(sim_driver *driver, CUgraphExec handle, CUgraphNode node, unsigned int enabled) {
    sim_exec *exec;
    CUresult code = find_exec(driver, handle, &exec);
    if (code != CUDA_SUCCESS) return code;
    uint32_t index;
    code = find_node(driver, exec, node, &index);
    if (code == CUDA_SUCCESS) exec->disabled[index] = !enabled;
    return code;
}

/* Whether node i of the graph may replace node i of the executable one. */
static CUgraphExecUpdateResult compare_node(const sim_exec *exec, const sim_node *node) {
    const shape *own = exec->shape;
    uint32_t i = node->index, count = own->first[i + 1] - own->first[i];
    if (!exec->works[i] != !node->work) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (count != node->dependency_count) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (uint32_t d = 0; d < count; d++) {
        const sim_edge *edge = &own->dependencies[own->first[i] + d], *other = &node->dependencies[d];
        if (edge->from != other->from || edge->port != other->port) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    if (node->work && node->work->kernel->image->context != exec->context)
        return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

CUresult sim_do_graph_exec_update(sim_driver *driver, CUgraphExec handle, CUgraph graph_handle,
                                  CUgraphExecUpdateResultInfo *result) {
    sim_exec *exec;
    CUresult code = find_exec(driver, handle, &exec);
    if (code != CUDA_SUCCESS) return code;
    sim_graph *graph = sim_find(driver, SIM_TAG_GRAPH, graph_handle);
    if (!graph || !result) return CUDA_ERROR_INVALID_VALUE;
    *result = (CUgraphExecUpdateResultInfo){CU_GRAPH_EXEC_UPDATE_SUCCESS, NULL, NULL};
    if (graph->count != exec->shape->count) {
        result->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    for (size_t i = 0; i < graph->count; i++) {
        result->result = compare_node(exec, graph->nodes[i]);
        if (result->result == CU_GRAPH_EXEC_UPDATE_SUCCESS) continue;
        result->errorNode = SIM_HANDLE(CUgraphNode, graph->nodes[i]);
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    for (size_t i = 0; i < graph->count; i++) {
        sim_work_retain(graph->nodes[i]->work);
        sim_work_drop(exec->works[i]);
        exec->works[i] = graph->nodes[i]->work;
    }
    return CUDA_SUCCESS;
}

/* ----------------------------------------------------------------------------------------------------- launching -- */

typedef struct graph_op {
    sim_op op;
    shape *shape;
    sim_work *works[]; /* NULL: empty or disabled */
} graph_op;

/* What running a graph with branches needs; one allocation. */
typedef struct branch_run {
    uint64_t *kernel_ns; /* what each node takes once it has begun; then, by model_time, when it ended */
    uint64_t *begun_ns;  /* virtual: when it had begun */
    uint32_t *waiting;   /* dependencies that have to end first and have not run */
    uint32_t *ready;     /* a set of node indices */
    uint32_t *lane;      /* which strand */
    bool *continued;     /* a later node has taken over the node's lane */
    char *order;         /* ThreadSanitizer: released by each node */
    char start;
} branch_run;

static branch_run *make_run(uint32_t count) {
    size_t each = 2 * sizeof(uint64_t) + 3 * sizeof(uint32_t) + sizeof(bool) + 1;
    branch_run *run = mu_alloc_zeroed(1, sizeof *run + count * each);
    if (!run) return NULL;
    run->kernel_ns = (uint64_t *)(run + 1);
    run->begun_ns = run->kernel_ns + count;
    run->waiting = (uint32_t *)(run->begun_ns + count);
    run->ready = run->waiting + count;
    run->lane = run->ready + count;
    run->continued = (bool *)(run->lane + count);
    run->order = (char *)(run->continued + count);
    return run;
}

/* A node's start costs a sixth of a launch of its own; a ninth where it does not wait for the end of the one before. */
enum { START_PART = 6, EARLY_START_PART = 9 };

static uint64_t start_ns(const graph_op *graph, uint32_t node, uint32_t part) {
    return graph->works[node] ? graph->op.stream->context->device->config->launch_ns / part : 0;
}

/* *kernel_ns: what it takes beyond being launched. */
static CUresult run_work(const sim_stream *stream, const sim_work *work, uint64_t *kernel_ns) {
    uint64_t launch_ns = stream->context->device->config->launch_ns, own_ns = 0;
    CUresult code = work ? sim_work_run(work, &own_ns) : CUDA_SUCCESS;
    *kernel_ns = own_ns - (own_ns < launch_ns ? own_ns : launch_ns);
    return code;
}

static CUresult run_chain(graph_op *graph) {
    CUresult code = CUDA_SUCCESS;
    for (uint32_t i = 0; i < graph->shape->count && code == CUDA_SUCCESS; i++) {
        uint64_t kernel_ns;
        code = run_work(graph->op.stream, graph->works[i], &kernel_ns);
        graph->op.cost_ns += kernel_ns + start_ns(graph, i, START_PART);
    }
    graph->op.kernel_ns = graph->op.cost_ns;
    return code;
}

enum { LANES_MAX = 64 }; /* each is a thread then */

/* Branches are histories of their own to ThreadSanitizer: a node goes on in the lane of one whose end it waits for, when nobody
 * else has taken that, and otherwise gets a fresh one, as far as there are. Returns how many there are. */
static uint32_t choose_lanes(const shape *own, branch_run *run) {
    uint32_t lanes = 0;
    for (uint32_t i = 0; i < own->count; i++) {
        uint32_t node = own->order[i], d = own->first[node], end = own->first[node + 1];
        while (d < end && (is_early(&own->dependencies[d]) || run->continued[own->dependencies[d].from])) d++;
        if (d < end) run->continued[own->dependencies[d].from] = true;
        run->lane[node] = d < end ? run->lane[own->dependencies[d].from] : lanes++ % LANES_MAX;
    }
    return lanes < LANES_MAX ? lanes : LANES_MAX;
}

/* All of them before the first node runs, so that none begins with another's history. */
static bool make_lanes(sim_stream *stream, uint32_t lanes) {
    if (!stream->strand) return true;
    if (!mu_grow(&stream->lanes, &stream->lane_capacity, lanes, sizeof *stream->lanes)) return false;
    while (stream->lane_count < lanes) {
        stream->lanes[stream->lane_count] = sim_strand_create();
        if (!stream->lanes[stream->lane_count]) return false;
        stream->lane_count++;
    }
    return true;
}

typedef struct node_turn {
    graph_op *graph;
    branch_run *run;
    uint32_t node;
    CUresult code;
} node_turn;

/* On the lane's strand. */
static SIM_UNSEEN void take_node_turn(void *argument) {
    node_turn *taken = argument;
    branch_run *run = taken->run;
    const shape *own = taken->graph->shape;
    uint32_t node = taken->node;
    MU_TSAN_ACQUIRE(&run->start); /* pairs with the release in run_branches */
    for (uint32_t d = own->first[node]; d < own->first[node + 1]; d++)
        if (!is_early(&own->dependencies[d]))
            MU_TSAN_ACQUIRE(&run->order[own->dependencies[d].from]); /* pairs with the release below */
    taken->code = run_work(taken->graph->op.stream, taken->graph->works[node], &run->kernel_ns[node]);
    MU_TSAN_RELEASE(&run->order[node]);
}

static SIM_UNSEEN CUresult run_node(graph_op *graph, branch_run *run, uint32_t node) {
    sim_stream *stream = graph->op.stream;
    node_turn taken = {graph, run, node, CUDA_SUCCESS};
    sim_strand_run(stream->strand ? stream->lanes[run->lane[node]] : NULL, take_node_turn, &taken);
    return taken.code;
}

/* Each node begins when those have ended, or begun, that it waits for; side by side they take what they take alone. */
static void model_time(graph_op *graph, branch_run *run) {
    const shape *own = graph->shape;
    uint64_t latest_ns = graph->op.begin_ns, *end_ns = run->kernel_ns;
    for (uint32_t i = 0; i < own->count; i++) {
        uint32_t node = own->order[i], part = START_PART;
        uint64_t begin_ns = graph->op.begin_ns;
        for (uint32_t d = own->first[node]; d < own->first[node + 1]; d++) {
            const sim_edge *edge = &own->dependencies[d];
            uint64_t free_ns = is_early(edge) ? run->begun_ns[edge->from] : end_ns[edge->from];
            if (is_early(edge)) part = EARLY_START_PART;
            if (free_ns > begin_ns) begin_ns = free_ns;
        }
        run->begun_ns[node] = begin_ns + start_ns(graph, node, part);
        end_ns[node] = run->begun_ns[node] + run->kernel_ns[node];
        graph->op.kernel_ns += end_ns[node] - begin_ns;
        if (end_ns[node] > latest_ns) latest_ns = end_ns[node];
    }
    graph->op.cost_ns = latest_ns - graph->op.begin_ns;
}

/* Nodes that are ready run in an order drawn from the seed. One that only waits for another's beginning may be through with its work
 * before the other has done any. */
static CUresult run_branches(graph_op *graph, branch_run *run) {
    const shape *own = graph->shape;
    uint32_t ready = 0;
    for (uint32_t i = 0; i < own->count; i++) {
        for (uint32_t d = own->first[i]; d < own->first[i + 1]; d++)
            run->waiting[i] += !is_early(&own->dependencies[d]);
        if (!run->waiting[i]) run->ready[ready++] = i;
    }
    if (!make_lanes(graph->op.stream, choose_lanes(own, run))) {
        sim_fault_kernel(graph->op.stream->context, CUDA_ERROR_OUT_OF_MEMORY, "no host memory to run a graph");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    MU_TSAN_RELEASE(&run->start);
    CUresult code = CUDA_SUCCESS;
    while (ready && code == CUDA_SUCCESS) {
        uint32_t at = (uint32_t)(sim_random(&graph->op.stream->branch_random) % ready);
        uint32_t node = run->ready[at];
        run->ready[at] = run->ready[--ready];
        code = run_node(graph, run, node);
        for (uint32_t i = 0; i < own->count; i++)
            for (uint32_t d = own->first[i]; d < own->first[i + 1]; d++)
                if (own->dependencies[d].from == node && !is_early(&own->dependencies[d]) && --run->waiting[i] == 0)
                    run->ready[ready++] = i;
    }
    for (uint32_t i = 0; i < own->count; i++) MU_TSAN_ACQUIRE(&run->order[i]);
    model_time(graph, run);
    return code;
}

static CUresult run_graph(sim_op *op) {
    graph_op *graph = (graph_op *)op;
    if (graph->shape->chain) return run_chain(graph);
    branch_run *run = make_run(graph->shape->count);
    if (!run) {
        sim_fault_kernel(op->stream->context, CUDA_ERROR_OUT_OF_MEMORY, "no host memory to run a graph");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult code = run_branches(graph, run);
    mu_free(run);
    return code;
}

static void release_graph(sim_op *op) {
    graph_op *graph = (graph_op *)op;
    for (uint32_t i = 0; i < graph->shape->count; i++) sim_work_drop(graph->works[i]);
    drop_shape(graph->shape);
    sim_free_unordered(graph);
}

CUresult sim_do_graph_launch(sim_driver *driver, CUgraphExec handle, CUstream stream_handle) {
    sim_exec *exec;
    CUresult code = find_exec(driver, handle, &exec);
    if (code != CUDA_SUCCESS) return code;
    sim_stream *stream;
    code = sim_stream_find(driver, stream_handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (stream->context != exec->context) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return sim_capture_refuse(stream);
    if (driver->null_mode) return CUDA_SUCCESS;
    shape *own = exec->shape;
    graph_op *graph =
        (graph_op *)sim_op_create(sizeof *graph + own->count * sizeof *graph->works, run_graph, release_graph);
    if (!graph) return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_fetch_add_explicit(&own->references, 1, memory_order_relaxed);
    graph->shape = own;
    graph->op.counted = true; /* one call, whatever its size */
    for (uint32_t i = 0; i < own->count; i++) {
        if (exec->disabled[i]) continue;
        graph->works[i] = exec->works[i];
        sim_work_retain(graph->works[i]);
    }
    return sim_enqueue(stream, &graph->op, false);
}

CUresult sim_do_graph_upload(sim_driver *driver, CUgraphExec handle, CUstream stream_handle) {
    sim_exec *exec;
    CUresult code = find_exec(driver, handle, &exec);
    if (code != CUDA_SUCCESS) return code;
    sim_stream *stream;
    code = sim_stream_find(driver, stream_handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    return stream->capture ? sim_capture_refuse(stream) : CUDA_SUCCESS;
}
