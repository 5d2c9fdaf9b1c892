/* Contexts, each thread's stack of current ones, and access to peers. */
#include <string.h>

#include "device/sim/sim_code.h"
#include "device/sim/sim_graph.h"
#include "device/sim/sim_heap.h"
#include "device/sim/sim_pool.h"
#include "device/sim/sim_queue.h"

/* ----------------------------------------------------------------------------------------------------- the stack -- */

/* A thread has a stack for each instance, as it would have one in each process. Handles, not pointers: the context may
 * be destroyed by another thread meanwhile. */
enum { STACK_DEPTH = 14 };
typedef struct thread_stack {
    uint64_t serial; /* of the instance; an older one's stack counts as empty */
    uint32_t depth;
    CUcontext contexts[STACK_DEPTH];
} thread_stack;

static _Thread_local thread_stack stacks[MU_SIM_MAX_INSTANCES];

static thread_stack *stack_of(sim_driver *driver) {
    thread_stack *stack = &stacks[driver->slot];
    if (stack->serial != driver->serial) {
        stack->serial = driver->serial;
        stack->depth = 0;
    }
    return stack;
}

static CUcontext top(sim_driver *driver) {
    thread_stack *stack = stack_of(driver);
    return stack->depth ? stack->contexts[stack->depth - 1] : NULL;
}

sim_context *sim_current_raw(sim_driver *driver) { return sim_find(driver, SIM_TAG_CONTEXT, top(driver)); }

CUresult sim_current(sim_driver *driver, sim_context **context) {
    CUcontext handle = top(driver);
    if (!handle) return CUDA_ERROR_INVALID_CONTEXT;
    sim_context *found = sim_find(driver, SIM_TAG_CONTEXT, handle);
    if (!found) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    CUresult code = sim_context_error(found);
    if (code == CUDA_SUCCESS) *context = found;
    return code;
}

CUresult sim_context_find(sim_driver *driver, CUcontext handle, sim_context **context) {
    sim_context *found = sim_find(driver, SIM_TAG_CONTEXT, handle);
    if (!found) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult code = sim_context_error(found);
    if (code == CUDA_SUCCESS) *context = found;
    return code;
}

CUresult sim_do_ctx_push_current(sim_driver *driver, CUcontext context) {
    thread_stack *stack = stack_of(driver);
    if (!sim_find(driver, SIM_TAG_CONTEXT, context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (stack->depth == STACK_DEPTH) return CUDA_ERROR_INVALID_VALUE;
    stack->contexts[stack->depth++] = context;
    return CUDA_SUCCESS;
}

CUresult sim_do_ctx_pop_current(sim_driver *driver, CUcontext *context) {
    thread_stack *stack = stack_of(driver);
    if (!stack->depth) return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext popped = stack->contexts[--stack->depth];
    if (context) *context = popped;
    return CUDA_SUCCESS;
}

CUresult sim_do_ctx_get_current(sim_driver *driver, CUcontext *context) {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = top(driver);
    return CUDA_SUCCESS;
}

/* Replaces the top of the stack; NULL pops it. */
CUresult sim_do_ctx_set_current(sim_driver *driver, CUcontext context) {
    thread_stack *stack = stack_of(driver);
    if (context && !sim_find(driver, SIM_TAG_CONTEXT, context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (stack->depth) stack->depth--;
    if (context) stack->contexts[stack->depth++] = context;
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------ lifetime -- */

static sim_context *create(sim_device *device, bool primary, unsigned flags) {
    sim_driver *driver = device->driver;
    if (!sim_charge(device, device->config->context_bytes)) return NULL;
    sim_context *context = mu_alloc_zeroed(1, sizeof *context);
    if (!context) goto discharge;
    context->driver = driver;
    context->device = device;
    context->memory = (sim_memory){driver, context};
    context->primary = primary;
    context->flags = flags;
    if (!sim_handle_add(driver, &context->object, SIM_TAG_CONTEXT, NULL)) goto free_context;
    context->legacy = sim_stream_create(context, true);
    if (!context->legacy) goto remove_handle;
    return context;
remove_handle:
    sim_handle_remove(driver, &context->object);
free_context:
    mu_free(context);
discharge:
    sim_discharge(device, device->config->context_bytes);
    return NULL;
}

static void forget_peer(sim_driver *driver, sim_context *gone) {
    uint32_t cursor = 0;
    for (sim_object *object; (object = sim_handle_next(driver, NULL, SIM_TAG_CONTEXT, &cursor)) != NULL;)
        for (int i = 0; i < SIM_MAX_PEERS; i++) {
            sim_context *expected = gone;
            /* Relaxed: kernels of a correct program no longer look for the peer's memory. */
            atomic_compare_exchange_strong_explicit(&((sim_context *)object)->peers[i], &expected, NULL,
                                                    memory_order_relaxed, memory_order_relaxed);
        }
}

static void free_streams(sim_context *context) {
    sim_lock(context->driver);
    for (sim_stream *stream = context->device->streams; stream;) {
        sim_stream *next = stream->next;
        if (stream->context == context) {
            if (!stream->destroyed) sim_handle_remove(context->driver, &stream->object);
            sim_capture_forget(stream);
            sim_stream_free(stream);
        }
        stream = next;
    }
    sim_unlock(context->driver);
}

static void free_blocks(sim_context *context) {
    sim_driver *driver = context->driver;
    uint64_t low = 0;
    for (sim_block *block; (block = sim_table_next(driver->memory, low)) != NULL;) {
        low = block->range.high;
        if (block->context != context) continue;
        if (block->kind == SIM_BLOCK_DEVICE)
            sim_discharge(context->device, sim_charged(block->range.high - block->range.low));
        sim_block_free(driver->heap, block);
    }
}

void sim_context_free(sim_context *context) {
    sim_driver *driver = context->driver;
    uint32_t cursor;
    sim_object *object;
    free_streams(context);
    cursor = 0;
    while ((object = sim_handle_next(driver, context, SIM_TAG_EXEC, &cursor)) != NULL)
        sim_exec_free((sim_exec *)object);
    cursor = 0;
    while ((object = sim_handle_next(driver, context, SIM_TAG_EVENT, &cursor)) != NULL) {
        sim_handle_remove(driver, object);
        sim_event_free((sim_event *)object);
    }
    cursor = 0;
    while ((object = sim_handle_next(driver, context, SIM_TAG_LINK, &cursor)) != NULL)
        sim_link_free((sim_link *)object);
    cursor = 0;
    while ((object = sim_handle_next(driver, context, SIM_TAG_IMAGE, &cursor)) != NULL)
        sim_image_free((sim_image *)object);
    free_blocks(context);
    forget_peer(driver, context);
    sim_handle_remove(driver, &context->object);
    sim_discharge(context->device, context->device->config->context_bytes);
    mu_free(context);
}

/* Waits for what runs; what a fault left behind has been dropped by then or is dropped now. */
static void quiesce(sim_context *context) {
    sim_driver *driver = context->driver;
    sim_lock(driver);
    sim_context_drain(context);
    for (sim_stream *stream = context->device->streams; stream;) {
        bool busy = stream->context == context && stream->head && (stream->running || !context->device->held);
        if (busy) sim_wait(driver);
        stream = busy ? context->device->streams : stream->next;
    }
    MU_TSAN_ACQUIRE(&context->device->order); /* pairs with take_turn's release */
    sim_unlock(driver);
}

CUresult sim_do_primary_ctx_retain(sim_driver *driver, CUcontext *handle, CUdevice device_handle) {
    sim_device *device = sim_find_device(driver, device_handle);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    CUresult code = sim_fault_new_context(device);
    if (code != CUDA_SUCCESS) return code;
    pthread_mutex_lock(&driver->primary_lock);
    if (!device->primary) device->primary = create(device, true, 0);
    if (device->primary) {
        device->primary->retained++;
        *handle = SIM_HANDLE(CUcontext, device->primary);
    } else {
        code = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&driver->primary_lock);
    return code;
}

CUresult sim_do_primary_ctx_release(sim_driver *driver, CUdevice device_handle) {
    sim_device *device = sim_find_device(driver, device_handle);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&driver->primary_lock);
    sim_context *context = device->primary;
    bool last = context && --context->retained == 0;
    if (last) {
        quiesce(context);
        device->primary = NULL;
        sim_context_free(context);
    }
    pthread_mutex_unlock(&driver->primary_lock);
    return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_do_ctx_create(sim_driver *driver, CUcontext *handle, unsigned int flags, CUdevice device_handle) {
    sim_device *device = sim_find_device(driver, device_handle);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    const unsigned known = CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX;
    if (!handle || flags & ~known) return CUDA_ERROR_INVALID_VALUE;
    CUresult code = sim_fault_new_context(device);
    if (code != CUDA_SUCCESS) return code;
    thread_stack *stack = stack_of(driver);
    if (stack->depth == STACK_DEPTH) return CUDA_ERROR_INVALID_VALUE;
    sim_context *context = create(device, false, flags);
    if (!context) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = stack->contexts[stack->depth++] = SIM_HANDLE(CUcontext, context);
    return CUDA_SUCCESS;
}

CUresult sim_do_ctx_destroy(sim_driver *driver, CUcontext handle) {
    sim_context *context = sim_find(driver, SIM_TAG_CONTEXT, handle);
    if (!context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    if (top(driver) == handle) stack_of(driver)->depth--;
    quiesce(context);
    sim_context_free(context);
    return CUDA_SUCCESS;
}

/* --------------------------------------------------------------------------------------------------------- peers -- */

bool sim_context_sees(const sim_context *context, const sim_context *owner) {
    if (context == owner) return true;
    for (int i = 0; i < SIM_MAX_PEERS; i++)
        if (atomic_load_explicit(&context->peers[i], memory_order_relaxed) == owner) return true;
    return false;
}

CUresult sim_do_ctx_enable_peer_access(sim_driver *driver, CUcontext peer_handle, unsigned int flags) {
    sim_context *context, *peer;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    code = sim_context_find(driver, peer_handle, &peer);
    if (code != CUDA_SUCCESS) return code;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (peer->device == context->device ||
        !(driver->config.peers[context->device->ordinal] >> peer->device->ordinal & 1))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (sim_context_sees(context, peer)) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    for (int i = 0; i < SIM_MAX_PEERS; i++) {
        sim_context *nobody = NULL;
        if (atomic_compare_exchange_strong_explicit(&context->peers[i], &nobody, peer, memory_order_relaxed,
                                                    memory_order_relaxed))
            return CUDA_SUCCESS;
    }
    return CUDA_ERROR_TOO_MANY_PEERS;
}
