/* What one device is: probed once when it is opened, constant afterwards. Free of CUDA types.
 *
 * Sizes and counts are the driver's. A field whose comment says so is 0 when the driver did not report it; everything
 * that uses such a field treats 0 as "not known", never as a limit of zero. */
#ifndef MUSTER_DEVICE_CAPABILITY_H
#define MUSTER_DEVICE_CAPABILITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/tuning.h"
#include "muster.h"

/* How one device reaches another of the same driver. */
typedef struct mu_peer_link {
    bool access;          /* direct loads, stores and copies are possible */
    bool native_atomics;  /* atomics across the link */
    int performance_rank; /* 0 is the fastest kind of link of this machine; only comparable within one machine */
} mu_peer_link;

typedef struct mu_capability {
    /* identity */
    int ordinal; /* the driver's, after CUDA_VISIBLE_DEVICES */
    bool simulated;
    char name[96];
    unsigned char uuid[16];
    char pci_bus_id[32]; /* "0000:1b:00.0" */
    int numa_node;       /* of the host, -1 when not known */

    /* code */
    int compute_major, compute_minor;
    int native_sm;      /* 90 for compute capability 9.0 */
    int ptx_target_sm;  /* what PTX is lowered for: native_sm until a target probe chose a lower one */
    int driver_version; /* as cuDriverGetVersion: 13000 */

    /* memory */
    uint64_t memory_bytes;
    bool unified_addressing;
    bool memory_pools; /* stream-ordered allocation */

    /* launches */
    int max_threads_per_block;
    int max_block[3], max_grid[3];
    int max_threads_per_multiprocessor; /* 0: not probed */
    int max_blocks_per_multiprocessor;  /* 0: not reported (the driver gave nothing, zero or less): no clamp */
    int registers_per_block;
    int registers_per_multiprocessor;    /* 0: not probed */
    int shared_bytes_per_block;          /* without opting in: 48 KiB everywhere so far */
    int shared_bytes_optin;              /* at most, when the function's limit is raised */
    int shared_bytes_per_multiprocessor; /* 0: not probed */
    int warp_size;                       /* 0: not known, nothing can be lowered (mu_capability_check) */
    int multiprocessors;
    int clock_khz; /* 0: not reported */
    bool concurrent_kernels;
    int copy_engines;
    bool cooperative_launch; /* the attribute alone; mu_has_grid_sync adds the architecture */
    bool cluster_launch;

    /* links to the driver's other devices, by their ordinal; the entry of the device itself is all zero */
    int peer_count; /* entries filled: the driver's devices, at most MU_MAX_DEVICES */
    mu_peer_link peers[MU_MAX_DEVICES];
} mu_capability;

/* Predicates: what a kernel may rely on. Pure; any thread. */
bool mu_has_f16(const mu_capability *capability);           /* compute capability >= 5.3 */
bool mu_has_bf16(const mu_capability *capability);          /* >= 8.0 */
bool mu_has_tensor_cores(const mu_capability *capability);  /* >= 7.0 */
bool mu_has_grid_sync(const mu_capability *capability);     /* >= 6.0 and the cooperative attribute */
bool mu_has_async_compute(const mu_capability *capability); /* concurrent kernels, or a copy engine */
bool mu_has_subgroup(const mu_capability *capability);      /* the warp size is known */

/* Feature flags: part of the key of compiled PTX, so bits are append-only. */
enum {
    MU_FEATURE_SUBGROUP = 1u << 0,
    MU_FEATURE_F16 = 1u << 1,
    MU_FEATURE_BF16 = 1u << 2,
    MU_FEATURE_TENSOR_CORES = 1u << 3, /* the hardware has them and the lowering uses them */
    MU_FEATURE_ASYNC_COMPUTE = 1u << 4
};
uint32_t mu_capability_features(const mu_capability *capability, bool lowering_has_tensor_cores);

/* Whether code can be lowered for the device at all. CAPABILITY_MISSING when the warp size is not known. */
muster_status mu_capability_check(const mu_capability *capability, muster_error *error);

#endif
