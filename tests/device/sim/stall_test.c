/* The calls that wait until the device has drained, and hold up launches of their context meanwhile. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/device/sim/fixture.h"

static fixture f;

/* A thread that makes one call. */
typedef struct caller {
    pthread_t thread;
    CUresult (*call)(struct caller *);
    CUcontext context;
    CUdeviceptr word;
    void *host;
    CUstream stream;
    CUmodule module;
    CUresult code;
    atomic_bool ended;
} caller;

static void *run(void *argument) {
    caller *made = argument;
    made->code = f.driver->ctx_set_current(made->context);
    if (made->code == CUDA_SUCCESS) made->code = made->call(made);
    atomic_store(&made->ended, true);
    return NULL;
}

static void start(caller *made) { assert_int_equal(pthread_create(&made->thread, NULL, run, made), 0); }

static void end(caller *made) {
    assert_int_equal(pthread_join(made->thread, NULL), 0);
    assert_success(made->code);
}

static CUresult call_launch(caller *made) { return launch_mix(&f, made->stream, made->word, 1); }
static CUresult call_copy(caller *made) { return f.driver->memset_d8_async(made->word, 1, 4, made->stream); }
static CUresult call_unload(caller *made) { return f.driver->module_unload(made->module); }
static CUresult call_free(caller *made) { return f.driver->mem_free(made->word); }
static CUresult call_free_host(caller *made) { return f.driver->mem_free_host(made->host); }
static CUresult call_unregister(caller *made) { return f.driver->mem_host_unregister(made->host); }
static CUresult call_load(caller *made) {
    return f.driver->module_load_data_ex(&made->module, kernels_ptx, 0, NULL, NULL);
}
static CUresult call_instantiate(caller *made) {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    (void)made;
    CUresult code = f.driver->graph_create(&graph, 0);
    if (code == CUDA_SUCCESS) code = f.driver->graph_add_empty_node(&node, graph, NULL, 0);
    return code == CUDA_SUCCESS ? f.driver->graph_instantiate(&exec, graph, 0) : code;
}

static uint64_t stalls(void) {
    mu_sim_statistics statistics;
    mu_sim_get_statistics(f.driver, 0, &statistics);
    return statistics.stalls;
}

static void check(CUresult (*call)(caller *), CUresult (*held_up)(caller *)) {
    f = open_fixture("{}");
    CUstream other;
    caller waits = {.call = call, .context = f.context}, launches = {.call = held_up, .context = f.context};
    CUdeviceptr busy = zeroed(&f, 4);
    waits.word = zeroed(&f, 4);
    launches.word = zeroed(&f, 4);
    assert_success(f.driver->stream_create(&other, CU_STREAM_NON_BLOCKING));
    launches.stream = other;
    void *registered = aligned_alloc(4096, 4096);
    if (call == call_unload) assert_success(f.driver->module_load_data_ex(&waits.module, kernels_ptx, 0, NULL, NULL));
    if (call == call_free_host) assert_success(f.driver->mem_host_alloc(&waits.host, 64, 0));
    if (call == call_unregister) {
        waits.host = registered;
        assert_success(f.driver->mem_host_register(registered, 4096, 0));
    }
    uint64_t before = stalls();
    mu_sim_hold(f.driver, 0, true);
    assert_success(launch_mix(&f, f.stream, busy, 1));
    start(&waits);
    while (stalls() == before) sched_yield(); /* it waits */
    assert_false(atomic_load(&waits.ended));
    uint64_t calls = mu_sim_calls(f.driver, "launch_kernel") + mu_sim_calls(f.driver, "memset_d8_async");
    start(&launches);
    while (mu_sim_calls(f.driver, "launch_kernel") + mu_sim_calls(f.driver, "memset_d8_async") == calls) sched_yield();
    for (int i = 0; i < 100; i++) sched_yield();
    assert_false(atomic_load(&launches.ended)); /* held up, though its own stream is idle */
    assert_code(f.driver->stream_query(other), CUDA_SUCCESS);
    /* Calls that do not launch go through. */
    CUevent event;
    size_t free_bytes, total;
    assert_success(f.driver->event_create(&event, 0));
    assert_success(f.driver->event_record(event, f.stream));
    assert_success(f.driver->mem_get_info(&free_bytes, &total));
    mu_sim_hold(f.driver, 0, false);
    end(&waits);
    end(&launches);
    mu_driver_release(f.driver);
    free(registered);
}

static void test_loading_a_module(void **state) { (void)state, check(call_load, call_launch); }
static void test_unloading_a_module(void **state) { (void)state, check(call_unload, call_launch); }
static void test_freeing_memory(void **state) { (void)state, check(call_free, call_copy); }
static void test_freeing_host_memory(void **state) { (void)state, check(call_free_host, call_launch); }
static void test_unregistering(void **state) { (void)state, check(call_unregister, call_copy); }
static void test_instantiating(void **state) { (void)state, check(call_instantiate, call_launch); }

static void test_another_context_is_not_held_up(void **state) {
    (void)state;
    f = open_fixture("{}");
    CUcontext own;
    CUstream stream;
    caller waits = {.call = call_free, .context = f.context};
    CUdeviceptr busy = zeroed(&f, 4);
    waits.word = zeroed(&f, 4);
    uint64_t before = stalls();
    mu_sim_hold(f.driver, 0, true);
    assert_success(launch_mix(&f, f.stream, busy, 1));
    start(&waits);
    while (stalls() == before) sched_yield();
    assert_success(f.driver->ctx_create(&own, 0, f.device));
    assert_success(f.driver->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr word;
    assert_success(f.driver->mem_alloc(&word, 4));
    assert_success(f.driver->memset_d8_async(word, 1, 4, stream)); /* returns at once */
    assert_false(atomic_load(&waits.ended));
    mu_sim_hold(f.driver, 0, false);
    end(&waits);
    mu_driver_release(f.driver);
}

static void test_linking_does_not_wait(void **state) {
    (void)state;
    f = open_fixture("{}");
    CUdeviceptr busy = zeroed(&f, 4);
    CUlinkState link;
    void *image;
    size_t bytes;
    mu_sim_hold(f.driver, 0, true);
    assert_success(launch_mix(&f, f.stream, busy, 1));
    assert_success(f.driver->link_create(0, NULL, NULL, &link));
    assert_success(
        f.driver->link_add_data(link, CU_JIT_INPUT_PTX, (void *)kernels_ptx, sizeof kernels_ptx, "k", 0, NULL, NULL));
    assert_success(f.driver->link_complete(link, &image, &bytes));
    assert_success(f.driver->link_destroy(link));
    mu_sim_hold(f.driver, 0, false);
    assert_success(f.driver->stream_synchronize(f.stream));
    mu_driver_release(f.driver);
}

/* Exactly: 1,020 calls go through, the next waits. */
static void test_the_limit_of_outstanding_calls_is_exact(void **state) {
    (void)state;
    f = open_fixture("{}");
    CUdeviceptr word = zeroed(&f, 4);
    mu_sim_hold(f.driver, 0, true);
    for (int i = 0; i < 1020; i++) assert_success(launch_mix(&f, f.stream, word, 1));
    mu_sim_statistics statistics;
    mu_sim_get_statistics(f.driver, 0, &statistics);
    assert_int_equal(statistics.outstanding_highest, 1020);
    caller blocked = {.call = call_launch, .context = f.context, .word = word, .stream = f.stream};
    uint64_t calls = mu_sim_calls(f.driver, "launch_kernel");
    start(&blocked);
    while (mu_sim_calls(f.driver, "launch_kernel") == calls) sched_yield();
    for (int i = 0; i < 100; i++) sched_yield();
    assert_false(atomic_load(&blocked.ended));
    mu_sim_hold(f.driver, 0, false);
    end(&blocked);
    assert_success(f.driver->stream_synchronize(f.stream));
    mu_sim_get_statistics(f.driver, 0, &statistics);
    assert_int_equal(statistics.outstanding_highest, 1020);
    assert_int_equal(statistics.kernels, 1021);
    mu_driver_release(f.driver);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loading_a_module),
        cmocka_unit_test(test_unloading_a_module),
        cmocka_unit_test(test_freeing_memory),
        cmocka_unit_test(test_freeing_host_memory),
        cmocka_unit_test(test_unregistering),
        cmocka_unit_test(test_instantiating),
        cmocka_unit_test(test_another_context_is_not_held_up),
        cmocka_unit_test(test_linking_does_not_wait),
        cmocka_unit_test(test_the_limit_of_outstanding_calls_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
