/* Dispatches over devices of unlike speed: how they are cut, and that they adapt. Simulated devices take what the model says, so nothing here
 * depends on this machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/driver.h"
#include "device/sim/sim.h"
#include "scheduler/graph/graph.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

enum { BLOCKS = 256, THREADS = 32, ELEMENTS = BLOCKS * THREADS, MOST = 8 };

/* Devices that look alike, and execute so many instructions in 1000 ns. A launch of some blocks takes long enough to count. Nothing is known
 * of earlier runtimes. */
static void open_devices(fixture *fixture, uint32_t count, const uint32_t *speeds) {
    char spec[FIXTURE_SPEC_BYTES];
    size_t used = (size_t)snprintf(spec, sizeof spec, "{\"devices\": [");
    for (uint32_t d = 0; d < count; d++)
        used += (size_t)snprintf(spec + used, sizeof spec - used,
                                 "%s{\"sms\": 2, \"launch_ns\": 3600, \"instructions_per_ns\": %g}", d ? ", " : "",
                                 speeds[d] / 1000.0);
    snprintf(spec + used, sizeof spec - used, "]}");
    fixture_open_with(
        fixture, count,
        &(muster_config){
            .struct_size = sizeof(muster_config), .flags = MUSTER_RUNTIME_NO_STEALING, .cache_dir = "", .sim = spec});
}

typedef struct work {
    muster_buffer *out, *in;
    uint32_t input[ELEMENTS];
} work;

static uint32_t mixed(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static void make_work(const fixture *fixture, work *work) {
    for (uint32_t i = 0; i < ELEMENTS; i++) work->input[i] = mixed(i);
    work->out = fixture_buffer(fixture, sizeof work->input, NULL);
    work->in = fixture_buffer(fixture, sizeof work->input, work->input);
}

static void add_cut(const fixture *fixture, muster_graph *graph, const work *work, uint32_t blocks, uint32_t max_shards,
                    uint32_t iterations) {
    uint32_t elements = blocks * THREADS;
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(fixture, "mix32"), blocks, THREADS,
        ARGS(muster_block_cut(muster_buffer_arg(work->out, MUSTER_WRITE), 4 * THREADS),
             muster_block_cut(muster_buffer_arg(work->in, MUSTER_READ), 4 * THREADS), muster_u32_arg(7),
             muster_shard_offset_arg(THREADS, elements, 4), muster_shard_count_arg(THREADS, elements, 4)));
    dispatch.flags = MUSTER_DISPATCH_SHARDED | (iterations ? MUSTER_DISPATCH_ITERATED : 0);
    dispatch.iterations = iterations;
    dispatch.max_shards = max_shards;
    fixture_add(graph, &dispatch);
}

static muster_graph *cut(const fixture *fixture, const work *work, uint32_t blocks, uint32_t max_shards,
                         uint32_t iterations) {
    muster_graph *graph = fixture_graph(fixture);
    add_cut(fixture, graph, work, blocks, max_shards, iterations);
    return graph;
}

static void check_result(const work *work, uint32_t blocks) {
    uint32_t found[ELEMENTS];
    fixture_read(work->out, 0, 4 * blocks * THREADS, found);
    for (uint32_t i = 0; i < blocks * THREADS; i++) assert_int_equal(found[i], mixed(work->input[i] + 7) ^ i);
}

/* Blocks and shards that are meant for each device; their number. */
static uint32_t meant(const muster_graph *graph, uint32_t blocks[MOST], uint32_t shards[MOST]) {
    uint32_t count = 0;
    memset(blocks, 0, MOST * sizeof *blocks);
    memset(shards, 0, MOST * sizeof *shards);
    for (size_t n = 0; n < graph->node_count; n++) {
        const mu_node *node = &graph->nodes[n];
        if (node->kind != MU_NODE_DISPATCH || node->flags & (MU_NODE_BUILT_IN | MU_NODE_REPEAT)) continue;
        blocks[node->pin] += node->as.dispatch->grid[0];
        shards[node->pin]++;
        count++;
    }
    return count;
}

static uint64_t executed(const fixture *fixture, int device) {
    mu_sim_statistics statistics;
    mu_sim_get_statistics(fixture_driver(fixture), device, &statistics);
    return statistics.instructions;
}

/* Runs the graph with the devices held until all of it is placed, so that the queues do not depend on when that is. Which part of the work each
 * device did, in 1/1000. */
static void run_and_count(const fixture *fixture, muster_graph *graph, uint32_t permille[MOST]) {
    uint64_t before[MOST], total = 0;
    int devices = muster_device_count(fixture->runtime);
    for (int d = 0; d < devices; d++) before[d] = executed(fixture, d);
    fixture_hold_all(fixture, true);
    muster_run *run = fixture_submit(fixture, graph);
    fixture_hold_all(fixture, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    for (int d = 0; d < devices; d++) total += before[d] = executed(fixture, d) - before[d];
    for (int d = 0; d < devices; d++) permille[d] = (uint32_t)(before[d] * 1000 / total);
}

/* ---------------------------------------------------------------------------------------------------------- the cut -- */

static void parts_follow_measured_speed(void **state) {
    (void)state;
    static const uint32_t speeds[] = {100, 50, 200};
    fixture fixture;
    work work;
    uint32_t blocks[MOST], shards[MOST];
    open_devices(&fixture, 3, speeds);
    make_work(&fixture, &work);
    /* They look alike until they have run it. */
    muster_graph *graph = cut(&fixture, &work, BLOCKS, 0, 0);
    assert_int_equal(meant(graph, blocks, shards), 3);
    for (int d = 0; d < 3; d++) assert_in_range(blocks[d], BLOCKS / 3, BLOCKS / 3 + 1);
    fixture_run(&fixture, graph);
    check_result(&work, BLOCKS);
    for (int round = 0; round < 5; round++) {
        graph = cut(&fixture, &work, BLOCKS, 0, 0);
        assert_int_equal(meant(graph, blocks, shards), 12);
        for (int d = 0; d < 3; d++) {
            assert_int_equal(shards[d], 4);
            assert_in_range(blocks[d], BLOCKS * speeds[d] / 350 - 3, BLOCKS * speeds[d] / 350 + 3);
        }
        fixture_run(&fixture, graph);
        check_result(&work, BLOCKS);
    }
    /* What the application says stands, its parts are equal, and the quicker devices get more of them. */
    graph = cut(&fixture, &work, BLOCKS, 64, 0);
    assert_int_equal(meant(graph, blocks, shards), 64);
    for (int d = 0; d < 3; d++) {
        assert_int_equal(blocks[d], 4 * shards[d]);
        assert_in_range(shards[d], 64 * speeds[d] / 350 - 1, 64 * speeds[d] / 350 + 1);
    }
    fixture_run(&fixture, graph);
    check_result(&work, BLOCKS);
    /* Each shard's iterations stay together. */
    graph = cut(&fixture, &work, BLOCKS, 0, 3);
    assert_int_equal(meant(graph, blocks, shards), 12);
    fixture_run(&fixture, graph);
    check_result(&work, BLOCKS);
    fixture_close(&fixture);
}

static void equal_devices_keep_one_shard_each(void **state) {
    (void)state;
    static const uint32_t speeds[] = {100, 95, 100, 98};
    fixture fixture;
    work work;
    uint32_t blocks[MOST], shards[MOST];
    open_devices(&fixture, 4, speeds);
    make_work(&fixture, &work);
    for (int round = 0; round < 6; round++) {
        uint32_t size = round % 2 ? BLOCKS : 40;
        muster_graph *graph = cut(&fixture, &work, size, 0, 0);
        assert_int_equal(meant(graph, blocks, shards), 4);
        for (int d = 0; d < 4; d++) assert_int_equal(blocks[d], size / 4);
        for (size_t n = 0; n < graph->node_count; n++) assert_false(graph->nodes[n].flags & MU_NODE_SPREAD);
        fixture_run(&fixture, graph);
        check_result(&work, size);
    }
    fixture_close(&fixture);
}

static void tell(const fixture *fixture, const char *kernel, uint32_t devices, const uint64_t *paces_ps) {
    muster_kernel *of = fixture_kernel(fixture, kernel);
    for (uint32_t d = 0; d < devices; d++) atomic_store(&of->wide_pace_ps[d], paces_ps[d]);
}

/* A device whose part would save less than it costs; and parts that would be shorter than they cost. */
static void small_parts_are_not_made(void **state) {
    (void)state;
    static const uint32_t speeds[] = {100, 100, 100};
    fixture fixture;
    work work;
    uint32_t blocks[MOST], shards[MOST];
    open_devices(&fixture, 3, speeds);
    make_work(&fixture, &work);
    /* 256 blocks of 1 us: 256 us alone. The third would save less than 1 us, */
    tell(&fixture, "mix32", 3, (const uint64_t[]){1000000, 2000000, 500000000});
    assert_int_equal(meant(cut(&fixture, &work, BLOCKS, 0, 0), blocks, shards), 6); /* 3 each, of 170 us together */
    assert_in_range(blocks[0], 170, 171);
    assert_int_equal(shards[0], 3);
    assert_int_equal(shards[1], 3);
    /* and of 10 blocks the second would save 3 us. */
    assert_int_equal(meant(cut(&fixture, &work, 10, 0, 0), blocks, shards), 1);
    assert_int_equal(blocks[0], 10);
    /* With one slice more than fits in the time of the others it would be the last by far. */
    tell(&fixture, "mix32", 3, (const uint64_t[]){1000000000, 1000000000, 20000000000});
    meant(cut(&fixture, &work, 11, 0, 0), blocks, shards);
    assert_int_equal(blocks[2], 0);
    assert_in_range(blocks[0], 5, 6);
    /* Now and then even so, to see whether it still is so slow: within 8 graphs. */
    tell(&fixture, "mix32", 3, (const uint64_t[]){1000000, 1000000, 100000000});
    uint32_t looks = 0;
    for (int i = 0; i < 16; i++) {
        meant(cut(&fixture, &work, BLOCKS, 0, 0), blocks, shards);
        looks += blocks[2] != 0;
    }
    assert_int_equal(looks, 2);
    fixture_close(&fixture);
}

/* Before anything has run: multiprocessors and clocks; or what another kernel of the graph took. */
static void unknown_kernels_are_cut_by_what_devices_are(void **state) {
    (void)state;
    fixture fixture;
    work work;
    uint32_t blocks[MOST], shards[MOST];
    fixture_open_with(&fixture, 2,
                      &(muster_config){.struct_size = sizeof(muster_config),
                                       .flags = MUSTER_RUNTIME_NO_STEALING,
                                       .cache_dir = "",
                                       .sim = "{\"devices\": [{\"sms\": 30, \"clock_khz\": 1000000}, {\"sms\": 10, "
                                              "\"clock_khz\": 2000000}]}"});
    make_work(&fixture, &work);
    muster_graph *graph = cut(&fixture, &work, 250, 0, 0);
    assert_int_equal(meant(graph, blocks, shards), 8);
    assert_int_equal(blocks[0], 150);
    assert_int_equal(blocks[1], 100);
    fixture_run(&fixture, graph);
    check_result(&work, 250);
    tell(&fixture, "mix32", 2, (const uint64_t[]){0, 0});
    tell(&fixture, "affine", 2, (const uint64_t[]){3000, 1000});
    graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, work.in, 1, 0);
    add_cut(&fixture, graph, &work, 200, 0, 0);
    uint32_t affine_blocks = graph->nodes[0].as.dispatch->grid[0];
    assert_int_equal(graph->nodes[0].pin, MUSTER_ANY_DEVICE);
    graph->nodes[0].pin = 0; /* for the count */
    meant(graph, blocks, shards);
    assert_int_equal(blocks[0] - affine_blocks, 50);
    assert_int_equal(blocks[1], 150);
    fixture_close(&fixture);
}

/* A launch that is short, or leaves multiprocessors without a block, says nothing of a device. */
static void small_launches_do_not_count(void **state) {
    (void)state;
    fixture fixture;
    work work;
    fixture_open_with(
        &fixture, 2,
        &(muster_config){.struct_size = sizeof(muster_config),
                         .sim = "{\"devices\": [{\"sms\": 200, \"instructions_per_ns\": 0.1}, {\"sms\": 200, "
                                "\"instructions_per_ns\": 1000}]}"});
    make_work(&fixture, &work);
    for (int i = 0; i < 3; i++) fixture_run(&fixture, cut(&fixture, &work, BLOCKS, 0, 0));
    const muster_kernel *kernel = fixture_kernel(&fixture, "mix32");
    for (int d = 0; d < 2; d++) {
        assert_int_equal(atomic_load(&kernel->wide_pace_ps[d]), 0); /* half of the blocks are too few for 200 */
        assert_int_not_equal(atomic_load(&kernel->pace_ps[d]), 0);
    }
    /* All of them on one device are enough, but the second is too quick. */
    fixture_run(&fixture, cut(&fixture, &work, BLOCKS, 1, 0));
    assert_int_not_equal(atomic_load(&kernel->wide_pace_ps[0]), 0);
    fixture_close(&fixture);
}

/* Up to 2^63 bytes, beyond 2^63 elements, and over 2^31 in values of four bytes: nobody has such memory, but the cut is exact. */
static void the_largest_ranges_are_cut_exactly(void **state) {
    (void)state;
    static const uint32_t speeds[] = {100, 100, 100};
    static const struct {
        uint64_t slice_bytes, slice_elements;
        uint32_t slices, shards;
    } cases[] = {{(UINT64_C(1) << 32) - 8, (UINT64_C(1) << 32) + 3, INT32_MAX, 1000},
                 {UINT64_C(1) << 32, UINT64_C(1) << 33, INT32_MAX, 7},
                 {1, 1, INT32_MAX, 65536},
                 {UINT64_C(1) << 61, UINT64_C(1) << 62, 3, 3},
                 {3, 1, 1000003, 64}};
    fixture fixture;
    open_devices(&fixture, 3, speeds);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint64_t slices = cases[c].slices, bytes = slices * cases[c].slice_bytes - (cases[c].slice_bytes > 1);
        uint64_t elements = slices * cases[c].slice_elements - (cases[c].slice_elements > 1);
        muster_buffer *buffer = fixture_buffer(&fixture, bytes, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        muster_dispatch dispatch = fixture_dispatch(
            fixture_kernel(&fixture, "record"), cases[c].slices, 1,
            ARGS(muster_block_cut(muster_buffer_arg(buffer, MUSTER_WRITE), cases[c].slice_bytes),
                 muster_shard_offset_arg(cases[c].slice_elements, elements, 8),
                 muster_shard_count_arg(cases[c].slice_elements, elements, 8),
                 muster_shard_offset_arg(2, 2 * slices - 1, 4), muster_shard_count_arg(2, 2 * slices - 1, 4)));
        dispatch.flags = MUSTER_DISPATCH_SHARDED;
        dispatch.max_shards = cases[c].shards;
        fixture_add(graph, &dispatch);
        assert_int_equal(graph->node_count, cases[c].shards);
        uint64_t slice = 0, at = 0, element = 0, small = 0;
        for (size_t n = 0; n < graph->node_count; n++) {
            const mu_node *node = &graph->nodes[n];
            const mu_access *access = &graph->accesses[node->access_first];
            const mu_parameter *parameter = &graph->parameters[node->parameter_first];
            uint64_t offset, count;
            uint32_t offset32, count32;
            memcpy(&offset, graph->values->data + parameter[1].index, 8);
            memcpy(&count, graph->values->data + parameter[2].index, 8);
            memcpy(&offset32, graph->values->data + parameter[3].index, 4);
            memcpy(&count32, graph->values->data + parameter[4].index, 4);
            assert_true(node->as.dispatch->grid[0] > 0);
            slice += node->as.dispatch->grid[0];
            bool last = n + 1 == graph->node_count;
            assert_true(access->low == at && offset == element && offset32 == small);
            at = last ? bytes : slice * cases[c].slice_bytes;
            assert_true(access->high == at);
            element = offset + count;
            small = (uint64_t)offset32 + count32;
            assert_true(element == (last ? elements : slice * cases[c].slice_elements));
            assert_true(small == (last ? 2 * slices - 1 : 2 * slice));
        }
        assert_true(slice == slices);
        /* Without a number of shards, so much is more waves than there can be; nothing wraps into fitting. */
        dispatch.max_shards = 0;
        muster_status status = muster_graph_dispatch(graph, &dispatch, NULL, &reported);
        assert_true(c >= 2 ? status == MUSTER_OK || status == MUSTER_UNCUTTABLE : status == MUSTER_LIMIT_REACHED);
        if (c == 3) assert_int_equal(status, MUSTER_UNCUTTABLE);
        muster_graph_destroy(graph);
        muster_buffer_destroy(buffer);
    }
    fixture_close(&fixture);
}

/* ------------------------------------------------------------------------------------------------------- adaptation -- */

/* A graph that is run again and again. */
static void shards_leave_a_device_that_has_become_slow(void **state) {
    (void)state;
    static const uint32_t speeds[] = {200, 100};
    fixture fixture;
    work work;
    uint32_t blocks[MOST], shards[MOST], permille[MOST];
    open_devices(&fixture, 2, speeds);
    make_work(&fixture, &work);
    fixture_run(&fixture, cut(&fixture, &work, BLOCKS, 0, 0));
    muster_graph *graph = cut(&fixture, &work, BLOCKS, 0, 0);
    assert_int_equal(meant(graph, blocks, shards), 8);
    for (int i = 0; i < 3; i++) {
        run_and_count(&fixture, graph, permille);
        assert_in_range(permille[0], 650, 680);
    }
    /* Four times slower: 2 : 1 becomes 1 : 2. Of the four parts, a sixth each, two leave. */
    mu_sim_slow_down(fixture_driver(&fixture), 0, 300);
    for (int i = 0; i < 20; i++) run_and_count(&fixture, graph, permille);
    assert_in_range(permille[0], 320, 350);
    check_result(&work, BLOCKS);
    /* A graph that is built now has it in its cut. */
    meant(cut(&fixture, &work, BLOCKS, 0, 0), blocks, shards);
    assert_in_range(blocks[0], BLOCKS / 3 - 8, BLOCKS / 3 + 8);
    /* They come back. */
    mu_sim_slow_down(fixture_driver(&fixture), 0, 0);
    for (int i = 0; i < 40; i++) run_and_count(&fixture, graph, permille);
    assert_in_range(permille[0], 650, 680);
    check_result(&work, BLOCKS);
    fixture_close(&fixture);
}

/* A device that gets nothing any more is seen again when it could. */
static void a_device_that_was_left_is_looked_at(void **state) {
    (void)state;
    static const uint32_t speeds[] = {200, 100};
    fixture fixture;
    work work;
    uint32_t permille[MOST];
    open_devices(&fixture, 2, speeds);
    make_work(&fixture, &work);
    fixture_run(&fixture, cut(&fixture, &work, BLOCKS, 0, 0));
    muster_graph *graph = cut(&fixture, &work, BLOCKS, 0, 0);
    mu_sim_slow_down(fixture_driver(&fixture), 0, 10000);
    uint32_t none = 0;
    for (int i = 0; i < 60; i++) {
        run_and_count(&fixture, graph, permille);
        none += permille[0] == 0;
    }
    assert_in_range(none, 30, 59);
    mu_sim_slow_down(fixture_driver(&fixture), 0, 0);
    for (int i = 0; i < 200; i++) run_and_count(&fixture, graph, permille);
    assert_in_range(permille[0], 650, 680);
    check_result(&work, BLOCKS);
    fixture_close(&fixture);
}

/* What else is queued on a device counts. */
static void shards_go_round_a_queue(void **state) {
    (void)state;
    static const uint32_t speeds[] = {150, 100};
    fixture fixture;
    work work;
    open_devices(&fixture, 2, speeds);
    make_work(&fixture, &work);
    fixture_run(&fixture, cut(&fixture, &work, BLOCKS, 0, 0));
    muster_graph *graph = cut(&fixture, &work, BLOCKS, 0, 0), *other = fixture_graph(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, 4096, NULL);
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(&fixture, "affine"), 16, 64,
        ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(1024)));
    dispatch.pin_device = 1;
    dispatch.device = 1;
    fixture_add(other, &dispatch);
    fixture_run(&fixture, other);
    atomic_store(&fixture_kernel(&fixture, "affine")->pace_ps[1], UINT64_C(10000000000)); /* 10 ms a block */
    fixture_hold_all(&fixture, true);
    muster_run *first = fixture_submit(&fixture, other), *second = fixture_submit(&fixture, graph);
    fixture_hold_all(&fixture, false);
    OK(muster_run_wait(first, fixture_wait_ns, &reported));
    OK(muster_run_wait(second, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(second, 0).device, 0);
    assert_int_equal(fixture_result(second, 0).shards, 8);
    check_result(&work, BLOCKS);
    /* All eight went to device 0. */
    for (uint32_t n = 0; n < second->task_count; n++) assert_int_equal(second->tasks[n].device, 0);
    fixture_close(&fixture);
}

/* Copies of reduced arguments belong to the device that shards are meant for, wherever they run. */
static void sums_are_right_while_shards_move(void **state) {
    (void)state;
    enum { BINS = 7 };
    static const uint32_t speeds[] = {200, 100, 50};
    fixture fixture;
    work work;
    uint32_t expected[BINS], found[BINS];
    open_devices(&fixture, 3, speeds);
    make_work(&fixture, &work);
    muster_buffer *acc = fixture_buffer(&fixture, sizeof expected, NULL);
    muster_graph *graph = NULL;
    for (int build = 0; build < 2; build++) {
        graph = fixture_graph(&fixture);
        muster_dispatch dispatch = fixture_dispatch(
            fixture_kernel(&fixture, "sum_u32"), BLOCKS, THREADS,
            ARGS(muster_sum_arg(acc, MUSTER_U32), muster_u32_arg(BINS),
                 muster_block_cut(muster_buffer_arg(work.in, MUSTER_READ), 4 * THREADS), muster_u32_arg(3),
                 muster_shard_offset_arg(THREADS, ELEMENTS, 8), muster_shard_count_arg(THREADS, ELEMENTS, 8)));
        dispatch.flags = MUSTER_DISPATCH_SHARDED;
        fixture_add(graph, &dispatch);
        if (!build) fixture_run(&fixture, graph);
    }
    uint32_t blocks[MOST], shards[MOST];
    assert_int_equal(meant(graph, blocks, shards), 12);
    memset(expected, 0, sizeof expected);
    fixture_write(acc, 0, sizeof expected, expected);
    bool moved = false;
    for (int round = 0; round < 30; round++) {
        mu_sim_slow_down(fixture_driver(&fixture), 0, round / 10 == 1 ? 900 : 0);
        uint32_t permille[MOST];
        run_and_count(&fixture, graph, permille);
        moved |= permille[0] < 400;
        for (uint32_t i = 0; i < ELEMENTS; i++) {
            uint32_t h = mixed(work.input[i] + 3 + i);
            expected[h % BINS] += h;
        }
        fixture_read(acc, 0, sizeof found, found);
        assert_memory_equal(found, expected, sizeof found);
    }
    assert_true(moved);
    fixture_close(&fixture);
}

/* Shards meant for a lost device, of graphs built before and after. */
static void a_lost_device_gets_no_shards(void **state) {
    (void)state;
    static const uint32_t speeds[] = {200, 100, 50};
    fixture fixture;
    work work;
    uint32_t blocks[MOST], shards[MOST];
    open_devices(&fixture, 3, speeds);
    make_work(&fixture, &work);
    fixture_run(&fixture, cut(&fixture, &work, BLOCKS, 0, 0));
    muster_graph *graph = cut(&fixture, &work, BLOCKS, 0, 0);
    fixture_run(&fixture, graph);
    check_result(&work, BLOCKS); /* it is home */
    mu_sim_lose_device(fixture_driver(&fixture), 2);
    muster_run *run = fixture_submit(&fixture, graph);
    muster_run_wait(run, fixture_wait_ns, &reported); /* it may be what finds out */
    fixture_run(&fixture, graph);
    check_result(&work, BLOCKS);
    graph = cut(&fixture, &work, BLOCKS, 0, 0);
    assert_int_equal(meant(graph, blocks, shards), 8);
    assert_int_equal(blocks[2], 0);
    fixture_run(&fixture, graph);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_follow_measured_speed),
        cmocka_unit_test(equal_devices_keep_one_shard_each),
        cmocka_unit_test(small_parts_are_not_made),
        cmocka_unit_test(unknown_kernels_are_cut_by_what_devices_are),
        cmocka_unit_test(small_launches_do_not_count),
        cmocka_unit_test(the_largest_ranges_are_cut_exactly),
        cmocka_unit_test(shards_leave_a_device_that_has_become_slow),
        cmocka_unit_test(a_device_that_was_left_is_looked_at),
        cmocka_unit_test(shards_go_round_a_queue),
        cmocka_unit_test(sums_are_right_while_shards_move),
        cmocka_unit_test(a_lost_device_gets_no_shards),
    };
    return cmocka_run_group_tests_name("proportions", tests, NULL, NULL);
}
