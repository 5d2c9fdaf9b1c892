// The kernels of the pipeline. kernels.ptx is this file compiled by
//     nvcc -ptx -arch=compute_75 kernels.cu
// with its .version lowered to 7.0, which every driver since CUDA 11.0 reads.
//
// All of them work on a chunk of `bytes` bytes in memory for whole 64-byte blocks, with any number of threads in blocks of 256.
#include <stdint.h>

// The state that a key and a nonce fill, without the constants and the counter.
struct chacha_key {
    uint32_t key[8];
    uint32_t nonce[3];
};

static __device__ uint32_t rotated(uint32_t x, int by) { return x << by | x >> (32 - by); }

static __device__ void quarter_round(uint32_t *s, int a, int b, int c, int d) {
    s[a] += s[b], s[d] = rotated(s[d] ^ s[a], 16);
    s[c] += s[d], s[b] = rotated(s[b] ^ s[c], 12);
    s[a] += s[b], s[d] = rotated(s[d] ^ s[a], 8);
    s[c] += s[d], s[b] = rotated(s[b] ^ s[c], 7);
}

extern "C" {

// counts[v] += how many bytes have the value v.
__global__ void histogram(const uint32_t *text, uint32_t bytes, uint32_t *counts) {
    __shared__ uint32_t own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t i = blockIdx.x * 256 + threadIdx.x; 4 * i < bytes; i += gridDim.x * 256) {
        uint32_t word = text[i], left = bytes - 4 * i;
        for (uint32_t k = 0; k < 4 && k < left; k++, word >>= 8) atomicAdd(&own[word & 255], 1);
    }
    __syncthreads();
    if (own[threadIdx.x]) atomicAdd(&counts[threadIdx.x], own[threadIdx.x]);
}

// ChaCha20 (RFC 8439): block i of the chunk is combined with the key stream's block counter + i. One block a thread.
__global__ void chacha20(const uint32_t *text, uint32_t *out, struct chacha_key key, uint32_t counter, uint32_t bytes) {
    for (uint32_t block = blockIdx.x * 256 + threadIdx.x; 64 * block < bytes; block += gridDim.x * 256) {
        uint32_t start[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
        uint32_t s[16];
        for (int i = 0; i < 8; i++) start[4 + i] = key.key[i];
        start[12] = counter + block;
        for (int i = 0; i < 3; i++) start[13 + i] = key.nonce[i];
        for (int i = 0; i < 16; i++) s[i] = start[i];
        for (int i = 0; i < 10; i++) {
            quarter_round(s, 0, 4, 8, 12), quarter_round(s, 1, 5, 9, 13);
            quarter_round(s, 2, 6, 10, 14), quarter_round(s, 3, 7, 11, 15);
            quarter_round(s, 0, 5, 10, 15), quarter_round(s, 1, 6, 11, 12);
            quarter_round(s, 2, 7, 8, 13), quarter_round(s, 3, 4, 9, 14);
        }
        for (int i = 0; i < 16; i++) out[16 * block + i] = text[16 * block + i] ^ (s[i] + start[i]);
    }
}

// What the Adler-32 checksum of a whole file is put together from: sums[0] += sum of all bytes d, sums[1] += sum of (bytes - i) * d[i].
__global__ void adler(const uint32_t *text, uint32_t bytes, unsigned long long *sums) {
    __shared__ unsigned long long own[2];
    if (threadIdx.x < 2) own[threadIdx.x] = 0;
    __syncthreads();
    unsigned long long plain = 0, weighted = 0;
    for (uint32_t i = blockIdx.x * 256 + threadIdx.x; 4 * i < bytes; i += gridDim.x * 256) {
        uint32_t word = text[i], left = bytes - 4 * i;
        for (uint32_t k = 0; k < 4 && k < left; k++, word >>= 8) {
            plain += word & 255;
            weighted += (unsigned long long)(left - k) * (word & 255);
        }
    }
    atomicAdd(&own[0], plain);
    atomicAdd(&own[1], weighted);
    __syncthreads();
    if (threadIdx.x < 2) atomicAdd(&sums[threadIdx.x], own[threadIdx.x]);
}

} // extern "C"
