/* NVRTC, the compiler of CUDA C++ in a library: opened at run time, never linked, and never closed again.
 *
 * Threading: any thread. Opening takes a lock of the process; compiling takes none of ours and blocks for 10 ms to
 * seconds. */
#ifndef MUSTER_CACHE_NVRTC_H
#define MUSTER_CACHE_NVRTC_H

#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "muster.h"

typedef struct mu_nvrtc mu_nvrtc;

/* The library that MUSTER_LIBNVRTC names, else the system's, else that of /usr/local/cuda. It stays open and valid.
 * UNSUPPORTED, with what to do, when there is none or it is not NVRTC; a later call tries again. */
muster_status mu_nvrtc_open(const mu_nvrtc **nvrtc, muster_error *error);

void mu_nvrtc_version(const mu_nvrtc *nvrtc, int *major, int *minor);

/* The newest architecture it compiles for that is not above `target_sm`. UNSUPPORTED when there is none. */
muster_status mu_nvrtc_choose_sm(const mu_nvrtc *nvrtc, int target_sm, int *sm, muster_error *error);

typedef struct mu_nvrtc_source {
    const char *text; /* NUL-terminated */
    const char *name;
    const char *const *options; /* all of them but the architecture */
    uint32_t option_count;
    const char *const *header_names, *const *header_texts;
    uint32_t header_count;
} mu_nvrtc_source;

/* Compiles to PTX for `sm`. `*ptx` is the caller's, freed with mu_free, and NUL-terminated. The compiler's log goes to
 * `log`, line by line, at level info. PROGRAM_INVALID carries its first error. */
muster_status mu_nvrtc_compile(const mu_nvrtc *nvrtc, const mu_nvrtc_source *source, int sm, const mu_log *log,
                               char **ptx, size_t *bytes, muster_error *error);

#endif
