/* Writing PTX to a directory on request, to look at it or to send it along with a report: every text, or only those the
 * driver refuses. A file is named by its content (the raw PTX key), so that the same text is written once, and a
 * refused one has the compiler's words beside it in a file with ".log" for ".ptx".
 *
 * A dump that cannot be written is one warning and never fails a job. Threading: any thread; writing blocks as the file
 * system does. Every function takes NULL for no dump. */
#ifndef MUSTER_CACHE_DUMP_H
#define MUSTER_CACHE_DUMP_H

#include <stddef.h>

#include "base/log.h"
#include "cache/identity.h"
#include "muster.h"

typedef struct mu_dump mu_dump;

typedef enum mu_dump_mode { MU_DUMP_NONE = 0, MU_DUMP_FAILING = 1, MU_DUMP_ALL = 2 } mu_dump_mode;

/* The mode that a setting names: "failing", "all", "none" or "". INVALID_CONFIG otherwise. */
muster_status mu_dump_mode_parse(const char *text, mu_dump_mode *mode, muster_error *error);

/* Opens `directory` (borrowed for the call), making it for the owner alone when it is missing; `log` may be NULL and
 * outlives the dump. `*dump` is NULL for MU_DUMP_NONE, and, after a warning, when the directory cannot be opened.
 * Errors: OUT_OF_HOST_MEMORY. */
muster_status mu_dump_open(mu_dump_mode mode, const char *directory, const mu_log *log, mu_dump **dump,
                           muster_error *error);
void mu_dump_close(mu_dump *dump);

/* Dumps a text if the mode asks for it. `failure` is why it was refused, NULL when it was not. */
void mu_dump_ptx(mu_dump *dump, const char *text, size_t bytes, const muster_error *failure);

#endif
