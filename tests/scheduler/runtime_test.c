/* Runtimes: configuration, creation and destruction, devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "device/driver.h"
#include "tests/scheduler/fixture.h"

static muster_config sim_config(void) {
    static char spec[FIXTURE_SPEC_BYTES];
    fixture_equal_spec(3, spec);
    return (muster_config){.struct_size = sizeof(muster_config), .driver = "sim", .sim = spec};
}

static void refused(muster_status status, const char *words, const muster_config *config) {
    muster_runtime *runtime = (muster_runtime *)&runtime;
    FAILS(status, words, muster_runtime_create(config, &runtime, &reported));
    assert_ptr_equal(runtime, &runtime); /* outputs are untouched on failure */
}

static void a_bad_field_is_named(void **state) {
    (void)state;
    muster_config config = sim_config();
    config.struct_size = 0;
    refused(MUSTER_INVALID_CONFIG, "struct_size", &config);
    config = sim_config();
    config.driver = "opencl";
    refused(MUSTER_INVALID_CONFIG, "driver|opencl|cuda|sim", &config);
    config = sim_config();
    config.placement = "fastest";
    refused(MUSTER_INVALID_CONFIG, "placement|fastest|locality", &config);
    config = sim_config();
    config.budget_permille = 1001;
    refused(MUSTER_INVALID_CONFIG, "budget_permille|1001|1000", &config);
    config = sim_config();
    config.flags = 1u << 30;
    refused(MUSTER_INVALID_CONFIG, "flags", &config);
    config = sim_config();
    config.log_level = (muster_log_level)9;
    refused(MUSTER_INVALID_CONFIG, "log_level|9", &config);
}

static void a_bad_machine_is_named(void **state) {
    (void)state;
    muster_config config = sim_config();
    config.sim = "{\"devcies\": 2}";
    refused(MUSTER_INVALID_CONFIG, "devcies", &config);
    config.sim = "{\"devices\": ";
    refused(MUSTER_INVALID_CONFIG, "", &config);
}

static void ordinals_choose_and_order_the_devices(void **state) {
    (void)state;
    muster_config config = sim_config();
    config.ordinals = (const int[]){2, 0};
    config.device_count = 2;
    muster_runtime *runtime;
    OK(muster_runtime_create(&config, &runtime, &reported));
    assert_int_equal(muster_device_count(runtime), 2);
    for (int index = 0; index < 2; index++) {
        muster_device_info info = {.struct_size = sizeof info};
        OK(muster_device_get_info(runtime, index, &info, &reported));
        assert_int_equal(info.index, index);
        assert_int_equal(info.ordinal, index == 0 ? 2 : 0);
    }
    OK(muster_runtime_destroy(runtime, 0, &reported));
}

static void bad_ordinals_are_refused(void **state) {
    (void)state;
    muster_config config = sim_config();
    config.device_count = 2;
    config.ordinals = (const int[]){1, 1};
    refused(MUSTER_INVALID_CONFIG, "ordinal|1", &config);
    config.ordinals = (const int[]){0, 7};
    refused(MUSTER_OUT_OF_RANGE, "7|3", &config);
    config.ordinals = (const int[]){0, -1};
    refused(MUSTER_OUT_OF_RANGE, "-1", &config);
    config.ordinals = NULL;
    config.device_count = 4;
    refused(MUSTER_OUT_OF_RANGE, "4|3", &config);
}

static void device_count_takes_the_first(void **state) {
    (void)state;
    muster_config config = sim_config();
    config.device_count = 2;
    muster_runtime *runtime;
    OK(muster_runtime_create(&config, &runtime, &reported));
    assert_int_equal(muster_device_count(runtime), 2);
    OK(muster_runtime_destroy(runtime, 0, &reported));
    config.device_count = 0;
    OK(muster_runtime_create(&config, &runtime, &reported));
    assert_int_equal(muster_device_count(runtime), 3);
    OK(muster_runtime_destroy(runtime, 0, &reported));
}

/* ----------------------------------------------------------------------------------------------- files, environment -- */

static char *config_file(const char *text) {
    static char path[512];
    const char *folder = getenv("TEST_TMPDIR");
    snprintf(path, sizeof path, "%s/config-XXXXXX", folder ? folder : "/tmp");
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    close(file);
    return path;
}

static void file_refused(muster_status status, const char *words, const char *text) {
    muster_config config = sim_config();
    char *path = config_file(text);
    config.config_path = path;
    refused(status, words, &config);
    unlink(path);
}

static void a_bad_file_is_explained(void **state) {
    (void)state;
    file_refused(MUSTER_INVALID_CONFIG, ":1:", "{\"driver\": \"sim\",, }");
    file_refused(MUSTER_INVALID_CONFIG, "drivr", "{\"drivr\": \"sim\"}");
    file_refused(MUSTER_INVALID_CONFIG, "spin_ns", "{\"spin_ns\": \"long\"}");
    file_refused(MUSTER_INVALID_CONFIG, "enqueue_limit_ns", "{\"enqueue_limit_ns\": -1}");
    file_refused(MUSTER_INVALID_CONFIG, "budget_permille", "{\"budget_permille\": -5}");
    file_refused(MUSTER_INVALID_CONFIG, "", "[1, 2]");
    file_refused(MUSTER_INVALID_CONFIG, "", "");
    muster_config config = sim_config();
    config.config_path = "/nonexistent/muster.json";
    refused(MUSTER_FILE_UNREADABLE, "/nonexistent/muster.json", &config);
    config.config_path = "/";
    refused(MUSTER_FILE_UNREADABLE, "/", &config);
}

static void code_wins_over_the_file(void **state) {
    (void)state;
    char *path = config_file("{\"device_count\": 1, \"budget_bytes\": 1048576, \"driver\": \"cuda\"}");
    muster_config config = sim_config();
    config.config_path = path;
    config.device_count = 2;
    muster_runtime *runtime;
    OK(muster_runtime_create(&config, &runtime, &reported));
    assert_int_equal(muster_device_count(runtime), 2);
    muster_device_info info = {.struct_size = sizeof info};
    OK(muster_device_get_info(runtime, 0, &info, &reported));
    assert_int_equal(info.budget_bytes, 1048576);
    assert_true(info.simulated);
    OK(muster_runtime_destroy(runtime, 0, &reported));
    unlink(path);
}

static int clear_environment(void **state) {
    (void)state;
    unsetenv("MUSTER_DRIVER");
    unsetenv("MUSTER_SIM");
    unsetenv("MUSTER_LIBCUDA");
    return 0;
}

static void the_environment_is_the_default(void **state) {
    (void)state;
    muster_runtime *runtime;
    setenv("MUSTER_DRIVER", "sim", 1);
    setenv("MUSTER_SIM", "{\"devices\": 2}", 1);
    OK(muster_runtime_create(NULL, &runtime, &reported));
    assert_int_equal(muster_device_count(runtime), 2);
    OK(muster_runtime_destroy(runtime, 0, &reported));
    muster_config config = sim_config();
    OK(muster_runtime_create(&config, &runtime, &reported));
    assert_int_equal(muster_device_count(runtime), 3);
    OK(muster_runtime_destroy(runtime, 0, &reported));
    setenv("MUSTER_DRIVER", "vulkan", 1);
    refused(MUSTER_INVALID_CONFIG, "vulkan", NULL);
    unsetenv("MUSTER_DRIVER");
    unsetenv("MUSTER_SIM");
}

/* The default driver is the real one; where there is none that is said, and the simulator does not step in. */
static void there_is_no_silent_fallback(void **state) {
    (void)state;
    muster_runtime *runtime;
    setenv("MUSTER_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
    FAILS(MUSTER_NO_DRIVER, "/nonexistent/libcuda.so.1", muster_runtime_create(NULL, &runtime, &reported));
    unsetenv("MUSTER_LIBCUDA");
}

/* -------------------------------------------------------------------------------------------- creation, destruction -- */

static void a_hundred_runtimes_leave_nothing(void **state) {
    (void)state;
    fixture_count_memory();
    for (int i = 0; i < 100; i++) {
        muster_config config = sim_config();
        muster_runtime *runtime;
        OK(muster_runtime_create(&config, &runtime, &reported));
        OK(muster_runtime_destroy(runtime, 0, &reported));
    }
    assert_int_equal(fixture_live_blocks(), 0);
}

static void runtimes_live_side_by_side(void **state) {
    (void)state;
    fixture one, other;
    fixture_open(&one, 1);
    fixture_open(&other, 2);
    for (int i = 0; i < 2; i++) {
        const fixture *fixture = i ? &other : &one;
        muster_buffer *buffer = fixture_buffer(fixture, 4, NULL);
        muster_graph *graph = fixture_graph(fixture);
        fixture_affine(fixture, graph, buffer, 1, 40);
        fixture_run(fixture, graph);
        assert_int_equal(fixture_word(buffer, 0), 40);
    }
    fixture_close(&one);
    fixture_close(&other);
}

/* Destroying the runtime destroys what the application left. */
static void destroy_takes_every_handle_along(void **state) {
    (void)state;
    fixture_count_memory();
    fixture fixture;
    fixture_open(&fixture, 2);
    for (int i = 0; i < 3; i++) {
        muster_buffer *buffer = fixture_buffer(&fixture, 1000, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        fixture_affine(&fixture, graph, buffer, 1, 1);
        muster_run *run = fixture_submit(&fixture, graph);
        if (i == 0) muster_run_destroy(run);
        if (i == 1) muster_buffer_destroy(buffer);
        if (i == 1) muster_graph_destroy(graph);
    }
    fixture_close(&fixture);
    assert_int_equal(fixture_live_blocks(), 0);
}

static void destroy_waits_for_work_no_longer_than_asked(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 1, 5);
    fixture_hold_all(&fixture, true);
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_TIMEOUT, "1", muster_runtime_destroy(fixture.runtime, 0, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_runtime_destroy(fixture.runtime, 2000000, &reported));
    /* Nothing was destroyed. */
    muster_run *again = fixture_submit(&fixture, graph);
    fixture_hold_all(&fixture, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    OK(muster_run_wait(again, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 0), 10);
    fixture_close(&fixture);
}

static void destroy_waits_for_unfinished_work(void **state) {
    (void)state;
    uint32_t host[1000] = {0};
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, sizeof host, host);
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < 50; i++) fixture_affine(&fixture, graph, buffer, 3, 1);
    muster_run_destroy(fixture_submit(&fixture, graph));
    fixture_close(&fixture);
}

static void the_allocator_is_fixed_while_a_runtime_lives(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    FAILS(MUSTER_INVALID_STATE, "1", muster_set_allocator(NULL, &reported));
    fixture_close(&fixture);
    OK(muster_set_allocator(NULL, &reported));
}

static void *allocate(void *user, void *pointer, size_t bytes) {
    (void)user;
    return realloc(pointer, bytes);
}

static atomic_uint frees,
    free_to_change; /* how often memory was given back, and the allocator could have been another by then */

static void release_and_try(void *user, void *pointer) {
    const muster_allocator same = {allocate, release_and_try, user};
    atomic_fetch_add(&frees, 1);
    if (muster_set_allocator(&same, NULL) == MUSTER_OK) atomic_fetch_add(&free_to_change, 1);
    free(pointer);
}

/* Also one that is not made after all: its last device is refused an event. */
static void the_allocator_is_fixed_until_all_memory_is_back(void **state) {
    (void)state;
    static const char *const plans[] = {
        "[]", "[{\"entry\": \"event_create\", \"device\": 1, \"nth\": 3, \"code\": \"INVALID_VALUE\"}]"};
    const muster_allocator own = {allocate, release_and_try, NULL};
    for (int fails = 0; fails < 2; fails++) {
        char spec[FIXTURE_SPEC_BYTES];
        muster_runtime *runtime;
        muster_config config = {.struct_size = sizeof config, .driver = "sim", .sim = spec};
        fixture_planned_spec(2, plans[fails], spec);
        OK(muster_set_allocator(&own, &reported));
        frees = free_to_change = 0;
        muster_status status = muster_runtime_create(&config, &runtime, &reported);
        assert_int_equal(status, fails ? MUSTER_DRIVER_ERROR : MUSTER_OK);
        if (!status) OK(muster_runtime_destroy(runtime, fixture_wait_ns, &reported));
        assert_true(frees > 100);
        assert_int_equal(free_to_change, 0);
        OK(muster_set_allocator(NULL, &reported));
    }
}

static void the_callers_context_is_left_alone(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    const mu_driver *driver = fixture_driver(&fixture);
    CUcontext before = NULL, after = NULL;
    assert_int_equal(driver->ctx_get_current(&before), CUDA_SUCCESS);
    assert_null(before);
    muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 1, 5);
    fixture_run(&fixture, graph);
    assert_int_equal(fixture_word(buffer, 3), 5);
    assert_int_equal(driver->ctx_get_current(&after), CUDA_SUCCESS);
    assert_null(after);
    fixture_close(&fixture);
}

/* In the global mode, which is the default of most who capture: neither side notices the other. */
static void the_application_may_capture_a_stream_meanwhile(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    const mu_driver *driver = fixture_driver(&fixture);
    CUcontext context;
    CUdevice device;
    CUstream stream;
    CUgraph captured;
    void *pinned;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    assert_int_equal(driver->device_get(&device, 0), CUDA_SUCCESS);
    assert_int_equal(driver->primary_ctx_retain(&context, device), CUDA_SUCCESS);
    assert_int_equal(driver->ctx_push_current(context), CUDA_SUCCESS);
    assert_int_equal(driver->stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    assert_int_equal(driver->stream_begin_capture(stream, mode), CUDA_SUCCESS);
    muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 1, 5);
    fixture_run(&fixture, graph);
    assert_int_equal(fixture_word(buffer, 3), 5);
    OK(muster_host_alloc(fixture.runtime, 4096, &pinned, &reported));
    assert_int_equal(driver->stream_end_capture(stream, &captured), CUDA_SUCCESS);
    assert_int_equal(driver->thread_exchange_stream_capture_mode(&mode), CUDA_SUCCESS);
    assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_GLOBAL); /* this thread's is as it was */
    assert_int_equal(driver->graph_destroy(captured), CUDA_SUCCESS);
    assert_int_equal(driver->stream_destroy(stream), CUDA_SUCCESS);
    assert_int_equal(driver->ctx_pop_current(&context), CUDA_SUCCESS);
    assert_int_equal(driver->primary_ctx_release(device), CUDA_SUCCESS);
    fixture_close(&fixture);
}

/* Measured, with a wide margin: a runtime that spun or polled would use all of a core. The pause waits for nobody: what is asserted is
 * how much processor time goes by in it, and on a busy machine, where it is longer or others run, that is only less. */
static void an_idle_runtime_uses_no_cpu(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 4);
    muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 1, 5);
    fixture_run(&fixture, graph);
    struct timespec before, after, pause = {.tv_nsec = 250000000};
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before), 0);
    nanosleep(&pause, NULL);
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after), 0);
    double used_ms = (double)(after.tv_sec - before.tv_sec) * 1e3 + (double)(after.tv_nsec - before.tv_nsec) / 1e6;
    assert_true(used_ms < 25);
    fixture_close(&fixture);
}

/* ---------------------------------------------------------------------------------------------------------- devices -- */

static void devices_describe_themselves(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_device_info info[3];
    for (int index = 0; index < 3; index++) {
        info[index] = (muster_device_info){.struct_size = sizeof info[index]};
        OK(muster_device_get_info(fixture.runtime, index, &info[index], &reported));
        assert_true(info[index].simulated);
        assert_int_equal(info[index].index, index);
        assert_true(info[index].name[0] && info[index].pci_bus_id[0]);
        assert_true(info[index].compute_major >= 5 && info[index].multiprocessors > 0 && info[index].warp_size > 0);
        assert_true(info[index].max_threads_per_block >= 256 && info[index].max_block[0] > 0);
        assert_true(info[index].max_grid[0] > 0 && info[index].max_shared_bytes > 0);
        assert_int_equal(info[index].budget_bytes, (unsigned __int128)info[index].memory_bytes * 9 / 10);
    }
    assert_memory_not_equal(info[0].uuid, info[1].uuid, 16);
    assert_memory_not_equal(info[1].uuid, info[2].uuid, 16);
    FAILS(MUSTER_OUT_OF_RANGE, "3", muster_device_get_info(fixture.runtime, 3, &info[0], &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "-1", muster_device_get_info(fixture.runtime, -1, &info[0], &reported));
    fixture_close(&fixture);
}

/* A caller that was built against a shorter struct gets no more than that. */
static void fields_beyond_struct_size_are_not_written(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_device_info info;
    memset(&info, 0x77, sizeof info);
    info.struct_size = offsetof(muster_device_info, uuid);
    OK(muster_device_get_info(fixture.runtime, 0, &info, &reported));
    assert_int_equal(info.index, 0);
    const unsigned char *bytes = (const unsigned char *)&info;
    for (size_t i = offsetof(muster_device_info, uuid); i < sizeof info; i++) assert_int_equal(bytes[i], 0x77);
    info.struct_size = 0;
    FAILS(MUSTER_INVALID_ARGUMENT, "struct_size", muster_device_get_info(fixture.runtime, 0, &info, &reported));
    fixture_close(&fixture);
}

static void counters_count(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 4096, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < 5; i++) fixture_affine(&fixture, graph, buffer, 1, 5);
    fixture_run(&fixture, graph);
    fixture_word(buffer, 0);
    uint64_t jobs = 0, launches = 0, home = 0;
    for (int index = 0; index < 2; index++) {
        muster_device_stats stats = {.struct_size = sizeof stats};
        OK(muster_device_get_stats(fixture.runtime, index, &stats, &reported));
        jobs += stats.jobs;
        launches += stats.launches;
        home += stats.bytes_to_host;
    }
    assert_int_equal(jobs, 5);
    assert_int_equal(launches, 5);
    assert_true(home >= 4);
    muster_device_stats stats = {.struct_size = sizeof stats};
    FAILS(MUSTER_OUT_OF_RANGE, "2", muster_device_get_stats(fixture.runtime, 2, &stats, &reported));
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_field_is_named),
        cmocka_unit_test(a_bad_machine_is_named),
        cmocka_unit_test(ordinals_choose_and_order_the_devices),
        cmocka_unit_test(bad_ordinals_are_refused),
        cmocka_unit_test(device_count_takes_the_first),
        cmocka_unit_test(a_bad_file_is_explained),
        cmocka_unit_test(code_wins_over_the_file),
        cmocka_unit_test_teardown(the_environment_is_the_default, clear_environment),
        cmocka_unit_test_teardown(there_is_no_silent_fallback, clear_environment),
        cmocka_unit_test(a_hundred_runtimes_leave_nothing),
        cmocka_unit_test(runtimes_live_side_by_side),
        cmocka_unit_test(destroy_takes_every_handle_along),
        cmocka_unit_test(destroy_waits_for_work_no_longer_than_asked),
        cmocka_unit_test(destroy_waits_for_unfinished_work),
        cmocka_unit_test(the_allocator_is_fixed_while_a_runtime_lives),
        cmocka_unit_test(the_allocator_is_fixed_until_all_memory_is_back),
        cmocka_unit_test(the_callers_context_is_left_alone),
        cmocka_unit_test(the_application_may_capture_a_stream_meanwhile),
        cmocka_unit_test(an_idle_runtime_uses_no_cpu),
        cmocka_unit_test(devices_describe_themselves),
        cmocka_unit_test(fields_beyond_struct_size_are_not_written),
        cmocka_unit_test(counters_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
