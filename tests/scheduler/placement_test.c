/* Placement policies: each by itself, against what its rule says for made-up requests, and an application's own policy in a
 * runtime: what it is told, what is done with its answer, and what is done when the answer is wrong. */
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "base/tuning.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

enum { WORDS = 4096, BYTES = 4 * WORDS, DEVICES_MAX = 32 };

static uint64_t random_state;
static uint64_t draw(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* ----------------------------------------------------------------------------------------- policies by themselves -- */

typedef struct made_up {
    muster_placement_request request;
    muster_placement_device devices[DEVICES_MAX];
} made_up;

/* Every device is a candidate, idle, and has everything. */
static void make_up(made_up *m, uint32_t devices) {
    memset(m, 0, sizeof *m);
    m->request = (muster_placement_request){.struct_size = sizeof m->request,
                                            .kind = MUSTER_JOB_DISPATCH,
                                            .candidates = (UINT64_C(1) << devices) - 1,
                                            .device_count = devices,
                                            .devices = m->devices};
    for (uint32_t d = 0; d < devices; d++) m->devices[d] = (muster_placement_device){.candidate = 1, .job_ns = 5000};
}

static void leave_out(made_up *m, uint32_t device) {
    m->devices[device].candidate = 0;
    m->request.candidates &= ~(UINT64_C(1) << device);
}

static int placed(const char *name, const made_up *m) {
    const muster_placement_policy *policy = muster_placement_find(name);
    assert_non_null(policy);
    return policy->place(policy->user, &m->request);
}

static void policies_are_found_by_name(void **state) {
    (void)state;
    static const char *const names[] = {"locality", "least-loaded", "round-robin", "random"};
    for (int i = 0; i < 4; i++) {
        const muster_placement_policy *policy = muster_placement_find(names[i]);
        assert_non_null(policy);
        assert_string_equal(policy->name, names[i]);
        assert_int_equal(policy->struct_size, sizeof *policy);
        assert_ptr_equal(policy, muster_placement_find(names[i]));
    }
    assert_null(muster_placement_find("fastest"));
    assert_null(muster_placement_find(""));
    assert_null(muster_placement_find(NULL));
}

/* Affinity: the job stays with its data until the queue there exceeds the other's by moving the data, the hop and the threshold;
 * one nanosecond more, and it goes. */
static void a_job_spills_when_its_device_is_behind_by_the_threshold(void **state) {
    (void)state;
    for (uint32_t home = 0; home < 2; home++) {
        made_up m;
        make_up(&m, 2);
        muster_placement_device *here = &m.devices[home], *other = &m.devices[1 - home];
        other->missing_peer_bytes = 1 << 20;
        other->copy_ns = 7000;
        other->hops = 2;
        const uint64_t limit = 7000 + 2 * (uint64_t)MU_HOP_NS + MU_SPILL_NS;
        for (uint64_t base = 0; base < 3000000; base += 999999) {
            other->queued_ns = base;
            here->queued_ns = base;
            assert_int_equal(placed("locality", &m), home);
            here->queued_ns = base + limit - 1;
            assert_int_equal(placed("locality", &m), home);
            here->queued_ns = base + limit + 1;
            assert_int_equal(placed("locality", &m), 1 - home);
        }
        /* Without a hop, content that comes from the host alone holds the job as much. */
        *other =
            (muster_placement_device){.candidate = 1, .job_ns = 5000, .missing_host_bytes = 1 << 20, .copy_ns = 7000};
        here->queued_ns = 7000 + MU_SPILL_NS - 1;
        assert_int_equal(placed("locality", &m), home);
        here->queued_ns = 7000 + MU_SPILL_NS + 1;
        assert_int_equal(placed("locality", &m), 1 - home);
    }
}

/* What no device has more of than another holds no job anywhere: the shortest queue wins by a nanosecond. */
static void data_that_is_nowhere_holds_no_job(void **state) {
    (void)state;
    made_up m;
    make_up(&m, 3);
    for (int d = 0; d < 3; d++) {
        m.devices[d].missing_host_bytes = 1 << 20;
        m.devices[d].copy_ns = 20000;
        m.devices[d].queued_ns = 50000;
    }
    m.devices[2].queued_ns = 49999;
    assert_int_equal(placed("locality", &m), 2);
    m.devices[0].queued_ns = 49998;
    assert_int_equal(placed("locality", &m), 0);
}

/* A device that takes longer for the job gets it when the wait elsewhere is longer still. */
static void locality_weighs_speed_against_queues(void **state) {
    (void)state;
    made_up m;
    make_up(&m, 2);
    m.devices[0].job_ns = 100000;
    m.devices[1].job_ns = 400000;
    m.devices[0].queued_ns = 299999;
    assert_int_equal(placed("locality", &m), 0);
    m.devices[0].queued_ns = 300001;
    assert_int_equal(placed("locality", &m), 1);
    leave_out(&m, 1);
    assert_int_equal(placed("locality", &m), 0);
}

/* Random figures, and every policy: a candidate, and the one that its rule gives when written down another way. */
static void policies_choose_by_their_rules(void **state) {
    (void)state;
    random_state = 88172645463325252u;
    for (int round = 0; round < 20000; round++) {
        made_up m;
        uint32_t devices = 2 + (uint32_t)(draw() % (DEVICES_MAX - 1));
        make_up(&m, devices);
        for (uint32_t d = 0; d < devices; d++) {
            muster_placement_device *device = &m.devices[d];
            device->queued_ns = draw() % (UINT64_C(1) << (4 + draw() % 50));
            device->job_ns = 1 + draw() % 1000000;
            device->missing_host_bytes = draw() % 3 ? 0 : draw() % 1000000;
            device->copy_ns = device->missing_host_bytes / 55;
            device->hops = (uint32_t)(draw() % 4);
            if (draw() % 3 == 0 && m.request.candidates & (m.request.candidates - 1)) leave_out(&m, d);
        }
        m.request.turn = draw();
        m.request.seed = draw();

        uint32_t order[DEVICES_MAX], count = 0, shortest = 0, soonest = 0;
        for (uint32_t d = 0; d < devices; d++)
            if (m.devices[d].candidate) order[count++] = d;
        uint64_t bytes = UINT64_MAX, hops = UINT64_MAX, best = UINT64_MAX;
        for (uint32_t i = 0; i < count; i++) {
            if (m.devices[order[i]].missing_host_bytes < bytes) bytes = m.devices[order[i]].missing_host_bytes;
            if (m.devices[order[i]].hops < hops) hops = m.devices[order[i]].hops;
        }
        for (uint32_t i = count; i-- > 0;) {
            const muster_placement_device *device = &m.devices[order[i]];
            bool away = device->missing_host_bytes != bytes || device->hops != hops;
            uint64_t end =
                device->queued_ns + device->job_ns + device->copy_ns + 6000u * device->hops + (away ? MU_SPILL_NS : 0);
            if (end <= best) best = end, soonest = order[i];
            if (i == count - 1 || device->queued_ns <= m.devices[shortest].queued_ns) shortest = order[i];
        }
        assert_int_equal(placed("locality", &m), soonest);
        assert_int_equal(placed("least-loaded", &m), shortest);
        assert_int_equal(placed("round-robin", &m), order[m.request.turn % count]);
        int chosen = placed("random", &m);
        assert_in_range(chosen, 0, devices - 1);
        assert_true(m.devices[chosen].candidate);
        assert_int_equal(placed("random", &m), chosen);
    }
}

/* The same seed gives the same sequence, another one another, and each device about as many jobs as any. */
static void random_is_repeatable_and_even(void **state) {
    (void)state;
    enum { TURNS = 8000 };
    made_up m;
    uint32_t same = 0, counts[8] = {0};
    make_up(&m, 8);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        m.request.turn = turn;
        m.request.seed = 7;
        int first = placed("random", &m);
        counts[first]++;
        assert_int_equal(placed("random", &m), first);
        m.request.seed = 8;
        same += placed("random", &m) == first;
    }
    /* Of 8,000 in 8: 1,000 each with a deviation of 30. */
    for (int d = 0; d < 8; d++) assert_in_range(counts[d], 850, 1150);
    assert_in_range(same, 850, 1150);
}

/* ----------------------------------------------------------------------------------------- an application's policy -- */

typedef struct answers {
    atomic_int calls;
    int fixed; /* what it answers, or ROUND: one device after the other; GARBAGE: mostly nonsense */
    muster_placement_request last;
    muster_placement_device devices[DEVICES_MAX];
    char kernel_name[64];
} answers;
enum { ROUND = 1000, GARBAGE = 1001 };

static int answer(void *user, const muster_placement_request *request) {
    answers *a = user;
    int call = atomic_fetch_add(&a->calls, 1);
    if (a->fixed == ROUND) return (int)((uint32_t)call % request->device_count);
    if (a->fixed == GARBAGE) {
        uint64_t x = (uint64_t)call * 0x9e3779b97f4a7c15u;
        return x >> 61 ? (int)(x >> 32) : (int)(x >> 40) % (int)request->device_count;
    }
    return a->fixed;
}

static int note(void *user, const muster_placement_request *request) {
    answers *a = user;
    atomic_fetch_add(&a->calls, 1);
    a->last = *request;
    memcpy(a->devices, request->devices, request->device_count * sizeof a->devices[0]);
    if (request->kernel_name) snprintf(a->kernel_name, sizeof a->kernel_name, "%s", request->kernel_name);
    return a->fixed;
}

typedef struct lines {
    atomic_int count;
    char last[1024];
} lines;

static void keep_line(void *user, muster_log_level level, const char *line) {
    lines *l = user;
    if (level > MUSTER_LOG_WARNING || !strstr(line, "placement policy")) return;
    if (atomic_fetch_add(&l->count, 1) == 0) snprintf(l->last, sizeof l->last, "%s", line);
}

static const uint32_t everything = MUSTER_PLACEMENT_QUEUES | MUSTER_PLACEMENT_TIMES | MUSTER_PLACEMENT_DATA |
                                   MUSTER_PLACEMENT_MEMORY | MUSTER_PLACEMENT_TURN;

static void open_with(fixture *fixture, uint32_t devices, int (*place)(void *, const muster_placement_request *),
                      answers *a, uint32_t flags, lines *log, const char *plan) {
    char spec[FIXTURE_SPEC_BYTES];
    muster_placement_policy policy = {sizeof policy, "of the test", a, flags, place};
    muster_config config = {.struct_size = sizeof config,
                            .policy = &policy,
                            .flags = MUSTER_RUNTIME_NO_STEALING,
                            .log = log ? keep_line : NULL,
                            .log_user = log};
    fixture_planned_spec(devices, plan ? plan : "[]", spec);
    config.sim = spec;
    fixture_open_with(fixture, devices, &config);
}

static uint64_t refused(const fixture *fixture) {
    uint64_t sum = 0;
    for (int d = 0; d < muster_device_count(fixture->runtime); d++) {
        muster_device_stats stats = {.struct_size = sizeof stats};
        OK(muster_device_get_stats(fixture->runtime, d, &stats, &reported));
        sum += stats.placements_refused;
    }
    return sum;
}

static void a_policy_of_the_application_places_every_job(void **state) {
    (void)state;
    enum { JOBS = 40 };
    fixture fixture;
    answers a = {.fixed = ROUND};
    open_with(&fixture, 3, answer, &a, 0, NULL, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_buffer *buffers[JOBS];
    for (int i = 0; i < JOBS; i++) {
        buffers[i] = fixture_buffer(&fixture, BYTES, NULL);
        fixture_affine(&fixture, graph, buffers[i], 1, (uint32_t)i);
    }
    muster_run *run = fixture_submit(&fixture, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    int counts[3] = {0};
    for (int i = 0; i < JOBS; i++) {
        counts[fixture_result(run, (muster_job)i).device]++;
        assert_int_equal(fixture_word(buffers[i], 0), i);
    }
    assert_int_equal(atomic_load(&a.calls), JOBS);
    assert_int_equal(counts[0], 14);
    assert_int_equal(counts[1], 13);
    assert_int_equal(counts[2], 13);
    assert_int_equal(refused(&fixture), 0);
    fixture_close(&fixture);
}

typedef struct witness {
    int device[256]; /* of each job of the one graph */
} witness;

static int remember_locality(void *user, const muster_placement_request *request) {
    const muster_placement_policy *locality = muster_placement_find("locality");
    int device = locality->place(locality->user, request);
    ((witness *)user)->device[request->job] = device;
    return device;
}

/* Affinity and spill in a runtime: jobs of one length that read the same content, all ready at once. They pile up where it is until the
 * queue there exceeds what moving it costs by the threshold; from then on both queues grow. */
static void jobs_spill_from_where_their_data_is(void **state) {
    (void)state;
    enum { INPUT = 1 << 20, JOBS = 60, GRID = 8, JOB_NS = 9000, OUT = 4 * 64 * GRID };
    fixture fixture;
    witness w;
    muster_placement_policy policy = {sizeof policy, "witness", &w, everything, remember_locality};
    muster_config config = {.struct_size = sizeof config, .policy = &policy, .cache_dir = ""};
    fixture_open_with(&fixture, 2, &config);
    void *host = calloc(1, INPUT);
    assert_non_null(host);
    muster_buffer *input = fixture_buffer(&fixture, INPUT, host);
    muster_graph *graph = fixture_graph(&fixture);
    OK(muster_graph_prefetch(graph, input, 0, 0, 0, NULL, &reported));
    fixture_run(&fixture, graph);
    muster_kernel *kernel = fixture_kernel(&fixture, "mix32");
    for (int d = 0; d < 2; d++) {
        atomic_store(&kernel->pace_ps[d], 1000 * (JOB_NS - 1) / GRID); /* the estimate rounds up */
        atomic_store(&fixture.runtime->actors[d].peer_bytes_per_us, 20000);
    }
    graph = fixture_graph(&fixture);
    for (int i = 0; i < JOBS; i++) {
        muster_dispatch dispatch =
            fixture_dispatch(kernel, GRID, 64,
                             ARGS(muster_buffer_arg(fixture_buffer(&fixture, OUT, NULL), MUSTER_WRITE),
                                  muster_buffer_arg(input, MUSTER_READ), muster_u32_arg(1), muster_u32_arg(0),
                                  muster_u32_arg(64 * GRID)));
        fixture_add(graph, &dispatch);
    }
    fixture_hold_all(&fixture, true);
    muster_run *run = fixture_submit(&fixture, graph); /* and all are placed */
    uint64_t queue[2] = {0, 0};
    const uint64_t away = (uint64_t)INPUT * 1000 / 20000 + 6000 + MU_SPILL_NS;
    for (int i = 0; i < JOBS; i++) {
        int expected = queue[0] <= queue[1] + away ? 0 : 1;
        if (i <= (int)(away / JOB_NS)) assert_int_equal(expected, 0);
        assert_int_equal(w.device[i], expected);
        queue[expected] += JOB_NS;
    }
    assert_true(queue[1] > 0);
    fixture_hold_all(&fixture, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    fixture_close(&fixture);
    free(host);
}

/* The figures of a job whose data is on one device, and then of one whose data is nowhere. */
static void a_policy_is_told_what_it_asks_for(void **state) {
    (void)state;
    fixture fixture;
    answers a = {.fixed = 2};
    open_with(&fixture, 3, note, &a, everything, NULL, NULL);
    uint32_t *host = calloc(WORDS, 4);
    assert_non_null(host);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, host);
    muster_graph *graph = fixture_graph(&fixture);
    muster_job job = fixture_affine(&fixture, graph, buffer, 3, 5);

    fixture_run(&fixture, graph);
    assert_int_equal(a.last.struct_size, sizeof a.last);
    assert_int_equal(a.last.kind, MUSTER_JOB_DISPATCH);
    assert_int_equal(a.last.job, job);
    assert_ptr_equal(a.last.kernel, fixture_kernel(&fixture, "affine"));
    assert_string_equal(a.kernel_name, "affine");
    assert_int_equal(a.last.blocks, WORDS / 64);
    assert_int_equal(a.last.required_bytes, BYTES);
    assert_int_equal(a.last.device_count, 3);
    assert_int_equal(a.last.candidates, 7);
    assert_int_equal(a.last.turn, 0);
    for (int d = 0; d < 3; d++) {
        assert_int_equal(a.devices[d].candidate, 1);
        assert_int_equal(a.devices[d].missing_host_bytes, BYTES);
        assert_int_equal(a.devices[d].missing_peer_bytes, 0);
        assert_int_equal(a.devices[d].hops, 0);
        assert_int_equal(a.devices[d].job_ns, MU_QUEUED_JOB_NS); /* it never ran */
        assert_int_equal(a.devices[d].queued_ns, 0);
        assert_true(a.devices[d].copy_ns > 0);
    }
    fixture_run(&fixture, graph);
    assert_int_equal(a.last.turn, 1);
    for (int d = 0; d < 3; d++) {
        assert_int_equal(a.devices[d].missing_host_bytes, 0);
        assert_int_equal(a.devices[d].missing_peer_bytes, d == 2 ? 0 : BYTES);
        assert_int_equal(a.devices[d].hops, d == 2 ? 0 : 1);
    }
    muster_graph_destroy(graph);
    graph = fixture_graph(&fixture);
    OK(muster_graph_fill(graph, buffer, 0, BYTES, 7, 4, &job, &reported));
    fixture_run(&fixture, graph);
    assert_int_equal(a.last.kind, MUSTER_JOB_FILL);
    assert_null(a.last.kernel);
    assert_null(a.last.kernel_name);
    assert_int_equal(a.last.blocks, 0);
    assert_int_equal(a.devices[0].missing_peer_bytes, 0); /* it reads nothing */
    assert_int_equal(a.devices[0].hops, 1);
    assert_int_equal(fixture_word(buffer, WORDS - 1), 7);
    fixture_close(&fixture);
    free(host);
}

static void what_is_not_asked_for_is_zero(void **state) {
    (void)state;
    static const uint32_t wanted[] = {0, MUSTER_PLACEMENT_QUEUES, MUSTER_PLACEMENT_TIMES, MUSTER_PLACEMENT_DATA,
                                      MUSTER_PLACEMENT_MEMORY};
    for (int w = 0; w < 5; w++) {
        fixture fixture;
        answers a = {.fixed = 1};
        open_with(&fixture, 2, note, &a, wanted[w], NULL, NULL);
        muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        fixture_affine(&fixture, graph, buffer, 1, 1);
        fixture_run(&fixture, graph); /* the content is on device 1 then, and the kernel known there */
        fixture_hold_all(&fixture, true);
        muster_run *first = fixture_submit(&fixture, graph), *second = fixture_submit(&fixture, graph);
        fixture_hold_all(&fixture, false);
        OK(muster_run_wait(first, fixture_wait_ns, &reported));
        OK(muster_run_wait(second, fixture_wait_ns, &reported));
        assert_int_equal(a.last.kind, MUSTER_JOB_DISPATCH);
        assert_int_equal(a.last.turn, 0);
        assert_int_equal(a.devices[0].job_ns != 0, wanted[w] == MUSTER_PLACEMENT_TIMES);
        assert_int_equal(a.devices[0].missing_peer_bytes != 0, wanted[w] == MUSTER_PLACEMENT_DATA);
        assert_int_equal(a.devices[0].hops != 0, wanted[w] == MUSTER_PLACEMENT_DATA);
        assert_int_equal(a.last.required_bytes != 0, wanted[w] == MUSTER_PLACEMENT_MEMORY);
        if (wanted[w] != MUSTER_PLACEMENT_QUEUES) assert_int_equal(a.devices[1].queued_ns, 0);
        if (wanted[w] == MUSTER_PLACEMENT_QUEUES) assert_true(a.devices[1].queued_ns > 0); /* of the first, held */
        fixture_close(&fixture);
    }
}

/* Whatever a policy answers, every job runs once and right; what was no candidate is counted each time and logged once. */
static void wrong_answers_are_counted_and_corrected(void **state) {
    (void)state;
    enum { JOBS = 25 };
    static const int wrong[] = {3, -2, INT_MAX, INT_MIN, 31, 32, 63, 64};
    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
        fixture fixture;
        lines log = {0};
        answers a = {.fixed = wrong[w]};
        open_with(&fixture, 3, answer, &a, 0, &log, NULL);
        muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        for (int i = 0; i < JOBS; i++) fixture_affine(&fixture, graph, buffer, 3, 1);
        fixture_run(&fixture, graph);
        uint32_t word = 0;
        for (int i = 0; i < JOBS; i++) word = 3 * word + 1;
        assert_int_equal(fixture_word(buffer, 77), word);
        assert_int_equal(refused(&fixture), JOBS);
        assert_int_equal(atomic_load(&log.count), 1);
        assert_non_null(strstr(log.last, "of the test"));
        fixture_close(&fixture);
    }
}

static void a_policy_may_leave_a_job_to_locality(void **state) {
    (void)state;
    fixture fixture;
    lines log = {0};
    answers a = {.fixed = 1};
    open_with(&fixture, 3, answer, &a, 0, &log, NULL);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 1, 1);
    fixture_run(&fixture, graph);
    a.fixed = MUSTER_ANY_DEVICE;
    for (int i = 0; i < 5; i++) {
        muster_run *run = fixture_submit(&fixture, graph);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        assert_int_equal(fixture_result(run, 0).device, 1); /* where its data is */
        muster_run_destroy(run);
    }
    assert_int_equal(atomic_load(&a.calls), 6);
    assert_int_equal(refused(&fixture), 0);
    assert_int_equal(atomic_load(&log.count), 0);
    fixture_close(&fixture);
}

/* Nobody is asked where there is nothing to choose: a pinned job, one device, one that is left. */
static void a_policy_is_asked_only_where_there_is_a_choice(void **state) {
    (void)state;
    fixture fixture;
    answers a = {.fixed = 0};
    open_with(&fixture, 1, answer, &a, everything, NULL, NULL);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 1, 1);
    fixture_run(&fixture, graph);
    assert_int_equal(atomic_load(&a.calls), 0);
    fixture_close(&fixture);

    open_with(&fixture, 2, answer, &a, everything, NULL,
              "[{\"kind\": \"lose\", \"device\": 1, \"nth\": 1, \"code\": \"ECC_UNCORRECTABLE\"}]");
    buffer = fixture_buffer(&fixture, BYTES, NULL);
    graph = fixture_graph(&fixture);
    muster_dispatch pinned = fixture_dispatch(fixture_kernel(&fixture, "affine"), 64, 64,
                                              ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(1),
                                                   muster_u32_arg(1), muster_u32_arg(WORDS)));
    pinned.pin_device = 1;
    pinned.device = 1;
    fixture_add(graph, &pinned);
    /* It is lost after the first launch, so no later than at the second. */
    muster_status status = MUSTER_OK;
    for (int i = 0; i < 2 && !status; i++)
        status = muster_run_wait(fixture_submit(&fixture, graph), fixture_wait_ns, &reported);
    assert_int_equal(status, MUSTER_DEVICE_LOST);
    assert_int_equal(atomic_load(&a.calls), 0);
    muster_device_info info = {.struct_size = sizeof info};
    OK(muster_device_get_info(fixture.runtime, 1, &info, &reported));
    assert_int_equal(info.lost, 1);
    muster_buffer *other = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *next = fixture_graph(&fixture);
    fixture_affine(&fixture, next, other, 1, 4);
    fixture_run(&fixture, next);
    assert_int_equal(fixture_word(other, 5), 4);
    assert_int_equal(atomic_load(&a.calls), 0);
    fixture_close(&fixture);
}

typedef struct submitter {
    const fixture *fixture;
    pthread_t thread;
    uint32_t word;
} submitter;

static void *submit_chain(void *user) {
    submitter *s = user;
    muster_buffer *buffer = fixture_buffer(s->fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(s->fixture);
    for (int i = 0; i < 10; i++) fixture_affine(s->fixture, graph, buffer, 5, 1);
    for (int i = 0; i < 10; i++) fixture_run(s->fixture, graph);
    s->word = fixture_word(buffer, 9);
    return NULL;
}

/* Answers of all sorts to many threads at once. */
static void chaos_changes_no_result(void **state) {
    (void)state;
    enum { THREADS = 4 };
    fixture fixture;
    lines log = {0};
    answers a = {.fixed = GARBAGE};
    open_with(&fixture, 4, answer, &a, everything, &log, NULL);
    submitter submitters[THREADS];
    for (int i = 0; i < THREADS; i++) {
        submitters[i].fixture = &fixture;
        assert_int_equal(pthread_create(&submitters[i].thread, NULL, submit_chain, &submitters[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(submitters[i].thread, NULL), 0);
    uint32_t word = 0;
    for (int i = 0; i < 100; i++) word = 5 * word + 1;
    for (int i = 0; i < THREADS; i++) assert_int_equal(submitters[i].word, word);
    assert_int_equal(atomic_load(&a.calls), THREADS * 100);
    assert_in_range(refused(&fixture), THREADS * 50, THREADS * 100);
    assert_int_equal(atomic_load(&log.count), 1);
    fixture_close(&fixture);
}

/* Where 100 independent jobs went under "random". */
static void random_places(uint64_t seed, int devices[100]) {
    fixture fixture;
    muster_config config = {
        .struct_size = sizeof config, .placement = "random", .seed = seed, .flags = MUSTER_RUNTIME_NO_STEALING};
    fixture_open_with(&fixture, 5, &config);
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < 100; i++) fixture_affine(&fixture, graph, fixture_buffer(&fixture, 256, NULL), 1, 1);
    muster_run *run = fixture_submit(&fixture, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    for (int i = 0; i < 100; i++) devices[i] = fixture_result(run, (muster_job)i).device;
    fixture_close(&fixture);
}

static void a_seed_repeats_where_jobs_run(void **state) {
    (void)state;
    int first[100], again[100], other[100], same = 0;
    random_places(41, first);
    random_places(41, again);
    random_places(42, other);
    assert_memory_equal(first, again, sizeof first);
    for (int i = 0; i < 100; i++) same += first[i] == other[i];
    assert_in_range(same, 5, 45); /* one in five by chance */
}

static void a_policy_is_checked_when_the_runtime_is_made(void **state) {
    (void)state;
    answers a = {0};
    muster_runtime *runtime = NULL;
    muster_placement_policy policy = {sizeof policy, NULL, &a, 0, answer};
    muster_config config = {.struct_size = sizeof config, .driver = "sim", .policy = &policy, .cache_dir = ""};
    policy.struct_size = 0;
    FAILS(MUSTER_INVALID_CONFIG, "policy|struct_size|0", muster_runtime_create(&config, &runtime, &reported));
    policy.struct_size = sizeof policy;
    policy.place = NULL;
    FAILS(MUSTER_INVALID_CONFIG, "policy|place", muster_runtime_create(&config, &runtime, &reported));
    policy.place = answer;
    policy.flags = 1u << 31;
    FAILS(MUSTER_INVALID_CONFIG, "policy|flags|80000000", muster_runtime_create(&config, &runtime, &reported));
    policy.flags = 0;
    config.placement = "fastest"; /* named, although not used */
    FAILS(MUSTER_INVALID_CONFIG, "placement|fastest", muster_runtime_create(&config, &runtime, &reported));
    assert_null(runtime);
    config.placement = NULL;
    OK(muster_runtime_create(&config, &runtime, &reported));
    OK(muster_runtime_destroy(runtime, fixture_wait_ns, &reported));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_are_found_by_name),
        cmocka_unit_test(a_job_spills_when_its_device_is_behind_by_the_threshold),
        cmocka_unit_test(data_that_is_nowhere_holds_no_job),
        cmocka_unit_test(locality_weighs_speed_against_queues),
        cmocka_unit_test(policies_choose_by_their_rules),
        cmocka_unit_test(random_is_repeatable_and_even),
        cmocka_unit_test(a_policy_of_the_application_places_every_job),
        cmocka_unit_test(jobs_spill_from_where_their_data_is),
        cmocka_unit_test(a_policy_is_told_what_it_asks_for),
        cmocka_unit_test(what_is_not_asked_for_is_zero),
        cmocka_unit_test(wrong_answers_are_counted_and_corrected),
        cmocka_unit_test(a_policy_may_leave_a_job_to_locality),
        cmocka_unit_test(a_policy_is_asked_only_where_there_is_a_choice),
        cmocka_unit_test(chaos_changes_no_result),
        cmocka_unit_test(a_seed_repeats_where_jobs_run),
        cmocka_unit_test(a_policy_is_checked_when_the_runtime_is_made),
    };
    return cmocka_run_group_tests_name("placement", tests, NULL, NULL);
}
