/* How many blocks fit a multiprocessor, by the rules of CUDA's occupancy calculator. */
#include "device/sim/sim_code.h"

enum { REGISTERS_PER_UNIT = 256, WARPS_PER_UNIT = 4, MAX_CLUSTER = 8 };

static uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

int sim_occupancy(const sim_kernel *kernel, uint32_t threads, uint64_t dynamic_shared_bytes) {
    const sim_device_config *config = kernel->image->context->device->config;
    const sim_function_info *info = kernel->info;
    uint64_t shared = info->static_shared_bytes + dynamic_shared_bytes;
    if (threads == 0 || threads > 1024) return 0; /* the function's own bound does not count, as in the real driver */
    if (shared > (uint64_t)config->shared_per_block_optin) return 0;

    uint64_t warps = (threads + (uint32_t)config->warp_size - 1) / (uint32_t)config->warp_size;
    uint64_t blocks = smaller((uint64_t)config->blocks_per_sm,
                              (uint64_t)config->threads_per_sm / (uint64_t)config->warp_size / warps);
    /* Registers are given to warps in units of 256, and a quarter of the multiprocessor holds a quarter of the warps. */
    uint64_t registers = round_up((uint64_t)info->registers * (uint64_t)config->warp_size, REGISTERS_PER_UNIT);
    uint64_t resident_warps = (uint64_t)config->registers_per_sm / registers / WARPS_PER_UNIT * WARPS_PER_UNIT;
    blocks = smaller(blocks, resident_warps / warps);
    /* Shared memory comes in units of 128 bytes from 8.0 on, 256 before; each block also holds what the system keeps. */
    uint64_t unit = config->major >= 8 ? 128 : 256;
    uint64_t held = round_up(shared + (uint64_t)config->shared_reserved, unit);
    if (held) blocks = smaller(blocks, (uint64_t)config->shared_per_sm / held);
    return (int)blocks;
}

CUresult sim_do_occupancy_max_active_blocks(sim_driver *driver, int *blocks, CUfunction function, int block_threads,
                                            size_t dynamic_shared_bytes) {
    sim_kernel *kernel = sim_find(driver, SIM_TAG_KERNEL, function);
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = sim_context_error(kernel->image->context);
    if (code != CUDA_SUCCESS) return code;
    if (!blocks || block_threads <= 0) return CUDA_ERROR_INVALID_VALUE;
    *blocks = sim_occupancy(kernel, (uint32_t)block_threads, dynamic_shared_bytes);
    return CUDA_SUCCESS;
}

/* Clusters that are resident at once: the model packs them into groups of 16 multiprocessors, as 9.0 does. */
CUresult sim_do_occupancy_max_active_clusters(sim_driver *driver, int *clusters, CUfunction function,
                                              const CUlaunchConfig *config) {
    sim_kernel *kernel = sim_find(driver, SIM_TAG_KERNEL, function);
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = sim_context_error(kernel->image->context);
    if (code != CUDA_SUCCESS) return code;
    if (!clusters || !config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
    const sim_device_config *device = kernel->image->context->device->config;
    uint64_t size = 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            size = (uint64_t)config->attrs[i].value.clusterDim.x * config->attrs[i].value.clusterDim.y *
                   config->attrs[i].value.clusterDim.z;
    if (size == 0 || size > 2 * MAX_CLUSTER) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (device->major < 9) return CUDA_ERROR_NOT_SUPPORTED;
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    if (threads == 0 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    uint64_t per_sm = (uint64_t)sim_occupancy(kernel, (uint32_t)threads, config->sharedMemBytes);
    uint64_t groups = (uint64_t)device->sms / 16, rest = (uint64_t)device->sms % 16;
    *clusters = (int)(groups * (16 * per_sm / size) + rest * per_sm / size);
    return CUDA_SUCCESS;
}
