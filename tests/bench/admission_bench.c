/* What admission costs a job whose program and data are on the device already.
 *
 *     admission_bench [--jobs N] [--runs R] [--json]
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

#include "base/clock.h"
#include "muster.h"
#include "scheduler/bind.h"
#include "scheduler/runtime.h"
#include "scheduler/shape.h"
#include "tests/bench/measure.h"
#include "tests/scheduler/kernels.h"

enum { BUFFERS = 16, CALLS = 100000 };

static muster_error failure;

static void must(muster_status status, const char *what) {
    if (status == MUSTER_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, muster_status_name(status), failure.message);
    exit(1);
}

typedef struct bench {
    muster_runtime *runtime;
    muster_kernel *kernel;
    muster_buffer *buffer[BUFFERS];
    uint32_t jobs, runs;
} bench;

static muster_graph *new_graph(const bench *bench, bool data, uint32_t flags) {
    muster_graph *graph;
    muster_arg args[2] = {muster_u64_arg(0), muster_u64_arg(0)};
    muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                .kernel = bench->kernel,
                                .grid = {1, 1, 1},
                                .block = {32, 1, 1},
                                .flags = flags,
                                .arg_count = 2,
                                .args = args};
    must(muster_graph_create(bench->runtime, &graph, &failure), "creating a graph");
    for (uint32_t i = 0; i < bench->jobs; i++) {
        if (data)
            for (uint32_t a = 0; a < 2; a++)
                args[a] = muster_buffer_arg(bench->buffer[(i + 5 * a) % BUFFERS], MUSTER_READ);
        must(muster_graph_dispatch(graph, &dispatch, NULL, &failure), "adding a job");
    }
    return graph;
}

static double run_ns(const bench *bench, muster_graph *graph) {
    muster_run *run;
    uint64_t begin = mu_now_ns();
    must(muster_submit(bench->runtime, graph, &run, &failure), "submitting");
    must(muster_run_wait(run, MUSTER_FOREVER, &failure), "waiting");
    uint64_t end = mu_now_ns();
    muster_run_destroy(run);
    return (double)(end - begin) / bench->jobs;
}

static void measure_jobs(const bench *bench, measure_report *report) {
    muster_graph *with = new_graph(bench, true, 0), *without = new_graph(bench, false, 0);
    measure resident = {0}, bare = {0};
    run_ns(bench, with);
    run_ns(bench, without);
    for (uint32_t r = 0; r < bench->runs; r++) {
        measure_add(&resident, run_ns(bench, with));
        measure_add(&bare, run_ns(bench, without));
    }
    double a = measure_percentile(&resident, 50), b = measure_percentile(&bare, 50);
    const measure_figure figures[] = {{"with_data_ns", a}, {"without_ns", b}, {"admission_ns", a - b}};
    char name[64];
    snprintf(name, sizeof name, "%" PRIu32 " resident jobs", bench->jobs);
    measure_row(report, name, figures, 3);
    muster_graph_destroy(with);
    muster_graph_destroy(without);
}

static volatile uint64_t sink;
typedef double (*part_fn)(const bench *bench, const muster_graph *graph);

static double reserve_ns(const bench *bench, const muster_graph *graph) {
    (void)graph;
    mu_ledger *ledger = mu_device_ledger(bench->runtime->actors[0].device);
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < CALLS; i++) {
        sink = mu_ledger_reserve(ledger, 4096);
        mu_ledger_release(ledger, 4096);
    }
    return (double)(mu_now_ns() - begin) / CALLS;
}

static double required_ns(const bench *bench, const muster_graph *graph) {
    (void)bench;
    uint64_t begin = mu_now_ns(), bytes = 0;
    for (uint32_t i = 0; i < CALLS; i++) {
        mu_bind_required(graph, &graph->nodes[0], &bytes, NULL);
        sink = bytes;
    }
    return (double)(mu_now_ns() - begin) / CALLS;
}

static double shape_ns(const bench *bench, const muster_graph *graph) {
    const mu_capability *capability = mu_device_capability(bench->runtime->actors[0].device);
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < CALLS; i++) {
        const mu_shape_request request = mu_shape_of_node(graph, &graph->nodes[0]);
        mu_shape shape;
        must(mu_shape_resolve(capability, &request, 8, &shape, &failure), "resolving");
        sink = shape.limit;
    }
    return (double)(mu_now_ns() - begin) / CALLS;
}

static void measure_part(const bench *bench, measure_report *report, const char *name, const muster_graph *graph,
                         part_fn part) {
    measure times = {0};
    for (uint32_t r = 0; r < bench->runs; r++) measure_add(&times, part(bench, graph));
    const measure_figure figures[] = {{"call_ns", measure_percentile(&times, 50)}};
    measure_row(report, name, figures, 1);
}

int main(int argc, char **argv) {
    bench bench = {.jobs = 10000, .runs = 21};
    measure_report report = {0};
    muster_program *program;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            report.json = true;
        else if (i + 1 < argc && strcmp(argv[i], "--jobs") == 0)
            bench.jobs = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--runs") == 0)
            bench.runs = (uint32_t)strtoul(argv[++i], NULL, 10);
        else
            bench.jobs = 0;
    }
    if (!bench.jobs || !bench.runs || bench.runs > MEASURE_MAX_RUNS) {
        fprintf(stderr, "usage: %s [--jobs N] [--runs R] [--json]; N is at least 1, R from 1 to %d\n", argv[0],
                MEASURE_MAX_RUNS);
        return 2;
    }
    const muster_config config = {.struct_size = sizeof config, .driver = "sim", .sim = "{\"null\": true}"};
    must(muster_runtime_create(&config, &bench.runtime, &failure), "creating the runtime");
    must(muster_program_from_ptx(bench.runtime, test_kernels_ptx, 0, "kernels", &program, &failure), "loading");
    must(muster_program_kernel(program, "nothing", &bench.kernel, &failure), "finding the kernel");
    for (int b = 0; b < BUFFERS; b++)
        must(muster_buffer_create(bench.runtime, 4096, NULL, &bench.buffer[b], &failure), "creating a buffer");
    muster_graph *cooperative = new_graph(&bench, true, MUSTER_DISPATCH_COOPERATIVE);
    measure_begin(&report, "admission, null driver, 1 device");
    measure_jobs(&bench, &report);
    measure_part(&bench, &report, "required memory", cooperative, required_ns);
    measure_part(&bench, &report, "reserve and release", cooperative, reserve_ns);
    measure_part(&bench, &report, "cooperative shape", cooperative, shape_ns);
    measure_end(&report);
    must(muster_runtime_destroy(bench.runtime, MUSTER_FOREVER, &failure), "destroying the runtime");
    return 0;
}
