/* What the examples share: the choice of driver and devices on the command line.
 *
 *   --driver cuda|sim|auto   auto (the default) tries the CUDA driver first and, where there is none or it has no
 *                            usable device, takes the simulator instead; it says so on stderr. That choice is the
 *                            example's: Muster itself never falls back. With MUSTER_DRIVER set, auto means that driver.
 *   --devices N              use N devices. Default: every device of the machine, or two simulated ones.
 *   --actors N               N actors on each of them: several devices to Muster on a machine with one GPU.
 *
 * and a few helpers that keep the examples to what they are about. */
#ifndef MUSTER_EXAMPLES_COMMON_EXAMPLE_H
#define MUSTER_EXAMPLES_COMMON_EXAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "muster.h"

typedef struct example_options {
    const char *name;      /* of the example, in front of its messages */
    const char *driver;    /* "cuda", "sim", "auto"; NULL: auto */
    uint32_t devices;      /* 0: default */
    uint32_t actors;       /* 0: one on each device */
    const char *usage;     /* of example_parse: what its own options are; may be NULL */
    uint64_t budget_bytes; /* of device memory for each actor; 0: Muster's default. For the example to set */
} example_options;

typedef enum example_parsed {
    EXAMPLE_NOT_MINE, /* argv[*at] is not one of the options above */
    EXAMPLE_TAKEN,    /* it was; *at is its last word */
    EXAMPLE_BAD       /* it was, and is wrong; the reason is on stderr */
} example_parsed;

/* Takes the option at argv[*at], written "--driver sim" or "--driver=sim". */
example_parsed example_option(example_options *options, int argc, char **argv, int *at);

/* The value of option `option` at argv[*at], in either spelling; *at moves to its last word. NULL when argv[*at] is
 * another option; a missing value is an error on stderr and sets *bad. */
const char *example_value(const char *name, const char *option, int argc, char **argv, int *at, int *bad);

/* Reads a decimal number from `low` to `high` with an optional K, M or G (powers of 1024). 0 and a message on stderr
 * when it is none. */
int example_number(const char *name, const char *option, const char *text, uint64_t low, uint64_t high,
                   uint64_t *number);

/* An option of the example's own, "--option VALUE": a number, or a text. */
typedef struct example_setting {
    const char *option;
    uint64_t low, high;
    uint64_t *number;  /* holds the default before ... */
    const char **text; /* ... as does this; one of them is NULL */
} example_setting;

/* Takes the whole command line: the options above, `count` settings, and --help. Ends the program when it is wrong (exit status 2)
 * or asks for help. */
void example_parse(example_options *options, const example_setting *settings, size_t count, int argc, char **argv);

/* Creates the runtime that the options ask for and names it on stderr. NULL, with the reason on stderr, on failure. */
muster_runtime *example_runtime_create(const example_options *options);

/* Destroys it. 1, with the reason on stderr, on failure. */
int example_runtime_destroy(const example_options *options, muster_runtime *runtime);

/* Seconds since some moment. */
double example_now(void);

/* Prints "name: doing what: message" for a failed call. */
void example_complain(const char *name, const char *doing, const muster_error *error);

#endif
