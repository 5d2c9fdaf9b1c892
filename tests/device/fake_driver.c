#include "tests/device/fake_driver.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

fake_driver *fake;

const char fake_ptx[] =
    ".version 7.8\n.target sm_80\n.address_size 64\n"
    ".global .u32 counter[2];\n"
    ".visible .entry add(.param .u64 a, .param .u64 b, .param .u32 n)\n{\n    ret;\n}\n"
    ".visible .entry plain()\n{\n    ret;\n}\n";

/* Everything a handle may be. */
typedef struct object {
    struct object *next; /* of all that were made */
    bool gone;
    int device;
    char text[4096];
    size_t bytes;
} object;

#define ENTER(member)                                                                                                  \
    do {                                                                                                               \
        CUresult early = enter_call(FAKE_##member);                                                                    \
        if (early != CUDA_SUCCESS) return early;                                                                       \
    } while (0)

/* Copy threads call too: contexts and pinned memory. What they may touch is under this. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult count_call(enum fake_entry entry) {
    fake->calls[entry]++;
    if (fake->total_calls < FAKE_LOG) fake->log[fake->total_calls] = entry;
    if (++fake->total_calls == fake->fail_at) return fake->fail_code;
    if (fake->fail_entry_code[entry] != CUDA_SUCCESS) {
        CUresult code = fake->fail_entry_code[entry];
        if (fake->fail_entry_times[entry] && --fake->fail_entry_times[entry] == 0)
            fake->fail_entry_code[entry] = CUDA_SUCCESS;
        return code;
    }
    return CUDA_SUCCESS;
}

static CUresult enter_call(enum fake_entry entry) {
    pthread_mutex_lock(&lock);
    CUresult code = count_call(entry);
    pthread_mutex_unlock(&lock);
    return code;
}

uint64_t fake_total_calls(void) {
    pthread_mutex_lock(&lock);
    uint64_t calls = fake->total_calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

void fake_fail_call(uint64_t number, CUresult code) {
    pthread_mutex_lock(&lock);
    fake->fail_at = number;
    fake->fail_code = code;
    pthread_mutex_unlock(&lock);
}

/* Kept until the fake ends, so that a handle given back twice is seen and one that a lost device kept is no leak. */
static object *objects;

static void *make(int device) {
    object *made = calloc(1, sizeof *made);
    if (!made) abort();
    made->device = device;
    made->next = objects;
    objects = made;
    return made;
}

static void unmake(void *handle) {
    object *gone = handle;
    assert_false(gone->gone);
    gone->gone = true;
}

/* ---------------------------------------------------------------------------------------------- devices, contexts -- */

static CUresult get_error_name(CUresult code, const char **name) {
    ENTER(get_error_name);
    static const struct {
        CUresult code;
        const char *name;
    } names[] = {{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                 {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
                 {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) {
            *name = names[i].name;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult device_get_count(int *count) {
    ENTER(device_get_count);
    *count = fake->device_count;
    return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal) {
    ENTER(device_get);
    if (ordinal < 0 || ordinal >= fake->device_count) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult device_get_name(char *name, int length, CUdevice device) {
    ENTER(device_get_name);
    snprintf(name, (size_t)length, "Fake %d", device);
    return CUDA_SUCCESS;
}

static CUresult device_get_uuid(CUuuid *uuid, CUdevice device) {
    ENTER(device_get_uuid);
    memset(uuid->bytes, device + 1, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

static CUresult device_get_pci_bus_id(char *id, int length, CUdevice device) {
    ENTER(device_get_pci_bus_id);
    snprintf(id, (size_t)length, "ffff:%02x:00.0", device);
    return CUDA_SUCCESS;
}

static CUresult device_total_mem(size_t *bytes, CUdevice device) {
    (void)device;
    ENTER(device_total_mem);
    *bytes = fake->total_memory;
    return CUDA_SUCCESS;
}

static CUresult device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    ENTER(device_get_attribute);
    if ((int)attribute < 0 || (int)attribute >= FAKE_ATTRIBUTES) return CUDA_ERROR_INVALID_VALUE;
    *value = fake->attributes[attribute];
    return CUDA_SUCCESS;
}

static CUresult device_can_access_peer(int *can, CUdevice device, CUdevice peer) {
    ENTER(device_can_access_peer);
    *can = fake->can_access_peer && device != peer;
    return CUDA_SUCCESS;
}

static CUresult device_get_p2p_attribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source,
                                         CUdevice destination) {
    (void)source, (void)destination;
    ENTER(device_get_p2p_attribute);
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 3 : 1;
    return CUDA_SUCCESS;
}

enum { MAX_DEPTH = 16 };
static _Thread_local CUcontext stack[MAX_DEPTH];
static _Thread_local int depth;
static object primaries[FAKE_DEVICES], foreign;

int fake_current_depth(void) { return depth; }
CUcontext fake_current(void) { return depth ? stack[depth - 1] : NULL; }
void fake_set_current(CUcontext context) { stack[depth++] = context; }
void fake_drop_current(void) { depth--; }
CUcontext fake_foreign_context(void) { return (CUcontext)(void *)&foreign; }

static int current_device(void) { return depth ? ((object *)(void *)stack[depth - 1])->device : -1; }

#define NEEDS_CONTEXT()                                                                                                \
    do {                                                                                                               \
        if (depth == 0 || fake_current() == fake_foreign_context()) return CUDA_ERROR_INVALID_CONTEXT;                 \
    } while (0)

static CUresult primary_ctx_retain(CUcontext *context, CUdevice device) {
    ENTER(primary_ctx_retain);
    primaries[device].device = device;
    *context = (CUcontext)(void *)&primaries[device];
    fake->live.primaries++;
    return CUDA_SUCCESS;
}

static CUresult primary_ctx_release(CUdevice device) {
    (void)device;
    CUresult code = enter_call(FAKE_primary_ctx_release); /* gives back in any case */
    fake->live.primaries--;
    return code;
}

static CUresult ctx_create(CUcontext *context, unsigned int flags, CUdevice device) {
    ENTER(ctx_create);
    *context = make(device);
    fake->live.contexts++;
    fake->last_context_flags = flags;
    stack[depth++] = *context;
    return CUDA_SUCCESS;
}

static CUresult ctx_destroy(CUcontext context) {
    CUresult code = enter_call(FAKE_ctx_destroy); /* gives back in any case */
    unmake(context);
    fake->live.contexts--;
    return code;
}

static CUresult ctx_push_current(CUcontext context) {
    ENTER(ctx_push_current);
    assert_true(depth < MAX_DEPTH);
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

/* Pops even when told to fail: a test that fails it looks at what the caller does, not at a stack out of step. */
static CUresult ctx_pop_current(CUcontext *context) {
    CUresult code = enter_call(FAKE_ctx_pop_current);
    if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return code;
}

static CUresult ctx_synchronize(void) {
    ENTER(ctx_synchronize);
    NEEDS_CONTEXT();
    return CUDA_SUCCESS;
}

static CUresult ctx_enable_peer_access(CUcontext peer, unsigned int flags) {
    (void)flags;
    ENTER(ctx_enable_peer_access);
    NEEDS_CONTEXT();
    return peer == fake_current() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------ streams, events -- */

static CUresult stream_create(CUstream *stream, unsigned int flags) {
    ENTER(stream_create);
    NEEDS_CONTEXT();
    *stream = make(current_device());
    fake->live.streams++;
    fake->last_stream_flags = flags;
    return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream) {
    CUresult code = enter_call(FAKE_stream_destroy); /* gives back in any case */
    unmake(stream);
    fake->live.streams--;
    return code;
}

static CUresult stream_synchronize(CUstream stream) {
    (void)stream;
    ENTER(stream_synchronize);
    return CUDA_SUCCESS;
}

static CUresult stream_wait_event(CUstream stream, CUevent event, unsigned int flags) {
    (void)stream, (void)event, (void)flags;
    ENTER(stream_wait_event);
    return CUDA_SUCCESS;
}

static CUresult event_create(CUevent *event, unsigned int flags) {
    ENTER(event_create);
    NEEDS_CONTEXT();
    *event = make(current_device());
    fake->live.events++;
    fake->last_event_flags = flags;
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event) {
    CUresult code = enter_call(FAKE_event_destroy); /* gives back in any case */
    unmake(event);
    fake->live.events--;
    return code;
}

static CUresult event_record(CUevent event, CUstream stream) {
    (void)event, (void)stream;
    ENTER(event_record);
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event) {
    (void)event;
    ENTER(event_query);
    return CUDA_SUCCESS;
}

static CUresult event_elapsed_time(float *milliseconds, CUevent start, CUevent end) {
    (void)start, (void)end;
    ENTER(event_elapsed_time);
    *milliseconds = 1.5f;
    return CUDA_SUCCESS;
}

/* --------------------------------------------------------------------------------------------------------- memory -- */

enum { POOL_STEP = 32 << 20 };

static uint64_t stepped(uint64_t bytes) { return (bytes + POOL_STEP - 1) / POOL_STEP * POOL_STEP; }

static CUresult mem_get_info(size_t *free_bytes, size_t *total_bytes) {
    ENTER(mem_get_info);
    NEEDS_CONTEXT();
    *total_bytes = fake->total_memory;
    *free_bytes = fake->total_memory - fake->other_memory - fake->pool_reserved[current_device()] - fake->module_memory;
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
    pthread_mutex_lock(&lock);
    *made = (host_block){.next = host_blocks, .bytes = bytes};
    host_blocks = made;
    fake->live.pinned++;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult mem_free_host(void *pointer) {
    CUresult code = enter_call(FAKE_mem_free_host); /* gives back in any case */
    pthread_mutex_lock(&lock);
    host_block **link = &host_blocks;
    while (*link && (char *)*link + HOST_HEADER != pointer) link = &(*link)->next;
    host_block *gone = *link;
    assert_non_null(gone);
    *link = gone->next;
    fake->live.pinned--;
    pthread_mutex_unlock(&lock);
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
    CUresult code = enter_call(FAKE_mem_host_unregister); /* gives back in any case */
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
    int from = ((object *)(void *)source_context)->device;
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

static int pool_device(CUmemoryPool pool) { return ((object *)(void *)pool)->device; }

static CUresult mem_pool_create(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    ENTER(mem_pool_create);
    assert_int_equal(properties->location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    *pool = make(properties->location.id);
    fake->live.pools++;
    return CUDA_SUCCESS;
}

static CUresult mem_pool_destroy(CUmemoryPool pool) {
    CUresult code = enter_call(FAKE_mem_pool_destroy); /* gives back in any case */
    fake->pool_reserved[pool_device(pool)] = 0;
    unmake(pool);
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
    CUresult code = enter_call(FAKE_mem_free_async); /* gives back in any case */
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

/* ------------------------------------------------------------------------------------------------------- modules -- */

static void write_log(unsigned int options, CUjit_option *names, void **values, const char *text) {
    char *buffer = NULL;
    size_t bytes = 0;
    for (unsigned i = 0; i < options; i++) {
        if (names[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = values[i];
        if (names[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) bytes = (size_t)(uintptr_t)values[i];
    }
    if (buffer && bytes) snprintf(buffer, bytes, "%s", text);
}

static CUresult judge(const char *text, unsigned int options, CUjit_option *names, void **values) {
    const char *target = strstr(text, ".target sm_");
    if (strstr(text, "bogus")) {
        write_log(options, names, values,
                  "ptxas application ptx input, line 4; error   : Unknown opcode 'bogus'\nfatal");
        return CUDA_ERROR_INVALID_PTX;
    }
    if (target && fake->lowest_failing_target && atoi(target + 11) >= fake->lowest_failing_target)
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    return CUDA_SUCCESS;
}

static CUresult module_load_data_ex(CUmodule *module, const void *image, unsigned int options, CUjit_option *names,
                                    void **values) {
    ENTER(module_load_data_ex);
    NEEDS_CONTEXT();
    CUresult code = judge(image, options, names, values);
    if (code != CUDA_SUCCESS) return code;
    object *made = make(current_device());
    snprintf(made->text, sizeof made->text, "%s", (const char *)image);
    *module = (CUmodule)(void *)made;
    fake->live.modules++;
    fake->module_memory += fake->module_bytes;
    return CUDA_SUCCESS;
}

static CUresult module_unload(CUmodule module) {
    CUresult code = enter_call(FAKE_module_unload); /* gives back in any case */
    unmake(module);
    fake->live.modules--;
    fake->module_memory -= fake->module_bytes;
    return code;
}

/* A function is the address of its ".entry" in the module's text. */
static const char *find_entry(const char *text, const char *name) {
    for (const char *at = strstr(text, ".entry "); at; at = strstr(at + 1, ".entry "))
        if (strncmp(at + 7, name, strlen(name)) == 0 && at[7 + strlen(name)] == '(') return at;
    return NULL;
}

static CUresult module_get_function(CUfunction *function, CUmodule module, const char *name) {
    ENTER(module_get_function);
    const char *found = find_entry(((object *)(void *)module)->text, name);
    if (!found) return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction)(void *)(uintptr_t)found;
    return CUDA_SUCCESS;
}

static CUresult module_get_global(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name) {
    ENTER(module_get_global);
    object *text = (object *)(void *)module;
    if (!strstr(text->text, name)) return CUDA_ERROR_NOT_FOUND;
    *pointer = (uintptr_t)(text->text + sizeof text->text - 8);
    *bytes = 8;
    return CUDA_SUCCESS;
}

static CUresult module_get_function_count(unsigned int *count, CUmodule module) {
    ENTER(module_get_function_count);
    *count = 0;
    for (const char *at = strstr(((object *)(void *)module)->text, ".entry "); at; at = strstr(at + 1, ".entry "))
        ++*count;
    return CUDA_SUCCESS;
}

static CUresult module_enumerate_functions(CUfunction *functions, unsigned int count, CUmodule module) {
    ENTER(module_enumerate_functions);
    const char *at = strstr(((object *)(void *)module)->text, ".entry ");
    for (unsigned i = 0; i < count && at; i++, at = strstr(at + 1, ".entry "))
        functions[i] = (CUfunction)(void *)(uintptr_t)at;
    return CUDA_SUCCESS;
}

static CUresult func_get_name(const char **name, CUfunction function) {
    ENTER(func_get_name);
    static char names[8][32];
    static unsigned next;
    char *to = names[next++ % 8];
    const char *from = (const char *)(void *)function + 7;
    snprintf(to, sizeof names[0], "%.*s", (int)strcspn(from, "("), from);
    *name = to;
    return CUDA_SUCCESS;
}

static CUresult func_get_param_info(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
    ENTER(func_get_param_info);
    const char *at = (const char *)(void *)function, *end = strchr(at, ')');
    size_t next = 0;
    for (size_t i = 0;; i++) {
        at = strstr(at + 1, ".param .u");
        if (!at || at > end) return CUDA_ERROR_INVALID_VALUE;
        *bytes = (size_t)atoi(at + 9) / 8;
        *offset = next = (next + *bytes - 1) / *bytes * *bytes;
        if (i == index) return CUDA_SUCCESS;
        next += *bytes;
    }
}

static CUresult func_load(CUfunction function) {
    (void)function;
    ENTER(func_load);
    return CUDA_SUCCESS;
}

static CUresult func_get_attribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)function;
    ENTER(func_get_attribute);
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = fake->max_threads; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = fake->registers; break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = fake->static_shared; break;
        default: *value = 0; break;
    }
    return CUDA_SUCCESS;
}

static CUresult func_set_attribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)function;
    ENTER(func_set_attribute);
    assert_int_equal(attribute, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    fake->last_dynamic_limit = value;
    return CUDA_SUCCESS;
}

static struct {
    unsigned options;
    CUjit_option names[4];
    void *values[4];
} link_log;

static CUresult link_create(unsigned int options, CUjit_option *names, void **values, CUlinkState *state) {
    ENTER(link_create);
    NEEDS_CONTEXT();
    assert_true(options <= 4);
    link_log.options = options;
    memcpy(link_log.names, names, options * sizeof *names);
    memcpy(link_log.values, values, options * sizeof *values);
    *state = make(current_device());
    fake->live.links++;
    return CUDA_SUCCESS;
}

static CUresult link_add_data(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name,
                              unsigned int options, CUjit_option *names, void **values) {
    (void)name, (void)options, (void)names, (void)values;
    ENTER(link_add_data);
    assert_int_equal(type, CU_JIT_INPUT_PTX);
    assert_int_equal(((const char *)data)[bytes - 1], '\0');
    object *text = (object *)(void *)state;
    snprintf(text->text, sizeof text->text, "%s", (const char *)data);
    return judge(data, link_log.options, link_log.names, link_log.values);
}

static CUresult link_complete(CUlinkState state, void **cubin, size_t *bytes) {
    ENTER(link_complete);
    object *text = (object *)(void *)state;
    *cubin = text->text;
    *bytes = strlen(text->text) + 1;
    return CUDA_SUCCESS;
}

static CUresult link_destroy(CUlinkState state) {
    CUresult code = enter_call(FAKE_link_destroy); /* gives back in any case */
    unmake(state);
    fake->live.links--;
    return code;
}

/* ------------------------------------------------------------------------------------------------------- launches -- */

static void remember(enum fake_entry launcher, CUfunction function, const unsigned grid[3], const unsigned block[3],
                     unsigned shared, CUstream stream, void **parameters) {
    fake->last_launch = (fake_launch){.launcher = launcher,
                                      .function = function,
                                      .grid = {grid[0], grid[1], grid[2]},
                                      .block = {block[0], block[1], block[2]},
                                      .shared = shared,
                                      .stream = stream,
                                      .parameters = parameters};
}

static CUresult launch_kernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                              unsigned int block_x, unsigned int block_y, unsigned int block_z,
                              unsigned int shared_bytes, CUstream stream, void **parameters, void **extra) {
    ENTER(launch_kernel);
    NEEDS_CONTEXT();
    assert_null(extra);
    remember(FAKE_launch_kernel, function, (unsigned[]){grid_x, grid_y, grid_z},
             (unsigned[]){block_x, block_y, block_z}, shared_bytes, stream, parameters);
    return CUDA_SUCCESS;
}

static CUresult launch_cooperative_kernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                          unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                          unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                          void **parameters) {
    ENTER(launch_cooperative_kernel);
    NEEDS_CONTEXT();
    remember(FAKE_launch_cooperative_kernel, function, (unsigned[]){grid_x, grid_y, grid_z},
             (unsigned[]){block_x, block_y, block_z}, shared_bytes, stream, parameters);
    return CUDA_SUCCESS;
}

static CUresult launch_kernel_ex(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)extra;
    ENTER(launch_kernel_ex);
    NEEDS_CONTEXT();
    remember(FAKE_launch_kernel_ex, function, (unsigned[]){config->gridDimX, config->gridDimY, config->gridDimZ},
             (unsigned[]){config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
             config->hStream, parameters);
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            fake->last_launch.cluster[0] = attribute->value.clusterDim.x;
            fake->last_launch.cluster[1] = attribute->value.clusterDim.y;
            fake->last_launch.cluster[2] = attribute->value.clusterDim.z;
        } else if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
            fake->last_launch.cooperative = attribute->value.cooperative;
        }
    }
    return CUDA_SUCCESS;
}

/* A graph keeps its nodes in the order they were added; an instantiated one shares them. */
enum { MAX_NODES = 64 };
typedef struct graph_node {
    bool enabled;
    uint32_t value; /* of the first argument */
} graph_node;
static graph_node graph_nodes[MAX_NODES];
static size_t graph_node_count;

static CUresult graph_create(CUgraph *graph, unsigned int flags) {
    (void)flags;
    ENTER(graph_create);
    NEEDS_CONTEXT();
    *graph = make(current_device());
    graph_node_count = 0;
    fake->graph_edges = 0;
    fake->live.graphs++;
    return CUDA_SUCCESS;
}

static CUresult graph_destroy(CUgraph graph) {
    CUresult code = enter_call(FAKE_graph_destroy); /* gives back in any case */
    unmake(graph);
    fake->live.graphs--;
    return code;
}

static CUresult graph_add_kernel_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                      const CUDA_KERNEL_NODE_PARAMS *parameters) {
    (void)graph;
    ENTER(graph_add_kernel_node);
    assert_true(graph_node_count < MAX_NODES);
    graph_node *made = &graph_nodes[graph_node_count];
    assert_true(count <= 1);
    /* How many nodes back the one that it follows is. */
    fake->graph_follows[graph_node_count] = count ? (uint32_t)(made - (graph_node *)(void *)dependencies[0]) : 0;
    fake->graph_edges += (uint32_t)count;
    *made = (graph_node){.enabled = true};
    if (parameters->kernelParams) memcpy(&made->value, parameters->kernelParams[0], sizeof made->value);
    graph_node_count++;
    *node = (CUgraphNode)(void *)made;
    return CUDA_SUCCESS;
}

static CUresult graph_instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    (void)graph, (void)flags;
    ENTER(graph_instantiate);
    *exec = make(current_device());
    fake->live.execs++;
    fake->module_memory += fake->graph_bytes;
    return CUDA_SUCCESS;
}

static CUresult graph_upload(CUgraphExec exec, CUstream stream) {
    (void)exec, (void)stream;
    ENTER(graph_upload);
    return CUDA_SUCCESS;
}

static CUresult graph_exec_destroy(CUgraphExec exec) {
    CUresult code = enter_call(FAKE_graph_exec_destroy); /* gives back in any case */
    unmake(exec);
    fake->live.execs--;
    fake->module_memory -= fake->graph_bytes;
    return code;
}

static CUresult graph_exec_kernel_node_set_params(CUgraphExec exec, CUgraphNode node,
                                                  const CUDA_KERNEL_NODE_PARAMS *parameters) {
    (void)exec;
    ENTER(graph_exec_kernel_node_set_params);
    graph_node *set = (graph_node *)(void *)node;
    set->value = 0;
    if (parameters->kernelParams) memcpy(&set->value, parameters->kernelParams[0], sizeof set->value);
    return CUDA_SUCCESS;
}

static CUresult graph_node_set_enabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled) {
    (void)exec;
    ENTER(graph_node_set_enabled);
    ((graph_node *)(void *)node)->enabled = enabled != 0;
    return CUDA_SUCCESS;
}

static CUresult graph_launch(CUgraphExec exec, CUstream stream) {
    (void)exec;
    ENTER(graph_launch);
    NEEDS_CONTEXT();
    assert_non_null(stream);
    fake->graph_launched_count = 0;
    for (size_t i = 0; i < graph_node_count; i++)
        if (graph_nodes[i].enabled) fake->graph_launched[fake->graph_launched_count++] = graph_nodes[i].value;
    return CUDA_SUCCESS;
}

static CUresult occupancy_max_active_blocks(int *blocks, CUfunction function, int block_threads, size_t shared) {
    (void)function, (void)block_threads, (void)shared;
    ENTER(occupancy_max_active_blocks);
    *blocks = fake->occupancy;
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------ the table -- */

static void destroy(mu_driver *driver) {
    assert_ptr_equal(driver, &fake->table);
    fake->references_gone = true;
}

static void fill_table(mu_driver *table) {
#define SET(member) table->member = member
    SET(get_error_name), SET(device_get_count), SET(device_get), SET(device_get_name), SET(device_get_uuid);
    SET(device_get_pci_bus_id), SET(device_total_mem), SET(device_get_attribute), SET(device_can_access_peer);
    SET(device_get_p2p_attribute), SET(primary_ctx_retain), SET(primary_ctx_release), SET(ctx_create);
    SET(ctx_destroy), SET(ctx_push_current), SET(ctx_pop_current), SET(ctx_synchronize), SET(ctx_enable_peer_access);
    SET(stream_create), SET(stream_destroy), SET(stream_synchronize), SET(stream_wait_event), SET(event_create);
    SET(event_destroy), SET(event_record), SET(event_query), SET(event_elapsed_time), SET(mem_get_info);
    SET(mem_host_alloc), SET(mem_free_host), SET(mem_host_register), SET(mem_host_unregister);
    SET(pointer_get_attribute);
    SET(memcpy_htod_async), SET(memcpy_dtoh_async), SET(memcpy_dtod_async), SET(memcpy_peer_async);
    SET(memcpy_2d_async), SET(memset_d2d8_async);
    SET(memset_d8_async), SET(memset_d16_async), SET(memset_d32_async), SET(mem_pool_create), SET(mem_pool_destroy);
    SET(mem_pool_set_attribute), SET(mem_pool_get_attribute), SET(mem_pool_set_access), SET(mem_pool_trim_to);
    SET(mem_alloc_from_pool_async), SET(mem_free_async), SET(module_load_data_ex), SET(module_unload);
    SET(module_get_function), SET(module_get_global), SET(module_get_function_count);
    SET(module_enumerate_functions), SET(func_get_name), SET(func_get_param_info), SET(func_load);
    SET(func_get_attribute), SET(func_set_attribute), SET(link_create), SET(link_add_data), SET(link_complete);
    SET(link_destroy), SET(launch_kernel), SET(launch_cooperative_kernel), SET(launch_kernel_ex);
    SET(occupancy_max_active_blocks), SET(graph_create), SET(graph_destroy), SET(graph_add_kernel_node);
    SET(graph_instantiate), SET(graph_upload), SET(graph_exec_destroy), SET(graph_exec_kernel_node_set_params);
    SET(graph_node_set_enabled), SET(graph_launch);
#undef SET
}

static void set_attributes(int *to) {
#define SET(name, value) to[CU_DEVICE_ATTRIBUTE_##name] = value
    SET(COMPUTE_CAPABILITY_MAJOR, 9), SET(COMPUTE_CAPABILITY_MINOR, 0), SET(MAX_THREADS_PER_BLOCK, 1024);
    SET(MAX_BLOCK_DIM_X, 1024), SET(MAX_BLOCK_DIM_Y, 1024), SET(MAX_BLOCK_DIM_Z, 64);
    SET(MAX_GRID_DIM_X, 2147483647), SET(MAX_GRID_DIM_Y, 65535), SET(MAX_GRID_DIM_Z, 65535);
    SET(MULTIPROCESSOR_COUNT, 132), SET(MAX_SHARED_MEMORY_PER_BLOCK, 49152);
    SET(MAX_THREADS_PER_MULTIPROCESSOR, 2048), SET(MAX_BLOCKS_PER_MULTIPROCESSOR, 32);
    SET(MAX_REGISTERS_PER_BLOCK, 65536), SET(MAX_REGISTERS_PER_MULTIPROCESSOR, 65536);
    SET(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448), SET(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472);
    SET(WARP_SIZE, 32), SET(CONCURRENT_KERNELS, 1), SET(ASYNC_ENGINE_COUNT, 3), SET(COOPERATIVE_LAUNCH, 1);
    SET(UNIFIED_ADDRESSING, 1), SET(MEMORY_POOLS_SUPPORTED, 1);
#undef SET
}

fake_driver *fake_driver_create(void) {
    assert_null(fake);
    fake = calloc(1, sizeof *fake);
    assert_non_null(fake);
    fill_table(&fake->table);
    set_attributes(fake->attributes);
    fake->table.kind = MU_DRIVER_CUDA;
    fake->table.version = 13000;
    fake->table.name = "fake";
    fake->table.destroy = destroy;
    atomic_init(&fake->table.references, 1);
    fake->device_count = 2;
    fake->total_memory = (uint64_t)1 << 30;
    fake->can_access_peer = true;
    fake->occupancy = 4;
    fake->max_threads = 1024;
    fake->registers = 32;
    fake->module_bytes = 2 << 20;
    for (int i = 0; i < FAKE_DEVICES; i++) fake->pool_internal_dependencies[i] = 1;
    return fake;
}

bool fake_nothing_live(void) {
    static const fake_live none;
    return memcmp(&fake->live, &none, sizeof none) == 0;
}

void fake_driver_finish(void) {
    assert_true(fake_nothing_live());
    assert_true(fake->references_gone);
    assert_int_equal(depth, 0);
    for (object *next; objects; objects = next) {
        next = objects->next;
        free(objects);
    }
    for (allocation *next; allocations; allocations = next) {
        next = allocations->next;
        free(allocations);
    }
    for (host_block *next; host_blocks; host_blocks = next) {
        next = host_blocks->next;
        free(host_blocks);
    }
    memset(registered, 0, sizeof registered);
    free(fake);
    fake = NULL;
}

long fake_position(enum fake_entry entry, uint64_t nth) {
    uint64_t end = fake->total_calls < FAKE_LOG ? fake->total_calls : FAKE_LOG;
    for (uint64_t i = 0; i < end; i++)
        if (fake->log[i] == entry && nth-- == 0) return (long)i;
    return -1;
}
