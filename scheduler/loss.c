#include "scheduler/loss.h"
#include "scheduler/bind.h"

#include "base/error.h"
#include "scheduler/runtime.h"

void mu_actor_lose(mu_actor *actor, const muster_error *error) {
    if (actor->lost) return;
    actor->lost = true;
    actor->loss = *error;
    /* A call that must not fail did: whatever its code, this device is no longer of use. */
    if (muster_status_recovery(error->status) != MUSTER_RECOVERY_DEVICE_LOST) actor->loss.status = MUSTER_DEVICE_LOST;
    actor->loss.device = actor->index;
    /* The simulator knows the kernel, block, thread, line and address. */
    char text[400];
    if (mu_driver_last_fault(actor->runtime->driver, text, sizeof text)) {
        muster_error told = actor->loss;
        mu_fail(&actor->loss, told.status, "%s; no device of this process can be used any more", text);
        actor->loss.driver_code = told.driver_code;
        actor->loss.device = told.device;
    }
    mu_runtime_fault(actor->runtime, &actor->loss);
}

/* A task that was in flight: one of them is the cause. In serial mode there is one. */
static void fail_suspect(mu_actor *actor, muster_run *run, mu_task *task) {
    const mu_node *node = &run->graph->nodes[task->node];
    muster_error error = actor->loss;
    if (node->kind == MU_NODE_DISPATCH)
        mu_fail(&error, actor->loss.status, "in flight: kernel %.64s of job %u; %.380s", mu_node_kernel_name(node),
                mu_run_job(run, node), actor->loss.message);
    if (node->kind == MU_NODE_ENQUEUE)
        mu_fail(&error, actor->loss.status, "in flight: enqueue job %u; %.400s", mu_run_job(run, node),
                actor->loss.message);
    error.driver_code = actor->loss.driver_code;
    mu_run_fail(run, task, error.status, &error);
    mu_bind_undefine(run, node);
}

/* Everything that was enqueued or waits here ends with the loss; work of other runs that comes later does too. */
void mu_loss_end_everything(mu_actor *actor) {
    actor->bursts.open = NULL;
    actor->bursts.count = 0;
    for (uint64_t number = actor->retired + 1; number <= actor->timeline.open; number++) {
        mu_epoch *epoch = &actor->epochs[number % MU_EPOCH_RING];
        for (mu_task_ref ref = epoch->tasks ? epoch->first : MU_NO_TASK; ref != MU_NO_TASK;) {
            muster_run *run = mu_run_at(actor->runtime, (uint32_t)(ref >> 32));
            mu_task *task = mu_run_task(run, (uint32_t)ref);
            if (!task->status) fail_suspect(actor, run, task);
            ref = task->epoch_next;
        }
        bool closed = number < actor->timeline.open;
        if (!closed) mu_epoch_enqueued(actor, number);
        mu_epoch_retire(actor, number);
        *epoch = (mu_epoch){.first = MU_NO_TASK, .last = MU_NO_TASK};
    }
    /* The open epoch stays open, emptied; nothing is recorded any more. */
    actor->retired = actor->timeline.open - 1;
}
