#include "scheduler/memory/download.h"

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/actor/loss.h"

/* ----------------------------------------------------------------------------------------------------------- pieces -- */

enum { LOOK_BACK = 16 }; /* pieces of a row that rows behind it may repeat */

/* Makes [low, high) one more row of a piece that it repeats. */
static bool extend(mu_piece *piece, uint64_t pitch, const mu_instance *held, uint64_t stamp, uint64_t low,
                   uint64_t high) {
    for (int i = 0; piece && i < LOOK_BACK; piece = piece->next, i++) {
        mu_area *area = &piece->area;
        if (piece->instance != held || mu_area_width(area) != high - low) continue;
        if (area->rows == 1) area->pitch = pitch;
        if (area->pitch < high - low || area->rows == UINT32_MAX || mu_area_row(area, area->rows) != low) continue;
        area->rows++;
        if (piece->stamp < stamp) piece->stamp = stamp;
        return true;
    }
    return false;
}

muster_status mu_pieces_add(mu_piece **list, muster_buffer *buffer, const mu_segment *segment, int device, uint64_t low,
                            uint64_t high, muster_error *error) {
    mu_coherence *table = &buffer->coherence;
    uint64_t stamp = segment->stamps[device];
    for (uint64_t end; low < high; low = end) {
        mu_instance *held = mu_coherence_instance(table, device, low, low + 1);
        if (!held)
            return mu_fail(error, MUSTER_INTERNAL, "device %d holds no memory for byte %llu of a buffer", device,
                           (unsigned long long)low);
        end = held->high < high ? held->high : high;
        if (table->pitch && extend(*list, table->pitch, held, stamp, low, end)) continue;
        mu_piece *piece = mu_alloc_zeroed(1, sizeof *piece);
        if (!piece) return mu_fail_host_memory(error, "a copy to the host", sizeof *piece);
        *piece =
            (mu_piece){.next = *list, .buffer = buffer, .area = mu_area_of(low, end), .stamp = stamp, .instance = held};
        atomic_fetch_add_explicit(&held->pins, 1, memory_order_relaxed);
        *list = piece;
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

/* Narrows [*low, *high) to its first part that the host lacks; false: it has all of it. */
static bool narrow(const mu_coherence *table, mu_range_cursor *near, uint64_t *low, uint64_t *high) {
    uint64_t end = *high;
    bool found = false;
    const mu_segment *segment = mu_ranges_seek(&table->segments, near, *low);
    for (mu_range_cursor at = *near; segment && segment->low < end; segment = mu_coherence_next(table, &at)) {
        bool has = (segment->valid & MU_LOCATION_HOST) || segment->zero || segment->undefined;
        if (!has && !found && segment->low > *low) *low = segment->low;
        found |= !has;
        if (has && found) {
            *high = segment->low;
            break;
        }
    }
    return found;
}

/* What the host lacks of the piece, the first of it that is one area: a part of row `*first`, or all of that row and of those after it.
 * False: nothing. With the lock of the table held. */
static bool find_lacking(const mu_piece *piece, uint32_t *first, mu_area *lacking) {
    const mu_coherence *table = &piece->buffer->coherence;
    const mu_area *area = &piece->area;
    mu_range_cursor near = {0, 0};
    bool whole = true;
    lacking->rows = 0;
    for (uint32_t row = 0; row < area->rows && whole; row++) {
        uint64_t begin = mu_area_row(area, row), low = begin, high = begin + mu_area_width(area);
        bool lacks = narrow(table, &near, &low, &high);
        whole = lacks && high - low == mu_area_width(area);
        if (lacking->rows && whole) lacking->rows++;
        if (lacking->rows) continue;
        if (lacks) *lacking = (mu_area){low, high, area->pitch, 1};
        *first = row;
        whole |= !lacks;
    }
    return lacking->rows;
}

/* What is left of a piece, in front of the list. */
static bool leave(const mu_piece *piece, mu_area area, mu_piece **rest) {
    mu_piece *left = mu_alloc_zeroed(1, sizeof *left);
    if (!left) return false;
    *left = *piece;
    left->area = area;
    left->next = *rest;
    *rest = left;
    atomic_fetch_add_explicit(&piece->instance->pins, 1, memory_order_relaxed);
    return true;
}

/* Leaves what comes behind the part that is to be copied: of its row, and the rows after that. */
static bool leave_rest(const mu_piece *piece, uint32_t first, const mu_area *part, mu_piece **rest) {
    const mu_area *area = &piece->area;
    uint32_t next = first + part->rows;
    uint64_t end = mu_area_row(area, first) + mu_area_width(area);
    if (next < area->rows && !leave(piece, mu_area_rows(area, next, area->rows - next), rest)) return false;
    return part->high == end || leave(piece, mu_area_of(part->high, end), rest);
}

/* Takes the area for this piece alone, unless there is nothing to copy or somebody else is at it. What the host has already may be in
 * use there and is left alone: the piece becomes the first of it that the host lacks, and what comes behind that a list of pieces
 * which goes on with `*rest`. */
static mu_download_start claim(mu_piece *piece, mu_piece **rest, muster_error *error) {
    mu_coherence *table = &piece->buffer->coherence;
    mu_download_start result = MU_DOWNLOAD_STARTED;
    mu_area lacking;
    uint32_t first = 0;
    mu_coherence_lock(table);
    bool lacks = find_lacking(piece, &first, &lacking);
    const mu_piece *other = lacks ? piece->buffer->copied : NULL;
    while (other && !mu_areas_overlap(&other->area, &lacking)) other = other->copied_next;
    mu_piece *behind = *rest;
    if (!lacks)
        result = MU_DOWNLOAD_NEEDLESS;
    else if (other)
        result = MU_DOWNLOAD_NOT_YET;
    else if (!leave_rest(piece, first, &lacking, rest))
        result = MU_DOWNLOAD_FAILED;
    if (result == MU_DOWNLOAD_STARTED) {
        piece->area = lacking;
        piece->copied_next = piece->buffer->copied;
        piece->buffer->copied = piece;
    }
    mu_coherence_unlock(table);
    if (result == MU_DOWNLOAD_FAILED) {
        for (mu_piece *left; (left = *rest) != behind; drop_piece(left)) *rest = left->next;
        mu_fail_host_memory(error, "a copy to the host", sizeof **rest);
    }
    return result;
}

/* With the lock of the table held. */
static void unclaim(mu_piece *piece) {
    mu_piece **link = &piece->buffer->copied;
    while (*link != piece) link = &(*link)->copied_next;
    *link = piece->copied_next;
}

/* -------------------------------------------------------------------------------------------------------- downloads -- */

/* Some of the rows of a copy that failed may be on the lane, where they write to the host memory: it ends behind them. */
static muster_status start_direct(mu_actor *actor, mu_download *download, mu_piece *piece, void *to, mu_address from,
                                  muster_error *error) {
    /* Before the copy: one whose end could not be seen must not be started. */
    if (!download->event && mu_event_create(actor->device, &download->event, error)) return error->status;
    const mu_rows rows = {mu_area_width(&piece->area), piece->area.rows, piece->area.pitch, piece->area.pitch};
    muster_status status = mu_rows_to_host(actor->device, MU_LANE_DOWNLOAD, to, from, &rows, error);
    if (status && (rows.count <= 1 || muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST)) return status;
    if (status && !download->failure.status) download->failure = *error;
    piece->is_ended = status != MUSTER_OK;
    download->behind = true;
    return MUSTER_OK;
}

static muster_status start_copy(mu_actor *actor, mu_download *download, mu_piece *piece, muster_error *error) {
    void *to = (char *)piece->buffer->host + piece->area.low;
    mu_address from = piece->instance->address + (piece->area.low - piece->instance->low);
    if (mu_timeline_wait(&actor->timeline, piece->stamp, actor->device, MU_LANE_DOWNLOAD, error) == MU_EPOCH_FAILED)
        return error->status;
    if (piece->buffer->host_pinned) return start_direct(actor, download, piece, to, from, error);
    piece->is_staged = true;
    piece->staged = (mu_staged_copy){
        .way = MU_STAGED_DOWN,
        .lane = MU_LANE_DOWNLOAD,
        .host = to,
        .device = from,
        .bytes = mu_area_bytes(&piece->area),
        .width = piece->area.rows > 1 ? mu_area_width(&piece->area) : 0,
        .pitch = piece->area.pitch,
    };
    mu_staging_begin(actor->staging, &piece->staged);
    return MUSTER_OK;
}

mu_download_start mu_download_add(mu_actor *actor, mu_download *download, mu_piece **link, muster_error *error) {
    mu_piece *piece = *link, *rest = piece->next;
    if (mu_timeline_closed(&actor->timeline) < piece->stamp) return MU_DOWNLOAD_NOT_YET;
    mu_download_start result = claim(piece, &rest, error);
    if (result == MU_DOWNLOAD_NEEDLESS) {
        *link = piece->next;
        drop_piece(piece);
    }
    if (result != MU_DOWNLOAD_STARTED) return result;
    piece->next = rest;
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

/* A staged copy that failed may have parts on the lane, which read the device's memory: it ends behind them. */
static muster_status look_at_staged(mu_actor *actor, mu_download *download, muster_error *error) {
    for (mu_piece *piece = download->pieces; piece; piece = piece->next) {
        if (!piece->is_staged || !piece->staged.over || !piece->staged.status || piece->is_ended) continue;
        if (muster_status_recovery(piece->staged.status) == MUSTER_RECOVERY_DEVICE_LOST)
            return mu_error_copy(error, &piece->staged.error);
        if (!download->failure.status) download->failure = piece->staged.error;
        if (!download->event && mu_event_create(actor->device, &download->event, error)) return error->status;
        download->behind = piece->is_ended = true;
    }
    return MUSTER_OK;
}

muster_status mu_download_poll(mu_actor *actor, mu_download *download, bool *over, muster_error *error) {
    bool direct = true;
    *over = !download->pieces;
    if (*over) return MUSTER_OK;
    muster_status status = look_at_staged(actor, download, error);
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
    mu_range_cursor near = {0, 0};
    for (uint32_t row = 0; row < piece->area.rows; row++) {
        uint64_t at = mu_area_row(&piece->area, row), end = at + mu_area_width(&piece->area), high;
        for (; at < end; at = high) {
            const mu_segment *segment = mu_ranges_seek(&table->segments, &near, at);
            high = segment->high < end ? segment->high : end;
            if (segment->valid & MU_LOCATION_DEVICE(actor->index))
                mu_coherence_copied(table, at, high, MUSTER_ANY_DEVICE, 0);
        }
    }
}

void mu_download_end(mu_actor *actor, mu_download *download, mu_download_note note) {
    while (download->pieces) {
        mu_piece *piece = download->pieces;
        download->pieces = piece->next;
        mu_coherence *table = &piece->buffer->coherence;
        mu_coherence_lock(table);
        unclaim(piece);
        bool arrived = piece->is_staged ? !piece->staged.status : !piece->is_ended;
        /* Out of host memory: just not remembered. */
        if (arrived && note == MU_NOTE_ARRIVED) mu_coherence_copied_area(table, &piece->area, MUSTER_ANY_DEVICE, 0);
        if (arrived && note == MU_NOTE_UNCHANGED) note_unchanged(actor, piece);
        mu_coherence_unlock(table);
        drop_piece(piece);
    }
    if (download->event && !actor->lost) mu_event_destroy(actor->device, download->event);
    *download = (mu_download){.failure = {.status = MUSTER_OK}};
}
