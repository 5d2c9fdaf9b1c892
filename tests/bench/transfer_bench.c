/* Copies between host memory and a device, by Muster and by a bare loop of asynchronous copies, through the same driver table in the
 * same process, in turns.
 *
 *     transfer_bench [--max-mib N] [options of bench.h]
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
 * Only one device is used. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

enum { MAX_BUFFERS = 512 };

typedef struct machine {
    bench *bench;
    uint64_t max_bytes;
    void *pinned, *pageable; /* as large as the largest measurement */
    /* The bare loop's own. */
    CUstream small_stream;
    CUfunction function;
    CUdeviceptr memory;
} machine;

/* What is measured together: buffers of one size over one kind of memory. */
typedef struct setting {
    const machine *machine;
    uint64_t bytes; /* of a buffer */
    uint32_t count;
    char *host;
    muster_buffer *buffers[MAX_BUFFERS];
    muster_graph *upload, *download, *overwrite;
} setting;

/* ------------------------------------------------------------------------------------------------- open and close -- */

/* Of the copies of one size together. */
static uint64_t total_bytes(const machine *machine, uint64_t bytes) {
    uint64_t least = 4 * machine->max_bytes < 256 * MIB ? 4 * machine->max_bytes : 256 * MIB;
    return bytes < least ? least / bytes * bytes : bytes;
}

static uint64_t memory_bytes(const machine *machine) {
    uint64_t largest = 0;
    for (uint64_t bytes = 64 * KIB; bytes <= machine->max_bytes; bytes *= 4) {
        uint64_t total = total_bytes(machine, bytes);
        if (total > largest) largest = total;
    }
    return largest > machine->max_bytes ? largest : machine->max_bytes;
}

static void open_machine(machine *machine) {
    const bench *bench = machine->bench;
    uint64_t bytes = memory_bytes(machine);
    BENCH_OK(muster_host_alloc(bench->runtime, bytes, &machine->pinned, &bench_error));
    machine->pageable = aligned_alloc(4096, bytes);
    if (!machine->pageable) {
        fprintf(stderr, "no memory for %" PRIu64 " bytes\n", bytes);
        exit(1);
    }
    memset(machine->pinned, 1, bytes);
    memset(machine->pageable, 2, bytes);
    BENCH_DRIVER(bench, stream_create(&machine->small_stream, CU_STREAM_NON_BLOCKING));
    machine->function = bench_function(bench, 0, "empty_0");
    BENCH_DRIVER(bench, mem_alloc(&machine->memory, bytes));
}

static void close_machine(machine *machine) {
    BENCH_DRIVER(machine->bench, mem_free(machine->memory));
    BENCH_DRIVER(machine->bench, stream_destroy(machine->small_stream));
    BENCH_OK(muster_host_free(machine->bench->runtime, machine->pinned, &bench_error));
    free(machine->pageable);
}

static void open_setting(setting *setting, const machine *machine, uint64_t bytes, void *host) {
    uint64_t count = total_bytes(machine, bytes) / bytes;
    setting->machine = machine;
    setting->bytes = bytes;
    setting->count = count < MAX_BUFFERS ? (uint32_t)count : MAX_BUFFERS;
    setting->host = host;
    setting->upload = bench_graph(machine->bench);
    setting->download = bench_graph(machine->bench);
    setting->overwrite = bench_graph(machine->bench);
    for (uint32_t i = 0; i < setting->count; i++) {
        setting->buffers[i] = bench_buffer(machine->bench, bytes, setting->host + i * bytes);
        BENCH_OK(muster_graph_prefetch(setting->upload, setting->buffers[i], 0, 0, 0, NULL, &bench_error));
        BENCH_OK(muster_graph_read_back(setting->download, setting->buffers[i], 0, 0, NULL, &bench_error));
        BENCH_OK(muster_graph_fill(setting->overwrite, setting->buffers[i], 0, bytes, i, 4, NULL, &bench_error));
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
    const machine *machine = setting->machine;
    const bench *bench = machine->bench;
    CUstream stream = bench->raw[0].stream;
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < setting->count; i++) {
        char *host = setting->host + i * setting->bytes;
        CUdeviceptr device = machine->memory + i * setting->bytes;
        if (up)
            BENCH_DRIVER(bench, memcpy_htod_async(device, host, setting->bytes, stream));
        else
            BENCH_DRIVER(bench, memcpy_dtoh_async(host, device, setting->bytes, stream));
    }
    bench_synchronize(bench, 0);
    return rate(setting, begin);
}

/* From now on only the host has the content. */
static void write_on_host(const setting *setting) {
    for (uint32_t i = 0; i < setting->count; i++) {
        void *pointer;
        BENCH_OK(
            muster_buffer_acquire(setting->buffers[i], 0, 0, MUSTER_WRITE, MUSTER_FOREVER, &pointer, &bench_error));
        BENCH_OK(muster_buffer_release(setting->buffers[i], pointer, &bench_error));
    }
}

static double copy_by_muster(const setting *setting, bool up) {
    if (up)
        write_on_host(setting);
    else
        bench_run(setting->machine->bench, setting->overwrite);
    uint64_t begin = mu_now_ns();
    bench_run(setting->machine->bench, up ? setting->upload : setting->download);
    return rate(setting, begin);
}

static const char *size_name(uint64_t bytes, char text[32]) {
    if (bytes < MIB)
        snprintf(text, 32, "%" PRIu64 " KiB", bytes / KIB);
    else
        snprintf(text, 32, "%" PRIu64 " MiB", bytes / MIB);
    return text;
}

static void measure_size(const machine *machine, uint64_t bytes, bool up, bool pinned) {
    setting setting;
    measure plain = {0}, muster = {0};
    open_setting(&setting, machine, bytes, pinned ? machine->pinned : machine->pageable);
    for (uint32_t r = 0; r <= machine->bench->runs; r++) {
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
    measure_row(&machine->bench->report, name, figures, 3);
}

/* ------------------------------------------------------------------------------------------------------------ gaps -- */

static muster_graph *small_job(const machine *machine, muster_buffer **buffer) {
    *buffer = bench_buffer(machine->bench, 4096, NULL);
    const muster_arg args[2] = {muster_buffer_arg(*buffer, MUSTER_READ), muster_buffer_arg(*buffer, MUSTER_READ)};
    const muster_dispatch dispatch = bench_dispatch(bench_kernel(machine->bench, "empty_0"), args, 2);
    muster_graph *graph = bench_graph(machine->bench);
    bench_add(graph, &dispatch);
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
static gaps measure_gaps(const machine *machine, muster_graph *small, const setting *setting) {
    muster_run *upload = NULL;
    uint64_t count = 0;
    bench_run(machine->bench, small);
    if (setting) {
        write_on_host(setting);
        upload = bench_submit(machine->bench, setting->upload);
    }
    uint64_t last = mu_now_ns(), deadline = mu_deadline_ns(50000000);
    bool going_on = true;
    while (going_on && count < MAX_JOBS) {
        bench_run(machine->bench, small);
        uint64_t now = mu_now_ns();
        gap_ns[count++] = now - last;
        last = now;
        going_on = upload ? muster_run_wait(upload, 0, NULL) == MUSTER_TIMEOUT : now < deadline;
    }
    if (upload) BENCH_OK(muster_run_wait(upload, MUSTER_FOREVER, &bench_error));
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
    bench_enter(self->setting->machine->bench, 0);
    copy_plainly(self->setting, true);
    atomic_store(&self->done, true);
    return NULL;
}

static gaps measure_plain_gaps(const machine *machine, muster_graph *small, const setting *setting) {
    const bench *bench = machine->bench;
    CUdeviceptr in = machine->memory, out = machine->memory;
    void *parameters[2] = {&in, &out};
    uint64_t count = 0;
    uploader uploader = {.setting = setting};
    (void)small;
    if (setting && pthread_create(&uploader.thread, NULL, upload_plainly, &uploader)) exit(1);
    uint64_t last = mu_now_ns(), deadline = mu_deadline_ns(50000000);
    bool going_on = true;
    while (going_on && count < MAX_JOBS) {
        BENCH_DRIVER(bench,
                     launch_kernel(machine->function, 1, 1, 1, 32, 1, 1, 0, machine->small_stream, parameters, NULL));
        BENCH_DRIVER(bench, stream_synchronize(machine->small_stream));
        uint64_t now = mu_now_ns();
        gap_ns[count++] = now - last;
        last = now;
        going_on = setting ? !atomic_load(&uploader.done) : now < deadline;
    }
    if (setting) pthread_join(uploader.thread, NULL);
    return summary(count);
}

static void measure_all_gaps(const machine *machine) {
    static const char *const names[] = {"alone", "beside a pinned upload", "beside a pageable upload"};
    static gaps (*const ways[])(const struct machine *, muster_graph *, const setting *) = {measure_plain_gaps,
                                                                                            measure_gaps};
    muster_buffer *buffer;
    muster_graph *small = small_job(machine, &buffer);
    for (int beside = 0; beside < 3; beside++) {
        setting setting;
        measure median[2] = {0}, worst[2] = {0};
        if (beside)
            open_setting(&setting, machine, machine->max_bytes, beside == 1 ? machine->pinned : machine->pageable);
        for (uint32_t r = 0; r <= machine->bench->runs; r++)
            for (int way = 0; way < 2; way++) {
                gaps found = ways[way](machine, small, beside ? &setting : NULL);
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
                 size_name(machine->max_bytes, size));
        measure_row(&machine->bench->report, name, figures, 5);
    }
    muster_graph_destroy(small);
    muster_buffer_destroy(buffer);
}

int main(int argc, char **argv) {
    bench bench = {.devices = 1};
    machine machine = {.bench = &bench};
    uint32_t max_mib = 1024;
    const bench_option options[] = {{"--max-mib", &max_mib}};
    bench_parse(&bench, argc, argv, 11, options, 1);
    if (bench.quick) max_mib = 4;
    if (max_mib > 16384) {
        fprintf(stderr, "--max-mib is at most 16384\n");
        return 2;
    }
    machine.max_bytes = max_mib * MIB;
    bench_open(&bench, NULL, "transfers");
    open_machine(&machine);
    for (int way = 0; way < 4; way++)
        for (uint64_t bytes = 64 * KIB; bytes <= machine.max_bytes; bytes *= 4)
            measure_size(&machine, bytes, way < 2, way % 2 == 0);
    measure_all_gaps(&machine);
    close_machine(&machine);
    bench_close(&bench);
    return 0;
}
