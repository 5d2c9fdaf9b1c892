/* Muster against a bare loop of launches, through the same driver table in the same process, in turns.
 *
 *     launch_overhead_bench [--driver cuda|sim] [--jobs N] [--runs R] [--threads T] [--json]
 *
 * The kernel does nothing, so that launching is all there is. Each run does the same N launches in each way, one way after
 * the other, so that a machine that slows down slows all of them:
 *     raw         cuLaunchKernel N times, then cuStreamSynchronize, from one thread
 *     resubmit    a graph of N independent dispatches that exists already: submit and wait
 *     chain       the same with each job depending on the one before
 *     build       building that graph of independent dispatches as well
 * and the round trip of one launch: raw, and as a graph of one job. Figures are medians over R runs in nanoseconds of wall
 * clock per launch, with the 10th and 90th percentile; `ratio` is to raw: below 1 is faster than the loop.
 * Only one device is used. Where there is no driver or device, it says so and exits with 0. */
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

static muster_error failure;

static void must(muster_status status, const char *what) {
    if (status == MUSTER_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, muster_status_name(status), failure.message);
    exit(1);
}

typedef struct bench {
    uint32_t jobs, runs;
    uint32_t threads; /* of a block */
    muster_runtime *runtime;
    muster_kernel *kernel;
    muster_buffer *in, *out;
    muster_graph *independent, *chain, *one;
    /* The bare loop's own. */
    const mu_driver *driver;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory;
} bench;

static void driver_must(const bench *bench, CUresult code, const char *what) {
    if (code == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: %s\n", what, mu_driver_error_name(bench->driver, code));
    exit(1);
}

static muster_graph *build(const bench *bench, uint32_t jobs, bool chained) {
    muster_graph *graph;
    muster_arg args[2] = {muster_buffer_arg(bench->in, MUSTER_READ),
                          muster_buffer_arg(bench->out, chained ? MUSTER_READ_WRITE : MUSTER_READ)};
    muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                .kernel = bench->kernel,
                                .grid = {1, 1, 1},
                                .block = {bench->threads, 1, 1},
                                .arg_count = 2,
                                .args = args};
    must(muster_graph_create(bench->runtime, &graph, &failure), "creating a graph");
    for (uint32_t i = 0; i < jobs; i++) must(muster_graph_dispatch(graph, &dispatch, NULL, &failure), "adding a job");
    return graph;
}

/* False when there is no driver or device. */
static bool open_bench(bench *bench, const char *driver) {
    muster_config config = {.struct_size = sizeof config, .driver = driver, .device_count = 1};
    if (strcmp(driver, "sim") == 0) config.sim = "{\"null\": true}";
    muster_status status = muster_runtime_create(&config, &bench->runtime, &failure);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) return false;
    must(status, "creating the runtime");
    muster_program *program;
    must(muster_program_from_ptx(bench->runtime, test_kernels_ptx, 0, "kernels", &program, &failure), "loading");
    must(muster_program_kernel(program, "nothing", &bench->kernel, &failure), "finding the kernel");
    must(muster_buffer_create(bench->runtime, 4096, NULL, &bench->in, &failure), "creating a buffer");
    must(muster_buffer_create(bench->runtime, 4096, NULL, &bench->out, &failure), "creating a buffer");
    bench->independent = build(bench, bench->jobs, false);
    bench->chain = build(bench, bench->jobs, true);
    bench->one = build(bench, 1, true);
    bench->driver = bench->runtime->driver;
    driver_must(bench, bench->driver->device_get(&bench->device, 0), "finding the device");
    driver_must(bench, bench->driver->primary_ctx_retain(&bench->context, bench->device), "retaining the context");
    driver_must(bench, bench->driver->ctx_push_current(bench->context), "entering the context");
    driver_must(bench, bench->driver->stream_create(&bench->stream, CU_STREAM_NON_BLOCKING), "creating a stream");
    driver_must(bench, bench->driver->module_load_data_ex(&bench->module, test_kernels_ptx, 0, NULL, NULL), "loading");
    driver_must(bench, bench->driver->module_get_function(&bench->function, bench->module, "nothing"), "finding");
    driver_must(bench, bench->driver->mem_alloc(&bench->memory, 4096), "allocating");
    return true;
}

static void close_bench(bench *bench) {
    CUcontext context;
    driver_must(bench, bench->driver->mem_free(bench->memory), "freeing");
    driver_must(bench, bench->driver->module_unload(bench->module), "unloading");
    driver_must(bench, bench->driver->stream_destroy(bench->stream), "destroying a stream");
    driver_must(bench, bench->driver->ctx_pop_current(&context), "leaving the context");
    driver_must(bench, bench->driver->primary_ctx_release(bench->device), "releasing the context");
    must(muster_runtime_destroy(bench->runtime, MUSTER_FOREVER, &failure), "destroying the runtime");
}

static double raw(const bench *bench, uint32_t launches) {
    CUdeviceptr in = bench->memory, out = bench->memory;
    void *parameters[2] = {&in, &out};
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < launches; i++)
        driver_must(bench,
                    bench->driver->launch_kernel(bench->function, 1, 1, 1, bench->threads, 1, 1, 0, bench->stream,
                                                 parameters, NULL),
                    "launching");
    driver_must(bench, bench->driver->stream_synchronize(bench->stream), "synchronising");
    return (double)(mu_now_ns() - begin) / launches;
}

static double submit(const bench *bench, muster_graph *graph, uint32_t jobs) {
    muster_run *run;
    uint64_t begin = mu_now_ns();
    must(muster_submit(bench->runtime, graph, &run, &failure), "submitting");
    must(muster_run_wait(run, MUSTER_FOREVER, &failure), "waiting");
    uint64_t end = mu_now_ns();
    muster_run_destroy(run);
    return (double)(end - begin) / jobs;
}

static double build_and_submit(const bench *bench) {
    uint64_t begin = mu_now_ns();
    muster_graph *graph = build(bench, bench->jobs, false);
    submit(bench, graph, bench->jobs);
    double each = (double)(mu_now_ns() - begin) / bench->jobs;
    muster_graph_destroy(graph);
    return each;
}

static void row(measure_report *report, const char *name, measure *ways, double base) {
    double median = measure_percentile(ways, 50);
    const measure_figure figures[] = {{"median_ns", median},
                                      {"p10_ns", measure_percentile(ways, 10)},
                                      {"p90_ns", measure_percentile(ways, 90)},
                                      {"ratio", median / base}};
    measure_row(report, name, figures, sizeof figures / sizeof figures[0]);
}

static void measure_all(const bench *bench, measure_report *report) {
    measure way[6] = {0};
    static const char *const names[] = {
        "raw launches",    "muster, resubmitted", "muster, resubmitted chain", "muster, built each time",
        "round trip, raw", "round trip, muster"};
    for (uint32_t r = 0; r <= bench->runs; r++) {
        double value[6] = {raw(bench, bench->jobs),
                           submit(bench, bench->independent, bench->jobs),
                           submit(bench, bench->chain, bench->jobs),
                           build_and_submit(bench),
                           raw(bench, 1),
                           submit(bench, bench->one, 1)};
        for (int w = 0; r && w < 6; w++) measure_add(&way[w], value[w]); /* the first run warms up */
    }
    for (int w = 0; w < 6; w++) row(report, names[w], &way[w], measure_percentile(&way[w < 4 ? 0 : 4], 50));
}

int main(int argc, char **argv) {
    bench bench = {.jobs = 10000, .runs = 31, .threads = 32};
    const char *driver = "cuda";
    measure_report report = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            report.json = true;
        else if (i + 1 < argc && strcmp(argv[i], "--driver") == 0)
            driver = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--jobs") == 0)
            bench.jobs = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--runs") == 0)
            bench.runs = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--threads") == 0)
            bench.threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        else {
            fprintf(stderr, "usage: %s [--driver cuda|sim] [--jobs N] [--runs R] [--threads T] [--json]\n", argv[0]);
            return 2;
        }
    }
    if (!bench.jobs || !bench.runs || bench.runs > MEASURE_MAX_RUNS) {
        fprintf(stderr, "--jobs is at least 1, --runs 1 to %d\n", MEASURE_MAX_RUNS);
        return 2;
    }
    if (!open_bench(&bench, driver)) {
        printf("SKIPPED: %s\n", failure.message);
        return 0;
    }
    char title[256];
    muster_device_info info = {.struct_size = sizeof info};
    must(muster_device_get_info(bench.runtime, 0, &info, &failure), "asking for the device");
    snprintf(title, sizeof title, "launch overhead, %" PRIu32 " launches, %s%s", bench.jobs, info.name,
             info.simulated ? ", simulated without execution" : "");
    measure_begin(&report, title);
    measure_all(&bench, &report);
    measure_end(&report);
    close_bench(&bench);
    return 0;
}
