/* Runs that are ended early. What of them happened depends on the moment, so their jobs are asked, and the model carries out those that
 * did their work; what the others had to write must be undefined. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/scheduler/scenario_execution.h"

typedef struct stop {
    execution *run;
    const sc_step *step;
    uint32_t index;
    const sc_graph *graph;
    const sc_job *job;        /* of the graph, with the values that were set */
    muster_run *stopped;      /* the caller's to destroy */
    muster_job first;         /* of the graph's jobs */
    bool worked[SC_MAX_JOBS]; /* the job has ended well */
    bool vague[SC_MAX_JOBS];  /* it has read what parts of a job that was cut wrote, or what such a job wrote */
    bool all_worked;
} stop;

static muster_status status_of_stop(const sc_step *step) {
    return step->by_deadline ? MUSTER_DEADLINE_PASSED : MUSTER_CANCELLED;
}

/* Submits and ends it. */
static bool begin(stop *stop) {
    execution *run = stop->run;
    muster_runtime *runtime = run->executor->runtime;
    muster_graph *graph = run->graph[stop->step->graph];
    muster_error error;
    muster_status status = stop->step->into ? muster_run_open(runtime, &stop->stopped, &error)
                                            : muster_submit(runtime, graph, &stop->stopped, &error);
    if (!status && stop->step->into) status = muster_run_add(stop->stopped, graph, &stop->first, &error);
    if (!status && !stop->step->by_deadline) muster_run_wait(stop->stopped, stop->step->patience_ns, &error);
    if (!status)
        status = stop->step->by_deadline ? muster_run_set_deadline(stop->stopped, stop->step->patience_ns, &error)
                                         : muster_run_cancel(stop->stopped, &error);
    if (status) return sc_fail_status(run, "beginning to stop step", stop->index, &error);
    if (!stop->step->into) return true;
    if (!stop->step->by_deadline) { /* a deadline passes some time later */
        status = muster_run_add(stop->stopped, graph, NULL, &error);
        if (status != MUSTER_CANCELLED)
            return sc_fail(run, false, "a cancelled open run took another graph in step %" PRIu32 ": %s", stop->index,
                           muster_status_name(status));
    }
    return muster_run_close(stop->stopped, &error) == MUSTER_OK ||
           sc_fail_status(run, "closing the stopped run of step", stop->index, &error);
}

/* Waits, and asks each job what became of it. */
static bool ask(stop *stop) {
    execution *run = stop->run;
    const muster_status early = status_of_stop(stop->step);
    sc_counts *counts = run->executor->counts;
    muster_error error;
    muster_status status = muster_run_wait(stop->stopped, run->executor->timeout_ns, &error);
    if (status && status != early)
        return sc_fail_status(run, "waiting for the stopped run of step", stop->index, &error);
    stop->all_worked = true;
    for (uint32_t j = 0; j < stop->graph->job_count; j++) {
        muster_job_result result = {.struct_size = sizeof result};
        stop->worked[j] = true;
        if (stop->job[j].dropped) continue;
        muster_job id = stop->first + run->job_id[stop->step->graph][j];
        if (muster_run_job_result(stop->stopped, id, &result, &error) != MUSTER_OK)
            return sc_fail_status(run, "asking for the stopped job", j, &error);
        if (result.status && result.status != early && result.status != MUSTER_PREDECESSOR_FAILED)
            return sc_fail(run, false, "job %" PRIu32 " of the stopped run of step %" PRIu32 " is %s", j, stop->index,
                           muster_status_name(result.status));
        stop->worked[j] = !result.status;
        stop->all_worked &= stop->worked[j];
        if (result.status) sc_add_count(run, &counts->lost);
    }
    sc_add_count(run, &counts->stops);
    if (!stop->all_worked) sc_add_count(run, &counts->cut_short);
    if (stop->all_worked == !status) return true;
    return sc_fail(run, false, "the stopped run of step %" PRIu32 " is %s, and its jobs are %s", stop->index,
                   muster_status_name(status), stop->all_worked ? "all well" : "not all well");
}

static bool is_declared_after(const stop *stop, uint32_t job, uint32_t other) {
    for (uint32_t e = 0; e < stop->graph->edge_count; e++) {
        const sc_edge *edge = &stop->graph->edge[e];
        if (!edge->dropped && edge->job == job && edge->predecessor == other) return true;
    }
    for (uint32_t a = 0; a < stop->job[job].after_count; a++)
        if (stop->job[job].after[a] == other) return true;
    return false;
}

static bool follows(const stop *stop, uint32_t job, uint32_t other) {
    return is_declared_after(stop, job, other) || (other < job && sc_jobs_conflict(&stop->job[job], &stop->job[other]));
}

/* Unless it was declared to, a job follows only those parts of a job that was cut which it shares bytes with; they may have worked where
 * others have not. */
static bool check_order(stop *stop) {
    for (uint32_t j = 0; j < stop->graph->job_count; j++)
        for (uint32_t i = 0; i < stop->graph->job_count; i++) {
            if (i == j || !stop->worked[j] || stop->job[j].dropped || !follows(stop, j, i)) continue;
            stop->vague[j] |= stop->vague[i] || (!stop->worked[i] && stop->job[i].sharded);
            if (!stop->worked[i] && (!stop->job[i].sharded || is_declared_after(stop, j, i)))
                return sc_fail(stop->run, false,
                               "job %" PRIu32 " of the stopped run of step %" PRIu32 " worked without job %" PRIu32, j,
                               stop->index, i);
        }
    return true;
}

/* Whether a job that did not work had to write to the range, or one did of which the model does not know what it read. */
static bool is_lost(const stop *stop, const sc_range *range) {
    for (uint32_t j = 0; j < stop->graph->job_count; j++)
        for (uint32_t r = 0; r < stop->job[j].range_count && (!stop->worked[j] || stop->vague[j]); r++) {
            const sc_range *lost = &stop->job[j].range[r];
            if (lost->access & MUSTER_WRITE && lost->buffer == range->buffer &&
                lost->offset < range->offset + range->bytes && range->offset < lost->offset + lost->bytes)
                return true;
        }
    return false;
}

/* What job j had to write: as the model has it, or undefined. Some parts of a job that was cut may have worked. */
static bool check_range(stop *stop, uint32_t j, const sc_range *range, uint8_t *const memory[SC_MAX_BUFFERS]) {
    execution *run = stop->run;
    muster_error error;
    void *pointer;
    if (!range->bytes || !(range->access & MUSTER_WRITE) || !run->buffer[range->buffer]) return true;
    if (stop->worked[j] && is_lost(stop, range)) return true;
    muster_status status = muster_buffer_acquire(run->buffer[range->buffer], range->offset, range->bytes, MUSTER_READ,
                                                 run->executor->timeout_ns, &pointer, &error);
    if (!stop->worked[j] && status == MUSTER_DATA_UNDEFINED) return true;
    if (status) return sc_fail_status(run, "reading after a stop what was written by job", j, &error);
    bool same = stop->worked[j]
                    ? sc_compare(run, "after a stop, written by job", j, range->offset, pointer,
                                 memory[range->buffer] + range->offset, range->bytes)
                    : sc_fail(run, false,
                              "what job %" PRIu32 " had to write in the stopped run of step %" PRIu32 " can be read", j,
                              stop->index);
    muster_buffer_release(run->buffer[range->buffer], pointer, NULL);
    return same;
}

static bool check_content(stop *stop) {
    execution *run = stop->run;
    uint8_t *const *memory = run->expected->stopped[sc_stop_index(run->scenario, stop->index)];
    for (uint32_t j = 0; j < stop->graph->job_count; j++)
        if (stop->worked[j] && !stop->job[j].dropped) sc_model_job(&stop->job[j], memory);
    for (uint32_t j = 0; j < stop->graph->job_count; j++)
        for (uint32_t r = 0; r < stop->job[j].range_count && !stop->job[j].dropped; r++)
            if (!check_range(stop, j, &stop->job[j].range[r], memory)) return false;
    return true;
}

/* The host writes to every buffer that the graph writes to. */
static bool replace(stop *stop) {
    execution *run = stop->run;
    uint8_t uses[SC_MAX_BUFFERS];
    sc_graph_uses(stop->graph, uses);
    for (uint32_t b = 0; b < run->scenario->buffer_count; b++) {
        const sc_buffer *buffer = &run->scenario->buffer[b];
        muster_error error;
        void *pointer;
        if (!(uses[b] & MUSTER_WRITE)) continue;
        if (muster_buffer_acquire(run->buffer[b], 0, buffer->bytes, MUSTER_WRITE, run->executor->timeout_ns, &pointer,
                                  &error) != MUSTER_OK)
            return sc_fail_status(run, "acquiring after a stop buffer", b, &error);
        sc_stop_write(stop->step, buffer, b, pointer);
        if (muster_buffer_release(run->buffer[b], pointer, &error) != MUSTER_OK)
            return sc_fail_status(run, "releasing after a stop buffer", b, &error);
    }
    return true;
}

bool sc_do_stop(execution *run, uint32_t s) {
    const sc_step *step = &run->scenario->step[s];
    stop stop = {.run = run,
                 .step = step,
                 .index = s,
                 .graph = &run->scenario->graph[step->graph],
                 .job = run->job[step->graph]};
    if (!run->graph[step->graph] && !sc_build_graph(run, step->graph)) return false;
    bool ok = begin(&stop) && ask(&stop) && check_order(&stop) && check_content(&stop) && replace(&stop);
    muster_run_destroy(stop.stopped);
    return ok;
}
