/* How fast the simulator executes PTX: thread instructions per second on one host thread, by kind of kernel. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/sim/exec.h"

/* The interpreter asks what is mapped: here one allocation. */
struct sim_memory {
    sim_range range;
};

const sim_range *sim_memory_lookup(sim_memory *memory, uint64_t address) {
    return address >= memory->range.low && address < memory->range.high ? &memory->range : NULL;
}

void sim_memory_describe(sim_memory *memory, uint64_t address, char *text, size_t bytes) {
    (void)memory;
    snprintf(text, bytes, "0x%llx", (unsigned long long)address);
}

#define HEAD                                                                                                           \
    ".version 8.0\n.target sm_80\n.address_size 64\n"                                                                  \
    ".visible .entry k(.param .u64 data, .param .u32 rounds) {\n"                                                      \
    ".reg .pred %p<4>;\n.reg .b32 %r<20>;\n.reg .f32 %f<8>;\n.reg .f64 %d<8>;\n.reg .b64 %a<8>;\n"                     \
    ".shared .align 4 .b8 tile[4096];\n"                                                                               \
    "ld.param.u64 %a0, [data];\nld.param.u32 %r0, [rounds];\n"                                                         \
    "mov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmad.lo.s32 %r4, %r2, %r3, %r1;\n"            \
    "mul.wide.u32 %a1, %r4, 4;\nadd.s64 %a1, %a0, %a1;\nshl.b32 %r5, %r1, 2;\nmov.u32 %r6, tile;\nadd.s32 %r5, %r5, "  \
    "%r6;\n"                                                                                                           \
    "mov.u32 %r7, 0;\nmov.f32 %f0, 0f3F000000;\ncvt.rn.f32.u32 %f1, %r4;\ncvt.rn.f64.u32 %d0, %r4;\nmov.u32 %r8, "     \
    "%r4;\nLOOP:\n"
#define TAIL                                                                                                           \
    "add.u32 %r7, %r7, 1;\nsetp.lt.u32 %p0, %r7, %r0;\n@%p0 bra LOOP;\n"                                               \
    "cvt.rzi.u32.f32 %r9, %f1;\nadd.u32 %r8, %r8, %r9;\nst.global.u32 [%a1], %r8;\nret;\n}\n"

static const struct {
    const char *name, *text;
} kernels[] = {
    {"integer arithmetic", HEAD "add.u32 %r8, %r8, 12345;\nxor.b32 %r8, %r8, %r7;\nshl.b32 %r10, %r8, 3;\nadd.u32 %r8, "
                                "%r8, %r10;\nand.b32 %r11, %r8, 255;\n"
                                "sub.u32 %r8, %r8, %r11;\nmad.lo.u32 %r8, %r8, 3, %r7;\nmax.u32 %r8, %r8, %r7;\n" TAIL},
    {"f32 arithmetic", HEAD
     "fma.rn.f32 %f1, %f1, %f0, %f0;\nadd.f32 %f2, %f1, %f0;\nmul.f32 %f3, %f2, %f0;\nfma.rn.f32 %f1, %f3, %f0, %f2;\n"
     "sub.f32 %f4, %f1, %f0;\nmul.f32 %f1, %f4, %f0;\nfma.rn.f32 %f1, %f1, %f0, %f4;\nadd.f32 %f1, %f1, %f0;\n" TAIL},
    {"f64 arithmetic", HEAD "fma.rn.f64 %d0, %d0, 0d3FE0000000000000, 0d3FE0000000000000;\nadd.f64 %d1, %d0, "
                            "%d0;\nmul.f64 %d0, %d1, 0d3FD0000000000000;\n"
                            "sub.f64 %d0, %d0, %d1;\nfma.rn.f64 %d0, %d0, 0d3FE0000000000000, %d1;\nadd.f64 %d0, %d0, "
                            "0d3FE0000000000000;\n" TAIL},
    {"global memory, neighbours",
     HEAD "ld.global.u32 %r9, [%a1];\nadd.u32 %r9, %r9, %r7;\nst.global.u32 [%a1], %r9;\n" TAIL},
    {"shared memory", HEAD "st.shared.u32 [%r5], %r8;\nld.shared.u32 %r9, [%r5];\nadd.u32 %r8, %r9, %r7;\n" TAIL},
    {"barriers", HEAD "bar.sync 0;\nadd.u32 %r8, %r8, %r7;\n" TAIL},
    {"shuffles", HEAD "shfl.sync.bfly.b32 %r9, %r8, 1, 31, -1;\nadd.u32 %r8, %r9, %r7;\n" TAIL},
    {"global atomics", HEAD "atom.global.add.u32 %r9, [%a1], %r8;\nadd.u32 %r8, %r9, %r7;\n" TAIL},
    {"divergent branches", HEAD "and.b32 %r9, %r8, 3;\nsetp.eq.u32 %p1, %r9, 0;\n@%p1 bra ONE;\nadd.u32 %r8, %r8, "
                                "7;\nxor.b32 %r8, %r8, %r7;\nbra.uni BOTH;\n"
                                "ONE:\nshr.u32 %r8, %r8, 1;\nadd.u32 %r8, %r8, %r4;\nBOTH:\n" TAIL},
};

static double run(const char *text, uint32_t blocks, uint32_t threads, uint32_t rounds, void *data, size_t bytes) {
    char log[512];
    sim_module *module;
    if (sim_module_load(text, strlen(text), 90, &module, log, sizeof log) != CUDA_SUCCESS) {
        fprintf(stderr, "%s\n", log);
        exit(1);
    }
    sim_memory memory = {{(uint64_t)(uintptr_t)data, (uint64_t)(uintptr_t)data + bytes, true, NULL}};
    struct {
        void *data;
        uint32_t rounds;
    } p = {data, rounds};
    sim_launch launch = {.function = sim_module_function_at(module, 0),
                         .memory = &memory,
                         .grid = {blocks, 1, 1},
                         .block = {threads, 1, 1},
                         .parameters = &p,
                         .sm_count = 1,
                         .warp_size = 32,
                         .target_sm = 90};
    sim_fault fault = {0};
    uint64_t instructions = 0, begin = mu_now_ns();
    if (sim_launch_run(&launch, &fault, &instructions) != CUDA_SUCCESS) {
        fprintf(stderr, "%s\n", fault.message);
        exit(1);
    }
    double seconds = (double)(mu_now_ns() - begin) * 1e-9;
    sim_module_free(module);
    return (double)instructions / seconds;
}

int main(int argc, char **argv) {
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2000;
    size_t bytes = 4u * 256 * 64;
    void *data = calloc(1, bytes);
    if (!data) return 1;
    printf("%-28s %10s\n", "kernel", "M thread instructions/s");
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
        printf("%-28s %10.0f\n", kernels[k].name, run(kernels[k].text, 16, 256, rounds, data, bytes) * 1e-6);
    printf("%-28s %10.0f\n", "integer, blocks of 1 thread", run(kernels[0].text, 64, 1, rounds, data, bytes) * 1e-6);
    free(data);
    return 0;
}
