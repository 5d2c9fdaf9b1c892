/* Host memory: every allocation of Muster goes through here, to the application's hooks when it set some. */
#ifndef MUSTER_BASE_ALLOC_H
#define MUSTER_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NULL when out of memory. `bytes` 0 is treated as 1. */
void *mu_alloc(size_t bytes);
void *mu_alloc_zeroed(size_t count, size_t size); /* NULL too when count * size overflows */
void *mu_realloc(void *pointer, size_t bytes);
void mu_free(void *pointer); /* NULL is ignored */
char *mu_strdup(const char *text);
/* `alignment` is a power of two; free with mu_free_aligned. */
void *mu_alloc_aligned(size_t alignment, size_t bytes);
void *mu_alloc_aligned_zeroed(size_t alignment, size_t bytes); /* large memory of the system is not touched for it */
void mu_free_aligned(void *pointer);

/* Makes room for `needed` elements of `size` bytes in a growing array: at least doubles, never shrinks. False (and the
 * array untouched) when memory is short or the size overflows. */
bool mu_grow_now(void *array_pointer, size_t *capacity, size_t needed, size_t size);
static inline bool mu_grow(void *array_pointer, size_t *capacity, size_t needed, size_t size) {
    return needed <= *capacity || mu_grow_now(array_pointer, capacity, needed, size);
}

/* Runtimes hold the allocator: muster_set_allocator is refused while the count is not zero. */
void mu_alloc_hold(void);
void mu_alloc_unhold(void);

/* Tests: the allocation numbered `countdown` from now (1 = the next) fails, and every later one too when `sticky`.
 * 0 turns it off. mu_alloc_fail_hits says how many were refused. Process-wide. */
void mu_alloc_fail_at(uint64_t countdown, bool sticky);
uint64_t mu_alloc_fail_hits(void);

#endif
