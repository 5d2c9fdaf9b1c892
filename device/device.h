/* One device as its actor sees it: context, lanes, events, memory, modules, launches, copies. Free of CUDA types: this
 * header and its siblings are all that cache/ and scheduler/ know of a driver.
 *
 * Threading: unless said otherwise a function is called only by the thread that entered the device (mu_device_enter),
 * the actor's worker. Nothing here blocks unless it says so; driver calls that stall a busy device say so too. */
#ifndef MUSTER_DEVICE_DEVICE_H
#define MUSTER_DEVICE_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/capability.h"
#include "device/ledger.h"
#include "muster.h"

typedef struct mu_driver mu_driver;
typedef struct mu_device mu_device;
typedef struct mu_event_object *mu_event;       /* a driver event */
typedef struct mu_module_object *mu_module;     /* code loaded on one device */
typedef struct mu_function_object *mu_function; /* an entry of such a module */
typedef uint64_t mu_address;                    /* device memory; 0 is none */

/* Streams of a device. Kernels go to DISPATCH only; copies that should overlap go to the other two. */
typedef enum mu_lane { MU_LANE_DISPATCH = 0, MU_LANE_UPLOAD = 1, MU_LANE_DOWNLOAD = 2, MU_LANE_COUNT = 3 } mu_lane;

/* ---------------------------------------------------------------------------------------------------------- driver -- */

/* Opens the driver called `name`: "cuda", or "sim" with its spec. Any thread. Blocks. */
muster_status mu_driver_open(const char *name, const char *sim_spec, mu_driver **driver, muster_error *error);
mu_driver *mu_driver_retain(mu_driver *driver);
void mu_driver_release(mu_driver *driver);
bool mu_driver_is_simulated(const mu_driver *driver);
muster_status mu_driver_device_count(const mu_driver *driver, int *count, muster_error *error);

/* ---------------------------------------------------------------------------------------------------------- device -- */

typedef struct mu_device_options {
    int ordinal;
    int index; /* in the runtime; stored in errors */
    bool own_context;
    uint64_t budget_bytes;    /* 0: budget_permille of the device's memory */
    uint32_t budget_permille; /* 0: MU_BUDGET_PERMILLE */
} mu_device_options;

/* Probes the device, makes its context (primary, flags untouched, unless own_context), three non-blocking streams and a
 * stream-ordered pool with cross-stream dependencies off and an unbounded release threshold. Any thread; the caller's
 * current context is left as found. Blocks (100 ms and more). */
muster_status mu_device_open(mu_driver *driver, const mu_device_options *options, mu_device **device,
                             muster_error *error);
/* Releases all of it; after a device loss it makes no driver call. Any thread, with the worker gone. Blocks. */
void mu_device_close(mu_device *device);

/* Makes the device's context current on the calling worker thread, for its lifetime. */
muster_status mu_device_enter(mu_device *device, muster_error *error);
void mu_device_leave(mu_device *device);

/* Lets `device` copy from and to `peer` directly: context peer access and pool access where the hardware can. Called
 * once for each ordered pair, any thread, before either device works. `*direct` says whether copies go direct; when not,
 * mu_copy_from_peer still works (through the host, by the driver). */
muster_status mu_device_connect_peer(mu_device *device, mu_device *peer, bool *direct, muster_error *error);

const mu_capability *mu_device_capability(const mu_device *device); /* any thread */
mu_ledger *mu_device_ledger(mu_device *device);                     /* any thread */
int mu_device_index(const mu_device *device);

/* Counters of what this layer did. Written by the worker with relaxed stores, read by anyone: each is exact once the
 * device is idle, and no order between two of them is promised. */
typedef struct mu_device_counters {
    atomic_uint_fast64_t launches, bytes_to_device, bytes_to_host, bytes_from_peer, bytes_within_device, peer_copies,
        fills, events_recorded, event_waits, synchronisations, module_loads, allocations;
} mu_device_counters;
const mu_device_counters *mu_device_get_counters(const mu_device *device);

/* ---------------------------------------------------------------------------------------------------------- events -- */

muster_status mu_event_create(mu_device *device, mu_event *event, muster_error *error);
void mu_event_destroy(mu_device *device, mu_event event);
muster_status mu_event_record(mu_device *device, mu_lane lane, mu_event event, muster_error *error);
/* Whether everything before the last record has completed. An error here is a device's loss or a kernel's fault. */
muster_status mu_event_poll(mu_device *device, mu_event event, bool *done, muster_error *error);
/* Makes `lane` wait for `event`, which may belong to any device of the same driver. It must have been recorded: a wait
 * for an unrecorded event does nothing, silently. */
muster_status mu_event_wait(mu_device *device, mu_lane lane, mu_event event, muster_error *error);
muster_status mu_lane_synchronize(mu_device *device, mu_lane lane, muster_error *error); /* blocks */

/* ---------------------------------------------------------------------------------------------------------- memory -- */

/* Allocates in stream order of `lane`, charging a reservation that the caller has taken from the ledger for `bytes`.
 * Errors: OUT_OF_DEVICE_MEMORY after one trim and retry; nothing is charged then. */
muster_status mu_device_alloc(mu_device *device, mu_lane lane, uint64_t bytes, mu_address *address,
                              muster_error *error);
/* Frees in stream order of `lane`; every other lane's use must be ordered before. Returns the bytes to the ledger. */
muster_status mu_device_free(mu_device *device, mu_lane lane, mu_address address, uint64_t bytes, muster_error *error);

/* Pinned host memory, usable by every device of the driver. Slow (0.5 s a GiB); freeing stalls busy devices. */
muster_status mu_pinned_alloc(mu_device *device, uint64_t bytes, void **pointer, muster_error *error);
void mu_pinned_free(mu_device *device, void *pointer);

/* Copies and fills, enqueued on `lane`. Pageable host memory makes the driver stage, and the call may block for as long
 * as the copy takes. 0 bytes: no driver call. */
muster_status mu_copy_to_device(mu_device *device, mu_lane lane, mu_address destination, const void *source,
                                uint64_t bytes, muster_error *error);
muster_status mu_copy_to_host(mu_device *device, mu_lane lane, void *destination, mu_address source, uint64_t bytes,
                              muster_error *error);
muster_status mu_copy_within(mu_device *device, mu_lane lane, mu_address destination, mu_address source,
                             uint64_t bytes, muster_error *error);
muster_status mu_copy_from_peer(mu_device *device, mu_lane lane, mu_address destination, mu_device *peer,
                                mu_address source, uint64_t bytes, muster_error *error);
muster_status mu_fill(mu_device *device, mu_lane lane, mu_address destination, uint32_t pattern,
                      uint32_t pattern_bytes, uint64_t bytes, muster_error *error);

/* --------------------------------------------------------------------------------------------- modules and launches -- */

/* Loads PTX text or a cubin. Stalls a busy device until it has drained. PROGRAM_INVALID carries the compiler's log. */
muster_status mu_module_load(mu_device *device, const void *image, size_t bytes, const char *name, mu_module *module,
                             muster_error *error);
void mu_module_unload(mu_device *device, mu_module module); /* nothing of it may be in flight; stalls likewise */

enum { MU_MAX_PARAMETERS = 128 };

typedef struct mu_function_info {
    int max_threads, registers, static_shared_bytes, local_bytes;
    bool parameters_known; /* drivers before 12.4 cannot tell */
    uint32_t parameter_count;
    uint32_t parameter_bytes[MU_MAX_PARAMETERS];
} mu_function_info;

/* ENTRY_NOT_FOUND lists the entries there are, where the driver can tell. */
muster_status mu_module_function(mu_device *device, mu_module module, const char *entry, mu_function *function,
                                 mu_function_info *info, muster_error *error);

/* Active blocks per multiprocessor for a launch shape: the one occupancy query site. */
muster_status mu_function_occupancy(mu_device *device, mu_function function, uint32_t block_threads,
                                    uint64_t dynamic_shared_bytes, int *blocks, muster_error *error);

typedef struct mu_launch {
    mu_function function;
    const char *kernel_name; /* for messages */
    uint32_t grid[3], block[3];
    uint32_t dynamic_shared_bytes;
    bool cooperative;
    uint32_t parameter_count; /* of the kernel */
    void **parameters;        /* argument table: addresses of the values; at least parameter_count slots */
    uint32_t slot_count;
} mu_launch;

/* The launch boundary: the one place that starts kernels, on the dispatch lane. mu_launch_validated repeats geometry and
 * both residency stages; mu_launch_prepared trusts a resolved shape and makes only the guards of a raw launch.
 * Errors: INVALID_ARGUMENT (guards), INVALID_GEOMETRY, COOPERATIVE_TOO_LARGE, LAUNCH_FAILED with the driver's code and
 * name, grid, block and target, DEVICE_LOST, KERNEL_FAULT. */
muster_status mu_launch_validated(mu_device *device, const mu_launch *launch, muster_error *error);
muster_status mu_launch_prepared(mu_device *device, const mu_launch *launch, muster_error *error);

#endif
