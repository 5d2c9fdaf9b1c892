/* Host access to a buffer is an entry in the order of runs like a run. It is ready when all it follows is enqueued; its caller
 * then plans what has to come from where (scheduler/memory/fetch.h); it is granted when that is there, and everything it follows is
 * complete. It passes and leaves at the release. A caller whose time runs out leaves it to end by itself. */
#include "scheduler/memory/acquire.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "scheduler/memory/fetch.h"
#include "scheduler/runtime/runtime.h"
#include "scheduler/runtime/wait.h"

typedef enum acquisition_state { QUEUED, READY, FETCHING, GRANTED, ABANDONED } acquisition_state;

struct mu_acquisition {
    mu_order_entry order;
    muster_buffer *buffer;  /* a reference is held */
    mu_fetch *fetch;        /* of its one range */
    atomic_uint references; /* the caller's, and the fetch's; acq_rel: the last one frees */
    pthread_mutex_t lock;   /* the state */
    pthread_cond_t changed;
    acquisition_state state;
    struct mu_acquisition *next; /* of the buffer, while granted; under its host_lock */
};

static void *pointer_of(const mu_acquisition *a) { return (char *)a->buffer->host + a->fetch->ranges[0].area.low; }

static void acquisition_release(mu_acquisition *a) {
    if (atomic_fetch_sub_explicit(&a->references, 1, memory_order_acq_rel) != 1) return;
    mu_fetch_destroy(a->fetch);
    mu_buffer_release(a->buffer);
    mu_order_entry_destroy(&a->order);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    mu_free(a);
}

/* Lets what follows go. */
static void end(mu_acquisition *a) {
    mu_fetch_let_go(a->fetch);
    mu_order *order = &a->buffer->handle.runtime->order;
    mu_order_pass(order, &a->order);
    mu_order_leave(order, &a->order);
}

/* The state it is in afterwards: an abandoned one stays that, and ends by whoever sees it. */
static acquisition_state move_on(mu_acquisition *a, acquisition_state state) {
    pthread_mutex_lock(&a->lock);
    if (a->state != ABANDONED) a->state = state;
    state = a->state;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return state;
}

static void fetched(mu_fetch *fetch) {
    mu_acquisition *a = fetch->user;
    if (move_on(a, GRANTED) == ABANDONED) end(a);
    acquisition_release(a);
}

static void start(mu_acquisition *a) {
    if (!mu_fetch_start(a->fetch)) fetched(a->fetch);
}

static void acquisition_ready(mu_order_entry *entry) {
    mu_acquisition *a = (mu_acquisition *)((char *)entry - offsetof(mu_acquisition, order));
    /* Nobody plans any more; it still ends only after what it follows is complete. */
    if (move_on(a, READY) == ABANDONED) start(a);
}

/* ------------------------------------------------------------------------------------------------------ the caller -- */

static muster_status make_acquisition(muster_buffer *buffer, uint64_t low, uint64_t high, muster_access access,
                                      mu_acquisition **out, muster_error *error) {
    muster_runtime *runtime = buffer->handle.runtime;
    mu_acquisition *a = mu_alloc_zeroed(1, sizeof *a);
    if (!a) return mu_fail_host_memory(error, "a host access", sizeof *a);
    muster_status status = mu_fetch_create(runtime, 1, &a->fetch, error);
    if (!status) status = mu_order_entry_init(&runtime->order, &a->order, 1, error);
    if (status) {
        mu_fetch_destroy(a->fetch);
        mu_free(a);
        return status;
    }
    a->order.uses[0].state = &buffer->order;
    a->order.uses[0].writes = access & MUSTER_WRITE;
    a->order.ready = acquisition_ready;
    a->buffer = buffer;
    /* An empty range is lent like others and moves nothing. */
    a->fetch->ranges[0] = (mu_fetch_range){buffer, mu_area_of(low, high), low < high ? access : 0};
    a->fetch->after = a->order.gate;
    a->fetch->done = fetched;
    a->fetch->user = a;
    atomic_init(&a->references, 2);
    pthread_mutex_init(&a->lock, NULL);
    mu_cond_init(&a->changed);
    mu_handle_retain(&buffer->handle);
    *out = a;
    return MUSTER_OK;
}

/* Waits while the state is `state`; TIMEOUT abandons the acquisition. */
static muster_status wait_while(mu_acquisition *a, acquisition_state state, uint64_t deadline, uint64_t timeout_ns,
                                muster_error *error) {
    muster_status status = MUSTER_OK;
    pthread_mutex_lock(&a->lock);
    while (a->state == state && mu_cond_wait_until(&a->changed, &a->lock, deadline)) {
    }
    if (a->state == state) {
        a->state = ABANDONED;
        status = mu_fail(
            error, MUSTER_TIMEOUT,
            state == QUEUED
                ? "the buffer was not free within %.3f s: runs or acquisitions before this one still use it; "
                  "wait for them or give it more time"
                : "the content was not on the host within %.3f s: it is on its way from a device, or runs before "
                  "have not ended; ask again or give it more time",
            (double)timeout_ns * 1e-9);
    }
    pthread_mutex_unlock(&a->lock);
    return status;
}

static muster_status wait_for_grant(mu_acquisition *a, uint64_t deadline, uint64_t timeout_ns, muster_error *error) {
    muster_status status = wait_while(a, QUEUED, deadline, timeout_ns, error);
    if (status) return status;
    mu_fetch_plan(a->fetch);
    move_on(a, FETCHING);
    start(a); /* also when the plan failed: what comes next must come after what this follows */
    status = wait_while(a, FETCHING, deadline, timeout_ns, error);
    if (status) return status;
    if (a->fetch->failure.status) return mu_error_copy(error, &a->fetch->failure);
    status = mu_fetch_settle(a->fetch, error);
    if (!status) status = mu_fetch_wrote(a->fetch, error);
    /* The host has its part of the buffer, and nobody writes that until the release: what devices alone have lies elsewhere, and
     * may be written back however long this is held. */
    if (!status) mu_fetch_let_go(a->fetch);
    return status;
}

muster_status muster_buffer_acquire(muster_buffer *buffer, uint64_t offset, uint64_t bytes, muster_access access,
                                    uint64_t timeout_ns, void **pointer, muster_error *error) {
    muster_status status = mu_handle_check(buffer, MU_TAG_BUFFER, NULL, "buffer", error);
    if (status || (status = mu_graph_check_range(buffer, offset, bytes, "buffer", error))) return status;
    if (!pointer) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "pointer is NULL");
    if (access < MUSTER_READ || access > MUSTER_READ_WRITE)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%d is not an access", (int)access);
    if (bytes == 0) bytes = buffer->bytes - offset;
    if ((status = mu_runtime_check(buffer->handle.runtime, error)) || (status = mu_buffer_make_host(buffer, error)))
        return status;
    mu_acquisition *a;
    status = make_acquisition(buffer, offset, offset + bytes, access, &a, error);
    if (status) return status;
    uint64_t deadline = mu_deadline_ns(timeout_ns);
    mu_order *order = &buffer->handle.runtime->order;
    /* With no time to wait it must not leave an entry behind either. */
    status = timeout_ns ? mu_order_enter(order, &a->order, error) : mu_order_try_enter(order, &a->order, error);
    if (status) {
        acquisition_release(a); /* the fetch's share: it was never started */
        acquisition_release(a);
        if (status != MUSTER_BUSY) return status;
        return mu_fail(error, MUSTER_TIMEOUT, "the buffer is not free now: earlier runs or acquisitions use it; wait");
    }
    status = wait_for_grant(a, deadline, timeout_ns, error);
    if (status == MUSTER_TIMEOUT) {
        acquisition_release(a);
        return status;
    }
    if (status) {
        end(a);
        acquisition_release(a);
        return status;
    }
    *pointer = pointer_of(a);
    pthread_mutex_lock(&buffer->host_lock);
    a->next = buffer->acquisitions;
    buffer->acquisitions = a;
    pthread_mutex_unlock(&buffer->host_lock);
    /* Not ours any more: another reader that releases the same address may take this one. */
    return MUSTER_OK;
}

muster_status muster_buffer_release(muster_buffer *buffer, void *pointer, muster_error *error) {
    muster_status status = mu_handle_check(buffer, MU_TAG_BUFFER, NULL, "buffer", error);
    if (status) return status;
    pthread_mutex_lock(&buffer->host_lock);
    mu_acquisition **link = &buffer->acquisitions;
    while (*link && pointer_of(*link) != pointer) link = &(*link)->next;
    mu_acquisition *a = *link;
    if (a) *link = a->next;
    pthread_mutex_unlock(&buffer->host_lock);
    if (!a)
        return mu_fail(error, MUSTER_INVALID_STATE,
                       "%p is not acquired from this buffer; release what acquire returned", pointer);
    end(a);
    acquisition_release(a);
    return MUSTER_OK;
}

void mu_acquisitions_end(muster_buffer *buffer) {
    mu_handle_retain(&buffer->handle); /* the last of them may be all that keeps it */
    while (buffer->acquisitions) muster_buffer_release(buffer, pointer_of(buffer->acquisitions), NULL);
    mu_buffer_release(buffer);
}
