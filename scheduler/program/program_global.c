/* Module-scope variables of a program, set on every device between runs. */
#include <inttypes.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "scheduler/actor/loss.h"
#include "scheduler/program/program.h"
#include "scheduler/run/run.h"
#include "scheduler/runtime/runtime.h"
#include "scheduler/runtime/wait.h"

/* ------------------------------------------------------------------------------------------ waiting for the runs -- */

static bool uses(const muster_run *run, const muster_program *program) {
    const muster_graph *graph = run->graph;
    for (size_t i = 0; graph && i < graph->kernel_count; i++)
        if (graph->kernels[i]->program == program) return true;
    return false;
}

/* Runs that use the program and are not complete. A run in the list of handles has a graph that does not change any
 * more, or is an open one, whose parts are in the list; and neither is freed before the run has left the list. */
static uint32_t unfinished_runs(muster_runtime *runtime, const muster_program *program) {
    uint32_t count = 0;
    pthread_mutex_lock(&runtime->handle_lock);
    for (const mu_handle *handle = runtime->handles; handle; handle = handle->next) {
        if (handle->tag != MU_TAG_RUN) continue;
        const muster_run *run = (const muster_run *)handle;
        /* Acquire pairs with the release at its end: what its kernels read, they have read. */
        if (!atomic_load_explicit(&run->done, memory_order_acquire) && uses(run, program)) count++;
    }
    pthread_mutex_unlock(&runtime->handle_lock);
    return count;
}

/* Looks as often as a worker looks at its device: variables are set rarely, and runs announce their end to nobody but
 * their own waiters. */
static muster_status wait_for_runs(muster_runtime *runtime, const muster_program *program, uint64_t timeout_ns,
                                   muster_error *error) {
    uint64_t deadline = mu_deadline_ns(timeout_ns);
    uint32_t left;
    while ((left = unfinished_runs(runtime, program))) {
        if (mu_now_ns() >= deadline)
            return mu_fail(error, MUSTER_TIMEOUT,
                           "%u runs that use program %.64s have not ended after %.3f s; nothing was set: wait for them "
                           "first, or give it more time",
                           left, program->name, (double)timeout_ns * 1e-9);
        nanosleep(&(struct timespec){.tv_nsec = MU_POLL_INTERVAL_MIN_NS}, NULL);
    }
    return MUSTER_OK;
}

/* --------------------------------------------------------------------------------------------------- on a device -- */

typedef struct setting setting;

/* The part of one device: finds the variable, copies behind everything on its dispatch lane, and reports when the copy
 * has completed, for the caller's bytes may be pinned memory that the device reads by itself. */
typedef struct device_setting {
    mu_call call;
    setting *all;
    mu_event event; /* NULL until the copy is enqueued */
    muster_status status;
    muster_error error;
} device_setting;

struct setting {
    muster_program *program;
    const char *name;
    uint64_t offset, bytes;
    const void *data; /* NULL: only look whether the range is there */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t left;
};

static void finish(setting *all) {
    pthread_mutex_lock(&all->lock);
    if (--all->left == 0) pthread_cond_signal(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

static muster_status find_range(mu_actor *actor, const setting *all, mu_address *address, muster_error *error) {
    uint64_t size;
    muster_status status = mu_program_load(actor, all->program, error);
    if (status) return status;
    status = mu_module_cache_global(all->program->devices[actor->index].entry, all->name, address, &size, error);
    if (status) return status;
    if (all->offset > size || all->bytes > size - all->offset)
        return mu_fail(error, MUSTER_OUT_OF_RANGE,
                       "bytes %" PRIu64 " to %" PRIu64 " of variable %.64s of program %.64s, which has %" PRIu64,
                       all->offset, all->offset + all->bytes, all->name, all->program->name, size);
    *address += all->offset;
    return MUSTER_OK;
}

/* When it fails with an event, the copy is on the lane all the same, and nothing will say when it has ended. */
static muster_status start_copy(mu_actor *actor, const setting *all, mu_event *event, muster_error *error) {
    mu_address address;
    muster_status status = find_range(actor, all, &address, error);
    if (status || !all->data) return status;
    mu_event made;
    if ((status = mu_event_create(actor->device, &made, error))) return status;
    status = mu_copy_to_device(actor->device, MU_LANE_DISPATCH, address, all->data, all->bytes, error);
    if (status) {
        mu_event_destroy(actor->device, made);
        return status;
    }
    *event = made;
    return mu_event_record(actor->device, MU_LANE_DISPATCH, made, error);
}

static void set_on_device(mu_actor *actor, mu_call *call) {
    device_setting *one = (device_setting *)call;
    setting *all = one->all;
    bool done = false;
    if (actor->lost)
        one->status = mu_error_copy(&one->error, &actor->loss);
    else if (!one->event)
        one->status = start_copy(actor, all, &one->event, &one->error);
    if (!one->status && one->event) {
        one->status = mu_event_poll(actor->device, one->event, &done, &one->error);
        if (!one->status && !done) {
            mu_actor_defer(actor, call);
            return;
        }
    }
    if (one->status) {
        one->error.device = actor->index;
        /* With a copy under way whose end cannot be seen: losing the device waits for it, and the caller's bytes are free then. */
        if (one->event || muster_status_recovery(one->status) == MUSTER_RECOVERY_DEVICE_LOST) {
            mu_actor_lose(actor, &one->error);
            one->status = mu_error_copy(&one->error, &actor->loss);
        }
    }
    if (one->event && !actor->lost) mu_event_destroy(actor->device, one->event);
    finish(all);
}

/* Does `all` on every device that is not lost and waits for them; the first failure (by device) is returned. */
static muster_status on_every_device(muster_runtime *runtime, setting *all, muster_error *error) {
    device_setting parts[MU_MAX_DEVICES];
    all->left = runtime->device_count;
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        parts[d] = (device_setting){.call = {.run = set_on_device}, .all = all};
        mu_actor_post_call(&runtime->actors[d], &parts[d].call);
    }
    pthread_mutex_lock(&all->lock);
    while (all->left) pthread_cond_wait(&all->changed, &all->lock);
    pthread_mutex_unlock(&all->lock);
    for (uint32_t d = 0; d < runtime->device_count; d++)
        if (parts[d].status && !(parts[d].status == MUSTER_DEVICE_LOST && mu_loss_has(runtime, (int)d)))
            return mu_error_copy(error, &parts[d].error);
    return mu_runtime_check_devices(runtime, error);
}

muster_status muster_program_set_global(muster_program *program, const char *name, uint64_t offset, const void *data,
                                        uint64_t bytes, uint64_t timeout_ns, muster_error *error) {
    muster_status status = mu_handle_check(program, MU_TAG_PROGRAM, NULL, "program", error);
    if (status) return status;
    muster_runtime *runtime = program->handle.runtime;
    if ((status = mu_runtime_check_devices(runtime, error))) return status;
    if (!name || !data) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%s is NULL", name ? "data" : "name");
    if (offset > UINT64_MAX - bytes)
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "offset %" PRIu64 " + %" PRIu64 " bytes overflow", offset, bytes);
    setting all = {.program = program, .name = name, .offset = offset, .bytes = bytes};
    pthread_mutex_init(&all.lock, NULL);
    mu_cond_init(&all.changed);
    status =
        on_every_device(runtime, &all, error); /* so that a call which must fail neither waits nor changes anything */
    if (!status && bytes) status = wait_for_runs(runtime, program, timeout_ns, error);
    if (!status && bytes) {
        all.data = data;
        pthread_mutex_lock(&program->global_lock);
        status = on_every_device(runtime, &all, error);
        pthread_mutex_unlock(&program->global_lock);
    }
    pthread_cond_destroy(&all.changed);
    pthread_mutex_destroy(&all.lock);
    return status;
}
