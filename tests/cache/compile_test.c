/* Memory, then disk, then making it: who compiles, how often, and what is kept where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/compile.h"
#include "tests/cache/fake_device.h"
#include "tests/cache/scratch.h"

static const char ptx[] = ".version 8.0 .target sm_90";

typedef struct fixture {
    const char *path;
    mu_compile_caches caches;
} fixture;

/* A process of its own: caches in memory empty, the disk as the last one left it. */
static void open_process(fixture *f) {
    mu_compile_options options = {.disk.directory = f->path ? f->path : ""};
    assert_int_equal(mu_compile_caches_open(&options, &f->caches, NULL), MUSTER_OK);
}

static void close_process(fixture *f) { mu_compile_caches_close(&f->caches); }

static void compile(fixture *f, mu_device *device, const char *text) {
    mu_key raw = mu_raw_ptx_key(text, strlen(text));
    mu_ptx_text cubin;
    assert_int_equal(mu_compile_cubin(&f->caches, NULL, device, &raw, text, strlen(text), "program", &cubin, NULL),
                     MUSTER_OK);
    char expected[200];
    snprintf(expected, sizeof expected, "cubin%d:%s", device->capability.native_sm, text);
    assert_int_equal(cubin.bytes, strlen(expected));
    assert_string_equal(cubin.text, expected);
    mu_ptx_text_release(&cubin);
}

static void devices_of_a_kind_share_one_compile(void **state) {
    (void)state;
    fixture f = {0};
    open_process(&f);
    mu_device a = fake_device(90), b = fake_device(90), older = fake_device(80), simulated = fake_device(90);
    mu_device newer_driver = fake_device(90);
    simulated.capability.simulated = true;
    newer_driver.capability.driver_version = 13010;
    mu_device *all[] = {&a, &b, &older, &simulated, &newer_driver};
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 5; i++) compile(&f, all[i], ptx);
    assert_int_equal(a.compiles, 1);
    assert_int_equal(b.compiles, 0);
    assert_int_equal(older.compiles, 1);
    assert_int_equal(simulated.compiles, 1); /* never given to a real device, nor the reverse */
    assert_int_equal(newer_driver.compiles, 1);
    assert_int_equal(f.caches.compiles, 4);
    compile(&f, &b, ".version 8.1");
    assert_int_equal(b.compiles, 1);
    close_process(&f);
}

static void the_next_process_compiles_nothing(void **state) {
    (void)state;
    fixture f = {.path = scratch_make()};
    mu_device device = fake_device(90);
    for (int process = 0; process < 3; process++) {
        open_process(&f);
        compile(&f, &device, ptx);
        compile(&f, &device, ptx);
        mu_disk_cache_stats stats;
        mu_disk_cache_get_stats(f.caches.disk, &stats);
        assert_int_equal(stats.hits, process > 0);
        assert_int_equal(stats.stores, process == 0);
        close_process(&f);
    }
    assert_int_equal(device.compiles, 1);
    scratch_remove(f.path);
}

static void a_failure_is_not_kept_anywhere(void **state) {
    (void)state;
    fixture f = {.path = scratch_make()};
    open_process(&f);
    mu_device device = fake_device(90);
    mu_key raw = mu_raw_ptx_key(ptx, sizeof ptx - 1);
    mu_ptx_text cubin;
    muster_error error = {0};
    device.fail = MUSTER_PROGRAM_INVALID;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mu_compile_cubin(&f.caches, NULL, &device, &raw, ptx, sizeof ptx - 1, "p", &cubin, &error),
                         MUSTER_PROGRAM_INVALID);
        assert_non_null(strstr(error.message, "line 3: syntax error"));
    }
    assert_int_equal(device.compiles, 2);
    device.fail = MUSTER_OK;
    compile(&f, &device, ptx);
    close_process(&f);
    scratch_remove(f.path);
}

/* ------------------------------------------------------------------------------------------------------ lowering -- */

static muster_status lower(void *user, const mu_key *key, char **text, size_t *bytes, muster_error *error) {
    (void)key;
    ++*(int *)user;
    *text = mu_strdup("lowered");
    if (!*text) return mu_fail_host_memory(error, "a text", 8);
    *bytes = strlen(*text);
    return MUSTER_OK;
}

static void get(fixture *f, uint64_t number, bool persistent, int *calls) {
    mu_key key = mu_raw_ptx_key(&number, sizeof number);
    mu_ptx_text text;
    assert_int_equal(mu_compile_ptx(&f->caches, NULL, &key, persistent, lower, calls, &text, NULL), MUSTER_OK);
    assert_string_equal(text.text, "lowered");
    mu_ptx_text_release(&text);
}

static void a_persistent_lowering_runs_once_for_all_processes(void **state) {
    (void)state;
    fixture f = {.path = scratch_make()};
    int persistent = 0, passing = 0;
    for (int process = 0; process < 3; process++) {
        open_process(&f);
        for (int i = 0; i < 2; i++) {
            get(&f, 1, true, &persistent);
            get(&f, 2, false, &passing);
        }
        assert_int_equal(f.caches.lowerings, process == 0 ? 2 : 1);
        close_process(&f);
    }
    assert_int_equal(persistent, 1);
    assert_int_equal(passing, 3); /* once in each */
    scratch_remove(f.path);
}

/* -------------------------------------------------------------------------------------------------- many threads -- */

typedef struct asker {
    pthread_t thread;
    fixture *fixture;
    mu_device *device;
    bool right;
} asker;

static void *ask(void *argument) {
    asker *self = argument;
    mu_compile_caches *caches = &self->fixture->caches;
    mu_key raw = mu_raw_ptx_key(ptx, sizeof ptx - 1);
    mu_ptx_text cubin;
    mu_ptx_reader *reader;
    if (mu_ptx_reader_create(caches->cubins, &reader, NULL) != MUSTER_OK) return NULL;
    if (mu_compile_cubin(caches, reader, self->device, &raw, ptx, sizeof ptx - 1, "p", &cubin, NULL) == MUSTER_OK) {
        self->right = memcmp(cubin.text, "cubin90:", 8) == 0;
        mu_ptx_text_release(&cubin);
    }
    mu_ptx_reader_destroy(reader);
    return NULL;
}

/* F3: 16 threads on each of 4 devices of a kind ask for one cold program: exactly one compile. The first is held until
 * all others wait for it. */
static void sixteen_threads_by_four_devices_compile_once(void **state) {
    (void)state;
    enum { DEVICES = 4, THREADS = 16 * DEVICES };
    fixture f = {.path = scratch_make()};
    open_process(&f);
    sem_t started, proceed;
    sem_init(&started, 0, 0);
    sem_init(&proceed, 0, 0);
    mu_device devices[DEVICES];
    asker askers[THREADS] = {0};
    for (int i = 0; i < DEVICES; i++) {
        devices[i] = fake_device(90);
        devices[i].compile_started = &started;
        devices[i].compile_proceed = &proceed;
    }
    for (int i = 0; i < THREADS; i++) {
        askers[i].fixture = &f;
        askers[i].device = &devices[i % DEVICES];
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
    }
    sem_wait(&started);
    mu_ptx_cache_stats stats;
    do {
        sched_yield();
        mu_ptx_cache_get_stats(f.caches.cubins, &stats);
    } while (stats.joins < THREADS - 1);
    sem_post(&proceed);
    unsigned compiles = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(askers[i].thread, NULL);
        assert_true(askers[i].right);
    }
    for (int i = 0; i < DEVICES; i++) compiles += devices[i].compiles;
    assert_int_equal(compiles, 1);
    mu_ptx_cache_get_stats(f.caches.cubins, &stats);
    assert_int_equal(stats.misses, 1);
    sem_destroy(&started);
    sem_destroy(&proceed);
    close_process(&f);
    scratch_remove(f.path);
}

/* --------------------------------------------------------------------------------------------------------- dumps -- */

static int count_dumped(const char *mode, bool failing) {
    mu_compile_caches caches;
    const char *path = scratch_make();
    mu_compile_options options = {.disk.directory = "", .dump = mode, .dump_directory = path};
    assert_int_equal(mu_compile_caches_open(&options, &caches, NULL), MUSTER_OK);
    mu_device device = fake_device(90);
    mu_key raw = mu_raw_ptx_key(ptx, sizeof ptx - 1);
    mu_ptx_text cubin;
    if (failing) device.fail = MUSTER_PROGRAM_INVALID;
    for (int i = 0; i < 2; i++)
        if (mu_compile_cubin(&caches, NULL, &device, &raw, ptx, sizeof ptx - 1, "p", &cubin, NULL) == MUSTER_OK)
            mu_ptx_text_release(&cubin);
    int files = scratch_count_files(path);
    mu_compile_caches_close(&caches);
    scratch_remove(path);
    return files;
}

/* F6: every text, or only those refused, with the log beside them. */
static void dumps_are_made_as_asked(void **state) {
    (void)state;
    assert_int_equal(count_dumped("none", true), 0);
    assert_int_equal(count_dumped("none", false), 0);
    assert_int_equal(count_dumped("failing", true), 2);
    assert_int_equal(count_dumped("failing", false), 0);
    assert_int_equal(count_dumped("all", true), 2);
    assert_int_equal(count_dumped("all", false), 1);
}

static void the_environment_asks_for_dumps(void **state) {
    (void)state;
    const char *path = scratch_make();
    mu_compile_options options = {.disk.directory = ""};
    fixture f;
    int calls = 0;
    muster_error error = {0};
    setenv("MUSTER_DUMP_DIR", path, 1);
    setenv("MUSTER_DUMP_PTX", "all", 1);
    assert_int_equal(mu_compile_caches_open(&options, &f.caches, NULL), MUSTER_OK);
    get(&f, 1, false, &calls);
    close_process(&f);
    close_process(&f); /* zeroed */
    assert_int_equal(scratch_count_files(path), 1);
    setenv("MUSTER_DUMP_PTX", "yes", 1);
    assert_int_equal(mu_compile_caches_open(&options, &f.caches, &error), MUSTER_INVALID_CONFIG);
    assert_null(f.caches.ptx);
    options.dump = "none"; /* what is set in code wins */
    assert_int_equal(mu_compile_caches_open(&options, &f.caches, NULL), MUSTER_OK);
    assert_null(f.caches.dump);
    close_process(&f);
    unsetenv("MUSTER_DUMP_PTX");
    unsetenv("MUSTER_DUMP_DIR");
    scratch_remove(path);
}

static muster_status everything_once(const char *path) {
    mu_compile_caches caches = {0};
    mu_device device = fake_device(90);
    mu_compile_options options = {.disk.directory = path, .dump = "all", .dump_directory = scratch_join(path, "dump")};
    int calls = 0;
    muster_status status = mu_compile_caches_open(&options, &caches, NULL);
    mu_key raw = mu_raw_ptx_key(ptx, sizeof ptx - 1);
    mu_ptx_text text;
    if (!status) status = mu_compile_ptx(&caches, NULL, &raw, true, lower, &calls, &text, NULL);
    if (!status) mu_ptx_text_release(&text);
    if (!status) status = mu_compile_cubin(&caches, NULL, &device, &raw, ptx, sizeof ptx - 1, "p", &text, NULL);
    if (!status) mu_ptx_text_release(&text);
    mu_compile_caches_close(&caches);
    return status;
}

static void every_allocation_failed_in_turn(void **state) {
    (void)state;
    for (int warm = 0; warm < 2; warm++)
        for (uint64_t n = 1;; n++) {
            const char *path = scratch_make();
            if (warm) assert_int_equal(everything_once(path), MUSTER_OK);
            mu_alloc_fail_at(n, false);
            muster_status status = everything_once(path);
            bool hit = mu_alloc_fail_hits() > 0;
            mu_alloc_fail_at(0, false);
            scratch_remove(path);
            assert_true(status == MUSTER_OK || (hit && status == MUSTER_OUT_OF_HOST_MEMORY));
            if (!hit) break;
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_of_a_kind_share_one_compile),
        cmocka_unit_test(the_next_process_compiles_nothing),
        cmocka_unit_test(a_failure_is_not_kept_anywhere),
        cmocka_unit_test(a_persistent_lowering_runs_once_for_all_processes),
        cmocka_unit_test(sixteen_threads_by_four_devices_compile_once),
        cmocka_unit_test(dumps_are_made_as_asked),
        cmocka_unit_test(the_environment_asks_for_dumps),
        cmocka_unit_test(every_allocation_failed_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
