#include "scheduler/run/host_task.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/actor/bind.h"
#include "scheduler/memory/fetch.h"
#include "scheduler/runtime/callout.h"
#include "scheduler/runtime/runtime.h"

struct mu_host_task {
    mu_host_call call; /* of a host job */
    muster_run *run;
    mu_task *task;
    mu_fetch *fetch; /* until the task has ended */
    uint64_t *after; /* per device: the epochs it comes after */
};

static const mu_node *node_of(const mu_host_task *h) { return &h->run->graph->nodes[h->task->node]; }

/* -------------------------------------------------------------------------------------------------------------- end -- */

static void finish(mu_host_task *h, muster_status status, const muster_error *error) {
    if (status) {
        mu_run_fail(h->run, h->task, status, error);
        mu_bind_undefine(h->run, node_of(h));
    }
    mu_fetch_destroy(h->fetch);
    h->fetch = NULL;
    atomic_fetch_sub_explicit(&h->run->handle.runtime->host_tasks, 1, memory_order_relaxed);
}

/* The run may be gone afterwards. */
static void end(mu_host_task *h) {
    muster_run *run = h->run;
    mu_task *task = h->task;
    mu_task_release_successors(run->handle.runtime, NULL, run, task);
    atomic_store_explicit(&task->state, MU_TASK_ENDED, memory_order_release);
    mu_run_enqueued(run, 1);
    mu_run_ended(run, 1);
}

/* A fault is the kernel's that was in flight; what only waited lost its device. */
static muster_status lost_or(muster_status status, muster_error *error) {
    return error->status = muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST ? MUSTER_DEVICE_LOST : status;
}

/* Everything it comes after is complete: whether it can do what it is for. */
static muster_status check(mu_host_task *h, muster_error *error) {
    const mu_node *node = node_of(h);
    bool planned = h->fetch->uses_host; /* else the run was stopped before */
    if (mu_task_is_spoilt(h->run, node))
        return mu_fail(error, MUSTER_PREDECESSOR_FAILED, "a predecessor failed after it was enqueued");
    if (mu_run_stopped(h->run) && (!planned || node->kind == MU_NODE_HOST))
        return mu_run_fail_stopped(h->run, node, error);
    if (h->fetch->failure.status) return lost_or(mu_error_copy(error, &h->fetch->failure), error);
    if (mu_runtime_check(h->run->handle.runtime, error)) return lost_or(error->status, error);
    return mu_fetch_settle(h->fetch, error);
}

/* ------------------------------------------------------------------------------------------------------------- call -- */

static muster_status call_back(mu_host_task *h, muster_error *error) {
    const mu_node *node = node_of(h);
    void *pointers[MU_MAX_PARAMETERS];
    for (uint32_t i = 0; i < h->fetch->range_count; i++)
        pointers[i] = (char *)h->fetch->ranges[i].buffer->host + h->fetch->ranges[i].area.low;
    const mu_callback *callback = &h->run->graph->callbacks[node->as.call.callback];
    muster_error told;
    memset(&told, 0, sizeof told);
    muster_status status = callback->host.run(callback->host.user, pointers, h->fetch->range_count, &told);
    return status ? mu_callback_failed("host", status, &told, error) : mu_fetch_wrote(h->fetch, error);
}

static void run_on_host(mu_host_call *call) {
    mu_host_task *h = (mu_host_task *)call;
    muster_error error;
    muster_status status = check(h, &error);
    if (!status) status = call_back(h, &error);
    finish(h, status, &error);
    end(h);
}

/* ------------------------------------------------------------------------------------------------------------ begin -- */

/* True: the task is over. */
static bool arrived(mu_host_task *h) {
    if (node_of(h)->kind == MU_NODE_HOST) {
        mu_host_post(h->run->handle.runtime, &h->call);
        return false;
    }
    muster_error error;
    muster_status status = check(h, &error);
    finish(h, status, &error);
    return true;
}

static void fetched(mu_fetch *fetch) {
    mu_host_task *h = fetch->user;
    if (arrived(h)) end(h);
}

static void set_after(mu_host_task *h) {
    const muster_graph *graph = h->run->graph;
    const mu_node *node = node_of(h);
    memcpy(h->after, h->run->order.gate, h->run->handle.runtime->device_count * sizeof *h->after);
    for (uint32_t i = 0; i < node->pred_count; i++) {
        const mu_task *pred = mu_run_task(h->run, graph->preds[node->pred_first + i]);
        /* On no device: it has ended. */
        if (pred->device != MUSTER_ANY_DEVICE && pred->epoch > h->after[pred->device])
            h->after[pred->device] = pred->epoch;
    }
}

bool mu_host_task_begin(muster_run *run, mu_task *task) {
    mu_host_task *h = &run->host_tasks[run->graph->nodes[task->node].as.call.host];
    h->task = task;
    atomic_fetch_add_explicit(&run->handle.runtime->host_tasks, 1, memory_order_relaxed);
    set_after(h);
    /* A stopped run still takes its turn: what follows it comes after what it follows. */
    if (!mu_run_stopped(run)) mu_fetch_plan(h->fetch);
    return !mu_fetch_start(h->fetch) && arrived(h);
}

/* -------------------------------------------------------------------------------------------------- create and destroy -- */

static muster_status make_task(muster_run *run, const muster_graph *graph, const mu_node *node, uint64_t *after,
                               muster_error *error) {
    mu_host_task *h = &run->host_tasks[node->as.call.host];
    muster_status status = mu_fetch_create(graph->handle.runtime, node->access_count, &h->fetch, error);
    if (status) return status;
    h->call.run = run_on_host;
    h->run = run;
    h->after = after + (size_t)node->as.call.host * graph->handle.runtime->device_count;
    h->fetch->done = fetched;
    h->fetch->arguments = node->kind == MU_NODE_HOST;
    h->fetch->user = h;
    h->fetch->after = h->after;
    for (uint32_t i = 0; i < node->access_count; i++) {
        const mu_access *access = &graph->accesses[node->access_first + i];
        h->fetch->ranges[i] = (mu_fetch_range){graph->buffers[access->buffer].buffer, mu_access_area(graph, access),
                                               (muster_access)access->mode};
    }
    return MUSTER_OK;
}

muster_status mu_host_tasks_create(muster_run *run, const muster_graph *graph, muster_error *error) {
    uint32_t count = graph->host_node_count;
    if (count == 0) return MUSTER_OK;
    size_t bytes = sizeof(mu_host_task) + graph->handle.runtime->device_count * sizeof(uint64_t);
    run->host_tasks = mu_alloc_zeroed(count, bytes);
    if (!run->host_tasks) return mu_fail_host_memory(error, "the host jobs of a run", count * bytes);
    run->host_task_count = count;
    uint64_t *after = (uint64_t *)(run->host_tasks + count);
    muster_status status = MUSTER_OK;
    for (size_t i = 0; !status && i < graph->node_count; i++)
        if (mu_node_is_host(&graph->nodes[i])) status = make_task(run, graph, &graph->nodes[i], after, error);
    return status;
}

void mu_host_tasks_destroy(muster_run *run) {
    for (uint32_t i = 0; i < run->host_task_count; i++) mu_fetch_destroy(run->host_tasks[i].fetch);
    mu_free(run->host_tasks);
}
