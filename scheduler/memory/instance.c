/* The device memory of buffers, and scratch memory: reserved in the ledger, allocated, put in the place of what it replaces.
 *
 * An access that no instance covers gets a new one for the union of its range and the instances that overlap it; their content
 * moves over on the dispatch lane and they are freed once nothing uses them. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "scheduler/actor/bind.h"
#include "scheduler/actor/epoch.h"
#include "scheduler/actor/loss.h"
#include "scheduler/graph/advice.h"
#include "scheduler/memory/arrivals.h"
#include "scheduler/memory/evict.h"
#include "scheduler/runtime/runtime.h"
#include "scheduler/runtime/shares.h"

/* ------------------------------------------------------------------------------------------------------------ sizes -- */

/* What an instance of [low, high) is allocated with: the range, and what keeps its alignment. */
static uint64_t instance_bytes(uint64_t low, uint64_t high) { return high - low + low % MU_ALIGNMENT_BYTES; }

/* A small buffer as a whole, so that it never has to move, unless only the part is meant. */
void mu_access_range(const mu_access *access, const muster_buffer *buffer, uint64_t *low, uint64_t *high) {
    bool whole = !access->exact && buffer->bytes <= buffer->handle.runtime->whole_copy_bytes;
    *low = whole ? 0 : access->low;
    *high = whole ? buffer->bytes : access->high;
}

/* Widens the range by what else the task accesses of the buffer and overlaps it. */
static void unite_with_accesses(const mu_task_binding *b, uint32_t buffer, uint64_t *low, uint64_t *high) {
    const mu_access *accesses = &b->run->graph->accesses[b->node->access_first];
    for (uint32_t i = 0; i < b->node->access_count;) {
        uint64_t from, to;
        mu_access_range(&accesses[i], mu_access_buffer(b, &accesses[i]), &from, &to);
        bool wider = accesses[i].buffer == buffer && from < *high && *low < to && (from < *low || to > *high);
        if (wider && from < *low) *low = from;
        if (wider && to > *high) *high = to;
        i = wider ? 0 : i + 1; /* it may overlap an earlier one now */
    }
}

/* At once for all that overlap, or the next access would want a larger instance beside the one just made. */
void mu_instance_range(const mu_task_binding *b, const mu_access *access, uint64_t *low, uint64_t *high) {
    muster_buffer *buffer = mu_access_buffer(b, access);
    uint64_t low_before, high_before;
    mu_access_range(access, buffer, low, high);
    do {
        low_before = *low, high_before = *high;
        unite_with_accesses(b, access->buffer, low, high);
        mu_coherence_hull(&buffer->coherence, b->actor->index, low, high);
    } while (*low != low_before || *high != high_before);
}

void mu_parts_add(mu_parts *parts, uint32_t buffer, uint64_t low, uint64_t high) {
    for (uint32_t i = 0; i < parts->count;) {
        const mu_part *other = &parts->part[i];
        if (other->buffer != buffer || other->high <= low || high <= other->low) {
            i++;
            continue;
        }
        if (other->low < low) low = other->low;
        if (other->high > high) high = other->high;
        parts->part[i] = parts->part[--parts->count];
        i = 0; /* it is wider now */
    }
    parts->part[parts->count++] = (mu_part){buffer, low, high};
}

static muster_status too_much(muster_error *error) {
    return mu_fail(error, MUSTER_LIMIT_REACHED,
                   "the job needs 2^64 bytes of device memory or more; give it smaller ranges of its buffers");
}

muster_status mu_parts_bytes(const mu_parts *parts, uint64_t *bytes, muster_error *error) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < parts->count; i++) {
        uint64_t bucket;
        if (mu_allocation_bucket(instance_bytes(parts->part[i].low, parts->part[i].high), &bucket, NULL) ||
            __builtin_add_overflow(sum, bucket, &sum))
            return too_much(error);
    }
    *bytes = sum;
    return MUSTER_OK;
}

muster_status mu_scratch_bytes(const muster_graph *graph, const mu_node *node, uint64_t *bytes, muster_error *error) {
    uint64_t sum = 0;
    for (uint32_t i = 0; node->flags & MU_NODE_SCRATCH && i < node->parameter_count; i++) {
        const mu_parameter *parameter = &graph->parameters[node->parameter_first + i];
        if (!parameter->scratch) continue;
        uint64_t bucket;
        muster_status status = mu_allocation_bucket(graph->scratches[parameter->index], &bucket, error);
        if (status) return status;
        if (__builtin_add_overflow(sum, bucket, &sum))
            return mu_fail(error, MUSTER_LIMIT_REACHED,
                           "the job has more than 2^64 bytes of scratch memory; shrink it");
    }
    *bytes = sum;
    return MUSTER_OK;
}

muster_status mu_bind_required(const muster_graph *graph, const mu_node *node, uint64_t *bytes, muster_error *error) {
    mu_parts parts;
    parts.count = 0;
    for (uint32_t i = 0; i < node->access_count; i++) {
        const mu_access *access = &graph->accesses[node->access_first + i];
        uint64_t low, high;
        mu_access_range(access, graph->buffers[access->buffer].buffer, &low, &high);
        mu_parts_add(&parts, access->buffer, low, high);
    }
    uint64_t accessed, scratch;
    muster_status status = mu_parts_bytes(&parts, &accessed, error);
    if (!status) status = mu_scratch_bytes(graph, node, &scratch, error);
    if (status) return status;
    if (__builtin_add_overflow(accessed, scratch, bytes)) return too_much(error);
    return MUSTER_OK;
}

/* ------------------------------------------------------------------------------------------------------------ reserve -- */

static mu_bind granted(mu_task_binding *b, uint64_t bytes) {
    mu_actor *actor = b->actor;
    b->reserved_bytes += bytes;
    if (actor->hungriest == b->task)
        actor->hungriest = NULL;
    else if (actor->hungriest)
        actor->overtaken++;
    return MU_BOUND;
}

muster_status mu_bind_check_fits(const mu_actor *actor, const muster_graph *graph, const mu_node *node,
                                 uint64_t required, muster_error *error) {
    const mu_ledger *ledger = mu_device_ledger(actor->device);
    uint64_t capacity = mu_ledger_capacity(ledger);
    if (required <= capacity) return MUSTER_OK;
    mu_ledger_view view = mu_ledger_read(ledger);
    char advice[MU_MEMORY_ADVICE_BYTES], of_it[64] = "";
    uint64_t scratch = 0;
    if (!mu_scratch_bytes(graph, node, &scratch, NULL) && scratch)
        snprintf(of_it, sizeof of_it, ", %llu of them scratch memory", (unsigned long long)scratch);
    mu_node_memory_advice(node, actor->runtime->whole_copy_bytes, advice);
    return mu_fail(error, MUSTER_NEVER_FITS,
                   "%s requires %llu bytes at once%s; device %d can give %llu (a budget of %llu less %llu that cannot "
                   "be evicted): %s, or raise the budget",
                   mu_node_kind_name(node), (unsigned long long)required, of_it, actor->index,
                   (unsigned long long)capacity, (unsigned long long)view.budget, (unsigned long long)view.fixed,
                   advice);
}

/* What the job accesses must be there at once: more than the device can give is refused before anything is allocated, however
 * much of it is there already. */
static mu_bind refuse_if_it_never_fits(mu_task_binding *b) {
    uint64_t required = 0;
    if (mu_bind_required(b->run->graph, b->node, &required, b->error)) return MU_BIND_FAILED;
    return mu_bind_check_fits(b->actor, b->run->graph, b->node, required, b->error) ? MU_BIND_FAILED : MU_BOUND;
}

/* The budget does not have it now. Cached pool memory and a fresh look at what is free may help at once; else copies of other
 * buffers are given up, which takes until what uses them is complete. */
static mu_bind make_room(mu_task_binding *b, uint64_t bytes) {
    mu_device *device = b->actor->device;
    mu_ledger *ledger = mu_device_ledger(device);
    if (mu_ledger_sample_age_ns(ledger, mu_now_ns()) > MU_MEMORY_SAMPLE_AGE_NS) {
        if (mu_device_trim(device, b->error) || mu_device_sample_memory(device, b->error)) return MU_BIND_FAILED;
        if (mu_ledger_reserve(ledger, bytes) == MU_GRANTED) return granted(b, bytes);
    }
    uint64_t available = mu_ledger_available(ledger);
    mu_evict(b->actor, bytes > available ? bytes - available : 0, b->run, b->node);
    return MU_BIND_MEMORY;
}

mu_bind mu_instance_reserve(mu_task_binding *b, uint64_t bytes) {
    mu_ledger *ledger = mu_device_ledger(b->actor->device);
    mu_bind result = refuse_if_it_never_fits(b);
    if (result != MU_BOUND) return result;
    const mu_task *first = b->actor->hungriest;
    if (first && first != b->task && b->actor->overtaken >= MU_OVERTAKES_MAX && first->priority >= b->task->priority)
        return MU_BIND_MEMORY;
    switch (mu_ledger_reserve(ledger, bytes)) {
        case MU_GRANTED: return granted(b, bytes);
        case MU_NOT_NOW: return make_room(b, bytes);
        case MU_NEVER: break;
    }
    /* Unless a module was loaded meanwhile, it fits once parts that its memory would replace are given up. */
    return refuse_if_it_never_fits(b) == MU_BIND_FAILED ? MU_BIND_FAILED : make_room(b, bytes);
}

/* --------------------------------------------------------------------------------------------------------------- join -- */

/* What follows on `to` comes after what is on `from` so far. */
static muster_status join(mu_task_binding *b, mu_lane from, const mu_lane *to, int count) {
    mu_device *device = b->actor->device;
    mu_transfer *transfer = mu_epoch_add_transfer(b->actor);
    muster_status status = transfer ? MUSTER_OK : mu_fail_host_memory(b->error, "a transfer", sizeof *transfer);
    if (!status && !transfer->event) status = mu_event_create(device, &transfer->event, b->error);
    if (!status) status = mu_event_record(device, from, transfer->event, b->error);
    for (int i = 0; i < count && !status; i++) status = mu_event_wait(device, to[i], transfer->event, b->error);
    /* Instances count as present, and whatever uses them next would not wait for them. */
    if (status) mu_actor_lose(b->actor, b->error);
    return status;
}

muster_status mu_bind_join_memory(mu_task_binding *b) {
    static const mu_lane users[] = {MU_LANE_DISPATCH, MU_LANE_UPLOAD};
    if (!b->allocated) return MUSTER_OK;
    b->allocated = false;
    mu_bursts_flush(b->actor);
    return join(b, MU_LANE_MEMORY, users, 2);
}

muster_status mu_bind_join_upload(mu_task_binding *b) {
    static const mu_lane users[] = {MU_LANE_DISPATCH};
    if (!b->uploading) return MUSTER_OK;
    b->uploading = false;
    mu_bursts_flush(b->actor);
    return join(b, MU_LANE_UPLOAD, users, 1);
}

/* --------------------------------------------------------------------------------------------------------------- make -- */

/* An allocation of `bytes`, a bucket's size, out of what is reserved. */
static mu_bind allocate(mu_task_binding *b, uint64_t bytes, mu_instance **out) {
    if (bytes > b->reserved_bytes) { /* an earlier access of this task widened the union */
        mu_bind more = mu_instance_reserve(b, bytes - b->reserved_bytes);
        if (more != MU_BOUND) return more;
    }
    mu_instance *instance = mu_alloc_zeroed(1, sizeof *instance);
    if (!instance) {
        mu_fail_host_memory(b->error, "a device copy of a buffer", sizeof *instance);
        return MU_BIND_FAILED;
    }
    muster_status status = mu_device_alloc(b->actor->device, MU_LANE_MEMORY, bytes, &instance->allocation, b->error);
    if (status) {
        mu_free(instance);
        if (status == MUSTER_OUT_OF_DEVICE_MEMORY) mu_shares_ask(b->actor);
        return status == MUSTER_OUT_OF_DEVICE_MEMORY ? MU_BIND_MEMORY : MU_BIND_FAILED;
    }
    mu_instance_link(b->actor, instance);
    b->reserved_bytes -= bytes;
    b->allocated = true;
    b->calls++;
    instance->charged_bytes = bytes;
    *out = instance;
    return MU_BOUND;
}

/* The first content from *low on that is valid here; what is not, and costs less to copy than another call, goes along. */
static bool next_valid(const mu_task_binding *b, mu_coherence *table, uint64_t *low, uint64_t *high, uint64_t end) {
    const mu_location_mask me = MU_LOCATION_DEVICE(b->actor->index);
    bool found = false;
    if (*low == end) return false;
    mu_coherence_lock(table);
    mu_range_cursor at;
    const mu_segment *segment = mu_coherence_first(table, &at, *low);
    for (; segment && segment->low < end; segment = mu_coherence_next(table, &at)) {
        if (!(segment->valid & me)) continue;
        if (found && segment->low - *high > MU_COPY_GAP_BYTES) break;
        if (!found && segment->low > *low) *low = segment->low;
        *high = segment->high < end ? segment->high : end;
        found = true;
    }
    mu_coherence_unlock(table);
    return found;
}

static muster_status move_content(mu_task_binding *b, mu_coherence *table, const mu_instance *to, mu_instance *from) {
    for (uint64_t low = from->low, high; next_valid(b, table, &low, &high, from->high); low = high) {
        mu_bursts_flush(b->actor);
        muster_status status = mu_copy_within(b->actor->device, MU_LANE_DISPATCH, to->address + (low - to->low),
                                              from->address + (low - from->low), high - low, b->error);
        if (status) return status;
        b->calls++;
        from->last_use = b->actor->timeline.open;
    }
    return MUSTER_OK;
}

static bool overlap(const mu_instance *a, const mu_instance *b) { return a->low < b->high && b->low < a->high; }

/* Copies what is valid in the device's instances that overlap `instance`, which nobody else knows of yet: until it replaces them others
 * read theirs, and when a copy fails nothing has changed. Their list changes by this worker only. */
static muster_status move_contents(mu_task_binding *b, mu_coherence *table, mu_instance *instance) {
    for (mu_instance *from = table->instances[b->actor->index]; from; from = from->next) {
        if (!overlap(from, instance)) continue;
        instance->last_use = b->actor->timeline.open;
        muster_status status = mu_bind_join_memory(b);
        if (!status) status = move_content(b, table, instance, from);
        if (status) return status;
    }
    return MUSTER_OK;
}

/* Takes the device's instances that overlap `instance` out of the table, chained, and puts it there. */
static mu_instance *replace(mu_coherence *table, int me, mu_instance *instance) {
    mu_instance **link = &table->instances[me], *replaced = NULL;
    while (*link) {
        mu_instance *other = *link;
        if (!overlap(other, instance)) {
            link = &other->next;
            continue;
        }
        *link = other->next;
        other->next = replaced;
        replaced = other;
        other->changed = true; /* what a write-back of it brings to the host says nothing of what is here from now on */
    }
    instance->next = table->instances[me];
    table->instances[me] = instance;
    mu_coherence_changed(table);
    return replaced;
}

/* The content is in `instance` now. Tasks that are held for other input let go of what covers their ranges then. Nothing arrives here:
 * that is waited for. */
static void give_up_replaced(mu_actor *actor, mu_instance *instance, mu_instance *replaced) {
    for (mu_instance *next; replaced; replaced = next) {
        next = replaced->next;
        instance->holds += replaced->holds;
        replaced->holds = 0;
        mu_instance_retire(actor, replaced);
    }
}

mu_bind mu_instance_make(mu_task_binding *b, const mu_access *access) {
    muster_buffer *buffer = mu_access_buffer(b, access);
    mu_coherence *table = &buffer->coherence;
    int me = b->actor->index;
    uint64_t low, high, bucket;
    mu_coherence_lock(table);
    mu_instance_range(b, access, &low, &high);
    mu_coherence_unlock(table);
    muster_status status = mu_allocation_bucket(instance_bytes(low, high), &bucket, b->error);
    if (status) return MU_BIND_FAILED;
    mu_instance *instance;
    mu_bind result = allocate(b, bucket, &instance);
    if (result != MU_BOUND) return result;
    instance->address = instance->allocation + low % MU_ALIGNMENT_BYTES;
    instance->low = low;
    instance->high = high;
    instance->buffer = buffer;
    mu_bursts_flush(b->actor); /* launches that it refuses go out again, to where their content is now */
    if (move_contents(b, table, instance)) {
        mu_instance_retire(b->actor, instance);
        return MU_BIND_FAILED;
    }
    mu_coherence_lock(table);
    mu_instance *replaced = replace(table, me, instance);
    /* What is valid here moves in this epoch: others may read it only after that. */
    if (replaced) mu_coherence_restamp(table, low, high, me, b->actor->timeline.open);
    mu_coherence_unlock(table);
    give_up_replaced(b->actor, instance, replaced);
    return MU_BOUND;
}

mu_bind mu_scratch_make(mu_task_binding *b, mu_address *addresses) {
    const muster_graph *graph = b->run->graph;
    for (uint32_t i = 0, made = 0; b->node->flags & MU_NODE_SCRATCH && i < b->node->parameter_count; i++) {
        const mu_parameter *parameter = &graph->parameters[b->node->parameter_first + i];
        if (!parameter->scratch) continue;
        uint64_t bucket;
        mu_instance *instance;
        if (mu_allocation_bucket(graph->scratches[parameter->index], &bucket, b->error)) return MU_BIND_FAILED;
        mu_bind result = allocate(b, bucket, &instance);
        if (result != MU_BOUND) return result;
        instance->last_use = b->actor->timeline.open;
        addresses[made++] = instance->allocation;
        mu_instance_retire(b->actor, instance);
    }
    return MU_BOUND;
}
