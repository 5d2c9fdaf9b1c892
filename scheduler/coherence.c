#include "scheduler/coherence.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

muster_status mu_coherence_init(mu_coherence *table, uint64_t bytes, uint32_t device_count, bool host_content,
                                muster_error *error) {
    memset(table, 0, sizeof *table);
    table->device_count = device_count;
    table->capacity = 4;
    table->segments = mu_alloc(table->capacity * sizeof *table->segments);
    table->stamps = mu_alloc_zeroed((size_t)table->capacity * device_count, sizeof *table->stamps);
    table->instances = mu_alloc_zeroed(device_count, sizeof *table->instances);
    table->sights = mu_alloc_zeroed(device_count, sizeof *table->sights);
    if (!table->segments || !table->stamps || !table->instances || !table->sights) {
        mu_free(table->segments);
        mu_free(table->stamps);
        mu_free(table->instances);
        mu_free(table->sights);
        return mu_fail_host_memory(error, "the range table of a buffer",
                                   table->capacity * (sizeof *table->segments + device_count * sizeof *table->stamps));
    }
    table->segments[0] = (mu_segment){0, bytes, host_content ? MU_LOCATION_HOST : 0, false, !host_content, 0};
    table->count = 1;
    atomic_init(&table->version, 1);
    pthread_mutex_init(&table->lock, NULL);
    return MUSTER_OK;
}

void mu_coherence_destroy(mu_coherence *table) {
    pthread_mutex_destroy(&table->lock);
    mu_free(table->segments);
    mu_free(table->stamps);
    mu_free(table->instances);
    mu_free(table->sights);
}

uint32_t mu_coherence_find(const mu_coherence *table, uint64_t at) {
    uint32_t low = 0, high = table->count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (at < table->segments[middle].high)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
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

static uint64_t *stamps_of(mu_coherence *table, uint32_t segment) {
    return table->stamps + (uint64_t)segment * table->device_count;
}

/* Room for two more segments: what splitting at both ends of a range can add. */
static bool make_room(mu_coherence *table) {
    uint32_t needed = table->count + 2;
    if (needed <= table->capacity) return true;
    uint32_t capacity = table->capacity * 2;
    mu_segment *segments = mu_realloc(table->segments, (size_t)capacity * sizeof *segments);
    if (!segments) return false;
    table->segments = segments;
    uint64_t *stamps = mu_realloc(table->stamps, (size_t)capacity * table->device_count * sizeof *stamps);
    if (!stamps) return false;
    table->stamps = stamps;
    table->capacity = capacity;
    return true;
}

/* Makes `at` a boundary; returns the index of the segment that starts there. Room has been made. */
static uint32_t split_at(mu_coherence *table, uint64_t at) {
    if (at >= table->segments[table->count - 1].high) return table->count;
    uint32_t index = mu_coherence_find(table, at);
    mu_segment *segment = &table->segments[index];
    if (segment->low == at) return index;
    uint32_t after = table->count - index;
    memmove(segment + 1, segment, after * sizeof *segment);
    memmove(stamps_of(table, index + 1), stamps_of(table, index),
            (size_t)after * table->device_count * sizeof *table->stamps);
    table->count++;
    segment[0].high = at;
    segment[1].low = at;
    return index + 1;
}

/* Joins equal neighbours in [first - 1, last + 1); a joined segment keeps the later stamps, which can only make a reader
 * wait for more than it needs. */
static void merge_around(mu_coherence *table, uint32_t first, uint32_t last) {
    if (first > 0) first--;
    if (last < table->count) last++;
    uint32_t kept = first;
    for (uint32_t i = first + 1; i < last; i++) {
        mu_segment *left = &table->segments[kept], *right = &table->segments[i];
        if (left->valid == right->valid && left->undefined == right->undefined && left->zero == right->zero &&
            left->lost_on == right->lost_on) {
            left->high = right->high;
            uint64_t *a = stamps_of(table, kept), *b = stamps_of(table, i);
            for (uint32_t d = 0; d < table->device_count; d++)
                if (b[d] > a[d]) a[d] = b[d];
        } else if (++kept != i) {
            table->segments[kept] = *right;
            memcpy(stamps_of(table, kept), stamps_of(table, i), table->device_count * sizeof *table->stamps);
        }
    }
    uint32_t removed = last - (kept + 1);
    if (removed == 0) return;
    memmove(&table->segments[kept + 1], &table->segments[last], (table->count - last) * sizeof *table->segments);
    memmove(stamps_of(table, kept + 1), stamps_of(table, last),
            (size_t)(table->count - last) * table->device_count * sizeof *table->stamps);
    table->count -= removed;
}

typedef enum change { WRITTEN, COPIED, DROPPED, UNDEFINED, LOST } change;

static bool update(mu_coherence *table, uint64_t low, uint64_t high, change what, int device, uint64_t epoch) {
    if (low >= high) return true;
    if (!make_room(table)) return false;
    mu_coherence_changed(table);
    uint32_t first = split_at(table, low);
    uint32_t last = split_at(table, high);
    mu_location_mask bit = device < 0 ? MU_LOCATION_HOST : MU_LOCATION_DEVICE(device);
    for (uint32_t i = first; i < last; i++) {
        mu_segment *segment = &table->segments[i];
        switch (what) {
            case WRITTEN:
                segment->valid = bit;
                segment->undefined = segment->zero = false;
                segment->lost_on = 0;
                break;
            case COPIED:
                if (segment->undefined) continue;
                segment->valid |= bit;
                /* On the host it can still be filled elsewhere, which costs less than a copy. */
                if (device >= 0) segment->zero = false;
                break;
            case DROPPED: segment->valid &= ~bit; break;
            case UNDEFINED:
            case LOST:
                segment->valid = 0;
                segment->undefined = true;
                segment->zero = false;
                segment->lost_on = what == LOST ? (int16_t)(device + 1) : 0;
                break;
        }
        if (device >= 0 && (what == WRITTEN || what == COPIED)) stamps_of(table, i)[device] = epoch;
    }
    merge_around(table, first, last);
    return true;
}

bool mu_coherence_written(mu_coherence *table, uint64_t low, uint64_t high, int device, uint64_t epoch) {
    /* The usual case, an access to what is one segment already, changes it in place. */
    uint32_t index = mu_coherence_find(table, low);
    mu_segment *segment = &table->segments[index];
    if (segment->low == low && segment->high == high && device >= 0 && segment->valid == MU_LOCATION_DEVICE(device) &&
        !segment->undefined && !segment->zero) {
        stamps_of(table, index)[device] = epoch;
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

void mu_coherence_lose_device(mu_coherence *table, int device) {
    mu_coherence_changed(table);
    for (uint32_t i = 0; i < table->count; i++) {
        mu_segment *segment = &table->segments[i];
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
    for (uint32_t i = mu_coherence_find(table, low); i < table->count && table->segments[i].low < high; i++)
        if (table->segments[i].valid & MU_LOCATION_DEVICE(device)) stamps_of(table, i)[device] = epoch;
}
