/* Bursts: many kernel launches sent with one call, as an instantiated graph whose nodes are given new launches each time.
 *
 * A burst is `branches` chains of `length` kernels. In a burst of chains (MU_BURST_CHAINS) each kernel comes after the one before in its
 * chain; chains are independent, and the device may run them side by side. A burst of independent launches (MU_BURST_INDEPENDENT) promises
 * no order at all. Where device and driver can (mu_burst_overlaps), its chains are joined by edges of launch order: a kernel waits until
 * all blocks of the one before have begun, not until they have ended. So even one chain, which is launched as quickly as any, runs as many
 * kernels side by side as the device has room for. Elsewhere its chains are ordinary ones, and only different chains overlap.
 *
 * A launch by itself costs 3.3 us; in a chain 0.65 us drained and 0.2 us of the caller's time, in four or eight chains 0.23 us drained; in
 * one chain of launch order 0.37 us. What costs extra: 1.5 us when the node held another kernel, grid or block, 0.3 us for a node
 * that is switched off, 1.2 us for each chain beyond the first, 0.7 in launch order. Sixty-four kernels of 20 us take 45 us in one chain of
 * launch order, and 98 in 32 ordinary ones. A node that is given what it holds costs nothing (H200,
 * tests/bench/burst_bench.c). Nodes may be changed while earlier launches of the same burst are in flight: those keep their own.
 *
 * The worker's thread, except where said. Free of CUDA types. */
#ifndef MUSTER_DEVICE_BURST_H
#define MUSTER_DEVICE_BURST_H

#include "device/device.h"

typedef struct mu_burst mu_burst;

enum {
    MU_BURST_MAX = 1024, /* nodes */
    MU_BURST_KEPT_BYTES =
        64 /* of argument values that a node remembers; launches with more are always given to the driver */
};

typedef enum mu_burst_order { MU_BURST_CHAINS, MU_BURST_INDEPENDENT } mu_burst_order;

/* Whether launch order can be had: the driver has the entry (CUDA 12.3), the device has programmatic dependent launch (compute
 * capability 9.0), and the driver has not refused it to an earlier burst of the device. */
bool mu_burst_can_overlap(const mu_device *device);

/* Instantiates a burst of empty kernels, and charges what the driver took for it as fixed memory. Stalls a busy device until
 * it has drained: make bursts before work, or when there is none. The first one of a device loads a module for it.
 * Errors: INVALID_ARGUMENT (no or over MU_BURST_MAX nodes), PROGRAM_INVALID (the driver compiles no empty kernel),
 * OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY. */
muster_status mu_burst_create(mu_device *device, uint32_t branches, uint32_t length, mu_burst_order order,
                              mu_burst **burst, muster_error *error);
/* Nothing of it may be in flight. NULL is ignored. Stalls nothing. */
void mu_burst_destroy(mu_burst *burst);

uint32_t mu_burst_capacity(const mu_burst *burst); /* branches * length */
uint32_t mu_burst_branches(const mu_burst *burst);
/* Whether its chains are in launch order, so that all its kernels may run side by side. */
bool mu_burst_overlaps(const mu_burst *burst);

/* Whether a launch may be part of a burst: not cooperative, no cluster, no counter to zero. */
static inline bool mu_burst_takes(const mu_launch *launch) {
    return !launch->cooperative && launch->cluster[0] == 0 && launch->counter_bytes == 0;
}

/* Function, grid, block and shared memory in one number, not 0: launches of one key are cheap in each other's nodes. Different ones
 * rarely have the same. Any thread. */
uint32_t mu_launch_key(mu_function function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes);
/* Of what node `index` holds; 0: nothing yet. */
uint32_t mu_burst_key(const mu_burst *burst, uint32_t index);
/* Whether those are the keys of the first `count` nodes. */
bool mu_burst_has_keys(const mu_burst *burst, const uint32_t *keys, uint32_t count);

/* Gives node `index` its launch, so that it is part of the next launch of the burst; the argument values are read before it
 * returns. Node i is number i / branches of chain i % branches. The guards are those of mu_launch_prepared, and the shape is trusted
 * likewise.
 * Errors: INVALID_ARGUMENT (guards, an index beyond the capacity, a launch that no burst takes), CAPABILITY_MISSING,
 * LAUNCH_FAILED when the driver cannot update the node: it is not part of the next launch, and the launch must go out by itself. */
muster_status mu_burst_set(mu_burst *burst, uint32_t index, const mu_launch *launch, muster_error *error);

/* For a device that has nothing to do, which includes this burst: instantiates it anew with the kernels and grids that its nodes have
 * by now, if those have stayed for some launches. A node whose kernel is the one it was instantiated with runs 0.1 us sooner when its
 * arguments change. Stalls as mu_burst_create does. Whether there was anything to do. */
bool mu_burst_renew(mu_burst *burst);

/* Puts the empty kernel back into each node that holds `function` or was made with it, before its module is unloaded: a driver may look at
 * a node that is switched off, and at what it was made with. What is in flight of it must have ended. */
muster_status mu_burst_forget(mu_burst *burst, mu_function function, muster_error *error);

/* Launches the nodes that were set since the last call, on the dispatch lane. The others are switched off, or, in launch order, given the
 * empty kernel: what switching off does to the order of those around it is not documented. What follows on the lane comes after all of them.
 * Errors: INVALID_ARGUMENT (none was set), LAUNCH_FAILED: nothing was launched, and the launches can go out one by one. In any case
 * all nodes must be set again. */
muster_status mu_burst_launch(mu_burst *burst, muster_error *error);

#endif
