/* Bursts: every mode gives the same bytes, what may run side by side is independent, and the counters say what happened. */
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/sanitizer.h"
#include "scheduler/actor/burst_pool.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

enum { WORDS = 8, RANGE = 256 }; /* a job's range: so many words, at multiples of so many bytes */

static uint64_t random_state;

static uint32_t below(uint32_t limit) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % limit);
}

static void open_in_mode(fixture *fixture, const char *mode, uint32_t devices, uint64_t seed) {
    muster_config config = {.struct_size = sizeof config, .bursts = mode, .seed = seed};
    fixture_open_with(fixture, devices, &config);
}

/* The same with devices of a preset: an H200 has launch order (device/burst.h), an A100 does not. */
static void open_preset(fixture *fixture, const char *preset, const char *mode, uint32_t devices, uint64_t seed) {
    char spec[FIXTURE_SPEC_BYTES];
    snprintf(spec, sizeof spec, "{\"devices\": %u, \"preset\": \"%s\"}", devices, preset);
    muster_config config = {.struct_size = sizeof config, .sim = spec, .bursts = mode, .seed = seed};
    fixture_open_with(fixture, devices, &config);
    for (uint32_t d = 0; d < devices; d++)
        assert_int_equal(fixture->runtime->actors[d].bursts.pool.launch_order,
                         strcmp(preset, "H200") == 0 && (!mode || strcmp(mode, "off") != 0));
}

/* words of a range = words * factor + term, by so many threads. */
static muster_job add_wide(const fixture *fixture, muster_graph *graph, muster_buffer *buffer, uint32_t range,
                           uint32_t factor, uint32_t term, uint32_t threads) {
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "affine"), 1, threads,
                         ARGS(muster_range_arg(buffer, MUSTER_READ_WRITE, (uint64_t)range * RANGE, WORDS * 4),
                              muster_u32_arg(factor), muster_u32_arg(term), muster_u32_arg(WORDS)));
    return fixture_add(graph, &dispatch);
}

static muster_job add(const fixture *fixture, muster_graph *graph, muster_buffer *buffer, uint32_t range,
                      uint32_t factor, uint32_t term) {
    return add_wide(fixture, graph, buffer, range, factor, term, 32);
}

static muster_device_stats stats_of(const fixture *fixture, int device) {
    muster_device_stats stats = {.struct_size = sizeof stats};
    OK(muster_device_get_stats(fixture->runtime, device, &stats, &reported));
    return stats;
}

/* A counter of device 0 from the JSON text. */
static uint64_t counter(const fixture *fixture, const char *name) {
    static char text[65536];
    char quoted[64];
    size_t needed;
    OK(muster_stats_text(fixture->runtime, MUSTER_STATS_JSON, text, sizeof text, &needed, &reported));
    snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    const char *at = strstr(text, quoted);
    assert_non_null(at);
    return strtoull(at + strlen(quoted), NULL, 10);
}

/* A buffer of ranges whose content is on the devices already: nothing has to be brought between the launches. */
static muster_buffer *ranges_of(const fixture *fixture, uint32_t count) {
    muster_buffer *buffer = fixture_buffer(fixture, (uint64_t)count * RANGE, NULL);
    muster_graph *graph = fixture_graph(fixture);
    OK(muster_graph_fill(graph, buffer, 0, (uint64_t)count * RANGE, 0, 4, NULL, &reported));
    fixture_run(fixture, graph);
    return buffer;
}

static void expect_word(muster_buffer *buffer, uint32_t range, uint32_t value) {
    uint32_t words[WORDS];
    fixture_read(buffer, (uint64_t)range * RANGE, sizeof words, words);
    for (int w = 0; w < WORDS; w++) assert_int_equal(words[w], value);
}

/* Everything is ready before the device begins; `jobs` launches have been sent by then, so that it is the same each time. */
static void run_held(const fixture *fixture, muster_graph *graph, uint32_t jobs) {
    uint64_t before = stats_of(fixture, 0).launches, deadline_ns = mu_deadline_ns(fixture_wait_ns);
    fixture_hold_all(fixture, true);
    muster_run *run = fixture_submit(fixture, graph);
    while (stats_of(fixture, 0).launches < before + jobs && mu_now_ns() < deadline_ns) sched_yield();
    fixture_hold_all(fixture, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
}

/* ----------------------------------------------------------------------------------------------------- what is sent -- */

static void a_backlog_of_independent_jobs_is_sent_in_branches(void **state) {
    (void)state;
    enum { JOBS = 700 };
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = ranges_of(&fixture, JOBS);
    muster_graph *graph = fixture_graph(&fixture);
    for (uint32_t j = 0; j < JOBS; j++) add(&fixture, graph, buffer, j, 1, j);
    for (uint32_t r = 1; r <= 3; r++) {
        run_held(&fixture, graph, JOBS);
        for (uint32_t j = 0; j < JOBS; j++) expect_word(buffer, j, r * j);
    }
    muster_device_stats stats = stats_of(&fixture, 0);
    assert_true(stats.branch_bursts >= 3);
    assert_true(stats.bursts >= stats.branch_bursts);
    assert_true(stats.burst_jobs > JOBS * 3 * 9 / 10 && stats.burst_jobs <= stats.launches);
    assert_int_equal(stats.launches, JOBS * 3);
    assert_int_equal(counter(&fixture, "branch_bursts"), stats.branch_bursts);
    assert_int_equal(counter(&fixture, "burst_jobs"), stats.burst_jobs);
    static char text[65536];
    size_t needed;
    OK(muster_stats_text(fixture.runtime, MUSTER_STATS_PROMETHEUS, text, sizeof text, &needed, &reported));
    assert_non_null(strstr(text, "muster_branch_bursts_total{device=\"0\""));
    assert_non_null(strstr(text, "muster_burst_updates_total{device=\"0\""));
    fixture_close(&fixture);
}

static void dependent_jobs_are_sent_in_chains(void **state) {
    (void)state;
    enum { JOBS = 500 };
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = ranges_of(&fixture, 1);
    muster_graph *graph = fixture_graph(&fixture);
    uint32_t expected = 0;
    for (uint32_t j = 0; j < JOBS; j++) {
        add(&fixture, graph, buffer, 0, 3, j);
        expected = expected * 3 + j;
    }
    fixture_run(&fixture, graph);
    expect_word(buffer, 0, expected);
    muster_device_stats stats = stats_of(&fixture, 0);
    assert_true(stats.burst_jobs > JOBS * 8 / 10);
    assert_int_equal(stats.branch_bursts, 0);
    fixture_close(&fixture);
}

static void modes_are_what_they_say(void **state) {
    (void)state;
    enum { JOBS = 100 };
    static const char *const modes[] = {"off", "always", "random", "auto", NULL};
    for (int m = 0; m < 5; m++) {
        fixture fixture;
        open_in_mode(&fixture, modes[m], 1, 3);
        muster_buffer *buffer = ranges_of(&fixture, JOBS);
        muster_graph *one = fixture_graph(&fixture), *many = fixture_graph(&fixture);
        add(&fixture, one, buffer, 0, 1, 5);
        for (uint32_t j = 0; j < JOBS; j++) add(&fixture, many, buffer, j, 2, j);
        fixture_run(&fixture, one);
        muster_device_stats stats = stats_of(&fixture, 0);
        /* A lone job goes out by itself, unless nothing may. */
        assert_int_equal(stats.burst_jobs, m == 1 || m == 2);
        fixture_run(&fixture, many);
        expect_word(buffer, 0, 10);
        for (uint32_t j = 1; j < JOBS; j++) expect_word(buffer, j, j);
        stats = stats_of(&fixture, 0);
        assert_int_equal(stats.launches, JOBS + 1);
        if (m == 0)
            assert_int_equal(stats.bursts, 0);
        else
            assert_true(stats.burst_jobs > JOBS / 2);
        if (m == 1 || m == 2) assert_int_equal(stats.burst_jobs, JOBS + 1);
        fixture_close(&fixture);
    }
    muster_runtime *runtime;
    muster_config config = {.struct_size = sizeof config, .driver = "sim", .bursts = "sometimes"};
    FAILS(MUSTER_INVALID_CONFIG, "bursts|sometimes|always", muster_runtime_create(&config, &runtime, &reported));
    config.bursts = NULL;
    setenv("MUSTER_BURSTS", "never", 1);
    FAILS(MUSTER_INVALID_CONFIG, "MUSTER_BURSTS|never", muster_runtime_create(&config, &runtime, &reported));
    setenv("MUSTER_BURSTS", "off", 1);
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_graph *graph = fixture_graph(&fixture);
    muster_buffer *buffer = ranges_of(&fixture, JOBS);
    for (uint32_t j = 0; j < JOBS; j++) add(&fixture, graph, buffer, j, 2, j);
    fixture_run(&fixture, graph);
    assert_int_equal(stats_of(&fixture, 0).bursts, 0);
    fixture_close(&fixture);
    unsetenv("MUSTER_BURSTS");
}

/* ----------------------------------------------------------------------------------------------------- what is right -- */

enum { RANGES = 24, LAYERED_JOBS = 600 };

typedef struct model {
    uint32_t word[RANGES];
} model;

/* Jobs that update one range, after others that read it or wrote it by way of a second range: a random mixture of independent and
 * dependent jobs, with priorities, copies and fills among them. What is sent side by side runs in an order that the simulator draws, so
 * a job that shares a burst with what it depends on shows. */
static void add_random(const fixture *fixture, muster_graph *graph, muster_buffer *buffer, model *model) {
    uint32_t range = below(RANGES), from = below(RANGES), kind = below(20), term = below(1000);
    if (kind == 0) {
        OK(muster_graph_fill(graph, buffer, (uint64_t)range * RANGE, WORDS * 4, term, 4, NULL, &reported));
        model->word[range] = term;
        return;
    }
    if (kind == 1 && from != range) {
        OK(muster_graph_copy(graph, buffer, (uint64_t)range * RANGE, buffer, (uint64_t)from * RANGE, WORDS * 4, NULL,
                             &reported));
        model->word[range] = model->word[from];
        return;
    }
    uint32_t threads = 32 * (1 + below(3));
    muster_job job = add_wide(fixture, graph, buffer, range, 3, term, threads);
    if (below(4) == 0) OK(muster_graph_set_priority(graph, job, (int32_t)below(5) - 2, &reported));
    model->word[range] = model->word[range] * 3 + term;
}

static void every_mode_keeps_the_order_of_dependent_jobs(void **state) {
    (void)state;
    static const char *const modes[] = {"auto", "off", "always", "random"};
    uint64_t branches = 0;
    for (uint64_t seed = 1; seed <= (MU_TSAN || MU_ASAN ? 16 : 80); seed++) {
        fixture fixture;
        model model = {{0}};
        uint32_t devices = 1 + (seed / 4) % 3;
        random_state = seed;
        open_preset(&fixture, seed / 2 % 3 ? "H200" : "A100", modes[seed % 4], devices, seed);
        muster_buffer *buffer = ranges_of(&fixture, RANGES);
        muster_graph *graph[3];
        muster_run *run[6];
        for (int g = 0; g < 3; g++) {
            uint32_t jobs = 1 + below(LAYERED_JOBS);
            uint64_t begin = random_state;
            graph[g] = fixture_graph(&fixture);
            for (uint32_t j = 0; j < jobs; j++) add_random(&fixture, graph[g], buffer, &model);
            /* Submitted twice: what it does to the content is done again. */
            run[2 * g] = fixture_submit(&fixture, graph[g]);
            run[2 * g + 1] = fixture_submit(&fixture, graph[g]);
            muster_graph *shadow = fixture_graph(&fixture);
            random_state = begin;
            for (uint32_t j = 0; j < jobs; j++) add_random(&fixture, shadow, buffer, &model);
            muster_graph_destroy(shadow);
        }
        for (int r = 0; r < 6; r++) {
            OK(muster_run_wait(run[r], fixture_wait_ns, &reported));
            muster_run_destroy(run[r]);
        }
        for (uint32_t r = 0; r < RANGES; r++) expect_word(buffer, r, model.word[r]);
        for (uint32_t d = 0; d < devices; d++) {
            branches += stats_of(&fixture, (int)d).branch_bursts;
            if (seed % 4 == 1) assert_int_equal(stats_of(&fixture, (int)d).bursts, 0);
        }
        fixture_close(&fixture);
    }
    assert_true(branches > 100);
}

/* Layers as wide as a burst, where each job comes after three of the layer before: what releases its successors while its own burst is
 * still being filled must not have them in it, whatever their priority. */
static void a_layer_does_not_share_branches_with_the_next(void **state) {
    (void)state;
    enum { WIDTH = 32, LAYERS = 20 };
    static const char *const modes[] = {"auto", "always", "random"};
    for (int m = 0; m < 18; m++) {
        fixture fixture;
        open_preset(&fixture, m % 2 ? "H200" : "A100", modes[m % 3], 1, (uint64_t)m);
        muster_buffer *buffer = ranges_of(&fixture, WIDTH);
        muster_graph *graph = fixture_graph(&fixture);
        muster_job before[WIDTH] = {0};
        uint32_t expected[WIDTH] = {0};
        for (uint32_t l = 0; l < LAYERS; l++) {
            muster_job jobs[WIDTH];
            for (uint32_t j = 0; j < WIDTH; j++) {
                jobs[j] = add(&fixture, graph, buffer, j, 5, l + j);
                expected[j] = expected[j] * 5 + l + j;
                OK(muster_graph_set_priority(graph, jobs[j], m < 6 ? 0 : (int32_t)(l % 4), &reported));
                for (uint32_t n = 0; l && n < 3; n++)
                    OK(muster_graph_after(graph, jobs[j], before[(j + n) % WIDTH], &reported));
            }
            memcpy(before, jobs, sizeof jobs);
        }
        for (int r = 0; r < 3; r++) run_held(&fixture, graph, 0);
        for (uint32_t j = 0; j < WIDTH; j++) {
            uint32_t value = 0;
            for (int r = 0; r < 3; r++)
                for (uint32_t l = 0; l < LAYERS; l++) value = value * 5 + l + j;
            expect_word(buffer, j, value);
        }
        if (m % 3) assert_true(stats_of(&fixture, 0).branch_bursts > 0);
        fixture_close(&fixture);
    }
}

/* ---------------------------------------------------------------------------------------------------- what is refused -- */

/* The driver refuses a burst, and perhaps one of its launches too: that job fails alone. */
static void a_refused_burst_is_sent_one_by_one(void **state) {
    (void)state;
    enum { JOBS = 300 };
    for (int bad = 0; bad <= 1; bad++) {
        char plan[512], spec[FIXTURE_SPEC_BYTES];
        snprintf(
            plan, sizeof plan,
            "[{\"kind\": \"fail\", \"entry\": \"graph_launch\", \"device\": 0, \"nth\": 2, \"repeat\": 3, \"code\": "
            "\"INVALID_VALUE\"}%s]",
            bad ? ", {\"kind\": \"fail\", \"entry\": \"launch_kernel\", \"device\": 0, \"nth\": 20, \"code\": "
                  "\"INVALID_VALUE\"}"
                : "");
        fixture_planned_spec(1, plan, spec);
        muster_config config = {.struct_size = sizeof config, .sim = spec, .bursts = "always"};
        fixture fixture;
        fixture_open_with(&fixture, 1, &config);
        muster_buffer *buffer = ranges_of(&fixture, JOBS);
        muster_graph *graph = fixture_graph(&fixture);
        for (uint32_t j = 0; j < JOBS; j++) add(&fixture, graph, buffer, j, 1, j + 1);
        muster_run *run = fixture_submit(&fixture, graph);
        muster_error error;
        assert_int_equal(muster_run_wait(run, fixture_wait_ns, &error), bad ? MUSTER_LAUNCH_FAILED : MUSTER_OK);
        int failed = 0;
        for (uint32_t j = 0; j < JOBS; j++) {
            void *pointer;
            if (fixture_result(run, j).status == MUSTER_OK) {
                expect_word(buffer, j, j + 1);
                continue;
            }
            assert_int_equal(fixture_result(run, j).status, MUSTER_LAUNCH_FAILED);
            FAILS(MUSTER_DATA_UNDEFINED, "",
                  muster_buffer_acquire(buffer, (uint64_t)j * RANGE, WORDS * 4, MUSTER_READ, fixture_wait_ns, &pointer,
                                        &reported));
            failed++;
        }
        assert_int_equal(failed, bad);
        muster_device_stats stats = stats_of(&fixture, 0);
        assert_true(stats.branch_bursts > 0 && stats.burst_jobs < JOBS);
        assert_int_equal(stats.launches, JOBS - failed);
        muster_run_destroy(run);
        fixture_close(&fixture);
    }
}

/* The second job needs more of the buffer, so its content moves, while the launch of the first waits in a burst that is refused then. */
static void a_refused_burst_is_sent_to_where_its_data_was(void **state) {
    (void)state;
    enum { MIB = 1 << 20 };
    fixture fixture;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(1,
                         "[{\"kind\": \"fail\", \"entry\": \"graph_launch\", \"device\": 0, \"nth\": 1, \"repeat\": "
                         "\"forever\", \"code\": \"INVALID_VALUE\"}]",
                         spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec, .bursts = "always", .budget_bytes = 80 * MIB};
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, 8 * MIB, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (uint32_t j = 0; j < 2; j++) {
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "affine"), 1, 64,
                             ARGS(muster_range_arg(buffer, MUSTER_READ_WRITE, 0, (1 + 2 * j) * MIB), muster_u32_arg(10),
                                  muster_u32_arg(1 + j), muster_u32_arg(64)));
        fixture_add(graph, &dispatch);
    }
    fixture_run(&fixture, graph);
    assert_int_equal(fixture_word(buffer, 63), 12);
    assert_int_equal(stats_of(&fixture, 0).bursts, 0);
    assert_int_equal(stats_of(&fixture, 0).launches, 2);
    fixture_close(&fixture);
}

/* ----------------------------------------------------------------------------------------------- what is forgotten -- */

/* A worker that stands still in the middle of enqueueing. */
typedef struct stop {
    sem_t reached, go;
} stop;

static muster_status stand_still(void *user, const muster_enqueue_context *context, muster_error *error) {
    (void)context, (void)error;
    stop *here = user;
    sem_post(&here->reached);
    sem_wait(&here->go);
    return MUSTER_OK;
}

/* Two programs of one text share a module. One of them goes while launches of the other are in a burst that has not been sent: jobs that
 * waited for memory are enqueued last, so that the worker reads its mail before it sends them. */
static void a_program_that_goes_takes_no_launch_of_its_twin(void **state) {
    (void)state;
    enum { LARGE = 2 << 20, LATER = 12 };
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 40 << 20};
    muster_program *twin;
    muster_kernel *kernel;
    fixture fixture;
    stop stop;
    sem_init(&stop.reached, 0, 0);
    sem_init(&stop.go, 0, 0);
    fixture_open_with(&fixture, 1, &config);
    OK(muster_program_from_ptx(fixture.runtime, test_kernels_ptx, 0, "twin", &twin, &reported));
    OK(muster_program_kernel(twin, "affine", &kernel, &reported));
    fixture_kernel(&fixture, "affine");
    muster_buffer *small = ranges_of(&fixture, 2), *buffer = fixture_buffer(&fixture, LARGE, NULL);
    muster_buffer *other = fixture_buffer(&fixture, LARGE, NULL);
    /* What is read fills the device. */
    uint64_t bytes = mu_ledger_available(mu_device_ledger(fixture.runtime->actors[0].device)) / LARGE * LARGE;
    void *host = calloc(1, bytes);
    assert_non_null(host);
    muster_buffer *content = fixture_buffer(&fixture, bytes, host);
    muster_graph *filling = fixture_graph(&fixture), *graph = fixture_graph(&fixture);
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(&fixture, "mix32"), 1, 32,
        ARGS(muster_range_arg(small, MUSTER_WRITE, 0, WORDS * 4), muster_buffer_arg(content, MUSTER_READ),
             muster_u32_arg(1), muster_u32_arg(0), muster_u32_arg(WORDS)));
    fixture_add(filling, &dispatch);
    muster_arg whole = muster_buffer_arg(other, MUSTER_WRITE);
    OK(muster_graph_enqueue(graph,
                            &(muster_enqueue_job){.struct_size = sizeof(muster_enqueue_job),
                                                  .enqueue = stand_still,
                                                  .user = &stop,
                                                  .arg_count = 1,
                                                  .args = &whole},
                            NULL, &reported));
    dispatch = fixture_dispatch(fixture_kernel(&fixture, "affine"), 1, 32,
                                ARGS(muster_range_arg(buffer, MUSTER_WRITE, 0, WORDS * 4), muster_u32_arg(0),
                                     muster_u32_arg(5), muster_u32_arg(WORDS)));
    fixture_add(graph, &dispatch);
    dispatch = fixture_dispatch(fixture_kernel(&fixture, "mix32"), 1, 32,
                                ARGS(muster_range_arg(buffer, MUSTER_WRITE, RANGE, WORDS * 4),
                                     muster_range_arg(small, MUSTER_READ, RANGE, WORDS * 4), muster_u32_arg(1),
                                     muster_u32_arg(0), muster_u32_arg(WORDS)));
    fixture_add(graph, &dispatch);
    uint32_t expected = 5;
    for (uint32_t j = 0; j < LATER; j++) {
        add(&fixture, graph, buffer, 0, 3, j);
        expected = expected * 3 + j;
    }
    fixture_run(&fixture, filling);
    fixture_hold(&fixture, 0, true);
    uint64_t launches = stats_of(&fixture, 0).launches, deadline_ns = mu_deadline_ns(fixture_wait_ns);
    muster_run *first = fixture_submit(&fixture, filling);
    while (stats_of(&fixture, 0).launches == launches && mu_now_ns() < deadline_ns) sched_yield();
    muster_run *run = fixture_submit(&fixture, graph);
    while (stats_of(&fixture, 0).admission_waits < 3 && mu_now_ns() < deadline_ns) sched_yield();
    assert_int_equal(stats_of(&fixture, 0).admission_waits, 3);
    fixture_hold(&fixture, 0, false);
    sem_wait(&stop.reached);
    muster_program_destroy(twin);
    sem_post(&stop.go);
    OK(muster_run_wait(first, fixture_wait_ns, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    expect_word(buffer, 0, expected);
    fixture_close(&fixture);
    free(host);
    sem_destroy(&stop.go);
    sem_destroy(&stop.reached);
}

/* --------------------------------------------------------------------------------------------------- what is kept -- */

/* The device stands still while a graph is submitted, so that it is cut up as it was the last time: then its nodes hold what they are
 * given, and only what was changed goes to the driver. */
static void a_graph_submitted_again_is_encoded_once(void **state) {
    (void)state;
    enum { JOBS = 300, RUNS = 12 };
    for (int chained = 0; chained <= 1; chained++) {
        fixture fixture;
        fixture_open(&fixture, 1);
        muster_buffer *buffer = ranges_of(&fixture, JOBS);
        muster_graph *graph = fixture_graph(&fixture);
        for (uint32_t j = 0; j < JOBS; j++) add(&fixture, graph, buffer, chained ? 0 : j, 3, j);
        uint64_t updates[RUNS] = {0};
        for (int r = 0; r < RUNS; r++) {
            uint64_t before = counter(&fixture, "burst_updates");
            uint32_t term = 4242;
            for (uint32_t j = 0; r == RUNS - 1 && j < 10; j++)
                OK(muster_graph_set_argument(graph, 100 + j, 2, &term, sizeof term, &reported));
            run_held(&fixture, graph, JOBS);
            updates[r] = counter(&fixture, "burst_updates") - before;
        }
        /* What one burst serves twice in a run is given anew; and how independent jobs are cut up follows from what they are measured to
         * take, which on a simulator is its own speed. */
        uint64_t fewest = JOBS;
        for (int r = 1; r < RUNS - 1; r++)
            if (updates[r] < fewest) fewest = updates[r];
        assert_true(updates[0] > 0);
        assert_true(fewest < JOBS / 2);
        assert_true(updates[RUNS - 1] >= 10 && (!chained || updates[RUNS - 1] < JOBS / 2));
        fixture_close(&fixture);
    }
}

/* Graphs built anew over buffers of their own, in turns: a burst is chosen that holds the same buffers, and there are soon enough of them. */
static void graphs_over_the_same_buffers_find_bursts_that_hold_them(void **state) {
    (void)state;
    enum { JOBS = 256, SETS = 5, ROUNDS = 40 };
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffers[SETS];
    for (uint32_t s = 0; s < SETS; s++) buffers[s] = ranges_of(&fixture, JOBS);
    uint64_t fewest = UINT64_MAX;
    for (uint32_t r = 1; r <= ROUNDS; r++) {
        uint64_t before = counter(&fixture, "burst_updates");
        for (uint32_t s = 0; s < SETS; s++) {
            muster_graph *graph = fixture_graph(&fixture);
            for (uint32_t j = 0; j < JOBS; j++) add(&fixture, graph, buffers[s], j, 3, j);
            run_held(&fixture, graph, JOBS);
            muster_graph_destroy(graph);
        }
        uint64_t updates = counter(&fixture, "burst_updates") - before;
        if (updates < fewest) fewest = updates;
    }
    assert_true(fewest < SETS * JOBS / 3);
    fixture_close(&fixture);
}

/* Sixteen shapes of launch in random order, independent: each goes to a node of its shape. */
static void mixed_launches_find_nodes_of_their_kind(void **state) {
    (void)state;
    enum { JOBS = 2048, RUNS = 6 };
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = ranges_of(&fixture, JOBS);
    uint64_t fewest = JOBS;
    random_state = 9;
    for (int r = 0; r < RUNS; r++) {
        muster_graph *graph = fixture_graph(&fixture);
        for (uint32_t j = 0; j < JOBS; j++) add_wide(&fixture, graph, buffer, j, 1, j, 32 * (1 + below(16)));
        uint64_t before = counter(&fixture, "burst_reshapes"), before_jobs = counter(&fixture, "burst_jobs");
        run_held(&fixture, graph, JOBS);
        uint64_t reshapes = counter(&fixture, "burst_reshapes") - before;
        if (reshapes < fewest) fewest = reshapes;
        assert_true(counter(&fixture, "burst_jobs") - before_jobs > JOBS * 9 / 10);
        muster_graph_destroy(graph);
    }
    for (uint32_t j = 0; j < JOBS; j++) expect_word(buffer, j, RUNS * j);
    /* Once there are enough of each kind in the bursts; any that is made meanwhile begins empty. */
    assert_true(fewest < JOBS / 2); /* 15 of 16 without */
    fixture_close(&fixture);
}

/* ------------------------------------------------------------------------------------------------- what serves best -- */

/* As if all kinds had been made. */
static void fill_pool(mu_burst_pool *pool) {
    memset(pool, 0, sizeof *pool);
    for (int k = 0; k < MU_BURST_KINDS; k++) pool->kinds[k].count = 1;
}

static uint32_t wanted_kinds(const mu_burst_pool *pool) {
    uint32_t count = 0;
    for (int k = 0; k < MU_BURST_KINDS; k++) count += pool->kinds[k].wanted;
    return count;
}

typedef struct choice {
    uint32_t count, ns, fit;
    bool more;
    uint32_t branches, length; /* 0: a chain, or nothing */
} choice;

static void expect_choices(mu_burst_pool *pool, const choice *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const choice *c = &cases[i];
        mu_burst_kind *kind = mu_burst_pool_branches(pool, c->count, c->ns, c->fit, c->more);
        if (c->branches == 0) {
            assert_null(kind);
            continue;
        }
        assert_non_null(kind);
        assert_int_equal(mu_burst_kind_branches(pool, kind), c->branches);
        assert_int_equal(mu_burst_kind_capacity(pool, kind), c->branches * c->length);
    }
    assert_int_equal(wanted_kinds(pool), 0);
}

static void kinds_in_launch_order_are_chosen_by_their_size(void **state) {
    (void)state;
    static mu_burst_pool pool;
    fill_pool(&pool);
    pool.launch_order = true;
    static const choice cases[] = {
        {64, 20000, 1000, false, 4, 16}, /* long and small */
        {64, 0, 1, false, 4, 16},        /* nobody knows */
        {100, 0, 1, false, 4, 16},       {255, 0, 1, true, 4, 32},
        {256, 0, 1, true, 8, 32},        {256, 20000, 1000, false, 8, 32},
        {32, 0, 1, true, 4, 8},          {31, 0, 1, true, 1, 16},
        {16, 0, 1, true, 1, 16},         {8, 0, 1, false, 1, 8},
        {3, 0, 1, false, 1, 2},          {2, 0, 1, false, 1, 2},
        {1, 50000, 1000, true, 0, 0},    {8, 50000, 1000, true, 1, 8},
        {2, 50000, 1000, true, 1, 2}, /* two long ones, and others later */
        {15, 0, 1, true, 0, 0},       /* few short ones: a chain goes on with what follows */
        {2, 0, 1, true, 0, 0},           {4, 50000, 1, true, 0, 0}, /* one fills the device */
    };
    expect_choices(&pool, cases, sizeof cases / sizeof cases[0]);
    /* What serves best when nothing is known serves best whatever the kernels take, unless a few fill the device. */
    for (uint32_t count = 1; count <= 256; count++)
        for (int more = 0; more <= 1; more++) {
            mu_burst_kind *kind = mu_burst_pool_branches(&pool, count, 0, 1, more);
            for (uint32_t ns = 1; kind && ns < 10000000; ns *= 7)
                for (uint32_t fit = 16; fit <= 1024; fit *= 2)
                    assert_ptr_equal(mu_burst_pool_branches(&pool, count, ns, fit, more), kind);
        }
    for (int i = 0; i < 200; i++) {
        mu_burst_kind *kind = mu_burst_pool_any(&pool, 16, true);
        assert_non_null(kind);
        assert_int_equal(mu_burst_kind_branches(&pool, kind), 1);
    }
}

/* A number that no burst has exactly: all together in a larger one, when that is quicker than two bursts in turn. */
static void bursts_are_rounded_up_for_long_kernels(void **state) {
    (void)state;
    static mu_burst_pool pool;
    fill_pool(&pool);
    pool.launch_order = true;
    static const uint32_t cases[][4] = {
        /* count, ns, fit; capacity, 0: none */
        {100, 100000, 1000, 128},  {48, 100000, 1000, 64}, {65, 200000, 1000, 128},
        {129, 1000000, 1000, 0}, /* 128 run together at most */
        {150, 1000000, 1000, 256}, {3, 20000, 1000, 4},    {65, 20000, 1000, 0},
        {100, 3000, 1000, 0},      {63, 5000, 1000, 64},   {100, 100000, 1, 0}, /* one after the other in any case */
        {256, 100000, 1000, 0},    {300, 100000, 1000, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mu_burst_kind *kind = mu_burst_pool_rounded(&pool, cases[i][0], cases[i][1], cases[i][2]);
        assert_int_equal(kind ? mu_burst_kind_capacity(&pool, kind) : 0, cases[i][3]);
    }
    /* What is exact already stays so. */
    static const uint32_t exact[] = {1, 2, 4, 8, 16, 32, 64, 128};
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++)
        for (uint32_t ns = 3000; ns < 100000000; ns *= 10)
            assert_null(mu_burst_pool_rounded(&pool, exact[i], ns, 1000));
    pool.launch_order = false;
    assert_null(mu_burst_pool_rounded(&pool, 100, 100000, 1000));
}

static void kinds_are_chosen_by_what_they_cost(void **state) {
    (void)state;
    static mu_burst_pool pool;
    fill_pool(&pool);
    assert_null(mu_burst_pool_chain(&pool, 1));
    static const uint32_t limits[][2] = {{2, 2}, {3, 2}, {31, 16}, {32, 32}, {127, 64}, {128, 128}, {100000, 128}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        assert_int_equal(mu_burst_kind_capacity(&pool, mu_burst_pool_chain(&pool, limits[i][0])), limits[i][1]);
    static const choice cases[] = {
        {64, 20000, 1000, false, 32, 2},  /* long and small: side by side, as far as branches are worth their launch */
        {256, 20000, 1000, false, 32, 8}, /* more of them */
        {64, 20000, 1, false, 0, 0},      /* long, and one fills the device */
        {256, 1, 1000, true, 8, 32},      /* nothing but launching */
        {128, 1, 1000, false, 4, 32},     /**/
        {8, 50000, 1000, false, 8, 1},    /* a few long ones */
        {2, 50000, 1000, false, 2, 1},    /**/
        {2, 1, 1000, false, 0, 0},        /* two short ones */
        {16, 1, 1000, true, 0, 0},        /* a chain goes on with what follows */
        {1, 50000, 1000, true, 0, 0},
    };
    expect_choices(&pool, cases, sizeof cases / sizeof cases[0]);
    /* Where the best was not made, it is asked for, and another serves meanwhile. */
    mu_burst_kind *best = mu_burst_pool_branches(&pool, 64, 20000, 1000, false);
    best->count = 0;
    mu_burst_kind *second = mu_burst_pool_branches(&pool, 64, 20000, 1000, false);
    assert_non_null(second);
    assert_ptr_not_equal(second, best);
    assert_true(best->wanted);
    assert_int_equal(wanted_kinds(&pool), 1);
    memset(&pool, 0, sizeof pool);
    assert_null(mu_burst_pool_chain(&pool, 1000));
    assert_null(mu_burst_pool_branches(&pool, 256, 1, 1000, true));
    assert_null(mu_burst_pool_any(&pool, 256, true));
}

/* In launch order nothing needs to be known: the first time, too, they are one burst, and nothing is measured. */
static void independent_launches_are_one_burst_at_once(void **state) {
    (void)state;
    static const uint32_t counts[] = {2, 4, 8, 16, 32, 64};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        fixture fixture;
        open_preset(&fixture, "H200", NULL, 1, 0);
        muster_buffer *buffer = ranges_of(&fixture, counts[c]);
        muster_graph *graph = fixture_graph(&fixture);
        for (uint32_t j = 0; j < counts[c]; j++) add(&fixture, graph, buffer, j, 1, j);
        run_held(&fixture, graph, counts[c]);
        muster_device_stats stats = stats_of(&fixture, 0);
        assert_int_equal(stats.bursts, 1);
        assert_int_equal(stats.branch_bursts, 1);
        assert_int_equal(stats.burst_jobs, counts[c]);
        assert_null(fixture.runtime->actors[0].bursts.pool.samples[0].begin);
        for (uint32_t j = 0; j < counts[c]; j++) expect_word(buffer, j, j);
        fixture_close(&fixture);
    }
}

/* Wide layers with one job between them: what a chain of the narrow part became says nothing about the wide ones, which are bursts of their
 * own from the first run. */
static void a_join_between_layers_leaves_them_whole(void **state) {
    (void)state;
    enum { WIDTH = 32, LAYERS = 10, RUNS = 3 };
    fixture fixture;
    open_preset(&fixture, "H200", NULL, 1, 0);
    muster_buffer *buffer = ranges_of(&fixture, WIDTH + 1);
    muster_graph *graph = fixture_graph(&fixture);
    muster_job join = {0};
    for (uint32_t l = 0; l < LAYERS; l++) {
        muster_job jobs[WIDTH];
        for (uint32_t j = 0; j < WIDTH; j++) {
            jobs[j] = add(&fixture, graph, buffer, j, 5, l + j);
            if (l) OK(muster_graph_after(graph, jobs[j], join, &reported));
        }
        join = add(&fixture, graph, buffer, WIDTH, 3, l);
        for (uint32_t j = 0; j < WIDTH; j++) OK(muster_graph_after(graph, join, jobs[j], &reported));
    }
    for (int r = 0; r < RUNS; r++) run_held(&fixture, graph, LAYERS * (WIDTH + 1));
    muster_device_stats stats = stats_of(&fixture, 0);
    assert_int_equal(stats.branch_bursts, LAYERS * RUNS);
    assert_true(stats.burst_jobs >= WIDTH * LAYERS * RUNS);
    for (uint32_t j = 0; j <= WIDTH; j++) {
        uint32_t value = 0;
        for (int r = 0; r < RUNS; r++)
            for (uint32_t l = 0; l < LAYERS; l++) value = j < WIDTH ? value * 5 + l + j : value * 3 + l;
        expect_word(buffer, j, value);
    }
    fixture_close(&fixture);
}

/* Kernels that are seen to take long get bursts for all of them: in launch order one that is larger than their number, otherwise wide ones,
 * which are made while the device idles. Of these most threads have nothing to do but be simulated, in real time. */
static void find_out_long_kernels(const char *preset, uint32_t jobs, uint32_t blocks) {
    enum { THREADS = 256 };
    fixture fixture;
    open_preset(&fixture, preset, NULL, 1, 0);
    muster_buffer *buffer = ranges_of(&fixture, jobs);
    muster_graph *graph = fixture_graph(&fixture);
    for (uint32_t j = 0; j < jobs; j++) {
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "affine"), blocks, THREADS,
                             ARGS(muster_range_arg(buffer, MUSTER_READ_WRITE, (uint64_t)j * RANGE, WORDS * 4),
                                  muster_u32_arg(1), muster_u32_arg(j), muster_u32_arg(WORDS)));
        fixture_add(graph, &dispatch);
    }
    uint32_t runs = 0;
    uint64_t bursts = 0, sent = 0;
    /* At last all go out as one burst. */
    for (; (bursts != 1 || sent != jobs) && runs < 2000; runs++) {
        uint64_t before = counter(&fixture, "bursts"), jobs_before = counter(&fixture, "burst_jobs");
        fixture_run(&fixture, graph);
        bursts = counter(&fixture, "bursts") - before;
        sent = counter(&fixture, "burst_jobs") - jobs_before;
    }
    assert_int_equal(bursts, 1);
    assert_int_equal(sent, jobs);
    for (uint32_t j = 0; j < jobs; j++) expect_word(buffer, j, runs * j);
    fixture_close(&fixture);
}

static void long_kernels_are_found_out(void **state) {
    (void)state;
    find_out_long_kernels("A100", 64, 32);
    find_out_long_kernels("H200", 50, 8); /* 132 fit together */
    find_out_long_kernels("H200", 100, 8);
}

static muster_status cut_short(mu_actor *actor, void *user, muster_error *error) {
    (void)error;
    const uint32_t *became = user;
    actor->bursts.chain_reach = actor->bursts.plan_reach = (mu_burst_reach){*became, 0};
    return MUSTER_OK;
}

/* Whatever the last burst became that had to be flushed: a backlog after it goes out in few, and side by side where it may. */
static void bursts_that_were_cut_short_grow_again(void **state) {
    (void)state;
    enum { JOBS = 1000, MOST = 40 };
    static const char *const presets[] = {"H200", "A100"};
    for (int p = 0; p < 2; p++) {
        fixture fixture;
        open_preset(&fixture, presets[p], NULL, 1, 0);
        muster_buffer *buffer = ranges_of(&fixture, JOBS);
        muster_graph *independent = fixture_graph(&fixture), *chain = fixture_graph(&fixture);
        for (uint32_t j = 0; j < JOBS; j++) add(&fixture, independent, buffer, j, 1, 1);
        for (uint32_t j = 0; j < JOBS; j++) add(&fixture, chain, buffer, 0, 1, 1);
        for (uint32_t became = 1; became <= MU_BURST_LONGEST; became += 1 + became / 4) {
            muster_graph *const graphs[] = {independent, chain};
            for (int g = 0; g < 2; g++) {
                OK(mu_actor_call(fixture.runtime, 0, cut_short, &became, &reported));
                muster_device_stats before = stats_of(&fixture, 0);
                run_held(&fixture, graphs[g], JOBS);
                muster_device_stats after = stats_of(&fixture, 0);
                assert_in_range(after.bursts - before.bursts, 1, MOST);
                assert_true(after.burst_jobs - before.burst_jobs >= JOBS - MOST);
                uint64_t side_by_side = after.branch_bursts - before.branch_bursts;
                if (p == 0 && g == 0) assert_true(2 * side_by_side >= after.bursts - before.bursts);
            }
        }
        fixture_close(&fixture);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_backlog_of_independent_jobs_is_sent_in_branches),
        cmocka_unit_test(dependent_jobs_are_sent_in_chains),
        cmocka_unit_test(modes_are_what_they_say),
        cmocka_unit_test(every_mode_keeps_the_order_of_dependent_jobs),
        cmocka_unit_test(a_layer_does_not_share_branches_with_the_next),
        cmocka_unit_test(a_refused_burst_is_sent_one_by_one),
        cmocka_unit_test(a_refused_burst_is_sent_to_where_its_data_was),
        cmocka_unit_test(a_program_that_goes_takes_no_launch_of_its_twin),
        cmocka_unit_test(a_graph_submitted_again_is_encoded_once),
        cmocka_unit_test(graphs_over_the_same_buffers_find_bursts_that_hold_them),
        cmocka_unit_test(mixed_launches_find_nodes_of_their_kind),
        cmocka_unit_test(kinds_are_chosen_by_what_they_cost),
        cmocka_unit_test(kinds_in_launch_order_are_chosen_by_their_size),
        cmocka_unit_test(a_join_between_layers_leaves_them_whole),
        cmocka_unit_test(bursts_are_rounded_up_for_long_kernels),
        cmocka_unit_test(independent_launches_are_one_burst_at_once),
        cmocka_unit_test(long_kernels_are_found_out),
        cmocka_unit_test(bursts_that_were_cut_short_grow_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
