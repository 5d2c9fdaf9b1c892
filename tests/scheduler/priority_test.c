/* Priorities: what is ready on a device goes in their order, and nothing else changes. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/callbacks.h"

enum { MIB = 1 << 20, MOST = 256 };

/* The order in which the callbacks of enqueue jobs were called, by the workers. */
static struct {
    atomic_uint count;
    atomic_int name[MOST];
} called;

static muster_status note(void *user, const muster_enqueue_context *context, muster_error *error) {
    (void)context, (void)error;
    unsigned at = atomic_fetch_add(&called.count, 1);
    assert_true(at < MOST);
    atomic_store(&called.name[at], (int)(intptr_t)user);
    return MUSTER_OK;
}

static void wait_until_called(unsigned count) {
    while (atomic_load(&called.count) < count) sched_yield();
}

/* When the job of that name was called. */
static unsigned place_of(int name) {
    for (unsigned i = 0; i < atomic_load(&called.count); i++)
        if (atomic_load(&called.name[i]) == name) return i;
    fail_msg("%d was not called", name);
    return 0;
}

static muster_job add_noted_on(muster_graph *graph, int name, int priority, int device, fixture_args args,
                               const muster_job *after) {
    muster_job job = MUSTER_NO_JOB;
    OK(muster_graph_enqueue(graph,
                            &(muster_enqueue_job){.struct_size = sizeof(muster_enqueue_job),
                                                  .enqueue = note,
                                                  .user = (void *)(intptr_t)name,
                                                  .arg_count = args.count,
                                                  .args = args.arg,
                                                  .after_count = after != NULL,
                                                  .after = after,
                                                  .pin_device = 1,
                                                  .device = device,
                                                  .priority = priority},
                            &job, &reported));
    return job;
}

static muster_job add_noted(muster_graph *graph, int name, int priority, fixture_args args, const muster_job *after) {
    return add_noted_on(graph, name, priority, 0, args, after);
}

static void open_device(fixture *fixture, const muster_config *config) {
    atomic_store(&called.count, 0);
    fixture_open_with(fixture, 1, config);
}

/* Everything is ready at once: sorted by priority, and in the order of the graph within one. */
static void what_is_ready_goes_in_the_order_of_priorities(void **state) {
    (void)state;
    enum { JOBS = 150 };
    fixture fixture;
    open_device(&fixture, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    int priority[JOBS], expected[JOBS], count = 0;
    for (int i = 0; i < JOBS; i++) {
        priority[i] = i % 3 == 0 ? 0 : i * 7 % 15 - 7;
        add_noted(graph, i, priority[i], NO_ARGS, NULL);
    }
    fixture_run(&fixture, graph);
    for (int p = MUSTER_PRIORITY_HIGHEST; p >= MUSTER_PRIORITY_LOWEST; p--)
        for (int i = 0; i < JOBS; i++)
            if (priority[i] == p) expected[count++] = i;
    assert_int_equal(atomic_load(&called.count), JOBS);
    for (int i = 0; i < JOBS; i++) assert_int_equal(atomic_load(&called.name[i]), expected[i]);
    fixture_close(&fixture);
}

/* A later run of higher priority passes what has not been handed to the device, and no more; one of lower priority is passed. A held
 * device takes no more than some 16 callbacks ahead. */
static void a_later_run_passes_what_still_waits(void **state) {
    (void)state;
    enum { AHEAD = 20, JOBS = 60, LOW = 100, HIGH = 200, FEW = 4 };
    fixture fixture;
    open_device(&fixture, NULL);
    fixture_hold(&fixture, 0, true);
    muster_graph *graph[3];
    muster_run *run[3];
    for (int g = 0; g < 3; g++) graph[g] = fixture_graph(&fixture);
    for (int i = 0; i < JOBS; i++) add_noted(graph[0], i, 0, NO_ARGS, NULL);
    for (int i = 0; i < FEW; i++) add_noted(graph[1], LOW + i, -2, NO_ARGS, NULL);
    for (int i = 0; i < FEW; i++) add_noted(graph[2], HIGH + i, 3, NO_ARGS, NULL);
    run[1] = fixture_submit(&fixture, graph[1]);
    wait_until_called(FEW); /* nothing better was there */
    run[0] = fixture_submit(&fixture, graph[0]);
    wait_until_called(FEW + 2);
    muster_run *late = fixture_submit(&fixture, graph[1]);
    run[2] = fixture_submit(&fixture, graph[2]);
    fixture_hold(&fixture, 0, false);
    for (int g = 0; g < 3; g++) OK(muster_run_wait(run[g], fixture_wait_ns, &reported));
    OK(muster_run_wait(late, fixture_wait_ns, &reported));
    assert_int_equal(atomic_load(&called.count), JOBS + 3 * FEW);
    for (int i = 0; i < FEW; i++) {
        assert_true(place_of(HIGH + i) < place_of(AHEAD));
        assert_true(place_of(LOW + i) < FEW);
        assert_int_equal(atomic_load(&called.name[JOBS + 2 * FEW + i]), LOW + i);
    }
    for (int i = 1; i < JOBS; i++) assert_true(place_of(i - 1) < place_of(i));
    fixture_close(&fixture);
}

/* Dependencies are stronger: a job of low priority goes before the one that needs it, and lends nothing. */
static void a_job_of_high_priority_waits_for_what_it_needs(void **state) {
    (void)state;
    fixture fixture;
    open_device(&fixture, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_job first = add_noted(graph, 0, -7, NO_ARGS, NULL);
    add_noted(graph, 1, 7, NO_ARGS, &first);
    add_noted(graph, 2, 1, NO_ARGS, NULL);
    add_noted(graph, 3, 0, NO_ARGS, NULL);
    fixture_run(&fixture, graph);
    static const int expected[] = {2, 3, 0, 1};
    for (int i = 0; i < 4; i++) assert_int_equal(atomic_load(&called.name[i]), expected[i]);
    fixture_close(&fixture);
}

/* What a job releases takes its turn by its own priority: before what was ready long ago, or behind it. */
static void successors_have_priorities_of_their_own(void **state) {
    (void)state;
    enum { WAITING = 6 };
    for (uint32_t devices = 1; devices <= 2; devices++) {
        fixture fixture;
        atomic_store(&called.count, 0);
        fixture_open(&fixture, devices);
        muster_graph *graph = fixture_graph(&fixture);
        muster_job first = add_noted_on(graph, 0, 1, 0, NO_ARGS, NULL);
        add_noted_on(graph, 1, -1, 0, NO_ARGS, &first);
        add_noted_on(graph, 2, 2, 0, NO_ARGS, &first);
        add_noted_on(graph, 3, 0, 0, NO_ARGS, &first);
        for (int i = 0; i < WAITING; i++) add_noted_on(graph, 4 + i, 0, 0, NO_ARGS, NULL);
        fixture_run(&fixture, graph);
        static const int expected[] = {0, 2, 4, 5, 6, 7, 8, 9, 3, 1};
        for (int i = 0; i < 4 + WAITING; i++) assert_int_equal(atomic_load(&called.name[i]), expected[i]);
        fixture_close(&fixture);
    }
}

/* Kernels, copies and fills too: their order is that of the tasks of the device's epochs. */
static void every_kind_of_job_has_a_priority(void **state) {
    (void)state;
    fixture fixture;
    open_device(&fixture, NULL);
    muster_buffer *buffer[6];
    for (int i = 0; i < 6; i++) buffer[i] = fixture_buffer(&fixture, 4096, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_job job[6];
    job[0] = fixture_affine(&fixture, graph, buffer[0], 1, 1);
    muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&fixture, "affine"), 4, 64,
                                                ARGS(muster_buffer_arg(buffer[1], MUSTER_READ_WRITE), muster_u32_arg(1),
                                                     muster_u32_arg(1), muster_u32_arg(256)));
    dispatch.priority = 1;
    job[1] = fixture_add(graph, &dispatch);
    OK(muster_graph_fill(graph, buffer[2], 0, 4096, 1, 4, &job[2], &reported));
    OK(muster_graph_set_priority(graph, job[2], 2, &reported));
    OK(muster_graph_copy(graph, buffer[3], 0, buffer[3], 2048, 1024, &job[3], &reported));
    OK(muster_graph_set_priority(graph, job[3], 3, &reported));
    OK(muster_graph_prefetch(graph, buffer[4], 0, 0, 0, &job[4], &reported));
    OK(muster_graph_set_priority(graph, job[4], -1, &reported));
    job[5] = add_noted(graph, 5, 4, NO_ARGS, NULL);
    fixture_hold(&fixture, 0, true); /* nothing is retired before it is looked at */
    muster_run *run = fixture_submit(&fixture, graph);
    wait_until_called(1);
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    /* Tasks know the next one of their epoch; the device was idle, so there is one epoch, but for the prefetch, which may be held. */
    uint32_t order[] = {5, 3, 2, 1, 0};
    for (int i = 0; i + 1 < 5; i++)
        if (run->tasks[order[i]].epoch == run->tasks[order[i + 1]].epoch)
            assert_int_equal((uint32_t)run->tasks[order[i]].epoch_next, order[i + 1]);
        else
            assert_true(run->tasks[order[i]].epoch < run->tasks[order[i + 1]].epoch);
    fixture_close(&fixture);
}

/* Where only one of them fits, memory goes to the job of higher priority, although the other has waited longer. */
static void memory_goes_to_the_higher_priority_first(void **state) {
    (void)state;
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 40 * MIB};
    open_device(&fixture, &config);
    muster_graph *graph[5];
    for (int g = 0; g < 5; g++) {
        static const int priorities[] = {0, 0, -3, 2, 2};
        graph[g] = fixture_graph(&fixture);
        muster_buffer *buffer = fixture_buffer(&fixture, 24 * MIB, NULL);
        add_noted(graph[g], g, priorities[g], ARGS(muster_buffer_arg(buffer, MUSTER_WRITE)), NULL);
    }
    fixture_hold(&fixture, 0, true);
    muster_run *run[5];
    for (int g = 0; g < 5; g++) {
        run[g] = fixture_submit(&fixture, graph[g]);
        if (g == 0) wait_until_called(1);
        while (g > 0 && stats_of(&fixture, 0).admission_waits < (uint64_t)g) sched_yield();
    }
    fixture_hold(&fixture, 0, false);
    for (int g = 0; g < 5; g++) OK(muster_run_wait(run[g], fixture_wait_ns, &reported));
    static const int expected[] = {0, 3, 4, 1, 2};
    for (int g = 0; g < 5; g++) assert_int_equal(atomic_load(&called.name[g]), expected[g]);
    fixture_close(&fixture);
}

/* Sharded and iterated dispatches of any priority compute what they compute. */
static void results_do_not_depend_on_it(void **state) {
    (void)state;
    enum { WORDS = 4096, JOBS = 40 };
    for (uint32_t devices = 1; devices <= 3; devices++) {
        fixture fixture;
        fixture_open(&fixture, devices);
        muster_buffer *buffer = fixture_buffer(&fixture, 4 * WORDS, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        uint32_t expected = 0;
        for (uint32_t i = 0; i < JOBS; i++) {
            muster_dispatch dispatch =
                fixture_dispatch(fixture_kernel(&fixture, "affine"), WORDS / 64, 64,
                                 ARGS(muster_block_cut(muster_buffer_arg(buffer, MUSTER_READ_WRITE), 256),
                                      muster_u32_arg(3), muster_u32_arg(i), muster_shard_count_arg(64, WORDS, 4)));
            dispatch.flags = MUSTER_DISPATCH_SHARDED | (i % 4 == 0 ? MUSTER_DISPATCH_ITERATED : 0);
            dispatch.iterations = i % 4 == 0 ? 2 : 0;
            dispatch.priority = (int)(i * 11 % 15) - 7;
            fixture_add(graph, &dispatch);
            for (uint32_t k = 0; k < (i % 4 == 0 ? 2 : 1); k++) expected = 3 * expected + i;
        }
        fixture_run(&fixture, graph);
        for (uint32_t w = 0; w < WORDS; w += 511) assert_int_equal(fixture_word(buffer, w), expected);
        fixture_close(&fixture);
    }
}

static void bad_priorities_are_refused(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 4096, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_job job = fixture_affine(&fixture, graph, buffer, 1, 1), home;
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "nothing"), 1, 1,
                         ARGS(muster_buffer_arg(buffer, MUSTER_READ), muster_buffer_arg(buffer, MUSTER_READ)));
    dispatch.priority = 8;
    FAILS(MUSTER_OUT_OF_RANGE, "-7 to 7|8", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    dispatch.priority = -300;
    FAILS(MUSTER_OUT_OF_RANGE, "-7 to 7|-300", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    muster_enqueue_job enqueue = {.struct_size = sizeof enqueue, .enqueue = note, .priority = -8};
    FAILS(MUSTER_OUT_OF_RANGE, "-7 to 7|-8", muster_graph_enqueue(graph, &enqueue, NULL, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "-7 to 7|256", muster_graph_set_priority(graph, job, 256, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "job 1|1 jobs", muster_graph_set_priority(graph, 1, 0, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "graph", muster_graph_set_priority(NULL, job, 0, &reported));
    OK(muster_graph_read_back(graph, buffer, 0, 0, &home, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "job 1|no device", muster_graph_set_priority(graph, home, 1, &reported));
    OK(muster_graph_set_priority(graph, job, MUSTER_PRIORITY_LOWEST, &reported));
    fixture_run(&fixture, graph);
    FAILS(MUSTER_INVALID_STATE, "submitted", muster_graph_set_priority(graph, job, 0, &reported));
    assert_int_equal(fixture_word(buffer, 0), 1);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_ready_goes_in_the_order_of_priorities),
        cmocka_unit_test(a_later_run_passes_what_still_waits),
        cmocka_unit_test(a_job_of_high_priority_waits_for_what_it_needs),
        cmocka_unit_test(successors_have_priorities_of_their_own),
        cmocka_unit_test(every_kind_of_job_has_a_priority),
        cmocka_unit_test(memory_goes_to_the_higher_priority_first),
        cmocka_unit_test(results_do_not_depend_on_it),
        cmocka_unit_test(bad_priorities_are_refused),
    };
    return cmocka_run_group_tests_name("priority", tests, NULL, NULL);
}
