/* Reporting failures: the function that first decides an error is the one that reports it; callers pass the status on. */
#ifndef MUSTER_BASE_ERROR_H
#define MUSTER_BASE_ERROR_H

#include <stdarg.h>

#include "muster.h"

/* Fills `error` (when not NULL) and returns `status`, so that a failure is one statement:
 *     return mu_fail(error, MUSTER_OUT_OF_RANGE, "offset %zu + %zu bytes exceeds ...; shorten the range", ...);
 * The message is one line: what, with which numbers, and what to do. */
muster_status mu_fail(muster_error *error, muster_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
muster_status mu_fail_v(muster_error *error, muster_status status, const char *format, va_list arguments)
    __attribute__((format(printf, 3, 0)));

/* Out of host memory while making `what` of `bytes` bytes. */
muster_status mu_fail_host_memory(muster_error *error, const char *what, size_t bytes);

/* Copies a stored error out; either may be NULL. Returns the stored status. */
muster_status mu_error_copy(muster_error *to, const muster_error *from);

#endif
