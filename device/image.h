/* What a piece of device code is, judged by its first bytes, before a driver that takes no length reads it. */
#ifndef MUSTER_DEVICE_IMAGE_H
#define MUSTER_DEVICE_IMAGE_H

#include <stddef.h>

#include "muster.h"

typedef enum mu_image_kind {
    MU_IMAGE_PTX = 1,   /* text; may end in NUL bytes */
    MU_IMAGE_CUBIN = 2, /* an ELF image */
    MU_IMAGE_FATBIN = 3,
    MU_IMAGE_SIMULATED = 4 /* what the simulator's linker makes */
} mu_image_kind;

/* Classifies `image` and checks that every part which the headers of a binary name lies within `bytes`, for the
 * driver trusts them. PROGRAM_INVALID says what is wrong: empty, cut short, a NUL inside text, of unknown format.
 * Pure; any thread. */
muster_status mu_image_classify(const void *image, size_t bytes, const char *name, mu_image_kind *kind,
                                muster_error *error);

#endif
