/* A device is lost at its nth driver call while random graphs run, for every n: every run ends, nothing leaks, a job that says OK
 * has done what the sequential model says, and what is acquired is right byte by byte; and when the graphs are over, the other
 * devices do new work as if nothing had been.
 *
 * The model carries each job out in the order of submission, or, when the job failed, makes what it writes undefined. So it knows
 * of every byte whether anybody may see it. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "device/sim/sim.h"
#include "tests/scheduler/fixture.h"

enum {
    BUFFERS = 6,
    GIVEN = 5 /* only read: the host keeps it */,
    WORDS = 96,
    GRAPHS = 3,
    JOBS = 24,
    RUNS = 5,
    HANG_SECONDS = MU_TSAN || MU_ASAN ? 240 : 60
};

typedef enum op { AFFINE, SHARDED, COPY, FILL } op;

typedef struct job {
    op op;
    uint32_t buffer, low, words; /* written; read too by AFFINE and SHARDED */
    uint32_t source, from;       /* COPY */
    uint32_t factor, term;       /* FILL: the pattern is `term` */
    int pin;
} job;

/* Vague: a sharded job failed, of which some parts may have succeeded. */
typedef enum content { DEFINED, VAGUE, UNDEFINED } content;

typedef struct model {
    uint32_t words[BUFFERS][WORDS];
    content content[BUFFERS][WORDS];
} model;

static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static uint32_t below(uint64_t *state, uint32_t bound) { return (uint32_t)(draw(state) >> 32) % bound; }

static void make_jobs(uint64_t *state, int devices, job jobs[JOBS]) {
    for (int j = 0; j < JOBS; j++) {
        job *one = &jobs[j];
        *one = (job){.op = (op)below(state, 4), .pin = -1, .buffer = below(state, GIVEN)};
        bool whole = below(state, 2);
        one->low = whole ? 0 : 8 * below(state, WORDS / 16);
        one->words = whole ? WORDS : 8 + 8 * below(state, WORDS / 16);
        one->source = (one->buffer + 1 + below(state, BUFFERS - 1)) % BUFFERS;
        one->from = below(state, WORDS - one->words + 1);
        one->factor = 2 * below(state, 1000) + 1;
        one->term = (uint32_t)draw(state);
        if (one->op == AFFINE && below(state, 3) == 0) one->pin = (int)below(state, (uint32_t)devices);
    }
}

static void add_job(const fixture *fixture, muster_graph *graph, muster_buffer *const *buffers, const job *one) {
    muster_buffer *buffer = buffers[one->buffer];
    uint32_t threads = 16, blocks = (one->words + threads - 1) / threads;
    if (one->op == FILL) {
        OK(muster_graph_fill(graph, buffer, 4 * one->low, 4 * one->words, one->term, 4, NULL, &reported));
        return;
    }
    if (one->op == COPY) {
        OK(muster_graph_copy(graph, buffer, 4 * one->low, buffers[one->source], 4 * one->from, 4 * one->words, NULL,
                             &reported));
        return;
    }
    muster_arg range = muster_range_arg(buffer, MUSTER_READ_WRITE, 4 * one->low, 4 * one->words);
    muster_arg count = muster_u32_arg(one->words);
    if (one->op == SHARDED) {
        range = muster_block_cut(range, 4 * threads);
        count = muster_shard_count_arg(threads, one->words, 4);
    }
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "affine"), blocks, threads,
                         ARGS(range, muster_u32_arg(one->factor), muster_u32_arg(one->term), count));
    if (one->op == SHARDED) dispatch.flags = MUSTER_DISPATCH_SHARDED;
    if (one->pin >= 0) dispatch.pin_device = 1, dispatch.device = one->pin;
    fixture_add(graph, &dispatch);
}

/* Carries the job out, if it succeeded. The worst of what it read. */
static content apply(model *m, const job *one, bool ok) {
    content worst = DEFINED;
    for (uint32_t i = 0; i < one->words; i++) {
        uint32_t *word = &m->words[one->buffer][one->low + i];
        content *known = &m->content[one->buffer][one->low + i];
        content input = DEFINED;
        switch (one->op) {
            case AFFINE:
            case SHARDED:
                input = *known;
                *word = *word * one->factor + one->term;
                break;
            case COPY:
                input = m->content[one->source][one->from + i];
                *word = m->words[one->source][one->from + i];
                break;
            case FILL: *word = one->term; break;
        }
        *known = ok ? input : one->op == SHARDED ? VAGUE : UNDEFINED;
        if (worst < input) worst = input;
    }
    return worst;
}

/* What is tried at the moment. A run that hangs ends the whole test, saying which. */
static char trying[256];

static void hangs(int signal) {
    (void)signal;
    static const char words[] = "hangs: ";
    if (write(STDERR_FILENO, words, sizeof words - 1) < 0 || write(STDERR_FILENO, trying, strlen(trying)) < 0 ||
        write(STDERR_FILENO, "\n", 1) < 0)
        _exit(3);
    _exit(2);
}

/* Everything that is acquired is what the model says. A failure to acquire is for a loss only. */
static void compare(muster_buffer *const *buffers, model *m, bool must) {
    for (int b = 0; b < BUFFERS; b++) {
        void *pointer;
        for (uint32_t i = 0; i < WORDS; i += 8) {
            muster_status status =
                muster_buffer_acquire(buffers[b], 4 * i, 32, MUSTER_READ, fixture_wait_ns, &pointer, &reported);
            if (status && (must || b == GIVEN || status != MUSTER_DATA_UNDEFINED))
                fail_msg("%s: acquiring buffer %d: %s", trying, b, reported.message);
            for (uint32_t w = i; w < i + 8; w++) {
                if (status) m->content[b][w] = UNDEFINED;
                if (m->content[b][w] == UNDEFINED && !status)
                    fail_msg("%s: word %u of buffer %d could be acquired", trying, w, b);
                if (status || m->content[b][w] != DEFINED) continue;
                uint32_t found = ((uint32_t *)pointer)[w - i];
                if (found != m->words[b][w])
                    fail_msg("%s: word %u of buffer %d is %u, not %u", trying, w, b, found, m->words[b][w]);
            }
            if (!status) OK(muster_buffer_release(buffers[b], pointer, &reported));
        }
    }
}

typedef struct world {
    fixture fixture;
    muster_buffer *buffers[BUFFERS];
    uint32_t host[BUFFERS][WORDS]; /* of those that start with content */
    job jobs[GRAPHS][JOBS];
    muster_graph *graphs[GRAPHS];
    model model;
} world;

static bool check_run(world *w, muster_run *run, const job *jobs) {
    muster_status whole = muster_run_wait(run, fixture_wait_ns, &reported);
    if (whole == MUSTER_TIMEOUT) fail_msg("%s: a run does not end", trying);
    bool all = true;
    for (muster_job j = 0; j < JOBS; j++) {
        muster_status status = fixture_result(run, j).status;
        all &= status == MUSTER_OK;
        if (status != MUSTER_OK && status != MUSTER_DEVICE_LOST && status != MUSTER_PREDECESSOR_FAILED &&
            status != MUSTER_DATA_UNDEFINED)
            fail_msg("%s: job %u ended as %s: %s", trying, j, muster_status_name(status), reported.message);
        content read = apply(&w->model, &jobs[j], status == MUSTER_OK);
        if (status == MUSTER_OK && read == UNDEFINED) fail_msg("%s: job %u read what was lost, and says OK", trying, j);
    }
    if (all != (whole == MUSTER_OK))
        fail_msg("%s: a run of which not all jobs succeeded says OK, or the other way", trying);
    return all;
}

static void run_all(world *w, uint64_t *state) {
    muster_run *runs[RUNS];
    uint32_t graphs[RUNS];
    uint32_t submitted = 0;
    for (; submitted < RUNS; submitted++) {
        graphs[submitted] = below(state, GRAPHS);
        muster_status status =
            muster_submit(w->fixture.runtime, w->graphs[graphs[submitted]], &runs[submitted], &reported);
        if (status) fail_msg("%s: submit: %s", trying, reported.message);
    }
    for (uint32_t r = 0; r < submitted; r++) {
        check_run(w, runs[r], w->jobs[graphs[r]]);
        muster_run_destroy(runs[r]);
    }
    compare(w->buffers, &w->model, false);
}

static bool is_lost(const world *w, int device) {
    muster_device_info info = {.struct_size = sizeof info};
    OK(muster_device_get_info(w->fixture.runtime, device, &info, &reported));
    return info.lost;
}

/* New work of which nothing is pinned. It must succeed if the device was lost before. */
static void run_later(world *w, uint64_t *state, int devices, bool must) {
    muster_graph *graph = fixture_graph(&w->fixture);
    job jobs[JOBS];
    make_jobs(state, devices, jobs);
    for (int j = 0; j < JOBS; j++) {
        if (j < GIVEN) jobs[j] = (job){.op = FILL, .buffer = (uint32_t)j, .words = WORDS, .term = (uint32_t)j};
        jobs[j].pin = -1;
        add_job(&w->fixture, graph, w->buffers, &jobs[j]);
    }
    muster_run *run = fixture_submit(&w->fixture, graph);
    if (!check_run(w, run, jobs) && must) {
        muster_run_wait(run, 0, &reported);
        fail_msg("%s: later work fails: %s", trying, reported.message);
    }
    muster_run_destroy(run);
    compare(w->buffers, &w->model, must);
}

static bool is_given(int buffer) { return buffer < 2 || buffer == GIVEN; }

static bool open_world(world *w, int devices, const char *spec, uint64_t *state) {
    static const char *const policies[] = {"locality", "least-loaded", "round-robin", "random"};
    muster_config config = {.struct_size = sizeof config,
                            .driver = "sim",
                            .sim = spec,
                            .placement = policies[below(state, 4)],
                            .cache_dir = ""};
    memset(w, 0, sizeof *w);
    muster_error error;
    muster_status status = muster_runtime_create(&config, &w->fixture.runtime, &error);
    if (status == MUSTER_TIMEOUT || status == MUSTER_INTERNAL) fail_msg("%s: create: %s", trying, error.message);
    if (status) return false; /* lost that early, for whatever reason its probes gave */
    OK(muster_program_from_ptx(w->fixture.runtime, test_kernels_ptx, 0, "kernels", &w->fixture.program, &reported));
    for (int b = 0; b < BUFFERS; b++) {
        for (int i = 0; i < WORDS; i++) {
            w->model.words[b][i] = is_given(b) ? (uint32_t)draw(state) : 0;
            if (is_given(b)) w->host[b][i] = w->model.words[b][i];
        }
        w->buffers[b] = fixture_buffer(&w->fixture, sizeof w->host[0], is_given(b) ? w->host[b] : NULL);
    }
    for (int g = 0; g < GRAPHS; g++) {
        w->graphs[g] = fixture_graph(&w->fixture);
        make_jobs(state, devices, w->jobs[g]);
        for (int j = 0; j < JOBS; j++) add_job(&w->fixture, w->graphs[g], w->buffers, &w->jobs[g][j]);
    }
    return true;
}

/* Whether the loss struck. */
static bool lose_at(int devices, int victim, uint64_t nth) {
    char spec[FIXTURE_SPEC_BYTES], plan[128];
    uint64_t state = nth * 31 + (uint64_t)devices;
    snprintf(plan, sizeof plan, "[{\"kind\": \"lose\", \"entry\": \"any\", \"device\": %d, \"nth\": %llu}]", victim,
             (unsigned long long)nth);
    snprintf(spec, sizeof spec, "{\"devices\": %d, \"seed\": %llu, \"peers\": %s, \"faults\": %s}", devices,
             (unsigned long long)nth, nth % 3 ? "\"all\"" : "\"none\"", plan);
    snprintf(trying, sizeof trying, "%d devices, device %d is lost at its call %llu", devices, victim,
             (unsigned long long)nth);
    alarm(HANG_SECONDS);
    fixture_count_memory();
    world *w = malloc(sizeof *w);
    assert_non_null(w);
    bool struck = true;
    if (open_world(w, devices, spec, &state)) {
        run_all(w, &state);
        struck = is_lost(w, victim);
        run_later(w, &state, devices, struck);
        if (!struck) struck = is_lost(w, victim);
        run_later(w, &state, devices, struck);
        for (int d = 0; d < devices; d++)
            if (d != victim && is_lost(w, d)) fail_msg("%s: device %d is lost too", trying, d);
        fixture_close(&w->fixture);
    }
    free(w);
    long left = fixture_live_blocks();
    if (left) fail_msg("%s: %ld blocks are left", trying, left);
    return struck;
}

static void lose_at_every_call(int devices, uint64_t step) {
    uint64_t struck = 0, nth = 1;
    /* The first thousand calls and some more open the device. */
    for (uint64_t misses = 0; misses < 3; nth += nth < 1200 ? 97 : step + nth / 200) {
        bool one = lose_at(devices, (int)(nth % (uint64_t)devices), nth);
        struck += one;
        misses = one ? 0 : misses + 1; /* what is called how often depends on the moment */
    }
    assert_true(struck > 8);
}

enum { SLOW = MU_TSAN || MU_ASAN ? 10 : 1 };

static void one_of_two(void **state) {
    (void)state;
    lose_at_every_call(2, 13 * SLOW);
}

static void one_of_three(void **state) {
    (void)state;
    lose_at_every_call(3, 23 * SLOW);
}

static void one_of_eight(void **state) {
    (void)state;
    lose_at_every_call(8, 61 * SLOW);
}

static int prepare(void **state) {
    (void)state;
    return signal(SIGALRM, hangs) == SIG_ERR ? -1 : 0;
}

int main(int argc, char **argv) {
    /* By hand: devices, victim, nth. */
    if (argc == 4) {
        prepare(NULL);
        for (int i = 0; i < 50; i++) lose_at(atoi(argv[1]), atoi(argv[2]), strtoull(argv[3], NULL, 10));
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_two),
        cmocka_unit_test(one_of_three),
        cmocka_unit_test(one_of_eight),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
