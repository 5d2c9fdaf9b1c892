/* More data than memory: copies are given up and come back, nothing is lost, and what a device holds stays in its budget. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/sim/sim.h"
#include "tests/scheduler/callbacks.h"

enum { MIB = 1 << 20, BUFFERS = 12, BUFFER_BYTES = 8 * MIB, BUDGET_BYTES = 40 * MIB };

static void open_small(fixture *fixture, uint32_t devices) {
    muster_config config = {
        .struct_size = sizeof config, .budget_bytes = BUDGET_BYTES, .admission_wait_ns = 20000000000u};
    fixture_open_with(fixture, devices, &config);
}

static void check_budget(const fixture *fixture) {
    for (int d = 0; d < muster_device_count(fixture->runtime); d++)
        assert_true(stats_of(fixture, d).pool_bytes_in_use <= BUDGET_BYTES);
}

/* Every word of buffer i is a function of i and of how often the graph ran. */
static void rounds_of_unique_data(uint32_t devices) {
    fixture fixture;
    open_small(&fixture, devices);
    muster_buffer *buffers[BUFFERS];
    muster_graph *graph = fixture_graph(&fixture);
    for (uint32_t i = 0; i < BUFFERS; i++) {
        buffers[i] = fixture_buffer(&fixture, BUFFER_BYTES, NULL);
        fixture_affine(&fixture, graph, buffers[i], 3, i + 1);
    }
    uint32_t expected[BUFFERS] = {0};
    for (int round = 0; round < 3; round++) {
        fixture_run(&fixture, graph);
        check_budget(&fixture);
        for (uint32_t i = 0; i < BUFFERS; i++) expected[i] = expected[i] * 3 + i + 1;
    }
    if (devices == 1) { /* five copies at a time, so each of three rounds over twelve gives up at least seven */
        muster_device_stats stats = stats_of(&fixture, 0);
        assert_true(stats.write_backs >= 3 * (BUFFERS - 5) && stats.evictions >= stats.write_backs);
        assert_true(stats.bytes_to_host >= stats.write_backs * BUFFER_BYTES);
    }
    uint32_t *words = malloc(BUFFER_BYTES);
    assert_non_null(words);
    for (uint32_t i = 0; i < BUFFERS; i++) {
        fixture_read(buffers[i], 0, BUFFER_BYTES, words);
        for (uint32_t w = 0; w < BUFFER_BYTES / 4; w++)
            if (words[w] != expected[i]) fail_msg("buffer %u word %u is %u, not %u", i, w, words[w], expected[i]);
    }
    free(words);
    fixture_close(&fixture);
}

static void unique_content_survives_being_evicted(void **state) {
    (void)state;
    rounds_of_unique_data(1);
}

static void devices_evict_side_by_side(void **state) {
    (void)state;
    rounds_of_unique_data(3);
}

/* Two inputs that fill the budget in turn: each pushes the other out, again and again, without a stall. */
static void two_inputs_that_evict_each_other(void **state) {
    (void)state;
    fixture fixture;
    open_small(&fixture, 1);
    uint32_t *host[2];
    muster_buffer *buffers[2];
    muster_graph *graph = fixture_graph(&fixture);
    for (uint32_t i = 0; i < 2; i++) {
        host[i] = calloc(1, 32 * MIB);
        assert_non_null(host[i]);
        buffers[i] = fixture_buffer(&fixture, 32 * MIB, host[i]);
    }
    for (int turn = 0; turn < 4; turn++) fixture_affine(&fixture, graph, buffers[turn % 2], 2, 1);
    fixture_run(&fixture, graph);
    check_budget(&fixture);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(fixture_word(buffers[i], 0), 3);
        assert_int_equal(fixture_word(buffers[i], 32 * MIB / 4 - 1), 3);
        muster_buffer_destroy(buffers[i]);
        free(host[i]); /* nothing may be on its way there any more */
    }
    fixture_close(&fixture);
}

/* One buffer larger than the whole budget is refused, with numbers, and nothing else suffers. */
static void what_can_never_fit_is_refused(void **state) {
    (void)state;
    fixture fixture;
    open_small(&fixture, 1);
    muster_buffer *large = fixture_buffer(&fixture, 48 * MIB, NULL), *small = fixture_buffer(&fixture, 4 * MIB, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_job refused = fixture_affine(&fixture, graph, large, 1, 1);
    muster_job fine = fixture_affine(&fixture, graph, small, 1, 1);
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_NEVER_FITS, "budget", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(reported.job, refused);
    assert_int_equal(fixture_result(run, fine).status, MUSTER_OK);
    assert_int_equal(fixture_word(small, 0), 1);
    fixture_close(&fixture);
}

static muster_status add_seven(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)count, (void)error;
    uint32_t *words = pointers[0];
    for (uint32_t w = 0; w < 1024; w++) words[w] += 7;
    ++*(uint32_t *)user;
    return MUSTER_OK;
}

/* Host jobs and read-backs in between, each with a part of a buffer whose rest is on a device: evictions and fetches write to the
 * same host memory, in turns. */
static void callbacks_under_pressure(uint32_t devices) {
    fixture fixture;
    open_small(&fixture, devices);
    muster_buffer *buffers[BUFFERS];
    muster_graph *graph = fixture_graph(&fixture);
    uint32_t calls = 0;
    for (uint32_t i = 0; i < BUFFERS; i++) {
        buffers[i] = fixture_buffer(&fixture, BUFFER_BYTES, NULL);
        fixture_affine(&fixture, graph, buffers[i], 3, i + 1);
        add_host(graph, add_seven, &calls, ARGS(muster_range_arg(buffers[i], MUSTER_READ_WRITE, MIB, 4096)));
        OK(muster_graph_read_back(graph, buffers[i], BUFFER_BYTES / 2, MIB, NULL, &reported));
        fixture_affine(&fixture, graph, buffers[i], 5, 1);
    }
    for (int round = 0; round < 2; round++) {
        fixture_run(&fixture, graph);
        check_budget(&fixture);
    }
    assert_int_equal(calls, 2 * BUFFERS);
    uint32_t *words = malloc(BUFFER_BYTES);
    assert_non_null(words);
    for (uint32_t i = 0; i < BUFFERS; i++) {
        uint32_t outside = 0, inside = 0;
        for (int round = 0; round < 2; round++) {
            outside = 5 * (3 * outside + i + 1) + 1;
            inside = 5 * (3 * inside + i + 1 + 7) + 1;
        }
        fixture_read(buffers[i], 0, BUFFER_BYTES, words);
        for (uint32_t w = 0; w < BUFFER_BYTES / 4; w++) {
            uint32_t expected = w >= MIB / 4 && w < MIB / 4 + 1024 ? inside : outside;
            if (words[w] != expected) fail_msg("buffer %u word %u is %u, not %u", i, w, words[w], expected);
        }
    }
    free(words);
    fixture_close(&fixture);
}

static void callbacks_and_evictions_take_turns(void **state) {
    (void)state;
    callbacks_under_pressure(1);
    callbacks_under_pressure(2);
}

/* A callback holds the host memory of what would have to be evicted. That is no reason to fail who waits for memory, however short
 * admission_wait_ns is: the callback will return. */
static void who_starves_waits_for_a_callback(void **state) {
    (void)state;
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = BUDGET_BYTES, .admission_wait_ns = 1};
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *old = fixture_buffer(&fixture, 32 * MIB, NULL), *young = fixture_buffer(&fixture, 32 * MIB, NULL);
    muster_graph *first = fixture_graph(&fixture), *callback = fixture_graph(&fixture), *next = fixture_graph(&fixture);
    gate gate;
    gate_init(&gate);
    fixture_affine(&fixture, first, old, 1, 3);
    add_host(callback, stop_at_gate, &gate, ARGS(muster_range_arg(old, MUSTER_READ, 0, 4)));
    fixture_affine(&fixture, next, young, 1, 4);
    fixture_run(&fixture, first);
    muster_run *run[2] = {fixture_submit(&fixture, callback), NULL};
    sem_wait(&gate.called);
    run[1] = fixture_submit(&fixture, next);
    while (stats_of(&fixture, 0).admission_waits == 0) sched_yield();
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run[1], 20000000, &reported));
    sem_post(&gate.open);
    for (int i = 0; i < 2; i++) OK(muster_run_wait(run[i], fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(young, 0), 4);
    assert_int_equal(fixture_word(old, MIB), 3);
    gate_destroy(&gate);
    fixture_close(&fixture);
}

/* A pinned job that sets the first `bytes` of the buffer to `value`, and reads nothing. */
static muster_run *submit_setter(const fixture *fixture, int device, muster_buffer *buffer, uint32_t bytes,
                                 uint32_t value) {
    muster_graph *graph = fixture_graph(fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "affine"), bytes / 4 / 256, 256,
                         ARGS(muster_range_arg(buffer, MUSTER_WRITE, 0, bytes), muster_u32_arg(0),
                              muster_u32_arg(value), muster_u32_arg(bytes / 4)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    fixture_add(graph, &dispatch);
    muster_run *run = fixture_submit(fixture, graph);
    muster_graph_destroy(graph);
    return run;
}

/* While a copy is on its way to the host, its content is overwritten elsewhere and a larger copy takes its place: what arrives on the
 * host is of no use, and must not count as what the larger one has there. */
static void a_copy_that_is_replaced_while_it_is_written_back(void **state) {
    (void)state;
    enum { COPY = 2 * MIB, WIDER = 4 * MIB, LARGE = 8 * MIB };
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = COPY + LARGE};
    fixture_open_with(&fixture, 2, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, 5 * MIB, NULL), *large = fixture_buffer(&fixture, LARGE, NULL);
    muster_run *runs[4];
    runs[0] = submit_setter(&fixture, 0, buffer, COPY, 1);
    OK(muster_run_wait(runs[0], fixture_wait_ns, &reported));
    uint64_t before = mu_sim_calls(fixture_driver(&fixture), "memcpy_dtoh_async");
    fixture_hold(&fixture, 0, true);
    runs[1] = submit_setter(&fixture, 0, large, LARGE, 2);
    while (mu_sim_calls(fixture_driver(&fixture), "memcpy_dtoh_async") == before) sched_yield();
    runs[2] = submit_setter(&fixture, 1, buffer, COPY, 3);
    OK(muster_run_wait(runs[2], fixture_wait_ns, &reported));
    uint64_t in_use = stats_of(&fixture, 0).pool_bytes_in_use;
    runs[3] = submit_setter(&fixture, 0, buffer, WIDER, 4);
    while (stats_of(&fixture, 0).pool_bytes_in_use < in_use + WIDER) sched_yield();
    fixture_hold(&fixture, 0, false);
    for (int i = 1; i < 4; i++) OK(muster_run_wait(runs[i], fixture_wait_ns, &reported));
    for (int i = 0; i < 4; i++) muster_run_destroy(runs[i]);
    for (uint32_t at = 0; at < WIDER / 4; at += 4096) assert_int_equal(fixture_word(buffer, at), 4);
    muster_buffer_destroy(buffer);
    muster_buffer_destroy(large);
    fixture_close(&fixture);
}

/* What is on the device cannot go to the host. So who needs its memory fails, but not who needs only what a job that has ended is about to
 * give back. */
static void who_starves_waits_for_what_is_about_to_be_freed(void **state) {
    (void)state;
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 64 * MIB, .host_budget_bytes = 1};
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *stays = fixture_buffer(&fixture, 16 * MIB, NULL);
    muster_graph *first = fixture_graph(&fixture), *busy = fixture_graph(&fixture), *next = fixture_graph(&fixture);
    fixture_affine(&fixture, first, stays, 1, 3);
    fixture_run(&fixture, first);
    muster_kernel *kernel = fixture_kernel(&fixture, "nothing");
    muster_dispatch dispatch =
        fixture_dispatch(kernel, 1, 1, ARGS(muster_scratch_arg(4), muster_scratch_arg(24 * MIB)));
    fixture_add(busy, &dispatch);
    dispatch = fixture_dispatch(kernel, 1, 1, ARGS(muster_scratch_arg(4), muster_scratch_arg(30 * MIB)));
    muster_job fits = fixture_add(next, &dispatch);
    dispatch = fixture_dispatch(kernel, 1, 1, ARGS(muster_scratch_arg(4), muster_scratch_arg(50 * MIB)));
    muster_job large = fixture_add(next, &dispatch);
    fixture_hold(&fixture, 0, true);
    muster_run *runs[2] = {fixture_submit(&fixture, busy), NULL};
    runs[1] = fixture_submit(&fixture, next);
    while (stats_of(&fixture, 0).admission_waits < 2) sched_yield();
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(runs[0], fixture_wait_ns, &reported));
    FAILS(MUSTER_OUT_OF_HOST_MEMORY, "", muster_run_wait(runs[1], fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(runs[1], fits).status, MUSTER_OK);
    assert_int_equal(fixture_result(runs[1], large).status, MUSTER_OUT_OF_HOST_MEMORY);
    fixture_close(&fixture);
}

/* Buffers may be destroyed as soon as a run that uses them is submitted: it gets its memory all the same, and does not end before what it
 * evicts has been written to their host memory, which is freed then. */
static void destroyed_buffers_of_a_run_are_evicted(void **state) {
    (void)state;
    enum { COUNT = 4, BYTES = MIB };
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 2 * MIB + MIB / 4};
    for (int stopped = 0; stopped < 2; stopped++) {
        fixture_open_with(&fixture, 1, &config);
        muster_graph *graph = fixture_graph(&fixture);
        void *host[COUNT];
        muster_buffer *buffers[COUNT];
        for (uint32_t i = 0; i < COUNT; i++) {
            host[i] = calloc(1, BYTES);
            assert_non_null(host[i]);
            buffers[i] = fixture_buffer(&fixture, BYTES, host[i]);
        }
        for (uint32_t i = 0; i < 2 * COUNT; i++) fixture_affine(&fixture, graph, buffers[i % COUNT], 1, 1);
        uint64_t before = mu_sim_calls(fixture_driver(&fixture), "memcpy_dtoh_async");
        fixture_hold(&fixture, 0, true);
        muster_run *run = fixture_submit(&fixture, graph);
        for (uint32_t i = 0; i < COUNT; i++) muster_buffer_destroy(buffers[i]);
        muster_graph_destroy(graph);
        fixture_hold(&fixture, 0, false);
        while (mu_sim_calls(fixture_driver(&fixture), "memcpy_dtoh_async") == before) sched_yield();
        if (stopped) OK(muster_run_cancel(run, &reported));
        muster_status status = muster_run_wait(run, fixture_wait_ns, &reported);
        assert_true(status == MUSTER_OK || (stopped && status == MUSTER_CANCELLED));
        for (uint32_t i = 0; i < COUNT; i++) free(host[i]);
        muster_run_destroy(run);
        fixture_close(&fixture);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unique_content_survives_being_evicted),
        cmocka_unit_test(devices_evict_side_by_side),
        cmocka_unit_test(two_inputs_that_evict_each_other),
        cmocka_unit_test(what_can_never_fit_is_refused),
        cmocka_unit_test(callbacks_and_evictions_take_turns),
        cmocka_unit_test(who_starves_waits_for_a_callback),
        cmocka_unit_test(who_starves_waits_for_what_is_about_to_be_freed),
        cmocka_unit_test(a_copy_that_is_replaced_while_it_is_written_back),
        cmocka_unit_test(destroyed_buffers_of_a_run_are_evicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
