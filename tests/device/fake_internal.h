/* What the parts of the fake driver share: fake_driver.c (devices, contexts, streams, events), fake_memory.c and fake_program.c. */
#ifndef MUSTER_TESTS_DEVICE_FAKE_INTERNAL_H
#define MUSTER_TESTS_DEVICE_FAKE_INTERNAL_H

#include <pthread.h>

#include "tests/device/fake_driver.h"

/* Everything a handle may be. */
typedef struct fake_object {
    struct fake_object *next; /* of all that were made */
    bool gone;
    int device;
    char text[4096];
    size_t bytes;
} fake_object;

/* Copy threads call too: contexts and pinned memory. What they may touch is under this. */
extern pthread_mutex_t fake_lock;

/* Counts the call; what it is told to fail with. */
CUresult fake_enter(enum fake_entry entry);
#define ENTER(member)                                                                                                  \
    do {                                                                                                               \
        CUresult early = fake_enter(FAKE_##member);                                                                    \
        if (early != CUDA_SUCCESS) return early;                                                                       \
    } while (0)
#define NEEDS_CONTEXT()                                                                                                \
    do {                                                                                                               \
        if (fake_current_depth() == 0 || fake_current() == fake_foreign_context()) return CUDA_ERROR_INVALID_CONTEXT;  \
    } while (0)

/* Objects are kept until the fake ends, so that a handle given back twice is seen and one that a lost device kept is no leak. */
void *fake_make(int device);
void fake_unmake(void *object);
int fake_current_device(void); /* of the current context; -1 when none is */

/* Each part's entries of the table, and what memory is left at the end. */
void fake_memory_fill(mu_driver *table);
void fake_memory_end(void);
void fake_program_fill(mu_driver *table);

#endif
