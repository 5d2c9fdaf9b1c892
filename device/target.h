/* Which SM to write PTX for. */
#ifndef MUSTER_DEVICE_TARGET_H
#define MUSTER_DEVICE_TARGET_H

#include "device/device.h"

/* The targets to try for a device: its native SM, then those of 89, 86, 80, 75, 70 that are below it. Returns how many
 * of `targets` were filled. */
enum { MU_MAX_TARGETS = 6 };
int mu_target_candidates(int native_sm, int targets[MU_MAX_TARGETS]);

/* Writes a tiny program for `sm` in the oldest PTX version that knows it. */
enum { MU_PROBE_PTX_BYTES = 128 };
#define MU_PROBE_ENTRY "mu_probe" /* takes no arguments and does nothing */
void mu_target_probe_ptx(int sm, char ptx[MU_PROBE_PTX_BYTES]);

/* Compiles the probe for each candidate until one succeeds, and sets the capability's ptx_target_sm; 0 with the reasons
 * kept when none does, which is no failure here: cubins need no target. With the device's context current; at open.
 * Errors: OUT_OF_HOST_MEMORY, a fault or a loss. */
muster_status mu_target_probe(mu_device *device, muster_error *error);

#endif
