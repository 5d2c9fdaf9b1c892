#include "tests/bench/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void measure_add(measure *measure, double value) {
    if (measure->count < MEASURE_MAX_RUNS) measure->value[measure->count++] = value;
}

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

double measure_percentile(measure *measure, unsigned percent) {
    if (!measure->count) return 0;
    qsort(measure->value, measure->count, sizeof measure->value[0], compare);
    return measure->value[(measure->count - 1) * percent / 100];
}

void measure_begin(measure_report *report, const char *title) {
    report->rows = 0;
    report->heading[0] = 0;
    if (report->json)
        printf("{\"title\": \"%s\", \"rows\": [", title);
    else
        printf("%s\n", title);
}

static void print_heading(measure_report *report, const measure_figure *figures, size_t count) {
    char heading[sizeof report->heading] = "";
    size_t used = 0;
    for (size_t i = 0; i < count && used < sizeof heading; i++)
        used += (size_t)snprintf(heading + used, sizeof heading - used, "%14s", figures[i].name);
    if (strcmp(heading, report->heading) == 0) return;
    memcpy(report->heading, heading, sizeof heading);
    printf("%-44s%s\n", "", heading);
}

void measure_row(measure_report *report, const char *name, const measure_figure *figures, size_t count) {
    if (report->json) {
        printf("%s\n  {\"name\": \"%s\"", report->rows ? "," : "", name);
        for (size_t i = 0; i < count; i++) printf(", \"%s\": %.4g", figures[i].name, figures[i].value);
        printf("}");
    } else {
        print_heading(report, figures, count);
        printf("%-44s", name);
        for (size_t i = 0; i < count; i++) printf("%14.4g", figures[i].value);
        printf("\n");
    }
    report->rows++;
    fflush(stdout);
}

void measure_end(measure_report *report) {
    if (report->json) printf("\n]}\n");
}
