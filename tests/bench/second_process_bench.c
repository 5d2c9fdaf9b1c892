/* What the disk cache saves a process: a program of many kernels is made twice, each time in a new process, with an
 * empty cache directory first.
 *
 *     CUDA_CACHE_DISABLE=1 second_process_bench [--driver cuda|sim] [--kernels N] [--runs R] [--json]
 *
 * CUDA_CACHE_DISABLE=1 turns off the driver's own cache, which would serve the first process what it kept of an earlier
 * measurement; the bench says when it is not set. `make_ns` is muster_program_from_ptx, compiling and loading included;
 * `total_ns` adds opening the runtime and finding every kernel. Medians over R pairs of processes. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "muster.h"
#include "tests/bench/measure.h"
#include "tests/cache/scratch.h"

enum { KERNEL_BYTES = 6000, STEPS = 24 };

typedef struct result {
    uint64_t make_ns, total_ns, compiles;
} result;

static const char *driver = "cuda";
static unsigned kernels = 200, runs = 5;

/* Kernels that take a compiler some time: a chain of dependent arithmetic each, none like another. */
static char *generate(void) {
    char *ptx = malloc((size_t)kernels * KERNEL_BYTES + 200);
    if (!ptx) abort();
    size_t used = (size_t)sprintf(ptx, ".version 7.0\n.target sm_75\n.address_size 64\n");
    for (unsigned k = 0; k < kernels; k++) {
        used +=
            (size_t)sprintf(ptx + used,
                            ".visible .entry k%u(.param .u64 out, .param .u32 n)\n{\n    .reg .pred %%p<2>;\n"
                            "    .reg .b32 %%r<8>;\n    .reg .f32 %%f<8>;\n    .reg .b64 %%rd<4>;\n"
                            "    ld.param.u64 %%rd1, [out];\n    ld.param.u32 %%r1, [n];\n    mov.u32 %%r2, %%tid.x;\n"
                            "    cvt.rn.f32.u32 %%f1, %%r2;\n    mov.u32 %%r3, 0;\nagain%u:\n",
                            k, k);
        for (unsigned s = 0; s < STEPS; s++)
            used +=
                (size_t)sprintf(ptx + used,
                                "    fma.rn.f32 %%f2, %%f1, 0f3F%06X, 0f3E%06X;\n    sqrt.rn.f32 %%f3, %%f2;\n"
                                "    max.f32 %%f1, %%f3, %%f2;\n    mad.lo.u32 %%r2, %%r2, %u, %%r3;\n",
                                (k * 7919 + s * 104729) & 0x7fffff, (k * 31 + s * 1299709) & 0x7fffff, 2 * k + 3 + s);
        used +=
            (size_t)sprintf(ptx + used,
                            "    add.u32 %%r3, %%r3, 1;\n    setp.lt.u32 %%p1, %%r3, %%r1;\n    @%%p1 bra again%u;\n"
                            "    cvt.rni.u32.f32 %%r4, %%f1;\n    add.u32 %%r5, %%r4, %%r2;\n"
                            "    st.global.u32 [%%rd1], %%r5;\n    ret;\n}\n",
                            k);
    }
    return ptx;
}

static int fail(const muster_error *error) {
    fprintf(stderr, "second_process_bench: %s\n", error->message);
    return 1;
}

/* The process that is measured: its result goes to standard output as bytes. */
static int child(const char *directory) {
    muster_config config = {.struct_size = sizeof config, .driver = driver, .cache_dir = directory, .device_count = 1};
    muster_runtime *runtime;
    muster_program *program;
    muster_kernel *kernel;
    muster_error error;
    muster_cache_stats stats = {.struct_size = sizeof stats};
    char *ptx = generate();
    uint64_t begin = mu_now_ns();
    if (muster_runtime_create(&config, &runtime, &error)) return fail(&error);
    uint64_t start = mu_now_ns();
    if (muster_program_from_ptx(runtime, ptx, 0, "many kernels", &program, &error)) return fail(&error);
    result found = {.make_ns = mu_now_ns() - start};
    for (unsigned k = 0; k < kernels; k++) {
        char name[16];
        snprintf(name, sizeof name, "k%u", k);
        if (muster_program_kernel(program, name, &kernel, &error)) return fail(&error);
    }
    found.total_ns = mu_now_ns() - begin;
    if (muster_cache_get_stats(runtime, &stats, &error)) return fail(&error);
    found.compiles = stats.compiles;
    if (muster_runtime_destroy(runtime, MUSTER_FOREVER, &error)) return fail(&error);
    free(ptx);
    return write(STDOUT_FILENO, &found, sizeof found) == sizeof found ? 0 : 1;
}

static bool run_child(const char *directory, result *found) {
    int told[2], status;
    char count[16];
    snprintf(count, sizeof count, "%u", kernels);
    if (pipe(told) != 0) return false;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(told[1], STDOUT_FILENO);
        execl("/proc/self/exe", "second_process_bench", "--driver", driver, "--kernels", count, "--child", directory,
              (char *)NULL);
        _exit(127);
    }
    close(told[1]);
    bool whole = pid > 0 && read(told[0], found, sizeof *found) == sizeof *found;
    close(told[0]);
    if (pid > 0) waitpid(pid, &status, 0);
    return whole;
}

static void row(measure_report *report, const char *name, measure *make, measure *total) {
    const measure_figure figures[] = {{"make_ns", measure_percentile(make, 50)},
                                      {"total_ns", measure_percentile(total, 50)}};
    measure_row(report, name, figures, 2);
}

static int usage(void) {
    fprintf(stderr,
            "usage: CUDA_CACHE_DISABLE=1 second_process_bench [--driver cuda|sim] [--kernels N] [--runs R] [--json]\n");
    return 2;
}

int main(int argc, char **argv) {
    static measure make[2], total[2];
    measure_report report = {0};
    const char *directory = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            report.json = true;
        else if (i + 1 == argc)
            return usage();
        else if (strcmp(argv[i], "--driver") == 0)
            driver = argv[++i];
        else if (strcmp(argv[i], "--kernels") == 0)
            kernels = (unsigned)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--runs") == 0)
            runs = (unsigned)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--child") == 0)
            directory = argv[++i];
        else
            return usage();
    }
    if (kernels == 0 || kernels > 10000 || runs == 0 || runs > MEASURE_MAX_RUNS) return usage();
    if (directory) return child(directory);
    const char *disabled = getenv("CUDA_CACHE_DISABLE");
    if (strcmp(driver, "cuda") == 0 && !(disabled && strcmp(disabled, "1") == 0))
        fprintf(stderr, "second_process_bench: CUDA_CACHE_DISABLE=1 is not set; the driver's own cache takes part\n");
    for (unsigned r = 0; r < runs; r++) {
        const char *path = scratch_make();
        for (int process = 0; process < 2; process++) {
            result found;
            if (!run_child(path, &found)) return 1;
            if (found.compiles != (process ? 0 : 1)) {
                fprintf(stderr, "second_process_bench: process %d compiled %d times\n", process + 1,
                        (int)found.compiles);
                return 1;
            }
            measure_add(&make[process], (double)found.make_ns);
            measure_add(&total[process], (double)found.total_ns);
        }
        scratch_remove(path);
    }
    measure_begin(&report, "a program in a first and a second process");
    row(&report, "first process", &make[0], &total[0]);
    row(&report, "second process", &make[1], &total[1]);
    const measure_figure ratio[] = {
        {"make_ratio", measure_percentile(&make[0], 50) / measure_percentile(&make[1], 50)},
        {"total_ratio", measure_percentile(&total[0], 50) / measure_percentile(&total[1], 50)}};
    measure_row(&report, "first / second", ratio, 2);
    measure_end(&report);
    return 0;
}
