/* Direct access between devices: what is asked for, and that a path which delivers other bytes is not used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"
#include "tests/device/fake_driver.h"

static mu_device *devices[2];

static int setup(void **state) {
    *state = fake_driver_create();
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            mu_device_open(&fake->table, &(mu_device_options){.ordinal = i, .index = i}, &devices[i], NULL), MUSTER_OK);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) mu_device_close(devices[i]);
    mu_driver_release(&fake->table);
    fake_driver_finish();
    return 0;
}

static void test_connecting_grants_context_and_pool_access(void **state) {
    (void)state;
    bool direct = false;
    fake_set_current(fake_foreign_context());
    assert_int_equal(mu_device_connect_peer(devices[0], devices[1], &direct, NULL), MUSTER_OK);
    assert_ptr_equal(fake_current(), fake_foreign_context());
    fake_drop_current();
    assert_true(direct);
    assert_int_equal(fake->calls[FAKE_ctx_enable_peer_access], 1);
    assert_true(fake->pool_access[1]); /* of the peer's memory, to us */
    assert_false(fake->pool_access[0]);
    assert_int_equal(fake->live.allocations, 0);
    assert_int_equal(fake_current_depth(), 0);
    /* The check is nobody's traffic. */
    assert_int_equal(mu_counter_read(&mu_device_get_counters(devices[0])->peer_copies), 0);
    assert_int_equal(mu_ledger_read(mu_device_ledger(devices[0])).in_use, 0);
}

static void test_access_enabled_before_is_fine(void **state) {
    (void)state;
    bool direct = false;
    fake->fail_entry_code[FAKE_ctx_enable_peer_access] = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    assert_int_equal(mu_device_connect_peer(devices[0], devices[1], &direct, NULL), MUSTER_OK);
    assert_true(direct);
}

static void test_incapable_pair_copies_through_the_driver(void **state) {
    (void)state;
    bool direct = true;
    fake->can_access_peer = false;
    assert_int_equal(mu_device_connect_peer(devices[0], devices[1], &direct, NULL), MUSTER_OK);
    assert_false(direct);
    assert_int_equal(fake->calls[FAKE_ctx_enable_peer_access], 0);
    assert_int_equal(fake->calls[FAKE_mem_pool_set_access], 0);
    assert_int_equal(fake->calls[FAKE_memcpy_peer_async], 1); /* still checked */
}

static void test_refused_access_is_no_error(void **state) {
    (void)state;
    static const CUresult codes[] = {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, CUDA_ERROR_TOO_MANY_PEERS,
                                     CUDA_ERROR_NOT_SUPPORTED};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        bool direct = true;
        fake->fail_entry_code[FAKE_ctx_enable_peer_access] = codes[i];
        assert_int_equal(mu_device_connect_peer(devices[0], devices[1], &direct, NULL), MUSTER_OK);
        assert_false(direct);
    }
}

static void test_corrupt_direct_path_is_given_up(void **state) {
    (void)state;
    bool direct = true;
    fake->corrupt_direct_copies = true;
    assert_int_equal(mu_device_connect_peer(devices[0], devices[1], &direct, NULL), MUSTER_OK);
    assert_false(direct);
    assert_false(fake->pool_access[1]);
    assert_int_equal(fake->calls[FAKE_memcpy_peer_async], 2);
    assert_int_equal(fake->live.allocations, 0);
}

static void test_pair_that_never_delivers_is_an_error(void **state) {
    (void)state;
    bool direct = true;
    muster_error error;
    fake->corrupt_all_copies = true;
    assert_int_equal(mu_device_connect_peer(devices[0], devices[1], &direct, &error), MUSTER_TRANSFER_FAILED);
    assert_true(direct);
    assert_non_null(strstr(error.message, "from device 1"));
    assert_int_equal(fake->live.allocations, 0);
}

/* One copy for all rows; where the driver has none between the two, one for each. */
static void test_rows_come_from_a_peer(void **state) {
    (void)state;
    bool direct = false;
    enum { WIDTH = 5, ROWS = 4, PITCH = 8, BYTES = (ROWS - 1) * PITCH + WIDTH };
    const mu_rows rows = {WIDTH, ROWS, PITCH, PITCH};
    unsigned char sent[BYTES], received[BYTES];
    mu_address from, to;
    for (int i = 0; i < BYTES; i++) sent[i] = (unsigned char)(i * 3 + 1);
    assert_int_equal(mu_device_connect_peer(devices[0], devices[1], &direct, NULL), MUSTER_OK);
    for (int i = 0; i < 2; i++) mu_ledger_reserve(mu_device_ledger(devices[i]), BYTES);
    assert_int_equal(mu_device_alloc(devices[1], MU_LANE_UPLOAD, BYTES, &from, NULL), MUSTER_OK);
    assert_int_equal(mu_device_alloc(devices[0], MU_LANE_UPLOAD, BYTES, &to, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_to_device(devices[1], MU_LANE_UPLOAD, from, sent, BYTES, NULL), MUSTER_OK);
    uint64_t checks = fake->calls[FAKE_memcpy_peer_async];
    for (int refused = 0; refused < 2; refused++) {
        if (refused) fake->fail_entry_code[FAKE_memcpy_2d_async] = CUDA_ERROR_INVALID_VALUE;
        assert_int_equal(mu_fill(devices[0], MU_LANE_UPLOAD, to, 0, 1, BYTES, NULL), MUSTER_OK);
        assert_int_equal(mu_rows_from_peer(devices[0], MU_LANE_UPLOAD, to, devices[1], from, &rows, NULL), MUSTER_OK);
        assert_int_equal(fake->calls[FAKE_memcpy_2d_async], 1 + refused);
        assert_int_equal(fake->calls[FAKE_memcpy_peer_async], checks + (refused ? ROWS : 0));
        assert_int_equal(mu_copy_to_host(devices[0], MU_LANE_UPLOAD, received, to, BYTES, NULL), MUSTER_OK);
        for (int i = 0; i < BYTES; i++) assert_int_equal(received[i], i % PITCH < WIDTH ? sent[i] : 0);
    }
    assert_int_equal(mu_counter_read(&mu_device_get_counters(devices[0])->bytes_from_peer), 2 * WIDTH * ROWS);
    assert_int_equal(mu_counter_read(&mu_device_get_counters(devices[0])->peer_copies), 1 + ROWS);
    assert_int_equal(mu_device_free(devices[1], MU_LANE_UPLOAD, from, BYTES, NULL), MUSTER_OK);
    assert_int_equal(mu_device_free(devices[0], MU_LANE_UPLOAD, to, BYTES, NULL), MUSTER_OK);
}

static void test_two_actors_on_one_device_are_connected(void **state) {
    (void)state;
    bool direct = false;
    mu_device *second;
    char byte = 42, back = 0;
    mu_address from, to;
    assert_int_equal(mu_device_open(&fake->table, &(mu_device_options){.ordinal = 0, .index = 2}, &second, NULL),
                     MUSTER_OK);
    uint64_t calls = fake->calls[FAKE_ctx_enable_peer_access];
    assert_int_equal(mu_device_connect_peer(devices[0], second, &direct, NULL), MUSTER_OK);
    assert_true(direct);
    assert_int_equal(fake->calls[FAKE_ctx_enable_peer_access], calls);
    mu_ledger_reserve(mu_device_ledger(second), 1), mu_ledger_reserve(mu_device_ledger(devices[0]), 1);
    assert_int_equal(mu_device_alloc(second, MU_LANE_UPLOAD, 1, &from, NULL), MUSTER_OK);
    assert_int_equal(mu_device_alloc(devices[0], MU_LANE_UPLOAD, 1, &to, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_to_device(second, MU_LANE_UPLOAD, from, &byte, 1, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_from_peer(devices[0], MU_LANE_UPLOAD, to, second, from, 1, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_to_host(devices[0], MU_LANE_UPLOAD, &back, to, 1, NULL), MUSTER_OK);
    assert_int_equal(back, 42);
    assert_int_equal(mu_device_free(second, MU_LANE_UPLOAD, from, 1, NULL), MUSTER_OK);
    assert_int_equal(mu_device_free(devices[0], MU_LANE_UPLOAD, to, 1, NULL), MUSTER_OK);
    mu_device_close(second);
}

/* With contexts of their own, they copy from one to the other, by leave of nobody; and the way is checked like any. */
static void test_shares_of_one_device_are_connected_by_a_checked_copy(void **state) {
    (void)state;
    mu_device *shares[2] = {NULL, NULL};
    bool direct = false;
    muster_error error;
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            mu_device_open(
                &fake->table,
                &(mu_device_options){
                    .ordinal = 0, .index = 2 + i, .own_context = true, .share_count = 2, .share_of = shares[0]},
                &shares[i], NULL),
            MUSTER_OK);
    assert_true(mu_device_shares_with(shares[0], shares[1]));
    assert_false(mu_device_shares_with(devices[0], shares[1]));
    assert_false(mu_device_shares_with(devices[0], devices[1]));
    uint64_t whole = mu_ledger_read(mu_device_ledger(devices[0])).budget;
    for (int i = 0; i < 2; i++) assert_int_equal(mu_ledger_read(mu_device_ledger(shares[i])).budget, whole / 2);
    uint64_t enables = fake->calls[FAKE_ctx_enable_peer_access], access = fake->calls[FAKE_mem_pool_set_access];
    uint64_t copies = fake->calls[FAKE_memcpy_peer_async];
    fake->can_access_peer = false; /* nobody asks */
    assert_int_equal(mu_device_connect_peer(shares[0], shares[1], &direct, NULL), MUSTER_OK);
    assert_true(direct);
    assert_int_equal(fake->calls[FAKE_ctx_enable_peer_access], enables);
    assert_int_equal(fake->calls[FAKE_mem_pool_set_access], access);
    assert_int_equal(fake->calls[FAKE_memcpy_peer_async], copies + 1);
    assert_int_equal(fake->live.allocations, 0);
    fake->corrupt_all_copies = true;
    assert_int_equal(mu_device_connect_peer(shares[1], shares[0], &direct, &error), MUSTER_TRANSFER_FAILED);
    assert_non_null(strstr(error.message, "actors_per_device"));
    /* In the order in which they were opened: what they have in common lasts for the second. */
    mu_device_close(shares[0]);
    assert_int_equal(mu_ledger_reserve(mu_device_ledger(shares[1]), 1), MU_GRANTED);
    mu_ledger_release(mu_device_ledger(shares[1]), 1);
    mu_device_close(shares[1]);
}

static void test_peer_copy_moves_and_counts(void **state) {
    (void)state;
    enum { BYTES = 300 };
    unsigned char sent[BYTES], received[BYTES] = {0};
    mu_address from, to;
    for (int i = 0; i < BYTES; i++) sent[i] = (unsigned char)i;
    for (int i = 0; i < 2; i++) assert_int_equal(mu_ledger_reserve(mu_device_ledger(devices[i]), BYTES), MU_GRANTED);
    assert_int_equal(mu_device_alloc(devices[1], MU_LANE_UPLOAD, BYTES, &from, NULL), MUSTER_OK);
    assert_int_equal(mu_device_alloc(devices[0], MU_LANE_UPLOAD, BYTES, &to, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_to_device(devices[1], MU_LANE_UPLOAD, from, sent, BYTES, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_from_peer(devices[0], MU_LANE_UPLOAD, to, devices[1], from, BYTES, NULL), MUSTER_OK);
    assert_int_equal(mu_copy_to_host(devices[0], MU_LANE_DOWNLOAD, received, to, BYTES, NULL), MUSTER_OK);
    assert_memory_equal(sent, received, BYTES);
    const mu_device_counters *counters = mu_device_get_counters(devices[0]);
    assert_int_equal(mu_counter_read(&counters->peer_copies), 1);
    assert_int_equal(mu_counter_read(&counters->bytes_from_peer), BYTES);
    assert_int_equal(mu_device_free(devices[1], MU_LANE_UPLOAD, from, BYTES, NULL), MUSTER_OK);
    assert_int_equal(mu_device_free(devices[0], MU_LANE_UPLOAD, to, BYTES, NULL), MUSTER_OK);
}

static void test_lost_peer_is_not_touched(void **state) {
    (void)state;
    bool direct = true;
    mu_device *second;
    assert_int_equal(mu_device_open(&fake->table, &(mu_device_options){.ordinal = 1, .index = 7}, &second, NULL),
                     MUSTER_OK);
    mu_device_abandon(second, 0);
    uint64_t calls = fake->calls[FAKE_memcpy_peer_async];
    muster_error error;
    assert_int_equal(mu_device_connect_peer(devices[0], second, &direct, &error), MUSTER_DEVICE_LOST);
    assert_int_equal(error.device, 7);
    assert_int_equal(mu_copy_from_peer(devices[0], MU_LANE_UPLOAD, 8, second, 8, 8, &error), MUSTER_DEVICE_LOST);
    assert_int_equal(fake->calls[FAKE_memcpy_peer_async], calls);
    assert_false(mu_device_is_lost(devices[0]));
    mu_device_close(second);
    fake->live.primaries--, fake->live.streams -= MU_LANE_COUNT, fake->live.pools--;
}

static void test_other_drivers_device_is_refused(void **state) {
    (void)state;
    bool direct = true;
    muster_error error;
    mu_driver other = fake->table;
    mu_device *stranger;
    atomic_store(&other.references, 2);
    assert_int_equal(mu_device_open(&other, &(mu_device_options){0}, &stranger, NULL), MUSTER_OK);
    assert_int_equal(mu_device_connect_peer(devices[0], stranger, &direct, &error), MUSTER_INVALID_ARGUMENT);
    mu_device_close(stranger);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_connecting_grants_context_and_pool_access),
        TEST(test_access_enabled_before_is_fine),
        TEST(test_incapable_pair_copies_through_the_driver),
        TEST(test_refused_access_is_no_error),
        TEST(test_corrupt_direct_path_is_given_up),
        TEST(test_pair_that_never_delivers_is_an_error),
        TEST(test_rows_come_from_a_peer),
        TEST(test_two_actors_on_one_device_are_connected),
        TEST(test_shares_of_one_device_are_connected_by_a_checked_copy),
        TEST(test_peer_copy_moves_and_counts),
        TEST(test_lost_peer_is_not_touched),
        TEST(test_other_drivers_device_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
