/* Instances beside each other, and handles that are not what they should be: always an error, never a crash. */
#include <pthread.h>

#include "tests/device/sim/fixture.h"

static void test_instances_are_limited_and_slots_come_back(void **state) {
    (void)state;
    mu_driver *drivers[MU_SIM_MAX_INSTANCES], *extra = NULL;
    muster_error error;
    for (int i = 0; i < MU_SIM_MAX_INSTANCES; i++) drivers[i] = create_driver("{}");
    assert_int_equal(mu_sim_driver_create("{}", &extra, &error), MUSTER_LIMIT_REACHED);
    assert_null(extra);
    mu_driver_release(drivers[17]);
    drivers[17] = create_driver("{\"devices\": 3}");
    int count = 0;
    assert_success(drivers[17]->init(0));
    assert_success(drivers[17]->device_get_count(&count));
    assert_int_equal(count, 3);
    for (int i = 0; i < MU_SIM_MAX_INSTANCES; i++) mu_driver_release(drivers[i]);
}

static void test_nothing_works_before_init(void **state) {
    (void)state;
    mu_driver *driver = create_driver("{}");
    int value = 0;
    CUdevice device;
    CUcontext context;
    const char *name;
    assert_code(driver->device_get_count(&value), CUDA_ERROR_NOT_INITIALIZED);
    assert_code(driver->device_get(&device, 0), CUDA_ERROR_NOT_INITIALIZED);
    assert_code(driver->ctx_get_current(&context), CUDA_ERROR_NOT_INITIALIZED);
    assert_code(driver->ctx_synchronize(), CUDA_ERROR_NOT_INITIALIZED);
    assert_success(driver->driver_get_version(&value));
    assert_success(driver->get_error_name(CUDA_SUCCESS, &name));
    assert_code(driver->init(1), CUDA_ERROR_INVALID_VALUE);
    assert_success(driver->init(0));
    assert_success(driver->device_get_count(&value));
    mu_driver_release(driver);
}

static void test_instances_do_not_know_each_other(void **state) {
    (void)state;
    fixture a = open_fixture("{}"), b = open_fixture("{}");
    CUcontext current = NULL;
    CUdeviceptr here = zeroed(&a, 64), there = zeroed(&b, 64);
    char name[64];
    /* Each has its own current context of this thread. */
    assert_success(a.driver->ctx_get_current(&current));
    assert_ptr_equal(current, a.context);
    assert_success(b.driver->ctx_get_current(&current));
    assert_ptr_equal(current, b.context);
    assert_code(a.driver->ctx_set_current(b.context), CUDA_ERROR_INVALID_CONTEXT);
    assert_code(a.driver->stream_synchronize(b.stream), CUDA_ERROR_INVALID_HANDLE);
    assert_code(a.driver->device_get_name(name, sizeof name, b.device), CUDA_ERROR_INVALID_DEVICE);
    assert_code(a.driver->module_unload(b.module), CUDA_ERROR_INVALID_HANDLE);
    assert_code(a.driver->mem_free(there), CUDA_ERROR_INVALID_VALUE);
    assert_code(a.driver->memset_d8_async(there, 0, 64, a.stream), CUDA_ERROR_INVALID_VALUE);
    assert_code(launch_mix(&a, b.stream, here, 1), CUDA_ERROR_INVALID_HANDLE);
    /* A fault ends one of them only. */
    assert_success(launch_mix(&a, a.stream, there, 1));
    assert_code(a.driver->stream_synchronize(a.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_success(launch_mix(&b, b.stream, there, 1));
    assert_success(b.driver->stream_synchronize(b.stream));
    mu_driver_release(a.driver);
    mu_driver_release(b.driver);
}

static void test_stale_handles_are_recognised(void **state) {
    (void)state;
    fixture f = open_fixture("{}");
    mu_driver *driver = f.driver;
    CUstream stream, again;
    CUevent event;
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUmemoryPool pool;
    CUdeviceptr pointer;
    uint64_t value;
    assert_success(driver->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    assert_success(driver->stream_destroy(stream));
    assert_success(driver->stream_create(&again, CU_STREAM_NON_BLOCKING)); /* takes the place, not the handle */
    assert_ptr_not_equal(stream, again);
    assert_code(driver->stream_query(stream), CUDA_ERROR_INVALID_HANDLE);
    assert_code(driver->stream_destroy(stream), CUDA_ERROR_INVALID_HANDLE);
    assert_success(driver->event_create(&event, 0));
    assert_success(driver->event_destroy(event));
    assert_code(driver->event_query(event), CUDA_ERROR_INVALID_HANDLE);
    assert_code(driver->stream_wait_event(again, event, 0), CUDA_ERROR_INVALID_HANDLE);
    assert_success(driver->graph_create(&graph, 0));
    assert_success(driver->graph_add_empty_node(&node, graph, NULL, 0));
    assert_success(driver->graph_instantiate(&exec, graph, 0));
    assert_success(driver->graph_destroy(graph));
    assert_code(driver->graph_destroy(graph), CUDA_ERROR_INVALID_VALUE);
    assert_code(driver->graph_node_set_enabled(exec, node, 0), CUDA_ERROR_INVALID_VALUE);
    assert_success(driver->graph_exec_destroy(exec));
    assert_code(driver->graph_launch(exec, again), CUDA_ERROR_INVALID_VALUE);
    CUmemPoolProps properties;
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = f.device;
    assert_success(driver->mem_pool_create(&pool, &properties));
    assert_success(driver->mem_pool_destroy(pool));
    assert_code(driver->mem_pool_get_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value),
                CUDA_ERROR_INVALID_VALUE);
    assert_code(driver->mem_alloc_from_pool_async(&pointer, 64, pool, again), CUDA_ERROR_INVALID_VALUE);
    assert_success(driver->module_unload(f.module)); /* its functions go with it */
    CUdeviceptr word = zeroed(&f, 4);
    assert_code(launch_mix(&f, again, word, 1), CUDA_ERROR_INVALID_HANDLE);
    mu_driver_release(driver);
}

/* A graph's node is looked at when one of an executable graph changes: its function must be there. */
static void test_a_node_needs_the_function_that_it_was_made_with(void **state) {
    (void)state;
    fixture f = open_fixture("{}");
    mu_driver *driver = f.driver;
    CUmodule module;
    CUfunction other;
    CUgraph graph;
    CUgraphNode nodes[2];
    CUgraphExec exec;
    CUdeviceptr word = zeroed(&f, 4);
    uint32_t value = 7;
    void *pointers[] = {&word, &value};
    CUDA_KERNEL_NODE_PARAMS parameters = {.gridDimX = 1,
                                          .gridDimY = 1,
                                          .gridDimZ = 1,
                                          .blockDimX = 1,
                                          .blockDimY = 1,
                                          .blockDimZ = 1,
                                          .kernelParams = pointers};
    assert_success(driver->module_load_data_ex(&module, kernels_ptx, 0, NULL, NULL));
    assert_success(driver->module_get_function(&other, module, "mix"));
    assert_success(driver->graph_create(&graph, 0));
    parameters.func = other;
    for (int i = 0; i < 2; i++) assert_success(driver->graph_add_kernel_node(&nodes[i], graph, NULL, 0, &parameters));
    assert_success(driver->graph_instantiate(&exec, graph, 0));
    parameters.func = f.mix;
    for (int i = 0; i < 2; i++) assert_success(driver->graph_exec_kernel_node_set_params(exec, nodes[i], &parameters));
    assert_success(driver->graph_kernel_node_set_params(nodes[0], &parameters));
    assert_success(driver->module_unload(module));
    assert_success(driver->graph_exec_kernel_node_set_params(exec, nodes[0], &parameters));
    assert_code(driver->graph_exec_kernel_node_set_params(exec, nodes[1], &parameters), CUDA_ERROR_INVALID_HANDLE);
    assert_code(driver->graph_node_set_enabled(exec, nodes[1], 0), CUDA_ERROR_INVALID_HANDLE);
    assert_success(driver->graph_exec_destroy(exec));
    assert_success(driver->graph_destroy(graph));
    mu_driver_release(driver);
}

static void test_invented_handles_are_recognised(void **state) {
    (void)state;
    fixture f = open_fixture("{}");
    int blocks;
    for (uintptr_t bits = 3; bits < UINTPTR_MAX / 4; bits = bits * 3 + 1) {
        void *invented = (void *)bits;
        assert_code(f.driver->stream_synchronize(invented), CUDA_ERROR_INVALID_HANDLE);
        assert_code(f.driver->event_record(invented, f.stream), CUDA_ERROR_INVALID_HANDLE);
        assert_code(f.driver->module_unload(invented), CUDA_ERROR_INVALID_HANDLE);
        assert_code(f.driver->ctx_push_current(invented), CUDA_ERROR_INVALID_CONTEXT);
        assert_code(f.driver->ctx_destroy(invented), CUDA_ERROR_INVALID_CONTEXT);
        assert_code(f.driver->occupancy_max_active_blocks(&blocks, invented, 32, 0), CUDA_ERROR_INVALID_HANDLE);
        assert_code(f.driver->graph_destroy(invented), CUDA_ERROR_INVALID_VALUE);
        assert_code(f.driver->link_destroy(invented), CUDA_ERROR_INVALID_HANDLE);
    }
    /* One of another kind. */
    assert_code(f.driver->event_query((CUevent)f.stream), CUDA_ERROR_INVALID_HANDLE);
    assert_code(f.driver->stream_query((CUstream)f.mix), CUDA_ERROR_INVALID_HANDLE);
    mu_driver_release(f.driver);
}

static void test_a_destroyed_context_is_current_nowhere(void **state) {
    (void)state;
    fixture f = open_bare("{}");
    CUcontext own;
    CUdeviceptr pointer;
    assert_success(f.driver->ctx_create(&own, 0, f.device));
    assert_success(f.driver->ctx_push_current(own)); /* twice on the stack */
    assert_success(f.driver->ctx_destroy(own));
    assert_code(f.driver->mem_alloc(&pointer, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_code(f.driver->ctx_destroy(f.context), CUDA_ERROR_INVALID_CONTEXT); /* primary: released instead */
    assert_success(f.driver->ctx_set_current(f.context));
    assert_success(f.driver->primary_ctx_release(f.device));
    assert_code(f.driver->mem_alloc(&pointer, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_code(f.driver->primary_ctx_release(f.device), CUDA_ERROR_INVALID_CONTEXT);
    mu_driver_release(f.driver);
}

/* Leaves everything behind, some of it running. */
static void test_releasing_ends_it_like_a_process(void **state) {
    (void)state;
    fixture f = open_fixture("{\"devices\": 2}");
    CUdeviceptr word = zeroed(&f, 4), large;
    CUevent event;
    CUgraph graph;
    void *host;
    assert_success(f.driver->mem_alloc(&large, (size_t)20 << 30));
    assert_success(f.driver->mem_host_alloc(&host, 4096, 0));
    assert_success(f.driver->event_create(&event, 0));
    assert_success(f.driver->graph_create(&graph, 0));
    mu_sim_hold(f.driver, 0, true);
    for (uint32_t i = 0; i < 500; i++) assert_success(launch_mix(&f, f.stream, word, i));
    assert_success(f.driver->memcpy_htod_async(word, &(uint32_t){3}, 4, f.stream));
    assert_success(f.driver->event_record(event, f.stream));
    assert_success(f.driver->stream_destroy(f.stream));
    mu_driver_release(f.driver);
}

typedef struct many {
    int rounds;
} many;

static void *open_and_release(void *argument) {
    many *plan = argument;
    for (int i = 0; i < plan->rounds; i++) {
        fixture f = open_fixture("{\"devices\": 2}");
        CUdeviceptr word = zeroed(&f, 4);
        uint32_t value = 0;
        for (uint32_t j = 0; j < 10; j++) assert_success(launch_mix(&f, f.stream, word, 1));
        assert_success(f.driver->memcpy_dtoh_async(&value, word, 4, f.stream));
        assert_int_equal(value, 29524);
        mu_driver_release(f.driver);
    }
    return NULL;
}

static void test_threads_use_instances_of_their_own(void **state) {
    (void)state;
    pthread_t threads[4];
    many plan = {10};
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, open_and_release, &plan), 0);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void test_calls_are_counted(void **state) {
    (void)state;
    fixture f = open_fixture("{}");
    CUdeviceptr word = zeroed(&f, 4);
    uint64_t before = mu_sim_calls(f.driver, "launch_kernel");
    for (int i = 0; i < 7; i++) assert_success(launch_mix(&f, f.stream, word, 1));
    assert_code(launch_mix(&f, (CUstream)48, word, 1), CUDA_ERROR_INVALID_HANDLE); /* refused calls count */
    assert_int_equal(mu_sim_calls(f.driver, "launch_kernel"), before + 8);
    assert_int_equal(mu_sim_calls(f.driver, "module_load_data_ex"), 1);
    assert_true(mu_sim_calls(f.driver, "cuLaunchKernel") == UINT64_MAX);
    assert_success(f.driver->stream_synchronize(f.stream));
    mu_sim_statistics statistics;
    mu_sim_get_statistics(f.driver, 0, &statistics);
    assert_int_equal(statistics.kernels, 7);
    assert_true(statistics.instructions >= 7);
    assert_true(statistics.outstanding_highest >= 1);
    assert_int_equal(statistics.stalls, 1); /* the load */
    mu_driver_release(f.driver);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instances_are_limited_and_slots_come_back),
        cmocka_unit_test(test_nothing_works_before_init),
        cmocka_unit_test(test_instances_do_not_know_each_other),
        cmocka_unit_test(test_stale_handles_are_recognised),
        cmocka_unit_test(test_a_node_needs_the_function_that_it_was_made_with),
        cmocka_unit_test(test_invented_handles_are_recognised),
        cmocka_unit_test(test_a_destroyed_context_is_current_nowhere),
        cmocka_unit_test(test_releasing_ends_it_like_a_process),
        cmocka_unit_test(test_threads_use_instances_of_their_own),
        cmocka_unit_test(test_calls_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
