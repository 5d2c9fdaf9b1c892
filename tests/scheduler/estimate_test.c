/* Placement by what jobs take: uneven jobs over devices of different speed, against the best that is known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/driver.h"
#include "device/sim/sim.h"
#include "scheduler/placement/estimate.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

enum { WORDS = 4096 };

static muster_graph *affine_of(const fixture *fixture, muster_buffer *buffer, uint32_t blocks, int device) {
    muster_graph *graph = fixture_graph(fixture);
    muster_dispatch dispatch = fixture_dispatch(fixture_kernel(fixture, "affine"), blocks, 64,
                                                ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(1),
                                                     muster_u32_arg(1), muster_u32_arg(WORDS)));
    dispatch.pin_device = device >= 0;
    dispatch.device = device >= 0 ? device : 0;
    fixture_add(graph, &dispatch);
    return graph;
}

/* What a device has not run is judged by one that has; what nobody has run costs a launch. */
static void a_kernel_is_known_once_it_has_run(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 4 * WORDS, NULL);
    muster_graph *graph = affine_of(&fixture, buffer, 64, 1), *large = affine_of(&fixture, buffer, 6400, 0);
    const mu_node *node = &graph->nodes[0], *more = &large->nodes[0];
    assert_int_equal(mu_estimate_launch_ns(node, 0), 0);
    assert_int_equal(mu_estimate_job_ns(fixture.runtime, node, 0), MU_QUEUED_JOB_NS);
    fixture_run(&fixture, graph);
    uint64_t known = mu_estimate_launch_ns(node, 1);
    assert_true(known > 0);
    assert_int_equal(mu_estimate_launch_ns(node, 0), 0);
    /* Equal devices, and time in proportion to blocks. */
    uint64_t job = mu_estimate_job_ns(fixture.runtime, node, 0);
    assert_true(job == known || job == MU_QUEUED_JOB_NS);
    assert_in_range(mu_estimate_job_ns(fixture.runtime, more, 0), 99 * known, 100 * known);
    fixture_close(&fixture);
}

/* The queue is empty again when everything has ended, whatever was estimated meanwhile. */
static void queues_are_empty_when_all_has_ended(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *buffers[12];
    muster_run *runs[12];
    for (int i = 0; i < 12; i++) buffers[i] = fixture_buffer(&fixture, 4 * WORDS, NULL);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 12; i++) {
            muster_graph *graph = affine_of(&fixture, buffers[i], (uint32_t)(1 + 7 * i), -1);
            runs[i] = fixture_submit(&fixture, graph);
            muster_graph_destroy(graph);
        }
        if (round == 19) OK(muster_run_cancel(runs[5], &reported));
        for (int i = 0; i < 12; i++) {
            muster_status status = muster_run_wait(runs[i], fixture_wait_ns, &reported);
            assert_true(status == MUSTER_OK || (round == 19 && i == 5 && status == MUSTER_CANCELLED));
            muster_run_destroy(runs[i]);
        }
    }
    for (int d = 0; d < 3; d++) {
        assert_int_equal(atomic_load(&fixture.runtime->actors[d].queued), 0);
        assert_int_equal(atomic_load(&fixture.runtime->actors[d].queued_ns), 0);
    }
    fixture_close(&fixture);
}

/* A device with a long job in its queue gets nothing else while another has time. */
static void a_long_queue_is_avoided(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *large = fixture_buffer(&fixture, 4 * WORDS, NULL), *small[8];
    for (int i = 0; i < 8; i++) small[i] = fixture_buffer(&fixture, 4 * WORDS, NULL);
    /* Both devices know the kernel, and equally well: what was measured depends on what else this machine does. */
    for (int d = 0; d < 2; d++) fixture_run(&fixture, affine_of(&fixture, large, 64, d));
    for (int d = 0; d < 2; d++) atomic_store(&fixture_kernel(&fixture, "affine")->pace_ps[d], 1000000);
    fixture_hold_all(&fixture, true);
    muster_run *first = fixture_submit(&fixture, affine_of(&fixture, large, 60000, 1)), *runs[8];
    for (int i = 0; i < 8; i++) runs[i] = fixture_submit(&fixture, affine_of(&fixture, small[i], 4, -1));
    fixture_hold_all(&fixture, false);
    OK(muster_run_wait(first, fixture_wait_ns, &reported));
    for (int i = 0; i < 8; i++) {
        OK(muster_run_wait(runs[i], fixture_wait_ns, &reported));
        assert_int_equal(fixture_result(runs[i], 0).device, 0);
    }
    fixture_close(&fixture);
}

/* Instructions that the devices have executed. */
static uint64_t instructions(const fixture *fixture, int device) {
    mu_sim_statistics statistics;
    mu_sim_get_statistics(fixture_driver(fixture), device, &statistics);
    return statistics.instructions;
}

/* What this machine needs to simulate a kernel says nothing. */
static void simulated_kernels_take_what_the_model_says(void **state) {
    (void)state;
    fixture fixture;
    fixture_open_with(&fixture, 2,
                      &(muster_config){.struct_size = sizeof(muster_config),
                                       .sim = "{\"devices\": [{\"launch_ns\": 5000, \"instructions_per_ns\": 2}, "
                                              "{\"launch_ns\": 1000, \"instructions_per_ns\": 0.5}]}"});
    muster_buffer *buffer = fixture_buffer(&fixture, 4 * WORDS, NULL);
    for (int d = 0; d < 2; d++) {
        muster_graph *graph = affine_of(&fixture, buffer, 64, d);
        uint64_t before = instructions(&fixture, d);
        fixture_run(&fixture, graph);
        uint64_t executed = instructions(&fixture, d) - before, ns = d ? 1000 + executed * 2 : 5000 + executed / 2;
        assert_in_range(mu_estimate_launch_ns(&graph->nodes[0], d), ns - 1, ns + 1);
        /* Beside the load of another process it takes longer, which is learnt step by step. */
        uint64_t slow = ns + (d ? executed * 2 : executed / 2);
        mu_sim_slow_down(fixture_driver(&fixture), d, 100);
        fixture_run(&fixture, graph);
        assert_in_range(mu_estimate_launch_ns(&graph->nodes[0], d), ns + (slow - ns) / 4 - ns / 100,
                        ns + (slow - ns) / 4 + ns / 100);
        for (int i = 0; i < 20; i++) fixture_run(&fixture, graph);
        assert_in_range(mu_estimate_launch_ns(&graph->nodes[0], d), slow - slow / 100, slow + slow / 100);
        mu_sim_slow_down(fixture_driver(&fixture), d, 0);
    }
    fixture_close(&fixture);
}

/* Many launches that end together are one piece of news: twice as long is not twice as long for each of them. */
static void launches_of_one_epoch_count_once(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 4 * WORDS, NULL);
    muster_graph *one = affine_of(&fixture, buffer, 64, 0), *many = fixture_graph(&fixture);
    for (int i = 0; i < 50; i++) {
        muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&fixture, "affine"), 64, 64,
                                                    ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE),
                                                         muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(WORDS)));
        dispatch.pin_device = 1;
        fixture_add(many, &dispatch);
    }
    fixture_run(&fixture, one);
    uint64_t known = mu_estimate_launch_ns(&one->nodes[0], 0);
    mu_sim_slow_down(fixture_driver(&fixture), 0, 100000);
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, many);
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_in_range(mu_estimate_launch_ns(&one->nodes[0], 0), known / 2, 1001 * known);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_is_known_once_it_has_run),
        cmocka_unit_test(queues_are_empty_when_all_has_ended),
        cmocka_unit_test(a_long_queue_is_avoided),
        cmocka_unit_test(launches_of_one_epoch_count_once),
        cmocka_unit_test(simulated_kernels_take_what_the_model_says),
    };
    return cmocka_run_group_tests_name("estimate", tests, NULL, NULL);
}
