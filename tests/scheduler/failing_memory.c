#include "tests/scheduler/failing_memory.h"

#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
// cmocka.h needs those four first
#include <cmocka.h>

#include "tests/scheduler/fixture.h"

enum { MOST_FRAMES = 64, MOST_ALLOCATIONS = 1 << 16, LOOK_AROUND = 64 };

/* Relaxed throughout: set while no runtime exists, and only the numbers matter. */
static atomic_long live_blocks;
static atomic_uint_fast64_t allocations, failures;
static atomic_bool failed; /* what was to fail has */
static uint64_t fail_near, fail_path;
static bool fail_sticky;
static int outer_frames; /* of the thread that began: those that it has below */
static pthread_t beginner;
static uint64_t *noted; /* a census; each element is written by the thread whose allocation it is */

/* The index of the frame that goes on at `address`; sanitizers have frames of their own before the first. */
static int find_frame(void *const *frame, int frames, const void *address) {
    int index = 0;
    while (index < frames && frame[index] != address) index++;
    return index;
}

static uint64_t find_path(const void *asker) {
    void *frame[MOST_FRAMES];
    int frames = backtrace(frame, MOST_FRAMES), first = find_frame(frame, frames, asker);
    uint64_t path = 0;
    if (pthread_equal(pthread_self(), beginner)) frames -= outer_frames;
    for (int i = first; i < frames; i++) {
        path = (path ^ (uintptr_t)frame[i]) * 0x9e3779b97f4a7c15u;
        path ^= path >> 29;
    }
    return path | 1;
}

static bool fails(uint64_t nth, const void *asker) {
    if (!fail_near) return false;
    if (atomic_load_explicit(&failed, memory_order_relaxed)) return fail_sticky;
    if (nth + LOOK_AROUND < fail_near || nth > fail_near + LOOK_AROUND || find_path(asker) != fail_path) return false;
    return !atomic_exchange_explicit(&failed, true, memory_order_relaxed) || fail_sticky;
}

static __attribute__((noinline)) void *reallocate(void *user, void *pointer, size_t bytes) {
    (void)user;
    const void *asker = __builtin_return_address(0);
    uint64_t nth = 1 + atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    if (noted && nth <= MOST_ALLOCATIONS) noted[nth - 1] = find_path(asker);
    if (fails(nth, asker)) {
        atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
        return NULL;
    }
    void *result = realloc(pointer, bytes);
    if (result && !pointer) atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return result;
}

static void release(void *user, void *pointer) {
    (void)user;
    atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    free(pointer);
}

__attribute__((noinline)) void failing_memory_begin(uint64_t near, uint64_t path, bool sticky) {
    static const muster_allocator own = {reallocate, release, NULL};
    void *frame[MOST_FRAMES];
    int frames = backtrace(frame, MOST_FRAMES);
    outer_frames = frames - find_frame(frame, frames, __builtin_return_address(0));
    beginner = pthread_self();
    atomic_store_explicit(&live_blocks, 0, memory_order_relaxed);
    atomic_store_explicit(&allocations, 0, memory_order_relaxed);
    atomic_store_explicit(&failures, 0, memory_order_relaxed);
    atomic_store_explicit(&failed, false, memory_order_relaxed);
    fail_near = near;
    fail_path = path;
    fail_sticky = sticky;
    OK(muster_set_allocator(&own, &reported));
}

failing_memory_report failing_memory_end(void) {
    OK(muster_set_allocator(NULL, &reported));
    return (failing_memory_report){atomic_load_explicit(&live_blocks, memory_order_relaxed),
                                   atomic_load_explicit(&failures, memory_order_relaxed)};
}

void memory_census_prepare(void) {
    noted = calloc(MOST_ALLOCATIONS, sizeof *noted);
    assert_non_null(noted);
}

memory_census memory_census_end(void) {
    failing_memory_end();
    memory_census census = {noted, atomic_load_explicit(&allocations, memory_order_relaxed)};
    noted = NULL;
    assert_in_range(census.count, 1, MOST_ALLOCATIONS);
    return census;
}

uint64_t memory_census_rank(const memory_census *census, uint64_t n) {
    uint64_t rank = 0;
    for (uint64_t i = 0; i < n; i++) rank += census->path[i] == census->path[n - 1];
    return rank;
}
