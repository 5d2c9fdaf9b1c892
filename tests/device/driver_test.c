/* Codes of the driver become statuses of the right recovery group; references end a table once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/driver.h"

static void test_faults_and_losses_are_told_apart(void **state) {
    (void)state;
    static const CUresult faults[] = {CUDA_ERROR_ILLEGAL_ADDRESS,       CUDA_ERROR_LAUNCH_FAILED,
                                      CUDA_ERROR_MISALIGNED_ADDRESS,    CUDA_ERROR_ASSERT,
                                      CUDA_ERROR_LAUNCH_TIMEOUT,        CUDA_ERROR_ILLEGAL_INSTRUCTION,
                                      CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC,
                                      CUDA_ERROR_HARDWARE_STACK_ERROR,  (CUresult)721};
    static const CUresult losses[] = {CUDA_ERROR_ECC_UNCORRECTABLE,
                                      CUDA_ERROR_CONTEXT_IS_DESTROYED,
                                      CUDA_ERROR_NVLINK_UNCORRECTABLE,
                                      CUDA_ERROR_DEINITIALIZED,
                                      (CUresult)46,
                                      (CUresult)226,
                                      (CUresult)805,
                                      (CUresult)911};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        assert_int_equal(mu_driver_status(faults[i]), MUSTER_KERNEL_FAULT);
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        assert_int_equal(mu_driver_status(losses[i]), MUSTER_DEVICE_LOST);
}

static void test_codes_that_poison_nothing_are_no_loss(void **state) {
    (void)state;
    static const struct {
        CUresult code;
        muster_status status;
    } cases[] = {
        {CUDA_SUCCESS, MUSTER_OK},
        {CUDA_ERROR_OUT_OF_MEMORY, MUSTER_OUT_OF_DEVICE_MEMORY},
        {CUDA_ERROR_INVALID_PTX, MUSTER_PROGRAM_INVALID},
        {(CUresult)222, MUSTER_PROGRAM_INVALID},
        {CUDA_ERROR_NO_BINARY_FOR_GPU, MUSTER_PROGRAM_INVALID},
        {CUDA_ERROR_INVALID_IMAGE, MUSTER_PROGRAM_INVALID},
        {CUDA_ERROR_NOT_FOUND, MUSTER_ENTRY_NOT_FOUND},
        {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, MUSTER_COOPERATIVE_TOO_LARGE},
        {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, MUSTER_LAUNCH_FAILED},
        {CUDA_ERROR_NOT_SUPPORTED, MUSTER_UNSUPPORTED},
        {CUDA_ERROR_NO_DEVICE, MUSTER_NO_DEVICE},
        {CUDA_ERROR_STUB_LIBRARY, MUSTER_NO_DRIVER},
        {CUDA_ERROR_INVALID_VALUE, MUSTER_DRIVER_ERROR},
        {CUDA_ERROR_UNKNOWN, MUSTER_DRIVER_ERROR},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(mu_driver_status(cases[i].code), cases[i].status);
    /* Any number is some failure. */
    for (int code = 1; code < 1200; code++) assert_int_not_equal(mu_driver_status((CUresult)code), MUSTER_OK);
}

static CUresult name_some(CUresult code, const char **name) {
    *name = code == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : NULL;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void test_names_are_the_drivers_or_the_number(void **state) {
    (void)state;
    mu_driver driver = {.get_error_name = name_some};
    assert_string_equal(mu_driver_error_name(&driver, CUDA_ERROR_INVALID_VALUE), "CUDA_ERROR_INVALID_VALUE");
    assert_string_equal(mu_driver_error_name(&driver, (CUresult)777), "CUDA_ERROR_777");
    assert_string_equal(mu_driver_error_name(NULL, (CUresult)3), "CUDA_ERROR_3");
}

static void test_failure_reports_call_code_and_name(void **state) {
    (void)state;
    mu_driver driver = {.get_error_name = name_some};
    muster_error error = {0};
    assert_int_equal(mu_driver_fail(&driver, CUDA_ERROR_INVALID_VALUE, &error, "cuThing(%d)", 5), MUSTER_DRIVER_ERROR);
    assert_string_equal(error.message, "cuThing(5): CUDA_ERROR_INVALID_VALUE (1)");
    assert_int_equal(error.driver_code, 1);
    assert_int_equal(error.status, MUSTER_DRIVER_ERROR);
    assert_int_equal(mu_driver_fail(&driver, CUDA_ERROR_ILLEGAL_ADDRESS, NULL, "x"), MUSTER_KERNEL_FAULT);
    /* A long report loses its own end, never the code. */
    char text[600];
    memset(text, 'w', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    mu_driver_fail(&driver, CUDA_ERROR_ILLEGAL_ADDRESS, &error, "%s", text);
    assert_non_null(strstr(error.message, "CUDA_ERROR_700 (700)"));
}

static int destroyed;
static void count_destroy(mu_driver *driver) {
    (void)driver;
    destroyed++;
}

static void test_last_release_destroys_once(void **state) {
    (void)state;
    mu_driver driver = {.destroy = count_destroy};
    atomic_init(&driver.references, 1);
    assert_ptr_equal(mu_driver_retain(&driver), &driver);
    mu_driver_release(&driver);
    assert_int_equal(destroyed, 0);
    mu_driver_release(&driver);
    assert_int_equal(destroyed, 1);
    mu_driver_release(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults_and_losses_are_told_apart),
        cmocka_unit_test(test_codes_that_poison_nothing_are_no_loss),
        cmocka_unit_test(test_names_are_the_drivers_or_the_number),
        cmocka_unit_test(test_failure_reports_call_code_and_name),
        cmocka_unit_test(test_last_release_destroys_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
