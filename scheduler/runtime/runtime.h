/* The runtime: devices, actors, handles, the table of runs. */
#ifndef MUSTER_SCHEDULER_RUNTIME_RUNTIME_H
#define MUSTER_SCHEDULER_RUNTIME_RUNTIME_H

#include <pthread.h>

#include "base/log.h"
#include "cache/compile.h"
#include "device/copier.h"
#include "scheduler/actor/actor.h"
#include "scheduler/actor/loss.h"
#include "scheduler/memory/pinned.h"
#include "scheduler/placement/placement.h"
#include "scheduler/run/order.h"
#include "scheduler/runtime/config.h"
#include "scheduler/runtime/host.h"
#include "scheduler/runtime/watch.h"

enum { MU_RUN_CHUNK = 64 };

/* Unfinished runs by slot: tasks name their run by an index. Slots are taken and given back under the runtime's run_lock. */
typedef struct mu_run_table {
    _Atomic(muster_run *) *chunks[32]; /* chunk i holds MU_RUN_CHUNK << i slots; chunks never move */
    uint32_t *free_slots;
    uint32_t free_count, free_capacity, used;
} mu_run_table;

struct muster_runtime {
    mu_handle handle;
    mu_config config;
    mu_log log;
    mu_driver *driver;
    uint32_t device_count;
    mu_host *host;     /* NULL only while creating fails */
    mu_copier *copier; /* of all devices */
    mu_watches watches;
    /* Read-backs and host jobs under way: what they use cannot be evicted, but will be. Relaxed: workers look again. */
    atomic_uint host_tasks;
    uint32_t started_actors; /* fewer than device_count only while creating fails; constant once workers work */
    mu_actor *actors;        /* device_count of them */
    mu_location_mask reach[MU_MAX_DEVICES]; /* the devices that each copies from without the host; constant */
    mu_order order;
    const muster_placement_policy *placement; /* of the configuration */
    atomic_uint_fast64_t placement_turn;      /* relaxed: only that no two get the same counts */
    bool steals;                              /* constant */
    /* Whatever may go to another device does, whether it pays or not; and a device is handed so few jobs ahead, however long they take.
     * Tests change them before the first submit. */
    bool steals_always;
    uint32_t enqueue_ahead_least;
    /* Bit d: actor d has registered its request for work (scheduler/actor/steal.h). */
    atomic_uint_fast64_t thieves;
    atomic_bool placement_warned;    /* that the policy names no candidates */
    atomic_uint_fast64_t host_bytes; /* of buffers' host memory of our own; relaxed: only its value counts */
    mu_pinned pinned;
    mu_run_table runs;
    pthread_mutex_t handle_lock; /* the list of handles */
    mu_handle *handles;
    /* Unfinished runs with their slots, their callbacks, and queued jobs; `idle` is signalled when the first or the second reach 0. */
    pthread_mutex_t run_lock;
    pthread_cond_t idle;
    uint32_t unfinished_runs;
    uint32_t unfinished_callbacks;    /* posted to the host thread and not returned */
    atomic_uint_fast64_t queued_jobs; /* counted only where they are bounded */
    /* A kernel fault ends every device of the process. Set once; release pairs with acquire of those who refuse work. */
    atomic_bool faulted;
    pthread_mutex_t fault_lock;
    muster_error fault;
    pthread_cond_t begin; /* `working`, under fault_lock: all actors are there, or it is being taken down again */
    bool working;
    mu_losses losses;
    bool budgets_differ;       /* between devices; constant */
    uint64_t whole_copy_bytes; /* a buffer up to this size gets one device copy of the whole; constant */
    muster_program *reduce;    /* the built-in program of reductions, made when first needed; under reduce_lock */
    pthread_mutex_t reduce_lock;
    /* What programs are made with: any thread. */
    mu_compile_caches caches;
    atomic_uint_fast64_t programs_made; /* relaxed: numbers those that share no module */
    atomic_uint_fast64_t load_stalls;   /* relaxed, counted by the workers: modules loaded while the device had work */
};

/* Chunk i holds MU_RUN_CHUNK << i slots: the slot's chunk follows from its highest bit. */
static inline void mu_run_locate(uint32_t slot, uint32_t *chunk, uint32_t *offset) {
    uint32_t shifted = slot / MU_RUN_CHUNK + 1;
    *chunk = 31 - (uint32_t)__builtin_clz(shifted);
    *offset = slot - MU_RUN_CHUNK * ((1u << *chunk) - 1);
}
static inline muster_run *mu_run_at(const muster_runtime *runtime, uint32_t slot) {
    uint32_t chunk, offset;
    mu_run_locate(slot, &chunk, &offset);
    /* Relaxed: whoever knows the slot got it from a message or a task, which ordered the store before. */
    return atomic_load_explicit(&runtime->runs.chunks[chunk][offset], memory_order_relaxed);
}
/* The run counts as unfinished from the first to the second, after which the runtime may be destroyed. OUT_OF_HOST_MEMORY. */
muster_status mu_run_table_add(muster_runtime *runtime, muster_run *run, muster_error *error);
void mu_run_table_remove(muster_runtime *runtime, uint32_t slot);

/* A worker that is set up waits until all are. */
void mu_runtime_await_start(muster_runtime *runtime);

/* Latches a fault of the whole process and tells every actor. Any thread; the first one counts. */
void mu_runtime_fault(muster_runtime *runtime, const muster_error *error);
/* OK, or the latched fault. */
muster_status mu_runtime_check(muster_runtime *runtime, muster_error *error);
/* The same, and DEVICE_LOST when no device is left. */
muster_status mu_runtime_check_devices(muster_runtime *runtime, muster_error *error);

#endif
