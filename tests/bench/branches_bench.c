/* How well do independent kernels that are long enough to overlap do so?
 *
 *     branches_bench [--jobs N] [--us T] [options of bench.h]
 *
 * N (64) one-block kernels of T (20) microseconds, by turns: one after the other on a stream (serial), over 8 streams, as branches
 * of one CUDA graph that is replayed, and of one whose branches leave from an empty node, and by Muster, which knows nothing but what
 * it has measured of the kernel in earlier runs: a graph submitted again, and built each time; each eight times in a row. Microseconds of
 * wall clock for all, medians of the mean of eight; `speedup` is serial's time over it. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

enum { STREAMS = 8, WAYS = 6, IN_A_ROW = 8, WARM_RUNS = 3 };

typedef struct branches {
    bench *bench;
    uint32_t jobs;
    uint64_t spin_ns;
    muster_kernel *kernel;
    muster_buffer *buffer;
    muster_graph *graph;
    CUfunction function;
    CUstream streams[STREAMS];
    CUgraph raw_graphs[2]; /* without and with a root */
    CUgraphExec execs[2];
} branches;

static double over_streams(const branches *b, CUstream *streams, uint32_t count) {
    CUdeviceptr memory = b->bench->raw[0].memory;
    uint64_t spin_ns = b->spin_ns;
    void *parameters[] = {&memory, &spin_ns};
    uint64_t begin = mu_now_ns();
    for (int r = 0; r < IN_A_ROW; r++) {
        for (uint32_t i = 0; i < b->jobs; i++)
            BENCH_DRIVER(b->bench,
                         launch_kernel(b->function, 1, 1, 1, 32, 1, 1, 0, streams[i % count], parameters, NULL));
        for (uint32_t s = 0; s < count; s++) BENCH_DRIVER(b->bench, stream_synchronize(streams[s]));
    }
    return bench_since_us(begin) / IN_A_ROW;
}

static double serial(void *user) {
    branches *b = user;
    return over_streams(b, &b->bench->raw[0].stream, 1);
}
static double eight_streams(void *user) {
    branches *b = user;
    return over_streams(b, b->streams, STREAMS);
}

static double replayed(const branches *b, CUgraphExec exec) {
    uint64_t begin = mu_now_ns();
    for (int r = 0; r < IN_A_ROW; r++) {
        BENCH_DRIVER(b->bench, graph_launch(exec, b->bench->raw[0].stream));
        bench_synchronize(b->bench, 0);
    }
    return bench_since_us(begin) / IN_A_ROW;
}

static double raw_branches(void *user) { return replayed(user, ((branches *)user)->execs[0]); }
static double raw_rooted(void *user) { return replayed(user, ((branches *)user)->execs[1]); }

static muster_graph *build(const branches *b) {
    const muster_arg args[] = {muster_buffer_arg(b->buffer, MUSTER_READ), muster_u64_arg(b->spin_ns)};
    muster_dispatch dispatch = bench_dispatch(b->kernel, args, 2);
    muster_graph *graph = bench_graph(b->bench);
    for (uint32_t i = 0; i < b->jobs; i++) bench_add(graph, &dispatch);
    return graph;
}

static double again(void *user) {
    branches *b = user;
    uint64_t begin = mu_now_ns();
    for (int r = 0; r < IN_A_ROW; r++) bench_run(b->bench, b->graph);
    return bench_since_us(begin) / IN_A_ROW;
}

static double built(void *user) {
    branches *b = user;
    uint64_t begin = mu_now_ns();
    for (int r = 0; r < IN_A_ROW; r++) {
        muster_graph *graph = build(b);
        bench_run(b->bench, graph);
        muster_graph_destroy(graph);
    }
    return bench_since_us(begin) / IN_A_ROW;
}

static void open_branches(branches *b) {
    CUdeviceptr memory = b->bench->raw[0].memory;
    uint64_t spin_ns = b->spin_ns;
    void *parameters[] = {&memory, &spin_ns};
    CUgraphNode node;
    b->kernel = bench_kernel(b->bench, "spin");
    b->buffer = bench_buffer(b->bench, 4096, NULL);
    b->graph = build(b);
    b->function = bench_function(b->bench, 0, "spin");
    for (int s = 0; s < STREAMS; s++) BENCH_DRIVER(b->bench, stream_create(&b->streams[s], CU_STREAM_NON_BLOCKING));
    const CUDA_KERNEL_NODE_PARAMS kernel = {.func = b->function,
                                            .gridDimX = 1,
                                            .gridDimY = 1,
                                            .gridDimZ = 1,
                                            .blockDimX = 32,
                                            .blockDimY = 1,
                                            .blockDimZ = 1,
                                            .kernelParams = parameters};
    for (int rooted = 0; rooted < 2; rooted++) {
        CUgraphNode root;
        BENCH_DRIVER(b->bench, graph_create(&b->raw_graphs[rooted], 0));
        if (rooted) BENCH_DRIVER(b->bench, graph_add_empty_node(&root, b->raw_graphs[rooted], NULL, 0));
        for (uint32_t i = 0; i < b->jobs; i++)
            BENCH_DRIVER(b->bench, graph_add_kernel_node(&node, b->raw_graphs[rooted], rooted ? &root : NULL,
                                                         (size_t)rooted, &kernel));
        BENCH_DRIVER(b->bench, graph_instantiate(&b->execs[rooted], b->raw_graphs[rooted], 0));
        BENCH_DRIVER(b->bench, graph_upload(b->execs[rooted], b->bench->raw[0].stream));
    }
    bench_synchronize(b->bench, 0);
}

static void close_branches(branches *b) {
    for (int rooted = 0; rooted < 2; rooted++) {
        BENCH_DRIVER(b->bench, graph_exec_destroy(b->execs[rooted]));
        BENCH_DRIVER(b->bench, graph_destroy(b->raw_graphs[rooted]));
    }
    for (int s = 0; s < STREAMS; s++) BENCH_DRIVER(b->bench, stream_destroy(b->streams[s]));
    muster_graph_destroy(b->graph);
    muster_buffer_destroy(b->buffer);
}

int main(int argc, char **argv) {
    static const char *const names[WAYS] = {"raw, one stream",          "raw, 8 streams",
                                            "raw, branches of a graph", "raw, branches from one node",
                                            "muster, submitted again",  "muster, built each time"};
    const bench_way ways[WAYS] = {serial, eight_streams, raw_branches, raw_rooted, again, built};
    bench bench = {.devices = 1};
    branches b = {.bench = &bench, .jobs = 64};
    measure measures[WAYS] = {0};
    uint32_t us = 20;
    const bench_option options[] = {{"--jobs", &b.jobs}, {"--us", &us}};
    bench_parse(&bench, argc, argv, 31, options, 2);
    b.spin_ns = 1000ull * us;
    bench_open(&bench, NULL, "independent kernels side by side");
    open_branches(&b);
    bench_alternate(&bench, &b, ways, WAYS, bench.quick ? 1 : WARM_RUNS, measures);
    for (int w = 0; w < WAYS; w++) {
        double median = measure_percentile(&measures[w], 50);
        const measure_figure figures[] = {{"median_us", median},
                                          {"p90_us", measure_percentile(&measures[w], 90)},
                                          {"speedup", measure_percentile(&measures[0], 50) / median}};
        const measure_bound bound = {"speedup", 15, true};
        measure_row_bounded(&bench.report, names[w], figures, 3, &bound, w >= 4 ? 1 : 0);
    }
    close_branches(&b);
    bench_close(&bench);
    return 0;
}
