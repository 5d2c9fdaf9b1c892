/* The launch boundary: the only place that names the driver's launchers. */
#include "device/launch.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "device/geometry.h"
#include "device/residency.h"
#include "device/state.h"

static const char *kernel_name(const mu_launch *launch) {
    return launch->kernel_name ? launch->kernel_name : "(unnamed)";
}

/* The grid and block of a launch that passed the geometry check multiply without overflow. */
static uint64_t product(const uint32_t axes[3]) { return (uint64_t)axes[0] * axes[1] * axes[2]; }

/* --------------------------------------------------------------------------------------------------------- guards -- */

muster_status mu_launch_guard(const mu_device *device, const mu_launch *launch, muster_error *error) {
    if (!launch->function)
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "launch of %.64s: the function is NULL; load its "
                                "module first",
                                kernel_name(launch));
    if (!device->lanes[MU_LANE_DISPATCH])
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "launch of %.64s: the stream is NULL, which would "
                                "be the legacy default stream; open the device first",
                                kernel_name(launch));
    const mu_function_info *info = &launch->function->info;
    uint32_t parameters = launch->parameter_count;
    if (info->parameters_known && info->parameter_count > parameters) parameters = info->parameter_count;
    if (parameters == 0) return MUSTER_OK;
    uint32_t slots = launch->parameters ? launch->slot_count : 0;
    if (slots < parameters)
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "launch of %.64s: the argument table has %" PRIu32 " slots for %" PRIu32
                                " parameters; give one for each",
                                kernel_name(launch), slots, parameters);
    for (uint32_t i = 0; i < parameters; i++)
        if (!launch->parameters[i])
            return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                    "launch of %.64s: slot %" PRIu32
                                    " of the argument table is NULL; it must be the "
                                    "address of a value",
                                    kernel_name(launch), i);
    return MUSTER_OK;
}

static muster_status check_cluster(const mu_launch *launch, muster_error *error) {
    for (int i = 0; i < 3; i++)
        if (launch->cluster[0] && (launch->cluster[i] == 0 || launch->grid[i] % launch->cluster[i]))
            return mu_fail(error, MUSTER_INVALID_GEOMETRY,
                           "launch of %.64s: the grid of %" PRIu32
                           " blocks along axis %d is not a multiple of the "
                           "cluster's %" PRIu32 "; round the grid up",
                           kernel_name(launch), launch->grid[i], i, launch->cluster[i]);
    return MUSTER_OK;
}

/* ------------------------------------------------------------------------------------------------- shared memory -- */

static muster_status check_shared(const mu_capability *capability, const mu_function_info *info, const char *kernel,
                                  uint64_t dynamic_bytes, muster_error *error) {
    uint64_t fixed = info->static_shared_bytes > 0 ? (uint64_t)info->static_shared_bytes : 0;
    if (dynamic_bytes + fixed <= (uint64_t)capability->shared_bytes_optin) return MUSTER_OK;
    return mu_fail(error, MUSTER_CAPABILITY_MISSING,
                   "kernel %.64s needs %" PRIu64 " + %" PRIu64
                   " bytes of static and dynamic shared memory where a block "
                   "of this device may have %d; use smaller tiles",
                   kernel, fixed, dynamic_bytes, capability->shared_bytes_optin);
}

muster_status mu_launch_raise_shared(mu_device *device, mu_function function, uint64_t bytes, muster_error *error) {
    const mu_capability *capability = &device->capability;
    uint64_t fixed = function->info.static_shared_bytes > 0 ? (uint64_t)function->info.static_shared_bytes : 0;
    if (bytes + fixed <= (uint64_t)capability->shared_bytes_per_block || bytes <= function->dynamic_shared_limit)
        return MUSTER_OK;
    muster_status status = check_shared(capability, &function->info, function->name, bytes, error);
    if (status) {
        if (error) error->device = device->index;
        return status;
    }
    CUresult code = device->driver->func_set_attribute(function->handle,
                                                       CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes);
    if (code != CUDA_SUCCESS)
        return mu_device_fail_as(device, MUSTER_LAUNCH_FAILED, code, error,
                                 "raising the dynamic shared memory of %.64s to %" PRIu64 " bytes", function->name,
                                 bytes);
    function->dynamic_shared_limit = (uint32_t)bytes;
    return MUSTER_OK;
}

/* ------------------------------------------------------------------------------------------------------ occupancy -- */

muster_status mu_function_occupancy(mu_device *device, mu_function function, uint32_t block_threads,
                                    uint64_t dynamic_shared_bytes, int *blocks, muster_error *error) {
    int found = 0;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    status = mu_launch_raise_shared(device, function, dynamic_shared_bytes, error);
    if (status) goto end_scope;
    mu_count(&device->counters, &device->counters.occupancy_queries, 1);
    CUresult code =
        device->driver->occupancy_max_active_blocks(&found, function->handle, (int)block_threads, dynamic_shared_bytes);
    if (code != CUDA_SUCCESS)
        status =
            mu_device_fail(device, code, error,
                           "occupancy of %.64s with %" PRIu32 " threads and %" PRIu64 " bytes of dynamic shared memory",
                           function->name, block_threads, dynamic_shared_bytes);
    else
        *blocks = found;
end_scope:
    mu_scope_end(&scope);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- launch -- */

static CUresult start_cluster(mu_device *device, const mu_launch *launch) {
    CUlaunchAttribute attributes[2] = {{.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION},
                                       {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE}};
    attributes[0].value.clusterDim.x = launch->cluster[0];
    attributes[0].value.clusterDim.y = launch->cluster[1];
    attributes[0].value.clusterDim.z = launch->cluster[2];
    attributes[1].value.cooperative = 1;
    CUlaunchConfig config = {.gridDimX = launch->grid[0],
                             .gridDimY = launch->grid[1],
                             .gridDimZ = launch->grid[2],
                             .blockDimX = launch->block[0],
                             .blockDimY = launch->block[1],
                             .blockDimZ = launch->block[2],
                             .sharedMemBytes = launch->dynamic_shared_bytes,
                             .hStream = device->lanes[MU_LANE_DISPATCH],
                             .attrs = attributes,
                             .numAttrs = launch->cooperative ? 2 : 1};
    if (!device->driver->launch_kernel_ex) return CUDA_ERROR_NOT_SUPPORTED;
    return device->driver->launch_kernel_ex(&config, launch->function->handle, launch->parameters, NULL);
}

static CUresult start(mu_device *device, const mu_launch *launch, const char **launcher) {
    const mu_driver *driver = device->driver;
    const uint32_t *grid = launch->grid, *block = launch->block;
    CUfunction function = launch->function->handle;
    CUstream stream = device->lanes[MU_LANE_DISPATCH];
    if (launch->cluster[0]) {
        *launcher = "cuLaunchKernelEx";
        return start_cluster(device, launch);
    }
    if (launch->cooperative) {
        *launcher = "cuLaunchCooperativeKernel";
        return driver->launch_cooperative_kernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                                 launch->dynamic_shared_bytes, stream, launch->parameters);
    }
    *launcher = "cuLaunchKernel";
    return driver->launch_kernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                 launch->dynamic_shared_bytes, stream, launch->parameters, NULL);
}

static const char *launch_advice(CUresult code) {
    switch (code) {
        case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: return "use smaller blocks, fewer registers or less shared memory";
        case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: return "use a smaller grid, a grid-stride loop, or phases";
        case CUDA_ERROR_INVALID_VALUE: return "check grid, block, shared memory and the number of arguments";
        case CUDA_ERROR_NOT_SUPPORTED: return "this device or driver has no such launcher";
        default: return "run with MUSTER_SERIAL=1 to see whether an earlier job is the cause";
    }
}

muster_status mu_launch_fail(mu_device *device, const mu_launch *launch, const char *launcher, CUresult code,
                             muster_error *error) {
    const uint32_t *grid = launch->grid, *block = launch->block;
    uint64_t elements = launch->element_count ? launch->element_count : product(grid) * product(block);
    muster_status status =
        code == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE ? MUSTER_COOPERATIVE_TOO_LARGE : MUSTER_LAUNCH_FAILED;
    return mu_device_fail_as(device, status, code, error,
                             "%s of %.64s, grid %" PRIu32 " x %" PRIu32 " x %" PRIu32 ", block %" PRIu32 " x %" PRIu32
                             " x %" PRIu32 ", %" PRIu64 " elements, sm_%d; %s",
                             launcher, kernel_name(launch), grid[0], grid[1], grid[2], block[0], block[1], block[2],
                             elements, device->capability.ptx_target_sm, launch_advice(code));
}

/* The dispatch lane keeps the reset before this launch and after every earlier one. */
static muster_status reset_counter(mu_device *device, const mu_launch *launch, muster_error *error) {
    if (launch->counter_bytes % 4 || launch->counter % 4)
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "launch of %.64s: %" PRIu64 " bytes of barrier counters at 0x%" PRIx64
                                " are not whole 4-byte words",
                                kernel_name(launch), launch->counter_bytes, launch->counter);
    CUresult code = device->driver->memset_d32_async((CUdeviceptr)launch->counter, 0, launch->counter_bytes / 4,
                                                     device->lanes[MU_LANE_DISPATCH]);
    if (code == CUDA_SUCCESS) return MUSTER_OK;
    return mu_device_fail_as(device, MUSTER_LAUNCH_FAILED, code, error,
                             "zeroing %" PRIu64
                             " bytes of barrier counters "
                             "of %.64s",
                             launch->counter_bytes, kernel_name(launch));
}

muster_status mu_launch_prepared(mu_device *device, const mu_launch *launch, muster_error *error) {
    const char *launcher;
    mu_scope scope;
    muster_status status = mu_launch_guard(device, launch, error);
    if (status) return status;
    status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    status = mu_launch_raise_shared(device, launch->function, launch->dynamic_shared_bytes, error);
    if (!status && launch->counter_bytes) status = reset_counter(device, launch, error);
    if (status) goto end_scope;
    CUresult code = start(device, launch, &launcher);
    if (code != CUDA_SUCCESS) {
        status = mu_launch_fail(device, launch, launcher, code, error);
        goto end_scope;
    }
    mu_count(&device->counters, &device->counters.launches, 1);
    if (launch->cooperative) mu_count(&device->counters, &device->counters.cooperative_launches, 1);
end_scope:
    mu_scope_end(&scope);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- validate -- */

static muster_status with_device(const mu_device *device, muster_status status, muster_error *error) {
    if (status && error && error->device == MUSTER_ANY_DEVICE) error->device = device->index;
    return status;
}

typedef struct device_resolver {
    mu_device *device;
    mu_function function;
} device_resolver;

static muster_status own_function(void *user, mu_function *function, mu_function_info *info, muster_error *error) {
    (void)error;
    device_resolver *resolver = user;
    *function = resolver->function;
    *info = resolver->function->info;
    return MUSTER_OK;
}

static muster_status own_occupancy(void *user, mu_function function, uint32_t block_threads,
                                   uint64_t dynamic_shared_bytes, int *blocks, muster_error *error) {
    device_resolver *resolver = user;
    return mu_function_occupancy(resolver->device, function, block_threads, dynamic_shared_bytes, blocks, error);
}

muster_status mu_launch_validated(mu_device *device, const mu_launch *launch, muster_error *error) {
    muster_status status = mu_launch_guard(device, launch, error);
    if (status) return status;
    device_resolver resolver = {device, launch->function};
    mu_launch resolved = *launch;
    status = mu_launch_resolve(&device->capability, &resolved, &(mu_resolver){own_function, own_occupancy, &resolver},
                               error);
    if (status) return with_device(device, status, error);
    return mu_launch_prepared(device, &resolved, error);
}

static muster_status check_function(const mu_launch *launch, const mu_function_info *info, uint64_t threads,
                                    muster_error *error) {
    if (info->max_threads <= 0 || threads <= (uint64_t)info->max_threads) return MUSTER_OK;
    return mu_fail(error, MUSTER_INVALID_GEOMETRY,
                   "kernel %.64s was compiled for at most %d threads in a block (%d registers each), not %" PRIu64
                   "; use smaller blocks or compile it for larger ones",
                   kernel_name(launch), info->max_threads, info->registers, threads);
}

muster_status mu_launch_resolve(const mu_capability *capability, mu_launch *launch, const mu_resolver *resolver,
                                muster_error *error) {
    mu_function function;
    mu_function_info info;
    int occupancy;
    muster_status status = mu_geometry_check(capability, launch->grid, launch->block, error);
    if (!status) status = check_cluster(launch, error);
    if (status) return status;
    uint64_t blocks = product(launch->grid), threads = product(launch->block);
    if (launch->cooperative) {
        status = mu_residency_stage1(capability, kernel_name(launch), blocks, threads, error);
        if (status) return status;
    }
    status = resolver->function(resolver->user, &function, &info, error);
    if (!status) status = check_function(launch, &info, threads, error);
    if (!status) status = check_shared(capability, &info, kernel_name(launch), launch->dynamic_shared_bytes, error);
    if (status) return status;
    if (launch->cooperative) {
        status = resolver->occupancy(resolver->user, function, (uint32_t)threads, launch->dynamic_shared_bytes,
                                     &occupancy, error);
        if (!status)
            status = mu_residency_stage2(capability, kernel_name(launch), blocks, threads, launch->dynamic_shared_bytes,
                                         occupancy, error);
        if (status) return status;
    }
    launch->function = function;
    return MUSTER_OK;
}

/* --------------------------------------------------------------------------------------------------------- after -- */

/* What fails here began with this launch or before it; when every launch is followed by one, with this launch. */
muster_status mu_launch_synchronise(mu_device *device, const mu_launch *launch, muster_error *error) {
    const uint32_t *grid = launch->grid, *block = launch->block;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = device->driver->stream_synchronize(device->lanes[MU_LANE_DISPATCH]);
    if (code == CUDA_SUCCESS)
        mu_count(&device->counters, &device->counters.synchronisations, 1);
    else
        status = mu_device_fail(device, code, error,
                                "after kernel %.64s, grid %" PRIu32 " x %" PRIu32 " x %" PRIu32 ", block %" PRIu32
                                " x %" PRIu32 " x %" PRIu32,
                                kernel_name(launch), grid[0], grid[1], grid[2], block[0], block[1], block[2]);
    mu_scope_end(&scope);
    return status;
}

void mu_launch_account(mu_device *device, const mu_launch *launch, uint64_t times, int occupancy) {
    const mu_capability *capability = &device->capability;
    uint64_t threads = product(launch->block);
    mu_count_threads(&device->counters, product(launch->grid), threads, capability->warp_size, launch->element_count,
                     times);
    mu_count_occupancy(&device->counters,
                       mu_occupancy_basis_points(occupancy, threads, capability->warp_size,
                                                 capability->max_threads_per_multiprocessor),
                       times);
}

muster_status mu_launch_iterations(const uint32_t *asked, uint32_t *iterations, muster_error *error) {
    if (asked && *asked == 0)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "a job asks for 0 iterations; leave the number out for one launch, or give at least 1");
    *iterations = asked ? *asked : 1;
    return MUSTER_OK;
}
