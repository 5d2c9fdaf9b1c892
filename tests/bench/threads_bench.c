/* Are several threads that submit to one device slower together than one?
 *
 *     threads_bench [--threads T] [--jobs N] [options of bench.h]
 *
 * N (200,000) independent jobs in graphs of 1,000, built and submitted by one thread, or by T (8), each with an N-th of them over
 * buffers of its own; and as many launches from one thread, and from T with a stream each. Microseconds of wall clock per job, all
 * threads together, medians; `ratio` is to one thread of the same side. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/backlog.h"

enum { MAX_THREADS = 64, WAYS = 4 };

typedef struct setting setting;

typedef struct worker {
    setting *setting;
    backlog backlog;
    CUstream stream;
    pthread_t thread;
} worker;

struct setting {
    bench *bench;
    uint32_t threads, jobs;
    pthread_barrier_t begin;
    worker alone, workers[MAX_THREADS];
};

static void launch_raw(worker *worker) {
    const bench *bench = worker->setting->bench;
    CUdeviceptr in = bench->raw[0].memory, out = in;
    void *parameters[] = {&in, &out};
    CUfunction function = bench_function(bench, 0, "empty_0");
    for (uint32_t i = 0; i < worker->backlog.jobs; i++)
        BENCH_DRIVER(bench, launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, worker->stream, parameters, NULL));
    BENCH_DRIVER(bench, stream_synchronize(worker->stream));
}

static void *run_muster(void *argument) {
    worker *worker = argument;
    pthread_barrier_wait(&worker->setting->begin);
    backlog_run_graphs(&worker->backlog);
    return NULL;
}

static void *run_raw(void *argument) {
    worker *worker = argument;
    bench_enter(worker->setting->bench, 0);
    pthread_barrier_wait(&worker->setting->begin);
    launch_raw(worker);
    return NULL;
}

static double on_threads(setting *setting, void *(*run)(void *)) {
    for (uint32_t t = 0; t < setting->threads; t++)
        if (pthread_create(&setting->workers[t].thread, NULL, run, &setting->workers[t])) exit(1);
    pthread_barrier_wait(&setting->begin);
    uint64_t begin = mu_now_ns();
    for (uint32_t t = 0; t < setting->threads; t++) pthread_join(setting->workers[t].thread, NULL);
    return bench_since_us(begin) / setting->jobs;
}

static double raw_alone(void *user) {
    setting *setting = user;
    uint64_t begin = mu_now_ns();
    launch_raw(&setting->alone);
    return bench_since_us(begin) / setting->jobs;
}
static double raw_threads(void *user) { return on_threads(user, run_raw); }
static double muster_alone(void *user) { return backlog_graphs_us(&((setting *)user)->alone.backlog); }
static double muster_threads(void *user) { return on_threads(user, run_muster); }

static void open_worker(worker *worker, setting *setting, uint32_t jobs) {
    worker->setting = setting;
    backlog_open(&worker->backlog, setting->bench, BACKLOG_INDEPENDENT, jobs);
    BENCH_DRIVER(setting->bench, stream_create(&worker->stream, CU_STREAM_NON_BLOCKING));
}

static void close_worker(worker *worker) {
    BENCH_DRIVER(worker->setting->bench, stream_destroy(worker->stream));
    backlog_close(&worker->backlog);
}

int main(int argc, char **argv) {
    static const char *const names[WAYS] = {"raw, one thread", "raw", "muster, one thread", "muster"};
    const bench_way ways[WAYS] = {raw_alone, raw_threads, muster_alone, muster_threads};
    bench bench = {.devices = 1};
    static setting setting;
    measure measures[WAYS] = {0};
    setting.bench = &bench;
    setting.threads = 8;
    setting.jobs = 200000;
    const bench_option options[] = {{"--threads", &setting.threads}, {"--jobs", &setting.jobs}};
    bench_parse(&bench, argc, argv, 5, options, 2);
    if (bench.quick) setting.jobs = 8000;
    if (setting.threads > MAX_THREADS) {
        fprintf(stderr, "--threads is at most %d\n", MAX_THREADS);
        return 2;
    }
    bench_open(&bench, NULL, "several threads that submit to one device");
    uint32_t part = (setting.jobs + setting.threads - 1) / setting.threads;
    setting.jobs = part * setting.threads;
    pthread_barrier_init(&setting.begin, NULL, setting.threads + 1);
    open_worker(&setting.alone, &setting, setting.jobs);
    for (uint32_t t = 0; t < setting.threads; t++) open_worker(&setting.workers[t], &setting, part);
    bench_alternate(&bench, &setting, ways, WAYS, 1, measures);
    for (int w = 0; w < WAYS; w++) {
        char name[64];
        double median = measure_percentile(&measures[w], 50), base = measure_percentile(&measures[w & ~1], 50);
        if (w & 1)
            snprintf(name, sizeof name, "%s, %" PRIu32 " threads", names[w], setting.threads);
        else
            snprintf(name, sizeof name, "%s", names[w]);
        const measure_figure figures[] = {{"job_us", median}, {"ratio", median / base}};
        const measure_bound bound = {"ratio", 1.0, false};
        measure_row_bounded(&bench.report, name, figures, 2, &bound, w == 3);
    }
    for (uint32_t t = 0; t < setting.threads; t++) close_worker(&setting.workers[t]);
    close_worker(&setting.alone);
    pthread_barrier_destroy(&setting.begin);
    bench_close(&bench);
    return 0;
}
