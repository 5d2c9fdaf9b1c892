/* Around the launch boundary (mu_launch_validated, mu_launch_prepared in device/device.h): resolving a shape in the right
 * order before, and accounting for it after. Free of CUDA types. */
#ifndef MUSTER_DEVICE_LAUNCH_H
#define MUSTER_DEVICE_LAUNCH_H

#include "device/device.h"

/* Where a resolution gets its function and its occupancy from: the caller's caches. */
typedef struct mu_resolver {
    muster_status (*function)(void *user, mu_function *function, mu_function_info *info, muster_error *error);
    muster_status (*occupancy)(void *user, mu_function function, uint32_t block_threads, uint64_t dynamic_shared_bytes,
                               int *blocks, muster_error *error);
    void *user;
} mu_resolver;

/* Resolves launch->function: geometry, then cooperative stage 1, then the function (compile and load), then what the
 * function itself allows, then stage 2. A shape that the device alone refuses never reaches the resolver, so it costs no
 * compile and touches no counter of a cache. `occupancy` is asked for cooperative launches only.
 * Errors: INVALID_GEOMETRY, COOPERATIVE_TOO_LARGE, CAPABILITY_MISSING (shared memory), or the resolver's. */
muster_status mu_launch_resolve(const mu_capability *capability, mu_launch *launch, const mu_resolver *resolver,
                                muster_error *error);

/* After a launch, in the serial mode: waits for the dispatch lane (counted, blocks); a fault that shows then is reported with the
 * kernel's name and shape. The worker's thread. */
muster_status mu_launch_synchronise(mu_device *device, const mu_launch *launch, muster_error *error);

/* After that: counts the threads of so many equal launches, and their occupancy: `occupancy` is active blocks per multiprocessor, or
 * negative when it was not measured, which fails nothing. The worker's thread. */
void mu_launch_account(mu_device *device, const mu_launch *launch, uint64_t times, int occupancy);

/* How many back-to-back launches a job asks for: 1 when it does not say (NULL). INVALID_ARGUMENT for 0. */
muster_status mu_launch_iterations(const uint32_t *asked, uint32_t *iterations, muster_error *error);

#endif
