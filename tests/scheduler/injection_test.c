/* Host allocations and driver calls fail, one in each run of a small program that uses all of muster.h: what is reported is an
 * error of the right kind, what succeeds is right, nothing hangs, and nothing is left behind. Each place that allocates is tried
 * at its first six allocations and at every doubling after that, each driver call at its first eight and then ever more seldom. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "device/driver.h"
#include "device/sim/sim.h"
#include "tests/scheduler/callbacks.h"
#include "tests/scheduler/failing_memory.h"

enum { ELEMENTS = 700, THREADS = 64, BINS = 5 };

/* Of the driver calls, every so manieth. */
enum { STRIDE = MU_TSAN || MU_ASAN ? 11 : 1 };

/* The two kernels that the program needs, cut out of test_kernels_ptx: each run compiles them. */
static char program_text[16384];

static void cut_out_entries(const char *const *names, int count) {
    const char *header = strstr(test_kernels_ptx, "\n.version"), *first = strstr(test_kernels_ptx, ".visible .entry");
    size_t used = (size_t)snprintf(program_text, sizeof program_text, "%.*s", (int)(first - header), header);
    for (int i = 0; i < count; i++) {
        char start[64];
        snprintf(start, sizeof start, ".visible .entry %s(", names[i]);
        const char *entry = strstr(test_kernels_ptx, start), *end = entry ? strstr(entry, "\n}") : NULL;
        assert_non_null(end);
        used +=
            (size_t)snprintf(program_text + used, sizeof program_text - used, "%.*s\n", (int)(end + 2 - entry), entry);
        assert_true(used < sizeof program_text);
    }
}

/* What is tried at the moment. A run that hangs ends the whole test, saying which: nothing can be cleaned up then. */
static char trying[FIXTURE_SPEC_BYTES];
enum { HANG_SECONDS = MU_TSAN || MU_ASAN ? 150 : 50 };

static void hangs(int signal) {
    (void)signal;
    static const char words[] = "hangs: ";
    if (write(STDERR_FILENO, words, sizeof words - 1) < 0 || write(STDERR_FILENO, trying, strlen(trying)) < 0 ||
        write(STDERR_FILENO, "\n", 1) < 0)
        _exit(3);
    _exit(2);
}

/* How far the program came. */
typedef struct outcome {
    muster_status status; /* of the first call that failed */
    muster_error error;   /* its error */
    muster_error last;    /* filled by every call */
    bool wrong;           /* all succeeded, but the result is not right */
} outcome;

static bool failed(outcome *outcome, muster_status status) {
    if (outcome->status == MUSTER_OK && status != MUSTER_OK) {
        outcome->status = status;
        outcome->error = outcome->last;
    }
    return status != MUSTER_OK;
}

static uint64_t errors_reported; /* runs of the program that ended with one */

typedef struct parts {
    muster_program *program;
    muster_kernel *mix, *sum;
    muster_buffer *in, *out, *acc;
    muster_graph *graph;
    muster_run *run;
} parts;

static muster_status increment(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)user, (void)count, (void)error;
    for (int i = 0; i < BINS; i++) ((uint64_t *)pointers[0])[i]++;
    return MUSTER_OK;
}

static muster_status enqueue_nothing(void *user, const muster_enqueue_context *context, muster_error *error) {
    (void)user, (void)context, (void)error;
    return MUSTER_OK;
}

/* The callbacks, after everything else. */
static bool build_callbacks(const parts *parts, outcome *out) {
    const muster_arg args[2] = {muster_buffer_arg(parts->acc, MUSTER_READ_WRITE), muster_scratch_arg(256)};
    const muster_host_job host = {.struct_size = sizeof host, .run = increment, .arg_count = 1, .args = args};
    const muster_enqueue_job enqueue = {
        .struct_size = sizeof enqueue, .enqueue = enqueue_nothing, .arg_count = 2, .args = args};
    return !failed(out, muster_graph_enqueue(parts->graph, &enqueue, NULL, &out->last)) &&
           !failed(out, muster_graph_host(parts->graph, &host, NULL, &out->last)) &&
           !failed(out, muster_graph_enqueue(parts->graph, &enqueue, NULL, &out->last)) &&
           !failed(out, muster_graph_read_back(parts->graph, parts->acc, 0, 0, NULL, &out->last));
}

static bool build(muster_runtime *runtime, parts *parts, uint32_t input[ELEMENTS], outcome *out) {
    muster_error *error = &out->last;
    muster_job job[4];
    if (failed(out, muster_program_from_ptx(runtime, program_text, 0, "kernels", &parts->program, error)) ||
        failed(out, muster_program_kernel(parts->program, "mix32", &parts->mix, error)) ||
        failed(out, muster_program_kernel(parts->program, "sum_u64", &parts->sum, error)) ||
        failed(out, muster_buffer_create(runtime, 4 * ELEMENTS, input, &parts->in, error)) ||
        failed(out, muster_buffer_create(runtime, 4 * ELEMENTS, NULL, &parts->out, error)) ||
        failed(out, muster_buffer_create(runtime, 8 * BINS, NULL, &parts->acc, error)) ||
        failed(out, muster_graph_create(runtime, &parts->graph, error)))
        return false;
    muster_arg block_out = muster_block_cut(muster_buffer_arg(parts->out, MUSTER_WRITE), 4 * THREADS);
    muster_arg block_in = muster_block_cut(muster_buffer_arg(parts->in, MUSTER_READ), 4 * THREADS);
    uint32_t blocks = (ELEMENTS + THREADS - 1) / THREADS;
    muster_dispatch mix =
        fixture_dispatch(parts->mix, blocks, THREADS,
                         ARGS(block_out, block_in, muster_u32_arg(3), muster_shard_offset_arg(THREADS, ELEMENTS, 4),
                              muster_shard_count_arg(THREADS, ELEMENTS, 4)));
    block_in.buffer = parts->out;
    muster_dispatch sum = fixture_dispatch(
        parts->sum, blocks, THREADS,
        ARGS(muster_sum_arg(parts->acc, MUSTER_U64), muster_u32_arg(BINS), block_in, muster_u32_arg(9),
             muster_shard_offset_arg(THREADS, ELEMENTS, 8), muster_shard_count_arg(THREADS, ELEMENTS, 8)));
    mix.flags = sum.flags = MUSTER_DISPATCH_SHARDED;
    uint32_t scalar = 4;
    return !failed(out, muster_graph_dispatch(parts->graph, &mix, &job[0], error)) &&
           !failed(out, muster_graph_fill(parts->graph, parts->out, 0, 64, 5, 4, &job[1], error)) &&
           !failed(out, muster_graph_copy(parts->graph, parts->out, 1024, parts->out, 0, 512, &job[2], error)) &&
           !failed(out, muster_graph_dispatch(parts->graph, &sum, &job[3], error)) && build_callbacks(parts, out) &&
           !failed(out, muster_graph_after(parts->graph, job[3], job[0], error)) &&
           !failed(out, muster_graph_set_argument(parts->graph, job[0], 2, &scalar, sizeof scalar, error));
}

/* Two runs, the second while the first may be unfinished, and the result home. */
static bool work(muster_runtime *runtime, parts *parts, uint64_t result[BINS], outcome *out) {
    muster_error *error = &out->last;
    muster_run *second = NULL;
    void *pointer;
    if (failed(out, muster_submit(runtime, parts->graph, &parts->run, error))) return false;
    if (!failed(out, muster_submit(runtime, parts->graph, &second, error)))
        failed(out, muster_run_wait(second, fixture_wait_ns, error));
    muster_run_destroy(second);
    failed(out, muster_run_wait(parts->run, fixture_wait_ns, error));
    muster_status status =
        muster_buffer_acquire(parts->acc, 0, 8 * BINS, MUSTER_READ, fixture_wait_ns, &pointer, error);
    if (failed(out, status)) return false;
    memcpy(result, pointer, 8 * BINS);
    failed(out, muster_buffer_release(parts->acc, pointer, error));
    return out->status == MUSTER_OK;
}

static uint64_t calls[512]; /* of each driver entry in the last run of the program, by its place in the table */

static const char *const entry_names[] = {
#define ENTRY_NAME(member, symbol, parameters) #member,
    MU_DRIVER_ENTRIES(ENTRY_NAME, ENTRY_NAME)
#undef ENTRY_NAME
};
enum { ENTRIES = sizeof entry_names / sizeof entry_names[0] };

/* The whole program on two devices. `expected` may be NULL. */
static __attribute__((noinline)) outcome run_program(const char *spec, const uint64_t expected[BINS],
                                                     uint64_t result[BINS]) {
    static const muster_config two_devices = {.struct_size = sizeof two_devices, .admission_wait_ns = 1000000};
    uint32_t input[ELEMENTS];
    outcome out = {.status = MUSTER_OK};
    parts parts = {0};
    fixture fixture = {0};
    alarm(HANG_SECONDS);
    for (uint32_t i = 0; i < ELEMENTS; i++) input[i] = i * 2654435761u;
    muster_config config = two_devices;
    config.driver = "sim";
    config.sim = spec;
    if (failed(&out, muster_runtime_create(&config, &fixture.runtime, &out.last))) return out;
    if (build(fixture.runtime, &parts, input, &out) && work(fixture.runtime, &parts, result, &out) && expected)
        out.wrong = memcmp(result, expected, 8 * BINS) != 0;
    for (int entry = 0; entry < ENTRIES; entry++)
        calls[entry] = mu_sim_calls(fixture_driver(&fixture), entry_names[entry]);
    muster_run_destroy(parts.run);
    muster_graph_destroy(parts.graph);
    muster_buffer_destroy(parts.in);
    muster_buffer_destroy(parts.out);
    muster_buffer_destroy(parts.acc);
    muster_program_destroy(parts.program);
    OK(muster_runtime_destroy(fixture.runtime, fixture_wait_ns, &reported));
    return out;
}

static void clean_run(const char *spec, uint64_t result[BINS]) {
    outcome out = run_program(spec, NULL, result);
    if (out.status != MUSTER_OK) fail_msg("%s", out.error.message);
    for (int bin = 0; bin < BINS; bin++) assert_int_not_equal(result[bin], 0);
}

static void check(const outcome *out, const char *what, uint64_t n) {
    if (out->wrong)
        fail_msg("%s %llu failed, no error was reported, and the result is wrong", what, (unsigned long long)n);
    if (out->status == MUSTER_OK) return;
    if (out->status == MUSTER_TIMEOUT || out->status == MUSTER_INTERNAL || out->error.status != out->status ||
        !out->error.message[0] || strchr(out->error.message, '\n'))
        fail_msg("%s %llu failed: reported as %s: %.492s", what, (unsigned long long)n, muster_status_name(out->status),
                 out->error.message);
}

/* What a lack of host memory may be reported as: itself; or, when the simulator ran out, what a driver would say. */
static bool is_lack_of_memory(const outcome *out) {
    return muster_status_recovery(out->status) != MUSTER_RECOVERY_FIX_CALL || out->status == MUSTER_PROGRAM_INVALID;
}

/* Of the allocations with one path: the first few one by one, then each time that their number has doubled; under a sanitizer, where a
 * run takes ten times as long, the first only. */
static bool is_tried(uint64_t rank) { return MU_TSAN || MU_ASAN ? rank == 1 : rank <= 6 || (rank & (rank - 1)) == 0; }

/* The nth allocation, or one like it, fails. */
static failing_memory_report fail_allocation(const memory_census *census, uint64_t n, bool sticky, const char *spec,
                                             const uint64_t expected[BINS]) {
    uint64_t result[BINS];
    snprintf(trying, sizeof trying, "allocation %llu fails%s", (unsigned long long)n,
             sticky ? " and all after it" : "");
    failing_memory_begin(n, census->path[n - 1], sticky);
    outcome out = run_program(spec, expected, result);
    failing_memory_report memory = failing_memory_end();
    check(&out, "allocation", n);
    if (memory.live_blocks != 0)
        fail_msg("allocation %llu failed: %ld blocks are left, after %s: %.492s", (unsigned long long)n,
                 memory.live_blocks, muster_status_name(out.status), out.error.message);
    if (out.status != MUSTER_OK && !is_lack_of_memory(&out))
        fail_msg("allocation %llu failed: reported as %s: %.492s", (unsigned long long)n,
                 muster_status_name(out.status), out.error.message);
    errors_reported += out.status != MUSTER_OK;
    return memory;
}

static void fail_allocations(bool sticky) {
    uint64_t expected[BINS], paths = 0, missed = 0;
    char spec[FIXTURE_SPEC_BYTES];
    fixture_equal_spec(2, spec);
    clean_run(spec, expected);
    memory_census_prepare();
    failing_memory_begin(0, 0, false);
    run_program(spec, expected, expected);
    memory_census census = memory_census_end();
    errors_reported = 0;
    for (uint64_t n = 1; n <= census.count; n++) {
        uint64_t rank = memory_census_rank(&census, n), failures = 0;
        if (!is_tried(rank)) continue;
        for (int tries = 0; tries < 3 && failures == 0; tries++)
            failures = fail_allocation(&census, n, sticky, spec, expected).failures;
        paths += rank == 1;
        missed += rank == 1 && failures == 0;
    }
    print_message("%llu allocations on %llu paths, %llu of which did not come again\n",
                  (unsigned long long)census.count, (unsigned long long)paths, (unsigned long long)missed);
    free(census.path);
    assert_true(paths > 200 && missed < paths / 10 && errors_reported > 100);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    fail_allocations(false);
}

static void memory_may_run_out_for_good(void **state) {
    (void)state;
    fail_allocations(true);
}

/* The first calls one by one, then ever fewer: what is called a thousand times is mostly polling. */
static uint64_t next_step(uint64_t n, uint64_t step) { return step * (1 + n / 8); }

static void fail_driver_calls(const char *code, const char *repeat, uint64_t step) {
    uint64_t expected[BINS], result[BINS], budget[ENTRIES];
    char spec[FIXTURE_SPEC_BYTES], plan[256];
    fixture_equal_spec(2, spec);
    clean_run(spec, expected);
    for (int entry = 0; entry < ENTRIES; entry++) budget[entry] = calls[entry];
    for (int entry = 0; entry < ENTRIES; entry++) {
        /* A few more than before destruction, for the calls that it makes. */
        for (uint64_t n = 1; n <= budget[entry] + 3; n += next_step(n, step)) {
            snprintf(plan, sizeof plan,
                     "[{\"kind\": \"fail\", \"entry\": \"%s\", \"nth\": %llu, \"code\": \"%s\", \"repeat\": %s}]",
                     entry_names[entry], (unsigned long long)n, code, repeat);
            snprintf(trying, sizeof trying, "%s", plan);
            fixture_planned_spec(2, plan, spec);
            fixture_count_memory();
            outcome out = run_program(spec, expected, result);
            long left = fixture_live_blocks();
            check(&out, entry_names[entry], n);
            if (left != 0)
                fail_msg("%s %llu failed: %ld blocks are left, after %s: %.492s", entry_names[entry],
                         (unsigned long long)n, left, muster_status_name(out.status), out.error.message);
        }
    }
}

static void every_driver_call_may_run_out_of_memory(void **state) {
    (void)state;
    fail_driver_calls("OUT_OF_MEMORY", "1", STRIDE);
}

static void every_driver_call_may_fail_unexpectedly(void **state) {
    (void)state;
    fail_driver_calls("UNKNOWN", "1", STRIDE);
}

static void every_driver_call_may_report_a_fault(void **state) {
    (void)state;
    fail_driver_calls("ILLEGAL_ADDRESS", "1", 3 * STRIDE);
}

static void every_driver_call_may_fail_from_then_on(void **state) {
    (void)state;
    fail_driver_calls("OUT_OF_MEMORY", "\"forever\"", 3 * STRIDE);
}

static int prepare(void **state) {
    (void)state;
    static const char *const names[] = {"mix32", "sum_u64"};
    cut_out_entries(names, 2);
    return signal(SIGALRM, hangs) == SIG_ERR ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(memory_may_run_out_for_good),
        cmocka_unit_test(every_driver_call_may_run_out_of_memory),
        cmocka_unit_test(every_driver_call_may_fail_unexpectedly),
        cmocka_unit_test(every_driver_call_may_report_a_fault),
        cmocka_unit_test(every_driver_call_may_fail_from_then_on),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
