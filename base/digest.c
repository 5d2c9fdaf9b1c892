#include "base/digest.h"

#include <blake2.h>

_Static_assert(sizeof(blake2b_state) <= sizeof(((mu_digest_state *)0)->storage), "a digest state fits its storage");

static _Thread_local uint64_t ended;

static blake2b_state *hash(mu_digest_state *state) { return (blake2b_state *)(void *)state->storage; }

/* Tags keep a missing text apart from an empty one, and numbers apart from bytes. */
enum { FIELD_BYTES = 1, FIELD_TEXT = 2, FIELD_NO_TEXT = 3, FIELD_U64 = 4 };

static void put_header(mu_digest_state *state, unsigned char tag, uint64_t bytes) {
    unsigned char header[9] = {tag};
    for (int i = 0; i < 8; i++) header[1 + i] = (unsigned char)(bytes >> 8 * i);
    blake2b_update(hash(state), header, sizeof header);
}

static void put_field(mu_digest_state *state, unsigned char tag, const void *content, size_t bytes) {
    put_header(state, tag, bytes);
    if (bytes) blake2b_update(hash(state), content, bytes);
}

void mu_digest_begin(mu_digest_state *state, const char *domain) {
    blake2b_init(hash(state), MU_DIGEST_BYTES);
    mu_digest_text(state, domain);
}

void mu_digest_field(mu_digest_state *state, const void *content, size_t bytes) {
    put_field(state, FIELD_BYTES, content, bytes);
}

void mu_digest_text(mu_digest_state *state, const char *text) {
    if (text)
        put_field(state, FIELD_TEXT, text, strlen(text));
    else
        put_header(state, FIELD_NO_TEXT, 0);
}

void mu_digest_u64(mu_digest_state *state, uint64_t value) { put_header(state, FIELD_U64, value); }

mu_digest mu_digest_end(mu_digest_state *state) {
    mu_digest digest;
    blake2b_final(hash(state), digest.bytes, sizeof digest.bytes);
    ended++;
    return digest;
}

mu_digest mu_digest_of(const char *domain, const void *content, size_t bytes) {
    mu_digest_state state;
    mu_digest_begin(&state, domain);
    mu_digest_field(&state, content, bytes);
    return mu_digest_end(&state);
}

void mu_digest_hex(const mu_digest *digest, char text[MU_DIGEST_HEX_BYTES]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < MU_DIGEST_BYTES; i++) {
        text[2 * i] = digits[digest->bytes[i] >> 4];
        text[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    text[2 * MU_DIGEST_BYTES] = '\0';
}

uint64_t mu_digest_thread_count(void) { return ended; }
