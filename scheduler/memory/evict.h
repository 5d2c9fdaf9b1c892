/* Giving up device copies of buffers when memory is short, and freeing what is given up. By the actor's worker. */
#ifndef MUSTER_SCHEDULER_MEMORY_EVICT_H
#define MUSTER_SCHEDULER_MEMORY_EVICT_H

#include "scheduler/actor/actor.h"

/* The device's instances by last use: a new one, and one that is used again, becomes the newest. */
void mu_instance_link(mu_actor *actor, mu_instance *instance);
void mu_instance_touch(mu_actor *actor, mu_instance *instance);

/* The instance is out of its buffer's table: it is freed once its last use is done and nobody copies out of it. */
void mu_instance_retire(mu_actor *actor, mu_instance *instance);
void mu_instances_collect(mu_actor *actor);

/* Starts giving up at least `bytes` of instances, the least recently used first: copies that exist elsewhere are dropped, unique
 * content goes to the host first. What is in flight, pinned, or needed by `node` of `run` stays. Returns the bytes that will
 * come free without further ado, less than asked when there is no more to give up now. */
uint64_t mu_evict(mu_actor *actor, uint64_t bytes, const muster_run *run, const mu_node *node);

#endif
