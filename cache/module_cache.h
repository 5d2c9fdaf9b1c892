/* The modules of one device: key -> loaded code, its functions and their attributes.
 *
 * Loading stalls a busy device, so what need not be loaded at once is requested: requests wait for an idle moment, or
 * for the next load that cannot wait, and are served together, behind one drained device.
 *
 * An entry has users (programs that loaded it) and holds (work in flight). It is due for unloading when it has neither.
 * Unloading stalls a busy device, so what is due waits until the worker calls mu_module_cache_collect at an idle
 * moment, or until MU_MODULES_DUE_MAX entries are due: then they go at once and the stall is counted. Loading the key
 * of a due entry again revives it without a driver call.
 *
 * Threading: the device's worker only (mu_device_enter). Loading and unloading stall a busy device until it has
 * drained. */
#ifndef MUSTER_CACHE_MODULE_CACHE_H
#define MUSTER_CACHE_MODULE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache/identity.h"
#include "cache/occupancy_cache.h"
#include "device/device.h"
#include "muster.h"

typedef struct mu_module_cache mu_module_cache;
typedef struct mu_module_entry mu_module_entry;

enum { MU_MODULES_DUE_MAX = 64 };

/* `occupancy` (may be NULL) forgets the functions of each module that is unloaded; it must outlive the cache.
 * Errors: OUT_OF_HOST_MEMORY. */
muster_status mu_module_cache_create(mu_device *device, mu_occupancy_cache *occupancy, mu_module_cache **cache,
                                     muster_error *error);
/* Unloads everything, in use or not: the device has drained, or is lost (then mu_module_unload makes no driver call).
 * NULL is ignored. */
void mu_module_cache_destroy(mu_module_cache *cache);

/* Loads the module of `key`, or finds it, and adds one user: give it back with mu_module_cache_drop. `image` is PTX
 * text or a cubin, borrowed for the call and read only when the key is not loaded; `name` (may be NULL) appears in
 * messages. The entry stays valid until its last user has dropped it and its last hold is released. Errors:
 * PROGRAM_INVALID with the compiler's log, OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY. Nothing is left on failure. */
muster_status mu_module_cache_load(mu_module_cache *cache, const mu_key *key, const void *image, size_t bytes,
                                   const char *name, mu_module_entry **entry, muster_error *error);

/* A load that can wait. Embedded by the caller, who sets the first part and keeps it valid while the request waits. */
typedef struct mu_module_request mu_module_request;
struct mu_module_request {
    const mu_key *key;
    const void *image; /* as in mu_module_cache_load, like the next two */
    size_t bytes;
    const char *name;
    /* The module is loaded, with a user added for the caller; NULL: it could not be, and whoever needs it loads it
     * again and is told why. It may not call the cache. */
    void (*done)(mu_module_request *request, mu_module_entry *entry);
    /* The cache's own; zeroed by the caller. */
    mu_module_request *previous, *next;
    bool waiting;
};

/* Makes the request wait; it is answered by mu_module_cache_collect or _load_requested. One that waits is left
 * alone. */
void mu_module_cache_request(mu_module_cache *cache, mu_module_request *request);
void mu_module_cache_withdraw(mu_module_cache *cache,
                              mu_module_request *request); /* one that does not wait is ignored */
/* Serves every request that waits, oldest first. Returns how many modules the driver loaded for it. */
uint32_t mu_module_cache_load_requested(mu_module_cache *cache);

/* The loaded entry of `key`, without adding a user; NULL when it is not loaded or due. */
mu_module_entry *mu_module_cache_find(mu_module_cache *cache, const mu_key *key);

/* A function and its attributes, resolved once. Both live as long as the entry. `info` may be NULL.
 * Errors: ENTRY_NOT_FOUND, OUT_OF_HOST_MEMORY. */
muster_status mu_module_cache_function(mu_module_entry *entry, const char *kernel, mu_function *function,
                                       const mu_function_info **info, muster_error *error);

/* A module-scope variable, by its name in the PTX. ENTRY_NOT_FOUND when there is none. */
muster_status mu_module_cache_global(mu_module_entry *entry, const char *name, mu_address *address, uint64_t *bytes,
                                     muster_error *error);

/* Work of the module is enqueued / has completed. While held it is not unloaded, whoever drops it. */
void mu_module_hold(mu_module_entry *entry);
void mu_module_release(mu_module_entry *entry);

/* Gives one user back. False when `key` has none. */
bool mu_module_cache_drop(mu_module_cache *cache, const mu_key *key);

/* Loads what is requested and unloads what is due; call it when the device is idle. Returns how many modules came and
 * went. */
uint32_t mu_module_cache_collect(mu_module_cache *cache);
uint32_t mu_module_cache_due(const mu_module_cache *cache);

/* Hits, loads tried and forced unloads are also counted in the device's module_cache_* counters. */
typedef struct mu_module_cache_stats {
    uint64_t hits;  /* loads answered by an entry already there */
    uint64_t loads; /* modules loaded by the driver */
    uint64_t failures;
    uint64_t unloads;
    uint64_t stalls;   /* times that unloading could not wait for an idle device */
    uint64_t requests; /* waiting now */
    uint64_t modules;  /* loaded now, those due included */
} mu_module_cache_stats;

void mu_module_cache_get_stats(const mu_module_cache *cache, mu_module_cache_stats *stats);

#endif
