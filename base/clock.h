/* Monotonic time. */
#ifndef MUSTER_BASE_CLOCK_H
#define MUSTER_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t mu_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What the calling thread has used of processors. A system call, some 0.3 us. */
static inline uint64_t mu_thread_cpu_ns(void) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

/* now + timeout, saturating, so that MUSTER_FOREVER stays forever. */
static inline uint64_t mu_deadline_ns(uint64_t timeout_ns) {
    uint64_t now = mu_now_ns();
    return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

#endif
