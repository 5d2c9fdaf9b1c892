/* The command line of tests that draw what they do from seeds: --seed S, --<count> N, and those of
 *     --devices D --actors A --driver sim|cuda --bursts MODE --seconds T --verbose
 * that the test has. */
#ifndef MUSTER_TESTS_SCHEDULER_RANDOM_OPTIONS_H
#define MUSTER_TESTS_SCHEDULER_RANDOM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* What a test has beside the seed and the count. */
enum {
    RANDOM_DEVICES = 1,
    RANDOM_ACTORS = 2,
    RANDOM_DRIVER = 4,
    RANDOM_BURSTS = 8,
    RANDOM_SECONDS = 16,
    RANDOM_VERBOSE = 32
};

/* Set to the defaults before reading; what the test has not stays so. */
typedef struct random_options {
    uint64_t seed;
    uint64_t seconds; /* instead of a count; 0: none */
    uint32_t count;   /* of what is drawn; never 0 */
    uint32_t devices, actors;
    const char *driver, *bursts;
    bool verbose;
} random_options;

/* False, and the usage is on stderr: the command line is wrong. `count` is the name of the count, "graphs". Output appears line by line
 * from here on, so that it is not lost when the process is killed for taking too long. */
bool random_options_read(int argc, char **argv, const char *count, unsigned has, random_options *options);

/* Whether there is more to do, `done` of the count being done since begin_ns (mu_now_ns). */
bool random_goes_on(const random_options *options, uint64_t begin_ns, uint32_t done);

#endif
