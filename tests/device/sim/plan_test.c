/* The fault plan: each kind strikes where it was told to, and nowhere else. */
#include "tests/device/sim/fixture.h"

static void test_the_nth_call_fails(void **state) {
    (void)state;
    fixture f = open_bare(
        "{\"faults\": [{\"entry\": \"mem_alloc\", \"nth\": 3, \"code\": \"OUT_OF_MEMORY\", \"repeat\": 2},"
        " {\"entry\": \"event_create\", \"code\": 999, \"repeat\": \"forever\"}]}");
    CUdeviceptr pointer;
    CUevent event;
    const CUresult expected[] = {0, 0, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY, 0, 0};
    for (int i = 0; i < 6; i++) assert_code(f.driver->mem_alloc(&pointer, 16), expected[i]);
    for (int i = 0; i < 6; i++) assert_code(f.driver->event_create(&event, 0), CUDA_ERROR_UNKNOWN);
    mu_driver_release(f.driver);
}

static void test_a_device_may_be_named(void **state) {
    (void)state;
    fixture f = open_bare(
        "{\"devices\": 2, \"faults\": ["
        "{\"entry\": \"mem_alloc\", \"code\": \"OUT_OF_MEMORY\", \"device\": 1},"
        "{\"entry\": \"ctx_create\", \"code\": \"INVALID_DEVICE\", \"device\": 1}]}");
    CUdevice second;
    CUcontext own, other;
    CUdeviceptr pointer;
    assert_success(f.driver->device_get(&second, 1));
    assert_success(f.driver->mem_alloc(&pointer, 16)); /* device 0's context is current */
    assert_success(f.driver->ctx_create(&own, 0, f.device));
    assert_code(f.driver->ctx_create(&other, 0, second), CUDA_ERROR_INVALID_DEVICE);
    assert_success(f.driver->ctx_create(&other, 0, second));
    assert_code(f.driver->mem_alloc(&pointer, 16), CUDA_ERROR_OUT_OF_MEMORY);
    assert_success(f.driver->mem_alloc(&pointer, 16));
    mu_driver_release(f.driver);
}

static void test_a_device_is_lost_alone(void **state) {
    (void)state;
    fixture f = open_fixture("{\"devices\": 2, \"faults\": [{\"kind\": \"lose\", \"nth\": 2, \"device\": 0}]}");
    CUdevice second;
    CUcontext other;
    CUdeviceptr word = zeroed(&f, 4), pointer;
    assert_success(f.driver->device_get(&second, 1));
    assert_success(f.driver->ctx_create(&other, 0, second));
    assert_success(f.driver->ctx_set_current(f.context));
    for (int i = 0; i < 2; i++) {
        assert_success(launch_mix(&f, f.stream, word, 1));
        assert_success(f.driver->stream_synchronize(f.stream));
    }
    assert_success(launch_mix(&f, f.stream, word, 1)); /* the third finds it gone */
    assert_code(f.driver->stream_synchronize(f.stream), CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_code(f.driver->mem_alloc(&pointer, 16), CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_success(f.driver->ctx_set_current(other));
    assert_success(f.driver->mem_alloc(&pointer, 16)); /* the other goes on */
    CUcontext third;
    assert_code(f.driver->ctx_create(&third, 0, f.device), CUDA_ERROR_ECC_UNCORRECTABLE);
    char line[256];
    assert_code(mu_sim_last_fault(f.driver, line, sizeof line), CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_non_null(strstr(line, "device 0"));
    mu_driver_release(f.driver);
}

static void test_a_kernel_faults_at_its_launch(void **state) {
    (void)state;
    fixture f = open_fixture("{\"faults\": [{\"kind\": \"fault\", \"nth\": 3, \"code\": \"MISALIGNED_ADDRESS\"}]}");
    CUdeviceptr word = zeroed(&f, 4);
    for (int i = 0; i < 2; i++) {
        assert_success(launch_mix(&f, f.stream, word, 1));
        assert_success(f.driver->stream_synchronize(f.stream));
    }
    assert_success(launch_mix(&f, f.stream, word, 1));
    assert_code(f.driver->stream_synchronize(f.stream), CUDA_ERROR_MISALIGNED_ADDRESS);
    mu_driver_release(f.driver);
}

static void test_memory_shrinks_under_us(void **state) {
    (void)state;
    fixture f = open_bare(
        "{\"devices\": [{\"memory_bytes\": 104857600}], \"faults\": ["
        "{\"kind\": \"shrink\", \"entry\": \"mem_alloc\", \"nth\": 2, \"bytes\": 94371840}]}");
    size_t free_bytes, total;
    CUdeviceptr pointer;
    assert_success(f.driver->mem_alloc(&pointer, 1 << 20));
    assert_code(f.driver->mem_alloc(&pointer, 20 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    assert_success(f.driver->mem_get_info(&free_bytes, &total));
    assert_int_equal(total, 104857600);
    assert_int_equal(free_bytes, 104857600 - 94371840 - (1 << 20));
    mu_sim_set_other_memory(f.driver, 0, 0);
    assert_success(f.driver->mem_alloc(&pointer, 20 << 20));
    mu_driver_release(f.driver);
}

static void test_a_copy_is_corrupted(void **state) {
    (void)state;
    fixture f = open_bare("{\"faults\": [{\"kind\": \"corrupt\", \"nth\": 2, \"bit\": 35}]}");
    CUdeviceptr memory = zeroed(&f, 8);
    uint32_t sent[2] = {5, 6}, received[2];
    for (int i = 0; i < 2; i++) assert_success(f.driver->memcpy_htod_async(memory, sent, 8, f.stream));
    assert_success(f.driver->memcpy_dtoh_async(received, memory, 8, f.stream));
    assert_int_equal(received[0], 5);
    assert_int_equal(received[1], 6 ^ 8);
    mu_driver_release(f.driver);
}

static void test_a_call_is_delayed(void **state) {
    (void)state;
    fixture f = open_bare("{\"faults\": [{\"kind\": \"delay\", \"entry\": \"event_create\", \"delay_ns\": 20000000}]}");
    CUevent event;
    uint64_t start = mu_sim_now_ns(f.driver);
    assert_success(f.driver->event_create(&event, 0));
    assert_true(mu_sim_now_ns(f.driver) - start >= 20000000);
    mu_driver_release(f.driver);
}

static void test_a_device_is_lost_on_request(void **state) {
    (void)state;
    fixture f = open_fixture("{}");
    CUdeviceptr word = zeroed(&f, 4);
    mu_sim_hold(f.driver, 0, true);
    assert_success(launch_mix(&f, f.stream, word, 1));
    mu_sim_lose_device(f.driver, 0);
    assert_code(f.driver->stream_synchronize(f.stream), CUDA_ERROR_ECC_UNCORRECTABLE);
    mu_driver_release(f.driver);
}

/* Also while it is held: what waits for its events elsewhere goes on. */
static void test_a_device_is_lost_at_a_call(void **state) {
    (void)state;
    fixture f = open_bare(
        "{\"devices\": 2, \"faults\": ["
        "{\"kind\": \"lose\", \"device\": 0, \"entry\": \"event_create\", \"nth\": 2}]}");
    CUcontext other;
    CUstream stream;
    CUevent event, second;
    assert_success(f.driver->event_create(&event, 0));
    mu_sim_hold(f.driver, 0, true);
    assert_success(f.driver->event_record(event, f.stream));
    assert_success(f.driver->primary_ctx_retain(&other, 1));
    assert_success(f.driver->ctx_push_current(other));
    assert_success(f.driver->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    assert_success(f.driver->stream_wait_event(stream, event, 0));
    assert_success(f.driver->event_create(&second, 0)); /* another device's call is not counted */
    assert_success(f.driver->event_record(second, stream));
    assert_code(f.driver->event_query(second), CUDA_ERROR_NOT_READY);
    assert_success(f.driver->ctx_pop_current(&other));
    assert_code(f.driver->event_create(&second, 0), CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_code(f.driver->event_query(event), CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_success(f.driver->ctx_push_current(other));
    assert_success(f.driver->stream_synchronize(stream));
    assert_code(f.driver->stream_wait_event(stream, event, 0), CUDA_ERROR_ECC_UNCORRECTABLE);
    mu_driver_release(f.driver);
}

static void test_a_device_is_lost_at_any_call(void **state) {
    (void)state;
    fixture f = open_bare(
        "{\"faults\": [{\"kind\": \"lose\", \"entry\": \"any\", \"nth\": 40, \"code\": \"CONTEXT_IS_DESTROYED\"}]}");
    CUresult code = CUDA_SUCCESS;
    int calls = 0;
    for (size_t free_bytes, total; code == CUDA_SUCCESS; calls++) code = f.driver->mem_get_info(&free_bytes, &total);
    assert_code(code, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_in_range(calls, 20, 40); /* opening made some */
    mu_driver_release(f.driver);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_nth_call_fails),         cmocka_unit_test(test_a_device_may_be_named),
        cmocka_unit_test(test_a_device_is_lost_alone),     cmocka_unit_test(test_a_kernel_faults_at_its_launch),
        cmocka_unit_test(test_memory_shrinks_under_us),    cmocka_unit_test(test_a_copy_is_corrupted),
        cmocka_unit_test(test_a_call_is_delayed),          cmocka_unit_test(test_a_device_is_lost_on_request),
        cmocka_unit_test(test_a_device_is_lost_at_a_call), cmocka_unit_test(test_a_device_is_lost_at_any_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
