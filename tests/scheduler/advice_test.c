/* What refusals advise: something that is possible for the kind of job, and the argument that is the cause. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/fixture.h"

enum { MIB = 1 << 20 };

static void open_small(fixture *fixture, uint32_t devices) {
    fixture_open_with(fixture, devices,
                      &(muster_config){.struct_size = sizeof(muster_config), .budget_bytes = 64 * MIB});
}

static muster_dispatch nothing(const fixture *fixture, muster_arg args[2], muster_arg first, muster_arg second) {
    args[0] = first, args[1] = second;
    return fixture_dispatch(fixture_kernel(fixture, "nothing"), 8, 1, (fixture_args){.arg = args, .count = 2});
}

/* ---------------------------------------------------------------------------------------------------- NEVER_FITS -- */

static muster_status never_called(void *user, const muster_enqueue_context *context, muster_error *error) {
    (void)user, (void)context, (void)error;
    fail();
    return MUSTER_OK;
}

static void check_never_fits(const fixture *fixture, muster_graph *graph, const char *words, const char *unwanted) {
    muster_run *run = fixture_submit(fixture, graph);
    FAILS(MUSTER_NEVER_FITS, words, muster_run_wait(run, fixture_wait_ns, &reported));
    if (strstr(reported.message, unwanted)) fail_msg("\"%s\" speaks of \"%s\"", reported.message, unwanted);
    assert_non_null(strstr(reported.message, "raise the budget"));
    muster_run_destroy(run);
    muster_graph_destroy(graph);
}

static void what_never_fits_gets_the_advice_of_its_kind(void **state) {
    (void)state;
    fixture f;
    open_small(&f, 1);
    muster_buffer *a = fixture_buffer(&f, 80 * MIB, NULL), *b = fixture_buffer(&f, 80 * MIB, NULL);
    muster_graph *graph = fixture_graph(&f);
    OK(muster_graph_fill(graph, b, 0, 80 * MIB, 1, 4, NULL, &reported));
    check_never_fits(&f, graph, "the fill requires 83886080|fills of fewer bytes", "shard");
    graph = fixture_graph(&f);
    OK(muster_graph_copy(graph, b, 0, a, 0, 80 * MIB, NULL, &reported));
    check_never_fits(&f, graph, "the copy requires 167772160|copies of fewer bytes", "shard");
    graph = fixture_graph(&f);
    OK(muster_graph_prefetch(graph, a, 0, 0, 0, NULL, &reported));
    check_never_fits(&f, graph, "the prefetch requires 83886080|prefetch a smaller range", "shard");
    graph = fixture_graph(&f);
    const muster_arg whole = muster_buffer_arg(b, MUSTER_WRITE);
    muster_enqueue_job enqueue = {
        .struct_size = sizeof enqueue, .enqueue = never_called, .arg_count = 1, .args = &whole};
    OK(muster_graph_enqueue(graph, &enqueue, NULL, &reported));
    check_never_fits(&f, graph, "the enqueue job requires 83886080|several jobs", "shard");

    graph = fixture_graph(&f);
    muster_arg args[2];
    muster_dispatch dispatch =
        nothing(&f, args, muster_buffer_arg(a, MUSTER_READ), muster_range_arg(b, MUSTER_WRITE, 0, 4));
    fixture_add(graph, &dispatch);
    check_never_fits(&f, graph, "the dispatch requires|shard the dispatch", "scratch");
    graph = fixture_graph(&f);
    args[1] = muster_scratch_arg(20 * MIB);
    fixture_add(graph, &dispatch);
    check_never_fits(&f, graph, "104857600 bytes at once, 20971520 of them scratch", "copies");
    graph = fixture_graph(&f);
    args[1] = muster_range_arg(a, MUSTER_READ, 0, 4);
    dispatch.flags = MUSTER_DISPATCH_COOPERATIVE;
    fixture_add(graph, &dispatch);
    check_never_fits(&f, graph, "the dispatch requires|shrink its buffers", "shard the");
    graph = fixture_graph(&f);
    args[0] = muster_block_cut(args[0], 10 * MIB);
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    dispatch.max_shards = 1;
    fixture_add(graph, &dispatch);
    check_never_fits(&f, graph, "a shard of the dispatch requires|more shards|max_shards", "shard the");
    fixture_close(&f);
}

/* ------------------------------------------------------------------------------------------------------ UNCUTTABLE -- */

static void what_cannot_be_cut_names_the_argument(void **state) {
    (void)state;
    fixture f;
    open_small(&f, 2);
    muster_buffer *large = fixture_buffer(&f, 800 * MIB, NULL), *small = fixture_buffer(&f, 64, NULL);
    const muster_arg light = muster_block_cut(muster_buffer_arg(small, MUSTER_READ), 8);
    const muster_arg whole = muster_buffer_arg(large, MUSTER_READ);
    const struct {
        muster_arg heavy;
        const char *words;
    } cases[] = {
        {whole, "838860800 of them are argument 1|replicated|cut it"},
        {muster_reduce_arg(large, MUSTER_U32, MUSTER_REDUCE_MIN), "838860800|argument 1|reduced|smaller range"},
        {muster_scratch_arg(70 * MIB), "73400320|argument 1|scratch|shrink it"},
        {muster_halo_cut(whole, 10 * MIB, 3, 3), "8 slices|73400320 of them are argument 1|halo of 3|3 after"},
        {muster_halo_cut(whole, 10 * MIB, UINT32_MAX, 0), "41943040|halo of 4294967295 slices before and 0"},
        {muster_halo_cut(whole, 70 * MIB, 0, 1), "146800640|argument 1|its slice"},
        {muster_block_cut(whole, 70 * MIB), "73400320 of them are argument 1, its slice: make slices smaller|along x"},
        {muster_pitch_cut(whole, MIB, 20 * MIB, 40), "818937856|argument 1|between its 40 rows|another axis"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        muster_graph *graph = fixture_graph(&f);
        muster_arg args[2];
        muster_dispatch dispatch = nothing(&f, args, light, cases[i].heavy);
        dispatch.flags = MUSTER_DISPATCH_SHARDED;
        /* The second halo alone fits; not beside scratch memory. */
        if (i == 4) args[0] = muster_scratch_arg(30 * MIB);
        FAILS(MUSTER_UNCUTTABLE, cases[i].words, muster_graph_dispatch(graph, &dispatch, NULL, &reported));
        assert_non_null(strstr(reported.message, "raise the budget"));
        muster_graph_destroy(graph);
    }
    fixture_close(&f);
}

/* -------------------------------------------------------------------------------------------------- DATA_UNDEFINED -- */

static muster_status do_nothing(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)user, (void)pointers, (void)count, (void)error;
    return MUSTER_OK;
}

static void check_undefined(const fixture *fixture, muster_graph *graph, const char *words) {
    muster_run *run = fixture_submit(fixture, graph);
    FAILS(MUSTER_DATA_UNDEFINED, words, muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    muster_graph_destroy(graph);
}

static void undefined_data_names_the_argument(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_planned_spec(1, FIXTURE_FAIL_LAUNCH(0, 1), spec);
    fixture f;
    fixture_open_with(&f, 1, &(muster_config){.struct_size = sizeof(muster_config), .sim = spec});
    muster_buffer *bad = fixture_buffer(&f, 400, NULL), *good = fixture_buffer(&f, 400, NULL);
    muster_graph *graph = fixture_graph(&f);
    muster_arg args[2];
    muster_dispatch dispatch =
        nothing(&f, args, muster_buffer_arg(good, MUSTER_READ), muster_range_arg(bad, MUSTER_WRITE, 100, 200));
    fixture_add(graph, &dispatch);
    muster_run *run = fixture_submit(&f, graph);
    FAILS(MUSTER_LAUNCH_FAILED, "", muster_run_wait(run, fixture_wait_ns, &reported));

    graph = fixture_graph(&f);
    args[1] = muster_buffer_arg(bad, MUSTER_READ);
    fixture_add(graph, &dispatch);
    check_undefined(&f, graph, "bytes 100 to 300 of the buffer of argument 1 are undefined");
    graph = fixture_graph(&f);
    args[0] = muster_scratch_arg(4), args[1] = muster_buffer_arg(bad, MUSTER_READ);
    fixture_add(graph, &dispatch);
    check_undefined(&f, graph, "buffer of argument 1 are");
    graph = fixture_graph(&f);
    args[0] = muster_halo_cut(muster_range_arg(bad, MUSTER_READ, 0, 80), 10, 1, 1);
    args[1] = muster_halo_cut(muster_range_arg(bad, MUSTER_READ, 80, 320), 40, 1, 1);
    dispatch.flags = MUSTER_DISPATCH_SHARDED, dispatch.max_shards = 4;
    fixture_add(graph, &dispatch);
    check_undefined(&f, graph, "buffer of argument 1 are");
    graph = fixture_graph(&f);
    OK(muster_graph_copy(graph, fixture_buffer(&f, 400, NULL), 0, bad, 0, 400, NULL, &reported));
    check_undefined(&f, graph, "buffer of the copy's source are");
    graph = fixture_graph(&f);
    OK(muster_graph_prefetch(graph, bad, 0, 0, 0, NULL, &reported));
    check_undefined(&f, graph, "the buffer of the prefetch are");
    graph = fixture_graph(&f);
    OK(muster_graph_read_back(graph, bad, 0, 0, NULL, &reported));
    check_undefined(&f, graph, "bytes 100 to 300 of the buffer are");
    graph = fixture_graph(&f);
    const muster_arg shown[3] = {muster_range_arg(good, MUSTER_READ, 0, 100),
                                 muster_range_arg(bad, MUSTER_READ, 0, 100),
                                 muster_range_arg(bad, MUSTER_READ, 100, 4)};
    muster_host_job host = {.struct_size = sizeof host, .run = do_nothing, .arg_count = 3, .args = shown};
    OK(muster_graph_host(graph, &host, NULL, &reported));
    check_undefined(&f, graph, "bytes 100 to 300 of the buffer of argument 2 are");
    void *pointer;
    FAILS(MUSTER_DATA_UNDEFINED, "bytes 100 to 300 of the buffer are",
          muster_buffer_acquire(bad, 0, 0, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    muster_run_destroy(run);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_never_fits_gets_the_advice_of_its_kind),
        cmocka_unit_test(what_cannot_be_cut_names_the_argument),
        cmocka_unit_test(undefined_data_names_the_argument),
    };
    return cmocka_run_group_tests_name("advice", tests, NULL, NULL);
}
