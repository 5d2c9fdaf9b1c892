/* Several actors on one device (actors_per_device): each has a pool of its own, and what one pool merely caches is not there for
 * another. The ledger counts it as live all the same (device/ledger.h), since it can be had: by asking. */
#ifndef MUSTER_SCHEDULER_RUNTIME_SHARES_H
#define MUSTER_SCHEDULER_RUNTIME_SHARES_H

typedef struct mu_actor mu_actor;

/* An allocation failed that the ledger had granted: asks the other actors on the device for what their pools cache. They are woken and
 * answer in their turn; the caller tries again. Does nothing where the actor is alone. By the worker; does not block. */
void mu_shares_ask(mu_actor *actor);

/* Gives back what the pool caches, if another actor has asked since the last call. By the worker, in every turn. */
void mu_shares_answer(mu_actor *actor);

#endif
