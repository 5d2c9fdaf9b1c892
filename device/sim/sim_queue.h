/* Streams, the operations on them, and events. */
#ifndef MUSTER_DEVICE_SIM_SIM_QUEUE_H
#define MUSTER_DEVICE_SIM_SIM_QUEUE_H

#include "device/sim/sim_internal.h"

/* What an event stands for after a record: shared by the event, the operation that records, and those that wait. */
typedef struct sim_record {
    unsigned references;          /* locked */
    bool done;                    /* locked */
    uint64_t real_ns, virtual_ns; /* when; written before done */
    uint64_t kernel_ns;           /* modelled, of the stream's kernels up to here; likewise */
    char order;                   /* ThreadSanitizer: released by the recording stream, acquired by who waits */
} sim_record;

typedef struct sim_op sim_op;
struct sim_op {
    sim_op *next;
    sim_stream *stream;
    /* Does the work, on the executor, without the lock and, under ThreadSanitizer, on the stream's strand. May be NULL.
     * What goes wrong it reports itself (sim_fault_kernel) and returns. */
    CUresult (*run)(sim_op *op);
    /* Books the end, whether it ran or was dropped: executor, not locked, not on the strand, before anybody learns of
     * it. May be NULL. */
    void (*finish)(sim_op *op);
    /* Frees the operation. Executor or caller, not locked. */
    void (*release)(sim_op *op);
    sim_record *waits_for;      /* runs only when this is done */
    sim_record *records;        /* done when this has run */
    bool on_host;               /* runs on the thread for host functions */
    bool counted;               /* against the limit of outstanding calls */
    bool ran;                   /* false in finish and release: dropped */
    uint64_t issued_ns;         /* virtual time of the call */
    uint64_t begin_ns, cost_ns; /* virtual time: when it began, and how long it took (set by run). The strand's */
    uint64_t kernel_ns;         /* what its kernels took, one after the other (set by run). The strand's */
    uint64_t *engine_ns;        /* a device's engine that it occupies, NULL when none */
    char order;                 /* ThreadSanitizer: released by the caller, acquired by the stream */
};

typedef struct sim_capture sim_capture;

struct sim_stream {
    sim_object object;
    sim_stream *next;      /* of the device */
    sim_stream *next_host; /* locked: waiting for the thread for host functions */
    sim_context *context;
    bool blocking;           /* takes part in the default stream's order */
    bool destroyed, running; /* locked, as all that follows */
    unsigned pins;           /* calls that wait for it */
    sim_op *head, *tail;
    uint64_t enqueued, completed; /* operations ever */
    uint32_t outstanding;         /* counted calls */
    uint64_t drain_target;        /* of the drain in progress that started last */
    uint64_t legacy_seen;         /* how far this stream waits for the default stream */
    uint64_t virtual_ns;
    uint64_t kernel_ns;           /* modelled, of its kernels so far */
    sim_capture *_Atomic capture; /* written locked; read without: relaxed, a capture is one thread's affair */
    struct sim_strand *strand;
    struct sim_strand **lanes; /* for the branches of graphs */
    size_t lane_count, lane_capacity;
    uint64_t branch_random; /* the executor's: order of a graph's branches */
    char order;             /* ThreadSanitizer: released after each operation, acquired by who synchronises */
};

/* The real driver's queue: the 1,021st outstanding call waits for the head to finish. */
enum { SIM_OUTSTANDING_MAX = 1020 };
/* A copy from pageable memory up to this size is taken into the command buffer; a larger one waits for its stream. */
enum { SIM_PAGEABLE_INLINE_BYTES = 64 << 10 };

typedef struct sim_event {
    sim_object object;
    sim_context *context;
    bool timing;
    sim_record *last;      /* locked; NULL before the first record */
    struct sim_fork *fork; /* locked: set when the last record was in a capture (sim_capture.c) */
} sim_event;

/* The stream a handle names: 0 and CU_STREAM_LEGACY are the current context's default stream. Checks the context's
 * error. INVALID_HANDLE for what is no stream. */
CUresult sim_stream_find(sim_driver *driver, CUstream handle, sim_stream **stream);

sim_stream *sim_stream_create(sim_context *context, bool blocking);
/* Destroyed by its owner, and nobody works with it any more. Locked. */
static inline bool sim_stream_is_over(const sim_stream *stream) {
    return stream->destroyed && !stream->head && !stream->pins;
}
/* When it is over. Locked, or with the executors gone. */
void sim_stream_free(sim_stream *stream);

sim_op *sim_op_create(size_t bytes, CUresult (*run)(sim_op *), void (*release)(sim_op *)); /* zeroed */
void sim_op_release(sim_op *op); /* mu_free, for operations that own nothing else */

/* Appends `op` and owns it from then on, also on failure. Waits while the stream is full or the context drains. In null
 * mode it runs it at once. With `wait` it returns when the operation has run. */
CUresult sim_enqueue(sim_stream *stream, sim_op *op, bool wait);

/* Records, with one reference. Locked. */
sim_record *sim_record_create(void);
void sim_record_drop(sim_record *record);
/* Waits until the record is done, or the context has an error, which it returns. Locked. */
CUresult sim_record_await(sim_record *record, sim_context *context);

/* Waits until everything enqueued on the stream by now has run. The context's error afterwards. Locked. */
CUresult sim_stream_drain(sim_stream *stream);
/* The same for every stream of a context, or of all contexts of the device, holding up launches of the context. Locked.
 * Returns at once when the context has an error. */
CUresult sim_context_drain(sim_context *context);
CUresult sim_device_drain(sim_context *context);
void sim_event_free(sim_event *event);
uint64_t sim_event_kernel_ns(mu_driver *table, CUevent handle); /* mu_driver.event_kernel_ns */

/* The executor thread of a device (sim_executor.c). */
bool sim_executor_start(sim_device *device);      /* locked; does nothing the second time */
bool sim_host_executor_start(sim_driver *driver); /* likewise */
void sim_executor_stop(sim_driver *driver);       /* all of them: joins */
/* Runs one operation here and now (null mode). */
CUresult sim_execute_inline(sim_stream *stream, sim_op *op);

/* Strands (sim_strand.c): ThreadSanitizer's view of streams. NULL, and direct calls, in ordinary builds. Running waits
 * until the function has returned, and orders nothing. */
typedef struct sim_strand sim_strand;
sim_strand *sim_strand_create(void);
void sim_strand_destroy(sim_strand *strand); /* NULL is ignored */
void sim_strand_run(sim_strand *strand, void (*function)(void *), void *argument);
/* Frees what a strand has read: the executor knows that it is through with it, ThreadSanitizer does not. */
void sim_free_unordered(void *pointer);
/* Deterministic interleaving. */
static inline uint64_t sim_random(uint64_t *state) { /* splitmix64 */
    uint64_t value = *state += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

#endif
