/* The placement policies that Muster comes with, one file each. They get what an application's policy gets, and nothing else
 * (muster_placement_policy in muster.h): their `user` is NULL, and what they keep between jobs is in the request. */
#ifndef MUSTER_SCHEDULER_PLACEMENT_POLICIES_H
#define MUSTER_SCHEDULER_PLACEMENT_POLICIES_H

#include "muster.h"

#define MU_PLACEMENT_FLAGS                                                                                             \
    (MUSTER_PLACEMENT_QUEUES | MUSTER_PLACEMENT_TIMES | MUSTER_PLACEMENT_DATA | MUSTER_PLACEMENT_MEMORY |              \
     MUSTER_PLACEMENT_TURN)

extern const muster_placement_policy mu_policy_locality, mu_policy_least_loaded, mu_policy_round_robin,
    mu_policy_random;

extern const char mu_placement_names[]; /* for messages */

/* The nth candidate, counted around. */
static inline int mu_nth_candidate(uint64_t candidates, uint64_t n) {
    for (n %= (uint64_t)__builtin_popcountll(candidates); n > 0; n--) candidates &= candidates - 1;
    return __builtin_ctzll(candidates);
}

#endif
