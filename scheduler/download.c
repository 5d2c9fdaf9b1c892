#include "scheduler/download.h"

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/loss.h"

/* ----------------------------------------------------------------------------------------------------------- pieces -- */

muster_status mu_pieces_add(mu_piece **list, muster_buffer *buffer, const mu_segment *segment, int device, uint64_t low,
                            uint64_t high, muster_error *error) {
    mu_coherence *table = &buffer->coherence;
    while (low < high) {
        mu_instance *held = mu_coherence_instance(table, device, low, low + 1);
        if (!held)
            return mu_fail(error, MUSTER_INTERNAL, "device %d holds no memory for byte %llu of a buffer", device,
                           (unsigned long long)low);
        mu_piece *piece = mu_alloc_zeroed(1, sizeof *piece);
        if (!piece) return mu_fail_host_memory(error, "a copy to the host", sizeof *piece);
        uint64_t end = held->high < high ? held->high : high;
        *piece = (mu_piece){.next = *list,
                            .buffer = buffer,
                            .low = low,
                            .high = end,
                            .stamp = segment->stamps[device],
                            .instance = held};
        atomic_fetch_add_explicit(&held->pins, 1, memory_order_relaxed);
        *list = piece;
        low = end;
    }
    return MUSTER_OK;
}

static void drop_piece(mu_piece *piece) {
    /* Release pairs with the owner's acquire before it frees the instance. */
    atomic_fetch_sub_explicit(&piece->instance->pins, 1, memory_order_release);
    mu_free(piece);
}

void mu_pieces_drop(mu_piece *list) {
    while (list) {
        mu_piece *next = list->next;
        drop_piece(list);
        list = next;
    }
}

/* The first part of the piece that the host lacks; empty when it has all of it. With the lock of the table held. */
static void find_lacking(const mu_piece *piece, uint64_t *low, uint64_t *high) {
    const mu_coherence *table = &piece->buffer->coherence;
    *low = *high = piece->high;
    for (uint64_t at = piece->low; at < piece->high;) {
        const mu_segment *segment = mu_coherence_find(table, at);
        bool has = (segment->valid & MU_LOCATION_HOST) || segment->zero || segment->undefined;
        if (!has && *low == piece->high) *low = at;
        if (has && *low < at) {
            *high = at;
            return;
        }
        at = segment->high;
    }
}

/* Takes the range for this piece alone, unless there is nothing to copy or somebody else is at it. What the host has already may be in
 * use there and is left alone: the piece becomes its first part that the host lacks, and *rest what comes behind that, or NULL. */
static mu_download_start claim(mu_piece *piece, mu_piece **rest, muster_error *error) {
    mu_coherence *table = &piece->buffer->coherence;
    mu_download_start result = MU_DOWNLOAD_STARTED;
    uint64_t low, high;
    *rest = NULL;
    mu_coherence_lock(table);
    find_lacking(piece, &low, &high);
    const mu_piece *other = piece->buffer->copied;
    while (other && (other->high <= low || high <= other->low)) other = other->copied_next;
    if (low == piece->high)
        result = MU_DOWNLOAD_NEEDLESS;
    else if (other)
        result = MU_DOWNLOAD_NOT_YET;
    else if (high < piece->high && !(*rest = mu_alloc_zeroed(1, sizeof **rest)))
        result = MU_DOWNLOAD_FAILED;
    if (result == MU_DOWNLOAD_STARTED) {
        if (*rest) {
            **rest = *piece;
            (*rest)->low = high;
            atomic_fetch_add_explicit(&piece->instance->pins, 1, memory_order_relaxed);
        }
        piece->low = low;
        piece->high = high;
        piece->copied_next = piece->buffer->copied;
        piece->buffer->copied = piece;
    }
    mu_coherence_unlock(table);
    if (result == MU_DOWNLOAD_FAILED) mu_fail_host_memory(error, "a copy to the host", sizeof **rest);
    return result;
}

/* With the lock of the table held. */
static void unclaim(mu_piece *piece) {
    mu_piece **link = &piece->buffer->copied;
    while (*link != piece) link = &(*link)->copied_next;
    *link = piece->copied_next;
}

/* -------------------------------------------------------------------------------------------------------- downloads -- */

static muster_status start_direct(mu_actor *actor, mu_download *download, const mu_piece *piece, void *to,
                                  mu_address from, muster_error *error) {
    /* Before the copy: one whose end could not be seen must not be started. */
    muster_status status = download->event ? MUSTER_OK : mu_event_create(actor->device, &download->event, error);
    if (!status) status = mu_copy_to_host(actor->device, MU_LANE_DOWNLOAD, to, from, piece->high - piece->low, error);
    if (!status) download->behind = true;
    return status;
}

static muster_status start_copy(mu_actor *actor, mu_download *download, mu_piece *piece, muster_error *error) {
    void *to = (char *)piece->buffer->host + piece->low;
    mu_address from = piece->instance->address + (piece->low - piece->instance->low);
    if (mu_timeline_wait(&actor->timeline, piece->stamp, actor->device, MU_LANE_DOWNLOAD, error) == MU_EPOCH_FAILED)
        return error->status;
    if (piece->buffer->host_pinned) return start_direct(actor, download, piece, to, from, error);
    piece->is_staged = true;
    piece->staged = (mu_staged_copy){
        .way = MU_STAGED_DOWN,
        .lane = MU_LANE_DOWNLOAD,
        .host = to,
        .device = from,
        .bytes = piece->high - piece->low,
    };
    mu_staging_begin(actor->staging, &piece->staged);
    return MUSTER_OK;
}

mu_download_start mu_download_add(mu_actor *actor, mu_download *download, mu_piece **link, muster_error *error) {
    mu_piece *piece = *link, *rest;
    if (mu_timeline_closed(&actor->timeline) < piece->stamp) return MU_DOWNLOAD_NOT_YET;
    mu_download_start result = claim(piece, &rest, error);
    if (result == MU_DOWNLOAD_NEEDLESS) {
        *link = piece->next;
        drop_piece(piece);
    }
    if (result != MU_DOWNLOAD_STARTED) return result;
    if (rest) piece->next = rest; /* it points on to what followed the piece */
    if (start_copy(actor, download, piece, error)) {
        mu_coherence_lock(&piece->buffer->coherence);
        unclaim(piece);
        mu_coherence_unlock(&piece->buffer->coherence);
        return MU_DOWNLOAD_FAILED;
    }
    *link = piece->next;
    piece->next = download->pieces;
    download->pieces = piece;
    return MU_DOWNLOAD_STARTED;
}

bool mu_download_is_quiet(const mu_download *download) {
    for (const mu_piece *piece = download->pieces; piece; piece = piece->next)
        if (piece->is_staged && !piece->staged.over) return false;
    return true;
}

static muster_status look_at_staged(mu_download *download, muster_error *error) {
    for (const mu_piece *piece = download->pieces; piece; piece = piece->next) {
        if (!piece->is_staged || !piece->staged.over || !piece->staged.status) continue;
        if (muster_status_recovery(piece->staged.status) == MUSTER_RECOVERY_DEVICE_LOST)
            return mu_error_copy(error, &piece->staged.error);
        if (!download->failure.status) download->failure = piece->staged.error;
    }
    return MUSTER_OK;
}

muster_status mu_download_poll(mu_actor *actor, mu_download *download, bool *over, muster_error *error) {
    bool direct = true;
    *over = !download->pieces;
    if (*over) return MUSTER_OK;
    muster_status status = look_at_staged(download, error);
    if (!status && download->behind) status = mu_event_record(actor->device, MU_LANE_DOWNLOAD, download->event, error);
    download->behind = false;
    if (!status && download->event) status = mu_event_poll(actor->device, download->event, &direct, error);
    /* Copies are under way whose end nobody can see any more. */
    if (status) mu_actor_lose(actor, error);
    if (!status) *over = direct && mu_download_is_quiet(download);
    return status;
}

static void note_unchanged(const mu_actor *actor, const mu_piece *piece) {
    mu_coherence *table = &piece->buffer->coherence;
    for (uint64_t at = piece->low; at < piece->high;) {
        const mu_segment segment = *mu_coherence_find(table, at);
        uint64_t high = segment.high < piece->high ? segment.high : piece->high;
        if (segment.valid & MU_LOCATION_DEVICE(actor->index))
            mu_coherence_copied(table, at, high, MUSTER_ANY_DEVICE, 0);
        at = high;
    }
}

void mu_download_end(mu_actor *actor, mu_download *download, mu_download_note note) {
    while (download->pieces) {
        mu_piece *piece = download->pieces;
        download->pieces = piece->next;
        mu_coherence *table = &piece->buffer->coherence;
        mu_coherence_lock(table);
        unclaim(piece);
        bool arrived = !piece->is_staged || !piece->staged.status;
        /* Out of host memory: just not remembered. */
        if (arrived && note == MU_NOTE_ARRIVED)
            mu_coherence_copied(table, piece->low, piece->high, MUSTER_ANY_DEVICE, 0);
        if (arrived && note == MU_NOTE_UNCHANGED) note_unchanged(actor, piece);
        mu_coherence_unlock(table);
        drop_piece(piece);
    }
    if (download->event && !actor->lost) mu_event_destroy(actor->device, download->event);
    *download = (mu_download){.failure = {.status = MUSTER_OK}};
}
