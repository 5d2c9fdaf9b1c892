/* What a dispatch declares beyond its shape: fallbacks of cooperative grids, barrier counters, clusters, iterations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/scheduler/residency_fixture.h"

/* ------------------------------------------------------------------------------------------------------- residency -- */

/* Runs one dispatch, checks its result, and says with how many launches of which kind. */
static void run_one(residency *r, const muster_dispatch *dispatch, uint64_t ordinary, uint64_t cooperative) {
    uint64_t before = residency_calls(r, "launch_kernel"),
             before_cooperative = residency_calls(r, "launch_cooperative_kernel");
    muster_graph *graph = fixture_graph(&r->fixture);
    fixture_add(graph, dispatch);
    fixture_run(&r->fixture, graph);
    residency_check(r);
    muster_graph_destroy(graph);
    assert_int_equal(residency_calls(r, "launch_kernel") - before, ordinary);
    assert_int_equal(residency_calls(r, "launch_cooperative_kernel") - before_cooperative, cooperative);
}

static void at_the_limit_a_grid_runs_as_it_is(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    for (int fallback = MUSTER_FALLBACK_NONE; fallback <= MUSTER_FALLBACK_CLAMP; fallback++) {
        muster_dispatch dispatch = residency_reverse(&r, RESIDENCY_LIMIT, 0);
        residency_declare(&r, &dispatch, (muster_fallback)fallback);
        run_one(&r, &dispatch, 0, 1);
    }
    fixture_close(&r.fixture);
}

static void one_over_the_limit_is_refused_with_numbers(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    uint64_t queries = residency_calls(&r, "occupancy_max_active_blocks");
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_dispatch dispatch = residency_reverse(&r, RESIDENCY_LIMIT + 1, 0);
    muster_job job = 77;
    FAILS(MUSTER_COOPERATIVE_TOO_LARGE, "reverse|17|16", muster_graph_dispatch(graph, &dispatch, &job, &reported));
    assert_int_equal(job, 77);
    assert_int_equal(residency_calls(&r, "occupancy_max_active_blocks"), queries); /* stage 1 asks nobody */
    fixture_close(&r.fixture);
}

static void the_loaded_kernel_may_refuse_what_the_device_allows(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_dispatch dispatch = residency_reverse(&r, RESIDENCY_SHARED_LIMIT + 1, RESIDENCY_SHARED);
    muster_job job = fixture_add(graph, &dispatch);
    muster_run *run = fixture_submit(&r.fixture, graph);
    FAILS(MUSTER_COOPERATIVE_TOO_LARGE, "reverse|5|4|100000", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, job).status, MUSTER_COOPERATIVE_TOO_LARGE);
    assert_int_equal(residency_stats(&r).refusals, 1);
    residency_clear(&r);
    dispatch = residency_reverse(&r, RESIDENCY_SHARED_LIMIT, RESIDENCY_SHARED);
    run_one(&r, &dispatch, 0, 1);
    fixture_close(&r.fixture);
}

/* Over the device's limit, and over the kernel's. */
static void split_runs_the_phases_in_order(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    for (int shared = 0; shared < 2; shared++) {
        muster_dispatch dispatch = residency_reverse(&r, shared ? RESIDENCY_SHARED_LIMIT + 1 : RESIDENCY_LIMIT + 1,
                                                     shared ? RESIDENCY_SHARED : 0);
        residency_declare(&r, &dispatch, MUSTER_FALLBACK_SPLIT);
        run_one(&r, &dispatch, 2, 0);
    }
    fixture_close(&r.fixture);
}

static void clamp_shrinks_the_grid_to_the_limit(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    for (int shared = 0; shared < 2; shared++) {
        muster_dispatch dispatch = residency_reverse(&r, 10000, shared ? RESIDENCY_SHARED : 0);
        residency_declare(&r, &dispatch, MUSTER_FALLBACK_CLAMP);
        run_one(&r, &dispatch, 0, 1);
    }
    fixture_close(&r.fixture);
}

static void a_device_without_grid_synchronisation_can_only_split(void **state) {
    (void)state;
    residency r;
    residency_open(&r, "{\"devices\": [{\"preset\": \"H200\", \"cooperative\": false}]}", NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_dispatch dispatch = residency_reverse(&r, 1, 0);
    FAILS(MUSTER_COOPERATIVE_TOO_LARGE, "reverse", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    residency_declare(&r, &dispatch, MUSTER_FALLBACK_CLAMP);
    FAILS(MUSTER_COOPERATIVE_TOO_LARGE, "reverse", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    residency_declare(&r, &dispatch, MUSTER_FALLBACK_SPLIT);
    run_one(&r, &dispatch, 2, 0);
    fixture_close(&r.fixture);
}

static void the_second_launch_of_a_shape_asks_for_no_occupancy(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    muster_dispatch dispatch = residency_reverse(&r, 8, 0);
    run_one(&r, &dispatch, 0, 1);
    uint64_t queries = residency_calls(&r, "occupancy_max_active_blocks");
    for (int i = 0; i < 3; i++) run_one(&r, &dispatch, 0, 1);
    assert_int_equal(residency_calls(&r, "occupancy_max_active_blocks"), queries);
    fixture_close(&r.fixture);
}

static void declarations_that_make_no_sense_are_refused(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_kernel *mixed[2] = {r.phases[0], r.arrive}, *absent[1] = {NULL};
#define REFUSED(wanted, words, ...)                                                                                    \
    do {                                                                                                               \
        muster_dispatch dispatch = residency_reverse(&r, 4, 0);                                                        \
        __VA_ARGS__;                                                                                                   \
        FAILS(wanted, words, muster_graph_dispatch(graph, &dispatch, NULL, &reported));                                \
    } while (0)
    REFUSED(MUSTER_INVALID_ARGUMENT, "7", dispatch.fallback = (muster_fallback)7);
    REFUSED(MUSTER_INVALID_ARGUMENT, "cooperative", dispatch.flags = 0; dispatch.fallback = MUSTER_FALLBACK_CLAMP);
    REFUSED(MUSTER_INVALID_ARGUMENT, "phases", dispatch.fallback = MUSTER_FALLBACK_SPLIT);
    REFUSED(MUSTER_INVALID_ARGUMENT, "SPLIT", dispatch.phases = r.phases; dispatch.phase_count = 2);
    REFUSED(MUSTER_INVALID_ARGUMENT, "64", dispatch.fallback = MUSTER_FALLBACK_SPLIT; dispatch.phases = r.phases;
            dispatch.phase_count = 65);
    REFUSED(MUSTER_ARGUMENT_MISMATCH, "phase 1|arrive", dispatch.fallback = MUSTER_FALLBACK_SPLIT;
            dispatch.phases = mixed; dispatch.phase_count = 2);
    REFUSED(MUSTER_INVALID_ARGUMENT, "phases", dispatch.fallback = MUSTER_FALLBACK_SPLIT; dispatch.phases = absent;
            dispatch.phase_count = 1);
    REFUSED(MUSTER_INVALID_ARGUMENT, "cluster", dispatch.fallback = MUSTER_FALLBACK_CLAMP; dispatch.cluster.x = 2);
    REFUSED(MUSTER_ENTRY_NOT_FOUND, "nowhere", dispatch.barrier_counter = "nowhere");
    REFUSED(MUSTER_INVALID_ARGUMENT, "odd|2 bytes", dispatch.barrier_counter = "odd");
    REFUSED(MUSTER_INVALID_ARGUMENT, "iterations is 0", dispatch.flags |= MUSTER_DISPATCH_ITERATED);
    REFUSED(MUSTER_INVALID_ARGUMENT, "ITERATED", dispatch.iterations = 3);
    REFUSED(MUSTER_LIMIT_REACHED, "1048577", dispatch.flags |= MUSTER_DISPATCH_ITERATED; dispatch.iterations = 1048577);
    /* Nothing was added, and the graph is as good as new. */
    muster_dispatch dispatch = residency_reverse(&r, 4, 0);
    assert_int_equal(fixture_add(graph, &dispatch), 0);
    fixture_run(&r.fixture, graph);
    residency_check(&r);
    fixture_close(&r.fixture);
}

/* ------------------------------------------------------------------------------------------------ barrier counters -- */

enum { CALLS = 40 };

static void count_calls(residency *r, const char *counter, uint32_t step) {
    muster_buffer *seen = fixture_buffer(&r->fixture, 4 * (CALLS + 1), NULL);
    muster_graph *graph = fixture_graph(&r->fixture);
    muster_dispatch dispatch = fixture_dispatch(r->arrive, 1, 1, ARGS(muster_buffer_arg(seen, MUSTER_READ_WRITE)));
    dispatch.barrier_counter = counter;
    for (int i = 0; i < CALLS; i++) fixture_add(graph, &dispatch);
    fixture_run(&r->fixture, graph);
    uint32_t words[CALLS + 1];
    fixture_read(seen, 0, sizeof words, words);
    assert_int_equal(words[0], CALLS);
    for (uint32_t i = 0; i < CALLS; i++) assert_int_equal(words[1 + i], step * i);
    muster_graph_destroy(graph);
    muster_buffer_destroy(seen);
}

static void a_barrier_counter_is_zero_before_each_launch(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    count_calls(&r, NULL, 1); /* it keeps what the launch before left there */
    count_calls(&r, "arrived", 0);
    fixture_close(&r.fixture);
}

static void every_device_has_its_own_counter(void **state) {
    (void)state;
    residency r;
    residency_open(&r, "{\"devices\": 3}", NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_buffer *seen[3];
    for (int round = 0; round < 3; round++)
        for (int d = 0; d < 3; d++) {
            if (round == 0) seen[d] = fixture_buffer(&r.fixture, 64, NULL);
            muster_dispatch dispatch =
                fixture_dispatch(r.arrive, 1, 1, ARGS(muster_buffer_arg(seen[d], MUSTER_READ_WRITE)));
            dispatch.barrier_counter = "arrived";
            dispatch.pin_device = 1;
            dispatch.device = d;
            fixture_add(graph, &dispatch);
        }
    fixture_run(&r.fixture, graph);
    for (int d = 0; d < 3; d++) {
        uint32_t words[4];
        fixture_read(seen[d], 0, sizeof words, words);
        assert_int_equal(words[0], 3);
        for (int i = 1; i < 4; i++) assert_int_equal(words[i], 0);
    }
    fixture_close(&r.fixture);
}

/* ---------------------------------------------------------------------------------------- clusters, shared memory -- */

static void clusters_go_through_their_own_launcher(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_dispatch dispatch = residency_reverse(&r, 8, 0);
    dispatch.cluster.x = 2;
    fixture_add(graph, &dispatch);
    uint64_t before = residency_calls(&r, "launch_kernel_ex");
    fixture_run(&r.fixture, graph);
    residency_check(&r);
    assert_int_equal(residency_calls(&r, "launch_kernel_ex"), before + 1);
    graph = fixture_graph(&r.fixture);
    dispatch.cluster.x = 3;
    FAILS(MUSTER_INVALID_GEOMETRY, "8|3", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    dispatch.cluster = (muster_dim3){4, 4, 1};
    FAILS(MUSTER_INVALID_GEOMETRY, "4 x 4 x 1", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    dispatch.cluster = (muster_dim3){UINT32_MAX, UINT32_MAX, UINT32_MAX};
    FAILS(MUSTER_INVALID_GEOMETRY, "4294967295", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    fixture_close(&r.fixture);
}

static void a_device_without_clusters_says_so(void **state) {
    (void)state;
    residency r;
    residency_open(&r, "{\"devices\": [{\"preset\": \"A100\"}]}", NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_dispatch dispatch = residency_reverse(&r, 8, 0);
    dispatch.cluster.x = 2;
    FAILS(MUSTER_CAPABILITY_MISSING, "A100|8.0", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    fixture_close(&r.fixture);
}

static void dynamic_shared_memory_above_48_kib_is_opted_into(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    muster_kernel *stage = fixture_kernel(&r.fixture, "stage");
    uint32_t first[100], again[100];
    for (int large = 0; large < 2; large++) {
        muster_graph *graph = fixture_graph(&r.fixture);
        muster_dispatch dispatch = fixture_dispatch(
            stage, 4, 32,
            ARGS(muster_range_arg(r.out, MUSTER_WRITE, 0, 400), muster_range_arg(r.in, MUSTER_READ, 0, 400),
                 muster_u32_arg(9), muster_shard_offset_arg(32, 100, 8), muster_shard_count_arg(32, 100, 8)));
        dispatch.dynamic_shared_bytes = large ? 200000 : 128;
        fixture_add(graph, &dispatch);
        fixture_run(&r.fixture, graph);
        fixture_read(r.out, 0, 400, large ? again : first);
        dispatch.dynamic_shared_bytes = 240000;
        FAILS(MUSTER_INVALID_GEOMETRY, "240000|232448",
              muster_graph_dispatch(fixture_graph(&r.fixture), &dispatch, NULL, &reported));
    }
    assert_memory_equal(first, again, sizeof first);
    fixture_close(&r.fixture);
}

/* ------------------------------------------------------------------------------------------------------ iterations -- */

static void a_job_is_launched_as_often_as_it_asks(void **state) {
    (void)state;
    for (uint32_t devices = 1; devices <= 3; devices += 2) {
        fixture fixture;
        muster_config config = {.struct_size = sizeof config, .placement = "round-robin"};
        fixture_open_with(&fixture, devices, &config);
        muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&fixture, "affine"), 4, 32,
                                                    ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE),
                                                         muster_u32_arg(3), muster_u32_arg(1), muster_u32_arg(100)));
        dispatch.flags = MUSTER_DISPATCH_ITERATED;
        dispatch.iterations = 50;
        muster_job iterated = fixture_add(graph, &dispatch);
        dispatch.flags = dispatch.iterations = 0;
        dispatch.after = &iterated;
        dispatch.after_count = 1;
        muster_job once = fixture_add(graph, &dispatch);
        for (uint32_t term = 1; term < 3; term++) {
            OK(muster_graph_set_argument(graph, iterated, 2, &term, sizeof term, &reported));
            uint32_t zero[100] = {0}, expected = 0;
            fixture_write(buffer, 0, 400, zero);
            muster_run *run = fixture_submit(&fixture, graph);
            OK(muster_run_wait(run, fixture_wait_ns, &reported));
            for (int i = 0; i < 50; i++) expected = expected * 3 + term;
            assert_int_equal(fixture_word(buffer, 99), expected * 3 + 1);
            assert_int_equal(fixture_result(run, iterated).shards, 1);
            assert_int_equal(fixture_result(run, once).shards, 1);
            muster_run_destroy(run);
        }
        fixture_close(&fixture);
    }
}

/* The launches of one job follow each other on one device even when nothing in their arguments orders them. */
static void iterations_stay_together(void **state) {
    (void)state;
    residency r;
    muster_config config = {.struct_size = sizeof config, .placement = "round-robin"};
    residency_open(&r, "{\"devices\": 4}", &config);
    muster_buffer *seen = fixture_buffer(&r.fixture, 4 * 101, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_dispatch dispatch = fixture_dispatch(r.arrive, 1, 1, ARGS(muster_buffer_arg(seen, MUSTER_READ_WRITE)));
    dispatch.flags = MUSTER_DISPATCH_ITERATED;
    dispatch.iterations = 100;
    fixture_add(graph, &dispatch);
    fixture_run(&r.fixture, graph);
    uint32_t words[101];
    fixture_read(seen, 0, sizeof words, words);
    for (uint32_t i = 0; i < 100; i++) assert_int_equal(words[1 + i], i);
    fixture_close(&r.fixture);
}

static void sharded_iterations_sum_as_often(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *in = fixture_buffer(&fixture, 4000, NULL), *sums[2];
    for (int i = 0; i < 2; i++) {
        sums[i] = fixture_buffer(&fixture, 4 * 8, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "sum_u32"), 10, 100,
                             ARGS(muster_sum_arg(sums[i], MUSTER_U32), muster_u32_arg(8),
                                  muster_block_cut(muster_buffer_arg(in, MUSTER_READ), 400), muster_u32_arg(5),
                                  muster_shard_offset_arg(100, 1000, 8), muster_shard_count_arg(100, 1000, 8)));
        dispatch.flags = MUSTER_DISPATCH_SHARDED | (i ? MUSTER_DISPATCH_ITERATED : 0);
        dispatch.iterations = i ? 7 : 0;
        muster_job job = fixture_add(graph, &dispatch);
        muster_run *run = fixture_submit(&fixture, graph);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        assert_int_equal(fixture_result(run, job).shards, 3);
    }
    for (uint32_t i = 0; i < 8; i++) assert_int_equal(fixture_word(sums[1], i), 7 * fixture_word(sums[0], i));
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_the_limit_a_grid_runs_as_it_is),
        cmocka_unit_test(one_over_the_limit_is_refused_with_numbers),
        cmocka_unit_test(the_loaded_kernel_may_refuse_what_the_device_allows),
        cmocka_unit_test(split_runs_the_phases_in_order),
        cmocka_unit_test(clamp_shrinks_the_grid_to_the_limit),
        cmocka_unit_test(a_device_without_grid_synchronisation_can_only_split),
        cmocka_unit_test(the_second_launch_of_a_shape_asks_for_no_occupancy),
        cmocka_unit_test(declarations_that_make_no_sense_are_refused),
        cmocka_unit_test(a_barrier_counter_is_zero_before_each_launch),
        cmocka_unit_test(every_device_has_its_own_counter),
        cmocka_unit_test(clusters_go_through_their_own_launcher),
        cmocka_unit_test(a_device_without_clusters_says_so),
        cmocka_unit_test(dynamic_shared_memory_above_48_kib_is_opted_into),
        cmocka_unit_test(a_job_is_launched_as_often_as_it_asks),
        cmocka_unit_test(iterations_stay_together),
        cmocka_unit_test(sharded_iterations_sum_as_often),
    };
    return cmocka_run_group_tests_name("fallback", tests, NULL, NULL);
}
