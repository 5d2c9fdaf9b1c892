/* The range table against a model with one record per byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "scheduler/memory/coherence.h"

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

static void model_area(byte_state model[BYTES], const mu_area *area, int what, int device, uint64_t epoch) {
    for (uint32_t row = 0; row < area->rows; row++) {
        uint64_t low = mu_area_row(area, row);
        model_change(model, (uint32_t)low, (uint32_t)(low + mu_area_width(area)), what, device, epoch);
    }
}

static mu_area draw_area(void) {
    mu_area area = {.rows = 1 + below(8)};
    do {
        area.low = below(BYTES);
        area.high = area.low + 1 + below(12);
        area.pitch = below(2) ? 24 : mu_area_width(&area) + below(20);
    } while (mu_area_end(&area) > BYTES);
    return area;
}

static bool change_area(mu_coherence *table, const mu_area *area, int what, int device, uint64_t epoch) {
    if (what == 0) return mu_coherence_written_area(table, area, device, epoch);
    if (what == 1) return mu_coherence_copied_area(table, area, device, epoch);
    mu_coherence_lose_area(table, area, device);
    return true;
}

/* A walk meets each byte of the area once, in its segment. */
static void check_walk(const mu_coherence *table, const mu_area *area) {
    uint64_t at = area->low, met = 0;
    mu_walk walk;
    for (const mu_segment *segment = mu_walk_first(&walk, table, area); segment; segment = mu_walk_next(&walk)) {
        if (walk.low != at) at = mu_area_row(area, walk.row);
        assert_int_equal(walk.low, at);
        assert_true(segment->low <= walk.low && walk.low < walk.high && walk.high <= segment->high);
        met += walk.high - walk.low;
        at = walk.high;
    }
    assert_int_equal(met, mu_area_bytes(area));
}

static void random_areas_match_the_model(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        mu_coherence table;
        byte_state model[BYTES];
        random_state = seed * 77 + 5;
        assert_int_equal(mu_coherence_init(&table, BYTES, DEVICES, true, NULL), MUSTER_OK);
        for (int at = 0; at < BYTES; at++) model[at] = (byte_state){.valid = MU_LOCATION_HOST};
        for (uint64_t epoch = 1; epoch < 300; epoch++) {
            mu_area area = draw_area();
            int what = below(12) == 0 ? 2 : (int)below(2), device = (int)below(DEVICES + 1) - 1;
            if (what == 2) device = MUSTER_ANY_DEVICE;
            assert_true(change_area(&table, &area, what, device, epoch));
            model_area(model, &area, what, device, epoch);
            check_shape(&table);
            check_bytes(&table, model);
            area = draw_area();
            check_walk(&table, &area);
        }
        mu_coherence_destroy(&table);
    }
}

/* As many rows as are alike, and no further than the end. */
static void repeats_are_counted(void **state) {
    (void)state;
    mu_coherence table;
    assert_int_equal(mu_coherence_init(&table, BYTES, DEVICES, true, NULL), MUSTER_OK);
    const mu_area columns = {10, 14, 20, 8};
    assert_true(mu_coherence_written_area(&table, &columns, 1, 5));
    assert_int_equal(table.pitch, 20);
    assert_true(mu_coherence_written(&table, 50, 54, 1, 9));
    assert_true(mu_coherence_copied(&table, 110, 114, 0, 5));
    uint64_t stamp;
    const mu_segment *first = mu_coherence_find(&table, 10);
    assert_int_equal(mu_coherence_repeats(&table, first, 10, 14, 20, BYTES, 1, &stamp), 5);
    assert_int_equal(stamp, 9);
    assert_int_equal(mu_coherence_repeats(&table, first, 10, 14, 20, 54, 1, &stamp), 3);
    assert_int_equal(mu_coherence_repeats(&table, first, 10, 14, 20, 53, 1, &stamp), 2);
    assert_int_equal(stamp, 5);
    assert_int_equal(mu_coherence_repeats(&table, first, 10, 14, 0, BYTES, 1, &stamp), 1);
    assert_int_equal(mu_coherence_repeats(&table, first, 10, 14, 21, BYTES, 1, &stamp), 1);
    assert_int_equal(mu_coherence_repeats(&table, first, 11, 14, 20, BYTES, MUSTER_ANY_DEVICE, &stamp), 5);
    assert_int_equal(stamp, 0);
    mu_coherence_destroy(&table);
}

/* Whichever row finds no memory, none has changed. */
static void rows_change_together_or_not_at_all(void **state) {
    (void)state;
    uint32_t refused = 0;
    for (uint64_t n = 1; n < 12; n++) {
        mu_coherence table;
        byte_state model[BYTES];
        assert_int_equal(mu_coherence_init(&table, BYTES, DEVICES, true, NULL), MUSTER_OK);
        for (int at = 0; at < BYTES; at++) model[at] = (byte_state){.valid = MU_LOCATION_HOST};
        random_state = n;
        for (uint64_t epoch = 1; epoch < 40; epoch++) {
            const mu_area area = draw_area();
            mu_alloc_fail_at(1 + epoch % n, false);
            if (change_area(&table, &area, (int)(epoch % 2), (int)(epoch % DEVICES), epoch))
                model_area(model, &area, (int)(epoch % 2), (int)(epoch % DEVICES), epoch);
            else
                refused++;
            mu_alloc_fail_at(0, false);
            check_shape(&table);
            check_bytes(&table, model);
        }
        mu_coherence_destroy(&table);
    }
    assert_true(refused > 10);
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
        cmocka_unit_test(random_updates_match_the_model),
        cmocka_unit_test(an_empty_range_changes_nothing),
        cmocka_unit_test(restamping_raises_what_is_valid_there),
        cmocka_unit_test(instances_are_found_and_united),
        cmocka_unit_test(running_out_of_memory_changes_nothing),
        cmocka_unit_test(random_areas_match_the_model),
        cmocka_unit_test(repeats_are_counted),
        cmocka_unit_test(rows_change_together_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
