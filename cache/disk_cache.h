/* Programs on disk, and what was learnt about them: what one process compiled, the next one reads.
 *
 * Content-addressed: a file per key. Files are written to a temporary name and renamed, carry a format version, their
 * key and a digest, and are verified on every read. One that is damaged, cut short or foreign counts as a miss, is
 * logged, removed, and replaced by the next store. The directory is bounded in bytes; what was used longest ago goes
 * first. Any number of processes and threads may share it.
 *
 * It never fails a job: where the directory cannot be used, one warning is logged and everything is a miss.
 *
 * Threading: any thread. Loading and storing block as the file system does; storing also takes the cache's lock when it
 * must look at the whole directory. Every function takes a NULL cache for one that holds nothing. */
#ifndef MUSTER_CACHE_DISK_CACHE_H
#define MUSTER_CACHE_DISK_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "cache/identity.h"
#include "muster.h"

typedef struct mu_disk_cache mu_disk_cache;

#define MU_DISK_CACHE_BYTES ((uint64_t)1 << 30)

typedef struct mu_disk_cache_options {
    /* NULL: MUSTER_CACHE_DIR when set, else muster/ in XDG_CACHE_HOME, else .cache/muster in HOME. An empty string,
     * here or in MUSTER_CACHE_DIR, turns the cache off. */
    const char *directory;
    uint64_t max_bytes; /* files with their headers; 0: MU_DISK_CACHE_BYTES */
    const mu_log *log;  /* may be NULL; outlives the cache */
} mu_disk_cache_options;

/* Opens the directory, making it for the owner alone when it is missing. A directory of another user (root excepted),
 * or one that others may write, is not used: its programs would run on our devices. `*cache` is NULL, and the call
 * succeeds, when the cache is off or the directory cannot be used (with the warning). Errors: OUT_OF_HOST_MEMORY. */
muster_status mu_disk_cache_open(const mu_disk_cache_options *options, mu_disk_cache **cache, muster_error *error);
void mu_disk_cache_close(mu_disk_cache *cache);

/* What an entry is; part of its file's name and header. Append-only. */
typedef enum mu_disk_kind {
    MU_DISK_PTX = 1,
    MU_DISK_CUBIN = 2,
    MU_DISK_HISTORY = 3 /* scheduler/placement/history.h */
} mu_disk_kind;

/* Reads the entry of `key`. `*data` is freed with mu_free and has a NUL behind its `*bytes` bytes. False: not there. */
bool mu_disk_cache_load(mu_disk_cache *cache, mu_disk_kind kind, const mu_key *key, char **data, size_t *bytes);

/* Keeps a copy, replacing what is there, and removes the oldest files when there are too many bytes. False when it
 * could not be kept, which only means that it will be compiled or learnt again. */
bool mu_disk_cache_store(mu_disk_cache *cache, mu_disk_kind kind, const mu_key *key, const void *data, size_t bytes);

typedef struct mu_disk_cache_stats {
    uint64_t hits, misses; /* of programs, as `stores` */
    uint64_t damaged;      /* of the misses, those where a file was there and wrong */
    uint64_t stores, store_failures;
    uint64_t evictions; /* files removed by this process */
    uint64_t history_hits, history_misses, history_stores;
} mu_disk_cache_stats;

void mu_disk_cache_get_stats(mu_disk_cache *cache, mu_disk_cache_stats *stats);

/* The directory in use, "" for none. Lives as long as the cache. */
const char *mu_disk_cache_directory(const mu_disk_cache *cache);

#endif
