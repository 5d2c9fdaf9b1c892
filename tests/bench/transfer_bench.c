/* Copies between host memory and a device, by Muster and by a bare loop of asynchronous copies, through the same driver table in the
 * same process, in turns.
 *
 *     transfer_bench [--driver cuda|sim] [--max-mib N] [--runs R] [--json]
 *
 * For each size from 64 KiB to 1 GiB (--max-mib), as many buffers of it as make 256 MiB, at least one and at most 512, are copied:
 *     plain     cuMemcpyHtoDAsync or cuMemcpyDtoHAsync of each, back to back, then cuStreamSynchronize
 *     muster    a graph of prefetch or read-back jobs, one for each buffer, submitted and waited for
 * once with pinned host memory (muster_host_alloc) and once with pageable. Figures are medians over R runs of 10^9 bytes a second of
 * wall clock; `ratio` is Muster's to plain: above 1 is faster.
 *
 * Then, while the largest size is uploaded by one run, jobs of one small kernel are submitted and waited for, one after the other, by
 * another thread of the application: median and worst time from one's end to the next one's, without an upload and beside one; and
 * the same by plain calls, the upload from a thread of its own. (What an upload costs others in any case is the bus that launches
 * cross too.)
 * Only one device is used. Where there is no driver or device, it says so and exits with 0. Numbers of the simulator mean nothing. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
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

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

enum { MAX_BUFFERS = 512 };

static muster_error failure;

static void must(muster_status status, const char *what) {
    if (status == MUSTER_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, muster_status_name(status), failure.message);
    exit(1);
}

typedef struct bench {
    uint64_t max_bytes;
    uint32_t runs;
    muster_runtime *runtime;
    muster_program *program;
    void *pinned, *pageable; /* as large as the largest measurement */
    /* The bare loop's own. */
    const mu_driver *driver;
    CUdevice device;
    CUcontext context;
    CUstream stream, small_stream;
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory;
} bench;

/* What is measured together: buffers of one size over one kind of memory. */
typedef struct setting {
    const bench *bench;
    uint64_t bytes; /* of a buffer */
    uint32_t count;
    char *host;
    muster_buffer *buffers[MAX_BUFFERS];
    muster_graph *upload, *download, *overwrite;
} setting;

static void driver_must(const bench *bench, CUresult code, const char *what) {
    if (code == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: %s\n", what, mu_driver_error_name(bench->driver, code));
    exit(1);
}

/* ------------------------------------------------------------------------------------------------- open and close -- */

/* Of the copies of one size together. */
static uint64_t total_bytes(const bench *bench, uint64_t bytes) {
    uint64_t least = 4 * bench->max_bytes < 256 * MIB ? 4 * bench->max_bytes : 256 * MIB;
    return bytes < least ? least / bytes * bytes : bytes;
}

static uint64_t memory_bytes(const bench *bench) {
    uint64_t largest = 0;
    for (uint64_t bytes = 64 * KIB; bytes <= bench->max_bytes; bytes *= 4) {
        uint64_t total = total_bytes(bench, bytes);
        if (total > largest) largest = total;
    }
    return largest > bench->max_bytes ? largest : bench->max_bytes;
}

/* False when there is no driver or device. */
static bool open_bench(bench *bench, const char *driver) {
    const muster_config config = {.struct_size = sizeof config, .driver = driver, .device_count = 1};
    muster_status status = muster_runtime_create(&config, &bench->runtime, &failure);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) return false;
    must(status, "creating the runtime");
    uint64_t bytes = memory_bytes(bench);
    must(muster_program_from_ptx(bench->runtime, test_kernels_ptx, 0, "kernels", &bench->program, &failure), "loading");
    must(muster_host_alloc(bench->runtime, bytes, &bench->pinned, &failure), "pinning memory");
    bench->pageable = aligned_alloc(4096, bytes);
    if (!bench->pageable) {
        fprintf(stderr, "no memory for %" PRIu64 " bytes\n", bytes);
        exit(1);
    }
    memset(bench->pinned, 1, bytes);
    memset(bench->pageable, 2, bytes);
    bench->driver = bench->runtime->driver;
    driver_must(bench, bench->driver->device_get(&bench->device, 0), "finding the device");
    driver_must(bench, bench->driver->primary_ctx_retain(&bench->context, bench->device), "retaining the context");
    driver_must(bench, bench->driver->ctx_push_current(bench->context), "entering the context");
    driver_must(bench, bench->driver->stream_create(&bench->stream, CU_STREAM_NON_BLOCKING), "creating a stream");
    driver_must(bench, bench->driver->stream_create(&bench->small_stream, CU_STREAM_NON_BLOCKING), "creating a stream");
    driver_must(bench, bench->driver->module_load_data_ex(&bench->module, test_kernels_ptx, 0, NULL, NULL), "loading");
    driver_must(bench, bench->driver->module_get_function(&bench->function, bench->module, "nothing"), "finding");
    driver_must(bench, bench->driver->mem_alloc(&bench->memory, bytes), "allocating");
    return true;
}

static void close_bench(bench *bench) {
    CUcontext context;
    driver_must(bench, bench->driver->mem_free(bench->memory), "freeing");
    driver_must(bench, bench->driver->module_unload(bench->module), "unloading");
    driver_must(bench, bench->driver->stream_destroy(bench->small_stream), "destroying a stream");
    driver_must(bench, bench->driver->stream_destroy(bench->stream), "destroying a stream");
    driver_must(bench, bench->driver->ctx_pop_current(&context), "leaving the context");
    driver_must(bench, bench->driver->primary_ctx_release(bench->device), "releasing the context");
    must(muster_runtime_destroy(bench->runtime, MUSTER_FOREVER, &failure), "destroying the runtime");
    free(bench->pageable);
}

static muster_graph *new_graph(const bench *bench) {
    muster_graph *graph;
    must(muster_graph_create(bench->runtime, &graph, &failure), "creating a graph");
    return graph;
}

static void open_setting(setting *setting, const bench *bench, uint64_t bytes, void *host) {
    uint64_t count = total_bytes(bench, bytes) / bytes;
    setting->bench = bench;
    setting->bytes = bytes;
    setting->count = count < MAX_BUFFERS ? (uint32_t)count : MAX_BUFFERS;
    setting->host = host;
    setting->upload = new_graph(bench);
    setting->download = new_graph(bench);
    setting->overwrite = new_graph(bench);
    for (uint32_t i = 0; i < setting->count; i++) {
        must(muster_buffer_create(bench->runtime, bytes, setting->host + i * bytes, &setting->buffers[i], &failure),
             "creating a buffer");
        must(muster_graph_prefetch(setting->upload, setting->buffers[i], 0, 0, 0, NULL, &failure), "adding a prefetch");
        must(muster_graph_read_back(setting->download, setting->buffers[i], 0, 0, NULL, &failure),
             "adding a read-back");
        must(muster_graph_fill(setting->overwrite, setting->buffers[i], 0, bytes, i, 4, NULL, &failure),
             "adding a fill");
    }
}

static void close_setting(setting *setting) {
    muster_graph_destroy(setting->upload);
    muster_graph_destroy(setting->download);
    muster_graph_destroy(setting->overwrite);
    for (uint32_t i = 0; i < setting->count; i++) muster_buffer_destroy(setting->buffers[i]);
}

/* ---------------------------------------------------------------------------------------------------------- copies -- */

static double rate(const setting *setting, uint64_t begin_ns) {
    return (double)(setting->bytes * setting->count) / (double)(mu_now_ns() - begin_ns);
}

static double copy_plainly(const setting *setting, bool up) {
    const bench *bench = setting->bench;
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < setting->count; i++) {
        char *host = setting->host + i * setting->bytes;
        CUdeviceptr device = bench->memory + i * setting->bytes;
        driver_must(bench,
                    up ? bench->driver->memcpy_htod_async(device, host, setting->bytes, bench->stream)
                       : bench->driver->memcpy_dtoh_async(host, device, setting->bytes, bench->stream),
                    "copying");
    }
    driver_must(bench, bench->driver->stream_synchronize(bench->stream), "synchronising");
    return rate(setting, begin);
}

static void run(const bench *bench, muster_graph *graph) {
    muster_run *run;
    must(muster_submit(bench->runtime, graph, &run, &failure), "submitting");
    must(muster_run_wait(run, MUSTER_FOREVER, &failure), "waiting");
    muster_run_destroy(run);
}

/* From now on only the host has the content. */
static void write_on_host(const setting *setting) {
    for (uint32_t i = 0; i < setting->count; i++) {
        void *pointer;
        must(muster_buffer_acquire(setting->buffers[i], 0, 0, MUSTER_WRITE, MUSTER_FOREVER, &pointer, &failure),
             "acquiring");
        must(muster_buffer_release(setting->buffers[i], pointer, &failure), "releasing");
    }
}

static double copy_by_muster(const setting *setting, bool up) {
    if (up)
        write_on_host(setting);
    else
        run(setting->bench, setting->overwrite);
    uint64_t begin = mu_now_ns();
    run(setting->bench, up ? setting->upload : setting->download);
    return rate(setting, begin);
}

static const char *size_name(uint64_t bytes, char text[32]) {
    if (bytes < MIB)
        snprintf(text, 32, "%" PRIu64 " KiB", bytes / KIB);
    else
        snprintf(text, 32, "%" PRIu64 " MiB", bytes / MIB);
    return text;
}

static void measure_size(const bench *bench, measure_report *report, uint64_t bytes, bool up, bool pinned) {
    setting setting;
    measure plain = {0}, muster = {0};
    open_setting(&setting, bench, bytes, pinned ? bench->pinned : bench->pageable);
    for (uint32_t r = 0; r <= bench->runs; r++) {
        double values[2] = {copy_plainly(&setting, up), copy_by_muster(&setting, up)};
        if (r == 0) continue; /* the first run warms up */
        measure_add(&plain, values[0]);
        measure_add(&muster, values[1]);
    }
    close_setting(&setting);
    char name[64], size[32];
    snprintf(name, sizeof name, "%s, %s, %u x %s", up ? "upload" : "download", pinned ? "pinned" : "pageable",
             setting.count, size_name(bytes, size));
    double a = measure_percentile(&plain, 50), b = measure_percentile(&muster, 50);
    const measure_figure figures[] = {{"plain_gbps", a}, {"muster_gbps", b}, {"ratio", b / a}};
    measure_row(report, name, figures, 3);
}

/* ------------------------------------------------------------------------------------------------------------ gaps -- */

static muster_graph *small_job(const bench *bench, muster_buffer **buffer) {
    muster_kernel *kernel;
    must(muster_program_kernel(bench->program, "nothing", &kernel, &failure), "finding the kernel");
    must(muster_buffer_create(bench->runtime, 4096, NULL, buffer, &failure), "creating a buffer");
    const muster_arg args[2] = {muster_buffer_arg(*buffer, MUSTER_READ), muster_buffer_arg(*buffer, MUSTER_READ)};
    const muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                      .kernel = kernel,
                                      .grid = {1, 1, 1},
                                      .block = {32, 1, 1},
                                      .arg_count = 2,
                                      .args = args};
    muster_graph *graph = new_graph(bench);
    must(muster_graph_dispatch(graph, &dispatch, NULL, &failure), "adding a job");
    return graph;
}

enum { MAX_JOBS = 200000 };
static uint64_t gap_ns[MAX_JOBS];

typedef struct gaps {
    double median_us, worst_us;
    uint64_t jobs;
} gaps;

static int ascending(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static gaps summary(uint64_t count) {
    qsort(gap_ns, count, sizeof gap_ns[0], ascending);
    return (gaps){(double)gap_ns[count / 2] * 1e-3, (double)gap_ns[count - 1] * 1e-3, count};
}

/* Runs small jobs while the upload goes on, or for 50 ms without one. */
static gaps measure_gaps(const bench *bench, muster_graph *small, const setting *setting) {
    muster_run *upload = NULL;
    uint64_t count = 0;
    run(bench, small);
    if (setting) {
        write_on_host(setting);
        must(muster_submit(bench->runtime, setting->upload, &upload, &failure), "submitting");
    }
    uint64_t last = mu_now_ns(), deadline = mu_deadline_ns(50000000);
    bool going_on = true;
    while (going_on && count < MAX_JOBS) {
        run(bench, small);
        uint64_t now = mu_now_ns();
        gap_ns[count++] = now - last;
        last = now;
        going_on = upload ? muster_run_wait(upload, 0, NULL) == MUSTER_TIMEOUT : now < deadline;
    }
    if (upload) must(muster_run_wait(upload, MUSTER_FOREVER, &failure), "waiting");
    muster_run_destroy(upload);
    return summary(count);
}

/* An upload by plain calls, from a thread of its own: with pageable memory the call itself takes as long. */
typedef struct uploader {
    const setting *setting;
    pthread_t thread;
    atomic_bool done;
} uploader;

static void *upload_plainly(void *argument) {
    uploader *self = argument;
    const bench *bench = self->setting->bench;
    driver_must(bench, bench->driver->ctx_set_current(bench->context), "entering the context");
    copy_plainly(self->setting, true);
    atomic_store(&self->done, true);
    return NULL;
}

static gaps measure_plain_gaps(const bench *bench, muster_graph *small, const setting *setting) {
    CUdeviceptr in = bench->memory, out = bench->memory;
    void *parameters[2] = {&in, &out};
    uint64_t count = 0;
    uploader uploader = {.setting = setting};
    (void)small;
    if (setting && pthread_create(&uploader.thread, NULL, upload_plainly, &uploader)) exit(1);
    uint64_t last = mu_now_ns(), deadline = mu_deadline_ns(50000000);
    bool going_on = true;
    while (going_on && count < MAX_JOBS) {
        driver_must(
            bench,
            bench->driver->launch_kernel(bench->function, 1, 1, 1, 32, 1, 1, 0, bench->small_stream, parameters, NULL),
            "launching");
        driver_must(bench, bench->driver->stream_synchronize(bench->small_stream), "synchronising");
        uint64_t now = mu_now_ns();
        gap_ns[count++] = now - last;
        last = now;
        going_on = setting ? !atomic_load(&uploader.done) : now < deadline;
    }
    if (setting) pthread_join(uploader.thread, NULL);
    return summary(count);
}

static void measure_all_gaps(const bench *bench, measure_report *report) {
    static const char *const names[] = {"alone", "beside a pinned upload", "beside a pageable upload"};
    static gaps (*const ways[])(const struct bench *, muster_graph *, const setting *) = {measure_plain_gaps,
                                                                                          measure_gaps};
    muster_buffer *buffer;
    muster_graph *small = small_job(bench, &buffer);
    for (int beside = 0; beside < 3; beside++) {
        setting setting;
        measure median[2] = {0}, worst[2] = {0};
        if (beside) open_setting(&setting, bench, bench->max_bytes, beside == 1 ? bench->pinned : bench->pageable);
        for (uint32_t r = 0; r <= bench->runs; r++)
            for (int way = 0; way < 2; way++) {
                gaps found = ways[way](bench, small, beside ? &setting : NULL);
                if (r == 0) continue; /* the first run warms up */
                measure_add(&median[way], found.median_us);
                measure_add(&worst[way], found.worst_us);
            }
        if (beside) close_setting(&setting);
        const measure_figure figures[] = {{"plain_us", measure_percentile(&median[0], 50)},
                                          {"muster_us", measure_percentile(&median[1], 50)},
                                          {"plain_worst", measure_percentile(&worst[0], 50)},
                                          {"muster_worst", measure_percentile(&worst[1], 50)},
                                          {"muster_max", measure_percentile(&worst[1], 100)}};
        char name[64], size[32];
        snprintf(name, sizeof name, beside ? "small jobs %s of %s" : "small jobs %s", names[beside],
                 size_name(bench->max_bytes, size));
        measure_row(report, name, figures, 5);
    }
    muster_graph_destroy(small);
    muster_buffer_destroy(buffer);
}

int main(int argc, char **argv) {
    bench bench = {.max_bytes = 1024 * MIB, .runs = 11};
    const char *driver = "cuda";
    measure_report report = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            report.json = true;
        else if (i + 1 < argc && strcmp(argv[i], "--driver") == 0)
            driver = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--max-mib") == 0)
            bench.max_bytes = strtoull(argv[++i], NULL, 10) * MIB;
        else if (i + 1 < argc && strcmp(argv[i], "--runs") == 0)
            bench.runs = (uint32_t)strtoul(argv[++i], NULL, 10);
        else
            bench.runs = 0;
    }
    if (!bench.runs || bench.runs > MEASURE_MAX_RUNS || bench.max_bytes < MIB || bench.max_bytes > 16384 * MIB) {
        fprintf(stderr, "usage: %s [--driver cuda|sim] [--max-mib N] [--runs R] [--json]; N is 1 to 16384, R 1 to %d\n",
                argv[0], MEASURE_MAX_RUNS);
        return 2;
    }
    if (!open_bench(&bench, driver)) {
        printf("SKIPPED: %s\n", failure.message);
        return 0;
    }
    char title[256];
    muster_device_info info = {.struct_size = sizeof info};
    must(muster_device_get_info(bench.runtime, 0, &info, &failure), "asking for the device");
    snprintf(title, sizeof title, "transfers, %s%s, %u copy threads", info.name, info.simulated ? ", simulated" : "",
             mu_copier_thread_count(bench.runtime->copier));
    measure_begin(&report, title);
    for (int way = 0; way < 4; way++)
        for (uint64_t bytes = 64 * KIB; bytes <= bench.max_bytes; bytes *= 4)
            measure_size(&bench, &report, bytes, way < 2, way % 2 == 0);
    measure_all_gaps(&bench, &report);
    measure_end(&report);
    close_bench(&bench);
    return 0;
}
