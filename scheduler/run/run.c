#include "scheduler/run/run.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/placement/spread.h"
#include "scheduler/run/completion.h"
#include "scheduler/run/host_task.h"
#include "scheduler/run/open_run.h"
#include "scheduler/runtime/runtime.h"
#include "scheduler/runtime/wait.h"

/* ------------------------------------------------------------------------------------------------------- run table -- */

muster_status mu_run_table_add(muster_runtime *runtime, muster_run *run, muster_error *error) {
    mu_run_table *table = &runtime->runs;
    muster_status status = MUSTER_OK;
    pthread_mutex_lock(&runtime->run_lock);
    uint32_t slot = table->free_count ? table->free_slots[--table->free_count] : table->used;
    uint32_t chunk, offset;
    mu_run_locate(slot, &chunk, &offset);
    if (slot == table->used) {
        size_t capacity = table->free_capacity;
        if (chunk >= 24 || !mu_grow(&table->free_slots, &capacity, table->used + 1, sizeof *table->free_slots)) {
            status = mu_fail_host_memory(error, "a slot for a run", sizeof(void *));
            goto unlock;
        }
        table->free_capacity = (uint32_t)capacity;
        if (!table->chunks[chunk]) {
            size_t slots = (size_t)MU_RUN_CHUNK << chunk;
            table->chunks[chunk] = mu_alloc_zeroed(slots, sizeof *table->chunks[chunk]);
            if (!table->chunks[chunk]) {
                status = mu_fail_host_memory(error, "slots for runs", slots * sizeof *table->chunks[chunk]);
                goto unlock;
            }
        }
        table->used++;
    }
    run->slot = slot;
    atomic_store_explicit(&table->chunks[chunk][offset], run, memory_order_relaxed);
    runtime->unfinished_runs++;
unlock:
    pthread_mutex_unlock(&runtime->run_lock);
    return status;
}

void mu_run_table_remove(muster_runtime *runtime, uint32_t slot) {
    mu_run_table *table = &runtime->runs;
    uint32_t chunk, offset;
    mu_run_locate(slot, &chunk, &offset);
    pthread_mutex_lock(&runtime->run_lock);
    atomic_store_explicit(&table->chunks[chunk][offset], NULL, memory_order_relaxed);
    table->free_slots[table->free_count++] = slot; /* room was made when the slot was */
    if (--runtime->unfinished_runs == 0) pthread_cond_broadcast(&runtime->idle);
    pthread_mutex_unlock(&runtime->run_lock);
}

/* ---------------------------------------------------------------------------------------------------------- submit -- */

static muster_run *run_of_entry(mu_order_entry *entry) {
    return (muster_run *)((char *)entry - offsetof(muster_run, order));
}

/* Everything the run follows is enqueued: its roots are ready. */
static void run_ready(mu_order_entry *entry) {
    muster_run *run = run_of_entry(entry);
    const muster_graph *graph = run->graph;
    muster_runtime *runtime = run->handle.runtime;
    uint32_t first = MU_NONE;
    if (runtime->device_count == 1 && graph->host_node_count == 0) {
        /* There is nothing to place: the device gets them as they are. */
        for (size_t i = graph->root_count; i-- > 0;) {
            mu_task *task = mu_run_task(run, graph->roots[i]);
            task->device = 0;
            task->next = first;
            first = task->node;
        }
        mu_actor_post_tasks(&runtime->actors[0], mu_run_task(run, first));
        return;
    }
    for (size_t i = graph->root_count; i-- > 0;) {
        mu_task *task = mu_run_task(run, graph->roots[i]);
        task->next = first;
        first = task->node;
    }
    mu_tasks_dispatch(runtime, NULL, run, first);
}

muster_run *mu_run_alloc(size_t more_bytes) {
    muster_run *run = mu_alloc_aligned(MU_CACHE_LINE, sizeof *run + more_bytes);
    if (!run) return NULL;
    memset(run, 0, sizeof *run);
    pthread_mutex_init(&run->lock, NULL);
    mu_cond_init(&run->changed);
    return run;
}

static void run_free(muster_run *run) {
    mu_order_entry_destroy(&run->order);
    mu_values_release(run->values);
    if (run->graph) mu_graph_release(run->graph);
    pthread_cond_destroy(&run->changed);
    pthread_mutex_destroy(&run->lock);
    mu_completion_free(run->completion);
    mu_host_tasks_destroy(run);
    mu_spread_end(run);
    mu_open_run_free(run->open);
    mu_free_aligned(run);
}

void mu_run_release(muster_run *run) {
    if (!mu_handle_release(&run->handle)) return;
    mu_handle_finish(&run->handle);
    run_free(run);
}

static void init_tasks(muster_run *run, const muster_graph *graph) {
    const mu_task blank = {.run = run->slot, .device = MUSTER_ANY_DEVICE};
    for (uint32_t i = 0; i < graph->node_count; i++) {
        mu_task *task = &run->tasks[i];
        memcpy(task, &blank, sizeof *task);
        task->node = i;
        task->priority = graph->nodes[i].priority;
        atomic_init(&task->pending, graph->nodes[i].pred_count);
    }
    run->task_count = (uint32_t)graph->node_count;
    atomic_init(&run->unenqueued, run->task_count);
    atomic_init(&run->unended, run->task_count);
}

static muster_status make_run(muster_graph *graph, mu_values *values, muster_run **out, muster_error *error) {
    muster_runtime *runtime = graph->handle.runtime;
    uint32_t buffers = (uint32_t)graph->buffer_count;
    size_t bytes = graph->node_count * sizeof(mu_task) + mu_order_entry_bytes(&runtime->order, buffers);
    muster_run *run = mu_run_alloc(bytes);
    if (!run) return mu_fail_host_memory(error, "the tasks of a run", sizeof *run + bytes);
    run->tasks = (mu_task *)(run + 1);
    mu_order_entry_place(&runtime->order, &run->order, buffers, run->tasks + graph->node_count);
    muster_status status;
    if ((status = mu_host_tasks_create(run, graph, error)) || (status = mu_spread_begin(run, graph, error)))
        goto free_run;
    for (size_t i = 0; i < graph->buffer_count; i++) {
        run->order.uses[i].state = &graph->buffers[i].buffer->order;
        run->order.uses[i].writes = graph->buffers[i].writes;
    }
    run->order.ready = run_ready;
    status = mu_run_table_add(runtime, run, error);
    if (status) goto free_run;
    init_tasks(run, graph);
    mu_handle_retain(&graph->handle);
    run->graph = graph;
    run->values = mu_values_retain(values);
    mu_handle_init(&run->handle, MU_TAG_RUN, runtime);
    *out = run;
    return MUSTER_OK;
free_run:
    run_free(run);
    return status;
}

/* Counts the jobs as queued, where there is a bound. */
static muster_status admit_jobs(muster_runtime *runtime, size_t jobs, muster_error *error) {
    uint64_t limit = runtime->config.max_queued_jobs;
    if (!limit) return MUSTER_OK;
    uint64_t queued = atomic_fetch_add_explicit(&runtime->queued_jobs, jobs, memory_order_relaxed) + jobs;
    if (queued > limit) {
        atomic_fetch_sub_explicit(&runtime->queued_jobs, jobs, memory_order_relaxed);
        return mu_fail(error, MUSTER_QUEUE_FULL,
                       "%zu jobs more than the %llu queued would exceed max_queued_jobs, %llu; wait for runs to end",
                       jobs, (unsigned long long)(queued - jobs), (unsigned long long)limit);
    }
    return MUSTER_OK;
}

static void discount_jobs(muster_runtime *runtime, size_t jobs) {
    if (runtime->config.max_queued_jobs) atomic_fetch_sub_explicit(&runtime->queued_jobs, jobs, memory_order_relaxed);
}

void mu_run_announce(muster_run *run) {
    pthread_mutex_lock(&run->lock);
    atomic_store_explicit(&run->done, true, memory_order_release);
    bool told = run->completion != NULL;
    if (told) mu_completion_signal(run);
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->lock);
    if (told) mu_completion_end(run);
}

static void complete(muster_run *run) {
    muster_runtime *runtime = run->handle.runtime;
    uint32_t slot = run->slot;
    discount_jobs(runtime, run->task_count); /* who has waited for it may submit as many again */
    /* Before what nobody waits for: it has passed, so that what enters meanwhile does not wait for it to leave. */
    mu_run_announce(run);
    mu_order_leave(&runtime->order, &run->order);
    if (run->parent) mu_open_run_part_ended(run);
    mu_run_release(run);
    mu_run_table_remove(runtime, slot);
}

muster_status mu_run_make(muster_runtime *runtime, muster_graph *graph, muster_run **run, muster_error *error) {
    muster_status status;
    if ((status = mu_handle_check(graph, MU_TAG_GRAPH, runtime, "graph", error)) ||
        (status = mu_runtime_check_devices(runtime, error)))
        return status;
    pthread_mutex_lock(&graph->lock);
    status = mu_graph_seal(graph, error);
    mu_values *values = status ? NULL : mu_values_retain(graph->values);
    pthread_mutex_unlock(&graph->lock);
    if (status || (status = admit_jobs(runtime, graph->node_count, error))) goto release_values;
    /* Waking up takes the worker longer than making the run. Where there are several, nobody knows yet whose it is. */
    if (runtime->device_count == 1) mu_mailbox_rouse(&runtime->actors[0].mailbox);
    status = make_run(graph, values, run, error);
    if (status) discount_jobs(runtime, graph->node_count);
release_values:
    mu_values_release(values);
    return status;
}

void mu_run_discard(muster_run *run) {
    muster_runtime *runtime = run->handle.runtime;
    uint32_t slot = run->slot;
    discount_jobs(runtime, run->task_count);
    mu_run_release(run);
    mu_run_table_remove(runtime, slot);
}

muster_status mu_run_enter(muster_run *run, muster_error *error) {
    mu_handle_retain(&run->handle); /* until it is complete */
    if (run->task_count == 0) {
        complete(run);
        return MUSTER_OK;
    }
    muster_status status = mu_order_enter(&run->handle.runtime->order, &run->order, error);
    if (!status) return MUSTER_OK;
    mu_run_release(run);
    mu_run_discard(run);
    return status;
}

muster_status muster_submit(muster_runtime *runtime, muster_graph *graph, muster_run **out, muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status) return status;
    if (!out) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "run is NULL; pass where to store the handle");
    muster_run *run;
    if ((status = mu_run_make(runtime, graph, &run, error)) || (status = mu_run_enter(run, error))) return status;
    *out = run;
    return MUSTER_OK;
}

/* -------------------------------------------------------------------------------------------------------- progress -- */

void mu_run_stop(muster_run *run, muster_status why) {
    unsigned running = MUSTER_OK;
    if (atomic_compare_exchange_strong_explicit(&run->stopped, &running, why, memory_order_relaxed,
                                                memory_order_relaxed) &&
        run->open)
        mu_open_run_stop(run, why);
}

muster_status mu_run_fail_stopped(const muster_run *run, const mu_node *node, muster_error *error) {
    muster_status why = mu_run_stopped(run);
    if (why == MUSTER_DEADLINE_PASSED)
        return mu_fail(error, why, "the deadline of the run passed before job %u was started; give it more time",
                       mu_run_job(run, node));
    return mu_fail(error, why, "the run was cancelled before job %u was started", mu_run_job(run, node));
}

void mu_run_fail(muster_run *run, mu_task *task, muster_status status, const muster_error *error) {
    task->status = (uint16_t)status;
    if (status == MUSTER_PREDECESSOR_FAILED) return;
    muster_job job = mu_run_job(run, &run->graph->nodes[task->node]);
    pthread_mutex_lock(&run->lock);
    if (run->failure.status == MUSTER_OK || job < run->failure.job) {
        if (error)
            run->failure = *error;
        else
            mu_fail(&run->failure, status, "%s", muster_status_text(status));
        run->failure.status = status;
        run->failure.job = job;
        run->failure.device = task->device;
    }
    pthread_mutex_unlock(&run->lock);
}

void mu_run_enqueued(muster_run *run, uint32_t count) {
    if (atomic_fetch_sub_explicit(&run->unenqueued, count, memory_order_acq_rel) == count)
        mu_order_pass(&run->handle.runtime->order, &run->order);
}

void mu_run_ended(muster_run *run, uint32_t count) {
    if (atomic_fetch_sub_explicit(&run->unended, count, memory_order_acq_rel) == count) complete(run);
}

/* With the lock of the order held, so that the run of an entry is there. */
static muster_run *keep(mu_order_entry *entry) {
    if (!entry || entry->ready != run_ready) return NULL;
    muster_run *run = run_of_entry(entry);
    unsigned unended = atomic_load_explicit(&run->unended, memory_order_relaxed);
    do
        if (unended == 0) return NULL;
    while (!atomic_compare_exchange_weak_explicit(&run->unended, &unended, unended + 1, memory_order_relaxed,
                                                  memory_order_relaxed));
    return run;
}

muster_run *mu_run_keep_user(muster_runtime *runtime, const mu_order_state *order) {
    pthread_mutex_lock(&runtime->order.lock);
    muster_run *run = keep(order->writer);
    for (const mu_order_use *reader = order->readers; reader && !run; reader = reader->next) run = keep(reader->entry);
    pthread_mutex_unlock(&runtime->order.lock);
    return run;
}

/* ------------------------------------------------------------------------------------------------------ public waits -- */

/* With the run's lock held. */
static muster_status say_unfinished(const muster_run *run, uint64_t timeout_ns, muster_error *error) {
    double seconds = (double)timeout_ns * 1e-9;
    unsigned unended = atomic_load_explicit(&run->unended, memory_order_relaxed); /* and write-backs */
    if (!run->open)
        return mu_fail(error, MUSTER_TIMEOUT, "%u of %u tasks of the run have not ended after %.3f s; wait again",
                       unended < run->task_count ? unended : run->task_count, run->task_count, seconds);
    mu_open_run_counts counts = mu_open_run_count(run);
    return mu_fail(error, MUSTER_TIMEOUT,
                   "the run is %s, and %zu of its %zu graphs have not ended after %.3f s; %s, then wait again",
                   counts.closed ? "closed" : "open", counts.unended, counts.parts, seconds,
                   counts.closed ? "give them time" : "close it");
}

muster_status muster_run_wait(muster_run *run, uint64_t timeout_ns, muster_error *error) {
    muster_status status = mu_handle_check(run, MU_TAG_RUN, NULL, "run", error);
    if (status) return status;
    uint64_t deadline = mu_deadline_ns(timeout_ns);
    uint64_t spin_ns = run->handle.runtime->config.spin_ns;
    /* Being woken takes 27 us. A lone job whose worker has to be woken and makes its round trip ends some 50 us after it was submitted:
     * it is caught by looking for longer. */
    uint64_t spin_until = mu_deadline_ns(spin_ns < UINT64_MAX / MU_WAIT_SPINS ? MU_WAIT_SPINS * spin_ns : UINT64_MAX);
    if (spin_until > deadline) spin_until = deadline;
    bool done;
    while (!(done = atomic_load_explicit(&run->done, memory_order_acquire)) && mu_now_ns() < spin_until)
        mu_spin_pause();
    /* Whoever ends the run still has the lock then. */
    if (!done) {
        pthread_mutex_lock(&run->lock);
        while (!(done = atomic_load_explicit(&run->done, memory_order_acquire)) &&
               mu_cond_wait_until(&run->changed, &run->lock, deadline)) {
        }
        if (!done) status = say_unfinished(run, timeout_ns, error);
        pthread_mutex_unlock(&run->lock);
    }
    if (done) return mu_error_copy(error, run->failure.status ? &run->failure : NULL); /* a failure is final */
    mu_callouts_tell(run->handle.runtime, error);
    return status;
}

muster_status muster_run_cancel(muster_run *run, muster_error *error) {
    muster_status status = mu_handle_check(run, MU_TAG_RUN, NULL, "run", error);
    if (!status) mu_run_stop(run, MUSTER_CANCELLED);
    return status;
}

void muster_run_destroy(muster_run *run) {
    if (!run || run->handle.tag != MU_TAG_RUN) return;
    if (run->open) mu_open_run_close(run);
    run->handle.released = true;
    if (run->completion) mu_completion_close(run);
    mu_run_release(run);
}
