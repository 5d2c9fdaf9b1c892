#include "scheduler/placement/estimate.h"

#include "base/clock.h"
#include "scheduler/actor/epoch.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

/* Shorter copies say more about their start than about the path. */
enum { MEASURED_COPY_BYTES = 1 << 20 };

static atomic_uint_fast64_t *pace_of(const mu_node *node, int device) {
    return &node->as.dispatch->kernel->pace_ps[device];
}

uint64_t mu_estimate_launch_ns(const mu_node *node, int device) {
    if (node->kind != MU_NODE_DISPATCH) return MU_QUEUED_JOB_NS;
    uint64_t pace = atomic_load_explicit(pace_of(node, device), memory_order_relaxed), ps;
    if (pace == 0) return 0;
    if (__builtin_mul_overflow(pace, mu_node_blocks(node), &ps)) return UINT64_MAX / 1000;
    return ps / 1000 + 1;
}

/* Of a device that has not run the kernel, what another says, by their numbers of multiprocessors. */
static uint64_t from_another(const muster_runtime *runtime, const mu_node *node, int device) {
    uint64_t own = (uint64_t)mu_device_capability(runtime->actors[device].device)->multiprocessors;
    for (int d = 0; d < (int)runtime->device_count; d++) {
        uint64_t there = d == device ? 0 : mu_estimate_launch_ns(node, d);
        if (there == 0 || own == 0) continue;
        uint64_t theirs = (uint64_t)mu_device_capability(runtime->actors[d].device)->multiprocessors;
        return (uint64_t)((unsigned __int128)there * theirs / own);
    }
    return 0;
}

uint64_t mu_estimate_job_ns(const muster_runtime *runtime, const mu_node *node, int device) {
    uint64_t ns = mu_estimate_launch_ns(node, device);
    if (ns == 0) ns = from_another(runtime, node, device);
    /* Enqueueing alone takes about so long; what never ran is taken for short. */
    return ns > MU_QUEUED_JOB_NS ? ns : MU_QUEUED_JOB_NS;
}

uint64_t mu_estimate_copy_ns(const muster_runtime *runtime, int device, bool direct, uint64_t bytes) {
    const mu_actor *actor = &runtime->actors[device];
    uint64_t rate =
        atomic_load_explicit(direct ? &actor->peer_bytes_per_us : &actor->host_bytes_per_us, memory_order_relaxed);
    if (rate == 0) rate = MU_TRANSFER_BYTES_PER_NS * UINT64_C(1000);
    return (uint64_t)((unsigned __int128)bytes * 1000 / rate);
}

/* ---------------------------------------------------------------------------------------------------------- compare -- */

/* The best of the actors on one device: they take turns there, and each is measured with the others' work in between. 0: unknown. */
static uint64_t wide_pace(const muster_runtime *runtime, const muster_kernel *kernel, uint32_t device) {
    const mu_device *own = runtime->actors[device].device;
    uint64_t best = 0;
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        if (d != device && !mu_device_shares_with(own, runtime->actors[d].device)) continue;
        uint64_t pace = atomic_load_explicit(&kernel->wide_pace_ps[d], memory_order_relaxed);
        if (pace && (best == 0 || pace < best)) best = pace;
    }
    return best;
}

/* What is known of the kernel; how many devices that is. */
static uint32_t known_paces(const muster_runtime *runtime, const muster_kernel *kernel, uint64_t *paces) {
    uint32_t known = 0;
    for (uint32_t d = 0; d < runtime->device_count; d++)
        if ((paces[d] = wide_pace(runtime, kernel, d))) known++;
    return known;
}

/* Of which only the proportions count: another kernel's paces, or those of a model. */
static void basis(const muster_runtime *runtime, muster_kernel *const *others, size_t count, uint64_t *paces) {
    for (size_t i = 0; i < count; i++)
        if (known_paces(runtime, others[i], paces) == runtime->device_count) return;
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        const mu_capability *capability = mu_device_capability(runtime->actors[d].device);
        uint64_t units = capability->multiprocessors > 0 ? (uint64_t)capability->multiprocessors : 1;
        uint64_t khz = capability->clock_khz > 0 ? (uint64_t)capability->clock_khz : 1000000;
        paces[d] = (UINT64_C(1) << 54) / (units * khz) + 1;
    }
}

bool mu_estimate_paces(const muster_runtime *runtime, const muster_kernel *kernel, muster_kernel *const *others,
                       size_t other_count, uint64_t paces_ps[MU_MAX_DEVICES]) {
    uint64_t like[MU_MAX_DEVICES];
    uint32_t known = known_paces(runtime, kernel, paces_ps), devices = runtime->device_count;
    if (known == devices) return true;
    basis(runtime, others, other_count, like);
    if (known == 0) {
        for (uint32_t d = 0; d < devices; d++) paces_ps[d] = like[d];
        return false;
    }
    double factor = 0;
    for (uint32_t d = 0; d < devices; d++)
        if (paces_ps[d]) factor += (double)paces_ps[d] / (double)like[d] / known;
    for (uint32_t d = 0; d < devices; d++) {
        if (paces_ps[d]) continue;
        double pace = factor * (double)like[d] + 1;
        paces_ps[d] = pace < (double)(UINT64_MAX / 2) ? (uint64_t)pace : UINT64_MAX / 2;
    }
    return true;
}

bool mu_estimate_differ(const uint64_t *paces_ps, uint32_t count) {
    uint64_t least = paces_ps[0], most = paces_ps[0];
    for (uint32_t d = 1; d < count; d++) {
        if (paces_ps[d] < least) least = paces_ps[d];
        if (paces_ps[d] > most) most = paces_ps[d];
    }
    return (unsigned __int128)most * 1000 > (unsigned __int128)least * (1000 + MU_UNLIKE_PERMILLE);
}

/* ------------------------------------------------------------------------------------------------------------- note -- */

/* A quarter of what is new: one late look does little harm. */
static void learn(atomic_uint_fast64_t *estimate, uint64_t value) {
    uint64_t known = atomic_load_explicit(estimate, memory_order_relaxed);
    if (known) value = known - known / 4 + value / 4;
    atomic_store_explicit(estimate, value ? value : 1, memory_order_relaxed);
}

/* What a launch took says something of the device if the launch itself was little of it, and every multiprocessor had a block. */
static void learn_wide(const mu_actor *actor, const mu_node *node, uint64_t ns) {
    uint64_t blocks = mu_node_blocks(node);
    if (ns < MU_WIDE_LAUNCHES * (uint64_t)MU_QUEUED_JOB_NS ||
        blocks < (uint64_t)mu_device_capability(actor->device)->multiprocessors)
        return;
    unsigned __int128 ps = (unsigned __int128)(ns - MU_QUEUED_JOB_NS) * 1000 / blocks;
    learn(&node->as.dispatch->kernel->wide_pace_ps[actor->index], ps < UINT64_MAX / 2 ? (uint64_t)ps : UINT64_MAX / 2);
}

static const mu_node *dispatched(const mu_actor *actor, mu_task_ref ref, mu_task_ref *next) {
    const muster_run *run = mu_run_at(actor->runtime, (uint32_t)(ref >> 32));
    const mu_task *task = &run->tasks[(uint32_t)ref];
    const mu_node *node = &run->graph->nodes[task->node];
    *next = task->epoch_next;
    return node->kind == MU_NODE_DISPATCH && !task->status ? node : NULL;
}

#define FOR_EACH_DISPATCH(node)                                                                                        \
    for (uint64_t number = first; number <= last; number++)                                                            \
        for (mu_task_ref ref = mu_epoch_first(mu_epoch_at(actor, number)), next; ref != MU_NO_TASK; ref = next)        \
            for (const mu_node *node = dispatched(actor, ref, &next); node; node = NULL)

/* Since what was noted last: by the driver's model of the device, or what passed since the device can have begun. */
static uint64_t took(mu_timeline *timeline, uint64_t since_ns) {
    if (!timeline->modelled) return mu_now_ns() - since_ns;
    uint64_t ns = timeline->kernel_ns - timeline->noted_ns;
    timeline->noted_ns = timeline->kernel_ns;
    return ns;
}

/* Together they took no longer than `elapsed`. Each gets a part of that in proportion to what it was thought to take, or, while some
 * have never been seen, to its blocks. */
void mu_estimate_note_epochs(mu_actor *actor, uint64_t first, uint64_t last, uint64_t since_ns) {
    if (first > last) return;
    uint64_t elapsed = took(&actor->timeline, since_ns), blocks = 0, expected = 0;
    bool all_known = true;
    FOR_EACH_DISPATCH(node) {
        uint64_t ns = mu_estimate_launch_ns(node, actor->index);
        all_known &= ns != 0;
        expected += ns < UINT64_MAX / (1 << 20) ? ns : UINT64_MAX / (1 << 20);
        blocks += mu_node_blocks(node);
    }
    if (blocks == 0) return;
    uint64_t evenly = (uint64_t)((unsigned __int128)elapsed * 1000 / blocks);
    FOR_EACH_DISPATCH(node) {
        atomic_uint_fast64_t *pace = pace_of(node, actor->index);
        uint64_t known = atomic_load_explicit(pace, memory_order_relaxed), ps = evenly;
        uint64_t *noted = &node->as.dispatch->kernel->noted[actor->index];
        /* All launches of a kernel are the same news. */
        if (*noted == last || (known && !all_known)) continue;
        *noted = last;
        if (all_known) ps = (uint64_t)((unsigned __int128)known * elapsed / expected);
        learn(pace, ps);
        unsigned __int128 ns = (unsigned __int128)ps * mu_node_blocks(node) / 1000;
        learn_wide(actor, node, ns < UINT64_MAX ? (uint64_t)ns : UINT64_MAX);
    }
}

void mu_estimate_note_copy(mu_actor *actor, bool from_host, uint64_t bytes, uint64_t since_ns) {
    uint64_t elapsed = mu_now_ns() - since_ns;
    if (bytes < MEASURED_COPY_BYTES || elapsed == 0) return;
    learn(from_host ? &actor->host_bytes_per_us : &actor->peer_bytes_per_us,
          (uint64_t)((unsigned __int128)bytes * 1000 / elapsed));
}
