// Kernels of the tests of arguments that are cut with a pitch, compiled into pitch_kernels.ptx by
//     nvcc -ptx -arch=compute_75 pitch_kernels.cu
// with its .version lowered to 7.0, which every driver since CUDA 11.0 reads.
#include <stdint.h>

// A thread for each column, which walks all rows: a mixture of what was there (if it is kept), up to `before` columns to the left, the
// column itself, and up to `after` to the right. The grid may have any axis.
extern "C" __global__ void mix_columns(uint32_t *out, const uint32_t *in, uint64_t pitch, uint32_t rows, uint32_t before,
                                       uint32_t after, uint32_t keep, uint64_t first, uint64_t count, uint64_t total) {
    uint64_t x = (uint64_t)(blockIdx.x + blockIdx.y + blockIdx.z) * blockDim.x + threadIdx.x;
    if (x >= count) return;
    for (uint32_t row = 0; row < rows; row++, out += pitch, in += pitch) {
        uint32_t value = keep ? out[x] : 0;
        for (int64_t k = -(int64_t)before; k <= (int64_t)after; k++)
            if ((int64_t)(first + x) + k >= 0 && (int64_t)(first + x) + k < (int64_t)total)
                value = value * 31 + in[(int64_t)x + k];
        out[x] = value * 3 + (uint32_t)(first + x) + row * 7;
    }
}

// A block for each row: a word is mixed with the one that mirrors it.
extern "C" __global__ void mix_rows(uint32_t *out, const uint32_t *in, uint64_t pitch, uint64_t width, uint64_t first) {
    uint64_t row = blockIdx.x;
    for (uint64_t x = threadIdx.x; x < width; x += blockDim.x)
        out[row * pitch + x] = in[row * pitch + x] * 5 + in[row * pitch + width - 1 - x] + (uint32_t)(first + row) * 11;
}
