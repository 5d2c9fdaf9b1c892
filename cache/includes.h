/* What the files are that a CUDA C++ source includes: without them a cache would serve what an older header made.
 *
 * Nothing is preprocessed. Every file that an #include or a __has_include may name is digested, wherever one of that
 * name lies on the search path, and searched in turn: more files than the compiler reads, never fewer. A name that a
 * macro gives is the exception, and is reported.
 *
 * Threading: pure but for reading files; any thread. Blocks as the file system does. */
#ifndef MUSTER_CACHE_INCLUDES_H
#define MUSTER_CACHE_INCLUDES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "muster.h"

/* Where the search goes. Everything is borrowed; the texts' names need no files. */
typedef struct mu_include_search {
    const char *source_name;    /* quoted names are looked for beside it too */
    const char *const *options; /* of the compiler: -I, --include-path=, -include, --pre-include= are understood */
    uint32_t option_count;
    const char *const *header_texts; /* headers in memory: they are searched; digesting them is the caller's */
    uint32_t header_count;
} mu_include_search;

enum { MU_INCLUDES_MAX = 8192 };
#define MU_INCLUDES_BYTES ((uint64_t)256 << 20)

/* Digests path and content of every file found, in the order found. `*complete` is false when there may be others: a
 * macro as a name, an option that names a file of its own, more than MU_INCLUDES_MAX files or MU_INCLUDES_BYTES bytes,
 * a file that cannot be read. Errors: OUT_OF_HOST_MEMORY. */
muster_status mu_includes_digest(const char *text, const mu_include_search *search, mu_digest *digest, bool *complete,
                                 muster_error *error);

#endif
