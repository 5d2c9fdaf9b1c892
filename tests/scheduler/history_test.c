/* What runtimes learn about kernels and devices, from one to the next by way of the cache directory. */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/sanitizer.h"
#include "scheduler/placement/estimate.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"
#include "tests/cache/scratch.h"
#include "tests/scheduler/fixture.h"

enum { WORDS = 4096, BYTES = 4 * WORDS, BLOCKS = WORDS / 64 };

static char directory[4096];
static const char two_kinds[] = "{\"devices\": [{\"name\": \"first kind\"}, {\"name\": \"second kind\"}]}";
static const char two_equal[] = "{\"devices\": 2}";

static int fresh_directory(void **state) {
    (void)state;
    snprintf(directory, sizeof directory, "%s", scratch_make());
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    scratch_remove(directory);
    return 0;
}

static void open_on(fixture *fixture, const char *sim, const char *cache, scratch_log *log) {
    muster_config config = {
        .struct_size = sizeof config, .sim = sim, .cache_dir = cache, .flags = MUSTER_RUNTIME_NO_STEALING};
    if (log) {
        scratch_log_init(log);
        config.log = log->log.write;
        config.log_user = log->log.user;
    }
    fixture_open_with(fixture, 2, &config);
}

static void open_kept(fixture *fixture, const char *sim) { open_on(fixture, sim, directory, NULL); }

static uint64_t pace(const fixture *fixture, const char *entry, int device) {
    return atomic_load(&fixture_kernel(fixture, entry)->pace_ps[device]);
}

/* As if it had been measured: what is measured here says more about this machine. */
static void learn(const fixture *fixture, const char *entry, int device, uint64_t pace_ps) {
    atomic_store(&fixture_kernel(fixture, entry)->pace_ps[device], pace_ps);
}

static muster_cache_stats stats_of(const fixture *fixture) {
    muster_cache_stats stats = {.struct_size = sizeof stats};
    OK(muster_cache_get_stats(fixture->runtime, &stats, &reported));
    return stats;
}

/* Entries of the history; the path of the last in `path` unless that is NULL. */
static int entries(char path[4096]) {
    int count = 0;
    DIR *stream = opendir(directory);
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream));) {
        if (!strstr(entry->d_name, ".history")) continue;
        if (path) snprintf(path, 4096, "%.2000s/%.255s", directory, entry->d_name);
        count++;
    }
    closedir(stream);
    return count;
}

static muster_graph *affine(const fixture *fixture, uint32_t blocks, int device) {
    muster_graph *graph = fixture_graph(fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "affine"), blocks, 64,
                         ARGS(muster_buffer_arg(fixture_buffer(fixture, BYTES, NULL), MUSTER_READ_WRITE),
                              muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(WORDS)));
    dispatch.pin_device = device >= 0;
    dispatch.device = device >= 0 ? device : 0;
    fixture_add(graph, &dispatch);
    return graph;
}

/* ------------------------------------------------------------------------------------------------------- kernels -- */

static void what_was_measured_is_known_to_the_next_runtime(void **state) {
    (void)state;
    fixture fixture;
    uint64_t measured[2];
    open_kept(&fixture, two_kinds);
    assert_int_equal(stats_of(&fixture).history_hits, 0);
    assert_int_equal(stats_of(&fixture).history_misses, 4); /* of two devices, and of the program on two kinds */
    for (int d = 0; d < 2; d++) fixture_run(&fixture, affine(&fixture, BLOCKS, d));
    for (int d = 0; d < 2; d++) measured[d] = pace(&fixture, "affine", d);
    assert_true(measured[0] && measured[1]);
    fixture_close(&fixture);

    open_kept(&fixture, two_kinds);
    assert_int_equal(stats_of(&fixture).history_hits, 2);
    for (int d = 0; d < 2; d++) {
        assert_int_equal(pace(&fixture, "affine", d), measured[d]);
        const mu_node *node = &affine(&fixture, BLOCKS, -1)->nodes[0];
        assert_int_equal(mu_estimate_launch_ns(node, d), measured[d] * BLOCKS / 1000 + 1);
    }
    assert_int_equal(pace(&fixture, "nothing", 0), 0); /* another kernel of the program */
    fixture_close(&fixture);

    /* The program's text is what counts, not its name; another text is another program. */
    open_kept(&fixture, two_kinds);
    muster_program *same, *other;
    muster_kernel *kernel;
    size_t length = strlen(test_kernels_ptx);
    char *changed = malloc(length + 8);
    assert_non_null(changed);
    snprintf(changed, length + 8, "%s//x\n", test_kernels_ptx);
    OK(muster_program_from_ptx(fixture.runtime, test_kernels_ptx, 0, "by another name", &same, &reported));
    OK(muster_program_from_ptx(fixture.runtime, changed, 0, "test kernels", &other, &reported));
    OK(muster_program_kernel(same, "affine", &kernel, &reported));
    assert_int_equal(atomic_load(&kernel->pace_ps[1]), measured[1]);
    OK(muster_program_kernel(other, "affine", &kernel, &reported));
    assert_int_equal(atomic_load(&kernel->pace_ps[1]), 0);
    free(changed);
    fixture_close(&fixture);
}

/* Cutting compares devices by what wide launches took: that is kept too, and apart. */
static void wide_launches_are_known_too(void **state) {
    (void)state;
    fixture fixture;
    open_kept(&fixture, two_kinds);
    muster_kernel *kernel = fixture_kernel(&fixture, "affine");
    learn(&fixture, "affine", 0, 5000);
    for (int d = 0; d < 2; d++) atomic_store(&kernel->wide_pace_ps[d], 1000u << d);
    fixture_close(&fixture);
    for (int round = 0; round < 2; round++) {
        uint64_t paces[MU_MAX_DEVICES];
        open_kept(&fixture, two_kinds);
        kernel = fixture_kernel(&fixture, "affine");
        assert_int_equal(pace(&fixture, "affine", 0), 5000);
        assert_int_equal(pace(&fixture, "affine", 1), 0);
        assert_true(mu_estimate_paces(fixture.runtime, kernel, NULL, 0, paces));
        assert_int_equal(paces[0], 1000);
        assert_int_equal(paces[1], round ? 3000 : 2000);
        atomic_store(&kernel->wide_pace_ps[1], 3000);
        fixture_close(&fixture);
    }
}

/* Blocks that each device is to have of a cut dispatch. */
static void cut_blocks(const char *cache, uint64_t blocks[2]) {
    fixture fixture;
    enum { GRID = 3000 };
    open_on(&fixture, two_kinds, cache, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, 4 * 64 * GRID, NULL);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "affine"), GRID, 64,
                         ARGS(muster_block_cut(muster_buffer_arg(buffer, MUSTER_READ_WRITE), 4 * 64), muster_u32_arg(1),
                              muster_u32_arg(1), muster_shard_count_arg(64, 64 * GRID, 4)));
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    fixture_add(graph, &dispatch);
    blocks[0] = blocks[1] = 0;
    for (size_t i = 0; i < graph->node_count; i++) blocks[graph->nodes[i].pin] += graph->nodes[i].as.dispatch->grid[0];
    fixture_close(&fixture);
}

static void a_second_runtime_cuts_right_the_first_time(void **state) {
    (void)state;
    fixture fixture;
    uint64_t blocks[2];
    open_kept(&fixture, two_kinds);
    for (int d = 0; d < 2; d++)
        atomic_store(&fixture_kernel(&fixture, "affine")->wide_pace_ps[d], d ? 500000 : 1000000);
    fixture_close(&fixture);
    cut_blocks(directory, blocks);
    assert_in_range(blocks[0], 900, 1100);
    assert_int_equal(blocks[0] + blocks[1], 3000);
    cut_blocks("", blocks);
    assert_int_equal(blocks[0], 1500);
    assert_int_equal(blocks[1], 1500);
}

/* Where ten equal jobs go whose device 0 takes four times as long. */
static void ten_places(const char *cache, int devices[10]) {
    fixture fixture;
    muster_run *runs[10];
    open_on(&fixture, two_kinds, cache, NULL);
    fixture_hold_all(&fixture, true);
    for (int i = 0; i < 10; i++) runs[i] = fixture_submit(&fixture, affine(&fixture, BLOCKS, -1));
    fixture_hold_all(&fixture, false);
    for (int i = 0; i < 10; i++) {
        OK(muster_run_wait(runs[i], fixture_wait_ns, &reported));
        devices[i] = fixture_result(runs[i], 0).device;
    }
    fixture_close(&fixture);
}

static void a_second_runtime_places_right_the_first_time(void **state) {
    (void)state;
    fixture fixture;
    int devices[10];
    uint64_t queue[2] = {0, 0}, takes[2] = {400000, 100000};
    open_kept(&fixture, two_kinds);
    for (int d = 0; d < 2; d++) learn(&fixture, "affine", d, takes[d] * 1000 / BLOCKS);
    fixture_close(&fixture);
    ten_places(directory, devices);
    for (int i = 0; i < 10; i++) {
        int sooner = queue[0] + takes[0] <= queue[1] + takes[1] ? 0 : 1;
        assert_int_equal(devices[i], sooner);
        queue[sooner] += takes[sooner] + 1; /* an estimate rounds up */
    }
    assert_int_equal(queue[0] / takes[0], 2);
    /* Without it: one here, one there. */
    ten_places("", devices);
    for (int i = 0; i < 10; i++) assert_int_equal(devices[i], i % 2);
}

static void equal_devices_learn_together(void **state) {
    (void)state;
    fixture fixture;
    open_kept(&fixture, two_equal);
    learn(&fixture, "affine", 0, 1000);
    learn(&fixture, "affine", 1, 3000);
    learn(&fixture, "nothing", 1, 700);
    fixture_close(&fixture);
    assert_int_equal(entries(NULL), 1);
    open_kept(&fixture, "{\"devices\": 3}"); /* and what they learnt is a new one's too */
    for (int d = 0; d < 3; d++) {
        assert_int_equal(pace(&fixture, "affine", d), 2000);
        assert_int_equal(pace(&fixture, "nothing", d), 700);
    }
    fixture_close(&fixture);
    open_kept(&fixture, "{\"devices\": [{\"sms\": 100}, {\"name\": \"another\"}]}"); /* not of their kind */
    for (int d = 0; d < 2; d++) assert_int_equal(pace(&fixture, "affine", d), 0);
    fixture_close(&fixture);
}

/* Two runtimes at the same time, neither of which has seen what the other writes. */
static void what_others_learnt_stays(void **state) {
    (void)state;
    fixture one, other, next;
    open_kept(&one, two_equal);
    open_kept(&other, two_equal);
    learn(&one, "affine", 0, 1234);
    learn(&one, "nothing", 0, 10);
    learn(&other, "record", 1, 777);
    learn(&other, "nothing", 1, 20);
    fixture_close(&one);
    fixture_close(&other);
    open_kept(&next, two_equal);
    assert_int_equal(pace(&next, "affine", 1), 1234);
    assert_int_equal(pace(&next, "record", 0), 777);
    assert_int_equal(pace(&next, "nothing", 0), 20); /* the later one */
    fixture_close(&next);
}

static void only_news_is_written(void **state) {
    (void)state;
    fixture fixture;
    open_kept(&fixture, two_equal); /* nothing ran */
    fixture_kernel(&fixture, "affine");
    fixture_close(&fixture);
    assert_int_equal(entries(NULL), 0);
    open_on(&fixture, "{\"devices\": 1}", directory, NULL); /* one device */
    for (int i = 0; i < 3; i++) fixture_run(&fixture, affine(&fixture, BLOCKS, -1));
    assert_int_equal(stats_of(&fixture).history_misses, 0);
    fixture_close(&fixture);
    assert_int_equal(entries(NULL), 0);
    open_on(&fixture, two_equal, "", NULL); /* the cache is off */
    learn(&fixture, "affine", 0, 1000);
    fixture_close(&fixture);
    assert_int_equal(entries(NULL), 0);

    static const struct {
        uint64_t learnt, known;
    } steps[] = {{8000, 8000}, {8999, 8000}, {7001, 8000}, {9001, 9001}, {0, 9001}, {4000, 4000}, {UINT64_MAX, 4000}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        open_kept(&fixture, two_equal);
        for (int d = 0; d < 2; d++) learn(&fixture, "affine", d, steps[i].learnt);
        fixture_close(&fixture);
        open_kept(&fixture, two_equal);
        assert_int_equal(pace(&fixture, "affine", 0), steps[i].known);
        fixture_close(&fixture);
    }
}

/* The program's handle goes first: what was learnt until then is kept, and what its runs do then harms nobody. */
static void a_program_may_be_destroyed_early(void **state) {
    (void)state;
    fixture fixture;
    open_kept(&fixture, two_equal);
    learn(&fixture, "affine", 0, 1000);
    learn(&fixture, "affine", 1, 1000);
    fixture_hold_all(&fixture, true);
    muster_run *run = fixture_submit(&fixture, affine(&fixture, BLOCKS, 1));
    muster_program_destroy(fixture.program);
    assert_int_equal(stats_of(&fixture).history_stores, 1);
    fixture_hold_all(&fixture, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    fixture_close(&fixture);
    open_kept(&fixture, two_equal);
    assert_int_equal(pace(&fixture, "affine", 0), 1000);
    fixture_close(&fixture);
}

/* --------------------------------------------------------------------------------------------------------- rates -- */

static void rates_of_copies_are_kept_for_each_device(void **state) {
    (void)state;
    fixture fixture;
    open_kept(&fixture, two_equal);
    atomic_store(&fixture.runtime->actors[0].host_bytes_per_us, 40000);
    atomic_store(&fixture.runtime->actors[0].peer_bytes_per_us, 300000);
    fixture_close(&fixture);
    assert_int_equal(entries(NULL), 1);
    for (int round = 0; round < 2; round++) {
        open_kept(&fixture, two_equal);
        const mu_actor *actors = fixture.runtime->actors;
        assert_int_equal(atomic_load(&actors[0].host_bytes_per_us), 40000);
        assert_int_equal(atomic_load(&actors[0].peer_bytes_per_us), 300000);
        assert_int_equal(atomic_load(&actors[1].host_bytes_per_us), round ? 20000 : 0);
        assert_int_equal(atomic_load(&actors[1].peer_bytes_per_us), 0);
        assert_int_equal(mu_estimate_copy_ns(fixture.runtime, 0, false, 4000000), 100000);
        assert_int_equal(mu_estimate_copy_ns(fixture.runtime, 0, true, 3000000), 10000);
        if (!round) atomic_store(&fixture.runtime->actors[1].host_bytes_per_us, 20000);
        fixture_close(&fixture);
    }
    assert_int_equal(entries(NULL), 2);
    /* Actors that share a device copy at other rates. */
    muster_config config = {.struct_size = sizeof config, .cache_dir = directory, .actors_per_device = 2};
    config.sim = "{\"devices\": 1}";
    fixture_open_with(&fixture, 2, &config);
    assert_int_equal(atomic_load(&fixture.runtime->actors[0].host_bytes_per_us), 0);
    fixture_close(&fixture);
}

static void large_copies_leave_a_rate_behind(void **state) {
    (void)state;
    enum { LARGE = 8 << 20 };
    fixture fixture;
    char *host = calloc(1, LARGE);
    assert_non_null(host);
    open_kept(&fixture, two_equal);
    muster_graph *graph = fixture_graph(&fixture);
    muster_buffer *buffer = fixture_buffer(&fixture, LARGE, host);
    OK(muster_graph_prefetch(graph, buffer, 0, 0, 1, NULL, &reported));
    fixture_run(&fixture, graph);
    uint64_t rate = atomic_load(&fixture.runtime->actors[1].host_bytes_per_us);
    fixture_close(&fixture);
    open_kept(&fixture, two_equal);
    assert_int_equal(atomic_load(&fixture.runtime->actors[1].host_bytes_per_us), rate);
    assert_int_equal(rate > 0, entries(NULL) > 0);
    fixture_close(&fixture);
    free(host);
}

/* ---------------------------------------------------------------------------------------------------- bad entries -- */

static void write_file(const char *path, const void *content, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(content, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Whatever is wrong with an entry: nothing is known, one line says so, and what is learnt then is known to the next. */
static void expect_forgotten(uint64_t damaged) {
    fixture fixture;
    scratch_log log;
    open_on(&fixture, two_equal, directory, &log);
    assert_int_equal(stats_of(&fixture).disk_damaged, damaged);
    assert_int_equal(atomic_load(&log.lines), 1);
    assert_int_equal(pace(&fixture, "affine", 0), 0);
    fixture_run(&fixture, affine(&fixture, BLOCKS, 0));
    learn(&fixture, "affine", 0, 4321);
    fixture_close(&fixture);
    open_kept(&fixture, two_equal);
    assert_int_equal(pace(&fixture, "affine", 1), 4321);
    fixture_close(&fixture);
}

static void damaged_and_foreign_entries_are_misses(void **state) {
    (void)state;
    fixture fixture;
    char path[4096], content[4096];
    open_kept(&fixture, two_equal);
    learn(&fixture, "affine", 0, 1000);
    fixture_close(&fixture);
    assert_int_equal(entries(path), 1);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t bytes = fread(content, 1, sizeof content, file);
    fclose(file);
    const size_t step = MU_TSAN || MU_ASAN ? 41 : 7;
    for (size_t cut = 0; cut < bytes; cut += step) {
        write_file(path, content, cut);
        expect_forgotten(1);
    }
    for (size_t at = 0; at < bytes; at += step) {
        char changed[4096];
        memcpy(changed, content, bytes);
        changed[at] ^= 0x20;
        write_file(path, changed, bytes);
        expect_forgotten(1);
    }
}

/* Entries that are whole, and say what this version does not understand or believe. */
static void entries_of_other_versions_are_misses(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        "muster history 2\n1000 affine\n",
                                        "muster history 1",
                                        "muster history 1\n1000\n",
                                        "muster history 1\n1000 \n",
                                        "muster history 1\n1000 affine",
                                        "muster history 1\n-5 affine\n",
                                        "muster history 1\n0 affine\n",
                                        "muster history 1\nfast affine\n",
                                        "muster history 1\n99999999999999999999999 affine\n",
                                        "muster history 1\n18446744073709551615 affine\n",
                                        "muster history 1\n1000 nothing\n\n1000 affine\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        fixture fixture;
        open_kept(&fixture, two_equal);
        mu_key key = mu_history_program_key(&fixture.program->devices[0].code->identity, &fixture.runtime->actors[0]);
        assert_true(
            mu_disk_cache_store(fixture.runtime->caches.disk, MU_DISK_HISTORY, &key, texts[i], strlen(texts[i])));
        fixture_close(&fixture);
        expect_forgotten(0);
    }
}

/* ------------------------------------------------------------------------------------------------------ many at once -- */

enum { THREADS = 4, ROUNDS = 5 };

static void *learn_and_forget(void *user) {
    const uint64_t number = (uint64_t)(uintptr_t)user;
    for (int round = 0; round < ROUNDS; round++) {
        fixture fixture;
        open_kept(&fixture, two_kinds);
        learn(&fixture, "affine", 0, 1000 * (number + 1) << round);
        learn(&fixture, "affine", 1, 1000 * (number + 1) << round);
        fixture_close(&fixture);
    }
    return NULL;
}

static void many_runtimes_share_a_directory(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, learn_and_forget, (void *)i), 0);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    fixture fixture;
    open_kept(&fixture, two_kinds);
    assert_int_equal(stats_of(&fixture).history_hits, 2);
    assert_int_equal(stats_of(&fixture).disk_damaged, 0);
    for (int d = 0; d < 2; d++) {
        uint64_t found = pace(&fixture, "affine", d);
        assert_true(found % 1000 == 0 && found >= 1000 && found <= 4000 << (ROUNDS - 1));
    }
    fixture_close(&fixture);
}

/* Host memory that is short while the history is read or written costs the history at most. */
static void short_host_memory_costs_the_history_only(void **state) {
    (void)state;
    uint64_t without = 0;
    for (uint64_t n = 1; without < 3; n++) {
        fixture fixture;
        open_kept(&fixture, two_equal);
        learn(&fixture, "affine", 0, 1000 + 1000 * (n % 2));
        mu_alloc_fail_at(n, false);
        muster_program_destroy(fixture.program);
        mu_alloc_fail_at(0, false);
        without += stats_of(&fixture).history_stores;
        fixture_close(&fixture);
        assert_true(n < 100);
    }
}

int main(void) {
#define KEPT(test) cmocka_unit_test_setup_teardown(test, fresh_directory, remove_directory)
    const struct CMUnitTest tests[] = {
        KEPT(what_was_measured_is_known_to_the_next_runtime),
        KEPT(wide_launches_are_known_too),
        KEPT(a_second_runtime_cuts_right_the_first_time),
        KEPT(a_second_runtime_places_right_the_first_time),
        KEPT(equal_devices_learn_together),
        KEPT(what_others_learnt_stays),
        KEPT(only_news_is_written),
        KEPT(a_program_may_be_destroyed_early),
        KEPT(rates_of_copies_are_kept_for_each_device),
        KEPT(large_copies_leave_a_rate_behind),
        KEPT(damaged_and_foreign_entries_are_misses),
        KEPT(entries_of_other_versions_are_misses),
        KEPT(many_runtimes_share_a_directory),
        KEPT(short_host_memory_costs_the_history_only),
    };
    return cmocka_run_group_tests_name("history", tests, NULL, NULL);
}
