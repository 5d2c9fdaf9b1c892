#include "scheduler/memory/evict.h"

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/actor/bind.h"
#include "scheduler/actor/loss.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/memory/download.h"
#include "scheduler/runtime/runtime.h"

/* ------------------------------------------------------------------------------------------------ by last use, and end -- */

void mu_instance_link(mu_actor *actor, mu_instance *instance) {
    instance->lru_newer = NULL;
    instance->lru_older = actor->lru_newest;
    if (actor->lru_newest)
        actor->lru_newest->lru_newer = instance;
    else
        actor->lru_oldest = instance;
    actor->lru_newest = instance;
}

static void unlink_instance(mu_actor *actor, mu_instance *instance) {
    if (instance->lru_older)
        instance->lru_older->lru_newer = instance->lru_newer;
    else
        actor->lru_oldest = instance->lru_newer;
    if (instance->lru_newer)
        instance->lru_newer->lru_older = instance->lru_older;
    else
        actor->lru_newest = instance->lru_older;
}

void mu_instance_touch(mu_actor *actor, mu_instance *instance) {
    instance->unwritable = false;
    if (actor->lru_newest == instance) return;
    unlink_instance(actor, instance);
    mu_instance_link(actor, instance);
}

void mu_instance_retire(mu_actor *actor, mu_instance *instance) {
    unlink_instance(actor, instance);
    instance->next = actor->retired_instances;
    actor->retired_instances = instance;
}

/* Acquire pairs with the release of whoever unpinned it: its copy is complete. */
static bool in_use(const mu_actor *actor, const mu_instance *instance) {
    return instance->holds || atomic_load_explicit(&instance->pins, memory_order_acquire) ||
           mu_timeline_done(&actor->timeline) < instance->last_use ||
           mu_timeline_done(&actor->timeline) < instance->brought;
}

/* Of a lost device: nothing is done there any more, but others have yet to let go. */
static bool is_referred_to(const mu_actor *actor, const mu_instance *instance) {
    return !actor->lost_settled || instance->evicting || actor->arrivals.first || actor->staged_arrivals ||
           atomic_load_explicit(&instance->pins, memory_order_acquire);
}

void mu_instances_collect(mu_actor *actor) {
    mu_instance **link = &actor->retired_instances;
    while (*link) {
        mu_instance *instance = *link;
        if (actor->lost ? is_referred_to(actor, instance) : in_use(actor, instance) || instance->evicting) {
            link = &instance->next;
            continue;
        }
        *link = instance->next;
        muster_error error;
        if (mu_device_free(actor->device, MU_LANE_MEMORY, instance->allocation, instance->charged_bytes, &error))
            mu_actor_lose(actor, &error);
        mu_free(instance);
    }
}

/* -------------------------------------------------------------------------------------------------------- write-back -- */

/* Unique content of an instance on its way to the host. */
typedef struct write_back {
    mu_call call;
    mu_instance *instance;
    muster_buffer *buffer; /* a reference is held */
    muster_run *run;       /* kept from ending, for the application's memory is there no longer; NULL: none is */
    mu_download download;
    uint64_t last_use; /* of the instance when the copy began: a later use ends the eviction */
    bool incomplete;   /* part of it could not be started */
} write_back;

static bool is_unique(const mu_segment *segment, int device) {
    return segment->valid == MU_LOCATION_DEVICE(device) && !segment->undefined;
}

/* Takes the instance out of its buffer's table, unless it holds content that is valid nowhere else: looked at and dropped under
 * one lock, for another device may be giving up its copy at the same moment. */
static bool detach(mu_actor *actor, mu_instance *instance) {
    mu_coherence *table = &instance->buffer->coherence;
    bool unique = false;
    mu_coherence_lock(table);
    mu_range_cursor at;
    const mu_segment *segment = mu_coherence_first(table, &at, instance->low);
    for (; segment && segment->low < instance->high; segment = mu_coherence_next(table, &at))
        unique |= is_unique(segment, actor->index);
    bool dropped = !unique && mu_coherence_dropped(table, instance->low, instance->high, actor->index);
    if (dropped) {
        mu_instance **link = &table->instances[actor->index];
        while (*link != instance) link = &(*link)->next;
        *link = instance->next;
    }
    mu_coherence_unlock(table);
    if (dropped) mu_instance_retire(actor, instance);
    return dropped;
}

/* The run may end with it, and the application free the host memory. */
static void drop(write_back *w) {
    muster_run *run = w->run;
    mu_buffer_release(w->buffer);
    mu_free(w);
    if (run) mu_run_ended(run, 1);
}

static void look_at_write_back(mu_actor *actor, mu_call *call) {
    write_back *w = (write_back *)call;
    mu_instance *instance = w->instance;
    muster_error error;
    bool over = false;
    if (!actor->lost) mu_download_poll(actor, &w->download, &over, &error);
    if (!over && (!actor->lost || !mu_download_is_quiet(&w->download))) {
        mu_actor_defer(actor, call);
        return;
    }
    bool wanted = instance->wanted;
    instance->evicting = instance->wanted = false;
    actor->evictions--;
    mu_actor_take_up(actor, &actor->writers);
    /* Used again meanwhile: perhaps written, and in any case not the one to evict. */
    bool complete = over && !w->incomplete && !w->download.failure.status && !instance->changed &&
                    instance->last_use == w->last_use;
    instance->unwritable = w->download.failure.status != MUSTER_OK;
    mu_download_end(actor, &w->download, complete ? MU_NOTE_UNCHANGED : MU_NOTE_NOTHING);
    if (complete && !wanted && !in_use(actor, instance) && detach(actor, instance)) {
        mu_device_counters *counters = mu_device_counters_mutable(actor->device);
        mu_count(counters, &counters->evictions, 1);
        mu_count(counters, &counters->write_backs, 1);
    }
    mu_buffer_end_write_back(w->buffer);
    drop(w);
}

static muster_status plan_unique(const mu_actor *actor, const mu_instance *instance, mu_piece **pieces,
                                 muster_error *error) {
    mu_coherence *table = &instance->buffer->coherence;
    muster_status status = MUSTER_OK;
    mu_coherence_lock(table);
    mu_range_cursor at;
    const mu_segment *segment = mu_coherence_first(table, &at, instance->low);
    for (; !status && segment && segment->low < instance->high; segment = mu_coherence_next(table, &at))
        if (is_unique(segment, actor->index))
            status = mu_pieces_add(pieces, instance->buffer, segment, actor->index,
                                   segment->low > instance->low ? segment->low : instance->low,
                                   segment->high < instance->high ? segment->high : instance->high, error);
    mu_coherence_unlock(table);
    return status;
}

/* Whether anything is on its way now. What was started has to be waited for, whatever becomes of the rest. */
static bool start_copies(mu_actor *actor, write_back *w) {
    muster_error error;
    mu_piece *pieces = NULL;
    bool over = false;
    w->incomplete = plan_unique(actor, w->instance, &pieces, &error) != MUSTER_OK;
    while (pieces && !w->incomplete) {
        mu_download_start started = mu_download_add(actor, &w->download, &pieces, &error);
        w->incomplete = started == MU_DOWNLOAD_NOT_YET || started == MU_DOWNLOAD_FAILED;
    }
    mu_pieces_drop(pieces);
    if (!w->download.pieces) {
        mu_download_end(actor, &w->download, MU_NOTE_NOTHING);
        return false;
    }
    mu_download_poll(actor, &w->download, &over,
                     &error); /* the event goes behind the copies now, not behind later ones */
    return true;
}

/* False: it could not be started, and the instance stays. */
static bool start_write_back(mu_actor *actor, mu_instance *instance) {
    muster_error error;
    write_back *w = instance->unwritable ? NULL : mu_alloc_zeroed(1, sizeof *w);
    if (!w) return false;
    *w = (write_back){.call = {.run = look_at_write_back},
                      .instance = instance,
                      .buffer = instance->buffer,
                      .last_use = instance->last_use};
    /* A buffer without references is about to be dropped here: its message is on the way. */
    if (!mu_handle_try_retain(&w->buffer->handle)) goto free_record;
    if (mu_buffer_is_withdrawn(w->buffer)) w->run = mu_run_keep_user(actor->runtime, &w->buffer->order);
    if (!mu_buffer_begin_write_back(w->buffer, w->run)) goto drop_record;
    if (mu_buffer_make_host(w->buffer, &error)) {
        actor->host_shortage = error;
        goto end_write_back;
    }
    if (!start_copies(actor, w)) goto end_write_back;
    actor->host_shortage.status = MUSTER_OK;
    instance->evicting = true;
    instance->changed = false;
    actor->evictions++;
    mu_actor_defer(actor, &w->call);
    return true;
end_write_back:
    mu_buffer_end_write_back(w->buffer);
drop_record:
    drop(w);
    return false;
free_record:
    mu_free(w);
    return false;
}

/* ------------------------------------------------------------------------------------------------------------ evict -- */

/* What an instance is to the task that wants memory. */
typedef enum need {
    NO_NEED,
    IN_THE_WAY, /* it will be part of a wider instance: its content moves there, if it is not given up before */
    NEEDED
} need;

static need needed_by(const mu_instance *instance, const muster_run *run, const mu_node *node) {
    const muster_graph *graph = run->graph;
    need result = NO_NEED;
    for (uint32_t i = 0; i < node->access_count && result != IN_THE_WAY; i++) {
        const mu_access *access = &graph->accesses[node->access_first + i];
        if (graph->buffers[access->buffer].buffer != instance->buffer) continue;
        uint64_t low, high;
        mu_access_range(access, instance->buffer, &low, &high);
        if (instance->low <= access->low && access->high <= instance->high)
            result = NEEDED;
        else if (low < instance->high && instance->low < high)
            result = IN_THE_WAY;
    }
    return result;
}

static void give_up(mu_actor *actor, mu_instance *instance, uint64_t *coming) {
    if (detach(actor, instance)) {
        mu_device_counters *counters = mu_device_counters_mutable(actor->device);
        mu_count(counters, &counters->evictions, 1);
    } else if (!start_write_back(actor, instance)) {
        return;
    }
    *coming += instance->charged_bytes;
}

/* What an instance for the access alone would be charged. */
static uint64_t charge_of(const mu_access *access, const muster_buffer *buffer) {
    mu_parts parts = {.count = 0};
    uint64_t low, high, bytes;
    mu_access_range(access, buffer, &low, &high);
    mu_parts_add(&parts, access->buffer, low, high);
    return mu_parts_bytes(&parts, &bytes, NULL) ? UINT64_MAX / MU_MAX_PARAMETERS : bytes;
}

/* Whether what the task needs is there in instances so large, made for jobs that accessed more, that the rest of it never fits beside
 * them. They are noted. */
static bool crowds_itself_out(const mu_actor *actor, const muster_run *run, const mu_node *node,
                              const mu_instance *large[MU_MAX_PARAMETERS]) {
    const muster_graph *graph = run->graph;
    const mu_instance *counted[MU_MAX_PARAMETERS];
    uint32_t count = 0, large_count = 0;
    uint64_t sum;
    if (mu_scratch_bytes(graph, node, &sum, NULL)) return false;
    for (uint32_t i = 0; i < node->access_count; i++) {
        const mu_access *access = &graph->accesses[node->access_first + i];
        muster_buffer *buffer = graph->buffers[access->buffer].buffer;
        uint64_t own = charge_of(access, buffer);
        mu_coherence_lock(&buffer->coherence);
        const mu_instance *instance =
            mu_coherence_instance(&buffer->coherence, actor->index, access->low, access->high);
        mu_coherence_unlock(&buffer->coherence);
        if (!instance) {
            sum += own;
            continue;
        }
        uint32_t k = 0;
        while (k < count && counted[k] != instance) k++;
        if (k < count) continue;
        counted[count++] = instance;
        sum += instance->charged_bytes;
        if (instance->charged_bytes > own) large[large_count++] = instance;
    }
    while (large_count < MU_MAX_PARAMETERS) large[large_count++] = NULL;
    return sum > mu_ledger_capacity(mu_device_ledger(actor->device));
}

static bool is_among(const mu_instance *instance, const mu_instance *const *instances) {
    for (uint32_t i = 0; i < MU_MAX_PARAMETERS && instances[i]; i++)
        if (instances[i] == instance) return true;
    return false;
}

/* Only now that all else has been or is being given up. The task gets instances of its own size then. */
static void give_up_large(mu_actor *actor, uint64_t bytes, const muster_run *run, const mu_node *node,
                          uint64_t *coming) {
    const mu_instance *large[MU_MAX_PARAMETERS];
    if (*coming >= bytes || !crowds_itself_out(actor, run, node, large)) return;
    for (mu_instance *instance = actor->lru_oldest, *newer; instance && *coming < bytes; instance = newer) {
        newer = instance->lru_newer;
        if (!instance->evicting && !in_use(actor, instance) && is_among(instance, large))
            give_up(actor, instance, coming);
    }
}

uint64_t mu_evict(mu_actor *actor, uint64_t bytes, const muster_run *run, const mu_node *node) {
    uint64_t coming = 0;
    for (mu_instance *instance = actor->retired_instances; instance; instance = instance->next)
        coming += instance->charged_bytes;
    for (mu_instance *instance = actor->lru_oldest; instance; instance = instance->lru_newer)
        if (instance->evicting) coming += instance->charged_bytes;
    for (need least = NO_NEED; least < NEEDED; least++)
        for (mu_instance *instance = actor->lru_oldest, *newer; instance && coming < bytes; instance = newer) {
            newer = instance->lru_newer;
            if (instance->evicting || in_use(actor, instance) || needed_by(instance, run, node) != least) continue;
            give_up(actor, instance, &coming);
        }
    give_up_large(actor, bytes, run, node, &coming);
    return coming;
}
