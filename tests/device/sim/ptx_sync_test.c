/* Threads together: barriers, warp-level instructions under divergence, atomics, clusters, scheduling, special
 * registers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/sim/ptx_harness.h"

#define MODULE ".version 8.0\n.target sm_90\n.address_size 64\n"
#define BEGIN                                                                                                          \
    MODULE                                                                                                             \
    ".extern .shared .align 16 .b8 dynamic[];\n"                                                                       \
    ".visible .entry k(.param .u64 data) {\n"                                                                          \
    ".reg .pred %p<10>; .reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .f32 %f<10>; .reg .f64 %fd<10>;\n"                   \
    "mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1;\n"               \
    "ld.param.u64 %rd1, [data]; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd2, %rd1, %rd2; mov.u32 %r5, %laneid;\n"
#define END "\nDONE: st.global.u32 [%rd2], %r10;\nret;\n}\n"

/* Runs the body, which leaves a result in %r10, under several seeds, and compares with the model of (block, thread). */
static void check(const char *body, uint32_t grid, uint32_t block, uint32_t (*model)(uint32_t block, uint32_t thread)) {
    char *text = malloc(strlen(body) + 4096);
    assert_non_null(text);
    strcat(strcat(strcpy(text, BEGIN), body), END);
    harness h;
    harness_load(&h, text);
    uint32_t *data = harness_alloc(&h, (size_t)grid * block * 4);
    for (uint64_t seed = 0; seed < 6; seed++) {
        h.launch.seed = seed;
        h.launch.dynamic_shared_bytes = 4096;
        memset(data, 0xee, (size_t)grid * block * 4);
        harness_ok(&h, "k", grid, block, &data);
        for (uint32_t b = 0; b < grid; b++)
            for (uint32_t t = 0; t < block; t++)
                if (data[b * block + t] != model(b, t))
                    fail_msg("%s: block %u thread %u seed %u: %u, not %u", body, b, t, (unsigned)seed,
                             data[b * block + t], model(b, t));
    }
    harness_free(&h);
    free(text);
}

#define MODEL(NAME, ...)                                                                                               \
    static uint32_t NAME(uint32_t block, uint32_t thread) {                                                            \
        (void)block, (void)thread;                                                                                     \
        return (uint32_t)(__VA_ARGS__);                                                                                \
    }

MODEL(neighbour, (thread + 1) % 96 * 3)
MODEL(popc_third, (96 + 2) / 3)
MODEL(reduced, 1)
MODEL(from_producer, 1000 + thread % 32)
MODEL(early, thread < 40 ? 5 : 77)

static void test_block_barriers(void **state) {
    (void)state;
    check(
        "mov.u32 %r6, dynamic; shl.b32 %r7, %r1, 2; add.u32 %r7, %r6, %r7; mul.lo.u32 %r8, %r1, 3; st.shared.u32 "
        "[%r7], %r8; bar.sync 0;\n"
        "add.u32 %r9, %r1, 1; rem.u32 %r9, %r9, %r3; shl.b32 %r9, %r9, 2; add.u32 %r9, %r9, %r6; ld.shared.u32 %r10, "
        "[%r9];",
        2, 96, neighbour);
    check("rem.u32 %r6, %r1, 3; setp.eq.u32 %p1, %r6, 0; barrier.cta.red.popc.aligned.u32 %r10, 3, %p1;", 1, 96,
          popc_third);
    check(
        "setp.lt.u32 %p1, %r1, 96; bar.red.and.pred %p2, 1, %p1; bar.red.or.pred %p3, 1, !%p1; selp.b32 %r10, 1, 0, "
        "%p2; @%p3 mov.u32 %r10, 2;",
        2, 96, reduced);
    /* Warp 0 produces and only arrives; warps 1 and 2 wait for it. */
    check(
        "mov.u32 %r6, dynamic; shl.b32 %r7, %r5, 2; add.u32 %r6, %r6, %r7; setp.ge.u32 %p1, %r1, 32; @%p1 bra WAIT;\n"
        "add.u32 %r10, %r5, 1000; st.shared.u32 [%r6], %r10; bar.arrive 5, 96; bra.uni DONE;\n"
        "WAIT: bar.sync 5, 96; ld.shared.u32 %r10, [%r6];",
        2, 96, from_producer);
    /* Threads that have exited count as arrived. */
    check(
        "mov.u32 %r10, 5; setp.lt.u32 %p1, %r1, 40; st.global.u32 [%rd2], %r10; @%p1 exit; bar.sync 0; mov.u32 %r10, "
        "77;",
        1, 96, early);
    check("mov.u32 %r10, 5; setp.lt.u32 %p1, %r1, 40; @%p1 bra DONE; bar.sync 0; bar.sync 0; mov.u32 %r10, 77;", 2, 96,
          early);
}

MODEL(halves_sum, thread % 32 < 16 ? 120 : 376)
MODEL(odd_ballot, thread % 32 & 1 ? 0xaaaaaaaau : 0x11111111)
MODEL(even_then_odd, thread % 32 & 1 ? 100 + (thread % 32 ^ 2) : thread % 32 ^ 4)
MODEL(met, 31)
MODEL(left_over, thread % 32 < 7 ? 9 : 25)
MODEL(elected, thread % 32 < 12 ? (thread % 32 == 0 ? 1000 : 0) : (thread % 32 == 12 ? 1012 : 12))
MODEL(legacy, thread % 32 < 8 ? 0xff : 0xffffff00)
MODEL(partial, thread < 32 ? UINT32_MAX : 0xff)

static void test_warp(void **state) {
    (void)state;
    /* Two halves of a warp reduce apart, each by its own membermask, in one instruction and under divergence. */
    check("setp.lt.u32 %p1, %r5, 16; selp.b32 %r6, 0xffff, 0xffff0000, %p1; redux.sync.add.u32 %r10, %r5, %r6;", 1, 64,
          halves_sum);
    check(
        "setp.lt.u32 %p1, %r5, 16; @%p1 bra LOW; redux.sync.add.u32 %r10, %r5, 0xffff0000; bra.uni DONE; LOW: "
        "redux.sync.add.u32 %r10, %r5, 0x0000ffff;",
        1, 64, halves_sum);
    check(
        "and.b32 %r6, %r5, 1; setp.eq.u32 %p1, %r6, 1; @%p1 bra ODD; and.b32 %r7, %r5, 3; setp.eq.u32 %p2, %r7, 0; "
        "vote.sync.ballot.b32 %r10, %p2, 0x55555555;\n"
        "bra.uni DONE; ODD: vote.sync.ballot.b32 %r10, %p1, 0xaaaaaaaa;",
        1, 32, odd_ballot);
    check(
        "and.b32 %r6, %r5, 1; setp.eq.u32 %p1, %r6, 1; @%p1 bra ODD; shfl.sync.bfly.b32 %r10, %r5, 4, 31, 0x55555555; "
        "bra.uni DONE;\n"
        "ODD: add.u32 %r7, %r5, 100; shfl.sync.bfly.b32 %r10, %r7, 2, 31, 0xaaaaaaaa;",
        1, 64, even_then_odd);
    /* Lanes come to one instruction at different times, from a loop that they leave one by one. */
    check(
        "mov.u32 %r6, 0; L: setp.ge.u32 %p1, %r6, %r5; @%p1 bra OUT; add.u32 %r6, %r6, 1; bra L; OUT: "
        "redux.sync.max.u32 %r10, %r6, -1;",
        2, 64, met);
    /* bar.warp.sync at two places is one barrier. */
    check(
        "mov.u32 %r6, dynamic; setp.eq.u32 %p1, %r5, 31; @!%p1 bra OTHERS; st.shared.u32 [%r6], 31; bar.warp.sync -1; "
        "bra.uni BOTH;\n"
        "OTHERS: bar.warp.sync -1; BOTH: ld.shared.u32 %r10, [%r6];",
        1, 32, met);
    /* Lanes that have exited are not waited for. */
    check(
        "mov.u32 %r10, 9; st.global.u32 [%rd2], %r10; setp.lt.u32 %p1, %r5, 7; @%p1 exit; mov.u32 %r6, 1; "
        "redux.sync.add.u32 %r10, %r6, -1;",
        1, 64, left_over);
    check(
        "setp.lt.u32 %p1, %r5, 12; selp.b32 %r6, 0xfff, 0xfffff000, %p1; elect.sync %r10|%p2, %r6; @%p2 add.u32 %r10, "
        "%r10, 1000;",
        1, 32, elected);
    check(
        "setp.lt.u32 %p1, %r5, 8; @%p1 bra LOW; activemask.b32 %r10; bra.uni DONE; LOW: setp.eq.u32 %p2, %r5, %r5; "
        "vote.ballot.b32 %r10, %p2;",
        1, 32, legacy);
    check("activemask.b32 %r10;", 1, 40, partial);
}

/* ---- atomics: each operation by many threads on one cell, against the same in order of lanes ---- */

typedef struct atomic_case {
    const char *text;
    uint64_t before, after;
} atomic_case;

static void test_atomics(void **state) {
    (void)state;
    /* 64 threads with operand t = %tid.x; the results do not depend on the order. */
    static const atomic_case cases[] = {
        {"atom.global.add.u32 %r10, [%rd1], %r1;", 5, 5 + 2016},
        {"atom.add.s32 %r10, [%rd1], %r1;", 5, 5 + 2016},
        {"red.global.add.u64 [%rd1], %rd3;", 1, 1 + 2016},
        {"red.relaxed.gpu.global.add.u32 [%rd1], 2;", 1, 129},
        {"atom.global.min.u32 %r10, [%rd1], %r1;", 7, 0},
        {"neg.s32 %r6, %r1; atom.global.min.s32 %r10, [%rd1], %r6;", 7, (uint32_t)-63},
        {"atom.global.max.u64 %rd4, [%rd1], %rd3;", 7, 63},
        {"neg.s64 %rd4, %rd3; atom.global.max.s64 %rd4, [%rd1], %rd4;", (uint64_t)-100, 0},
        {"neg.s64 %rd4, %rd3; atom.global.min.s64 %rd4, [%rd1], %rd4;", 100, (uint64_t)-63},
        {"atom.global.inc.u32 %r10, [%rd1], 9;", 0, 4},
        {"atom.global.dec.u32 %r10, [%rd1], 9;", 0, 6},
        {"atom.acq_rel.sys.global.and.b32 %r10, [%rd1], 0xf0f0;", 0xffff, 0xf0f0},
        {"atom.global.or.b64 %rd4, [%rd1], %rd3;", 0, 63},
        {"red.global.xor.b32 [%rd1], %r1;", 1, 1},
        {"atom.global.exch.b32 %r10, [%rd1], 77;", 3, 77},
        {"atom.global.cas.b32 %r10, [%rd1], %r1, 100;", 0, 100},
        {"atom.global.cas.b64 %rd4, [%rd1], %rd3, 5;", 63, 5},
        {"atom.global.cas.b16 %h1, [%rd1], %h2, %h3;", 63 | 0xab0000, 7 | 0xab0000},
        {"cvt.rn.f32.u32 %f1, %r1; atom.global.add.f32 %f2, [%rd1], %f1;", 0x3f800000, 0x44fc2000},
        {"cvt.rn.f64.u32 %fd1, %r1; red.global.add.f64 [%rd1], %fd1;", 0, UINT64_C(0x409f800000000000)},
        {"mov.b32 %f1, 0f00000001; red.global.add.f32 [%rd1], %f1;", 0x80000001, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char text[2048];
        snprintf(text, sizeof text,
                 MODULE
                 ".visible .entry k(.param .u64 data) { .reg .b32 %%r<20>; .reg .b64 %%rd<10>; .reg .f32 %%f<4>; .reg "
                 ".f64 %%fd<4>; .reg .b16 %%h<4>;\n"
                 "mov.u32 %%r1, %%tid.x; cvt.u64.u32 %%rd3, %%r1; cvt.u16.u32 %%h2, %%r1; mov.u16 %%h3, 7; "
                 "ld.param.u64 %%rd1, [data];\n%s\nret; }\n",
                 cases[c].text);
        harness h;
        harness_load(&h, text);
        uint64_t *cell = harness_alloc(&h, 8);
        for (uint32_t workers = 1; workers <= 2; workers++) {
            *cell = cases[c].before;
            h.launch.workers = workers;
            harness_ok(&h, "k", 1, 64, &cell);
            if (*cell != cases[c].after)
                fail_msg("%s: %#llx, not %#llx", cases[c].text, (unsigned long long)*cell,
                         (unsigned long long)cases[c].after);
        }
        harness_free(&h);
    }
}

MODEL(shared_total, 96 * 95 / 2)
MODEL(subnormal_kept, 96)

static void test_shared_atomics(void **state) {
    (void)state;
    check(
        "mov.u32 %r6, dynamic; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [%r6], 0; bar.sync 0; atom.shared.add.u32 "
        "%r7, [%r6], %r1; bar.sync 0; ld.shared.u32 %r10, [%r6];",
        2, 96, shared_total);
    check(
        "mov.u64 %rd3, dynamic; cvta.shared.u64 %rd3, %rd3; setp.eq.u32 %p1, %r1, 0; @%p1 st.u32 [%rd3], 0; bar.sync "
        "0; atom.add.u32 %r7, [%rd3], %r1; bar.sync 0; ld.u32 %r10, [%rd3];",
        2, 96, shared_total);
    check(
        "mov.u32 %r6, dynamic; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [%r6], 0; bar.sync 0; mov.b32 %f1, "
        "0f00000001; atom.shared.add.f32 %f2, [%r6], %f1; bar.sync 0; ld.shared.u32 %r10, [%r6];",
        1, 96, subnormal_kept);
}

/* ---- special registers, clusters ---- */

static void test_special_registers(void **state) {
    (void)state;
    static const char *text = MODULE
        ".extern .shared .b8 d[]; .visible .entry k(.param .u64 data) { .reg .b32 %r<40>; .reg .b64 %rd<10>; .reg "
        ".pred %p<4>; .shared .b8 s[100];\n"
        "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y; "
        "mov.u32 %r6, %ntid.z;\n"
        "mov.u32 %r7, %ctaid.x; mov.u32 %r8, %ctaid.y; mov.u32 %r9, %ctaid.z; mov.u32 %r10, %nctaid.x; mov.u32 %r11, "
        "%nctaid.y; mov.u32 %r12, %nctaid.z;\n"
        "mad.lo.u32 %r13, %r9, %r11, %r8; mad.lo.u32 %r13, %r13, %r10, %r7; mad.lo.u32 %r14, %r3, %r5, %r2; mad.lo.u32 "
        "%r14, %r14, %r4, %r1;\n"
        "mul.lo.u32 %r15, %r4, %r5; mul.lo.u32 %r15, %r15, %r6; mad.lo.u32 %r15, %r13, %r15, %r14; ld.param.u64 %rd1, "
        "[data]; mad.wide.u32 %rd1, %r15, 64, %rd1;\n"
        "mov.u32 %r16, %laneid; mov.u32 %r17, %warpid; st.global.v2.u32 [%rd1], {%r16, %r17}; mov.u32 %r16, "
        "%lanemask_lt; mov.u32 %r17, %lanemask_ge; st.global.v2.u32 [%rd1+8], {%r16, %r17};\n"
        "mov.u32 %r16, %lanemask_eq; mov.u32 %r17, %lanemask_le; st.global.v2.u32 [%rd1+16], {%r16, %r17}; mov.u32 "
        "%r16, %lanemask_gt; mov.u32 %r17, %nsmid; st.global.v2.u32 [%rd1+24], {%r16, %r17};\n"
        "mov.u32 %r16, %dynamic_smem_size; mov.u32 %r17, %total_smem_size; st.global.v2.u32 [%rd1+32], {%r16, %r17}; "
        "mov.u64 %rd2, %clock64; mov.u64 %rd3, %clock64; sub.u64 %rd3, %rd3, %rd2;\n"
        "mov.u64 %rd4, %globaltimer; setp.ne.u64 %p1, %rd4, 0; selp.u32 %r16, 1, 0, %p1; cvt.u32.u64 %r17, %rd3; "
        "st.global.v2.u32 [%rd1+40], {%r16, %r17}; mov.u32 %r16, %smid; mov.u32 %r17, d;\n"
        "st.global.v2.u32 [%rd1+48], {%r16, %r17}; mov.u32 %r16, s; mov.u32 %r17, %nwarpid; st.global.v2.u32 "
        "[%rd1+56], {%r16, %r17}; ret; }\n";
    harness h;
    harness_load(&h, text);
    uint32_t(*data)[16] = harness_alloc(&h, 12 * 60 * 64);
    h.launch.grid[0] = 2, h.launch.grid[1] = 3, h.launch.grid[2] = 2;
    h.launch.block[0] = 5, h.launch.block[1] = 4, h.launch.block[2] = 3;
    h.launch.dynamic_shared_bytes = 64;
    harness_ok(&h, "k", 0, 0, &data);
    for (uint32_t i = 0; i < 12 * 60; i++) {
        uint32_t lane = i % 60 % 32, bit = 1u << lane;
        const uint32_t expected[16] = {lane,           i % 60 / 32, bit - 1, ~(bit - 1), bit, bit * 2 - 1,
                                       ~(bit * 2 - 1), 4,           64,      112 + 64,   1,   1,
                                       i / 60 % 4,     112,         0,       64};
        assert_memory_equal(data[i], expected, sizeof expected);
    }
    harness_free(&h);
}

static void test_clusters(void **state) {
    (void)state;
    /* Each block of a cluster writes its rank to its shared memory; all read the next one's. */
    static const char *text = MODULE
        ".visible .entry k(.param .u64 data) { .reg .b32 %r<20>; .reg .b64 %rd<10>; .reg .pred %p<4>; .shared .align 4 "
        ".b8 s[8];\n"
        "mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %cluster_nctarank; mov.u32 %r3, %clusterid.x; mov.u32 %r4, "
        "%nclusterid.x; mov.u32 %r5, %ctaid.x;\n"
        "mad.lo.u32 %r6, %r3, 100, %r1; st.shared.u32 [s], %r6; st.shared.u32 [s+4], 0; "
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
        "add.u32 %r7, %r1, 1; rem.u32 %r7, %r7, %r2; mov.u32 %r8, s; mapa.shared::cluster.u32 %r9, %r8, %r7; "
        "ld.shared::cluster.u32 %r10, [%r9];\n"
        "mov.u64 %rd3, s; cvta.shared.u64 %rd3, %rd3; mapa.u64 %rd4, %rd3, %r7; ld.u32 %r11, [%rd4]; getctarank.u64 "
        "%r12, %rd4; atom.shared::cluster.add.u32 %r13, [%r9+4], 1;\n"
        "isspacep.shared::cluster %p1, %rd4; isspacep.shared %p2, %rd4; selp.u32 %r14, 10, 0, %p1; selp.u32 %r15, 1, "
        "0, %p2; add.u32 %r14, %r14, %r15; barrier.cluster.arrive; barrier.cluster.wait;\n"
        "ld.shared.u32 %r13, [s+4]; ld.param.u64 %rd1, [data]; mad.wide.u32 %rd1, %r5, 32, %rd1; st.global.v4.u32 "
        "[%rd1], {%r10, %r11, %r12, %r13}; st.global.v2.u32 [%rd1+16], {%r14, %r4}; ret; }\n";
    harness h;
    harness_load(&h, text);
    uint32_t(*data)[8] = harness_alloc(&h, 12 * 32);
    h.launch.cluster[0] = 4;
    for (uint32_t workers = 1; workers <= 2; workers++) {
        h.launch.workers = h.launch.seed = workers;
        harness_ok(&h, "k", 12, 32, &data);
        for (uint32_t b = 0; b < 12; b++) {
            uint32_t next = (b + 1) % 4;
            const uint32_t expected[6] = {b / 4 * 100 + next, b / 4 * 100 + next, next, 32, 10, 3};
            assert_memory_equal(data[b], expected, sizeof expected);
        }
    }
    harness_free(&h);
}

/* ---- scheduling ---- */

static void test_seeds(void **state) {
    (void)state;
    /* Threads draw tickets; the order is the interleaving. The same seed gives the same, others differ. */
    harness h;
    harness_load(&h, MODULE
                 ".visible .entry k(.param .u64 data) { .reg .b32 %r<20>; .reg .b64 %rd<10>; .reg .pred %p1; mov.u32 "
                 "%r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 128, %r1;\n"
                 "ld.param.u64 %rd1, [data]; mov.u32 %r5, 0; L: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 1000; @%p1 "
                 "bra L; atom.global.add.u32 %r4, [%rd1], 1;\n"
                 "mad.wide.u32 %rd2, %r3, 4, %rd1; st.global.u32 [%rd2+4], %r4; ret; }\n");
    uint32_t *data = harness_alloc(&h, 4 + 4 * 1024), first[1025];
    unsigned different = 0;
    for (uint64_t seed = 1; seed < 8; seed++) {
        h.launch.seed = seed;
        data[0] = 0;
        harness_ok(&h, "k", 8, 128, &data);
        memcpy(first, data, sizeof first);
        data[0] = 0;
        harness_ok(&h, "k", 8, 128, &data);
        assert_memory_equal(first, data, sizeof first);
        h.launch.seed = seed + 100;
        data[0] = 0;
        harness_ok(&h, "k", 8, 128, &data);
        different += memcmp(first, data, sizeof first) != 0;
    }
    assert_true(different > 4);
    harness_free(&h);
}

/* A warp spins until another warp of its block, and a block until another one of a cooperative grid, lets it go. */
static void test_progress(void **state) {
    (void)state;
    harness h;
    harness_load(&h, MODULE
                 ".visible .entry k(.param .u64 data) { .reg .b32 %r<20>; .reg .b64 %rd<10>; .reg .pred %p1; .reg "
                 ".pred %p2; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r6, %ntid.x;\n"
                 "mad.lo.u32 %r3, %r2, %r6, %r1; ld.param.u64 %rd1, [data]; mov.u32 %r7, %nctaid.x; mul.lo.u32 %r7, "
                 "%r7, %r6; sub.u32 %r7, %r7, 1; sub.u32 %r8, %r7, %r3;\n"
                 "WAIT: ld.volatile.global.u32 %r4, [%rd1]; setp.ne.u32 %p1, %r4, %r8; @%p1 bra WAIT; add.u32 %r4, "
                 "%r4, 1; st.volatile.global.u32 [%rd1], %r4; ret; }\n");
    uint32_t *turn = harness_alloc(&h, 4);
    for (uint64_t seed = 0; seed < 3; seed++) { /* the last thread goes first, through all warps and lanes */
        *turn = 0;
        h.launch.seed = seed;
        h.launch.cooperative = false;
        harness_ok(&h, "k", 1, 96, &turn);
        assert_int_equal(*turn, 96);
        *turn = 0;
        h.launch.cooperative = true;
        h.launch.workers = 1 + (uint32_t)seed;
        harness_ok(&h, "k", 4, 40, &turn);
        assert_int_equal(*turn, 160);
    }
    harness_free(&h);
}

/* The order of memory and atomics between blocks: a flag publishes data. */
static void test_publication(void **state) {
    (void)state;
    harness h;
    harness_load(&h, MODULE
                 ".visible .entry k(.param .u64 data) { .reg .b32 %r<20>; .reg .b64 %rd<10>; .reg .pred %p1; .reg "
                 ".pred %p2; mov.u32 %r2, %ctaid.x; ld.param.u64 %rd1, [data]; setp.ne.u32 %p1, %r2, 0;\n"
                 "@%p1 bra READ; st.global.u32 [%rd1+4], 41; st.global.u32 [%rd1+8], 1; fence.acq_rel.gpu; "
                 "st.relaxed.gpu.global.u32 [%rd1], 1; ret;\n"
                 "READ: ld.acquire.gpu.global.u32 %r3, [%rd1]; setp.eq.u32 %p2, %r3, 0; @%p2 bra READ; membar.gl; "
                 "ld.global.u32 %r4, [%rd1+4]; ld.global.u32 %r5, [%rd1+8]; add.u32 %r4, %r4, %r5;\n"
                 "mad.wide.u32 %rd1, %r2, 4, %rd1; st.global.u32 [%rd1+12], %r4; ret; }\n");
    uint32_t *data = harness_alloc(&h, 64);
    h.launch.cooperative = true;
    h.launch.workers = 3;
    harness_ok(&h, "k", 6, 1, &data);
    for (int b = 1; b < 6; b++) assert_int_equal(data[3 + b], 42);
    harness_free(&h);
}

static void test_handwritten(void **state) {
    (void)state;
    harness h;
    harness_load_file(&h, "handwritten.ptx");
    const uint32_t *words = harness_variable(&h, "words");
    const uint64_t *pointers = harness_variable(&h, "pointers"), *pieces = harness_variable(&h, "pieces");
    const float *quads = harness_variable(&h, "quads");
    assert_int_equal(words[2], 3);
    assert_true(quads[2] == 3.0f && quads[4] == 5.0f);
    assert_int_equal(pointers[0], (uint64_t)(uintptr_t)words);
    assert_int_equal(pointers[1], (uint64_t)(uintptr_t)words + 8);
    assert_int_equal(*pieces, (uint64_t)(uintptr_t)words);
    assert_int_equal(*(uint32_t *)harness_variable(&h, "size_of"), 18);
    struct {
        uint32_t *data, n;
    } p = {harness_alloc(&h, 4 * 40), 10};
    harness_ok(&h, "everything", 1, 40, &p);
    for (uint32_t t = 0; t < 40; t++) {
        uint32_t i = t + 1000, v = 10, w;
        bool skipped = i >= 1016;
        if (!skipped) v += 13;
        if (!skipped) {
            v += 5; /* table[1][1] */
            while (v < 100) v += 7;
            while (v < 150) v += 11;
        }
        w = v * 3 + 5;
        w = (w + i) * 2 + 17 + 4 + 18;
        if (p.data[t] != w) fail_msg("thread %u: %u, not %u", t, p.data[t], w);
    }
    const sim_function_info *info = sim_function_get_info(sim_module_find_function(h.module, "everything"));
    assert_int_equal(info->max_threads, 256);
    assert_int_equal(info->parameter_count, 2);
    assert_int_equal(info->parameter_offsets[1], 8);
    assert_int_equal(info->static_shared_bytes, 64);
    harness_free(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_block_barriers),
                                       cmocka_unit_test(test_warp),
                                       cmocka_unit_test(test_atomics),
                                       cmocka_unit_test(test_shared_atomics),
                                       cmocka_unit_test(test_special_registers),
                                       cmocka_unit_test(test_clusters),
                                       cmocka_unit_test(test_seeds),
                                       cmocka_unit_test(test_progress),
                                       cmocka_unit_test(test_publication),
                                       cmocka_unit_test(test_handwritten)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
