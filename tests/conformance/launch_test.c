/* Launches: what is refused, how parameters travel, occupancy and cooperative grids. */
#include <stdlib.h>

#include "tests/conformance/conformance.h"

static CUdeviceptr word;

static int take_word(void **state) {
    (void)state;
    word = fresh_memory(4096);
    return 0;
}

static int give_word(void **state) {
    (void)state;
    release_memory(word);
    return 0;
}

static int device_attribute(CUdevice_attribute attribute) {
    int value = -1;
    assert_success(DRIVER->device_get_attribute(&value, attribute, DEVICE0->device));
    return value;
}

static CUresult shaped(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared_bytes) {
    uint32_t zero = 0;
    void *parameters[] = {&word, &zero};
    return DRIVER->launch_kernel(function, gx, gy, gz, bx, by, bz, shared_bytes, DEVICE0->stream, parameters, NULL);
}

static void test_a_grid_covers_its_range(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    uint32_t count = COUNT, numbers[1024];
    void *parameters[] = {&word, &count};
    assert_success(DRIVER->memset_d32_async(word, 0xffffffff, 1024, DEVICE0->stream));
    assert_success(DRIVER->launch_kernel(DEVICE0->number, 8, 1, 1, 128, 1, 1, 0, DEVICE0->stream, parameters, NULL));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_success(DRIVER->memcpy_dtoh(numbers, word, sizeof numbers));
    for (uint32_t i = 0; i < COUNT; i++) assert_int_equal(numbers[i], i);
    for (uint32_t i = COUNT; i < 1024; i++) assert_int_equal(numbers[i], 0xffffffff);
}

static void test_bad_geometry_is_refused(void **state) {
    (void)state;
    CUfunction f = DEVICE0->mix;
    assert_code(shaped(f, 0, 1, 1, 1, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_code(shaped(f, 1, 0, 1, 1, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_code(shaped(f, 1, 1, 1, 0, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_code(shaped(f, 1, 1, 1, 1, 1, 0, 0), CUDA_ERROR_INVALID_VALUE);
    assert_code(shaped(f, 1, 65536, 1, 1, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_code(shaped(f, 1, 1, 65536, 1, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_code(shaped(f, 1, 1, 1, 1025, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_code(shaped(f, 1, 1, 1, 32, 33, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_code(shaped(f, 1, 1, 1, 1, 1, 65, 0), CUDA_ERROR_INVALID_VALUE);
    assert_code(shaped(f, 0x80000000u, 1, 1, 1, 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_success(shaped(f, 1, 1, 1, 1, 1, 1, 0)); /* nothing of it was a fault */
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
}

static void test_a_bounded_function_refuses_larger_blocks(void **state) {
    (void)state;
    void *parameters[] = {&word};
    assert_success(DRIVER->launch_kernel(DEVICE0->bounded, 1, 1, 1, 64, 1, 1, 0, DEVICE0->stream, parameters, NULL));
    assert_code(DRIVER->launch_kernel(DEVICE0->bounded, 1, 1, 1, 65, 1, 1, 0, DEVICE0->stream, parameters, NULL),
                CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(read_word(word), 64);
}

static void test_dynamic_shared_memory_has_a_limit_that_can_be_raised(void **state) {
    (void)state;
    int optin = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    CUfunction f = DEVICE0->mix;
    assert_success(shaped(f, 1, 1, 1, 1, 1, 1, 49152));
    assert_code(shaped(f, 1, 1, 1, 1, 1, 1, 49153), CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->func_set_attribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, optin));
    assert_success(shaped(f, 1, 1, 1, 1, 1, 1, (unsigned)optin));
    assert_code(shaped(f, 1, 1, 1, 1, 1, 1, (unsigned)optin + 1), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->func_set_attribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, optin + 1),
                CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->func_set_attribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 49152));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
}

static void test_missing_parameters_are_refused(void **state) {
    (void)state;
    assert_code(DRIVER->launch_kernel(DEVICE0->mix, 1, 1, 1, 1, 1, 1, 0, DEVICE0->stream, NULL, NULL),
                CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
}

static void test_parameters_are_copied_at_the_call(void **state) {
    (void)state;
    uint32_t value = 4;
    write_word(word, 0);
    void *parameters[] = {&word, &value};
    gate *held = gate_close(DEVICE0->stream);
    assert_success(DRIVER->launch_kernel(DEVICE0->mix, 1, 1, 1, 1, 1, 1, 0, DEVICE0->stream, parameters, NULL));
    value = 1000;
    gate_open(held);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(read_word(word), 4);
}

static void test_parameters_may_come_as_one_buffer(void **state) {
    (void)state;
    struct {
        CUdeviceptr p;
        uint32_t v;
    } block = {word, 6};
    size_t bytes = 12;
    write_word(word, 0);
    void *extra[] = {(void *)1 /* buffer */, &block, (void *)2 /* its size */, &bytes, (void *)0};
    assert_success(DRIVER->launch_kernel(DEVICE0->mix, 1, 1, 1, 1, 1, 1, 0, DEVICE0->stream, NULL, extra));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(read_word(word), 6);
}

static int occupancy(CUfunction function, int threads, size_t shared_bytes) {
    int blocks = -1;
    assert_success(DRIVER->occupancy_max_active_blocks(&blocks, function, threads, shared_bytes));
    return blocks;
}

static void test_occupancy_follows_the_limits(void **state) {
    (void)state;
    int threads_per_sm = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    int blocks_per_sm = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    int shared_per_sm = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    int reserved = device_attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    assert_int_equal(occupancy(DEVICE0->mix, 1024, 0), threads_per_sm / 1024);
    assert_int_equal(occupancy(DEVICE0->mix, 256, 0), threads_per_sm / 256);
    assert_int_equal(occupancy(DEVICE0->mix, 32, 0), blocks_per_sm);
    assert_int_equal(occupancy(DEVICE0->mix, 1, 0), blocks_per_sm);
    assert_int_equal(occupancy(DEVICE0->mix, 33, 0),
                     blocks_per_sm < threads_per_sm / 64 ? blocks_per_sm : threads_per_sm / 64);
    for (int kib = 8; kib <= 48; kib += 8) {
        int expected = shared_per_sm / (kib * 1024 + reserved);
        if (expected > threads_per_sm / 128) expected = threads_per_sm / 128;
        assert_int_equal(occupancy(DEVICE0->mix, 128, (size_t)kib * 1024), expected);
    }
    int blocks;
    assert_code(DRIVER->occupancy_max_active_blocks(&blocks, DEVICE0->mix, 0, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(occupancy(DEVICE0->bounded, 64, 0), occupancy(DEVICE0->mix, 64, 0));
}

static CUresult cooperative(unsigned blocks, unsigned threads) {
    uint32_t zero = 0;
    void *parameters[] = {&word, &zero};
    return DRIVER->launch_cooperative_kernel(DEVICE0->number, blocks, 1, 1, threads, 1, 1, 0, DEVICE0->stream,
                                             parameters);
}

static void test_a_cooperative_grid_must_be_resident(void **state) {
    (void)state;
    unsigned sms = (unsigned)device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    unsigned limit = (unsigned)occupancy(DEVICE0->number, 1024, 0) * sms;
    assert_success(cooperative(1, 32));
    assert_success(cooperative(limit, 1024));
    assert_code(cooperative(limit + 1, 1024), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_success(cooperative(1, 32)); /* the refusal was no fault */
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
}

static void test_attributes_make_a_launch_cooperative(void **state) {
    (void)state;
    if (!DRIVER->launch_kernel_ex) {
        print_message("skipped: no cuLaunchKernelEx\n");
        skip();
    }
    unsigned sms = (unsigned)device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    unsigned limit = (unsigned)occupancy(DEVICE0->number, 1024, 0) * sms;
    uint32_t zero = 0;
    void *parameters[] = {&word, &zero};
    CUlaunchAttribute attribute;
    memset(&attribute, 0, sizeof attribute);
    attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attribute.value.cooperative = 1;
    CUlaunchConfig config = {.gridDimX = limit + 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 1024,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = DEVICE0->stream,
                             .attrs = &attribute,
                             .numAttrs = 1};
    assert_code(DRIVER->launch_kernel_ex(&config, DEVICE0->number, parameters, NULL),
                CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    config.numAttrs = 0;
    assert_success(DRIVER->launch_kernel_ex(&config, DEVICE0->number, parameters, NULL));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
}

static void test_static_shared_memory_works(void **state) {
    (void)state;
    write_word(word, 31);
    void *parameters[] = {&word};
    assert_success(DRIVER->launch_kernel(DEVICE0->staged, 1, 1, 1, 1, 1, 1, 0, DEVICE0->stream, parameters, NULL));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(read_word(word), 31);
}

static void test_null_functions_are_refused(void **state) {
    (void)state;
    void *parameters[] = {&word};
    assert_code(DRIVER->launch_kernel(NULL, 1, 1, 1, 1, 1, 1, 0, DEVICE0->stream, parameters, NULL),
                CUDA_ERROR_INVALID_HANDLE);
}

int run_launch_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_grid_covers_its_range),
        cmocka_unit_test(test_bad_geometry_is_refused),
        cmocka_unit_test(test_a_bounded_function_refuses_larger_blocks),
        cmocka_unit_test(test_dynamic_shared_memory_has_a_limit_that_can_be_raised),
        cmocka_unit_test(test_missing_parameters_are_refused),
        cmocka_unit_test(test_parameters_are_copied_at_the_call),
        cmocka_unit_test(test_parameters_may_come_as_one_buffer),
        cmocka_unit_test(test_occupancy_follows_the_limits),
        cmocka_unit_test(test_a_cooperative_grid_must_be_resident),
        cmocka_unit_test(test_attributes_make_a_launch_cooperative),
        cmocka_unit_test(test_static_shared_memory_works),
        cmocka_unit_test(test_null_functions_are_refused),
    };
    return cmocka_run_group_tests_name("launches", tests, take_word, give_word);
}
