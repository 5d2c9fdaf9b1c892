/* How close does a graph that is submitted again come to the replay of a CUDA graph?
 *
 *     replay_bench [--jobs N] [options of bench.h]
 *
 * A chain of N (1,000) kernels that update one buffer and take a value. In turns:
 *     raw replay          cuGraphLaunch of the chain, as it is
 *     raw new arguments   cuGraphExecKernelNodeSetParams for every node, then cuGraphLaunch
 *     again               muster_submit of the same graph
 *     new arguments       muster_graph_set_argument for every job, then muster_submit
 * 20 times in a row, each waited for, and 20 times before a wait. Microseconds of wall clock for a chain, medians; `ratio` is to raw
 * replay, `ratio_new` to the raw side's with new arguments. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

enum { WAYS = 4, TIMES = 20 };

typedef struct chain {
    bench *bench;
    uint32_t jobs;
    bool waits; /* for each of the 20, not once */
    uint32_t value;
    muster_buffer *buffer;
    muster_graph *graph;
    muster_job *job; /* by position */
    CUfunction function;
    CUgraph raw_graph;
    CUgraphExec exec;
    CUgraphNode *nodes;
} chain;

static CUDA_KERNEL_NODE_PARAMS node_of(const chain *chain, void **parameters) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = chain->function,
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 32,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = parameters};
}

static void open_raw_chain(chain *chain) {
    const bench *bench = chain->bench;
    CUdeviceptr memory = bench->raw[0].memory;
    uint32_t value = 0;
    void *parameters[] = {&memory, &value};
    chain->function = bench_function(bench, 0, "valued");
    chain->nodes = calloc(chain->jobs, sizeof *chain->nodes);
    BENCH_DRIVER(bench, graph_create(&chain->raw_graph, 0));
    CUDA_KERNEL_NODE_PARAMS node = node_of(chain, parameters);
    for (uint32_t i = 0; i < chain->jobs; i++)
        BENCH_DRIVER(bench, graph_add_kernel_node(&chain->nodes[i], chain->raw_graph, i ? &chain->nodes[i - 1] : NULL,
                                                  i ? 1 : 0, &node));
    BENCH_DRIVER(bench, graph_instantiate(&chain->exec, chain->raw_graph, 0));
    BENCH_DRIVER(bench, graph_upload(chain->exec, bench->raw[0].stream));
    bench_synchronize(bench, 0);
}

static void open_chain(chain *chain) {
    uint32_t value = 0;
    chain->buffer = bench_buffer(chain->bench, 4096, NULL);
    chain->graph = bench_graph(chain->bench);
    chain->job = calloc(chain->jobs, sizeof *chain->job);
    const muster_arg args[] = {muster_buffer_arg(chain->buffer, MUSTER_READ_WRITE), muster_u32_arg(value)};
    muster_dispatch dispatch = bench_dispatch(bench_kernel(chain->bench, "valued"), args, 2);
    for (uint32_t i = 0; i < chain->jobs; i++) chain->job[i] = bench_add(chain->graph, &dispatch);
}

static double raw(chain *chain, bool changed) {
    const bench *bench = chain->bench;
    CUdeviceptr memory = bench->raw[0].memory;
    uint32_t value;
    void *parameters[] = {&memory, &value};
    CUDA_KERNEL_NODE_PARAMS node = node_of(chain, parameters);
    uint64_t begin = mu_now_ns();
    for (uint32_t t = 0; t < TIMES; t++) {
        for (uint32_t i = 0; i < chain->jobs && changed; i++) {
            value = chain->value++;
            BENCH_DRIVER(bench, graph_exec_kernel_node_set_params(chain->exec, chain->nodes[i], &node));
        }
        BENCH_DRIVER(bench, graph_launch(chain->exec, bench->raw[0].stream));
        if (chain->waits || t == TIMES - 1) bench_synchronize(bench, 0);
    }
    return bench_since_us(begin) / TIMES;
}

static double muster(chain *chain, bool changed) {
    muster_run *runs[TIMES];
    uint64_t begin = mu_now_ns();
    for (uint32_t t = 0; t < TIMES; t++) {
        for (uint32_t i = 0; i < chain->jobs && changed; i++) {
            uint32_t value = chain->value++;
            BENCH_OK(muster_graph_set_argument(chain->graph, chain->job[i], 1, &value, sizeof value, &bench_error));
        }
        runs[t] = bench_submit(chain->bench, chain->graph);
        if (chain->waits) BENCH_OK(muster_run_wait(runs[t], MUSTER_FOREVER, &bench_error));
    }
    for (uint32_t t = 0; t < TIMES; t++) BENCH_OK(muster_run_wait(runs[t], MUSTER_FOREVER, &bench_error));
    double each = bench_since_us(begin) / TIMES;
    for (uint32_t t = 0; t < TIMES; t++) muster_run_destroy(runs[t]);
    return each;
}

static double raw_replay(void *user) { return raw(user, false); }
static double raw_new(void *user) { return raw(user, true); }
static double again(void *user) { return muster(user, false); }
static double new_arguments(void *user) { return muster(user, true); }

static void measure_times(chain *chain, const char *when) {
    static const char *const names[WAYS] = {"raw replay", "raw new arguments", "again", "new arguments"};
    const bench_way ways[WAYS] = {raw_replay, raw_new, again, new_arguments};
    measure measures[WAYS] = {0};
    bench_alternate(chain->bench, chain, ways, WAYS, 2, measures);
    double base = measure_percentile(&measures[0], 50), base_new = measure_percentile(&measures[1], 50);
    for (int w = 0; w < WAYS; w++) {
        double median = measure_percentile(&measures[w], 50);
        char name[64];
        snprintf(name, sizeof name, "%s, %s", names[w], when);
        const measure_figure figures[] = {{"chain_us", median},
                                          {"job_us", median / chain->jobs},
                                          {"ratio", median / base},
                                          {"ratio_new", median / base_new}};
        const measure_bound bound = {"ratio", 1.15, false};
        measure_row_bounded(&chain->bench->report, name, figures, 4, &bound, w >= 2 ? 1 : 0);
    }
}

int main(int argc, char **argv) {
    bench bench = {.devices = 1};
    chain chain = {.bench = &bench, .jobs = 1000};
    const bench_option options[] = {{"--jobs", &chain.jobs}};
    bench_parse(&bench, argc, argv, 31, options, 1);
    bench_open(&bench, NULL, "a graph submitted again");
    open_raw_chain(&chain);
    open_chain(&chain);
    chain.waits = true;
    measure_times(&chain, "each waited for");
    chain.waits = false;
    measure_times(&chain, "20 times, then waited for");
    BENCH_DRIVER(&bench, graph_exec_destroy(chain.exec));
    BENCH_DRIVER(&bench, graph_destroy(chain.raw_graph));
    muster_graph_destroy(chain.graph);
    muster_buffer_destroy(chain.buffer);
    free(chain.nodes);
    free(chain.job);
    bench_close(&bench);
    return 0;
}
