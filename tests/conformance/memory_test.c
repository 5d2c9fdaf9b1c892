/* Device and host memory, copies and fills. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/conformance/conformance.h"

#define MIB ((size_t)1 << 20)

static void fill_bytes(unsigned char *bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)(i * 7 + i / 251 + seed);
}

static void *pinned(size_t bytes) {
    void *pointer;
    assert_success(DRIVER->mem_host_alloc(&pointer, bytes, 0));
    return pointer;
}

static void test_allocations_are_aligned_and_counted(void **state) {
    (void)state;
    size_t before, after, total, device_total;
    CUdeviceptr small, large;
    assert_success(DRIVER->device_total_mem(&device_total, DEVICE0->device));
    assert_success(DRIVER->mem_get_info(&before, &total));
    assert_true(total <= device_total && before <= total);
    assert_success(DRIVER->mem_alloc(&small, 1));
    assert_success(DRIVER->mem_alloc(&large, 512 * MIB));
    assert_int_equal(small % 256, 0);
    assert_int_equal(large % 256, 0);
    assert_success(DRIVER->mem_get_info(&after, &total));
    assert_true(before - after >= 512 * MIB);
    assert_success(DRIVER->mem_free(large));
    assert_success(DRIVER->mem_free(small));
    assert_success(DRIVER->mem_get_info(&after, &total));
    assert_true(after + 4 * MIB >= before);
}

static void test_bad_allocations_are_refused(void **state) {
    (void)state;
    CUdeviceptr pointer = 1;
    size_t free_bytes, total;
    assert_success(DRIVER->mem_get_info(&free_bytes, &total));
    assert_code(DRIVER->mem_alloc(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->mem_alloc(NULL, 16), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->mem_alloc(&pointer, total + MIB), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(pointer, 0);
    assert_code(DRIVER->mem_alloc(&pointer, SIZE_MAX / 2), CUDA_ERROR_OUT_OF_MEMORY);
    assert_success(DRIVER->mem_free(0));
    assert_success(DRIVER->mem_alloc(&pointer, 4096)); /* running out is no fault */
    assert_code(DRIVER->mem_free(pointer + 16), CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->mem_free(pointer));
    assert_code(DRIVER->mem_free(pointer), CUDA_ERROR_INVALID_VALUE);
}

static void test_copies_go_there_and_back(void **state) {
    (void)state;
    enum { BYTES = 100003 };
    unsigned char *sent = malloc(BYTES), *received = calloc(1, BYTES);
    CUdeviceptr first = fresh_memory(BYTES), second = fresh_memory(BYTES);
    fill_bytes(sent, BYTES, 1);
    assert_success(DRIVER->memcpy_htod(first, sent, BYTES));
    assert_success(DRIVER->memcpy_dtod_async(second + 1, first, BYTES - 1, DEVICE0->stream));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_success(DRIVER->memcpy_dtoh(received, second, BYTES));
    assert_int_equal(received[0], 0);
    assert_memory_equal(received + 1, sent, BYTES - 1);
    free(sent);
    free(received);
    release_memory(first);
    release_memory(second);
}

static void test_pinned_copies_run_in_stream_order(void **state) {
    (void)state;
    CUdeviceptr word = fresh_memory(4);
    uint32_t *host = pinned(8);
    host[0] = 5;
    host[1] = 0;
    gate *held = gate_close(DEVICE0->stream);
    assert_success(DRIVER->memcpy_htod_async(word, &host[0], 4, DEVICE0->stream));
    assert_success(launch_mix(DEVICE0, DEVICE0->stream, word, 2));
    assert_success(DRIVER->memcpy_dtoh_async(&host[1], word, 4, DEVICE0->stream));
    host[0] = 6; /* pinned memory is read when the copy runs */
    gate_open(held);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(host[1], 20);
    assert_success(DRIVER->mem_free_host(host));
    release_memory(word);
}

static void test_a_pageable_source_may_change_after_the_call(void **state) {
    (void)state;
    unsigned char bytes[4096], received[4096];
    CUdeviceptr memory = fresh_memory(sizeof bytes);
    fill_bytes(bytes, sizeof bytes, 3);
    gate *held = gate_close(DEVICE0->stream);
    assert_success(DRIVER->memcpy_htod_async(memory, bytes, sizeof bytes, DEVICE0->stream));
    memset(bytes, 0, sizeof bytes);
    gate_open(held);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_success(DRIVER->memcpy_dtoh(received, memory, sizeof received));
    fill_bytes(bytes, sizeof bytes, 3);
    assert_memory_equal(received, bytes, sizeof bytes);
    release_memory(memory);
}

static void test_a_pageable_destination_is_complete_at_return(void **state) {
    (void)state;
    uint32_t value = 0;
    CUdeviceptr word = fresh_memory(4);
    for (uint32_t i = 1; i <= 100; i++) assert_success(launch_mix(DEVICE0, DEVICE0->stream, word, i));
    assert_success(DRIVER->memcpy_dtoh_async(&value, word, 4, DEVICE0->stream));
    assert_int_equal(value, read_word(word));
    assert_true(value != 0);
    release_memory(word);
}

static void test_memory_that_is_not_mapped_cannot_be_registered(void **state) {
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    assert_code(DRIVER->mem_host_register((void *)(uintptr_t)1, 64, 0), CUDA_ERROR_INVALID_VALUE);
    unsigned char *pages = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(pages, MAP_FAILED);
    assert_int_equal(munmap(pages + page, page), 0);
    assert_true(DRIVER->mem_host_register(pages, 3 * page, 0) != CUDA_SUCCESS);
    assert_success(DRIVER->mem_host_register(pages, page, 0));
    assert_success(DRIVER->mem_host_unregister(pages));
    /* What nobody has touched is mapped. */
    assert_success(DRIVER->mem_host_register(pages + 2 * page + 5, page - 5, 0));
    assert_success(DRIVER->mem_host_unregister(pages + 2 * page + 5));
    munmap(pages, page);
    munmap(pages + 2 * page, page);
}

static void test_registered_memory_is_pinned_where_it_is(void **state) {
    (void)state;
    size_t bytes = 4 * MIB;
    unsigned char *host = aligned_alloc(4096, bytes), *other = malloc(16);
    CUdeviceptr mapped, memory = fresh_memory(bytes);
    fill_bytes(host, bytes, 9);
    assert_code(DRIVER->mem_host_unregister(host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert_success(DRIVER->mem_host_register(host, bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
    assert_code(DRIVER->mem_host_register(host, bytes, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    assert_success(DRIVER->mem_host_get_device_pointer(&mapped, host, 0));
    assert_code(DRIVER->mem_host_get_device_pointer(&mapped, other, 0), CUDA_ERROR_INVALID_VALUE);
    gate *held = gate_close(DEVICE0->stream);
    assert_success(DRIVER->memcpy_htod_async(memory, host, bytes, DEVICE0->stream));
    assert_code(DRIVER->stream_query(DEVICE0->stream), CUDA_ERROR_NOT_READY);
    gate_open(held);
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    unsigned char received[64];
    assert_success(DRIVER->memcpy_dtoh(received, memory + bytes - 64, 64));
    assert_memory_equal(received, host + bytes - 64, 64);
    assert_success(DRIVER->mem_host_unregister(host));
    free(host);
    free(other);
    release_memory(memory);
}

static void test_kernels_reach_pinned_memory(void **state) {
    (void)state;
    uint32_t *host = pinned(8);
    CUdeviceptr mapped;
    assert_success(DRIVER->mem_host_get_device_pointer(&mapped, host, 0));
    host[0] = 17;
    host[1] = 0;
    assert_success(launch_copy(DEVICE0, DEVICE0->stream, mapped + 4, mapped));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    assert_int_equal(host[1], 17);
    assert_success(DRIVER->mem_free_host(host));
}

static void test_fills_write_their_elements_and_no_more(void **state) {
    (void)state;
    CUdeviceptr memory = fresh_memory(64);
    unsigned char received[64], expected[64] = {0};
    assert_success(DRIVER->memset_d8_async(memory + 1, 0xab, 3, DEVICE0->stream));
    assert_success(DRIVER->memset_d16_async(memory + 8, 0x1234, 3, DEVICE0->stream));
    assert_success(DRIVER->memset_d32_async(memory + 32, 0xdeadbeef, 2, DEVICE0->stream));
    assert_success(DRIVER->memset_d32_async(memory, 1, 0, DEVICE0->stream)); /* nothing */
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    memset(expected + 1, 0xab, 3);
    for (int i = 0; i < 3; i++) memcpy(expected + 8 + 2 * i, &(uint16_t){0x1234}, 2);
    for (int i = 0; i < 2; i++) memcpy(expected + 32 + 4 * i, &(uint32_t){0xdeadbeef}, 4);
    assert_success(DRIVER->memcpy_dtoh(received, memory, 64));
    assert_memory_equal(received, expected, 64);
    assert_code(DRIVER->memset_d32_async(memory + 2, 1, 1, DEVICE0->stream), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->memset_d16_async(memory + 1, 1, 1, DEVICE0->stream), CUDA_ERROR_INVALID_VALUE);
    release_memory(memory);
}

static void test_2d_fills_leave_what_is_between_the_rows(void **state) {
    (void)state;
    enum { PITCH = 48, ROWS = 6, BYTES = PITCH * ROWS };
    unsigned char received[BYTES], expected[BYTES];
    CUdeviceptr memory = fresh_memory(BYTES);
    fill_bytes(expected, BYTES, 9);
    assert_success(DRIVER->memcpy_htod(memory, expected, BYTES));
    assert_success(DRIVER->memset_d2d8_async(memory + 50, PITCH, 0xab, 7, 4, DEVICE0->stream));
    assert_success(DRIVER->memset_d2d8_async(memory, PITCH, 0xcd, 7, 0, DEVICE0->stream)); /* nothing */
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    for (int row = 0; row < 4; row++) memset(&expected[50 + row * PITCH], 0xab, 7);
    assert_success(DRIVER->memcpy_dtoh(received, memory, BYTES));
    assert_memory_equal(received, expected, BYTES);
    assert_code(DRIVER->memset_d2d8_async(memory, 6, 0xab, 7, 2, DEVICE0->stream), CUDA_ERROR_INVALID_VALUE);
    release_memory(memory);
}

static void test_2d_copies_move_a_rectangle(void **state) {
    (void)state;
    enum { PITCH = 48, ROWS = 6 };
    unsigned char host[ROWS][PITCH], received[4][8];
    CUdeviceptr memory = fresh_memory(PITCH * ROWS);
    fill_bytes(host[0], sizeof host, 5);
    assert_success(DRIVER->memcpy_htod(memory, host, sizeof host));
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = memory,
                          .srcPitch = PITCH,
                          .srcXInBytes = 5,
                          .srcY = 2,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = received,
                          .dstPitch = 8,
                          .WidthInBytes = 7,
                          .Height = 4};
    memset(received, 0xee, sizeof received);
    assert_success(DRIVER->memcpy_2d_async(&copy, DEVICE0->stream));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    for (int row = 0; row < 4; row++) {
        assert_memory_equal(received[row], &host[row + 2][5], 7);
        assert_int_equal(received[row][7], 0xee);
    }
    copy.dstPitch = 6; /* narrower than a row */
    assert_code(DRIVER->memcpy_2d_async(&copy, DEVICE0->stream), CUDA_ERROR_INVALID_VALUE);
    release_memory(memory);
}

static void test_copies_out_of_range_are_refused(void **state) {
    (void)state;
    size_t bytes = 64 * MIB;
    CUdeviceptr memory = fresh_memory(4096);
    unsigned char *host = malloc(bytes);
    assert_non_null(host);
    memset(host, 0, bytes);
    assert_code(DRIVER->memcpy_htod(memory, host, bytes), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->memcpy_htod_async(memory, host, bytes, DEVICE0->stream), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->memcpy_dtoh(host, memory, bytes), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->memcpy_dtod_async(memory, memory + 64, bytes, DEVICE0->stream), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->memset_d8_async(memory, 0, bytes, DEVICE0->stream), CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->memcpy_htod(memory, host, 0));
    assert_success(DRIVER->memcpy_htod(memory, host, 4096)); /* none of it was a fault */
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
    free(host);
    release_memory(memory);
}

static void test_pointers_can_be_asked_about(void **state) {
    (void)state;
    CUdeviceptr memory = fresh_memory(4096), start = 0;
    unsigned type = 0;
    int ordinal = -1;
    CUcontext context = NULL;
    size_t bytes = 0;
    assert_success(DRIVER->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + 5));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    assert_success(DRIVER->pointer_get_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
    assert_int_equal(ordinal, 0);
    assert_success(DRIVER->pointer_get_attribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
    assert_ptr_equal(context, DEVICE0->context);
    assert_success(DRIVER->pointer_get_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory + 5));
    assert_int_equal(start, memory);
    assert_success(DRIVER->pointer_get_attribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory + 5));
    assert_int_equal(bytes, 4096);
    void *host = pinned(64);
    assert_success(DRIVER->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host));
    assert_int_equal(type, CU_MEMORYTYPE_HOST);
    int local;
    assert_code(DRIVER->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)&local),
                CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->mem_free_host(host));
    release_memory(memory);
}

/* Asks about the memory type, and whether the range known around `pointer` holds `bytes` from there. */
static CUresult ask_host(const void *pointer, size_t bytes) {
    unsigned type = 0;
    CUdeviceptr start = 0, address = (uintptr_t)pointer;
    size_t size = 0;
    CUresult code = DRIVER->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (code != CUDA_SUCCESS) return code;
    assert_int_equal(type, CU_MEMORYTYPE_HOST);
    assert_success(DRIVER->pointer_get_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address));
    assert_success(DRIVER->pointer_get_attribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address));
    assert_true(start <= address && address + bytes <= start + size);
    return CUDA_SUCCESS;
}

static void test_pinned_host_memory_is_known_and_pageable_is_not(void **state) {
    (void)state;
    size_t bytes = 2 * MIB;
    unsigned char *own = aligned_alloc(4096, bytes), on_stack[16];
    memset(own, 0, bytes);
    void *host;
    unsigned type, managed = 7;
    assert_success(DRIVER->mem_host_alloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE));
    assert_success(ask_host(host, bytes));
    assert_success(ask_host((char *)host + bytes - 1, 1));
    assert_success(DRIVER->pointer_get_attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, (uintptr_t)host));
    assert_int_equal(managed, 0);
    assert_code(ask_host(own, bytes), CUDA_ERROR_INVALID_VALUE);
    assert_code(ask_host(on_stack, 16), CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->mem_host_register(own, bytes, CU_MEMHOSTREGISTER_PORTABLE));
    assert_success(ask_host(own, bytes));
    assert_success(ask_host(own + 4097, bytes - 4097));
    assert_success(DRIVER->mem_host_unregister(own));
    assert_code(ask_host(own, bytes), CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->mem_free_host(host));
    assert_code(DRIVER->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host),
                CUDA_ERROR_INVALID_VALUE);
    free(own);
}

static void test_portable_host_memory_is_every_device_s(void **state) {
    (void)state;
    need_two_devices(false);
    size_t bytes = 2 * MIB;
    unsigned char *own = aligned_alloc(4096, bytes);
    memset(own, 7, bytes);
    void *host;
    assert_success(DRIVER->mem_host_register(own, bytes, CU_MEMHOSTREGISTER_PORTABLE));
    assert_success(DRIVER->mem_host_alloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE));
    assert_success(DRIVER->ctx_set_current(DEVICE1->context));
    assert_success(ask_host(own, bytes));
    assert_success(ask_host(host, bytes));
    CUdeviceptr there = fresh_memory(bytes);
    assert_success(DRIVER->memcpy_htod_async(there, own, bytes, DEVICE1->stream));
    assert_success(DRIVER->memcpy_dtoh_async(host, there, bytes, DEVICE1->stream));
    assert_success(DRIVER->stream_synchronize(DEVICE1->stream));
    assert_memory_equal(host, own, bytes);
    release_memory(there);
    /* It is given back from there, too. */
    assert_success(DRIVER->mem_host_unregister(own));
    assert_success(DRIVER->mem_free_host(host));
    assert_success(DRIVER->ctx_set_current(DEVICE0->context));
    free(own);
}

static void test_peer_copies_need_no_access(void **state) {
    (void)state;
    need_two_devices(false);
    enum { BYTES = 70001 };
    unsigned char *sent = malloc(BYTES), *received = malloc(BYTES);
    CUdeviceptr here = fresh_memory(BYTES);
    fill_bytes(sent, BYTES, 2);
    assert_success(DRIVER->memcpy_htod(here, sent, BYTES));
    assert_success(DRIVER->stream_synchronize(NULL));
    assert_success(DRIVER->ctx_set_current(DEVICE1->context));
    CUdeviceptr there = fresh_memory(BYTES);
    assert_success(DRIVER->memcpy_peer_async(there, DEVICE1->context, here, DEVICE0->context, BYTES, DEVICE1->stream));
    assert_success(DRIVER->stream_synchronize(DEVICE1->stream));
    assert_success(DRIVER->memcpy_dtoh(received, there, BYTES));
    assert_memory_equal(received, sent, BYTES);
    release_memory(there);
    assert_success(DRIVER->ctx_set_current(DEVICE0->context));
    release_memory(here);
    free(sent);
    free(received);
}

int run_memory_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations_are_aligned_and_counted),
        cmocka_unit_test(test_bad_allocations_are_refused),
        cmocka_unit_test(test_copies_go_there_and_back),
        cmocka_unit_test(test_pinned_copies_run_in_stream_order),
        cmocka_unit_test(test_a_pageable_source_may_change_after_the_call),
        cmocka_unit_test(test_a_pageable_destination_is_complete_at_return),
        cmocka_unit_test(test_memory_that_is_not_mapped_cannot_be_registered),
        cmocka_unit_test(test_registered_memory_is_pinned_where_it_is),
        cmocka_unit_test(test_kernels_reach_pinned_memory),
        cmocka_unit_test(test_fills_write_their_elements_and_no_more),
        cmocka_unit_test(test_2d_copies_move_a_rectangle),
        cmocka_unit_test(test_2d_fills_leave_what_is_between_the_rows),
        cmocka_unit_test(test_copies_out_of_range_are_refused),
        cmocka_unit_test(test_pointers_can_be_asked_about),
        cmocka_unit_test(test_pinned_host_memory_is_known_and_pageable_is_not),
        cmocka_unit_test(test_portable_host_memory_is_every_device_s),
        cmocka_unit_test(test_peer_copies_need_no_access),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
