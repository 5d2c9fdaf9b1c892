#include "scheduler/actor/loss.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/actor/bind.h"
#include "scheduler/actor/enqueue.h"
#include "scheduler/actor/epoch.h"
#include "scheduler/actor/ready.h"
#include "scheduler/memory/evict.h"
#include "scheduler/runtime/runtime.h"

/* ----------------------------------------------------------------------------------------------------------- marks -- */

void mu_losses_init(mu_losses *losses) { pthread_mutex_init(&losses->lock, NULL); }

void mu_losses_destroy(mu_losses *losses) {
    mu_free(losses->marks);
    pthread_mutex_destroy(&losses->lock);
}

uint64_t mu_loss_devices(const muster_runtime *runtime) {
    return atomic_load_explicit(&runtime->losses.devices, memory_order_acquire);
}

bool mu_loss_has(const muster_runtime *runtime, int device) { return mu_loss_devices(runtime) >> device & 1; }

static void mark(mu_losses *losses, muster_buffer *buffer, const mu_area *area, int device, uint64_t epoch) {
    pthread_mutex_lock(&losses->lock);
    uint64_t serial = atomic_load_explicit(&losses->serial, memory_order_relaxed) + 1;
    if (mu_grow(&losses->marks, &losses->capacity, losses->count + 1, sizeof *losses->marks))
        losses->marks[losses->count++] = (mu_loss_mark){buffer, *area, epoch, serial, device};
    else
        losses->unmarked = serial;
    atomic_store_explicit(&losses->serial, serial, memory_order_release);
    pthread_mutex_unlock(&losses->lock);
    atomic_store_explicit(&losses->any, true, memory_order_relaxed);
}

static uint64_t waited_for(const mu_actor *actor, uint64_t number, int device) {
    if (device == actor->index) return number;
    return actor->after[number % MU_EPOCH_RING * actor->runtime->device_count + (uint32_t)device];
}

/* Whether the task, in epoch `number`, touches what was lost before it without its knowledge. */
static bool is_hit(mu_actor *actor, const muster_run *run, const mu_node *node, uint64_t number, int *device) {
    mu_losses *losses = &actor->runtime->losses;
    uint64_t known = mu_epoch_at(actor, number)->losses_known;
    const mu_access *accesses = &run->graph->accesses[node->access_first];
    pthread_mutex_lock(&losses->lock);
    bool hit = losses->unmarked > known && node->access_count;
    *device = MUSTER_ANY_DEVICE;
    for (size_t m = losses->count; !hit && m-- > 0 && losses->marks[m].serial > known;) {
        const mu_loss_mark *lost = &losses->marks[m];
        if (waited_for(actor, number, lost->device) < lost->epoch) continue;
        for (uint32_t i = 0; !hit && i < node->access_count; i++) {
            const mu_area area = mu_access_area(run->graph, &accesses[i]);
            hit =
                run->graph->buffers[accesses[i].buffer].buffer == lost->buffer && mu_areas_overlap(&area, &lost->area);
        }
        if (hit) *device = lost->device;
    }
    pthread_mutex_unlock(&losses->lock);
    return hit;
}

void mu_loss_undefine(mu_actor *actor, muster_run *run, const mu_node *node, uint64_t epoch) {
    const mu_access *accesses = &run->graph->accesses[node->access_first];
    int why = actor->lost ? actor->index : MUSTER_ANY_DEVICE;
    for (uint32_t i = 0; i < node->access_count; i++) {
        if (!(accesses[i].mode & MUSTER_WRITE)) continue;
        muster_buffer *buffer = run->graph->buffers[accesses[i].buffer].buffer;
        const mu_area area = mu_access_area(run->graph, &accesses[i]);
        mu_coherence_lock(&buffer->coherence);
        mu_coherence_lose_area(&buffer->coherence, &area, why);
        mu_coherence_unlock(&buffer->coherence);
        mark(&actor->runtime->losses, buffer, &area, actor->index, epoch);
    }
    atomic_store_explicit(&actor->runtime->losses.any, true, memory_order_relaxed);
    atomic_store_explicit(&run->failed_late, true, memory_order_relaxed);
}

/* ------------------------------------------------------------------------------------------------------- judgement -- */

bool mu_loss_can_judge(const mu_actor *actor, uint64_t number) {
    for (int d = 0; d < (int)actor->runtime->device_count; d++)
        if (d != actor->index && mu_timeline_done(&actor->runtime->actors[d].timeline) < waited_for(actor, number, d))
            return false;
    return true;
}

bool mu_loss_is_good(const muster_runtime *runtime, int source, uint64_t stamp, bool *known) {
    const mu_actor *owner = &runtime->actors[source];
    uint64_t done = mu_timeline_done(&owner->timeline);
    *known = done >= stamp;
    /* Relaxed: who finds an epoch done that a loss has ended saw `done` of a settled loss, and with it this. */
    return *known && stamp <= atomic_load_explicit(&owner->lost_after, memory_order_relaxed);
}

/* Content that came, in this epoch, out of an epoch of the source that never completed. */
static void judge_transfer(mu_actor *actor, const mu_transfer *transfer, uint64_t number) {
    bool known;
    if (!transfer->buffer || mu_loss_is_good(actor->runtime, transfer->from, transfer->stamp, &known)) return;
    mu_coherence *table = &transfer->buffer->coherence;
    mu_coherence_lock(table);
    mu_coherence_changed(table);
    mu_walk walk;
    for (mu_segment *segment = mu_walk_first(&walk, table, &transfer->area); segment; segment = mu_walk_next(&walk)) {
        /* Whoever wrote it since came after us, touches the mark, and fails too. */
        if (!(segment->valid & MU_LOCATION_DEVICE(actor->index)) || segment->stamps[actor->index] < number) continue;
        /* Other devices may have it from here. What the host has is right: nothing comes there that is not judged. */
        segment->valid &= MU_LOCATION_HOST;
        if (segment->valid) continue;
        segment->undefined = true;
        segment->lost_on = (int16_t)(transfer->from + 1);
    }
    mu_coherence_unlock(table);
    mark(&actor->runtime->losses, transfer->buffer, &transfer->area, actor->index, number);
}

static bool predecessor_failed(muster_run *run, const mu_node *node) {
    for (uint32_t i = 0; i < node->pred_count; i++)
        if (mu_run_task(run, run->graph->preds[node->pred_first + i])->status) return true;
    return false;
}

static void judge_task(mu_actor *actor, muster_run *run, mu_task *task, uint64_t number) {
    const mu_node *node = &run->graph->nodes[task->node];
    muster_error error;
    int device;
    if (predecessor_failed(run, node)) {
        mu_run_fail(run, task, MUSTER_PREDECESSOR_FAILED, NULL);
    } else if (is_hit(actor, run, node, number, &device)) {
        mu_fail(&error, MUSTER_DATA_UNDEFINED,
                "job %u on device %d worked on what was lost on device %d while both were under way; submit it again",
                mu_run_job(run, node), actor->index, device);
        mu_run_fail(run, task, MUSTER_DATA_UNDEFINED, &error);
    } else {
        return;
    }
    mu_loss_undefine(actor, run, node, number);
}

void mu_loss_judge(mu_actor *actor, uint64_t number) {
    mu_losses *losses = &actor->runtime->losses;
    if (!atomic_load_explicit(&losses->any, memory_order_relaxed) && !mu_loss_devices(actor->runtime)) return;
    mu_epoch *epoch = mu_epoch_at(actor, number);
    for (const mu_transfer *transfer = epoch->transfers; transfer; transfer = transfer->next)
        judge_transfer(actor, transfer, number);
    for (mu_task_ref ref = mu_epoch_first(epoch); ref != MU_NO_TASK;) {
        muster_run *run = mu_run_at(actor->runtime, (uint32_t)(ref >> 32));
        mu_task *task = mu_run_task(run, (uint32_t)ref);
        if (!task->status) judge_task(actor, run, task, number);
        ref = task->epoch_next;
    }
}

/* ------------------------------------------------------------------------------------------------------------ loss -- */

void mu_actor_lose(mu_actor *actor, const muster_error *error) {
    if (actor->lost) return;
    muster_runtime *runtime = actor->runtime;
    bool faulted = mu_runtime_check(runtime, NULL) != MUSTER_OK;
    actor->loss = *error;
    /* A call that must not fail did: whatever its code, this device is no longer of use. */
    if (!mu_device_is_lost(actor->device) && error->status != MUSTER_KERNEL_FAULT && !faulted)
        mu_device_drain(actor->device);
    mu_device_abandon(actor->device, error->driver_code);
    actor->lost = true;
    if (muster_status_recovery(error->status) != MUSTER_RECOVERY_DEVICE_LOST) actor->loss.status = MUSTER_DEVICE_LOST;
    actor->loss.device = actor->index;
    if (error->status == MUSTER_KERNEL_FAULT) {
        /* The simulator knows the device, kernel, block, thread, line and address. A driver tells whoever asks first. */
        char text[400];
        if (mu_driver_last_fault(runtime->driver, text, sizeof text))
            mu_fail(&actor->loss, MUSTER_KERNEL_FAULT, "%s; no device of this process can be used any more", text);
        else
            mu_fail(&actor->loss, MUSTER_KERNEL_FAULT, "seen on device %d: %.460s", actor->index, error->message);
        actor->loss.driver_code = error->driver_code;
        actor->loss.device = actor->index;
    }
    atomic_fetch_or_explicit(&runtime->losses.devices, (uint64_t)1 << actor->index, memory_order_release);
    if (actor->loss.status == MUSTER_KERNEL_FAULT)
        mu_runtime_fault(runtime, &actor->loss);
    else if (!faulted)
        mu_log_line(&runtime->log, MUSTER_LOG_ERROR, "device %d is lost: %s", actor->index, actor->loss.message);
}

/* A task that was in flight. After a fault one of them is the cause; in serial mode there is one. */
static void fail_suspect(mu_actor *actor, muster_run *run, mu_task *task, uint64_t epoch) {
    const mu_node *node = &run->graph->nodes[task->node];
    muster_error error = actor->loss;
    if (actor->loss.status == MUSTER_DEVICE_LOST && !mu_runtime_check(actor->runtime, NULL))
        mu_fail(&error, MUSTER_DEVICE_LOST, "job %u was in flight on device %d when that was lost: %.380s",
                mu_run_job(run, node), actor->index, actor->loss.message);
    else if (node->kind == MU_NODE_DISPATCH)
        mu_fail(&error, actor->loss.status, "in flight: kernel %.64s of job %u; %.380s", mu_node_kernel_name(node),
                mu_run_job(run, node), actor->loss.message);
    if (node->kind == MU_NODE_ENQUEUE)
        mu_fail(&error, actor->loss.status, "in flight: enqueue job %u; %.400s", mu_run_job(run, node),
                actor->loss.message);
    error.driver_code = actor->loss.driver_code;
    mu_run_fail(run, task, error.status, &error);
    mu_loss_undefine(actor, run, node, epoch);
}

/* The device's copies of buffers. */
static void give_up_instances(mu_actor *actor) {
    while (actor->lru_oldest) {
        mu_instance *instance = actor->lru_oldest;
        mu_coherence *table = &instance->buffer->coherence;
        mu_coherence_lock(table);
        mu_coherence_lose_device(table, actor->index);
        mu_instance **link = &table->instances[actor->index];
        while (*link != instance) link = &(*link)->next;
        *link = instance->next;
        mu_coherence_unlock(table);
        mu_instance_retire(actor, instance);
    }
}

static void fail_suspects(mu_actor *actor, uint64_t number) {
    const mu_epoch *epoch = mu_epoch_at(actor, number);
    for (mu_task_ref ref = mu_epoch_first(epoch); ref != MU_NO_TASK;) {
        muster_run *run = mu_run_at(actor->runtime, (uint32_t)(ref >> 32));
        mu_task *task = mu_run_task(run, (uint32_t)ref);
        if (!task->status) fail_suspect(actor, run, task, number);
        ref = task->epoch_next;
    }
}

/* Everybody knows what was lost. What comes from now on ends in an epoch of its own. */
static void settle(mu_actor *actor) {
    uint64_t open = actor->timeline.open;
    actor->bursts.open = NULL;
    actor->bursts.count = 0;
    atomic_store_explicit(&actor->lost_after, actor->retired, memory_order_relaxed);
    for (uint64_t number = actor->retired + 1; number <= open; number++) fail_suspects(actor, number);
    give_up_instances(actor);
    mu_epoch_note_waits(actor, open);
    mu_timeline_lose(&actor->timeline);
    mu_epoch_enqueued(actor, open);
    actor->timeline.open = open + 1;
    *mu_epoch_at(actor, open + 1) = (mu_epoch){.first = MU_NO_TASK};
    actor->lost_settled = true;
}

static void end_epoch(mu_actor *actor, uint64_t number) {
    mu_epoch_retire(actor, number);
    *mu_epoch_at(actor, number) = (mu_epoch){.first = MU_NO_TASK};
}

void mu_loss_end_everything(mu_actor *actor) {
    if (!actor->lost_settled) settle(actor);
    uint64_t open = actor->timeline.open;
    while (actor->retired + 1 < open && mu_loss_can_judge(actor, actor->retired + 1)) {
        mu_timeline_settle(&actor->timeline, actor->retired + 1);
        end_epoch(actor, actor->retired + 1);
    }
    if (actor->retired + 1 < open) return;
    mu_timeline_end(&actor->timeline);
    mu_epoch_enqueued(actor, open);
    end_epoch(actor, open);
    actor->retired = open - 1; /* it stays open, emptied */
}

/* A task ends after what its run follows, here too: who follows the run relies on that. Whether it waits. */
static bool wait_for_gate(mu_actor *actor, const muster_run *run, mu_task *task) {
    for (int d = 0; d < (int)actor->runtime->device_count; d++) {
        if (d == actor->index || mu_timeline_done(&actor->runtime->actors[d].timeline) >= run->order.gate[d]) continue;
        task->epoch = run->order.gate[d];
        mu_task_list_append(&actor->behind[d], task);
        actor->held_tasks++;
        return true;
    }
    return false;
}

bool mu_loss_forward(mu_actor *actor) {
    bool any = false;
    /* Copy threads may be reading what nobody keeps as it is once the task has gone. */
    if (actor->staged_arrivals) return false;
    for (mu_task *task; (task = mu_ready_take(actor)); any = true) {
        muster_run *run = mu_run_at(actor->runtime, task->run);
        const mu_node *node = &run->graph->nodes[task->node];
        mu_bind_let_go(actor, run, task);
        if (mu_task_move(actor->runtime, actor, run, task) || wait_for_gate(actor, run, task)) continue;
        muster_error error = actor->loss;
        if (mu_run_stopped(run))
            mu_run_fail_stopped(run, node, &error);
        else if (mu_task_is_spoilt(run, node))
            mu_fail(&error, MUSTER_PREDECESSOR_FAILED, "a predecessor was lost with its device");
        else if (actor->loss.status == MUSTER_DEVICE_LOST)
            mu_fail(&error, MUSTER_DEVICE_LOST, "job %u can run on device %d only, which is lost: %.380s",
                    mu_run_job(run, node), actor->index, actor->loss.message);
        mu_enqueue_failed(actor, run, task, &error);
    }
    return any;
}
