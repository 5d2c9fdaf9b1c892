#include "scheduler/runtime/runtime.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "scheduler/graph/shard.h"
#include "scheduler/memory/acquire.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/placement/history.h"
#include "scheduler/program/program.h"
#include "scheduler/run/open_run.h"
#include "scheduler/runtime/wait.h"

/* ----------------------------------------------------------------------------------------------------------- create -- */

/* The ordinals to use, each once, checked against what the driver has. */
static muster_status choose_devices(muster_runtime *runtime, int *ordinals, uint32_t *count, muster_error *error) {
    mu_config *config = &runtime->config;
    int present;
    muster_status status = mu_driver_device_count(runtime->driver, &present, error);
    if (status) return status;
    if (present <= 0)
        return mu_fail(error, MUSTER_NO_DEVICE,
                       "the %s driver reports no device; check CUDA_VISIBLE_DEVICES, or use the driver \"sim\"",
                       config->driver);
    if (config->ordinal_count == 0) {
        uint32_t wanted = config->device_count ? config->device_count : (uint32_t)present;
        if (wanted > (uint32_t)present)
            return mu_fail(error, MUSTER_OUT_OF_RANGE, "%u devices were asked for; the %s driver has %d", wanted,
                           config->driver, present);
        *count = wanted < MU_MAX_DEVICES ? wanted : MU_MAX_DEVICES;
        for (uint32_t i = 0; i < *count; i++) ordinals[i] = (int)i;
        return MUSTER_OK;
    }
    *count = config->ordinal_count;
    for (uint32_t i = 0; i < *count; i++) {
        ordinals[i] = config->ordinals[i];
        if (ordinals[i] < 0 || ordinals[i] >= present)
            return mu_fail(error, MUSTER_OUT_OF_RANGE, "device ordinal %d: the %s driver has %d", ordinals[i],
                           config->driver, present);
    }
    return MUSTER_OK;
}

/* Fails if a physical device was named twice under different ordinals, which a driver can do. */
static muster_status check_distinct(mu_device *const *devices, uint32_t count, muster_error *error) {
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (!mu_device_shares_with(devices[i], devices[j]) &&
                memcmp(mu_device_capability(devices[i])->uuid, mu_device_capability(devices[j])->uuid, 16) == 0)
                return mu_fail(error, MUSTER_INVALID_CONFIG,
                               "ordinals %d and %d are the same device; name each device once, and set "
                               "actors_per_device for several actors on each",
                               mu_device_capability(devices[j])->ordinal, mu_device_capability(devices[i])->ordinal);
    return MUSTER_OK;
}

static muster_status connect_peers(muster_runtime *runtime, mu_device *const *devices, uint32_t count,
                                   muster_error *error) {
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < count; j++) {
            if (i == j) continue;
            bool direct;
            muster_status status = mu_device_connect_peer(devices[i], devices[j], &direct, error);
            if (status) return status;
            if (direct) runtime->reach[i] |= MU_LOCATION_DEVICE(j);
            if (!direct)
                mu_log_line(&runtime->log, MUSTER_LOG_INFO, "device %u copies from device %u through the host", i, j);
        }
    return MUSTER_OK;
}

static muster_status open_devices(muster_runtime *runtime, mu_device **devices, uint32_t *opened, muster_error *error) {
    int ordinals[MU_MAX_DEVICES];
    uint32_t count;
    muster_status status = choose_devices(runtime, ordinals, &count, error);
    if (status) return status;
    uint32_t shares = runtime->config.actors_per_device;
    if (count * shares > MU_MAX_DEVICES)
        return mu_fail(error, MUSTER_LIMIT_REACHED,
                       "%u devices with %u actors each are %u; a runtime has at most %d: lower actors_per_device or "
                       "device_count",
                       count, shares, count * shares, MU_MAX_DEVICES);
    count *= shares;
    for (uint32_t i = 0; !status && i < count; i++) {
        mu_device_options options = {
            .ordinal = ordinals[i / shares],
            .index = (int)i,
            .own_context = shares > 1 || runtime->config.flags & MUSTER_RUNTIME_OWN_CONTEXT,
            .share_count = shares,
            .share_of = i % shares ? devices[i - i % shares] : NULL,
            .budget_bytes = runtime->config.budget_bytes,
            .budget_permille = runtime->config.budget_permille,
        };
        status = mu_device_open(runtime->driver, &options, &devices[i], error);
        if (status && error) error->device = (int)i;
        if (!status) *opened = i + 1;
    }
    if (!status) status = check_distinct(devices, count, error);
    if (!status) status = connect_peers(runtime, devices, count, error);
    return status;
}

/* A device belongs to its actor from then on. */
static muster_status start_each(muster_runtime *runtime, mu_device **devices, uint32_t count, muster_error *error) {
    for (uint32_t i = 0; i < count; i++) {
        muster_status status = mu_actor_start(&runtime->actors[i], runtime, (int)i, devices[i], error);
        if (status) return status;
        devices[i] = NULL;
        runtime->started_actors = i + 1;
    }
    return MUSTER_OK;
}

/* Starts the actors. None works before all are there, for a worker that loses its device looks at the others. */
static muster_status start_actors(muster_runtime *runtime, mu_device **devices, uint32_t count, muster_error *error) {
    runtime->actors = mu_alloc_aligned(MU_CACHE_LINE, count * sizeof *runtime->actors);
    if (!runtime->actors) return mu_fail_host_memory(error, "the device actors", count * sizeof *runtime->actors);
    memset(runtime->actors, 0, count * sizeof *runtime->actors);
    muster_status status = start_each(runtime, devices, count, error);
    pthread_mutex_lock(&runtime->fault_lock);
    runtime->working = true;
    pthread_cond_broadcast(&runtime->begin);
    pthread_mutex_unlock(&runtime->fault_lock);
    return status;
}

void mu_runtime_await_start(muster_runtime *runtime) {
    pthread_mutex_lock(&runtime->fault_lock);
    while (!runtime->working) pthread_cond_wait(&runtime->begin, &runtime->fault_lock);
    pthread_mutex_unlock(&runtime->fault_lock);
}

/* No run is left: the host thread has nothing to tell the workers but what its last calls still do. */
static void free_runtime(muster_runtime *runtime) {
    for (uint32_t d = 0; d < runtime->started_actors; d++) mu_callout_stop(&runtime->actors[d]);
    mu_watches_stop(runtime);
    mu_host_destroy(runtime->host);
    mu_pinned_give_back(runtime);
    for (uint32_t d = 0; d < runtime->started_actors; d++) mu_actor_stop(&runtime->actors[d]);
    mu_copier_destroy(
        runtime->copier); /* its threads wake workers: a last time after these have seen what for, and gone */
    mu_free_aligned(runtime->actors);
    mu_compile_caches_close(&runtime->caches);
    mu_driver_release(runtime->driver);
    for (size_t i = 0; i < sizeof runtime->runs.chunks / sizeof runtime->runs.chunks[0]; i++)
        mu_free(runtime->runs.chunks[i]);
    mu_free(runtime->runs.free_slots);
    mu_order_destroy(&runtime->order);
    mu_pinned_destroy(&runtime->pinned);
    pthread_mutex_destroy(&runtime->handle_lock);
    pthread_mutex_destroy(&runtime->run_lock);
    pthread_cond_destroy(&runtime->idle);
    pthread_cond_destroy(&runtime->begin);
    pthread_mutex_destroy(&runtime->fault_lock);
    mu_losses_destroy(&runtime->losses);
    pthread_mutex_destroy(&runtime->reduce_lock);
    mu_config_free(&runtime->config);
    runtime->handle.tag = MU_TAG_DEAD;
    mu_free(runtime);
}

static muster_status open_caches(muster_runtime *runtime, muster_error *error) {
    const mu_config *config = &runtime->config;
    mu_compile_options options = {
        .disk = {.directory = config->cache_dir, .max_bytes = config->cache_bytes},
        .dump = config->dump_ptx,
        .dump_directory = config->dump_dir,
        .log = &runtime->log,
    };
    return mu_compile_caches_open(&options, &runtime->caches, error);
}

static muster_runtime *new_runtime(void) {
    muster_runtime *runtime = mu_alloc_zeroed(1, sizeof *runtime);
    if (!runtime) return NULL;
    runtime->handle.tag = MU_TAG_RUNTIME;
    runtime->handle.runtime = runtime;
    mu_pinned_init(&runtime->pinned);
    pthread_mutex_init(&runtime->handle_lock, NULL);
    pthread_mutex_init(&runtime->run_lock, NULL);
    mu_cond_init(&runtime->idle);
    pthread_mutex_init(&runtime->fault_lock, NULL);
    pthread_cond_init(&runtime->begin, NULL);
    mu_losses_init(&runtime->losses);
    pthread_mutex_init(&runtime->reduce_lock, NULL);
    return runtime;
}

static void note_budgets(muster_runtime *runtime, mu_device *const *devices) {
    runtime->whole_copy_bytes = MU_WHOLE_COPY_BYTES;
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        uint64_t budget = mu_ledger_read(mu_device_ledger(devices[d])).budget;
        runtime->budgets_differ |= budget != mu_ledger_read(mu_device_ledger(devices[0])).budget;
        if (budget / MU_WHOLE_COPY_PART < runtime->whole_copy_bytes)
            runtime->whole_copy_bytes = budget / MU_WHOLE_COPY_PART;
    }
}

muster_status muster_runtime_create(const muster_config *user, muster_runtime **out, muster_error *error) {
    if (!out) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "runtime is NULL; pass where to store the handle");
    mu_device *devices[MU_MAX_DEVICES] = {NULL};
    uint32_t opened = 0;
    mu_alloc_hold();
    muster_runtime *runtime = new_runtime();
    if (!runtime) {
        mu_alloc_unhold();
        return mu_fail_host_memory(error, "a runtime", sizeof *runtime);
    }
    mu_order_init(&runtime->order, 0);
    muster_status status = mu_config_resolve(user, &runtime->config, error);
    if (!status) {
        runtime->log = (mu_log){runtime->config.log, runtime->config.log_user, runtime->config.log_level};
        runtime->placement = &runtime->config.policy;
        status = open_caches(runtime, error);
    }
    if (!status) status = mu_driver_open(runtime->config.driver, runtime->config.sim, &runtime->driver, error);
    if (!status) status = open_devices(runtime, devices, &opened, error);
    if (!status) status = mu_host_create(&runtime->host, error);
    if (!status) status = mu_watches_start(runtime, error);
    if (!status) status = mu_copier_create(0, &runtime->copier, error);
    if (!status) {
        runtime->order.device_count = runtime->device_count = opened; /* constant once a worker runs */
        note_budgets(runtime, devices);
        runtime->steals = opened > 1 && !(runtime->config.flags & (MUSTER_RUNTIME_SERIAL | MUSTER_RUNTIME_NO_STEALING));
        runtime->enqueue_ahead_least = MU_ENQUEUE_AHEAD_LEAST;
        atomic_init(&runtime->thieves, MU_LOCATION_DEVICE(opened) - 1);
        status = start_actors(runtime, devices, opened, error);
    }
    if (status) {
        free_runtime(runtime);
        for (uint32_t i = 0; i < opened; i++) mu_device_close(devices[i]);
        mu_alloc_unhold();
        return status;
    }
    mu_history_load_rates(runtime);
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        const mu_capability *capability = mu_device_capability(runtime->actors[d].device);
        mu_log_line(&runtime->log, MUSTER_LOG_INFO, "device %u: %s%s, %llu bytes", d, capability->name,
                    capability->simulated ? " (simulated)" : "", (unsigned long long)capability->memory_bytes);
    }
    *out = runtime;
    return MUSTER_OK;
}

/* ---------------------------------------------------------------------------------------------------------- destroy -- */

static muster_status wait_until_idle(muster_runtime *runtime, uint64_t deadline, uint64_t timeout_ns,
                                     muster_error *error) {
    pthread_mutex_lock(&runtime->run_lock);
    while ((runtime->unfinished_runs || runtime->unfinished_callbacks) &&
           mu_cond_wait_until(&runtime->idle, &runtime->run_lock, deadline)) {
    }
    uint32_t runs = runtime->unfinished_runs, callbacks = runtime->unfinished_callbacks;
    pthread_mutex_unlock(&runtime->run_lock);
    if (!runs && !callbacks) return MUSTER_OK;
    return mu_fail(
        error, MUSTER_TIMEOUT,
        "%u runs have not ended and %u callbacks have not returned after %.3f s; wait for them or release the buffers "
        "they wait for, then destroy again",
        runs, callbacks, (double)timeout_ns * 1e-9);
}

/* The next handle of a kind that the application still holds, or NULL. */
static mu_handle *held_handle(muster_runtime *runtime, mu_tag tag) {
    pthread_mutex_lock(&runtime->handle_lock);
    mu_handle *handle = runtime->handles;
    while (handle && (handle->tag != tag || handle->released)) handle = handle->next;
    pthread_mutex_unlock(&runtime->handle_lock);
    return handle;
}

/* A buffer that is lent to the application, which keeps it alive even when its handle was destroyed; or NULL. */
static muster_buffer *lent_buffer(muster_runtime *runtime) {
    pthread_mutex_lock(&runtime->handle_lock);
    mu_handle *handle = runtime->handles;
    while (handle && (handle->tag != MU_TAG_BUFFER || !((muster_buffer *)handle)->acquisitions)) handle = handle->next;
    pthread_mutex_unlock(&runtime->handle_lock);
    return (muster_buffer *)handle;
}

static void destroy_handles(muster_runtime *runtime) {
    mu_handle *handle;
    for (muster_buffer *buffer; (buffer = lent_buffer(runtime));) mu_acquisitions_end(buffer);
    while ((handle = held_handle(runtime, MU_TAG_RUN))) muster_run_destroy((muster_run *)handle);
    while ((handle = held_handle(runtime, MU_TAG_GRAPH))) muster_graph_destroy((muster_graph *)handle);
    mu_reduce_destroy(runtime);
    while ((handle = held_handle(runtime, MU_TAG_BUFFER))) muster_buffer_destroy((muster_buffer *)handle);
    while ((handle = held_handle(runtime, MU_TAG_PROGRAM))) muster_program_destroy((muster_program *)handle);
    /* What is left is held by messages to the workers: let them come through. */
    for (;;) {
        pthread_mutex_lock(&runtime->handle_lock);
        bool empty = runtime->handles == NULL;
        pthread_mutex_unlock(&runtime->handle_lock);
        mu_actors_pass(runtime);
        if (empty) return;
    }
}

muster_status muster_runtime_destroy(muster_runtime *runtime, uint64_t timeout_ns, muster_error *error) {
    if (!runtime) return MUSTER_OK;
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status) return status;
    if (mu_host_is_current(runtime))
        return mu_fail(error, MUSTER_INVALID_STATE,
                       "a callback or host job of the runtime cannot destroy it; let another thread");
    uint64_t deadline = mu_deadline_ns(timeout_ns);
    /* Open runs end when nothing else is left, and those who wait for that are told before everything goes away. */
    do {
        if ((status = wait_until_idle(runtime, deadline, timeout_ns, error))) return status;
    } while (mu_open_runs_close_one(runtime));
    destroy_handles(runtime);
    mu_history_save_rates(runtime);
    free_runtime(runtime);
    mu_alloc_unhold();
    return MUSTER_OK;
}

/* ----------------------------------------------------------------------------------------------------------- faults -- */

static void wake(mu_actor *actor, mu_call *call) {
    (void)actor;
    (void)call;
}

void mu_runtime_fault(muster_runtime *runtime, const muster_error *error) {
    pthread_mutex_lock(&runtime->fault_lock);
    bool first = !atomic_load_explicit(&runtime->faulted, memory_order_relaxed);
    if (first) {
        runtime->fault = *error;
        atomic_store_explicit(&runtime->faulted, true, memory_order_release);
    }
    pthread_mutex_unlock(&runtime->fault_lock);
    if (!first) return;
    mu_log_line(&runtime->log, MUSTER_LOG_ERROR, "%s", error->message);
    /* Parked workers look by themselves when something of theirs is in flight; the others need to end queued work. */
    for (uint32_t d = 0; d < runtime->started_actors; d++) {
        runtime->actors[d].wake.run = wake;
        mu_actor_post_call(&runtime->actors[d], &runtime->actors[d].wake);
    }
}

muster_status mu_runtime_check(muster_runtime *runtime, muster_error *error) {
    /* Pairs with the release in mu_runtime_fault: the fault is complete when seen. */
    if (!atomic_load_explicit(&runtime->faulted, memory_order_acquire)) return MUSTER_OK;
    return mu_error_copy(error, &runtime->fault);
}

muster_status mu_runtime_check_devices(muster_runtime *runtime, muster_error *error) {
    muster_status status = mu_runtime_check(runtime, error);
    if (status) return status;
    uint64_t lost = mu_loss_devices(runtime);
    for (uint32_t d = 0; d < runtime->device_count; d++)
        if (!(lost >> d & 1)) return MUSTER_OK;
    const muster_error *loss = &runtime->actors[0].loss;
    mu_fail(error, MUSTER_DEVICE_LOST,
            "no device of this runtime is left: save what is in host memory, and start a new process; device 0: %.360s",
            loss->message);
    if (error) error->driver_code = loss->driver_code;
    return MUSTER_DEVICE_LOST;
}

/* ---------------------------------------------------------------------------------------------------------- queries -- */

int muster_device_count(const muster_runtime *runtime) { return runtime ? (int)runtime->device_count : 0; }

static muster_status check_query(const muster_runtime *runtime, int index, const size_t *struct_size, const char *name,
                                 muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status) return status;
    if (index < 0 || index >= (int)runtime->device_count)
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "device %d: the runtime has %u", index, runtime->device_count);
    if (!struct_size) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%s is NULL", name);
    if (*struct_size < sizeof *struct_size)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%s->struct_size is %zu; set it to the size of the struct", name,
                       *struct_size);
    return MUSTER_OK;
}

/* Fills as much of the caller's struct as both sides know; struct_size becomes what was filled. */
static void fill(void *to, size_t to_bytes, void *from, size_t from_bytes) {
    size_t bytes = to_bytes < from_bytes ? to_bytes : from_bytes;
    memcpy(from, &bytes, sizeof bytes);
    memcpy(to, from, bytes);
}

muster_status muster_device_get_info(const muster_runtime *runtime, int index, muster_device_info *info,
                                     muster_error *error) {
    muster_status status = check_query(runtime, index, info ? &info->struct_size : NULL, "info", error);
    if (status) return status;
    mu_device *device = runtime->actors[index].device;
    const mu_capability *c = mu_device_capability(device);
    muster_device_info found = {
        .index = index,
        .ordinal = c->ordinal,
        .simulated = c->simulated,
        .compute_major = c->compute_major,
        .compute_minor = c->compute_minor,
        .multiprocessors = c->multiprocessors,
        .warp_size = c->warp_size,
        .max_threads_per_block = c->max_threads_per_block,
        .max_threads_per_multiprocessor = c->max_threads_per_multiprocessor,
        .max_blocks_per_multiprocessor = c->max_blocks_per_multiprocessor,
        .max_shared_bytes = c->shared_bytes_per_block,
        .max_shared_optin_bytes = c->shared_bytes_optin,
        .cooperative_launch = mu_has_grid_sync(c),
        .memory_bytes = c->memory_bytes,
        .budget_bytes = mu_ledger_read(mu_device_ledger(device)).budget,
        .lost = mu_loss_has(runtime, index),
        .share_index = index % (int)runtime->config.actors_per_device,
        .share_count = (int)runtime->config.actors_per_device,
    };
    memcpy(found.name, c->name, sizeof found.name);
    memcpy(found.uuid, c->uuid, sizeof found.uuid);
    memcpy(found.pci_bus_id, c->pci_bus_id, sizeof found.pci_bus_id);
    memcpy(found.max_block, c->max_block, sizeof found.max_block);
    memcpy(found.max_grid, c->max_grid, sizeof found.max_grid);
    fill(info, info->struct_size, &found, sizeof found);
    return MUSTER_OK;
}

static uint64_t count(const atomic_uint_fast64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

muster_status muster_device_get_stats(const muster_runtime *runtime, int index, muster_device_stats *stats,
                                      muster_error *error) {
    muster_status status = check_query(runtime, index, stats ? &stats->struct_size : NULL, "stats", error);
    if (status) return status;
    const mu_actor *actor = &runtime->actors[index];
    const mu_device_counters *counters = mu_device_get_counters(actor->device);
    mu_ledger_view view = mu_ledger_read(mu_device_ledger(actor->device));
    muster_device_stats found = {
        .jobs = count(&actor->jobs_ended),
        .launches = count(&counters->launches),
        .bytes_to_device = count(&counters->bytes_to_device),
        .bytes_to_host = count(&counters->bytes_to_host),
        .bytes_from_peer = count(&counters->bytes_from_peer),
        .bytes_within_device = count(&counters->bytes_within_device),
        .peer_copies = count(&counters->peer_copies),
        .events_recorded = count(&counters->events_recorded),
        .event_waits = count(&counters->event_waits),
        .wakes = count(&actor->mailbox.wakes),
        .pool_bytes_in_use = view.in_use,
        .pool_bytes_reserved = view.reserved,
        .admissions = count(&counters->admissions),
        .admission_waits = count(&counters->admission_waits),
        .refusals = count(&counters->refusals),
        .evictions = count(&counters->evictions),
        .write_backs = count(&counters->write_backs),
        .bursts = count(&counters->bursts),
        .burst_jobs = count(&counters->burst_jobs),
        .branch_bursts = count(&counters->branch_bursts),
        .slow_callbacks = count(&counters->slow_callbacks),
        .steals = count(&counters->steals),
        .steals_given = count(&counters->steals_given),
        .steal_requests = count(&counters->steal_requests),
        .placements_refused = count(&counters->placements_refused),
        .waves = count(&counters->waves),
    };
    fill(stats, stats->struct_size, &found, sizeof found);
    return MUSTER_OK;
}
