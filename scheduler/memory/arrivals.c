#include "scheduler/memory/arrivals.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "scheduler/actor/bind.h"
#include "scheduler/actor/enqueue.h"
#include "scheduler/actor/loss.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/placement/estimate.h"
#include "scheduler/runtime/runtime.h"

muster_status mu_incoming_copy(mu_actor *actor, const muster_buffer *buffer, const mu_instance *to,
                               const mu_incoming *from, muster_error *error) {
    const mu_area *area = &from->area;
    const mu_rows rows = {mu_area_width(area), area->rows, area->pitch, area->pitch};
    mu_address address = to->address + (area->low - to->low);
    if (from->zero) return mu_rows_clear(actor->device, MU_LANE_UPLOAD, address, &rows, error);
    if (from->source == MUSTER_ANY_DEVICE)
        return mu_rows_to_device(actor->device, MU_LANE_UPLOAD, address, (char *)buffer->host + area->low, &rows,
                                 error);
    if (!from->instance)
        return mu_fail(error, MUSTER_INTERNAL, "device %d holds no memory for bytes %llu to %llu", from->source,
                       (unsigned long long)area->low, (unsigned long long)mu_area_end(area));
    mu_actor *owner = &actor->runtime->actors[from->source];
    if (mu_timeline_wait(&owner->timeline, from->stamp, actor->device, MU_LANE_UPLOAD, error) == MU_EPOCH_FAILED)
        return error ? error->status : MUSTER_DRIVER_ERROR;
    return mu_rows_from_peer(actor->device, MU_LANE_UPLOAD, address, owner->device, from->address, &rows, error);
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

bool mu_arrival_is_staged(const muster_buffer *buffer, uint64_t bytes) {
    return !buffer->host_pinned && bytes > MU_STAGING_SMALL_BYTES;
}

/* Everything of it is on the lane. */
static muster_status put_behind_lane(mu_actor *actor, mu_arrival *arrival, muster_error *error) {
    muster_status status = mu_event_record(actor->device, MU_LANE_UPLOAD, arrival->event, error);
    if (status) return status;
    arrival->next = NULL;
    if (actor->runtime->device_count > 1 && !arrival->since_ns) arrival->since_ns = mu_now_ns();
    if (actor->arrivals.last)
        actor->arrivals.last->next = arrival;
    else
        actor->arrivals.first = arrival;
    actor->arrivals.last = arrival;
    return MUSTER_OK;
}

static void begin_staged(mu_actor *actor, mu_arrival *arrival) {
    arrival->staged = (mu_staged_copy){
        .way = MU_STAGED_UP,
        .lane = MU_LANE_UPLOAD,
        .host = (char *)arrival->buffer->host + arrival->area.low,
        .device = arrival->instance->address + (arrival->area.low - arrival->instance->low),
        .bytes = mu_area_bytes(&arrival->area),
        .width = arrival->area.rows > 1 ? mu_area_width(&arrival->area) : 0,
        .pitch = arrival->area.pitch,
    };
    if (actor->runtime->device_count > 1) arrival->since_ns = mu_now_ns();
    arrival->next = actor->staged_arrivals;
    actor->staged_arrivals = arrival;
    mu_staging_begin(actor->staging, &arrival->staged);
}

/* Some of the rows may be on the lane: it ends behind them, and then fails, or, when it was the source that was lost, is looked for anew.
 * False: nothing is on the lane. */
static bool ends_behind_rows(mu_arrival *arrival, muster_status status, const muster_error *error) {
    if (arrival->area.rows <= 1) return false;
    if (muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST)
        arrival->lost = true;
    else
        arrival->failure = *error;
    return true;
}

/* The copy itself. What fails after the copy is on the lane loses the device: it is under way in memory that would count as free. */
static muster_status begin(mu_actor *actor, mu_arrival *arrival, const mu_incoming *from, muster_error *error) {
    bool from_host = from->source == MUSTER_ANY_DEVICE && !from->zero;
    if (from_host && mu_arrival_is_staged(arrival->buffer, mu_area_bytes(&from->area))) {
        begin_staged(actor, arrival);
        return MUSTER_OK;
    }
    muster_status status = mu_incoming_copy(actor, arrival->buffer, arrival->instance, from, error);
    if (status && !ends_behind_rows(arrival, status, error)) return status;
    status = put_behind_lane(actor, arrival, error);
    if (status) mu_actor_lose(actor, error);
    return status;
}

mu_arrival *mu_arrival_start(mu_actor *actor, muster_buffer *buffer, mu_instance *to, const mu_incoming *from,
                             muster_error *error) {
    mu_arrival *arrival = take(actor, error);
    if (!arrival) return NULL;
    arrival->buffer = buffer;
    arrival->instance = to;
    to->changed = true;
    arrival->area = from->area;
    arrival->source = from->instance;
    arrival->from = from->source;
    arrival->stamp = from->stamp;
    arrival->lost = false;
    arrival->waiting = (mu_task_list){NULL, NULL, 0};
    arrival->failure.status = MUSTER_OK;
    arrival->from_host = from->source == MUSTER_ANY_DEVICE && !from->zero;
    arrival->since_ns = 0;
    if (begin(actor, arrival, from, error)) {
        give_back(actor, arrival);
        return NULL;
    }
    mu_handle_retain(&buffer->handle);
    to->holds++;
    mu_device_counters *counters = mu_device_counters_mutable(actor->device);
    mu_count(counters, &counters->arrivals, 1);
    actor->upload_backlog_bytes += mu_area_bytes(&from->area);
    return arrival;
}

static mu_arrival *find_in(mu_arrival *list, const muster_buffer *buffer, uint64_t low, uint64_t high,
                           mu_arrival *found, mu_range *row) {
    for (mu_arrival *arrival = list; arrival; arrival = arrival->next) {
        if (arrival->buffer != buffer) continue;
        uint32_t index = mu_area_find(&arrival->area, low);
        if (index == arrival->area.rows) continue;
        uint64_t begin = mu_area_row(&arrival->area, index);
        if (begin >= high || (found && begin >= row->low)) continue;
        found = arrival;
        *row = (mu_range){begin, begin + mu_area_width(&arrival->area)};
    }
    return found;
}

mu_arrival *mu_arrival_find(const mu_actor *actor, const muster_buffer *buffer, uint64_t low, uint64_t high,
                            mu_range *row) {
    mu_arrival *found = find_in(actor->staged_arrivals, buffer, low, high, NULL, row);
    return find_in(actor->arrivals.first, buffer, low, high, found, row);
}

static mu_arrival *meets_in(mu_arrival *list, const muster_buffer *buffer, const mu_area *area) {
    while (list && (list->buffer != buffer || !mu_areas_overlap(&list->area, area))) list = list->next;
    return list;
}

mu_arrival *mu_arrival_meets(const mu_actor *actor, const muster_buffer *buffer, const mu_area *area) {
    mu_arrival *found = meets_in(actor->staged_arrivals, buffer, area);
    return found ? found : meets_in(actor->arrivals.first, buffer, area);
}

mu_arrival *mu_arrival_of(const mu_actor *actor, const muster_graph *graph, const mu_node *node) {
    if (!actor->arrivals.first && !actor->staged_arrivals) return NULL;
    const mu_access *accesses = &graph->accesses[node->access_first];
    mu_arrival *found = NULL;
    for (uint32_t i = 0; !found && i < node->access_count; i++) {
        const mu_area area = mu_access_area(graph, &accesses[i]);
        found = mu_arrival_meets(actor, graph->buffers[accesses[i].buffer].buffer, &area);
    }
    return found;
}

void mu_arrival_wait(mu_actor *actor, mu_arrival *arrival, mu_task *task) {
    mu_task_list_append(&arrival->waiting, task);
    actor->held_tasks++;
}

/* The copy failed: so does the task that waits for it, unless other input of it is still on its way. Then it tries again after that. */
static void fail_waiting(mu_actor *actor, mu_task *task, const muster_error *failure) {
    muster_run *run = mu_run_at(actor->runtime, task->run);
    mu_arrival *other = mu_arrival_of(actor, run->graph, &run->graph->nodes[task->node]);
    actor->held_tasks--;
    if (other) {
        mu_arrival_wait(actor, other, task);
        return;
    }
    mu_bind_let_go(actor, run, task);
    mu_enqueue_failed(actor, run, task, failure);
}

/* It is in no list any more, and nothing of it is under way. */
static void end(mu_actor *actor, mu_arrival *arrival) {
    muster_buffer *buffer = arrival->buffer;
    mu_coherence *table = &buffer->coherence;
    muster_error *failure = &arrival->failure;
    actor->upload_backlog_bytes -= mu_area_bytes(&arrival->area);
    if (!failure->status && !actor->lost && !arrival->lost) {
        mu_coherence_lock(table);
        /* Stamped with no epoch: it is complete. */
        bool noted = mu_coherence_copied_area(table, &arrival->area, actor->index, 0);
        mu_coherence_unlock(table);
        if (!noted) mu_fail_host_memory(failure, "the range table of a buffer", sizeof(mu_segment));
    }
    /* Release pairs with the owner's acquire before it frees the source. */
    if (arrival->source) atomic_fetch_sub_explicit(&arrival->source->pins, 1, memory_order_release);
    arrival->instance->holds--;
    if (failure->status && !actor->lost)
        for (mu_task *task; (task = mu_task_list_take(&arrival->waiting));) fail_waiting(actor, task, failure);
    else
        mu_actor_take_up(actor, &arrival->waiting);
    give_back(actor, arrival);
    mu_buffer_release(buffer);
}

/* A staged copy that failed may have pieces on the lane: it ends behind them. */
static bool poll_staged(mu_actor *actor) {
    bool any = false;
    for (mu_arrival **link = &actor->staged_arrivals, *arrival; (arrival = *link);) {
        if (!arrival->staged.over) {
            link = &arrival->next;
            continue;
        }
        *link = arrival->next;
        any = true;
        muster_error error;
        if (arrival->staged.status) arrival->failure = arrival->staged.error;
        if (!actor->lost && put_behind_lane(actor, arrival, &error)) mu_actor_lose(actor, &error);
        if (actor->lost) end(actor, arrival);
    }
    return any;
}

/* The next one has the lane to itself from now on. */
static void note_rate(mu_actor *actor, const mu_arrival *arrival) {
    if (actor->runtime->device_count == 1 || actor->lost) return;
    if (arrival->from_host || arrival->source)
        mu_estimate_note_copy(actor, arrival->from_host, mu_area_bytes(&arrival->area), arrival->since_ns);
    if (actor->arrivals.first) actor->arrivals.first->since_ns = mu_now_ns();
}

bool mu_arrivals_poll(mu_actor *actor) {
    bool any = poll_staged(actor);
    for (mu_arrival *arrival; (arrival = actor->arrivals.first);) {
        bool done = false;
        muster_error error;
        if (!actor->lost && mu_event_poll(actor->device, arrival->event, &done, &error)) mu_actor_lose(actor, &error);
        if (!done && !actor->lost) break;
        /* The tasks look again what there is when it came out of an epoch of a lost device that was not done. */
        bool known = true;
        if (arrival->source && !actor->lost)
            arrival->lost |= !mu_loss_is_good(actor->runtime, arrival->from, arrival->stamp, &known);
        if (!known) break;
        actor->arrivals.first = arrival->next;
        if (!arrival->next) actor->arrivals.last = NULL;
        note_rate(actor, arrival);
        end(actor, arrival);
        any = true;
    }
    return any;
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
