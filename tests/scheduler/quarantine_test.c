/* One device is lost and the others go on: what happens to each thing that was on it or meant for it. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/sim/sim.h"
#include "tests/scheduler/fixture.h"

enum { WORDS = 1000, BYTES = 4 * WORDS, MIB = 1 << 20 };

static muster_graph *add_one(const fixture *fixture, muster_buffer *buffer, int device) {
    muster_graph *graph = fixture_graph(fixture);
    uint32_t words = (uint32_t)(muster_buffer_bytes(buffer) / 4);
    muster_dispatch dispatch = fixture_dispatch(fixture_kernel(fixture, "affine"), (words + 63) / 64, 64,
                                                ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(1),
                                                     muster_u32_arg(1), muster_u32_arg(words)));
    dispatch.pin_device = device >= 0;
    dispatch.device = device >= 0 ? device : 0;
    fixture_add(graph, &dispatch);
    return graph;
}

static void lose(const fixture *fixture, int device) {
    mu_sim_lose_device(fixture_driver(fixture), device);
    fixture_hold(fixture, device, false);
}

/* Its worker has seen it: a job that must run there has ended. */
static void lose_and_see(const fixture *fixture, int device) {
    lose(fixture, device);
    muster_buffer *buffer = fixture_buffer(fixture, 4, NULL);
    muster_run *run = fixture_submit(fixture, add_one(fixture, buffer, device));
    FAILS(MUSTER_DEVICE_LOST, "", muster_run_wait(run, fixture_wait_ns, &reported));
}

static int is_lost(const fixture *fixture, int device) {
    muster_device_info info = {.struct_size = sizeof info};
    OK(muster_device_get_info(fixture->runtime, device, &info, &reported));
    return info.lost;
}

static void acquire_fails(muster_buffer *buffer, muster_status status, const char *words) {
    void *pointer = &reported;
    FAILS(status, words, muster_buffer_acquire(buffer, 0, 0, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    assert_ptr_equal(pointer, &reported);
}

/* The device, which is held, has been given so many launches. */
static void wait_for_launches(const fixture *fixture, int device, uint64_t launches) {
    muster_device_stats stats = {.struct_size = sizeof stats};
    do {
        sched_yield();
        OK(muster_device_get_stats(fixture->runtime, device, &stats, &reported));
    } while (stats.launches < launches);
}

static void jobs_there_end_and_jobs_elsewhere_go_on(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *there = fixture_buffer(&fixture, BYTES, NULL), *other = fixture_buffer(&fixture, BYTES, NULL);
    fixture_hold(&fixture, 1, true);
    muster_run *lost = fixture_submit(&fixture, add_one(&fixture, there, 1));
    fixture_run(&fixture, add_one(&fixture, other, 2));
    assert_false(is_lost(&fixture, 1));
    wait_for_launches(&fixture, 1, 1);
    lose(&fixture, 1);
    FAILS(MUSTER_DEVICE_LOST, "in flight on device 1|job 0", muster_run_wait(lost, fixture_wait_ns, &reported));
    assert_int_equal(reported.device, 1);
    assert_int_equal(reported.job, 0);
    assert_int_equal(fixture_result(lost, 0).status, MUSTER_DEVICE_LOST);
    assert_true(is_lost(&fixture, 1) && !is_lost(&fixture, 0) && !is_lost(&fixture, 2));
    acquire_fails(there, MUSTER_DATA_UNDEFINED, "device 1");
    for (int i = 0; i < 6; i++) {
        muster_run *run = fixture_submit(&fixture, add_one(&fixture, other, -1));
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        assert_int_not_equal(fixture_result(run, 0).device, 1);
    }
    assert_int_equal(fixture_word(other, WORDS - 1), 7);
    /* A job that must run there is accepted, and ends. */
    muster_run *late = fixture_submit(&fixture, add_one(&fixture, other, 1));
    FAILS(MUSTER_DEVICE_LOST, "on device 1 only", muster_run_wait(late, fixture_wait_ns, &reported));
    fixture_close(&fixture);
}

/* What was only there is undefined until it is written; what is elsewhere too stays. */
static void content(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *only = fixture_buffer(&fixture, BYTES, NULL), *home = fixture_buffer(&fixture, BYTES, NULL),
                  *both = fixture_buffer(&fixture, BYTES, NULL), *untouched = fixture_buffer(&fixture, BYTES, NULL);
    fixture_run(&fixture, add_one(&fixture, only, 1));
    fixture_run(&fixture, add_one(&fixture, home, 1));
    fixture_run(&fixture, add_one(&fixture, both, 1));
    uint32_t words[WORDS];
    fixture_read(home, 0, BYTES, words);
    assert_int_equal(words[0], 1);
    muster_graph *read = fixture_graph(&fixture); /* brings a copy to device 0 */
    muster_buffer *sink = fixture_buffer(&fixture, 4, NULL);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "nothing"), 1, 1,
                         ARGS(muster_buffer_arg(both, MUSTER_READ), muster_buffer_arg(sink, MUSTER_READ_WRITE)));
    dispatch.pin_device = 1;
    fixture_add(read, &dispatch);
    fixture_run(&fixture, read);
    lose_and_see(&fixture, 1);
    assert_int_equal(fixture_word(home, WORDS - 1), 1);
    assert_int_equal(fixture_word(both, WORDS - 1), 1);
    assert_int_equal(fixture_word(untouched, 0), 0);
    acquire_fails(only, MUSTER_DATA_UNDEFINED, "bytes 0 to 4000|device 1 was lost|write");
    muster_run *run = fixture_submit(&fixture, add_one(&fixture, only, -1));
    FAILS(MUSTER_DATA_UNDEFINED, "device 1 was lost", muster_run_wait(run, fixture_wait_ns, &reported));
    muster_graph *fill = fixture_graph(&fixture);
    OK(muster_graph_fill(fill, only, 0, BYTES, 5, 4, NULL, &reported));
    fixture_run(&fixture, fill);
    assert_int_equal(fixture_word(only, WORDS - 1), 5);
    fixture_run(&fixture, add_one(&fixture, only, -1));
    assert_int_equal(fixture_word(only, 0), 6);
    fixture_close(&fixture);
}

/* Device 0 is still to read host memory when a run that writes it fails at once, for it can only be on device 1. That gives the memory to
 * nobody. */
static void a_run_that_fails_there_keeps_its_place_in_the_order(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    void *content, *pointer;
    OK(muster_host_alloc(fixture.runtime, BYTES, &content, &reported));
    memset(content, 0, BYTES);
    muster_buffer *input = fixture_buffer(&fixture, BYTES, content), *output = fixture_buffer(&fixture, BYTES, NULL);
    lose_and_see(&fixture, 1);
    muster_graph *reader = fixture_graph(&fixture), *writer = add_one(&fixture, input, 1);
    OK(muster_graph_copy(reader, output, 0, input, 0, BYTES, NULL, &reported));
    fixture_hold(&fixture, 0, true);
    muster_run *first = fixture_submit(&fixture, reader), *second = fixture_submit(&fixture, writer);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(second, 20000000, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_buffer_acquire(input, 0, 0, MUSTER_WRITE, 20000000, &pointer, &reported));
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(first, fixture_wait_ns, &reported));
    FAILS(MUSTER_DEVICE_LOST, "on device 1 only", muster_run_wait(second, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(output, 0), 0);
    OK(muster_buffer_acquire(input, 0, 0, MUSTER_WRITE, fixture_wait_ns, &pointer, &reported));
    OK(muster_buffer_release(input, pointer, &reported));
    fixture_close(&fixture);
}

/* The same of a run that is in flight there, behind the device that is still to read the memory; and of one behind that, on a third. */
static void a_run_in_flight_there_keeps_its_place_in_the_order(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    void *content, *pointer;
    OK(muster_host_alloc(fixture.runtime, BYTES, &content, &reported));
    memset(content, 0, BYTES);
    muster_buffer *input = fixture_buffer(&fixture, BYTES, content), *output = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *reader = fixture_graph(&fixture), *writer = add_one(&fixture, input, 1);
    muster_dispatch read =
        fixture_dispatch(fixture_kernel(&fixture, "mix32"), (WORDS + 63) / 64, 64,
                         ARGS(muster_buffer_arg(output, MUSTER_WRITE), muster_buffer_arg(input, MUSTER_READ),
                              muster_u32_arg(1), muster_u32_arg(0), muster_u32_arg(WORDS)));
    read.pin_device = 1;
    fixture_add(reader, &read);
    fixture_hold(&fixture, 0, true);
    muster_run *first = fixture_submit(&fixture, reader), *second = fixture_submit(&fixture, writer);
    muster_device_stats stats = {.struct_size = sizeof stats};
    for (int i = 0; i < 5000 && stats.launches == 0;
         i++) { /* on a slow machine it may wait in the worker, which is the test above */
        sched_yield();
        OK(muster_device_get_stats(fixture.runtime, 1, &stats, &reported));
    }
    lose(&fixture, 1);
    /* A worker with nothing in flight sees it when it asks the device for something. */
    muster_buffer *other = fixture_buffer(&fixture, BYTES, NULL);
    muster_run *third = fixture_submit(&fixture, add_one(&fixture, other, 1));
    while (!is_lost(&fixture, 1)) sched_yield();
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(second, 20000000, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_buffer_acquire(input, 0, 0, MUSTER_WRITE, 20000000, &pointer, &reported));
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(first, fixture_wait_ns, &reported));
    FAILS(MUSTER_DEVICE_LOST, "", muster_run_wait(second, fixture_wait_ns, &reported));
    FAILS(MUSTER_DEVICE_LOST, "", muster_run_wait(third, fixture_wait_ns, &reported));
    OK(muster_buffer_acquire(input, 0, 0, MUSTER_WRITE, fixture_wait_ns, &pointer, &reported));
    memset(pointer, 0, BYTES);
    OK(muster_buffer_release(input, pointer, &reported));
    fixture_run(&fixture, add_one(&fixture, input, 2));
    assert_int_equal(fixture_word(input, WORDS - 1), 1);
    fixture_close(&fixture);
}

/* In serial mode one job is in flight; those behind it, which could run anywhere, do. */
static void what_is_not_enqueued_goes_elsewhere(void **state) {
    (void)state;
    static const char *const policies[] = {"locality", "least-loaded", "round-robin", "random"};
    for (int p = 0; p < 4; p++) {
        fixture fixture;
        muster_config config = {
            .struct_size = sizeof config, .flags = MUSTER_RUNTIME_SERIAL, .placement = policies[p], .seed = 5};
        fixture_open_with(&fixture, 2, &config);
        muster_buffer *buffers[12], *blocker = fixture_buffer(&fixture, BYTES, NULL);
        muster_run *runs[12];
        fixture_hold_all(&fixture, true);
        muster_run *first = fixture_submit(&fixture, add_one(&fixture, blocker, 1));
        muster_graph *pinned = fixture_graph(&fixture);
        muster_buffer *there = fixture_buffer(&fixture, BYTES, NULL);
        muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&fixture, "affine"), 16, 64,
                                                    ARGS(muster_buffer_arg(there, MUSTER_READ_WRITE), muster_u32_arg(1),
                                                         muster_u32_arg(1), muster_u32_arg(WORDS)));
        dispatch.pin_device = dispatch.device = 1;
        fixture_add(pinned, &dispatch);
        fixture_affine(&fixture, pinned, there, 1, 1);
        muster_run *behind = fixture_submit(&fixture, pinned);
        for (int i = 0; i < 12; i++) {
            buffers[i] = fixture_buffer(&fixture, BYTES, NULL);
            runs[i] = fixture_submit(&fixture, add_one(&fixture, buffers[i], -1));
        }
        lose(&fixture, 1);
        fixture_hold_all(&fixture, false);
        FAILS(MUSTER_DEVICE_LOST, "", muster_run_wait(first, fixture_wait_ns, &reported));
        FAILS(MUSTER_DEVICE_LOST, "", muster_run_wait(behind, fixture_wait_ns, &reported));
        assert_int_equal(fixture_result(behind, 1).status, MUSTER_PREDECESSOR_FAILED);
        int ok = 0;
        for (int i = 0; i < 12; i++) {
            muster_status status = muster_run_wait(runs[i], fixture_wait_ns, &reported);
            assert_true(status == MUSTER_OK || status == MUSTER_DEVICE_LOST);
            if (status == MUSTER_OK) assert_int_equal(fixture_word(buffers[i], 7), 1);
            ok += status == MUSTER_OK;
        }
        assert_true(ok >= 11); /* at most one was in flight there instead of the first */
        fixture_close(&fixture);
    }
}

static int place_on_two(void *user, const muster_placement_request *request) {
    (void)user, (void)request;
    return 2;
}

/* Work behind the lost device's, enqueued on another that then runs it on garbage. Only what depends on the loss fails: not what
 * came before, in the order of jobs, nor what has nothing to do with it. */
static void what_depends_on_it_fails_wherever_it_runs(void **state) {
    (void)state;
    fixture fixture;
    const muster_placement_policy policy = {.struct_size = sizeof policy, .place = place_on_two}; /* of the copies */
    const muster_config config = {.struct_size = sizeof config, .policy = &policy};
    fixture_open_with(&fixture, 3, &config);
    muster_buffer *x = fixture_buffer(&fixture, BYTES, NULL), *y = fixture_buffer(&fixture, BYTES, NULL),
                  *z = fixture_buffer(&fixture, BYTES, NULL), *w = fixture_buffer(&fixture, BYTES, NULL);
    fixture_run(&fixture, add_one(&fixture, x, 0)); /* x is on device 0 */
    fixture_hold_all(&fixture, true);
    muster_run *runs[6];
    /* Reads x on device 2 before it is overwritten. */
    muster_graph *before = fixture_graph(&fixture);
    muster_job job;
    OK(muster_graph_copy(before, z, 0, x, 0, BYTES, &job, &reported));
    runs[0] = fixture_submit(&fixture, before);
    runs[1] = fixture_submit(&fixture, add_one(&fixture, x, 1)); /* will be lost */
    muster_graph *chain = fixture_graph(&fixture);               /* cross-run: reads x */
    OK(muster_graph_copy(chain, y, 0, x, 0, BYTES, &job, &reported));
    runs[2] = fixture_submit(&fixture, chain);
    runs[3] = fixture_submit(&fixture, add_one(&fixture, y, 2)); /* and what that wrote */
    runs[4] = fixture_submit(&fixture, add_one(&fixture, w, 0)); /* neither */
    muster_graph *inside = fixture_graph(&fixture);              /* in one run, by an explicit edge */
    muster_buffer *a = fixture_buffer(&fixture, BYTES, NULL), *b = fixture_buffer(&fixture, BYTES, NULL);
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(&fixture, "affine"), 16, 64,
        ARGS(muster_buffer_arg(a, MUSTER_READ_WRITE), muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(WORDS)));
    muster_dispatch after = fixture_dispatch(
        fixture_kernel(&fixture, "affine"), 16, 64,
        ARGS(muster_buffer_arg(b, MUSTER_READ_WRITE), muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(WORDS)));
    dispatch.pin_device = dispatch.device = after.pin_device = 1;
    after.device = 0;
    fixture_add(inside, &dispatch);
    fixture_add(inside, &after);
    OK(muster_graph_after(inside, 1, 0, &reported));
    runs[5] = fixture_submit(&fixture, inside);
    fixture_hold(&fixture, 0, false); /* device 0 and 2 do what does not wait for device 1 */
    fixture_hold(&fixture, 2, false);
    OK(muster_run_wait(runs[0], fixture_wait_ns, &reported));
    OK(muster_run_wait(runs[4], fixture_wait_ns, &reported));
    lose(&fixture, 1);
    FAILS(MUSTER_DEVICE_LOST, "device 1", muster_run_wait(runs[1], fixture_wait_ns, &reported));
    FAILS(MUSTER_DATA_UNDEFINED, "", muster_run_wait(runs[2], fixture_wait_ns, &reported));
    FAILS(MUSTER_DATA_UNDEFINED, "", muster_run_wait(runs[3], fixture_wait_ns, &reported));
    FAILS(MUSTER_DEVICE_LOST, "", muster_run_wait(runs[5], fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(runs[5], 1).status, MUSTER_PREDECESSOR_FAILED);
    assert_int_equal(fixture_word(z, WORDS - 1), 1);
    assert_int_equal(fixture_word(w, WORDS - 1), 1);
    acquire_fails(x, MUSTER_DATA_UNDEFINED, "");
    acquire_fails(y, MUSTER_DATA_UNDEFINED, "");
    acquire_fails(b, MUSTER_DATA_UNDEFINED, "");
    fixture_run(&fixture, add_one(&fixture, z, -1));
    assert_int_equal(fixture_word(z, 0), 2);
    fixture_close(&fixture);
}

/* A copy that another device takes of what is on its way to the lost one is garbage; what the host has is not. */
static void content_at_home_stays(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    uint32_t host[WORDS];
    for (uint32_t i = 0; i < WORDS; i++) host[i] = 5;
    muster_buffer *in = fixture_buffer(&fixture, BYTES, host), *sinks[2];
    muster_run *runs[2];
    muster_graph *graphs[2];
    fixture_hold_all(&fixture, true);
    for (int d = 1; d >= 0; d--) { /* uploaded to device 1, from there to device 0 */
        sinks[d] = fixture_buffer(&fixture, BYTES, NULL);
        graphs[d] = fixture_graph(&fixture);
        muster_dispatch dispatch = fixture_dispatch(
            fixture_kernel(&fixture, "mix32"), 16, 64,
            ARGS(muster_buffer_arg(sinks[d], MUSTER_WRITE), muster_buffer_arg(in, MUSTER_READ), muster_u32_arg(1),
                 muster_shard_offset_arg(64, WORDS, 4), muster_shard_count_arg(64, WORDS, 4)));
        dispatch.pin_device = 1;
        dispatch.device = d;
        fixture_add(graphs[d], &dispatch);
        runs[d] = fixture_submit(&fixture, graphs[d]);
        if (d == 1) wait_for_launches(&fixture, 1, 1); /* device 0 may hold its job back until then */
    }
    lose(&fixture, 1);
    fixture_hold(&fixture, 0, false);
    FAILS(MUSTER_DEVICE_LOST, "", muster_run_wait(runs[1], fixture_wait_ns, &reported));
    muster_status status = muster_run_wait(runs[0], fixture_wait_ns, &reported);
    assert_true(status == MUSTER_OK || status == MUSTER_DATA_UNDEFINED);
    fixture_run(&fixture, graphs[0]);
    assert_int_equal(fixture_word(in, WORDS - 1), 5);
    fixture_close(&fixture);
}

/* A device lost before its first job: dispatches cut for all devices, graphs built before. */
static void shards_go_elsewhere(void **state) {
    (void)state;
    for (int devices = 2; devices <= 4; devices++) {
        fixture fixture;
        fixture_open(&fixture, (uint32_t)devices);
        uint32_t host[WORDS];
        for (uint32_t i = 0; i < WORDS; i++) host[i] = i;
        muster_buffer *words = fixture_buffer(&fixture, BYTES, host), *sum = fixture_buffer(&fixture, 8 * 5, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        muster_arg block = muster_block_cut(muster_buffer_arg(words, MUSTER_READ), 4 * 64);
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "sum_u64"), 16, 64,
                             ARGS(muster_sum_arg(sum, MUSTER_U64), muster_u32_arg(5), block, muster_u32_arg(1),
                                  muster_shard_offset_arg(64, WORDS, 8), muster_shard_count_arg(64, WORDS, 8)));
        dispatch.flags = MUSTER_DISPATCH_SHARDED;
        fixture_add(graph, &dispatch);
        uint64_t whole[5], again[5];
        fixture_run(&fixture, graph);
        fixture_read(sum, 0, sizeof whole, whole);
        lose_and_see(&fixture, 1);
        muster_graph *zero = fixture_graph(&fixture);
        OK(muster_graph_fill(zero, sum, 0, sizeof whole, 0, 4, NULL, &reported));
        fixture_run(&fixture, zero);
        muster_run *run = fixture_submit(&fixture, graph);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        assert_int_equal(fixture_result(run, 0).shards, devices);
        fixture_read(sum, 0, sizeof again, again);
        assert_memory_equal(whole, again, sizeof whole);
        fixture_close(&fixture);
    }
}

/* Host access that waits for the device when it is lost: the content comes from where else it is, or is undefined. */
typedef struct acquirer {
    muster_buffer *buffer;
    muster_status status;
    uint32_t word;
    muster_error error;
} acquirer;

static void *acquire(void *argument) {
    acquirer *self = argument;
    void *pointer;
    self->status = muster_buffer_acquire(self->buffer, 0, 0, MUSTER_READ, fixture_wait_ns, &pointer, &self->error);
    if (self->status) return NULL;
    self->word = *(uint32_t *)pointer;
    muster_buffer_release(self->buffer, pointer, NULL);
    return NULL;
}

static void host_access_under_way(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *only = fixture_buffer(&fixture, BYTES, NULL), *both = fixture_buffer(&fixture, BYTES, NULL);
    fixture_run(&fixture, add_one(&fixture, only, 0));
    fixture_run(&fixture, add_one(&fixture, both, 1));
    muster_graph *read = fixture_graph(&fixture);
    muster_buffer *sink = fixture_buffer(&fixture, 4, NULL);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "nothing"), 1, 1,
                         ARGS(muster_buffer_arg(both, MUSTER_READ), muster_buffer_arg(sink, MUSTER_READ_WRITE)));
    dispatch.pin_device = 1; /* on device 0, the first that a copy home is taken from */
    fixture_add(read, &dispatch);
    fixture_run(&fixture, read);
    fixture_hold(&fixture, 0, true);
    acquirer one = {.buffer = only}, two = {.buffer = both};
    pthread_t threads[2];
    uint64_t waits = mu_sim_calls(fixture_driver(&fixture), "memcpy_dtoh_async");
    assert_int_equal(pthread_create(&threads[0], NULL, acquire, &one), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, acquire, &two), 0);
    /* A copy is on device 0's lane, which is held. */
    while (mu_sim_calls(fixture_driver(&fixture), "memcpy_dtoh_async") == waits) sched_yield();
    lose(&fixture, 0);
    for (int t = 0; t < 2; t++) pthread_join(threads[t], NULL);
    assert_int_equal(one.status, MUSTER_DATA_UNDEFINED);
    assert_non_null(strstr(one.error.message, "device 0"));
    assert_int_equal(two.status, MUSTER_OK);
    assert_int_equal(two.word, 1);
    fixture_close(&fixture);
}

/* Unique content on its way to the host, to make room, when the device is lost. */
static void evictions_under_way(void **state) {
    (void)state;
    fixture fixture;
    char spec[FIXTURE_SPEC_BYTES];
    /* The first copy home is the eviction's. */
    fixture_planned_spec(2, "[{\"kind\": \"lose\", \"device\": 1, \"entry\": \"memcpy_dtoh_async\", \"nth\": 2}]",
                         spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec, .budget_bytes = 40 * MIB};
    fixture_open_with(&fixture, 2, &config);
    muster_buffer *buffers[8];
    muster_run *runs[8];
    for (int i = 0; i < 8; i++) {
        buffers[i] = fixture_buffer(&fixture, 8 * MIB, NULL);
        runs[i] = fixture_submit(&fixture, add_one(&fixture, buffers[i], 1));
    }
    int ok = 0;
    for (int i = 0; i < 8; i++) {
        muster_status status = muster_run_wait(runs[i], fixture_wait_ns, &reported);
        assert_true(status == MUSTER_OK || status == MUSTER_DEVICE_LOST);
        ok += status == MUSTER_OK;
    }
    assert_true(ok >= 1 && ok < 8 && is_lost(&fixture, 1));
    for (int i = 0; i < 8; i++) {
        void *pointer;
        muster_status status =
            muster_buffer_acquire(buffers[i], 0, 0, MUSTER_READ, fixture_wait_ns, &pointer, &reported);
        if (status) assert_int_equal(status, MUSTER_DATA_UNDEFINED);
        if (!status) assert_int_equal(*(uint32_t *)pointer, 1);
        if (!status) OK(muster_buffer_release(buffers[i], pointer, &reported));
    }
    fixture_close(&fixture);
}

/* A driver call that must not fail does, with a code that says nothing: the device is left alone, after it has drained. */
static void calls_that_must_not_fail(void **state) {
    (void)state;
    static const char *const entries[] = {"event_record", "event_query"};
    for (int e = 0; e < 2; e++) {
        fixture fixture;
        char spec[FIXTURE_SPEC_BYTES], plan[256];
        snprintf(plan, sizeof plan,
                 "[{\"kind\": \"fail\", \"device\": 1, \"entry\": \"%s\", \"nth\": 4, \"code\": \"UNKNOWN\", "
                 "\"repeat\": \"forever\"}]",
                 entries[e]);
        fixture_planned_spec(2, plan, spec);
        muster_config config = {.struct_size = sizeof config, .sim = spec};
        fixture_open_with(&fixture, 2, &config);
        muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL), *other = fixture_buffer(&fixture, BYTES, NULL);
        muster_status status = MUSTER_OK;
        for (int i = 0; i < 20 && !status; i++) {
            muster_run *run = fixture_submit(&fixture, add_one(&fixture, buffer, 1));
            status = muster_run_wait(run, fixture_wait_ns, &reported);
        }
        assert_int_equal(status, MUSTER_DEVICE_LOST);
        assert_true(is_lost(&fixture, 1));
        fixture_run(&fixture, add_one(&fixture, other, -1));
        assert_int_equal(fixture_word(other, 0), 1);
        fixture_close(&fixture);
    }
}

/* Programs made before and after, their kernels and variables; preflight; counters. */
static void everything_else_that_can_be_asked(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    void *pinned;
    lose(&fixture, 0); /* the first, which does what any can do; this call is the first to be told */
    OK(muster_host_alloc(fixture.runtime, 4096, &pinned, &reported));
    OK(muster_host_free(fixture.runtime, pinned, &reported));
    lose_and_see(&fixture, 0);
    OK(muster_program_prepare(fixture.program, &reported));
    fixture_kernel(&fixture, "mix32"); /* not looked up yet */
    muster_program *late;
    muster_kernel *kernel;
    char text[20000];
    OK(muster_program_from_ptx(fixture.runtime, test_kernels_ptx, 0, "late", &late, &reported));
    OK(muster_program_kernel(late, "affine", &kernel, &reported));
    muster_dispatch dispatch = fixture_dispatch(kernel, 16, 64,
                                                ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(1),
                                                     muster_u32_arg(9), muster_u32_arg(WORDS)));
    muster_graph *graph = fixture_graph(&fixture);
    fixture_add(graph, &dispatch);
    fixture_run(&fixture, graph);
    assert_int_equal(fixture_word(buffer, 3), 9);
    for (int depth = MUSTER_PREFLIGHT_CHEAP; depth <= MUSTER_PREFLIGHT_FULL; depth++) {
        muster_preflight_report report = {.struct_size = sizeof report};
        OK(muster_preflight(graph, 0, 0, (muster_preflight_depth)depth, &report, &reported));
        assert_int_equal(report.answer, MUSTER_ANSWER_NO);
        assert_int_equal(report.status, MUSTER_DEVICE_LOST);
        assert_non_null(strstr(report.message, "device 0 is lost"));
        OK(muster_preflight_dispatch(fixture.runtime, &dispatch, 0, (muster_preflight_depth)depth, &report, &reported));
        assert_int_equal(report.status, MUSTER_DEVICE_LOST);
        OK(muster_preflight(graph, 0, 1, (muster_preflight_depth)depth, &report, &reported));
        assert_int_equal(report.answer, MUSTER_ANSWER_YES);
    }
    muster_device_stats stats = {.struct_size = sizeof stats};
    OK(muster_device_get_stats(fixture.runtime, 0, &stats, &reported));
    assert_int_equal(stats.pool_bytes_in_use, 0);
    assert_true(stats.jobs > 0);
    OK(muster_stats_reset(fixture.runtime, &reported));
    OK(muster_device_get_stats(fixture.runtime, 0, &stats, &reported));
    assert_int_equal(stats.jobs, 0);
    size_t needed;
    OK(muster_stats_text(fixture.runtime, MUSTER_STATS_JSON, text, sizeof text, &needed, &reported));
    muster_program_destroy(late);
    fixture_close(&fixture);
}

static void with_no_device_left_work_is_refused(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    uint32_t host[WORDS] = {3};
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, host), *other = fixture_buffer(&fixture, BYTES, NULL);
    fixture_hold_all(&fixture, true);
    muster_run *runs[8];
    for (int i = 0; i < 8; i++) runs[i] = fixture_submit(&fixture, add_one(&fixture, other, i % 3 - 1));
    lose(&fixture, 0);
    lose(&fixture, 1);
    for (int i = 0; i < 8; i++) {
        muster_status status = muster_run_wait(runs[i], fixture_wait_ns, &reported);
        assert_true(status == MUSTER_DEVICE_LOST || status == MUSTER_DATA_UNDEFINED);
    }
    muster_graph *graph = fixture_graph(&fixture);
    OK(muster_graph_fill(graph, buffer, 0, BYTES, 1, 4, NULL, &reported));
    muster_run *run = (muster_run *)&fixture;
    FAILS(MUSTER_DEVICE_LOST, "no device|new process", muster_submit(fixture.runtime, graph, &run, &reported));
    assert_ptr_equal(run, &fixture);
    muster_program *program;
    FAILS(MUSTER_DEVICE_LOST, "no device",
          muster_program_from_ptx(fixture.runtime, test_kernels_ptx, 0, "late", &program, &reported));
    FAILS(MUSTER_DEVICE_LOST, "no device", muster_program_prepare(fixture.program, &reported));
    assert_int_equal(fixture_word(buffer, 0), 3); /* what is home can be saved */
    acquire_fails(other, MUSTER_DATA_UNDEFINED, "");
    fixture_close(&fixture);
}

/* A job that only the larger device can ever hold goes there, whatever the policy. */
static void a_job_goes_where_it_fits(void **state) {
    (void)state;
    static const char *const policies[] = {"locality", "least-loaded", "round-robin", "random"};
    static const char spec[] =
        "{\"devices\": [{\"memory_bytes\": 67108864}, {\"memory_bytes\": 268435456}, "
        "{\"memory_bytes\": 67108864}]}";
    for (int p = 0; p < 4; p++) {
        fixture fixture;
        muster_config config = {.struct_size = sizeof config, .sim = spec, .placement = policies[p]};
        fixture_open_with(&fixture, 3, &config);
        muster_buffer *large = fixture_buffer(&fixture, 100 * MIB, NULL),
                      *huge = fixture_buffer(&fixture, 1024ull * MIB, NULL);
        for (int i = 0; i < 4; i++) {
            muster_graph *graph = fixture_graph(&fixture);
            OK(muster_graph_fill(graph, large, 0, 100 * MIB, 7, 4, NULL, &reported));
            muster_run *run = fixture_submit(&fixture, graph);
            OK(muster_run_wait(run, fixture_wait_ns, &reported));
            assert_int_equal(fixture_result(run, 0).device, 1);
        }
        muster_graph *graph = fixture_graph(&fixture);
        OK(muster_graph_fill(graph, huge, 0, 1024ull * MIB, 7, 4, NULL, &reported));
        muster_run *run = fixture_submit(&fixture, graph);
        FAILS(MUSTER_NEVER_FITS, "1073741824", muster_run_wait(run, fixture_wait_ns, &reported));
        fixture_close(&fixture);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_there_end_and_jobs_elsewhere_go_on),
        cmocka_unit_test(content),
        cmocka_unit_test(a_run_that_fails_there_keeps_its_place_in_the_order),
        cmocka_unit_test(a_run_in_flight_there_keeps_its_place_in_the_order),
        cmocka_unit_test(what_is_not_enqueued_goes_elsewhere),
        cmocka_unit_test(what_depends_on_it_fails_wherever_it_runs),
        cmocka_unit_test(content_at_home_stays),
        cmocka_unit_test(shards_go_elsewhere),
        cmocka_unit_test(host_access_under_way),
        cmocka_unit_test(evictions_under_way),
        cmocka_unit_test(calls_that_must_not_fail),
        cmocka_unit_test(everything_else_that_can_be_asked),
        cmocka_unit_test(with_no_device_left_work_is_refused),
        cmocka_unit_test(a_job_goes_where_it_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
