/* Many processes and threads on one directory: whatever they do to each other, and if they are killed in the middle of
 * it, what is read is what somebody stored, and nothing is ever found damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cache/disk_cache.h"
#include "tests/cache/scratch.h"

enum { KEYS = 24, MAX_BYTES = 60000 };

static mu_key key_of(uint64_t number) { return mu_raw_ptx_key(&number, sizeof number); }

/* Every process would compile the same thing of a key. */
static size_t make_content(uint64_t number, char content[8000]) {
    size_t bytes = 200 + number * 300;
    for (size_t i = 0; i < bytes; i++) content[i] = (char)(number * 31 + i * 7 + (i >> 8));
    return bytes;
}

/* False when something that was read is wrong. */
static bool use_once(mu_disk_cache *cache, uint64_t number) {
    char content[8000], *data;
    size_t bytes, expected = make_content(number, content);
    mu_key key = key_of(number);
    if (!mu_disk_cache_load(cache, MU_DISK_CUBIN, &key, &data, &bytes)) {
        mu_disk_cache_store(cache, MU_DISK_CUBIN, &key, content, expected);
        return true;
    }
    bool right = bytes == expected && memcmp(data, content, bytes) == 0;
    mu_free(data);
    return right;
}

static mu_disk_cache *open_cache(const char *path) {
    mu_disk_cache *cache;
    mu_disk_cache_options options = {.directory = path, .max_bytes = MAX_BYTES};
    return mu_disk_cache_open(&options, &cache, NULL) == MUSTER_OK ? cache : NULL;
}

/* A child: 0 when everything it read was right and undamaged. `steps` 0: until it is killed, a byte to `told` each. */
static int child(const char *path, unsigned seed, int steps, int told) {
    mu_disk_cache *cache = open_cache(path);
    if (!cache) return 2;
    for (int i = 0; steps == 0 || i < steps; i++) {
        if (!use_once(cache, (uint64_t)rand_r(&seed) % KEYS)) return 3;
        if (steps == 0 && write(told, "", 1) != 1) return 4;
    }
    mu_disk_cache_stats stats;
    mu_disk_cache_get_stats(cache, &stats);
    mu_disk_cache_close(cache);
    return stats.damaged || stats.store_failures ? 5 : 0;
}

static pid_t start_child(const char *path, unsigned seed, int steps, int told) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(child(path, seed, steps, told));
    return pid;
}

static void processes_share_a_directory(void **state) {
    (void)state;
    enum { PROCESSES = 8 };
    const char *path = scratch_make();
    pid_t pids[PROCESSES];
    for (unsigned i = 0; i < PROCESSES; i++) pids[i] = start_child(path, i + 1, 400, -1);
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    scratch_remove(path);
}

static void killed_processes_leave_no_damage(void **state) {
    (void)state;
    const char *path = scratch_make();
    for (unsigned round = 0; round < 30; round++) {
        int told[2];
        assert_int_equal(pipe(told), 0);
        pid_t pids[2] = {start_child(path, 2 * round + 1, 0, told[1]), start_child(path, 2 * round + 2, 0, told[1])};
        close(told[1]);
        char byte;
        for (unsigned i = 0; i < 5 + round; i++) assert_int_equal(read(told[0], &byte, 1), 1);
        for (int i = 0; i < 2; i++) {
            int status;
            kill(pids[i], SIGKILL);
            assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
            assert_true(WIFSIGNALED(status)); /* it did not end by itself, which would be a failure */
        }
        close(told[0]);
    }
    assert_int_equal(child(path, 99, 500, -1), 0);
    scratch_remove(path);
}

static mu_disk_cache *shared_cache;
static atomic_int wrong;

static void *use_many(void *argument) {
    unsigned random = (unsigned)(uintptr_t)argument;
    for (int i = 0; i < 400; i++)
        if (!use_once(shared_cache, (uint64_t)rand_r(&random) % KEYS)) atomic_fetch_add(&wrong, 1);
    return NULL;
}

static void threads_share_a_cache(void **state) {
    (void)state;
    enum { THREADS = 8 };
    const char *path = scratch_make();
    pthread_t threads[THREADS];
    shared_cache = open_cache(path);
    assert_non_null(shared_cache);
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_many, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    mu_disk_cache_stats stats;
    mu_disk_cache_get_stats(shared_cache, &stats);
    assert_int_equal(wrong, 0);
    assert_int_equal(stats.damaged, 0);
    assert_int_equal(stats.hits + stats.misses, THREADS * 400);
    assert_true(stats.evictions > 0);
    mu_disk_cache_close(shared_cache);
    scratch_remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_share_a_directory), /* before there are threads */
        cmocka_unit_test(killed_processes_leave_no_damage),
        cmocka_unit_test(threads_share_a_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
