/* Submitting, waiting, results, and the order of runs. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/fixture.h"

static muster_graph *affine_graph(const fixture *fixture, muster_buffer *buffer, uint32_t factor, uint32_t term) {
    muster_graph *graph = fixture_graph(fixture);
    fixture_affine(fixture, graph, buffer, factor, term);
    return graph;
}

static bool has_ended(const muster_run *run, muster_job job) {
    muster_job_result result = {.struct_size = sizeof result};
    return muster_run_job_result(run, job, &result, NULL) == MUSTER_OK;
}

static void an_empty_graph_ends_at_once(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    fixture_hold_all(&fixture, true);
    muster_run *run = fixture_submit(&fixture, fixture_graph(&fixture));
    OK(muster_run_wait(run, 0, &reported));
    muster_job_result result = {.struct_size = sizeof result};
    FAILS(MUSTER_OUT_OF_RANGE, "0", muster_run_job_result(run, 0, &result, &reported));
    fixture_hold_all(&fixture, false);
    fixture_close(&fixture);
}

static void wait_returns_when_its_time_is_over(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    fixture_hold_all(&fixture, true);
    muster_run *run = fixture_submit(&fixture, affine_graph(&fixture, buffer, 1, 1));
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 0, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 3000000, &reported));
    muster_job_result result = {.struct_size = sizeof result, .status = MUSTER_INTERNAL, .shards = 99};
    FAILS(MUSTER_INVALID_STATE, "0", muster_run_job_result(run, 0, &result, &reported));
    muster_shard_result shard = {.struct_size = sizeof shard};
    FAILS(MUSTER_INVALID_STATE, "0", muster_run_shard_result(run, 0, 0, &shard, &reported));
    assert_int_equal(result.status, MUSTER_INTERNAL); /* untouched */
    assert_int_equal(result.shards, 99);
    fixture_hold_all(&fixture, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    OK(muster_run_wait(run, 0, &reported)); /* and again */
    assert_int_equal(fixture_word(buffer, 0), 1);
    fixture_close(&fixture);
}

static void every_job_has_a_result(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *buffer = fixture_buffer(&fixture, 3000, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (int device = 0; device < 3; device++) {
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "affine"), 4, 64,
                             ARGS(muster_range_arg(buffer, MUSTER_READ_WRITE, 1000 * (uint64_t)device, 1000),
                                  muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(250)));
        dispatch.pin_device = 1;
        dispatch.device = device;
        fixture_add(graph, &dispatch);
    }
    OK(muster_graph_copy(graph, buffer, 0, buffer, 1000, 400, NULL, &reported));
    OK(muster_graph_fill(graph, buffer, 0, 4, 0, 4, NULL, &reported));
    muster_run *run = fixture_submit(&fixture, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    for (muster_job job = 0; job < 5; job++) {
        muster_job_result result = fixture_result(run, job);
        assert_int_equal(result.status, MUSTER_OK);
        assert_int_equal(result.shards, 1);
        if (job < 3) assert_int_equal(result.device, job);
        assert_in_range(result.device, 0, 2);
    }
    muster_job_result result = {.struct_size = sizeof result};
    FAILS(MUSTER_OUT_OF_RANGE, "5", muster_run_job_result(run, 5, &result, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "", muster_run_job_result(run, MUSTER_NO_JOB, &result, &reported));
    result.struct_size = 0;
    FAILS(MUSTER_INVALID_ARGUMENT, "struct_size", muster_run_job_result(run, 0, &result, &reported));
    fixture_close(&fixture);
}

static void a_graph_can_be_submitted_while_its_runs_are_unfinished(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = affine_graph(&fixture, buffer, 3, 1);
    muster_run *run[5];
    uint32_t expected = 0;
    fixture_hold_all(&fixture, true);
    for (int i = 0; i < 5; i++) {
        run[i] = fixture_submit(&fixture, graph);
        expected = 3 * expected + 1;
    }
    muster_graph_destroy(graph); /* its runs keep what they need */
    fixture_hold_all(&fixture, false);
    for (int i = 4; i >= 0; i--) OK(muster_run_wait(run[i], fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 99), expected);
    fixture_close(&fixture);
}

static void runs_keep_the_arguments_they_were_submitted_with(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = affine_graph(&fixture, buffer, 10, 1);
    uint32_t expected = 0;
    fixture_hold_all(&fixture, true);
    for (uint32_t i = 1; i < 8; i++) {
        OK(muster_graph_set_argument(graph, 0, 2, &i, sizeof i, &reported));
        muster_run_destroy(fixture_submit(&fixture, graph));
        expected = 10 * expected + i;
    }
    fixture_hold_all(&fixture, false);
    assert_int_equal(fixture_word(buffer, 50), expected);
    fixture_close(&fixture);
}

static void a_large_value_is_copied_and_can_be_replaced(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *in = fixture_buffer(&fixture, 4, NULL), *out = fixture_buffer(&fixture, 4, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    uint32_t *weights = calloc(10, 4), seen[3];
    assert_non_null(weights);
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(&fixture, "weighted"), 1, 1,
        ARGS(muster_buffer_arg(out, MUSTER_WRITE), muster_buffer_arg(in, MUSTER_READ), muster_value_arg(weights, 40),
             muster_shard_offset_arg(1, 1, 8), muster_shard_count_arg(1, 1, 8)));
    fixture_add(graph, &dispatch);
    fixture_run(&fixture, graph);
    seen[0] = fixture_word(out, 0);
    assert_int_equal(seen[0], 0); /* H(0) is 0, ten times */
    weights[9] = 1;               /* the graph has its own copy */
    fixture_run(&fixture, graph);
    seen[1] = fixture_word(out, 0);
    assert_int_equal(seen[1], 0);
    OK(muster_graph_set_argument(graph, 0, 2, weights, 40, &reported));
    free(weights);
    fixture_run(&fixture, graph);
    seen[2] = fixture_word(out, 0);
    assert_int_not_equal(seen[2], 0);
    fixture_close(&fixture);
}

static void a_destroyed_run_goes_on_to_its_end(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = affine_graph(&fixture, buffer, 1, 1);
    fixture_hold_all(&fixture, true);
    for (int i = 0; i < 20; i++) muster_run_destroy(fixture_submit(&fixture, graph));
    fixture_hold_all(&fixture, false);
    assert_int_equal(fixture_word(buffer, 0), 20);
    fixture_close(&fixture);
}

static void independent_runs_do_not_wait_for_each_other(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer[2];
    muster_run *run[2];
    fixture_hold(&fixture, 0, true);
    for (int device = 0; device < 2; device++) {
        buffer[device] = fixture_buffer(&fixture, 400, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&fixture, "affine"), 4, 32,
                                                    ARGS(muster_buffer_arg(buffer[device], MUSTER_READ_WRITE),
                                                         muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(100)));
        dispatch.pin_device = 1;
        dispatch.device = device;
        fixture_add(graph, &dispatch);
        run[device] = fixture_submit(&fixture, graph);
    }
    OK(muster_run_wait(run[1], fixture_wait_ns, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run[0], 0, &reported));
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(run[0], fixture_wait_ns, &reported));
    fixture_close(&fixture);
}

static void a_full_queue_refuses_and_says_so(void **state) {
    (void)state;
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .max_queued_jobs = 10};
    fixture_open_with(&fixture, 2, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = fixture_graph(&fixture), *large = fixture_graph(&fixture);
    for (int i = 0; i < 4; i++) fixture_affine(&fixture, graph, buffer, 1, 1);
    for (int i = 0; i < 11; i++) fixture_affine(&fixture, large, buffer, 1, 1);
    muster_run *run[2], *refused = (muster_run *)&fixture;
    fixture_hold_all(&fixture, true);
    FAILS(MUSTER_QUEUE_FULL, "11|10", muster_submit(fixture.runtime, large, &refused, &reported));
    for (int i = 0; i < 2; i++) run[i] = fixture_submit(&fixture, graph);
    FAILS(MUSTER_QUEUE_FULL, "8|4|10", muster_submit(fixture.runtime, graph, &refused, &reported));
    assert_ptr_equal(refused, &fixture);
    fixture_hold_all(&fixture, false);
    for (int i = 0; i < 2; i++) OK(muster_run_wait(run[i], fixture_wait_ns, &reported));
    fixture_run(&fixture, graph); /* room again, and the refused ones left nothing */
    assert_int_equal(fixture_word(buffer, 0), 12);
    fixture_close(&fixture);
}

/* Who has waited for jobs may submit as many again. */
static void a_queue_has_room_when_its_runs_have_ended(void **state) {
    (void)state;
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .max_queued_jobs = 2};
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < 2; i++) fixture_affine(&fixture, graph, buffer, 1, 1);
    for (int i = 0; i < 2000; i++) fixture_run(&fixture, graph);
    assert_int_equal(fixture_word(buffer, 0), 4000);
    fixture_close(&fixture);
}

static void every_placement_gives_the_same_result(void **state) {
    (void)state;
    static const char *const placements[] = {"locality", "least-loaded", "round-robin", "random"};
    for (int p = 0; p < 4; p++) {
        fixture fixture;
        muster_config config = {.struct_size = sizeof config, .placement = placements[p], .seed = 5};
        if (p == 3) config.flags = MUSTER_RUNTIME_SERIAL;
        if (p == 1) config.flags = MUSTER_RUNTIME_OWN_CONTEXT;
        fixture_open_with(&fixture, 4, &config);
        muster_buffer *buffer[4];
        muster_graph *graph = fixture_graph(&fixture);
        for (int b = 0; b < 4; b++) buffer[b] = fixture_buffer(&fixture, 400, NULL);
        for (uint32_t i = 0; i < 80; i++) {
            fixture_affine(&fixture, graph, buffer[i % 4], 3, i);
            OK(muster_graph_copy(graph, buffer[(i + 1) % 4], 40, buffer[i % 4], 80, 40, NULL, &reported));
        }
        fixture_run(&fixture, graph);
        uint32_t expected[4][100] = {0}, seen[100];
        for (uint32_t i = 0; i < 80; i++) {
            for (int w = 0; w < 100; w++) expected[i % 4][w] = 3 * expected[i % 4][w] + i;
            memcpy(expected[(i + 1) % 4] + 10, expected[i % 4] + 20, 40);
        }
        for (int b = 0; b < 4; b++) {
            fixture_read(buffer[b], 0, 400, seen);
            assert_memory_equal(seen, expected[b], 400);
        }
        fixture_close(&fixture);
    }
}

/* ---------------------------------------------------------------------------------------------------------- threads -- */

typedef struct waiter {
    muster_run *run;
    muster_status status;
} waiter;

static void *wait_for(void *argument) {
    waiter *self = argument;
    self->status = muster_run_wait(self->run, fixture_wait_ns, NULL);
    return NULL;
}

static void several_threads_may_wait(void **state) {
    (void)state;
    enum { THREADS = 6 };
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    fixture_hold_all(&fixture, true);
    muster_run *run = fixture_submit(&fixture, affine_graph(&fixture, buffer, 1, 1));
    pthread_t thread[THREADS];
    waiter own[THREADS];
    for (int t = 0; t < THREADS; t++) {
        own[t] = (waiter){run, MUSTER_INTERNAL};
        assert_int_equal(pthread_create(&thread[t], NULL, wait_for, &own[t]), 0);
    }
    fixture_hold_all(&fixture, false);
    for (int t = 0; t < THREADS; t++) {
        pthread_join(thread[t], NULL);
        assert_int_equal(own[t].status, MUSTER_OK);
    }
    fixture_close(&fixture);
}

typedef struct submitter {
    const fixture *fixture;
    muster_graph *graph;
    pthread_barrier_t *start;
    uint32_t rounds;
    muster_status worst;
} submitter;

static void *submit_rounds(void *argument) {
    submitter *self = argument;
    pthread_barrier_wait(self->start);
    for (uint32_t i = 0; i < self->rounds; i++) {
        muster_run *run;
        muster_status status = muster_submit(self->fixture->runtime, self->graph, &run, NULL);
        if (status != MUSTER_OK) self->worst = status;
        if (status == MUSTER_OK) muster_run_destroy(run);
    }
    return NULL;
}

/* Each thread applies another affine map to both buffers in each of its runs. Maps do not commute, so buffers that saw
 * the runs in different orders would differ; and an order that is none, lost updates, would not be reachable. */
static void runs_take_effect_in_one_order_over_all_their_buffers(void **state) {
    (void)state;
    enum { THREADS = 4, ROUNDS = 30 };
    fixture fixture;
    fixture_open(&fixture, 4);
    muster_buffer *buffer[2] = {fixture_buffer(&fixture, 400, NULL), fixture_buffer(&fixture, 400, NULL)};
    pthread_barrier_t start;
    pthread_t thread[THREADS];
    submitter own[THREADS];
    pthread_barrier_init(&start, NULL, THREADS);
    for (uint32_t t = 0; t < THREADS; t++) {
        muster_graph *graph = fixture_graph(&fixture);
        for (int b = 0; b < 2; b++) fixture_affine(&fixture, graph, buffer[(b + (int)t) % 2], 2 * t + 3, t + 1);
        own[t] = (submitter){&fixture, graph, &start, ROUNDS, MUSTER_OK};
        assert_int_equal(pthread_create(&thread[t], NULL, submit_rounds, &own[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(thread[t], NULL);
        assert_int_equal(own[t].worst, MUSTER_OK);
    }
    pthread_barrier_destroy(&start);
    uint32_t words[2][100];
    for (int b = 0; b < 2; b++) fixture_read(buffer[b], 0, 400, words[b]);
    assert_memory_equal(words[0], words[1], 400);
    for (int w = 1; w < 100; w++) assert_int_equal(words[0][w], words[0][0]);
    fixture_close(&fixture);
}

/* With two runs of two threads the result must be that of one of the six interleavings. */
static void concurrent_submits_have_some_order(void **state) {
    (void)state;
    static const int orders[6][4] = {{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 0},
                                     {1, 0, 0, 1}, {1, 0, 1, 0}, {1, 1, 0, 0}};
    for (int attempt = 0; attempt < 20; attempt++) {
        fixture fixture;
        fixture_open(&fixture, 2);
        muster_buffer *buffer = fixture_buffer(&fixture, 4, NULL);
        pthread_barrier_t start;
        pthread_t thread[2];
        submitter own[2];
        pthread_barrier_init(&start, NULL, 2);
        for (uint32_t t = 0; t < 2; t++) {
            own[t] = (submitter){&fixture, affine_graph(&fixture, buffer, 3 + 2 * t, 1 + t), &start, 2, MUSTER_OK};
            assert_int_equal(pthread_create(&thread[t], NULL, submit_rounds, &own[t]), 0);
        }
        for (int t = 0; t < 2; t++) {
            pthread_join(thread[t], NULL);
            assert_int_equal(own[t].worst, MUSTER_OK);
        }
        pthread_barrier_destroy(&start);
        uint32_t seen = fixture_word(buffer, 0);
        bool known = false;
        for (int o = 0; o < 6; o++) {
            uint32_t value = 0;
            for (int i = 0; i < 4; i++) value = orders[o][i] ? 5 * value + 2 : 3 * value + 1;
            known |= value == seen;
        }
        assert_true(known);
        fixture_close(&fixture);
    }
}

/* ---------------------------------------------------------------------------------------------------------- failures -- */

/* Three jobs on device 1 and others on device 0; the driver refuses the first launch on device 1. */
static void a_refused_launch_fails_its_job_and_what_follows_only(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(2, FIXTURE_FAIL_LAUNCH(1, 1), spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture;
    fixture_open_with(&fixture, 2, &config);
    muster_buffer *bad = fixture_buffer(&fixture, 400, NULL), *good = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_job job[6];
    for (int i = 0; i < 4; i++) {
        muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&fixture, "affine"), 4, 32,
                                                    ARGS(muster_buffer_arg(i % 2 ? bad : good, MUSTER_READ_WRITE),
                                                         muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(100)));
        dispatch.pin_device = 1;
        dispatch.device = i % 2;
        job[i] = fixture_add(graph, &dispatch);
    }
    OK(muster_graph_copy(graph, good, 0, bad, 0, 40, &job[4], &reported));
    OK(muster_graph_fill(graph, good, 40, 8, 9, 4, &job[5], &reported));
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_LAUNCH_FAILED, "affine|INVALID_VALUE", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(reported.job, job[1]);
    assert_int_equal(reported.device, 1);
    assert_int_equal(reported.driver_code, 1);
    static const muster_status expected[6] = {
        MUSTER_OK, MUSTER_LAUNCH_FAILED, MUSTER_OK, MUSTER_PREDECESSOR_FAILED, MUSTER_PREDECESSOR_FAILED, MUSTER_OK};
    for (int i = 0; i < 6; i++) assert_int_equal(fixture_result(run, job[i]).status, expected[i]);
    assert_int_equal(fixture_result(run, job[3]).device, MUSTER_ANY_DEVICE);
    /* What the failed jobs would have written is undefined, the rest is there. */
    void *pointer;
    uint32_t words[100];
    FAILS(MUSTER_DATA_UNDEFINED, "",
          muster_buffer_acquire(bad, 0, 400, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    FAILS(MUSTER_DATA_UNDEFINED, "",
          muster_buffer_acquire(good, 36, 8, MUSTER_READ_WRITE, fixture_wait_ns, &pointer, &reported));
    fixture_read(good, 40, 360, words);
    assert_int_equal(words[0], 9);
    assert_int_equal(words[2], 2);
    muster_run_destroy(run);
    fixture_close(&fixture);
}

static void undefined_data_fails_its_readers_until_it_is_overwritten(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(1, FIXTURE_FAIL_LAUNCH(0, 1), spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture;
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *bad = fixture_buffer(&fixture, 400, NULL), *copy = fixture_buffer(&fixture, 400, NULL);
    muster_run *run = fixture_submit(&fixture, affine_graph(&fixture, bad, 1, 1));
    FAILS(MUSTER_LAUNCH_FAILED, "", muster_run_wait(run, fixture_wait_ns, &reported));

    muster_graph *reader = fixture_graph(&fixture);
    OK(muster_graph_copy(reader, copy, 0, bad, 0, 400, NULL, &reported));
    run = fixture_submit(&fixture, reader);
    FAILS(MUSTER_DATA_UNDEFINED, "", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, 0).status, MUSTER_DATA_UNDEFINED);

    /* Overwriting half of it does not make the other half defined. */
    muster_graph *half = fixture_graph(&fixture), *rest = fixture_graph(&fixture);
    OK(muster_graph_fill(half, bad, 0, 200, 3, 4, NULL, &reported));
    OK(muster_graph_fill(rest, bad, 200, 200, 4, 4, NULL, &reported));
    fixture_run(&fixture, half);
    assert_int_equal(fixture_word(bad, 49), 3);
    void *pointer;
    FAILS(MUSTER_DATA_UNDEFINED, "",
          muster_buffer_acquire(bad, 0, 204, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    fixture_run(&fixture, rest);
    fixture_run(&fixture, reader);
    assert_int_equal(fixture_word(copy, 0), 3);
    assert_int_equal(fixture_word(copy, 99), 4);
    fixture_close(&fixture);
}

static void host_writes_make_data_defined_again(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(1, FIXTURE_FAIL_LAUNCH(0, 1), spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture;
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *bad = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = affine_graph(&fixture, bad, 2, 1);
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_LAUNCH_FAILED, "", muster_run_wait(run, fixture_wait_ns, &reported));
    uint32_t words[100];
    for (uint32_t i = 0; i < 100; i++) words[i] = i;
    fixture_write(bad, 0, 400, words);
    fixture_run(&fixture, graph);
    assert_int_equal(fixture_word(bad, 99), 199);
    fixture_close(&fixture);
}

static void a_failed_run_does_not_stop_later_independent_ones(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(2, FIXTURE_FAIL_LAUNCH(0, 1), spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec, .placement = "round-robin"};
    fixture fixture;
    fixture_open_with(&fixture, 2, &config);
    muster_buffer *buffer[6];
    muster_run *run[6];
    int failed = 0;
    for (int i = 0; i < 6; i++) {
        buffer[i] = fixture_buffer(&fixture, 400, NULL);
        run[i] = fixture_submit(&fixture, affine_graph(&fixture, buffer[i], 1, 1));
    }
    for (int i = 0; i < 6; i++) {
        muster_status status = muster_run_wait(run[i], fixture_wait_ns, NULL);
        assert_true(has_ended(run[i], 0));
        failed += status == MUSTER_LAUNCH_FAILED;
        if (status == MUSTER_OK) assert_int_equal(fixture_word(buffer[i], 0), 1);
    }
    assert_int_equal(failed, 1);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_graph_ends_at_once),
        cmocka_unit_test(wait_returns_when_its_time_is_over),
        cmocka_unit_test(every_job_has_a_result),
        cmocka_unit_test(a_graph_can_be_submitted_while_its_runs_are_unfinished),
        cmocka_unit_test(runs_keep_the_arguments_they_were_submitted_with),
        cmocka_unit_test(a_large_value_is_copied_and_can_be_replaced),
        cmocka_unit_test(a_destroyed_run_goes_on_to_its_end),
        cmocka_unit_test(independent_runs_do_not_wait_for_each_other),
        cmocka_unit_test(a_full_queue_refuses_and_says_so),
        cmocka_unit_test(a_queue_has_room_when_its_runs_have_ended),
        cmocka_unit_test(every_placement_gives_the_same_result),
        cmocka_unit_test(several_threads_may_wait),
        cmocka_unit_test(runs_take_effect_in_one_order_over_all_their_buffers),
        cmocka_unit_test(concurrent_submits_have_some_order),
        cmocka_unit_test(a_refused_launch_fails_its_job_and_what_follows_only),
        cmocka_unit_test(undefined_data_fails_its_readers_until_it_is_overwritten),
        cmocka_unit_test(host_writes_make_data_defined_again),
        cmocka_unit_test(a_failed_run_does_not_stop_later_independent_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
