/* Files of a directory that several processes share: written whole or not at all, read whole.
 *
 * Directories are file descriptors, so that what is checked about one stays true of it. Every function returns 0 or an
 * errno value. Threading: any thread. They block as the file system does. */
#ifndef MUSTER_BASE_FILE_H
#define MUSTER_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Opens a directory, made with its missing parents for the owner alone. Close `*fd` with close(). */
int mu_directory_open(const char *path, int *fd);

/* What a temporary file's name starts with: one that a dead process left may be removed. */
#define MU_TEMPORARY_PREFIX ".tmp-"

/* Writes the parts, one after the other, to a temporary file and renames it to `name`, replacing what is there: a
 * reader sees the old content or the new. On failure nothing is left behind. It is not forced to the disk: after a
 * power cut the content may be damaged, which whoever reads it must be able to tell. */
int mu_file_write(int directory, const char *name, const struct iovec *parts, int count);

/* Reads a regular file, not through a symbolic link, of at most `max_bytes` (EFBIG beyond). `*data` is freed with
 * mu_free; a NUL follows the content. `*fd`, when not NULL, is the file, open for reading, for the caller to close. */
int mu_file_read(int directory, const char *name, uint64_t max_bytes, void **data, size_t *bytes, int *fd);

#endif
