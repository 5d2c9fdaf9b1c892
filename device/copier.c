/* See copier.h. */
#include "device/copier.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tuning.h"

struct mu_copier {
    pthread_mutex_t lock;   /* everything below; never held while a job runs */
    pthread_cond_t posted;  /* for the threads */
    pthread_cond_t emptied; /* for mu_copier_leave */
    mu_copy_job *oldest, *newest;
    bool stopping;
    uint32_t thread_count;
    pthread_t threads[];
};

/* The next part of the oldest job; a job leaves the queue with its last part. */
static mu_copy_job *take_part(mu_copier *copier, uint32_t *part) {
    mu_copy_job *job = copier->oldest;
    if (!job) return NULL;
    *part = job->taken++;
    job->inside++;
    if (job->taken == job->parts) {
        copier->oldest = job->next;
        if (!copier->oldest) copier->newest = NULL;
    }
    return job;
}

static void *work(void *argument) {
    mu_copier *copier = argument;
    pthread_mutex_lock(&copier->lock);
    for (;;) {
        uint32_t part;
        mu_copy_job *job = take_part(copier, &part);
        if (!job) {
            if (copier->stopping) break;
            pthread_cond_wait(&copier->posted, &copier->lock);
            continue;
        }
        pthread_mutex_unlock(&copier->lock);
        job->run(job, part);
        pthread_mutex_lock(&copier->lock);
        if (--job->left == 0) {
            pthread_mutex_unlock(&copier->lock);
            job->done(job);
            pthread_mutex_lock(&copier->lock);
        }
        if (--job->inside == 0) pthread_cond_broadcast(&copier->emptied);
    }
    pthread_mutex_unlock(&copier->lock);
    return NULL;
}

static uint32_t default_threads(void) {
    cpu_set_t allowed;
    int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
    uint32_t half = (uint32_t)cores / 2;
    return half < 1 ? 1 : half < MU_COPY_THREADS_MAX ? half : MU_COPY_THREADS_MAX;
}

muster_status mu_copier_create(uint32_t threads, mu_copier **out, muster_error *error) {
    if (!threads) threads = default_threads();
    size_t bytes = sizeof(mu_copier) + threads * sizeof(pthread_t);
    mu_copier *copier = mu_alloc_zeroed(1, bytes);
    if (!copier) return mu_fail_host_memory(error, "the copy threads", bytes);
    pthread_mutex_init(&copier->lock, NULL);
    pthread_cond_init(&copier->posted, NULL);
    pthread_cond_init(&copier->emptied, NULL);
    while (copier->thread_count < threads) {
        int code = pthread_create(&copier->threads[copier->thread_count], NULL, work, copier);
        if (code) {
            muster_status status = mu_fail(error, MUSTER_OUT_OF_HOST_MEMORY,
                                           "no thread for copying host memory (%u of %u): %s; raise the "
                                           "thread limit",
                                           copier->thread_count + 1, threads, strerror(code));
            mu_copier_destroy(copier);
            return status;
        }
        char name[16];
        snprintf(name, sizeof name, "muster-copy-%u", copier->thread_count);
        pthread_setname_np(copier->threads[copier->thread_count], name);
        copier->thread_count++;
    }
    *out = copier;
    return MUSTER_OK;
}

void mu_copier_destroy(mu_copier *copier) {
    if (!copier) return;
    pthread_mutex_lock(&copier->lock);
    copier->stopping = true;
    pthread_cond_broadcast(&copier->posted);
    pthread_mutex_unlock(&copier->lock);
    for (uint32_t i = 0; i < copier->thread_count; i++) pthread_join(copier->threads[i], NULL);
    pthread_cond_destroy(&copier->emptied);
    pthread_cond_destroy(&copier->posted);
    pthread_mutex_destroy(&copier->lock);
    mu_free(copier);
}

uint32_t mu_copier_thread_count(const mu_copier *copier) { return copier->thread_count; }

void mu_copier_post(mu_copier *copier, mu_copy_job *job) {
    pthread_mutex_lock(&copier->lock);
    job->next = NULL;
    job->taken = 0;
    job->left = job->parts;
    if (copier->newest)
        copier->newest->next = job;
    else
        copier->oldest = job;
    copier->newest = job;
    if (job->parts > 1)
        pthread_cond_broadcast(&copier->posted);
    else
        pthread_cond_signal(&copier->posted);
    pthread_mutex_unlock(&copier->lock);
}

void mu_copier_leave(mu_copier *copier, mu_copy_job *job) {
    pthread_mutex_lock(&copier->lock);
    while (job->inside || job->left) pthread_cond_wait(&copier->emptied, &copier->lock);
    pthread_mutex_unlock(&copier->lock);
}
