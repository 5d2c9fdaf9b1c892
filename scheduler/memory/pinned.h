/* Pinned host memory: what muster_host_alloc lends, what muster_host_register pinned, and which buffers lie in either.
 *
 * Making pinned memory is slow and giving it back stalls busy devices, so what is freed is kept for the next of the same size class.
 * More than MU_PINNED_KEEP_BYTES of it goes at an idle moment of the device it was made with, and more than twice that at once.
 *
 * Any thread, unless said otherwise. The lock is short and never held over a driver call. */
#ifndef MUSTER_SCHEDULER_MEMORY_PINNED_H
#define MUSTER_SCHEDULER_MEMORY_PINNED_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "muster.h"

typedef struct mu_actor mu_actor;
typedef struct mu_host_block mu_host_block;

/* Of a runtime. */
typedef struct mu_pinned {
    pthread_mutex_t lock; /* everything below */
    mu_host_block **blocks;
    size_t count, capacity;   /* by address; none overlaps another */
    muster_buffer *elsewhere; /* buffers over the application's memory that is not in a block */
    uint64_t kept_bytes;      /* in freed blocks */
    uint64_t turn;            /* of frees: the one kept longest goes first */
} mu_pinned;

/* A buffer's place in it. */
typedef struct mu_host_place {
    mu_host_block *block; /* constant; NULL: in none */
    muster_buffer *next, *previous;
} mu_host_place;

void mu_pinned_init(mu_pinned *pinned);
/* Gives everything back, in use or not: the last thing that is asked of the workers. Blocks. */
void mu_pinned_give_back(muster_runtime *runtime);
void mu_pinned_destroy(mu_pinned *pinned); /* with the workers gone */

/* A new buffer over the application's memory `buffer->host`: finds its place, and whether it is pinned. Until mu_pinned_leave the memory
 * will be neither unregistered nor lent again. INVALID_ARGUMENT: part of it is in a block and part is not, or it is no host memory. */
muster_status mu_pinned_enter(muster_runtime *runtime, muster_buffer *buffer, muster_error *error);
/* The application has destroyed its handle: freeing the memory is no longer refused, but waits for mu_pinned_leave. */
void mu_pinned_part(muster_buffer *buffer);
/* Nothing uses the buffer any more. */
void mu_pinned_leave(muster_buffer *buffer);

/* By a worker whose device is idle: gives back what is kept beyond the bound. Whether there was any. */
bool mu_pinned_collect(mu_actor *actor);

#endif
