#include "cache/compile.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

static void count(atomic_uint_fast64_t *counter) { atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); }

static muster_status open_dump(const mu_compile_options *options, mu_dump **dump, muster_error *error) {
    mu_dump_mode mode;
    const char *directory = options->dump_directory;
    muster_status status =
        mu_dump_mode_parse(options->dump ? options->dump : secure_getenv("MUSTER_DUMP_PTX"), &mode, error);
    if (status) return status;
    if (!directory) directory = secure_getenv("MUSTER_DUMP_DIR");
    return mu_dump_open(mode, directory && *directory ? directory : "muster-ptx", options->log, dump, error);
}

muster_status mu_compile_caches_open(const mu_compile_options *options, mu_compile_caches *out, muster_error *error) {
    mu_compile_options chosen = {0};
    mu_compile_caches caches = {0};
    if (options) chosen = *options;
    chosen.disk.log = chosen.log;
    muster_status status = mu_ptx_cache_create(&chosen.memory, &caches.ptx, error);
    if (!status) status = mu_ptx_cache_create(&chosen.memory, &caches.cubins, error);
    if (!status) status = open_dump(&chosen, &caches.dump, error);
    if (!status) status = mu_disk_cache_open(&chosen.disk, &caches.disk, error);
    if (status) {
        mu_compile_caches_close(&caches);
        return status;
    }
    memset(out, 0, sizeof *out);
    out->ptx = caches.ptx;
    out->cubins = caches.cubins;
    out->disk = caches.disk;
    out->dump = caches.dump;
    return MUSTER_OK;
}

void mu_compile_caches_close(mu_compile_caches *caches) {
    mu_disk_cache_close(caches->disk);
    mu_dump_close(caches->dump);
    mu_ptx_cache_destroy(caches->cubins);
    mu_ptx_cache_destroy(caches->ptx);
    memset(caches, 0, sizeof *caches);
}

typedef struct ptx_request {
    mu_compile_caches *caches;
    mu_disk_cache *disk;
    mu_ptx_lower_fn lower;
    void *user;
} ptx_request;

static muster_status make_ptx(void *user, const mu_key *key, char **text, size_t *bytes, muster_error *error) {
    ptx_request *request = user;
    if (mu_disk_cache_load(request->disk, MU_DISK_PTX, key, text, bytes)) return MUSTER_OK;
    count(&request->caches->lowerings);
    muster_status status = request->lower(request->user, key, text, bytes, error);
    if (status != MUSTER_OK) return status;
    mu_disk_cache_store(request->disk, MU_DISK_PTX, key, *text, *bytes);
    mu_dump_ptx(request->caches->dump, *text, *bytes, NULL);
    return MUSTER_OK;
}

muster_status mu_compile_ptx(mu_compile_caches *caches, mu_ptx_reader *reader, const mu_key *key, bool persistent,
                             mu_ptx_lower_fn lower, void *user, mu_ptx_text *text, muster_error *error) {
    ptx_request request = {.caches = caches, .disk = persistent ? caches->disk : NULL, .lower = lower, .user = user};
    return mu_ptx_cache_get(caches->ptx, reader, key, make_ptx, &request, text, error);
}

typedef struct cubin_request {
    mu_compile_caches *caches;
    mu_device *device;
    const char *ptx;
    size_t bytes;
    const char *name;
} cubin_request;

static muster_status make_cubin(void *user, const mu_key *key, char **image, size_t *image_bytes, muster_error *error) {
    cubin_request *request = user;
    mu_compile_caches *caches = request->caches;
    if (mu_disk_cache_load(caches->disk, MU_DISK_CUBIN, key, image, image_bytes)) return MUSTER_OK;
    void *cubin;
    size_t bytes;
    count(&caches->compiles);
    muster_status status =
        mu_module_compile(request->device, request->ptx, request->bytes, request->name, &cubin, &bytes, error);
    mu_dump_ptx(caches->dump, request->ptx, request->bytes, status == MUSTER_PROGRAM_INVALID ? error : NULL);
    if (status != MUSTER_OK) return status;
    char *terminated = mu_realloc(cubin, bytes + 1); /* the cache wants a NUL behind what it keeps */
    if (!terminated) {
        mu_free(cubin);
        return mu_fail_host_memory(error, "a compiled program", bytes + 1);
    }
    terminated[bytes] = '\0';
    mu_disk_cache_store(caches->disk, MU_DISK_CUBIN, key, terminated, bytes);
    *image = terminated;
    *image_bytes = bytes;
    return MUSTER_OK;
}

mu_key mu_device_cubin_key(const mu_device *device, const mu_key *raw) {
    const mu_capability *capability = mu_device_capability(device);
    return mu_cubin_key(raw, (uint32_t)capability->native_sm, capability->driver_version,
                        capability->simulated ? "simulated" : NULL);
}

muster_status mu_compile_cubin(mu_compile_caches *caches, mu_ptx_reader *reader, mu_device *device, const mu_key *raw,
                               const char *ptx, size_t bytes, const char *name, mu_ptx_text *cubin,
                               muster_error *error) {
    mu_key key = mu_device_cubin_key(device, raw);
    cubin_request request = {.caches = caches, .device = device, .ptx = ptx, .bytes = bytes, .name = name};
    return mu_ptx_cache_get(caches->cubins, reader, &key, make_cubin, &request, cubin, error);
}
