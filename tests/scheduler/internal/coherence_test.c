/* The range table against a model that keeps one state per byte. */
#include "scheduler/coherence.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"

enum { BYTES = 64, DEVICES = 3 };

typedef struct byte_state {
    mu_location_mask valid;
    bool undefined, zero;
    uint64_t stamps[DEVICES];
} byte_state;

static uint64_t random_state;

static uint32_t draw(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static void check_table(const mu_coherence *table, const byte_state *model) {
    assert_int_equal(table->segments[0].low, 0);
    assert_int_equal(table->segments[table->count - 1].high, BYTES);
    for (uint32_t i = 0; i < table->count; i++) {
        const mu_segment *segment = &table->segments[i];
        assert_true(segment->low < segment->high);
        if (i) {
            const mu_segment *before = &table->segments[i - 1];
            assert_int_equal(before->high, segment->low);
        }
        for (uint64_t at = segment->low; at < segment->high; at++) {
            assert_int_equal(mu_coherence_find(table, at), i);
            assert_int_equal(segment->valid, model[at].valid);
            assert_int_equal(segment->undefined, model[at].undefined);
            assert_int_equal(segment->zero, model[at].zero);
            /* A joined segment may claim a later epoch than a byte needs, never an earlier one. */
            for (int d = 0; d < DEVICES; d++)
                if (model[at].valid & MU_LOCATION_DEVICE(d))
                    assert_true(mu_coherence_stamp(table, i, d) >= model[at].stamps[d]);
        }
    }
}

static void random_change(mu_coherence *table, byte_state *model, uint64_t epoch) {
    uint64_t low = draw(BYTES), high = low + 1 + draw((uint32_t)(BYTES - low));
    int device = (int)draw(DEVICES + 1) - 1;
    mu_location_mask bit = device < 0 ? MU_LOCATION_HOST : MU_LOCATION_DEVICE(device);
    uint32_t kind = draw(8);
    if (kind < 4)
        assert_true(mu_coherence_written(table, low, high, device, epoch));
    else if (kind < 7)
        assert_true(mu_coherence_copied(table, low, high, device, epoch));
    else
        assert_true(mu_coherence_undefined(table, low, high));
    for (uint64_t at = low; at < high; at++) {
        byte_state *byte = &model[at];
        if (kind < 4)
            byte->valid = bit, byte->undefined = byte->zero = false;
        else if (kind < 7 && !byte->undefined)
            byte->valid |= bit, byte->zero = false;
        else if (kind == 7)
            byte->valid = 0, byte->undefined = true, byte->zero = false;
        if (device >= 0 && kind < 7) byte->stamps[device] = epoch;
    }
}

static void test_table_equals_a_model_of_single_bytes(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        random_state = seed;
        mu_coherence table;
        byte_state model[BYTES];
        memset(model, 0, sizeof model);
        bool host = draw(2);
        assert_int_equal(mu_coherence_init(&table, BYTES, DEVICES, host, NULL), MUSTER_OK);
        for (int i = 0; i < BYTES; i++) model[i].valid = host ? MU_LOCATION_HOST : 0, model[i].zero = !host;
        for (uint64_t epoch = 1; epoch <= 200; epoch++) {
            random_change(&table, model, epoch);
            check_table(&table, model);
        }
        mu_coherence_destroy(&table);
    }
}

static void test_neighbours_in_the_same_state_are_one_segment(void **state) {
    (void)state;
    mu_coherence table;
    assert_int_equal(mu_coherence_init(&table, BYTES, DEVICES, true, NULL), MUSTER_OK);
    for (uint64_t at = 0; at < BYTES; at += 4) assert_true(mu_coherence_written(&table, at, at + 4, 1, at + 1));
    assert_int_equal(table.count, 1);
    assert_int_equal(mu_coherence_stamp(&table, 0, 1), BYTES - 3);
    mu_coherence_destroy(&table);
}

static void test_hull_joins_every_instance_it_touches(void **state) {
    (void)state;
    mu_coherence table;
    assert_int_equal(mu_coherence_init(&table, BYTES, DEVICES, true, NULL), MUSTER_OK);
    mu_instance c = {.low = 40, .high = 50}, b = {.next = &c, .low = 18, .high = 30}, a = {.next = &b, .low = 0, .high = 10};
    table.instances[2] = &a;
    uint64_t low = 8, high = 20;
    mu_coherence_hull(&table, 2, &low, &high);
    assert_int_equal(low, 0);
    assert_int_equal(high, 30);
    low = 10, high = 18; /* touches nothing */
    mu_coherence_hull(&table, 2, &low, &high);
    assert_int_equal(low, 10);
    assert_int_equal(high, 18);
    assert_ptr_equal(mu_coherence_instance(&table, 2, 18, 30), &b);
    assert_null(mu_coherence_instance(&table, 2, 29, 31));
    assert_null(mu_coherence_instance(&table, 1, 18, 30));
    mu_coherence_destroy(&table);
}

static void test_out_of_memory_changes_nothing(void **state) {
    (void)state;
    mu_coherence table;
    byte_state model[BYTES];
    memset(model, 0, sizeof model);
    for (int i = 0; i < BYTES; i++) model[i].valid = MU_LOCATION_HOST;
    assert_int_equal(mu_coherence_init(&table, BYTES, DEVICES, true, NULL), MUSTER_OK);
    for (uint64_t at = 0; at < 12; at += 4) {
        mu_alloc_fail_at(1, true);
        bool done = mu_coherence_written(&table, at, at + 2, 0, at + 1);
        mu_alloc_fail_at(0, false);
        for (uint64_t i = at; done && i < at + 2; i++) model[i] = (byte_state){.valid = 1, .stamps = {at + 1}};
        check_table(&table, model);
    }
    mu_coherence_destroy(&table);
    for (uint64_t nth = 1; nth <= 3; nth++) {
        mu_alloc_fail_at(nth, false);
        assert_int_equal(mu_coherence_init(&table, BYTES, DEVICES, true, NULL), MUSTER_OUT_OF_HOST_MEMORY);
        mu_alloc_fail_at(0, false);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_equals_a_model_of_single_bytes),
        cmocka_unit_test(test_neighbours_in_the_same_state_are_one_segment),
        cmocka_unit_test(test_hull_joins_every_instance_it_touches),
        cmocka_unit_test(test_out_of_memory_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
