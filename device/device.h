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
#include "device/telemetry.h"
#include "muster.h"

typedef struct mu_driver mu_driver;
typedef struct mu_device mu_device;
typedef struct mu_event_object *mu_event;       /* a driver event */
typedef struct mu_module_object *mu_module;     /* code loaded on one device */
typedef struct mu_function_object *mu_function; /* an entry of such a module */
typedef uint64_t mu_address;                    /* device memory; 0 is none */

/* Streams of a device. Kernels go to DISPATCH only; copies that should overlap go to UPLOAD and DOWNLOAD. MEMORY carries
 * nothing but allocations and frees, so it is never behind and waiting for it costs no time: what is allocated while a large
 * upload is on its way can be used at once. */
typedef enum mu_lane {
    MU_LANE_DISPATCH = 0,
    MU_LANE_UPLOAD = 1,
    MU_LANE_DOWNLOAD = 2,
    MU_LANE_MEMORY = 3,
    MU_LANE_COUNT = 4
} mu_lane;

/* ---------------------------------------------------------------------------------------------------------- driver -- */

/* Opens the driver called `name`: "cuda", or "sim" with its spec. Any thread. Blocks. */
muster_status mu_driver_open(const char *name, const char *sim_spec, mu_driver **driver, muster_error *error);
mu_driver *mu_driver_retain(mu_driver *driver);
void mu_driver_release(mu_driver *driver);
bool mu_driver_is_simulated(const mu_driver *driver);
/* What a simulated driver knows of the last fault, in one line; false when there was none, or the driver is real. Any thread. */
bool mu_driver_last_fault(const mu_driver *driver, char *text, size_t bytes);
muster_status mu_driver_device_count(const mu_driver *driver, int *count, muster_error *error);

/* ---------------------------------------------------------------------------------------------------------- device -- */

typedef struct mu_device_options {
    int ordinal;
    int index; /* in the runtime; stored in errors */
    bool own_context;
    /* Several actors on the device, each with an even part of its budget: how many (0 or 1: it is alone), and the first of them, NULL
     * for the first itself. Each needs a context of its own. */
    uint32_t share_count;
    mu_device *share_of;
    uint64_t budget_bytes;    /* 0: budget_permille of the device's memory */
    uint32_t budget_permille; /* 0: MU_BUDGET_PERMILLE */
} mu_device_options;

/* Probes the device, makes its context (primary, flags untouched, unless own_context), four non-blocking streams and a
 * stream-ordered pool with cross-stream dependencies off and an unbounded release threshold. Any thread; the caller's
 * current context is left as found. Blocks (100 ms and more). */
muster_status mu_device_open(mu_driver *driver, const mu_device_options *options, mu_device **device,
                             muster_error *error);
/* Releases all of it; after a device loss it makes no driver call. Any thread, with the worker gone. Blocks. */
void mu_device_close(mu_device *device);

/* Makes the device's context current on the calling worker thread, for its lifetime. A thread enters one device at a
 * time. What was current before is current again after mu_device_leave, which the same thread calls. */
muster_status mu_device_enter(mu_device *device, muster_error *error);
void mu_device_leave(mu_device *device);

/* Moves the calling thread to the CPUs next to the device (device/numa.h), where the system knows them. Never fails; what the driver
 * pins for this thread comes from its node. Simulated devices have none. */
void mu_device_settle(const mu_device *device);

/* Code of others puts work on the dispatch lane by itself: the driver's own handles for it, CUcontext and CUstream, and what is made
 * good afterwards: the context is current again. INVALID_STATE: it was not. By the worker. */
void mu_device_handles(const mu_device *device, void **context, void **stream);
muster_status mu_device_restore(mu_device *device, muster_error *error);

/* Whether a driver call has told that the device is gone (DEVICE_LOST or KERNEL_FAULT). From then on every function
 * here fails with that status, and none makes a driver call. Any thread. */
bool mu_device_is_lost(const mu_device *device);
/* OK while the device lives; afterwards its loss, reported without a driver call. Any thread. */
muster_status mu_device_alive(const mu_device *device, muster_error *error);
/* Declares the device lost without asking it: after a kernel fault on another device of the process, no call may be made
 * here either. `driver_code` is the code of that fault. Any thread; the first loss stays. */
void mu_device_abandon(mu_device *device, int driver_code);
/* Waits until everything on the device's lanes has ended, or the device turns out to be lost: before a device that still answers is
 * abandoned, so that no copy of it touches host memory any more. Blocks. */
void mu_device_drain(mu_device *device);

/* Lets `device` copy from and to `peer` directly: context peer access and pool access where the hardware can. Called
 * once for each ordered pair, any thread, before either device works. Actors on one device need no leave. `*direct` says whether copies go direct; when not,
 * mu_copy_from_peer still works (through the host, by the driver). */
muster_status mu_device_connect_peer(mu_device *device, mu_device *peer, bool *direct, muster_error *error);

const mu_capability *mu_device_capability(const mu_device *device); /* any thread */
mu_ledger *mu_device_ledger(mu_device *device);                     /* any thread */
int mu_device_index(const mu_device *device);
/* Whether both are actors on one device. Any thread. */
bool mu_device_shares_with(const mu_device *device, const mu_device *other);

/* Counters of what the device did (device/telemetry.h): what this layer does is counted here, and the layers above count
 * what is theirs with mu_count on mu_device_counters_mutable, from the worker's thread only. */
const mu_device_counters *mu_device_get_counters(const mu_device *device); /* any thread */
mu_device_counters *mu_device_counters_mutable(mu_device *device);

/* ---------------------------------------------------------------------------------------------------------- events -- */

muster_status mu_event_create(mu_device *device, mu_event *event, muster_error *error);
void mu_event_destroy(mu_device *device, mu_event event);
muster_status mu_event_record(mu_device *device, mu_lane lane, mu_event event, muster_error *error);
/* Whether everything before the last record has completed. An error here is a device's loss or a kernel's fault. */
muster_status mu_event_poll(mu_device *device, mu_event event, bool *done, muster_error *error);
/* What the kernels on the lane took up to the event's last record, which is complete, by the driver's model of the device. False: it
 * has none, as every real one. */
bool mu_event_kernel_ns(const mu_device *device, mu_event event, uint64_t *kernel_ns);
/* Makes `lane` wait for `event`, which may belong to any device of the same driver. It must have been recorded: a wait
 * for an unrecorded event does nothing, silently. */
muster_status mu_event_wait(mu_device *device, mu_lane lane, mu_event event, muster_error *error);
/* The same for an event of `owner`. When it is the owner that the driver has lost, the owner is marked as lost and `device` is not:
 * DEVICE_LOST with the owner's index in error->device. */
muster_status mu_event_wait_for(mu_device *device, mu_lane lane, mu_event event, mu_device *owner, muster_error *error);
muster_status mu_lane_synchronize(mu_device *device, mu_lane lane, muster_error *error); /* blocks */

/* A number in host memory that the device writes: an end is seen by reading it, without a call to the driver, some 0.5 us sooner than by
 * an event. Sending costs 0.8 to 2.7 us, an event 0.2. Each is created, sent and destroyed by the worker. */
typedef struct mu_signal mu_signal;
/* *signal is NULL when driver or device cannot do it, or there is no pinned memory. The device's loss. */
muster_status mu_signal_create(mu_device *device, mu_signal **signal, muster_error *error);
void mu_signal_destroy(mu_device *device, mu_signal *signal); /* NULL is ignored; nothing may be on its way */
/* The value is there, and what came before it on `lane` has ended, from some moment on. False: it was refused; the loss of the device
 * shows at the next call. */
bool mu_signal_send(mu_device *device, mu_lane lane, mu_signal *signal, uint32_t value);
/* The last value that arrived, 0 at first; what came before it has ended and is visible. Any thread. */
uint32_t mu_signal_value(const mu_signal *signal);

/* Events that measure: recording one costs 2.8 us instead of 0.19. Both must have completed: INVALID_STATE otherwise. */
muster_status mu_event_create_timed(mu_device *device, mu_event *event, muster_error *error);
muster_status mu_event_elapsed(mu_device *device, mu_event start, mu_event end, uint64_t *elapsed_ns,
                               muster_error *error);

/* ---------------------------------------------------------------------------------------------------------- memory -- */

/* Allocates in stream order of `lane`, charging a reservation that the caller has taken from the ledger for `bytes`.
 * Errors: OUT_OF_DEVICE_MEMORY after one trim and retry, and live memory has been sampled; nothing was charged then, and
 * the reservation is still the caller's to keep or to release. */
muster_status mu_device_alloc(mu_device *device, mu_lane lane, uint64_t bytes, mu_address *address,
                              muster_error *error);
/* Frees in stream order of `lane`; every other lane's use must be ordered before. Returns the bytes to the ledger. */
muster_status mu_device_free(mu_device *device, mu_lane lane, mu_address address, uint64_t bytes, muster_error *error);

/* Asks the driver for free memory and the pool's size, and tells the ledger (6 us). The worker samples on start, on
 * pressure, after a failed allocation and at a bounded age (mu_ledger_sample_age_ns).
 * INVALID_CONFIG when the driver cannot tell; that is never "no memory". */
muster_status mu_device_sample_memory(mu_device *device, muster_error *error);
/* Gives memory that the device's own pool caches back to the system; what is in use stays. 1.7 ms a GiB. */
muster_status mu_device_trim(mu_device *device, muster_error *error);

/* Pinned host memory, usable by every device of the driver. Slow (0.5 s a GiB); freeing stalls busy devices. */
muster_status mu_pinned_alloc(mu_device *device, uint64_t bytes, void **pointer, muster_error *error);
void mu_pinned_free(mu_device *device, void *pointer);

/* Pins the caller's own memory until it is unregistered, which stalls busy devices. INVALID_STATE: pinned already. */
muster_status mu_host_register(mu_device *device, void *pointer, uint64_t bytes, muster_error *error);
void mu_host_unregister(mu_device *device, void *pointer);

/* What the driver knows of host memory at `pointer`: PINNED when all of it is, whoever did that; OF_DEVICE when it is a device's and not
 * the host's. Any thread. A lost device knows of nothing. */
typedef enum mu_host_kind { MU_HOST_PAGEABLE, MU_HOST_PINNED, MU_HOST_OF_DEVICE } mu_host_kind;
mu_host_kind mu_host_look(mu_device *device, const void *pointer, uint64_t bytes);

/* Copies and fills, enqueued on `lane`. Errors: TRANSFER_FAILED with the driver's code; INVALID_ARGUMENT for a pattern
 * that does not divide its range. Pageable host memory makes the driver stage, and the call may block for as long
 * as the copy takes. 0 bytes: no driver call. */
muster_status mu_copy_to_device(mu_device *device, mu_lane lane, mu_address destination, const void *source,
                                uint64_t bytes, muster_error *error);
muster_status mu_copy_to_host(mu_device *device, mu_lane lane, void *destination, mu_address source, uint64_t bytes,
                              muster_error *error);
muster_status mu_copy_within(mu_device *device, mu_lane lane, mu_address destination, mu_address source, uint64_t bytes,
                             muster_error *error);
/* When it is the peer that is lost, `device` is not: DEVICE_LOST with the peer's index in error->device. */
muster_status mu_copy_from_peer(mu_device *device, mu_lane lane, mu_address destination, mu_device *peer,
                                mu_address source, uint64_t bytes, muster_error *error);
muster_status mu_fill(mu_device *device, mu_lane lane, mu_address destination, uint32_t pattern, uint32_t pattern_bytes,
                      uint64_t bytes, muster_error *error);

/* The same for `count` rows of `width` bytes, each a pitch behind the one before, with one driver call (one for each row where a pitch is
 * 2 GiB or more). */
typedef struct mu_rows {
    uint64_t width, count;
    uint64_t to_pitch, from_pitch; /* at least width, unless there is one row */
} mu_rows;
muster_status mu_rows_to_device(mu_device *device, mu_lane lane, mu_address to, const void *from, const mu_rows *rows,
                                muster_error *error);
muster_status mu_rows_to_host(mu_device *device, mu_lane lane, void *to, mu_address from, const mu_rows *rows,
                              muster_error *error);
/* Only of a peer that `device` reaches directly (mu_device_connect_peer). */
muster_status mu_rows_from_peer(mu_device *device, mu_lane lane, mu_address to, mu_device *peer, mu_address from,
                                const mu_rows *rows, muster_error *error);
/* Zeros; from_pitch is ignored. */
muster_status mu_rows_clear(mu_device *device, mu_lane lane, mu_address to, const mu_rows *rows, muster_error *error);

/* --------------------------------------------------------------------------------------------- modules and launches -- */

/* Compiles PTX to a cubin for this device without loading it: stalls nothing, so compile here and load the cubin when
 * the device is idle. Any thread. Blocks (6 ms and more). `*cubin` is the caller's, freed with mu_free.
 * PROGRAM_INVALID carries the compiler's log. */
muster_status mu_module_compile(mu_device *device, const void *ptx, size_t bytes, const char *name, void **cubin,
                                size_t *cubin_bytes, muster_error *error);

/* The SM that PTX is lowered for: the native one, or the highest lower one that the driver really compiles a probe for.
 * CAPABILITY_MISSING lists why each failed. Any thread. */
muster_status mu_device_target(const mu_device *device, int *sm, muster_error *error);

/* Loads PTX text or a cubin, and charges what the driver took for it as fixed memory. When there is no memory for it, what the pool
 * caches is given back, and it is tried once more. Stalls a busy device until it has drained. PROGRAM_INVALID carries the compiler's log. */
muster_status mu_module_load(mu_device *device, const void *image, size_t bytes, const char *name, mu_module *module,
                             muster_error *error);
void mu_module_unload(mu_device *device, mu_module module); /* nothing of it may be in flight; stalls likewise */

/* A module-scope variable. ENTRY_NOT_FOUND when there is none of that name. */
muster_status mu_module_global(mu_device *device, mu_module module, const char *name, mu_address *address,
                               uint64_t *bytes, muster_error *error);

enum { MU_MAX_PARAMETERS = 128 };

typedef struct mu_function_info {
    int max_threads, registers, static_shared_bytes, local_bytes;
    bool parameters_known; /* drivers before 12.4 cannot tell */
    uint32_t parameter_count;
    uint32_t parameter_bytes[MU_MAX_PARAMETERS];
} mu_function_info;

/* Finds an entry and makes it ready to launch. The function lives as long as its module; asking twice gives the same one.
 * ENTRY_NOT_FOUND lists the entries there are, where the driver can tell. */
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
    /* all of these may be zero */
    uint32_t cluster[3];    /* blocks of a cluster; {0, 0, 0}: none */
    uint64_t element_count; /* for messages and for the count of wasted threads; 0: one for each thread */
    mu_address counter;     /* in-kernel barrier counters, zeroed on the lane before the kernel starts ... */
    uint64_t counter_bytes; /* ... a multiple of 4; a module's launches that use one must not overlap */
} mu_launch;

/* The launch boundary: the one place that starts kernels, on the dispatch lane. mu_launch_validated repeats geometry and
 * both residency stages; mu_launch_prepared trusts a resolved shape and makes only the guards of a raw launch.
 * Errors: INVALID_ARGUMENT (guards), INVALID_GEOMETRY, COOPERATIVE_TOO_LARGE, LAUNCH_FAILED with the driver's code and
 * name, grid, block and target, DEVICE_LOST, KERNEL_FAULT. */
muster_status mu_launch_validated(mu_device *device, const mu_launch *launch, muster_error *error);
muster_status mu_launch_prepared(mu_device *device, const mu_launch *launch, muster_error *error);

#endif
