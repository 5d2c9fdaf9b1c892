#include "scheduler/actor/vigil.h"

#include "base/clock.h"
#include "scheduler/actor/epoch.h"
#include "scheduler/placement/estimate.h"
#include "scheduler/runtime/runtime.h"

/* Looks between two measurements, which cost a system call. */
enum { MEASURED_LOOKS = 32 };

/* When the oldest epoch in flight probably ends; 0: that is not known, or it is many short kernels. */
static uint64_t expected_end_ns(mu_actor *actor) {
    uint64_t end = atomic_load_explicit(&actor->timeline.since_ns, memory_order_relaxed);
    if (actor->retired + 1 >= actor->timeline.open) return 0;
    mu_task_ref ref = mu_epoch_first(mu_epoch_at(actor, actor->retired + 1));
    for (int count = 0; ref != MU_NO_TASK; count++) {
        const muster_run *run = mu_run_at(actor->runtime, (uint32_t)(ref >> 32));
        const mu_task *task = &run->tasks[(uint32_t)ref];
        uint64_t ns = mu_estimate_launch_ns(&run->graph->nodes[task->node], actor->index);
        if (count == MU_VIGIL_TASKS || ns == 0) return 0;
        end += ns;
        ref = task->epoch_next;
    }
    return end;
}

uint64_t mu_vigil_step_ns(mu_vigil *vigil, uint64_t now) {
    uint64_t look = vigil->look_ns ? vigil->look_ns : MU_POLL_LOOK_NS;
    uint64_t since = vigil->looked_ns ? now - vigil->looked_ns : MU_POLL_REST_NS;
    if (since > MU_POLL_REST_NS) since = MU_POLL_REST_NS;
    uint64_t credit = vigil->credit_ns + since * MU_POLL_PERMILLE / 1000;
    if (credit > MU_POLL_CREDIT_NS) credit = MU_POLL_CREDIT_NS;
    vigil->credit_ns = credit > look ? credit - look : 0;
    vigil->looked_ns = now;
    uint64_t permille =
        MU_POLL_PERMILLE + (MU_POLL_PERMILLE_MAX - MU_POLL_PERMILLE) * vigil->credit_ns / MU_POLL_CREDIT_NS;
    uint64_t step = look < MU_POLL_INTERVAL_MAX_NS ? look * 1000 / permille - look : MU_POLL_INTERVAL_MAX_NS;
    if (step < MU_POLL_INTERVAL_MIN_NS) return MU_POLL_INTERVAL_MIN_NS;
    return step < MU_POLL_INTERVAL_MAX_NS ? step : MU_POLL_INTERVAL_MAX_NS;
}

/* Counts this look, and learns what the last ones took. */
static void measure(mu_vigil *vigil) {
    if (vigil->looks && vigil->looks < MEASURED_LOOKS) {
        vigil->looks++;
        return;
    }
    uint64_t now = mu_thread_cpu_ns();
    if (vigil->looks) vigil->look_ns = (now - vigil->cpu_ns) / MEASURED_LOOKS;
    vigil->cpu_ns = now;
    vigil->looks = 1;
}

uint64_t mu_vigil_sleep_ns(mu_actor *actor, uint64_t now) {
    uint64_t end = expected_end_ns(actor);
    measure(&actor->vigil);
    uint64_t step = mu_vigil_step_ns(&actor->vigil, now);
    if (end && now + MU_VIGIL_NS >= end && now < end + MU_VIGIL_NS) return MU_VIGIL_INTERVAL_NS;
    if (now + MU_VIGIL_NS >= end) return step;
    uint64_t left = end - MU_VIGIL_NS - now;
    return left < step ? left : step;
}

void mu_vigil_break(mu_actor *actor) { actor->vigil.looks = 0; }
