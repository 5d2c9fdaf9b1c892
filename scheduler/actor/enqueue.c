#include "scheduler/actor/enqueue.h"

#include <string.h>

#include "base/error.h"
#include "device/launch.h"
#include "scheduler/actor/bind.h"
#include "scheduler/actor/epoch.h"
#include "scheduler/actor/loss.h"
#include "scheduler/actor/ready.h"
#include "scheduler/actor/tally.h"
#include "scheduler/graph/shape.h"
#include "scheduler/memory/arrivals.h"
#include "scheduler/memory/detour.h"
#include "scheduler/placement/estimate.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

/* What a task waits for on another device before it can be bound. */
typedef enum waiting { WAIT_NONE, WAIT_CLOSE, WAIT_DONE, WAIT_FAILED } waiting;

/* Makes the dispatch lane wait for an epoch of another device, once; not for one that may take long, for everything that is
 * enqueued later would wait with it. */
static waiting wait_once(mu_actor *actor, int device, uint64_t epoch, bool perhaps_long, muster_error *error) {
    if (epoch <= actor->waited[device]) return WAIT_NONE;
    mu_timeline *timeline = &actor->runtime->actors[device].timeline;
    if (mu_timeline_closed(timeline) >= epoch &&
        (perhaps_long ? mu_timeline_done(timeline) < epoch : mu_actor_is_behind(actor, device, epoch)))
        return WAIT_DONE;
    if (mu_timeline_done(timeline) < epoch) mu_bursts_flush(actor);
    mu_epoch_wait result = mu_timeline_wait(timeline, epoch, actor->device, MU_LANE_DISPATCH, error);
    if (result == MU_EPOCH_NOT_CLOSED) return WAIT_CLOSE;
    if (result == MU_EPOCH_FAILED) return WAIT_FAILED;
    actor->waited[device] = epoch;
    return WAIT_NONE;
}

/* The runs this one follows: their work on other devices comes first. On this device the stream's order does it. */
static waiting wait_for_gate(mu_actor *actor, muster_run *run, int *device, uint64_t *epoch, muster_error *error) {
    if (run->gate_passed[actor->index]) return WAIT_NONE;
    for (int d = 0; d < (int)actor->runtime->device_count; d++) {
        if (d == actor->index) continue;
        waiting result = wait_once(actor, d, run->order.gate[d], false, error);
        if (result == WAIT_NONE) continue;
        *device = d;
        *epoch = run->order.gate[d];
        return result;
    }
    run->gate_passed[actor->index] = true;
    return WAIT_NONE;
}

/* A kernel that never ran there may take any time. */
static bool may_be_long(const mu_node *node, int device) {
    uint64_t ns = mu_estimate_launch_ns(node, device);
    return ns == 0 || ns > MU_SOON_NS;
}

static waiting wait_for_predecessors(mu_actor *actor, muster_run *run, const mu_node *node, int *device,
                                     uint64_t *epoch, muster_error *error) {
    for (uint32_t i = 0; i < node->pred_count; i++) {
        const mu_task *pred = mu_run_task(run, run->graph->preds[node->pred_first + i]);
        /* On this device, or skipped before it got to one: nothing to wait for. */
        if (pred->device == actor->index || pred->device == MUSTER_ANY_DEVICE) continue;
        waiting result = wait_once(actor, pred->device, pred->epoch,
                                   may_be_long(&run->graph->nodes[pred->node], pred->device), error);
        if (result == WAIT_NONE) continue;
        *device = pred->device;
        *epoch = pred->epoch;
        return result;
    }
    return WAIT_NONE;
}

/* Launches that will probably follow each other without anything between, this one included: what is ready, and what its run still
 * has to enqueue, for on one device the successors of a launch are ready at once. Of the last few jobs of a run some are no launches:
 * a kernel and what brings its result home are no burst. */
static uint32_t expected_launches(mu_actor *actor, const muster_run *run) {
    uint32_t left = mu_epoch_left(actor, run);
    if (actor->runtime->device_count > 1) left /= actor->runtime->device_count;
    uint32_t ready = actor->ready.count + 1;
    return left > ready && left >= MU_BURST_FORESEEN ? left : ready;
}

/* Where the values of a launch's parameters are, until the driver has copied them. */
typedef struct arguments {
    void *slots[MU_MAX_PARAMETERS];
    mu_address leads[MU_MAX_PARAMETERS]; /* addresses behind the beginning of an access */
} arguments;

static void fill_slots(const muster_run *run, const mu_node *node, const mu_address *addresses, arguments *out) {
    const mu_parameter *parameters = &run->graph->parameters[node->parameter_first];
    const mu_address *scratch = addresses + node->access_count;
    mu_address *lead = out->leads;
    for (uint32_t i = 0; i < node->parameter_count; i++) {
        const mu_parameter p = parameters[i];
        if (p.bytes) {
            out->slots[i] = run->values->data + p.index;
        } else if (p.scratch) {
            out->slots[i] = (void *)scratch++;
        } else if (p.lead) {
            const mu_lead *behind = &run->graph->leads[p.index];
            *lead = addresses[behind->access] + behind->bytes;
            out->slots[i] = lead++;
        } else {
            out->slots[i] = (void *)&addresses[p.index];
        }
    }
}

/* The launch of a dispatch's kernel; the rest of it is zero. */
static void describe(const mu_actor *actor, const muster_run *run, const mu_node *node, const mu_address *addresses,
                     arguments *arguments, mu_launch *launch) {
    fill_slots(run, node, addresses, arguments);
    const mu_kernel_shape *shape = node->as.dispatch;
    const muster_kernel *kernel = shape->kernel;
    launch->function = kernel->functions[actor->index];
    launch->kernel_name = kernel->name;
    for (int i = 0; i < 3; i++) launch->grid[i] = shape->grid[i], launch->block[i] = shape->block[i];
    launch->dynamic_shared_bytes = shape->dynamic_shared_bytes;
    launch->cooperative = node->flags & MU_NODE_COOPERATIVE;
    launch->parameter_count = kernel->info.parameters_known ? kernel->info.parameter_count : node->parameter_count;
    launch->parameters = arguments->slots;
    launch->slot_count = node->parameter_count;
}

/* `shape` is that of the launch, or NULL when it was changed. */
static muster_status account(mu_actor *actor, const mu_launch *launch, const mu_kernel_shape *shape,
                             muster_error *error) {
    muster_status status = MUSTER_OK;
    if (actor->runtime->config.flags & MUSTER_RUNTIME_SERIAL)
        status = mu_launch_synchronise(actor->device, launch, error);
    mu_tally_add(actor, launch, shape);
    return status;
}

/* The kernels that the program names for when the grid cannot be resident: ordinary launches in order. */
static muster_status launch_phases(mu_actor *actor, const muster_graph *graph, const mu_extra *extra,
                                   const mu_launch *whole, muster_error *error) {
    mu_launch launch = *whole;
    launch.cooperative = false;
    launch.counter = launch.counter_bytes = 0;
    mu_epoch_add_calls(actor, extra->phase_count - 1);
    for (uint32_t i = 0; i < extra->phase_count; i++) {
        const muster_kernel *phase = graph->phases[extra->phase_first + i];
        launch.function = phase->functions[actor->index];
        launch.kernel_name = phase->name;
        if (phase->info.parameters_known) launch.parameter_count = phase->info.parameter_count;
        muster_status status = mu_launch_prepared(actor->device, &launch, error);
        if (!status) status = account(actor, &launch, NULL, error);
        if (status) return status;
    }
    return MUSTER_OK;
}

/* Cooperative grids, clusters, barrier counters: never in a burst. What the device and the loaded kernel say about residency
 * decides here, from the occupancy cache. */
static muster_status launch_special(mu_actor *actor, const muster_run *run, const mu_node *node, mu_launch *launch,
                                    muster_error *error) {
    const muster_graph *graph = run->graph;
    const mu_extra *extra = mu_node_extra(graph, node);
    muster_status status;
    mu_bursts_flush(actor);
    if (launch->cooperative) {
        const mu_shape_request request = mu_shape_of_node(graph, node);
        mu_shape shape;
        int occupancy = mu_tally_occupancy(actor, launch);
        if (occupancy < 0 && (status = mu_occupancy_cache_get(actor->occupancy, launch->function,
                                                              launch->block[0] * launch->block[1] * launch->block[2],
                                                              launch->dynamic_shared_bytes, &occupancy, error)))
            return status;
        status = mu_shape_resolve(mu_device_capability(actor->device), &request, occupancy, &shape, error);
        if (status) return status;
        if (shape.fallback == MUSTER_FALLBACK_SPLIT) return launch_phases(actor, graph, extra, launch, error);
        memcpy(launch->grid, shape.grid, sizeof launch->grid);
    }
    if (extra) {
        memcpy(launch->cluster, extra->cluster, sizeof launch->cluster);
        if (extra->counter) {
            const struct mu_counter_place *place = &graph->counters[extra->counter - 1]->places[actor->index];
            launch->counter = place->address;
            launch->counter_bytes = place->bytes;
        }
    }
    status = mu_launch_prepared(actor->device, launch, error);
    /* Only the driver knows how many clusters can be resident. */
    if (status == MUSTER_COOPERATIVE_TOO_LARGE && extra && extra->fallback == MUSTER_FALLBACK_SPLIT)
        return launch_phases(actor, graph, extra, launch, error);
    return status ? status : account(actor, launch, NULL, error);
}

static muster_status launch(mu_actor *actor, const muster_run *run, const mu_task *task, const mu_address *addresses,
                            bool alone, muster_error *error) {
    arguments arguments;
    const mu_node *node = &run->graph->nodes[task->node];
    mu_launch launch = {0};
    describe(actor, run, node, addresses, &arguments, &launch);
    if (launch.cooperative || node->as.dispatch->extra) return launch_special(actor, run, node, &launch, error);
    bool taken = false;
    muster_status status = MUSTER_OK;
    /* Scratch memory is not there any more when a burst is refused and launched again. */
    if (!alone && (node->flags & MU_NODE_SCRATCH)) {
        mu_bursts_flush(actor);
        alone = true;
    }
    if (!alone) {
        uint32_t expected = actor->bursts.open ? 0 : expected_launches(actor, run);
        status = mu_bursts_add(actor, task, &launch, expected, &taken, error);
    }
    if (!status && !taken) {
        if (!alone && actor->bursts.open) mu_bursts_flush(actor);
        /* The shape was checked when the job was added. */
        status = mu_launch_prepared(actor->device, &launch, error);
    }
    return status ? status : account(actor, &launch, node->as.dispatch, error);
}

static muster_status start(mu_actor *actor, const muster_run *run, const mu_task *task, const mu_address *addresses,
                           muster_error *error) {
    const mu_node *node = &run->graph->nodes[task->node];
    const mu_access *accesses = &run->graph->accesses[node->access_first];
    if (node->kind == MU_NODE_DISPATCH) return launch(actor, run, task, addresses, false, error);
    mu_bursts_flush(actor);
    switch ((mu_node_kind)node->kind) {
        case MU_NODE_COPY:
            return mu_copy_within(actor->device, MU_LANE_DISPATCH, addresses[1], addresses[0],
                                  accesses[0].high - accesses[0].low, error);
        case MU_NODE_FILL:
            return mu_fill(actor->device, MU_LANE_DISPATCH, addresses[0], node->as.fill.pattern,
                           node->as.fill.pattern_bytes, accesses[0].high - accesses[0].low, error);
        case MU_NODE_JOIN:
        case MU_NODE_PREFETCH: return MUSTER_OK;
        case MU_NODE_ENQUEUE: return mu_callout_call(actor, run, node, addresses, error);
        case MU_NODE_DISPATCH:
        case MU_NODE_READ_BACK:
        case MU_NODE_HOST: break;
    }
    return mu_fail(error, MUSTER_INTERNAL, "a node of kind %d", node->kind);
}

static void join_epoch(mu_actor *actor, muster_run *run, mu_task *task, uint32_t calls) {
    task->device = (int16_t)actor->index;
    mu_epoch_add_task(actor, task, calls);
    run->order.last[actor->index] = task->epoch;
    if (run->graph->nodes[task->node].succ_count) mu_task_release_successors(actor->runtime, actor, run, task);
}

void mu_enqueue_failed(mu_actor *actor, muster_run *run, mu_task *task, const muster_error *error) {
    mu_device_counters *counters = mu_device_counters_mutable(actor->device);
    if (error->status == MUSTER_NEVER_FITS || error->status == MUSTER_COOPERATIVE_TOO_LARGE ||
        error->status == MUSTER_OUT_OF_DEVICE_MEMORY)
        mu_count(counters, &counters->refusals, 1);
    mu_run_fail(run, task, error->status, error);
    mu_bind_undefine(run, &run->graph->nodes[task->node]);
    join_epoch(actor, run, task, 1);
    if (muster_status_recovery(error->status) == MUSTER_RECOVERY_DEVICE_LOST) mu_actor_lose(actor, error);
}

void mu_enqueue_again(mu_actor *actor, mu_task_ref ref) {
    muster_run *run = mu_run_at(actor->runtime, (uint32_t)(ref >> 32));
    mu_task *task = mu_run_task(run, (uint32_t)ref);
    const mu_node *node = &run->graph->nodes[task->node];
    const mu_access *accesses = &run->graph->accesses[node->access_first];
    mu_address addresses[MU_MAX_PARAMETERS];
    muster_error error;
    muster_status status = MUSTER_OK;
    if (mu_task_is_spoilt(run, node)) {
        mu_run_fail(run, task, status = MUSTER_PREDECESSOR_FAILED, NULL);
    } else {
        for (uint32_t i = 0; i < node->access_count; i++)
            addresses[i] = mu_bind_address(actor, run->graph->buffers[accesses[i].buffer].buffer, &accesses[i]);
        mu_epoch_add_calls(actor, 1);
        status = launch(actor, run, task, addresses, true, &error);
        if (status) mu_run_fail(run, task, status, &error);
    }
    if (status) mu_loss_undefine(actor, run, node, task->epoch);
}

/* Everything that comes before the task on other devices. */
static waiting wait_for_others(mu_actor *actor, muster_run *run, const mu_node *node, int *device, uint64_t *epoch,
                               muster_error *error) {
    if (actor->runtime->device_count == 1) return WAIT_NONE;
    waiting result = wait_for_gate(actor, run, device, epoch, error);
    return result == WAIT_NONE ? wait_for_predecessors(actor, run, node, device, epoch, error) : result;
}

/* Waits and binds; MU_BOUND when the task can be put on the stream. */
static mu_bind prepare(mu_actor *actor, muster_run *run, mu_task_binding *b) {
    muster_error *error = b->error;
    if (actor->lost) return MU_BIND_FAILED; /* it goes elsewhere */
    if (mu_task_is_spoilt(run, b->node)) {
        mu_fail(error, MUSTER_PREDECESSOR_FAILED, "a predecessor's launch failed");
        return MU_BIND_FAILED;
    }
    switch (wait_for_others(actor, run, b->node, &b->await_device, &b->await_epoch, error)) {
        case WAIT_NONE: break;
        case WAIT_CLOSE: return MU_BIND_AWAIT;
        case WAIT_DONE: return MU_BIND_EPOCH;
        case WAIT_FAILED: return MU_BIND_FAILED;
    }
    /* Again: what was waited for may have been lost, which is known now. */
    if (mu_task_is_spoilt(run, b->node)) {
        mu_fail(error, MUSTER_PREDECESSOR_FAILED, "a predecessor failed after it was enqueued");
        return MU_BIND_FAILED;
    }
    /* Only now, so that what follows this run comes after what this run follows. */
    if (mu_run_stopped(run)) {
        mu_run_fail_stopped(run, b->node, error);
        return MU_BIND_FAILED;
    }
    return b->node->parameter_count || b->node->access_count ? mu_bind_task(b) : MU_BOUND;
}

/* It could not be enqueued. The loss of this device sends it elsewhere; that of another is that worker's to settle first; what
 * else went wrong is the task's end. */
static mu_enqueue refused(mu_actor *actor, muster_run *run, mu_task *task, const muster_error *error, int *device) {
    if (!actor->lost && error->status == MUSTER_DEVICE_LOST && error->device >= 0 && error->device != actor->index) {
        *device = error->device;
        return MU_ENQUEUE_AWAIT;
    }
    if (!actor->lost && error->status == MUSTER_DEVICE_LOST) mu_actor_lose(actor, error);
    if (actor->lost) {
        mu_ready_put(actor, task); /* mu_loss_forward takes it from there */
        return MU_ENQUEUED;
    }
    mu_enqueue_failed(actor, run, task, error);
    return MU_ENQUEUED;
}

mu_enqueue mu_enqueue_task(mu_actor *actor, muster_run *run, mu_task *task, int *device) {
    mu_address addresses[MU_MAX_PARAMETERS];
    muster_error error;
    mu_task_binding b = {.actor = actor,
                         .run = run,
                         .task = task,
                         .node = &run->graph->nodes[task->node],
                         .addresses = addresses,
                         .error = &error};
    if (task->held) mu_bind_let_go(actor, run, task);
    mu_epoch_note_losses(actor);
    mu_bind bound = prepare(actor, run, &b);
    if (bound == MU_BIND_FAILED && !actor->lost && (b.arrival = mu_arrival_of(actor, run->graph, b.node)))
        bound = MU_BIND_ARRIVAL; /* it fails after that, if it still does */
    if (bound == MU_BOUND) {
        mu_device_counters *counters = mu_device_counters_mutable(actor->device);
        mu_count(counters, &counters->admissions, 1);
        if (b.node->flags & MU_NODE_WAVE) mu_count(counters, &counters->waves, 1);
        actor->bursts.took = false;
        if (!start(actor, run, task, addresses, &error)) {
            join_epoch(actor, run, task, b.calls + (actor->bursts.took ? 0 : 1));
            return MU_ENQUEUED;
        }
        bound = MU_BIND_FAILED;
    }
    mu_epoch_add_calls(actor, b.calls);
    *device = b.await_device;
    switch (bound) {
        case MU_BIND_AWAIT: task->epoch = b.await_epoch; return MU_ENQUEUE_AWAIT;
        case MU_BIND_EPOCH: task->epoch = b.await_epoch; return MU_ENQUEUE_BEHIND;
        case MU_BIND_ARRIVAL: mu_arrival_wait(actor, b.arrival, task); return MU_ENQUEUE_HELD;
        case MU_BIND_DETOUR: mu_detour_wait(actor, b.detour, task); return MU_ENQUEUE_HELD;
        case MU_BIND_WRITER:
            mu_task_list_append(&actor->writers, task);
            actor->held_tasks++;
            return MU_ENQUEUE_HELD;
        case MU_BIND_MEMORY: return MU_ENQUEUE_STARVED;
        case MU_BOUND:
        case MU_BIND_FAILED: break;
    }
    return refused(actor, run, task, &error, device);
}
