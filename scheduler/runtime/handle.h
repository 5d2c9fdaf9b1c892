/* What every public handle starts with: its type, its runtime, its place among the runtime's handles, its references. */
#ifndef MUSTER_SCHEDULER_RUNTIME_HANDLE_H
#define MUSTER_SCHEDULER_RUNTIME_HANDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "muster.h"

typedef enum mu_tag {
    MU_TAG_DEAD = 0x64656164,
    MU_TAG_RUNTIME = 0x6d75726e,
    MU_TAG_PROGRAM = 0x6d757072,
    MU_TAG_KERNEL = 0x6d756b65,
    MU_TAG_BUFFER = 0x6d756275,
    MU_TAG_GRAPH = 0x6d756772,
    MU_TAG_RUN = 0x6d757275
} mu_tag;

typedef struct mu_handle {
    mu_tag tag;
    /* Holders: the application's handle counts one, and so does everything inside that needs the object. The thread that
     * drops the last one destroys it: release on every decrement pairs with acquire on the last. */
    atomic_uint references;
    bool released; /* the application destroyed its handle; under the runtime's handle lock */
    muster_runtime *runtime;
    struct mu_handle *previous, *next; /* the runtime's list of live handles */
} mu_handle;

/* Registers a new object with one reference, the application's. */
void mu_handle_init(mu_handle *handle, mu_tag tag, muster_runtime *runtime);
void mu_handle_retain(mu_handle *handle);
/* For who holds no reference but knows that the object has not been freed yet: false when the last reference is gone. */
bool mu_handle_try_retain(mu_handle *handle);
/* True when that was the last reference: the caller destroys the object after mu_handle_finish. */
bool mu_handle_release(mu_handle *handle);
void mu_handle_finish(mu_handle *handle);

/* Checks an argument: INVALID_ARGUMENT for NULL, INVALID_HANDLE for another type, WRONG_RUNTIME when `runtime` is given and
 * the handle belongs to another. `name` is the parameter's. */
muster_status mu_handle_check(const void *object, mu_tag tag, const muster_runtime *runtime, const char *name,
                              muster_error *error);

#endif
