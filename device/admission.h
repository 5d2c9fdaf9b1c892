/* Admission to a device's memory: the ledger's answer, with one reclaim behind it. Free of CUDA types.
 *
 * A scheduler that waits for memory asks the ledger itself (mu_ledger_reserve) and comes back after releases; what
 * cannot wait asks here. */
#ifndef MUSTER_DEVICE_ADMISSION_H
#define MUSTER_DEVICE_ADMISSION_H

#include "device/device.h"

/* Reserves `bytes`. When the ledger says "not now": gives the pool's cached memory back (never what is in use), samples
 * live memory once, and asks once more; there is no loop. A requirement equal to the budget is admitted.
 * `context` names who asks ("dispatch of saxpy"). The reservation is the caller's, as from mu_ledger_reserve.
 * Errors: NEVER_FITS and OUT_OF_DEVICE_MEMORY, with requirement, budget and advice; INVALID_CONFIG when the driver
 * cannot tell the free memory. The worker's thread. */
muster_status mu_device_admit(mu_device *device, uint64_t bytes, const char *context, muster_error *error);

#endif
