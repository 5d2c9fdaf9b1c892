/* The memory ledger of one device: who may allocate how much, decided before anything is allocated.
 *
 *   total      the device's memory
 *   budget     what Muster may commit of it
 *   committed  in use + reserved + fixed
 *     in use     allocated from the pool
 *     reserved   granted, not yet allocated
 *     fixed      what cannot be evicted: modules and instantiated graphs, as measured
 *   live       what the device really has left: other processes count, our own cached bytes do not
 *
 * Live memory is sampled (it costs a driver call), so the ledger keeps `ceiling` = free + what our pool holds + fixed at
 * the sample. Our own allocations move bytes from one term to another and leave that sum alone, so that
 * ceiling - committed is the live memory that a new reservation can count on, without asking the driver again.
 *
 * Shares. Several actors of one device have a ledger each, with an even part of the budget, and one mu_ledger_device between them
 * for the live term: its ceiling = free + what all their pools hold + what is fixed in all of them, and its committed is the sum of
 * theirs. So what another share has is neither free nor another process's: a share can always have its part of the budget as long
 * as the device has it, whatever the others use of theirs, and all of them together are never granted more than the device has. What
 * another share's pool only caches counts as live, for its worker gives it back when asked (scheduler/runtime/shares.h).
 *
 * Threads: every function may be called from any thread, unless it says otherwise. Nothing blocks or calls the driver. */
#ifndef MUSTER_DEVICE_LEDGER_H
#define MUSTER_DEVICE_LEDGER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/tuning.h"
#include "muster.h"

/* ----------------------------------------------------------------------------------------------- pure arithmetic -- */

/* floor(bytes * permille / 1000), exact for every 64-bit value. permille is at most 1000. */
uint64_t mu_budget_fraction(uint64_t bytes, uint32_t permille);

/* budget - (resident + pool), 0 when that is not positive. */
uint64_t mu_accounted_headroom(uint64_t budget, uint64_t resident, uint64_t pool);

/* What may still be taken: the smaller of the accounted headroom of `total` and the budget of `live`. */
uint64_t mu_effective_budget(uint64_t total, uint64_t live, uint64_t resident, uint64_t pool, uint32_t permille);

/* How far `resident` may grow: the budget of `total`, or resident plus the budget of `live` when that is less. */
uint64_t mu_resident_limit(uint64_t total, uint64_t live, uint64_t resident, uint32_t permille);

/* Sizes up to this are rounded to a power of two, so that freed memory fits the next request; larger ones to a multiple
 * of it, the granularity in which the driver's pool maps memory. */
enum { MU_BUCKET_LIMIT_BYTES = 2 << 20 };

/* The next power of two of max(bytes, 1). False (output untouched) when it needs more than 64 bits. */
bool mu_power_of_two_bucket(uint64_t bytes, uint64_t *bucket);

/* What an allocation of `bytes` is charged and asked from the pool: at least 1.
 * LIMIT_REACHED when it cannot be rounded, with the advice to shard. */
muster_status mu_allocation_bucket(uint64_t bytes, uint64_t *bucket, muster_error *error);

/* One argument of a job, as far as its memory goes. */
typedef struct mu_binding {
    uint32_t slot;         /* for messages */
    bool shared;           /* shared memory of the block: costs nothing here */
    bool resident;         /* already in device memory: costs nothing, only what is staged from the host does */
    bool takes_input;      /* its content comes from the next of the job's inputs, whose length then counts */
    uint64_t length_bytes; /* declared length, when it takes no input ... */
    bool has_length;       /* ... and whether one was declared */
} mu_binding;

/* What a job needs: the bucket of each binding that is neither shared memory nor resident, by the length of its input
 * or else its declared one, plus four bytes for each word of the parameter block. 0 means that nothing has to be asked.
 * Errors: INVALID_ARGUMENT names the binding whose input or length is missing; LIMIT_REACHED when the sum overflows. */
muster_status mu_required_bytes(const mu_binding *bindings, size_t count, const uint64_t *input_bytes,
                                size_t input_count, uint64_t parameter_words, uint64_t *bytes, muster_error *error);

/* -------------------------------------------------------------------------------------------------------- ledger -- */

/* What the shares of one device have in common. */
typedef struct mu_ledger_device {
    _Alignas(MU_CACHE_LINE) atomic_uint_fast64_t committed; /* the sums of theirs */
    atomic_uint_fast64_t held, fixed;
    _Alignas(MU_CACHE_LINE) atomic_uint_fast64_t ceiling; /* of the last sample, whoever took it */
} mu_ledger_device;

typedef struct mu_ledger {
    uint64_t total, budget;   /* constant once initialised */
    uint32_t live_permille;   /* share of live memory that may be taken */
    mu_ledger_device *shared; /* NULL: no other actor is on the device */
    /* Written by every reservation and release: a line of its own. */
    _Alignas(MU_CACHE_LINE) atomic_uint_fast64_t committed;
    atomic_uint_fast64_t in_use, fixed;
    atomic_uint_fast64_t held;       /* what our pool holds, as last told */
    atomic_uint_fast64_t underflows; /* releases of more than was committed: a caller's error, counted and clamped */
    /* Written by samples only. */
    _Alignas(MU_CACHE_LINE) atomic_uint_fast64_t ceiling;
    atomic_uint_fast64_t sampled_free;
    atomic_uint_fast64_t sampled_at_ns; /* 0: never sampled; live memory does not limit then */
} mu_ledger;

/* budget_bytes 0: permille of total; permille 0: MU_BUDGET_PERMILLE. INVALID_CONFIG: permille over 1000. An absolute
 * budget above the device's memory is cut to it. Before any other thread sees the ledger. */
muster_status mu_ledger_init(mu_ledger *ledger, uint64_t total, uint64_t budget_bytes, uint32_t permille,
                             muster_error *error);

/* Makes the ledger that of one of `count` shares: an even part of the budget, rounded down, so that all parts are equal and fewer than
 * `count` bytes belong to nobody. `device` outlives the ledger. Before any other thread sees the ledger. */
void mu_ledger_device_init(mu_ledger_device *device);
void mu_ledger_share(mu_ledger *ledger, mu_ledger_device *device, uint32_t count);

typedef enum mu_grant {
    MU_GRANTED = 0,
    MU_NOT_NOW = 1, /* could be granted after releases, evictions, or once another process gives memory back */
    MU_NEVER = 2    /* over the budget of the whole device minus what is fixed */
} mu_grant;

/* Reserves `bytes` in one atomic step, or changes nothing: any number of threads together never exceed the budget. 0 is
 * granted and changes nothing. The caller passes the reservation to mu_device_alloc or gives it back with
 * mu_ledger_release; when mu_device_alloc fails the reservation is still the caller's. */
mu_grant mu_ledger_reserve(mu_ledger *ledger, uint64_t bytes);
void mu_ledger_release(mu_ledger *ledger, uint64_t bytes);

/* A reservation became an allocation, and an allocation was freed (mu_device_alloc and mu_device_free call these). */
void mu_ledger_use(mu_ledger *ledger, uint64_t bytes);
void mu_ledger_unuse(mu_ledger *ledger, uint64_t bytes);

/* Memory that the driver took for a module or a graph, already gone from the device: charged even over the budget. */
void mu_ledger_fix(mu_ledger *ledger, uint64_t bytes);
void mu_ledger_unfix(mu_ledger *ledger, uint64_t bytes);

/* Publishes a sample: free memory as the driver reports it, and all bytes that our own pool holds, cached or in use. */
void mu_ledger_sample(mu_ledger *ledger, uint64_t free_bytes, uint64_t pool_bytes, uint64_t now_ns);
/* What the pools of the other shares hold and what is fixed there; 0 for a ledger that shares nothing. It may change while the driver
 * is asked: the smaller of its values before and after belongs to a sample that never tells of memory which is not there. */
uint64_t mu_ledger_others(const mu_ledger *ledger);
void mu_ledger_sample_beside(mu_ledger *ledger, uint64_t free_bytes, uint64_t pool_bytes, uint64_t others_bytes,
                             uint64_t now_ns);
/* Tells what our pool holds: after it grew, and before it shrinks. mu_ledger_sample does too. */
void mu_ledger_hold(mu_ledger *ledger, uint64_t pool_bytes);
/* What our pool holds and nobody uses, as last told. */
uint64_t mu_ledger_cached(const mu_ledger *ledger);
/* Age of the last sample; UINT64_MAX when there is none. */
uint64_t mu_ledger_sample_age_ns(const mu_ledger *ledger, uint64_t now_ns);

/* What a reservation could get at this moment, and at most ever. */
uint64_t mu_ledger_available(const mu_ledger *ledger);
uint64_t mu_ledger_capacity(const mu_ledger *ledger);

typedef struct mu_ledger_view {
    uint64_t total, budget, in_use, reserved, fixed, live; /* live: UINT64_MAX when never sampled */
} mu_ledger_view;
/* Each figure is exact once the device is idle; between two of them no order is promised. */
mu_ledger_view mu_ledger_read(const mu_ledger *ledger);

#endif
