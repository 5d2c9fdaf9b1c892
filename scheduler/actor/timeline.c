#include "scheduler/actor/timeline.h"

#include <sched.h>

#include "base/clock.h"
#include "base/error.h"

enum { PIN_BITS = 16 };
/* A fault keeps the signal from coming and shows at the event, so that is asked after so many looks. */
enum { LOOKS = 32 };

static mu_epoch_slot *slot_of(mu_timeline *timeline, uint64_t epoch) { return &timeline->slots[epoch % MU_EPOCH_RING]; }

muster_status mu_timeline_init(mu_timeline *timeline, mu_device *device, muster_error *error) {
    timeline->device = device;
    timeline->open = 1;
    atomic_init(&timeline->closed, 0);
    atomic_init(&timeline->done, 0);
    atomic_init(&timeline->since_ns, 0);
    for (int i = 0; i < MU_EPOCH_RING; i++) {
        atomic_init(&timeline->slots[i].guard, 0);
        timeline->slots[i].event = NULL;
    }
    atomic_store_explicit(&slot_of(timeline, 1)->guard, (uint64_t)1 << PIN_BITS, memory_order_relaxed);
    for (int i = 0; i < MU_EPOCH_RING; i++) {
        muster_status status = mu_event_create(device, &timeline->slots[i].event, error);
        if (status) return status;
    }
    timeline->modelled = mu_event_kernel_ns(device, timeline->slots[0].event, &timeline->kernel_ns);
    muster_status status = mu_signal_create(device, &timeline->signal, error);
    timeline->signals = timeline->signal != NULL;
    return status;
}

void mu_timeline_destroy(mu_timeline *timeline) {
    for (int i = 0; i < MU_EPOCH_RING; i++)
        if (timeline->slots[i].event) mu_event_destroy(timeline->device, timeline->slots[i].event);
    mu_signal_destroy(timeline->device, timeline->signal);
    timeline->signal = NULL;
}

/* Gives the slot to its next epoch. A consumer that still issues a wait for the slot's last epoch (a driver call of some
 * 0.2 us, a full ring ago) is let finish. Acquire pairs with its unpin: the wait is issued before we record again. */
static void take_over(mu_timeline *timeline, uint64_t epoch) {
    mu_epoch_slot *slot = slot_of(timeline, epoch);
    uint_fast64_t expected = atomic_load_explicit(&slot->guard, memory_order_relaxed);
    for (;;) {
        uint_fast64_t unpinned = expected & ~(((uint_fast64_t)1 << PIN_BITS) - 1);
        if (expected != unpinned) {
            sched_yield();
            expected = atomic_load_explicit(&slot->guard, memory_order_relaxed);
        } else if (atomic_compare_exchange_weak_explicit(&slot->guard, &expected, epoch << PIN_BITS,
                                                         memory_order_acquire, memory_order_relaxed)) {
            return;
        }
    }
}

muster_status mu_timeline_close(mu_timeline *timeline, bool watched, muster_error *error) {
    uint64_t epoch = timeline->open;
    /* Before the event, which is recorded while the device gets there. */
    if (watched && timeline->signals && timeline->complete + 1 == epoch) {
        timeline->signals = mu_signal_send(timeline->device, MU_LANE_DISPATCH, timeline->signal, (uint32_t)epoch);
        if (timeline->signals) timeline->signalled = epoch;
    }
    muster_status status = mu_event_record(timeline->device, MU_LANE_DISPATCH, slot_of(timeline, epoch)->event, error);
    if (status) return status;
    take_over(timeline, epoch + 1);
    if (timeline->complete + 1 == epoch) atomic_store_explicit(&timeline->since_ns, mu_now_ns(), memory_order_relaxed);
    timeline->open = epoch + 1;
    /* Pairs with mu_timeline_closed: whoever sees the epoch closed may wait for its recorded event. */
    atomic_store_explicit(&timeline->closed, epoch, memory_order_release);
    return MUSTER_OK;
}

muster_status mu_timeline_poll(mu_timeline *timeline, muster_error *error) {
    uint64_t closed = atomic_load_explicit(&timeline->closed, memory_order_relaxed);
    uint64_t before = timeline->complete;
    while (timeline->complete < closed) {
        uint64_t epoch = timeline->complete + 1;
        bool told = mu_timeline_is_signalled(timeline), complete = told && !timeline->modelled;
        if (!told && epoch == timeline->signalled && timeline->looks++ % LOOKS != LOOKS - 1) break;
        if (!complete) {
            muster_status status = mu_event_poll(timeline->device, slot_of(timeline, epoch)->event, &complete, error);
            if (status) return status;
        }
        if (!complete) break;
        timeline->complete = epoch;
    }
    if (timeline->complete == before) return MUSTER_OK;
    if (timeline->modelled)
        mu_event_kernel_ns(timeline->device, slot_of(timeline, timeline->complete)->event, &timeline->kernel_ns);
    atomic_store_explicit(&timeline->since_ns, mu_now_ns(), memory_order_relaxed);
    return MUSTER_OK;
}

uint64_t mu_timeline_age_ns(const mu_timeline *timeline) {
    if (mu_timeline_done(timeline) == mu_timeline_closed(timeline)) return 0;
    uint64_t since = atomic_load_explicit(&timeline->since_ns, memory_order_relaxed), now = mu_now_ns();
    return now > since ? now - since : 0;
}

void mu_timeline_settle(mu_timeline *timeline, uint64_t epoch) {
    atomic_store_explicit(&timeline->done, epoch, memory_order_release);
}

void mu_timeline_lose(mu_timeline *timeline) {
    atomic_store_explicit(&timeline->closed, UINT64_MAX, memory_order_release);
}

void mu_timeline_end(mu_timeline *timeline) {
    atomic_store_explicit(&timeline->done, UINT64_MAX, memory_order_release);
}

static mu_epoch_wait fail_lost(const mu_timeline *timeline, muster_error *error) {
    int device = mu_device_index(timeline->device);
    mu_fail(error, MUSTER_DEVICE_LOST, "device %d, which was to be waited for, is lost", device);
    if (error) error->device = device;
    return MU_EPOCH_FAILED;
}

mu_epoch_wait mu_timeline_wait(mu_timeline *timeline, uint64_t epoch, mu_device *device, mu_lane lane,
                               muster_error *error) {
    if (epoch == 0 || mu_timeline_done(timeline) >= epoch) return MU_EPOCH_DONE;
    uint64_t closed = mu_timeline_closed(timeline);
    if (closed < epoch) return MU_EPOCH_NOT_CLOSED;
    if (closed == UINT64_MAX) return fail_lost(timeline, error);
    mu_epoch_slot *slot = slot_of(timeline, epoch);
    uint_fast64_t guard = atomic_load_explicit(&slot->guard, memory_order_relaxed);
    do {
        /* The slot belongs to a later epoch: ours is long done. */
        if (guard >> PIN_BITS != epoch) return MU_EPOCH_DONE;
    } while (!atomic_compare_exchange_weak_explicit(&slot->guard, &guard, guard + 1, memory_order_acquire,
                                                    memory_order_relaxed));
    muster_status status = mu_event_wait_for(device, lane, slot->event, timeline->device, error);
    /* Release pairs with take_over's acquire. */
    atomic_fetch_sub_explicit(&slot->guard, 1, memory_order_release);
    uint64_t *waited = &timeline->waited_by[mu_device_index(device)];
    if (*waited < epoch) *waited = epoch;
    return status ? MU_EPOCH_FAILED : MU_EPOCH_WAITED;
}
