/* Graphs, executable graphs, and capturing launches into graphs. */
#ifndef MUSTER_DEVICE_SIM_SIM_GRAPH_H
#define MUSTER_DEVICE_SIM_SIM_GRAPH_H

#include "device/sim/sim_code.h"

typedef struct sim_graph sim_graph;

/* What a node comes after: node `from`, when its `port` says so. That is the end of it, except at
 * CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER, where all its blocks have begun. */
typedef struct sim_edge {
    uint32_t from; /* index in the graph */
    uint8_t port;
} sim_edge;

/* A node of a graph. */
typedef struct sim_node {
    sim_object object;
    sim_graph *graph;
    uint32_t index;
    sim_work *work;      /* NULL: an empty node */
    CUfunction function; /* as it was given; NULL: by a captured launch */
    sim_edge *dependencies;
    uint32_t dependency_count;
} sim_node;

struct sim_graph {
    sim_object object;
    sim_driver *driver;
    uint64_t serial; /* never used twice: how an executable graph knows its origin */
    sim_node **nodes;
    size_t count, capacity;
};

sim_graph *sim_graph_new(sim_driver *driver); /* without a handle */
void sim_graph_free(sim_graph *graph);        /* and its nodes and handles */
/* Adds a node behind the ends of others; takes the reference to `work` on success. */
CUresult sim_graph_add(sim_graph *graph, sim_work *work, const uint32_t *dependencies, size_t count, sim_node **node);

/* The work that a node's parameters describe, checked; replaces *work (see sim_work_renew). */
CUresult sim_node_work(sim_driver *driver, const CUDA_KERNEL_NODE_PARAMS *parameters, sim_work **work);

typedef struct sim_exec sim_exec;
void sim_exec_free(sim_exec *exec); /* and its handle; launches in flight keep what they need */

/* ------------------------------------------------------------------------------------------------------- capture -- */

/* What an event stands for that was recorded in a capture. */
typedef struct sim_fork {
    struct sim_session *session; /* the capture; a reference */
    size_t count;
    uint32_t nodes[];
} sim_fork;
void sim_fork_free(sim_fork *fork); /* NULL is ignored */

/* Whether the calling thread may not call what could disturb a capture that another one has begun in the global mode. */
bool sim_capture_forbids(const sim_driver *driver);

/* The capture on `stream` becomes invalid and the call is refused. */
CUresult sim_capture_refuse(sim_stream *stream);
CUresult sim_capture_launch(sim_stream *stream, sim_work *work); /* takes the reference */
CUresult sim_capture_record(sim_event *event, sim_stream *stream);
CUresult sim_capture_wait(sim_stream *stream, sim_event *event);
void sim_capture_abandon(sim_stream *stream); /* the stream is destroyed while it captures; not locked */
void sim_capture_forget(sim_stream *stream);  /* the same, locked */

#endif
