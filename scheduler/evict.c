#include "scheduler/evict.h"

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/buffer.h"
#include "scheduler/loss.h"
#include "scheduler/runtime.h"

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
    return atomic_load_explicit(&instance->pins, memory_order_acquire) ||
           mu_timeline_done(&actor->timeline) < instance->last_use;
}

void mu_instances_collect(mu_actor *actor) {
    mu_instance **link = &actor->retired_instances;
    while (*link) {
        mu_instance *instance = *link;
        if (!actor->lost && (in_use(actor, instance) || instance->evicting)) {
            link = &instance->next;
            continue;
        }
        *link = instance->next;
        muster_error error;
        if (!actor->lost &&
            mu_device_free(actor->device, MU_LANE_UPLOAD, instance->allocation, instance->charged_bytes, &error))
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
    mu_event event;
    uint64_t last_use; /* of the instance when the copy began: a later use ends the eviction */
} write_back;

/* The next segment at or after `at` that is valid on this device and nowhere else, within the instance. */
static bool next_unique(mu_coherence *table, int me, const mu_instance *instance, uint64_t at, mu_segment *found) {
    bool any = false;
    mu_coherence_lock(table);
    for (uint32_t i = mu_coherence_find(table, at); i < table->count && table->segments[i].low < instance->high; i++) {
        *found = table->segments[i];
        if (found->low < at) found->low = at;
        if (found->high > instance->high) found->high = instance->high;
        if (found->valid == MU_LOCATION_DEVICE(me) && !found->undefined) {
            any = true;
            break;
        }
    }
    mu_coherence_unlock(table);
    return any;
}

/* Takes the instance out of its buffer's table, unless it holds content that is valid nowhere else: looked at and dropped under
 * one lock, for another device may be giving up its copy at the same moment. */
static bool detach(mu_actor *actor, mu_instance *instance) {
    mu_coherence *table = &instance->buffer->coherence;
    mu_location_mask mine = MU_LOCATION_DEVICE(actor->index);
    bool unique = false;
    mu_coherence_lock(table);
    for (uint32_t i = mu_coherence_find(table, instance->low);
         i < table->count && table->segments[i].low < instance->high; i++)
        unique |= table->segments[i].valid == mine && !table->segments[i].undefined;
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

static void finish_write_back(mu_actor *actor, write_back *w, bool copied) {
    mu_instance *instance = w->instance;
    mu_coherence *table = &w->buffer->coherence;
    int me = actor->index;
    instance->evicting = false;
    actor->evictions--;
    /* Used again meanwhile: perhaps written, and in any case not the one to evict. */
    if (copied && instance->last_use == w->last_use) {
        mu_segment segment;
        bool noted = true;
        for (uint64_t at = instance->low; noted && next_unique(table, me, instance, at, &segment); at = segment.high) {
            mu_coherence_lock(table);
            noted = mu_coherence_copied(table, segment.low, segment.high, MUSTER_ANY_DEVICE, 0);
            mu_coherence_unlock(table);
            if (segment.high >= instance->high) break;
        }
        if (noted && !in_use(actor, instance) && detach(actor, instance)) {
            mu_device_counters *counters = mu_device_counters_mutable(actor->device);
            mu_count(counters, &counters->evictions, 1);
            mu_count(counters, &counters->write_backs, 1);
        }
    }
    mu_buffer_end_write_back(w->buffer);
    mu_buffer_release(w->buffer);
    mu_free(w);
}

static void look_at_write_back(mu_actor *actor, mu_call *call) {
    write_back *w = (write_back *)call;
    muster_error error;
    bool done = false;
    if (!actor->lost && mu_event_poll(actor->device, w->event, &done, &error)) mu_actor_lose(actor, &error);
    if (!actor->lost && !done) {
        mu_actor_defer(actor, call);
        return;
    }
    if (!actor->lost) mu_event_destroy(actor->device, w->event);
    finish_write_back(actor, w, done);
}

static muster_status copy_unique(mu_actor *actor, write_back *w, muster_error *error) {
    mu_instance *instance = w->instance;
    mu_segment segment;
    muster_status status = mu_event_create(actor->device, &w->event, error);
    if (status) return status;
    for (uint64_t at = instance->low; !status && at < instance->high; at = segment.high) {
        if (!next_unique(&w->buffer->coherence, actor->index, instance, at, &segment)) break;
        status = mu_copy_to_host(actor->device, MU_LANE_DOWNLOAD, (char *)w->buffer->host + segment.low,
                                 instance->address + (segment.low - instance->low), segment.high - segment.low, error);
    }
    if (!status) status = mu_event_record(actor->device, MU_LANE_DOWNLOAD, w->event, error);
    if (status) mu_event_destroy(actor->device, w->event);
    return status;
}

/* False: it could not be started, and the instance stays. */
static bool start_write_back(mu_actor *actor, mu_instance *instance) {
    muster_error error;
    write_back *w = mu_alloc_zeroed(1, sizeof *w);
    if (!w) return false;
    *w = (write_back){.call = {.run = look_at_write_back},
                      .instance = instance,
                      .buffer = instance->buffer,
                      .last_use = instance->last_use};
    /* A buffer without references is about to be dropped here: its message is on the way. */
    if (!mu_handle_try_retain(&w->buffer->handle)) goto free_record;
    if (!mu_buffer_begin_write_back(w->buffer)) goto release_buffer;
    if (mu_buffer_make_host(w->buffer, &error) || copy_unique(actor, w, &error)) goto end_write_back;
    instance->evicting = true;
    actor->evictions++;
    mu_actor_defer(actor, &w->call);
    return true;
end_write_back:
    mu_buffer_end_write_back(w->buffer);
release_buffer:
    mu_buffer_release(w->buffer);
free_record:
    mu_free(w);
    return false;
}

/* ------------------------------------------------------------------------------------------------------------ evict -- */

static bool needed_by(const mu_instance *instance, const muster_run *run, const mu_node *node) {
    const muster_graph *graph = run->graph;
    for (uint32_t i = 0; i < node->access_count; i++)
        if (graph->buffers[graph->accesses[node->access_first + i].buffer].buffer == instance->buffer) return true;
    return false;
}

uint64_t mu_evict(mu_actor *actor, uint64_t bytes, const muster_run *run, const mu_node *node) {
    uint64_t coming = 0;
    for (mu_instance *instance = actor->retired_instances; instance; instance = instance->next)
        coming += instance->charged_bytes;
    for (mu_instance *instance = actor->lru_oldest, *newer; instance && coming < bytes; instance = newer) {
        newer = instance->lru_newer;
        if (instance->evicting) {
            coming += instance->charged_bytes;
            continue;
        }
        if (in_use(actor, instance) || needed_by(instance, run, node)) continue;
        if (detach(actor, instance)) {
            mu_device_counters *counters = mu_device_counters_mutable(actor->device);
            mu_count(counters, &counters->evictions, 1);
        } else if (!start_write_back(actor, instance)) {
            continue;
        }
        coming += instance->charged_bytes;
    }
    return coming;
}
