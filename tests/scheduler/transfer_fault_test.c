/* Every copy fails once, of each kind, until none does: a run ends as it should, no byte is silently wrong, what is undefined says
 * so, and everything works again afterwards. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_to_a_device),
        cmocka_unit_test(copies_to_the_host),
        cmocka_unit_test(copies_between_devices),
        cmocka_unit_test(copies_within_a_device),
        cmocka_unit_test(fills),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
