/* What the benchmarks share: medians of repeated runs, and rows as text or JSON. */
#ifndef MUSTER_TESTS_BENCH_MEASURE_H
#define MUSTER_TESTS_BENCH_MEASURE_H

#include <stdbool.h>
#include <stddef.h>

enum { MEASURE_MAX_RUNS = 101 };

typedef struct measure {
    double value[MEASURE_MAX_RUNS];
    size_t count;
} measure;

void measure_add(measure *measure, double value);
/* Of the values so far; sorts them. `percent` 50 is the median. 0 without values. */
double measure_percentile(measure *measure, unsigned percent);

/* A row of the report: a name and figures with names, in the order they are added. Text rows are aligned under a heading
 * that is printed when the names change. A figure that is NAN was not measured: "-" in text, null in JSON. */
typedef struct measure_report {
    bool json;
    bool unjudged; /* figures of this machine say nothing of hardware: bounds are printed, and not compared */
    unsigned rows, bounds, met;
    char heading[512];
} measure_report;

typedef struct measure_figure {
    const char *name; /* with its unit, "build_ns" */
    double value;
} measure_figure;

/* What a figure of the row should be. */
typedef struct measure_bound {
    const char *figure;
    double limit;
    bool at_least; /* otherwise at most */
} measure_bound;

void measure_begin(measure_report *report, const char *title); /* title: what was measured, on what */
void measure_row(measure_report *report, const char *name, const measure_figure *figures, size_t count);
/* A row with bounds, behind it: "ratio <= 1.15 met", or "missed"; in JSON "bounds": [{"figure": "ratio", "at_most": 1.15, "met":
 * true}]. Nothing is asserted. */
void measure_row_bounded(measure_report *report, const char *name, const measure_figure *figures, size_t count,
                         const measure_bound *bounds, size_t bound_count);
void measure_end(measure_report *report); /* text: how many bounds were met, if there were any */

#endif
