/* What messages say about a node: which part of the job is meant, and what its author can do. Pure; any thread. */
#ifndef MUSTER_SCHEDULER_GRAPH_ADVICE_H
#define MUSTER_SCHEDULER_GRAPH_ADVICE_H

#include "scheduler/graph/graph.h"

/* "the dispatch", "the copy"; static storage. */
const char *mu_node_kind_name(const mu_node *node);

/* Whose buffer an access of the node is, as the application gave it: "argument 2", "the copy's source". */
enum { MU_ACCESS_NAME_BYTES = 32 };
void mu_access_name(const muster_graph *graph, const mu_node *node, uint32_t access, char name[MU_ACCESS_NAME_BYTES]);

/* What can be done about a node that needs more memory than there is, by its kind; it begins with a verb. `whole_bytes`: up to which
 * size buffers count as a whole. */
enum { MU_MEMORY_ADVICE_BYTES = 192 };
void mu_node_memory_advice(const mu_node *node, uint64_t whole_bytes, char advice[MU_MEMORY_ADVICE_BYTES]);

#endif
