#include "tests/scheduler/fixture.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/sim/sim.h"
#include "scheduler/runtime/runtime.h"

_Thread_local muster_error reported;

void fixture_clear(void) { memset(&reported, 0x5a, sizeof reported); }

static bool has_word(const char *message, const char *word, size_t length) {
    for (; *message; message++)
        if (strncmp(message, word, length) == 0) return true;
    return false;
}

void fixture_check(muster_status status, muster_status wanted, const char *words, const char *call, const char *file,
                   int line) {
    bool terminated = memchr(reported.message, 0, sizeof reported.message) != NULL;
    if (status != wanted) {
        print_error("%s is %s, not %s%s%s\n", call, muster_status_name(status), muster_status_name(wanted),
                    status && terminated ? ": " : "", status && terminated ? reported.message : "");
        _fail(file, line);
    }
    if (wanted == MUSTER_OK) return;
    if (reported.status != wanted || !terminated || !reported.message[0] || strchr(reported.message, '\n')) {
        print_error("%s failed as it should, but the error is not filled with one line\n", call);
        _fail(file, line);
    }
    for (const char *word = words; *word;) {
        size_t length = strcspn(word, "|");
        if (!has_word(reported.message, word, length)) {
            print_error("%s: the message lacks \"%.*s\": %s\n", call, (int)length, word, reported.message);
            _fail(file, line);
        }
        word += length + (word[length] == '|');
    }
}

void fixture_equal_spec(uint32_t devices, char spec[FIXTURE_SPEC_BYTES]) {
    snprintf(spec, FIXTURE_SPEC_BYTES, "{\"devices\": %u}", devices);
}

void fixture_mixed_spec(uint32_t devices, uint64_t seed, char spec[FIXTURE_SPEC_BYTES]) {
    static const char *const presets[] = {"H200", "A100", "L4", "RTX 4090", "T4"};
    size_t used = 0;
    uint64_t draw = seed * 0x9e3779b97f4a7c15u;
    used += (size_t)snprintf(spec + used, FIXTURE_SPEC_BYTES - used, "{\"seed\": %" PRIu64 ", \"devices\": [", seed);
    for (uint32_t d = 0; d < devices; d++)
        used += (size_t)snprintf(spec + used, FIXTURE_SPEC_BYTES - used, "%s{\"preset\": \"%s\"}", d ? ", " : "",
                                 presets[(draw >> 2 * d) % 5]);
    used += (size_t)snprintf(spec + used, FIXTURE_SPEC_BYTES - used, "], \"peers\": ");
    switch (devices > 1 ? (draw >> 40) % 3 : 0) {
        case 0: snprintf(spec + used, FIXTURE_SPEC_BYTES - used, "\"all\"}"); break;
        case 1: snprintf(spec + used, FIXTURE_SPEC_BYTES - used, "\"none\"}"); break;
        default: snprintf(spec + used, FIXTURE_SPEC_BYTES - used, "[[0, %u]]}", devices - 1); break;
    }
}

void fixture_open_with(fixture *fixture, uint32_t devices, const muster_config *config) {
    char spec[FIXTURE_SPEC_BYTES];
    muster_config own = {.struct_size = sizeof own};
    if (config) own = *config;
    own.driver = "sim";
    fixture_equal_spec(devices, spec);
    if (!own.sim) own.sim = spec;
    if (!own.cache_dir) own.cache_dir = ""; /* what another test has learnt is none of this one's business */
    OK(muster_runtime_create(&own, &fixture->runtime, &reported));
    OK(muster_program_from_ptx(fixture->runtime, test_kernels_ptx, 0, "test kernels", &fixture->program, &reported));
}

void fixture_open(fixture *fixture, uint32_t devices) { fixture_open_with(fixture, devices, NULL); }

void fixture_close(fixture *fixture) {
    OK(muster_runtime_destroy(fixture->runtime, fixture_wait_ns, &reported));
    memset(fixture, 0, sizeof *fixture);
}

muster_kernel *fixture_kernel(const fixture *fixture, const char *entry) {
    muster_kernel *kernel = NULL;
    OK(muster_program_kernel(fixture->program, entry, &kernel, &reported));
    return kernel;
}

muster_dispatch fixture_dispatch(muster_kernel *kernel, uint32_t blocks, uint32_t threads, fixture_args args) {
    return (muster_dispatch){.struct_size = sizeof(muster_dispatch),
                             .kernel = kernel,
                             .grid = {blocks, 0, 0},
                             .block = {threads, 0, 0},
                             .arg_count = args.count,
                             .args = args.arg};
}

muster_job fixture_add(muster_graph *graph, const muster_dispatch *dispatch) {
    muster_job job = MUSTER_NO_JOB;
    OK(muster_graph_dispatch(graph, dispatch, &job, &reported));
    return job;
}

muster_buffer *fixture_buffer(const fixture *fixture, uint64_t bytes, void *host) {
    muster_buffer *buffer = NULL;
    OK(muster_buffer_create(fixture->runtime, bytes, host, &buffer, &reported));
    return buffer;
}

muster_graph *fixture_graph(const fixture *fixture) {
    muster_graph *graph = NULL;
    OK(muster_graph_create(fixture->runtime, &graph, &reported));
    return graph;
}

muster_run *fixture_submit(const fixture *fixture, muster_graph *graph) {
    muster_run *run = NULL;
    OK(muster_submit(fixture->runtime, graph, &run, &reported));
    return run;
}

void fixture_run(const fixture *fixture, muster_graph *graph) {
    muster_run *run = fixture_submit(fixture, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
}

muster_job_result fixture_result(const muster_run *run, muster_job job) {
    muster_job_result result = {.struct_size = sizeof result};
    OK(muster_run_job_result(run, job, &result, &reported));
    return result;
}

void fixture_read(muster_buffer *buffer, uint64_t offset, uint64_t bytes, void *to) {
    void *pointer;
    OK(muster_buffer_acquire(buffer, offset, bytes, MUSTER_READ, fixture_wait_ns, &pointer, &reported));
    memmove(to, pointer, bytes); /* it may be the host memory itself */
    OK(muster_buffer_release(buffer, pointer, &reported));
}

void fixture_write(muster_buffer *buffer, uint64_t offset, uint64_t bytes, const void *from) {
    void *pointer;
    OK(muster_buffer_acquire(buffer, offset, bytes, MUSTER_WRITE, fixture_wait_ns, &pointer, &reported));
    memcpy(pointer, from, bytes);
    OK(muster_buffer_release(buffer, pointer, &reported));
}

uint32_t fixture_word(muster_buffer *buffer, uint64_t index) {
    uint32_t word;
    fixture_read(buffer, 4 * index, 4, &word);
    return word;
}

muster_job fixture_affine(const fixture *fixture, muster_graph *graph, muster_buffer *buffer, uint32_t factor,
                          uint32_t term) {
    uint32_t words = (uint32_t)(muster_buffer_bytes(buffer) / 4);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "affine"), (words + 63) / 64, 64,
                         ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(factor),
                              muster_u32_arg(term), muster_u32_arg(words)));
    return fixture_add(graph, &dispatch);
}

mu_driver *fixture_driver(const fixture *fixture) { return fixture->runtime->driver; }

void fixture_hold(const fixture *fixture, int device, bool held) { mu_sim_hold(fixture_driver(fixture), device, held); }

void fixture_hold_all(const fixture *fixture, bool held) {
    for (int device = 0; device < muster_device_count(fixture->runtime); device++) fixture_hold(fixture, device, held);
}

void fixture_planned_spec(uint32_t devices, const char *plan, char spec[FIXTURE_SPEC_BYTES]) {
    snprintf(spec, FIXTURE_SPEC_BYTES, "{\"devices\": %u, \"faults\": %s}", devices, plan);
}

void fixture_steal_always(muster_runtime *runtime) {
    runtime->steals_always = true;
    runtime->enqueue_ahead_least = 1;
}

static atomic_long live_blocks;

static void *count_reallocate(void *user, void *pointer, size_t bytes) {
    (void)user;
    void *result = realloc(pointer, bytes);
    if (result && !pointer) atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return result;
}

static void count_release(void *user, void *pointer) {
    (void)user;
    atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    free(pointer);
}

void fixture_count_memory(void) {
    const muster_allocator counting = {count_reallocate, count_release, NULL};
    OK(muster_set_allocator(&counting, &reported));
    atomic_store_explicit(&live_blocks, 0, memory_order_relaxed);
}

long fixture_live_blocks(void) {
    OK(muster_set_allocator(NULL, &reported));
    return atomic_load_explicit(&live_blocks, memory_order_relaxed);
}
