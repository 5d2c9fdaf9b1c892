/* Running a grid: blocks, clusters and cooperative grids over host threads. */
#include "device/sim/ptx_launch.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/sim/ptx_schedule.h"

enum {
    SLICE_LOW = 256,     /* warp instructions of a slice: at least */
    SLICE_RANDOM = 1024, /* and up to so many more, by the seed */
    MAX_WORKERS = 256,
    UNDEFINED_SHARED =
        0xcd, /* what shared memory holds at first, so that a kernel that reads it fails the same way every time */
};

static atomic_uint_fast64_t next_grid_id = 1; /* relaxed: a source of distinct numbers */

static uint32_t next_random(uint32_t *state) {
    uint32_t v = *state;
    v ^= v << 13;
    v ^= v >> 17;
    v ^= v << 5;
    return *state = v;
}

/* -------------------------------------------------------------------------------------------------------- blocks -- */

/* Memory of a unit's blocks, made once by each worker and used for one unit after the other. */
typedef struct unit_memory {
    ptx_unit unit;
    ptx_block *blocks;
    ptx_warp *warps;
    unsigned char *registers, *shared;
    size_t register_stride, shared_stride;
    uint32_t warps_per_block;
} unit_memory;

static void free_unit(unit_memory *memory) {
    uint32_t warps = memory->blocks ? memory->unit.block_count * memory->warps_per_block : 0;
    for (uint32_t w = 0; memory->warps && w < warps; w++) {
        if (memory->warps[w].owns_registers) mu_free_aligned(memory->warps[w].registers);
        mu_free(memory->warps[w].local);
    }
    mu_free(memory->blocks);
    mu_free(memory->warps);
    if (memory->registers) mu_free_aligned(memory->registers);
    if (memory->shared) mu_free_aligned(memory->shared);
}

static void number_threads(ptx_warp *w, const uint32_t size[3], uint32_t threads) {
    w->lanes = 0;
    for (uint32_t l = 0; l < PTX_LANES; l++) {
        uint32_t t = w->index * PTX_LANES + l;
        if (t >= threads) break;
        w->lanes |= 1u << l;
        w->tid[0][l] = (uint16_t)(t % size[0]);
        w->tid[1][l] = (uint16_t)(t / size[0] % size[1]);
        w->tid[2][l] = (uint16_t)(t / size[0] / size[1]);
    }
}

static bool make_unit(const ptx_grid *grid, uint32_t block_count, unit_memory *memory) {
    const sim_launch *launch = grid->launch;
    const sim_function *kernel = grid->kernel;
    uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    uint32_t warps = (threads + PTX_LANES - 1) / PTX_LANES;
    size_t shared = (size_t)kernel->dynamic_shared_offset + launch->dynamic_shared_bytes;
    size_t local = kernel->local_bytes;
    memset(memory, 0, sizeof *memory);
    memory->warps_per_block = warps;
    memory->register_stride = (kernel->frame_bytes + MU_SLOT_ALIGNMENT - 1) & ~(size_t)(MU_SLOT_ALIGNMENT - 1);
    memory->shared_stride = (shared + 255) & ~(size_t)255;
    memory->unit.block_count = block_count;
    memory->blocks = mu_alloc_zeroed(block_count, sizeof *memory->blocks);
    memory->warps = mu_alloc_zeroed((size_t)block_count * warps, sizeof *memory->warps);
    memory->registers = mu_alloc_aligned(MU_SLOT_ALIGNMENT, (size_t)block_count * warps * memory->register_stride);
    memory->shared = mu_alloc_aligned(MU_SLOT_ALIGNMENT, block_count * memory->shared_stride + MU_SLOT_ALIGNMENT);
    if (!memory->blocks || !memory->warps || !memory->registers || !memory->shared) return false;
    memory->unit.blocks = memory->blocks;
    for (uint32_t b = 0; b < block_count; b++) {
        ptx_block *block = &memory->blocks[b];
        block->unit = &memory->unit;
        block->shared = memory->shared + b * memory->shared_stride;
        block->shared_bytes = (uint32_t)shared;
        block->warps = memory->warps + (size_t)b * warps;
        block->warp_count = warps;
        block->threads = threads;
        for (uint32_t w = 0; w < warps; w++) {
            ptx_warp *warp = &block->warps[w];
            warp->index = w;
            number_threads(warp, launch->block, threads);
            warp->registers = memory->registers + ((size_t)b * warps + w) * memory->register_stride;
            warp->register_bytes = memory->register_stride;
            if (local && !(warp->local = mu_alloc_zeroed(PTX_LANES, local))) return false;
            warp->local_stride = local;
        }
    }
    return true;
}

/* Makes the block ready to run as block `linear` of the grid. */
static void start_block(const ptx_grid *grid, ptx_block *block, uint64_t linear, const uint32_t id[3]) {
    memcpy(block->id, id, sizeof block->id);
    memset(block->barriers, 0, sizeof block->barriers);
    memset(block->shared, UNDEFINED_SHARED, block->shared_bytes);
    block->exited = block->cluster_arrived = block->cluster_phase = 0;
    block->finished = false;
    block->random = (uint32_t)((grid->launch->seed + 1) * 0x9e3779b97f4a7c15u >> 32) ^ (uint32_t)(linear * 0x85ebca6bu);
    if (!block->random) block->random = 1;
    for (uint32_t n = 0; n < block->warp_count; n++) {
        ptx_warp *w = &block->warps[n];
        w->alive = w->lanes;
        w->steps = 0;
        w->cluster_arrived = 0;
        w->group_count = 1;
        w->groups[0] = (ptx_group){.pc = grid->kernel->start, .mask = w->lanes};
        memset(w->registers, 0, w->register_bytes);
    }
}

ptx_block *sim_ptx_cluster_blocks(ptx_context *x, ptx_block *block, uint32_t *count) {
    const uint32_t *cluster = x->grid->cluster;
    *count = cluster[0] * cluster[1] * cluster[2];
    return block - block->cluster_rank;
}

ptx_block *sim_ptx_cluster_block(ptx_context *x, uint64_t rank) {
    uint32_t count;
    ptx_block *blocks = sim_ptx_cluster_blocks(x, x->block, &count);
    return rank < count ? &blocks[rank] : NULL;
}

/* ---------------------------------------------------------------------------------------------------- scheduling -- */

static bool take_fault(ptx_context *x) {
    ptx_grid *grid = x->grid;
    if (!atomic_flag_test_and_set_explicit(&grid->fault_taken, memory_order_relaxed)) grid->fault = x->fault;
    atomic_store_explicit(&grid->stop, true, memory_order_relaxed);
    return false;
}

static bool timeout(ptx_context *x, const ptx_block *block, const char *why) {
    x->fault.code = CUDA_ERROR_LAUNCH_TIMEOUT;
    snprintf(x->fault.message, sizeof x->fault.message, "kernel %s, block (%u,%u,%u): %s", x->kernel->name,
             block->id[0], block->id[1], block->id[2], why);
    return take_fault(x);
}

/* After each slice: counts, and looks whether the launch must end. False: it must. */
static bool check_limits(ptx_context *x, const ptx_block *block) {
    ptx_grid *grid = x->grid;
    const sim_launch *launch = x->launch;
    x->cycles += (uint64_t)(x->slice_start - x->budget);
    uint64_t total = atomic_fetch_add_explicit(&grid->executed, x->executed, memory_order_relaxed) + x->executed;
    x->executed = 0;
    if (atomic_load_explicit(&grid->stop, memory_order_relaxed)) return false;
    if (launch->max_instructions && total > launch->max_instructions) {
        char why[160];
        snprintf(why, sizeof why,
                 "stopped after %llu thread instructions; the limit is %llu, raise it when the kernel is that long",
                 (unsigned long long)total, (unsigned long long)launch->max_instructions);
        return timeout(x, block, why);
    }
    if (launch->cancel && __atomic_load_n(launch->cancel, __ATOMIC_RELAXED)) return timeout(x, block, "cancelled");
    return true;
}

/* One slice of every warp of the block. *progress becomes true when any of them ran. */
static bool run_block(ptx_context *x, ptx_block *block, bool *progress) {
    uint32_t first = x->launch->seed ? next_random(&block->random) % block->warp_count : 0;
    for (uint32_t n = 0; n < block->warp_count; n++) {
        uint32_t index = first + n < block->warp_count ? first + n : first + n - block->warp_count;
        ptx_warp *w = &block->warps[index];
        if (!w->alive) continue;
        ptx_slice slice = sim_ptx_run_warp(x, block, w, SLICE_LOW + next_random(&block->random) % SLICE_RANDOM);
        if (slice == PTX_SLICE_BLOCKED) continue;
        *progress = true;
        if (slice == PTX_SLICE_FAULT) {
            check_limits(x, block);
            return take_fault(x);
        }
        if (!check_limits(x, block)) return false;
    }
    block->finished = block->exited == block->threads;
    return true;
}

/* Where the first blocked thread of the unit waits. */
static bool deadlock(ptx_context *x, const ptx_unit *unit) {
    uint32_t waiting = 0;
    const ptx_block *where = &unit->blocks[0];
    const ptx_warp *warp = NULL;
    const ptx_group *first = NULL;
    for (uint32_t b = 0; b < unit->block_count; b++) {
        waiting += unit->blocks[b].threads - unit->blocks[b].exited;
        for (uint32_t w = 0; w < unit->blocks[b].warp_count && !first; w++) {
            if (!unit->blocks[b].warps[w].group_count) continue;
            where = &unit->blocks[b];
            warp = &where->warps[w];
            first = &warp->groups[0];
        }
    }
    if (!first) return timeout(x, where, "no thread can run");
    x->block = (ptx_block *)(uintptr_t)where;
    x->warp = (ptx_warp *)(uintptr_t)warp;
    sim_ptx_fault(x, &x->module->code[first->pc], (unsigned)__builtin_ctz(first->mask), CUDA_ERROR_LAUNCH_TIMEOUT,
                  "deadlock: this and %u other threads wait for threads that never come", waiting - 1);
    return take_fault(x);
}

static bool run_unit(ptx_context *x, ptx_unit *unit) {
    for (;;) {
        bool progress = false, unfinished = false;
        for (uint32_t b = 0; b < unit->block_count; b++) {
            ptx_block *block = &unit->blocks[b];
            if (block->finished) continue;
            if (!run_block(x, block, &progress)) return false;
            unfinished = unfinished || !block->finished;
        }
        if (!unfinished) return true;
        if (!progress) return deadlock(x, unit);
    }
}

/* ------------------------------------------------------------------------------------------------------- workers -- */

typedef struct worker {
    pthread_t thread;
    ptx_grid *grid;
    uint64_t first_cluster, cluster_count; /* of a cooperative grid: the clusters that are this worker's */
    CUresult code;
} worker;

static void prepare_context(ptx_context *x, ptx_grid *grid) {
    memset(x, 0, sizeof *x);
    x->grid = grid;
    x->launch = grid->launch;
    x->module = grid->module;
    x->kernel = grid->kernel;
    x->instance_addresses = grid->launch->instance ? grid->launch->instance->addresses : NULL;
    x->base[1] = grid->module->pool;
}

/* Starts the blocks of cluster number `n` in the unit's blocks from `first` on. */
static void start_cluster(const ptx_grid *grid, ptx_block *first, uint64_t n) {
    const uint32_t *size = grid->launch->grid, *cluster = grid->cluster;
    uint32_t across = size[0] / cluster[0], down = size[1] / cluster[1];
    uint32_t origin[3] = {(uint32_t)(n % across) * cluster[0], (uint32_t)(n / across % down) * cluster[1],
                          (uint32_t)(n / across / down) * cluster[2]};
    uint32_t rank = 0;
    for (uint32_t z = 0; z < cluster[2]; z++)
        for (uint32_t y = 0; y < cluster[1]; y++)
            for (uint32_t c = 0; c < cluster[0]; c++, rank++) {
                uint32_t id[3] = {origin[0] + c, origin[1] + y, origin[2] + z};
                first[rank].cluster_rank = rank;
                start_block(grid, &first[rank], n * grid->cluster_blocks + rank, id);
            }
}

static CUresult run_independent(ptx_context *x, ptx_grid *grid) {
    unit_memory memory;
    CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
    if (make_unit(grid, grid->cluster_blocks, &memory)) {
        code = CUDA_SUCCESS;
        while (!atomic_load_explicit(&grid->stop, memory_order_relaxed)) {
            uint64_t n = atomic_fetch_add_explicit(&grid->next_cluster, 1, memory_order_relaxed);
            if (n >= grid->clusters) break;
            start_cluster(grid, memory.blocks,
                          (uint64_t)(((unsigned __int128)n * grid->step + grid->shift) % grid->clusters));
            if (!run_unit(x, &memory.unit)) break;
        }
    }
    free_unit(&memory);
    return code;
}

static CUresult run_cooperative(ptx_context *x, ptx_grid *grid, uint64_t first, uint64_t count) {
    unit_memory memory;
    CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
    if (make_unit(grid, (uint32_t)(count * grid->cluster_blocks), &memory)) {
        code = CUDA_SUCCESS;
        for (uint64_t n = 0; n < count; n++)
            start_cluster(grid, memory.blocks + n * grid->cluster_blocks,
                          (uint64_t)(((unsigned __int128)(first + n) * grid->step + grid->shift) % grid->clusters));
        run_unit(x, &memory.unit);
    }
    free_unit(&memory);
    return code;
}

static void *work(void *argument) {
    worker *self = argument;
    ptx_context *x = mu_alloc(sizeof *x);
    if (!x) {
        self->code = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        prepare_context(x, self->grid);
        self->code = self->grid->launch->cooperative
                         ? run_cooperative(x, self->grid, self->first_cluster, self->cluster_count)
                         : run_independent(x, self->grid);
    }
    mu_free(x);
    if (self->code != CUDA_SUCCESS) atomic_store_explicit(&self->grid->stop, true, memory_order_relaxed);
    return NULL;
}

/* Runs the grid's share of each worker: the caller is one, the others are threads of their own. */
static CUresult run_workers(ptx_grid *grid, uint32_t count) {
    worker *workers = mu_alloc_zeroed(count, sizeof *workers);
    if (!workers) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t each = grid->clusters / count, more = grid->clusters % count, next = 0;
    uint32_t started = 0;
    CUresult code = CUDA_SUCCESS;
    for (uint32_t n = 0; n < count; n++) {
        workers[n].grid = grid;
        workers[n].first_cluster = next;
        workers[n].cluster_count = each + (n < more);
        next += workers[n].cluster_count;
    }
    for (uint32_t n = 1; n < count; n++, started++)
        if (pthread_create(&workers[n].thread, NULL, work, &workers[n])) break;
    if (started + 1 < count && grid->launch->cooperative) {
        /* Blocks without a thread would leave the others waiting for ever. */
        atomic_store_explicit(&grid->stop, true, memory_order_relaxed);
        code = CUDA_ERROR_OUT_OF_MEMORY;
    }
    work(&workers[0]);
    for (uint32_t n = 1; n <= started; n++) pthread_join(workers[n].thread, NULL);
    for (uint32_t n = 0; n <= started; n++)
        if (workers[n].code != CUDA_SUCCESS) code = workers[n].code;
    mu_free(workers);
    return code;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A seed permutes the order in which blocks start; seed 0 keeps it. */
static void choose_order(ptx_grid *grid) {
    grid->step = 1;
    grid->shift = 0;
    uint64_t seed = grid->launch->seed;
    if (!seed || grid->clusters < 2) return;
    seed *= 0x9e3779b97f4a7c15u;
    grid->step = (seed >> 20) % grid->clusters | 1;
    while (common_divisor(grid->step, grid->clusters) != 1) grid->step++;
    grid->shift = (seed ^ seed >> 32) % grid->clusters;
}

static CUresult check_geometry(const sim_launch *launch, ptx_grid *grid) {
    uint64_t threads = 1, blocks = 1;
    grid->cluster_blocks = 1;
    for (unsigned d = 0; d < 3; d++) {
        if (!launch->grid[d] || !launch->block[d] || launch->block[d] > PTX_MAX_THREADS)
            return CUDA_ERROR_INVALID_VALUE;
        grid->cluster[d] = launch->cluster[d] ? launch->cluster[d] : 1;
        if (launch->grid[d] % grid->cluster[d]) return CUDA_ERROR_INVALID_VALUE;
        threads *= launch->block[d];
        if (__builtin_mul_overflow(blocks, launch->grid[d], &blocks)) return CUDA_ERROR_INVALID_VALUE;
        if (grid->cluster[d] > 64) return CUDA_ERROR_INVALID_VALUE;
        grid->cluster_blocks *= grid->cluster[d];
    }
    if (threads > PTX_MAX_THREADS || grid->cluster_blocks > 64) return CUDA_ERROR_INVALID_VALUE;
    if (launch->cooperative && blocks > 1 << 20) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    if ((uint64_t)grid->kernel->dynamic_shared_offset + launch->dynamic_shared_bytes > PTX_MAX_SHARED_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    grid->clusters = blocks / grid->cluster_blocks;
    return CUDA_SUCCESS;
}

CUresult sim_launch_run(const sim_launch *launch, sim_fault *fault, uint64_t *instructions) {
    ptx_grid grid = {.launch = launch,
                     .module = launch->function->module,
                     .kernel = launch->function,
                     .fault_taken = ATOMIC_FLAG_INIT};
    CUresult code = check_geometry(launch, &grid);
    if (code == CUDA_SUCCESS) {
        grid.id = atomic_fetch_add_explicit(&next_grid_id, 1, memory_order_relaxed);
        choose_order(&grid);
        uint32_t workers = launch->workers ? launch->workers : 1;
        if (workers > MAX_WORKERS) workers = MAX_WORKERS;
        if (workers > grid.clusters) workers = (uint32_t)grid.clusters;
        code = run_workers(&grid, workers);
        if (instructions) *instructions += atomic_load_explicit(&grid.executed, memory_order_relaxed);
        if (code == CUDA_SUCCESS) code = grid.fault.code;
    }
    if (fault && code != CUDA_SUCCESS) {
        *fault = grid.fault;
        fault->code = code;
        if (!fault->message[0])
            snprintf(fault->message, sizeof fault->message, "kernel %s: %s", launch->function->name,
                     code == CUDA_ERROR_OUT_OF_MEMORY
                         ? "out of host memory"
                         : "the grid, block, cluster or shared memory size is not possible");
    }
    return code;
}
