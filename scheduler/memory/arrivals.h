/* Arrivals: content on its way to a device that no kernel waits for on a stream.
 *
 * A short upload is joined: the dispatch lane waits for it by an event, and the task is launched behind that. A long one would
 * hold up every kernel behind that wait, for a device has one dispatch lane. So it becomes an arrival, and the task that needs
 * it is held in the worker until the content is there; whatever else is ready goes first. Content counts as valid on the device
 * (scheduler/memory/coherence.h) only when its arrival is complete.
 *
 * A task whose input is on its way never starts the same copy again: it waits for the arrival that exists. The order of jobs
 * keeps writers away from a range that is arriving, for the task that asked for it counts as not enqueued until then, also when
 * its run is cancelled. By the actor's worker. */
#ifndef MUSTER_SCHEDULER_MEMORY_ARRIVALS_H
#define MUSTER_SCHEDULER_MEMORY_ARRIVALS_H

#include "scheduler/actor/actor.h"

struct mu_arrival {
    mu_arrival *next;
    muster_buffer *buffer; /* a reference is held */
    mu_instance *instance; /* held */
    mu_area area;
    mu_instance *source; /* pinned, or NULL */
    int from;            /* its device, and the epoch there that the copy waited for */
    uint64_t stamp;
    bool lost;             /* it waited for what never happened */
    mu_event event;        /* behind the copy on the upload lane; kept when the record is used again */
    mu_staged_copy staged; /* of pageable host memory: it is on the lane when this is over */
    muster_error failure;  /* status OK: none */
    bool from_host;
    uint64_t since_ns; /* the lane has been at it since then, or later */
    mu_task_list waiting;
};

/* Content that has to come: what it is, and from where. */
typedef struct mu_incoming {
    mu_area area;
    bool zero;
    bool undefined;        /* lost since the task was looked at: a device went away with its writer */
    int source;            /* MUSTER_ANY_DEVICE: the host */
    uint64_t stamp;        /* of the source device */
    mu_instance *instance; /* of the source, pinned by the caller; NULL: none, of the host */
    mu_address address;    /* there */
    mu_segment lost;       /* why, of what is undefined; without its stamps, so at the end */
} mu_incoming;

/* Puts the copy on the upload lane. */
muster_status mu_incoming_copy(mu_actor *actor, const muster_buffer *buffer, const mu_instance *to,
                               const mu_incoming *from, muster_error *error);

/* Starts an arrival of `from` in `to`; it takes over the pin of the source. NULL: `error` is filled, the pin is the caller's. */
mu_arrival *mu_arrival_start(mu_actor *actor, muster_buffer *buffer, mu_instance *to, const mu_incoming *from,
                             muster_error *error);
/* The arrival of which a row meets the range of the buffer and begins first, and that row; or NULL. */
mu_arrival *mu_arrival_find(const mu_actor *actor, const muster_buffer *buffer, uint64_t low, uint64_t high,
                            mu_range *row);
/* An arrival that overlaps the area, or NULL. */
mu_arrival *mu_arrival_meets(const mu_actor *actor, const muster_buffer *buffer, const mu_area *area);
/* An arrival of what the node accesses, or NULL. While there is one its task neither ends nor goes elsewhere: the order of jobs would let
 * others write where the copy comes from, and the application free it. */
mu_arrival *mu_arrival_of(const mu_actor *actor, const muster_graph *graph, const mu_node *node);
/* The task goes back to the ready tasks when the arrival is complete. */
void mu_arrival_wait(mu_actor *actor, mu_arrival *arrival, mu_task *task);

/* Looks for complete arrivals, after staging has been advanced. Whether anything moved. When the device is lost nothing arrives any
 * more, and the waiting tasks become ready, to end; but not before copy threads have left the host memory alone. */
bool mu_arrivals_poll(mu_actor *actor);
void mu_arrivals_destroy(mu_actor *actor);

/* Whether content of the buffer goes through staging on its way from the host. */
bool mu_arrival_is_staged(const muster_buffer *buffer, uint64_t bytes);
/* Whether a task that still lacks `bytes` is held for them rather than joined, for the sake of what else is ready. */
bool mu_arrivals_are_slow(const mu_actor *actor, uint64_t bytes);

#endif
