/* What Muster knows of each device, and whether a kernel of a given launch shape could run there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/03_devices/shape_ptx.h"
#include "examples/common/example.h"
#include "muster.h"

#define TRY(call)                                                                                                      \
    if ((call) != MUSTER_OK) return example_complain("devices", #call, &error), 1

static const char usage[] =
    "usage: devices [--json] [--grid X[,Y[,Z]]] [--block X[,Y[,Z]]] [--shared BYTES] [--cooperative]\n"
    "               [--driver cuda|sim|auto] [--devices N] [--actors N]\n";

typedef struct options {
    example_options common;
    int json, asked; /* asked: about a shape */
    muster_dispatch dispatch;
} options;

static const char *const answers[] = {"no", "yes", "unknown"};

/* "X", "X,Y" or "X,Y,Z"; 0 when it is none of them. */
static int read_axes(const char *text, muster_dim3 *axes) {
    uint32_t *axis[] = {&axes->x, &axes->y, &axes->z};
    axes->y = axes->z = 1;
    for (int i = 0; i < 3; i++) {
        char *end;
        if (*text < '0' || *text > '9') return 0;
        unsigned long long value = strtoull(text, &end, 10);
        if (value > UINT32_MAX) return 0;
        *axis[i] = (uint32_t)value;
        if (*end == 0) return 1;
        if (*end != ',') return 0;
        text = end + 1;
    }
    return 0;
}

/* 1: taken, 0: not one of these, -1: wrong, which has been said. */
static int read_option(options *o, int argc, char **argv, int *at) {
    int bad = 0;
    const char *value;
    uint64_t bytes;
    if (strcmp(argv[*at], "--json") == 0) return o->json = 1;
    if (strcmp(argv[*at], "--cooperative") == 0) {
        o->dispatch.flags |= MUSTER_DISPATCH_COOPERATIVE;
        return o->asked = 1;
    }
    for (int block = 0; block < 2; block++) {
        const char *name = block ? "--block" : "--grid";
        if ((value = example_value("devices", name, argc, argv, at, &bad))) {
            if (read_axes(value, block ? &o->dispatch.block : &o->dispatch.grid)) return o->asked = 1;
            fprintf(stderr, "devices: %s %s: expected X, X,Y or X,Y,Z\n", name, value);
            return -1;
        }
    }
    if ((value = example_value("devices", "--shared", argc, argv, at, &bad))) {
        if (!example_number("devices", "--shared", value, 0, UINT32_MAX, &bytes)) return -1;
        o->dispatch.dynamic_shared_bytes = (uint32_t)bytes;
        return o->asked = 1;
    }
    return bad ? -1 : 0;
}

/* A JSON string; names of devices and messages are ASCII, but may hold anything that is. */
static void print_string(const char *text) {
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text < ' ')
            printf("\\u%04x", (unsigned)*text);
        else
            putchar(*text);
    }
    putchar('"');
}

static void print_text(const muster_device_info *d) {
    printf("device %d: %s%s, compute capability %d.%d\n", d->index, d->name, d->simulated ? " (simulated)" : "",
           d->compute_major, d->compute_minor);
    printf("  ordinal         %d, PCI %s\n", d->ordinal, d->pci_bus_id);
    if (d->share_count > 1) printf("  share           %d of %d of it\n", d->share_index + 1, d->share_count);
    printf("  memory          %llu MiB, of which Muster may use %llu\n", (unsigned long long)d->memory_bytes >> 20,
           (unsigned long long)d->budget_bytes >> 20);
    printf("  multiprocessors %d, each with %d threads in at most %d blocks\n", d->multiprocessors,
           d->max_threads_per_multiprocessor, d->max_blocks_per_multiprocessor);
    printf("  a block         %d threads (at most %d x %d x %d) in warps of %d\n", d->max_threads_per_block,
           d->max_block[0], d->max_block[1], d->max_block[2], d->warp_size);
    printf("  a grid          %d x %d x %d blocks; %s\n", d->max_grid[0], d->max_grid[1], d->max_grid[2],
           d->cooperative_launch ? "may synchronise as a whole" : "cannot synchronise as a whole");
    printf("  shared memory   %d bytes a block, %d when asked for\n", d->max_shared_bytes, d->max_shared_optin_bytes);
}

static void print_json(const muster_device_info *d) {
    printf("{\"device\": %d, \"ordinal\": %d, \"simulated\": %s, \"name\": ", d->index, d->ordinal,
           d->simulated ? "true" : "false");
    print_string(d->name);
    printf(", \"uuid\": \"");
    for (int i = 0; i < 16; i++) printf("%02x", d->uuid[i]);
    printf("\", \"pci_bus_id\": ");
    print_string(d->pci_bus_id);
    printf(", \"compute_capability\": [%d, %d], \"memory_bytes\": %llu, \"budget_bytes\": %llu", d->compute_major,
           d->compute_minor, (unsigned long long)d->memory_bytes, (unsigned long long)d->budget_bytes);
    printf(", \"multiprocessors\": %d, \"warp_size\": %d, \"max_threads_per_block\": %d", d->multiprocessors,
           d->warp_size, d->max_threads_per_block);
    printf(", \"max_threads_per_multiprocessor\": %d, \"max_blocks_per_multiprocessor\": %d",
           d->max_threads_per_multiprocessor, d->max_blocks_per_multiprocessor);
    printf(", \"max_block\": [%d, %d, %d], \"max_grid\": [%d, %d, %d]", d->max_block[0], d->max_block[1],
           d->max_block[2], d->max_grid[0], d->max_grid[1], d->max_grid[2]);
    printf(", \"max_shared_bytes\": %d, \"max_shared_optin_bytes\": %d, \"cooperative_launch\": %s",
           d->max_shared_bytes, d->max_shared_optin_bytes, d->cooperative_launch ? "true" : "false");
    printf(", \"share_index\": %d, \"share_count\": %d", d->share_index, d->share_count);
}

static void print_preflight(const options *o, const muster_preflight_report *report) {
    int cooperative = o->dispatch.flags & MUSTER_DISPATCH_COOPERATIVE;
    if (o->json) {
        printf(", \"preflight\": {\"answer\": \"%s\", \"status\": \"%s\", \"grid_blocks\": %llu",
               answers[report->answer], muster_status_name(report->status), (unsigned long long)report->grid_blocks);
        if (cooperative) printf(", \"resident_limit\": %llu", (unsigned long long)report->resident_limit);
        printf(", \"message\": ");
        print_string(report->message);
        printf(", \"line\": ");
        print_string(report->line);
        printf("}");
        return;
    }
    printf("  this launch     %s", answers[report->answer]);
    if (cooperative)
        printf(": %llu blocks of at most %llu that can be resident", (unsigned long long)report->grid_blocks,
               (unsigned long long)report->resident_limit);
    printf("\n");
    if (report->message[0]) printf("    %s: %s\n", muster_status_name(report->status), report->message);
    printf("    %s\n", report->line);
}

static int devices(muster_runtime *rt, const options *o) {
    muster_error error;
    muster_program *program;
    muster_dispatch dispatch = o->dispatch;
    if (o->asked) {
        TRY(muster_program_from_ptx(rt, shape_ptx, 0, "shape", &program, &error));
        TRY(muster_program_kernel(program, "shape", &dispatch.kernel, &error));
    }
    if (o->json) printf("{\"devices\": [");
    for (int i = 0; i < muster_device_count(rt); i++) {
        muster_device_info info = {.struct_size = sizeof info};
        TRY(muster_device_get_info(rt, i, &info, &error));
        if (o->json) {
            printf("%s", i ? ",\n " : "");
            print_json(&info);
        } else {
            print_text(&info);
        }
        if (o->asked) {
            muster_preflight_report report = {.struct_size = sizeof report};
            TRY(muster_preflight_dispatch(rt, &dispatch, i, MUSTER_PREFLIGHT_FULL, &report, &error));
            print_preflight(o, &report);
        }
        if (o->json) printf("}");
    }
    if (o->json) printf("]}\n");
    return 0;
}

int main(int argc, char **argv) {
    options o = {.common = {.name = "devices"},
                 .dispatch = {.struct_size = sizeof o.dispatch, .grid = {1, 1, 1}, .block = {256, 1, 1}}};
    for (int i = 1; i < argc; i++) {
        int taken = read_option(&o, argc, argv, &i);
        if (taken < 0) return 2;
        if (taken) continue;
        example_parsed parsed = example_option(&o.common, argc, argv, &i);
        if (parsed == EXAMPLE_NOT_MINE) fprintf(stderr, "devices: unknown option %s\n%s", argv[i], usage);
        if (parsed != EXAMPLE_TAKEN) return 2;
    }
    muster_runtime *rt = example_runtime_create(&o.common);
    if (!rt) return 1;
    int failed = devices(rt, &o);
    muster_error error;
    if (muster_runtime_destroy(rt, MUSTER_FOREVER, &error) != MUSTER_OK)
        example_complain("devices", "cannot stop Muster", &error), failed = 1;
    return failed;
}
