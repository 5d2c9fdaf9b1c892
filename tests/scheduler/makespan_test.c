/* A thousand uneven jobs on four devices of different speed: within a tenth of the best that is known, by the model alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "tests/cache/scratch.h"
#include "tests/scheduler/makespan.h"

static makespan run(makespan_case c) {
    makespan result;
    char directory[4096];
    snprintf(directory, sizeof directory, "%s", scratch_make());
    makespan_run(&c, directory, &result);
    scratch_remove(directory);
    print_message("%s%s, %s%s: placed %.0f us, best %.0f, bound %.0f; jobs %u %u %u %u\n",
                  makespan_shape_names[c.shape], c.data ? " with data" : "", c.placement, c.learnt ? "" : " unlearnt",
                  result.placed_us, result.best_us, result.bound_us, result.jobs[0], result.jobs[1], result.jobs[2],
                  result.jobs[3]);
    /* The judge is no better than what is possible. */
    assert_true(result.best_us >= result.bound_us);
    assert_true(result.placed_us >= result.bound_us);
    return result;
}

static void within_a_tenth(bool data) {
    for (int shape = 0; shape < (MU_TSAN || MU_ASAN ? 1 : MAKESPAN_SHAPES); shape++)
        for (uint64_t seed = 1; seed <= (MU_TSAN || MU_ASAN ? 1 : 3); seed++) {
            makespan result = run((makespan_case){
                .shape = (makespan_shape)shape, .data = data, .learnt = true, .placement = "locality", .seed = seed});
            assert_true(result.placed_us <= 1.10 * result.best_us);
        }
}

static void independent_jobs_end_within_a_tenth_of_the_best(void **state) {
    (void)state;
    within_a_tenth(false);
}

static void jobs_with_data_end_within_a_tenth_of_the_best(void **state) {
    (void)state;
    within_a_tenth(true);
}

/* The same seed, the same places: nothing here depends on this machine. */
static void the_same_jobs_go_to_the_same_places(void **state) {
    (void)state;
    const makespan_case c = {.shape = MAKESPAN_UNEVEN, .learnt = true, .placement = "locality", .seed = 9};
    makespan first = run(c), again = run(c);
    assert_memory_equal(&first, &again, sizeof first);
}

/* What the measure is worth: without knowing the kernels, each device gets as many jobs, and all wait for the slowest. */
static void unknown_speeds_cost_much_more(void **state) {
    (void)state;
    makespan result =
        run((makespan_case){.shape = MAKESPAN_EQUAL, .learnt = false, .placement = "locality", .seed = 1});
    for (int d = 0; d < MAKESPAN_DEVICES; d++) assert_int_equal(result.jobs[d], MAKESPAN_JOBS / MAKESPAN_DEVICES);
    assert_true(result.placed_us > 2 * result.best_us);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(independent_jobs_end_within_a_tenth_of_the_best),
        cmocka_unit_test(jobs_with_data_end_within_a_tenth_of_the_best),
        cmocka_unit_test(the_same_jobs_go_to_the_same_places),
        cmocka_unit_test(unknown_speeds_cost_much_more),
    };
    return cmocka_run_group_tests_name("makespan", tests, NULL, NULL);
}
