#include "scheduler/graph/advice.h"

#include <stdio.h>

const char *mu_node_kind_name(const mu_node *node) {
    switch ((mu_node_kind)node->kind) {
        case MU_NODE_DISPATCH:
            return node->flags & MU_NODE_BUILT_IN ? "adding up the shards of a reduced argument"
                   : node->flags & MU_NODE_SHARD  ? "a shard of the dispatch"
                                                  : "the dispatch";
        case MU_NODE_COPY: return "the copy";
        case MU_NODE_FILL: return "the fill";
        case MU_NODE_PREFETCH: return "the prefetch";
        case MU_NODE_ENQUEUE: return "the enqueue job";
        case MU_NODE_READ_BACK: return "the read-back";
        case MU_NODE_HOST: return "the host job";
        case MU_NODE_JOIN: break;
    }
    return "the job";
}

void mu_access_name(const muster_graph *graph, const mu_node *node, uint32_t access, char name[MU_ACCESS_NAME_BYTES]) {
    if (node->kind == MU_NODE_COPY) {
        snprintf(name, MU_ACCESS_NAME_BYTES, "the copy's %s", access == 0 ? "source" : "destination");
        return;
    }
    const mu_parameter *parameters = &graph->parameters[node->parameter_first];
    for (uint32_t i = 0; i < node->parameter_count && !(node->flags & MU_NODE_BUILT_IN); i++) {
        if (parameters[i].bytes || parameters[i].scratch) continue;
        uint32_t index = parameters[i].lead ? graph->leads[parameters[i].index].access : parameters[i].index;
        if (index != access) continue;
        snprintf(name, MU_ACCESS_NAME_BYTES, "argument %u", i);
        return;
    }
    snprintf(name, MU_ACCESS_NAME_BYTES, "%s",
             node->flags & MU_NODE_BUILT_IN ? "a reduced argument" : mu_node_kind_name(node));
}

void mu_node_memory_advice(const mu_node *node, uint64_t whole_bytes, char advice[MU_MEMORY_ADVICE_BYTES]) {
    char shrink[96];
    snprintf(shrink, sizeof shrink, "shrink its buffers (those of up to %llu bytes count as a whole)",
             (unsigned long long)whole_bytes);
    switch ((mu_node_kind)node->kind) {
        case MU_NODE_DISPATCH:
            if (node->flags & MU_NODE_BUILT_IN)
                snprintf(advice, MU_MEMORY_ADVICE_BYTES, "reduce into a smaller range");
            else if (node->flags & MU_NODE_COOPERATIVE)
                snprintf(advice, MU_MEMORY_ADVICE_BYTES, "%s", shrink);
            else if (node->flags & MU_NODE_SHARD)
                snprintf(advice, MU_MEMORY_ADVICE_BYTES,
                         "give it more shards (a larger max_shards, or 0 in a graph that is built anew), %s", shrink);
            else
                snprintf(advice, MU_MEMORY_ADVICE_BYTES, "shard the dispatch, without max_shards, %s", shrink);
            return;
        case MU_NODE_COPY: snprintf(advice, MU_MEMORY_ADVICE_BYTES, "split it into copies of fewer bytes"); return;
        case MU_NODE_FILL: snprintf(advice, MU_MEMORY_ADVICE_BYTES, "split it into fills of fewer bytes"); return;
        case MU_NODE_PREFETCH: snprintf(advice, MU_MEMORY_ADVICE_BYTES, "prefetch a smaller range"); return;
        case MU_NODE_ENQUEUE:
            snprintf(advice, MU_MEMORY_ADVICE_BYTES, "spread the work over several jobs, %s", shrink);
            return;
        case MU_NODE_READ_BACK:
        case MU_NODE_HOST:
        case MU_NODE_JOIN: break;
    }
    snprintf(advice, MU_MEMORY_ADVICE_BYTES, "%s", shrink);
}
