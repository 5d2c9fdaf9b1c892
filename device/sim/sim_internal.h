/* The simulated driver's own state: instance, devices, contexts, handles, and what its files ask of each other.
 *
 * One lock per instance (`sim_driver.lock`) guards everything that says "locked"; the launch path of `null` mode takes
 * none. Operations run without it. The allocation table has a lock of its own (sim_table.c). */
#ifndef MUSTER_DEVICE_SIM_SIM_INTERNAL_H
#define MUSTER_DEVICE_SIM_SIM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/sanitizer.h"
#include "device/sim/exec.h"
#include "device/sim/sim.h"
#include "device/sim/sim_config.h"
#include "device/sim/sim_entries.h"

/* A function that ThreadSanitizer does not look into: its accesses and atomics order nothing. */
#if !MU_TSAN
#define SIM_UNSEEN
#elif defined(__clang__) /* whose no_sanitize still sees atomics */
#define SIM_UNSEEN __attribute__((disable_sanitizer_instrumentation, noinline))
#else
#define SIM_UNSEEN __attribute__((no_sanitize("thread"), noinline))
#endif

typedef struct sim_driver sim_driver;
typedef struct sim_device sim_device;
typedef struct sim_context sim_context;
typedef struct sim_stream sim_stream;
struct sim_pool;

/* ------------------------------------------------------------------------------------------------------- entries -- */

typedef enum sim_entry {
#define SIM_ENTRY_ENUM(member, device, parameters, arguments) SIM_ENTRY_##member,
#define SIM_ENTRY_ENUM_VOID(member) SIM_ENTRY_##member,
    SIM_ENTRIES(SIM_ENTRY_ENUM, SIM_ENTRY_ENUM_VOID)
#undef SIM_ENTRY_ENUM
#undef SIM_ENTRY_ENUM_VOID
        SIM_ENTRY_COUNT
} sim_entry;

/* sim_do_<member>: the work of an entry, with the instance in front. */
#define SIM_UNPACK(...) __VA_ARGS__
#define SIM_ENTRY_PROTOTYPE(member, device, parameters, arguments)                                                     \
    CUresult sim_do_##member(sim_driver *driver, SIM_UNPACK parameters);
#define SIM_ENTRY_PROTOTYPE_VOID(member) CUresult sim_do_##member(sim_driver *driver);
SIM_ENTRIES(SIM_ENTRY_PROTOTYPE, SIM_ENTRY_PROTOTYPE_VOID)
#undef SIM_ENTRY_PROTOTYPE
#undef SIM_ENTRY_PROTOTYPE_VOID

/* Index of the entry called `name`, SIM_ENTRY_COUNT when there is none. */
sim_entry sim_entry_find(const char *name);

/* ------------------------------------------------------------------------------------------------------- handles -- */

/* A handle is a number that encodes what it is, whose it is and which of all objects that ever had this index; it is
 * never dereferenced. So a stale, foreign or invented one is always recognised. Numbers are multiples of 16, which
 * keeps them apart from the driver's special streams 0, 1 and 2. */
typedef enum sim_tag {
    SIM_TAG_CONTEXT = 1,
    SIM_TAG_STREAM,
    SIM_TAG_EVENT,
    SIM_TAG_POOL,
    SIM_TAG_IMAGE,
    SIM_TAG_KERNEL,
    SIM_TAG_LINK,
    SIM_TAG_GRAPH,
    SIM_TAG_NODE,
    SIM_TAG_EXEC
} sim_tag;

/* First member of whatever has a handle. */
typedef struct sim_object {
    sim_tag tag;
    uint64_t handle;
    sim_context *context; /* dies with it; NULL when it belongs to the instance */
} sim_object;

enum { SIM_HANDLE_CHUNK = 1024, SIM_HANDLE_CHUNKS = 4096 };

typedef struct sim_handle_entry {
    atomic_uint_fast64_t handle; /* 0: free. Stored with release after `object`, loaded with acquire before it */
    sim_object *_Atomic object;
    uint32_t generation, next_free; /* locked */
} sim_handle_entry;

typedef struct sim_handles {
    pthread_mutex_t lock;
    sim_handle_entry *_Atomic chunks[SIM_HANDLE_CHUNKS]; /* release on adding pairs with acquire in sim_find */
    uint32_t used, free_head;                            /* index + 1 of the first free entry, 0 for none */
} sim_handles;

bool sim_handles_init(sim_handles *handles);
void sim_handles_close(sim_handles *handles); /* the objects are the caller's */
/* Gives `object` a handle. False when memory or the 4 million entries are used up. */
bool sim_handle_add(sim_driver *driver, sim_object *object, sim_tag tag, sim_context *context);
void sim_handle_remove(sim_driver *driver, sim_object *object);
/* The object, or NULL when the handle is not a live one of that kind and instance. */
void *sim_find(sim_driver *driver, sim_tag tag, const void *handle);
/* The live objects of a context (NULL: all) and kind, one after the other: start with *cursor = 0; NULL at the end. */
sim_object *sim_handle_next(sim_driver *driver, const sim_context *context, sim_tag tag, uint32_t *cursor);

#define SIM_HANDLE(type, object_pointer) ((type)(uintptr_t)(object_pointer)->object.handle)

/* --------------------------------------------------------------------------------------------- devices, contexts -- */

struct sim_device {
    sim_driver *driver;
    int ordinal;
    const sim_device_config *config;
    atomic_int error;   /* a CUresult: the device is lost */
    atomic_int tainted; /* a CUresult: a kernel faulted here, and new contexts fail with it */

    /* Locked. */
    sim_stream *streams; /* of all its contexts */
    struct sim_pool *pools;
    pthread_t executor;
    pthread_cond_t work; /* the executor waits here */
    bool started, stopping, held, idle;
    uint64_t random;                                      /* interleaving of streams */
    sim_context *primary;                                 /* NULL while nobody retains it */
    uint64_t compute_ns, upload_ns, download_ns, peer_ns; /* virtual time: until when an engine is taken */
    uint32_t outstanding_highest;
    char order; /* ThreadSanitizer: released after each operation, acquired by who waits for the device */
    atomic_uint_fast64_t stalls, kernels, instructions; /* statistics; relaxed */

    atomic_uint_fast64_t slowness_percent; /* what kernels take more than modelled; relaxed */

    /* Memory (sim_heap.c); relaxed: only the counts matter. */
    atomic_uint_fast64_t used_bytes, other_bytes; /* other_bytes: what another process has taken */
};

struct sim_memory { /* what kernels of one context may touch; see exec.h */
    sim_driver *driver;
    sim_context *context;
};

enum { SIM_MAX_PEERS = 64 };

struct sim_context {
    sim_object object;
    sim_driver *driver;
    sim_device *device;
    sim_memory memory;
    bool primary;
    unsigned retained; /* primary: locked */
    unsigned flags;
    atomic_int error;                          /* a CUresult that every call returns from now on */
    sim_context *_Atomic peers[SIM_MAX_PEERS]; /* contexts whose memory this one may access */
    sim_stream *legacy;                        /* the default stream */
    unsigned draining;                         /* locked: calls that wait for the device and hold up launches */
};

struct sim_driver {
    mu_driver table; /* first: the public part */
    uint32_t slot;
    uint64_t serial; /* never used twice, so that a thread's context stack of an older instance is recognised */
    sim_config config;
    bool null_mode;
    atomic_bool initialised;
    atomic_bool planned;         /* the fault plan has something left */
    atomic_bool troubled;        /* some context, device or the whole instance has an error: look closer */
    atomic_int fault;            /* a CUresult that every context returns */
    atomic_uint global_captures; /* under way: other threads may not do everything. Relaxed: changed locked */

    pthread_mutex_t lock;
    pthread_cond_t done;          /* an operation ended, a gate opened, a drain ended */
    unsigned waiters;             /* locked: threads in `done`, so that nobody signals in vain */
    pthread_mutex_t primary_lock; /* making and ending primary contexts; taken before `lock` */
    uint64_t host_ns;             /* locked: virtual time that the host has seen */
    uint64_t finished_ns;         /* locked: virtual time at which the last operation so far ended */
    bool closing;                 /* running kernels give up */

    /* The thread for host functions; locked. */
    pthread_t host_executor;
    pthread_cond_t host_work;
    bool host_started, host_stopping;
    sim_stream *host_head, *host_tail;

    sim_handles handles;
    struct sim_table *memory;
    struct sim_heap *heap;
    struct sim_plan *plan;
    struct sim_pool *orphans; /* locked: destroyed pools whose memory is not all freed */
    sim_device devices[SIM_MAX_DEVICES];

    pthread_mutex_t message_lock;
    char last_fault[640];
    CUresult last_fault_code;
    char fault_order; /* ThreadSanitizer: released when a fault is reported, acquired by who sees it */
    mu_sim_fault_fn on_fault;
    void *on_fault_user;
    struct sim_counters *counters;
};

/* A CUdevice is instance and ordinal in one, so that calls that name a device find both. */
enum { SIM_DEVICE_SLOT_SHIFT = 8 };
/* NULL when it is not a device of this instance. */
sim_device *sim_find_device(sim_driver *driver, CUdevice device);
static inline CUdevice sim_device_handle(const sim_device *device) {
    return (CUdevice)(device->driver->slot << SIM_DEVICE_SLOT_SHIFT | (uint32_t)device->ordinal);
}

/* The calling thread's current context; CUDA_ERROR_INVALID_CONTEXT, _CONTEXT_IS_DESTROYED or the context's error. */
CUresult sim_current(sim_driver *driver, sim_context **context);
/* The same without looking at the context's error. NULL when there is none. */
sim_context *sim_current_raw(sim_driver *driver);
/* A context by its handle, with its error. */
CUresult sim_context_find(sim_driver *driver, CUcontext handle, sim_context **context);
void sim_context_free(sim_context *context); /* the executors must be through with it */
/* May kernels and copies of `context` touch what belongs to `owner`? */
bool sim_context_sees(const sim_context *context, const sim_context *owner);

static inline void sim_lock(sim_driver *driver) { pthread_mutex_lock(&driver->lock); }
static inline void sim_unlock(sim_driver *driver) { pthread_mutex_unlock(&driver->lock); }

/* -------------------------------------------------------------------------------------------------------- faults -- */

/* The error that a call in this context returns, CUDA_SUCCESS while all is well. Returning it counts as observing. */
CUresult sim_fault_observe(sim_context *context);
static inline CUresult sim_context_error(sim_context *context) {
    if (__builtin_expect(!atomic_load_explicit(&context->driver->troubled, memory_order_relaxed), 1))
        return CUDA_SUCCESS;
    return sim_fault_observe(context);
}
/* Whether operations of this context are dropped instead of run. */
bool sim_fault_drops(const sim_context *context);
/* A kernel or copy of `context` faulted: latches as measured on hardware, and reports one line. */
void sim_fault_kernel(sim_context *context, CUresult code, const char *message);
/* The device is gone; the others go on. */
void sim_fault_lose(sim_device *device, CUresult code, const char *why);
void sim_fault_settle(sim_device *device); /* unlocked; waits for what is running on a lost device */
/* What calls on a lost device return. */
#define SIM_LOSS_CODE CUDA_ERROR_ECC_UNCORRECTABLE
/* CUDA_SUCCESS or why no new context can be made on the device. */
CUresult sim_fault_new_context(const sim_device *device);

/* The fault plan. */
bool sim_plan_init(sim_driver *driver);
void sim_plan_close(sim_driver *driver);
/* A call of `entry` begins; `device` is the ordinal it concerns or -1. The code it must fail with, or CUDA_SUCCESS. */
CUresult sim_plan_call(sim_driver *driver, sim_entry entry, int device);
/* A kernel is about to run: the code it must fault with, or CUDA_SUCCESS. Counts the device's launches. */
CUresult sim_plan_kernel(sim_device *device);
/* A copy that ran: flips a bit of its destination when the plan says so. */
void sim_plan_copy(sim_device *device, void *destination, size_t bytes);

/* The table of one slot, and what stands behind it (sim_entry.c). */
void sim_entry_fill(mu_driver *table, uint32_t slot);
void sim_entry_bind(uint32_t slot, sim_driver *driver);
bool sim_counters_init(sim_driver *driver);
void sim_counters_close(sim_driver *driver);
uint64_t sim_counters_sum(const sim_driver *driver, sim_entry entry);
/* Marks the calling thread as running an application's host function, where driver calls are not permitted. */
void sim_host_function_begin(void);
void sim_host_function_end(void);

/* Waits in `done`; locked. */
void sim_wait(sim_driver *driver);
/* Wakes whoever waits in `done`, and idle executors; locked. */
void sim_wake(sim_driver *driver);

#endif
