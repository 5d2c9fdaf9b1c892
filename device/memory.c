/* Device memory: the stream-ordered pool, live memory, admission, and pinned host memory. */
#include <inttypes.h>

#include "base/clock.h"
#include "base/error.h"
#include "device/admission.h"
#include "device/state.h"

/* ---------------------------------------------------------------------------------------------------------- pool -- */

muster_status mu_pool_create(mu_device *device, muster_error *error) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .handleTypes = CU_MEM_HANDLE_TYPE_NONE,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device->handle}};
    mu_driver *driver = device->driver;
    CUresult code = driver->mem_pool_create(&device->pool, &properties);
    if (code != CUDA_SUCCESS) {
        device->pool = NULL;
        return mu_device_fail(device, code, error, "cuMemPoolCreate");
    }
    /* Keep what was freed: giving it back to the system at each synchronisation would stall the next allocation. */
    uint64_t threshold = UINT64_MAX;
    code = driver->mem_pool_set_attribute(device->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    /* Never let an allocation wait, behind our back, for a free on another stream. */
    int internal = 0;
    if (code == CUDA_SUCCESS)
        code =
            driver->mem_pool_set_attribute(device->pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &internal);
    if (code == CUDA_SUCCESS) return MUSTER_OK;
    muster_status status = mu_device_fail(device, code, error, "cuMemPoolSetAttribute");
    mu_pool_destroy(device);
    return status;
}

void mu_pool_destroy(mu_device *device) {
    if (device->pool && !mu_device_is_lost(device)) device->driver->mem_pool_destroy(device->pool);
    device->pool = NULL;
}

muster_status mu_pool_bytes(mu_device *device, uint64_t *reserved, muster_error *error) {
    uint64_t bytes = 0;
    CUresult code = device->driver->mem_pool_get_attribute(device->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuMemPoolGetAttribute");
    *reserved = device->pool_reserved_bytes = bytes;
    mu_ledger_hold(&device->ledger, bytes);
    return MUSTER_OK;
}

/* A driver that cannot say what is free is a fault of the setup: it is neither "no memory" nor a reason to run elsewhere
 * unasked. */
static muster_status live_query_failed(mu_device *device, CUresult code, muster_error *error) {
    return mu_device_fail_as(device, MUSTER_INVALID_CONFIG, code, error,
                             "cuMemGetInfo cannot tell the free memory; check the driver installation, or leave this "
                             "device out of the configuration");
}

muster_status mu_device_sample_memory(mu_device *device, muster_error *error) {
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t pool_bytes = 0, others = mu_ledger_others(&device->ledger);
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = device->driver->mem_get_info(&free_bytes, &total_bytes);
    if (code != CUDA_SUCCESS)
        status = live_query_failed(device, code, error);
    else
        status = mu_pool_bytes(device, &pool_bytes, error);
    if (!status) {
        uint64_t others_now = mu_ledger_others(&device->ledger);
        mu_ledger_sample_beside(&device->ledger, free_bytes, pool_bytes, others < others_now ? others : others_now,
                                mu_now_ns());
        mu_count(&device->counters, &device->counters.memory_samples, 1);
    }
    mu_scope_end(&scope);
    return status;
}

muster_status mu_device_trim(mu_device *device, muster_error *error) {
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    /* Told before: to the others on the device it is free memory then, and would be counted twice. */
    mu_ledger_hold(&device->ledger, mu_ledger_read(&device->ledger).in_use);
    CUresult code = device->driver->mem_pool_trim_to(device->pool, 0);
    if (code == CUDA_SUCCESS) {
        mu_count(&device->counters, &device->counters.pool_trims, 1);
        device->pool_reserved_bytes = 0;
    } else {
        status = mu_device_fail(device, code, error, "cuMemPoolTrimTo");
    }
    mu_scope_end(&scope);
    return status;
}

/* ----------------------------------------------------------------------------------------------------- admission -- */

static muster_status refuse_admission(mu_device *device, mu_grant grant, uint64_t bytes, const char *context,
                                      muster_error *error) {
    static const char advice[] =
        "shrink it, shard it, keep its buffers resident between jobs, or raise the budget deliberately";
    mu_ledger_view view = mu_ledger_read(&device->ledger);
    mu_count(&device->counters, &device->counters.refusals, 1);
    if (grant == MU_NEVER)
        return mu_device_refuse(device, MUSTER_NEVER_FITS, error,
                                "device %d: %s requires %" PRIu64
                                " bytes, but the budget of the whole device is %" PRIu64 " (%" PRIu64 " of %" PRIu64
                                ", less %" PRIu64 " that cannot be evicted); %s",
                                device->index, context, bytes, mu_ledger_capacity(&device->ledger), view.budget,
                                view.total, view.fixed, advice);
    return mu_device_refuse(device, MUSTER_OUT_OF_DEVICE_MEMORY, error,
                            "device %d: %s requires %" PRIu64 " bytes, but the budget left is %" PRIu64 " (%" PRIu64
                            " in use, %" PRIu64 " reserved, %" PRIu64 " live); %s",
                            device->index, context, bytes, mu_ledger_available(&device->ledger), view.in_use,
                            view.reserved, view.live, advice);
}

muster_status mu_device_admit(mu_device *device, uint64_t bytes, const char *context, muster_error *error) {
    muster_status status = mu_device_alive(device, error);
    if (status) return status;
    mu_grant grant = mu_ledger_reserve(&device->ledger, bytes);
    if (grant == MU_NOT_NOW) {
        status = mu_device_trim(device, error);
        if (!status) status = mu_device_sample_memory(device, error);
        if (status) return status;
        grant = mu_ledger_reserve(&device->ledger, bytes);
    }
    if (grant != MU_GRANTED) return refuse_admission(device, grant, bytes, context, error);
    mu_count(&device->counters, &device->counters.admissions, 1);
    return MUSTER_OK;
}

/* ---------------------------------------------------------------------------------------------------- allocation -- */

static CUresult allocate_once(mu_device *device, mu_lane lane, uint64_t bytes, CUdeviceptr *pointer) {
    return device->driver->mem_alloc_from_pool_async(pointer, bytes, device->pool, device->lanes[lane]);
}

/* The pool grows in large steps; only when our bytes exceed what it was last known to hold is it asked again. */
static void count_allocation(mu_device *device) {
    uint64_t in_use = mu_ledger_read(&device->ledger).in_use, reserved;
    mu_count(&device->counters, &device->counters.allocations, 1);
    if (in_use <= device->pool_reserved_bytes)
        mu_count(&device->counters, &device->counters.pool_hits, 1);
    else
        mu_pool_bytes(device, &reserved, NULL);
}

muster_status mu_device_alloc(mu_device *device, mu_lane lane, uint64_t bytes, mu_address *address,
                              muster_error *error) {
    CUdeviceptr pointer = 0;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = allocate_once(device, lane, bytes ? bytes : 1, &pointer);
    if (code == CUDA_ERROR_OUT_OF_MEMORY) {
        status = mu_device_trim(device, error);
        if (status) goto end_scope;
        code = allocate_once(device, lane, bytes ? bytes : 1, &pointer);
        /* The ledger granted what the device did not have: learn what it really has, so that it waits and not us. */
        if (code == CUDA_ERROR_OUT_OF_MEMORY && (status = mu_device_sample_memory(device, error))) goto end_scope;
    }
    if (code != CUDA_SUCCESS) {
        status = mu_device_fail(device, code, error,
                                "%" PRIu64 " bytes from the pool, of %" PRIu64
                                " in use; another process may hold the memory: wait, or lower the budget",
                                bytes, mu_ledger_read(&device->ledger).in_use);
        goto end_scope;
    }
    mu_ledger_use(&device->ledger, bytes);
    count_allocation(device);
    *address = pointer;
end_scope:
    mu_scope_end(&scope);
    return status;
}

muster_status mu_device_free(mu_device *device, mu_lane lane, mu_address address, uint64_t bytes, muster_error *error) {
    if (!address) return MUSTER_OK;
    mu_scope scope;
    muster_status status = MUSTER_OK;
    if (!mu_scope_begin_release(&scope, device)) {
        status = mu_device_alive(device, error);
    } else {
        CUresult code = device->driver->mem_free_async((CUdeviceptr)address, device->lanes[lane]);
        if (code != CUDA_SUCCESS) status = mu_device_fail(device, code, error, "cuMemFreeAsync");
        mu_scope_end(&scope);
    }
    /* A pointer that could not be freed is leaked on purpose and stays charged, unless the device is gone anyway. */
    if (!status || mu_device_is_lost(device)) mu_ledger_unuse(&device->ledger, bytes);
    return status;
}

/* --------------------------------------------------------------------------------------------------- host memory -- */

muster_status mu_pinned_alloc(mu_device *device, uint64_t bytes, void **pointer, muster_error *error) {
    void *made = NULL;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = device->driver->mem_host_alloc(&made, bytes ? bytes : 1, CU_MEMHOSTALLOC_PORTABLE);
    if (code == CUDA_SUCCESS)
        *pointer = made;
    else
        status = mu_device_fail_as(device, code == CUDA_ERROR_OUT_OF_MEMORY ? MUSTER_OUT_OF_HOST_MEMORY : MUSTER_OK,
                                   code, error, "cuMemHostAlloc of %" PRIu64 " bytes of pinned host memory", bytes);
    mu_scope_end(&scope);
    return status;
}

void mu_pinned_free(mu_device *device, void *pointer) {
    mu_scope scope;
    if (!pointer || !mu_scope_begin_release(&scope, device)) return;
    device->driver->mem_free_host(pointer);
    mu_count(&device->counters, &device->counters.device_stalls, 1);
    mu_scope_end(&scope);
}

muster_status mu_host_register(mu_device *device, void *pointer, uint64_t bytes, muster_error *error) {
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = device->driver->mem_host_register(pointer, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (code == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        status = mu_device_refuse(
            device, MUSTER_INVALID_STATE, error,
            "%" PRIu64 " bytes of host memory at %p are registered already; unregister them first", bytes, pointer);
    else if (code == CUDA_ERROR_INVALID_VALUE)
        status = mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                  "cuMemHostRegister refuses the %" PRIu64
                                  " bytes of host memory at %p; pass memory that is mapped and can be written",
                                  bytes, pointer);
    else if (code != CUDA_SUCCESS)
        status = mu_device_fail_as(device, code == CUDA_ERROR_OUT_OF_MEMORY ? MUSTER_OUT_OF_HOST_MEMORY : MUSTER_OK,
                                   code, error, "cuMemHostRegister of %" PRIu64 " bytes at %p", bytes, pointer);
    mu_scope_end(&scope);
    return status;
}

void mu_host_unregister(mu_device *device, void *pointer) {
    mu_scope scope;
    if (!pointer || !mu_scope_begin_release(&scope, device)) return;
    device->driver->mem_host_unregister(pointer);
    mu_count(&device->counters, &device->counters.device_stalls, 1);
    mu_scope_end(&scope);
}

/* The range that is known to the driver as one, around `pointer`. */
static bool range_covers(mu_device *device, CUdeviceptr pointer, uint64_t bytes) {
    const mu_driver *driver = device->driver;
    CUdeviceptr start = 0;
    size_t size = 0;
    return driver->pointer_get_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer) == CUDA_SUCCESS &&
           driver->pointer_get_attribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer) == CUDA_SUCCESS &&
           start <= pointer && bytes <= size && pointer - start <= size - bytes;
}

mu_host_kind mu_host_look(mu_device *device, const void *pointer, uint64_t bytes) {
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)pointer;
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    unsigned managed = 0;
    mu_host_kind kind = MU_HOST_PAGEABLE;
    mu_scope scope;
    if (mu_scope_begin(&scope, device, NULL)) return kind;
    /* INVALID_VALUE: the driver has never heard of it, as of any pageable memory. */
    CUresult code = device->driver->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (code == CUDA_SUCCESS && type == CU_MEMORYTYPE_HOST) {
        if (range_covers(device, address, bytes)) kind = MU_HOST_PINNED;
    } else if (code == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE) {
        code = device->driver->pointer_get_attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
        if (code == CUDA_SUCCESS && !managed) kind = MU_HOST_OF_DEVICE;
    }
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_INVALID_VALUE)
        mu_device_fail(device, code, NULL, "cuPointerGetAttribute");
    mu_scope_end(&scope);
    return kind;
}
