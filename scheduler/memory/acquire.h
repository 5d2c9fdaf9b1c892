/* Host access to buffers: muster_buffer_acquire and _release. */
#ifndef MUSTER_SCHEDULER_MEMORY_ACQUIRE_H
#define MUSTER_SCHEDULER_MEMORY_ACQUIRE_H

#include "scheduler/memory/buffer.h"

/* Ends every acquisition of the buffer that is still open: its runtime goes away. */
void mu_acquisitions_end(muster_buffer *buffer);

#endif
