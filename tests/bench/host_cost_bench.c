/* What a job costs on the host: building, scheduling and completing it, without any device work.
 *
 *     host_cost_bench [--driver null] [--jobs N] [--chunk N] [--runs R] [--devices D] [--json] [--quick]
 *
 * Runs on the simulator's null mode, where a launch does nothing and is complete at once, so that what is left is Muster's
 * own cost and that of the table's calls. Without --jobs it measures 10,000 and 1,000,000 jobs. The kinds of job:
 *     values        a kernel with two plain values: no data, no dependencies
 *     independent   a kernel that reads two buffers: no dependencies
 *     dependent     a kernel that reads one buffer of 16 and updates another: about two inferred dependencies each
 *     chain         a kernel that updates one and the same buffer: each job depends on the one before
 * They are run in three ways:
 *     one graph     built, then submitted, then waited for, and the same graph again (again_ns): nothing overlaps
 *     graphs        in graphs of --chunk jobs (1,000), each submitted when it is built, at most 64 unfinished: an application that
 *                   builds while its workers run
 *     open run      the same graphs, added to one open run, which is waited for at the end
 * wall_ns is wall clock per job, cpu_ns the process time of all threads; raw_ns is a bare loop over the table's launch entry. Figures
 * are medians over R runs. At the end, what a job of the largest number costs against one of the smallest.
 * Wall clock is only worth looking at on a machine that has two cores for it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

enum { BUFFERS = 16, WINDOW = 64, KINDS = 4, WAYS = 3 };

typedef enum job_kind { VALUES, INDEPENDENT, DEPENDENT, CHAIN } job_kind;
static const char *const kind_names[KINDS] = {"values", "independent", "dependent", "chain"};
static const double kind_bounds_ns[KINDS] = {150, 150, 300, 300};

typedef enum way { ONE_GRAPH, GRAPHS, OPEN_RUN } way;
static const char *const way_names[WAYS] = {"one graph", "graphs", "open run"};

typedef struct setting {
    bench bench;
    muster_kernel *kernel;
    muster_buffer *buffer[BUFFERS];
    uint32_t jobs, chunk;
    job_kind kind;
} setting;

typedef struct cost {
    double wall_ns, cpu_ns, build_ns, submit_ns, complete_ns, again_ns; /* per job */
} cost;

static uint64_t cpu_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static muster_graph *build(const setting *setting, uint32_t first, uint32_t count) {
    muster_arg args[2] = {muster_u64_arg(0), muster_u64_arg(0)};
    muster_dispatch dispatch = bench_dispatch(setting->kernel, args, 2);
    muster_graph *graph = bench_graph(&setting->bench);
    for (uint32_t i = first; i < first + count; i++) {
        uint32_t in = i % BUFFERS, out = (i * 7 + 3) % BUFFERS;
        if (setting->kind == CHAIN) in = 1, out = 0;
        if (in == out) out = (out + 1) % BUFFERS;
        if (setting->kind != VALUES) {
            args[0] = muster_buffer_arg(setting->buffer[in], MUSTER_READ);
            args[1] =
                muster_buffer_arg(setting->buffer[out], setting->kind == INDEPENDENT ? MUSTER_READ : MUSTER_READ_WRITE);
        }
        bench_add(graph, &dispatch);
    }
    return graph;
}

static cost one_graph(const setting *setting) {
    cost cost;
    uint64_t cpu = cpu_now_ns(), begin = mu_now_ns();
    muster_graph *graph = build(setting, 0, setting->jobs);
    uint64_t built = mu_now_ns();
    muster_run *run = bench_submit(&setting->bench, graph);
    uint64_t submitted = mu_now_ns();
    bench_finish(run);
    uint64_t end = mu_now_ns();
    cost.cpu_ns = (double)(cpu_now_ns() - cpu) / setting->jobs;
    cost.wall_ns = (double)(end - begin) / setting->jobs;
    cost.build_ns = (double)(built - begin) / setting->jobs;
    cost.submit_ns = (double)(submitted - built) / setting->jobs;
    cost.complete_ns = (double)(end - submitted) / setting->jobs;
    begin = mu_now_ns();
    bench_run(&setting->bench, graph);
    cost.again_ns = (double)(mu_now_ns() - begin) / setting->jobs;
    muster_graph_destroy(graph);
    return cost;
}

static void run_graphs(const setting *setting) {
    muster_run *window[WINDOW] = {NULL};
    uint32_t turn = 0;
    for (uint32_t first = 0; first < setting->jobs; first += setting->chunk) {
        uint32_t count = setting->jobs - first < setting->chunk ? setting->jobs - first : setting->chunk;
        muster_graph *graph = build(setting, first, count);
        muster_run **slot = &window[turn++ % WINDOW];
        if (*slot) bench_finish(*slot);
        *slot = bench_submit(&setting->bench, graph);
        muster_graph_destroy(graph);
    }
    for (uint32_t i = 0; i < WINDOW; i++)
        if (window[turn++ % WINDOW]) bench_finish(window[(turn - 1) % WINDOW]);
}

static void run_open(const setting *setting) {
    muster_run *run;
    BENCH_OK(muster_run_open(setting->bench.runtime, &run, &bench_error));
    for (uint32_t first = 0; first < setting->jobs; first += setting->chunk) {
        uint32_t count = setting->jobs - first < setting->chunk ? setting->jobs - first : setting->chunk;
        muster_graph *graph = build(setting, first, count);
        BENCH_OK(muster_run_add(run, graph, NULL, &bench_error));
        muster_graph_destroy(graph);
    }
    BENCH_OK(muster_run_close(run, &bench_error));
    bench_finish(run);
}

static cost overlapped(const setting *setting, void (*run)(const struct setting *)) {
    uint64_t cpu = cpu_now_ns(), begin = mu_now_ns();
    run(setting);
    double wall = (double)(mu_now_ns() - begin) / setting->jobs;
    return (cost){wall, (double)(cpu_now_ns() - cpu) / setting->jobs, NAN, NAN, NAN, NAN};
}

/* The table's own cost: what any program that launches kernels pays. */
static double raw_ns(const setting *setting) {
    CUdeviceptr pointer[2] = {0, 0};
    void *parameters[2] = {&pointer[0], &pointer[1]};
    CUfunction function = bench_function(&setting->bench, 0, "empty_0");
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < setting->jobs; i++) bench_launch(&setting->bench, 0, function, parameters);
    bench_synchronize(&setting->bench, 0);
    return (double)(mu_now_ns() - begin) / setting->jobs;
}

static void measure_add_cost(measure measures[6], const cost *cost) {
    measure_add(&measures[0], cost->wall_ns);
    measure_add(&measures[1], cost->cpu_ns);
    measure_add(&measures[2], cost->build_ns);
    measure_add(&measures[3], cost->submit_ns);
    measure_add(&measures[4], cost->complete_ns);
    measure_add(&measures[5], cost->again_ns);
}

/* The medians of wall clock go to `wall_ns`, by way. */
static void measure_kind(setting *setting, uint32_t runs, double wall_ns[WAYS]) {
    measure ways[WAYS][6] = {0}, raw = {0};
    for (uint32_t r = 0; r < runs; r++) {
        measure_add(&raw, raw_ns(setting));
        cost costs[WAYS] = {one_graph(setting), overlapped(setting, run_graphs), overlapped(setting, run_open)};
        for (int w = 0; w < WAYS; w++) measure_add_cost(ways[w], &costs[w]);
    }
    for (int w = 0; w < WAYS; w++) {
        char name[64];
        wall_ns[w] = measure_percentile(&ways[w][0], 50);
        snprintf(name, sizeof name, "%s, %" PRIu32 " jobs, %s", kind_names[setting->kind], setting->jobs, way_names[w]);
        const measure_figure figures[] = {{"wall_ns", wall_ns[w]},
                                          {"cpu_ns", measure_percentile(&ways[w][1], 50)},
                                          {"build_ns", measure_percentile(&ways[w][2], 50)},
                                          {"submit_ns", measure_percentile(&ways[w][3], 50)},
                                          {"complete_ns", measure_percentile(&ways[w][4], 50)},
                                          {"again_ns", measure_percentile(&ways[w][5], 50)},
                                          {"raw_ns", measure_percentile(&raw, 50)}};
        const measure_bound bound = {"wall_ns", kind_bounds_ns[setting->kind], false};
        measure_row_bounded(&setting->bench.report, name, figures, 7, &bound, w == ONE_GRAPH ? 0 : 1);
    }
}

int main(int argc, char **argv) {
    setting setting = {.bench = {.driver = "null", .devices = 1}, .chunk = 1000};
    uint32_t jobs = 0, sizes[2] = {10000, 1000000}, count = 2;
    const bench_option options[] = {{"--jobs", &jobs}, {"--chunk", &setting.chunk}};
    bench_parse(&setting.bench, argc, argv, 0, options, 2);
    if (bench_is_real(&setting.bench)) {
        fprintf(stderr, "%s is for the null driver\n", setting.bench.name);
        return 2;
    }
    if (setting.bench.quick) sizes[0] = 2000, sizes[1] = 10000;
    if (jobs) sizes[0] = jobs, count = 1;
    bench_open(&setting.bench, NULL, "host cost per job");
    setting.bench.report.unjudged = setting.bench.quick;
    setting.kernel = bench_kernel(&setting.bench, "empty_0");
    for (int b = 0; b < BUFFERS; b++) setting.buffer[b] = bench_buffer(&setting.bench, 4096, NULL);
    double wall_ns[2][KINDS][WAYS];
    for (uint32_t size = 0; size < count; size++) {
        setting.jobs = sizes[size];
        uint32_t runs = setting.bench.runs ? setting.bench.runs : sizes[size] > 100000 ? 5 : 21;
        for (int kind = VALUES; kind <= CHAIN; kind++) {
            setting.kind = (job_kind)kind;
            measure_kind(&setting, runs, wall_ns[size][kind]);
        }
    }
    for (int kind = VALUES; kind <= CHAIN && count == 2; kind++)
        for (int w = 0; w < WAYS; w++) {
            char name[96];
            snprintf(name, sizeof name, "%s, %s, %" PRIu32 " against %" PRIu32, kind_names[kind], way_names[w],
                     sizes[1], sizes[0]);
            const measure_figure figures[] = {{"ratio", wall_ns[1][kind][w] / wall_ns[0][kind][w]}};
            const measure_bound bound = {"ratio", 1.2, false};
            measure_row_bounded(&setting.bench.report, name, figures, 1, &bound, 1);
        }
    bench_close(&setting.bench);
    return 0;
}
