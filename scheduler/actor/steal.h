/* Stealing: an actor that runs out of work gets some of what waits at another, by message.
 *
 * An actor has one request, which is always in one of three places:
 *   - with the actor itself, while it has work, or is about to ask;
 *   - with one victim, the actor with the longest queue that has not refused it since it last got something (MU_MAIL_STEAL). The victim
 *     answers as soon as it has handed its device all that it may: it gives what pays, and says how much (MU_MAIL_STOLEN), after the
 *     tasks themselves (MU_MAIL_TASKS);
 *   - registered, a bit in the runtime's `thieves`, when nobody else is left to ask. Whoever has work that waits looks there when it
 *     has handed its device all that it may, takes the bit, and answers as if it had been asked. So an actor that finds nothing sleeps,
 *     and an idle runtime with it.
 * Every actor starts registered, and stays so while it works: whether giving pays is the victim's to find out. When it runs out of work
 * again and somebody's queue is long, it takes its request back to ask, once around. So devices whose queues are never long send no
 * request at all.
 *
 * What is given: tasks from the ready queue of a device that has as much ahead of it as it may have, but not the first; without pin,
 * held instances, repetitions, or a grid that must be resident; whose predecessors' epochs are closed; each once at most. And only
 * where the job would end sooner than this device's whole queue, by what placement knows (mu_place_look): the thief's queue, then the
 * copies there, then the job. So giving stops by itself when the queues are about even.
 *
 * A lost device gives nothing and asks for nothing; what was given to it before that was known goes on to others from there, as
 * everything that is placed on it (scheduler/actor/loss.h). With one device, in serial mode, or with MUSTER_RUNTIME_NO_STEALING none of this runs.
 * By the actor's worker. */
#ifndef MUSTER_SCHEDULER_ACTOR_STEAL_H
#define MUSTER_SCHEDULER_ACTOR_STEAL_H

#include "scheduler/actor/actor.h"

/* Before the actor's worker starts, and before any device can have work. */
void mu_steal_init(mu_actor *actor);

/* MU_MAIL_STEAL and MU_MAIL_STOLEN. */
void mu_steal_asked(mu_actor *actor, mu_message *request);
void mu_steal_answered(mu_actor *actor, const mu_message *request);

/* Answers, looks for registered requests, and asks, as it comes: once each time around. Where the runtime steals at all. */
void mu_steal_step(mu_actor *actor);

#endif
