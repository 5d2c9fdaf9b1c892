/* Host memory: hooks, injected failures, overflow, alignment, growth. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "muster.h"

/* An allocator that counts and remembers what it was asked. */
typedef struct counter {
    size_t live, allocations, releases, last_bytes;
} counter;

static void *count_reallocate(void *user, void *pointer, size_t bytes) {
    counter *count = user;
    assert_true(bytes > 0);
    count->last_bytes = bytes;
    void *result = realloc(pointer, bytes);
    if (result && !pointer) count->live++, count->allocations++;
    return result;
}

static void count_release(void *user, void *pointer) {
    counter *count = user;
    assert_non_null(pointer);
    count->live--;
    count->releases++;
    free(pointer);
}

static int restore_defaults(void **state) {
    (void)state;
    mu_alloc_fail_at(0, false);
    return muster_set_allocator(NULL, NULL) == MUSTER_OK ? 0 : -1;
}

static void hooks_see_every_allocation(void **state) {
    (void)state;
    counter count = {0};
    const muster_allocator allocator = {count_reallocate, count_release, &count};
    assert_int_equal(muster_set_allocator(&allocator, NULL), MUSTER_OK);

    void *plain = mu_alloc(100);
    assert_int_equal(count.last_bytes, 100);
    void *zeroed = mu_alloc_zeroed(3, 7);
    assert_int_equal(count.last_bytes, 21);
    char *text = mu_strdup("muster");
    assert_int_equal(count.last_bytes, 7);
    void *aligned = mu_alloc_aligned(4096, 10);
    int *array = NULL;
    size_t capacity = 0;
    assert_true(mu_grow(&array, &capacity, 5, sizeof *array));
    assert_int_equal(count.live, 5);

    mu_free(plain);
    mu_free(zeroed);
    mu_free(text);
    mu_free_aligned(aligned);
    mu_free(array);
    assert_int_equal(count.live, 0);
    assert_int_equal(count.releases, 5);
}

static void zero_bytes_are_memory_and_null_is_ignored(void **state) {
    (void)state;
    counter count = {0};
    const muster_allocator allocator = {count_reallocate, count_release, &count};
    assert_int_equal(muster_set_allocator(&allocator, NULL), MUSTER_OK);
    void *pointer = mu_alloc(0);
    assert_non_null(pointer);
    assert_int_equal(count.last_bytes, 1);
    mu_free(pointer);
    mu_free(NULL);
    mu_free_aligned(NULL);
    assert_int_equal(count.releases, 1);
}

static void incomplete_hooks_are_refused(void **state) {
    (void)state;
    muster_error error;
    const muster_allocator without_release = {count_reallocate, NULL, NULL};
    const muster_allocator without_reallocate = {NULL, count_release, NULL};
    assert_int_equal(muster_set_allocator(&without_release, &error), MUSTER_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "release"));
    assert_int_equal(muster_set_allocator(&without_reallocate, NULL), MUSTER_INVALID_ARGUMENT);
    void *pointer = mu_alloc(8); /* still the default ones */
    assert_non_null(pointer);
    mu_free(pointer);
}

static void hooks_stay_while_a_runtime_holds_them(void **state) {
    (void)state;
    counter count = {0};
    const muster_allocator allocator = {count_reallocate, count_release, &count};
    muster_error error;
    mu_alloc_hold();
    mu_alloc_hold();
    assert_int_equal(muster_set_allocator(&allocator, &error), MUSTER_INVALID_STATE);
    assert_non_null(strstr(error.message, "2 runtimes"));
    mu_alloc_unhold();
    assert_int_equal(muster_set_allocator(NULL, NULL), MUSTER_INVALID_STATE);
    mu_alloc_unhold();
    mu_free(mu_alloc(1));
    assert_int_equal(count.allocations, 0);
    assert_int_equal(muster_set_allocator(&allocator, NULL), MUSTER_OK);
}

static void zeroed_memory_is_zero(void **state) {
    (void)state;
    unsigned char *bytes = mu_alloc_zeroed(1000, 3);
    assert_non_null(bytes);
    for (int i = 0; i < 3000; i++) assert_int_equal(bytes[i], 0);
    mu_free(bytes);
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    assert_null(mu_alloc_zeroed(SIZE_MAX / 2, 3));
    assert_null(mu_alloc_aligned(64, SIZE_MAX - 32));
    int *array = NULL;
    size_t capacity = 0;
    assert_false(mu_grow(&array, &capacity, SIZE_MAX / 2, sizeof *array));
    assert_false(mu_grow(&array, &capacity, SIZE_MAX, 1));
    assert_null(array);
    assert_int_equal(capacity, 0);
}

static void aligned_memory_is_aligned(void **state) {
    (void)state;
    for (size_t alignment = 1; alignment <= 65536; alignment *= 2) {
        unsigned char *pointer = mu_alloc_aligned(alignment, 100);
        assert_non_null(pointer);
        assert_int_equal((uintptr_t)pointer % alignment, 0);
        memset(pointer, 0xee, 100);
        mu_free_aligned(pointer);
    }
}

static void growth_keeps_the_contents_and_at_least_doubles(void **state) {
    (void)state;
    uint32_t *array = NULL;
    size_t capacity = 0, growths = 0;
    for (uint32_t i = 0; i < 10000; i++) {
        size_t before = capacity;
        assert_true(mu_grow(&array, &capacity, i + 1, sizeof *array));
        if (capacity != before) {
            growths++;
            assert_true(capacity >= before * 2);
        }
        array[i] = i * 3;
    }
    assert_true(growths <= 12);
    for (uint32_t i = 0; i < 10000; i++) assert_int_equal(array[i], i * 3);
    size_t before = capacity;
    assert_true(mu_grow(&array, &capacity, 1, sizeof *array));
    assert_int_equal(capacity, before);
    mu_free(array);
}

static void the_nth_allocation_fails_once(void **state) {
    (void)state;
    for (int n = 1; n <= 5; n++) {
        mu_alloc_fail_at((uint64_t)n, false);
        void *pointers[6];
        for (int i = 0; i < 6; i++) pointers[i] = mu_alloc(16);
        for (int i = 0; i < 6; i++) {
            assert_int_equal(pointers[i] == NULL, i + 1 == n);
            mu_free(pointers[i]);
        }
        assert_int_equal(mu_alloc_fail_hits(), 1);
    }
}

static void sticky_failures_last_until_turned_off(void **state) {
    (void)state;
    mu_alloc_fail_at(2, true);
    void *first = mu_alloc(1);
    assert_non_null(first);
    for (int i = 0; i < 4; i++) assert_null(mu_alloc(1));
    assert_null(mu_strdup("text"));
    assert_null(mu_alloc_zeroed(2, 2));
    assert_null(mu_alloc_aligned(64, 64));
    assert_int_equal(mu_alloc_fail_hits(), 7);
    mu_alloc_fail_at(0, false);
    void *second = mu_alloc(1);
    assert_non_null(second);
    mu_free(first);
    mu_free(second);
}

static void failed_growth_leaves_the_array_alone(void **state) {
    (void)state;
    int *array = NULL;
    size_t capacity = 0;
    assert_true(mu_grow(&array, &capacity, 4, sizeof *array));
    int *before = array;
    size_t capacity_before = capacity;
    before[3] = 42;
    mu_alloc_fail_at(1, false);
    assert_false(mu_grow(&array, &capacity, capacity + 1, sizeof *array));
    assert_ptr_equal(array, before);
    assert_int_equal(capacity, capacity_before);
    assert_int_equal(array[3], 42);
    mu_free(array);
}

static void failed_reallocation_keeps_the_block(void **state) {
    (void)state;
    char *pointer = mu_alloc(4);
    memcpy(pointer, "abc", 4);
    mu_alloc_fail_at(1, false);
    assert_null(mu_realloc(pointer, 1 << 20));
    assert_string_equal(pointer, "abc");
    mu_free(pointer);
}

#define TEST(name) cmocka_unit_test_teardown(name, restore_defaults)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(hooks_see_every_allocation),
        TEST(zero_bytes_are_memory_and_null_is_ignored),
        TEST(incomplete_hooks_are_refused),
        TEST(hooks_stay_while_a_runtime_holds_them),
        TEST(zeroed_memory_is_zero),
        TEST(sizes_that_overflow_are_refused),
        TEST(aligned_memory_is_aligned),
        TEST(growth_keeps_the_contents_and_at_least_doubles),
        TEST(the_nth_allocation_fails_once),
        TEST(sticky_failures_last_until_turned_off),
        TEST(failed_growth_leaves_the_array_alone),
        TEST(failed_reallocation_keeps_the_block),
    };
    return cmocka_run_group_tests_name("alloc", tests, NULL, NULL);
}
