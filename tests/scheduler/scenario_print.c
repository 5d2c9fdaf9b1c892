/* Scenarios as text, close to the calls that they make. */
#include <inttypes.h>

#include "tests/scheduler/scenario.h"

static const struct {
    const char *name, *entry;
    uint32_t element_bytes;
} operations[SC_OP_COUNT] = {
#define SC_OP_ROW(name, entry, bytes) {#name, entry, bytes},
    SC_OP_MAP(SC_OP_ROW)
#undef SC_OP_ROW
};

const char *sc_op_name(sc_op op) { return operations[op].name; }
const char *sc_op_entry(sc_op op) { return operations[op].entry; }
uint32_t sc_op_element_bytes(sc_op op) { return operations[op].element_bytes; }

static const char *access_name(muster_access access) {
    return access == MUSTER_READ ? "read" : access == MUSTER_WRITE ? "write" : "read-write";
}

static void print_job(const sc_job *job, uint32_t index, FILE *file) {
    fprintf(file, "    job %" PRIu32 ": %s", index, sc_op_name(job->op));
    for (uint32_t r = 0; r < job->range_count; r++) {
        const sc_range *range = &job->range[r];
        fprintf(file, " %s b%" PRIu32 "[%" PRIu32 " +%" PRIu32 "]", access_name(range->access), range->buffer,
                range->offset, range->bytes);
        if (job->sharded)
            fprintf(file, "%s", range->cut == MUSTER_CUT_BLOCK ? "/block" : range->cut ? "/reduce" : "/replicate");
    }
    if (job->op == SC_FILL) fprintf(file, " pattern 0x%" PRIx32 "/%" PRIu32, job->pattern, job->pattern_bytes);
    if (sc_op_entry(job->op)) {
        fprintf(file, " count %" PRIu32 " scalar 0x%" PRIx32 " grid %" PRIu32 ",%" PRIu32 ",%" PRIu32, job->count,
                job->scalar, job->grid.x, job->grid.y, job->grid.z);
        fprintf(file, " block %" PRIu32 ",%" PRIu32 ",%" PRIu32, job->block.x, job->block.y, job->block.z);
        if (job->extent) fprintf(file, " extent %" PRIu32, job->extent);
    }
    if (job->sharded) fprintf(file, " sharded axis %" PRIu32 " at most %" PRIu32, job->axis, job->max_shards);
    if (job->pin >= 0) fprintf(file, " pinned to %d", job->pin);
    for (uint32_t a = 0; a < job->after_count; a++) fprintf(file, " after %" PRIu32, job->after[a]);
    fputc('\n', file);
}

static void print_step(const scenario *scenario, uint32_t index, FILE *file) {
    const sc_step *step = &scenario->step[index];
    fprintf(file, "  step %" PRIu32 " (thread %" PRIu32 "%s): ", index, step->thread, step->early ? ", early" : "");
    switch (step->kind) {
        case SC_SUBMIT:
            fprintf(file, "submit graph %" PRIu32, step->graph);
            if (step->into) fprintf(file, " into open run %" PRIu32, step->into);
            if (step->limit)
                fprintf(file, ", with a deadline that %s", step->limit == SC_FAR ? "is far" : "is taken back");
            break;
        case SC_CLOSE: fprintf(file, "close open run %" PRIu32, step->into); break;
        case SC_STOP:
            fprintf(file, "submit graph %" PRIu32 "%s and ", step->graph, step->into ? " into an open run" : "");
            fprintf(file, "%s %" PRIu64 " ns", step->by_deadline ? "give it" : "cancel it after", step->patience_ns);
            break;
        case SC_SET: fprintf(file, "set the value of graph %" PRIu32 " job %" PRIu32, step->graph, step->job); break;
        case SC_ACQUIRE:
        case SC_TRY:
            fprintf(file, "%s b%" PRIu32 "[%" PRIu32 " +%" PRIu32 "] to %s",
                    step->kind == SC_TRY ? "try to acquire" : "acquire", step->buffer, step->offset, step->bytes,
                    access_name(step->access));
            if (step->tries) fprintf(file, " after %" PRIu32 " attempts without waiting", step->tries);
            if (step->patience_ns) fprintf(file, " and one of %" PRIu64 " ns", step->patience_ns);
            if (step->kind == SC_TRY && step->of != SC_NO_STEP)
                fprintf(file, " while step %" PRIu32 " holds it", step->of);
            break;
        case SC_DESTROY: fprintf(file, "destroy b%" PRIu32, step->buffer); break;
        case SC_RELEASE: fprintf(file, "release what step %" PRIu32 " acquired", step->of); break;
        case SC_WAIT: fprintf(file, "wait for the run of step %" PRIu32, step->of); break;
        case SC_STEP_KINDS: break;
    }
    fputc('\n', file);
}

void scenario_print(const scenario *scenario, FILE *file) {
    static const char *const kinds[] = {"raw", "f32", "f64"};
    static const char *const memories[SC_MEMORIES] = {", host memory", ", pinned memory", ", registered memory"};
    fprintf(file, "scenario seed %" PRIu64 ", %" PRIu32 " devices, %" PRIu32 " threads\n", scenario->seed,
            scenario->devices, scenario->threads);
    for (uint32_t b = 0; b < scenario->buffer_count; b++)
        fprintf(file, "  b%" PRIu32 ": %" PRIu32 " bytes, %s%s\n", b, scenario->buffer[b].bytes,
                kinds[scenario->buffer[b].kind],
                scenario->buffer[b].host ? memories[scenario->buffer[b].memory] : ", zeros");
    for (uint32_t g = 0; g < scenario->graph_count; g++) {
        const sc_graph *graph = &scenario->graph[g];
        bool empty = true;
        for (uint32_t j = 0; j < graph->job_count; j++) empty &= graph->job[j].dropped;
        if (!empty) fprintf(file, "  graph %" PRIu32 "\n", g);
        for (uint32_t j = 0; j < graph->job_count; j++)
            if (!graph->job[j].dropped) print_job(&graph->job[j], j, file);
        for (uint32_t e = 0; e < graph->edge_count; e++)
            if (!graph->edge[e].dropped)
                fprintf(file, "    job %" PRIu32 " after %" PRIu32 "\n", graph->edge[e].job,
                        graph->edge[e].predecessor);
    }
    for (uint32_t s = 0; s < scenario->step_count; s++)
        if (!scenario->step[s].dropped) print_step(scenario, s, file);
}
