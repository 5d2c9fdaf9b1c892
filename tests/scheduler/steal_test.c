/* Stealing: a device that has nothing to do takes what waits at another, when that pays, and each job once. Devices are held, so that
 * what is asserted does not depend on timing; a policy that places everything on device 0 makes it necessary. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/sanitizer.h"
#include "device/sim/sim.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/callbacks.h"

enum { WORDS = 256, BYTES = 4 * WORDS, AHEAD = MU_ENQUEUE_AHEAD_LEAST, MIB = 1 << 20 };

static int on_first(void *user, const muster_placement_request *request) {
    (void)user;
    return request->candidates & 1 ? 0 : MUSTER_ANY_DEVICE;
}

static const muster_placement_policy first = {.struct_size = sizeof first, .name = "first", .place = on_first};

/* What is handed to a device ahead is as little as it can be: four jobs. */
static void open_flags(fixture *fixture, uint32_t devices, uint32_t flags) {
    muster_config config = {
        .struct_size = sizeof config, .policy = &first, .enqueue_ahead_ns = 1, .flags = flags | MUSTER_RUNTIME_NO_NUMA};
    fixture_open_with(fixture, devices, &config);
}

static void open_devices(fixture *fixture, uint32_t devices) { open_flags(fixture, devices, 0); }

/* As if the kernel had been measured: a job of WORDS words takes so long. */
static void set_pace(const fixture *fixture, const char *kernel, uint64_t job_ns) {
    for (int d = 0; d < muster_device_count(fixture->runtime); d++)
        atomic_store(&fixture_kernel(fixture, kernel)->pace_ps[d], job_ns * 1000 / (WORDS / 64));
}

static uint64_t steals(const fixture *fixture) {
    uint64_t sum = 0;
    for (int d = 0; d < muster_device_count(fixture->runtime); d++) sum += stats_of(fixture, d).steals;
    return sum;
}

#define WAIT_UNTIL(condition)                                                                                          \
    do {                                                                                                               \
        uint64_t deadline_ns = mu_deadline_ns(fixture_wait_ns);                                                        \
        while (!(condition)) {                                                                                         \
            if (mu_now_ns() >= deadline_ns) fail_msg("never: %s", #condition);                                         \
            sched_yield();                                                                                             \
        }                                                                                                              \
    } while (0)

static void wait_for_steals_of(const fixture *fixture, int device, uint64_t count) {
    WAIT_UNTIL(stats_of(fixture, device).steals >= count);
}

static void wait_for_steals(const fixture *fixture, uint64_t count) { WAIT_UNTIL(steals(fixture) >= count); }

/* Every actor has registered its request again: nobody asks anybody. */
static void wait_until_registered(const fixture *fixture, uint64_t mask) {
    WAIT_UNTIL(atomic_load(&fixture->runtime->thieves) == mask);
}

/* A device has looked for registered requests when it has handed over its jobs: it is full then. */
static void wait_until_held_ones_are_full(const fixture *fixture) {
    for (int d = 0; d < 2; d++) WAIT_UNTIL(stats_of(fixture, d).launches >= AHEAD);
    mu_actors_pass(fixture->runtime);
    mu_actors_pass(fixture->runtime);
}

/* Independent jobs, each on a buffer of its own. */
static void add_jobs(const fixture *fixture, muster_graph *graph, muster_buffer **buffers, uint32_t count,
                     uint32_t factor, uint32_t term) {
    for (uint32_t i = 0; i < count; i++) {
        buffers[i] = fixture_buffer(fixture, BYTES, NULL);
        fixture_affine(fixture, graph, buffers[i], factor, term);
    }
}

static uint32_t count_on(const muster_run *run, uint32_t jobs, int device) {
    uint32_t count = 0;
    for (muster_job job = 0; job < jobs; job++) count += fixture_result(run, job).device == device;
    return count;
}

static void check_words(muster_buffer *const *buffers, uint32_t count, uint32_t expected) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t words[WORDS];
        fixture_read(buffers[i], 0, BYTES, words);
        for (uint32_t w = 0; w < WORDS; w++) assert_int_equal(words[w], expected);
    }
}

/* ------------------------------------------------------------------------------------------------------------ what goes -- */

/* All but what the held device has been handed, and the next. Each job runs once: it adds. */
static void an_idle_device_takes_what_waits(void **state) {
    (void)state;
    enum { JOBS = 40 };
    for (uint32_t devices = 2; devices <= 4; devices++) {
        fixture fixture;
        open_devices(&fixture, devices);
        set_pace(&fixture, "affine", 1000000);
        muster_buffer *buffers[JOBS];
        muster_graph *graph = fixture_graph(&fixture);
        add_jobs(&fixture, graph, buffers, JOBS, 2, 7);
        fixture_hold_all(&fixture, true);
        muster_run *run = fixture_submit(&fixture, graph);
        /* While nothing is done, each gets half of what is more than it has. */
        for (uint32_t d = 1; d < devices; d++) wait_for_steals_of(&fixture, (int)d, 1);
        for (uint32_t d = 1; d < devices; d++) fixture_hold(&fixture, (int)d, false);
        wait_for_steals(&fixture, JOBS - AHEAD - 1);
        fixture_hold(&fixture, 0, false);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        assert_int_equal(count_on(run, JOBS, 0), AHEAD + 1);
        assert_int_equal(steals(&fixture), JOBS - AHEAD - 1);
        assert_int_equal(stats_of(&fixture, 0).steals_given, JOBS - AHEAD - 1);
        assert_int_equal(stats_of(&fixture, 0).steals, 0);
        uint64_t jobs = 0, launches = 0;
        for (uint32_t d = 0; d < devices; d++) {
            jobs += stats_of(&fixture, (int)d).jobs;
            launches += stats_of(&fixture, (int)d).launches;
            assert_int_equal(atomic_load(&fixture.runtime->actors[d].queued), 0);
            assert_int_equal(atomic_load(&fixture.runtime->actors[d].queued_ns), 0);
        }
        assert_int_equal(jobs, JOBS);
        assert_int_equal(launches, JOBS);
        check_words(buffers, JOBS, 7);
        fixture_close(&fixture);
    }
}

/* Pinned jobs, iterations and prefetches stay, however long the queue; others behind them go. */
static void what_belongs_to_its_device_stays(void **state) {
    (void)state;
    enum { EACH = 8 };
    fixture fixture;
    open_devices(&fixture, 2);
    set_pace(&fixture, "affine", 1000000);
    muster_buffer *pinned[EACH], *iterated[EACH], *there[EACH], *loose[EACH];
    muster_graph *graph = fixture_graph(&fixture);
    muster_job iterations[EACH], prefetches[EACH], free_jobs[EACH];
    for (int i = 0; i < EACH; i++) {
        pinned[i] = fixture_buffer(&fixture, BYTES, NULL);
        add_affine_on(&fixture, graph, pinned[i], 0, 1, 1);
    }
    for (int i = 0; i < EACH; i++) {
        iterated[i] = fixture_buffer(&fixture, BYTES, NULL);
        muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&fixture, "affine"), WORDS / 64, 64,
                                                    ARGS(muster_buffer_arg(iterated[i], MUSTER_READ_WRITE),
                                                         muster_u32_arg(2), muster_u32_arg(1), muster_u32_arg(WORDS)));
        dispatch.flags = MUSTER_DISPATCH_ITERATED;
        dispatch.iterations = 3;
        iterations[i] = fixture_add(graph, &dispatch);
        there[i] = fixture_buffer(&fixture, BYTES, NULL);
        OK(muster_graph_prefetch(graph, there[i], 0, 0, 0, &prefetches[i], &reported));
        loose[i] = fixture_buffer(&fixture, BYTES, NULL);
        free_jobs[i] = fixture_affine(&fixture, graph, loose[i], 1, 1);
    }
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, graph);
    wait_for_steals(&fixture, EACH);
    /* The thief asks once more, gets nothing, and registers. */
    wait_until_registered(&fixture, 3);
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(steals(&fixture), EACH);
    for (int i = 0; i < EACH; i++) {
        assert_int_equal(fixture_result(run, iterations[i]).device, 0);
        assert_int_equal(fixture_result(run, prefetches[i]).device, 0);
        assert_int_equal(fixture_result(run, free_jobs[i]).device, 1);
    }
    check_words(pinned, EACH, 1);
    check_words(iterated, EACH, 7);
    check_words(loose, EACH, 1);
    fixture_close(&fixture);
}

/* Moving the large inputs would take longer than the whole queue; the small ones go. */
static void what_is_too_expensive_to_move_stays(void **state) {
    (void)state;
    enum { EACH = 10, LARGE = 64 * MIB };
    fixture fixture;
    open_devices(&fixture, 2);
    muster_buffer *large = fixture_buffer(&fixture, LARGE, NULL), *small[EACH];
    muster_graph *before = fixture_graph(&fixture), *graph = fixture_graph(&fixture);
    OK(muster_graph_fill(before, large, 0, LARGE, 1, 4, NULL, &reported));
    fixture_run(&fixture, before);
    set_pace(&fixture, "affine", 50000);
    set_pace(&fixture, "nothing", 200000); /* of four blocks */
    for (int i = 0; i < EACH; i++) {
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "nothing"), 1, 1,
                             ARGS(muster_buffer_arg(large, MUSTER_READ), muster_buffer_arg(large, MUSTER_READ)));
        fixture_add(graph, &dispatch);
    }
    for (int i = 0; i < EACH; i++) {
        small[i] = fixture_buffer(&fixture, BYTES, NULL);
        fixture_affine(&fixture, graph, small[i], 1, 1);
    }
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, graph);
    wait_for_steals(&fixture, EACH);
    wait_until_registered(&fixture, 3);
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    for (muster_job job = 0; job < 2 * EACH; job++) assert_int_equal(fixture_result(run, job).device, job >= EACH);
    assert_int_equal(stats_of(&fixture, 1).bytes_from_peer, 0);
    check_words(small, EACH, 1);
    fixture_close(&fixture);
}

/* Two devices that are held and have JOBS each, those of device 1 pinned there. */
enum { JOBS = 20 };
typedef struct busy {
    fixture fixture;
    muster_buffer *buffers[2 * JOBS];
    muster_run *run[2];
} busy;

static void open_busy(busy *b) {
    open_devices(&b->fixture, 2);
    set_pace(&b->fixture, "affine", 1000000);
    muster_graph *graph = fixture_graph(&b->fixture), *other = fixture_graph(&b->fixture);
    for (int i = 0; i < JOBS; i++) {
        b->buffers[i] = fixture_buffer(&b->fixture, BYTES, NULL);
        add_affine_on(&b->fixture, other, b->buffers[i], 1, 1, 1);
    }
    add_jobs(&b->fixture, graph, b->buffers + JOBS, JOBS, 1, 1);
    fixture_hold_all(&b->fixture, true);
    b->run[0] = fixture_submit(&b->fixture, other);
    b->run[1] = fixture_submit(&b->fixture, graph);
    wait_until_held_ones_are_full(&b->fixture);
}

static void close_busy(busy *b) {
    fixture_hold_all(&b->fixture, false);
    for (int i = 0; i < 2; i++) OK(muster_run_wait(b->run[i], fixture_wait_ns, &reported));
    check_words(b->buffers, 2 * JOBS, 1);
    fixture_close(&b->fixture);
}

/* A thief that has as much to do as the victim takes nothing. */
static void a_busy_device_takes_nothing(void **state) {
    (void)state;
    busy b;
    open_busy(&b);
    assert_int_equal(steals(&b.fixture), 0);
    close_busy(&b);
}

/* It was busy when the victim looked at its request; when it is not any more it asks. */
static void a_device_that_was_busy_asks_when_it_is_not(void **state) {
    (void)state;
    busy b;
    open_busy(&b);
    assert_int_equal(steals(&b.fixture), 0);
    fixture_hold(&b.fixture, 1, false);
    wait_for_steals(&b.fixture, JOBS - AHEAD - 1);
    assert_true(stats_of(&b.fixture, 1).steal_requests > 0);
    close_busy(&b);
}

/* ------------------------------------------------------------------------------------------------------- dependencies -- */

/* Jobs that follow what the victim has been handed and has not done: the thief waits for its event, and for nothing else. */
static void stolen_jobs_wait_for_what_they_follow(void **state) {
    (void)state;
    enum { READERS = 24 };
    fixture fixture;
    open_devices(&fixture, 3);
    set_pace(&fixture, "affine", 1000000);
    muster_graph *graph = fixture_graph(&fixture);
    muster_buffer *source = fixture_buffer(&fixture, BYTES, NULL), *copies[READERS];
    fixture_affine(&fixture, graph, source, 1, 5);
    for (int i = 0; i < READERS; i++) {
        copies[i] = fixture_buffer(&fixture, BYTES, NULL);
        OK(muster_graph_copy(graph, copies[i], 0, source, 0, BYTES, NULL, &reported));
        fixture_affine(&fixture, graph, copies[i], 3, 1);
    }
    fixture_affine(&fixture, graph, source, 1, 100); /* after all readers */
    for (int round = 0; round < 3; round++) {
        uint64_t before = steals(&fixture);
        fixture_hold(&fixture, 0, true);
        muster_run *run = fixture_submit(&fixture, graph);
        wait_for_steals(&fixture, before + 1);
        fixture_hold(&fixture, 0, false);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        muster_run_destroy(run);
        uint32_t value = 105 * (uint32_t)round + 5;
        check_words(copies, READERS, 3 * value + 1);
        check_words(&source, 1, value + 100);
        set_pace(&fixture, "affine", 1000000);
    }
    fixture_close(&fixture);
}

/* Shards are meant for devices, not pinned to them. */
static void shards_are_stolen_too(void **state) {
    (void)state;
    enum { SHARDS = 24 };
    fixture fixture;
    open_devices(&fixture, 2);
    set_pace(&fixture, "affine", 1000000);
    muster_buffer *buffer = fixture_buffer(&fixture, 4 * 64 * SHARDS, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "affine"), SHARDS, 64,
                         ARGS(muster_block_cut(muster_buffer_arg(buffer, MUSTER_READ_WRITE), 256), muster_u32_arg(1),
                              muster_u32_arg(9), muster_shard_count_arg(64, 64 * SHARDS, 4)));
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    dispatch.max_shards = SHARDS;
    fixture_add(graph, &dispatch);
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, graph);
    wait_for_steals(&fixture, SHARDS / 2 - AHEAD - 1);
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    for (uint64_t w = 0; w < 64 * SHARDS; w += 32) assert_int_equal(fixture_word(buffer, w), 9);
    fixture_close(&fixture);
}

/* The copies that shards reduce into move with them, as data; the sums are what they are. */
static void reductions_are_right_wherever_shards_go(void **state) {
    (void)state;
    enum { ELEMENTS = 4096, SHARDS = 32, ROUNDS = 6 };
    fixture fixture;
    open_devices(&fixture, 3);
    static uint32_t input[ELEMENTS];
    for (uint32_t i = 0; i < ELEMENTS; i++) input[i] = i * 2654435761u;
    muster_buffer *in = fixture_buffer(&fixture, sizeof input, input);
    muster_buffer *whole = fixture_buffer(&fixture, 4, NULL), *out = fixture_buffer(&fixture, 4, NULL);
    muster_graph *once = fixture_graph(&fixture), *graph = fixture_graph(&fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "sum_u32"), ELEMENTS / 64, 64,
                         ARGS(muster_sum_arg(whole, MUSTER_U32), muster_u32_arg(1),
                              muster_block_cut(muster_buffer_arg(in, MUSTER_READ), 256), muster_u32_arg(1),
                              muster_shard_offset_arg(64, ELEMENTS, 8), muster_shard_count_arg(64, ELEMENTS, 8)));
    fixture_add(once, &dispatch);
    fixture_run(&fixture, once);
    uint32_t sum = fixture_word(whole, 0), total = 0;
    assert_int_not_equal(sum, 0);
    muster_arg args[6];
    memcpy(args, dispatch.args, sizeof args);
    args[0] = muster_sum_arg(out, MUSTER_U32);
    dispatch.args = args;
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    dispatch.max_shards = SHARDS;
    for (int i = 0; i < ROUNDS; i++) fixture_add(graph, &dispatch);
    for (int hold = 0; hold < 3; hold++) {
        for (int d = 0; d < 3; d++) atomic_store(&fixture_kernel(&fixture, "sum_u32")->pace_ps[d], 1000000000);
        fixture_hold(&fixture, hold, true);
        muster_run *run = fixture_submit(&fixture, graph);
        FAILS(MUSTER_TIMEOUT, "tasks", muster_run_wait(run, 20000000, &reported));
        fixture_hold(&fixture, hold, false);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        muster_run_destroy(run);
        total += ROUNDS * sum;
        assert_int_equal(fixture_word(out, 0), total);
    }
    fixture_close(&fixture);
}

/* ------------------------------------------------------------------------------------------------------- off, and idle -- */

static void run_unequally(const fixture *fixture, uint32_t jobs, muster_run **run, muster_buffer **buffers) {
    set_pace(fixture, "affine", 1000000);
    muster_graph *graph = fixture_graph(fixture);
    add_jobs(fixture, graph, buffers, jobs, 1, 3);
    *run = fixture_submit(fixture, graph);
    OK(muster_run_wait(*run, fixture_wait_ns, &reported));
    check_words(buffers, jobs, 3);
}

static void it_can_be_turned_off(void **state) {
    (void)state;
    enum { JOBS = 60 };
    static const uint32_t flags[] = {MUSTER_RUNTIME_NO_STEALING, MUSTER_RUNTIME_SERIAL};
    muster_buffer *buffers[JOBS];
    muster_run *run;
    for (int i = 0; i < 3; i++) {
        fixture fixture;
        if (i == 2) setenv("MUSTER_STEALING", "0", 1);
        open_flags(&fixture, 2, i < 2 ? flags[i] : 0);
        unsetenv("MUSTER_STEALING");
        run_unequally(&fixture, JOBS, &run, buffers);
        assert_int_equal(count_on(run, JOBS, 0), JOBS);
        for (int d = 0; d < 2; d++) assert_int_equal(stats_of(&fixture, d).steal_requests, 0);
        assert_int_equal(steals(&fixture), 0);
        fixture_close(&fixture);
    }
    setenv("MUSTER_STEALING", "no", 1);
    muster_runtime *runtime;
    muster_config config = {.struct_size = sizeof config, .driver = "sim"};
    FAILS(MUSTER_INVALID_CONFIG, "MUSTER_STEALING|no|1 or 0", muster_runtime_create(&config, &runtime, &reported));
    unsetenv("MUSTER_STEALING");
}

static uint64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* When everything has ended, every actor that asked has registered and sleeps. Requests are bounded: after each thing that was given, at
 * most one for every other device. */
static void an_idle_runtime_sleeps(void **state) {
    (void)state;
    enum { JOBS = 60, DEVICES = 4, WAIT_NS = 100000000 };
    fixture fixture;
    open_devices(&fixture, DEVICES);
    muster_buffer *buffers[JOBS], *lent = fixture_buffer(&fixture, BYTES, NULL);
    muster_run *run;
    for (int round = 0; round < 3; round++) {
        run_unequally(&fixture, JOBS, &run, buffers);
        uint64_t requests = 0;
        for (int d = 0; d < DEVICES; d++) requests += stats_of(&fixture, d).steal_requests;
        assert_true(requests <= (steals(&fixture) + DEVICES) * (DEVICES - 1));
        wait_until_registered(&fixture, (1 << DEVICES) - 1);
    }
    /* A run that waits for its buffer, for a while in which nothing happens. */
    void *pointer;
    OK(muster_buffer_acquire(lent, 0, 0, MUSTER_WRITE, fixture_wait_ns, &pointer, &reported));
    memset(pointer, 0, BYTES);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, lent, 1, 1);
    run = fixture_submit(&fixture, graph);
    uint64_t before = cpu_ns();
    FAILS(MUSTER_TIMEOUT, "tasks", muster_run_wait(run, WAIT_NS, &reported));
    assert_true(cpu_ns() - before < WAIT_NS / 5);
    OK(muster_buffer_release(lent, pointer, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    fixture_close(&fixture);
}

/* ---------------------------------------------------------------------------------------------------- when things end -- */

/* A thief that is lost, which nobody knows before it is given something: its jobs go on from there. */
static void a_lost_thief_passes_on_what_it_got(void **state) {
    (void)state;
    enum { JOBS = 40 };
    fixture fixture;
    open_devices(&fixture, 3);
    set_pace(&fixture, "affine", 1000000);
    muster_buffer *buffers[JOBS];
    muster_graph *graph = fixture_graph(&fixture);
    add_jobs(&fixture, graph, buffers, JOBS, 1, 2);
    mu_sim_lose_device(fixture_driver(&fixture), 1);
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, graph);
    wait_for_steals(&fixture, JOBS / 2);
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(count_on(run, JOBS, 1), 0);
    assert_true(count_on(run, JOBS, 2) > 0);
    check_words(buffers, JOBS, 2);
    fixture_close(&fixture);
}

/* A victim that is lost with requests at it, registered and new: what was in flight fails, all else runs on the others. */
static void a_lost_victim_leaves_nobody_waiting(void **state) {
    (void)state;
    enum { JOBS = 30 };
    fixture fixture;
    open_devices(&fixture, 3);
    set_pace(&fixture, "affine", 1000000);
    muster_buffer *buffers[JOBS];
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < JOBS; i++) {
        buffers[i] = fixture_buffer(&fixture, BYTES, NULL);
        if (i < JOBS / 2)
            add_affine_on(&fixture, graph, buffers[i], 0, 1, 2);
        else
            fixture_affine(&fixture, graph, buffers[i], 1, 2);
    }
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, graph);
    wait_for_steals(&fixture, 1);
    mu_sim_lose_device(fixture_driver(&fixture), 0);
    fixture_hold(&fixture, 0, false);
    FAILS(MUSTER_DEVICE_LOST, "device 0", muster_run_wait(run, fixture_wait_ns, &reported));
    for (muster_job job = 0; job < JOBS; job++) {
        muster_job_result result = fixture_result(run, job);
        assert_int_equal(result.status, job < JOBS / 2 ? MUSTER_DEVICE_LOST : MUSTER_OK);
        if (job >= JOBS / 2) assert_true(result.device > 0);
    }
    check_words(buffers + JOBS / 2, JOBS - JOBS / 2, 2);
    muster_graph *again = fixture_graph(&fixture);
    fixture_affine(&fixture, again, buffers[JOBS - 1], 1, 1);
    fixture_run(&fixture, again);
    fixture_close(&fixture);
}

/* A fault ends everything, in whatever state requests are; destroying waits for none. */
static void a_fault_ends_it(void **state) {
    (void)state;
    enum { JOBS = 40 };
    for (int round = 0; round < 4; round++) {
        fixture fixture;
        open_devices(&fixture, 3);
        set_pace(&fixture, "affine", 1000000);
        muster_graph *graph = fixture_graph(&fixture), *bad = fixture_graph(&fixture);
        for (int i = 0; i < JOBS; i++) fixture_affine(&fixture, graph, fixture_buffer(&fixture, BYTES, NULL), 1, 1);
        muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&fixture, "trapped"), 1, 1, NO_ARGS);
        dispatch.pin_device = 1;
        dispatch.device = 1 + round % 2;
        fixture_add(bad, &dispatch);
        fixture_hold(&fixture, 0, true);
        muster_run *run = fixture_submit(&fixture, graph);
        wait_for_steals(&fixture, (uint64_t)(1 + 5 * round));
        muster_run *end = fixture_submit(&fixture, bad);
        assert_int_not_equal(muster_run_wait(end, fixture_wait_ns, &reported), MUSTER_OK);
        fixture_hold(&fixture, 0, false);
        muster_status status = muster_run_wait(run, fixture_wait_ns, &reported);
        assert_int_not_equal(status, MUSTER_TIMEOUT);
        fixture_close(&fixture);
    }
}

/* A cancelled run's jobs end where they are. */
static void a_cancelled_run_is_not_stolen(void **state) {
    (void)state;
    enum { JOBS = 30 };
    fixture fixture;
    open_devices(&fixture, 2);
    set_pace(&fixture, "affine", 1000000);
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < JOBS; i++) fixture_affine(&fixture, graph, fixture_buffer(&fixture, BYTES, NULL), 1, 1);
    fixture_hold_all(&fixture, true);
    muster_run *run = fixture_submit(&fixture, graph);
    wait_for_steals(&fixture, JOBS / 4);
    OK(muster_run_cancel(run, &reported));
    uint64_t before = steals(&fixture);
    fixture_hold_all(&fixture, false);
    assert_int_equal(muster_run_wait(run, fixture_wait_ns, &reported), MUSTER_CANCELLED);
    assert_int_equal(steals(&fixture), before);
    for (muster_job job = 0; job < JOBS; job++) {
        muster_status status = fixture_result(run, job).status;
        assert_true(status == MUSTER_OK || status == MUSTER_CANCELLED);
    }
    fixture_close(&fixture);
}

/* ------------------------------------------------------------------------------------------------------------- stress -- */

enum { THREADS = 3, ROUNDS = MU_TSAN || MU_ASAN ? 12 : 60, CHAINS = 12, LENGTH = 4 };

typedef struct submitter {
    const fixture *fixture;
    uint32_t seed;
    uint32_t ok, cancelled;
} submitter;

/* Chains of jobs over buffers of its own, of all priorities, some cancelled; every result is checked. */
static void *submit_chains(void *user) {
    submitter *self = user;
    const fixture *fixture = self->fixture;
    muster_buffer *buffers[CHAINS];
    uint32_t draw = self->seed;
    for (int c = 0; c < CHAINS; c++) buffers[c] = fixture_buffer(fixture, BYTES, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        muster_graph *graph = fixture_graph(fixture);
        uint32_t expected[CHAINS];
        for (int c = 0; c < CHAINS; c++) {
            expected[c] = draw = draw * 1664525u + 1013904223u;
            OK(muster_graph_fill(graph, buffers[c], 0, BYTES, draw, 4, NULL, &reported));
        }
        for (int l = 0; l < LENGTH; l++)
            for (int c = 0; c < CHAINS; c++) {
                muster_job job = fixture_affine(fixture, graph, buffers[c], 3, (uint32_t)(l + c));
                expected[c] = 3 * expected[c] + (uint32_t)(l + c);
                OK(muster_graph_set_priority(graph, job, (int)(draw >> (c + l) & 7) - 4, &reported));
            }
        muster_run *run = fixture_submit(fixture, graph);
        if (round % 7 == 3) OK(muster_run_cancel(run, &reported));
        muster_status status = muster_run_wait(run, fixture_wait_ns, &reported);
        assert_true(status == MUSTER_OK || status == MUSTER_CANCELLED);
        if (status)
            self->cancelled++;
        else
            self->ok++;
        for (int c = 0; !status && c < CHAINS; c++) check_words(&buffers[c], 1, expected[c]);
        muster_run_destroy(run);
        muster_graph_destroy(graph);
    }
    for (int c = 0; c < CHAINS; c++) muster_buffer_destroy(buffers[c]);
    return NULL;
}

static void many_threads_and_thieves(void **state) {
    (void)state;
    for (uint32_t devices = 2; devices <= 6; devices += 2) {
        fixture fixture;
        open_devices(&fixture, devices);
        set_pace(&fixture, "affine", 500000);
        submitter submitters[THREADS];
        pthread_t threads[THREADS];
        for (uint32_t t = 0; t < THREADS; t++) {
            submitters[t] = (submitter){&fixture, devices * 100 + t, 0, 0};
            assert_int_equal(pthread_create(&threads[t], NULL, submit_chains, &submitters[t]), 0);
        }
        for (uint32_t t = 0; t < THREADS; t++) {
            pthread_join(threads[t], NULL);
            assert_true(submitters[t].ok >= ROUNDS - ROUNDS / 7 - 1);
        }
        for (uint32_t d = 0; d < devices; d++) {
            assert_int_equal(atomic_load(&fixture.runtime->actors[d].queued), 0);
            assert_int_equal(atomic_load(&fixture.runtime->actors[d].queued_ns), 0);
        }
        fixture_close(&fixture);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_device_takes_what_waits),
        cmocka_unit_test(what_belongs_to_its_device_stays),
        cmocka_unit_test(what_is_too_expensive_to_move_stays),
        cmocka_unit_test(a_busy_device_takes_nothing),
        cmocka_unit_test(a_device_that_was_busy_asks_when_it_is_not),
        cmocka_unit_test(stolen_jobs_wait_for_what_they_follow),
        cmocka_unit_test(shards_are_stolen_too),
        cmocka_unit_test(reductions_are_right_wherever_shards_go),
        cmocka_unit_test(it_can_be_turned_off),
        cmocka_unit_test(an_idle_runtime_sleeps),
        cmocka_unit_test(a_lost_thief_passes_on_what_it_got),
        cmocka_unit_test(a_lost_victim_leaves_nobody_waiting),
        cmocka_unit_test(a_fault_ends_it),
        cmocka_unit_test(a_cancelled_run_is_not_stolen),
        cmocka_unit_test(many_threads_and_thieves),
    };
    return cmocka_run_group_tests_name("steal", tests, NULL, NULL);
}
