/* Getting compiled code, by the cheapest way there is: from memory, else from disk, else by making it, once per key in
 * this process however many threads and devices ask.
 *
 * Two kinds of code go this way: PTX that a lowering or a compiler writes (mu_compile_ptx), and the native code of a
 * PTX text for one architecture and driver (mu_compile_cubin), so that a second device or process of the same kind
 * compiles nothing. Making a cubin stalls no device; loading it does. */
#ifndef MUSTER_CACHE_COMPILE_H
#define MUSTER_CACHE_COMPILE_H

#include <stdatomic.h>

#include "cache/disk_cache.h"
#include "cache/dump.h"
#include "cache/identity.h"
#include "cache/ptx_cache.h"
#include "device/device.h"
#include "muster.h"

/* The caches of a runtime. */
typedef struct mu_compile_caches {
    mu_ptx_cache *ptx;
    mu_ptx_cache *cubins; /* of the same kind: texts and images are both bytes by key */
    mu_disk_cache *disk;  /* NULL: none */
    mu_dump *dump;        /* NULL: none */
    /* What was made, not found. Relaxed: they only count. */
    atomic_uint_fast64_t lowerings, compiles;
} mu_compile_caches;

typedef struct mu_compile_options {
    mu_ptx_cache_options memory; /* of each of the two */
    mu_disk_cache_options disk;  /* its log is replaced by the one below */
    const char *dump;            /* "none", "failing" or "all"; NULL: as MUSTER_DUMP_PTX says */
    const char *dump_directory;  /* NULL: MUSTER_DUMP_DIR, else "muster-ptx" in the working directory */
    const mu_log *log;           /* may be NULL; outlives the caches */
} mu_compile_options;

/* Opens all of them; NULL is all defaults. A directory that cannot be used is a warning in the log, no failure.
 * Errors: OUT_OF_HOST_MEMORY; INVALID_CONFIG when `dump` or MUSTER_DUMP_PTX is none of the three. */
muster_status mu_compile_caches_open(const mu_compile_options *options, mu_compile_caches *caches, muster_error *error);
/* Nobody uses them any more. Zeroed caches are ignored. */
void mu_compile_caches_close(mu_compile_caches *caches);

/* The PTX of `key`; `lower` as in mu_ptx_cache_get, and so are `reader`, the loan, the waiting and the errors. A text
 * is kept on disk only when `persistent`: a lowering whose output depends on more than its key says must not be. Any
 * thread. Blocks. */
muster_status mu_compile_ptx(mu_compile_caches *caches, mu_ptx_reader *reader, const mu_key *key, bool persistent,
                             mu_ptx_lower_fn lower, void *user, mu_ptx_text *text, muster_error *error);

/* The cubin of a PTX text for `device`; `raw` is the text's raw key. `reader` is one of caches->cubins, or NULL. What
 * the simulator makes is kept apart from what the driver makes. Any thread. Blocks for as long as compiling takes.
 * Errors: PROGRAM_INVALID with the compiler's log. */
muster_status mu_compile_cubin(mu_compile_caches *caches, mu_ptx_reader *reader, mu_device *device, const mu_key *raw,
                               const char *ptx, size_t bytes, const char *name, mu_ptx_text *cubin,
                               muster_error *error);

/* The key of that cubin: what the module caches know such code by. */
mu_key mu_device_cubin_key(const mu_device *device, const mu_key *raw);

#endif
