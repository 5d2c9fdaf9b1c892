#include "scheduler/placement/placement.h"

#include <string.h>

#include "scheduler/actor/bind.h"
#include "scheduler/actor/loss.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/placement/estimate.h"
#include "scheduler/placement/policies.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

static const muster_placement_policy *const policies[] = {
    &mu_policy_locality,
    &mu_policy_least_loaded,
    &mu_policy_round_robin,
    &mu_policy_random,
};

const char mu_placement_names[] = "locality, least-loaded, round-robin, random";

const muster_placement_policy *muster_placement_find(const char *name) {
    for (size_t i = 0; name && i < sizeof policies / sizeof policies[0]; i++)
        if (strcmp(policies[i]->name, name) == 0) return policies[i];
    return NULL;
}

/* --------------------------------------------------------------------------------------------------- what is asked -- */

static void count_segment(const muster_runtime *runtime, const mu_segment *segment, uint64_t bytes,
                          muster_placement_device *of) {
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        if (segment->valid & MU_LOCATION_DEVICE(d)) continue;
        if (segment->valid & runtime->reach[d])
            of[d].missing_peer_bytes += bytes;
        else
            of[d].missing_host_bytes += bytes;
    }
}

/* What each device lacks of a node's inputs, by where it can come from; and hops: content that the node accesses is on another
 * device, whose work on it comes before this. */
static void count_missing(const muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                          muster_placement_device *of) {
    for (uint32_t i = 0; i < node->access_count; i++) {
        const mu_access *access = &graph->accesses[node->access_first + i];
        mu_location_mask holders = 0;
        mu_coherence *table = &graph->buffers[access->buffer].buffer->coherence;
        mu_coherence_lock(table);
        const mu_area area = mu_access_area(graph, access);
        mu_walk walk;
        for (const mu_segment *segment = mu_walk_first(&walk, table, &area); segment; segment = mu_walk_next(&walk)) {
            if (segment->zero || segment->undefined) continue;
            holders |= segment->valid & ~MU_LOCATION_HOST;
            if (!(access->mode & MUSTER_READ)) continue;
            count_segment(runtime, segment, walk.high - walk.low, of);
        }
        mu_coherence_unlock(table);
        for (uint32_t d = 0; d < runtime->device_count; d++)
            if (holders && !(holders & MU_LOCATION_DEVICE(d))) of[d].hops++;
    }
}

static muster_job_kind kind_of(const mu_node *node) {
    switch ((mu_node_kind)node->kind) {
        case MU_NODE_DISPATCH: return MUSTER_JOB_DISPATCH;
        case MU_NODE_COPY: return MUSTER_JOB_COPY;
        case MU_NODE_FILL: return MUSTER_JOB_FILL;
        case MU_NODE_ENQUEUE: return MUSTER_JOB_ENQUEUE;
        /* Prefetches are pinned, and the last two are the host's. */
        case MU_NODE_PREFETCH:
        case MU_NODE_JOIN:
        case MU_NODE_READ_BACK:
        case MU_NODE_HOST: break;
    }
    return MUSTER_JOB_EMPTY;
}

static muster_placement_request describe(const mu_node *node) {
    muster_placement_request request = {.struct_size = sizeof request, .kind = kind_of(node), .job = node->job};
    if (node->kind == MU_NODE_DISPATCH) {
        request.kernel = node->as.dispatch->kernel;
        request.kernel_name = request.kernel->name;
        request.blocks = mu_node_blocks(node);
    }
    return request;
}

static void look_at_devices(const muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                            uint32_t wanted, mu_location_mask candidates, muster_placement_device *devices) {
    memset(devices, 0, runtime->device_count * sizeof *devices);
    if (wanted & MUSTER_PLACEMENT_DATA) count_missing(runtime, graph, node, devices);
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        muster_placement_device *device = &devices[d];
        device->candidate = (candidates & MU_LOCATION_DEVICE(d)) != 0;
        if (!device->candidate) continue;
        if (wanted & MUSTER_PLACEMENT_QUEUES)
            device->queued_ns = atomic_load_explicit(&runtime->actors[d].queued_ns, memory_order_relaxed);
        if (wanted & MUSTER_PLACEMENT_TIMES) device->job_ns = mu_estimate_job_ns(runtime, node, (int)d);
        if (wanted & MUSTER_PLACEMENT_DATA)
            device->copy_ns = mu_estimate_copy_ns(runtime, (int)d, false, device->missing_host_bytes) +
                              mu_estimate_copy_ns(runtime, (int)d, true, device->missing_peer_bytes);
    }
}

static int ask(muster_runtime *runtime, const muster_placement_policy *policy, const muster_graph *graph,
               const mu_node *node, mu_location_mask candidates) {
    muster_placement_device devices[MU_MAX_DEVICES];
    muster_placement_request request = describe(node);
    look_at_devices(runtime, graph, node, policy->flags, candidates, devices);
    request.candidates = candidates;
    request.device_count = runtime->device_count;
    request.devices = devices;
    request.seed = runtime->config.seed;
    if (policy->flags & MUSTER_PLACEMENT_TURN)
        request.turn = atomic_fetch_add_explicit(&runtime->placement_turn, 1, memory_order_relaxed);
    /* A job that needs more than can be counted fails where it is bound; here it needs as much as there is. */
    if (policy->flags & MUSTER_PLACEMENT_MEMORY && mu_bind_required(graph, node, &request.required_bytes, NULL))
        request.required_bytes = UINT64_MAX;
    return policy->place(policy->user, &request);
}

/* ---------------------------------------------------------------------------------------------------------- place -- */

/* The policy chose no candidate: the job goes where it would have gone without it. */
static int place_instead(muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                         mu_location_mask candidates, int chosen) {
    int device = ask(runtime, &mu_policy_locality, graph, node, candidates);
    if (chosen == MUSTER_ANY_DEVICE) return device;
    mu_device_counters *counters = mu_device_counters_mutable(runtime->actors[device].device);
    atomic_fetch_add_explicit(&counters->placements_refused, 1, memory_order_relaxed);
    if (!atomic_exchange_explicit(&runtime->placement_warned, true, memory_order_relaxed))
        mu_log_line(&runtime->log, MUSTER_LOG_WARNING,
                    "placement policy %s chose device %d for job %u, which is not among its candidates (mask 0x%llx); "
                    "the job goes to device %d, and so on without another line (placements_refused counts)",
                    runtime->placement->name, chosen, node->job, (unsigned long long)candidates, device);
    return device;
}

static int choose(muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                  mu_location_mask candidates) {
    if (!(candidates & (candidates - 1))) return __builtin_ctzll(candidates);
    int chosen = ask(runtime, runtime->placement, graph, node, candidates);
    if (chosen >= 0 && chosen < (int)runtime->device_count && candidates & MU_LOCATION_DEVICE(chosen)) return chosen;
    return place_instead(runtime, graph, node, candidates, chosen);
}

/* Those of `devices` on which the job can ever fit; all when it fits nowhere, for one of them to say so with its numbers. Asked only
 * where devices differ: otherwise it fits on all or none. */
static mu_location_mask that_fit(const muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                                 mu_location_mask devices) {
    uint64_t required;
    if (!runtime->budgets_differ || mu_bind_required(graph, node, &required, NULL)) return devices;
    mu_location_mask fit = 0;
    for (uint32_t d = 0; d < runtime->device_count; d++)
        if (devices & MU_LOCATION_DEVICE(d) &&
            required <= mu_ledger_capacity(mu_device_ledger(runtime->actors[d].device)))
            fit |= MU_LOCATION_DEVICE(d);
    return fit ? fit : devices;
}

mu_location_mask mu_place_candidates(const muster_runtime *runtime, const muster_graph *graph, const mu_node *node) {
    mu_location_mask devices = (MU_LOCATION_DEVICE(runtime->device_count) - 1) & ~mu_loss_devices(runtime);
    return devices ? that_fit(runtime, graph, node, devices) : 0;
}

void mu_place_costs(const muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                    mu_location_mask candidates, uint64_t costs_ns[MU_MAX_DEVICES]) {
    muster_placement_device devices[MU_MAX_DEVICES];
    look_at_devices(runtime, graph, node, MUSTER_PLACEMENT_QUEUES | MUSTER_PLACEMENT_DATA, candidates, devices);
    for (uint32_t d = 0; d < runtime->device_count; d++)
        if (devices[d].candidate)
            costs_ns[d] = devices[d].queued_ns + devices[d].copy_ns + devices[d].hops * (uint64_t)MU_HOP_NS;
}

void mu_place_look(const muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                   mu_location_mask candidates, muster_placement_device devices[MU_MAX_DEVICES]) {
    look_at_devices(runtime, graph, node, MUSTER_PLACEMENT_QUEUES | MUSTER_PLACEMENT_TIMES | MUSTER_PLACEMENT_DATA,
                    candidates, devices);
}

int mu_place(muster_runtime *runtime, const muster_graph *graph, const mu_node *node) {
    bool shard = node->flags & MU_NODE_SHARD;
    if (node->pin != MUSTER_ANY_DEVICE && !shard) return node->pin;
    if (runtime->device_count == 1) return 0;
    mu_location_mask devices = (MU_LOCATION_DEVICE(runtime->device_count) - 1) & ~mu_loss_devices(runtime);
    if (!devices) return shard ? node->pin : 0;
    devices = that_fit(runtime, graph, node, devices);
    if (!shard) return choose(runtime, graph, node, devices);
    return devices & MU_LOCATION_DEVICE(node->pin) ? node->pin : mu_nth_candidate(devices, (uint64_t)node->pin);
}
