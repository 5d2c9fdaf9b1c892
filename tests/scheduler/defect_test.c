/* Defects that a scheduler could have, seeded one by one by changing an entry of its driver table, and what finds them: the
 * simulator names the access, or ThreadSanitizer reports the race. Were the simulator kinder, such a defect would pass. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "device/sim/sim.h"
#include "tests/scheduler/fixture.h"

#if MU_TSAN
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "halt_on_error=0:exitcode=66"; }
#endif

enum { RACE = 66, WORDS = 1 << 16, SEEDS = 40 };

static muster_job affine_on(const fixture *fixture, muster_graph *graph, muster_buffer *buffer, int device) {
    uint32_t words = (uint32_t)(muster_buffer_bytes(buffer) / 4);
    muster_dispatch dispatch = fixture_dispatch(fixture_kernel(fixture, "affine"), (words + 63) / 64, 64,
                                                ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(3),
                                                     muster_u32_arg(1), muster_u32_arg(words)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    return fixture_add(graph, &dispatch);
}

static void open_machine(fixture *fixture, uint32_t devices, uint64_t seed, const char *peers) {
    char spec[FIXTURE_SPEC_BYTES];
    snprintf(spec, sizeof spec, "{\"devices\": %u, \"seed\": %llu, \"peers\": \"%s\"}", devices,
             (unsigned long long)seed, peers);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture_open_with(fixture, devices, &config);
}

/* ---------------------------------------------------------------------------------------------------- missing event -- */

static CUresult CUDAAPI wait_for_nothing(CUstream stream, CUevent event, unsigned int flags) {
    (void)stream;
    (void)event;
    (void)flags;
    return CUDA_SUCCESS;
}

/* One buffer written on device 0, then on device 1, then on device 0 again. */
static void three_writers(bool seeded) {
    fixture fixture;
    open_machine(&fixture, 2, 1, "all");
    if (seeded) fixture_driver(&fixture)->stream_wait_event = wait_for_nothing;
    muster_buffer *buffer = fixture_buffer(&fixture, 4 * WORDS, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (int turn = 0; turn < 3; turn++) affine_on(&fixture, graph, buffer, turn % 2);
    fixture_run(&fixture, graph);
    uint32_t first = fixture_word(buffer, 0);
    fixture_close(&fixture);
    if (!seeded) assert_int_equal(first, 13);
}

/* Runs a case in a process of its own; true when ThreadSanitizer reported a race there. */
static bool reports_a_race(void (*run)(bool), bool seeded) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fclose(stderr); /* the report itself is expected */
        run(seeded);
        exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == RACE);
    return WEXITSTATUS(status) == RACE;
}

static void a_missing_event_is_a_race_report(void **state) {
    (void)state;
    if (!MU_TSAN) {
        print_message("SKIPPED: a missing event is found by ThreadSanitizer; build with --config=tsan\n");
        skip();
    }
    assert_false(reports_a_race(three_writers, false));
    assert_true(reports_a_race(three_writers, true));
}

/* ------------------------------------------------------------------------------------------------------- early free -- */

static CUresult CUDAAPI always_done(CUevent event) {
    (void)event;
    return CUDA_SUCCESS;
}

/* Until the kernels so far, `count` of them, have run, or one faulted. */
static CUresult wait_for_kernels(const fixture *fixture, int device, uint64_t count, char *text, size_t bytes) {
    mu_driver *driver = fixture_driver(fixture);
    for (;;) {
        mu_sim_statistics statistics;
        mu_sim_get_statistics(driver, device, &statistics);
        CUresult fault = mu_sim_last_fault(driver, text, bytes);
        if (fault != CUDA_SUCCESS || statistics.kernels >= count) return fault;
        sched_yield();
    }
}

/* The scheduler believes at once that a job is complete, and frees its buffer while the kernel still waits to run. The free
 * and the kernel are on different streams, so the seed decides which comes first. */
static CUresult free_too_early(uint64_t seed, char *text, size_t bytes) {
    fixture fixture;
    open_machine(&fixture, 1, seed, "all");
    mu_driver *driver = fixture_driver(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, 4 * WORDS, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    affine_on(&fixture, graph, buffer, 0);
    fixture_run(&fixture, graph); /* its memory exists: nothing has to be uploaded the next time */
    uint64_t frees = mu_sim_calls(driver, "mem_free_async");
    fixture_hold(&fixture, 0, true);
    driver->event_query = always_done;
    fixture_run(&fixture, graph);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
    while (mu_sim_calls(driver, "mem_free_async") == frees) sched_yield();
    fixture_hold(&fixture, 0, false);
    CUresult fault = wait_for_kernels(&fixture, 0, 2, text, bytes);
    muster_runtime_destroy(fixture.runtime, fixture_wait_ns, NULL); /* lost or not, it ends */
    return fault;
}

static void free_too_early_until_it_shows(bool seeded) {
    char text[512];
    for (uint64_t seed = 1; seeded && seed <= SEEDS; seed++)
        if (free_too_early(seed, text, sizeof text) != CUDA_SUCCESS) return;
}

static void an_early_free_is_named(void **state) {
    (void)state;
    if (MU_TSAN) { /* the freed memory's poison races with the kernel, whichever comes first */
        assert_true(reports_a_race(free_too_early_until_it_shows, true));
        return;
    }
    char text[512] = "";
    CUresult fault = CUDA_SUCCESS;
    for (uint64_t seed = 1; seed <= SEEDS && fault == CUDA_SUCCESS; seed++)
        fault = free_too_early(seed, text, sizeof text);
    assert_int_equal(fault, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_non_null(strstr(text, "affine"));
    assert_non_null(strstr(text, "freed"));
}

/* ----------------------------------------------------------------------------------------------------- wrong device -- */

static CUresult(CUDAAPI *real_alloc)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
static CUmemoryPool first_pool;
static CUstream first_stream;

/* Whoever asks gets memory of the device that asked first. */
static CUresult CUDAAPI alloc_on_the_first_device(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                                  CUstream stream) {
    if (!first_pool) {
        first_pool = pool;
        first_stream = stream;
    }
    return real_alloc(pointer, bytes, first_pool, first_stream);
}

static void memory_of_the_wrong_device_is_named(void **state) {
    (void)state;
    fixture fixture;
    open_machine(&fixture, 2, 1, "none");
    mu_driver *driver = fixture_driver(&fixture);
    first_pool = NULL;
    real_alloc = driver->mem_alloc_from_pool_async;
    driver->mem_alloc_from_pool_async = alloc_on_the_first_device;
    muster_buffer *here = fixture_buffer(&fixture, 4 * WORDS, NULL), *there = fixture_buffer(&fixture, 4 * WORDS, NULL);
    muster_graph *first = fixture_graph(&fixture), *second = fixture_graph(&fixture);
    affine_on(&fixture, first, here, 0);
    affine_on(&fixture, second, there, 1);
    fixture_run(&fixture, first);
    FAILS(MUSTER_KERNEL_FAULT, "", muster_run_wait(fixture_submit(&fixture, second), fixture_wait_ns, &reported));
    char text[512];
    assert_int_equal(mu_sim_last_fault(driver, text, sizeof text), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_non_null(strstr(text, "device 1"));
    assert_non_null(strstr(text, "affine"));
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_event_is_a_race_report),
        cmocka_unit_test(an_early_free_is_named),
        cmocka_unit_test(memory_of_the_wrong_device_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
