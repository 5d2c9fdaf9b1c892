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

static mu_burst *make(mu_burst_shape shape, uint32_t capacity) {
    mu_burst *burst = NULL;
    muster_error error = {0};
    if (mu_burst_create(device, shape, capacity, &burst, &error)) fail_msg("%s", error.message);
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

static void test_chain_has_edges_and_branches_have_none(void **state) {
    (void)state;
    mu_burst *chain = make(MU_BURST_CHAIN, 8);
    assert_int_equal(fake->graph_edges, 7);
    assert_int_equal(mu_burst_capacity(chain), 8);
    assert_int_equal(mu_burst_shape_of(chain), MU_BURST_CHAIN);
    mu_burst_destroy(chain);
    mu_burst *branches = make(MU_BURST_BRANCHES, 8);
    assert_int_equal(fake->graph_edges, 0);
    mu_burst_destroy(branches);
    mu_burst_destroy(NULL);
}

static void test_burst_runs_its_launches_with_one_call(void **state) {
    (void)state;
    const mu_device_counters *counters = mu_device_get_counters(device);
    mu_burst *burst = make(MU_BURST_CHAIN, 8);
    fill(burst, 8, 100);
    assert_int_equal(mu_burst_launch(burst, 8, NULL), MUSTER_OK);
    expect_ran(8, 100);
    assert_int_equal(fake->calls[FAKE_graph_launch], 1);
    assert_int_equal(fake->calls[FAKE_launch_kernel], 0);
    assert_int_equal(fake->calls[FAKE_graph_instantiate], 1);
    assert_int_equal(mu_counter_read(&counters->launches), 8);
    assert_int_equal(mu_counter_read(&counters->burst_jobs), 8);
    assert_int_equal(mu_counter_read(&counters->bursts), 1);
    assert_int_equal(mu_counter_read(&counters->graph_launches), 1);
    fill(burst, 8, 200);
    assert_int_equal(mu_burst_launch(burst, 8, NULL), MUSTER_OK);
    expect_ran(8, 200);
    assert_int_equal(fake->calls[FAKE_graph_node_set_enabled], 0);
    mu_burst_destroy(burst);
}

static void test_short_bursts_switch_only_what_changes(void **state) {
    (void)state;
    mu_burst *burst = make(MU_BURST_CHAIN, 8);
    fill(burst, 5, 1);
    assert_int_equal(mu_burst_launch(burst, 5, NULL), MUSTER_OK);
    expect_ran(5, 1);
    assert_int_equal(fake->calls[FAKE_graph_node_set_enabled], 3);
    assert_int_equal(mu_burst_launch(burst, 5, NULL), MUSTER_OK);
    assert_int_equal(fake->calls[FAKE_graph_node_set_enabled], 3);
    fill(burst, 8, 1);
    assert_int_equal(mu_burst_launch(burst, 7, NULL), MUSTER_OK);
    expect_ran(7, 1);
    assert_int_equal(fake->calls[FAKE_graph_node_set_enabled], 5);
    assert_int_equal(mu_burst_launch(burst, 1, NULL), MUSTER_OK);
    expect_ran(1, 1);
    assert_int_equal(fake->calls[FAKE_graph_node_set_enabled], 11);
    mu_burst_destroy(burst);
}

/* Random lengths with random failures of the switch: what is launched is always what was asked for. */
static void test_failed_switches_never_launch_other_nodes(void **state) {
    (void)state;
    enum { CAPACITY = 12 };
    mu_burst *burst = make(MU_BURST_CHAIN, CAPACITY);
    fill(burst, CAPACITY, 1);
    uint64_t random = 41;
    int failures = 0;
    for (int i = 0; i < 3000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t count = 1 + (uint32_t)(random >> 33) % CAPACITY;
        if (random >> 60 < 6) fake->fail_at = fake->total_calls + 1 + (random >> 50) % 5;
        fake->fail_code = CUDA_ERROR_INVALID_VALUE;
        muster_status status = mu_burst_launch(burst, count, NULL);
        fake->fail_at = 0;
        if (status) {
            assert_int_equal(status, MUSTER_LAUNCH_FAILED);
            failures++;
            assert_int_equal(mu_burst_launch(burst, count, NULL), MUSTER_OK);
        }
        expect_ran(count, 1);
    }
    assert_true(failures > 100);
    mu_burst_destroy(burst);
}

static void test_guards_are_those_of_a_launch(void **state) {
    (void)state;
    muster_error error;
    mu_burst *burst = make(MU_BURST_CHAIN, 2);
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

static void test_some_launches_go_by_themselves(void **state) {
    (void)state;
    mu_burst *burst = make(MU_BURST_BRANCHES, 2);
    mu_launch launch = {.function = plain, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    assert_true(mu_burst_takes(&launch));
    mu_launch alone[3] = {launch, launch, launch};
    alone[0].cooperative = true;
    alone[1].cluster[0] = 1;
    alone[2].counter_bytes = 4;
    for (int i = 0; i < 3; i++) {
        assert_false(mu_burst_takes(&alone[i]));
        assert_int_equal(mu_burst_set(burst, 0, &alone[i], NULL), MUSTER_INVALID_ARGUMENT);
    }
    mu_burst_destroy(burst);
}

static void test_node_that_cannot_be_updated_stays_as_it_was(void **state) {
    (void)state;
    muster_error error;
    mu_burst *burst = make(MU_BURST_CHAIN, 2);
    fill(burst, 2, 7);
    fake->fail_entry_code[FAKE_graph_exec_kernel_node_set_params] = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(set(burst, 1, 99, &error), MUSTER_LAUNCH_FAILED);
    assert_non_null(strstr(error.message, "cuGraphExecKernelNodeSetParams of add"));
    assert_ptr_equal(mu_burst_function(burst, 1), add);
    assert_int_equal(mu_burst_launch(burst, 2, NULL), MUSTER_OK);
    expect_ran(2, 7);
    mu_burst_destroy(burst);
}

static void test_nodes_never_set_are_not_launched(void **state) {
    (void)state;
    muster_error error;
    mu_burst *burst = make(MU_BURST_CHAIN, 4);
    fill(burst, 2, 1);
    assert_int_equal(mu_burst_launch(burst, 3, &error), MUSTER_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "node 2"));
    assert_int_equal(mu_burst_launch(burst, 0, &error), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(mu_burst_launch(burst, 5, &error), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(fake->calls[FAKE_graph_launch], 0);
    assert_null(mu_burst_function(burst, 2));
    assert_null(mu_burst_function(burst, 4));
    mu_burst_destroy(burst);
}

static void test_forgotten_functions_must_be_set_again(void **state) {
    (void)state;
    mu_burst *burst = make(MU_BURST_CHAIN, 3);
    mu_launch launch = {.function = plain, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    fill(burst, 3, 1);
    assert_int_equal(mu_burst_set(burst, 1, &launch, NULL), MUSTER_OK);
    assert_int_equal(mu_burst_forget(burst, add, NULL), MUSTER_OK);
    assert_null(mu_burst_function(burst, 0));
    assert_ptr_equal(mu_burst_function(burst, 1), plain);
    assert_int_equal(mu_burst_launch(burst, 2, NULL), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(set(burst, 0, 5, NULL), MUSTER_OK);
    assert_int_equal(mu_burst_launch(burst, 2, NULL), MUSTER_OK);
    mu_burst_destroy(burst);
}

static void test_shared_memory_is_raised_for_nodes_too(void **state) {
    (void)state;
    mu_burst *burst = make(MU_BURST_CHAIN, 1);
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
    mu_burst *first = make(MU_BURST_CHAIN, 4);
    uint64_t shared = before + (2 << 20); /* the empty kernel of all bursts */
    assert_int_equal(mu_ledger_read(ledger).fixed, shared + (1 << 20));
    mu_burst *second = make(MU_BURST_CHAIN, 4);
    assert_int_equal(mu_ledger_read(ledger).fixed, shared + (2 << 20));
    assert_int_equal(fake->calls[FAKE_module_load_data_ex], 2);
    mu_burst_destroy(second);
    mu_burst_destroy(first);
    assert_int_equal(mu_ledger_read(ledger).fixed, shared);
}

static void test_impossible_bursts_are_refused(void **state) {
    (void)state;
    mu_burst *burst = (mu_burst *)1;
    assert_int_equal(mu_burst_create(device, MU_BURST_CHAIN, 0, &burst, NULL), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(mu_burst_create(device, MU_BURST_CHAIN, MU_BURST_MAX + 1, &burst, NULL), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(mu_burst_create(device, (mu_burst_shape)0, 4, &burst, NULL), MUSTER_INVALID_ARGUMENT);
    assert_ptr_equal(burst, (mu_burst *)1);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_chain_has_edges_and_branches_have_none),
        TEST(test_burst_runs_its_launches_with_one_call),
        TEST(test_short_bursts_switch_only_what_changes),
        TEST(test_failed_switches_never_launch_other_nodes),
        TEST(test_guards_are_those_of_a_launch),
        TEST(test_some_launches_go_by_themselves),
        TEST(test_node_that_cannot_be_updated_stays_as_it_was),
        TEST(test_nodes_never_set_are_not_launched),
        TEST(test_forgotten_functions_must_be_set_again),
        TEST(test_shared_memory_is_raised_for_nodes_too),
        TEST(test_burst_is_charged_what_it_takes),
        TEST(test_impossible_bursts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
