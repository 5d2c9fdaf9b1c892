/* A device underneath the caches that only counts: link it instead of //device. Modules and functions are small
 * allocations, so that leaks and uses after unloading are seen by the sanitizers. */
#ifndef MUSTER_TESTS_CACHE_FAKE_DEVICE_H
#define MUSTER_TESTS_CACHE_FAKE_DEVICE_H

#include <semaphore.h>
#include <stdatomic.h>

#include "device/device.h"

struct mu_device {
    mu_capability capability;
    mu_device_counters counters;
    /* calls so far */
    atomic_uint compiles;
    unsigned loads, unloads, functions, occupancies;
    unsigned live_modules;
    /* what the next calls do */
    muster_status fail;                       /* every call fails with it, MUSTER_OK: none */
    sem_t *compile_started, *compile_proceed; /* gates of mu_module_compile when not NULL */
};

/* A device of compute capability `sm` / 10. Nothing needs freeing. */
mu_device fake_device(int sm);

/* Of the fake's own making, for comparison. */
int fake_occupancy(uint32_t block_threads, uint64_t dynamic_shared_bytes);

#endif
