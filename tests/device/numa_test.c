/* CPUs next to a device, on a sysfs of the test's own. */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <pthread.h>

#include "device/numa.h"

#define ID "0000:1B:00.0"

static char root[512];

static void make_folder(const char *path) { assert_int_equal(mkdir(path, 0755), 0); }

static int setup(void **state) {
    (void)state;
    static const char *const below[] = {"/bus", "/bus/pci", "/bus/pci/devices", "/bus/pci/devices/0000:1b:00.0"};
    const char *folder = getenv("TEST_TMPDIR");
    char path[640];
    snprintf(root, sizeof root, "%s/sysfs-XXXXXX", folder ? folder : "/tmp");
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        snprintf(path, sizeof path, "%s%s", root, below[i]);
        make_folder(path);
    }
    return 0;
}

static int drop(const char *path, const struct stat *about, int kind, struct FTW *at) {
    (void)about, (void)kind, (void)at;
    return remove(path);
}

static int teardown(void **state) {
    (void)state;
    return nftw(root, drop, 8, FTW_DEPTH | FTW_PHYS);
}

/* NULL: there is no such file. */
static void tell(const char *node, const char *cpus) {
    const char *const names[] = {"numa_node", "local_cpulist"}, *const texts[] = {node, cpus};
    for (int i = 0; i < 2; i++) {
        char path[640];
        snprintf(path, sizeof path, "%s/bus/pci/devices/0000:1b:00.0/%s", root, names[i]);
        remove(path);
        if (!texts[i]) continue;
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(texts[i], file);
        assert_int_equal(fclose(file), 0);
    }
}

static cpu_set_t set_of(int count, const int *cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < count; i++) CPU_SET((size_t)cpus[i], &set);
    return set;
}
#define SET(...) set_of((int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})

static void lists_are_read_as_the_kernel_writes_them(void **state) {
    (void)state;
    cpu_set_t set, wanted;
    assert_true(mu_numa_parse_list("0", &set));
    wanted = SET(0);
    assert_true(CPU_EQUAL(&set, &wanted));
    assert_true(mu_numa_parse_list("0-3,8,10-11", &set));
    wanted = SET(0, 1, 2, 3, 8, 10, 11);
    assert_true(CPU_EQUAL(&set, &wanted));
    /* Beyond what a set holds: left out, and no endless loop. */
    assert_true(mu_numa_parse_list("5,1023-99999999999999999999", &set));
    wanted = SET(5, 1023);
    assert_true(CPU_EQUAL(&set, &wanted));
    static const char *const bad[] = {"", ",", "1,", ",1", "-1", "1-", "3-1", "a", "1 2", "0x1", "1--2", "1-2-3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(mu_numa_parse_list(bad[i], &set));
    assert_true(CPU_EQUAL(&set, &wanted)); /* untouched */
}

static void the_node_is_found_by_any_spelling_of_the_id(void **state) {
    (void)state;
    tell("3\n", NULL);
    assert_int_equal(mu_numa_node(root, ID), 3);
    assert_int_equal(mu_numa_node(root, "0000:1b:00.0"), 3);
    assert_int_equal(mu_numa_node(root, "00000000:1B:00.0"), 3);
    assert_int_equal(mu_numa_node(root, "0000:1C:00.0"), -1);
    static const char *const bad[] = {"", "../../x", "1", "0000:1b:00.0/..",
                                      "0000:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(mu_numa_node(root, bad[i]), -1);
    static const char *const unknown[] = {"-1\n", "", "x\n", "1x\n", "99999999999999999999\n"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        tell(unknown[i], NULL);
        assert_int_equal(mu_numa_node(root, ID), -1);
    }
}

static void only_allowed_cpus_are_chosen(void **state) {
    (void)state;
    cpu_set_t allowed = SET(1, 2, 5), cpus = SET(7), wanted = SET(1, 2);
    tell("1\n", "0-3\n");
    assert_true(mu_numa_cpus(root, ID, &allowed, &cpus));
    assert_true(CPU_EQUAL(&cpus, &wanted));
    /* None is allowed, none is listed, none is known: as it was. */
    static const char *const nothing[][2] = {
        {"1\n", "8-9\n"}, {"1\n", "\n"}, {"1\n", NULL}, {"-1\n", "0-3\n"}, {NULL, "0-3\n"}};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
        tell(nothing[i][0], nothing[i][1]);
        assert_false(mu_numa_cpus(root, ID, &allowed, &cpus));
        assert_true(CPU_EQUAL(&cpus, &wanted));
    }
}

static void *settle(void *argument) {
    cpu_set_t *after = argument;
    bool did = mu_numa_settle(root, ID);
    sched_getaffinity(0, sizeof *after, after);
    return did ? argument : NULL;
}

static bool settle_on_a_thread(cpu_set_t *after) {
    pthread_t thread;
    void *did;
    assert_int_equal(pthread_create(&thread, NULL, settle, after), 0);
    pthread_join(thread, &did);
    return did != NULL;
}

static void a_thread_moves_and_no_other_does(void **state) {
    (void)state;
    cpu_set_t before, after, here, wanted;
    char list[64];
    size_t cpu = 0;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    while (!CPU_ISSET(cpu, &before)) cpu++;
    CPU_ZERO(&wanted);
    CPU_SET(cpu, &wanted);
    snprintf(list, sizeof list, "%zu\n", cpu);
    tell("0\n", list);
    assert_true(settle_on_a_thread(&after));
    assert_true(CPU_EQUAL(&after, &wanted));
    assert_int_equal(sched_getaffinity(0, sizeof here, &here), 0);
    assert_true(CPU_EQUAL(&here, &before));
    /* Nothing known, and a thread stays where it may be. */
    tell(NULL, NULL);
    assert_false(settle_on_a_thread(&after));
    assert_true(CPU_EQUAL(&after, &before));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read_as_the_kernel_writes_them),
        cmocka_unit_test(the_node_is_found_by_any_spelling_of_the_id),
        cmocka_unit_test(only_allowed_cpus_are_chosen),
        cmocka_unit_test(a_thread_moves_and_no_other_does),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
