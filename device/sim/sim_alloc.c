/* Device allocations, pinned and registered host memory, and what is known about a pointer. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/sim/sim_code.h"
#include "device/sim/sim_heap.h"
#include "device/sim/sim_pool.h"
#include "device/sim/sim_queue.h"

bool sim_block_visible(const sim_block *block, const sim_context *context) {
    switch (block->kind) {
        case SIM_BLOCK_DEVICE: return sim_context_sees(context, block->context);
        case SIM_BLOCK_POOLED: return sim_pool_access(block->pool) >> context->device->ordinal & 1;
        case SIM_BLOCK_PINNED:
        case SIM_BLOCK_REGISTERED: return true;
    }
    return false;
}

/* The block that starts at `address`. */
static sim_block *find_start(sim_driver *driver, uint64_t address) {
    sim_block *block = sim_table_find(driver->memory, address);
    return block && block->range.low == address ? block : NULL;
}

CUresult sim_do_mem_alloc(sim_driver *driver, CUdeviceptr *pointer, size_t bytes) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    if (!pointer || !bytes) return CUDA_ERROR_INVALID_VALUE;
    *pointer = 0; /* as the real driver, also when there is no memory */
    if (bytes > context->device->config->memory_bytes || !sim_charge(context->device, sim_charged(bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_block *block = sim_block_create(driver->heap, SIM_BLOCK_DEVICE, context->device, context, bytes);
    if (!block) {
        sim_discharge(context->device, sim_charged(bytes));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = block->range.low;
    return CUDA_SUCCESS;
}

/* Takes the block out of circulation after the device has drained. False when it was freed meanwhile. */
static CUresult drain_for(sim_context *context, uint64_t address, sim_block *block) {
    sim_lock(context->driver);
    CUresult code = sim_device_drain(context);
    if (code == CUDA_SUCCESS && (find_start(context->driver, address) != block || block->freeing))
        code = CUDA_ERROR_INVALID_VALUE;
    if (code == CUDA_SUCCESS) block->freeing = true;
    sim_unlock(context->driver);
    return code;
}

/* Null is legal. Waits for the device, and holds up launches of the context meanwhile. */
CUresult sim_do_mem_free(sim_driver *driver, CUdeviceptr pointer) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS || !pointer) return code;
    sim_block *block = find_start(driver, pointer);
    if (!block || (block->kind != SIM_BLOCK_DEVICE && block->kind != SIM_BLOCK_POOLED) || block->variable ||
        block->freeing)
        return CUDA_ERROR_INVALID_VALUE;
    code = drain_for(block->context ? block->context : context, pointer, block);
    if (code != CUDA_SUCCESS) return code;
    if (block->kind == SIM_BLOCK_POOLED) {
        sim_lock(driver);
        sim_pool_free_now(block);
        sim_unlock(driver);
    } else {
        sim_discharge(block->device, sim_charged(block->range.high - block->range.low));
    }
    sim_block_free(driver->heap, block);
    return CUDA_SUCCESS;
}

CUresult sim_do_mem_host_alloc(sim_driver *driver, void **pointer, size_t bytes, unsigned int flags) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    const unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (!pointer || !bytes || flags & ~known) return CUDA_ERROR_INVALID_VALUE;
    sim_block *block = sim_block_create(driver->heap, SIM_BLOCK_PINNED, NULL, context, bytes);
    if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = (void *)(uintptr_t)block->range.low;
    return CUDA_SUCCESS;
}

CUresult sim_do_mem_free_host(sim_driver *driver, void *pointer) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    sim_block *block = find_start(driver, (uintptr_t)pointer);
    if (!block || block->kind != SIM_BLOCK_PINNED) return CUDA_ERROR_INVALID_VALUE;
    code = drain_for(context, (uintptr_t)pointer, block);
    if (code == CUDA_SUCCESS) sim_block_free(driver->heap, block);
    return code;
}

/* Of memory that is mapped, msync with MS_ASYNC has nothing to do and looks at no page: only whether it is mapped. */
static bool is_mapped(uint64_t low, uint64_t high) {
    low -= low % (uint64_t)sysconf(_SC_PAGESIZE);
    return msync((void *)(uintptr_t)low, high - low, MS_ASYNC) == 0;
}

CUresult sim_do_mem_host_register(sim_driver *driver, void *pointer, size_t bytes, unsigned int flags) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    const unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    uint64_t low = (uintptr_t)pointer, high;
    if (!pointer || !bytes || flags & ~known || __builtin_add_overflow(low, bytes, &high))
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_mapped(low, high)) return CUDA_ERROR_INVALID_VALUE;
    if (sim_table_overlap(driver->memory, low, high)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    return sim_block_register(driver->heap, context, pointer, bytes, !(flags & CU_MEMHOSTREGISTER_READ_ONLY))
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_do_mem_host_unregister(sim_driver *driver, void *pointer) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    sim_block *block = find_start(driver, (uintptr_t)pointer);
    if (!block || block->kind != SIM_BLOCK_REGISTERED) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    code = drain_for(context, (uintptr_t)pointer, block);
    if (code == CUDA_SUCCESS) sim_block_free(driver->heap, block);
    return code;
}

CUresult sim_do_mem_host_get_device_pointer(sim_driver *driver, CUdeviceptr *pointer, void *host, unsigned int flags) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    if (!pointer || !host || flags) return CUDA_ERROR_INVALID_VALUE;
    sim_block *block = sim_table_find(driver->memory, (uintptr_t)host);
    if (!block || (block->kind != SIM_BLOCK_PINNED && block->kind != SIM_BLOCK_REGISTERED))
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = (uintptr_t)host;
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------ pointers -- */

static bool is_host(const sim_block *block) {
    return block->kind == SIM_BLOCK_PINNED || block->kind == SIM_BLOCK_REGISTERED;
}

CUresult sim_do_pointer_get_attribute(sim_driver *driver, void *value, CUpointer_attribute attribute,
                                      CUdeviceptr pointer) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    sim_block *block = sim_table_find(driver->memory, pointer);
    if (!block) return CUDA_ERROR_INVALID_VALUE;
    const sim_context *owner = block->context;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = owner ? SIM_HANDLE(CUcontext, owner) : NULL; break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(CUmemorytype *)value = is_host(block) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (!is_host(block)) return CUDA_ERROR_INVALID_VALUE;
            *(void **)value = (void *)(uintptr_t)pointer;
            break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)value = block->range.low; break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)value = 0; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            *(int *)value = block->device ? block->device->ordinal : owner ? owner->device->ordinal : 0;
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = block->range.low; break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = block->range.high - block->range.low; break;
        case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)value = 1; break;
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            *(CUmemoryPool *)value = block->pool ? sim_pool_handle(block->pool) : NULL;
            break;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}
