/* The simulated driver: the driver table with PTX executed on the CPU.
 *
 * Each instance stands for one process with its own devices: handles, ordinals, memory and the process-wide fault latch
 * of one instance are unknown to another, so that tests can run many side by side. The calls that carry no handle
 * (init, device_get_count, ...) find their instance through the table they were taken from. */
#ifndef MUSTER_DEVICE_SIM_SIM_H
#define MUSTER_DEVICE_SIM_SIM_H

#include "device/driver.h"

/* Creates an instance. `spec` is JSON text (docs/simulator.md lists every key), or NULL for MUSTER_SIM when that is set
 * and otherwise for one device of the default preset. A spec that does not parse or has an unknown key is
 * MUSTER_INVALID_CONFIG, naming it. At most MU_SIM_MAX_INSTANCES live at once: MUSTER_LIMIT_REACHED beyond. */
muster_status mu_sim_driver_create(const char *spec, mu_driver **out, muster_error *error);

enum { MU_SIM_MAX_INSTANCES = 64 };

#endif
