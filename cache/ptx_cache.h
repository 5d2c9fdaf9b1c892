/* Compiled PTX by key, shared by all devices and threads.
 *
 * A hit takes no lock and writes no line that another thread writes or reads on its hits: the table is a ck_hs read
 * under an epoch section, and uses are counted in the reader's own memory. A miss takes the cache's lock briefly; the
 * lowering itself runs outside it, once per key however many threads ask, and holds up no other key.
 *
 * Bounds: entries and bytes of text. What is used least (counts halve with time) goes first; a text larger than the
 * byte bound is handed out and not kept. An evicted text lives until everyone who holds it has released it.
 *
 * Threading: create and destroy alone; everything else from any thread, a reader by one thread at a time. */
#ifndef MUSTER_CACHE_PTX_CACHE_H
#define MUSTER_CACHE_PTX_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache/identity.h"
#include "muster.h"

typedef struct mu_ptx_cache mu_ptx_cache;
typedef struct mu_ptx_reader mu_ptx_reader; /* a thread's access to one cache */

enum { MU_PTX_CACHE_ENTRIES = 512 };
#define MU_PTX_CACHE_BYTES ((uint64_t)256 << 20)

typedef struct mu_ptx_cache_options {
    uint32_t max_entries; /* 0: MU_PTX_CACHE_ENTRIES */
    uint64_t max_bytes;   /* 0: MU_PTX_CACHE_BYTES */
} mu_ptx_cache_options;

/* `options` NULL: all defaults. Errors: OUT_OF_HOST_MEMORY. */
muster_status mu_ptx_cache_create(const mu_ptx_cache_options *options, mu_ptx_cache **cache, muster_error *error);
/* Every reader is destroyed, every text released, and no lowering runs. NULL is ignored. */
void mu_ptx_cache_destroy(mu_ptx_cache *cache);

/* Readers are recycled inside the cache: making one per thread is cheap. Takes the lock. Errors: OUT_OF_HOST_MEMORY. */
muster_status mu_ptx_reader_create(mu_ptx_cache *cache, mu_ptx_reader **reader, muster_error *error);
/* Its texts are released. Takes the lock. NULL is ignored. */
void mu_ptx_reader_destroy(mu_ptx_reader *reader);

/* A text on loan, immutable, until mu_ptx_text_release. */
typedef struct mu_ptx_text {
    const char *text;           /* NUL-terminated */
    size_t bytes;               /* without the NUL */
    struct mu_ptx_entry *entry; /* the cache's own, as the two below */
    mu_ptx_reader *reader;
} mu_ptx_text;

/* Makes the PTX of `key`. On success `*text` was allocated with mu_alloc, holds `*bytes` bytes and a NUL behind them,
 * and belongs to the cache. On failure it fills `error`, the compiler's log included, and leaves no memory behind. Runs
 * on the calling thread without any lock; it may block. It may ask the cache for other keys as long as no two lowerings
 * wait for each other. */
typedef muster_status (*mu_ptx_lower_fn)(void *user, const mu_key *key, char **text, size_t *bytes,
                                         muster_error *error);

/* The text of `key`: from the table, or from `lower`. Blocks while another thread lowers the same key, and then returns
 * that thread's result or its failure, error and all; a failure is not remembered, so that a later call tries again.
 * `reader` NULL: for a thread that has none; takes the lock.
 * A text on loan to a reader keeps what is evicted meanwhile in memory: release it soon (a module load is soon).
 * Errors: what `lower` returns; OUT_OF_HOST_MEMORY; INVALID_STATE from inside the lowering of the same key. */
muster_status mu_ptx_cache_get(mu_ptx_cache *cache, mu_ptx_reader *reader, const mu_key *key, mu_ptx_lower_fn lower,
                               void *user, mu_ptx_text *text, muster_error *error);

/* Ends the loan and zeroes `*text`. By the thread that uses the reader, in any order. A zeroed text is ignored. */
void mu_ptx_text_release(mu_ptx_text *text);

/* Whether the key is in the table now; counts nothing. */
bool mu_ptx_cache_contains(mu_ptx_cache *cache, mu_ptx_reader *reader, const mu_key *key);

typedef struct mu_ptx_cache_stats {
    uint64_t hits;     /* found in the table */
    uint64_t misses;   /* lowerings started: one per compile */
    uint64_t joins;    /* waited for another thread's lowering */
    uint64_t failures; /* lowerings that failed */
    uint64_t evictions;
    uint64_t uncached;       /* lowerings whose text was handed out and not kept */
    uint64_t entries, bytes; /* now */
    uint64_t retired;        /* removed, but held back by a loan that is still open */
} mu_ptx_cache_stats;

/* Takes the lock. Hits of readers that are running are as of some moment during the call. */
void mu_ptx_cache_get_stats(mu_ptx_cache *cache, mu_ptx_cache_stats *stats);

#endif
