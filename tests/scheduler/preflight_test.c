/* Preflight: cheap asks nobody, full gives the run's own verdict, and the report carries the numbers. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "tests/scheduler/residency_fixture.h"

enum { MIB = 1 << 20 };
static const char *const nothing[] = {NULL};

static void check_report(const muster_preflight_report *report) {
    assert_int_equal(report->struct_size, sizeof *report);
    assert_int_equal(report->answer == MUSTER_ANSWER_NO, report->status != MUSTER_OK);
    assert_int_equal(report->answer == MUSTER_ANSWER_NO, report->message[0] != 0);
    assert_null(strpbrk(report->message, "\n"));
}

static muster_preflight_report ask(muster_graph *graph, muster_job job, int device, muster_preflight_depth depth) {
    muster_preflight_report report = {.struct_size = sizeof report};
    OK(muster_preflight(graph, job, device, depth, &report, &reported));
    check_report(&report);
    return report;
}

static muster_preflight_report ask_dispatch(residency *r, const muster_dispatch *dispatch,
                                            muster_preflight_depth depth) {
    muster_preflight_report report = {.struct_size = sizeof report};
    OK(muster_preflight_dispatch(r->fixture.runtime, dispatch, 0, depth, &report, &reported));
    check_report(&report);
    return report;
}

static void cheap_says_yes_no_or_unknown_and_calls_nobody(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_dispatch dispatch = residency_reverse(&r, 8, 0);
    muster_job cooperative = fixture_add(graph, &dispatch);
    residency_declare(&r, &dispatch, MUSTER_FALLBACK_SPLIT);
    dispatch.grid.x = 1000;
    muster_job split = fixture_add(graph, &dispatch);
    dispatch = residency_reverse(&r, 1000, 0);
    dispatch.kernel = r.phases[0];
    dispatch.flags = 0;
    muster_job ordinary = fixture_add(graph, &dispatch);
    uint64_t calls = residency_calls_but(&r, nothing);
    muster_preflight_report report = ask(graph, cooperative, 0, MUSTER_PREFLIGHT_CHEAP);
    assert_int_equal(report.answer, MUSTER_ANSWER_UNKNOWN);
    assert_int_equal(report.grid_blocks, 8);
    assert_int_equal(report.resident_limit, RESIDENCY_LIMIT);
    assert_int_equal(ask(graph, split, 0, MUSTER_PREFLIGHT_CHEAP).answer, MUSTER_ANSWER_YES);
    report = ask(graph, ordinary, 0, MUSTER_PREFLIGHT_CHEAP);
    assert_int_equal(report.answer, MUSTER_ANSWER_YES);
    assert_int_equal(report.resident_limit, 0);
    dispatch = residency_reverse(&r, RESIDENCY_LIMIT + 1, 0);
    dispatch.barrier_counter = NULL;
    report = ask_dispatch(&r, &dispatch, MUSTER_PREFLIGHT_CHEAP);
    assert_int_equal(report.answer, MUSTER_ANSWER_NO);
    assert_int_equal(report.status, MUSTER_COOPERATIVE_TOO_LARGE);
    assert_int_equal(residency_calls_but(&r, nothing), calls);
    fixture_close(&r.fixture);
}

static void a_device_without_grid_synchronisation_is_a_no_without_error(void **state) {
    (void)state;
    residency r;
    residency_open(&r, "{\"devices\": [{\"preset\": \"H200\", \"cooperative\": false}]}", NULL);
    muster_dispatch dispatch = residency_reverse(&r, 1, 0);
    for (int depth = MUSTER_PREFLIGHT_CHEAP; depth <= MUSTER_PREFLIGHT_FULL; depth++) {
        muster_preflight_report report = ask_dispatch(&r, &dispatch, (muster_preflight_depth)depth);
        assert_int_equal(report.answer, MUSTER_ANSWER_NO);
        assert_int_equal(report.status, MUSTER_COOPERATIVE_TOO_LARGE);
        assert_non_null(strstr(report.line, "status=blocked|fix=cooperative_launch|"));
        assert_int_equal(report.resident_limit, 0);
    }
    fixture_close(&r.fixture);
}

static void full_knows_the_loaded_kernel(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_dispatch dispatch = residency_reverse(&r, RESIDENCY_SHARED_LIMIT + 1, RESIDENCY_SHARED);
    muster_job refused = fixture_add(graph, &dispatch);
    residency_declare(&r, &dispatch, MUSTER_FALLBACK_CLAMP);
    muster_job clamped = fixture_add(graph, &dispatch);
    residency_declare(&r, &dispatch, MUSTER_FALLBACK_SPLIT);
    muster_job split = fixture_add(graph, &dispatch);
    assert_int_equal(ask(graph, refused, 0, MUSTER_PREFLIGHT_CHEAP).answer, MUSTER_ANSWER_UNKNOWN);
    muster_preflight_report report = ask(graph, refused, 0, MUSTER_PREFLIGHT_FULL);
    assert_int_equal(report.status, MUSTER_COOPERATIVE_TOO_LARGE);
    assert_int_equal(report.resident_limit, RESIDENCY_SHARED_LIMIT);
    assert_non_null(strstr(report.message, "occupancy: 2"));
    assert_string_equal(
        report.line,
        "cuda-kernel-capability-v1|kernel=reverse|status=ok|grid=[5, 1, 1]|block=[256, 1, 1]|grid_blocks=5|"
        "threads_per_block=256|dynamic_shared_bytes=100000|cooperative_resident_block_limit=4|"
        "cooperative_residency=blocked(required=5,limit=4)");
    report = ask(graph, clamped, 0, MUSTER_PREFLIGHT_FULL);
    assert_int_equal(report.answer, MUSTER_ANSWER_YES);
    assert_int_equal(report.fallback, MUSTER_FALLBACK_CLAMP);
    assert_int_equal(report.grid_blocks, 5);
    assert_int_equal(report.launched_blocks, 4);
    report = ask(graph, split, 0, MUSTER_PREFLIGHT_FULL);
    assert_int_equal(report.answer, MUSTER_ANSWER_YES);
    assert_int_equal(report.fallback, MUSTER_FALLBACK_SPLIT);
    assert_int_equal(report.launched_blocks, 5);
    fixture_close(&r.fixture);
}

static void memory_is_counted_in_buckets_over_all_the_job_accesses(void **state) {
    (void)state;
    residency r;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 512 * MIB};
    residency_open(&r, NULL, &config);
    muster_buffer *a = fixture_buffer(&r.fixture, 30 * MIB + 1, NULL), *b = fixture_buffer(&r.fixture, 30 * MIB, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_job copy, within;
    OK(muster_graph_copy(graph, a, 0, b, 0, 5, &copy, &reported)); /* small buffers are there as a whole */
    OK(muster_graph_copy(graph, a, 0, a, MIB, 5, &within, &reported));
    muster_preflight_report report = ask(graph, copy, 0, MUSTER_PREFLIGHT_CHEAP);
    assert_int_equal(report.required_bytes, 62 * MIB);
    assert_string_equal(report.line, "");
    assert_int_equal(report.grid_blocks, 0);
    assert_int_equal(ask(graph, within, 0, MUSTER_PREFLIGHT_CHEAP).required_bytes, 32 * MIB);
    assert_true(report.budget_bytes <= 512 * MIB && report.budget_bytes > 500 * MIB);
    assert_int_equal(report.answer, MUSTER_ANSWER_YES);
    fixture_close(&r.fixture);
}

static void a_small_buffer_counts_as_a_whole_only_where_the_budget_is_not_tiny(void **state) {
    (void)state;
    residency r;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 64 * MIB};
    residency_open(&r, NULL, &config);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_job job;
    muster_buffer *whole = fixture_buffer(&r.fixture, 4 * MIB, NULL);
    OK(muster_graph_fill(graph, whole, 0, 4, 1, 4, &job, &reported)); /* a sixteenth of the budget */
    assert_int_equal(ask(graph, job, 0, MUSTER_PREFLIGHT_CHEAP).required_bytes, 4 * MIB);
    muster_buffer *part = fixture_buffer(&r.fixture, 4 * MIB + 1, NULL);
    OK(muster_graph_fill(graph, part, 0, 4, 1, 4, &job, &reported));
    assert_int_equal(ask(graph, job, 0, MUSTER_PREFLIGHT_CHEAP).required_bytes, 4);
    /* Jobs with parts of buffers that are not small beside the budget run: together they are more than it. */
    muster_buffer *from = fixture_buffer(&r.fixture, 32 * MIB, NULL), *to = fixture_buffer(&r.fixture, 32 * MIB, NULL);
    OK(muster_graph_fill(graph, from, 16 * MIB, 4096, 7, 4, NULL, &reported));
    OK(muster_graph_copy(graph, to, 20 * MIB, from, 16 * MIB, 4096, &job, &reported));
    muster_preflight_report report = ask(graph, job, 0, MUSTER_PREFLIGHT_FULL);
    assert_int_equal(report.answer, MUSTER_ANSWER_YES);
    assert_int_equal(report.required_bytes, 8192);
    fixture_run(&r.fixture, graph);
    assert_int_equal(fixture_word(to, 5 * MIB + 1023), 7);
    assert_int_equal(fixture_word(to, 5 * MIB + 1024), 0);
    fixture_close(&r.fixture);
}

/* Word for word. */
static void what_never_fits_is_told_as_the_run_tells_it(void **state) {
    (void)state;
    residency r;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 64 * MIB};
    residency_open(&r, NULL, &config);
    muster_buffer *buffer = fixture_buffer(&r.fixture, 65 * MIB, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    OK(muster_graph_fill(graph, buffer, 0, 65 * MIB, 1, 4, NULL, &reported));
    muster_preflight_report report = ask(graph, 0, 0, MUSTER_PREFLIGHT_CHEAP);
    assert_int_equal(report.status, MUSTER_NEVER_FITS);
    FAILS(MUSTER_NEVER_FITS, report.message,
          muster_run_wait(fixture_submit(&r.fixture, graph), fixture_wait_ns, &reported));
    assert_string_equal(ask(graph, 0, 0, MUSTER_PREFLIGHT_FULL).message, report.message);
    fixture_close(&r.fixture);
}

static void a_sharded_job_is_asked_for_the_part_of_the_device(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *in = fixture_buffer(&fixture, 4000, NULL), *sum = fixture_buffer(&fixture, 32, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "sum_u32"), 10, 100,
                         ARGS(muster_sum_arg(sum, MUSTER_U32), muster_u32_arg(8),
                              muster_block_cut(muster_buffer_arg(in, MUSTER_READ), 400), muster_u32_arg(5),
                              muster_shard_offset_arg(100, 1000, 8), muster_shard_count_arg(100, 1000, 8)));
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    dispatch.max_shards = 2;
    muster_job job = fixture_add(graph, &dispatch);
    for (int d = 0; d < 2; d++) assert_int_equal(ask(graph, job, d, MUSTER_PREFLIGHT_FULL).grid_blocks, 5);
    muster_preflight_report report = {.struct_size = sizeof report};
    FAILS(MUSTER_INVALID_ARGUMENT, "device 2",
          muster_preflight(graph, job, 2, MUSTER_PREFLIGHT_FULL, &report, &reported));
    fixture_close(&fixture);
}

static void bad_calls_are_refused(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_dispatch dispatch = residency_reverse(&r, 1, 0);
    muster_job job = fixture_add(graph, &dispatch);
    muster_preflight_report report = {.struct_size = sizeof report};
    const muster_preflight_depth cheap = MUSTER_PREFLIGHT_CHEAP;
    FAILS(MUSTER_OUT_OF_RANGE, "9", muster_preflight(graph, 9, 0, cheap, &report, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "1", muster_preflight(graph, job, 1, cheap, &report, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "-1", muster_preflight(graph, job, -1, cheap, &report, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "depth",
          muster_preflight(graph, job, 0, (muster_preflight_depth)3, &report, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "report", muster_preflight(graph, job, 0, cheap, NULL, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "graph", muster_preflight(NULL, job, 0, cheap, &report, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "dispatch",
          muster_preflight_dispatch(r.fixture.runtime, NULL, 0, cheap, &report, &reported));
    dispatch.arg_count = 3;
    FAILS(MUSTER_ARGUMENT_MISMATCH, "3",
          muster_preflight_dispatch(r.fixture.runtime, &dispatch, 0, cheap, &report, &reported));
    dispatch = residency_reverse(&r, 0, 0);
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    FAILS(MUSTER_INVALID_GEOMETRY, "0",
          muster_preflight_dispatch(r.fixture.runtime, &dispatch, 0, cheap, &report, &reported));
    assert_int_equal(report.message[0], 0); /* untouched */
    report.struct_size = 0;
    FAILS(MUSTER_INVALID_ARGUMENT, "struct_size", muster_preflight(graph, job, 0, cheap, &report, &reported));
    /* An application that knows only the first fields. */
    memset(&report, 0x7e, sizeof report);
    report.struct_size = offsetof(muster_preflight_report, fallback);
    OK(muster_preflight(graph, job, 0, MUSTER_PREFLIGHT_FULL, &report, &reported));
    assert_int_equal(report.answer, MUSTER_ANSWER_YES);
    assert_int_equal(report.launched_blocks, 0x7e7e7e7e7e7e7e7e);
    fixture_close(&r.fixture);
}

/* ---------------------------------------------------------------------------------------------------- equal verdicts -- */

static uint64_t draw_state;
static uint32_t draw(uint32_t bound) {
    draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(draw_state >> 33) % bound;
}

static muster_dispatch draw_dispatch(residency *r, muster_buffer *const *large) {
    static const uint32_t threads[] = {32, 256, 512, 1024, 1025, 0};
    static const uint32_t shared[] = {0, 0, 50000, 100000, 200000, 232448, 232449};
    muster_dispatch dispatch = residency_reverse(r, draw(8) ? 1 + draw(20) : 1000, shared[draw(7)]);
    dispatch.block.x = draw(3) ? RESIDENCY_THREADS : threads[draw(6)];
    if (draw(4) == 0) {
        /* Its blocks do not wait for each other, so it may be launched in any shape. */
        dispatch.flags = 0;
        dispatch.kernel = r->phases[draw(2)];
    } else {
        residency_declare(r, &dispatch, (muster_fallback)draw(3));
    }
    if (dispatch.fallback != MUSTER_FALLBACK_CLAMP && draw(5) == 0) dispatch.cluster.x = 2;
    r->args[0] = muster_buffer_arg(draw(3) ? r->out : large[draw(3)], MUSTER_READ_WRITE);
    return dispatch;
}

/* A refused job leaves what it would have written undefined. */
static void make_defined(residency *r) {
    void *pointer;
    residency_clear(r);
    OK(muster_buffer_acquire(r->args[0].buffer, 0, 0, MUSTER_WRITE, fixture_wait_ns, &pointer, &reported));
    OK(muster_buffer_release(r->args[0].buffer, pointer, &reported));
}

/* Whatever is asked for, full preflight says what the job then ends with. */
static void full_equals_the_verdict_of_the_run(void **state) {
    (void)state;
    residency r;
    muster_config config = {.struct_size = sizeof config, .budget_bytes = 64 * MIB};
    residency_open(&r, RESIDENCY_SPEC, &config);
    muster_buffer *large[3] = {fixture_buffer(&r.fixture, 20 * MIB, NULL), fixture_buffer(&r.fixture, 50 * MIB, NULL),
                               fixture_buffer(&r.fixture, 70 * MIB, NULL)};
    uint32_t seen[1000] = {0};
    draw_state = 5;
    for (int i = 0; i < (MU_TSAN || MU_ASAN ? 100 : 400); i++) {
        muster_dispatch dispatch = draw_dispatch(&r, large);
        muster_preflight_report cheap = ask_dispatch(&r, &dispatch, MUSTER_PREFLIGHT_CHEAP);
        muster_preflight_report full = ask_dispatch(&r, &dispatch, MUSTER_PREFLIGHT_FULL);
        muster_graph *graph = fixture_graph(&r.fixture);
        muster_status status = muster_graph_dispatch(graph, &dispatch, NULL, &reported);
        if (!status) {
            muster_run *run = fixture_submit(&r.fixture, graph);
            status = muster_run_wait(run, fixture_wait_ns, &reported);
            muster_run_destroy(run);
        }
        if (status != full.status)
            fail_msg("round %d: %s, but preflight says %s (%s)", i, muster_status_name(status),
                     muster_status_name(full.status), full.line);
        if (cheap.answer != MUSTER_ANSWER_UNKNOWN) assert_int_equal(cheap.status, status);
        seen[status]++;
        muster_graph_destroy(graph);
        if (status) make_defined(&r);
    }
    assert_true(seen[MUSTER_OK] && seen[MUSTER_NEVER_FITS] && seen[MUSTER_COOPERATIVE_TOO_LARGE] &&
                seen[MUSTER_INVALID_GEOMETRY]);
    fixture_close(&r.fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cheap_says_yes_no_or_unknown_and_calls_nobody),
        cmocka_unit_test(a_device_without_grid_synchronisation_is_a_no_without_error),
        cmocka_unit_test(full_knows_the_loaded_kernel),
        cmocka_unit_test(memory_is_counted_in_buckets_over_all_the_job_accesses),
        cmocka_unit_test(a_small_buffer_counts_as_a_whole_only_where_the_budget_is_not_tiny),
        cmocka_unit_test(what_never_fits_is_told_as_the_run_tells_it),
        cmocka_unit_test(a_sharded_job_is_asked_for_the_part_of_the_device),
        cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(full_equals_the_verdict_of_the_run),
    };
    return cmocka_run_group_tests_name("preflight", tests, NULL, NULL);
}
