#include "scheduler/placement/spread.h"

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/placement/estimate.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

bool mu_spread_add(muster_graph *graph, muster_job job) {
    uint32_t devices = graph->handle.runtime->device_count;
    if (!mu_grow(&graph->spreads, &graph->spread_capacity, graph->spread_count + 1, sizeof *graph->spreads))
        return false;
    mu_spread *spread = mu_alloc_zeroed(1, sizeof *spread + devices * sizeof *spread->blocks);
    if (!spread) return false;
    spread->job = job;
    for (size_t i = graph->job_nodes[job]; i < graph->node_count; i++) {
        const mu_node *node = &graph->nodes[i];
        if (node->flags & MU_NODE_SPREAD) spread->blocks[node->pin] += mu_node_blocks(node);
    }
    graph->spreads[graph->spread_count++] = spread;
    return true;
}

muster_status mu_spread_begin(muster_run *run, const muster_graph *graph, muster_error *error) {
    uint32_t devices = graph->handle.runtime->device_count;
    size_t count = graph->spread_count * devices;
    if (count == 0) return MUSTER_OK;
    run->unplaced = mu_alloc(count * sizeof *run->unplaced);
    if (!run->unplaced) return mu_fail_host_memory(error, "the shards of a run", count * sizeof *run->unplaced);
    for (size_t i = 0; i < count; i++) atomic_init(&run->unplaced[i], graph->spreads[i / devices]->blocks[i % devices]);
    return MUSTER_OK;
}

void mu_spread_end(muster_run *run) { mu_free(run->unplaced); }

/* Of the node's job; by device. */
static atomic_uint_fast64_t *unplaced_of(const muster_run *run, const mu_node *node) {
    const muster_graph *graph = run->graph;
    size_t low = 0, high = graph->spread_count - 1;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (graph->spreads[middle]->job < node->job)
            low = middle + 1;
        else
            high = middle;
    }
    return &run->unplaced[low * graph->handle.runtime->device_count];
}

/* Of the node and its repetitions, which follow it. */
static uint64_t all_blocks(const muster_graph *graph, const mu_node *node) {
    uint64_t launches = 1;
    const mu_node *end = graph->nodes + graph->node_count;
    for (const mu_node *next = node + 1; next < end && next->flags & MU_NODE_REPEAT; next++) launches++;
    return launches * mu_node_blocks(node);
}

static uint64_t taking(uint64_t pace_ps, uint64_t blocks) {
    unsigned __int128 ns = (unsigned __int128)pace_ps * blocks / 1000;
    return ns < UINT64_MAX / 4 ? (uint64_t)ns : UINT64_MAX / 4;
}

int mu_spread_place(muster_runtime *runtime, muster_run *run, const mu_node *node) {
    const muster_graph *graph = run->graph;
    const muster_kernel *kernel = node->as.dispatch->kernel;
    atomic_uint_fast64_t *unplaced = unplaced_of(run, node);
    uint64_t blocks = all_blocks(graph, node), paces[MU_MAX_DEVICES], costs[MU_MAX_DEVICES];
    /* Relaxed: an estimate. */
    uint64_t before = atomic_fetch_sub_explicit(&unplaced[node->pin], blocks, memory_order_relaxed);
    bool measured = mu_estimate_paces(runtime, kernel, graph->kernels, graph->kernel_count, paces);
    mu_location_mask devices = mu_place_candidates(runtime, graph, node);
    bool can_stay = devices & MU_LOCATION_DEVICE(node->pin);
    if (can_stay && !measured) return node->pin;
    if (!devices) return mu_place(runtime, graph, node);
    mu_place_costs(runtime, graph, node, devices, costs);
    int best = MUSTER_ANY_DEVICE;
    uint64_t best_ns = UINT64_MAX, stay_ns = UINT64_MAX;
    if (can_stay) stay_ns = costs[node->pin] + taking(paces[node->pin], before);
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        if (!(devices & MU_LOCATION_DEVICE(d)) || (int)d == node->pin) continue;
        uint64_t with = atomic_load_explicit(&unplaced[d], memory_order_relaxed) + blocks;
        uint64_t ns = costs[d] + taking(paces[d], with);
        if (ns < best_ns) best = (int)d, best_ns = ns;
    }
    if (best < 0 || (can_stay && best_ns + best_ns / MU_SPREAD_MARGIN >= stay_ns)) return node->pin;
    /* Nothing may be left for the device: sometimes it keeps this, so that it is seen whether it is still as slow. */
    bool last = before == blocks;
    if (can_stay && last &&
        atomic_fetch_add_explicit(&node->as.dispatch->kernel->turn, 1, memory_order_relaxed) % MU_SPREAD_LOOKS ==
            MU_SPREAD_LOOKS - 1)
        return node->pin;
    return best;
}
