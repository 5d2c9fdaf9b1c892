/* Graphs as they are stored. Records refer to each other by index into the graph's arrays.
 *
 * While a graph is built, jobs only append: nodes, accesses, parameters, values and explicit edges. Sealing (at the first
 * submit, scheduler/graph/seal.c) derives the rest: dependencies from the accesses, successor lists, roots, and whether there is a
 * cycle. A sealed graph is immutable but for its values, which are replaced as a whole when a run still uses them. */
#ifndef MUSTER_SCHEDULER_GRAPH_GRAPH_H
#define MUSTER_SCHEDULER_GRAPH_GRAPH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "scheduler/memory/area.h"
#include "scheduler/runtime/handle.h"

#define MU_NONE UINT32_MAX /* no node */

typedef enum mu_node_kind {
    MU_NODE_DISPATCH,
    MU_NODE_COPY, /* accesses: source, destination */
    MU_NODE_FILL,
    MU_NODE_JOIN,     /* does nothing; stands between many predecessors and many successors */
    MU_NODE_PREFETCH, /* nothing but its access: the range is on the device once it has ended */
    MU_NODE_ENQUEUE,
    MU_NODE_READ_BACK, /* from here on no device runs it (mu_node_is_host) */
    MU_NODE_HOST
} mu_node_kind;

/* What a node accesses of a buffer: a range, or rows in it (mu_access_area). A device holds the range, from the first row to the last;
 * what lies between the rows is nothing to the node. */
typedef struct mu_access {
    uint64_t low, high; /* not empty */
    uint32_t buffer;    /* index in the graph's buffers */
    uint8_t mode;       /* muster_access */
    bool exact;         /* one device needs only this range: never copy the whole buffer there for it */
    uint16_t stride;    /* in the graph's strides, plus 1; 0: the whole range */
} mu_access;

/* How rows of an access follow each other. Few graphs have more than one or two. */
typedef struct mu_stride {
    uint64_t pitch;
    uint32_t rows; /* more than one */
} mu_stride;
enum { MU_STRIDES_MAX = 4096 }; /* from so many on no dispatch with strides is added */

/* One kernel parameter: the address of an access, or a value. */
typedef struct mu_parameter {
    uint32_t index; /* of the access within the node, the byte offset in the graph's values, or in its scratch sizes */
    uint32_t bytes : 29;  /* 0: an address */
    uint32_t derived : 1; /* a shard's offset or count: not the application's to set */
    uint32_t scratch : 1; /* the address of memory that the launch has for itself */
    uint32_t lead : 1;    /* an address behind the beginning of an access: `index` is that of the graph's leads */
} mu_parameter;

enum {
    MU_NODE_COOPERATIVE = 1u << 0,
    MU_NODE_BUILT_IN = 1u << 1, /* a kernel of ours: its arguments are not the job's */
    MU_NODE_SCRATCH = 1u << 3,  /* some parameter is scratch memory */
    MU_NODE_WAVE = 1u << 5,     /* a shard that is one of several on its device, for want of memory */
    MU_NODE_SPREAD = 1u << 6,   /* a shard that goes where it ends first (scheduler/placement/spread.h) */
    MU_NODE_SHARD = 1u << 4,    /* part of a cut dispatch: its pin is where it is best, not where it must be */
    MU_NODE_REPEAT = 1u << 2    /* the node before it once more: same accesses and parameters, and on the same device */
};

/* The neighbours' bytes in front of a shard's own, which a halo brings with it. */
typedef struct mu_lead {
    uint64_t bytes;
    uint32_t access; /* of the node */
} mu_lead;

/* What few dispatches have, beside their nodes. */
typedef struct mu_extra {
    uint32_t cluster[3]; /* {0, 0, 0}: none */
    muster_fallback fallback;
    uint32_t phase_first, phase_count; /* in the graph's phases */
    uint32_t counter;                  /* in the graph's counters, plus 1; 0: none */
} mu_extra;

/* A kernel and the shape it is launched in: nodes that are launched alike mostly share one. Constant, and at its place until the graph
 * is destroyed. */
typedef struct mu_kernel_shape {
    muster_kernel *kernel;
    uint32_t grid[3], block[3];
    uint32_t dynamic_shared_bytes;
    uint32_t extra; /* in the graph's extras, plus 1; 0: none */
    bool checked;   /* every device takes it as an ordinary launch */
} mu_kernel_shape;

enum { MU_SHAPE_BLOCK = 64, MU_SHAPE_RECENT = 64 };
typedef struct mu_shape_block {
    struct mu_shape_block *next; /* the one filled before */
    size_t first;                /* the number of its first shape */
    mu_kernel_shape shapes[MU_SHAPE_BLOCK];
} mu_shape_block;

/* What an enqueue or host job calls. */
typedef union mu_callback {
    struct {
        muster_status (*call)(void *user, const muster_enqueue_context *context, muster_error *error);
        void *user;
    } enqueue;
    struct {
        muster_status (*run)(void *user, void *const *pointers, uint32_t count, muster_error *error);
        void *user;
    } host;
} mu_callback;

/* A barrier counter: a module-scope variable of a program, found on every device. */
typedef struct mu_counter {
    const muster_program *program; /* held by way of a kernel */
    char *name;
    struct mu_counter_place {
        uint64_t address, bytes;
    } places[]; /* per device */
} mu_counter;

/* The shards of a job that go where they end first. */
typedef struct mu_spread {
    muster_job job;
    uint64_t blocks[]; /* by the device that they are meant for, all launches together */
} mu_spread;

typedef struct mu_node {
    uint8_t kind;
    uint8_t flags; /* MU_NODE_* */
    int16_t pin;   /* device or MUSTER_ANY_DEVICE */
    muster_job job;
    uint32_t access_first, parameter_first;
    uint16_t access_count, parameter_count;
    uint32_t pred_first, pred_count; /* set by sealing */
    uint32_t succ_first, succ_count;
    int8_t priority; /* MUSTER_PRIORITY_LOWEST to _HIGHEST */
    union {
        const mu_kernel_shape *dispatch;
        struct {
            uint32_t pattern, pattern_bytes;
        } fill;
        struct {
            uint32_t callback; /* in the graph's callbacks; not of a read-back */
            uint32_t host;     /* among the graph's host nodes, of those */
        } call;
    } as;
} mu_node;
_Static_assert(sizeof(mu_node) == 48, "a node has grown");

typedef struct mu_edge {
    uint32_t node, pred;
} mu_edge;

/* Values of kernel parameters, shared by the graph and its runs; written only while the graph is the only holder. */
typedef struct mu_values {
    atomic_uint references;
    uint32_t bytes;
    size_t capacity;
    unsigned char *data;
} mu_values;

typedef struct mu_graph_buffer {
    muster_buffer *buffer; /* a reference is held */
    bool writes;           /* some job writes it, or would have if it had been added */
} mu_graph_buffer;

struct muster_graph {
    mu_handle handle;
    pthread_mutex_t lock; /* sealing and values: submitters of one graph meet here, nobody else */
    bool sealed;

    mu_node *nodes;
    size_t node_count, node_capacity;
    uint32_t host_node_count;
    uint32_t *job_nodes; /* first node of each job; its nodes end where the next job's start */
    size_t job_count, job_capacity;
    mu_access *accesses;
    size_t access_count, access_capacity;
    mu_parameter *parameters;
    size_t parameter_count, parameter_capacity;
    mu_edge *edges; /* explicit, between nodes */
    size_t edge_count, edge_capacity;
    mu_values *values;
    mu_graph_buffer *buffers;
    size_t buffer_count, buffer_capacity;
    uint32_t *buffer_index; /* open-addressed: buffer -> index + 1 */
    size_t buffer_index_size;
    mu_shape_block *shapes;                          /* the one being filled */
    size_t shape_count;                              /* in all */
    mu_kernel_shape *recent_shapes[MU_SHAPE_RECENT]; /* where each is looked for follows from its content */
    mu_callback *callbacks;
    size_t callback_count, callback_capacity;
    muster_kernel **kernels; /* distinct; a reference on each one's program is held */
    size_t kernel_count, kernel_capacity;
    mu_extra *extras;
    size_t extra_count, extra_capacity;
    muster_kernel **phases; /* held by way of `kernels` */
    size_t phase_count, phase_capacity;
    mu_counter **counters;
    size_t counter_count, counter_capacity;
    uint64_t *scratches; /* bytes */
    size_t scratch_count, scratch_capacity;
    mu_lead *leads;
    size_t lead_count, lead_capacity;
    mu_spread **spreads; /* by job */
    size_t spread_count, spread_capacity;
    mu_stride *strides; /* different ones */
    size_t stride_count, stride_capacity;

    uint32_t *preds, *succs, *roots; /* set by sealing */
    size_t pred_total, root_count;
};

/* How much was there before a job was added, to take it back on failure. */
typedef struct mu_graph_mark {
    size_t nodes, jobs, accesses, parameters, edges, buffers, kernels, extras, phases, counters, scratches, leads,
        spreads, callbacks, shapes, strides;
    uint32_t value_bytes, host_nodes;
} mu_graph_mark;

mu_graph_mark mu_graph_get_mark(const muster_graph *graph);
void mu_graph_rewind(muster_graph *graph, const mu_graph_mark *mark);

/* Appending. All return false when host memory is short; the caller rewinds. */
bool mu_graph_add_job(muster_graph *graph, muster_job *job);
mu_node *mu_graph_add_node(muster_graph *graph, mu_node_kind kind, muster_job job, int pin);
bool mu_graph_add_access(muster_graph *graph, mu_node *node, muster_buffer *buffer, muster_access mode, uint64_t low,
                         uint64_t high, bool exact);
/* The last access becomes one of `rows` rows that end with its range, each a pitch behind the one before. */
bool mu_graph_set_stride(muster_graph *graph, uint64_t pitch, uint32_t rows);
bool mu_graph_add_address(muster_graph *graph, mu_node *node, uint32_t access, uint64_t lead);
bool mu_graph_add_value(muster_graph *graph, mu_node *node, const void *value, uint32_t bytes, bool derived);
bool mu_graph_add_scratch(muster_graph *graph, mu_node *node, uint64_t bytes);
/* Arguments as they are: of a job that is not cut. */
bool mu_graph_add_arguments(muster_graph *graph, mu_node *node, const muster_arg *args, uint32_t count);
bool mu_graph_hold_kernel(muster_graph *graph, muster_kernel *kernel);
/* A shape of the graph's that equals `shape` (but for `checked`), if it was added lately; or else a new one, whose kernel is held.
 * NULL: none, or out of host memory. */
const mu_kernel_shape *mu_graph_find_shape(const muster_graph *graph, const mu_kernel_shape *shape);
mu_kernel_shape *mu_graph_add_shape(muster_graph *graph, const mu_kernel_shape *shape);
/* Every node of `job` after every node of `pred`. */
bool mu_graph_add_edges(muster_graph *graph, muster_job job, muster_job pred);
/* The last node `times` times more, each after the one before. */
bool mu_graph_repeat(muster_graph *graph, uint32_t times);

void mu_counter_free(mu_counter *counter); /* scheduler/graph/extra.c */

static inline const mu_extra *mu_node_extra(const muster_graph *graph, const mu_node *node) {
    return node->as.dispatch->extra ? &graph->extras[node->as.dispatch->extra - 1] : NULL;
}

static inline mu_area mu_access_area(const muster_graph *graph, const mu_access *access) {
    if (!access->stride) return mu_area_of(access->low, access->high);
    const mu_stride *stride = &graph->strides[access->stride - 1];
    return (mu_area){access->low, access->high - (stride->rows - 1) * stride->pitch, stride->pitch, stride->rows};
}

/* Of the grid of a dispatch. */
static inline uint64_t mu_node_blocks(const mu_node *node) {
    const uint32_t *grid = node->as.dispatch->grid;
    return (uint64_t)grid[0] * grid[1] * grid[2];
}

static inline bool mu_node_is_host(const mu_node *node) { return node->kind >= MU_NODE_READ_BACK; }

const char *mu_node_kernel_name(const mu_node *node); /* of a dispatch */

static inline uint32_t mu_graph_job_end(const muster_graph *graph, muster_job job) {
    return job + 1 < graph->job_count ? graph->job_nodes[job + 1] : (uint32_t)graph->node_count;
}

/* scheduler/graph/seal.c. With the graph's lock held. GRAPH_CYCLE, OUT_OF_HOST_MEMORY: the graph is as before. */
muster_status mu_graph_seal(muster_graph *graph, muster_error *error);

/* OUT_OF_RANGE. */
muster_status mu_graph_check_priority(int32_t priority, muster_error *error);
void mu_graph_prioritise(muster_graph *graph, muster_job job, int32_t priority); /* all nodes of the job */

/* Checks that any change to the graph starts with, and one range of a buffer. */
muster_status mu_graph_check_open(const muster_graph *graph, muster_error *error);
muster_status mu_graph_check_range(const muster_buffer *buffer, uint64_t offset, uint64_t bytes, const char *name,
                                   muster_error *error);
/* Both, and the handles: what a job of one range of one buffer starts with. */
muster_status mu_graph_check_target(const muster_graph *graph, const muster_buffer *buffer, uint64_t offset,
                                    uint64_t bytes, muster_error *error);

mu_values *mu_values_retain(mu_values *values);
void mu_values_release(mu_values *values);

/* Drops one reference; the last destroys the graph. */
void mu_graph_release(muster_graph *graph);

#endif
