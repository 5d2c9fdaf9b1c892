// Ordinary kernels as nvcc compiles them: regenerate basic_sm75.ptx and basic_sm90.ptx with ../ptx_corpus/generate.sh.
#include <cstdint>

extern "C" __global__ void vector_add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void saxpy(float alpha, const float *x, float *y, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x)
        y[i] = alpha * x[i] + y[i];
}

// How often each thread's stretch of the text holds the pattern's first bytes.
extern "C" __global__ void scan_bytes(const uint8_t *text, uint64_t n, const uint8_t *pattern, uint32_t m, unsigned long long *hits) {
    unsigned long long found = 0;
    for (uint64_t at = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; at + m <= n; at += gridDim.x * (uint64_t)blockDim.x) {
        uint32_t k = 0;
        while (k < m && text[at + k] == pattern[k]) k++;
        if (k == m) found++;
    }
    if (found) atomicAdd(hits, found);
}

extern "C" __global__ void block_sum(const float *x, float *out, int n) {
    __shared__ float part[256];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(out, part[0]);
}

extern "C" __global__ void histogram(const uint8_t *x, int n, unsigned *bins) {
    extern __shared__ unsigned local_bins[];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local_bins[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local_bins[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local_bins[i]);
}

extern "C" __global__ void collatz(const uint32_t *start, uint32_t *steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint64_t v = start[i];
    uint32_t count = 0;
    while (v > 1) {
        v = v & 1 ? 3 * v + 1 : v / 2;
        count++;
    }
    steps[i] = count;
}
