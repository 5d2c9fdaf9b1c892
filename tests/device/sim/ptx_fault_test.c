/* What must not happen, and how it is reported: bad accesses, traps, deadlocks, endless kernels, refused text. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "tests/device/sim/ptx_harness.h"

#define MODULE ".version 8.0\n.target sm_80\n.address_size 64\n"
#define KERNEL(BODY)                                                                                                   \
    MODULE                                                                                                             \
    ".visible .entry k(.param .u64 data, .param .u64 extra) {\n"                                                       \
    ".reg .pred %p<10>; .reg .b16 %h<10>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .f32 %f<10>;\n"                    \
    "ld.param.u64 %rd1, [data]; ld.param.u64 %rd2, [extra]; mov.u32 %r1, %tid.x;\n" BODY "\nret;\n}\n"

typedef struct arguments {
    uint64_t data, extra;
} arguments;

static uint64_t address(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

/* Runs the body with a buffer of 64 words; expects the code, and these words in the message. */
static void expect_fault(const char *text, uint64_t offset, CUresult code, const char *first, const char *second) {
    harness h;
    harness_load(&h, text);
    arguments p = {address(harness_alloc(&h, 256)) + offset, 0};
    CUresult got = harness_run(&h, "k", 2, 64, &p);
    if (got != code)
        fail_msg("%s: expected %d, got %d: %s", strstr(text, "extra];"), (int)code, (int)got, h.fault.message);
    assert_int_equal(h.fault.code, code);
    const char *const words[] = {"kernel k", first, second};
    for (int w = 0; w < 3; w++)
        if (!strstr(h.fault.message, words[w])) fail_msg("'%s' is not in: %s", words[w], h.fault.message);
    assert_null(strchr(h.fault.message, '\n'));
    harness_free(&h);
}

static void test_bad_accesses(void **state) {
    (void)state;
    const char *store = KERNEL("mul.wide.u32 %rd3, %r1, 4;\nadd.u64 %rd1, %rd1, %rd3;\nst.global.u32 [%rd1], %r1;");
    expect_fault(store, 4, CUDA_ERROR_ILLEGAL_ADDRESS, "thread (63,0,0)", "write of 4 bytes");
    expect_fault(store, 4, CUDA_ERROR_ILLEGAL_ADDRESS, "PTX line 9", "st.global.u32 [%rd1], %r1");
    expect_fault(store, 2, CUDA_ERROR_MISALIGNED_ADDRESS, "thread (0,0,0)", "not a multiple of 4");
    expect_fault(KERNEL("ld.u64 %rd3, [%rd1+252];"), 0, CUDA_ERROR_MISALIGNED_ADDRESS, "ld.u64", "multiple of 8");
    expect_fault(KERNEL("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+4];"), 0, CUDA_ERROR_MISALIGNED_ADDRESS,
                 "ld.global.v4", "multiple of 16");
    expect_fault(KERNEL("ld.global.v2.u64 {%rd3, %rd4}, [%rd1+256];"), 0, CUDA_ERROR_ILLEGAL_ADDRESS,
                 "read of 16 bytes", "allocations");
    expect_fault(KERNEL("mov.u64 %rd3, 0; ld.global.u8 %r2, [%rd3];"), 0, CUDA_ERROR_ILLEGAL_ADDRESS,
                 "read of 1 bytes at 0x0", "block (");
    expect_fault(KERNEL("atom.global.add.u32 %r2, [%rd1+-4], 1;"), 0, CUDA_ERROR_ILLEGAL_ADDRESS, "atom.global.add",
                 "write of 4");
    expect_fault(KERNEL(".shared .b8 s[256]; mov.u32 %r2, s; add.u32 %r2, %r2, %r1; ld.shared.u32 %r2, [%r2];"), 0,
                 CUDA_ERROR_MISALIGNED_ADDRESS, "thread (1,0,0)", "ld.shared");
    expect_fault(KERNEL("mov.u32 %r2, 4096; ld.shared.u32 %r2, [%r2];"), 0, CUDA_ERROR_ILLEGAL_ADDRESS, "shared memory",
                 "which has 0 bytes");
    expect_fault(KERNEL(".local .b8 l[64]; mov.u32 %r2, 64; st.local.u32 [%r2], %r1;"), 0, CUDA_ERROR_ILLEGAL_ADDRESS,
                 "local memory", "64 bytes");
    expect_fault(KERNEL(".local .b8 l[64]; mov.u64 %rd3, l; cvta.local.u64 %rd3, %rd3; ld.u32 %r2, [%rd3+-4];"), 0,
                 CUDA_ERROR_ILLEGAL_ADDRESS, "ld.u32", "read of 4");
    expect_fault(KERNEL("mov.b64 %rd3, data; ld.param.u64 %rd3, [%rd3+16];"), 0, CUDA_ERROR_ILLEGAL_ADDRESS,
                 "kernel's parameters", "16 bytes");
}

static void test_read_only_and_uninitialised(void **state) {
    (void)state;
    const char *text = MODULE
        ".const .u32 c[4] = {1, 2, 3, 4};\n"
        ".visible .entry w() { .reg .b64 %rd1; mov.u64 %rd1, c; st.global.u32 [%rd1+4], 0; ret; }\n"
        ".visible .entry r(.param .u64 p) { .reg .b64 %rd1; .reg .b32 %r<4>; ld.param.u64 %rd1, [p];\n"
        "st.global.u16 [%rd1+6], 1; ld.global.u16 %r1, [%rd1+6]; ld.global.u32 %r2, [%rd1+4]; ret; }\n";
    harness h;
    harness_load(&h, text);
    assert_int_equal(harness_run(&h, "w", 1, 1, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_non_null(strstr(h.fault.message, "read-only"));
    void *data = harness_alloc_tracked(&h, 64);
    assert_int_equal(harness_run(&h, "r", 1, 1, &data), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_non_null(strstr(h.fault.message, "nothing has written"));
    assert_non_null(strstr(h.fault.message, "read of 4 bytes"));
    harness_free(&h);
}

static void test_other_faults(void **state) {
    (void)state;
    expect_fault(KERNEL("setp.eq.u32 %p1, %r1, 40; @%p1 trap;"), 0, CUDA_ERROR_LAUNCH_FAILED, "thread (40,0,0)",
                 "trap");
    expect_fault(KERNEL("mov.u64 %rd3, 12345; p: .callprototype _ (); call %rd3, (), p;"), 0, CUDA_ERROR_INVALID_PC,
                 "0x3039", "not the address of a function");
    expect_fault(KERNEL("t: .branchtargets A, B; brx.idx %r1, t; A: B:"), 0, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                 "thread (2,0,0)", "2 targets");
    expect_fault(KERNEL("bar.sync %r1;"), 0, CUDA_ERROR_ILLEGAL_INSTRUCTION, "barrier 16", "16");
    expect_fault(KERNEL("bar.sync 1, 33;"), 0, CUDA_ERROR_ILLEGAL_INSTRUCTION, "33", "multiple of 32");
    expect_fault(KERNEL("mov.u32 %r2, 1; shfl.sync.idx.b32 %r3, %r1, 0, 31, %r2;"), 0, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                 "membermask 0x00000001", "lane 1");
    const char *recursion = MODULE
        ".func f(.reg .u32 a) { .reg .u32 b; .local .b8 l[64]; add.u32 b, a, 1; call f, (b); ret; }\n"
        ".visible .entry k(.param .u64 data, .param .u64 extra) { call f, (1); ret; }\n";
    expect_fault(recursion, 0, CUDA_ERROR_ILLEGAL_ADDRESS, "overflows the stack", "call of 'f'");
}

static void test_deadlocks(void **state) {
    (void)state;
    expect_fault(KERNEL("setp.lt.u32 %p1, %r1, 32; @%p1 bar.sync 1, 96;"), 0, CUDA_ERROR_LAUNCH_TIMEOUT, "deadlock",
                 "bar.sync 1, 96");
    expect_fault(KERNEL("setp.lt.u32 %p1, %r1, 32; @%p1 bra A; bar.sync 1; bra.uni B; A: bar.sync 2; B:"), 0,
                 CUDA_ERROR_LAUNCH_TIMEOUT, "deadlock", "63 other threads");
    /* Each half of a warp waits for the other at another instruction. */
    expect_fault(KERNEL("and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra A; shfl.sync.idx.b32 %r3, %r1, 0, 31, "
                        "-1; bra.uni B;\n"
                        "A: shfl.sync.idx.b32 %r3, %r1, 0, 31, -1; B:"),
                 0, CUDA_ERROR_LAUNCH_TIMEOUT, "deadlock", "shfl.sync");
}

static void test_watchdog(void **state) {
    (void)state;
    harness h;
    harness_load(&h, KERNEL("L: add.u32 %r2, %r2, 1; bra L;"));
    arguments p = {0, 0};
    h.launch.max_instructions = 100000;
    for (uint32_t workers = 1; workers <= 2; workers++) {
        h.launch.workers = workers;
        assert_int_equal(harness_run(&h, "k", 3, 64, &p), CUDA_ERROR_LAUNCH_TIMEOUT);
        assert_non_null(strstr(h.fault.message, "the limit is 100000"));
        assert_in_range(h.instructions, 100000, 1000000);
    }
    harness_free(&h);
}

typedef struct canceller {
    volatile bool cancel;
    harness *h;
    CUresult code;
} canceller;

static void *run_endless(void *argument) {
    canceller *c = argument;
    arguments p = {address(c->h->owned[0]), 0};
    c->code = harness_run(c->h, "k", 1, 32, &p);
    return NULL;
}

static void test_cancel(void **state) {
    (void)state;
    harness h;
    harness_load(&h, KERNEL("st.volatile.global.u32 [%rd1], 1; L: bra L;"));
    volatile uint32_t *started = harness_alloc(&h, 4);
    canceller c = {false, &h, CUDA_SUCCESS};
    h.launch.cancel = &c.cancel;
    h.launch.max_instructions = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_endless, &c), 0);
    while (!__atomic_load_n(started, __ATOMIC_ACQUIRE)) {
    }
    __atomic_store_n((bool *)&c.cancel, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    assert_int_equal(c.code, CUDA_ERROR_LAUNCH_TIMEOUT);
    assert_non_null(strstr(h.fault.message, "cancelled"));
    harness_free(&h);
}

static void test_geometry(void **state) {
    (void)state;
    harness h;
    harness_load(&h, KERNEL(""));
    arguments p = {0, 0};
    h.launch.block[0] = 32, h.launch.block[1] = 33;
    assert_int_equal(harness_run(&h, "k", 1, 1, &p), CUDA_ERROR_INVALID_VALUE);
    assert_true(h.fault.message[0] != '\0');
    h.launch.block[1] = 1;
    h.launch.dynamic_shared_bytes = 300 << 10;
    assert_int_equal(harness_run(&h, "k", 1, 1, &p), CUDA_ERROR_INVALID_VALUE);
    h.launch.dynamic_shared_bytes = 0;
    h.launch.grid[0] = 3, h.launch.cluster[0] = 2;
    assert_int_equal(harness_run(&h, "k", 1, 1, &p), CUDA_ERROR_INVALID_VALUE);
    harness_free(&h);
}

/* ---- refused text ---- */

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
        CUresult code;
    } cases[] = {
        {"", "line 1: PTX text begins with .version", CUDA_ERROR_INVALID_PTX},
        {".version 10.0\n.target sm_80\n", "10.0", CUDA_ERROR_UNSUPPORTED_PTX_VERSION},
        {".version 8.0\n.target sm_100\n", "sm_100 does not run on this sm_90", CUDA_ERROR_NO_BINARY_FOR_GPU},
        {".version 8.0\n.target sm_80a\n", "sm_80a", CUDA_ERROR_NO_BINARY_FOR_GPU},
        {".version 8.0\n.target foo\n", "unknown target option 'foo'", CUDA_ERROR_INVALID_PTX},
        {MODULE ".address_size 32\n", "64-bit addresses", CUDA_ERROR_INVALID_PTX},
        {MODULE "hello", "directive is needed", CUDA_ERROR_INVALID_PTX},
        {MODULE ".entry k { frobnicate.u32 %r1, 2; }", "line 4: the instruction 'frobnicate' is not known",
         CUDA_ERROR_INVALID_PTX},
        {KERNEL("add.foo.u32 %r1, %r1, 1;"), "line 7: add: the modifier '.foo' is not known", CUDA_ERROR_INVALID_PTX},
        {KERNEL("add.u32 %r1, %r1;"), "add has 2 operands but needs 3", CUDA_ERROR_INVALID_PTX},
        {KERNEL("add.u32 %r1, %r1, %rd1;"), "'%rd1' of type .b64 stands where type .u32", CUDA_ERROR_INVALID_PTX},
        {KERNEL("add.f32 %f1, %f1, %r99;"), "'%r99' is not declared", CUDA_ERROR_INVALID_PTX},
        {KERNEL(".reg .f32 x; add.s32 x, x, 1;"), "type .f32 stands where type .s32", CUDA_ERROR_INVALID_PTX},
        {KERNEL("add.f32 %f1, %f1, 1;"), "an integer stands where", CUDA_ERROR_INVALID_PTX},
        {KERNEL("add.u32 7, %r1, 1;"), "result must be a register", CUDA_ERROR_INVALID_PTX},
        {KERNEL("mul.u32 %r1, %r1, 1;"), "needs .lo, .hi or .wide", CUDA_ERROR_INVALID_PTX},
        {KERNEL("cvt.f32.s32 %f1, %r1;"), "needs a rounding mode", CUDA_ERROR_INVALID_PTX},
        {KERNEL("bra nowhere;"), "label 'nowhere' is not defined", CUDA_ERROR_INVALID_PTX},
        {KERNEL("call nobody, ();"), "'nobody' is not a function", CUDA_ERROR_INVALID_PTX},
        {MODULE ".extern .func f();\n.entry k { call f, (); }", "'f' is called but not defined",
         CUDA_ERROR_INVALID_PTX},
        {MODULE ".extern .global .u32 x;\n", "'x' is .extern and not defined", CUDA_ERROR_INVALID_PTX},
        {KERNEL(".reg .u32 a; .reg .u32 a;"), "'a' is declared twice", CUDA_ERROR_INVALID_PTX},
        {KERNEL("@%r1 mov.u32 %r1, 2;"), "not a predicate", CUDA_ERROR_INVALID_PTX},
        {KERNEL("mov.u32 %r1, %tid.q;"), "", CUDA_ERROR_INVALID_PTX},
        {KERNEL("st.const.u32 [%rd1], %r1;"), ".const memory cannot be written", CUDA_ERROR_INVALID_PTX},
        {KERNEL("st.param.u64 [data], %rd1;"), "parameters cannot be written", CUDA_ERROR_INVALID_PTX},
        {KERNEL("ld.global.u32 %r1, [data];"), "does not lie in the state space", CUDA_ERROR_INVALID_PTX},
        {KERNEL("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}];"), "", CUDA_ERROR_INVALID_PTX},
        {MODULE ".entry k { mov.u32 %r1, 1; ", "", CUDA_ERROR_INVALID_PTX},
        {MODULE ".entry k { { ret; }", "not closed", CUDA_ERROR_INVALID_PTX},
        {MODULE "/* open", "comment is not closed", CUDA_ERROR_INVALID_PTX},
        {MODULE ".global .u32 x[2] = {1, 2, 3};", "more initial values", CUDA_ERROR_INVALID_PTX},
        {MODULE ".global .u32 x = y;", "'y' is not declared", CUDA_ERROR_INVALID_PTX},
        {MODULE ".global .b8 x[0xffffffffffff][0xffffffffffff];", "2^40", CUDA_ERROR_INVALID_PTX},
        {MODULE ".shared .b8 x[300000];", "shared memory", CUDA_ERROR_INVALID_PTX},
        {MODULE ".entry k(.param .b8 p[40000]) { ret; }", "at most 32764", CUDA_ERROR_INVALID_PTX},
        {MODULE ".entry k { ret; }\n.entry k { ret; }", "defined twice", CUDA_ERROR_INVALID_PTX},
        {MODULE ".entry k .maxntid 2000 { ret; }", "not 1 to 1024", CUDA_ERROR_INVALID_PTX},
        {MODULE ".global .u32 x = 1/0;", "divides by zero", CUDA_ERROR_INVALID_PTX},
        {MODULE ".global .u32 x = 99999999999999999999;", "64 bits", CUDA_ERROR_INVALID_PTX},
        {MODULE ".texref t;", "unknown directive '.texref'", CUDA_ERROR_INVALID_PTX}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *log = harness_refused(cases[c].text, cases[c].code);
        if (!strstr(log, cases[c].words)) fail_msg("'%s' is not in: %s", cases[c].words, log);
        assert_int_equal(strncmp(log, "line ", 5), 0);
    }
}

static void test_small_log(void **state) {
    (void)state;
    sim_module *module = NULL;
    char log[8] = "xxxxxxx";
    assert_int_equal(sim_module_load("nonsense", 8, 90, &module, log, 1), CUDA_ERROR_INVALID_PTX);
    assert_int_equal(log[0], '\0');
    assert_int_equal(sim_module_load("nonsense", 8, 90, &module, log, sizeof log), CUDA_ERROR_INVALID_PTX);
    assert_string_equal(log, "line 1:");
    assert_int_equal(sim_module_load("nonsense", 8, 90, &module, NULL, 0), CUDA_ERROR_INVALID_PTX);
    /* A trailing NUL is accepted, and nothing behind the given bytes is read. */
    assert_int_equal(sim_module_load(MODULE "garbage", sizeof MODULE - 1, 90, &module, NULL, 0), CUDA_SUCCESS);
    assert_int_equal(sim_module_function_count(module), 0);
    assert_null(sim_module_function_at(module, 0));
    assert_null(sim_module_find_function(module, "k"));
    sim_module_free(module);
    assert_int_equal(sim_module_load(MODULE, sizeof MODULE, 90, &module, NULL, 0), CUDA_SUCCESS);
    sim_module_free(module);
}

/* Every allocation of loading and of launching fails in turn, once and for good: an error each time, nothing leaked. */
static void test_out_of_memory(void **state) {
    (void)state;
    harness h;
    harness_load_file(&h, "features_sm90.ptx");
    char *text = harness_read("tests/device/sim/ptx_corpus/handwritten.ptx"), log[256];
    unsigned refused = 0;
    for (int sticky = 0; sticky < 2; sticky++) {
        for (uint64_t n = 1;; n++) {
            sim_module *module = NULL;
            mu_alloc_fail_at(n, sticky);
            CUresult code = sim_module_load(text, strlen(text), 90, &module, log, sizeof log);
            bool hit = mu_alloc_fail_hits();
            mu_alloc_fail_at(0, false);
            sim_module_free(module);
            if (!hit) break;
            assert_int_equal(code, CUDA_ERROR_OUT_OF_MEMORY);
            assert_null(module);
            refused++;
        }
        int *out = harness_alloc(&h, 4 * 256);
        for (uint64_t n = 1;; n++) { /* recursion, whose memory grows as it runs; then blocks on two host threads */
            h.launch.workers = 2;
            mu_alloc_fail_at(n, sticky);
            CUresult deep = harness_run(&h, "recursion", 1, 50, &out);
            CUresult wide = deep == CUDA_SUCCESS ? harness_run(&h, "prefix_sum", 2, 128, &out) : deep;
            bool hit = mu_alloc_fail_hits();
            mu_alloc_fail_at(0, false);
            if (!hit) break;
            assert_int_not_equal(wide, CUDA_SUCCESS);
            assert_true(h.fault.message[0] != '\0');
            refused++;
        }
    }
    assert_true(refused > 40);
    free(text);
    harness_free(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_accesses), cmocka_unit_test(test_read_only_and_uninitialised),
        cmocka_unit_test(test_other_faults), cmocka_unit_test(test_deadlocks),
        cmocka_unit_test(test_watchdog),     cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_geometry),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_small_log),    cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
