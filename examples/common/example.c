#include "example.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEFAULT_SIMULATED_DEVICES = 2, MOST_DEVICES = 1024, MOST_ACTORS = 16 };

const char *example_value(const char *name, const char *option, int argc, char **argv, int *at, int *bad) {
    const char *word = argv[*at];
    size_t length = strlen(option);
    if (strncmp(word, option, length) != 0) return NULL;
    if (word[length] == '=') return word + length + 1;
    if (word[length] != '\0') return NULL;
    if (*at + 1 == argc) {
        fprintf(stderr, "%s: option %s needs a value\n", name, option);
        *bad = 1;
        return NULL;
    }
    return argv[++*at];
}

static unsigned shift_of(char suffix) {
    switch (suffix) {
        case 'K': return 10;
        case 'M': return 20;
        case 'G': return 30;
        default: return 0;
    }
}

int example_number(const char *name, const char *option, const char *text, uint64_t low, uint64_t high,
                   uint64_t *number) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    unsigned shift = shift_of(*end);
    int good = text[0] >= '0' && text[0] <= '9' && errno == 0; /* strtoull takes a sign and blanks; we do not */
    if (good && end[shift != 0] == '\0' && value <= UINT64_MAX >> shift) {
        value <<= shift;
        if (value >= low && value <= high) {
            *number = value;
            return 1;
        }
    }
    fprintf(stderr, "%s: %s %s: expected a number from %llu to %llu\n", name, option, text, (unsigned long long)low,
            (unsigned long long)high);
    return 0;
}

example_parsed example_option(example_options *options, int argc, char **argv, int *at) {
    int bad = 0;
    const char *value = example_value(options->name, "--driver", argc, argv, at, &bad);
    if (value) {
        if (strcmp(value, "cuda") != 0 && strcmp(value, "sim") != 0 && strcmp(value, "auto") != 0) {
            fprintf(stderr, "%s: --driver %s: expected cuda, sim or auto\n", options->name, value);
            return EXAMPLE_BAD;
        }
        options->driver = value;
        return EXAMPLE_TAKEN;
    }
    if (!bad) value = example_value(options->name, "--devices", argc, argv, at, &bad);
    if (value) {
        uint64_t devices;
        if (!example_number(options->name, "--devices", value, 1, MOST_DEVICES, &devices)) return EXAMPLE_BAD;
        options->devices = (uint32_t)devices;
        return EXAMPLE_TAKEN;
    }
    if (!bad) value = example_value(options->name, "--actors", argc, argv, at, &bad);
    if (value) {
        uint64_t actors;
        if (!example_number(options->name, "--actors", value, 1, MOST_ACTORS, &actors)) return EXAMPLE_BAD;
        options->actors = (uint32_t)actors;
        return EXAMPLE_TAKEN;
    }
    return bad ? EXAMPLE_BAD : EXAMPLE_NOT_MINE;
}

/* Ends the program. */
static void tell_usage(const example_options *options, FILE *to) {
    fprintf(to,
            "usage: %s [options]\n%s"
            "  --driver cuda|sim|auto  the CUDA driver, the simulator, or (default) the first that works\n"
            "  --devices N             use N devices\n"
            "  --actors N              N actors on each device\n",
            options->name, options->usage ? options->usage : "");
    exit(to == stdout ? 0 : 2);
}

static example_parsed take_setting(const char *name, const example_setting *setting, int argc, char **argv, int *at) {
    int bad = 0;
    const char *value = example_value(name, setting->option, argc, argv, at, &bad);
    if (!value) return bad ? EXAMPLE_BAD : EXAMPLE_NOT_MINE;
    if (setting->text) *setting->text = value;
    if (setting->number && !example_number(name, setting->option, value, setting->low, setting->high, setting->number))
        return EXAMPLE_BAD;
    return EXAMPLE_TAKEN;
}

void example_parse(example_options *options, const example_setting *settings, size_t count, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        example_parsed parsed = example_option(options, argc, argv, &i);
        for (size_t s = 0; parsed == EXAMPLE_NOT_MINE && s < count; s++)
            parsed = take_setting(options->name, &settings[s], argc, argv, &i);
        if (parsed == EXAMPLE_TAKEN) continue;
        if (parsed == EXAMPLE_BAD) exit(2);
        if (strcmp(argv[i], "--help") == 0) tell_usage(options, stdout);
        fprintf(stderr, "%s: unknown option %s\n", options->name, argv[i]);
        tell_usage(options, stderr);
    }
}

static muster_status create_on(const char *driver, const example_options *options, muster_runtime **runtime,
                               muster_error *error) {
    uint32_t devices = options->devices;
    muster_config config = {.struct_size = sizeof config,
                            .driver = driver,
                            .device_count = devices,
                            .actors_per_device = options->actors,
                            .budget_bytes = options->budget_bytes};
    char machine[32];
    /* The simulated machine is ours to describe, unless the user described one. */
    if (driver && strcmp(driver, "sim") == 0 && !getenv("MUSTER_SIM")) {
        snprintf(machine, sizeof machine, "{\"devices\": %u}", devices ? devices : DEFAULT_SIMULATED_DEVICES);
        config.sim = machine;
    }
    return muster_runtime_create(&config, runtime, error);
}

static void announce(const char *name, const muster_runtime *runtime) {
    muster_device_info info = {.struct_size = sizeof info};
    int count = muster_device_count(runtime);
    if (muster_device_get_info(runtime, 0, &info, NULL) != MUSTER_OK) return;
    fprintf(stderr, "%s: running on %d %sdevice%s, first %s\n", name, count, info.simulated ? "simulated " : "",
            count == 1 ? "" : "s", info.name);
}

muster_runtime *example_runtime_create(const example_options *options) {
    muster_runtime *runtime;
    muster_error error;
    const char *driver = options->driver;
    int automatic = !driver || strcmp(driver, "auto") == 0;
    if (automatic) driver = getenv("MUSTER_DRIVER");
    if (automatic && driver) automatic = 0;

    muster_status status = create_on(automatic ? "cuda" : driver, options, &runtime, &error);
    if (automatic && (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE || status == MUSTER_DRIVER_TOO_OLD)) {
        fprintf(stderr, "%s: using the simulator, since there is no CUDA device: %s\n", options->name, error.message);
        status = create_on("sim", options, &runtime, &error);
    }
    if (status != MUSTER_OK) {
        example_complain(options->name, "cannot start Muster", &error);
        return NULL;
    }
    announce(options->name, runtime);
    return runtime;
}

void example_complain(const char *name, const char *doing, const muster_error *error) {
    fprintf(stderr, "%s: %s: %s (%s: %s)\n", name, doing, error->message, muster_status_name(error->status),
            muster_recovery_name(muster_status_recovery(error->status)));
}

int example_runtime_destroy(const example_options *options, muster_runtime *runtime) {
    muster_error error;
    if (muster_runtime_destroy(runtime, MUSTER_FOREVER, &error) == MUSTER_OK) return 0;
    example_complain(options->name, "cannot stop Muster", &error);
    return 1;
}

double example_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}
