/* What few dispatches have: clusters, a fallback with its phases, a barrier counter. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/graph/graph.h"
#include "scheduler/graph/shard.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

void mu_counter_free(mu_counter *counter) {
    if (!counter) return;
    mu_free(counter->name);
    mu_free(counter);
}

/* By each worker, in its own place. The kernel exists, so its program is loaded. */
static muster_status find_on_device(mu_actor *actor, void *user, muster_error *error) {
    mu_counter *counter = user;
    struct mu_counter_place *place = &counter->places[actor->index];
    return mu_module_cache_global(counter->program->devices[actor->index].entry, counter->name, &place->address,
                                  &place->bytes, error);
}

static muster_status find_counter(muster_graph *graph, const muster_program *program, const char *name, uint32_t *index,
                                  muster_error *error) {
    muster_runtime *runtime = graph->handle.runtime;
    for (size_t i = 0; i < graph->counter_count; i++)
        if (graph->counters[i]->program == program && strcmp(graph->counters[i]->name, name) == 0) {
            *index = (uint32_t)i + 1;
            return MUSTER_OK;
        }
    size_t bytes = sizeof(mu_counter) + runtime->device_count * sizeof(struct mu_counter_place);
    mu_counter *counter = mu_alloc_zeroed(1, bytes);
    char *copy = mu_strdup(name);
    if (!counter || !copy ||
        !mu_grow(&graph->counters, &graph->counter_capacity, graph->counter_count + 1, sizeof *graph->counters)) {
        mu_free(counter);
        mu_free(copy);
        return mu_fail_host_memory(error, "a barrier counter", bytes);
    }
    counter->program = program;
    counter->name = copy;
    muster_status status = mu_actors_call(runtime, find_on_device, counter, error);
    for (uint32_t d = 0; !status && d < runtime->device_count; d++)
        if (counter->places[d].bytes == 0 || counter->places[d].bytes % 4 || counter->places[d].address % 4)
            status = mu_fail(error, MUSTER_INVALID_ARGUMENT,
                             "barrier counter %.64s has %llu bytes, not a whole number of aligned 4-byte words", name,
                             (unsigned long long)counter->places[d].bytes);
    if (status) {
        mu_counter_free(counter);
        return status;
    }
    graph->counters[graph->counter_count++] = counter;
    *index = (uint32_t)graph->counter_count;
    return MUSTER_OK;
}

muster_status mu_graph_add_extra(muster_graph *graph, const mu_checked_dispatch *checked, uint32_t *index,
                                 muster_error *error) {
    const muster_dispatch *dispatch = checked->dispatch;
    *index = 0;
    if (!dispatch->cluster.x && !dispatch->fallback && !dispatch->barrier_counter) return MUSTER_OK;
    mu_extra extra = {.fallback = dispatch->fallback,
                      .phase_first = (uint32_t)graph->phase_count,
                      .phase_count = dispatch->phase_count};
    memcpy(extra.cluster, checked->cluster, sizeof extra.cluster);
    if (!mu_grow(&graph->extras, &graph->extra_capacity, graph->extra_count + 1, sizeof *graph->extras) ||
        !mu_grow(&graph->phases, &graph->phase_capacity, graph->phase_count + dispatch->phase_count + 1,
                 sizeof *graph->phases))
        return mu_fail_host_memory(error, "the phases of a dispatch", dispatch->phase_count * sizeof *graph->phases);
    for (uint32_t i = 0; i < dispatch->phase_count; i++) {
        if (!mu_graph_hold_kernel(graph, dispatch->phases[i]))
            return mu_fail_host_memory(error, "the phases of a dispatch", sizeof *graph->phases);
        graph->phases[graph->phase_count++] = dispatch->phases[i];
    }
    if (dispatch->barrier_counter) {
        /* The program is held before its counter is remembered. */
        if (!mu_graph_hold_kernel(graph, dispatch->kernel))
            return mu_fail_host_memory(error, "a dispatch", sizeof *graph->kernels);
        muster_status status =
            find_counter(graph, dispatch->kernel->program, dispatch->barrier_counter, &extra.counter, error);
        if (status) return status;
    }
    graph->extras[graph->extra_count++] = extra;
    *index = (uint32_t)graph->extra_count;
    return MUSTER_OK;
}
