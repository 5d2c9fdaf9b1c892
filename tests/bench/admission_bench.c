/* What admission costs a job whose program and data are on the device already.
 *
 *     admission_bench [--jobs N] [options of bench.h]
 *
 * Runs on the simulator's null mode. "job with data" is a kernel over two buffers that are resident, "job without" the same kernel
 * with two plain values, each job run again in a graph of N; what lies between them is finding the data and noting its use, which
 * is all that admission adds. The other rows are its parts by themselves, per call: what only a job without resident data pays
 * (required, reserve), and what only a cooperative one does (shape). Figures are medians, in nanoseconds. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/actor/bind.h"
#include "scheduler/graph/shape.h"
#include "scheduler/runtime/runtime.h"
#include "tests/bench/bench.h"

enum { BUFFERS = 16, CALLS = 100000 };

typedef struct setting {
    bench bench;
    muster_kernel *kernel;
    muster_buffer *buffer[BUFFERS];
    uint32_t jobs;
} setting;

static muster_graph *new_graph(const setting *setting, bool data, uint32_t flags) {
    muster_arg args[2] = {muster_u64_arg(0), muster_u64_arg(0)};
    muster_dispatch dispatch = bench_dispatch(setting->kernel, args, 2);
    muster_graph *graph = bench_graph(&setting->bench);
    dispatch.flags = flags;
    for (uint32_t i = 0; i < setting->jobs; i++) {
        if (data)
            for (uint32_t a = 0; a < 2; a++)
                args[a] = muster_buffer_arg(setting->buffer[(i + 5 * a) % BUFFERS], MUSTER_READ);
        bench_add(graph, &dispatch);
    }
    return graph;
}

static double run_ns(const setting *setting, muster_graph *graph) {
    uint64_t begin = mu_now_ns();
    bench_run(&setting->bench, graph);
    return (double)(mu_now_ns() - begin) / setting->jobs;
}

static void measure_jobs(setting *setting) {
    muster_graph *with = new_graph(setting, true, 0), *without = new_graph(setting, false, 0);
    measure resident = {0}, bare = {0};
    run_ns(setting, with);
    run_ns(setting, without);
    for (uint32_t r = 0; r < setting->bench.runs; r++) {
        measure_add(&resident, run_ns(setting, with));
        measure_add(&bare, run_ns(setting, without));
    }
    double a = measure_percentile(&resident, 50), b = measure_percentile(&bare, 50);
    const measure_figure figures[] = {{"with_data_ns", a}, {"without_ns", b}, {"admission_ns", a - b}};
    char name[64];
    snprintf(name, sizeof name, "%" PRIu32 " resident jobs", setting->jobs);
    measure_row(&setting->bench.report, name, figures, 3);
    muster_graph_destroy(with);
    muster_graph_destroy(without);
}

static volatile uint64_t sink;
typedef double (*part_fn)(const setting *setting, const muster_graph *graph);

static double reserve_ns(const setting *setting, const muster_graph *graph) {
    (void)graph;
    mu_ledger *ledger = mu_device_ledger(setting->bench.runtime->actors[0].device);
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < CALLS; i++) {
        sink = mu_ledger_reserve(ledger, 4096);
        mu_ledger_release(ledger, 4096);
    }
    return (double)(mu_now_ns() - begin) / CALLS;
}

static double required_ns(const setting *setting, const muster_graph *graph) {
    (void)setting;
    uint64_t begin = mu_now_ns(), bytes = 0;
    for (uint32_t i = 0; i < CALLS; i++) {
        mu_bind_required(graph, &graph->nodes[0], &bytes, NULL);
        sink = bytes;
    }
    return (double)(mu_now_ns() - begin) / CALLS;
}

static double shape_ns(const setting *setting, const muster_graph *graph) {
    const mu_capability *capability = mu_device_capability(setting->bench.runtime->actors[0].device);
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < CALLS; i++) {
        const mu_shape_request request = mu_shape_of_node(graph, &graph->nodes[0]);
        mu_shape shape;
        BENCH_OK(mu_shape_resolve(capability, &request, 8, &shape, &bench_error));
        sink = shape.limit;
    }
    return (double)(mu_now_ns() - begin) / CALLS;
}

static void measure_part(setting *setting, const char *name, const muster_graph *graph, part_fn part) {
    measure times = {0};
    for (uint32_t r = 0; r < setting->bench.runs; r++) measure_add(&times, part(setting, graph));
    const measure_figure figures[] = {{"call_ns", measure_percentile(&times, 50)}};
    measure_row(&setting->bench.report, name, figures, 1);
}

int main(int argc, char **argv) {
    setting setting = {.bench = {.driver = "null", .devices = 1}, .jobs = 10000};
    const bench_option options[] = {{"--jobs", &setting.jobs}};
    bench_parse(&setting.bench, argc, argv, 21, options, 1);
    bench_open(&setting.bench, NULL, "admission");
    setting.kernel = bench_kernel(&setting.bench, "empty_0");
    for (int b = 0; b < BUFFERS; b++) setting.buffer[b] = bench_buffer(&setting.bench, 4096, NULL);
    muster_graph *cooperative = new_graph(&setting, true, MUSTER_DISPATCH_COOPERATIVE);
    measure_jobs(&setting);
    measure_part(&setting, "required memory", cooperative, required_ns);
    measure_part(&setting, "reserve and release", cooperative, reserve_ns);
    measure_part(&setting, "cooperative shape", cooperative, shape_ns);
    bench_close(&setting.bench);
    return 0;
}
