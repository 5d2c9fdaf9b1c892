#include "example.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static muster_status create_on(const char *driver, const example_options *options, muster_runtime **runtime,
                               muster_error *error) {
    uint32_t devices = options->devices;
    muster_config config = {
        .struct_size = sizeof config, .driver = driver, .device_count = devices, .actors_per_device = options->actors};
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
