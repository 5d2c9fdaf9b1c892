#include "scheduler/buffer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/acquire.h"
#include "scheduler/runtime.h"

static muster_status create(muster_runtime *runtime, uint64_t bytes, void *host, muster_buffer **out,
                            muster_error *error) {
    muster_buffer *buffer = mu_alloc_zeroed(1, sizeof *buffer);
    if (!buffer) return mu_fail_host_memory(error, "a buffer", sizeof *buffer);
    muster_status status =
        mu_coherence_init(&buffer->coherence, bytes, runtime->device_count, host != NULL, error);
    if (status) {
        mu_free(buffer);
        return status;
    }
    buffer->bytes = bytes;
    buffer->host = host;
    pthread_mutex_init(&buffer->host_lock, NULL);
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
    mu_handle_finish(&buffer->handle);
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        mu_instance *instance = buffer->coherence.instances[d];
        while (instance) {
            mu_instance *next = instance->next;
            mu_actor_post_free(&runtime->actors[d], instance);
            instance = next;
        }
    }
    mu_coherence_destroy(&buffer->coherence);
    pthread_mutex_destroy(&buffer->host_lock);
    if (buffer->owns_host) mu_free_aligned(buffer->host);
    mu_free(buffer);
}

void muster_buffer_destroy(muster_buffer *buffer) {
    if (!buffer) return;
    buffer->handle.released = true;
    mu_buffer_release(buffer);
}

uint64_t muster_buffer_bytes(const muster_buffer *buffer) { return buffer ? buffer->bytes : 0; }
