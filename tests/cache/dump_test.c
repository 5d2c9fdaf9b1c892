/* F6: dumps are named by content, written once, and never fail anything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cache/dump.h"
#include "tests/cache/scratch.h"

static void assert_file(const char *path, const char *name, const char *expected) {
    char content[1000] = {0};
    FILE *file = fopen(scratch_join(path, name), "r");
    assert_non_null(file);
    size_t bytes = fread(content, 1, sizeof content - 1, file);
    fclose(file);
    assert_int_equal(bytes, strlen(expected));
    assert_string_equal(content, expected);
}

static void names_of(const char *text, char ptx[80], char log[80]) {
    mu_key key = mu_raw_ptx_key(text, strlen(text));
    char hex[MU_DIGEST_HEX_BYTES];
    mu_digest_hex(&key, hex);
    snprintf(ptx, 80, "%s.ptx", hex);
    snprintf(log, 80, "%s.log", hex);
}

static void files_are_named_by_content(void **state) {
    (void)state;
    const char *path = scratch_make();
    mu_dump *dump;
    char ptx[80], log[80];
    assert_int_equal(mu_dump_open(MU_DUMP_ALL, scratch_join(path, "made/here"), NULL, &dump, NULL), MUSTER_OK);
    mu_dump_ptx(dump, "good", 4, NULL);
    mu_dump_ptx(dump, "good", 4, NULL);
    muster_error failure = {.status = MUSTER_PROGRAM_INVALID, .message = "line 3: syntax error"};
    mu_dump_ptx(dump, "bad!", 4, &failure);
    mu_dump_close(dump);
    char inner[4200];
    snprintf(inner, sizeof inner, "%s", scratch_join(path, "made/here"));
    names_of("good", ptx, log);
    assert_file(inner, ptx, "good");
    assert_int_not_equal(access(scratch_join(inner, log), F_OK), 0);
    names_of("bad!", ptx, log);
    assert_file(inner, ptx, "bad!");
    assert_file(inner, log, "line 3: syntax error\n");
    assert_int_equal(scratch_count_files(inner), 3);
    scratch_remove(path);
}

static void only_failing_ones_on_request(void **state) {
    (void)state;
    const char *path = scratch_make();
    mu_dump *dump;
    assert_int_equal(mu_dump_open(MU_DUMP_FAILING, path, NULL, &dump, NULL), MUSTER_OK);
    mu_dump_ptx(dump, "good", 4, NULL);
    assert_int_equal(scratch_count_files(path), 0);
    muster_error failure = {.message = "no"};
    mu_dump_ptx(dump, "good", 4, &failure);
    assert_int_equal(scratch_count_files(path), 2);
    mu_dump_close(dump);
    scratch_remove(path);
}

static void modes_have_names(void **state) {
    (void)state;
    mu_dump_mode mode = MU_DUMP_ALL;
    muster_error error = {0};
    assert_int_equal(mu_dump_mode_parse("none", &mode, &error), MUSTER_OK);
    assert_int_equal(mode, MU_DUMP_NONE);
    assert_int_equal(mu_dump_mode_parse("all", &mode, &error), MUSTER_OK);
    assert_int_equal(mode, MU_DUMP_ALL);
    assert_int_equal(mu_dump_mode_parse("", &mode, &error), MUSTER_OK);
    assert_int_equal(mode, MU_DUMP_NONE);
    assert_int_equal(mu_dump_mode_parse("failing", &mode, &error), MUSTER_OK);
    assert_int_equal(mode, MU_DUMP_FAILING);
    assert_int_equal(mu_dump_mode_parse("some", &mode, &error), MUSTER_INVALID_CONFIG);
    assert_int_equal(mode, MU_DUMP_FAILING);
    assert_non_null(strstr(error.message, "\"some\""));
    assert_int_equal(mu_dump_mode_parse(NULL, &mode, &error), MUSTER_OK);
    assert_int_equal(mode, MU_DUMP_NONE);
}

static void unusable_directories_are_one_warning(void **state) {
    (void)state;
    const char *path = scratch_make();
    scratch_log log;
    mu_dump *dump;
    scratch_log_init(&log);
    assert_int_equal(mu_dump_open(MU_DUMP_ALL, "/dev/null/x", &log.log, &dump, NULL), MUSTER_OK);
    assert_null(dump);
    assert_int_equal(log.lines, 1);
    assert_int_equal(mu_dump_open(MU_DUMP_ALL, NULL, &log.log, &dump, NULL), MUSTER_OK);
    assert_null(dump);
    assert_int_equal(log.lines, 2);
    mu_dump_ptx(dump, "x", 1, NULL); /* NULL is no dump */
    mu_dump_close(dump);

    assert_int_equal(mu_dump_open(MU_DUMP_ALL, path, &log.log, &dump, NULL), MUSTER_OK);
    assert_int_equal(rmdir(path), 0);
    mu_dump_ptx(dump, "x", 1, NULL);
    mu_dump_ptx(dump, "y", 1, NULL);
    assert_int_equal(log.lines, 3);
    mu_dump_close(dump);
}

static void short_memory_is_told(void **state) {
    (void)state;
    const char *path = scratch_make();
    mu_dump *dump = NULL;
    mu_alloc_fail_at(1, false);
    assert_int_equal(mu_dump_open(MU_DUMP_ALL, path, NULL, &dump, NULL), MUSTER_OUT_OF_HOST_MEMORY);
    mu_alloc_fail_at(0, false);
    scratch_remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_named_by_content), cmocka_unit_test(only_failing_ones_on_request),
        cmocka_unit_test(modes_have_names),           cmocka_unit_test(unusable_directories_are_one_warning),
        cmocka_unit_test(short_memory_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
