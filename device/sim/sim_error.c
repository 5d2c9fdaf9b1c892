/* Names and texts of the driver's error codes. */
#include <string.h>

#include "device/sim/sim_internal.h"

typedef struct error_text {
    CUresult code;
    const char *name, *text;
} error_text;

#define ERROR(name, text)                                                                                              \
    { CUDA_ERROR_##name, "CUDA_ERROR_" #name, text }
static const error_text errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    ERROR(INVALID_VALUE, "invalid argument"),
    ERROR(OUT_OF_MEMORY, "out of memory"),
    ERROR(NOT_INITIALIZED, "initialization error"),
    ERROR(DEINITIALIZED, "driver shutting down"),
    ERROR(STUB_LIBRARY, "CUDA driver is a stub library"),
    ERROR(DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    ERROR(NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR(INVALID_DEVICE, "invalid device ordinal"),
    ERROR(INVALID_IMAGE, "device kernel image is invalid"),
    ERROR(INVALID_CONTEXT, "invalid device context"),
    ERROR(MAP_FAILED, "mapping of buffer object failed"),
    ERROR(UNMAP_FAILED, "unmapping of buffer object failed"),
    ERROR(NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    ERROR(ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    ERROR(UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    ERROR(PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    ERROR(INVALID_PTX, "a PTX JIT compilation failed"),
    ERROR(NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution"),
    ERROR(JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"),
    ERROR(UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain."),
    ERROR(JIT_COMPILATION_DISABLED, "PTX JIT compilation was disabled"),
    ERROR(INVALID_SOURCE, "device kernel image is invalid"),
    ERROR(FILE_NOT_FOUND, "file not found"),
    ERROR(SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    ERROR(SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
    ERROR(OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    ERROR(INVALID_HANDLE, "invalid resource handle"),
    ERROR(ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ERROR(NOT_FOUND, "named symbol not found"),
    ERROR(NOT_READY, "device not ready"),
    ERROR(ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR(LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    ERROR(LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    ERROR(PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    ERROR(PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    ERROR(PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    ERROR(CONTEXT_IS_DESTROYED, "context is destroyed"),
    ERROR(ASSERT, "device-side assert triggered"),
    ERROR(TOO_MANY_PEERS, "peer mapping resources exhausted"),
    ERROR(HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    ERROR(HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    ERROR(HARDWARE_STACK_ERROR, "hardware stack error"),
    ERROR(ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    ERROR(MISALIGNED_ADDRESS, "misaligned address"),
    ERROR(INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space"),
    ERROR(INVALID_PC, "invalid program counter"),
    ERROR(LAUNCH_FAILED, "unspecified launch failure"),
    ERROR(COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    ERROR(NOT_PERMITTED, "operation not permitted"),
    ERROR(NOT_SUPPORTED, "operation not supported"),
    ERROR(SYSTEM_NOT_READY, "system not yet initialized"),
    ERROR(SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
    ERROR(STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    ERROR(STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    ERROR(STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    ERROR(STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    ERROR(STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    ERROR(STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    ERROR(STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR(TIMEOUT, "wait operation timed out"),
    ERROR(GRAPH_EXEC_UPDATE_FAILURE,
          "the graph update was not performed because it included changes which violated "
          "constraints specific to instantiated graph update"),
    ERROR(INVALID_CLUSTER_SIZE, "cluster misconfiguration"),
    ERROR(UNKNOWN, "unknown error"),
};
#undef ERROR

enum { ERRORS = sizeof errors / sizeof errors[0] };

static const error_text *find_error(CUresult code) {
    for (int i = 0; i < ERRORS; i++)
        if (errors[i].code == code) return &errors[i];
    return NULL;
}

bool sim_error_code(const char *name, CUresult *code) {
    const char *prefix = "CUDA_ERROR_";
    for (int i = 0; i < ERRORS; i++) {
        const char *full = errors[i].name;
        bool shorter = strncmp(full, prefix, strlen(prefix)) == 0 && strcmp(full + strlen(prefix), name) == 0;
        if (!shorter && strcmp(full, name) != 0) continue;
        *code = errors[i].code;
        return true;
    }
    return false;
}

CUresult sim_do_get_error_name(sim_driver *driver, CUresult code, const char **name) {
    (void)driver;
    const error_text *found = find_error(code);
    if (name) *name = found ? found->name : NULL;
    return found && name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_do_get_error_string(sim_driver *driver, CUresult code, const char **text) {
    (void)driver;
    const error_text *found = find_error(code);
    if (text) *text = found ? found->text : NULL;
    return found && text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
