/* Stream-ordered pools: used bytes count raw, reservation grows in 32 MiB steps, and what is kept above the release
 * threshold goes back at the next synchronisation. */
#include <string.h>

#include "device/sim/sim_graph.h"
#include "device/sim/sim_heap.h"
#include "device/sim/sim_pool.h"
#include "device/sim/sim_queue.h"

#define STEP_BYTES ((uint64_t)32 << 20)

struct sim_pool {
    sim_object object;
    sim_driver *driver;
    sim_device *device;
    atomic_uint_fast64_t access; /* bit d: kernels of device d may use it. Relaxed: set before it is relied on */
    uint64_t max_bytes;          /* 0: the device's memory */
    bool destroyed;              /* locked, as all that follows: it goes when the last of its memory is freed */
    uint64_t threshold, used, used_high, reserved, reserved_high;
    uint64_t pending; /* freed by a call, not yet in the order of its stream: reserved still */
    size_t blocks;
    sim_pool *next; /* of the device's, or of the orphans */
    int reuse[4];   /* attributes 1 to 3, kept for reading back */
};

uint64_t sim_pool_access(const sim_pool *pool) { return atomic_load_explicit(&pool->access, memory_order_relaxed); }
CUmemoryPool sim_pool_handle(const sim_pool *pool) { return pool->destroyed ? NULL : SIM_HANDLE(CUmemoryPool, pool); }

static uint64_t round_to_step(uint64_t bytes) { return (bytes + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES; }

/* Gives back reservation down to `keep` bytes, but not what is in use. Locked. */
static void shrink(sim_pool *pool, uint64_t keep) {
    uint64_t needed = round_to_step(pool->used + pool->pending);
    uint64_t target = keep > needed ? keep : needed;
    if (pool->reserved <= target) return;
    target = round_to_step(target);
    if (pool->reserved <= target) return;
    sim_discharge(pool->device, pool->reserved - target);
    pool->reserved = target;
}

void sim_pools_synchronised(sim_device *device) {
    for (sim_pool *pool = device->pools; pool; pool = pool->next) shrink(pool, pool->threshold);
}

/* Takes the pool off a list. */
static void unlink_pool(sim_pool **list, sim_pool *pool) {
    while (*list != pool) list = &(*list)->next;
    *list = pool->next;
}

static void free_if_over(sim_pool *pool) {
    if (!pool->destroyed || pool->blocks) return;
    sim_discharge(pool->device, pool->reserved);
    unlink_pool(&pool->driver->orphans, pool);
    mu_free(pool);
}

void sim_pool_free_orphans(sim_driver *driver) {
    while (driver->orphans) {
        sim_pool *next = driver->orphans->next;
        mu_free(driver->orphans);
        driver->orphans = next;
    }
}

void sim_pool_close(sim_pool *pool) {
    sim_handle_remove(pool->driver, &pool->object);
    mu_free(pool);
}

static CUresult find_pool(sim_driver *driver, CUmemoryPool handle, sim_pool **pool) {
    *pool = sim_find(driver, SIM_TAG_POOL, handle);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A location's id is a device or its ordinal, which are the same number on the real driver. */
static sim_device *find_location(sim_driver *driver, const CUmemLocation *location) {
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || location->id < 0) return NULL;
    if ((uint32_t)location->id < driver->config.device_count) return &driver->devices[location->id];
    return sim_find_device(driver, location->id);
}

CUresult sim_do_mem_pool_create(sim_driver *driver, CUmemoryPool *handle, const CUmemPoolProps *properties) {
    if (!handle || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
    sim_device *device = find_location(driver, &properties->location);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    sim_pool *pool = mu_alloc_zeroed(1, sizeof *pool);
    if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
    pool->driver = driver;
    pool->device = device;
    pool->max_bytes = properties->maxSize;
    atomic_init(&pool->access, (uint64_t)1 << device->ordinal);
    for (int i = 1; i < 4; i++) pool->reuse[i] = 1;
    if (!sim_handle_add(driver, &pool->object, SIM_TAG_POOL, NULL)) {
        mu_free(pool);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock(driver);
    pool->next = device->pools;
    device->pools = pool;
    sim_unlock(driver);
    *handle = SIM_HANDLE(CUmemoryPool, pool);
    return CUDA_SUCCESS;
}

CUresult sim_do_mem_pool_destroy(sim_driver *driver, CUmemoryPool handle) {
    sim_pool *pool;
    CUresult code = find_pool(driver, handle, &pool);
    if (code != CUDA_SUCCESS) return code;
    sim_lock(driver);
    sim_handle_remove(driver, &pool->object);
    pool->destroyed = true;
    unlink_pool(&pool->device->pools, pool);
    pool->next = driver->orphans;
    driver->orphans = pool;
    free_if_over(pool);
    sim_unlock(driver);
    return CUDA_SUCCESS;
}

CUresult sim_do_mem_pool_set_attribute(sim_driver *driver, CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void *value) {
    sim_pool *pool;
    CUresult code = find_pool(driver, handle, &pool);
    if (code != CUDA_SUCCESS) return code;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    sim_lock(driver);
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: pool->reuse[attribute] = *(int *)value != 0; break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->threshold = *(uint64_t *)value; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* the high marks can only be reset */
            if (*(uint64_t *)value)
                code = CUDA_ERROR_INVALID_VALUE;
            else
                pool->reserved_high = pool->reserved;
            break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            if (*(uint64_t *)value)
                code = CUDA_ERROR_INVALID_VALUE;
            else
                pool->used_high = pool->used;
            break;
        default: code = CUDA_ERROR_INVALID_VALUE;
    }
    sim_unlock(driver);
    return code;
}

CUresult sim_do_mem_pool_get_attribute(sim_driver *driver, CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void *value) {
    sim_pool *pool;
    CUresult code = find_pool(driver, handle, &pool);
    if (code != CUDA_SUCCESS) return code;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    sim_lock(driver);
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *(int *)value = pool->reuse[attribute]; break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(uint64_t *)value = pool->threshold; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = pool->reserved; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = pool->reserved_high; break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = pool->used; break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(uint64_t *)value = pool->used_high; break;
        default: code = CUDA_ERROR_INVALID_VALUE;
    }
    sim_unlock(driver);
    return code;
}

CUresult sim_do_mem_pool_set_access(sim_driver *driver, CUmemoryPool handle, const CUmemAccessDesc *map, size_t count) {
    sim_pool *pool;
    CUresult code = find_pool(driver, handle, &pool);
    if (code != CUDA_SUCCESS) return code;
    if (!map && count) return CUDA_ERROR_INVALID_VALUE;
    uint64_t granted = 0, revoked = 0;
    for (size_t i = 0; i < count; i++) {
        sim_device *device = find_location(driver, &map[i].location);
        if (!device) return CUDA_ERROR_INVALID_VALUE;
        uint64_t bit = (uint64_t)1 << device->ordinal;
        if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
            if (device == pool->device) return CUDA_ERROR_INVALID_VALUE;
            revoked |= bit;
        } else if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
            bool linked = driver->config.peers[device->ordinal] >> pool->device->ordinal & 1;
            if (device != pool->device && !linked) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
            granted |= bit;
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    atomic_fetch_and_explicit(&pool->access, ~revoked, memory_order_relaxed);
    atomic_fetch_or_explicit(&pool->access, granted, memory_order_relaxed);
    return CUDA_SUCCESS;
}

CUresult sim_do_mem_pool_trim_to(sim_driver *driver, CUmemoryPool handle, size_t keep_bytes) {
    sim_pool *pool;
    CUresult code = find_pool(driver, handle, &pool);
    if (code != CUDA_SUCCESS) return code;
    sim_lock(driver);
    shrink(pool, keep_bytes);
    sim_unlock(driver);
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------- allocating, freeing -- */

/* Bytes of `pool` that earlier frees on `stream` make available to it before they have run. Locked. */
static uint64_t reusable(const sim_pool *pool, const sim_stream *stream);

typedef struct free_op {
    sim_op op;
    sim_block *block;
} free_op;

static CUresult run_free(sim_op *op) {
    sim_block_unmap(op->stream->context->driver->heap, ((free_op *)op)->block);
    return CUDA_SUCCESS;
}

static void finish_free(sim_op *op) {
    sim_block *block = ((free_op *)op)->block;
    sim_driver *driver = op->stream->context->driver;
    sim_pool *pool = block->pool;
    if (!op->ran) return; /* dropped after a fault: the memory stays taken, as all of the process's */
    sim_lock(driver);
    pool->pending -= block->range.high - block->range.low;
    pool->blocks--;
    free_if_over(pool);
    sim_unlock(driver);
    sim_block_retire(driver->heap, block);
}

static uint64_t reusable(const sim_pool *pool, const sim_stream *stream) {
    uint64_t bytes = 0;
    for (const sim_op *op = stream->head; op; op = op->next) {
        if (op->run != run_free) continue;
        const sim_block *block = ((const free_op *)op)->block;
        if (block->pool == pool) bytes += block->range.high - block->range.low;
    }
    return bytes;
}

/* Makes room for `bytes`, growing in steps. Locked. */
static bool reserve(sim_pool *pool, const sim_stream *stream, uint64_t bytes) {
    uint64_t taken = pool->used + pool->pending, needed = taken + bytes;
    if (needed > pool->reserved && pool->pending) needed -= reusable(pool, stream);
    if (needed > pool->reserved) {
        uint64_t growth = round_to_step(needed - pool->reserved);
        if (pool->max_bytes && pool->reserved + growth > pool->max_bytes) return false;
        if (!sim_charge(pool->device, growth)) return false;
        pool->reserved += growth;
        if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    }
    pool->used += bytes;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    pool->blocks++;
    return true;
}

CUresult sim_do_mem_alloc_from_pool_async(sim_driver *driver, CUdeviceptr *pointer, size_t bytes, CUmemoryPool handle,
                                          CUstream stream_handle) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, stream_handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    sim_pool *pool;
    code = find_pool(driver, handle, &pool);
    if (code != CUDA_SUCCESS) return code;
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return sim_capture_refuse(stream);
    *pointer = 0;
    if (!bytes) return CUDA_SUCCESS; /* as the real driver */
    if (bytes > pool->device->config->memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_lock(driver);
    bool reserved = reserve(pool, stream, bytes);
    sim_unlock(driver);
    if (!reserved) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_block *block = sim_block_create(driver->heap, SIM_BLOCK_POOLED, pool->device, NULL, bytes);
    if (!block) {
        sim_lock(driver);
        pool->used -= bytes;
        pool->blocks--;
        sim_unlock(driver);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->pool = pool;
    *pointer = block->range.low;
    return CUDA_SUCCESS;
}

void sim_pool_free_now(sim_block *block) {
    sim_pool *pool = block->pool;
    pool->used -= block->range.high - block->range.low;
    pool->blocks--;
    free_if_over(pool);
}

CUresult sim_do_mem_free_async(sim_driver *driver, CUdeviceptr pointer, CUstream stream_handle) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, stream_handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (stream->capture) return sim_capture_refuse(stream);
    sim_block *block = sim_table_find(driver->memory, pointer);
    if (!block || block->range.low != pointer || block->kind != SIM_BLOCK_POOLED) return CUDA_ERROR_INVALID_VALUE;
    free_op *op = (free_op *)sim_op_create(sizeof *op, run_free, sim_op_release);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->block = block;
    op->op.finish = finish_free;
    uint64_t bytes = block->range.high - block->range.low;
    sim_lock(driver);
    bool twice = block->freeing;
    if (!twice) {
        block->freeing = true;
        block->pool->used -= bytes;
        block->pool->pending += bytes;
    }
    sim_unlock(driver);
    if (twice) {
        mu_free(op);
        return CUDA_ERROR_INVALID_VALUE;
    }
    code = sim_enqueue(stream, &op->op, false);
    if (code == CUDA_SUCCESS) return code;
    sim_lock(driver); /* nothing was enqueued: as before */
    block->freeing = false;
    block->pool->used += bytes;
    block->pool->pending -= bytes;
    sim_unlock(driver);
    return code;
}
