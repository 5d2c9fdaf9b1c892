#include "tests/scheduler/random_options.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

typedef enum kind { WIDE, NARROW, TEXT, FLAG } kind;

static const struct {
    unsigned has; /* 0: every test has it */
    kind kind;
    const char *name; /* NULL: the count's */
    const char *value;
    size_t place;
} known[] = {
    {0, WIDE, "seed", "S", offsetof(random_options, seed)},
    {0, NARROW, NULL, "N", offsetof(random_options, count)},
    {RANDOM_DEVICES, NARROW, "devices", "D", offsetof(random_options, devices)},
    {RANDOM_ACTORS, NARROW, "actors", "A", offsetof(random_options, actors)},
    {RANDOM_DRIVER, TEXT, "driver", "sim|cuda", offsetof(random_options, driver)},
    {RANDOM_BURSTS, TEXT, "bursts", "MODE", offsetof(random_options, bursts)},
    {RANDOM_SECONDS, WIDE, "seconds", "T", offsetof(random_options, seconds)},
    {RANDOM_VERBOSE, FLAG, "verbose", "", offsetof(random_options, verbose)},
};
enum { KNOWN = sizeof known / sizeof known[0] };

static const char *name_of(int index, const char *count) { return known[index].name ? known[index].name : count; }
static bool is_had(int index, unsigned has) { return (known[index].has & has) == known[index].has; }

static int find(const char *argument, const char *count, unsigned has) {
    for (int i = 0; i < KNOWN && strncmp(argument, "--", 2) == 0; i++)
        if (is_had(i, has) && strcmp(argument + 2, name_of(i, count)) == 0) return i;
    return -1;
}

static bool set(int index, const char *value, random_options *options) {
    char *place = (char *)options + known[index].place, *end = NULL;
    if (known[index].kind == FLAG) {
        *(bool *)place = true;
        return true;
    }
    if (known[index].kind == TEXT) {
        *(const char **)place = value;
        return true;
    }
    uint64_t number = strtoull(value, &end, 10);
    if (!*value || *end || (known[index].kind == NARROW && number > UINT32_MAX)) return false;
    if (known[index].kind == WIDE)
        *(uint64_t *)place = number;
    else
        *(uint32_t *)place = (uint32_t)number;
    return true;
}

static bool read_all(int argc, char **argv, const char *count, unsigned has, random_options *options) {
    for (int i = 1; i < argc; i++) {
        int index = find(argv[i], count, has);
        if (index < 0) return false;
        bool flag = known[index].kind == FLAG;
        if (!flag && ++i == argc) return false;
        if (!set(index, argv[i], options)) return false;
    }
    return options->count > 0 &&
           (!options->driver || !strcmp(options->driver, "sim") || !strcmp(options->driver, "cuda"));
}

bool random_options_read(int argc, char **argv, const char *count, unsigned has, random_options *options) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (read_all(argc, argv, count, has, options)) return true;
    fprintf(stderr, "usage: %s", argv[0]);
    for (int i = 0; i < KNOWN; i++)
        if (is_had(i, has))
            fprintf(stderr, " [--%s%s%s]", name_of(i, count), *known[i].value ? " " : "", known[i].value);
    fputc('\n', stderr);
    return false;
}

bool random_goes_on(const random_options *options, uint64_t begin_ns, uint32_t done) {
    if (options->seconds) return mu_now_ns() - begin_ns < options->seconds * 1000000000u;
    return done < options->count;
}
