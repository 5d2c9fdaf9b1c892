#include "scheduler/alarm.h"

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/actor.h"

struct mu_alarm {
    pthread_mutex_t lock;
    mu_mailbox *mailbox; /* NULL: the worker is gone */
    bool armed;          /* the driver will call */
    mu_alarm *abandoned; /* the next of those that were left to the driver */
};

/* Alarms of lost devices, which the driver may still call; never freed. Pushed to by whoever destroys one. */
static _Atomic(mu_alarm *) abandoned;

muster_status mu_alarm_create(mu_actor *actor, mu_alarm **alarm, muster_error *error) {
    mu_alarm *made = mu_alloc_zeroed(1, sizeof *made);
    if (!made) return mu_fail_host_memory(error, "the alarm of a worker", sizeof *made);
    pthread_mutex_init(&made->lock, NULL);
    made->mailbox = &actor->mailbox;
    *alarm = made;
    return MUSTER_OK;
}

/* On a thread of the driver's. */
static void ring(void *user) {
    mu_alarm *alarm = user;
    pthread_mutex_lock(&alarm->lock);
    alarm->armed = false;
    if (alarm->mailbox) mu_mailbox_nudge(alarm->mailbox);
    pthread_mutex_unlock(&alarm->lock);
}

static bool set_armed(mu_alarm *alarm, bool armed) {
    pthread_mutex_lock(&alarm->lock);
    bool before = alarm->armed;
    alarm->armed = armed;
    pthread_mutex_unlock(&alarm->lock);
    return before;
}

muster_status mu_alarm_set(mu_actor *actor, mu_alarm *alarm, bool *set, muster_error *error) {
    muster_status status = MUSTER_OK;
    *set = true;
    /* Armed for an older epoch: the worker looks when that is done, and comes back here. */
    if (set_armed(alarm, true)) return MUSTER_OK;
    *set = mu_timeline_signal(&actor->timeline, ring, alarm, &status, error) && !status;
    if (!*set) set_armed(alarm, false);
    return status;
}

void mu_alarm_destroy(mu_actor *actor, mu_alarm *alarm) {
    if (!alarm) return;
    if (!actor->lost) mu_lane_synchronize(actor->device, MU_LANE_SIGNAL, NULL);
    pthread_mutex_lock(&alarm->lock);
    alarm->mailbox = NULL;
    bool armed = alarm->armed;
    pthread_mutex_unlock(&alarm->lock);
    if (armed) {
        alarm->abandoned = atomic_load_explicit(&abandoned, memory_order_relaxed);
        /* Relaxed: nobody reads the list; it keeps what is in it from being taken for lost. */
        while (!atomic_compare_exchange_weak_explicit(&abandoned, &alarm->abandoned, alarm, memory_order_relaxed,
                                                      memory_order_relaxed)) {
        }
        return;
    }
    pthread_mutex_destroy(&alarm->lock);
    mu_free(alarm);
}
