/* Buffers: logical memory with copies on the host and the devices. */
#ifndef MUSTER_SCHEDULER_BUFFER_H
#define MUSTER_SCHEDULER_BUFFER_H

#include "scheduler/coherence.h"
#include "scheduler/handle.h"
#include "scheduler/order.h"

typedef struct mu_acquisition mu_acquisition;

struct muster_buffer {
    mu_handle handle;
    uint64_t bytes;
    /* The host location: the application's memory, or our own, made when it is first acquired (under `host_lock`). */
    void *host;
    bool owns_host;
    pthread_mutex_t host_lock; /* making the host memory, and the list of acquisitions */
    mu_acquisition *acquisitions;
    mu_order_state order; /* under the runtime's order lock */
    mu_coherence coherence;
};

/* A buffer that belongs to a graph (partial results of a reduction): no host memory, one reference, the caller's. */
muster_status mu_buffer_create_internal(muster_runtime *runtime, uint64_t bytes, muster_buffer **buffer,
                                        muster_error *error);
/* Drops one reference; the last frees the buffer, its device memory by messages to the devices' workers. */
void mu_buffer_release(muster_buffer *buffer);

#endif
