/* What a program is, as keys: the caches compare nothing else.
 *
 * Three kinds of key, each in a domain of its own so that none can be taken for another:
 *   program identity   what the application gave: PTX text, an image, CUDA C++ with its options, what a lowering reads
 *   PTX key            program identity + everything that changes the PTX made of it; no device ordinal, so that all
 *                      devices of a kind share one compile
 *   raw PTX key        a text that is ready to load: the key of the module and cubin caches
 *
 * Threading: pure functions, any thread. Nothing blocks, allocates or fails. */
#ifndef MUSTER_CACHE_IDENTITY_H
#define MUSTER_CACHE_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"

typedef mu_digest mu_key;

static inline bool mu_key_equal(const mu_key *a, const mu_key *b) { return mu_digest_equal(a, b); }

typedef enum mu_source_kind {
    MU_SOURCE_PTX = 1,     /* PTX text */
    MU_SOURCE_IMAGE = 2,   /* a cubin or fatbin */
    MU_SOURCE_CUDA = 3,    /* CUDA C++ */
    MU_SOURCE_LOWERING = 4 /* content is whatever bytes the lowering callback is a function of */
} mu_source_kind;

/* A program's source. Everything is borrowed. Zero-initialise it and set what applies. */
typedef struct mu_source {
    mu_source_kind kind;
    const void *content;
    size_t bytes;
    const char *const *options; /* compiler options, in order */
    uint32_t option_count;
    uint32_t required_features; /* MU_FEATURE_* (device/capability.h) that the program asks for */
} mu_source;

mu_key mu_source_identity(const mu_source *source);

/* Whether two sources are the same in every field; contents are compared byte by byte unless they are one object. */
bool mu_source_equal(const mu_source *a, const mu_source *b);

/* The identity to key a lowered program from. `given_identity` is that of `given`, computed once per program; `result`
 * is what the lowering returned as its canonical source. "Unchanged" is believed only when every field agrees: then no
 * digest is computed; else the identity is that of the result. */
mu_key mu_identity_after_lowering(const mu_source *given, const mu_key *given_identity, const mu_source *result,
                                  bool reported_unchanged);

/* Everything the PTX made of a program depends on. */
typedef struct mu_ptx_fields {
    mu_key identity;
    const void *policy; /* the dispatch policy, as the lowering reads it: opaque bytes */
    size_t policy_bytes;
    uint32_t target_sm; /* e.g. 90 */
    uint32_t warp_size;
    uint32_t features; /* MU_FEATURE_* */
} mu_ptx_fields;

mu_key mu_ptx_key(const mu_ptx_fields *fields);

/* The key of a text or image that is loaded as it is. */
mu_key mu_raw_ptx_key(const void *text, size_t bytes);

/* The key of native code compiled from it: `raw` for one architecture by one driver version, with options as given to
 * the compiler (NULL: none). */
mu_key mu_cubin_key(const mu_key *raw, uint32_t target_sm, int driver_version, const char *options);

#endif
