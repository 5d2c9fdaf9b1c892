// Kernels of the benches. kernels.ptx is this file compiled by
//     nvcc -ptx -arch=compute_75 kernels.cu
// with its .version lowered to 7.0, which every driver since CUDA 11.0 reads.
#include <stdint.h>

static __device__ uint64_t now_ns(void) {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

static __device__ void spin_until(uint64_t end_ns) {
    while ((int64_t)(end_ns - now_ns()) > 0) {
    }
}

extern "C" {

// Touch nothing: what is left is the launch. Sixteen functions, for backlogs that mix them.
#define EMPTY(n)                                                                                                       \
    __global__ void empty_##n(const uint32_t *in, uint32_t *rw) { (void)in, (void)rw; }
EMPTY(0)
EMPTY(1)
EMPTY(2)
EMPTY(3)
EMPTY(4)
EMPTY(5)
EMPTY(6)
EMPTY(7)
EMPTY(8)
EMPTY(9)
EMPTY(10)
EMPTY(11)
EMPTY(12)
EMPTY(13)
EMPTY(14)
EMPTY(15)

// A task of a dependence pattern: what it writes and up to five tasks it reads of.
__global__ void task(uint32_t *out, const uint32_t *in0, const uint32_t *in1, const uint32_t *in2, const uint32_t *in3,
                     const uint32_t *in4) {
    (void)out, (void)in0, (void)in1, (void)in2, (void)in3, (void)in4;
}

// An empty kernel with a value that changes from run to run.
__global__ void valued(uint32_t *rw, uint32_t value) { (void)rw, (void)value; }

// Runs for so long.
__global__ void spin(uint32_t *rw, uint64_t nanoseconds) {
    (void)rw;
    spin_until(now_ns() + nanoseconds);
}

// Runs for so long, then sets *flag, which the host watches.
__global__ void spin_and_tell(uint32_t *flag, uint64_t nanoseconds) {
    spin_until(now_ns() + nanoseconds);
    __threadfence_system();
    *(volatile uint32_t *)flag = 1;
    __threadfence_system();
}

// stamps[index] = when it started; runs for so long.
__global__ void stamp(uint64_t *stamps, uint32_t index, uint64_t nanoseconds) {
    uint64_t now = now_ns();
    if (threadIdx.x == 0) stamps[index] = now;
    spin_until(now + nanoseconds);
}

// Arithmetic and next to no memory: rw[i] after `rounds` steps of x = x * 1664525 + 1013904223.
__global__ void burn(uint32_t *rw, uint32_t rounds, uint64_t count) {
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i >= count) return;
    uint32_t x = rw[i];
    for (uint32_t r = 0; r < rounds; r++) x = x * 1664525u + 1013904223u;
    rw[i] = x;
}

// rw[i] = rw[i] * factor + term, one a thread.
__global__ void affine(uint32_t *rw, uint32_t factor, uint32_t term, uint32_t count) {
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i < count) rw[i] = rw[i] * factor + term;
}

// The same on four words a thread.
__global__ void stride(uint32_t *rw, uint32_t factor, uint32_t term, uint64_t count) {
    uint64_t i = 4 * (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x);
    for (uint64_t k = i; k < i + 4 && k < count; k++) rw[k] = rw[k] * factor + term;
}

// A stencil of three points along the cut axis, in rows of `width`, one thread a column and one block a row:
// out = (row above + 2 * row + row below). `first` is the number of the first row in the whole, `rows` their number there.
__global__ void stencil(uint32_t *out, const uint32_t *in, uint32_t width, uint64_t first, uint64_t rows) {
    int64_t row = blockIdx.x, whole = (int64_t)first + row;
    for (uint32_t column = threadIdx.x; column < width; column += blockDim.x) {
        int64_t at = row * (int64_t)width + column;
        uint32_t above = whole > 0 ? in[at - width] : 0, below = whole + 1 < (int64_t)rows ? in[at + width] : 0;
        out[at] = above + 2 * in[at] + below;
    }
}
}
