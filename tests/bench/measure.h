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
/* Of the values so far; sorts them. `percent` 50 is the median. */
double measure_percentile(measure *measure, unsigned percent);

/* A row of the report: a name and figures with names, in the order they are added. Text rows are aligned under a heading
 * that is printed when the names change. */
typedef struct measure_report {
    bool json;
    unsigned rows;
    char heading[512];
} measure_report;

typedef struct measure_figure {
    const char *name; /* with its unit, "build_ns" */
    double value;
} measure_figure;

void measure_begin(measure_report *report, const char *title); /* title: what was measured, on what */
void measure_row(measure_report *report, const char *name, const measure_figure *figures, size_t count);
void measure_end(measure_report *report);

#endif
