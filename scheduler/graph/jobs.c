/* Jobs that are the application's own code, and read-backs: adding them to a graph. */
#include "base/alloc.h"
#include "base/error.h"
#include "device/device.h"
#include "scheduler/graph/dispatch.h"
#include "scheduler/graph/fields.h"
#include "scheduler/runtime/runtime.h"

/* What host and enqueue jobs have in common. */
typedef struct callback_job {
    mu_node_kind kind;
    const char *name; /* of the descriptor, for messages */
    mu_callback function;
    const muster_arg *args;
    uint32_t arg_count;
    const muster_job *after;
    uint32_t after_count;
    int pin;
} callback_job;

static muster_status check(const muster_graph *graph, const callback_job *job, muster_error *error) {
    muster_status status = mu_graph_check_open(graph, error);
    if (status) return status;
    if (!job->function.host.run)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%s has no function to call", job->name);
    if (job->arg_count && !job->args) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "args is NULL");
    if (job->arg_count > MU_MAX_PARAMETERS)
        return mu_fail(error, MUSTER_LIMIT_REACHED, "%s has at most %d arguments, not %u", job->name, MU_MAX_PARAMETERS,
                       job->arg_count);
    for (uint32_t i = 0; i < job->arg_count; i++) {
        const muster_arg *arg = &job->args[i];
        status = mu_arg_check_fields(arg, i, error);
        if (!status && arg->kind == MUSTER_ARG_BUFFER)
            status = mu_arg_check_buffer(graph, arg, i, error);
        else if (!status && arg->kind == MUSTER_ARG_SCRATCH && job->kind == MU_NODE_ENQUEUE)
            status = mu_arg_check_scratch(arg, i, error);
        else if (!status)
            status =
                mu_fail(error, MUSTER_INVALID_ARGUMENT,
                        "argument %u is of kind %d; %s takes buffers%s, and gets everything else by its user pointer",
                        i, (int)arg->kind, job->name, job->kind == MU_NODE_ENQUEUE ? " and scratch memory" : "");
        if (status) return status;
    }
    if ((status = mu_args_check_overlaps(job->args, job->arg_count, error))) return status;
    return mu_graph_check_after(graph, job->after, job->after_count, error);
}

static mu_node *add_node(muster_graph *graph, mu_node_kind kind, int pin, muster_job *job) {
    if (!mu_graph_add_job(graph, job)) return NULL;
    mu_node *node = mu_graph_add_node(graph, kind, *job, pin);
    if (node && mu_node_is_host(node)) node->as.call.host = graph->host_node_count++;
    return node;
}

static bool add_parts(muster_graph *graph, const callback_job *c, mu_node *node, muster_job job) {
    if (!mu_grow(&graph->callbacks, &graph->callback_capacity, graph->callback_count + 1, sizeof *graph->callbacks))
        return false;
    node->as.call.callback = (uint32_t)graph->callback_count;
    graph->callbacks[graph->callback_count++] = c->function;
    if (!mu_graph_add_arguments(graph, node, c->args, c->arg_count)) return false;
    for (uint32_t i = 0; i < c->after_count; i++)
        if (!mu_graph_add_edges(graph, job, c->after[i])) return false;
    return true;
}

/* Checks and adds it; nothing is added on failure. */
static muster_status add_callback(muster_graph *graph, const callback_job *c, int32_t priority, muster_job *job,
                                  muster_error *error) {
    muster_status status = check(graph, c, error);
    if (status) return status;
    mu_graph_mark mark = mu_graph_get_mark(graph);
    muster_job added;
    mu_node *node = add_node(graph, c->kind, c->pin, &added);
    if (!node || !add_parts(graph, c, node, added)) {
        mu_graph_rewind(graph, &mark);
        return mu_fail_host_memory(error, c->name, sizeof *node + c->arg_count * sizeof(mu_access));
    }
    node->priority = (int8_t)priority;
    if (job) *job = added;
    return MUSTER_OK;
}

muster_status muster_graph_host(muster_graph *graph, const muster_host_job *host, muster_job *job,
                                muster_error *error) {
    muster_status status = mu_handle_check(graph, MU_TAG_GRAPH, NULL, "graph", error);
    if (status) return status;
    if (!host) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "host is NULL");
    if (host->struct_size != sizeof *host)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "host->struct_size is %zu; set it to sizeof(muster_host_job), %zu", host->struct_size,
                       sizeof *host);
    const callback_job callback = {.kind = MU_NODE_HOST,
                                   .name = "a host job",
                                   .function.host = {host->run, host->user},
                                   .args = host->args,
                                   .arg_count = host->arg_count,
                                   .after = host->after,
                                   .after_count = host->after_count,
                                   .pin = MUSTER_ANY_DEVICE};
    return add_callback(graph, &callback, 0, job, error);
}

muster_status muster_graph_enqueue(muster_graph *graph, const muster_enqueue_job *enqueue, muster_job *job,
                                   muster_error *error) {
    muster_status status = mu_handle_check(graph, MU_TAG_GRAPH, NULL, "graph", error);
    if (status) return status;
    if (!enqueue) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "enqueue is NULL");
    if (enqueue->struct_size != sizeof *enqueue)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "enqueue->struct_size is %zu; set it to sizeof(muster_enqueue_job), %zu", enqueue->struct_size,
                       sizeof *enqueue);
    if ((status = mu_check_pin(enqueue->pin_device, enqueue->device, graph->handle.runtime->device_count, error)) ||
        (status = mu_graph_check_priority(enqueue->priority, error)))
        return status;
    const callback_job callback = {.kind = MU_NODE_ENQUEUE,
                                   .name = "an enqueue job",
                                   .function.enqueue = {enqueue->enqueue, enqueue->user},
                                   .args = enqueue->args,
                                   .arg_count = enqueue->arg_count,
                                   .after = enqueue->after,
                                   .after_count = enqueue->after_count,
                                   .pin = enqueue->pin_device ? enqueue->device : MUSTER_ANY_DEVICE};
    return add_callback(graph, &callback, enqueue->priority, job, error);
}

muster_status muster_graph_read_back(muster_graph *graph, muster_buffer *buffer, uint64_t offset, uint64_t bytes,
                                     muster_job *job, muster_error *error) {
    muster_status status = mu_graph_check_target(graph, buffer, offset, bytes, error);
    if (status) return status;
    if (bytes == 0) bytes = buffer->bytes - offset;
    mu_graph_mark mark = mu_graph_get_mark(graph);
    muster_job added;
    mu_node *node = add_node(graph, bytes ? MU_NODE_READ_BACK : MU_NODE_JOIN, MUSTER_ANY_DEVICE, &added);
    if (!node || (bytes && !mu_graph_add_access(graph, node, buffer, MUSTER_READ, offset, offset + bytes, false))) {
        mu_graph_rewind(graph, &mark);
        return mu_fail_host_memory(error, "a read-back", sizeof *node + sizeof(mu_access));
    }
    if (job) *job = added;
    return MUSTER_OK;
}
