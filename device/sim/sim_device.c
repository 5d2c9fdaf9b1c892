/* Initialisation and what can be asked of a device without a context. */
#include <stdio.h>
#include <string.h>

#include "device/sim/sim_heap.h"

CUresult sim_do_init(sim_driver *driver, unsigned int flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!driver->config.device_count) return CUDA_ERROR_NO_DEVICE;
    /* Release pairs with the acquire in enter(): who sees it set sees the instance complete. */
    atomic_store_explicit(&driver->initialised, true, memory_order_release);
    return CUDA_SUCCESS;
}

CUresult sim_do_driver_get_version(sim_driver *driver, int *version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = driver->config.driver_version;
    return CUDA_SUCCESS;
}

CUresult sim_do_device_get_count(sim_driver *driver, int *count) {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = (int)driver->config.device_count;
    return CUDA_SUCCESS;
}

CUresult sim_do_device_get(sim_driver *driver, CUdevice *device, int ordinal) {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (ordinal < 0 || (uint32_t)ordinal >= driver->config.device_count) return CUDA_ERROR_INVALID_DEVICE;
    *device = sim_device_handle(&driver->devices[ordinal]);
    return CUDA_SUCCESS;
}

sim_device *sim_find_device(sim_driver *driver, CUdevice device) {
    if (device < 0 || (uint32_t)device >> SIM_DEVICE_SLOT_SHIFT != driver->slot) return NULL;
    uint32_t ordinal = (uint32_t)device & ((1u << SIM_DEVICE_SLOT_SHIFT) - 1);
    return ordinal < driver->config.device_count ? &driver->devices[ordinal] : NULL;
}

CUresult sim_do_device_get_name(sim_driver *driver, char *name, int length, CUdevice handle) {
    sim_device *device = sim_find_device(driver, handle);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", device->config->name);
    return CUDA_SUCCESS;
}

/* Stable over instances: the same configuration has the same identifiers in every process. */
CUresult sim_do_device_get_uuid(sim_driver *driver, CUuuid *uuid, CUdevice handle) {
    sim_device *device = sim_find_device(driver, handle);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, "MUSTER-SIM-GPU", 14);
    uuid->bytes[14] = (char)device->config->major;
    uuid->bytes[15] = (char)device->ordinal;
    return CUDA_SUCCESS;
}

CUresult sim_do_device_get_pci_bus_id(sim_driver *driver, char *id, int length, CUdevice handle) {
    sim_device *device = sim_find_device(driver, handle);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!id || length < 13) return CUDA_ERROR_INVALID_VALUE;
    snprintf(id, (size_t)length, "0000:%02X:00.0", device->ordinal + 1);
    return CUDA_SUCCESS;
}

CUresult sim_do_device_total_mem(sim_driver *driver, size_t *bytes, CUdevice handle) {
    sim_device *device = sim_find_device(driver, handle);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = device->config->memory_bytes;
    return CUDA_SUCCESS;
}

static bool launch_attribute(const sim_device_config *config, CUdevice_attribute attribute, int *value) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: *value = 1024; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 2147483647; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: *value = 65535; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; return true;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = config->warp_size; return true;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = config->sms; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = config->threads_per_sm; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = config->blocks_per_sm; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = config->registers_per_block; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = config->registers_per_sm; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = config->shared_per_block; return true;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
            *value = config->shared_per_block_optin;
            return true;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = config->shared_per_sm; return true;
        case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *value = config->shared_reserved; return true;
        case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: *value = config->cooperative; return true;
        case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: *value = config->major >= 9; return true;
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: *value = 1; return true;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = config->major; return true;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = config->minor; return true;
        default: return false;
    }
}

static int board_attribute(const sim_device *device, CUdevice_attribute attribute) {
    const sim_device_config *config = device->config;
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
        case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return 2147483647;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return config->clock_khz;
        case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP: return config->copy_engines > 0;
        case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return config->copy_engines;
        case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: return 1;
        case CU_DEVICE_ATTRIBUTE_ECC_ENABLED: return 1;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return device->ordinal + 1;
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return config->memory_clock_khz;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return config->bus_bits;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return config->l2_bytes;
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: return 1;
        case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: return 1;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED: return 1;
        case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: return 1;
        case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: return 1;
        case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED: return 1;
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
        case CU_DEVICE_ATTRIBUTE_NUMA_ID: return -1;
        case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: return 0;
        default: return 0; /* what the simulator lacks: managed memory, virtual memory management, ... */
    }
}

CUresult sim_do_device_get_attribute(sim_driver *driver, int *value, CUdevice_attribute attribute, CUdevice handle) {
    sim_device *device = sim_find_device(driver, handle);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!value || (int)attribute <= 0 || (int)attribute > 1000) return CUDA_ERROR_INVALID_VALUE;
    if (!launch_attribute(device->config, attribute, value)) *value = board_attribute(device, attribute);
    return CUDA_SUCCESS;
}

static bool reaches(const sim_driver *driver, const sim_device *device, const sim_device *peer) {
    return driver->config.peers[device->ordinal] >> peer->ordinal & 1;
}

CUresult sim_do_device_can_access_peer(sim_driver *driver, int *can, CUdevice handle, CUdevice peer_handle) {
    sim_device *device = sim_find_device(driver, handle), *peer = sim_find_device(driver, peer_handle);
    if (!device || !peer) return CUDA_ERROR_INVALID_DEVICE;
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    *can = reaches(driver, device, peer);
    return CUDA_SUCCESS;
}

CUresult sim_do_device_get_p2p_attribute(sim_driver *driver, int *value, CUdevice_P2PAttribute attribute,
                                         CUdevice source, CUdevice destination) {
    sim_device *from = sim_find_device(driver, source), *to = sim_find_device(driver, destination);
    if (!from || !to || from == to) return CUDA_ERROR_INVALID_DEVICE;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    bool linked = reaches(driver, from, to);
    switch (attribute) {
        case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = linked ? 0 : 1; break;
        case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
        case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = linked; break;
        case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: *value = 0; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sim_do_mem_get_info(sim_driver *driver, size_t *free_bytes, size_t *total_bytes) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    if (!free_bytes || !total_bytes) return CUDA_ERROR_INVALID_VALUE;
    *free_bytes = sim_free_bytes(context->device);
    *total_bytes = context->device->config->memory_bytes;
    return CUDA_SUCCESS;
}
