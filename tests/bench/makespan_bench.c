/* How well are uneven jobs placed on devices of different speed?
 *
 *     makespan_bench [--seed N] [--json]
 *
 * 1,000 jobs on four simulated devices of the modelled speeds 1, 0.7, 0.4 and 0.25, placed while no device has begun
 * (tests/scheduler/makespan.h). Times are the model's, and so the same on every machine and in every run:
 *     placed_ms    of where the policy put the jobs
 *     best_ms      the best that is known: longest jobs first, each where it ends soonest (LPT), all of them known beforehand
 *     ratio        placed to best; within 1.10 is what "locality" is to reach
 *     bound_ms     all work by all speeds: nothing can be faster */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/measure.h"
#include "tests/cache/scratch.h"
#include "tests/scheduler/makespan.h"

static void row(measure_report *report, const makespan_case *c) {
    makespan result;
    char name[80], directory[4096];
    snprintf(directory, sizeof directory, "%s", scratch_make());
    makespan_run(c, directory, &result);
    scratch_remove(directory);
    snprintf(name, sizeof name, "%s%s, %s%s", makespan_shape_names[c->shape], c->data ? " with data" : "", c->placement,
             c->learnt ? "" : ", nothing learnt");
    const measure_figure figures[] = {{"placed_ms", result.placed_us / 1000},
                                      {"best_ms", result.best_us / 1000},
                                      {"ratio", result.placed_us / result.best_us},
                                      {"bound_ms", result.bound_us / 1000}};
    const measure_bound within = {"ratio", 1.10, false};
    measure_row_bounded(report, name, figures, sizeof figures / sizeof figures[0], &within,
                        c->learnt && strcmp(c->placement, "locality") == 0);
}

int main(int argc, char **argv) {
    static const char *const others[] = {"least-loaded", "round-robin", "random"};
    measure_report report = {0};
    uint64_t seed = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            report.json = true;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 10);
        } else {
            fprintf(stderr, "usage: makespan_bench [--seed N] [--json]\n");
            return 2;
        }
    }
    measure_begin(&report, "makespan of 1,000 uneven jobs on four simulated devices, in modelled time");
    for (int data = 0; data < 2; data++) {
        makespan_case c = {.data = data, .learnt = true, .seed = seed};
        for (int shape = 0; shape < MAKESPAN_SHAPES; shape++) {
            c.shape = (makespan_shape)shape;
            c.placement = "locality";
            row(&report, &c);
        }
        c.shape = MAKESPAN_UNEVEN;
        for (int p = 0; p < 3; p++) {
            c.placement = others[p];
            row(&report, &c);
        }
        c.placement = "locality";
        c.learnt = false;
        row(&report, &c);
    }
    measure_end(&report);
    return 0;
}
