/* The host thread: one per runtime, which runs what is the application's and may take its time. Host jobs, and whatever
 * tells the application that something has ended. Workers post to it and go on; nothing of ours waits for it without limit.
 *
 * It starts with the runtime and is stopped when every run has ended; it sleeps while it has nothing to do. */
#ifndef MUSTER_SCHEDULER_RUNTIME_HOST_H
#define MUSTER_SCHEDULER_RUNTIME_HOST_H

#include "muster.h"
#include "scheduler/actor/mailbox.h"

typedef struct mu_host mu_host;
typedef struct mu_host_call mu_host_call;

/* Embedded in what has to be called. The poster's until it is posted, then `run`'s, which may free it or post it again. */
struct mu_host_call {
    mu_message message;
    void (*run)(mu_host_call *call); /* on the host thread; the next call waits until it returns */
};

/* Starts the thread. OUT_OF_HOST_MEMORY, also when the system has no thread for us. */
muster_status mu_host_create(mu_host **host, muster_error *error);

/* Runs what was posted before, and what that posts, then stops the thread. Nobody else may post any more. Blocks. NULL: does
 * nothing. */
void mu_host_destroy(mu_host *host);

/* Any thread, the host thread included; never blocks, allocates or fails. Calls run one after the other, those of one poster in
 * the order of its posting; what the poster wrote before is visible to the call. */
void mu_host_post(muster_runtime *runtime, mu_host_call *call);

/* Returns when the host thread has done what was posted to it before, at most timeout_ns later, for a call may take its time; at once
 * from the host thread itself, or without memory for it. Blocks. */
void mu_host_pass(muster_runtime *runtime, uint64_t timeout_ns);

/* Whether the caller is in a call of this runtime's host thread. */
bool mu_host_is_current(const muster_runtime *runtime);

#endif
