/* Every copy fails once, of each kind, until none does: a run ends as it should, no byte is silently wrong, what is undefined says
 * so, and everything works again afterwards. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/sim/sim.h"
#include "tests/scheduler/fixture.h"

enum { WORDS = 64 };

typedef struct machine {
    fixture fixture;
    uint32_t host[WORDS];
    muster_buffer *in, *middle, *out;
    muster_graph *graph;
} machine;

static void pin_to(muster_dispatch *dispatch, int device) {
    dispatch->pin_device = 1;
    dispatch->device = device;
}

/* in (host memory) += 1 on device 0, copied to middle there; middle * 3 + 2 on device 1; copied to out; out += 5 on device 0. */
static void build(machine *m) {
    m->in = fixture_buffer(&m->fixture, sizeof m->host, m->host);
    m->middle = fixture_buffer(&m->fixture, sizeof m->host, NULL);
    m->out = fixture_buffer(&m->fixture, sizeof m->host, NULL);
    m->graph = fixture_graph(&m->fixture);
    struct {
        muster_buffer *buffer;
        uint32_t factor, term;
        int device;
    } const steps[] = {{m->in, 1, 1, 0}, {m->middle, 3, 2, 1}, {m->out, 1, 5, 0}};
    for (int i = 0; i < 3; i++) {
        muster_dispatch dispatch = fixture_dispatch(
            fixture_kernel(&m->fixture, "affine"), 1, WORDS,
            ARGS(muster_buffer_arg(steps[i].buffer, MUSTER_READ_WRITE), muster_u32_arg(steps[i].factor),
                 muster_u32_arg(steps[i].term), muster_u32_arg(WORDS)));
        pin_to(&dispatch, steps[i].device);
        fixture_add(m->graph, &dispatch);
        if (i == 0) OK(muster_graph_copy(m->graph, m->middle, 0, m->in, 0, sizeof m->host, NULL, &reported));
        if (i == 1) OK(muster_graph_copy(m->graph, m->out, 0, m->middle, 0, sizeof m->host, NULL, &reported));
    }
}

static bool is_one_of(muster_status status, const muster_status *allowed, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (status == allowed[i]) return true;
    return false;
}

/* Reads a buffer: right, or not at all. Whether it could be read. */
static bool right_or_undefined(muster_buffer *buffer, uint32_t factor, uint32_t term) {
    static const muster_status allowed[] = {MUSTER_DATA_UNDEFINED, MUSTER_TRANSFER_FAILED};
    uint32_t *words;
    muster_status status =
        muster_buffer_acquire(buffer, 0, 4 * WORDS, MUSTER_READ, fixture_wait_ns, (void **)&words, &reported);
    if (status) {
        assert_true(is_one_of(status, allowed, 2));
        return false;
    }
    for (uint32_t i = 0; i < WORDS; i++)
        if (words[i] != i * factor + term) fail_msg("word %u is %u, not %u", i, words[i], i * factor + term);
    OK(muster_buffer_release(buffer, words, &reported));
    return true;
}

/* Sets the input to 0, 1, 2, ..., whatever it was. */
static void write_input(machine *m) {
    uint32_t *words;
    OK(muster_buffer_acquire(m->in, 0, sizeof m->host, MUSTER_WRITE, fixture_wait_ns, (void **)&words, &reported));
    for (uint32_t i = 0; i < WORDS; i++) words[i] = i;
    OK(muster_buffer_release(m->in, words, &reported));
}

/* False: the call was not made any more, so nothing failed. */
static bool one_copy_fails(const char *entry, uint32_t nth, uint32_t *failed_runs) {
    static const muster_status allowed[] = {MUSTER_TRANSFER_FAILED, MUSTER_PREDECESSOR_FAILED, MUSTER_DATA_UNDEFINED};
    char plan[200], spec[FIXTURE_SPEC_BYTES];
    machine m;
    memset(&m, 0, sizeof m);
    snprintf(plan, sizeof plan, "[{\"entry\": \"%s\", \"nth\": %u, \"code\": \"INVALID_VALUE\"}]", entry, nth);
    fixture_planned_spec(2, plan, spec);
    const muster_config config = {.struct_size = sizeof config, .driver = "sim", .sim = spec};
    muster_error error;
    muster_status status = muster_runtime_create(&config, &m.fixture.runtime, &error);
    if (status) { /* the checked copies at start */
        assert_true(status == MUSTER_DRIVER_ERROR || status == MUSTER_TRANSFER_FAILED);
        return true;
    }
    OK(muster_program_from_ptx(m.fixture.runtime, test_kernels_ptx, 0, "kernels", &m.fixture.program, &reported));
    build(&m);
    uint32_t failures = 0;
    for (int round = 0; round < 3; round++) {
        write_input(&m);
        muster_run *run = fixture_submit(&m.fixture, m.graph);
        status = muster_run_wait(run, fixture_wait_ns, &error);
        if (status) assert_true(is_one_of(status, allowed, 3));
        muster_run_destroy(run);
        *failed_runs += status != MUSTER_OK;
        failures += status != MUSTER_OK;
        muster_buffer *const buffers[] = {m.in, m.middle, m.out};
        const uint32_t factors[] = {1, 3, 3}, terms[] = {1, 3 + 2, 3 + 2 + 5};
        for (int i = 0; i < 3; i++) {
            if (right_or_undefined(buffers[i], factors[i], terms[i]) || status) continue;
            failures++; /* the copy to the host alone failed: the content is still there */
            assert_true(right_or_undefined(buffers[i], factors[i], terms[i]));
        }
    }
    assert_true(failures <= 1); /* everything else works as if nothing had been */
    bool reached = mu_sim_calls(fixture_driver(&m.fixture), entry) >= nth;
    fixture_close(&m.fixture);
    return reached;
}

static void every_copy_may_fail(const char *entry, uint32_t wanted, uint32_t wanted_failures) {
    uint32_t nth = 1, failed_runs = 0;
    while (one_copy_fails(entry, nth, &failed_runs)) nth++;
    /* Else the test has looked past the copies it means. */
    assert_true(nth > wanted);
    assert_true(failed_runs >= wanted_failures);
}

static void copies_to_a_device(void **state) {
    (void)state;
    every_copy_may_fail("memcpy_htod_async", 2, 1);
}
static void copies_to_the_host(void **state) {
    (void)state;
    every_copy_may_fail("memcpy_dtoh_async", 3, 0);
}
static void copies_between_devices(void **state) {
    (void)state;
    every_copy_may_fail("memcpy_peer_async", 2, 1);
}
static void copies_within_a_device(void **state) {
    (void)state;
    every_copy_may_fail("memcpy_dtod_async", 2, 1);
}
static void fills(void **state) {
    (void)state;
    every_copy_may_fail("memset_d8_async", 0, 0);
}

static uint64_t events_recorded(const fixture *fixture) {
    return mu_sim_calls(fixture_driver(fixture), "event_record");
}

/* A buffer whose content is on the device only is brought to the host, and given up at once; the device begins nothing until what
 * the fault plan makes fail may have been noticed. *before: events that were recorded until then. *failed: the run did. */
static void one_event_fails(const char *spec, uint64_t *before, bool *failed) {
    enum { BYTES = 256 << 10, LOOKS = 2000 };
    const muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture = {0};
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL), *other = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *fill = fixture_graph(&fixture), *home = fixture_graph(&fixture);
    OK(muster_graph_fill(fill, buffer, 0, BYTES, 7, 4, NULL, &reported));
    OK(muster_graph_fill(fill, other, 0, BYTES, 9, 4, NULL, &reported));
    OK(muster_graph_read_back(home, buffer, 0, 0, NULL, &reported));
    fixture_run(&fixture, fill);
    muster_graph_destroy(fill);
    *before = events_recorded(&fixture);
    fixture_hold(&fixture, 0, true);
    muster_run *run = fixture_submit(&fixture, home);
    muster_graph_destroy(home);
    muster_buffer_destroy(buffer);
    for (int i = 0; i < LOOKS && muster_run_wait(run, 0, &reported) == MUSTER_TIMEOUT; i++) sched_yield();
    fixture_hold(&fixture, 0, false);
    muster_status status = muster_run_wait(run, fixture_wait_ns, &reported);
    if (status == MUSTER_KERNEL_FAULT) fail_msg("%s: %s", spec, reported.message);
    *failed = status == MUSTER_DRIVER_ERROR || status == MUSTER_TRANSFER_FAILED;
    muster_run_destroy(run);
    assert_int_equal(fixture_word(other, BYTES / 4 - 1), 9); /* which comes home behind that copy */
    fixture_close(&fixture);
}

/* The copy goes on, and reads memory that must not be another's before it has ended. */
static void memory_stays_under_a_copy_whose_event_failed(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    uint64_t before, ignored;
    uint32_t failures = 0;
    bool failed;
    fixture_equal_spec(1, spec);
    one_event_fails(spec, &before, &failed);
    for (uint32_t seed = 0; seed < 16; seed++) { /* what of several things the device begins first differs by it */
        snprintf(spec, sizeof spec,
                 "{\"seed\": %u, \"devices\": 1, \"faults\": "
                 "[{\"entry\": \"event_record\", \"nth\": %llu, \"code\": \"INVALID_VALUE\"}]}",
                 seed, (unsigned long long)before + 1);
        one_event_fails(spec, &ignored, &failed);
        failures += failed;
    }
    assert_int_equal(failures, 16);
}

static muster_job add_read(const fixture *fixture, muster_graph *graph, muster_buffer *out, muster_buffer *in,
                           uint64_t bytes) {
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "mix32"), 1, WORDS,
                         ARGS(muster_buffer_arg(out, MUSTER_WRITE), muster_range_arg(in, MUSTER_READ, 0, bytes),
                              muster_u32_arg(1), muster_u32_arg(0), muster_u32_arg(WORDS)));
    return fixture_add(graph, &dispatch);
}

/* Two pieces of a buffer that is too large for a copy of the whole; a job needs them in one, and one of them cannot be moved there. */
static void content_that_cannot_be_moved_stays_where_it_is(void **state) {
    (void)state;
    enum { BYTES = 40 << 20, APART = 3 << 20, PIECE = 4096 };
    for (uint32_t nth = 1; nth <= 2; nth++) {
        char plan[200], spec[FIXTURE_SPEC_BYTES];
        snprintf(plan, sizeof plan, "[{\"entry\": \"memcpy_dtod_async\", \"nth\": %u, \"code\": \"INVALID_VALUE\"}]",
                 nth);
        fixture_planned_spec(1, plan, spec);
        const muster_config config = {.struct_size = sizeof config, .sim = spec};
        fixture fixture = {0};
        fixture_open_with(&fixture, 1, &config);
        muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL), *out = fixture_buffer(&fixture, 4 * WORDS, NULL);
        muster_graph *fill = fixture_graph(&fixture), *read = fixture_graph(&fixture);
        OK(muster_graph_fill(fill, buffer, 0, PIECE, 7, 4, NULL, &reported));
        OK(muster_graph_fill(fill, buffer, APART, PIECE, 9, 4, NULL, &reported));
        fixture_run(&fixture, fill);
        muster_job job = add_read(&fixture, read, out, buffer, APART + PIECE);
        muster_run *run = fixture_submit(&fixture, read);
        FAILS(MUSTER_TRANSFER_FAILED, "", muster_run_wait(run, fixture_wait_ns, &reported));
        assert_int_equal(reported.job, job);
        muster_run_destroy(run);
        assert_int_equal(fixture_word(buffer, 0), 7);
        assert_int_equal(fixture_word(buffer, APART / 4 + 1), 9);
        fixture_run(&fixture, read);
        fixture_run(&fixture, fill);
        assert_int_equal(fixture_word(buffer, PIECE / 4 - 1), 7);
        assert_int_equal(fixture_word(buffer, APART / 4), 9);
        fixture_close(&fixture);
    }
}

/* The same, and while the second piece is being refused the host asks for both: it gets them from where they are. */
static void content_that_cannot_be_moved_is_read_meanwhile(void **state) {
    (void)state;
    enum { BYTES = 40 << 20, APART = 3 << 20, PIECE = 4096 };
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(
        1,
        "[{\"entry\": \"memcpy_dtod_async\", \"nth\": 2, \"code\": \"INVALID_VALUE\"}, "
        "{\"kind\": \"delay\", \"entry\": \"memcpy_dtod_async\", \"nth\": 2, \"delay_ns\": 100000000}]",
        spec);
    const muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture fixture = {0};
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL), *out = fixture_buffer(&fixture, 4 * WORDS, NULL);
    muster_graph *fill = fixture_graph(&fixture), *read = fixture_graph(&fixture);
    OK(muster_graph_fill(fill, buffer, 0, PIECE, 7, 4, NULL, &reported));
    OK(muster_graph_fill(fill, buffer, APART, PIECE, 9, 4, NULL, &reported));
    fixture_run(&fixture, fill);
    add_read(&fixture, read, out, buffer, APART + PIECE);
    muster_run *run = fixture_submit(&fixture, read);
    while (mu_sim_calls(fixture_driver(&fixture), "memcpy_dtod_async") < 2) sched_yield();
    uint32_t *words;
    OK(muster_buffer_acquire(buffer, 0, 0, MUSTER_READ, fixture_wait_ns, (void **)&words, &reported));
    assert_int_equal(words[0], 7);
    assert_int_equal(words[APART / 4 + 1], 9);
    OK(muster_buffer_release(buffer, words, &reported));
    FAILS(MUSTER_TRANSFER_FAILED, "", muster_run_wait(run, fixture_wait_ns, &reported));
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_to_a_device),
        cmocka_unit_test(copies_to_the_host),
        cmocka_unit_test(copies_between_devices),
        cmocka_unit_test(copies_within_a_device),
        cmocka_unit_test(fills),
        cmocka_unit_test(memory_stays_under_a_copy_whose_event_failed),
        cmocka_unit_test(content_that_cannot_be_moved_stays_where_it_is),
        cmocka_unit_test(content_that_cannot_be_moved_is_read_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
