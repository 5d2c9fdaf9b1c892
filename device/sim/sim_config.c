/* Reading a simulated machine from JSON. Every key is checked: an unknown one, a wrong type or a value out of range is
 * an error that names it. */
#include "device/sim/sim_config.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "device/sim/sim_internal.h"

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)

/* Published figures of the boards; times from measurements on an H200 and scaled by bandwidth for the others. */
static const sim_device_config presets[] = {
    {"NVIDIA H200", 9,       0,    132, 32,   2048,      32, 65536, 65536, 49152, 232448, 233472, 1024, 60 << 20,
     1980000,       3201000, 6144, 3,   true, 141 * GIB, 0,  0,     3500,  55,    55,     396,    4000, 8000},
    {"NVIDIA A100-SXM4-80GB",
     8,
     0,
     108,
     32,
     2048,
     32,
     65536,
     65536,
     49152,
     166912,
     167936,
     1024,
     40 << 20,
     1410000,
     1593000,
     5120,
     3,
     true,
     80 * GIB,
     0,
     0,
     4000,
     25,
     25,
     270,
     1700,
     4800},
    {"NVIDIA L4", 8,       9,   58, 32,   1536,     24, 65536, 65536, 49152, 101376, 102400, 1024, 48 << 20,
     2040000,     6251000, 192, 2,  true, 23 * GIB, 0,  0,     4000,  25,    25,     12,     280,  3700},
    {"NVIDIA GeForce RTX 4090",
     8,
     9,
     128,
     32,
     1536,
     24,
     65536,
     65536,
     49152,
     101376,
     102400,
     1024,
     72 << 20,
     2520000,
     10501000,
     384,
     2,
     true,
     24 * GIB,
     0,
     0,
     3500,
     25,
     25,
     12,
     950,
     10000},
    {"Tesla T4", 7,       5,   40, 32,   1024,     16, 65536, 65536, 49152, 65536, 65536, 0,   4 << 20,
     1590000,    5001000, 256, 3,  true, 15 * GIB, 0,  0,     5000,  12,    12,    10,    300, 2000},
};
static const char *const preset_names[] = {"H200", "A100", "L4", "RTX 4090", "T4"};
enum { PRESETS = sizeof presets / sizeof presets[0] };

static const sim_device_config *find_preset(const char *name) {
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(name, preset_names[i]) == 0) return &presets[i];
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------- reading -- */

typedef struct reader {
    muster_error *error;
    const char *where; /* "devices[1]", for messages */
} reader;

static muster_status bad(const reader *in, const char *key, const char *expected) {
    return mu_fail(in->error, MUSTER_INVALID_CONFIG, "simulator: %s%s%s must be %s", in->where, *in->where ? "." : "",
                   key, expected);
}

static muster_status unknown(const reader *in, const char *key, const char *known) {
    return mu_fail(in->error, MUSTER_INVALID_CONFIG, "simulator: unknown key %s%s%s; known are %s", in->where,
                   *in->where ? "." : "", key, known);
}

static muster_status read_count(const reader *in, const char *key, const json_t *value, uint64_t low, uint64_t high,
                                uint64_t *out) {
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || (uint64_t)number < low || (uint64_t)number > high) {
        char expected[96];
        snprintf(expected, sizeof expected, "an integer from %llu to %llu", (unsigned long long)low,
                 (unsigned long long)high);
        return bad(in, key, expected);
    }
    *out = (uint64_t)number;
    return MUSTER_OK;
}

static muster_status read_int(const reader *in, const char *key, const json_t *value, int low, int high, int *out) {
    uint64_t number;
    muster_status status = read_count(in, key, value, (uint64_t)low, (uint64_t)high, &number);
    if (status == MUSTER_OK) *out = (int)number;
    return status;
}

static muster_status read_rate(const reader *in, const char *key, const json_t *value, double *out) {
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number > 0) || number > 1e9) return bad(in, key, "a number above 0, at most 1e9");
    *out = number;
    return MUSTER_OK;
}

static muster_status read_bool(const reader *in, const char *key, const json_t *value, bool *out) {
    if (!json_is_boolean(value)) return bad(in, key, "true or false");
    *out = json_is_true(value);
    return MUSTER_OK;
}

/* "9.0" */
static muster_status read_capability(const reader *in, const char *key, const json_t *value,
                                     sim_device_config *device) {
    const char *text = json_string_value(value);
    int major, minor, used = 0;
    if (!text || sscanf(text, "%d.%d%n", &major, &minor, &used) != 2 || text[used] || major < 3 || major > 20 ||
        minor < 0 || minor > 9)
        return bad(in, key, "a string like \"9.0\"");
    device->major = major;
    device->minor = minor;
    return MUSTER_OK;
}

typedef struct int_key {
    const char *key;
    size_t offset;
    int low, high;
} int_key;
#define INT_KEY(name, low, high)                                                                                       \
    { #name, offsetof(sim_device_config, name), low, high }
static const int_key device_ints[] = {
    INT_KEY(sms, 1, 1024),
    INT_KEY(threads_per_sm, 32, 4096),
    INT_KEY(blocks_per_sm, 1, 64),
    INT_KEY(registers_per_sm, 1024, 1 << 20),
    INT_KEY(registers_per_block, 1024, 1 << 20),
    INT_KEY(shared_per_block, 1024, 1 << 20),
    INT_KEY(shared_per_block_optin, 1024, 1 << 20),
    INT_KEY(shared_per_sm, 1024, 1 << 20),
    INT_KEY(shared_reserved, 0, 1 << 16),
    INT_KEY(l2_bytes, 0, 1 << 30),
    INT_KEY(clock_khz, 1, 100000000),
    INT_KEY(memory_clock_khz, 1, 100000000),
    INT_KEY(bus_bits, 1, 1 << 20),
    INT_KEY(copy_engines, 0, 16),
};
typedef struct count_key {
    const char *key;
    size_t offset;
    uint64_t low;
} count_key;
#define COUNT_KEY(name, low)                                                                                           \
    { #name, offsetof(sim_device_config, name), low }
/* Pools reserve in steps of 32 MiB: with less than two of them, what is not in a device's first step could never be allocated. */
static const count_key device_counts[] = {COUNT_KEY(memory_bytes, 64 << 20), COUNT_KEY(context_bytes, 0),
                                          COUNT_KEY(other_bytes, 0), COUNT_KEY(launch_ns, 0)};
static const count_key device_rates[] = {COUNT_KEY(upload_gbps, 0), COUNT_KEY(download_gbps, 0),
                                         COUNT_KEY(peer_gbps, 0), COUNT_KEY(local_gbps, 0),
                                         COUNT_KEY(instructions_per_ns, 0)};
#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define MAX_MEMORY ((uint64_t)1 << 44)

static muster_status read_device_key(const reader *in, const char *key, const json_t *value,
                                     sim_device_config *device) {
    for (size_t i = 0; i < COUNT_OF(device_ints); i++)
        if (strcmp(key, device_ints[i].key) == 0)
            return read_int(in, key, value, device_ints[i].low, device_ints[i].high,
                            (int *)((char *)device + device_ints[i].offset));
    for (size_t i = 0; i < COUNT_OF(device_counts); i++)
        if (strcmp(key, device_counts[i].key) == 0)
            return read_count(in, key, value, device_counts[i].low, MAX_MEMORY,
                              (uint64_t *)((char *)device + device_counts[i].offset));
    for (size_t i = 0; i < COUNT_OF(device_rates); i++)
        if (strcmp(key, device_rates[i].key) == 0)
            return read_rate(in, key, value, (double *)((char *)device + device_rates[i].offset));
    if (strcmp(key, "cooperative") == 0) return read_bool(in, key, value, &device->cooperative);
    if (strcmp(key, "compute_capability") == 0) return read_capability(in, key, value, device);
    if (strcmp(key, "name") == 0) {
        const char *name = json_string_value(value);
        if (!name || !*name || strlen(name) >= sizeof device->name) return bad(in, key, "a string of 1 to 95 bytes");
        snprintf(device->name, sizeof device->name, "%s", name);
        return MUSTER_OK;
    }
    return unknown(in, key,
                   "preset, count, name, compute_capability, sms, threads_per_sm, blocks_per_sm, registers_per_sm, "
                   "registers_per_block, shared_per_block, shared_per_block_optin, shared_per_sm, shared_reserved, "
                   "memory_bytes, ... (docs/simulator.md)");
}

static muster_status read_preset(const reader *in, const json_t *value, const sim_device_config **preset) {
    const char *name = json_string_value(value);
    *preset = name ? find_preset(name) : NULL;
    return *preset ? MUSTER_OK : bad(in, "preset", "\"H200\", \"A100\", \"L4\", \"RTX 4090\" or \"T4\"");
}

static muster_status check_device(const reader *in, const sim_device_config *device) {
    if (device->shared_per_block > device->shared_per_block_optin)
        return bad(in, "shared_per_block", "at most shared_per_block_optin");
    if (device->shared_per_block_optin + device->shared_reserved > device->shared_per_sm)
        return bad(in, "shared_per_sm", "at least shared_per_block_optin + shared_reserved");
    if (device->registers_per_block > device->registers_per_sm)
        return bad(in, "registers_per_block", "at most registers_per_sm");
    if (device->other_bytes > device->memory_bytes) return bad(in, "other_bytes", "at most memory_bytes");
    return MUSTER_OK;
}

/* One element of "devices": `count` equal devices. */
static muster_status read_device(reader *in, const json_t *object, const sim_device_config *preset,
                                 sim_config *config) {
    if (!json_is_object(object)) return bad(in, "device", "an object");
    const json_t *value = json_object_get(object, "preset");
    muster_status status = MUSTER_OK;
    if (value) status = read_preset(in, value, &preset);
    if (status != MUSTER_OK) return status;
    sim_device_config device = *preset;
    uint64_t count = 1;
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)object, key, member) {
        if (strcmp(key, "preset") == 0) continue;
        status = strcmp(key, "count") == 0 ? read_count(in, key, member, 1, SIM_MAX_DEVICES, &count)
                                           : read_device_key(in, key, member, &device);
        if (status != MUSTER_OK) return status;
    }
    status = check_device(in, &device);
    if (status != MUSTER_OK) return status;
    if (config->device_count + count > SIM_MAX_DEVICES) return bad(in, "count", "at most 32 devices in all");
    while (count-- > 0) config->devices[config->device_count++] = device;
    return MUSTER_OK;
}

static muster_status read_devices(const json_t *root, sim_config *config, muster_error *error) {
    reader in = {error, ""};
    const sim_device_config *preset = &presets[0];
    const json_t *value = json_object_get(root, "preset");
    muster_status status = MUSTER_OK;
    if (value) status = read_preset(&in, value, &preset);
    if (status != MUSTER_OK) return status;
    value = json_object_get(root, "devices");
    if (!value || json_is_integer(value)) {
        uint64_t count = 1;
        if (value) status = read_count(&in, "devices", value, 0, SIM_MAX_DEVICES, &count);
        if (status != MUSTER_OK) return status;
        config->device_count = (uint32_t)count;
        for (uint32_t i = 0; i < count; i++) config->devices[i] = *preset;
        return MUSTER_OK;
    }
    if (!json_is_array(value)) return bad(&in, "devices", "a number or an array of objects");
    size_t index;
    json_t *element;
    json_array_foreach((json_t *)value, index, element) {
        char where[32];
        snprintf(where, sizeof where, "devices[%zu]", index);
        in.where = where;
        status = read_device(&in, element, preset, config);
        if (status != MUSTER_OK) return status;
    }
    return MUSTER_OK;
}

/* "all", "none", or pairs [a, b] that reach each other. */
static muster_status read_peers(const reader *in, const json_t *value, sim_config *config) {
    const char *text = json_string_value(value);
    const char *expected = "\"all\", \"none\", or an array of pairs of device ordinals";
    for (uint32_t i = 0; i < config->device_count; i++)
        config->peers[i] = !value || (text && strcmp(text, "all") == 0)
                               ? (config->device_count == 64 ? UINT64_MAX : ((uint64_t)1 << config->device_count) - 1) &
                                     ~((uint64_t)1 << i)
                               : 0;
    if (!value || (text && (strcmp(text, "all") == 0 || strcmp(text, "none") == 0))) return MUSTER_OK;
    if (!json_is_array(value)) return bad(in, "peers", expected);
    size_t index;
    json_t *pair;
    json_array_foreach((json_t *)value, index, pair) {
        json_int_t a = json_integer_value(json_array_get(pair, 0)), b = json_integer_value(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || !json_is_integer(json_array_get(pair, 0)) ||
            !json_is_integer(json_array_get(pair, 1)) || a < 0 || b < 0 || a >= (json_int_t)config->device_count ||
            b >= (json_int_t)config->device_count || a == b)
            return bad(in, "peers", expected);
        config->peers[a] |= (uint64_t)1 << b;
        config->peers[b] |= (uint64_t)1 << a;
    }
    return MUSTER_OK;
}

/* ---------------------------------------------------------------------------------------------------- fault plan -- */

static muster_status read_code(const reader *in, const json_t *value, CUresult *code) {
    if (json_is_integer(value) && json_integer_value(value) > 0 && json_integer_value(value) <= 999) {
        *code = (CUresult)json_integer_value(value);
        return MUSTER_OK;
    }
    const char *name = json_string_value(value);
    if (name && sim_error_code(name, code) && *code != CUDA_SUCCESS) return MUSTER_OK;
    return bad(in, "code", "an error's name (\"OUT_OF_MEMORY\") or number");
}

static const char *const plan_kinds[] = {"fail", "lose", "fault", "shrink", "corrupt", "delay"};

static muster_status read_plan_kind(const reader *in, const json_t *value, sim_plan_kind *kind) {
    const char *name = value ? json_string_value(value) : "fail";
    for (size_t i = 0; name && i < COUNT_OF(plan_kinds); i++)
        if (strcmp(name, plan_kinds[i]) == 0) {
            *kind = (sim_plan_kind)i;
            return MUSTER_OK;
        }
    return bad(in, "kind", "\"fail\", \"lose\", \"fault\", \"shrink\", \"corrupt\" or \"delay\"");
}

static muster_status read_plan_key(const reader *in, const char *key, const json_t *value, uint32_t devices,
                                   sim_plan_item *item) {
    if (strcmp(key, "kind") == 0) return MUSTER_OK; /* read before */
    if (strcmp(key, "entry") == 0) {
        const char *name = json_string_value(value);
        item->entry = name ? (int)sim_entry_find(name) : SIM_ENTRY_COUNT;
        if (name && strcmp(name, "any") == 0 && item->kind == SIM_PLAN_LOSE) return MUSTER_OK;
        return item->entry < SIM_ENTRY_COUNT ? MUSTER_OK
                                             : bad(in, key, "a member of the driver table (\"launch_kernel\")");
    }
    if (strcmp(key, "nth") == 0) return read_count(in, key, value, 0, UINT64_MAX / 2, &item->nth);
    if (strcmp(key, "repeat") == 0) {
        const char *text = json_string_value(value);
        if (text && strcmp(text, "forever") == 0) {
            item->repeat = UINT64_MAX;
            return MUSTER_OK;
        }
        if (text) return bad(in, key, "a number or \"forever\"");
        return read_count(in, key, value, 1, UINT64_MAX / 2, &item->repeat);
    }
    if (strcmp(key, "device") == 0) return read_int(in, key, value, 0, (int)devices - 1, &item->device);
    if (strcmp(key, "code") == 0) return read_code(in, value, &item->code);
    if (strcmp(key, "bytes") == 0) return read_count(in, key, value, 0, MAX_MEMORY, &item->bytes);
    if (strcmp(key, "bit") == 0) return read_count(in, key, value, 0, UINT64_MAX / 2, &item->bit);
    if (strcmp(key, "delay_ns") == 0) return read_count(in, key, value, 0, 60000000000u, &item->delay_ns);
    return unknown(in, key, "kind, entry, nth, repeat, device, code, bytes, bit, delay_ns");
}

static muster_status read_plan_item(const reader *in, const json_t *object, uint32_t devices, sim_plan_item *item) {
    if (!json_is_object(object)) return bad(in, "fault", "an object");
    *item = (sim_plan_item){.entry = -1, .device = -1, .nth = 1, .repeat = 1};
    muster_status status = read_plan_kind(in, json_object_get(object, "kind"), &item->kind);
    if (status != MUSTER_OK) return status;
    if (item->kind == SIM_PLAN_LOSE) item->code = SIM_LOSS_CODE;
    if (item->kind == SIM_PLAN_FAULT) item->code = CUDA_ERROR_ILLEGAL_ADDRESS;
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)object, key, member) {
        status = read_plan_key(in, key, member, devices, item);
        if (status != MUSTER_OK) return status;
    }
    bool call = item->kind == SIM_PLAN_FAIL || item->kind == SIM_PLAN_SHRINK || item->kind == SIM_PLAN_DELAY;
    if (call && item->entry < 0) return bad(in, "entry", "given for this kind");
    if (item->kind == SIM_PLAN_FAIL && item->code == CUDA_SUCCESS) return bad(in, "code", "given for this kind");
    if (item->nth == 0 && (item->kind != SIM_PLAN_LOSE || item->entry >= 0)) return bad(in, "nth", "at least 1");
    return MUSTER_OK;
}

static muster_status read_plan(const json_t *value, sim_config *config, muster_error *error) {
    reader in = {error, ""};
    if (!value) return MUSTER_OK;
    if (!json_is_array(value)) return bad(&in, "faults", "an array of objects");
    size_t count = json_array_size(value), index;
    config->plan = mu_alloc_zeroed(count, sizeof *config->plan);
    if (!config->plan) return mu_fail_host_memory(error, "a fault plan", count * sizeof *config->plan);
    json_t *element;
    json_array_foreach((json_t *)value, index, element) {
        char where[32];
        snprintf(where, sizeof where, "faults[%zu]", index);
        in.where = where;
        muster_status status = read_plan_item(&in, element, config->device_count, &config->plan[index]);
        if (status != MUSTER_OK) return status;
        config->plan_count = index + 1;
    }
    return MUSTER_OK;
}

/* ---------------------------------------------------------------------------------------------------------- root -- */

static muster_status read_root_key(const reader *in, const char *key, const json_t *value, sim_config *config) {
    uint64_t number;
    muster_status status;
    if (strcmp(key, "seed") == 0) return read_count(in, key, value, 0, INT64_MAX, &config->seed);
    if (strcmp(key, "watchdog_instructions") == 0)
        return read_count(in, key, value, 0, INT64_MAX, &config->watchdog_instructions);
    if (strcmp(key, "workers") == 0) {
        status = read_count(in, key, value, 1, 256, &number);
        if (status == MUSTER_OK) config->workers = (uint32_t)number;
        return status;
    }
    if (strcmp(key, "driver_version") == 0) return read_int(in, key, value, 12000, 99999, &config->driver_version);
    if (strcmp(key, "report_uninitialised") == 0) return read_bool(in, key, value, &config->report_uninitialised);
    if (strcmp(key, "null") == 0) return read_bool(in, key, value, &config->null_mode);
    if (strcmp(key, "virtual_time") == 0) return read_bool(in, key, value, &config->virtual_time);
    if (strcmp(key, "preset") == 0 || strcmp(key, "devices") == 0 || strcmp(key, "peers") == 0 ||
        strcmp(key, "faults") == 0)
        return MUSTER_OK; /* read in their order */
    return unknown(
        in, key,
        "devices, preset, peers, seed, workers, watchdog_instructions, report_uninitialised, null, virtual_time, "
        "driver_version, faults");
}

static muster_status read_root(const json_t *root, sim_config *config, muster_error *error) {
    reader in = {error, ""};
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)root, key, member) {
        muster_status status = read_root_key(&in, key, member, config);
        if (status != MUSTER_OK) return status;
    }
    muster_status status = read_devices(root, config, error);
    if (status == MUSTER_OK) status = read_peers(&in, json_object_get(root, "peers"), config);
    if (status == MUSTER_OK) status = read_plan(json_object_get(root, "faults"), config, error);
    return status;
}

muster_status sim_config_read(const char *spec, sim_config *out, muster_error *error) {
    const char *where = spec ? "the sim setting" : "MUSTER_SIM";
    if (!spec) spec = getenv("MUSTER_SIM");
    if (!spec || !*spec) spec = "{}";
    sim_config *config = mu_alloc_zeroed(1, sizeof *config);
    if (!config) return mu_fail_host_memory(error, "a simulator configuration", sizeof *config);
    config->workers = 1;
    config->driver_version = 13000;
    json_error_t problem;
    const char *path = *spec == '/' ? spec : *spec == '@' ? spec + 1 : NULL;
    struct stat about;
    if (path && stat(path, &about) == 0 && S_ISDIR(about.st_mode)) {
        mu_free(config);
        return mu_fail(error, MUSTER_FILE_UNREADABLE, "simulator: %s is a directory; name a JSON file", path);
    }
    json_t *root = path ? json_load_file(path, JSON_REJECT_DUPLICATES, &problem)
                        : json_loads(spec, JSON_REJECT_DUPLICATES, &problem);
    muster_status status;
    if (!root && path && json_error_code(&problem) == json_error_cannot_open_file)
        status = mu_fail(error, MUSTER_FILE_UNREADABLE, "simulator: cannot read %s: %s", path, strerror(errno));
    else if (!root)
        status = mu_fail(error, MUSTER_INVALID_CONFIG, "simulator: %s: line %d, column %d: %s", path ? path : where,
                         problem.line, problem.column, problem.text);
    else if (!json_is_object(root))
        status = mu_fail(error, MUSTER_INVALID_CONFIG, "simulator: %s must be a JSON object", path ? path : where);
    else
        status = read_root(root, config, error);
    json_decref(root);
    if (status == MUSTER_OK)
        *out = *config;
    else
        sim_config_free(config);
    mu_free(config);
    return status;
}

void sim_config_free(sim_config *config) { mu_free(config->plan); }
