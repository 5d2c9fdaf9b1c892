/* A directory for one test, and a log that counts. */
#ifndef MUSTER_TESTS_CACHE_SCRATCH_H
#define MUSTER_TESTS_CACHE_SCRATCH_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/log.h"

/* Makes a fresh directory below TEST_TMPDIR or /tmp; the path is static storage until the next call. */
const char *scratch_make(void);
/* Removes a tree of files and directories. */
void scratch_remove(const char *path);
/* "path/name" in static storage, four of them in turn. */
const char *scratch_join(const char *path, const char *name);
int scratch_count_files(const char *path);

typedef struct scratch_log {
    mu_log log;
    atomic_int lines;
    char last[1024]; /* the most recent one; tests that read it log from one thread */
} scratch_log;

void scratch_log_init(scratch_log *log);

#endif
