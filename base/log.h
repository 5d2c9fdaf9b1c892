/* Logging: one line to the application's callback, or nowhere. Muster prints nothing by itself. */
#ifndef MUSTER_BASE_LOG_H
#define MUSTER_BASE_LOG_H

#include "muster.h"

typedef struct mu_log {
    muster_log_fn write; /* NULL: silent */
    void *user;
    muster_log_level level; /* lines above it are dropped */
} mu_log;

/* `log` may be NULL. Lines longer than 1023 bytes are cut. */
void mu_log_line(const mu_log *log, muster_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
