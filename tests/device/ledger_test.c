/* The memory ledger: its arithmetic against the exact figures and a wide-integer model, its reservations against a
 * sequential model and against many threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "device/ledger.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Random over all magnitudes. */
static uint64_t next_magnitude(uint64_t *state) {
    uint64_t value = next_random(state);
    return value >> (next_random(state) % 64);
}

/* ----------------------------------------------------------------------------------------------------- arithmetic -- */

static void test_budget_fraction_is_nine_tenths_exact(void **state) {
    (void)state;
    assert_int_equal(mu_budget_fraction(1000, MU_BUDGET_PERMILLE), 900);
    assert_true(mu_budget_fraction(UINT64_MAX, MU_BUDGET_PERMILLE) == UINT64_C(16602069666338596453));
    assert_int_equal(mu_budget_fraction(0, MU_BUDGET_PERMILLE), 0);
    assert_int_equal(mu_budget_fraction(1, MU_BUDGET_PERMILLE), 0);
    assert_int_equal(mu_budget_fraction(9, MU_BUDGET_PERMILLE), 8);
    uint64_t random = 1;
    for (int i = 0; i < 100000; i++) {
        uint64_t x = next_magnitude(&random);
        /* 9x/10 without wide products: 10q + r has nine tenths 9q + floor(9r/10). */
        assert_true(mu_budget_fraction(x, 900) == x / 10 * 9 + x % 10 * 9 / 10);
    }
}

static void test_budget_fraction_is_configurable(void **state) {
    (void)state;
    assert_int_equal(mu_budget_fraction(1000, 1000), 1000);
    assert_true(mu_budget_fraction(UINT64_MAX, 1000) == UINT64_MAX);
    assert_int_equal(mu_budget_fraction(1000, 1), 1);
    assert_int_equal(mu_budget_fraction(999, 1), 0);
    uint64_t random = 7;
    for (int i = 0; i < 100000; i++) {
        uint64_t x = next_magnitude(&random), p = next_random(&random) % 1001;
        assert_true(mu_budget_fraction(x, (uint32_t)p) == x / 1000 * p + x % 1000 * p / 1000);
    }
}

static void test_accounted_headroom_is_zero_once_used(void **state) {
    (void)state;
    assert_int_equal(mu_accounted_headroom(9000, 2000, 1000), 6000);
    assert_int_equal(mu_accounted_headroom(9000, 8000, 1000), 0);
    assert_int_equal(mu_accounted_headroom(9000, 8999, 0), 1);
    assert_int_equal(mu_accounted_headroom(9000, 9001, 0), 0);
    /* The sum is wide: it must not wrap to something small. */
    assert_int_equal(mu_accounted_headroom(UINT64_MAX, UINT64_MAX, 2), 0);
    assert_int_equal(mu_accounted_headroom(5, UINT64_MAX, UINT64_MAX), 0);
    assert_int_equal(mu_accounted_headroom(0, 0, 0), 0);
}

static void test_effective_budget_is_the_smaller_of_accounted_and_live(void **state) {
    (void)state;
    assert_int_equal(mu_effective_budget(10000, 1000, 0, 0, 900), 900);
    assert_int_equal(mu_effective_budget(10000, 8000, 2000, 1000, 900), 6000);
    assert_int_equal(mu_effective_budget(10000, 0, 0, 0, 900), 0);
    assert_int_equal(mu_effective_budget(10000, 10000, 0, 0, 900), 9000);
}

static void test_resident_limit_grows_by_the_live_budget(void **state) {
    (void)state;
    assert_int_equal(mu_resident_limit(10000, 1000, 0, 900), 900);
    assert_int_equal(mu_resident_limit(10000, 8000, 2000, 900), 9000);
    assert_int_equal(mu_resident_limit(10000, 0, 2000, 900), 2000);
    assert_true(mu_resident_limit(UINT64_MAX, UINT64_MAX, UINT64_MAX, 1000) == UINT64_MAX);
}

static void test_power_of_two_bucket_is_next_power_checked(void **state) {
    (void)state;
    uint64_t bucket;
    for (uint64_t n = 0; n < 5000; n++) {
        uint64_t expected = 1;
        while (expected < n) expected *= 2;
        assert_true(mu_power_of_two_bucket(n, &bucket));
        assert_true(bucket == expected);
    }
    for (int bit = 1; bit < 64; bit++) {
        uint64_t power = (uint64_t)1 << bit;
        assert_true(mu_power_of_two_bucket(power, &bucket) && bucket == power);
        bucket = 77;
        bool rounds = mu_power_of_two_bucket(power + 1, &bucket);
        assert_int_equal(rounds, bit < 63);
        assert_true(bucket == (bit < 63 ? power * 2 : 77));
    }
    bucket = 77;
    assert_false(mu_power_of_two_bucket(UINT64_MAX, &bucket));
    assert_int_equal(bucket, 77);
}

static uint64_t bucket_of(uint64_t bytes) {
    uint64_t bucket = 0;
    assert_int_equal(mu_allocation_bucket(bytes, &bucket, NULL), MUSTER_OK);
    return bucket;
}

static void test_small_allocations_bucket_to_powers_of_two(void **state) {
    (void)state;
    assert_int_equal(bucket_of(0), 1);
    assert_int_equal(bucket_of(1), 1);
    assert_int_equal(bucket_of(3), 4);
    assert_int_equal(bucket_of(1025), 2048);
    assert_int_equal(bucket_of(MIB + 1), 2 * MIB);
    assert_int_equal(bucket_of(2 * MIB), 2 * MIB);
}

static void test_large_allocations_do_not_double(void **state) {
    (void)state;
    assert_int_equal(bucket_of(GIB), GIB);
    assert_int_equal(bucket_of(GIB + 1), GIB + 2 * MIB);
    assert_int_equal(bucket_of(2 * MIB + 1), 4 * MIB);
    uint64_t random = 3, previous_in = 0, previous_out = 1;
    for (int i = 0; i < 20000; i++) {
        uint64_t bytes = next_magnitude(&random) >> 1, bucket = bucket_of(bytes);
        assert_true(bucket >= bytes && bucket >= 1);
        assert_true(bucket - bytes < (bytes <= 2 * MIB ? (bytes ? bytes : 2) : 2 * MIB));
        /* Monotone, so that a larger request is never charged less. */
        if (bytes >= previous_in) assert_true(bucket >= previous_out);
        if (bytes <= previous_in) assert_true(bucket <= previous_out);
        previous_in = bytes, previous_out = bucket;
    }
}

static void test_unroundable_allocation_advises_sharding(void **state) {
    (void)state;
    muster_error error;
    uint64_t bucket = 5;
    assert_int_equal(mu_allocation_bucket(UINT64_MAX, &bucket, &error), MUSTER_LIMIT_REACHED);
    assert_int_equal(bucket, 5);
    assert_non_null(strstr(error.message, "18446744073709551615"));
    assert_non_null(strstr(error.message, "shard"));
}

/* ------------------------------------------------------------------------------------------------- required bytes -- */

static mu_binding input(uint32_t slot) { return (mu_binding){.slot = slot, .takes_input = true}; }
static mu_binding output(uint32_t slot, uint64_t bytes) {
    return (mu_binding){.slot = slot, .has_length = true, .length_bytes = bytes};
}

static void test_required_bytes_sum_buckets_and_parameters(void **state) {
    (void)state;
    uint64_t bytes = 0;
    mu_binding bindings[] = {input(0), output(1, 16)};
    uint64_t inputs[] = {8};
    assert_int_equal(mu_required_bytes(bindings, 2, inputs, 1, 2, &bytes, NULL), MUSTER_OK);
    assert_int_equal(bytes, 32);
    bindings[1] = output(1, 17);
    inputs[0] = 9;
    assert_int_equal(mu_required_bytes(bindings, 2, inputs, 1, 2, &bytes, NULL), MUSTER_OK);
    assert_int_equal(bytes, 16 + 32 + 8);
}

static void test_input_length_wins_over_declared_length(void **state) {
    (void)state;
    uint64_t bytes = 0, inputs[] = {64};
    mu_binding binding = output(0, 1024);
    binding.takes_input = true;
    assert_int_equal(mu_required_bytes(&binding, 1, inputs, 1, 0, &bytes, NULL), MUSTER_OK);
    assert_int_equal(bytes, 64);
}

static void test_zero_byte_buffer_is_charged_one_and_zero_words_nothing(void **state) {
    (void)state;
    uint64_t bytes = 77;
    mu_binding binding = output(0, 0);
    assert_int_equal(mu_required_bytes(&binding, 1, NULL, 0, 0, &bytes, NULL), MUSTER_OK);
    assert_int_equal(bytes, 1);
    assert_int_equal(mu_required_bytes(NULL, 0, NULL, 0, 0, &bytes, NULL), MUSTER_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(mu_required_bytes(NULL, 0, NULL, 0, 1, &bytes, NULL), MUSTER_OK);
    assert_int_equal(bytes, 4);
}

static void test_shared_and_resident_bindings_cost_nothing(void **state) {
    (void)state;
    uint64_t bytes = 77, inputs[] = {100, 8};
    mu_binding shared = output(0, 4096);
    shared.shared = true;
    mu_binding resident = input(1); /* takes the first input, which is resident already */
    resident.resident = true;
    mu_binding bindings[] = {shared, resident, input(2)};
    assert_int_equal(mu_required_bytes(bindings, 3, inputs, 2, 0, &bytes, NULL), MUSTER_OK);
    assert_int_equal(bytes, 8);
    assert_int_equal(mu_required_bytes(bindings, 2, inputs, 1, 0, &bytes, NULL), MUSTER_OK);
    assert_int_equal(bytes, 0);
}

static void test_missing_input_names_binding_index_and_count(void **state) {
    (void)state;
    muster_error error;
    uint64_t bytes = 77, inputs[] = {8};
    mu_binding bindings[] = {input(3), input(41)};
    assert_int_equal(mu_required_bytes(bindings, 2, inputs, 1, 0, &bytes, &error), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(bytes, 77);
    assert_non_null(strstr(error.message, "binding 41"));
    assert_non_null(strstr(error.message, "input 1"));
    assert_non_null(strstr(error.message, "1 inputs"));
}

static void test_output_without_length_says_how_to_give_one(void **state) {
    (void)state;
    muster_error error;
    uint64_t bytes = 77;
    mu_binding binding = {.slot = 6};
    assert_int_equal(mu_required_bytes(&binding, 1, NULL, 0, 0, &bytes, &error), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(bytes, 77);
    assert_non_null(strstr(error.message, "binding 6"));
    assert_non_null(strstr(error.message, "declare its length"));
}

static void test_sum_overflow_advises_sharding(void **state) {
    (void)state;
    muster_error error;
    uint64_t bytes = 77;
    mu_binding bindings[] = {output(0, UINT64_MAX - 4 * MIB), output(1, 8 * MIB)};
    assert_int_equal(mu_required_bytes(bindings, 2, NULL, 0, 0, &bytes, &error), MUSTER_LIMIT_REACHED);
    assert_non_null(strstr(error.message, "shard"));
    assert_int_equal(mu_required_bytes(NULL, 0, NULL, 0, UINT64_MAX / 4 + 1, &bytes, &error), MUSTER_LIMIT_REACHED);
    assert_non_null(strstr(error.message, "shard"));
    assert_int_equal(bytes, 77);
}

static void test_required_bytes_equal_a_wide_model(void **state) {
    (void)state;
    uint64_t random = 11;
    for (int round = 0; round < 2000; round++) {
        mu_binding bindings[8];
        uint64_t inputs[8];
        size_t count = next_random(&random) % 9, given = 0;
        uint64_t words = next_magnitude(&random) >> 3;
        unsigned __int128 expected = (unsigned __int128)words * 4;
        for (size_t i = 0; i < count; i++) {
            uint64_t bytes = next_magnitude(&random) >> 3;
            bindings[i] = output((uint32_t)i, bytes);
            bindings[i].shared = next_random(&random) % 4 == 0;
            bindings[i].resident = next_random(&random) % 4 == 0;
            bindings[i].takes_input = next_random(&random) % 2 == 0;
            if (bindings[i].takes_input && !bindings[i].shared) inputs[given++] = bytes;
            if (!bindings[i].shared && !bindings[i].resident) expected += bucket_of(bytes);
        }
        uint64_t got = 0;
        muster_status status = mu_required_bytes(bindings, count, inputs, given, words, &got, NULL);
        assert_int_equal(status, expected > UINT64_MAX ? MUSTER_LIMIT_REACHED : MUSTER_OK);
        if (!status) assert_true(got == (uint64_t)expected);
    }
}

/* --------------------------------------------------------------------------------------------------------- ledger -- */

static void test_equal_to_the_budget_is_admitted_and_one_more_is_not(void **state) {
    (void)state;
    mu_ledger ledger;
    assert_int_equal(mu_ledger_init(&ledger, 1000, 0, 0, NULL), MUSTER_OK);
    assert_int_equal(ledger.budget, 900);
    assert_int_equal(mu_ledger_reserve(&ledger, 901), MU_NEVER);
    assert_int_equal(mu_ledger_reserve(&ledger, 900), MU_GRANTED);
    assert_int_equal(mu_ledger_reserve(&ledger, 1), MU_NOT_NOW);
    mu_ledger_release(&ledger, 900);
    assert_int_equal(mu_ledger_reserve(&ledger, 899), MU_GRANTED);
    assert_int_equal(mu_ledger_reserve(&ledger, 2), MU_NOT_NOW);
    assert_int_equal(mu_ledger_reserve(&ledger, 1), MU_GRANTED);
    assert_int_equal(mu_ledger_available(&ledger), 0);
}

static void test_refused_reservation_changes_nothing(void **state) {
    (void)state;
    mu_ledger ledger;
    mu_ledger_init(&ledger, 1000, 0, 0, NULL);
    assert_int_equal(mu_ledger_reserve(&ledger, 500), MU_GRANTED);
    mu_ledger_view before = mu_ledger_read(&ledger);
    assert_int_equal(mu_ledger_reserve(&ledger, 401), MU_NOT_NOW);
    assert_int_equal(mu_ledger_reserve(&ledger, UINT64_MAX), MU_NEVER);
    mu_ledger_view after = mu_ledger_read(&ledger);
    assert_memory_equal(&before, &after, sizeof before);
}

static void test_never_fits_excludes_what_cannot_be_evicted(void **state) {
    (void)state;
    mu_ledger ledger;
    mu_ledger_init(&ledger, 1000, 0, 0, NULL);
    mu_ledger_fix(&ledger, 100);
    assert_int_equal(mu_ledger_capacity(&ledger), 800);
    assert_int_equal(mu_ledger_reserve(&ledger, 801), MU_NEVER);
    assert_int_equal(mu_ledger_reserve(&ledger, 800), MU_GRANTED);
    mu_ledger_release(&ledger, 800);
    mu_ledger_unfix(&ledger, 100);
    assert_int_equal(mu_ledger_reserve(&ledger, 900), MU_GRANTED);
}

static void test_absolute_budget_and_limits(void **state) {
    (void)state;
    mu_ledger ledger;
    muster_error error;
    assert_int_equal(mu_ledger_init(&ledger, 1000, 100, 500, NULL), MUSTER_OK);
    assert_int_equal(ledger.budget, 100);
    assert_int_equal(mu_ledger_init(&ledger, 1000, 5000, 0, NULL), MUSTER_OK);
    assert_int_equal(ledger.budget, 1000);
    assert_int_equal(mu_ledger_init(&ledger, 1000, 0, 500, NULL), MUSTER_OK);
    assert_int_equal(ledger.budget, 500);
    assert_int_equal(mu_ledger_init(&ledger, 1000, 0, 1001, &error), MUSTER_INVALID_CONFIG);
    assert_non_null(strstr(error.message, "1001"));
}

static void test_live_memory_limits_after_a_sample(void **state) {
    (void)state;
    mu_ledger ledger;
    mu_ledger_init(&ledger, 10000, 0, 0, NULL);
    assert_true(mu_ledger_read(&ledger).live == UINT64_MAX);
    assert_int_equal(mu_ledger_available(&ledger), 9000);
    /* Another process has all but 1000. */
    mu_ledger_sample(&ledger, 1000, 0, 5);
    assert_int_equal(mu_ledger_available(&ledger), 900);
    assert_int_equal(mu_ledger_reserve(&ledger, 901), MU_NOT_NOW);
    assert_int_equal(mu_ledger_reserve(&ledger, 900), MU_GRANTED);
    /* What was reserved since the sample counts: 100 are left, 90 of them may be taken. */
    assert_int_equal(mu_ledger_available(&ledger), 90);
    mu_ledger_sample(&ledger, 10000, 0, 6);
    assert_int_equal(mu_ledger_available(&ledger), 8100);
}

static void test_own_cached_bytes_count_as_live(void **state) {
    (void)state;
    mu_ledger ledger;
    mu_ledger_init(&ledger, 10000, 0, 0, NULL);
    assert_int_equal(mu_ledger_reserve(&ledger, 3000), MU_GRANTED);
    mu_ledger_use(&ledger, 3000);
    /* The pool holds 5000, 3000 of them in use; the system says 1000 are free: 3000 can be had. */
    mu_ledger_sample(&ledger, 1000, 5000, 5);
    assert_int_equal(mu_ledger_read(&ledger).live, 3000);
    assert_int_equal(mu_ledger_available(&ledger), 2700);
    /* Freeing moves bytes from use to cache: live grows with them, without a sample. */
    mu_ledger_unuse(&ledger, 3000);
    assert_int_equal(mu_ledger_read(&ledger).live, 6000);
}

static void test_use_and_free_keep_the_books(void **state) {
    (void)state;
    mu_ledger ledger;
    mu_ledger_init(&ledger, 1000, 0, 0, NULL);
    mu_ledger_reserve(&ledger, 300);
    mu_ledger_view view = mu_ledger_read(&ledger);
    assert_int_equal(view.reserved, 300);
    assert_int_equal(view.in_use, 0);
    mu_ledger_use(&ledger, 200);
    view = mu_ledger_read(&ledger);
    assert_int_equal(view.reserved, 100);
    assert_int_equal(view.in_use, 200);
    mu_ledger_release(&ledger, 100);
    mu_ledger_unuse(&ledger, 200);
    view = mu_ledger_read(&ledger);
    assert_int_equal(view.reserved, 0);
    assert_int_equal(view.in_use, 0);
    assert_int_equal(atomic_load(&ledger.underflows), 0);
}

static void test_releasing_too_much_is_clamped_and_counted(void **state) {
    (void)state;
    mu_ledger ledger;
    mu_ledger_init(&ledger, 1000, 0, 0, NULL);
    mu_ledger_reserve(&ledger, 10);
    mu_ledger_release(&ledger, 11);
    assert_int_equal(atomic_load(&ledger.underflows), 1);
    assert_int_equal(mu_ledger_reserve(&ledger, 900), MU_GRANTED);
}

static void test_fixed_memory_may_exceed_the_budget(void **state) {
    (void)state;
    mu_ledger ledger;
    mu_ledger_init(&ledger, 1000, 0, 0, NULL);
    mu_ledger_reserve(&ledger, 900);
    mu_ledger_fix(&ledger, 50);
    assert_int_equal(mu_ledger_available(&ledger), 0);
    mu_ledger_release(&ledger, 900);
    assert_int_equal(mu_ledger_available(&ledger), 850);
    mu_ledger_fix(&ledger, UINT64_MAX);
    assert_int_equal(mu_ledger_capacity(&ledger), 0);
    assert_int_equal(mu_ledger_reserve(&ledger, 1), MU_NEVER);
}

static void test_sample_has_an_age(void **state) {
    (void)state;
    mu_ledger ledger;
    mu_ledger_init(&ledger, 1000, 0, 0, NULL);
    assert_true(mu_ledger_sample_age_ns(&ledger, 50) == UINT64_MAX);
    mu_ledger_sample(&ledger, 1000, 0, 100);
    assert_int_equal(mu_ledger_sample_age_ns(&ledger, 130), 30);
    assert_int_equal(mu_ledger_sample_age_ns(&ledger, 90), 0);
}

/* Every operation beside a model of plain integers. */
static void test_ledger_equals_a_sequential_model(void **state) {
    (void)state;
    uint64_t random = 99;
    for (int round = 0; round < 50; round++) {
        mu_ledger ledger;
        uint64_t total = 1 + next_random(&random) % 100000;
        uint32_t permille = 1 + (uint32_t)(next_random(&random) % 1000);
        mu_ledger_init(&ledger, total, 0, permille, NULL);
        uint64_t budget = total * permille / 1000, reserved = 0, used = 0, fixed = 0, ceiling = 0;
        bool sampled = false;
        for (int step = 0; step < 2000; step++) {
            uint64_t bytes = 1 + next_random(&random) % (total / 4 + 1);
            uint64_t committed = reserved + used + fixed;
            switch (next_random(&random) % 7) {
                case 0:
                case 1: {
                    uint64_t room = budget > committed ? budget - committed : 0;
                    uint64_t live = ceiling > committed ? ceiling - committed : 0;
                    if (sampled && live * permille / 1000 < room) room = live * permille / 1000;
                    mu_grant expected = bytes > (budget > fixed ? budget - fixed : 0) ? MU_NEVER
                                        : bytes > room                                ? MU_NOT_NOW
                                                                                      : MU_GRANTED;
                    assert_int_equal(mu_ledger_reserve(&ledger, bytes), expected);
                    if (expected == MU_GRANTED) reserved += bytes;
                    break;
                }
                case 2:
                    bytes = bytes < reserved ? bytes : reserved;
                    mu_ledger_release(&ledger, bytes);
                    reserved -= bytes;
                    break;
                case 3:
                    bytes = bytes < reserved ? bytes : reserved;
                    mu_ledger_use(&ledger, bytes);
                    reserved -= bytes, used += bytes;
                    break;
                case 4:
                    bytes = bytes < used ? bytes : used;
                    mu_ledger_unuse(&ledger, bytes);
                    used -= bytes;
                    break;
                case 5:
                    if (fixed && next_random(&random) % 2) {
                        mu_ledger_unfix(&ledger, fixed);
                        fixed = 0;
                    } else if (fixed < total / 8) {
                        mu_ledger_fix(&ledger, bytes / 16);
                        fixed += bytes / 16;
                    }
                    break;
                default:
                    mu_ledger_sample(&ledger, bytes, used, 1);
                    ceiling = bytes + used + fixed;
                    sampled = true;
                    break;
            }
            mu_ledger_view view = mu_ledger_read(&ledger);
            assert_int_equal(view.reserved, reserved);
            assert_int_equal(view.in_use, used);
            assert_int_equal(view.fixed, fixed);
        }
        assert_int_equal(atomic_load(&ledger.underflows), 0);
    }
}

/* --------------------------------------------------------------------------------------------------------- shares -- */

static void init_shares(mu_ledger *shares, uint32_t count, mu_ledger_device *device, uint64_t total,
                        uint32_t permille) {
    mu_ledger_device_init(device);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(mu_ledger_init(&shares[i], total, 0, permille, NULL), MUSTER_OK);
        mu_ledger_share(&shares[i], device, count);
    }
}

static void test_shares_divide_the_budget_evenly_rounding_down(void **state) {
    (void)state;
    mu_ledger shares[16];
    mu_ledger_device device;
    for (uint32_t count = 1; count <= 16; count++) {
        init_shares(shares, count, &device, 12345, 1000);
        for (uint32_t i = 0; i < count; i++) assert_int_equal(mu_ledger_read(&shares[i]).budget, 12345 / count);
        assert_int_equal(mu_ledger_read(&shares[0]).total, 12345);
    }
}

static void test_a_full_share_leaves_the_other_its_whole_share(void **state) {
    (void)state;
    mu_ledger shares[2];
    mu_ledger_device device;
    init_shares(shares, 2, &device, 10000, 900);
    mu_ledger_sample(&shares[1], 10000, 0, 1);
    assert_int_equal(mu_ledger_reserve(&shares[0], 4501), MU_NEVER);
    assert_int_equal(mu_ledger_reserve(&shares[0], 4500), MU_GRANTED);
    assert_int_equal(mu_ledger_reserve(&shares[0], 1), MU_NOT_NOW);
    /* Reserved, allocated, or also seen by a sample: the other has its share. */
    assert_int_equal(mu_ledger_available(&shares[1]), 4500);
    mu_ledger_use(&shares[0], 4500);
    mu_ledger_hold(&shares[0], 4600);
    assert_int_equal(mu_ledger_available(&shares[1]), 4500);
    mu_ledger_sample(&shares[1], 10000 - 4600, 0, 2);
    assert_int_equal(mu_ledger_read(&shares[1]).live, 5500);
    assert_int_equal(mu_ledger_available(&shares[1]), 4500);
    assert_int_equal(mu_ledger_reserve(&shares[1], 4500), MU_GRANTED);
    assert_int_equal(mu_ledger_reserve(&shares[1], 1), MU_NOT_NOW);
    mu_ledger_unuse(&shares[0], 4500);
    mu_ledger_release(&shares[1], 4500);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mu_ledger_available(&shares[i]), 4500);
        assert_int_equal(atomic_load(&shares[i].underflows), 0);
    }
    assert_int_equal(atomic_load(&device.committed), 0);
}

static void test_what_one_share_takes_is_not_there_for_another(void **state) {
    (void)state;
    mu_ledger shares[2];
    mu_ledger_device device;
    init_shares(shares, 2, &device, 10000, 900);
    /* Another process has 6000. The first share's sample serves the second too. */
    mu_ledger_sample(&shares[0], 4000, 0, 1);
    assert_int_equal(mu_ledger_reserve(&shares[0], 3000), MU_GRANTED);
    assert_int_equal(mu_ledger_available(&shares[1]), 900);
    assert_int_equal(mu_ledger_reserve(&shares[1], 901), MU_NOT_NOW);
    assert_int_equal(mu_ledger_read(&shares[1]).reserved, 0); /* refused: changed nothing */
    assert_int_equal(mu_ledger_reserve(&shares[1], 900), MU_GRANTED);
    mu_ledger_release(&shares[0], 3000);
    assert_int_equal(mu_ledger_available(&shares[0]), 2790);
    assert_int_equal(mu_ledger_available(&shares[1]), 2790);
}

static void test_what_another_share_caches_or_fixed_is_not_another_process(void **state) {
    (void)state;
    mu_ledger shares[2];
    mu_ledger_device device;
    init_shares(shares, 2, &device, 10000, 900);
    mu_ledger_reserve(&shares[0], 1000);
    mu_ledger_use(&shares[0], 1000);
    mu_ledger_hold(&shares[0], 3000);
    mu_ledger_fix(&shares[0], 500);
    assert_int_equal(mu_ledger_cached(&shares[0]), 2000);
    assert_int_equal(mu_ledger_cached(&shares[1]), 0);
    assert_int_equal(mu_ledger_others(&shares[1]), 3500);
    assert_int_equal(mu_ledger_others(&shares[0]), 0);
    /* 6000 are free: 2000 that the other caches can be had beside, its 1500 not. */
    mu_ledger_sample(&shares[1], 6000, 0, 1);
    assert_int_equal(mu_ledger_read(&shares[1]).live, 8000);
    /* A pool that shrank while the driver was asked is not counted beside the memory that it gave back. */
    mu_ledger_hold(&shares[0], 1000);
    mu_ledger_sample_beside(&shares[1], 8000, 0, mu_ledger_others(&shares[1]), 2);
    assert_int_equal(mu_ledger_read(&shares[1]).live, 8000);
    mu_ledger_unfix(&shares[0], 500);
    mu_ledger_hold(&shares[0], 0);
    mu_ledger_unuse(&shares[0], 1000);
    assert_int_equal(atomic_load(&device.held), 0);
    assert_int_equal(atomic_load(&device.fixed), 0);
    assert_int_equal(atomic_load(&device.committed), 0);
}

/* -------------------------------------------------------------------------------------------------------- threads -- */

enum { THREADS = 8, ROUNDS = 20000, BUDGET = 1000 };

typedef struct crowd {
    mu_ledger ledger;
    atomic_uint_fast64_t held; /* what the threads believe they hold together */
    atomic_uint_fast64_t highest, granted, refused;
} crowd;

static void *reserve_and_release(void *argument) {
    crowd *shared = argument;
    uint64_t random = (uintptr_t)&random | 1;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t bytes = 1 + next_random(&random) % 400;
        if (mu_ledger_reserve(&shared->ledger, bytes) != MU_GRANTED) {
            atomic_fetch_add(&shared->refused, 1);
            continue;
        }
        /* Counted after the grant and before the release, so `held` never exceeds what the ledger has granted. */
        uint64_t held = atomic_fetch_add(&shared->held, bytes) + bytes;
        uint_fast64_t highest = atomic_load(&shared->highest);
        while (held > highest && !atomic_compare_exchange_weak(&shared->highest, &highest, held)) {
        }
        atomic_fetch_add(&shared->granted, 1);
        if (i % 3) {
            mu_ledger_use(&shared->ledger, bytes);
            atomic_fetch_sub(&shared->held, bytes);
            mu_ledger_unuse(&shared->ledger, bytes);
        } else {
            atomic_fetch_sub(&shared->held, bytes);
            mu_ledger_release(&shared->ledger, bytes);
        }
    }
    return NULL;
}

static void test_threads_never_exceed_the_budget(void **state) {
    (void)state;
    static crowd shared;
    pthread_t threads[THREADS];
    assert_int_equal(mu_ledger_init(&shared.ledger, BUDGET, 0, 1000, NULL), MUSTER_OK);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, reserve_and_release, &shared), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_true(atomic_load(&shared.highest) <= BUDGET);
    assert_int_equal(atomic_load(&shared.granted) + atomic_load(&shared.refused), (uint64_t)THREADS * ROUNDS);
    assert_true(atomic_load(&shared.granted) > 0);
    assert_int_equal(mu_ledger_available(&shared.ledger), BUDGET);
    assert_int_equal(atomic_load(&shared.ledger.underflows), 0);
}

enum { SHARES = 4, LIVE = 600 };

typedef struct shared_crowd {
    mu_ledger shares[SHARES];
    mu_ledger_device device;
    atomic_uint_fast64_t held[SHARES], all; /* what the threads believe they hold */
    atomic_uint next, granted, wrong;
} shared_crowd;

/* Two threads a share; reserving, and telling of a pool and of a module too. */
static void *use_a_share(void *argument) {
    shared_crowd *crowd = argument;
    uint32_t share = atomic_fetch_add(&crowd->next, 1) % SHARES;
    mu_ledger *ledger = &crowd->shares[share];
    uint64_t random = (uintptr_t)&random | 1;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t bytes = 1 + next_random(&random) % 120;
        if (mu_ledger_reserve(ledger, bytes) != MU_GRANTED) continue;
        /* Counted between grant and release, so never more than what was granted. */
        uint64_t own = atomic_fetch_add(&crowd->held[share], bytes) + bytes;
        uint64_t all = atomic_fetch_add(&crowd->all, bytes) + bytes;
        if (own > BUDGET / SHARES || all > LIVE) atomic_fetch_add(&crowd->wrong, 1);
        atomic_fetch_add(&crowd->granted, 1);
        atomic_fetch_sub(&crowd->all, bytes);
        atomic_fetch_sub(&crowd->held[share], bytes);
        mu_ledger_use(ledger, bytes);
        mu_ledger_hold(ledger, bytes);
        mu_ledger_unuse(ledger, bytes);
    }
    return NULL;
}

static void test_threads_of_shares_exceed_neither_their_share_nor_the_device(void **state) {
    (void)state;
    static shared_crowd crowd;
    pthread_t threads[THREADS];
    init_shares(crowd.shares, SHARES, &crowd.device, BUDGET, 1000);
    mu_ledger_sample(&crowd.shares[0], LIVE, 0, 1); /* less than the sum of the shares: another process has the rest */
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, use_a_share, &crowd), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&crowd.wrong), 0);
    assert_true(atomic_load(&crowd.granted) > 0);
    assert_int_equal(atomic_load(&crowd.device.committed), 0);
    uint64_t held = 0;
    for (int i = 0; i < SHARES; i++) {
        held += atomic_load(&crowd.shares[i].held);
        assert_int_equal(mu_ledger_available(&crowd.shares[i]), BUDGET / SHARES);
        assert_int_equal(atomic_load(&crowd.shares[i].underflows), 0);
    }
    assert_int_equal(atomic_load(&crowd.device.held), held);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget_fraction_is_nine_tenths_exact),
        cmocka_unit_test(test_budget_fraction_is_configurable),
        cmocka_unit_test(test_accounted_headroom_is_zero_once_used),
        cmocka_unit_test(test_effective_budget_is_the_smaller_of_accounted_and_live),
        cmocka_unit_test(test_resident_limit_grows_by_the_live_budget),
        cmocka_unit_test(test_power_of_two_bucket_is_next_power_checked),
        cmocka_unit_test(test_small_allocations_bucket_to_powers_of_two),
        cmocka_unit_test(test_large_allocations_do_not_double),
        cmocka_unit_test(test_unroundable_allocation_advises_sharding),
        cmocka_unit_test(test_required_bytes_sum_buckets_and_parameters),
        cmocka_unit_test(test_input_length_wins_over_declared_length),
        cmocka_unit_test(test_zero_byte_buffer_is_charged_one_and_zero_words_nothing),
        cmocka_unit_test(test_shared_and_resident_bindings_cost_nothing),
        cmocka_unit_test(test_missing_input_names_binding_index_and_count),
        cmocka_unit_test(test_output_without_length_says_how_to_give_one),
        cmocka_unit_test(test_sum_overflow_advises_sharding),
        cmocka_unit_test(test_required_bytes_equal_a_wide_model),
        cmocka_unit_test(test_equal_to_the_budget_is_admitted_and_one_more_is_not),
        cmocka_unit_test(test_refused_reservation_changes_nothing),
        cmocka_unit_test(test_never_fits_excludes_what_cannot_be_evicted),
        cmocka_unit_test(test_absolute_budget_and_limits),
        cmocka_unit_test(test_live_memory_limits_after_a_sample),
        cmocka_unit_test(test_own_cached_bytes_count_as_live),
        cmocka_unit_test(test_use_and_free_keep_the_books),
        cmocka_unit_test(test_releasing_too_much_is_clamped_and_counted),
        cmocka_unit_test(test_fixed_memory_may_exceed_the_budget),
        cmocka_unit_test(test_sample_has_an_age),
        cmocka_unit_test(test_ledger_equals_a_sequential_model),
        cmocka_unit_test(test_shares_divide_the_budget_evenly_rounding_down),
        cmocka_unit_test(test_a_full_share_leaves_the_other_its_whole_share),
        cmocka_unit_test(test_what_one_share_takes_is_not_there_for_another),
        cmocka_unit_test(test_what_another_share_caches_or_fixed_is_not_another_process),
        cmocka_unit_test(test_threads_never_exceed_the_budget),
        cmocka_unit_test(test_threads_of_shares_exceed_neither_their_share_nor_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
