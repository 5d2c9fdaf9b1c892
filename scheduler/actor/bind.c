#include "scheduler/actor/bind.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "scheduler/actor/epoch.h"
#include "scheduler/actor/loss.h"
#include "scheduler/graph/advice.h"
#include "scheduler/memory/arrivals.h"
#include "scheduler/memory/detour.h"
#include "scheduler/memory/evict.h"
#include "scheduler/memory/fetch.h"
#include "scheduler/runtime/runtime.h"

/* ------------------------------------------------------------------------------------------- what is needed, looked at -- */

/* Where a segment can be copied from: a device that is reached directly; the host; a device that is reached by way of the host only.
 * MUSTER_ANY_DEVICE: the host. */
static int choose_source(const mu_task_binding *b, const mu_segment *segment) {
    const muster_runtime *runtime = b->actor->runtime;
    mu_location_mask reach = runtime->reach[b->actor->index];
    int source = mu_choose_source(runtime, segment, reach);
    if (source != MUSTER_ANY_DEVICE || (segment->valid & MU_LOCATION_HOST)) return source;
    return mu_choose_source(runtime, segment, ~reach);
}

static mu_bind undefined(mu_task_binding *b, const mu_access *access, const mu_segment *segment) {
    const muster_graph *graph = b->run->graph;
    char name[MU_ACCESS_NAME_BYTES], what[16 + MU_ACCESS_NAME_BYTES];
    mu_access_name(graph, b->node, (uint32_t)(access - &graph->accesses[b->node->access_first]), name);
    snprintf(what, sizeof what, "the buffer of %s", name);
    mu_segment_fail(segment, what, b->error);
    return MU_BIND_FAILED;
}

/* What one look at all accesses finds out. */
typedef struct need {
    bool covered;      /* all content is where it is needed */
    mu_parts missing;  /* that no instance holds */
    uint64_t incoming; /* content to bring */
    bool staged;       /* some of it from pageable memory */
    mu_area detour;    /* of MU_BIND_DETOUR */
} need;

static mu_bind wait_for_epoch(mu_task_binding *b, int device, uint64_t epoch, mu_bind result) {
    b->await_device = device;
    b->await_epoch = epoch;
    return result;
}

static mu_bind wait_for_arrival(mu_task_binding *b, mu_arrival *arrival) {
    b->arrival = arrival;
    return MU_BIND_ARRIVAL;
}

/* A segment that is read and not valid here. */
static mu_bind look_at_missing(mu_task_binding *b, const mu_access *access, const mu_segment *segment,
                               const mu_walk *walk, const mu_instance *instance, need *n) {
    const mu_coherence *table = walk->table;
    mu_actor *actor = b->actor;
    if (segment->undefined) return undefined(b, access, segment);
    n->covered = false;
    n->incoming += walk->high - walk->low;
    /* It will overwrite what an older kernel here may still use. */
    if (instance && mu_actor_is_behind(actor, actor->index, instance->last_use))
        return wait_for_epoch(b, actor->index, instance->last_use, MU_BIND_EPOCH);
    if (segment->zero) return MU_BOUND;
    int source = choose_source(b, segment);
    if (source == MUSTER_ANY_DEVICE) {
        /* Rows come together. */
        bool rows = walk->area.rows > 1 || table->pitch;
        n->staged |= mu_arrival_is_staged(mu_access_buffer(b, access),
                                          rows ? mu_area_bytes(&walk->area) : walk->high - walk->low);
        return MU_BOUND;
    }
    if (!(actor->runtime->reach[actor->index] & MU_LOCATION_DEVICE(source))) {
        uint64_t pitch = walk->area.rows > 1 ? walk->area.pitch : table->pitch, stamp;
        n->detour = (mu_area){walk->low, walk->high, pitch, 1};
        n->detour.rows = mu_coherence_repeats(table, segment, walk->low, walk->high, pitch, mu_area_end(&walk->area),
                                              source, &stamp);
        return MU_BIND_DETOUR;
    }
    uint64_t stamp = segment->stamps[source];
    if (mu_timeline_closed(&actor->runtime->actors[source].timeline) < stamp)
        return wait_for_epoch(b, source, stamp, MU_BIND_AWAIT);
    if (mu_actor_is_behind(actor, source, stamp)) return wait_for_epoch(b, source, stamp, MU_BIND_EPOCH);
    return MU_BOUND;
}

/* Looks at one access without changing anything. */
static mu_bind look_at(mu_task_binding *b, const mu_access *access, need *n) {
    muster_buffer *buffer = mu_access_buffer(b, access);
    mu_coherence *table = &buffer->coherence;
    mu_actor *actor = b->actor;
    const mu_area area = mu_access_area(b->run->graph, access);
    mu_area moving = area; /* what is arriving there is in the way */
    mu_bind result = MU_BOUND;
    mu_coherence_lock(table);
    mu_instance *instance = mu_coherence_instance(table, actor->index, access->low, access->high);
    if (instance && instance->evicting && (access->mode & MUSTER_WRITE)) {
        instance->wanted = true;
        result = MU_BIND_WRITER;
    }
    if (!instance) {
        n->covered = false;
        uint64_t low, high;
        mu_instance_range(b, access, &low, &high);
        mu_parts_add(&n->missing, access->buffer, low, high);
        moving = mu_area_of(low, high);
    }
    mu_walk walk;
    const mu_segment *segment = access->mode & MUSTER_READ ? mu_walk_first(&walk, table, &area) : NULL;
    for (; result == MU_BOUND && segment; segment = mu_walk_next(&walk))
        if (!(segment->valid & MU_LOCATION_DEVICE(actor->index)))
            result = look_at_missing(b, access, segment, &walk, instance, n);
    mu_coherence_unlock(table);
    if (result == MU_BIND_DETOUR) {
        b->detour = mu_detour_take(actor, buffer, &n->detour, b->error);
        return b->detour ? MU_BIND_DETOUR : MU_BIND_FAILED;
    }
    /* What is arriving is neither overwritten nor moved. */
    if (result == MU_BOUND && (actor->arrivals.first || actor->staged_arrivals) &&
        (!instance || (access->mode & MUSTER_WRITE))) {
        mu_arrival *arrival = mu_arrival_meets(actor, buffer, &moving);
        if (arrival) return wait_for_arrival(b, arrival);
    }
    return result;
}

/* -------------------------------------------------------------------------------------------------------- transfers -- */

/* The upload lane may write the instance only after the kernels that use its old content. */
static muster_status order_after_use(mu_task_binding *b, const mu_instance *instance) {
    mu_timeline *timeline = &b->actor->timeline;
    if (instance->last_use == timeline->open) {
        /* Uploads of this epoch belong behind its event. */
        muster_status status = mu_bind_join_upload(b);
        if (!status) status = mu_epoch_close(b->actor, b->error);
        if (status) return status;
    }
    if (mu_timeline_wait(timeline, instance->last_use, b->actor->device, MU_LANE_UPLOAD, b->error) == MU_EPOCH_FAILED)
        return b->error ? b->error->status : MUSTER_DRIVER_ERROR;
    return MUSTER_OK;
}

/* A device may hold a segment in several instances: the piece is what the first has of it, pinned. */
static void take_source(const mu_coherence *table, mu_incoming *piece) {
    mu_area *area = &piece->area;
    for (mu_instance *held = table->instances[piece->source]; held; held = held->next) {
        if (held->low > area->low || held->high <= area->low) continue;
        if (held->high < area->high) area->high = held->high;
        piece->instance = held;
        piece->address = held->address + (area->low - held->low);
        atomic_fetch_add_explicit(&held->pins, 1, memory_order_relaxed);
        return;
    }
}

/* Makes of the piece as many rows as follow in `area`, from the same source and not on their way. */
static void repeat(const mu_task_binding *b, const muster_buffer *buffer, const mu_segment *segment,
                   const mu_area *area, mu_incoming *piece) {
    const mu_coherence *table = &buffer->coherence;
    mu_area *rows = &piece->area;
    uint64_t end = mu_area_end(area);
    if (piece->instance && piece->instance->high < end) end = piece->instance->high;
    rows->pitch = area->rows > 1 ? area->pitch : table->pitch;
    rows->rows =
        mu_coherence_repeats(table, segment, rows->low, rows->high, rows->pitch, end, piece->source, &piece->stamp);
    if (rows->rows > 1 && mu_arrival_meets(b->actor, buffer, rows)) {
        rows->rows = 1;
        piece->stamp = piece->source == MUSTER_ANY_DEVICE ? 0 : segment->stamps[piece->source];
    }
}

/* The first piece of [at, end) that is not valid here, with its source pinned, and likewise what repeats it further behind, up to the
 * end of the area. */
static bool next_piece(mu_task_binding *b, muster_buffer *buffer, const mu_area *area, uint64_t at, uint64_t end,
                       mu_incoming *out) {
    mu_coherence *table = &buffer->coherence;
    int me = b->actor->index;
    bool found = false;
    mu_coherence_lock(table);
    mu_range_cursor cursor;
    const mu_segment *segment = mu_coherence_first(table, &cursor, at);
    for (; !found && segment && segment->low < end; segment = mu_coherence_next(table, &cursor)) {
        if (segment->valid & MU_LOCATION_DEVICE(me)) continue;
        found = true;
        uint64_t low = segment->low > at ? segment->low : at;
        uint64_t high = segment->high < end ? segment->high : end;
        *out = (mu_incoming){.area = mu_area_of(low, high), .zero = segment->zero, .source = MUSTER_ANY_DEVICE};
        out->undefined = segment->undefined || (!segment->zero && !segment->valid);
        if (out->undefined) out->lost = *segment;
        if (out->undefined) break;
        if (!segment->zero) out->source = choose_source(b, segment);
        if (out->source != MUSTER_ANY_DEVICE) take_source(table, out);
        repeat(b, buffer, segment, area, out);
    }
    mu_coherence_unlock(table);
    return found;
}

static void unpin(const mu_incoming *piece) {
    if (piece->instance) atomic_fetch_sub_explicit(&piece->instance->pins, 1, memory_order_release);
}

/* The dispatch lane will wait for the piece. The source stays pinned until the epoch is done. */
static mu_bind bring_joined(mu_task_binding *b, muster_buffer *buffer, mu_instance *instance,
                            const mu_incoming *piece) {
    mu_actor *actor = b->actor;
    mu_transfer *transfer = mu_epoch_add_transfer(actor);
    if (!transfer) {
        mu_fail_host_memory(b->error, "a transfer", sizeof *transfer);
        unpin(piece);
        return MU_BIND_FAILED;
    }
    transfer->source = piece->instance;
    if (piece->instance) mu_transfer_note(actor, transfer, buffer, &piece->area, piece->source, piece->stamp);
    b->uploading = true;                      /* also when the copy fails half-way */
    instance->brought = actor->timeline.open; /* the task may never be launched, and others want the memory */
    instance->changed = true;
    b->calls++;
    if (mu_incoming_copy(actor, buffer, instance, piece, b->error)) return MU_BIND_FAILED;
    mu_epoch_add_upload(actor, mu_area_bytes(&piece->area));
    mu_coherence_lock(&buffer->coherence);
    bool noted = mu_coherence_copied_area(&buffer->coherence, &piece->area, actor->index, actor->timeline.open);
    mu_coherence_unlock(&buffer->coherence);
    if (noted) return MU_BOUND;
    mu_fail_host_memory(b->error, "the range table of a buffer", sizeof(mu_segment));
    return MU_BIND_FAILED;
}

/* Only the task waits for the piece. */
static mu_bind bring_patiently(mu_task_binding *b, muster_buffer *buffer, mu_instance *instance,
                               const mu_incoming *piece) {
    mu_arrival *arrival = mu_arrival_start(b->actor, buffer, instance, piece, b->error);
    if (!arrival) {
        unpin(piece);
        return MU_BIND_FAILED;
    }
    b->arrival = arrival;
    b->calls++;
    return MU_BOUND;
}

static mu_bind bring_piece(mu_task_binding *b, const mu_access *access, mu_instance *instance, bool *ordered,
                           mu_incoming *piece) {
    muster_buffer *buffer = mu_access_buffer(b, access);
    if (piece->undefined) return undefined(b, access, &piece->lost);
    if (piece->instance && mu_timeline_closed(&b->actor->runtime->actors[piece->source].timeline) < piece->stamp) {
        /* Stamped again since it was looked at. */
        unpin(piece);
        return wait_for_epoch(b, piece->source, piece->stamp, MU_BIND_AWAIT);
    }
    if (!*ordered && order_after_use(b, instance)) {
        unpin(piece);
        return MU_BIND_FAILED;
    }
    *ordered = true;
    return b->patient ? bring_patiently(b, buffer, instance, piece) : bring_joined(b, buffer, instance, piece);
}

/* Brings what is missing of a row, and what repeats that in rows behind it. */
static mu_bind bring_row(mu_task_binding *b, const mu_access *access, mu_instance *instance, bool *ordered,
                         const mu_area *area, uint32_t row) {
    muster_buffer *buffer = mu_access_buffer(b, access);
    mu_bind result = MU_BOUND;
    uint64_t at = mu_area_row(area, row), high = at + mu_area_width(area);
    while (at < high && result == MU_BOUND) {
        mu_range there;
        mu_arrival *coming = mu_arrival_find(b->actor, buffer, at, high, &there);
        if (coming) b->arrival = coming;
        if (coming && there.low <= at) {
            at = there.high;
            continue;
        }
        uint64_t end = coming ? there.low : high;
        mu_incoming piece;
        if (next_piece(b, buffer, area, at, end, &piece)) {
            result = bring_piece(b, access, instance, ordered, &piece);
            end = piece.area.high;
        }
        at = end;
    }
    return result;
}

/* Brings what is missing of a read access and not on its way yet. */
static mu_bind bring(mu_task_binding *b, const mu_access *access) {
    mu_coherence *table = &mu_access_buffer(b, access)->coherence;
    mu_coherence_lock(table);
    mu_instance *instance = mu_coherence_instance(table, b->actor->index, access->low, access->high);
    mu_coherence_unlock(table);
    const mu_area area = mu_access_area(b->run->graph, access);
    bool ordered = false;
    mu_bind result = MU_BOUND;
    for (uint32_t row = 0; row < area.rows && result == MU_BOUND; row++)
        result = bring_row(b, access, instance, &ordered, &area, row);
    return result;
}

/* ------------------------------------------------------------------------------------------------------------- bind -- */

/* Only once the task is going to be launched: what waits for memory keeps nobody else's from being given up. */
static inline mu_address use_instance(mu_task_binding *b, mu_instance *instance, const mu_access *access) {
    uint64_t open = b->actor->timeline.open;
    if (instance->last_use != open) mu_instance_touch(b->actor, instance);
    instance->last_use = open;
    return instance->address + (access->low - instance->low);
}

/* It was brought here, but may have been lost on the way. */
static bool is_valid_here(const mu_coherence *table, const mu_area *area, int me, mu_segment *gone) {
    mu_walk walk;
    for (const mu_segment *segment = mu_walk_first(&walk, table, area); segment; segment = mu_walk_next(&walk)) {
        *gone = *segment;
        if (!(gone->valid & MU_LOCATION_DEVICE(me))) return false;
    }
    return true;
}

/* Addresses, and what the task's writes will mean for other copies, once everything is in place. */
static mu_bind settle(mu_task_binding *b, const mu_access *accesses, mu_address *addresses) {
    uint64_t open = b->actor->timeline.open;
    int me = b->actor->index;
    for (uint32_t i = 0; i < b->node->access_count; i++) {
        const mu_access *access = &accesses[i];
        mu_coherence *table = &mu_access_buffer(b, access)->coherence;
        mu_coherence_lock(table);
        mu_instance *instance = mu_coherence_instance(table, me, access->low, access->high);
        mu_segment gone;
        const mu_area area = mu_access_area(b->run->graph, access);
        bool defined = !(access->mode & MUSTER_READ) || is_valid_here(table, &area, me, &gone);
        bool noted = defined && (!(access->mode & MUSTER_WRITE) || mu_coherence_written_area(table, &area, me, open));
        mu_coherence_unlock(table);
        if (!defined) return undefined(b, access, &gone);
        if (!noted) {
            mu_fail_host_memory(b->error, "the range table of a buffer", sizeof(mu_segment));
            return MU_BIND_FAILED;
        }
        addresses[i] = use_instance(b, instance, access);
    }
    return MU_BOUND;
}

/* As find_bound, of an access that is rows. */
static mu_instance *find_rows_bound(mu_task_binding *b, const mu_access *access, bool write) {
    mu_coherence *table = &mu_access_buffer(b, access)->coherence;
    const mu_area area = mu_access_area(b->run->graph, access);
    int me = b->actor->index;
    mu_segment gone;
    mu_coherence_lock(table);
    mu_instance *instance = mu_coherence_instance(table, me, access->low, access->high);
    bool bound = instance && !(instance->evicting && (access->mode & MUSTER_WRITE)) &&
                 (!(access->mode & MUSTER_READ) || is_valid_here(table, &area, me, &gone));
    if (bound && write && (access->mode & MUSTER_WRITE))
        bound = mu_coherence_written_area(table, &area, me, b->actor->timeline.open);
    mu_coherence_unlock(table);
    return bound ? instance : NULL;
}

/* An access whose content is where it is needed. With `write`, what it writes is noted under the same lock: only when nothing can keep
 * the task from being launched any more, for content that counts as written in an epoch which nothing is in would never be complete. */
static mu_instance *find_bound(mu_task_binding *b, const mu_access *access, bool write) {
    if (access->stride) return find_rows_bound(b, access, write);
    mu_coherence *table = &mu_access_buffer(b, access)->coherence;
    int me = b->actor->index;
    uint64_t written = (access->mode & MUSTER_WRITE) ? b->actor->timeline.open : 0;
    mu_coherence_lock(table);
    mu_instance *instance = mu_coherence_instance(table, me, access->low, access->high);
    bool bound = instance && !(instance->evicting && written);
    if (bound && (access->mode & MUSTER_READ)) {
        const mu_segment *segment = mu_coherence_find(table, access->low);
        bound = segment->high >= access->high && (segment->valid & MU_LOCATION_DEVICE(me));
        if (bound && !written)
            mu_coherence_remember(table, me, instance, segment->low > instance->low ? segment->low : instance->low,
                                  segment->high < instance->high ? segment->high : instance->high, 0);
    }
    if (bound && write && written) {
        bound = mu_coherence_written(table, access->low, access->high, me, written);
        if (bound) mu_coherence_remember(table, me, instance, access->low, access->high, written);
    }
    mu_coherence_unlock(table);
    return bound ? instance : NULL;
}

/* The same where nothing has changed since the last look, as is usual; NULL: that takes find_bound. What is written is noted. */
static inline mu_instance *see_bound(const mu_graph_buffer *buffers, const mu_access *access, int me, uint64_t open) {
    if (access->stride) return NULL;
    uint64_t written = (access->mode & MUSTER_WRITE) ? open : 0;
    mu_coherence *table = &buffers[access->buffer].buffer->coherence;
    mu_instance *instance = mu_coherence_sight(table, me, access->low, access->high, written);
    return instance && !(instance->evicting && written) ? instance : NULL;
}

/* Everything is where it is needed, or false. */
static bool bind_at_once(mu_task_binding *b, const mu_access *accesses) {
    mu_instance *instances[MU_MAX_PARAMETERS];
    const mu_graph_buffer *buffers = b->run->graph->buffers;
    uint64_t open = b->actor->timeline.open;
    uint32_t count = b->node->access_count;
    int me = b->actor->index;
    bool noted = true;
    for (uint32_t i = 0; i < count; i++) {
        if ((instances[i] = see_bound(buffers, &accesses[i], me, open))) continue;
        bool last = i + 1 == count;
        if (!(instances[i] = find_bound(b, &accesses[i], last))) return false;
        noted &= last || !(accesses[i].mode & MUSTER_WRITE);
    }
    for (uint32_t i = 0; i + 1 < count && !noted; i++)
        if ((accesses[i].mode & MUSTER_WRITE) && !see_bound(buffers, &accesses[i], me, open) &&
            !find_bound(b, &accesses[i], true))
            return false;
    mu_address *addresses = b->addresses;
    for (uint32_t i = 0; i < count; i++) addresses[i] = use_instance(b, instances[i], &accesses[i]);
    return true;
}

static bool is_present(mu_task_binding *b, const mu_access *access) {
    mu_coherence *table = &mu_access_buffer(b, access)->coherence;
    mu_coherence_lock(table);
    bool present = mu_coherence_instance(table, b->actor->index, access->low, access->high) != NULL;
    mu_coherence_unlock(table);
    return present;
}

/* Memory for everything first, and then all content that is missing, so that it comes at the same time. */
static mu_bind provide(mu_task_binding *b, const mu_access *accesses, uint64_t bytes) {
    uint32_t count = b->node->access_count;
    mu_bind result = bytes ? mu_instance_reserve(b, bytes) : MU_BOUND;
    for (uint32_t i = 0; i < count && result == MU_BOUND; i++)
        if (!is_present(b, &accesses[i])) result = mu_instance_make(b, &accesses[i]);
    if (result == MU_BOUND && mu_bind_join_memory(b)) result = MU_BIND_FAILED;
    for (uint32_t i = 0; i < count && result == MU_BOUND; i++)
        if (accesses[i].mode & MUSTER_READ) result = bring(b, &accesses[i]);
    if (result != MU_BOUND || b->arrival) return result;
    result = mu_scratch_make(b, b->addresses + count);
    if (result == MU_BOUND && (mu_bind_join_memory(b) || mu_bind_join_upload(b))) result = MU_BIND_FAILED;
    return result;
}

/* The order of jobs protects what is arriving as long as the task counts as not enqueued: it waits, whatever else happened. */
static mu_bind hold_for_arrival(mu_task_binding *b, const mu_access *accesses, mu_bind result) {
    if (!b->arrival || b->actor->lost) return result;
    for (uint32_t i = 0; i < b->node->access_count; i++) {
        mu_coherence *table = &mu_access_buffer(b, &accesses[i])->coherence;
        mu_coherence_lock(table);
        mu_instance *instance = mu_coherence_instance(table, b->actor->index, accesses[i].low, accesses[i].high);
        mu_coherence_unlock(table);
        if (instance) instance->holds++;
    }
    b->task->held = true;
    return MU_BIND_ARRIVAL;
}

void mu_bind_let_go(mu_actor *actor, muster_run *run, mu_task *task) {
    if (!task->held) return;
    task->held = false;
    const mu_node *node = &run->graph->nodes[task->node];
    const mu_access *accesses = &run->graph->accesses[node->access_first];
    for (uint32_t i = 0; i < node->access_count; i++) {
        mu_coherence *table = &run->graph->buffers[accesses[i].buffer].buffer->coherence;
        mu_coherence_lock(table);
        mu_instance *instance = mu_coherence_instance(table, actor->index, accesses[i].low, accesses[i].high);
        mu_coherence_unlock(table);
        if (instance) instance->holds--;
    }
}

static mu_bind bind(mu_task_binding *b, const mu_access *accesses) {
    uint32_t count = b->node->access_count;
    need n;
    n.covered = true;
    n.staged = false;
    n.incoming = n.missing.count = 0;
    for (uint32_t i = 0; i < count; i++) {
        mu_bind result = look_at(b, &accesses[i], &n);
        if (result != MU_BOUND) return result;
    }
    uint64_t bytes, scratch;
    if (mu_parts_bytes(&n.missing, &bytes, b->error) || mu_scratch_bytes(b->run->graph, b->node, &scratch, b->error))
        return MU_BIND_FAILED;
    if (!n.covered || scratch) {
        b->patient = b->node->kind == MU_NODE_PREFETCH || n.staged || mu_arrivals_are_slow(b->actor, n.incoming);
        mu_bind result = hold_for_arrival(b, accesses, provide(b, accesses, bytes + scratch));
        if (result != MU_BOUND) return result;
    }
    return settle(b, accesses, b->addresses);
}

mu_bind mu_bind_task(mu_task_binding *b) {
    const mu_access *accesses = &b->run->graph->accesses[b->node->access_first];
    if (!(b->node->flags & MU_NODE_SCRATCH) && bind_at_once(b, accesses)) return MU_BOUND;
    mu_bind result = bind(b, accesses);
    if (b->reserved_bytes) mu_ledger_release(mu_device_ledger(b->actor->device), b->reserved_bytes);
    b->reserved_bytes = 0;
    /* Whatever is left on the other lanes must not be forgotten: instances already count as present. */
    if (b->allocated && mu_bind_join_memory(b)) result = MU_BIND_FAILED;
    if (b->uploading && mu_bind_join_upload(b)) result = MU_BIND_FAILED;
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
        const mu_area area = mu_access_area(run->graph, &accesses[i]);
        mu_coherence_lock(table);
        mu_coherence_lose_area(table, &area, MUSTER_ANY_DEVICE);
        mu_coherence_unlock(table);
    }
}
