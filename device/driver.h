/* The driver table: the one place that knows the CUDA Driver API.
 *
 * A runtime runs on one table: the real driver (mu_cuda_driver_open, libcuda opened at run time, never linked) or a
 * simulated one (mu_sim_driver_create, device/sim/sim.h). Nobody outside device/ includes this header; the layers above
 * use device/device.h, which is free of CUDA types.
 *
 * Threading: the table is immutable once opened. Its entries may be called from any thread, as the Driver API itself.
 * Ownership: opening returns one reference; mu_driver_retain and mu_driver_release share it. */
#ifndef MUSTER_DEVICE_DRIVER_H
#define MUSTER_DEVICE_DRIVER_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "device/driver_entries.h"
#include "muster.h"

typedef enum mu_driver_kind { MU_DRIVER_CUDA = 1, MU_DRIVER_SIM = 2 } mu_driver_kind;

typedef struct mu_driver mu_driver;

struct mu_driver {
#define MU_DRIVER_MEMBER(member, symbol, parameters) CUresult(CUDAAPI *member) parameters;
    MU_DRIVER_ENTRIES(MU_DRIVER_MEMBER, MU_DRIVER_MEMBER)
#undef MU_DRIVER_MEMBER
    mu_driver_kind kind;
    int version;                  /* as cuDriverGetVersion reports it, e.g. 13000 */
    const char *name;             /* "cuda" or "sim", static storage */
    void (*destroy)(mu_driver *); /* called by the last release */
    /* What the kernels before the event's last record, which is complete, took on its stream so far, in nanoseconds of a model of the
     * device. NULL: what they take can only be measured. */
    uint64_t (*event_kernel_ns)(mu_driver *, CUevent);
    void *instance;         /* the implementation's own state */
    atomic_uint references; /* shared by runtimes; release on decrement pairs with acquire on the last one */
};

/* Opens libcuda.so.1 (or MUSTER_LIBCUDA when set, but not in a program with raised privileges) and initialises it. Blocks for as long as cuInit does.
 * Errors: MUSTER_NO_DRIVER when the library cannot be opened or cuInit finds no device driver, MUSTER_DRIVER_TOO_OLD
 * with the first missing symbol and the version found, MUSTER_DRIVER_ERROR otherwise. `*out` is written only on
 * success. The library stays open until the process ends: unloading libcuda is not supported by the driver. */
muster_status mu_cuda_driver_open(mu_driver **out, muster_error *error);

mu_driver *mu_driver_retain(mu_driver *driver);
void mu_driver_release(mu_driver *driver); /* NULL is ignored */

/* The driver's own name of a code ("CUDA_ERROR_OUT_OF_MEMORY"), or "CUDA_ERROR_<number>". Static storage. */
const char *mu_driver_error_name(const mu_driver *driver, CUresult code);

/* Turns a driver code into the status of its recovery group. MUSTER_OK for CUDA_SUCCESS. */
muster_status mu_driver_status(CUresult code);

/* Reports a failed call: `what` names the call and its numbers; the driver's code and name are appended and stored in
 * error->driver_code. Returns mu_driver_status(code). */
muster_status mu_driver_fail(const mu_driver *driver, CUresult code, muster_error *error, const char *what, ...)
    __attribute__((format(printf, 4, 5)));

#endif
