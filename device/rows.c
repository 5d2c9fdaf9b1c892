/* Copies and fills of rows that are a pitch apart: one driver call for many. */
#include <inttypes.h>

#include "base/error.h"
#include "device/state.h"

/* The driver's own limit (CU_DEVICE_ATTRIBUTE_MAX_PITCH) on every device there is. */
enum { PITCH_MAX = INT32_MAX };

static bool is_plain(const mu_rows *rows) {
    return rows->count <= 1 || (rows->width == rows->to_pitch && rows->width == rows->from_pitch);
}

static bool fits_driver(const mu_rows *rows) { return rows->to_pitch <= PITCH_MAX && rows->from_pitch <= PITCH_MAX; }

/* One call; the scope is entered. */
static CUresult copy_rows(mu_device *device, mu_lane lane, CUDA_MEMCPY2D *copy, const mu_rows *rows) {
    copy->WidthInBytes = rows->width;
    copy->Height = rows->count;
    copy->dstPitch = rows->to_pitch;
    copy->srcPitch = rows->from_pitch;
    return device->driver->memcpy_2d_async(copy, device->lanes[lane]);
}

muster_status mu_rows_to_device(mu_device *device, mu_lane lane, mu_address to, const void *from, const mu_rows *rows,
                                muster_error *error) {
    if (is_plain(rows)) return mu_copy_to_device(device, lane, to, from, rows->width * rows->count, error);
    muster_status status = MUSTER_OK;
    if (!fits_driver(rows)) {
        for (uint64_t row = 0; row < rows->count && !status; row++)
            status = mu_copy_to_device(device, lane, to + row * rows->to_pitch,
                                       (const char *)from + row * rows->from_pitch, rows->width, error);
        return status;
    }
    mu_scope scope;
    status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = from,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = (CUdeviceptr)to};
    CUresult code = copy_rows(device, lane, &copy, rows);
    if (code == CUDA_SUCCESS)
        mu_count(&device->counters, &device->counters.bytes_to_device, rows->width * rows->count);
    else
        status = mu_device_fail_as(device, MUSTER_TRANSFER_FAILED, code, error,
                                   "copying %" PRIu64 " rows of %" PRIu64 " bytes from the host at %p", rows->count,
                                   rows->width, from);
    mu_scope_end(&scope);
    return status;
}

muster_status mu_rows_to_host(mu_device *device, mu_lane lane, void *to, mu_address from, const mu_rows *rows,
                              muster_error *error) {
    if (is_plain(rows)) return mu_copy_to_host(device, lane, to, from, rows->width * rows->count, error);
    muster_status status = MUSTER_OK;
    if (!fits_driver(rows)) {
        for (uint64_t row = 0; row < rows->count && !status; row++)
            status = mu_copy_to_host(device, lane, (char *)to + row * rows->to_pitch, from + row * rows->from_pitch,
                                     rows->width, error);
        return status;
    }
    mu_scope scope;
    status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = (CUdeviceptr)from,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = to};
    CUresult code = copy_rows(device, lane, &copy, rows);
    if (code == CUDA_SUCCESS)
        mu_count(&device->counters, &device->counters.bytes_to_host, rows->width * rows->count);
    else
        status = mu_device_fail_as(device, MUSTER_TRANSFER_FAILED, code, error,
                                   "copying %" PRIu64 " rows of %" PRIu64 " bytes to the host at %p", rows->count,
                                   rows->width, to);
    mu_scope_end(&scope);
    return status;
}

static muster_status from_peer_one_by_one(mu_device *device, mu_lane lane, mu_address to, mu_device *peer,
                                          mu_address from, const mu_rows *rows, muster_error *error) {
    muster_status status = MUSTER_OK;
    for (uint64_t row = 0; row < rows->count && !status; row++)
        status = mu_copy_from_peer(device, lane, to + row * rows->to_pitch, peer, from + row * rows->from_pitch,
                                   rows->width, error);
    return status;
}

muster_status mu_rows_from_peer(mu_device *device, mu_lane lane, mu_address to, mu_device *peer, mu_address from,
                                const mu_rows *rows, muster_error *error) {
    if (is_plain(rows)) return mu_copy_from_peer(device, lane, to, peer, from, rows->width * rows->count, error);
    if (!fits_driver(rows)) return from_peer_one_by_one(device, lane, to, peer, from, rows, error);
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    status = mu_device_alive(peer, error);
    if (status) goto end_scope;
    /* Unified: the driver finds out whose memory it is. Such a copy needs direct access, which a peer copy does not. */
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .srcDevice = (CUdeviceptr)from,
                          .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .dstDevice = (CUdeviceptr)to};
    CUresult code = copy_rows(device, lane, &copy, rows);
    if (code == CUDA_ERROR_INVALID_VALUE) { /* not between these two, for this driver */
        mu_scope_end(&scope);
        return from_peer_one_by_one(device, lane, to, peer, from, rows, error);
    }
    if (code != CUDA_SUCCESS) {
        status = mu_device_fail_with(device, peer, MUSTER_TRANSFER_FAILED, code, error,
                                     "copying %" PRIu64 " rows of %" PRIu64 " bytes from device %d", rows->count,
                                     rows->width, peer->index);
        goto end_scope;
    }
    mu_count(&device->counters, &device->counters.bytes_from_peer, rows->width * rows->count);
    mu_count(&device->counters, &device->counters.peer_copies, 1);
end_scope:
    mu_scope_end(&scope);
    return status;
}

muster_status mu_rows_clear(mu_device *device, mu_lane lane, mu_address to, const mu_rows *rows, muster_error *error) {
    muster_status status = MUSTER_OK;
    if (rows->count <= 1 || rows->width == rows->to_pitch)
        return mu_fill(device, lane, to, 0, 1, rows->width * rows->count, error);
    if (rows->to_pitch > PITCH_MAX) {
        for (uint64_t row = 0; row < rows->count && !status; row++)
            status = mu_fill(device, lane, to + row * rows->to_pitch, 0, 1, rows->width, error);
        return status;
    }
    mu_scope scope;
    status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = device->driver->memset_d2d8_async((CUdeviceptr)to, rows->to_pitch, 0, rows->width, rows->count,
                                                      device->lanes[lane]);
    if (code == CUDA_SUCCESS)
        mu_count(&device->counters, &device->counters.fills, 1);
    else
        status = mu_device_fail_as(device, MUSTER_TRANSFER_FAILED, code, error,
                                   "clearing %" PRIu64 " rows of %" PRIu64 " bytes", rows->count, rows->width);
    mu_scope_end(&scope);
    return status;
}
