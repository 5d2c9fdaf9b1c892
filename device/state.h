/* Inside device/ only: what a mu_device is made of, and how its driver calls are guarded and reported. */
#ifndef MUSTER_DEVICE_STATE_H
#define MUSTER_DEVICE_STATE_H

#include <cuda.h>

#include "device/device.h"
#include "device/driver.h"

struct mu_function_object {
    CUfunction handle;
    uint32_t dynamic_shared_limit; /* as set on the function so far */
    mu_function_info info;
    struct mu_function_object *next; /* of the module */
    char name[];
};

struct mu_module_object {
    CUmodule handle;
    uint64_t charged_bytes; /* fixed in the ledger */
    mu_function functions;
    char name[];
};

/* What the actors on one device share: kept until the last of them is closed. */
typedef struct mu_device_common {
    mu_ledger_device ledger;
    atomic_uint holders;
} mu_device_common;

/* Edges of launch order between the kernels of a burst. */
typedef enum mu_launch_order {
    MU_LAUNCH_ORDER_UNTRIED,
    MU_LAUNCH_ORDER_WORKS,
    MU_LAUNCH_ORDER_REFUSED /* by the driver, though it has the entry: it is not asked again */
} mu_launch_order;

struct mu_device {
    /* Constant once opened. */
    mu_driver *driver;
    CUdevice handle;
    CUcontext context;
    CUstream lanes[MU_LANE_COUNT];
    CUmemoryPool pool;
    int index;
    bool own_context;
    mu_device_common *common; /* NULL: the only actor on the device */
    mu_capability capability;
    muster_error target_error; /* why capability.ptx_target_sm is 0 */

    /* The worker's own. */
    uint64_t pool_reserved_bytes; /* when it was last asked for */
    mu_module empty_module;       /* of bursts: loaded by the first, NULL until then */
    mu_function empty_kernel;
    mu_launch_order launch_order; /* of bursts: found out by the first that could use it */

    /* Read by any thread. */
    atomic_int lost_code; /* the CUresult that ended the device, 0 while it lives */
    mu_device_counters counters;
    mu_ledger ledger;
};

/* The device's context, current on this thread while the scope is open. Nothing is called when this thread has entered
 * the device; otherwise the context is pushed, and popped by the end, so that the caller's is left as found.
 * An application may capture a stream meanwhile, on this thread or another: nothing of ours is part of that. */
typedef struct mu_scope {
    mu_device *device;
    bool pushed;
    int mode; /* of the thread, before it was relaxed; -1: it was not */
} mu_scope;

muster_status mu_scope_begin(mu_scope *scope, mu_device *device, muster_error *error);
/* The same for giving something back, which is done even when the context cannot be made current: the driver finds an
 * object by its handle. False only when the device is lost; then there is no scope to end. */
bool mu_scope_begin_release(mu_scope *scope, mu_device *device);
void mu_scope_end(mu_scope *scope);

/* Reports a failed driver call as mu_driver_fail does, with the device's index; a fault or loss also latches, and no
 * driver call is made for this device any more. */
muster_status mu_device_fail(mu_device *device, CUresult code, muster_error *error, const char *what, ...)
    __attribute__((format(printf, 4, 5)));

/* The same with a status of the caller's own for everything that is not a fault or loss. */
muster_status mu_device_fail_as(mu_device *device, muster_status status, CUresult code, muster_error *error,
                                const char *what, ...) __attribute__((format(printf, 5, 6)));

/* The same for a call that names two devices: a loss is the other's when this one still answers. */
muster_status mu_device_fail_with(mu_device *device, mu_device *other, muster_status status, CUresult code,
                                  muster_error *error, const char *what, ...) __attribute__((format(printf, 6, 7)));

/* mu_fail with the device's index. */
muster_status mu_device_refuse(const mu_device *device, muster_status status, muster_error *error, const char *format,
                               ...) __attribute__((format(printf, 4, 5)));

static inline CUevent mu_event_handle(mu_event event) { return (CUevent)event; }

/* The pool, live memory and peers (memory.c). */
muster_status mu_pool_create(mu_device *device, muster_error *error);
void mu_pool_destroy(mu_device *device);
muster_status mu_pool_bytes(mu_device *device, uint64_t *reserved, muster_error *error);

/* Free memory, or 0 when it cannot be told: then what was loaded is charged nothing (module.c). Context current. */
uint64_t mu_free_memory(mu_device *device);

/* Pieces of the launch boundary that launches and bursts share (launch.c). */
/* The guards of a raw launch, before any driver call, in this order: null function, null stream, an argument table that is
 * too short, the first null slot. */
muster_status mu_launch_guard(const mu_device *device, const mu_launch *launch, muster_error *error);
/* Beyond what every function may have, the function's own limit must be raised; once is enough. Context current. */
muster_status mu_launch_raise_shared(mu_device *device, mu_function function, uint64_t bytes, muster_error *error);
/* Reports a failed launch with the launcher's name, shape, target and advice. */
muster_status mu_launch_fail(mu_device *device, const mu_launch *launch, const char *launcher, CUresult code,
                             muster_error *error);

/* Probes everything in mu_capability (probe.c). No context is needed. */
muster_status mu_capability_probe(const mu_driver *driver, int ordinal, CUdevice handle, mu_capability *capability,
                                  muster_error *error);

#endif
