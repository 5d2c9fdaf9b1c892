/* Bursts over a driver table: shapes, parameters, partial launches, failures that change nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/burst.h"
#include "tests/device/fake_driver.h"

static mu_device *device;
static mu_module module;
static mu_function add, plain;

static int setup(void **state) {
    *state = fake_driver_create();
    fake->graph_bytes = 1 << 20;
    assert_int_equal(mu_device_open(&fake->table, &(mu_device_options){.index = 3}, &device, NULL), MUSTER_OK);
    assert_int_equal(mu_device_enter(device, NULL), MUSTER_OK);
    assert_int_equal(mu_module_load(device, fake_ptx, strlen(fake_ptx), "test", &module, NULL), MUSTER_OK);
    assert_int_equal(mu_module_function(device, module, "add", &add, NULL, NULL), MUSTER_OK);
    assert_int_equal(mu_module_function(device, module, "plain", &plain, NULL, NULL), MUSTER_OK);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    mu_module_unload(device, module);
    assert_int_equal(mu_device_ledger(device)->underflows, 0);
    mu_device_leave(device);
    mu_device_close(device);
    mu_driver_release(&fake->table);
    fake_driver_finish();
    return 0;
}

static mu_burst *make(uint32_t branches, uint32_t length) {
    mu_burst *burst = NULL;
    muster_error error = {0};
    if (mu_burst_create(device, branches, length, MU_BURST_CHAINS, &burst, &error)) fail_msg("%s", error.message);
    return burst;
}

static mu_burst *make_independent(uint32_t branches, uint32_t length) {
    mu_burst *burst = NULL;
    muster_error error = {0};
    if (mu_burst_create(device, branches, length, MU_BURST_INDEPENDENT, &burst, &error)) fail_msg("%s", error.message);
    return burst;
}

static muster_status set(mu_burst *burst, uint32_t index, uint32_t value, muster_error *error) {
    uint64_t values[3] = {value, 2, 3};
    void *slots[3] = {&values[0], &values[1], &values[2]};
    mu_launch launch = {.function = add,
                        .kernel_name = "add",
                        .grid = {1, 1, 1},
                        .block = {32, 1, 1},
                        .parameters = slots,
                        .parameter_count = 3,
                        .slot_count = 3};
    return mu_burst_set(burst, index, &launch, error);
}

static void fill(mu_burst *burst, uint32_t count, uint32_t first) {
    for (uint32_t i = 0; i < count; i++) assert_int_equal(set(burst, i, first + i, NULL), MUSTER_OK);
}

/* What the last launch ran: first, first + 1, ... */
static void expect_ran(uint32_t count, uint32_t first) {
    assert_int_equal(fake->graph_launched_count, count);
    for (uint32_t i = 0; i < count; i++) assert_int_equal(fake->graph_launched[i], first + i);
}

static void test_edges_follow_the_shape(void **state) {
    (void)state;
    static const uint32_t shapes[][3] = {{1, 8, 7}, {8, 1, 0}, {4, 3, 8}, {2, 16, 30}, {1, 1, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        mu_burst *burst = make(shapes[i][0], shapes[i][1]);
        assert_int_equal(fake->graph_edges, shapes[i][2]);
        for (uint32_t n = 0; n < mu_burst_capacity(burst); n++)
            assert_int_equal(fake->graph_follows[n], n < shapes[i][0] ? 0 : shapes[i][0]);
        assert_int_equal(mu_burst_capacity(burst), shapes[i][0] * shapes[i][1]);
        assert_int_equal(mu_burst_branches(burst), shapes[i][0]);
        mu_burst_destroy(burst);
    }
    mu_burst_destroy(NULL);
}

/* ----------------------------------------------------------------------------------------------------- launch order -- */

static void test_independent_launches_are_joined_in_launch_order(void **state) {
    (void)state;
    static const uint32_t shapes[][3] = {{1, 8, 7}, {4, 3, 8}, {8, 1, 0}, {1, 1, 0}};
    const mu_device_counters *counters = mu_device_get_counters(device);
    assert_true(mu_burst_can_overlap(device));
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        mu_burst *burst = make_independent(shapes[i][0], shapes[i][1]);
        assert_int_equal(mu_burst_overlaps(burst), shapes[i][2] > 0);
        assert_int_equal(fake->graph_edges, shapes[i][2]);
        assert_int_equal(fake->graph_ordered, shapes[i][2]);
        for (uint32_t n = 0; n < mu_burst_capacity(burst); n++)
            assert_int_equal(fake->graph_follows[n], n < shapes[i][0] ? 0 : shapes[i][0]);
        fill(burst, mu_burst_capacity(burst), 100);
        assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
        expect_ran(mu_burst_capacity(burst), 100);
        assert_int_equal(mu_counter_read(&counters->branch_bursts), i + 1);
        mu_burst_destroy(burst);
    }
    mu_burst *burst = make(2, 4);
    assert_false(mu_burst_overlaps(burst));
    assert_int_equal(fake->graph_edges, 6);
    assert_int_equal(fake->graph_ordered, 0);
    mu_burst_destroy(burst);
}

/* A driver without the entry, a device without programmatic dependent launch. */
static void test_without_launch_order_chains_are_ordinary(void **state) {
    (void)state;
    mu_driver *table = &fake->table;
    CUresult (*entry)(CUgraph, const CUgraphNode *, const CUgraphNode *, const CUgraphEdgeData *, size_t) =
        table->graph_add_dependencies;
    for (int i = 0; i < 2; i++) {
        mu_device *old;
        table->graph_add_dependencies = i == 0 ? NULL : entry;
        if (i == 1) fake->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 8;
        assert_int_equal(mu_device_open(table, &(mu_device_options){.index = i}, &old, NULL), MUSTER_OK);
        if (i == 0) assert_false(mu_burst_can_overlap(device));
        assert_false(mu_burst_can_overlap(old));
        mu_burst *burst = NULL;
        assert_int_equal(mu_burst_create(old, 2, 4, MU_BURST_INDEPENDENT, &burst, NULL), MUSTER_OK);
        assert_false(mu_burst_overlaps(burst));
        assert_int_equal(fake->graph_edges, 6);
        assert_int_equal(fake->graph_ordered, 0);
        assert_int_equal(fake->calls[FAKE_graph_add_dependencies], 0);
        mu_burst_destroy(burst);
        mu_device_close(old);
    }
}

/* The driver is asked once, whatever it is that it does not take. */
static void test_a_refusal_of_launch_order_is_remembered(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        mu_device *other;
        uint64_t asked = fake->calls[FAKE_graph_add_dependencies];
        uint64_t instantiated = fake->calls[FAKE_graph_instantiate];
        assert_int_equal(mu_device_open(&fake->table, &(mu_device_options){.index = i}, &other, NULL), MUSTER_OK);
        if (i == 0) fake->fail_entry_code[FAKE_graph_add_dependencies] = CUDA_ERROR_NOT_SUPPORTED;
        if (i == 1) fake->refuse_launch_order = CUDA_ERROR_INVALID_VALUE;
        if (i == 2) fake->fail_entry_code[FAKE_graph_exec_kernel_node_set_params] = CUDA_ERROR_NOT_SUPPORTED;
        for (int b = 0; b < 3; b++) {
            mu_burst *burst = NULL;
            assert_int_equal(mu_burst_create(other, 1, 4, MU_BURST_INDEPENDENT, &burst, NULL), MUSTER_OK);
            assert_false(mu_burst_overlaps(burst));
            assert_false(mu_burst_can_overlap(other));
            assert_int_equal(fake->graph_edges, 3);
            assert_int_equal(fake->graph_ordered, 0);
            assert_int_equal(fake->live.execs, 1);
            mu_burst_destroy(burst);
        }
        assert_int_equal(fake->calls[FAKE_graph_add_dependencies] - asked, i == 0 ? 1 : 3);
        assert_int_equal(fake->calls[FAKE_graph_instantiate] - instantiated, i == 0 ? 3 : 4);
        fake->fail_entry_code[FAKE_graph_add_dependencies] = CUDA_SUCCESS;
        fake->fail_entry_code[FAKE_graph_exec_kernel_node_set_params] = CUDA_SUCCESS;
        fake->refuse_launch_order = CUDA_SUCCESS;
        mu_device_close(other);
    }
}

/* What says nothing about launch order leaves it to be tried again. */
static void test_shortage_is_no_refusal_of_launch_order(void **state) {
    (void)state;
    mu_burst *burst = (mu_burst *)1;
    fake->fail_entry_code[FAKE_graph_instantiate] = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(mu_burst_create(device, 1, 4, MU_BURST_INDEPENDENT, &burst, NULL), MUSTER_OUT_OF_DEVICE_MEMORY);
    assert_ptr_equal(burst, (mu_burst *)1);
    assert_int_equal(fake->calls[FAKE_graph_instantiate], 1);
    /* Nor does a driver that takes no burst at all. */
    fake->fail_entry_code[FAKE_graph_instantiate] = CUDA_ERROR_NOT_SUPPORTED;
    assert_int_not_equal(mu_burst_create(device, 1, 4, MU_BURST_INDEPENDENT, &burst, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_graph_instantiate], 3);
    fake->fail_entry_code[FAKE_graph_instantiate] = CUDA_SUCCESS;
    assert_true(mu_burst_can_overlap(device));
    burst = make_independent(1, 4);
    assert_true(mu_burst_overlaps(burst));
    mu_burst_destroy(burst);
}

/* No node is switched off: what was not set runs the empty kernel, and is left alone while it does. */
static void test_a_part_of_a_burst_in_launch_order(void **state) {
    (void)state;
    enum { CAPACITY = 8 };
    const uint64_t *updates = &fake->calls[FAKE_graph_exec_kernel_node_set_params];
    mu_burst *burst = make_independent(2, 4);
    static const uint32_t counts[][2] = {{5, 5}, {5, 0}, {8, 3}, {3, 5}, {3, 0}, {8, 5}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint64_t before = *updates;
        fill(burst, counts[i][0], 1);
        assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
        assert_int_equal(*updates - before, counts[i][1]);
        assert_int_equal(fake->graph_launched_count, CAPACITY);
        for (uint32_t n = 0; n < CAPACITY; n++) assert_int_equal(fake->graph_launched[n], n < counts[i][0] ? 1 + n : 0);
    }
    assert_int_equal(fake->calls[FAKE_graph_node_set_enabled], 0);
    /* A node that cannot be emptied: nothing is launched, and the next launch empties what is left. */
    fill(burst, 2, 1);
    fake->fail_entry_code[FAKE_graph_exec_kernel_node_set_params] = CUDA_ERROR_INVALID_VALUE;
    uint64_t launches = fake->calls[FAKE_graph_launch];
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_LAUNCH_FAILED);
    fake->fail_entry_code[FAKE_graph_exec_kernel_node_set_params] = CUDA_SUCCESS;
    assert_int_equal(fake->calls[FAKE_graph_launch], launches);
    fill(burst, 1, 1);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    for (uint32_t n = 0; n < CAPACITY; n++) assert_int_equal(fake->graph_launched[n], n == 0);
    assert_int_equal(mu_burst_forget(burst, add, NULL), MUSTER_OK);
    assert_int_equal(mu_burst_key(burst, 0), 0);
    mu_burst_destroy(burst);
}

static void test_a_renewed_burst_stays_in_launch_order(void **state) {
    (void)state;
    mu_burst *burst = make_independent(1, 8);
    do {
        fill(burst, 8, 1);
        assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    } while (!mu_burst_renew(burst));
    assert_true(mu_burst_overlaps(burst));
    assert_int_equal(fake->graph_ordered, 7);
    fill(burst, 3, 4);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    for (uint32_t n = 0; n < 8; n++) assert_int_equal(fake->graph_launched[n], n < 3 ? 4 + n : 0);
    mu_burst_destroy(burst);
}

/* ------------------------------------------------------------------------------------------------- filling and sending -- */

static void test_burst_runs_its_launches_with_one_call(void **state) {
    (void)state;
    const mu_device_counters *counters = mu_device_get_counters(device);
    mu_burst *burst = make(1, 8);
    fill(burst, 8, 100);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    expect_ran(8, 100);
    assert_int_equal(fake->calls[FAKE_graph_launch], 1);
    assert_int_equal(fake->calls[FAKE_launch_kernel], 0);
    assert_int_equal(fake->calls[FAKE_graph_instantiate], 1);
    assert_int_equal(mu_counter_read(&counters->launches), 8);
    assert_int_equal(mu_counter_read(&counters->burst_jobs), 8);
    assert_int_equal(mu_counter_read(&counters->bursts), 1);
    assert_int_equal(mu_counter_read(&counters->graph_launches), 1);
    assert_int_equal(mu_counter_read(&counters->branch_bursts), 0);
    assert_int_equal(mu_counter_read(&counters->burst_updates), 8);
    assert_int_equal(mu_counter_read(&counters->burst_reshapes), 8);
    fill(burst, 8, 200);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    expect_ran(8, 200);
    assert_int_equal(fake->calls[FAKE_graph_node_set_enabled], 0);
    mu_burst_destroy(burst);
}

static void test_bursts_of_independent_launches_are_counted(void **state) {
    (void)state;
    const mu_device_counters *counters = mu_device_get_counters(device);
    mu_burst *burst = make(4, 2), *independent = make_independent(8, 1);
    fill(independent, 8, 100);
    assert_int_equal(mu_burst_launch(independent, NULL), MUSTER_OK);
    expect_ran(8, 100);
    assert_int_equal(mu_counter_read(&counters->bursts), 1);
    assert_int_equal(mu_counter_read(&counters->branch_bursts), 1);
    mu_burst_destroy(independent);
    fill(burst, 8, 100);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    assert_int_equal(mu_counter_read(&counters->bursts), 2);
    assert_int_equal(mu_counter_read(&counters->branch_bursts), 1);
    mu_burst_destroy(burst);
}

static void test_short_bursts_switch_only_what_changes(void **state) {
    (void)state;
    mu_burst *burst = make(1, 8);
    uint64_t switched = 0;
    static const uint32_t counts[][2] = {{5, 3}, {5, 3}, {7, 5}, {1, 11}, {8, 18}, {8, 18}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        fill(burst, counts[i][0], 1);
        assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
        expect_ran(counts[i][0], 1);
        switched = fake->calls[FAKE_graph_node_set_enabled];
        assert_int_equal(switched, counts[i][1]);
    }
    mu_burst_destroy(burst);
}

/* Any of the nodes may be the ones that are set. */
static void test_what_was_set_is_what_runs(void **state) {
    (void)state;
    enum { CAPACITY = 12 };
    mu_burst *burst = make(3, 4);
    uint64_t random = 7;
    for (int i = 0; i < 500; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t chosen = (uint32_t)(random >> 40) & ((1u << CAPACITY) - 1), ran = 0;
        if (!chosen) continue;
        for (uint32_t n = CAPACITY; n-- > 0;)
            if (chosen >> n & 1) assert_int_equal(set(burst, n, 1000 + n, NULL), MUSTER_OK);
        assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
        for (uint32_t n = 0; n < fake->graph_launched_count; n++) ran |= 1u << (fake->graph_launched[n] - 1000);
        assert_int_equal(ran, chosen);
    }
    mu_burst_destroy(burst);
}

/* Random lengths with random failures of the switch: what is launched is always what was asked for. */
static void test_failed_switches_never_launch_other_nodes(void **state) {
    (void)state;
    enum { CAPACITY = 12 };
    mu_burst *burst = make(1, CAPACITY);
    uint64_t random = 41;
    int failures = 0;
    for (int i = 0; i < 3000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t count = 1 + (uint32_t)(random >> 33) % CAPACITY;
        fill(burst, count, 1);
        if (random >> 60 < 6) fake->fail_at = fake->total_calls + 1 + (random >> 50) % 5;
        fake->fail_code = CUDA_ERROR_INVALID_VALUE;
        muster_status status = mu_burst_launch(burst, NULL);
        fake->fail_at = 0;
        if (status) {
            assert_int_equal(status, MUSTER_LAUNCH_FAILED);
            failures++;
            assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_INVALID_ARGUMENT); /* all must be set again */
            fill(burst, count, 1);
            assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
        }
        expect_ran(count, 1);
    }
    assert_true(failures > 100);
    mu_burst_destroy(burst);
}

/* A node is given to the driver only when something about it is new. */
static void test_what_a_node_holds_is_not_set_again(void **state) {
    (void)state;
    const uint64_t *updates = &fake->calls[FAKE_graph_exec_kernel_node_set_params];
    const mu_device_counters *counters = mu_device_get_counters(device);
    mu_burst *burst = make(1, 4);
    uint64_t values[3] = {1, 2, 3};
    void *slots[3] = {&values[0], &values[1], &values[2]};
    mu_launch launch = {.function = add,
                        .grid = {1, 1, 1},
                        .block = {32, 1, 1},
                        .parameters = slots,
                        .parameter_count = 3,
                        .slot_count = 3};
    for (int i = 0; i < 3; i++) {
        uint64_t before = *updates;
        assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_OK);
        assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
        assert_int_equal(*updates - before, i == 0 ? 1 : 0);
        expect_ran(1, 1);
    }
    mu_launch other[4] = {launch, launch, launch, launch};
    other[0].grid[1] = 2;
    other[1].block[2] = 2;
    other[2].dynamic_shared_bytes = 16;
    other[3].function = plain;
    for (int i = 0; i < 4; i++) {
        uint64_t before = *updates, reshapes = mu_counter_read(&counters->burst_reshapes);
        assert_int_not_equal(
            mu_launch_key(other[i].function, other[i].grid, other[i].block, other[i].dynamic_shared_bytes),
            mu_burst_key(burst, 0));
        assert_int_equal(mu_burst_set(burst, 0, &other[i], NULL), MUSTER_OK);
        assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_OK);
        assert_int_equal(*updates - before, 2);
        assert_int_equal(mu_counter_read(&counters->burst_reshapes) - reshapes, 2);
    }
    for (int i = 0; i < 3; i++) {
        uint64_t before = *updates, reshapes = mu_counter_read(&counters->burst_reshapes);
        values[i]++;
        assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_OK);
        assert_int_equal(*updates - before, 1);
        assert_int_equal(mu_counter_read(&counters->burst_reshapes), reshapes);
    }
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    expect_ran(1, 2);
    /* After a failed update nobody knows what it holds. */
    fake->fail_entry_code[FAKE_graph_exec_kernel_node_set_params] = CUDA_ERROR_INVALID_VALUE;
    values[0] = 50;
    assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_LAUNCH_FAILED);
    fake->fail_entry_code[FAKE_graph_exec_kernel_node_set_params] = CUDA_SUCCESS;
    uint64_t before = *updates;
    values[0] = 2;
    assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_OK);
    assert_int_equal(*updates - before, 1);
    mu_burst_destroy(burst);
}

static void test_guards_are_those_of_a_launch(void **state) {
    (void)state;
    muster_error error;
    mu_burst *burst = make(1, 2);
    uint64_t calls = fake->calls[FAKE_graph_exec_kernel_node_set_params];
    mu_launch launch = {.function = NULL, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    assert_int_equal(mu_burst_set(burst, 0, &launch, &error), MUSTER_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "function is NULL"));
    launch.function = add;
    assert_int_equal(mu_burst_set(burst, 0, &launch, &error), MUSTER_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "0 slots for 3"));
    launch.function = plain;
    assert_int_equal(mu_burst_set(burst, 2, &launch, &error), MUSTER_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "node 2 of a burst of 2"));
    assert_int_equal(fake->calls[FAKE_graph_exec_kernel_node_set_params], calls);
    mu_burst_destroy(burst);
}

/* Also by a node that has the launch already. */
static void test_guards_look_at_argument_tables(void **state) {
    (void)state;
    muster_error error;
    mu_burst *burst = make(1, 1);
    uint64_t values[3] = {1, 2, 3};
    void *slots[3] = {&values[0], &values[1], &values[2]};
    const mu_launch launch = {.function = add,
                              .grid = {1, 1, 1},
                              .block = {32, 1, 1},
                              .parameters = slots,
                              .parameter_count = 3,
                              .slot_count = 3};
    for (int held = 0; held < 2; held++) {
        mu_launch bad = launch;
        bad.slot_count = 2;
        assert_int_equal(mu_burst_set(burst, 0, &bad, &error), MUSTER_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "2 slots for 3"));
        bad = launch;
        bad.parameter_count = 4;
        assert_int_equal(mu_burst_set(burst, 0, &bad, &error), MUSTER_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "3 slots for 4"));
        bad = launch;
        bad.parameters = NULL;
        assert_int_equal(mu_burst_set(burst, 0, &bad, &error), MUSTER_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "0 slots for 3"));
        slots[2] = NULL;
        assert_int_equal(mu_burst_set(burst, 0, &launch, &error), MUSTER_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "slot 2"));
        slots[2] = &values[2];
        assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_OK);
    }
    mu_burst_destroy(burst);
}

static void test_some_launches_go_by_themselves(void **state) {
    (void)state;
    mu_burst *burst = make(2, 1);
    mu_launch launch = {.function = plain, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    assert_true(mu_burst_takes(&launch));
    mu_launch alone[3] = {launch, launch, launch};
    alone[0].cooperative = true;
    alone[1].cluster[0] = 1;
    alone[2].counter_bytes = 4;
    for (int held = 0; held < 2; held++) { /* the second time by a node that has all the rest */
        for (int i = 0; i < 3; i++) {
            assert_false(mu_burst_takes(&alone[i]));
            assert_int_equal(mu_burst_set(burst, 0, &alone[i], NULL), MUSTER_INVALID_ARGUMENT);
        }
        assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_OK);
    }
    mu_burst_destroy(burst);
}

static void test_node_that_cannot_be_updated_stays_as_it_was(void **state) {
    (void)state;
    muster_error error;
    mu_burst *burst = make(1, 2);
    fill(burst, 2, 7);
    fake->fail_entry_code[FAKE_graph_exec_kernel_node_set_params] = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    assert_int_equal(set(burst, 1, 99, &error), MUSTER_LAUNCH_FAILED);
    assert_non_null(strstr(error.message, "cuGraphExecKernelNodeSetParams of add"));
    fake->fail_entry_code[FAKE_graph_exec_kernel_node_set_params] = CUDA_SUCCESS;
    assert_int_equal(set(burst, 0, 8, NULL), MUSTER_OK);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK); /* without the other */
    expect_ran(1, 8);
    mu_burst_destroy(burst);
}

static void test_nothing_set_is_not_launched(void **state) {
    (void)state;
    muster_error error;
    mu_burst *burst = make(1, 4);
    assert_int_equal(mu_burst_launch(burst, &error), MUSTER_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "no node of a burst of 4"));
    fill(burst, 2, 1);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    assert_int_equal(mu_burst_launch(burst, &error), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(fake->calls[FAKE_graph_launch], 1);
    assert_int_not_equal(mu_burst_key(burst, 0), 0);
    assert_int_equal(mu_burst_key(burst, 2), 0);
    assert_int_equal(mu_burst_key(burst, 4), 0);
    mu_burst_destroy(burst);
}

static void test_forgotten_functions_must_be_set_again(void **state) {
    (void)state;
    mu_burst *burst = make(1, 3);
    mu_launch launch = {.function = plain, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    fill(burst, 3, 1);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    assert_int_equal(mu_burst_set(burst, 1, &launch, NULL), MUSTER_OK);
    assert_int_equal(set(burst, 2, 3, NULL), MUSTER_OK);
    assert_int_equal(mu_burst_forget(burst, add, NULL), MUSTER_OK);
    assert_int_equal(mu_burst_key(burst, 0), 0);
    assert_int_not_equal(mu_burst_key(burst, 1), 0);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    assert_int_equal(fake->graph_launched_count, 1);
    uint64_t before = fake->calls[FAKE_graph_exec_kernel_node_set_params];
    assert_int_equal(set(burst, 0, 1, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_graph_exec_kernel_node_set_params] - before, 1);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    expect_ran(1, 1);
    mu_burst_destroy(burst);
}

/* Made anew from what its nodes hold, once that has stayed; it runs what it ran, and forgets nothing. */
static void test_renewed_burst_is_as_it_was(void **state) {
    (void)state;
    const uint64_t *updates = &fake->calls[FAKE_graph_exec_kernel_node_set_params];
    const uint64_t *made = &fake->calls[FAKE_graph_instantiate];
    mu_ledger *ledger = mu_device_ledger(device);
    mu_burst *burst = make(2, 4);
    uint64_t fixed = mu_ledger_read(ledger).fixed, before = 0;
    assert_false(mu_burst_renew(burst)); /* it is new */
    int launches = 0;
    for (; !mu_burst_renew(burst); launches++) {
        assert_in_range(launches, 0, 10);
        fill(burst, launches ? 6 : 8, 1); /* two are switched off in the end */
        assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    }
    assert_true(launches > 1);
    assert_int_equal(*made, 2);
    assert_int_equal(mu_ledger_read(ledger).fixed, fixed);
    assert_int_equal(fake->live.execs, 1);
    assert_false(mu_burst_renew(burst));
    before = *updates;
    fill(burst, 8, 1);
    assert_int_equal(*updates, before);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    expect_ran(8, 1);
    fill(burst, 3, 7);
    assert_int_equal(*updates, before + 3);
    assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    expect_ran(3, 7);
    mu_burst_destroy(burst);
}

/* The graph that it was made of names the function too, and the driver looks there. */
static void test_renewed_burst_forgets_what_it_was_made_with(void **state) {
    (void)state;
    const uint64_t *resets = &fake->calls[FAKE_graph_kernel_node_set_params];
    const uint64_t *updates = &fake->calls[FAKE_graph_exec_kernel_node_set_params];
    mu_burst *burst = make(1, 4);
    mu_launch launch = {.function = plain, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    do {
        fill(burst, 3, 1);
        assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    } while (!mu_burst_renew(burst));
    assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_OK); /* made with the one, holds the other */
    uint64_t before = *updates;
    fake->fail_entry_code[FAKE_graph_kernel_node_set_params] = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(mu_burst_forget(burst, add, NULL), MUSTER_DRIVER_ERROR);
    fake->fail_entry_code[FAKE_graph_kernel_node_set_params] = CUDA_SUCCESS;
    assert_int_equal(*resets, 1);
    assert_int_equal(mu_burst_forget(burst, add, NULL), MUSTER_OK);
    assert_int_equal(*resets, 1 + 3);
    assert_int_equal(*updates - before, 2);
    assert_int_equal(mu_burst_forget(burst, add, NULL), MUSTER_OK);
    assert_int_equal(mu_burst_forget(burst, plain, NULL), MUSTER_OK);
    assert_int_equal(*resets, 1 + 3);
    assert_int_equal(*updates - before, 3);
    mu_burst_destroy(burst);
}

static void test_burst_whose_device_is_lost_meanwhile_calls_nothing(void **state) {
    (void)state;
    mu_burst *burst;
    fake->fail_entry_code[FAKE_graph_add_kernel_node] = CUDA_ERROR_ECC_UNCORRECTABLE;
    assert_int_equal(mu_burst_create(device, 1, 4, MU_BURST_CHAINS, &burst, NULL), MUSTER_DEVICE_LOST);
    assert_int_equal(fake->calls[FAKE_graph_add_kernel_node], 1);
    assert_int_equal(fake->calls[FAKE_graph_destroy], 0);
    fake_drop_current(); /* leaving cannot */
    fake->live = (fake_live){0};
}

static void test_burst_that_cannot_be_renewed_stays(void **state) {
    (void)state;
    static const int entries[] = {FAKE_graph_create, FAKE_graph_add_kernel_node, FAKE_graph_instantiate,
                                  FAKE_graph_upload};
    mu_burst *burst = make(1, 4);
    uint64_t fixed = mu_ledger_read(mu_device_ledger(device)).fixed;
    mu_launch launch = {.function = plain, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    for (size_t e = 0; e < sizeof entries / sizeof entries[0]; e++) {
        launch.grid[0]++;
        for (int i = 0; i < 6; i++) {
            assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_OK);
            assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
        }
        fake->fail_entry_code[entries[e]] = CUDA_ERROR_OUT_OF_MEMORY;
        assert_true(mu_burst_renew(burst));
        assert_false(mu_burst_renew(burst)); /* not again and again */
        fake->fail_entry_code[entries[e]] = CUDA_SUCCESS;
        assert_int_equal(mu_ledger_read(mu_device_ledger(device)).fixed, fixed);
        assert_int_equal(fake->live.execs, 1);
        assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_OK);
        assert_int_equal(mu_burst_launch(burst, NULL), MUSTER_OK);
    }
    mu_burst_destroy(burst);
}

static void test_shared_memory_is_raised_for_nodes_too(void **state) {
    (void)state;
    mu_burst *burst = make(1, 1);
    mu_launch launch = {.function = plain, .grid = {1, 1, 1}, .block = {1, 1, 1}, .dynamic_shared_bytes = 100 << 10};
    assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_OK);
    assert_int_equal(fake->last_dynamic_limit, 100 << 10);
    launch.dynamic_shared_bytes = 1 << 20;
    assert_int_equal(mu_burst_set(burst, 0, &launch, NULL), MUSTER_CAPABILITY_MISSING);
    mu_burst_destroy(burst);
}

static void test_burst_is_charged_what_it_takes(void **state) {
    (void)state;
    mu_ledger *ledger = mu_device_ledger(device);
    uint64_t before = mu_ledger_read(ledger).fixed;
    mu_burst *first = make(1, 4);
    uint64_t shared = before + (2 << 20); /* the empty kernel of all bursts */
    assert_int_equal(mu_ledger_read(ledger).fixed, shared + (1 << 20));
    mu_burst *second = make(1, 4);
    assert_int_equal(mu_ledger_read(ledger).fixed, shared + (2 << 20));
    assert_int_equal(fake->calls[FAKE_module_load_data_ex], 2);
    /* What another process took at that moment is not the burst's. */
    fake->graph_bytes = UINT64_C(1) << 30;
    mu_burst *third = make(1, 4);
    assert_true(mu_ledger_read(ledger).fixed <= shared + (7 << 20));
    mu_burst_destroy(third);
    mu_burst_destroy(second);
    mu_burst_destroy(first);
    assert_int_equal(mu_ledger_read(ledger).fixed, shared);
}

static void test_impossible_bursts_are_refused(void **state) {
    (void)state;
    mu_burst *burst = (mu_burst *)1;
    assert_int_equal(mu_burst_create(device, 1, 0, MU_BURST_CHAINS, &burst, NULL), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(mu_burst_create(device, 0, 1, MU_BURST_CHAINS, &burst, NULL), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(mu_burst_create(device, 1, MU_BURST_MAX + 1, MU_BURST_CHAINS, &burst, NULL),
                     MUSTER_INVALID_ARGUMENT);
    assert_int_equal(mu_burst_create(device, 1u << 31, 1u << 31, MU_BURST_CHAINS, &burst, NULL),
                     MUSTER_INVALID_ARGUMENT);
    assert_ptr_equal(burst, (mu_burst *)1);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_edges_follow_the_shape),
        TEST(test_independent_launches_are_joined_in_launch_order),
        TEST(test_without_launch_order_chains_are_ordinary),
        TEST(test_a_refusal_of_launch_order_is_remembered),
        TEST(test_shortage_is_no_refusal_of_launch_order),
        TEST(test_a_part_of_a_burst_in_launch_order),
        TEST(test_a_renewed_burst_stays_in_launch_order),
        TEST(test_bursts_of_independent_launches_are_counted),
        TEST(test_what_was_set_is_what_runs),
        TEST(test_what_a_node_holds_is_not_set_again),
        TEST(test_burst_runs_its_launches_with_one_call),
        TEST(test_short_bursts_switch_only_what_changes),
        TEST(test_failed_switches_never_launch_other_nodes),
        TEST(test_guards_are_those_of_a_launch),
        TEST(test_guards_look_at_argument_tables),
        TEST(test_some_launches_go_by_themselves),
        TEST(test_node_that_cannot_be_updated_stays_as_it_was),
        TEST(test_nothing_set_is_not_launched),
        TEST(test_forgotten_functions_must_be_set_again),
        TEST(test_renewed_burst_is_as_it_was),
        TEST(test_renewed_burst_forgets_what_it_was_made_with),
        TEST(test_burst_whose_device_is_lost_meanwhile_calls_nothing),
        TEST(test_burst_that_cannot_be_renewed_stays),
        TEST(test_shared_memory_is_raised_for_nodes_too),
        TEST(test_burst_is_charged_what_it_takes),
        TEST(test_impossible_bursts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
