/* What does a task of a dependence pattern cost?
 *
 *     patterns_bench [--width W] [--steps S] [options of bench.h]
 *
 * The patterns of Task Bench: W (16) tasks a step, S (1,000) steps. Task x of a step writes a buffer of its own and reads those of
 * tasks of the step before (two sets of buffers take turns); Muster infers the dependencies from that. A task is one empty kernel.
 *     trivial   reads nothing
 *     stencil   x - 1, x, x + 1
 *     fft       x - d, x, x + d, with d = 1, 2, 4, ... from step to step
 *     sweep     x - 1, x
 *     tree      x / 2
 *     random    each of x - 2 ... x + 2 with one chance in two
 * For each: the same launches in a loop on one stream, which keeps them all in order (raw_us); one graph, built, submitted, run
 * and waited for (graph_us); an open run of graphs of 50 steps (open_us); the graph submitted again (again_us). Microseconds of wall
 * clock per task, medians; `ratio` is graph_us to raw_us. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

enum { MAX_INPUTS = 5, PARAMETERS = 1 + MAX_INPUTS, PART_STEPS = 50 };

typedef struct pattern {
    bench *bench;
    muster_kernel *kernel;
    uint32_t width, steps;
    muster_buffer **buffers[2];
    muster_graph *graph;
    uint32_t kind;
} pattern;

enum { TRIVIAL, STENCIL, FFT, SWEEP, TREE, RANDOM, KINDS };
static const char *const kind_names[KINDS] = {"trivial", "stencil", "fft", "sweep", "tree", "random"};

static uint32_t hash(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* The tasks of the step before that task x reads. */
static uint32_t inputs_of(const pattern *pattern, uint32_t step, uint32_t x, uint32_t inputs[MAX_INPUTS]) {
    int64_t wanted[MAX_INPUTS] = {x};
    uint32_t count = 1, kept = 0, digits = 0;
    while ((1u << digits) < pattern->width) digits++;
    int64_t distance = digits ? (int64_t)1 << step % digits : 1;
    switch (pattern->kind) {
        case TRIVIAL: count = 0; break;
        case STENCIL: wanted[1] = (int64_t)x - 1, wanted[2] = (int64_t)x + 1, count = 3; break;
        case FFT: wanted[1] = x - distance, wanted[2] = x + distance, count = 3; break;
        case SWEEP: wanted[1] = (int64_t)x - 1, count = 2; break;
        case TREE: wanted[0] = x / 2; break;
        default:
            count = 0;
            for (int64_t d = -2; d <= 2; d++)
                if (hash(step * 5 * pattern->width + x * 5 + (uint32_t)(d + 2)) & 1) wanted[count++] = x + d;
    }
    for (uint32_t i = 0; i < count && step; i++)
        if (wanted[i] >= 0 && wanted[i] < pattern->width) inputs[kept++] = (uint32_t)wanted[i];
    return kept;
}

static void add_steps(const pattern *pattern, muster_graph *graph, uint32_t first, uint32_t count) {
    muster_arg args[PARAMETERS];
    muster_dispatch dispatch = bench_dispatch(pattern->kernel, args, PARAMETERS);
    for (uint32_t step = first; step < first + count && step < pattern->steps; step++)
        for (uint32_t x = 0; x < pattern->width; x++) {
            uint32_t inputs[MAX_INPUTS], used = inputs_of(pattern, step, x, inputs);
            args[0] = muster_buffer_arg(pattern->buffers[step % 2][x], MUSTER_WRITE);
            for (uint32_t i = 0; i < MAX_INPUTS; i++)
                args[1 + i] = i < used ? muster_buffer_arg(pattern->buffers[1 - step % 2][inputs[i]], MUSTER_READ)
                                       : muster_u64_arg(0);
            bench_add(graph, &dispatch);
        }
}

static double per_task_us(const pattern *pattern, uint64_t begin_ns) {
    return bench_since_us(begin_ns) / ((double)pattern->width * pattern->steps);
}

static double raw(void *user) {
    const pattern *pattern = user;
    const bench *bench = pattern->bench;
    CUdeviceptr addresses[PARAMETERS], memory = bench->raw[0].memory;
    void *parameters[PARAMETERS];
    CUfunction function = bench_function(bench, 0, "task");
    for (int i = 0; i < PARAMETERS; i++) parameters[i] = &addresses[i];
    uint64_t begin = mu_now_ns();
    for (uint32_t step = 0; step < pattern->steps; step++)
        for (uint32_t x = 0; x < pattern->width; x++) {
            uint32_t inputs[MAX_INPUTS], used = inputs_of(pattern, step, x, inputs);
            addresses[0] = memory + 256 * x;
            for (uint32_t i = 0; i < MAX_INPUTS; i++) addresses[1 + i] = i < used ? memory + 256 * inputs[i] : 0;
            bench_launch(bench, 0, function, parameters);
        }
    bench_synchronize(bench, 0);
    return per_task_us(pattern, begin);
}

static double one_graph(void *user) {
    pattern *pattern = user;
    muster_graph *graph = bench_graph(pattern->bench);
    uint64_t begin = mu_now_ns();
    add_steps(pattern, graph, 0, pattern->steps);
    bench_run(pattern->bench, graph);
    double each = per_task_us(pattern, begin);
    muster_graph_destroy(pattern->graph);
    pattern->graph = graph;
    return each;
}

static double open_run(void *user) {
    const pattern *pattern = user;
    muster_run *run;
    uint64_t begin = mu_now_ns();
    BENCH_OK(muster_run_open(pattern->bench->runtime, &run, &bench_error));
    for (uint32_t step = 0; step < pattern->steps; step += PART_STEPS) {
        muster_graph *graph = bench_graph(pattern->bench);
        add_steps(pattern, graph, step, PART_STEPS);
        BENCH_OK(muster_run_add(run, graph, NULL, &bench_error));
        muster_graph_destroy(graph);
    }
    BENCH_OK(muster_run_close(run, &bench_error));
    bench_finish(run);
    return per_task_us(pattern, begin);
}

static double again(void *user) {
    const pattern *pattern = user;
    uint64_t begin = mu_now_ns();
    bench_run(pattern->bench, pattern->graph);
    return per_task_us(pattern, begin);
}

static void measure_kind(pattern *pattern) {
    const bench_way ways[] = {raw, one_graph, open_run, again};
    measure measures[4] = {0};
    bench_alternate(pattern->bench, pattern, ways, 4, 1, measures);
    double us[4];
    for (int w = 0; w < 4; w++) us[w] = measure_percentile(&measures[w], 50);
    const measure_figure figures[] = {
        {"raw_us", us[0]}, {"graph_us", us[1]}, {"open_us", us[2]}, {"again_us", us[3]}, {"ratio", us[1] / us[0]}};
    const measure_bound bounds[] = {{"graph_us", 1.2, false}, {"open_us", 1.2, false}};
    measure_row_bounded(&pattern->bench->report, kind_names[pattern->kind], figures, 5, bounds, 2);
}

int main(int argc, char **argv) {
    bench bench = {.devices = 1};
    pattern pattern = {.bench = &bench, .width = 16, .steps = 1000};
    const bench_option options[] = {{"--width", &pattern.width}, {"--steps", &pattern.steps}};
    bench_parse(&bench, argc, argv, 9, options, 2);
    if (bench.quick) pattern.steps = 60;
    if (pattern.width > BENCH_RAW_BYTES / 256) {
        fprintf(stderr, "--width is at most %d\n", BENCH_RAW_BYTES / 256);
        return 2;
    }
    bench_open(&bench, NULL, "dependence patterns");
    pattern.kernel = bench_kernel(&bench, "task");
    for (int set = 0; set < 2; set++) {
        pattern.buffers[set] = calloc(pattern.width, sizeof *pattern.buffers[set]);
        for (uint32_t x = 0; x < pattern.width; x++) pattern.buffers[set][x] = bench_buffer(&bench, 4096, NULL);
    }
    for (pattern.kind = 0; pattern.kind < KINDS; pattern.kind++) measure_kind(&pattern);
    muster_graph_destroy(pattern.graph);
    for (int set = 0; set < 2; set++) {
        for (uint32_t x = 0; x < pattern.width; x++) muster_buffer_destroy(pattern.buffers[set][x]);
        free(pattern.buffers[set]);
    }
    bench_close(&bench);
    return 0;
}
