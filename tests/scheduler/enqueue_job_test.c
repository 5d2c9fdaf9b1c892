/* Enqueue jobs: callbacks that put work on a device's stream themselves, by the driver's table. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/driver.h"
#include "muster_cuda.h"
#include "tests/scheduler/callbacks.h"

enum { WORDS = 1000, BYTES = 4 * WORDS };

typedef muster_status (*enqueue_fn)(void *user, const muster_enqueue_context *context, muster_error *error);

static muster_job add_enqueue_on(muster_graph *graph, enqueue_fn enqueue, void *user, int device, fixture_args args) {
    muster_job job = MUSTER_NO_JOB;
    OK(muster_graph_enqueue(graph,
                            &(muster_enqueue_job){.struct_size = sizeof(muster_enqueue_job),
                                                  .enqueue = enqueue,
                                                  .user = user,
                                                  .arg_count = args.count,
                                                  .args = args.arg,
                                                  .pin_device = device != MUSTER_ANY_DEVICE,
                                                  .device = device},
                            &job, &reported));
    return job;
}

static muster_job add_enqueue(muster_graph *graph, enqueue_fn enqueue, void *user, fixture_args args) {
    return add_enqueue_on(graph, enqueue, user, MUSTER_ANY_DEVICE, args);
}

/* What the callbacks here call instead of a library, and what they saw. */
typedef struct library {
    const mu_driver *driver;
    atomic_uint calls;
    int device;
    sem_t called, open;
    sem_t warned;
    char warning[256];
} library;

static library library_of(const fixture *fixture) { return (library){.driver = fixture_driver(fixture)}; }

static muster_status says(CUresult code, muster_error *error) {
    if (code == CUDA_SUCCESS) return MUSTER_OK;
    snprintf(error->message, sizeof error->message, "driver code %d", (int)code);
    return MUSTER_TRANSFER_FAILED;
}

/* (from, to): a copy of the whole. */
static muster_status copy(void *user, const muster_enqueue_context *context, muster_error *error) {
    library *self = user;
    CUcontext current = NULL;
    assert_int_equal(context->struct_size, sizeof *context);
    assert_int_equal(self->driver->ctx_get_current(&current), CUDA_SUCCESS);
    assert_ptr_equal(current, muster_cuda_context(context));
    self->device = context->device;
    atomic_fetch_add(&self->calls, 1);
    return says(self->driver->memcpy_dtod_async(muster_cuda_address(context, 1), muster_cuda_address(context, 0), BYTES,
                                                muster_cuda_stream(context)),
                error);
}

/* (to): sets every word to the number of calls so far. */
static muster_status set_words(void *user, const muster_enqueue_context *context, muster_error *error) {
    library *self = user;
    assert_int_equal(context->count, 1);
    unsigned value = atomic_fetch_add(&self->calls, 1) + 1;
    return says(
        self->driver->memset_d32_async(muster_cuda_address(context, 0), value, WORDS, muster_cuda_stream(context)),
        error);
}

static muster_status nothing(void *user, const muster_enqueue_context *context, muster_error *error) {
    (void)context, (void)error;
    atomic_fetch_add(&((library *)user)->calls, 1);
    return MUSTER_OK;
}

/* --------------------------------------------------------------------------------------------------------------- order -- */

/* Kernels before and after it, in backlogs long enough for bursts, and their content through the callbacks; on one device and over
 * several, by every placement. */
static void its_work_is_in_order_with_kernels(void **state) {
    (void)state;
    static const char *const placements[] = {"locality", "round-robin", "random"};
    enum { ROUNDS = 12, BACKLOG = 20 };
    for (uint32_t p = 0; p < 6; p++) {
        fixture fixture;
        muster_config config = {.struct_size = sizeof config,
                                .placement = placements[p % 3],
                                .seed = p,
                                .flags = p == 4 ? MUSTER_RUNTIME_SERIAL : 0};
        fixture_open_with(&fixture, 1 + p % 4, &config);
        library library = library_of(&fixture);
        muster_buffer *a = fixture_buffer(&fixture, BYTES, NULL), *b = fixture_buffer(&fixture, BYTES, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            for (uint32_t i = 0; i < BACKLOG; i++) fixture_affine(&fixture, graph, a, 3, i);
            add_enqueue(graph, copy, &library,
                        ARGS(muster_buffer_arg(a, MUSTER_READ), muster_buffer_arg(b, MUSTER_WRITE)));
            fixture_affine(&fixture, graph, b, 5, 1);
            add_enqueue(graph, copy, &library,
                        ARGS(muster_buffer_arg(b, MUSTER_READ), muster_buffer_arg(a, MUSTER_WRITE)));
        }
        fixture_run(&fixture, graph);
        uint32_t expected = 0, words[WORDS];
        for (uint32_t round = 0; round < ROUNDS; round++) {
            for (uint32_t i = 0; i < BACKLOG; i++) expected = 3 * expected + i;
            expected = 5 * expected + 1;
        }
        fixture_read(a, 0, BYTES, words);
        for (int w = 0; w < WORDS; w++) assert_int_equal(words[w], expected);
        assert_int_equal(library.calls, 2 * ROUNDS);
        fixture_close(&fixture);
    }
}

/* Its content comes from another device, and goes on to a third and to the host. */
static void content_follows_it_between_devices(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    library library = library_of(&fixture);
    muster_buffer *a = fixture_buffer(&fixture, BYTES, NULL), *b = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    add_affine_on(&fixture, graph, a, 0, 1, 7);
    muster_job job = add_enqueue_on(graph, copy, &library, 1,
                                    ARGS(muster_buffer_arg(a, MUSTER_READ), muster_buffer_arg(b, MUSTER_WRITE)));
    add_affine_on(&fixture, graph, b, 2, 2, 1);
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 1000000, &reported));
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(library.device, 1);
    assert_int_equal(fixture_result(run, job).device, 1);
    assert_int_equal(fixture_word(b, WORDS - 1), 15);
    fixture_close(&fixture);
}

/* The job ends with its work, not with the callback's return. */
static void it_ends_when_its_work_has_completed(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    library library = library_of(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    add_enqueue(graph, set_words, &library, ARGS(muster_buffer_arg(buffer, MUSTER_WRITE)));
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, graph);
    while (!atomic_load(&library.calls)) sched_yield();
    muster_job_result result = {.struct_size = sizeof result};
    FAILS(MUSTER_INVALID_STATE, "", muster_run_job_result(run, 0, &result, &reported));
    fixture_hold(&fixture, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 3), 1);
    /* Again with the same graph: called once per run. */
    fixture_run(&fixture, graph);
    assert_int_equal(fixture_word(buffer, 3), 2);
    fixture_close(&fixture);
}

/* (scratch, to, scratch): by way of memory of its own, whose addresses come in the order of the arguments. */
static muster_status by_scratch(void *user, const muster_enqueue_context *context, muster_error *error) {
    library *self = user;
    CUstream stream = muster_cuda_stream(context);
    assert_int_equal(context->count, 3);
    CUresult code = self->driver->memset_d32_async(muster_cuda_address(context, 0), 11, WORDS, stream);
    if (!code) code = self->driver->memset_d32_async(muster_cuda_address(context, 2), 12, 16, stream);
    if (!code)
        code = self->driver->memcpy_dtod_async(muster_cuda_address(context, 1), muster_cuda_address(context, 0), BYTES,
                                               stream);
    if (!code)
        code = self->driver->memcpy_dtod_async(muster_cuda_address(context, 1), muster_cuda_address(context, 2), 64,
                                               stream);
    return says(code, error);
}

static void scratch_memory_is_for_it_too(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    library library = library_of(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_job job =
        add_enqueue(graph, by_scratch, &library,
                    ARGS(muster_scratch_arg(BYTES), muster_buffer_arg(buffer, MUSTER_WRITE), muster_scratch_arg(64)));
    fixture_run(&fixture, graph);
    assert_int_equal(fixture_word(buffer, 15), 12);
    assert_int_equal(fixture_word(buffer, 16), 11);
    muster_preflight_report report = {.struct_size = sizeof report};
    OK(muster_preflight(graph, job, 1, MUSTER_PREFLIGHT_CHEAP, &report, &reported));
    assert_int_equal(report.answer, MUSTER_ANSWER_YES);
    assert_in_range(report.required_bytes, 2 * BYTES + 64, 4 * BYTES);
    fixture_close(&fixture);
}

/* ------------------------------------------------------------------------------------------------------------ failures -- */

static muster_status refuse_to(void *user, const muster_enqueue_context *context, muster_error *error) {
    nothing(user, context, error);
    snprintf(error->message, sizeof error->message, "no handle for device %d", context->device);
    return MUSTER_UNSUPPORTED;
}

static void a_failing_callback_fails_its_job_and_what_follows_only(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    library library = library_of(&fixture);
    muster_buffer *bad = fixture_buffer(&fixture, BYTES, NULL), *good = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_job before = fixture_affine(&fixture, graph, bad, 1, 1);
    muster_job job = add_enqueue(graph, refuse_to, &library, ARGS(muster_range_arg(bad, MUSTER_READ_WRITE, 0, 400)));
    muster_job after = fixture_affine(&fixture, graph, bad, 1, 1);
    muster_job apart = fixture_affine(&fixture, graph, good, 1, 1);
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_CALLBACK_FAILED, "enqueue callback|MUSTER_UNSUPPORTED|no handle for device",
          muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(reported.job, job);
    assert_int_equal(fixture_result(run, before).status, MUSTER_OK);
    assert_int_equal(fixture_result(run, job).status, MUSTER_CALLBACK_FAILED);
    assert_int_equal(fixture_result(run, after).status, MUSTER_PREDECESSOR_FAILED);
    assert_int_equal(fixture_result(run, apart).status, MUSTER_OK);
    void *pointer;
    FAILS(MUSTER_DATA_UNDEFINED, "",
          muster_buffer_acquire(bad, 0, 4, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    fixture_close(&fixture);
}

static muster_status push_another_context(void *user, const muster_enqueue_context *context, muster_error *error) {
    (void)error;
    library *self = user;
    CUcontext made = NULL;
    atomic_fetch_add(&self->calls, 1);
    assert_int_equal(self->driver->ctx_create(&made, 0, context->device), CUDA_SUCCESS); /* makes it current */
    return MUSTER_OK;
}

/* The worker has its context back: everything after that works. */
static void one_that_leaves_another_context_current_is_refused(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    library library = library_of(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *bad = fixture_graph(&fixture), *good = fixture_graph(&fixture);
    add_enqueue(bad, push_another_context, &library, NO_ARGS);
    fixture_affine(&fixture, good, buffer, 1, 2);
    add_enqueue(good, set_words, &library, ARGS(muster_buffer_arg(buffer, MUSTER_WRITE)));
    FAILS(MUSTER_CALLBACK_FAILED, "context|left current",
          muster_run_wait(fixture_submit(&fixture, bad), fixture_wait_ns, &reported));
    fixture_run(&fixture, good);
    assert_int_equal(fixture_word(buffer, 0), 2);
    fixture_close(&fixture);
}

static void a_cancelled_run_calls_no_more(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    library library = library_of(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    void *pointer;
    muster_job job = add_enqueue(graph, nothing, &library, ARGS(muster_buffer_arg(buffer, MUSTER_WRITE)));
    OK(muster_buffer_acquire(buffer, 0, 0, MUSTER_WRITE, fixture_wait_ns, &pointer, &reported));
    muster_run *run = fixture_submit(&fixture, graph);
    OK(muster_run_cancel(run, &reported));
    OK(muster_buffer_release(buffer, pointer, &reported));
    FAILS(MUSTER_CANCELLED, "", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, job).status, MUSTER_CANCELLED);
    assert_int_equal(library.calls, 0);
    fixture_close(&fixture);
}

static void a_fault_ends_those_that_wait(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    library library = library_of(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "illegal"), 1, 1,
                         ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u64_arg(1ull << 40)));
    dispatch.pin_device = 1;
    fixture_add(graph, &dispatch);
    for (int d = 0; d < 2; d++)
        add_enqueue_on(graph, set_words, &library, d, ARGS(muster_buffer_arg(buffer, MUSTER_WRITE)));
    muster_run *run = fixture_submit(&fixture, graph);
    assert_int_equal(muster_status_recovery(muster_run_wait(run, fixture_wait_ns, NULL)), MUSTER_RECOVERY_DEVICE_LOST);
    for (muster_job job = 0; job < 3; job++) assert_int_not_equal(fixture_result(run, job).status, MUSTER_OK);
    fixture_close(&fixture);
}

/* ------------------------------------------------------------------------------------------------------------ watchdog -- */

static muster_status block(void *user, const muster_enqueue_context *context, muster_error *error) {
    library *self = user;
    nothing(user, context, error);
    sem_post(&self->called);
    sem_wait(&self->open);
    return MUSTER_OK;
}

static void note_warning(void *user, muster_log_level level, const char *line) {
    library *self = user;
    if (level != MUSTER_LOG_WARNING || !strstr(line, "enqueue callback")) return;
    snprintf(self->warning, sizeof self->warning, "%s", line);
    sem_post(&self->warned);
}

/* The limit is short, so that the test is; what it waits for is the warning itself. */
static void one_that_blocks_is_named(void **state) {
    (void)state;
    library library;
    memset(&library, 0, sizeof library);
    sem_init(&library.called, 0, 0);
    sem_init(&library.open, 0, 0);
    sem_init(&library.warned, 0, 0);
    fixture fixture;
    muster_config config = {
        .struct_size = sizeof config, .log = note_warning, .log_user = &library, .enqueue_limit_ns = 20000000};
    fixture_open_with(&fixture, 2, &config);
    library.driver = fixture_driver(&fixture);
    muster_graph *graph = fixture_graph(&fixture);
    add_enqueue_on(graph, nothing, &library, 1, NO_ARGS); /* returns at once, and arms the watch */
    add_enqueue_on(graph, block, &library, 1, NO_ARGS);
    muster_run *run[2] = {fixture_submit(&fixture, graph), NULL};
    sem_wait(&library.called);
    sem_wait(&library.warned);
    assert_non_null(strstr(library.warning, "device 1"));
    assert_non_null(strstr(library.warning, "job 1"));
    FAILS(MUSTER_TIMEOUT, "2 of 2|enqueue callback of job 1|device 1", muster_run_wait(run[0], 0, &reported));
    assert_int_equal(stats_of(&fixture, 1).slow_callbacks, 1);
    assert_int_equal(stats_of(&fixture, 0).slow_callbacks, 0);
    sem_post(&library.open);
    OK(muster_run_wait(run[0], fixture_wait_ns, &reported));
    /* Once a callback: the next that blocks is named again, the first is not any more. */
    run[1] = fixture_submit(&fixture, graph);
    sem_wait(&library.called);
    sem_wait(&library.warned);
    sem_post(&library.open);
    OK(muster_run_wait(run[1], fixture_wait_ns, &reported));
    assert_int_equal(stats_of(&fixture, 1).slow_callbacks, 2);
    assert_int_equal(sem_trywait(&library.warned), -1);
    fixture_close(&fixture);
    assert_int_equal(sem_trywait(&library.warned), -1);
    sem_destroy(&library.called);
    sem_destroy(&library.open);
    sem_destroy(&library.warned);
}

/* Many quick ones in a row, over several times the limit: none is taken for one that blocks. */
static void quick_ones_are_not_named(void **state) {
    (void)state;
    library library;
    memset(&library, 0, sizeof library);
    sem_init(&library.warned, 0, 0);
    fixture fixture;
    muster_config config = {
        .struct_size = sizeof config, .log = note_warning, .log_user = &library, .enqueue_limit_ns = 5000000000u};
    fixture_open_with(&fixture, 2, &config);
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < 2000; i++) add_enqueue(graph, nothing, &library, NO_ARGS);
    fixture_run(&fixture, graph);
    assert_int_equal(library.calls, 2000);
    assert_int_equal(stats_of(&fixture, 0).slow_callbacks + stats_of(&fixture, 1).slow_callbacks, 0);
    fixture_close(&fixture); /* with the watch still set */
    assert_int_equal(sem_trywait(&library.warned), -1);
    sem_destroy(&library.warned);
}

/* ------------------------------------------------------------------------------------------------------------ refusals -- */

static void refuse(muster_graph *graph, muster_status status, const char *words, muster_enqueue_job enqueue) {
    muster_job job = 77;
    FAILS(status, words, muster_graph_enqueue(graph, &enqueue, &job, &reported));
    assert_int_equal(job, 77);
}

static void bad_input_is_refused(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    library library = library_of(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_enqueue_job good = {.struct_size = sizeof good, .enqueue = nothing, .user = &library}, enqueue = good;
    FAILS(MUSTER_INVALID_ARGUMENT, "enqueue", muster_graph_enqueue(graph, NULL, NULL, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "graph", muster_graph_enqueue(NULL, &enqueue, NULL, &reported));
    enqueue.struct_size = 8;
    refuse(graph, MUSTER_INVALID_ARGUMENT, "struct_size|8", enqueue);
    enqueue = good;
    enqueue.enqueue = NULL;
    refuse(graph, MUSTER_INVALID_ARGUMENT, "function", enqueue);
    enqueue = good;
    enqueue.pin_device = 1;
    enqueue.device = 2;
    refuse(graph, MUSTER_OUT_OF_RANGE, "device 2|2", enqueue);
    enqueue.device = -1;
    refuse(graph, MUSTER_OUT_OF_RANGE, "device -1", enqueue);
    const struct {
        muster_arg arg;
        muster_status status;
        const char *words;
    } bad[] = {
        {muster_f32_arg(1), MUSTER_INVALID_ARGUMENT, "argument 1|user"},
        {muster_scratch_arg(0), MUSTER_INVALID_ARGUMENT, "argument 1|scratch"},
        {muster_range_arg(buffer, MUSTER_READ, 4, BYTES), MUSTER_OUT_OF_RANGE, "argument 1"},
        {muster_range_arg(buffer, MUSTER_WRITE, 4, 8), MUSTER_INVALID_ARGUMENT, "0 and 1|overlap"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        muster_arg args[2] = {muster_range_arg(buffer, MUSTER_READ, 0, 8), bad[i].arg};
        enqueue = good;
        enqueue.arg_count = 2;
        enqueue.args = args;
        refuse(graph, bad[i].status, bad[i].words, enqueue);
    }
    muster_job job;
    OK(muster_graph_enqueue(graph, &good, &job, &reported));
    assert_int_equal(job, 0);
    fixture_run(&fixture, graph);
    assert_int_equal(library.calls, 1);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_work_is_in_order_with_kernels),
        cmocka_unit_test(content_follows_it_between_devices),
        cmocka_unit_test(it_ends_when_its_work_has_completed),
        cmocka_unit_test(scratch_memory_is_for_it_too),
        cmocka_unit_test(a_failing_callback_fails_its_job_and_what_follows_only),
        cmocka_unit_test(one_that_leaves_another_context_current_is_refused),
        cmocka_unit_test(a_cancelled_run_calls_no_more),
        cmocka_unit_test(a_fault_ends_those_that_wait),
        cmocka_unit_test(one_that_blocks_is_named),
        cmocka_unit_test(quick_ones_are_not_named),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
