/* ThreadSanitizer sees the order that streams and events make, and no other: a job that reads what another stream
 * writes without an event between them is reported. Each case is a child process whose report is read. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sanitizer.h"
#include "tests/device/sim/fixture.h"

#if MU_TSAN
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "halt_on_error=0:exitcode=66"; }
#endif

enum { RACE = 66 };

typedef struct two_streams {
    fixture f;
    CUstream second;
    CUevent event;
    CUdeviceptr word, other;
} two_streams;

static two_streams prepare(const char *spec) {
    two_streams s = {.f = open_fixture(spec)};
    s.word = zeroed(&s.f, 4);
    s.other = zeroed(&s.f, 4);
    assert_success(s.f.driver->stream_create(&s.second, CU_STREAM_NON_BLOCKING));
    assert_success(s.f.driver->event_create(&s.event, CU_EVENT_DISABLE_TIMING));
    return s;
}

static void finish(two_streams *s) {
    assert_success(s->f.driver->stream_synchronize(s->f.stream));
    assert_success(s->f.driver->stream_synchronize(s->second));
    mu_driver_release(s->f.driver);
}

static void order(two_streams *s) {
    assert_success(s->f.driver->event_record(s->event, s->f.stream));
    assert_success(s->f.driver->stream_wait_event(s->second, s->event, 0));
}

static void write_then_read(bool ordered) {
    two_streams s = prepare("{}");
    assert_success(launch_mix(&s.f, s.f.stream, s.word, 5));
    if (ordered) order(&s);
    assert_success(launch_copy(&s.f, s.second, s.other, s.word));
    finish(&s);
}

/* The executor runs the first to its end before the second is even issued, which orders nothing. */
static void write_long_before_read(bool ordered) {
    two_streams s = prepare("{}");
    mu_sim_statistics statistics = {0};
    assert_success(launch_mix(&s.f, s.f.stream, s.word, 5));
    if (ordered) order(&s);
    while (statistics.kernels == 0) mu_sim_get_statistics(s.f.driver, 0, &statistics);
    assert_success(launch_copy(&s.f, s.second, s.other, s.word));
    finish(&s);
}

static void copy_over_what_is_read(bool ordered) {
    two_streams s = prepare("{}");
    assert_success(launch_copy(&s.f, s.f.stream, s.other, s.word));
    if (ordered) order(&s);
    assert_success(s.f.driver->memset_d32_async(s.word, 9, 1, s.second));
    finish(&s);
}

static void two_devices(bool ordered) {
    two_streams s = prepare("{\"devices\": 2}");
    CUdevice device;
    CUcontext context;
    CUdeviceptr there;
    CUstream stream;
    assert_success(s.f.driver->device_get(&device, 1));
    assert_success(s.f.driver->primary_ctx_retain(&context, device));
    assert_success(launch_mix(&s.f, s.f.stream, s.word, 5));
    assert_success(s.f.driver->event_record(s.event, s.f.stream));
    assert_success(s.f.driver->ctx_set_current(context));
    assert_success(s.f.driver->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    assert_success(s.f.driver->mem_alloc(&there, 4));
    if (ordered) assert_success(s.f.driver->stream_wait_event(stream, s.event, 0));
    assert_success(s.f.driver->memcpy_peer_async(there, context, s.word, s.f.context, 4, stream));
    assert_success(s.f.driver->stream_synchronize(stream));
    finish(&s);
}

static void branches_of_a_graph(bool ordered) {
    two_streams s = prepare("{}");
    CUgraph graph;
    CUgraphNode writer, reader;
    CUgraphExec exec;
    uint32_t v = 5;
    void *write_pointers[] = {&s.word, &v}, *read_pointers[] = {&s.other, &s.word};
    CUDA_KERNEL_NODE_PARAMS node = {.func = s.f.mix,
                                    .gridDimX = 1,
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 1,
                                    .blockDimY = 1,
                                    .blockDimZ = 1,
                                    .kernelParams = write_pointers};
    assert_success(s.f.driver->graph_create(&graph, 0));
    assert_success(s.f.driver->graph_add_kernel_node(&writer, graph, NULL, 0, &node));
    node.func = s.f.copy;
    node.kernelParams = read_pointers;
    assert_success(s.f.driver->graph_add_kernel_node(&reader, graph, &writer, ordered ? 1 : 0, &node));
    assert_success(s.f.driver->graph_instantiate(&exec, graph, 0));
    assert_success(s.f.driver->graph_launch(exec, s.f.stream));
    finish(&s);
}

/* The host reads pinned memory that a stream writes. */
static void host_reads(bool ordered) {
    two_streams s = prepare("{}");
    void *host;
    mu_sim_statistics statistics = {0};
    assert_success(s.f.driver->mem_host_alloc(&host, 4, 0));
    assert_success(launch_copy(&s.f, s.f.stream, (uintptr_t)host, s.word));
    if (ordered) assert_success(s.f.driver->stream_synchronize(s.f.stream));
    while (statistics.kernels == 0) mu_sim_get_statistics(s.f.driver, 0, &statistics);
    assert_int_equal(*(uint32_t *)host, 0);
    finish(&s);
}

/* ------------------------------------------------------------------------------------------------------ children -- */

static int run_child(void (*body)(bool), bool ordered, bool *reported) {
    int pipe_ends[2];
    char text[4096] = "";
    size_t used = 0;
    assert_int_equal(pipe(pipe_ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipe_ends[1], STDERR_FILENO);
        close(pipe_ends[0]);
        close(pipe_ends[1]);
        body(ordered);
        exit(0); /* not _exit: the sanitizer sets the code at exit */
    }
    close(pipe_ends[1]);
    for (ssize_t got; (got = read(pipe_ends[0], text + used, sizeof text - 1 - used)) > 0 && used < sizeof text - 1;)
        used += (size_t)got;
    char rest[4096];
    while (read(pipe_ends[0], rest, sizeof rest) > 0) {
    }
    close(pipe_ends[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    text[used] = 0;
    *reported = strstr(text, "data race") != NULL;
    if (ordered && *reported) print_error("%s\n", text);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void check(void (*body)(bool)) {
    bool reported;
    assert_int_equal(run_child(body, true, &reported), 0);
    assert_false(reported);
    if (!MU_TSAN) {
        print_message("skipped: only ThreadSanitizer (--config=tsan) reports the missing event\n");
        skip();
    }
    assert_int_equal(run_child(body, false, &reported), RACE);
    assert_true(reported);
}

static void test_a_kernel_reads_what_another_stream_writes(void **state) { (void)state, check(write_then_read); }
static void test_having_run_earlier_orders_nothing(void **state) { (void)state, check(write_long_before_read); }
static void test_a_fill_overwrites_what_is_read(void **state) { (void)state, check(copy_over_what_is_read); }
static void test_a_peer_copy_needs_the_event(void **state) { (void)state, check(two_devices); }
static void test_branches_of_a_graph_are_unordered(void **state) { (void)state, check(branches_of_a_graph); }
static void test_the_host_must_synchronise(void **state) { (void)state, check(host_reads); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_kernel_reads_what_another_stream_writes),
        cmocka_unit_test(test_having_run_earlier_orders_nothing),
        cmocka_unit_test(test_a_fill_overwrites_what_is_read),
        cmocka_unit_test(test_a_peer_copy_needs_the_event),
        cmocka_unit_test(test_branches_of_a_graph_are_unordered),
        cmocka_unit_test(test_the_host_must_synchronise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
