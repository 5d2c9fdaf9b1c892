// One kernel per language feature: what nvcc makes of it must load and give what the host computes (ptx_features_test.c).
#include <cassert>
#include <cooperative_groups.h>
#include <cstdint>
#include <cstdio>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;

struct settings {
    int a[5];
    double scale;
    char tag;
};

__constant__ int table[8] = {1, 2, 3, 5, 8, 13, 21, 34};
__device__ int counter = 7;
__device__ int *counter_pointer = &counter;
__device__ const char *name = "muster";

extern "C" __global__ void struct_parameter(settings s, double *out) {
    double sum = s.scale;
    for (int i = 0; i < 5; i++) sum += s.a[(i + threadIdx.x) % 5] * (i + 1);
    out[threadIdx.x] = sum + s.tag;
}

extern "C" __global__ void module_variables(int *out) {
    atomicAdd(counter_pointer, table[threadIdx.x & 7]);
    out[threadIdx.x] = table[(threadIdx.x * 3) & 7] + name[threadIdx.x % 6];
}

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
extern "C" __global__ void recursion(int *out) { out[threadIdx.x] = fibonacci(threadIdx.x % 12); }

struct triple {
    int x;
    double y;
    char z[12];
};
__device__ __noinline__ triple mix(triple a, triple b, int n) {
    triple r = a;
    r.x += b.x * n;
    r.y -= b.y;
    r.z[n % 12] = b.z[(n + 1) % 12];
    return r;
}
extern "C" __global__ void struct_calls(triple *t, int n) {
    triple a = t[threadIdx.x], b = t[(threadIdx.x + 1) % n];
    __syncthreads();
    t[threadIdx.x] = mix(a, b, threadIdx.x);
}

typedef int (*operation)(int, int);
__device__ int op_add(int a, int b) { return a + b; }
__device__ int op_mul(int a, int b) { return a * b; }
__device__ int op_xor(int a, int b) { return a ^ b; }
__device__ operation operations[3] = {op_add, op_mul, op_xor};
extern "C" __global__ void indirect_calls(int *out) {
    int t = threadIdx.x;
    out[t] = operations[t % 3](t * 5, t + 3);
}

extern "C" __global__ void dense_switch(const int *in, int *out) {
    int v = in[threadIdx.x];
    switch (v) {
        case 0: v = v * 3 + 1; break;
        case 1: v = 77; break;
        case 2: v = v << 5; break;
        case 3: v = -v; break;
        case 4: v = v * v * v; break;
        case 5: v = 1000 / v; break;
        case 6: v = v % 4; break;
        case 7: v = ~v; break;
        case 8: v = v ^ 0x55; break;
        case 9: v = 9009; break;
        default: v = 0; break;
    }
    out[threadIdx.x] = v;
}

extern "C" __global__ void local_array(const int *in, int *out, int n) {
    int sorted[16];
    for (int i = 0; i < 16; i++) sorted[i] = in[threadIdx.x * 16 + i];
    for (int i = 1; i < n; i++) {
        int v = sorted[i], j = i;
        while (j > 0 && sorted[j - 1] > v) sorted[j] = sorted[j - 1], j--;
        sorted[j] = v;
    }
    for (int i = 0; i < 16; i++) out[threadIdx.x * 16 + i] = sorted[i];
}

extern "C" __global__ void generic_pointers(int *global, int *out) {
    __shared__ int shared[64];
    int local[2] = {(int)threadIdx.x, -(int)threadIdx.x};
    shared[threadIdx.x] = threadIdx.x * 10;
    __syncthreads();
    int *p = threadIdx.x % 3 == 0 ? &shared[63 - threadIdx.x] : threadIdx.x % 3 == 1 ? &global[threadIdx.x] : &local[threadIdx.x & 1];
    *p += 1000;
    __syncthreads();
    out[threadIdx.x] = *p + (__isShared(p) ? 1 << 20 : 0) + (__isGlobal(p) ? 1 << 21 : 0) + (__isLocal(p) ? 1 << 22 : 0);
}

extern "C" __global__ void warp_intrinsics(const int *in, int *out) {
    int lane = threadIdx.x & 31, v = in[threadIdx.x], sum = v;
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    int up = __shfl_up_sync(~0u, v, 3), down = __shfl_down_sync(~0u, v, 5, 16), index = __shfl_sync(~0u, v, lane * 7, 8);
    unsigned ballot = __ballot_sync(~0u, v & 1), match = __match_any_sync(~0u, v & 3);
    int all = __all_sync(~0u, v >= 0), any = __any_sync(~0u, v == 5), pred;
    unsigned match_all = __match_all_sync(~0u, v >> 31, &pred);
    int *o = out + threadIdx.x * 10;
    o[0] = sum, o[1] = up, o[2] = down, o[3] = index, o[4] = ballot, o[5] = match, o[6] = all * 2 + any, o[7] = match_all, o[8] = pred;
    o[9] = 0;
    if (lane < 20) o[9] = __activemask() ^ __ballot_sync(0xfffff, lane & 1);
}

#if __CUDA_ARCH__ >= 800
extern "C" __global__ void warp_reduce(const int *in, int *out) {
    int v = in[threadIdx.x];
    int *o = out + threadIdx.x * 6;
    o[0] = __reduce_add_sync(~0u, v), o[1] = __reduce_min_sync(~0u, v), o[2] = __reduce_max_sync(~0u, (unsigned)v);
    o[3] = __reduce_and_sync(~0u, v), o[4] = __reduce_or_sync(~0u, v), o[5] = __reduce_xor_sync(~0u, v);
}
#endif

// Each thread takes the lock in turn: works only when the lanes of a warp progress independently.
extern "C" __global__ void spin_lock(int *lock, int *total) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            *(volatile int *)total = *(volatile int *)total + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}
extern "C" __global__ void nested_spin_lock(int *lock, int *total) {
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    *(volatile int *)total = *(volatile int *)total + 1;
    __threadfence();
    atomicExch(lock, 0);
}

extern "C" __global__ void grid_barrier(int *data, int rounds) {
    cg::grid_group grid = cg::this_grid();
    int n = grid.size(), i = grid.thread_rank();
    for (int r = 0; r < rounds; r++) {
        int next = data[(i + 1) % n];
        grid.sync();
        data[i] += next;
        grid.sync();
    }
}

// The last block to finish adds up what all wrote.
__device__ unsigned finished;
extern "C" __global__ void last_block(int *partial, int *total) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = blockIdx.x * 3 + 1;
        __threadfence();
        last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += ((volatile int *)partial)[b];
        *total = sum;
    }
}

extern "C" __global__ void prints_and_asserts(int limit) {
    if (threadIdx.x == 3) printf("thread %d of block %d\n", threadIdx.x, blockIdx.x);
    assert((int)threadIdx.x < limit);
}

extern "C" __global__ void math(const float *x, float *y, const double *dx, double *dy) {
    int i = threadIdx.x;
    float v = x[i];
    y[i * 8 + 0] = sinf(v), y[i * 8 + 1] = expf(v), y[i * 8 + 2] = logf(fabsf(v) + 0.5f), y[i * 8 + 3] = powf(fabsf(v), 1.7f);
    y[i * 8 + 4] = sqrtf(fabsf(v)), y[i * 8 + 5] = v / (v * v + 1.0f), y[i * 8 + 6] = rsqrtf(fabsf(v) + 1.0f), y[i * 8 + 7] = tanhf(v);
    double d = dx[i];
    dy[i * 4 + 0] = sin(d), dy[i * 4 + 1] = exp(d), dy[i * 4 + 2] = log(fabs(d) + 0.5), dy[i * 4 + 3] = d / (sqrt(fabs(d)) + 1.0);
}

extern "C" __global__ void wide_integers(const uint64_t *a, const uint64_t *b, uint64_t *out) {
    int i = threadIdx.x;
    unsigned __int128 product = (unsigned __int128)a[i] * b[i] + b[i];
    out[i * 6 + 0] = (uint64_t)product, out[i * 6 + 1] = (uint64_t)(product >> 64);
    out[i * 6 + 2] = b[i] ? a[i] / b[i] : 0, out[i * 6 + 3] = b[i] ? a[i] % b[i] : 0;
    out[i * 6 + 4] = __umul64hi(a[i], b[i]);
    out[i * 6 + 5] = __popcll(a[i]) + __clzll(b[i]) * 256 + __ffsll(a[i]) * 65536;
}

extern "C" __global__ void half_storage(const float *x, __half *h, float *back) {
    int i = threadIdx.x;
    h[i] = __float2half_rn(x[i]);
    back[i] = __half2float(h[i]);
}

template <int BLOCK> __device__ void scan(int *data) {
    __shared__ int buffer[2][BLOCK];
    int t = threadIdx.x, from = 0;
    buffer[0][t] = data[blockIdx.x * BLOCK + t];
    __syncthreads();
    for (int o = 1; o < BLOCK; o *= 2) {
        buffer[1 - from][t] = buffer[from][t] + (t >= o ? buffer[from][t - o] : 0);
        from = 1 - from;
        __syncthreads();
    }
    data[blockIdx.x * BLOCK + t] = buffer[from][t];
}
extern "C" __global__ void __launch_bounds__(128, 2) prefix_sum(int *data) { scan<128>(data); }

extern "C" __global__ void matrix_multiply(const float *a, const float *b, float *c, int n) {
    __shared__ float ta[16][17], tb[16][17];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        ta[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        tb[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int j = 0; j < 16; j++) sum += ta[threadIdx.y][j] * tb[j][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
