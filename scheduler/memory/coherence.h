/* Where the bytes of a buffer are: the range table of one buffer.
 *
 * Locations are the host and the devices of the runtime. A segment is a range whose bytes are valid in the same set of
 * locations:
 *     invalid    the location's bit is clear
 *     shared     several bits set: equal copies
 *     modified   one bit set: the only copy
 *     undefined  the last writer failed: readers fail until the segment is wholly overwritten
 *     zero       nobody wrote yet: reads as zeros, materialised by a fill where a device first needs it. Host memory that is
 *                made for it starts as zeros, so the host never has to materialise it
 * An instance is device memory for a range of the buffer. Instances of one device never overlap.
 *
 * Threading: everything here is called with the table's lock held, which is short and never held over a driver call.
 * Instances of a device are added and removed by that device's worker only. The order of jobs guarantees that a writer of
 * a range runs alone on it; the lock only keeps the table itself consistent. */
#ifndef MUSTER_SCHEDULER_MEMORY_COHERENCE_H
#define MUSTER_SCHEDULER_MEMORY_COHERENCE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "scheduler/memory/area.h"
#include "scheduler/memory/ranges.h"

typedef uint64_t mu_location_mask;
#define MU_LOCATION_HOST ((mu_location_mask)1 << 63)
#define MU_LOCATION_DEVICE(index) ((mu_location_mask)1 << (index))

typedef struct mu_instance {
    struct mu_instance *next; /* of the same buffer and device */
    muster_buffer *buffer;
    uint64_t low, high;     /* the range of the buffer it holds */
    uint64_t charged_bytes; /* what the ledger was charged */
    /* The allocation, and in it byte `low`, as far from MU_ALIGNMENT_BYTES as in the buffer: a part of a buffer is aligned as it
     * would be in the whole. */
    mu_address allocation, address;
    /* Copies out of it that are not known complete, by other devices or to the host: the source of a planned transfer stays
     * until its event has completed. Raised under the table's lock; release on the decrement pairs with the owner's
     * acquire before it frees. */
    atomic_uint pins;
    /* Owner's worker only, from here on. */
    uint64_t brought;                          /* the last epoch of it that waits for an upload into this */
    uint64_t last_use;                         /* the last epoch of its dispatch lane that uses it */
    struct mu_instance *lru_older, *lru_newer; /* among the device's instances, by last use */
    bool unwritable; /* its content could not be copied to the host: not tried before its next use */
    bool evicting;   /* its content is on the way to the host */
    bool changed;    /* content came into it since its eviction began, or into what has replaced it */
    bool wanted;     /* a task waits to write it: it stays then */
    uint32_t holds;  /* arrivals into it, and tasks that are held until their input has arrived: it stays */
} mu_instance;

typedef struct mu_segment {
    uint64_t low, high; /* a mu_range */
    mu_location_mask valid;
    bool undefined, zero;
    int16_t lost_on;   /* undefined because of the loss of device lost_on - 1; 0: for another reason, or defined */
    uint64_t stamps[]; /* per device: the epoch of its dispatch lane after which the segment is valid there */
} mu_segment;

/* What a device's worker saw at its last look, so that it need not look again while nothing has changed: [low, high) is valid there,
 * and one instance holds it. The worker's own. */
typedef struct mu_sight {
    uint64_t version; /* of the table, then; 0: nothing was seen */
    mu_instance *instance;
    uint64_t low, high;
    uint64_t
        written; /* the epoch in which the device is known to have written just [low, high), and has the only copy; 0: none */
} mu_sight;

typedef struct mu_coherence {
    pthread_mutex_t lock;
    /* Raised with every change of a segment or an instance that could make a sight wrong; never 0. Release on raising it, under the
     * lock, pairs with acquire of workers that compare it without: who sees it unchanged acts as if it had come first, which the
     * order of jobs allows as it does under the lock. */
    atomic_uint_fast64_t version;
    uint32_t device_count;
    mu_ranges segments; /* of mu_segment, covering [0, bytes) */
    uint64_t pitch; /* of the rows that were noted last: how content of the buffer repeats, as a hint. 0: none were */
    mu_instance **instances; /* one list per device */
    mu_sight *sights;        /* one per device */
} mu_coherence;

/* The whole is valid on the host, or (no host content) zero. OUT_OF_HOST_MEMORY. */
muster_status mu_coherence_init(mu_coherence *table, uint64_t bytes, uint32_t device_count, bool host_content,
                                muster_error *error);
void mu_coherence_destroy(mu_coherence *table); /* no instance may be left */

static inline void mu_coherence_lock(mu_coherence *table) { pthread_mutex_lock(&table->lock); }
static inline void mu_coherence_unlock(mu_coherence *table) { pthread_mutex_unlock(&table->lock); }

/* Segments or instances have been changed other than by the updates below. */
static inline void mu_coherence_changed(mu_coherence *table) {
    uint64_t version = atomic_load_explicit(&table->version, memory_order_relaxed);
    atomic_store_explicit(&table->version, version + 1, memory_order_release);
}

/* Without the lock, by the device's worker: the instance that holds [low, high), whose bytes are valid, or NULL when that takes a
 * closer look. With `epoch` not 0 also: the device has written the range in that epoch, and it is noted. */
static inline mu_instance *mu_coherence_sight(mu_coherence *table, int device, uint64_t low, uint64_t high,
                                              uint64_t epoch) {
    const mu_sight *sight = &table->sights[device];
    if (sight->version != atomic_load_explicit(&table->version, memory_order_acquire)) return NULL;
    if (epoch ? low != sight->low || high != sight->high || epoch != sight->written
              : low < sight->low || high > sight->high)
        return NULL;
    return sight->instance;
}
/* With the lock: remembers that [low, high) is valid in the instance, which is of `device`. */
static inline void mu_coherence_remember(mu_coherence *table, int device, mu_instance *instance, uint64_t low,
                                         uint64_t high, uint64_t written) {
    table->sights[device] =
        (mu_sight){atomic_load_explicit(&table->version, memory_order_relaxed), instance, low, high, written};
}

/* The segment that holds byte `at`. Valid until the table changes. */
static inline mu_segment *mu_coherence_find(const mu_coherence *table, uint64_t at) {
    mu_range_cursor cursor = {0, 0};
    return mu_ranges_seek(&table->segments, &cursor, at);
}
/* A walk over the segments that [low, high) meets: `for (s = first(low); s && s->low < high; s = next())`. */
static inline mu_segment *mu_coherence_first(const mu_coherence *table, mu_range_cursor *cursor, uint64_t low) {
    *cursor = (mu_range_cursor){0, 0};
    return mu_ranges_seek(&table->segments, cursor, low);
}
static inline mu_segment *mu_coherence_next(const mu_coherence *table, mu_range_cursor *cursor) {
    return mu_ranges_next(&table->segments, cursor);
}

/* A walk over the segments that an area meets: `for (s = mu_walk_first(&walk, ...); s; s = mu_walk_next(&walk))`. */
typedef struct mu_walk {
    const mu_coherence *table;
    mu_area area;
    uint32_t row;
    uint64_t low, high; /* what of the segment is in this row */
    mu_range_cursor cursor;
} mu_walk;
mu_segment *mu_walk_first(mu_walk *walk, const mu_coherence *table, const mu_area *area);
mu_segment *mu_walk_next(mu_walk *walk);

/* How many rows from [low, high) on, a part of the segment, each a pitch behind the one before and none reaching behind `end`, are in
 * segments like this one; at least 1. *stamp becomes the latest stamp of `device` in them (0 for the
 * host, MUSTER_ANY_DEVICE). */
uint32_t mu_coherence_repeats(const mu_coherence *table, const mu_segment *segment, uint64_t low, uint64_t high,
                              uint64_t pitch, uint64_t end, int device, uint64_t *stamp);

/* The instance of device `device` that covers [low, high), or NULL. */
mu_instance *mu_coherence_instance(const mu_coherence *table, int device, uint64_t low, uint64_t high);

/* The range a new instance must hold so that it covers [low, high) and overlaps no other: theirs and its union. */
void mu_coherence_hull(const mu_coherence *table, int device, uint64_t *low, uint64_t *high);

/* The updates. They split segments at the ends of the range and merge equal neighbours; false: out of host memory,
 * nothing changed. */
/* [low, high) was written by device `device` in `epoch`, or by the host (device MUSTER_ANY_DEVICE): the only valid copy. */
bool mu_coherence_written(mu_coherence *table, uint64_t low, uint64_t high, int device, uint64_t epoch);
bool mu_coherence_written_area(mu_coherence *table, const mu_area *area, int device, uint64_t epoch);
/* A copy of [low, high) arrived: one more valid location. Segments that are undefined stay so. */
bool mu_coherence_copied(mu_coherence *table, uint64_t low, uint64_t high, int device, uint64_t epoch);
bool mu_coherence_copied_area(mu_coherence *table, const mu_area *area, int device, uint64_t epoch);
/* The content of [low, high) is lost. */
bool mu_coherence_undefined(mu_coherence *table, uint64_t low, uint64_t high);
/* The same, because its writer failed (MUSTER_ANY_DEVICE) or `device` was lost. Cannot fail: without memory, more is lost than that. */
void mu_coherence_lose_area(mu_coherence *table, const mu_area *area, int device);
/* `device` is lost: its copies of the whole buffer are, and what was valid there alone is undefined. Cannot fail. */
void mu_coherence_lose_device(mu_coherence *table, int device);
/* Reports that the segment is undefined, and why: DATA_UNDEFINED. `what` says whose it is: "the buffer of argument 2". */
muster_status mu_segment_fail(const mu_segment *segment, const char *what, muster_error *error);
/* The device's copy of [low, high) is given up; what was valid there alone must have been copied elsewhere before. */
bool mu_coherence_dropped(mu_coherence *table, uint64_t low, uint64_t high, int device);
/* What is valid on `device` within [low, high) is so only after `epoch`, for its memory moves there. Stamps of a segment that
 * reaches beyond the range are raised as a whole, which only makes readers wait longer. */
void mu_coherence_restamp(mu_coherence *table, uint64_t low, uint64_t high, int device, uint64_t epoch);

#endif
