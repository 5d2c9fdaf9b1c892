/* Logging: levels, silence, long lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"

typedef struct sink {
    int lines;
    muster_log_level level;
    char text[2048];
} sink;

static void keep(void *user, muster_log_level level, const char *line) {
    sink *into = user;
    into->lines++;
    into->level = level;
    assert_true(strlen(line) < sizeof into->text);
    strcpy(into->text, line);
}

static void a_line_arrives_formatted(void **state) {
    (void)state;
    sink into = {0};
    const mu_log log = {keep, &into, MUSTER_LOG_DEBUG};
    mu_log_line(&log, MUSTER_LOG_WARNING, "device %d: %s", 2, "slow link");
    assert_int_equal(into.lines, 1);
    assert_int_equal(into.level, MUSTER_LOG_WARNING);
    assert_string_equal(into.text, "device 2: slow link");
}

static void lines_above_the_level_are_dropped(void **state) {
    (void)state;
    static const muster_log_level levels[] = {MUSTER_LOG_ERROR, MUSTER_LOG_WARNING, MUSTER_LOG_INFO, MUSTER_LOG_DEBUG};
    for (int limit = 0; limit < 4; limit++) {
        sink into = {0};
        const mu_log log = {keep, &into, levels[limit]};
        for (int i = 0; i < 4; i++) mu_log_line(&log, levels[i], "line %d", i);
        assert_int_equal(into.lines, limit + 1);
    }
}

static void no_log_is_silent(void **state) {
    (void)state;
    const mu_log without_writer = {NULL, NULL, MUSTER_LOG_DEBUG};
    mu_log_line(NULL, MUSTER_LOG_ERROR, "nobody hears %s", "this");
    mu_log_line(&without_writer, MUSTER_LOG_ERROR, "nor %s", "this");
}

static void long_lines_are_cut(void **state) {
    (void)state;
    char text[1600];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    sink into = {0};
    const mu_log log = {keep, &into, MUSTER_LOG_INFO};
    mu_log_line(&log, MUSTER_LOG_INFO, "%s", text);
    assert_int_equal(strlen(into.text), 1023);
    assert_memory_equal(into.text, text, 1023);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_arrives_formatted),
        cmocka_unit_test(lines_above_the_level_are_dropped),
        cmocka_unit_test(no_log_is_silent),
        cmocka_unit_test(long_lines_are_cut),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
