/* Launches: what the driver checks, the copy of the parameters, and the run. */
#include <string.h>

#include "base/sanitizer.h"
#include "device/sim/sim_code.h"
#include "device/sim/sim_graph.h"

enum { MAX_GRID_YZ = 65535, MAX_BLOCK_XY = 1024, MAX_BLOCK_Z = 64, MAX_THREADS = 1024, MAX_PORTABLE_CLUSTER = 8 };

/* ------------------------------------------------------------------------------------------------------ checking -- */

static CUresult check_cluster(const sim_kernel *kernel, const sim_shape *shape) {
    uint64_t blocks = (uint64_t)shape->cluster[0] * shape->cluster[1] * shape->cluster[2];
    if (blocks <= 1) return CUDA_SUCCESS;
    if (kernel->image->context->device->config->major < 9) return CUDA_ERROR_NOT_SUPPORTED;
    bool large = atomic_load_explicit(&kernel->non_portable_clusters, memory_order_relaxed);
    if (blocks > (large ? 2 * MAX_PORTABLE_CLUSTER : MAX_PORTABLE_CLUSTER)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    for (int i = 0; i < 3; i++)
        if (shape->grid[i] % shape->cluster[i]) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult sim_shape_check(const sim_kernel *kernel, const sim_shape *shape) {
    const uint32_t *grid = shape->grid, *block = shape->block;
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2]) return CUDA_ERROR_INVALID_VALUE;
    if (grid[0] > INT32_MAX || grid[1] > MAX_GRID_YZ || grid[2] > MAX_GRID_YZ) return CUDA_ERROR_INVALID_VALUE;
    if (block[0] > MAX_BLOCK_XY || block[1] > MAX_BLOCK_XY || block[2] > MAX_BLOCK_Z) return CUDA_ERROR_INVALID_VALUE;
    uint32_t threads = block[0] * block[1] * block[2];
    if (threads > MAX_THREADS) return CUDA_ERROR_INVALID_VALUE;
    const sim_function_info *info = kernel->info;
    if (threads > (uint32_t)info->max_threads) return CUDA_ERROR_INVALID_VALUE;
    if (threads > (uint32_t)kernel->max_threads) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (info->required_threads[0])
        for (int i = 0; i < 3; i++)
            if (block[i] != (uint32_t)(info->required_threads[i] ? info->required_threads[i] : 1))
                return CUDA_ERROR_INVALID_VALUE;
    if (shape->shared_bytes > (uint32_t)atomic_load_explicit(&kernel->dynamic_limit, memory_order_relaxed))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = check_cluster(kernel, shape);
    if (code != CUDA_SUCCESS || !shape->cooperative) return code;
    const sim_device_config *config = kernel->image->context->device->config;
    if (!config->cooperative) return CUDA_ERROR_NOT_SUPPORTED;
    uint64_t resident = (uint64_t)sim_occupancy(kernel, threads, shape->shared_bytes) * (uint64_t)config->sms;
    /* Saturates: a grid has at most 2^63 blocks. */
    uint64_t plane = (uint64_t)grid[0] * grid[1];
    return plane > resident || plane * grid[2] > resident ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------------------- work -- */

/* The parameter block, from `extra`'s buffer or from one pointer for each parameter. */
static CUresult copy_parameters(const sim_function_info *info, void **parameters, void **extra, unsigned char *block) {
    if (extra) {
        const void *buffer = NULL;
        size_t bytes = 0;
        for (; *extra != (void *)0 /* end */; extra += 2) {
            if (*extra == (void *)1)
                buffer = extra[1];
            else if (*extra == (void *)2 && extra[1])
                bytes = *(size_t *)extra[1];
            else
                return CUDA_ERROR_INVALID_VALUE;
        }
        if (parameters || bytes != info->parameter_block_bytes || (!buffer && bytes)) return CUDA_ERROR_INVALID_VALUE;
        if (bytes) memcpy(block, buffer, bytes);
        return CUDA_SUCCESS;
    }
    if (info->parameter_count && !parameters) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < info->parameter_count; i++) {
        if (!parameters[i]) return CUDA_ERROR_INVALID_VALUE;
        memcpy(block + info->parameter_offsets[i], parameters[i], info->parameter_bytes[i]);
    }
    return CUDA_SUCCESS;
}

static void set_shape(sim_work *work, const sim_shape *shape) {
    memcpy(work->grid, shape->grid, sizeof work->grid);
    memcpy(work->block, shape->block, sizeof work->block);
    memcpy(work->cluster, shape->cluster, sizeof work->cluster);
    work->shared_bytes = shape->shared_bytes;
    work->cooperative = shape->cooperative;
}

CUresult sim_work_create(sim_kernel *kernel, const sim_shape *shape, void **parameters, void **extra, sim_work **out) {
    sim_work *work = mu_alloc_zeroed(1, sizeof *work + kernel->info->parameter_block_bytes);
    if (!work) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult code = copy_parameters(kernel->info, parameters, extra, work->parameters);
    if (code != CUDA_SUCCESS) {
        mu_free(work);
        return code;
    }
    atomic_init(&work->references, 1);
    work->kernel = kernel;
    set_shape(work, shape);
    *out = work;
    return CUDA_SUCCESS;
}

/* Copying parameters can fail only before it has begun: everything is checked first. */
static bool parameters_given(const sim_function_info *info, void **parameters, void **extra) {
    if (extra || !info->parameter_count) return false; /* the general way */
    if (!parameters) return false;
    for (size_t i = 0; i < info->parameter_count; i++)
        if (!parameters[i]) return false;
    return true;
}

CUresult sim_work_renew(sim_kernel *kernel, const sim_shape *shape, void **parameters, void **extra, sim_work **work) {
    sim_work *old = *work;
    /* Acquire pairs with sim_work_drop's release: launches that shared it are through with it. */
    bool alone = old && atomic_load_explicit(&old->references, memory_order_acquire) == 1;
    /* ThreadSanitizer does not follow the driver's own ordering of its streams, and would report the reuse. */
    if (MU_TSAN) alone = false;
    if (alone && old->kernel == kernel && parameters_given(kernel->info, parameters, extra)) {
        copy_parameters(kernel->info, parameters, extra, old->parameters);
        set_shape(old, shape);
        return CUDA_SUCCESS;
    }
    CUresult code = sim_work_create(kernel, shape, parameters, extra, work);
    if (code == CUDA_SUCCESS) sim_work_drop(old);
    return code;
}

void sim_work_retain(sim_work *work) {
    if (work) atomic_fetch_add_explicit(&work->references, 1, memory_order_relaxed);
}

void sim_work_drop(sim_work *work) {
    /* Release on every decrement pairs with the acquire of the last: all use happens before the free. */
    if (!work || atomic_fetch_sub_explicit(&work->references, 1, memory_order_acq_rel) != 1) return;
    sim_free_unordered(work);
}

CUresult sim_work_run(const sim_work *work, uint64_t *cost_ns) {
    sim_context *context = work->kernel->image->context;
    sim_device *device = context->device;
    sim_driver *driver = context->driver;
    if (driver->null_mode) return CUDA_SUCCESS;
    sim_fault fault = {CUDA_SUCCESS, ""};
    uint64_t instructions = 0;
    CUresult code = sim_plan_kernel(device);
    if (code != CUDA_SUCCESS) {
        if (atomic_load_explicit(&device->error, memory_order_relaxed) == CUDA_SUCCESS)
            sim_fault_kernel(context, code, "by the fault plan");
        return code;
    }
    sim_launch launch = {
        .function = work->kernel->function,
        .instance = work->kernel->image->instance,
        .memory = &context->memory,
        .dynamic_shared_bytes = work->shared_bytes,
        .parameters = work->parameters,
        .cooperative = work->cooperative,
        .sm_count = device->config->sms,
        .warp_size = device->config->warp_size,
        .target_sm = device->config->major * 10 + device->config->minor,
        .seed = driver->config.seed,
        .max_instructions = driver->config.watchdog_instructions,
        .workers = driver->config.workers,
        .cancel = &driver->closing,
    };
    memcpy(launch.grid, work->grid, sizeof launch.grid);
    memcpy(launch.block, work->block, sizeof launch.block);
    memcpy(launch.cluster, work->cluster, sizeof launch.cluster);
    code = sim_launch_run(&launch, &fault, &instructions);
    uint64_t slowness = atomic_load_explicit(&device->slowness_percent, memory_order_relaxed);
    *cost_ns += device->config->launch_ns +
                (uint64_t)((double)instructions / device->config->instructions_per_ns) * (100 + slowness) / 100;
    atomic_fetch_add_explicit(&device->instructions, instructions, memory_order_relaxed);
    if (code == CUDA_SUCCESS)
        atomic_fetch_add_explicit(&device->kernels, 1, memory_order_relaxed);
    else if (!driver->closing)
        sim_fault_kernel(context, code, fault.message);
    return code;
}

/* ----------------------------------------------------------------------------------------------------- launching -- */

typedef struct kernel_op {
    sim_op op;
    sim_work *work;
} kernel_op;

static CUresult run_kernel(sim_op *op) {
    CUresult code = sim_work_run(((kernel_op *)op)->work, &op->cost_ns);
    op->kernel_ns = op->cost_ns;
    return code;
}

static void release_kernel(sim_op *op) {
    sim_work_drop(((kernel_op *)op)->work);
    sim_free_unordered(op);
}

static CUresult enqueue_kernel(sim_stream *stream, sim_work *work) {
    if (stream->capture) return sim_capture_launch(stream, work);
    kernel_op *op = (kernel_op *)sim_op_create(sizeof *op, run_kernel, release_kernel);
    if (!op) {
        sim_work_drop(work);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->work = work;
    op->op.counted = true;
    return sim_enqueue(stream, &op->op, false);
}

static CUresult launch(sim_driver *driver, CUfunction function, const sim_shape *shape, CUstream stream_handle,
                       void **parameters, void **extra) {
    sim_kernel *kernel = sim_find(driver, SIM_TAG_KERNEL, function);
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, stream_handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (kernel->image->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    code = sim_shape_check(kernel, shape);
    if (code != CUDA_SUCCESS) return code;
    if (driver->null_mode && !stream->capture) /* accepted and complete: no lock, no memory */
        return kernel->info->parameter_count && !parameters && !extra ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    sim_work *work;
    code = sim_work_create(kernel, shape, parameters, extra, &work);
    return code == CUDA_SUCCESS ? enqueue_kernel(stream, work) : code;
}

CUresult sim_do_launch_kernel(sim_driver *driver, CUfunction function, unsigned int grid_x, unsigned int grid_y,
                              unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
                              unsigned int shared_bytes, CUstream stream, void **parameters, void **extra) {
    sim_shape shape = {.grid = {grid_x, grid_y, grid_z},
                       .block = {block_x, block_y, block_z},
                       .cluster = {1, 1, 1},
                       .shared_bytes = shared_bytes};
    return launch(driver, function, &shape, stream, parameters, extra);
}

CUresult sim_do_launch_cooperative_kernel(sim_driver *driver, CUfunction function, unsigned int grid_x,
                                          unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                                          unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                                          CUstream stream, void **parameters) {
    sim_shape shape = {.grid = {grid_x, grid_y, grid_z},
                       .block = {block_x, block_y, block_z},
                       .cluster = {1, 1, 1},
                       .shared_bytes = shared_bytes,
                       .cooperative = true};
    return launch(driver, function, &shape, stream, parameters, NULL);
}

CUresult sim_do_launch_kernel_ex(sim_driver *driver, const CUlaunchConfig *config, CUfunction function,
                                 void **parameters, void **extra) {
    if (!config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
    sim_shape shape = {.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                       .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                       .cluster = {1, 1, 1},
                       .shared_bytes = config->sharedMemBytes};
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
            shape.cooperative = attribute->value.cooperative != 0;
        } else if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            shape.cluster[0] = attribute->value.clusterDim.x;
            shape.cluster[1] = attribute->value.clusterDim.y;
            shape.cluster[2] = attribute->value.clusterDim.z;
            if (!shape.cluster[0] || !shape.cluster[1] || !shape.cluster[2]) return CUDA_ERROR_INVALID_VALUE;
        } /* the others are hints of scheduling */
    }
    return launch(driver, function, &shape, config->hStream, parameters, extra);
}
