#include "scheduler/runtime/config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/placement/policies.h"

static muster_status set_text(char **field, const char *text, muster_error *error) {
    char *copy = mu_strdup(text);
    if (!copy) return mu_fail_host_memory(error, "the configuration", strlen(text) + 1);
    mu_free(*field);
    *field = copy;
    return MUSTER_OK;
}

/* ------------------------------------------------------------------------------------------------------- JSON file -- */

typedef struct reading {
    const char *path, *key;
    json_t *value;
    muster_error *error;
} reading;

static muster_status wrong_type(const reading *r, const char *expected) {
    return mu_fail(r->error, MUSTER_INVALID_CONFIG, "%s: \"%s\" must be %s", r->path, r->key, expected);
}

static muster_status read_u64(const reading *r, uint64_t maximum, uint64_t *out) {
    if (!json_is_integer(r->value) || json_integer_value(r->value) < 0)
        return wrong_type(r, "a whole number, 0 or more");
    uint64_t value = (uint64_t)json_integer_value(r->value);
    if (value > maximum)
        return mu_fail(r->error, MUSTER_INVALID_CONFIG, "%s: \"%s\" is %llu; at most %llu", r->path, r->key,
                       (unsigned long long)value, (unsigned long long)maximum);
    *out = value;
    return MUSTER_OK;
}

static muster_status read_u32(const reading *r, uint32_t *out) {
    uint64_t value;
    muster_status status = read_u64(r, UINT32_MAX, &value);
    if (!status) *out = (uint32_t)value;
    return status;
}

static muster_status read_text(const reading *r, char **out) {
    if (!json_is_string(r->value)) return wrong_type(r, "a string");
    return set_text(out, json_string_value(r->value), r->error);
}

static muster_status read_flag(const reading *r, uint32_t flag, uint32_t *flags) {
    if (!json_is_boolean(r->value)) return wrong_type(r, "true or false");
    *flags = json_is_true(r->value) ? *flags | flag : *flags & ~flag;
    return MUSTER_OK;
}

static muster_status set_bursts(const char *text, const char *source, mu_burst_mode *mode, muster_error *error) {
    static const char *const names[] = {"auto", "off", "always", "random"}; /* in the order of mu_burst_mode */
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) != 0) continue;
        *mode = (mu_burst_mode)i;
        return MUSTER_OK;
    }
    return mu_fail(error, MUSTER_INVALID_CONFIG, "%s is \"%.40s\"; use \"auto\", \"off\", \"always\" or \"random\"",
                   source, text);
}

static muster_status read_bursts(const reading *r, mu_burst_mode *mode) {
    if (!json_is_string(r->value)) return wrong_type(r, "a string");
    return set_bursts(json_string_value(r->value), "bursts", mode, r->error);
}

/* Of what is on unless a flag says otherwise: true leaves it on. */
static muster_status read_no_flag(const reading *r, uint32_t flag, uint32_t *flags) {
    muster_status status = read_flag(r, flag, flags);
    *flags ^= status ? 0 : flag;
    return status;
}

/* The simulated machine is given as it is: text, or an object that is passed on as text. */
static muster_status read_sim(const reading *r, char **out) {
    if (json_is_string(r->value)) return read_text(r, out);
    if (!json_is_object(r->value)) return wrong_type(r, "an object or a string");
    char *text = json_dumps(r->value, JSON_COMPACT);
    if (!text) return mu_fail_host_memory(r->error, "the configuration", 0);
    muster_status status = set_text(out, text, r->error);
    free(text); /* jansson's own allocation */
    return status;
}

static muster_status read_ordinals(const reading *r, mu_config *config) {
    if (!json_is_array(r->value) || json_array_size(r->value) > MU_MAX_DEVICES)
        return wrong_type(r, "an array of at most 32 ordinals");
    config->ordinal_count = 0;
    for (size_t i = 0; i < json_array_size(r->value); i++) {
        json_t *item = json_array_get(r->value, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > INT32_MAX)
            return wrong_type(r, "an array of ordinals, 0 or more");
        config->ordinals[config->ordinal_count++] = (int)json_integer_value(item);
    }
    return MUSTER_OK;
}

static muster_status read_key(const reading *r, mu_config *config) {
    const char *key = r->key;
    if (!strcmp(key, "driver")) return read_text(r, &config->driver);
    if (!strcmp(key, "sim")) return read_sim(r, &config->sim);
    if (!strcmp(key, "ordinals")) return read_ordinals(r, config);
    if (!strcmp(key, "device_count")) return read_u32(r, &config->device_count);
    if (!strcmp(key, "serial")) return read_flag(r, MUSTER_RUNTIME_SERIAL, &config->flags);
    if (!strcmp(key, "own_context")) return read_flag(r, MUSTER_RUNTIME_OWN_CONTEXT, &config->flags);
    if (!strcmp(key, "numa")) return read_no_flag(r, MUSTER_RUNTIME_NO_NUMA, &config->flags);
    if (!strcmp(key, "stealing")) return read_no_flag(r, MUSTER_RUNTIME_NO_STEALING, &config->flags);
    if (!strcmp(key, "actors_per_device")) return read_u32(r, &config->actors_per_device);
    if (!strcmp(key, "budget_bytes")) return read_u64(r, UINT64_MAX, &config->budget_bytes);
    if (!strcmp(key, "budget_permille")) return read_u32(r, &config->budget_permille);
    if (!strcmp(key, "max_queued_jobs")) return read_u32(r, &config->max_queued_jobs);
    if (!strcmp(key, "admission_wait_ns")) return read_u64(r, UINT64_MAX, &config->admission_wait_ns);
    if (!strcmp(key, "spin_ns")) return read_u64(r, UINT64_MAX, &config->spin_ns);
    if (!strcmp(key, "enqueue_ahead_ns")) return read_u64(r, UINT64_MAX, &config->enqueue_ahead_ns);
    if (!strcmp(key, "enqueue_limit_ns")) return read_u64(r, UINT64_MAX, &config->enqueue_limit_ns);
    if (!strcmp(key, "placement")) return read_text(r, &config->placement);
    if (!strcmp(key, "bursts")) return read_bursts(r, &config->bursts);
    if (!strcmp(key, "seed")) return read_u64(r, UINT64_MAX, &config->seed);
    if (!strcmp(key, "cache_dir")) return read_text(r, &config->cache_dir);
    if (!strcmp(key, "host_budget_bytes")) return read_u64(r, UINT64_MAX, &config->host_budget_bytes);
    if (!strcmp(key, "cache_bytes")) return read_u64(r, UINT64_MAX, &config->cache_bytes);
    if (!strcmp(key, "dump_ptx")) return read_text(r, &config->dump_ptx);
    if (!strcmp(key, "dump_dir")) return read_text(r, &config->dump_dir);
    return mu_fail(r->error, MUSTER_INVALID_CONFIG, "%s: \"%s\" is not a setting; docs/configuration.md lists them",
                   r->path, key);
}

static muster_status read_file(const char *path, mu_config *config, muster_error *error) {
    struct stat about;
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        return mu_fail(error, MUSTER_FILE_UNREADABLE, "%s is a directory; name a JSON file", path);
    json_error_t problem;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    if (!root)
        return json_error_code(&problem) == json_error_cannot_open_file
                   ? mu_fail(error, MUSTER_FILE_UNREADABLE, "%s", problem.text)
                   : mu_fail(error, MUSTER_INVALID_CONFIG, "%s:%d:%d: %s", path, problem.line, problem.column,
                             problem.text);
    muster_status status = MUSTER_OK;
    if (!json_is_object(root)) {
        status = mu_fail(error, MUSTER_INVALID_CONFIG, "%s: the configuration must be one JSON object", path);
    } else {
        reading r = {.path = path, .error = error};
        json_object_foreach(root, r.key, r.value) {
            if ((status = read_key(&r, config))) break;
        }
    }
    json_decref(root);
    if (!status && config->device_count && config->ordinal_count && config->device_count != config->ordinal_count)
        status = mu_fail(error, MUSTER_INVALID_CONFIG,
                         "%s: \"device_count\" is %u, and \"ordinals\" names %u devices; leave one of them out", path,
                         config->device_count, config->ordinal_count);
    return status;
}

/* ------------------------------------------------------------------------------------------------- environment, code -- */

static bool set_in_environment(const char *name) {
    const char *value = getenv(name);
    return value && *value;
}

static muster_status read_switch(const char *name, bool *on, muster_error *error) {
    if (!set_in_environment(name)) return MUSTER_OK;
    const char *value = getenv(name);
    if (strcmp(value, "1") != 0 && strcmp(value, "0") != 0)
        return mu_fail(error, MUSTER_INVALID_CONFIG, "%s is \"%.40s\"; set it to 1 or 0", name, value);
    *on = *value == '1';
    return MUSTER_OK;
}

static muster_status read_environment(mu_config *config, muster_error *error) {
    muster_status status = MUSTER_OK;
    if (set_in_environment("MUSTER_DRIVER")) status = set_text(&config->driver, getenv("MUSTER_DRIVER"), error);
    bool serial = false, stealing = true;
    if (!status) status = read_switch("MUSTER_SERIAL", &serial, error);
    if (!status) status = read_switch("MUSTER_STEALING", &stealing, error);
    if (!status && set_in_environment("MUSTER_BURSTS"))
        status = set_bursts(getenv("MUSTER_BURSTS"), "MUSTER_BURSTS", &config->bursts, error);
    if (status) return status;
    if (serial) config->flags |= MUSTER_RUNTIME_SERIAL;
    if (!stealing) config->flags |= MUSTER_RUNTIME_NO_STEALING;
    if (set_in_environment("MUSTER_ACTORS_PER_DEVICE")) {
        const char *text = getenv("MUSTER_ACTORS_PER_DEVICE");
        char *end;
        unsigned long actors = strtoul(text, &end, 10);
        if (*text < '0' || *text > '9' || *end || actors > MU_MAX_SHARES)
            return mu_fail(error, MUSTER_INVALID_CONFIG, "MUSTER_ACTORS_PER_DEVICE is \"%.40s\"; set it to 1 to %d",
                           text, MU_MAX_SHARES);
        config->actors_per_device = (uint32_t)actors;
    }
    return status;
}

static muster_status read_policy(const muster_placement_policy *policy, mu_config *config, muster_error *error) {
    if (policy->struct_size != sizeof *policy)
        return mu_fail(error, MUSTER_INVALID_CONFIG,
                       "policy->struct_size is %zu; set it to sizeof(muster_placement_policy), %zu",
                       policy->struct_size, sizeof *policy);
    if (!policy->place)
        return mu_fail(error, MUSTER_INVALID_CONFIG, "policy->place is NULL; set it to the function that chooses");
    if (policy->flags & ~MU_PLACEMENT_FLAGS)
        return mu_fail(error, MUSTER_INVALID_CONFIG, "policy->flags 0x%x has bits this version does not know",
                       policy->flags);
    muster_status status = set_text(&config->policy_name, policy->name ? policy->name : "custom", error);
    if (status) return status;
    config->policy = *policy;
    config->policy.name = config->policy_name;
    return MUSTER_OK;
}

static muster_status read_code(const muster_config *user, mu_config *config, muster_error *error) {
    muster_status status = MUSTER_OK;
    if (user->driver) status = set_text(&config->driver, user->driver, error);
    if (!status && user->sim) status = set_text(&config->sim, user->sim, error);
    if (!status && user->placement) status = set_text(&config->placement, user->placement, error);
    if (!status && user->bursts) status = set_bursts(user->bursts, "bursts", &config->bursts, error);
    if (!status && user->cache_dir) status = set_text(&config->cache_dir, user->cache_dir, error);
    if (!status && user->dump_ptx) status = set_text(&config->dump_ptx, user->dump_ptx, error);
    if (!status && user->dump_dir) status = set_text(&config->dump_dir, user->dump_dir, error);
    if (!status && user->policy) status = read_policy(user->policy, config, error);
    if (status) return status;
    /* What is set in code replaces what the file says in other words. */
    if (user->device_count) config->device_count = user->device_count, config->ordinal_count = 0;
    if (user->budget_permille) config->budget_bytes = 0;
    if (user->ordinals) {
        if (user->device_count == 0 || user->device_count > MU_MAX_DEVICES)
            return mu_fail(error, MUSTER_INVALID_CONFIG, "ordinals needs device_count between 1 and %d, not %u",
                           MU_MAX_DEVICES, user->device_count);
        memcpy(config->ordinals, user->ordinals, user->device_count * sizeof *user->ordinals);
        config->ordinal_count = user->device_count;
    }
    config->flags |= user->flags;
    if (user->actors_per_device) config->actors_per_device = user->actors_per_device;
    if (user->budget_bytes) config->budget_bytes = user->budget_bytes;
    if (user->budget_permille) config->budget_permille = user->budget_permille;
    if (user->max_queued_jobs) config->max_queued_jobs = user->max_queued_jobs;
    if (user->admission_wait_ns) config->admission_wait_ns = user->admission_wait_ns;
    if (user->spin_ns) config->spin_ns = user->spin_ns;
    if (user->enqueue_limit_ns) config->enqueue_limit_ns = user->enqueue_limit_ns;
    if (user->enqueue_ahead_ns) config->enqueue_ahead_ns = user->enqueue_ahead_ns;
    if (user->seed) config->seed = user->seed;
    if (user->host_budget_bytes) config->host_budget_bytes = user->host_budget_bytes;
    if (user->cache_bytes) config->cache_bytes = user->cache_bytes;
    config->log = user->log;
    config->log_user = user->log_user;
    if (user->log_level) config->log_level = user->log_level;
    return MUSTER_OK;
}

static muster_status check(const mu_config *config, muster_error *error) {
    if (strcmp(config->driver, "cuda") != 0 && strcmp(config->driver, "sim") != 0)
        return mu_fail(error, MUSTER_INVALID_CONFIG, "driver is \"%.40s\"; use \"cuda\" or \"sim\"", config->driver);
    if (config->sim && strcmp(config->driver, "sim") != 0)
        return mu_fail(error, MUSTER_INVALID_CONFIG,
                       "sim describes a simulated machine, but the driver is \"%s\"; set driver to \"sim\"",
                       config->driver);
    if (config->device_count > MU_MAX_DEVICES)
        return mu_fail(error, MUSTER_INVALID_CONFIG, "device_count is %u; at most %d", config->device_count,
                       MU_MAX_DEVICES);
    if (config->actors_per_device > MU_MAX_SHARES)
        return mu_fail(error, MUSTER_INVALID_CONFIG, "actors_per_device is %u; at most %d", config->actors_per_device,
                       MU_MAX_SHARES);
    const uint32_t known =
        MUSTER_RUNTIME_SERIAL | MUSTER_RUNTIME_OWN_CONTEXT | MUSTER_RUNTIME_NO_NUMA | MUSTER_RUNTIME_NO_STEALING;
    if (config->flags & ~known)
        return mu_fail(error, MUSTER_INVALID_CONFIG, "flags 0x%x has bits this version does not know", config->flags);
    if (config->budget_permille > 1000)
        return mu_fail(error, MUSTER_INVALID_CONFIG, "budget_permille is %u; at most 1000", config->budget_permille);
    if (!muster_placement_find(config->placement))
        return mu_fail(error, MUSTER_INVALID_CONFIG, "placement is \"%.40s\"; use one of %s", config->placement,
                       mu_placement_names);
    if (config->log_level > MUSTER_LOG_DEBUG)
        return mu_fail(error, MUSTER_INVALID_CONFIG, "log_level is %d; at most %d", (int)config->log_level,
                       (int)MUSTER_LOG_DEBUG);
    for (uint32_t i = 0; i < config->ordinal_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (config->ordinals[i] == config->ordinals[j])
                return mu_fail(error, MUSTER_INVALID_CONFIG,
                               "ordinals names device %d twice; name each device once, and set actors_per_device for "
                               "several actors on each",
                               config->ordinals[i]);
    return MUSTER_OK;
}

muster_status mu_config_resolve(const muster_config *user, mu_config *out, muster_error *error) {
    if (user && user->struct_size != sizeof *user)
        return mu_fail(error, MUSTER_INVALID_CONFIG, "config->struct_size is %zu; set it to sizeof(muster_config), %zu",
                       user->struct_size, sizeof *user);
    mu_config config = {
        .admission_wait_ns = MU_ADMISSION_WAIT_NS,
        .spin_ns = MU_SPIN_NS,
        .enqueue_limit_ns = MU_ENQUEUE_LIMIT_NS,
        .enqueue_ahead_ns = MU_ENQUEUE_AHEAD_NS,
        .log_level = MUSTER_LOG_WARNING,
    };
    const char *path = user ? user->config_path : NULL;
    muster_status status = set_text(&config.driver, "cuda", error);
    if (!status) status = set_text(&config.placement, "locality", error);
    if (!status) status = read_environment(&config, error);
    if (!status && path) status = read_file(path, &config, error);
    if (!status && user) status = read_code(user, &config, error);
    if (!status) status = check(&config, error);
    if (!config.actors_per_device) config.actors_per_device = 1;
    if (!status && !config.policy.place) config.policy = *muster_placement_find(config.placement);
    if (status)
        mu_config_free(&config);
    else
        *out = config;
    return status;
}

void mu_config_free(mu_config *config) {
    mu_free(config->driver);
    mu_free(config->sim);
    mu_free(config->placement);
    mu_free(config->policy_name);
    mu_free(config->cache_dir);
    mu_free(config->dump_ptx);
    mu_free(config->dump_dir);
}
