/* Devices and contexts. */
#include <pthread.h>

#include "tests/conformance/conformance.h"
#include "tests/conformance/kernels.h"

static CUcontext current(void) {
    CUcontext context = NULL;
    assert_success(DRIVER->ctx_get_current(&context));
    return context;
}

static void test_devices_describe_themselves(void **state) {
    (void)state;
    int version = 0, count = 0, value = 0;
    char name[128] = "", id[32] = "";
    CUuuid first, second;
    assert_success(DRIVER->driver_get_version(&version));
    assert_int_equal(version, DRIVER->version);
    assert_true(version >= 12000);
    assert_success(DRIVER->device_get_count(&count));
    assert_success(DRIVER->device_get_name(name, sizeof name, DEVICE0->device));
    assert_true(strlen(name) > 0);
    assert_success(DRIVER->device_get_pci_bus_id(id, sizeof id, DEVICE0->device));
    assert_int_equal(strlen(id), 12);
    assert_success(DRIVER->device_get_uuid(&first, DEVICE0->device));
    if (under_test->device_count == 2) {
        assert_success(DRIVER->device_get_uuid(&second, DEVICE1->device));
        assert_memory_not_equal(&first, &second, sizeof first);
    }
    assert_success(DRIVER->device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, DEVICE0->device));
    assert_int_equal(value, 32);
    assert_success(DRIVER->device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, DEVICE0->device));
    assert_int_equal(value, 1024);
    assert_success(DRIVER->device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, DEVICE0->device));
    assert_int_equal(value, 1);
    assert_success(DRIVER->device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, DEVICE0->device));
    assert_int_equal(value, 1);
    CUdevice device;
    assert_code(DRIVER->device_get(&device, count), CUDA_ERROR_INVALID_DEVICE);
    assert_code(DRIVER->device_get(&device, -1), CUDA_ERROR_INVALID_DEVICE);
}

static void test_errors_have_names(void **state) {
    (void)state;
    const char *name = NULL, *text = NULL;
    assert_success(DRIVER->get_error_name(CUDA_ERROR_OUT_OF_MEMORY, &name));
    assert_string_equal(name, "CUDA_ERROR_OUT_OF_MEMORY");
    assert_success(DRIVER->get_error_string(CUDA_ERROR_OUT_OF_MEMORY, &text));
    assert_string_equal(text, "out of memory");
    assert_code(DRIVER->get_error_name((CUresult)12345, &name), CUDA_ERROR_INVALID_VALUE);
}

static void test_the_primary_context_is_shared_and_counted(void **state) {
    (void)state;
    CUcontext again = NULL;
    assert_success(DRIVER->primary_ctx_retain(&again, DEVICE0->device));
    assert_ptr_equal(again, DEVICE0->context);
    assert_success(DRIVER->primary_ctx_release(DEVICE0->device));
    assert_success(DRIVER->stream_query(DEVICE0->stream)); /* still there */
}

static void test_contexts_are_pushed_and_popped(void **state) {
    (void)state;
    CUcontext own, popped = NULL, before = current();
    assert_success(DRIVER->ctx_create(&own, 0, DEVICE0->device));
    assert_ptr_equal(current(), own); /* creating pushes */
    assert_ptr_not_equal(own, before);
    assert_success(DRIVER->ctx_push_current(before));
    assert_ptr_equal(current(), before);
    assert_success(DRIVER->ctx_pop_current(&popped));
    assert_ptr_equal(popped, before);
    assert_success(DRIVER->ctx_destroy(own)); /* and pops */
    assert_ptr_equal(current(), before);
}

static void *look_from_a_thread(void *out) {
    CUdeviceptr pointer;
    CUresult *codes = out;
    codes[0] = DRIVER->mem_alloc(&pointer, 16);
    codes[1] = DRIVER->ctx_synchronize();
    codes[2] = DRIVER->ctx_pop_current(NULL);
    codes[3] = current() ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
    return NULL;
}

static void test_each_thread_has_its_own_current_context(void **state) {
    (void)state;
    pthread_t thread;
    CUresult codes[4];
    assert_int_equal(pthread_create(&thread, NULL, look_from_a_thread, codes), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_code(codes[0], CUDA_ERROR_INVALID_CONTEXT);
    assert_code(codes[1], CUDA_ERROR_INVALID_CONTEXT);
    assert_code(codes[2], CUDA_ERROR_INVALID_CONTEXT);
    assert_success(codes[3]);
}

static void test_contexts_of_one_device_are_apart(void **state) {
    (void)state;
    CUcontext own;
    CUmodule module;
    CUfunction mix;
    CUstream stream;
    CUevent event;
    assert_success(DRIVER->ctx_create(&own, 0, DEVICE0->device));
    assert_success(DRIVER->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    assert_success(DRIVER->event_create(&event, CU_EVENT_DISABLE_TIMING));
    assert_success(DRIVER->module_load_data_ex(&module, kernels_ptx, 0, NULL, NULL));
    assert_success(DRIVER->module_get_function(&mix, module, "mix"));
    assert_ptr_not_equal(mix, DEVICE0->mix);
    CUdeviceptr word = fresh_memory(4);
    uint32_t three = 3;
    void *parameters[] = {&word, &three};
    assert_success(DRIVER->launch_kernel(mix, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    assert_success(DRIVER->stream_synchronize(stream));
    assert_int_equal(read_word(word), 3);
    /* An event is recorded in its own context only, but any stream may wait for it. */
    assert_code(DRIVER->event_record(event, DEVICE0->stream), CUDA_ERROR_INVALID_HANDLE);
    assert_success(DRIVER->event_record(event, stream));
    assert_success(DRIVER->stream_wait_event(DEVICE0->stream, event, 0));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_success(DRIVER->ctx_destroy(own)); /* with everything in it */
    assert_ptr_equal(current(), DEVICE0->context);
}

static void test_peer_access_is_enabled_once(void **state) {
    (void)state;
    need_two_devices(true);
    assert_success(DRIVER->ctx_enable_peer_access(DEVICE1->context, 0));
    assert_code(DRIVER->ctx_enable_peer_access(DEVICE1->context, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    assert_code(DRIVER->ctx_enable_peer_access(DEVICE0->context, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    assert_success(DRIVER->ctx_set_current(DEVICE1->context));
    CUdeviceptr there = fresh_memory(4);
    write_word(there, 21);
    assert_success(DRIVER->ctx_set_current(DEVICE0->context));
    CUdeviceptr here = fresh_memory(4);
    assert_success(launch_copy(DEVICE0, DEVICE0->stream, here, there));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(read_word(here), 21);
    release_memory(here);
    assert_success(DRIVER->ctx_set_current(DEVICE1->context));
    release_memory(there);
    assert_success(DRIVER->ctx_set_current(DEVICE0->context));
}

int run_context_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices_describe_themselves),
        cmocka_unit_test(test_errors_have_names),
        cmocka_unit_test(test_the_primary_context_is_shared_and_counted),
        cmocka_unit_test(test_contexts_are_pushed_and_popped),
        cmocka_unit_test(test_each_thread_has_its_own_current_context),
        cmocka_unit_test(test_contexts_of_one_device_are_apart),
        cmocka_unit_test(test_peer_access_is_enabled_once),
    };
    return cmocka_run_group_tests_name("contexts", tests, NULL, NULL);
}
