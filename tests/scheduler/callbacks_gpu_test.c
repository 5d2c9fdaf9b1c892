/* Enqueue jobs, host jobs and read-backs on real devices: the application calls the driver by itself, between Muster's kernels.
 * Skipped, visibly, where there is no driver or device. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "muster_cuda.h"
#include "tests/scheduler/callbacks.h"

enum { WORDS = 1 << 20, BYTES = 4 * WORDS };

/* As an application that links the driver would call it. */
static struct {
    CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
    CUresult (*set)(CUdeviceptr, unsigned int, size_t, CUstream);
    CUresult (*current)(CUcontext *);
} cuda;

static fixture the_fixture;

static muster_status says(CUresult code, muster_error *error) {
    if (code == CUDA_SUCCESS) return MUSTER_OK;
    snprintf(error->message, sizeof error->message, "driver code %d", (int)code);
    return MUSTER_TRANSFER_FAILED;
}

/* (from, to, scratch): to becomes what from is, by way of the scratch memory. */
static muster_status copy(void *user, const muster_enqueue_context *context, muster_error *error) {
    CUcontext current = NULL;
    CUstream stream = muster_cuda_stream(context);
    atomic_fetch_add((atomic_uint *)user, 1);
    CUresult code = cuda.current(&current);
    if (!code && current != muster_cuda_context(context)) code = CUDA_ERROR_INVALID_CONTEXT;
    if (!code) code = cuda.copy(muster_cuda_address(context, 2), muster_cuda_address(context, 0), BYTES, stream);
    if (!code) code = cuda.copy(muster_cuda_address(context, 1), muster_cuda_address(context, 2), BYTES, stream);
    return says(code, error);
}

/* (to) */
static muster_status set_to_nine(void *user, const muster_enqueue_context *context, muster_error *error) {
    atomic_fetch_add((atomic_uint *)user, 1);
    return says(cuda.set(muster_cuda_address(context, 0), 9, WORDS, muster_cuda_stream(context)), error);
}

static muster_job add_enqueue(muster_graph *graph,
                              muster_status (*enqueue)(void *, const muster_enqueue_context *, muster_error *),
                              atomic_uint *calls, int device, fixture_args args) {
    muster_job job = MUSTER_NO_JOB;
    OK(muster_graph_enqueue(graph,
                            &(muster_enqueue_job){.struct_size = sizeof(muster_enqueue_job),
                                                  .enqueue = enqueue,
                                                  .user = calls,
                                                  .arg_count = args.count,
                                                  .args = args.arg,
                                                  .pin_device = 1,
                                                  .device = device},
                            &job, &reported));
    return job;
}

static muster_status add_one(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)count, (void)error;
    uint32_t *words = pointers[0];
    for (uint32_t i = 0; i < WORDS; i++) words[i]++;
    atomic_fetch_add((atomic_uint *)user, 1);
    return MUSTER_OK;
}

/* On each device in turn: kernels in bursts, a library's copies, the host, all over the same words. */
static void callbacks_and_kernels_take_turns(void **state) {
    (void)state;
    enum { ROUNDS = 24, BACKLOG = 40 };
    fixture *f = &the_fixture;
    int devices = muster_device_count(f->runtime);
    muster_buffer *a = fixture_buffer(f, BYTES, NULL), *b = fixture_buffer(f, BYTES, NULL);
    muster_graph *graph = fixture_graph(f);
    atomic_uint enqueued = 0, called = 0;
    add_enqueue(graph, set_to_nine, &enqueued, 0, ARGS(muster_buffer_arg(a, MUSTER_WRITE)));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        int device = (int)round % devices;
        for (uint32_t i = 0; i < BACKLOG; i++) add_affine_on(f, graph, a, device, 3, i);
        add_enqueue(
            graph, copy, &enqueued, device,
            ARGS(muster_buffer_arg(a, MUSTER_READ), muster_buffer_arg(b, MUSTER_WRITE), muster_scratch_arg(BYTES)));
        add_affine_on(f, graph, b, device, 5, 1);
        if (round % 4 == 3) add_host(graph, add_one, &called, ARGS(muster_buffer_arg(b, MUSTER_READ_WRITE)));
        OK(muster_graph_copy(graph, a, 0, b, 0, BYTES, NULL, &reported));
    }
    OK(muster_graph_read_back(graph, a, 0, 0, NULL, &reported));
    fixture_run(f, graph);
    uint32_t expected = 9, *words = malloc(BYTES);
    assert_non_null(words);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < BACKLOG; i++) expected = 3 * expected + i;
        expected = 5 * expected + 1 + (round % 4 == 3);
    }
    uint64_t copied = 0, after = 0;
    for (int d = 0; d < devices; d++) copied += stats_of(f, d).bytes_to_host;
    fixture_read(a, 0, BYTES, words);
    for (int d = 0; d < devices; d++) after += stats_of(f, d).bytes_to_host;
    assert_int_equal(after, copied); /* it was read back */
    for (uint32_t i = 0; i < WORDS; i++) assert_int_equal(words[i], expected);
    assert_int_equal(enqueued, ROUNDS + 1);
    assert_int_equal(called, ROUNDS / 4);
    free(words);
    muster_buffer_destroy(a);
    muster_buffer_destroy(b);
    muster_graph_destroy(graph);
}

/* Callbacks that fail and that are cancelled leave a device that works. */
static muster_status refuse_to(void *user, const muster_enqueue_context *context, muster_error *error) {
    (void)context;
    atomic_fetch_add((atomic_uint *)user, 1);
    snprintf(error->message, sizeof error->message, "not today");
    return MUSTER_UNSUPPORTED;
}

static void a_failing_callback_leaves_the_device_working(void **state) {
    (void)state;
    fixture *f = &the_fixture;
    muster_buffer *buffer = fixture_buffer(f, BYTES, NULL);
    muster_graph *bad = fixture_graph(f), *good = fixture_graph(f);
    atomic_uint calls = 0;
    muster_job job = add_enqueue(bad, refuse_to, &calls, 0, ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE)));
    muster_job after = add_affine_on(f, bad, buffer, 0, 1, 1);
    add_enqueue(good, set_to_nine, &calls, 0, ARGS(muster_buffer_arg(buffer, MUSTER_WRITE)));
    add_affine_on(f, good, buffer, 0, 2, 1);
    muster_run *run = fixture_submit(f, bad);
    FAILS(MUSTER_CALLBACK_FAILED, "not today", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, job).status, MUSTER_CALLBACK_FAILED);
    assert_int_equal(fixture_result(run, after).status, MUSTER_PREDECESSOR_FAILED);
    fixture_run(f, good);
    assert_int_equal(fixture_word(buffer, WORDS - 1), 19);
    assert_int_equal(calls, 2);
    muster_buffer_destroy(buffer);
}

int main(void) {
    const muster_config config = {.struct_size = sizeof config, .driver = "cuda"};
    muster_error error;
    muster_status status = muster_runtime_create(&config, &the_fixture.runtime, &error);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) {
        fprintf(stderr, "SKIPPED: %s\n", error.message);
        return 0;
    }
    if (status) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library) {
        *(void **)&cuda.copy = dlsym(library, "cuMemcpyDtoDAsync_v2");
        *(void **)&cuda.set = dlsym(library, "cuMemsetD32Async");
        *(void **)&cuda.current = dlsym(library, "cuCtxGetCurrent");
    }
    if (!cuda.copy || !cuda.set || !cuda.current ||
        muster_program_from_ptx(the_fixture.runtime, test_kernels_ptx, 0, "test kernels", &the_fixture.program, &error))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callbacks_and_kernels_take_turns),
        cmocka_unit_test(a_failing_callback_leaves_the_device_working),
    };
    int failed = cmocka_run_group_tests_name("callbacks on a GPU", tests, NULL, NULL);
    return muster_runtime_destroy(the_fixture.runtime, fixture_wait_ns, NULL) ? 1 : failed;
}
