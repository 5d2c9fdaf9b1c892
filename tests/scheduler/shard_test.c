/* Sharded dispatches: how they are cut, and that the result is that of the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/fixture.h"

enum { MOST_DEVICES = 8, ROW_WORDS = 10, THREADS = 32 };

/* What kernel `record` writes for each block; rows of the whole dispatch lie in the order of blocks. */
typedef struct row {
    uint64_t grid[3], block[3], offset64, count64, offset32, count32;
} row;

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* H of kernels.cu */
static uint32_t mixed(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Runs `record` over `slices` slices of the axis, of `lower` blocks each, with `total` elements, and checks the cut. */
static void check_cut(const fixture *fixture, uint32_t devices, uint32_t axis, uint32_t slices, uint32_t lower,
                      uint64_t total, uint32_t max_shards) {
    uint64_t slice_elements = (uint64_t)lower * THREADS, bytes = sizeof(row) * slices * lower;
    uint32_t grid[3] = {1, 1, 1};
    if (axis > 0) grid[0] = lower;
    grid[axis] = slices;
    muster_buffer *buffer = fixture_buffer(fixture, bytes, NULL);
    muster_graph *graph = fixture_graph(fixture);
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(fixture, "record"), 1, THREADS,
        ARGS(muster_block_cut(muster_buffer_arg(buffer, MUSTER_WRITE), sizeof(row) * lower),
             muster_shard_offset_arg(slice_elements, total, 8), muster_shard_count_arg(slice_elements, total, 8),
             muster_shard_offset_arg(slice_elements, total, 4), muster_shard_count_arg(slice_elements, total, 4)));
    dispatch.grid = (muster_dim3){grid[0], grid[1], grid[2]};
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    dispatch.shard_axis = axis;
    dispatch.max_shards = max_shards;
    muster_job job = fixture_add(graph, &dispatch);
    muster_run *run = fixture_submit(fixture, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_job_result result = fixture_result(run, job);
    uint32_t shards = smaller(max_shards ? max_shards : devices, slices);
    assert_int_equal(result.shards, shards);
    assert_in_range(result.device, 0, (int)devices - 1);

    row *rows = malloc(bytes);
    assert_non_null(rows);
    fixture_read(buffer, 0, bytes, rows);
    /* Walk the shards: each begins where the one before ended, and none is empty. */
    uint32_t found = 0, smallest = UINT32_MAX, largest = 0;
    for (uint32_t slice = 0; slice < slices; found++) {
        const row *first = &rows[(uint64_t)slice * lower];
        uint32_t length = (uint32_t)first->grid[axis];
        muster_shard_result shard = {.struct_size = sizeof shard};
        OK(muster_run_shard_result(run, job, found, &shard, &reported));
        assert_int_equal(shard.status, MUSTER_OK);
        assert_int_equal(shard.first_block, (uint64_t)slice * lower);
        assert_int_equal(shard.blocks, (uint64_t)length * lower);
        assert_in_range(shard.device, 0, devices - 1);
        assert_in_range(length, 1, slices - slice);
        uint64_t offset = slice * slice_elements, end = (slice + length) * slice_elements;
        if (end > total || slice + length == slices) end = total;
        for (uint64_t b = 0; b < (uint64_t)length * lower; b++) {
            for (uint32_t a = 0; a < 3; a++) assert_int_equal(first[b].grid[a], a == axis ? length : grid[a]);
            assert_int_equal(first[b].block[0], THREADS);
            assert_int_equal(first[b].offset64, offset);
            assert_int_equal(first[b].offset32, offset);
            assert_int_equal(first[b].count64, end - offset);
            assert_int_equal(first[b].count32, end - offset);
        }
        smallest = smaller(smallest, length);
        largest = largest > length ? largest : length;
        slice += length;
    }
    assert_int_equal(found, shards);
    /* In any order, each is what it is when they are asked for from the first on. */
    uint64_t behind = (uint64_t)slices * lower;
    for (uint32_t s = shards; s-- > 0;) {
        muster_shard_result shard = {.struct_size = sizeof shard};
        OK(muster_run_shard_result(run, job, s, &shard, &reported));
        assert_int_equal(shard.first_block + shard.blocks, behind);
        behind = shard.first_block;
    }
    muster_shard_result beyond = {.struct_size = sizeof beyond};
    FAILS(MUSTER_OUT_OF_RANGE, "shard|job", muster_run_shard_result(run, job, shards, &beyond, &reported));
    assert_true(largest - smallest <= 1); /* equal devices get equal parts */
    free(rows);
    muster_run_destroy(run);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
}

static void slices_are_covered_exactly_once(void **state) {
    (void)state;
    for (uint32_t devices = 1; devices <= MOST_DEVICES; devices++) {
        fixture fixture;
        fixture_open(&fixture, devices);
        for (uint32_t slices = 1; slices <= 17; slices += slices < 9 ? 1 : 4)
            check_cut(&fixture, devices, slices % 3, slices, slices % 3 ? 2 : 1,
                      (uint64_t)slices * THREADS * (slices % 3 ? 2 : 1), 0);
        fixture_close(&fixture);
    }
}

static void the_last_slice_may_be_short(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    for (uint32_t axis = 0; axis < 3; axis++) {
        uint32_t lower = axis ? 3 : 1;
        check_cut(&fixture, 3, axis, 7, lower, 6 * lower * THREADS + 1, 0);
        check_cut(&fixture, 3, axis, 7, lower, 7 * lower * THREADS - 1, 0);
        check_cut(&fixture, 3, axis, 1, lower, 5, 0);
    }
    fixture_close(&fixture);
}

static void max_shards_says_how_many(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    for (uint32_t shards = 1; shards < 12; shards++) check_cut(&fixture, 3, 0, 10, 1, 10 * THREADS, shards);
    fixture_close(&fixture);
}

enum { LIMIT_YZ = 65535 };

/* A grid that no launch may have, one thread each; no shard may have it either. */
static void check_long_cut(const fixture *fixture, uint32_t axis, uint32_t slices, uint32_t max_shards,
                           uint32_t expected_shards) {
    uint64_t bytes = sizeof(row) * slices;
    muster_buffer *buffer = fixture_buffer(fixture, bytes, NULL);
    muster_graph *graph = fixture_graph(fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "record"), 1, 1,
                         ARGS(muster_block_cut(muster_buffer_arg(buffer, MUSTER_WRITE), sizeof(row)),
                              muster_shard_offset_arg(3, 3 * (uint64_t)slices - 1, 8),
                              muster_shard_count_arg(3, 3 * (uint64_t)slices - 1, 8),
                              muster_shard_offset_arg(1, slices, 4), muster_shard_count_arg(1, slices, 4)));
    dispatch.grid = axis == 1 ? (muster_dim3){1, slices, 1} : (muster_dim3){1, 1, slices};
    dispatch.shard_axis = axis;
    FAILS(MUSTER_INVALID_GEOMETRY, axis == 1 ? "65535|shard the dispatch along y" : "65535|shard the dispatch along z",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    dispatch.max_shards = max_shards;
    muster_job job = fixture_add(graph, &dispatch);
    muster_run *run = fixture_submit(fixture, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, job).shards, expected_shards);
    row *rows = malloc(bytes);
    assert_non_null(rows);
    fixture_read(buffer, 0, bytes, rows);
    uint32_t first = 0;
    for (uint32_t i = 0; i < expected_shards; i++) {
        muster_shard_result shard = {.struct_size = sizeof shard};
        OK(muster_run_shard_result(run, job, i, &shard, &reported));
        assert_int_equal(shard.first_block, first);
        assert_in_range(shard.blocks, 1, LIMIT_YZ);
        uint32_t end = first + (uint32_t)shard.blocks;
        for (uint32_t slice = first; slice < end; slice++) {
            assert_int_equal(rows[slice].grid[axis], shard.blocks);
            assert_int_equal(rows[slice].offset64, 3 * (uint64_t)first);
            assert_int_equal(rows[slice].count64, 3 * shard.blocks - (end == slices));
            assert_int_equal(rows[slice].offset32, first);
            assert_int_equal(rows[slice].count32, shard.blocks);
        }
        first = end;
    }
    assert_int_equal(first, slices);
    free(rows);
    muster_run_destroy(run);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
}

static void only_shards_must_be_within_the_limits_of_a_grid(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    check_long_cut(&fixture, 1, LIMIT_YZ + 1, 0, 2);
    check_long_cut(&fixture, 2, 2 * LIMIT_YZ + 1, 0, 3);
    check_long_cut(&fixture, 2, 2 * LIMIT_YZ, 2, 2);
    fixture_close(&fixture);
    fixture_open(&fixture, 3);
    check_long_cut(&fixture, 1, LIMIT_YZ + 1, 0, 3);
    check_long_cut(&fixture, 1, 3 * LIMIT_YZ + 2, 0, 5); /* two of the devices have two */
    check_long_cut(&fixture, 2, LIMIT_YZ + 1, 7, 7);
    fixture_close(&fixture);
}

/* What cannot be cut so says why; 2^32 blocks are built, not run. */
static void limits_of_a_grid_that_cutting_does_not_help(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *buffer = fixture_buffer(&fixture, 8, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_arg args[2] = {muster_buffer_arg(buffer, MUSTER_READ), muster_buffer_arg(buffer, MUSTER_READ)};
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "nothing"), 1, 1, (fixture_args){.arg = args, .count = 2});
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    dispatch.shard_axis = 1;
    dispatch.max_shards = 2;
    dispatch.grid = (muster_dim3){1, 3 * LIMIT_YZ, 1};
    FAILS(MUSTER_INVALID_GEOMETRY, "max_shards 2|98303 blocks along y|65535|to 3",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    dispatch.max_shards = 0;
    dispatch.grid = (muster_dim3){1, UINT32_MAX, 1};
    FAILS(MUSTER_LIMIT_REACHED, "4294967295 blocks along y|65535|65536|another axis",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    dispatch.grid = (muster_dim3){INT32_MAX, UINT32_MAX, 3};
    FAILS(MUSTER_INVALID_GEOMETRY, "2^64|several", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    dispatch.grid = (muster_dim3){1, 1, LIMIT_YZ + 1}; /* along another axis than it is cut */
    FAILS(MUSTER_INVALID_GEOMETRY, "65536 along z|shard the dispatch along z",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    dispatch.shard_axis = 0;
    dispatch.grid = (muster_dim3){UINT32_MAX, 1, 1};
    muster_job job = fixture_add(graph, &dispatch);
    muster_preflight_report report = {.struct_size = sizeof report};
    for (int d = 0; d < 3; d++) {
        OK(muster_preflight(graph, job, d, MUSTER_PREFLIGHT_FULL, &report, &reported));
        assert_int_equal(report.answer, MUSTER_ANSWER_YES);
        assert_int_equal(report.grid_blocks, UINT32_MAX / 3);
    }
    fixture_close(&fixture);
    fixture_open(&fixture, 1);
    graph = fixture_graph(&fixture);
    args[0] = args[1] = muster_buffer_arg(fixture_buffer(&fixture, 8, NULL), MUSTER_READ);
    dispatch.kernel = fixture_kernel(&fixture, "nothing");
    job = fixture_add(graph, &dispatch);
    OK(muster_preflight(graph, job, 0, MUSTER_PREFLIGHT_FULL, &report, &reported));
    assert_int_equal(report.answer, MUSTER_ANSWER_YES);
    assert_int_equal(report.grid_blocks, UINT32_MAX / 3 + (UINT32_MAX % 3 != 0));
    args[1] = muster_buffer_arg(fixture_buffer(&fixture, 8, NULL), MUSTER_WRITE); /* one device, yet three shards */
    FAILS(MUSTER_UNCUTTABLE, "argument 1|replicated|2147483647|3 shards",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    fixture_close(&fixture);
}

static void without_the_flag_offset_and_count_are_the_whole(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 4);
    muster_buffer *buffer = fixture_buffer(&fixture, 5 * sizeof(row), NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "record"), 5, THREADS,
                         ARGS(muster_buffer_arg(buffer, MUSTER_WRITE), muster_shard_offset_arg(THREADS, 150, 8),
                              muster_shard_count_arg(THREADS, 150, 8), muster_shard_offset_arg(THREADS, 150, 4),
                              muster_shard_count_arg(THREADS, 150, 4)));
    fixture_add(graph, &dispatch);
    fixture_run(&fixture, graph);
    row rows[5];
    fixture_read(buffer, 0, sizeof rows, rows);
    for (int b = 0; b < 5; b++) {
        assert_int_equal(rows[b].grid[0], 5);
        assert_int_equal(rows[b].offset64, 0);
        assert_int_equal(rows[b].offset32, 0);
        assert_int_equal(rows[b].count64, 150);
        assert_int_equal(rows[b].count32, 150);
    }
    fixture_close(&fixture);
}

/* The shards of one dispatch run on all devices, not one after the other on one. */
static void shards_run_on_all_devices(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 4);
    muster_buffer *out = fixture_buffer(&fixture, 4096, NULL), *in = fixture_buffer(&fixture, 4096, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "mix32"), 32, THREADS,
                         ARGS(muster_block_cut(muster_buffer_arg(out, MUSTER_WRITE), 4 * THREADS),
                              muster_block_cut(muster_buffer_arg(in, MUSTER_READ), 4 * THREADS), muster_u32_arg(1),
                              muster_shard_offset_arg(THREADS, 1024, 4), muster_shard_count_arg(THREADS, 1024, 4)));
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    fixture_add(graph, &dispatch);
    fixture_run(&fixture, graph);
    for (int device = 0; device < 4; device++) {
        muster_device_stats stats = {.struct_size = sizeof stats};
        OK(muster_device_get_stats(fixture.runtime, device, &stats, &reported));
        assert_int_equal(stats.launches, 1);
    }
    fixture_close(&fixture);
}

/* ------------------------------------------------------------------------------------------------------- the result -- */

enum { ELEMENTS = 1000, BINS = 7 };

/* mix (block, block, replicate) followed by twiddle (read-write block) and a copy out, cut or whole. */
static void run_pipeline(uint32_t devices, bool sharded, uint32_t max_shards, uint32_t result[ELEMENTS]) {
    fixture fixture;
    fixture_open(&fixture, devices);
    uint32_t input[ELEMENTS];
    for (uint32_t i = 0; i < ELEMENTS; i++) input[i] = i * 2654435761u;
    muster_buffer *in = fixture_buffer(&fixture, sizeof input, input);
    muster_buffer *middle = fixture_buffer(&fixture, sizeof input, NULL);
    muster_buffer *out = fixture_buffer(&fixture, sizeof input, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (int round = 0; round < 3; round++) {
        muster_buffer *source = round ? out : in;
        muster_arg offset = muster_shard_offset_arg(THREADS, ELEMENTS, 8);
        muster_arg count = muster_shard_count_arg(THREADS, ELEMENTS, 8);
        muster_dispatch mix = fixture_dispatch(
            fixture_kernel(&fixture, "mix"), (ELEMENTS + THREADS - 1) / THREADS, THREADS,
            ARGS(muster_block_cut(muster_buffer_arg(middle, MUSTER_WRITE), 4 * THREADS),
                 muster_block_cut(muster_buffer_arg(source, MUSTER_READ), 4 * THREADS),
                 muster_buffer_arg(source, MUSTER_READ), muster_u32_arg(ELEMENTS), muster_u32_arg(99), offset, count));
        muster_dispatch twiddle = fixture_dispatch(
            fixture_kernel(&fixture, "twiddle"), (ELEMENTS + THREADS - 1) / THREADS, THREADS,
            ARGS(muster_block_cut(muster_buffer_arg(middle, MUSTER_READ_WRITE), 4 * THREADS),
                 muster_buffer_arg(source, MUSTER_READ), muster_u32_arg(ELEMENTS), muster_u32_arg(5), offset, count));
        mix.flags = twiddle.flags = sharded ? MUSTER_DISPATCH_SHARDED : 0;
        mix.max_shards = max_shards;
        fixture_add(graph, &mix);
        fixture_add(graph, &twiddle);
        OK(muster_graph_copy(graph, out, 0, middle, 0, sizeof input, NULL, &reported));
    }
    fixture_run(&fixture, graph);
    fixture_read(out, 0, sizeof input, result);
    fixture_close(&fixture);
}

static void a_cut_dispatch_gives_the_bytes_of_the_whole(void **state) {
    (void)state;
    uint32_t whole[ELEMENTS], cut[ELEMENTS];
    run_pipeline(1, false, 0, whole);
    for (uint32_t devices = 1; devices <= MOST_DEVICES; devices++) {
        run_pipeline(devices, true, devices == 5 ? 13 : 0, cut);
        assert_memory_equal(cut, whole, sizeof whole);
    }
}

/* Old values, and sums of whole numbers, as any of the six types. */
static double old_value(muster_type type, uint32_t bin) {
    return type == MUSTER_I32 || type == MUSTER_I64 ? -1000.0 - bin : 1000.0 + bin;
}

static void put(void *at, muster_type type, double value) {
    int32_t i32 = (int32_t)value;
    int64_t i64 = (int64_t)value;
    float f32 = (float)value;
    switch (type) {
        case MUSTER_I32:
        case MUSTER_U32: memcpy(at, &i32, 4); break;
        case MUSTER_I64:
        case MUSTER_U64: memcpy(at, &i64, 8); break;
        case MUSTER_F32: memcpy(at, &f32, 4); break;
        case MUSTER_F64: memcpy(at, &value, 8); break;
    }
}

/* Sums over `devices` devices, cut or whole, starting from old values; the range lies in the middle of its buffer. */
static void run_sum(uint32_t devices, bool sharded, muster_type type, unsigned char result[8 * (BINS + 2)]) {
    static const char *const kernels[] = {"", "sum_i32", "sum_u32", "sum_i64", "sum_u64", "sum_f32", "sum_f64"};
    uint32_t width = type == MUSTER_I32 || type == MUSTER_U32 || type == MUSTER_F32 ? 4 : 8;
    fixture fixture;
    fixture_open(&fixture, devices);
    uint32_t input[ELEMENTS];
    for (uint32_t i = 0; i < ELEMENTS; i++) input[i] = i * 2654435761u;
    memset(result, 0, 8 * (BINS + 2));
    for (uint32_t bin = 0; bin < BINS + 2; bin++) put(result + bin * width, type, old_value(type, bin));
    muster_buffer *in = fixture_buffer(&fixture, sizeof input, input);
    muster_buffer *acc = fixture_buffer(&fixture, (BINS + 2) * (uint64_t)width, result);
    muster_graph *graph = fixture_graph(&fixture);
    muster_arg sum = muster_sum_arg(acc, type);
    sum.offset_bytes = width;
    sum.bytes = BINS * (uint64_t)width;
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(&fixture, kernels[type]), (ELEMENTS + THREADS - 1) / THREADS, THREADS,
        ARGS(sum, muster_u32_arg(BINS), muster_block_cut(muster_buffer_arg(in, MUSTER_READ), 4 * THREADS),
             muster_u32_arg(3), muster_shard_offset_arg(THREADS, ELEMENTS, 8),
             muster_shard_count_arg(THREADS, ELEMENTS, 8)));
    dispatch.flags = sharded ? MUSTER_DISPATCH_SHARDED : 0;
    fixture_add(graph, &dispatch);
    fixture_run(&fixture, graph);
    fixture_run(&fixture, graph); /* the first sum is the second's old value */
    fixture_read(acc, 0, (BINS + 2) * (uint64_t)width, result);
    fixture_close(&fixture);
}

static void sums_count_the_old_value_once(void **state) {
    (void)state;
    unsigned char whole[8 * (BINS + 2)], cut[8 * (BINS + 2)], old[8];
    for (muster_type type = MUSTER_I32; type <= MUSTER_F64; type++) {
        uint32_t width = type == MUSTER_I32 || type == MUSTER_U32 || type == MUSTER_F32 ? 4 : 8;
        run_sum(1, false, type, whole);
        /* The neighbours of the range are untouched, the sums are not. */
        put(old, type, old_value(type, 0));
        assert_memory_equal(whole, old, width);
        put(old, type, old_value(type, 1));
        assert_memory_not_equal(whole + width, old, width);
        put(old, type, old_value(type, BINS + 1));
        assert_memory_equal(whole + (BINS + 1) * width, old, width);
        for (uint32_t devices = 1; devices <= MOST_DEVICES; devices += devices < 3 ? 1 : 2) {
            run_sum(devices, true, type, cut);
            assert_memory_equal(cut, whole, (BINS + 2) * width);
        }
    }
}

/* Kernel calls counted in the sum: with the old value 0 and an input of equal elements, each adds the same. */
static void a_sum_of_many_shards_adds_each_element_once(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 4);
    muster_buffer *in = fixture_buffer(&fixture, 4 * ELEMENTS, NULL), *acc[2];
    uint32_t sum[2] = {0, 0};
    for (int cut = 0; cut < 2; cut++) {
        acc[cut] = fixture_buffer(&fixture, 4, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        muster_dispatch dispatch = fixture_dispatch(
            fixture_kernel(&fixture, "sum_u32"), (ELEMENTS + THREADS - 1) / THREADS, THREADS,
            ARGS(muster_sum_arg(acc[cut], MUSTER_U32), muster_u32_arg(1),
                 muster_block_cut(muster_buffer_arg(in, MUSTER_READ), 4 * THREADS), muster_u32_arg(3),
                 muster_shard_offset_arg(THREADS, ELEMENTS, 8), muster_shard_count_arg(THREADS, ELEMENTS, 8)));
        dispatch.flags = cut ? MUSTER_DISPATCH_SHARDED : 0;
        dispatch.max_shards = cut ? 25 : 0;
        fixture_add(graph, &dispatch);
        fixture_run(&fixture, graph);
        sum[cut] = fixture_word(acc[cut], 0);
    }
    assert_int_equal(sum[0], sum[1]);
    assert_int_not_equal(sum[0], 0);
    fixture_close(&fixture);
}

/* A shard may need a part of a buffer that starts at an odd byte; what else is in that part must still be aligned for
 * whoever reads it there. */
static void parts_of_a_buffer_keep_their_alignment(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    uint8_t host[88];
    uint32_t words[4], expected[4];
    for (int i = 0; i < 88; i++) host[i] = (uint8_t)(7 * i);
    memcpy(expected, host + 72, sizeof expected);
    muster_buffer *in = fixture_buffer(&fixture, sizeof host, host), *out = fixture_buffer(&fixture, 64, NULL);
    muster_buffer *copy = fixture_buffer(&fixture, 16, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch cut =
        fixture_dispatch(fixture_kernel(&fixture, "bytes"), 2, 33,
                         ARGS(muster_block_cut(muster_range_arg(out, MUSTER_WRITE, 0, 52), 33),
                              muster_block_cut(muster_range_arg(in, MUSTER_READ, 36, 52), 33), muster_u32_arg(1),
                              muster_shard_offset_arg(33, 52, 4), muster_shard_count_arg(33, 52, 4)));
    cut.flags = MUSTER_DISPATCH_SHARDED;
    muster_dispatch aligned =
        fixture_dispatch(fixture_kernel(&fixture, "mix32"), 1, 4,
                         ARGS(muster_buffer_arg(copy, MUSTER_WRITE), muster_range_arg(in, MUSTER_READ, 72, 16),
                              muster_u32_arg(0), muster_shard_offset_arg(4, 4, 4), muster_shard_count_arg(4, 4, 4)));
    aligned.pin_device = 1;
    aligned.device = 1;
    aligned.after_count = 1;
    aligned.after = (const muster_job[]){fixture_add(graph, &cut)};
    fixture_add(graph, &aligned);
    fixture_run(&fixture, graph);
    fixture_read(copy, 0, sizeof words, words);
    for (uint32_t g = 0; g < 4; g++) assert_int_equal(words[g], mixed(expected[g]) ^ g);
    fixture_close(&fixture);
}

/* A failed shard fails the job, and its descendants on whatever device. */
static void a_failed_shard_fails_the_job(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(3, FIXTURE_FAIL_LAUNCH(1, 1), spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture;
    fixture_open_with(&fixture, 3, &config);
    muster_buffer *out = fixture_buffer(&fixture, 4096, NULL), *in = fixture_buffer(&fixture, 4096, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "mix32"), 32, THREADS,
                         ARGS(muster_block_cut(muster_buffer_arg(out, MUSTER_WRITE), 4 * THREADS),
                              muster_block_cut(muster_buffer_arg(in, MUSTER_READ), 4 * THREADS), muster_u32_arg(1),
                              muster_shard_offset_arg(THREADS, 1024, 4), muster_shard_count_arg(THREADS, 1024, 4)));
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    muster_job cut = fixture_add(graph, &dispatch), follower;
    OK(muster_graph_copy(graph, in, 0, out, 0, 4096, &follower, &reported));
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_LAUNCH_FAILED, "mix32", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, cut).status, MUSTER_LAUNCH_FAILED);
    assert_int_equal(fixture_result(run, follower).status, MUSTER_PREDECESSOR_FAILED);
    fixture_close(&fixture);
}

/* The kernel that adds shards up reads whole elements. */
static void a_reduced_range_begins_at_an_element(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_arg sum = muster_sum_arg(buffer, MUSTER_F64);
    sum.offset_bytes = 4;
    sum.bytes = 16;
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "nothing"), 4, 1, ARGS(sum, muster_buffer_arg(buffer, MUSTER_READ)));
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    FAILS(MUSTER_INVALID_ARGUMENT, "offset 4", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_are_covered_exactly_once),
        cmocka_unit_test(the_last_slice_may_be_short),
        cmocka_unit_test(max_shards_says_how_many),
        cmocka_unit_test(only_shards_must_be_within_the_limits_of_a_grid),
        cmocka_unit_test(limits_of_a_grid_that_cutting_does_not_help),
        cmocka_unit_test(without_the_flag_offset_and_count_are_the_whole),
        cmocka_unit_test(shards_run_on_all_devices),
        cmocka_unit_test(a_cut_dispatch_gives_the_bytes_of_the_whole),
        cmocka_unit_test(sums_count_the_old_value_once),
        cmocka_unit_test(a_sum_of_many_shards_adds_each_element_once),
        cmocka_unit_test(parts_of_a_buffer_keep_their_alignment),
        cmocka_unit_test(a_failed_shard_fails_the_job),
        cmocka_unit_test(a_reduced_range_begins_at_an_element),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
