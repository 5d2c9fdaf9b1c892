/* Graphs as they are built: kernel nodes, empty nodes, and edges. */
#include "device/sim/sim_graph.h"

#include <string.h>

static atomic_uint_fast64_t next_serial; /* relaxed: it only has to be another one each time */

sim_graph *sim_graph_new(sim_driver *driver) {
    sim_graph *graph = mu_alloc_zeroed(1, sizeof *graph);
    if (!graph) return NULL;
    graph->driver = driver;
    graph->serial = atomic_fetch_add_explicit(&next_serial, 1, memory_order_relaxed) + 1;
    return graph;
}

static void free_node(sim_driver *driver, sim_node *node) {
    sim_handle_remove(driver, &node->object);
    sim_work_drop(node->work);
    mu_free(node->dependencies);
    mu_free(node);
}

void sim_graph_free(sim_graph *graph) {
    if (!graph) return;
    if (graph->object.handle) sim_handle_remove(graph->driver, &graph->object);
    for (size_t i = 0; i < graph->count; i++) free_node(graph->driver, graph->nodes[i]);
    mu_free(graph->nodes);
    mu_free(graph);
}

CUresult sim_graph_add(sim_graph *graph, sim_work *work, const uint32_t *dependencies, size_t count, sim_node **out) {
    if (!mu_grow(&graph->nodes, &graph->capacity, graph->count + 1, sizeof *graph->nodes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_node *node = mu_alloc_zeroed(1, sizeof *node);
    if (!node) return CUDA_ERROR_OUT_OF_MEMORY;
    node->graph = graph;
    node->index = (uint32_t)graph->count;
    node->dependency_count = (uint32_t)count;
    node->dependencies = mu_alloc_zeroed(count, sizeof *node->dependencies);
    if (!node->dependencies || !sim_handle_add(graph->driver, &node->object, SIM_TAG_NODE, NULL)) {
        mu_free(node->dependencies);
        mu_free(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < count; i++) node->dependencies[i].from = dependencies[i];
    node->work = work;
    graph->nodes[graph->count++] = node;
    *out = node;
    return CUDA_SUCCESS;
}

CUresult sim_do_graph_create(sim_driver *driver, CUgraph *handle, unsigned int flags) {
    if (!handle || flags) return CUDA_ERROR_INVALID_VALUE;
    sim_graph *graph = sim_graph_new(driver);
    if (!graph) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_handle_add(driver, &graph->object, SIM_TAG_GRAPH, NULL)) {
        sim_graph_free(graph);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = SIM_HANDLE(CUgraph, graph);
    return CUDA_SUCCESS;
}

CUresult sim_do_graph_destroy(sim_driver *driver, CUgraph handle) {
    sim_graph *graph = sim_find(driver, SIM_TAG_GRAPH, handle);
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    sim_graph_free(graph);
    return CUDA_SUCCESS;
}

/* Handles of dependencies to indices; each must be a node of this graph, and named once. */
static CUresult read_dependencies(sim_graph *graph, const CUgraphNode *handles, size_t count, uint32_t **indices) {
    if (count && !handles) return CUDA_ERROR_INVALID_VALUE;
    uint32_t *read = mu_alloc(count * sizeof *read);
    if (!read) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        sim_node *node = sim_find(graph->driver, SIM_TAG_NODE, handles[i]);
        bool valid = node && node->graph == graph;
        for (size_t j = 0; valid && j < i; j++) valid = read[j] != node->index;
        if (!valid) {
            mu_free(read);
            return CUDA_ERROR_INVALID_VALUE;
        }
        read[i] = node->index;
    }
    *indices = read;
    return CUDA_SUCCESS;
}

static CUresult add_node(sim_graph *graph, CUgraphNode *handle, sim_work *work, const CUgraphNode *dependencies,
                         size_t count) {
    uint32_t *indices;
    CUresult code = read_dependencies(graph, dependencies, count, &indices);
    if (code != CUDA_SUCCESS) return code;
    sim_node *node;
    code = sim_graph_add(graph, work, indices, count, &node);
    mu_free(indices);
    if (code == CUDA_SUCCESS) *handle = SIM_HANDLE(CUgraphNode, node);
    return code;
}

CUresult sim_node_work(sim_driver *driver, const CUDA_KERNEL_NODE_PARAMS *parameters, sim_work **work) {
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    sim_kernel *kernel = sim_find(driver, SIM_TAG_KERNEL, parameters->func);
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = sim_context_error(kernel->image->context);
    if (code != CUDA_SUCCESS) return code;
    sim_shape shape = {.grid = {parameters->gridDimX, parameters->gridDimY, parameters->gridDimZ},
                       .block = {parameters->blockDimX, parameters->blockDimY, parameters->blockDimZ},
                       .cluster = {1, 1, 1},
                       .shared_bytes = parameters->sharedMemBytes};
    code = sim_shape_check(kernel, &shape);
    if (code != CUDA_SUCCESS) return code;
    return sim_work_renew(kernel, &shape, parameters->kernelParams, parameters->extra, work);
}

CUresult sim_do_graph_add_kernel_node(sim_driver *driver, CUgraphNode *node, CUgraph handle,
                                      const CUgraphNode *dependencies, size_t count,
                                      const CUDA_KERNEL_NODE_PARAMS *parameters) {
    sim_graph *graph = sim_find(driver, SIM_TAG_GRAPH, handle);
    if (!graph || !node) return CUDA_ERROR_INVALID_VALUE;
    sim_work *work = NULL;
    CUresult code = sim_node_work(driver, parameters, &work);
    if (code != CUDA_SUCCESS) return code;
    code = add_node(graph, node, work, dependencies, count);
    if (code != CUDA_SUCCESS)
        sim_work_drop(work);
    else
        graph->nodes[graph->count - 1]->function = parameters->func;
    return code;
}

/* Executable graphs that were made of it keep what they have. */
CUresult sim_do_graph_kernel_node_set_params(sim_driver *driver, CUgraphNode handle,
                                             const CUDA_KERNEL_NODE_PARAMS *parameters) {
    sim_node *node = sim_find(driver, SIM_TAG_NODE, handle);
    if (!node || !node->work) return CUDA_ERROR_INVALID_VALUE;
    CUresult code = sim_node_work(driver, parameters, &node->work);
    if (code == CUDA_SUCCESS) node->function = parameters->func;
    return code;
}

CUresult sim_do_graph_add_empty_node(sim_driver *driver, CUgraphNode *node, CUgraph handle,
                                     const CUgraphNode *dependencies, size_t count) {
    sim_graph *graph = sim_find(driver, SIM_TAG_GRAPH, handle);
    if (!graph || !node) return CUDA_ERROR_INVALID_VALUE;
    return add_node(graph, node, NULL, dependencies, count);
}

/* --------------------------------------------------------------------------------------------------------- edges -- */

static sim_node *find_node(sim_graph *graph, CUgraphNode handle) {
    sim_node *node = sim_find(graph->driver, SIM_TAG_NODE, handle);
    return node && node->graph == graph ? node : NULL;
}

static bool is_edge_data(const CUgraphEdgeData *data, const sim_node *from, const sim_node *to) {
    for (size_t i = 0; i < sizeof data->reserved; i++)
        if (data->reserved[i]) return false;
    if (data->to_port || data->from_port > CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER) return false;
    if (data->type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        return from->work && to->work && data->from_port != CU_GRAPH_KERNEL_NODE_PORT_DEFAULT;
    return data->type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT && data->from_port == CU_GRAPH_KERNEL_NODE_PORT_DEFAULT;
}

static bool is_joined(const sim_node *from, const sim_node *to) {
    for (uint32_t d = 0; d < to->dependency_count; d++)
        if (to->dependencies[d].from == from->index) return true;
    return false;
}

static CUresult add_edge(sim_graph *graph, CUgraphNode from_handle, CUgraphNode to_handle,
                         const CUgraphEdgeData *data) {
    sim_node *from = find_node(graph, from_handle), *to = find_node(graph, to_handle);
    if (!from || !to || from == to || is_joined(from, to) || !is_edge_data(data, from, to))
        return CUDA_ERROR_INVALID_VALUE;
    sim_edge *grown = mu_realloc(to->dependencies, (to->dependency_count + 1) * sizeof *grown);
    if (!grown) return CUDA_ERROR_OUT_OF_MEMORY;
    to->dependencies = grown;
    grown[to->dependency_count++] = (sim_edge){from->index, data->from_port};
    return CUDA_SUCCESS;
}

/* All or none. A cycle is noticed when the graph is instantiated. */
CUresult sim_do_graph_add_dependencies(sim_driver *driver, CUgraph handle, const CUgraphNode *from,
                                       const CUgraphNode *to, const CUgraphEdgeData *edges, size_t count) {
    const CUgraphEdgeData plain = {0};
    sim_graph *graph = sim_find(driver, SIM_TAG_GRAPH, handle);
    if (!graph || (count && (!from || !to))) return CUDA_ERROR_INVALID_VALUE;
    CUresult code = CUDA_SUCCESS;
    size_t done = 0;
    while (done < count && code == CUDA_SUCCESS) {
        code = add_edge(graph, from[done], to[done], edges ? &edges[done] : &plain);
        if (code == CUDA_SUCCESS) done++;
    }
    while (code != CUDA_SUCCESS && done > 0) find_node(graph, to[--done])->dependency_count--;
    return code;
}
