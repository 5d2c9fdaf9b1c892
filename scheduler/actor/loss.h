/* The loss of a device: what becomes of what was there, and of what others were making of it.
 *
 * A kernel fault ends every device of the process; the runtime is latched (mu_runtime_fault) and everything ends. Any other loss
 * ends one device. Its worker lives on, makes no driver call any more, and
 *   - fails what was in flight there; what those jobs would have written is undefined;
 *   - gives up the device's copies of buffers; content that nobody else has is undefined;
 *   - ends what was in flight, epoch by epoch, each when what it comes after on other devices is done: who follows a run on this device
 *     follows what that followed, which may still read host memory. Then its timeline is done, for nobody to wait for it;
 *   - places what is not enqueued, and whatever still comes, on other devices, and ends what cannot go there.
 *
 * Others may have enqueued work behind epochs of the lost device that never completed: the driver lets such work run, on garbage.
 * So a complete epoch is *judged* before it counts as done (mu_timeline): only when every epoch of other devices that its device
 * had waited for is done, for then every loss that it can depend on is known. What was lost is kept as *marks*: an area of a
 * buffer, and the epoch of the device in which it was lost. A task fails if one of its predecessors has, or if it touches a marked
 * area, its epoch comes after the marked one, and it was bound before the mark was made (later ones find the range undefined).
 * What it would have written is marked in turn.
 *
 * Order: a loss is first noted in the range tables, then in the marks, then in the timeline. */
#ifndef MUSTER_SCHEDULER_ACTOR_LOSS_H
#define MUSTER_SCHEDULER_ACTOR_LOSS_H

#include "scheduler/actor/actor.h"

typedef struct mu_loss_mark {
    muster_buffer *buffer; /* compared only: it may be gone */
    mu_area area;
    uint64_t epoch; /* of `device` */
    uint64_t serial;
    int device;
} mu_loss_mark;

/* Of a runtime. */
typedef struct mu_losses {
    pthread_mutex_t lock; /* the marks; never held over another lock or a driver call */
    mu_loss_mark *marks;  /* by serial */
    size_t count, capacity;
    uint64_t unmarked; /* serial of the last mark that there was no memory for: it counts for everything */
    /* The last serial. Release after the tables' change pairs with the acquire of who binds: later ones find the range undefined. */
    atomic_uint_fast64_t serial;
    /* Something failed after it had been enqueued. Relaxed: ordered by `done` of the timelines. */
    atomic_bool any;
    /* Bit d: device d is lost. Release pairs with acquire of who reads actors[d].loss. */
    atomic_uint_fast64_t devices;
} mu_losses;

void mu_losses_init(mu_losses *losses);
void mu_losses_destroy(mu_losses *losses);

/* Any thread. */
bool mu_loss_has(const muster_runtime *runtime, int device); /* actors[device].loss can be read then */
uint64_t mu_loss_devices(const muster_runtime *runtime);     /* bit d: device d is lost */
static inline uint64_t mu_loss_serial(const mu_losses *losses) {
    return atomic_load_explicit(&losses->serial, memory_order_acquire);
}

/* The rest is called by the actor's worker. */

/* The device, or all of them, is gone: remembers why. A device that still answers is waited for first, then left alone: after
 * a call that must not fail did. */
void mu_actor_lose(mu_actor *actor, const muster_error *error);

/* The device is lost: fails what is in the actor's epochs, and ends those that come after nothing that is not done. Called again until
 * all have ended, and for what comes later. */
void mu_loss_end_everything(mu_actor *actor);

/* The device is lost: sends the ready tasks to other devices, or ends them, once copy threads have left their input alone. Whether there
 * were any. */
bool mu_loss_forward(mu_actor *actor);

/* What `node` of `run`, in `epoch` of this device, would have written is lost, though work behind it may be enqueued. */
void mu_loss_undefine(mu_actor *actor, muster_run *run, const mu_node *node, uint64_t epoch);

/* Whether all that a complete epoch can depend on is done. */
bool mu_loss_can_judge(const mu_actor *actor, uint64_t number);
/* Fails the tasks of a complete epoch that depend on what was lost. */
void mu_loss_judge(mu_actor *actor, uint64_t number);

/* Whether what a copy brings from `source` is good: it waited for epoch `stamp` there, which must be closed. `*known` is false while
 * that cannot be told yet. Called when the copy is complete. */
bool mu_loss_is_good(const muster_runtime *runtime, int source, uint64_t stamp, bool *known);

#endif
