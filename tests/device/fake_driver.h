/* A driver table for tests of the device layer: it does what it is told, at once, and counts.
 *
 * Unlike the simulator it executes no kernel and has no asynchrony; in exchange a test can fail the n-th call, read what
 * was called in which order, and see every handle that was not given back. One fake exists at a time. */
#ifndef MUSTER_TESTS_DEVICE_FAKE_DRIVER_H
#define MUSTER_TESTS_DEVICE_FAKE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/driver.h"

enum fake_entry {
#define FAKE_ENTRY(member, symbol, parameters) FAKE_##member,
    MU_DRIVER_ENTRIES(FAKE_ENTRY, FAKE_ENTRY)
#undef FAKE_ENTRY
        FAKE_ENTRY_COUNT
};

enum { FAKE_DEVICES = 4, FAKE_LOG = 4096, FAKE_ATTRIBUTES = 256 };

/* What is live; all zero when everything was given back. */
typedef struct fake_live {
    int contexts, primaries, streams, events, pools, allocations, pinned, registered, modules, links, graphs, execs;
} fake_live;

typedef struct fake_launch {
    enum fake_entry launcher;
    CUfunction function;
    unsigned grid[3], block[3], shared;
    CUstream stream;
    void **parameters;
    unsigned cluster[3];
    int cooperative;
} fake_launch;

typedef struct fake_driver {
    mu_driver table; /* its members may be replaced; NULL an optional one to hide it */

    /* Knobs, set by the test. */
    int device_count;
    uint64_t fail_at; /* the call of this number (from 1) returns fail_code, 0: none */
    CUresult fail_code;
    CUresult fail_entry_code[FAKE_ENTRY_COUNT];  /* each call of an entry returns this when it is not 0 */
    uint64_t fail_entry_times[FAKE_ENTRY_COUNT]; /* so often; 0: always */
    int attributes[FAKE_ATTRIBUTES];
    uint64_t total_memory, other_memory; /* of each device; other processes' share of it */
    bool can_access_peer;
    bool corrupt_direct_copies; /* a peer copy delivers wrong bytes while the pool's access is granted */
    bool corrupt_all_copies;
    int occupancy;
    int static_shared, max_threads, registers;
    uint64_t module_bytes, graph_bytes;
    CUresult refuse_launch_order; /* what instantiating a graph with edges of launch order returns */
    int lowest_failing_target;    /* PTX for this target or a higher one does not compile; 0: all do */

    /* What happened. */
    uint64_t calls[FAKE_ENTRY_COUNT];
    uint64_t total_calls;
    enum fake_entry log[FAKE_LOG];
    fake_live live;
    uint64_t pool_reserved[FAKE_DEVICES], pool_used[FAKE_DEVICES];
    uint64_t module_memory;
    bool pool_access[FAKE_DEVICES]; /* granted on the pool of this device */
    int pool_internal_dependencies[FAKE_DEVICES];
    uint64_t pool_threshold[FAKE_DEVICES];
    uint64_t requested_bytes; /* of the last allocation */
    fake_launch last_launch;
    uint32_t graph_launched[64]; /* the nodes of the last graph launch, in order: the first argument's 32 bits, or 0 */
    uint32_t graph_launched_count;
    uint32_t graph_ordered;                  /* edges of launch order, of graph_edges */
    uint32_t graph_edges, graph_follows[64]; /* of each node: how many nodes back the one before it is, 0: none */
    int last_dynamic_limit;
    unsigned last_context_flags, last_stream_flags, last_event_flags;
    bool references_gone; /* the last reference to the table was released */
} fake_driver;

extern fake_driver *fake;

/* Makes the fake: two devices like an H200, peer access, 1 GiB each. The table has one reference, the caller's. */
fake_driver *fake_driver_create(void);
/* Asserts that nothing is live and the table was released, and frees it. */
void fake_driver_finish(void);

/* total_calls, and setting fail_at and fail_code, for tests in which other threads may be calling. */
uint64_t fake_total_calls(void);
void fake_fail_call(uint64_t number, CUresult code);

bool fake_nothing_live(void);
int fake_current_depth(void);             /* contexts current on this thread */
CUcontext fake_current(void);             /* the top one, NULL when none */
void fake_set_current(CUcontext context); /* pushes */
void fake_drop_current(void);             /* pops */
CUcontext fake_foreign_context(void);     /* some context of the application's */

/* The position of the n-th (from 0) call of an entry in the log, or -1. */
long fake_position(enum fake_entry entry, uint64_t nth);

/* PTX with the entries the tests use: add(u64, u64, u32) and plain(). */
extern const char fake_ptx[];

#endif
