/* Is a backlog of jobs faster than a loop of launches?
 *
 *     launch_overhead_bench [--jobs N] [options of bench.h]
 *
 * Kernels do nothing, so that launching is all there is. First 10,000 jobs, then --jobs (1,000,000), each in these ways, in turns:
 *     raw               cuLaunchKernel N times on one stream, then cuStreamSynchronize, from one thread
 *     one graph         build, submit, run and wait, one after the other
 *     open run          the same jobs in graphs of 1,000, added to an open run as they are built
 * for independent jobs (each reads two buffers) and dependent ones (each reads one of 16 buffers and updates another, dependencies
 * inferred); and a graph that exists already, submitted again. Figures are medians over R runs in microseconds of wall clock per
 * job, with the 10th and 90th percentile; `ratio` is to raw: below 1 is faster than the loop. Only one device is used. */
#include <inttypes.h>
#include <stdio.h>

#include "tests/bench/backlog.h"

enum { WAYS = 7, SIZES = 2 };

typedef struct setting {
    backlog independent, dependent;
    muster_graph *independent_graph, *dependent_graph;
} setting;

static double raw(void *user) { return backlog_raw_us(&((setting *)user)->independent); }
static double one_graph(void *user) { return backlog_one_graph_us(&((setting *)user)->independent); }
static double open_run(void *user) { return backlog_open_run_us(&((setting *)user)->independent); }
static double dependent_graph(void *user) { return backlog_one_graph_us(&((setting *)user)->dependent); }
static double dependent_open(void *user) { return backlog_open_run_us(&((setting *)user)->dependent); }

static double resubmit(const backlog *backlog, muster_graph *graph) {
    uint64_t begin = mu_now_ns();
    bench_run(backlog->bench, graph);
    return bench_since_us(begin) / backlog->jobs;
}
static double again(void *user) {
    setting *setting = user;
    return resubmit(&setting->independent, setting->independent_graph);
}
static double dependent_again(void *user) {
    setting *setting = user;
    return resubmit(&setting->dependent, setting->dependent_graph);
}

static const struct {
    const char *name;
    bench_way way;
    double bound_us, bound_ratio; /* 0: none; of the large number */
} rows[WAYS] = {{"raw loop", raw, 0, 0},
                {"independent, one graph", one_graph, 0.80, 0.22},
                {"independent, open run", open_run, 0.80, 0.22},
                {"dependent, one graph", dependent_graph, 0.90, 0},
                {"dependent, open run", dependent_open, 0.90, 0},
                {"independent, submitted again", again, 0, 0},
                {"dependent, submitted again", dependent_again, 0, 0}};

static void measure_size(bench *bench, uint32_t jobs, uint32_t warm, bool bounded, double medians[WAYS]) {
    setting setting;
    measure measures[WAYS] = {0};
    bench_way ways[WAYS];
    backlog_open(&setting.independent, bench, BACKLOG_INDEPENDENT, jobs);
    backlog_open(&setting.dependent, bench, BACKLOG_DEPENDENT, jobs);
    setting.independent_graph = backlog_build(&setting.independent, 0, jobs);
    setting.dependent_graph = backlog_build(&setting.dependent, 0, jobs);
    for (int w = 0; w < WAYS; w++) ways[w] = rows[w].way;
    bench_alternate(bench, &setting, ways, WAYS, warm, measures);
    for (int w = 0; w < WAYS; w++) {
        char name[64];
        snprintf(name, sizeof name, "%" PRIu32 " jobs, %s", jobs, rows[w].name);
        medians[w] = measure_percentile(&measures[w], 50);
        const measure_figure figures[] = {{"median_us", medians[w]},
                                          {"p10_us", measure_percentile(&measures[w], 10)},
                                          {"p90_us", measure_percentile(&measures[w], 90)},
                                          {"ratio", medians[w] / medians[0]}};
        const measure_bound bounds[] = {{"median_us", rows[w].bound_us, false}, {"ratio", rows[w].bound_ratio, false}};
        size_t bound_count = !bounded || rows[w].bound_us == 0 ? 0 : rows[w].bound_ratio == 0 ? 1 : 2;
        measure_row_bounded(&bench->report, name, figures, 4, bounds, bound_count);
    }
    muster_graph_destroy(setting.independent_graph);
    muster_graph_destroy(setting.dependent_graph);
    backlog_close(&setting.independent);
    backlog_close(&setting.dependent);
}

int main(int argc, char **argv) {
    bench bench = {.devices = 1};
    uint32_t jobs = 1000000, small = 10000;
    double medians[SIZES][WAYS];
    const bench_option options[] = {{"--jobs", &jobs}};
    bench_parse(&bench, argc, argv, 0, options, 1);
    if (bench.quick) small = 100, jobs = 2000;
    bench_open(&bench, NULL, "launch overhead");
    uint32_t runs = bench.runs;
    bench.runs = runs ? runs : 21;
    measure_size(&bench, small, 1, false, medians[0]);
    bench.runs = runs ? runs : 3;
    measure_size(&bench, jobs, 0, true, medians[1]);
    for (int w = 1; w < 5; w++) {
        char name[96];
        snprintf(name, sizeof name, "%s, %" PRIu32 " against %" PRIu32, rows[w].name, jobs, small);
        const measure_figure figures[] = {{"ratio", medians[1][w] / medians[0][w]}};
        const measure_bound bound = {"ratio", 1.2, false};
        measure_row_bounded(&bench.report, name, figures, 1, &bound, 1);
    }
    bench_close(&bench);
    return 0;
}
