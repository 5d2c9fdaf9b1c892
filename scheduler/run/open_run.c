#include "scheduler/run/open_run.h"

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/runtime/runtime.h"

struct mu_open_run {
    /* One add at a time, so that jobs are numbered in the order in which their graphs take effect. Taken before the run's lock;
     * nothing that ends a part takes it. */
    pthread_mutex_t adding;
    /* The rest is under the run's lock. */
    muster_run **parts; /* a reference on each is held; by first_job */
    size_t count, capacity;
    muster_job jobs;
    size_t unended;
    bool closed, over; /* over: the end has been announced, or is about to be */
};

/* ---------------------------------------------------------------------------------------------------- open and close -- */

muster_status muster_run_open(muster_runtime *runtime, muster_run **out, muster_error *error) {
    muster_status status;
    if ((status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error)) ||
        (status = mu_runtime_check(runtime, error)))
        return status;
    if (!out) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "run is NULL; pass where to store the handle");
    mu_open_run *open = mu_alloc_zeroed(1, sizeof *open);
    muster_run *run = open ? mu_run_alloc(0) : NULL;
    if (!run) {
        mu_free(open);
        return mu_fail_host_memory(error, "an open run", sizeof *open + sizeof *run);
    }
    pthread_mutex_init(&open->adding, NULL);
    run->open = open;
    mu_handle_init(&run->handle, MU_TAG_RUN, runtime);
    *out = run;
    return MUSTER_OK;
}

void mu_open_run_free(mu_open_run *open) {
    if (!open) return;
    for (size_t i = 0; i < open->count; i++) mu_run_release(open->parts[i]);
    mu_free(open->parts);
    pthread_mutex_destroy(&open->adding);
    mu_free(open);
}

/* With the run's lock held: whether it has just ended, which one caller is told. */
static bool ends_now(mu_open_run *open) {
    if (!open->closed || open->unended || open->over) return false;
    return open->over = true;
}

void mu_open_run_close(muster_run *run) {
    pthread_mutex_lock(&run->lock);
    run->open->closed = true;
    bool ends = ends_now(run->open);
    pthread_mutex_unlock(&run->lock);
    if (ends) mu_run_announce(run);
}

static muster_status check_open(const muster_run *run, muster_error *error) {
    muster_status status = mu_handle_check(run, MU_TAG_RUN, NULL, "run", error);
    if (!status && !run->open)
        status = mu_fail(error, MUSTER_INVALID_STATE, "the run was submitted; use one that muster_run_open made");
    return status;
}

muster_status muster_run_close(muster_run *run, muster_error *error) {
    muster_status status = check_open(run, error);
    if (!status) mu_open_run_close(run);
    return status;
}

/* The runs that are not closed, in no order. Who holds no reference takes one before it looks at a run outside the lock. */
bool mu_open_runs_close_one(muster_runtime *runtime) {
    muster_run *found = NULL;
    pthread_mutex_lock(&runtime->handle_lock);
    for (mu_handle *handle = runtime->handles; handle && !found; handle = handle->next) {
        muster_run *run = (muster_run *)handle;
        /* What is closed has ended: nothing is under way. */
        if (handle->tag == MU_TAG_RUN && run->open && !atomic_load_explicit(&run->done, memory_order_acquire) &&
            mu_handle_try_retain(handle))
            found = run;
    }
    pthread_mutex_unlock(&runtime->handle_lock);
    if (!found) return false;
    mu_open_run_close(found);
    mu_run_release(found);
    return true;
}

/* -------------------------------------------------------------------------------------------------------------- add -- */

/* Takes numbers for the part's jobs and room for the part, and has the part hold the run. */
static muster_status reserve(muster_run *run, muster_run *part, muster_error *error) {
    mu_open_run *open = run->open;
    size_t jobs = part->graph->job_count;
    muster_status status = mu_run_stopped(run);
    if (status)
        return mu_fail(error, status, "%s; nothing was added",
                       status == MUSTER_CANCELLED ? "the run was cancelled" : "the deadline of the run has passed");
    if (open->closed)
        return mu_fail(error, MUSTER_INVALID_STATE, "the run is closed; open another for what comes later");
    if (jobs > MUSTER_NO_JOB - open->jobs)
        return mu_fail(error, MUSTER_LIMIT_REACHED,
                       "%zu jobs more than the %u of the run cannot be numbered; open another", jobs, open->jobs);
    if (!mu_grow(&open->parts, &open->capacity, open->count + 1, sizeof(muster_run *)))
        return mu_fail_host_memory(error, "the graphs of an open run", (open->count + 1) * sizeof(muster_run *));
    part->first_job = open->jobs;
    part->parent = run;
    mu_handle_retain(&run->handle);
    open->unended++;
    return MUSTER_OK;
}

/* The reservation is not needed: the part never was under way. */
static void take_back(muster_run *run) {
    pthread_mutex_lock(&run->lock);
    run->open->unended--;
    bool ends = ends_now(run->open); /* it was closed meanwhile */
    pthread_mutex_unlock(&run->lock);
    if (ends) mu_run_announce(run);
    mu_run_release(run);
}

/* With `adding` held. The part belongs to the run or is gone. */
static muster_status add_part(muster_run *run, muster_run *part, muster_error *error) {
    mu_open_run *open = run->open;
    muster_job jobs = (muster_job)part->graph->job_count;
    pthread_mutex_lock(&run->lock);
    muster_status status = reserve(run, part, error);
    pthread_mutex_unlock(&run->lock);
    if (status) {
        mu_run_discard(part);
        return status;
    }
    /* Not with the run's lock held, which the part takes at its end: an empty one ends here. */
    status = mu_run_enter(part, error);
    if (status) {
        take_back(run);
        return status;
    }
    pthread_mutex_lock(&run->lock);
    open->parts[open->count++] = part;
    open->jobs += jobs;
    status = mu_run_stopped(run);
    pthread_mutex_unlock(&run->lock);
    /* Stopped between reserving and here: the part was not among those that were told. */
    if (status) mu_run_stop(part, status);
    return MUSTER_OK;
}

muster_status muster_run_add(muster_run *run, muster_graph *graph, muster_job *first, muster_error *error) {
    muster_status status = check_open(run, error);
    if (status) return status;
    muster_run *part;
    status = mu_run_make(run->handle.runtime, graph, &part, error);
    if (status) return status;
    part->handle.released = true; /* the run's, not the application's */
    pthread_mutex_lock(&run->open->adding);
    muster_job number = run->open->jobs; /* which only adds change */
    status = add_part(run, part, error);
    pthread_mutex_unlock(&run->open->adding);
    if (!status && first) *first = number;
    return status;
}

/* --------------------------------------------------------------------------------------------------------- the whole -- */

void mu_open_run_part_ended(muster_run *part) {
    muster_run *run = part->parent;
    pthread_mutex_lock(&run->lock);
    /* The part has ended, so its failure is final. */
    if (part->failure.status && (!run->failure.status || part->failure.job < run->failure.job))
        run->failure = part->failure;
    run->open->unended--;
    bool ends = ends_now(run->open);
    pthread_mutex_unlock(&run->lock);
    if (ends) mu_run_announce(run);
    mu_run_release(run);
}

void mu_open_run_stop(muster_run *run, muster_status why) {
    pthread_mutex_lock(&run->lock);
    for (size_t i = 0; i < run->open->count; i++) mu_run_stop(run->open->parts[i], why);
    pthread_mutex_unlock(&run->lock);
}

const muster_run *mu_open_run_part(const muster_run *run, muster_job job) {
    const mu_open_run *open = run->open;
    pthread_mutex_t *lock = (pthread_mutex_t *)&run->lock;
    pthread_mutex_lock(lock);
    size_t low = 0,
           high = open->count; /* the last part that does not begin behind the job; empty ones begin with the next */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (open->parts[middle]->first_job <= job)
            low = middle + 1;
        else
            high = middle;
    }
    const muster_run *part = low && job < open->jobs ? open->parts[low - 1] : NULL;
    pthread_mutex_unlock(lock);
    return part;
}

mu_open_run_counts mu_open_run_count(const muster_run *run) {
    const mu_open_run *open = run->open;
    return (mu_open_run_counts){open->jobs, open->count, open->unended, open->closed};
}
