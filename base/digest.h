/* 256-bit digests (BLAKE2b) over a domain and a sequence of fields.
 *
 * Every field is hashed behind its length, and the domain is the first field, so that two sequences that differ in any
 * way, also only in where one field ends, have different digests, and digests of two domains never meet.
 *
 * Threading: a state belongs to one thread at a time; nothing is shared. Nothing blocks, allocates or fails. */
#ifndef MUSTER_BASE_DIGEST_H
#define MUSTER_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MU_DIGEST_BYTES = 32, MU_DIGEST_HEX_BYTES = 65 };

typedef struct mu_digest {
    unsigned char bytes[MU_DIGEST_BYTES];
} mu_digest;

typedef struct mu_digest_state {
    _Alignas(16) unsigned char storage[384]; /* the hash library's own state */
} mu_digest_state;

/* Starts a digest. `domain` is a C string that names what the fields are. */
void mu_digest_begin(mu_digest_state *state, const char *domain);
/* Appends one field. `content` may be NULL when `bytes` is 0. */
void mu_digest_field(mu_digest_state *state, const void *content, size_t bytes);
void mu_digest_text(mu_digest_state *state, const char *text); /* NULL differs from "" */
void mu_digest_u64(mu_digest_state *state, uint64_t value);    /* the same on every machine */
/* Ends it; the state must be begun again before its next use. */
mu_digest mu_digest_end(mu_digest_state *state);

/* One field in one call. */
mu_digest mu_digest_of(const char *domain, const void *content, size_t bytes);

static inline bool mu_digest_equal(const mu_digest *a, const mu_digest *b) {
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}
/* Lower-case hexadecimal, NUL-terminated. */
void mu_digest_hex(const mu_digest *digest, char text[MU_DIGEST_HEX_BYTES]);

/* How many digests the calling thread has ended: tests count them. */
uint64_t mu_digest_thread_count(void);

#endif
