#include "scheduler/graph/cut.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/actor/bind.h"
#include "scheduler/actor/loss.h"
#include "scheduler/graph/dispatch.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/placement/estimate.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

typedef unsigned __int128 wide;

/* ------------------------------------------------------------------------------------------------------------- pure -- */

uint32_t mu_partition(uint32_t extent, uint32_t parts, const uint64_t *weights, uint32_t *bounds) {
    wide total = 0, before = 0;
    for (uint32_t i = 0; i < parts; i++) total += weights ? weights[i] : 1;
    if (total == 0) return mu_partition(extent, parts, NULL, bounds);
    uint32_t count = 0;
    bounds[0] = 0;
    for (uint32_t i = 0; i < parts; i++) {
        before += weights ? weights[i] : 1;
        /* floor(extent * before / total) never decreases and ends at extent: exact cover; equal bounds are skipped. The
         * product needs 32 + 70 bits at most. */
        uint32_t bound = (uint32_t)(extent * before / total);
        if (bound > bounds[count]) bounds[++count] = bound;
    }
    return count;
}

void mu_cut_shares(uint32_t extent, uint32_t devices, const uint64_t *paces, uint32_t *shares) {
    /* What each does in the same time, in 1/2^90 of that: 32 devices and 32 bits more fit. */
    wide speeds[MU_MAX_DEVICES], total = 0;
    uint32_t left = extent;
    for (uint32_t d = 0; d < devices; d++) total += speeds[d] = paces[d] ? ((wide)1 << 90) / paces[d] : 0;
    for (uint32_t d = 0; d < devices; d++) left -= shares[d] = (uint32_t)(extent * speeds[d] / total);
    /* Rounding has left fewer than there are devices, or little more. */
    while (left > 0) {
        uint32_t best = devices;
        for (uint32_t d = 0; d < devices; d++)
            if (paces[d] && (best == devices || (wide)(shares[d] + UINT64_C(1)) * paces[d] <
                                                    (wide)(shares[best] + UINT64_C(1)) * paces[best]))
                best = d;
        shares[best]++;
        left--;
    }
}

static wide makespan(uint32_t extent, uint32_t devices, const uint64_t *paces) {
    uint32_t shares[MU_MAX_DEVICES];
    wide longest = 0;
    mu_cut_shares(extent, devices, paces, shares);
    for (uint32_t d = 0; d < devices; d++)
        if ((wide)shares[d] * paces[d] > longest) longest = (wide)shares[d] * paces[d];
    return longest;
}

void mu_cut_leave_out(uint32_t extent, uint32_t devices, uint64_t *paces, uint64_t part) {
    wide with = makespan(extent, devices, paces);
    for (;;) {
        uint32_t slowest = 0, count = 0;
        for (uint32_t d = 0; d < devices; d++) {
            count += paces[d] != 0;
            if (paces[d] >= paces[slowest]) slowest = d;
        }
        if (count < 2) return;
        uint64_t pace = paces[slowest];
        paces[slowest] = 0;
        wide without = makespan(extent, devices, paces);
        if (without > with + part) {
            paces[slowest] = pace;
            return;
        }
        with = without;
    }
}

/* ------------------------------------------------------------------------------------------------------------ limits -- */

typedef struct planner {
    muster_graph *graph;
    muster_job job;
    const mu_checked_dispatch *checked;
    muster_error *error;
    uint32_t extent, devices, count;
    uint32_t most; /* slices of one launch, by the devices' limits for a grid */
    bool measured, unlike;
    uint64_t paces[MU_MAX_DEVICES]; /* of a slice, in picoseconds if measured; 0: gets none */
    uint32_t shares[MU_MAX_DEVICES], chunks[MU_MAX_DEVICES];
    bool waves[MU_MAX_DEVICES];
    /* What was asked last. */
    uint32_t asked_slices, fit_share, fit_slices;
    uint64_t asked_bytes, fit_capacity;
} planner;

static char axis_name(const planner *p) { return "xyz"[p->checked->axis]; }

static uint32_t divided(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a + b - 1) / b); }

/* Shards may run on any device, so the smallest limit is everybody's. */
static uint32_t most_of_a_launch(const planner *p) {
    uint32_t most = INT32_MAX;
    for (uint32_t d = 0; d < p->devices; d++) {
        const mu_capability *capability = mu_device_capability(p->graph->handle.runtime->actors[d].device);
        int limit = capability->max_grid[p->checked->axis];
        if (limit > 0 && (uint32_t)limit < most) most = (uint32_t)limit;
    }
    return most;
}

/* The application has said how many shards there are. */
static muster_status check_given(const planner *p) {
    uint32_t most = divided(p->extent, p->count), least = divided(p->extent, p->most);
    if (most <= p->most) return MUSTER_OK;
    return mu_fail(
        p->error, MUSTER_INVALID_GEOMETRY,
        "with max_shards %u a shard is %u blocks along %c where the devices allow %u; raise max_shards to %u "
        "or more, or leave it 0",
        p->checked->dispatch->max_shards, most, axis_name(p), p->most, least);
}

static muster_status check_count(const planner *p, uint64_t count) {
    if (count <= MU_MAX_SHARDS) return MUSTER_OK;
    if (divided(p->extent, p->most) + p->devices > MU_MAX_SHARDS)
        return mu_fail(p->error, MUSTER_LIMIT_REACHED,
                       "a grid of %u blocks along %c would be cut in %llu shards of at most %u; at most %d shards are "
                       "possible: move work to another axis",
                       p->extent, axis_name(p), (unsigned long long)count, p->most, MU_MAX_SHARDS);
    return mu_fail(p->error, MUSTER_LIMIT_REACHED,
                   "the dispatch would run in %llu waves; at most %d are possible: raise the budget",
                   (unsigned long long)count, MU_MAX_SHARDS);
}

/* ------------------------------------------------------------------------------------------------------------ memory -- */

/* Of all shards of so many slices the one that needs most: its halo is cut off nowhere it need not be, and it begins where most memory
 * keeps it aligned as the buffer is. */
static void make_worst(const planner *p, uint32_t slices, const mu_node *node) {
    const muster_dispatch *dispatch = p->checked->dispatch;
    mu_access *access = &p->graph->accesses[node->access_first];
    for (uint32_t i = 0; i < dispatch->arg_count; i++) {
        const muster_arg *arg = &dispatch->args[i];
        if (arg->kind != MUSTER_ARG_BUFFER) continue;
        if (arg->cut == MUSTER_CUT_HALO) {
            uint64_t all = (uint64_t)slices + arg->halo_before + arg->halo_after;
            uint64_t row_bytes = mu_arg_row_bytes(arg, p->extent);
            access->high = access->low + (all < p->extent ? all * arg->slice_bytes : row_bytes);
            if (arg->rows > 1) access->high += (arg->rows - 1) * arg->pitch_bytes;
        }
        if (access->exact && (arg->offset_bytes | arg->slice_bytes) % MU_ALIGNMENT_BYTES) {
            uint64_t more = MU_ALIGNMENT_BYTES - 1 - access->low % MU_ALIGNMENT_BYTES;
            access->low += more;
            access->high += more;
        }
        access++;
    }
}

/* What a shard of so many slices needs at most on a device. Asked of a node as it would be added, which is taken back. */
static muster_status shard_need(planner *p, uint32_t slices, uint64_t *bytes) {
    if (slices == p->asked_slices) {
        *bytes = p->asked_bytes;
        return MUSTER_OK;
    }
    mu_graph_mark mark = mu_graph_get_mark(p->graph);
    size_t node = p->graph->node_count;
    mu_checked_dispatch once = *p->checked;
    once.iterations = 1;
    muster_status status = mu_shard_add_node(p->graph, p->job, &once, 0, slices, MUSTER_ANY_DEVICE, NULL, p->error);
    if (!status && slices < p->extent) make_worst(p, slices, &p->graph->nodes[node]);
    if (!status) status = mu_bind_required(p->graph, &p->graph->nodes[node], bytes, p->error);
    mu_graph_rewind(p->graph, &mark);
    if (!status) p->asked_slices = slices, p->asked_bytes = *bytes;
    return status;
}

/* The most slices of which a shard needs no more than `limit`; 0: not even one. */
static muster_status most_slices(planner *p, uint32_t most, uint64_t limit, uint32_t *slices) {
    uint32_t fits = 0, too_many = most + 1;
    while (too_many - fits > 1) {
        uint32_t middle = fits + (too_many - fits) / 2;
        uint64_t bytes;
        muster_status status = shard_need(p, middle, &bytes);
        if (status) return status;
        if (bytes <= limit)
            fits = middle;
        else
            too_many = middle;
    }
    *slices = fits;
    return MUSTER_OK;
}

static uint64_t capacity_of(const planner *p, uint32_t device) {
    return mu_ledger_capacity(mu_device_ledger(p->graph->handle.runtime->actors[device].device));
}

/* Cuts the device's share so that it fits: as it is, or so that several parts are there at once, for the next to arrive and the last to be
 * written back while one runs. Something is left for modules that are loaded later, unless not even one slice fits then. No chunks: none
 * fits at all. */
static muster_status fit(planner *p, uint32_t device, uint32_t wanted) {
    uint32_t share = p->shares[device], slices = 0;
    uint64_t bytes, whole = capacity_of(p, device), capacity = whole - whole / MU_CUT_RESERVE;
    muster_status status = shard_need(p, share, &bytes);
    if (status) return status;
    p->chunks[device] = wanted < share ? wanted : share;
    if (p->chunks[device] < divided(share, p->most)) p->chunks[device] = divided(share, p->most);
    p->waves[device] = bytes > capacity;
    if (bytes <= capacity) return MUSTER_OK;
    if (share == p->fit_share && capacity == p->fit_capacity) {
        slices = p->fit_slices;
    } else {
        for (uint64_t depth = MU_WAVE_DEPTH; depth && slices == 0; depth--)
            if ((status = most_slices(p, share, capacity / depth, &slices))) return status;
        if (slices == 0 && (status = most_slices(p, share, whole, &slices))) return status;
        p->fit_share = share, p->fit_capacity = capacity, p->fit_slices = slices;
    }
    uint32_t waves = slices ? divided(share, slices) : 0;
    if (waves == 0 || waves > p->chunks[device]) p->chunks[device] = waves;
    if (waves == 1) p->waves[device] = false;
    return MUSTER_OK;
}

/* What a shard of one slice in the middle has of an argument, and what its author can do about that. */
static uint64_t burden_of(const planner *p, const muster_arg *arg, char advice[160]) {
    enum { BYTES = 160 };
    if (arg->kind == MUSTER_ARG_SCRATCH) {
        snprintf(advice, BYTES, "scratch memory, which each shard has for itself: shrink it");
        return arg->bytes;
    }
    if (arg->kind != MUSTER_ARG_BUFFER) return 0;
    uint64_t bytes = mu_arg_bytes(arg);
    if (arg->cut == MUSTER_CUT_REPLICATE || arg->cut == MUSTER_CUT_REDUCE) {
        bool reduced = arg->cut == MUSTER_CUT_REDUCE;
        snprintf(advice, BYTES, "which is %s, so every shard has all of it: %s", reduced ? "reduced" : "replicated",
                 reduced ? "reduce into a smaller range" : "cut it in blocks, or shrink it");
        return bytes;
    }
    uint32_t first = (p->extent - 1) / 2, behind = p->extent - 1 - first, before = 0, after = 0;
    if (arg->cut == MUSTER_CUT_HALO) {
        before = arg->halo_before < first ? arg->halo_before : first;
        after = arg->halo_after < behind ? arg->halo_after : behind;
    }
    wide width = (wide)arg->slice_bytes * (before + UINT64_C(1) + after);
    uint64_t row = mu_arg_row_bytes(arg, p->extent);
    uint64_t gaps = arg->rows ? (arg->rows - 1) * arg->pitch_bytes : 0;
    if (width > row) width = row;
    if (gaps > width)
        snprintf(advice, BYTES, "most of it between its %u rows: cut the rows along another axis", arg->rows);
    else if (width / 2 > arg->slice_bytes)
        snprintf(advice, BYTES, "most of it a halo of %u slices before and %u after: declare a smaller one",
                 arg->halo_before, arg->halo_after);
    else
        snprintf(advice, BYTES, "its slice: make slices smaller, by more blocks along %c", axis_name(p));
    return (uint64_t)width + gaps;
}

static muster_status refuse_to_cut(planner *p) {
    uint64_t one = 0, capacity = 0, most = 0;
    uint32_t heaviest = 0;
    char advice[160] = "", other[160] = "";
    const muster_dispatch *dispatch = p->checked->dispatch;
    muster_status status = shard_need(p, 1, &one);
    if (status) return status;
    for (uint32_t d = 0; d < p->devices; d++)
        if (capacity_of(p, d) > capacity) capacity = capacity_of(p, d);
    for (uint32_t i = 0; i < dispatch->arg_count; i++) {
        uint64_t burden = burden_of(p, &dispatch->args[i], other);
        if (burden <= most) continue;
        most = burden, heaviest = i;
        memcpy(advice, other, sizeof advice);
    }
    return mu_fail(
        p->error, MUSTER_UNCUTTABLE,
        "even one of the %u slices needs %llu bytes on a device, which can give %llu; %llu of them are argument "
        "%u, %s, or raise the budget",
        p->extent, (unsigned long long)one, (unsigned long long)capacity, (unsigned long long)most, heaviest, advice);
}

/* ------------------------------------------------------------------------------------------------------------- speed -- */

/* Nothing is meant for a device that is lost, unless all are. */
static void leave_out_lost(planner *p) {
    mu_location_mask lost = mu_loss_devices(p->graph->handle.runtime), all = MU_LOCATION_DEVICE(p->devices) - 1;
    for (uint32_t d = 0; d < p->devices && lost != all; d++)
        if (lost & MU_LOCATION_DEVICE(d)) p->paces[d] = 0;
}

/* What a slice takes on each device, as far as that is known; 0 on those that get none. */
static void look_at_devices(planner *p) {
    const muster_runtime *runtime = p->graph->handle.runtime;
    const uint32_t *grid = p->checked->shape.grid;
    p->paces[0] = 1;
    if (p->devices == 1) return;
    muster_kernel *kernel = p->checked->dispatch->kernel;
    p->measured = mu_estimate_paces(runtime, kernel, p->graph->kernels, p->graph->kernel_count, p->paces);
    p->unlike = mu_estimate_differ(p->paces, p->devices);
    wide blocks = p->checked->iterations;
    for (uint32_t axis = 0; axis < 3; axis++)
        if (axis != p->checked->axis) blocks *= grid[axis];
    for (uint32_t d = 0; d < p->devices; d++) {
        wide pace = blocks < (wide)1 << 64 ? blocks * p->paces[d] : (wide)1 << 62;
        p->paces[d] = !p->unlike ? 1 : pace < (wide)1 << 62 ? (uint64_t)pace : UINT64_C(1) << 62;
    }
    leave_out_lost(p);
    /* Now and then it is seen whether a device is still as slow as it was. */
    bool look =
        p->unlike && p->measured &&
        atomic_fetch_add_explicit(&kernel->turn, 1, memory_order_relaxed) % MU_SPREAD_LOOKS == MU_SPREAD_LOOKS - 1;
    if (p->unlike && p->measured && !look)
        mu_cut_leave_out(p->extent, p->devices, p->paces, MU_PART_NS * UINT64_C(1000));
}

/* Into how many parts a device's share is cut for some of them to go elsewhere: none much shorter than it costs. */
static uint32_t spread_chunks(const planner *p) {
    uint64_t wanted = MU_SPREAD_SHARDS;
    if (!p->unlike) return 1;
    if (wanted * p->devices * p->checked->iterations > MU_JOB_LAUNCHES_MAX) return 1;
    if (!p->measured) return (uint32_t)wanted;
    wide chunks = makespan(p->extent, p->devices, p->paces) / (MU_SPREAD_LEAST_NS * UINT64_C(1000));
    if (chunks < wanted) wanted = (uint64_t)chunks;
    return wanted ? (uint32_t)wanted : 1;
}

/* -------------------------------------------------------------------------------------------------------------- plan -- */

/* No device is sure to hold a slice, wherever that begins; but one may hold all of them as they are. */
static muster_status leave_whole(planner *p) {
    uint64_t bytes;
    muster_status status = shard_need(p, p->extent, &bytes);
    if (status) return status;
    for (uint32_t d = 0; d < p->devices; d++) {
        if (bytes > capacity_of(p, d) || p->extent > p->most) continue;
        memset(p->shares, 0, sizeof p->shares);
        p->shares[d] = p->extent;
        p->chunks[d] = p->count = 1;
        p->waves[d] = false;
        return MUSTER_OK;
    }
    return refuse_to_cut(p);
}

/* Shares by speed, of devices that can hold any. */
static muster_status share_out(planner *p) {
    for (bool again = true; again;) {
        bool any = false;
        for (uint32_t d = 0; d < p->devices; d++) any |= p->paces[d] != 0;
        if (!any) return leave_whole(p);
        mu_cut_shares(p->extent, p->devices, p->paces, p->shares);
        uint32_t wanted = spread_chunks(p);
        uint64_t count = 0;
        again = false;
        for (uint32_t d = 0; d < p->devices && !again; d++) {
            if (p->shares[d] == 0) continue;
            muster_status status = fit(p, d, wanted);
            if (status) return status;
            count += p->chunks[d];
            if (p->chunks[d] == 0) p->paces[d] = 0, again = true;
        }
        if (again) continue;
        muster_status status = check_count(p, count);
        if (status) return status;
        p->count = (uint32_t)count;
    }
    return MUSTER_OK;
}

static void fill_parts(const planner *p, mu_cut_part *parts) {
    uint32_t begin = 0;
    for (uint32_t d = 0; d < p->devices; d++) {
        if (p->shares[d] == 0) continue;
        for (uint32_t c = 1; c <= p->chunks[d]; c++)
            *parts++ =
                (mu_cut_part){begin + (uint32_t)((uint64_t)p->shares[d] * c / p->chunks[d]), (int16_t)d, p->waves[d]};
        begin += p->shares[d];
    }
}

/* So many equal parts as the application said. */
static void fill_given(const planner *p, mu_cut_part *parts) {
    uint32_t shares[MU_MAX_DEVICES], device = 0;
    mu_cut_shares(p->count, p->devices, p->paces, shares);
    for (uint32_t i = 0; i < p->count; i++) {
        while (shares[device] == 0) device++;
        shares[device]--;
        parts[i] = (mu_cut_part){(uint32_t)((uint64_t)p->extent * (i + 1) / p->count), (int16_t)device, false};
    }
}

/* Every shard would write all of a replicated argument. With one device it may turn out only now that there are several. */
static muster_status check_replicated(const planner *p) {
    const muster_dispatch *dispatch = p->checked->dispatch;
    for (uint32_t i = 0; i < dispatch->arg_count && p->count > 1; i++) {
        const muster_arg *arg = &dispatch->args[i];
        if (arg->kind != MUSTER_ARG_BUFFER || arg->cut != MUSTER_CUT_REPLICATE || !(arg->access & MUSTER_WRITE))
            continue;
        if (p->extent > p->most)
            return mu_fail(
                p->error, MUSTER_UNCUTTABLE,
                "argument %u is replicated and written, and a launch has at most %u of the grid's %u blocks "
                "along %c: its %u shards would write the same %llu bytes; cut the argument in blocks, reduce "
                "it, or move work to another axis",
                i, p->most, p->extent, axis_name(p), p->count, (unsigned long long)mu_arg_bytes(arg));
        return mu_fail(p->error, MUSTER_UNCUTTABLE,
                       "argument %u is replicated and written, and the dispatch does not fit the device's memory at "
                       "once: its %u waves would write the same %llu bytes; cut the argument in blocks, reduce it, or "
                       "raise the budget",
                       i, p->count, (unsigned long long)mu_arg_bytes(arg));
    }
    if ((uint64_t)p->count * p->checked->iterations > MU_JOB_LAUNCHES_MAX)
        return mu_fail(
            p->error, MUSTER_LIMIT_REACHED,
            "%u iterations of %u shards exceed the %d launches a job may have; spread them over several jobs",
            p->checked->iterations, p->count, MU_JOB_LAUNCHES_MAX);
    return MUSTER_OK;
}

muster_status mu_cut_plan(muster_graph *graph, muster_job job, const mu_checked_dispatch *checked, mu_cut *cut,
                          muster_error *error) {
    planner p = {.graph = graph,
                 .job = job,
                 .checked = checked,
                 .error = error,
                 .extent = checked->shape.grid[checked->axis],
                 .devices = graph->handle.runtime->device_count};
    muster_status status = MUSTER_OK;
    uint32_t given = checked->dispatch->max_shards;
    p.most = most_of_a_launch(&p);
    look_at_devices(&p);
    if (given) {
        p.count = given < p.extent ? given : p.extent;
        status = check_given(&p);
    } else {
        status = share_out(&p);
    }
    if (status || (status = check_replicated(&p))) return status;
    mu_cut_part *parts = mu_alloc(p.count * sizeof *parts);
    if (!parts) return mu_fail_host_memory(error, "the shards of a dispatch", p.count * sizeof *parts);
    if (given)
        fill_given(&p, parts);
    else
        fill_parts(&p, parts);
    *cut = (mu_cut){.count = p.count, .spread = p.unlike && p.count > 1, .parts = parts};
    return MUSTER_OK;
}

void mu_cut_free(mu_cut *cut) {
    mu_free(cut->parts);
    cut->parts = NULL;
}
