/* F5: the validation of (program, configuration) is remembered, and a toggle turns validation off. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/validation_cache.h"

static mu_key key_of(uint64_t number) { return mu_raw_ptx_key(&number, sizeof number); }

typedef struct validator {
    atomic_int calls;
    bool fail;
} validator;

static muster_status validate(void *user, muster_error *error) {
    validator *self = user;
    int call = atomic_fetch_add(&self->calls, 1);
    return self->fail ? mu_fail(error, MUSTER_CAPABILITY_MISSING, "refused for the %dth time", call + 1) : MUSTER_OK;
}

static mu_validation_cache *make(bool enabled) {
    mu_validation_cache *cache;
    assert_int_equal(mu_validation_cache_create(enabled, &cache, NULL), MUSTER_OK);
    return cache;
}

static muster_status check(mu_validation_cache *cache, uint64_t program, uint64_t configuration, validator *user,
                           muster_error *error) {
    mu_key a = key_of(program), b = key_of(configuration);
    return mu_validation_check(cache, &a, &b, validate, user, error);
}

static void a_pair_is_validated_once(void **state) {
    (void)state;
    mu_validation_cache *cache = make(true);
    validator user = {0};
    for (int i = 0; i < 5; i++) assert_int_equal(check(cache, 1, 2, &user, NULL), MUSTER_OK);
    assert_int_equal(user.calls, 1);
    check(cache, 2, 1, &user, NULL); /* the order of the pair counts, and each of its parts */
    check(cache, 1, 1, &user, NULL);
    check(cache, 2, 2, &user, NULL);
    assert_int_equal(user.calls, 4);
    mu_validation_stats stats;
    mu_validation_cache_get_stats(cache, &stats);
    assert_int_equal(stats.hits, 4);
    assert_int_equal(stats.validations, 4);
    assert_int_equal(stats.entries, 4);
    mu_validation_cache_destroy(cache);
    mu_validation_cache_destroy(NULL);
}

static void failures_are_found_again(void **state) {
    (void)state;
    mu_validation_cache *cache = make(true);
    validator user = {.fail = true};
    muster_error error = {0};
    assert_int_equal(check(cache, 1, 1, &user, NULL), MUSTER_CAPABILITY_MISSING);
    assert_int_equal(check(cache, 1, 1, &user, &error), MUSTER_CAPABILITY_MISSING);
    assert_string_equal(error.message, "refused for the 2th time");
    user.fail = false; /* a failure is no verdict for ever */
    assert_int_equal(check(cache, 1, 1, &user, NULL), MUSTER_OK);
    user.fail = true;
    assert_int_equal(check(cache, 1, 1, &user, NULL), MUSTER_OK);
    assert_int_equal(user.calls, 3);
    mu_validation_cache_destroy(cache);
}

static void the_toggle_turns_validation_off(void **state) {
    (void)state;
    mu_validation_cache *cache = make(false);
    validator user = {.fail = true};
    assert_int_equal(check(cache, 1, 1, &user, NULL), MUSTER_OK);
    assert_int_equal(user.calls, 0);
    mu_validation_cache_enable(cache, true); /* and having been skipped is not having been found valid */
    assert_int_equal(check(cache, 1, 1, &user, NULL), MUSTER_CAPABILITY_MISSING);
    mu_validation_cache_enable(cache, false);
    assert_int_equal(check(cache, 1, 1, &user, NULL), MUSTER_OK);
    assert_int_equal(user.calls, 1);
    mu_validation_cache_destroy(cache);
}

static void it_is_bounded(void **state) {
    (void)state;
    mu_validation_cache *cache = make(true);
    validator user = {0};
    mu_validation_stats stats;
    for (uint64_t i = 0; i < MU_VALIDATIONS_MAX; i++) check(cache, i, 0, &user, NULL);
    for (uint64_t i = 0; i < MU_VALIDATIONS_MAX; i++) check(cache, i, 0, &user, NULL);
    assert_int_equal(user.calls, MU_VALIDATIONS_MAX);
    check(cache, MU_VALIDATIONS_MAX, 0, &user, NULL);
    mu_validation_cache_get_stats(cache, &stats);
    assert_int_equal(stats.entries, 1);
    check(cache, MU_VALIDATIONS_MAX, 0, &user, NULL);
    assert_int_equal(user.calls, MU_VALIDATIONS_MAX + 1);
    mu_validation_cache_destroy(cache);
}

static void short_memory_is_told(void **state) {
    (void)state;
    mu_validation_cache *cache;
    mu_alloc_fail_at(1, false);
    assert_int_equal(mu_validation_cache_create(true, &cache, NULL), MUSTER_OUT_OF_HOST_MEMORY);
    mu_alloc_fail_at(0, false);
}

static mu_validation_cache *shared_cache;
static validator shared_validator;

static void *check_many(void *argument) {
    uint64_t first = (uintptr_t)argument;
    for (uint64_t i = 0; i < 500; i++) check(shared_cache, (first + i) % 100, 0, &shared_validator, NULL);
    return NULL;
}

static void threads_share_it(void **state) {
    (void)state;
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    shared_cache = make(true);
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, check_many, (void *)(i * 13)), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    mu_validation_stats stats;
    mu_validation_cache_get_stats(shared_cache, &stats);
    assert_int_equal(stats.entries, 100);
    assert_int_equal(stats.hits + stats.validations, THREADS * 500);
    assert_int_equal(stats.validations, shared_validator.calls);
    mu_validation_cache_destroy(shared_cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pair_is_validated_once),
        cmocka_unit_test(failures_are_found_again),
        cmocka_unit_test(the_toggle_turns_validation_off),
        cmocka_unit_test(it_is_bounded),
        cmocka_unit_test(short_memory_is_told),
        cmocka_unit_test(threads_share_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
