/* Loaded code: images (CUmodule), kernels (CUfunction), launches of them, and linking. */
#ifndef MUSTER_DEVICE_SIM_SIM_CODE_H
#define MUSTER_DEVICE_SIM_SIM_CODE_H

#include "device/sim/sim_heap.h"
#include "device/sim/sim_queue.h"

typedef struct sim_image sim_image;

typedef struct sim_kernel {
    sim_object object;
    sim_image *image;
    const sim_function *function;
    const sim_function_info *info;
    int max_threads;          /* per block: by bounds and registers */
    atomic_int dynamic_limit; /* bytes; raised by func_set_attribute. Relaxed: set before it is relied on */
    atomic_int carveout, cache_mode, non_portable_clusters;
} sim_kernel;

struct sim_image {
    sim_object object;
    sim_context *context;
    sim_module *module;
    sim_instance *instance;
    sim_kernel *kernels; /* in the module's order */
    size_t kernel_count;
    sim_block **variables; /* in the module's order */
    size_t variable_count;
    uint64_t charged_bytes; /* for the code; variables are charged as allocations */
};

void sim_image_free(sim_image *image); /* nothing of it may be running */

typedef struct sim_link sim_link;
void sim_link_free(sim_link *link);

/* The image that cuLinkComplete makes and module_load_data_ex takes: this header, then PTX text and a NUL. It is the
 * simulator's own and is refused on any other architecture, as a cubin is. */
typedef struct sim_cubin {
    char magic[16];
    uint32_t target_sm;
    uint32_t reserved;
    uint64_t text_bytes; /* without the NUL */
    char text[];
} sim_cubin;
#define SIM_CUBIN_MAGIC "\x7fMUSTER-SIM-BIN"

/* Options of module_load_data_ex and the linker. */
typedef struct sim_jit_options {
    char *info_log, *error_log;
    size_t info_bytes, error_bytes;
    void **info_bytes_out, **error_bytes_out; /* where the lengths are reported */
    int target_sm;                            /* 0: from the context */
} sim_jit_options;
CUresult sim_jit_options_read(unsigned count, const CUjit_option *names, void **values, sim_jit_options *options);
/* Copies the log out and reports its length. */
void sim_jit_log(const sim_jit_options *options, const char *log);

/* ------------------------------------------------------------------------------------------------------ launches -- */

/* One launch, its parameters copied. Shared by operations, graph nodes and executable graphs; immutable while shared. */
typedef struct sim_work {
    atomic_uint references; /* release on decrement pairs with acquire on the last one */
    sim_kernel *kernel;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t shared_bytes;
    bool cooperative;
    _Alignas(16) unsigned char parameters[];
} sim_work;

typedef struct sim_shape {
    uint32_t grid[3], block[3], cluster[3];
    uint32_t shared_bytes;
    bool cooperative;
} sim_shape;

/* CUDA_SUCCESS, or what the driver returns for such a launch. */
CUresult sim_shape_check(const sim_kernel *kernel, const sim_shape *shape);
/* Copies the parameters; INVALID_VALUE when there are none to copy. */
CUresult sim_work_create(sim_kernel *kernel, const sim_shape *shape, void **parameters, void **extra, sim_work **work);
/* Replaces *work (which may be NULL) by such work, in place when nobody else holds it. Untouched on failure. */
CUresult sim_work_renew(sim_kernel *kernel, const sim_shape *shape, void **parameters, void **extra, sim_work **work);
void sim_work_retain(sim_work *work);
void sim_work_drop(sim_work *work); /* NULL is ignored */
/* Executes it on the calling thread. Reports a fault itself. Adds the modelled time. */
CUresult sim_work_run(const sim_work *work, uint64_t *cost_ns);

/* Blocks of the kernel that fit a multiprocessor at once. */
int sim_occupancy(const sim_kernel *kernel, uint32_t threads, uint64_t dynamic_shared_bytes);

#endif
