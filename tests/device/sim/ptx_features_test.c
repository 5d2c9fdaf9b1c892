/* Language features as nvcc compiles them (ptx_corpus/features.cu), against the same computed on the host. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/sim/ptx_harness.h"

static harness h;
static const char *file;

static int load(void **state) {
    (void)state;
    harness_load_file(&h, file);
    return 0;
}

static int unload(void **state) {
    (void)state;
    harness_free(&h);
    return 0;
}

static void test_struct_parameter(void **state) {
    (void)state;
    double *out = harness_alloc(&h, 8 * 7);
    struct {
        int a[5];
        double scale;
        char tag;
        double *out;
    } p = {{3, -1, 4, 1, -5}, 2.25, 'x', out};
    harness_ok(&h, "struct_parameter", 1, 7, &p);
    for (int t = 0; t < 7; t++) {
        double sum = p.scale;
        for (int i = 0; i < 5; i++) sum += p.a[(i + t) % 5] * (i + 1);
        assert_true(out[t] == sum + p.tag);
    }
}

static void test_module_variables(void **state) {
    (void)state;
    static const int table[8] = {1, 2, 3, 5, 8, 13, 21, 34};
    int *out = harness_alloc(&h, 4 * 40), expected = 7;
    harness_ok(&h, "module_variables", 1, 40, &out);
    for (int t = 0; t < 40; t++) {
        expected += table[t & 7];
        assert_int_equal(out[t], table[t * 3 & 7] + "muster"[t % 6]);
    }
    assert_int_equal(*(int *)harness_variable(&h, "counter"), expected);
}

static int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

static void test_recursion(void **state) {
    (void)state;
    int *out = harness_alloc(&h, 4 * 50);
    harness_ok(&h, "recursion", 1, 50, &out);
    for (int t = 0; t < 50; t++) assert_int_equal(out[t], fibonacci(t % 12));
}

typedef struct triple {
    int x;
    double y;
    char z[12];
} triple;

static void test_struct_calls(void **state) {
    (void)state;
    enum { N = 45 };
    triple *t = harness_alloc(&h, sizeof *t * N), before[N];
    for (int i = 0; i < N; i++) {
        t[i].x = i * 3, t[i].y = i / 4.0;
        for (int j = 0; j < 12; j++) t[i].z[j] = (char)(i + j);
    }
    memcpy(before, t, sizeof before);
    struct {
        triple *t;
        int n;
    } p = {t, N};
    harness_ok(&h, "struct_calls", 1, N, &p);
    for (int i = 0; i < N; i++) {
        triple r = before[i], b = before[(i + 1) % N];
        r.x += b.x * i, r.y -= b.y, r.z[i % 12] = b.z[(i + 1) % 12];
        assert_int_equal(t[i].x, r.x);
        assert_true(t[i].y == r.y);
        assert_memory_equal(t[i].z, r.z, sizeof r.z);
    }
}

static void test_indirect_calls(void **state) {
    (void)state;
    int *out = harness_alloc(&h, 4 * 64);
    harness_ok(&h, "indirect_calls", 1, 64, &out);
    for (int t = 0; t < 64; t++)
        assert_int_equal(out[t], t % 3 == 0 ? t * 5 + t + 3 : t % 3 == 1 ? t * 5 * (t + 3) : (t * 5) ^ (t + 3));
}

static int dense_switch(int v) {
    switch (v) {
        case 0: return v * 3 + 1;
        case 1: return 77;
        case 2: return v << 5;
        case 3: return -v;
        case 4: return v * v * v;
        case 5: return 1000 / v;
        case 6: return v % 4;
        case 7: return ~v;
        case 8: return v ^ 0x55;
        case 9: return 9009;
        default: return 0;
    }
}

static void test_dense_switch(void **state) {
    (void)state;
    int *in = harness_alloc(&h, 4 * 64), *out = harness_alloc(&h, 4 * 64);
    for (int i = 0; i < 64; i++) in[i] = i % 12 - 1;
    int *p[] = {in, out};
    harness_ok(&h, "dense_switch", 1, 64, p);
    for (int i = 0; i < 64; i++) assert_int_equal(out[i], dense_switch(in[i]));
}

static int by_value(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void test_local_array(void **state) {
    (void)state;
    enum { N = 40 };
    int *in = harness_alloc(&h, 64 * N), *out = harness_alloc(&h, 64 * N);
    uint64_t seed = 3;
    for (int i = 0; i < 16 * N; i++) in[i] = (int)(harness_random(&seed) % 1000) - 500;
    struct {
        int *in, *out, n;
    } p = {in, out, 16};
    harness_ok(&h, "local_array", 1, N, &p);
    for (int t = 0; t < N; t++) qsort(in + t * 16, 16, sizeof *in, by_value);
    assert_memory_equal(in, out, 64 * N);
}

static void test_generic_pointers(void **state) {
    (void)state;
    int *global = harness_alloc(&h, 4 * 64), *out = harness_alloc(&h, 4 * 64);
    for (int i = 0; i < 64; i++) global[i] = i;
    int *p[] = {global, out};
    harness_ok(&h, "generic_pointers", 1, 64, p);
    for (int t = 0; t < 64; t++) {
        int expected = t % 3 == 0   ? (63 - t) * 10 + 1000 + (1 << 20)
                       : t % 3 == 1 ? t + 1000 + (1 << 21)
                                    : (t & 1 ? -t : t) + 1000 + (1 << 22);
        assert_int_equal(out[t], expected);
    }
}

static void test_warp_intrinsics(void **state) {
    (void)state;
    int *in = harness_alloc(&h, 4 * 32), *out = harness_alloc(&h, 40 * 32), sum = 0;
    uint32_t odd = 0;
    for (int i = 0; i < 32; i++) in[i] = i * i % 11, sum += in[i], odd |= (uint32_t)(in[i] & 1) << i;
    int *p[] = {in, out};
    harness_ok(&h, "warp_intrinsics", 1, 32, p);
    for (int t = 0; t < 32; t++) {
        const int *o = out + t * 10;
        uint32_t same = 0;
        for (int i = 0; i < 32; i++) same |= (uint32_t)((in[i] & 3) == (in[t] & 3)) << i;
        assert_int_equal(o[0], sum);
        assert_int_equal(o[1], t >= 3 ? in[t - 3] : in[t]);
        assert_int_equal(o[2], (t & 15) + 5 < 16 ? in[t + 5] : in[t]);
        assert_int_equal(o[3], in[(t & ~7) + (t * 7 & 7)]);
        assert_int_equal((uint32_t)o[4], odd);
        assert_int_equal((uint32_t)o[5], same);
        int five = 0;
        for (int i = 0; i < 32; i++) five |= in[i] == 5;
        assert_int_equal(o[6], 2 + five);
        assert_int_equal((uint32_t)o[7], UINT32_MAX);
        assert_int_equal(o[8], 1);
        assert_int_equal((uint32_t)o[9], t < 20 ? 0xfffff ^ (0xaaaaa) : 0);
    }
}

static void test_warp_reduce(void **state) {
    (void)state;
    int *in = harness_alloc(&h, 4 * 32), *out = harness_alloc(&h, 24 * 32);
    int sum = 0, low = 0, all = -1, any = 0, odd = 0;
    unsigned high = 0;
    uint64_t seed = 5;
    for (int i = 0; i < 32; i++) {
        in[i] = (int)harness_random(&seed) | 0x100;
        sum = (int)((unsigned)sum + (unsigned)in[i]), low = in[i] < low ? in[i] : low,
        high = (unsigned)in[i] > high ? (unsigned)in[i] : high;
        all &= in[i], any |= in[i], odd ^= in[i];
    }
    int *p[] = {in, out};
    harness_ok(&h, "warp_reduce", 1, 32, p);
    for (int t = 0; t < 32; t++) {
        const int expected[6] = {sum, low, (int)high, all, any, odd};
        assert_memory_equal(out + t * 6, expected, sizeof expected);
    }
}

static void test_spin_locks(void **state) {
    (void)state;
    static const char *const kernels[] = {"spin_lock", "nested_spin_lock"};
    for (int k = 0; k < 2; k++) {
        int *lock = harness_alloc(&h, 4), *total = harness_alloc(&h, 4);
        int *p[] = {lock, total};
        h.launch.seed = (uint64_t)k;
        h.launch.workers = 2;
        harness_ok(&h, kernels[k], 4, 64, p);
        assert_int_equal(*total, 256);
        assert_int_equal(*lock, 0);
    }
}

static void test_grid_barrier(void **state) {
    (void)state;
    enum { BLOCKS = 9, THREADS = 48, N = BLOCKS * THREADS, ROUNDS = 5 };
    int *data = harness_alloc(&h, 4 * N), expected[N], next[N];
    struct {
        int *data, rounds;
    } p = {data, ROUNDS};
    for (uint32_t workers = 1; workers <= 3; workers++) {
        for (int i = 0; i < N; i++) data[i] = expected[i] = i % 7;
        for (int r = 0; r < ROUNDS; r++) {
            for (int i = 0; i < N; i++) next[i] = expected[i] + expected[(i + 1) % N];
            memcpy(expected, next, sizeof expected);
        }
        h.launch.cooperative = true;
        h.launch.workers = workers;
        h.launch.seed = workers;
        harness_ok(&h, "grid_barrier", BLOCKS, THREADS, &p);
        assert_memory_equal(data, expected, sizeof expected);
    }
    h.launch.cooperative = false; /* grid.sync() of an ordinary launch traps */
    assert_int_equal(harness_run(&h, "grid_barrier", BLOCKS, THREADS, &p), CUDA_ERROR_LAUNCH_FAILED);
    assert_non_null(strstr(h.fault.message, "trap"));
}

static void test_last_block(void **state) {
    (void)state;
    enum { BLOCKS = 20 };
    int *partial = harness_alloc(&h, 4 * BLOCKS), *total = harness_alloc(&h, 4);
    int *p[] = {partial, total};
    for (int again = 0; again < 3; again++) {
        h.launch.workers = 2;
        h.launch.seed = (uint64_t)again;
        *total = 0;
        harness_ok(&h, "last_block", BLOCKS, 32, p);
        assert_int_equal(*total, BLOCKS * (BLOCKS - 1) / 2 * 3 + BLOCKS);
    }
}

static void test_asserts(void **state) {
    (void)state;
    int limit = 32;
    harness_ok(&h, "prints_and_asserts", 2, 32, &limit);
    limit = 20;
    assert_int_equal(harness_run(&h, "prints_and_asserts", 2, 32, &limit), CUDA_ERROR_ASSERT);
    assert_non_null(strstr(h.fault.message, "(int)threadIdx.x < limit"));
    assert_non_null(strstr(h.fault.message, "features.cu"));
}

static bool near(double got, double expected, double relative) {
    return fabs(got - expected) <= relative * (fabs(expected) + 1e-30);
}

static void test_math(void **state) {
    (void)state;
    enum { N = 200 };
    float *x = harness_alloc(&h, 4 * N), *y = harness_alloc(&h, 32 * N);
    double *dx = harness_alloc(&h, 8 * N), *dy = harness_alloc(&h, 32 * N);
    for (int i = 0; i < N; i++) x[i] = (float)(i - 90) * 0.37f, dx[i] = (i - 90) * 0.731;
    x[0] = 1e6f; /* the slow path of sinf */
    void *p[] = {x, y, dx, dy};
    harness_ok(&h, "math", 1, N, p);
    for (int i = 0; i < N; i++) {
        double v = (double)x[i], d = dx[i];
        const float *f = y + i * 8;
        const double expected[8] = {sin(v),        exp(v),          log(fabs(v) + 0.5),    pow(fabs(v), 1.7),
                                    sqrt(fabs(v)), v / (v * v + 1), 1 / sqrt(fabs(v) + 1), tanh(v)};
        for (int k = 0; k < 8; k++)
            if (fabs(expected[k]) < 1e38 && fabs(expected[k]) > 1e-37)
                assert_true(near((double)f[k], expected[k], 4e-6));
        assert_true(near(dy[i * 4], sin(d), 1e-13));
        assert_true(near(dy[i * 4 + 1], exp(d), 1e-14));
        assert_true(near(dy[i * 4 + 2], log(fabs(d) + 0.5), 1e-13));
        assert_true(near(dy[i * 4 + 3], d / (sqrt(fabs(d)) + 1), 1e-15));
    }
}

static void test_wide_integers(void **state) {
    (void)state;
    enum { N = 256 };
    uint64_t *a = harness_alloc(&h, 8 * N), *b = harness_alloc(&h, 8 * N), *out = harness_alloc(&h, 48 * N), seed = 11;
    for (int i = 0; i < N; i++) a[i] = harness_edge64(&seed), b[i] = harness_edge64(&seed);
    uint64_t *p[] = {a, b, out};
    harness_ok(&h, "wide_integers", 1, N, p);
    for (int i = 0; i < N; i++) {
        unsigned __int128 product = (unsigned __int128)a[i] * b[i] + b[i];
        uint64_t counts = (uint64_t)(__builtin_popcountll(a[i]) + (b[i] ? __builtin_clzll(b[i]) : 64) * 256 +
                                     (a[i] ? __builtin_ctzll(a[i]) + 1 : 0) * 65536);
        const uint64_t expected[6] = {(uint64_t)product,
                                      (uint64_t)(product >> 64),
                                      b[i] ? a[i] / b[i] : 0,
                                      b[i] ? a[i] % b[i] : 0,
                                      (uint64_t)((unsigned __int128)a[i] * b[i] >> 64),
                                      counts};
        assert_memory_equal(out + i * 6, expected, sizeof expected);
    }
}

static void test_half_storage(void **state) {
    (void)state;
    enum { N = 64 };
    float *x = harness_alloc(&h, 4 * N), *back = harness_alloc(&h, 4 * N);
    uint16_t *half = harness_alloc(&h, 2 * N);
    for (int i = 0; i < N; i++) x[i] = (float)(i - 20) * 0.125f + (float)i * 1e-5f;
    void *p[] = {x, half, back};
    harness_ok(&h, "half_storage", 1, N, p);
    for (int i = 0; i < N; i++) assert_true(fabsf(back[i] - x[i]) <= fabsf(x[i]) / 2048 + 1e-7f);
    x[0] = 1.5f;
    harness_ok(&h, "half_storage", 1, N, p);
    assert_int_equal(half[0], 0x3e00);
}

static void test_prefix_sum(void **state) {
    (void)state;
    int *data = harness_alloc(&h, 4 * 384), expected[384];
    for (int i = 0; i < 384; i++) data[i] = i % 13 - 4, expected[i] = data[i] + (i % 128 ? expected[i - 1] : 0);
    h.launch.seed = 99;
    harness_ok(&h, "prefix_sum", 3, 128, &data);
    assert_memory_equal(data, expected, sizeof expected);
    assert_int_equal(sim_function_get_info(sim_module_find_function(h.module, "prefix_sum"))->max_threads, 128);
}

static void test_matrix_multiply(void **state) {
    (void)state;
    enum { N = 48 };
    float *a = harness_alloc(&h, 4 * N * N), *b = harness_alloc(&h, 4 * N * N), *c = harness_alloc(&h, 4 * N * N);
    for (int i = 0; i < N * N; i++) a[i] = (float)(i % 5), b[i] = (float)(i % 7) - 3;
    struct {
        float *a, *b, *c;
        int n;
    } p = {a, b, c, N};
    h.launch.grid[0] = h.launch.grid[1] = N / 16;
    h.launch.block[0] = h.launch.block[1] = 16;
    h.launch.workers = 2;
    harness_ok(&h, "matrix_multiply", 0, 0, &p);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int k = 0; k < N; k++) sum += a[i * N + k] * b[k * N + j];
            assert_true(c[i * N + j] == sum);
        }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, load, unload)

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_struct_parameter), TEST(test_module_variables),
                                       TEST(test_recursion),        TEST(test_struct_calls),
                                       TEST(test_indirect_calls),   TEST(test_dense_switch),
                                       TEST(test_local_array),      TEST(test_generic_pointers),
                                       TEST(test_warp_intrinsics),  TEST(test_spin_locks),
                                       TEST(test_grid_barrier),     TEST(test_last_block),
                                       TEST(test_asserts),          TEST(test_math),
                                       TEST(test_wide_integers),    TEST(test_half_storage),
                                       TEST(test_prefix_sum),       TEST(test_matrix_multiply)};
    file = "features_sm75.ptx";
    int failed = cmocka_run_group_tests_name("features for sm_75", tests, NULL, NULL);
    file = "features_sm90.ptx";
    failed += cmocka_run_group_tests_name("features for sm_90", tests, NULL, NULL);
    const struct CMUnitTest newer[] = {TEST(test_warp_reduce)}; /* redux needs sm_80 */
    return failed + cmocka_run_group_tests_name("features since sm_80", newer, NULL, NULL);
}
