/* Tasks that no device runs: read-backs and host jobs.
 *
 * They become ready like others, when their predecessors are enqueued, and then have a fetch bring their content and wait for what
 * they come after: the epochs of their predecessors, and of the runs before (the order's gate). A read-back has ended then; a
 * host job is called on the host thread. Either counts as enqueued only when it has ended, so what follows starts after it. */
#ifndef MUSTER_SCHEDULER_RUN_HOST_TASK_H
#define MUSTER_SCHEDULER_RUN_HOST_TASK_H

#include "scheduler/run/run.h"

/* Makes what the host tasks of a run of `graph` need, so that starting one cannot fail. OUT_OF_HOST_MEMORY: what was made is left to
 * mu_host_tasks_destroy. */
muster_status mu_host_tasks_create(muster_run *run, const muster_graph *graph, muster_error *error);
void mu_host_tasks_destroy(muster_run *run); /* none is under way */

/* Starts a task that is ready. Any thread. True: it is over already, with its status set, and the caller ends it; else it ends by
 * itself, perhaps before this returns. */
bool mu_host_task_begin(muster_run *run, mu_task *task);

#endif
