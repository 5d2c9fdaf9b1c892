/* Open runs: runs to which graphs are added while earlier ones execute.
 *
 * An open run has no graph, tasks or place in the order of runs itself. Each graph that is added becomes a run of its own, its
 * *part*, submitted like any other; the open run keeps their handles and numbers their jobs through. It has ended when it is closed
 * and its parts have ended. A part holds the open run until then, and the open run its parts until it is freed. */
#ifndef MUSTER_SCHEDULER_RUN_OPEN_RUN_H
#define MUSTER_SCHEDULER_RUN_OPEN_RUN_H

#include "scheduler/run/run.h"

/* All of these are for runs whose `open` is set. Any thread; none blocks. */

/* No graph is added any more; again: does nothing. The run may have ended when it returns. */
void mu_open_run_close(muster_run *run);
/* What muster_run_cancel and the deadline do, after the run was marked: stops the parts. */
void mu_open_run_stop(muster_run *run, muster_status why);
/* The part that job `job` of the run belongs to, which lives as long as the run; NULL: no graph added so far has it. */
const muster_run *mu_open_run_part(const muster_run *run, muster_job job);
/* With the run's lock held. How many jobs were added, how many graphs, and how many of those have not ended. */
typedef struct mu_open_run_counts {
    muster_job jobs;
    size_t parts, unended;
    bool closed;
} mu_open_run_counts;
mu_open_run_counts mu_open_run_count(const muster_run *run);

/* A part has ended: hands its failure to its open run, which may have ended with it, and gives up its hold of it. */
void mu_open_run_part_ended(muster_run *part);

/* With the run, of which nobody knows any more. */
void mu_open_run_free(mu_open_run *open);

/* Closes one open run of the runtime, if any is not closed and the runtime is idle but for those. */
bool mu_open_runs_close_one(muster_runtime *runtime);

#endif
