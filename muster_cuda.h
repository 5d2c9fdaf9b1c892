/* Muster's handles as the Driver API's own, for enqueue callbacks (muster_graph_enqueue) that call CUDA or its libraries.
 *
 * Include it instead of muster.h, or after it; <cuda.h> must be found. Nothing here is part of libmuster. */
#ifndef MUSTER_CUDA_H
#define MUSTER_CUDA_H

#include <cuda.h>

#include "muster.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Current on the thread that calls. */
static inline CUcontext muster_cuda_context(const muster_enqueue_context *context) {
    return (CUcontext)context->context;
}

/* A cudaStream_t of the runtime API is the same. */
static inline CUstream muster_cuda_stream(const muster_enqueue_context *context) { return (CUstream)context->stream; }

/* The first byte of argument `index` on the device. */
static inline CUdeviceptr muster_cuda_address(const muster_enqueue_context *context, uint32_t index) {
    return (CUdeviceptr)context->addresses[index];
}

#ifdef __cplusplus
}
#endif

#endif
