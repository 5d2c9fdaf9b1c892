#include "tests/device/fake_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/fake_internal.h"

fake_driver *fake;

const char fake_ptx[] =
    ".version 7.8\n.target sm_80\n.address_size 64\n"
    ".global .u32 counter[2];\n"
    ".visible .entry add(.param .u64 a, .param .u64 b, .param .u32 n)\n{\n    ret;\n}\n"
    ".visible .entry plain()\n{\n    ret;\n}\n";

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

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

CUresult fake_enter(enum fake_entry entry) {
    pthread_mutex_lock(&fake_lock);
    CUresult code = count_call(entry);
    pthread_mutex_unlock(&fake_lock);
    return code;
}

uint64_t fake_total_calls(void) {
    pthread_mutex_lock(&fake_lock);
    uint64_t calls = fake->total_calls;
    pthread_mutex_unlock(&fake_lock);
    return calls;
}

void fake_fail_call(uint64_t number, CUresult code) {
    pthread_mutex_lock(&fake_lock);
    fake->fail_at = number;
    fake->fail_code = code;
    pthread_mutex_unlock(&fake_lock);
}

/* Kept until the fake ends, so that a handle given back twice is seen and one that a lost device kept is no leak. */
static fake_object *objects;

void *fake_make(int device) {
    fake_object *made = calloc(1, sizeof *made);
    if (!made) abort();
    made->device = device;
    made->next = objects;
    objects = made;
    return made;
}

void fake_unmake(void *handle) {
    fake_object *gone = handle;
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
static fake_object primaries[FAKE_DEVICES], foreign;

int fake_current_depth(void) { return depth; }
CUcontext fake_current(void) { return depth ? stack[depth - 1] : NULL; }
void fake_set_current(CUcontext context) { stack[depth++] = context; }
void fake_drop_current(void) { depth--; }
CUcontext fake_foreign_context(void) { return (CUcontext)(void *)&foreign; }

int fake_current_device(void) { return depth ? ((fake_object *)(void *)stack[depth - 1])->device : -1; }

static CUresult primary_ctx_retain(CUcontext *context, CUdevice device) {
    ENTER(primary_ctx_retain);
    primaries[device].device = device;
    *context = (CUcontext)(void *)&primaries[device];
    fake->live.primaries++;
    return CUDA_SUCCESS;
}

static CUresult primary_ctx_release(CUdevice device) {
    (void)device;
    CUresult code = fake_enter(FAKE_primary_ctx_release); /* gives back in any case */
    fake->live.primaries--;
    return code;
}

static CUresult ctx_create(CUcontext *context, unsigned int flags, CUdevice device) {
    ENTER(ctx_create);
    *context = fake_make(device);
    fake->live.contexts++;
    fake->last_context_flags = flags;
    stack[depth++] = *context;
    return CUDA_SUCCESS;
}

static CUresult ctx_destroy(CUcontext context) {
    CUresult code = fake_enter(FAKE_ctx_destroy); /* gives back in any case */
    fake_unmake(context);
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
    CUresult code = fake_enter(FAKE_ctx_pop_current);
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
    *stream = fake_make(fake_current_device());
    fake->live.streams++;
    fake->last_stream_flags = flags;
    return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream) {
    CUresult code = fake_enter(FAKE_stream_destroy); /* gives back in any case */
    fake_unmake(stream);
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
    *event = fake_make(fake_current_device());
    fake->live.events++;
    fake->last_event_flags = flags;
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event) {
    CUresult code = fake_enter(FAKE_event_destroy); /* gives back in any case */
    fake_unmake(event);
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

static CUresult stream_write_value32(CUstream stream, CUdeviceptr address, unsigned int value, unsigned int flags) {
    (void)stream, (void)flags;
    ENTER(stream_write_value32);
    *(unsigned int *)(uintptr_t)address = value;
    return CUDA_SUCCESS;
}

static CUresult event_elapsed_time(float *milliseconds, CUevent start, CUevent end) {
    (void)start, (void)end;
    ENTER(event_elapsed_time);
    *milliseconds = 1.5f;
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
    SET(event_destroy), SET(event_record), SET(event_query), SET(event_elapsed_time);
    SET(stream_write_value32);
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
    fake_memory_fill(&fake->table);
    fake_program_fill(&fake->table);
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
    for (fake_object *next; objects; objects = next) {
        next = objects->next;
        free(objects);
    }
    fake_memory_end();
    free(fake);
    fake = NULL;
}

long fake_position(enum fake_entry entry, uint64_t nth) {
    uint64_t end = fake->total_calls < FAKE_LOG ? fake->total_calls : FAKE_LOG;
    for (uint64_t i = 0; i < end; i++)
        if (fake->log[i] == entry && nth-- == 0) return (long)i;
    return -1;
}
