#include "scheduler/memory/fetch.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/actor/loss.h"
#include "scheduler/runtime/runtime.h"

/* ---------------------------------------------------------------------------------------------------- on the devices -- */

static void fail(mu_fetch *fetch, const muster_error *error) {
    if (!atomic_exchange_explicit(&fetch->failed, true, memory_order_relaxed)) fetch->failure = *error;
}

static bool is_written_back(const mu_fetch *fetch) {
    for (uint32_t i = 0; i < fetch->range_count; i++)
        if (mu_buffer_is_writing_back(fetch->ranges[i].buffer)) return true;
    return false;
}

/* Starts what can be started. */
static muster_status start_pieces(mu_actor *actor, mu_fetch_part *part, muster_error *error) {
    mu_piece **link = &part->pieces;
    while (*link) {
        mu_download_start started = mu_download_add(actor, &part->download, link, error);
        if (started == MU_DOWNLOAD_FAILED) return error->status;
        if (started == MU_DOWNLOAD_NOT_YET) link = &(*link)->next;
    }
    return MUSTER_OK;
}

/* Copies that are under way are waited for even when others could not be started: they write to the host memory. */
static bool is_over(mu_actor *actor, mu_fetch_part *part, muster_error *error) {
    bool over;
    if (!part->failed && part->pieces && start_pieces(actor, part, error)) {
        part->failed = true;
        fail(part->fetch, error);
        if (muster_status_recovery(error->status) == MUSTER_RECOVERY_DEVICE_LOST) mu_actor_lose(actor, error);
    }
    if (actor->lost || mu_download_poll(actor, &part->download, &over, error)) return false;
    if (part->download.failure.status && !part->failed) {
        part->failed = true;
        fail(part->fetch, &part->download.failure);
    }
    /* What came out of an epoch that is not done may yet turn out to be lost. */
    uint64_t done = mu_timeline_done(&actor->timeline);
    if (!over || done < part->stamp) return false;
    /* Now, not with the rest: another fetch may wait for these bytes, and this one for that one's. */
    mu_download_end(actor, &part->download, MU_NOTE_ARRIVED);
    return (!part->pieces || part->failed) && done >= part->fetch->after[actor->index];
}

static void plan_ranges(mu_fetch *fetch);

/* What was to come from a device that is lost may be somewhere else; if not, that is known once its worker has settled the loss. */
static bool start_again(mu_fetch *fetch) {
    if (!fetch->uses_host || fetch->failure.status != MUSTER_DEVICE_LOST || mu_runtime_check(fetch->runtime, NULL))
        return false;
    fetch->failure.status = MUSTER_OK;
    atomic_store_explicit(&fetch->failed, false, memory_order_relaxed);
    for (uint32_t d = 0; d < fetch->runtime->device_count; d++) fetch->parts[d].failed = false;
    plan_ranges(fetch);
    return mu_fetch_start(fetch);
}

static void run_part(mu_actor *actor, mu_call *call) {
    mu_fetch_part *part = (mu_fetch_part *)call;
    mu_fetch *fetch = part->fetch;
    muster_error error;
    bool over = !actor->lost && !is_written_back(fetch) && is_over(actor, part, &error);
    /* Of a lost device too: what was in flight there ends after what it followed on others. */
    if (!over && (!actor->lost || !mu_download_is_quiet(&part->download) ||
                  mu_timeline_done(&actor->timeline) < fetch->after[actor->index])) {
        mu_actor_defer(actor, call);
        return;
    }
    if (!over) fail(fetch, &actor->loss);
    mu_pieces_drop(part->pieces);
    part->pieces = NULL;
    mu_download_end(actor, &part->download, MU_NOTE_NOTHING); /* of a lost device */
    if (atomic_fetch_sub_explicit(&fetch->left, 1, memory_order_acq_rel) == 1 && !start_again(fetch))
        fetch->done(fetch);
}

bool mu_fetch_start(mu_fetch *fetch) {
    muster_runtime *runtime = fetch->runtime;
    bool needed[MU_MAX_DEVICES];
    uint32_t count = 0, devices = runtime->device_count;
    for (uint32_t d = 0; d < devices; d++) {
        fetch->parts[d].stamp = 0;
        for (const mu_piece *piece = fetch->parts[d].pieces; piece; piece = piece->next)
            if (fetch->parts[d].stamp < piece->stamp) fetch->parts[d].stamp = piece->stamp;
        needed[d] = fetch->parts[d].pieces || mu_timeline_done(&runtime->actors[d].timeline) < fetch->after[d];
        count += needed[d];
    }
    /* Any device may look whether an eviction has ended. */
    if (count == 0 && fetch->uses_host && is_written_back(fetch)) needed[0] = true, count = 1;
    if (count == 0) return false;
    atomic_store_explicit(&fetch->left, count, memory_order_relaxed); /* ordered by the posts */
    for (uint32_t d = 0; d < devices; d++)
        if (needed[d]) mu_actor_post_call(&runtime->actors[d], &fetch->parts[d].call);
    return true;
}

/* ------------------------------------------------------------------------------------------------------------- plan -- */

int mu_choose_source(const muster_runtime *runtime, const mu_segment *segment, mu_location_mask among) {
    int chosen = MUSTER_ANY_DEVICE, best = -1;
    for (int d = 0; d < (int)runtime->device_count; d++) {
        if (!(segment->valid & among & MU_LOCATION_DEVICE(d))) continue;
        const mu_timeline *timeline = &runtime->actors[d].timeline;
        uint64_t stamp = segment->stamps[d];
        int rank = (mu_timeline_closed(timeline) >= stamp) + (mu_timeline_done(timeline) >= stamp);
        if (rank > best) chosen = d, best = rank;
    }
    return chosen;
}

static muster_status fail_undefined(const mu_fetch *fetch, const mu_fetch_range *range, const mu_segment *segment,
                                    muster_error *error) {
    char what[48] = "the buffer";
    if (fetch->arguments) snprintf(what, sizeof what, "the buffer of argument %u", (uint32_t)(range - fetch->ranges));
    return mu_segment_fail(segment, what, error);
}

/* What is zero needs no copy: nobody has written it, and host memory of our own starts as zeros. */
static muster_status plan_range(mu_fetch *fetch, const mu_fetch_range *range, muster_error *error) {
    mu_coherence *table = &range->buffer->coherence;
    muster_status status = MUSTER_OK;
    mu_coherence_lock(table);
    mu_walk walk;
    const mu_segment *segment = mu_walk_first(&walk, table, &range->area);
    for (; !status && segment; segment = mu_walk_next(&walk)) {
        if (segment->zero || (segment->valid & MU_LOCATION_HOST)) continue;
        int source =
            segment->undefined ? MUSTER_ANY_DEVICE : mu_choose_source(fetch->runtime, segment, ~MU_LOCATION_HOST);
        if (source == MUSTER_ANY_DEVICE)
            status = fail_undefined(fetch, range, segment, error);
        else
            status =
                mu_pieces_add(&fetch->parts[source].pieces, range->buffer, segment, source, walk.low, walk.high, error);
    }
    mu_coherence_unlock(table);
    return status;
}

static void plan_ranges(mu_fetch *fetch) {
    muster_error error;
    muster_status status = MUSTER_OK;
    for (uint32_t i = 0; !status && i < fetch->range_count; i++) {
        const mu_fetch_range *range = &fetch->ranges[i];
        status = mu_buffer_make_host(range->buffer, &error);
        if (!status && (range->access & MUSTER_READ)) status = plan_range(fetch, range, &error);
    }
    if (!status) return;
    fail(fetch, &error);
    for (uint32_t d = 0; d < fetch->runtime->device_count; d++) {
        mu_pieces_drop(fetch->parts[d].pieces);
        fetch->parts[d].pieces = NULL;
    }
}

void mu_fetch_plan(mu_fetch *fetch) {
    for (uint32_t i = 0; i < fetch->range_count; i++) mu_buffer_begin_host_use(fetch->ranges[i].buffer);
    fetch->uses_host = true;
    plan_ranges(fetch);
}

/* ------------------------------------------------------------------------------------------------------ what it means -- */

static muster_status check_defined(const mu_fetch *fetch, const mu_fetch_range *range, muster_error *error) {
    mu_walk walk;
    const mu_segment *segment = mu_walk_first(&walk, &range->buffer->coherence, &range->area);
    for (; segment; segment = mu_walk_next(&walk))
        if (segment->undefined) return fail_undefined(fetch, range, segment, error);
    return MUSTER_OK;
}

muster_status mu_fetch_settle(mu_fetch *fetch, muster_error *error) {
    muster_status status = MUSTER_OK;
    for (uint32_t i = 0; !status && i < fetch->range_count; i++) {
        const mu_fetch_range *range = &fetch->ranges[i];
        if (!(range->access & MUSTER_READ)) continue;
        mu_coherence *table = &range->buffer->coherence;
        mu_coherence_lock(table);
        status = check_defined(fetch, range, error);
        if (!status && !mu_coherence_copied_area(table, &range->area, MUSTER_ANY_DEVICE, 0))
            status = mu_fail_host_memory(error, "the range table of a buffer", sizeof(mu_segment));
        mu_coherence_unlock(table);
    }
    return status;
}

muster_status mu_fetch_wrote(mu_fetch *fetch, muster_error *error) {
    bool noted = true;
    for (uint32_t i = 0; noted && i < fetch->range_count; i++) {
        const mu_fetch_range *range = &fetch->ranges[i];
        if (!(range->access & MUSTER_WRITE)) continue;
        mu_coherence *table = &range->buffer->coherence;
        mu_coherence_lock(table);
        noted = mu_coherence_written_area(table, &range->area, MUSTER_ANY_DEVICE, 0);
        mu_coherence_unlock(table);
    }
    return noted ? MUSTER_OK : mu_fail_host_memory(error, "the range table of a buffer", sizeof(mu_segment));
}

/* -------------------------------------------------------------------------------------------------- create and destroy -- */

muster_status mu_fetch_create(muster_runtime *runtime, uint32_t range_count, mu_fetch **out, muster_error *error) {
    size_t parts = runtime->device_count * sizeof(mu_fetch_part);
    size_t bytes = sizeof(mu_fetch) + parts + range_count * sizeof(mu_fetch_range);
    mu_fetch *fetch = mu_alloc_zeroed(1, bytes);
    if (!fetch) return mu_fail_host_memory(error, "a fetch to the host", bytes);
    fetch->runtime = runtime;
    fetch->ranges = (mu_fetch_range *)((char *)fetch->parts + parts);
    fetch->range_count = range_count;
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        fetch->parts[d].call.run = run_part;
        fetch->parts[d].fetch = fetch;
    }
    *out = fetch;
    return MUSTER_OK;
}

void mu_fetch_let_go(mu_fetch *fetch) {
    if (!fetch->uses_host) return;
    fetch->uses_host = false;
    for (uint32_t i = 0; i < fetch->range_count; i++) mu_buffer_end_host_use(fetch->ranges[i].buffer);
}

void mu_fetch_destroy(mu_fetch *fetch) {
    if (!fetch) return;
    mu_fetch_let_go(fetch);
    mu_free(fetch);
}
