#include "device/target.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "device/state.h"

int mu_target_candidates(int native_sm, int targets[MU_MAX_TARGETS]) {
    static const int fallbacks[] = {89, 86, 80, 75, 70};
    int count = 0;
    targets[count++] = native_sm;
    for (size_t i = 0; i < sizeof fallbacks / sizeof *fallbacks; i++)
        if (fallbacks[i] < native_sm) targets[count++] = fallbacks[i];
    return count;
}

/* The first PTX version with each target: a compiler may refuse a newer version than its own, never an older one. */
static const char *ptx_version(int sm) {
    if (sm >= 103) return "9.0";
    if (sm >= 100) return "8.6";
    if (sm >= 89) return "7.8";
    if (sm >= 87) return "7.4";
    if (sm >= 86) return "7.1";
    if (sm >= 80) return "7.0";
    if (sm >= 75) return "6.3";
    return "6.0";
}

void mu_target_probe_ptx(int sm, char ptx[MU_PROBE_PTX_BYTES]) {
    snprintf(ptx, MU_PROBE_PTX_BYTES,
             ".version %s\n.target sm_%d\n.address_size 64\n.visible .entry " MU_PROBE_ENTRY "()\n{\n    ret;\n}\n",
             ptx_version(sm), sm);
}

muster_status mu_target_probe(mu_device *device, muster_error *error) {
    int targets[MU_MAX_TARGETS];
    int count = mu_target_candidates(device->capability.native_sm, targets);
    char reasons[320] = "";
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        char ptx[MU_PROBE_PTX_BYTES];
        muster_error failure = {0};
        void *cubin = NULL;
        size_t cubin_bytes;
        mu_target_probe_ptx(targets[i], ptx);
        muster_status status =
            mu_module_compile(device, ptx, strlen(ptx), "target probe", &cubin, &cubin_bytes, &failure);
        mu_free(cubin);
        if (!status) {
            device->capability.ptx_target_sm = targets[i];
            return MUSTER_OK;
        }
        bool lost = muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST;
        if (lost || status == MUSTER_OUT_OF_HOST_MEMORY) return mu_error_copy(error, &failure);
        int written = snprintf(reasons + used, sizeof reasons - used, "%ssm_%d: %.44s", i ? "; " : "", targets[i],
                               muster_status_text(status));
        if (failure.driver_code && written > 0 && (size_t)written < sizeof reasons - used) {
            used += (size_t)written;
            written = snprintf(reasons + used, sizeof reasons - used, " (%d)", failure.driver_code);
        }
        if (written > 0 && (size_t)written < sizeof reasons - used) used += (size_t)written;
    }
    device->capability.ptx_target_sm = 0;
    mu_device_refuse(device, MUSTER_CAPABILITY_MISSING, &device->target_error,
                     "device %d (%.40s) compiles PTX for no target (%s); update the driver, or give programs as cubins",
                     device->index, device->capability.name, reasons);
    return MUSTER_OK;
}

muster_status mu_device_target(const mu_device *device, int *sm, muster_error *error) {
    if (device->capability.ptx_target_sm == 0) return mu_error_copy(error, &device->target_error);
    muster_status status = mu_capability_check(&device->capability, error);
    if (status) return status;
    *sm = device->capability.ptx_target_sm;
    return MUSTER_OK;
}
