/* Misuse of handles: NULL everywhere, handles of another runtime, handles of another type. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/scheduler/fixture.h"

/* One of everything, in two runtimes. */
typedef struct set {
    fixture fixture;
    muster_kernel *kernel;
    muster_buffer *buffer;
    muster_graph *graph;
    muster_run *run;
} set;

static set own, foreign;

static void open_set(set *set) {
    fixture_open(&set->fixture, 1);
    set->kernel = fixture_kernel(&set->fixture, "affine");
    set->buffer = fixture_buffer(&set->fixture, 64, NULL);
    set->graph = fixture_graph(&set->fixture);
    fixture_affine(&set->fixture, set->graph, set->buffer, 1, 1);
    set->run = fixture_submit(&set->fixture, set->graph);
    OK(muster_run_wait(set->run, fixture_wait_ns, &reported));
    muster_graph_destroy(set->graph);
    set->graph = fixture_graph(&set->fixture); /* one that still takes jobs */
    fixture_affine(&set->fixture, set->graph, set->buffer, 1, 1);
}

static int open_sets(void **state) {
    (void)state;
    open_set(&own);
    open_set(&foreign);
    return 0;
}

static int close_sets(void **state) {
    (void)state;
    fixture_close(&own.fixture);
    fixture_close(&foreign.fixture);
    return 0;
}

#define NO(call) FAILS(MUSTER_INVALID_ARGUMENT, "", call)

static void null_is_refused_everywhere(void **state) {
    (void)state;
    muster_config config = {.struct_size = sizeof config, .driver = "sim"};
    muster_runtime *runtime = own.fixture.runtime;
    muster_device_info info = {.struct_size = sizeof info};
    muster_device_stats stats = {.struct_size = sizeof stats};
    muster_job_result result = {.struct_size = sizeof result};
    muster_shard_result shard = {.struct_size = sizeof shard};
    muster_program *program;
    muster_kernel *kernel;
    muster_buffer *buffer;
    muster_graph *graph;
    muster_run *run;
    void *pointer;
    uint32_t value = 0;
    NO(muster_runtime_create(&config, NULL, &reported));
    NO(muster_device_get_info(NULL, 0, &info, &reported));
    NO(muster_device_get_info(runtime, 0, NULL, &reported));
    NO(muster_device_get_stats(NULL, 0, &stats, &reported));
    NO(muster_device_get_stats(runtime, 0, NULL, &reported));
    NO(muster_program_from_ptx(NULL, test_kernels_ptx, 0, "x", &program, &reported));
    NO(muster_program_from_ptx(runtime, NULL, 0, "x", &program, &reported));
    NO(muster_program_from_ptx(runtime, test_kernels_ptx, 0, "x", NULL, &reported));
    NO(muster_program_kernel(NULL, "affine", &kernel, &reported));
    NO(muster_program_kernel(own.fixture.program, NULL, &kernel, &reported));
    NO(muster_program_kernel(own.fixture.program, "affine", NULL, &reported));
    NO(muster_buffer_create(NULL, 4, NULL, &buffer, &reported));
    NO(muster_buffer_create(runtime, 4, NULL, NULL, &reported));
    NO(muster_buffer_acquire(NULL, 0, 4, MUSTER_READ, 0, &pointer, &reported));
    NO(muster_buffer_acquire(own.buffer, 0, 4, MUSTER_READ, 0, NULL, &reported));
    NO(muster_buffer_release(NULL, &value, &reported));
    NO(muster_graph_create(NULL, &graph, &reported));
    NO(muster_graph_create(runtime, NULL, &reported));
    NO(muster_graph_dispatch(NULL, &(muster_dispatch){.struct_size = sizeof(muster_dispatch)}, NULL, &reported));
    NO(muster_graph_dispatch(own.graph, NULL, NULL, &reported));
    NO(muster_graph_copy(NULL, own.buffer, 0, own.buffer, 32, 4, NULL, &reported));
    NO(muster_graph_copy(own.graph, NULL, 0, own.buffer, 32, 4, NULL, &reported));
    NO(muster_graph_copy(own.graph, own.buffer, 0, NULL, 32, 4, NULL, &reported));
    NO(muster_graph_fill(NULL, own.buffer, 0, 4, 0, 4, NULL, &reported));
    NO(muster_graph_fill(own.graph, NULL, 0, 4, 0, 4, NULL, &reported));
    NO(muster_graph_after(NULL, 0, 0, &reported));
    NO(muster_graph_set_argument(NULL, 0, 1, &value, 4, &reported));
    NO(muster_graph_set_argument(own.graph, 0, 1, NULL, 4, &reported));
    NO(muster_submit(NULL, own.graph, &run, &reported));
    NO(muster_submit(runtime, NULL, &run, &reported));
    NO(muster_submit(runtime, own.graph, NULL, &reported));
    NO(muster_run_wait(NULL, 0, &reported));
    NO(muster_run_job_result(NULL, 0, &result, &reported));
    NO(muster_run_job_result(own.run, 0, NULL, &reported));
    NO(muster_run_shard_result(NULL, 0, 0, &shard, &reported));
    NO(muster_run_shard_result(own.run, 0, 0, NULL, &reported));
    shard.struct_size = 0;
    NO(muster_run_shard_result(own.run, 0, 0, &shard, &reported));
}

static void destroying_null_does_nothing(void **state) {
    (void)state;
    OK(muster_runtime_destroy(NULL, 0, &reported));
    muster_program_destroy(NULL);
    muster_buffer_destroy(NULL);
    muster_graph_destroy(NULL);
    muster_run_destroy(NULL);
    assert_int_equal(muster_device_count(NULL), 0);
    assert_int_equal(muster_buffer_bytes(NULL), 0);
}

/* Failing without an error struct is the same failure. */
static void the_error_may_be_null(void **state) {
    (void)state;
    muster_buffer *buffer;
    assert_int_equal(muster_buffer_create(own.fixture.runtime, 0, NULL, &buffer, NULL), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(muster_graph_after(own.graph, 55, 0, NULL), MUSTER_OUT_OF_RANGE);
    assert_int_equal(muster_run_wait(NULL, 0, NULL), MUSTER_INVALID_ARGUMENT);
}

static muster_status affine_status(muster_graph *graph, muster_kernel *kernel, muster_buffer *buffer) {
    muster_dispatch dispatch = fixture_dispatch(
        kernel, 1, 16,
        ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(16)));
    return muster_graph_dispatch(graph, &dispatch, NULL, &reported);
}

static void handles_of_another_runtime_are_refused(void **state) {
    (void)state;
    muster_run *run;
    FAILS(MUSTER_WRONG_RUNTIME, "kernel", affine_status(own.graph, foreign.kernel, own.buffer));
    FAILS(MUSTER_WRONG_RUNTIME, "argument 0", affine_status(own.graph, own.kernel, foreign.buffer));
    FAILS(MUSTER_WRONG_RUNTIME, "destination",
          muster_graph_copy(own.graph, foreign.buffer, 0, own.buffer, 0, 4, NULL, &reported));
    FAILS(MUSTER_WRONG_RUNTIME, "source",
          muster_graph_copy(own.graph, own.buffer, 0, foreign.buffer, 0, 4, NULL, &reported));
    FAILS(MUSTER_WRONG_RUNTIME, "buffer", muster_graph_fill(own.graph, foreign.buffer, 0, 4, 0, 4, NULL, &reported));
    FAILS(MUSTER_WRONG_RUNTIME, "graph", muster_submit(own.fixture.runtime, foreign.graph, &run, &reported));
}

static void handles_of_another_type_are_refused(void **state) {
    (void)state;
    muster_runtime *runtime = own.fixture.runtime;
    muster_run *run;
    muster_kernel *kernel;
    void *pointer;
    muster_device_info info = {.struct_size = sizeof info};
    FAILS(MUSTER_INVALID_HANDLE, "", muster_submit(runtime, (muster_graph *)own.buffer, &run, &reported));
    FAILS(MUSTER_INVALID_HANDLE, "", muster_submit((muster_runtime *)own.graph, own.graph, &run, &reported));
    FAILS(MUSTER_INVALID_HANDLE, "", muster_run_wait((muster_run *)own.graph, 0, &reported));
    FAILS(MUSTER_INVALID_HANDLE, "",
          muster_buffer_acquire((muster_buffer *)own.run, 0, 4, MUSTER_READ, 0, &pointer, &reported));
    FAILS(MUSTER_INVALID_HANDLE, "", muster_program_kernel((muster_program *)own.kernel, "x", &kernel, &reported));
    FAILS(MUSTER_INVALID_HANDLE, "", affine_status(own.graph, (muster_kernel *)own.fixture.program, own.buffer));
    FAILS(MUSTER_INVALID_HANDLE, "", affine_status(own.graph, own.kernel, (muster_buffer *)own.graph));
    FAILS(MUSTER_INVALID_HANDLE, "",
          muster_graph_fill((muster_graph *)own.buffer, own.buffer, 0, 4, 0, 4, NULL, &reported));
    FAILS(MUSTER_INVALID_HANDLE, "", muster_device_get_info((muster_runtime *)own.run, 0, &info, &reported));
    FAILS(MUSTER_INVALID_HANDLE, "", muster_runtime_destroy((muster_runtime *)own.run, 0, &reported));
    uint64_t anything[16] = {0}; /* as memory is of which the handle was destroyed */
    FAILS(MUSTER_INVALID_HANDLE, "not a handle|destroyed",
          muster_runtime_destroy((muster_runtime *)anything, 0, &reported));
}

/* After all of that both runtimes still work. */
static void nothing_was_harmed(void **state) {
    (void)state;
    fixture_run(&own.fixture, own.graph);
    fixture_run(&foreign.fixture, foreign.graph);
    assert_int_equal(fixture_word(own.buffer, 15), 2);
    assert_int_equal(fixture_word(foreign.buffer, 15), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_is_refused_everywhere),
        cmocka_unit_test(destroying_null_does_nothing),
        cmocka_unit_test(the_error_may_be_null),
        cmocka_unit_test(handles_of_another_runtime_are_refused),
        cmocka_unit_test(handles_of_another_type_are_refused),
        cmocka_unit_test(nothing_was_harmed),
    };
    return cmocka_run_group_tests(tests, open_sets, close_sets);
}
