/* What goes from device to device: whole buffers, and the halos of a stencil. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/scaling.h"

enum { THREADS = 256, STENCIL_THREADS = 1024 };

#define MIB ((uint64_t)1 << 20)

/* ---------------------------------------------------------------------------------------------------------- copies -- */

typedef struct copies {
    const scaling *scaling;
    const bench *bench;
    uint64_t bytes;
    uint32_t device; /* to which */
    muster_buffer *buffer;
    muster_graph *write, *prefetch;
    CUdeviceptr source, destination;
} copies;

static double raw_copy(void *user) {
    const copies *copies = user;
    const bench *bench = copies->bench;
    const bench_raw *from = &bench->raw[0], *to = &bench->raw[scaling_gpu(copies->scaling, copies->device)];
    bench_enter(bench, scaling_gpu(copies->scaling, copies->device));
    uint64_t begin = mu_now_ns();
    BENCH_DRIVER(bench, memcpy_peer_async(copies->destination, to->context, copies->source, from->context,
                                          copies->bytes, to->stream));
    BENCH_DRIVER(bench, stream_synchronize(to->stream));
    return bench_since_us(begin);
}

static double muster_copy(void *user) {
    const copies *copies = user;
    bench_run(copies->bench, copies->write); /* only device 0 has it */
    uint64_t begin = mu_now_ns();
    bench_run(copies->bench, copies->prefetch);
    return bench_since_us(begin);
}

static void measure_copy(const scaling *scaling, uint32_t device, uint64_t bytes, bool bounded) {
    const bench *bench = scaling->bench;
    const bench_way ways[] = {raw_copy, muster_copy};
    measure measures[2] = {0};
    copies copies = {.scaling = scaling, .bench = bench, .bytes = bytes, .device = device};
    copies.buffer = bench_buffer(bench, bytes, NULL);
    copies.write = bench_graph(bench);
    copies.prefetch = bench_graph(bench);
    const muster_arg args[] = {muster_buffer_arg(copies.buffer, MUSTER_READ_WRITE), muster_u32_arg(3),
                               muster_u32_arg(1), muster_u64_arg(bytes / 4)};
    muster_dispatch dispatch = bench_dispatch(bench_kernel(bench, "stride"), args, 4);
    dispatch.pin_device = 1;
    bench_add(copies.write, &dispatch);
    BENCH_OK(muster_graph_prefetch(copies.prefetch, copies.buffer, 0, 0, (int)device, NULL, &bench_error));
    bench_enter(bench, 0);
    BENCH_DRIVER(bench, mem_alloc(&copies.source, bytes));
    bench_enter(bench, scaling_gpu(scaling, device));
    BENCH_DRIVER(bench, mem_alloc(&copies.destination, bytes));
    bench_alternate(bench, &copies, ways, 2, 2, measures);
    double raw = measure_percentile(&measures[0], 50), muster = measure_percentile(&measures[1], 50);
    char name[64];
    snprintf(name, sizeof name, "copy, device 0 to %" PRIu32 ", %" PRIu64 " %s", device,
             bytes >= MIB ? bytes / MIB : bytes >> 10, bytes >= MIB ? "MiB" : "KiB");
    const measure_figure figures[] = {{"raw_us", raw},
                                      {"muster_us", muster},
                                      {"raw_gbps", (double)bytes / (raw * 1e3)},
                                      {"muster_gbps", (double)bytes / (muster * 1e3)},
                                      {"of_raw", raw / muster}};
    const measure_bound bound = {"of_raw", 0.9, true};
    measure_row_bounded(&scaling->bench->report, name, figures, 5, &bound, bounded);
    BENCH_DRIVER(bench, mem_free(copies.destination));
    bench_enter(bench, 0);
    BENCH_DRIVER(bench, mem_free(copies.source));
    muster_graph_destroy(copies.write);
    muster_graph_destroy(copies.prefetch);
    muster_buffer_destroy(copies.buffer);
}

void scaling_copies(const scaling *scaling) {
    for (uint32_t d = 1; d < scaling->bench->devices; d++) {
        measure_copy(scaling, d, 4 * scaling->mib * MIB, true);
        measure_copy(scaling, d, scaling->mib * MIB, true);
        measure_copy(scaling, d, 4096, false);
    }
}

/* --------------------------------------------------------------------------------------------------------- stencil -- */

typedef struct slab { /* of a GPU: some rows, and one of each neighbour */
    uint32_t first, rows;
    CUdeviceptr memory[2]; /* whose row 1 is row `first` of the whole */
    CUevent stepped;
} slab;

typedef struct field {
    const scaling *scaling;
    const bench *bench;
    uint64_t row_bytes;
    muster_buffer *alone[2], *cut[2];
    muster_graph *alone_graph, *cut_graph;
    slab one, slabs[MU_MAX_DEVICES]; /* all on GPU 0, and a part on each */
} field;

static void open_slab(const field *field, slab *slab, uint32_t gpu, uint32_t part, uint32_t parts) {
    const bench *bench = field->bench;
    uint32_t rows = field->scaling->rows;
    slab->first = (uint32_t)((uint64_t)rows * part / parts);
    slab->rows = (uint32_t)((uint64_t)rows * (part + 1) / parts) - slab->first;
    bench_enter(bench, gpu);
    for (int i = 0; i < 2; i++) {
        uint64_t words = (slab->rows + 2) * field->row_bytes / 4;
        BENCH_DRIVER(bench, mem_alloc(&slab->memory[i], 4 * words));
        BENCH_DRIVER(bench, memset_d32_async(slab->memory[i], 1, words, bench->raw[gpu].stream));
    }
    BENCH_DRIVER(bench, event_create(&slab->stepped, CU_EVENT_DISABLE_TIMING));
    BENCH_DRIVER(bench, event_record(slab->stepped, bench->raw[gpu].stream));
    bench_synchronize(bench, gpu);
}

static void close_slab(const field *field, slab *slab, uint32_t gpu) {
    bench_enter(field->bench, gpu);
    for (int i = 0; i < 2; i++) BENCH_DRIVER(field->bench, mem_free(slab->memory[i]));
    BENCH_DRIVER(field->bench, event_destroy(slab->stepped));
}

static muster_graph *build_stencil(const field *field, muster_buffer *const buffers[2], bool cut) {
    const scaling *scaling = field->scaling;
    muster_graph *graph = bench_graph(field->bench);
    for (uint32_t step = 0; step < scaling->steps; step++) {
        const muster_arg args[] = {
            muster_block_cut(muster_buffer_arg(buffers[1 - step % 2], MUSTER_WRITE), field->row_bytes),
            muster_halo_cut(muster_buffer_arg(buffers[step % 2], MUSTER_READ), field->row_bytes, 1, 1),
            muster_u32_arg(scaling->width), muster_shard_offset_arg(1, scaling->rows, 8),
            muster_u64_arg(scaling->rows)};
        muster_dispatch dispatch = bench_dispatch(bench_kernel(field->bench, "stencil"), args, 5);
        dispatch.grid.x = scaling->rows;
        dispatch.block.x = STENCIL_THREADS;
        dispatch.flags = cut ? MUSTER_DISPATCH_SHARDED : 0;
        dispatch.pin_device = !cut;
        bench_add(graph, &dispatch);
    }
    return graph;
}

static void open_field(field *field, const scaling *scaling) {
    const bench *bench = scaling->bench;
    *field = (struct field){.scaling = scaling, .bench = bench, .row_bytes = 4ull * scaling->width};
    uint64_t bytes = field->row_bytes * scaling->rows;
    for (int i = 0; i < 2; i++) {
        field->alone[i] = bench_buffer(bench, bytes, NULL);
        field->cut[i] = bench_buffer(bench, bytes, NULL);
    }
    muster_graph *ones = bench_graph(bench);
    BENCH_OK(muster_graph_fill(ones, field->alone[0], 0, bytes, 1, 4, NULL, &bench_error));
    BENCH_OK(muster_graph_fill(ones, field->cut[0], 0, bytes, 1, 4, NULL, &bench_error));
    bench_run(bench, ones);
    muster_graph_destroy(ones);
    field->alone_graph = build_stencil(field, field->alone, false);
    field->cut_graph = build_stencil(field, field->cut, true);
    open_slab(field, &field->one, 0, 0, 1);
    for (uint32_t g = 0; g < bench->raw_count; g++) open_slab(field, &field->slabs[g], g, g, bench->raw_count);
}

static void close_field(field *field) {
    for (uint32_t g = 0; g < field->bench->raw_count; g++) close_slab(field, &field->slabs[g], g);
    close_slab(field, &field->one, 0);
    muster_graph_destroy(field->alone_graph);
    muster_graph_destroy(field->cut_graph);
    for (int i = 0; i < 2; i++) {
        muster_buffer_destroy(field->alone[i]);
        muster_buffer_destroy(field->cut[i]);
    }
}

/* A step of one GPU: its neighbours' edges, then the kernel. */
static void step_slab(const field *field, slab *slabs, uint32_t gpu, uint32_t count, uint32_t step) {
    const bench *bench = field->bench;
    slab *slab = &slabs[gpu];
    const bench_raw *raw = &bench->raw[gpu];
    uint64_t row_bytes = field->row_bytes;
    int in = step % 2;
    bench_enter(bench, gpu);
    if (gpu) {
        const struct slab *above = &slabs[gpu - 1];
        BENCH_DRIVER(bench, stream_wait_event(raw->stream, above->stepped, 0));
        BENCH_DRIVER(bench,
                     memcpy_peer_async(slab->memory[in], raw->context, above->memory[in] + above->rows * row_bytes,
                                       bench->raw[gpu - 1].context, row_bytes, raw->stream));
    }
    if (gpu + 1 < count) {
        const struct slab *below = &slabs[gpu + 1];
        BENCH_DRIVER(bench, stream_wait_event(raw->stream, below->stepped, 0));
        BENCH_DRIVER(bench, memcpy_peer_async(slab->memory[in] + (slab->rows + 1) * row_bytes, raw->context,
                                              below->memory[in] + row_bytes, bench->raw[gpu + 1].context, row_bytes,
                                              raw->stream));
    }
    CUdeviceptr out = slab->memory[1 - in] + row_bytes, from = slab->memory[in] + row_bytes;
    uint32_t width = field->scaling->width;
    uint64_t first = slab->first, rows = field->scaling->rows;
    void *parameters[] = {&out, &from, &width, &first, &rows};
    BENCH_DRIVER(bench, launch_kernel(bench_function(bench, gpu, "stencil"), slab->rows, 1, 1, STENCIL_THREADS, 1, 1, 0,
                                      raw->stream, parameters, NULL));
}

/* The events of a step are recorded when every GPU has waited for those of the step before. */
static double raw_steps(const field *field, slab *slabs, uint32_t count) {
    const bench *bench = field->bench;
    uint64_t begin = mu_now_ns();
    for (uint32_t step = 0; step < field->scaling->steps; step++) {
        for (uint32_t g = 0; g < count; g++) step_slab(field, slabs, g, count, step);
        for (uint32_t g = 0; g < count; g++) BENCH_DRIVER(bench, event_record(slabs[g].stepped, bench->raw[g].stream));
    }
    for (uint32_t g = 0; g < count; g++) bench_synchronize(bench, g);
    return bench_since_us(begin) / field->scaling->steps;
}

static double raw_alone(void *user) {
    field *field = user;
    return raw_steps(field, &field->one, 1);
}
static double raw_all(void *user) {
    field *field = user;
    return raw_steps(field, field->slabs, field->bench->raw_count);
}

static double muster_steps(const field *field, muster_graph *graph) {
    uint64_t begin = mu_now_ns();
    bench_run(field->bench, graph);
    return bench_since_us(begin) / field->scaling->steps;
}
static double muster_alone(void *user) { return muster_steps(user, ((field *)user)->alone_graph); }
static double muster_all(void *user) { return muster_steps(user, ((field *)user)->cut_graph); }

/* Some rows, those on both sides of what is cut among them, are the same whoever computed them. */
static void check_rows(const field *field) {
    const scaling *scaling = field->scaling;
    void *alone, *cut;
    uint32_t *raw = malloc(field->row_bytes);
    for (uint32_t i = 0; i < 64 && bench_executes(field->bench); i++) {
        uint32_t row = (uint32_t)((uint64_t)scaling->rows * (i / 2 + i % 2) / 32) - i % 2;
        uint64_t offset = row * field->row_bytes;
        BENCH_OK(muster_buffer_acquire(field->alone[0], offset, field->row_bytes, MUSTER_READ, MUSTER_FOREVER, &alone,
                                       &bench_error));
        BENCH_OK(muster_buffer_acquire(field->cut[0], offset, field->row_bytes, MUSTER_READ, MUSTER_FOREVER, &cut,
                                       &bench_error));
        bench_enter(field->bench, 0);
        BENCH_DRIVER(field->bench,
                     memcpy_dtoh(raw, field->one.memory[0] + offset + field->row_bytes, field->row_bytes));
        if (memcmp(alone, cut, field->row_bytes) != 0 || memcmp(alone, raw, field->row_bytes) != 0) {
            fprintf(stderr, "row %" PRIu32 " of the stencil is not the same on one device and on all\n", row);
            exit(1);
        }
        BENCH_OK(muster_buffer_release(field->alone[0], alone, &bench_error));
        BENCH_OK(muster_buffer_release(field->cut[0], cut, &bench_error));
    }
    free(raw);
}

void scaling_stencil(const scaling *scaling) {
    const bench_way ways[] = {raw_alone, raw_all, muster_alone, muster_all};
    measure measures[4] = {0};
    static field field;
    open_field(&field, scaling);
    bench_alternate(scaling->bench, &field, ways, 4, 2, measures);
    check_rows(&field);
    double us[4];
    for (int w = 0; w < 4; w++) us[w] = measure_percentile(&measures[w], 50);
    const measure_figure figures[] = {
        {"raw_1_us", us[0]},      {"raw_all_us", us[1]},          {"muster_1_us", us[2]},
        {"muster_all_us", us[3]}, {"raw_speedup", us[0] / us[1]}, {"speedup", us[2] / us[3]}};
    measure_row(&scaling->bench->report, "stencil with halo, sharded, a step", figures, 6);
    close_field(&field);
}
