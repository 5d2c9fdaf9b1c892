#include "scheduler/program.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/identity.h"
#include "scheduler/runtime.h"

/* A program on one device. */
typedef struct mu_program_device {
    mu_call drop; /* made beforehand: dropping the last reference cannot fail, nor wait */
    muster_program *program;
    mu_module_entry *entry; /* NULL: not loaded there */
} mu_program_device;

static void free_program(muster_program *program) {
    while (program->kernels) {
        muster_kernel *kernel = program->kernels;
        program->kernels = kernel->next;
        mu_free(kernel->name);
        mu_free(kernel);
    }
    pthread_mutex_destroy(&program->lock);
    mu_free(program->name);
    mu_free(program->image);
    mu_free(program->devices);
    mu_free(program);
}

static void drop_on_device(mu_actor *actor, mu_call *call) {
    mu_program_device *device = (mu_program_device *)call;
    muster_program *program = device->program;
    if (device->entry) mu_module_cache_drop(actor->modules, &program->key);
    /* acq_rel: the last device frees what the others are done with. */
    if (atomic_fetch_sub_explicit(&program->devices_left, 1, memory_order_acq_rel) != 1) return;
    mu_handle_finish(&program->handle);
    free_program(program);
}

void mu_program_retain(muster_program *program) { mu_handle_retain(&program->handle); }

void mu_program_release(muster_program *program) {
    if (!mu_handle_release(&program->handle)) return;
    muster_runtime *runtime = program->handle.runtime;
    uint32_t devices = runtime->device_count;
    atomic_store_explicit(&program->devices_left, devices, memory_order_relaxed);
    for (uint32_t d = 0; d < devices; d++) mu_actor_post_call(&runtime->actors[d], &program->devices[d].drop);
}

void muster_program_destroy(muster_program *program) {
    if (!program) return;
    program->handle.released = true;
    mu_program_release(program);
}

static muster_status load_on_device(mu_actor *actor, void *user, muster_error *error) {
    muster_program *program = user;
    return mu_module_cache_load(actor->modules, &program->key, program->image, program->image_bytes, program->name,
                                &program->devices[actor->index].entry, error);
}

muster_status muster_program_from_ptx(muster_runtime *runtime, const char *ptx, size_t bytes, const char *name,
                                      muster_program **out, muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status || (status = mu_runtime_check(runtime, error))) return status;
    if (!out) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "program is NULL; pass where to store the handle");
    if (!ptx) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "ptx is NULL");
    if (bytes == 0) bytes = strlen(ptx);
    if (bytes == 0) return mu_fail(error, MUSTER_PROGRAM_INVALID, "the PTX text is empty");
    muster_program *program = mu_alloc_zeroed(1, sizeof *program);
    if (!program) return mu_fail_host_memory(error, "a program", sizeof *program);
    program->devices = mu_alloc_zeroed(runtime->device_count, sizeof *program->devices);
    program->image = mu_alloc(bytes + 1);
    program->name = mu_strdup(name ? name : "program");
    pthread_mutex_init(&program->lock, NULL);
    if (!program->devices || !program->image || !program->name) {
        free_program(program);
        return mu_fail_host_memory(error, "a program", bytes);
    }
    memcpy(program->image, ptx, bytes);
    program->image[bytes] = '\0';
    program->image_bytes = bytes;
    program->key = mu_raw_ptx_key(program->image, bytes);
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        program->devices[d].drop.run = drop_on_device;
        program->devices[d].program = program;
    }
    mu_handle_init(&program->handle, MU_TAG_PROGRAM, runtime);
    status = mu_actors_call(runtime, load_on_device, program, error);
    if (status) {
        muster_program_destroy(program);
        return status;
    }
    *out = program;
    return MUSTER_OK;
}

/* ---------------------------------------------------------------------------------------------------------- kernels -- */

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
    muster_status status =
        mu_module_cache_function(kernel->program->devices[actor->index].entry, kernel->name,
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
    muster_kernel *kernel =
        mu_alloc_zeroed(1, sizeof *kernel + runtime->device_count * sizeof kernel->functions[0]);
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
    if (status || (status = mu_runtime_check(program->handle.runtime, error))) return status;
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
