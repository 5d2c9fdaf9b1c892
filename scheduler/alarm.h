/* Waking a worker that sleeps while its device is at something long: the driver calls when the oldest epoch has completed, so the worker
 * need not look for itself every hundred microseconds.
 *
 * The driver cannot be kept from calling, and on a lost device may call at any time or never: what it is given outlives the worker then. */
#ifndef MUSTER_SCHEDULER_ALARM_H
#define MUSTER_SCHEDULER_ALARM_H

#include <stdbool.h>

#include "muster.h"

typedef struct mu_actor mu_actor;
typedef struct mu_alarm mu_alarm;

/* By the actor's worker, all of them. OUT_OF_HOST_MEMORY. */
muster_status mu_alarm_create(mu_actor *actor, mu_alarm **alarm, muster_error *error);
/* Sees to it that the worker's mailbox is nudged when the oldest epoch in flight completes; once for each. A failure is the device's.
 * *set: it is, now or before. */
muster_status mu_alarm_set(mu_actor *actor, mu_alarm *alarm, bool *set, muster_error *error);
/* NULL is ignored. Blocks until the driver is done with it, which is at once, or leaves it to the driver when the device is lost. */
void mu_alarm_destroy(mu_actor *actor, mu_alarm *alarm);

#endif
