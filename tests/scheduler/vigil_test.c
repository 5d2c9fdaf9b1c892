/* How a worker learns that its device has ended something: by a signal, by its event, and how often it looks. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "device/sim/sim.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

static uint64_t signals(const fixture *fixture) {
    return mu_sim_calls(fixture_driver(fixture), "stream_write_value32");
}

static muster_run *submit_affine(const fixture *fixture, muster_buffer *buffer, uint32_t term) {
    muster_graph *graph = fixture_graph(fixture);
    fixture_affine(fixture, graph, buffer, 1, term);
    return fixture_submit(fixture, graph);
}

static void until_closed(const fixture *fixture, uint64_t epoch) {
    while (mu_timeline_closed(&fixture->runtime->actors[0].timeline) < epoch) sched_yield();
}

static void the_end_of_a_lone_job_is_signalled(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 4, NULL);
    for (uint32_t i = 0; i < 20; i++)
        OK(muster_run_wait(submit_affine(&fixture, buffer, 1), fixture_wait_ns, &reported));
    assert_in_range(signals(&fixture), 1, 20);
    assert_int_equal(fixture_word(buffer, 0), 20);
    fixture_close(&fixture);
}

static void what_is_behind_other_work_is_not(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 4, NULL);
    OK(muster_run_wait(submit_affine(&fixture, buffer, 1), fixture_wait_ns, &reported));
    const mu_timeline *timeline = &fixture.runtime->actors[0].timeline;
    fixture_hold_all(&fixture, true);
    uint64_t closed = mu_timeline_closed(timeline);
    muster_run *first = submit_affine(&fixture, buffer, 2);
    until_closed(&fixture, closed + 1);
    uint64_t before = signals(&fixture);
    muster_run *second = submit_affine(&fixture, buffer, 3);
    until_closed(&fixture, closed + 2);
    assert_int_equal(signals(&fixture), before);
    fixture_hold_all(&fixture, false);
    OK(muster_run_wait(first, fixture_wait_ns, &reported));
    OK(muster_run_wait(second, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 0), 6);
    fixture_close(&fixture);
}

/* Another device goes on there, after the epoch's event. */
static void the_hops_of_a_chain_are_not(void **state) {
    (void)state;
    enum { HOPS = 40 };
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffers[] = {fixture_buffer(&fixture, 4, NULL), fixture_buffer(&fixture, 4, NULL)};
    for (int d = 0; d < 2; d++) fixture_write(buffers[d], 0, 4, &(uint32_t){0});
    muster_graph *graph = fixture_graph(&fixture);
    muster_job before = MUSTER_NO_JOB;
    for (int i = 0; i < HOPS; i++) {
        muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&fixture, "affine"), 1, 32,
                                                    ARGS(muster_buffer_arg(buffers[i % 2], MUSTER_READ_WRITE),
                                                         muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(1)));
        dispatch.pin_device = 1;
        dispatch.device = i % 2;
        dispatch.after = &before;
        dispatch.after_count = i > 0;
        before = fixture_add(graph, &dispatch);
    }
    uint64_t sent = signals(&fixture);
    fixture_run(&fixture, graph);
    /* Beside the end of the run, that of what went before the first job at most. */
    assert_in_range(signals(&fixture) - sent, 0, 3);
    for (int d = 0; d < 2; d++) assert_int_equal(fixture_word(buffers[d], 0), HOPS / 2);
    fixture_close(&fixture);
}

static void without_signals_events_tell(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture fixture;
    fixture_planned_spec(1,
                         "[{\"kind\": \"fail\", \"entry\": \"stream_write_value32\", \"nth\": 1, \"repeat\": 1000000, "
                         "\"code\": \"NOT_SUPPORTED\"}]",
                         spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, 4, NULL);
    for (uint32_t i = 0; i < 20; i++)
        OK(muster_run_wait(submit_affine(&fixture, buffer, 1), fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 0), 20);
    fixture_close(&fixture);
}

/* What is left to be ended when the device is through with a run is little. */
static void the_last_epochs_of_a_run_are_short(void **state) {
    (void)state;
    enum { JOBS = 1000 };
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 4, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (uint32_t i = 0; i < JOBS; i++) fixture_affine(&fixture, graph, buffer, 1, 1);
    fixture_hold_all(&fixture, true);
    muster_run *run = fixture_submit(&fixture, graph);
    while (atomic_load_explicit(&run->unenqueued, memory_order_acquire)) sched_yield();
    uint64_t last = 0;
    uint32_t of_last = 0;
    for (uint32_t i = 0; i < JOBS; i++)
        if (run->tasks[i].epoch > last) last = run->tasks[i].epoch;
    for (uint32_t i = 0; i < JOBS; i++) of_last += run->tasks[i].epoch == last;
    assert_in_range(of_last, 1, 64);
    fixture_hold_all(&fixture, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 0), JOBS);
    fixture_close(&fixture);
}

/* By a clock of its own: what looks cost and sleep, over a second. */
static void looks_take_their_part_of_a_core(void **state) {
    (void)state;
    for (uint64_t look_ns = 3000; look_ns < 11000; look_ns += 500) {
        mu_vigil vigil = {.look_ns = look_ns};
        uint64_t begin = 5000000000, now = begin, used = 0, first = 0;
        while (now < begin + 1000000000) {
            uint64_t step = mu_vigil_step_ns(&vigil, now);
            if (!first) first = step;
            used += look_ns;
            now += look_ns + step;
        }
        double part = (double)used / (double)(now - begin);
        assert_true(part > 0.044 && part < 0.0465);
        assert_in_range(first, MU_POLL_INTERVAL_MIN_NS,
                        10 * look_ns > MU_POLL_INTERVAL_MIN_NS ? 10 * look_ns : MU_POLL_INTERVAL_MIN_NS);
        /* Used up; after a rest it is there again. */
        assert_true(mu_vigil_step_ns(&vigil, now) > 20 * look_ns);
        assert_true(mu_vigil_step_ns(&vigil, now + 50000000) <= first + look_ns);
    }
    mu_vigil slow = {.look_ns = 1000000};
    assert_int_equal(mu_vigil_step_ns(&slow, 5), MU_POLL_INTERVAL_MAX_NS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_lone_job_is_signalled), cmocka_unit_test(what_is_behind_other_work_is_not),
        cmocka_unit_test(the_hops_of_a_chain_are_not),        cmocka_unit_test(without_signals_events_tell),
        cmocka_unit_test(the_last_epochs_of_a_run_are_short), cmocka_unit_test(looks_take_their_part_of_a_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
