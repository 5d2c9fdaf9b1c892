/* Admission on real devices: cooperative grids at the limit, one over, split and clamped, with the results of the ordinary
 * launches; a job over the budget, and one that waits for another. Skipped, visibly, where there is no driver or device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/fixture.h"

extern const char test_residency_kernels_ptx[];

enum { THREADS = 256, COUNT = 3000000 };

typedef struct gpu {
    muster_runtime *runtime;
    muster_program *program;
    muster_kernel *reverse, *phases[2];
    muster_buffer *in, *tmp, *out;
    muster_arg args[4];
    uint32_t *expected; /* what the phases make of it as two ordinary jobs */
} gpu;

static muster_dispatch dispatch_of(gpu *g, muster_kernel *kernel, uint32_t blocks, uint32_t shared) {
    return (muster_dispatch){.struct_size = sizeof(muster_dispatch),
                             .kernel = kernel,
                             .grid.x = blocks,
                             .block.x = THREADS,
                             .dynamic_shared_bytes = shared,
                             .arg_count = 4,
                             .args = g->args,
                             .pin_device = 1};
}

static muster_dispatch cooperative(gpu *g, uint64_t blocks, uint32_t shared, muster_fallback fallback) {
    muster_dispatch dispatch = dispatch_of(g, g->reverse, (uint32_t)blocks, shared);
    dispatch.flags = MUSTER_DISPATCH_COOPERATIVE;
    dispatch.barrier_counter = "arrived";
    dispatch.fallback = fallback;
    if (fallback == MUSTER_FALLBACK_SPLIT) dispatch.phases = g->phases, dispatch.phase_count = 2;
    return dispatch;
}

/* Zeros, so that what an earlier launch left there proves nothing. */
static void clear(gpu *g, muster_graph *graph) {
    OK(muster_graph_fill(graph, g->out, 0, 4 * COUNT, 0, 4, NULL, &reported));
    OK(muster_graph_fill(graph, g->tmp, 0, 4 * COUNT, 0, 4, NULL, &reported));
}

static muster_graph *new_graph(gpu *g) {
    muster_graph *graph = NULL;
    OK(muster_graph_create(g->runtime, &graph, &reported));
    return graph;
}

static void run_to_end(gpu *g, muster_graph *graph) {
    muster_run *run = NULL;
    OK(muster_submit(g->runtime, graph, &run, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    muster_graph_destroy(graph);
}

static void check(gpu *g, const muster_dispatch *dispatch) {
    muster_graph *graph = new_graph(g);
    clear(g, graph);
    fixture_add(graph, dispatch);
    run_to_end(g, graph);
    void *words;
    OK(muster_buffer_acquire(g->out, 0, 0, MUSTER_READ, fixture_wait_ns, &words, &reported));
    assert_memory_equal(words, g->expected, 4 * COUNT);
    OK(muster_buffer_release(g->out, words, &reported));
}

static void ordinary_result(gpu *g) {
    muster_graph *graph = new_graph(g);
    clear(g, graph);
    for (int i = 0; i < 2; i++) {
        muster_dispatch dispatch = dispatch_of(g, g->phases[i], COUNT / THREADS, 0);
        fixture_add(graph, &dispatch);
    }
    run_to_end(g, graph);
    g->expected = malloc(4 * COUNT);
    assert_non_null(g->expected);
    fixture_read(g->out, 0, 4 * COUNT, g->expected);
    for (uint32_t i = 0; i < COUNT; i += 9973) assert_int_equal(g->expected[i], (COUNT - 1 - i) * 7 * 3 + 8);
}

static muster_preflight_report preflight(gpu *g, const muster_dispatch *dispatch) {
    muster_preflight_report report = {.struct_size = sizeof report};
    OK(muster_preflight_dispatch(g->runtime, dispatch, 0, MUSTER_PREFLIGHT_FULL, &report, &reported));
    return report;
}

/* The driver must have refused nothing that preflight allowed, nor the other way round: at the limit of the device, and at
 * that of the kernel with so much shared memory that it is lower. */
static void cooperative_grids_around_the_limit(void **state) {
    gpu *g = *state;
    muster_device_info info = {.struct_size = sizeof info};
    OK(muster_device_get_info(g->runtime, 0, &info, &reported));
    if (!info.cooperative_launch) skip();
    for (int shared = 0; shared < 2; shared++) {
        uint32_t bytes = shared ? (uint32_t)info.max_shared_optin_bytes / 2 : 0;
        muster_dispatch dispatch = cooperative(g, 1, bytes, MUSTER_FALLBACK_NONE);
        uint64_t limit = preflight(g, &dispatch).resident_limit;
        assert_true(limit >= (uint64_t)info.multiprocessors);
        print_message("%s: %llu blocks of %d threads and %u bytes of shared memory can be resident\n", info.name,
                      (unsigned long long)limit, THREADS, bytes);
        dispatch = cooperative(g, limit, bytes, MUSTER_FALLBACK_NONE);
        assert_int_equal(preflight(g, &dispatch).answer, MUSTER_ANSWER_YES);
        check(g, &dispatch);
        dispatch = cooperative(g, limit + 1, bytes, MUSTER_FALLBACK_NONE);
        assert_int_equal(preflight(g, &dispatch).status, MUSTER_COOPERATIVE_TOO_LARGE);
        muster_graph *graph = new_graph(g);
        muster_status status = muster_graph_dispatch(graph, &dispatch, NULL, &reported);
        if (!status) {
            muster_run *run = NULL;
            OK(muster_submit(g->runtime, graph, &run, &reported));
            status = muster_run_wait(run, fixture_wait_ns, &reported);
            muster_run_destroy(run);
        }
        assert_int_equal(status, MUSTER_COOPERATIVE_TOO_LARGE);
        muster_graph_destroy(graph);
        for (uint64_t blocks = limit + 1; blocks < 10 * limit; blocks = 3 * blocks + 1) {
            dispatch = cooperative(g, blocks, bytes, MUSTER_FALLBACK_SPLIT);
            assert_int_equal(preflight(g, &dispatch).fallback, MUSTER_FALLBACK_SPLIT);
            check(g, &dispatch);
            dispatch = cooperative(g, blocks, bytes, MUSTER_FALLBACK_CLAMP);
            assert_int_equal(preflight(g, &dispatch).launched_blocks, limit);
            check(g, &dispatch);
        }
    }
}

static void barrier_counters_are_zero_before_each_of_many_launches(void **state) {
    gpu *g = *state;
    muster_device_info info = {.struct_size = sizeof info};
    OK(muster_device_get_info(g->runtime, 0, &info, &reported));
    if (!info.cooperative_launch) skip();
    muster_dispatch dispatch = cooperative(g, (uint64_t)info.multiprocessors, 0, MUSTER_FALLBACK_NONE);
    dispatch.flags |= MUSTER_DISPATCH_ITERATED;
    dispatch.iterations = 100; /* a counter that is not reset lets blocks through too early, or for ever wait */
    check(g, &dispatch);
}

static muster_device_stats stats_of(gpu *g) {
    muster_device_stats stats = {.struct_size = sizeof stats};
    OK(muster_device_get_stats(g->runtime, 0, &stats, &reported));
    return stats;
}

static muster_run *start_fill(gpu *g, muster_buffer *buffer, uint32_t pattern) {
    muster_graph *graph = new_graph(g);
    muster_run *run = NULL;
    OK(muster_graph_fill(graph, buffer, 0, muster_buffer_bytes(buffer), pattern, 4, NULL, &reported));
    OK(muster_submit(g->runtime, graph, &run, &reported));
    muster_graph_destroy(graph);
    return run;
}

static uint64_t available(gpu *g) {
    muster_dispatch dispatch = dispatch_of(g, g->phases[0], 1, 0);
    muster_preflight_report report = preflight(g, &dispatch);
    return report.available_bytes < report.budget_bytes ? report.available_bytes : report.budget_bytes;
}

static muster_buffer *buffer_of(gpu *g, uint64_t bytes) {
    muster_buffer *buffer = NULL;
    OK(muster_buffer_create(g->runtime, bytes / 4 * 4, NULL, &buffer, &reported));
    return buffer;
}

static void far_over_free_memory_is_refused_before_any_allocation(void **state) {
    gpu *g = *state;
    muster_device_info info = {.struct_size = sizeof info};
    OK(muster_device_get_info(g->runtime, 0, &info, &reported));
    muster_device_stats before = stats_of(g);
    muster_buffer *buffer = buffer_of(g, info.memory_bytes / 10 * 11);
    muster_run *run = start_fill(g, buffer, 1);
    FAILS(MUSTER_NEVER_FITS, "budget", muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    muster_device_stats after = stats_of(g);
    assert_int_equal(after.pool_bytes_in_use, before.pool_bytes_in_use);
    assert_int_equal(after.pool_bytes_reserved, before.pool_bytes_reserved);
    assert_int_equal(after.refusals, before.refusals + 1);
    muster_buffer_destroy(buffer);
}

/* The first buffer goes with its run, as soon as that has ended: its content need not be saved for anyone. */
static void three_fifths_wait_for_three_fifths(void **state) {
    gpu *g = *state;
    uint64_t bytes = available(g) / 10 * 6;
    muster_device_stats before = stats_of(g);
    muster_buffer *first = buffer_of(g, bytes), *second = buffer_of(g, bytes);
    muster_run *runs[2] = {start_fill(g, first, 1), NULL};
    runs[1] = start_fill(g, second, 2);
    muster_buffer_destroy(first);
    muster_run_destroy(runs[0]);
    OK(muster_run_wait(runs[1], fixture_wait_ns, &reported));
    muster_run_destroy(runs[1]);
    muster_device_stats after = stats_of(g);
    assert_int_equal(after.admission_waits, before.admission_waits + 1);
    assert_int_equal(after.refusals, before.refusals);
    /* Its last word, without bringing all of it to the host. */
    muster_buffer *word = buffer_of(g, 4);
    muster_graph *graph = new_graph(g);
    OK(muster_graph_copy(graph, word, 0, second, muster_buffer_bytes(second) - 4, 4, NULL, &reported));
    run_to_end(g, graph);
    assert_int_equal(fixture_word(word, 0), 2);
    muster_buffer_destroy(second);
    muster_buffer_destroy(word);
}

static int close_gpu(void **state) {
    gpu *g = *state;
    if (!g) return 0;
    muster_status status = muster_runtime_destroy(g->runtime, fixture_wait_ns, NULL);
    free(g->expected);
    return status != MUSTER_OK;
}

static int open_gpu(void **state) {
    static gpu g;
    const int ordinal = 0;
    muster_config config = {.struct_size = sizeof config, .driver = "cuda", .ordinals = &ordinal, .device_count = 1};
    OK(muster_runtime_create(&config, &g.runtime, &reported));
    OK(muster_program_from_ptx(g.runtime, test_residency_kernels_ptx, 0, "residency", &g.program, &reported));
    OK(muster_program_kernel(g.program, "reverse", &g.reverse, &reported));
    OK(muster_program_kernel(g.program, "fill_tmp", &g.phases[0], &reported));
    OK(muster_program_kernel(g.program, "read_tmp", &g.phases[1], &reported));
    uint32_t *words = malloc(4 * COUNT);
    assert_non_null(words);
    for (uint32_t i = 0; i < COUNT; i++) words[i] = 7 * i;
    muster_buffer **buffers[] = {&g.in, &g.tmp, &g.out};
    for (int i = 0; i < 3; i++) OK(muster_buffer_create(g.runtime, 4 * COUNT, NULL, buffers[i], &reported));
    fixture_write(g.in, 0, 4 * COUNT, words);
    free(words);
    g.args[0] = muster_buffer_arg(g.out, MUSTER_READ_WRITE);
    g.args[1] = muster_buffer_arg(g.tmp, MUSTER_READ_WRITE);
    g.args[2] = muster_buffer_arg(g.in, MUSTER_READ);
    g.args[3] = muster_u32_arg(COUNT);
    ordinary_result(&g);
    *state = &g;
    return 0;
}

int main(void) {
    const muster_config config = {.struct_size = sizeof config, .driver = "cuda"};
    muster_runtime *runtime;
    muster_error error;
    muster_status status = muster_runtime_create(&config, &runtime, &error);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) {
        fprintf(stderr, "SKIPPED: %s\n", error.message);
        return 0;
    }
    if (!status) muster_runtime_destroy(runtime, MUSTER_FOREVER, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cooperative_grids_around_the_limit),
        cmocka_unit_test(barrier_counters_are_zero_before_each_of_many_launches),
        cmocka_unit_test(far_over_free_memory_is_refused_before_any_allocation),
        cmocka_unit_test(three_fifths_wait_for_three_fifths),
    };
    return cmocka_run_group_tests_name("admission on a GPU", tests, open_gpu, close_gpu);
}
