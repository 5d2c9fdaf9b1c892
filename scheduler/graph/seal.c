/* Sealing: what a graph's accesses and explicit edges mean, derived once.
 *
 * For each buffer the last writers and the readers since are kept by range while the nodes are visited in the order they
 * were added: a reader depends on the last writer of each piece it reads, a writer on the readers since, or on the last
 * writer where nobody read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/graph/graph.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/memory/ranges.h"

/* A list of readers, newest first; pieces that were split share their tails. */
typedef struct reader {
    uint32_t node, next;
} reader;

typedef struct piece {
    uint64_t low, high;       /* a mu_range */
    uint32_t writer, readers; /* MU_NONE: none */
} piece;

typedef struct sealing {
    muster_graph *graph;
    mu_ranges *tracks; /* per buffer: of pieces that cover it; zeroed until the first access */
    reader *readers;
    size_t reader_count, reader_capacity;
    uint32_t *seen; /* per node: the last node that took it as a predecessor, + 1 */
    uint32_t *preds;
    size_t pred_count, pred_capacity;
} sealing;

static bool add_pred(sealing *s, uint32_t node, uint32_t pred) {
    if (s->seen[pred] == node + 1) return true;
    s->seen[pred] = node + 1;
    if (!mu_grow(&s->preds, &s->pred_capacity, s->pred_count + 1, sizeof *s->preds)) return false;
    s->preds[s->pred_count++] = pred;
    s->graph->nodes[pred].succ_count++;
    return true;
}

static mu_ranges *open_track(sealing *s, const mu_access *access) {
    mu_ranges *track = &s->tracks[access->buffer];
    if (track->chunk_count) return track;
    piece *whole = mu_ranges_init(track, s->graph->buffers[access->buffer].buffer->bytes, sizeof(piece));
    if (!whole) return NULL;
    whole->writer = whole->readers = MU_NONE;
    return track;
}

static bool read_range(sealing *s, uint32_t node, mu_ranges *track, mu_range_cursor *near, uint64_t low,
                       uint64_t high) {
    piece *p = mu_ranges_cut(track, near, low, high);
    if (!p) return false;
    for (mu_range_cursor at = *near; p && p->low < high; p = mu_ranges_next(track, &at)) {
        if (p->writer != MU_NONE && !add_pred(s, node, p->writer)) return false;
        if (!mu_grow(&s->readers, &s->reader_capacity, s->reader_count + 1, sizeof *s->readers)) return false;
        s->readers[s->reader_count] = (reader){node, p->readers};
        p->readers = (uint32_t)s->reader_count++;
    }
    return true;
}

static bool write_range(sealing *s, uint32_t node, mu_ranges *track, mu_range_cursor *near, uint64_t low,
                        uint64_t high) {
    piece *p = mu_ranges_cut(track, near, low, high);
    if (!p) return false;
    for (mu_range_cursor at = *near; p && p->low < high; p = mu_ranges_next(track, &at)) {
        if (p->readers == MU_NONE && p->writer != MU_NONE && p->writer != node && !add_pred(s, node, p->writer))
            return false;
        for (uint32_t r = p->readers; r != MU_NONE; r = s->readers[r].next)
            if (s->readers[r].node != node && !add_pred(s, node, s->readers[r].node)) return false;
    }
    *(piece *)mu_ranges_join(track, near, high) = (piece){low, high, node, MU_NONE};
    return true;
}

static bool infer_access(sealing *s, uint32_t node, const mu_access *access, bool write) {
    mu_ranges *track = open_track(s, access);
    mu_range_cursor near = {0, 0};
    if (!track) return false;
    if (!access->stride) return (write ? write_range : read_range)(s, node, track, &near, access->low, access->high);
    const mu_area area = mu_access_area(s->graph, access);
    for (uint32_t row = 0; row < area.rows; row++) {
        uint64_t low = mu_area_row(&area, row);
        if (!(write ? write_range : read_range)(s, node, track, &near, low, low + mu_area_width(&area))) return false;
    }
    return true;
}

/* A node's own reads come before its writes, so that it never depends on itself. What nobody writes orders nothing. */
static bool infer_node(sealing *s, uint32_t index) {
    const mu_node *node = &s->graph->nodes[index];
    const mu_access *accesses = &s->graph->accesses[node->access_first];
    const mu_graph_buffer *buffers = s->graph->buffers;
    bool writes = false;
    for (uint32_t i = 0; i < node->access_count; i++) {
        if (accesses[i].mode & MUSTER_WRITE)
            writes = true;
        else if (buffers[accesses[i].buffer].writes && !infer_access(s, index, &accesses[i], false))
            return false;
    }
    for (uint32_t i = 0; i < node->access_count && writes; i++)
        if ((accesses[i].mode & MUSTER_WRITE) && !infer_access(s, index, &accesses[i], true)) return false;
    return true;
}

static int compare_edges(const void *a, const void *b) {
    const mu_edge *x = a, *y = b;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return x->pred < y->pred ? -1 : x->pred > y->pred;
}

static bool find_predecessors(sealing *s, bool *backward) {
    muster_graph *graph = s->graph;
    bool sorted = true;
    for (size_t i = 0; i < graph->edge_count; i++) {
        if (graph->edges[i].pred >= graph->edges[i].node) *backward = true;
        if (i && compare_edges(&graph->edges[i - 1], &graph->edges[i]) > 0) sorted = false;
    }
    if (!sorted) qsort(graph->edges, graph->edge_count, sizeof *graph->edges, compare_edges);
    size_t edge = 0;
    for (uint32_t node = 0; node < graph->node_count; node++) {
        graph->nodes[node].pred_first = (uint32_t)s->pred_count;
        if (!infer_node(s, node)) return false;
        for (; edge < graph->edge_count && graph->edges[edge].node == node; edge++)
            if (!add_pred(s, node, graph->edges[edge].pred)) return false;
        if (s->pred_count > MU_NONE) return false;
        graph->nodes[node].pred_count = (uint32_t)s->pred_count - graph->nodes[node].pred_first;
    }
    return true;
}

/* Successor lists, ascending, and roots: where each list ends follows from the counts, and it is filled from there. */
static bool find_successors(sealing *s, uint32_t **succs, uint32_t **roots, size_t *root_count) {
    muster_graph *graph = s->graph;
    *succs = mu_alloc((s->pred_count + 1) * sizeof **succs);
    *roots = mu_alloc((graph->node_count + 1) * sizeof **roots);
    if (!*succs || !*roots) return false;
    uint32_t end = 0;
    *root_count = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        mu_node *node = &graph->nodes[i];
        end += node->succ_count;
        node->succ_first = end;
        if (node->pred_count == 0) (*roots)[(*root_count)++] = i;
    }
    for (uint32_t i = (uint32_t)graph->node_count; s->pred_count && i-- > 0;) {
        const mu_node *node = &graph->nodes[i];
        for (uint32_t k = 0; k < node->pred_count; k++)
            (*succs)[--graph->nodes[s->preds[node->pred_first + k]].succ_first] = i;
    }
    return true;
}

/* Walks predecessors from a node of the cycle until one repeats; names the jobs in between. */
static muster_status report_cycle(const sealing *s, const uint32_t *pending, muster_error *error) {
    const muster_graph *graph = s->graph;
    uint32_t at = 0;
    while (pending[at] == 0) at++;
    /* Every node left has a predecessor that is left: after node_count steps we are on a cycle. */
    for (int pass = 0; pass < 2; pass++) {
        uint32_t start = at;
        char text[256];
        size_t used = 0, length = 0;
        for (size_t step = 0; step <= graph->node_count; step++) {
            if (pass == 1 && used < sizeof text - 16)
                used += (size_t)snprintf(text + used, sizeof text - used, "%s%u", step ? " after " : "",
                                         graph->nodes[at].job);
            length++;
            const mu_node *node = &graph->nodes[at];
            for (uint32_t k = 0; k < node->pred_count; k++) {
                uint32_t pred = s->preds[node->pred_first + k];
                if (pending[pred] == 0) continue;
                at = pred;
                break;
            }
            if (pass == 1 && at == start) {
                return mu_fail(error, MUSTER_GRAPH_CYCLE,
                               "the dependencies form a cycle of %zu: job %s after %u%s; build the graph without one "
                               "of these edges",
                               length, text, graph->nodes[start].job, used >= sizeof text - 16 ? " (and more)" : "");
            }
        }
    }
    return mu_fail(error, MUSTER_GRAPH_CYCLE, "the dependencies form a cycle");
}

static muster_status check_acyclic(const sealing *s, const uint32_t *succs, const uint32_t *roots, size_t root_count,
                                   muster_error *error) {
    const muster_graph *graph = s->graph;
    uint32_t *pending = mu_alloc((graph->node_count + 1) * sizeof *pending);
    uint32_t *stack = mu_alloc((graph->node_count + 1) * sizeof *stack);
    muster_status status = MUSTER_OK;
    if (!pending || !stack) {
        status = mu_fail_host_memory(error, "the check for cycles", 2 * graph->node_count * sizeof *stack);
        goto free_arrays;
    }
    for (uint32_t i = 0; i < graph->node_count; i++) pending[i] = graph->nodes[i].pred_count;
    memcpy(stack, roots, root_count * sizeof *stack);
    size_t depth = root_count, visited = 0;
    while (depth) {
        const mu_node *node = &graph->nodes[stack[--depth]];
        visited++;
        for (uint32_t k = 0; k < node->succ_count; k++)
            if (--pending[succs[node->succ_first + k]] == 0) stack[depth++] = succs[node->succ_first + k];
    }
    if (visited != graph->node_count) status = report_cycle(s, pending, error);
free_arrays:
    mu_free(pending);
    mu_free(stack);
    return status;
}

muster_status mu_graph_seal(muster_graph *graph, muster_error *error) {
    if (graph->sealed) return MUSTER_OK;
    sealing s = {.graph = graph};
    uint32_t *succs = NULL, *roots = NULL;
    size_t root_count = 0;
    bool backward = false;
    muster_status status = MUSTER_OK;
    s.tracks = mu_alloc_zeroed(graph->buffer_count + 1, sizeof *s.tracks);
    s.seen = mu_alloc_zeroed(graph->node_count + 1, sizeof *s.seen);
    if (!s.tracks || !s.seen || !find_predecessors(&s, &backward) || !find_successors(&s, &succs, &roots, &root_count))
        status = mu_fail_host_memory(error, "the dependencies of a graph", graph->node_count * sizeof *s.seen);
    if (!status && backward) status = check_acyclic(&s, succs, roots, root_count, error);
    /* It may be tried again. */
    for (size_t i = 0; status && i < graph->node_count; i++) graph->nodes[i].succ_count = 0;
    if (!status) {
        graph->preds = s.preds;
        graph->succs = succs;
        graph->roots = roots;
        graph->pred_total = s.pred_count;
        graph->root_count = root_count;
        graph->sealed = true;
        s.preds = succs = roots = NULL;
    }
    if (s.tracks)
        for (size_t i = 0; i < graph->buffer_count; i++) mu_ranges_destroy(&s.tracks[i]);
    mu_free(s.tracks);
    mu_free(s.readers);
    mu_free(s.seen);
    mu_free(s.preds);
    mu_free(succs);
    mu_free(roots);
    return status;
}
