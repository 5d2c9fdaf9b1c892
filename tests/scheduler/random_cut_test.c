/* Random sharded dispatches on random machines: every byte must be what one processor gets.
 *
 *     random_cut_test [--seed S] [--rounds N] [--devices D] [--actors A] [--driver sim|cuda] [--seconds T] [--verbose]
 *
 * random_graph_test draws graphs of everything; this one draws what can be cut, and how: all roles of arguments (blocks, halos, both in columns too, reductions of
 * every operation and type, replicated, scratch, shard offset and count), each axis of grids of one to three dimensions,
 * iterations, a given number of shards; on 1 to 8 devices (actors) of differing speed, with budgets down to one slice of the largest
 * dispatch, so that most run in waves. Graphs are submitted several times, alone and as parts of an open run; some runs are cancelled or
 * have a deadline that passes, after which what they write is written anew by the host. Buffers come with pageable, pinned or
 * registered host memory, or none. Devices change their speed in between.
 *
 * By default N is 200, or 30 under a sanitizer. Round number n of a call has seed S + n, from which everything follows but timing;
 * `--seed S --rounds 1` repeats one. With --driver cuda the test is skipped, visibly, where there is no driver or no device. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// cmocka.h needs those four first
#include <cmocka.h>

#include "base/clock.h"
#include "base/sanitizer.h"
#include "base/tuning.h"
#include "device/sim/sim.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/random_options.h"
#include "tests/scheduler/scenario.h"

extern const char test_cut_kernels_ptx[], test_pitch_kernels_ptx[];

enum {
    RAW = 5,
    BUFFERS = RAW + 2,
    F32 = RAW,
    F64,
    GRAPHS = 3,
    MOST_JOBS = 8,
    MOST_RUNS = 8,
    MOST_SLICES = 48,
    MOST_BYTES = 16384
};

static random_options option = {.seed = 1, .count = MU_TSAN || MU_ASAN ? 30 : 200, .driver = "sim"};

typedef enum family { MIX, TWIDDLE, PAIR, BYTES, SUM, REDUCE, NEIGHBOURS, COLUMNS, FAMILIES } family;
static const char *const family_names[FAMILIES] = {"mix", "twiddle", "pair",       "bytes",
                                                   "sum", "reduce",  "neighbours", "mix_columns"};

typedef struct range {
    uint32_t buffer, offset, bytes;
    muster_access access;
    muster_cut cut;
    uint32_t slice_bytes, before, after;
} range;

typedef struct job {
    family family;
    muster_type type;
    muster_reduction reduction;
    uint32_t range_count;
    range range[3]; /* in the order of the kernel's parameters */
    uint32_t count, slices, slice_elements, extent, scalar, iterations, max_shards, axis;
    uint32_t grid[3], block[3];
    uint32_t rows, pitch, before, after, keep; /* of COLUMNS, in words */
    uint32_t scratch_bytes;                    /* of PAIR: in place of range 0 */
} job;

typedef struct plan {
    uint64_t seed, state;
    uint32_t devices;
    uint32_t bytes[BUFFERS];
    uint32_t host[BUFFERS]; /* 0: none, 1: pageable, 2: pinned, 3: registered */
    uint32_t jobs[GRAPHS];
    job job[GRAPHS][MOST_JOBS];
} plan;

static uint32_t below(plan *p, uint32_t bound) { return sc_below(&p->state, bound); }
static bool chance(plan *p, uint32_t percent) { return below(p, 100) < percent; }
static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

static uint32_t width_of(muster_type type) {
    return type == MUSTER_I32 || type == MUSTER_U32 || type == MUSTER_F32 ? 4 : 8;
}

/* The buffer that numbers of a type lie in. */
static uint32_t buffer_of(plan *p, muster_type type) {
    return type == MUSTER_F32 ? F32 : type == MUSTER_F64 ? F64 : below(p, RAW);
}

/* ------------------------------------------------------------------------------------------------------- generation -- */

/* Somewhere in the buffer, aligned to an element; each range of a job has a buffer of its own. */
static bool place(plan *p, job *job, uint32_t buffer, uint32_t bytes, uint32_t width, muster_access access,
                  muster_cut cut, uint32_t slice_bytes) {
    for (uint32_t r = 0; r < job->range_count; r++)
        if (job->range[r].buffer == buffer && job->range[r].bytes) return false;
    if (bytes == 0 || bytes > p->bytes[buffer]) return false;
    uint32_t slack = (p->bytes[buffer] - bytes) / width, at = chance(p, 40)   ? 0
                                                              : chance(p, 30) ? slack
                                                                              : below(p, slack + 1);
    job->range[job->range_count++] = (range){buffer, at * width, bytes, access, cut, slice_bytes, 0, 0};
    return true;
}

/* One to three dimensions, cut along any; the axes below it make a slice wider, so that slices are contiguous. */
static void draw_grid(plan *p, job *job, uint32_t most_elements) {
    static const uint32_t blocks[][3] = {{32, 1, 1}, {7, 3, 1}, {4, 2, 2}, {1, 1, 1}, {16, 1, 1}, {64, 1, 1}};
    memcpy(job->block, blocks[below(p, 6)], sizeof job->block);
    job->axis = job->family == REDUCE ? 0 : below(p, 3);
    if (job->family == REDUCE) job->block[0] *= job->block[1] * job->block[2], job->block[1] = job->block[2] = 1;
    job->slice_elements = job->block[0] * job->block[1] * job->block[2];
    for (uint32_t a = 0; a < 3; a++) job->grid[a] = a < job->axis ? 1 + below(p, 3) : 1;
    for (uint32_t a = 0; a < job->axis; a++) job->slice_elements *= job->grid[a];
    job->slices = 1 + below(p, chance(p, 20) ? 3 : MOST_SLICES);
    job->slices = smaller(job->slices, (most_elements + job->slice_elements - 1) / job->slice_elements);
    job->grid[job->axis] = job->slices;
    job->count = job->slices * job->slice_elements;
    if (chance(p, 50)) job->count -= below(p, job->slice_elements); /* the last slice is short */
    job->count = smaller(job->count, most_elements);
}

static bool draw_reduction(plan *p, job *job) {
    job->type = (muster_type)(MUSTER_I32 + below(p, 6));
    bool number = job->type == MUSTER_F32 || job->type == MUSTER_F64;
    if (job->family == REDUCE) job->reduction = (muster_reduction)(MUSTER_REDUCE_MIN + below(p, number ? 2 : 4));
    uint32_t width = width_of(job->type), acc = buffer_of(p, job->type), in = job->family == SUM ? below(p, RAW) : acc;
    uint32_t in_width = job->family == SUM ? 4 : width;
    if (in == acc && number) in = acc; /* numbers are only here: two ranges of one buffer */
    while (job->family == REDUCE && !number && in == acc) in = below(p, RAW);
    draw_grid(p, job, smaller(p->bytes[in] / in_width, 1500));
    /* Floating-point minima have no atomics: a bin for each. */
    bool alone = job->family == REDUCE && number;
    job->extent = alone ? job->count : 1 + below(p, smaller(p->bytes[acc] / width, 60));
    if (alone && in == acc) { /* the lower half reduces, the upper half is read */
        uint32_t half = p->bytes[acc] / 2 / width;
        if (job->count > half) job->count = half;
        job->slices = job->grid[0] = (job->count + job->slice_elements - 1) / job->slice_elements;
        job->extent = job->count;
        if (!job->count) return false;
        job->range[0] = (range){acc, 0, job->extent * width, MUSTER_READ_WRITE, MUSTER_CUT_REDUCE, 0, 0, 0};
        job->range[1] = (range){
            acc, half * width, job->count * width, MUSTER_READ, MUSTER_CUT_BLOCK, job->slice_elements * width, 0, 0};
        job->range_count = 2;
        return true;
    }
    return place(p, job, acc, job->extent * width, width, MUSTER_READ_WRITE, MUSTER_CUT_REDUCE, 0) &&
           place(p, job, in, job->count * in_width, in_width, MUSTER_READ, MUSTER_CUT_BLOCK,
                 job->slice_elements * in_width);
}

static bool draw_stencil(plan *p, job *job) {
    uint32_t out = below(p, RAW), in = below(p, RAW), width = 1 + below(p, 40);
    uint32_t rows = smaller(smaller(p->bytes[out], p->bytes[in]) / 4 / width, MOST_SLICES);
    if (rows == 0) return false;
    job->count = job->slices = 1 + below(p, rows);
    job->extent = width;
    job->slice_elements = 1;
    job->axis = below(p, 3);
    for (uint32_t a = 0; a < 3; a++) job->grid[a] = a == job->axis ? job->slices : 1;
    job->block[0] = 1 + below(p, 32), job->block[1] = job->block[2] = 1;
    if (!place(p, job, out, 4 * width * job->slices, 4, MUSTER_WRITE, MUSTER_CUT_BLOCK, 4 * width) ||
        !place(p, job, in, 4 * width * job->slices, 4, MUSTER_READ, MUSTER_CUT_HALO, 4 * width))
        return false;
    job->range[1].before = below(p, chance(p, 20) ? 60 : 4);
    job->range[1].after = below(p, chance(p, 20) ? 60 : 4);
    return true;
}

/* A matrix whose columns are cut: a thread walks down each. */
static bool draw_columns(plan *p, job *job) {
    uint32_t out = below(p, RAW), in = below(p, RAW), words = smaller(p->bytes[out], p->bytes[in]) / 4;
    job->rows = 1 + below(p, smaller(words, 7));
    job->pitch = words / job->rows;
    if (job->pitch > 300) job->pitch = 1 + below(p, 300);
    draw_grid(p, job, 1 + below(p, job->pitch));
    job->block[0] *= job->block[1] * job->block[2], job->block[1] = job->block[2] = 1;
    for (uint32_t a = 0; a < 3; a++) job->grid[a] = 1;
    job->slice_elements = job->block[0];
    job->slices = job->grid[job->axis] = (job->count + job->slice_elements - 1) / job->slice_elements;
    job->keep = below(p, 2);
    uint32_t bytes = 4 * ((job->rows - 1) * job->pitch + job->count), slice = 4 * job->slice_elements;
    if (!place(p, job, out, bytes, 4, job->keep ? MUSTER_READ_WRITE : MUSTER_WRITE, MUSTER_CUT_BLOCK, slice) ||
        !place(p, job, in, bytes, 4, MUSTER_READ, MUSTER_CUT_HALO, slice))
        return false;
    job->range[1].before = below(p, chance(p, 20) ? 30 : 3);
    job->range[1].after = below(p, chance(p, 20) ? 30 : 3);
    job->before = below(p, job->range[1].before * job->slice_elements + 1);
    job->after = below(p, job->range[1].after * job->slice_elements + 1);
    return true;
}

static bool draw_map(plan *p, job *job) {
    uint32_t width = job->family == BYTES ? 1 : 4, first = below(p, RAW), second = below(p, RAW), third = below(p, RAW);
    uint32_t room = smaller(p->bytes[first], p->bytes[second]) / width;
    if (job->family == PAIR) room = smaller(room, p->bytes[third] / width);
    if (room == 0) return false;
    draw_grid(p, job, smaller(room, 1500));
    uint32_t bytes = job->count * width, slice = job->slice_elements * width;
    job->extent = 1 + below(p, p->bytes[third] / 4);
    switch (job->family) {
        case MIX:
            return place(p, job, first, bytes, 4, MUSTER_WRITE, MUSTER_CUT_BLOCK, slice) &&
                   place(p, job, second, bytes, 4, MUSTER_READ, MUSTER_CUT_BLOCK, slice) &&
                   place(p, job, third, 4 * job->extent, 4, MUSTER_READ, MUSTER_CUT_REPLICATE, 0);
        case TWIDDLE:
            return place(p, job, first, bytes, 4, MUSTER_READ_WRITE, MUSTER_CUT_BLOCK, slice) &&
                   place(p, job, third, 4 * job->extent, 4, MUSTER_READ, MUSTER_CUT_REPLICATE, 0);
        case PAIR:
            if (chance(p, 40)) { /* each shard has scratch memory for the whole */
                job->scratch_bytes = bytes;
                job->range_count = 1;
            } else if (!place(p, job, first, bytes, 4, MUSTER_WRITE, MUSTER_CUT_BLOCK, slice)) {
                return false;
            }
            return place(p, job, second, bytes, 4, MUSTER_READ_WRITE, MUSTER_CUT_BLOCK, slice) &&
                   place(p, job, third, bytes, 4, MUSTER_READ, MUSTER_CUT_BLOCK, slice);
        default:
            return place(p, job, first, bytes, 1, MUSTER_WRITE, MUSTER_CUT_BLOCK, slice) &&
                   place(p, job, second, bytes, 1, MUSTER_READ, MUSTER_CUT_BLOCK, slice);
    }
}

static void draw_job(plan *p, job *job) {
    for (;;) {
        memset(job, 0, sizeof *job);
        job->family = (family)below(p, FAMILIES);
        job->scalar = (uint32_t)sc_random(&p->state);
        bool made = job->family == NEIGHBOURS                     ? draw_stencil(p, job)
                    : job->family == COLUMNS                      ? draw_columns(p, job)
                    : job->family == SUM || job->family == REDUCE ? draw_reduction(p, job)
                                                                  : draw_map(p, job);
        if (made) break;
    }
    job->iterations = chance(p, 20) ? 1 + below(p, 3) : 0;
    job->max_shards = chance(p, 30) ? 1 + below(p, 2 * p->devices + 3) : 0;
}

static void draw(plan *p, uint64_t seed, uint32_t devices) {
    uint64_t mixed = seed;
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->state = sc_random(&mixed);
    p->devices = devices;
    for (uint32_t b = 0; b < BUFFERS; b++) {
        p->bytes[b] = 8 * (16 + below(p, chance(p, 30) ? MOST_BYTES / 8 - 16 : 400));
        p->host[b] = below(p, 4);
    }
    for (uint32_t g = 0; g < GRAPHS; g++) {
        p->jobs[g] = 1 + below(p, MOST_JOBS);
        for (uint32_t j = 0; j < p->jobs[g]; j++) draw_job(p, &p->job[g][j]);
    }
}

static void print_job(const job *job) {
    static const char *const cuts[] = {"replicate", "block", "reduce", "halo"};
    print_message("    %s, %" PRIu32 " elements, grid %" PRIu32 ",%" PRIu32 ",%" PRIu32 " block %" PRIu32 ",%" PRIu32
                  ",%" PRIu32 " axis %" PRIu32 ", %" PRIu32 " iterations, at most %" PRIu32 ", extent %" PRIu32
                  ", type %d reduction %d, scratch %" PRIu32 ", %" PRIu32 " rows of pitch %" PRIu32 " (-%" PRIu32
                  " +%" PRIu32 ", keep %" PRIu32 "):",
                  family_names[job->family], job->count, job->grid[0], job->grid[1], job->grid[2], job->block[0],
                  job->block[1], job->block[2], job->axis, job->iterations, job->max_shards, job->extent,
                  (int)job->type, (int)job->reduction, job->scratch_bytes, job->rows, job->pitch, job->before,
                  job->after, job->keep);
    for (uint32_t r = 0; r < job->range_count; r++) {
        const range *range = &job->range[r];
        print_message(" b%" PRIu32 "[%" PRIu32 " +%" PRIu32 "] access %d %s/%" PRIu32 " (-%" PRIu32 " +%" PRIu32 ")",
                      range->buffer, range->offset, range->bytes, (int)range->access, cuts[range->cut],
                      range->slice_bytes, range->before, range->after);
    }
    print_message("\n");
}

/* ------------------------------------------------------------------------------------------------------------ model -- */

typedef union element {
    int32_t i32;
    uint32_t u32;
    int64_t i64;
    uint64_t u64;
    float f32;
    double f64;
} element;

#define LESS(member) (a.member < b.member)
static bool is_less(muster_type type, element a, element b) {
    switch (type) {
        case MUSTER_I32: return LESS(i32);
        case MUSTER_U32: return LESS(u32);
        case MUSTER_I64: return LESS(i64);
        case MUSTER_U64: return LESS(u64);
        case MUSTER_F32: return LESS(f32);
        case MUSTER_F64: return LESS(f64);
    }
    return false;
}

static void model_reduce(const job *job, uint8_t *acc, const uint8_t *in) {
    uint32_t width = width_of(job->type);
    for (uint32_t i = 0; i < job->count; i++) {
        element a = {.u64 = 0}, b = {.u64 = 0};
        memcpy(&a, acc + i % job->extent * width, width);
        memcpy(&b, in + i * width, width);
        if (job->reduction == MUSTER_REDUCE_AND)
            a.u64 &= b.u64;
        else if (job->reduction == MUSTER_REDUCE_OR)
            a.u64 |= b.u64;
        else if (job->reduction == MUSTER_REDUCE_MIN ? is_less(job->type, b, a) : is_less(job->type, a, b))
            a = b;
        memcpy(acc + i % job->extent * width, &a, width);
    }
}

static void model_neighbours(const job *job, uint8_t *out, const uint8_t *in) {
    int64_t rows = job->slices, width = job->extent;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t x = 0; x < width; x++) {
            uint32_t value = 0, word;
            for (int64_t y = row - job->range[1].before; y <= row + job->range[1].after; y++) {
                if (y < 0 || y >= rows) continue;
                memcpy(&word, in + 4 * (y * width + x), 4);
                value = value * 31 + word;
            }
            memcpy(out + 4 * (row * width + x), &value, 4);
        }
}

static void model_columns(const job *job, uint8_t *out, const uint8_t *in) {
    for (uint32_t row = 0; row < job->rows; row++)
        for (int64_t x = 0; x < job->count; x++) {
            uint64_t at = 4 * ((uint64_t)row * job->pitch + (uint64_t)x);
            uint32_t value = 0, word;
            if (job->keep) memcpy(&value, out + at, 4);
            for (int64_t k = x - job->before; k <= x + job->after; k++) {
                if (k < 0 || k >= job->count) continue;
                memcpy(&word, in + 4 * ((uint64_t)row * job->pitch + (uint64_t)k), 4);
                value = value * 31 + word;
            }
            value = value * 3 + (uint32_t)x + row * 7;
            memcpy(out + at, &value, 4);
        }
}

/* The model of the kernels that random_graph_test has too is that one's. */
static sc_job as_scenario_job(const job *job) {
    static const sc_op ops[FAMILIES] = {[MIX] = SC_MIX, [TWIDDLE] = SC_TWIDDLE, [PAIR] = SC_PAIR, [BYTES] = SC_BYTES};
    sc_job same = {.op = job->family == SUM ? (sc_op)(SC_SUM_I32 + (job->type - MUSTER_I32)) : ops[job->family],
                   .range_count = job->range_count,
                   .count = job->count,
                   .extent = job->extent,
                   .scalar = job->scalar,
                   .scratch_bytes = job->scratch_bytes};
    for (uint32_t r = 0; r < job->range_count; r++)
        same.range[r] =
            (sc_range){.buffer = job->range[r].buffer, .offset = job->range[r].offset, .bytes = job->range[r].bytes};
    return same;
}

static void model_job(const job *job, uint8_t *const memory[SC_MAX_BUFFERS]) {
    sc_job same = as_scenario_job(job);
    for (uint32_t i = 0; i < (job->iterations ? job->iterations : 1); i++) {
        uint8_t *first = memory[job->range[0].buffer] + job->range[0].offset;
        const uint8_t *second = memory[job->range[1].buffer] + job->range[1].offset;
        if (job->family == REDUCE)
            model_reduce(job, first, second);
        else if (job->family == NEIGHBOURS)
            model_neighbours(job, first, second);
        else if (job->family == COLUMNS)
            model_columns(job, first, second);
        else
            sc_model_job(&same, memory);
    }
}

/* ----------------------------------------------------------------------------------------------------------- memory -- */

static uint64_t bucket(uint64_t bytes) {
    uint64_t power = 1;
    while (power < bytes) power *= 2;
    return power;
}

/* Device memory that the largest part of the job needs at most: of a job that may be cut at will, one slice. What is not cut is there as a
 * whole buffer. */
static uint64_t needed_bytes(const plan *p, const job *job) {
    uint32_t shards = job->max_shards && job->max_shards < job->slices ? job->max_shards : job->slices;
    uint64_t slices = (job->slices + shards - 1) / shards, sum = job->scratch_bytes ? bucket(job->scratch_bytes) : 0;
    uint64_t combining = 0;
    for (uint32_t r = 0; r < job->range_count; r++) {
        const range *range = &job->range[r];
        if (!range->bytes) continue;
        uint64_t whole = bucket(p->bytes[range->buffer]),
                 part = (slices + range->before + range->after) * range->slice_bytes;
        if (job->rows > 1) part += 4 * (uint64_t)(job->rows - 1) * job->pitch; /* from the first row to the last */
        if (range->cut == MUSTER_CUT_REDUCE) combining += whole + bucket(range->bytes);
        if (range->cut == MUSTER_CUT_REDUCE || range->cut == MUSTER_CUT_REPLICATE || part >= range->bytes)
            sum += whole;
        else
            sum += bucket(part + 255);
    }
    return sum > combining ? sum : combining;
}

static uint64_t total_bytes(const plan *p) {
    uint64_t sum = 0;
    for (uint32_t b = 0; b < BUFFERS; b++) sum += bucket(p->bytes[b]);
    return sum;
}

/* ---------------------------------------------------------------------------------------------------------- machine -- */

typedef struct machine {
    uint32_t gpus;
    bool unlike;
    muster_config config;
    char spec[FIXTURE_SPEC_BYTES];
} machine;

static void draw_machine(uint64_t seed, machine *out) {
    static const char *const placements[] = {"locality", "least-loaded", "round-robin", "random"};
    static const char *const speeds[] = {"0.02", "0.05", "0.1", "0.4"};
    uint64_t mixed = seed ^ 0x5bd1e995, state = sc_random(&mixed);
    memset(out, 0, sizeof *out);
    out->config.struct_size = sizeof out->config;
    out->config.driver = option.driver;
    out->config.placement = placements[sc_below(&state, 4)];
    out->config.seed = seed;
    uint32_t actors = sc_below(&state, 5) ? 1 : 2 + sc_below(&state, 2), few = sc_below(&state, 5) < 2;
    uint32_t gpus = 1 + sc_below(&state, few ? 2 : actors > 1 ? 3 : 8); /* waves are where devices are few */
    out->config.actors_per_device = option.actors ? option.actors : actors;
    out->gpus = option.devices ? option.devices : gpus;
    out->config.flags = sc_below(&state, 10) == 0 ? MUSTER_RUNTIME_SERIAL : 0;
    if (sc_below(&state, 3) == 0) out->config.spin_ns = 1;
    out->unlike = sc_below(&state, 10) < 7;
    if (strcmp(option.driver, "sim") != 0) {
        out->config.device_count = option.devices;
        return;
    }
    int used = snprintf(out->spec, sizeof out->spec, "{\"seed\": %" PRIu64 ", \"peers\": \"%s\", \"devices\": [", seed,
                        sc_below(&state, 4) ? "all" : "none");
    for (uint32_t d = 0; d < out->gpus; d++)
        used +=
            snprintf(out->spec + used, sizeof out->spec - (size_t)used,
                     "%s{\"sms\": %d, \"launch_ns\": 1000, \"instructions_per_ns\": %s}", d ? ", " : "",
                     out->unlike && sc_below(&state, 4) == 0 ? 4 : 2, speeds[out->unlike ? sc_below(&state, 4) : 1]);
    snprintf(out->spec + used, sizeof out->spec - (size_t)used, "]}");
    out->config.sim = out->spec;
}

/* ------------------------------------------------------------------------------------------------------------ a round -- */

typedef struct round {
    plan *plan;
    const machine *machine;
    fixture fixture;
    muster_program *cuts, *pitches;
    muster_buffer *buffer[BUFFERS];
    void *host[BUFFERS];
    uint8_t *expected[SC_MAX_BUFFERS];
    muster_graph *graph[GRAPHS];
    struct {
        muster_run *run;
        uint32_t graph;
        muster_job first; /* in an open run */
        bool stopped;     /* it may have been cancelled, or be too late */
    } run[MOST_RUNS];
    uint32_t run_count;
    muster_run *open;
} round_;

static struct { uint64_t jobs, shards, cut_further, waves, evictions, stopped, open_parts, uneven; } counts;

static muster_kernel *find_kernel(const round_ *r, const job *job) {
    static const char *const operations[] = {"sum", "min", "max", "and", "or"};
    static const char *const types[] = {"", "i32", "u32", "i64", "u64", "f32", "f64"};
    char name[16];
    if (job->family != SUM && job->family != REDUCE) {
        muster_kernel *kernel;
        OK(muster_program_kernel(job->family == NEIGHBOURS ? r->cuts
                                 : job->family == COLUMNS  ? r->pitches
                                                           : r->fixture.program,
                                 family_names[job->family], &kernel, &reported));
        return kernel;
    }
    const char *of = job->reduction < MUSTER_REDUCE_AND ? types[job->type] : width_of(job->type) == 4 ? "32" : "64";
    snprintf(name, sizeof name, "%s_%s", operations[job->reduction], of);
    muster_kernel *kernel;
    OK(muster_program_kernel(job->family == SUM ? r->fixture.program : r->cuts, name, &kernel, &reported));
    return kernel;
}

static muster_arg argument(const round_ *r, const job *job, const range *range) {
    muster_arg arg = muster_range_arg(r->buffer[range->buffer], range->access, range->offset, range->bytes);
    switch (range->cut) {
        case MUSTER_CUT_REPLICATE: return arg;
        case MUSTER_CUT_BLOCK: arg = muster_block_cut(arg, range->slice_bytes); break;
        case MUSTER_CUT_HALO: arg = muster_halo_cut(arg, range->slice_bytes, range->before, range->after); break;
        case MUSTER_CUT_REDUCE: break;
    }
    if (job->family == COLUMNS) return muster_pitch_cut(arg, range->slice_bytes, 4 * (uint64_t)job->pitch, job->rows);
    if (range->cut != MUSTER_CUT_REDUCE) return arg;
    muster_arg reduced = muster_reduce_arg(r->buffer[range->buffer], job->type, job->reduction);
    reduced.offset_bytes = arg.offset_bytes;
    reduced.bytes = arg.bytes;
    return reduced;
}

/* In the order of the parameters in kernels.cu and cut_kernels.cu. */
static uint32_t arguments(const round_ *r, const job *job, muster_arg arg[10]) {
    uint32_t n = 0, wide = job->family == PAIR || job->family == BYTES ? 4 : 8;
    arg[n++] = job->scratch_bytes ? muster_scratch_arg(job->scratch_bytes) : argument(r, job, &job->range[0]);
    if (job->family == SUM || job->family == REDUCE) arg[n++] = muster_u32_arg(job->extent);
    for (uint32_t i = 1; i < job->range_count; i++) arg[n++] = argument(r, job, &job->range[i]);
    if (job->family == NEIGHBOURS) {
        arg[n++] = muster_u32_arg(job->extent);
        arg[n++] = muster_u32_arg(job->range[1].before);
        arg[n++] = muster_u32_arg(job->range[1].after);
        arg[n++] = muster_shard_offset_arg(1, job->slices, 8);
        arg[n++] = muster_u64_arg(job->slices);
        return n;
    }
    if (job->family == COLUMNS) {
        arg[n++] = muster_u64_arg(job->pitch);
        arg[n++] = muster_u32_arg(job->rows);
        arg[n++] = muster_u32_arg(job->before);
        arg[n++] = muster_u32_arg(job->after);
        arg[n++] = muster_u32_arg(job->keep);
        arg[n++] = muster_shard_offset_arg(job->slice_elements, job->count, 8);
        arg[n++] = muster_shard_count_arg(job->slice_elements, job->count, 8);
        arg[n++] = muster_u64_arg(job->count);
        return n;
    }
    if (job->family == MIX || job->family == TWIDDLE) arg[n++] = muster_u32_arg(job->extent);
    if (job->family != REDUCE) arg[n++] = muster_u32_arg(job->scalar);
    arg[n++] = muster_shard_offset_arg(job->slice_elements, job->count, wide);
    arg[n++] = muster_shard_count_arg(job->slice_elements, job->count, wide);
    return n;
}

static void build(round_ *r, uint32_t g) {
    r->graph[g] = fixture_graph(&r->fixture);
    for (uint32_t j = 0; j < r->plan->jobs[g]; j++) {
        const job *job = &r->plan->job[g][j];
        muster_arg arg[10];
        muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                    .kernel = find_kernel(r, job),
                                    .grid = {job->grid[0], job->grid[1], job->grid[2]},
                                    .block = {job->block[0], job->block[1], job->block[2]},
                                    .flags = MUSTER_DISPATCH_SHARDED | (job->iterations ? MUSTER_DISPATCH_ITERATED : 0),
                                    .shard_axis = job->axis,
                                    .max_shards = job->max_shards,
                                    .iterations = job->iterations,
                                    .arg_count = arguments(r, job, arg),
                                    .args = arg};
        assert_int_equal(fixture_add(r->graph[g], &dispatch), j);
    }
}

/* New content, in the model at once. Numbers are small and whole. */
static void draw_content(round_ *r, uint32_t b, void *to) {
    sc_buffer buffer = {.kind = b == F32   ? SC_F32
                                : b == F64 ? SC_F64
                                           : SC_RAW,
                        .bytes = r->plan->bytes[b],
                        .host = true,
                        .seed = sc_random(&r->plan->state)};
    sc_first_content(&buffer, r->expected[b]);
    memcpy(to, r->expected[b], buffer.bytes);
}

static void make_buffers(round_ *r) {
    for (uint32_t b = 0; b < BUFFERS; b++) {
        uint64_t bytes = r->plan->bytes[b];
        r->expected[b] = calloc(1, bytes);
        assert_non_null(r->expected[b]);
        if (r->plan->host[b] == 2) OK(muster_host_alloc(r->fixture.runtime, bytes, &r->host[b], &reported));
        if (r->plan->host[b] == 1 || r->plan->host[b] == 3)
            assert_int_equal(posix_memalign(&r->host[b], 4096, bytes), 0);
        if (r->plan->host[b] == 3) OK(muster_host_register(r->fixture.runtime, r->host[b], bytes, &reported));
        if (r->host[b]) draw_content(r, b, r->host[b]);
        r->buffer[b] = fixture_buffer(&r->fixture, bytes, r->host[b]);
    }
}

static void free_buffers(round_ *r) {
    for (uint32_t b = 0; b < BUFFERS; b++) {
        muster_buffer_destroy(r->buffer[b]);
        if (r->plan->host[b] == 2) OK(muster_host_free(r->fixture.runtime, r->host[b], &reported));
        if (r->plan->host[b] == 3) OK(muster_host_unregister(r->fixture.runtime, r->host[b], &reported));
        if (r->plan->host[b] == 1 || r->plan->host[b] == 3) free(r->host[b]);
        free(r->expected[b]);
    }
}

static void wait_for(round_ *r, uint32_t i) {
    muster_status status = muster_run_wait(r->run[i].run, fixture_wait_ns, &reported);
    if (status && !(r->run[i].stopped && (status == MUSTER_CANCELLED || status == MUSTER_DEADLINE_PASSED)))
        fail_msg("job %" PRIu32 " of the run of graph %" PRIu32 " is %s: %s", reported.job, r->run[i].graph,
                 muster_status_name(status), reported.message);
}

/* Submits a graph that is stopped at once or soon; then the host writes whatever it may have written. */
static void stop_one(round_ *r, uint32_t i) {
    uint32_t g = r->run[i].graph;
    r->run[i].run = fixture_submit(&r->fixture, r->graph[g]);
    r->run[i].stopped = true;
    counts.stopped++;
    if (chance(r->plan, 50))
        OK(muster_run_cancel(r->run[i].run, &reported));
    else
        OK(muster_run_set_deadline(r->run[i].run, below(r->plan, 300000), &reported));
    wait_for(r, i);
    bool written[BUFFERS] = {false};
    for (uint32_t j = 0; j < r->plan->jobs[g]; j++)
        for (uint32_t n = 0; n < r->plan->job[g][j].range_count; n++) {
            const range *range = &r->plan->job[g][j].range[n];
            if (range->bytes && range->access & MUSTER_WRITE) written[range->buffer] = true;
        }
    for (uint32_t b = 0; b < BUFFERS; b++) {
        void *pointer;
        if (!written[b]) continue;
        OK(muster_buffer_acquire(r->buffer[b], 0, 0, MUSTER_WRITE, fixture_wait_ns, &pointer, &reported));
        draw_content(r, b, pointer);
        OK(muster_buffer_release(r->buffer[b], pointer, &reported));
    }
}

static void start_one(round_ *r) {
    plan *p = r->plan;
    uint32_t i = r->run_count++, kind = below(p, 10), g = below(p, GRAPHS);
    if (!r->graph[g] || chance(p, 20)) { /* built anew, by what is known now */
        muster_graph_destroy(r->graph[g]);
        build(r, g);
    }
    r->run[i].graph = g;
    if (kind >= 8) {
        stop_one(r, i);
        return;
    }
    if (kind >= 5) {
        if (!r->open) OK(muster_run_open(r->fixture.runtime, &r->open, &reported));
        OK(muster_run_add(r->open, r->graph[g], &r->run[i].first, &reported));
        r->run[i].run = r->open;
        counts.open_parts++;
    } else {
        r->run[i].run = fixture_submit(&r->fixture, r->graph[g]);
    }
    for (uint32_t j = 0; j < p->jobs[g]; j++) model_job(&p->job[g][j], r->expected);
}

static void check_results(round_ *r, uint32_t i) {
    for (uint32_t j = 0; j < r->plan->jobs[r->run[i].graph]; j++) {
        const job *job = &r->plan->job[r->run[i].graph][j];
        muster_job_result result = fixture_result(r->run[i].run, r->run[i].first + j);
        if (!r->run[i].stopped) assert_int_equal(result.status, MUSTER_OK);
        assert_in_range(result.shards, 1, job->slices);
        if (job->max_shards) assert_int_equal(result.shards, smaller(job->max_shards, job->slices));
        counts.jobs++;
        counts.shards += result.shards;
        counts.cut_further += !job->max_shards && result.shards > r->plan->devices;
    }
}

static void check_content(round_ *r) {
    for (uint32_t b = 0; b < BUFFERS; b++) {
        uint32_t bytes = r->plan->bytes[b];
        void *pointer;
        muster_status status =
            muster_buffer_acquire(r->buffer[b], 0, bytes, MUSTER_READ, fixture_wait_ns, &pointer, &reported);
        if (status) {
            print_message("buffer %" PRIu32 " cannot be read: %s\n", b, reported.message);
            for (uint32_t i = 0; i < r->run_count; i++) wait_for(r, i); /* which may tell why */
            fail();
        }
        const uint8_t *found = pointer;
        for (uint32_t at = 0; at < bytes; at++)
            if (found[at] != r->expected[b][at])
                fail_msg("buffer %" PRIu32 " differs first at byte %" PRIu32 ": 0x%02x instead of 0x%02x", b, at,
                         found[at], r->expected[b][at]);
        OK(muster_buffer_release(r->buffer[b], pointer, &reported));
    }
}

static void add_counts(const round_ *r) {
    for (int d = 0; d < (int)r->plan->devices; d++) {
        muster_device_stats stats = {.struct_size = sizeof stats};
        OK(muster_device_get_stats(r->fixture.runtime, d, &stats, &reported));
        counts.waves += stats.waves;
        counts.evictions += stats.evictions;
        if (stats.refusals) fail_msg("device %d refused %" PRIu64 " jobs", d, stats.refusals);
    }
}

static bool open_runtime(round_ *r, const muster_config *config) {
    muster_status status = muster_runtime_create(config, &r->fixture.runtime, &reported);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) {
        print_message("SKIPPED: %s\n", reported.message);
        return false;
    }
    if (status) fail_msg("creating the runtime: %s", reported.message);
    OK(muster_program_from_ptx(r->fixture.runtime, test_kernels_ptx, 0, "test kernels", &r->fixture.program,
                               &reported));
    OK(muster_program_from_ptx(r->fixture.runtime, test_cut_kernels_ptx, 0, "cuts", &r->cuts, &reported));
    OK(muster_program_from_ptx(r->fixture.runtime, test_pitch_kernels_ptx, 0, "columns", &r->pitches, &reported));
    return true;
}

/* Loads what is loaded when first needed: reductions, on every device. */
static muster_graph *warm_up(const round_ *r) {
    enum { SHARDS = 48 };
    muster_buffer *buffer = fixture_buffer(&r->fixture, 64 + 4 * SHARDS, NULL);
    muster_graph *graph = fixture_graph(&r->fixture);
    job sum = {.family = SUM, .type = MUSTER_U32};
    muster_arg acc = muster_sum_arg(buffer, MUSTER_U32), in = muster_range_arg(buffer, MUSTER_READ, 64, 4 * SHARDS);
    acc.bytes = 8;
    muster_dispatch dispatch =
        fixture_dispatch(find_kernel(r, &sum), SHARDS, 1,
                         ARGS(acc, muster_u32_arg(1), muster_block_cut(in, 4), muster_u32_arg(0),
                              muster_shard_offset_arg(1, SHARDS, 8), muster_shard_count_arg(1, SHARDS, 8)));
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    dispatch.max_shards = SHARDS;
    fixture_add(graph, &dispatch);
    OK(muster_graph_fill(graph, buffer, 32, 32, 0, 4, NULL, &reported));
    fixture_run(&r->fixture, graph);
    muster_buffer_destroy(buffer);
    return graph;
}

/* What the devices hold then that cannot be given up; and how many there are. */
static bool measure(round_ *r, const machine *machine, uint64_t *fixed_bytes, uint32_t *devices) {
    muster_config config = machine->config;
    if (!open_runtime(r, &config)) return false;
    *devices = (uint32_t)muster_device_count(r->fixture.runtime);
    muster_graph *graph = warm_up(r);
    *fixed_bytes = 0;
    for (int d = 0; d < (int)*devices; d++) {
        muster_preflight_report report = {.struct_size = sizeof report};
        muster_device_info info = {.struct_size = sizeof info};
        OK(muster_preflight(graph, 1, d, MUSTER_PREFLIGHT_CHEAP, &report, &reported));
        OK(muster_device_get_info(r->fixture.runtime, d, &info, &reported));
        if (info.budget_bytes - report.budget_bytes > *fixed_bytes)
            *fixed_bytes = info.budget_bytes - report.budget_bytes;
    }
    fixture_close(&r->fixture);
    return true;
}

/* From what one slice of the greediest job needs, to everything. */
static uint64_t draw_budget(plan *p, uint64_t fixed_bytes) {
    uint64_t needed = 1024, total = total_bytes(p);
    for (uint32_t g = 0; g < GRAPHS; g++)
        for (uint32_t j = 0; j < p->jobs[g]; j++) {
            uint64_t bytes = needed_bytes(p, &p->job[g][j]);
            if (bytes > needed) needed = bytes;
        }
    needed += needed / (MU_CUT_RESERVE - 1) + 1;
    switch (below(p, 5)) {
        case 0: return 0;
        case 1:
        case 2: return fixed_bytes + needed;
        default: return fixed_bytes + needed + below(p, (uint32_t)total);
    }
}

/* Of the round that has begun and not ended. */
static struct {
    uint64_t seed;
    bool open;
} current;

static int tell_seed(void **state) {
    (void)state;
    if (current.open)
        print_message("it was seed %" PRIu64 "; repeat it with --driver %s --seed %" PRIu64 " --rounds 1 --verbose\n",
                      current.seed, option.driver, current.seed);
    return 0;
}

static bool run_round(uint64_t seed) {
    static plan plan;
    static machine machine;
    static round_ r;
    uint64_t fixed_bytes;
    uint32_t devices;
    memset(&r, 0, sizeof r);
    draw_machine(seed, &machine);
    if (!measure(&r, &machine, &fixed_bytes, &devices)) return false;
    draw(&plan, seed, devices);
    machine.config.budget_bytes = draw_budget(&plan, fixed_bytes) * machine.config.actors_per_device;
    r.plan = &plan;
    r.machine = &machine;
    if (option.verbose) {
        print_message("seed %" PRIu64 ": %" PRIu32 " devices, %s, budget %" PRIu64 " (%" PRIu64 " fixed), %s\n", seed,
                      devices, machine.config.placement, machine.config.budget_bytes, fixed_bytes, machine.spec);
        for (uint32_t b = 0; b < BUFFERS; b++)
            print_message("  b%" PRIu32 ": %" PRIu32 " bytes, host %" PRIu32 "\n", b, plan.bytes[b], plan.host[b]);
        for (uint32_t g = 0; g < GRAPHS; g++) {
            print_message("  graph %" PRIu32 "\n", g);
            for (uint32_t j = 0; j < plan.jobs[g]; j++) print_job(&plan.job[g][j]);
        }
    }
    open_runtime(&r, &machine.config);
    muster_graph_destroy(warm_up(&r));
    make_buffers(&r);
    for (uint32_t left = 1 + below(&plan, MOST_RUNS); left > 0; left--) {
        start_one(&r);
        if (chance(&plan, 30) && r.run[r.run_count - 1].run != r.open) wait_for(&r, r.run_count - 1);
        if (strcmp(option.driver, "sim") == 0 && machine.unlike && chance(&plan, 30))
            mu_sim_slow_down(fixture_driver(&r.fixture), (int)below(&plan, machine.gpus), below(&plan, 2) * 400);
    }
    if (r.open) OK(muster_run_close(r.open, &reported));
    if (seed % 2) check_content(&r); /* which waits, too */
    for (uint32_t i = 0; i < r.run_count; i++) {
        wait_for(&r, i);
        check_results(&r, i);
    }
    check_content(&r);
    add_counts(&r);
    for (uint32_t i = 0; i < r.run_count; i++)
        if (r.run[i].run != r.open) muster_run_destroy(r.run[i].run);
    muster_run_destroy(r.open);
    for (uint32_t g = 0; g < GRAPHS; g++) muster_graph_destroy(r.graph[g]);
    free_buffers(&r);
    fixture_close(&r.fixture);
    counts.uneven += machine.unlike;
    return true;
}

static void every_byte_is_as_on_one_processor(void **state) {
    (void)state;
    uint64_t begin_ns = mu_now_ns();
    uint32_t done = 0;
    for (; random_goes_on(&option, begin_ns, done); done++) {
        uint64_t seed = option.seed + done;
        current.seed = seed;
        current.open = true;
        if (!run_round(seed)) {
            current.open = false;
            skip();
        }
        current.open = false;
    }
    print_message("seeds %" PRIu64 " to %" PRIu64 ": %" PRIu64 " jobs in %" PRIu64 " shards, %" PRIu64
                  " of them in more than devices, %" PRIu64 " waves, %" PRIu64 " evictions, %" PRIu64
                  " stopped runs, %" PRIu64 " parts of open runs, %" PRIu64 " machines of unlike devices\n",
                  option.seed, option.seed + done - 1, counts.jobs, counts.shards, counts.cut_further, counts.waves,
                  counts.evictions, counts.stopped, counts.open_parts, counts.uneven);
    /* Of the seeds that are run every time it is known that they reach everything. */
    if (done >= 200 && option.seed == 1)
        assert_true(counts.waves > 50 && counts.evictions > 2000 && counts.stopped > 80 && counts.open_parts > 80 &&
                    counts.cut_further > 200);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(every_byte_is_as_on_one_processor, tell_seed)};
    const unsigned has = RANDOM_DEVICES | RANDOM_ACTORS | RANDOM_DRIVER | RANDOM_SECONDS | RANDOM_VERBOSE;
    if (!random_options_read(argc, argv, "rounds", has, &option)) return 2;
    return cmocka_run_group_tests_name("random cuts", tests, NULL, NULL);
}
