#include "scheduler/runtime/callout.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "scheduler/actor/epoch.h"
#include "scheduler/runtime/runtime.h"

muster_status mu_callback_failed(const char *what, muster_status status, muster_error *told, muster_error *error) {
    told->message[sizeof told->message - 1] = 0;
    for (char *at = told->message; *at; at++)
        if ((unsigned char)*at < ' ') *at = ' ';
    return mu_fail(error, MUSTER_CALLBACK_FAILED, "the %s callback returned %s%s%.430s", what,
                   muster_status_name(status), told->message[0] ? ": " : " and no message", told->message);
}

/* --------------------------------------------------------------------------------------------------------- watchdog -- */

/* Whether a callback is running, with since when and for which job. */
static bool look(const mu_callout *callout, uint64_t *since_ns, muster_job *job) {
    *since_ns = atomic_load_explicit(&callout->since_ns, memory_order_seq_cst);
    if (!*since_ns) return false;
    *job = atomic_load_explicit(&callout->job, memory_order_acquire);
    return atomic_load_explicit(&callout->since_ns, memory_order_relaxed) == *since_ns;
}

static void set_watch(mu_callout *callout, uint64_t since_ns) {
    if (atomic_exchange_explicit(&callout->armed, true, memory_order_seq_cst)) return;
    uint64_t limit = callout->actor->runtime->config.enqueue_limit_ns, due;
    if (__builtin_add_overflow(since_ns, limit, &due)) due = UINT64_MAX;
    mu_watch_set(callout->actor->runtime, &callout->watch, due);
}

/* By the watch thread. */
static void on_time(mu_watch *watch) {
    mu_callout *callout = (mu_callout *)((char *)watch - offsetof(mu_callout, watch));
    mu_actor *actor = callout->actor;
    uint64_t since_ns, now = mu_now_ns();
    muster_job job;
    atomic_store_explicit(&callout->armed, false, memory_order_seq_cst);
    if (!look(callout, &since_ns, &job)) return;
    if (now - since_ns < actor->runtime->config.enqueue_limit_ns) {
        set_watch(callout, since_ns);
        return;
    }
    if (atomic_exchange_explicit(&callout->reported_ns, since_ns, memory_order_relaxed) == since_ns) return;
    mu_device_counters *counters = mu_device_counters_mutable(actor->device);
    mu_count(counters, &counters->slow_callbacks, 1);
    mu_log_line(
        &actor->runtime->log, MUSTER_LOG_WARNING,
        "device %d: the enqueue callback of job %u has not returned for %.3f s and holds up the device; it may only "
        "enqueue, never wait",
        actor->index, job, (double)(now - since_ns) * 1e-9);
}

void mu_callouts_tell(const muster_runtime *runtime, muster_error *error) {
    if (!error) return;
    uint64_t now = mu_now_ns();
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        uint64_t since_ns;
        muster_job job;
        if (!look(&runtime->actors[d].callout, &since_ns, &job)) continue;
        if (now < since_ns || now - since_ns < runtime->config.enqueue_limit_ns) continue;
        size_t used = strlen(error->message);
        snprintf(error->message + used, sizeof error->message - used,
                 "; the enqueue callback of job %u has not returned for %.3f s and holds up device %u", job,
                 (double)(now - since_ns) * 1e-9, d);
    }
}

void mu_callout_init(mu_callout *callout, mu_actor *actor) {
    memset(callout, 0, sizeof *callout);
    callout->watch.run = on_time;
    callout->actor = actor;
}

void mu_callout_stop(mu_actor *actor) { mu_watch_cancel(actor->runtime, &actor->callout.watch); }

/* ------------------------------------------------------------------------------------------------------------- call -- */

muster_status mu_callout_call(mu_actor *actor, const muster_run *run, const mu_node *node, const mu_address *addresses,
                              muster_error *error) {
    const mu_parameter *parameters = &run->graph->parameters[node->parameter_first];
    const mu_address *scratch = addresses + node->access_count;
    uint64_t arguments[MU_MAX_PARAMETERS];
    for (uint32_t i = 0; i < node->parameter_count; i++)
        arguments[i] = parameters[i].scratch ? *scratch++ : addresses[parameters[i].index];
    muster_enqueue_context context = {
        .struct_size = sizeof context, .device = actor->index, .count = node->parameter_count, .addresses = arguments};
    mu_device_handles(actor->device, &context.context, &context.stream);
    mu_callout *callout = &actor->callout;
    mu_device_counters *counters = mu_device_counters_mutable(actor->device);
    mu_count(counters, &counters->callbacks, 1);
    mu_epoch_add_calls(actor, MU_CALLBACK_CALLS - 1);
    uint64_t now = mu_now_ns();
    atomic_store_explicit(&callout->job, mu_run_job(run, node), memory_order_release);
    atomic_store_explicit(&callout->since_ns, now, memory_order_seq_cst);
    if (!atomic_load_explicit(&callout->armed, memory_order_seq_cst)) set_watch(callout, now);
    muster_error told;
    memset(&told, 0, sizeof told);
    const mu_callback *callback = &run->graph->callbacks[node->as.call.callback];
    muster_status status = callback->enqueue.call(callback->enqueue.user, &context, &told);
    atomic_store_explicit(&callout->since_ns, 0, memory_order_release);
    muster_error left;
    muster_status restored = mu_device_restore(actor->device, &left);
    if (restored == MUSTER_KERNEL_FAULT) return mu_error_copy(error, &left);
    /* A loss, too, is this job's end: it must not be called again elsewhere. */
    if (!status && restored)
        return mu_fail(error, MUSTER_CALLBACK_FAILED, "after the enqueue callback: %.440s", left.message);
    return status ? mu_callback_failed("enqueue", status, &told, error) : MUSTER_OK;
}
