#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

int mu_directory_open(const char *path, int *fd) {
    char prefix[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0) return ENOENT;
    if (length >= sizeof prefix) return ENAMETOOLONG;
    memcpy(prefix, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (prefix[i] != '/' && prefix[i] != '\0') continue;
        prefix[i] = '\0';
        /* Whatever keeps it from being made, opening it tells whether that matters. */
        if (mkdir(prefix, 0700) != 0 && errno == ENOSPC) return ENOSPC;
        if (i < length) prefix[i] = '/';
    }
    int opened = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0) return errno;
    *fd = opened;
    return 0;
}

static int write_parts(int fd, const struct iovec *parts, int count) {
    for (int i = 0; i < count; i++) {
        const char *from = parts[i].iov_base;
        for (size_t left = parts[i].iov_len; left > 0;) {
            ssize_t written = write(fd, from, left);
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) return errno;
            from += written;
            left -= (size_t)written;
        }
    }
    return 0;
}

/* Unique among the threads of this process, and, with O_EXCL behind it, among processes too. */
static int create_temporary(int directory, char name[64]) {
    static atomic_uint serial;
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(name, 64, MU_TEMPORARY_PREFIX "%ld-%u-%" PRIx64, (long)getpid(),
                 atomic_fetch_add_explicit(&serial, 1, memory_order_relaxed), mu_now_ns());
        int fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

int mu_file_write(int directory, const char *name, const struct iovec *parts, int count) {
    char temporary[64];
    int fd = create_temporary(directory, temporary);
    if (fd < 0) return errno;
    int failure = write_parts(fd, parts, count);
    if (close(fd) != 0 && !failure) failure = errno; /* some file systems report a full disk only here */
    if (!failure && renameat(directory, temporary, directory, name) != 0) failure = errno;
    if (failure) unlinkat(directory, temporary, 0);
    return failure;
}

static int read_content(int fd, uint64_t max_bytes, void **data, size_t *bytes) {
    struct stat status;
    if (fstat(fd, &status) != 0) return errno;
    if (!S_ISREG(status.st_mode)) return ENOENT;
    if ((uint64_t)status.st_size > max_bytes || (uint64_t)status.st_size >= SIZE_MAX) return EFBIG;
    size_t size = (size_t)status.st_size, used = 0;
    char *content = mu_alloc(size + 1);
    if (!content) return ENOMEM;
    while (used < size) {
        ssize_t got = read(fd, content + used, size - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            int failure = errno;
            mu_free(content);
            return failure;
        }
        if (got == 0) break; /* it was cut while we read: the caller finds less than it expects */
        used += (size_t)got;
    }
    content[used] = '\0';
    *data = content;
    *bytes = used;
    return 0;
}

int mu_file_read(int directory, const char *name, uint64_t max_bytes, void **data, size_t *bytes, int *fd) {
    /* O_NONBLOCK: a FIFO of that name must not hold us up. */
    int opened = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (opened < 0) return errno;
    int failure = read_content(opened, max_bytes, data, bytes);
    if (!failure && fd)
        *fd = opened;
    else
        close(opened);
    return failure;
}
