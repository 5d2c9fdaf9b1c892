/* Stream-ordered pools. */
#include "tests/conformance/conformance.h"

#define MIB ((uint64_t)1 << 20)
#define STEP (32 * MIB)

static CUmemoryPool pool;

static uint64_t attribute(CUmemPool_attribute name) {
    uint64_t value = UINT64_MAX;
    assert_success(DRIVER->mem_pool_get_attribute(pool, name, &value));
    return value;
}

static void keep_everything(void) {
    uint64_t unbounded = UINT64_MAX;
    assert_success(DRIVER->mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &unbounded));
}

static int make_pool(void **state) {
    (void)state;
    CUmemPoolProps properties;
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = DEVICE0->device;
    return DRIVER->mem_pool_create(&pool, &properties) != CUDA_SUCCESS;
}

static int end_pool(void **state) {
    (void)state;
    DRIVER->stream_synchronize(DEVICE0->stream);
    return DRIVER->mem_pool_destroy(pool) != CUDA_SUCCESS;
}

static CUdeviceptr take(size_t bytes) {
    CUdeviceptr pointer = 0;
    assert_success(DRIVER->mem_alloc_from_pool_async(&pointer, bytes, pool, DEVICE0->stream));
    assert_true(pointer != 0);
    return pointer;
}

static void give(CUdeviceptr pointer) { assert_success(DRIVER->mem_free_async(pointer, DEVICE0->stream)); }
static void settle(void) { assert_success(DRIVER->stream_synchronize(DEVICE0->stream)); }

static void test_used_bytes_count_raw_and_reservation_in_steps(void **state) {
    (void)state;
    keep_everything();
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
    CUdeviceptr one = take(1), odd = take(513);
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 514);
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), STEP);
    CUdeviceptr large = take(40 * MIB);
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 514 + 40 * MIB);
    uint64_t reserved = attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    assert_int_equal(reserved % STEP, 0);
    assert_true(reserved >= 2 * STEP);
    give(one);
    give(odd);
    give(large);
    settle();
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), reserved);
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 514 + 40 * MIB);
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), reserved);
    assert_success(DRIVER->mem_pool_trim_to(pool, 0));
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
}

static void test_without_a_threshold_a_synchronisation_releases(void **state) {
    (void)state;
    CUdeviceptr memory = take(MIB);
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), STEP);
    settle();
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), STEP); /* in use */
    give(memory);
    settle();
    settle();
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
}

static void test_trimming_never_takes_what_is_in_use(void **state) {
    (void)state;
    keep_everything();
    CUdeviceptr memory = take(MIB);
    settle();
    assert_success(DRIVER->mem_pool_trim_to(pool, 0));
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), STEP);
    assert_success(DRIVER->memset_d8_async(memory, 1, MIB, DEVICE0->stream));
    give(memory);
    settle();
}

static void test_a_freed_block_serves_the_same_stream_at_once(void **state) {
    (void)state;
    keep_everything();
    gate *held = gate_close(DEVICE0->stream);
    for (int i = 0; i < 20; i++) give(take(20 * MIB));
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), STEP);
    gate_open(held);
    settle();
}

static void test_memory_works_in_stream_order(void **state) {
    (void)state;
    CUdeviceptr word = fresh_memory(4);
    gate *held = gate_close(DEVICE0->stream);
    for (uint32_t i = 0; i < 10; i++) {
        CUdeviceptr scratch = take(4);
        assert_success(DRIVER->memset_d32_async(scratch, i, 1, DEVICE0->stream));
        assert_success(launch_mix(DEVICE0, DEVICE0->stream, scratch, 1));
        assert_success(launch_copy(DEVICE0, DEVICE0->stream, word, scratch));
        give(scratch);
    }
    gate_open(held);
    settle();
    assert_int_equal(read_word(word), 28);
    release_memory(word);
}

static void test_running_out_is_an_error_and_no_fault(void **state) {
    (void)state;
    size_t free_bytes, total;
    CUdeviceptr pointer = 1;
    assert_success(DRIVER->mem_get_info(&free_bytes, &total));
    assert_code(DRIVER->mem_alloc_from_pool_async(&pointer, total, pool, DEVICE0->stream), CUDA_ERROR_OUT_OF_MEMORY);
    assert_success(DRIVER->mem_alloc_from_pool_async(&pointer, 0, pool, DEVICE0->stream));
    assert_int_equal(pointer, 0);
    give(take(MIB));
    settle();
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
}

/* When the books show it is the driver's affair: hardware lets it be seen later than a synchronisation. */
static void test_pool_memory_is_freed_by_the_free_call_too(void **state) {
    (void)state;
    CUdeviceptr memory = take(MIB);
    settle();
    assert_success(DRIVER->mem_free(memory));
    give(take(MIB));
    settle();
}

static void test_reuse_attributes_can_be_switched_off(void **state) {
    (void)state;
    const CUmemPool_attribute names[] = {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                                         CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                                         CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES};
    for (int i = 0; i < 3; i++) {
        int value = -1;
        assert_success(DRIVER->mem_pool_get_attribute(pool, names[i], &value));
        assert_int_equal(value, 1);
        value = 0;
        assert_success(DRIVER->mem_pool_set_attribute(pool, names[i], &value));
        value = -1;
        assert_success(DRIVER->mem_pool_get_attribute(pool, names[i], &value));
        assert_int_equal(value, 0);
    }
}

static void test_granted_peers_read_pool_memory(void **state) {
    (void)state;
    need_two_devices(true);
    CUdeviceptr here = take(4);
    assert_success(DRIVER->memset_d32_async(here, 77, 1, DEVICE0->stream));
    settle();
    CUmemAccessDesc grant = {{CU_MEM_LOCATION_TYPE_DEVICE, DEVICE1->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    assert_success(DRIVER->mem_pool_set_access(pool, &grant, 1));
    assert_success(DRIVER->ctx_set_current(DEVICE1->context));
    CUdeviceptr there = fresh_memory(4);
    assert_success(launch_copy(DEVICE1, DEVICE1->stream, there, here));
    assert_success(DRIVER->stream_synchronize(DEVICE1->stream));
    assert_int_equal(read_word(there), 77);
    release_memory(there);
    assert_success(DRIVER->ctx_set_current(DEVICE0->context));
    give(here);
    settle();
}

/* Rows from pool memory of device 0 into memory of the current context, on a stream of that. With unified types the driver finds out
 * whose memory it is. It may refuse the pair with INVALID_VALUE, and then has done nothing: Muster copies row by row then
 * (device/rows.c). */
static void copy_rows_from(CUdeviceptr here, const unsigned char *sent, CUstream stream) {
    enum {
        FROM_PITCH = 48,
        TO_PITCH = 40,
        WIDTH = 7,
        ROWS = 4,
        FROM = 2 * FROM_PITCH + 5,
        TO = TO_PITCH + 3,
        BYTES = 256
    };
    unsigned char received[BYTES], expected[BYTES];
    CUdeviceptr there = fresh_memory(BYTES);
    assert_success(DRIVER->memset_d8_async(there, 0xee, BYTES, stream));
    memset(expected, 0xee, BYTES);
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .srcDevice = here + FROM,
                          .srcPitch = FROM_PITCH,
                          .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .dstDevice = there + TO,
                          .dstPitch = TO_PITCH,
                          .WidthInBytes = WIDTH,
                          .Height = ROWS};
    CUresult code = DRIVER->memcpy_2d_async(&copy, stream);
    if (code != CUDA_SUCCESS) {
        print_message("2-D copies between these two are refused\n");
        assert_int_not_equal(DRIVER->kind, MU_DRIVER_SIM);
        assert_code(code, CUDA_ERROR_INVALID_VALUE);
    }
    for (int row = 0; row < ROWS && code == CUDA_SUCCESS; row++)
        memcpy(&expected[TO + row * TO_PITCH], &sent[FROM + row * FROM_PITCH], WIDTH);
    assert_success(DRIVER->stream_synchronize(stream));
    assert_success(DRIVER->memcpy_dtoh(received, there, BYTES));
    assert_memory_equal(received, expected, BYTES);
    release_memory(there);
}

enum { MATRIX_BYTES = 48 * 6 };

static CUdeviceptr take_matrix(unsigned char sent[MATRIX_BYTES]) {
    CUdeviceptr here = take(MATRIX_BYTES);
    settle();
    for (int i = 0; i < MATRIX_BYTES; i++) sent[i] = (unsigned char)(i * 7 + i / 48);
    assert_success(DRIVER->memcpy_htod(here, sent, MATRIX_BYTES));
    assert_success(DRIVER->stream_synchronize(NULL));
    return here;
}

static void test_rows_come_from_granted_peers(void **state) {
    (void)state;
    need_two_devices(true);
    unsigned char sent[MATRIX_BYTES];
    CUdeviceptr here = take_matrix(sent);
    CUmemAccessDesc grant = {{CU_MEM_LOCATION_TYPE_DEVICE, DEVICE1->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    assert_success(DRIVER->mem_pool_set_access(pool, &grant, 1));
    assert_success(DRIVER->ctx_set_current(DEVICE1->context));
    copy_rows_from(here, sent, DEVICE1->stream);
    assert_success(DRIVER->ctx_set_current(DEVICE0->context));
    give(here);
    settle();
}

static void test_rows_come_from_another_context_of_the_device(void **state) {
    (void)state;
    unsigned char sent[MATRIX_BYTES];
    CUcontext own;
    CUstream stream;
    CUdeviceptr here = take_matrix(sent);
    assert_success(DRIVER->ctx_create(&own, 0, DEVICE0->device));
    assert_success(DRIVER->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    copy_rows_from(here, sent, stream);
    assert_success(DRIVER->ctx_destroy(own)); /* with the stream; the one before is current again */
    give(here);
    settle();
}

int run_pool_tests(void) {
#define POOL_TEST(name) cmocka_unit_test_setup_teardown(name, make_pool, end_pool)
    const struct CMUnitTest tests[] = {
        POOL_TEST(test_used_bytes_count_raw_and_reservation_in_steps),
        POOL_TEST(test_without_a_threshold_a_synchronisation_releases),
        POOL_TEST(test_trimming_never_takes_what_is_in_use),
        POOL_TEST(test_a_freed_block_serves_the_same_stream_at_once),
        POOL_TEST(test_memory_works_in_stream_order),
        POOL_TEST(test_running_out_is_an_error_and_no_fault),
        POOL_TEST(test_pool_memory_is_freed_by_the_free_call_too),
        POOL_TEST(test_reuse_attributes_can_be_switched_off),
        POOL_TEST(test_granted_peers_read_pool_memory),
        POOL_TEST(test_rows_come_from_granted_peers),
        POOL_TEST(test_rows_come_from_another_context_of_the_device),
    };
    return cmocka_run_group_tests_name("pools", tests, NULL, NULL);
}
