/* What became of a run's jobs and shards. */
#include "base/error.h"
#include "scheduler/run/open_run.h"
#include "scheduler/runtime/runtime.h"

/* A job of a run: the nodes that it became, in the part of the run that has them. */
typedef struct found_job {
    const muster_run *run;
    uint32_t first, end;
} found_job;

static muster_status find_job(const muster_run *run, muster_job job, found_job *found, muster_error *error) {
    muster_status status = mu_handle_check(run, MU_TAG_RUN, NULL, "run", error);
    if (status) return status;
    if (run->open) run = mu_open_run_part(run, job);
    if (!run) return mu_fail(error, MUSTER_OUT_OF_RANGE, "job %u: no graph with that job was added to the run", job);
    const muster_graph *graph = run->graph;
    uint32_t own = job - run->first_job;
    if (own >= graph->job_count)
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "job %u: the graph has %zu jobs", job, graph->job_count);
    *found = (found_job){run, graph->job_nodes[own], mu_graph_job_end(graph, own)};
    for (uint32_t i = found->first; i < found->end; i++)
        if (atomic_load_explicit(&run->tasks[i].state, memory_order_acquire) != MU_TASK_ENDED)
            return mu_fail(error, MUSTER_INVALID_STATE, "job %u has not ended; wait for the run first", job);
    return MUSTER_OK;
}

static muster_status check_size(size_t given, size_t wanted, const char *type, muster_error *error) {
    if (given == wanted) return MUSTER_OK;
    return mu_fail(error, MUSTER_INVALID_ARGUMENT, "result->struct_size is %zu; set it to sizeof(%s), %zu", given, type,
                   wanted);
}

/* A launch of the application's kernel; the first, where it is launched again and again. */
static bool is_shard(const mu_node *node) {
    return node->kind == MU_NODE_DISPATCH && !(node->flags & (MU_NODE_BUILT_IN | MU_NODE_REPEAT));
}

muster_status muster_run_job_result(const muster_run *run, muster_job job, muster_job_result *result,
                                    muster_error *error) {
    found_job at;
    if (!result) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "result is NULL");
    muster_status status = check_size(result->struct_size, sizeof *result, "muster_job_result", error);
    if (!status) status = find_job(run, job, &at, error);
    if (status) return status;
    muster_job_result found = {sizeof found, MUSTER_OK, MUSTER_ANY_DEVICE, 0};
    muster_status caused = MUSTER_OK;
    for (uint32_t i = at.first; i < at.end; i++) {
        const mu_task *task = &at.run->tasks[i];
        muster_status own = (muster_status)task->status;
        if (own == MUSTER_PREDECESSOR_FAILED)
            caused = own;
        else if (own && !found.status)
            found.status = own;
        if (is_shard(&at.run->graph->nodes[i]) && found.shards++ == 0)
            found.device = task->device;
        else if (found.shards == 0)
            found.device = task->device;
    }
    if (!found.status) found.status = caused;
    if (found.shards == 0) found.shards = 1;
    *result = found;
    return MUSTER_OK;
}

muster_status muster_run_shard_result(const muster_run *run, muster_job job, uint32_t shard,
                                      muster_shard_result *result, muster_error *error) {
    found_job at;
    if (!result) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "result is NULL");
    muster_status status = check_size(result->struct_size, sizeof *result, "muster_shard_result", error);
    if (!status) status = find_job(run, job, &at, error);
    if (status) return status;
    muster_shard_result found = {.struct_size = sizeof found};
    uint32_t count = 0;
    for (uint32_t i = at.first; i < at.end; i++) {
        const mu_node *node = &at.run->graph->nodes[i];
        if (!is_shard(node)) continue;
        found.first_block += found.blocks;
        found.blocks = mu_node_blocks(node);
        if (count++ < shard) continue;
        found.status = (muster_status)at.run->tasks[i].status;
        found.device = at.run->tasks[i].device;
        *result = found;
        return MUSTER_OK;
    }
    return mu_fail(error, MUSTER_OUT_OF_RANGE, "shard %u: job %u has %u", shard, job, count);
}
