/* Small jobs on every device at once, and a chain of them that goes from device to device. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/scaling.h"

enum { WAYS = 6, PART = 1000 };

typedef struct small_jobs small_jobs;

typedef struct lane { /* of a device */
    small_jobs *jobs;
    uint32_t device;
    muster_buffer *buffer;
    muster_graph *graph;
    pthread_t thread;
} lane;

struct small_jobs {
    const scaling *scaling;
    const bench *bench;
    pthread_barrier_t begin;
    uint32_t threads; /* that meet there, beside the one that measures */
    lane lanes[MU_MAX_DEVICES];
};

static muster_graph *build(const lane *lane, uint32_t count) {
    const bench *bench = lane->jobs->bench;
    const muster_arg args[] = {muster_buffer_arg(lane->buffer, MUSTER_READ),
                               muster_buffer_arg(lane->buffer, MUSTER_READ)};
    muster_dispatch dispatch = bench_dispatch(bench_kernel(bench, "empty_0"), args, 2);
    dispatch.pin_device = 1;
    dispatch.device = (int)lane->device;
    muster_graph *graph = bench_graph(bench);
    for (uint32_t i = 0; i < count; i++) bench_add(graph, &dispatch);
    return graph;
}

static void *launch_lane(void *argument) {
    const lane *lane = argument;
    const bench *bench = lane->jobs->bench;
    uint32_t gpu = lane->device;
    CUdeviceptr in = bench->raw[gpu].memory, out = in;
    void *parameters[] = {&in, &out};
    CUfunction function = bench_function(bench, gpu, "empty_0");
    bench_enter(bench, gpu);
    pthread_barrier_wait(&lane->jobs->begin);
    for (uint32_t i = 0; i < lane->jobs->scaling->jobs; i++) bench_launch(bench, gpu, function, parameters);
    bench_synchronize(bench, gpu);
    return NULL;
}

static void *build_lane(void *argument) {
    const lane *lane = argument;
    muster_run *run;
    pthread_barrier_wait(&lane->jobs->begin);
    BENCH_OK(muster_run_open(lane->jobs->bench->runtime, &run, &bench_error));
    for (uint32_t done = 0; done < lane->jobs->scaling->jobs; done += PART) {
        uint32_t left = lane->jobs->scaling->jobs - done;
        muster_graph *graph = build(lane, left < PART ? left : PART);
        BENCH_OK(muster_run_add(run, graph, NULL, &bench_error));
        muster_graph_destroy(graph);
    }
    BENCH_OK(muster_run_close(run, &bench_error));
    bench_finish(run);
    return NULL;
}

/* Microseconds per job of a device, with a thread for each of the first `count`. */
static double on_threads(small_jobs *jobs, uint32_t count, void *(*run)(void *)) {
    pthread_barrier_init(&jobs->begin, NULL, count + 1);
    for (uint32_t t = 0; t < count; t++)
        if (pthread_create(&jobs->lanes[t].thread, NULL, run, &jobs->lanes[t])) exit(1);
    pthread_barrier_wait(&jobs->begin);
    uint64_t begin = mu_now_ns();
    for (uint32_t t = 0; t < count; t++) pthread_join(jobs->lanes[t].thread, NULL);
    double us = bench_since_us(begin) / jobs->scaling->jobs;
    pthread_barrier_destroy(&jobs->begin);
    return us;
}

static double submit_again(const small_jobs *jobs, uint32_t count) {
    muster_run *runs[MU_MAX_DEVICES];
    uint64_t begin = mu_now_ns();
    for (uint32_t d = 0; d < count; d++) runs[d] = bench_submit(jobs->bench, jobs->lanes[d].graph);
    for (uint32_t d = 0; d < count; d++) bench_finish(runs[d]);
    return bench_since_us(begin) / jobs->scaling->jobs;
}

static double raw_alone(void *user) { return on_threads(user, 1, launch_lane); }
static double raw_all(void *user) { return on_threads(user, ((small_jobs *)user)->bench->raw_count, launch_lane); }
static double again_alone(void *user) { return submit_again(user, 1); }
static double again_all(void *user) { return submit_again(user, ((small_jobs *)user)->bench->devices); }
static double built_alone(void *user) { return on_threads(user, 1, build_lane); }
static double built_all(void *user) { return on_threads(user, ((small_jobs *)user)->bench->devices, build_lane); }

void scaling_jobs(const scaling *scaling) {
    static const char *const names[] = {"small jobs, raw, a thread each", "small jobs, submitted again by one thread",
                                        "small jobs, built by a thread each"};
    const bench_way ways[WAYS] = {raw_alone, raw_all, again_alone, again_all, built_alone, built_all};
    measure measures[WAYS] = {0};
    static small_jobs jobs;
    const bench *bench = scaling->bench;
    jobs = (small_jobs){.scaling = scaling, .bench = bench};
    for (uint32_t d = 0; d < bench->devices; d++) {
        lane *lane = &jobs.lanes[d];
        lane->jobs = &jobs;
        lane->device = d;
        lane->buffer = bench_buffer(bench, 4096, NULL);
        lane->graph = build(lane, scaling->jobs);
    }
    bench_alternate(bench, &jobs, ways, WAYS, 1, measures);
    for (int side = 0; side < 3; side++) {
        double alone = measure_percentile(&measures[2 * side], 50),
               all = measure_percentile(&measures[2 * side + 1], 50);
        const measure_figure figures[] = {{"one_us", alone}, {"each_us", all}, {"rate_kept", alone / all}};
        const measure_bound bound = {"rate_kept", 0.95, true};
        measure_row_bounded(&scaling->bench->report, names[side], figures, 3, &bound, side ? 1 : 0);
    }
    for (uint32_t d = 0; d < bench->devices; d++) {
        muster_graph_destroy(jobs.lanes[d].graph);
        muster_buffer_destroy(jobs.lanes[d].buffer);
    }
}

/* ----------------------------------------------------------------------------------------------------------- chain -- */

typedef struct chain {
    const scaling *scaling;
    const bench *bench;
    muster_graph *graph;
    uint32_t lanes; /* streams of the raw side: one on each GPU, two when there is one */
    CUstream streams[MU_MAX_DEVICES];
    CUevent events[MU_MAX_DEVICES];
} chain;

static double raw_chain(void *user) {
    const chain *chain = user;
    const bench *bench = chain->bench;
    CUfunction functions[MU_MAX_DEVICES];
    CUdeviceptr nothing = 0;
    void *parameters[] = {&nothing, &nothing};
    for (uint32_t g = 0; g < bench->raw_count; g++) functions[g] = bench_function(bench, g, "empty_0");
    uint64_t begin = mu_now_ns();
    for (uint32_t i = 0; i < chain->scaling->hops; i++) {
        uint32_t lane = i % chain->lanes, before = (i + chain->lanes - 1) % chain->lanes, gpu = lane % bench->raw_count;
        if (bench->raw_count > 1) bench_enter(bench, gpu);
        if (i) BENCH_DRIVER(bench, stream_wait_event(chain->streams[lane], chain->events[before], 0));
        BENCH_DRIVER(bench,
                     launch_kernel(functions[gpu], 1, 1, 1, 32, 1, 1, 0, chain->streams[lane], parameters, NULL));
        BENCH_DRIVER(bench, event_record(chain->events[lane], chain->streams[lane]));
    }
    BENCH_DRIVER(bench, event_synchronize(chain->events[(chain->scaling->hops - 1) % chain->lanes]));
    return bench_since_us(begin) / chain->scaling->hops;
}

static double muster_chain(void *user) {
    const chain *chain = user;
    uint64_t begin = mu_now_ns();
    bench_run(chain->bench, chain->graph);
    return bench_since_us(begin) / chain->scaling->hops;
}

void scaling_chain(const scaling *scaling) {
    const bench *bench = scaling->bench;
    const bench_way ways[] = {raw_chain, muster_chain};
    measure measures[2] = {0};
    if (bench->devices < 2) return;
    chain chain = {.scaling = scaling, .bench = bench, .graph = bench_graph(bench)};
    chain.lanes = bench->raw_count > 1 ? bench->raw_count : 2;
    for (uint32_t lane = 0; lane < chain.lanes; lane++) {
        bench_enter(bench, lane % bench->raw_count);
        BENCH_DRIVER(bench, stream_create(&chain.streams[lane], CU_STREAM_NON_BLOCKING));
        BENCH_DRIVER(bench, event_create(&chain.events[lane], CU_EVENT_DISABLE_TIMING));
    }
    const muster_arg args[] = {muster_u64_arg(0), muster_u64_arg(0)};
    muster_dispatch dispatch = bench_dispatch(bench_kernel(bench, "empty_0"), args, 2);
    muster_job before = MUSTER_NO_JOB;
    for (uint32_t i = 0; i < scaling->hops; i++) {
        dispatch.pin_device = 1;
        dispatch.device = (int)(i % bench->devices);
        dispatch.after_count = i ? 1 : 0;
        dispatch.after = &before;
        before = bench_add(chain.graph, &dispatch);
    }
    bench_alternate(bench, &chain, ways, 2, 2, measures);
    double raw = measure_percentile(&measures[0], 50), hop = measure_percentile(&measures[1], 50);
    const measure_figure figures[] = {{"raw_us", raw}, {"muster_us", hop}, {"ratio", hop / raw}};
    const measure_bound bound = {"ratio", 1.2, false};
    measure_row_bounded(&scaling->bench->report, "chain across devices, a hop", figures, 3, &bound, 1);
    for (uint32_t lane = 0; lane < chain.lanes; lane++) {
        bench_enter(bench, lane % bench->raw_count);
        BENCH_DRIVER(bench, event_destroy(chain.events[lane]));
        BENCH_DRIVER(bench, stream_destroy(chain.streams[lane]));
    }
    muster_graph_destroy(chain.graph);
}
