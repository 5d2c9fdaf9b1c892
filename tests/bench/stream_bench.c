/* A stream of chunks through the device: how close copying and computing together come to the longer of the two.
 *
 *     stream_bench [--chunks N] [--chunk-kib K] [options of bench.h]
 *
 * Each chunk is uploaded from pinned memory, computed on in place, and read back. As many iterations of the kernel are taken as make
 * computing take about as long as copying. In turns, in the same process:
 *     copies     all uploads on one stream and all downloads on another, and nothing else, raw
 *     kernels    all launches on one stream, and nothing else, raw
 *     muster     one graph of it all, submit and wait
 * Figures are medians over R runs, in microseconds of wall clock for all chunks; `ratio` is to the longer of the first two: 1 is
 * perfect overlap, 2 none. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"

enum { THREADS = 256 };

typedef struct stream {
    bench *bench;
    uint32_t chunks, chunk_kib;
    uint64_t chunk_bytes;
    uint32_t iterations;
    muster_buffer **buffers;
    muster_graph *graph;
    unsigned char *host; /* pinned, all chunks */
    /* The bare driver's own; kernels are on the bench's stream. */
    CUstream up, down;
    CUfunction function;
    CUdeviceptr *memory; /* per chunk */
} stream;

static uint32_t blocks(const stream *stream) { return (uint32_t)(stream->chunk_bytes / 4 / THREADS); }

/* ------------------------------------------------------------------------------------------------------------- raw -- */

static void open_raw(stream *stream) {
    const bench *bench = stream->bench;
    BENCH_DRIVER(bench, stream_create(&stream->up, CU_STREAM_NON_BLOCKING));
    BENCH_DRIVER(bench, stream_create(&stream->down, CU_STREAM_NON_BLOCKING));
    stream->function = bench_function(bench, 0, "affine");
    stream->memory = calloc(stream->chunks, sizeof *stream->memory);
    for (uint32_t c = 0; c < stream->chunks; c++)
        BENCH_DRIVER(bench, mem_alloc(&stream->memory[c], stream->chunk_bytes));
}

static void close_raw(stream *stream) {
    const bench *bench = stream->bench;
    for (uint32_t c = 0; c < stream->chunks; c++) BENCH_DRIVER(bench, mem_free(stream->memory[c]));
    free(stream->memory);
    BENCH_DRIVER(bench, stream_destroy(stream->down));
    BENCH_DRIVER(bench, stream_destroy(stream->up));
}

static double raw_copies(const stream *stream) {
    const bench *bench = stream->bench;
    uint64_t begin = mu_now_ns();
    for (uint32_t c = 0; c < stream->chunks; c++) {
        unsigned char *host = stream->host + c * stream->chunk_bytes;
        BENCH_DRIVER(bench, memcpy_htod_async(stream->memory[c], host, stream->chunk_bytes, stream->up));
    }
    /* Chunks of their own, so that the two directions do not wait for each other; the content does not matter. */
    for (uint32_t c = 0; c < stream->chunks; c++) {
        uint32_t other = (c + stream->chunks / 2) % stream->chunks;
        unsigned char *host = stream->host + other * stream->chunk_bytes;
        BENCH_DRIVER(bench, memcpy_dtoh_async(host, stream->memory[other], stream->chunk_bytes, stream->down));
    }
    BENCH_DRIVER(bench, stream_synchronize(stream->up));
    BENCH_DRIVER(bench, stream_synchronize(stream->down));
    return bench_since_us(begin);
}

static double raw_kernels(const stream *stream, uint32_t iterations) {
    const bench *bench = stream->bench;
    uint64_t begin = mu_now_ns();
    for (uint32_t c = 0; c < stream->chunks; c++) {
        CUdeviceptr memory = stream->memory[c];
        uint32_t factor = 3, term = 1, count = (uint32_t)(stream->chunk_bytes / 4);
        void *parameters[] = {&memory, &factor, &term, &count};
        for (uint32_t i = 0; i < iterations; i++)
            BENCH_DRIVER(bench, launch_kernel(stream->function, blocks(stream), 1, 1, THREADS, 1, 1, 0,
                                              bench->raw[0].stream, parameters, NULL));
    }
    bench_synchronize(bench, 0);
    return bench_since_us(begin);
}

/* ---------------------------------------------------------------------------------------------------------- muster -- */

static void open_muster(stream *stream) {
    const bench *bench = stream->bench;
    void *host;
    stream->buffers = calloc(stream->chunks, sizeof *stream->buffers);
    BENCH_OK(muster_host_alloc(bench->runtime, stream->chunks * stream->chunk_bytes, &host, &bench_error));
    stream->host = host;
    memset(host, 1, stream->chunks * stream->chunk_bytes);
    for (uint32_t c = 0; c < stream->chunks; c++)
        stream->buffers[c] = bench_buffer(bench, stream->chunk_bytes, stream->host + c * stream->chunk_bytes);
}

static void build(stream *stream) {
    stream->graph = bench_graph(stream->bench);
    for (uint32_t c = 0; c < stream->chunks; c++) {
        const muster_arg args[] = {muster_buffer_arg(stream->buffers[c], MUSTER_READ_WRITE), muster_u32_arg(3),
                                   muster_u32_arg(1), muster_u32_arg((uint32_t)(stream->chunk_bytes / 4))};
        muster_dispatch dispatch = bench_dispatch(bench_kernel(stream->bench, "affine"), args, 4);
        dispatch.grid.x = blocks(stream);
        dispatch.block.x = THREADS;
        dispatch.flags = MUSTER_DISPATCH_ITERATED;
        dispatch.iterations = stream->iterations;
        bench_add(stream->graph, &dispatch);
        BENCH_OK(muster_graph_read_back(stream->graph, stream->buffers[c], 0, 0, NULL, &bench_error));
    }
}

/* New content for every chunk, so that nothing on the device is valid. */
static void renew(const stream *stream) {
    for (uint32_t c = 0; c < stream->chunks; c++) {
        void *pointer;
        BENCH_OK(
            muster_buffer_acquire(stream->buffers[c], 0, 0, MUSTER_READ_WRITE, MUSTER_FOREVER, &pointer, &bench_error));
        BENCH_OK(muster_buffer_release(stream->buffers[c], pointer, &bench_error));
    }
}

/* ---------------------------------------------------------------------------------------------------------- report -- */

static double copies(void *user) { return raw_copies(user); }
static double kernels(void *user) { return raw_kernels(user, ((stream *)user)->iterations); }
static double streamed(void *user) {
    const stream *stream = user;
    renew(stream);
    uint64_t begin = mu_now_ns();
    bench_run(stream->bench, stream->graph);
    return bench_since_us(begin);
}

static double smallest(bench_way measured, stream *stream) {
    double best = measured(stream);
    for (int i = 0; i < 3; i++) {
        double value = measured(stream);
        if (value < best) best = value;
    }
    return best;
}

/* Computing takes about as long as copying. */
static void balance(stream *stream) {
    stream->iterations = 1;
    double iterations = smallest(copies, stream) / smallest(kernels, stream);
    stream->iterations = iterations < 1 ? 1 : iterations > 1000 ? 1000 : (uint32_t)(iterations + 0.5);
}

static void measure_all(stream *stream) {
    static const char *const names[] = {"copies, raw", "kernels, raw", "muster"};
    const bench_way ways[] = {copies, kernels, streamed};
    measure measures[3] = {0};
    bench_alternate(stream->bench, stream, ways, 3, 1, measures);
    double first = measure_percentile(&measures[0], 50), second = measure_percentile(&measures[1], 50);
    for (int w = 0; w < 3; w++) {
        double median = measure_percentile(&measures[w], 50);
        const measure_figure figures[] = {
            {"median_us", median},
            {"p10_us", measure_percentile(&measures[w], 10)},
            {"p90_us", measure_percentile(&measures[w], 90)},
            {"gb_per_s", (double)stream->chunks * (double)stream->chunk_bytes / median * 1e-3},
            {"iterations", stream->iterations},
            {"ratio", median / (first > second ? first : second)}};
        measure_row(&stream->bench->report, names[w], figures, sizeof figures / sizeof figures[0]);
    }
}

int main(int argc, char **argv) {
    bench bench = {.devices = 1};
    stream stream = {.bench = &bench, .chunks = 64, .chunk_kib = 16 << 10};
    const bench_option options[] = {{"--chunks", &stream.chunks}, {"--chunk-kib", &stream.chunk_kib}};
    char question[96];
    bench_parse(&bench, argc, argv, 21, options, 2);
    if (bench.quick) stream.chunk_kib = 64;
    if (stream.chunks > 4096 || stream.chunk_kib > 1 << 20) {
        fprintf(stderr, "--chunks is at most 4096, --chunk-kib at most %d\n", 1 << 20);
        return 2;
    }
    stream.chunk_bytes = (uint64_t)stream.chunk_kib << 10;
    snprintf(question, sizeof question, "streaming %" PRIu32 " chunks of %" PRIu32 " KiB", stream.chunks,
             stream.chunk_kib);
    bench_open(&bench, NULL, question);
    open_muster(&stream);
    open_raw(&stream);
    balance(&stream);
    build(&stream);
    measure_all(&stream);
    close_raw(&stream);
    muster_graph_destroy(stream.graph);
    for (uint32_t c = 0; c < stream.chunks; c++) muster_buffer_destroy(stream.buffers[c]);
    free(stream.buffers);
    bench_close(&bench);
    return 0;
}
