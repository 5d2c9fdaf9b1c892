#include "cache/occupancy_cache.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

typedef struct shape {
    mu_function function; /* NULL: the place is free */
    uint64_t dynamic_shared_bytes;
    uint32_t block_threads;
    int blocks;
} shape;

/* Open addressing with linear probing, at most half full; deletion moves the followers back, so there are no
 * tombstones. */
struct mu_occupancy_cache {
    mu_device *device;
    shape *shapes;
    size_t capacity; /* a power of two, or 0 */
    mu_occupancy_cache_stats stats;
};

enum { FIRST_CAPACITY = 64 };

muster_status mu_occupancy_cache_create(mu_device *device, mu_occupancy_cache **out, muster_error *error) {
    mu_occupancy_cache *cache = mu_alloc_zeroed(1, sizeof *cache);
    if (!cache) return mu_fail_host_memory(error, "an occupancy cache", sizeof *cache);
    cache->device = device;
    *out = cache;
    return MUSTER_OK;
}

void mu_occupancy_cache_destroy(mu_occupancy_cache *cache) {
    if (!cache) return;
    mu_free(cache->shapes);
    mu_free(cache);
}

static uint64_t mix(uint64_t value) {
    value ^= value >> 32;
    value *= 0x9e3779b97f4a7c15u;
    return value ^ value >> 29;
}

static size_t home(const shape *shape, size_t capacity) {
    uint64_t hash = mix((uint64_t)(uintptr_t)shape->function);
    hash = mix(hash + shape->dynamic_shared_bytes);
    return (size_t)mix(hash + shape->block_threads) & (capacity - 1);
}

static bool same_shape(const shape *a, const shape *b) {
    return a->function == b->function && a->block_threads == b->block_threads &&
           a->dynamic_shared_bytes == b->dynamic_shared_bytes;
}

/* The place of `wanted`, or the free one where it belongs. */
static shape *find(shape *shapes, size_t capacity, const shape *wanted) {
    size_t i = home(wanted, capacity);
    while (shapes[i].function && !same_shape(&shapes[i], wanted)) i = (i + 1) & (capacity - 1);
    return &shapes[i];
}

static bool grow(mu_occupancy_cache *cache) {
    size_t capacity = cache->capacity ? 2 * cache->capacity : FIRST_CAPACITY;
    shape *shapes = mu_alloc_zeroed(capacity, sizeof *shapes);
    if (!shapes) return false;
    for (size_t i = 0; i < cache->capacity; i++)
        if (cache->shapes[i].function) *find(shapes, capacity, &cache->shapes[i]) = cache->shapes[i];
    mu_free(cache->shapes);
    cache->shapes = shapes;
    cache->capacity = capacity;
    return true;
}

static void insert(mu_occupancy_cache *cache, const shape *shape) {
    if (cache->stats.shapes == MU_OCCUPANCY_SHAPES_MAX) {
        memset(cache->shapes, 0, cache->capacity * sizeof *cache->shapes);
        cache->stats.shapes = 0;
    }
    if (2 * (cache->stats.shapes + 1) > cache->capacity && !grow(cache)) return;
    *find(cache->shapes, cache->capacity, shape) = *shape;
    cache->stats.shapes++;
}

muster_status mu_occupancy_cache_get(mu_occupancy_cache *cache, mu_function function, uint32_t block_threads,
                                     uint64_t dynamic_shared_bytes, int *blocks, muster_error *error) {
    shape wanted = {.function = function, .dynamic_shared_bytes = dynamic_shared_bytes, .block_threads = block_threads};
    if (!function) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "occupancy of no function; resolve the kernel first");
    if (cache->capacity) {
        const shape *found = find(cache->shapes, cache->capacity, &wanted);
        if (found->function) {
            cache->stats.hits++;
            *blocks = found->blocks;
            return MUSTER_OK;
        }
    }
    cache->stats.queries++;
    muster_status status =
        mu_function_occupancy(cache->device, function, block_threads, dynamic_shared_bytes, &wanted.blocks, error);
    if (status != MUSTER_OK) {
        cache->stats.failures++;
        return status;
    }
    insert(cache, &wanted);
    *blocks = wanted.blocks;
    return MUSTER_OK;
}

/* Empties place `hole` and moves back every follower that may lie there, up to the next free place. */
static void erase(mu_occupancy_cache *cache, size_t hole) {
    size_t mask = cache->capacity - 1;
    for (size_t i = (hole + 1) & mask; cache->shapes[i].function; i = (i + 1) & mask) {
        size_t from_home = (i - home(&cache->shapes[i], cache->capacity)) & mask;
        if (from_home < ((i - hole) & mask)) continue; /* its home lies behind the hole */
        cache->shapes[hole] = cache->shapes[i];
        hole = i;
    }
    cache->shapes[hole].function = NULL;
    cache->stats.shapes--;
}

void mu_occupancy_cache_forget(mu_occupancy_cache *cache, mu_function function) {
    if (!function) return;
    for (size_t i = 0; i < cache->capacity;)
        if (cache->shapes[i].function == function)
            erase(cache, i); /* and look at the same place again: a follower may have moved there */
        else
            i++;
}

void mu_occupancy_cache_get_stats(const mu_occupancy_cache *cache, mu_occupancy_cache_stats *stats) {
    *stats = cache->stats;
}
