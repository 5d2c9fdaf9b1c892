/* What the kernels compute, written plainly for one thread: to compare with, and the parts that are put together from chunks. */
#ifndef MUSTER_EXAMPLES_04_PIPELINE_REFERENCE_H
#define MUSTER_EXAMPLES_04_PIPELINE_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

/* ChaCha20 (RFC 8439): the words of a key and a nonce, as the kernel takes them. */
typedef struct chacha_key {
    uint32_t key[8], nonce[3];
} chacha_key;

/* What a chunk's kernels count, as they leave it in memory. */
typedef struct chunk_counts {
    uint64_t sums[2];        /* of the output: bytes, and bytes weighted by their distance from the end */
    uint32_t histogram[256]; /* of the input */
} chunk_counts;

/* Bytes of text as little-endian words. */
void chacha_key_set(chacha_key *key, const unsigned char secret[32], const unsigned char nonce[12]);
/* `out` = `text` combined with the key stream from block `counter` on; both may be the same. */
void chacha20(const chacha_key *key, uint32_t counter, const unsigned char *text, size_t bytes, unsigned char *out);

void count_chunk(const unsigned char *text, const unsigned char *out, size_t bytes, chunk_counts *counts);

/* Adler-32 of what came before and a chunk of `bytes` bytes behind it. It starts with 1. */
uint32_t adler32_append(uint32_t before, uint64_t bytes, const uint64_t sums[2]);
/* Bits a byte, of a text in which value v occurs histogram[v] times. */
double entropy(const uint64_t histogram[256]);

#endif
