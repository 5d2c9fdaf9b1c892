/* Streams, events, and the order they promise. */
#include <sched.h>
#include <stdatomic.h>

#include "tests/conformance/conformance.h"

static CUstream new_stream(void) {
    CUstream stream;
    assert_success(DRIVER->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static CUevent new_event(void) {
    CUevent event;
    assert_success(DRIVER->event_create(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

static uint32_t mixed(uint32_t value, uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) value = value * 3 + first + i;
    return value;
}

static void test_launches_of_a_stream_run_in_order(void **state) {
    (void)state;
    CUdeviceptr word = fresh_memory(4);
    for (uint32_t i = 0; i < 200; i++) assert_success(launch_mix(DEVICE0, DEVICE0->stream, word, i));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(read_word(word), mixed(0, 0, 200));
    release_memory(word);
}

static void test_query_says_whether_a_stream_is_done(void **state) {
    (void)state;
    CUdeviceptr word = fresh_memory(4);
    assert_success(DRIVER->stream_query(DEVICE0->stream));
    gate *held = gate_close(DEVICE0->stream);
    assert_success(launch_mix(DEVICE0, DEVICE0->stream, word, 5));
    assert_code(DRIVER->stream_query(DEVICE0->stream), CUDA_ERROR_NOT_READY);
    gate_open(held);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_success(DRIVER->stream_query(DEVICE0->stream));
    assert_int_equal(read_word(word), 5);
    release_memory(word);
}

static void test_an_event_is_done_when_what_precedes_it_is(void **state) {
    (void)state;
    CUevent event = new_event();
    assert_success(DRIVER->event_query(event)); /* never recorded: nothing to wait for */
    assert_success(DRIVER->event_synchronize(event));
    gate *held = gate_close(DEVICE0->stream);
    assert_success(DRIVER->event_record(event, DEVICE0->stream));
    assert_code(DRIVER->event_query(event), CUDA_ERROR_NOT_READY);
    gate_open(held);
    assert_success(DRIVER->event_synchronize(event));
    assert_success(DRIVER->event_query(event));
    assert_success(DRIVER->event_destroy(event));
}

static void test_a_wait_orders_two_streams(void **state) {
    (void)state;
    CUdeviceptr words = fresh_memory(8);
    CUstream second = new_stream();
    CUevent event = new_event();
    gate *held = gate_close(DEVICE0->stream);
    assert_success(launch_mix(DEVICE0, DEVICE0->stream, words, 7));
    assert_success(DRIVER->event_record(event, DEVICE0->stream));
    assert_success(DRIVER->stream_wait_event(second, event, 0));
    assert_success(launch_copy(DEVICE0, second, words + 4, words));
    assert_code(DRIVER->stream_query(second), CUDA_ERROR_NOT_READY);
    gate_open(held);
    assert_success(DRIVER->stream_synchronize(second));
    assert_int_equal(read_word(words + 4), 7);
    assert_success(DRIVER->event_destroy(event));
    assert_success(DRIVER->stream_destroy(second));
    release_memory(words);
}

static void test_waiting_for_an_unrecorded_event_does_nothing(void **state) {
    (void)state;
    CUevent event = new_event();
    CUstream second = new_stream();
    assert_success(DRIVER->stream_wait_event(second, event, 0));
    assert_success(DRIVER->stream_synchronize(second));
    gate *held = gate_close(DEVICE0->stream); /* recording later does not reach the earlier wait */
    assert_success(DRIVER->event_record(event, DEVICE0->stream));
    assert_success(DRIVER->stream_synchronize(second));
    gate_open(held);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_success(DRIVER->stream_destroy(second));
    assert_success(DRIVER->event_destroy(event));
}

static void test_a_wait_keeps_to_the_record_it_saw(void **state) {
    (void)state;
    CUevent event = new_event();
    CUstream second = new_stream(), third = new_stream();
    assert_success(DRIVER->event_record(event, DEVICE0->stream));
    assert_success(DRIVER->stream_wait_event(second, event, 0));
    gate *held = gate_close(third);
    assert_success(DRIVER->event_record(event, third)); /* re-recorded behind a gate */
    assert_success(DRIVER->stream_synchronize(second)); /* the wait was for the first record */
    assert_success(DRIVER->stream_wait_event(second, event, 0));
    assert_code(DRIVER->stream_query(second), CUDA_ERROR_NOT_READY);
    gate_open(held);
    assert_success(DRIVER->stream_synchronize(second));
    assert_success(DRIVER->stream_destroy(second));
    assert_success(DRIVER->stream_destroy(third));
    assert_success(DRIVER->event_destroy(event));
}

static void test_objects_may_be_destroyed_while_in_use(void **state) {
    (void)state;
    CUdeviceptr words = fresh_memory(8);
    CUstream first = new_stream(), second = new_stream();
    CUevent event = new_event(), end = new_event();
    gate *held = gate_close(first);
    assert_success(launch_mix(DEVICE0, first, words, 9));
    assert_success(DRIVER->event_record(event, first));
    assert_success(DRIVER->stream_wait_event(second, event, 0));
    assert_success(launch_copy(DEVICE0, second, words + 4, words));
    assert_success(DRIVER->event_record(end, second));
    assert_success(DRIVER->event_destroy(event));
    assert_success(DRIVER->stream_destroy(first));
    assert_success(DRIVER->stream_destroy(second));
    gate_open(held);
    assert_success(DRIVER->event_synchronize(end));
    assert_int_equal(read_word(words + 4), 9);
    assert_success(DRIVER->event_destroy(end));
    release_memory(words);
}

static void CUDA_CB note(void *user) { *(uint32_t *)user += 1; }

static void test_host_functions_run_in_stream_order(void **state) {
    (void)state;
    uint32_t calls = 0;
    CUdeviceptr word = fresh_memory(4);
    gate *held = gate_close(DEVICE0->stream);
    for (int i = 0; i < 10; i++) assert_success(DRIVER->launch_host_func(DEVICE0->stream, note, &calls));
    assert_success(launch_mix(DEVICE0, DEVICE0->stream, word, 1));
    gate_open(held);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(calls, 10);
    assert_int_equal(read_word(word), 1);
    release_memory(word);
}

static CUresult code_in_host_function;
static void CUDA_CB call_driver(void *user) {
    (void)user;
    size_t free_bytes, total_bytes;
    code_in_host_function = DRIVER->mem_get_info(&free_bytes, &total_bytes);
}

static void test_host_functions_may_not_call_the_driver(void **state) {
    (void)state;
    code_in_host_function = CUDA_SUCCESS;
    assert_success(DRIVER->launch_host_func(DEVICE0->stream, call_driver, NULL));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_code(code_in_host_function, CUDA_ERROR_NOT_PERMITTED);
}

static void test_elapsed_time_is_measured_between_records(void **state) {
    (void)state;
    CUevent start, end, untimed = new_event();
    float milliseconds = -1;
    assert_success(DRIVER->event_create(&start, CU_EVENT_DEFAULT));
    assert_success(DRIVER->event_create(&end, CU_EVENT_DEFAULT));
    assert_code(DRIVER->event_elapsed_time(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE); /* not recorded */
    assert_success(DRIVER->event_record(start, DEVICE0->stream));
    gate *held = gate_close(DEVICE0->stream);
    assert_success(DRIVER->event_record(end, DEVICE0->stream));
    assert_success(DRIVER->event_synchronize(start));
    assert_code(DRIVER->event_elapsed_time(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
    gate_open(held);
    assert_success(DRIVER->event_synchronize(end));
    assert_success(DRIVER->event_elapsed_time(&milliseconds, start, end));
    assert_true(milliseconds >= 0);
    assert_success(DRIVER->event_record(untimed, DEVICE0->stream));
    assert_success(DRIVER->event_synchronize(untimed));
    assert_code(DRIVER->event_elapsed_time(&milliseconds, start, untimed), CUDA_ERROR_INVALID_HANDLE);
    assert_success(DRIVER->event_destroy(start));
    assert_success(DRIVER->event_destroy(end));
    assert_success(DRIVER->event_destroy(untimed));
}

static void test_events_order_streams_of_two_devices(void **state) {
    (void)state;
    need_two_devices(false);
    CUdeviceptr first = fresh_memory(4);
    CUevent event = new_event();
    assert_success(DRIVER->ctx_set_current(DEVICE1->context));
    CUdeviceptr second = fresh_memory(4);
    CUevent back = new_event();
    assert_success(DRIVER->ctx_set_current(DEVICE0->context));
    gate *held = gate_close(DEVICE0->stream);
    uint32_t expected = 0;
    for (uint32_t i = 0; i < 20; i++) { /* back and forth */
        assert_success(DRIVER->ctx_set_current(DEVICE0->context));
        assert_success(launch_mix(DEVICE0, DEVICE0->stream, first, i));
        assert_success(DRIVER->event_record(event, DEVICE0->stream));
        assert_success(DRIVER->ctx_set_current(DEVICE1->context));
        assert_success(DRIVER->stream_wait_event(DEVICE1->stream, event, 0));
        assert_success(
            DRIVER->memcpy_peer_async(second, DEVICE1->context, first, DEVICE0->context, 4, DEVICE1->stream));
        assert_success(launch_mix(DEVICE1, DEVICE1->stream, second, 100));
        assert_success(DRIVER->event_record(back, DEVICE1->stream));
        assert_success(DRIVER->ctx_set_current(DEVICE0->context));
        assert_success(DRIVER->stream_wait_event(DEVICE0->stream, back, 0));
        assert_success(
            DRIVER->memcpy_peer_async(first, DEVICE0->context, second, DEVICE1->context, 4, DEVICE0->stream));
        expected = (expected * 3 + i) * 3 + 100;
    }
    gate_open(held);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(read_word(first), expected);
    assert_success(DRIVER->event_destroy(event));
    release_memory(first);
    assert_success(DRIVER->ctx_set_current(DEVICE1->context));
    assert_success(DRIVER->event_destroy(back));
    release_memory(second);
    assert_success(DRIVER->ctx_set_current(DEVICE0->context));
}

static void test_the_default_stream_waits_for_blocking_streams(void **state) {
    (void)state;
    CUdeviceptr words = fresh_memory(8);
    CUstream blocking;
    assert_success(DRIVER->stream_create(&blocking, CU_STREAM_DEFAULT));
    gate *held = gate_close(blocking);
    assert_success(launch_mix(DEVICE0, blocking, words, 11));
    assert_success(launch_copy(DEVICE0, NULL, words + 4, words));
    assert_success(launch_mix(DEVICE0, blocking, words, 1)); /* after the default stream's copy */
    gate_open(held);
    assert_success(DRIVER->ctx_synchronize());
    assert_int_equal(read_word(words + 4), 11);
    assert_int_equal(read_word(words), 34);
    assert_success(DRIVER->stream_destroy(blocking));
    release_memory(words);
}

/* The word lies in pinned memory, as does what the kernel before it writes. */
static void test_a_value_is_written_after_what_precedes_it(void **state) {
    (void)state;
    void *memory;
    if (!DRIVER->stream_write_value32) skip();
    assert_success(DRIVER->mem_host_alloc(&memory, 64, CU_MEMHOSTALLOC_PORTABLE));
    _Atomic uint32_t *word = memory;
    uint32_t *result = (uint32_t *)memory + 8;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)memory;
    for (uint32_t i = 1; i <= 100; i++) {
        atomic_store(word, 0);
        *result = 1;
        gate *held = gate_close(DEVICE0->stream);
        assert_success(launch_mix(DEVICE0, DEVICE0->stream, at + 32, i));
        assert_success(DRIVER->stream_write_value32(DEVICE0->stream, at, i, CU_STREAM_WRITE_VALUE_DEFAULT));
        assert_int_equal(atomic_load(word), 0);
        gate_open(held);
        while (atomic_load(word) != i) sched_yield();
        assert_int_equal(*result, 3 + i); /* visible without any call of the driver */
    }
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_success(DRIVER->mem_free_host(memory));
}

int run_order_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launches_of_a_stream_run_in_order),
        cmocka_unit_test(test_query_says_whether_a_stream_is_done),
        cmocka_unit_test(test_an_event_is_done_when_what_precedes_it_is),
        cmocka_unit_test(test_a_wait_orders_two_streams),
        cmocka_unit_test(test_waiting_for_an_unrecorded_event_does_nothing),
        cmocka_unit_test(test_a_wait_keeps_to_the_record_it_saw),
        cmocka_unit_test(test_objects_may_be_destroyed_while_in_use),
        cmocka_unit_test(test_a_value_is_written_after_what_precedes_it),
        cmocka_unit_test(test_host_functions_run_in_stream_order),
        cmocka_unit_test(test_host_functions_may_not_call_the_driver),
        cmocka_unit_test(test_elapsed_time_is_measured_between_records),
        cmocka_unit_test(test_events_order_streams_of_two_devices),
        cmocka_unit_test(test_the_default_stream_waits_for_blocking_streams),
    };
    return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
