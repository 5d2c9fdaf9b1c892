/* Between the warp loop (ptx_schedule.c), synchronisation (ptx_barrier.c) and launches (ptx_launch.c). */
#ifndef MUSTER_DEVICE_SIM_PTX_SCHEDULE_H
#define MUSTER_DEVICE_SIM_PTX_SCHEDULE_H

#include "device/sim/ptx_internal.h"

enum { MU_SLOT_ALIGNMENT = 128 };

typedef enum ptx_slice {
    PTX_SLICE_RAN,     /* executed something; the warp has threads left, runnable or not */
    PTX_SLICE_BLOCKED, /* no thread of the warp can run */
    PTX_SLICE_DONE,    /* every thread has exited */
    PTX_SLICE_FAULT,   /* context->fault says why */
} ptx_slice;

/* Runs the warp for about `budget` warp instructions. */
ptx_slice sim_ptx_run_warp(ptx_context *x, ptx_block *block, ptx_warp *w, int64_t budget);

/* A thread has exited: lanes that waited for it at a warp-level instruction look again. */
void sim_ptx_wake_sync(ptx_warp *w);
/* And barriers of the block that count all threads may be complete. */
void sim_ptx_recheck_barriers(ptx_context *x);

/* Blocks of a cluster, first and number; of the block alone when the grid has no clusters. */
ptx_block *sim_ptx_cluster_blocks(ptx_context *x, ptx_block *block, uint32_t *count);
void sim_ptx_recheck_cluster(ptx_context *x, ptx_block *block);

/* For a .sync instruction: narrows *m to the lanes that can execute it now, together with all the lanes their
 * membermask (operand `members`) names. PTX_NEXT: execute for *m, then return sim_ptx_gathered(); anything else:
 * return it. */
unsigned sim_ptx_gather(ptx_context *x, const ptx_ins *i, uint32_t *m, uint32_t members);
unsigned sim_ptx_gathered(ptx_context *x, const ptx_ins *i);

/* vprintf and __assertfail. */
unsigned sim_ptx_builtin(ptx_context *x, const ptx_ins *i, const ptx_call *call, uint32_t m);

/* Blocks that run concurrently and may synchronise: one block, a cluster, or a cooperative grid. */
struct ptx_unit {
    ptx_block *blocks;
    uint32_t block_count;
};

#endif
