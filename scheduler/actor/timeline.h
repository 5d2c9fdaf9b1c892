/* The timeline of a device's dispatch lane: work is grouped into epochs, numbered 1, 2, 3, ...
 *
 * The open epoch collects what the worker enqueues. Closing it records one event behind it; when that event has completed
 * the epoch is done, and so are all before it. Another device waits for an epoch (never for a job) by making its stream
 * wait for the epoch's event, which is possible once the epoch is closed.
 *
 * An event is asked by a call of the driver. For an epoch whose end somebody is waiting for, the device also writes its number to host
 * memory, which is looked at without one.
 *
 * The event protocol: cuStreamWaitEvent on an event that has not been recorded does nothing, silently, so a wait is issued
 * only for epochs up to `closed`; and an event is not recorded again while a wait for it is being issued: consumers pin
 * the ring slot, and the owner takes a slot over only without pins. */
#ifndef MUSTER_SCHEDULER_ACTOR_TIMELINE_H
#define MUSTER_SCHEDULER_ACTOR_TIMELINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/tuning.h"
#include "device/device.h"

typedef struct mu_epoch_slot {
    atomic_uint_fast64_t guard; /* epoch << 16 | pins of consumers issuing a wait */
    mu_event event;
} mu_epoch_slot;

typedef struct mu_timeline {
    mu_device *device;
    uint64_t open;      /* worker only: the epoch that collects work */
    uint64_t complete;  /* worker only: the last epoch whose event has completed */
    mu_signal *signal;  /* worker only, as what follows: NULL when the driver has none */
    bool signals;       /* the driver has taken all so far */
    uint64_t signalled; /* the last epoch whose number was sent */
    uint32_t looks;     /* at it; now and then the event is asked too */
    /* Worker only: what kernels took up to there, where the driver models it (`modelled`), and what of it has been noted. Such a driver
     * knows at the event, which comes behind the signal. */
    uint64_t kernel_ns, noted_ns;
    bool modelled;
    /* Written by the worker, read by everybody. `closed`: the last epoch whose event is recorded; its release store pairs
     * with the acquire load of a consumer, which then sees the event. `done`: the last epoch that is complete and whose effects
     * are settled: right, or marked as lost (scheduler/actor/loss.h); who sees it sees the marks. */
    _Alignas(MU_CACHE_LINE) atomic_uint_fast64_t closed;
    atomic_uint_fast64_t done;
    /* Since when the oldest epoch that is not done has been the oldest, or when it was closed if nothing was before it. Relaxed:
     * others estimate by it whether the device is at something long. */
    atomic_uint_fast64_t since_ns;
    uint64_t waited_by[MU_MAX_DEVICES]; /* the last epoch that each device has a wait for: that device's worker only */
    _Alignas(MU_CACHE_LINE) mu_epoch_slot slots[MU_EPOCH_RING];
} mu_timeline;

/* Worker, with the device entered. Creates the events of all slots. */
muster_status mu_timeline_init(mu_timeline *timeline, mu_device *device, muster_error *error);
void mu_timeline_destroy(mu_timeline *timeline); /* worker; no driver call is made for events never created */

/* Worker. Closes the open epoch and opens the next. The caller keeps open - done < MU_EPOCH_RING. On failure the epoch
 * stays open. `watched`: the worker has nothing else to do than to wait for its end, and the device nothing before it. */
muster_status mu_timeline_close(mu_timeline *timeline, bool watched, muster_error *error);

/* Worker. Looks at the oldest closed epochs, one by one until one is not complete, and moves `complete`. */
muster_status mu_timeline_poll(mu_timeline *timeline, muster_error *error);
/* Worker. Whether the oldest closed epoch is known to be complete without asking the driver; else nothing is known. */
static inline bool mu_timeline_is_signalled(const mu_timeline *timeline) {
    return timeline->signalled == timeline->complete + 1 &&
           mu_signal_value(timeline->signal) == (uint32_t)timeline->signalled;
}
/* Worker. A complete epoch, the next, is settled: it is done. */
void mu_timeline_settle(mu_timeline *timeline, uint64_t epoch);
/* Worker. The device is lost and what was in flight is marked so: every epoch there will ever be counts as closed. Those that are not
 * settled are waited for until they are, not by their events. */
void mu_timeline_lose(mu_timeline *timeline);
/* Worker. All of a lost device is settled: every epoch there will ever be counts as done. */
void mu_timeline_end(mu_timeline *timeline);

static inline uint64_t mu_timeline_closed(const mu_timeline *timeline) {
    return atomic_load_explicit(&timeline->closed, memory_order_acquire);
}
static inline uint64_t mu_timeline_done(const mu_timeline *timeline) {
    return atomic_load_explicit(&timeline->done, memory_order_acquire);
}

/* How long the device has been at its oldest epoch; 0 when all are done. Any thread. */
uint64_t mu_timeline_age_ns(const mu_timeline *timeline);

typedef enum mu_epoch_wait {
    MU_EPOCH_DONE,       /* complete: no wait was needed */
    MU_EPOCH_WAITED,     /* the wait is on the stream */
    MU_EPOCH_NOT_CLOSED, /* ask its owner to tell when it is (mu_actor_await) */
    MU_EPOCH_FAILED      /* the driver refused; `error` is filled. DEVICE_LOST tells which device is lost */
} mu_epoch_wait;

/* Called by the worker of `device`: makes its `lane` wait for an epoch of any timeline. 0 is done. */
mu_epoch_wait mu_timeline_wait(mu_timeline *timeline, uint64_t epoch, mu_device *device, mu_lane lane,
                               muster_error *error);

#endif
