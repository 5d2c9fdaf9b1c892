/* Compiled twice, with the fallback <cuda.h> and with NVIDIA's, into two tables that fallback_test compares. With
 * NVIDIA's header it also holds the driver table's signatures against the real prototypes, at compile time. */
#if defined(FACTS_REAL) && !defined(MUSTER_HAVE_REAL_CUDA_HEADER)

#include "third_party/cuda/facts.h"

facts_table FACTS_NAME(void) { return (facts_table){NULL, 0, 0}; }

#else

/* Makes NVIDIA's header declare every version of an entry point under its exported name. */
#define __CUDA_API_VERSION_INTERNAL

#include "third_party/cuda/facts.h"

#include <cuda.h>
#include <stdint.h>

#define CONSTANT(name) {#name, (long long)(intptr_t)(name)},
#define SIZE(type)                                                                                                     \
    {"sizeof " #type, (long long)sizeof(type)}, { "alignof " #type, (long long)_Alignof(type) }
#define FIELD(type, field)                                                                                             \
    {"offsetof " #type "." #field, (long long)offsetof(type, field)}, {                                                \
        "sizeof " #type "." #field, (long long)sizeof(((type *)0)->field)                                              \
    }
/* Scalars: 1 when unsigned. */
#define UNSIGNED(type)                                                                                                 \
    { "unsigned " #type, (type)-1 > (type)0 }

static const facts_row rows[] = {
#include "third_party/cuda/fallback_constants.inc"
    SIZE(CUdevice),
    UNSIGNED(CUdevice),
    SIZE(CUdeviceptr),
    UNSIGNED(CUdeviceptr),
    SIZE(CUcontext),
    SIZE(CUmodule),
    SIZE(CUfunction),
    SIZE(CUstream),
    SIZE(CUevent),
    SIZE(CUgraph),
    SIZE(CUgraphNode),
    SIZE(CUgraphExec),
    SIZE(CUmemoryPool),
    SIZE(CUlinkState),
    SIZE(CUhostFn),
    SIZE(CUresult),
    SIZE(CUdevice_attribute),
    SIZE(CUdevice_P2PAttribute),
    SIZE(CUpointer_attribute),
    SIZE(CUmemPool_attribute),
    SIZE(CUjit_option),
    SIZE(CUjitInputType),
    SIZE(CUfunction_attribute),
    SIZE(CUstreamCaptureMode),
    SIZE(CUgraphDependencyType),
    SIZE(CUgraphExecUpdateResult),
    SIZE(CUuuid),
    FIELD(CUuuid, bytes),
    SIZE(CUDA_MEMCPY2D),
    FIELD(CUDA_MEMCPY2D, srcXInBytes),
    FIELD(CUDA_MEMCPY2D, srcY),
    FIELD(CUDA_MEMCPY2D, srcMemoryType),
    FIELD(CUDA_MEMCPY2D, srcHost),
    FIELD(CUDA_MEMCPY2D, srcDevice),
    FIELD(CUDA_MEMCPY2D, srcArray),
    FIELD(CUDA_MEMCPY2D, srcPitch),
    FIELD(CUDA_MEMCPY2D, dstXInBytes),
    FIELD(CUDA_MEMCPY2D, dstY),
    FIELD(CUDA_MEMCPY2D, dstMemoryType),
    FIELD(CUDA_MEMCPY2D, dstHost),
    FIELD(CUDA_MEMCPY2D, dstDevice),
    FIELD(CUDA_MEMCPY2D, dstArray),
    FIELD(CUDA_MEMCPY2D, dstPitch),
    FIELD(CUDA_MEMCPY2D, WidthInBytes),
    FIELD(CUDA_MEMCPY2D, Height),
    SIZE(CUmemLocation),
    FIELD(CUmemLocation, type),
    FIELD(CUmemLocation, id),
    SIZE(CUmemAccessDesc),
    FIELD(CUmemAccessDesc, location),
    FIELD(CUmemAccessDesc, flags),
    SIZE(CUmemPoolProps),
    FIELD(CUmemPoolProps, allocType),
    FIELD(CUmemPoolProps, handleTypes),
    FIELD(CUmemPoolProps, location),
    FIELD(CUmemPoolProps, win32SecurityAttributes),
    FIELD(CUmemPoolProps, maxSize),
    SIZE(CUlaunchAttributeValue),
    FIELD(CUlaunchAttributeValue, cooperative),
    FIELD(CUlaunchAttributeValue, clusterDim),
    FIELD(CUlaunchAttributeValue, clusterDim.y),
    FIELD(CUlaunchAttributeValue, clusterDim.z),
    FIELD(CUlaunchAttributeValue, programmaticStreamSerializationAllowed),
    FIELD(CUlaunchAttributeValue, priority),
    SIZE(CUlaunchAttribute),
    FIELD(CUlaunchAttribute, id),
    FIELD(CUlaunchAttribute, value),
    SIZE(CUlaunchConfig),
    FIELD(CUlaunchConfig, gridDimX),
    FIELD(CUlaunchConfig, gridDimZ),
    FIELD(CUlaunchConfig, blockDimX),
    FIELD(CUlaunchConfig, blockDimZ),
    FIELD(CUlaunchConfig, sharedMemBytes),
    FIELD(CUlaunchConfig, hStream),
    FIELD(CUlaunchConfig, attrs),
    FIELD(CUlaunchConfig, numAttrs),
    SIZE(CUDA_KERNEL_NODE_PARAMS),
    FIELD(CUDA_KERNEL_NODE_PARAMS, func),
    FIELD(CUDA_KERNEL_NODE_PARAMS, gridDimX),
    FIELD(CUDA_KERNEL_NODE_PARAMS, gridDimZ),
    FIELD(CUDA_KERNEL_NODE_PARAMS, blockDimX),
    FIELD(CUDA_KERNEL_NODE_PARAMS, blockDimZ),
    FIELD(CUDA_KERNEL_NODE_PARAMS, sharedMemBytes),
    FIELD(CUDA_KERNEL_NODE_PARAMS, kernelParams),
    FIELD(CUDA_KERNEL_NODE_PARAMS, extra),
    FIELD(CUDA_KERNEL_NODE_PARAMS, kern),
    FIELD(CUDA_KERNEL_NODE_PARAMS, ctx),
    SIZE(CUgraphEdgeData),
    FIELD(CUgraphEdgeData, from_port),
    FIELD(CUgraphEdgeData, to_port),
    FIELD(CUgraphEdgeData, type),
    FIELD(CUgraphEdgeData, reserved),
    SIZE(CUgraphExecUpdateResultInfo),
    FIELD(CUgraphExecUpdateResultInfo, result),
    FIELD(CUgraphExecUpdateResultInfo, errorNode),
    FIELD(CUgraphExecUpdateResultInfo, errorFromNode),
};

facts_table FACTS_NAME(void) { return (facts_table){rows, sizeof rows / sizeof rows[0], CUDA_VERSION}; }

#ifdef FACTS_REAL

#include "device/driver_entries.h"

/* The driver table as device/driver.h declares it, member by member against NVIDIA's prototype of the symbol. */
struct driver_table {
#define MEMBER(member, symbol, parameters) CUresult(CUDAAPI *member) parameters;
    MU_DRIVER_ENTRIES(MEMBER, MEMBER)
#undef MEMBER
};
#define PROTOTYPE(member, symbol)                                                                                      \
    _Static_assert(                                                                                                    \
        __builtin_types_compatible_p(__typeof__(&(symbol)), __typeof__(((struct driver_table *)0)->member)),           \
        #symbol " has other parameters than device/driver_entries.h says");
#include "third_party/cuda/driver_prototypes.inc"

#endif
#endif
