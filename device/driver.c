/* What every driver table shares: references, names of codes, and the mapping of codes to statuses. */
#include "device/driver.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

mu_driver *mu_driver_retain(mu_driver *driver) {
    /* Relaxed: whoever retains holds a reference already, so the table cannot vanish meanwhile. */
    atomic_fetch_add_explicit(&driver->references, 1, memory_order_relaxed);
    return driver;
}

void mu_driver_release(mu_driver *driver) {
    /* Release pairs with the acquire fence of the last holder: every use of the table happens before its end. */
    if (!driver || atomic_fetch_sub_explicit(&driver->references, 1, memory_order_acq_rel) != 1) return;
    driver->destroy(driver);
}

const char *mu_driver_error_name(const mu_driver *driver, CUresult code) {
    static _Thread_local char unknown[32];
    const char *name = NULL;
    if (driver && driver->get_error_name && driver->get_error_name(code, &name) == CUDA_SUCCESS && name) return name;
    snprintf(unknown, sizeof unknown, "CUDA_ERROR_%d", (int)code);
    return unknown;
}

/* Codes newer than the oldest <cuda.h> that Muster compiles with. */
enum {
    CODE_DEVICE_UNAVAILABLE = 46,
    CODE_UNSUPPORTED_PTX_VERSION = 222,
    CODE_JIT_COMPILATION_DISABLED = 223,
    CODE_UNSUPPORTED_EXEC_AFFINITY = 224,
    CODE_UNSUPPORTED_DEVSIDE_SYNC = 225,
    CODE_CONTAINED = 226,
    CODE_MPS_FIRST = 805,
    CODE_MPS_LAST = 811,
    CODE_TENSOR_MEMORY_LEAK = 721,
    CODE_EXTERNAL_DEVICE = 911,
};

/* After one of these, the context answers every call with it, and so does (sooner or later) each other context of the
 * process. */
static bool is_fault(int code) {
    switch (code) {
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CODE_TENSOR_MEMORY_LEAK: return true;
        default: return false;
    }
}

/* After one of these, this device answers no more; the others may go on. */
static bool is_loss(int code) {
    switch (code) {
        case CUDA_ERROR_DEINITIALIZED:
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_NVLINK_UNCORRECTABLE:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CODE_DEVICE_UNAVAILABLE:
        case CODE_CONTAINED:
        case CODE_EXTERNAL_DEVICE: return true;
        default: return code >= CODE_MPS_FIRST && code <= CODE_MPS_LAST;
    }
}

muster_status mu_driver_status(CUresult result) {
    int code = (int)result;
    if (is_fault(code)) return MUSTER_KERNEL_FAULT;
    if (is_loss(code)) return MUSTER_DEVICE_LOST;
    switch (code) {
        case CUDA_SUCCESS: return MUSTER_OK;
        case CUDA_ERROR_OUT_OF_MEMORY: return MUSTER_OUT_OF_DEVICE_MEMORY;
        case CUDA_ERROR_NO_DEVICE:
        case CUDA_ERROR_DEVICE_NOT_LICENSED: return MUSTER_NO_DEVICE;
        case CUDA_ERROR_STUB_LIBRARY:
        case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: return MUSTER_NO_DRIVER;
        case CUDA_ERROR_INVALID_IMAGE:
        case CUDA_ERROR_INVALID_SOURCE:
        case CUDA_ERROR_NO_BINARY_FOR_GPU:
        case CUDA_ERROR_INVALID_PTX:
        case CODE_UNSUPPORTED_PTX_VERSION:
        case CODE_UNSUPPORTED_DEVSIDE_SYNC: return MUSTER_PROGRAM_INVALID;
        case CUDA_ERROR_NOT_FOUND: return MUSTER_ENTRY_NOT_FOUND;
        case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: return MUSTER_LAUNCH_FAILED;
        case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: return MUSTER_COOPERATIVE_TOO_LARGE;
        case CUDA_ERROR_NOT_SUPPORTED:
        case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
        case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
        case CODE_JIT_COMPILATION_DISABLED:
        case CODE_UNSUPPORTED_EXEC_AFFINITY: return MUSTER_UNSUPPORTED;
        default: return MUSTER_DRIVER_ERROR;
    }
}

static const char *advice(muster_status status) {
    switch (status) {
        case MUSTER_KERNEL_FAULT:
            return "; no device of this process can be used any more: restart it, with MUSTER_SERIAL=1 to have the "
                   "kernel named";
        case MUSTER_DEVICE_LOST: return "; the device is left alone from now on";
        default: return "";
    }
}

muster_status mu_driver_fail(const mu_driver *driver, CUresult code, muster_error *error, const char *what, ...) {
    muster_status status = mu_driver_status(code);
    if (!error) return status;
    char text[sizeof error->message];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(text, sizeof text, what, arguments);
    va_end(arguments);
    mu_fail(error, status, "%.380s: %s (%d)%s", text, mu_driver_error_name(driver, code), (int)code, advice(status));
    error->driver_code = (int)code;
    return status;
}
