/* Muster: run job graphs on every GPU of a machine.
 *
 * A host application describes work as graphs of jobs (kernel dispatches, copies, fills and callbacks over buffers). Muster places
 * each job on a device, moves the data it needs, orders it by the buffer ranges it accesses, keeps every device inside its
 * memory budget, and cuts one large dispatch into shards over all devices.
 *
 *     muster_runtime *rt;
 *     muster_runtime_create(NULL, &rt, &err);                         every device of the machine
 *     muster_program_from_ptx(rt, ptx, 0, "saxpy", &program, &err);   compiled and loaded on all of them
 *     muster_program_kernel(program, "saxpy", &kernel, &err);
 *     muster_buffer_create(rt, bytes, host_x, &x, &err);
 *     muster_graph_create(rt, &graph, &err);
 *     muster_graph_dispatch(graph, &(muster_dispatch){...}, &job, &err);
 *     muster_submit(rt, graph, &run, &err);
 *     muster_run_wait(run, MUSTER_FOREVER, &err);
 *     muster_buffer_acquire(y, 0, bytes, MUSTER_READ, MUSTER_FOREVER, &pointer, &err);
 *
 * Conventions, for every function below unless it says otherwise
 *   - It may be called from any thread, at any time between create and destroy of its handles. It never calls back into
 *     the application, never prints, never aborts, never changes the caller's current CUDA context or environment.
 *   - It returns a muster_status and writes outputs only when that is MUSTER_OK. Outputs come last, before the error.
 *   - `error` may be NULL. Otherwise it is overwritten on failure only, with the numbers and what to do about it.
 *   - "Blocks" means it may wait for other threads or devices; functions that do not say so do not wait.
 *   - Handles are opaque and typed. A handle of another runtime is refused (MUSTER_WRONG_RUNTIME). Passing NULL for a
 *     required pointer is MUSTER_INVALID_ARGUMENT; destroying NULL does nothing.
 *   - Strings and arrays passed in are copied before the call returns, except buffers' host memory.
 *   - Sizes are in bytes and times in nanoseconds; the unit is the last word of a name.
 *   - A range of 0 bytes touches nothing: the call or job succeeds, and keeps its place in every order. Where 0 bytes mean "to the
 *     end of the buffer", that is so for an offset at the end. Arguments of kernels and callbacks are never empty (OUT_OF_RANGE).
 *   - Descriptor structs start with struct_size = sizeof(the struct); zero means the default for every other field. A field that
 *     would be ignored because another is not set is refused; the pointer of an array of 0 elements is not looked at.
 * docs/conventions.md and docs/errors.md have the details. */
#ifndef MUSTER_H
#define MUSTER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MUSTER_API __attribute__((visibility("default")))
#else
#define MUSTER_API
#endif

#define MUSTER_VERSION_MAJOR 0
#define MUSTER_VERSION_MINOR 1
#define MUSTER_VERSION_PATCH 0

/* ------------------------------------------------------------------------------------------------------- status -- */

/* What the caller can do about a failure. */
typedef enum muster_recovery {
    MUSTER_RECOVERY_NONE = 0,        /* not a failure */
    MUSTER_RECOVERY_FIX_CALL = 1,    /* an argument, program or configuration is wrong; the same call fails again */
    MUSTER_RECOVERY_TRY_LATER = 2,   /* memory, queue space or time ran out; the same call may succeed later */
    MUSTER_RECOVERY_JOB_FAILED = 3,  /* one job or run ended without its result; the runtime goes on */
    MUSTER_RECOVERY_DEVICE_LOST = 4, /* a device (or, after a kernel fault, every device of this process) is gone */
    MUSTER_RECOVERY_FATAL = 5        /* the runtime cannot work here: no driver, no device, an internal error */
} muster_recovery;

/* Every status: name, stable id, recovery group, one-line text. Ids are append-only. */
#define MUSTER_STATUS_MAP(X)                                                                                           \
    X(OK, 0, NONE, "success")                                                                                          \
    X(INVALID_ARGUMENT, 100, FIX_CALL, "an argument is not valid")                                                     \
    X(INVALID_HANDLE, 101, FIX_CALL, "a handle is of the wrong type or was destroyed")                                 \
    X(WRONG_RUNTIME, 102, FIX_CALL, "a handle belongs to another runtime")                                             \
    X(INVALID_STATE, 103, FIX_CALL, "the object is not in a state that allows this call")                              \
    X(OUT_OF_RANGE, 104, FIX_CALL, "an offset, index or count lies outside its object")                                \
    X(INVALID_CONFIG, 105, FIX_CALL, "the configuration is not valid")                                                 \
    X(LIMIT_REACHED, 106, FIX_CALL, "a documented limit was reached")                                                  \
    X(UNSUPPORTED, 107, FIX_CALL, "the driver or device does not support this")                                        \
    X(GRAPH_CYCLE, 110, FIX_CALL, "the dependencies of the graph form a cycle")                                        \
    X(INVALID_GEOMETRY, 111, FIX_CALL, "the grid or block is not launchable")                                          \
    X(BUFFER_TOO_SMALL, 112, FIX_CALL, "a buffer range is smaller than the job needs")                                 \
    X(ARGUMENT_MISMATCH, 113, FIX_CALL, "the arguments do not match the kernel's parameters")                          \
    X(UNCUTTABLE, 114, FIX_CALL, "the dispatch cannot be cut as declared")                                             \
    X(NEVER_FITS, 115, FIX_CALL, "the job needs more memory than the device's budget")                                 \
    X(COOPERATIVE_TOO_LARGE, 116, FIX_CALL, "the cooperative grid cannot be resident at once")                         \
    X(CAPABILITY_MISSING, 117, FIX_CALL, "the device lacks a capability the kernel needs")                             \
    X(PROGRAM_INVALID, 120, FIX_CALL, "the program does not compile or load")                                          \
    X(ENTRY_NOT_FOUND, 121, FIX_CALL, "the program has no such kernel")                                                \
    X(FILE_UNREADABLE, 122, FIX_CALL, "a file cannot be read")                                                         \
    X(OUT_OF_HOST_MEMORY, 200, TRY_LATER, "host memory is exhausted")                                                  \
    X(OUT_OF_DEVICE_MEMORY, 201, TRY_LATER, "device memory is exhausted for now")                                      \
    X(TIMEOUT, 202, TRY_LATER, "the time limit passed first")                                                          \
    X(QUEUE_FULL, 203, TRY_LATER, "too many jobs are queued")                                                          \
    X(BUSY, 204, TRY_LATER, "the object is in use")                                                                    \
    X(LAUNCH_FAILED, 300, JOB_FAILED, "the driver refused a launch")                                                   \
    X(TRANSFER_FAILED, 301, JOB_FAILED, "the driver refused a copy or fill")                                           \
    X(PREDECESSOR_FAILED, 302, JOB_FAILED, "a job this one depends on failed")                                         \
    X(CANCELLED, 303, JOB_FAILED, "the run was cancelled")                                                             \
    X(DATA_UNDEFINED, 304, JOB_FAILED, "a job reads bytes whose last writer failed")                                   \
    X(DEADLINE_PASSED, 305, JOB_FAILED, "the deadline of the run passed first")                                        \
    X(CALLBACK_FAILED, 306, JOB_FAILED, "a host or enqueue callback reported a failure")                               \
    X(DEVICE_LOST, 400, DEVICE_LOST, "the device no longer works")                                                     \
    X(KERNEL_FAULT, 401, DEVICE_LOST, "a kernel faulted; no device of this process can be used any more")              \
    X(NO_DRIVER, 500, FATAL, "no CUDA driver can be opened")                                                           \
    X(NO_DEVICE, 501, FATAL, "the driver reports no usable device")                                                    \
    X(DRIVER_TOO_OLD, 502, FATAL, "the driver lacks an entry point Muster needs")                                      \
    X(DRIVER_ERROR, 503, FATAL, "a driver call failed unexpectedly")                                                   \
    X(INTERNAL, 504, FATAL, "an internal invariant does not hold; please report it")

typedef enum muster_status {
#define MUSTER_STATUS_ENUM(name, id, group, text) MUSTER_##name = id,
    MUSTER_STATUS_MAP(MUSTER_STATUS_ENUM)
#undef MUSTER_STATUS_ENUM
} muster_status;

MUSTER_API const char *muster_status_name(muster_status status); /* "MUSTER_TIMEOUT"; static storage, never NULL */
MUSTER_API const char *muster_status_text(muster_status status); /* the text above */
MUSTER_API muster_recovery muster_status_recovery(muster_status status);
MUSTER_API const char *muster_recovery_name(muster_recovery recovery); /* "try later" */

typedef uint32_t muster_job; /* a job of one graph: 0, 1, 2, ... in the order they were added */
#define MUSTER_NO_JOB UINT32_MAX
#define MUSTER_ANY_DEVICE (-1)
#define MUSTER_FOREVER UINT64_MAX

/* Filled on failure. Owned by the caller; zero-initialise it or not, nothing in it needs freeing. */
typedef struct muster_error {
    muster_status status;
    int driver_code;   /* the CUresult behind it, 0 when none */
    int device;        /* device index in the runtime, MUSTER_ANY_DEVICE when none */
    muster_job job;    /* MUSTER_NO_JOB when none */
    char message[492]; /* one line: what, with which numbers, and what to do; NUL-terminated, cut when too long */
} muster_error;

/* ------------------------------------------------------------------------------------------------------ runtime -- */

typedef struct muster_runtime muster_runtime;
typedef struct muster_program muster_program;
typedef struct muster_kernel muster_kernel;
typedef struct muster_buffer muster_buffer;
typedef struct muster_graph muster_graph;
typedef struct muster_run muster_run;

typedef enum muster_log_level {
    MUSTER_LOG_ERROR = 1,
    MUSTER_LOG_WARNING = 2,
    MUSTER_LOG_INFO = 3,
    MUSTER_LOG_DEBUG = 4
} muster_log_level;

/* Receives one line without a newline. Called from any thread, also from Muster's workers: it must not block for long
 * and must not call Muster. */
typedef void (*muster_log_fn)(void *user, muster_log_level level, const char *line);

/* Host allocation hooks; called from any thread. `reallocate(user, NULL, n)` allocates, n is never 0; NULL means out of
 * memory. Memory must be aligned as malloc aligns. */
typedef struct muster_allocator {
    void *(*reallocate)(void *user, void *pointer, size_t bytes);
    void (*release)(void *user, void *pointer);
    void *user;
} muster_allocator;

/* Replaces malloc for the whole process; NULL restores it. Call it while no runtime exists (INVALID_STATE otherwise). */
MUSTER_API muster_status muster_set_allocator(const muster_allocator *allocator, muster_error *error);

/* ---------------------------------------------------------------------------------------------------- placement -- */

/* What kind of job is placed. */
typedef enum muster_job_kind {
    MUSTER_JOB_EMPTY = 0, /* a copy or fill of no bytes */
    MUSTER_JOB_DISPATCH = 1,
    MUSTER_JOB_COPY = 2,
    MUSTER_JOB_FILL = 3,
    MUSTER_JOB_ENQUEUE = 4
} muster_job_kind;

/* What a policy wants to know. Each costs something for every job that is placed; what is not asked for is 0. */
enum {
    MUSTER_PLACEMENT_QUEUES = 1u << 0, /* queued_ns: one word of each device */
    MUSTER_PLACEMENT_TIMES = 1u << 1,  /* job_ns */
    /* The missing bytes, copy_ns and hops: takes the lock of each buffer that the job accesses. */
    MUSTER_PLACEMENT_DATA = 1u << 2,
    MUSTER_PLACEMENT_MEMORY = 1u << 3, /* required_bytes: adds up what the job accesses */
    MUSTER_PLACEMENT_TURN = 1u << 4    /* turn: one word that all threads of the runtime share */
};

/* A device as a place for one job. Always of this size: what is added later is beside it in the request. */
typedef struct muster_placement_device {
    int candidate;      /* 1: it may be chosen */
    uint32_t hops;      /* ranges that the job accesses and other devices hold, whose work on them comes before it */
    uint64_t queued_ns; /* what is placed here and has not ended will probably take */
    uint64_t job_ns;    /* the job itself, from what its kernel took before (docs/placement.md) */
    uint64_t missing_host_bytes; /* of what it reads, that must come from the host */
    uint64_t missing_peer_bytes; /* ... and from another device */
    uint64_t copy_ns;            /* both together, at the rates measured here */
} muster_placement_device;

typedef struct muster_placement_request {
    size_t struct_size;
    muster_job_kind kind;
    muster_job job;              /* in its graph */
    const muster_kernel *kernel; /* of a dispatch; NULL otherwise */
    const char *kernel_name;     /* likewise; valid during the call */
    uint64_t blocks;             /* of its grid; 0 for other jobs */
    uint64_t required_bytes;     /* device memory for all that it accesses */
    uint64_t turn;               /* 0, 1, 2, ...: no two jobs of the runtime get the same */
    uint64_t seed;               /* of muster_config */
    uint64_t candidates;         /* bit d: device d may be chosen; there are always two or more */
    uint32_t device_count;
    const muster_placement_device *devices; /* device_count; valid during the call */
} muster_placement_request;

/* Decides which device runs a job that is not pinned, when it is ready and there is a choice. The shards of a cut dispatch are not
 * asked for: cutting gave each its device, which it leaves only to end earlier. Lost devices, and devices whose memory can never
 * hold the job, are no candidates. A device that runs out of work may take the job later, unless MUSTER_RUNTIME_NO_STEALING is set. */
typedef struct muster_placement_policy {
    size_t struct_size;
    const char *name; /* in messages; NULL: "custom" */
    void *user;
    uint32_t flags; /* MUSTER_PLACEMENT_* */
    /* The index of a candidate, or MUSTER_ANY_DEVICE to leave this job to "locality". Anything else counts as
     * placements_refused of muster_device_stats, is logged once, and the job is left to "locality" too.
     * Called by any thread, also Muster's workers, several at once and with nothing held. It must not block, and must not call
     * Muster. It is called until the runtime has been destroyed. */
    int (*place)(void *user, const muster_placement_request *request);
} muster_placement_policy;

/* The policies that Muster comes with: "locality", "least-loaded", "round-robin", "random"; NULL for another name. Static
 * storage. A policy may call place(user, request) of another if its own flags include the other's. */
MUSTER_API const muster_placement_policy *muster_placement_find(const char *name);

/* ----------------------------------------------------------------------------------------- creating a runtime -- */

enum {
    /* No bursts, and a synchronisation after each job, so that a fault names its job. Also set by MUSTER_SERIAL=1. */
    MUSTER_RUNTIME_SERIAL = 1u << 0,
    /* Each actor makes a context of its own instead of retaining the primary one. */
    MUSTER_RUNTIME_OWN_CONTEXT = 1u << 1,
    /* Workers run on any CPU that the process may use. Otherwise they stay on those next to their device, where the system tells
     * which those are, and their pinned memory is there too. The application's own threads are never touched. */
    MUSTER_RUNTIME_NO_NUMA = 1u << 2,
    /* Jobs run where they were placed. Otherwise a device that runs out of work takes jobs that wait at another, if they end sooner
     * so (docs/placement.md). Also set by MUSTER_STEALING=0. */
    MUSTER_RUNTIME_NO_STEALING = 1u << 3
};

typedef struct muster_config {
    size_t struct_size;
    /* "cuda" (the default) or "sim". Muster never falls back from one to the other. NULL: MUSTER_DRIVER, else "cuda". */
    const char *driver;
    /* "sim" only: the simulated machine as JSON (docs/simulator.md). NULL: MUSTER_SIM, else one default device. */
    const char *sim;
    /* Path of a JSON file with any of these settings (docs/configuration.md); what is set in code wins. NULL: none. */
    const char *config_path;
    /* Devices to use by driver ordinal, in this order, device_count of them; a duplicate is refused (see actors_per_device). NULL: the
     * first device_count (0: all). */
    const int *ordinals;
    uint32_t device_count;
    uint32_t flags; /* MUSTER_RUNTIME_* */
    /* Memory budget of each device: absolute when not 0, else budget_permille thousandths of its memory (0: 900). */
    uint64_t budget_bytes;
    uint32_t budget_permille;
    /* Host memory that Muster may take for content of buffers that were made without any: what is acquired, brought to the host, or
     * written back when devices' memory is short, as the outputs of waves are. Beyond it those end as OUT_OF_HOST_MEMORY, and
     * nothing more is written back. 0: no limit. */
    uint64_t host_budget_bytes;
    /* Jobs submitted and not yet complete, over all runs; a submit beyond is MUSTER_QUEUE_FULL. 0: no limit. */
    uint32_t max_queued_jobs;
    /* How long a job may wait for memory that nothing of ours can free before it fails. 0: 10 s. */
    uint64_t admission_wait_ns;
    /* How long a worker spins for mail or completions before it parks; a thread in muster_run_wait, three times as long. 0: the tuned
     * default; 1: park at once. Neither yields meanwhile: with fewer cores than devices, longer than the default slows others down. */
    uint64_t spin_ns;
    /* Placement of unpinned jobs: "locality" (NULL), "least-loaded", "round-robin", "random". */
    const char *placement;
    uint64_t seed;     /* of "random" placement and bursts */
    muster_log_fn log; /* NULL: nothing is logged */
    void *log_user;
    muster_log_level log_level; /* 0: MUSTER_LOG_WARNING */
    /* Directory of the disk cache of compiled programs; "": none. NULL: MUSTER_CACHE_DIR, else muster/ in the user's
     * cache directory (docs/caches.md). */
    const char *cache_dir;
    uint64_t cache_bytes; /* at most so much there; 0: 1 GiB */
    /* Writes PTX to dump_dir (NULL: MUSTER_DUMP_DIR, else "muster-ptx"): "all", "failing", "none". NULL:
     * MUSTER_DUMP_PTX. */
    const char *dump_ptx;
    const char *dump_dir;
    /* How long an enqueue callback may take before it is named as one that blocks. 0: 100 ms. */
    uint64_t enqueue_limit_ns;
    /* So many actors on each device, to run multi-device graphs on a machine with fewer GPUs (docs/configuration.md). Each is a device
     * of the runtime, with a context of its own and an even part of the device's budget. 0: MUSTER_ACTORS_PER_DEVICE, else 1; at
     * most 16. LIMIT_REACHED: more than 32 actors in all. */
    uint32_t actors_per_device;
    /* Places jobs instead of what `placement` names; copied. NULL: that. INVALID_CONFIG: struct_size, place or flags are wrong. */
    const muster_placement_policy *policy;
    /* How kernel launches are sent together (docs/configuration.md): "auto" as it pays, "off" one by one; and for tests "always",
     * "random" as often as possible, in fixed or any sizes. Results are the same. NULL: MUSTER_BURSTS, else "auto". */
    const char *bursts;
    /* With several devices: how much estimated work a device is handed ahead; what exceeds it waits, and can still be overtaken by
     * jobs of higher priority, go to another device, or be cancelled. Four jobs are handed over however long they take. 0: 2 ms. */
    uint64_t enqueue_ahead_ns;
} muster_config;

/* Opens the driver and the devices, and starts one worker thread per device. Blocks: a device's first context takes
 * 100 ms and more. `config` NULL is all defaults.
 * Errors: INVALID_CONFIG (names the field or key), FILE_UNREADABLE (of config_path, or the file that `sim` names), NO_DRIVER,
 * NO_DEVICE, DRIVER_TOO_OLD, OUT_OF_RANGE (an ordinal the driver does not have), LIMIT_REACHED (too many actors),
 * OUT_OF_HOST_MEMORY (also: no thread can be started), OUT_OF_DEVICE_MEMORY (a device has no room for a context), CAPABILITY_MISSING
 * (a device lacks what Muster stands on), KERNEL_FAULT (a kernel of this process has faulted before), DEVICE_LOST, DRIVER_ERROR (another
 * driver call failed; it is named). */
MUSTER_API muster_status muster_runtime_create(const muster_config *config, muster_runtime **runtime,
                                               muster_error *error);

/* Waits up to timeout_ns for unfinished runs, then stops the workers and frees everything. Every handle made from the
 * runtime is destroyed with it. Must not be called while another thread is inside a call on this runtime.
 * Callbacks of runs that have ended are run first, and count as unfinished while they run. Runs that are still open are closed when
 * nothing else is left. Must not be called by a callback.
 * TIMEOUT: work is still running; nothing was destroyed and the runtime can still be used. Blocks. */
MUSTER_API muster_status muster_runtime_destroy(muster_runtime *runtime, uint64_t timeout_ns, muster_error *error);

typedef struct muster_device_info {
    size_t struct_size; /* set it before the call; fields beyond it are not written */
    int index;          /* 0 .. muster_device_count - 1: how the rest of this API names the device */
    int ordinal;        /* the driver's ordinal, after CUDA_VISIBLE_DEVICES */
    int simulated;
    char name[96];
    unsigned char uuid[16];
    char pci_bus_id[32];
    int compute_major, compute_minor;
    int multiprocessors;
    int warp_size;
    int max_threads_per_block;
    int max_threads_per_multiprocessor;
    int max_blocks_per_multiprocessor; /* 0: not reported */
    int max_block[3], max_grid[3];
    int max_shared_bytes, max_shared_optin_bytes;
    int cooperative_launch;
    uint64_t memory_bytes, budget_bytes;
    int lost; /* 1: it no longer works and is left alone (docs/errors.md) */
    /* With actors_per_device: which of the actors on the device this is, 0 .. share_count - 1, and how many they are. They have the
     * same ordinal and uuid, consecutive indices, and a part of its memory each (budget_bytes is the part). Otherwise 0 and 1. */
    int share_index, share_count;
} muster_device_info;

MUSTER_API int muster_device_count(const muster_runtime *runtime); /* of actors; 0 for NULL */
MUSTER_API muster_status muster_device_get_info(const muster_runtime *runtime, int index, muster_device_info *info,
                                                muster_error *error);

/* ----------------------------------------------------------------------------------------------------- programs -- */

/* A program is a source of kernels. Making one compiles it, on the calling thread and once for each architecture among
 * the devices: what this process or an earlier one compiled before is found in memory or on disk (docs/caches.md), and
 * threads that ask for the same at the same time share one compilation, its failure included. Then it is loaded on
 * every device that is not lost.
 *
 * Loading makes a device wait until it has drained, whatever one does. So a device that has work loads a new program at
 * its next idle moment, or when the program is needed: by muster_program_kernel or muster_program_prepare. Make
 * programs, and look up kernels, before work, or prepare them when a stall does not matter.
 *
 * Programs made from one source share what is compiled, never their module-scope variables.
 *
 * All functions that make a program block while it compiles (10 ms to seconds) and loads. Their common errors:
 * PROGRAM_INVALID with the compiler's log; CAPABILITY_MISSING when a device compiles PTX for no architecture;
 * OUT_OF_DEVICE_MEMORY; OUT_OF_HOST_MEMORY; DEVICE_LOST when no device is left. */

/* Of PTX text. `bytes` 0: `ptx` is a C string. `name` (may be NULL) appears in messages. */
MUSTER_API muster_status muster_program_from_ptx(muster_runtime *runtime, const char *ptx, size_t bytes,
                                                 const char *name, muster_program **program, muster_error *error);

/* Of a cubin or fatbin as ptxas, nvcc or fatbinary write them. It must hold code for every device of the runtime:
 * PROGRAM_INVALID otherwise, as for damage. The simulator runs PTX only. */
MUSTER_API muster_status muster_program_from_image(muster_runtime *runtime, const void *image, size_t bytes,
                                                   const char *name, muster_program **program, muster_error *error);

/* CUDA C++. What is compiled is identified by all of it: text, name, options, headers, include paths, the version of
 * the compiler, and the content of every file that is found for an #include. */
typedef struct muster_cuda_source {
    size_t struct_size;
    const char *text;
    size_t bytes;     /* 0: text is a C string */
    const char *name; /* in messages and as the file's name, "kernels.cu"; NULL: "program" */
    uint32_t option_count;
    const char *const *options; /* for NVRTC: "--use_fast_math", "-DN=4"; Muster adds the architecture */
    uint32_t include_path_count;
    const char *const *include_paths; /* directories; like "-I" options in front of the others */
    uint32_t header_count;            /* headers in memory, as #include names them; before all paths */
    const char *const *header_names;
    const char *const *header_texts;
} muster_cuda_source;

/* Compiled by NVRTC, which is opened when it is first needed: the library MUSTER_LIBNVRTC names, or libnvrtc.so where
 * the system finds it or in /usr/local/cuda. Its whole log goes to `log` of muster_config, line by line, at level info.
 * Kernels carry mangled names unless they are extern "C".
 * Errors: UNSUPPORTED when there is no NVRTC, or it compiles for none of a device's architectures; INVALID_ARGUMENT for
 * an option that chooses the architecture. */
MUSTER_API muster_status muster_program_from_cuda(muster_runtime *runtime, const muster_cuda_source *source,
                                                  muster_program **program, muster_error *error);

enum {
    MUSTER_FEATURE_SUBGROUP = 1u << 0, /* warp-wide operations */
    MUSTER_FEATURE_F16 = 1u << 1,
    MUSTER_FEATURE_BF16 = 1u << 2,
    MUSTER_FEATURE_TENSOR_CORES = 1u << 3, /* only with MUSTER_LOWERING_TENSOR_CORES */
    MUSTER_FEATURE_ASYNC_COMPUTE = 1u << 4 /* copies overlap kernels */
};

/* What a lowering reads. */
typedef struct muster_lowering_source {
    size_t struct_size;
    const void *content; /* any bytes: the compiler's own representation */
    size_t bytes;
    uint32_t option_count;
    const char *const *options;
    uint32_t required_features; /* MUSTER_FEATURE_*: CAPABILITY_MISSING on a device that lacks one */
} muster_lowering_source;

/* What a lowering writes for. Devices that agree in all of it share one lowering. */
typedef struct muster_target {
    size_t struct_size;
    int sm; /* 90: write `.target sm_90`, or older */
    int warp_size;
    uint32_t features; /* MUSTER_FEATURE_* of the device */
} muster_target;

typedef struct muster_ptx muster_ptx; /* where a lowering writes; usable during the call only */
/* Appends to the text. OUT_OF_HOST_MEMORY or LIMIT_REACHED (1 GiB) need no handling: the lowering fails with it
 * anyway. */
MUSTER_API muster_status muster_ptx_append(muster_ptx *ptx, const char *text, size_t bytes);

enum {
    /* The text depends on more than source, policy and target: keep it in this process, not on disk. */
    MUSTER_LOWERING_VOLATILE = 1u << 0,
    MUSTER_LOWERING_TENSOR_CORES = 1u << 1 /* it uses tensor cores where a target has them */
};

/* A compiler back end: callbacks that write PTX. They are called on the thread that makes the program, must not call
 * Muster (but for muster_ptx_append), and may run on several threads at once for different programs. A callback that
 * fails returns any status but MUSTER_OK, and says why in error->message; the program is then PROGRAM_INVALID with it
 * (OUT_OF_HOST_MEMORY stays what it is). */
typedef struct muster_lowering {
    size_t struct_size;
    const char *name; /* as of programs */
    muster_lowering_source source;
    /* Optional. Rewrites the source for a target, for instance into a canonical form, once per target: *result starts
     * as a copy of *given, and what it is set to stays valid until the program is made. A lowering that leaves it as it
     * was sets *unchanged, which spares the digest of the result; Muster believes it only when all fields are indeed
     * equal. */
    muster_status (*prepare)(void *user, const muster_lowering_source *given, const muster_target *target,
                             muster_lowering_source *result, int *unchanged, muster_error *error);
    /* Writes the PTX of the source (as rewritten) for the target. Called when no cache has it. */
    muster_status (*lower)(void *user, const muster_lowering_source *source, const muster_target *target,
                           muster_ptx *ptx, muster_error *error);
    void *user;
    /* Required: bytes that stand for everything else the text depends on. The back end's name, its version, its
     * settings. */
    const void *policy;
    size_t policy_bytes;
    uint32_t flags; /* MUSTER_LOWERING_* */
} muster_lowering;

MUSTER_API muster_status muster_program_from_lowering(muster_runtime *runtime, const muster_lowering *lowering,
                                                      muster_program **program, muster_error *error);

/* Loads the program wherever it is not loaded yet, now: a device that has work stalls until it has drained, which
 * muster_cache_stats counts. Blocks. Errors: PROGRAM_INVALID, OUT_OF_DEVICE_MEMORY. */
MUSTER_API muster_status muster_program_prepare(muster_program *program, muster_error *error);

/* Sets `bytes` bytes at `offset` of a module-scope variable (__device__ or __constant__; its name as in PTX) on every
 * device. It takes effect between runs: it waits up to timeout_ns until no unfinished run uses a kernel of the program,
 * and runs submitted after it has returned see the new value. What a run sees that is submitted meanwhile is not
 * defined. Until it is set, a variable has the value that its program gives it, or what kernels wrote. Blocks.
 * Errors: TIMEOUT, ENTRY_NOT_FOUND and OUT_OF_RANGE: nothing was changed. TRANSFER_FAILED: the content is undefined. */
MUSTER_API muster_status muster_program_set_global(muster_program *program, const char *name, uint64_t offset,
                                                   const void *data, uint64_t bytes, uint64_t timeout_ns,
                                                   muster_error *error);

/* Releases the program and its kernels. Graphs and runs that use them keep them alive until they end. With several devices and a disk
 * cache it writes what was learnt about the kernels, when that is new: a small file (docs/placement.md). */
MUSTER_API void muster_program_destroy(muster_program *program);

/* Finds an entry. The kernel belongs to the program and lives as long as it; asking twice gives the same handle, at the
 * cost of a short lock. Blocks until the program is loaded.
 * Errors: ENTRY_NOT_FOUND, listing the entries there are where the driver can tell; those of muster_program_prepare. */
MUSTER_API muster_status muster_program_kernel(muster_program *program, const char *entry, muster_kernel **kernel,
                                               muster_error *error);

/* What the caches of a runtime did since it was created; "now" marks what is not a count. */
typedef struct muster_cache_stats {
    size_t struct_size;
    uint64_t lowerings; /* texts made by a lowering or by NVRTC, not found */
    uint64_t compiles;  /* texts compiled to native code, not found */
    /* In memory, texts and native code; joins waited for another thread's. */
    uint64_t ptx_hits, ptx_misses, ptx_joins, ptx_failures, ptx_evictions;
    uint64_t ptx_entries, ptx_bytes; /* now */
    uint64_t cubin_hits, cubin_misses, cubin_joins, cubin_failures, cubin_evictions;
    uint64_t cubin_entries, cubin_bytes;           /* now */
    uint64_t disk_hits, disk_misses, disk_damaged; /* damaged: of the misses */
    uint64_t disk_stores, disk_store_failures, disk_evictions;
    uint64_t module_hits, module_loads; /* programs' modules, over all devices: found loaded, and not */
    uint64_t load_stalls;               /* loads that a device with work had to drain for */
    /* What earlier runtimes learnt about kernels and devices (docs/placement.md); not among the disk_* above, except disk_damaged. */
    uint64_t history_hits, history_misses, history_stores;
} muster_cache_stats;

/* As muster_device_get_stats. */
MUSTER_API muster_status muster_cache_get_stats(muster_runtime *runtime, muster_cache_stats *stats,
                                                muster_error *error);

/* ------------------------------------------------------------------------------------------------------ buffers -- */

/* Makes a buffer of logical memory; device copies appear where jobs need them. `host` is its content, at least `bytes`
 * long, which must stay allocated until the buffer is destroyed and the runs that use it have ended, and may be touched only between
 * acquire and release; NULL: the buffer starts as zeros and Muster allocates host memory when the application acquires it. Pinned memory is
 * copied fastest (muster_host_alloc).
 * Errors: INVALID_ARGUMENT for 0 bytes or NULL, for host memory of which only a part is pinned by muster_host_alloc or
 * muster_host_register, and for device memory. */
MUSTER_API muster_status muster_buffer_create(muster_runtime *runtime, uint64_t bytes, void *host,
                                              muster_buffer **buffer, muster_error *error);

/* Blocks while an eviction writes to host memory given at create, for the application may free that next if no run uses the buffer.
 * Destroys the buffer once no run uses it: at once, or deferred until the last such run or graph is gone. Host memory
 * given at create is neither read nor written after the last run that uses it has ended; content that only devices hold is lost. */
MUSTER_API void muster_buffer_destroy(muster_buffer *buffer);
MUSTER_API uint64_t muster_buffer_bytes(const muster_buffer *buffer); /* 0 for NULL */

typedef enum muster_access {
    MUSTER_READ = 1,
    MUSTER_WRITE = 2,     /* the job writes the whole range and reads none of it */
    MUSTER_READ_WRITE = 3 /* also for a job that writes only part of the range */
} muster_access;

/* Makes the range's host copy current and lends it to the caller until muster_buffer_release. Waits for every run
 * submitted before that uses the buffer; runs submitted later that use it wait for the release, unless both only read.
 * After MUSTER_WRITE the old content of the range is lost. `pointer` is the address of byte `offset`; `bytes` 0 means to the
 * end of the buffer. One acquisition of a buffer at a time, except readers.
 * Blocks up to timeout_ns; 0 only tries: TIMEOUT when anything comes before it, which leaves no trace, or when the content
 * is still on a device, which starts to bring it, so that asking again finds it. One that timed out later keeps its place until what it waited for
 * has ended, so what comes after still comes after that, and host memory given at create must stay until then.
 * Errors: TIMEOUT; OUT_OF_RANGE; DATA_UNDEFINED (reading after the last writer failed); TRANSFER_FAILED. */
MUSTER_API muster_status muster_buffer_acquire(muster_buffer *buffer, uint64_t offset, uint64_t bytes,
                                               muster_access access, uint64_t timeout_ns, void **pointer,
                                               muster_error *error);
/* `pointer` is what acquire returned. INVALID_STATE when it is not acquired. */
MUSTER_API muster_status muster_buffer_release(muster_buffer *buffer, void *pointer, muster_error *error);

/* ------------------------------------------------------------------------------------------------ pinned memory -- */

/* Host memory that is pinned is copied by the devices themselves, at the full speed of the bus (55 GB/s on an H200, against 8 to
 * 15 for the driver's own way with other memory). Buffers over memory from these calls, or over memory that the application has pinned
 * with the CUDA API, use it directly. All other memory, and what Muster allocates for a buffer without any, is pageable:
 * Muster copies it in pieces through a little pinned memory of its own, by up to eight threads. Pinned memory cannot be
 * swapped out, so a machine should not have most of its memory pinned. docs/memory.md says more. */

/* Lends pinned memory, usable by all devices of the runtime: as the `host` of buffers, or for anything else. Aligned to 256 bytes;
 * its content is undefined. Memory that was freed is kept for the next of about its size (within a quarter; a factor of two below
 * 1 MiB), so only the first of a size pays for pinning: 0.5 s a GiB. Blocks for that.
 * Errors: INVALID_ARGUMENT for 0 bytes; OUT_OF_HOST_MEMORY: the system has no more to pin (`ulimit -l` may bound it). */
MUSTER_API muster_status muster_host_alloc(muster_runtime *runtime, uint64_t bytes, void **pointer,
                                           muster_error *error);

/* Takes it back; NULL does nothing. Up to 1 GiB of freed memory is kept until the runtime is destroyed. More goes back to the system at
 * an idle moment, and more than 2 GiB at once: then it blocks until a device has drained. Runs and graphs that still use a
 * destroyed buffer in it go on using it; it is not lent to anybody before they are gone.
 * Errors: BUSY while a buffer that is not destroyed lies in it; INVALID_ARGUMENT when it is not the address that
 * muster_host_alloc returned; INVALID_STATE when it was freed already. */
MUSTER_API muster_status muster_host_free(muster_runtime *runtime, void *pointer, muster_error *error);

/* Pins the application's own memory until it is unregistered, for all devices of the runtime: 70 ms a GiB. The driver pins whole pages.
 * Register memory before making buffers of it. Blocks.
 * Errors: INVALID_ARGUMENT (NULL, 0 bytes, memory that is not mapped); INVALID_STATE: it overlaps memory that is pinned already; BUSY: a
 * buffer lies in it; OUT_OF_HOST_MEMORY. */
MUSTER_API muster_status muster_host_register(muster_runtime *runtime, void *pointer, uint64_t bytes,
                                              muster_error *error);

/* Unpins it; NULL does nothing. Do this before freeing the memory, or destroy the runtime, which unpins everything. Blocks: unpinning
 * stalls a busy device, so it waits for an idle moment of one, and after a second stalls it.
 * Errors: BUSY while a buffer lies in it, or a graph or unfinished run still uses a destroyed one; INVALID_ARGUMENT when it is not the
 * address given to muster_host_register. */
MUSTER_API muster_status muster_host_unregister(muster_runtime *runtime, void *pointer, muster_error *error);

/* ---------------------------------------------------------------------------------------------------- arguments -- */

typedef enum muster_arg_kind {
    MUSTER_ARG_BUFFER = 1,       /* the device address of a buffer range */
    MUSTER_ARG_VALUE = 2,        /* bytes passed as they are */
    MUSTER_ARG_SHARD_OFFSET = 3, /* filled by Muster: first element of this shard */
    MUSTER_ARG_SHARD_COUNT = 4,  /* filled by Muster: number of elements of this shard */
    MUSTER_ARG_SCRATCH = 5       /* the device address of memory that is the launch's own */
} muster_arg_kind;

/* How a sharded dispatch cuts an argument along its axis. */
typedef enum muster_cut {
    MUSTER_CUT_REPLICATE = 0, /* every shard sees the whole range; not for written arguments */
    MUSTER_CUT_BLOCK =
        1, /* slice i of the axis owns bytes [i, i + 1) * slice_bytes; the last slice may be short. With a
                               * pitch: of each row */
    MUSTER_CUT_REDUCE = 2, /* each shard accumulates into a copy of its own, which are combined in the range */
    MUSTER_CUT_HALO =
        3 /* as BLOCK, and the shard sees slices of its neighbours too; only for arguments that are read */
} muster_cut;

typedef enum muster_type {
    MUSTER_I32 = 1,
    MUSTER_U32 = 2,
    MUSTER_I64 = 3,
    MUSTER_U64 = 4,
    MUSTER_F32 = 5,
    MUSTER_F64 = 6
} muster_type;

/* How the copies of a reduced argument are combined, element by element, in the order of the shards. A shard's copy starts with the
 * identity of the operation; one shard starts with the old content, which so enters once. Results do not depend on the number of
 * shards where the arithmetic is associative: all but sums of floating point. MIN and MAX of floating point ignore a NaN beside a
 * number, as fmin does, and take -0 as less than +0; a kernel that does likewise gets the same bits for any number of shards, but for an
 * element that is NaN wherever it occurs: one shard leaves a NaN there, several the identity.
 * AND and OR are bitwise, for the integer types. */
typedef enum muster_reduction {
    MUSTER_REDUCE_SUM = 0,
    MUSTER_REDUCE_MIN = 1,
    MUSTER_REDUCE_MAX = 2,
    MUSTER_REDUCE_AND = 3,
    MUSTER_REDUCE_OR = 4
} muster_reduction;

/* One kernel argument, in the order of the kernel's parameters. Make them with the functions below; a field that the argument's kind or
 * cut has no use for is 0 (INVALID_ARGUMENT). How an argument is cut matters to sharded dispatches only: in others, and in host and
 * enqueue jobs, the whole range is the argument's. So dropping MUSTER_DISPATCH_SHARDED is all it takes to run a dispatch whole. */
typedef struct muster_arg {
    muster_arg_kind kind;
    muster_access access;       /* buffers */
    muster_cut cut;             /* buffers of a sharded dispatch */
    muster_type type;           /* reductions: the element type ... */
    muster_reduction reduction; /* ... and the operation */
    muster_buffer *buffer;
    uint64_t offset_bytes; /* of the range in the buffer */
    uint64_t bytes;        /* of the range; 0: to the end of the buffer. Of scratch memory */
    uint64_t
        slice_bytes; /* MUSTER_CUT_BLOCK and _HALO: bytes of one slice, that is of one block of the grid along the axis */
    uint32_t halo_before, halo_after; /* MUSTER_CUT_HALO: slices of the neighbours, fewer at the ends of the range */
    uint32_t rows;                    /* MUSTER_CUT_BLOCK and _HALO with a pitch: rows of the range; else 0 ... */
    uint64_t pitch_bytes;             /* ... and bytes from the beginning of one to that of the next */
    uint64_t slice_elements;          /* shard offset and count: elements of one slice ... */
    uint64_t total_elements;          /* ... and of the whole dispatch, where the last slice may be short */
    uint32_t value_bytes;             /* values, and the width (4 or 8) of shard offset and count */
    union {
        unsigned char inline_bytes[16]; /* value_bytes <= 16 */
        const void *pointer;            /* larger values, copied when the job is added */
    } value;
} muster_arg;

/* For the functions below: an argument of which nothing is set. Member by member, for gcc would clear it all and copy it twice, 10 ns an
 * argument; with clang it is the other way round. */
static inline muster_arg muster_blank_arg(muster_arg_kind kind) {
    muster_arg arg;
#if defined(__GNUC__) && !defined(__clang__)
    arg.access = (muster_access)0;
    arg.cut = (muster_cut)0;
    arg.type = (muster_type)0;
    arg.reduction = (muster_reduction)0;
    arg.buffer = NULL;
    arg.offset_bytes = arg.bytes = arg.slice_bytes = arg.pitch_bytes = arg.slice_elements = arg.total_elements = 0;
    arg.halo_before = arg.halo_after = arg.rows = arg.value_bytes = 0;
    arg.value.pointer = NULL;
#else
    memset(&arg, 0, sizeof arg);
#endif
    arg.kind = kind;
    return arg;
}
static inline muster_arg muster_buffer_arg(muster_buffer *buffer, muster_access access) {
    muster_arg arg = muster_blank_arg(MUSTER_ARG_BUFFER);
    arg.access = access;
    arg.buffer = buffer;
    return arg;
}
static inline muster_arg muster_range_arg(muster_buffer *buffer, muster_access access, uint64_t offset_bytes,
                                          uint64_t bytes) {
    muster_arg arg = muster_buffer_arg(buffer, access);
    arg.offset_bytes = offset_bytes;
    arg.bytes = bytes;
    return arg;
}
/* The argument, cut in blocks of slice_bytes per block of the grid along the sharded axis. */
static inline muster_arg muster_block_cut(muster_arg arg, uint64_t slice_bytes) {
    arg.cut = MUSTER_CUT_BLOCK;
    arg.slice_bytes = slice_bytes;
    return arg;
}
/* The argument, cut in blocks, and with each block up to `before` and `after` slices of its neighbours, for stencils. The kernel's
 * address is that of the block's first slice: what is before has negative offsets. At the ends of the range there are no
 * neighbours, and the kernel must not look for them. */
static inline muster_arg muster_halo_cut(muster_arg arg, uint64_t slice_bytes, uint32_t before, uint32_t after) {
    arg.cut = MUSTER_CUT_HALO;
    arg.slice_bytes = slice_bytes;
    arg.halo_before = before;
    arg.halo_after = after;
    return arg;
}
/* The argument, cut in blocks within each of `rows` rows that begin pitch_bytes apart: slice i owns bytes [i, i + 1) * slice_bytes of every
 * row. So columns of a row-major matrix are cut along x, and, with a row for each plane, a volume along y. The kernel's address is that of
 * its first slice in row 0, and the pitch is what it was: the kernel needs no change. What lies between the rows of a shard, its
 * neighbours' columns and padding, is not the shard's: it is not brought, and nothing that the kernel writes there is kept; but the
 * device needs the memory from the first row to the last.
 * A row's width is what the slices take of it, at most the pitch, and at most what the last row has of the argument's range, which may
 * end before its padding; the last slice ends with it. Sharded dispatches only; otherwise the whole range is the argument's, with its
 * padding. Of an argument that has a halo (muster_halo_cut, before or after this) it is the halo that is in columns. */
static inline muster_arg muster_pitch_cut(muster_arg arg, uint64_t slice_bytes, uint64_t pitch_bytes, uint32_t rows) {
    if (arg.cut != MUSTER_CUT_HALO) arg.cut = MUSTER_CUT_BLOCK;
    arg.slice_bytes = slice_bytes;
    arg.pitch_bytes = pitch_bytes;
    arg.rows = rows;
    return arg;
}
/* A whole buffer of elements into which the kernel reduces (atomically, unless it is alone on each). */
static inline muster_arg muster_reduce_arg(muster_buffer *buffer, muster_type type, muster_reduction reduction) {
    muster_arg arg = muster_buffer_arg(buffer, MUSTER_READ_WRITE);
    arg.cut = MUSTER_CUT_REDUCE;
    arg.type = type;
    arg.reduction = reduction;
    return arg;
}
static inline muster_arg muster_sum_arg(muster_buffer *buffer, muster_type type) {
    return muster_reduce_arg(buffer, type, MUSTER_REDUCE_SUM);
}
/* Device memory that a launch has for itself from its start to its end, aligned as an allocation. Its content is undefined at
 * the start and lost at the end; each shard and each iteration has its own. It counts as the job's memory: a job waits for it,
 * and is refused when it can never fit. Jobs with scratch memory are launched one by one, not in bursts. */
static inline muster_arg muster_scratch_arg(uint64_t bytes) {
    muster_arg arg = muster_blank_arg(MUSTER_ARG_SCRATCH);
    arg.bytes = bytes;
    return arg;
}
/* Any value, copied when the job is added. */
static inline muster_arg muster_value_arg(const void *value, uint32_t bytes) {
    muster_arg arg = muster_blank_arg(MUSTER_ARG_VALUE);
    arg.value_bytes = bytes;
    if (bytes <= sizeof arg.value.inline_bytes && value)
        memcpy(arg.value.inline_bytes, value, bytes);
    else
        arg.value.pointer = value;
    return arg;
}
static inline muster_arg muster_i32_arg(int32_t value) { return muster_value_arg(&value, sizeof value); }
static inline muster_arg muster_u32_arg(uint32_t value) { return muster_value_arg(&value, sizeof value); }
static inline muster_arg muster_i64_arg(int64_t value) { return muster_value_arg(&value, sizeof value); }
static inline muster_arg muster_u64_arg(uint64_t value) { return muster_value_arg(&value, sizeof value); }
static inline muster_arg muster_f32_arg(float value) { return muster_value_arg(&value, sizeof value); }
static inline muster_arg muster_f64_arg(double value) { return muster_value_arg(&value, sizeof value); }
/* Filled by Muster in each shard: the first element, and how many elements, of total_elements at slice_elements per
 * block of the grid along the axis. width_bytes is the parameter's size, 4 or 8. Unsharded: 0 and total_elements. */
static inline muster_arg muster_shard_offset_arg(uint64_t slice_elements, uint64_t total_elements,
                                                 uint32_t width_bytes) {
    muster_arg arg = muster_blank_arg(MUSTER_ARG_SHARD_OFFSET);
    arg.slice_elements = slice_elements;
    arg.total_elements = total_elements;
    arg.value_bytes = width_bytes;
    return arg;
}
static inline muster_arg muster_shard_count_arg(uint64_t slice_elements, uint64_t total_elements,
                                                uint32_t width_bytes) {
    muster_arg arg = muster_shard_offset_arg(slice_elements, total_elements, width_bytes);
    arg.kind = MUSTER_ARG_SHARD_COUNT;
    return arg;
}

/* ------------------------------------------------------------------------------------------------------- graphs -- */

typedef struct muster_dim3 {
    uint32_t x, y, z; /* 0 counts as 1 in y and z: `.grid.x = n` is a one-dimensional size */
} muster_dim3;

enum {
    MUSTER_DISPATCH_COOPERATIVE = 1u << 0, /* all blocks resident at once (grid-wide synchronisation) */
    MUSTER_DISPATCH_SHARDED = 1u << 1,     /* cut over all devices along shard_axis */
    MUSTER_DISPATCH_ITERATED = 1u << 2     /* launched `iterations` times, one behind the other, on one device */
};

/* What to do with a cooperative dispatch whose grid cannot be resident at once on the device it runs on. */
typedef enum muster_fallback {
    MUSTER_FALLBACK_NONE = 0, /* refuse it: COOPERATIVE_TOO_LARGE */
    MUSTER_FALLBACK_SPLIT =
        1, /* launch the kernels of `phases` instead, in order, as ordinary launches of the same shape and
                                * arguments: what a grid-wide synchronisation separates in the kernel */
    MUSTER_FALLBACK_CLAMP =
        2 /* shrink the grid to what can be resident: the kernel walks its elements in steps of the grid */
} muster_fallback;

typedef struct muster_dispatch {
    size_t struct_size;
    muster_kernel *kernel;
    muster_dim3 grid;  /* blocks */
    muster_dim3 block; /* threads */
    uint32_t dynamic_shared_bytes;
    uint32_t flags;
    uint32_t shard_axis; /* 0 = x, 1 = y, 2 = z; of a sharded dispatch */
    /* Sharded: so many equal shards, at most 65,536, or one per slice if there are fewer, and no waves. 0: one per device, more if devices
     * are unlike or they would not fit, fewer if some would not pay: see below. Not sharded: 0 or 1. */
    uint32_t max_shards;
    int pin_device; /* 1: run on `device` only (not with SHARDED); 0: Muster places it, and device is 0 or MUSTER_ANY_DEVICE */
    int device;
    uint32_t arg_count;
    const muster_arg *args; /* one per kernel parameter, in order */
    uint32_t after_count;
    const muster_job *after;      /* explicit predecessors */
    muster_dim3 cluster;          /* blocks of a cluster, at most 8, which divide the grid; all 0: no clusters */
    muster_fallback fallback;     /* of a cooperative dispatch */
    uint32_t phase_count;         /* 1 to 64 with MUSTER_FALLBACK_SPLIT, else 0 */
    muster_kernel *const *phases; /* with the parameters of `kernel` */
    /* A module-scope variable of the kernel's program in which its blocks count themselves for a barrier of their own. It is
     * zeroed before each launch of `kernel` (not of phases), and launches of one device never overlap. NULL: none. */
    const char *barrier_counter;
    uint32_t iterations; /* with MUSTER_DISPATCH_ITERATED, 1 to 1048576; else 0, which is one launch */
    int32_t priority;    /* as of muster_graph_set_priority */
} muster_dispatch;

/* How a sharded dispatch is cut. Each shard is a launch over part of the grid, on any device; it depends on those jobs and shards only
 * whose ranges it reads or overwrites. Devices that are alike get equal parts, one each. Unlike ones (by more than a tenth) get parts in
 * proportion to their speed: as this kernel was measured on them, else another kernel of the graph, else by multiprocessors and
 * clock. Each of these parts is cut in up to four, which go to another device when the graph runs if they end clearly
 * earlier there. A device whose part would save less than it costs gets none. The cut itself stays what it was when the dispatch was added.
 * If a device's part is more than its whole budget, that part runs in waves: it is cut into so many shards that four fit on
 * the device at once, so that the next arrives and the last is written back to the host while one runs. UNCUTTABLE, with
 * numbers, when even one slice does not fit, or what every shard has whole is too much; LIMIT_REACHED for more than 65,536 waves.
 * Only a shard has to be within the devices' limits for a grid: a part that is longer along the axis (on today's devices, more than
 * 65,535 blocks along y or z, or 2^31 - 1 along x) is cut in as many shards as that takes, INVALID_GEOMETRY when max_shards
 * allows fewer. */

/* A graph belongs to one runtime. It is built by one thread at a time; once submitted it can be submitted again, also
 * while earlier runs of it are unfinished, but no job can be added. */
MUSTER_API muster_status muster_graph_create(muster_runtime *runtime, muster_graph **graph, muster_error *error);
MUSTER_API void muster_graph_destroy(muster_graph *graph); /* its runs keep what they need */

/* Adds a kernel dispatch. Dependencies on earlier jobs of the graph are inferred from the buffer ranges: a reader waits
 * for the last writers of what it reads, a writer also for the readers since. Jobs that depend on each other in no such way
 * run in any order and at the same time, on one device too; what else kernels share, as a module-scope variable, takes
 * muster_graph_after. Overlapping ranges of one buffer within one job are refused when one of them is written.
 * Errors: INVALID_GEOMETRY, ARGUMENT_MISMATCH (count and sizes, where the driver tells the kernel's parameters),
 * OUT_OF_RANGE, BUFFER_TOO_SMALL (a cut argument shorter than its slices need), LIMIT_REACHED (4,096 different pitches or numbers of
 * rows in a graph), UNCUTTABLE, COOPERATIVE_TOO_LARGE (by what
 * the device alone says; what the loaded kernel says decides when the job runs, or muster_preflight), CAPABILITY_MISSING (no
 * clusters), ENTRY_NOT_FOUND (no such barrier counter), WRONG_RUNTIME, INVALID_STATE (already submitted). Nothing is added on
 * failure. Blocks while the workers look up a barrier counter that the graph does not know yet. */
MUSTER_API muster_status muster_graph_dispatch(muster_graph *graph, const muster_dispatch *dispatch, muster_job *job,
                                               muster_error *error);

/* Adds a copy of `bytes` between two buffers, or within one when the ranges do not overlap. 0 bytes: touches nothing. */
MUSTER_API muster_status muster_graph_copy(muster_graph *graph, muster_buffer *destination, uint64_t destination_offset,
                                           muster_buffer *source, uint64_t source_offset, uint64_t bytes,
                                           muster_job *job, muster_error *error);

/* Adds a fill with a repeated pattern, the low 1, 2 or 4 bytes of `pattern`; offset and bytes are multiples of pattern_bytes. */
MUSTER_API muster_status muster_graph_fill(muster_graph *graph, muster_buffer *buffer, uint64_t offset, uint64_t bytes,
                                           uint32_t pattern, uint32_t pattern_bytes, muster_job *job,
                                           muster_error *error);

/* Adds a prefetch: `device` has valid content of the range, `bytes` 0 meaning to the end, once the job has ended. Jobs that read
 * the range there later find it, unless it is written elsewhere or given up under memory pressure meanwhile. The range counts as
 * read, for the order of jobs and runs. Kernels on the device are not held up by it. OUT_OF_RANGE: no such device or range. */
MUSTER_API muster_status muster_graph_prefetch(muster_graph *graph, muster_buffer *buffer, uint64_t offset,
                                               uint64_t bytes, int device, muster_job *job, muster_error *error);

/* Adds a job that makes the host copy of a range current: when it has ended, the bytes are in the buffer's host memory, and an
 * acquisition that reads them finds nothing to copy. The copy overlaps with other jobs. `bytes` 0 means to the end of the buffer. The
 * application still reads between acquire and release only. */
MUSTER_API muster_status muster_graph_read_back(muster_graph *graph, muster_buffer *buffer, uint64_t offset,
                                                uint64_t bytes, muster_job *job, muster_error *error);

/* A function of the application's, called with host memory. */
typedef struct muster_host_job {
    size_t struct_size;
    /* Called once per run, on a thread of Muster's that runs all callbacks of the runtime one after the other. pointers[i] is the
     * address of the first byte of argument i, current where it is read; the host memory of argument i is the callback's until it
     * returns. A callback that fails returns any status but MUSTER_OK and may say why in error->message: the job ends as
     * CALLBACK_FAILED with that text, what it would have written is undefined, and what depends on it does not run. It may take its
     * time, but holds up every other callback of the runtime meanwhile. It may call Muster, but must not wait for a run or for a
     * buffer that an unfinished run uses, nor destroy the runtime: that could wait for the callback itself. */
    muster_status (*run)(void *user, void *const *pointers, uint32_t count, muster_error *error);
    void *user;
    uint32_t arg_count;     /* at most 128 */
    const muster_arg *args; /* buffers or ranges of them; dependencies follow from their access, as for a dispatch */
    uint32_t after_count;
    const muster_job *after; /* explicit predecessors */
} muster_host_job;

/* Adds a host job. It starts when everything before it has completed, on every device, and what comes after it starts when it has
 * returned. A buffer without host memory gets it. It runs on no device: muster_job_result says MUSTER_ANY_DEVICE.
 * Errors: as muster_graph_dispatch; INVALID_ARGUMENT for an argument that is no buffer. */
MUSTER_API muster_status muster_graph_host(muster_graph *graph, const muster_host_job *host, muster_job *job,
                                           muster_error *error);

/* What an enqueue callback gets. Handles are the driver's: muster_cuda.h has them as CUcontext, CUstream and CUdeviceptr. On a
 * simulated device they are the simulator's, and mean nothing to a library. */
typedef struct muster_enqueue_context {
    size_t struct_size;
    int device;                /* index in the runtime */
    void *context;             /* CUcontext; current on the calling thread */
    void *stream;              /* CUstream, non-blocking, which carries the device's jobs in order */
    uint32_t count;            /* of arguments */
    const uint64_t *addresses; /* of each argument's first byte on the device; CUdeviceptr */
} muster_enqueue_context;

/* A function of the application's that enqueues work on a device: a call of cuBLAS, cuFFT, NCCL, or a launch of its own. */
typedef struct muster_enqueue_job {
    size_t struct_size;
    /* Called once per run, by the worker of the device that runs the job, which launches nothing meanwhile. It puts work on `stream`
     * and returns; the job is that work. It must not block: no synchronisation, no allocation that stalls the device, no lock that is
     * held for long, no call of Muster. It leaves the context current, and the stream open. One that has not returned after
     * enqueue_limit_ns of muster_config is named in the log and by muster_run_wait when it times out. More than some 30 calls
     * on the stream may have to wait for it. Failures: as of a host job's callback. */
    muster_status (*enqueue)(void *user, const muster_enqueue_context *context, muster_error *error);
    void *user;
    uint32_t arg_count; /* at most 128 */
    const muster_arg
        *args;      /* buffers or ranges of them, on the device when it is called, as for a dispatch; scratch memory */
    int pin_device; /* 1: run on `device` only; 0: Muster places it, and device is 0 or MUSTER_ANY_DEVICE */
    int device;
    uint32_t after_count;
    const muster_job *after; /* explicit predecessors */
    int32_t priority;        /* as of muster_graph_set_priority */
} muster_enqueue_job;

/* Errors: as muster_graph_host. */
MUSTER_API muster_status muster_graph_enqueue(muster_graph *graph, const muster_enqueue_job *enqueue, muster_job *job,
                                              muster_error *error);

/* `job` starts after `predecessor`, either added first. A cycle is found at submit (GRAPH_CYCLE, naming its jobs). */
MUSTER_API muster_status muster_graph_after(muster_graph *graph, muster_job job, muster_job predecessor,
                                            muster_error *error);

enum { MUSTER_PRIORITY_LOWEST = -7, MUSTER_PRIORITY_HIGHEST = 7 };

/* Sets the priority of a job, MUSTER_PRIORITY_LOWEST to _HIGHEST; 0 unless it is set. Of the jobs that are ready on a device, in any run,
 * those of the highest priority are handed to it first, and within one priority those that have been ready for longest. Jobs that wait
 * for memory get it in the same order. Nothing else follows from it: what the device has been handed, up to about 2 ms of short
 * kernels, is not recalled; a job does not lend its priority to what it waits for; and a job of low priority that waits for memory waits
 * as long as others of higher priority keep coming. One that is ready does not: of some 4,096 jobs that a device is handed, one is
 * the oldest of a lower priority, if there is any, each priority in its turn. Read-backs and host jobs run on no device and have none.
 * Errors: OUT_OF_RANGE; INVALID_ARGUMENT (a job that runs on no device); INVALID_STATE (already submitted). */
MUSTER_API muster_status muster_graph_set_priority(muster_graph *graph, muster_job job, int32_t priority,
                                                   muster_error *error);

/* Replaces a value argument of a dispatch for later submits; runs already submitted keep the old one. The size must be
 * the argument's. */
MUSTER_API muster_status muster_graph_set_argument(muster_graph *graph, muster_job job, uint32_t index,
                                                   const void *value, uint32_t bytes, muster_error *error);

/* ---------------------------------------------------------------------------------------------------- preflight -- */

typedef enum muster_preflight_depth {
    MUSTER_PREFLIGHT_CHEAP =
        1, /* arithmetic alone: nothing is allocated or loaded on the device, and nothing is waited for */
    MUSTER_PREFLIGHT_FULL = 2 /* asks the device's worker about the loaded kernel: the verdict of a run */
} muster_preflight_depth;

typedef enum muster_answer {
    MUSTER_ANSWER_NO = 0,
    MUSTER_ANSWER_YES = 1,
    MUSTER_ANSWER_UNKNOWN = 2 /* only when cheap: the loaded kernel decides whether the cooperative grid is resident */
} muster_answer;

typedef struct muster_preflight_report {
    size_t struct_size; /* set it before the call; fields beyond it are not written */
    muster_answer answer;
    muster_status status;     /* what the job would end with: OK unless the answer is no */
    muster_fallback fallback; /* what would be used of the declared one; NONE while unknown */
    uint64_t grid_blocks;     /* of the dispatch; 0 for other jobs, and when the product overflows */
    uint64_t launched_blocks; /* after MUSTER_FALLBACK_CLAMP; else as grid_blocks */
    uint64_t resident_limit;  /* blocks of a cooperative dispatch: of the kernel when full, of the device when cheap */
    uint64_t required_bytes;  /* device memory for all the job accesses */
    uint64_t budget_bytes;    /* what the device can give one job: its budget less what cannot be evicted */
    uint64_t available_bytes; /* what of that is free now, without evicting anything */
    char message[492];        /* why not, as a run would say it; "" unless the answer is no */
    /* The stable diagnostic of a dispatch, "cuda-kernel-capability-v1|kernel=...": docs/errors.md. "" for other jobs. */
    char line[1024];
} muster_preflight_report;

/* Says whether `job` could run on `device`, and with which numbers. Of a sharded dispatch, the part that `device` gets which
 * needs most. The answer "yes" means that nothing about the job itself refuses it: memory that is in use elsewhere is waited for.
 * A lost device is answered with no. FULL blocks for the device's worker, not for the device. Errors are of this call, not of the
 * job: OUT_OF_RANGE, INVALID_ARGUMENT (also for a job that is pinned to another device), KERNEL_FAULT. */
MUSTER_API muster_status muster_preflight(muster_graph *graph, muster_job job, int device, muster_preflight_depth depth,
                                          muster_preflight_report *report, muster_error *error);

/* The same for a dispatch that is not part of a graph. A shape that muster_graph_dispatch refuses is answered with no; what is
 * wrong in other ways is an error of this call, as there; so is that it cannot be cut. */
MUSTER_API muster_status muster_preflight_dispatch(muster_runtime *runtime, const muster_dispatch *dispatch, int device,
                                                   muster_preflight_depth depth, muster_preflight_report *report,
                                                   muster_error *error);

/* --------------------------------------------------------------------------------------------------------- runs -- */

/* Submits one run of the graph and returns at once. Runs that share a buffer take effect in the order of submission
 * (atomically over all their buffers) unless both only read it; other runs are unordered.
 * Errors: GRAPH_CYCLE, QUEUE_FULL, OUT_OF_HOST_MEMORY, KERNEL_FAULT, DEVICE_LOST (no device is left). A failing job does not fail
 * submit. */
MUSTER_API muster_status muster_submit(muster_runtime *runtime, muster_graph *graph, muster_run **run,
                                       muster_error *error);

/* Opens a run to which graphs are added while earlier ones execute, for work that becomes known bit by bit: one handle to wait for,
 * cancel, or be told of the end of. It ends when it is closed and everything in it has ended; everything about runs below is about
 * the whole then. Errors: OUT_OF_HOST_MEMORY, KERNEL_FAULT, DEVICE_LOST (no device is left). */
MUSTER_API muster_status muster_run_open(muster_runtime *runtime, muster_run **run, muster_error *error);

/* Adds the graph, which takes its place in the order of runs now, as if it was submitted: it follows what was added before only
 * where they share a buffer, and a job that fails concerns later graphs only through the data it leaves undefined. Jobs are
 * numbered through: job j of the graph is job *first + j of the run (`first` may be NULL), and graphs that several threads add are
 * numbered in the order in which they take effect. A graph may be added again, and to several runs. What is kept of a graph to answer
 * muster_run_job_result, it and 56 bytes a job, is freed with the run.
 * Errors, and nothing was added: those of muster_submit; INVALID_STATE when the run is closed or was submitted; CANCELLED or
 * DEADLINE_PASSED when it was ended early; LIMIT_REACHED (2^32 - 1 jobs in all). */
MUSTER_API muster_status muster_run_add(muster_run *run, muster_graph *graph, muster_job *first, muster_error *error);

/* Nothing is added any more: the run ends with what is in it. Closing again does nothing. Ending a run early does not close it;
 * muster_run_destroy does. INVALID_STATE: it was submitted. */
MUSTER_API muster_status muster_run_close(muster_run *run, muster_error *error);

/* A job that fails ends what depends on it in its graph as PREDECESSOR_FAILED: what reads what it writes, and also what overwrites what
 * it reads or writes, for that was ordered behind it. Other jobs go on. Between runs only content counts: a later run fails where
 * it reads what is undefined.
 *
 * Waits until every job of the run has ended. OK: all succeeded. TIMEOUT: not yet; the run goes on. Otherwise the first
 * failure (by job id), as in muster_run_job_result. Blocks; may be called again and from several threads. */
MUSTER_API muster_status muster_run_wait(muster_run *run, uint64_t timeout_ns, muster_error *error);

typedef struct muster_job_result {
    size_t struct_size;
    /* Of the job. PREDECESSOR_FAILED: it was not to run, because a job of its graph before it failed, whose results it reads, or whose
     * inputs or results it overwrites, or which it was put after; or one that such a job depends on. */
    muster_status status;
    int device;      /* where it ran; of a sharded dispatch, its first shard; MUSTER_ANY_DEVICE if it did not */
    uint32_t shards; /* 1 unless sharded */
} muster_job_result;

/* INVALID_STATE while the job has not ended. `error` describes the failure of this call, not of the job. */
MUSTER_API muster_status muster_run_job_result(const muster_run *run, muster_job job, muster_job_result *result,
                                               muster_error *error);

typedef struct muster_shard_result {
    size_t struct_size;
    muster_status status;
    int device;                   /* where it ran; MUSTER_ANY_DEVICE if it did not */
    uint64_t first_block, blocks; /* of the dispatch's grid: those it ran, and how many are in the shards before */
} muster_shard_result;

/* Of one shard of a dispatch, counted along the axis from 0 to muster_job_result.shards - 1; an unsharded dispatch is one.
 * OUT_OF_RANGE: there is no such shard, as of jobs that are no dispatch. Else as muster_run_job_result. */
MUSTER_API muster_status muster_run_shard_result(const muster_run *run, muster_job job, uint32_t shard,
                                                 muster_shard_result *result, muster_error *error);

/* Ends the run early: jobs that have not been handed to their device, and host jobs that have not been called, end as CANCELLED, and
 * what they would have written is undefined; the others go on to their end. Returns at once; muster_run_wait tells when it is over, and gives CANCELLED
 * unless a job before failed otherwise. A run that waits for earlier runs or for a released buffer still takes its turn. A run
 * that has ended stays as it is. So does an open run all of whose jobs have ended: nothing can be added any more, and once it is
 * closed its status is that of its jobs, for none of them was ended early. */
MUSTER_API muster_status muster_run_cancel(muster_run *run, muster_error *error);

/* Ends the run early, as muster_run_cancel does, when timeout_ns from now have passed and it has not ended: jobs that have not
 * been handed to their device by then end as DEADLINE_PASSED. 0: now. Another deadline replaces the first, and MUSTER_FOREVER takes
 * it away; one that has passed stays passed. What came first, a deadline or a cancel, is what the jobs end with. */
MUSTER_API muster_status muster_run_set_deadline(muster_run *run, uint64_t timeout_ns, muster_error *error);

/* Calls `fn` once when the run has ended; with the status that muster_run_wait gives, on a thread of Muster's that runs all
 * callbacks of the runtime one after the other; at once, but still on that thread, when it has ended already. Several may be asked
 * for, and are called in that order. `run` is valid during the call, also when its handle was destroyed before.
 * The callback may call everything but muster_runtime_destroy (INVALID_STATE): submit, acquire, destroy the run. While it takes its
 * time no other callback and no host job of the runtime runs, so it must not wait for one, nor for a run that has one. */
MUSTER_API muster_status muster_run_on_complete(muster_run *run,
                                                void (*fn)(void *user, muster_run *run, muster_status status),
                                                void *user, muster_error *error);

/* A descriptor for poll, select and epoll: readable once the run has ended. Reading takes that away, so leave it be. It belongs to
 * the run and is closed by muster_run_destroy; asking again gives the same one. OUT_OF_HOST_MEMORY: no descriptor is left. */
MUSTER_API muster_status muster_run_completion_fd(muster_run *run, int *fd, muster_error *error);

/* Releases the run; an unfinished one goes on to its end and is freed then. */
MUSTER_API void muster_run_destroy(muster_run *run);

/* -------------------------------------------------------------------------------------------------------- stats -- */

/* What a device has done since the runtime was created or muster_stats_reset. Counters stop at their maximum. */
typedef struct muster_device_stats {
    size_t struct_size;
    uint64_t jobs;     /* jobs completed, shards counted one by one */
    uint64_t launches; /* kernel launches */
    uint64_t bytes_to_device, bytes_to_host, bytes_from_peer, bytes_within_device;
    uint64_t peer_copies;
    uint64_t events_recorded, event_waits;
    uint64_t wakes;                                  /* times the worker was woken from parking */
    uint64_t pool_bytes_in_use, pool_bytes_reserved; /* now */
    uint64_t admissions;                             /* jobs that got the memory they need, or needed none */
    uint64_t admission_waits;    /* of them and of those refused: jobs that waited for memory first */
    uint64_t refusals;           /* jobs that ended as NEVER_FITS, COOPERATIVE_TOO_LARGE or OUT_OF_DEVICE_MEMORY */
    uint64_t evictions;          /* device copies given up to make room for others */
    uint64_t write_backs;        /* of them, copies whose content went to the host first */
    uint64_t bursts;             /* backlogs of launches sent to the device at once */
    uint64_t burst_jobs;         /* launches that went out in them */
    uint64_t branch_bursts;      /* bursts of independent launches, which the device may run side by side */
    uint64_t slow_callbacks;     /* enqueue callbacks that did not return within enqueue_limit_ns */
    uint64_t placements_refused; /* jobs that came here because the placement policy named no candidate */
    uint64_t waves;              /* shards of dispatches that are cut smaller because memory is short */
    uint64_t steals;             /* jobs taken from the queue of another device */
    uint64_t steals_given;       /* jobs given to another device */
    uint64_t steal_requests;     /* times another device was asked for jobs */
} muster_device_stats;

MUSTER_API muster_status muster_device_get_stats(const muster_runtime *runtime, int index, muster_device_stats *stats,
                                                 muster_error *error);

typedef enum muster_stats_format {
    MUSTER_STATS_JSON = 1, /* {"devices": [{"device": 0, "name": "...", "counters": {...}, ...}], "caches": {...}} */
    MUSTER_STATS_PROMETHEUS = 2 /* muster_launches_total{device="0",name="..."} 12, and so on */
} muster_stats_format;

/* Every counter of every device, and those of muster_cache_stats, as text. *needed becomes the size of the text with its
 * terminating NUL. Nothing is written to `buffer` when that is more than `capacity` (which may be 0, and `buffer` NULL then):
 * ask again with more. */
MUSTER_API muster_status muster_stats_text(muster_runtime *runtime, muster_stats_format format, char *buffer,
                                           size_t capacity, size_t *needed, muster_error *error);

/* Sets the counters of all devices to zero; what caches hold, and what they count themselves, stays (but module_hits and
 * module_loads, which are devices' counters). Blocks for the workers. */
MUSTER_API muster_status muster_stats_reset(muster_runtime *runtime, muster_error *error);

#ifdef __cplusplus
}
#endif

#endif
