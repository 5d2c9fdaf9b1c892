/* What jobs and transfers will probably take, from what they took: what placement goes by where there is a choice of device.
 *
 * Estimates are written by the workers and read by any thread, relaxed: nothing but how well jobs are placed depends on them. With one
 * device nobody asks, and nothing is noted. */
#ifndef MUSTER_SCHEDULER_ESTIMATE_H
#define MUSTER_SCHEDULER_ESTIMATE_H

#include "scheduler/actor.h"

/* One launch of the node's kernel on the device, 0: not known. */
uint64_t mu_estimate_launch_ns(const mu_node *node, int device);
/* The job on the device; never 0, for each costs something. */
uint64_t mu_estimate_job_ns(const muster_runtime *runtime, const mu_node *node, int device);
/* Copying so many bytes to the device, from the host or (direct) from another. */
uint64_t mu_estimate_copy_ns(const muster_runtime *runtime, int device, bool direct, uint64_t bytes);

/* The actor's worker: epochs `first` to `last` have just been seen complete; the device began them at `since_ns` or later. */
void mu_estimate_note_epochs(mu_actor *actor, uint64_t first, uint64_t last, uint64_t since_ns);
/* A copy of so many bytes has just been seen complete, with the upload lane to itself since `since_ns`. */
void mu_estimate_note_copy(mu_actor *actor, bool from_host, uint64_t bytes, uint64_t since_ns);

#endif
