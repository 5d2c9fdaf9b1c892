#include "examples/04_pipeline/reference.h"

#include <math.h>
#include <string.h>

static uint32_t word_at(const unsigned char *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

void chacha_key_set(chacha_key *key, const unsigned char secret[32], const unsigned char nonce[12]) {
    for (int i = 0; i < 8; i++) key->key[i] = word_at(secret + 4 * i);
    for (int i = 0; i < 3; i++) key->nonce[i] = word_at(nonce + 4 * i);
}

static uint32_t rotated(uint32_t x, int by) { return x << by | x >> (32 - by); }

static void quarter_round(uint32_t s[16], int a, int b, int c, int d) {
    s[a] += s[b], s[d] = rotated(s[d] ^ s[a], 16);
    s[c] += s[d], s[b] = rotated(s[b] ^ s[c], 12);
    s[a] += s[b], s[d] = rotated(s[d] ^ s[a], 8);
    s[c] += s[d], s[b] = rotated(s[b] ^ s[c], 7);
}

static void key_stream(const chacha_key *key, uint32_t counter, unsigned char stream[64]) {
    uint32_t start[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, s[16];
    memcpy(start + 4, key->key, sizeof key->key);
    start[12] = counter;
    memcpy(start + 13, key->nonce, sizeof key->nonce);
    memcpy(s, start, sizeof s);
    for (int i = 0; i < 10; i++) {
        for (int c = 0; c < 4; c++) quarter_round(s, c, 4 + c, 8 + c, 12 + c);
        for (int c = 0; c < 4; c++) quarter_round(s, c, 4 + (c + 1) % 4, 8 + (c + 2) % 4, 12 + (c + 3) % 4);
    }
    for (int i = 0; i < 64; i++) stream[i] = (unsigned char)((s[i / 4] + start[i / 4]) >> 8 * (i % 4));
}

void chacha20(const chacha_key *key, uint32_t counter, const unsigned char *text, size_t bytes, unsigned char *out) {
    unsigned char stream[64];
    for (size_t i = 0; i < bytes; i++) {
        if (i % 64 == 0) key_stream(key, counter++, stream);
        out[i] = text[i] ^ stream[i % 64];
    }
}

void count_chunk(const unsigned char *text, const unsigned char *out, size_t bytes, chunk_counts *counts) {
    memset(counts, 0, sizeof *counts);
    for (size_t i = 0; i < bytes; i++) {
        counts->sums[0] += out[i];
        counts->sums[1] += (bytes - i) * out[i];
        counts->histogram[text[i]]++;
    }
}

uint32_t adler32_append(uint32_t before, uint64_t bytes, const uint64_t sums[2]) {
    const uint64_t prime = 65521;
    uint64_t a = before & 0xffff, b = before >> 16;
    b = (b + bytes % prime * a + sums[1]) % prime;
    a = (a + sums[0]) % prime;
    return (uint32_t)(b << 16 | a);
}

double entropy(const uint64_t histogram[256]) {
    double total = 0, bits = 0;
    for (int v = 0; v < 256; v++) total += (double)histogram[v];
    for (int v = 0; v < 256; v++)
        if (histogram[v]) bits -= (double)histogram[v] / total * log2((double)histogram[v] / total);
    return bits > 0 ? bits : 0;
}
