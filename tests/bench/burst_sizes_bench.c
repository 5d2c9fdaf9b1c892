/* Is a short backlog ever slower than a loop of launches?
 *
 *     burst_sizes_bench [options of bench.h]
 *
 * 8, 16, ... 4,096 independent jobs of one empty kernel over two buffers, and then a wait, against as many launches and a
 * synchronisation: a graph submitted again, and built each time. Each measurement repeats that until it has had some 4,096 jobs. Microseconds
 * of wall clock per job, medians; `again` and `built` are the ratios to raw. */
#include <inttypes.h>
#include <stdio.h>

#include "tests/bench/backlog.h"

enum { WAYS = 3, MOST = 4096 };

typedef struct setting {
    backlog backlog;
    muster_graph *graph;
} setting;

static uint32_t repeats(const setting *setting) { return MOST / setting->backlog.jobs; }

static double raw(void *user) {
    setting *setting = user;
    double sum = 0;
    for (uint32_t i = 0; i < repeats(setting); i++) sum += backlog_raw_us(&setting->backlog);
    return sum / repeats(setting);
}

static double again(void *user) {
    setting *setting = user;
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < repeats(setting); i++) bench_run(setting->backlog.bench, setting->graph);
    return bench_since_us(begin) / repeats(setting) / setting->backlog.jobs;
}

static double built(void *user) {
    setting *setting = user;
    double sum = 0;
    for (uint32_t i = 0; i < repeats(setting); i++) sum += backlog_one_graph_us(&setting->backlog);
    return sum / repeats(setting);
}

static void measure_jobs(bench *bench, uint32_t jobs) {
    const bench_way ways[WAYS] = {raw, again, built};
    measure measures[WAYS] = {0};
    setting setting;
    backlog_open(&setting.backlog, bench, BACKLOG_INDEPENDENT, jobs);
    setting.graph = backlog_build(&setting.backlog, 0, jobs);
    bench_alternate(bench, &setting, ways, WAYS, 1, measures);
    double us[WAYS];
    for (int w = 0; w < WAYS; w++) us[w] = measure_percentile(&measures[w], 50);
    const measure_figure figures[] = {{"raw_us", us[0]},
                                      {"again_us", us[1]},
                                      {"built_us", us[2]},
                                      {"again", us[1] / us[0]},
                                      {"built", us[2] / us[0]}};
    const measure_bound bounds[] = {{"again", 1.03, false}, {"built", 1.03, false}};
    char name[32];
    snprintf(name, sizeof name, "%" PRIu32 " jobs", jobs);
    measure_row_bounded(&bench->report, name, figures, 5, bounds, 2);
    muster_graph_destroy(setting.graph);
    backlog_close(&setting.backlog);
}

int main(int argc, char **argv) {
    bench bench = {.devices = 1};
    bench_parse(&bench, argc, argv, 31, NULL, 0);
    bench_open(&bench, NULL, "short backlogs");
    for (uint32_t jobs = 8; jobs <= MOST; jobs *= 2) measure_jobs(&bench, jobs);
    bench_close(&bench);
    return 0;
}
