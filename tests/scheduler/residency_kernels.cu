// Kernels of the admission tests, compiled into residency_kernels.ptx by
//     nvcc -ptx -arch=compute_75 residency_kernels.cu
// with its .version lowered to 7.0, which every driver since CUDA 11.0 reads.
//
// reverse: tmp[i] = in[i] * 3 + 1 for all i, then, behind a barrier of the whole grid, out[i] = tmp[count - 1 - i] + 7. The
// barrier is the kernel's own: blocks count themselves in `arrived`, which must be 0 when the kernel starts. Both loops are
// grid-stride, so any grid gives the same result. fill_tmp and read_tmp are its two halves, with the same parameters.
#include <stdint.h>

__device__ unsigned int arrived;
__device__ unsigned short odd;

static __device__ void fill(uint32_t *tmp, const uint32_t *in, uint32_t count) {
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        tmp[i] = in[i] * 3 + 1;
}

static __device__ void read(uint32_t *out, const uint32_t *tmp, uint32_t count) {
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        out[i] = tmp[count - 1 - i] + 7;
}

extern "C" {

__global__ void reverse(uint32_t *out, uint32_t *tmp, const uint32_t *in, uint32_t count) {
    fill(tmp, in, count);
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&arrived, 1u);
        while (atomicAdd(&arrived, 0u) < gridDim.x) {
        }
        __threadfence();
    }
    __syncthreads();
    read(out, tmp, count);
}

__global__ void fill_tmp(uint32_t *out, uint32_t *tmp, const uint32_t *in, uint32_t count) {
    (void)out;
    fill(tmp, in, count);
}

__global__ void read_tmp(uint32_t *out, uint32_t *tmp, const uint32_t *in, uint32_t count) {
    (void)in;
    read(out, tmp, count);
}

// What `arrived` was, in the next place of out: out[0] counts the calls.
__global__ void arrive(uint32_t *out) {
    uint32_t call = out[0]++;
    out[1 + call] = atomicAdd(&arrived, 1u);
    odd = 1;
}
}
