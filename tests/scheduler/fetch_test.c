/* Bringing content to the host: each byte once, whoever asks for it, and nothing lost when a copy fails. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/fixture.h"

enum { WORDS = 4096, BYTES = 4 * WORDS, READERS = 6 };

static muster_device_stats stats_of(const fixture *fixture, int device) {
    muster_device_stats stats = {.struct_size = sizeof stats};
    OK(muster_device_get_stats(fixture->runtime, device, &stats, &reported));
    return stats;
}

typedef struct reader {
    muster_buffer *buffer;
    pthread_barrier_t *start;
    uint64_t offset, bytes;
    uint32_t first;
    muster_status status;
} reader;

static void *read_words(void *argument) {
    reader *self = argument;
    void *pointer;
    pthread_barrier_wait(self->start);
    self->status =
        muster_buffer_acquire(self->buffer, self->offset, self->bytes, MUSTER_READ, fixture_wait_ns, &pointer, NULL);
    if (self->status) return NULL;
    self->first = *(uint32_t *)pointer;
    self->status = muster_buffer_release(self->buffer, pointer, NULL);
    return NULL;
}

static uint64_t copied_to_host(const fixture *fixture) {
    uint64_t bytes = 0;
    for (int device = 0; device < muster_device_count(fixture->runtime); device++)
        bytes += stats_of(fixture, device).bytes_to_host;
    return bytes;
}

/* Whether a reader plans before the others' copy, during it or after it: it is made once. */
static void readers_at_the_same_time_copy_each_byte_once(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    for (uint32_t round = 1; round <= 10; round++) {
        muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        fixture_affine(&fixture, graph, buffer, 1, 7);
        fixture_hold_all(&fixture, true);
        muster_run *run = fixture_submit(&fixture, graph);
        pthread_barrier_t start;
        pthread_t thread[READERS];
        reader own[READERS];
        pthread_barrier_init(&start, NULL, READERS + 1);
        for (uint32_t i = 0; i < READERS; i++) {
            own[i] = (reader){.buffer = buffer, .start = &start, .bytes = BYTES};
            assert_int_equal(pthread_create(&thread[i], NULL, read_words, &own[i]), 0);
        }
        pthread_barrier_wait(&start);
        fixture_hold_all(&fixture, false);
        for (uint32_t i = 0; i < READERS; i++) {
            pthread_join(thread[i], NULL);
            assert_int_equal(own[i].status, MUSTER_OK);
            assert_int_equal(own[i].first, 7);
        }
        pthread_barrier_destroy(&start);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        assert_int_equal(copied_to_host(&fixture), round * BYTES);
        muster_run_destroy(run);
    }
    fixture_close(&fixture);
}

/* Nested ranges from the inside out: each asks only for what is around the last. */
static void only_what_the_host_lacks_is_copied(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 1, 7);
    fixture_run(&fixture, graph);
    uint32_t words[WORDS];
    for (uint32_t around = WORDS / 2; around >= 64;) {
        around -= 64;
        uint64_t bytes = BYTES - 8 * around;
        fixture_read(buffer, 4 * around, bytes, words);
        assert_int_equal(words[0], 7);
        assert_int_equal(words[bytes / 4 - 1], 7);
        assert_int_equal(stats_of(&fixture, 0).bytes_to_host, bytes);
    }
    fixture_close(&fixture);
}

/* Reading what nobody wrote makes no content: a device fills its copy, and uploads nothing. */
static void what_nobody_wrote_stays_zero_after_it_was_read(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    uint32_t words[WORDS];
    memset(words, 0x5a, sizeof words);
    fixture_read(buffer, 0, BYTES, words);
    for (int w = 0; w < WORDS; w++) assert_int_equal(words[w], 0);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 3, 1);
    fixture_run(&fixture, graph);
    assert_int_equal(stats_of(&fixture, 0).bytes_to_device, 0);
    assert_int_equal(fixture_word(buffer, WORDS - 1), 1);
    fixture_close(&fixture);
}

/* The second of two copies is refused. The first has begun, and is in the host memory when the failure is told; both are there for
 * the next attempt. */
static void a_refused_copy_fails_its_acquisition_only(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(
        1, "[{\"kind\": \"fail\", \"entry\": \"memcpy_dtoh_async\", \"nth\": 2, \"code\": \"INVALID_VALUE\"}]", spec);
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture;
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    /* Two ranges with one of zeros between them. */
    OK(muster_graph_fill(graph, buffer, 0, 4096, 1, 4, NULL, &reported));
    OK(muster_graph_fill(graph, buffer, 8192, 4096, 2, 4, NULL, &reported));
    fixture_run(&fixture, graph);
    void *pointer = &fixture;
    FAILS(MUSTER_TRANSFER_FAILED, "4096|INVALID_VALUE",
          muster_buffer_acquire(buffer, 0, BYTES, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    assert_ptr_equal(pointer, &fixture);
    uint32_t words[WORDS];
    fixture_read(buffer, 0, BYTES, words);
    for (int w = 0; w < WORDS; w++) assert_int_equal(words[w], w < 1024 ? 1 : w >= 2048 && w < 3072 ? 2 : 0);
    assert_int_equal(copied_to_host(&fixture), 8192); /* the first was not copied again */
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_at_the_same_time_copy_each_byte_once),
        cmocka_unit_test(only_what_the_host_lacks_is_copied),
        cmocka_unit_test(what_nobody_wrote_stays_zero_after_it_was_read),
        cmocka_unit_test(a_refused_copy_fails_its_acquisition_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
