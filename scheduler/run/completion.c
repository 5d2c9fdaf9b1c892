#include "scheduler/run/completion.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "scheduler/runtime/runtime.h"

/* A call of the application's at the end of a run. */
typedef struct completion_call {
    mu_host_call call;
    struct completion_call *next;
    muster_run *run; /* a reference is held */
    void (*fn)(void *user, muster_run *run, muster_status status);
    void *user;
} completion_call;

/* Everything here is under the run's lock. */
struct mu_completion {
    mu_watch deadline; /* set only while the run has not ended */
    muster_run *run;
    int fd;                         /* -1: nobody asked */
    completion_call *first, **last; /* to be posted at the end */
    bool posted;                    /* they were: later ones go out at once */
};

static void deadline_passes(mu_watch *watch) { mu_run_stop(((mu_completion *)watch)->run, MUSTER_DEADLINE_PASSED); }

/* With the run's lock held, as all of it is set with. */
static bool is_done(const muster_run *run) { return atomic_load_explicit(&run->done, memory_order_relaxed); }

static mu_completion *completion_of(muster_run *run, muster_error *error) {
    if (run->completion) return run->completion;
    mu_completion *completion = mu_alloc_zeroed(1, sizeof *completion);
    if (!completion) {
        mu_fail_host_memory(error, "the completion of a run", sizeof *completion);
        return NULL;
    }
    completion->deadline.run = deadline_passes;
    completion->run = run;
    completion->fd = -1;
    completion->last = &completion->first;
    completion->posted = is_done(run);
    return run->completion = completion;
}

void mu_completion_free(mu_completion *completion) {
    if (!completion) return;
    if (completion->fd >= 0) close(completion->fd);
    mu_free(completion);
}

/* ------------------------------------------------------------------------------------------------------- callbacks -- */

static void run_call(mu_host_call *call) {
    completion_call *one = (completion_call *)call;
    muster_run *run = one->run;
    muster_runtime *runtime = run->handle.runtime;
    one->fn(one->user, run, run->failure.status); /* final: the run has ended */
    mu_run_release(run);
    mu_free(one);
    pthread_mutex_lock(&runtime->run_lock);
    if (--runtime->unfinished_callbacks == 0) pthread_cond_broadcast(&runtime->idle);
    pthread_mutex_unlock(&runtime->run_lock); /* last: the runtime may be destroyed once it is idle */
}

/* By the time this returns each is on its way, and holds up the end of the runtime until it has returned. */
static void post_calls(muster_runtime *runtime, completion_call *first) {
    while (first) {
        completion_call *one = first;
        first = one->next;
        pthread_mutex_lock(&runtime->run_lock);
        runtime->unfinished_callbacks++;
        pthread_mutex_unlock(&runtime->run_lock);
        mu_host_post(runtime, &one->call);
    }
}

muster_status muster_run_on_complete(muster_run *run, void (*fn)(void *user, muster_run *run, muster_status status),
                                     void *user, muster_error *error) {
    muster_status status = mu_handle_check(run, MU_TAG_RUN, NULL, "run", error);
    if (status) return status;
    if (!fn) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "fn is NULL; pass the function to call");
    completion_call *one = mu_alloc(sizeof *one);
    if (!one) return mu_fail_host_memory(error, "a callback", sizeof *one);
    *one = (completion_call){.call = {.run = run_call}, .run = run, .fn = fn, .user = user};
    pthread_mutex_lock(&run->lock);
    mu_completion *completion = completion_of(run, error);
    if (!completion) {
        status = MUSTER_OUT_OF_HOST_MEMORY;
    } else {
        mu_handle_retain(&run->handle);
        if (completion->posted) {
            post_calls(run->handle.runtime, one);
        } else {
            *completion->last = one;
            completion->last = &one->next;
        }
    }
    pthread_mutex_unlock(&run->lock);
    if (status) mu_free(one);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ descriptor -- */

static void make_readable(int fd) {
    /* The counter is far from its maximum: it cannot fail but for a signal, which eventfd does not see. */
    ssize_t written = write(fd, &(uint64_t){1}, sizeof(uint64_t));
    (void)written;
}

muster_status muster_run_completion_fd(muster_run *run, int *fd, muster_error *error) {
    muster_status status = mu_handle_check(run, MU_TAG_RUN, NULL, "run", error);
    if (status) return status;
    if (!fd) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "fd is NULL; pass where to store the descriptor");
    pthread_mutex_lock(&run->lock);
    mu_completion *completion = completion_of(run, error);
    if (!completion) {
        status = MUSTER_OUT_OF_HOST_MEMORY;
    } else if (completion->fd < 0) {
        completion->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (completion->fd < 0)
            status = mu_fail(error, MUSTER_OUT_OF_HOST_MEMORY,
                             "no descriptor for a run: %s; raise the limit of open files", strerror(errno));
        else if (is_done(run))
            make_readable(completion->fd);
    }
    if (!status) *fd = completion->fd;
    pthread_mutex_unlock(&run->lock);
    return status;
}

void mu_completion_close(muster_run *run) {
    pthread_mutex_lock(&run->lock);
    int fd = run->completion ? run->completion->fd : -1;
    if (fd >= 0) run->completion->fd = -1;
    pthread_mutex_unlock(&run->lock);
    if (fd >= 0) close(fd);
}

/* -------------------------------------------------------------------------------------------------------- deadline -- */

muster_status muster_run_set_deadline(muster_run *run, uint64_t timeout_ns, muster_error *error) {
    muster_status status = mu_handle_check(run, MU_TAG_RUN, NULL, "run", error);
    if (status) return status;
    uint64_t due_ns = timeout_ns ? mu_deadline_ns(timeout_ns) : UINT64_MAX;
    pthread_mutex_lock(&run->lock);
    bool done = is_done(run);
    if (!done && (run->completion || due_ns != UINT64_MAX)) {
        mu_completion *completion = completion_of(run, error);
        if (completion)
            mu_watch_set(run->handle.runtime, &completion->deadline, due_ns);
        else
            status = MUSTER_OUT_OF_HOST_MEMORY;
    }
    pthread_mutex_unlock(&run->lock);
    if (!done && timeout_ns == 0) mu_run_stop(run, MUSTER_DEADLINE_PASSED); /* without the way over the watch thread */
    return status;
}

/* -------------------------------------------------------------------------------------------------------------- end -- */

void mu_completion_signal(muster_run *run) {
    if (run->completion->fd >= 0) make_readable(run->completion->fd);
}

void mu_completion_end(muster_run *run) {
    mu_completion *completion = run->completion;
    muster_runtime *runtime = run->handle.runtime;
    mu_watch_cancel(runtime, &completion->deadline);
    pthread_mutex_lock(&run->lock);
    completion->posted = true;
    post_calls(runtime, completion->first); /* under the lock: who comes later is behind them */
    pthread_mutex_unlock(&run->lock);
}
