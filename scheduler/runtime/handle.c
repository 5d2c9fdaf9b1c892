#include "scheduler/runtime/handle.h"

#include "base/error.h"
#include "scheduler/runtime/runtime.h"

void mu_handle_init(mu_handle *handle, mu_tag tag, muster_runtime *runtime) {
    handle->tag = tag;
    atomic_init(&handle->references, 1);
    handle->released = false;
    handle->runtime = runtime;
    pthread_mutex_lock(&runtime->handle_lock);
    handle->previous = NULL;
    handle->next = runtime->handles;
    if (runtime->handles) runtime->handles->previous = handle;
    runtime->handles = handle;
    pthread_mutex_unlock(&runtime->handle_lock);
}

void mu_handle_retain(mu_handle *handle) {
    /* Whoever retains holds a reference already, so nothing needs to be ordered. */
    atomic_fetch_add_explicit(&handle->references, 1, memory_order_relaxed);
}

bool mu_handle_try_retain(mu_handle *handle) {
    unsigned count = atomic_load_explicit(&handle->references, memory_order_relaxed);
    while (count != 0)
        if (atomic_compare_exchange_weak_explicit(&handle->references, &count, count + 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    return false;
}

bool mu_handle_release(mu_handle *handle) {
    /* Release for this holder's past, acquire for the last one's view of all others'. */
    return atomic_fetch_sub_explicit(&handle->references, 1, memory_order_acq_rel) == 1;
}

void mu_handle_finish(mu_handle *handle) {
    muster_runtime *runtime = handle->runtime;
    pthread_mutex_lock(&runtime->handle_lock);
    if (handle->previous)
        handle->previous->next = handle->next;
    else
        runtime->handles = handle->next;
    if (handle->next) handle->next->previous = handle->previous;
    pthread_mutex_unlock(&runtime->handle_lock);
    handle->tag = MU_TAG_DEAD;
}

static const char *tag_name(mu_tag tag) {
    switch (tag) {
        case MU_TAG_DEAD: return "a destroyed handle";
        case MU_TAG_RUNTIME: return "a runtime";
        case MU_TAG_PROGRAM: return "a program";
        case MU_TAG_KERNEL: return "a kernel";
        case MU_TAG_BUFFER: return "a buffer";
        case MU_TAG_GRAPH: return "a graph";
        case MU_TAG_RUN: return "a run";
    }
    return "not a handle of Muster, or was destroyed";
}

muster_status mu_handle_check(const void *object, mu_tag tag, const muster_runtime *runtime, const char *name,
                              muster_error *error) {
    if (!object) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%s is NULL; pass %s", name, tag_name(tag));
    const mu_handle *handle = object;
    if (handle->tag != tag)
        return mu_fail(error, MUSTER_INVALID_HANDLE, "%s is %s; pass %s", name, tag_name(handle->tag), tag_name(tag));
    if (runtime && handle->runtime != runtime)
        return mu_fail(error, MUSTER_WRONG_RUNTIME,
                       "%s belongs to another runtime; use objects made from the same runtime together", name);
    return MUSTER_OK;
}
