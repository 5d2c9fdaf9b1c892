/* What the scheduler's tests share: the test kernels, runtimes on simulated machines, and assertions that show the error
 * message. */
#ifndef MUSTER_TESTS_SCHEDULER_FIXTURE_H
#define MUSTER_TESTS_SCHEDULER_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "muster.h"
#include "tests/scheduler/kernels.h"

/* Every call under test passes &reported. */
extern _Thread_local muster_error reported;

/* The call must succeed. */
#define OK(call) fixture_check((fixture_clear(), (call)), MUSTER_OK, "", #call, __FILE__, __LINE__)
/* The call must fail with `wanted`, `reported` must say so, in one line, and the message must contain each of the words in
 * `words`, which a '|' separates. */
#define FAILS(wanted, words, call) fixture_check((fixture_clear(), (call)), wanted, words, #call, __FILE__, __LINE__)

void fixture_clear(void);
void fixture_check(muster_status status, muster_status wanted, const char *words, const char *call, const char *file,
                   int line);

/* Long enough for anything that must end, also under a sanitizer: reaching it is a failure. */
static const uint64_t fixture_wait_ns = 60000000000u;

/* JSON for machines: `devices` equal ones, and a mixture of presets with interleaving that follows `seed`. */
enum { FIXTURE_SPEC_BYTES = 4096 };
void fixture_equal_spec(uint32_t devices, char spec[FIXTURE_SPEC_BYTES]);
void fixture_mixed_spec(uint32_t devices, uint64_t seed, char spec[FIXTURE_SPEC_BYTES]);

/* A runtime on `devices` equal simulated devices with the test kernels loaded. Kernels are found by name. */
typedef struct fixture {
    muster_runtime *runtime;
    muster_program *program;
} fixture;

void fixture_open(fixture *fixture, uint32_t devices);
/* With a configuration of its own: `driver` is set to "sim"; `sim`, when NULL, to `devices` equal devices; `cache_dir`, when NULL, to
 * none. */
void fixture_open_with(fixture *fixture, uint32_t devices, const muster_config *config);
void fixture_close(fixture *fixture); /* everything must have ended */
muster_kernel *fixture_kernel(const fixture *fixture, const char *entry);

/* The simulated driver that a runtime stands on, for its test gates (device/sim/sim.h). */
struct mu_driver *fixture_driver(const fixture *fixture);
/* While a device is held it begins nothing. */
void fixture_hold(const fixture *fixture, int device, bool held);
void fixture_hold_all(const fixture *fixture, bool held);
/* A machine of `devices` equal devices whose fault plan is `plan`, the JSON of a list. */
/* The driver refuses the nth kernel launch on a device. */
#define FIXTURE_FAIL_LAUNCH(device, nth)                                                                               \
    "[{\"kind\": \"fail\", \"entry\": \"launch_kernel\", \"device\": " #device ", \"nth\": " #nth                      \
    ", \"code\": \"INVALID_VALUE\"}]"
void fixture_planned_spec(uint32_t devices, const char *plan, char spec[FIXTURE_SPEC_BYTES]);

/* Before the first submit: what waits at a device goes to any other that asks, whether it pays or not, and nearly everything waits. */
void fixture_steal_always(muster_runtime *runtime);

/* Counts live blocks of Muster's host memory from now on; the second gives malloc back and says how many were left. No
 * runtime may exist at either. */
void fixture_count_memory(void);
long fixture_live_blocks(void);

/* One-dimensional dispatches with arguments in place: add(graph, kernel, blocks, threads, args(muster_u32_arg(1), ...)). */
typedef struct fixture_args {
    const muster_arg *arg;
    uint32_t count;
} fixture_args;
#define ARGS(...)                                                                                                      \
    ((fixture_args){(muster_arg[]){__VA_ARGS__}, sizeof((muster_arg[]){__VA_ARGS__}) / sizeof(muster_arg)})
muster_dispatch fixture_dispatch(muster_kernel *kernel, uint32_t blocks, uint32_t threads, fixture_args args);
muster_job fixture_add(muster_graph *graph, const muster_dispatch *dispatch);

muster_buffer *fixture_buffer(const fixture *fixture, uint64_t bytes, void *host);
muster_graph *fixture_graph(const fixture *fixture);
/* Submits, waits, and wants every job to succeed. */
void fixture_run(const fixture *fixture, muster_graph *graph);
muster_run *fixture_submit(const fixture *fixture, muster_graph *graph);
/* The result of a job that has ended. */
muster_job_result fixture_result(const muster_run *run, muster_job job);

/* A copy of a range's current bytes, and setting them. */
void fixture_read(muster_buffer *buffer, uint64_t offset, uint64_t bytes, void *to);
void fixture_write(muster_buffer *buffer, uint64_t offset, uint64_t bytes, const void *from);
uint32_t fixture_word(muster_buffer *buffer, uint64_t index);

/* affine(buffer, factor, term): every word of the buffer becomes word * factor + term. Order shows in the result. */
muster_job fixture_affine(const fixture *fixture, muster_graph *graph, muster_buffer *buffer, uint32_t factor,
                          uint32_t term);

#endif
