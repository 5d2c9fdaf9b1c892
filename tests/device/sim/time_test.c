/* Virtual time: operations take what the model says, on a clock that nobody waits for. */
#include "tests/device/sim/fixture.h"

/* 1 GB/s is one byte a nanosecond; each copy has 1,000 ns of its own. */
#define SPEC                                                                                                           \
    "{\"virtual_time\": true, \"devices\": [{\"launch_ns\": 5000, \"upload_gbps\": 1, \"download_gbps\": 2,"           \
    " \"peer_gbps\": 4, \"local_gbps\": 10, \"instructions_per_ns\": 1000000, \"count\": 2}]}"

static CUevent timed(const fixture *f) {
    CUevent event;
    assert_success(f->driver->event_create(&event, CU_EVENT_DEFAULT));
    return event;
}

static double elapsed_us(const fixture *f, CUevent start, CUevent end) {
    float milliseconds = -1;
    assert_success(f->driver->event_synchronize(end));
    assert_success(f->driver->event_elapsed_time(&milliseconds, start, end));
    return (double)milliseconds * 1000;
}

static void assert_close(double value, double expected) {
    if (value < expected * 0.999 || value > expected * 1.001) fail_msg("%g us, expected %g", value, expected);
}

static void test_operations_take_their_modelled_time(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    fixture f = open_fixture(SPEC);
    CUdeviceptr memory = zeroed(&f, BYTES), other = zeroed(&f, BYTES);
    void *host;
    CUevent marks[5];
    assert_success(f.driver->mem_host_alloc(&host, BYTES, 0));
    memset(host, 0, BYTES);
    for (int i = 0; i < 5; i++) marks[i] = timed(&f);
    assert_success(f.driver->event_record(marks[0], f.stream));
    assert_success(f.driver->memcpy_htod_async(memory, host, BYTES, f.stream));
    assert_success(f.driver->event_record(marks[1], f.stream));
    assert_success(f.driver->memcpy_dtoh_async(host, memory, BYTES, f.stream));
    assert_success(f.driver->event_record(marks[2], f.stream));
    assert_success(f.driver->memcpy_dtod_async(other, memory, BYTES, f.stream));
    assert_success(f.driver->event_record(marks[3], f.stream));
    for (int i = 0; i < 10; i++) assert_success(launch_mix(&f, f.stream, memory, 1));
    assert_success(f.driver->event_record(marks[4], f.stream));
    assert_close(elapsed_us(&f, marks[0], marks[1]), 1 + BYTES / 1000.0);
    assert_close(elapsed_us(&f, marks[1], marks[2]), 1 + BYTES / 2000.0);
    assert_close(elapsed_us(&f, marks[2], marks[3]), 1 + BYTES / 10000.0);
    assert_close(elapsed_us(&f, marks[3], marks[4]), 50);
    mu_driver_release(f.driver);
}

static void test_streams_overlap_but_engines_do_not(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    fixture f = open_fixture(SPEC);
    CUdeviceptr memory = zeroed(&f, BYTES), other = zeroed(&f, BYTES);
    CUstream second;
    CUevent begin = timed(&f), up = timed(&f), down = timed(&f);
    void *host;
    assert_success(f.driver->mem_host_alloc(&host, 2 * BYTES, 0));
    memset(host, 0, 2 * BYTES);
    assert_success(f.driver->stream_create(&second, CU_STREAM_NON_BLOCKING));
    assert_success(f.driver->event_record(begin, f.stream));
    mu_sim_hold(f.driver, 0, true); /* all are issued at one virtual time */
    assert_success(f.driver->memcpy_htod_async(memory, host, BYTES, f.stream));
    assert_success(f.driver->event_record(up, f.stream));
    assert_success(f.driver->memcpy_dtoh_async((char *)host + BYTES, other, BYTES, second));
    assert_success(f.driver->event_record(down, second));
    mu_sim_hold(f.driver, 0, false);
    assert_close(elapsed_us(&f, begin, up), 1 + BYTES / 1000.0);
    assert_close(elapsed_us(&f, begin, down), 1 + BYTES / 2000.0); /* beside the upload */
    mu_driver_release(f.driver);
}

static void test_waits_carry_time_between_streams(void **state) {
    (void)state;
    fixture f = open_fixture(SPEC);
    CUdeviceptr word = zeroed(&f, 4);
    CUstream second;
    CUevent begin = timed(&f), middle = timed(&f), end = timed(&f);
    assert_success(f.driver->stream_create(&second, CU_STREAM_NON_BLOCKING));
    assert_success(f.driver->event_record(begin, f.stream));
    for (int i = 0; i < 4; i++) assert_success(launch_mix(&f, f.stream, word, 1));
    assert_success(f.driver->event_record(middle, f.stream));
    assert_success(f.driver->stream_wait_event(second, middle, 0));
    for (int i = 0; i < 3; i++) assert_success(launch_mix(&f, second, word, 1));
    assert_success(f.driver->event_record(end, second));
    assert_close(elapsed_us(&f, begin, end), 35);
    assert_true(mu_sim_now_ns(f.driver) >= 35000);
    mu_driver_release(f.driver);
}

static void test_branches_overlap_in_virtual_time(void **state) {
    (void)state;
    fixture f = open_fixture(SPEC);
    CUdeviceptr words = zeroed(&f, 64);
    CUevent begin = timed(&f), middle = timed(&f), end = timed(&f);
    CUgraph graphs[2];
    CUgraphExec execs[2];
    for (int chained = 0; chained < 2; chained++) {
        CUgraphNode nodes[6];
        assert_success(f.driver->graph_create(&graphs[chained], 0));
        for (uint32_t i = 0; i < 6; i++) {
            CUdeviceptr p = words + 4 * i;
            void *pointers[] = {&p, &i};
            CUDA_KERNEL_NODE_PARAMS node = {.func = f.mix,
                                            .gridDimX = 1,
                                            .gridDimY = 1,
                                            .gridDimZ = 1,
                                            .blockDimX = 1,
                                            .blockDimY = 1,
                                            .blockDimZ = 1,
                                            .kernelParams = pointers};
            bool depends = chained && i;
            assert_success(f.driver->graph_add_kernel_node(&nodes[i], graphs[chained], depends ? &nodes[i - 1] : NULL,
                                                           depends, &node));
        }
        assert_success(f.driver->graph_instantiate(&execs[chained], graphs[chained], 0));
    }
    assert_success(f.driver->event_record(begin, f.stream));
    assert_success(f.driver->graph_launch(execs[1], f.stream));
    assert_success(f.driver->event_record(middle, f.stream));
    assert_success(f.driver->graph_launch(execs[0], f.stream));
    assert_success(f.driver->event_record(end, f.stream));
    double chain = elapsed_us(&f, begin, middle), branches = elapsed_us(&f, middle, end);
    assert_close(chain, 6 * branches);
    mu_driver_release(f.driver);
}

/* In launch order kernels begin one after the other, and run beside each other, whichever is the longest. */
static void test_launch_order_overlaps_in_virtual_time(void **state) {
    (void)state;
    enum { NODES = 8, STARTED_NS = 5000 / 6, STARTED_EARLY_NS = 5000 / 9 };
    fixture f =
        open_fixture("{\"virtual_time\": true, \"devices\": [{\"launch_ns\": 5000, \"instructions_per_ns\": 0.001}]}");
    CUdeviceptr words = zeroed(&f, 64);
    CUevent begin = timed(&f), middle = timed(&f), end = timed(&f);
    const CUgraphEdgeData order = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER,
                                   .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
    CUgraph graphs[2];
    CUgraphExec execs[2];
    for (int many = 0; many < 2; many++) {
        CUgraphNode nodes[NODES];
        assert_success(f.driver->graph_create(&graphs[many], 0));
        for (uint32_t i = 0; i < (many ? NODES : 1); i++) {
            CUdeviceptr p = words + 4 * i;
            void *pointers[] = {&p, &i};
            CUDA_KERNEL_NODE_PARAMS node = {.func = f.mix,
                                            .gridDimX = 1,
                                            .gridDimY = 1,
                                            .gridDimZ = 1,
                                            .blockDimX = 1,
                                            .blockDimY = 1,
                                            .blockDimZ = 1,
                                            .kernelParams = pointers};
            assert_success(f.driver->graph_add_kernel_node(&nodes[i], graphs[many], NULL, 0, &node));
            if (i) assert_success(f.driver->graph_add_dependencies(graphs[many], &nodes[i - 1], &nodes[i], &order, 1));
        }
        assert_success(f.driver->graph_instantiate(&execs[many], graphs[many], 0));
    }
    assert_success(f.driver->event_record(begin, f.stream));
    assert_success(f.driver->graph_launch(execs[0], f.stream));
    assert_success(f.driver->event_record(middle, f.stream));
    assert_success(f.driver->graph_launch(execs[1], f.stream));
    assert_success(f.driver->event_record(end, f.stream));
    double one = elapsed_us(&f, begin, middle), many = elapsed_us(&f, middle, end);
    assert_true(one > 4 + STARTED_NS / 1e3);
    assert_close(many, one + (NODES - 1) * STARTED_EARLY_NS / 1e3);
    mu_driver_release(f.driver);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations_take_their_modelled_time),
        cmocka_unit_test(test_streams_overlap_but_engines_do_not),
        cmocka_unit_test(test_waits_carry_time_between_streams),
        cmocka_unit_test(test_branches_overlap_in_virtual_time),
        cmocka_unit_test(test_launch_order_overlaps_in_virtual_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
