/* The device whose queue ends first; of several, the first. */
#include "scheduler/placement/policies.h"

static int place(void *user, const muster_placement_request *request) {
    (void)user;
    int best = mu_nth_candidate(request->candidates, 0);
    for (uint32_t d = (uint32_t)best + 1; d < request->device_count; d++)
        if (request->devices[d].candidate && request->devices[d].queued_ns < request->devices[best].queued_ns)
            best = (int)d;
    return best;
}

const muster_placement_policy mu_policy_least_loaded = {
    .struct_size = sizeof mu_policy_least_loaded,
    .name = "least-loaded",
    .flags = MUSTER_PLACEMENT_QUEUES,
    .place = place,
};
