/* Buffers: content, acquiring and releasing, lifetime. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/fixture.h"

enum { WORDS = 1000, BYTES = 4 * WORDS };

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

static muster_run *submit_affine(muster_buffer *buffer, uint32_t factor, uint32_t term) {
    muster_graph *graph = fixture_graph(&two);
    fixture_affine(&two, graph, buffer, factor, term);
    muster_run *run = fixture_submit(&two, graph);
    muster_graph_destroy(graph);
    return run;
}

/* A run that reads `source` and writes it to `destination`. */
static muster_run *submit_copy(muster_buffer *destination, muster_buffer *source) {
    muster_graph *graph = fixture_graph(&two);
    muster_job job;
    OK(muster_graph_copy(graph, destination, 0, source, 0, muster_buffer_bytes(source), &job, &reported));
    muster_run *run = fixture_submit(&two, graph);
    muster_graph_destroy(graph);
    return run;
}

static void finish(muster_run *run) {
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
}

/* ---------------------------------------------------------------------------------------------------------- content -- */

static void creation_checks_its_arguments(void **state) {
    (void)state;
    muster_buffer *buffer = (muster_buffer *)&two;
    FAILS(MUSTER_INVALID_ARGUMENT, "0", muster_buffer_create(two.runtime, 0, NULL, &buffer, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "", muster_buffer_create(two.runtime, 4, NULL, NULL, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "", muster_buffer_create(NULL, 4, NULL, &buffer, &reported));
    assert_ptr_equal(buffer, &two);
    assert_int_equal(muster_buffer_bytes(NULL), 0);
    buffer = fixture_buffer(&two, 12345, NULL);
    assert_int_equal(muster_buffer_bytes(buffer), 12345);
    muster_buffer_destroy(buffer);
    muster_buffer_destroy(NULL);
}

static void without_host_memory_it_starts_as_zeros(void **state) {
    (void)state;
    static const uint8_t zeros[BYTES];
    uint8_t seen[BYTES];
    muster_buffer *buffer = fixture_buffer(&two, BYTES, NULL), *copy = fixture_buffer(&two, BYTES, NULL);
    fixture_read(buffer, 0, BYTES, seen);
    assert_memory_equal(seen, zeros, BYTES);
    muster_buffer_destroy(buffer);
    buffer = fixture_buffer(&two, BYTES, NULL); /* on a device first */
    memset(seen, 1, sizeof seen);
    fixture_write(copy, 0, BYTES, seen);
    finish(submit_copy(copy, buffer));
    fixture_read(copy, 0, BYTES, seen);
    assert_memory_equal(seen, zeros, BYTES);
    finish(submit_affine(buffer, 5, 7));
    assert_int_equal(fixture_word(buffer, WORDS - 1), 7);
    muster_buffer_destroy(buffer);
    muster_buffer_destroy(copy);
}

static void host_memory_is_its_content_and_where_results_arrive(void **state) {
    (void)state;
    uint32_t host[WORDS];
    for (uint32_t i = 0; i < WORDS; i++) host[i] = i;
    muster_buffer *buffer = fixture_buffer(&two, sizeof host, host);
    finish(submit_affine(buffer, 2, 1));
    void *pointer;
    OK(muster_buffer_acquire(buffer, 40, 400, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    assert_ptr_equal(pointer, host + 10);
    for (uint32_t i = 10; i < 110; i++) assert_int_equal(host[i], 2 * i + 1);
    OK(muster_buffer_release(buffer, pointer, &reported));
    muster_buffer_destroy(buffer);
}

static void written_ranges_reach_the_devices_and_leave_the_rest(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&two, BYTES, NULL);
    finish(submit_affine(buffer, 1, 3));
    uint32_t *pointer;
    OK(muster_buffer_acquire(buffer, 400, 40, MUSTER_WRITE, fixture_wait_ns, (void **)&pointer, &reported));
    for (int i = 0; i < 10; i++) pointer[i] = 1000;
    OK(muster_buffer_release(buffer, pointer, &reported));
    OK(muster_buffer_acquire(buffer, 436, 8, MUSTER_READ_WRITE, fixture_wait_ns, (void **)&pointer, &reported));
    assert_int_equal(pointer[0], 1000);
    assert_int_equal(pointer[1], 3);
    pointer[1] = 2000;
    OK(muster_buffer_release(buffer, pointer, &reported));
    finish(submit_affine(buffer, 1, 1));
    uint32_t words[WORDS];
    fixture_read(buffer, 0, BYTES, words);
    for (uint32_t i = 0; i < WORDS; i++) assert_int_equal(words[i], i == 110 ? 2001 : i >= 100 && i < 110 ? 1001 : 4);
    muster_buffer_destroy(buffer);
}

/* ------------------------------------------------------------------------------------------------ acquire, release -- */

static void acquire_checks_its_arguments(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&two, 100, NULL);
    void *pointer = &two;
    FAILS(MUSTER_OUT_OF_RANGE, "90|20|100", muster_buffer_acquire(buffer, 90, 20, MUSTER_READ, 0, &pointer, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "", muster_buffer_acquire(buffer, UINT64_MAX, 2, MUSTER_READ, 0, &pointer, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "",
          muster_buffer_acquire(buffer, 8, UINT64_MAX - 4, MUSTER_READ, 0, &pointer, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "4", muster_buffer_acquire(buffer, 0, 4, (muster_access)4, 0, &pointer, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "0", muster_buffer_acquire(buffer, 0, 4, (muster_access)0, 0, &pointer, &reported));
    assert_ptr_equal(pointer, &two);
    OK(muster_buffer_acquire(buffer, 96, 4, MUSTER_READ, fixture_wait_ns, &pointer,
                             &reported)); /* up to the last byte */
    OK(muster_buffer_release(buffer, pointer, &reported));
    muster_buffer_destroy(buffer);
}

/* At the end of a buffer 0 bytes are none: a range like others, which moves nothing. */
static void an_empty_range_is_lent_and_moves_nothing(void **state) {
    (void)state;
    uint32_t host[4] = {1, 2, 3, 4};
    muster_buffer *buffer = fixture_buffer(&two, sizeof host, host);
    finish(submit_affine(buffer, 2, 0));
    for (muster_access access = MUSTER_READ; access <= MUSTER_READ_WRITE; access++) {
        void *pointer, *again;
        OK(muster_buffer_acquire(buffer, sizeof host, 0, access, fixture_wait_ns, &pointer, &reported));
        assert_ptr_equal(pointer, host + 4);
        FAILS(MUSTER_OUT_OF_RANGE, "17|16",
              muster_buffer_acquire(buffer, sizeof host + 1, 0, access, 0, &again, &reported));
        OK(muster_buffer_release(buffer, pointer, &reported));
        FAILS(MUSTER_INVALID_STATE, "", muster_buffer_release(buffer, pointer, &reported));
    }
    assert_int_equal(host[0], 1); /* what the device made has not come home */
    assert_int_equal(fixture_word(buffer, 3), 8);
    muster_buffer_destroy(buffer);
}

static void release_wants_what_acquire_returned(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&two, 100, NULL);
    void *pointer;
    FAILS(MUSTER_INVALID_STATE, "", muster_buffer_release(buffer, &two, &reported));
    OK(muster_buffer_acquire(buffer, 0, 100, MUSTER_READ_WRITE, fixture_wait_ns, &pointer, &reported));
    FAILS(MUSTER_INVALID_STATE, "", muster_buffer_release(buffer, (char *)pointer + 1, &reported));
    OK(muster_buffer_release(buffer, pointer, &reported));
    FAILS(MUSTER_INVALID_STATE, "", muster_buffer_release(buffer, pointer, &reported));
    muster_buffer_destroy(buffer);
}

/* A timeout of 0 is a try: it succeeds when there is nothing to wait for. */
static void a_free_buffer_is_acquired_without_waiting(void **state) {
    (void)state;
    uint32_t host[4] = {1, 2, 3, 4};
    muster_buffer *buffer = fixture_buffer(&two, 100, NULL), *backed = fixture_buffer(&two, sizeof host, host);
    for (muster_access access = MUSTER_READ; access <= MUSTER_READ_WRITE; access++) {
        void *pointer;
        OK(muster_buffer_acquire(buffer, 0, 100, access, 0, &pointer, &reported));
        OK(muster_buffer_release(buffer, pointer, &reported));
        OK(muster_buffer_acquire(backed, 4, 8, access, 0, &pointer, &reported));
        assert_ptr_equal(pointer, host + 1);
        OK(muster_buffer_release(backed, pointer, &reported));
    }
    muster_buffer_destroy(buffer);
    muster_buffer_destroy(backed);
}

static void one_acquisition_at_a_time_except_readers(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&two, 100, NULL);
    void *first, *second, *third = &two;
    OK(muster_buffer_acquire(buffer, 0, 50, MUSTER_READ, fixture_wait_ns, &first, &reported));
    OK(muster_buffer_acquire(buffer, 10, 90, MUSTER_READ, fixture_wait_ns, &second, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_buffer_acquire(buffer, 0, 4, MUSTER_WRITE, 1000000, &third, &reported));
    assert_ptr_equal(third, &two);
    OK(muster_buffer_release(buffer, first, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_buffer_acquire(buffer, 0, 4, MUSTER_WRITE, 0, &third, &reported));
    OK(muster_buffer_release(buffer, second, &reported));
    OK(muster_buffer_acquire(buffer, 0, 4, MUSTER_WRITE, fixture_wait_ns, &third, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_buffer_acquire(buffer, 50, 4, MUSTER_READ, 0, &first, &reported));
    OK(muster_buffer_release(buffer, third, &reported));
    muster_buffer_destroy(buffer);
}

/* The same range acquired twice by readers gives the same pointer, which each of them releases once. */
static void equal_readers_release_one_each(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&two, 100, NULL);
    void *first, *second, *writer;
    OK(muster_buffer_acquire(buffer, 0, 50, MUSTER_READ, fixture_wait_ns, &first, &reported));
    OK(muster_buffer_acquire(buffer, 0, 50, MUSTER_READ, fixture_wait_ns, &second, &reported));
    assert_ptr_equal(first, second);
    OK(muster_buffer_release(buffer, first, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_buffer_acquire(buffer, 0, 4, MUSTER_WRITE, 0, &writer, &reported));
    OK(muster_buffer_release(buffer, second, &reported));
    FAILS(MUSTER_INVALID_STATE, "", muster_buffer_release(buffer, second, &reported));
    muster_buffer_destroy(buffer);
}

static void acquire_waits_for_earlier_runs(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&two, BYTES, NULL);
    void *pointer = &two;
    fixture_hold_all(&two, true);
    muster_run *run = submit_affine(buffer, 1, 8);
    FAILS(MUSTER_TIMEOUT, "", muster_buffer_acquire(buffer, 0, 4, MUSTER_READ, 0, &pointer, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_buffer_acquire(buffer, 0, 4, MUSTER_READ_WRITE, 2000000, &pointer, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_buffer_acquire(buffer, 0, 4, MUSTER_WRITE, 2000000, &pointer, &reported));
    assert_ptr_equal(pointer, &two);
    fixture_hold_all(&two, false);
    OK(muster_buffer_acquire(buffer, 0, 4, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    assert_int_equal(*(uint32_t *)pointer, 8);
    OK(muster_buffer_release(buffer, pointer, &reported));
    finish(run);
    muster_buffer_destroy(buffer);
}

static void later_runs_wait_for_the_release(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&two, 4, NULL);
    uint32_t *pointer;
    OK(muster_buffer_acquire(buffer, 0, 4, MUSTER_WRITE, fixture_wait_ns, (void **)&pointer, &reported));
    muster_run *run = submit_affine(buffer, 10, 1);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 5000000, &reported));
    *pointer = 7;
    OK(muster_buffer_release(buffer, pointer, &reported));
    finish(run);
    assert_int_equal(fixture_word(buffer, 0), 71);
    muster_buffer_destroy(buffer);
}

static void a_reading_run_and_a_reader_do_not_wait_for_each_other(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&two, 4, NULL), *copy = fixture_buffer(&two, 4, NULL);
    uint32_t *pointer;
    finish(submit_affine(buffer, 1, 6));
    OK(muster_buffer_acquire(buffer, 0, 4, MUSTER_READ, fixture_wait_ns, (void **)&pointer, &reported));
    finish(submit_copy(copy, buffer));
    assert_int_equal(*pointer, 6);
    muster_run *writer = submit_affine(buffer, 1, 1);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(writer, 2000000, &reported));
    assert_int_equal(*pointer, 6);
    OK(muster_buffer_release(buffer, pointer, &reported));
    finish(writer);
    assert_int_equal(fixture_word(buffer, 0), 7);
    assert_int_equal(fixture_word(copy, 0), 6);
    muster_buffer_destroy(buffer);
    muster_buffer_destroy(copy);
}

/* Writers that gave up must not hold up what comes behind them for longer than what they waited for. */
static void an_acquire_that_timed_out_leaves_no_trace(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&two, 4, NULL);
    void *reader, *pointer;
    OK(muster_buffer_acquire(buffer, 0, 4, MUSTER_READ, fixture_wait_ns, &reader, &reported));
    for (int i = 0; i < 20; i++)
        FAILS(MUSTER_TIMEOUT, "", muster_buffer_acquire(buffer, 0, 4, MUSTER_WRITE, 0, &pointer, &reported));
    OK(muster_buffer_release(buffer, reader, &reported));
    OK(muster_buffer_acquire(buffer, 0, 4, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    OK(muster_buffer_release(buffer, pointer, &reported));
    finish(submit_affine(buffer, 1, 2));
    assert_int_equal(fixture_word(buffer, 0), 2);
    muster_buffer_destroy(buffer);
}

typedef struct acquirer {
    muster_buffer *buffer;
    uint32_t rounds;
    muster_status worst;
} acquirer;

static void *increment(void *argument) {
    acquirer *self = argument;
    for (uint32_t i = 0; i < self->rounds; i++) {
        uint32_t *pointer;
        muster_status status =
            muster_buffer_acquire(self->buffer, 0, 4, MUSTER_READ_WRITE, fixture_wait_ns, (void **)&pointer, NULL);
        if (status == MUSTER_OK) {
            ++*pointer;
            status = muster_buffer_release(self->buffer, pointer, NULL);
        }
        if (status != MUSTER_OK) self->worst = status;
    }
    return NULL;
}

static void threads_that_acquire_take_turns(void **state) {
    (void)state;
    enum { THREADS = 4, ROUNDS = 100 };
    muster_buffer *buffer = fixture_buffer(&two, 4, NULL);
    pthread_t thread[THREADS];
    acquirer own[THREADS];
    for (int t = 0; t < THREADS; t++) {
        own[t] = (acquirer){buffer, ROUNDS, MUSTER_OK};
        assert_int_equal(pthread_create(&thread[t], NULL, increment, &own[t]), 0);
    }
    for (int i = 0; i < ROUNDS; i++) muster_run_destroy(submit_affine(buffer, 1, 1));
    for (int t = 0; t < THREADS; t++) {
        pthread_join(thread[t], NULL);
        assert_int_equal(own[t].worst, MUSTER_OK);
    }
    assert_int_equal(fixture_word(buffer, 0), (THREADS + 1) * ROUNDS);
    muster_buffer_destroy(buffer);
}

/* --------------------------------------------------------------------------------------------------------- lifetime -- */

static void destroy_is_deferred_until_the_last_run(void **state) {
    (void)state;
    muster_buffer *source = fixture_buffer(&two, BYTES, NULL), *copy = fixture_buffer(&two, BYTES, NULL);
    fixture_hold_all(&two, true);
    muster_run *first = submit_affine(source, 1, 4);
    muster_run *second = submit_copy(copy, source);
    muster_buffer_destroy(source);
    fixture_hold_all(&two, false);
    finish(first);
    finish(second);
    assert_int_equal(fixture_word(copy, WORDS - 1), 4);
    muster_buffer_destroy(copy);
}

static void a_graph_keeps_its_buffers(void **state) {
    (void)state;
    muster_buffer *source = fixture_buffer(&two, BYTES, NULL), *copy = fixture_buffer(&two, BYTES, NULL);
    muster_graph *graph = fixture_graph(&two);
    fixture_affine(&two, graph, source, 3, 4);
    OK(muster_graph_copy(graph, copy, 0, source, 0, BYTES, &(muster_job){0}, &reported));
    muster_buffer_destroy(source);
    fixture_run(&two, graph);
    fixture_run(&two, graph); /* its content lives on between the runs */
    assert_int_equal(fixture_word(copy, 1), 16);
    muster_graph_destroy(graph);
    muster_buffer_destroy(copy);
}

static void host_memory_is_not_written_after_the_last_run(void **state) {
    (void)state;
    uint32_t *host = calloc(WORDS, 4);
    assert_non_null(host);
    muster_buffer *buffer = fixture_buffer(&two, BYTES, host);
    muster_run *run = submit_affine(buffer, 1, 5);
    muster_buffer_destroy(buffer);
    finish(run);
    memset(host, 0xee, BYTES);
    muster_buffer *other = fixture_buffer(&two, BYTES, NULL);
    finish(submit_affine(other, 1, 1));
    fixture_word(other, 0);
    for (int i = 0; i < WORDS; i++) assert_int_equal(host[i], 0xeeeeeeee);
    free(host);
    muster_buffer_destroy(other);
}

static void device_memory_comes_back(void **state) {
    (void)state;
    uint64_t after_first = 0;
    for (int round = 0; round < 40; round++) {
        muster_buffer *buffer = fixture_buffer(&two, 1 << 20, NULL);
        finish(submit_affine(buffer, 1, 1));
        muster_buffer_destroy(buffer);
        /* The device's memory comes back by a message to its worker; a run of another buffer follows it there. */
        muster_buffer *other = fixture_buffer(&two, 4, NULL);
        finish(submit_affine(other, 1, 1));
        muster_buffer_destroy(other);
        uint64_t in_use = 0;
        for (int device = 0; device < 2; device++) {
            muster_device_stats stats = {.struct_size = sizeof stats};
            OK(muster_device_get_stats(two.runtime, device, &stats, &reported));
            in_use += stats.pool_bytes_in_use;
        }
        if (round == 4) after_first = in_use;
        if (round > 4) assert_true(in_use <= after_first + (4 << 20));
    }
}

/* The acquisition keeps the buffer alive, and the runtime's end is the acquisition's. */
static void a_buffer_may_be_destroyed_while_it_is_lent(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL), *other = fixture_buffer(&fixture, 400, NULL);
    uint32_t *pointer, *kept;
    OK(muster_buffer_acquire(buffer, 0, 0, MUSTER_WRITE, fixture_wait_ns, (void **)&pointer, &reported));
    OK(muster_buffer_acquire(other, 0, 0, MUSTER_READ, fixture_wait_ns, (void **)&kept, &reported));
    muster_buffer_destroy(buffer);
    muster_buffer_destroy(other);
    pointer[99] = 7;
    OK(muster_buffer_release(buffer, pointer, &reported));
    fixture_close(&fixture); /* `kept` was never released */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_checks_its_arguments),
        cmocka_unit_test(without_host_memory_it_starts_as_zeros),
        cmocka_unit_test(host_memory_is_its_content_and_where_results_arrive),
        cmocka_unit_test(written_ranges_reach_the_devices_and_leave_the_rest),
        cmocka_unit_test(acquire_checks_its_arguments),
        cmocka_unit_test(an_empty_range_is_lent_and_moves_nothing),
        cmocka_unit_test(release_wants_what_acquire_returned),
        cmocka_unit_test(a_free_buffer_is_acquired_without_waiting),
        cmocka_unit_test(one_acquisition_at_a_time_except_readers),
        cmocka_unit_test(equal_readers_release_one_each),
        cmocka_unit_test(acquire_waits_for_earlier_runs),
        cmocka_unit_test(later_runs_wait_for_the_release),
        cmocka_unit_test(a_reading_run_and_a_reader_do_not_wait_for_each_other),
        cmocka_unit_test(an_acquire_that_timed_out_leaves_no_trace),
        cmocka_unit_test(threads_that_acquire_take_turns),
        cmocka_unit_test(destroy_is_deferred_until_the_last_run),
        cmocka_unit_test(a_graph_keeps_its_buffers),
        cmocka_unit_test(host_memory_is_not_written_after_the_last_run),
        cmocka_unit_test(device_memory_comes_back),
        cmocka_unit_test(a_buffer_may_be_destroyed_while_it_is_lent),
    };
    return cmocka_run_group_tests(tests, open_two, close_two);
}
