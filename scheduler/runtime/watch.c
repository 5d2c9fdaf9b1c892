#include "scheduler/runtime/watch.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "scheduler/runtime/runtime.h"
#include "scheduler/runtime/wait.h"

/* ------------------------------------------------------------------------------------------------------------ heap -- */

/* A pairing heap: setting is constant, taking out amortised logarithmic, and nothing is allocated. */

static mu_watch *meld(mu_watch *a, mu_watch *b) {
    if (!a || !b) return a ? a : b;
    if (b->due_ns < a->due_ns) {
        mu_watch *earlier = b;
        b = a;
        a = earlier;
    }
    b->next = a->child;
    if (b->next) b->next->link = &b->next;
    b->link = &a->child;
    a->child = b;
    return a;
}

/* Siblings in pairs from the left, the pairs from the right; equal times keep no order. */
static mu_watch *meld_siblings(mu_watch *first) {
    mu_watch *pairs = NULL, *all = NULL;
    while (first) {
        mu_watch *second = first->next, *rest = second ? second->next : NULL;
        first->next = NULL;
        if (second) second->next = NULL;
        mu_watch *pair = meld(first, second);
        pair->next = pairs;
        pairs = pair;
        first = rest;
    }
    while (pairs) {
        mu_watch *rest = pairs->next;
        pairs->next = NULL;
        all = meld(all, pairs);
        pairs = rest;
    }
    return all;
}

static void root_is(mu_watches *watches, mu_watch *root) {
    watches->earliest = root;
    if (root) root->link = &watches->earliest;
}

static void heap_add(mu_watches *watches, mu_watch *watch) {
    watch->child = watch->next = NULL;
    watch->set = true;
    root_is(watches, meld(watches->earliest, watch));
}

static void heap_remove(mu_watches *watches, mu_watch *watch) {
    bool was_root = watches->earliest == watch;
    mu_watch *below = meld_siblings(watch->child);
    watch->set = false;
    if (was_root) {
        root_is(watches, below);
        return;
    }
    *watch->link = watch->next;
    if (watch->next) watch->next->link = watch->link;
    root_is(watches, meld(watches->earliest, below));
}

/* ---------------------------------------------------------------------------------------------------------- thread -- */

static void *watch_loop(void *argument) {
    mu_watches *watches = argument;
    pthread_setname_np(pthread_self(), "muster-watch");
    pthread_mutex_lock(&watches->lock);
    while (!watches->stopping) {
        mu_watch *watch = watches->earliest;
        uint64_t due_ns = watch ? watch->due_ns : UINT64_MAX;
        if (!watch || mu_now_ns() < due_ns) {
            mu_cond_wait_until(&watches->changed, &watches->lock, due_ns);
            continue;
        }
        heap_remove(watches, watch);
        watches->running = watch;
        pthread_mutex_unlock(&watches->lock);
        watch->run(watch); /* may have freed it */
        pthread_mutex_lock(&watches->lock);
        watches->running = NULL;
        if (watches->waiting) pthread_cond_broadcast(&watches->returned);
    }
    pthread_mutex_unlock(&watches->lock);
    return NULL;
}

muster_status mu_watches_start(muster_runtime *runtime, muster_error *error) {
    mu_watches *watches = &runtime->watches;
    pthread_mutex_init(&watches->lock, NULL);
    mu_cond_init(&watches->changed);
    mu_cond_init(&watches->returned);
    int code = pthread_create(&watches->thread, NULL, watch_loop, watches);
    if (!code) {
        watches->started = true;
        return MUSTER_OK;
    }
    pthread_cond_destroy(&watches->returned);
    pthread_cond_destroy(&watches->changed);
    pthread_mutex_destroy(&watches->lock);
    return mu_fail(error, MUSTER_OUT_OF_HOST_MEMORY, "no thread for deadlines: %s; raise the thread limit",
                   strerror(code));
}

void mu_watches_stop(muster_runtime *runtime) {
    mu_watches *watches = &runtime->watches;
    if (!watches->started) return;
    pthread_mutex_lock(&watches->lock);
    watches->stopping = true;
    pthread_cond_signal(&watches->changed);
    pthread_mutex_unlock(&watches->lock);
    pthread_join(watches->thread, NULL);
    pthread_cond_destroy(&watches->returned);
    pthread_cond_destroy(&watches->changed);
    pthread_mutex_destroy(&watches->lock);
    watches->started = false;
}

/* ------------------------------------------------------------------------------------------------ setting, cancelling -- */

void mu_watch_set(muster_runtime *runtime, mu_watch *watch, uint64_t due_ns) {
    mu_watches *watches = &runtime->watches;
    pthread_mutex_lock(&watches->lock);
    if (watch->set) heap_remove(watches, watch);
    watch->due_ns = due_ns;
    if (due_ns != UINT64_MAX) heap_add(watches, watch);
    /* A later one is found when the thread wakes for what is earlier. */
    if (watches->earliest == watch) pthread_cond_signal(&watches->changed);
    pthread_mutex_unlock(&watches->lock);
}

bool mu_watch_cancel(muster_runtime *runtime, mu_watch *watch) {
    mu_watches *watches = &runtime->watches;
    pthread_mutex_lock(&watches->lock);
    bool was_set = watch->set;
    if (was_set) heap_remove(watches, watch);
    if (watches->running == watch && !pthread_equal(pthread_self(), watches->thread)) {
        watches->waiting++;
        while (watches->running == watch) pthread_cond_wait(&watches->returned, &watches->lock);
        watches->waiting--;
    }
    pthread_mutex_unlock(&watches->lock);
    return was_set;
}
