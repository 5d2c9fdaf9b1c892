/* What jobs and transfers will probably take, from what they took: what placement goes by where there is a choice of device.
 *
 * Estimates are written by the workers and read by any thread, relaxed: nothing but how well jobs are placed depends on them. They
 * begin with what earlier runtimes learnt (scheduler/placement/history.h). With one device only what is long is noted, for the worker
 * to know when to look. */
#ifndef MUSTER_SCHEDULER_PLACEMENT_ESTIMATE_H
#define MUSTER_SCHEDULER_PLACEMENT_ESTIMATE_H

#include "scheduler/actor/actor.h"

/* One launch of the node's kernel on the device, 0: not known. */
uint64_t mu_estimate_launch_ns(const mu_node *node, int device);
/* The job on the device; never 0, for each costs something. */
uint64_t mu_estimate_job_ns(const muster_runtime *runtime, const mu_node *node, int device);
/* Copying so many bytes to the device, from the host or (direct) from another. */
uint64_t mu_estimate_copy_ns(const muster_runtime *runtime, int device, bool direct, uint64_t bytes);

/* What each device takes for a block of the kernel while a launch fills it, in picoseconds, to compare devices by: never 0. From launches
 * that were long and wide enough; a device that had none is judged by those that had, in proportion to what another kernel (one of
 * `others`) takes on both, or to their multiprocessors and clocks. Actors on one device count as equal. False: the kernel was measured
 * nowhere, and the numbers mean nothing but their proportions. */
bool mu_estimate_paces(const muster_runtime *runtime, const muster_kernel *kernel, muster_kernel *const *others,
                       size_t other_count, uint64_t paces_ps[MU_MAX_DEVICES]);
/* Whether devices of such paces count as unlike. */
bool mu_estimate_differ(const uint64_t *paces_ps, uint32_t count);

/* The actor's worker: epochs `first` to `last` have just been seen complete; the device began them at `since_ns` or later. */
void mu_estimate_note_epochs(mu_actor *actor, uint64_t first, uint64_t last, uint64_t since_ns);
/* A copy of so many bytes has just been seen complete, with the upload lane to itself since `since_ns`. */
void mu_estimate_note_copy(mu_actor *actor, bool from_host, uint64_t bytes, uint64_t since_ns);

#endif
