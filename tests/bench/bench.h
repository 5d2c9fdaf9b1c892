/* What the benches share: their options, a runtime and beside it the bare driver in the same process, and turns between ways to do
 * the same thing. A failure of either side ends the program with a message and status 1.
 *
 * Options of every bench: [--driver cuda|null|sim] [--devices N] [--actors N] [--runs R] [--quick] [--json]
 *     cuda    the real driver, the default; where there is none, or no device, the bench says so and exits with 0
 *     null    the simulator without execution: Muster's own cost, and no figure of hardware
 *     sim     the simulator that executes kernels: works, and its times mean nothing
 *     --quick takes little of everything: to see that the bench works
 * On a simulated machine --devices says how many there are (1). */
#ifndef MUSTER_TESTS_BENCH_BENCH_H
#define MUSTER_TESTS_BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/tuning.h"
#include "device/driver.h"
#include "muster.h"
#include "tests/bench/measure.h"

extern const char bench_kernels_ptx[]; /* kernels.ptx; kernels.cu describes the kernels */

/* The bare driver's side of one device: the primary context, which the runtime uses too unless it has several actors there. */
typedef struct bench_raw {
    CUdevice device;
    CUcontext context;
    CUstream stream; /* non-blocking */
    void *cubin;     /* the kernels, compiled as Muster compiles them */
    CUmodule module; /* of that */
    CUdeviceptr memory;
} bench_raw;

enum { BENCH_RAW_BYTES = 1 << 20 }; /* of bench_raw's memory */

typedef struct bench {
    const char *name;   /* of the program */
    const char *driver; /* "cuda", "null" or "sim" */
    uint32_t devices;   /* asked for; 0: all. Once open, of actors */
    uint32_t actors;    /* on each */
    uint32_t runs;
    bool quick;
    measure_report report;
    muster_runtime *runtime;
    muster_program *program; /* the kernels */
    const mu_driver *table;
    uint32_t raw_count; /* GPUs */
    bench_raw raw[MU_MAX_DEVICES];
} bench;

/* An option of one bench: a number. Set *value to the default before. */
typedef struct bench_option {
    const char *name; /* "--jobs" */
    uint32_t *value;
} bench_option;

/* `runs` is set to its default, and with --quick to 1, unless it is asked for. Exits with 2 and the usage for anything wrong: the
 * numbers are at least 1. Options of the bench itself are left as they are by --quick. */
void bench_parse(bench *bench, int argc, char **argv, uint32_t default_runs, const bench_option *options, size_t count);

/* Opens both sides: the runtime with `config` (NULL: defaults), of which driver, sim and the devices are filled in; the first raw
 * device's context is current then. Begins the report with `question` and the device's name. Does not return where there is no
 * driver or device. */
void bench_open(bench *bench, const muster_config *config, const char *question);
void bench_close(bench *bench); /* everything must have ended. Ends the report */

bool bench_is_real(const bench *bench); /* figures mean something */
bool bench_executes(const bench *bench);

/* ------------------------------------------------------------------------------------------------------- Muster's -- */

extern _Thread_local muster_error bench_error; /* for every call that BENCH_OK checks */

#define BENCH_OK(call) bench_ok((call), #call)
void bench_fail(muster_status status, const char *what) __attribute__((noreturn, cold));
static inline void bench_ok(muster_status status, const char *what) {
    if (__builtin_expect(status != MUSTER_OK, 0)) bench_fail(status, what);
}

muster_kernel *bench_kernel(const bench *bench, const char *entry);
muster_buffer *bench_buffer(const bench *bench, uint64_t bytes, void *host);
muster_graph *bench_graph(const bench *bench);
/* One block of 32 threads; the arguments are read when it is added. */
muster_dispatch bench_dispatch(muster_kernel *kernel, const muster_arg *args, uint32_t count);
muster_job bench_add(muster_graph *graph, const muster_dispatch *dispatch);
muster_run *bench_submit(const bench *bench, muster_graph *graph);
void bench_finish(muster_run *run); /* waits and destroys */
void bench_run(const bench *bench, muster_graph *graph);

/* --------------------------------------------------------------------------------------------------- the driver's -- */

#define BENCH_DRIVER(bench, call) bench_driver((bench), (bench)->table->call, #call)
void bench_driver(const bench *bench, CUresult code, const char *what);

CUfunction bench_function(const bench *bench, uint32_t device, const char *entry);
/* One block of 32 threads on the device's stream. */
void bench_launch(const bench *bench, uint32_t device, CUfunction function, void **parameters);
void bench_synchronize(const bench *bench, uint32_t device);
void bench_enter(const bench *bench, uint32_t device); /* makes its context current */

/* ---------------------------------------------------------------------------------------------------------- turns -- */

/* One measurement; `user` is the bench's own. */
typedef double (*bench_way)(void *user);

/* Each way once in each of bench->runs rounds, one after the other, after `warm` rounds that do not count. */
void bench_alternate(const bench *bench, void *user, const bench_way *ways, size_t count, uint32_t warm,
                     measure *measures);

double bench_since_us(uint64_t begin_ns);

#endif
