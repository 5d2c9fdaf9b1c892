#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static void *default_reallocate(void *user, void *pointer, size_t bytes) {
    (void)user;
    return realloc(pointer, bytes);
}

static void default_release(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

/* Written only while no runtime exists, so that readers need no ordering beyond creating one. */
static muster_allocator hooks = {default_reallocate, default_release, NULL};
static atomic_uint holders;

/* Fault injection; relaxed throughout: tests set it before they start the threads that allocate. */
static atomic_uint_fast64_t fail_countdown;
static atomic_bool fail_sticky;
static atomic_uint_fast64_t fail_hits;

muster_status muster_set_allocator(const muster_allocator *allocator, muster_error *error) {
    if (atomic_load_explicit(&holders, memory_order_acquire) != 0)
        return mu_fail(error, MUSTER_INVALID_STATE,
                       "the allocator cannot change while %u runtimes exist; set it before creating the first",
                       atomic_load_explicit(&holders, memory_order_relaxed));
    if (!allocator) {
        hooks = (muster_allocator){default_reallocate, default_release, NULL};
        return MUSTER_OK;
    }
    if (!allocator->reallocate || !allocator->release)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "an allocator needs both reallocate and release");
    hooks = *allocator;
    return MUSTER_OK;
}

void mu_alloc_hold(void) { atomic_fetch_add_explicit(&holders, 1, memory_order_relaxed); }

/* Release pairs with the acquire in muster_set_allocator: the last runtime's frees happen before the hooks change. */
void mu_alloc_unhold(void) { atomic_fetch_sub_explicit(&holders, 1, memory_order_release); }

void mu_alloc_fail_at(uint64_t countdown, bool sticky) {
    atomic_store_explicit(&fail_sticky, sticky, memory_order_relaxed);
    atomic_store_explicit(&fail_hits, 0, memory_order_relaxed);
    atomic_store_explicit(&fail_countdown, countdown, memory_order_relaxed);
}

uint64_t mu_alloc_fail_hits(void) { return atomic_load_explicit(&fail_hits, memory_order_relaxed); }

static bool injected_failure(void) {
    uint_fast64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
    if (left == 0) return false;
    while (left > 1)
        if (atomic_compare_exchange_weak_explicit(&fail_countdown, &left, left - 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return false;
    if (left == 0) return false;
    if (!atomic_load_explicit(&fail_sticky, memory_order_relaxed) &&
        !atomic_compare_exchange_strong_explicit(&fail_countdown, &left, 0, memory_order_relaxed, memory_order_relaxed))
        return false;
    atomic_fetch_add_explicit(&fail_hits, 1, memory_order_relaxed);
    return true;
}

void *mu_realloc(void *pointer, size_t bytes) {
    if (injected_failure()) return NULL;
    return hooks.reallocate(hooks.user, pointer, bytes ? bytes : 1);
}

void *mu_alloc(size_t bytes) { return mu_realloc(NULL, bytes); }

/* The system's fresh pages are zero already. */
void *mu_alloc_zeroed(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
    if (hooks.reallocate == default_reallocate) return injected_failure() ? NULL : calloc(1, bytes ? bytes : 1);
    void *pointer = mu_alloc(bytes);
    if (pointer) memset(pointer, 0, bytes);
    return pointer;
}

void mu_free(void *pointer) {
    if (pointer) hooks.release(hooks.user, pointer);
}

char *mu_strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = mu_alloc(bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

/* The hooks promise malloc's alignment only: over-allocate and keep the original pointer in front. */
static void *alloc_aligned(size_t alignment, size_t bytes, bool zeroed) {
    size_t total;
    if (__builtin_add_overflow(bytes, alignment + sizeof(void *), &total)) return NULL;
    char *raw = zeroed ? mu_alloc_zeroed(1, total) : mu_alloc(total);
    if (!raw) return NULL;
    uintptr_t aligned = ((uintptr_t)raw + sizeof(void *) + alignment - 1) & ~(uintptr_t)(alignment - 1);
    memcpy((void *)(aligned - sizeof(void *)), &raw, sizeof raw);
    return (void *)aligned;
}

void *mu_alloc_aligned(size_t alignment, size_t bytes) { return alloc_aligned(alignment, bytes, false); }

void *mu_alloc_aligned_zeroed(size_t alignment, size_t bytes) { return alloc_aligned(alignment, bytes, true); }

void mu_free_aligned(void *pointer) {
    if (!pointer) return;
    void *raw;
    memcpy(&raw, (char *)pointer - sizeof raw, sizeof raw);
    mu_free(raw);
}

bool mu_grow_now(void *array_pointer, size_t *capacity, size_t needed, size_t size) {
    size_t grown = *capacity ? *capacity : 8;
    while (grown < needed)
        if (__builtin_mul_overflow(grown, 2, &grown)) return false;
    size_t bytes;
    if (__builtin_mul_overflow(grown, size, &bytes)) return false;
    void *array;
    memcpy(&array, array_pointer, sizeof array);
    array = mu_realloc(array, bytes);
    if (!array) return false;
    memcpy(array_pointer, &array, sizeof array);
    *capacity = grown;
    return true;
}
