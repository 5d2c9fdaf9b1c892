// Kernels of the tests of how arguments are cut, compiled into cut_kernels.ptx by
//     nvcc -ptx -arch=compute_75 cut_kernels.cu
// with its .version lowered to 7.0, which every driver since CUDA 11.0 reads.
#include <stdint.h>

// One thread per slice reduces its element into a bin: integers with atomics, as many slices share a bin; floating-point minima and
// maxima with a bin for each slice.
#define REDUCE_ATOMIC(name, type, cast, operation)                                                                     \
    extern "C" __global__ void name(type *acc, uint32_t bins, const type *in, uint64_t offset, uint64_t count) {       \
        uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;                                                  \
        if (i < count) operation((cast *)&acc[(offset + i) % bins], (cast)in[i]);                                      \
    }
#define REDUCE_ALONE(name, type, operation)                                                                            \
    extern "C" __global__ void name(type *acc, uint32_t bins, const type *in, uint64_t offset, uint64_t count) {       \
        uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;                                                  \
        if (i < count) acc[(offset + i) % bins] = operation(acc[(offset + i) % bins], in[i]);                          \
    }
REDUCE_ATOMIC(min_i32, int32_t, int, atomicMin)
REDUCE_ATOMIC(min_u32, uint32_t, unsigned, atomicMin)
REDUCE_ATOMIC(min_i64, int64_t, long long, atomicMin)
REDUCE_ATOMIC(min_u64, uint64_t, unsigned long long, atomicMin)
REDUCE_ATOMIC(max_i32, int32_t, int, atomicMax)
REDUCE_ATOMIC(max_u32, uint32_t, unsigned, atomicMax)
REDUCE_ATOMIC(max_i64, int64_t, long long, atomicMax)
REDUCE_ATOMIC(max_u64, uint64_t, unsigned long long, atomicMax)
REDUCE_ATOMIC(and_32, uint32_t, unsigned, atomicAnd)
REDUCE_ATOMIC(and_64, uint64_t, unsigned long long, atomicAnd)
REDUCE_ATOMIC(or_32, uint32_t, unsigned, atomicOr)
REDUCE_ATOMIC(or_64, uint64_t, unsigned long long, atomicOr)
REDUCE_ALONE(min_f32, float, fminf)
REDUCE_ALONE(min_f64, double, fmin)
REDUCE_ALONE(max_f32, float, fmaxf)
REDUCE_ALONE(max_f64, double, fmax)

// A row of the result is a mixture of up to `before` rows above it, itself, and up to `after` rows below; one block per row.
extern "C" __global__ void neighbours(uint32_t *out, const uint32_t *in, uint32_t width, uint32_t before, uint32_t after,
                                      uint64_t first, uint64_t rows) {
    int64_t row = blockIdx.x + (int64_t)blockIdx.y + blockIdx.z;
    for (uint32_t x = threadIdx.x; x < width; x += blockDim.x) {
        uint32_t value = 0;
        for (int64_t y = row - before; y <= row + after; y++)
            if ((int64_t)first + y >= 0 && (int64_t)first + y < (int64_t)rows) value = value * 31 + in[y * width + x];
        out[row * width + x] = value;
    }
}

// A few words of each slice, so that large ranges cost little to simulate: out[i] += in[slice_words - 1 - i] + slice * scale[0].
extern "C" __global__ void stamp(uint32_t *out, const uint32_t *in, const uint32_t *scale, uint64_t slice_words, uint64_t first) {
    uint64_t at = blockIdx.x * slice_words;
    out[at + threadIdx.x] += in[at + slice_words - 1 - threadIdx.x] + (uint32_t)(first + blockIdx.x) * scale[0];
}
