/* What programs are made of: native code for each kind of device among a runtime's, by way of the compile caches. */
#ifndef MUSTER_SCHEDULER_PROGRAM_SOURCE_H
#define MUSTER_SCHEDULER_PROGRAM_SOURCE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cache/compile.h"
#include "muster.h"

/* Code that is ready to load on the devices of one kind. */
typedef struct mu_code {
    mu_key key;        /* of the module */
    mu_key identity;   /* of what it was compiled from, whatever compiled it, or of the image */
    const void *image; /* what is loaded: of `text`, or of `copy` */
    size_t bytes;
    mu_ptx_text text; /* on loan from the cache, or zeroed */
    void *copy;       /* owned, or NULL */
    /* It may have module-scope variables: two programs must not share the module. */
    bool has_variables;
    /* Devices that have not loaded it yet; the last one that does drops the image. acq_rel: it is done with by then. */
    atomic_uint loads_left;
} mu_code;

/* Gives the image back. Nobody loads from it any more, or again. */
void mu_code_drop_image(mu_code *code);

/* Makes the code of a program for `device`, which stands for all of its kind. The calling thread's own work: `user`
 * needs no lock. `*code` is zeroed before, and zeroed again on failure. `name` is the program's. */
typedef muster_status (*mu_make_code_fn)(void *user, muster_runtime *runtime, mu_device *device, const char *name,
                                         mu_code *code, muster_error *error);

/* scheduler/program/program.c: makes a program whose code comes from `make`, once for each kind of device, and loads it on
 * every device that is idle; `name` may be NULL. Blocks. */
muster_status mu_program_make(muster_runtime *runtime, const char *name, mu_make_code_fn make, void *user,
                              muster_program **program, muster_error *error);

/* Checks that every function which makes a program starts with; `source` is its text or descriptor. */
muster_status mu_program_check_make(muster_runtime *runtime, const void *source, const char *source_name,
                                    muster_program **program, muster_error *error);

/* Whether PTX text may declare module-scope variables: true when in doubt. */
bool mu_ptx_has_variables(const char *ptx, size_t bytes);

/* The code of a PTX text for the device, compiled when no cache has it. */
muster_status mu_code_from_ptx(muster_runtime *runtime, mu_device *device, const char *name, const char *ptx,
                               size_t bytes, mu_code *code, muster_error *error);

/* Writes the PTX that `fields` identify, as mu_ptx_lower_fn does. */
typedef muster_status (*mu_write_ptx_fn)(void *user, char **text, size_t *bytes, muster_error *error);

/* The same for PTX that is written by `write` when no cache has it. What does not compile is not kept, so that a writer
 * that was wrong once is asked again. `persistent`: it may be kept on disk. */
muster_status mu_code_from_writer(muster_runtime *runtime, mu_device *device, const char *name,
                                  const mu_ptx_fields *fields, bool persistent, mu_write_ptx_fn write, void *user,
                                  mu_code *code, muster_error *error);

#endif
