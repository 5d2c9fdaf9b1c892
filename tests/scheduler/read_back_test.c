/* Read-backs: when one has ended the bytes are home, and the acquisition that follows copies nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/callbacks.h"

enum { WORDS = 4000, BYTES = 4 * WORDS };

static muster_job add_read_back(muster_graph *graph, muster_buffer *buffer, uint64_t offset, uint64_t bytes) {
    muster_job job = MUSTER_NO_JOB;
    OK(muster_graph_read_back(graph, buffer, offset, bytes, &job, &reported));
    return job;
}

static uint64_t copied_to_host(const fixture *fixture) {
    uint64_t bytes = 0;
    for (int device = 0; device < muster_device_count(fixture->runtime); device++)
        bytes += stats_of(fixture, device).bytes_to_host;
    return bytes;
}

static void the_bytes_are_home_when_the_run_has_ended(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    static uint32_t host[WORDS];
    memset(host, 0, sizeof host);
    muster_buffer *mine = fixture_buffer(&fixture, BYTES, host), *own = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, mine, 1, 3);
    fixture_affine(&fixture, graph, own, 1, 4);
    muster_job job = add_read_back(graph, mine, 0, 0);
    add_read_back(graph, own, 0, BYTES);
    muster_run *run = fixture_submit(&fixture, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    /* Looked at without acquiring, which an application must not: to see that it is there. */
    for (int w = 0; w < WORDS; w++) assert_int_equal(host[w], 3);
    assert_int_equal(fixture_result(run, job).device, MUSTER_ANY_DEVICE);
    assert_int_equal(copied_to_host(&fixture), 2 * BYTES);
    uint32_t words[WORDS];
    fixture_read(mine, 0, BYTES, words);
    assert_memory_equal(words, host, BYTES);
    fixture_read(own, 0, BYTES, words);
    for (int w = 0; w < WORDS; w++) assert_int_equal(words[w], 4);
    /* The device copies stayed valid, too: the next run uploads nothing. */
    uint64_t uploaded = stats_of(&fixture, 0).bytes_to_device + stats_of(&fixture, 1).bytes_to_device;
    fixture_run(&fixture, graph);
    assert_int_equal(stats_of(&fixture, 0).bytes_to_device + stats_of(&fixture, 1).bytes_to_device, uploaded);
    for (int w = 0; w < WORDS; w++) assert_int_equal(host[w], 6);
    fixture_close(&fixture);
}

static void only_the_range_and_only_what_is_not_home_is_copied(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    static uint32_t host[WORDS];
    memset(host, 0, sizeof host);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, host);
    muster_graph *write = fixture_graph(&fixture), *part = fixture_graph(&fixture), *rest = fixture_graph(&fixture);
    fixture_affine(&fixture, write, buffer, 1, 9);
    add_read_back(part, buffer, 400, 800);
    add_read_back(rest, buffer, 200, 0);
    add_read_back(rest, buffer, 400, 4); /* beside the other: whoever is second copies nothing */
    muster_job none = add_read_back(rest, buffer, BYTES, 0);
    fixture_run(&fixture, write);
    assert_int_equal(copied_to_host(&fixture), 0);
    fixture_run(&fixture, part);
    assert_int_equal(copied_to_host(&fixture), 800);
    for (int w = 0; w < WORDS; w++) assert_int_equal(host[w], w >= 100 && w < 300 ? 9 : 0);
    muster_run *run = fixture_submit(&fixture, rest);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, none).status, MUSTER_OK);
    assert_int_equal(copied_to_host(&fixture), BYTES - 200);
    for (int w = 0; w < WORDS; w++) assert_int_equal(host[w], w >= 50 ? 9 : 0);
    fixture_close(&fixture);
}

/* Parts on each of four devices, written in one run, come home by one job of the next. */
static void it_collects_from_every_device(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 4);
    static uint32_t host[WORDS];
    memset(host, 0, sizeof host);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, host);
    muster_graph *graph = fixture_graph(&fixture), *home = fixture_graph(&fixture);
    for (int d = 0; d < 4; d++) {
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "affine"), 4, 256,
                             ARGS(muster_range_arg(buffer, MUSTER_READ_WRITE, (uint64_t)d * 4000, 4000),
                                  muster_u32_arg(1), muster_u32_arg((uint32_t)d + 1), muster_u32_arg(1000)));
        dispatch.pin_device = 1;
        dispatch.device = d;
        fixture_add(graph, &dispatch);
    }
    add_read_back(home, buffer, 0, 0);
    fixture_hold_all(&fixture, true);
    muster_run *run[2] = {fixture_submit(&fixture, graph), fixture_submit(&fixture, home)};
    for (int d = 0; d < 3; d++) fixture_hold(&fixture, d, false);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run[1], 0, &reported));
    fixture_hold(&fixture, 3, false);
    OK(muster_run_wait(run[1], fixture_wait_ns, &reported));
    for (int w = 0; w < WORDS; w++) assert_int_equal(host[w], w / 1000 + 1);
    for (int d = 0; d < 4; d++) assert_int_equal(stats_of(&fixture, d).bytes_to_host, 4000);
    fixture_close(&fixture);
}

/* Each version comes home before the next one is written over it. */
static muster_status keep(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)count, (void)error;
    uint32_t **next = user;
    *(*next)++ = *(const uint32_t *)pointers[0];
    return MUSTER_OK;
}

static void a_writer_waits_for_the_read_back_before_it(void **state) {
    (void)state;
    enum { VERSIONS = 40 };
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .placement = "random", .seed = 3};
    fixture_open_with(&fixture, 3, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    uint32_t seen[VERSIONS] = {0}, *next = seen;
    for (uint32_t i = 0; i < VERSIONS; i++) {
        fixture_affine(&fixture, graph, buffer, 1, 1);
        add_read_back(graph, buffer, 0, 0);
        add_host(graph, keep, &next, ARGS(muster_buffer_arg(buffer, MUSTER_READ)));
    }
    fixture_run(&fixture, graph);
    for (uint32_t i = 0; i < VERSIONS; i++) assert_int_equal(seen[i], i + 1);
    assert_int_equal(copied_to_host(&fixture), VERSIONS * BYTES); /* host jobs found what the read-backs brought */
    fixture_close(&fixture);
}

/* While the application has the buffer, and after it has given it back. */
static void it_waits_for_an_acquisition_that_writes(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    add_read_back(graph, buffer, 0, 0);
    void *pointer, *again;
    OK(muster_buffer_acquire(buffer, 0, 0, MUSTER_READ, fixture_wait_ns, &again, &reported));
    fixture_run(&fixture, graph); /* beside a reader */
    OK(muster_buffer_release(buffer, again, &reported));
    OK(muster_buffer_acquire(buffer, 0, 0, MUSTER_READ_WRITE, fixture_wait_ns, &pointer, &reported));
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 1000000, &reported));
    OK(muster_buffer_release(buffer, pointer, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    fixture_close(&fixture);
}

static void a_refused_copy_fails_the_job_and_what_follows(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(
        1, "[{\"kind\": \"fail\", \"entry\": \"memcpy_dtoh_async\", \"nth\": 2, \"code\": \"INVALID_VALUE\"}]", spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture;
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer[3];
    muster_graph *graph = fixture_graph(&fixture);
    muster_job home[3], after[3];
    for (int b = 0; b < 3; b++) {
        buffer[b] = fixture_buffer(&fixture, BYTES, NULL);
        add_affine_on(&fixture, graph, buffer[b], 0, 1, 2);
    }
    for (int b = 0; b < 3; b++) {
        home[b] = add_read_back(graph, buffer[b], 0, 0);
        if (b) OK(muster_graph_after(graph, home[b], home[b - 1], &reported));
        after[b] = fixture_affine(&fixture, graph, buffer[b], 1, 1);
    }
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_TRANSFER_FAILED, "16000|INVALID_VALUE", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(reported.job, home[1]);
    static const muster_status expected[3] = {MUSTER_OK, MUSTER_TRANSFER_FAILED, MUSTER_PREDECESSOR_FAILED};
    for (int b = 0; b < 3; b++) {
        assert_int_equal(fixture_result(run, home[b]).status, expected[b]);
        assert_int_equal(fixture_result(run, after[b]).status, b ? MUSTER_PREDECESSOR_FAILED : MUSTER_OK);
    }
    /* A read-back writes nothing: what it could not bring is where it was. What was to be written after it is undefined. */
    assert_int_equal(fixture_word(buffer[0], 5), 3);
    muster_graph *again = fixture_graph(&fixture);
    add_read_back(again, buffer[2], 0, 0);
    FAILS(MUSTER_DATA_UNDEFINED, "", muster_run_wait(fixture_submit(&fixture, again), fixture_wait_ns, &reported));
    fixture_close(&fixture);
}

static void bad_input_is_refused(void **state) {
    (void)state;
    fixture fixture, strange;
    fixture_open(&fixture, 1);
    fixture_open(&strange, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL), *foreign = fixture_buffer(&strange, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_job job = 77;
    FAILS(MUSTER_INVALID_ARGUMENT, "graph", muster_graph_read_back(NULL, buffer, 0, 0, &job, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "buffer", muster_graph_read_back(graph, NULL, 0, 0, &job, &reported));
    FAILS(MUSTER_WRONG_RUNTIME, "buffer", muster_graph_read_back(graph, foreign, 0, 0, &job, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "16000", muster_graph_read_back(graph, buffer, 8, BYTES, &job, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "16001", muster_graph_read_back(graph, buffer, BYTES + 1, 0, &job, &reported));
    FAILS(MUSTER_INVALID_HANDLE, "buffer",
          muster_graph_read_back(graph, (muster_buffer *)graph, 0, 0, &job, &reported));
    assert_int_equal(job, 77);
    OK(muster_graph_read_back(graph, buffer, 0, 0, NULL, &reported));
    fixture_run(&fixture, graph);
    FAILS(MUSTER_INVALID_STATE, "submitted", muster_graph_read_back(graph, buffer, 0, 0, &job, &reported));
    fixture_close(&strange);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_are_home_when_the_run_has_ended),
        cmocka_unit_test(only_the_range_and_only_what_is_not_home_is_copied),
        cmocka_unit_test(it_collects_from_every_device),
        cmocka_unit_test(a_writer_waits_for_the_read_back_before_it),
        cmocka_unit_test(it_waits_for_an_acquisition_that_writes),
        cmocka_unit_test(a_refused_copy_fails_the_job_and_what_follows),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
