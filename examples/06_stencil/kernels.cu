// The kernel of this example. kernels.ptx is this file compiled by
//     nvcc -ptx -arch=compute_75 -fmad=false kernels.cu
// with its .version lowered to 7.0, which every driver since CUDA 11.0 reads. Without fused multiply-adds it computes exactly what
// scene.c computes.
#include <stdint.h>

extern "C" {

// One step of the wave equation. Every thread has a cell of a row of its own, `threadIdx.x` and the block's x along the row; the block's
// y is the row. Pointers are to the launch's own rows, from `first_row` of all `height` rows on; `now` has the row before and the row
// behind as well, where there is one. `wave` holds the cells one step ago, and gets those of the next. The border stays as it is.
__global__ void step(const float *now, float *wave, const float2 *medium, float drive, uint32_t width, uint32_t height,
                     uint32_t first_row) {
    uint32_t x = blockIdx.x * blockDim.x + threadIdx.x, row = first_row + blockIdx.y;
    if (x == 0 || x + 1 >= width || row == 0 || row + 1 == height) return;
    const float *at = now + (uint64_t)blockIdx.y * width + x;
    uint64_t cell = (uint64_t)blockIdx.y * width + x;
    float around = (at[-(int64_t)width] + at[width]) + (at[-1] + at[1]);
    float2 m = medium[cell]; // x: the square of the speed; y: how much of its motion a cell keeps
    float next = at[0] + m.y * (at[0] - wave[cell]) + m.x * (around - 4 * at[0]);
    wave[cell] = x == width / 16 ? next + drive : next;
}

} // extern "C"
