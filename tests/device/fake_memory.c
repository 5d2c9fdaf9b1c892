/* The fake's memory: pinned and registered host memory, copies, fills, pools and what they hand out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/fake_internal.h"

enum { POOL_STEP = 32 << 20 };

static uint64_t stepped(uint64_t bytes) { return (bytes + POOL_STEP - 1) / POOL_STEP * POOL_STEP; }

static CUresult mem_get_info(size_t *free_bytes, size_t *total_bytes) {
    ENTER(mem_get_info);
    NEEDS_CONTEXT();
    *total_bytes = fake->total_memory;
    *free_bytes =
        fake->total_memory - fake->other_memory - fake->pool_reserved[fake_current_device()] - fake->module_memory;
    return CUDA_SUCCESS;
}

/* What is in front of each piece of pinned memory, which is aligned like a page. */
typedef struct host_block {
    struct host_block *next;
    size_t bytes;
} host_block;
enum { HOST_HEADER = 4096 };
static host_block *host_blocks;

static CUresult mem_host_alloc(void **pointer, size_t bytes, unsigned int flags) {
    ENTER(mem_host_alloc);
    NEEDS_CONTEXT();
    assert_int_equal(flags, CU_MEMHOSTALLOC_PORTABLE);
    host_block *made = aligned_alloc(HOST_HEADER, HOST_HEADER + (bytes + HOST_HEADER - 1) / HOST_HEADER * HOST_HEADER);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = (char *)made + HOST_HEADER;
    pthread_mutex_lock(&fake_lock);
    *made = (host_block){.next = host_blocks, .bytes = bytes};
    host_blocks = made;
    fake->live.pinned++;
    pthread_mutex_unlock(&fake_lock);
    return CUDA_SUCCESS;
}

static CUresult mem_free_host(void *pointer) {
    CUresult code = fake_enter(FAKE_mem_free_host); /* gives back in any case */
    pthread_mutex_lock(&fake_lock);
    host_block **link = &host_blocks;
    while (*link && (char *)*link + HOST_HEADER != pointer) link = &(*link)->next;
    host_block *gone = *link;
    assert_non_null(gone);
    *link = gone->next;
    fake->live.pinned--;
    pthread_mutex_unlock(&fake_lock);
    free(gone);
    return code;
}

enum { MAX_REGISTERED = 16 };
static struct {
    char *start;
    size_t bytes;
} registered[MAX_REGISTERED];

static CUresult mem_host_register(void *pointer, size_t bytes, unsigned int flags) {
    (void)flags;
    ENTER(mem_host_register);
    NEEDS_CONTEXT();
    int i = 0;
    while (i < MAX_REGISTERED && registered[i].start) i++;
    assert_in_range(i, 0, MAX_REGISTERED - 1);
    registered[i].start = pointer;
    registered[i].bytes = bytes;
    fake->live.registered++;
    return CUDA_SUCCESS;
}

static CUresult mem_host_unregister(void *pointer) {
    CUresult code = fake_enter(FAKE_mem_host_unregister); /* gives back in any case */
    for (int i = 0; i < MAX_REGISTERED; i++)
        if (registered[i].start == pointer) registered[i].start = NULL;
    fake->live.registered--;
    return code;
}

static void copy(uint64_t destination, uint64_t source, size_t bytes) {
    memcpy((void *)(uintptr_t)destination, (const void *)(uintptr_t)source, bytes);
}

static CUresult memcpy_htod_async(CUdeviceptr destination, const void *source, size_t bytes, CUstream stream) {
    (void)stream;
    ENTER(memcpy_htod_async);
    copy(destination, (uintptr_t)source, bytes);
    return CUDA_SUCCESS;
}

static CUresult memcpy_dtoh_async(void *destination, CUdeviceptr source, size_t bytes, CUstream stream) {
    (void)stream;
    ENTER(memcpy_dtoh_async);
    copy((uintptr_t)destination, source, bytes);
    return CUDA_SUCCESS;
}

static CUresult memcpy_dtod_async(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) {
    (void)stream;
    ENTER(memcpy_dtod_async);
    copy(destination, source, bytes);
    return CUDA_SUCCESS;
}

static CUresult memcpy_peer_async(CUdeviceptr destination, CUcontext destination_context, CUdeviceptr source,
                                  CUcontext source_context, size_t bytes, CUstream stream) {
    (void)stream;
    ENTER(memcpy_peer_async);
    assert_ptr_not_equal(destination_context, source_context);
    copy(destination, source, bytes);
    int from = ((fake_object *)(void *)source_context)->device;
    if (fake->corrupt_all_copies || (fake->corrupt_direct_copies && fake->pool_access[from]))
        ((unsigned char *)(uintptr_t)destination)[bytes / 2] ^= 1;
    return CUDA_SUCCESS;
}

static CUresult memset_d8_async(CUdeviceptr destination, unsigned char value, size_t count, CUstream stream) {
    (void)stream;
    ENTER(memset_d8_async);
    memset((void *)(uintptr_t)destination, value, count);
    return CUDA_SUCCESS;
}

static CUresult memset_d16_async(CUdeviceptr destination, unsigned short value, size_t count, CUstream stream) {
    (void)stream;
    ENTER(memset_d16_async);
    for (size_t i = 0; i < count; i++) ((unsigned short *)(uintptr_t)destination)[i] = value;
    return CUDA_SUCCESS;
}

static CUresult memset_d32_async(CUdeviceptr destination, unsigned int value, size_t count, CUstream stream) {
    (void)stream;
    ENTER(memset_d32_async);
    for (size_t i = 0; i < count; i++) ((unsigned int *)(uintptr_t)destination)[i] = value;
    return CUDA_SUCCESS;
}

static uintptr_t side_of(CUmemorytype type, const void *host, CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : (uintptr_t)device;
}

static CUresult memcpy_2d_async(const CUDA_MEMCPY2D *rows, CUstream stream) {
    (void)stream;
    ENTER(memcpy_2d_async);
    uintptr_t to = side_of(rows->dstMemoryType, rows->dstHost, rows->dstDevice);
    uintptr_t from = side_of(rows->srcMemoryType, rows->srcHost, rows->srcDevice);
    assert_true(rows->WidthInBytes <= rows->dstPitch && rows->WidthInBytes <= rows->srcPitch);
    for (size_t row = 0; row < rows->Height; row++)
        copy(to + row * rows->dstPitch, from + row * rows->srcPitch, rows->WidthInBytes);
    return CUDA_SUCCESS;
}

static CUresult memset_d2d8_async(CUdeviceptr destination, size_t pitch, unsigned char value, size_t width,
                                  size_t height, CUstream stream) {
    (void)stream;
    ENTER(memset_d2d8_async);
    assert_true(width <= pitch);
    for (size_t row = 0; row < height; row++) memset((void *)(uintptr_t)(destination + row * pitch), value, width);
    return CUDA_SUCCESS;
}

static int pool_device(CUmemoryPool pool) { return ((fake_object *)(void *)pool)->device; }

static CUresult mem_pool_create(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    ENTER(mem_pool_create);
    assert_int_equal(properties->location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    *pool = fake_make(properties->location.id);
    fake->live.pools++;
    return CUDA_SUCCESS;
}

static CUresult mem_pool_destroy(CUmemoryPool pool) {
    CUresult code = fake_enter(FAKE_mem_pool_destroy); /* gives back in any case */
    fake->pool_reserved[pool_device(pool)] = 0;
    fake_unmake(pool);
    fake->live.pools--;
    return code;
}

static CUresult mem_pool_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    ENTER(mem_pool_set_attribute);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        memcpy(&fake->pool_threshold[pool_device(pool)], value, sizeof(uint64_t));
    else if (attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        memcpy(&fake->pool_internal_dependencies[pool_device(pool)], value, sizeof(int));
    return CUDA_SUCCESS;
}

static CUresult mem_pool_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    ENTER(mem_pool_get_attribute);
    uint64_t bytes = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? fake->pool_reserved[pool_device(pool)]
                                                                       : fake->pool_used[pool_device(pool)];
    memcpy(value, &bytes, sizeof bytes);
    return CUDA_SUCCESS;
}

static CUresult mem_pool_set_access(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    ENTER(mem_pool_set_access);
    assert_int_equal(count, 1);
    fake->pool_access[pool_device(pool)] = map->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

static CUresult mem_pool_trim_to(CUmemoryPool pool, size_t keep_bytes) {
    ENTER(mem_pool_trim_to);
    uint64_t used = fake->pool_used[pool_device(pool)];
    fake->pool_reserved[pool_device(pool)] = stepped(used > keep_bytes ? used : keep_bytes);
    return CUDA_SUCCESS;
}

/* What is in front of each allocation. */
typedef struct allocation {
    struct allocation *next, **link;
    size_t bytes;
    int device;
} allocation;
enum { HEADER = 512 };
static allocation *allocations;

static CUresult mem_alloc_from_pool_async(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    (void)stream;
    ENTER(mem_alloc_from_pool_async);
    NEEDS_CONTEXT();
    int device = pool_device(pool);
    uint64_t reserved = stepped(fake->pool_used[device] + bytes);
    if (reserved < fake->pool_reserved[device]) reserved = fake->pool_reserved[device];
    if (reserved > fake->total_memory - fake->other_memory - fake->module_memory) return CUDA_ERROR_OUT_OF_MEMORY;
    allocation *made = calloc(1, bytes + HEADER);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (allocation){.next = allocations, .link = &allocations, .bytes = bytes, .device = device};
    if (made->next) made->next->link = &made->next;
    allocations = made;
    fake->pool_used[device] += bytes;
    fake->pool_reserved[device] = reserved;
    fake->requested_bytes = bytes;
    fake->live.allocations++;
    *pointer = (uintptr_t)made + HEADER;
    return CUDA_SUCCESS;
}

static CUresult mem_free_async(CUdeviceptr pointer, CUstream stream) {
    (void)stream;
    CUresult code = fake_enter(FAKE_mem_free_async); /* gives back in any case */
    allocation *gone = (allocation *)((uintptr_t)pointer - HEADER);
    *gone->link = gone->next;
    if (gone->next) gone->next->link = gone->link;
    fake->pool_used[gone->device] -= gone->bytes;
    fake->live.allocations--;
    free(gone);
    return code;
}

/* The range that holds the address: of pinned, registered or device memory. */
static bool find_range(CUdeviceptr pointer, CUdeviceptr *start, size_t *bytes, CUmemorytype *type) {
    *type = CU_MEMORYTYPE_HOST;
    for (host_block *block = host_blocks; block; block = block->next) {
        *start = (uintptr_t)block + HOST_HEADER, *bytes = block->bytes;
        if (pointer - *start < *bytes) return true;
    }
    for (int i = 0; i < MAX_REGISTERED; i++) {
        *start = (uintptr_t)registered[i].start, *bytes = registered[i].bytes;
        if (*start && pointer - *start < *bytes) return true;
    }
    *type = CU_MEMORYTYPE_DEVICE;
    for (allocation *block = allocations; block; block = block->next) {
        *start = (uintptr_t)block + HEADER, *bytes = block->bytes;
        if (pointer - *start < *bytes) return true;
    }
    return false;
}

static CUresult pointer_get_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    ENTER(pointer_get_attribute);
    CUdeviceptr start;
    size_t bytes;
    CUmemorytype type;
    if (!find_range(pointer, &start, &bytes, &type)) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(CUmemorytype *)value = type; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = start; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = bytes; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)value = 0; return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

void fake_memory_fill(mu_driver *table) {
#define SET(member) table->member = member
    SET(mem_get_info), SET(mem_host_alloc), SET(mem_free_host), SET(mem_host_register), SET(mem_host_unregister);
    SET(pointer_get_attribute), SET(memcpy_htod_async), SET(memcpy_dtoh_async), SET(memcpy_dtod_async);
    SET(memcpy_peer_async), SET(memcpy_2d_async), SET(memset_d2d8_async), SET(memset_d8_async), SET(memset_d16_async),
        SET(memset_d32_async), SET(mem_pool_create);
    SET(mem_pool_destroy), SET(mem_pool_set_attribute), SET(mem_pool_get_attribute), SET(mem_pool_set_access);
    SET(mem_pool_trim_to), SET(mem_alloc_from_pool_async), SET(mem_free_async);
#undef SET
}

void fake_memory_end(void) {
    for (allocation *next; allocations; allocations = next) {
        next = allocations->next;
        free(allocations);
    }
    for (host_block *next; host_blocks; host_blocks = next) {
        next = host_blocks->next;
        free(host_blocks);
    }
    memset(registered, 0, sizeof registered);
}
