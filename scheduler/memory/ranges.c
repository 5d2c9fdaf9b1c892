#include "scheduler/memory/ranges.h"

#include <string.h>

#include "base/alloc.h"
#include "base/tuning.h"

enum { FIRST_ITEMS = 4 };

static mu_range *item_of(const mu_ranges *ranges, const mu_range_chunk *chunk, uint32_t index) {
    return (mu_range *)((char *)chunk->items + (size_t)index * ranges->item_bytes);
}

static void move_items(const mu_ranges *ranges, mu_range_chunk *to, uint32_t to_index, const mu_range_chunk *from,
                       uint32_t from_index, uint32_t count) {
    memmove(item_of(ranges, to, to_index), item_of(ranges, from, from_index), (size_t)count * ranges->item_bytes);
}

static size_t chunk_bytes(const mu_ranges *ranges, uint32_t capacity) {
    return sizeof(mu_range_chunk) + (size_t)capacity * ranges->item_bytes;
}

void *mu_ranges_init(mu_ranges *ranges, uint64_t high, uint32_t item_bytes) {
    *ranges = (mu_ranges){.item_bytes = item_bytes};
    mu_range_chunk *chunk = mu_alloc(chunk_bytes(ranges, FIRST_ITEMS));
    if (!chunk) return NULL;
    chunk->count = 1;
    chunk->capacity = FIRST_ITEMS;
    memset(chunk->items, 0, item_bytes);
    ranges->first = chunk;
    ranges->chunk_count = 1;
    mu_range *item = item_of(ranges, chunk, 0);
    item->high = high;
    return item;
}

void mu_ranges_destroy(mu_ranges *ranges) {
    for (uint32_t i = 0; i < ranges->chunk_count; i++) mu_free(mu_ranges_chunk(ranges, i));
    mu_free(ranges->chunks);
    *ranges = (mu_ranges){0};
}

uint64_t mu_ranges_count(const mu_ranges *ranges) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < ranges->chunk_count; i++) count += mu_ranges_chunk(ranges, i)->count;
    return count;
}

/* ------------------------------------------------------------------------------------------------------------- find -- */

static uint64_t high_of(const mu_ranges *ranges, uint32_t chunk) {
    const mu_range_chunk *c = mu_ranges_chunk(ranges, chunk);
    return item_of(ranges, c, c->count - 1)->high;
}

/* The first chunk from `low` on that ends behind `position`. */
static uint32_t find_chunk(const mu_ranges *ranges, uint32_t low, uint64_t position) {
    uint32_t high = ranges->chunk_count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (position < high_of(ranges, middle))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void *mu_ranges_seek(const mu_ranges *ranges, mu_range_cursor *cursor, uint64_t position) {
    uint32_t at = cursor->chunk;
    if (ranges->chunk_count == 1)
        at = 0;
    else if (at >= ranges->chunk_count || position < item_of(ranges, mu_ranges_chunk(ranges, at), 0)->low)
        at = find_chunk(ranges, 0, position);
    else if (position >= high_of(ranges, at) && position >= high_of(ranges, ++at)) /* the next: a step of a walk */
        at = find_chunk(ranges, at + 1, position);
    const mu_range_chunk *chunk = mu_ranges_chunk(ranges, at);
    uint32_t low = 0, high = chunk->count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (position < item_of(ranges, chunk, middle)->high)
            high = middle;
        else
            low = middle + 1;
    }
    *cursor = (mu_range_cursor){at, low};
    return item_of(ranges, chunk, low);
}

/* -------------------------------------------------------------------------------------------------------------- cut -- */

/* A chunk in the directory, in front of chunk `at`. NULL: out of host memory. */
static mu_range_chunk *add_chunk(mu_ranges *ranges, uint32_t at) {
    mu_range_chunk *chunk = mu_alloc(chunk_bytes(ranges, MU_RANGES_CHUNK_ITEMS));
    if (!chunk) return NULL;
    bool had_directory = ranges->chunks;
    if (!mu_grow(&ranges->chunks, &ranges->chunk_capacity, (size_t)ranges->chunk_count + 1, sizeof *ranges->chunks)) {
        mu_free(chunk);
        return NULL;
    }
    if (!had_directory) ranges->chunks[0] = ranges->first;
    memmove(&ranges->chunks[at + 1], &ranges->chunks[at], (ranges->chunk_count - at) * sizeof *ranges->chunks);
    ranges->chunks[at] = chunk;
    ranges->chunk_count++;
    chunk->count = 0;
    chunk->capacity = MU_RANGES_CHUNK_ITEMS;
    return chunk;
}

/* Room for one item more in the cursor's chunk, which may become two. */
static bool make_room(mu_ranges *ranges, mu_range_cursor *cursor) {
    mu_range_chunk *chunk = mu_ranges_chunk(ranges, cursor->chunk);
    if (chunk->count < chunk->capacity) return true;
    if (chunk->capacity < MU_RANGES_CHUNK_ITEMS) { /* the only one */
        uint32_t capacity = chunk->capacity * 2;
        if (capacity > MU_RANGES_CHUNK_ITEMS) capacity = MU_RANGES_CHUNK_ITEMS;
        chunk = mu_realloc(chunk, chunk_bytes(ranges, capacity));
        if (!chunk) return false;
        chunk->capacity = capacity;
        ranges->first = chunk;
        if (ranges->chunks) ranges->chunks[0] = chunk;
        return true;
    }
    mu_range_chunk *right = add_chunk(ranges, cursor->chunk + 1);
    if (!right) return false;
    /* At the end of all the items come in order, as a rule: chunks that are left full then. */
    bool last = cursor->chunk + 2 == ranges->chunk_count && cursor->index + 1 == chunk->count;
    uint32_t kept = last ? chunk->count - 1 : chunk->count / 2;
    move_items(ranges, right, 0, chunk, kept, chunk->count - kept);
    right->count = chunk->count - kept;
    chunk->count = kept;
    if (cursor->index >= kept) *cursor = (mu_range_cursor){cursor->chunk + 1, cursor->index - kept};
    return true;
}

/* Makes `position`, within the cursor's item, an end. The cursor is at the item that begins there. */
static bool split(mu_ranges *ranges, mu_range_cursor *cursor, uint64_t position) {
    mu_range *item = mu_ranges_at(ranges, *cursor);
    if (item->low == position) return true;
    if (!make_room(ranges, cursor)) return false;
    mu_range_chunk *chunk = mu_ranges_chunk(ranges, cursor->chunk);
    uint32_t index = cursor->index;
    move_items(ranges, chunk, index + 1, chunk, index, chunk->count - index);
    chunk->count++;
    item_of(ranges, chunk, index)->high = position;
    item_of(ranges, chunk, index + 1)->low = position;
    cursor->index++;
    return true;
}

void *mu_ranges_cut(mu_ranges *ranges, mu_range_cursor *cursor, uint64_t low, uint64_t high) {
    mu_range *item = mu_ranges_seek(ranges, cursor, low);
    if (item->low == low && item->high == high) return item;
    bool new_end = item->low != low;
    uint64_t before = item->low;
    if (!split(ranges, cursor, low)) return NULL;
    mu_range_cursor end = *cursor;
    item = mu_ranges_seek(ranges, &end, high - 1);
    if (item->high == high) return mu_ranges_at(ranges, *cursor);
    if (!split(ranges, &end, high)) {
        if (!new_end) return NULL;
        uint64_t whole = ((mu_range *)mu_ranges_at(ranges, *cursor))->high;
        mu_ranges_seek(ranges, cursor, before);
        mu_ranges_join(ranges, cursor, whole);
        return NULL;
    }
    /* The chunk may have become two. */
    return mu_ranges_seek(ranges, cursor, low);
}

/* ------------------------------------------------------------------------------------------------------------- join -- */

static void remove_chunks(mu_ranges *ranges, uint32_t first, uint32_t end) {
    if (first == end) return;
    for (uint32_t i = first; i < end; i++) mu_free(ranges->chunks[i]);
    memmove(&ranges->chunks[first], &ranges->chunks[end], (ranges->chunk_count - end) * sizeof *ranges->chunks);
    ranges->chunk_count -= end - first;
}

/* Makes one of a chunk and the next where both are small. Half full: it takes as many changes again before it is split. */
static bool unite(mu_ranges *ranges, uint32_t at) {
    if (at + 1 >= ranges->chunk_count) return false;
    mu_range_chunk *left = ranges->chunks[at], *right = ranges->chunks[at + 1];
    if (left->count + right->count > MU_RANGES_CHUNK_ITEMS / 2) return false;
    move_items(ranges, left, left->count, right, 0, right->count);
    left->count += right->count;
    remove_chunks(ranges, at + 1, at + 2);
    return true;
}

void *mu_ranges_join(mu_ranges *ranges, mu_range_cursor *cursor, uint64_t high) {
    mu_range *item = mu_ranges_at(ranges, *cursor);
    if (item->high == high) return item;
    mu_range_chunk *chunk = mu_ranges_chunk(ranges, cursor->chunk);
    mu_range_cursor last = *cursor;
    mu_ranges_seek(ranges, &last, high - 1); /* the last that goes */
    item->high = high;
    mu_range_chunk *end = mu_ranges_chunk(ranges, last.chunk);
    uint32_t tail = end->count - last.index - 1; /* items that stay in its chunk */
    if (last.chunk == cursor->chunk) {
        move_items(ranges, chunk, cursor->index + 1, chunk, last.index + 1, tail);
        chunk->count = cursor->index + 1 + tail;
    } else {
        chunk->count = cursor->index + 1;
        move_items(ranges, end, 0, end, last.index + 1, tail);
        end->count = tail;
        remove_chunks(ranges, cursor->chunk + 1, last.chunk + (tail == 0));
    }
    if (ranges->chunk_count == 1) return mu_ranges_at(ranges, *cursor);
    /* Both chunks that lost items, with their neighbours. */
    unite(ranges, cursor->chunk + 1);
    unite(ranges, cursor->chunk);
    uint32_t before = cursor->chunk ? ranges->chunks[cursor->chunk - 1]->count : 0;
    if (before && unite(ranges, cursor->chunk - 1))
        *cursor = (mu_range_cursor){cursor->chunk - 1, before + cursor->index};
    return mu_ranges_at(ranges, *cursor);
}
