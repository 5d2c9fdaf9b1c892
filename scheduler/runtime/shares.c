#include "scheduler/runtime/shares.h"

#include "scheduler/actor/loss.h"
#include "scheduler/runtime/runtime.h"

void mu_shares_ask(mu_actor *actor) {
    muster_runtime *runtime = actor->runtime;
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        mu_actor *other = &runtime->actors[d];
        if (other == actor || !mu_device_shares_with(actor->device, other->device)) continue;
        /* Pools give memory back in the steps in which they take it. */
        if (mu_ledger_cached(mu_device_ledger(other->device)) < MU_POOL_STEP_BYTES) continue;
        /* Relaxed: nothing comes with it, and the nudge lets a parked worker see it. */
        atomic_store_explicit(&other->trim_asked, true, memory_order_relaxed);
        mu_mailbox_nudge(&other->mailbox);
    }
}

void mu_shares_answer(mu_actor *actor) {
    muster_error error;
    if (!atomic_load_explicit(&actor->trim_asked, memory_order_relaxed)) return;
    atomic_store_explicit(&actor->trim_asked, false,
                          memory_order_relaxed); /* before the trim: a later ask is a new one */
    if (actor->lost) return;
    muster_status status = mu_device_trim(actor->device, &error);
    if (!status) status = mu_device_sample_memory(actor->device, &error);
    if (muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST) mu_actor_lose(actor, &error);
}
