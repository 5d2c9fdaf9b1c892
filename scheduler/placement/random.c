/* Anywhere, for finding what depends on luck: a sequence that the seed repeats, SplitMix64 of the turn. */
#include "scheduler/placement/policies.h"

static int place(void *user, const muster_placement_request *request) {
    (void)user;
    uint64_t x = request->seed + request->turn * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return mu_nth_candidate(request->candidates, x ^ x >> 31);
}

const muster_placement_policy mu_policy_random = {
    .struct_size = sizeof mu_policy_random,
    .name = "random",
    .flags = MUSTER_PLACEMENT_TURN,
    .place = place,
};
