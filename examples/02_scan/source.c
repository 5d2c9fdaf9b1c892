#include "examples/02_scan/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void scan_source_open(const char *const *paths, size_t path_count, scan_source *source) {
    *source = (scan_source){.paths = paths, .path_count = path_count, .fd = -1};
}

static int is_standard_input(const char *path) { return strcmp(path, "-") == 0; }

static void report(scan_source *source, const char *path) {
    fprintf(stderr, "scan: %s: %s\n", path, strerror(errno));
    source->failures++;
}

static void close_file(scan_source *source) {
    if (source->fd > STDIN_FILENO) close(source->fd);
    source->fd = -1;
}

/* Reads once from the current file, or opens the next. The bytes read; 0 when it must be called again. */
static size_t read_some(scan_source *source, unsigned char *bytes, size_t count) {
    if (source->fd < 0) {
        const char *path = source->paths[source->next++];
        source->fd = is_standard_input(path) ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
        if (source->fd < 0) report(source, path);
        return 0;
    }
    ssize_t got = read(source->fd, bytes, count);
    if (got > 0) return (size_t)got;
    if (got < 0 && errno == EINTR) return 0;
    if (got < 0) report(source, source->paths[source->next - 1]);
    close_file(source);
    bytes[0] = '\n';
    return 1;
}

size_t scan_source_read(scan_source *source, unsigned char *bytes, size_t count) {
    size_t have = 0;
    while (have < count && (source->fd >= 0 || source->next < source->path_count))
        have += read_some(source, bytes + have, count - have);
    return have;
}

void scan_source_close(scan_source *source) { close_file(source); }

uint64_t scan_source_estimate(const char *const *paths, size_t path_count) {
    uint64_t total = 0;
    for (size_t i = 0; i < path_count; i++) {
        struct stat about;
        if (is_standard_input(paths[i])) return UINT64_MAX;
        if (stat(paths[i], &about) != 0) continue; /* reported when it is opened */
        if (!S_ISREG(about.st_mode)) return UINT64_MAX;
        total += (uint64_t)about.st_size + 1;
    }
    return total;
}
