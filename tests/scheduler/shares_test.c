/* Several actors on one device: configured, told apart, each with its part of the memory, and as good for graphs as devices of their
 * own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/sim/sim.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/callbacks.h"

enum { MIB = 1 << 20, WORDS = 5000, BYTES = 4 * WORDS };

static muster_config config_of(const char *sim, uint32_t actors) {
    return (muster_config){.struct_size = sizeof(muster_config),
                           .driver = "sim",
                           .sim = sim,
                           .cache_dir = "",
                           .actors_per_device = actors};
}

static void open_shares(fixture *fixture, const char *sim, uint32_t actors) {
    muster_config config = config_of(sim, actors);
    fixture_open_with(fixture, 1, &config);
}

static muster_device_info info_of(const muster_runtime *runtime, int device) {
    muster_device_info info = {.struct_size = sizeof info};
    OK(muster_device_get_info(runtime, device, &info, &reported));
    return info;
}

/* --------------------------------------------------------------------------------------------------- configuration -- */

static void refused(muster_status status, const char *words, const muster_config *config) {
    muster_runtime *runtime = (muster_runtime *)words;
    FAILS(status, words, muster_runtime_create(config, &runtime, &reported));
    assert_ptr_equal(runtime, words);
}

static void expect_actors(const muster_config *config, int wanted) {
    muster_runtime *runtime;
    OK(muster_runtime_create(config, &runtime, &reported));
    assert_int_equal(muster_device_count(runtime), wanted);
    OK(muster_runtime_destroy(runtime, 0, &reported));
}

static void actors_of_a_device_are_told_apart(void **state) {
    (void)state;
    muster_runtime *runtime;
    muster_config config = config_of("{\"devices\": 3}", 3);
    config.ordinals = (const int[]){2, 0};
    config.device_count = 2;
    config.budget_bytes = 1000;
    OK(muster_runtime_create(&config, &runtime, &reported));
    assert_int_equal(muster_device_count(runtime), 6);
    for (int d = 0; d < 6; d++) {
        muster_device_info info = info_of(runtime, d), first = info_of(runtime, d / 3 * 3);
        assert_int_equal(info.index, d);
        assert_int_equal(info.ordinal, d < 3 ? 2 : 0);
        assert_int_equal(info.share_index, d % 3);
        assert_int_equal(info.share_count, 3);
        assert_int_equal(info.budget_bytes, 333);
        assert_memory_equal(info.uuid, first.uuid, 16);
        assert_string_equal(info.pci_bus_id, first.pci_bus_id);
        assert_int_equal(info.memory_bytes, first.memory_bytes);
    }
    assert_memory_not_equal(info_of(runtime, 0).uuid, info_of(runtime, 3).uuid, 16);
    OK(muster_runtime_destroy(runtime, 0, &reported));
    /* The default budget is divided likewise; alone, an actor has all of it. */
    config = config_of(NULL, 0);
    OK(muster_runtime_create(&config, &runtime, &reported));
    muster_device_info alone = info_of(runtime, 0);
    assert_int_equal(alone.share_index, 0);
    assert_int_equal(alone.share_count, 1);
    OK(muster_runtime_destroy(runtime, 0, &reported));
    config.actors_per_device = 7;
    OK(muster_runtime_create(&config, &runtime, &reported));
    for (int d = 0; d < 7; d++) assert_int_equal(info_of(runtime, d).budget_bytes, alone.budget_bytes / 7);
    OK(muster_runtime_destroy(runtime, 0, &reported));
}

static void bad_numbers_of_actors_are_refused(void **state) {
    (void)state;
    muster_config config = config_of(NULL, 17);
    refused(MUSTER_INVALID_CONFIG, "actors_per_device|17|16", &config);
    config = config_of("{\"devices\": 3}", 16);
    refused(MUSTER_LIMIT_REACHED, "3|16|48|32|actors_per_device", &config);
    config.device_count = 2;
    expect_actors(&config, 32);
    /* An ordinal is named once, whatever the number of actors. */
    for (uint32_t actors = 0; actors < 3; actors++) {
        config = config_of("{\"devices\": 3}", actors);
        config.ordinals = (const int[]){1, 1};
        config.device_count = 2;
        refused(MUSTER_INVALID_CONFIG, "ordinals|1|twice|actors_per_device", &config);
    }
}

static void code_wins_over_the_file_over_the_environment(void **state) {
    (void)state;
    const char *folder = getenv("TEST_TMPDIR");
    char path[512];
    muster_config config = config_of(NULL, 0);
    setenv("MUSTER_ACTORS_PER_DEVICE", "2", 1);
    expect_actors(&config, 2);
    snprintf(path, sizeof path, "%s/shares.json", folder ? folder : "/tmp");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"actors_per_device\": 3, \"numa\": false}", file);
    assert_int_equal(fclose(file), 0);
    config.config_path = path;
    expect_actors(&config, 3);
    config.actors_per_device = 4;
    config.flags = MUSTER_RUNTIME_NO_NUMA;
    expect_actors(&config, 4);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"numa\": 1}", file);
    assert_int_equal(fclose(file), 0);
    refused(MUSTER_INVALID_CONFIG, "numa|true or false", &config);
    remove(path);
    config = config_of(NULL, 0);
    static const char *const bad[] = {"17", "-1", "two", "2x", " 2", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("MUSTER_ACTORS_PER_DEVICE", bad[i], 1);
        refused(MUSTER_INVALID_CONFIG, "MUSTER_ACTORS_PER_DEVICE|16", &config);
    }
    setenv("MUSTER_ACTORS_PER_DEVICE", "", 1);
    expect_actors(&config, 1);
    unsetenv("MUSTER_ACTORS_PER_DEVICE");
}

/* ----------------------------------------------------------------------------------------------------------- graphs -- */

static void actors_of_a_device_copy_directly(void **state) {
    (void)state;
    fixture fixture;
    open_shares(&fixture, "{\"devices\": 2, \"peers\": \"none\"}", 2);
    for (int to = 0; to < 4; to++)
        for (int from = 0; from < 4; from++)
            if (to != from) assert_int_equal(fixture.runtime->reach[to] >> from & 1, to / 2 == from / 2);
    assert_int_equal(mu_sim_calls(fixture_driver(&fixture), "ctx_enable_peer_access"), 0);
    fixture_close(&fixture);
}

/* One buffer goes round all actors, so each gets it from the one before; the host sees it at the end only. */
static void content_goes_from_actor_to_actor(void **state) {
    (void)state;
    enum { ACTORS = 4, STEPS = 40 };
    fixture fixture;
    open_shares(&fixture, "{\"devices\": 1}", ACTORS);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    uint32_t expected = 0, *words = malloc(BYTES);
    assert_non_null(words);
    for (uint32_t step = 0; step < STEPS; step++) {
        add_affine_on(&fixture, graph, buffer, (int)(step % ACTORS), 3, step);
        expected = 3 * expected + step;
    }
    fixture_run(&fixture, graph);
    uint64_t copies = 0;
    for (int d = 0; d < ACTORS; d++) {
        muster_device_stats stats = stats_of(&fixture, d);
        assert_int_equal(stats.jobs, STEPS / ACTORS);
        assert_int_equal(stats.bytes_to_host, 0);
        copies += stats.peer_copies;
    }
    assert_int_equal(copies, STEPS - 1);
    fixture_read(buffer, 0, BYTES, words);
    for (uint32_t i = 0; i < WORDS; i++) assert_int_equal(words[i], expected);
    free(words);
    fixture_close(&fixture);
}

static void code_is_compiled_once_and_loaded_by_each(void **state) {
    (void)state;
    fixture fixture;
    open_shares(&fixture, "{\"devices\": 1}", 5);
    muster_cache_stats stats = {.struct_size = sizeof stats};
    fixture_kernel(&fixture, "affine");
    OK(muster_cache_get_stats(fixture.runtime, &stats, &reported));
    assert_int_equal(stats.compiles, 1);
    assert_int_equal(stats.module_loads, 5);
    fixture_close(&fixture);
}

static void a_fault_of_one_ends_all(void **state) {
    (void)state;
    fixture fixture;
    open_shares(&fixture, "{\"devices\": 1}", 3);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *bad = fixture_graph(&fixture), *good = fixture_graph(&fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "illegal"), 1, 1,
                         ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u64_arg(1ull << 40)));
    dispatch.pin_device = 1;
    dispatch.device = 1;
    fixture_add(bad, &dispatch);
    add_affine_on(&fixture, good, buffer, 2, 1, 1);
    muster_run *run = fixture_submit(&fixture, bad), *later;
    FAILS(MUSTER_KERNEL_FAULT, "", muster_run_wait(run, fixture_wait_ns, &reported));
    FAILS(MUSTER_KERNEL_FAULT, "process", muster_submit(fixture.runtime, good, &later, &reported));
    fixture_close(&fixture);
}

/* They are lost together with it, and those of other devices go on, also where content of theirs was. */
static void a_lost_device_takes_its_actors_with_it(void **state) {
    (void)state;
    fixture fixture;
    open_shares(&fixture, "{\"devices\": 2}", 2);
    muster_buffer *buffer = fixture_buffer(&fixture, BYTES, NULL);
    muster_graph *everywhere = fixture_graph(&fixture), *rest = fixture_graph(&fixture);
    for (int d = 0; d < 4; d++) add_affine_on(&fixture, everywhere, buffer, d, 1, 1);
    for (int d = 2; d < 4; d++) add_affine_on(&fixture, rest, buffer, d, 1, 1);
    fixture_run(&fixture, everywhere);
    mu_sim_lose_device(fixture_driver(&fixture), 0);
    for (int d = 0; d < 2; d++) {
        muster_buffer *own = fixture_buffer(&fixture, BYTES, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        add_affine_on(&fixture, graph, own, d, 1, 1);
        muster_run *run = fixture_submit(&fixture, graph);
        assert_int_equal(muster_run_wait(run, fixture_wait_ns, NULL), MUSTER_DEVICE_LOST);
    }
    for (int d = 0; d < 4; d++) assert_int_equal(info_of(fixture.runtime, d).lost, d < 2);
    fixture_run(&fixture, rest);
    assert_int_equal(fixture_word(buffer, WORDS - 1), 6);
    fixture_close(&fixture);
}

/* ----------------------------------------------------------------------------------------------------------- memory -- */

/* A device with little more than the budget: 320 MiB, of which 288 may be used, so 144 for each of two. */
enum { DEVICE_MIB = 320, BUFFER_MIB = 32, MOST = 4 };

static const char small_device[] = "{\"devices\": [{\"memory_bytes\": 335544320, \"context_bytes\": 1048576}]}";

static void fill_on(const fixture *fixture, muster_buffer **buffers, uint32_t count, int device) {
    muster_graph *graph = fixture_graph(fixture);
    for (uint32_t i = 0; i < count; i++) {
        buffers[i] = fixture_buffer(fixture, (uint64_t)BUFFER_MIB * MIB, NULL);
        /* One block, so that little is executed; the buffer is there as a whole. */
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(fixture, "affine"), 1, 64,
                             ARGS(muster_buffer_arg(buffers[i], MUSTER_READ_WRITE), muster_u32_arg(1),
                                  muster_u32_arg((uint32_t)device + 10 * i + 1), muster_u32_arg(64)));
        dispatch.pin_device = 1;
        dispatch.device = device;
        fixture_add(graph, &dispatch);
    }
    fixture_run(fixture, graph);
    muster_graph_destroy(graph);
}

static void one_full_share_leaves_the_other_its_own(void **state) {
    (void)state;
    fixture fixture;
    muster_buffer *buffers[2][MOST];
    open_shares(&fixture, small_device, 2);
    for (int d = 0; d < 2; d++) fill_on(&fixture, buffers[d], MOST, d);
    for (int d = 0; d < 2; d++) {
        muster_device_stats stats = stats_of(&fixture, d);
        assert_int_equal(stats.pool_bytes_in_use, (uint64_t)MOST * BUFFER_MIB * MIB);
        assert_int_equal(stats.evictions, 0);
        assert_int_equal(stats.admission_waits, 0);
    }
    /* One more on either: its own copies make room, never the other's. */
    muster_buffer *more;
    fill_on(&fixture, &more, 1, 1);
    assert_int_equal(stats_of(&fixture, 0).evictions, 0);
    assert_true(stats_of(&fixture, 1).evictions > 0);
    for (uint32_t i = 0; i < MOST; i++)
        for (int d = 0; d < 2; d++) assert_int_equal(fixture_word(buffers[d][i], 63), (uint32_t)d + 10 * i + 1);
    fixture_close(&fixture);
}

/* Another process leaves 160 MiB, of which one actor's pool keeps 128 that nobody uses any more. */
static void what_one_only_caches_is_there_for_the_other(void **state) {
    (void)state;
    fixture fixture;
    muster_buffer *first[MOST], *second[3];
    open_shares(&fixture, small_device, 2);
    fill_on(&fixture, first, MOST, 0);
    for (uint32_t i = 0; i < MOST; i++) muster_buffer_destroy(first[i]);
    mu_actors_pass(fixture.runtime);
    mu_sim_set_other_memory(fixture_driver(&fixture), 0, (uint64_t)160 * MIB);
    fill_on(&fixture, second, 3, 1);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(fixture_word(second[i], 63), 1 + 10 * i + 1);
    mu_sim_statistics statistics;
    mu_sim_get_statistics(fixture_driver(&fixture), 0, &statistics);
    assert_true(statistics.memory_used_bytes < (uint64_t)(DEVICE_MIB - 160) * MIB);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(actors_of_a_device_are_told_apart),
        cmocka_unit_test(bad_numbers_of_actors_are_refused),
        cmocka_unit_test(code_wins_over_the_file_over_the_environment),
        cmocka_unit_test(actors_of_a_device_copy_directly),
        cmocka_unit_test(content_goes_from_actor_to_actor),
        cmocka_unit_test(code_is_compiled_once_and_loaded_by_each),
        cmocka_unit_test(a_fault_of_one_ends_all),
        cmocka_unit_test(a_lost_device_takes_its_actors_with_it),
        cmocka_unit_test(one_full_share_leaves_the_other_its_own),
        cmocka_unit_test(what_one_only_caches_is_there_for_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
