#include "device/capability.h"

#include "base/error.h"

static bool at_least(const mu_capability *capability, int major, int minor) {
    if (capability->compute_major != major) return capability->compute_major > major;
    return capability->compute_minor >= minor;
}

bool mu_has_f16(const mu_capability *capability) { return at_least(capability, 5, 3); }
bool mu_has_bf16(const mu_capability *capability) { return at_least(capability, 8, 0); }
bool mu_has_tensor_cores(const mu_capability *capability) { return at_least(capability, 7, 0); }
bool mu_has_grid_sync(const mu_capability *capability) {
    return at_least(capability, 6, 0) && capability->cooperative_launch;
}
bool mu_has_async_compute(const mu_capability *capability) {
    return capability->concurrent_kernels || capability->copy_engines > 0;
}
bool mu_has_subgroup(const mu_capability *capability) { return capability->warp_size > 0; }

uint32_t mu_capability_features(const mu_capability *capability, bool lowering_has_tensor_cores) {
    uint32_t features = 0;
    if (mu_has_subgroup(capability)) features |= MU_FEATURE_SUBGROUP;
    if (mu_has_f16(capability)) features |= MU_FEATURE_F16;
    if (mu_has_bf16(capability)) features |= MU_FEATURE_BF16;
    if (mu_has_tensor_cores(capability) && lowering_has_tensor_cores) features |= MU_FEATURE_TENSOR_CORES;
    if (mu_has_async_compute(capability)) features |= MU_FEATURE_ASYNC_COMPUTE;
    return features;
}

muster_status mu_capability_check(const mu_capability *capability, muster_error *error) {
    if (mu_has_subgroup(capability)) return MUSTER_OK;
    return mu_fail(
        error, MUSTER_CAPABILITY_MISSING,
        "device %d (%s) reports a warp size of %d, so nothing can be lowered for it; fix the probe: the driver "
        "must report CU_DEVICE_ATTRIBUTE_WARP_SIZE",
        capability->ordinal, capability->name, capability->warp_size);
}
