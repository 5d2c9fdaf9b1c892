/* Copies and fills. */
#include <inttypes.h>

#include "base/error.h"
#include "device/state.h"

muster_status mu_copy_to_device(mu_device *device, mu_lane lane, mu_address destination, const void *source,
                                uint64_t bytes, muster_error *error) {
    if (bytes == 0) return MUSTER_OK;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = device->driver->memcpy_htod_async((CUdeviceptr)destination, source, bytes, device->lanes[lane]);
    if (code == CUDA_SUCCESS)
        mu_count(&device->counters, &device->counters.bytes_to_device, bytes);
    else
        status = mu_device_fail_as(device, MUSTER_TRANSFER_FAILED, code, error,
                                   "copying %" PRIu64 " bytes from the host at %p", bytes, source);
    mu_scope_end(&scope);
    return status;
}

muster_status mu_copy_to_host(mu_device *device, mu_lane lane, void *destination, mu_address source, uint64_t bytes,
                              muster_error *error) {
    if (bytes == 0) return MUSTER_OK;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = device->driver->memcpy_dtoh_async(destination, (CUdeviceptr)source, bytes, device->lanes[lane]);
    if (code == CUDA_SUCCESS)
        mu_count(&device->counters, &device->counters.bytes_to_host, bytes);
    else
        status = mu_device_fail_as(device, MUSTER_TRANSFER_FAILED, code, error,
                                   "copying %" PRIu64 " bytes to the host at %p", bytes, destination);
    mu_scope_end(&scope);
    return status;
}

muster_status mu_copy_within(mu_device *device, mu_lane lane, mu_address destination, mu_address source, uint64_t bytes,
                             muster_error *error) {
    if (bytes == 0) return MUSTER_OK;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code =
        device->driver->memcpy_dtod_async((CUdeviceptr)destination, (CUdeviceptr)source, bytes, device->lanes[lane]);
    if (code == CUDA_SUCCESS)
        mu_count(&device->counters, &device->counters.bytes_within_device, bytes);
    else
        status = mu_device_fail_as(device, MUSTER_TRANSFER_FAILED, code, error,
                                   "copying %" PRIu64 " bytes within the device", bytes);
    mu_scope_end(&scope);
    return status;
}

muster_status mu_copy_from_peer(mu_device *device, mu_lane lane, mu_address destination, mu_device *peer,
                                mu_address source, uint64_t bytes, muster_error *error) {
    if (bytes == 0) return MUSTER_OK;
    /* Two actors on one primary context are no peers to the driver. */
    if (peer->context == device->context) return mu_copy_within(device, lane, destination, source, bytes, error);
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    status = mu_device_alive(peer, error);
    if (status) goto end_scope;
    CUresult code = device->driver->memcpy_peer_async((CUdeviceptr)destination, device->context, (CUdeviceptr)source,
                                                      peer->context, bytes, device->lanes[lane]);
    if (code != CUDA_SUCCESS) {
        status = mu_device_fail_with(device, peer, MUSTER_TRANSFER_FAILED, code, error,
                                     "copying %" PRIu64 " bytes from device %d", bytes, peer->index);
        goto end_scope;
    }
    mu_count(&device->counters, &device->counters.bytes_from_peer, bytes);
    mu_count(&device->counters, &device->counters.peer_copies, 1);
end_scope:
    mu_scope_end(&scope);
    return status;
}

static CUresult fill(mu_device *device, CUstream stream, CUdeviceptr destination, uint32_t pattern,
                     uint32_t pattern_bytes, uint64_t bytes) {
    const mu_driver *driver = device->driver;
    switch (pattern_bytes) {
        case 1: return driver->memset_d8_async(destination, (unsigned char)pattern, bytes, stream);
        case 2: return driver->memset_d16_async(destination, (unsigned short)pattern, bytes / 2, stream);
        default: return driver->memset_d32_async(destination, pattern, bytes / 4, stream);
    }
}

muster_status mu_fill(mu_device *device, mu_lane lane, mu_address destination, uint32_t pattern, uint32_t pattern_bytes,
                      uint64_t bytes, muster_error *error) {
    if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4)
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "a fill pattern of %" PRIu32 " bytes is not possible; give 1, 2 or 4", pattern_bytes);
    if (bytes % pattern_bytes || destination % pattern_bytes)
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "filling %" PRIu64 " bytes at 0x%" PRIx64 " with a pattern of %" PRIu32
                                " bytes: both must be multiples of the pattern",
                                bytes, destination, pattern_bytes);
    if (bytes == 0) return MUSTER_OK;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = fill(device, device->lanes[lane], (CUdeviceptr)destination, pattern, pattern_bytes, bytes);
    if (code == CUDA_SUCCESS)
        mu_count(&device->counters, &device->counters.fills, 1);
    else
        status = mu_device_fail_as(device, MUSTER_TRANSFER_FAILED, code, error, "filling %" PRIu64 " bytes", bytes);
    mu_scope_end(&scope);
    return status;
}
