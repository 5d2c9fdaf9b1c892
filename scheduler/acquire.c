/* Host access to a buffer is an entry in the order of runs like a run. It is ready when all it follows is enqueued; its caller
 * then plans which ranges each device copies to the host; it is granted when those copies, and everything it follows, are
 * complete. It passes and leaves at the release. A caller whose time runs out leaves it to end by itself. */
#include "scheduler/acquire.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "scheduler/loss.h"
#include "scheduler/runtime.h"
#include "scheduler/wait.h"

/* A range that is fetched from one device. */
typedef struct fetch_piece {
    struct fetch_piece *next;
    uint64_t low, high, stamp;
    mu_instance *instance; /* pinned */
} fetch_piece;

/* What one device does for an acquisition. */
typedef struct fetch_call {
    mu_call call;
    struct mu_acquisition *acquisition;
    fetch_piece *pieces;
    mu_event event; /* behind the copies, once they are enqueued */
    bool copied;
} fetch_call;

typedef enum acquisition_state { QUEUED, READY, FETCHING, GRANTED, FAILED, ABANDONED } acquisition_state;

struct mu_acquisition {
    mu_order_entry order;
    muster_buffer *buffer; /* a reference is held */
    uint64_t low, high;
    muster_access access;
    bool uses_host;         /* the buffer was told */
    atomic_uint references; /* the caller's, and the devices' while they work; acq_rel: the last one frees */
    pthread_mutex_t lock;   /* everything below */
    pthread_cond_t changed;
    acquisition_state state;
    uint32_t devices_left;
    muster_error failure;        /* status OK: none */
    struct mu_acquisition *next; /* of the buffer, while granted; under its host_lock */
    fetch_call calls[];
};

static void *pointer_of(const mu_acquisition *a) { return (char *)a->buffer->host + a->low; }

static void acquisition_release(mu_acquisition *a) {
    if (atomic_fetch_sub_explicit(&a->references, 1, memory_order_acq_rel) != 1) return;
    mu_buffer_release(a->buffer);
    mu_order_entry_destroy(&a->order);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    mu_free(a);
}

/* Lets what follows go. */
static void end(mu_acquisition *a) {
    if (a->uses_host) mu_buffer_end_host_use(a->buffer);
    mu_order *order = &a->buffer->handle.runtime->order;
    mu_order_pass(order, &a->order);
    mu_order_leave(order, &a->order);
}

/* ------------------------------------------------------------------------------------------------- on the devices -- */

static void fail(mu_acquisition *a, const muster_error *error) {
    pthread_mutex_lock(&a->lock);
    if (a->failure.status == MUSTER_OK) a->failure = *error;
    pthread_mutex_unlock(&a->lock);
}

/* The last device's part is done: grant, or end what nobody waits for any more. */
static void device_finished(mu_acquisition *a) {
    bool abandoned = false;
    pthread_mutex_lock(&a->lock);
    if (--a->devices_left == 0) {
        abandoned = a->state == ABANDONED;
        if (!abandoned) a->state = a->failure.status ? FAILED : GRANTED;
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->lock);
        if (abandoned) end(a);
        acquisition_release(a);
        return;
    }
    pthread_mutex_unlock(&a->lock);
}

/* What arrived is valid on the host from now on, whether somebody still waits for it or not: later attempts find it. */
static void drop_pieces(fetch_call *c, bool arrived) {
    mu_coherence *table = &c->acquisition->buffer->coherence;
    while (c->pieces) {
        fetch_piece *piece = c->pieces;
        c->pieces = piece->next;
        if (arrived) {
            mu_coherence_lock(table);
            mu_coherence_copied(table, piece->low, piece->high, MUSTER_ANY_DEVICE, 0); /* false: just not remembered */
            mu_coherence_unlock(table);
        }
        atomic_fetch_sub_explicit(&piece->instance->pins, 1, memory_order_release);
        mu_free(piece);
    }
}

static muster_status start_copies(mu_actor *actor, fetch_call *c, muster_error *error) {
    muster_status status = MUSTER_OK;
    for (fetch_piece *piece = c->pieces; piece && !status; piece = piece->next) {
        if (mu_timeline_wait(&actor->timeline, piece->stamp, actor->device, MU_LANE_DOWNLOAD, error) == MU_EPOCH_FAILED)
            return error->status;
        status = mu_copy_to_host(actor->device, MU_LANE_DOWNLOAD, (char *)c->acquisition->buffer->host + piece->low,
                                 piece->instance->address + (piece->low - piece->instance->low),
                                 piece->high - piece->low, error);
    }
    if (!status && c->pieces) status = mu_event_create(actor->device, &c->event, error);
    if (!status && c->pieces) status = mu_event_record(actor->device, MU_LANE_DOWNLOAD, c->event, error);
    return status;
}

/* The content of a piece may be in an epoch that is still open, which is closed before this runs again; and an eviction may be
 * writing to the host memory. */
static bool pieces_ready(const mu_actor *actor, const fetch_call *c) {
    for (const fetch_piece *piece = c->pieces; piece; piece = piece->next)
        if (mu_timeline_closed(&actor->timeline) < piece->stamp) return false;
    return !mu_buffer_is_writing_back(c->acquisition->buffer);
}

static void fetch(mu_actor *actor, mu_call *call) {
    fetch_call *c = (fetch_call *)call;
    mu_acquisition *a = c->acquisition;
    muster_error error;
    muster_status status = actor->lost ? mu_error_copy(&error, &actor->loss) : MUSTER_OK;
    bool done = false;
    if (!status && !c->copied) {
        if (!pieces_ready(actor, c)) {
            mu_actor_defer(actor, call);
            return;
        }
        status = start_copies(actor, c, &error);
        c->copied = true;
    }
    if (!status && c->event) status = mu_event_poll(actor->device, c->event, &done, &error);
    if (!status && ((c->event && !done) || mu_timeline_done(&actor->timeline) < a->order.gate[actor->index])) {
        mu_actor_defer(actor, call);
        return;
    }
    if (c->event && !actor->lost) mu_event_destroy(actor->device, c->event);
    if (status) {
        fail(a, &error);
        if (muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST) mu_actor_lose(actor, &error);
    }
    drop_pieces(c, !status);
    device_finished(a);
}

static void post_calls(mu_acquisition *a) {
    muster_runtime *runtime = a->buffer->handle.runtime;
    uint32_t devices = runtime->device_count; /* read first: the last call may end the acquisition */
    for (uint32_t d = 0; d < devices; d++) mu_actor_post_call(&runtime->actors[d], &a->calls[d].call);
}

static void acquisition_ready(mu_order_entry *entry) {
    mu_acquisition *a = (mu_acquisition *)((char *)entry - offsetof(mu_acquisition, order));
    pthread_mutex_lock(&a->lock);
    bool abandoned = a->state == ABANDONED;
    if (!abandoned) a->state = READY;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    /* Nobody plans any more; it still ends only after what it follows is complete. */
    if (abandoned) post_calls(a);
}

/* ------------------------------------------------------------------------------------------------------ the caller -- */

/* Adds the pieces of segment `index` that have to come from a device, pinned there. */
static muster_status plan_segment(mu_acquisition *a, const mu_coherence *table, uint32_t index, uint64_t low,
                                  uint64_t high, muster_error *error) {
    int source = __builtin_ctzll(table->segments[index].valid);
    while (low < high) {
        mu_instance *held = table->instances[source];
        while (held && !(held->low <= low && low < held->high)) held = held->next;
        if (!held)
            return mu_fail(error, MUSTER_INTERNAL, "device %d holds no memory for byte %llu", source,
                           (unsigned long long)low);
        fetch_piece *piece = mu_alloc(sizeof *piece);
        if (!piece) return mu_fail_host_memory(error, "a read-back", sizeof *piece);
        uint64_t end_at = held->high < high ? held->high : high;
        *piece = (fetch_piece){a->calls[source].pieces, low, end_at, mu_coherence_stamp(table, index, source), held};
        atomic_fetch_add_explicit(&held->pins, 1, memory_order_relaxed);
        a->calls[source].pieces = piece;
        low = end_at;
    }
    return MUSTER_OK;
}

/* Decides for every byte, once, where it comes from. Nothing writes the range meanwhile, but other readers may add copies:
 * what is zero here stays zero and is written here, whatever they make of it. */
static muster_status plan(mu_acquisition *a, muster_error *error) {
    mu_coherence *table = &a->buffer->coherence;
    muster_status status = MUSTER_OK;
    for (uint64_t at = a->low; at < a->high && !status;) {
        mu_coherence_lock(table);
        uint32_t index = mu_coherence_find(table, at);
        const mu_segment segment = table->segments[index];
        uint64_t high = segment.high < a->high ? segment.high : a->high;
        if (segment.undefined)
            status =
                mu_fail(error, MUSTER_DATA_UNDEFINED,
                        "bytes %llu to %llu of the buffer are undefined: the job that last wrote them failed; see its "
                        "run",
                        (unsigned long long)segment.low, (unsigned long long)segment.high);
        else if (!segment.zero && !(segment.valid & MU_LOCATION_HOST))
            status = plan_segment(a, table, index, at, high, error);
        mu_coherence_unlock(table);
        if (segment.zero) memset((char *)a->buffer->host + at, 0, high - at);
        at = high;
    }
    return status;
}

/* The grant's effect on the table: all of the range is valid on the host now; what will be written, nowhere else. */
static muster_status settle(mu_acquisition *a, muster_error *error) {
    mu_coherence *table = &a->buffer->coherence;
    mu_coherence_lock(table);
    bool noted = !(a->access & MUSTER_READ) || mu_coherence_copied(table, a->low, a->high, MUSTER_ANY_DEVICE, 0);
    if (noted && (a->access & MUSTER_WRITE)) noted = mu_coherence_written(table, a->low, a->high, MUSTER_ANY_DEVICE, 0);
    mu_coherence_unlock(table);
    return noted ? MUSTER_OK : mu_fail_host_memory(error, "the range table of a buffer", sizeof(mu_segment));
}

static muster_status make_acquisition(muster_buffer *buffer, uint64_t low, uint64_t high, muster_access access,
                                      mu_acquisition **out, muster_error *error) {
    muster_runtime *runtime = buffer->handle.runtime;
    size_t bytes = sizeof(mu_acquisition) + runtime->device_count * sizeof(fetch_call);
    mu_acquisition *a = mu_alloc_zeroed(1, bytes);
    if (!a) return mu_fail_host_memory(error, "a host access", bytes);
    muster_status status = mu_order_entry_init(&runtime->order, &a->order, 1, error);
    if (status) {
        mu_free(a);
        return status;
    }
    a->order.uses[0].state = &buffer->order;
    a->order.uses[0].writes = access & MUSTER_WRITE;
    a->order.ready = acquisition_ready;
    a->buffer = buffer;
    a->low = low;
    a->high = high;
    a->access = access;
    a->devices_left = runtime->device_count;
    for (uint32_t d = 0; d < runtime->device_count; d++)
        a->calls[d] = (fetch_call){.call = {.run = fetch}, .acquisition = a};
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
        status = mu_fail(error, MUSTER_TIMEOUT,
                         "the buffer was not free within %.3f s: runs or acquisitions before this one still use it; "
                         "wait for them or give it more time",
                         (double)timeout_ns * 1e-9);
    }
    pthread_mutex_unlock(&a->lock);
    return status;
}

/* Whether nothing is left for the devices to do: no copy to make, and all it follows complete. */
static bool is_free(const mu_acquisition *a) {
    const muster_runtime *runtime = a->buffer->handle.runtime;
    for (uint32_t d = 0; d < runtime->device_count; d++)
        if (a->calls[d].pieces || mu_timeline_done(&runtime->actors[d].timeline) < a->order.gate[d]) return false;
    return !mu_buffer_is_writing_back(a->buffer);
}

static muster_status wait_for_grant(mu_acquisition *a, uint64_t deadline, uint64_t timeout_ns, muster_error *error) {
    muster_status status = wait_while(a, QUEUED, deadline, timeout_ns, error);
    if (status) return status;
    muster_error problem;
    mu_buffer_begin_host_use(a->buffer);
    a->uses_host = true;
    if ((a->access & MUSTER_READ) && plan(a, &problem)) {
        fail(a, &problem);
    } else if (is_free(a)) {
        a->state = GRANTED;
        acquisition_release(a); /* the devices' share */
        return MUSTER_OK;
    }
    pthread_mutex_lock(&a->lock);
    a->state = FETCHING;
    pthread_mutex_unlock(&a->lock);
    post_calls(a);
    status = wait_while(a, FETCHING, deadline, timeout_ns, error);
    if (!status && a->state == FAILED) status = mu_error_copy(error, &a->failure);
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
    if (bytes == 0) return mu_fail(error, MUSTER_OUT_OF_RANGE, "no bytes at the end of the buffer");
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
        acquisition_release(a); /* the devices' share: they were never asked */
        acquisition_release(a);
        if (status != MUSTER_BUSY) return status;
        return mu_fail(error, MUSTER_TIMEOUT, "the buffer is not free now: earlier runs or acquisitions use it; wait");
    }
    status = wait_for_grant(a, deadline, timeout_ns, error);
    if (status == MUSTER_TIMEOUT) {
        acquisition_release(a);
        return status;
    }
    if (!status) status = settle(a, error);
    if (status) {
        end(a);
        acquisition_release(a);
        return status;
    }
    pthread_mutex_lock(&buffer->host_lock);
    a->next = buffer->acquisitions;
    buffer->acquisitions = a;
    pthread_mutex_unlock(&buffer->host_lock);
    *pointer = pointer_of(a);
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
    while (buffer->acquisitions) muster_buffer_release(buffer, pointer_of(buffer->acquisitions), NULL);
}
