#include "cache/validation_cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

enum { PLACES = 2 * MU_VALIDATIONS_MAX };
_Static_assert((PLACES & (PLACES - 1)) == 0, "places are found by a mask");

typedef struct place {
    mu_key pair;
    bool used;
} place;

struct mu_validation_cache {
    atomic_bool enabled; /* relaxed: a toggle takes effect at some moment soon */
    pthread_mutex_t lock;
    mu_validation_stats stats;
    place places[PLACES]; /* open addressing, at most half full, nothing is ever removed alone */
};

muster_status mu_validation_cache_create(bool enabled, mu_validation_cache **out, muster_error *error) {
    mu_validation_cache *cache = mu_alloc_zeroed(1, sizeof *cache);
    if (!cache) return mu_fail_host_memory(error, "a validation cache", sizeof *cache);
    atomic_init(&cache->enabled, enabled);
    pthread_mutex_init(&cache->lock, NULL);
    *out = cache;
    return MUSTER_OK;
}

void mu_validation_cache_destroy(mu_validation_cache *cache) {
    if (!cache) return;
    pthread_mutex_destroy(&cache->lock);
    mu_free(cache);
}

void mu_validation_cache_enable(mu_validation_cache *cache, bool enabled) {
    atomic_store_explicit(&cache->enabled, enabled, memory_order_relaxed);
}

static mu_key pair_key(const mu_key *program, const mu_key *configuration) {
    mu_digest_state state;
    mu_digest_begin(&state, "muster validation 1");
    mu_digest_field(&state, program->bytes, sizeof program->bytes);
    mu_digest_field(&state, configuration->bytes, sizeof configuration->bytes);
    return mu_digest_end(&state);
}

/* The place of the pair, or the free one where it belongs. */
static place *find(mu_validation_cache *cache, const mu_key *pair) {
    uint64_t hash;
    memcpy(&hash, pair->bytes, sizeof hash);
    size_t i = hash & (PLACES - 1);
    while (cache->places[i].used && !mu_key_equal(&cache->places[i].pair, pair)) i = (i + 1) & (PLACES - 1);
    return &cache->places[i];
}

static bool is_known(mu_validation_cache *cache, const mu_key *pair) {
    pthread_mutex_lock(&cache->lock);
    bool known = find(cache, pair)->used;
    if (known) cache->stats.hits++;
    pthread_mutex_unlock(&cache->lock);
    return known;
}

static void remember(mu_validation_cache *cache, const mu_key *pair, bool valid) {
    pthread_mutex_lock(&cache->lock);
    cache->stats.validations++;
    if (!valid) cache->stats.failures++;
    if (valid && !find(cache, pair)->used) {
        if (cache->stats.entries == MU_VALIDATIONS_MAX) {
            memset(cache->places, 0, sizeof cache->places);
            cache->stats.entries = 0;
        }
        *find(cache, pair) = (place){.pair = *pair, .used = true};
        cache->stats.entries++;
    }
    pthread_mutex_unlock(&cache->lock);
}

muster_status mu_validation_check(mu_validation_cache *cache, const mu_key *program, const mu_key *configuration,
                                  mu_validate_fn validate, void *user, muster_error *error) {
    if (!atomic_load_explicit(&cache->enabled, memory_order_relaxed)) return MUSTER_OK;
    mu_key pair = pair_key(program, configuration);
    if (is_known(cache, &pair)) return MUSTER_OK;
    muster_status status = validate(user, error);
    remember(cache, &pair, status == MUSTER_OK);
    return status;
}

void mu_validation_cache_get_stats(mu_validation_cache *cache, mu_validation_stats *stats) {
    pthread_mutex_lock(&cache->lock);
    *stats = cache->stats;
    pthread_mutex_unlock(&cache->lock);
}
