/* The real driver table: libcuda, opened at run time. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/driver.h"

#define LIBRARY "libcuda.so.1"

static void destroy_nothing(mu_driver *driver) { (void)driver; }

/* One table for the process, filled once: the library is never closed, and cuInit is done once. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static mu_driver table;
static bool opened;

typedef void (*entry_point)(void);

static entry_point find(void *library, const char *symbol) {
    void *found = dlsym(library, symbol);
    entry_point entry;
    memcpy(&entry, &found, sizeof entry);
    return entry;
}

static void read_version(void *library, int *version) {
    CUresult(CUDAAPI * get_version)(int *) = (CUresult(CUDAAPI *)(int *))find(library, "cuDriverGetVersion");
    if (!get_version || get_version(version) != CUDA_SUCCESS) *version = 0;
}

static muster_status missing(const char *symbol, int version, const char *path, muster_error *error) {
    return mu_fail(error, MUSTER_DRIVER_TOO_OLD,
                   "%s (driver version %d.%d) has no %s; install an NVIDIA driver for CUDA 12.0 or newer", path,
                   version / 1000, version % 1000 / 10, symbol);
}

/* Fills every entry, or names the first required one that is missing. */
static muster_status load_entries(void *library, const char *path, mu_driver *driver, muster_error *error) {
    read_version(library, &driver->version);
#define LOAD_OPTIONAL(member, symbol, parameters)                                                                      \
    driver->member = (CUresult(CUDAAPI *) parameters)find(library, symbol);
#define LOAD_REQUIRED(member, symbol, parameters)                                                                      \
    LOAD_OPTIONAL(member, symbol, parameters)                                                                          \
    if (!driver->member) return missing(symbol, driver->version, path, error);
    MU_DRIVER_ENTRIES(LOAD_REQUIRED, LOAD_OPTIONAL)
#undef LOAD_REQUIRED
#undef LOAD_OPTIONAL
    return MUSTER_OK;
}

static muster_status start(mu_driver *driver, const char *path, muster_error *error) {
    CUresult code = driver->init(0);
    if (code == CUDA_SUCCESS) return MUSTER_OK;
    if (code == CUDA_ERROR_NO_DEVICE)
        return mu_driver_fail(driver, code, error,
                              "cuInit finds no device; check nvidia-smi and CUDA_VISIBLE_DEVICES, or choose the driver "
                              "\"sim\"");
    muster_status status = mu_driver_fail(driver, code, error, "cuInit of %s", path);
    bool absent = status == MUSTER_NO_DRIVER || (int)code == CUDA_ERROR_SYSTEM_NOT_READY || code == CUDA_ERROR_UNKNOWN;
    if (!absent) return status;
    status =
        mu_fail(error, MUSTER_NO_DRIVER,
                "%s was opened, but no device driver answers it (%s); check that the NVIDIA kernel module is loaded "
                "and matches, or choose the driver \"sim\"",
                path, mu_driver_error_name(driver, code));
    if (error) error->driver_code = (int)code;
    return status;
}

static muster_status open_library(muster_error *error) {
    const char *path = secure_getenv("MUSTER_LIBCUDA");
    if (!path || !*path) path = LIBRARY;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return mu_fail(
            error, MUSTER_NO_DRIVER,
            "the CUDA driver cannot be opened (%.200s); install the NVIDIA driver, set MUSTER_LIBCUDA to its "
            "library, or choose the driver \"sim\"",
            dlerror());
    mu_driver fresh = {.kind = MU_DRIVER_CUDA, .name = "cuda", .destroy = destroy_nothing};
    muster_status status = load_entries(library, path, &fresh, error);
    if (!status) status = start(&fresh, path, error);
    if (status) {
        /* A library that is not libcuda, or one that never started, may be closed; libcuda after cuInit may not. */
        if (status == MUSTER_DRIVER_TOO_OLD) dlclose(library);
        return status;
    }
    table = fresh;
    atomic_init(&table.references, 1);
    opened = true;
    return MUSTER_OK;
}

muster_status mu_cuda_driver_open(mu_driver **out, muster_error *error) {
    pthread_mutex_lock(&open_lock);
    muster_status status = opened ? MUSTER_OK : open_library(error);
    if (!status) *out = mu_driver_retain(&table);
    pthread_mutex_unlock(&open_lock);
    return status;
}
