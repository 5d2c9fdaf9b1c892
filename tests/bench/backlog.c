#include "tests/bench/backlog.h"

#include <inttypes.h>
#include <stdio.h>

enum { WINDOW = 64 };

const char *const backlog_kind_names[BACKLOG_KINDS] = {"values", "independent", "dependent", "chain"};

void backlog_open(backlog *backlog, const bench *bench, backlog_kind kind, uint32_t jobs) {
    *backlog = (struct backlog){.bench = bench, .functions = 1, .kind = kind, .jobs = jobs, .chunk = 1000};
    for (uint32_t k = 0; k < BACKLOG_KERNELS; k++) {
        char name[32];
        snprintf(name, sizeof name, "empty_%" PRIu32, k);
        backlog->kernels[k] = bench_kernel(bench, name);
    }
    for (int b = 0; b < BACKLOG_BUFFERS; b++) backlog->buffers[b] = bench_buffer(bench, 4096, NULL);
}

void backlog_close(backlog *backlog) {
    for (int b = 0; b < BACKLOG_BUFFERS; b++) muster_buffer_destroy(backlog->buffers[b]);
}

uint32_t backlog_function(const backlog *backlog, uint32_t job) {
    if (backlog->functions == 1) return 0;
    uint32_t x = job * 2654435761u;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    return x % backlog->functions;
}

muster_graph *backlog_build(const backlog *backlog, uint32_t first, uint32_t count) {
    muster_arg args[2] = {muster_u64_arg(0), muster_u64_arg(0)};
    muster_dispatch dispatch = bench_dispatch(backlog->kernels[0], args, 2);
    muster_graph *graph = bench_graph(backlog->bench);
    for (uint32_t i = first; i < first + count; i++) {
        uint32_t in = i % BACKLOG_BUFFERS, out = (i * 7 + 3) % BACKLOG_BUFFERS;
        if (backlog->kind == BACKLOG_CHAIN) in = 1, out = 0;
        if (in == out) out = (out + 1) % BACKLOG_BUFFERS;
        if (backlog->kind != BACKLOG_VALUES) {
            args[0] = muster_buffer_arg(backlog->buffers[in], MUSTER_READ);
            args[1] = muster_buffer_arg(backlog->buffers[out],
                                        backlog->kind == BACKLOG_INDEPENDENT ? MUSTER_READ : MUSTER_READ_WRITE);
        }
        dispatch.kernel = backlog->kernels[backlog_function(backlog, i)];
        bench_add(graph, &dispatch);
    }
    return graph;
}

static uint32_t chunk_at(const backlog *backlog, uint32_t first) {
    return backlog->jobs - first < backlog->chunk ? backlog->jobs - first : backlog->chunk;
}

void backlog_run_graphs(const backlog *backlog) {
    muster_run *window[WINDOW] = {NULL};
    uint32_t turn = 0;
    for (uint32_t first = 0; first < backlog->jobs; first += chunk_at(backlog, first)) {
        muster_graph *graph = backlog_build(backlog, first, chunk_at(backlog, first));
        muster_run **slot = &window[turn++ % WINDOW];
        if (*slot) bench_finish(*slot);
        *slot = bench_submit(backlog->bench, graph);
        muster_graph_destroy(graph);
    }
    for (uint32_t i = 0; i < WINDOW; i++, turn++)
        if (window[turn % WINDOW]) bench_finish(window[turn % WINDOW]);
}

void backlog_run_open(const backlog *backlog) {
    muster_run *run;
    BENCH_OK(muster_run_open(backlog->bench->runtime, &run, &bench_error));
    for (uint32_t first = 0; first < backlog->jobs; first += chunk_at(backlog, first)) {
        muster_graph *graph = backlog_build(backlog, first, chunk_at(backlog, first));
        BENCH_OK(muster_run_add(run, graph, NULL, &bench_error));
        muster_graph_destroy(graph);
    }
    BENCH_OK(muster_run_close(run, &bench_error));
    bench_finish(run);
}

double backlog_raw_us(void *user) {
    const backlog *backlog = user;
    const bench *bench = backlog->bench;
    CUdeviceptr in = bench->raw[0].memory, out = bench->raw[0].memory;
    void *parameters[2] = {&in, &out};
    CUfunction functions[BACKLOG_KERNELS];
    for (uint32_t k = 0; k < backlog->functions; k++) {
        char name[32];
        snprintf(name, sizeof name, "empty_%" PRIu32, k);
        functions[k] = bench_function(bench, 0, name);
    }
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < backlog->jobs; i++)
        bench_launch(bench, 0, functions[backlog_function(backlog, i)], parameters);
    bench_synchronize(bench, 0);
    return bench_since_us(begin) / backlog->jobs;
}

double backlog_one_graph_us(void *user) {
    const backlog *backlog = user;
    uint64_t begin = mu_now_ns();
    muster_graph *graph = backlog_build(backlog, 0, backlog->jobs);
    bench_run(backlog->bench, graph);
    double each = bench_since_us(begin) / backlog->jobs;
    muster_graph_destroy(graph);
    return each;
}

double backlog_graphs_us(void *user) {
    const backlog *backlog = user;
    uint64_t begin = mu_now_ns();
    backlog_run_graphs(backlog);
    return bench_since_us(begin) / backlog->jobs;
}

double backlog_open_run_us(void *user) {
    const backlog *backlog = user;
    uint64_t begin = mu_now_ns();
    backlog_run_open(backlog);
    return bench_since_us(begin) / backlog->jobs;
}
