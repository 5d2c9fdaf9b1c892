/* What does a backlog cost that mixes kernels, where each launch differs from the one before?
 *
 *     mixed_kernels_bench [--jobs N] [options of bench.h]
 *
 * N (100,000) independent jobs of 16 kernels in random order, the same order for all: a loop of launches, one graph (build, submit,
 * run and wait), and an open run of graphs of 1,000. Microseconds of wall clock per job, medians; `ratio` is to the loop. */
#include <inttypes.h>
#include <stdio.h>

#include "tests/bench/backlog.h"

int main(int argc, char **argv) {
    static const char *const names[] = {"raw loop", "one graph", "open run"};
    const bench_way ways[] = {backlog_raw_us, backlog_one_graph_us, backlog_open_run_us};
    bench bench = {.devices = 1};
    backlog backlog;
    measure measures[3] = {0};
    uint32_t jobs = 100000;
    const bench_option options[] = {{"--jobs", &jobs}};
    bench_parse(&bench, argc, argv, 9, options, 1);
    if (bench.quick) jobs = 2000;
    bench_open(&bench, NULL, "16 kernels in random order");
    backlog_open(&backlog, &bench, BACKLOG_INDEPENDENT, jobs);
    backlog.functions = BACKLOG_KERNELS;
    bench_alternate(&bench, &backlog, ways, 3, 1, measures);
    double raw = measure_percentile(&measures[0], 50);
    for (int w = 0; w < 3; w++) {
        double median = measure_percentile(&measures[w], 50);
        char name[64];
        snprintf(name, sizeof name, "%" PRIu32 " jobs, %s", jobs, names[w]);
        const measure_figure figures[] = {{"median_us", median}, {"ratio", median / raw}};
        const measure_bound bounds[] = {{"median_us", 2.0, false}, {"ratio", 1.0, false}};
        measure_row_bounded(&bench.report, name, figures, 2, bounds, w ? 2 : 0);
    }
    backlog_close(&backlog);
    bench_close(&bench);
    return 0;
}
