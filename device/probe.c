/* Asking the driver what a device is. */
#include <string.h>

#include "device/numa.h"
#include "device/state.h"

static int attribute(const mu_driver *driver, CUdevice handle, CUdevice_attribute which, CUresult *first) {
    int value = 0;
    CUresult code = driver->device_get_attribute(&value, which, handle);
    if (code == CUDA_SUCCESS) return value;
    if (*first == CUDA_SUCCESS) *first = code;
    return 0;
}

/* Attributes that a driver may not know: absent, zero and negative all mean "not reported". */
static int optional(const mu_driver *driver, CUdevice handle, CUdevice_attribute which) {
    CUresult ignored = CUDA_SUCCESS;
    int value = attribute(driver, handle, which, &ignored);
    return value > 0 ? value : 0;
}

static CUresult probe_numbers(const mu_driver *driver, CUdevice handle, mu_capability *to) {
    CUresult first = CUDA_SUCCESS;
#define REQUIRED(name) attribute(driver, handle, CU_DEVICE_ATTRIBUTE_##name, &first)
#define OPTIONAL(name) optional(driver, handle, CU_DEVICE_ATTRIBUTE_##name)
    to->compute_major = REQUIRED(COMPUTE_CAPABILITY_MAJOR);
    to->compute_minor = REQUIRED(COMPUTE_CAPABILITY_MINOR);
    to->max_threads_per_block = REQUIRED(MAX_THREADS_PER_BLOCK);
    to->max_block[0] = REQUIRED(MAX_BLOCK_DIM_X);
    to->max_block[1] = REQUIRED(MAX_BLOCK_DIM_Y);
    to->max_block[2] = REQUIRED(MAX_BLOCK_DIM_Z);
    to->max_grid[0] = REQUIRED(MAX_GRID_DIM_X);
    to->max_grid[1] = REQUIRED(MAX_GRID_DIM_Y);
    to->max_grid[2] = REQUIRED(MAX_GRID_DIM_Z);
    to->multiprocessors = REQUIRED(MULTIPROCESSOR_COUNT);
    to->shared_bytes_per_block = REQUIRED(MAX_SHARED_MEMORY_PER_BLOCK);
    to->max_threads_per_multiprocessor = OPTIONAL(MAX_THREADS_PER_MULTIPROCESSOR);
    to->max_blocks_per_multiprocessor = OPTIONAL(MAX_BLOCKS_PER_MULTIPROCESSOR);
    to->registers_per_block = OPTIONAL(MAX_REGISTERS_PER_BLOCK);
    to->registers_per_multiprocessor = OPTIONAL(MAX_REGISTERS_PER_MULTIPROCESSOR);
    to->shared_bytes_optin = OPTIONAL(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    to->shared_bytes_per_multiprocessor = OPTIONAL(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    to->clock_khz = OPTIONAL(CLOCK_RATE);
    to->warp_size = OPTIONAL(WARP_SIZE);
    to->concurrent_kernels = OPTIONAL(CONCURRENT_KERNELS) != 0;
    to->copy_engines = OPTIONAL(ASYNC_ENGINE_COUNT);
    to->cooperative_launch = OPTIONAL(COOPERATIVE_LAUNCH) != 0;
    to->unified_addressing = OPTIONAL(UNIFIED_ADDRESSING) != 0;
    to->memory_pools = OPTIONAL(MEMORY_POOLS_SUPPORTED) != 0;
#undef REQUIRED
#undef OPTIONAL
    if (to->shared_bytes_optin < to->shared_bytes_per_block) to->shared_bytes_optin = to->shared_bytes_per_block;
    to->native_sm = to->compute_major * 10 + to->compute_minor;
    to->ptx_target_sm = to->native_sm;
    /* Clusters came with 9.0 and with the launcher that takes attributes. */
    to->cluster_launch = to->compute_major >= 9 && driver->launch_kernel_ex != NULL;
    return first;
}

static void probe_peers(const mu_driver *driver, CUdevice handle, mu_capability *to) {
    int count = 0;
    if (driver->device_get_count(&count) != CUDA_SUCCESS) return;
    to->peer_count = count < MU_MAX_DEVICES ? count : MU_MAX_DEVICES;
    for (int i = 0; i < to->peer_count; i++) {
        CUdevice peer;
        int can = 0, rank = 0, atomics = 0;
        if (i == to->ordinal || driver->device_get(&peer, i) != CUDA_SUCCESS) continue;
        if (driver->device_can_access_peer(&can, handle, peer) != CUDA_SUCCESS || !can) continue;
        driver->device_get_p2p_attribute(&rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, handle, peer);
        driver->device_get_p2p_attribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, handle, peer);
        to->peers[i] = (mu_peer_link){.access = true, .native_atomics = atomics != 0, .performance_rank = rank};
    }
}

muster_status mu_capability_probe(const mu_driver *driver, int ordinal, CUdevice handle, mu_capability *capability,
                                  muster_error *error) {
    mu_capability found = {
        .ordinal = ordinal, .simulated = driver->kind == MU_DRIVER_SIM, .driver_version = driver->version};
    size_t memory = 0;
    CUuuid uuid;
    CUresult code = probe_numbers(driver, handle, &found);
    if (code != CUDA_SUCCESS) return mu_driver_fail(driver, code, error, "cuDeviceGetAttribute of device %d", ordinal);
    code = driver->device_total_mem(&memory, handle);
    if (code != CUDA_SUCCESS) return mu_driver_fail(driver, code, error, "cuDeviceTotalMem of device %d", ordinal);
    code = driver->device_get_name(found.name, sizeof found.name, handle);
    if (code != CUDA_SUCCESS) return mu_driver_fail(driver, code, error, "cuDeviceGetName of device %d", ordinal);
    code = driver->device_get_uuid(&uuid, handle);
    if (code != CUDA_SUCCESS) return mu_driver_fail(driver, code, error, "cuDeviceGetUuid of device %d", ordinal);
    code = driver->device_get_pci_bus_id(found.pci_bus_id, sizeof found.pci_bus_id, handle);
    if (code != CUDA_SUCCESS) return mu_driver_fail(driver, code, error, "cuDeviceGetPCIBusId of device %d", ordinal);
    found.memory_bytes = memory;
    memcpy(found.uuid, uuid.bytes, sizeof found.uuid);
    found.numa_node = found.simulated ? -1 : mu_numa_node(NULL, found.pci_bus_id);
    probe_peers(driver, handle, &found);
    *capability = found;
    return MUSTER_OK;
}
