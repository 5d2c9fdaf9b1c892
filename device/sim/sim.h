/* The simulated driver: the driver table with PTX executed on the CPU.
 *
 * Each instance stands for one process with its own devices: handles, ordinals, memory and the process-wide fault latch
 * of one instance are unknown to another, so that tests can run many side by side. The calls that carry no handle
 * (init, device_get_count, ...) find their instance through the table they were taken from.
 *
 * What it promises, its configuration and where it differs from a GPU: docs/simulator.md. */
#ifndef MUSTER_DEVICE_SIM_SIM_H
#define MUSTER_DEVICE_SIM_SIM_H

#include "device/driver.h"

enum { MU_SIM_MAX_INSTANCES = 64 };

/* Creates an instance. `spec` is JSON text, or a path when it starts with '/' or '@' (which is dropped); NULL for
 * MUSTER_SIM when that is set and otherwise for one device of the default preset. At most MU_SIM_MAX_INSTANCES live at
 * once: MUSTER_LIMIT_REACHED beyond. A spec that does not parse or has an unknown key or a bad value is
 * MUSTER_INVALID_CONFIG, naming the key; a file that cannot be read is MUSTER_FILE_UNREADABLE.
 *
 * Releasing the last reference (mu_driver_release) ends it like a process: operations that have not begun are dropped,
 * whatever was not freed is freed, and every handle of it is dead. No call on the table may be in progress then. */
muster_status mu_sim_driver_create(const char *spec, mu_driver **out, muster_error *error);

/* ------------------------------------------------------------------------------------------------------ for tests --
 * `driver` must be a simulated one. Any thread. */

/* While a device is held its executor begins no operation (one already running ends), so that a test can build up a
 * backlog. Calls that wait for the device block until it is let go. `ordinal` out of range does nothing. */
void mu_sim_hold(mu_driver *driver, int ordinal, bool held);

/* How often an entry was called, by its member name in the table ("launch_kernel"); refused calls count too.
 * UINT64_MAX for a name that is no entry. Exact once the calling threads are quiet. */
uint64_t mu_sim_calls(const mu_driver *driver, const char *entry);

/* The longest backlog of any stream so far and the number of kernels that were executed (graph nodes included), for
 * one device. */
typedef struct mu_sim_statistics {
    uint64_t kernels;             /* executed to their end */
    uint64_t instructions;        /* thread instructions of those */
    uint64_t outstanding_highest; /* calls outstanding on one stream */
    uint64_t stalls;              /* calls that waited for the device to drain: loads, unloads, frees, instantiations */
    uint64_t memory_used_bytes;   /* of the device, pools' reservations included */
} mu_sim_statistics;
void mu_sim_get_statistics(mu_driver *driver, int ordinal, mu_sim_statistics *statistics);

/* Writes the last fault's message ("kernel add, block (1,0,0), thread (3,0,0): ..."), "" when there was none; cut to
 * `bytes`. Returns its code, CUDA_SUCCESS when there was none. */
CUresult mu_sim_last_fault(const mu_driver *driver, char *text, size_t bytes);

/* Called with one line when a kernel or copy faults or a device is lost; from an executor thread, which must not call
 * the driver. Set before the first launch. NULL: nobody. */
typedef void (*mu_sim_fault_fn)(void *user, const char *line);
void mu_sim_on_fault(mu_driver *driver, mu_sim_fault_fn function, void *user);

/* Virtual time ("virtual_time": true): when the last operation that has completed ended, in modelled nanoseconds.
 * Otherwise mu_now_ns(). */
uint64_t mu_sim_now_ns(const mu_driver *driver);

/* From now on kernels on a device take `percent` more than the model says, in modelled time, as beside the load of another process. */
void mu_sim_slow_down(mu_driver *driver, int ordinal, uint32_t percent);

/* Loses a device now, as the fault plan's "lose" does. */
void mu_sim_lose_device(mu_driver *driver, int ordinal);

/* What another process takes of a device's memory, from now on. */
void mu_sim_set_other_memory(mu_driver *driver, int ordinal, uint64_t bytes);

#endif
