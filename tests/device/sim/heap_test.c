/* Simulated memory: the allocation table against a model, quarantine and poison, what fault messages say, and that a
 * large device costs what is touched. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "device/sim/sim_heap.h"
#include "device/sim/sim_queue.h"
#include "tests/device/sim/fixture.h"

/* ----------------------------------------------------------------------------------------------------- the table -- */

enum { SPOTS = 600 };

/* Ranges of a small made-up address space; the model is an array of who owns which unit. */
static void test_the_table_agrees_with_a_model(void **state) {
    (void)state;
    sim_table *table = sim_table_create();
    static sim_block blocks[SPOTS];
    static int owner[SPOTS * 16];
    uint64_t seed = 1;
    assert_non_null(table);
    memset(owner, -1, sizeof owner);
    memset(blocks, 0, sizeof blocks);
    for (int step = 0; step < 60000; step++) {
        int i = (int)(sim_random(&seed) % SPOTS);
        uint64_t low = blocks[i].range.low;
        if (low) {
            sim_table_remove(table, &blocks[i]);
            for (int u = 0; u < SPOTS * 16; u++)
                if (owner[u] == i) owner[u] = -1;
            blocks[i].range.low = 0;
        } else {
            uint64_t first = sim_random(&seed) % (SPOTS * 16 - 12), units = 1 + sim_random(&seed) % 10;
            bool taken = false;
            for (uint64_t u = first; u < first + units; u++) taken = taken || owner[u] >= 0;
            blocks[i].range.low = 4096 + first * 64;
            blocks[i].range.high = blocks[i].range.low + units * 64 - 5; /* a gap after each */
            bool added = sim_table_add(table, &blocks[i]);
            assert_int_equal(added, !taken);
            for (uint64_t u = first; added && u < first + units; u++) owner[u] = i;
            if (!added) blocks[i].range.low = 0;
        }
        uint64_t unit = sim_random(&seed) % (SPOTS * 16), byte = sim_random(&seed) % 64;
        uint64_t address = 4096 + unit * 64 + byte;
        sim_block *found = sim_table_find(table, address);
        int expected = owner[unit];
        if (expected >= 0 && address >= blocks[expected].range.high) expected = -1;
        assert_ptr_equal(found, expected >= 0 ? &blocks[expected] : NULL);
    }
    sim_table_destroy(table);
}

typedef struct reader {
    fixture f;
    CUdeviceptr kept;
    atomic_bool stop;
    uint64_t looks;
} reader;

static void *look_all_the_time(void *argument) {
    reader *looks = argument;
    unsigned type;
    if (looks->f.driver->ctx_set_current(looks->f.context) != CUDA_SUCCESS) return NULL;
    while (!atomic_load(&looks->stop)) {
        if (looks->f.driver->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, looks->kept + 7) !=
            CUDA_SUCCESS)
            return NULL;
        looks->looks++;
    }
    return looks;
}

static void test_look_ups_go_on_while_memory_comes_and_goes(void **state) {
    (void)state;
    reader looks = {.f = open_bare("{}")};
    pthread_t thread;
    void *result;
    CUdeviceptr pointers[300];
    looks.kept = zeroed(&looks.f, 64);
    assert_int_equal(pthread_create(&thread, NULL, look_all_the_time, &looks), 0);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 300; i++) assert_success(looks.f.driver->mem_alloc(&pointers[i], (size_t)(i + 1) * 37));
        for (int i = 299; i >= 0; i--) assert_success(looks.f.driver->mem_free(pointers[i]));
    }
    atomic_store(&looks.stop, true);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &looks);
    mu_driver_release(looks.f.driver);
}

/* -------------------------------------------------------------------------------------------------------- faults -- */

static void expect_fault(fixture *f, CUdeviceptr address, const char *first, const char *second) {
    char text[600];
    assert_success(launch_mix(f, f->stream, address, 1));
    assert_code(f->driver->stream_synchronize(f->stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_code(mu_sim_last_fault(f->driver, text, sizeof text), CUDA_ERROR_ILLEGAL_ADDRESS);
    if (!strstr(text, first) || !strstr(text, second)) fail_msg("\"%s\" lacks \"%s\" or \"%s\"", text, first, second);
    mu_driver_release(f->driver);
}

static void test_an_overrun_names_the_allocation(void **state) {
    (void)state;
    fixture f = open_fixture("{}");
    CUdeviceptr memory = zeroed(&f, 1000);
    expect_fault(&f, memory + 1004, "past the end", "1000");
}

static void test_an_underrun_names_the_allocation(void **state) {
    (void)state;
    fixture f = open_fixture("{}");
    CUdeviceptr memory = zeroed(&f, (size_t)4 << 20);
    expect_fault(&f, memory - 4, "mix", "4");
}

static void test_a_use_after_free_says_so(void **state) {
    (void)state;
    fixture f = open_fixture("{}");
    CUdeviceptr memory = zeroed(&f, 1000);
    assert_success(f.driver->mem_free(memory));
    expect_fault(&f, memory + 8, "freed", "mix");
}

static void test_null_is_called_null(void **state) {
    (void)state;
    fixture f = open_fixture("{}");
    expect_fault(&f, 0, "null", "mix");
}

static void note_line(void *user, const char *line) { snprintf(user, 64, "%.63s", line); }

static void test_faults_are_reported_as_they_happen(void **state) {
    (void)state;
    fixture f = open_fixture("{}");
    char line[64] = "";
    mu_sim_on_fault(f.driver, note_line, line);
    assert_success(launch_mix(&f, f.stream, 16, 1));
    assert_code(f.driver->stream_synchronize(f.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_non_null(strstr(line, "device 0: CUDA_ERROR_ILLEGAL_ADDRESS"));
    mu_driver_release(f.driver);
}

static CUmemoryPool make_pool(const fixture *f) {
    CUmemoryPool pool;
    CUmemPoolProps properties;
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = f->device;
    assert_success(f->driver->mem_pool_create(&pool, &properties));
    return pool;
}

/* A copy that was right when it was issued, behind a free of what it reads. */
static void test_a_copy_behind_the_free_faults(void **state) {
    (void)state;
    fixture f = open_fixture("{}");
    CUmemoryPool pool = make_pool(&f);
    CUdeviceptr memory, target = zeroed(&f, 64);
    assert_success(f.driver->mem_alloc_from_pool_async(&memory, 64, pool, f.stream));
    mu_sim_hold(f.driver, 0, true);
    assert_success(f.driver->mem_free_async(memory, f.stream));
    assert_code(f.driver->mem_free_async(memory, f.stream), CUDA_ERROR_INVALID_VALUE); /* twice */
    assert_success(f.driver->memcpy_dtod_async(target, memory, 64, f.stream));
    mu_sim_hold(f.driver, 0, false);
    assert_code(f.driver->stream_synchronize(f.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    mu_driver_release(f.driver);
}

static void test_freed_memory_is_poisoned(void **state) {
    (void)state;
    fixture f = open_bare("{}");
    CUmemoryPool pool = make_pool(&f);
    CUdeviceptr memory;
    assert_success(f.driver->mem_alloc_from_pool_async(&memory, 256, pool, f.stream));
    assert_success(f.driver->memset_d8_async(memory, 1, 256, f.stream));
    assert_success(f.driver->mem_free_async(memory, f.stream));
    assert_success(f.driver->stream_synchronize(f.stream));
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)memory; /* addresses are host addresses */
    for (int i = 0; i < 256; i++) assert_int_equal(bytes[i], 0xDB);
    mu_driver_release(f.driver);
}

static void test_reading_what_nobody_wrote_is_reported_on_request(void **state) {
    (void)state;
    fixture f = open_fixture("{\"report_uninitialised\": true}");
    CUdeviceptr fresh, target = zeroed(&f, 64);
    uint32_t five = 5;
    char text[600];
    assert_success(f.driver->mem_alloc(&fresh, 64));
    assert_success(f.driver->memcpy_htod_async(fresh + 4, &five, 4, f.stream));
    assert_success(launch_copy(&f, f.stream, target, fresh + 4)); /* this word is known */
    assert_success(f.driver->stream_synchronize(f.stream));
    assert_success(f.driver->memcpy_dtod_async(target, fresh, 8, f.stream)); /* copies carry what is known along */
    assert_success(launch_copy(&f, f.stream, target + 8, target + 4));
    assert_success(f.driver->stream_synchronize(f.stream));
    assert_success(launch_copy(&f, f.stream, target + 8, target));
    assert_true(f.driver->stream_synchronize(f.stream) != CUDA_SUCCESS);
    assert_true(mu_sim_last_fault(f.driver, text, sizeof text) != CUDA_SUCCESS);
    if (!strstr(text, "initialised") && !strstr(text, "written")) fail_msg("%s", text);
    mu_driver_release(f.driver);
}

/* --------------------------------------------------------------------------------------------------------- sizes -- */

static uint64_t resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &pages, &resident), 2);
    fclose(file);
    return (uint64_t)resident * 4;
}

static void test_a_large_device_costs_what_is_touched(void **state) {
    (void)state;
    fixture f = open_bare("{}");
    CUdeviceptr large[4];
    size_t free_bytes, total;
    uint64_t before = resident_kib();
    for (int i = 0; i < 4; i++) assert_success(f.driver->mem_alloc(&large[i], (size_t)35 << 30));
    for (int i = 0; i < 4; i++) {
        assert_success(f.driver->memset_d8_async(large[i] + ((size_t)34 << 30), 1, 4096, f.stream));
        assert_success(f.driver->stream_synchronize(f.stream));
    }
    assert_success(f.driver->mem_get_info(&free_bytes, &total));
    assert_int_equal(total, (uint64_t)141 << 30);
    assert_int_equal(free_bytes, (uint64_t)1 << 30);
    CUdeviceptr more;
    assert_code(f.driver->mem_alloc(&more, (size_t)2 << 30), CUDA_ERROR_OUT_OF_MEMORY);
    for (int i = 0; i < 4; i++) assert_success(f.driver->mem_free(large[i]));
    assert_true(resident_kib() < before + 65536);
    mu_driver_release(f.driver);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_table_agrees_with_a_model),
        cmocka_unit_test(test_look_ups_go_on_while_memory_comes_and_goes),
        cmocka_unit_test(test_an_overrun_names_the_allocation),
        cmocka_unit_test(test_an_underrun_names_the_allocation),
        cmocka_unit_test(test_a_use_after_free_says_so),
        cmocka_unit_test(test_null_is_called_null),
        cmocka_unit_test(test_faults_are_reported_as_they_happen),
        cmocka_unit_test(test_a_copy_behind_the_free_faults),
        cmocka_unit_test(test_freed_memory_is_poisoned),
        cmocka_unit_test(test_reading_what_nobody_wrote_is_reported_on_request),
        cmocka_unit_test(test_a_large_device_costs_what_is_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
