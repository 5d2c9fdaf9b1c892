#include "tests/cache/fake_device.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

struct mu_function_object {
    mu_function next;
    mu_module module;
    char name[32];
};

struct mu_module_object {
    mu_device *device;
    mu_function functions;
};

mu_device fake_device(int sm) {
    mu_device device = {.fail = MUSTER_OK};
    device.capability.native_sm = sm;
    device.capability.driver_version = 13000;
    return device;
}

const mu_capability *mu_device_capability(const mu_device *device) { return &device->capability; }
mu_device_counters *mu_device_counters_mutable(mu_device *device) { return &device->counters; }

static muster_status failed(mu_device *device, const char *what, muster_error *error) {
    return mu_fail(error, device->fail, "%s failed: line 3: syntax error", what);
}

muster_status mu_module_compile(mu_device *device, const void *ptx, size_t bytes, const char *name, void **cubin,
                                size_t *cubin_bytes, muster_error *error) {
    (void)name;
    atomic_fetch_add(&device->compiles, 1);
    if (device->compile_started) sem_post(device->compile_started);
    if (device->compile_proceed) sem_wait(device->compile_proceed);
    if (device->fail) return failed(device, "mu_module_compile", error);
    char head[16];
    int head_bytes = snprintf(head, sizeof head, "cubin%d:", device->capability.native_sm);
    char *made = mu_alloc((size_t)head_bytes + bytes);
    if (!made) return mu_fail_host_memory(error, "a cubin", (size_t)head_bytes + bytes);
    memcpy(made, head, (size_t)head_bytes);
    memcpy(made + head_bytes, ptx, bytes);
    *cubin = made;
    *cubin_bytes = (size_t)head_bytes + bytes;
    return MUSTER_OK;
}

muster_status mu_module_load(mu_device *device, const void *image, size_t bytes, const char *name, mu_module *module,
                             muster_error *error) {
    (void)image, (void)bytes, (void)name;
    device->loads++;
    if (device->fail) return failed(device, "mu_module_load", error);
    mu_module made = mu_alloc_zeroed(1, sizeof *made);
    if (!made) return mu_fail_host_memory(error, "a module", sizeof *made);
    made->device = device;
    device->live_modules++;
    *module = made;
    return MUSTER_OK;
}

void mu_module_unload(mu_device *device, mu_module module) {
    device->unloads++;
    device->live_modules--;
    for (mu_function next, function = module->functions; function; function = next) {
        next = function->next;
        mu_free(function);
    }
    mu_free(module);
}

muster_status mu_module_function(mu_device *device, mu_module module, const char *entry, mu_function *function,
                                 mu_function_info *info, muster_error *error) {
    device->functions++;
    if (device->fail) return failed(device, "mu_module_function", error);
    if (strcmp(entry, "missing") == 0) return mu_fail(error, MUSTER_ENTRY_NOT_FOUND, "there is no %s", entry);
    mu_function made = mu_alloc_zeroed(1, sizeof *made);
    if (!made) return mu_fail_host_memory(error, "a function", sizeof *made);
    made->module = module;
    snprintf(made->name, sizeof made->name, "%s", entry);
    made->next = module->functions;
    module->functions = made;
    *info = (mu_function_info){.max_threads = 1000 + (int)strlen(entry)};
    *function = made;
    return MUSTER_OK;
}

muster_status mu_module_global(mu_device *device, mu_module module, const char *name, mu_address *address,
                               uint64_t *bytes, muster_error *error) {
    if (device->fail) return failed(device, "mu_module_global", error);
    if (strcmp(name, "missing") == 0) return mu_fail(error, MUSTER_ENTRY_NOT_FOUND, "there is no %s", name);
    *address = (uint64_t)(uintptr_t)module;
    *bytes = strlen(name);
    return MUSTER_OK;
}

int fake_occupancy(uint32_t block_threads, uint64_t dynamic_shared_bytes) {
    return (int)(2048 / block_threads + dynamic_shared_bytes % 7);
}

muster_status mu_function_occupancy(mu_device *device, mu_function function, uint32_t block_threads,
                                    uint64_t dynamic_shared_bytes, int *blocks, muster_error *error) {
    device->occupancies++;
    if (device->fail) return failed(device, "mu_function_occupancy", error);
    *blocks = fake_occupancy(block_threads, dynamic_shared_bytes) + function->name[0];
    return MUSTER_OK;
}
