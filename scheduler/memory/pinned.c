#include "scheduler/memory/pinned.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/runtime/host.h"
#include "scheduler/runtime/runtime.h"
#include "scheduler/runtime/wait.h"

typedef enum block_state {
    COMING, /* being pinned */
    USED,   /* the application's */
    KEPT,   /* freed, for the next of its class */
    GOING   /* being given back */
} block_state;

struct mu_host_block {
    uint64_t low, high; /* what the application asked for */
    uint64_t capacity;  /* allocated: the size class */
    bool registered;    /* the application's own memory */
    block_state state;
    int device;       /* that it was pinned with; every device may use it */
    uint32_t handles; /* buffers in it whose handles the application has */
    uint32_t buffers; /* buffers in it that are not gone */
    bool freed;       /* by the application, while buffers in it were not gone */
    uint64_t turn;    /* of its free */
};

static void *address_of(const mu_host_block *block) { return (void *)(uintptr_t)block->low; }

/* ------------------------------------------------------------------------------------------------------ the blocks, locked -- */

/* Index of the first block that ends after `address`. */
static size_t find_index(const mu_pinned *pinned, uint64_t address) {
    size_t low = 0, high = pinned->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pinned->blocks[middle]->high <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first block that overlaps the range, or NULL. */
static mu_host_block *find_overlap(const mu_pinned *pinned, uint64_t low, uint64_t high) {
    size_t index = find_index(pinned, low);
    return index < pinned->count && pinned->blocks[index]->low < high ? pinned->blocks[index] : NULL;
}

/* False: out of host memory. */
static bool insert(mu_pinned *pinned, mu_host_block *block) {
    if (!mu_grow(&pinned->blocks, &pinned->capacity, pinned->count + 1, sizeof *pinned->blocks)) return false;
    size_t index = find_index(pinned, block->low);
    memmove(&pinned->blocks[index + 1], &pinned->blocks[index], (pinned->count - index) * sizeof *pinned->blocks);
    pinned->blocks[index] = block;
    pinned->count++;
    return true;
}

static void forget(mu_pinned *pinned, mu_host_block *block) {
    size_t index = find_index(pinned, block->low);
    pinned->count--;
    memmove(&pinned->blocks[index], &pinned->blocks[index + 1], (pinned->count - index) * sizeof *pinned->blocks);
    mu_free(block);
}

static void keep(mu_pinned *pinned, mu_host_block *block) {
    block->state = KEPT;
    block->freed = false;
    block->turn = pinned->turn++;
    pinned->kept_bytes += block->capacity;
}

/* ------------------------------------------------------------------------------------------------------- giving back -- */

/* Takes the block that has been kept longest, of `device` (MUSTER_ANY_DEVICE: of any), while more than `bound` bytes are kept. */
static mu_host_block *take_excess(mu_pinned *pinned, int device, uint64_t bound) {
    mu_host_block *oldest = NULL;
    pthread_mutex_lock(&pinned->lock);
    for (size_t i = 0; pinned->kept_bytes > bound && i < pinned->count; i++) {
        mu_host_block *block = pinned->blocks[i];
        if (block->state != KEPT || (device != MUSTER_ANY_DEVICE && block->device != device)) continue;
        if (!oldest || block->turn < oldest->turn) oldest = block;
    }
    if (oldest) {
        oldest->state = GOING;
        pinned->kept_bytes -= oldest->capacity;
    }
    pthread_mutex_unlock(&pinned->lock);
    return oldest;
}

static void give_back(mu_device *device, mu_host_block *block) {
    if (block->registered)
        mu_host_unregister(device, address_of(block));
    else
        mu_pinned_free(device, address_of(block));
}

/* Giving a block back stalls a busy device, so it waits until the device is idle, though not for ever. */
typedef struct patient_return {
    mu_call call;
    mu_host_block *block;
    uint64_t due_ns;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
} patient_return;

static void give_back_on_worker(mu_actor *actor, mu_call *call) {
    patient_return *r = (patient_return *)call;
    if (!actor->lost && actor->retired + 1 < actor->timeline.open && mu_now_ns() < r->due_ns) {
        mu_actor_defer(actor, call);
        return;
    }
    /* The driver keeps what a lost device had. */
    if (!actor->lost) give_back(actor->device, r->block);
    pthread_mutex_lock(&r->lock);
    r->done = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static void wait_to_give_back(muster_runtime *runtime, mu_host_block *block) {
    patient_return r = {
        .call = {.run = give_back_on_worker}, .block = block, .due_ns = mu_deadline_ns(MU_UNPIN_WAIT_NS)};
    pthread_mutex_init(&r.lock, NULL);
    mu_cond_init(&r.changed);
    mu_actor_post_call(&runtime->actors[block->device], &r.call);
    pthread_mutex_lock(&r.lock);
    while (!r.done) pthread_cond_wait(&r.changed, &r.lock);
    pthread_mutex_unlock(&r.lock);
    pthread_cond_destroy(&r.changed);
    pthread_mutex_destroy(&r.lock);
}

static void return_block(muster_runtime *runtime, mu_host_block *block) {
    wait_to_give_back(runtime, block);
    pthread_mutex_lock(&runtime->pinned.lock);
    forget(&runtime->pinned, block);
    pthread_mutex_unlock(&runtime->pinned.lock);
}

static void trim(muster_runtime *runtime, uint64_t bound) {
    mu_host_block *block;
    while ((block = take_excess(&runtime->pinned, MUSTER_ANY_DEVICE, bound))) return_block(runtime, block);
}

bool mu_pinned_collect(mu_actor *actor) {
    mu_pinned *pinned = &actor->runtime->pinned;
    mu_host_block *block = take_excess(pinned, actor->index, MU_PINNED_KEEP_BYTES);
    if (!block) return false;
    give_back(actor->device, block);
    pthread_mutex_lock(&pinned->lock);
    forget(pinned, block);
    pthread_mutex_unlock(&pinned->lock);
    return true;
}

/* --------------------------------------------------------------------------------------------------- alloc and register -- */

/* A device that works; the first one when none does. */
static int any_device(const muster_runtime *runtime) {
    for (uint32_t d = 0; d < runtime->device_count; d++)
        if (!mu_device_is_lost(runtime->actors[d].device)) return (int)d;
    return 0;
}

/* The device that was asked turned out to be lost, and there are others. */
static bool is_for_another(const muster_runtime *runtime, muster_status status) {
    return status == MUSTER_DEVICE_LOST && !mu_device_is_lost(runtime->actors[any_device(runtime)].device);
}

/* A power of two up to 1 MiB, then a quarter of one: what is freed serves the next of about its size. */
static uint64_t size_class(uint64_t bytes) {
    uint64_t step = 4096;
    if (bytes <= (uint64_t)1 << 20) {
        while (step < bytes) step <<= 1;
        return step;
    }
    while (step < bytes / 8 + 1) step <<= 1; /* between an eighth and a quarter of it */
    return (bytes + step - 1) / step * step;
}

static mu_host_block *take_kept(mu_pinned *pinned, uint64_t bytes, uint64_t capacity) {
    mu_host_block *found = NULL;
    pthread_mutex_lock(&pinned->lock);
    for (size_t i = 0; i < pinned->count; i++) {
        mu_host_block *block = pinned->blocks[i];
        if (block->state == KEPT && block->capacity == capacity && (!found || block->turn > found->turn)) found = block;
    }
    if (found) {
        pinned->kept_bytes -= capacity;
        found->state = USED;
        found->high = found->low + bytes;
    }
    pthread_mutex_unlock(&pinned->lock);
    return found;
}

/* When there is no more to pin, what is kept goes first. */
static muster_status pin(muster_runtime *runtime, int device, uint64_t bytes, void **memory, muster_error *error) {
    muster_error first;
    muster_status status = mu_pinned_alloc(runtime->actors[device].device, bytes, memory, &first);
    if (status != MUSTER_OUT_OF_HOST_MEMORY) return status ? mu_error_copy(error, &first) : MUSTER_OK;
    trim(runtime, 0);
    return mu_pinned_alloc(runtime->actors[device].device, bytes, memory, error);
}

static muster_status make_block(muster_runtime *runtime, uint64_t bytes, uint64_t capacity, mu_host_block **out,
                                muster_error *error) {
    mu_host_block *block = mu_alloc_zeroed(1, sizeof *block);
    if (!block) return mu_fail_host_memory(error, "the record of pinned memory", sizeof *block);
    void *memory = NULL;
    muster_status status;
    do {
        block->device = any_device(runtime);
        status = pin(runtime, block->device, capacity, &memory, error);
    } while (is_for_another(runtime, status));
    if (status) goto free_record;
    block->low = (uintptr_t)memory;
    block->high = block->low + bytes;
    block->capacity = capacity;
    block->state = USED;
    pthread_mutex_lock(&runtime->pinned.lock);
    if (!insert(&runtime->pinned, block)) status = MUSTER_OUT_OF_HOST_MEMORY;
    pthread_mutex_unlock(&runtime->pinned.lock);
    if (status) goto free_memory;
    *out = block;
    return MUSTER_OK;
free_memory:
    mu_fail_host_memory(error, "the table of pinned memory", sizeof *block);
    wait_to_give_back(runtime, block);
free_record:
    mu_free(block);
    return status;
}

muster_status muster_host_alloc(muster_runtime *runtime, uint64_t bytes, void **pointer, muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status) return status;
    if (!pointer) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "pointer is NULL; pass where to store the address");
    if (bytes == 0) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "0 bytes of pinned memory; ask for at least one");
    if (bytes > (uint64_t)1 << 62)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%llu bytes of pinned memory; the limit is 2^62",
                       (unsigned long long)bytes);
    if ((status = mu_runtime_check(runtime, error))) return status;
    uint64_t capacity = size_class(bytes);
    mu_host_block *block = take_kept(&runtime->pinned, bytes, capacity);
    if (!block && (status = make_block(runtime, bytes, capacity, &block, error))) return status;
    *pointer = address_of(block);
    return MUSTER_OK;
}

/* Buffers over the range whose memory is not in a block, locked. */
static bool is_used_elsewhere(const mu_pinned *pinned, uint64_t low, uint64_t high) {
    for (const muster_buffer *buffer = pinned->elsewhere; buffer; buffer = buffer->place.next) {
        uint64_t begin = (uintptr_t)buffer->host;
        if (begin < high && low < begin + buffer->bytes) return true;
    }
    return false;
}

/* Whoever ended a run, a worker or the host thread, may not have let go of its buffers yet. Blocks. */
static void let_runs_go(muster_runtime *runtime) {
    mu_actors_pass(runtime);
    mu_host_pass(runtime, MU_UNPIN_WAIT_NS);
}

/* Takes the range, so that nobody else registers it meanwhile. *again: it may be free once runs have been let go. */
static muster_status claim(mu_pinned *pinned, mu_host_block *block, bool *again, muster_error *error) {
    muster_status status = MUSTER_OK;
    pthread_mutex_lock(&pinned->lock);
    const mu_host_block *other = find_overlap(pinned, block->low, block->high);
    *again = !other && is_used_elsewhere(pinned, block->low, block->high);
    if (other)
        status = mu_fail(error, MUSTER_INVALID_STATE,
                         "%llu bytes at %p overlap the %llu bytes at %p, which are %s; unregister or free those first",
                         (unsigned long long)(block->high - block->low), address_of(block),
                         (unsigned long long)(other->high - other->low), address_of(other),
                         other->registered ? "registered already" : "pinned memory from muster_host_alloc");
    else if (*again)
        status = mu_fail(error, MUSTER_BUSY,
                         "a buffer lies in the %llu bytes at %p; register memory before buffers are made of it",
                         (unsigned long long)(block->high - block->low), address_of(block));
    else if (!insert(pinned, block))
        status = mu_fail_host_memory(error, "the table of pinned memory", sizeof *block);
    pthread_mutex_unlock(&pinned->lock);
    return status;
}

muster_status muster_host_register(muster_runtime *runtime, void *pointer, uint64_t bytes, muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status) return status;
    uint64_t low = (uintptr_t)pointer, high;
    if (!pointer || bytes == 0 || __builtin_add_overflow(low, bytes, &high))
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%llu bytes at %p are no memory that could be pinned",
                       (unsigned long long)bytes, pointer);
    if ((status = mu_runtime_check(runtime, error))) return status;
    mu_host_block *block = mu_alloc_zeroed(1, sizeof *block);
    if (!block) return mu_fail_host_memory(error, "the record of pinned memory", sizeof *block);
    *block = (mu_host_block){.low = low,
                             .high = high,
                             .capacity = bytes,
                             .registered = true,
                             .state = COMING,
                             .device = any_device(runtime)};
    bool again;
    status = claim(&runtime->pinned, block, &again, error);
    if (again) {
        let_runs_go(runtime);
        status = claim(&runtime->pinned, block, &again, error);
    }
    if (status) {
        mu_free(block);
        return status;
    }
    while (is_for_another(runtime,
                          status = mu_host_register(runtime->actors[block->device].device, pointer, bytes, error)))
        block->device = any_device(runtime);
    pthread_mutex_lock(&runtime->pinned.lock);
    if (status)
        forget(&runtime->pinned, block);
    else
        block->state = USED;
    pthread_mutex_unlock(&runtime->pinned.lock);
    return status;
}

/* ------------------------------------------------------------------------------------------------- free and unregister -- */

/* The application's block that begins at `pointer`, locked. */
static muster_status find_own(const mu_pinned *pinned, const void *pointer, bool registered, mu_host_block **out,
                              muster_error *error) {
    const char *call = registered ? "muster_host_register" : "muster_host_alloc";
    uint64_t address = (uintptr_t)pointer;
    mu_host_block *block = find_overlap(pinned, address, address + 1);
    if (!block || block->state == COMING || block->state == GOING)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%p is not memory from %s of this runtime", pointer, call);
    if (block->registered != registered)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%p was pinned by %s; give it back with %s", pointer,
                       registered ? "muster_host_alloc" : "muster_host_register",
                       registered ? "muster_host_free" : "muster_host_unregister");
    if (block->low != address)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%p lies in the memory that begins at %p; pass that", pointer,
                       address_of(block));
    if (block->state == KEPT || block->freed)
        return mu_fail(error, MUSTER_INVALID_STATE, "%p was freed already", pointer);
    if (block->handles)
        return mu_fail(error, MUSTER_BUSY, "%u buffers lie in the memory at %p; destroy them first", block->handles,
                       pointer);
    *out = block;
    return MUSTER_OK;
}

muster_status muster_host_free(muster_runtime *runtime, void *pointer, muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status || !pointer) return status;
    mu_pinned *pinned = &runtime->pinned;
    mu_host_block *block;
    pthread_mutex_lock(&pinned->lock);
    status = find_own(pinned, pointer, false, &block, error);
    if (!status && block->buffers)
        block->freed = true; /* runs or graphs still use it: kept by the last one */
    else if (!status)
        keep(pinned, block);
    pthread_mutex_unlock(&pinned->lock);
    if (!status) trim(runtime, 2 * (uint64_t)MU_PINNED_KEEP_BYTES);
    return status;
}

/* Finds the block and takes it. *again: it may be free once runs have been let go. */
static muster_status take_registered(mu_pinned *pinned, const void *pointer, mu_host_block **block, bool *again,
                                     muster_error *error) {
    *again = false;
    pthread_mutex_lock(&pinned->lock);
    muster_status status = find_own(pinned, pointer, true, block, error);
    if (!status && (*block)->buffers) {
        *again = true;
        status =
            mu_fail(error, MUSTER_BUSY,
                    "%u destroyed buffers in the memory at %p are still used by graphs or runs; wait for the runs, "
                    "and destroy the graphs",
                    (*block)->buffers, pointer);
    } else if (!status) {
        (*block)->state = GOING;
    }
    pthread_mutex_unlock(&pinned->lock);
    return status;
}

muster_status muster_host_unregister(muster_runtime *runtime, void *pointer, muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status || !pointer) return status;
    mu_host_block *block;
    bool again;
    status = take_registered(&runtime->pinned, pointer, &block, &again, error);
    if (again) {
        let_runs_go(runtime);
        status = take_registered(&runtime->pinned, pointer, &block, &again, error);
    }
    if (!status) return_block(runtime, block);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------ buffers -- */

static void enter_elsewhere(mu_pinned *pinned, muster_buffer *buffer) {
    buffer->place.previous = NULL;
    buffer->place.next = pinned->elsewhere;
    if (pinned->elsewhere) pinned->elsewhere->place.previous = buffer;
    pinned->elsewhere = buffer;
}

muster_status mu_pinned_enter(muster_runtime *runtime, muster_buffer *buffer, muster_error *error) {
    mu_pinned *pinned = &runtime->pinned;
    uint64_t low = (uintptr_t)buffer->host, high;
    muster_status status = MUSTER_OK;
    if (__builtin_add_overflow(low, buffer->bytes, &high))
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%llu bytes at %p reach beyond the end of memory",
                       (unsigned long long)buffer->bytes, buffer->host);
    /* Asked first, for no lock is held over a driver call. */
    mu_host_kind kind = mu_host_look(runtime->actors[any_device(runtime)].device, buffer->host, buffer->bytes);
    if (kind == MU_HOST_OF_DEVICE)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "host %p is device memory; pass host memory, or NULL",
                       buffer->host);
    pthread_mutex_lock(&pinned->lock);
    mu_host_block *block = find_overlap(pinned, low, high);
    if (block && (low < block->low || block->high < high || block->state != USED || block->freed))
        status = mu_fail(
            error, MUSTER_INVALID_ARGUMENT,
            "the %llu bytes of the buffer at %p are not all in the %s memory that it overlaps, %llu bytes at "
            "%p; register or allocate all of it",
            (unsigned long long)buffer->bytes, buffer->host, block->state == USED && !block->freed ? "pinned" : "freed",
            (unsigned long long)(block->high - block->low), address_of(block));
    else if (block)
        block->buffers++, block->handles++;
    else
        enter_elsewhere(pinned, buffer);
    buffer->place.block = block;
    buffer->host_pinned = block || kind == MU_HOST_PINNED;
    pthread_mutex_unlock(&pinned->lock);
    return status;
}

void mu_pinned_part(muster_buffer *buffer) {
    mu_pinned *pinned = &buffer->handle.runtime->pinned;
    if (!buffer->place.block) return;
    pthread_mutex_lock(&pinned->lock);
    buffer->place.block->handles--;
    pthread_mutex_unlock(&pinned->lock);
}

void mu_pinned_leave(muster_buffer *buffer) {
    mu_pinned *pinned = &buffer->handle.runtime->pinned;
    mu_host_block *block = buffer->place.block;
    pthread_mutex_lock(&pinned->lock);
    if (!block) {
        *(buffer->place.previous ? &buffer->place.previous->place.next : &pinned->elsewhere) = buffer->place.next;
        if (buffer->place.next) buffer->place.next->place.previous = buffer->place.previous;
    } else if (--block->buffers == 0 && block->freed) {
        keep(pinned, block);
    }
    pthread_mutex_unlock(&pinned->lock);
}

/* ----------------------------------------------------------------------------------------------------- init, destroy -- */

void mu_pinned_init(mu_pinned *pinned) { pthread_mutex_init(&pinned->lock, NULL); }

static mu_host_block *take_any(mu_pinned *pinned) {
    mu_host_block *found = NULL;
    pthread_mutex_lock(&pinned->lock);
    for (size_t i = 0; i < pinned->count && !found; i++)
        if (pinned->blocks[i]->state != GOING) found = pinned->blocks[i];
    if (found) {
        if (found->state == KEPT) pinned->kept_bytes -= found->capacity;
        found->state = GOING;
    }
    pthread_mutex_unlock(&pinned->lock);
    return found;
}

void mu_pinned_give_back(muster_runtime *runtime) {
    mu_host_block *block;
    while ((block = take_any(&runtime->pinned))) return_block(runtime, block);
}

void mu_pinned_destroy(mu_pinned *pinned) {
    mu_free(pinned->blocks);
    pthread_mutex_destroy(&pinned->lock);
}
