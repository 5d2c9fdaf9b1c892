/* Statuses: names, texts, recovery groups and their stable ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "muster.h"

static const struct {
    const char *name;
    int id;
    const char *group;
    const char *text;
} map[] = {
#define ROW(name, id, group, text) {#name, id, #group, text},
    MUSTER_STATUS_MAP(ROW)
#undef ROW
};
enum { COUNT = sizeof map / sizeof map[0] };

static void names_carry_the_prefix(void **state) {
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        const char *name = muster_status_name((muster_status)map[i].id);
        assert_memory_equal(name, "MUSTER_", 7);
        assert_string_equal(name + 7, map[i].name);
        assert_string_equal(muster_status_text((muster_status)map[i].id), map[i].text);
    }
}

/* The hundreds of an id are its recovery group, so that a log of numbers can be read. */
static void ids_tell_the_group(void **state) {
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(muster_status_recovery((muster_status)map[i].id), map[i].id / 100);
        if (i > 0) assert_true(map[i].id > map[i - 1].id);
    }
}

/* Ids are append-only: applications may have stored them. */
static void ids_are_stable(void **state) {
    (void)state;
    assert_int_equal(MUSTER_OK, 0);
    assert_int_equal(MUSTER_INVALID_ARGUMENT, 100);
    assert_int_equal(MUSTER_FILE_UNREADABLE, 122);
    assert_int_equal(MUSTER_OUT_OF_HOST_MEMORY, 200);
    assert_int_equal(MUSTER_BUSY, 204);
    assert_int_equal(MUSTER_LAUNCH_FAILED, 300);
    assert_int_equal(MUSTER_DATA_UNDEFINED, 304);
    assert_int_equal(MUSTER_DEVICE_LOST, 400);
    assert_int_equal(MUSTER_KERNEL_FAULT, 401);
    assert_int_equal(MUSTER_NO_DRIVER, 500);
    assert_int_equal(MUSTER_INTERNAL, 504);
}

static void texts_are_one_line(void **state) {
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        assert_true(strlen(map[i].text) > 0 && strlen(map[i].text) < 100);
        assert_null(strpbrk(map[i].text, "\n\r\t"));
    }
}

static void unknown_values_have_answers(void **state) {
    (void)state;
    assert_string_equal(muster_status_name((muster_status)99), "MUSTER_UNKNOWN_STATUS");
    assert_non_null(muster_status_text((muster_status)-1));
    assert_int_equal(muster_status_recovery((muster_status)12345), MUSTER_RECOVERY_FATAL);
    assert_string_equal(muster_recovery_name((muster_recovery)77), "unknown");
}

static void recovery_groups_have_names(void **state) {
    (void)state;
    static const char *const names[] = {"none", "fix your call", "try later", "job failed", "device lost", "fatal"};
    for (int i = 0; i < 6; i++) assert_string_equal(muster_recovery_name((muster_recovery)i), names[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_carry_the_prefix),
        cmocka_unit_test(ids_tell_the_group),
        cmocka_unit_test(ids_are_stable),
        cmocka_unit_test(texts_are_one_line),
        cmocka_unit_test(unknown_values_have_answers),
        cmocka_unit_test(recovery_groups_have_names),
    };
    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
