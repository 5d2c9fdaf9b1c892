/* Which (program, configuration) pairs have been found valid, so that validating one again costs a look-up.
 *
 * Only success is remembered: a failure is found again by whoever asks again, with its numbers. Bounded; when it is
 * full it starts over, for validating once more is never wrong.
 *
 * Threading: any thread. Takes the cache's lock, never while it validates: two threads that ask for one pair at the
 * same moment may both validate it. Used where programs and graphs are made, not where jobs are submitted. */
#ifndef MUSTER_CACHE_VALIDATION_CACHE_H
#define MUSTER_CACHE_VALIDATION_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/identity.h"
#include "muster.h"

typedef struct mu_validation_cache mu_validation_cache;

enum { MU_VALIDATIONS_MAX = 1024 };

/* `enabled` false turns validation off: everything is valid, nothing is called. Errors: OUT_OF_HOST_MEMORY. */
muster_status mu_validation_cache_create(bool enabled, mu_validation_cache **cache, muster_error *error);
void mu_validation_cache_destroy(mu_validation_cache *cache); /* NULL is ignored */

/* From now on; what is remembered stays. */
void mu_validation_cache_enable(mu_validation_cache *cache, bool enabled);

/* OK, or the failure with `error` filled. It may block. */
typedef muster_status (*mu_validate_fn)(void *user, muster_error *error);

/* MUSTER_OK when the pair is known to be valid, else what `validate` says. `configuration` is a digest of everything
 * besides the program that the verdict depends on. */
muster_status mu_validation_check(mu_validation_cache *cache, const mu_key *program, const mu_key *configuration,
                                  mu_validate_fn validate, void *user, muster_error *error);

typedef struct mu_validation_stats {
    uint64_t hits, validations, failures;
    uint64_t entries; /* now */
} mu_validation_stats;

void mu_validation_cache_get_stats(mu_validation_cache *cache, mu_validation_stats *stats);

#endif
