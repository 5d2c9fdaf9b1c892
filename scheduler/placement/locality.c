/* Where the job would probably end first: after what is queued there, when what is missing has come, and with what it takes there.
 *
 * So a job goes where its data is until that device's queue exceeds another's by what moving costs and a threshold: estimates are
 * rough, and data that has moved for little is soon moved back. */
#include "base/tuning.h"
#include "scheduler/placement/policies.h"

static uint64_t missing(const muster_placement_device *device) {
    return device->missing_host_bytes + device->missing_peer_bytes;
}

static int place(void *user, const muster_placement_request *request) {
    (void)user;
    uint64_t least_bytes = UINT64_MAX, best_ns = UINT64_MAX;
    uint32_t least_hops = UINT32_MAX;
    for (uint32_t d = 0; d < request->device_count; d++) {
        const muster_placement_device *device = &request->devices[d];
        if (!device->candidate) continue;
        if (missing(device) < least_bytes) least_bytes = missing(device);
        if (device->hops < least_hops) least_hops = device->hops;
    }
    int best = MUSTER_ANY_DEVICE;
    for (uint32_t d = 0; d < request->device_count; d++) {
        const muster_placement_device *device = &request->devices[d];
        if (!device->candidate) continue;
        uint64_t ns = device->queued_ns + device->job_ns + device->copy_ns + device->hops * (uint64_t)MU_HOP_NS;
        if (missing(device) > least_bytes || device->hops > least_hops) ns += MU_SPILL_NS;
        if (ns < best_ns || best < 0) best = (int)d, best_ns = ns;
    }
    return best;
}

const muster_placement_policy mu_policy_locality = {
    .struct_size = sizeof mu_policy_locality,
    .name = "locality",
    .flags = MUSTER_PLACEMENT_QUEUES | MUSTER_PLACEMENT_TIMES | MUSTER_PLACEMENT_DATA,
    .place = place,
};
