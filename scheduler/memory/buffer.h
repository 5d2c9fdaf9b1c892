/* Buffers: logical memory with copies on the host and the devices. */
#ifndef MUSTER_SCHEDULER_MEMORY_BUFFER_H
#define MUSTER_SCHEDULER_MEMORY_BUFFER_H

#include "scheduler/memory/coherence.h"
#include "scheduler/memory/pinned.h"
#include "scheduler/run/order.h"
#include "scheduler/runtime/handle.h"

typedef struct mu_acquisition mu_acquisition;
typedef struct mu_piece mu_piece; /* scheduler/memory/download.h */

struct muster_buffer {
    mu_handle handle;
    uint64_t bytes;
    /* The host location: the application's memory, or our own, made when it is first acquired (under `host_lock`). */
    void *host;
    bool owns_host;
    bool host_pinned;          /* the application's memory, and pinned: copies need no staging. Constant */
    mu_host_place place;       /* of the application's memory; under the lock of the runtime's pinned memory */
    pthread_mutex_t host_lock; /* making the host memory, and the rest of this paragraph */
    pthread_cond_t host_changed;
    mu_acquisition *acquisitions;
    /* Evictions write unique content back to the host memory, which must not happen while the application uses that memory or
     * has given it up: no write-back begins while there are users, and a user waits for those that have begun. */
    uint32_t host_users, write_backs; /* write_backs: 0 or 1 */
    bool
        withdrawn; /* the buffer is destroyed: the application's memory is there only until the runs that use it have ended */
    mu_order_state order; /* under the runtime's order lock */
    mu_coherence coherence;
    mu_piece *copied;             /* what is being copied to the host memory; under the table's lock */
    atomic_uint devices_left;     /* while its device memory is freed */
    struct mu_buffer_drop *drops; /* one message per device, made beforehand: dropping the last reference cannot fail */
};

/* A buffer that belongs to a graph (partial results of a reduction): no host memory, one reference, the caller's. */
muster_status mu_buffer_create_internal(muster_runtime *runtime, uint64_t bytes, muster_buffer **buffer,
                                        muster_error *error);
/* A worker is about to write the buffer's content to its host memory; false: not now. `kept`: a run that uses the buffer is kept from ending
 * until the write-back has; without, host memory that is withdrawn is not written. */
bool mu_buffer_begin_write_back(muster_buffer *buffer, bool kept);
bool mu_buffer_is_withdrawn(muster_buffer *buffer);
void mu_buffer_end_write_back(muster_buffer *buffer);
/* The application uses the host memory from now on, once mu_buffer_is_writing_back has turned false; and no longer. */
void mu_buffer_begin_host_use(muster_buffer *buffer);
bool mu_buffer_is_writing_back(muster_buffer *buffer);
void mu_buffer_end_host_use(muster_buffer *buffer);
/* Makes the host memory of a buffer that has none, zeroed: what nobody has written is zero there as well. Any thread.
 * OUT_OF_HOST_MEMORY. */
muster_status mu_buffer_make_host(muster_buffer *buffer, muster_error *error);
/* Drops one reference; the last frees the buffer, its device memory by messages to the devices' workers. */
void mu_buffer_release(muster_buffer *buffer);

#endif
