/* Calls that application threads make on the workers of one device or all, and wait for. */
#include "base/error.h"
#include "scheduler/actor/actor.h"
#include "scheduler/actor/loss.h"
#include "scheduler/runtime/runtime.h"
#include "scheduler/runtime/wait.h"

typedef struct gathering {
    mu_actor_fn run;
    void *user;
    bool lost_too;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t left;
} gathering;

typedef struct gathered_call {
    mu_call call;
    gathering *all;
    muster_status status;
    bool lost; /* it failed because the device is lost, alone */
    muster_error error;
} gathered_call;

static void run_gathered(mu_actor *actor, mu_call *call) {
    gathered_call *one = (gathered_call *)call;
    gathering *all = one->all;
    if (actor->lost && !all->lost_too)
        one->status = mu_error_copy(&one->error, &actor->loss);
    else
        one->status = all->run(actor, all->user, &one->error);
    if (one->status) one->error.device = actor->index;
    if (muster_status_recovery(one->status) == MUSTER_RECOVERY_DEVICE_LOST) mu_actor_lose(actor, &one->error);
    one->lost = actor->lost && one->status == MUSTER_DEVICE_LOST;
    pthread_mutex_lock(&all->lock);
    if (--all->left == 0) pthread_cond_signal(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

/* On the workers of `count` devices from `first`. */
static muster_status gather(muster_runtime *runtime, uint32_t first, uint32_t count, bool lost_too, mu_actor_fn run,
                            void *user, muster_error *error) {
    gathered_call calls[MU_MAX_DEVICES];
    gathering all = {.run = run, .user = user, .lost_too = lost_too, .left = count};
    pthread_mutex_init(&all.lock, NULL);
    mu_cond_init(&all.changed);
    for (uint32_t d = first; d < first + count; d++) {
        calls[d] = (gathered_call){.call = {.run = run_gathered}, .all = &all};
        mu_actor_post_call(&runtime->actors[d], &calls[d].call);
    }
    pthread_mutex_lock(&all.lock);
    while (all.left) pthread_cond_wait(&all.changed, &all.lock);
    pthread_mutex_unlock(&all.lock);
    pthread_cond_destroy(&all.changed);
    pthread_mutex_destroy(&all.lock);
    const gathered_call *lost = NULL;
    uint32_t lost_count = 0;
    for (uint32_t d = first; d < first + count; d++) {
        if (calls[d].status && !calls[d].lost) return mu_error_copy(error, &calls[d].error);
        if (!calls[d].lost) continue;
        lost = &calls[d];
        lost_count++;
    }
    return lost_count == count ? mu_error_copy(error, &lost->error) : MUSTER_OK;
}

muster_status mu_actors_call(muster_runtime *runtime, mu_actor_fn run, void *user, muster_error *error) {
    return gather(runtime, 0, runtime->device_count, false, run, user, error);
}

void mu_actors_tell(muster_runtime *runtime, mu_actor_fn run, void *user) {
    gather(runtime, 0, runtime->device_count, true, run, user, NULL);
}

static muster_status pass_by(mu_actor *actor, void *user, muster_error *error) {
    (void)actor;
    (void)user;
    (void)error;
    return MUSTER_OK;
}

void mu_actors_pass(muster_runtime *runtime) { mu_actors_tell(runtime, pass_by, NULL); }

muster_status mu_actor_call(muster_runtime *runtime, int device, mu_actor_fn run, void *user, muster_error *error) {
    return gather(runtime, (uint32_t)device, 1, false, run, user, error);
}
