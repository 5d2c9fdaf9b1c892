/* Address space for simulated memory. Small blocks come from 64 MiB slabs by size class, large ones have a mapping of
 * their own; both are reserved without commitment, so that a 140 GiB device costs what is touched. Freed blocks spend a
 * while in quarantine, out of the table and poisoned, before their addresses are used again. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/sim/sim_heap.h"

#define SLAB_BYTES ((size_t)64 << 20)
#define SMALL_BYTES ((size_t)1 << 20)
#define GUARD_BYTES 256u     /* at least so much between two blocks is mapped by nobody */
#define BLOCK_ALIGNMENT 512u /* as the driver's pools */
#define POISON 0xDB
/* What quarantine keeps. Under ThreadSanitizer more: reusing addresses needs an order that the program has not. */
#if MU_TSAN
enum { QUARANTINE_BLOCKS = 65536 };
#define QUARANTINE_BYTES ((size_t)1 << 30)
#else
enum { QUARANTINE_BLOCKS = 1024 };
#define QUARANTINE_BYTES ((size_t)64 << 20)
#endif

enum { CLASSES_PER_DOUBLING = 8, CLASSES = 128 };

typedef struct slab {
    struct slab *next;
    char *base;
} slab;

struct sim_heap {
    sim_driver *driver;
    pthread_mutex_t lock;
    slab *slabs;
    size_t slab_used; /* of the newest */
    sim_block *free_lists[CLASSES];
    sim_block *oldest, *newest; /* quarantine */
    size_t quarantined, quarantined_bytes;
};

static size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

static size_t page_bytes(void) {
    static atomic_size_t known; /* relaxed: every thread finds the same */
    size_t bytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (!bytes) atomic_store_explicit(&known, bytes = (size_t)sysconf(_SC_PAGESIZE), memory_order_relaxed);
    return bytes;
}

static void *map_pages(size_t bytes) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

/* ---------------------------------------------------------------------------------------------------- accounting -- */

bool sim_charge(sim_device *device, uint64_t bytes) {
    /* Relaxed: the count alone matters; nothing is published with it. */
    uint64_t used = atomic_load_explicit(&device->used_bytes, memory_order_relaxed);
    do {
        uint64_t other = atomic_load_explicit(&device->other_bytes, memory_order_relaxed);
        uint64_t total = device->config->memory_bytes;
        if (used > total || other > total - used || bytes > total - used - other) return false;
    } while (!atomic_compare_exchange_weak_explicit(&device->used_bytes, &used, used + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

void sim_discharge(sim_device *device, uint64_t bytes) {
    atomic_fetch_sub_explicit(&device->used_bytes, bytes, memory_order_relaxed);
}

uint64_t sim_free_bytes(const sim_device *device) {
    uint64_t taken = atomic_load_explicit(&device->used_bytes, memory_order_relaxed) +
                     atomic_load_explicit(&device->other_bytes, memory_order_relaxed);
    return taken < device->config->memory_bytes ? device->config->memory_bytes - taken : 0;
}

/* ------------------------------------------------------------------------------------------------------- classes -- */

/* Eight classes per doubling, so that at most an eighth is wasted. The smallest is one BLOCK_ALIGNMENT. */
static int class_of(size_t bytes, size_t *capacity) {
    size_t units = round_up(bytes, BLOCK_ALIGNMENT) / BLOCK_ALIGNMENT;
    if (units <= CLASSES_PER_DOUBLING) {
        *capacity = units * BLOCK_ALIGNMENT;
        return (int)units - 1;
    }
    int shift = 63 - __builtin_clzll(units - 1) - 3; /* steps of 2^shift units */
    size_t rounded = round_up(units, (size_t)1 << shift);
    *capacity = rounded * BLOCK_ALIGNMENT;
    return (shift + 1) * CLASSES_PER_DOUBLING + (int)(rounded >> shift) - 1;
}

static char *carve(sim_heap *heap, size_t capacity) {
    if (!heap->slabs || heap->slab_used + capacity > SLAB_BYTES) {
        slab *fresh = mu_alloc(sizeof *fresh);
        if (!fresh) return NULL;
        fresh->base = map_pages(SLAB_BYTES);
        if (!fresh->base) {
            mu_free(fresh);
            return NULL;
        }
        fresh->next = heap->slabs;
        heap->slabs = fresh;
        heap->slab_used = 0;
    }
    char *base = heap->slabs->base + heap->slab_used;
    heap->slab_used += capacity;
    return base;
}

/* ------------------------------------------------------------------------------------------------------ lifetime -- */

sim_heap *sim_heap_create(sim_driver *driver) {
    sim_heap *heap = mu_alloc_zeroed(1, sizeof *heap);
    if (!heap) return NULL;
    heap->driver = driver;
    pthread_mutex_init(&heap->lock, NULL);
    return heap;
}

static void release_written_map(sim_block *block) {
    if (!block->range.initialised) return;
    munmap(block->range.initialised, (block->range.high - block->range.low + 7) / 8);
    block->range.initialised = NULL;
}

/* Gives the addresses back: to the class's list, or to the system. */
static void recycle(sim_heap *heap, sim_block *block) {
    release_written_map(block);
    if (block->size_class >= 0) {
        block->next = heap->free_lists[block->size_class];
        heap->free_lists[block->size_class] = block;
        return;
    }
    if (block->kind != SIM_BLOCK_REGISTERED) munmap((void *)(uintptr_t)block->range.low, block->capacity);
    mu_free(block);
}

static void destroy_list(sim_heap *heap, sim_block *block) {
    while (block) {
        sim_block *next = block->next;
        if (block->size_class < 0)
            recycle(heap, block);
        else
            mu_free(block);
        block = next;
    }
}

void sim_heap_destroy(sim_heap *heap) {
    if (!heap) return;
    for (sim_block *block; (block = sim_table_next(heap->driver->memory, 0)) != NULL;) {
        sim_table_remove(heap->driver->memory, block);
        release_written_map(block);
        if (block->size_class < 0)
            recycle(heap, block);
        else
            mu_free(block);
    }
    for (sim_block *block = heap->oldest; block; block = block->next) release_written_map(block);
    destroy_list(heap, heap->oldest);
    for (int i = 0; i < CLASSES; i++) destroy_list(heap, heap->free_lists[i]);
    while (heap->slabs) {
        slab *next = heap->slabs->next;
        munmap(heap->slabs->base, SLAB_BYTES);
        mu_free(heap->slabs);
        heap->slabs = next;
    }
    pthread_mutex_destroy(&heap->lock);
    mu_free(heap);
}

static sim_block *take_small(sim_heap *heap, size_t bytes) {
    size_t capacity;
    int size_class = class_of(bytes + GUARD_BYTES, &capacity);
    pthread_mutex_lock(&heap->lock);
    sim_block *block = heap->free_lists[size_class];
    if (block) {
        heap->free_lists[size_class] = block->next;
        pthread_mutex_unlock(&heap->lock);
        MU_TSAN_ACQUIRE(&block->order);
        return block;
    }
    block = mu_alloc_zeroed(1, sizeof *block);
    char *base = block ? carve(heap, capacity) : NULL;
    pthread_mutex_unlock(&heap->lock);
    if (!base) {
        mu_free(block);
        return NULL;
    }
    block->range.low = (uintptr_t)base;
    block->capacity = capacity;
    block->size_class = size_class;
    return block;
}

static sim_block *take_large(size_t bytes) {
    size_t capacity;
    if (__builtin_add_overflow(bytes, 2 * page_bytes(), &capacity)) return NULL;
    capacity = capacity / page_bytes() * page_bytes();
    sim_block *block = mu_alloc_zeroed(1, sizeof *block);
    void *base = block ? map_pages(capacity) : NULL;
    if (!base) {
        mu_free(block);
        return NULL;
    }
    block->range.low = (uintptr_t)base;
    block->capacity = capacity;
    block->size_class = -1;
    return block;
}

sim_block *sim_block_create(sim_heap *heap, sim_block_kind kind, sim_device *device, sim_context *context,
                            size_t bytes) {
    sim_block *block = bytes + GUARD_BYTES <= SMALL_BYTES ? take_small(heap, bytes) : take_large(bytes);
    if (!block) return NULL;
    block->range.high = block->range.low + bytes;
    block->range.writable = true;
    block->kind = kind;
    block->device = device;
    block->context = context;
    block->pool = NULL;
    block->variable = block->freeing = false;
    block->next = NULL;
    if (heap->driver->config.report_uninitialised && device) {
        block->range.initialised = map_pages((bytes + 7) / 8);
        if (!block->range.initialised) goto release;
    }
    if (sim_table_add(heap->driver->memory, block)) return block;
release:
    pthread_mutex_lock(&heap->lock);
    recycle(heap, block);
    pthread_mutex_unlock(&heap->lock);
    return NULL;
}

sim_block *sim_block_register(sim_heap *heap, sim_context *context, void *pointer, size_t bytes, bool writable) {
    sim_block *block = mu_alloc_zeroed(1, sizeof *block);
    if (!block) return NULL;
    block->range = (sim_range){(uintptr_t)pointer, (uintptr_t)pointer + bytes, writable, NULL};
    block->kind = SIM_BLOCK_REGISTERED;
    block->context = context;
    block->size_class = -1;
    if (sim_table_add(heap->driver->memory, block)) return block;
    mu_free(block);
    return NULL;
}

static void poison(sim_heap *heap, sim_block *block) {
    if (heap->driver->null_mode || block->kind == SIM_BLOCK_REGISTERED) return;
    char *base = (char *)(uintptr_t)block->range.low;
    size_t bytes = block->range.high - block->range.low;
    size_t filled = block->size_class >= 0 ? bytes : page_bytes();
    memset(base, POISON, filled < bytes ? filled : bytes);
    if (block->size_class < 0) madvise(base + page_bytes(), block->capacity - page_bytes(), MADV_DONTNEED);
}

void sim_block_unmap(sim_heap *heap, sim_block *block) {
    sim_table_remove(heap->driver->memory, block);
    sim_table_remember(heap->driver->memory, block);
    poison(heap, block);
    MU_TSAN_RELEASE(&block->order);
}

void sim_block_retire(sim_heap *heap, sim_block *block) {
    size_t bytes = block->size_class >= 0 ? block->capacity : page_bytes();
    pthread_mutex_lock(&heap->lock);
    block->next = NULL;
    if (heap->newest)
        heap->newest->next = block;
    else
        heap->oldest = block;
    heap->newest = block;
    heap->quarantined++;
    heap->quarantined_bytes += bytes;
    while (heap->quarantined > QUARANTINE_BLOCKS || heap->quarantined_bytes > QUARANTINE_BYTES) {
        sim_block *leaving = heap->oldest;
        heap->oldest = leaving->next;
        if (!heap->oldest) heap->newest = NULL;
        heap->quarantined--;
        heap->quarantined_bytes -= leaving->size_class >= 0 ? leaving->capacity : page_bytes();
        recycle(heap, leaving);
    }
    pthread_mutex_unlock(&heap->lock);
}

void sim_block_free(sim_heap *heap, sim_block *block) {
    sim_block_unmap(heap, block);
    sim_block_retire(heap, block);
}

/* -------------------------------------------------------------------------------------- what has been written to -- */

void sim_block_mark_written(sim_block *block, uint64_t address, size_t bytes) {
    uint8_t *map = block->range.initialised;
    if (!map) return;
    for (uint64_t at = address - block->range.low, end = at + bytes; at < end;) {
        if (at % 8 == 0 && end - at >= 8) {
            size_t whole = (end - at) / 8;
            memset(map + at / 8, 0xff, whole);
            at += whole * 8;
        } else {
            /* Relaxed: neighbours in one byte may be marked by another stream at the same time. */
            __atomic_fetch_or(&map[at / 8], (uint8_t)(1u << at % 8), __ATOMIC_RELAXED);
            at++;
        }
    }
}

void sim_block_copy_written(sim_block *to, uint64_t to_address, const sim_block *from, uint64_t from_address,
                            size_t bytes) {
    if (!to->range.initialised) return;
    if (!from || !from->range.initialised) {
        sim_block_mark_written(to, to_address, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i++) {
        uint64_t at = from_address + i - from->range.low, onto = to_address + i - to->range.low;
        uint8_t bit = (uint8_t)(1u << onto % 8);
        if (__atomic_load_n(&from->range.initialised[at / 8], __ATOMIC_RELAXED) >> at % 8 & 1)
            __atomic_fetch_or(&to->range.initialised[onto / 8], bit, __ATOMIC_RELAXED);
        else
            __atomic_fetch_and(&to->range.initialised[onto / 8], (uint8_t)~bit, __ATOMIC_RELAXED);
    }
}
