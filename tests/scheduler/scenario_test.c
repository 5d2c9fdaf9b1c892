/* The generated test's own parts: the generator keeps its promises and covers what it should, and the model notices
 * what the comparison is meant to notice. Muster itself is not used. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/scenario.h"

static scenario *new_scenario(void) {
    scenario *scenario = malloc(sizeof *scenario);
    assert_non_null(scenario);
    return scenario;
}

static void generated_scenarios_are_valid(void **state) {
    (void)state;
    scenario *scenario = new_scenario();
    for (uint64_t seed = 0; seed < 3000; seed++) {
        scenario_generate(seed, 1 + seed % 8, seed % 3 ? 0 : 1 << 20, scenario);
        const char *wrong = scenario_check(scenario);
        if (wrong) {
            scenario_print(scenario, stderr);
            fail_msg("seed %" PRIu64 ": %s", seed, wrong);
        }
    }
    free(scenario);
}

static void a_seed_gives_the_same_scenario(void **state) {
    (void)state;
    scenario *one = new_scenario(), *other = new_scenario();
    memset(other, 0xff, sizeof *other);
    scenario_generate(77, 3, 0, one);
    scenario_generate(77, 3, 0, other);
    assert_memory_equal(one, other, sizeof *one);
    scenario_generate(78, 3, 0, other);
    assert_memory_not_equal(one, other, sizeof *one);
    free(one);
    free(other);
}

static void everything_is_generated(void **state) {
    (void)state;
    scenario *scenario = new_scenario();
    uint32_t operations[SC_OP_COUNT] = {0}, sharded[SC_OP_COUNT] = {0}, steps[SC_STEP_KINDS] = {0}, access[4] = {0};
    uint32_t pinned = 0, backward = 0, short_slices = 0, axis[3] = {0}, threads[SC_MAX_THREADS + 1] = {0}, empty = 0;
    uint32_t early = 0, held_tries = 0, nested = 0, parts = 0, late_parts = 0, limits[3] = {0}, stops[2][2] = {{0}};
    uint32_t memory[SC_MEMORIES] = {0};
    for (uint64_t seed = 0; seed < 500; seed++) {
        scenario_generate(seed, 4, 0, scenario);
        threads[scenario->threads]++;
        for (uint32_t b = 0; b < scenario->buffer_count; b++) memory[scenario->buffer[b].memory]++;
        for (uint32_t s = 0; s < scenario->step_count; s++) {
            const sc_step *step = &scenario->step[s];
            steps[step->kind]++;
            early += step->early;
            held_tries += step->kind == SC_TRY && step->of != SC_NO_STEP;
            nested += s && step->kind == SC_ACQUIRE && scenario->step[s - 1].kind == SC_ACQUIRE;
            if (step->kind == SC_SUBMIT && step->into) sc_is_closed(scenario, step->into, s) ? late_parts++ : parts++;
            if (step->kind == SC_SUBMIT) limits[step->limit]++;
            if (step->kind == SC_STOP) stops[step->into][step->by_deadline]++;
            if (scenario->step[s].kind == SC_ACQUIRE) access[scenario->step[s].access]++;
        }
        for (uint32_t g = 0; g < scenario->graph_count; g++) {
            const sc_graph *graph = &scenario->graph[g];
            for (uint32_t e = 0; e < graph->edge_count; e++)
                backward += graph->edge[e].job < graph->edge[e].predecessor;
            for (uint32_t j = 0; j < graph->job_count; j++) {
                const sc_job *job = &graph->job[j];
                operations[job->op]++;
                pinned += job->pin >= 0;
                empty += job->op == SC_COPY && job->range[0].bytes == 0;
                if (!job->sharded) continue;
                sharded[job->op]++;
                axis[job->axis]++;
                short_slices += job->count % job->slice_elements != 0;
            }
        }
    }
    for (int op = 0; op < SC_OP_COUNT; op++) {
        assert_true(operations[op] > 20);
        if (sc_op_entry((sc_op)op)) assert_true(sharded[op] > 5);
    }
    for (int kind = 0; kind < SC_STEP_KINDS; kind++) assert_true(steps[kind] > (kind == SC_DESTROY ? 20 : 100));
    for (int m = 0; m < SC_MEMORIES; m++) assert_true(memory[m] > 100);
    assert_true(parts > 300 && late_parts > 30 && limits[SC_FAR] > 50 && limits[SC_TAKEN_BACK] > 50);
    for (int into = 0; into < 2; into++) assert_true(stops[into][0] > 20 && stops[into][1] > 20);
    assert_true(early > 300 && held_tries > 50 && nested > 30);
    for (int a = 0; a < 3; a++) assert_true(axis[a] > 50 && access[a + 1] > 50);
    for (int t = 1; t <= SC_MAX_THREADS; t++) assert_true(threads[t] > 20);
    assert_true(pinned > 100 && backward > 50 && short_slices > 100 && empty > 5);
    free(scenario);
}

/* True when the final bytes of two scenarios with the same buffers differ. */
static bool finals_differ(const scenario *one, const scenario *other) {
    sc_expected left, right;
    bool differ = false;
    assert_true(scenario_model(one, &left));
    assert_true(scenario_model(other, &right));
    for (uint32_t b = 0; b < one->buffer_count; b++)
        differ |= memcmp(left.final[b], right.final[b], one->buffer[b].bytes) != 0;
    sc_expected_free(&left);
    sc_expected_free(&right);
    return differ;
}

/* A scenario of nothing but one submit of its first graph. */
static void only_one_submit(scenario *scenario) {
    scenario->step_count = 1;
    scenario->step[0] = (sc_step){.kind = SC_SUBMIT};
}

/* What the byte comparison can see. A job may be without effect on the final bytes (all of it overwritten later), but
 * few may be, or the generated test would be blind. */
static void leaving_out_a_job_shows(void **state) {
    (void)state;
    scenario *whole = new_scenario(), *less = new_scenario();
    uint32_t tried = 0, seen = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        scenario_generate(seed, 2, 0, whole);
        only_one_submit(whole);
        memcpy(less, whole, sizeof *less);
        uint32_t j = (uint32_t)(seed % whole->graph[0].job_count);
        if (whole->graph[0].job[j].op >= SC_PREFETCH) continue; /* which change nothing */
        less->graph[0].job[j].dropped = true;
        tried++;
        seen += finals_differ(whole, less);
    }
    assert_true(seen * 100 > tried * 70);
    free(whole);
    free(less);
}

static void swapping_conflicting_neighbours_shows(void **state) {
    (void)state;
    scenario *whole = new_scenario(), *swapped = new_scenario();
    uint32_t tried = 0, seen = 0;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        scenario_generate(seed, 2, 0, whole);
        only_one_submit(whole);
        sc_graph *graph = &whole->graph[0];
        if (graph->job_count < 2) continue;
        uint32_t j = (uint32_t)(seed % (graph->job_count - 1));
        if (!sc_jobs_conflict(&graph->job[j], &graph->job[j + 1])) continue;
        memcpy(swapped, whole, sizeof *swapped);
        swapped->graph[0].job[j] = graph->job[j + 1];
        swapped->graph[0].job[j + 1] = graph->job[j];
        tried++;
        seen += finals_differ(whole, swapped);
    }
    assert_true(tried > 100);
    assert_true(seen * 100 > tried * 70);
    free(whole);
    free(swapped);
}

static void independent_jobs_commute_in_the_model(void **state) {
    (void)state;
    scenario *whole = new_scenario(), *swapped = new_scenario();
    uint32_t tried = 0;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        scenario_generate(seed, 2, 0, whole);
        only_one_submit(whole);
        sc_graph *graph = &whole->graph[0];
        if (graph->job_count < 2) continue;
        uint32_t j = (uint32_t)(seed % (graph->job_count - 1));
        if (sc_jobs_conflict(&graph->job[j], &graph->job[j + 1])) continue;
        memcpy(swapped, whole, sizeof *swapped);
        swapped->graph[0].job[j] = graph->job[j + 1];
        swapped->graph[0].job[j + 1] = graph->job[j];
        tried++;
        assert_false(finals_differ(whole, swapped));
    }
    assert_true(tried > 100);
    free(whole);
    free(swapped);
}

/* Any order of a floating-point sum must give the same bytes: the sums stay whole numbers that the type holds. */
static void sums_of_numbers_stay_exact(void **state) {
    (void)state;
    scenario *scenario = new_scenario();
    for (uint64_t seed = 0; seed < 500; seed++) {
        sc_expected expected;
        scenario_generate(seed, 2, 0, scenario);
        assert_true(scenario_model(scenario, &expected));
        for (uint32_t b = 0; b < scenario->buffer_count; b++) {
            const sc_buffer *buffer = &scenario->buffer[b];
            for (uint32_t at = 0; at < buffer->bytes; at += buffer->kind == SC_F32 ? 4 : 8) {
                float f32 = 0;
                double f64 = 0;
                if (buffer->kind == SC_F32) memcpy(&f32, expected.final[b] + at, sizeof f32);
                if (buffer->kind == SC_F64) memcpy(&f64, expected.final[b] + at, sizeof f64);
                assert_true(f32 >= 0 && f32 < 8388608.0f && f32 == (float)(uint32_t)f32);
                assert_true(f64 >= 0 && f64 < 8388608.0 && f64 == (double)(uint32_t)f64);
            }
        }
        sc_expected_free(&expected);
    }
    free(scenario);
}

/* By hand, from the descriptions in kernels.cu. */
static void kernels_do_what_is_described(void **state) {
    (void)state;
    uint8_t memory[2][64];
    uint8_t *const buffers[SC_MAX_BUFFERS] = {memory[0], memory[1]};
    uint32_t words[4] = {5, 6, 7, 8}, got[4];

    memset(memory, 0, sizeof memory);
    sc_job fill = {.op = SC_FILL,
                   .range_count = 1,
                   .range = {{.buffer = 0, .offset = 2, .bytes = 6}},
                   .pattern = 0xbbaa,
                   .pattern_bytes = 2};
    sc_model_job(&fill, buffers);
    assert_memory_equal(memory[0], "\0\0\xaa\xbb\xaa\xbb\xaa\xbb\0", 9);

    sc_job copy = {.op = SC_COPY,
                   .range_count = 2,
                   .range = {{.buffer = 1, .offset = 1, .bytes = 3}, {.buffer = 0, .offset = 2, .bytes = 3}}};
    sc_model_job(&copy, buffers);
    assert_memory_equal(memory[1], "\0\xaa\xbb\xaa\0", 5);

    /* Blocks of two threads: elements 0 and 1 exchange, 2 is alone with the scalar. H(0) is 0. */
    memcpy(memory[1], words, sizeof words);
    sc_job stage = {.op = SC_STAGE,
                    .range_count = 2,
                    .count = 3,
                    .scalar = (uint32_t)-23,
                    .block = {2, 1, 1},
                    .range = {{.buffer = 0}, {.buffer = 1}}};
    sc_model_job(&stage, buffers);
    memcpy(got, memory[0], sizeof got);
    assert_int_equal(got[2], 0); /* H(-23 + 3 * 7 + 2) */
    assert_int_not_equal(got[0], got[1]);

    memset(memory[0], 0, sizeof memory[0]);
    sc_job sum = {.op = SC_SUM_I64,
                  .range_count = 2,
                  .count = 1,
                  .extent = 1,
                  .scalar = (uint32_t)-5,
                  .range = {{.buffer = 0}, {.buffer = 1}}};
    sc_model_job(&sum, buffers);
    assert_memory_equal(memory[0], "\0\0\0\0\0\0\0\0", 8); /* H(5 - 5 + 0) */
    sum.scalar = 1;
    sc_model_job(&sum, buffers);
    int64_t total;
    memcpy(&total, memory[0], sizeof total);
    assert_int_equal(total, (int32_t)total);
    assert_int_not_equal(total, 0);
}

/* The steps' checks see what they are there for. */
static void steps_that_could_wait_for_ever_are_found(void **state) {
    (void)state;
    scenario *scenario = new_scenario();
    memset(scenario, 0, sizeof *scenario);
    *scenario = (struct scenario){
        .devices = 1, .threads = 2, .buffer_count = 2, .graph_count = 1, .buffer = {{.bytes = 8}, {.bytes = 8}}};
    scenario->graph[0] = (sc_graph){.job_count = 1,
                                    .job = {{.op = SC_COPY,
                                             .range_count = 2,
                                             .range = {{.buffer = 0, .bytes = 8, .access = MUSTER_WRITE},
                                                       {.buffer = 1, .bytes = 8, .access = MUSTER_READ}}}}};
    sc_step *step = scenario->step;
    step[0] = (sc_step){.kind = SC_ACQUIRE, .buffer = 1, .bytes = 8, .access = MUSTER_WRITE, .of = SC_NO_STEP};
    step[1] = (sc_step){.kind = SC_SUBMIT, .thread = 1};
    step[2] = (sc_step){.kind = SC_WAIT, .thread = 1, .of = 1};
    step[3] = (sc_step){.kind = SC_RELEASE, .of = 0};
    scenario->step_count = 4;
    assert_string_equal(sc_steps_check(scenario), "a step may wait for a release after it");
    /* Nor can buffer 0 be had, which the run behind that writes. */
    step[2] = (sc_step){.kind = SC_ACQUIRE, .thread = 1, .buffer = 0, .bytes = 8, .access = MUSTER_READ};
    step[4] = (sc_step){.kind = SC_RELEASE, .thread = 1, .of = 2};
    scenario->step_count = 5;
    assert_string_equal(sc_steps_check(scenario), "a step may wait for a release after it");
    step[0].access = MUSTER_READ; /* the run only reads what is held */
    assert_null(sc_steps_check(scenario));
    step[1].early = true;
    assert_null(sc_steps_check(scenario)); /* the thread's next step comes at once */
    step[1].thread = 0;
    assert_string_equal(sc_steps_check(scenario), "an early step can be told from a late one");
    free(scenario);
}

/* Waiting for a part of an open run waits for all of that. */
static void waits_for_open_runs_are_checked(void **state) {
    (void)state;
    scenario *scenario = new_scenario();
    memset(scenario, 0, sizeof *scenario);
    *scenario = (struct scenario){.devices = 1,
                                  .threads = 1,
                                  .buffer_count = 2,
                                  .graph_count = 2,
                                  .open_count = 1,
                                  .buffer = {{.bytes = 8}, {.bytes = 8}}};
    for (uint32_t g = 0; g < 2; g++)
        scenario->graph[g] = (sc_graph){
            .job_count = 1,
            .job = {{.op = SC_FILL, .range_count = 1, .range = {{.buffer = g, .bytes = 8, .access = MUSTER_WRITE}}}}};
    sc_step *step = scenario->step;
    step[0] = (sc_step){.kind = SC_ACQUIRE, .buffer = 1, .bytes = 8, .access = MUSTER_READ, .of = SC_NO_STEP};
    step[1] = (sc_step){.kind = SC_SUBMIT, .graph = 0, .into = 1};
    step[2] = (sc_step){.kind = SC_WAIT, .of = 1};
    step[3] = (sc_step){.kind = SC_RELEASE, .of = 0};
    scenario->step_count = 4;
    assert_string_equal(sc_steps_check(scenario), "a step may wait for a release after it"); /* it is not closed */
    step[4] = step[3];
    step[3] = step[2];
    step[2] = (sc_step){.kind = SC_CLOSE, .into = 1};
    scenario->step_count = 5;
    assert_null(sc_steps_check(scenario));
    step[5] = step[4];
    step[4] = step[3];
    step[3] = step[2];
    step[2] = (sc_step){.kind = SC_SUBMIT, .graph = 1, .into = 1}; /* its other part waits for the release */
    scenario->step_count = 6;
    assert_string_equal(sc_steps_check(scenario), "a step may wait for a release after it");
    step[2] = (sc_step){.kind = SC_STOP, .graph = 1};
    assert_string_equal(sc_steps_check(scenario), "a step may wait for a release after it");
    step[2].graph = 0;
    assert_null(sc_steps_check(scenario));
    step[0].into = 2;
    assert_string_equal(sc_steps_check(scenario), "a step names no open run");
    free(scenario);
}

/* What a job needs, by hand. */
static void needed_memory_is_counted(void **state) {
    (void)state;
    scenario *scenario = new_scenario();
    memset(scenario, 0, sizeof *scenario);
    scenario->buffer_count = 3;
    scenario->buffer[0].bytes = 1000;
    scenario->buffer[1].bytes = (2 << 20) + 1;
    scenario->buffer[2].bytes = 8;
    scenario->graph_count = 1;
    scenario->graph[0].job_count = 1;
    sc_job *job = &scenario->graph[0].job[0];
    *job = (sc_job){
        .range_count = 3,
        .range = {{.buffer = 0, .bytes = 4}, {.buffer = 0, .offset = 8, .bytes = 4}, {.buffer = 1, .bytes = 4}}};
    assert_int_equal(scenario_needed_bytes(scenario), 1024 + (4 << 20)); /* one buffer twice is there once */
    assert_int_equal(scenario_total_bytes(scenario), 1024 + (4 << 20) + 8);
    job->sharded = true; /* parts that are apart */
    assert_int_equal(scenario_needed_bytes(scenario), 2 * 1024 + (4 << 20));
    job->range[0].cut = MUSTER_CUT_REDUCE;
    assert_int_equal(scenario_needed_bytes(scenario), 2 * 1024 + 4 + (4 << 20));
    free(scenario);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generated_scenarios_are_valid),
        cmocka_unit_test(a_seed_gives_the_same_scenario),
        cmocka_unit_test(everything_is_generated),
        cmocka_unit_test(steps_that_could_wait_for_ever_are_found),
        cmocka_unit_test(waits_for_open_runs_are_checked),
        cmocka_unit_test(needed_memory_is_counted),
        cmocka_unit_test(leaving_out_a_job_shows),
        cmocka_unit_test(swapping_conflicting_neighbours_shows),
        cmocka_unit_test(independent_jobs_commute_in_the_model),
        cmocka_unit_test(sums_of_numbers_stay_exact),
        cmocka_unit_test(kernels_do_what_is_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
