/* Stream-ordered memory pools. */
#ifndef MUSTER_DEVICE_SIM_SIM_POOL_H
#define MUSTER_DEVICE_SIM_SIM_POOL_H

#include "device/sim/sim_internal.h"

/* After a synchronisation with the device its pools return what they keep above their threshold. Locked. */
void sim_pools_synchronised(sim_device *device);

struct sim_block;
struct sim_pool;
/* Frees pool memory at once (cuMemFree of it, with the device drained). Locked. */
void sim_pool_free_now(struct sim_block *block);
/* Device bits that may use the pool's memory. */
uint64_t sim_pool_access(const struct sim_pool *pool);
CUmemoryPool sim_pool_handle(const struct sim_pool *pool);
void sim_pool_close(struct sim_pool *pool);     /* the instance ends; its memory was freed */
void sim_pool_free_orphans(sim_driver *driver); /* likewise: destroyed pools that still had memory */

#endif
