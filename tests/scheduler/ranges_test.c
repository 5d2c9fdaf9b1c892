/* Ordered sets of ranges against a model with one record per byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/tuning.h"
#include "scheduler/memory/ranges.h"

enum { BYTES = 6000 };

typedef struct item {
    uint64_t low, high;
    uint64_t tag, check; /* check == ~tag: items are moved whole */
} item;

typedef struct byte_model {
    uint64_t tag[BYTES];
    bool begins[BYTES + 1]; /* an item begins here */
} byte_model;

static uint64_t random_state;
static uint32_t below(uint32_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

static void start(mu_ranges *ranges, byte_model *model) {
    item *whole = mu_ranges_init(ranges, BYTES, sizeof(item));
    assert_non_null(whole);
    assert_true(whole->low == 0 && whole->high == BYTES && whole->tag == 0);
    whole->tag = 1;
    whole->check = ~whole->tag;
    for (int i = 0; i < BYTES; i++) model->tag[i] = 1;
    memset(model->begins, 0, sizeof model->begins);
    model->begins[0] = model->begins[BYTES] = true;
}

static void check(const mu_ranges *ranges, const byte_model *model) {
    mu_range_cursor cursor = {0, 0};
    uint64_t at = 0, count = 0;
    for (const item *i = mu_ranges_seek(ranges, &cursor, 0); i; i = mu_ranges_next(ranges, &cursor), count++) {
        assert_int_equal(i->low, at);
        assert_true(i->low < i->high && i->high <= BYTES);
        assert_int_equal(i->check, ~i->tag);
        for (uint64_t b = i->low; b < i->high; b++) {
            assert_int_equal(model->tag[b], i->tag);
            assert_int_equal(model->begins[b], b == i->low);
        }
        at = i->high;
    }
    assert_int_equal(at, BYTES);
    assert_int_equal(mu_ranges_count(ranges), count);
    for (uint32_t c = 0; c < ranges->chunk_count; c++) {
        const mu_range_chunk *chunk = mu_ranges_chunk(ranges, c);
        assert_in_range(chunk->count, 1, chunk->capacity);
    }
    /* Neighbours are not both small: what is held follows what there is. */
    for (uint32_t c = 1; c < ranges->chunk_count; c++)
        assert_true(mu_ranges_chunk(ranges, c - 1)->count + mu_ranges_chunk(ranges, c)->count >
                    MU_RANGES_CHUNK_ITEMS / 2);
}

/* From wherever the cursor stands. */
static void check_seek(const mu_ranges *ranges, const byte_model *model) {
    mu_range_cursor cursor = {below(2 * ranges->chunk_count + 1), below(100)};
    for (int step = 0; step < 20; step++) {
        uint32_t position = below(BYTES), low = position, high = position + 1;
        while (!model->begins[low]) low--;
        while (!model->begins[high]) high++;
        const item *found = mu_ranges_seek(ranges, &cursor, position);
        assert_int_equal(found->low, low);
        assert_int_equal(found->high, high);
        assert_ptr_equal(found, mu_ranges_at(ranges, cursor));
    }
}

static void model_cut(byte_model *model, uint32_t low, uint32_t high) {
    model->begins[low] = model->begins[high] = true;
}

/* Cuts [low, high) out and gives it a tag; with `join`, as one item. */
static void change(mu_ranges *ranges, byte_model *model, mu_range_cursor *cursor, uint32_t low, uint32_t high,
                   uint64_t tag, bool join) {
    item *first = mu_ranges_cut(ranges, cursor, low, high);
    assert_non_null(first);
    assert_int_equal(first->low, low);
    model_cut(model, low, high);
    if (join) {
        first = mu_ranges_join(ranges, cursor, high);
        assert_ptr_equal(first, mu_ranges_at(ranges, *cursor));
        assert_true(first->low == low && first->high == high);
        memset(&model->begins[low + 1], 0, high - low - 1);
    }
    mu_range_cursor at = *cursor;
    for (item *i = first; i && i->low < high; i = mu_ranges_next(ranges, &at)) i->tag = tag, i->check = ~tag;
    for (uint32_t b = low; b < high; b++) model->tag[b] = tag;
}

/* Short ranges make many items, long ones few; phases of both. */
static void random_changes_match_the_model(void **state) {
    (void)state;
    static byte_model model;
    uint64_t most = 0;
    for (uint64_t seed = 0; seed < 12; seed++) {
        mu_ranges ranges;
        random_state = seed * 77 + 5;
        start(&ranges, &model);
        mu_range_cursor cursor = {0, 0};
        for (uint64_t step = 1; step < 4000; step++) {
            uint32_t longest = step / 1000 % 2 == 0 ? 6 : below(20) ? 40 : BYTES;
            uint32_t low = below(BYTES), high = low + 1 + below(longest);
            if (high > BYTES) high = BYTES;
            if (below(4) == 0) cursor = (mu_range_cursor){0, 0};
            change(&ranges, &model, &cursor, low, high, step, below(step / 1000 % 2 ? 2 : 5) == 0);
            if (step % 97 == 0) check(&ranges, &model), check_seek(&ranges, &model);
            if (ranges.chunk_count > most) most = ranges.chunk_count;
        }
        change(&ranges, &model, &cursor, 0, BYTES, 7, true);
        check(&ranges, &model);
        assert_int_equal(mu_ranges_count(&ranges), 1);
        mu_ranges_destroy(&ranges);
        mu_ranges_destroy(&ranges); /* does nothing */
    }
    assert_true(most > 20);
}

static void one_item_per_byte_in_any_order(void **state) {
    (void)state;
    static byte_model model;
    for (int order = 0; order < 3; order++) {
        mu_ranges ranges;
        start(&ranges, &model);
        mu_range_cursor cursor = {0, 0};
        for (uint32_t i = 0; i < BYTES; i++) {
            uint32_t at = order == 0 ? i : order == 1 ? BYTES - 1 - i : i * 2711 % BYTES; /* coprime */
            change(&ranges, &model, &cursor, at, at + 1, i + 2, false);
        }
        check(&ranges, &model);
        assert_int_equal(mu_ranges_count(&ranges), BYTES);
        /* Half full at least, as a rule; full when the items came in order. */
        assert_true(ranges.chunk_count <=
                    (order == 0 ? BYTES / (MU_RANGES_CHUNK_ITEMS - 1) + 1 : 2 * BYTES / MU_RANGES_CHUNK_ITEMS + 1));
        mu_ranges_destroy(&ranges);
    }
}

static void few_items_take_one_allocation(void **state) {
    (void)state;
    static byte_model model;
    mu_ranges ranges;
    start(&ranges, &model);
    mu_alloc_fail_at(1, true);
    mu_range_cursor cursor = {0, 0};
    change(&ranges, &model, &cursor, 100, 200, 2, false);
    change(&ranges, &model, &cursor, 0, BYTES, 3, true);
    change(&ranges, &model, &cursor, 1000, BYTES, 4, true);
    assert_int_equal(mu_alloc_fail_hits(), 0);
    mu_alloc_fail_at(0, false);
    check(&ranges, &model);
    mu_ranges_destroy(&ranges);
}

/* Every allocation fails once: a cut that finds no memory changes nothing, wherever it is refused. */
static void running_out_of_memory_changes_nothing(void **state) {
    (void)state;
    static byte_model model;
    mu_alloc_fail_at(1, false);
    mu_ranges ranges;
    assert_null(mu_ranges_init(&ranges, BYTES, sizeof(item)));
    mu_alloc_fail_at(0, false);
    uint32_t refused = 0;
    for (uint32_t kind = 0; kind < 2; kind++) { /* the next allocation fails; or the one after it */
        random_state = 3 + kind;
        start(&ranges, &model);
        mu_range_cursor cursor = {0, 0};
        for (uint64_t step = 1; step < 6000; step++) {
            uint32_t low = below(BYTES - 80), high = low + 1 + below(80);
            mu_alloc_fail_at(1 + kind, false);
            bool done = mu_ranges_cut(&ranges, &cursor, low, high);
            bool hit = mu_alloc_fail_hits();
            mu_alloc_fail_at(0, false);
            assert_int_equal(done, !hit);
            if (hit) {
                refused++;
                check(&ranges, &model);
                cursor = (mu_range_cursor){0, 0};
                assert_non_null(mu_ranges_cut(&ranges, &cursor, low, high));
            }
            model_cut(&model, low, high);
        }
        check(&ranges, &model);
        mu_ranges_destroy(&ranges);
    }
    assert_true(refused > 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_changes_match_the_model),
        cmocka_unit_test(one_item_per_byte_in_any_order),
        cmocka_unit_test(few_items_take_one_allocation),
        cmocka_unit_test(running_out_of_memory_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
