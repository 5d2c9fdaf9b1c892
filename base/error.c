#include "base/error.h"

#include <stdio.h>

muster_status mu_fail_v(muster_error *error, muster_status status, const char *format, va_list arguments) {
    if (!error) return status;
    error->status = status;
    error->driver_code = 0;
    error->device = MUSTER_ANY_DEVICE;
    error->job = MUSTER_NO_JOB;
    vsnprintf(error->message, sizeof error->message, format, arguments);
    return status;
}

muster_status mu_fail(muster_error *error, muster_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    mu_fail_v(error, status, format, arguments);
    va_end(arguments);
    return status;
}

muster_status mu_fail_host_memory(muster_error *error, const char *what, size_t bytes) {
    return mu_fail(error, MUSTER_OUT_OF_HOST_MEMORY,
                   "no host memory for %s (%zu bytes); free memory in the application or build smaller graphs", what,
                   bytes);
}

muster_status mu_error_copy(muster_error *to, const muster_error *from) {
    if (!from) return MUSTER_OK;
    if (to && to != from) *to = *from;
    return from->status;
}
