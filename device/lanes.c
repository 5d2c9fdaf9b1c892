/* Events and synchronisation. */
#include <stdatomic.h>

#include "base/error.h"
#include "device/state.h"

muster_status mu_event_create(mu_device *device, mu_event *event, muster_error *error) {
    CUevent made;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = device->driver->event_create(&made, CU_EVENT_DISABLE_TIMING);
    if (code == CUDA_SUCCESS)
        *event = (mu_event)made;
    else
        status = mu_device_fail(device, code, error, "cuEventCreate");
    mu_scope_end(&scope);
    return status;
}

muster_status mu_event_create_timed(mu_device *device, mu_event *event, muster_error *error) {
    CUevent made;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = device->driver->event_create(&made, CU_EVENT_DEFAULT);
    if (code == CUDA_SUCCESS)
        *event = (mu_event)made;
    else
        status = mu_device_fail(device, code, error, "cuEventCreate with timing");
    mu_scope_end(&scope);
    return status;
}

void mu_event_destroy(mu_device *device, mu_event event) {
    mu_scope scope;
    if (!event || !mu_scope_begin_release(&scope, device)) return;
    device->driver->event_destroy(mu_event_handle(event));
    mu_scope_end(&scope);
}

muster_status mu_event_record(mu_device *device, mu_lane lane, mu_event event, muster_error *error) {
    muster_status status = mu_device_alive(device, error);
    if (status) return status;
    CUresult code = device->driver->event_record(mu_event_handle(event), device->lanes[lane]);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuEventRecord on lane %d", (int)lane);
    mu_count(&device->counters, &device->counters.events_recorded, 1);
    return MUSTER_OK;
}

muster_status mu_event_poll(mu_device *device, mu_event event, bool *done, muster_error *error) {
    muster_status status = mu_device_alive(device, error);
    if (status) return status;
    CUresult code = device->driver->event_query(mu_event_handle(event));
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_NOT_READY)
        return mu_device_fail(device, code, error, "cuEventQuery");
    *done = code == CUDA_SUCCESS;
    return MUSTER_OK;
}

bool mu_event_kernel_ns(const mu_device *device, mu_event event, uint64_t *kernel_ns) {
    if (!device->driver->event_kernel_ns) return false;
    *kernel_ns = device->driver->event_kernel_ns(device->driver, mu_event_handle(event));
    return true;
}

muster_status mu_event_wait(mu_device *device, mu_lane lane, mu_event event, muster_error *error) {
    muster_status status = mu_device_alive(device, error);
    if (status) return status;
    CUresult code = device->driver->stream_wait_event(device->lanes[lane], mu_event_handle(event), 0);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuStreamWaitEvent on lane %d", (int)lane);
    mu_count(&device->counters, &device->counters.event_waits, 1);
    return MUSTER_OK;
}

muster_status mu_event_wait_for(mu_device *device, mu_lane lane, mu_event event, mu_device *owner,
                                muster_error *error) {
    muster_status status = mu_device_alive(device, error);
    if (!status && owner != device) status = mu_device_alive(owner, error);
    if (status) return status;
    CUresult code = device->driver->stream_wait_event(device->lanes[lane], mu_event_handle(event), 0);
    if (code != CUDA_SUCCESS)
        return mu_device_fail_with(device, owner, MUSTER_OK, code, error, "cuStreamWaitEvent on lane %d for device %d",
                                   (int)lane, owner->index);
    mu_count(&device->counters, &device->counters.event_waits, 1);
    return MUSTER_OK;
}

muster_status mu_event_elapsed(mu_device *device, mu_event start, mu_event end, uint64_t *elapsed_ns,
                               muster_error *error) {
    float milliseconds = 0;
    muster_status status = mu_device_alive(device, error);
    if (status) return status;
    CUresult code = device->driver->event_elapsed_time(&milliseconds, mu_event_handle(start), mu_event_handle(end));
    if (code == CUDA_ERROR_NOT_READY)
        return mu_device_refuse(device, MUSTER_INVALID_STATE, error,
                                "device %d: the events have not completed; poll the later one first", device->index);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuEventElapsedTime");
    *elapsed_ns = milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
    return MUSTER_OK;
}

muster_status mu_lane_synchronize(mu_device *device, mu_lane lane, muster_error *error) {
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = device->driver->stream_synchronize(device->lanes[lane]);
    if (code == CUDA_SUCCESS)
        mu_count(&device->counters, &device->counters.synchronisations, 1);
    else
        status = mu_device_fail(device, code, error, "cuStreamSynchronize of lane %d", (int)lane);
    mu_scope_end(&scope);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- signals -- */

/* In pinned memory. */
struct mu_signal {
    _Atomic uint32_t value;
};

muster_status mu_signal_create(mu_device *device, mu_signal **signal, muster_error *error) {
    void *made;
    *signal = NULL;
    if (!device->driver->stream_write_value32) return MUSTER_OK;
    if (mu_pinned_alloc(device, sizeof(mu_signal), &made, error)) return mu_device_alive(device, error);
    atomic_init(&((mu_signal *)made)->value, 0);
    *signal = made;
    return MUSTER_OK;
}

void mu_signal_destroy(mu_device *device, mu_signal *signal) { mu_pinned_free(device, signal); }

bool mu_signal_send(mu_device *device, mu_lane lane, mu_signal *signal, uint32_t value) {
    if (mu_device_is_lost(device)) return false;
    /* Pinned memory has one address for host and devices. */
    CUresult code = device->driver->stream_write_value32(device->lanes[lane], (CUdeviceptr)(uintptr_t)signal, value,
                                                         CU_STREAM_WRITE_VALUE_DEFAULT);
    if (code != CUDA_SUCCESS) mu_device_fail(device, code, NULL, "cuStreamWriteValue32 on lane %d", (int)lane);
    return code == CUDA_SUCCESS;
}

uint32_t mu_signal_value(const mu_signal *signal) {
    /* Acquire pairs with the fence by which the driver precedes the device's write, as by __threadfence_system. */
    return atomic_load_explicit(&signal->value, memory_order_acquire);
}
