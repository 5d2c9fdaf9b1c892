/* A kernel faults on one device while all of them work, each time in a process of its own: the runtime ends as docs/errors.md says,
 * nothing hangs, and what counts as done is right. On several GPUs, and on several actors of one.
 *
 *     device_fault_test [cuda|sim]
 *
 * Where there are fewer than two GPUs, or none, the tests that need them say so and are skipped. */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "muster.h"
#include "tests/scheduler/kernels.h"

enum { MAX_RUNS = 24, MAX_DEVICES = 32, SKIPPED = 77, HANGS = 99 };

static const uint64_t long_ns = 60000000000u; /* for what must end */
static const int child_ms = 240000;

static const char *driver = "cuda";
static uint32_t runs = MAX_RUNS, jobs = 100, words = 1 << 13; /* of each device; of a run; of a buffer */

/* ------------------------------------------------------------------------------------------------------- the child -- */

typedef struct setting {
    uint32_t least_devices, actors;
    bool last; /* the last device faults, or the first */
    enum { NO_FAULT, ILLEGAL, TRAP } fault;
} setting;

static muster_error reason;

/* Ends the child, which is the test's failure. */
static void wrong(const char *what) {
    fprintf(stderr, "%s: %s\n", what, reason.message);
    fflush(stderr);
    _exit(1);
}

static void must(muster_status status, const char *what) {
    if (status) wrong(what);
}

typedef struct piece { /* a run that belongs to one device, and what it leaves in the application's memory */
    muster_buffer *buffer;
    muster_graph *graph;
    muster_run *run; /* NULL: its submit was refused */
    uint32_t *words;
} piece;

typedef struct machine {
    muster_runtime *runtime;
    muster_program *program;
    uint32_t devices;
    piece pieces[MAX_RUNS * MAX_DEVICES];
    uint32_t expected;
    uint32_t right, ended, refused;
} machine;

static muster_job add(const machine *machine, muster_graph *graph, const char *entry, uint32_t device, uint32_t blocks,
                      const muster_arg *args, uint32_t arg_count, const muster_job *after) {
    muster_kernel *kernel;
    muster_job job;
    must(muster_program_kernel(machine->program, entry, &kernel, &reason), entry);
    const muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                      .kernel = kernel,
                                      .grid = {blocks, 1, 1},
                                      .block = {256, 1, 1},
                                      .pin_device = 1,
                                      .device = (int)device,
                                      .arg_count = arg_count,
                                      .args = args,
                                      .after_count = after ? 1 : 0,
                                      .after = after};
    must(muster_graph_dispatch(graph, &dispatch, &job, &reason), "adding a job");
    return job;
}

static muster_job add_affine(const machine *machine, muster_graph *graph, muster_buffer *buffer, uint32_t device,
                             uint32_t term, const muster_job *after) {
    const muster_arg args[] = {muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(3), muster_u32_arg(term),
                               muster_u32_arg(words)};
    return add(machine, graph, "affine", device, words / 256, args, 4, after);
}

static void open_piece(machine *machine, piece *piece, uint32_t device) {
    piece->words = calloc(words, sizeof *piece->words);
    must(muster_buffer_create(machine->runtime, 4 * words, piece->words, &piece->buffer, &reason), "making a buffer");
    must(muster_graph_create(machine->runtime, &piece->graph, &reason), "making a graph");
    machine->expected = 0;
    for (uint32_t j = 0; j < jobs; j++) {
        add_affine(machine, piece->graph, piece->buffer, device, j, NULL);
        machine->expected = machine->expected * 3 + j;
    }
    must(muster_graph_read_back(piece->graph, piece->buffer, 0, 0, NULL, &reason), "adding a read-back");
}

/* Exits when the machine is not the one that is wanted. */
static void open_machine(machine *machine, const setting *setting) {
    const muster_config config = {.struct_size = sizeof config,
                                  .driver = driver,
                                  .sim = strcmp(driver, "sim") == 0 ? "{\"devices\": 3}" : NULL,
                                  .device_count = setting->actors > 1 ? 1 : 0,
                                  .actors_per_device = setting->actors};
    muster_status status = muster_runtime_create(&config, &machine->runtime, &reason);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) {
        fprintf(stderr, "SKIPPED: %s\n", reason.message);
        _exit(SKIPPED);
    }
    must(status, "opening the runtime");
    machine->devices = (uint32_t)muster_device_count(machine->runtime);
    if (machine->devices < setting->least_devices) {
        fprintf(stderr, "SKIPPED: %u GPU, and this takes %u\n", machine->devices, setting->least_devices);
        _exit(SKIPPED);
    }
    must(muster_program_from_ptx(machine->runtime, test_kernels_ptx, 0, "test kernels", &machine->program, &reason),
         "loading the kernels");
    for (uint32_t i = 0; i < runs * machine->devices; i++)
        open_piece(machine, &machine->pieces[i], i % machine->devices);
}

static void submit_pieces(machine *machine, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; i++) {
        piece *piece = &machine->pieces[i];
        muster_status status = muster_submit(machine->runtime, piece->graph, &piece->run, &reason);
        if (status && status != MUSTER_KERNEL_FAULT) wrong("submitting");
    }
}

/* A job that faults between two of device 0, which must both count for what they are. */
static muster_run *submit_fault(const machine *machine, const setting *setting, muster_buffer **buffer) {
    uint32_t device = setting->last ? machine->devices - 1 : 0;
    muster_graph *graph;
    muster_run *run;
    must(muster_buffer_create(machine->runtime, 4 * words, NULL, buffer, &reason), "making a buffer");
    must(muster_graph_create(machine->runtime, &graph, &reason), "making a graph");
    muster_job before = add_affine(machine, graph, *buffer, 0, 1, NULL);
    const muster_arg args[] = {muster_buffer_arg(*buffer, MUSTER_READ_WRITE), muster_u64_arg(1ull << 40)};
    muster_job fault = setting->fault == TRAP ? add(machine, graph, "trapped", device, 1, NULL, 0, &before)
                                              : add(machine, graph, "illegal", device, 1, args, 2, &before);
    add_affine(machine, graph, *buffer, 0, 1, &fault);
    must(muster_submit(machine->runtime, graph, &run, &reason), "submitting the fault");
    muster_graph_destroy(graph);
    return run;
}

static void expect_fault(muster_run *run) {
    muster_status status = muster_run_wait(run, long_ns, &reason);
    if (status == MUSTER_TIMEOUT) _exit(HANGS);
    if (muster_status_recovery(status) != MUSTER_RECOVERY_DEVICE_LOST) wrong("the run that faults ends otherwise");
    for (muster_job job = 1; job < 3; job++) {
        muster_job_result result = {.struct_size = sizeof result};
        must(muster_run_job_result(run, job, &result, &reason), "asking for a result");
        if (result.status != MUSTER_KERNEL_FAULT && result.status != MUSTER_DEVICE_LOST &&
            (job == 1 || result.status != MUSTER_PREDECESSOR_FAILED)) {
            fprintf(stderr, "job %u: %s\n", job, muster_status_name(result.status));
            wrong("a job at or after the fault ends otherwise");
        }
    }
    muster_run_destroy(run);
}

/* Everything ends; what counts as done is right. */
static void finish_pieces(machine *machine, bool faulted) {
    for (uint32_t i = 0; i < runs * machine->devices; i++) {
        piece *piece = &machine->pieces[i];
        if (!piece->run) {
            machine->refused++;
            continue;
        }
        muster_status status = muster_run_wait(piece->run, long_ns, &reason);
        if (status == MUSTER_TIMEOUT) _exit(HANGS);
        if (status && (!faulted || (muster_status_recovery(status) != MUSTER_RECOVERY_DEVICE_LOST &&
                                    status != MUSTER_PREDECESSOR_FAILED)))
            wrong("a run ends otherwise");
        machine->ended += status != MUSTER_OK;
        machine->right += status == MUSTER_OK;
        for (uint32_t w = 0; w < words && !status; w++)
            if (piece->words[w] != machine->expected) {
                fprintf(stderr, "run %u, word %u: %u, not %u\n", i, w, piece->words[w], machine->expected);
                wrong("a run that succeeded left a wrong result");
            }
        muster_run_destroy(piece->run);
    }
}

static void expect_latched(const machine *machine, muster_buffer *lost) {
    muster_program *program;
    muster_run *run;
    void *pointer;
    for (int i = 0; i < 3; i++)
        if (muster_submit(machine->runtime, machine->pieces[0].graph, &run, &reason) != MUSTER_KERNEL_FAULT)
            wrong("a submit after the fault");
    muster_status status = muster_program_from_ptx(machine->runtime, test_kernels_ptx, 0, "late", &program, &reason);
    if (muster_status_recovery(status) != MUSTER_RECOVERY_DEVICE_LOST) wrong("a program after the fault");
    if (!muster_buffer_acquire(lost, 0, 0, MUSTER_READ, long_ns, &pointer, &reason))
        wrong("content that only devices had is acquired");
}

static void run_child(const setting *setting) {
    static machine machine;
    open_machine(&machine, setting);
    uint32_t all = runs * machine.devices;
    submit_pieces(&machine, 0, all / 2);
    muster_buffer *buffer = NULL;
    muster_run *fault = setting->fault ? submit_fault(&machine, setting, &buffer) : NULL;
    submit_pieces(&machine, all / 2, all);
    if (fault) expect_fault(fault);
    finish_pieces(&machine, setting->fault);
    if (fault) expect_latched(&machine, buffer);
    muster_status status = muster_runtime_destroy(machine.runtime, long_ns, &reason);
    if (status == MUSTER_TIMEOUT) _exit(HANGS);
    must(status, "destroying the runtime");
    fprintf(stderr, "%u devices: of %u runs %u ended well, %u did not, %u were refused\n", machine.devices, all,
            machine.right, machine.ended, machine.refused);
    fflush(stderr);
    _exit(0);
}

/* ------------------------------------------------------------------------------------------------------ the parent -- */

/* The child's exit status; HANGS when it has not ended in time, and it is killed then. */
static int in_a_process(const setting *setting) {
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        run_child(setting);
    }
    close(ends[1]); /* the child's end closes with it */
    struct pollfd hung_up = {.fd = ends[0], .events = POLLIN};
    bool ended = poll(&hung_up, 1, child_ms) > 0;
    if (!ended) kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    close(ends[0]);
    if (!ended) return HANGS;
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "the process was ended by signal %d\n", WTERMSIG(status));
        return -WTERMSIG(status);
    }
    return WEXITSTATUS(status);
}

static void fault(const setting *setting) {
    int status = in_a_process(setting);
    if (status == SKIPPED) skip();
    assert_int_equal(status, 0);
    /* The next process finds devices that work. */
    struct setting after = *setting;
    after.fault = NO_FAULT;
    assert_int_equal(in_a_process(&after), 0);
}

static void an_illegal_address_on_the_last_gpu(void **state) {
    (void)state;
    fault(&(setting){.least_devices = 2, .actors = 1, .last = true, .fault = ILLEGAL});
}
static void an_illegal_address_on_the_first_gpu(void **state) {
    (void)state;
    fault(&(setting){.least_devices = 2, .actors = 1, .fault = ILLEGAL});
}
static void a_trap_on_the_last_gpu(void **state) {
    (void)state;
    fault(&(setting){.least_devices = 2, .actors = 1, .last = true, .fault = TRAP});
}
static void a_trap_on_the_first_gpu(void **state) {
    (void)state;
    fault(&(setting){.least_devices = 2, .actors = 1, .fault = TRAP});
}
static void an_illegal_address_on_one_of_three_actors(void **state) {
    (void)state;
    fault(&(setting){.actors = 3, .last = true, .fault = ILLEGAL});
}
static void a_trap_on_one_of_three_actors(void **state) {
    (void)state;
    fault(&(setting){.actors = 3, .last = true, .fault = TRAP});
}

int main(int argc, char **argv) {
    if (argc > 1) driver = argv[1];
    if (strcmp(driver, "sim") == 0) runs = 8, jobs = 20, words = 1 << 10;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_illegal_address_on_the_last_gpu),
        cmocka_unit_test(an_illegal_address_on_the_first_gpu),
        cmocka_unit_test(a_trap_on_the_last_gpu),
        cmocka_unit_test(a_trap_on_the_first_gpu),
        cmocka_unit_test(an_illegal_address_on_one_of_three_actors),
        cmocka_unit_test(a_trap_on_one_of_three_actors),
    };
    return cmocka_run_group_tests_name("faults on one of several devices", tests, NULL, NULL);
}
