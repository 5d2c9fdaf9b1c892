#include "device/burst.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "device/state.h"
#include "device/target.h"

/* Launches after which it is taken that nodes keep their kernels. */
enum { STEADY_LAUNCHES = 4 };

typedef struct burst_node {
    mu_function function; /* NULL: the empty kernel of the start */
    uint32_t key;         /* of the rest; 0: nothing yet */
    uint32_t grid[3], block[3], shared_bytes;
    mu_function origin; /* of the node in the form's graph; NULL likewise */
    bool enabled;
    bool set;  /* since the last launch */
    bool kept; /* `values` are its arguments */
    _Alignas(uint64_t) unsigned char values[MU_BURST_KEPT_BYTES];
} burst_node;

/* The driver's part. */
typedef struct burst_form {
    CUgraph graph; /* names the nodes of `exec` */
    CUgraphExec exec;
    CUgraphNode *handles;
    uint64_t charged_bytes;
} burst_form;

struct mu_burst {
    mu_device *device;
    uint32_t branches, capacity;
    uint32_t set_count, enabled_count;
    uint32_t steady; /* launches since a node was given another kernel or grid */
    bool reshaped;   /* some node has other ones than when the form was made */
    bool independent;
    bool overlaps; /* in launch order: all nodes stay switched on */
    burst_form form;
    burst_node nodes[];
};

/* --------------------------------------------------------------------------------------------------------- create -- */

/* The target probe is an empty kernel. All bursts of a device share it, and it stays until the device is closed. */
static muster_status load_empty_kernel(mu_device *device, muster_error *error) {
    char ptx[MU_PROBE_PTX_BYTES];
    int sm;
    if (device->empty_kernel) return MUSTER_OK;
    muster_status status = mu_device_target(device, &sm, error);
    if (status) return status;
    mu_target_probe_ptx(sm, ptx);
    if (!device->empty_module)
        status = mu_module_load(device, ptx, strlen(ptx), "empty kernel of bursts", &device->empty_module, error);
    if (status) return status;
    return mu_module_function(device, device->empty_module, MU_PROBE_ENTRY, &device->empty_kernel, NULL, error);
}

static CUDA_KERNEL_NODE_PARAMS empty_parameters(const mu_burst *burst) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = burst->device->empty_kernel->handle,
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 1,
                                     .blockDimY = 1,
                                     .blockDimZ = 1};
}

/* What a node holds; the empty kernel where its arguments are not kept. */
static CUDA_KERNEL_NODE_PARAMS held_parameters(const mu_burst *burst, burst_node *node, void *slots[]) {
    if (!node->kept) return empty_parameters(burst);
    const mu_function_info *info = &node->function->info;
    unsigned char *at = node->values;
    for (uint32_t i = 0; i < info->parameter_count; at += info->parameter_bytes[i++]) slots[i] = at;
    return (CUDA_KERNEL_NODE_PARAMS){.func = node->function->handle,
                                     .gridDimX = node->grid[0],
                                     .gridDimY = node->grid[1],
                                     .gridDimZ = node->grid[2],
                                     .blockDimX = node->block[0],
                                     .blockDimY = node->block[1],
                                     .blockDimZ = node->block[2],
                                     .sharedMemBytes = node->shared_bytes,
                                     .kernelParams = info->parameter_count ? slots : NULL};
}

static muster_status add_nodes(mu_burst *burst, burst_form *form, muster_error *error) {
    const mu_driver *driver = burst->device->driver;
    const CUgraphEdgeData edge = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER,
                                  .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
    void *slots[MU_MAX_PARAMETERS];
    for (uint32_t i = 0; i < burst->capacity; i++) {
        CUgraphNode *node = &form->handles[i];
        const CUgraphNode *before = i < burst->branches ? NULL : node - burst->branches;
        CUDA_KERNEL_NODE_PARAMS parameters = held_parameters(burst, &burst->nodes[i], slots);
        size_t count = before && !burst->overlaps ? 1 : 0;
        CUresult code = driver->graph_add_kernel_node(node, form->graph, count ? before : NULL, count, &parameters);
        if (code != CUDA_SUCCESS)
            return mu_device_fail(burst->device, code, error, "cuGraphAddKernelNode %" PRIu32 " of %" PRIu32, i,
                                  burst->capacity);
        if (!before || count) continue;
        code = driver->graph_add_dependencies(form->graph, before, node, &edge, 1);
        if (code != CUDA_SUCCESS)
            return mu_device_fail(burst->device, code, error,
                                  "cuGraphAddDependencies of launch order to node %" PRIu32 " of %" PRIu32, i,
                                  burst->capacity);
    }
    return MUSTER_OK;
}

/* Other processes may take memory of the device meanwhile, which the difference tells too. A node takes 2.7 KB on an H200, and the driver
 * gets memory in pieces of 2 MiB. */
static uint64_t taken_bytes(const mu_burst *burst, uint64_t before, uint64_t after) {
    const uint64_t most = (UINT64_C(4) << 20) + burst->capacity * (UINT64_C(16) << 10);
    if (!after || before <= after) return 0;
    return before - after < most ? before - after : most;
}

static muster_status instantiate(mu_burst *burst, burst_form *form, muster_error *error) {
    mu_device *device = burst->device;
    uint64_t before = mu_free_memory(device);
    CUresult code = device->driver->graph_instantiate(&form->exec, form->graph, 0);
    if (code != CUDA_SUCCESS) {
        form->exec = NULL;
        return mu_device_fail(device, code, error, "cuGraphInstantiate of %" PRIu32 " kernels", burst->capacity);
    }
    /* Once it is there, changing arguments costs the device nothing. */
    code = device->driver->graph_upload(form->exec, device->lanes[MU_LANE_DISPATCH]);
    if (code != CUDA_SUCCESS)
        return mu_device_fail(device, code, error, "cuGraphUpload of %" PRIu32 " kernels", burst->capacity);
    form->charged_bytes = taken_bytes(burst, before, mu_free_memory(device));
    mu_ledger_fix(&device->ledger, form->charged_bytes);
    mu_count(&device->counters, &device->counters.device_stalls, 1);
    return MUSTER_OK;
}

/* With the context current, or nothing is called. */
static void drop_form(mu_device *device, burst_form *form, bool call) {
    if (call && form->exec) device->driver->graph_exec_destroy(form->exec);
    if (call && form->graph) device->driver->graph_destroy(form->graph);
    mu_ledger_unfix(&device->ledger, form->charged_bytes);
    mu_free(form->handles);
    *form = (burst_form){0};
}

/* With the context current. The burst is unchanged on failure. */
static muster_status make_form(mu_burst *burst, muster_error *error) {
    mu_device *device = burst->device;
    burst_form made = {.handles = mu_alloc_zeroed(burst->capacity, sizeof *made.handles)};
    if (!made.handles) return mu_fail_host_memory(error, "a burst", burst->capacity * sizeof *made.handles);
    muster_status status = MUSTER_OK;
    CUresult code = device->driver->graph_create(&made.graph, 0);
    if (code != CUDA_SUCCESS) {
        made.graph = NULL;
        status = mu_device_fail(device, code, error, "cuGraphCreate");
    }
    if (!status) status = add_nodes(burst, &made, error);
    if (!status) status = instantiate(burst, &made, error);
    if (status) {
        drop_form(device, &made, !mu_device_is_lost(device));
        return status;
    }
    drop_form(device, &burst->form, true);
    burst->form = made;
    burst->reshaped = false;
    for (uint32_t i = 0; i < burst->capacity; i++) {
        burst_node *node = &burst->nodes[i];
        node->enabled = true;
        node->origin = node->kept ? node->function : NULL;
    }
    burst->enabled_count = burst->capacity;
    return MUSTER_OK;
}

bool mu_burst_can_overlap(const mu_device *device) {
    return device->driver->graph_add_dependencies && device->capability.compute_major >= 9 &&
           device->launch_order != MU_LAUNCH_ORDER_REFUSED;
}

/* Nodes that could not be changed would be of no use: one that others wait for, and one that waits. */
static bool can_change(mu_burst *burst) {
    const CUDA_KERNEL_NODE_PARAMS parameters = empty_parameters(burst);
    const mu_driver *driver = burst->device->driver;
    const burst_form *form = &burst->form;
    CUresult code = driver->graph_exec_kernel_node_set_params(form->exec, form->handles[0], &parameters);
    if (code == CUDA_SUCCESS)
        code = driver->graph_exec_kernel_node_set_params(form->exec, form->handles[burst->capacity - 1], &parameters);
    if (code != CUDA_SUCCESS) mu_device_fail(burst->device, code, NULL, "cuGraphExecKernelNodeSetParams");
    return code == CUDA_SUCCESS;
}

/* In launch order where that can be had. The first burst of a device finds out: the driver has refused it when it accepts the same
 * nodes without. */
static muster_status make_first_form(mu_burst *burst, muster_error *error) {
    mu_device *device = burst->device;
    muster_error reason;
    burst->overlaps = burst->independent && burst->branches < burst->capacity && mu_burst_can_overlap(device);
    if (!burst->overlaps || device->launch_order == MU_LAUNCH_ORDER_WORKS) return make_form(burst, error);
    muster_status status = make_form(burst, &reason);
    if (!status && can_change(burst)) {
        device->launch_order = MU_LAUNCH_ORDER_WORKS;
        return MUSTER_OK;
    }
    if (status == MUSTER_OUT_OF_HOST_MEMORY || status == MUSTER_OUT_OF_DEVICE_MEMORY || mu_device_is_lost(device))
        return status ? mu_error_copy(error, &reason) : mu_device_alive(device, error);
    burst->overlaps = false;
    status = make_form(burst, error);
    if (!status) device->launch_order = MU_LAUNCH_ORDER_REFUSED;
    return status;
}

muster_status mu_burst_create(mu_device *device, uint32_t branches, uint32_t length, mu_burst_order order,
                              mu_burst **burst, muster_error *error) {
    uint64_t capacity = (uint64_t)branches * length;
    if (capacity == 0 || capacity > MU_BURST_MAX)
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "a burst of %" PRIu32 " times %" PRIu32 " kernels; give 1 to %d", branches, length,
                                (int)MU_BURST_MAX);
    mu_burst *made = mu_alloc_zeroed(1, sizeof *made + capacity * sizeof made->nodes[0]);
    if (!made) return mu_fail_host_memory(error, "a burst", sizeof *made + capacity * sizeof made->nodes[0]);
    made->device = device;
    made->branches = branches;
    made->capacity = (uint32_t)capacity;
    made->independent = order == MU_BURST_INDEPENDENT;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (!status) {
        status = load_empty_kernel(device, error);
        if (!status) status = make_first_form(made, error);
        mu_scope_end(&scope);
    }
    if (status)
        mu_burst_destroy(made);
    else
        *burst = made;
    return status;
}

void mu_burst_destroy(mu_burst *burst) {
    if (!burst) return;
    mu_device *device = burst->device;
    mu_scope scope;
    bool alive = mu_scope_begin_release(&scope, device);
    drop_form(device, &burst->form, alive);
    if (alive) mu_scope_end(&scope);
    mu_free(burst);
}

uint32_t mu_burst_capacity(const mu_burst *burst) { return burst->capacity; }
uint32_t mu_burst_branches(const mu_burst *burst) { return burst->branches; }
bool mu_burst_overlaps(const mu_burst *burst) { return burst->overlaps; }

uint32_t mu_burst_key(const mu_burst *burst, uint32_t index) {
    return index < burst->capacity ? burst->nodes[index].key : 0;
}

bool mu_burst_has_keys(const mu_burst *burst, const uint32_t *keys, uint32_t count) {
    if (count > burst->capacity) return false;
    uint32_t i = 0;
    while (i < count && burst->nodes[i].key == keys[i]) i++;
    return i == count;
}

/* ------------------------------------------------------------------------------------------------------------ set -- */

uint32_t mu_launch_key(mu_function function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes) {
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t hash = (uint64_t)(uintptr_t)function * odd;
    hash = (hash ^ (hash >> 29) ^ grid[0] ^ ((uint64_t)grid[1] << 32)) * odd;
    hash = (hash ^ (hash >> 31) ^ grid[2] ^ ((uint64_t)block[0] << 32)) * odd;
    hash = (hash ^ (hash >> 29) ^ block[1] ^ ((uint64_t)block[2] << 32) ^ shared_bytes) * odd;
    return (uint32_t)(hash >> 32) | 1;
}

static bool holds(const burst_node *node, const mu_launch *launch) {
    return node->function == launch->function && memcmp(node->grid, launch->grid, sizeof node->grid) == 0 &&
           memcmp(node->block, launch->block, sizeof node->block) == 0 &&
           node->shared_bytes == launch->dynamic_shared_bytes;
}

/* Most arguments are an address or a number, and are compared as such. */
static inline bool is_same_value(const unsigned char *kept, const void *value, uint32_t bytes) {
    if (bytes == sizeof(uint64_t)) return memcmp(kept, value, sizeof(uint64_t)) == 0;
    if (bytes == sizeof(uint32_t)) return memcmp(kept, value, sizeof(uint32_t)) == 0;
    return memcmp(kept, value, bytes) == 0;
}

/* Whether the node has just this launch, arguments included. An argument table that the guards would refuse is none that it has. */
static bool has_launch(const burst_node *node, const mu_launch *launch) {
    if (!node->kept || !holds(node, launch) || !mu_burst_takes(launch)) return false;
    const mu_function_info *info = &node->function->info;
    const unsigned char *kept = node->values;
    if (launch->parameter_count != info->parameter_count || launch->slot_count < info->parameter_count ||
        (info->parameter_count && !launch->parameters))
        return false;
    for (uint32_t i = 0; i < info->parameter_count; kept += info->parameter_bytes[i++])
        if (!launch->parameters[i] || !is_same_value(kept, launch->parameters[i], info->parameter_bytes[i]))
            return false;
    return true;
}

/* Has the node remember the arguments, if it can. */
static bool keep_values(burst_node *node, const mu_launch *launch) {
    const mu_function_info *info = &launch->function->info;
    uint32_t used = 0;
    if (!info->parameters_known) return false;
    for (uint32_t i = 0; i < info->parameter_count; i++) {
        uint32_t bytes = info->parameter_bytes[i];
        if (bytes > MU_BURST_KEPT_BYTES - used) return false;
        memcpy(node->values + used, launch->parameters[i], bytes);
        used += bytes;
    }
    return true;
}

static CUgraphNode handle_of(const mu_burst *burst, const burst_node *node) {
    return burst->form.handles[node - burst->nodes];
}

static void mark_set(mu_burst *burst, burst_node *node) {
    if (!node->set) burst->set_count++;
    node->set = true;
}

static muster_status update_node(mu_burst *burst, burst_node *node, const mu_launch *launch, muster_error *error) {
    CUDA_KERNEL_NODE_PARAMS parameters = {.func = launch->function->handle,
                                          .gridDimX = launch->grid[0],
                                          .gridDimY = launch->grid[1],
                                          .gridDimZ = launch->grid[2],
                                          .blockDimX = launch->block[0],
                                          .blockDimY = launch->block[1],
                                          .blockDimZ = launch->block[2],
                                          .sharedMemBytes = launch->dynamic_shared_bytes,
                                          .kernelParams = launch->parameters};
    mu_device *device = burst->device;
    mu_device_counters *counters = &device->counters;
    node->kept = false;
    CUresult code =
        device->driver->graph_exec_kernel_node_set_params(burst->form.exec, handle_of(burst, node), &parameters);
    if (code != CUDA_SUCCESS) return mu_launch_fail(device, launch, "cuGraphExecKernelNodeSetParams", code, error);
    mu_count(counters, &counters->burst_updates, 1);
    if (!holds(node, launch)) {
        node->function = launch->function;
        memcpy(node->grid, launch->grid, sizeof node->grid);
        memcpy(node->block, launch->block, sizeof node->block);
        node->shared_bytes = launch->dynamic_shared_bytes;
        node->key = mu_launch_key(node->function, node->grid, node->block, node->shared_bytes);
        mu_count(counters, &counters->burst_reshapes, 1);
        burst->reshaped = true;
        burst->steady = 0;
    }
    node->kept = keep_values(node, launch);
    return MUSTER_OK;
}

muster_status mu_burst_set(mu_burst *burst, uint32_t index, const mu_launch *launch, muster_error *error) {
    mu_device *device = burst->device;
    mu_scope scope;
    if (index >= burst->capacity)
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "node %" PRIu32 " of a burst of %" PRIu32 " kernels", index, burst->capacity);
    burst_node *node = &burst->nodes[index];
    if (has_launch(node, launch) && !mu_device_is_lost(device)) {
        mark_set(burst, node);
        return MUSTER_OK;
    }
    if (!mu_burst_takes(launch))
        return mu_device_refuse(
            device, MUSTER_INVALID_ARGUMENT, error,
            "a burst takes no cooperative launch, none with clusters and none with counters to zero; "
            "launch it by itself");
    muster_status status = mu_launch_guard(device, launch, error);
    if (!status) status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    status = mu_launch_raise_shared(device, launch->function, launch->dynamic_shared_bytes, error);
    if (!status) status = update_node(burst, node, launch, error);
    if (!status) mark_set(burst, node);
    mu_scope_end(&scope);
    return status;
}

bool mu_burst_renew(mu_burst *burst) {
    mu_scope scope;
    if (!burst->reshaped || burst->steady < STEADY_LAUNCHES || burst->set_count ||
        mu_scope_begin(&scope, burst->device, NULL))
        return false;
    burst->steady = 0;
    make_form(burst, NULL); /* else it stays as it is; a lost device is known to be */
    mu_scope_end(&scope);
    return true;
}

/* The node runs the empty kernel from now on. */
static CUresult empty_node(mu_burst *burst, burst_node *node) {
    const CUDA_KERNEL_NODE_PARAMS parameters = empty_parameters(burst);
    CUresult code =
        burst->device->driver->graph_exec_kernel_node_set_params(burst->form.exec, handle_of(burst, node), &parameters);
    if (code != CUDA_SUCCESS) return code;
    if (node->set) burst->set_count--;
    *node = (burst_node){.enabled = node->enabled, .origin = node->origin};
    return code;
}

/* The empty kernel for what a node holds, and for what it had when the form was made: the driver looks at that too. */
static muster_status forget_in(mu_burst *burst, burst_node *node, mu_function function, muster_error *error) {
    const CUDA_KERNEL_NODE_PARAMS parameters = empty_parameters(burst);
    CUresult code = node->function == function ? empty_node(burst, node) : CUDA_SUCCESS;
    if (code != CUDA_SUCCESS)
        return mu_device_fail(burst->device, code, error, "cuGraphExecKernelNodeSetParams of node %" PRIu32,
                              (uint32_t)(node - burst->nodes));
    if (node->origin == function) {
        code = burst->device->driver->graph_kernel_node_set_params(handle_of(burst, node), &parameters);
        if (code != CUDA_SUCCESS)
            return mu_device_fail(burst->device, code, error, "cuGraphKernelNodeSetParams of node %" PRIu32,
                                  (uint32_t)(node - burst->nodes));
        node->origin = NULL;
    }
    return MUSTER_OK;
}

muster_status mu_burst_forget(mu_burst *burst, mu_function function, muster_error *error) {
    if (!function) return MUSTER_OK;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, burst->device, error);
    if (status) return status;
    for (uint32_t i = 0; i < burst->capacity && !status; i++)
        status = forget_in(burst, &burst->nodes[i], function, error);
    mu_scope_end(&scope);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- launch -- */

/* In launch order: nothing is left in the nodes that were not set; stops at the first that fails. */
static muster_status clear_rest(mu_burst *burst, muster_error *error) {
    mu_device *device = burst->device;
    for (uint32_t i = 0; burst->set_count < burst->capacity && i < burst->capacity; i++) {
        burst_node *node = &burst->nodes[i];
        if (node->set || !node->function) continue;
        CUresult code = empty_node(burst, node);
        if (code != CUDA_SUCCESS)
            return mu_device_fail_as(device, MUSTER_LAUNCH_FAILED, code, error,
                                     "cuGraphExecKernelNodeSetParams of node %" PRIu32 " of a burst of %" PRIu32, i,
                                     burst->capacity);
        mu_count(&device->counters, &device->counters.burst_updates, 1);
        mu_count(&device->counters, &device->counters.burst_reshapes, 1);
        burst->reshaped = true;
        burst->steady = 0;
    }
    return MUSTER_OK;
}

/* Switches on what was set and off what was not; stops at the first that fails. */
static muster_status enable(mu_burst *burst, muster_error *error) {
    mu_device *device = burst->device;
    bool whole = burst->set_count == burst->capacity && burst->enabled_count == burst->capacity;
    for (uint32_t i = 0; !whole && i < burst->capacity; i++) {
        burst_node *node = &burst->nodes[i];
        if (node->enabled == node->set) continue;
        CUresult code = device->driver->graph_node_set_enabled(burst->form.exec, handle_of(burst, node), node->set);
        if (code != CUDA_SUCCESS)
            return mu_device_fail_as(device, MUSTER_LAUNCH_FAILED, code, error,
                                     "cuGraphNodeSetEnabled of node %" PRIu32 " of a burst of %" PRIu32, i,
                                     burst->capacity);
        node->enabled = node->set;
        burst->enabled_count += node->set ? 1 : UINT32_MAX;
    }
    return MUSTER_OK;
}

static muster_status start(mu_burst *burst, muster_error *error) {
    mu_device *device = burst->device;
    mu_device_counters *counters = &device->counters;
    muster_status status = burst->overlaps ? clear_rest(burst, error) : enable(burst, error);
    if (status) return status;
    CUresult code = device->driver->graph_launch(burst->form.exec, device->lanes[MU_LANE_DISPATCH]);
    if (code != CUDA_SUCCESS)
        return mu_device_fail_as(device, MUSTER_LAUNCH_FAILED, code, error,
                                 "cuGraphLaunch of %" PRIu32 " kernels; send them one by one", burst->set_count);
    mu_count(counters, &counters->bursts, 1);
    if (burst->independent) mu_count(counters, &counters->branch_bursts, 1);
    mu_count(counters, &counters->graph_launches, 1);
    mu_count(counters, &counters->burst_jobs, burst->set_count);
    mu_count(counters, &counters->launches, burst->set_count);
    return MUSTER_OK;
}

muster_status mu_burst_launch(mu_burst *burst, muster_error *error) {
    mu_scope scope;
    if (burst->set_count == 0)
        return mu_device_refuse(burst->device, MUSTER_INVALID_ARGUMENT, error,
                                "no node of a burst of %" PRIu32 " kernels was set", burst->capacity);
    muster_status status = mu_scope_begin(&scope, burst->device, error);
    if (!status) {
        status = start(burst, error);
        mu_scope_end(&scope);
    }
    for (uint32_t i = 0; i < burst->capacity; i++) burst->nodes[i].set = false;
    burst->set_count = 0;
    burst->steady++;
    return status;
}
