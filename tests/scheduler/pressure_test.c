/* What memory pressure and movement cost, in bytes: nothing is copied that is valid where it is needed, what takes turns in
 * memory is copied once a turn, and nobody waits for what is not theirs. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "device/sim/sim.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

enum { MIB = 1 << 20 };

static muster_device_stats stats_of(const fixture *fixture, int device) {
    muster_device_stats stats = {.struct_size = sizeof stats};
    OK(muster_device_get_stats(fixture->runtime, device, &stats, &reported));
    return stats;
}

/* Bytes that have come to all devices, from wherever. */
static uint64_t bytes_moved(const fixture *fixture) {
    uint64_t sum = 0;
    for (int d = 0; d < muster_device_count(fixture->runtime); d++)
        sum += stats_of(fixture, d).bytes_to_device + stats_of(fixture, d).bytes_from_peer;
    return sum;
}

/* affine over the first words of a buffer, all of which counts as accessed; on `device`. */
static muster_job add_affine(const fixture *fixture, muster_graph *graph, muster_buffer *buffer, int device,
                             uint32_t factor, uint32_t term) {
    muster_dispatch dispatch = fixture_dispatch(fixture_kernel(fixture, "affine"), 1, 64,
                                                ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE),
                                                     muster_u32_arg(factor), muster_u32_arg(term), muster_u32_arg(64)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    return fixture_add(graph, &dispatch);
}

/* A job that reads two buffers and changes neither. */
static muster_job add_reader(const fixture *fixture, muster_graph *graph, muster_buffer *one, muster_buffer *other,
                             int device) {
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "nothing"), 1, 1,
                         ARGS(muster_buffer_arg(one, MUSTER_READ), muster_buffer_arg(other, MUSTER_READ)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    return fixture_add(graph, &dispatch);
}

/* Each of the two takes 60 % of the budget. Jobs alternate and each changes its own: a turn brings one and takes the other home,
 * so that both are moved at most once a turn. */
static void inputs_that_evict_each_other_move_once_a_turn(void **state) {
    (void)state;
    enum { BYTES = 24 * MIB, TURNS = 6 };
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 40 * MIB};
    fixture_open_with(&fixture, 1, &config);
    uint32_t *host[2];
    muster_buffer *buffer[2];
    for (int i = 0; i < 2; i++) {
        host[i] = calloc(1, BYTES);
        assert_non_null(host[i]);
        buffer[i] = fixture_buffer(&fixture, BYTES, host[i]);
    }
    for (int turn = 0; turn < TURNS; turn++) {
        muster_graph *graph = fixture_graph(&fixture);
        add_affine(&fixture, graph, buffer[turn % 2], 0, 2, 1);
        fixture_run(&fixture, graph);
        muster_graph_destroy(graph);
    }
    muster_device_stats stats = stats_of(&fixture, 0);
    assert_int_equal(stats.bytes_to_device, TURNS * (uint64_t)BYTES);
    assert_int_equal(stats.bytes_to_host, (TURNS - 1) * (uint64_t)BYTES);
    assert_int_equal(stats.write_backs, TURNS - 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fixture_word(buffer[i], 63), (1 << TURNS / 2) - 1);
        assert_int_equal(fixture_word(buffer[i], 64), 0);
        muster_buffer_destroy(buffer[i]);
        free(host[i]);
    }
    fixture_close(&fixture);
}

/* One job that needs both at once is refused, with what it needs and what there is; everything else goes on, also beside it. */
static void a_job_whose_inputs_cannot_be_there_together_is_refused(void **state) {
    (void)state;
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 40 * MIB};
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *one = fixture_buffer(&fixture, 24 * MIB, NULL), *other = fixture_buffer(&fixture, 24 * MIB, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_job first = add_affine(&fixture, graph, one, 0, 1, 5);
    muster_job refused = add_reader(&fixture, graph, one, other, 0);
    muster_job last = add_affine(&fixture, graph, other, 0, 1, 7);
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_NEVER_FITS, "requires 50331648|budget of 41943040|shard|raise the budget",
          muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(reported.job, refused);
    assert_int_equal(fixture_result(run, first).status, MUSTER_OK);
    /* It follows the job that failed, which reads what it writes. */
    assert_int_equal(fixture_result(run, last).status, MUSTER_PREDECESSOR_FAILED);
    muster_run_destroy(run);
    assert_int_equal(fixture_word(one, 0), 5);
    assert_int_equal(stats_of(&fixture, 0).refusals, 1);
    muster_graph *fine = fixture_graph(&fixture);
    muster_dispatch both = fixture_dispatch(fixture_kernel(&fixture, "affine"), 1, 64,
                                            ARGS(muster_range_arg(one, MUSTER_READ_WRITE, 0, 256), muster_u32_arg(1),
                                                 muster_u32_arg(1), muster_u32_arg(64)));
    fixture_add(fine, &both);
    fixture_run(&fixture, fine);
    assert_int_equal(fixture_word(one, 0), 6);
    fixture_close(&fixture);
}

/* A chain on one device brings its input once; a ping-pong moves the buffer once a hop; a broadcast once a device, and the second
 * time not at all. */
static void nothing_is_copied_that_is_valid(void **state) {
    (void)state;
    enum { BYTES = 3 * MIB, DEVICES = 4, LENGTH = 7 };
    fixture fixture;
    fixture_open(&fixture, DEVICES);
    uint32_t *host = calloc(1, BYTES);
    assert_non_null(host);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, host);

    muster_graph *chain = fixture_graph(&fixture);
    for (int i = 0; i < LENGTH; i++) add_affine(&fixture, chain, buffer, 0, 1, 1);
    uint64_t before = bytes_moved(&fixture);
    fixture_run(&fixture, chain);
    fixture_run(&fixture, chain);
    assert_int_equal(bytes_moved(&fixture) - before, BYTES);

    muster_graph *hops = fixture_graph(&fixture);
    for (int i = 0; i < LENGTH; i++) add_affine(&fixture, hops, buffer, (i + 1) % 2, 1, 1);
    before = bytes_moved(&fixture);
    fixture_run(&fixture, hops); /* begins and ends on device 1, the content is on 0 */
    assert_int_equal(bytes_moved(&fixture) - before, LENGTH * (uint64_t)BYTES);

    muster_graph *broadcast = fixture_graph(&fixture);
    for (int d = 0; d < DEVICES; d++) add_reader(&fixture, broadcast, buffer, buffer, d);
    before = bytes_moved(&fixture);
    fixture_run(&fixture, broadcast);
    assert_int_equal(bytes_moved(&fixture) - before, (DEVICES - 1) * (uint64_t)BYTES);
    fixture_run(&fixture, broadcast);
    assert_int_equal(bytes_moved(&fixture) - before, (DEVICES - 1) * (uint64_t)BYTES);

    /* Reading on the host leaves the copies; writing takes them away. */
    before = stats_of(&fixture, 1).bytes_to_host;
    assert_int_equal(fixture_word(buffer, 0), 3 * LENGTH);
    assert_int_equal(fixture_word(buffer, 0), 3 * LENGTH);
    uint64_t home = 0;
    for (int d = 0; d < DEVICES; d++) home += stats_of(&fixture, d).bytes_to_host;
    assert_int_equal(home, 4); /* one word, once */
    before = bytes_moved(&fixture);
    fixture_run(&fixture, broadcast);
    assert_int_equal(bytes_moved(&fixture) - before, 0);
    const uint32_t word = 9;
    fixture_write(buffer, 40, 4, &word);
    fixture_run(&fixture, broadcast);
    assert_int_equal(bytes_moved(&fixture) - before, DEVICES * 4); /* the written word, once a device */
    muster_buffer_destroy(buffer);
    fixture_close(&fixture);
    free(host);
}

/* Device 0 is busy for as long as it is held; a job on device 1 depends on it, and comes before thousands that do not. */
static void a_job_that_waits_for_another_device_holds_up_nobody(void **state) {
    (void)state;
    enum { OTHERS = MU_TSAN || MU_ASAN ? 1000 : 10000 };
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *slow = fixture_buffer(&fixture, 4096, NULL), *own = fixture_buffer(&fixture, 4096, NULL);
    muster_graph *dependent = fixture_graph(&fixture), *others = fixture_graph(&fixture);
    muster_job on_first = add_affine(&fixture, dependent, slow, 0, 1, 20);
    muster_job on_second = add_affine(&fixture, dependent, slow, 1, 2, 2);
    for (int i = 0; i < OTHERS; i++) add_affine(&fixture, others, own, 1, 1, 1);
    fixture_hold(&fixture, 0, true);
    muster_run *waiting = fixture_submit(&fixture, dependent), *run = fixture_submit(&fixture, others);
    OK(muster_run_wait(run, fixture_wait_ns, &reported)); /* all of them, while device 0 has not begun */
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(waiting, 0, &reported));
    muster_job_result result = {.struct_size = sizeof result};
    FAILS(MUSTER_INVALID_STATE, "", muster_run_job_result(waiting, on_first, &result, &reported));
    FAILS(MUSTER_INVALID_STATE, "", muster_run_job_result(waiting, on_second, &result, &reported));
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(waiting, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(slow, 0), 42);
    assert_int_equal(fixture_word(own, 0), OTHERS);
    fixture_close(&fixture);
}

/* A thousand jobs that each need an upload of their own, in modelled time (docs/simulator.md): a byte takes a nanosecond and a copy
 * 1,000 more, a kernel 9,000. One after the other they would take the sum of both; overlapped, hardly more than one of the two. */
static void uploads_overlap_with_kernels(void **state) {
    (void)state;
    enum { JOBS = 1000, BYTES = 8000, COPY_NS = BYTES + 1000, KERNEL_NS = 9000 };
    fixture fixture;
    const muster_config config = {
        .struct_size = sizeof config,
        .sim =
            "{\"virtual_time\": true, \"devices\": [{\"launch_ns\": 9000, \"upload_gbps\": 1, "
            "\"instructions_per_ns\": 1000000000}]}",
    };
    fixture_open_with(&fixture, 1, &config);
    uint32_t *host = calloc(JOBS, BYTES);
    assert_non_null(host);
    muster_graph *graph = fixture_graph(&fixture);
    muster_buffer **buffer = calloc(JOBS, sizeof *buffer);
    assert_non_null(buffer);
    for (int i = 0; i < JOBS; i++) {
        host[i * BYTES / 4] = (uint32_t)i;
        buffer[i] = fixture_buffer(&fixture, BYTES, host + i * BYTES / 4);
        add_affine(&fixture, graph, buffer[i], 0, 1, 1);
    }
    uint64_t before = mu_sim_now_ns(fixture_driver(&fixture));
    fixture_run(&fixture, graph);
    uint64_t taken = mu_sim_now_ns(fixture_driver(&fixture)) - before, longest = (uint64_t)JOBS * KERNEL_NS;
    assert_int_equal(bytes_moved(&fixture), (uint64_t)JOBS * BYTES);
    if (taken < longest * 9 / 10 || taken > longest * 5 / 4)
        fail_msg("%llu ns; uploads and kernels take %llu each, %llu in turn", (unsigned long long)taken,
                 (unsigned long long)longest, (unsigned long long)(JOBS * ((uint64_t)COPY_NS + KERNEL_NS)));
    for (int i = 0; i < JOBS; i++) assert_int_equal(fixture_word(buffer[i], 0), i + 1);
    for (int i = 0; i < JOBS; i++) muster_buffer_destroy(buffer[i]);
    fixture_close(&fixture);
    free(buffer);
    free(host);
}

enum { THREADS = 8, BUFFERS = 5, RUNS = MU_TSAN || MU_ASAN ? 40 : 150 };

typedef struct submitter {
    const fixture *fixture;
    muster_buffer **buffer;
    uint32_t index;
    uint32_t added[BUFFERS];
    muster_status status;
    muster_error error;
} submitter;

/* Runs over two of the buffers each, on any device, none waited for before the next is submitted. */
static void *submit_runs(void *argument) {
    submitter *self = argument;
    muster_run *runs[RUNS];
    uint32_t count = 0;
    for (; count < RUNS && !self->status; count++) {
        uint32_t a = (self->index + count) % BUFFERS, b = (a + 1 + count % (BUFFERS - 1)) % BUFFERS;
        muster_graph *graph = fixture_graph(self->fixture);
        fixture_affine(self->fixture, graph, self->buffer[a], 1, 1);
        fixture_affine(self->fixture, graph, self->buffer[b], 1, 1);
        self->added[a]++;
        self->added[b]++;
        self->status = muster_submit(self->fixture->runtime, graph, &runs[count], &self->error);
        muster_graph_destroy(graph);
    }
    for (uint32_t i = 0; i < count && !self->status; i++) {
        self->status = muster_run_wait(runs[i], fixture_wait_ns, &self->error);
        muster_run_destroy(runs[i]);
    }
    return NULL;
}

/* Runs that overlap in pairs of buffers, from many threads, in a budget that holds half of the buffers on each device: all end, and
 * none is lost or counted twice. */
static void runs_over_shared_buffers_from_many_threads(void **state) {
    (void)state;
    enum { BYTES = 64 << 10 };
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 300 << 10};
    fixture_open_with(&fixture, 3, &config);
    muster_buffer *buffer[BUFFERS];
    submitter submitters[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < BUFFERS; i++) buffer[i] = fixture_buffer(&fixture, BYTES, NULL);
    for (uint32_t t = 0; t < THREADS; t++) {
        submitters[t] = (submitter){.fixture = &fixture, .buffer = buffer, .index = t};
        assert_int_equal(pthread_create(&threads[t], NULL, submit_runs, &submitters[t]), 0);
    }
    for (uint32_t t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    for (uint32_t i = 0; i < BUFFERS; i++) {
        uint32_t wanted = 0;
        for (uint32_t t = 0; t < THREADS; t++) wanted += submitters[t].added[i];
        assert_int_equal(fixture_word(buffer[i], 0), wanted);
        assert_int_equal(fixture_word(buffer[i], BYTES / 4 - 1), wanted);
    }
    for (uint32_t t = 0; t < THREADS; t++)
        if (submitters[t].status) fail_msg("thread %u: %s", t, submitters[t].error.message);
    fixture_close(&fixture);
}

/* The two need their union at once, and not one after the other, each beside what was made for the one before. */
static void overlapping_ranges_of_one_buffer_need_no_more_than_their_union(void **state) {
    (void)state;
    enum { FIXED = 64 << 10, BYTES = 60000, BUCKET = 65536 };
    for (uint64_t spare = 0; spare <= BUCKET; spare += BUCKET / 4) {
        fixture fixture;
        muster_config config = {.struct_size = sizeof config, .budget_bytes = FIXED + BUCKET + spare, .bursts = "off"};
        fixture_open_with(&fixture, 1, &config);
        muster_kernel *kernel = fixture_kernel(&fixture, "nothing");
        uint64_t fixed = mu_ledger_read(mu_device_ledger(fixture.runtime->actors[0].device)).fixed;
        assert_true(fixed <= FIXED);
        void *host = calloc(1, BYTES);
        muster_buffer *buffer = fixture_buffer(&fixture, BYTES, host);
        for (int turn = 0; turn < 3; turn++) {
            muster_arg one = muster_range_arg(buffer, MUSTER_READ, 0, 40000);
            muster_arg other = muster_range_arg(buffer, MUSTER_READ, 20000, 40000);
            muster_graph *graph = fixture_graph(&fixture);
            muster_dispatch dispatch =
                fixture_dispatch(kernel, 1, 1, ARGS(turn == 1 ? other : one, turn == 1 ? one : other));
            fixture_add(graph, &dispatch);
            fixture_run(&fixture, graph);
            muster_graph_destroy(graph);
        }
        muster_buffer_destroy(buffer);
        fixture_close(&fixture);
        free(host);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlapping_ranges_of_one_buffer_need_no_more_than_their_union),
        cmocka_unit_test(inputs_that_evict_each_other_move_once_a_turn),
        cmocka_unit_test(a_job_whose_inputs_cannot_be_there_together_is_refused),
        cmocka_unit_test(nothing_is_copied_that_is_valid),
        cmocka_unit_test(a_job_that_waits_for_another_device_holds_up_nobody),
        cmocka_unit_test(uploads_overlap_with_kernels),
        cmocka_unit_test(runs_over_shared_buffers_from_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
