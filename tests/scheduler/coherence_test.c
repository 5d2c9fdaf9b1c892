/* The range table against a model with one record per byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "scheduler/coherence.h"

enum { BYTES = 200, DEVICES = 3 };

typedef struct byte_state {
    mu_location_mask valid;
    bool undefined, zero;
    uint64_t stamp[DEVICES]; /* of the locations in `valid` */
} byte_state;

static uint64_t random_state;
static uint32_t below(uint32_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

static void check_shape(const mu_coherence *table) {
    uint64_t at = 0;
    mu_range_cursor cursor;
    const mu_segment *left = NULL, *segment = mu_coherence_first(table, &cursor, 0);
    for (; segment; left = segment, segment = mu_coherence_next(table, &cursor)) {
        assert_int_equal(segment->low, at);
        assert_true(segment->low < segment->high);
        at = segment->high;
        /* A byte is on some device, or zero, or undefined, and only one of these; or on the host, which may know that it is
         * zero. */
        mu_location_mask held = segment->zero ? segment->valid & ~MU_LOCATION_HOST : segment->valid;
        assert_int_equal((held != 0) + segment->zero + segment->undefined, 1);
        if (left)
            assert_false(left->valid == segment->valid && left->zero == segment->zero &&
                         left->undefined == segment->undefined);
    }
    assert_int_equal(at, BYTES);
}

/* Stamps may be later than the model's, where neighbours were joined, but never earlier. */
static void check_bytes(const mu_coherence *table, const byte_state model[BYTES]) {
    for (uint32_t at = 0; at < BYTES; at++) {
        const mu_segment *segment = mu_coherence_find(table, at);
        assert_true(segment->low <= at && at < segment->high);
        assert_int_equal(segment->valid, model[at].valid);
        assert_int_equal(segment->undefined, model[at].undefined);
        assert_int_equal(segment->zero, model[at].zero);
        for (int d = 0; d < DEVICES; d++)
            if (segment->valid & MU_LOCATION_DEVICE(d)) assert_true(segment->stamps[d] >= model[at].stamp[d]);
    }
}

static void model_change(byte_state model[BYTES], uint32_t low, uint32_t high, int what, int device, uint64_t epoch) {
    mu_location_mask bit = device < 0 ? MU_LOCATION_HOST : MU_LOCATION_DEVICE(device);
    for (uint32_t at = low; at < high; at++) {
        byte_state *byte = &model[at];
        if (what == 2) {
            *byte = (byte_state){.undefined = true};
            continue;
        }
        if (what == 1 && byte->undefined) continue;
        byte->valid = what == 0 ? bit : byte->valid | bit;
        byte->undefined = false;
        if (what == 0 || device >= 0) byte->zero = false;
        if (device >= 0) byte->stamp[device] = epoch;
    }
}

static void random_updates_match_the_model(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        mu_coherence table;
        byte_state model[BYTES];
        random_state = seed * 77 + 5;
        bool host = seed & 1;
        assert_int_equal(mu_coherence_init(&table, BYTES, DEVICES, host, NULL), MUSTER_OK);
        for (int at = 0; at < BYTES; at++)
            model[at] = (byte_state){.valid = host ? MU_LOCATION_HOST : 0, .zero = !host};
        for (uint64_t epoch = 1; epoch < 300; epoch++) {
            uint32_t low = below(BYTES), high = low + 1 + below(BYTES - low);
            if (below(3)) low = low / 20 * 20, high = (high + 19) / 20 * 20; /* often the same places */
            int what = below(12) == 0 ? 2 : (int)below(2), device = (int)below(DEVICES + 1) - 1;
            mu_coherence_lock(&table);
            bool done = what == 0   ? mu_coherence_written(&table, low, high, device, epoch)
                        : what == 1 ? mu_coherence_copied(&table, low, high, device, epoch)
                                    : mu_coherence_undefined(&table, low, high);
            mu_coherence_unlock(&table);
            assert_true(done);
            model_change(model, low, high, what, device, epoch);
            check_shape(&table);
            check_bytes(&table, model);
        }
        mu_coherence_destroy(&table);
    }
}

static void an_empty_range_changes_nothing(void **state) {
    (void)state;
    mu_coherence table;
    assert_int_equal(mu_coherence_init(&table, BYTES, DEVICES, true, NULL), MUSTER_OK);
    assert_true(mu_coherence_copied(&table, 50, 50, 1, 9));
    assert_true(mu_coherence_undefined(&table, 0, 0));
    assert_int_equal(mu_ranges_count(&table.segments), 1);
    assert_int_equal(mu_coherence_find(&table, 0)->valid, MU_LOCATION_HOST);
    mu_coherence_destroy(&table);
}

/* What was valid there moves; no other stamp does, and none goes back. */
static void restamping_raises_what_is_valid_there(void **state) {
    (void)state;
    mu_coherence table;
    assert_int_equal(mu_coherence_init(&table, BYTES, DEVICES, true, NULL), MUSTER_OK);
    assert_true(mu_coherence_written(&table, 0, 50, 0, 3));
    assert_true(mu_coherence_written(&table, 50, 100, 1, 4));
    assert_true(mu_coherence_copied(&table, 50, 100, 0, 5));
    mu_coherence_restamp(&table, 0, BYTES, 0, 8);
    assert_int_equal(mu_coherence_find(&table, 10)->stamps[0], 8);
    assert_int_equal(mu_coherence_find(&table, 60)->stamps[0], 8);
    assert_int_equal(mu_coherence_find(&table, 60)->stamps[1], 4);
    mu_coherence_destroy(&table);
}

static void instances_are_found_and_united(void **state) {
    (void)state;
    mu_coherence table;
    assert_int_equal(mu_coherence_init(&table, 1000, DEVICES, true, NULL), MUSTER_OK);
    mu_instance a = {.low = 100, .high = 200}, b = {.low = 300, .high = 400}, c = {.low = 200, .high = 250};
    a.next = &b;
    b.next = &c;
    table.instances[1] = &a;
    assert_ptr_equal(mu_coherence_instance(&table, 1, 100, 200), &a);
    assert_ptr_equal(mu_coherence_instance(&table, 1, 399, 400), &b);
    assert_null(mu_coherence_instance(&table, 1, 199, 201)); /* in two */
    assert_null(mu_coherence_instance(&table, 1, 99, 101));
    assert_null(mu_coherence_instance(&table, 0, 100, 200));
    uint64_t low = 400, high = 500; /* touching is not overlapping */
    mu_coherence_hull(&table, 1, &low, &high);
    assert_true(low == 400 && high == 500);
    low = 240, high = 310;
    mu_coherence_hull(&table, 1, &low, &high);
    assert_true(low == 200 && high == 400);
    low = 150, high = 301;
    mu_coherence_hull(&table, 1, &low, &high);
    assert_true(low == 100 && high == 400);
    table.instances[1] = NULL;
    mu_coherence_destroy(&table);
}

/* A split that finds no memory changes nothing. */
static void running_out_of_memory_changes_nothing(void **state) {
    (void)state;
    for (uint64_t n = 1; n < 6; n++) {
        mu_coherence table;
        mu_alloc_fail_at(n, false);
        muster_error error = {0};
        muster_status status = mu_coherence_init(&table, BYTES, DEVICES, true, &error);
        if (status != MUSTER_OK) {
            assert_int_equal(status, MUSTER_OUT_OF_HOST_MEMORY);
            mu_alloc_fail_at(0, false);
            continue;
        }
        byte_state model[BYTES];
        for (int at = 0; at < BYTES; at++) model[at] = (byte_state){.valid = MU_LOCATION_HOST};
        bool refused = false;
        for (uint32_t i = 0; i < 20; i++) {
            if (mu_coherence_written(&table, 10 * i + 3, 10 * i + 7, (int)(i % DEVICES), i))
                model_change(model, 10 * i + 3, 10 * i + 7, 0, (int)(i % DEVICES), i);
            else
                refused = true;
            check_shape(&table);
            check_bytes(&table, model);
        }
        assert_true(refused);
        mu_alloc_fail_at(0, false);
        mu_coherence_destroy(&table);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_updates_match_the_model),        cmocka_unit_test(an_empty_range_changes_nothing),
        cmocka_unit_test(restamping_raises_what_is_valid_there), cmocka_unit_test(instances_are_found_and_united),
        cmocka_unit_test(running_out_of_memory_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
