#include "scheduler/runtime/host.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/runtime/runtime.h"
#include "scheduler/runtime/wait.h"

struct mu_host {
    mu_mailbox mailbox;
    pthread_t thread;
    bool stopping; /* the thread's own */
};

typedef struct stop_call {
    mu_host_call call;
    mu_host *host;
} stop_call;

static void stop(mu_host_call *call) { ((stop_call *)call)->host->stopping = true; }

static void *serve(void *argument) {
    mu_host *host = argument;
    pthread_setname_np(pthread_self(), "muster-host");
    while (!host->stopping || mu_mailbox_has_mail(&host->mailbox)) {
        mu_message *message = mu_mailbox_drain(&host->mailbox);
        if (!message) mu_mailbox_park(&host->mailbox, MUSTER_FOREVER);
        while (message) {
            mu_host_call *call = (mu_host_call *)message;
            message = mu_message_next(message); /* before the call, which may free or post it */
            call->run(call);
        }
    }
    return NULL;
}

muster_status mu_host_create(mu_host **out, muster_error *error) {
    mu_host *host = mu_alloc_aligned(_Alignof(mu_host), sizeof *host);
    if (!host) return mu_fail_host_memory(error, "the host thread", sizeof *host);
    memset(host, 0, sizeof *host);
    mu_mailbox_init(&host->mailbox);
    int code = pthread_create(&host->thread, NULL, serve, host);
    if (code) {
        mu_free_aligned(host);
        return mu_fail(error, MUSTER_OUT_OF_HOST_MEMORY, "no thread for host callbacks: %s; raise the thread limit",
                       strerror(code));
    }
    *out = host;
    return MUSTER_OK;
}

void mu_host_destroy(mu_host *host) {
    if (!host) return;
    stop_call last = {.call = {.run = stop}, .host = host};
    mu_mailbox_post(&host->mailbox, &last.call.message);
    pthread_join(host->thread, NULL);
    mu_free_aligned(host);
}

void mu_host_post(muster_runtime *runtime, mu_host_call *call) {
    mu_mailbox_post(&runtime->host->mailbox, &call->message);
}

/* Shared by the waiter and the call, whoever is last frees it. */
typedef struct pass_call {
    mu_host_call call;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool passed, left; /* by the host thread; by the waiter */
} pass_call;

static void free_pass(pass_call *pass) {
    pthread_cond_destroy(&pass->changed);
    pthread_mutex_destroy(&pass->lock);
    mu_free(pass);
}

static void pass_by(mu_host_call *call) {
    pass_call *pass = (pass_call *)call;
    pthread_mutex_lock(&pass->lock);
    pass->passed = true;
    bool last = pass->left;
    pthread_cond_signal(&pass->changed);
    pthread_mutex_unlock(&pass->lock);
    if (last) free_pass(pass);
}

void mu_host_pass(muster_runtime *runtime, uint64_t timeout_ns) {
    pass_call *pass = mu_host_is_current(runtime) ? NULL : mu_alloc_zeroed(1, sizeof *pass);
    if (!pass) return;
    uint64_t deadline_ns = mu_deadline_ns(timeout_ns);
    pass->call.run = pass_by;
    pthread_mutex_init(&pass->lock, NULL);
    mu_cond_init(&pass->changed);
    mu_host_post(runtime, &pass->call);
    pthread_mutex_lock(&pass->lock);
    while (!pass->passed && mu_cond_wait_until(&pass->changed, &pass->lock, deadline_ns)) continue;
    bool last = pass->passed;
    pass->left = true;
    pthread_mutex_unlock(&pass->lock);
    if (last) free_pass(pass);
}

bool mu_host_is_current(const muster_runtime *runtime) { return pthread_equal(pthread_self(), runtime->host->thread); }
