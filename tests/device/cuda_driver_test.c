/* Opening the real driver: what is missing, too old, or does not start, and what is there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/driver.h"

static muster_status open_library(const char *path, muster_error *error) {
    mu_driver *driver = (mu_driver *)1;
    if (path)
        setenv("MUSTER_LIBCUDA", path, 1);
    else
        unsetenv("MUSTER_LIBCUDA");
    muster_status status = mu_cuda_driver_open(&driver, error);
    if (status)
        assert_ptr_equal(driver, (mu_driver *)1);
    else
        mu_driver_release(driver);
    return status;
}

static void test_absent_library_names_the_remedy(void **state) {
    (void)state;
    muster_error error;
    assert_int_equal(open_library("/nonexistent/libcuda.so", &error), MUSTER_NO_DRIVER);
    assert_non_null(strstr(error.message, "/nonexistent/libcuda.so"));
    assert_non_null(strstr(error.message, "MUSTER_LIBCUDA"));
}

static void test_library_that_lacks_a_symbol_is_too_old(void **state) {
    (void)state;
    muster_error error;
    assert_int_equal(open_library("libm.so.6", &error), MUSTER_DRIVER_TOO_OLD);
    assert_non_null(strstr(error.message, "has no cuInit"));
    assert_non_null(strstr(error.message, "version 0.0"));
}

static void stub(int code, muster_status status, const char *message) {
    muster_error error = {0};
    char text[16];
    const char *path = getenv("LIBCUDA_STUB");
    snprintf(text, sizeof text, "%d", code);
    setenv("STUB_INIT", text, 1);
    assert_int_equal(open_library(path, &error), status);
    assert_int_equal(error.driver_code, code);
    if (!strstr(error.message, message)) fail_msg("\"%s\" does not say \"%s\"", error.message, message);
}

static void test_driver_that_does_not_start_is_told_apart(void **state) {
    (void)state;
    if (!getenv("LIBCUDA_STUB")) {
        fprintf(stderr, "skipped: LIBCUDA_STUB does not name the library in libcuda's place\n");
        skip();
    }
    stub(CUDA_ERROR_NO_DEVICE, MUSTER_NO_DEVICE, "CUDA_VISIBLE_DEVICES");
    stub(CUDA_ERROR_UNKNOWN, MUSTER_NO_DRIVER, "kernel module");
    stub(CUDA_ERROR_SYSTEM_NOT_READY, MUSTER_NO_DRIVER, "kernel module");
    stub(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, MUSTER_NO_DRIVER, "matches");
    stub(CUDA_ERROR_STUB_LIBRARY, MUSTER_NO_DRIVER, "\"sim\"");
    stub(CUDA_ERROR_INVALID_VALUE, MUSTER_DRIVER_ERROR, "cuInit");
}

static void test_real_driver_opens_once_for_all(void **state) {
    (void)state;
    mu_driver *first = NULL, *second = NULL;
    muster_error error = {0};
    unsetenv("MUSTER_LIBCUDA");
    muster_status status = mu_cuda_driver_open(&first, &error);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) {
        fprintf(stderr, "skipped: %s\n", error.message);
        skip();
    }
    assert_int_equal(status, MUSTER_OK);
    assert_int_equal(first->kind, MU_DRIVER_CUDA);
    assert_string_equal(first->name, "cuda");
    assert_true(first->version >= 12000);
    assert_string_equal(mu_driver_error_name(first, CUDA_ERROR_INVALID_VALUE), "CUDA_ERROR_INVALID_VALUE");
    assert_int_equal(mu_cuda_driver_open(&second, NULL), MUSTER_OK);
    assert_ptr_equal(first, second);
    mu_driver_release(first);
    mu_driver_release(second);
}

int main(void) {
    /* In this order: an open driver stays open. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absent_library_names_the_remedy),
        cmocka_unit_test(test_library_that_lacks_a_symbol_is_too_old),
        cmocka_unit_test(test_driver_that_does_not_start_is_told_apart),
        cmocka_unit_test(test_real_driver_opens_once_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
