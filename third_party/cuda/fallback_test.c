/* The fallback <cuda.h> says what NVIDIA's header says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "third_party/cuda/facts.h"

static void the_table_is_not_empty(void **state) {
    (void)state;
    assert_true(facts_of_fallback().count > 300);
}

static void every_fact_agrees(void **state) {
    (void)state;
    facts_table fallback = facts_of_fallback(), real = facts_of_real();
    if (real.count == 0) {
        fprintf(stderr, "skipped: no NVIDIA cuda.h on this machine to compare the fallback with\n");
        skip();
    }
    assert_int_equal(fallback.count, real.count);
    int differences = 0;
    for (size_t i = 0; i < real.count; i++) {
        assert_string_equal(fallback.rows[i].name, real.rows[i].name);
        if (fallback.rows[i].value == real.rows[i].value) continue;
        differences++;
        print_error("%s: %lld in the fallback, %lld in NVIDIA's header of CUDA %d.%d\n", real.rows[i].name,
                    fallback.rows[i].value, real.rows[i].value, real.cuda_version / 1000,
                    real.cuda_version % 1000 / 10);
    }
    assert_int_equal(differences, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_not_empty),
        cmocka_unit_test(every_fact_agrees),
    };
    return cmocka_run_group_tests_name("fallback cuda.h", tests, NULL, NULL);
}
