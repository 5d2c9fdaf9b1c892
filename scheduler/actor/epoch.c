#include "scheduler/actor/epoch.h"

#include "base/alloc.h"
#include "scheduler/actor/loss.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/runtime/runtime.h"

void mu_epoch_add_calls(mu_actor *actor, uint32_t calls) {
    mu_epoch_at(actor, actor->timeline.open)->calls += calls;
    actor->calls_in_flight += calls;
}

void mu_epoch_add_upload(mu_actor *actor, uint64_t bytes) {
    mu_epoch_at(actor, actor->timeline.open)->upload_bytes += bytes;
    actor->upload_backlog_bytes += bytes;
}

void mu_epoch_add_task(mu_actor *actor, mu_task *task, uint32_t calls) {
    mu_epoch *epoch = mu_epoch_at(actor, actor->timeline.open);
    task->epoch = actor->timeline.open;
    task->epoch_next = MU_NO_TASK;
    if (epoch->tasks++ == 0)
        epoch->first = mu_task_ref_of(task);
    else
        epoch->last->epoch_next = mu_task_ref_of(task);
    epoch->last = task;
    epoch->estimate_ns += task->message.weight;
    actor->ns_in_flight += task->message.weight;
    actor->tasks_in_flight++;
    mu_epoch_add_calls(actor, calls);
}

/* Calls `what` once per stretch of tasks of one run, with their count. A run can be gone after its last task is counted,
 * so each task is read before its stretch is. */
static void for_each_run(mu_actor *actor, const mu_epoch *epoch, bool ending, void (*what)(muster_run *, uint32_t)) {
    mu_task_ref ref = mu_epoch_first(epoch);
    while (ref != MU_NO_TASK) {
        muster_run *run = mu_run_at(actor->runtime, (uint32_t)(ref >> 32));
        uint32_t slot = (uint32_t)(ref >> 32), count = 0;
        while (ref != MU_NO_TASK && (uint32_t)(ref >> 32) == slot) {
            mu_task *task = mu_run_task(run, (uint32_t)ref);
            ref = task->epoch_next;
            if (ending) atomic_store_explicit(&task->state, MU_TASK_ENDED, memory_order_release);
            count++;
        }
        what(run, count);
    }
}

void mu_epoch_enqueued(mu_actor *actor, uint64_t number) {
    for_each_run(actor, mu_epoch_at(actor, number), false, mu_run_enqueued);
}

void mu_epoch_open(mu_actor *actor) {
    *mu_epoch_at(actor, actor->timeline.open) =
        (mu_epoch){.first = MU_NO_TASK, .losses_known = mu_loss_serial(&actor->runtime->losses)};
}

void mu_epoch_note_waits(mu_actor *actor, uint64_t number) {
    for (uint32_t d = 0, count = actor->runtime->device_count; d < count; d++)
        actor->after[number % MU_EPOCH_RING * count + d] = actor->runtime->actors[d].timeline.waited_by[actor->index];
}

/* The worker has nothing to do but to wait for the end of the epoch. Who on another device goes on after it needs it closed soon
 * and is not helped by a signal. */
static bool is_watched(const mu_actor *actor) {
    if (actor->ready.first || (actor->runtime->config.flags & MUSTER_RUNTIME_SERIAL) ||
        mu_mailbox_has_mail(&actor->mailbox))
        return false;
    for (uint32_t d = 0; d < actor->runtime->device_count; d++)
        if (actor->outbox[d].first) return false;
    return true;
}

muster_status mu_epoch_close(mu_actor *actor, muster_error *error) {
    mu_epoch *epoch = mu_epoch_at(actor, actor->timeline.open);
    if (epoch->tasks == 0 && epoch->calls == 0 && !epoch->transfers)
        return MUSTER_OK; /* nobody can wait for an empty epoch */
    mu_bursts_flush(actor);
    mu_tally_flush(actor);
    mu_epoch_note_waits(actor, actor->timeline.open);
    muster_status status = mu_timeline_close(&actor->timeline, is_watched(actor), error);
    if (status) return status;
    mu_epoch_open(actor);
    for_each_run(actor, epoch, false, mu_run_enqueued);
    return MUSTER_OK;
}

void mu_epoch_note_losses(mu_actor *actor) {
    mu_epoch *epoch = mu_epoch_at(actor, actor->timeline.open);
    uint64_t serial = mu_loss_serial(&actor->runtime->losses);
    if (epoch->losses_known == serial) return;
    muster_error error;
    if (epoch->tasks == 0)
        epoch->losses_known = serial;
    else if (mu_epoch_close(actor, &error))
        mu_actor_lose(actor, &error);
}

static void drop_transfers(mu_actor *actor, mu_epoch *epoch) {
    while (epoch->transfers) {
        mu_transfer *transfer = epoch->transfers;
        epoch->transfers = transfer->next;
        /* Release pairs with the owner's acquire before it frees the source. */
        if (transfer->source) atomic_fetch_sub_explicit(&transfer->source->pins, 1, memory_order_release);
        transfer->source = NULL;
        if (transfer->buffer) mu_buffer_release(transfer->buffer);
        transfer->buffer = NULL;
        transfer->next = actor->spare_transfers;
        actor->spare_transfers = transfer;
    }
}

void mu_epoch_retire(mu_actor *actor, uint64_t number) {
    mu_epoch *epoch = mu_epoch_at(actor, number);
    if (!actor->lost) {
        mu_loss_judge(actor, number);
        mu_timeline_settle(&actor->timeline, number);
    }
    drop_transfers(actor, epoch);
    actor->upload_backlog_bytes -= epoch->upload_bytes;
    actor->calls_in_flight -= epoch->calls;
    actor->tasks_in_flight -= epoch->tasks;
    actor->ns_in_flight -= epoch->estimate_ns;
    if (actor->runtime->device_count > 1) {
        atomic_fetch_sub_explicit(&actor->queued, epoch->tasks, memory_order_relaxed);
        atomic_fetch_sub_explicit(&actor->queued_ns, epoch->estimate_ns, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&actor->jobs_ended, epoch->tasks, memory_order_relaxed);
    for_each_run(actor, epoch, true, mu_run_ended);
    actor->retired = number;
}

mu_transfer *mu_epoch_add_transfer(mu_actor *actor) {
    mu_transfer *transfer = actor->spare_transfers;
    if (transfer) {
        actor->spare_transfers = transfer->next;
    } else {
        transfer = mu_alloc_zeroed(1, sizeof *transfer);
        if (!transfer) return NULL;
    }
    mu_epoch *epoch = mu_epoch_at(actor, actor->timeline.open);
    transfer->next = epoch->transfers;
    epoch->transfers = transfer;
    return transfer;
}

void mu_transfer_note(mu_actor *actor, mu_transfer *transfer, muster_buffer *buffer, const mu_area *area, int source,
                      uint64_t stamp) {
    if (mu_timeline_done(&actor->runtime->actors[source].timeline) >= stamp) return;
    mu_handle_retain(&buffer->handle);
    transfer->buffer = buffer;
    transfer->area = *area;
    transfer->from = source;
    transfer->stamp = stamp;
}
