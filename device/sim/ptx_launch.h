/* One running grid. */
#ifndef MUSTER_DEVICE_SIM_PTX_LAUNCH_H
#define MUSTER_DEVICE_SIM_PTX_LAUNCH_H

#include <stdatomic.h>

#include "device/sim/ptx_internal.h"

struct ptx_grid {
    const sim_launch *launch;
    const sim_module *module;
    const sim_function *kernel;
    uint64_t id;         /* %gridid */
    uint32_t cluster[3]; /* blocks, 1 where there is none */
    uint32_t cluster_blocks;
    uint64_t clusters;                 /* in the grid; without clusters every block is one */
    uint64_t step, shift;              /* the order of clusters: (n * step + shift) % clusters */
    atomic_uint_fast64_t next_cluster; /* relaxed: hands out numbers only */
    atomic_uint_fast64_t executed;     /* thread instructions; relaxed: a count */
    atomic_bool stop;        /* relaxed: workers look at it once a slice; joining them orders everything else */
    atomic_flag fault_taken; /* the first fault wins; what it wrote is read after the workers are joined */
    sim_fault fault;
    _Alignas(16) unsigned char workspace
        [PTX_WORKSPACE_BYTES]; /* zero at first; cooperative kernels reach it by %envreg1, 2 */
};

#endif
