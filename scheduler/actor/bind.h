/* Binding: before a task is launched, every range it accesses has memory on the device and, where it is read, valid content.
 *
 * scheduler/actor/bind.c decides and brings content; scheduler/memory/instance.c makes memory; what takes a while to come is an arrival
 * (scheduler/memory/arrivals.h). By the actor's worker, unless said otherwise. */
#ifndef MUSTER_SCHEDULER_ACTOR_BIND_H
#define MUSTER_SCHEDULER_ACTOR_BIND_H

#include "scheduler/actor/actor.h"
#include "scheduler/memory/buffer.h"

typedef enum mu_bind {
    MU_BOUND,
    MU_BIND_AWAIT, /* the binding's await_device must close its await_epoch first */
    MU_BIND_EPOCH, /* that epoch must be done first: it may take long, and what is ready here does not wait behind it */
    MU_BIND_ARRIVAL, /* the binding's arrival must be complete first; the task's instances are held meanwhile */
    MU_BIND_DETOUR,  /* the binding's detour must be complete first */
    MU_BIND_WRITER,  /* what it writes is being copied to the host, which must be over first */
    MU_BIND_MEMORY,  /* no memory now; no reservation is held */
    MU_BIND_FAILED   /* `error` is filled */
} mu_bind;

typedef struct mu_task_binding {
    /* The caller's. */
    mu_actor *actor;
    muster_run *run;
    mu_task *task;
    const mu_node *node;
    mu_address *addresses; /* out: of the accesses in order, then of the node's scratch parameters */
    muster_error *error;
    /* Out. */
    uint32_t calls; /* put on the streams, also when it did not get to the end */
    int await_device;
    uint64_t await_epoch;
    mu_arrival *arrival;
    mu_detour *detour;
    /* Its own. */
    uint64_t reserved_bytes; /* granted by the ledger and not yet allocated */
    bool allocated;          /* on the memory lane, which other lanes must wait for */
    bool uploading;          /* something is on the upload lane that the dispatch lane must wait for */
    bool patient;            /* the task is held until its input has arrived, and the dispatch lane is not */
} mu_task_binding;

mu_bind mu_bind_task(mu_task_binding *binding);
/* What keeps a held task's memory in its place goes. No-op for others. Before anything else is done with the task. */
void mu_bind_let_go(mu_actor *actor, muster_run *run, mu_task *task);
/* Where an access that is bound lies on the device. */
mu_address mu_bind_address(mu_actor *actor, muster_buffer *buffer, const mu_access *access);
/* The task's writes are lost: it failed after it was bound, or will never run. Any thread. */
void mu_bind_undefine(muster_run *run, const mu_node *node);
/* Device memory that a job needs for all it accesses, on a device that holds nothing of it yet: what no eviction can make less.
 * LIMIT_REACHED: more than can be counted. Any thread. */
muster_status mu_bind_required(const muster_graph *graph, const mu_node *node, uint64_t *bytes, muster_error *error);

/* NEVER_FITS: the node, which requires so many bytes, can never run on the device. Any thread. */
muster_status mu_bind_check_fits(const mu_actor *actor, const muster_graph *graph, const mu_node *node,
                                 uint64_t required, muster_error *error);

static inline muster_buffer *mu_access_buffer(const mu_task_binding *b, const mu_access *access) {
    return b->run->graph->buffers[access->buffer].buffer;
}

/* Ranges of a graph's buffers that do not overlap. */
typedef struct mu_part {
    uint32_t buffer;
    uint64_t low, high;
} mu_part;
typedef struct mu_parts {
    uint32_t count;
    mu_part part[MU_MAX_PARAMETERS];
} mu_parts;

/* scheduler/memory/instance.c. Adds a range, united with what it overlaps; at most MU_MAX_PARAMETERS are added. */
void mu_parts_add(mu_parts *parts, uint32_t buffer, uint64_t low, uint64_t high);
/* What instances of all of them are charged. */
muster_status mu_parts_bytes(const mu_parts *parts, uint64_t *bytes, muster_error *error);
/* What a device copies for an access, as long as it has nothing of it. */
void mu_access_range(const mu_access *access, const muster_buffer *buffer, uint64_t *low, uint64_t *high);
/* What an instance for the access must hold; with the table's lock held. */
void mu_instance_range(const mu_task_binding *b, const mu_access *access, uint64_t *low, uint64_t *high);
/* Memory of the node's scratch parameters. */
muster_status mu_scratch_bytes(const muster_graph *graph, const mu_node *node, uint64_t *bytes, muster_error *error);
/* Refuses what the device can never give, else reserves `bytes` in the ledger, making room for it where that is possible. */
mu_bind mu_instance_reserve(mu_task_binding *b, uint64_t bytes);
/* Allocates an instance that covers the access, in place of those that overlap it. */
mu_bind mu_instance_make(mu_task_binding *b, const mu_access *access);
/* Allocates the node's scratch memory, which goes when the open epoch is done. `addresses` has one slot per parameter. */
mu_bind mu_scratch_make(mu_task_binding *b, mu_address *addresses);
/* Lets the other lanes use what was allocated. A failure loses the device: what counts as present would not be. */
muster_status mu_bind_join_memory(mu_task_binding *b);
/* Puts the upload lane's work so far in front of what the dispatch lane does next. Likewise. */
muster_status mu_bind_join_upload(mu_task_binding *b);

#endif
