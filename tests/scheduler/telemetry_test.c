/* Counters as an application sees them: what is counted, both texts, and setting them back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "cache/occupancy_cache.h"
#include "device/telemetry.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/residency_fixture.h"

#define NAME(member, help) #member,
static const char *const counters[] = {MU_DEVICE_COUNTERS(NAME)};
#undef NAME
enum { COUNTERS = sizeof counters / sizeof counters[0] };

static char *text_of(const fixture *fixture, muster_stats_format format) {
    size_t needed = 0, again = 0;
    OK(muster_stats_text(fixture->runtime, format, NULL, 0, &needed, &reported));
    assert_true(needed > 1);
    char *text = malloc(needed + 64);
    assert_non_null(text);
    OK(muster_stats_text(fixture->runtime, format, text, needed + 64, &again, &reported));
    assert_int_equal(strlen(text) + 1, again);
    return text;
}

/* A counter of a device in the JSON text. */
static json_int_t counter(const fixture *fixture, int device, const char *name) {
    char *text = text_of(fixture, MUSTER_STATS_JSON);
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!root) fail_msg("%s at %d: %s", error.text, error.position, text);
    json_t *entry = json_array_get(json_object_get(root, "devices"), (size_t)device);
    assert_int_equal(json_integer_value(json_object_get(entry, "device")), device);
    json_t *value = json_object_get(json_object_get(entry, "counters"), name);
    assert_true(json_is_integer(value));
    json_int_t result = json_integer_value(value);
    json_decref(root);
    free(text);
    return result;
}

static void every_counter_is_in_both_texts(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 1, 1);
    fixture_run(&fixture, graph);
    char *json = text_of(&fixture, MUSTER_STATS_JSON), *prometheus = text_of(&fixture, MUSTER_STATS_PROMETHEUS);
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_int_equal(json_array_size(json_object_get(root, "devices")), 2);
    for (size_t i = 0; i < COUNTERS; i++) {
        char line[128];
        for (int d = 0; d < 2; d++) {
            json_t *values = json_object_get(json_array_get(json_object_get(root, "devices"), (size_t)d), "counters");
            assert_int_equal(json_object_size(values), COUNTERS);
            assert_true(json_is_integer(json_object_get(values, counters[i])));
            snprintf(line, sizeof line, "\nmuster_%s_total{device=\"%d\",", counters[i], d);
            if (!strstr(prometheus, line)) fail_msg("no line with %s", line + 1);
        }
    }
    json_t *caches = json_object_get(root, "caches");
    assert_true(json_is_object(caches));
    const char *name;
    json_t *value;
    json_object_foreach(caches, name, value) {
        char line[128];
        assert_true(json_is_integer(value));
        snprintf(line, sizeof line, "\nmuster_cache_%s", name);
        if (!strstr(prometheus, line)) fail_msg("no line with %s", line + 1);
    }
    /* One figure for each field of the struct. */
    assert_int_equal(json_object_size(caches), (sizeof(muster_cache_stats) - sizeof(size_t)) / sizeof(uint64_t));
    assert_int_equal(json_integer_value(json_object_get(caches, "compiles")), 1);
    for (const char *at = prometheus; at; at = strchr(at, '\n')) {
        if (*at == '\n') at++;
        if (!*at) break;
        assert_true(strncmp(at, "# HELP muster_", 14) == 0 || strncmp(at, "# TYPE muster_", 14) == 0 ||
                    strncmp(at, "muster_", 7) == 0);
    }
    assert_int_equal(prometheus[strlen(prometheus) - 1], '\n');
    json_decref(root);
    free(json);
    free(prometheus);
    fixture_close(&fixture);
}

static void a_short_buffer_is_left_alone(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    char buffer[16] = "untouched";
    size_t needed = 0;
    OK(muster_stats_text(fixture.runtime, MUSTER_STATS_JSON, buffer, sizeof buffer, &needed, &reported));
    assert_true(needed > sizeof buffer);
    assert_string_equal(buffer, "untouched");
    needed = 5;
    FAILS(MUSTER_INVALID_ARGUMENT, "3",
          muster_stats_text(fixture.runtime, (muster_stats_format)3, buffer, 16, &needed, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "buffer",
          muster_stats_text(fixture.runtime, MUSTER_STATS_JSON, NULL, 16, &needed, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "needed",
          muster_stats_text(fixture.runtime, MUSTER_STATS_JSON, buffer, 16, NULL, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "runtime",
          muster_stats_text(NULL, MUSTER_STATS_JSON, buffer, 16, &needed, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "runtime", muster_stats_reset(NULL, &reported));
    assert_int_equal(needed, 5);
    fixture_close(&fixture);
}

static void launches_and_what_surrounds_them_are_counted(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    OK(muster_stats_reset(r.fixture.runtime, &reported));
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_dispatch dispatch = residency_reverse(&r, RESIDENCY_SHARED_LIMIT, RESIDENCY_SHARED);
    fixture_add(graph, &dispatch);
    fixture_add(graph, &dispatch);
    residency_declare(&r, &dispatch, MUSTER_FALLBACK_SPLIT);
    dispatch.grid.x = 40;
    fixture_add(graph, &dispatch);
    fixture_run(&r.fixture, graph);
    assert_int_equal(counter(&r.fixture, 0, "launches"), 4);
    assert_int_equal(counter(&r.fixture, 0, "cooperative_launches"), 2);
    assert_int_equal(counter(&r.fixture, 0, "admissions"), 3);
    assert_int_equal(counter(&r.fixture, 0, "refusals"), 0);
    assert_int_equal(counter(&r.fixture, 0, "occupancy_measured"), 4);
    assert_int_equal(counter(&r.fixture, 0, "occupancy_queries"), 3); /* of reverse and of each phase, once */
    /* Two blocks of 8 warps on a multiprocessor that holds 64. */
    assert_int_equal(counter(&r.fixture, 0, "occupancy_sum_basis_points"), 4 * 2500);
    assert_int_equal(counter(&r.fixture, 0, "threads_scheduled"), (4 + 4 + 40 + 40) * RESIDENCY_THREADS);
    assert_int_equal(counter(&r.fixture, 0, "bytes_to_device"), 4 * RESIDENCY_COUNT);
    fixture_close(&r.fixture);
}

/* Many shapes in any order: each launch is counted as what it is, and what a shape's launches have in common is asked for once. */
static void shapes_that_are_mixed_are_worked_out_once(void **state) {
    (void)state;
    enum { SHAPES = 64, LAUNCHES = 4000 };
    fixture fixture;
    const muster_config config = {.struct_size = sizeof config, .bursts = "off"};
    fixture_open_with(&fixture, 1, &config);
    muster_graph *graph = fixture_graph(&fixture);
    muster_kernel *kernel = fixture_kernel(&fixture, "nothing");
    json_int_t scheduled = 0, wasted = 0;
    uint64_t random = 3;
    for (int i = 0; i < LAUNCHES; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t shape = (uint32_t)(random >> 33) % SHAPES, blocks = 1 + shape % 8, threads = 1 + 5 * shape;
        muster_dispatch dispatch =
            fixture_dispatch(kernel, blocks, threads, ARGS(muster_u64_arg(1), muster_u64_arg(2)));
        fixture_add(graph, &dispatch);
        scheduled += blocks * ((threads + 31) / 32) * 32;
        wasted += blocks * (((threads + 31) / 32) * 32 - threads);
    }
    fixture_run(&fixture, graph);
    muster_graph_destroy(graph);
    assert_int_equal(counter(&fixture, 0, "threads_scheduled"), scheduled);
    assert_int_equal(counter(&fixture, 0, "threads_wasted"), wasted);
    assert_int_equal(counter(&fixture, 0, "occupancy_measured"), LAUNCHES);
    mu_occupancy_cache_stats stats;
    mu_occupancy_cache_get_stats(fixture.runtime->actors[0].occupancy, &stats);
    assert_int_equal(stats.queries, SHAPES);
    assert_in_range(stats.hits, 0, SHAPES);
    fixture_close(&fixture);
}

static void reset_keeps_the_caches(void **state) {
    (void)state;
    residency r;
    residency_open(&r, RESIDENCY_SPEC, NULL);
    muster_graph *graph = fixture_graph(&r.fixture);
    muster_dispatch dispatch = residency_reverse(&r, 4, 0);
    fixture_add(graph, &dispatch);
    fixture_run(&r.fixture, graph);
    uint64_t loads = residency_calls(&r, "module_load_data_ex"),
             queries = residency_calls(&r, "occupancy_max_active_blocks");
    uint64_t compiles = residency_calls(&r, "link_create"), in_use = residency_stats(&r).pool_bytes_in_use;
    OK(muster_stats_reset(r.fixture.runtime, &reported));
    muster_device_stats stats = residency_stats(&r);
    assert_int_equal(stats.launches, 0);
    assert_int_equal(stats.jobs, 0);
    assert_int_equal(stats.bytes_to_device, 0);
    assert_int_equal(stats.admissions, 0);
    assert_int_equal(stats.pool_bytes_in_use, in_use); /* what is now is not a count */
    muster_program *again;
    OK(muster_program_from_ptx(r.fixture.runtime, test_residency_kernels_ptx, 0, "residency", &again, &reported));
    fixture_run(&r.fixture, graph);
    residency_check(&r);
    assert_int_equal(residency_calls(&r, "occupancy_max_active_blocks"), queries);
    assert_int_equal(residency_calls(&r, "link_create"), compiles);
    assert_true(residency_calls(&r, "module_load_data_ex") <= loads + 1); /* it has variables of its own */
    assert_int_equal(residency_stats(&r).launches, 1);
    assert_int_equal(residency_stats(&r).jobs, 1);
    fixture_close(&r.fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_counter_is_in_both_texts),
        cmocka_unit_test(a_short_buffer_is_left_alone),
        cmocka_unit_test(launches_and_what_surrounds_them_are_counted),
        cmocka_unit_test(shapes_that_are_mixed_are_worked_out_once),
        cmocka_unit_test(reset_keeps_the_caches),
    };
    return cmocka_run_group_tests_name("telemetry", tests, NULL, NULL);
}
