#include "tests/cache/scratch.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *scratch_make(void) {
    static char path[PATH_MAX];
    const char *base = getenv("TEST_TMPDIR");
    snprintf(path, sizeof path, "%s/cache-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(path)) abort();
    return path;
}

const char *scratch_join(const char *path, const char *name) {
    static char joined[4][PATH_MAX];
    static int turn;
    char *text = joined[turn++ % 4];
    if (snprintf(text, PATH_MAX, "%s/%s", path, name) >= PATH_MAX) abort();
    return text;
}

void scratch_remove(const char *path) {
    DIR *stream = opendir(path);
    if (stream) {
        for (struct dirent *entry; (entry = readdir(stream));) {
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
            char inner[PATH_MAX];
            struct stat status;
            if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= PATH_MAX) abort();
            if (lstat(inner, &status) == 0 && S_ISDIR(status.st_mode))
                scratch_remove(inner);
            else
                unlink(inner);
        }
        closedir(stream);
    }
    rmdir(path);
}

int scratch_count_files(const char *path) {
    int count = 0;
    DIR *stream = opendir(path);
    if (!stream) return 0;
    for (struct dirent *entry; (entry = readdir(stream));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) count++;
    closedir(stream);
    return count;
}

static void write_line(void *user, muster_log_level level, const char *line) {
    (void)level;
    scratch_log *log = user;
    atomic_fetch_add(&log->lines, 1);
    snprintf(log->last, sizeof log->last, "%s", line);
}

void scratch_log_init(scratch_log *log) {
    memset(log, 0, sizeof *log);
    log->log = (mu_log){.write = write_line, .user = log, .level = MUSTER_LOG_WARNING};
}
