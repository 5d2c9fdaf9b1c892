/* Handles: a table of chunks that never move, read without a lock. */
#include "device/sim/sim_internal.h"

enum { INDEX_BITS = 22, GENERATION_BITS = 20, SLOT_BITS = 8, HANDLE_SHIFT = 4 };

_Static_assert(SIM_HANDLE_CHUNK *SIM_HANDLE_CHUNKS == 1 << INDEX_BITS, "an index must reach every chunk");
_Static_assert(MU_SIM_MAX_INSTANCES <= 1 << SLOT_BITS, "a handle must name its instance");

static uint64_t encode(sim_tag tag, uint32_t slot, uint32_t generation, uint32_t index) {
    uint64_t value = (uint64_t)tag << (SLOT_BITS + GENERATION_BITS + INDEX_BITS) |
                     (uint64_t)slot << (GENERATION_BITS + INDEX_BITS) | (uint64_t)generation << INDEX_BITS | index;
    return value << HANDLE_SHIFT;
}

static uint32_t index_of(uint64_t handle) { return (uint32_t)(handle >> HANDLE_SHIFT) & ((1u << INDEX_BITS) - 1); }

static sim_tag tag_of(uint64_t handle) {
    return (sim_tag)(handle >> (HANDLE_SHIFT + SLOT_BITS + GENERATION_BITS + INDEX_BITS));
}

bool sim_handles_init(sim_handles *handles) { return pthread_mutex_init(&handles->lock, NULL) == 0; }

void sim_handles_close(sim_handles *handles) {
    for (uint32_t i = 0; i < SIM_HANDLE_CHUNKS; i++)
        mu_free(atomic_load_explicit(&handles->chunks[i], memory_order_relaxed));
    pthread_mutex_destroy(&handles->lock);
}

static sim_handle_entry *entry_at(sim_handles *handles, uint32_t index) {
    sim_handle_entry *chunk = atomic_load_explicit(&handles->chunks[index / SIM_HANDLE_CHUNK], memory_order_acquire);
    return chunk ? &chunk[index % SIM_HANDLE_CHUNK] : NULL;
}

static bool take_index(sim_handles *handles, uint32_t *index) {
    if (handles->free_head) {
        *index = handles->free_head - 1;
        handles->free_head = entry_at(handles, *index)->next_free;
        return true;
    }
    if (handles->used == 1u << INDEX_BITS) return false;
    uint32_t chunk = handles->used / SIM_HANDLE_CHUNK;
    if (!atomic_load_explicit(&handles->chunks[chunk], memory_order_relaxed)) {
        sim_handle_entry *entries = mu_alloc_zeroed(SIM_HANDLE_CHUNK, sizeof *entries);
        if (!entries) return false;
        atomic_store_explicit(&handles->chunks[chunk], entries, memory_order_release);
    }
    *index = handles->used++;
    return true;
}

bool sim_handle_add(sim_driver *driver, sim_object *object, sim_tag tag, sim_context *context) {
    sim_handles *handles = &driver->handles;
    pthread_mutex_lock(&handles->lock);
    uint32_t index;
    bool taken = take_index(handles, &index);
    if (taken) {
        sim_handle_entry *entry = entry_at(handles, index);
        entry->generation = (entry->generation + 1) & ((1u << GENERATION_BITS) - 1);
        *object = (sim_object){tag, encode(tag, driver->slot, entry->generation, index), context};
        atomic_store_explicit(&entry->object, object, memory_order_relaxed);
        atomic_store_explicit(&entry->handle, object->handle, memory_order_release);
    }
    pthread_mutex_unlock(&handles->lock);
    return taken;
}

void sim_handle_remove(sim_driver *driver, sim_object *object) {
    sim_handles *handles = &driver->handles;
    pthread_mutex_lock(&handles->lock);
    uint32_t index = index_of(object->handle);
    sim_handle_entry *entry = entry_at(handles, index);
    atomic_store_explicit(&entry->handle, 0, memory_order_release);
    atomic_store_explicit(&entry->object, NULL, memory_order_relaxed);
    entry->next_free = handles->free_head;
    handles->free_head = index + 1;
    pthread_mutex_unlock(&handles->lock);
}

void *sim_find(sim_driver *driver, sim_tag tag, const void *handle) {
    uint64_t value = (uintptr_t)handle;
    if (tag_of(value) != tag) return NULL;
    sim_handle_entry *entry = entry_at(&driver->handles, index_of(value));
    /* Acquire pairs with the release in sim_handle_add: the object was complete before its handle appeared. */
    if (!entry || atomic_load_explicit(&entry->handle, memory_order_acquire) != value) return NULL;
    return atomic_load_explicit(&entry->object, memory_order_relaxed);
}

sim_object *sim_handle_next(sim_driver *driver, const sim_context *context, sim_tag tag, uint32_t *cursor) {
    sim_handles *handles = &driver->handles;
    sim_object *found = NULL;
    pthread_mutex_lock(&handles->lock);
    while (!found && *cursor < handles->used) {
        sim_handle_entry *entry = entry_at(handles, (*cursor)++);
        sim_object *object = atomic_load_explicit(&entry->object, memory_order_relaxed);
        if (object && object->tag == tag && (!context || object->context == context)) found = object;
    }
    pthread_mutex_unlock(&handles->lock);
    return found;
}
