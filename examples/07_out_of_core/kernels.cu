// The kernel of this example. kernels.ptx is this file compiled by
//     nvcc -ptx -arch=compute_75 kernels.cu
// with its .version lowered to 7.0, which every driver since CUDA 11.0 reads.
#include <stdint.h>

static __device__ uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

extern "C" {

// Mixes each word with its index, in place, and adds the results up. A block of 256 threads has 8192 words; `count` words from `table`
// on are the launch's own, and `first` is the index of the first of them in the whole table.
__global__ void mix(uint64_t *table, uint64_t first, uint64_t count, unsigned long long *checksum) {
    __shared__ unsigned long long sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    uint64_t begin = blockIdx.x * 8192ull, own = 0;
    for (uint64_t i = begin + threadIdx.x; i < begin + 8192 && i < count; i += 256)
        own += table[i] = mixed(table[i] + first + i);
    atomicAdd(&sum, own);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(checksum, sum);
}

} // extern "C"
