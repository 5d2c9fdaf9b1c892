#include "tests/bench/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/runtime/runtime.h"

_Thread_local muster_error bench_error;

void bench_fail(muster_status status, const char *what) {
    fprintf(stderr, "%s: %s: %s\n", what, muster_status_name(status), bench_error.message);
    exit(1);
}

/* -------------------------------------------------------------------------------------------------------- options -- */

static void usage(const bench *bench, const bench_option *options, size_t count) {
    fprintf(stderr, "usage: %s [--driver cuda|null|sim] [--devices N] [--actors N] [--runs R] [--quick] [--json]",
            bench->name);
    for (size_t i = 0; i < count; i++) fprintf(stderr, " [%s N]", options[i].name);
    fprintf(stderr, "\nNumbers are at least 1, and --runs at most %d.\n", MEASURE_MAX_RUNS);
    exit(2);
}

static bool parse_number(const char *text, uint32_t *value) {
    char *end;
    unsigned long long number = strtoull(text, &end, 10);
    if (end == text || *end || !number || number > UINT32_MAX) return false;
    *value = (uint32_t)number;
    return true;
}

static bool parse_option(bench *bench, const char *name, const char *text, const bench_option *options, size_t count) {
    if (strcmp(name, "--driver") == 0) {
        bench->driver = text;
        return strcmp(text, "cuda") == 0 || strcmp(text, "null") == 0 || strcmp(text, "sim") == 0;
    }
    if (strcmp(name, "--devices") == 0) return parse_number(text, &bench->devices);
    if (strcmp(name, "--actors") == 0) return parse_number(text, &bench->actors);
    if (strcmp(name, "--runs") == 0) return parse_number(text, &bench->runs) && bench->runs <= MEASURE_MAX_RUNS;
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, options[i].name) == 0) return parse_number(text, options[i].value);
    return false;
}

void bench_parse(bench *bench, int argc, char **argv, uint32_t default_runs, const bench_option *options,
                 size_t count) {
    const char *slash = strrchr(argv[0], '/');
    bench->name = slash ? slash + 1 : argv[0];
    if (!bench->driver) bench->driver = "cuda";
    if (!bench->actors) bench->actors = 1;
    bench->runs = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            bench->report.json = true;
        else if (strcmp(argv[i], "--quick") == 0)
            bench->quick = true;
        else if (i + 1 == argc || !parse_option(bench, argv[i], argv[i + 1], options, count))
            usage(bench, options, count);
        else
            i++;
    }
    if (!bench->runs) bench->runs = bench->quick ? 1 : default_runs;
}

/* ------------------------------------------------------------------------------------------------- open and close -- */

bool bench_is_real(const bench *bench) { return strcmp(bench->driver, "cuda") == 0; }
bool bench_executes(const bench *bench) { return strcmp(bench->driver, "null") != 0; }

/* By the linker, for the current context: loading PTX itself may give other code. */
static void *compile(const bench *bench) {
    CUlinkState link;
    void *image;
    size_t bytes;
    BENCH_DRIVER(bench, link_create(0, NULL, NULL, &link));
    BENCH_DRIVER(bench, link_add_data(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t)bench_kernels_ptx,
                                      strlen(bench_kernels_ptx) + 1, "bench", 0, NULL, NULL));
    BENCH_DRIVER(bench, link_complete(link, &image, &bytes));
    void *cubin = malloc(bytes);
    if (!cubin) bench_driver(bench, CUDA_ERROR_OUT_OF_MEMORY, "compiling");
    memcpy(cubin, image, bytes);
    BENCH_DRIVER(bench, link_destroy(link));
    return cubin;
}

static void open_raw(bench *bench, uint32_t device) {
    bench_raw *raw = &bench->raw[device];
    BENCH_DRIVER(bench, device_get(&raw->device, (int)device));
    BENCH_DRIVER(bench, primary_ctx_retain(&raw->context, raw->device));
    bench_enter(bench, device);
    BENCH_DRIVER(bench, stream_create(&raw->stream, CU_STREAM_NON_BLOCKING));
    raw->cubin = compile(bench);
    BENCH_DRIVER(bench, module_load_data_ex(&raw->module, raw->cubin, 0, NULL, NULL));
    BENCH_DRIVER(bench, mem_alloc(&raw->memory, BENCH_RAW_BYTES));
}

static void close_raw(bench *bench, uint32_t device) {
    bench_raw *raw = &bench->raw[device];
    bench_enter(bench, device);
    BENCH_DRIVER(bench, mem_free(raw->memory));
    BENCH_DRIVER(bench, module_unload(raw->module));
    BENCH_DRIVER(bench, stream_destroy(raw->stream));
    free(raw->cubin);
    BENCH_DRIVER(bench, ctx_set_current(NULL));
    BENCH_DRIVER(bench, primary_ctx_release(raw->device));
}

static void begin_report(bench *bench, const char *question) {
    char title[512];
    muster_device_info info = {.struct_size = sizeof info};
    BENCH_OK(muster_device_get_info(bench->runtime, 0, &info, &bench_error));
    int used = snprintf(title, sizeof title, "%s: %s", question, info.name);
    if (bench->devices > 1) used += snprintf(title + used, sizeof title - (size_t)used, ", %u devices", bench->devices);
    if (bench->actors > 1)
        used += snprintf(title + used, sizeof title - (size_t)used, ", %u on each GPU", bench->actors);
    if (!bench_is_real(bench))
        snprintf(title + used, sizeof title - (size_t)used, ", simulated%s",
                 bench_executes(bench) ? "" : " without execution");
    bench->report.unjudged = !bench_is_real(bench);
    measure_begin(&bench->report, title);
}

void bench_open(bench *bench, const muster_config *config, const char *question) {
    muster_config own = {.struct_size = sizeof own};
    char spec[64];
    if (config) own = *config;
    own.driver = bench_is_real(bench) ? "cuda" : "sim";
    own.device_count = bench->devices;
    if (!bench_is_real(bench)) {
        uint32_t devices = bench->devices ? bench->devices : 1;
        snprintf(spec, sizeof spec, "{\"devices\": %" PRIu32 ", \"null\": %s}", devices,
                 bench_executes(bench) ? "false" : "true");
        own.sim = spec;
    }
    own.actors_per_device = bench->actors;
    muster_status status = muster_runtime_create(&own, &bench->runtime, &bench_error);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) {
        printf("SKIPPED: %s\n", bench_error.message);
        exit(0);
    }
    bench_ok(status, "creating the runtime");
    bench->devices = (uint32_t)muster_device_count(bench->runtime);
    bench->raw_count = bench->devices / bench->actors;
    BENCH_OK(
        muster_program_from_ptx(bench->runtime, bench_kernels_ptx, 0, "bench kernels", &bench->program, &bench_error));
    bench->table = bench->runtime->driver;
    for (uint32_t d = bench->raw_count; d-- > 0;) open_raw(bench, d);
    begin_report(bench, question);
}

void bench_close(bench *bench) {
    measure_end(&bench->report);
    for (uint32_t d = bench->raw_count; d-- > 0;) close_raw(bench, d);
    BENCH_OK(muster_runtime_destroy(bench->runtime, MUSTER_FOREVER, &bench_error));
}

/* ------------------------------------------------------------------------------------------------------- Muster's -- */

muster_kernel *bench_kernel(const bench *bench, const char *entry) {
    muster_kernel *kernel;
    BENCH_OK(muster_program_kernel(bench->program, entry, &kernel, &bench_error));
    return kernel;
}

muster_buffer *bench_buffer(const bench *bench, uint64_t bytes, void *host) {
    muster_buffer *buffer;
    BENCH_OK(muster_buffer_create(bench->runtime, bytes, host, &buffer, &bench_error));
    return buffer;
}

muster_graph *bench_graph(const bench *bench) {
    muster_graph *graph;
    BENCH_OK(muster_graph_create(bench->runtime, &graph, &bench_error));
    return graph;
}

muster_dispatch bench_dispatch(muster_kernel *kernel, const muster_arg *args, uint32_t count) {
    return (muster_dispatch){.struct_size = sizeof(muster_dispatch),
                             .kernel = kernel,
                             .grid = {1, 1, 1},
                             .block = {32, 1, 1},
                             .arg_count = count,
                             .args = args};
}

muster_job bench_add(muster_graph *graph, const muster_dispatch *dispatch) {
    muster_job job;
    BENCH_OK(muster_graph_dispatch(graph, dispatch, &job, &bench_error));
    return job;
}

muster_run *bench_submit(const bench *bench, muster_graph *graph) {
    muster_run *run;
    BENCH_OK(muster_submit(bench->runtime, graph, &run, &bench_error));
    return run;
}

void bench_finish(muster_run *run) {
    BENCH_OK(muster_run_wait(run, MUSTER_FOREVER, &bench_error));
    muster_run_destroy(run);
}

void bench_run(const bench *bench, muster_graph *graph) { bench_finish(bench_submit(bench, graph)); }

/* --------------------------------------------------------------------------------------------------- the driver's -- */

void bench_driver(const bench *bench, CUresult code, const char *what) {
    if (code == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: %s\n", what, mu_driver_error_name(bench->table, code));
    exit(1);
}

CUfunction bench_function(const bench *bench, uint32_t device, const char *entry) {
    CUfunction function;
    BENCH_DRIVER(bench, module_get_function(&function, bench->raw[device].module, entry));
    return function;
}

void bench_launch(const bench *bench, uint32_t device, CUfunction function, void **parameters) {
    bench_driver(
        bench, bench->table->launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, bench->raw[device].stream, parameters, NULL),
        "launching");
}

void bench_synchronize(const bench *bench, uint32_t device) {
    BENCH_DRIVER(bench, stream_synchronize(bench->raw[device].stream));
}

void bench_enter(const bench *bench, uint32_t device) {
    BENCH_DRIVER(bench, ctx_set_current(bench->raw[device].context));
}

/* ---------------------------------------------------------------------------------------------------------- turns -- */

void bench_alternate(const bench *bench, void *user, const bench_way *ways, size_t count, uint32_t warm,
                     measure *measures) {
    for (uint32_t r = 0; r < warm + bench->runs; r++)
        for (size_t w = 0; w < count; w++) {
            double value = ways[w](user);
            if (r >= warm) measure_add(&measures[w], value);
        }
}

double bench_since_us(uint64_t begin_ns) { return (double)(mu_now_ns() - begin_ns) * 1e-3; }
