/* Capturing launches into graphs. A stream that captures has a leg: the nodes its next node depends on. Recording an
 * event in a leg and waiting for it elsewhere makes another stream join. */
#include <string.h>

#include "device/sim/sim_graph.h"

/* One capture, from begin to end; shared by its legs and by events. Locked. */
typedef struct sim_session session;
struct sim_session {
    unsigned references;
    sim_graph *graph; /* NULL once it has ended */
    sim_stream *origin;
    bool global; /* counted in the driver while it has an origin */
    bool invalid;
};

struct sim_capture { /* a leg */
    session *session;
    uint32_t *tail;
    size_t count, capacity;
};

static void drop_session(session *dropped) {
    if (--dropped->references) return;
    sim_graph_free(dropped->graph);
    mu_free(dropped);
}

void sim_fork_free(sim_fork *fork) {
    if (!fork) return;
    drop_session(fork->session);
    mu_free(fork);
}

void sim_capture_forget(sim_stream *stream) {
    sim_capture *leg = atomic_load_explicit(&stream->capture, memory_order_relaxed);
    if (!leg) return;
    atomic_store_explicit(&stream->capture, NULL, memory_order_relaxed);
    leg->session->invalid = true;
    if (leg->session->origin == stream) {
        leg->session->origin = NULL;
        if (leg->session->global)
            atomic_fetch_sub_explicit(&stream->context->driver->global_captures, 1, memory_order_relaxed);
    }
    drop_session(leg->session);
    mu_free(leg->tail);
    mu_free(leg);
}

void sim_capture_abandon(sim_stream *stream) {
    sim_lock(stream->context->driver);
    sim_capture_forget(stream);
    sim_unlock(stream->context->driver);
}

/* Makes `stream` part of the session. */
static sim_capture *add_leg(sim_stream *stream, session *joined) {
    sim_capture *leg = mu_alloc_zeroed(1, sizeof *leg);
    if (!leg) return NULL;
    leg->session = joined;
    joined->references++;
    atomic_store_explicit(&stream->capture, leg, memory_order_relaxed);
    return leg;
}

static bool add_to_tail(sim_capture *leg, uint32_t node) {
    for (size_t i = 0; i < leg->count; i++)
        if (leg->tail[i] == node) return true;
    if (!mu_grow(&leg->tail, &leg->capacity, leg->count + 1, sizeof *leg->tail)) return false;
    leg->tail[leg->count++] = node;
    return true;
}

CUresult sim_capture_refuse(sim_stream *stream) {
    sim_lock(stream->context->driver);
    sim_capture *leg = atomic_load_explicit(&stream->capture, memory_order_relaxed);
    if (leg) leg->session->invalid = true;
    sim_unlock(stream->context->driver);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static bool is_mode(CUstreamCaptureMode mode) {
    return mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
           mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult sim_do_thread_exchange_stream_capture_mode(sim_driver *driver, CUstreamCaptureMode *mode) {
    (void)driver;
    if (!mode || !is_mode(*mode)) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

bool sim_capture_forbids(const sim_driver *driver) {
    return atomic_load_explicit(&driver->global_captures, memory_order_relaxed) &&
           thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult sim_do_stream_begin_capture(sim_driver *driver, CUstream handle, CUstreamCaptureMode mode) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (!is_mode(mode)) return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    session *begun = mu_alloc_zeroed(1, sizeof *begun);
    sim_graph *graph = sim_graph_new(driver);
    sim_lock(driver);
    if (stream->capture) {
        code = CUDA_ERROR_ILLEGAL_STATE;
    } else if (!begun || !graph || !add_leg(stream, begun)) {
        code = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        begun->graph = graph;
        begun->origin = stream;
        begun->global = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (begun->global) atomic_fetch_add_explicit(&driver->global_captures, 1, memory_order_relaxed);
    }
    sim_unlock(driver);
    if (code == CUDA_SUCCESS) return code;
    sim_graph_free(graph);
    mu_free(begun);
    return code;
}

/* Whether every node of the graph leads to the origin's tail, so that nothing is left behind in another stream. */
static CUresult joined(const sim_graph *graph, const sim_capture *origin) {
    bool *reached = mu_alloc_zeroed(graph->count, sizeof *reached);
    if (!reached) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < origin->count; i++) reached[origin->tail[i]] = true;
    bool all = true;
    for (size_t i = graph->count; i-- > 0;) {
        all = all && reached[i];
        const sim_node *node = graph->nodes[i];
        for (uint32_t d = 0; reached[i] && d < node->dependency_count; d++) reached[node->dependencies[d].from] = true;
    }
    mu_free(reached);
    return all ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

static void end_legs(sim_driver *driver, session *ended) {
    ended->references++; /* survives its legs */
    uint32_t cursor = 0;
    for (sim_object *object; (object = sim_handle_next(driver, NULL, SIM_TAG_STREAM, &cursor)) != NULL;) {
        sim_stream *stream = (sim_stream *)object;
        sim_capture *leg = atomic_load_explicit(&stream->capture, memory_order_relaxed);
        if (leg && leg->session == ended) sim_capture_forget(stream);
    }
}

CUresult sim_do_stream_end_capture(sim_driver *driver, CUstream handle, CUgraph *out) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    sim_lock(driver);
    sim_capture *leg = atomic_load_explicit(&stream->capture, memory_order_relaxed);
    session *ended = leg ? leg->session : NULL;
    if (!leg) {
        code = CUDA_ERROR_ILLEGAL_STATE;
    } else if (ended->origin != stream) {
        code = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
        ended->invalid = true;
    } else {
        code = ended->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : joined(ended->graph, leg);
        end_legs(driver, ended);
        sim_graph *graph = ended->graph;
        ended->graph = NULL;
        drop_session(ended);
        if (code == CUDA_SUCCESS && !sim_handle_add(driver, &graph->object, SIM_TAG_GRAPH, NULL))
            code = CUDA_ERROR_OUT_OF_MEMORY;
        if (code == CUDA_SUCCESS)
            *out = SIM_HANDLE(CUgraph, graph);
        else
            sim_graph_free(graph);
    }
    sim_unlock(driver);
    return code;
}

CUresult sim_capture_launch(sim_stream *stream, sim_work *work) {
    sim_lock(stream->context->driver);
    sim_capture *leg = atomic_load_explicit(&stream->capture, memory_order_relaxed);
    sim_node *node;
    CUresult code = leg->session->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                          : sim_graph_add(leg->session->graph, work, leg->tail, leg->count, &node);
    if (code == CUDA_SUCCESS) {
        leg->count = 0;
        if (!add_to_tail(leg, node->index)) { /* the node is in the graph, so the capture is of no use */
            leg->session->invalid = true;
            code = CUDA_ERROR_OUT_OF_MEMORY;
        }
    } else {
        sim_work_drop(work);
    }
    sim_unlock(stream->context->driver);
    return code;
}

CUresult sim_capture_record(sim_event *event, sim_stream *stream) {
    sim_lock(stream->context->driver);
    sim_capture *leg = atomic_load_explicit(&stream->capture, memory_order_relaxed);
    sim_fork *fork = mu_alloc(sizeof *fork + leg->count * sizeof *fork->nodes);
    if (fork) {
        fork->session = leg->session;
        fork->session->references++;
        fork->count = leg->count;
        for (size_t i = 0; i < leg->count; i++) fork->nodes[i] = leg->tail[i];
        sim_record_drop(event->last);
        event->last = NULL;
        sim_fork_free(event->fork);
        event->fork = fork;
    }
    sim_unlock(stream->context->driver);
    return fork ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult wait_locked(sim_stream *stream, const sim_fork *fork) {
    sim_capture *leg = atomic_load_explicit(&stream->capture, memory_order_relaxed);
    if (!fork) {
        leg->session->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (!fork->session->graph) return CUDA_ERROR_INVALID_VALUE; /* that capture is over */
    if (leg && leg->session != fork->session) {
        leg->session->invalid = fork->session->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (!leg) leg = add_leg(stream, fork->session);
    if (!leg) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < fork->count; i++)
        if (!add_to_tail(leg, fork->nodes[i])) return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

CUresult sim_capture_wait(sim_stream *stream, sim_event *event) {
    sim_lock(stream->context->driver);
    CUresult code = wait_locked(stream, event->fork);
    sim_unlock(stream->context->driver);
    return code;
}
