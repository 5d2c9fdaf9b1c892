/* The loss of a device, by the actor's worker: what it remembers, and the end of everything that was there. */
#ifndef MUSTER_SCHEDULER_LOSS_H
#define MUSTER_SCHEDULER_LOSS_H

#include "scheduler/actor.h"

/* The device, or all of them, is gone: remember why; every task ends with `error`. */
void mu_actor_lose(mu_actor *actor, const muster_error *error);

/* Ends every task that was enqueued on the lost device, and those in the open epoch. */
void mu_loss_end_everything(mu_actor *actor);

#endif
