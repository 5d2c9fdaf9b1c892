/* Bringing ranges of buffers to the host, for whoever uses host memory: acquisitions, read-backs, host jobs.
 *
 * A fetch lends the host memory of its ranges to one user. It is planned once what the user follows is enqueued; the devices
 * copy what the host lacks, overlapped with what else they do (what a lost device had is planned again, from others that have it),
 * and it is done when the content is there, when no eviction
 * writes to those buffers any more, and when the epochs it comes after are complete. From the plan until mu_fetch_let_go no
 * eviction begins to write there. */
#ifndef MUSTER_SCHEDULER_MEMORY_FETCH_H
#define MUSTER_SCHEDULER_MEMORY_FETCH_H

#include "scheduler/memory/download.h"

typedef struct mu_fetch mu_fetch;

typedef struct mu_fetch_range {
    muster_buffer *buffer; /* the user holds a reference */
    mu_area area;
    muster_access access; /* content is brought for MUSTER_READ */
} mu_fetch_range;

/* What one device does for a fetch. */
typedef struct mu_fetch_part {
    mu_call call;
    mu_fetch *fetch;
    mu_piece *pieces; /* not started yet */
    mu_download download;
    uint64_t stamp; /* the last epoch that a piece comes out of */
    bool failed;    /* nothing more is started */
} mu_fetch_part;

struct mu_fetch {
    muster_runtime *runtime;
    /* The user's, set before mu_fetch_start. */
    void (*done)(mu_fetch *fetch); /* by the worker that finishes last */
    void *user;
    const uint64_t *after; /* per device: the dispatch epochs that must be complete too */
    mu_fetch_range *ranges;
    uint32_t range_count;
    bool arguments; /* the ranges are those of a job's arguments, for messages */
    /* For `done` and later: what went wrong first, in the plan or after it; status OK when nothing did. */
    muster_error failure;
    /* Its own. */
    bool uses_host;
    atomic_bool failed; /* whoever sets it writes `failure`; ordered by `left` */
    atomic_uint left;   /* parts; acq_rel: the last one sees what the others did */
    mu_fetch_part parts[];
};

/* Room for the ranges, which the caller fills in. OUT_OF_HOST_MEMORY. */
muster_status mu_fetch_create(muster_runtime *runtime, uint32_t range_count, mu_fetch **fetch, muster_error *error);
/* Not started, or done. Lets go. NULL: does nothing. */
void mu_fetch_destroy(mu_fetch *fetch);

/* Any thread, once. Makes host memory where a buffer has none and decides where each byte comes from; nothing may write the
 * ranges from then on. When it fails (DATA_UNDEFINED, OUT_OF_HOST_MEMORY) nothing will be copied, but the host memory is lent all
 * the same. A fetch that is not planned only waits. */
void mu_fetch_plan(mu_fetch *fetch);

/* Any thread, once. False: there is nothing to wait for, and `done` will not be called. */
bool mu_fetch_start(mu_fetch *fetch);

/* Any thread, after a fetch that did not fail: notes that the host has what is read. DATA_UNDEFINED: it was lost meanwhile, for
 * a launch failed late. OUT_OF_HOST_MEMORY. */
muster_status mu_fetch_settle(mu_fetch *fetch, muster_error *error);
/* Notes that the host has written what is to be written, and nobody else has it any more. OUT_OF_HOST_MEMORY. */
muster_status mu_fetch_wrote(mu_fetch *fetch, muster_error *error);

/* The host memory is the devices' again. */
void mu_fetch_let_go(mu_fetch *fetch);

/* Where to copy a segment from, of the devices in `among`: where its copy is complete, else where it is enqueued for sure, else any that
 * has it; MUSTER_ANY_DEVICE: none has. With the table's lock held, by any thread. For transfers to devices too. */
int mu_choose_source(const muster_runtime *runtime, const mu_segment *segment, mu_location_mask among);

#endif
