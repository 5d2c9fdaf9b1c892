/* Dispatches that are cut over the devices: bound by arithmetic, by their upload, and with devices of different speed. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/scaling.h"

enum { THREADS = 256, BLOCKS = 65536, ELEMENTS = THREADS * BLOCKS, QUICK_BLOCKS = 64, WAYS = 4, SETTLE = 12 };

#define MIB ((uint64_t)1 << 20)

typedef struct split {
    const scaling *scaling;
    const bench *bench;
    uint32_t blocks, rounds;
    muster_buffer *alone, *cut; /* used by one device, and by all */
    uint32_t alone_times, cut_times;
    CUdeviceptr memory[MU_MAX_DEVICES]; /* of each GPU, as much as the whole */
} split;

static uint64_t bytes_of(const split *split) { return 4ull * THREADS * split->blocks; }

/* Runs the dispatch once, built and all: on device 0, or cut. */
static double run_split(const split *split, muster_buffer *buffer, bool cut) {
    const muster_arg args[] = {muster_block_cut(muster_buffer_arg(buffer, MUSTER_READ_WRITE), 4 * THREADS),
                               muster_u32_arg(split->rounds),
                               muster_shard_count_arg(THREADS, (uint64_t)THREADS * split->blocks, 8)};
    muster_dispatch dispatch = bench_dispatch(bench_kernel(split->bench, "burn"), args, 3);
    dispatch.grid.x = split->blocks;
    dispatch.block.x = THREADS;
    dispatch.flags = cut ? MUSTER_DISPATCH_SHARDED : 0;
    dispatch.pin_device = !cut;
    uint64_t begin = mu_now_ns();
    muster_graph *graph = bench_graph(split->bench);
    bench_add(graph, &dispatch);
    bench_run(split->bench, graph);
    double us = bench_since_us(begin);
    muster_graph_destroy(graph);
    return us;
}

/* Part `part` of `parts` of the blocks, on a GPU. */
static void launch_part(const split *split, uint32_t gpu, uint32_t part, uint32_t parts) {
    const bench *bench = split->bench;
    uint64_t first = (uint64_t)split->blocks * part / parts, end = (uint64_t)split->blocks * (part + 1) / parts;
    CUdeviceptr memory = split->memory[gpu] + 4 * THREADS * first;
    uint32_t rounds = split->rounds;
    uint64_t count = (end - first) * THREADS;
    void *parameters[] = {&memory, &rounds, &count};
    bench_enter(bench, gpu);
    BENCH_DRIVER(bench, launch_kernel(bench_function(bench, gpu, "burn"), (unsigned)(end - first), 1, 1, THREADS, 1, 1,
                                      0, bench->raw[gpu].stream, parameters, NULL));
}

static double raw_on(const split *split, uint32_t gpu) {
    uint64_t begin = mu_now_ns();
    launch_part(split, gpu, 0, 1);
    bench_synchronize(split->bench, gpu);
    return bench_since_us(begin);
}

static double raw_alone(void *user) { return raw_on(user, 0); }
static double raw_all(void *user) {
    const split *split = user;
    uint32_t gpus = split->bench->raw_count;
    uint64_t begin = mu_now_ns();
    for (uint32_t g = 0; g < gpus; g++) launch_part(split, g, g, gpus);
    for (uint32_t g = 0; g < gpus; g++) bench_synchronize(split->bench, g);
    return bench_since_us(begin);
}
static double muster_alone(void *user) {
    split *split = user;
    split->alone_times++;
    return run_split(split, split->alone, false);
}
static double muster_all(void *user) {
    split *split = user;
    split->cut_times++;
    return run_split(split, split->cut, true);
}

static void open_split(split *split, const scaling *scaling) {
    const bench *bench = scaling->bench;
    *split = (struct split){.scaling = scaling, .bench = bench, .rounds = 4};
    split->blocks = bench_is_real(bench) ? BLOCKS : QUICK_BLOCKS;
    split->alone = bench_buffer(bench, bytes_of(split), NULL);
    split->cut = bench_buffer(bench, bytes_of(split), NULL);
    for (uint32_t g = 0; g < bench->raw_count; g++) {
        bench_enter(bench, g);
        BENCH_DRIVER(bench, mem_alloc(&split->memory[g], bytes_of(split)));
        BENCH_DRIVER(bench, memset_d8_async(split->memory[g], 0, bytes_of(split), bench->raw[g].stream));
        bench_synchronize(bench, g);
    }
    if (!bench_is_real(bench)) return;
    /* As many rounds as take the time asked for. */
    split->rounds = 1000;
    raw_alone(split);
    double us = raw_alone(split);
    split->rounds = (uint32_t)(1000 * (1e3 * scaling->milliseconds / us)) + 1;
}

static void close_split(split *split) {
    for (uint32_t g = 0; g < split->bench->raw_count; g++) {
        bench_enter(split->bench, g);
        BENCH_DRIVER(split->bench, mem_free(split->memory[g]));
    }
    muster_buffer_destroy(split->alone);
    muster_buffer_destroy(split->cut);
}

/* Some elements after so many dispatches. */
static void check(const split *split, muster_buffer *buffer, uint32_t times) {
    if (!bench_executes(split->bench)) return;
    void *pointer;
    uint32_t expected = 0;
    for (uint64_t r = 0; r < (uint64_t)times * split->rounds; r++) expected = expected * 1664525u + 1013904223u;
    BENCH_OK(muster_buffer_acquire(buffer, 0, 0, MUSTER_READ, MUSTER_FOREVER, &pointer, &bench_error));
    const uint32_t *words = pointer;
    for (uint64_t i = 0; i < bytes_of(split) / 4; i += 4099)
        if (words[i] != expected) {
            fprintf(stderr, "element %" PRIu64 " is %" PRIu32 ", not %" PRIu32 "\n", i, words[i], expected);
            exit(1);
        }
    BENCH_OK(muster_buffer_release(buffer, pointer, &bench_error));
}

static double least_speedup(uint32_t devices) {
    return devices == 2 ? 1.95 : devices == 4 ? 3.8 : devices == 8 ? 7.5 : 0.94 * devices;
}

void scaling_compute(const scaling *scaling) {
    const bench_way ways[WAYS] = {raw_alone, raw_all, muster_alone, muster_all};
    measure measures[WAYS] = {0};
    split split;
    open_split(&split, scaling);
    bench_alternate(scaling->bench, &split, ways, WAYS, 3, measures);
    check(&split, split.alone, split.alone_times);
    check(&split, split.cut, split.cut_times);
    double us[WAYS];
    for (int w = 0; w < WAYS; w++) us[w] = measure_percentile(&measures[w], 50);
    const measure_figure figures[] = {
        {"raw_1_us", us[0]},      {"raw_all_us", us[1]},          {"muster_1_us", us[2]},
        {"muster_all_us", us[3]}, {"raw_speedup", us[0] / us[1]}, {"speedup", us[2] / us[3]}};
    const measure_bound bound = {"speedup", least_speedup(scaling->bench->raw_count), true};
    measure_row_bounded(&scaling->bench->report, "compute-bound, sharded", figures, 6, &bound, 1);
    close_split(&split);
}

/* ---------------------------------------------------------------------------------------------------------- uneven -- */

/* Blocks of 1,024 spinning threads on each multiprocessor of GPU 0, for so long: a kernel beside it gets about half. */
static CUstream start_background(const split *split, uint64_t ns) {
    const bench *bench = split->bench;
    CUstream stream;
    CUdeviceptr memory = bench->raw[0].memory;
    void *parameters[] = {&memory, &ns};
    int multiprocessors;
    bench_enter(bench, 0);
    BENCH_DRIVER(bench, stream_create(&stream, CU_STREAM_NON_BLOCKING));
    BENCH_DRIVER(
        bench, device_get_attribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, bench->raw[0].device));
    BENCH_DRIVER(bench, launch_kernel(bench_function(bench, 0, "spin"), (unsigned)multiprocessors, 1, 1, 1024, 1, 1, 0,
                                      stream, parameters, NULL));
    return stream;
}

static double median_on(const split *split, uint32_t gpu) {
    measure measure = {0};
    for (int i = 0; i < 3; i++) measure_add(&measure, raw_on(split, gpu));
    return measure_percentile(&measure, 50);
}

void scaling_uneven(const scaling *scaling) {
    const bench *bench = scaling->bench;
    if (bench->devices < 2) return;
    split split;
    open_split(&split, scaling);
    muster_all(&split); /* content is there */
    /* Three raw runs on each GPU, slowed, and the settling: 60 times what one takes is enough for all, but for the simulator. */
    CUstream background = start_background(&split, bench_is_real(bench) ? 60ull * 1000000 * scaling->milliseconds : 1);
    double speed = 0, slowest_us = 0;
    for (uint32_t g = 0; g < bench->raw_count; g++) {
        double us = median_on(&split, g);
        speed += 1 / us;
        if (us > slowest_us) slowest_us = us;
    }
    measure settled = {0};
    double first = muster_all(&split);
    for (int i = 1; i < 2 * SETTLE; i++) {
        double us = muster_all(&split);
        if (i >= SETTLE) measure_add(&settled, us);
    }
    bool slowed = bench->table->stream_query(background) == CUDA_ERROR_NOT_READY; /* all the time */
    BENCH_DRIVER(bench, stream_synchronize(background));
    bench_enter(bench, 0);
    BENCH_DRIVER(bench, stream_destroy(background));
    check(&split, split.cut, split.cut_times);
    double ideal = 1 / speed, even = slowest_us / bench->raw_count, us = measure_percentile(&settled, 50);
    const measure_figure figures[] = {{"even_us", even},
                                      {"ideal_us", ideal},
                                      {"first_us", first},
                                      {"settled_us", us},
                                      {"ratio", slowed ? us / ideal : NAN}};
    const measure_bound bound = {"ratio", 1.15, false};
    measure_row_bounded(&scaling->bench->report, "compute-bound, device 0 slowed", figures, 5, &bound, 1);
    close_split(&split);
}

/* -------------------------------------------------------------------------------------------------------- transfer -- */

typedef struct upload {
    const bench *bench;
    uint64_t part_bytes; /* of each device */
    char *host;          /* pinned */
    muster_buffer *buffer;
    CUdeviceptr memory[MU_MAX_DEVICES];
    uint32_t turn;
} upload;

static double gbps(uint64_t bytes, double us) { return (double)bytes / (us * 1e3); }

static void copy_part(const upload *upload, uint32_t gpu) {
    bench_enter(upload->bench, gpu);
    BENCH_DRIVER(upload->bench, memcpy_htod_async(upload->memory[gpu], upload->host + gpu * upload->part_bytes,
                                                  upload->part_bytes, upload->bench->raw[gpu].stream));
}

/* Of each device by itself: the mean. */
static double upload_alone(void *user) {
    const upload *upload = user;
    double sum = 0;
    for (uint32_t g = 0; g < upload->bench->raw_count; g++) {
        uint64_t begin = mu_now_ns();
        copy_part(upload, g);
        bench_synchronize(upload->bench, g);
        sum += gbps(upload->part_bytes, bench_since_us(begin));
    }
    return sum / upload->bench->raw_count;
}

static double upload_together(void *user) {
    const upload *upload = user;
    uint64_t begin = mu_now_ns();
    for (uint32_t g = 0; g < upload->bench->raw_count; g++) copy_part(upload, g);
    for (uint32_t g = 0; g < upload->bench->raw_count; g++) bench_synchronize(upload->bench, g);
    return gbps(upload->part_bytes, bench_since_us(begin));
}

static double upload_sharded(void *user) {
    const upload *upload = user;
    uint64_t bytes = upload->part_bytes * upload->bench->devices;
    void *pointer;
    BENCH_OK(muster_buffer_acquire(upload->buffer, 0, 0, MUSTER_WRITE, MUSTER_FOREVER, &pointer, &bench_error));
    BENCH_OK(muster_buffer_release(upload->buffer, pointer, &bench_error));
    const muster_arg args[] = {muster_block_cut(muster_buffer_arg(upload->buffer, MUSTER_READ_WRITE), 4 * THREADS),
                               muster_u32_arg(3), muster_u32_arg(1), muster_shard_count_arg(THREADS, bytes / 4, 4)};
    muster_dispatch dispatch = bench_dispatch(bench_kernel(upload->bench, "affine"), args, 4);
    dispatch.grid.x = (uint32_t)(bytes / (4 * THREADS));
    dispatch.block.x = THREADS;
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    uint64_t begin = mu_now_ns();
    muster_graph *graph = bench_graph(upload->bench);
    bench_add(graph, &dispatch);
    bench_run(upload->bench, graph);
    double rate = gbps(upload->part_bytes, bench_since_us(begin));
    muster_graph_destroy(graph);
    return rate;
}

static void measure_upload(const scaling *scaling, uint32_t mib) {
    const bench *bench = scaling->bench;
    const bench_way ways[] = {upload_alone, upload_together, upload_sharded};
    measure measures[3] = {0};
    upload upload = {.bench = bench, .part_bytes = mib * MIB};
    void *host;
    uint64_t bytes = upload.part_bytes * bench->devices;
    BENCH_OK(muster_host_alloc(bench->runtime, bytes, &host, &bench_error));
    memset(host, 1, bytes);
    upload.host = host;
    upload.buffer = bench_buffer(bench, bytes, host);
    for (uint32_t g = 0; g < bench->raw_count; g++) {
        bench_enter(bench, g);
        BENCH_DRIVER(bench, mem_alloc(&upload.memory[g], upload.part_bytes));
    }
    bench_alternate(bench, &upload, ways, 3, 3, measures);
    double own = measure_percentile(&measures[0], 50), together = measure_percentile(&measures[1], 50);
    double rate = measure_percentile(&measures[2], 50);
    const measure_figure figures[] = {{"own_gbps", own},
                                      {"together_gbps", together},
                                      {"muster_gbps", rate},
                                      {"of_own", rate / own},
                                      {"of_together", rate / together}};
    const measure_bound bound = {"of_own", 0.9, true};
    char name[64];
    snprintf(name, sizeof name, "transfer-bound, sharded, %" PRIu32 " MiB each", mib);
    measure_row_bounded(&scaling->bench->report, name, figures, 5, &bound, 1);
    for (uint32_t g = 0; g < bench->raw_count; g++) {
        bench_enter(bench, g);
        BENCH_DRIVER(bench, mem_free(upload.memory[g]));
    }
    muster_buffer_destroy(upload.buffer);
    BENCH_OK(muster_host_free(bench->runtime, host, &bench_error));
}

void scaling_transfer(const scaling *scaling) {
    measure_upload(scaling, scaling->mib);
    measure_upload(scaling, 4 * scaling->mib);
}
