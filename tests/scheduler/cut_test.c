/* How arguments of sharded dispatches are cut: every reduction of every type, halos, and what is refused; against plain loops. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/fixture.h"

extern const char test_cut_kernels_ptx[];

enum { SLICES = 203, THREADS = 8, GRID = (SLICES + THREADS - 1) / THREADS };

/* The machine of a test, with the kernels of cut_kernels.cu. */
typedef struct cutter {
    fixture fixture;
    muster_program *program;
} cutter;

static void open_cutter(cutter *c, uint32_t devices) {
    fixture_open(&c->fixture, devices);
    OK(muster_program_from_ptx(c->fixture.runtime, test_cut_kernels_ptx, 0, "cuts", &c->program, &reported));
}

static muster_kernel *find(const cutter *c, const char *name) {
    muster_kernel *kernel;
    OK(muster_program_kernel(c->program, name, &kernel, &reported));
    return kernel;
}

/* ------------------------------------------------------------------------------------------------------- reductions -- */

typedef union element {
    int32_t i32;
    uint32_t u32;
    int64_t i64;
    uint64_t u64;
    float f32;
    double f64;
} element;

static uint32_t width_of(muster_type type) {
    return type == MUSTER_I32 || type == MUSTER_U32 || type == MUSTER_F32 ? 4 : 8;
}

static bool is_float(muster_type type) { return type == MUSTER_F32 || type == MUSTER_F64; }

/* As fmin and fmax, with -0 below +0. */
static double smaller_of(double a, double b) {
    if (isnan(a)) return b;
    if (isnan(b)) return a;
    return a < b || (a == b && signbit(a)) ? a : b;
}
static double larger_of(double a, double b) {
    if (isnan(a)) return b;
    if (isnan(b)) return a;
    return a > b || (a == b && !signbit(a)) ? a : b;
}

#define PICK(member, operator)                                                                                         \
    if (reduction == MUSTER_REDUCE_MIN) return (element){.member = a.member operator b.member ? a.member : b.member }; \
    return (element) { .member = a.member operator b.member ? b.member : a.member }

static element combine(muster_type type, muster_reduction reduction, element a, element b) {
    if (reduction == MUSTER_REDUCE_AND) return (element){.u64 = a.u64 & b.u64};
    if (reduction == MUSTER_REDUCE_OR) return (element){.u64 = a.u64 | b.u64};
    switch (type) {
        case MUSTER_I32: PICK(i32, <);
        case MUSTER_U32: PICK(u32, <);
        case MUSTER_I64: PICK(i64, <);
        case MUSTER_U64: PICK(u64, <);
        case MUSTER_F32:
            return (element){
                .f32 = (float)(reduction == MUSTER_REDUCE_MIN ? smaller_of(a.f32, b.f32) : larger_of(a.f32, b.f32))};
        case MUSTER_F64:
            return (element){.f64 =
                                 reduction == MUSTER_REDUCE_MIN ? smaller_of(a.f64, b.f64) : larger_of(a.f64, b.f64)};
    }
    fail();
    return a;
}

static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
    x = (x ^ x >> 29) * UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 32;
}

/* Any bits of an integer; of floating point, numbers, infinities, zeros of both signs, and NaN where `nan` allows. */
static element drawn(muster_type type, uint64_t seed, bool nan) {
    static const double odd[] = {0.0, -0.0, INFINITY, -INFINITY, 1.5, -1.5};
    uint64_t bits = mixed(seed);
    if (!is_float(type)) return (element){.u64 = width_of(type) == 4 ? (uint32_t)bits : bits};
    double value = bits % 8 == 7 ? (nan ? (double)NAN : 3.0)
                   : bits % 2    ? odd[bits / 8 % 6]
                                 : (double)(int32_t)(bits >> 32) / 4096.0;
    return type == MUSTER_F32 ? (element){.f32 = (float)value} : (element){.f64 = value};
}

static void name_kernel(muster_type type, muster_reduction reduction, char *name, size_t bytes) {
    static const char *const operations[] = {"sum", "min", "max", "and", "or"};
    static const char *const types[] = {"", "i32", "u32", "i64", "u64", "f32", "f64"};
    const char *of = reduction < MUSTER_REDUCE_AND ? types[type] : width_of(type) == 4 ? "32" : "64";
    snprintf(name, bytes, "%s_%s", operations[reduction], of);
}

static void check_reduction(const cutter *c, muster_type type, muster_reduction reduction, uint32_t max_shards) {
    /* Sharing bins needs atomics, which floating-point minima have not. An old NaN is only beside numbers. */
    uint32_t bins = is_float(type) ? SLICES : 11, width = width_of(type);
    unsigned char in[SLICES * 8], acc[SLICES * 8], found[SLICES * 8];
    element expected[SLICES];
    for (uint32_t i = 0; i < bins; i++) {
        expected[i] = drawn(type, 1000 + i, false);
        memcpy(acc + i * width, &expected[i], width);
    }
    for (uint32_t i = 0; i < SLICES; i++) {
        element value = drawn(type, i, true);
        memcpy(in + i * width, &value, width);
        expected[i % bins] = combine(type, reduction, expected[i % bins], value);
    }
    char name[16];
    name_kernel(type, reduction, name, sizeof name);
    muster_buffer *input = fixture_buffer(&c->fixture, SLICES * width, in);
    muster_buffer *reduced = fixture_buffer(&c->fixture, bins * width, acc);
    muster_graph *graph = fixture_graph(&c->fixture);
    muster_dispatch dispatch =
        fixture_dispatch(find(c, name), GRID, THREADS,
                         ARGS(muster_reduce_arg(reduced, type, reduction), muster_u32_arg(bins),
                              muster_block_cut(muster_buffer_arg(input, MUSTER_READ), THREADS * width),
                              muster_shard_offset_arg(THREADS, SLICES, 8), muster_shard_count_arg(THREADS, SLICES, 8)));
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    dispatch.max_shards = max_shards;
    fixture_add(graph, &dispatch);
    fixture_run(&c->fixture, graph);
    fixture_read(reduced, 0, bins * width, found);
    for (uint32_t i = 0; i < bins; i++)
        if (memcmp(found + i * width, &expected[i], width) != 0)
            fail_msg("%s, at most %u shards: bin %u differs", name, max_shards, i);
}

static void reductions_do_not_depend_on_the_number_of_shards(void **state) {
    (void)state;
    static const uint32_t devices[] = {1, 3, 8};
    for (int d = 0; d < 3; d++) {
        cutter c;
        open_cutter(&c, devices[d]);
        for (muster_type type = MUSTER_I32; type <= MUSTER_F64; type++)
            for (muster_reduction reduction = MUSTER_REDUCE_MIN; reduction <= MUSTER_REDUCE_OR; reduction++) {
                if (is_float(type) && reduction >= MUSTER_REDUCE_AND) continue;
                check_reduction(&c, type, reduction, 0);
                check_reduction(&c, type, reduction, GRID);
            }
        fixture_close(&c.fixture);
    }
}

static void reductions_that_there_are_not_are_refused(void **state) {
    (void)state;
    cutter c;
    open_cutter(&c, 2);
    muster_buffer *buffer = fixture_buffer(&c.fixture, 800, NULL);
    muster_graph *graph = fixture_graph(&c.fixture);
    muster_dispatch dispatch = fixture_dispatch(
        find(&c, "and_32"), 4, 32,
        ARGS(muster_reduce_arg(buffer, MUSTER_F32, MUSTER_REDUCE_AND), muster_u32_arg(1),
             muster_block_cut(muster_buffer_arg(buffer, MUSTER_READ), 64), muster_u64_arg(0), muster_u64_arg(0)));
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    FAILS(MUSTER_INVALID_ARGUMENT, "argument 0|bitwise", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    muster_arg args[5];
    memcpy(args, dispatch.args, sizeof args);
    dispatch.args = args;
    args[0] = muster_reduce_arg(buffer, MUSTER_U32, (muster_reduction)5);
    FAILS(MUSTER_INVALID_ARGUMENT, "argument 0|5 is not", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    args[0] = muster_reduce_arg(buffer, (muster_type)7, MUSTER_REDUCE_MIN);
    FAILS(MUSTER_INVALID_ARGUMENT, "argument 0|7 is not", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    fixture_close(&c.fixture);
}

/* ------------------------------------------------------------------------------------------------------------ halos -- */

enum { WIDTH = 37, MOST_ROWS = 64 };

static void model_neighbours(uint32_t *out, const uint32_t *in, uint32_t rows, uint32_t before, uint32_t after) {
    for (int64_t row = 0; row < rows; row++)
        for (uint32_t x = 0; x < WIDTH; x++) {
            uint32_t value = 0;
            for (int64_t y = row - before; y <= row + after; y++)
                if (y >= 0 && y < rows) value = value * 31 + in[y * WIDTH + x];
            out[row * WIDTH + x] = value;
        }
}

static muster_dispatch stencil(const cutter *c, muster_arg args[7], muster_buffer *out, muster_buffer *in,
                               uint32_t rows, uint32_t before, uint32_t after, uint32_t axis) {
    args[0] = muster_block_cut(muster_buffer_arg(out, MUSTER_WRITE), 4 * WIDTH);
    args[1] = muster_halo_cut(muster_buffer_arg(in, MUSTER_READ), 4 * WIDTH, before, after);
    args[2] = muster_u32_arg(WIDTH);
    args[3] = muster_u32_arg(before);
    args[4] = muster_u32_arg(after);
    args[5] = muster_shard_offset_arg(1, rows, 8);
    args[6] = muster_u64_arg(rows);
    muster_dispatch dispatch = fixture_dispatch(find(c, "neighbours"), 1, 32, (fixture_args){.arg = args, .count = 7});
    dispatch.grid = (muster_dim3){1, 1, 1};
    *(axis == 0 ? &dispatch.grid.x : axis == 1 ? &dispatch.grid.y : &dispatch.grid.z) = rows;
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    dispatch.shard_axis = axis;
    return dispatch;
}

/* Many steps between two buffers: each shard of a step depends on its neighbours of the step before only. */
static void check_stencil(const cutter *c, uint32_t rows, uint32_t before, uint32_t after, uint32_t axis,
                          uint32_t max_shards) {
    enum { STEPS = 5 };
    uint32_t content[2][MOST_ROWS * WIDTH], found[MOST_ROWS * WIDTH], bytes = 4 * rows * WIDTH;
    muster_buffer *buffer[2];
    for (uint32_t i = 0; i < rows * WIDTH; i++) content[0][i] = (uint32_t)mixed(i);
    buffer[0] = fixture_buffer(&c->fixture, bytes, NULL);
    buffer[1] = fixture_buffer(&c->fixture, bytes, NULL);
    fixture_write(buffer[0], 0, bytes, content[0]);
    muster_graph *graph = fixture_graph(&c->fixture);
    for (uint32_t step = 0; step < STEPS; step++) {
        muster_arg args[7];
        muster_dispatch dispatch =
            stencil(c, args, buffer[(step + 1) % 2], buffer[step % 2], rows, before, after, axis);
        dispatch.max_shards = max_shards;
        fixture_add(graph, &dispatch);
        model_neighbours(content[(step + 1) % 2], content[step % 2], rows, before, after);
    }
    fixture_run(&c->fixture, graph);
    fixture_read(buffer[STEPS % 2], 0, bytes, found);
    assert_memory_equal(found, content[STEPS % 2], bytes);
}

static void a_halo_shows_the_neighbours(void **state) {
    (void)state;
    for (uint32_t devices = 1; devices <= 8; devices += devices < 3 ? 1 : 5) {
        cutter c;
        open_cutter(&c, devices);
        for (uint32_t axis = 0; axis < 3; axis++) check_stencil(&c, MOST_ROWS, 1, 1, axis, 0);
        check_stencil(&c, 61, 0, 2, 0, 7);
        check_stencil(&c, 61, 3, 0, 0, 61);   /* a halo over several shards */
        check_stencil(&c, 5, 200, 200, 0, 5); /* more than there is */
        check_stencil(&c, 1, 1, 1, 0, 0);
        check_stencil(&c, 40, 0, 0, 0, 0);
        fixture_close(&c.fixture);
    }
}

/* In one piece the declaration changes nothing. */
static void an_uncut_dispatch_ignores_the_halo(void **state) {
    (void)state;
    cutter c;
    open_cutter(&c, 2);
    uint32_t content[MOST_ROWS * WIDTH], expected[MOST_ROWS * WIDTH], found[MOST_ROWS * WIDTH];
    for (uint32_t i = 0; i < MOST_ROWS * WIDTH; i++) content[i] = (uint32_t)mixed(i);
    model_neighbours(expected, content, MOST_ROWS, 2, 1);
    muster_buffer *in = fixture_buffer(&c.fixture, sizeof content, content);
    muster_buffer *out = fixture_buffer(&c.fixture, sizeof content, NULL);
    muster_graph *graph = fixture_graph(&c.fixture);
    muster_arg args[7];
    muster_dispatch dispatch = stencil(&c, args, out, in, MOST_ROWS, 2, 1, 0);
    dispatch.flags = 0;
    fixture_add(graph, &dispatch);
    fixture_run(&c.fixture, graph);
    fixture_read(out, 0, sizeof found, found);
    assert_memory_equal(found, expected, sizeof found);
    fixture_close(&c.fixture);
}

static void a_written_halo_is_refused(void **state) {
    (void)state;
    cutter c;
    open_cutter(&c, 2);
    muster_buffer *buffer = fixture_buffer(&c.fixture, 4 * MOST_ROWS * WIDTH, NULL);
    muster_buffer *other = fixture_buffer(&c.fixture, 4 * MOST_ROWS * WIDTH, NULL);
    muster_graph *graph = fixture_graph(&c.fixture);
    muster_arg args[7];
    muster_dispatch dispatch = stencil(&c, args, other, buffer, MOST_ROWS, 1, 1, 0);
    args[1].access = MUSTER_READ_WRITE;
    FAILS(MUSTER_UNCUTTABLE, "argument 1|halo|another buffer",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    /* Nor may the same bytes be written by way of another argument. */
    dispatch = stencil(&c, args, buffer, buffer, MOST_ROWS, 1, 1, 0);
    FAILS(MUSTER_INVALID_ARGUMENT, "0 and 1|overlapping", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    dispatch = stencil(&c, args, other, buffer, MOST_ROWS, 1, 1, 0);
    args[1].slice_bytes = 4 * WIDTH + 4;
    FAILS(MUSTER_BUFFER_TOO_SMALL, "argument 1", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    fixture_close(&c.fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_do_not_depend_on_the_number_of_shards),
        cmocka_unit_test(reductions_that_there_are_not_are_refused),
        cmocka_unit_test(a_halo_shows_the_neighbours),
        cmocka_unit_test(an_uncut_dispatch_ignores_the_halo),
        cmocka_unit_test(a_written_halo_is_refused),
    };
    return cmocka_run_group_tests_name("cuts", tests, NULL, NULL);
}
