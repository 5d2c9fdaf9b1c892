/* Tasks on their way: released by their predecessors, placed, posted to the actors. */
#include <string.h>

#include "scheduler/actor/actor.h"
#include "scheduler/actor/bind.h"
#include "scheduler/actor/loss.h"
#include "scheduler/actor/ready.h"
#include "scheduler/placement/estimate.h"
#include "scheduler/placement/spread.h"
#include "scheduler/run/host_task.h"
#include "scheduler/runtime/runtime.h"

/* ----------------------------------------------------------------------------------------------------------- posts -- */

void mu_actor_post_tasks(mu_actor *actor, mu_task *first) {
    first->message.kind = MU_MAIL_TASKS;
    mu_mailbox_post(&actor->mailbox, &first->message);
}

void mu_actor_post_call(mu_actor *actor, mu_call *call) {
    call->message.kind = MU_MAIL_CALL;
    mu_mailbox_post(&actor->mailbox, &call->message);
}

void mu_task_list_append_all(mu_task_list *list, mu_task_list *more) {
    if (!more->first) return;
    if (list->last)
        list->last->message.link.next = &more->first->message.link;
    else
        list->first = more->first;
    list->last = more->last;
    list->count += more->count;
    *more = (mu_task_list){NULL, NULL, 0};
}

/* ------------------------------------------------------------------------------------- releasing and placing tasks -- */

/* Counts one predecessor off; whether it was the last. */
static bool count_off(mu_task *task, bool failed) {
    if (failed) atomic_store_explicit(&task->poisoned, 1, memory_order_relaxed);
    /* Only our own is left: nobody else changes the count any more. */
    if (atomic_load_explicit(&task->pending, memory_order_acquire) == 1) {
        atomic_store_explicit(&task->pending, 0, memory_order_relaxed);
        return true;
    }
    return atomic_fetch_sub_explicit(&task->pending, 1, memory_order_acq_rel) == 1;
}

/* What has nowhere else to go, and nothing to end it, needs no placing. */
static bool stays(const muster_run *run, const mu_task *task) {
    return !atomic_load_explicit(&task->poisoned, memory_order_relaxed) &&
           !mu_node_is_host(&run->graph->nodes[task->node]);
}

/* Counts `task` off its successors; those that are ready are put in front of the chain `first`, which is returned, but for those that
 * stay with `alone`, the runtime's only actor, if it is given: they are ready there. */
static uint32_t collect_ready(muster_run *run, const mu_task *task, uint32_t first, mu_actor *alone) {
    const muster_graph *graph = run->graph;
    const mu_node *node = &graph->nodes[task->node];
    bool failed = task->status != MUSTER_OK;
    for (uint32_t i = 0; i < node->succ_count; i++) {
        mu_task *successor = mu_run_task(run, graph->succs[node->succ_first + i]);
        if (!count_off(successor, failed)) continue;
        if (alone && stays(run, successor)) {
            successor->device = (int16_t)alone->index;
            successor->message.weight = 0;
            mu_ready_put(alone, successor);
            continue;
        }
        successor->next = first;
        first = successor->node;
    }
    return first;
}

/* Puts a task that another device gets behind what it gets already; chains of one run travel as one message. */
static void outbox_add(mu_actor *self, int device, muster_run *run, mu_task *task) {
    mu_task *last = self->outbox[device].last;
    task->next = MU_NONE;
    if (last && last->run == run->slot) {
        last->next = task->node;
    } else {
        task->message.link.next = self->outbox[device].first ? &self->outbox[device].first->message.link : NULL;
        self->outbox[device].first = task;
    }
    self->outbox[device].last = task;
}

/* Whether the task is over without having gone to a device: a predecessor failed, or it is the host's and needs no waiting. */
static bool ends_here(muster_run *run, mu_task *task) {
    const mu_node *node = &run->graph->nodes[task->node];
    if (!atomic_load_explicit(&task->poisoned, memory_order_relaxed))
        return mu_node_is_host(node) && mu_host_task_begin(run, task);
    muster_status stopped = mu_run_stopped(run);
    mu_run_fail(run, task, stopped ? stopped : MUSTER_PREDECESSOR_FAILED, NULL);
    mu_bind_undefine(run, node);
    return true;
}

/* Puts the task on the device's queue, as placement sees it: at once, for the next to be placed counts it. What it adds is remembered, so
 * that as much is taken off when it has ended. */
static void weigh(const muster_runtime *runtime, const mu_node *node, mu_task *task, int device) {
    task->message.weight = 0;
    if (runtime->device_count == 1) return;
    uint64_t ns = mu_estimate_job_ns(runtime, node, device);
    task->message.weight = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
    atomic_fetch_add_explicit(&runtime->actors[device].queued_ns, task->message.weight, memory_order_relaxed);
}

static int place(muster_runtime *runtime, muster_run *run, const mu_task *task, const mu_node *node) {
    if (node->flags & MU_NODE_REPEAT) return mu_run_task(run, task->node - 1)->device;
    return node->flags & MU_NODE_SPREAD ? mu_spread_place(runtime, run, node) : mu_place(runtime, run->graph, node);
}

void mu_tasks_dispatch(muster_runtime *runtime, mu_actor *self, muster_run *run, uint32_t first) {
    struct {
        mu_task *first, *last;
        uint32_t count;
    } chains[MU_MAX_DEVICES];
    memset(chains, 0, runtime->device_count * sizeof chains[0]);
    uint32_t skipped = 0;
    while (first != MU_NONE) {
        mu_task *task = mu_run_task(run, first);
        first = task->next;
        const mu_node *node = &run->graph->nodes[task->node];
        bool on_host = mu_node_is_host(node); /* before it begins: the run may be gone when it has ended by itself */
        if (ends_here(run, task)) {
            first = collect_ready(run, task, first, NULL);
            atomic_store_explicit(&task->state, MU_TASK_ENDED, memory_order_release);
            skipped++;
            continue;
        }
        if (on_host) continue;
        int device = place(runtime, run, task, node);
        task->device = (int16_t)device;
        chains[device].count++;
        weigh(runtime, node, task, device);
        if (self && device == self->index) {
            mu_ready_put(self, task);
        } else if (self) {
            outbox_add(self, device, run, task);
        } else {
            task->next = MU_NONE;
            if (chains[device].last)
                chains[device].last->next = task->node;
            else
                chains[device].first = task;
            chains[device].last = task;
        }
    }
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        if (!chains[d].count || runtime->device_count == 1) continue;
        atomic_fetch_add_explicit(&runtime->actors[d].queued, chains[d].count, memory_order_relaxed);
        /* The run may end as soon as its last task is posted; nothing of it is touched after the skipped are counted. */
    }
    if (skipped) mu_run_enqueued(run, skipped);
    mu_task *posts[MU_MAX_DEVICES];
    uint32_t post_count = 0;
    int devices[MU_MAX_DEVICES];
    for (uint32_t d = 0; d < runtime->device_count; d++)
        if (chains[d].first) posts[post_count] = chains[d].first, devices[post_count++] = (int)d;
    for (uint32_t i = 0; i < post_count; i++) mu_actor_post_tasks(&runtime->actors[devices[i]], posts[i]);
    if (skipped) mu_run_ended(run, skipped);
}

bool mu_task_has_failed_predecessor(muster_run *run, const mu_node *node) {
    for (uint32_t i = 0; i < node->pred_count; i++)
        if (mu_run_task(run, run->graph->preds[node->pred_first + i])->status) return true;
    return false;
}

void mu_task_hand_over(muster_runtime *runtime, mu_actor *self, mu_task *task, int device) {
    const muster_run *run = mu_run_at(runtime, task->run);
    task->device = (int16_t)device;
    atomic_fetch_sub_explicit(&self->queued, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&self->queued_ns, task->message.weight, memory_order_relaxed);
    atomic_fetch_add_explicit(&runtime->actors[device].queued, 1, memory_order_relaxed);
    weigh(runtime, &run->graph->nodes[task->node], task, device);
}

bool mu_task_move(muster_runtime *runtime, mu_actor *self, muster_run *run, mu_task *task) {
    const mu_node *node = &run->graph->nodes[task->node];
    if (mu_runtime_check(runtime, NULL)) return false;
    if (node->flags & MU_NODE_REPEAT && mu_run_task(run, task->node - 1)->device == self->index) return false;
    int device = mu_place(runtime, run->graph, node);
    if (mu_loss_has(runtime, device)) return false;
    mu_task_hand_over(runtime, self, task, device);
    task->next = MU_NONE;
    mu_actor_post_tasks(&runtime->actors[device], task);
    return true;
}

void mu_task_release_successors(muster_runtime *runtime, mu_actor *self, muster_run *run, mu_task *task) {
    uint32_t first = collect_ready(run, task, MU_NONE, runtime->device_count == 1 ? self : NULL);
    if (first != MU_NONE) mu_tasks_dispatch(runtime, self, run, first);
}
