#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void mu_log_line(const mu_log *log, muster_log_level level, const char *format, ...) {
    if (!log || !log->write || level > log->level) return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log->write(log->user, level, line);
}
