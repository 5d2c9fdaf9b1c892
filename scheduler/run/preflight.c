/* Preflight: what would become of a job on a device, by the functions that decide it when it runs. */
#include <string.h>

#include "base/error.h"
#include "device/diagnostic.h"
#include "device/geometry.h"
#include "device/residency.h"
#include "scheduler/actor/bind.h"
#include "scheduler/graph/dispatch.h"
#include "scheduler/graph/shape.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

_Static_assert(sizeof((muster_preflight_report *)0)->line == MU_DIAGNOSTIC_BYTES, "the line fits the report");

static void refuse(muster_preflight_report *report, const muster_error *why) {
    report->answer = MUSTER_ANSWER_NO;
    report->status = why->status;
    memcpy(report->message, why->message, sizeof report->message);
}

/* The shape of a dispatch; `occupancy` negative: not known. */
static void judge_shape(const mu_capability *capability, const muster_graph *graph, const mu_node *node, int occupancy,
                        muster_preflight_report *report) {
    const mu_shape_request r = mu_shape_of_node(graph, node);
    uint64_t threads = 0, limit;
    mu_shape shape;
    muster_error why;
    mu_axis_product(r.grid, "grid", &report->grid_blocks, NULL);
    report->launched_blocks = report->grid_blocks;
    if (r.cooperative && !mu_axis_product(r.block, "block", &threads, NULL)) {
        report->resident_limit = mu_resident_limit_of_device(capability, threads);
        if (occupancy >= 0 && !mu_resident_limit_of_function(capability, occupancy, &limit, NULL) &&
            limit < report->resident_limit)
            report->resident_limit = limit;
    }
    mu_kernel_demand demand = {
        .kernel = r.kernel->name,
        .static_shared_bytes = (uint64_t)r.kernel->info.static_shared_bytes,
        .dynamic_shared_bytes = r.dynamic_shared_bytes,
        .cooperative = r.cooperative,
        .occupancy = occupancy,
    };
    memcpy(demand.grid, r.grid, sizeof demand.grid);
    memcpy(demand.block, r.block, sizeof demand.block);
    mu_diagnostic_line(capability, &demand, report->line);
    if (mu_shape_resolve(capability, &r, occupancy, &shape, &why)) {
        refuse(report, &why);
        return;
    }
    report->fallback = shape.fallback;
    mu_axis_product(shape.grid, "grid", &report->launched_blocks, NULL);
    /* Phases run anywhere; whether a grid is resident, or can be made so, the loaded kernel says. */
    if (r.cooperative && occupancy < 0 && r.fallback != MUSTER_FALLBACK_SPLIT) report->answer = MUSTER_ANSWER_UNKNOWN;
}

static void judge_memory(const muster_runtime *runtime, int device, const muster_graph *graph, const mu_node *node,
                         muster_preflight_report *report) {
    const mu_ledger *ledger = mu_device_ledger(runtime->actors[device].device);
    muster_error why;
    report->budget_bytes = mu_ledger_capacity(ledger);
    report->available_bytes = mu_ledger_available(ledger);
    muster_status status = mu_bind_required(graph, node, &report->required_bytes, &why);
    if (!status) status = mu_bind_check_fits(&runtime->actors[device], graph, node, report->required_bytes, &why);
    if (status) refuse(report, &why);
}

/* As in a run: what refuses the dispatch when it is added; then memory; then what the loaded kernel says. */
static void judge(const muster_runtime *runtime, int device, const muster_graph *graph, const mu_node *node,
                  int occupancy, muster_preflight_report *report) {
    memset(report, 0, sizeof *report);
    report->answer = MUSTER_ANSWER_YES;
    if (mu_node_is_host(node)) return; /* it needs nothing of the device */
    if (node->kind == MU_NODE_DISPATCH)
        judge_shape(mu_device_capability(runtime->actors[device].device), graph, node, occupancy, report);
    bool refused_before = report->answer == MUSTER_ANSWER_NO && occupancy < 0;
    muster_preflight_report before = *report;
    judge_memory(runtime, device, graph, node, report);
    if (!refused_before) return;
    report->status = before.status;
    memcpy(report->message, before.message, sizeof report->message);
}

/* The worse of two parts: the one that cannot run, that may not, that needs more. */
static bool is_worse(const muster_preflight_report *a, const muster_preflight_report *b) {
    if ((a->answer == MUSTER_ANSWER_NO) != (b->answer == MUSTER_ANSWER_NO)) return a->answer == MUSTER_ANSWER_NO;
    if (a->answer != b->answer) return a->answer == MUSTER_ANSWER_UNKNOWN;
    return a->required_bytes > b->required_bytes;
}

typedef struct preflight {
    const muster_graph *graph;
    muster_job job;
    int device;
    uint32_t parts;
    muster_preflight_report report;
} preflight;

/* The part of the job that the device would run and that is hardest for it. `actor`: its worker asks; NULL: nobody is asked. */
static muster_status look(preflight *p, mu_actor *actor) {
    const muster_graph *graph = p->graph;
    const muster_runtime *runtime = graph->handle.runtime;
    for (uint32_t i = graph->job_nodes[p->job]; i < mu_graph_job_end(graph, p->job); i++) {
        const mu_node *node = &graph->nodes[i];
        if (node->flags & (MU_NODE_REPEAT | MU_NODE_BUILT_IN)) continue;
        if (node->pin != MUSTER_ANY_DEVICE && node->pin != p->device) continue;
        int occupancy = -1;
        muster_preflight_report report;
        muster_error why;
        judge(runtime, p->device, graph, node, -1, &report);
        if (actor && node->flags & MU_NODE_COOPERATIVE && report.answer != MUSTER_ANSWER_NO) {
            const uint32_t *block = node->as.dispatch->block;
            if (mu_occupancy_cache_get(actor->occupancy, node->as.dispatch->kernel->functions[actor->index],
                                       block[0] * block[1] * block[2], node->as.dispatch->dynamic_shared_bytes,
                                       &occupancy, &why))
                refuse(&report, &why);
            else
                judge(runtime, p->device, graph, node, occupancy, &report);
        }
        if (p->parts++ == 0 || is_worse(&report, &p->report)) p->report = report;
    }
    return MUSTER_OK;
}

static muster_status look_on_worker(mu_actor *actor, void *user, muster_error *error) {
    (void)error;
    return look(user, actor);
}

static muster_status check_call(const muster_runtime *runtime, int device, muster_preflight_depth depth,
                                const muster_preflight_report *report, muster_error *error) {
    if (device < 0 || device >= (int)runtime->device_count)
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "device %d: the runtime has %u", device, runtime->device_count);
    if (depth != MUSTER_PREFLIGHT_CHEAP && depth != MUSTER_PREFLIGHT_FULL)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%d is not a depth of preflight", (int)depth);
    if (!report) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "report is NULL");
    if (report->struct_size < sizeof report->struct_size)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "report->struct_size is %zu; set it to the size of the struct",
                       report->struct_size);
    return MUSTER_OK;
}

static void answer_lost(const muster_runtime *runtime, int device, muster_preflight_report *report) {
    muster_error why;
    mu_fail(&why, MUSTER_DEVICE_LOST, "device %d is lost: %.440s", device, runtime->actors[device].loss.message);
    memset(report, 0, sizeof *report);
    refuse(report, &why);
}

static muster_status fly(muster_graph *graph, muster_job job, int device, muster_preflight_depth depth,
                         muster_preflight_report *report, muster_error *error) {
    muster_runtime *runtime = graph->handle.runtime;
    preflight p = {.graph = graph, .job = job, .device = device};
    muster_status status =
        depth == MUSTER_PREFLIGHT_FULL ? mu_actor_call(runtime, device, look_on_worker, &p, error) : look(&p, NULL);
    bool lost = mu_loss_has(runtime, device) && !mu_runtime_check(runtime, NULL);
    if (lost && status == MUSTER_DEVICE_LOST) status = look(&p, NULL);
    if (status) return status;
    if (p.parts == 0)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "job %u has no part that runs on device %d; it is pinned to others", job, device);
    if (lost) answer_lost(runtime, device, &p.report);
    size_t bytes = report->struct_size < sizeof p.report ? report->struct_size : sizeof p.report;
    p.report.struct_size = bytes;
    memcpy(report, &p.report, bytes);
    return MUSTER_OK;
}

muster_status muster_preflight(muster_graph *graph, muster_job job, int device, muster_preflight_depth depth,
                               muster_preflight_report *report, muster_error *error) {
    muster_status status;
    if ((status = mu_handle_check(graph, MU_TAG_GRAPH, NULL, "graph", error)) ||
        (status = check_call(graph->handle.runtime, device, depth, report, error)) ||
        (status = mu_runtime_check(graph->handle.runtime, error)))
        return status;
    if (job >= graph->job_count)
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "job %u: the graph has %zu jobs", job, graph->job_count);
    return fly(graph, job, device, depth, report, error);
}

muster_status muster_preflight_dispatch(muster_runtime *runtime, const muster_dispatch *dispatch, int device,
                                        muster_preflight_depth depth, muster_preflight_report *report,
                                        muster_error *error) {
    muster_status status;
    if ((status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error)) ||
        (status = check_call(runtime, device, depth, report, error)) || (status = mu_runtime_check(runtime, error)))
        return status;
    muster_graph *graph;
    muster_job job;
    if ((status = muster_graph_create(runtime, &graph, error))) return status;
    status = mu_dispatch_add(graph, dispatch, false, &job, error);
    if (!status) status = fly(graph, job, device, depth, report, error);
    muster_graph_destroy(graph);
    return status;
}
