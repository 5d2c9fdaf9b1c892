/* Several processes and one disk cache, through muster.h.
 *
 *     program_process_test [KILLS]        20 kills by default; 200 and more by hand
 *
 * Each process is this program again, told by its arguments what to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "muster.h"
#include "tests/cache/scratch.h"

enum { PROGRAMS = 12, PROCESSES = 8 };

static unsigned kills = 20;
static char self[4096];

/* ----------------------------------------------------------------------------------------------------- a process -- */

static muster_runtime *open_runtime(const char *directory) {
    muster_config config = {.struct_size = sizeof config,
                            .driver = "sim",
                            .sim = "{\"devices\": [{\"preset\": \"H200\"}, {\"preset\": \"T4\"}]}",
                            .cache_dir = directory,
                            .cache_bytes = 1 << 20};
    muster_runtime *runtime;
    muster_error error;
    if (muster_runtime_create(&config, &runtime, &error) == MUSTER_OK) return runtime;
    fprintf(stderr, "%s\n", error.message);
    exit(3);
}

static muster_program *make(muster_runtime *runtime, unsigned number) {
    char ptx[2000];
    muster_program *program;
    muster_error error;
    snprintf(ptx, sizeof ptx,
             ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry store(.param .u64 out)\n{\n"
             "    .reg .b32 %%r<2>;\n    .reg .b64 %%rd<2>;\n    ld.param.u64 %%rd1, [out];\n    mov.u32 %%r1, %u;\n"
             "    st.global.u32 [%%rd1], %%r1;\n    ret;\n}\n//%0*u\n",
             number, (int)(100 + number % 100 * 10), number);
    if (muster_program_from_ptx(runtime, ptx, 0, "stored", &program, &error) == MUSTER_OK) return program;
    fprintf(stderr, "%s\n", error.message);
    exit(4);
}

/* What the program stores on a device. */
static uint32_t stored(muster_runtime *runtime, muster_program *program, int device) {
    muster_kernel *kernel;
    muster_buffer *out;
    muster_graph *graph;
    muster_run *run;
    muster_error error;
    uint32_t value = UINT32_MAX;
    if (muster_program_kernel(program, "store", &kernel, &error) ||
        muster_buffer_create(runtime, 4, &value, &out, &error) || muster_graph_create(runtime, &graph, &error))
        exit(5);
    muster_arg arg = muster_buffer_arg(out, MUSTER_WRITE);
    muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                .kernel = kernel,
                                .grid = {1, 0, 0},
                                .block = {1, 0, 0},
                                .pin_device = 1,
                                .device = device,
                                .arg_count = 1,
                                .args = &arg};
    void *pointer;
    if (muster_graph_dispatch(graph, &dispatch, NULL, &error) || muster_submit(runtime, graph, &run, &error) ||
        muster_run_wait(run, 60000000000u, &error) ||
        muster_buffer_acquire(out, 0, 4, MUSTER_READ, 60000000000u, &pointer, &error))
        exit(6);
    muster_buffer_release(out, pointer, &error);
    return value;
}

/* Makes every program and runs it on both devices; then the number of compiles, 100 for more, is the exit status. */
static int make_all(const char *directory) {
    muster_runtime *runtime = open_runtime(directory);
    for (unsigned i = 0; i < PROGRAMS; i++) {
        muster_program *program = make(runtime, i);
        for (int device = 0; device < 2; device++)
            if (stored(runtime, program, device) != i) return 101;
    }
    muster_cache_stats stats = {.struct_size = sizeof stats};
    if (muster_cache_get_stats(runtime, &stats, NULL) || stats.disk_damaged || stats.disk_store_failures) return 102;
    if (muster_runtime_destroy(runtime, 60000000000u, NULL)) return 103;
    return stats.compiles > 100 ? 100 : (int)stats.compiles;
}

/* Writes new entries until it is killed, and a byte for each. */
static int write_for_ever(const char *directory, unsigned seed) {
    muster_runtime *runtime = open_runtime(directory);
    for (unsigned i = 0;; i++) {
        muster_program_destroy(make(runtime, i % 3 == 0 ? i % PROGRAMS : seed * 100000 + i));
        if (write(STDOUT_FILENO, "", 1) != 1) return 104;
    }
}

/* ----------------------------------------------------------------------------------------------------- the tests -- */

static pid_t start(const char *what, const char *directory, unsigned seed, int told) {
    char number[16];
    snprintf(number, sizeof number, "%u", seed);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid) return pid;
    if (told >= 0) dup2(told, STDOUT_FILENO);
    execl(self, self, what, directory, number, (char *)NULL);
    _exit(105);
}

static int finish(pid_t pid) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void the_second_process_compiles_nothing(void **state) {
    (void)state;
    const char *path = scratch_make();
    assert_int_equal(finish(start("check", path, 0, -1)), 2 * PROGRAMS);
    assert_int_equal(finish(start("check", path, 0, -1)), 0);
    scratch_remove(path);
}

/* At the same time: each compiles at most all of it, every result is right, nothing is found damaged. */
static void eight_processes_share_a_directory(void **state) {
    (void)state;
    const char *path = scratch_make();
    pid_t pids[PROCESSES];
    for (unsigned i = 0; i < PROCESSES; i++) pids[i] = start("check", path, i, -1);
    for (int i = 0; i < PROCESSES; i++) assert_in_range(finish(pids[i]), 0, 2 * PROGRAMS);
    assert_int_equal(finish(start("check", path, 0, -1)), 0);
    scratch_remove(path);
}

static void kills_leave_a_usable_cache(void **state) {
    (void)state;
    const char *path = scratch_make();
    unsigned random = 12345;
    for (unsigned round = 0; round < kills; round++) {
        int told[2], status;
        char byte;
        assert_int_equal(pipe(told), 0);
        pid_t pid = start("write", path, round + 1, told[1]);
        close(told[1]);
        random = random * 1664525u + 1013904223u;
        for (unsigned i = 0; i < 1 + (random >> 16) % 8; i++) assert_int_equal(read(told[0], &byte, 1), 1);
        for (volatile unsigned i = 0; i < (random >> 8) % 200000; i++) continue; /* somewhere within the next write */
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        close(told[0]);
    }
    assert_in_range(finish(start("check", path, 0, -1)), 0, 2 * PROGRAMS);
    assert_int_equal(finish(start("check", path, 0, -1)), 0);
    scratch_remove(path);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_process_compiles_nothing),
        cmocka_unit_test(eight_processes_share_a_directory),
        cmocka_unit_test(kills_leave_a_usable_cache),
    };
    setenv("MUSTER_CACHE_DIR", "", 1); /* never the user's own */
    if (argc == 4 && strcmp(argv[1], "check") == 0) return make_all(argv[2]);
    if (argc == 4 && strcmp(argv[1], "write") == 0) return write_for_ever(argv[2], (unsigned)atoi(argv[3]));
    if (argc > 1) kills = (unsigned)atoi(argv[1]);
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
