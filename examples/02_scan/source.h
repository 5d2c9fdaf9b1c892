/* The files as one stream of bytes, each followed by a newline. No pattern holds a newline, so that no match reaches
 * from one file into the next, and the matches in the stream are the matches in the files. */
#ifndef MUSTER_EXAMPLES_SCAN_SOURCE_H
#define MUSTER_EXAMPLES_SCAN_SOURCE_H

#include <stddef.h>
#include <stdint.h>

typedef struct scan_source {
    const char *const *paths; /* "-" is standard input */
    size_t path_count;
    size_t next;     /* path to open next */
    int fd;          /* of the file being read, -1 when none is open */
    size_t failures; /* files that could not be opened or read to their end; each is reported on stderr once */
} scan_source;

void scan_source_open(const char *const *paths, size_t path_count, scan_source *source);

/* Reads the next `bytes` of the stream, fewer only at its end. Blocks while a pipe has nothing to give. A file that
 * cannot be read is reported, counted and passed over. */
size_t scan_source_read(scan_source *source, unsigned char *bytes, size_t count);

void scan_source_close(scan_source *source);

/* The length of the stream as far as the file system knows it; UINT64_MAX when a file is not a regular one. */
uint64_t scan_source_estimate(const char *const *paths, size_t path_count);

#endif
