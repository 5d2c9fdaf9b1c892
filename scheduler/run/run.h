/* Runs: one submission of a graph, and its tasks, one per node. */
#ifndef MUSTER_SCHEDULER_RUN_RUN_H
#define MUSTER_SCHEDULER_RUN_RUN_H

#include <pthread.h>

#include "scheduler/actor/mailbox.h"
#include "scheduler/graph/graph.h"
#include "scheduler/run/order.h"
#include "scheduler/runtime/handle.h"

/* A task of one of the runtime's runs, by index: run slot and node. */
typedef uint64_t mu_task_ref;
#define MU_NO_TASK UINT64_MAX

typedef enum mu_task_state {
    MU_TASK_PENDING = 0, /* waits for predecessors, or for its turn in an actor */
    MU_TASK_ENQUEUED = 1,
    MU_TASK_ENDED = 2
} mu_task_state;

/* The part of a job that changes while it runs. Written by whoever holds the task: the thread that releases its last
 * predecessor, then the actor it is posted to. 56 bytes: a run of ten million jobs must stay small. */
typedef struct mu_task {
    mu_message message; /* kind: MU_MAIL_TASKS or MU_MAIL_AWAIT */
    uint32_t run;       /* slot in the runtime's run table */
    uint32_t node;
    uint32_t next; /* next node of a chain of ready tasks of this run, MU_NONE at its end */
    /* Predecessors not yet enqueued. The decrement to 0 (acq_rel) takes the task over from all predecessors: it sees what
     * each wrote before its own decrement. */
    atomic_uint pending;
    /* Dispatch epoch it is in; while it awaits another device, the epoch it waits for. Published by `pending`. */
    uint64_t epoch;
    atomic_uchar state;    /* mu_task_state; release on ENDED pairs with acquire in muster_run_job_result */
    atomic_uchar poisoned; /* some predecessor failed; relaxed, ordered by `pending` */
    int16_t device;
    /* muster_status; final when ENDED. Ordered by what tells that the task has got there: `pending`, an epoch that is done. */
    _Atomic uint16_t status;
    int8_t priority;        /* of its node */
    bool starved : 1;       /* it waited for memory: counted once */
    bool stolen : 1;        /* once at most */
    bool held : 1;          /* its instances are held until its input has arrived (scheduler/actor/bind.h) */
    mu_task_ref epoch_next; /* next task of its epoch */
} mu_task;
_Static_assert(sizeof(mu_task) == 56, "a task has grown");

typedef struct mu_completion mu_completion;
typedef struct mu_host_task mu_host_task;
typedef struct mu_open_run mu_open_run;

/* Where the result of a shard was found, for shards are asked for one after the other: the first node of its job, its own node and number, and
 * the blocks before it. Zero is where to begin with the first job. */
typedef struct mu_shard_place {
    uint32_t job_first, node, shard;
    uint64_t first_block;
} mu_shard_place;

struct muster_run {
    mu_handle handle;
    muster_graph *graph; /* a reference is held */
    mu_values *values;   /* likewise */
    uint32_t slot;
    uint32_t task_count;
    mu_task *tasks;           /* behind the run, and what its place in the order needs behind them */
    mu_host_task *host_tasks; /* of the nodes that no device runs (scheduler/run/host_task.h) */
    uint32_t host_task_count;
    atomic_uint_fast64_t *unplaced; /* scheduler/placement/spread.h: by spread and device; NULL: the graph has none */
    mu_order_entry order;
    /* Tasks not yet enqueued (or ended without), and not yet ended. Each worker subtracts once per batch. acq_rel: who
     * reaches 0 sees everything the others did. */
    _Alignas(MU_CACHE_LINE) atomic_uint unenqueued;
    atomic_uint unended;
    pthread_mutex_t lock; /* the failure, sleeping waiters, and `asked` */
    pthread_cond_t changed;
    /* Release (under the lock, for sleepers) pairs with acquire of a waiter that spins: it sees every result. */
    atomic_bool done;
    muster_error failure; /* of the lowest job that failed by itself; status OK when none */
    /* A launch failed after its successors were counted as ready: they look at their predecessors' statuses. Relaxed: set
     * before the epoch that others wait for is closed. */
    atomic_bool failed_late;
    /* Not OK: jobs that are not enqueued yet end so, CANCELLED or DEADLINE_PASSED. The first reason stays. Relaxed: nothing else
     * is published with it. */
    atomic_uint stopped;
    /* What few runs have: a deadline, somebody to tell of the end (scheduler/run/completion.h). NULL until first asked for; `lock`. */
    mu_completion *completion;
    mu_shard_place asked; /* the last shard that was asked for */
    mu_open_run *open;    /* of an open run, which has no graph, no tasks and no place in the order; else NULL */
    /* Of a part of an open run; else NULL and 0. */
    muster_run *parent; /* a reference is held until this one has ended */
    muster_job first_job;
    /* Per device, its worker only: whether its dispatch lane has waited for the order's gate. */
    bool gate_passed[MU_MAX_DEVICES];
};

static inline mu_task_ref mu_task_ref_of(const mu_task *task) { return (mu_task_ref)task->run << 32 | task->node; }
/* The node's job as the application numbers it. */
static inline muster_job mu_run_job(const muster_run *run, const mu_node *node) { return run->first_job + node->job; }
/* OK, or why jobs that are not enqueued yet end. */
static inline muster_status mu_run_stopped(const muster_run *run) {
    return (muster_status)atomic_load_explicit(&run->stopped, memory_order_relaxed);
}
static inline mu_task *mu_run_task(muster_run *run, uint32_t node) { return &run->tasks[node]; }

/* A zeroed run with its lock, which is nobody's handle yet: to be given one before it is released. Behind it are so many bytes more, not
 * zeroed. NULL: out of host memory. */
muster_run *mu_run_alloc(size_t more_bytes);

/* The two halves of a submit. Makes a run of the graph that counts as unfinished and has not taken its place in the order: it
 * is entered or discarded next. The errors of muster_submit. */
muster_status mu_run_make(muster_runtime *runtime, muster_graph *graph, muster_run **run, muster_error *error);
void mu_run_discard(muster_run *run);
/* It is on its way from then on, and may have ended when this returns. OUT_OF_HOST_MEMORY: it is discarded. */
muster_status mu_run_enter(muster_run *run, muster_error *error);

/* The run has ended: tells everybody who waits or asked to be told. Once, by who holds a reference. */
void mu_run_announce(muster_run *run);

/* Drops one reference; the last frees the run. */
void mu_run_release(muster_run *run);

/* Ends the run early, for `why`: the jobs that have not been handed to their device. Any thread; never blocks. */
void mu_run_stop(muster_run *run, muster_status why);
/* The failure of a job of a stopped run. */
muster_status mu_run_fail_stopped(const muster_run *run, const mu_node *node, muster_error *error);

/* Records a failure of `task`; the message of the lowest job is kept. Any thread. */
void mu_run_fail(muster_run *run, mu_task *task, muster_status status, const muster_error *error);

/* `count` tasks were enqueued, or ended without being enqueued. The last lets the following runs go. */
void mu_run_enqueued(muster_run *run, uint32_t count);
/* `count` tasks ended. The last completes the run: waiters wake, references drop; `run` may be gone afterwards. */
void mu_run_ended(muster_run *run, uint32_t count);
/* A run that uses the buffer whose order this is, and has not ended: nor does it before mu_run_ended of 1 more. NULL: there is none. Any
 * thread; takes the lock of the order. */
muster_run *mu_run_keep_user(muster_runtime *runtime, const mu_order_state *order);

#endif
