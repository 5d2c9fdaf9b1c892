#include "scheduler/memory/coherence.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

muster_status mu_coherence_init(mu_coherence *table, uint64_t bytes, uint32_t device_count, bool host_content,
                                muster_error *error) {
    uint32_t segment_bytes = (uint32_t)(sizeof(mu_segment) + device_count * sizeof(uint64_t));
    memset(table, 0, sizeof *table);
    table->device_count = device_count;
    table->instances = mu_alloc_zeroed(device_count, sizeof *table->instances);
    table->sights = mu_alloc_zeroed(device_count, sizeof *table->sights);
    mu_segment *whole =
        table->instances && table->sights ? mu_ranges_init(&table->segments, bytes, segment_bytes) : NULL;
    if (!whole) {
        mu_free(table->instances);
        mu_free(table->sights);
        return mu_fail_host_memory(error, "the range table of a buffer", 4 * (size_t)segment_bytes);
    }
    whole->valid = host_content ? MU_LOCATION_HOST : 0;
    whole->zero = !host_content;
    atomic_init(&table->version, 1);
    pthread_mutex_init(&table->lock, NULL);
    return MUSTER_OK;
}

void mu_coherence_destroy(mu_coherence *table) {
    pthread_mutex_destroy(&table->lock);
    mu_ranges_destroy(&table->segments);
    mu_free(table->instances);
    mu_free(table->sights);
}

mu_instance *mu_coherence_instance(const mu_coherence *table, int device, uint64_t low, uint64_t high) {
    mu_instance *instance = table->instances[device];
    while (instance && !(instance->low <= low && high <= instance->high)) instance = instance->next;
    return instance;
}

void mu_coherence_hull(const mu_coherence *table, int device, uint64_t *low, uint64_t *high) {
    for (bool grown = true; grown;) {
        grown = false;
        for (mu_instance *other = table->instances[device]; other; other = other->next) {
            if (other->high <= *low || *high <= other->low) continue;
            if (other->low < *low) *low = other->low, grown = true;
            if (other->high > *high) *high = other->high, grown = true;
        }
    }
}

/* What of the segment is in the row. */
static mu_segment *clip(mu_walk *walk, mu_segment *segment) {
    uint64_t low = mu_area_row(&walk->area, walk->row), high = low + mu_area_width(&walk->area);
    walk->low = segment->low > low ? segment->low : low;
    walk->high = segment->high < high ? segment->high : high;
    return segment;
}

mu_segment *mu_walk_first(mu_walk *walk, const mu_coherence *table, const mu_area *area) {
    *walk = (mu_walk){.table = table, .area = *area};
    return clip(walk, mu_ranges_seek(&table->segments, &walk->cursor, area->low));
}

mu_segment *mu_walk_next(mu_walk *walk) {
    uint64_t end = mu_area_row(&walk->area, walk->row) + mu_area_width(&walk->area);
    if (walk->high < end) return clip(walk, mu_ranges_next(&walk->table->segments, &walk->cursor));
    if (++walk->row == walk->area.rows) return NULL;
    return clip(walk, mu_ranges_seek(&walk->table->segments, &walk->cursor, mu_area_row(&walk->area, walk->row)));
}

static bool is_alike(const mu_segment *a, const mu_segment *b) {
    return a->valid == b->valid && a->undefined == b->undefined && a->zero == b->zero && a->lost_on == b->lost_on;
}

uint32_t mu_coherence_repeats(const mu_coherence *table, const mu_segment *segment, uint64_t low, uint64_t high,
                              uint64_t pitch, uint64_t end, int device, uint64_t *stamp) {
    mu_range_cursor near = {0, 0};
    uint32_t rows = 1;
    *stamp = device < 0 ? 0 : segment->stamps[device];
    if (pitch < high - low) return 1;
    for (; rows < UINT32_MAX && end - high >= pitch; rows++) {
        low += pitch;
        high += pitch;
        const mu_segment *other = mu_ranges_seek(&table->segments, &near, low);
        if (other->high < high || !is_alike(segment, other)) break;
        if (device >= 0 && other->stamps[device] > *stamp) *stamp = other->stamps[device];
    }
    return rows;
}

/* Joins equal neighbours among the segments from the one before `low` to the one behind `high`; a joined segment keeps the later
 * stamps, which can only make a reader wait for more than it needs. */
static void join_alike(mu_coherence *table, mu_range_cursor cursor, uint64_t low, uint64_t high) {
    mu_segment *left = mu_ranges_seek(&table->segments, &cursor, low ? low - 1 : 0);
    while (left && left->low < high) {
        mu_range_cursor at = cursor;
        uint64_t end = left->high;
        for (mu_segment *right; end <= high && (right = mu_coherence_next(table, &at)) && is_alike(left, right);) {
            for (uint32_t d = 0; d < table->device_count; d++)
                if (right->stamps[d] > left->stamps[d]) left->stamps[d] = right->stamps[d];
            end = right->high;
        }
        if (end != left->high) mu_ranges_join(&table->segments, &cursor, end);
        left = mu_coherence_next(table, &cursor);
    }
}

typedef enum change { WRITTEN, COPIED, DROPPED, UNDEFINED, LOST } change;

static void change_segment(mu_segment *segment, change what, int device, uint64_t epoch) {
    mu_location_mask bit = device < 0 ? MU_LOCATION_HOST : MU_LOCATION_DEVICE(device);
    switch (what) {
        case WRITTEN:
            segment->valid = bit;
            segment->undefined = segment->zero = false;
            segment->lost_on = 0;
            break;
        case COPIED:
            if (segment->undefined) return;
            segment->valid |= bit;
            /* On the host it can still be filled elsewhere, which costs less than a copy. */
            if (device >= 0) segment->zero = false;
            break;
        case DROPPED: segment->valid &= ~bit; return;
        case UNDEFINED:
        case LOST:
            segment->valid = 0;
            segment->undefined = true;
            segment->zero = false;
            segment->lost_on = what == LOST ? (int16_t)(device + 1) : 0;
            return;
    }
    if (device >= 0) segment->stamps[device] = epoch;
}

/* The segments of a row become apart, are changed, and join what they are like then. */
static void change_row(mu_coherence *table, mu_range_cursor *near, uint64_t low, uint64_t high, change what, int device,
                       uint64_t epoch) {
    mu_segment *segment = mu_ranges_seek(&table->segments, near, low);
    for (mu_range_cursor at = *near; segment && segment->low < high; segment = mu_coherence_next(table, &at))
        change_segment(segment, what, device, epoch);
    join_alike(table, *near, low, high);
}

static bool update(mu_coherence *table, uint64_t low, uint64_t high, change what, int device, uint64_t epoch) {
    mu_range_cursor near = {0, 0};
    if (low >= high) return true;
    if (!mu_ranges_cut(&table->segments, &near, low, high)) return false;
    mu_coherence_changed(table);
    change_row(table, &near, low, high, what, device, epoch);
    return true;
}

/* All rows are cut before the first is changed. */
static bool update_area(mu_coherence *table, const mu_area *area, change what, int device, uint64_t epoch) {
    if (area->rows == 1) return update(table, area->low, area->high, what, device, epoch);
    mu_range_cursor near = {0, 0};
    uint64_t width = mu_area_width(area);
    uint32_t row = 0;
    while (row < area->rows) {
        uint64_t low = mu_area_row(area, row);
        if (!mu_ranges_cut(&table->segments, &near, low, low + width)) break;
        row++;
    }
    bool cut = row == area->rows;
    if (cut) mu_coherence_changed(table);
    if (cut) table->pitch = area->pitch;
    while (row-- > 0) {
        uint64_t low = mu_area_row(area, row);
        if (cut)
            change_row(table, &near, low, low + width, what, device, epoch);
        else
            join_alike(table, near, low, low + width);
    }
    return cut;
}

bool mu_coherence_written(mu_coherence *table, uint64_t low, uint64_t high, int device, uint64_t epoch) {
    /* The usual case, an access to what is one segment already, changes it in place. */
    mu_segment *segment = mu_coherence_find(table, low);
    if (segment->low == low && segment->high == high && device >= 0 && segment->valid == MU_LOCATION_DEVICE(device) &&
        !segment->undefined && !segment->zero) {
        segment->stamps[device] = epoch;
        return true;
    }
    return update(table, low, high, WRITTEN, device, epoch);
}

bool mu_coherence_written_area(mu_coherence *table, const mu_area *area, int device, uint64_t epoch) {
    /* Likewise, row by row; stamps that are raised in vain only make readers wait longer. */
    mu_range_cursor near = {0, 0};
    for (uint32_t row = 0; row < area->rows; row++) {
        uint64_t low = mu_area_row(area, row);
        mu_segment *segment = mu_ranges_seek(&table->segments, &near, low);
        if (device < 0 || segment->low != low || segment->high != low + mu_area_width(area) ||
            segment->valid != MU_LOCATION_DEVICE(device) || segment->undefined || segment->zero)
            return update_area(table, area, WRITTEN, device, epoch);
        segment->stamps[device] = epoch;
    }
    return true;
}

bool mu_coherence_copied(mu_coherence *table, uint64_t low, uint64_t high, int device, uint64_t epoch) {
    return update(table, low, high, COPIED, device, epoch);
}

bool mu_coherence_copied_area(mu_coherence *table, const mu_area *area, int device, uint64_t epoch) {
    return update_area(table, area, COPIED, device, epoch);
}

bool mu_coherence_dropped(mu_coherence *table, uint64_t low, uint64_t high, int device) {
    return update(table, low, high, DROPPED, device, 0);
}

bool mu_coherence_undefined(mu_coherence *table, uint64_t low, uint64_t high) {
    return update(table, low, high, UNDEFINED, MUSTER_ANY_DEVICE, 0);
}

void mu_coherence_lose_area(mu_coherence *table, const mu_area *area, int device) {
    change what = device < 0 ? UNDEFINED : LOST;
    if (update_area(table, area, what, device, 0)) return;
    mu_coherence_changed(table);
    mu_walk walk;
    for (mu_segment *segment = mu_walk_first(&walk, table, area); segment; segment = mu_walk_next(&walk))
        change_segment(segment, what, device, 0);
}

void mu_coherence_lose_device(mu_coherence *table, int device) {
    mu_coherence_changed(table);
    mu_range_cursor at;
    for (mu_segment *segment = mu_coherence_first(table, &at, 0); segment; segment = mu_coherence_next(table, &at)) {
        if (!(segment->valid & MU_LOCATION_DEVICE(device))) continue;
        segment->valid &= ~MU_LOCATION_DEVICE(device);
        if (segment->valid) continue;
        segment->undefined = true;
        segment->lost_on = (int16_t)(device + 1);
    }
}

muster_status mu_segment_fail(const mu_segment *segment, const char *what, muster_error *error) {
    unsigned long long low = segment->low, high = segment->high;
    if (!segment->lost_on)
        return mu_fail(
            error, MUSTER_DATA_UNDEFINED,
            "bytes %llu to %llu of %s are undefined: the job that was to write them failed or was ended early; "
            "see its run, and write the whole range first",
            low, high, what);
    return mu_fail(error, MUSTER_DATA_UNDEFINED,
                   "bytes %llu to %llu of %s are undefined: device %d was lost, and nobody else had them; write the "
                   "whole range first",
                   low, high, what, segment->lost_on - 1);
}

void mu_coherence_restamp(mu_coherence *table, uint64_t low, uint64_t high, int device, uint64_t epoch) {
    mu_range_cursor at;
    mu_segment *segment = mu_coherence_first(table, &at, low);
    for (; segment && segment->low < high; segment = mu_coherence_next(table, &at))
        if (segment->valid & MU_LOCATION_DEVICE(device)) segment->stamps[device] = epoch;
}
