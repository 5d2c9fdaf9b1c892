/* Arguments that are cut with a pitch: columns of matrices, against plain loops over whole buffers with all that lies between the columns.
 *
 *     pitch_test [--driver sim|cuda] [--actors A] [--seed S] [--scenarios N]
 *
 * With --driver cuda on all devices there are, A actors on each; skipped, visibly, where there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/sanitizer.h"
#include "device/sim/sim.h"
#include "device/telemetry.h"
#include "scheduler/graph/graph.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/random_options.h"

extern const char test_pitch_kernels_ptx[];

enum { MIB = 1 << 20, MOST_WORDS = 20000 };

enum { SCENARIOS = MU_TSAN || MU_ASAN ? 3 : 12 };

static random_options options = {.driver = "sim", .actors = 1, .seed = 1, .count = SCENARIOS};

static bool on_cuda(void) { return strcmp(options.driver, "cuda") == 0; }

typedef struct machine {
    fixture fixture;
    muster_kernel *columns, *rows;
} machine;

/* On simulated devices, or on those there are; false: there are none. */
static bool open_machine(machine *m, uint32_t devices, const char *sim, uint64_t budget_bytes) {
    muster_program *program;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = budget_bytes, .sim = sim};
    if (on_cuda()) {
        config = (muster_config){.struct_size = sizeof config, .driver = "cuda", .actors_per_device = options.actors};
        muster_status status = muster_runtime_create(&config, &m->fixture.runtime, &reported);
        if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) return false;
        OK(status);
    } else {
        fixture_open_with(&m->fixture, devices, &config);
    }
    OK(muster_program_from_ptx(m->fixture.runtime, test_pitch_kernels_ptx, 0, "pitches", &program, &reported));
    OK(muster_program_kernel(program, "mix_columns", &m->columns, &reported));
    OK(muster_program_kernel(program, "mix_rows", &m->rows, &reported));
    return true;
}

static uint64_t random_state;
static uint32_t below(uint32_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

/* A matrix somewhere in a buffer; all in words. */
typedef struct shape {
    uint32_t offset, pitch, width, rows, words; /* words: of the buffer */
    uint32_t threads, slices;                   /* columns of a slice, and how many slices; the last may be short */
    uint32_t range_words;                       /* of the argument */
} shape;

static muster_arg range_of(const shape *s, muster_buffer *buffer, muster_access access) {
    return muster_range_arg(buffer, access, 4 * (uint64_t)s->offset, 4 * (uint64_t)s->range_words);
}
static muster_arg columns_of(const shape *s, muster_buffer *buffer, muster_access access) {
    return muster_pitch_cut(range_of(s, buffer, access), 4 * s->threads, 4 * (uint64_t)s->pitch, s->rows);
}

/* ------------------------------------------------------------------------------------------------------- the kernels -- */

typedef struct mixture {
    uint32_t before, after;
    bool keep;
} mixture;

static muster_dispatch mix_columns(const machine *m, const shape *s, muster_arg args[10], muster_buffer *out,
                                   muster_buffer *in, mixture mix, uint32_t axis) {
    args[0] = columns_of(s, out, mix.keep ? MUSTER_READ_WRITE : MUSTER_WRITE);
    args[1] = columns_of(s, in, MUSTER_READ);
    if (mix.before || mix.after)
        args[1] = muster_halo_cut(args[1], 4 * s->threads, (mix.before + s->threads - 1) / s->threads,
                                  (mix.after + s->threads - 1) / s->threads);
    args[2] = muster_u64_arg(s->pitch);
    args[3] = muster_u32_arg(s->rows);
    args[4] = muster_u32_arg(mix.before);
    args[5] = muster_u32_arg(mix.after);
    args[6] = muster_u32_arg(mix.keep);
    args[7] = muster_shard_offset_arg(s->threads, s->width, 8);
    args[8] = muster_shard_count_arg(s->threads, s->width, 8);
    args[9] = muster_u64_arg(s->width);
    muster_dispatch dispatch = fixture_dispatch(m->columns, 1, s->threads, (fixture_args){.arg = args, .count = 10});
    dispatch.grid = (muster_dim3){1, 1, 1};
    *(axis == 0 ? &dispatch.grid.x : axis == 1 ? &dispatch.grid.y : &dispatch.grid.z) = s->slices;
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    dispatch.shard_axis = axis;
    return dispatch;
}

static void model_columns(const shape *s, uint32_t *out, const uint32_t *in, mixture mix) {
    for (uint32_t row = 0; row < s->rows; row++)
        for (uint32_t x = 0; x < s->width; x++) {
            uint32_t at = s->offset + row * s->pitch + x, value = mix.keep ? out[at] : 0;
            for (int64_t k = -(int64_t)mix.before; k <= mix.after; k++)
                if (x + k >= 0 && x + k < s->width) value = value * 31 + in[at + k];
            out[at] = value * 3 + x + row * 7;
        }
}

/* Rows are contiguous; what is behind a row's width is in its slice, but not written. */
static muster_dispatch mix_rows(const machine *m, const shape *s, muster_arg args[5], muster_buffer *out,
                                muster_buffer *in) {
    args[0] = muster_block_cut(range_of(s, out, MUSTER_READ_WRITE), 4 * (uint64_t)s->pitch);
    args[1] = muster_block_cut(range_of(s, in, MUSTER_READ), 4 * (uint64_t)s->pitch);
    args[2] = muster_u64_arg(s->pitch);
    args[3] = muster_u64_arg(s->width);
    args[4] = muster_shard_offset_arg(1, s->rows, 8);
    muster_dispatch dispatch = fixture_dispatch(m->rows, s->rows, 16, (fixture_args){.arg = args, .count = 5});
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    return dispatch;
}

static void model_rows(const shape *s, uint32_t *out, const uint32_t *in) {
    for (uint32_t row = 0; row < s->rows; row++) {
        const uint32_t *from = in + s->offset + row * s->pitch;
        for (uint32_t x = 0; x < s->width; x++)
            out[s->offset + row * s->pitch + x] = from[x] * 5 + from[s->width - 1 - x] + row * 11;
    }
}

/* --------------------------------------------------------------------------------------------------- random matrices -- */

static shape draw_shape(void) {
    shape s = {.threads = 1 + below(24), .slices = 1 + below(12), .rows = 1 + below(40)};
    s.width = (s.slices - 1) * s.threads + 1 + below(s.threads);
    s.pitch = s.width + (below(3) ? below(9) : 0);
    s.offset = below(3) ? below(70) : 0;
    s.range_words = (s.rows - 1) * s.pitch + s.width;
    s.words = s.offset + s.range_words + below(20);
    return s;
}

typedef struct matrices {
    shape shape;
    muster_buffer *buffer[2];
    uint32_t model[2][MOST_WORDS];
    uint32_t *host[2]; /* NULL: Muster's */
    muster_buffer *ballast;
} matrices;

static void make_matrices(const machine *m, matrices *of, bool pressed) {
    do of->shape = draw_shape();
    while (of->shape.words > MOST_WORDS);
    uint64_t bytes = 4 * (uint64_t)of->shape.words;
    for (int i = 0; i < 2; i++) {
        for (uint32_t w = 0; w < of->shape.words; w++) of->model[i][w] = below(UINT32_MAX);
        uint32_t home = below(4);
        of->host[i] = NULL;
        if (home == 0) of->host[i] = malloc(bytes);
        if (home == 1) OK(muster_host_alloc(m->fixture.runtime, bytes, (void **)&of->host[i], &reported));
        if (of->host[i]) memcpy(of->host[i], of->model[i], bytes);
        of->buffer[i] = fixture_buffer(&m->fixture, bytes, of->host[i]);
        if (home == 2) fixture_write(of->buffer[i], 0, bytes, of->model[i]);
        if (home == 3) memset(of->model[i], 0, bytes);
        if (home == 0) of->host[i] = (uint32_t *)((uintptr_t)of->host[i] | 1); /* malloc's */
    }
    of->ballast = pressed ? fixture_buffer(&m->fixture, 40 * MIB, NULL) : NULL;
}

static void drop_matrices(const machine *m, matrices *of) {
    for (int i = 0; i < 2; i++) {
        muster_buffer_destroy(of->buffer[i]);
        uintptr_t host = (uintptr_t)of->host[i];
        if (host & 1)
            free((void *)(host & ~(uintptr_t)1));
        else if (host)
            OK(muster_host_free(m->fixture.runtime, (void *)host, &reported));
    }
    muster_buffer_destroy(of->ballast);
}

/* One job, on the graph and on the model. */
static void random_step(const machine *m, matrices *of, muster_graph *graph) {
    const shape *s = &of->shape;
    uint32_t to = below(2), from = 1 - to, what = below(10);
    muster_arg args[10];
    muster_dispatch dispatch;
    if (what < 5) {
        mixture mix = {.keep = below(2)};
        if (below(2)) mix.before = below(2 * s->threads), mix.after = below(2 * s->threads);
        dispatch = mix_columns(m, s, args, of->buffer[to], of->buffer[from], mix, below(3));
        if (below(6) == 0) args[1] = range_of(s, of->buffer[from], MUSTER_READ); /* the whole of it: from column 0 */
        bool whole = args[1].cut == MUSTER_CUT_REPLICATE;
        dispatch.max_shards = whole ? 1 : below(3) ? 0 : 1 + below(s->slices);
        if (below(8) == 0) dispatch.flags = dispatch.max_shards = 0, args[0].access = MUSTER_READ_WRITE;
        model_columns(s, of->model[to], of->model[from], mix);
        fixture_add(graph, &dispatch);
    } else if (what < 8) {
        dispatch = mix_rows(m, s, args, of->buffer[to], of->buffer[from]);
        dispatch.max_shards = below(3) ? 0 : 1 + below(s->rows);
        model_rows(s, of->model[to], of->model[from]);
        fixture_add(graph, &dispatch);
    } else if (what == 8) {
        uint32_t low = below(s->words), count = 1 + below(s->words - low), pattern = below(1000);
        OK(muster_graph_fill(graph, of->buffer[to], 4 * low, 4 * count, pattern, 4, NULL, &reported));
        for (uint32_t w = low; w < low + count; w++) of->model[to][w] = pattern;
    } else {
        uint32_t low = below(s->words), count = 1 + below(s->words - low);
        if (below(2))
            OK(muster_graph_read_back(graph, of->buffer[to], 4 * low, 4 * count, NULL, &reported));
        else
            OK(muster_graph_prefetch(graph, of->buffer[to], 4 * low, 4 * count,
                                     (int)below((uint32_t)muster_device_count(m->fixture.runtime)), NULL, &reported));
    }
    if (of->ballast && below(3) == 0) OK(muster_graph_fill(graph, of->ballast, 0, 40 * MIB, 5, 4, NULL, &reported));
}

static void check_matrix(const matrices *of, int i, uint64_t seed) {
    static uint32_t found[MOST_WORDS];
    const shape *s = &of->shape;
    fixture_read(of->buffer[i], 0, 4 * (uint64_t)s->words, found);
    for (uint32_t w = 0; w < s->words; w++)
        if (found[w] != of->model[i][w])
            fail_msg(
                "seed %llu: buffer %d, word %u (offset %u, pitch %u, width %u, rows %u, slices %u of %u) is %u, not %u",
                (unsigned long long)seed, i, w, s->offset, s->pitch, s->width, s->rows, s->slices, s->threads, found[w],
                of->model[i][w]);
}

static void random_scenario(const machine *m, bool pressed, uint64_t seed) {
    static matrices of;
    random_state = seed * 7919 + 3;
    make_matrices(m, &of, pressed);
    for (uint32_t graphs = 1 + below(4); graphs > 0; graphs--) {
        muster_graph *graph = fixture_graph(&m->fixture);
        for (uint32_t steps = 1 + below(6); steps > 0; steps--) random_step(m, &of, graph);
        fixture_run(&m->fixture, graph);
        muster_graph_destroy(graph);
        if (below(3) == 0) check_matrix(&of, (int)below(2), seed);
        if (below(3) == 0) { /* the host writes some of it */
            int i = (int)below(2);
            uint32_t low = below(of.shape.words), count = 1 + below(of.shape.words - low);
            for (uint32_t w = low; w < low + count; w++) of.model[i][w] = below(UINT32_MAX);
            fixture_write(of.buffer[i], 4 * low, 4 * count, &of.model[i][low]);
        }
    }
    check_matrix(&of, 0, seed);
    check_matrix(&of, 1, seed);
    drop_matrices(m, &of);
}

static void random_matrices_match_the_model(void **state) {
    (void)state;
    static const uint32_t devices[] = {1, 2, 3, 5, 8};
    uint64_t seed = options.seed;
    for (int d = 0; d < (on_cuda() ? 1 : 5); d++)
        for (int kind = 0; kind < (on_cuda() ? 1 : 3);
             kind++) { /* equal devices; under pressure; unequal and unconnected */
            machine m;
            char spec[FIXTURE_SPEC_BYTES];
            fixture_mixed_spec(devices[d], seed, spec);
            if (!open_machine(&m, devices[d], kind == 2 ? spec : NULL, kind == 1 ? 64 * MIB : 0)) skip();
            for (uint32_t i = 0; i < options.count; i++) random_scenario(&m, kind == 1, seed++);
            fixture_close(&m.fixture);
        }
}

/* ------------------------------------------------------------------------------------------------------ what it costs -- */

static uint64_t sent_to_devices(const machine *m) {
    uint64_t bytes = 0;
    for (int d = 0; d < muster_device_count(m->fixture.runtime); d++)
        bytes += atomic_load(&mu_device_get_counters(m->fixture.runtime->actors[d].device)->bytes_to_device);
    return bytes;
}

static uint64_t sent_home(const machine *m) {
    uint64_t bytes = 0;
    for (int d = 0; d < muster_device_count(m->fixture.runtime); d++)
        bytes += atomic_load(&mu_device_get_counters(m->fixture.runtime->actors[d].device)->bytes_to_host);
    return bytes;
}

static uint64_t copies_of(const machine *m) {
    static const char *const entries[] = {"memcpy_htod_async", "memcpy_dtoh_async", "memcpy_dtod_async",
                                          "memcpy_peer_async", "memcpy_2d_async",   "memset_d8_async"};
    uint64_t calls = 0;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        calls += mu_sim_calls(fixture_driver(&m->fixture), entries[i]);
    return calls;
}

/* A column of a matrix of 4,096 rows for each of eight devices: written along x, then read along y, and home. */
static void check_many_rows(bool pinned) {
    enum { ROWS = 4096, DEVICES = 8, THREADS = 4, SLICES = 8 };
    const shape s = {.pitch = 40,
                     .width = 31,
                     .rows = ROWS,
                     .words = 40 * ROWS,
                     .threads = THREADS,
                     .slices = SLICES,
                     .range_words = 40 * ROWS - 9};
    machine m;
    if (!open_machine(&m, DEVICES, NULL, 0)) skip();
    uint32_t *model[2], *host = NULL;
    for (int i = 0; i < 2; i++) {
        model[i] = malloc(4 * s.words);
        for (uint32_t w = 0; w < s.words; w++) model[i][w] = w * (i + 3);
    }
    if (pinned) OK(muster_host_alloc(m.fixture.runtime, 4 * s.words, (void **)&host, &reported));
    if (!pinned) host = malloc(4 * s.words);
    memcpy(host, model[0], 4 * s.words);
    muster_buffer *in = fixture_buffer(&m.fixture, 4 * s.words, host);
    muster_buffer *out = fixture_buffer(&m.fixture, 4 * s.words, NULL);
    fixture_write(out, 0, 4 * s.words, model[1]);
    uint64_t up = sent_to_devices(&m), down = sent_home(&m), calls = on_cuda() ? 0 : copies_of(&m);
    muster_graph *graph = fixture_graph(&m.fixture);
    muster_arg args[10];
    muster_dispatch dispatch = mix_columns(&m, &s, args, out, in, (mixture){.keep = false}, 0);
    fixture_add(graph, &dispatch);
    fixture_run(&m.fixture, graph);
    model_columns(&s, model[1], model[0], (mixture){.keep = false});
    /* What is read, once, and nothing else. */
    assert_int_equal(sent_to_devices(&m) - up, 4 * s.width * ROWS);
    graph = fixture_graph(&m.fixture);
    dispatch = mix_rows(&m, &s, args, in, out);
    fixture_add(graph, &dispatch);
    fixture_run(&m.fixture, graph);
    model_rows(&s, model[0], model[1]);
    uint32_t *found = malloc(4 * s.words);
    fixture_read(out, 0, 4 * s.words, found);
    assert_memory_equal(found, model[1], 4 * s.words);
    assert_int_equal(sent_home(&m) - down, 4 * s.width * ROWS);
    fixture_read(in, 0, 4 * s.words, found);
    assert_memory_equal(found, model[0], 4 * s.words);
    /* Eight devices exchange eight columns each, and rows of padding: some hundred copies, not 32,768. */
    if (!on_cuda()) assert_in_range(copies_of(&m) - calls, 1, 400);
    muster_buffer_destroy(in);
    if (pinned) OK(muster_host_free(m.fixture.runtime, host, &reported));
    fixture_close(&m.fixture);
    for (int i = 0; i < 2; i++) free(model[i]);
    if (!pinned) free(host);
    free(found);
}

static void many_rows_are_moved_with_few_copies(void **state) {
    (void)state;
    check_many_rows(true);
    check_many_rows(false);
}

/* A shard of the columns follows the one of its own columns only, or its neighbours; one of rows follows all. */
static void shards_follow_only_those_whose_columns_they_read(void **state) {
    (void)state;
    if (on_cuda()) skip();
    const shape s = {
        .pitch = 33, .width = 32, .rows = 9, .words = 33 * 9, .threads = 8, .slices = 4, .range_words = 33 * 9 - 1};
    machine m;
    open_machine(&m, 4, NULL, 0);
    muster_buffer *a = fixture_buffer(&m.fixture, 4 * s.words, NULL),
                  *b = fixture_buffer(&m.fixture, 4 * s.words, NULL);
    muster_graph *graph = fixture_graph(&m.fixture);
    muster_arg args[10];
    muster_dispatch dispatch = mix_columns(&m, &s, args, b, a, (mixture){.keep = false}, 0);
    fixture_add(graph, &dispatch); /* nodes 0 to 3 */
    dispatch = mix_columns(&m, &s, args, a, b, (mixture){.keep = true}, 0);
    fixture_add(graph, &dispatch); /* 4 to 7 */
    dispatch = mix_columns(&m, &s, args, b, a, (mixture){.before = 8}, 0);
    fixture_add(graph, &dispatch); /* 8 to 11 */
    dispatch = mix_rows(&m, &s, args, a, b);
    fixture_add(graph, &dispatch); /* 12 to 15 */
    OK(mu_graph_seal(graph, &reported));
    assert_int_equal(graph->node_count, 16);
    for (uint32_t i = 0; i < 16; i++) {
        const mu_node *node = &graph->nodes[i];
        uint64_t preds = 0, expected = 0;
        for (uint32_t k = 0; k < node->pred_count; k++) preds |= (uint64_t)1 << graph->preds[node->pred_first + k];
        if (i >= 4) expected = (uint64_t)1 << (i - 4);
        if (i >= 9 && i < 12) expected |= (uint64_t)1 << (i - 5);
        if (i >= 12) expected = 0xff0; /* reads all of b and writes what the first readers of a have read */
        if (i >= 12) expected = preds & 0xf0 ? 0xff0 : 0xf00;
        assert_int_equal(preds, expected);
    }
    fixture_run(&m.fixture, graph);
    fixture_close(&m.fixture);
}

/* While device 1 does nothing, device 0 writes its columns beside those that device 1 is to write. */
static void neighbouring_columns_are_written_at_the_same_time(void **state) {
    (void)state;
    if (on_cuda()) skip();
    const shape s = {.pitch = 16, .width = 16, .rows = 5, .words = 80, .threads = 8, .slices = 2, .range_words = 80};
    uint32_t model[2][80] = {{0}}, found[80];
    machine m;
    open_machine(&m, 2, NULL, 0);
    for (uint32_t w = 0; w < 80; w++) model[0][w] = w * w;
    muster_buffer *in = fixture_buffer(&m.fixture, sizeof found, model[0]);
    muster_buffer *out = fixture_buffer(&m.fixture, sizeof found, NULL);
    muster_graph *graph = fixture_graph(&m.fixture);
    muster_arg args[10];
    muster_dispatch dispatch = mix_columns(&m, &s, args, out, in, (mixture){.keep = false}, 0);
    fixture_add(graph, &dispatch);
    model_columns(&s, model[1], model[0], (mixture){.keep = false});
    fixture_hold(&m.fixture, 1, true);
    muster_run *run = fixture_submit(&m.fixture, graph);
    mu_actor *first = &m.fixture.runtime->actors[0];
    while (atomic_load(&first->jobs_ended) == 0) sched_yield();
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 0, &reported));
    fixture_hold(&m.fixture, 1, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    fixture_read(out, 0, sizeof found, found);
    assert_memory_equal(found, model[1], sizeof found);
    fixture_close(&m.fixture);
}

/* Five planes cut along y, of which a device can hold neither all nor the parts of two shards: 8 MiB a shard, rounded. */
static void volumes_run_in_waves(void **state) {
    (void)state;
    if (on_cuda()) skip();
    enum { PLANE = 250 << 10, THREADS = 256 };
    const shape s = {.pitch = PLANE,
                     .width = PLANE - 77,
                     .rows = 5,
                     .words = 5 * PLANE,
                     .threads = THREADS,
                     .slices = PLANE / THREADS,
                     .range_words = 5 * PLANE - 77};
    machine m;
    open_machine(&m, 1, NULL, 11 * MIB);
    uint32_t *model[2];
    muster_buffer *buffer[2];
    for (int i = 0; i < 2; i++) {
        model[i] = malloc(4 * s.words);
        for (uint32_t w = 0; w < s.words; w++) model[i][w] = w * (7 + i);
        buffer[i] = fixture_buffer(&m.fixture, 4 * s.words, NULL);
        fixture_write(buffer[i], 0, 4 * s.words, model[i]);
    }
    muster_graph *graph = fixture_graph(&m.fixture);
    muster_arg args[10];
    muster_dispatch dispatch = mix_columns(&m, &s, args, buffer[1], buffer[0], (mixture){.keep = true}, 1);
    muster_job job = fixture_add(graph, &dispatch);
    model_columns(&s, model[1], model[0], (mixture){.keep = true});
    muster_run *run = fixture_submit(&m.fixture, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_in_range(fixture_result(run, job).shards, 10, 20);
    uint32_t *found = malloc(4 * s.words);
    for (int i = 0; i < 2; i++) {
        fixture_read(buffer[i], 0, 4 * s.words, found);
        assert_memory_equal(found, model[i], 4 * s.words);
        free(model[i]);
    }
    free(found);
    fixture_close(&m.fixture);
}

/* -------------------------------------------------------------------------------------------------- failures, refusals -- */

/* A launch that fails takes its own columns along. */
static void only_the_columns_of_a_failed_shard_are_lost(void **state) {
    (void)state;
    if (on_cuda()) skip();
    const shape s = {.pitch = 16, .width = 16, .rows = 5, .words = 80, .threads = 8, .slices = 2, .range_words = 80};
    uint32_t model[2][80] = {{0}}, found[80];
    char spec[FIXTURE_SPEC_BYTES];
    machine m;
    fixture_planned_spec(2, FIXTURE_FAIL_LAUNCH(0, 1), spec);
    open_machine(&m, 2, spec, 0);
    for (uint32_t w = 0; w < 80; w++) model[0][w] = w * w;
    muster_buffer *in = fixture_buffer(&m.fixture, sizeof found, model[0]);
    muster_buffer *out = fixture_buffer(&m.fixture, sizeof found, NULL);
    muster_graph *graph = fixture_graph(&m.fixture);
    muster_arg args[10];
    muster_dispatch dispatch = mix_columns(&m, &s, args, out, in, (mixture){.keep = false}, 0);
    fixture_add(graph, &dispatch);
    muster_run *run = fixture_submit(&m.fixture, graph);
    FAILS(MUSTER_LAUNCH_FAILED, "", muster_run_wait(run, fixture_wait_ns, &reported));
    model_columns(&s, model[1], model[0], (mixture){.keep = false});
    for (uint32_t row = 0; row < s.rows; row++) {
        void *pointer;
        FAILS(MUSTER_DATA_UNDEFINED, "",
              muster_buffer_acquire(out, 64 * row + 28, 4, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
        fixture_read(out, 64 * row + 32, 32, found);
        assert_memory_equal(found, &model[1][16 * row + 8], 32);
    }
    fixture_run(&m.fixture, graph);
    fixture_read(out, 0, sizeof found, found);
    assert_memory_equal(found, model[1], sizeof found);
    fixture_close(&m.fixture);
}

/* Columns of device 0 are brought to device 1 row by row, behind a long copy, and one row is refused; the buffer is given up at once.
 * `calls`: copies of either kind before, when nothing fails, and which fail then. */
static void bring_columns(uint64_t seed, bool fails, uint64_t calls[2]) {
    enum { LONG_BYTES = 64 * MIB };
    const shape s = {.pitch = 16, .width = 16, .rows = 5, .words = 80, .threads = 8, .slices = 2, .range_words = 80};
    uint32_t content[80] = {0};
    char spec[FIXTURE_SPEC_BYTES];
    void *host;
    machine m;
    snprintf(spec, sizeof spec,
             "{\"seed\": %llu, \"devices\": 2, \"faults\": [{\"entry\": \"memcpy_2d_async\", \"nth\": %llu, \"code\": "
             "\"INVALID_VALUE\"}, {\"entry\": \"memcpy_peer_async\", \"nth\": %llu, \"code\": \"INVALID_VALUE\"}]}",
             (unsigned long long)seed, fails ? (unsigned long long)calls[0] + 1 : 1000000,
             fails ? (unsigned long long)calls[1] + 4 : 1000000);
    open_machine(&m, 2, spec, 0);
    OK(muster_host_alloc(m.fixture.runtime, LONG_BYTES, &host, &reported));
    muster_buffer *in = fixture_buffer(&m.fixture, sizeof content, content);
    muster_buffer *out = fixture_buffer(&m.fixture, sizeof content, NULL);
    muster_buffer *long_one = fixture_buffer(&m.fixture, LONG_BYTES, host);
    muster_graph *graph = fixture_graph(&m.fixture), *before = fixture_graph(&m.fixture);
    muster_arg args[10];
    muster_dispatch dispatch = mix_columns(&m, &s, args, out, in, (mixture){.keep = false}, 0);
    fixture_add(graph, &dispatch);
    fixture_run(&m.fixture, graph);
    muster_graph_destroy(graph);
    if (!fails) {
        calls[0] = mu_sim_calls(fixture_driver(&m.fixture), "memcpy_2d_async");
        calls[1] = mu_sim_calls(fixture_driver(&m.fixture), "memcpy_peer_async");
    }
    fixture_hold(&m.fixture, 1, true);
    OK(muster_graph_prefetch(before, long_one, 0, 0, 1, NULL, &reported));
    muster_run *first = fixture_submit(&m.fixture, before);
    graph = fixture_graph(&m.fixture);
    OK(muster_graph_prefetch(graph, out, 0, 0, 1, NULL, &reported));
    muster_run *run = fixture_submit(&m.fixture, graph);
    muster_graph_destroy(graph);
    muster_buffer_destroy(out);
    mu_actors_pass(m.fixture.runtime);
    fixture_hold(&m.fixture, 1, false);
    muster_status status = muster_run_wait(run, fixture_wait_ns, &reported);
    assert_int_equal(status, fails ? MUSTER_TRANSFER_FAILED : MUSTER_OK);
    muster_run_destroy(run);
    OK(muster_run_wait(first, fixture_wait_ns, &reported));
    muster_run_destroy(first);
    mu_actors_pass(m.fixture.runtime);
    graph = fixture_graph(&m.fixture);
    OK(muster_graph_fill(graph, in, 0, sizeof content, 5, 4, NULL, &reported));
    fixture_run(&m.fixture, graph); /* the devices are there still */
    fixture_close(&m.fixture);
}

static void memory_stays_under_the_rows_before_one_that_failed(void **state) {
    (void)state;
    if (on_cuda()) skip();
    uint64_t calls[2];
    bring_columns(0, false, calls);
    for (uint64_t seed = 0; seed < 8; seed++) bring_columns(seed, true, calls);
}

/* Rows too far apart for one call of the driver's go to pinned memory one by one, and the second is refused. The first is on the lane,
 * which the device has not begun with: until it has, the run must not end, for the host memory is the application's then. */
static void host_memory_stays_under_the_rows_before_one_that_failed(void **state) {
    (void)state;
    if (on_cuda()) skip();
    const shape s = {.pitch = 1U << 29,
                     .width = 16,
                     .rows = 2,
                     .words = (1U << 29) + 16,
                     .threads = 16,
                     .slices = 1,
                     .range_words = (1U << 29) + 16};
    const uint64_t bytes = 4 * (uint64_t)s.words;
    uint32_t *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(host, MAP_FAILED);
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(1, "[{\"entry\": \"memcpy_dtoh_async\", \"nth\": 2, \"code\": \"INVALID_VALUE\"}]", spec);
    machine m;
    muster_arg args[10];
    open_machine(&m, 1, spec, 0);
    OK(muster_host_register(m.fixture.runtime, host, bytes, &reported));
    muster_buffer *out = fixture_buffer(&m.fixture, bytes, host), *in = fixture_buffer(&m.fixture, bytes, NULL);
    muster_graph *graph = fixture_graph(&m.fixture), *home = fixture_graph(&m.fixture);
    muster_dispatch dispatch = mix_columns(&m, &s, args, out, in, (mixture){.keep = false}, 0);
    fixture_add(graph, &dispatch);
    fixture_run(&m.fixture, graph);
    OK(muster_graph_read_back(home, out, 0, 0, NULL, &reported));
    fixture_hold(&m.fixture, 0, true);
    muster_run *run = fixture_submit(&m.fixture, home);
    for (int i = 0; i < 100; i++) mu_actors_pass(m.fixture.runtime);
    assert_int_equal(mu_sim_calls(fixture_driver(&m.fixture), "memcpy_dtoh_async"), 2);
    assert_int_equal(muster_run_wait(run, 0, &reported), MUSTER_TIMEOUT);
    fixture_hold(&m.fixture, 0, false);
    FAILS(MUSTER_TRANSFER_FAILED, "", muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    /* The content is where it was. */
    fixture_run(&m.fixture, home);
    for (uint32_t x = 0; x < s.width; x++) {
        assert_int_equal(host[x], x);
        assert_int_equal(host[s.pitch + x], x + 7);
    }
    fixture_close(&m.fixture);
    munmap(host, bytes);
}

/* Two jobs of which the second reads across the columns of the first, and their results read home, while one allocation fails. */
static muster_status run_short_of_memory(const machine *m, const shape *s, muster_buffer *out, muster_buffer *in,
                                         uint64_t nth, bool *hit) {
    muster_graph *graph = fixture_graph(&m->fixture);
    muster_arg args[10];
    muster_dispatch dispatch = mix_columns(m, s, args, out, in, (mixture){.before = 3}, 0);
    fixture_add(graph, &dispatch);
    dispatch = mix_rows(m, s, args, in, out);
    fixture_add(graph, &dispatch);
    muster_run *run = NULL;
    void *pointer;
    mu_alloc_fail_at(nth, false);
    muster_status status = muster_submit(m->fixture.runtime, graph, &run, NULL);
    if (!status) status = muster_run_wait(run, fixture_wait_ns, NULL);
    if (!status) status = muster_buffer_acquire(out, 0, 0, MUSTER_READ, fixture_wait_ns, &pointer, NULL);
    *hit = mu_alloc_fail_hits();
    mu_alloc_fail_at(0, false);
    if (!status) OK(muster_buffer_release(out, pointer, &reported));
    muster_run_destroy(run);
    muster_graph_destroy(graph);
    return status;
}

static void any_allocation_may_fail(void **state) {
    (void)state;
    if (on_cuda()) skip();
    const shape s = {.pitch = 19, .width = 16, .rows = 9, .words = 171, .threads = 4, .slices = 4, .range_words = 168};
    uint32_t start[2][171], model[2][171], found[171], failed = 0;
    for (uint32_t w = 0; w < s.words; w++) start[0][w] = w * w, start[1][w] = w * 3;
    machine m;
    open_machine(&m, 4, NULL, 0);
    bool hit = true;
    for (uint64_t nth = 1; hit; nth++) {
        muster_buffer *buffer[2];
        for (int i = 0; i < 2; i++) {
            buffer[i] = fixture_buffer(&m.fixture, sizeof found, NULL);
            fixture_write(buffer[i], 0, sizeof found, start[i]);
        }
        muster_status status = run_short_of_memory(&m, &s, buffer[1], buffer[0], nth, &hit);
        failed += status != MUSTER_OK;
        /* Whatever it was, what is written anew is right, and what lies between is as it was. */
        bool lost = status == MUSTER_KERNEL_FAULT || status == MUSTER_DEVICE_LOST;
        if (!lost) {
            memcpy(model, start, sizeof model);
            fixture_write(buffer[0], 0, sizeof found, start[0]);
            muster_graph *graph = fixture_graph(&m.fixture);
            muster_arg args[10];
            muster_dispatch dispatch = mix_columns(&m, &s, args, buffer[1], buffer[0], (mixture){.after = 2}, 0);
            fixture_add(graph, &dispatch);
            fixture_run(&m.fixture, graph);
            muster_graph_destroy(graph);
            model_columns(&s, model[1], model[0], (mixture){.after = 2});
            fixture_read(buffer[1], 0, sizeof found, found);
            assert_memory_equal(found, model[1], sizeof found);
        }
        for (int i = 0; i < 2; i++) muster_buffer_destroy(buffer[i]);
        if (!lost) continue;
        fixture_close(&m.fixture); /* the simulator found no memory for a kernel */
        open_machine(&m, 4, NULL, 0);
    }
    assert_true(failed > 10);
    fixture_close(&m.fixture);
}

static void what_cannot_be_is_refused_with_numbers(void **state) {
    (void)state;
    if (on_cuda()) skip();
    const shape s = {.pitch = 16, .width = 16, .rows = 5, .words = 80, .threads = 8, .slices = 2, .range_words = 80};
    machine m;
    open_machine(&m, 2, NULL, 0);
    muster_buffer *in = fixture_buffer(&m.fixture, 320, NULL), *out = fixture_buffer(&m.fixture, 320, NULL);
    muster_graph *graph = fixture_graph(&m.fixture);
    muster_arg args[10];
    muster_dispatch dispatch = mix_columns(&m, &s, args, out, in, (mixture){.keep = false}, 0);
    args[0].rows = 0;
    FAILS(MUSTER_INVALID_ARGUMENT, "argument 0|pitch of 64|0 rows",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    args[0].rows = 6;
    FAILS(MUSTER_BUFFER_TOO_SMALL, "argument 0|320 bytes|6 rows|64|2 slices of 32",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    args[0].rows = UINT32_MAX;
    args[0].pitch_bytes = UINT64_MAX;
    FAILS(MUSTER_BUFFER_TOO_SMALL, "argument 0|4294967295 rows|18446744073709551615",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    args[0].rows = 5;
    args[0].pitch_bytes = 32;
    FAILS(MUSTER_INVALID_ARGUMENT, "argument 0|pitch of 32|2 slices of 32",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    args[0].pitch_bytes = 0;
    FAILS(MUSTER_INVALID_ARGUMENT, "argument 0|pitch of 0", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    args[0].pitch_bytes = 64;
    args[0].slice_bytes = 0;
    FAILS(MUSTER_INVALID_ARGUMENT, "argument 0|0 bytes", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    args[0].slice_bytes = UINT64_MAX;
    FAILS(MUSTER_INVALID_ARGUMENT, "argument 0|18446744073709551615",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    /* The last row ends before the last slice begins. */
    args[0] = muster_pitch_cut(muster_range_arg(out, MUSTER_WRITE, 0, 288), 32, 64, 5);
    FAILS(MUSTER_BUFFER_TOO_SMALL, "argument 0|288 bytes", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    args[0] = columns_of(&s, out, MUSTER_WRITE);
    args[1] = muster_halo_cut(columns_of(&s, in, MUSTER_READ_WRITE), 32, 1, 1);
    FAILS(MUSTER_UNCUTTABLE, "argument 1|halo", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    args[1] = columns_of(&s, in, MUSTER_READ);
    muster_job job;
    OK(muster_graph_dispatch(graph, &dispatch, &job, &reported));
    assert_int_equal(job, 0);
    fixture_run(&m.fixture, graph);
    fixture_close(&m.fixture);
}

static void different_pitches_are_bounded(void **state) {
    (void)state;
    if (on_cuda()) skip();
    machine m;
    open_machine(&m, 2, NULL, 0);
    muster_buffer *in = fixture_buffer(&m.fixture, MIB, NULL), *out = fixture_buffer(&m.fixture, MIB, NULL);
    muster_graph *graph = fixture_graph(&m.fixture);
    shape s = {.width = 16, .rows = 2, .threads = 8, .slices = 2};
    uint32_t added = 0;
    for (;; added++) {
        muster_arg args[10];
        s.pitch = 17 + added;
        s.range_words = s.pitch + s.width;
        muster_dispatch dispatch = mix_columns(&m, &s, args, out, in, (mixture){.keep = false}, 0);
        if (added == MU_STRIDES_MAX) {
            FAILS(MUSTER_LIMIT_REACHED, "4096 different", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
            break;
        }
        fixture_add(graph, &dispatch);
    }
    muster_graph_destroy(graph);
    fixture_close(&m.fixture);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_matrices_match_the_model),
        cmocka_unit_test(many_rows_are_moved_with_few_copies),
        cmocka_unit_test(shards_follow_only_those_whose_columns_they_read),
        cmocka_unit_test(neighbouring_columns_are_written_at_the_same_time),
        cmocka_unit_test(volumes_run_in_waves),
        cmocka_unit_test(only_the_columns_of_a_failed_shard_are_lost),
        cmocka_unit_test(memory_stays_under_the_rows_before_one_that_failed),
        cmocka_unit_test(host_memory_stays_under_the_rows_before_one_that_failed),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(what_cannot_be_is_refused_with_numbers),
        cmocka_unit_test(different_pitches_are_bounded),
    };
    if (!random_options_read(argc, argv, "scenarios", RANDOM_ACTORS | RANDOM_DRIVER, &options)) return 2;
    return cmocka_run_group_tests_name("pitches", tests, NULL, NULL);
}
