#include "scheduler/placement.h"

#include <string.h>

#include "scheduler/bind.h"
#include "scheduler/buffer.h"
#include "scheduler/estimate.h"
#include "scheduler/loss.h"
#include "scheduler/runtime.h"

static uint32_t next_turn(muster_runtime *runtime) {
    return atomic_fetch_add_explicit(&runtime->placement_turn, 1, memory_order_relaxed);
}

/* How long the device will be busy with what it has been given. */
static uint64_t queued_ns(const muster_runtime *runtime, uint32_t device) {
    return atomic_load_explicit(&runtime->actors[device].queued_ns, memory_order_relaxed);
}

/* The nth device of those in the mask, counted around. */
static int nth_of(mu_location_mask candidates, uint64_t n) {
    for (n %= (uint64_t)__builtin_popcountll(candidates); n > 0; n--) candidates &= candidates - 1;
    return __builtin_ctzll(candidates);
}

static int place_round_robin(muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                             mu_location_mask candidates) {
    (void)graph;
    (void)node;
    return nth_of(candidates, next_turn(runtime));
}

/* A repeatable sequence for a seed: SplitMix64 of the turn. */
static int place_random(muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                        mu_location_mask candidates) {
    (void)graph;
    (void)node;
    uint64_t x = runtime->config.seed + next_turn(runtime) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return nth_of(candidates, x ^ x >> 31);
}

static int place_least_loaded(muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                              mu_location_mask candidates) {
    (void)graph;
    (void)node;
    uint32_t best = (uint32_t)__builtin_ctzll(candidates);
    for (uint32_t d = best + 1; d < runtime->device_count; d++)
        if (candidates & MU_LOCATION_DEVICE(d) && queued_ns(runtime, d) < queued_ns(runtime, best)) best = d;
    return (int)best;
}

/* Bytes that a device lacks of a node's inputs, by where they can come from; and hops: content that the node accesses is on another
 * device, whose work on it comes before this. */
typedef struct missing {
    uint64_t from_host, from_peer;
    uint32_t hops;
} missing;

static void count_segment(const muster_runtime *runtime, const mu_segment *segment, uint64_t bytes, missing *of) {
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        if (segment->valid & MU_LOCATION_DEVICE(d)) continue;
        if (segment->valid & runtime->reach[d])
            of[d].from_peer += bytes;
        else
            of[d].from_host += bytes;
    }
}

static void count_missing(const muster_runtime *runtime, const muster_graph *graph, const mu_node *node, missing *of) {
    for (uint32_t i = 0; i < node->access_count; i++) {
        const mu_access *access = &graph->accesses[node->access_first + i];
        mu_location_mask holders = 0;
        mu_coherence *table = &graph->buffers[access->buffer].buffer->coherence;
        mu_coherence_lock(table);
        for (uint32_t s = mu_coherence_find(table, access->low);
             s < table->count && table->segments[s].low < access->high; s++) {
            const mu_segment *segment = &table->segments[s];
            if (segment->zero || segment->undefined) continue;
            holders |= segment->valid & ~MU_LOCATION_HOST;
            if (!(access->mode & MUSTER_READ)) continue;
            uint64_t low = segment->low > access->low ? segment->low : access->low;
            uint64_t high = segment->high < access->high ? segment->high : access->high;
            count_segment(runtime, segment, high - low, of);
        }
        mu_coherence_unlock(table);
        for (uint32_t d = 0; d < runtime->device_count; d++)
            if (holders && !(holders & MU_LOCATION_DEVICE(d))) of[d].hops++;
    }
}

/* Where the job would probably end first: after what is queued, when what is missing has come, and with what it takes there. So a job
 * goes where its data is until that device's queue is longer than another's by more than moving the data costs. */
static int place_locality(muster_runtime *runtime, const muster_graph *graph, const mu_node *node,
                          mu_location_mask candidates) {
    missing of[MU_MAX_DEVICES] = {0};
    count_missing(runtime, graph, node, of);
    uint32_t best = 0;
    uint64_t best_ns = UINT64_MAX;
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        if (!(candidates & MU_LOCATION_DEVICE(d))) continue;
        uint64_t ns = queued_ns(runtime, d) + mu_estimate_job_ns(runtime, node, (int)d) +
                      mu_estimate_copy_ns(runtime, (int)d, false, of[d].from_host) +
                      mu_estimate_copy_ns(runtime, (int)d, true, of[d].from_peer) + of[d].hops * (uint64_t)MU_HOP_NS;
        if (ns < best_ns) best = d, best_ns = ns;
    }
    return (int)best;
}

static const mu_placement policies[] = {
    {"locality", place_locality},
    {"least-loaded", place_least_loaded},
    {"round-robin", place_round_robin},
    {"random", place_random},
};

const char mu_placement_names[] = "locality, least-loaded, round-robin, random";

const mu_placement *mu_placement_find(const char *name) {
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++)
        if (strcmp(policies[i].name, name) == 0) return &policies[i];
    return NULL;
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

int mu_place(muster_runtime *runtime, const muster_graph *graph, const mu_node *node) {
    bool shard = node->flags & MU_NODE_SHARD;
    if (node->pin != MUSTER_ANY_DEVICE && !shard) return node->pin;
    if (runtime->device_count == 1) return 0;
    mu_location_mask devices = (MU_LOCATION_DEVICE(runtime->device_count) - 1) & ~mu_loss_devices(runtime);
    if (!devices) return shard ? node->pin : 0;
    devices = that_fit(runtime, graph, node, devices);
    if (!shard) return runtime->placement->place(runtime, graph, node, devices);
    return devices & MU_LOCATION_DEVICE(node->pin) ? node->pin : nth_of(devices, (uint64_t)node->pin);
}
