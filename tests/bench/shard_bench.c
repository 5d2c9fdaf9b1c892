/* What does cutting a dispatch cost?
 *
 *     shard_bench [--shards N] [options of bench.h]
 *
 * One dispatch, submitted and waited for, whole on one device and sharded in turns, with its data where it is needed: over all devices, or, if
 * there is one, in four shards on that. Of an empty kernel, so that what is left is launching several times and waiting for all;
 * the same in backlogs of 20 runs, each of which follows the one before on every device; and of a kernel that updates 64 MiB. On one GPU
 * with --actors the kernels of several contexts take turns, which costs the GPU more than anything that is measured here.
 * Microseconds of wall clock, medians.
 *
 * A dispatch cut into N (1,000) shards: CPU time of the calling thread in muster_graph_dispatch, as the application asked for them, and as
 * waves that a budget makes necessary; then of the first and the second submit, so that the difference is the dependencies between the
 * shards of two such dispatches. */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "tests/bench/bench.h"

enum { WAYS = 2, TIMES = 20, THREADS = 256 };

typedef struct sharded {
    bench *bench;
    uint32_t times; /* submitted so often before a wait */
    muster_graph *graphs[WAYS];
} sharded;

static muster_graph *make_empty(const bench *bench, bool cut) {
    muster_graph *graph = bench_graph(bench);
    uint32_t blocks = 4 * bench->devices; /* a multiple of the shards */
    muster_buffer *in = bench_buffer(bench, 4 * 32 * blocks, NULL), *out = bench_buffer(bench, 4 * 32 * blocks, NULL);
    const muster_arg args[] = {muster_block_cut(muster_buffer_arg(in, MUSTER_READ), 4 * 32),
                               muster_block_cut(muster_buffer_arg(out, MUSTER_READ_WRITE), 4 * 32)};
    muster_dispatch dispatch = bench_dispatch(bench_kernel(bench, "empty_0"), args, 2);
    dispatch.grid.x = blocks;
    dispatch.flags = cut ? MUSTER_DISPATCH_SHARDED : 0;
    dispatch.pin_device = !cut;
    if (cut && bench->devices == 1) dispatch.max_shards = 4;
    bench_add(graph, &dispatch);
    muster_buffer_destroy(in);
    muster_buffer_destroy(out);
    return graph;
}

static muster_graph *make_update(const bench *bench, bool cut) {
    muster_graph *graph = bench_graph(bench);
    uint32_t blocks = bench_executes(bench) && !bench_is_real(bench) ? 64 : 1 << 14;
    uint64_t words = (uint64_t)blocks * 4 * THREADS;
    muster_buffer *buffer = bench_buffer(bench, 4 * words, NULL);
    const muster_arg args[] = {muster_block_cut(muster_buffer_arg(buffer, MUSTER_READ_WRITE), 4 * 4 * THREADS),
                               muster_u32_arg(3), muster_u32_arg(1), muster_shard_count_arg(4 * THREADS, words, 8)};
    muster_dispatch dispatch = bench_dispatch(bench_kernel(bench, "stride"), args, 4);
    dispatch.grid.x = blocks;
    dispatch.block.x = THREADS;
    dispatch.flags = cut ? MUSTER_DISPATCH_SHARDED : 0;
    dispatch.pin_device = !cut;
    if (cut && bench->devices == 1) dispatch.max_shards = 4;
    bench_add(graph, &dispatch);
    muster_buffer_destroy(buffer);
    return graph;
}

static double run(const sharded *sharded, int way) {
    muster_run *runs[TIMES];
    uint64_t begin = mu_now_ns();
    for (uint32_t t = 0; t < sharded->times; t++) runs[t] = bench_submit(sharded->bench, sharded->graphs[way]);
    for (uint32_t t = 0; t < sharded->times; t++) BENCH_OK(muster_run_wait(runs[t], MUSTER_FOREVER, &bench_error));
    double each = bench_since_us(begin) / sharded->times;
    for (uint32_t t = 0; t < sharded->times; t++) muster_run_destroy(runs[t]);
    return each;
}

static double run_whole(void *user) { return run(user, 0); }
static double run_cut(void *user) { return run(user, 1); }

static void compare(sharded *sharded, const char *name, uint32_t times, bool bounded,
                    muster_graph *(*make)(const bench *, bool)) {
    static const bench_way ways[WAYS] = {run_whole, run_cut};
    measure measures[WAYS] = {0};
    sharded->times = times;
    for (int w = 0; w < WAYS; w++) sharded->graphs[w] = make(sharded->bench, w == 1);
    bench_alternate(sharded->bench, sharded, ways, WAYS, 10, measures);
    double whole = measure_percentile(&measures[0], 50), cut = measure_percentile(&measures[1], 50);
    const measure_figure figures[] = {{"unsharded_us", whole}, {"sharded_us", cut}, {"more_us", cut - whole}};
    const measure_bound bound = {"more_us", 30, false};
    measure_row_bounded(&sharded->bench->report, name, figures, 3, &bound, bounded);
    for (int w = 0; w < WAYS; w++) muster_graph_destroy(sharded->graphs[w]);
}

/* ----------------------------------------------------------------------------------------------------------- cutting -- */

static double cpu_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* in and out, one slice of each per block. */
static muster_dispatch sliced(const bench *bench, muster_arg args[2], muster_buffer *in, muster_buffer *out,
                              uint32_t slices) {
    uint64_t slice_bytes = muster_buffer_bytes(in) / slices;
    args[0] = muster_block_cut(muster_buffer_arg(in, MUSTER_READ), slice_bytes);
    args[1] = muster_block_cut(muster_buffer_arg(out, MUSTER_READ_WRITE), slice_bytes);
    muster_dispatch dispatch = bench_dispatch(bench_kernel(bench, "empty_0"), args, 2);
    dispatch.grid.x = slices;
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    return dispatch;
}

static void measure_cut(bench *bench, uint32_t shards) {
    measure cut = {0}, first = {0}, second = {0};
    muster_buffer *in = bench_buffer(bench, UINT64_C(1024) * shards, NULL);
    muster_buffer *out = bench_buffer(bench, UINT64_C(1024) * shards, NULL);
    muster_arg args[2];
    muster_dispatch dispatch = sliced(bench, args, in, out, shards);
    dispatch.max_shards = shards;
    for (uint32_t r = 0; r < bench->runs + 3; r++) {
        muster_graph *graph = bench_graph(bench);
        double begin = cpu_now_us();
        bench_add(graph, &dispatch);
        double added = cpu_now_us();
        bench_add(graph, &dispatch);
        double submit[3];
        for (int s = 0; s < 2; s++) {
            submit[s] = cpu_now_us();
            muster_run *run = bench_submit(bench, graph);
            submit[s + 1] = cpu_now_us() - submit[s];
            if (s == 0) submit[0] = submit[1];
            bench_finish(run);
        }
        if (r >= 3) {
            measure_add(&cut, added - begin);
            measure_add(&first, submit[0]);
            measure_add(&second, submit[2]);
        }
        muster_graph_destroy(graph);
    }
    char name[64];
    snprintf(name, sizeof name, "%u shards asked for", shards);
    const measure_figure figures[] = {{"cut_cpu_us", measure_percentile(&cut, 50)},
                                      {"first_cpu_us", measure_percentile(&first, 50)},
                                      {"again_cpu_us", measure_percentile(&second, 50)}};
    const measure_bound bound = {"cut_cpu_us", 100 * (double)shards / 1000, false};
    measure_row_bounded(&bench->report, name, figures, 3, &bound, 1);
    muster_buffer_destroy(in);
    muster_buffer_destroy(out);
}

/* Nothing of so much memory is ever touched: the graph is not submitted. */
static void measure_waves(bench *bench, uint32_t waves) {
    measure cut = {0};
    uint32_t slices = 64 * waves;
    muster_preflight_report report = {.struct_size = sizeof report};
    muster_graph *probe = make_empty(bench, false);
    BENCH_OK(muster_preflight(probe, 0, 0, MUSTER_PREFLIGHT_CHEAP, &report, &bench_error));
    muster_graph_destroy(probe);
    /* Four waves are on a device at once, and each has a part of in and of out. */
    uint64_t slice_bytes = report.budget_bytes / MU_WAVE_DEPTH / 2 / 64 / 4096 * 4096;
    muster_buffer *in = bench_buffer(bench, slice_bytes * slices, NULL),
                  *out = bench_buffer(bench, slice_bytes * slices, NULL);
    muster_arg args[2];
    muster_dispatch dispatch = sliced(bench, args, in, out, slices);
    for (uint32_t r = 0; r < bench->runs + 3; r++) {
        muster_graph *graph = bench_graph(bench);
        double begin = cpu_now_us();
        bench_add(graph, &dispatch);
        if (r >= 3) measure_add(&cut, cpu_now_us() - begin);
        muster_graph_destroy(graph);
    }
    char name[64];
    snprintf(name, sizeof name, "some %u waves", waves);
    const measure_figure figures[] = {
        {"cut_cpu_us", measure_percentile(&cut, 50)}, {"first_cpu_us", NAN}, {"again_cpu_us", NAN}};
    const measure_bound bound = {"cut_cpu_us", 100 * (double)waves / 1000, false};
    measure_row_bounded(&bench->report, name, figures, 3, &bound, 1);
    muster_buffer_destroy(in);
    muster_buffer_destroy(out);
}

int main(int argc, char **argv) {
    bench bench = {.name = NULL};
    sharded sharded = {.bench = &bench};
    uint32_t shards = 1000;
    const bench_option options[] = {{"--shards", &shards}};
    bench_parse(&bench, argc, argv, 31, options, 1);
    bench_open(&bench, NULL, "cutting a dispatch");
    compare(&sharded, "an empty kernel", 1, true, make_empty);
    compare(&sharded, "20 graphs of it", TIMES, false, make_empty);
    compare(&sharded, "64 MiB updated", 1, false, make_update);
    measure_cut(&bench, shards);
    measure_waves(&bench, shards);
    bench_close(&bench);
    return 0;
}
