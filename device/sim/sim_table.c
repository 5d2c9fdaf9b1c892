/* The allocation table: live ranges sorted by address, in buckets, under a reader-writer spin lock.
 *
 * Nothing here is instrumented by ThreadSanitizer: the lock would otherwise order streams that nothing in the simulated
 * program orders, and hide its races. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "device/sim/sim_heap.h"

enum { BUCKET = 128, REMEMBERED = 256 };

typedef struct bucket {
    uint64_t lows[BUCKET]; /* of the blocks, so that a search stays in few lines */
    sim_block *blocks[BUCKET];
    uint32_t count; /* never 0 in the table */
} bucket;

typedef struct freed_range {
    uint64_t low, high;
    int device; /* -1: host memory */
} freed_range;

struct sim_table {
    uint32_t lock; /* readers, or WRITER */
    bucket **buckets;
    size_t count, capacity;
    freed_range freed[REMEMBERED]; /* a ring */
    uint64_t freed_count;
};

#define WRITER 0x80000000u

static SIM_UNSEEN void read_lock(sim_table *table) {
    for (unsigned spins = 0;; spins++) {
        uint32_t seen = __atomic_load_n(&table->lock, __ATOMIC_RELAXED);
        /* Acquire pairs with write_unlock's release: the reader sees the finished change. */
        if (!(seen & WRITER) &&
            __atomic_compare_exchange_n(&table->lock, &seen, seen + 1, true, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return;
        if (spins > 64) sched_yield();
    }
}

/* Release pairs with write_lock's acquire: the writer starts after the reads. */
static SIM_UNSEEN void read_unlock(sim_table *table) { __atomic_fetch_sub(&table->lock, 1, __ATOMIC_RELEASE); }

static SIM_UNSEEN void write_lock(sim_table *table) {
    for (unsigned spins = 0;; spins++) {
        uint32_t free_lock = 0;
        if (__atomic_compare_exchange_n(&table->lock, &free_lock, WRITER, true, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return;
        if (spins > 64) sched_yield();
    }
}

static SIM_UNSEEN void write_unlock(sim_table *table) { __atomic_store_n(&table->lock, 0, __ATOMIC_RELEASE); }

sim_table *sim_table_create(void) { return mu_alloc_zeroed(1, sizeof(sim_table)); }

void sim_table_destroy(sim_table *table) {
    if (!table) return;
    for (size_t i = 0; i < table->count; i++) mu_free(table->buckets[i]);
    mu_free(table->buckets);
    mu_free(table);
}

/* The last bucket whose first block starts at or before `address`; 0 when none does. */
static SIM_UNSEEN size_t find_bucket(const sim_table *table, uint64_t address) {
    size_t low = 0, high = table->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (table->buckets[middle]->lows[0] <= address)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* How many blocks of the bucket start at or before `address`. */
static SIM_UNSEEN uint32_t find_in_bucket(const bucket *in, uint64_t address) {
    uint32_t low = 0, high = in->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (in->lows[middle] <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Loops instead of memmove, whose interceptor would be seen. Volatile keeps the compiler from making one of them. */
static SIM_UNSEEN void open_gap(bucket *in, uint32_t at) {
    volatile bucket *moved = in;
    for (uint32_t i = in->count; i > at; i--) {
        moved->lows[i] = moved->lows[i - 1];
        moved->blocks[i] = moved->blocks[i - 1];
    }
    in->count++;
}

static SIM_UNSEEN void close_gap(bucket *in, uint32_t at) {
    volatile bucket *moved = in;
    in->count--;
    for (uint32_t i = at; i < in->count; i++) {
        moved->lows[i] = moved->lows[i + 1];
        moved->blocks[i] = moved->blocks[i + 1];
    }
}

/* Puts an empty bucket at position `at`. */
static SIM_UNSEEN bucket *insert_bucket(sim_table *table, size_t at) {
    bucket *fresh = mu_alloc(sizeof *fresh);
    if (!fresh) return NULL;
    fresh->count = 0;
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? table->capacity * 2 : 16;
        bucket **grown = mu_alloc(capacity * sizeof *grown);
        if (!grown) {
            mu_free(fresh);
            return NULL;
        }
        for (size_t i = 0; i < table->count; i++) ((bucket *volatile *)grown)[i] = table->buckets[i];
        mu_free(table->buckets);
        table->buckets = grown;
        table->capacity = capacity;
    }
    bucket *volatile *buckets = table->buckets;
    for (size_t i = table->count; i > at; i--) buckets[i] = buckets[i - 1];
    table->buckets[at] = fresh;
    table->count++;
    return fresh;
}

static SIM_UNSEEN void remove_bucket(sim_table *table, size_t at) {
    mu_free(table->buckets[at]);
    table->count--;
    bucket *volatile *buckets = table->buckets;
    for (size_t i = at; i < table->count; i++) buckets[i] = buckets[i + 1];
}

static SIM_UNSEEN sim_block *find(const sim_table *table, uint64_t address) {
    if (!table->count) return NULL;
    const bucket *in = table->buckets[find_bucket(table, address)];
    uint32_t at = find_in_bucket(in, address);
    if (at == 0) return NULL;
    sim_block *block = in->blocks[at - 1];
    return address < block->range.high ? block : NULL;
}

static SIM_UNSEEN sim_block *next(const sim_table *table, uint64_t low) {
    if (!table->count) return NULL;
    size_t b = find_bucket(table, low);
    const bucket *in = table->buckets[b];
    uint32_t at = low ? find_in_bucket(in, low - 1) : 0;
    if (at < in->count) return in->blocks[at];
    return b + 1 < table->count ? table->buckets[b + 1]->blocks[0] : NULL;
}

static SIM_UNSEEN sim_block *overlap(const sim_table *table, uint64_t low, uint64_t high) {
    sim_block *block = find(table, low);
    if (block) return block;
    block = next(table, low);
    return block && block->range.low < high ? block : NULL;
}

SIM_UNSEEN bool sim_table_add(sim_table *table, sim_block *block) {
    bool added = false;
    uint64_t low = block->range.low;
    write_lock(table);
    if (overlap(table, low, block->range.high)) goto unlock;
    if (!table->count && !insert_bucket(table, 0)) goto unlock;
    size_t b = find_bucket(table, low);
    bucket *in = table->buckets[b];
    if (in->count == BUCKET) { /* full: the upper half moves into a bucket of its own */
        bucket *upper = insert_bucket(table, b + 1);
        if (!upper) goto unlock;
        for (uint32_t i = BUCKET / 2; i < BUCKET; i++) {
            ((volatile bucket *)upper)->lows[i - BUCKET / 2] = in->lows[i];
            ((volatile bucket *)upper)->blocks[i - BUCKET / 2] = in->blocks[i];
        }
        upper->count = in->count = BUCKET / 2;
        if (low >= upper->lows[0]) in = upper;
    }
    uint32_t at = find_in_bucket(in, low);
    open_gap(in, at);
    in->lows[at] = low;
    in->blocks[at] = block;
    added = true;
unlock:
    if (table->count == 1 && table->buckets[0]->count == 0) remove_bucket(table, 0);
    write_unlock(table);
    return added;
}

SIM_UNSEEN void sim_table_remove(sim_table *table, sim_block *block) {
    write_lock(table);
    if (find(table, block->range.low) == block) {
        size_t b = find_bucket(table, block->range.low);
        bucket *in = table->buckets[b];
        close_gap(in, find_in_bucket(in, block->range.low) - 1);
        if (in->count == 0) remove_bucket(table, b);
    }
    write_unlock(table);
}

SIM_UNSEEN sim_block *sim_table_find(sim_table *table, uint64_t address) {
    read_lock(table);
    sim_block *block = find(table, address);
    read_unlock(table);
    return block;
}

SIM_UNSEEN sim_block *sim_table_overlap(sim_table *table, uint64_t low, uint64_t high) {
    read_lock(table);
    sim_block *block = overlap(table, low, high);
    read_unlock(table);
    return block;
}

SIM_UNSEEN sim_block *sim_table_next(sim_table *table, uint64_t low) {
    read_lock(table);
    sim_block *block = next(table, low);
    read_unlock(table);
    return block;
}

SIM_UNSEEN void sim_table_remember(sim_table *table, const sim_block *block) {
    write_lock(table);
    table->freed[table->freed_count++ % REMEMBERED] =
        (freed_range){block->range.low, block->range.high, block->device ? block->device->ordinal : -1};
    write_unlock(table);
}

/* --------------------------------------------------------------------------------- what the interpreter asks for -- */

SIM_UNSEEN const sim_range *sim_memory_lookup(sim_memory *memory, uint64_t address) {
    sim_block *block = sim_table_find(memory->driver->memory, address);
    return block && sim_block_visible(block, memory->context) ? &block->range : NULL;
}

__attribute__((no_sanitize("thread"))) static const char *kind_name(const sim_block *block) {
    switch (block->kind) {
        case SIM_BLOCK_DEVICE: return block->variable ? "module variable" : "allocation";
        case SIM_BLOCK_POOLED: return "pool allocation";
        case SIM_BLOCK_PINNED: return "pinned host allocation";
        case SIM_BLOCK_REGISTERED: return "registered host range";
    }
    return "allocation";
}

__attribute__((no_sanitize("thread"))) static void describe_block(const sim_block *block, char *text, size_t bytes) {
    int used =
        snprintf(text, bytes, "%llu-byte %s at 0x%llx", (unsigned long long)(block->range.high - block->range.low),
                 kind_name(block), (unsigned long long)block->range.low);
    if (block->device && used > 0 && (size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, " of device %d", block->device->ordinal);
}

SIM_UNSEEN static bool find_freed(sim_table *table, uint64_t address, freed_range *found) {
    read_lock(table);
    bool hit = false;
    uint64_t count = table->freed_count < REMEMBERED ? table->freed_count : REMEMBERED;
    for (uint64_t i = 1; i <= count && !hit; i++) { /* the latest first */
        freed_range range = table->freed[(table->freed_count - i) % REMEMBERED];
        hit = address >= range.low && address < range.high;
        if (hit) *found = range;
    }
    read_unlock(table);
    return hit;
}

/* The block that ends closest below `address`. */
SIM_UNSEEN static sim_block *find_below(sim_table *table, uint64_t address) {
    sim_block *block = NULL;
    read_lock(table);
    if (table->count) {
        size_t b = find_bucket(table, address);
        uint32_t at = find_in_bucket(table->buckets[b], address);
        if (at) block = table->buckets[b]->blocks[at - 1];
    }
    read_unlock(table);
    return block;
}

/* For a message only, read without order while others allocate: ThreadSanitizer need not look. */
__attribute__((no_sanitize("thread"))) void sim_memory_describe(sim_memory *memory, uint64_t address, char *text,
                                                                size_t bytes) {
    sim_table *table = memory->driver->memory;
    char what[160];
    sim_block *block = sim_table_find(table, address);
    if (block) {
        describe_block(block, what, sizeof what);
        if (!sim_block_visible(block, memory->context))
            snprintf(text, bytes, "inside the %s, which device %d may not access: enable peer access to it", what,
                     memory->context->device->ordinal);
        else
            snprintf(text, bytes, "%llu bytes into the %s%s", (unsigned long long)(address - block->range.low), what,
                     block->range.writable ? "" : ", which is read-only");
        return;
    }
    freed_range freed;
    if (find_freed(table, address, &freed)) {
        snprintf(text, bytes, "inside freed memory: %llu bytes into %llu bytes at 0x%llx that were freed",
                 (unsigned long long)(address - freed.low), (unsigned long long)(freed.high - freed.low),
                 (unsigned long long)freed.low);
        return;
    }
    if (address < 4096) {
        snprintf(text, bytes, "a null pointer");
        return;
    }
    sim_block *below = find_below(table, address), *above = sim_table_next(table, address);
    uint64_t past = below ? address - below->range.high : UINT64_MAX;
    uint64_t before = above ? above->range.low - address : UINT64_MAX;
    if (!below && !above) {
        snprintf(text, bytes, "nothing is allocated");
    } else if (past <= before) {
        describe_block(below, what, sizeof what);
        snprintf(text, bytes, "%llu bytes past the end of the %s", (unsigned long long)past, what);
    } else {
        describe_block(above, what, sizeof what);
        snprintf(text, bytes, "%llu bytes before the start of the %s", (unsigned long long)before, what);
    }
}
