#include "device/burst.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "device/state.h"
#include "device/target.h"

typedef struct burst_node {
    CUgraphNode handle;
    mu_function function; /* NULL: the empty kernel of the start */
    bool enabled;
} burst_node;

struct mu_burst {
    mu_device *device;
    mu_burst_shape shape;
    uint32_t capacity;
    /* Nodes below on_below are switched on, those from off_from on are off; between them each node's flag tells. Apart
     * only after a switch has failed. */
    uint32_t on_below, off_from;
    CUgraph graph; /* names the nodes of `exec` */
    CUgraphExec exec;
    uint64_t charged_bytes;
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

static muster_status add_nodes(mu_burst *burst, muster_error *error) {
    const mu_driver *driver = burst->device->driver;
    CUDA_KERNEL_NODE_PARAMS parameters = empty_parameters(burst);
    for (uint32_t i = 0; i < burst->capacity; i++) {
        bool follows = burst->shape == MU_BURST_CHAIN && i > 0;
        CUresult code = driver->graph_add_kernel_node(
            &burst->nodes[i].handle, burst->graph, follows ? &burst->nodes[i - 1].handle : NULL, follows, &parameters);
        if (code != CUDA_SUCCESS)
            return mu_device_fail(burst->device, code, error, "cuGraphAddKernelNode %" PRIu32 " of %" PRIu32, i,
                                  burst->capacity);
        burst->nodes[i].enabled = true;
    }
    burst->on_below = burst->off_from = burst->capacity;
    return MUSTER_OK;
}

static muster_status instantiate(mu_burst *burst, muster_error *error) {
    mu_device *device = burst->device;
    uint64_t before = mu_free_memory(device);
    CUresult code = device->driver->graph_instantiate(&burst->exec, burst->graph, 0);
    if (code != CUDA_SUCCESS) {
        burst->exec = NULL;
        return mu_device_fail(device, code, error, "cuGraphInstantiate of %" PRIu32 " kernels", burst->capacity);
    }
    uint64_t after = mu_free_memory(device);
    burst->charged_bytes = after && before > after ? before - after : 0;
    mu_ledger_fix(&device->ledger, burst->charged_bytes);
    mu_count(&device->counters, &device->counters.device_stalls, 1);
    return MUSTER_OK;
}

static muster_status build(mu_burst *burst, muster_error *error) {
    muster_status status = load_empty_kernel(burst->device, error);
    if (status) return status;
    CUresult code = burst->device->driver->graph_create(&burst->graph, 0);
    if (code != CUDA_SUCCESS) {
        burst->graph = NULL;
        return mu_device_fail(burst->device, code, error, "cuGraphCreate");
    }
    status = add_nodes(burst, error);
    return status ? status : instantiate(burst, error);
}

muster_status mu_burst_create(mu_device *device, mu_burst_shape shape, uint32_t capacity, mu_burst **burst,
                              muster_error *error) {
    if (capacity == 0 || capacity > MU_BURST_MAX || (shape != MU_BURST_CHAIN && shape != MU_BURST_BRANCHES))
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "a burst of %" PRIu32 " kernels in shape %d; give 1 to %d, as a chain or as branches",
                                capacity, (int)shape, (int)MU_BURST_MAX);
    mu_burst *made = mu_alloc_zeroed(1, sizeof *made + capacity * sizeof made->nodes[0]);
    if (!made) return mu_fail_host_memory(error, "a burst", sizeof *made + capacity * sizeof made->nodes[0]);
    made->device = device;
    made->shape = shape;
    made->capacity = capacity;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (!status) {
        status = build(made, error);
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
    if (mu_scope_begin_release(&scope, device)) {
        if (burst->exec) device->driver->graph_exec_destroy(burst->exec);
        if (burst->graph) device->driver->graph_destroy(burst->graph);
        mu_scope_end(&scope);
    }
    mu_ledger_unfix(&device->ledger, burst->charged_bytes);
    mu_free(burst);
}

uint32_t mu_burst_capacity(const mu_burst *burst) { return burst->capacity; }
mu_burst_shape mu_burst_shape_of(const mu_burst *burst) { return burst->shape; }

mu_function mu_burst_function(const mu_burst *burst, uint32_t index) {
    return index < burst->capacity ? burst->nodes[index].function : NULL;
}

/* ------------------------------------------------------------------------------------------------------------ set -- */

bool mu_burst_takes(const mu_launch *launch) {
    return !launch->cooperative && launch->cluster[0] == 0 && launch->counter_bytes == 0;
}

static muster_status update_node(mu_burst *burst, uint32_t index, const mu_launch *launch, muster_error *error) {
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
    CUresult code =
        device->driver->graph_exec_kernel_node_set_params(burst->exec, burst->nodes[index].handle, &parameters);
    if (code != CUDA_SUCCESS) return mu_launch_fail(device, launch, "cuGraphExecKernelNodeSetParams", code, error);
    burst->nodes[index].function = launch->function;
    return MUSTER_OK;
}

muster_status mu_burst_set(mu_burst *burst, uint32_t index, const mu_launch *launch, muster_error *error) {
    mu_device *device = burst->device;
    mu_scope scope;
    if (index >= burst->capacity)
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "node %" PRIu32 " of a burst of %" PRIu32 " kernels", index, burst->capacity);
    if (!mu_burst_takes(launch))
        return mu_device_refuse(
            device, MUSTER_INVALID_ARGUMENT, error,
            "a burst takes no cooperative launch, none with clusters and none with counters to zero; "
            "launch it by itself");
    muster_status status = mu_launch_guard(device, launch, error);
    if (!status) status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    status = mu_launch_raise_shared(device, launch->function, launch->dynamic_shared_bytes, error);
    if (!status) status = update_node(burst, index, launch, error);
    mu_scope_end(&scope);
    return status;
}

muster_status mu_burst_forget(mu_burst *burst, mu_function function, muster_error *error) {
    mu_device *device = burst->device;
    CUDA_KERNEL_NODE_PARAMS parameters = empty_parameters(burst);
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    for (uint32_t i = 0; i < burst->capacity && !status; i++) {
        if (burst->nodes[i].function != function) continue;
        CUresult code =
            device->driver->graph_exec_kernel_node_set_params(burst->exec, burst->nodes[i].handle, &parameters);
        if (code != CUDA_SUCCESS)
            status = mu_device_fail(device, code, error, "cuGraphExecKernelNodeSetParams of node %" PRIu32, i);
        else
            burst->nodes[i].function = NULL;
    }
    mu_scope_end(&scope);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- launch -- */

/* Switches nodes on or off until exactly the first `count` are on; stops at the first that fails. */
static muster_status enable(mu_burst *burst, uint32_t count, muster_error *error) {
    mu_device *device = burst->device;
    uint32_t low = count < burst->on_below ? count : burst->on_below;
    uint32_t high = count > burst->off_from ? count : burst->off_from;
    for (uint32_t i = low; i < high; i++) {
        bool wanted = i < count;
        if (burst->nodes[i].enabled == wanted) continue;
        CUresult code = device->driver->graph_node_set_enabled(burst->exec, burst->nodes[i].handle, wanted);
        if (code != CUDA_SUCCESS) {
            burst->on_below = low;
            burst->off_from = high;
            return mu_device_fail_as(device, MUSTER_LAUNCH_FAILED, code, error,
                                     "cuGraphNodeSetEnabled of node %" PRIu32 " of a burst of %" PRIu32, i,
                                     burst->capacity);
        }
        burst->nodes[i].enabled = wanted;
    }
    burst->on_below = burst->off_from = count;
    return MUSTER_OK;
}

static muster_status check_count(const mu_burst *burst, uint32_t count, muster_error *error) {
    if (count == 0 || count > burst->capacity)
        return mu_device_refuse(burst->device, MUSTER_INVALID_ARGUMENT, error,
                                "launching %" PRIu32 " of the %" PRIu32 " kernels of a burst", count, burst->capacity);
    for (uint32_t i = 0; i < count; i++)
        if (!burst->nodes[i].function)
            return mu_device_refuse(burst->device, MUSTER_INVALID_ARGUMENT, error,
                                    "node %" PRIu32 " of a burst was never set", i);
    return MUSTER_OK;
}

muster_status mu_burst_launch(mu_burst *burst, uint32_t count, muster_error *error) {
    mu_device *device = burst->device;
    mu_device_counters *counters = &device->counters;
    mu_scope scope;
    muster_status status = check_count(burst, count, error);
    if (!status) status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    status = enable(burst, count, error);
    if (status) goto end_scope;
    CUresult code = device->driver->graph_launch(burst->exec, device->lanes[MU_LANE_DISPATCH]);
    if (code != CUDA_SUCCESS) {
        status = mu_device_fail_as(device, MUSTER_LAUNCH_FAILED, code, error,
                                   "cuGraphLaunch of %" PRIu32 " kernels; send them one by one", count);
        goto end_scope;
    }
    mu_count(counters, &counters->bursts, 1);
    mu_count(counters, &counters->graph_launches, 1);
    mu_count(counters, &counters->burst_jobs, count);
    mu_count(counters, &counters->launches, count);
end_scope:
    mu_scope_end(&scope);
    return status;
}
