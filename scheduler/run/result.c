/* What became of a run's jobs and shards. */
#include "base/error.h"
#include "scheduler/run/open_run.h"
#include "scheduler/runtime/runtime.h"

/* A job of a run: the nodes that it became, in the part of the run that has them. */
typedef struct found_job {
    muster_run *run;
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
    /* The application's handle is constant; what is asked for is remembered behind it. */
    *found = (found_job){(muster_run *)(uintptr_t)run, graph->job_nodes[own], mu_graph_job_end(graph, own)};
    if (atomic_load_explicit(&run->done, memory_order_acquire)) return MUSTER_OK;
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

/* With the lock of the run held. False: the job has only place->shard shards. */
static bool find_shard(const found_job *at, uint32_t shard, mu_shard_place *place) {
    if (place->job_first != at->first || place->shard > shard) *place = (mu_shard_place){at->first, at->first, 0, 0};
    for (; place->node < at->end; place->node++) {
        const mu_node *node = &at->run->graph->nodes[place->node];
        if (!is_shard(node)) continue;
        if (place->shard == shard) return true;
        place->shard++;
        place->first_block += mu_node_blocks(node);
    }
    return false;
}

muster_status muster_run_shard_result(const muster_run *run, muster_job job, uint32_t shard,
                                      muster_shard_result *result, muster_error *error) {
    found_job at;
    if (!result) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "result is NULL");
    muster_status status = check_size(result->struct_size, sizeof *result, "muster_shard_result", error);
    if (!status) status = find_job(run, job, &at, error);
    if (status) return status;
    pthread_mutex_lock(&at.run->lock);
    mu_shard_place place = at.run->asked;
    bool found = find_shard(&at, shard, &place);
    if (found) at.run->asked = place;
    pthread_mutex_unlock(&at.run->lock);
    if (!found) return mu_fail(error, MUSTER_OUT_OF_RANGE, "shard %u: job %u has %u", shard, job, place.shard);
    const mu_task *task = &at.run->tasks[place.node];
    *result = (muster_shard_result){.struct_size = sizeof *result,
                                    .status = (muster_status)task->status,
                                    .device = task->device,
                                    .first_block = place.first_block,
                                    .blocks = mu_node_blocks(&at.run->graph->nodes[place.node])};
    return MUSTER_OK;
}
