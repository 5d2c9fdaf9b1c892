#include "scheduler/actor/actor.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "scheduler/actor/bind.h"
#include "scheduler/actor/enqueue.h"
#include "scheduler/actor/epoch.h"
#include "scheduler/actor/loss.h"
#include "scheduler/actor/ready.h"
#include "scheduler/actor/steal.h"
#include "scheduler/memory/arrivals.h"
#include "scheduler/memory/evict.h"
#include "scheduler/placement/estimate.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"
#include "scheduler/runtime/shares.h"
#include "scheduler/runtime/wait.h"

/* Tasks enqueued before the epoch is closed: an event costs 0.2 us, so one for so many is nothing, and completion is
 * still seen in small steps. The longest burst fits. */
enum { EPOCH_TASKS = 2 * MU_BURST_LONGEST };
/* The last epochs of a run are shorter and shorter, down to this: ending tasks costs 0.1 us each, and what the device has ended last is
 * what somebody waits for. */
enum { EPOCH_LEAST_TASKS = 32 };

/* A worker that spins looks so often for mail between two looks at everything. */
enum { IDLE_LOOKS = 16 };

/* ------------------------------------------------------------------------------------------------------------ loop -- */

static void take_chain(mu_actor *actor, mu_task *task) {
    muster_run *run = mu_run_at(actor->runtime, task->run);
    for (;;) {
        uint32_t next = task->next;
        mu_ready_put(actor, task);
        if (next == MU_NONE) return;
        task = mu_run_task(run, next);
    }
}

static bool take_mail(mu_actor *actor) {
    mu_message *message = mu_mailbox_drain(&actor->mailbox);
    bool any = message != NULL;
    while (message) {
        mu_message *next = mu_message_next(message);
        switch ((mu_mail_kind)message->kind) {
            case MU_MAIL_TASKS: take_chain(actor, (mu_task *)message); break;
            case MU_MAIL_AWAIT: mu_task_list_append(&actor->awaiting, (mu_task *)message); break;
            case MU_MAIL_CALL: ((mu_call *)message)->run(actor, (mu_call *)message); break;
            case MU_MAIL_STEAL: mu_steal_asked(actor, message); break;
            case MU_MAIL_STOLEN: mu_steal_answered(actor, message); break;
        }
        message = next;
    }
    return any;
}

static void await_epoch(mu_actor *actor, mu_task *task, int device) {
    task->message.kind = MU_MAIL_AWAIT;
    mu_mailbox_post(&actor->runtime->actors[device].mailbox, &task->message);
}

/* Behind all of no lower priority. A task that is tried again comes in order, so this is the end nearly always. */
static void put_by_priority(mu_task_list *list, mu_task *task) {
    if (!list->last || list->last->priority >= task->priority) {
        mu_task_list_append(list, task);
        return;
    }
    mu_task_list ahead = {NULL, NULL, 0};
    while (list->first->priority >= task->priority) mu_task_list_append(&ahead, mu_task_list_take(list));
    mu_task_list_append(&ahead, task);
    mu_task_list_append_all(&ahead, list);
    *list = ahead;
}

static void set_hungriest(mu_actor *actor) {
    actor->hungriest = actor->starved.first;
    actor->overtaken = actor->passed = 0;
}

/* A task that found no memory waits for releases and evictions. When nothing in flight can bring any, it fails after the
 * configured time: another process may have the memory, or other tasks' data may fill the budget for good. */
static void starve(mu_actor *actor, mu_task *task) {
    put_by_priority(&actor->starved, task);
    if (!task->starved) {
        mu_device_counters *counters = mu_device_counters_mutable(actor->device);
        mu_count(counters, &counters->admission_waits, 1);
        task->starved = 1;
    }
    if (!actor->hungriest || actor->hungriest->priority < task->priority) set_hungriest(actor);
}

static void say_starved(const mu_actor *actor, muster_run *run, const mu_task *task, muster_error *error) {
    mu_ledger *ledger = mu_device_ledger(actor->device);
    mu_ledger_view view = mu_ledger_read(ledger);
    uint64_t required = 0;
    mu_bind_required(run->graph, &run->graph->nodes[task->node], &required, NULL);
    if (actor->host_shortage.status)
        mu_fail(error, MUSTER_OUT_OF_HOST_MEMORY,
                "the job requires %llu bytes, and content of device %d cannot go to the host to make room: %.300s",
                (unsigned long long)required, actor->index, actor->host_shortage.message);
    else
        mu_fail(error, MUSTER_OUT_OF_DEVICE_MEMORY,
                "the job requires %llu bytes and found no memory on device %d for %.1f s: of a budget of %llu bytes "
                "%llu are in use and %llu can be had; destroy buffers, wait for other processes, raise the budget, or "
                "cut the job",
                (unsigned long long)required, actor->index, (double)actor->runtime->config.admission_wait_ns * 1e-9,
                (unsigned long long)view.budget, (unsigned long long)view.in_use,
                (unsigned long long)mu_ledger_available(ledger));
}

static bool fail_starved(mu_actor *actor) {
    if (!actor->starved.first) {
        actor->starved_since_ns = 0;
        actor->host_shortage.status = MUSTER_OK;
        return false;
    }
    if (actor->retired + 1 < actor->timeline.open || actor->tasks_in_flight || actor->retired_instances ||
        actor->ready.first || actor->held_tasks || actor->evictions || actor->arrivals.first ||
        actor->staged_arrivals || atomic_load_explicit(&actor->runtime->host_tasks, memory_order_relaxed)) {
        actor->starved_since_ns = 0;
        return false;
    }
    uint64_t now = mu_now_ns();
    if (!actor->starved_since_ns) actor->starved_since_ns = now;
    /* Waiting does not make the host's memory more. */
    if (!actor->host_shortage.status && now - actor->starved_since_ns < actor->runtime->config.admission_wait_ns)
        return false;
    mu_task *task = mu_task_list_take(&actor->starved);
    set_hungriest(actor);
    muster_run *run = mu_run_at(actor->runtime, task->run);
    muster_error error;
    say_starved(actor, run, task, &error);
    mu_enqueue_failed(actor, run, task, &error);
    actor->starved_since_ns = now;
    return true;
}

/* Enqueues one task, or puts it where it waits. Whether it has left the queues of those that wait for memory. */
static bool enqueue(mu_actor *actor, mu_task *task) {
    muster_run *run = mu_run_at(actor->runtime, task->run);
    int device = MUSTER_ANY_DEVICE;
    mu_enqueue result = mu_enqueue_task(actor, run, task, &device);
    mu_bursts_end(actor);
    /* However it left the queue, the next in line is the hungriest then. */
    if (result != MU_ENQUEUE_STARVED && actor->hungriest == task) actor->hungriest = NULL;
    if (result == MU_ENQUEUE_HELD || result == MU_ENQUEUE_BEHIND) {
        mu_device_counters *counters = mu_device_counters_mutable(actor->device);
        mu_count(counters, &counters->jobs_held, 1);
    }
    switch (result) {
        case MU_ENQUEUED:
        case MU_ENQUEUE_HELD: break;
        case MU_ENQUEUE_AWAIT: await_epoch(actor, task, device); break;
        case MU_ENQUEUE_BEHIND:
            mu_task_list_append(&actor->behind[device], task);
            actor->held_tasks++;
            break;
        case MU_ENQUEUE_STARVED: starve(actor, task); break;
    }
    return result != MU_ENQUEUE_STARVED;
}

/* A job that waits for memory is passed by others whose data is here, so that jobs whose data cannot be here together do not take
 * turns one by one; but not for ever: then the device drains, and what it gives up goes to that job. */
static bool makes_way(const mu_actor *actor) {
    return actor->hungriest && actor->passed >= MU_PASSES_MAX &&
           actor->hungriest->priority >= actor->ready.first->priority &&
           (actor->retired + 1 < actor->timeline.open || actor->evictions || actor->retired_instances);
}

/* What takes long is handed over late, for until then it can go elsewhere; but so that the device never waits for the worker. A burst
 * that was begun may be filled up to twice that, for launching part of one costs more than it saves. */
static bool has_enough(const mu_actor *actor) {
    uint64_t ns = actor->bursts.open ? actor->ns_in_flight / 2 : actor->ns_in_flight;
    return actor->calls_in_flight >= MU_ENQUEUE_AHEAD_CALLS ||
           (ns >= actor->runtime->config.enqueue_ahead_ns &&
            actor->tasks_in_flight >= actor->runtime->enqueue_ahead_least);
}

/* For the longest burst. */
static bool has_room(const mu_actor *actor) {
    return actor->tasks_in_flight + MU_BURST_LONGEST <= MU_ENQUEUE_AHEAD_TASKS;
}

bool mu_actor_is_full(const mu_actor *actor) { return has_enough(actor) || makes_way(actor) || !has_room(actor); }

/* Whether any task left the queue. What is ready and has a higher priority is not passed by, and the device gets no more ahead than
 * otherwise. */
static bool retry_starved(mu_actor *actor) {
    mu_task_list waiting = actor->starved;
    bool any = false;
    actor->starved = (mu_task_list){NULL, NULL, 0};
    for (mu_task *task; (task = mu_task_list_take(&waiting));)
        if (has_enough(actor) || !has_room(actor) ||
            (actor->ready.first && actor->ready.first->priority > task->priority))
            mu_task_list_append(&actor->starved, task);
        else
            any |= enqueue(actor, task);
    if (!actor->hungriest && actor->starved.first) set_hungriest(actor);
    return any;
}

/* Nothing waits here but the end of a run, and that is less than half of what the epoch has already. */
static bool is_at_the_end(mu_actor *actor) {
    uint32_t tasks = mu_epoch_at(actor, actor->timeline.open)->tasks;
    if (tasks < EPOCH_LEAST_TASKS) return false;
    uint32_t left = mu_epoch_left(actor, mu_run_at(actor->runtime, actor->ready.first->run));
    return left < tasks / 2 && actor->ready.count <= left;
}

static bool may_enqueue(mu_actor *actor, uint32_t count) {
    if (has_enough(actor) || makes_way(actor)) return false;
    return actor->bursts.open || (count < EPOCH_TASKS && has_room(actor) && !is_at_the_end(actor));
}

static bool enqueue_ready(mu_actor *actor) {
    uint32_t count = 0;
    bool serial = actor->runtime->config.flags & MUSTER_RUNTIME_SERIAL;
    if (actor->lost) return mu_loss_forward(actor);
    if (serial && actor->retired + 1 < actor->timeline.open) return false;
    while (actor->ready.first && !actor->lost && may_enqueue(actor, count)) {
        mu_ready_age(actor, actor->bursts.plan.count != 0);
        mu_bursts_plan(actor);
        mu_task *task = mu_ready_take(actor);
        mu_bursts_begin(actor, task);
        if (enqueue(actor, task) && actor->hungriest) actor->passed++;
        count++;
        if (serial) break;
    }
    mu_bursts_end_plan(actor);
    return count > 0;
}

bool mu_actor_is_behind(const mu_actor *actor, int device, uint64_t epoch) {
    const mu_timeline *timeline = &actor->runtime->actors[device].timeline;
    return mu_timeline_done(timeline) < epoch &&
           (mu_timeline_closed(timeline) == UINT64_MAX || mu_timeline_age_ns(timeline) > MU_SOON_NS);
}

void mu_actor_take_up(mu_actor *actor, mu_task_list *held) {
    actor->held_tasks -= held->count;
    mu_ready_put_first(actor, held);
}

/* Tasks whose epoch is done. */
static bool take_up_behind(mu_actor *actor) {
    bool any = false, all = actor->lost && !actor->lost_settled; /* they may go elsewhere now */
    for (uint32_t d = 0; d < actor->runtime->device_count && actor->held_tasks; d++) {
        uint64_t done = mu_timeline_done(&actor->runtime->actors[d].timeline);
        if (!actor->behind[d].first || (done == actor->behind_seen[d] && !all)) continue;
        mu_task_list waiting = actor->behind[d], ready = {NULL, NULL, 0};
        actor->behind[d] = (mu_task_list){NULL, NULL, 0};
        actor->behind_seen[d] = done;
        for (mu_task *task; (task = mu_task_list_take(&waiting));)
            mu_task_list_append(all || task->epoch <= done ? &ready : &actor->behind[d], task);
        any |= ready.first != NULL;
        mu_actor_take_up(actor, &ready);
    }
    return any;
}

/* What waits here becomes ready, to go elsewhere or end; what is enqueued ends. */
static void end_lost(mu_actor *actor) {
    mu_task_list starved = actor->starved;
    actor->starved = (mu_task_list){NULL, NULL, 0};
    actor->hungriest = NULL;
    for (mu_task *task; (task = mu_task_list_take(&starved));) mu_ready_put(actor, task);
    mu_arrivals_poll(actor);
    take_up_behind(actor);
    mu_loss_end_everything(actor);
}

static void answer_awaiting(mu_actor *actor) {
    for (mu_task *task; (task = mu_task_list_take(&actor->awaiting));) {
        task->next = MU_NONE;
        mu_actor_post_tasks(&actor->runtime->actors[task->device], task);
    }
}

static void flush_outbox(mu_actor *actor) {
    for (uint32_t d = 0; d < actor->runtime->device_count; d++) {
        mu_task *task = actor->outbox[d].first;
        actor->outbox[d].first = actor->outbox[d].last = NULL;
        while (task) {
            mu_task *next = (mu_task *)task->message.link.next;
            mu_actor_post_tasks(&actor->runtime->actors[d], task);
            task = next;
        }
    }
}

static void close_and_hand_over(mu_actor *actor) {
    muster_error error;
    /* Another thread's call may have been told. */
    if (!actor->lost && mu_device_is_lost(actor->device)) {
        mu_device_alive(actor->device, &error);
        mu_actor_lose(actor, &error);
    }
    if (!actor->lost) {
        muster_status status = mu_epoch_close(actor, &error);
        /* Serial mode: its work is complete already; with its event too, it is retired before the next job starts. */
        if (!status && (actor->runtime->config.flags & MUSTER_RUNTIME_SERIAL) &&
            actor->retired + 1 < actor->timeline.open)
            status = mu_lane_synchronize(actor->device, MU_LANE_DISPATCH, &error);
        if (status) mu_actor_lose(actor, &error);
    }
    /* Before the answer: who asked then knows what was lost. */
    if (actor->lost) end_lost(actor);
    answer_awaiting(actor);
    flush_outbox(actor);
}

static bool look_for_completions(mu_actor *actor) {
    uint64_t before = actor->retired, complete = actor->timeline.complete;
    uint64_t since_ns = atomic_load_explicit(&actor->timeline.since_ns, memory_order_relaxed);
    muster_error error;
    if (!actor->lost && actor->retired + 1 < actor->timeline.open && mu_timeline_poll(&actor->timeline, &error))
        mu_actor_lose(actor, &error);
    /* Another device's fault ends this one too, even when it has not seen it itself. */
    if (!actor->lost && mu_runtime_check(actor->runtime, &error)) {
        error.status = MUSTER_DEVICE_LOST;
        mu_actor_lose(actor, &error);
    }
    /* Other devices' workers ask, and this one, when what it waits for is long. */
    uint64_t seen_ns = atomic_load_explicit(&actor->timeline.since_ns, memory_order_relaxed);
    if (!actor->lost && actor->timeline.complete != complete &&
        (actor->runtime->device_count > 1 ||
         (mu_epoch_at(actor, complete + 1)->tasks <= MU_VIGIL_TASKS && seen_ns - since_ns > MU_VIGIL_NS)))
        mu_estimate_note_epochs(actor, complete + 1, actor->timeline.complete, since_ns);
    while (!actor->lost && actor->retired < actor->timeline.complete && mu_loss_can_judge(actor, actor->retired + 1))
        mu_epoch_retire(actor, actor->retired + 1);
    if (actor->lost) {
        end_lost(actor);
        return actor->ready.first != NULL || actor->retired != before;
    }
    return actor->retired != before;
}

void mu_actor_defer(mu_actor *actor, mu_call *call) {
    call->next = actor->deferred;
    actor->deferred = call;
}

/* Copy threads are done with pieces, or pieces have left their lanes. */
static bool advance_staging(mu_actor *actor) {
    if (actor->lost) mu_staging_lose(actor->staging, &actor->loss);
    bool moved = mu_staging_advance(actor->staging);
    const muster_error *refusal = mu_staging_refusal(actor->staging);
    if (refusal && !actor->staging_reported) {
        actor->staging_reported = true;
        mu_log_line(
            &actor->runtime->log, MUSTER_LOG_WARNING,
            "device %d: too little pinned memory for staging, so copies from and to pageable memory are slow: %s",
            actor->index, refusal->message);
    }
    return moved;
}

static void wake(void *user) { mu_mailbox_nudge(&((mu_actor *)user)->mailbox); }

static void run_deferred(mu_actor *actor) {
    mu_call *call = actor->deferred;
    actor->deferred = NULL;
    while (call) {
        mu_call *next = call->next;
        call->run(actor, call);
        call = next;
    }
}

/* How long to look around before sleeping. What was just enqueued mostly ends soon, and parked it would be seen a timed wake later. */
static uint64_t patience_ns(const mu_actor *actor, bool longer) {
    uint64_t spin_ns = actor->runtime->config.spin_ns;
    if (!longer) return spin_ns;
    return spin_ns < UINT64_MAX / MU_SPIN_LONGER ? MU_SPIN_LONGER * spin_ns : UINT64_MAX;
}

/* Mail is what there will be, or an end. An event is asked by a call of the driver, which other devices' launches may have to wait for. */
static void spin(const mu_actor *actor, bool in_flight) {
    bool told = !in_flight || actor->timeline.signalled == actor->timeline.complete + 1;
    uint32_t looks = told || actor->runtime->device_count > 1 ? IDLE_LOOKS : 1;
    do mu_spin_pause();
    while (--looks && !mu_mailbox_has_mail(&actor->mailbox) && !mu_timeline_is_signalled(&actor->timeline));
}

/* Nothing to do now: look around for a while, then sleep; with work in flight only until the next look. */
static void rest(mu_actor *actor, uint64_t *idle_since_ns) {
    uint64_t now = mu_now_ns();
    if (!*idle_since_ns) *idle_since_ns = now;
    uint64_t idle_ns = now - *idle_since_ns;
    bool in_flight = actor->retired + 1 < actor->timeline.open;
    if (idle_ns < patience_ns(actor, in_flight)) {
        spin(actor, in_flight);
        return;
    }
    bool waiting = in_flight || actor->deferred || actor->starved.first || actor->held_tasks || actor->arrivals.first ||
                   actor->staged_arrivals || actor->retired_instances || mu_staging_is_active(actor->staging);
    /* A write-back that has just ended made tasks ready that waited for it. */
    if (!waiting && actor->ready.first) return;
    /* Nothing is on the device: what stalls a busy one costs nothing now. */
    if (!waiting && (mu_module_cache_collect(actor->modules) || mu_pinned_collect(actor) || mu_bursts_grow(actor)))
        return;
    if (!waiting && idle_ns < patience_ns(actor, actor->expects_mail)) {
        spin(actor, false);
        return;
    }
    mu_mailbox_park(&actor->mailbox, waiting ? mu_vigil_sleep_ns(actor, now) : MUSTER_FOREVER);
    /* Where the next graph came so soon that looking longer would have saved waking up, the next pause is taken to be like this one. */
    if (!waiting) actor->expects_mail = mu_now_ns() - *idle_since_ns < patience_ns(actor, true);
}

static void work(mu_actor *actor) {
    uint64_t idle_since_ns = 0;
    while (!actor->stopping || actor->deferred || actor->retired_instances || actor->ready.first ||
           actor->arrivals.first || actor->staged_arrivals || mu_staging_is_active(actor->staging) ||
           actor->retired + 1 < actor->timeline.open || mu_mailbox_has_mail(&actor->mailbox)) {
        bool busy = take_mail(actor);
        busy |= enqueue_ready(actor);
        close_and_hand_over(actor);
        if (look_for_completions(actor)) {
            busy = true;
            retry_starved(actor);
        } else if (actor->starved.first && !actor->ready.first) {
            busy |= retry_starved(actor);
        }
        busy |= advance_staging(actor);
        busy |= mu_arrivals_poll(actor);
        busy |= take_up_behind(actor);
        mu_shares_answer(actor);
        if (actor->runtime->steals) mu_steal_step(actor);
        busy |= fail_starved(actor);
        run_deferred(actor);
        mu_instances_collect(actor);
        if (busy) {
            idle_since_ns = 0;
            mu_vigil_break(actor);
        } else {
            rest(actor, &idle_since_ns);
        }
    }
}

/* -------------------------------------------------------------------------------------------------- start and stop -- */

typedef struct start {
    mu_actor *actor;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool entered;
    muster_status status;
    muster_error error;
} start;

static void tear_down(mu_actor *actor) {
    while (actor->spare_transfers) {
        mu_transfer *transfer = actor->spare_transfers;
        actor->spare_transfers = transfer->next;
        if (transfer->event && !actor->lost) mu_event_destroy(actor->device, transfer->event);
        mu_free(transfer);
    }
    mu_arrivals_destroy(actor);
    if (actor->staging && actor->lost) mu_staging_lose(actor->staging, &actor->loss);
    mu_staging_destroy(actor->staging);
    mu_bursts_destroy(actor);
    mu_module_cache_destroy(actor->modules);
    mu_occupancy_cache_destroy(actor->occupancy);
    if (!actor->lost) mu_timeline_destroy(&actor->timeline);
    mu_device_leave(actor->device);
}

static muster_status set_up(mu_actor *actor, muster_error *error) {
    muster_status status = mu_device_enter(actor->device, error);
    if (status) return status;
    if (!(status = mu_timeline_init(&actor->timeline, actor->device, error)) &&
        !(status = mu_occupancy_cache_create(actor->device, &actor->occupancy, error)))
        status = mu_module_cache_create(actor->device, actor->occupancy, &actor->modules, error);
    if (!status) status = mu_bursts_create(actor, error);
    if (!status) status = mu_staging_create(actor->device, actor->runtime->copier, wake, actor, &actor->staging, error);
    mu_epoch_open(actor);
    if (status) tear_down(actor);
    return status;
}

static void *worker(void *argument) {
    start *started = argument;
    mu_actor *actor = started->actor;
    char name[16];
    snprintf(name, sizeof name, "muster-%d", actor->index);
    pthread_setname_np(pthread_self(), name);
    /* Of this thread alone: it sleeps for less than the 50 us that the system may be late by. */
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    /* Before anything is allocated, so that what the worker touches first is near. */
    if (!(actor->runtime->config.flags & MUSTER_RUNTIME_NO_NUMA)) mu_device_settle(actor->device);
    muster_status status = set_up(actor, &started->error);
    pthread_mutex_lock(&started->lock);
    started->entered = true;
    started->status = status;
    pthread_cond_signal(&started->changed);
    pthread_mutex_unlock(&started->lock);
    if (status) return NULL;
    mu_runtime_await_start(actor->runtime);
    work(actor);
    tear_down(actor);
    return NULL;
}

muster_status mu_actor_start(mu_actor *actor, muster_runtime *runtime, int index, mu_device *device,
                             muster_error *error) {
    actor->runtime = runtime;
    actor->index = index;
    actor->device = device;
    atomic_init(&actor->lost_after, UINT64_MAX);
    size_t after = (size_t)MU_EPOCH_RING * runtime->device_count;
    actor->after = mu_alloc_zeroed(after, sizeof *actor->after);
    if (!actor->after) return mu_fail_host_memory(error, "the epochs of a device", after * sizeof *actor->after);
    mu_mailbox_init(&actor->mailbox);
    mu_steal_init(actor);
    mu_callout_init(&actor->callout, actor);
    start started = {.actor = actor};
    pthread_mutex_init(&started.lock, NULL);
    mu_cond_init(&started.changed);
    muster_status status = MUSTER_OK;
    int code = pthread_create(&actor->thread, NULL, worker, &started);
    if (code) {
        status = mu_fail(error, MUSTER_OUT_OF_HOST_MEMORY, "no thread for device %d: %s; raise the thread limit", index,
                         strerror(code));
        goto destroy;
    }
    pthread_mutex_lock(&started.lock);
    while (!started.entered) pthread_cond_wait(&started.changed, &started.lock);
    pthread_mutex_unlock(&started.lock);
    if (started.status) {
        pthread_join(actor->thread, NULL);
        status = mu_error_copy(error, &started.error);
    }
destroy:
    pthread_cond_destroy(&started.changed);
    pthread_mutex_destroy(&started.lock);
    if (status) mu_free(actor->after);
    return status;
}

static void stop_call(mu_actor *actor, mu_call *call) {
    (void)call;
    actor->stopping = true;
}

void mu_actor_stop(mu_actor *actor) {
    mu_call call = {.run = stop_call};
    mu_actor_post_call(actor, &call);
    pthread_join(actor->thread, NULL);
    mu_free(actor->after);
    mu_device_close(actor->device);
}
