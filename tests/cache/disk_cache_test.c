/* The disk cache: what is read is what was stored or nothing, nothing about the disk fails a job, and it stays within
 * its bound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cache/disk_cache.h"
#include "tests/cache/scratch.h"

enum { HEADER_BYTES = 88 };

typedef struct fixture {
    const char *path;
    scratch_log log;
    mu_disk_cache *cache;
} fixture;

static mu_disk_cache *open_cache(fixture *f, uint64_t max_bytes) {
    mu_disk_cache *cache;
    mu_disk_cache_options options = {.directory = f->path, .max_bytes = max_bytes, .log = &f->log.log};
    assert_int_equal(mu_disk_cache_open(&options, &cache, NULL), MUSTER_OK);
    return cache;
}

static void open_fixture(fixture *f, uint64_t max_bytes) {
    f->path = scratch_make();
    scratch_log_init(&f->log);
    f->cache = open_cache(f, max_bytes);
    assert_non_null(f->cache);
}

static void close_fixture(fixture *f) {
    mu_disk_cache_close(f->cache);
    scratch_remove(f->path);
}

static mu_key key_of(uint64_t number) { return mu_raw_ptx_key(&number, sizeof number); }

static const char *file_of(fixture *f, uint64_t number) {
    mu_key key = key_of(number);
    char hex[MU_DIGEST_HEX_BYTES], name[96];
    mu_digest_hex(&key, hex);
    snprintf(name, sizeof name, "%s-1.ptx", hex);
    return scratch_join(f->path, name);
}

static bool store(fixture *f, uint64_t number, const void *data, size_t bytes) {
    mu_key key = key_of(number);
    return mu_disk_cache_store(f->cache, MU_DISK_PTX, &key, data, bytes);
}

/* Whether it is there; what is there must be `expected`. */
static bool load(fixture *f, uint64_t number, const void *expected, size_t expected_bytes) {
    mu_key key = key_of(number);
    char *data;
    size_t bytes;
    if (!mu_disk_cache_load(f->cache, MU_DISK_PTX, &key, &data, &bytes)) return false;
    assert_int_equal(bytes, expected_bytes);
    assert_memory_equal(data, expected, bytes);
    assert_int_equal(data[bytes], 0);
    mu_free(data);
    return true;
}

static mu_disk_cache_stats stats_of(fixture *f) {
    mu_disk_cache_stats stats;
    mu_disk_cache_get_stats(f->cache, &stats);
    return stats;
}

static void overwrite(const char *path, const void *data, size_t bytes) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    close(fd);
}

static size_t read_file(const char *path, char *data, size_t capacity) {
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    ssize_t bytes = read(fd, data, capacity);
    close(fd);
    assert_true(bytes >= 0);
    return (size_t)bytes;
}

/* ------------------------------------------------------------------------------------------------------ contents -- */

static void what_is_stored_is_read_back_by_the_next_process(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 0);
    unsigned char large[100000];
    for (size_t i = 0; i < sizeof large; i++) large[i] = (unsigned char)(i * 7 >> 3);
    assert_false(load(&f, 1, "", 0));
    assert_true(store(&f, 1, large, sizeof large));
    assert_true(store(&f, 2, "", 0));
    assert_true(store(&f, 3, "old", 3));
    assert_true(store(&f, 3, "new text", 8)); /* replaces */
    mu_disk_cache_close(f.cache);
    f.cache = open_cache(&f, 0);
    assert_true(load(&f, 1, large, sizeof large));
    assert_true(load(&f, 2, "", 0));
    assert_true(load(&f, 3, "new text", 8));
    assert_false(load(&f, 4, "", 0));
    mu_disk_cache_stats stats = stats_of(&f);
    assert_int_equal(stats.hits, 3);
    assert_int_equal(stats.misses, 1);
    assert_int_equal(f.log.lines, 0);
    assert_int_equal(scratch_count_files(f.path), 3);
    close_fixture(&f);
}

static void kinds_are_apart(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 0);
    mu_key key = key_of(1);
    char *data;
    size_t bytes;
    assert_true(store(&f, 1, "ptx", 3));
    assert_false(mu_disk_cache_load(f.cache, MU_DISK_CUBIN, &key, &data, &bytes));
    assert_true(mu_disk_cache_store(f.cache, MU_DISK_CUBIN, &key, "cubin", 5));
    assert_true(load(&f, 1, "ptx", 3));
    close_fixture(&f);
}

static void it_is_the_owners_alone(void **state) {
    (void)state;
    fixture f = {.path = scratch_make()};
    const char *inner = scratch_join(f.path, "a/b/c");
    mu_disk_cache_options options = {.directory = inner};
    assert_int_equal(mu_disk_cache_open(&options, &f.cache, NULL), MUSTER_OK);
    assert_string_equal(mu_disk_cache_directory(f.cache), inner);
    struct stat status;
    assert_int_equal(stat(inner, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0700);
    assert_true(store(&f, 1, "x", 1));
    mu_key key = key_of(1);
    char hex[MU_DIGEST_HEX_BYTES], name[96];
    mu_digest_hex(&key, hex);
    snprintf(name, sizeof name, "%s-1.ptx", hex);
    assert_int_equal(stat(scratch_join(inner, name), &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    close_fixture(&f);
}

/* -------------------------------------------------------------------------------------------------------- damage -- */

/* Damage is a miss that is logged once, and the next store replaces it. */
static void assert_replaced(fixture *f, const char *why) {
    int lines = f->log.lines;
    assert_false(load(f, 1, "", 0));
    assert_int_equal(f->log.lines, lines + 1);
    assert_non_null(strstr(f->log.last, why));
    assert_false(load(f, 1, "", 0)); /* it is gone: a plain miss */
    assert_int_equal(f->log.lines, lines + 1);
    assert_true(store(f, 1, "content", 7));
    assert_true(load(f, 1, "content", 7));
}

static void every_flipped_bit_is_noticed(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 0);
    char file[200];
    assert_true(store(&f, 1, "content", 7));
    size_t bytes = read_file(file_of(&f, 1), file, sizeof file);
    assert_int_equal(bytes, HEADER_BYTES + 7);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        file[bit / 8] ^= (char)(1 << bit % 8);
        overwrite(file_of(&f, 1), file, bytes);
        file[bit / 8] ^= (char)(1 << bit % 8);
        assert_replaced(&f, "");
    }
    assert_int_equal(stats_of(&f).damaged, 8 * bytes);
    close_fixture(&f);
}

static void every_cut_is_noticed(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 0);
    char file[200] = {0};
    assert_true(store(&f, 1, "content", 7));
    size_t bytes = read_file(file_of(&f, 1), file, sizeof file);
    for (size_t length = 0; length < bytes; length++) {
        overwrite(file_of(&f, 1), file, length);
        assert_replaced(&f, length < HEADER_BYTES ? "it is cut short" : "its size is wrong");
    }
    overwrite(file_of(&f, 1), file, bytes + 1);
    assert_replaced(&f, "its size is wrong");
    close_fixture(&f);
}

static void foreign_files_are_replaced(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1000);
    char file[2000] = {0};
    memset(file, 'x', 500);
    overwrite(file_of(&f, 1), file, 500);
    assert_replaced(&f, "it is not one of ours");

    assert_true(store(&f, 2, "another", 7)); /* a valid entry under the wrong name */
    assert_int_equal(rename(file_of(&f, 2), file_of(&f, 1)), 0);
    assert_replaced(&f, "it is another program's");

    size_t bytes = read_file(file_of(&f, 1), file, sizeof file);
    file[8]++;
    overwrite(file_of(&f, 1), file, bytes);
    assert_replaced(&f, "it is of another version");
    close_fixture(&f);
}

/* Names that are no files of ours: never followed, never waited for. */
static void odd_files_are_misses(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 1000);
    assert_true(store(&f, 1, "content", 7));
    assert_int_equal(rename(file_of(&f, 1), scratch_join(f.path, "elsewhere")), 0);
    assert_int_equal(symlink("elsewhere", file_of(&f, 1)), 0); /* to what would be the right content */
    assert_false(load(&f, 1, "", 0));
    assert_true(store(&f, 1, "content", 7)); /* replaces the link, not what it names */
    assert_true(load(&f, 1, "content", 7));
    struct stat status;
    assert_int_equal(lstat(file_of(&f, 1), &status), 0);
    assert_true(S_ISREG(status.st_mode));
    unlink(file_of(&f, 1));

    assert_int_equal(mkfifo(file_of(&f, 1), 0600), 0);
    assert_false(load(&f, 1, "", 0));
    assert_true(store(&f, 1, "content", 7));
    assert_true(load(&f, 1, "content", 7));
    unlink(file_of(&f, 1));

    static const char large[5000];
    overwrite(file_of(&f, 1), large, sizeof large); /* larger than the whole cache may be */
    assert_false(load(&f, 1, "", 0));
    assert_true(store(&f, 1, "content", 7));
    assert_true(load(&f, 1, "content", 7));
    unlink(file_of(&f, 1));

    int lines = f.log.lines;
    assert_int_equal(mkdir(file_of(&f, 1), 0700), 0);
    assert_false(load(&f, 1, "", 0));
    assert_false(store(&f, 1, "content", 7)); /* cannot be replaced: a warning, no more */
    assert_int_equal(f.log.lines, lines + 1);
    close_fixture(&f);
}

/* ----------------------------------------------------------------------------------------------- unusable places -- */

static void a_directory_that_cannot_be_made_is_one_warning(void **state) {
    (void)state;
    fixture f = {.path = scratch_make()};
    scratch_log_init(&f.log);
    overwrite(scratch_join(f.path, "file"), "x", 1);
    mu_disk_cache_options options = {.directory = scratch_join(f.path, "file/below"), .log = &f.log.log};
    assert_int_equal(mu_disk_cache_open(&options, &f.cache, NULL), MUSTER_OK);
    assert_null(f.cache);
    assert_int_equal(f.log.lines, 1);
    assert_non_null(strstr(f.log.last, "is not used"));
    assert_false(store(&f, 1, "x", 1)); /* a NULL cache holds nothing */
    assert_false(load(&f, 1, "x", 1));
    assert_int_equal(stats_of(&f).misses, 0);
    assert_string_equal(mu_disk_cache_directory(f.cache), "");
    assert_int_equal(f.log.lines, 1);
    close_fixture(&f);
}

static void a_directory_that_others_may_write_is_not_used(void **state) {
    (void)state;
    static const mode_t modes[] = {0777, 0770, 0702};
    for (int i = 0; i < 3; i++) {
        fixture f = {.path = scratch_make()};
        scratch_log_init(&f.log);
        assert_int_equal(chmod(f.path, modes[i]), 0);
        f.cache = open_cache(&f, 0);
        assert_null(f.cache);
        assert_int_equal(f.log.lines, 1);
        assert_non_null(strstr(f.log.last, "other users"));
        close_fixture(&f);
    }
}

static void writing_that_fails_is_one_warning(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 0);
    assert_int_equal(rmdir(f.path), 0); /* root can write anywhere, but not into what is gone */
    for (uint64_t i = 0; i < 5; i++) assert_false(store(&f, i, "x", 1));
    assert_false(load(&f, 1, "x", 1));
    assert_int_equal(f.log.lines, 1);
    assert_int_equal(stats_of(&f).store_failures, 5);
    close_fixture(&f);
}

/* ------------------------------------------------------------------------------------------- where it is, or not -- */

static void assert_directory(const mu_disk_cache_options *options, const char *expected) {
    mu_disk_cache *cache;
    assert_int_equal(mu_disk_cache_open(options, &cache, NULL), MUSTER_OK);
    assert_string_equal(mu_disk_cache_directory(cache), expected);
    mu_disk_cache_close(cache);
}

static void the_environment_names_the_directory(void **state) {
    (void)state;
    const char *root = scratch_make();
    char own[4200], xdg[4200], home[4200], in_xdg[4300], in_home[4300];
    snprintf(own, sizeof own, "%s/own", root);
    snprintf(xdg, sizeof xdg, "%s/xdg", root);
    snprintf(home, sizeof home, "%s/home", root);
    snprintf(in_xdg, sizeof in_xdg, "%s/muster", xdg);
    snprintf(in_home, sizeof in_home, "%s/.cache/muster", home);
    mu_disk_cache_options given = {.directory = scratch_join(root, "given")}, off = {.directory = ""};
    setenv("HOME", home, 1);
    setenv("XDG_CACHE_HOME", xdg, 1);
    setenv("MUSTER_CACHE_DIR", own, 1);
    assert_directory(&given, given.directory); /* code, then MUSTER_CACHE_DIR, then XDG, then HOME */
    assert_directory(&off, "");
    assert_directory(NULL, own);
    setenv("MUSTER_CACHE_DIR", "", 1);
    assert_directory(NULL, ""); /* off */
    unsetenv("MUSTER_CACHE_DIR");
    assert_directory(NULL, in_xdg);
    setenv("XDG_CACHE_HOME", "relative", 1);
    assert_directory(NULL, in_home);
    unsetenv("XDG_CACHE_HOME");
    assert_directory(NULL, in_home);
    unsetenv("HOME");
    assert_directory(NULL, "");
    scratch_remove(root);
}

/* --------------------------------------------------------------------------------------------------------- bound -- */

/* Makes the entry look as if it had been used so long ago. */
static void age(fixture *f, uint64_t number, time_t seconds) {
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - seconds}};
    assert_int_equal(utimensat(AT_FDCWD, file_of(f, number), times, 0), 0);
}

static void the_oldest_go_first_and_a_hit_makes_young(void **state) {
    (void)state;
    fixture f;
    char payload[100 - HEADER_BYTES] = {0};
    open_fixture(&f, 1000);
    for (uint64_t i = 0; i < 10; i++) {
        assert_true(store(&f, i, payload, sizeof payload));
        age(&f, i, 1000 - 10 * (time_t)i);
    }
    assert_int_equal(stats_of(&f).evictions, 0); /* equality fits */
    assert_true(load(&f, 0, payload, sizeof payload));
    assert_true(store(&f, 10, payload, sizeof payload));
    assert_true(load(&f, 0, payload, sizeof payload));
    assert_true(load(&f, 10, payload, sizeof payload));
    assert_false(load(&f, 1, payload, sizeof payload));
    assert_int_equal(scratch_count_files(f.path), 8); /* an eighth below the bound, so that it is not done every time */
    assert_int_equal(stats_of(&f).evictions, 3);
    for (uint64_t i = 4; i < 10; i++) assert_true(load(&f, i, payload, sizeof payload));
    assert_int_equal(f.log.lines, 0);
    close_fixture(&f);
}

static void what_other_processes_store_counts(void **state) {
    (void)state;
    fixture f;
    char payload[100 - HEADER_BYTES] = {0};
    open_fixture(&f, 1000);
    fixture other = {.path = f.path};
    scratch_log_init(&other.log);
    other.cache = open_cache(&other, 100000);
    for (uint64_t i = 0; i < 50; i++) assert_true(store(&other, i, payload, sizeof payload));
    assert_int_equal(scratch_count_files(f.path), 50);
    assert_true(store(&f, 100, payload, sizeof payload));
    assert_true(scratch_count_files(f.path) <= 10);
    assert_true(load(&f, 100, payload, sizeof payload));
    mu_disk_cache_close(other.cache);
    close_fixture(&f);
}

static void what_is_too_large_is_not_stored(void **state) {
    (void)state;
    fixture f;
    char payload[1001 - HEADER_BYTES] = {0};
    open_fixture(&f, 1000);
    assert_true(store(&f, 1, "small", 5));
    assert_false(store(&f, 2, payload, sizeof payload));
    assert_true(load(&f, 1, "small", 5));
    assert_true(store(&f, 3, payload, sizeof payload - 1)); /* exactly the bound: alone */
    assert_true(load(&f, 3, payload, sizeof payload - 1));
    assert_int_equal(scratch_count_files(f.path), 1);
    close_fixture(&f);
}

static void what_dead_writers_left_is_removed(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, 0);
    const char *old = scratch_join(f.path, MU_TEMPORARY_PREFIX "1-2-3");
    const char *fresh = scratch_join(f.path, MU_TEMPORARY_PREFIX "4-5-6"), *other = scratch_join(f.path, "README");
    overwrite(old, "x", 1);
    overwrite(fresh, "x", 1);
    overwrite(other, "x", 1);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - 7200}};
    assert_int_equal(utimensat(AT_FDCWD, old, times, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, other, times, 0), 0);
    assert_true(store(&f, 1, "x", 1));
    assert_int_not_equal(access(old, F_OK), 0);
    assert_int_equal(access(fresh, F_OK), 0); /* its writer may be alive */
    assert_int_equal(access(other, F_OK), 0); /* not ours: left alone */
    close_fixture(&f);
}

static void every_allocation_failed_in_turn(void **state) {
    (void)state;
    fixture f = {.path = scratch_make()};
    for (uint64_t n = 1;; n++) {
        scratch_log_init(&f.log);
        mu_disk_cache_options options = {.directory = f.path, .max_bytes = 1000, .log = &f.log.log};
        mu_alloc_fail_at(n, false);
        muster_error error = {0};
        muster_status status = mu_disk_cache_open(&options, &f.cache, &error);
        if (status == MUSTER_OK) {
            store(&f, n % 20, "content", 7);
            load(&f, n % 20, "content", 7);
            mu_disk_cache_close(f.cache);
        } else {
            assert_int_equal(status, MUSTER_OUT_OF_HOST_MEMORY);
        }
        bool hit = mu_alloc_fail_hits() > 0;
        mu_alloc_fail_at(0, false);
        if (!hit) break;
    }
    scratch_remove(f.path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_stored_is_read_back_by_the_next_process),
        cmocka_unit_test(kinds_are_apart),
        cmocka_unit_test(it_is_the_owners_alone),
        cmocka_unit_test(every_flipped_bit_is_noticed),
        cmocka_unit_test(every_cut_is_noticed),
        cmocka_unit_test(foreign_files_are_replaced),
        cmocka_unit_test(odd_files_are_misses),
        cmocka_unit_test(a_directory_that_cannot_be_made_is_one_warning),
        cmocka_unit_test(a_directory_that_others_may_write_is_not_used),
        cmocka_unit_test(writing_that_fails_is_one_warning),
        cmocka_unit_test(the_environment_names_the_directory),
        cmocka_unit_test(the_oldest_go_first_and_a_hit_makes_young),
        cmocka_unit_test(what_other_processes_store_counts),
        cmocka_unit_test(what_is_too_large_is_not_stored),
        cmocka_unit_test(what_dead_writers_left_is_removed),
        cmocka_unit_test(every_allocation_failed_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
