/* Modules, functions, variables, and the linker. */
#include "tests/conformance/conformance.h"
#include "tests/conformance/kernels.h"

static CUresult load(const char *ptx, CUmodule *module, char *log, size_t bytes) {
    CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)bytes};
    return DRIVER->module_load_data_ex(module, ptx, 2, names, values);
}

static void test_functions_are_found_by_name(void **state) {
    (void)state;
    CUfunction again, missing = NULL;
    assert_success(DRIVER->module_get_function(&again, DEVICE0->module, "mix"));
    assert_ptr_equal(again, DEVICE0->mix);
    assert_code(DRIVER->module_get_function(&missing, DEVICE0->module, "nothing"), CUDA_ERROR_NOT_FOUND);
    assert_null(missing);
}

static void test_functions_can_be_listed(void **state) {
    (void)state;
    if (!DRIVER->module_get_function_count || !DRIVER->module_enumerate_functions || !DRIVER->func_get_name) {
        print_message("skipped: the driver is older than 12.4\n");
        skip();
    }
    unsigned count = 0;
    CUfunction functions[16];
    assert_success(DRIVER->module_get_function_count(&count, DEVICE0->module));
    assert_int_equal(count, 9);
    assert_success(DRIVER->module_enumerate_functions(functions, count, DEVICE0->module));
    bool found = false;
    for (unsigned i = 0; i < count; i++) {
        const char *name = NULL;
        assert_success(DRIVER->func_get_name(&name, functions[i]));
        found = found || strcmp(name, "number") == 0;
    }
    assert_true(found);
}

static void test_parameters_are_described(void **state) {
    (void)state;
    if (!DRIVER->func_get_param_info) {
        print_message("skipped: the driver is older than 12.4\n");
        skip();
    }
    size_t offset = 99, bytes = 99;
    assert_success(DRIVER->func_get_param_info(DEVICE0->mix, 0, &offset, &bytes));
    assert_int_equal(offset, 0);
    assert_int_equal(bytes, 8);
    assert_success(DRIVER->func_get_param_info(DEVICE0->mix, 1, &offset, &bytes));
    assert_int_equal(offset, 8);
    assert_int_equal(bytes, 4);
    assert_code(DRIVER->func_get_param_info(DEVICE0->mix, 2, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
}

static int function_attribute(CUfunction function, CUfunction_attribute attribute) {
    int value = -1;
    assert_success(DRIVER->func_get_attribute(&value, attribute, function));
    return value;
}

static void test_functions_have_attributes(void **state) {
    (void)state;
    assert_int_equal(function_attribute(DEVICE0->staged, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 4096);
    assert_int_equal(function_attribute(DEVICE0->mix, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 0);
    assert_int_equal(function_attribute(DEVICE0->mix, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
    assert_int_equal(function_attribute(DEVICE0->bounded, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 64);
    int registers = function_attribute(DEVICE0->mix, CU_FUNC_ATTRIBUTE_NUM_REGS);
    assert_in_range(registers, 1, 255);
    assert_int_equal(function_attribute(DEVICE0->mix, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), 49152);
    assert_int_equal(function_attribute(DEVICE0->staged, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), 45056);
}

static void test_variables_start_as_declared_and_keep_what_is_written(void **state) {
    (void)state;
    CUdeviceptr value, word = fresh_memory(4), missing;
    size_t bytes = 0;
    assert_success(DRIVER->module_get_global(&value, &bytes, DEVICE0->module, "value"));
    assert_int_equal(bytes, 4);
    assert_code(DRIVER->module_get_global(&missing, NULL, DEVICE0->module, "nothing"), CUDA_ERROR_NOT_FOUND);
    void *parameters[] = {&word};
    assert_success(DRIVER->launch_kernel(DEVICE0->global, 1, 1, 1, 1, 1, 1, 0, DEVICE0->stream, parameters, NULL));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(read_word(word), 1042);
    write_word(value, 58);
    assert_success(DRIVER->launch_kernel(DEVICE0->global, 1, 1, 1, 1, 1, 1, 0, DEVICE0->stream, parameters, NULL));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(read_word(word), 1058);
    CUmodule second; /* another load has variables of its own */
    CUdeviceptr other;
    assert_success(DRIVER->module_load_data_ex(&second, kernels_ptx, 0, NULL, NULL));
    assert_success(DRIVER->module_get_global(&other, NULL, second, "value"));
    assert_int_equal(read_word(other), 42);
    assert_success(DRIVER->module_unload(second));
    write_word(value, 42);
    release_memory(word);
}

static void test_bad_ptx_is_refused_with_a_log(void **state) {
    (void)state;
    CUmodule module = NULL;
    char log[4096] = "";
    static const char bad[] =
        ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry broken()\n{\n  bogus.u32 %r1, %r2;\n  "
        "ret;\n}\n";
    assert_code(load(bad, &module, log, sizeof log), CUDA_ERROR_INVALID_PTX);
    assert_null(module);
    assert_true(strlen(log) > 0);
    assert_non_null(strstr(log, "6")); /* the line */
    assert_code(load("this is no PTX", &module, log, sizeof log),
                strcmp(driver_name, "sim") == 0 ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE);
}

static void test_ptx_of_a_later_version_is_refused(void **state) {
    (void)state;
    CUmodule module = NULL;
    char log[4096] = "";
    static const char late[] = ".version 99.9\n.target sm_75\n.address_size 64\n.visible .entry e()\n{\n  ret;\n}\n";
    assert_code(load(late, &module, log, sizeof log), CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    assert_null(module);
}

static void test_linking_makes_an_image_that_loads(void **state) {
    (void)state;
    CUlinkState link;
    void *image = NULL;
    size_t bytes = 0;
    char log[4096] = "";
    CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    assert_success(DRIVER->link_create(2, names, values, &link));
    assert_success(DRIVER->link_add_data(link, CU_JIT_INPUT_PTX, (void *)kernels_ptx, sizeof kernels_ptx, "kernels", 0,
                                         NULL, NULL));
    assert_success(DRIVER->link_complete(link, &image, &bytes));
    assert_true(image && bytes > 0);
    CUmodule module;
    CUfunction mix;
    assert_success(DRIVER->module_load_data_ex(&module, image, 0, NULL, NULL));
    assert_success(DRIVER->link_destroy(link)); /* and the image with it */
    assert_success(DRIVER->module_get_function(&mix, module, "mix"));
    CUdeviceptr word = fresh_memory(4);
    uint32_t five = 5;
    void *parameters[] = {&word, &five};
    assert_success(DRIVER->launch_kernel(mix, 1, 1, 1, 1, 1, 1, 0, DEVICE0->stream, parameters, NULL));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(read_word(word), 5);
    assert_success(DRIVER->module_unload(module));
    release_memory(word);
}

static void test_linking_bad_ptx_fails_with_a_log(void **state) {
    (void)state;
    CUlinkState link;
    char log[4096] = "", bad[] = ".version 7.0\n.target sm_75\n.address_size 64\nnonsense\n";
    CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    assert_success(DRIVER->link_create(2, names, values, &link));
    assert_code(DRIVER->link_add_data(link, CU_JIT_INPUT_PTX, bad, sizeof bad, "bad", 0, NULL, NULL),
                CUDA_ERROR_INVALID_PTX);
    assert_true(strlen(log) > 0);
    assert_success(DRIVER->link_destroy(link));
}

int run_module_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions_are_found_by_name),
        cmocka_unit_test(test_functions_can_be_listed),
        cmocka_unit_test(test_parameters_are_described),
        cmocka_unit_test(test_functions_have_attributes),
        cmocka_unit_test(test_variables_start_as_declared_and_keep_what_is_written),
        cmocka_unit_test(test_bad_ptx_is_refused_with_a_log),
        cmocka_unit_test(test_ptx_of_a_later_version_is_refused),
        cmocka_unit_test(test_linking_makes_an_image_that_loads),
        cmocka_unit_test(test_linking_bad_ptx_fails_with_a_log),
    };
    return cmocka_run_group_tests_name("modules", tests, NULL, NULL);
}
