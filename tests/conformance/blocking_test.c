/* What waits: the 1,021st outstanding call on a stream; and what does not. That loads, unloads, frees and
 * instantiations wait for an idle device shows on hardware only beside a running kernel; tests/device/sim/stall_test.c
 * has the simulator's side. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "tests/conformance/conformance.h"

/* A thread that makes calls on device 0, counting those that have returned. */
typedef struct caller {
    pthread_t thread;
    CUstream stream;
    CUdeviceptr word;
    int calls;
    void (*call)(struct caller *);
    CUgraphExec exec;
    CUresult code; /* the first failure */
    atomic_int returned;
} caller;

static void *make_calls(void *argument) {
    caller *made = argument;
    made->code = DRIVER->ctx_set_current(DEVICE0->context);
    for (int i = 0; i < made->calls && made->code == CUDA_SUCCESS; i++) {
        made->call(made);
        atomic_fetch_add(&made->returned, 1);
    }
    return NULL;
}

static void start(caller *made) { assert_int_equal(pthread_create(&made->thread, NULL, make_calls, made), 0); }

static void end(caller *made) {
    assert_int_equal(pthread_join(made->thread, NULL), 0);
    assert_success(made->code);
    assert_int_equal(atomic_load(&made->returned), made->calls);
}

/* Until so many calls have returned; gives up after ten seconds, and the caller's assertion says how many there were. */
static void await(const caller *made, int returned) {
    uint64_t deadline = mu_deadline_ns(10000000000u);
    while (atomic_load(&made->returned) < returned && mu_now_ns() < deadline) sched_yield();
}

/* Gives a thread that could go on every opportunity to. */
static void let_others_run(void) {
    for (int i = 0; i < 2000; i++) sched_yield();
}

static void call_mix(caller *made) { made->code = launch_mix(DEVICE0, made->stream, made->word, 1); }
static void call_graph(caller *made) { made->code = DRIVER->graph_launch(made->exec, made->stream); }
static void call_fill(caller *made) { made->code = DRIVER->memset_d32_async(made->word, 1, 1, made->stream); }

enum { LIMIT = 1020, CALLS = 3000 };

/* What holds the stream counts as one call itself. */
static void check_limit(void (*call)(caller *), CUgraphExec exec) {
    caller made = {.calls = CALLS, .call = call, .exec = exec};
    made.word = fresh_memory(4);
    CUdeviceptr other = fresh_memory(4); /* now: while a caller waits, hardware holds up allocations too */
    assert_success(DRIVER->stream_create(&made.stream, CU_STREAM_NON_BLOCKING));
    gate *held = gate_close_busy(DEVICE0, made.stream);
    start(&made);
    await(&made, LIMIT - 3);
    let_others_run();
    int returned = atomic_load(&made.returned);
    /* Other streams are not held up. */
    assert_success(launch_mix(DEVICE0, DEVICE0->stream, other, 8));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    gate_open(held);
    end(&made);
    assert_success(DRIVER->stream_synchronize(made.stream));
    assert_int_equal(read_word(other), 8);
    assert_in_range(returned, LIMIT - 3, LIMIT + 4);
    assert_success(DRIVER->stream_destroy(made.stream));
    release_memory(other);
    release_memory(made.word);
}

static void test_the_1021st_launch_waits(void **state) {
    (void)state;
    check_limit(call_mix, NULL);
}

static void test_fills_count_like_launches(void **state) {
    (void)state;
    check_limit(call_fill, NULL);
}

static void test_a_graph_counts_as_one_call_whatever_its_size(void **state) {
    (void)state;
    enum { NODES = 10 };
    CUgraph graph;
    CUgraphNode nodes[NODES];
    CUgraphExec exec;
    CUdeviceptr word = fresh_memory(4);
    uint32_t v = 1;
    void *pointers[] = {&word, &v};
    CUDA_KERNEL_NODE_PARAMS parameters = {.func = DEVICE0->mix,
                                          .gridDimX = 1,
                                          .gridDimY = 1,
                                          .gridDimZ = 1,
                                          .blockDimX = 1,
                                          .blockDimY = 1,
                                          .blockDimZ = 1,
                                          .kernelParams = pointers};
    assert_success(DRIVER->graph_create(&graph, 0));
    for (int i = 0; i < NODES; i++)
        assert_success(
            DRIVER->graph_add_kernel_node(&nodes[i], graph, i ? &nodes[i - 1] : NULL, i ? 1 : 0, &parameters));
    assert_success(DRIVER->graph_instantiate(&exec, graph, 0));
    check_limit(call_graph, exec);
    assert_success(DRIVER->graph_exec_destroy(exec));
    assert_success(DRIVER->graph_destroy(graph));
    release_memory(word);
}

static void test_event_records_do_not_count(void **state) {
    (void)state;
    CUevent event;
    assert_success(DRIVER->event_create(&event, CU_EVENT_DISABLE_TIMING));
    gate *held = gate_close(DEVICE0->stream);
    for (int i = 0; i < 3000; i++) assert_success(DRIVER->event_record(event, DEVICE0->stream));
    gate_open(held);
    assert_success(DRIVER->event_synchronize(event));
    assert_success(DRIVER->event_destroy(event));
}

static void test_other_calls_do_not_wait(void **state) {
    (void)state;
    CUdeviceptr pointer;
    CUstream stream;
    CUevent event;
    size_t free_bytes, total;
    int blocks;
    void *host;
    CUdeviceptr word = fresh_memory(4);
    gate *held = gate_close(DEVICE0->stream);
    assert_success(DRIVER->mem_alloc(&pointer, 4096));
    assert_success(DRIVER->mem_host_alloc(&host, 4096, 0));
    assert_success(DRIVER->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    assert_success(DRIVER->event_create(&event, CU_EVENT_DISABLE_TIMING));
    assert_success(DRIVER->mem_get_info(&free_bytes, &total));
    assert_success(DRIVER->occupancy_max_active_blocks(&blocks, DEVICE0->mix, 128, 0));
    assert_success(launch_mix(DEVICE0, stream, word, 3));
    assert_success(DRIVER->stream_synchronize(stream));
    assert_success(DRIVER->stream_destroy(stream));
    assert_success(DRIVER->event_destroy(event));
    gate_open(held);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_success(DRIVER->mem_free(pointer));
    assert_success(DRIVER->mem_free_host(host));
    assert_int_equal(read_word(word), 3);
    release_memory(word);
}

int run_blocking_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_1021st_launch_waits),
        cmocka_unit_test(test_fills_count_like_launches),
        cmocka_unit_test(test_a_graph_counts_as_one_call_whatever_its_size),
        cmocka_unit_test(test_event_records_do_not_count),
        cmocka_unit_test(test_other_calls_do_not_wait),
    };
    return cmocka_run_group_tests_name("blocking", tests, NULL, NULL);
}
