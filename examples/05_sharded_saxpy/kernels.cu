// The kernels of this example. kernels.ptx is this file compiled by
//     nvcc -ptx -arch=compute_75 kernels.cu
// with its .version lowered to 7.0, which every driver since CUDA 11.0 reads.
//
// They are kernels for one GPU: `count` elements from x and y on, in blocks of 256 threads. Nothing tells them that they run on a
// part of a larger array, and on several devices at once.
#include <stdint.h>

extern "C" {

// y = a x + y
__global__ void saxpy(float a, const float *x, float *y, uint32_t count) {
    uint32_t i = blockIdx.x * 256 + threadIdx.x;
    if (i < count) y[i] = a * x[i] + y[i];
}

// *sum += x . y
__global__ void dot(const float *x, const float *y, double *sum, uint32_t count) {
    __shared__ double part[256];
    uint32_t i = blockIdx.x * 256 + threadIdx.x;
    part[threadIdx.x] = i < count ? (double)x[i] * y[i] : 0;
    for (uint32_t half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(sum, part[0]);
}

} // extern "C"
