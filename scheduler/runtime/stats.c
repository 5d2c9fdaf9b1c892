/* Counters as text, and setting them back. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/runtime/runtime.h"

/* X(member of muster_cache_stats, Prometheus type, help) */
#define CACHE_FIGURES(X)                                                                                               \
    X(lowerings, counter, "texts made by a lowering or by NVRTC")                                                      \
    X(compiles, counter, "texts compiled to native code")                                                              \
    X(ptx_hits, counter, "texts found in memory")                                                                      \
    X(ptx_misses, counter, "texts not found in memory")                                                                \
    X(ptx_joins, counter, "look-ups that waited for another thread's text")                                            \
    X(ptx_failures, counter, "texts that could not be made")                                                           \
    X(ptx_evictions, counter, "texts evicted from memory")                                                             \
    X(ptx_entries, gauge, "texts in memory")                                                                           \
    X(ptx_bytes, gauge, "bytes of texts in memory")                                                                    \
    X(cubin_hits, counter, "native code found in memory")                                                              \
    X(cubin_misses, counter, "native code not found in memory")                                                        \
    X(cubin_joins, counter, "look-ups that waited for another thread's compilation")                                   \
    X(cubin_failures, counter, "compilations that failed")                                                             \
    X(cubin_evictions, counter, "native code evicted from memory")                                                     \
    X(cubin_entries, gauge, "pieces of native code in memory")                                                         \
    X(cubin_bytes, gauge, "bytes of native code in memory")                                                            \
    X(disk_hits, counter, "entries found on disk")                                                                     \
    X(disk_misses, counter, "entries not found on disk")                                                               \
    X(disk_damaged, counter, "damaged entries among the misses")                                                       \
    X(disk_stores, counter, "entries written to disk")                                                                 \
    X(disk_store_failures, counter, "entries that could not be written")                                               \
    X(disk_evictions, counter, "entries removed from disk")                                                            \
    X(history_hits, counter, "what earlier runtimes had learnt, found on disk")                                        \
    X(history_misses, counter, "likewise, not found")                                                                  \
    X(history_stores, counter, "what was learnt, written to disk")                                                     \
    X(module_hits, counter, "modules found loaded")                                                                    \
    X(module_loads, counter, "modules loaded")                                                                         \
    X(load_stalls, counter, "loads that a device with work had to drain for")

typedef struct figure {
    const char *name, *type, *help;
    uint64_t value;
} figure;

enum { FIGURE_BYTES = 256 }; /* at most, of one figure in either format */

/* Appends the caches to what the devices gave; false when host memory is short. */
static bool append_caches(const muster_cache_stats *stats, muster_stats_format format, char **text) {
#define FIGURE(member, type, help) {#member, #type, help, stats->member},
    const figure figures[] = {CACHE_FIGURES(FIGURE)};
#undef FIGURE
    const size_t count = sizeof figures / sizeof figures[0];
    size_t used = strlen(*text), capacity = used;
    if (!mu_grow(text, &capacity, used + (count + 1) * FIGURE_BYTES, 1)) return false;
    char *at = *text + used, *end = *text + capacity;
    if (format == MUSTER_STATS_JSON) at = strrchr(*text, '}');
    for (size_t i = 0; i < count; i++) {
        const figure *f = &figures[i];
        unsigned long long value = f->value;
        if (format == MUSTER_STATS_JSON) {
            /* What JSON readers take for an integer, as for the devices. */
            if (value > INT64_MAX) value = INT64_MAX;
            at += snprintf(at, (size_t)(end - at), "%s\"%s\": %llu", i ? ", " : ", \"caches\": {", f->name, value);
        } else {
            const char *total = f->type[0] == 'c' ? "_total" : "";
            at += snprintf(at, (size_t)(end - at),
                           "# HELP muster_cache_%s%s %s\n# TYPE muster_cache_%s%s %s\nmuster_cache_%s%s %llu\n",
                           f->name, total, f->help, f->name, total, f->type, f->name, total, value);
        }
    }
    if (format == MUSTER_STATS_JSON) snprintf(at, (size_t)(end - at), "}}");
    return true;
}

static muster_status make_text(muster_runtime *runtime, muster_stats_format format, char **out, muster_error *error) {
    mu_telemetry_source sources[MU_MAX_DEVICES];
    muster_cache_stats caches = {.struct_size = sizeof caches};
    muster_status status = muster_cache_get_stats(runtime, &caches, error);
    if (status) return status;
    for (uint32_t d = 0; d < runtime->device_count; d++)
        sources[d] = (mu_telemetry_source){(int)d, mu_device_capability(runtime->actors[d].device)->name,
                                           mu_device_get_counters(runtime->actors[d].device)};
    char *text;
    status = format == MUSTER_STATS_JSON ? mu_telemetry_json(sources, runtime->device_count, &text, error)
                                         : mu_telemetry_prometheus(sources, runtime->device_count, &text, error);
    if (status) return status;
    if (!append_caches(&caches, format, &text)) {
        mu_free(text);
        return mu_fail_host_memory(error, "the text of the counters", FIGURE_BYTES);
    }
    *out = text;
    return MUSTER_OK;
}

muster_status muster_stats_text(muster_runtime *runtime, muster_stats_format format, char *buffer, size_t capacity,
                                size_t *needed, muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status) return status;
    if (format != MUSTER_STATS_JSON && format != MUSTER_STATS_PROMETHEUS)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%d is not a format of counters", (int)format);
    if (!needed || (capacity && !buffer))
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%s is NULL", needed ? "buffer" : "needed");
    char *text;
    if ((status = make_text(runtime, format, &text, error))) return status;
    size_t bytes = strlen(text) + 1;
    if (bytes <= capacity) memcpy(buffer, text, bytes);
    *needed = bytes;
    mu_free(text);
    return MUSTER_OK;
}

/* A counter's one writer is the worker. */
static muster_status reset(mu_actor *actor, void *user, muster_error *error) {
    (void)user, (void)error;
    mu_counters_reset(mu_device_counters_mutable(actor->device));
    atomic_store_explicit(&actor->jobs_ended, 0, memory_order_relaxed);
    return MUSTER_OK;
}

muster_status muster_stats_reset(muster_runtime *runtime, muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (!status) mu_actors_tell(runtime, reset, NULL);
    return status;
}
