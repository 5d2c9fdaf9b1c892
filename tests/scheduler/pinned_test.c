/* Pinned host memory: lent, kept and lent again; the application's own, registered; and the buffers that lie in either. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "device/sim/sim.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

#define MIB ((uint64_t)1 << 20)

static fixture two;

static int open_two(void **state) {
    (void)state;
    fixture_open(&two, 2);
    return 0;
}

static int close_two(void **state) {
    (void)state;
    fixture_close(&two);
    return 0;
}

/* The first cuMemHostAlloc is the worker's own. */
static void open_planned(const char *plan) {
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(1, plan, spec);
    fixture_open_with(&two, 1, &(muster_config){.struct_size = sizeof(muster_config), .sim = spec});
}

static void *lend(uint64_t bytes) {
    void *pointer = NULL;
    OK(muster_host_alloc(two.runtime, bytes, &pointer, &reported));
    assert_non_null(pointer);
    assert_int_equal((uintptr_t)pointer % 256, 0);
    return pointer;
}

static uint64_t calls(const char *entry) { return mu_sim_calls(fixture_driver(&two), entry); }

/* Adds 5 to each word of the buffer, on each device in turn, and looks at the result. */
static void use(muster_buffer *buffer, uint32_t first) {
    uint32_t words = (uint32_t)(muster_buffer_bytes(buffer) / 4);
    for (int device = 0; device < muster_device_count(two.runtime); device++) {
        muster_graph *graph = fixture_graph(&two);
        muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&two, "affine"), (words + 63) / 64, 64,
                                                    ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE),
                                                         muster_u32_arg(1), muster_u32_arg(5), muster_u32_arg(words)));
        dispatch.pin_device = 1;
        dispatch.device = device;
        fixture_add(graph, &dispatch);
        fixture_run(&two, graph);
        muster_graph_destroy(graph);
        first += 5;
        assert_int_equal(fixture_word(buffer, 0), first);
        assert_int_equal(fixture_word(buffer, words - 1), first);
    }
}

/* ------------------------------------------------------------------------------------------------------- lent memory -- */

static void arguments_are_checked(void **state) {
    (void)state;
    void *pointer = &two;
    FAILS(MUSTER_INVALID_ARGUMENT, "NULL", muster_host_alloc(NULL, 1, &pointer, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "0 bytes", muster_host_alloc(two.runtime, 0, &pointer, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "limit", muster_host_alloc(two.runtime, UINT64_MAX, &pointer, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "NULL", muster_host_alloc(two.runtime, 1, NULL, &reported));
    assert_ptr_equal(pointer, &two);
    FAILS(MUSTER_INVALID_ARGUMENT, "NULL", muster_host_free(NULL, &two, &reported));
    OK(muster_host_free(two.runtime, NULL, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "NULL", muster_host_register(NULL, &two, 1, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "no memory", muster_host_register(two.runtime, NULL, 1, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "no memory", muster_host_register(two.runtime, &two, 0, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "no memory", muster_host_register(two.runtime, &two, UINT64_MAX, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "64 bytes|mapped",
          muster_host_register(two.runtime, (void *)(uintptr_t)1, 64, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "NULL", muster_host_unregister(NULL, &two, &reported));
    OK(muster_host_unregister(two.runtime, NULL, &reported));
    assert_int_equal(muster_host_alloc(two.runtime, 0, &pointer, NULL), MUSTER_INVALID_ARGUMENT);
}

static void every_device_uses_it(void **state) {
    (void)state;
    uint32_t *words = lend(1000);
    for (int i = 0; i < 250; i++) words[i] = 3;
    muster_buffer *buffer = fixture_buffer(&two, 1000, words);
    assert_true(buffer->host_pinned);
    use(buffer, 3);
    muster_buffer_destroy(buffer);
    assert_int_equal(words[0], 13); /* acquired last */
    OK(muster_host_free(two.runtime, words, &reported));
}

static void what_is_freed_is_lent_again(void **state) {
    (void)state;
    uint64_t made = calls("mem_host_alloc");
    char *first = lend(5000), *second = lend(8000), *large = lend(3 * MIB);
    assert_int_equal(calls("mem_host_alloc"), made + 3);
    memset(first, 1, 5000);
    memset(large, 1, 3 * MIB);
    OK(muster_host_free(two.runtime, first, &reported));
    OK(muster_host_free(two.runtime, large, &reported));
    assert_ptr_equal(lend(8192), first); /* of the same class */
    assert_ptr_equal(lend(3 * MIB - 100000), large);
    assert_int_equal(calls("mem_host_alloc"), made + 3);
    assert_ptr_not_equal(lend(4096), second);
    assert_int_equal(calls("mem_host_alloc"), made + 4);
    assert_int_equal(calls("mem_free_host"), 0);
}

/* Whatever the size, there is room for it, and no more than a quarter too much above 1 MiB. */
static void size_classes_hold_their_sizes(void **state) {
    (void)state;
    for (uint64_t bytes = 1; bytes < 64 * MIB; bytes = bytes * 3 / 2 + 1) {
        char *pointer = lend(bytes);
        pointer[0] = pointer[bytes - 1] = 1;
        mu_pinned *pinned = &two.runtime->pinned;
        assert_int_equal(pinned->count, 1);
        OK(muster_host_free(two.runtime, pointer, &reported));
        assert_true(pinned->kept_bytes >= bytes);
        assert_true(pinned->kept_bytes <= (bytes > MIB ? bytes + bytes / 4 + 4096 : bytes < 4096 ? 4096 : 2 * bytes));
        fixture_close(&two); /* so that the next one is alone again */
        fixture_open(&two, 1);
    }
}

static void only_what_was_lent_is_taken_back(void **state) {
    (void)state;
    fixture other;
    fixture_open(&other, 1);
    char own[16], *lent = lend(10000), *theirs;
    OK(muster_host_alloc(other.runtime, 10000, (void **)&theirs, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "not memory", muster_host_free(two.runtime, own, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "begins at", muster_host_free(two.runtime, lent + 4096, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "not memory", muster_host_free(two.runtime, lent + 10000, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "not memory", muster_host_free(two.runtime, theirs, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "muster_host_free", muster_host_unregister(two.runtime, lent, &reported));
    OK(muster_host_free(two.runtime, lent, &reported));
    FAILS(MUSTER_INVALID_STATE, "already", muster_host_free(two.runtime, lent, &reported));
    fixture_close(&other); /* with what was lent */
}

static void it_is_not_taken_back_from_under_a_buffer(void **state) {
    (void)state;
    uint32_t *words = lend(4 * MIB);
    memset(words, 0, 4 * MIB);
    muster_buffer *one = fixture_buffer(&two, MIB, words), *other = fixture_buffer(&two, MIB, words + MIB / 4);
    FAILS(MUSTER_BUSY, "2 buffers", muster_host_free(two.runtime, words, &reported));
    use(one, 0);
    muster_buffer_destroy(one);
    FAILS(MUSTER_BUSY, "1 buffers", muster_host_free(two.runtime, words, &reported));
    muster_buffer_destroy(other);
    OK(muster_host_free(two.runtime, words, &reported));
    mu_actors_pass(two.runtime); /* they let go of the runs */
    assert_ptr_equal(lend(4 * MIB), words);
}

static void graphs_go_on_using_a_destroyed_buffer_s_memory(void **state) {
    (void)state;
    uint32_t *words = lend(4096);
    words[0] = 1;
    muster_buffer *buffer = fixture_buffer(&two, 4096, words), *result = fixture_buffer(&two, 4096, NULL);
    muster_graph *graph = fixture_graph(&two);
    muster_job job;
    OK(muster_graph_copy(graph, result, 0, buffer, 0, 4096, &job, &reported));
    muster_buffer_destroy(buffer);
    OK(muster_host_free(two.runtime, words, &reported));
    FAILS(MUSTER_INVALID_STATE, "already", muster_host_free(two.runtime, words, &reported));
    void *fresh = lend(4096);
    assert_ptr_not_equal(fresh, words);
    FAILS(MUSTER_INVALID_ARGUMENT, "freed",
          muster_buffer_create(two.runtime, 4096, words, &(muster_buffer *){NULL}, &reported));
    fixture_run(&two, graph);
    assert_int_equal(fixture_word(result, 0), 1);
    muster_graph_destroy(graph);
    mu_actors_pass(two.runtime);
    assert_ptr_equal(lend(4096), words);
}

static void buffers_lie_in_it_wholly_or_not_at_all(void **state) {
    (void)state;
    muster_buffer *buffer = NULL;
    char *lent = lend(10000);
    FAILS(MUSTER_INVALID_ARGUMENT, "10001|10000", muster_buffer_create(two.runtime, 10001, lent, &buffer, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "", muster_buffer_create(two.runtime, 2, lent - 1, &buffer, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "", muster_buffer_create(two.runtime, 20000, lent - 5000, &buffer, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "end of memory",
          muster_buffer_create(two.runtime, UINT64_MAX / 2, (void *)(UINTPTR_MAX - 100), &buffer, &reported));
    assert_null(buffer);
    OK(muster_buffer_create(two.runtime, 1, lent + 9999, &buffer, &reported));
    assert_true(buffer->host_pinned);
    muster_buffer_destroy(buffer);
    OK(muster_host_free(two.runtime, lent, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "freed", muster_buffer_create(two.runtime, 1, lent, &buffer, &reported));
}

/* ------------------------------------------------------------------------------------------------------ kept memory -- */

static void no_more_is_kept_than_allowed(void **state) {
    (void)state;
    enum { BLOCKS = 9 };
    void *lent[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) lent[i] = lend(256 * MIB);
    for (int i = 0; i < BLOCKS; i++) OK(muster_host_free(two.runtime, lent[i], &reported));
    /* Beyond 2 GiB at once, beyond 1 GiB when the device is idle. */
    assert_true(calls("mem_free_host") >= 1);
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    while (calls("mem_free_host") < BLOCKS - 4 && mu_now_ns() < deadline) {
        mu_actors_pass(two.runtime);
        sched_yield();
    }
    mu_actors_pass(two.runtime);
    assert_int_equal(calls("mem_free_host"), BLOCKS - 4);
    assert_ptr_equal(lend(256 * MIB), lent[BLOCKS - 1]); /* the one freed last */
}

static void memory_that_is_kept_is_given_up_for_memory_that_is_needed(void **state) {
    (void)state;
    open_planned("[{\"entry\": \"mem_host_alloc\", \"nth\": 3, \"code\": \"OUT_OF_MEMORY\"}]");
    OK(muster_host_free(two.runtime, lend(MIB), &reported));
    assert_int_equal(calls("mem_free_host"), 0);
    lend(4 * MIB);
    assert_int_equal(calls("mem_free_host"), 1);
    assert_int_equal(calls("mem_host_alloc"), 4);
    fixture_close(&two);
}

/* ------------------------------------------------------------------------------------------------- registered memory -- */

static void registered_memory_is_used_where_it_is(void **state) {
    (void)state;
    uint32_t *words = aligned_alloc(4096, MIB);
    for (int i = 0; i < 1000; i++) words[i] = 7;
    OK(muster_host_register(two.runtime, words, MIB, &reported));
    muster_buffer *buffer = fixture_buffer(&two, 4000, words);
    assert_true(buffer->host_pinned);
    use(buffer, 7);
    FAILS(MUSTER_BUSY, "1 buffers", muster_host_unregister(two.runtime, words, &reported));
    muster_buffer_destroy(buffer);
    OK(muster_host_unregister(two.runtime, words, &reported));
    assert_int_equal(words[999], 17);
    FAILS(MUSTER_INVALID_ARGUMENT, "not memory", muster_host_unregister(two.runtime, words, &reported));
    buffer = fixture_buffer(&two, 4000, words);
    assert_false(buffer->host_pinned);
    use(buffer, 17);
    muster_buffer_destroy(buffer);
    free(words);
}

static void overlapping_registrations_are_refused(void **state) {
    (void)state;
    char *own = aligned_alloc(4096, MIB), *lent = lend(MIB);
    OK(muster_host_register(two.runtime, own + 8192, 8192, &reported));
    FAILS(MUSTER_INVALID_STATE, "registered already", muster_host_register(two.runtime, own + 8192, 8192, &reported));
    FAILS(MUSTER_INVALID_STATE, "", muster_host_register(two.runtime, own, 8193, &reported));
    FAILS(MUSTER_INVALID_STATE, "", muster_host_register(two.runtime, own + 16383, 1, &reported));
    FAILS(MUSTER_INVALID_STATE, "", muster_host_register(two.runtime, own, MIB, &reported));
    FAILS(MUSTER_INVALID_STATE, "muster_host_alloc", muster_host_register(two.runtime, lent + 4096, 4096, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "unregister", muster_host_free(two.runtime, own + 8192, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "begins at", muster_host_unregister(two.runtime, own + 8193, &reported));
    OK(muster_host_register(two.runtime, own, 8192, &reported));
    OK(muster_host_register(two.runtime, own + 16384, 8192, &reported));
    OK(muster_host_unregister(two.runtime, own + 8192, &reported));
    OK(muster_host_register(two.runtime, own + 8192, 8192, &reported));
    OK(muster_host_unregister(two.runtime, own, &reported));
    OK(muster_host_unregister(two.runtime, own + 8192, &reported));
    OK(muster_host_unregister(two.runtime, own + 16384, &reported));
    free(own);
}

static void memory_with_a_buffer_in_it_is_not_registered(void **state) {
    (void)state;
    char *own = aligned_alloc(4096, MIB);
    muster_buffer *first = fixture_buffer(&two, 100, own + 5000), *second = fixture_buffer(&two, 100, own + 9000);
    FAILS(MUSTER_BUSY, "before buffers", muster_host_register(two.runtime, own, MIB, &reported));
    FAILS(MUSTER_BUSY, "", muster_host_register(two.runtime, own + 5099, 1, &reported));
    OK(muster_host_register(two.runtime, own + 5100, 3900, &reported));
    OK(muster_host_unregister(two.runtime, own + 5100, &reported));
    muster_buffer_destroy(first);
    FAILS(MUSTER_BUSY, "", muster_host_register(two.runtime, own, MIB, &reported));
    muster_buffer_destroy(second);
    OK(muster_host_register(two.runtime, own, MIB, &reported));
    OK(muster_host_unregister(two.runtime, own, &reported));
    free(own);
}

static void registered_memory_stays_while_a_graph_uses_it(void **state) {
    (void)state;
    char *own = aligned_alloc(4096, 4096);
    OK(muster_host_register(two.runtime, own, 4096, &reported));
    muster_buffer *buffer = fixture_buffer(&two, 4096, own);
    muster_graph *graph = fixture_graph(&two);
    OK(muster_graph_fill(graph, buffer, 0, 4096, 1, 1, NULL, &reported));
    muster_buffer_destroy(buffer);
    FAILS(MUSTER_BUSY, "graphs", muster_host_unregister(two.runtime, own, &reported));
    muster_graph_destroy(graph);
    OK(muster_host_unregister(two.runtime, own, &reported));
    free(own);
}

static muster_status do_nothing(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)user, (void)pointers, (void)count, (void)error;
    return MUSTER_OK;
}

/* A run over the memory, which the host thread ends every other time, and everything that used it is destroyed. */
static void use_once(void *memory, uint64_t bytes, int turn) {
    muster_buffer *buffer = fixture_buffer(&two, bytes, memory);
    muster_graph *graph = fixture_graph(&two);
    const muster_arg arg = muster_buffer_arg(buffer, MUSTER_READ);
    const muster_host_job last = {.struct_size = sizeof last, .run = do_nothing, .arg_count = 1, .args = &arg};
    fixture_affine(&two, graph, buffer, 1, 1);
    if (turn % 2) OK(muster_graph_host(graph, &last, NULL, &reported));
    muster_run *run = fixture_submit(&two, graph);
    muster_graph_destroy(graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    muster_buffer_destroy(buffer);
}

/* Whoever ends a run, a worker or the host thread, lets go of it a moment later: that must not show. */
static void memory_of_finished_runs_can_go_at_once(void **state) {
    (void)state;
    char *own = aligned_alloc(4096, 8192);
    for (int i = 0; i < 600; i++) {
        OK(muster_host_register(two.runtime, own, 8192, &reported));
        use_once(own, 8192, i);
        OK(muster_host_unregister(two.runtime, own, &reported));
    }
    free(own);
}

static void memory_of_finished_runs_can_be_registered_at_once(void **state) {
    (void)state;
    char *own = aligned_alloc(4096, 8192);
    for (int i = 0; i < 600; i++) {
        use_once(own, 8192, i);
        OK(muster_host_register(two.runtime, own, 8192, &reported));
        OK(muster_host_unregister(two.runtime, own, &reported));
    }
    free(own);
}

static void memory_pinned_by_others_counts_as_pinned(void **state) {
    (void)state;
    mu_driver *driver = fixture_driver(&two);
    CUcontext context;
    void *theirs;
    assert_int_equal(driver->primary_ctx_retain(&context, 1), CUDA_SUCCESS);
    assert_int_equal(driver->ctx_push_current(context), CUDA_SUCCESS);
    assert_int_equal(driver->mem_host_alloc(&theirs, 8192, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
    CUdeviceptr memory;
    assert_int_equal(driver->mem_alloc(&memory, 4096), CUDA_SUCCESS);
    muster_buffer *buffer = fixture_buffer(&two, 8192, theirs);
    assert_true(buffer->host_pinned);
    muster_buffer_destroy(buffer);
    buffer = fixture_buffer(&two, 8192, (char *)theirs + 4096);
    assert_false(buffer->host_pinned); /* not all of it */
    muster_buffer_destroy(buffer);
    FAILS(MUSTER_INVALID_ARGUMENT, "device memory",
          muster_buffer_create(two.runtime, 16, (void *)(uintptr_t)memory, &buffer, &reported));
    FAILS(MUSTER_INVALID_STATE, "registered", muster_host_register(two.runtime, theirs, 8192, &reported));
    assert_int_equal(driver->mem_free(memory), CUDA_SUCCESS);
    assert_int_equal(driver->mem_free_host(theirs), CUDA_SUCCESS);
    CUcontext popped;
    assert_int_equal(driver->ctx_pop_current(&popped), CUDA_SUCCESS);
    assert_ptr_equal(popped, context);
    driver->primary_ctx_release(1);
}

static void other_memory_is_pageable(void **state) {
    (void)state;
    static char own[4096];
    muster_buffer *buffer = fixture_buffer(&two, 4096, own), *none = fixture_buffer(&two, 4096, NULL);
    assert_false(buffer->host_pinned);
    fixture_word(none, 0); /* makes its host memory */
    assert_false(none->host_pinned);
    muster_buffer_destroy(buffer);
    muster_buffer_destroy(none);
}

/* ---------------------------------------------------------------------------------------------------- end and failure -- */

static void the_runtime_gives_everything_back(void **state) {
    (void)state;
    char *own = aligned_alloc(4096, 8192);
    fixture_count_memory();
    fixture_open(&two, 2);
    lend(100000);
    OK(muster_host_free(two.runtime, lend(200000), &reported));
    OK(muster_host_register(two.runtime, own, 8192, &reported));
    fixture_buffer(&two, 8192, own);
    fixture_close(&two);
    assert_int_equal(fixture_live_blocks(), 0);
    memset(own, 1, 8192);
    free(own);
}

static void a_driver_that_refuses_leaves_nothing(void **state) {
    (void)state;
    open_planned(
        "[{\"entry\": \"mem_host_alloc\", \"nth\": 2, \"code\": \"INVALID_VALUE\"},"
        " {\"entry\": \"mem_host_alloc\", \"nth\": 4, \"repeat\": 2, \"code\": \"OUT_OF_MEMORY\"},"
        " {\"entry\": \"mem_host_register\", \"nth\": 1, \"code\": \"OUT_OF_MEMORY\"}]");
    void *pointer = NULL;
    char *own = aligned_alloc(4096, 8192);
    FAILS(MUSTER_DRIVER_ERROR, "cuMemHostAlloc", muster_host_alloc(two.runtime, 100, &pointer, &reported));
    pointer = lend(100);
    FAILS(MUSTER_OUT_OF_HOST_MEMORY, "cuMemHostAlloc", muster_host_alloc(two.runtime, 100, &pointer, &reported));
    FAILS(MUSTER_OUT_OF_HOST_MEMORY, "cuMemHostRegister", muster_host_register(two.runtime, own, 8192, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "not memory", muster_host_unregister(two.runtime, own, &reported));
    OK(muster_host_register(two.runtime, own, 8192, &reported));
    fixture_close(&two);
    free(own);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    char *own = aligned_alloc(4096, 8192);
    bool failed = true;
    int failures = 0;
    for (uint64_t n = 1; failed; n++) {
        void *pointer = NULL;
        muster_error error = {0};
        bool registered = false;
        fixture_open(&two, 1);
        mu_alloc_fail_at(n, false);
        muster_status status = muster_host_alloc(two.runtime, 100, &pointer, &error);
        if (!status) status = muster_host_register(two.runtime, own, 8192, &error);
        registered = !status;
        failed = mu_alloc_fail_hits() > 0;
        mu_alloc_fail_at(0, false);
        /* One that fails in the driver is tried again. */
        if (status || !failed) assert_int_equal(status, failed ? MUSTER_OUT_OF_HOST_MEMORY : MUSTER_OK);
        assert_int_equal(error.status, status);
        failures += status != MUSTER_OK;
        if (pointer) OK(muster_host_free(two.runtime, pointer, &reported));
        if (!registered) FAILS(MUSTER_INVALID_ARGUMENT, "", muster_host_unregister(two.runtime, own, &reported));
        fixture_close(&two);
    }
    assert_true(failures >= 4); /* two records, the table, and the simulator's own */
    free(own);
}

/* After a loss nothing is asked of the driver; what was pinned can still be let go. */
static void after_a_fault_nothing_is_pinned(void **state) {
    (void)state;
    open_planned("[{\"kind\": \"fault\", \"nth\": 1}]");
    char *own = aligned_alloc(4096, 8192), *lent = lend(4096);
    OK(muster_host_register(two.runtime, own, 8192, &reported));
    muster_buffer *buffer = fixture_buffer(&two, 4096, NULL);
    muster_graph *graph = fixture_graph(&two);
    fixture_affine(&two, graph, buffer, 1, 1);
    muster_run *run = fixture_submit(&two, graph);
    FAILS(MUSTER_KERNEL_FAULT, "", muster_run_wait(run, fixture_wait_ns, &reported));
    uint64_t before = calls("mem_host_alloc") + calls("mem_host_unregister");
    void *pointer;
    FAILS(MUSTER_KERNEL_FAULT, "", muster_host_alloc(two.runtime, 100, &pointer, &reported));
    FAILS(MUSTER_KERNEL_FAULT, "", muster_host_register(two.runtime, own + 4096, 1, &reported));
    OK(muster_host_unregister(two.runtime, own, &reported));
    OK(muster_host_free(two.runtime, lent, &reported));
    assert_int_equal(calls("mem_host_alloc") + calls("mem_host_unregister"), before);
    fixture_close(&two);
    free(own);
}

/* ---------------------------------------------------------------------------------------------------------- threads -- */

enum { THREADS = 4, ROUNDS = 60 };

static void *lend_and_register(void *argument) {
    unsigned seed = *(unsigned *)argument;
    char *own = aligned_alloc(4096, 65536);
    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 1103515245 + 12345;
        uint64_t bytes = (seed >> 16) % 60000 + 1;
        char *lent = lend(bytes);
        lent[0] = lent[bytes - 1] = 1;
        OK(muster_host_register(two.runtime, own, bytes, &reported));
        muster_buffer *one = fixture_buffer(&two, bytes, lent), *other = fixture_buffer(&two, bytes, own);
        FAILS(MUSTER_BUSY, "", muster_host_free(two.runtime, lent, &reported));
        muster_buffer_destroy(one);
        muster_buffer_destroy(other);
        OK(muster_host_free(two.runtime, lent, &reported));
        OK(muster_host_unregister(two.runtime, own, &reported));
    }
    free(own);
    return NULL;
}

static void many_threads_share_it(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    unsigned seeds[THREADS] = {1, 2, 3, 4};
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, lend_and_register, &seeds[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_null(two.runtime->pinned.elsewhere);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_two, close_two)
    const struct CMUnitTest tests[] = {
        TEST(arguments_are_checked),
        TEST(every_device_uses_it),
        TEST(what_is_freed_is_lent_again),
        TEST(size_classes_hold_their_sizes),
        TEST(only_what_was_lent_is_taken_back),
        TEST(it_is_not_taken_back_from_under_a_buffer),
        TEST(graphs_go_on_using_a_destroyed_buffer_s_memory),
        TEST(buffers_lie_in_it_wholly_or_not_at_all),
        TEST(no_more_is_kept_than_allowed),
        cmocka_unit_test(memory_that_is_kept_is_given_up_for_memory_that_is_needed),
        TEST(registered_memory_is_used_where_it_is),
        TEST(overlapping_registrations_are_refused),
        TEST(memory_with_a_buffer_in_it_is_not_registered),
        TEST(registered_memory_stays_while_a_graph_uses_it),
        TEST(memory_of_finished_runs_can_go_at_once),
        TEST(memory_of_finished_runs_can_be_registered_at_once),
        TEST(memory_pinned_by_others_counts_as_pinned),
        TEST(other_memory_is_pageable),
        cmocka_unit_test(the_runtime_gives_everything_back),
        cmocka_unit_test(a_driver_that_refuses_leaves_nothing),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(after_a_fault_nothing_is_pinned),
        TEST(many_threads_share_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
