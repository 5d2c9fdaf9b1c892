#include "scheduler/program/program.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/actor/loss.h"
#include "scheduler/runtime/runtime.h"

/* ---------------------------------------------------------------------------------------------------------- life -- */

static void free_program(muster_program *program) {
    while (program->kernels) {
        muster_kernel *kernel = program->kernels;
        program->kernels = kernel->next;
        mu_free(kernel->name);
        mu_free(kernel);
    }
    for (uint32_t i = 0; i < program->code_count; i++) mu_code_drop_image(&program->codes[i]);
    mu_history_free(program);
    pthread_mutex_destroy(&program->global_lock);
    pthread_mutex_destroy(&program->lock);
    mu_free(program->name);
    mu_free(program->codes);
    mu_free(program->devices);
    mu_free(program);
}

static void drop_on_device(mu_actor *actor, mu_call *call) {
    mu_program_device *device = (mu_program_device *)call;
    muster_program *program = device->program;
    mu_module_cache_withdraw(actor->modules, &device->request);
    /* A chain's nodes keep what they launched last, which must not be unloaded under them. */
    muster_error error;
    for (const muster_kernel *kernel = program->kernels; kernel && !actor->lost; kernel = kernel->next)
        if (mu_bursts_forget(actor, kernel->functions[actor->index], &error)) mu_actor_lose(actor, &error);
    if (device->entry) mu_module_cache_drop(actor->modules, &device->code->key);
    /* acq_rel: the last device frees what the others are done with. */
    if (atomic_fetch_sub_explicit(&program->devices_left, 1, memory_order_acq_rel) != 1) return;
    mu_handle_finish(&program->handle);
    free_program(program);
}

void mu_program_retain(muster_program *program) { mu_handle_retain(&program->handle); }

void mu_program_release(muster_program *program) {
    if (!mu_handle_release(&program->handle)) return;
    /* From here on its kernels are refused; their memory goes when every device has let go. */
    for (muster_kernel *kernel = program->kernels; kernel; kernel = kernel->next) kernel->handle.tag = MU_TAG_DEAD;
    muster_runtime *runtime = program->handle.runtime;
    uint32_t devices = runtime->device_count;
    atomic_store_explicit(&program->devices_left, devices, memory_order_relaxed);
    for (uint32_t d = 0; d < devices; d++) mu_actor_post_call(&runtime->actors[d], &program->devices[d].drop);
}

void muster_program_destroy(muster_program *program) {
    if (!program || program->handle.tag != MU_TAG_PROGRAM) return;
    mu_history_save(program);
    program->handle.released = true;
    mu_program_release(program);
}

/* ------------------------------------------------------------------------------------------------------- loading -- */

/* Whether loading would hold up work. */
static bool has_work(const mu_actor *actor) {
    return actor->retired + 1 < actor->timeline.open || actor->calls_in_flight || actor->ready.first;
}

static void loaded(mu_program_device *device, mu_module_entry *entry) {
    device->entry = entry;
    if (atomic_fetch_sub_explicit(&device->code->loads_left, 1, memory_order_acq_rel) == 1)
        mu_code_drop_image(device->code);
}

static void request_done(mu_module_request *request, mu_module_entry *entry) {
    if (entry) loaded((mu_program_device *)((char *)request - offsetof(mu_program_device, request)), entry);
}

muster_status mu_program_load(mu_actor *actor, muster_program *program, muster_error *error) {
    mu_program_device *device = &program->devices[actor->index];
    if (device->entry) return MUSTER_OK;
    if (!device->code) return mu_device_alive(actor->device, error); /* the device was lost when the program was made */
    mu_module_cache_stats before, after;
    bool stalls = has_work(actor);
    mu_module_entry *entry;
    mu_module_cache_get_stats(actor->modules, &before);
    mu_module_cache_withdraw(actor->modules, &device->request);
    muster_status status = mu_module_cache_load(actor->modules, &device->code->key, device->code->image,
                                                device->code->bytes, program->name, &entry, error);
    if (!status) loaded(device, entry);
    /* The device has drained for this one: whatever else waits comes at no further cost. */
    mu_module_cache_get_stats(actor->modules, &after);
    if (after.loads == before.loads) return status;
    mu_module_cache_load_requested(actor->modules);
    if (stalls) atomic_fetch_add_explicit(&actor->runtime->load_stalls, 1, memory_order_relaxed);
    return status;
}

static muster_status load_now(mu_actor *actor, void *user, muster_error *error) {
    return mu_program_load(actor, user, error);
}

/* A device without work loads at once; another when it is idle or the program is needed. */
static muster_status load_at_leisure(mu_actor *actor, void *user, muster_error *error) {
    muster_program *program = user;
    if (!has_work(actor) || !program->devices[actor->index].code) return mu_program_load(actor, program, error);
    mu_module_cache_request(actor->modules, &program->devices[actor->index].request);
    return MUSTER_OK;
}

muster_status muster_program_prepare(muster_program *program, muster_error *error) {
    muster_status status = mu_handle_check(program, MU_TAG_PROGRAM, NULL, "program", error);
    if (status || (status = mu_runtime_check_devices(program->handle.runtime, error))) return status;
    return mu_actors_call(program->handle.runtime, load_now, program, error);
}

/* -------------------------------------------------------------------------------------------------------- making -- */

static bool same_kind(const mu_device *a, const mu_device *b) {
    const mu_capability *x = mu_device_capability(a), *y = mu_device_capability(b);
    return x->native_sm == y->native_sm && x->ptx_target_sm == y->ptx_target_sm && x->warp_size == y->warp_size &&
           mu_capability_features(x, true) == mu_capability_features(y, true);
}

/* The code of an earlier device of the same kind, or NULL. */
static mu_code *known_code(const muster_program *program, const muster_runtime *runtime, uint32_t device) {
    for (uint32_t d = 0; d < device; d++)
        if (program->devices[d].code && same_kind(runtime->actors[d].device, runtime->actors[device].device))
            return program->devices[d].code;
    return NULL;
}

/* A module of the program's own: nobody else has this key. */
static mu_key private_key(const mu_key *key, uint64_t number) {
    mu_digest_state state;
    mu_digest_begin(&state, "muster module with variables 1");
    mu_digest_field(&state, key->bytes, sizeof key->bytes);
    mu_digest_u64(&state, number);
    return mu_digest_end(&state);
}

static muster_status make_codes(muster_program *program, muster_runtime *runtime, mu_make_code_fn make, void *user,
                                muster_error *error) {
    uint64_t number = atomic_fetch_add_explicit(&runtime->programs_made, 1, memory_order_relaxed);
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        mu_program_device *device = &program->devices[d];
        device->drop.run = drop_on_device;
        device->program = program;
        if (mu_device_is_lost(runtime->actors[d].device)) continue;
        device->code = known_code(program, runtime, d);
        if (!device->code) {
            mu_code *code = &program->codes[program->code_count];
            muster_status status = make(user, runtime, runtime->actors[d].device, program->name, code, error);
            if (status) mu_code_drop_image(code);
            /* Lost while it compiled: like one that was lost before. */
            if (status == MUSTER_DEVICE_LOST && mu_device_is_lost(runtime->actors[d].device)) continue;
            if (status) return status;
            if (code->has_variables) code->key = private_key(&code->key, number);
            program->code_count++;
            device->code = code;
        }
        atomic_fetch_add_explicit(&device->code->loads_left, 1, memory_order_relaxed);
        device->request = (mu_module_request){
            .key = &device->code->key,
            .image = device->code->image,
            .bytes = device->code->bytes,
            .name = program->name,
            .done = request_done,
        };
    }
    return program->code_count ? MUSTER_OK : mu_runtime_check_devices(runtime, error);
}

muster_status mu_program_make(muster_runtime *runtime, const char *name, mu_make_code_fn make, void *user,
                              muster_program **out, muster_error *error) {
    muster_program *program = mu_alloc_zeroed(1, sizeof *program);
    if (!program) return mu_fail_host_memory(error, "a program", sizeof *program);
    program->devices = mu_alloc_zeroed(runtime->device_count, sizeof *program->devices);
    program->codes = mu_alloc_zeroed(runtime->device_count, sizeof *program->codes);
    program->name = mu_strdup(name ? name : "program");
    pthread_mutex_init(&program->lock, NULL);
    pthread_mutex_init(&program->global_lock, NULL);
    muster_status status;
    if (!program->devices || !program->codes || !program->name)
        status = mu_fail_host_memory(error, "a program", runtime->device_count * sizeof *program->devices);
    else
        status = make_codes(program, runtime, make, user, error);
    if (status) {
        free_program(program);
        return status;
    }
    mu_handle_init(&program->handle, MU_TAG_PROGRAM, runtime);
    mu_history_load(program);
    status = mu_actors_call(runtime, load_at_leisure, program, error);
    if (status) {
        muster_program_destroy(program);
        return status;
    }
    *out = program;
    return MUSTER_OK;
}

/* ------------------------------------------------------------------------------------------------------- kernels -- */

typedef struct lookup {
    muster_kernel *kernel;
    pthread_mutex_t lock; /* kernel->info: devices answer at the same time */
    bool first;
} lookup;

static int smaller(int a, int b) { return a < b ? a : b; }
static int larger(int a, int b) { return a > b ? a : b; }

static muster_status find_on_device(mu_actor *actor, void *user, muster_error *error) {
    lookup *l = user;
    muster_kernel *kernel = l->kernel;
    const mu_function_info *info;
    muster_status status = mu_program_load(actor, kernel->program, error);
    if (status) return status;
    status = mu_module_cache_function(kernel->program->devices[actor->index].entry, kernel->name,
                                      &kernel->functions[actor->index], &info, error);
    if (status) return status;
    pthread_mutex_lock(&l->lock);
    if (l->first) {
        kernel->info = *info;
    } else {
        kernel->info.max_threads = smaller(kernel->info.max_threads, info->max_threads);
        kernel->info.registers = larger(kernel->info.registers, info->registers);
        kernel->info.static_shared_bytes = larger(kernel->info.static_shared_bytes, info->static_shared_bytes);
        kernel->info.local_bytes = larger(kernel->info.local_bytes, info->local_bytes);
    }
    l->first = false;
    pthread_mutex_unlock(&l->lock);
    return MUSTER_OK;
}

static muster_status find_kernel(muster_program *program, const char *entry, muster_kernel **out, muster_error *error) {
    muster_runtime *runtime = program->handle.runtime;
    size_t each = sizeof(mu_function) + 2 * sizeof(atomic_uint_fast64_t) + sizeof(uint64_t);
    muster_kernel *kernel = mu_alloc_zeroed(1, sizeof *kernel + runtime->device_count * each);
    char *name = mu_strdup(entry);
    if (!kernel || !name) {
        mu_free(kernel);
        mu_free(name);
        return mu_fail_host_memory(error, "a kernel", sizeof *kernel);
    }
    kernel->handle.tag = MU_TAG_KERNEL;
    kernel->handle.runtime = runtime;
    kernel->program = program;
    kernel->name = name;
    kernel->pace_ps = (atomic_uint_fast64_t *)&kernel->functions[runtime->device_count];
    kernel->wide_pace_ps = kernel->pace_ps + runtime->device_count;
    kernel->noted = (uint64_t *)(kernel->wide_pace_ps + runtime->device_count);
    mu_history_recall(kernel);
    lookup l = {.kernel = kernel, .first = true};
    pthread_mutex_init(&l.lock, NULL);
    muster_status status = mu_actors_call(runtime, find_on_device, &l, error);
    pthread_mutex_destroy(&l.lock);
    if (status) {
        mu_free(name);
        mu_free(kernel);
        return status;
    }
    kernel->next = program->kernels;
    program->kernels = kernel;
    *out = kernel;
    return MUSTER_OK;
}

muster_status muster_program_kernel(muster_program *program, const char *entry, muster_kernel **out,
                                    muster_error *error) {
    muster_status status = mu_handle_check(program, MU_TAG_PROGRAM, NULL, "program", error);
    if (status || (status = mu_runtime_check_devices(program->handle.runtime, error))) return status;
    if (!entry || !out) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%s is NULL", entry ? "kernel" : "entry");
    pthread_mutex_lock(&program->lock);
    muster_kernel *kernel = program->kernels;
    while (kernel && strcmp(kernel->name, entry) != 0) kernel = kernel->next;
    if (kernel)
        *out = kernel;
    else
        status = find_kernel(program, entry, out, error);
    pthread_mutex_unlock(&program->lock);
    return status;
}

/* ---------------------------------------------------------------------------------------------------- statistics -- */

/* Fills as much of the caller's struct as both sides know; struct_size becomes what was filled. */
static void fill(muster_cache_stats *to, muster_cache_stats *from) {
    from->struct_size = to->struct_size < sizeof *from ? to->struct_size : sizeof *from;
    memcpy(to, from, from->struct_size);
}

muster_status muster_cache_get_stats(muster_runtime *runtime, muster_cache_stats *stats, muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status) return status;
    if (!stats) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "stats is NULL");
    if (stats->struct_size < sizeof stats->struct_size)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "stats->struct_size is %zu; set it to the size of the struct",
                       stats->struct_size);
    mu_ptx_cache_stats ptx, cubins;
    mu_disk_cache_stats disk;
    mu_ptx_cache_get_stats(runtime->caches.ptx, &ptx);
    mu_ptx_cache_get_stats(runtime->caches.cubins, &cubins);
    mu_disk_cache_get_stats(runtime->caches.disk, &disk);
    muster_cache_stats found = {
        .lowerings = atomic_load_explicit(&runtime->caches.lowerings, memory_order_relaxed),
        .compiles = atomic_load_explicit(&runtime->caches.compiles, memory_order_relaxed),
        .ptx_hits = ptx.hits,
        .ptx_misses = ptx.misses,
        .ptx_joins = ptx.joins,
        .ptx_failures = ptx.failures,
        .ptx_evictions = ptx.evictions,
        .ptx_entries = ptx.entries,
        .ptx_bytes = ptx.bytes,
        .cubin_hits = cubins.hits,
        .cubin_misses = cubins.misses,
        .cubin_joins = cubins.joins,
        .cubin_failures = cubins.failures,
        .cubin_evictions = cubins.evictions,
        .cubin_entries = cubins.entries,
        .cubin_bytes = cubins.bytes,
        .disk_hits = disk.hits,
        .disk_misses = disk.misses,
        .disk_damaged = disk.damaged,
        .disk_stores = disk.stores,
        .disk_store_failures = disk.store_failures,
        .disk_evictions = disk.evictions,
        .history_hits = disk.history_hits,
        .history_misses = disk.history_misses,
        .history_stores = disk.history_stores,
        .load_stalls = atomic_load_explicit(&runtime->load_stalls, memory_order_relaxed),
    };
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        const mu_device_counters *counters = mu_device_get_counters(runtime->actors[d].device);
        found.module_hits += mu_counter_read(&counters->module_cache_hits);
        found.module_loads += mu_counter_read(&counters->module_cache_misses);
    }
    fill(stats, &found);
    return MUSTER_OK;
}
