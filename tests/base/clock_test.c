/* Time: monotonic, and deadlines that saturate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "muster.h"

static void time_never_goes_back(void **state) {
    (void)state;
    uint64_t last = mu_now_ns(), start = last;
    /* At least a thousand readings, and until the clock has advanced by a microsecond. */
    for (int i = 0; i < 1000 || last - start < 1000; i++) {
        uint64_t now = mu_now_ns();
        assert_true(now >= last);
        last = now;
    }
}

static void deadlines_lie_ahead_by_the_timeout(void **state) {
    (void)state;
    uint64_t before = mu_now_ns();
    uint64_t deadline = mu_deadline_ns(5000000000u);
    uint64_t after = mu_now_ns();
    assert_true(deadline >= before + 5000000000u);
    assert_true(deadline <= after + 5000000000u);
}

static void forever_stays_forever(void **state) {
    (void)state;
    assert_true(mu_deadline_ns(MUSTER_FOREVER) == MUSTER_FOREVER);
    assert_true(mu_deadline_ns(UINT64_MAX - 1) == UINT64_MAX);
    assert_true(mu_deadline_ns(UINT64_MAX / 2) < UINT64_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_never_goes_back),
        cmocka_unit_test(deadlines_lie_ahead_by_the_timeout),
        cmocka_unit_test(forever_stays_forever),
    };
    return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
