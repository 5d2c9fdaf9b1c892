#include "cache/module_cache.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

typedef struct function_node {
    struct function_node *next;
    mu_function function;
    mu_function_info info;
    char name[];
} function_node;

struct mu_module_entry {
    mu_module_cache *cache;
    mu_module_entry *next; /* in its bucket */
    mu_module_entry *due_previous, *due_next;
    mu_key key;
    mu_module module;
    function_node *functions; /* the most recently resolved first */
    uint32_t users;           /* loads not yet dropped */
    uint32_t holds;           /* work in flight; due when both are 0 */
};

enum { BUCKETS = 256 };

struct mu_module_cache {
    mu_device *device;
    mu_device_counters *counters; /* the device's */
    mu_occupancy_cache *occupancy;
    mu_module_entry *buckets[BUCKETS];
    mu_module_entry *due_first, *due_last; /* longest due first */
    uint32_t due;
    mu_module_request *requests_first, *requests_last; /* longest waiting first */
    mu_module_cache_stats stats;
};

/* ---------------------------------------------------------------------------------------------------------- life -- */

muster_status mu_module_cache_create(mu_device *device, mu_occupancy_cache *occupancy, mu_module_cache **out,
                                     muster_error *error) {
    mu_module_cache *cache = mu_alloc_zeroed(1, sizeof *cache);
    if (!cache) return mu_fail_host_memory(error, "a module cache", sizeof *cache);
    cache->device = device;
    cache->counters = mu_device_counters_mutable(device);
    cache->occupancy = occupancy;
    *out = cache;
    return MUSTER_OK;
}

static void free_entry(mu_module_cache *cache, mu_module_entry *entry) {
    for (function_node *next, *node = entry->functions; node; node = next) {
        next = node->next;
        if (cache->occupancy) mu_occupancy_cache_forget(cache->occupancy, node->function);
        mu_free(node);
    }
    mu_free(entry);
}

void mu_module_cache_destroy(mu_module_cache *cache) {
    if (!cache) return;
    for (int i = 0; i < BUCKETS; i++)
        for (mu_module_entry *next, *entry = cache->buckets[i]; entry; entry = next) {
            next = entry->next;
            mu_module_unload(cache->device, entry->module);
            free_entry(cache, entry);
        }
    mu_free(cache);
}

static mu_module_entry **bucket_of(mu_module_cache *cache, const mu_key *key) {
    return &cache->buckets[key->bytes[0]]; /* keys are digests: any byte spreads them */
}
_Static_assert(BUCKETS == 256, "a bucket is chosen by one byte of the key");

static mu_module_entry *find(mu_module_cache *cache, const mu_key *key) {
    mu_module_entry *entry = *bucket_of(cache, key);
    while (entry && !mu_key_equal(&entry->key, key)) entry = entry->next;
    return entry;
}

/* ----------------------------------------------------------------------------------------------------- unloading -- */

static bool is_due(const mu_module_entry *entry) { return entry->users == 0 && entry->holds == 0; }

static void due_remove(mu_module_cache *cache, mu_module_entry *entry) {
    if (entry->due_previous)
        entry->due_previous->due_next = entry->due_next;
    else
        cache->due_first = entry->due_next;
    if (entry->due_next)
        entry->due_next->due_previous = entry->due_previous;
    else
        cache->due_last = entry->due_previous;
    entry->due_previous = entry->due_next = NULL;
    cache->due--;
}

static uint32_t unload_due(mu_module_cache *cache);

static void due_append(mu_module_cache *cache, mu_module_entry *entry) {
    entry->due_previous = cache->due_last;
    if (cache->due_last)
        cache->due_last->due_next = entry;
    else
        cache->due_first = entry;
    cache->due_last = entry;
    cache->due++;
    if (cache->due < MU_MODULES_DUE_MAX) return;
    cache->stats.stalls++;
    mu_count(cache->counters, &cache->counters->module_cache_evictions, cache->due);
    unload_due(cache);
}

static uint32_t unload_due(mu_module_cache *cache) {
    uint32_t count = 0;
    while (cache->due_first) {
        mu_module_entry *entry = cache->due_first;
        due_remove(cache, entry);
        mu_module_entry **link = bucket_of(cache, &entry->key);
        while (*link != entry) link = &(*link)->next;
        *link = entry->next;
        mu_module_unload(cache->device, entry->module);
        free_entry(cache, entry);
        cache->stats.unloads++;
        cache->stats.modules--;
        count++;
    }
    return count;
}

uint32_t mu_module_cache_due(const mu_module_cache *cache) { return cache->due; }

void mu_module_hold(mu_module_entry *entry) {
    if (is_due(entry)) due_remove(entry->cache, entry);
    entry->holds++;
}

void mu_module_release(mu_module_entry *entry) {
    if (--entry->holds == 0 && entry->users == 0) due_append(entry->cache, entry);
}

bool mu_module_cache_drop(mu_module_cache *cache, const mu_key *key) {
    mu_module_entry *entry = find(cache, key);
    if (!entry || entry->users == 0) return false;
    if (--entry->users == 0 && entry->holds == 0) due_append(cache, entry);
    return true;
}

/* ------------------------------------------------------------------------------------------------------- loading -- */

static muster_status load_entry(mu_module_cache *cache, const mu_key *key, const void *image, size_t bytes,
                                const char *name, mu_module_entry **out, muster_error *error) {
    mu_module_entry *entry = mu_alloc_zeroed(1, sizeof *entry);
    if (!entry) return mu_fail_host_memory(error, "a module's record", sizeof *entry);
    mu_count(cache->counters, &cache->counters->module_cache_misses, 1);
    muster_status status = mu_module_load(cache->device, image, bytes, name, &entry->module, error);
    if (status != MUSTER_OK) {
        cache->stats.failures++;
        mu_free(entry);
        return status;
    }
    entry->cache = cache;
    entry->key = *key;
    mu_module_entry **bucket = bucket_of(cache, key);
    entry->next = *bucket;
    *bucket = entry;
    cache->stats.loads++;
    cache->stats.modules++;
    *out = entry;
    return MUSTER_OK;
}

muster_status mu_module_cache_load(mu_module_cache *cache, const mu_key *key, const void *image, size_t bytes,
                                   const char *name, mu_module_entry **out, muster_error *error) {
    mu_module_entry *entry = find(cache, key);
    if (entry) {
        cache->stats.hits++;
        mu_count(cache->counters, &cache->counters->module_cache_hits, 1);
        if (is_due(entry)) due_remove(cache, entry);
    } else {
        muster_status status = load_entry(cache, key, image, bytes, name, &entry, error);
        if (status != MUSTER_OK) return status;
    }
    entry->users++;
    *out = entry;
    return MUSTER_OK;
}

/* ------------------------------------------------------------------------------------------------------ requests -- */

void mu_module_cache_request(mu_module_cache *cache, mu_module_request *request) {
    if (request->waiting) return;
    request->waiting = true;
    request->next = NULL;
    request->previous = cache->requests_last;
    if (cache->requests_last)
        cache->requests_last->next = request;
    else
        cache->requests_first = request;
    cache->requests_last = request;
    cache->stats.requests++;
}

void mu_module_cache_withdraw(mu_module_cache *cache, mu_module_request *request) {
    if (!request->waiting) return;
    request->waiting = false;
    if (request->previous)
        request->previous->next = request->next;
    else
        cache->requests_first = request->next;
    if (request->next)
        request->next->previous = request->previous;
    else
        cache->requests_last = request->previous;
    cache->stats.requests--;
}

uint32_t mu_module_cache_load_requested(mu_module_cache *cache) {
    uint64_t loads = cache->stats.loads;
    for (mu_module_request *request; (request = cache->requests_first);) {
        mu_module_entry *entry = NULL;
        mu_module_cache_withdraw(cache, request);
        mu_module_cache_load(cache, request->key, request->image, request->bytes, request->name, &entry, NULL);
        request->done(request, entry);
    }
    return (uint32_t)(cache->stats.loads - loads);
}

uint32_t mu_module_cache_collect(mu_module_cache *cache) {
    uint32_t loaded = mu_module_cache_load_requested(cache); /* first: it may revive what is due */
    return loaded + unload_due(cache);
}

mu_module_entry *mu_module_cache_find(mu_module_cache *cache, const mu_key *key) {
    mu_module_entry *entry = find(cache, key);
    return entry && !is_due(entry) ? entry : NULL;
}

static muster_status resolve(mu_module_entry *entry, const char *kernel, function_node **out, muster_error *error) {
    size_t bytes = strlen(kernel) + 1;
    function_node *node = mu_alloc_zeroed(1, sizeof *node + bytes);
    if (!node) return mu_fail_host_memory(error, "a function's record", sizeof *node + bytes);
    muster_status status =
        mu_module_function(entry->cache->device, entry->module, kernel, &node->function, &node->info, error);
    if (status != MUSTER_OK) {
        mu_free(node);
        return status;
    }
    memcpy(node->name, kernel, bytes);
    node->next = entry->functions;
    entry->functions = node;
    *out = node;
    return MUSTER_OK;
}

muster_status mu_module_cache_function(mu_module_entry *entry, const char *kernel, mu_function *function,
                                       const mu_function_info **info, muster_error *error) {
    function_node *node = entry->functions;
    while (node && strcmp(node->name, kernel) != 0) node = node->next;
    if (!node) {
        muster_status status = resolve(entry, kernel, &node, error);
        if (status != MUSTER_OK) return status;
    }
    *function = node->function;
    if (info) *info = &node->info;
    return MUSTER_OK;
}

muster_status mu_module_cache_global(mu_module_entry *entry, const char *name, mu_address *address, uint64_t *bytes,
                                     muster_error *error) {
    return mu_module_global(entry->cache->device, entry->module, name, address, bytes, error);
}

void mu_module_cache_get_stats(const mu_module_cache *cache, mu_module_cache_stats *stats) { *stats = cache->stats; }
