#include "scheduler/bursts.h"

#include "base/error.h"
#include "scheduler/actor.h"
#include "scheduler/enqueue.h"
#include "scheduler/runtime.h"

/* A launch of 3.6 us becomes a node of 0.6; below the smallest chain the gain is not worth a second path. */
static const uint32_t sizes[MU_BURST_SIZES] = {8, 32, MU_BURST_LONGEST};

muster_status mu_bursts_create(mu_actor *actor, muster_error *error) {
    mu_bursts *bursts = &actor->bursts;
    bursts->reach = MU_BURST_LONGEST;
    if (actor->runtime->config.flags & MUSTER_RUNTIME_SERIAL) return MUSTER_OK;
    for (int i = 0; i < MU_BURST_SIZES; i++) {
        muster_error reason;
        muster_status status = mu_burst_create(actor->device, MU_BURST_CHAIN, sizes[i], &bursts->chains[i], &reason);
        if (status == MUSTER_OUT_OF_HOST_MEMORY || muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST)
            return mu_error_copy(error, &reason);
        if (status)
            mu_log_line(&actor->runtime->log, MUSTER_LOG_WARNING, "device %d: no bursts of %u launches: %s",
                        actor->index, sizes[i], reason.message);
    }
    return MUSTER_OK;
}

void mu_bursts_destroy(mu_actor *actor) {
    for (int i = 0; i < MU_BURST_SIZES; i++) {
        mu_burst_destroy(actor->bursts.chains[i]);
        actor->bursts.chains[i] = NULL;
    }
}

/* The longest chain that will probably be filled, and that does not keep an idle device waiting for long. */
static mu_burst *choose(const mu_actor *actor, uint32_t expected) {
    const mu_bursts *bursts = &actor->bursts;
    uint32_t limit = expected;
    if (limit > bursts->reach) limit = bursts->reach;
    uint32_t busy = 2 * actor->tasks_in_flight;
    if (busy < sizes[0]) busy = sizes[0];
    if (limit > busy) limit = busy;
    for (int i = MU_BURST_SIZES; i-- > 0;)
        if (bursts->chains[i] && sizes[i] <= limit) return bursts->chains[i];
    return NULL;
}

muster_status mu_bursts_add(mu_actor *actor, const mu_task *task, const mu_launch *launch, uint32_t expected,
                            bool *taken, muster_error *error) {
    mu_bursts *bursts = &actor->bursts;
    *taken = false;
    if (!mu_burst_takes(launch)) return MUSTER_OK;
    if (!bursts->open) bursts->open = choose(actor, expected);
    if (!bursts->open) return MUSTER_OK;
    muster_status status = mu_burst_set(bursts->open, bursts->count, launch, error);
    if (status) {
        /* A node that cannot be updated is launched by itself; a bad launch fails there again, and alone. */
        return muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST ? status : MUSTER_OK;
    }
    bursts->tasks[bursts->count++] = mu_task_ref_of(task);
    *taken = true;
    return MUSTER_OK;
}

/* The burst was refused as a whole: its launches go out one by one, so that a bad one fails alone. What depends on it was
 * counted as ready already, and is caught by its failed predecessor. */
static void launch_one_by_one(mu_actor *actor) {
    mu_bursts *bursts = &actor->bursts;
    for (uint32_t i = 0; i < bursts->count; i++) mu_enqueue_again(actor, bursts->tasks[i]);
}

void mu_bursts_flush(mu_actor *actor) {
    mu_bursts *bursts = &actor->bursts;
    if (!bursts->open) return;
    muster_error error;
    uint32_t capacity = mu_burst_capacity(bursts->open);
    /* Switching nodes off costs as much as running them: the next chain is no longer than this one became. */
    if (bursts->count == capacity)
        bursts->reach = capacity < MU_BURST_LONGEST / 4 ? 4 * capacity : MU_BURST_LONGEST;
    else
        bursts->reach = bursts->count < sizes[0] ? sizes[0] : bursts->count;
    muster_status status = bursts->count ? mu_burst_launch(bursts->open, bursts->count, &error) : MUSTER_OK;
    bursts->open = NULL;
    if (status) launch_one_by_one(actor);
    bursts->count = 0;
}

muster_status mu_bursts_forget(mu_actor *actor, mu_function function, muster_error *error) {
    mu_tally_forget(actor, function);
    for (int i = 0; i < MU_BURST_SIZES; i++) {
        if (!actor->bursts.chains[i]) continue;
        muster_status status = mu_burst_forget(actor->bursts.chains[i], function, error);
        if (status) return status;
    }
    return MUSTER_OK;
}
