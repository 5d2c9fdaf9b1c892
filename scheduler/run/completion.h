/* What an application can ask of a run beside waiting: a deadline, a call or a readable descriptor at its end. Few runs have any
 * of it, so it hangs off the run and is made when first asked for. */
#ifndef MUSTER_SCHEDULER_RUN_COMPLETION_H
#define MUSTER_SCHEDULER_RUN_COMPLETION_H

#include "scheduler/run/run.h"

/* The run has ended; called by the thread that ends it, first with the run's lock held, so that whoever asks later finds it ended. */
void mu_completion_signal(muster_run *run);
/* And then without: nothing of the run's deadline is under way when it returns. Posts the callbacks. */
void mu_completion_end(muster_run *run);

/* The application gives up its handle: closes the descriptor. */
void mu_completion_close(muster_run *run);
/* With the run. */
void mu_completion_free(mu_completion *completion);

#endif
