/* Copies between pageable host memory and a device, in pieces through pinned slots.
 *
 * The driver stages pageable memory itself, but on one thread and while its caller waits: 8 GB/s up and 15 down where pinned memory
 * does 55, and a worker that does nothing else meanwhile. Here copy threads (device/copier.h) move the pieces between the host
 * memory and the slots, and the worker only enqueues what is ready. So it never waits in a copy, and several threads fill the
 * slots of one upload.
 *
 * Each device has slots of its own for either direction: what is written back to make room never waits for uploads that wait
 * for that room. Copies of one direction take turns at its slots, a piece each, so that a small one is not held up by a large one
 * before it. Slots are made on first need, by a copy thread, for pinning takes 0.5 s a GiB, next to where the worker ran when it made the
 * staging; they are kept until the end,
 * for unpinning stalls the device.
 *
 * Without pinned memory nothing fails: the slots there are do all the work, and when there is none the driver's own staging does
 * it, with the worker waiting.
 *
 * Threading: everything is called by the device's worker only; `wake` is called by copy threads. */
#ifndef MUSTER_DEVICE_STAGING_H
#define MUSTER_DEVICE_STAGING_H

#include "device/copier.h"
#include "device/device.h"

typedef struct mu_staging mu_staging;

typedef enum mu_staged_way { MU_STAGED_UP = 0, MU_STAGED_DOWN = 1, MU_STAGED_WAYS = 2 } mu_staged_way;

/* One copy. The caller's, who fills in the first part; it stays where it is until `over`. */
typedef struct mu_staged_copy {
    mu_staged_way way;
    mu_lane lane; /* the pieces go there, in any order */
    void *host;   /* pageable; nobody else writes it (up: writes; down: touches) until the copy is over */
    mu_address device;
    uint64_t bytes; /* in all */
    /* Rows of `width` bytes, each a pitch behind the one before, in either memory; width 0: one range. */
    uint64_t width, pitch;

    /* Set by begin and advance. Over: of an upload, its last piece is on the lane (an event recorded now comes after the data); of
     * a download, all of it is in the host memory; or it failed, `status` and `error` say how, and no copy thread touches the
     * host memory any more. Pieces that are on the lane still run: what is done with the device memory must be ordered after. */
    bool over;
    muster_status status;
    muster_error error;

    /* The staging's: */
    struct mu_staged_copy *next, *previous;
    uint64_t handed_bytes;  /* in a slot, or through it */
    uint64_t settled_bytes; /* on the lane (up), in the host memory (down) */
    uint32_t threads;       /* pieces that copy threads are at */
} mu_staged_copy;

/* `wake(user)` is called by copy threads whenever advance has something new to see; it must not block. The device must have been
 * entered. Allocates nothing on the device yet. OUT_OF_HOST_MEMORY. */
muster_status mu_staging_create(mu_device *device, mu_copier *copier, void (*wake)(void *user), void *user,
                                mu_staging **staging, muster_error *error);
/* Frees the slots. No copy may be under way. Waits for copy threads and for pieces that are on a lane: blocks. NULL is ignored. */
void mu_staging_destroy(mu_staging *staging);

/* Takes a copy on. It may be over at once: 0 bytes, a small upload (MU_STAGING_SMALL_BYTES, which the driver copies into its
 * command buffer without waiting), a lost device. Never blocks, unless there is no pinned memory. */
void mu_staging_begin(mu_staging *staging, mu_staged_copy *copy);

/* Does what can be done now, and asks the device about the oldest piece of each direction only. True: something moved. Call it
 * after `wake`, and now and then while mu_staging_is_active: nobody tells when a piece has left its lane. */
bool mu_staging_advance(mu_staging *staging);
/* Whether any copy is not over. */
bool mu_staging_is_active(const mu_staging *staging);

/* The device is gone, whoever found out: no driver call is made any more, and every copy ends with `error`, those that a copy
 * thread is at in a later advance. (A loss that the device itself knows of is found without this.) */
void mu_staging_lose(mu_staging *staging, const muster_error *error);

/* Why a slot could not be had; NULL: none was refused. The caller may want to log it, once. */
const muster_error *mu_staging_refusal(const mu_staging *staging);

#endif
