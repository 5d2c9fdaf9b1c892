/* Copies between host memory and devices, seen from the application: no worker waits in one, whatever the memory; every byte
 * arrives; one that fails fails its job or acquisition only. */
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/tuning.h"
#include "device/sim/sim.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

enum { MIB = 1 << 20, BYTES = 2 * MU_STAGING_SLOT_BYTES + 12345 * 4, WORDS = BYTES / 4 };

static fixture one;

static int open_one(void **state) {
    (void)state;
    fixture_open(&one, 1);
    return 0;
}

static int close_one(void **state) {
    (void)state;
    fixture_close(&one);
    return 0;
}

static void open_planned(uint32_t devices, const char *plan) {
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(devices, plan, spec);
    fixture_open_with(&one, devices, &(muster_config){.struct_size = sizeof(muster_config), .sim = spec});
}

static uint64_t calls(const char *entry) { return mu_sim_calls(fixture_driver(&one), entry); }

static uint32_t value(uint32_t index) { return index * 2654435761u; }

/* What the job makes of it: the kernel changes some words, but all of the buffer is its argument. */
enum { CHANGED = 1024 };
static uint32_t result(uint32_t index) { return index < CHANGED ? value(index) * 3 + 7 : value(index); }

static uint32_t *new_content(void) {
    uint32_t *words = malloc(BYTES);
    assert_non_null(words);
    for (uint32_t i = 0; i < WORDS; i++) words[i] = value(i);
    return words;
}

static muster_run *submit(muster_buffer *buffer) {
    muster_graph *graph = fixture_graph(&one);
    const muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&one, "affine"), CHANGED / 64, 64,
                         ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(3), muster_u32_arg(7),
                              muster_u32_arg(CHANGED)));
    fixture_add(graph, &dispatch);
    muster_run *run = fixture_submit(&one, graph);
    muster_graph_destroy(graph);
    return run;
}

static void check_result(const uint32_t *words) {
    for (uint32_t i = 0; i < WORDS; i++)
        if (words[i] != result(i)) fail_msg("word %u is %u, not %u", i, words[i], result(i));
}

/* Acquires from a thread of its own. */
typedef struct reader {
    pthread_t thread;
    muster_buffer *buffer;
    uint64_t offset, bytes;
    const uint32_t *pointer;
    muster_status status;
    muster_error error;
    atomic_bool done;
} reader;

static void *acquire(void *argument) {
    reader *self = argument;
    self->status = muster_buffer_acquire(self->buffer, self->offset, self->bytes, MUSTER_READ, fixture_wait_ns,
                                         (void **)&self->pointer, &self->error);
    atomic_store(&self->done, true);
    return NULL;
}

static void start(reader *reader) { assert_int_equal(pthread_create(&reader->thread, NULL, acquire, reader), 0); }

static void await_calls(const char *entry, uint64_t count) {
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    while (calls(entry) < count) {
        sched_yield();
        assert_true(mu_now_ns() < deadline);
    }
}

/* ----------------------------------------------------------------------------------------------------- never waiting -- */

/* Nothing leaves the download lane, and the worker answers all the same. */
static void no_read_back_keeps_the_worker(void **state) {
    (void)state;
    static const uint64_t lengths[] = {4, 100000, BYTES};
    muster_buffer *buffer = fixture_buffer(&one, BYTES, NULL);
    for (size_t i = 0; i < 3; i++) {
        muster_run *run = submit(buffer);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        muster_run_destroy(run);
        reader reader = {.buffer = buffer, .bytes = lengths[i]};
        uint64_t before = calls("memcpy_dtoh_async");
        fixture_hold(&one, 0, true);
        start(&reader);
        await_calls("memcpy_dtoh_async", before + 1);
        for (int k = 0; k < 100; k++) mu_actors_pass(one.runtime);
        assert_false(atomic_load(&reader.done));
        fixture_hold(&one, 0, false);
        pthread_join(reader.thread, NULL);
        assert_int_equal(reader.status, MUSTER_OK);
        OK(muster_buffer_release(buffer, (void *)(uintptr_t)reader.pointer, &reported));
    }
    muster_buffer_destroy(buffer);
}

static void no_upload_keeps_the_worker(void **state) {
    (void)state;
    uint32_t *words = new_content();
    muster_buffer *buffer = fixture_buffer(&one, BYTES, words);
    fixture_hold(&one, 0, true);
    muster_run *run = submit(buffer);
    await_calls("memcpy_htod_async", 2);
    for (int k = 0; k < 100; k++) mu_actors_pass(one.runtime);
    fixture_hold(&one, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    fixture_read(buffer, 0, 4, &(uint32_t){0});
    muster_buffer_destroy(buffer);
    free(words);
}

/* A job that only reads `bytes` of the buffer. */
static muster_run *submit_reader(muster_buffer *buffer, uint64_t bytes) {
    muster_graph *graph = fixture_graph(&one);
    const muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(&one, "nothing"), 1, 1,
        ARGS(muster_range_arg(buffer, MUSTER_READ, 0, bytes), muster_range_arg(buffer, MUSTER_READ, 0, 4)));
    fixture_add(graph, &dispatch);
    muster_run *run = fixture_submit(&one, graph);
    muster_graph_destroy(graph);
    return run;
}

/* More than the slots take, so some of it is not on the lane yet, when a job wants more of the buffer and so other memory. */
static void what_is_still_staged_is_not_moved(void **state) {
    (void)state;
    /* So that there is no copy of the whole from the start. */
    enum { LONG = MU_WHOLE_COPY_BYTES + MU_STAGING_SLOT_BYTES };
    static_assert(LONG > (MU_STAGING_SLOTS + 1) * MU_STAGING_SLOT_BYTES, "the slots would take all of it");
    uint32_t *words = malloc(LONG);
    assert_non_null(words);
    for (uint32_t i = 0; i < LONG / 4; i++) words[i] = value(i);
    muster_buffer *buffer = fixture_buffer(&one, LONG, words);
    uint64_t before = calls("memcpy_htod_async");
    fixture_hold(&one, 0, true);
    muster_run *run = submit_reader(buffer, LONG - 4096);
    await_calls("memcpy_htod_async", before + MU_STAGING_SLOTS);
    muster_run *wider = submit_reader(buffer, LONG);
    for (int k = 0; k < 100; k++) mu_actors_pass(one.runtime);
    fixture_hold(&one, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    OK(muster_run_wait(wider, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    muster_run_destroy(wider);
    run = submit(buffer);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    void *pointer;
    OK(muster_buffer_acquire(buffer, 0, LONG, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    for (uint32_t i = 0; i < LONG / 4; i++)
        if (words[i] != result(i)) fail_msg("word %u is %u, not %u", i, words[i], result(i));
    OK(muster_buffer_release(buffer, pointer, &reported));
    muster_buffer_destroy(buffer);
    free(words);
}

/* ---------------------------------------------------------------------------------------------------------- content -- */

static void go_round(muster_buffer *buffer) {
    muster_run *run = submit(buffer);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    void *pointer;
    OK(muster_buffer_acquire(buffer, 0, BYTES, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    check_result(pointer);
    OK(muster_buffer_release(buffer, pointer, &reported));
}

static void every_kind_of_host_memory_arrives(void **state) {
    (void)state;
    uint32_t *pageable = new_content(), *registered = new_content(), *lent;
    OK(muster_host_alloc(one.runtime, BYTES, (void **)&lent, &reported));
    memcpy(lent, pageable, BYTES);
    OK(muster_host_register(one.runtime, registered, BYTES, &reported));
    uint32_t *const memory[] = {pageable, registered, lent};
    for (int i = 0; i < 3; i++) {
        uint64_t up = calls("memcpy_htod_async"), down = calls("memcpy_dtoh_async");
        muster_buffer *buffer = fixture_buffer(&one, BYTES, memory[i]);
        go_round(buffer);
        check_result(memory[i]);
        muster_buffer_destroy(buffer);
        /* Pinned memory in one piece, pageable memory in slots. */
        assert_int_equal(calls("memcpy_htod_async") - up, i == 0 ? 3 : 1);
        assert_int_equal(calls("memcpy_dtoh_async") - down, i == 0 ? 3 : 1);
    }
    OK(muster_host_unregister(one.runtime, registered, &reported));
    free(pageable);
    free(registered);
}

static void without_pinned_memory_all_arrives_too(void **state) {
    (void)state;
    open_planned(1,
                 "[{\"entry\": \"mem_host_alloc\", \"nth\": 1, \"repeat\": \"forever\", \"code\": \"OUT_OF_MEMORY\"}]");
    uint32_t *words = new_content();
    muster_buffer *buffer = fixture_buffer(&one, BYTES, words);
    go_round(buffer);
    muster_buffer_destroy(buffer);
    free(words);
    fixture_close(&one);
}

/* ---------------------------------------------------------------------------------------------------------- failure -- */

/* Each piece of a read-back in turn: the acquisition says so, and the next one finds everything. */
static void a_read_back_that_fails_can_be_repeated(void **state) {
    (void)state;
    for (int nth = 1; nth <= 3; nth++) {
        char plan[200];
        snprintf(plan, sizeof plan, "[{\"entry\": \"memcpy_dtoh_async\", \"nth\": %d, \"code\": \"INVALID_VALUE\"}]",
                 nth);
        open_planned(1, plan);
        uint32_t *words = new_content();
        muster_buffer *buffer = fixture_buffer(&one, BYTES, words);
        muster_run *run = submit(buffer);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        muster_run_destroy(run);
        void *pointer = NULL;
        FAILS(MUSTER_TRANSFER_FAILED, "copying",
              muster_buffer_acquire(buffer, 0, BYTES, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
        assert_null(pointer);
        OK(muster_buffer_acquire(buffer, 0, BYTES, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
        check_result(pointer);
        OK(muster_buffer_release(buffer, pointer, &reported));
        muster_buffer_destroy(buffer);
        free(words);
        fixture_close(&one);
    }
}

static void an_upload_that_fails_fails_its_job_only(void **state) {
    (void)state;
    for (int nth = 1; nth <= 3; nth++) {
        char plan[200];
        snprintf(plan, sizeof plan, "[{\"entry\": \"memcpy_htod_async\", \"nth\": %d, \"code\": \"INVALID_VALUE\"}]",
                 nth);
        open_planned(1, plan);
        uint32_t *words = new_content(), *others = new_content();
        muster_buffer *buffer = fixture_buffer(&one, BYTES, words), *other = fixture_buffer(&one, BYTES, others);
        muster_run *run = submit(buffer);
        FAILS(MUSTER_TRANSFER_FAILED, "copying", muster_run_wait(run, fixture_wait_ns, &reported));
        muster_run_destroy(run);
        go_round(other);
        muster_buffer_destroy(buffer);
        muster_buffer_destroy(other);
        free(words);
        free(others);
        fixture_close(&one);
    }
}

/* The end of the device ends the read-back, and the host memory is the application's again. */
static void a_device_lost_while_it_copies_ends_the_acquisition(void **state) {
    (void)state;
    for (int nth = 1; nth <= 3; nth++) {
        char plan[200];
        snprintf(plan, sizeof plan,
                 "[{\"kind\": \"lose\", \"entry\": \"memcpy_dtoh_async\", \"nth\": %d, \"device\": 0}]", nth);
        open_planned(1, plan);
        uint32_t *words = new_content();
        muster_buffer *buffer = fixture_buffer(&one, BYTES, words);
        muster_run *run = submit(buffer);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        muster_run_destroy(run);
        void *pointer = NULL;
        muster_status status =
            muster_buffer_acquire(buffer, 0, BYTES, MUSTER_READ, fixture_wait_ns, &pointer, &reported);
        /* Whichever is noticed first: the loss, or that nobody else has the content. */
        assert_true(status == MUSTER_DEVICE_LOST || status == MUSTER_DATA_UNDEFINED);
        assert_null(pointer);
        muster_buffer_destroy(buffer);
        free(words); /* a sanitizer sees who still writes there */
        fixture_close(&one);
    }
}

/* Memory that cannot be written back is not waited for for ever. */
static void what_cannot_be_written_back_stays(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(
        1, "[{\"entry\": \"memcpy_dtoh_async\", \"nth\": 1, \"repeat\": \"forever\", \"code\": \"INVALID_VALUE\"}]",
        spec);
    const muster_config config = {
        .struct_size = sizeof config, .sim = spec, .budget_bytes = 128 * (uint64_t)MIB, .admission_wait_ns = 50000000};
    fixture_open_with(&one, 1, &config);
    muster_buffer *buffer[3];
    muster_status status = MUSTER_OK;
    for (int i = 0; i < 3; i++) {
        buffer[i] = fixture_buffer(&one, 48 * MIB, NULL);
        muster_graph *graph = fixture_graph(&one);
        OK(muster_graph_fill(graph, buffer[i], 0, 48 * MIB, 1, 1, NULL, &reported));
        muster_run *run = fixture_submit(&one, graph);
        muster_graph_destroy(graph);
        status = muster_run_wait(run, fixture_wait_ns, &reported);
        muster_run_destroy(run);
    }
    assert_int_equal(status, MUSTER_OUT_OF_DEVICE_MEMORY);
    assert_true(calls("memcpy_dtoh_async") > 0);
    fixture_close(&one);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_one, close_one)
    const struct CMUnitTest tests[] = {
        TEST(no_read_back_keeps_the_worker),
        TEST(no_upload_keeps_the_worker),
        TEST(what_is_still_staged_is_not_moved),
        TEST(every_kind_of_host_memory_arrives),
        cmocka_unit_test(without_pinned_memory_all_arrives_too),
        cmocka_unit_test(a_read_back_that_fails_can_be_repeated),
        cmocka_unit_test(an_upload_that_fails_fails_its_job_only),
        cmocka_unit_test(a_device_lost_while_it_copies_ends_the_acquisition),
        cmocka_unit_test(what_cannot_be_written_back_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
