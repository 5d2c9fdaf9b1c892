/* Copies from a device to the host memory of buffers: the one place that starts them, and that asks whether they are over.
 *
 * A *piece* is an area of a buffer whose content one device has; it is planned by any thread, which pins its source. A *download*
 * is what one device copies for one purpose (a fetch, a write-back): pieces join it as they are started, by that device's worker,
 * and it is over when all of them are. No two pieces of a buffer that overlap are copied at the same time, and none that the host
 * has already: who comes second waits, and finds the bytes there.
 *
 * Pinned host memory is written by the device; pageable memory goes through staging (device/staging.h), for the driver's own call would
 * keep the worker until all that is on the lane is complete. */
#ifndef MUSTER_SCHEDULER_MEMORY_DOWNLOAD_H
#define MUSTER_SCHEDULER_MEMORY_DOWNLOAD_H

#include "scheduler/actor/actor.h"
#include "scheduler/memory/buffer.h"

struct mu_piece {
    mu_piece *next;
    muster_buffer *buffer; /* whoever plans the piece holds a reference */
    mu_area area;
    uint64_t stamp;        /* the epoch of the device's dispatch lane behind which the content is there */
    mu_instance *instance; /* pinned */
    mu_piece *copied_next; /* among the buffer's pieces that are being copied; under its table's lock */
    bool is_staged;        /* to pageable memory */
    bool is_ended;         /* failed: what of it is on the lane is waited for */
    mu_staged_copy staged;
};

/* Any thread, with the lock of the buffer's table held. Adds pieces for [low, high), a part of the segment, which is valid on
 * `device`, to the list: one for each instance. What repeats a piece of the list at the table's pitch becomes a row of that.
 * OUT_OF_HOST_MEMORY. */
muster_status mu_pieces_add(mu_piece **list, muster_buffer *buffer, const mu_segment *segment, int device, uint64_t low,
                            uint64_t high, muster_error *error);
/* Any thread. Frees pieces that were not started. */
void mu_pieces_drop(mu_piece *list);

/* Zero: nothing started. */
typedef struct mu_download {
    mu_piece *pieces;
    mu_event
        event;   /* on the download lane, behind copies to pinned memory and staged ones that failed; NULL: none yet */
    bool behind; /* there is such a copy since the event was recorded */
    muster_error failure; /* of a copy that was started, without the device being lost; status OK: none */
} mu_download;

typedef enum mu_download_start {
    MU_DOWNLOAD_STARTED,
    MU_DOWNLOAD_NEEDLESS, /* the host has it; the piece is gone */
    MU_DOWNLOAD_NOT_YET, /* its epoch is not closed, or an overlapping piece is being copied; the piece is the caller's */
    MU_DOWNLOAD_FAILED   /* `error` is filled; the piece is the caller's */
} mu_download_start;

/* The rest is called by the device's worker. */
/* The first piece of the list *link. When it is started or needless it is out of the list; of a piece that the host has in part, what
 * comes after the part that was started is in its place. */
mu_download_start mu_download_add(mu_actor *actor, mu_download *download, mu_piece **link, muster_error *error);

/* Whether everything that was started is in the host memory, or has failed (download->failure). An error is the device's loss:
 * nothing more will come. */
muster_status mu_download_poll(mu_actor *actor, mu_download *download, bool *over, muster_error *error);

typedef enum mu_download_note {
    MU_NOTE_NOTHING,
    MU_NOTE_ARRIVED,  /* the order of jobs kept writers away: the host has all of it */
    MU_NOTE_UNCHANGED /* nothing was written to the device's memory meanwhile: the host has what is still valid there */
} mu_download_note;

/* After a loss: whether nobody touches the host memory any more. Copy threads finish what they are at. */
bool mu_download_is_quiet(const mu_download *download);

/* Over, or given up after a loss and quiet: notes in the tables what the host has from now on, and frees the pieces. */
void mu_download_end(mu_actor *actor, mu_download *download, mu_download_note note);

#endif
