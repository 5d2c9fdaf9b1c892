// Test kernels. kernels.ptx is this file compiled by
//     nvcc -ptx -arch=compute_75 kernels.cu
// with its .version lowered to 7.0, which every driver since CUDA 11.0 reads. The C equivalents are in kernel_model.c,
// written from the description beside each kernel, not from the code.
//
// Every kernel works on the elements [0, count) of its block-cut arguments, one per thread, counting threads over a grid
// and block of up to three dimensions, x fastest. `offset` is the number of the first element in the whole dispatch, so
// that g = i + offset does not depend on how a dispatch was cut. All values go through a mixing hash and most kernels
// also read elsewhere at an index that depends on data: a wrong or stale input byte changes the output.
#include <stdint.h>

static __device__ uint32_t mixed(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

static __device__ uint32_t thread_of_block(void) {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

static __device__ uint64_t element(void) {
    uint64_t block = blockIdx.x + (uint64_t)gridDim.x * (blockIdx.y + (uint64_t)gridDim.y * blockIdx.z);
    return block * (blockDim.x * blockDim.y * blockDim.z) + thread_of_block();
}

extern "C" {

// out[i] = H(in0[i] + 0x9e3779b1 * in1[H(in0[i] ^ scalar ^ g) mod m] + g)
__global__ void mix(uint32_t *out, const uint32_t *in0, const uint32_t *in1, uint32_t m, uint32_t scalar,
                    uint64_t offset, uint64_t count) {
    uint64_t i = element();
    if (i >= count) return;
    uint32_t g = (uint32_t)(i + offset), a = in0[i];
    out[i] = mixed(a + 0x9e3779b1u * in1[mixed(a ^ scalar ^ g) % m] + g);
}

// out[i] = H(in0[i] + scalar) ^ g
__global__ void mix32(uint32_t *out, const uint32_t *in0, uint32_t scalar, uint32_t offset, uint32_t count) {
    uint64_t i = element();
    if (i >= count) return;
    out[i] = mixed(in0[i] + scalar) ^ ((uint32_t)i + offset);
}

// Where the low two bits of H(rw[i] ^ scalar) are not both zero: rw[i] = H(rw[i] + in1[(rw[i] + g) mod m]). Else kept.
__global__ void twiddle(uint32_t *rw, const uint32_t *in1, uint32_t m, uint32_t scalar, uint64_t offset,
                        uint64_t count) {
    uint64_t i = element();
    if (i >= count) return;
    uint32_t g = (uint32_t)(i + offset), a = rw[i];
    if (mixed(a ^ scalar) & 3) rw[i] = mixed(a + in1[(a + g) % m]);
}

// out[i] = H(in0[i] ^ scalar ^ g); rw[i] = H(rw[i] + in0[i] + g)
__global__ void pair(uint32_t *out, uint32_t *rw, const uint32_t *in0, uint32_t scalar, uint32_t offset,
                     uint32_t count) {
    uint64_t i = element();
    if (i >= count) return;
    uint32_t g = (uint32_t)i + offset, a = in0[i];
    out[i] = mixed(a ^ scalar ^ g);
    rw[i] = mixed(rw[i] + a + g);
}

// With T threads in a block and p = the element that thread T - 1 - t of the same block has, or scalar when that is
// not an element: out[i] = H(p + 3 * in0[i] + g). The block's elements pass through 4 * T bytes of dynamic shared memory.
__global__ void stage(uint32_t *out, const uint32_t *in0, uint32_t scalar, uint64_t offset, uint64_t count) {
    extern __shared__ uint32_t staged[];
    uint64_t i = element();
    uint32_t threads = blockDim.x * blockDim.y * blockDim.z, t = thread_of_block();
    staged[t] = i < count ? in0[i] : scalar;
    __syncthreads();
    if (i >= count) return;
    out[i] = mixed(staged[threads - 1 - t] + 3 * staged[t] + (uint32_t)(i + offset));
}

// Bytes: out[i] = low byte of H(in0[i] + scalar + g)
__global__ void bytes(uint8_t *out, const uint8_t *in0, uint32_t scalar, uint32_t offset, uint32_t count) {
    uint64_t i = element();
    if (i >= count) return;
    out[i] = (uint8_t)mixed(in0[i] + scalar + (uint32_t)i + offset);
}

struct weights {
    uint32_t word[10];
};

// h = in0[i] + g; for each of the ten words h = H(h ^ word); out[i] = h
__global__ void weighted(uint32_t *out, const uint32_t *in0, struct weights weights, uint64_t offset, uint64_t count) {
    uint64_t i = element();
    if (i >= count) return;
    uint32_t h = in0[i] + (uint32_t)(i + offset);
#pragma unroll
    for (int k = 0; k < 10; k++) h = mixed(h ^ weights.word[k]);
    out[i] = h;
}

// h = H(in0[i] + scalar + g); acc[h mod bins] += h as an i32 or u32, h sign-extended, h repeated in both halves, or
// h mod 4 as a float or double.
#define SUM(name, type, value)                                                                                         \
    __global__ void name(type *acc, uint32_t bins, const uint32_t *in0, uint32_t scalar, uint64_t offset,              \
                         uint64_t count) {                                                                             \
        uint64_t i = element();                                                                                        \
        if (i >= count) return;                                                                                        \
        uint32_t h = mixed(in0[i] + scalar + (uint32_t)(i + offset));                                                  \
        atomicAdd(&acc[h % bins], value);                                                                              \
    }
SUM(sum_i32, int, (int)h)
SUM(sum_u32, unsigned, h)
SUM(sum_i64, unsigned long long, (unsigned long long)(long long)(int)h)
SUM(sum_u64, unsigned long long, (unsigned long long)h << 32 | h)
SUM(sum_f32, float, (float)(h & 3))
SUM(sum_f64, double, (double)(h & 3))

// rw[i] = (H((uint32_t)rw[i] + g) mod 256) as a float or double; rw[i] is a small whole number.
__global__ void settle_f32(float *rw, uint64_t offset, uint64_t count) {
    uint64_t i = element();
    if (i >= count) return;
    rw[i] = (float)(mixed((uint32_t)rw[i] + (uint32_t)(i + offset)) & 255);
}
__global__ void settle_f64(double *rw, uint64_t offset, uint64_t count) {
    uint64_t i = element();
    if (i >= count) return;
    rw[i] = (double)(mixed((uint32_t)rw[i] + (uint32_t)(i + offset)) & 255);
}

// What a dispatch was given: record[0..9] of block b = grid x y z, block x y z, offset, count (both widths), once per
// block, so that a test can see how a dispatch was cut. rows holds 10 words a block.
__global__ void record(uint64_t *rows, uint64_t offset64, uint64_t count64, uint32_t offset32, uint32_t count32) {
    if (thread_of_block() != 0) return;
    uint64_t b = blockIdx.x + (uint64_t)gridDim.x * (blockIdx.y + (uint64_t)gridDim.y * blockIdx.z);
    uint64_t *row = rows + 10 * b;
    row[0] = gridDim.x, row[1] = gridDim.y, row[2] = gridDim.z;
    row[3] = blockDim.x, row[4] = blockDim.y, row[5] = blockDim.z;
    row[6] = offset64, row[7] = count64, row[8] = offset32, row[9] = count32;
}

// rw[i] = rw[i] * factor + term: two of them commute only when factors are 1.
__global__ void affine(uint32_t *rw, uint32_t factor, uint32_t term, uint32_t count) {
    uint64_t i = element();
    if (i < count) rw[i] = rw[i] * factor + term;
}

// Touches nothing: for launch costs.
__global__ void nothing(const uint32_t *in0, uint32_t *rw) {
    (void)in0, (void)rw;
}

// Faults: a store far out of bounds, and a trap.
__global__ void illegal(uint32_t *out, uint64_t index) { out[index] = 1; }
__global__ void trapped(void) { __trap(); }
}
