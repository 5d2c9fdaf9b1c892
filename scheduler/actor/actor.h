/* Device actors: one worker thread per device that alone launches, allocates and loads on it. Others post messages.
 *
 * The worker's loop: drain the mailbox; enqueue ready tasks while the enqueue-ahead bound allows; close the epoch; hand
 * tasks that became ready for other devices to them; look for completed epochs and end their tasks; when there is nothing
 * to do, spin for a while, then park. */
#ifndef MUSTER_SCHEDULER_ACTOR_ACTOR_H
#define MUSTER_SCHEDULER_ACTOR_ACTOR_H

#include <pthread.h>

#include "cache/module_cache.h"
#include "device/staging.h"
#include "scheduler/actor/bursts.h"
#include "scheduler/actor/tally.h"
#include "scheduler/actor/timeline.h"
#include "scheduler/actor/vigil.h"
#include "scheduler/memory/coherence.h"
#include "scheduler/run/run.h"
#include "scheduler/runtime/callout.h"

typedef struct mu_actor mu_actor;
typedef struct mu_arrival mu_arrival;
typedef struct mu_detour mu_detour;
typedef struct mu_call mu_call;

typedef enum mu_mail_kind {
    MU_MAIL_TASKS, /* a chain of ready tasks */
    MU_MAIL_AWAIT, /* a task of another device that needs an epoch of ours closed; goes back to its device then */
    MU_MAIL_CALL,  /* run a function on the worker */
    MU_MAIL_STEAL, /* another actor's request for work, and its answer (scheduler/actor/steal.h) */
    MU_MAIL_STOLEN
} mu_mail_kind;

/* A function to run on a worker: loads, frees, host acquisitions. Owned by the poster until posted, by `run` then. */
struct mu_call {
    mu_message message;
    void (*run)(mu_actor *actor, mu_call *call);
    mu_call *next; /* while the actor keeps it (mu_actor_defer) */
};

/* A copy whose event has not completed: unpins its source, gives the event back. Part of an epoch. */
typedef struct mu_transfer {
    struct mu_transfer *next;
    mu_event event;      /* of the upload lane, NULL when it used none */
    mu_instance *source; /* pinned, or NULL */
    /* When it waited for an epoch of another device that was not done: what it brought is lost if that device is. */
    muster_buffer *buffer; /* a reference is held; NULL: not so */
    mu_area area;
    uint64_t stamp;
    int from;
} mu_transfer;

/* What the worker remembers of an epoch until it is done (scheduler/actor/epoch.h). */
typedef struct mu_epoch {
    mu_task_ref first;
    mu_task *last; /* while the epoch is open */
    uint32_t tasks, calls;
    mu_transfer *transfers;
    uint64_t upload_bytes; /* that the dispatch lane waits for */
    uint64_t estimate_ns;  /* of its tasks */
    uint64_t losses_known; /* mu_loss_serial when it was opened: what is bound in it has seen those */
} mu_epoch;

typedef struct mu_task_list {
    mu_task *first, *last; /* linked by message.link */
    uint32_t count;
} mu_task_list;

static inline void mu_task_list_append(mu_task_list *list, mu_task *task) {
    task->message.link.next = NULL;
    if (list->last)
        list->last->message.link.next = &task->message.link;
    else
        list->first = task;
    list->last = task;
    list->count++;
}
/* The first; NULL when it is empty. */
static inline mu_task *mu_task_list_take(mu_task_list *list) {
    mu_task *task = list->first;
    if (!task) return NULL;
    list->first = (mu_task *)task->message.link.next;
    if (!list->first) list->last = NULL;
    list->count--;
    return task;
}
void mu_task_list_append_all(mu_task_list *list, mu_task_list *more); /* `more` is empty then */

/* Where the tasks of each priority end in the ready queue (scheduler/actor/ready.h). */
typedef struct mu_ready_levels {
    uint32_t above; /* a bit for each priority of which there are tasks, but the lowest that is there */
    mu_task *last[MUSTER_PRIORITY_HIGHEST - MUSTER_PRIORITY_LOWEST + 1]; /* where there is a bit */
    uint32_t passes; /* tasks handed over since one of lower priority went first */
    uint32_t turn;   /* the level of that one */
} mu_ready_levels;

/* Of an actor that may get work from others (scheduler/actor/steal.h). The worker's own, but the request while another actor has it. */
typedef enum mu_steal_state { MU_STEAL_REGISTERED, MU_STEAL_OWN, MU_STEAL_ASKED } mu_steal_state;

typedef struct mu_steal {
    mu_message request; /* of the answer, `weight` is the number of tasks given */
    mu_steal_state state;
    int victim;         /* who was asked last */
    uint64_t refused;   /* devices that had nothing to give since it last got something */
    uint64_t asking;    /* devices whose requests are here */
    uint64_t looked_ns; /* when it last looked for registered requests */
    bool asked_around;  /* since it ran out of work, all have been asked that had any */
} mu_steal;

struct mu_actor {
    muster_runtime *runtime;
    int index;
    mu_device *device;
    mu_module_cache *modules;
    mu_occupancy_cache *occupancy;
    mu_staging *staging; /* copies from and to pageable memory; the worker's, as everything of the device */
    pthread_t thread;
    mu_mailbox mailbox;
    /* Jobs placed here and not ended, and what they are estimated to take: what placement compares. Relaxed: estimates. With one
     * device there is nothing to compare, and nothing is counted. */
    _Alignas(MU_CACHE_LINE) atomic_uint queued;
    atomic_uint_fast64_t queued_ns;
    /* Measured; 0: not yet (scheduler/placement/estimate.h). */
    atomic_uint_fast64_t host_bytes_per_us, peer_bytes_per_us;
    uint64_t host_rate_known,
        peer_rate_known; /* when the runtime was created (scheduler/placement/history.h); constant then */
    atomic_uint_fast64_t jobs_ended;
    mu_timeline timeline;
    mu_callout callout;

    /* The worker's own. */
    mu_epoch epochs[MU_EPOCH_RING]; /* by epoch number modulo the ring */
    uint64_t *after;          /* [ring][device]: epochs of other devices that had been waited for when it was closed */
    uint64_t retired;         /* last epoch whose tasks have been ended */
    uint32_t calls_in_flight; /* on the device's lanes, of epochs not retired */
    uint32_t tasks_in_flight; /* likewise */
    uint64_t ns_in_flight;    /* what they are estimated to take; with one device, 0 */
    mu_vigil vigil;
    bool expects_mail; /* it parked too soon the last time */
    mu_steal steal;
    mu_bursts bursts;
    mu_tally tally;     /* of launches, by shape */
    mu_task_list ready; /* tasks to enqueue, in order (scheduler/actor/ready.h) */
    mu_ready_levels ready_levels;
    mu_task_list starved; /* tasks that wait for memory, likewise in order */
    /* Of the highest priority, the one that has waited longest; no more than MU_OVERTAKES_MAX reservations of no higher priority
     * pass it. */
    const mu_task *hungriest;
    uint32_t overtaken, passed; /* reservations since, and jobs enqueued, of those that need no memory too */
    muster_error host_shortage; /* why content could not go home to make room, at the last try; OK when it could */
    uint64_t starved_since_ns;  /* when the oldest began to wait with nothing in flight; 0: not waiting */
    /* Tasks whose input is still on its way, or that come after an epoch which may take long: whatever is ready goes first. */
    struct {
        mu_arrival *first, *last; /* in the order of the upload lane */
    } arrivals;
    mu_arrival *staged_arrivals; /* not on the lane yet */
    mu_arrival *spare_arrivals;
    mu_detour *detours;
    mu_task_list writers;                 /* tasks that would write what is being written back */
    mu_task_list behind[MU_MAX_DEVICES];  /* by the device whose epoch, task->epoch, they wait for */
    uint64_t behind_seen[MU_MAX_DEVICES]; /* of that device, done when its tasks were last looked at */
    uint32_t held_tasks;                  /* all of these */
    uint64_t upload_backlog_bytes;        /* on the upload lane, not known complete */
    mu_task_list awaiting;                /* tasks of other devices that want the open epoch closed */
    uint64_t waited[MU_MAX_DEVICES];      /* last epoch of each device that our dispatch lane waits for */
    struct { /* chains of tasks that became ready for other devices; posted once the epoch is closed */
        mu_task *first, *last;
    } outbox[MU_MAX_DEVICES];
    mu_call wake;                         /* posted once, when the runtime is latched; the worker may be gone then */
    atomic_bool trim_asked;               /* by another actor on the device (scheduler/runtime/shares.h) */
    mu_call *deferred;                    /* calls that wait for an epoch or an event */
    mu_instance *lru_oldest, *lru_newest; /* the device's instances, by last use */
    mu_instance *retired_instances;       /* out of their buffers' tables: to free once unused */
    mu_transfer *spare_transfers;
    uint32_t evictions;    /* instances whose content is on the way to the host */
    bool staging_reported; /* that it has to do without pinned memory */
    bool stopping;
    bool lost; /* the device (or, with the runtime's latch, every device) is gone: end everything, call nothing */
    bool lost_settled; /* everybody knows what was lost with it (scheduler/actor/loss.h) */
    /* Its last epoch that was done before; until then, the largest there is. Ordered by `done` of the timeline. */
    atomic_uint_fast64_t lost_after;
    muster_error loss; /* others read it once mu_loss_has says so */
};

/* Opens nothing: `*actor` is zero, `device` is open and given over. Starts the thread; blocks until it has entered the device. */
muster_status mu_actor_start(mu_actor *actor, muster_runtime *runtime, int index, mu_device *device,
                             muster_error *error);
/* Stops and joins the thread; no run may be unfinished. Frees what the actor made on the device, then closes it. */
void mu_actor_stop(mu_actor *actor);

/* Any thread. */
void mu_actor_post_tasks(mu_actor *actor, mu_task *first);
void mu_actor_post_call(mu_actor *actor, mu_call *call);

/* Runs `run` on the worker of each device that is not lost and waits for all; the first error (by device) is returned: that of a
 * loss only when there is no device left. Not from a worker. */
typedef muster_status (*mu_actor_fn)(mu_actor *actor, void *user, muster_error *error);
muster_status mu_actors_call(muster_runtime *runtime, mu_actor_fn run, void *user, muster_error *error);
/* The same on every device, also a lost one: `run` makes no driver call. */
void mu_actors_tell(muster_runtime *runtime, mu_actor_fn run, void *user);
/* Returns when every worker has done what was posted to it before. Not from a worker. */
void mu_actors_pass(muster_runtime *runtime);
/* Runs on one device. */
muster_status mu_actor_call(muster_runtime *runtime, int device, mu_actor_fn run, void *user, muster_error *error);

/* The rest is called by the actor's worker. */

/* Keeps a call that cannot finish yet; it is run again after each look for completed epochs. */
void mu_actor_defer(mu_actor *actor, mu_call *call);

/* Lets tasks that have become ready go to their devices: `first` is a chain of one run. Called by any thread; by a worker
 * with its actor, so that its own tasks skip the mailbox and the others leave after the epoch is closed. */
void mu_tasks_dispatch(muster_runtime *runtime, mu_actor *self, muster_run *run, uint32_t first);

/* Whether the launch of a predecessor failed after the node's task was counted as ready. The predecessors are enqueued, and their
 * epochs closed where they are another device's. Any thread. */
bool mu_task_has_failed_predecessor(muster_run *run, const mu_node *node);
static inline bool mu_task_is_spoilt(muster_run *run, const mu_node *node) {
    return atomic_load_explicit(&run->failed_late, memory_order_relaxed) && mu_task_has_failed_predecessor(run, node);
}

/* Places a task that is not enqueued on another device than the actor's, which is lost. False: it must run here. */
bool mu_task_move(muster_runtime *runtime, mu_actor *self, muster_run *run, mu_task *task);

/* The task, which waits at the actor, is another device's from now on, for placement too; it is the caller's to post it there. */
void mu_task_hand_over(muster_runtime *runtime, mu_actor *self, mu_task *task, int device);

/* Counts one predecessor off each successor of a task that was enqueued or ended. */
void mu_task_release_successors(muster_runtime *runtime, mu_actor *self, muster_run *run, mu_task *task);

/* Whether the device has as much ahead of it as it may have, or must drain before anything is enqueued. Some task is ready. */
bool mu_actor_is_full(const mu_actor *actor);

/* Whether `epoch` of `device` is not done and may take long: the device has been at its oldest epoch for a while, or is lost, and what is
 * left of its epochs ends after others'. */
bool mu_actor_is_behind(const mu_actor *actor, int device, uint64_t epoch);
/* Held tasks are ready, before those of their priorities that are: they have waited longer. The list is empty then. */
void mu_actor_take_up(mu_actor *actor, mu_task_list *held);

#endif
