/* Errors: what mu_fail fills in, cuts and leaves alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"

static void fail_fills_every_field(void **state) {
    (void)state;
    muster_error error;
    memset(&error, 0xa5, sizeof error);
    assert_int_equal(mu_fail(&error, MUSTER_OUT_OF_RANGE, "offset %d exceeds %s", 7, "six"), MUSTER_OUT_OF_RANGE);
    assert_int_equal(error.status, MUSTER_OUT_OF_RANGE);
    assert_int_equal(error.driver_code, 0);
    assert_int_equal(error.device, MUSTER_ANY_DEVICE);
    assert_int_equal(error.job, MUSTER_NO_JOB);
    assert_string_equal(error.message, "offset 7 exceeds six");
}

static void fail_without_an_error_only_returns(void **state) {
    (void)state;
    assert_int_equal(mu_fail(NULL, MUSTER_TIMEOUT, "%s", "unseen"), MUSTER_TIMEOUT);
    assert_int_equal(mu_fail_host_memory(NULL, "a graph", 12), MUSTER_OUT_OF_HOST_MEMORY);
}

static void long_messages_are_cut_and_terminated(void **state) {
    (void)state;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    struct {
        muster_error error;
        char guard[16];
    } cell;
    memset(&cell, 0x5a, sizeof cell);
    mu_fail(&cell.error, MUSTER_INTERNAL, "%s", text);
    assert_int_equal(strlen(cell.error.message), sizeof cell.error.message - 1);
    for (size_t i = 0; i < sizeof cell.guard; i++) assert_int_equal(cell.guard[i], 0x5a);
}

static void host_memory_names_what_and_how_much(void **state) {
    (void)state;
    muster_error error;
    assert_int_equal(mu_fail_host_memory(&error, "the job table", 123456), MUSTER_OUT_OF_HOST_MEMORY);
    assert_non_null(strstr(error.message, "the job table"));
    assert_non_null(strstr(error.message, "123456 bytes"));
    assert_null(strchr(error.message, '\n'));
}

static void copy_takes_everything(void **state) {
    (void)state;
    muster_error from, to;
    memset(&to, 0xff, sizeof to);
    mu_fail(&from, MUSTER_KERNEL_FAULT, "a fault");
    from.driver_code = 700;
    from.device = 3;
    from.job = 17;
    assert_int_equal(mu_error_copy(&to, &from), MUSTER_KERNEL_FAULT);
    assert_int_equal(to.status, MUSTER_KERNEL_FAULT);
    assert_int_equal(to.driver_code, 700);
    assert_int_equal(to.device, 3);
    assert_int_equal(to.job, 17);
    assert_string_equal(to.message, "a fault");
}

static void copy_allows_null_and_itself(void **state) {
    (void)state;
    muster_error error;
    mu_fail(&error, MUSTER_BUSY, "busy");
    assert_int_equal(mu_error_copy(NULL, &error), MUSTER_BUSY);
    assert_int_equal(mu_error_copy(&error, NULL), MUSTER_OK);
    assert_int_equal(error.status, MUSTER_BUSY);
    assert_int_equal(mu_error_copy(&error, &error), MUSTER_BUSY);
    assert_string_equal(error.message, "busy");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_fills_every_field),
        cmocka_unit_test(fail_without_an_error_only_returns),
        cmocka_unit_test(long_messages_are_cut_and_terminated),
        cmocka_unit_test(host_memory_names_what_and_how_much),
        cmocka_unit_test(copy_takes_everything),
        cmocka_unit_test(copy_allows_null_and_itself),
    };
    return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
