/* A device's life: opened, entered by its worker, closed; and its loss. */
#include "device/device.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "device/numa.h"
#include "device/state.h"
#include "device/target.h"

/* -------------------------------------------------------------------------------------------------------- errors -- */

muster_status mu_device_refuse(const mu_device *device, muster_status status, muster_error *error, const char *format,
                               ...) {
    va_list arguments;
    va_start(arguments, format);
    mu_fail_v(error, status, format, arguments);
    va_end(arguments);
    if (error) error->device = device->index;
    return status;
}

static void latch(mu_device *device, CUresult code) {
    int alive = 0;
    /* The first loss stays. Relaxed: the code is all there is to see. */
    atomic_compare_exchange_strong_explicit(&device->lost_code, &alive, (int)code, memory_order_relaxed,
                                            memory_order_relaxed);
    mu_ledger_hold(&device->ledger, 0); /* its pool is out of everybody's reach */
}

static muster_status fail_v(mu_device *device, muster_status status, CUresult code, muster_error *error,
                            const char *what, va_list arguments) {
    muster_status own = mu_driver_status(code);
    bool lost = muster_status_recovery(own) == MUSTER_RECOVERY_DEVICE_LOST;
    if (lost) latch(device, code);
    if (status == MUSTER_OK || lost) status = own;
    if (!error) return status;
    char text[sizeof error->message];
    vsnprintf(text, sizeof text, what, arguments);
    mu_driver_fail(device->driver, code, error, "device %d: %s", device->index, text);
    error->status = status;
    error->device = device->index;
    return status;
}

muster_status mu_device_fail(mu_device *device, CUresult code, muster_error *error, const char *what, ...) {
    va_list arguments;
    va_start(arguments, what);
    muster_status status = fail_v(device, MUSTER_OK, code, error, what, arguments);
    va_end(arguments);
    return status;
}

muster_status mu_device_fail_as(mu_device *device, muster_status status, CUresult code, muster_error *error,
                                const char *what, ...) {
    va_list arguments;
    va_start(arguments, what);
    status = fail_v(device, status, code, error, what, arguments);
    va_end(arguments);
    return status;
}

muster_status mu_device_fail_with(mu_device *device, mu_device *other, muster_status status, CUresult code,
                                  muster_error *error, const char *what, ...) {
    va_list arguments;
    va_start(arguments, what);
    /* A fault is the whole process's; a loss is the other's if this device still answers. */
    mu_device *lost = device;
    if (mu_driver_status(code) == MUSTER_DEVICE_LOST) {
        CUresult own = device->driver->stream_query(device->lanes[MU_LANE_DISPATCH]);
        if (own == CUDA_SUCCESS || own == CUDA_ERROR_NOT_READY) lost = other;
    }
    status = fail_v(lost, status, code, error, what, arguments);
    va_end(arguments);
    return status;
}

muster_status mu_device_alive(const mu_device *device, muster_error *error) {
    int code = atomic_load_explicit(&device->lost_code, memory_order_relaxed);
    if (__builtin_expect(code == 0, 1)) return MUSTER_OK;
    muster_status status = mu_driver_status((CUresult)code);
    mu_device_refuse(device, status, error,
                     "device %d: lost earlier (driver code %d); nothing is asked of it any more: restart the process",
                     device->index, code);
    if (error) error->driver_code = code;
    return status;
}

bool mu_device_is_lost(const mu_device *device) {
    return atomic_load_explicit(&device->lost_code, memory_order_relaxed) != 0;
}

void mu_device_abandon(mu_device *device, int driver_code) {
    bool loss = muster_status_recovery(mu_driver_status((CUresult)driver_code)) == MUSTER_RECOVERY_DEVICE_LOST;
    latch(device, loss ? (CUresult)driver_code : CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

/* ------------------------------------------------------------------------------------------------------- context -- */

/* The device that this thread has entered, and the thread's mode of capture before. */
static _Thread_local mu_device *entered;
static _Thread_local int found_mode;

/* While another thread captures a stream in the global mode, the driver refuses this one calls like looking at an event, and spoils the
 * capture, unless the thread says that it does not take part. Returns the mode before, or -1; -1 changes nothing. */
static int exchange_mode(const mu_driver *driver, int mode) {
    CUstreamCaptureMode exchanged = (CUstreamCaptureMode)mode;
    if (mode < 0 || driver->thread_exchange_stream_capture_mode(&exchanged) != CUDA_SUCCESS) return -1;
    return (int)exchanged;
}

muster_status mu_scope_begin(mu_scope *scope, mu_device *device, muster_error *error) {
    *scope = (mu_scope){.device = device};
    muster_status status = mu_device_alive(device, error);
    if (status || entered == device) return status;
    CUresult code = device->driver->ctx_push_current(device->context);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuCtxPushCurrent");
    scope->pushed = true;
    scope->mode = exchange_mode(device->driver, CU_STREAM_CAPTURE_MODE_RELAXED);
    return MUSTER_OK;
}

bool mu_scope_begin_release(mu_scope *scope, mu_device *device) {
    mu_scope_begin(scope, device, NULL);
    if (!mu_device_is_lost(device)) return true;
    mu_scope_end(scope); /* lost meanwhile, by another thread's word */
    return false;
}

/* Popped even after a loss: the caller's context must become current again. */
void mu_scope_end(mu_scope *scope) {
    CUcontext popped;
    if (scope->pushed) {
        exchange_mode(scope->device->driver, scope->mode);
        scope->device->driver->ctx_pop_current(&popped);
    }
    scope->pushed = false;
}

muster_status mu_device_enter(mu_device *device, muster_error *error) {
    if (entered)
        return mu_device_refuse(device, MUSTER_INVALID_STATE, error,
                                "device %d: this thread has entered device %d; a thread works for one device",
                                device->index, entered->index);
    muster_status status = mu_device_alive(device, error);
    if (status) return status;
    CUresult code = device->driver->ctx_push_current(device->context);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuCtxPushCurrent");
    entered = device;
    /* Callbacks of the application run on this thread: what they capture is their own affair. */
    found_mode = exchange_mode(device->driver, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    return MUSTER_OK;
}

void mu_device_leave(mu_device *device) {
    if (entered != device) return;
    CUcontext popped;
    entered = NULL;
    if (mu_device_is_lost(device)) return;
    exchange_mode(device->driver, found_mode);
    device->driver->ctx_pop_current(&popped);
}

void mu_device_settle(const mu_device *device) {
    if (!device->capability.simulated) mu_numa_settle(NULL, device->capability.pci_bus_id);
}

void mu_device_handles(const mu_device *device, void **context, void **stream) {
    *context = device->context;
    *stream = device->lanes[MU_LANE_DISPATCH];
}

muster_status mu_device_restore(mu_device *device, muster_error *error) {
    CUcontext current = NULL;
    muster_status status = mu_device_alive(device, error);
    if (status) return status;
    CUresult code = device->driver->ctx_get_current(&current);
    if (code == CUDA_SUCCESS && current == device->context) return MUSTER_OK;
    if (code == CUDA_SUCCESS) code = device->driver->ctx_set_current(device->context);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "making the context current again");
    return mu_device_refuse(device, MUSTER_INVALID_STATE, error,
                            "context %p was left current on device %d's thread; pop what was pushed", (void *)current,
                            device->index);
}

/* -------------------------------------------------------------------------------------------------- open and close -- */

static muster_status find_device(mu_device *device, int ordinal, muster_error *error) {
    mu_driver *driver = device->driver;
    int count = 0;
    CUresult code = driver->device_get_count(&count);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuDeviceGetCount");
    if (ordinal < 0 || ordinal >= count)
        return mu_device_refuse(device, MUSTER_OUT_OF_RANGE, error,
                                "device ordinal %d does not exist; the driver has %d (0 to %d, after "
                                "CUDA_VISIBLE_DEVICES)",
                                ordinal, count, count - 1);
    code = driver->device_get(&device->handle, ordinal);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuDeviceGet(%d)", ordinal);
    muster_status status = mu_capability_probe(driver, ordinal, device->handle, &device->capability, error);
    if (status) {
        if (error) error->device = device->index;
        return status;
    }
    if (!device->capability.memory_pools)
        return mu_device_refuse(
            device, MUSTER_CAPABILITY_MISSING, error,
            "device %d (%s) has no stream-ordered memory pools; leave it out of the configuration, or "
            "enable them in the virtual machine or driver",
            device->index, device->capability.name);
    return MUSTER_OK;
}

static muster_status make_context(mu_device *device, muster_error *error) {
    mu_driver *driver = device->driver;
    if (device->own_context) {
        CUresult code = driver->ctx_create(&device->context, 0, device->handle);
        if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuCtxCreate");
        /* Creating makes it current: put the caller's back. */
        CUcontext popped;
        driver->ctx_pop_current(&popped);
        return MUSTER_OK;
    }
    CUresult code = driver->primary_ctx_retain(&device->context, device->handle);
    return code == CUDA_SUCCESS ? MUSTER_OK : mu_device_fail(device, code, error, "cuDevicePrimaryCtxRetain");
}

static void drop_context(mu_device *device) {
    if (mu_device_is_lost(device)) return;
    if (device->own_context)
        device->driver->ctx_destroy(device->context);
    else
        device->driver->primary_ctx_release(device->handle);
}

static void destroy_lanes(mu_device *device) {
    for (int i = MU_LANE_COUNT - 1; i >= 0; i--) {
        if (device->lanes[i] && !mu_device_is_lost(device)) device->driver->stream_destroy(device->lanes[i]);
        device->lanes[i] = NULL;
    }
}

static muster_status make_lanes(mu_device *device, muster_error *error) {
    for (int i = 0; i < MU_LANE_COUNT; i++) {
        CUresult code = device->driver->stream_create(&device->lanes[i], CU_STREAM_NON_BLOCKING);
        if (code == CUDA_SUCCESS) continue;
        device->lanes[i] = NULL;
        destroy_lanes(device);
        return mu_device_fail(device, code, error, "cuStreamCreate of lane %d of %d", i, (int)MU_LANE_COUNT);
    }
    return MUSTER_OK;
}

/* The memory of a device that several actors are on. */
static muster_status join_shares(mu_device *device, const mu_device_options *options, muster_error *error) {
    if (options->share_count <= 1) return MUSTER_OK;
    mu_device_common *common = options->share_of ? options->share_of->common : NULL;
    if (common) {
        /* Relaxed: who opens holds the first of them, and nothing is read through the count. */
        atomic_fetch_add_explicit(&common->holders, 1, memory_order_relaxed);
    } else {
        common = mu_alloc_aligned(MU_CACHE_LINE, sizeof *common);
        if (!common) return mu_fail_host_memory(error, "what a device's shares have in common", sizeof *common);
        mu_ledger_device_init(&common->ledger);
        atomic_init(&common->holders, 1);
    }
    device->common = common;
    mu_ledger_share(&device->ledger, &common->ledger, options->share_count);
    return MUSTER_OK;
}

static void leave_shares(mu_device *device) {
    if (!device->common) return;
    mu_ledger_hold(&device->ledger, 0);
    /* Release and acquire: who frees comes after all that the others did with it. */
    if (atomic_fetch_sub_explicit(&device->common->holders, 1, memory_order_acq_rel) == 1)
        mu_free_aligned(device->common);
    device->common = NULL;
}

bool mu_device_shares_with(const mu_device *device, const mu_device *other) {
    return device->common && device->common == other->common;
}

/* Everything that needs the context current. */
static muster_status furnish(mu_device *device, muster_error *error) {
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    status = make_lanes(device, error);
    if (status) goto end_scope;
    status = mu_pool_create(device, error);
    if (status) goto drop_lanes;
    status = mu_device_sample_memory(device, error);
    if (status) goto drop_pool;
    status = mu_target_probe(device, error);
    if (status) goto drop_pool;
    goto end_scope;
drop_pool:
    mu_pool_destroy(device);
drop_lanes:
    destroy_lanes(device);
end_scope:
    mu_scope_end(&scope);
    return status;
}

muster_status mu_device_open(mu_driver *driver, const mu_device_options *options, mu_device **device,
                             muster_error *error) {
    mu_device *made = mu_alloc_aligned(MU_CACHE_LINE, sizeof *made);
    if (!made) return mu_fail_host_memory(error, "a device", sizeof *made);
    *made =
        (mu_device){.driver = mu_driver_retain(driver), .index = options->index, .own_context = options->own_context};
    muster_status status = find_device(made, options->ordinal, error);
    if (status) goto free_device;
    status = mu_ledger_init(&made->ledger, made->capability.memory_bytes, options->budget_bytes,
                            options->budget_permille, error);
    if (status) goto free_device;
    status = join_shares(made, options, error);
    if (status) goto free_device;
    status = make_context(made, error);
    if (status) goto leave;
    status = furnish(made, error);
    if (status) goto release_context;
    *device = made;
    return MUSTER_OK;
release_context:
    drop_context(made);
leave:
    leave_shares(made);
free_device:
    mu_free_aligned(made);
    mu_driver_release(driver);
    return status;
}

/* What is still enqueued must end before its memory goes; the application's own streams are not waited for. A loss that
 * is found here latches. */
static void drain_lanes(mu_device *device) {
    for (int i = 0; i < MU_LANE_COUNT && !mu_device_is_lost(device); i++) {
        CUresult code = device->driver->stream_synchronize(device->lanes[i]);
        if (code != CUDA_SUCCESS) mu_device_fail(device, code, NULL, "cuStreamSynchronize of lane %d", i);
    }
}

void mu_device_drain(mu_device *device) {
    mu_scope scope;
    if (!mu_scope_begin_release(&scope, device)) return;
    drain_lanes(device);
    mu_scope_end(&scope);
}

void mu_device_close(mu_device *device) {
    if (!device) return;
    mu_scope scope;
    bool alive = mu_scope_begin_release(&scope, device);
    if (alive) drain_lanes(device);
    /* Each of these leaves the driver alone once the device is lost. */
    mu_module_unload(device, device->empty_module);
    mu_pool_destroy(device);
    destroy_lanes(device);
    if (alive) mu_scope_end(&scope);
    drop_context(device);
    leave_shares(device);
    mu_driver_release(device->driver);
    mu_free_aligned(device);
}

/* ----------------------------------------------------------------------------------------------------- properties -- */

const mu_capability *mu_device_capability(const mu_device *device) { return &device->capability; }
mu_ledger *mu_device_ledger(mu_device *device) { return &device->ledger; }
int mu_device_index(const mu_device *device) { return device->index; }
const mu_device_counters *mu_device_get_counters(const mu_device *device) { return &device->counters; }
mu_device_counters *mu_device_counters_mutable(mu_device *device) { return &device->counters; }

bool mu_driver_is_simulated(const mu_driver *driver) { return driver->kind == MU_DRIVER_SIM; }

muster_status mu_driver_device_count(const mu_driver *driver, int *count, muster_error *error) {
    int found = 0;
    CUresult code = driver->device_get_count(&found);
    if (code != CUDA_SUCCESS) return mu_driver_fail(driver, code, error, "cuDeviceGetCount");
    *count = found;
    return MUSTER_OK;
}
