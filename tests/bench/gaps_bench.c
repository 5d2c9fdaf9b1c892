/* What does another thread do to a busy device that makes, prepares and frees things?
 *
 *     gaps_bench [options of bench.h]
 *
 * A thread keeps a chain of kernels of 5 us going, each of which notes when it started; a gap is what lies between the end of one
 * and the start of the next. Beside it another thread does one thing again and again, with a millisecond between:
 *     nothing          what gaps there are in any case
 *     programs         makes a program that is compiled already, prepares it, looks up a kernel, destroys it
 *     buffers          makes a buffer of 64 MiB, has a job use it, destroys it, which frees 64 MiB of the device
 *     graphs           builds a graph of 8 jobs, runs it, destroys it: its kernels run in the gap
 *     pinned memory    pins 1 MiB and frees it, from the pool
 *     registrations    registers 1 MiB of its memory and unregisters it
 * and, on the raw side, with launches in a loop: loads a cubin and unloads it; cuMemAlloc and cuMemFree; instantiates and launches a
 * graph; cuMemHostAlloc and cuMemFreeHost; registers and unregisters. Worst gaps in microseconds, medians over R runs of each run's
 * worst; load_us is what loading the cubin takes on an idle device. `added_us` is Muster's worst beyond its worst beside nothing. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/bench/bench.h"

enum {
    GRAPHS = 32,
    GRAPH_JOBS = 512,
    STAMPS = GRAPHS * GRAPH_JOBS,
    AHEAD = 4,
    SPIN_NS = 5000,
    LOADS = 11,
    GRAPH_SIZE = 8
};
enum { NOTHING, PROGRAMS, BUFFERS, GRAPHS_BUILT, PINNED, REGISTRATIONS, KINDS };

#define MIB ((uint64_t)1 << 20)

static const char *const kind_names[KINDS] = {"nothing", "programs",      "buffers",
                                              "graphs",  "pinned memory", "registrations"};

typedef struct setting {
    bench *bench;
    int kind;
    bool raw;
    atomic_bool over;
    uint32_t actions; /* of the other thread, in this run */
    muster_buffer *stamps, *small;
    muster_graph *graphs[GRAPHS];
    muster_kernel *empty;
    void *host;
    CUgraph raw_graph;
    uint64_t load_ns;
    uint64_t stamp[STAMPS];
} setting;

/* ---------------------------------------------------------------------------------------------- the other thread -- */

static void act(setting *s) {
    const bench *bench = s->bench;
    muster_program *program;
    muster_kernel *kernel;
    muster_buffer *buffer;
    void *pinned;
    muster_arg args[2] = {muster_buffer_arg(s->small, MUSTER_READ), muster_buffer_arg(s->small, MUSTER_READ)};
    muster_dispatch dispatch = bench_dispatch(s->empty, args, 2);
    muster_graph *graph;
    switch (s->kind) {
        case PROGRAMS:
            BENCH_OK(muster_program_from_ptx(bench->runtime, bench_kernels_ptx, 0, "again", &program, &bench_error));
            BENCH_OK(muster_program_prepare(program, &bench_error));
            BENCH_OK(muster_program_kernel(program, "empty_0", &kernel, &bench_error));
            muster_program_destroy(program);
            break;
        case BUFFERS:
            buffer = bench_buffer(bench, 64 * MIB, NULL);
            args[1] = muster_buffer_arg(buffer, MUSTER_WRITE);
            graph = bench_graph(bench);
            bench_add(graph, &dispatch);
            bench_run(bench, graph);
            muster_graph_destroy(graph);
            muster_buffer_destroy(buffer);
            break;
        case GRAPHS_BUILT:
            graph = bench_graph(bench);
            for (int i = 0; i < GRAPH_SIZE; i++) bench_add(graph, &dispatch);
            bench_run(bench, graph);
            muster_graph_destroy(graph);
            break;
        case PINNED:
            BENCH_OK(muster_host_alloc(bench->runtime, MIB, &pinned, &bench_error));
            BENCH_OK(muster_host_free(bench->runtime, pinned, &bench_error));
            break;
        case REGISTRATIONS:
            BENCH_OK(muster_host_register(bench->runtime, s->host, MIB, &bench_error));
            BENCH_OK(muster_host_unregister(bench->runtime, s->host, &bench_error));
            break;
        default: break;
    }
}

static void act_raw(setting *s, CUstream stream) {
    const bench *bench = s->bench;
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory;
    CUgraphExec exec;
    void *pinned;
    switch (s->kind) {
        case PROGRAMS:
            BENCH_DRIVER(bench, module_load_data_ex(&module, bench->raw[0].cubin, 0, NULL, NULL));
            BENCH_DRIVER(bench, module_get_function(&function, module, "empty_0"));
            BENCH_DRIVER(bench, module_unload(module));
            break;
        case BUFFERS:
            BENCH_DRIVER(bench, mem_alloc(&memory, 64 * MIB));
            BENCH_DRIVER(bench, mem_free(memory));
            break;
        case GRAPHS_BUILT:
            BENCH_DRIVER(bench, graph_instantiate(&exec, s->raw_graph, 0));
            BENCH_DRIVER(bench, graph_launch(exec, stream));
            BENCH_DRIVER(bench, stream_synchronize(stream));
            BENCH_DRIVER(bench, graph_exec_destroy(exec));
            break;
        case PINNED:
            BENCH_DRIVER(bench, mem_host_alloc(&pinned, MIB, CU_MEMHOSTALLOC_PORTABLE));
            BENCH_DRIVER(bench, mem_free_host(pinned));
            break;
        case REGISTRATIONS:
            BENCH_DRIVER(bench, mem_host_register(s->host, MIB, CU_MEMHOSTREGISTER_PORTABLE));
            BENCH_DRIVER(bench, mem_host_unregister(s->host));
            break;
        default: break;
    }
}

static void *disturb(void *argument) {
    setting *s = argument;
    CUstream stream;
    bench_enter(s->bench, 0);
    BENCH_DRIVER(s->bench, stream_create(&stream, CU_STREAM_NON_BLOCKING));
    while (!atomic_load(&s->over)) {
        if (s->raw)
            act_raw(s, stream);
        else
            act(s);
        s->actions++;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    BENCH_DRIVER(s->bench, stream_destroy(stream));
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------ the chain -- */

static void run_chain(setting *s) {
    muster_run *runs[GRAPHS];
    void *pointer;
    for (int g = 0; g < GRAPHS; g++) {
        if (g >= AHEAD) bench_finish(runs[g - AHEAD]);
        runs[g] = bench_submit(s->bench, s->graphs[g]);
    }
    for (int g = GRAPHS - AHEAD; g < GRAPHS; g++) bench_finish(runs[g]);
    atomic_store(&s->over, true);
    BENCH_OK(muster_buffer_acquire(s->stamps, 0, 0, MUSTER_READ, MUSTER_FOREVER, &pointer, &bench_error));
    memcpy(s->stamp, pointer, sizeof s->stamp);
    BENCH_OK(muster_buffer_release(s->stamps, pointer, &bench_error));
}

static void run_raw_chain(setting *s) {
    const bench *bench = s->bench;
    CUdeviceptr memory = bench->raw[0].memory;
    CUfunction function = bench_function(bench, 0, "stamp");
    uint64_t spin_ns = SPIN_NS;
    uint32_t index;
    void *parameters[] = {&memory, &index, &spin_ns};
    for (index = 0; index < STAMPS; index++) bench_launch(bench, 0, function, parameters);
    bench_synchronize(bench, 0);
    atomic_store(&s->over, true);
    BENCH_DRIVER(bench, memcpy_dtoh(s->stamp, memory, sizeof s->stamp));
}

static double worst_gap_us(setting *s) {
    int64_t worst = 0;
    for (uint32_t i = GRAPH_JOBS; i < STAMPS; i++) { /* the first graph starts on an idle device */
        int64_t gap = (int64_t)(s->stamp[i] - s->stamp[i - 1]) - SPIN_NS;
        if (gap > worst) worst = gap;
    }
    return (double)worst * 1e-3;
}

static double one_run(setting *s, bool raw) {
    pthread_t thread;
    s->raw = raw;
    s->actions = 0;
    atomic_store(&s->over, false);
    if (pthread_create(&thread, NULL, disturb, s)) exit(1);
    if (raw)
        run_raw_chain(s);
    else
        run_chain(s);
    pthread_join(thread, NULL);
    return worst_gap_us(s);
}

/* --------------------------------------------------------------------------------------------------- open and so on -- */

static void open_setting(setting *s, bench *bench) {
    s->bench = bench;
    s->empty = bench_kernel(bench, "empty_0");
    s->small = bench_buffer(bench, 4096, NULL);
    s->stamps = bench_buffer(bench, sizeof s->stamp, NULL);
    s->host = aligned_alloc(4096, MIB);
    memset(s->host, 1, MIB);
    muster_arg args[] = {muster_buffer_arg(s->stamps, MUSTER_READ_WRITE), muster_u32_arg(0), muster_u64_arg(SPIN_NS)};
    muster_dispatch dispatch = bench_dispatch(bench_kernel(bench, "stamp"), args, 3);
    for (uint32_t g = 0; g < GRAPHS; g++) {
        s->graphs[g] = bench_graph(bench);
        for (uint32_t i = 0; i < GRAPH_JOBS; i++) {
            args[1] = muster_u32_arg(g * GRAPH_JOBS + i);
            bench_add(s->graphs[g], &dispatch);
        }
    }
}

/* What the raw side loads and instantiates, and how long a load takes. */
static void open_raw(setting *s) {
    const bench *bench = s->bench;
    CUdeviceptr memory = bench->raw[0].memory;
    void *parameters[] = {&memory, &memory};
    CUgraphNode node;
    measure loads = {0};
    for (int i = 0; i < LOADS; i++) {
        CUmodule module;
        uint64_t begin = mu_now_ns();
        BENCH_DRIVER(bench, module_load_data_ex(&module, bench->raw[0].cubin, 0, NULL, NULL));
        measure_add(&loads, (double)(mu_now_ns() - begin));
        BENCH_DRIVER(bench, module_unload(module));
    }
    s->load_ns = (uint64_t)measure_percentile(&loads, 50);
    const CUDA_KERNEL_NODE_PARAMS kernel = {.func = bench_function(bench, 0, "empty_0"),
                                            .gridDimX = 1,
                                            .gridDimY = 1,
                                            .gridDimZ = 1,
                                            .blockDimX = 32,
                                            .blockDimY = 1,
                                            .blockDimZ = 1,
                                            .kernelParams = parameters};
    BENCH_DRIVER(bench, graph_create(&s->raw_graph, 0));
    for (int i = 0; i < 100; i++) BENCH_DRIVER(bench, graph_add_kernel_node(&node, s->raw_graph, NULL, 0, &kernel));
}

static void close_setting(setting *s) {
    BENCH_DRIVER(s->bench, graph_destroy(s->raw_graph));
    for (int g = 0; g < GRAPHS; g++) muster_graph_destroy(s->graphs[g]);
    muster_buffer_destroy(s->small);
    muster_buffer_destroy(s->stamps);
    free(s->host);
}

static void measure_kind(setting *s, double *undisturbed_us) {
    measure raw = {0}, muster = {0};
    uint32_t raw_actions = 0, actions = 0, warm = s->kind == NOTHING;
    for (uint32_t r = 0; r < warm + s->bench->runs; r++) {
        double values[2] = {one_run(s, true)};
        raw_actions = s->actions;
        values[1] = one_run(s, false);
        actions = s->actions;
        if (r < warm) continue;
        measure_add(&raw, values[0]);
        measure_add(&muster, values[1]);
    }
    bool real = bench_executes(s->bench);
    double worst = real ? measure_percentile(&muster, 50) : NAN, load_us = (double)s->load_ns * 1e-3;
    if (s->kind == NOTHING) *undisturbed_us = worst;
    const measure_figure figures[] = {{"raw_us", real ? measure_percentile(&raw, 50) : NAN},
                                      {"muster_us", worst},
                                      {"added_us", worst - *undisturbed_us},
                                      {"load_us", load_us},
                                      {"raw_times", raw_actions},
                                      {"times", actions}};
    /* Nothing at all is within what worst gaps differ by themselves. */
    const measure_bound bound = {"added_us", s->kind == PROGRAMS ? 2 * load_us : 20, false};
    measure_row_bounded(&s->bench->report, kind_names[s->kind], figures, 6, &bound, s->kind == NOTHING ? 0 : 1);
}

int main(int argc, char **argv) {
    bench bench = {.devices = 1};
    static setting setting;
    double undisturbed_us;
    bench_parse(&bench, argc, argv, 5, NULL, 0);
    bench_open(&bench, NULL, "worst gaps on a busy device");
    open_setting(&setting, &bench);
    open_raw(&setting);
    for (setting.kind = 0; setting.kind < KINDS; setting.kind++) measure_kind(&setting, &undisturbed_us);
    close_setting(&setting);
    bench_close(&bench);
    return 0;
}
