/* What launching through executable graphs costs, by shape: the figures that the sizes and shapes of bursts are chosen by.
 *
 *     burst_bench [--driver cuda|sim] [--launches N] [--runs R] [--json]
 *
 * Each row sends N launches of a kernel that does nothing as a sequence of graph launches, and then synchronises. A graph is
 * `branches` independent chains of `length` kernels, ordinary ones or, where the row says "order", chains of launch order, in which a kernel
 * waits for the beginning of the one before only; `rotation` graphs of that shape take turns, so that more than one can be in
 * flight without being changed. `what` changes before each launch of a graph:
 *     replay       nothing
 *     arguments    every node's argument values
 *     grid         the grid too
 *     wide         every node's argument values, of a kernel with ten
 *     matched      argument values, in a graph of 16 kernels that stay where they are
 *     random       argument values, and one of 16 kernels at random
 *     half         argument values of half the nodes, with the other half switched off once
 *     one          argument values of one node
 *     other        argument values, and another kernel than the graph was instantiated with
 * Figures, medians over R runs in nanoseconds a launch: `set_ns` and `launch_ns` of the caller's time for changing the nodes and for
 * launching the graphs, `drained_ns` of wall clock until the device was done. Rows of the device layer do the same through
 * mu_burst. `idle` rows synchronise after each graph: what a burst costs that finds the device idle.
 * `instantiate` rows tell time and device memory of making a graph; `spin` rows run 64 kernels of 20 us, or as many as the graph has.
 * In `order` rows "half off" every second node is switched off, in "half empty" it runs for nothing; `early` tells how often a graph had
 * ended before the one long kernel among its others, and is 0 on hardware (null mode runs none).
 * Where there is no driver or device, it says so and exits with 0. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/burst.h"
#include "device/device.h"
#include "device/driver.h"
#include "tests/bench/measure.h"

enum { KERNELS = 16, MAX_NODES = 2048, MAX_ROTATION = 8, SPINS = 64, SPIN_NS = 20000, PTX_BYTES = 8192 };

typedef enum change { REPLAY, ARGUMENTS, GRID, WIDE, MATCHED, RANDOM, HALF, ONE, OTHER } change;
static const char *const change_names[] = {"replay", "arguments", "grid", "wide", "matched",
                                           "random", "half",      "one",  "other"};

typedef struct graph {
    uint32_t branches, length;
    bool rooted;          /* behind one empty node */
    bool ordered;         /* in launch order */
    bool uploaded, again; /* brought to the device when it was instantiated, and after the first changes */
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode nodes[MAX_NODES]; /* by position in the chains, then by branch */
} graph;

typedef struct bench {
    uint32_t launches, runs;
    mu_driver *driver;
    mu_device *device; /* the device layer's, on the same context */
    mu_module device_module;
    mu_function device_function;
    CUdevice handle;
    CUcontext context;
    CUstream stream;
    CUmodule module;
    CUfunction kernels[KERNELS], wide, spin;
    CUdeviceptr memory;
    uint64_t random;
    graph graphs[MAX_ROTATION];
} bench;

typedef struct cost {
    uint64_t set_ns, launch_ns, drained_ns, launches;
} cost;

static muster_error failure;

static void must(muster_status status, const char *what) {
    if (status == MUSTER_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, muster_status_name(status), failure.message);
    exit(1);
}

static void driver_must(const bench *bench, CUresult code, const char *what) {
    if (code == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: %s\n", what, mu_driver_error_name(bench->driver, code));
    exit(1);
}

static uint32_t draw(bench *bench) {
    bench->random = bench->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(bench->random >> 33);
}

/* ---------------------------------------------------------------------------------------------------------- open -- */

static void write_ptx(char *text) {
    int used = snprintf(text, PTX_BYTES, ".version 7.0\n.target sm_70\n.address_size 64\n");
    for (int k = 0; k < KERNELS; k++)
        used += snprintf(text + used, (size_t)(PTX_BYTES - used),
                         ".visible .entry k%d(.param .u64 a, .param .u64 b) { ret; }\n", k);
    used += snprintf(text + used, (size_t)(PTX_BYTES - used), ".visible .entry wide(");
    for (int p = 0; p < 10; p++)
        used += snprintf(text + used, (size_t)(PTX_BYTES - used), "%s.param .u64 p%d", p ? ", " : "", p);
    snprintf(text + used, (size_t)(PTX_BYTES - used),
             ") { ret; }\n"
             ".visible .entry spin(.param .u64 a, .param .u64 ns) {\n"
             "  .reg .u64 %%t<4>; .reg .pred %%p;\n"
             "  ld.param.u64 %%t1, [ns];\n  mov.u64 %%t0, %%globaltimer;\n"
             "again:\n  mov.u64 %%t2, %%globaltimer;\n  sub.u64 %%t3, %%t2, %%t0;\n"
             "  setp.lt.u64 %%p, %%t3, %%t1;\n  @%%p bra again;\n  ret;\n}\n");
}

/* False when there is no driver or device. */
static bool open_bench(bench *bench, const char *name) {
    char ptx[PTX_BYTES], kernel[8];
    muster_status status = mu_driver_open(name, "{\"null\": true}", &bench->driver, &failure);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) return false;
    must(status, "opening the driver");
    status = mu_device_open(bench->driver, &(mu_device_options){.index = 0}, &bench->device, &failure);
    if (status == MUSTER_NO_DEVICE) return false;
    must(status, "opening the device");
    must(mu_device_enter(bench->device, &failure), "entering the device");
    const mu_driver *driver = bench->driver;
    write_ptx(ptx);
    must(mu_module_load(bench->device, ptx, strlen(ptx), "bench", &bench->device_module, &failure), "loading");
    must(mu_module_function(bench->device, bench->device_module, "k0", &bench->device_function, NULL, &failure),
         "finding the kernel");
    driver_must(bench, driver->device_get(&bench->handle, 0), "finding the device");
    driver_must(bench, driver->stream_create(&bench->stream, CU_STREAM_NON_BLOCKING), "creating a stream");
    driver_must(bench, driver->module_load_data_ex(&bench->module, ptx, 0, NULL, NULL), "loading");
    for (int k = 0; k < KERNELS; k++) {
        snprintf(kernel, sizeof kernel, "k%d", k);
        driver_must(bench, driver->module_get_function(&bench->kernels[k], bench->module, kernel), "finding");
    }
    driver_must(bench, driver->module_get_function(&bench->wide, bench->module, "wide"), "finding");
    driver_must(bench, driver->module_get_function(&bench->spin, bench->module, "spin"), "finding");
    driver_must(bench, driver->mem_alloc(&bench->memory, 4096), "allocating");
    return true;
}

static void close_bench(bench *bench) {
    driver_must(bench, bench->driver->mem_free(bench->memory), "freeing");
    driver_must(bench, bench->driver->module_unload(bench->module), "unloading");
    driver_must(bench, bench->driver->stream_destroy(bench->stream), "destroying a stream");
    mu_module_unload(bench->device, bench->device_module);
    mu_device_leave(bench->device);
    mu_device_close(bench->device);
    mu_driver_release(bench->driver);
}

/* -------------------------------------------------------------------------------------------------------- graphs -- */

static void describe(bench *bench, CUDA_KERNEL_NODE_PARAMS *node, change what, uint32_t index, void **parameters) {
    CUfunction function = bench->kernels[0];
    if (what == WIDE) function = bench->wide;
    if (what == OTHER) function = bench->kernels[1];
    if (what == MATCHED) function = bench->kernels[index % KERNELS];
    if (what == RANDOM) function = bench->kernels[draw(bench) % KERNELS];
    *node = (CUDA_KERNEL_NODE_PARAMS){.func = function,
                                      .gridDimX = what == GRID ? 1 + draw(bench) % 64 : 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 32,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = parameters};
}

/* Each takes its own graph of the rotation; `ns` and `bytes` are of instantiating it. */
static void make_graph(bench *bench, graph *made, uint32_t branches, uint32_t length, change what, uint64_t *ns,
                       uint64_t *bytes) {
    const mu_driver *driver = bench->driver;
    CUdeviceptr value[10] = {0};
    void *parameters[10];
    for (int p = 0; p < 10; p++) parameters[p] = &value[p];
    CUDA_KERNEL_NODE_PARAMS node;
    size_t before, after, total;
    made->branches = branches;
    made->length = length;
    driver_must(bench, driver->graph_create(&made->graph, 0), "creating a graph");
    CUgraphNode root;
    if (made->rooted) driver_must(bench, driver->graph_add_empty_node(&root, made->graph, NULL, 0), "adding a node");
    const CUgraphEdgeData order = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER,
                                   .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
    for (uint32_t i = 0; i < branches * length; i++) {
        describe(bench, &node, what, i, parameters);
        const CUgraphNode *before = i >= branches ? &made->nodes[i - branches] : made->rooted ? &root : NULL;
        size_t count = before && !made->ordered ? 1 : 0;
        driver_must(bench,
                    driver->graph_add_kernel_node(&made->nodes[i], made->graph, count ? before : NULL, count, &node),
                    "adding a node");
        if (before && made->ordered)
            driver_must(bench, driver->graph_add_dependencies(made->graph, before, &made->nodes[i], &order, 1),
                        "adding an edge");
    }
    driver_must(bench, driver->mem_get_info(&before, &total), "asking for memory");
    uint64_t begin = mu_now_ns();
    driver_must(bench, driver->graph_instantiate(&made->exec, made->graph, 0), "instantiating");
    *ns = mu_now_ns() - begin;
    if (made->uploaded) driver_must(bench, driver->graph_upload(made->exec, bench->stream), "uploading");
    driver_must(bench, driver->mem_get_info(&after, &total), "asking for memory");
    *bytes = before > after ? before - after : 0;
    for (uint32_t i = branches * length / 2; what == HALF && i < branches * length; i++)
        driver_must(bench, driver->graph_node_set_enabled(made->exec, made->nodes[i], 0), "switching off");
}

static void drop_graph(bench *bench, graph *made) {
    driver_must(bench, bench->driver->graph_exec_destroy(made->exec), "destroying");
    driver_must(bench, bench->driver->graph_destroy(made->graph), "destroying");
}

static void set_nodes(bench *bench, graph *made, change what, uint32_t count, uint64_t serial) {
    CUdeviceptr value[10] = {bench->memory};
    void *parameters[10];
    for (int p = 0; p < 10; p++) parameters[p] = &value[p];
    CUDA_KERNEL_NODE_PARAMS node;
    for (uint32_t i = 0; i < count; i++) {
        value[1] = serial + i;
        describe(bench, &node, what, i, parameters);
        driver_must(bench, bench->driver->graph_exec_kernel_node_set_params(made->exec, made->nodes[i], &node),
                    "setting");
    }
}

static cost send_graphs(bench *bench, uint32_t rotation, change what, uint32_t launches, bool idle) {
    cost all = {0};
    uint32_t size = bench->graphs[0].branches * bench->graphs[0].length;
    if (what == HALF) size /= 2;
    uint64_t begin = mu_now_ns();
    for (uint32_t turn = 0; all.launches < launches; turn++, all.launches += size) {
        graph *next = &bench->graphs[turn % rotation];
        uint64_t before = mu_now_ns();
        if (what != REPLAY) set_nodes(bench, next, what, what == ONE ? 1 : size, all.launches);
        uint64_t set = mu_now_ns();
        driver_must(bench, bench->driver->graph_launch(next->exec, bench->stream), "launching");
        all.launch_ns += mu_now_ns() - set;
        all.set_ns += set - before;
        if (idle) driver_must(bench, bench->driver->stream_synchronize(bench->stream), "synchronising");
    }
    driver_must(bench, bench->driver->stream_synchronize(bench->stream), "synchronising");
    all.drained_ns = mu_now_ns() - begin;
    return all;
}

/* ---------------------------------------------------------------------------------------------------------- rows -- */

static void add(measure ways[3], cost all, bool warm) {
    if (!warm) return;
    measure_add(&ways[0], (double)all.set_ns / (double)all.launches);
    measure_add(&ways[1], (double)all.launch_ns / (double)all.launches);
    measure_add(&ways[2], (double)all.drained_ns / (double)all.launches);
}

static void cost_row(measure_report *report, const char *name, measure ways[3]) {
    const measure_figure figures[] = {{"set_ns", measure_percentile(&ways[0], 50)},
                                      {"launch_ns", measure_percentile(&ways[1], 50)},
                                      {"drained_ns", measure_percentile(&ways[2], 50)},
                                      {"drained_p90_ns", measure_percentile(&ways[2], 90)}};
    measure_row(report, name, figures, sizeof figures / sizeof figures[0]);
}

static void graph_row(bench *bench, measure_report *report, uint32_t branches, uint32_t length, uint32_t rotation,
                      change what, bool idle) {
    char name[96];
    measure ways[3] = {0};
    uint64_t ns, bytes;
    for (uint32_t g = 0; g < rotation; g++)
        make_graph(bench, &bench->graphs[g], branches, length, what == OTHER ? ARGUMENTS : what, &ns, &bytes);
    for (uint32_t r = 0; r <= bench->runs; r++) {
        add(ways, send_graphs(bench, rotation, what, idle ? 64 * branches * length : bench->launches, idle), r > 0);
        for (uint32_t g = 0; g < rotation && r == 0 && bench->graphs[g].again; g++)
            driver_must(bench, bench->driver->graph_upload(bench->graphs[g].exec, bench->stream), "uploading");
    }
    for (uint32_t g = 0; g < rotation; g++) drop_graph(bench, &bench->graphs[g]);
    snprintf(name, sizeof name, "%s%s%u x %u, %u in turn, %s%s", idle ? "idle " : "",
             bench->graphs[0].ordered ? "order " : "", branches, length, rotation, change_names[what],
             bench->graphs[0].again      ? ", uploaded again"
             : bench->graphs[0].uploaded ? ", uploaded"
                                         : "");
    cost_row(report, name, ways);
}

static cost send_bursts(bench *bench, mu_burst *const bursts[], uint32_t rotation, uint32_t launches) {
    cost all = {0};
    uint64_t value[2] = {bench->memory, 0};
    void *parameters[2] = {&value[0], &value[1]};
    mu_launch launch = {.function = bench->device_function,
                        .grid = {1, 1, 1},
                        .block = {32, 1, 1},
                        .parameters = parameters,
                        .parameter_count = 2,
                        .slot_count = 2};
    uint32_t size = mu_burst_capacity(bursts[0]);
    uint64_t begin = mu_now_ns();
    for (uint32_t turn = 0; all.launches < launches; turn++, all.launches += size) {
        mu_burst *next = bursts[turn % rotation];
        uint64_t before = mu_now_ns();
        for (uint32_t i = 0; i < size; i++) {
            value[1] = all.launches + i;
            must(mu_burst_set(next, i, &launch, &failure), "setting a node");
        }
        uint64_t set = mu_now_ns();
        must(mu_burst_launch(next, &failure), "launching a burst");
        all.launch_ns += mu_now_ns() - set;
        all.set_ns += set - before;
    }
    must(mu_lane_synchronize(bench->device, MU_LANE_DISPATCH, &failure), "synchronising");
    all.drained_ns = mu_now_ns() - begin;
    return all;
}

static void burst_row(bench *bench, measure_report *report, uint32_t branches, uint32_t length, uint32_t rotation,
                      mu_burst_order order) {
    char name[96];
    measure ways[3] = {0};
    mu_burst *bursts[MAX_ROTATION];
    for (uint32_t b = 0; b < rotation; b++)
        must(mu_burst_create(bench->device, branches, length, order, &bursts[b], &failure), "making a burst");
    bool overlaps = mu_burst_overlaps(bursts[0]);
    for (uint32_t r = 0; r <= bench->runs; r++) add(ways, send_bursts(bench, bursts, rotation, bench->launches), r > 0);
    for (uint32_t b = 0; b < rotation; b++) mu_burst_destroy(bursts[b]);
    snprintf(name, sizeof name, "device layer: %s%u x %u, %u in turn", overlaps ? "order " : "", branches, length,
             rotation);
    cost_row(report, name, ways);
}

/* The bare loop; with `count` launches between synchronisations. */
static void raw_row(bench *bench, measure_report *report, uint32_t kernels, uint32_t count, const char *name) {
    measure ways[3] = {0};
    CUdeviceptr value[2] = {bench->memory, 0};
    void *parameters[2] = {&value[0], &value[1]};
    bool idle = count < bench->launches;
    uint32_t launches = idle ? 64 * count : count;
    for (uint32_t r = 0; r <= bench->runs; r++) {
        cost all = {0};
        uint64_t begin = mu_now_ns();
        for (; all.launches < launches; all.launches += count) {
            for (uint32_t i = 0; i < count; i++)
                driver_must(bench,
                            bench->driver->launch_kernel(bench->kernels[kernels > 1 ? draw(bench) % kernels : 0], 1, 1,
                                                         1, 32, 1, 1, 0, bench->stream, parameters, NULL),
                            "launching");
            if (idle) driver_must(bench, bench->driver->stream_synchronize(bench->stream), "synchronising");
        }
        all.launch_ns = mu_now_ns() - begin;
        driver_must(bench, bench->driver->stream_synchronize(bench->stream), "synchronising");
        all.drained_ns = mu_now_ns() - begin;
        add(ways, all, r > 0);
    }
    cost_row(report, name, ways);
}

static void instantiate_row(bench *bench, measure_report *report, uint32_t branches, uint32_t length) {
    char name[96];
    measure ms = {0}, kib = {0};
    uint64_t ns, bytes, all = 0;
    for (int g = 0; g < MAX_ROTATION; g++) {
        make_graph(bench, &bench->graphs[g], branches, length, ARGUMENTS, &ns, &bytes);
        measure_add(&ms, (double)ns / 1e6);
        measure_add(&kib, (double)bytes / 1024);
        all += bytes;
    }
    for (int g = 0; g < MAX_ROTATION; g++) drop_graph(bench, &bench->graphs[g]);
    snprintf(name, sizeof name, "instantiate %u x %u", branches, length);
    const measure_figure figures[] = {{"ms", measure_percentile(&ms, 50)},
                                      {"max_ms", measure_percentile(&ms, 100)},
                                      {"kib", measure_percentile(&kib, 50)},
                                      {"mean_kib", (double)all / 1024 / MAX_ROTATION}};
    measure_row(report, name, figures, sizeof figures / sizeof figures[0]);
}

/* Long kernels, sixty-four or one graph of them: microseconds for all. branches 0: the bare loop. */
static void spin_row(bench *bench, measure_report *report, uint32_t branches, uint32_t length, bool rooted, bool set) {
    char name[96] = "spin: bare loop";
    measure us = {0};
    uint32_t spins = bench->graphs[0].ordered ? branches * length : SPINS;
    uint64_t value[2] = {bench->memory, SPIN_NS}, ns, bytes;
    void *parameters[2] = {&value[0], &value[1]};
    CUDA_KERNEL_NODE_PARAMS node = {.func = bench->spin,
                                    .gridDimX = 1,
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 32,
                                    .blockDimY = 1,
                                    .blockDimZ = 1,
                                    .kernelParams = parameters};
    graph *made = &bench->graphs[0];
    const mu_driver *driver = bench->driver;
    made->rooted = rooted;
    if (branches) make_graph(bench, made, branches, length, ARGUMENTS, &ns, &bytes);
    made->rooted = false;
    for (uint32_t r = 0; r <= bench->runs; r++) {
        uint64_t begin = mu_now_ns();
        for (uint32_t i = 0; !branches && i < spins; i++)
            driver_must(bench,
                        driver->launch_kernel(bench->spin, 1, 1, 1, 32, 1, 1, 0, bench->stream, parameters, NULL),
                        "launching");
        for (uint32_t done = 0; branches && done < spins; done += branches * length) {
            for (uint32_t i = 0; i < branches * length && (set || r == 0); i++)
                driver_must(bench, driver->graph_exec_kernel_node_set_params(made->exec, made->nodes[i], &node),
                            "setting");
            driver_must(bench, driver->graph_launch(made->exec, bench->stream), "launching");
        }
        driver_must(bench, driver->stream_synchronize(bench->stream), "synchronising");
        if (r) measure_add(&us, (double)(mu_now_ns() - begin) / 1e3);
    }
    if (branches) {
        drop_graph(bench, made);
        snprintf(name, sizeof name, "spin: %s%u x %u%s%s", made->ordered ? "order " : "", branches, length,
                 rooted ? ", rooted" : "", set ? "" : ", replay");
    }
    const measure_figure figures[] = {{"us", measure_percentile(&us, 50)},
                                      {"p90_us", measure_percentile(&us, 90)},
                                      {"us_a_kernel", measure_percentile(&us, 50) / spins}};
    measure_row(report, name, figures, sizeof figures / sizeof figures[0]);
}

/* Chains of launch order of which only every second node is of use: what a node costs, and whether the graph ends with its last kernel,
 * wherever the longest stands. */
static void half_row(bench *bench, measure_report *report, uint32_t branches, uint32_t length, bool off) {
    enum { LONG_NS = 200000 };
    char name[96];
    measure ns_each = {0};
    uint64_t ns, bytes, value[2] = {bench->memory, 0}, early = 0;
    void *parameters[2] = {&value[0], &value[1]};
    const mu_driver *driver = bench->driver;
    graph *made = &bench->graphs[0];
    uint32_t size = branches * length;
    CUDA_KERNEL_NODE_PARAMS node;
    make_graph(bench, made, branches, length, ARGUMENTS, &ns, &bytes);
    for (uint32_t i = 1; off && i < size; i += 2)
        driver_must(bench, driver->graph_node_set_enabled(made->exec, made->nodes[i], 0), "switching off");
    for (uint32_t r = 0; r <= bench->runs; r++) {
        cost all = send_graphs(bench, 1, REPLAY, bench->launches, false);
        if (r) measure_add(&ns_each, (double)all.drained_ns / (double)all.launches);
    }
    for (uint32_t at = 0; at < size; at += 2) {
        describe(bench, &node, ARGUMENTS, 0, parameters);
        node.func = bench->spin;
        value[1] = LONG_NS;
        driver_must(bench, driver->graph_exec_kernel_node_set_params(made->exec, made->nodes[at], &node), "setting");
        uint64_t begin = mu_now_ns();
        driver_must(bench, driver->graph_launch(made->exec, bench->stream), "launching");
        driver_must(bench, driver->stream_synchronize(bench->stream), "synchronising");
        early += mu_now_ns() - begin < LONG_NS;
        describe(bench, &node, ARGUMENTS, 0, parameters);
        driver_must(bench, driver->graph_exec_kernel_node_set_params(made->exec, made->nodes[at], &node), "setting");
    }
    drop_graph(bench, made);
    snprintf(name, sizeof name, "order %u x %u, half %s", branches, length, off ? "off" : "empty");
    const measure_figure figures[] = {{"drained_ns", measure_percentile(&ns_each, 50)}, {"early", (double)early}};
    measure_row(report, name, figures, sizeof figures / sizeof figures[0]);
}

/* What bursts of independent launches are made of. */
static void measure_order(bench *bench, measure_report *report) {
    if (!mu_burst_can_overlap(bench->device)) return;
    for (int g = 0; g < MAX_ROTATION; g++) bench->graphs[g].ordered = bench->graphs[g].uploaded = true;
    for (uint32_t branches = 1; branches <= 8; branches *= 2)
        for (uint32_t length = 8; length <= 64; length *= 2) {
            for (change what = REPLAY; what <= ARGUMENTS; what++)
                graph_row(bench, report, branches, length, 2, what, false);
            spin_row(bench, report, branches, length, false, true);
            spin_row(bench, report, branches, length, false, false);
        }
    for (uint32_t length = 2; length <= 16; length *= 2) {
        graph_row(bench, report, 1, length, 2, ARGUMENTS, true);
        spin_row(bench, report, 1, length, false, true);
    }
    graph_row(bench, report, 4, 16, 2, ARGUMENTS, true);
    graph_row(bench, report, 4, 16, 2, RANDOM, false);
    for (int off = 0; off <= 1; off++) {
        half_row(bench, report, 1, 64, off);
        half_row(bench, report, 4, 16, off);
    }
    for (int g = 0; g < MAX_ROTATION; g++) bench->graphs[g].ordered = bench->graphs[g].uploaded = false;
    burst_row(bench, report, 1, 16, 2, MU_BURST_INDEPENDENT);
    burst_row(bench, report, 4, 16, 2, MU_BURST_INDEPENDENT);
    burst_row(bench, report, 8, 32, 2, MU_BURST_INDEPENDENT);
}

static void measure_all(bench *bench, measure_report *report) {
    static const uint32_t lengths[] = {8, 32, 128, 512, 1024};
    static const uint32_t wide[][2] = {{2, 8},  {4, 4},  {4, 8},  {8, 4},  {4, 16},  {8, 8},  {16, 4},
                                       {2, 64}, {4, 32}, {8, 16}, {8, 32}, {4, 128}, {32, 1}, {64, 1}};
    static const change changes[] = {ONE, GRID, WIDE, MATCHED, RANDOM, HALF};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) instantiate_row(bench, report, 1, lengths[l]);
    for (size_t w = 0; w < sizeof wide / sizeof wide[0]; w++) instantiate_row(bench, report, wide[w][0], wide[w][1]);
    raw_row(bench, report, 1, bench->launches, "bare loop");
    raw_row(bench, report, KERNELS, bench->launches, "bare loop, 16 kernels at random");
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        graph_row(bench, report, 1, lengths[l], 1, REPLAY, false);
        for (uint32_t rotation = 1; rotation <= 4; rotation *= 4)
            graph_row(bench, report, 1, lengths[l], rotation, ARGUMENTS, false);
        burst_row(bench, report, 1, lengths[l], 2, MU_BURST_CHAINS);
    }
    for (size_t c = 0; c < sizeof changes / sizeof changes[0]; c++)
        graph_row(bench, report, 1, 128, 4, changes[c], false);
    for (int uploaded = 0; uploaded <= 2; uploaded++) {
        for (int g = 0; g < MAX_ROTATION; g++) {
            bench->graphs[g].uploaded = uploaded > 0;
            bench->graphs[g].again = uploaded > 1;
        }
        graph_row(bench, report, 1, 128, 2, ARGUMENTS, false);
        graph_row(bench, report, 1, 128, 2, OTHER, false);
        graph_row(bench, report, 1, 128, 2, RANDOM, false);
        graph_row(bench, report, 1, 128, 2, GRID, false);
    }
    for (int g = 0; g < MAX_ROTATION; g++) bench->graphs[g].uploaded = bench->graphs[g].again = false;
    for (size_t w = 0; w < sizeof wide / sizeof wide[0]; w++)
        for (change what = REPLAY; what <= ARGUMENTS; what++)
            graph_row(bench, report, wide[w][0], wide[w][1], 2, what, false);
    graph_row(bench, report, 8, 32, 2, RANDOM, false);
    burst_row(bench, report, 8, 32, 2, MU_BURST_CHAINS);
    for (uint32_t length = 2; length <= 32; length *= 2) {
        char name[64];
        snprintf(name, sizeof name, "idle bare loop of %u", length);
        raw_row(bench, report, 1, length, name);
        graph_row(bench, report, 1, length, 2, ARGUMENTS, true);
        if (length >= 8) graph_row(bench, report, 4, length / 4, 2, ARGUMENTS, true);
    }
    spin_row(bench, report, 0, 0, false, true);
    for (uint32_t branches = 1; branches <= SPINS; branches *= 2)
        spin_row(bench, report, branches, SPINS / branches, false, true);
    for (uint32_t branches = 16; branches <= SPINS; branches *= 2)
        for (int rooted = 0; rooted <= 1; rooted++) spin_row(bench, report, branches, SPINS / branches, rooted, false);
    spin_row(bench, report, SPINS, 1, true, true);
    measure_order(bench, report);
}

int main(int argc, char **argv) {
    static bench bench = {.launches = 16384, .runs = 9, .random = 1};
    const char *driver = "cuda";
    measure_report report = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            report.json = true;
        else if (i + 1 < argc && strcmp(argv[i], "--driver") == 0)
            driver = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--launches") == 0)
            bench.launches = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--runs") == 0)
            bench.runs = (uint32_t)strtoul(argv[++i], NULL, 10);
        else {
            fprintf(stderr, "usage: %s [--driver cuda|sim] [--launches N] [--runs R] [--json]\n", argv[0]);
            return 2;
        }
    }
    if (!bench.launches || !bench.runs || bench.runs > MEASURE_MAX_RUNS) {
        fprintf(stderr, "--launches is at least 1, --runs 1 to %d\n", MEASURE_MAX_RUNS);
        return 2;
    }
    if (!open_bench(&bench, driver)) {
        printf("SKIPPED: %s\n", failure.message);
        return 0;
    }
    measure_begin(&report, "launching through executable graphs");
    measure_all(&bench, &report);
    measure_end(&report);
    close_bench(&bench);
    return 0;
}
