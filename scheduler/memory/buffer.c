#include "scheduler/memory/buffer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/memory/acquire.h"
#include "scheduler/memory/evict.h"
#include "scheduler/runtime/runtime.h"

/* What a device does when the buffer is gone. */
typedef struct mu_buffer_drop {
    mu_call call;
    muster_buffer *buffer;
} mu_buffer_drop;

static void free_buffer(muster_buffer *buffer) {
    mu_coherence_destroy(&buffer->coherence);
    pthread_cond_destroy(&buffer->host_changed);
    pthread_mutex_destroy(&buffer->host_lock);
    if (buffer->owns_host) {
        mu_free_aligned(buffer->host);
        atomic_fetch_sub_explicit(&buffer->handle.runtime->host_bytes, buffer->bytes, memory_order_relaxed);
    }
    mu_free(buffer->drops);
    mu_free(buffer);
}

static void drop_on_device(mu_actor *actor, mu_call *call) {
    muster_buffer *buffer = ((mu_buffer_drop *)call)->buffer;
    mu_instance *instance = buffer->coherence.instances[actor->index];
    while (instance) {
        mu_instance *next = instance->next;
        mu_instance_retire(actor, instance);
        instance = next;
    }
    /* acq_rel: the last device frees what the others are done with. */
    if (atomic_fetch_sub_explicit(&buffer->devices_left, 1, memory_order_acq_rel) != 1) return;
    mu_handle_finish(&buffer->handle);
    free_buffer(buffer);
}

static muster_status create(muster_runtime *runtime, uint64_t bytes, void *host, muster_buffer **out,
                            muster_error *error) {
    muster_buffer *buffer = mu_alloc_zeroed(1, sizeof *buffer);
    mu_buffer_drop *drops = mu_alloc_zeroed(runtime->device_count, sizeof *drops);
    muster_status status = MUSTER_OK;
    if (!buffer || !drops)
        status = mu_fail_host_memory(error, "a buffer", sizeof *buffer + runtime->device_count * sizeof *drops);
    else
        status = mu_coherence_init(&buffer->coherence, bytes, runtime->device_count, host != NULL, error);
    if (status) {
        mu_free(drops);
        mu_free(buffer);
        return status;
    }
    for (uint32_t d = 0; d < runtime->device_count; d++)
        drops[d] = (mu_buffer_drop){.call = {.run = drop_on_device}, .buffer = buffer};
    buffer->drops = drops;
    buffer->bytes = bytes;
    buffer->host = host;
    if (host && (status = mu_pinned_enter(runtime, buffer, error))) {
        mu_coherence_destroy(&buffer->coherence);
        mu_free(drops);
        mu_free(buffer);
        return status;
    }
    pthread_mutex_init(&buffer->host_lock, NULL);
    pthread_cond_init(&buffer->host_changed, NULL);
    mu_handle_init(&buffer->handle, MU_TAG_BUFFER, runtime);
    *out = buffer;
    return MUSTER_OK;
}

muster_status muster_buffer_create(muster_runtime *runtime, uint64_t bytes, void *host, muster_buffer **buffer,
                                   muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status) return status;
    if (!buffer) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "buffer is NULL; pass where to store the handle");
    if (bytes == 0) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "a buffer of 0 bytes; give it at least one");
    if (bytes > UINT64_MAX / 2)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "a buffer of %llu bytes; the limit is 2^63 - 1",
                       (unsigned long long)bytes);
    return create(runtime, bytes, host, buffer, error);
}

muster_status mu_buffer_create_internal(muster_runtime *runtime, uint64_t bytes, muster_buffer **buffer,
                                        muster_error *error) {
    muster_status status = create(runtime, bytes, NULL, buffer, error);
    if (!status) (*buffer)->handle.released = true; /* the application has no handle of it */
    return status;
}

void mu_buffer_release(muster_buffer *buffer) {
    if (!mu_handle_release(&buffer->handle)) return;
    muster_runtime *runtime = buffer->handle.runtime;
    if (buffer->host && !buffer->owns_host) mu_pinned_leave(buffer);
    uint32_t holders[MU_MAX_DEVICES], count = 0;
    /* A worker may be evicting: once the lock is ours it has done with the buffer. */
    mu_coherence_lock(&buffer->coherence);
    for (uint32_t d = 0; d < runtime->device_count; d++)
        if (buffer->coherence.instances[d]) holders[count++] = d;
    mu_coherence_unlock(&buffer->coherence);
    if (count == 0) {
        mu_handle_finish(&buffer->handle);
        free_buffer(buffer);
        return;
    }
    atomic_store_explicit(&buffer->devices_left, count, memory_order_relaxed); /* ordered by the posts */
    for (uint32_t i = 0; i < count; i++)
        mu_actor_post_call(&runtime->actors[holders[i]], &buffer->drops[holders[i]].call);
}

/* Counts the memory against the limit before it is allocated; never above it, however many threads ask. */
static muster_status make_host(muster_buffer *buffer, muster_error *error) {
    muster_runtime *runtime = buffer->handle.runtime;
    uint64_t limit = runtime->config.host_budget_bytes;
    uint64_t taken = atomic_fetch_add_explicit(&runtime->host_bytes, buffer->bytes, memory_order_relaxed);
    if (limit && taken + buffer->bytes > limit) {
        atomic_fetch_sub_explicit(&runtime->host_bytes, buffer->bytes, memory_order_relaxed);
        return mu_fail(
            error, MUSTER_OUT_OF_HOST_MEMORY,
            "a buffer's host copy takes %llu bytes; of the %llu of host_budget_bytes %llu are taken: raise it, destroy "
            "buffers, or make the buffer with host memory of your own",
            (unsigned long long)buffer->bytes, (unsigned long long)limit, (unsigned long long)taken);
    }
    buffer->host = mu_alloc_aligned_zeroed(4096, buffer->bytes);
    buffer->owns_host = buffer->host != NULL;
    if (buffer->host) return MUSTER_OK;
    atomic_fetch_sub_explicit(&runtime->host_bytes, buffer->bytes, memory_order_relaxed);
    return mu_fail_host_memory(error, "a buffer's host copy", buffer->bytes);
}

muster_status mu_buffer_make_host(muster_buffer *buffer, muster_error *error) {
    muster_status status = MUSTER_OK;
    pthread_mutex_lock(&buffer->host_lock);
    if (!buffer->host) status = make_host(buffer, error);
    pthread_mutex_unlock(&buffer->host_lock);
    return status;
}

/* ------------------------------------------------------------------------------------------- the host memory's users -- */

bool mu_buffer_begin_write_back(muster_buffer *buffer, bool kept) {
    pthread_mutex_lock(&buffer->host_lock);
    /* One at a time: a slow copy of old content must not end after a newer one from another device. */
    bool allowed = buffer->host_users == 0 && buffer->write_backs == 0 && (kept || !buffer->withdrawn);
    if (allowed) buffer->write_backs++;
    pthread_mutex_unlock(&buffer->host_lock);
    return allowed;
}

void mu_buffer_end_write_back(muster_buffer *buffer) {
    pthread_mutex_lock(&buffer->host_lock);
    if (--buffer->write_backs == 0) pthread_cond_broadcast(&buffer->host_changed);
    pthread_mutex_unlock(&buffer->host_lock);
}

bool mu_buffer_is_withdrawn(muster_buffer *buffer) {
    pthread_mutex_lock(&buffer->host_lock);
    bool withdrawn = buffer->withdrawn;
    pthread_mutex_unlock(&buffer->host_lock);
    return withdrawn;
}

void mu_buffer_begin_host_use(muster_buffer *buffer) {
    pthread_mutex_lock(&buffer->host_lock);
    buffer->host_users++;
    pthread_mutex_unlock(&buffer->host_lock);
}

bool mu_buffer_is_writing_back(muster_buffer *buffer) {
    pthread_mutex_lock(&buffer->host_lock);
    bool writing = buffer->write_backs != 0;
    pthread_mutex_unlock(&buffer->host_lock);
    return writing;
}

void mu_buffer_end_host_use(muster_buffer *buffer) {
    pthread_mutex_lock(&buffer->host_lock);
    buffer->host_users--;
    pthread_mutex_unlock(&buffer->host_lock);
}

/* The application may free its host memory once the runs that use it have ended: write-backs that have begun end first, and others begin
 * only for such a run. Our own stays a place to evict to, for graphs and runs may hold the buffer for long. */
void muster_buffer_destroy(muster_buffer *buffer) {
    if (!buffer || buffer->handle.tag != MU_TAG_BUFFER) return;
    pthread_mutex_lock(&buffer->host_lock);
    bool lent = buffer->host && !buffer->owns_host;
    if (lent) {
        buffer->withdrawn = true;
        while (buffer->write_backs) pthread_cond_wait(&buffer->host_changed, &buffer->host_lock);
    }
    pthread_mutex_unlock(&buffer->host_lock);
    if (lent) mu_pinned_part(buffer);
    buffer->handle.released = true;
    mu_buffer_release(buffer);
}

uint64_t muster_buffer_bytes(const muster_buffer *buffer) { return buffer ? buffer->bytes : 0; }
