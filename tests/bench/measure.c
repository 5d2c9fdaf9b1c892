#include "tests/bench/measure.h"

#include <math.h>
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
    report->rows = report->bounds = report->met = 0;
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

static void print_figures(measure_report *report, const char *name, const measure_figure *figures, size_t count) {
    if (!report->json) print_heading(report, figures, count);
    printf(report->json ? "%s\n  {\"name\": \"%s\"" : "%s%-44s", report->json && report->rows ? "," : "", name);
    for (size_t i = 0; i < count; i++) {
        if (report->json && isnan(figures[i].value))
            printf(", \"%s\": null", figures[i].name);
        else if (report->json)
            printf(", \"%s\": %.4g", figures[i].name, figures[i].value);
        else if (isnan(figures[i].value))
            printf("%14s", "-");
        else
            printf("%14.4g", figures[i].value);
    }
    report->rows++;
}

static void end_row(const measure_report *report) {
    printf(report->json ? "}" : "\n");
    fflush(stdout);
}

void measure_row(measure_report *report, const char *name, const measure_figure *figures, size_t count) {
    print_figures(report, name, figures, count);
    end_row(report);
}

static double value_of(const char *figure, const measure_figure *figures, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(figures[i].name, figure) == 0) return figures[i].value;
    fprintf(stderr, "a bound for '%s', which the row does not have\n", figure);
    exit(1);
}

void measure_row_bounded(measure_report *report, const char *name, const measure_figure *figures, size_t count,
                         const measure_bound *bounds, size_t bound_count) {
    print_figures(report, name, figures, count);
    if (report->json) printf(", \"bounds\": [");
    for (size_t i = 0; i < bound_count; i++) {
        const measure_bound *bound = &bounds[i];
        double value = value_of(bound->figure, figures, count);
        bool judged = !report->unjudged && !isnan(value);
        bool met = judged && (bound->at_least ? value >= bound->limit : value <= bound->limit);
        report->bounds += judged;
        report->met += met;
        if (report->json)
            printf("%s{\"figure\": \"%s\", \"at_%s\": %.4g, \"met\": %s}", i ? ", " : "", bound->figure,
                   bound->at_least ? "least" : "most", bound->limit,
                   !judged ? "null"
                   : met   ? "true"
                           : "false");
        else
            printf("   %s %s %.4g%s", bound->figure, bound->at_least ? ">=" : "<=", bound->limit,
                   !judged ? ""
                   : met   ? " met"
                           : " MISSED");
    }
    if (report->json) printf("]");
    end_row(report);
}

void measure_end(measure_report *report) {
    if (report->json)
        printf("\n]}\n");
    else if (report->bounds)
        printf("%u of %u bounds met\n", report->met, report->bounds);
}
