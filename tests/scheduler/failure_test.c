/* What one failure does to the rest of a run, against a model of the dependencies; and the atomic order of runs over their
 * buffers, checked as an order. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "tests/scheduler/fixture.h"

static uint64_t random_state;
static uint32_t below(uint32_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

/* ------------------------------------------------------------------------------------------------------ descendants -- */

/* A random graph: job i owns range i of a buffer, writes it, and comes after some earlier jobs, either because it was told to or
 * because it reads their range. */
enum { JOBS = 60, DEVICES = 3, WORDS = 16, RANGE = 4 * WORDS };

typedef struct random_graph {
    fixture fixture;
    muster_buffer *buffer;
    bool after[JOBS][JOBS]; /* [job][predecessor], direct */
    bool adds[JOBS];        /* the job adds job + 1 to its range; else it leaves it as it is */
} random_graph;

static void add_job(random_graph *g, muster_graph *graph, muster_job job) {
    uint32_t reads = job && below(2) ? below(job) : JOBS;
    g->adds[job] = reads == JOBS;
    muster_arg own = muster_range_arg(g->buffer, MUSTER_READ_WRITE, (uint64_t)job * RANGE, RANGE);
    fixture_args adds = ARGS(own, muster_u32_arg(1), muster_u32_arg(job + 1), muster_u32_arg(WORDS));
    fixture_args reader =
        ARGS(muster_range_arg(g->buffer, MUSTER_READ, (uint64_t)(reads == JOBS ? 0 : reads) * RANGE, RANGE), own);
    muster_dispatch dispatch = g->adds[job] ? fixture_dispatch(fixture_kernel(&g->fixture, "affine"), 1, WORDS, adds)
                                            : fixture_dispatch(fixture_kernel(&g->fixture, "nothing"), 1, 1, reader);
    if (!g->adds[job]) g->after[job][reads] = true;
    dispatch.pin_device = below(4) != 0;
    dispatch.device = (int)below(DEVICES);
    if (!dispatch.pin_device) dispatch.device = 0;
    assert_int_equal(fixture_add(graph, &dispatch), job);
    for (uint32_t edges = job ? below(3) : 0; edges; edges--) {
        uint32_t predecessor = below(job);
        g->after[job][predecessor] = true;
        OK(muster_graph_after(graph, job, predecessor, &reported));
    }
}

/* Refuses some launches on one device, and the first burst there, which is sent again one by one then. */
static void fail_some(uint64_t seed, char spec[FIXTURE_SPEC_BYTES]) {
    char plan[512];
    int device = (int)(seed % DEVICES);
    snprintf(
        plan, sizeof plan,
        "[{\"kind\": \"fail\", \"entry\": \"graph_launch\", \"device\": %d, \"nth\": 1, \"code\": \"INVALID_VALUE\"}"
        ", {\"kind\": \"fail\", \"entry\": \"launch_kernel\", \"device\": %d, \"nth\": %d, \"code\": "
        "\"INVALID_VALUE\"}, {\"kind\": \"fail\", \"entry\": \"launch_kernel\", \"device\": %d, \"nth\": %d, "
        "\"code\": \"INVALID_VALUE\"}]",
        device, device, 1 + (int)(seed % 7), (device + 1) % DEVICES, 2 + (int)(seed % 11));
    fixture_planned_spec(DEVICES, plan, spec);
}

static uint32_t check_results(random_graph *g, muster_run *run, const muster_error *error) {
    muster_status wanted[JOBS];
    uint32_t causes = 0;
    muster_job first = MUSTER_NO_JOB;
    for (muster_job job = 0; job < JOBS; job++) {
        muster_status status = fixture_result(run, job).status;
        bool caused = false;
        for (muster_job other = 0; other < job; other++) caused |= g->after[job][other] && wanted[other];
        wanted[job] = caused ? MUSTER_PREDECESSOR_FAILED : MUSTER_OK;
        if (!caused && status == MUSTER_LAUNCH_FAILED) { /* which launch is refused is the driver's affair */
            wanted[job] = status;
            if (causes++ == 0) first = job;
        }
        assert_int_equal(status, wanted[job]);
        uint64_t offset = (uint64_t)job * RANGE;
        uint32_t words[WORDS];
        void *pointer;
        if (wanted[job]) {
            FAILS(MUSTER_DATA_UNDEFINED, "",
                  muster_buffer_acquire(g->buffer, offset, RANGE, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
        } else {
            fixture_read(g->buffer, offset, RANGE, words);
            for (int w = 0; w < WORDS; w++) assert_int_equal(words[w], g->adds[job] ? job + 1 : 0);
        }
    }
    assert_int_equal(error->status, causes ? MUSTER_LAUNCH_FAILED : MUSTER_OK);
    if (causes) assert_int_equal(error->job, first);
    return causes;
}

static void a_failure_ends_its_descendants_with_the_cause_and_nothing_else(void **state) {
    (void)state;
    uint32_t causes = 0;
    for (uint64_t seed = 1; seed <= (MU_TSAN || MU_ASAN ? 15 : 60); seed++) {
        static random_graph g;
        char spec[FIXTURE_SPEC_BYTES];
        memset(&g, 0, sizeof g);
        random_state = seed;
        fail_some(seed, spec);
        muster_config config = {.struct_size = sizeof config, .sim = spec};
        if (seed % 5 == 0) config.flags = MUSTER_RUNTIME_SERIAL;
        fixture_open_with(&g.fixture, DEVICES, &config);
        g.buffer = fixture_buffer(&g.fixture, JOBS * RANGE, NULL);
        muster_graph *graph = fixture_graph(&g.fixture);
        for (muster_job job = 0; job < JOBS; job++) add_job(&g, graph, job);
        /* In some, everything is ready at once, so that launches go out in bursts. */
        if (seed % 2) fixture_hold_all(&g.fixture, true);
        muster_run *run = fixture_submit(&g.fixture, graph);
        if (seed % 2) fixture_hold_all(&g.fixture, false);
        muster_error error = {0};
        muster_run_wait(run, fixture_wait_ns, &error);
        causes += check_results(&g, run, &error);
        fixture_close(&g.fixture);
    }
    assert_in_range(causes, 5, 1000);
}

/* ----------------------------------------------------------------------------------------------------------- shards -- */

/* One shard of three is refused: the job failed, what reads its part fails, and what reads the other parts only does, too, for
 * it depends on the job; a job on another buffer goes on. */
static void a_failed_shard_fails_its_job_and_its_part(void **state) {
    (void)state;
    enum { BLOCKS = 12, THREADS = 32, BYTES = BLOCKS * THREADS * 4 };
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(3, FIXTURE_FAIL_LAUNCH(1, 1), spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture;
    fixture_open_with(&fixture, 3, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL), *other = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(&fixture, "affine"), BLOCKS, THREADS,
        ARGS(muster_block_cut(muster_buffer_arg(buffer, MUSTER_READ_WRITE), THREADS * 4), muster_u32_arg(1),
             muster_u32_arg(9), muster_shard_count_arg(THREADS, BLOCKS * THREADS, 4)));
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    muster_job sharded = fixture_add(graph, &dispatch), reader[2], branch;
    OK(muster_graph_copy(graph, other, 0, buffer, BYTES / 2, 4, &reader[0], &reported));
    branch = fixture_affine(&fixture, graph, fixture_buffer(&fixture, 400, NULL), 1, 1);
    OK(muster_graph_copy(graph, other, 8, buffer, 0, 4, &reader[1], &reported));
    OK(muster_graph_after(graph, reader[1], sharded, &reported));
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_LAUNCH_FAILED, "affine", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(reported.job, sharded);
    assert_int_equal(reported.device, 1);
    muster_job_result result = fixture_result(run, sharded);
    assert_int_equal(result.status, MUSTER_LAUNCH_FAILED);
    assert_int_equal(result.shards, 3);
    for (int i = 0; i < 2; i++) assert_int_equal(fixture_result(run, reader[i]).status, MUSTER_PREDECESSOR_FAILED);
    if (fixture_result(run, branch).device != 1) assert_int_equal(fixture_result(run, branch).status, MUSTER_OK);
    /* The parts of the other shards are there, to the byte. */
    uint32_t words[BYTES / 12];
    void *pointer;
    for (uint64_t part = 0; part < 3; part += 2) {
        fixture_read(buffer, part * BYTES / 3, BYTES / 3, words);
        for (int w = 0; w < BYTES / 12; w++) assert_int_equal(words[w], 9);
    }
    FAILS(MUSTER_DATA_UNDEFINED, "bytes 512 to 1024",
          muster_buffer_acquire(buffer, BYTES / 3, 4, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    fixture_close(&fixture);
}

/* ------------------------------------------------------------------------------------------------------------ order -- */

/* Each run counts up the first word of a random set of shared buffers, in a random order of its jobs, and notes what it found in
 * each. So its notes are its places in the order of each buffer; that those orders agree with one order of all runs is what
 * "atomically over all their buffers" means. */
enum { SUBMITTERS = 4, SHARED = 6, ROUNDS = MU_TSAN || MU_ASAN ? 25 : 120, RUNS = SUBMITTERS * ROUNDS };

typedef struct noted {
    bool uses[SHARED];
    muster_buffer *notes; /* word b: its place in buffer b */
} noted;

typedef struct submitter {
    fixture *fixture;
    muster_kernel *affine;
    muster_buffer **shared;
    noted *runs;
    uint64_t random;
    muster_run *open; /* NULL: submits */
    muster_status worst;
} submitter;

static uint32_t draw(submitter *self, uint32_t bound) {
    self->random = self->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(self->random >> 33) % bound;
}

static muster_status build(submitter *self, noted *one, muster_graph *graph) {
    uint32_t chosen[SHARED], count = 0, wanted = 1 + draw(self, 3);
    while (count < wanted) {
        uint32_t b = draw(self, SHARED);
        if (one->uses[b]) continue;
        one->uses[b] = true;
        chosen[count++] = b;
    }
    muster_status status = muster_buffer_create(self->fixture->runtime, 4 * SHARED, NULL, &one->notes, NULL);
    for (uint32_t i = 0; i < count && !status; i++) {
        muster_dispatch dispatch = fixture_dispatch(self->affine, 1, 1,
                                                    ARGS(muster_buffer_arg(self->shared[chosen[i]], MUSTER_READ_WRITE),
                                                         muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(1)));
        dispatch.pin_device = 1;
        dispatch.device = (int)draw(self, DEVICES);
        status = muster_graph_dispatch(graph, &dispatch, NULL, NULL);
        if (!status)
            status = muster_graph_copy(graph, one->notes, 4 * chosen[i], self->shared[chosen[i]], 0, 4, NULL, NULL);
    }
    return status;
}

static void *submit_many(void *argument) {
    submitter *self = argument;
    for (uint32_t i = 0; i < ROUNDS && !self->worst; i++) {
        muster_graph *graph;
        muster_run *run = NULL;
        if ((self->worst = muster_graph_create(self->fixture->runtime, &graph, NULL))) break;
        self->worst = build(self, &self->runs[i], graph);
        if (!self->worst)
            self->worst = self->open ? muster_run_add(self->open, graph, NULL, NULL)
                                     : muster_submit(self->fixture->runtime, graph, &run, NULL);
        muster_graph_destroy(graph);
        if (run && draw(self, 8) == 0) self->worst = muster_run_wait(run, fixture_wait_ns, NULL);
        muster_run_destroy(run);
    }
    return NULL;
}

/* Takes away runs that come first in all their buffers, until none is left. */
static void check_order(const noted *runs, uint32_t place[RUNS][SHARED]) {
    static uint32_t at[SHARED][RUNS + 1]; /* which run has a place, plus 1 */
    uint32_t length[SHARED] = {0}, next[SHARED], taken = 0;
    memset(at, 0, sizeof at);
    for (uint32_t r = 0; r < RUNS; r++)
        for (uint32_t b = 0; b < SHARED; b++) {
            if (!runs[r].uses[b]) continue;
            assert_in_range(place[r][b], 1, RUNS);
            assert_int_equal(at[b][place[r][b]], 0); /* nobody else's */
            at[b][place[r][b]] = r + 1;
            length[b]++;
        }
    for (uint32_t b = 0; b < SHARED; b++) next[b] = 1;
    for (bool any = true; any;) {
        any = false;
        for (uint32_t b = 0; b < SHARED; b++) {
            if (next[b] > length[b]) continue;
            assert_int_not_equal(at[b][next[b]], 0); /* no gap: nothing was counted twice or lost */
            uint32_t r = at[b][next[b]] - 1;
            bool first = true;
            for (uint32_t c = 0; c < SHARED; c++) first &= !runs[r].uses[c] || place[r][c] == next[c];
            if (!first) continue;
            for (uint32_t c = 0; c < SHARED; c++) next[c] += runs[r].uses[c];
            taken++;
            any = true;
        }
    }
    if (taken != RUNS) fail_msg("%" PRIu32 " of %d runs are in no order over all their buffers", RUNS - taken, RUNS);
}

static void runs_of_many_threads_have_one_order_over_all_buffers(void **state) {
    (void)state;
    static noted runs[RUNS];
    static uint32_t place[RUNS][SHARED];
    for (int open = 0; open < 2; open++) {
        fixture fixture;
        muster_config config = {.struct_size = sizeof config, .placement = "random", .seed = 3};
        fixture_open_with(&fixture, DEVICES, &config);
        muster_buffer *shared[SHARED];
        muster_run *whole = NULL;
        pthread_t thread[SUBMITTERS];
        submitter own[SUBMITTERS];
        memset(runs, 0, sizeof runs);
        for (int b = 0; b < SHARED; b++) shared[b] = fixture_buffer(&fixture, 4, NULL);
        if (open) OK(muster_run_open(fixture.runtime, &whole, &reported));
        for (uint32_t t = 0; t < SUBMITTERS; t++) {
            /* With an open run, every other thread still submits. */
            own[t] = (submitter){
                &fixture, fixture_kernel(&fixture, "affine"), shared, runs + t * ROUNDS, t + 1, t % 2 ? whole : NULL,
                MUSTER_OK};
            assert_int_equal(pthread_create(&thread[t], NULL, submit_many, &own[t]), 0);
        }
        for (int t = 0; t < SUBMITTERS; t++) {
            pthread_join(thread[t], NULL);
            assert_int_equal(own[t].worst, MUSTER_OK);
        }
        if (open) {
            OK(muster_run_close(whole, &reported));
            OK(muster_run_wait(whole, fixture_wait_ns, &reported));
        }
        for (uint32_t r = 0; r < RUNS; r++) {
            fixture_read(runs[r].notes, 0, sizeof place[r], place[r]);
            muster_buffer_destroy(runs[r].notes);
        }
        check_order(runs, place);
        fixture_close(&fixture);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_ends_its_descendants_with_the_cause_and_nothing_else),
        cmocka_unit_test(a_failed_shard_fails_its_job_and_its_part),
        cmocka_unit_test(runs_of_many_threads_have_one_order_over_all_buffers),
    };
    return cmocka_run_group_tests_name("failures", tests, NULL, NULL);
}
