/* A stream of chunks through the device: how close copying and computing together come to the longer of the two.
 *
 *     stream_bench [--driver cuda|sim] [--chunks N] [--chunk-kib K] [--runs R] [--json]
 *
 * Each chunk is uploaded from pinned memory, computed on in place, and read back. As many iterations of the kernel are taken as make
 * computing take about as long as copying. In turns, in the same process:
 *     copies     all uploads on one stream and all downloads on another, and nothing else, raw
 *     kernels    all launches on one stream, and nothing else, raw
 *     muster     one graph of it all, submit and wait
 * Figures are medians over R runs, in microseconds of wall clock for all chunks; `ratio` is to the longer of the first two: 1 is
 * perfect overlap, 2 none. Where there is no driver or device, it says so and exits with 0. */
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

enum { THREADS = 256 };

typedef struct bench {
    uint32_t chunks, chunk_kib, runs;
    uint64_t chunk_bytes;
    uint32_t iterations;
    muster_runtime *runtime;
    muster_buffer **buffers;
    muster_graph *graph;
    unsigned char *host; /* pinned, all chunks */
    /* The bare driver's own. */
    const mu_driver *driver;
    CUdevice device;
    CUcontext context;
    CUstream up, down, compute;
    CUmodule module;
    CUfunction function;
    CUdeviceptr *memory; /* per chunk */
} bench;

static void driver_must(const bench *bench, CUresult code, const char *what) {
    if (code == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: %s\n", what, mu_driver_error_name(bench->driver, code));
    exit(1);
}

static uint32_t blocks(const bench *bench) { return (uint32_t)(bench->chunk_bytes / 4 / THREADS); }

/* ------------------------------------------------------------------------------------------------------------- raw -- */

static void open_raw(bench *bench) {
    bench->driver = bench->runtime->driver;
    const mu_driver *driver = bench->driver;
    driver_must(bench, driver->device_get(&bench->device, 0), "finding the device");
    driver_must(bench, driver->primary_ctx_retain(&bench->context, bench->device), "retaining the context");
    driver_must(bench, driver->ctx_push_current(bench->context), "entering the context");
    driver_must(bench, driver->stream_create(&bench->up, CU_STREAM_NON_BLOCKING), "creating a stream");
    driver_must(bench, driver->stream_create(&bench->down, CU_STREAM_NON_BLOCKING), "creating a stream");
    driver_must(bench, driver->stream_create(&bench->compute, CU_STREAM_NON_BLOCKING), "creating a stream");
    driver_must(bench, driver->module_load_data_ex(&bench->module, test_kernels_ptx, 0, NULL, NULL), "loading");
    driver_must(bench, driver->module_get_function(&bench->function, bench->module, "affine"), "finding the kernel");
    bench->memory = calloc(bench->chunks, sizeof *bench->memory);
    for (uint32_t c = 0; c < bench->chunks; c++)
        driver_must(bench, driver->mem_alloc(&bench->memory[c], bench->chunk_bytes), "allocating");
}

static void close_raw(bench *bench) {
    CUcontext context;
    const mu_driver *driver = bench->driver;
    for (uint32_t c = 0; c < bench->chunks; c++) driver_must(bench, driver->mem_free(bench->memory[c]), "freeing");
    free(bench->memory);
    driver_must(bench, driver->module_unload(bench->module), "unloading");
    driver_must(bench, driver->stream_destroy(bench->compute), "destroying a stream");
    driver_must(bench, driver->stream_destroy(bench->down), "destroying a stream");
    driver_must(bench, driver->stream_destroy(bench->up), "destroying a stream");
    driver_must(bench, driver->ctx_pop_current(&context), "leaving the context");
    driver_must(bench, driver->primary_ctx_release(bench->device), "releasing the context");
}

static double raw_copies(const bench *bench) {
    const mu_driver *driver = bench->driver;
    uint64_t begin = mu_now_ns();
    for (uint32_t c = 0; c < bench->chunks; c++) {
        unsigned char *host = bench->host + c * bench->chunk_bytes;
        driver_must(bench, driver->memcpy_htod_async(bench->memory[c], host, bench->chunk_bytes, bench->up), "up");
    }
    /* Chunks of their own, so that the two directions do not wait for each other; the content does not matter. */
    for (uint32_t c = 0; c < bench->chunks; c++) {
        uint32_t other = (c + bench->chunks / 2) % bench->chunks;
        unsigned char *host = bench->host + other * bench->chunk_bytes;
        driver_must(bench, driver->memcpy_dtoh_async(host, bench->memory[other], bench->chunk_bytes, bench->down),
                    "down");
    }
    driver_must(bench, driver->stream_synchronize(bench->up), "synchronising");
    driver_must(bench, driver->stream_synchronize(bench->down), "synchronising");
    return (double)(mu_now_ns() - begin) * 1e-3;
}

static double raw_kernels(const bench *bench, uint32_t iterations) {
    const mu_driver *driver = bench->driver;
    uint64_t begin = mu_now_ns();
    for (uint32_t c = 0; c < bench->chunks; c++) {
        CUdeviceptr memory = bench->memory[c];
        uint32_t factor = 3, term = 1, count = (uint32_t)(bench->chunk_bytes / 4);
        void *parameters[] = {&memory, &factor, &term, &count};
        for (uint32_t i = 0; i < iterations; i++)
            driver_must(bench,
                        driver->launch_kernel(bench->function, blocks(bench), 1, 1, THREADS, 1, 1, 0, bench->compute,
                                              parameters, NULL),
                        "launching");
    }
    driver_must(bench, driver->stream_synchronize(bench->compute), "synchronising");
    return (double)(mu_now_ns() - begin) * 1e-3;
}

/* ---------------------------------------------------------------------------------------------------------- muster -- */

static bool open_muster(bench *bench, const char *driver) {
    muster_config config = {.struct_size = sizeof config, .driver = driver, .device_count = 1};
    muster_status status = muster_runtime_create(&config, &bench->runtime, &failure);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) return false;
    must(status, "creating the runtime");
    void *host;
    bench->buffers = calloc(bench->chunks, sizeof *bench->buffers);
    must(muster_host_alloc(bench->runtime, bench->chunks * bench->chunk_bytes, &host, &failure), "pinned memory");
    bench->host = host;
    memset(host, 1, bench->chunks * bench->chunk_bytes);
    for (uint32_t c = 0; c < bench->chunks; c++)
        must(muster_buffer_create(bench->runtime, bench->chunk_bytes, bench->host + c * bench->chunk_bytes,
                                  &bench->buffers[c], &failure),
             "creating a buffer");
    return true;
}

static void build(bench *bench) {
    muster_program *program;
    muster_kernel *kernel;
    must(muster_program_from_ptx(bench->runtime, test_kernels_ptx, 0, "kernels", &program, &failure), "loading");
    must(muster_program_kernel(program, "affine", &kernel, &failure), "finding the kernel");
    must(muster_graph_create(bench->runtime, &bench->graph, &failure), "creating a graph");
    for (uint32_t c = 0; c < bench->chunks; c++) {
        muster_arg args[] = {muster_buffer_arg(bench->buffers[c], MUSTER_READ_WRITE), muster_u32_arg(3),
                             muster_u32_arg(1), muster_u32_arg((uint32_t)(bench->chunk_bytes / 4))};
        muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                    .kernel = kernel,
                                    .grid = {blocks(bench), 1, 1},
                                    .block = {THREADS, 1, 1},
                                    .flags = MUSTER_DISPATCH_ITERATED,
                                    .iterations = bench->iterations,
                                    .arg_count = 4,
                                    .args = args};
        must(muster_graph_dispatch(bench->graph, &dispatch, NULL, &failure), "adding a job");
        must(muster_graph_read_back(bench->graph, bench->buffers[c], 0, 0, NULL, &failure), "adding a read-back");
    }
}

/* New content for every chunk, so that nothing on the device is valid. */
static void renew(const bench *bench) {
    for (uint32_t c = 0; c < bench->chunks; c++) {
        void *pointer;
        must(muster_buffer_acquire(bench->buffers[c], 0, 0, MUSTER_READ_WRITE, MUSTER_FOREVER, &pointer, &failure),
             "acquiring");
        must(muster_buffer_release(bench->buffers[c], pointer, &failure), "releasing");
    }
}

static double streamed(const bench *bench) {
    muster_run *run;
    renew(bench);
    uint64_t begin = mu_now_ns();
    must(muster_submit(bench->runtime, bench->graph, &run, &failure), "submitting");
    must(muster_run_wait(run, MUSTER_FOREVER, &failure), "waiting");
    uint64_t end = mu_now_ns();
    muster_run_destroy(run);
    return (double)(end - begin) * 1e-3;
}

/* ---------------------------------------------------------------------------------------------------------- report -- */

static double smallest(double (*measured)(const bench *), const bench *bench) {
    double best = measured(bench);
    for (int i = 0; i < 3; i++) {
        double value = measured(bench);
        if (value < best) best = value;
    }
    return best;
}

static double one_iteration(const bench *bench) { return raw_kernels(bench, 1); }

/* Computing takes about as long as copying. */
static void balance(bench *bench) {
    double copies = smallest(raw_copies, bench), kernels = smallest(one_iteration, bench);
    double iterations = copies / kernels;
    bench->iterations = iterations < 1 ? 1 : iterations > 1000 ? 1000 : (uint32_t)(iterations + 0.5);
}

static void measure_all(const bench *bench, measure_report *report) {
    measure ways[3] = {0};
    static const char *const names[] = {"copies, raw", "kernels, raw", "muster"};
    for (uint32_t r = 0; r <= bench->runs; r++) {
        double value[3] = {raw_copies(bench), raw_kernels(bench, bench->iterations), streamed(bench)};
        for (int w = 0; r && w < 3; w++) measure_add(&ways[w], value[w]); /* the first run warms up */
    }
    double copies = measure_percentile(&ways[0], 50), kernels = measure_percentile(&ways[1], 50);
    double longer = copies > kernels ? copies : kernels;
    for (int w = 0; w < 3; w++) {
        double median = measure_percentile(&ways[w], 50);
        const measure_figure figures[] = {
            {"median_us", median},
            {"p10_us", measure_percentile(&ways[w], 10)},
            {"p90_us", measure_percentile(&ways[w], 90)},
            {"gb_per_s", (double)bench->chunks * (double)bench->chunk_bytes / median * 1e-3},
            {"ratio", median / longer}};
        measure_row(report, names[w], figures, sizeof figures / sizeof figures[0]);
    }
}

int main(int argc, char **argv) {
    bench bench = {.chunks = 64, .chunk_kib = 16 << 10, .runs = 21};
    const char *driver = "cuda";
    measure_report report = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            report.json = true;
        else if (i + 1 < argc && strcmp(argv[i], "--driver") == 0)
            driver = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--chunks") == 0)
            bench.chunks = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--chunk-kib") == 0)
            bench.chunk_kib = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--runs") == 0)
            bench.runs = (uint32_t)strtoul(argv[++i], NULL, 10);
        else {
            fprintf(stderr, "usage: %s [--driver cuda|sim] [--chunks N] [--chunk-kib K] [--runs R] [--json]\n",
                    argv[0]);
            return 2;
        }
    }
    if (!bench.chunks || bench.chunks > 4096 || !bench.chunk_kib || bench.chunk_kib > 1 << 20 || !bench.runs ||
        bench.runs > MEASURE_MAX_RUNS) {
        fprintf(stderr, "--chunks is 1 to 4096, --chunk-kib 1 to %d, --runs 1 to %d\n", 1 << 20, MEASURE_MAX_RUNS);
        return 2;
    }
    bench.chunk_bytes = (uint64_t)bench.chunk_kib << 10;
    if (!open_muster(&bench, driver)) {
        printf("SKIPPED: %s\n", failure.message);
        return 0;
    }
    open_raw(&bench);
    balance(&bench);
    build(&bench);
    char title[256];
    muster_device_info info = {.struct_size = sizeof info};
    must(muster_device_get_info(bench.runtime, 0, &info, &failure), "asking for the device");
    snprintf(title, sizeof title, "streaming %" PRIu32 " chunks of %" PRIu32 " KiB, %" PRIu32 " iterations each, %s%s",
             bench.chunks, bench.chunk_kib, bench.iterations, info.name, info.simulated ? ", simulated" : "");
    measure_begin(&report, title);
    measure_all(&bench, &report);
    measure_end(&report);
    close_raw(&bench);
    must(muster_runtime_destroy(bench.runtime, MUSTER_FOREVER, &failure), "destroying the runtime");
    free(bench.buffers);
    return 0;
}
