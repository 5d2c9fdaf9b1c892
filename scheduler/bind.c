/* Binding: before a task is launched, every range it accesses has memory on the device and, where it is read, valid content.
 *
 * Memory is allocated and copies arrive on the upload lane, so that they overlap with kernels; the dispatch lane then waits
 * for one event behind them. What an older kernel may still use is not overwritten: the upload lane waits for that
 * kernel's epoch first. An access that no instance covers gets a new one for the union of its range and the instances that
 * overlap it; their content moves over on the dispatch lane and they are freed once nothing uses them. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "scheduler/actor.h"
#include "scheduler/buffer.h"
#include "scheduler/evict.h"
#include "scheduler/loss.h"
#include "scheduler/runtime.h"

typedef struct binding {
    mu_actor *actor;
    muster_run *run;
    const mu_task *task;
    const mu_node *node;
    uint64_t reserved_bytes; /* granted by the ledger and not yet allocated */
    uint32_t calls;
    bool uploading; /* something is on the upload lane that the dispatch lane must wait for */
    int await_device;
    uint64_t await_epoch;
    muster_error *error;
} binding;

static muster_buffer *buffer_of(const binding *b, const mu_access *access) {
    return b->run->graph->buffers[access->buffer].buffer;
}

static mu_epoch_wait wait_for(binding *b, int device, uint64_t epoch, mu_lane lane) {
    mu_epoch_wait result =
        mu_timeline_wait(&b->actor->runtime->actors[device].timeline, epoch, b->actor->device, lane, b->error);
    if (result == MU_EPOCH_NOT_CLOSED) {
        b->await_device = device;
        b->await_epoch = epoch;
    }
    return result;
}

/* What an instance of [low, high) is allocated with: the range, and what keeps its alignment. */
static uint64_t instance_bytes(uint64_t low, uint64_t high) { return high - low + low % MU_ALIGNMENT_BYTES; }

/* What a device copies for an access: a small buffer as a whole, so that it never has to move, unless only the part is meant. */
static void copied_range(const mu_access *access, const muster_buffer *buffer, uint64_t *low, uint64_t *high) {
    bool whole = !access->exact && buffer->bytes <= MU_WHOLE_COPY_BYTES;
    *low = whole ? 0 : access->low;
    *high = whole ? buffer->bytes : access->high;
}

/* ------------------------------------------------------------------------------------------- what is needed, looked at -- */

/* Where segment `index` can be copied from: the host first, else the first device whose copy has been enqueued for sure. A
 * device whose epoch is still open is the last choice. MUSTER_ANY_DEVICE: the host. */
static int choose_source(const binding *b, const mu_coherence *table, uint32_t index) {
    mu_location_mask valid = table->segments[index].valid;
    if (valid & MU_LOCATION_HOST) return MUSTER_ANY_DEVICE;
    int open = MUSTER_ANY_DEVICE;
    for (int d = 0; d < (int)table->device_count; d++) {
        if (!(valid & MU_LOCATION_DEVICE(d))) continue;
        if (mu_timeline_closed(&b->actor->runtime->actors[d].timeline) >= mu_coherence_stamp(table, index, d)) return d;
        open = d;
    }
    return open;
}

static mu_bind undefined(binding *b, uint64_t low, uint64_t high) {
    mu_fail(b->error, MUSTER_DATA_UNDEFINED,
            "bytes %llu to %llu of a buffer are undefined: the job that last wrote them failed; write the whole range "
            "first",
            (unsigned long long)low, (unsigned long long)high);
    return MU_BIND_FAILED;
}

/* Looks at one access without changing anything: undefined input fails, a source whose epoch is open is awaited, and memory
 * that has to be allocated is added to *bytes. */
static mu_bind look_at(binding *b, const mu_access *access, bool *covered, uint64_t *bytes) {
    muster_buffer *buffer = buffer_of(b, access);
    mu_coherence *table = &buffer->coherence;
    int me = b->actor->index;
    mu_bind result = MU_BOUND;
    mu_coherence_lock(table);
    *covered = mu_coherence_instance(table, me, access->low, access->high) != NULL;
    if (access->mode & MUSTER_READ) {
        for (uint32_t i = mu_coherence_find(table, access->low);
             i < table->count && table->segments[i].low < access->high; i++) {
            const mu_segment *segment = &table->segments[i];
            if (segment->undefined) {
                result = undefined(b, segment->low, segment->high);
                break;
            }
            if (segment->valid & MU_LOCATION_DEVICE(me)) continue;
            *covered = false;
            if (segment->zero) continue;
            int source = choose_source(b, table, i);
            if (source == MUSTER_ANY_DEVICE) continue;
            uint64_t stamp = mu_coherence_stamp(table, i, source);
            if (mu_timeline_closed(&b->actor->runtime->actors[source].timeline) >= stamp) continue;
            b->await_device = source;
            b->await_epoch = stamp;
            result = MU_BIND_AWAIT;
            break;
        }
    }
    if (result == MU_BOUND && !mu_coherence_instance(table, me, access->low, access->high)) {
        uint64_t low, high;
        copied_range(access, buffer, &low, &high);
        mu_coherence_hull(table, me, &low, &high);
        uint64_t bucket;
        if (mu_allocation_bucket(instance_bytes(low, high), &bucket, b->error))
            result = MU_BIND_FAILED;
        else
            *bytes += bucket;
    }
    mu_coherence_unlock(table);
    return result;
}

/* ----------------------------------------------------------------------------------------------------------- memory -- */

static mu_bind granted(binding *b, uint64_t bytes) {
    mu_actor *actor = b->actor;
    b->reserved_bytes += bytes;
    if (actor->hungriest == b->task)
        actor->hungriest = NULL;
    else if (actor->hungriest)
        actor->overtaken++;
    return MU_BOUND;
}

muster_status mu_bind_required(const muster_graph *graph, const mu_node *node, uint64_t *bytes, muster_error *error) {
    mu_access parts[MU_MAX_PARAMETERS]; /* disjoint: what overlaps gets one instance */
    uint32_t count = 0;
    for (uint32_t i = 0; i < node->access_count; i++) {
        mu_access part = graph->accesses[node->access_first + i];
        copied_range(&graph->accesses[node->access_first + i], graph->buffers[part.buffer].buffer, &part.low,
                     &part.high);
        for (uint32_t k = 0; k < count;) {
            if (parts[k].buffer != part.buffer || parts[k].high <= part.low || part.high <= parts[k].low) {
                k++;
                continue;
            }
            if (parts[k].low < part.low) part.low = parts[k].low;
            if (parts[k].high > part.high) part.high = parts[k].high;
            parts[k] = parts[--count];
            k = 0; /* it is wider now */
        }
        parts[count++] = part;
    }
    uint64_t sum = 0;
    for (uint32_t k = 0; k < count; k++) {
        uint64_t bucket;
        muster_status status = mu_allocation_bucket(instance_bytes(parts[k].low, parts[k].high), &bucket, error);
        if (status) return status;
        if (__builtin_add_overflow(sum, bucket, &sum))
            return mu_fail(error, MUSTER_LIMIT_REACHED, "the job accesses more than 2^64 bytes; shard the dispatch");
    }
    *bytes = sum;
    return MUSTER_OK;
}

/* What the job accesses must be there at once: more than the device can give is refused before anything is allocated, however
 * much of it is there already. */
static mu_bind refuse_if_it_never_fits(binding *b, uint64_t missing) {
    const mu_ledger *ledger = mu_device_ledger(b->actor->device);
    uint64_t required = 0, capacity = mu_ledger_capacity(ledger);
    if (mu_bind_required(b->run->graph, b->node, &required, b->error)) return MU_BIND_FAILED;
    if (required < missing) required = missing;
    if (required <= capacity) return MU_BOUND;
    mu_ledger_view view = mu_ledger_read(ledger);
    mu_fail(b->error, MUSTER_NEVER_FITS,
            "the job requires %llu bytes at once; device %d can give %llu (a budget of %llu less %llu that cannot be "
            "evicted): "
            "shard the dispatch, shrink its buffers, or raise the budget",
            (unsigned long long)required, b->actor->index, (unsigned long long)capacity,
            (unsigned long long)view.budget, (unsigned long long)view.fixed);
    return MU_BIND_FAILED;
}

/* The budget does not have it now. Cached pool memory and a fresh look at what is free may help at once; else copies of other
 * buffers are given up, which takes until what uses them is complete. */
static mu_bind make_room(binding *b, uint64_t bytes) {
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

static mu_bind reserve(binding *b, uint64_t bytes) {
    mu_ledger *ledger = mu_device_ledger(b->actor->device);
    const mu_task *first = b->actor->hungriest;
    if (first && first != b->task && b->actor->overtaken >= MU_OVERTAKES_MAX) return MU_BIND_MEMORY;
    switch (mu_ledger_reserve(ledger, bytes)) {
        case MU_GRANTED: return granted(b, bytes);
        case MU_NOT_NOW: return make_room(b, bytes);
        case MU_NEVER: break;
    }
    /* Unless a module was unloaded meanwhile. */
    return refuse_if_it_never_fits(b, bytes) == MU_BIND_FAILED ? MU_BIND_FAILED : MU_BIND_MEMORY;
}

static void move_content(binding *b, mu_coherence *table, const mu_instance *to, mu_instance *from,
                         muster_status *status) {
    int me = b->actor->index;
    uint64_t at = from->low;
    while (!*status && at < from->high) {
        mu_coherence_lock(table);
        const mu_segment segment = table->segments[mu_coherence_find(table, at)];
        mu_coherence_unlock(table);
        uint64_t end = segment.high < from->high ? segment.high : from->high;
        if (segment.valid & MU_LOCATION_DEVICE(me)) {
            mu_bursts_flush(b->actor);
            *status = mu_copy_within(b->actor->device, MU_LANE_DISPATCH, to->address + (at - to->low),
                                     from->address + (at - from->low), end - at, b->error);
            b->calls++;
            from->last_use = b->actor->timeline.open;
        }
        at = end;
    }
}

/* Puts the upload lane's work so far in front of what the dispatch lane does next. That must not fail: instances count as
 * present, and whatever uses them next would not wait for their content. The device is lost then. */
static muster_status join_upload(binding *b) {
    if (!b->uploading) return MUSTER_OK;
    mu_transfer *transfer = mu_actor_add_transfer(b->actor);
    muster_status status = transfer ? MUSTER_OK : mu_fail_host_memory(b->error, "a transfer", sizeof *transfer);
    if (status) goto lose;
    if (!transfer->event) status = mu_event_create(b->actor->device, &transfer->event, b->error);
    if (!status) status = mu_event_record(b->actor->device, MU_LANE_UPLOAD, transfer->event, b->error);
    mu_bursts_flush(b->actor);
    if (!status) status = mu_event_wait(b->actor->device, MU_LANE_DISPATCH, transfer->event, b->error);
    b->uploading = false;
    if (!status) return MUSTER_OK;
lose:
    mu_actor_lose(b->actor, b->error);
    return status;
}

/* Allocates an instance that covers the access, in place of those that overlap it. */
static mu_bind make_instance(binding *b, const mu_access *access) {
    muster_buffer *buffer = buffer_of(b, access);
    mu_coherence *table = &buffer->coherence;
    int me = b->actor->index;
    uint64_t low, high, bucket;
    copied_range(access, buffer, &low, &high);
    mu_coherence_lock(table);
    mu_coherence_hull(table, me, &low, &high);
    mu_coherence_unlock(table);
    if (mu_allocation_bucket(instance_bytes(low, high), &bucket, b->error)) return MU_BIND_FAILED;
    if (bucket > b->reserved_bytes) { /* an earlier access of this task widened the union */
        mu_bind more = reserve(b, bucket - b->reserved_bytes);
        if (more != MU_BOUND) return more;
    }
    mu_instance *instance = mu_alloc_zeroed(1, sizeof *instance);
    if (!instance) {
        mu_fail_host_memory(b->error, "a device copy of a buffer", sizeof *instance);
        return MU_BIND_FAILED;
    }
    muster_status status = mu_device_alloc(b->actor->device, MU_LANE_UPLOAD, bucket, &instance->allocation, b->error);
    if (status) {
        mu_free(instance);
        return status == MUSTER_OUT_OF_DEVICE_MEMORY ? MU_BIND_MEMORY : MU_BIND_FAILED;
    }
    mu_instance_link(b->actor, instance);
    b->reserved_bytes -= bucket;
    b->uploading = true;
    b->calls++;
    instance->address = instance->allocation + low % MU_ALIGNMENT_BYTES;
    instance->low = low;
    instance->high = high;
    instance->charged_bytes = bucket;
    instance->buffer = buffer;
    mu_coherence_lock(table);
    mu_instance **link = &table->instances[me], *replaced = NULL;
    while (*link) {
        mu_instance *other = *link;
        if (other->high <= low || high <= other->low) {
            link = &other->next;
            continue;
        }
        *link = other->next;
        other->next = replaced;
        replaced = other;
    }
    instance->next = table->instances[me];
    table->instances[me] = instance;
    if (replaced) {
        /* What is valid here moves in this epoch: others may read it only after that. */
        instance->last_use = b->actor->timeline.open;
        mu_coherence_restamp(table, low, high, me, b->actor->timeline.open);
    }
    mu_coherence_unlock(table);
    if (replaced) status = join_upload(b);
    while (replaced) {
        mu_instance *next = replaced->next;
        move_content(b, table, instance, replaced, &status);
        mu_instance_retire(b->actor, replaced);
        replaced = next;
    }
    return status ? MU_BIND_FAILED : MU_BOUND;
}

/* -------------------------------------------------------------------------------------------------------- transfers -- */

/* The upload lane may write the instance only after the kernels that use its old content. */
static muster_status order_after_use(binding *b, const mu_instance *instance) {
    mu_timeline *timeline = &b->actor->timeline;
    if (instance->last_use == timeline->open) {
        /* Uploads of this epoch belong behind its event. */
        muster_status status = join_upload(b);
        if (!status) status = mu_actor_close_epoch(b->actor, b->error);
        if (status) return status;
    }
    if (mu_timeline_wait(timeline, instance->last_use, b->actor->device, MU_LANE_UPLOAD, b->error) == MU_EPOCH_FAILED)
        return b->error ? b->error->status : MUSTER_DRIVER_ERROR;
    return MUSTER_OK;
}

/* One piece of an access that has to arrive: what it is and where it comes from, read under the lock. */
typedef struct piece {
    uint64_t low, high;
    bool zero;
    bool undefined; /* lost since the task was looked at: a device went away with its writer */
    int source;     /* MUSTER_ANY_DEVICE: the host */
    uint64_t stamp;
    mu_instance *source_instance; /* pinned */
    mu_address source_address;
} piece;

static bool next_piece(binding *b, mu_coherence *table, const mu_access *access, uint64_t at, piece *out) {
    int me = b->actor->index;
    bool found = false;
    mu_coherence_lock(table);
    for (uint32_t i = mu_coherence_find(table, at); i < table->count && table->segments[i].low < access->high; i++) {
        const mu_segment *segment = &table->segments[i];
        if (segment->valid & MU_LOCATION_DEVICE(me)) continue;
        uint64_t low = segment->low > at ? segment->low : at;
        uint64_t high = segment->high < access->high ? segment->high : access->high;
        *out = (piece){.low = low, .high = high, .zero = segment->zero, .source = MUSTER_ANY_DEVICE};
        out->undefined = segment->undefined || (!segment->zero && !segment->valid);
        found = true;
        if (segment->zero || out->undefined) break;
        out->source = choose_source(b, table, i);
        if (out->source == MUSTER_ANY_DEVICE) break;
        /* A device may hold the segment in several instances: take it instance by instance. */
        for (mu_instance *held = table->instances[out->source]; held; held = held->next) {
            if (held->low > low || held->high <= low) continue;
            if (held->high < out->high) out->high = held->high;
            out->source_instance = held;
            out->source_address = held->address + (low - held->low);
            out->stamp = mu_coherence_stamp(table, i, out->source);
            atomic_fetch_add_explicit(&held->pins, 1, memory_order_relaxed);
            break;
        }
        break;
    }
    mu_coherence_unlock(table);
    return found;
}

static mu_bind copy_piece(binding *b, muster_buffer *buffer, const mu_instance *instance, const piece *p) {
    mu_actor *actor = b->actor;
    mu_address to = instance->address + (p->low - instance->low);
    muster_status status;
    if (p->source == MUSTER_ANY_DEVICE && !p->zero) {
        status = mu_copy_to_device(actor->device, MU_LANE_UPLOAD, to, (char *)buffer->host + p->low, p->high - p->low,
                                   b->error);
    } else if (p->zero) {
        status = mu_fill(actor->device, MU_LANE_UPLOAD, to, 0, 1, p->high - p->low, b->error);
    } else {
        mu_epoch_wait waited = p->source_instance ? wait_for(b, p->source, p->stamp, MU_LANE_UPLOAD) : MU_EPOCH_FAILED;
        if (waited == MU_EPOCH_NOT_CLOSED) return MU_BIND_AWAIT;
        if (!p->source_instance)
            status = mu_fail(b->error, MUSTER_INTERNAL, "device %d holds no memory for bytes %llu to %llu", p->source,
                             (unsigned long long)p->low, (unsigned long long)p->high);
        else if (waited == MU_EPOCH_FAILED)
            status = MUSTER_DRIVER_ERROR;
        else
            status = mu_copy_from_peer(actor->device, MU_LANE_UPLOAD, to, actor->runtime->actors[p->source].device,
                                       p->source_address, p->high - p->low, b->error);
    }
    if (status) return MU_BIND_FAILED;
    b->uploading = true;
    b->calls++;
    return MU_BOUND;
}

/* Copies what is missing of a read access. */
static mu_bind bring(binding *b, const mu_access *access) {
    muster_buffer *buffer = buffer_of(b, access);
    mu_coherence *table = &buffer->coherence;
    int me = b->actor->index;
    mu_coherence_lock(table);
    mu_instance *instance = mu_coherence_instance(table, me, access->low, access->high);
    mu_coherence_unlock(table);
    bool ordered = false;
    piece p;
    for (uint64_t at = access->low; at < access->high && next_piece(b, table, access, at, &p); at = p.high) {
        mu_bind result = p.undefined ? undefined(b, p.low, p.high) : MU_BOUND;
        if (result == MU_BOUND && !ordered && order_after_use(b, instance)) result = MU_BIND_FAILED;
        ordered = true;
        if (result == MU_BOUND) result = copy_piece(b, buffer, instance, &p);
        if (p.source_instance) {
            mu_transfer *transfer = result == MU_BOUND ? mu_actor_add_transfer(b->actor) : NULL;
            if (transfer) {
                transfer->source = p.source_instance;
            } else {
                if (result == MU_BOUND) {
                    mu_fail_host_memory(b->error, "a transfer", sizeof *transfer);
                    result = MU_BIND_FAILED;
                }
                atomic_fetch_sub_explicit(&p.source_instance->pins, 1, memory_order_release);
            }
        }
        if (result != MU_BOUND) return result;
        mu_coherence_lock(table);
        bool noted = mu_coherence_copied(table, p.low, p.high, me, b->actor->timeline.open);
        mu_coherence_unlock(table);
        if (!noted) {
            mu_fail_host_memory(b->error, "the range table of a buffer", sizeof(mu_segment));
            return MU_BIND_FAILED;
        }
    }
    return MU_BOUND;
}

/* ------------------------------------------------------------------------------------------------------------- bind -- */

/* Only once the task is going to be launched: what waits for memory keeps nobody else's from being given up. */
static mu_address use_instance(binding *b, mu_instance *instance, const mu_access *access) {
    uint64_t open = b->actor->timeline.open;
    if (instance->last_use != open) mu_instance_touch(b->actor, instance);
    instance->last_use = open;
    return instance->address + (access->low - instance->low);
}

/* Addresses, and what the task's writes will mean for other copies, once everything is in place. */
static mu_bind settle(binding *b, const mu_access *accesses, mu_address *addresses) {
    uint64_t open = b->actor->timeline.open;
    int me = b->actor->index;
    for (uint32_t i = 0; i < b->node->access_count; i++) {
        const mu_access *access = &accesses[i];
        mu_coherence *table = &buffer_of(b, access)->coherence;
        mu_coherence_lock(table);
        mu_instance *instance = mu_coherence_instance(table, me, access->low, access->high);
        bool noted = !(access->mode & MUSTER_WRITE) || mu_coherence_written(table, access->low, access->high, me, open);
        mu_coherence_unlock(table);
        if (!noted) {
            mu_fail_host_memory(b->error, "the range table of a buffer", sizeof(mu_segment));
            return MU_BIND_FAILED;
        }
        addresses[i] = use_instance(b, instance, access);
    }
    return MU_BOUND;
}

/* The usual case, an access whose content is where it is needed, under one lock. What it notes is noted again by settle when
 * another access of the task turns out to need more: the task is alone on what it writes, so nobody sees the difference. */
static mu_instance *bind_at_once(binding *b, const mu_access *access) {
    mu_coherence *table = &buffer_of(b, access)->coherence;
    uint64_t open = b->actor->timeline.open;
    int me = b->actor->index;
    mu_coherence_lock(table);
    mu_instance *instance = mu_coherence_instance(table, me, access->low, access->high);
    bool bound = instance != NULL;
    if (bound && (access->mode & MUSTER_READ)) {
        const mu_segment *segment = &table->segments[mu_coherence_find(table, access->low)];
        bound = segment->high >= access->high && (segment->valid & MU_LOCATION_DEVICE(me));
    }
    if (bound && (access->mode & MUSTER_WRITE))
        bound = mu_coherence_written(table, access->low, access->high, me, open);
    mu_coherence_unlock(table);
    return bound ? instance : NULL;
}

static mu_bind bind(binding *b, mu_address *addresses) {
    const mu_access *accesses = &b->run->graph->accesses[b->node->access_first];
    mu_instance *instances[MU_MAX_PARAMETERS];
    uint32_t at_once = 0;
    while (at_once < b->node->access_count && (instances[at_once] = bind_at_once(b, &accesses[at_once]))) at_once++;
    if (at_once == b->node->access_count) {
        for (uint32_t i = 0; i < at_once; i++) addresses[i] = use_instance(b, instances[i], &accesses[i]);
        return MU_BOUND;
    }
    uint64_t bytes = 0;
    bool all_covered = true;
    for (uint32_t i = 0; i < b->node->access_count; i++) {
        bool covered;
        mu_bind result = look_at(b, &accesses[i], &covered, &bytes);
        if (result != MU_BOUND) return result;
        all_covered &= covered;
    }
    if (!all_covered) {
        mu_bind result = bytes ? refuse_if_it_never_fits(b, bytes) : MU_BOUND;
        if (result == MU_BOUND && bytes) result = reserve(b, bytes);
        for (uint32_t i = 0; i < b->node->access_count && result == MU_BOUND; i++) {
            mu_coherence *table = &buffer_of(b, &accesses[i])->coherence;
            mu_coherence_lock(table);
            bool present = mu_coherence_instance(table, b->actor->index, accesses[i].low, accesses[i].high) != NULL;
            mu_coherence_unlock(table);
            if (!present) result = make_instance(b, &accesses[i]);
        }
        for (uint32_t i = 0; i < b->node->access_count && result == MU_BOUND; i++)
            if (accesses[i].mode & MUSTER_READ) result = bring(b, &accesses[i]);
        if (result == MU_BOUND && join_upload(b)) result = MU_BIND_FAILED;
        if (result != MU_BOUND) return result;
    }
    return settle(b, accesses, addresses);
}

mu_bind mu_bind_task(mu_actor *actor, muster_run *run, const mu_task *task, mu_address *addresses, int *await_device,
                     uint64_t *await_epoch, uint32_t *calls, muster_error *error) {
    binding b = {.actor = actor, .run = run, .task = task, .node = &run->graph->nodes[task->node], .error = error};
    mu_bind result = bind(&b, addresses);
    if (b.reserved_bytes) mu_ledger_release(mu_device_ledger(actor->device), b.reserved_bytes);
    /* Whatever is left on the upload lane must not be forgotten: instances already count as present. */
    if (result != MU_BOUND && b.uploading && join_upload(&b)) result = MU_BIND_FAILED;
    *await_device = b.await_device;
    *await_epoch = b.await_epoch;
    *calls = b.calls;
    return result;
}

mu_address mu_bind_address(mu_actor *actor, muster_buffer *buffer, const mu_access *access) {
    mu_coherence *table = &buffer->coherence;
    mu_coherence_lock(table);
    const mu_instance *instance = mu_coherence_instance(table, actor->index, access->low, access->high);
    mu_address address = instance ? instance->address + (access->low - instance->low) : 0;
    mu_coherence_unlock(table);
    return address;
}

void mu_bind_undefine(muster_run *run, const mu_node *node) {
    const mu_access *accesses = &run->graph->accesses[node->access_first];
    for (uint32_t i = 0; i < node->access_count; i++) {
        if (!(accesses[i].mode & MUSTER_WRITE)) continue;
        mu_coherence *table = &run->graph->buffers[accesses[i].buffer].buffer->coherence;
        mu_coherence_lock(table);
        /* Out of host memory: mark more than was lost rather than less. */
        if (!mu_coherence_undefined(table, accesses[i].low, accesses[i].high))
            for (uint32_t s = 0; s < table->count; s++)
                if (table->segments[s].low < accesses[i].high && accesses[i].low < table->segments[s].high)
                    table->segments[s].undefined = true;
        mu_coherence_unlock(table);
    }
}
