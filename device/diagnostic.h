/* The stable one-line diagnostic of a kernel against a device: what it asks, what the device has, everything that is
 * missing. Scripts read it; its format only grows at the end. Pure; any thread; free of CUDA types. */
#ifndef MUSTER_DEVICE_DIAGNOSTIC_H
#define MUSTER_DEVICE_DIAGNOSTIC_H

#include "device/capability.h"

/* What one launch of a kernel really requires. */
typedef struct mu_kernel_demand {
    const char *kernel; /* '|', ',' and line ends in it are written as '_' */
    int required_sm;    /* 0: any */
    uint32_t grid[3], block[3];
    uint64_t static_shared_bytes, dynamic_shared_bytes;
    bool cooperative;
    bool tensor_cores;
    int64_t occupancy; /* active blocks per multiprocessor when known, negative otherwise */
} mu_kernel_demand;

enum { MU_DIAGNOSTIC_BYTES = 1024 };

/* Writes the line, NUL-terminated, without a line feed:
 *     cuda-kernel-capability-v1|kernel=K|status=ok
 *     cuda-kernel-capability-v1|kernel=K|status=blocked|fix=A,B,...
 * with, in this order and only those that block, sm_version(required=,actual=), threads_per_block(requested=,max=),
 * shared_memory(requested=,max=), cooperative_launch, tensor_cores; then in either case
 *     |grid=[x, y, z]|block=[x, y, z]|grid_blocks=|threads_per_block=|dynamic_shared_bytes=
 * for a cooperative kernel |cooperative_resident_block_limit= and, when its grid is larger,
 *     |cooperative_residency=blocked(required=,limit=)
 * The limit is that of the loaded function when its occupancy is known, else the device's. Products beyond 64 bits are
 * written as 2^64 - 1. Returns whether nothing blocks, residency included. */
bool mu_diagnostic_line(const mu_capability *capability, const mu_kernel_demand *demand,
                        char line[MU_DIAGNOSTIC_BYTES]);

#endif
