/* Bursts: many kernel launches sent with one call, as an instantiated graph that is given new parameters each time.
 *
 * A launch costs 3.5 us; as a node of a re-parameterised chain it costs 0.6 us drained, 0.2 to 0.3 us of the caller's
 * time, 1.8 us more when the node's function changes, and 0.3 us when the node is switched off. Parameters may be replaced
 * while earlier launches of the same burst are in flight: those keep their own.
 *
 * The worker's thread, except where said. Free of CUDA types. */
#ifndef MUSTER_DEVICE_BURST_H
#define MUSTER_DEVICE_BURST_H

#include "device/device.h"

typedef struct mu_burst mu_burst;

typedef enum mu_burst_shape {
    MU_BURST_CHAIN = 1,   /* each kernel after the one before: as on a stream */
    MU_BURST_BRANCHES = 2 /* independent kernels, which the device may run side by side */
} mu_burst_shape;

enum { MU_BURST_MAX = 1024 };

/* Instantiates a burst of `capacity` empty kernels, and charges what the driver took for it as fixed memory. Stalls a
 * busy device until it has drained: make bursts before work. The first one of a device loads a module for it.
 * Errors: INVALID_ARGUMENT (capacity 0 or over MU_BURST_MAX), PROGRAM_INVALID (the driver compiles no empty kernel),
 * OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY. */
muster_status mu_burst_create(mu_device *device, mu_burst_shape shape, uint32_t capacity, mu_burst **burst,
                              muster_error *error);
/* Nothing of it may be in flight. NULL is ignored. Stalls nothing. */
void mu_burst_destroy(mu_burst *burst);

uint32_t mu_burst_capacity(const mu_burst *burst);
mu_burst_shape mu_burst_shape_of(const mu_burst *burst);

/* Whether a launch may be part of a burst: not cooperative, no cluster, no counter to zero. */
bool mu_burst_takes(const mu_launch *launch);

/* What a node holds: setting a launch of this function there is cheap. NULL: nothing yet. */
mu_function mu_burst_function(const mu_burst *burst, uint32_t index);

/* Gives node `index` its launch; the argument values are read before it returns. The guards are those of
 * mu_launch_prepared, and the shape is trusted likewise.
 * Errors: INVALID_ARGUMENT (guards, an index beyond the capacity, a launch that no burst takes), CAPABILITY_MISSING,
 * LAUNCH_FAILED when the driver cannot update the node: the node is as it was, and the launch must go out by itself. */
muster_status mu_burst_set(mu_burst *burst, uint32_t index, const mu_launch *launch, muster_error *error);

/* Puts the empty kernel back into each node that holds `function`, whose module is about to be unloaded: a driver may look
 * at a node that is switched off. What is in flight of it must have ended. */
muster_status mu_burst_forget(mu_burst *burst, mu_function function, muster_error *error);

/* Launches nodes 0 .. count - 1 on the dispatch lane, in order for a chain; the others are switched off. Each of them
 * must have been set since the burst was made.
 * Errors: INVALID_ARGUMENT (count 0 or beyond the capacity, a node never set), LAUNCH_FAILED: nothing was launched, and
 * the launches can go out one by one. */
muster_status mu_burst_launch(mu_burst *burst, uint32_t count, muster_error *error);

#endif
