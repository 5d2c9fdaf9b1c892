/* One after the other. */
#include "scheduler/placement/policies.h"

static int place(void *user, const muster_placement_request *request) {
    (void)user;
    return mu_nth_candidate(request->candidates, request->turn);
}

const muster_placement_policy mu_policy_round_robin = {
    .struct_size = sizeof mu_policy_round_robin,
    .name = "round-robin",
    .flags = MUSTER_PLACEMENT_TURN,
    .place = place,
};
