/* What a job costs on the host: building, scheduling and completing it, without any device work.
 *
 *     host_cost_bench [--jobs N] [--runs R] [--devices D] [--json]
 *
 * Runs on the simulator's null mode, where a launch does nothing and is complete at once, so that what is left is Muster's
 * own cost and that of the table's calls. Without --jobs it measures 10,000 and 1,000,000 jobs. The kinds of job:
 *     independent   a kernel that reads two buffers: no dependencies
 *     dependent     a kernel that reads one buffer of 16 and updates another: about two inferred dependencies each
 *     chain         a kernel that updates one and the same buffer: each job depends on the one before
 * Each is built as a graph and run (build, then submit to the end of wait), and the same graph is run again (again).
 * "raw" is a bare loop over the table's launch entry. Figures are medians, in nanoseconds of wall clock per job; `ratio`
 * is build + run over raw. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/driver.h"
#include "muster.h"
#include "scheduler/runtime.h"
#include "tests/bench/measure.h"
#include "tests/scheduler/kernels.h"

enum { BUFFERS = 16 };

static muster_error failure;

static void must(muster_status status, const char *what) {
    if (status == MUSTER_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, muster_status_name(status), failure.message);
    exit(1);
}

typedef enum shape_kind { INDEPENDENT, DEPENDENT, CHAIN } shape_kind;
static const char *const shape_names[] = {"independent", "dependent", "chain"};

typedef struct bench {
    muster_runtime *runtime;
    muster_kernel *kernel;
    muster_buffer *buffer[BUFFERS];
    uint32_t runs;
} bench;

static void open_bench(bench *bench, uint32_t devices) {
    char spec[64];
    muster_program *program;
    snprintf(spec, sizeof spec, "{\"null\": true, \"devices\": %" PRIu32 "}", devices);
    muster_config config = {.struct_size = sizeof config, .driver = "sim", .sim = spec};
    must(muster_runtime_create(&config, &bench->runtime, &failure), "creating the runtime");
    must(muster_program_from_ptx(bench->runtime, test_kernels_ptx, 0, "kernels", &program, &failure), "loading");
    must(muster_program_kernel(program, "nothing", &bench->kernel, &failure), "finding the kernel");
    for (int b = 0; b < BUFFERS; b++)
        must(muster_buffer_create(bench->runtime, 4096, NULL, &bench->buffer[b], &failure), "creating a buffer");
}

static void add_jobs(const bench *bench, muster_graph *graph, shape_kind shape, uint32_t jobs) {
    muster_arg args[2];
    muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                .kernel = bench->kernel,
                                .grid = {1, 1, 1},
                                .block = {32, 1, 1},
                                .arg_count = 2,
                                .args = args};
    for (uint32_t i = 0; i < jobs; i++) {
        uint32_t in = i % BUFFERS, out = (i * 7 + 3) % BUFFERS;
        if (shape == CHAIN) in = 1, out = 0;
        if (in == out) out = (out + 1) % BUFFERS;
        args[0] = muster_buffer_arg(bench->buffer[in], MUSTER_READ);
        args[1] = muster_buffer_arg(bench->buffer[out], shape == INDEPENDENT ? MUSTER_READ : MUSTER_READ_WRITE);
        must(muster_graph_dispatch(graph, &dispatch, NULL, &failure), "adding a job");
    }
}

static void run_graph(const bench *bench, muster_graph *graph, uint64_t *submitted_ns) {
    muster_run *run;
    must(muster_submit(bench->runtime, graph, &run, &failure), "submitting");
    *submitted_ns = mu_now_ns();
    must(muster_run_wait(run, MUSTER_FOREVER, &failure), "waiting");
    muster_run_destroy(run);
}

/* The table's own cost: what any program that launches kernels pays. */
static double raw_launch_ns(const bench *bench, uint32_t launches) {
    const mu_driver *driver = bench->runtime->driver;
    CUcontext context;
    CUstream stream;
    CUmodule module;
    CUfunction function;
    CUdevice device;
    CUdeviceptr pointer[2] = {0, 0};
    void *parameters[2] = {&pointer[0], &pointer[1]};
    CUresult code = driver->device_get(&device, 0);
    if (!code) code = driver->primary_ctx_retain(&context, device);
    if (!code) code = driver->ctx_push_current(context);
    if (!code) code = driver->stream_create(&stream, CU_STREAM_NON_BLOCKING);
    if (!code) code = driver->module_load_data_ex(&module, test_kernels_ptx, 0, NULL, NULL);
    if (!code) code = driver->module_get_function(&function, module, "nothing");
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < launches && !code; i++)
        code = driver->launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
    if (!code) code = driver->stream_synchronize(stream);
    uint64_t end = mu_now_ns();
    if (code) {
        fprintf(stderr, "the raw loop failed with %s\n", mu_driver_error_name(driver, code));
        exit(1);
    }
    driver->module_unload(module);
    driver->stream_destroy(stream);
    driver->ctx_pop_current(&context);
    driver->primary_ctx_release(device);
    return (double)(end - begin) / launches;
}

static void measure_shape(const bench *bench, measure_report *report, shape_kind shape, uint32_t jobs) {
    measure build = {0}, submit = {0}, complete = {0}, again = {0}, raw = {0};
    for (uint32_t r = 0; r < bench->runs; r++) {
        muster_graph *graph;
        uint64_t submitted;
        measure_add(&raw, raw_launch_ns(bench, jobs));
        uint64_t begin = mu_now_ns();
        must(muster_graph_create(bench->runtime, &graph, &failure), "creating a graph");
        add_jobs(bench, graph, shape, jobs);
        uint64_t built = mu_now_ns();
        run_graph(bench, graph, &submitted);
        uint64_t end = mu_now_ns();
        measure_add(&build, (double)(built - begin) / jobs);
        measure_add(&submit, (double)(submitted - built) / jobs);
        measure_add(&complete, (double)(end - submitted) / jobs);
        begin = mu_now_ns();
        run_graph(bench, graph, &submitted);
        measure_add(&again, (double)(mu_now_ns() - begin) / jobs);
        muster_graph_destroy(graph);
    }
    double total = measure_percentile(&build, 50) + measure_percentile(&submit, 50) + measure_percentile(&complete, 50);
    const measure_figure figures[] = {
        {"build_ns", measure_percentile(&build, 50)},       {"submit_ns", measure_percentile(&submit, 50)},
        {"complete_ns", measure_percentile(&complete, 50)}, {"total_ns", total},
        {"again_ns", measure_percentile(&again, 50)},       {"raw_ns", measure_percentile(&raw, 50)},
        {"ratio", total / measure_percentile(&raw, 50)},
    };
    char name[64];
    snprintf(name, sizeof name, "%s, %" PRIu32 " jobs", shape_names[shape], jobs);
    measure_row(report, name, figures, sizeof figures / sizeof figures[0]);
}

int main(int argc, char **argv) {
    uint32_t jobs[2] = {10000, 1000000}, sizes = 2, devices = 1, runs = 0;
    measure_report report = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            report.json = true;
        else if (i + 1 < argc && strcmp(argv[i], "--jobs") == 0)
            jobs[0] = (uint32_t)strtoul(argv[++i], NULL, 10), sizes = 1;
        else if (i + 1 < argc && strcmp(argv[i], "--runs") == 0)
            runs = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--devices") == 0)
            devices = (uint32_t)strtoul(argv[++i], NULL, 10);
        else {
            fprintf(stderr, "usage: %s [--jobs N] [--runs R] [--devices D] [--json]\n", argv[0]);
            return 2;
        }
    }
    if (!jobs[0] || !devices || runs > MEASURE_MAX_RUNS) {
        fprintf(stderr, "--jobs and --devices are at least 1, --runs at most %d\n", MEASURE_MAX_RUNS);
        return 2;
    }
    bench bench = {0};
    char title[96];
    open_bench(&bench, devices);
    snprintf(title, sizeof title, "host cost per job, null driver, %" PRIu32 " device(s)", devices);
    measure_begin(&report, title);
    for (uint32_t size = 0; size < sizes; size++) {
        bench.runs = runs ? runs : jobs[size] > 100000 ? 5 : 21;
        for (int kind = INDEPENDENT; kind <= CHAIN; kind++)
            measure_shape(&bench, &report, (shape_kind)kind, jobs[size]);
    }
    measure_end(&report);
    must(muster_runtime_destroy(bench.runtime, MUSTER_FOREVER, &failure), "destroying the runtime");
    return 0;
}
