#include "device/telemetry.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

typedef unsigned __int128 wide;

typedef struct counter_entry {
    const char *name, *help;
    size_t offset;
} counter_entry;

static const counter_entry entries[] = {
#define ENTRY(member, help) {#member, help, offsetof(mu_device_counters, member)},
    MU_DEVICE_COUNTERS(ENTRY)
#undef ENTRY
};
enum { ENTRY_COUNT = sizeof entries / sizeof *entries };

static uint64_t value_of(const mu_device_counters *counters, const counter_entry *entry) {
    return mu_counter_read((const atomic_uint_fast64_t *)(const void *)((const char *)counters + entry->offset));
}

void mu_counters_reset(mu_device_counters *counters) {
#define RESET(member, help) atomic_store_explicit(&counters->member, 0, memory_order_relaxed);
    MU_DEVICE_COUNTERS(RESET)
#undef RESET
}

int mu_occupancy_basis_points(int blocks, uint64_t block_threads, int warp_size, int threads_per_multiprocessor) {
    if (blocks <= 0 || block_threads == 0 || warp_size <= 0) return -1;
    uint64_t warps_held =
        (uint64_t)(threads_per_multiprocessor > 0 ? threads_per_multiprocessor : 0) / (uint64_t)warp_size;
    if (warps_held == 0) return -1;
    uint64_t warps = block_threads / (uint64_t)warp_size + (block_threads % (uint64_t)warp_size != 0);
    wide points = (wide)(unsigned)blocks * warps * 10000 / warps_held;
    return points > 10000 ? 10000 : (int)points;
}

void mu_count_occupancy(mu_device_counters *counters, int basis_points, uint64_t times) {
    if (basis_points < 0) {
        mu_count(counters, &counters->occupancy_unmeasured, times);
        return;
    }
    mu_count(counters, &counters->occupancy_measured, times);
    mu_count(counters, &counters->occupancy_sum_basis_points, (uint64_t)basis_points * times);
}

/* More than a counter can hold, so that it counts as an overflow there. */
static uint64_t so_often(wide threads, uint64_t times) {
    return threads > UINT64_MAX / times ? UINT64_MAX : (uint64_t)threads * times;
}

void mu_count_threads(mu_device_counters *counters, uint64_t grid_blocks, uint64_t block_threads, int warp_size,
                      uint64_t elements, uint64_t times) {
    uint64_t warp = warp_size > 0 ? (uint64_t)warp_size : 1;
    wide slots = (wide)(block_threads / warp + (block_threads % warp != 0)) * warp * grid_blocks;
    wide useful = elements ? elements : (wide)grid_blocks * block_threads;
    wide wasted = slots > useful ? slots - useful : 0;
    if (times == 0) return;
    mu_count(counters, &counters->threads_scheduled, so_often(slots, times));
    mu_count(counters, &counters->threads_wasted, so_often(wasted, times));
}

uint64_t mu_mean_occupancy(const mu_device_counters *counters) {
    uint64_t measured = mu_counter_read(&counters->occupancy_measured);
    return measured ? mu_counter_read(&counters->occupancy_sum_basis_points) / measured : 0;
}

/* ----------------------------------------------------------------------------------------------------------- text -- */

typedef struct text {
    char *bytes;
    size_t length, capacity;
    bool failed;
} text;

static void append(text *to, const char *bytes, size_t length) {
    if (to->failed || !mu_grow(&to->bytes, &to->capacity, to->length + length + 1, 1)) {
        to->failed = true;
        return;
    }
    memcpy(to->bytes + to->length, bytes, length);
    to->length += length;
    to->bytes[to->length] = '\0';
}

__attribute__((format(printf, 2, 3))) static void append_format(text *to, const char *format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof line) {
        to->failed = true;
        return;
    }
    append(to, line, (size_t)length);
}

static muster_status hand_over(text *from, char **out, const char *what, muster_error *error) {
    if (from->failed) {
        mu_free(from->bytes);
        return mu_fail_host_memory(error, what, from->length);
    }
    *out = from->bytes;
    return MUSTER_OK;
}

/* ----------------------------------------------------------------------------------------------------------- JSON -- */

static json_t *json_count(uint64_t value) { return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value); }

static json_t *json_counters(const mu_device_counters *counters) {
    json_t *object = json_object();
    for (size_t i = 0; object && i < ENTRY_COUNT; i++)
        if (json_object_set_new(object, entries[i].name, json_count(value_of(counters, &entries[i])))) {
            json_decref(object);
            object = NULL;
        }
    return object;
}

/* Device names come from drivers: what is not UTF-8 is left out. */
static json_t *json_name(const char *name) {
    json_t *string = json_string(name ? name : "");
    return string ? string : json_string("");
}

static json_t *json_device(const mu_telemetry_source *source) {
    json_t *object = json_object();
    if (!object) return NULL;
    if (json_object_set_new(object, "device", json_integer(source->device)) ||
        json_object_set_new(object, "name", json_name(source->name)) ||
        json_object_set_new(object, "counters", json_counters(source->counters)) ||
        json_object_set_new(object, "mean_occupancy_basis_points", json_count(mu_mean_occupancy(source->counters)))) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static int collect(const char *bytes, size_t length, void *user) {
    text *to = user;
    append(to, bytes, length);
    return to->failed ? -1 : 0;
}

muster_status mu_telemetry_json(const mu_telemetry_source *sources, size_t count, char **out, muster_error *error) {
    text result = {0};
    json_t *devices = json_array(), *root = json_object();
    result.failed = !devices || !root;
    for (size_t i = 0; !result.failed && i < count; i++)
        result.failed = json_array_append_new(devices, json_device(&sources[i])) != 0;
    if (root && devices && json_object_set(root, "devices", devices)) result.failed = true;
    if (!result.failed && json_dump_callback(root, collect, &result, JSON_INDENT(2))) result.failed = true;
    json_decref(devices);
    json_decref(root);
    return hand_over(&result, out, "telemetry as JSON", error);
}

/* ----------------------------------------------------------------------------------------------------- Prometheus -- */

/* A label value: backslash, quote and line feed are escaped. */
static void append_label(text *to, const char *value) {
    for (; value && *value; value++) {
        if (*value == '\n')
            append(to, "\\n", 2);
        else if (*value == '"' || *value == '\\')
            append_format(to, "\\%c", *value);
        else
            append(to, value, 1);
    }
}

static void append_sample(text *to, const char *metric, const mu_telemetry_source *source, uint64_t value) {
    append_format(to, "%s{device=\"%d\",name=\"", metric, source->device);
    append_label(to, source->name);
    append_format(to, "\"} %" PRIu64 "\n", value);
}

muster_status mu_telemetry_prometheus(const mu_telemetry_source *sources, size_t count, char **out,
                                      muster_error *error) {
    text result = {0};
    char metric[96];
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        snprintf(metric, sizeof metric, "muster_%s_total", entries[i].name);
        append_format(&result, "# HELP %s %s\n# TYPE %s counter\n", metric, entries[i].help, metric);
        for (size_t j = 0; j < count; j++)
            append_sample(&result, metric, &sources[j], value_of(sources[j].counters, &entries[i]));
    }
    append_format(&result,
                  "# HELP muster_mean_occupancy_basis_points mean of the known occupancies, in 1/10000\n"
                  "# TYPE muster_mean_occupancy_basis_points gauge\n");
    for (size_t j = 0; j < count; j++)
        append_sample(&result, "muster_mean_occupancy_basis_points", &sources[j],
                      mu_mean_occupancy(sources[j].counters));
    return hand_over(&result, out, "telemetry as Prometheus text", error);
}
