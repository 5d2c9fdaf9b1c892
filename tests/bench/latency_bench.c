/* How long does a lone job take, from submit to the return of wait?
 *
 *     latency_bench [options of bench.h]
 *
 * A graph of one empty kernel over two buffers, which exists already, against cuLaunchKernel and cuStreamSynchronize:
 *     awake     one after the other, so that the worker has not parked yet: 500 in a run
 *     parked    after 2 ms in which nothing happens: 50 in a run
 * in turns. Microseconds of wall clock, medians over R runs of the runs' medians; worst_us is Muster's worst of all. */
#include <stdio.h>
#include <time.h>

#include "tests/bench/bench.h"

enum { AWAKE = 500, PARKED = 50 };

typedef struct lone {
    bench *bench;
    muster_graph *graph;
    CUfunction function;
    uint32_t samples;
    long pause_ns; /* before each */
    double worst_us;
} lone;

static void pause_before(const lone *lone) {
    if (lone->pause_ns) nanosleep(&(struct timespec){0, lone->pause_ns}, NULL);
}

static double median_of(double *values, uint32_t count) {
    measure measure = {0};
    double medians[8] = {0}; /* of parts that fit a measure: their mean is as good */
    uint32_t parts = 0;
    for (uint32_t i = 0; i < count; i++) {
        measure_add(&measure, values[i]);
        if (measure.count == MEASURE_MAX_RUNS - 1 || i + 1 == count) {
            medians[parts++] = measure_percentile(&measure, 50);
            measure.count = 0;
        }
    }
    double sum = 0;
    for (uint32_t i = 0; i < parts; i++) sum += medians[i];
    return sum / parts;
}

static double raw(void *user) {
    const lone *lone = user;
    CUdeviceptr in = lone->bench->raw[0].memory, out = in;
    void *parameters[] = {&in, &out};
    double values[AWAKE];
    for (uint32_t i = 0; i < lone->samples; i++) {
        pause_before(lone);
        uint64_t begin = mu_now_ns();
        bench_launch(lone->bench, 0, lone->function, parameters);
        bench_synchronize(lone->bench, 0);
        values[i] = bench_since_us(begin);
    }
    return median_of(values, lone->samples);
}

static double muster(void *user) {
    lone *lone = user;
    double values[AWAKE];
    for (uint32_t i = 0; i < lone->samples; i++) {
        pause_before(lone);
        uint64_t begin = mu_now_ns();
        muster_run *run = bench_submit(lone->bench, lone->graph);
        BENCH_OK(muster_run_wait(run, MUSTER_FOREVER, &bench_error));
        values[i] = bench_since_us(begin);
        muster_run_destroy(run);
        if (values[i] > lone->worst_us) lone->worst_us = values[i];
    }
    return median_of(values, lone->samples);
}

static void measure_lone(lone *lone, const char *name, const measure_bound *bound) {
    const bench_way ways[] = {raw, muster};
    measure measures[2] = {0};
    bench_alternate(lone->bench, lone, ways, 2, 1, measures);
    double base = measure_percentile(&measures[0], 50), median = measure_percentile(&measures[1], 50);
    const measure_figure figures[] = {{"raw_us", base},
                                      {"muster_us", median},
                                      {"ratio", median / base},
                                      {"more_us", median - base},
                                      {"worst_us", lone->worst_us}};
    measure_row_bounded(&lone->bench->report, name, figures, 5, bound, 1);
}

int main(int argc, char **argv) {
    bench bench = {.devices = 1};
    lone awake = {.bench = &bench, .samples = AWAKE};
    bench_parse(&bench, argc, argv, 21, NULL, 0);
    bench_open(&bench, NULL, "a lone job, submit to the return of wait");
    muster_buffer *buffer = bench_buffer(&bench, 4096, NULL);
    const muster_arg args[] = {muster_buffer_arg(buffer, MUSTER_READ), muster_buffer_arg(buffer, MUSTER_READ)};
    muster_dispatch dispatch = bench_dispatch(bench_kernel(&bench, "empty_0"), args, 2);
    awake.graph = bench_graph(&bench);
    awake.function = bench_function(&bench, 0, "empty_0");
    bench_add(awake.graph, &dispatch);
    lone parked = awake;
    parked.samples = bench.quick ? 2 : PARKED;
    parked.pause_ns = 2000000;
    measure_lone(&awake, "worker awake", &(measure_bound){"ratio", 1.15, false});
    measure_lone(&parked, "worker parked", &(measure_bound){"more_us", 40, false});
    muster_graph_destroy(awake.graph);
    muster_buffer_destroy(buffer);
    bench_close(&bench);
    return 0;
}
