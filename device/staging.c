#include "device/staging.h"

#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tuning.h"
#include "device/state.h"

typedef enum slot_state {
    ABSENT,   /* has no memory */
    REFUSED,  /* and will not get any */
    MAKING,   /* a copy thread is pinning its memory */
    FREE,     /* ready for a piece */
    FILLING,  /* up: a copy thread writes it */
    FLYING,   /* a piece is on the lane, with its event behind it */
    STRAYED,  /* a piece is on the lane, but no event tells when it has left */
    DRAINING, /* down: a copy thread reads it */
} slot_state;

/* Events that a slot is given for one piece before the copy that needs the slot fails. */
enum { STRAYED_MAX = 3 };

/* Pinned memory for one piece. */
typedef struct slot {
    mu_copy_job job; /* first: the copy threads know the slot by it */
    struct mu_staging *staging;
    mu_staged_way way;
    slot_state state;
    void *memory;
    mu_event event;
    muster_error refusal; /* of making it */
    /* The piece. */
    mu_staged_copy *copy; /* NULL: it ended early */
    void *host;
    mu_address device;
    uint64_t bytes;
    uint64_t width, pitch; /* of its rows, which lie side by side in the slot; width == bytes: one range */
    mu_lane lane;
    uint32_t times_astray; /* since it last landed */
    struct slot *next;     /* in flight, behind this one */
    /* Set by the copy thread, release; pairs with the worker's acquire before it goes on with the slot. */
    atomic_bool finished;
} slot;

struct mu_staging {
    mu_device *device;
    mu_copier *copier;
    void (*wake)(void *user);
    void *user;
    cpu_set_t near; /* where the worker may run: next to the device */
    bool lost, refused;
    muster_error loss, refusal;
    struct {
        mu_staged_copy *first, *last; /* not over; the first one's turn is next */
        slot *oldest, *newest;        /* in flight */
        muster_error stray;           /* why the last event failed */
        slot slots[MU_STAGING_SLOTS];
    } ways[MU_STAGED_WAYS];
};

/* ---------------------------------------------------------------------------------------------- on the copy threads -- */

static void finished(mu_copy_job *job) {
    slot *done = (slot *)job;
    void (*wake)(void *) = done->staging->wake;
    void *user = done->staging->user;
    atomic_store_explicit(&done->finished, true, memory_order_release);
    wake(user);
}

static void make_memory(mu_copy_job *job, uint32_t part) {
    slot *made = (slot *)job;
    cpu_set_t own;
    (void)part;
    made->refusal.status = MUSTER_OK;
    /* Pinned pages lie where the thread is that pins them. */
    bool moved = sched_getaffinity(0, sizeof own, &own) == 0 &&
                 sched_setaffinity(0, sizeof made->staging->near, &made->staging->near) == 0;
    if (mu_pinned_alloc(made->staging->device, MU_STAGING_SLOT_BYTES, &made->memory, &made->refusal))
        made->memory = NULL;
    if (moved) sched_setaffinity(0, sizeof own, &own);
}

static void move_part(mu_copy_job *job, uint32_t part) {
    slot *moved = (slot *)job;
    uint64_t at = (uint64_t)part * MU_COPY_PART_BYTES;
    uint64_t end = moved->bytes - at < MU_COPY_PART_BYTES ? moved->bytes : at + MU_COPY_PART_BYTES;
    while (at < end) {
        uint64_t column = at % moved->width;
        uint64_t bytes = moved->width - column < end - at ? moved->width - column : end - at;
        char *host = (char *)moved->host + at / moved->width * moved->pitch + column;
        char *memory = (char *)moved->memory + at;
        if (moved->way == MU_STAGED_UP)
            memcpy(memory, host, bytes);
        else
            memcpy(host, memory, bytes);
        at += bytes;
    }
}

static void post(slot *posted, slot_state state, void (*run)(mu_copy_job *, uint32_t), uint32_t parts) {
    posted->state = state;
    posted->job.run = run;
    posted->job.parts = parts;
    atomic_store_explicit(&posted->finished, false, memory_order_relaxed); /* the post orders it */
    mu_copier_post(posted->staging->copier, &posted->job);
}

/* Between the slot and the host memory: by copy threads, or at once when that is quicker than waking one. */
static bool move(slot *moved, slot_state state) {
    if (moved->bytes <= MU_STAGING_SMALL_BYTES) {
        move_part(&moved->job, 0);
        return true;
    }
    moved->copy->threads++;
    post(moved, state, move_part, (uint32_t)((moved->bytes + MU_COPY_PART_BYTES - 1) / MU_COPY_PART_BYTES));
    return false;
}

/* ----------------------------------------------------------------------------------------------------- one copy's end -- */

static void link_copy(mu_staging *staging, mu_staged_copy *copy) {
    copy->next = NULL;
    copy->previous = staging->ways[copy->way].last;
    *(copy->previous ? &copy->previous->next : &staging->ways[copy->way].first) = copy;
    staging->ways[copy->way].last = copy;
}

static void unlink_copy(mu_staging *staging, mu_staged_copy *copy) {
    *(copy->previous ? &copy->previous->next : &staging->ways[copy->way].first) = copy->next;
    *(copy->next ? &copy->next->previous : &staging->ways[copy->way].last) = copy->previous;
}

/* Ends the copy if it can be: complete, or failed and left alone by the copy threads. */
static void settle_copy(mu_staging *staging, mu_staged_copy *copy) {
    if (copy->status ? copy->threads != 0 : copy->settled_bytes < copy->bytes) return;
    slot *slots = staging->ways[copy->way].slots;
    for (int i = 0; i < MU_STAGING_SLOTS; i++)
        if (slots[i].copy == copy) slots[i].copy = NULL;
    unlink_copy(staging, copy);
    copy->over = true;
}

static void fail_copy(mu_staged_copy *copy, const muster_error *error) {
    if (!copy->status) copy->status = mu_error_copy(&copy->error, error);
}

/* ------------------------------------------------------------------------------------------------------- one slot's life -- */

static void land(mu_staging *staging, slot *landed) {
    mu_staged_copy *copy = landed->copy;
    landed->copy = NULL;
    landed->state = FREE;
    landed->times_astray = 0;
    if (!copy) return;
    if (landed->way == MU_STAGED_DOWN) copy->settled_bytes += landed->bytes;
    settle_copy(staging, copy);
}

static void stray(mu_staging *staging, slot *strayed, const muster_error *error) {
    strayed->state = STRAYED;
    strayed->times_astray++;
    staging->ways[strayed->way].stray = *error;
    if (strayed->copy) fail_copy(strayed->copy, error);
}

/* An event behind the slot's piece. */
static void track(mu_staging *staging, slot *tracked) {
    muster_error error;
    if (mu_event_record(staging->device, tracked->lane, tracked->event, &error)) {
        stray(staging, tracked, &error);
        return;
    }
    tracked->state = FLYING;
    tracked->next = NULL;
    slot **newest = &staging->ways[tracked->way].newest;
    *(*newest ? &(*newest)->next : &staging->ways[tracked->way].oldest) = tracked;
    *newest = tracked;
}

/* The slot's piece goes onto the lane. */
static void issue(mu_staging *staging, slot *issued) {
    mu_staged_copy *copy = issued->copy;
    mu_device *device = staging->device;
    muster_error error;
    muster_status status = MUSTER_OK;
    if (!issued->event) status = mu_event_create(device, &issued->event, &error);
    mu_rows rows = {.width = issued->width, .count = issued->bytes / issued->width};
    rows.to_pitch = issued->way == MU_STAGED_UP ? issued->pitch : issued->width;
    rows.from_pitch = issued->way == MU_STAGED_UP ? issued->width : issued->pitch;
    if (!status)
        status = issued->way == MU_STAGED_UP
                     ? mu_rows_to_device(device, issued->lane, issued->device, issued->memory, &rows, &error)
                     : mu_rows_to_host(device, issued->lane, issued->memory, issued->device, &rows, &error);
    if (status) {
        fail_copy(copy, &error);
        land(staging, issued);
        return;
    }
    track(staging, issued);
    if (issued->way == MU_STAGED_UP && !copy->status) copy->settled_bytes += issued->bytes;
    settle_copy(staging, copy);
}

/* The next piece, at most so long: whole rows, or, of rows that are longer, a part of one. Returns how far it is from the beginning. */
static uint64_t cut_piece(const mu_staged_copy *copy, uint64_t most, uint64_t *bytes, uint64_t *width) {
    uint64_t at = copy->handed_bytes, left = copy->bytes - at;
    *bytes = *width = left < most ? left : most;
    if (!copy->width) return at;
    uint64_t column = at % copy->width;
    if (column || copy->width > most) {
        if (*bytes > copy->width - column) *bytes = copy->width - column;
        *width = *bytes;
    } else {
        *bytes -= *bytes % copy->width;
        *width = copy->width;
    }
    return at / copy->width * copy->pitch + column;
}

static void take_piece(mu_staging *staging, slot *taken, mu_staged_copy *copy) {
    uint64_t offset = cut_piece(copy, MU_STAGING_SLOT_BYTES, &taken->bytes, &taken->width);
    taken->copy = copy;
    taken->host = (char *)copy->host + offset;
    taken->device = copy->device + offset;
    taken->pitch = copy->pitch;
    taken->lane = copy->lane;
    copy->handed_bytes += taken->bytes;
    if (taken->way == MU_STAGED_DOWN || move(taken, FILLING)) issue(staging, taken);
}

/* A copy thread is done with the slot. */
static void go_on(mu_staging *staging, slot *done) {
    atomic_store_explicit(&done->finished, false, memory_order_relaxed);
    if (done->state == MAKING) {
        done->state = done->memory ? FREE : REFUSED;
        if (!done->memory && !staging->refused) mu_error_copy(&staging->refusal, &done->refusal);
        if (!done->memory) staging->refused = true;
        return;
    }
    mu_staged_copy *copy = done->copy;
    copy->threads--;
    if (done->state == FILLING && !copy->status)
        issue(staging, done);
    else
        land(staging, done);
}

/* ------------------------------------------------------------------------------------------------------------ advance -- */

static bool look_at_threads(mu_staging *staging, mu_staged_way way) {
    bool any = false;
    for (int i = 0; i < MU_STAGING_SLOTS; i++) {
        slot *looked = &staging->ways[way].slots[i];
        if (!atomic_load_explicit(&looked->finished, memory_order_acquire)) continue;
        go_on(staging, looked);
        any = true;
    }
    return any;
}

static bool look_at_lane(mu_staging *staging, mu_staged_way way) {
    bool any = false;
    for (slot *oldest; (oldest = staging->ways[way].oldest); any = true) {
        bool done = false;
        muster_error error;
        muster_status status = mu_event_poll(staging->device, oldest->event, &done, &error);
        if (!status && !done) break;
        staging->ways[way].oldest = oldest->next;
        if (!oldest->next) staging->ways[way].newest = NULL;
        mu_staged_copy *copy = oldest->copy;
        if (status) {
            stray(staging, oldest, &error);
            if (copy) settle_copy(staging, copy);
        } else if (way == MU_STAGED_UP || !copy || copy->status || move(oldest, DRAINING)) {
            land(staging, oldest);
        }
    }
    return any;
}

/* The next copy that has pieces left, first in line; it goes to the back. */
static mu_staged_copy *next_in_turn(mu_staging *staging, mu_staged_way way) {
    mu_staged_copy *copy = staging->ways[way].first;
    while (copy && (copy->status || copy->handed_bytes == copy->bytes)) copy = copy->next;
    return copy;
}

static void to_the_back(mu_staging *staging, mu_staged_copy *copy) {
    unlink_copy(staging, copy);
    link_copy(staging, copy);
}

static slot *find_slot(mu_staging *staging, mu_staged_way way, slot_state state) {
    for (int i = 0; i < MU_STAGING_SLOTS; i++)
        if (staging->ways[way].slots[i].state == state) return &staging->ways[way].slots[i];
    return NULL;
}

/* Pieces that have not got a slot, up to as many as there are slots. */
static uint64_t pieces_waiting(const mu_staging *staging, mu_staged_way way) {
    uint64_t pieces = 0;
    for (const mu_staged_copy *copy = staging->ways[way].first; copy && pieces < MU_STAGING_SLOTS; copy = copy->next)
        if (!copy->status)
            pieces += (copy->bytes - copy->handed_bytes + MU_STAGING_SLOT_BYTES - 1) / MU_STAGING_SLOT_BYTES;
    return pieces;
}

static void make_slots(mu_staging *staging, mu_staged_way way) {
    uint64_t wanted = pieces_waiting(staging, way);
    slot *slots = staging->ways[way].slots;
    for (int i = 0; i < MU_STAGING_SLOTS; i++)
        if (slots[i].state == MAKING && wanted) wanted--;
    for (int i = 0; i < MU_STAGING_SLOTS && wanted; i++) {
        if (slots[i].state != ABSENT) continue;
        post(&slots[i], MAKING, make_memory, 1);
        wanted--;
    }
}

/* The driver's own staging. A pageable destination is complete when the call returns; memory that somebody else has pinned
 * without our knowledge, when the lane has run dry. */
static void copy_plainly(mu_staging *staging, mu_staged_copy *copy) {
    muster_error error;
    muster_status status = MUSTER_OK;
    while (!status && copy->handed_bytes < copy->bytes) {
        uint64_t bytes, width, offset = cut_piece(copy, UINT64_MAX, &bytes, &width);
        mu_rows rows = {width, bytes / width, copy->pitch, copy->pitch};
        void *host = (char *)copy->host + offset;
        mu_address device = copy->device + offset;
        if (copy->way == MU_STAGED_UP) {
            status = mu_rows_to_device(staging->device, copy->lane, device, host, &rows, &error);
        } else {
            status = mu_rows_to_host(staging->device, copy->lane, host, device, &rows, &error);
            if (!status) status = mu_lane_synchronize(staging->device, copy->lane, &error);
        }
        copy->handed_bytes += bytes;
        copy->settled_bytes += bytes;
    }
    if (status) fail_copy(copy, &error);
    settle_copy(staging, copy);
}

/* No slot is free. False: nor will one ever be by itself. */
static bool slot_will_come(mu_staging *staging, mu_staged_way way) {
    static const slot_state coming[] = {MAKING, FILLING, FLYING, DRAINING};
    for (size_t i = 0; i < sizeof coming / sizeof *coming; i++)
        if (find_slot(staging, way, coming[i])) return true;
    return false;
}

/* Pieces whose event failed are given another, a few times. */
static void call_strays(mu_staging *staging, mu_staged_way way) {
    for (int i = 0; i < MU_STAGING_SLOTS; i++) {
        slot *called = &staging->ways[way].slots[i];
        if (called->state == STRAYED && called->times_astray < STRAYED_MAX) track(staging, called);
    }
}

/* No slot for this copy, now or later: they are all astray, and the next copy tries again; or there is no pinned memory. */
static void do_without_slots(mu_staging *staging, mu_staged_copy *copy) {
    slot *slots = staging->ways[copy->way].slots;
    if (!find_slot(staging, copy->way, STRAYED)) {
        copy_plainly(staging, copy);
        return;
    }
    fail_copy(copy, &staging->ways[copy->way].stray);
    settle_copy(staging, copy);
    for (int i = 0; i < MU_STAGING_SLOTS; i++) slots[i].times_astray = 0;
}

/* Gives pieces to free slots. */
static bool hand_out(mu_staging *staging, mu_staged_way way) {
    bool any = false;
    for (mu_staged_copy *copy; !staging->lost && (copy = next_in_turn(staging, way)); any = true) {
        slot *found = find_slot(staging, way, FREE);
        if (found) {
            to_the_back(staging, copy);
            take_piece(staging, found, copy);
            continue;
        }
        make_slots(staging, way);
        call_strays(staging, way);
        if (slot_will_come(staging, way)) break;
        do_without_slots(staging, copy);
    }
    return any;
}

/* What was on the lanes is forgotten: nothing of the device is asked any more. */
static void end_everything(mu_staging *staging) {
    for (int way = 0; way < MU_STAGED_WAYS; way++) {
        staging->ways[way].oldest = staging->ways[way].newest = NULL;
        for (int i = 0; i < MU_STAGING_SLOTS; i++) {
            slot *ended = &staging->ways[way].slots[i];
            if (ended->state != FLYING && ended->state != STRAYED) continue;
            ended->state = FREE;
            ended->copy = NULL;
        }
        for (mu_staged_copy *copy = staging->ways[way].first, *next; copy; copy = next) {
            next = copy->next;
            fail_copy(copy, &staging->loss);
            settle_copy(staging, copy);
        }
    }
}

void mu_staging_lose(mu_staging *staging, const muster_error *error) {
    if (staging->lost) return;
    staging->lost = true;
    staging->loss = *error;
    end_everything(staging);
}

static void notice_loss(mu_staging *staging) {
    muster_error error;
    if (!staging->lost && mu_device_alive(staging->device, &error)) mu_staging_lose(staging, &error);
}

bool mu_staging_advance(mu_staging *staging) {
    bool any = false;
    notice_loss(staging);
    for (int way = 0; way < MU_STAGED_WAYS; way++) {
        any |= look_at_threads(staging, way);
        if (!staging->lost) any |= look_at_lane(staging, way);
        if (!staging->lost) any |= hand_out(staging, way);
    }
    return any;
}

bool mu_staging_is_active(const mu_staging *staging) {
    return staging->ways[MU_STAGED_UP].first || staging->ways[MU_STAGED_DOWN].first;
}

void mu_staging_begin(mu_staging *staging, mu_staged_copy *copy) {
    copy->over = false;
    copy->status = MUSTER_OK;
    copy->handed_bytes = copy->settled_bytes = 0;
    copy->threads = 0;
    notice_loss(staging);
    link_copy(staging, copy);
    if (staging->lost) fail_copy(copy, &staging->loss);
    if (copy->status || copy->bytes == 0)
        settle_copy(staging, copy);
    else if (copy->way == MU_STAGED_UP && copy->bytes <= MU_STAGING_SMALL_BYTES)
        copy_plainly(staging, copy);
    else
        hand_out(staging, copy->way);
}

const muster_error *mu_staging_refusal(const mu_staging *staging) {
    return staging->refused ? &staging->refusal : NULL;
}

/* -------------------------------------------------------------------------------------------------- create, destroy -- */

muster_status mu_staging_create(mu_device *device, mu_copier *copier, void (*wake)(void *user), void *user,
                                mu_staging **out, muster_error *error) {
    mu_staging *staging = mu_alloc_zeroed(1, sizeof *staging);
    if (!staging) return mu_fail_host_memory(error, "the staging of a device", sizeof *staging);
    staging->device = device;
    staging->copier = copier;
    staging->wake = wake;
    staging->user = user;
    if (sched_getaffinity(0, sizeof staging->near, &staging->near)) CPU_ZERO(&staging->near);
    for (int way = 0; way < MU_STAGED_WAYS; way++)
        for (int i = 0; i < MU_STAGING_SLOTS; i++) {
            slot *made = &staging->ways[way].slots[i];
            made->staging = staging;
            made->way = (mu_staged_way)way;
            made->job.done = finished;
            atomic_init(&made->finished, false);
        }
    *out = staging;
    return MUSTER_OK;
}

void mu_staging_destroy(mu_staging *staging) {
    if (!staging) return;
    for (int way = 0; way < MU_STAGED_WAYS; way++)
        for (int i = 0; i < MU_STAGING_SLOTS; i++) {
            slot *gone = &staging->ways[way].slots[i];
            mu_copier_leave(staging->copier, &gone->job);
            if (staging->lost) continue; /* the driver keeps what it has */
            if (gone->state == FLYING || gone->state == STRAYED) mu_lane_synchronize(staging->device, gone->lane, NULL);
            mu_event_destroy(staging->device, gone->event);
            mu_pinned_free(staging->device, gone->memory);
        }
    mu_free(staging);
}
