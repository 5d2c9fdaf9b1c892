/* An ordered set of ranges [low, high) that lie side by side and cover a whole, each with something attached: what a range table
 * is made of (scheduler/memory/coherence.h, scheduler/graph/seal.c).
 *
 * Most tables have one range or a few, some have a hundred thousand. So the items lie in *chunks*, in order: one small array at
 * first, which grows up to MU_RANGES_CHUNK_ITEMS; then chunks of that size, found by a directory. Looking up costs two binary searches;
 * splitting or joining moves the items of one chunk, and now and then the directory.
 *
 * Items are records of the owner's, of one size, that begin with a mu_range. A pointer to an item, and any cursor but the one that
 * is passed, is invalid after a change. No thread safety of its own. */
#ifndef MUSTER_SCHEDULER_MEMORY_RANGES_H
#define MUSTER_SCHEDULER_MEMORY_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mu_range {
    uint64_t low, high;
} mu_range;

typedef struct mu_range_chunk {
    uint32_t count, capacity; /* never empty */
    uint64_t items[];         /* bytes of the owner's records */
} mu_range_chunk;

typedef struct mu_ranges {
    uint32_t item_bytes;
    uint32_t chunk_count;
    mu_range_chunk *first;   /* while there is one chunk and never was another ... */
    mu_range_chunk **chunks; /* ... else NULL, and this the directory */
    size_t chunk_capacity;
} mu_ranges;

/* A place in the set. Zero is a valid start for mu_ranges_seek. */
typedef struct mu_range_cursor {
    uint32_t chunk, index;
} mu_range_cursor;

/* One item with the range [0, high), which is the whole, and otherwise zeroed: returned, to be filled in. item_bytes is a multiple of
 * 8. NULL: out of host memory. */
void *mu_ranges_init(mu_ranges *ranges, uint64_t high, uint32_t item_bytes);
/* Zeroed or destroyed: does nothing. */
void mu_ranges_destroy(mu_ranges *ranges);

static inline mu_range_chunk *mu_ranges_chunk(const mu_ranges *ranges, uint32_t chunk) {
    return ranges->chunks ? ranges->chunks[chunk] : ranges->first;
}

static inline void *mu_ranges_at(const mu_ranges *ranges, mu_range_cursor at) {
    return (char *)mu_ranges_chunk(ranges, at.chunk)->items + (size_t)at.index * ranges->item_bytes;
}

/* The item that holds `position`, which is below the end of the whole. The cursor is where it stood last, or zero: what is near is
 * found faster. */
void *mu_ranges_seek(const mu_ranges *ranges, mu_range_cursor *cursor, uint64_t position);

/* The item after the cursor's, or NULL at the end: the cursor is of no use then. */
static inline void *mu_ranges_next(const mu_ranges *ranges, mu_range_cursor *cursor) {
    if (++cursor->index == mu_ranges_chunk(ranges, cursor->chunk)->count) {
        cursor->index = 0;
        if (++cursor->chunk == ranges->chunk_count) return NULL;
    }
    return mu_ranges_at(ranges, *cursor);
}

/* Makes both ends of [low, high), which is not empty and within the whole, ends of items: an item that is split becomes two that
 * differ in their range alone. Returns the item that begins at `low`, with the cursor (as for seek) there. NULL: out of host
 * memory, nothing has changed. */
void *mu_ranges_cut(mu_ranges *ranges, mu_range_cursor *cursor, uint64_t low, uint64_t high);

/* The cursor's item reaches to `high`, the end of an item behind it; those in between are gone. Returns it. Cannot fail. */
void *mu_ranges_join(mu_ranges *ranges, mu_range_cursor *cursor, uint64_t high);

uint64_t mu_ranges_count(const mu_ranges *ranges); /* of items; takes a look at each chunk */

#endif
