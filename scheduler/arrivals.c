#include "scheduler/arrivals.h"

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/buffer.h"
#include "scheduler/enqueue.h"
#include "scheduler/loss.h"
#include "scheduler/runtime.h"

muster_status mu_incoming_copy(mu_actor *actor, const muster_buffer *buffer, const mu_instance *to,
                               const mu_incoming *from, muster_error *error) {
    mu_address address = to->address + (from->low - to->low);
    uint64_t bytes = from->high - from->low;
    if (from->zero) return mu_fill(actor->device, MU_LANE_UPLOAD, address, 0, 1, bytes, error);
    if (from->source == MUSTER_ANY_DEVICE)
        return mu_copy_to_device(actor->device, MU_LANE_UPLOAD, address, (char *)buffer->host + from->low, bytes,
                                 error);
    if (!from->instance)
        return mu_fail(error, MUSTER_INTERNAL, "device %d holds no memory for bytes %llu to %llu", from->source,
                       (unsigned long long)from->low, (unsigned long long)from->high);
    mu_actor *owner = &actor->runtime->actors[from->source];
    if (mu_timeline_wait(&owner->timeline, from->stamp, actor->device, MU_LANE_UPLOAD, error) == MU_EPOCH_FAILED)
        return error ? error->status : MUSTER_DRIVER_ERROR;
    return mu_copy_from_peer(actor->device, MU_LANE_UPLOAD, address, owner->device, from->address, bytes, error);
}

static void give_back(mu_actor *actor, mu_arrival *arrival) {
    arrival->next = actor->spare_arrivals;
    actor->spare_arrivals = arrival;
}

static mu_arrival *take(mu_actor *actor, muster_error *error) {
    mu_arrival *arrival = actor->spare_arrivals;
    if (arrival) {
        actor->spare_arrivals = arrival->next;
        return arrival;
    }
    arrival = mu_alloc_zeroed(1, sizeof *arrival);
    if (!arrival) {
        mu_fail_host_memory(error, "an upload", sizeof *arrival);
        return NULL;
    }
    if (mu_event_create(actor->device, &arrival->event, error)) {
        mu_free(arrival);
        return NULL;
    }
    return arrival;
}

mu_arrival *mu_arrival_start(mu_actor *actor, muster_buffer *buffer, mu_instance *to, const mu_incoming *from,
                             muster_error *error) {
    mu_arrival *arrival = take(actor, error);
    if (!arrival) return NULL;
    muster_status status = mu_incoming_copy(actor, buffer, to, from, error);
    if (!status) status = mu_event_record(actor->device, MU_LANE_UPLOAD, arrival->event, error);
    if (status) {
        /* A copy without an event may still be under way in memory that counts as free for others. */
        if (muster_status_recovery(status) != MUSTER_RECOVERY_JOB_FAILED) mu_actor_lose(actor, error);
        give_back(actor, arrival);
        return NULL;
    }
    mu_handle_retain(&buffer->handle);
    arrival->next = NULL;
    arrival->buffer = buffer;
    arrival->instance = to;
    arrival->low = from->low;
    arrival->high = from->high;
    arrival->source = from->instance;
    arrival->waiting = (mu_task_list){NULL, NULL, 0};
    to->holds++;
    mu_device_counters *counters = mu_device_counters_mutable(actor->device);
    mu_count(counters, &counters->arrivals, 1);
    actor->upload_backlog_bytes += from->high - from->low;
    if (actor->arrivals.last)
        actor->arrivals.last->next = arrival;
    else
        actor->arrivals.first = arrival;
    actor->arrivals.last = arrival;
    return arrival;
}

mu_arrival *mu_arrival_find(const mu_actor *actor, const muster_buffer *buffer, uint64_t low, uint64_t high) {
    mu_arrival *found = NULL;
    for (mu_arrival *arrival = actor->arrivals.first; arrival; arrival = arrival->next)
        if (arrival->buffer == buffer && arrival->low < high && low < arrival->high &&
            (!found || arrival->low < found->low))
            found = arrival;
    return found;
}

void mu_arrival_wait(mu_actor *actor, mu_arrival *arrival, mu_task *task) {
    mu_task_list_append(&arrival->waiting, task);
    actor->held_tasks++;
}

/* What waited goes first: it has waited longer than what is ready since. */
static void let_go(mu_actor *actor, mu_task_list *waiting) {
    actor->held_tasks -= waiting->count;
    mu_task_list_append_all(waiting, &actor->ready);
    actor->ready = *waiting;
    *waiting = (mu_task_list){NULL, NULL, 0};
}

static void end(mu_actor *actor, bool arrived) {
    mu_arrival *arrival = actor->arrivals.first;
    mu_coherence *table = &arrival->buffer->coherence;
    muster_error error;
    bool noted = true;
    actor->arrivals.first = arrival->next;
    if (!arrival->next) actor->arrivals.last = NULL;
    actor->upload_backlog_bytes -= arrival->high - arrival->low;
    if (arrived) {
        mu_coherence_lock(table);
        /* Stamped with no epoch: it is complete. */
        noted = mu_coherence_copied(table, arrival->low, arrival->high, actor->index, 0);
        mu_coherence_unlock(table);
    }
    /* Release pairs with the owner's acquire before it frees the source. */
    if (arrival->source) atomic_fetch_sub_explicit(&arrival->source->pins, 1, memory_order_release);
    arrival->instance->holds--;
    if (noted) {
        let_go(actor, &arrival->waiting);
    } else {
        mu_fail_host_memory(&error, "the range table of a buffer", sizeof(mu_segment));
        for (mu_task *task; (task = mu_task_list_take(&arrival->waiting)); actor->held_tasks--)
            mu_enqueue_failed(actor, mu_run_at(actor->runtime, task->run), task, &error);
    }
    muster_buffer *buffer = arrival->buffer;
    give_back(actor, arrival);
    mu_buffer_release(buffer);
}

bool mu_arrivals_poll(mu_actor *actor) {
    bool any = false;
    while (actor->arrivals.first && !actor->lost) {
        bool done = false;
        muster_error error;
        if (mu_event_poll(actor->device, actor->arrivals.first->event, &done, &error)) mu_actor_lose(actor, &error);
        if (!done) break;
        end(actor, true);
        any = true;
    }
    return any;
}

void mu_arrivals_abandon(mu_actor *actor) {
    while (actor->arrivals.first) end(actor, false);
}

void mu_arrivals_destroy(mu_actor *actor) {
    while (actor->spare_arrivals) {
        mu_arrival *arrival = actor->spare_arrivals;
        actor->spare_arrivals = arrival->next;
        if (!actor->lost) mu_event_destroy(actor->device, arrival->event);
        mu_free(arrival);
    }
}

bool mu_arrivals_are_slow(const mu_actor *actor, uint64_t bytes) {
    uint64_t ns = (actor->upload_backlog_bytes + bytes) / MU_TRANSFER_BYTES_PER_NS;
    return ns > (actor->ready.first ? MU_JOIN_BUSY_NS : MU_SOON_NS);
}
