/* What scenario_execute.c and scenario_stop.c share: the state of a scenario that is being carried out. */
#ifndef MUSTER_TESTS_SCHEDULER_SCENARIO_EXECUTION_H
#define MUSTER_TESTS_SCHEDULER_SCENARIO_EXECUTION_H

#include <pthread.h>

#include "tests/scheduler/scenario.h"

struct execution;
/* What a callback is given. */
typedef struct callback {
    struct execution *run;
    const sc_job *job;
} callback;

typedef struct execution {
    const sc_executor *executor;
    const scenario *scenario;
    const sc_expected *expected;
    muster_buffer *buffer[SC_MAX_BUFFERS];
    uint8_t *host[SC_MAX_BUFFERS];
    muster_graph *graph[SC_MAX_GRAPHS];
    muster_job job_id[SC_MAX_GRAPHS][SC_MAX_JOBS]; /* jobs that were dropped have none */
    sc_job job[SC_MAX_GRAPHS][SC_MAX_JOBS];        /* with the values that were set */
    callback callback[SC_MAX_GRAPHS][SC_MAX_JOBS];
    muster_run *run[SC_MAX_STEPS];  /* of submit steps; an open run is here for each of its parts */
    muster_job first[SC_MAX_STEPS]; /* in an open run */
    muster_run *open[SC_MAX_OPEN];
    bool closed[SC_MAX_OPEN];
    void *pointer[SC_MAX_STEPS]; /* acquire steps */

    /* Whose turn it is; everything else above is touched by the thread that has it, and by early steps, each its own. */
    pthread_mutex_t lock;
    pthread_cond_t turned;
    uint32_t turn;
    bool failed; /* under the lock */
    sc_failure *failure;
} execution;

/* Notes the failure, if it is the first, and ends all threads. `hang`: the runtime cannot be used any more. Always false. */
bool sc_fail(execution *run, bool hang, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool sc_fail_status(execution *run, const char *what, uint32_t index, const muster_error *error);
void sc_add_count(execution *run, uint64_t *count);

bool sc_build_graph(execution *run, uint32_t g);
/* `bytes` of a buffer from `offset` on: false, and noted, when they are not as wanted. */
bool sc_compare(execution *run, const char *where, uint32_t index, uint32_t offset, const uint8_t *got,
                const uint8_t *wanted, uint32_t bytes);

/* The whole of a stop step. */
bool sc_do_stop(execution *run, uint32_t s);

#endif
