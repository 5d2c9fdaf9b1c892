/* What a job costs on the host: building, scheduling and completing it, without any device work.
 *
 *     host_cost_bench [--driver null] [--jobs N] [--chunk N] [--runs R] [--devices D] [--json] [--quick]
 *
 * Runs on the simulator's null mode, where a launch does nothing and is complete at once, so that what is left is Muster's
 * own cost and that of the table's calls. Without --jobs it measures 10,000 and 1,000,000 jobs, of each kind in backlog.h.
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

#include "tests/bench/backlog.h"

enum { WAYS = 3 };

static const double kind_bounds_ns[BACKLOG_KINDS] = {150, 150, 300, 300};
static const char *const way_names[WAYS] = {"one graph", "graphs", "open run"};

typedef struct cost {
    double wall_ns, cpu_ns, build_ns, submit_ns, complete_ns, again_ns; /* per job */
} cost;

static uint64_t cpu_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static cost one_graph(const backlog *backlog) {
    cost cost;
    uint64_t cpu = cpu_now_ns(), begin = mu_now_ns();
    muster_graph *graph = backlog_build(backlog, 0, backlog->jobs);
    uint64_t built = mu_now_ns();
    muster_run *run = bench_submit(backlog->bench, graph);
    uint64_t submitted = mu_now_ns();
    bench_finish(run);
    uint64_t end = mu_now_ns();
    cost.cpu_ns = (double)(cpu_now_ns() - cpu) / backlog->jobs;
    cost.wall_ns = (double)(end - begin) / backlog->jobs;
    cost.build_ns = (double)(built - begin) / backlog->jobs;
    cost.submit_ns = (double)(submitted - built) / backlog->jobs;
    cost.complete_ns = (double)(end - submitted) / backlog->jobs;
    begin = mu_now_ns();
    bench_run(backlog->bench, graph);
    cost.again_ns = (double)(mu_now_ns() - begin) / backlog->jobs;
    muster_graph_destroy(graph);
    return cost;
}

static cost overlapped(const backlog *backlog, void (*run)(const struct backlog *)) {
    uint64_t cpu = cpu_now_ns(), begin = mu_now_ns();
    run(backlog);
    double wall = (double)(mu_now_ns() - begin) / backlog->jobs;
    return (cost){wall, (double)(cpu_now_ns() - cpu) / backlog->jobs, NAN, NAN, NAN, NAN};
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
static void measure_kind(measure_report *report, backlog *backlog, uint32_t runs, double wall_ns[WAYS]) {
    measure ways[WAYS][6] = {0}, raw = {0};
    for (uint32_t r = 0; r < runs; r++) {
        measure_add(&raw, 1e3 * backlog_raw_us(backlog));
        cost costs[WAYS] = {one_graph(backlog), overlapped(backlog, backlog_run_graphs),
                            overlapped(backlog, backlog_run_open)};
        for (int w = 0; w < WAYS; w++) measure_add_cost(ways[w], &costs[w]);
    }
    for (int w = 0; w < WAYS; w++) {
        char name[64];
        wall_ns[w] = measure_percentile(&ways[w][0], 50);
        snprintf(name, sizeof name, "%s, %" PRIu32 " jobs, %s", backlog_kind_names[backlog->kind], backlog->jobs,
                 way_names[w]);
        const measure_figure figures[] = {{"wall_ns", wall_ns[w]},
                                          {"cpu_ns", measure_percentile(&ways[w][1], 50)},
                                          {"build_ns", measure_percentile(&ways[w][2], 50)},
                                          {"submit_ns", measure_percentile(&ways[w][3], 50)},
                                          {"complete_ns", measure_percentile(&ways[w][4], 50)},
                                          {"again_ns", measure_percentile(&ways[w][5], 50)},
                                          {"raw_ns", measure_percentile(&raw, 50)}};
        const measure_bound bound = {"wall_ns", kind_bounds_ns[backlog->kind], false};
        measure_row_bounded(report, name, figures, 7, &bound, w == 0 ? 0 : 1);
    }
}

static void measure_sizes(bench *bench, const uint32_t sizes[], uint32_t count, uint32_t chunk) {
    double wall_ns[2][BACKLOG_KINDS][WAYS];
    for (uint32_t size = 0; size < count; size++)
        for (int kind = 0; kind < BACKLOG_KINDS; kind++) {
            backlog backlog;
            backlog_open(&backlog, bench, (backlog_kind)kind, sizes[size]);
            backlog.chunk = chunk;
            uint32_t runs = bench->runs ? bench->runs : sizes[size] > 100000 ? 5 : 21;
            measure_kind(&bench->report, &backlog, runs, wall_ns[size][kind]);
            backlog_close(&backlog);
        }
    for (int kind = 0; kind < BACKLOG_KINDS && count == 2; kind++)
        for (int w = 0; w < WAYS; w++) {
            char name[96];
            snprintf(name, sizeof name, "%s, %s, %" PRIu32 " against %" PRIu32, backlog_kind_names[kind], way_names[w],
                     sizes[1], sizes[0]);
            const measure_figure figures[] = {{"ratio", wall_ns[1][kind][w] / wall_ns[0][kind][w]}};
            const measure_bound bound = {"ratio", 1.2, false};
            measure_row_bounded(&bench->report, name, figures, 1, &bound, 1);
        }
}

int main(int argc, char **argv) {
    bench bench = {.driver = "null", .devices = 1};
    uint32_t jobs = 0, chunk = 1000, sizes[2] = {10000, 1000000};
    const bench_option options[] = {{"--jobs", &jobs}, {"--chunk", &chunk}};
    bench_parse(&bench, argc, argv, 0, options, 2);
    if (bench_is_real(&bench)) {
        fprintf(stderr, "%s is for the null driver\n", bench.name);
        return 2;
    }
    if (bench.quick) sizes[0] = 2000, sizes[1] = 10000;
    if (jobs) sizes[0] = jobs;
    bench_open(&bench, NULL, "host cost per job");
    bench.report.unjudged = bench.quick;
    measure_sizes(&bench, sizes, jobs ? 1 : 2, chunk);
    bench_close(&bench);
    return 0;
}
