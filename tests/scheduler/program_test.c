/* Programs and kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/sim/sim.h"
#include "tests/scheduler/fixture.h"

#define HEADER ".version 7.0\n.target sm_75\n.address_size 64\n"
#define EMPTY_ENTRY(name) ".visible .entry " name "()\n{\n    ret;\n}\n"

static void open_bare(fixture *fixture) { fixture_open(fixture, 2); }

static void bad_ptx_gives_the_log(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture);
    muster_program *program = (muster_program *)&fixture;
    const char *ptx = HEADER ".visible .entry broken()\n{\n    frobnicate.u32 %r1, 7;\n    ret;\n}\n";
    FAILS(MUSTER_PROGRAM_INVALID, "broken program|frobnicate",
          muster_program_from_ptx(fixture.runtime, ptx, 0, "broken program", &program, &reported));
    FAILS(MUSTER_PROGRAM_INVALID, "6", muster_program_from_ptx(fixture.runtime, ptx, 0, NULL, &program, &reported));
    assert_ptr_equal(program, &fixture);
    fixture_close(&fixture);
}

static void text_that_is_no_program_is_refused(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture);
    muster_program *program;
    FAILS(MUSTER_PROGRAM_INVALID, "", muster_program_from_ptx(fixture.runtime, "hello", 0, "x", &program, &reported));
    assert_int_equal(muster_program_from_ptx(fixture.runtime, "", 0, "x", &program, NULL) == MUSTER_OK, 0);
    char *noise = malloc(70000);
    for (int i = 0; i < 70000; i++) noise[i] = (char)(i * 131 + 7);
    assert_int_equal(muster_program_from_ptx(fixture.runtime, noise, 70000, "x", &program, NULL) == MUSTER_OK, 0);
    free(noise);
    fixture_close(&fixture);
}

static void a_missing_entry_lists_those_there_are(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture);
    muster_program *program;
    muster_kernel *kernel = (muster_kernel *)&fixture;
    OK(muster_program_from_ptx(fixture.runtime, HEADER EMPTY_ENTRY("alpha") EMPTY_ENTRY("beta"), 0, "greek", &program,
                               &reported));
    FAILS(MUSTER_ENTRY_NOT_FOUND, "gamma|alpha|beta", muster_program_kernel(program, "gamma", &kernel, &reported));
    FAILS(MUSTER_ENTRY_NOT_FOUND, "alpha", muster_program_kernel(program, "", &kernel, &reported));
    assert_ptr_equal(kernel, &fixture);
    fixture_close(&fixture);
}

static void asking_twice_gives_the_same_kernel(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture);
    assert_ptr_equal(fixture_kernel(&fixture, "mix"), fixture_kernel(&fixture, "mix"));
    assert_ptr_not_equal(fixture_kernel(&fixture, "mix"), fixture_kernel(&fixture, "mix32"));
    fixture_close(&fixture);
}

static void the_same_text_twice_makes_two_programs(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture);
    muster_program *again;
    muster_kernel *kernel;
    OK(muster_program_from_ptx(fixture.runtime, test_kernels_ptx, 0, "again", &again, &reported));
    assert_ptr_not_equal(again, fixture.program);
    OK(muster_program_kernel(again, "affine", &kernel, &reported));
    muster_program_destroy(fixture.program); /* the second does not need it */
    muster_buffer *buffer = fixture_buffer(&fixture, 4, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch dispatch = fixture_dispatch(
        kernel, 1, 1,
        ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(2), muster_u32_arg(3), muster_u32_arg(1)));
    fixture_add(graph, &dispatch);
    fixture_run(&fixture, graph);
    assert_int_equal(fixture_word(buffer, 0), 3);
    fixture_close(&fixture);
}

/* `bytes` says where the text ends; what follows it in memory does not matter. */
static void text_with_a_length_needs_no_terminator(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture);
    const char *ptx = HEADER EMPTY_ENTRY("alone");
    size_t bytes = strlen(ptx);
    char *exact = malloc(bytes); /* a read beyond it is a finding under AddressSanitizer */
    assert_non_null(exact);
    memcpy(exact, ptx, bytes);
    muster_program *program;
    muster_kernel *kernel;
    OK(muster_program_from_ptx(fixture.runtime, exact, bytes, NULL, &program, &reported));
    memset(exact, '?', bytes); /* it was copied */
    free(exact);
    OK(muster_program_kernel(program, "alone", &kernel, &reported));
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch dispatch = fixture_dispatch(kernel, 1, 1, (fixture_args){NULL, 0});
    fixture_add(graph, &dispatch);
    fixture_run(&fixture, graph);
    fixture_close(&fixture);
}

static void graphs_and_runs_keep_their_programs(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, 256, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 1, 9);
    muster_program_destroy(fixture.program);
    fixture_hold_all(&fixture, true);
    muster_run *run = fixture_submit(&fixture, graph);
    muster_graph_destroy(graph);
    fixture_hold_all(&fixture, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_word(buffer, 63), 9);
    fixture_close(&fixture);
}

static void programs_work_on_every_device(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 8);
    muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    uint32_t expected = 0;
    for (int device = 0; device < 8; device++) {
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "affine"), 1, 16,
                             ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(3),
                                  muster_u32_arg((uint32_t)device), muster_u32_arg(16)));
        dispatch.pin_device = 1;
        dispatch.device = device;
        fixture_add(graph, &dispatch);
        expected = 3 * expected + (uint32_t)device;
    }
    muster_run *run = fixture_submit(&fixture, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    for (int device = 0; device < 8; device++) assert_int_equal(fixture_result(run, (muster_job)device).device, device);
    assert_int_equal(fixture_word(buffer, 15), expected);
    fixture_close(&fixture);
}

/* A program made while a device is busy waits for it (loading stalls a device), and is then usable. */
static void many_programs_come_and_go(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture);
    for (int i = 0; i < 30; i++) {
        char ptx[512];
        snprintf(ptx, sizeof ptx, HEADER ".visible .entry k%d()\n{\n    ret;\n}\n", i % 7);
        muster_program *program;
        muster_kernel *kernel;
        OK(muster_program_from_ptx(fixture.runtime, ptx, 0, "small", &program, &reported));
        char name[16];
        snprintf(name, sizeof name, "k%d", i % 7);
        OK(muster_program_kernel(program, name, &kernel, &reported));
        muster_graph *graph = fixture_graph(&fixture);
        muster_dispatch dispatch = fixture_dispatch(kernel, 2, 32, (fixture_args){NULL, 0});
        fixture_add(graph, &dispatch);
        muster_run *run = fixture_submit(&fixture, graph);
        muster_program_destroy(program);
        muster_graph_destroy(graph);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        muster_run_destroy(run);
    }
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_ptx_gives_the_log),
        cmocka_unit_test(text_that_is_no_program_is_refused),
        cmocka_unit_test(a_missing_entry_lists_those_there_are),
        cmocka_unit_test(asking_twice_gives_the_same_kernel),
        cmocka_unit_test(the_same_text_twice_makes_two_programs),
        cmocka_unit_test(text_with_a_length_needs_no_terminator),
        cmocka_unit_test(graphs_and_runs_keep_their_programs),
        cmocka_unit_test(programs_work_on_every_device),
        cmocka_unit_test(many_programs_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
