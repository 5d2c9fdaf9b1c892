/* A scenario: what the generated correctness test does with Muster, as plain data. It is generated from a seed
 * (scenario_generate.c), interpreted by a sequential model that knows nothing of Muster (scenario_model.c), and carried
 * out through muster.h (scenario_execute.c); the bytes of the two must be equal. Being data, it can be printed, and
 * shrunk by setting `dropped` on its parts. */
#ifndef MUSTER_TESTS_SCHEDULER_SCENARIO_H
#define MUSTER_TESTS_SCHEDULER_SCENARIO_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "muster.h"

enum {
    SC_MAX_BUFFERS = 10,
    SC_MAX_GRAPHS = 3,
    SC_MAX_JOBS = 40, /* a job set must fit 64 bits */
    SC_MAX_RANGES = 3,
    SC_MAX_EDGES = 12,
    SC_MAX_AFTER = 3,
    SC_MAX_STEPS = 40,
    SC_MAX_THREADS = 4,
    SC_MAX_OPEN = 2, /* open runs */
    SC_MAX_STOPS = 3,
    SC_WEIGHTS = 10,
};

/* What a buffer holds. Floating-point buffers hold small whole numbers only, so that a sum does not depend on its order:
 * only sums, settles, fills, and copies of their own kind write them. */
typedef enum sc_kind { SC_RAW, SC_F32, SC_F64 } sc_kind;

typedef enum sc_memory { SC_PAGEABLE, SC_PINNED, SC_REGISTERED, SC_MEMORIES } sc_memory;

typedef struct sc_buffer {
    sc_kind kind;
    uint32_t bytes;
    bool host;        /* made with host memory, whose first content comes from `seed` */
    sc_memory memory; /* which: the application's, Muster's pinned memory, or the application's pinned by Muster */
    uint64_t seed;
} sc_buffer;

/* The operations: name, kernel entry (NULL: no kernel), element bytes. */
#define SC_OP_MAP(X)                                                                                                   \
    X(COPY, NULL, 1)                                                                                                   \
    X(FILL, NULL, 1)                                                                                                   \
    X(MIX, "mix", 4)                                                                                                   \
    X(MIX32, "mix32", 4)                                                                                               \
    X(TWIDDLE, "twiddle", 4)                                                                                           \
    X(PAIR, "pair", 4)                                                                                                 \
    X(STAGE, "stage", 4)                                                                                               \
    X(BYTES, "bytes", 1)                                                                                               \
    X(WEIGHTED, "weighted", 4)                                                                                         \
    X(SUM_I32, "sum_i32", 4)                                                                                           \
    X(SUM_U32, "sum_u32", 4)                                                                                           \
    X(SUM_I64, "sum_i64", 8)                                                                                           \
    X(SUM_U64, "sum_u64", 8)                                                                                           \
    X(SUM_F32, "sum_f32", 4)                                                                                           \
    X(SUM_F64, "sum_f64", 8)                                                                                           \
    X(SETTLE_F32, "settle_f32", 4)                                                                                     \
    X(SETTLE_F64, "settle_f64", 8)                                                                                     \
    X(HOST, NULL, 4)                                                                                                   \
    X(ENQUEUE, NULL, 1)                                                                                                \
    X(PREFETCH, NULL, 1)                                                                                               \
    X(READ_BACK, NULL, 1)

typedef enum sc_op {
#define SC_OP_ENUM(name, entry, bytes) SC_##name,
    SC_OP_MAP(SC_OP_ENUM)
#undef SC_OP_ENUM
        SC_OP_COUNT
} sc_op;

const char *sc_op_name(sc_op op);
const char *sc_op_entry(sc_op op);      /* NULL for what is no kernel */
uint32_t sc_op_element_bytes(sc_op op); /* of what a kernel writes */

/* An access to a buffer. The order in sc_job is that of the kernel's parameters; a copy has destination, source. */
typedef struct sc_range {
    uint32_t buffer;
    uint32_t offset, bytes;
    muster_access access;
    muster_cut cut; /* of a sharded dispatch */
} sc_range;

typedef struct sc_job {
    sc_op op;
    uint32_t range_count;
    sc_range range[SC_MAX_RANGES];
    uint32_t count;  /* elements that the kernel works on */
    uint32_t extent; /* elements of in1, or bins */
    uint32_t scalar;
    uint32_t weights[SC_WEIGHTS];
    muster_dim3 grid, block;
    bool sharded;
    uint32_t axis, max_shards, slice_elements;
    int pin;                         /* device, or -1 */
    uint32_t pattern, pattern_bytes; /* fill */
    uint32_t scratch_bytes;          /* not 0: range 0 is empty, and the kernel writes to scratch memory in its place */
    uint32_t after_count, after[SC_MAX_AFTER];
    bool dropped;
} sc_job;

typedef struct sc_edge {
    uint32_t job, predecessor;
    bool dropped;
} sc_edge;

typedef struct sc_graph {
    uint32_t job_count;
    sc_job job[SC_MAX_JOBS];
    uint32_t edge_count;
    sc_edge edge[SC_MAX_EDGES]; /* added with muster_graph_after once all jobs are there */
} sc_graph;

/* Steps take effect in their order, each on its own thread, which passes the turn on once the step has its place: after
 * its calls have returned, or before a wait begins to wait. An early step passes it on before its calls: until the thread's
 * next step, nothing happens that it could tell from having been before. */
typedef enum sc_step_kind {
    SC_SUBMIT, /* as a run of its own, or into an open run: that must be refused, and leaves no trace, when it is closed */
    SC_SET,    /* replaces a value of a job */
    SC_ACQUIRE, /* in several attempts: `tries` without waiting, one of patience_ns if that is not 0, then for good */
    SC_RELEASE,
    SC_WAIT, /* of a submit into an open run: for all of that, which is closed before */
    SC_CLOSE,
    /* A run that is ended early, soon after its submit, and waited for. Its jobs tell which of them did their work: what only those
     * wrote must be right, all else they had to write must be undefined, and none may have succeeded without what it follows. Then
     * the host writes all of the buffers that it writes. */
    SC_STOP,
    SC_TRY, /* acquires without waiting; what it gets is compared and released. It must fail while `of` holds the buffer */
    SC_DESTROY, /* of a buffer that is still in use; all graphs are built before */
    SC_STEP_KINDS
} sc_step_kind;

typedef enum sc_limit {
    SC_NO_LIMIT,
    SC_FAR,       /* a deadline that never passes */
    SC_TAKEN_BACK /* one that would, and is taken back before */
} sc_limit;

typedef struct sc_step {
    sc_step_kind kind;
    uint32_t thread;
    uint32_t graph, job;            /* submit, stop; set: replaces the job's scalar or weights from `seed` */
    uint32_t into;                  /* submit, close: the open run's number from 1; stop: 1: one of its own. 0: none */
    sc_limit limit;                 /* submit, not into an open run */
    bool by_deadline;               /* stop: in patience_ns; else by a cancel after that */
    uint32_t buffer, offset, bytes; /* acquire, try, destroy */
    muster_access access;
    uint32_t tries;
    uint64_t patience_ns;
    uint32_t
        of; /* release: the acquiring step; wait: the submitting step; try: the step that holds it, or SC_NO_STEP */
    uint64_t seed; /* set, and what is written between acquire and release */
    bool early;
    bool dropped;
} sc_step;
enum { SC_NO_STEP = SC_MAX_STEPS };

typedef struct scenario {
    uint64_t seed;
    uint32_t devices, threads;
    uint32_t buffer_count, graph_count, step_count, open_count;
    sc_buffer buffer[SC_MAX_BUFFERS];
    sc_graph graph[SC_MAX_GRAPHS];
    sc_step step[SC_MAX_STEPS];
} scenario;

/* splitmix64: small, and the same everywhere. */
static inline uint64_t sc_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
/* 0 <= result < bound; bound is not 0. */
static inline uint32_t sc_below(uint64_t *state, uint32_t bound) { return (uint32_t)(sc_random(state) >> 32) % bound; }

/* Fills *out from `seed` for `devices` devices. The same arguments give the same scenario. largest_bytes 0: small buffers,
 * of which many fit anywhere; else about half of the buffers have a quarter of it to all of it. */
void scenario_generate(uint64_t seed, uint32_t devices, uint32_t largest_bytes, scenario *out);

/* Device memory that the largest job or part of a job needs at once, at most: each buffer it touches is there as a whole,
 * in the next power of two up to 2 MiB and a multiple of 2 MiB above; a part of a sharded job has memory of its own for each
 * of its ranges, and one that sums for its partial result; what a buffer that came with host memory has on a device after it
 * was destroyed cannot be given up. With so much no job is ever refused. */
uint64_t scenario_needed_bytes(const scenario *scenario);
/* What all buffers take on one device: with so much for each, nothing is ever given up. */
uint64_t scenario_total_bytes(const scenario *scenario);

/* Checks what the generator promises: ranges inside their buffers and aligned, writes disjoint within a job, edges
 * without a cycle, no step that could wait for a later one, no early step whose effect depends on what happens beside it.
 * NULL, or what is wrong (static). */
const char *scenario_check(const scenario *scenario);

void scenario_print(const scenario *scenario, FILE *file);

/* Whether two jobs touch a common byte that one of them writes. */
bool sc_jobs_conflict(const sc_job *one, const sc_job *other);

/* scenario_steps.c: which steps can wait for which. */

/* The accesses of a graph to each buffer (0: none), all its jobs together. */
void sc_graph_uses(const sc_graph *graph, uint8_t uses[SC_MAX_BUFFERS]);
/* Whether an acquire or wait at `index` might wait for the release of a buffer that a step before holds: for a run that does,
 * or a run behind that. Steps from `index` on are not looked at. */
bool sc_step_would_block(const scenario *scenario, uint32_t index);
/* The step that holds `buffer` before step `index` so that nobody else can have it with `access`, or SC_NO_STEP. */
uint32_t sc_step_holder(const scenario *scenario, uint32_t index, uint32_t buffer, muster_access access);
/* Whether the open run `number` is closed before step `index`. */
bool sc_is_closed(const scenario *scenario, uint32_t number, uint32_t index);
/* How many stops there are before step `index`. */
uint32_t sc_stop_index(const scenario *scenario, uint32_t index);
/* Whether step `index` may be early: nothing beside it touches what it does. */
bool sc_step_may_be_early(const scenario *scenario, uint32_t index);
/* NULL, or what is wrong with the steps (static). */
const char *sc_steps_check(const scenario *scenario);

/* The application's part, the same for model and execution: a buffer's first content, what is written between acquire
 * and release (every byte for MUSTER_WRITE, about half of the elements for MUSTER_READ_WRITE), and a set argument. */
void sc_first_content(const sc_buffer *buffer, uint8_t *bytes);
void sc_user_write(const sc_step *step, sc_kind kind, uint8_t *bytes);
/* What is written to all of a buffer after a stop. */
void sc_stop_write(const sc_step *step, const sc_buffer *buffer, uint32_t index, uint8_t *bytes);
void sc_set_value(const sc_step *step, sc_job *job);

/* ---------------------------------------------------------------------------------------------------------- model -- */

typedef struct sc_expected {
    uint8_t *final[SC_MAX_BUFFERS];                 /* each buffer at the end */
    uint8_t *acquired[SC_MAX_STEPS];                /* acquire and try steps that read: what they must see */
    uint8_t *stopped[SC_MAX_STOPS][SC_MAX_BUFFERS]; /* before the nth stop: the buffers that its graph uses */
} sc_expected;

/* Carries the scenario out on the CPU, one job after another. False when memory is short. */
bool scenario_model(const scenario *scenario, sc_expected *expected);
void sc_expected_free(sc_expected *expected);

/* One job on plain memory: memory[range.buffer] is that buffer's content. Also what a host job's callback does. */
void sc_model_job(const sc_job *job, uint8_t *const memory[SC_MAX_BUFFERS]);

/* ------------------------------------------------------------------------------------------------------ execution -- */

/* What happened, over all scenarios of an executor. */
typedef struct sc_counts {
    uint64_t graphs, runs, jobs;                   /* graphs that were submitted at least once; runs; jobs of runs */
    uint64_t acquisitions, timeouts;               /* granted; attempts that were not, in time */
    uint64_t tries, refused;                       /* try steps, and those that got nothing */
    uint64_t early, early_submits, early_acquires; /* steps beside others, and of what kind */
    uint64_t destroyed_in_use;
    uint64_t host_calls, enqueue_calls;
    uint64_t pinned;                         /* buffers in pinned memory */
    uint64_t open_parts, late_parts, limits; /* submits into open runs; refused ones; deadlines that did not pass */
    uint64_t stops, cut_short, lost;         /* runs ended early; of them, those that lost jobs; those jobs */
} sc_counts;

typedef struct sc_executor {
    muster_runtime *runtime;
    muster_program *program;
    muster_kernel *kernel[SC_OP_COUNT]; /* NULL for copies and fills */
    uint64_t timeout_ns;                /* of each wait */
    bool tight;                         /* the budget is so small that a cut dispatch may run in waves */
    sc_counts *counts;                  /* the caller's; added to */
} sc_executor;

typedef struct sc_failure {
    bool hang; /* something did not end in time: the runtime cannot be used any more */
    char text[4096];
} sc_failure;

/* Finds the kernels. False, and why in *failure. */
bool sc_executor_open(muster_runtime *runtime, uint64_t timeout_ns, sc_counts *counts, sc_executor *executor,
                      sc_failure *failure);
void sc_executor_close(sc_executor *executor);

/* Carries the scenario out through Muster and compares. True when everything was as expected. */
bool scenario_execute(const sc_executor *executor, const scenario *scenario, const sc_expected *expected,
                      sc_failure *failure);

#endif
