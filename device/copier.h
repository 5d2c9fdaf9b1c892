/* A small pool of threads that copy host memory, shared by all devices of a runtime.
 *
 * One thread copies some 8 to 10 GB/s, a device takes 55: so a job is cut into parts, which the threads take one by one, the
 * oldest job first. Idle threads sleep. Jobs never call a driver except to allocate pinned memory, and never wait. */
#ifndef MUSTER_DEVICE_COPIER_H
#define MUSTER_DEVICE_COPIER_H

#include <stdbool.h>
#include <stdint.h>

#include "muster.h"

typedef struct mu_copier mu_copier;
typedef struct mu_copy_job mu_copy_job;

/* Something to do in `parts` parts. The poster's; from post until `done` has been called it must stay as it is. */
struct mu_copy_job {
    void (*run)(mu_copy_job *job, uint32_t part); /* on a copy thread, for each part once, in any order */
    void (*done)(mu_copy_job *job);               /* on the thread that ended the last part, which sees all of them */
    uint32_t parts;                               /* at least 1 */
    /* The copier's, under its lock: */
    mu_copy_job *next;
    uint32_t taken, left; /* parts */
    uint32_t inside;      /* threads that are not out of it yet */
};

/* Starts the threads, "muster-copy-0" and so on. `threads` 0: half of the cores that this process may run on, at least 1 and at most
 * MU_COPY_THREADS_MAX. OUT_OF_HOST_MEMORY. Any thread. */
muster_status mu_copier_create(uint32_t threads, mu_copier **copier, muster_error *error);
/* Ends the threads. No job may be posted and not done. NULL is ignored. Blocks. */
void mu_copier_destroy(mu_copier *copier);
uint32_t mu_copier_thread_count(const mu_copier *copier);

/* Any thread. Never fails. A job that is done may be posted again, also before mu_copier_leave. */
void mu_copier_post(mu_copier *copier, mu_copy_job *job);
/* Waits until no thread is inside the job any more, so that its memory can go: `done` may still be running when others see what it
 * tells them. Blocks. */
void mu_copier_leave(mu_copier *copier, mu_copy_job *job);

#endif
