/* Direct access between two devices, and the proof that it works. */
#include <string.h>

#include "base/error.h"
#include "device/state.h"

enum { PROBE_WORDS = 1024, PROBE_BYTES = PROBE_WORDS * 4 };

/* One end of the checked copy: a buffer of its pool, ordered on its upload lane. */
static muster_status probe_alloc(mu_device *device, CUdeviceptr *pointer, muster_error *error) {
    CUresult code =
        device->driver->mem_alloc_from_pool_async(pointer, PROBE_BYTES, device->pool, device->lanes[MU_LANE_UPLOAD]);
    if (code == CUDA_SUCCESS) return MUSTER_OK;
    *pointer = 0;
    return mu_device_fail(device, code, error, "%d bytes for the check of peer access", (int)PROBE_BYTES);
}

static void probe_free(mu_device *device, CUdeviceptr pointer) {
    if (!pointer || mu_device_is_lost(device)) return;
    CUresult code = device->driver->mem_free_async(pointer, device->lanes[MU_LANE_UPLOAD]);
    if (code != CUDA_SUCCESS) mu_device_fail(device, code, NULL, "cuMemFreeAsync");
}

/* Puts `pattern` into memory of `peer`; it has arrived on return. */
static muster_status fill_peer(mu_device *peer, const uint32_t *pattern, CUdeviceptr *pointer, muster_error *error) {
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, peer, error);
    if (status) return status;
    status = probe_alloc(peer, pointer, error);
    if (!status) {
        CUstream stream = peer->lanes[MU_LANE_UPLOAD];
        CUresult code = peer->driver->memcpy_htod_async(*pointer, pattern, PROBE_BYTES, stream);
        if (code == CUDA_SUCCESS) code = peer->driver->stream_synchronize(stream);
        if (code != CUDA_SUCCESS)
            status =
                mu_device_fail(peer, code, error, "writing %d bytes for the check of peer access", (int)PROBE_BYTES);
    }
    mu_scope_end(&scope);
    return status;
}

static void drain_peer(mu_device *peer, CUdeviceptr pointer) {
    mu_scope scope;
    if (!pointer || !mu_scope_begin_release(&scope, peer)) return;
    probe_free(peer, pointer);
    mu_scope_end(&scope);
}

/* Copies from `peer` to `device` and home, and says whether what comes back is what was sent. */
static muster_status checked_copy(mu_device *device, mu_device *peer, bool *same, muster_error *error) {
    uint32_t sent[PROBE_WORDS], received[PROBE_WORDS];
    CUdeviceptr there = 0, here = 0;
    for (uint32_t i = 0; i < PROBE_WORDS; i++) {
        sent[i] = (i + 1) * 2654435761u ^ (uint32_t)device->index << 16 ^ (uint32_t)peer->index;
        received[i] = ~sent[i];
    }
    muster_status status = fill_peer(peer, sent, &there, error);
    if (status) goto free_there;
    status = probe_alloc(device, &here, error);
    if (status) goto free_there;
    CUstream stream = device->lanes[MU_LANE_UPLOAD];
    CUresult code = device->driver->memcpy_peer_async(here, device->context, there, peer->context, PROBE_BYTES, stream);
    if (code == CUDA_SUCCESS) {
        code = device->driver->memcpy_dtoh_async(received, here, PROBE_BYTES, stream);
        CUresult end = device->driver->stream_synchronize(stream);
        if (code == CUDA_SUCCESS) code = end;
        /* Perhaps under way still: a second try, or the memory is left to the pools, which go at the end. */
        if (end != CUDA_SUCCESS && device->driver->stream_synchronize(stream) != CUDA_SUCCESS) there = here = 0;
    }
    if (code != CUDA_SUCCESS)
        status =
            mu_device_fail_as(device, MUSTER_TRANSFER_FAILED, code, error,
                              "copying %d bytes from device %d to check peer access", (int)PROBE_BYTES, peer->index);
    else
        *same = memcmp(sent, received, PROBE_BYTES) == 0;
    if (here) probe_free(device, here);
free_there:
    drain_peer(peer, there);
    return status;
}

/* Whether a code only says that the two cannot reach each other directly. */
static bool is_no_access(CUresult code) {
    return code == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED || code == CUDA_ERROR_TOO_MANY_PEERS ||
           code == CUDA_ERROR_NOT_SUPPORTED || code == CUDA_ERROR_INVALID_DEVICE;
}

static CUresult set_pool_access(mu_device *device, mu_device *peer, CUmemAccess_flags flags) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device->handle},
                              .flags = flags};
    return device->driver->mem_pool_set_access(peer->pool, &access, 1);
}

static muster_status grant(mu_device *device, mu_device *peer, bool *direct, muster_error *error) {
    CUresult code = device->driver->ctx_enable_peer_access(peer->context, 0);
    if (code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) code = CUDA_SUCCESS;
    if (code == CUDA_SUCCESS) code = set_pool_access(device, peer, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    *direct = code == CUDA_SUCCESS;
    if (code == CUDA_SUCCESS || is_no_access(code)) return MUSTER_OK;
    return mu_device_fail(device, code, error, "enabling access to device %d", peer->index);
}

static muster_status connect(mu_device *device, mu_device *peer, bool *direct, muster_error *error) {
    int can = 0;
    bool granted = false, same = false;
    CUresult code = device->driver->device_can_access_peer(&can, device->handle, peer->handle);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuDeviceCanAccessPeer(%d)", peer->index);
    if (can) {
        muster_status status = grant(device, peer, &granted, error);
        if (status) return status;
    }
    muster_status status = checked_copy(device, peer, &same, error);
    if (status) return status;
    if (!same && granted) {
        /* Machines exist whose direct path delivers other bytes (an IOMMU in the way): go through the host there. */
        granted = false;
        code = set_pool_access(device, peer, CU_MEM_ACCESS_FLAGS_PROT_NONE);
        if (code != CUDA_SUCCESS)
            return mu_device_fail(device, code, error, "revoking access to device %d", peer->index);
        status = checked_copy(device, peer, &same, error);
        if (status) return status;
    }
    if (!same)
        return mu_device_refuse(
            device, MUSTER_TRANSFER_FAILED, error,
            "device %d: a copy of %d bytes from device %d does not deliver what was sent; use one of "
            "them only, and check the machine's IOMMU and PCI access control settings",
            device->index, (int)PROBE_BYTES, peer->index);
    *direct = granted;
    return MUSTER_OK;
}

/* Two actors on one device: its memory is one, but the driver has no peer access from a device to itself. Copies name both contexts. */
static muster_status connect_share(mu_device *device, mu_device *peer, bool *direct, muster_error *error) {
    bool same = false;
    muster_status status = checked_copy(device, peer, &same, error);
    if (status) return status;
    if (!same)
        return mu_device_refuse(
            device, MUSTER_TRANSFER_FAILED, error,
            "device %d: a copy of %d bytes from device %d, which is the same GPU, does not deliver what was "
            "sent; leave actors_per_device at 1, and check the GPU's memory",
            device->index, (int)PROBE_BYTES, peer->index);
    *direct = true;
    return MUSTER_OK;
}

muster_status mu_device_connect_peer(mu_device *device, mu_device *peer, bool *direct, muster_error *error) {
    if (device->driver != peer->driver)
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "devices %d and %d are of different drivers and cannot be connected", device->index,
                                peer->index);
    mu_scope scope;
    muster_status status = mu_device_alive(peer, error);
    if (!status) status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    if (device->handle != peer->handle)
        status = connect(device, peer, direct, error);
    else if (device->context == peer->context)
        *direct = true; /* not even a peer */
    else
        status = connect_share(device, peer, direct, error);
    mu_scope_end(&scope);
    return status;
}
