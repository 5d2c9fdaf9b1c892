/* The module cache: loaded once, never unloaded under work or users, unloaded late and together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "cache/module_cache.h"
#include "tests/cache/fake_device.h"

typedef struct fixture {
    mu_device device;
    mu_occupancy_cache *occupancy;
    mu_module_cache *cache;
} fixture;

static void open_fixture(fixture *f) {
    f->device = fake_device(90);
    assert_int_equal(mu_occupancy_cache_create(&f->device, &f->occupancy, NULL), MUSTER_OK);
    assert_int_equal(mu_module_cache_create(&f->device, f->occupancy, &f->cache, NULL), MUSTER_OK);
}

static void close_fixture(fixture *f) {
    mu_module_cache_destroy(f->cache);
    mu_occupancy_cache_destroy(f->occupancy);
    assert_int_equal(f->device.live_modules, 0);
}

static mu_key key_of(uint64_t number) { return mu_raw_ptx_key(&number, sizeof number); }

static mu_module_entry *load(fixture *f, uint64_t number) {
    mu_key key = key_of(number);
    mu_module_entry *entry = NULL;
    assert_int_equal(mu_module_cache_load(f->cache, &key, "ptx", 3, "program", &entry, NULL), MUSTER_OK);
    return entry;
}

static bool drop(fixture *f, uint64_t number) {
    mu_key key = key_of(number);
    return mu_module_cache_drop(f->cache, &key);
}

static mu_module_entry *find(fixture *f, uint64_t number) {
    mu_key key = key_of(number);
    return mu_module_cache_find(f->cache, &key);
}

static mu_module_cache_stats stats_of(fixture *f) {
    mu_module_cache_stats stats;
    mu_module_cache_get_stats(f->cache, &stats);
    return stats;
}

static void a_key_is_loaded_once(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    mu_module_entry *first = load(&f, 1), *again = load(&f, 1), *other = load(&f, 2);
    assert_ptr_equal(first, again);
    assert_ptr_not_equal(first, other);
    assert_ptr_equal(find(&f, 1), first);
    assert_null(find(&f, 3));
    assert_int_equal(f.device.loads, 2);
    assert_int_equal(stats_of(&f).hits, 1);
    assert_int_equal(stats_of(&f).loads, 2);
    assert_int_equal(mu_counter_read(&f.device.counters.module_cache_hits), 1);
    assert_int_equal(mu_counter_read(&f.device.counters.module_cache_misses), 2);
    close_fixture(&f); /* unloads what is still in use */
    assert_int_equal(f.device.unloads, 2);
}

static void functions_are_resolved_once(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    mu_module_entry *entry = load(&f, 1);
    mu_function saxpy, again, dot;
    const mu_function_info *info, *info_again;
    assert_int_equal(mu_module_cache_function(entry, "saxpy", &saxpy, &info, NULL), MUSTER_OK);
    assert_int_equal(mu_module_cache_function(entry, "dot", &dot, NULL, NULL), MUSTER_OK);
    assert_int_equal(mu_module_cache_function(entry, "saxpy", &again, &info_again, NULL), MUSTER_OK);
    assert_ptr_equal(saxpy, again);
    assert_ptr_equal(info, info_again);
    assert_ptr_not_equal(saxpy, dot);
    assert_int_equal(info->max_threads, 1005);
    assert_int_equal(f.device.functions, 2);
    muster_error error = {0};
    mu_function untouched = dot;
    assert_int_equal(mu_module_cache_function(entry, "missing", &untouched, &info, &error), MUSTER_ENTRY_NOT_FOUND);
    assert_ptr_equal(untouched, dot);
    assert_string_equal(error.message, "there is no missing");
    close_fixture(&f);
}

static void a_failed_load_leaves_nothing(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    mu_key key = key_of(1);
    mu_module_entry *entry = NULL;
    muster_error error = {0};
    f.device.fail = MUSTER_PROGRAM_INVALID;
    assert_int_equal(mu_module_cache_load(f.cache, &key, "bad", 3, "bad", &entry, &error), MUSTER_PROGRAM_INVALID);
    assert_non_null(strstr(error.message, "line 3: syntax error"));
    assert_null(entry);
    assert_false(drop(&f, 1));
    assert_int_equal(stats_of(&f).failures, 1);
    f.device.fail = MUSTER_OK;
    load(&f, 1);
    assert_int_equal(stats_of(&f).modules, 1);
    close_fixture(&f);
}

static void the_last_user_makes_it_due_and_collecting_unloads_it(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    load(&f, 1);
    load(&f, 1);
    assert_true(drop(&f, 1));
    assert_int_equal(mu_module_cache_due(f.cache), 0);
    assert_true(drop(&f, 1));
    assert_int_equal(mu_module_cache_due(f.cache), 1);
    assert_null(find(&f, 1));
    assert_false(drop(&f, 1)); /* nobody has it any more */
    assert_int_equal(f.device.unloads, 0);
    assert_int_equal(mu_module_cache_collect(f.cache), 1);
    assert_int_equal(f.device.unloads, 1);
    assert_int_equal(mu_module_cache_collect(f.cache), 0);
    assert_int_equal(stats_of(&f).modules, 0);
    close_fixture(&f);
}

static void work_in_flight_defers_unloading(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    mu_module_entry *entry = load(&f, 1);
    mu_module_hold(entry);
    mu_module_hold(entry);
    assert_true(drop(&f, 1));
    assert_int_equal(mu_module_cache_collect(f.cache), 0);
    mu_module_release(entry);
    assert_int_equal(mu_module_cache_collect(f.cache), 0);
    mu_function function; /* in flight it is as good as loaded */
    assert_int_equal(mu_module_cache_function(entry, "late", &function, NULL, NULL), MUSTER_OK);
    assert_ptr_equal(find(&f, 1), entry);
    assert_ptr_equal(load(&f, 1), entry);
    mu_module_release(entry);
    assert_int_equal(mu_module_cache_due(f.cache), 0);
    assert_true(drop(&f, 1));
    assert_int_equal(mu_module_cache_collect(f.cache), 1);
    close_fixture(&f);
}

static void loading_a_due_module_revives_it(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    mu_module_entry *entries[3];
    for (uint64_t i = 0; i < 3; i++) entries[i] = load(&f, i);
    for (uint64_t i = 0; i < 3; i++) assert_true(drop(&f, i));
    assert_ptr_equal(load(&f, 1), entries[1]); /* from the middle of the list */
    assert_int_equal(f.device.loads, 3);
    assert_int_equal(mu_module_cache_collect(f.cache), 2);
    assert_ptr_equal(find(&f, 1), entries[1]);
    assert_true(drop(&f, 1));
    mu_module_hold(entries[1]); /* and so does new work of a program that still has the entry */
    assert_int_equal(mu_module_cache_collect(f.cache), 0);
    mu_module_release(entries[1]);
    assert_int_equal(mu_module_cache_collect(f.cache), 1);
    close_fixture(&f);
}

static void too_many_due_are_unloaded_at_once(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    for (uint64_t i = 0; i < MU_MODULES_DUE_MAX; i++) load(&f, i);
    for (uint64_t i = 0; i + 1 < MU_MODULES_DUE_MAX; i++) drop(&f, i);
    assert_int_equal(f.device.unloads, 0);
    assert_int_equal(stats_of(&f).stalls, 0);
    drop(&f, MU_MODULES_DUE_MAX - 1);
    assert_int_equal(f.device.unloads, MU_MODULES_DUE_MAX);
    assert_int_equal(stats_of(&f).stalls, 1);
    assert_int_equal(mu_counter_read(&f.device.counters.module_cache_evictions), MU_MODULES_DUE_MAX);
    assert_int_equal(mu_module_cache_due(f.cache), 0);
    close_fixture(&f);
}

/* E1: the occupancy of an unloaded module's functions is asked again. */
static void unloading_forgets_occupancy(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    mu_function gone, stays;
    int blocks;
    assert_int_equal(mu_module_cache_function(load(&f, 1), "gone", &gone, NULL, NULL), MUSTER_OK);
    assert_int_equal(mu_module_cache_function(load(&f, 2), "stays", &stays, NULL, NULL), MUSTER_OK);
    assert_int_equal(mu_occupancy_cache_get(f.occupancy, gone, 32, 0, &blocks, NULL), MUSTER_OK);
    assert_int_equal(mu_occupancy_cache_get(f.occupancy, stays, 32, 0, &blocks, NULL), MUSTER_OK);
    drop(&f, 1);
    mu_occupancy_cache_stats stats;
    mu_occupancy_cache_get_stats(f.occupancy, &stats);
    assert_int_equal(stats.shapes, 2);
    mu_module_cache_collect(f.cache);
    mu_occupancy_cache_get_stats(f.occupancy, &stats);
    assert_int_equal(stats.shapes, 1);
    close_fixture(&f);
}

static muster_status everything_once(void) {
    mu_device device = fake_device(90);
    mu_occupancy_cache *occupancy = NULL;
    mu_module_cache *cache = NULL;
    muster_status status = mu_occupancy_cache_create(&device, &occupancy, NULL);
    if (status == MUSTER_OK) status = mu_module_cache_create(&device, occupancy, &cache, NULL);
    for (uint64_t i = 0; i < 3 && status == MUSTER_OK; i++) {
        mu_key key = key_of(i);
        mu_module_entry *entry;
        mu_function function;
        status = mu_module_cache_load(cache, &key, "ptx", 3, NULL, &entry, NULL);
        if (status != MUSTER_OK) break;
        status = mu_module_cache_function(entry, "kernel", &function, NULL, NULL);
        int blocks;
        if (status == MUSTER_OK) status = mu_occupancy_cache_get(occupancy, function, 32, 0, &blocks, NULL);
        mu_module_cache_drop(cache, &key);
        if (i == 1) mu_module_cache_collect(cache);
    }
    mu_module_cache_destroy(cache);
    mu_occupancy_cache_destroy(occupancy);
    assert_int_equal(device.live_modules, 0);
    return status;
}

static void every_allocation_failed_in_turn(void **state) {
    (void)state;
    for (uint64_t n = 1;; n++) {
        mu_alloc_fail_at(n, false);
        muster_status status = everything_once();
        bool hit = mu_alloc_fail_hits() > 0;
        mu_alloc_fail_at(0, false);
        assert_true(status == MUSTER_OK || (hit && status == MUSTER_OUT_OF_HOST_MEMORY));
        if (!hit) break;
    }
}

/* ------------------------------------------------------------------------------------------------------ requests -- */

typedef struct request {
    mu_module_request request;
    mu_key key;
    mu_module_entry *entry;
    int answers;
} request;

static void answer(mu_module_request *base, mu_module_entry *entry) {
    request *r = (request *)base;
    r->entry = entry;
    r->answers++;
}

static void ask(fixture *f, request *r, uint64_t number) {
    *r = (request){.key = key_of(number)};
    r->request = (mu_module_request){.key = &r->key, .image = "ptx", .bytes = 3, .name = "program", .done = answer};
    mu_module_cache_request(f->cache, &r->request);
}

static void requests_wait_for_an_idle_moment(void **state) {
    (void)state;
    fixture f;
    request r[4];
    open_fixture(&f);
    for (uint64_t i = 0; i < 4; i++) ask(&f, &r[i], i);
    mu_module_cache_request(f.cache, &r[2].request); /* it waits already */
    assert_int_equal(stats_of(&f).requests, 4);
    assert_int_equal(f.device.loads, 0);
    mu_module_cache_withdraw(f.cache, &r[0].request);
    mu_module_cache_withdraw(f.cache, &r[0].request);
    mu_module_cache_withdraw(f.cache, &r[3].request);
    assert_int_equal(mu_module_cache_collect(f.cache), 2);
    assert_int_equal(f.device.loads, 2);
    assert_int_equal(stats_of(&f).requests, 0);
    for (uint64_t i = 0; i < 4; i++) {
        assert_int_equal(r[i].answers, i == 1 || i == 2);
        assert_ptr_equal(r[i].entry, find(&f, i));
    }
    assert_int_equal(mu_module_cache_collect(f.cache), 0);
    close_fixture(&f);
}

/* What is due and requested again costs no driver call, and is not unloaded in the same breath. */
static void a_request_revives_what_is_due(void **state) {
    (void)state;
    fixture f;
    request r;
    open_fixture(&f);
    mu_module_entry *entry = load(&f, 1);
    drop(&f, 1);
    load(&f, 2);
    drop(&f, 2);
    ask(&f, &r, 1);
    assert_int_equal(mu_module_cache_collect(f.cache), 1); /* the other one goes */
    assert_ptr_equal(r.entry, entry);
    assert_int_equal(f.device.loads, 2);
    assert_int_equal(f.device.unloads, 1);
    assert_true(drop(&f, 1)); /* the request has a user of its own */
    close_fixture(&f);
}

static void a_request_that_fails_is_answered(void **state) {
    (void)state;
    fixture f;
    request r[2];
    open_fixture(&f);
    ask(&f, &r[0], 1);
    ask(&f, &r[1], 2);
    f.device.fail = MUSTER_OUT_OF_DEVICE_MEMORY;
    assert_int_equal(mu_module_cache_load_requested(f.cache), 0);
    f.device.fail = MUSTER_OK;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].answers, 1);
        assert_null(r[i].entry);
    }
    assert_int_equal(mu_module_cache_load_requested(f.cache), 0); /* it is not tried again by itself */
    close_fixture(&f);
}

static void variables_are_the_module_s(void **state) {
    (void)state;
    fixture f;
    mu_address address = 0;
    uint64_t bytes = 0;
    open_fixture(&f);
    mu_module_entry *entry = load(&f, 1);
    assert_int_equal(mu_module_cache_global(entry, "four", &address, &bytes, NULL), MUSTER_OK);
    assert_int_equal(bytes, 4);
    assert_int_equal(mu_module_cache_global(entry, "missing", &address, &bytes, NULL), MUSTER_ENTRY_NOT_FOUND);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_loaded_once),
        cmocka_unit_test(functions_are_resolved_once),
        cmocka_unit_test(a_failed_load_leaves_nothing),
        cmocka_unit_test(the_last_user_makes_it_due_and_collecting_unloads_it),
        cmocka_unit_test(work_in_flight_defers_unloading),
        cmocka_unit_test(loading_a_due_module_revives_it),
        cmocka_unit_test(too_many_due_are_unloaded_at_once),
        cmocka_unit_test(unloading_forgets_occupancy),
        cmocka_unit_test(every_allocation_failed_in_turn),
        cmocka_unit_test(requests_wait_for_an_idle_moment),
        cmocka_unit_test(a_request_revives_what_is_due),
        cmocka_unit_test(a_request_that_fails_is_answered),
        cmocka_unit_test(variables_are_the_module_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
