/* E1: a shape is asked for once; an unloaded module's entries are gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "cache/occupancy_cache.h"
#include "tests/cache/fake_device.h"

typedef struct fixture {
    mu_device device;
    mu_module module;
    mu_function a, b;
    mu_occupancy_cache *cache;
} fixture;

static void open_fixture(fixture *f) {
    mu_function_info info;
    f->device = fake_device(90);
    assert_int_equal(mu_module_load(&f->device, "", 1, NULL, &f->module, NULL), MUSTER_OK);
    assert_int_equal(mu_module_function(&f->device, f->module, "a", &f->a, &info, NULL), MUSTER_OK);
    assert_int_equal(mu_module_function(&f->device, f->module, "b", &f->b, &info, NULL), MUSTER_OK);
    assert_int_equal(mu_occupancy_cache_create(&f->device, &f->cache, NULL), MUSTER_OK);
}

static void close_fixture(fixture *f) {
    mu_occupancy_cache_destroy(f->cache);
    mu_module_unload(&f->device, f->module);
}

static int ask(fixture *f, mu_function function, uint32_t threads, uint64_t shared) {
    int blocks = -1;
    assert_int_equal(mu_occupancy_cache_get(f->cache, function, threads, shared, &blocks, NULL), MUSTER_OK);
    return blocks;
}

static mu_occupancy_cache_stats stats_of(fixture *f) {
    mu_occupancy_cache_stats stats;
    mu_occupancy_cache_get_stats(f->cache, &stats);
    return stats;
}

static void the_second_query_of_a_shape_asks_no_driver(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    for (int i = 0; i < 5; i++) assert_int_equal(ask(&f, f.a, 256, 1024), fake_occupancy(256, 1024) + 'a');
    assert_int_equal(f.device.occupancies, 1);
    /* each part of the shape counts */
    assert_int_equal(ask(&f, f.b, 256, 1024), fake_occupancy(256, 1024) + 'b');
    assert_int_equal(ask(&f, f.a, 128, 1024), fake_occupancy(128, 1024) + 'a');
    assert_int_equal(ask(&f, f.a, 256, 1025), fake_occupancy(256, 1025) + 'a');
    assert_int_equal(ask(&f, f.a, 256, 1024 + (1ull << 32)), fake_occupancy(256, 1024 + (1ull << 32)) + 'a');
    assert_int_equal(f.device.occupancies, 5);
    mu_occupancy_cache_stats stats = stats_of(&f);
    assert_int_equal(stats.hits, 4);
    assert_int_equal(stats.queries, 5);
    assert_int_equal(stats.shapes, 5);
    close_fixture(&f);
}

static void a_forgotten_function_is_asked_again_and_others_are_not(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    for (uint32_t i = 1; i <= 500; i++) ask(&f, i % 3 ? f.a : f.b, i, i);
    mu_occupancy_cache_forget(f.cache, f.a);
    mu_occupancy_cache_forget(f.cache, NULL);
    assert_int_equal(stats_of(&f).shapes, 500 / 3);
    unsigned before = f.device.occupancies;
    for (uint32_t i = 3; i <= 500; i += 3) assert_int_equal(ask(&f, f.b, i, i), fake_occupancy(i, i) + 'b');
    assert_int_equal(f.device.occupancies, before);
    assert_int_equal(ask(&f, f.a, 1, 1), fake_occupancy(1, 1) + 'a');
    assert_int_equal(f.device.occupancies, before + 1);
    close_fixture(&f);
}

static void failures_are_passed_on_and_not_remembered(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    muster_error error = {0};
    int blocks = 77;
    f.device.fail = MUSTER_DRIVER_ERROR;
    assert_int_equal(mu_occupancy_cache_get(f.cache, f.a, 32, 0, &blocks, &error), MUSTER_DRIVER_ERROR);
    assert_int_equal(blocks, 77);
    assert_non_null(strstr(error.message, "mu_function_occupancy failed"));
    f.device.fail = MUSTER_OK;
    assert_int_equal(ask(&f, f.a, 32, 0), fake_occupancy(32, 0) + 'a');
    assert_int_equal(mu_occupancy_cache_get(f.cache, NULL, 32, 0, &blocks, NULL), MUSTER_INVALID_ARGUMENT);
    assert_int_equal(stats_of(&f).failures, 1);
    close_fixture(&f);
}

static void short_memory_only_means_asking_again(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    mu_alloc_fail_at(1, true);
    for (uint32_t i = 1; i <= 10; i++) assert_int_equal(ask(&f, f.a, i, 0), fake_occupancy(i, 0) + 'a');
    mu_alloc_fail_at(0, false);
    assert_int_equal(stats_of(&f).shapes, 0);
    mu_occupancy_cache *none;
    mu_alloc_fail_at(1, false);
    assert_int_equal(mu_occupancy_cache_create(&f.device, &none, NULL), MUSTER_OUT_OF_HOST_MEMORY);
    mu_alloc_fail_at(0, false);
    close_fixture(&f);
}

static void the_number_of_shapes_is_bounded(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    for (uint64_t i = 0; i < MU_OCCUPANCY_SHAPES_MAX + 10; i++) ask(&f, f.a, 32, i);
    assert_int_equal(stats_of(&f).shapes, 10);
    assert_int_equal(ask(&f, f.a, 32, 5), fake_occupancy(32, 5) + 'a');
    close_fixture(&f);
}

/* Random asking and forgetting against a plain table. */
static void random_use_follows_a_model(void **state) {
    (void)state;
    enum { THREADS = 40, SHARED = 5 };
    fixture f;
    open_fixture(&f);
    bool known[2][THREADS][SHARED] = {0};
    unsigned random = 7, queries = 0;
    for (int step = 0; step < 20000; step++) {
        int which = (int)(rand_r(&random) % 2);
        mu_function function = which ? f.b : f.a;
        if (rand_r(&random) % 200 == 0) {
            mu_occupancy_cache_forget(f.cache, function);
            memset(known[which], 0, sizeof known[which]);
            continue;
        }
        uint32_t threads = (uint32_t)rand_r(&random) % THREADS;
        uint64_t shared = (uint64_t)rand_r(&random) % SHARED;
        if (!known[which][threads][shared]) queries++;
        known[which][threads][shared] = true;
        assert_int_equal(ask(&f, function, threads + 1, shared),
                         fake_occupancy(threads + 1, shared) + (which ? 'b' : 'a'));
        assert_int_equal(f.device.occupancies, queries);
    }
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_query_of_a_shape_asks_no_driver),
        cmocka_unit_test(a_forgotten_function_is_asked_again_and_others_are_not),
        cmocka_unit_test(failures_are_passed_on_and_not_remembered),
        cmocka_unit_test(short_memory_only_means_asking_again),
        cmocka_unit_test(the_number_of_shapes_is_bounded),
        cmocka_unit_test(random_use_follows_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
