/* Detours: content that only devices have from which this one cannot copy directly goes by way of the host.
 *
 * The device that has it brings it to the buffer's host memory (scheduler/memory/fetch.h), through pinned slots, and the task that needs it
 * then finds it there. The driver could copy between such devices too, but on the worker's time. By the actor's worker. */
#ifndef MUSTER_SCHEDULER_MEMORY_DETOUR_H
#define MUSTER_SCHEDULER_MEMORY_DETOUR_H

#include "scheduler/actor/actor.h"

/* The detour that brings some of the area to the host already, or a new one for all of it. NULL: `error` is filled. */
mu_detour *mu_detour_take(mu_actor *actor, muster_buffer *buffer, const mu_area *area, muster_error *error);
/* The task goes back to the ready tasks when the content is on the host, or ends if it did not get there. */
void mu_detour_wait(mu_actor *actor, mu_detour *detour, mu_task *task);

#endif
