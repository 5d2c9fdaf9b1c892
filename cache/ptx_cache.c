#include "cache/ptx_cache.h"

#include <ck_hs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/reclaim.h"
#include "base/tuning.h"

typedef struct mu_ptx_entry {
    mu_key key; /* first: the table compares an entry and a key by the same pointer */
    char *text;
    size_t bytes;
    uint32_t slot;          /* which use counter is its own while it is in the table */
    atomic_uint references; /* the table's, a flight's, and one per counted loan; section loans need none */
    mu_reclaim_entry reclaim;
} mu_ptx_entry;

/* One lowering that runs, and what became of it for those who wait. Under the cache's lock. */
typedef struct flight {
    struct flight *next; /* of those that run */
    mu_key key;
    pthread_t owner;
    pthread_cond_t done_changed;
    bool done;
    uint32_t users;      /* the owner and those who wait */
    mu_ptx_entry *entry; /* NULL: failed, with `error` */
    muster_error error;
} flight;

typedef struct slot {
    mu_ptx_entry *entry;
    uint64_t score;    /* uses, halved now and then */
    uint64_t inserted; /* number of the insertion: of two equal scores the older goes */
    uint32_t seen;     /* sum of its counters when the score was last brought up to date */
} slot;

/* Counters are written by the reader's thread alone, with relaxed stores: whoever sums them sees some recent value. */
struct mu_ptx_reader {
    mu_ptx_cache *cache;
    mu_reclaim_reader *section;
    mu_ptx_reader *next, *next_idle;
    atomic_uint_fast64_t hits;
    _Atomic uint32_t uses[]; /* by slot; wraps */
};

struct mu_ptx_cache {
    ck_hs_t table; /* read in epoch sections or under the lock, written under it */
    mu_reclaim domain;
    uint32_t max_entries;
    uint64_t max_bytes;

    pthread_mutex_t lock; /* guards all that follows, and writing the table */
    slot *slots;          /* max_entries */
    uint32_t *free_slots;
    uint32_t free_count;
    uint32_t removals; /* since the table was last rebuilt: each may have left a tombstone */
    uint64_t insertions;
    flight *flights;
    mu_ptx_reader *readers; /* every one ever made: counts stay when one is reused */
    mu_ptx_reader *idle;
    mu_ptx_reader *shared;    /* counts the uses of callers without a reader */
    mu_ptx_cache_stats stats; /* hits are the readers' */
};

/* --------------------------------------------------------------------------------------------------------- table -- */

/* ck_hs asks for memory without saying for which table. What it retires while readers may be inside is collected here,
 * by the writing thread, and deferred when its call has returned. */
typedef union map_header {
    struct {
        mu_reclaim_entry reclaim;
        union map_header *next;
    } link;
    _Alignas(16) unsigned char pad[64];
} map_header;
_Static_assert(sizeof(map_header) == 64, "a map's header is its padding");

static _Thread_local map_header *retired_maps;

static void *map_allocate(size_t bytes) {
    if (bytes > SIZE_MAX - sizeof(map_header)) return NULL;
    map_header *header = mu_alloc(sizeof *header + bytes);
    return header ? header + 1 : NULL;
}

static void map_free(void *pointer, size_t bytes, bool defer) {
    (void)bytes;
    map_header *header = (map_header *)pointer - 1;
    if (!defer) {
        mu_free(header);
        return;
    }
    header->link.next = retired_maps;
    retired_maps = header;
}

static struct ck_malloc map_memory = {.malloc = map_allocate, .free = map_free};

static void map_reclaim(mu_reclaim_entry *entry) { mu_free(entry); }
_Static_assert(offsetof(map_header, link.reclaim) == 0, "a map's epoch entry is its header");

static void defer_retired_maps(mu_ptx_cache *cache) {
    for (map_header *next, *header = retired_maps; header; header = next) {
        next = header->link.next;
        mu_reclaim_defer(&cache->domain, &header->link.reclaim, map_reclaim);
    }
    retired_maps = NULL;
}

/* Keys are digests: any eight bytes are a good hash. */
static unsigned long hash_key(const void *key, unsigned long seed) {
    (void)seed;
    unsigned long hash;
    memcpy(&hash, key, sizeof hash);
    return hash;
}

static bool same_key(const void *entry, const void *key) {
    MU_TSAN_ACQUIRE(entry); /* pairs with the release before the entry was put; the store fence is ck_hs's */
    return mu_key_equal(entry, key);
}

static mu_ptx_entry *table_find(mu_ptx_cache *cache, const mu_key *key) {
    mu_ptx_entry *entry = ck_hs_get(&cache->table, hash_key(key, 0), key);
    if (entry) MU_TSAN_ACQUIRE(entry);
    return entry;
}

static void entry_release(mu_ptx_entry *entry) {
    /* Release: our reads of the text come before it is freed; acquire on the last: so do everyone else's. */
    if (atomic_fetch_sub_explicit(&entry->references, 1, memory_order_acq_rel) != 1) return;
    mu_free(entry->text);
    mu_free(entry);
}

static void entry_reclaim(mu_reclaim_entry *reclaim) {
    entry_release((mu_ptx_entry *)(void *)((char *)reclaim - offsetof(mu_ptx_entry, reclaim)));
}

/* ---------------------------------------------------------------------------------------------- use and eviction -- */

static void count_use(mu_ptx_reader *reader, uint32_t index) {
    _Atomic uint32_t *uses = &reader->uses[index];
    atomic_store_explicit(uses, atomic_load_explicit(uses, memory_order_relaxed) + 1, memory_order_relaxed);
    atomic_store_explicit(&reader->hits, atomic_load_explicit(&reader->hits, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

static uint32_t slot_uses(const mu_ptx_cache *cache, uint32_t index) {
    uint32_t sum = 0;
    for (const mu_ptx_reader *reader = cache->readers; reader; reader = reader->next)
        sum += atomic_load_explicit(&reader->uses[index], memory_order_relaxed);
    return sum;
}

static void update_scores(mu_ptx_cache *cache, bool halve) {
    for (uint32_t i = 0; i < cache->max_entries; i++) {
        slot *slot = &cache->slots[i];
        if (!slot->entry) continue;
        uint32_t sum = slot_uses(cache, i);
        slot->score += sum - slot->seen;
        slot->seen = sum;
        if (halve) slot->score /= 2;
    }
}

static slot *least_used(mu_ptx_cache *cache) {
    slot *least = NULL;
    for (uint32_t i = 0; i < cache->max_entries; i++) {
        slot *slot = &cache->slots[i];
        if (!slot->entry) continue;
        if (!least || slot->score < least->score || (slot->score == least->score && slot->inserted < least->inserted))
            least = slot;
    }
    return least;
}

static void remove_slot(mu_ptx_cache *cache, slot *slot) {
    mu_ptx_entry *entry = slot->entry;
    ck_hs_remove(&cache->table, hash_key(&entry->key, 0), &entry->key);
    slot->entry = NULL;
    cache->free_slots[cache->free_count++] = entry->slot;
    cache->removals++;
    cache->stats.entries--;
    cache->stats.bytes -= entry->bytes;
    mu_reclaim_defer(&cache->domain, &entry->reclaim, entry_reclaim);
}

/* Removed entries leave tombstones that lookups must step over; a fresh table of the same size has none. */
static void sweep_table(mu_ptx_cache *cache) {
    if (cache->removals < cache->max_entries) return;
    if (ck_hs_rebuild(&cache->table)) cache->removals = 0;
    defer_retired_maps(cache);
}

static void make_room(mu_ptx_cache *cache, uint64_t bytes) {
    if (cache->stats.entries < cache->max_entries && cache->stats.bytes <= cache->max_bytes - bytes) return;
    update_scores(cache, false);
    while (cache->stats.entries == cache->max_entries || cache->stats.bytes > cache->max_bytes - bytes) {
        remove_slot(cache, least_used(cache));
        cache->stats.evictions++;
    }
    sweep_table(cache);
}

/* Takes a reference of its own when it keeps the entry. Under the lock. */
static void table_insert(mu_ptx_cache *cache, mu_ptx_entry *entry) {
    if (entry->bytes > cache->max_bytes) {
        cache->stats.uncached++;
        return;
    }
    make_room(cache, entry->bytes);
    uint32_t index = cache->free_slots[cache->free_count - 1];
    entry->slot = index;
    atomic_fetch_add_explicit(&entry->references, 1, memory_order_relaxed);
    MU_TSAN_RELEASE(entry); /* pairs with the acquire of a reader that finds it */
    bool kept = ck_hs_put(&cache->table, hash_key(&entry->key, 0), entry);
    defer_retired_maps(cache);
    if (!kept) { /* no memory to grow the table: serve it uncached */
        atomic_fetch_sub_explicit(&entry->references, 1, memory_order_relaxed);
        cache->stats.uncached++;
        return;
    }
    cache->free_count--;
    cache->slots[index] = (slot){.entry = entry, .inserted = cache->insertions, .seen = slot_uses(cache, index)};
    cache->stats.entries++;
    cache->stats.bytes += entry->bytes;
    if (++cache->insertions % cache->max_entries == 0) update_scores(cache, true);
}

/* ------------------------------------------------------------------------------------------------- life, readers -- */

muster_status mu_ptx_cache_create(const mu_ptx_cache_options *options, mu_ptx_cache **out, muster_error *error) {
    mu_ptx_cache *cache = mu_alloc_zeroed(1, sizeof *cache);
    if (!cache) return mu_fail_host_memory(error, "a PTX cache", sizeof *cache);
    cache->max_entries = options && options->max_entries ? options->max_entries : MU_PTX_CACHE_ENTRIES;
    cache->max_bytes = options && options->max_bytes ? options->max_bytes : MU_PTX_CACHE_BYTES;

    cache->slots = mu_alloc_zeroed(cache->max_entries, sizeof *cache->slots);
    cache->free_slots = mu_alloc_zeroed(cache->max_entries, sizeof *cache->free_slots);
    if (!cache->slots || !cache->free_slots) goto free_slots;
    for (uint32_t i = 0; i < cache->max_entries; i++) cache->free_slots[i] = cache->max_entries - 1 - i;
    cache->free_count = cache->max_entries;

    if (!mu_reclaim_init(&cache->domain)) goto free_slots;
    unsigned long capacity = (unsigned long)(cache->max_entries < 4096 ? cache->max_entries : 4096) * 2;
    if (!ck_hs_init(&cache->table, CK_HS_MODE_SPMC | CK_HS_MODE_OBJECT, hash_key, same_key, &map_memory, capacity, 0))
        goto destroy_domain;
    pthread_mutex_init(&cache->lock, NULL);
    if (mu_ptx_reader_create(cache, &cache->shared, error) != MUSTER_OK) goto destroy_table;
    *out = cache;
    return MUSTER_OK;

destroy_table:
    pthread_mutex_destroy(&cache->lock);
    ck_hs_destroy(&cache->table);
destroy_domain:
    mu_reclaim_destroy(&cache->domain);
free_slots:
    mu_free(cache->free_slots);
    mu_free(cache->slots);
    size_t bytes = (size_t)cache->max_entries * (sizeof *cache->slots + sizeof *cache->free_slots);
    mu_free(cache);
    return mu_fail_host_memory(error, "a PTX cache's table", bytes);
}

void mu_ptx_cache_destroy(mu_ptx_cache *cache) {
    if (!cache) return;
    for (uint32_t i = 0; i < cache->max_entries; i++)
        if (cache->slots[i].entry) remove_slot(cache, &cache->slots[i]);
    ck_hs_destroy(&cache->table);
    mu_reclaim_destroy(&cache->domain);
    for (mu_ptx_reader *next, *reader = cache->readers; reader; reader = next) {
        next = reader->next;
        mu_free_aligned(reader);
    }
    pthread_mutex_destroy(&cache->lock);
    mu_free(cache->free_slots);
    mu_free(cache->slots);
    mu_free(cache);
}

static mu_ptx_reader *make_reader(mu_ptx_cache *cache) {
    size_t bytes = sizeof(mu_ptx_reader) + (size_t)cache->max_entries * sizeof(_Atomic uint32_t);
    bytes = (bytes + MU_CACHE_LINE - 1) / MU_CACHE_LINE * MU_CACHE_LINE; /* no line is another reader's too */
    mu_ptx_reader *reader = mu_alloc_aligned(MU_CACHE_LINE, bytes);
    if (!reader) return NULL;
    memset(reader, 0, bytes);
    reader->cache = cache;
    reader->section = mu_reclaim_reader_create(&cache->domain);
    if (!reader->section) {
        mu_free_aligned(reader);
        return NULL;
    }
    reader->next = cache->readers;
    cache->readers = reader;
    return reader;
}

muster_status mu_ptx_reader_create(mu_ptx_cache *cache, mu_ptx_reader **out, muster_error *error) {
    pthread_mutex_lock(&cache->lock);
    mu_ptx_reader *reader = cache->idle;
    if (reader)
        cache->idle = reader->next_idle;
    else
        reader = make_reader(cache);
    pthread_mutex_unlock(&cache->lock);
    if (!reader)
        return mu_fail_host_memory(error, "a PTX cache reader",
                                   sizeof *reader + (size_t)cache->max_entries * sizeof(_Atomic uint32_t));
    *out = reader;
    return MUSTER_OK;
}

void mu_ptx_reader_destroy(mu_ptx_reader *reader) {
    if (!reader) return;
    mu_ptx_cache *cache = reader->cache;
    pthread_mutex_lock(&cache->lock);
    reader->next_idle = cache->idle;
    cache->idle = reader;
    mu_reclaim_poll(&cache->domain);
    pthread_mutex_unlock(&cache->lock);
}

/* ----------------------------------------------------------------------------------------------------------- get -- */

static void lend(mu_ptx_entry *entry, mu_ptx_reader *section_of, mu_ptx_text *text) {
    *text = (mu_ptx_text){.text = entry->text, .bytes = entry->bytes, .entry = entry, .reader = section_of};
}

static void lend_counted(mu_ptx_entry *entry, mu_ptx_text *text) {
    /* Relaxed: whoever calls this holds the lock or a reference, so that the entry cannot go meanwhile. */
    atomic_fetch_add_explicit(&entry->references, 1, memory_order_relaxed);
    lend(entry, NULL, text);
}

static flight *find_flight(mu_ptx_cache *cache, const mu_key *key) {
    for (flight *flight = cache->flights; flight; flight = flight->next)
        if (mu_key_equal(&flight->key, key)) return flight;
    return NULL;
}

static void unlink_flight(mu_ptx_cache *cache, flight *gone) {
    flight **link = &cache->flights;
    while (*link != gone) link = &(*link)->next;
    *link = gone->next;
}

/* Takes what a finished flight brought. Under the lock. */
static muster_status take_result(flight *flight, mu_ptx_text *text, muster_error *error) {
    muster_status status = MUSTER_OK;
    if (flight->entry)
        lend_counted(flight->entry, text);
    else
        status = mu_error_copy(error, &flight->error);
    if (--flight->users) return status;
    if (flight->entry) entry_release(flight->entry);
    pthread_cond_destroy(&flight->done_changed);
    mu_free(flight);
    return status;
}

static muster_status join_flight(mu_ptx_cache *cache, flight *flight, mu_ptx_text *text, muster_error *error) {
    if (pthread_equal(flight->owner, pthread_self()))
        return mu_fail(error, MUSTER_INVALID_STATE,
                       "a lowering asked the PTX cache for the key it is making; lower without asking for it");
    flight->users++;
    cache->stats.joins++;
    while (!flight->done) pthread_cond_wait(&flight->done_changed, &cache->lock);
    return take_result(flight, text, error);
}

/* The lowering proper, without the lock. The entry is filled, or freed with `error` told. */
static mu_ptx_entry *run_lowering(mu_ptx_entry *entry, mu_ptx_lower_fn lower, void *user, muster_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    muster_status status = lower(user, &entry->key, &text, &bytes, error);
    if (status == MUSTER_OK && !text)
        status = mu_fail(error, MUSTER_INTERNAL, "a lowering succeeded without a text; return a failure instead");
    if (status == MUSTER_OK) {
        entry->text = text;
        entry->bytes = bytes;
        return entry;
    }
    error->status = status;
    mu_free(entry);
    return NULL;
}

/* Under the lock, which it gives up while it lowers. */
static muster_status fly(mu_ptx_cache *cache, const mu_key *key, mu_ptx_lower_fn lower, void *user, mu_ptx_text *text,
                         muster_error *error) {
    flight *flight = mu_alloc_zeroed(1, sizeof *flight);
    mu_ptx_entry *entry = mu_alloc_zeroed(1, sizeof *entry);
    if (!flight || !entry) {
        mu_free(flight);
        mu_free(entry);
        return mu_fail_host_memory(error, "a PTX cache entry", sizeof *flight + sizeof *entry);
    }
    entry->key = flight->key = *key;
    atomic_init(&entry->references, 1); /* the flight's */
    flight->owner = pthread_self();
    flight->users = 1;
    pthread_cond_init(&flight->done_changed, NULL);
    flight->next = cache->flights;
    cache->flights = flight;
    cache->stats.misses++;
    pthread_mutex_unlock(&cache->lock);

    entry = run_lowering(entry, lower, user, &flight->error); /* nobody reads the error before `done` */

    pthread_mutex_lock(&cache->lock);
    flight->entry = entry;
    if (entry)
        table_insert(cache, entry);
    else
        cache->stats.failures++;
    unlink_flight(cache, flight);
    flight->done = true;
    pthread_cond_broadcast(&flight->done_changed);
    mu_reclaim_poll(&cache->domain);
    return take_result(flight, text, error);
}

muster_status mu_ptx_cache_get(mu_ptx_cache *cache, mu_ptx_reader *reader, const mu_key *key, mu_ptx_lower_fn lower,
                               void *user, mu_ptx_text *text, muster_error *error) {
    if (reader) {
        mu_reclaim_enter(reader->section);
        mu_ptx_entry *entry = table_find(cache, key);
        if (entry) {
            count_use(reader, entry->slot);
            lend(entry, reader, text); /* the section ends with the loan */
            return MUSTER_OK;
        }
        mu_reclaim_leave(reader->section);
    }

    muster_status status = MUSTER_OK;
    pthread_mutex_lock(&cache->lock);
    mu_ptx_entry *entry = table_find(cache, key);
    if (entry) {
        count_use(reader ? reader : cache->shared, entry->slot);
        lend_counted(entry, text);
    } else {
        flight *flight = find_flight(cache, key);
        status = flight ? join_flight(cache, flight, text, error) : fly(cache, key, lower, user, text, error);
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

void mu_ptx_text_release(mu_ptx_text *text) {
    if (!text->entry) return;
    if (text->reader)
        mu_reclaim_leave(text->reader->section);
    else
        entry_release(text->entry);
    memset(text, 0, sizeof *text);
}

bool mu_ptx_cache_contains(mu_ptx_cache *cache, mu_ptx_reader *reader, const mu_key *key) {
    if (reader) {
        mu_reclaim_enter(reader->section);
        bool found = table_find(cache, key) != NULL;
        mu_reclaim_leave(reader->section);
        return found;
    }
    pthread_mutex_lock(&cache->lock);
    bool found = table_find(cache, key) != NULL;
    pthread_mutex_unlock(&cache->lock);
    return found;
}

void mu_ptx_cache_get_stats(mu_ptx_cache *cache, mu_ptx_cache_stats *stats) {
    pthread_mutex_lock(&cache->lock);
    *stats = cache->stats;
    mu_reclaim_poll(&cache->domain);
    stats->retired = cache->domain.pending;
    for (const mu_ptx_reader *reader = cache->readers; reader; reader = reader->next)
        stats->hits += atomic_load_explicit(&reader->hits, memory_order_relaxed);
    pthread_mutex_unlock(&cache->lock);
}
