#include "scheduler/coherence.h"

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

static bool is_alike(const mu_segment *a, const mu_segment *b) {
    return a->valid == b->valid && a->undefined == b->undefined && a->zero == b->zero && a->lost_on == b->lost_on;
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

static bool update(mu_coherence *table, uint64_t low, uint64_t high, change what, int device, uint64_t epoch) {
    if (low >= high) return true;
    mu_range_cursor cursor = {0, 0};
    mu_segment *segment = mu_ranges_cut(&table->segments, &cursor, low, high);
    if (!segment) return false;
    mu_coherence_changed(table);
    mu_range_cursor at = cursor;
    for (; segment && segment->low < high; segment = mu_coherence_next(table, &at))
        change_segment(segment, what, device, epoch);
    join_alike(table, cursor, low, high);
    return true;
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

bool mu_coherence_copied(mu_coherence *table, uint64_t low, uint64_t high, int device, uint64_t epoch) {
    return update(table, low, high, COPIED, device, epoch);
}

bool mu_coherence_dropped(mu_coherence *table, uint64_t low, uint64_t high, int device) {
    return update(table, low, high, DROPPED, device, 0);
}

bool mu_coherence_undefined(mu_coherence *table, uint64_t low, uint64_t high) {
    return update(table, low, high, UNDEFINED, MUSTER_ANY_DEVICE, 0);
}

bool mu_coherence_lost(mu_coherence *table, uint64_t low, uint64_t high, int device) {
    return update(table, low, high, LOST, device, 0);
}

void mu_coherence_spoil(mu_coherence *table, uint64_t low, uint64_t high) {
    mu_coherence_changed(table);
    mu_range_cursor at;
    mu_segment *segment = mu_coherence_first(table, &at, low);
    for (; segment && segment->low < high; segment = mu_coherence_next(table, &at))
        change_segment(segment, UNDEFINED, MUSTER_ANY_DEVICE, 0);
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

muster_status mu_segment_fail(const mu_segment *segment, muster_error *error) {
    unsigned long long low = segment->low, high = segment->high;
    if (!segment->lost_on)
        return mu_fail(
            error, MUSTER_DATA_UNDEFINED,
            "bytes %llu to %llu of a buffer are undefined: the job that last wrote them failed; see its run, "
            "and write the whole range first",
            low, high);
    return mu_fail(error, MUSTER_DATA_UNDEFINED,
                   "bytes %llu to %llu of a buffer are undefined: device %d was lost, and nobody else had them; write "
                   "the whole range first",
                   low, high, segment->lost_on - 1);
}

void mu_coherence_restamp(mu_coherence *table, uint64_t low, uint64_t high, int device, uint64_t epoch) {
    mu_range_cursor at;
    mu_segment *segment = mu_coherence_first(table, &at, low);
    for (; segment && segment->low < high; segment = mu_coherence_next(table, &at))
        if (segment->valid & MU_LOCATION_DEVICE(device)) segment->stamps[device] = epoch;
}
