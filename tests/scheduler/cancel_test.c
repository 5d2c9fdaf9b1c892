/* Cancelling a run at every stage of its life, and what it leaves behind of its buffers. */
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/memory/buffer.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

enum { MIB = 1 << 20 };

/* --------------------------------------------------------------------------------------- where the bytes of a buffer are -- */

typedef enum location_state { INVALID, SHARED, MODIFIED, UNDEFINED } location_state;
enum { HOST = -1 };

typedef struct seen {
    uint64_t high;
    mu_location_mask valid;
    bool undefined, zero;
} seen;

static seen segment_at(muster_buffer *buffer, uint64_t at) {
    mu_coherence *table = &buffer->coherence;
    mu_coherence_lock(table);
    const mu_segment *segment = mu_coherence_find(table, at);
    seen result = {segment->high, segment->valid, segment->undefined, segment->zero};
    mu_coherence_unlock(table);
    return result;
}

static location_state state_at(muster_buffer *buffer, uint64_t at, int location) {
    seen segment = segment_at(buffer, at);
    mu_location_mask bit = location == HOST ? MU_LOCATION_HOST : MU_LOCATION_DEVICE(location);
    if (segment.undefined) return segment.valid ? INVALID : UNDEFINED; /* INVALID: the table contradicts itself */
    return !(segment.valid & bit) ? INVALID : segment.valid == bit ? MODIFIED : SHARED;
}

/* The states on the host, device 0 and device 1. */
static void states_are(muster_buffer *buffer, uint64_t at, location_state host, location_state first,
                       location_state second) {
    assert_int_equal(state_at(buffer, at, HOST), host);
    assert_int_equal(state_at(buffer, at, 0), first);
    assert_int_equal(state_at(buffer, at, 1), second);
}

static void is_undefined(muster_buffer *buffer, uint64_t offset, uint64_t bytes) {
    void *pointer;
    for (uint64_t at = offset; at < offset + bytes; at = segment_at(buffer, at).high)
        states_are(buffer, at, UNDEFINED, UNDEFINED, UNDEFINED);
    FAILS(MUSTER_DATA_UNDEFINED, "undefined",
          muster_buffer_acquire(buffer, offset, bytes, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    FAILS(MUSTER_DATA_UNDEFINED, "undefined",
          muster_buffer_acquire(buffer, offset, bytes, MUSTER_READ_WRITE, fixture_wait_ns, &pointer, &reported));
}

/* ------------------------------------------------------------------------------------------------------------- jobs -- */

/* word = word + term over a range, on one device. */
static muster_job add_term(const fixture *fixture, muster_graph *graph, muster_buffer *buffer, uint64_t offset,
                           uint64_t bytes, uint32_t term, int device) {
    uint32_t words = (uint32_t)(bytes / 4);
    muster_dispatch dispatch = fixture_dispatch(fixture_kernel(fixture, "affine"), (words + 255) / 256, 256,
                                                ARGS(muster_range_arg(buffer, MUSTER_READ_WRITE, offset, bytes),
                                                     muster_u32_arg(1), muster_u32_arg(term), muster_u32_arg(words)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    return fixture_add(graph, &dispatch);
}

/* Reads a range of one buffer and counts as a writer of another, on one device; changes neither. */
static muster_job add_reader(const fixture *fixture, muster_graph *graph, muster_buffer *in, uint64_t offset,
                             uint64_t bytes, muster_buffer *out, int device) {
    muster_dispatch dispatch = fixture_dispatch(
        fixture_kernel(fixture, "nothing"), 1, 1,
        ARGS(muster_range_arg(in, MUSTER_READ, offset, bytes), muster_buffer_arg(out, MUSTER_READ_WRITE)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    return fixture_add(graph, &dispatch);
}

static void ends_as(muster_run *run, muster_status wanted, uint32_t jobs) {
    assert_int_equal(muster_run_wait(run, fixture_wait_ns, NULL), wanted);
    for (muster_job job = 0; job < jobs; job++) assert_int_equal(fixture_result(run, job).status, wanted);
    OK(muster_run_cancel(run, &reported)); /* it has ended and stays as it is */
    assert_int_equal(muster_run_wait(run, 0, NULL), wanted);
}

/* The run is gone, and its buffers (of 400 bytes and more) are as usable as before: overwriting defines them, and jobs run. */
static void goes_on(const fixture *fixture, muster_buffer *buffer) {
    uint64_t bytes = muster_buffer_bytes(buffer);
    muster_graph *graph = fixture_graph(fixture);
    OK(muster_graph_fill(graph, buffer, 0, bytes, 3, 4, NULL, &reported));
    add_term(fixture, graph, buffer, 0, 400, 4, 0);
    fixture_run(fixture, graph);
    assert_int_equal(fixture_word(buffer, 99), 7);
    assert_int_equal(fixture_word(buffer, bytes / 4 - 1), bytes == 400 ? 7 : 3);
}

static uint64_t counter(const atomic_uint_fast64_t *value) { return atomic_load_explicit(value, memory_order_relaxed); }

static const mu_device_counters *counters(const fixture *fixture, int device) {
    return mu_device_counters_mutable(fixture->runtime->actors[device].device);
}

/* Returns when every job of the run is on its stream, or has ended without. */
static void until_enqueued(const muster_run *run) {
    while (atomic_load_explicit(&run->unenqueued, memory_order_acquire)) sched_yield();
}

/* Returns when the worker of a device has put something on the dispatch stream, or held a job back; whether it was the first. */
static bool is_enqueued(const fixture *fixture, int device, uint64_t held_before) {
    for (;; sched_yield()) {
        if (counter(&counters(fixture, device)->jobs_held) > held_before) return false;
        if (mu_timeline_closed(&fixture->runtime->actors[device].timeline) >
            mu_timeline_done(&fixture->runtime->actors[device].timeline))
            return true;
    }
}

/* ------------------------------------------------------------------------------------------------------------ stages -- */

static void before_its_turn(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *lent = fixture_buffer(&fixture, 400, NULL), *other = fixture_buffer(&fixture, 400, NULL);
    void *pointer;
    OK(muster_buffer_acquire(lent, 0, 0, MUSTER_READ, 0, &pointer, &reported));
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < 6; i++) add_term(&fixture, graph, i % 3 ? lent : other, 0, 400, 1, i % 2);
    muster_run *run = fixture_submit(&fixture, graph);
    OK(muster_run_cancel(run, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 0, &reported));
    states_are(other, 0, INVALID, INVALID, INVALID); /* zeros, and untouched before its turn */
    assert_true(segment_at(other, 0).zero);
    OK(muster_buffer_release(lent, pointer, &reported));
    ends_as(run, MUSTER_CANCELLED, 6);
    is_undefined(lent, 0, 400);
    is_undefined(other, 0, 400);
    goes_on(&fixture, lent);
    goes_on(&fixture, other);
    fixture_close(&fixture);
}

typedef struct gate {
    mu_call call;
    sem_t entered, open;
} gate;

static void stand_in_gate(mu_actor *actor, mu_call *call) {
    (void)actor;
    gate *self = (gate *)call;
    sem_post(&self->entered);
    sem_wait(&self->open);
}

/* In the worker's mailbox: placed and posted, but not looked at. */
static void when_it_is_placed(void **state) {
    (void)state;
    static gate gate;
    fixture fixture;
    fixture_open(&fixture, 1);
    gate.call.run = stand_in_gate;
    sem_init(&gate.entered, 0, 0);
    sem_init(&gate.open, 0, 0);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < 3; i++) add_term(&fixture, graph, buffer, 0, 400, 1, 0);
    mu_actor_post_call(&fixture.runtime->actors[0], &gate.call);
    sem_wait(&gate.entered);
    muster_run *run = fixture_submit(&fixture, graph);
    assert_true(mu_mailbox_has_mail(&fixture.runtime->actors[0].mailbox));
    OK(muster_run_cancel(run, &reported));
    sem_post(&gate.open);
    ends_as(run, MUSTER_CANCELLED, 3);
    is_undefined(buffer, 0, 400);
    goes_on(&fixture, buffer);
    fixture_close(&fixture);
}

static void while_it_waits_for_memory(void **state) {
    (void)state;
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 64 * MIB};
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *first = fixture_buffer(&fixture, 40 * MIB, NULL), *second = fixture_buffer(&fixture, 40 * MIB, NULL);
    muster_graph *graph[2] = {fixture_graph(&fixture), fixture_graph(&fixture)};
    OK(muster_graph_fill(graph[0], first, 0, 40 * MIB, 1, 4, NULL, &reported));
    OK(muster_graph_fill(graph[1], second, 0, 40 * MIB, 2, 4, NULL, &reported));
    fixture_hold(&fixture, 0, true);
    muster_run *holder = fixture_submit(&fixture, graph[0]), *run = fixture_submit(&fixture, graph[1]);
    while (counter(&counters(&fixture, 0)->admission_waits) == 0) sched_yield();
    OK(muster_run_cancel(run, &reported));
    /* It leaves the queue of those that wait, though no memory has come. */
    until_enqueued(run);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(holder, 0, &reported));
    fixture_hold(&fixture, 0, false);
    ends_as(run, MUSTER_CANCELLED, 1);
    ends_as(holder, MUSTER_OK, 1);
    is_undefined(second, 0, 40 * MIB);
    assert_int_equal(fixture_word(first, 5), 1);
    goes_on(&fixture, second);
    fixture_close(&fixture);
}

/* Its input takes longer than others should wait for, so the job is held in the worker meanwhile. */
static void while_its_input_arrives(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    uint32_t *host = calloc(48 * MIB, 1);
    assert_non_null(host);
    host[77] = 5;
    muster_buffer *in = fixture_buffer(&fixture, 48 * MIB, host), *out = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    add_reader(&fixture, graph, in, 0, 48 * MIB, out, 0);
    fixture_hold(&fixture, 0, true);
    uint64_t held = counter(&counters(&fixture, 0)->jobs_held);
    muster_run *run = fixture_submit(&fixture, graph);
    while (counter(&counters(&fixture, 0)->arrivals) == 0 && counter(&counters(&fixture, 0)->jobs_held) == held)
        sched_yield();
    OK(muster_run_cancel(run, &reported));
    fixture_hold(&fixture, 0, false);
    ends_as(run, MUSTER_CANCELLED, 1);
    is_undefined(out, 0, 400);
    /* What was only read is what it was, wherever it has come to. */
    assert_false(segment_at(in, 0).undefined);
    assert_int_not_equal(state_at(in, 77 * 4, HOST), INVALID);
    assert_int_equal(fixture_word(in, 77), 5);
    goes_on(&fixture, out);
    add_term(&fixture, graph = fixture_graph(&fixture), in, 0, 4096, 1, 0);
    fixture_run(&fixture, graph);
    assert_int_equal(fixture_word(in, 77), 6);
    fixture_close(&fixture);
    free(host);
}

/* One job is on device 0, one on device 1 depends on it, and a third depends on both. */
static void between_two_devices(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 1024, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    add_term(&fixture, graph, buffer, 0, 512, 1, 0);
    muster_job second = add_term(&fixture, graph, buffer, 512, 512, 2, 1);
    OK(muster_graph_after(graph, second, 0, &reported));
    muster_job third = add_term(&fixture, graph, buffer, 512, 256, 4, 0);
    fixture_hold_all(&fixture, true);
    uint64_t held = counter(&counters(&fixture, 1)->jobs_held);
    muster_run *run = fixture_submit(&fixture, graph);
    bool handed_over = is_enqueued(&fixture, 1, held);
    OK(muster_run_cancel(run, &reported));
    fixture_hold_all(&fixture, false);
    muster_error error = {0};
    muster_run_wait(run, fixture_wait_ns, &error);
    assert_int_equal(fixture_result(run, 0).status, MUSTER_OK); /* it was on the device */
    assert_int_equal(fixture_word(buffer, 0), 1);
    if (handed_over) {
        assert_int_equal(fixture_result(run, second).status, MUSTER_OK);
    } else {
        assert_int_equal(error.status, MUSTER_CANCELLED);
        assert_int_equal(error.job, second);
        assert_int_equal(fixture_result(run, second).status, MUSTER_CANCELLED);
        assert_int_equal(fixture_result(run, third).status, MUSTER_CANCELLED);
        is_undefined(buffer, 512, 512);
        states_are(buffer, 0, SHARED, SHARED, INVALID); /* read back above */
    }
    goes_on(&fixture, buffer);
    fixture_close(&fixture);
}

static void when_it_is_enqueued(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < 3; i++) add_term(&fixture, graph, buffer, 0, 400, 1, 0);
    fixture_run(&fixture, graph);
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, graph);
    until_enqueued(run);
    OK(muster_run_cancel(run, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 0, &reported));
    fixture_hold(&fixture, 0, false);
    ends_as(run, MUSTER_OK, 3); /* to its end, which is success */
    states_are(buffer, 0, INVALID, MODIFIED, INVALID);
    assert_int_equal(fixture_word(buffer, 99), 6);
    fixture_close(&fixture);
}

static void when_it_has_ended(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    add_term(&fixture, graph, buffer, 0, 400, 1, 0);
    muster_run *run = fixture_submit(&fixture, graph), *empty = fixture_submit(&fixture, fixture_graph(&fixture));
    OK(muster_run_cancel(empty, &reported));
    ends_as(empty, MUSTER_OK, 0);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    OK(muster_run_cancel(run, &reported));
    ends_as(run, MUSTER_OK, 1);
    fixture_run(&fixture, graph); /* the graph is not cancelled */
    assert_int_equal(fixture_word(buffer, 0), 2);
    fixture_close(&fixture);
}

/* -------------------------------------------------------------------------------------- the four states after cancel -- */

/* Five ranges, each with another history; of each, the run would have written the first quarter and read the second; the third
 * is its neighbour, and the last is for what comes after. */
enum { RANGE = 4096, QUARTER = RANGE / 4, RANGES = 5, WORDS = RANGES * RANGE / 4 };
enum { ON_HOST, SHARED_BY_TWO, ON_DEVICE, SHARED_BY_DEVICES, NEVER_WRITTEN };

typedef struct histories {
    fixture fixture;
    muster_buffer *buffer[RANGES], *scratch;
    uint32_t model[RANGES][RANGE / 4];
} histories;

static void make_histories(histories *h) {
    fixture_open(&h->fixture, 2);
    h->scratch = fixture_buffer(&h->fixture, 64, NULL);
    muster_graph *graph = fixture_graph(&h->fixture);
    for (int r = 0; r < RANGES; r++) {
        h->buffer[r] = fixture_buffer(&h->fixture, RANGE, NULL);
        memset(h->model[r], 0, RANGE);
        if (r == NEVER_WRITTEN) continue;
        for (uint32_t w = 0; w < RANGE / 4; w++) h->model[r][w] = 100 * (uint32_t)r + w;
        fixture_write(h->buffer[r], 0, RANGE, h->model[r]);
    }
    add_reader(&h->fixture, graph, h->buffer[SHARED_BY_TWO], 0, RANGE, h->scratch, 0);
    add_term(&h->fixture, graph, h->buffer[ON_DEVICE], 0, RANGE, 1, 1);
    add_term(&h->fixture, graph, h->buffer[SHARED_BY_DEVICES], 0, RANGE, 1, 0);
    add_reader(&h->fixture, graph, h->buffer[SHARED_BY_DEVICES], 0, RANGE, h->scratch, 1);
    fixture_run(&h->fixture, graph);
    for (uint32_t w = 0; w < RANGE / 4; w++) h->model[ON_DEVICE][w]++, h->model[SHARED_BY_DEVICES][w]++;
}

static void states_are_as_made(histories *h, uint64_t at) {
    states_are(h->buffer[ON_HOST], at, MODIFIED, INVALID, INVALID);
    states_are(h->buffer[SHARED_BY_TWO], at, SHARED, SHARED, INVALID);
    states_are(h->buffer[ON_DEVICE], at, INVALID, INVALID, MODIFIED);
    states_are(h->buffer[SHARED_BY_DEVICES], at, INVALID, SHARED, SHARED);
    states_are(h->buffer[NEVER_WRITTEN], at, INVALID, INVALID, INVALID);
    assert_true(segment_at(h->buffer[NEVER_WRITTEN], at).zero);
}

static void the_four_states_after_cancel(void **state) {
    (void)state;
    static histories h;
    make_histories(&h);
    for (uint64_t at = 0; at < RANGE; at += QUARTER) states_are_as_made(&h, at);

    muster_buffer *lent = fixture_buffer(&h.fixture, 400, NULL);
    void *pointer;
    OK(muster_buffer_acquire(lent, 0, 0, MUSTER_READ, 0, &pointer, &reported));
    muster_graph *graph = fixture_graph(&h.fixture);
    add_term(&h.fixture, graph, lent, 0, 400, 1, 0);
    for (int r = 0; r < RANGES; r++) {
        add_term(&h.fixture, graph, h.buffer[r], 0, QUARTER, 7, r % 2);
        add_reader(&h.fixture, graph, h.buffer[r], QUARTER, QUARTER, h.scratch, (r + 1) % 2);
    }
    muster_run *run = fixture_submit(&h.fixture, graph);
    OK(muster_run_cancel(run, &reported));
    OK(muster_buffer_release(lent, pointer, &reported));
    ends_as(run, MUSTER_CANCELLED, 2 * RANGES + 1);

    /* In the table: undefined where it would have written, in all locations; as before everywhere else. */
    for (int r = 0; r < RANGES; r++) {
        states_are(h.buffer[r], 0, UNDEFINED, UNDEFINED, UNDEFINED);
        assert_int_equal(segment_at(h.buffer[r], 0).high, QUARTER);
    }
    for (uint64_t at = QUARTER; at < RANGE; at += QUARTER) states_are_as_made(&h, at);

    /* And to the application, which gets the content wherever there is one. */
    for (int r = 0; r < RANGES; r++) {
        uint32_t words[RANGE / 4];
        is_undefined(h.buffer[r], 0, QUARTER);
        FAILS(MUSTER_DATA_UNDEFINED, "bytes 0 to 1024",
              muster_buffer_acquire(h.buffer[r], QUARTER - 4, 8, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
        fixture_read(h.buffer[r], QUARTER, 2 * QUARTER, words);
        assert_memory_equal(words, h.model[r] + QUARTER / 4, 2 * QUARTER);
        for (uint64_t at = QUARTER; at < 3 * QUARTER; at += QUARTER) /* read back, so it is shared with the host now */
            assert_int_equal(state_at(h.buffer[r], at, HOST), r == ON_HOST || r == NEVER_WRITTEN ? MODIFIED : SHARED);
    }
    fixture_close(&h.fixture);
}

/* From undefined to each of the other states: by the host, by a device, and in parts. */
static void undefined_ranges_come_back(void **state) {
    (void)state;
    static histories h;
    make_histories(&h);
    muster_buffer *lent = fixture_buffer(&h.fixture, 400, NULL);
    void *pointer;
    OK(muster_buffer_acquire(lent, 0, 0, MUSTER_READ, 0, &pointer, &reported));
    muster_graph *graph = fixture_graph(&h.fixture);
    add_term(&h.fixture, graph, lent, 0, 400, 1, 0);
    for (int r = 0; r < RANGES; r++) add_term(&h.fixture, graph, h.buffer[r], 0, RANGE, 7, r % 2);
    muster_run *run = fixture_submit(&h.fixture, graph);
    OK(muster_run_set_deadline(run, 0, &reported));
    OK(muster_buffer_release(lent, pointer, &reported));
    ends_as(run, MUSTER_DEADLINE_PASSED, RANGES + 1);
    for (int r = 0; r < RANGES; r++) {
        muster_buffer *buffer = h.buffer[r];
        uint32_t words[QUARTER / 4];
        is_undefined(buffer, 0, RANGE);
        for (uint32_t w = 0; w < QUARTER / 4; w++) words[w] = 1000 + w;
        fixture_write(buffer, 0, QUARTER, words);
        states_are(buffer, 0, MODIFIED, INVALID, INVALID);
        graph = fixture_graph(&h.fixture);
        OK(muster_graph_fill(graph, buffer, QUARTER, QUARTER, 9, 4, NULL, &reported)); /* on any device */
        add_term(&h.fixture, graph, buffer, QUARTER, QUARTER, 1, 1);
        add_term(&h.fixture, graph, buffer, 0, QUARTER, 1, 0);
        fixture_run(&h.fixture, graph);
        states_are(buffer, 0, INVALID, MODIFIED, INVALID);
        states_are(buffer, QUARTER, INVALID, INVALID, MODIFIED);
        assert_int_equal(fixture_word(buffer, 1), 1002);
        assert_int_equal(fixture_word(buffer, QUARTER / 4), 10);
        /* A reader of the rest fails with the cause, and so does what it would have written. */
        graph = fixture_graph(&h.fixture);
        add_reader(&h.fixture, graph, buffer, QUARTER, RANGE - QUARTER, h.scratch, 0);
        run = fixture_submit(&h.fixture, graph);
        ends_as(run, MUSTER_DATA_UNDEFINED, 1);
        is_undefined(h.scratch, 0, 64);
        fixture_write(h.scratch, 0, 64, words);
        is_undefined(buffer, 2 * QUARTER, 2 * QUARTER);
        states_are(buffer, QUARTER, SHARED, INVALID, SHARED); /* its word was read back above */
    }
    fixture_close(&h.fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_its_turn),
        cmocka_unit_test(when_it_is_placed),
        cmocka_unit_test(while_it_waits_for_memory),
        cmocka_unit_test(while_its_input_arrives),
        cmocka_unit_test(between_two_devices),
        cmocka_unit_test(when_it_is_enqueued),
        cmocka_unit_test(when_it_has_ended),
        cmocka_unit_test(the_four_states_after_cancel),
        cmocka_unit_test(undefined_ranges_come_back),
    };
    return cmocka_run_group_tests_name("cancelling", tests, NULL, NULL);
}
