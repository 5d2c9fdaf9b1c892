/* What does waiting cost, and how soon is a completion seen?
 *
 *     idle_bench [options of bench.h]
 *
 *     idle          share of a core that the process takes while nothing is to be done, over a second after its worker has parked
 *     long kernel   the same while one kernel runs for a second and a thread waits for its run; and cuStreamSynchronize for the same
 *     completion    from when a kernel of 3 to 9 ms says in pinned memory, which a thread watches, that it ends, to when
 *                   muster_run_wait returns; and the same with cuStreamSynchronize, which spins. 20 kernels in a run
 * Shares are medians over R runs, in percent of a core; times in microseconds, the worst of all. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/bench/bench.h"

enum { KERNELS = 20 };

typedef struct setting {
    bench *bench;
    uint64_t second_ns; /* what is a second here */
    muster_graph *lone;
    muster_buffer *buffer;
    atomic_uint *flag; /* pinned */
} setting;

static double cpu_percent(uint64_t begin_ns, uint64_t cpu_begin_ns) {
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    uint64_t used = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec - cpu_begin_ns;
    return 100.0 * (double)used / (double)(mu_now_ns() - begin_ns);
}

static uint64_t cpu_now_ns(void) {
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    return (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec;
}

static void sleep_ns(uint64_t ns) {
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}, NULL);
}

static double idle(void *user) {
    const setting *setting = user;
    sleep_ns(setting->second_ns / 20); /* until it has parked */
    uint64_t cpu = cpu_now_ns(), begin = mu_now_ns();
    sleep_ns(setting->second_ns);
    return cpu_percent(begin, cpu);
}

static muster_graph *spinning(const setting *setting, const char *kernel, const muster_arg *first, uint64_t ns) {
    const muster_arg args[] = {*first, muster_u64_arg(ns)};
    muster_dispatch dispatch = bench_dispatch(bench_kernel(setting->bench, kernel), args, 2);
    muster_graph *graph = bench_graph(setting->bench);
    bench_add(graph, &dispatch);
    return graph;
}

static double long_kernel(void *user) {
    const setting *setting = user;
    const muster_arg buffer = muster_buffer_arg(setting->buffer, MUSTER_READ);
    muster_graph *graph = spinning(setting, "spin", &buffer, setting->second_ns);
    muster_run *run = bench_submit(setting->bench, graph);
    uint64_t cpu = cpu_now_ns(), begin = mu_now_ns();
    BENCH_OK(muster_run_wait(run, MUSTER_FOREVER, &bench_error));
    double percent = cpu_percent(begin, cpu);
    muster_run_destroy(run);
    muster_graph_destroy(graph);
    return percent;
}

static void launch_spinning(const setting *setting, const char *kernel, CUdeviceptr memory, uint64_t ns) {
    void *parameters[] = {&memory, &ns};
    bench_launch(setting->bench, 0, bench_function(setting->bench, 0, kernel), parameters);
}

static double long_kernel_raw(void *user) {
    const setting *setting = user;
    launch_spinning(setting, "spin", setting->bench->raw[0].memory, setting->second_ns);
    uint64_t cpu = cpu_now_ns(), begin = mu_now_ns();
    bench_synchronize(setting->bench, 0);
    return cpu_percent(begin, cpu);
}

static void *watch_flag(void *argument) {
    const setting *setting = argument;
    while (!atomic_load_explicit(setting->flag, memory_order_acquire)) {
    }
    uint64_t *seen = malloc(sizeof *seen);
    *seen = mu_now_ns();
    return seen;
}

/* How long after the kernel has told its end `wait` has returned. */
static double lateness_us(const setting *setting, uint64_t ns, bool raw) {
    pthread_t watcher;
    void *result;
    CUdeviceptr flag = (CUdeviceptr)(uintptr_t)setting->flag; /* one address space */
    const muster_arg argument = muster_u64_arg(flag);
    muster_graph *graph = raw ? NULL : spinning(setting, "spin_and_tell", &argument, ns);
    atomic_store(setting->flag, 0);
    if (pthread_create(&watcher, NULL, watch_flag, (void *)setting)) exit(1);
    if (raw) {
        launch_spinning(setting, "spin_and_tell", flag, ns);
        bench_synchronize(setting->bench, 0);
    } else {
        bench_run(setting->bench, graph);
    }
    uint64_t returned = mu_now_ns();
    pthread_join(watcher, &result);
    double late = ((double)returned - (double)*(uint64_t *)result) * 1e-3;
    free(result);
    muster_graph_destroy(graph);
    return late;
}

static void measure_lateness(setting *setting) {
    measure muster = {0}, raw = {0};
    for (uint32_t i = 0; i < (setting->bench->quick ? 2 : KERNELS * setting->bench->runs) && i < MEASURE_MAX_RUNS;
         i++) {
        uint64_t ns = 3000000 + i * 2654435761u % 6000000;
        measure_add(&raw, lateness_us(setting, ns, true));
        measure_add(&muster, lateness_us(setting, ns, false));
    }
    const measure_figure figures[] = {{"raw_us", measure_percentile(&raw, 50)},
                                      {"raw_worst_us", measure_percentile(&raw, 100)},
                                      {"median_us", measure_percentile(&muster, 50)},
                                      {"worst_us", measure_percentile(&muster, 100)}};
    const measure_bound bound = {"worst_us", 100, false};
    measure_row_bounded(&setting->bench->report, "completion seen after", figures, 4, &bound, 1);
}

int main(int argc, char **argv) {
    bench bench = {.devices = 1};
    setting setting = {.bench = &bench, .second_ns = 1000000000};
    measure shares[3] = {0};
    void *flag;
    bench_parse(&bench, argc, argv, 3, NULL, 0);
    if (bench.quick) setting.second_ns = 20000000;
    bench_open(&bench, NULL, "cost of waiting");
    setting.buffer = bench_buffer(&bench, 4096, NULL);
    BENCH_OK(muster_host_alloc(bench.runtime, 4096, &flag, &bench_error));
    setting.flag = flag;
    const muster_arg buffer = muster_buffer_arg(setting.buffer, MUSTER_READ);
    muster_graph *warm = spinning(&setting, "spin", &buffer, 1000);
    bench_run(&bench, warm);
    muster_graph_destroy(warm);
    const bench_way ways[] = {idle, long_kernel_raw, long_kernel};
    bench_alternate(&bench, &setting, ways, 3, 0, shares);
    const measure_figure idle_figures[] = {{"raw_%", NAN}, {"muster_%", measure_percentile(&shares[0], 50)}};
    measure_row_bounded(&bench.report, "idle", idle_figures, 2, &(measure_bound){"muster_%", 0.1, false}, 1);
    const measure_figure long_figures[] = {{"raw_%", measure_percentile(&shares[1], 50)},
                                           {"muster_%", measure_percentile(&shares[2], 50)}};
    measure_row_bounded(&bench.report, "long kernel", long_figures, 2, &(measure_bound){"muster_%", 5, false}, 1);
    if (bench_executes(&bench)) measure_lateness(&setting);
    muster_buffer_destroy(setting.buffer);
    BENCH_OK(muster_host_free(bench.runtime, flag, &bench_error));
    bench_close(&bench);
    return 0;
}
