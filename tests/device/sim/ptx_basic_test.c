/* Ordinary kernels, as nvcc compiles them, against the same computed on the host. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/sim/ptx_harness.h"

static const char *const files[] = {"basic_sm75.ptx", "basic_sm90.ptx"};

static void fill(float *x, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(harness_random(&seed) % 1000) / 8.0f - 40.0f;
}

static void test_vector_add(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        enum { N = 1000 };
        harness h;
        harness_load_file(&h, files[f]);
        float *a = harness_alloc(&h, N * 4), *b = harness_alloc(&h, N * 4), *c = harness_alloc(&h, N * 4);
        fill(a, N, 1);
        fill(b, N, 2);
        struct {
            float *a, *b, *c;
            int n;
        } p = {a, b, c, N};
        for (uint32_t workers = 1; workers <= 2; workers++) {
            memset(c, 0, N * 4);
            h.launch.workers = workers;
            h.launch.seed = workers;
            harness_ok(&h, "vector_add", 8, 128, &p);
            for (int i = 0; i < N; i++) assert_true(c[i] == a[i] + b[i]);
            assert_true(h.instructions > N * 10);
        }
        harness_free(&h);
    }
}

static void test_saxpy(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        enum { N = 5003 };
        harness h;
        harness_load_file(&h, files[f]);
        float *x = harness_alloc(&h, N * 4), *y = harness_alloc(&h, N * 4), expected[N];
        fill(x, N, 3);
        fill(y, N, 4);
        for (int i = 0; i < N; i++) expected[i] = __builtin_fmaf(2.5f, x[i], y[i]);
        struct {
            float alpha;
            float *x, *y;
            size_t n;
        } p = {2.5f, x, y, N};
        harness_ok(&h, "saxpy", 3, 96, &p);
        assert_memory_equal(y, expected, sizeof expected);
        harness_free(&h);
    }
}

static void test_scan_bytes(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        enum { N = 20000 };
        harness h;
        harness_load_file(&h, files[f]);
        uint8_t *text = harness_alloc(&h, N), *pattern = harness_alloc(&h, 3);
        unsigned long long *hits = harness_alloc(&h, 8), expected = 0;
        uint64_t seed = 7;
        for (int i = 0; i < N; i++) text[i] = (uint8_t)('a' + harness_random(&seed) % 3);
        memcpy(pattern, "aba", 3);
        for (int i = 0; i + 3 <= N; i++) expected += memcmp(text + i, pattern, 3) == 0;
        struct {
            uint8_t *text;
            uint64_t n;
            uint8_t *pattern;
            uint32_t m;
            unsigned long long *hits;
        } p = {text, N, pattern, 3, hits};
        h.launch.workers = 2;
        harness_ok(&h, "scan_bytes", 7, 64, &p);
        assert_int_equal(*hits, expected);
        harness_free(&h);
    }
}

static void test_block_sum(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        enum { N = 4096 };
        harness h;
        harness_load_file(&h, files[f]);
        float *x = harness_alloc(&h, N * 4), *out = harness_alloc(&h, 4), expected = 0;
        for (int i = 0; i < N; i++)
            expected += x[i] = (float)(i % 17); /* small integers: any order gives the same sum */
        struct {
            float *x, *out;
            int n;
        } p = {x, out, N};
        for (uint64_t seed = 0; seed < 4; seed++) {
            *out = 0;
            h.launch.seed = seed;
            harness_ok(&h, "block_sum", 5, 256, &p);
            assert_true(*out == expected);
        }
        assert_int_equal(sim_function_get_info(sim_module_find_function(h.module, "block_sum"))->static_shared_bytes,
                         1024);
        harness_free(&h);
    }
}

static void test_histogram(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        enum { N = 10000 };
        harness h;
        harness_load_file(&h, files[f]);
        uint8_t *x = harness_alloc(&h, N);
        unsigned *bins = harness_alloc(&h, 1024), expected[256] = {0};
        uint64_t seed = 9;
        for (int i = 0; i < N; i++) expected[x[i] = (uint8_t)harness_random(&seed)]++;
        struct {
            uint8_t *x;
            int n;
            unsigned *bins;
        } p = {x, N, bins};
        h.launch.dynamic_shared_bytes = 1024;
        h.launch.workers = 2;
        harness_ok(&h, "histogram", 4, 192, &p);
        assert_memory_equal(bins, expected, sizeof expected);
        harness_free(&h);
    }
}

static void test_collatz(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        enum { N = 300 };
        harness h;
        harness_load_file(&h, files[f]);
        uint32_t *start = harness_alloc(&h, N * 4), *steps = harness_alloc(&h, N * 4);
        for (uint32_t i = 0; i < N; i++) start[i] = i * 7919u % 100000u;
        struct {
            uint32_t *start, *steps;
            int n;
        } p = {start, steps, N};
        harness_ok(&h, "collatz", 5, 64, &p);
        for (int i = 0; i < N; i++) {
            uint32_t count = 0;
            for (uint64_t v = start[i]; v > 1; count++) v = v & 1 ? 3 * v + 1 : v / 2;
            assert_int_equal(steps[i], count);
        }
        harness_free(&h);
    }
}

/* An application may have set a locale whose decimal numbers have commas. It is made here, where the machine can. */
static void test_numbers_have_points_in_every_locale(void **state) {
    (void)state;
    static const char text[] =
        ".version 7.8\n.target sm_80\n.address_size 64\n"
        ".visible .entry put(.param .u64 to)\n{\n.reg .b64 %rd<2>;\n.reg .f64 %fd<2>;\n"
        "ld.param.u64 %rd1, [to];\nmov.f64 %fd1, 2.625;\nst.global.f64 [%rd1], %fd1;\nret;\n}\n";
    const char *directory = getenv("TEST_TMPDIR");
    char command[512];
    harness own = {0};
    if (!directory) directory = "/tmp";
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 '%s/commas.UTF-8' > /dev/null 2>&1", directory);
    if (system(command) != 0) print_message("no locale can be made: only the one there is was tested\n");
    setenv("LOCPATH", directory, 1);
    setlocale(LC_ALL, "commas.UTF-8");
    harness_load(&own, text);
    double *to = harness_alloc(&own, sizeof *to);
    harness_ok(&own, "put", 1, 1, &to);
    assert_true(*to == 2.625);
    harness_free(&own);
    setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vector_add),
                                       cmocka_unit_test(test_saxpy),
                                       cmocka_unit_test(test_scan_bytes),
                                       cmocka_unit_test(test_block_sum),
                                       cmocka_unit_test(test_histogram),
                                       cmocka_unit_test(test_collatz),
                                       cmocka_unit_test(test_numbers_have_points_in_every_locale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
