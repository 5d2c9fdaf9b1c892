/* The fake's modules, linker, launches and graphs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/fake_internal.h"

/* ------------------------------------------------------------------------------------------------------- modules -- */

static void write_log(unsigned int options, CUjit_option *names, void **values, const char *text) {
    char *buffer = NULL;
    size_t bytes = 0;
    for (unsigned i = 0; i < options; i++) {
        if (names[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = values[i];
        if (names[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) bytes = (size_t)(uintptr_t)values[i];
    }
    if (buffer && bytes) snprintf(buffer, bytes, "%s", text);
}

static CUresult judge(const char *text, unsigned int options, CUjit_option *names, void **values) {
    const char *target = strstr(text, ".target sm_");
    if (strstr(text, "bogus")) {
        write_log(options, names, values,
                  "ptxas application ptx input, line 4; error   : Unknown opcode 'bogus'\nfatal");
        return CUDA_ERROR_INVALID_PTX;
    }
    if (target && fake->lowest_failing_target && atoi(target + 11) >= fake->lowest_failing_target)
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    return CUDA_SUCCESS;
}

static CUresult module_load_data_ex(CUmodule *module, const void *image, unsigned int options, CUjit_option *names,
                                    void **values) {
    ENTER(module_load_data_ex);
    NEEDS_CONTEXT();
    CUresult code = judge(image, options, names, values);
    if (code != CUDA_SUCCESS) return code;
    fake_object *made = fake_make(fake_current_device());
    snprintf(made->text, sizeof made->text, "%s", (const char *)image);
    *module = (CUmodule)(void *)made;
    fake->live.modules++;
    fake->module_memory += fake->module_bytes;
    return CUDA_SUCCESS;
}

static CUresult module_unload(CUmodule module) {
    CUresult code = fake_enter(FAKE_module_unload); /* gives back in any case */
    fake_unmake(module);
    fake->live.modules--;
    fake->module_memory -= fake->module_bytes;
    return code;
}

/* A function is the address of its ".entry" in the module's text. */
static const char *find_entry(const char *text, const char *name) {
    for (const char *at = strstr(text, ".entry "); at; at = strstr(at + 1, ".entry "))
        if (strncmp(at + 7, name, strlen(name)) == 0 && at[7 + strlen(name)] == '(') return at;
    return NULL;
}

static CUresult module_get_function(CUfunction *function, CUmodule module, const char *name) {
    ENTER(module_get_function);
    const char *found = find_entry(((fake_object *)(void *)module)->text, name);
    if (!found) return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction)(void *)(uintptr_t)found;
    return CUDA_SUCCESS;
}

static CUresult module_get_global(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name) {
    ENTER(module_get_global);
    fake_object *text = (fake_object *)(void *)module;
    if (!strstr(text->text, name)) return CUDA_ERROR_NOT_FOUND;
    *pointer = (uintptr_t)(text->text + sizeof text->text - 8);
    *bytes = 8;
    return CUDA_SUCCESS;
}

static CUresult module_get_function_count(unsigned int *count, CUmodule module) {
    ENTER(module_get_function_count);
    *count = 0;
    for (const char *at = strstr(((fake_object *)(void *)module)->text, ".entry "); at; at = strstr(at + 1, ".entry "))
        ++*count;
    return CUDA_SUCCESS;
}

static CUresult module_enumerate_functions(CUfunction *functions, unsigned int count, CUmodule module) {
    ENTER(module_enumerate_functions);
    const char *at = strstr(((fake_object *)(void *)module)->text, ".entry ");
    for (unsigned i = 0; i < count && at; i++, at = strstr(at + 1, ".entry "))
        functions[i] = (CUfunction)(void *)(uintptr_t)at;
    return CUDA_SUCCESS;
}

static CUresult func_get_name(const char **name, CUfunction function) {
    ENTER(func_get_name);
    static char names[8][32];
    static unsigned next;
    char *to = names[next++ % 8];
    const char *from = (const char *)(void *)function + 7;
    snprintf(to, sizeof names[0], "%.*s", (int)strcspn(from, "("), from);
    *name = to;
    return CUDA_SUCCESS;
}

static CUresult func_get_param_info(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
    ENTER(func_get_param_info);
    const char *at = (const char *)(void *)function, *end = strchr(at, ')');
    size_t next = 0;
    for (size_t i = 0;; i++) {
        at = strstr(at + 1, ".param .u");
        if (!at || at > end) return CUDA_ERROR_INVALID_VALUE;
        *bytes = (size_t)atoi(at + 9) / 8;
        *offset = next = (next + *bytes - 1) / *bytes * *bytes;
        if (i == index) return CUDA_SUCCESS;
        next += *bytes;
    }
}

static CUresult func_load(CUfunction function) {
    (void)function;
    ENTER(func_load);
    return CUDA_SUCCESS;
}

static CUresult func_get_attribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)function;
    ENTER(func_get_attribute);
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = fake->max_threads; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = fake->registers; break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = fake->static_shared; break;
        default: *value = 0; break;
    }
    return CUDA_SUCCESS;
}

static CUresult func_set_attribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)function;
    ENTER(func_set_attribute);
    assert_int_equal(attribute, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    fake->last_dynamic_limit = value;
    return CUDA_SUCCESS;
}

static struct {
    unsigned options;
    CUjit_option names[4];
    void *values[4];
} link_log;

static CUresult link_create(unsigned int options, CUjit_option *names, void **values, CUlinkState *state) {
    ENTER(link_create);
    NEEDS_CONTEXT();
    assert_true(options <= 4);
    link_log.options = options;
    memcpy(link_log.names, names, options * sizeof *names);
    memcpy(link_log.values, values, options * sizeof *values);
    *state = fake_make(fake_current_device());
    fake->live.links++;
    return CUDA_SUCCESS;
}

static CUresult link_add_data(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name,
                              unsigned int options, CUjit_option *names, void **values) {
    (void)name, (void)options, (void)names, (void)values;
    ENTER(link_add_data);
    assert_int_equal(type, CU_JIT_INPUT_PTX);
    assert_int_equal(((const char *)data)[bytes - 1], '\0');
    fake_object *text = (fake_object *)(void *)state;
    snprintf(text->text, sizeof text->text, "%s", (const char *)data);
    return judge(data, link_log.options, link_log.names, link_log.values);
}

static CUresult link_complete(CUlinkState state, void **cubin, size_t *bytes) {
    ENTER(link_complete);
    fake_object *text = (fake_object *)(void *)state;
    *cubin = text->text;
    *bytes = strlen(text->text) + 1;
    return CUDA_SUCCESS;
}

static CUresult link_destroy(CUlinkState state) {
    CUresult code = fake_enter(FAKE_link_destroy); /* gives back in any case */
    fake_unmake(state);
    fake->live.links--;
    return code;
}

/* ------------------------------------------------------------------------------------------------------- launches -- */

static void remember(enum fake_entry launcher, CUfunction function, const unsigned grid[3], const unsigned block[3],
                     unsigned shared, CUstream stream, void **parameters) {
    fake->last_launch = (fake_launch){.launcher = launcher,
                                      .function = function,
                                      .grid = {grid[0], grid[1], grid[2]},
                                      .block = {block[0], block[1], block[2]},
                                      .shared = shared,
                                      .stream = stream,
                                      .parameters = parameters};
}

static CUresult launch_kernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                              unsigned int block_x, unsigned int block_y, unsigned int block_z,
                              unsigned int shared_bytes, CUstream stream, void **parameters, void **extra) {
    ENTER(launch_kernel);
    NEEDS_CONTEXT();
    assert_null(extra);
    remember(FAKE_launch_kernel, function, (unsigned[]){grid_x, grid_y, grid_z},
             (unsigned[]){block_x, block_y, block_z}, shared_bytes, stream, parameters);
    return CUDA_SUCCESS;
}

static CUresult launch_cooperative_kernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                          unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                          unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                          void **parameters) {
    ENTER(launch_cooperative_kernel);
    NEEDS_CONTEXT();
    remember(FAKE_launch_cooperative_kernel, function, (unsigned[]){grid_x, grid_y, grid_z},
             (unsigned[]){block_x, block_y, block_z}, shared_bytes, stream, parameters);
    return CUDA_SUCCESS;
}

static CUresult launch_kernel_ex(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)extra;
    ENTER(launch_kernel_ex);
    NEEDS_CONTEXT();
    remember(FAKE_launch_kernel_ex, function, (unsigned[]){config->gridDimX, config->gridDimY, config->gridDimZ},
             (unsigned[]){config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
             config->hStream, parameters);
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            fake->last_launch.cluster[0] = attribute->value.clusterDim.x;
            fake->last_launch.cluster[1] = attribute->value.clusterDim.y;
            fake->last_launch.cluster[2] = attribute->value.clusterDim.z;
        } else if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
            fake->last_launch.cooperative = attribute->value.cooperative;
        }
    }
    return CUDA_SUCCESS;
}

/* A graph keeps its nodes in the order they were added; an instantiated one shares them. */
enum { MAX_NODES = 64 };
typedef struct graph_node {
    bool enabled;
    uint32_t value; /* of the first argument */
} graph_node;
static graph_node graph_nodes[MAX_NODES];
static size_t graph_node_count;

static CUresult graph_create(CUgraph *graph, unsigned int flags) {
    (void)flags;
    ENTER(graph_create);
    NEEDS_CONTEXT();
    *graph = fake_make(fake_current_device());
    graph_node_count = 0;
    fake->graph_edges = fake->graph_ordered = 0;
    fake->live.graphs++;
    return CUDA_SUCCESS;
}

static CUresult graph_destroy(CUgraph graph) {
    CUresult code = fake_enter(FAKE_graph_destroy); /* gives back in any case */
    fake_unmake(graph);
    fake->live.graphs--;
    return code;
}

static CUresult graph_add_kernel_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                      const CUDA_KERNEL_NODE_PARAMS *parameters) {
    (void)graph;
    ENTER(graph_add_kernel_node);
    assert_true(graph_node_count < MAX_NODES);
    graph_node *made = &graph_nodes[graph_node_count];
    assert_true(count <= 1);
    /* How many nodes back the one that it follows is. */
    fake->graph_follows[graph_node_count] = count ? (uint32_t)(made - (graph_node *)(void *)dependencies[0]) : 0;
    fake->graph_edges += (uint32_t)count;
    *made = (graph_node){.enabled = true};
    if (parameters->kernelParams) memcpy(&made->value, parameters->kernelParams[0], sizeof made->value);
    graph_node_count++;
    *node = (CUgraphNode)(void *)made;
    return CUDA_SUCCESS;
}

static CUresult graph_add_dependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                       const CUgraphEdgeData *edges, size_t count) {
    (void)graph;
    ENTER(graph_add_dependencies);
    for (size_t i = 0; i < count; i++) {
        const graph_node *before = (const graph_node *)(void *)from[i], *node = (const graph_node *)(void *)to[i];
        assert_true(before < node && fake->graph_follows[node - graph_nodes] == 0);
        fake->graph_follows[node - graph_nodes] = (uint32_t)(node - before);
        fake->graph_edges++;
        fake->graph_ordered += edges[i].from_port == CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER &&
                               edges[i].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC && edges[i].to_port == 0;
    }
    return CUDA_SUCCESS;
}

static CUresult graph_instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    (void)graph, (void)flags;
    ENTER(graph_instantiate);
    if (fake->graph_ordered && fake->refuse_launch_order) return fake->refuse_launch_order;
    *exec = fake_make(fake_current_device());
    fake->live.execs++;
    fake->module_memory += fake->graph_bytes;
    return CUDA_SUCCESS;
}

static CUresult graph_upload(CUgraphExec exec, CUstream stream) {
    (void)exec, (void)stream;
    ENTER(graph_upload);
    return CUDA_SUCCESS;
}

static CUresult graph_exec_destroy(CUgraphExec exec) {
    CUresult code = fake_enter(FAKE_graph_exec_destroy); /* gives back in any case */
    fake_unmake(exec);
    fake->live.execs--;
    fake->module_memory -= fake->graph_bytes;
    return code;
}

static CUresult graph_exec_kernel_node_set_params(CUgraphExec exec, CUgraphNode node,
                                                  const CUDA_KERNEL_NODE_PARAMS *parameters) {
    (void)exec;
    ENTER(graph_exec_kernel_node_set_params);
    graph_node *set = (graph_node *)(void *)node;
    set->value = 0;
    if (parameters->kernelParams) memcpy(&set->value, parameters->kernelParams[0], sizeof set->value);
    return CUDA_SUCCESS;
}

static CUresult graph_kernel_node_set_params(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters) {
    (void)node, (void)parameters;
    ENTER(graph_kernel_node_set_params);
    return CUDA_SUCCESS;
}

static CUresult thread_exchange_stream_capture_mode(CUstreamCaptureMode *mode) {
    static _Thread_local CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_GLOBAL;
    ENTER(thread_exchange_stream_capture_mode);
    CUstreamCaptureMode before = own;
    own = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult graph_node_set_enabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled) {
    (void)exec;
    ENTER(graph_node_set_enabled);
    ((graph_node *)(void *)node)->enabled = enabled != 0;
    return CUDA_SUCCESS;
}

static CUresult graph_launch(CUgraphExec exec, CUstream stream) {
    (void)exec;
    ENTER(graph_launch);
    NEEDS_CONTEXT();
    assert_non_null(stream);
    fake->graph_launched_count = 0;
    for (size_t i = 0; i < graph_node_count; i++)
        if (graph_nodes[i].enabled) fake->graph_launched[fake->graph_launched_count++] = graph_nodes[i].value;
    return CUDA_SUCCESS;
}

static CUresult occupancy_max_active_blocks(int *blocks, CUfunction function, int block_threads, size_t shared) {
    (void)function, (void)block_threads, (void)shared;
    ENTER(occupancy_max_active_blocks);
    *blocks = fake->occupancy;
    return CUDA_SUCCESS;
}

void fake_program_fill(mu_driver *table) {
#define SET(member) table->member = member
    SET(module_load_data_ex), SET(module_unload), SET(module_get_function), SET(module_get_global);
    SET(module_get_function_count), SET(module_enumerate_functions), SET(func_get_name), SET(func_get_param_info);
    SET(func_load), SET(func_get_attribute), SET(func_set_attribute), SET(link_create), SET(link_add_data);
    SET(link_complete), SET(link_destroy), SET(launch_kernel), SET(launch_cooperative_kernel), SET(launch_kernel_ex);
    SET(occupancy_max_active_blocks), SET(graph_create), SET(graph_destroy), SET(graph_add_kernel_node);
    SET(graph_instantiate), SET(graph_upload), SET(graph_exec_destroy), SET(graph_exec_kernel_node_set_params);
    SET(graph_add_dependencies);
    SET(graph_kernel_node_set_params), SET(graph_node_set_enabled), SET(graph_launch);
    SET(thread_exchange_stream_capture_mode);
#undef SET
}
