/* How much host memory does a queued job take?
 *
 *     job_memory_bench [--jobs N] [options of bench.h]
 *
 * N (1,000,000) jobs of each kind of backlog.h in one graph, which is built, submitted and waited for. What Muster has taken through the
 * allocation hook is counted, as malloc rounds it: built_bytes when the graph is built, job_bytes at most until the run has ended, both
 * per job; total_gib is the latter for all. Runs on any driver alike; by itself on the null driver. */
#include <inttypes.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/bench/backlog.h"

static atomic_int_fast64_t live_bytes, peak_bytes;

static void count(int64_t bytes) {
    int64_t now = atomic_fetch_add(&live_bytes, bytes) + bytes, peak = atomic_load(&peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now)) {
    }
}

static void *counted_reallocate(void *user, void *pointer, size_t bytes) {
    (void)user;
    int64_t before = pointer ? (int64_t)malloc_usable_size(pointer) : 0;
    void *moved = realloc(pointer, bytes);
    if (moved) count((int64_t)malloc_usable_size(moved) - before);
    return moved;
}

static void counted_release(void *user, void *pointer) {
    (void)user;
    if (pointer) count(-(int64_t)malloc_usable_size(pointer));
    free(pointer);
}

/* A worker frees the last of a run some time after it has ended: waits until nothing becomes less any more. */
static void settle(void) {
    int64_t seen = INT64_MAX;
    for (int64_t now; (now = atomic_load(&live_bytes)) < seen; seen = now)
        nanosleep(&(struct timespec){0, 300000000}, NULL);
}

static void measure_kind(bench *bench, backlog_kind kind, uint32_t jobs) {
    backlog backlog;
    settle();
    backlog_open(&backlog, bench, kind, jobs);
    int64_t before = atomic_load(&live_bytes);
    atomic_store(&peak_bytes, before);
    muster_graph *graph = backlog_build(&backlog, 0, jobs);
    int64_t built = atomic_load(&live_bytes);
    bench_run(bench, graph);
    int64_t peak = atomic_load(&peak_bytes);
    muster_graph_destroy(graph);
    backlog_close(&backlog);
    char name[64];
    snprintf(name, sizeof name, "%s, %" PRIu32 " jobs", backlog_kind_names[kind], jobs);
    const measure_figure figures[] = {{"built_bytes", (double)(built - before) / jobs},
                                      {"job_bytes", (double)(peak - before) / jobs},
                                      {"total_gib", (double)(peak - before) / (1 << 30)}};
    const measure_bound bounds[] = {{"job_bytes", 256, false}, {"total_gib", 3, false}};
    measure_row_bounded(&bench->report, name, figures, 3, bounds, 2);
}

int main(int argc, char **argv) {
    bench bench = {.driver = "null", .devices = 1};
    uint32_t jobs = 1000000;
    const muster_allocator hooks = {.reallocate = counted_reallocate, .release = counted_release};
    const bench_option options[] = {{"--jobs", &jobs}};
    bench_parse(&bench, argc, argv, 1, options, 1);
    if (bench.quick) jobs = 10000;
    BENCH_OK(muster_set_allocator(&hooks, &bench_error));
    bench_open(&bench, NULL, "host memory of a queued job");
    bench.report.unjudged = bench.quick; /* a small graph shows what is there in any case */
    for (int kind = 0; kind < BACKLOG_KINDS; kind++) measure_kind(&bench, (backlog_kind)kind, jobs);
    bench_close(&bench);
    return 0;
}
