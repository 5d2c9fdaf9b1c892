/* The caches over the device layer: what reaches the driver is counted there. Runs on the simulator, and on the real
 * driver with "cuda" as its argument. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cache/compile.h"
#include "cache/module_cache.h"
#include "cache/occupancy_cache.h"
#include "tests/cache/scratch.h"

static const char ptx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry nothing()\n{\n\tret;\n}\n"
    ".visible .entry other(.param .u64 other_param_0)\n{\n\tret;\n}\n";
static const char broken[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry bad()\n{\n\tnonsense;\n}\n";

enum { DEVICES_MAX = 2 };

static const char *driver_name = "sim";
static mu_driver *driver;

typedef struct fixture {
    int devices_count;
    mu_device *devices[DEVICES_MAX];
    mu_occupancy_cache *occupancy[DEVICES_MAX];
    mu_module_cache *modules[DEVICES_MAX];
    mu_compile_caches caches;
} fixture;

/* A process as far as the caches can tell. */
static void open_fixture(fixture *f, const char *path) {
    mu_compile_options options = {.disk.directory = path};
    memset(f, 0, sizeof *f);
    assert_int_equal(mu_compile_caches_open(&options, &f->caches, NULL), MUSTER_OK);
    assert_int_equal(mu_driver_device_count(driver, &f->devices_count, NULL), MUSTER_OK);
    if (f->devices_count > DEVICES_MAX) f->devices_count = DEVICES_MAX;
    for (int i = 0; i < f->devices_count; i++) {
        mu_device_options device = {.ordinal = i, .index = i};
        assert_int_equal(mu_device_open(driver, &device, &f->devices[i], NULL), MUSTER_OK);
        assert_int_equal(mu_occupancy_cache_create(f->devices[i], &f->occupancy[i], NULL), MUSTER_OK);
        assert_int_equal(mu_module_cache_create(f->devices[i], f->occupancy[i], &f->modules[i], NULL), MUSTER_OK);
    }
}

static void close_fixture(fixture *f) {
    for (int i = 0; i < f->devices_count; i++) {
        if (f->modules[i]) {
            assert_int_equal(mu_device_enter(f->devices[i], NULL), MUSTER_OK);
            mu_module_cache_destroy(f->modules[i]);
            mu_device_leave(f->devices[i]);
        }
        mu_occupancy_cache_destroy(f->occupancy[i]);
        mu_device_close(f->devices[i]);
    }
    mu_compile_caches_close(&f->caches);
}

static uint64_t module_loads(fixture *f, int device) {
    return mu_counter_read(&mu_device_get_counters(f->devices[device])->module_loads);
}

static uint64_t module_unloads(fixture *f, int device) {
    return mu_counter_read(&mu_device_get_counters(f->devices[device])->module_unloads);
}

static uint64_t occupancy_queries(fixture *f, int device) {
    return mu_counter_read(&mu_device_get_counters(f->devices[device])->occupancy_queries);
}

/* Compiles and loads the program on a device and finds `entry`, as its worker would. */
static mu_module_entry *load(fixture *f, int device, const char *entry, mu_function *function) {
    mu_key raw = mu_raw_ptx_key(ptx, sizeof ptx - 1);
    mu_ptx_text cubin;
    mu_module_entry *module;
    assert_int_equal(mu_device_enter(f->devices[device], NULL), MUSTER_OK);
    assert_int_equal(
        mu_compile_cubin(&f->caches, NULL, f->devices[device], &raw, ptx, sizeof ptx - 1, "program", &cubin, NULL),
        MUSTER_OK);
    assert_int_equal(mu_module_cache_load(f->modules[device], &raw, cubin.text, cubin.bytes, "program", &module, NULL),
                     MUSTER_OK);
    mu_ptx_text_release(&cubin);
    assert_int_equal(mu_module_cache_function(module, entry, function, NULL, NULL), MUSTER_OK);
    mu_device_leave(f->devices[device]);
    return module;
}

static bool of_one_kind(const fixture *f) {
    return f->devices_count < 2 ||
           mu_device_capability(f->devices[0])->native_sm == mu_device_capability(f->devices[1])->native_sm;
}

static void devices_compile_once_and_the_next_process_never(void **state) {
    (void)state;
    const char *path = scratch_make();
    for (int process = 0; process < 2; process++) {
        fixture f;
        mu_function function;
        open_fixture(&f, path);
        for (int round = 0; round < 3; round++)
            for (int i = 0; i < f.devices_count; i++) load(&f, i, round ? "other" : "nothing", &function);
        for (int i = 0; i < f.devices_count; i++) assert_int_equal(module_loads(&f, i), 1);
        if (process > 0)
            assert_int_equal(f.caches.compiles, 0);
        else if (of_one_kind(&f))
            assert_int_equal(f.caches.compiles, 1);
        close_fixture(&f);
    }
    scratch_remove(path);
}

/* E1 */
static void occupancy_is_asked_once_and_again_after_unloading(void **state) {
    (void)state;
    const char *path = scratch_make();
    fixture f;
    mu_function function;
    int first = 0, blocks = 0;
    open_fixture(&f, path);
    for (int loaded = 1; loaded <= 2; loaded++) {
        mu_key raw = mu_raw_ptx_key(ptx, sizeof ptx - 1);
        load(&f, 0, "nothing", &function);
        assert_int_equal(mu_device_enter(f.devices[0], NULL), MUSTER_OK);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(mu_occupancy_cache_get(f.occupancy[0], function, 256, 0, &blocks, NULL), MUSTER_OK);
            if (!first) first = blocks;
            assert_int_equal(blocks, first);
        }
        assert_true(blocks > 0);
        assert_int_equal(occupancy_queries(&f, 0), loaded);
        assert_true(mu_module_cache_drop(f.modules[0], &raw));
        assert_int_equal(mu_module_cache_collect(f.modules[0]), 1);
        assert_int_equal(module_unloads(&f, 0), loaded);
        mu_device_leave(f.devices[0]);
    }
    close_fixture(&f);
    scratch_remove(path);
}

static void a_broken_program_tells_the_compilers_words(void **state) {
    (void)state;
    const char *path = scratch_make();
    fixture f;
    open_fixture(&f, path);
    mu_key raw = mu_raw_ptx_key(broken, sizeof broken - 1);
    mu_ptx_text cubin;
    muster_error error = {0};
    assert_int_equal(
        mu_compile_cubin(&f.caches, NULL, f.devices[0], &raw, broken, sizeof broken - 1, "broken", &cubin, &error),
        MUSTER_PROGRAM_INVALID);
    assert_non_null(strstr(error.message, "nonsense"));
    assert_int_equal(scratch_count_files(path), 0);
    close_fixture(&f);
    scratch_remove(path);
}

/* A lost device: nothing is asked of the driver any more, and nothing leaks. */
static void a_lost_device_is_left_alone(void **state) {
    (void)state;
    const char *path = scratch_make();
    fixture f;
    mu_function function;
    open_fixture(&f, path);
    load(&f, 0, "nothing", &function);
    mu_device_abandon(f.devices[0], 700);
    mu_module_cache_destroy(f.modules[0]);
    f.modules[0] = NULL;
    assert_int_equal(module_unloads(&f, 0), 0);
    close_fixture(&f);
    scratch_remove(path);
}

int main(int argc, char **argv) {
    if (argc > 1) driver_name = argv[1];
    muster_error error = {0};
    int devices = 0;
    if (mu_driver_open(driver_name, "{\"devices\": 2}", &driver, &error) != MUSTER_OK ||
        mu_driver_device_count(driver, &devices, &error) != MUSTER_OK || devices == 0) {
        bool real = strcmp(driver_name, "cuda") == 0;
        fprintf(stderr, "%s: driver \"%s\": %s\n", real ? "SKIPPED" : "FAILED", driver_name, error.message);
        return real ? 0 : 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_compile_once_and_the_next_process_never),
        cmocka_unit_test(occupancy_is_asked_once_and_again_after_unloading),
        cmocka_unit_test(a_broken_program_tells_the_compilers_words),
        cmocka_unit_test(a_lost_device_is_left_alone), /* last: an abandoned device leaks on the real driver */
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    mu_driver_release(driver);
    return failures;
}
