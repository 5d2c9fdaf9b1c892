/* The Driver API entry points Muster may call, in one list.
 *
 * MU_DRIVER_ENTRIES(REQUIRED, OPTIONAL) expands one of the two macros per entry:
 *     X(member, "exported symbol", (parameters))
 * Every entry returns CUresult. Symbols carry the version suffix of the ABI that the parameters describe, so the
 * meaning of a member never depends on which <cuda.h> it was compiled with. A driver that lacks a REQUIRED symbol is
 * refused when it is opened; a missing OPTIONAL member is NULL, and its one caller says what it does then.
 *
 * The simulator (device/sim/) fills the same table. To use a new entry: add it here, to the simulator, to
 * third_party/cuda/cuda.h (the fallback declarations) and to tests/conformance/. */
#ifndef MUSTER_DEVICE_DRIVER_ENTRIES_H
#define MUSTER_DEVICE_DRIVER_ENTRIES_H

/* clang-format off */
#define MU_DRIVER_ENTRIES(REQUIRED, OPTIONAL)                                                                        \
    /* library and devices */                                                                                        \
    REQUIRED(init, "cuInit", (unsigned int flags))                                                                   \
    REQUIRED(driver_get_version, "cuDriverGetVersion", (int *version))                                               \
    REQUIRED(get_error_name, "cuGetErrorName", (CUresult error, const char **name))                                  \
    REQUIRED(get_error_string, "cuGetErrorString", (CUresult error, const char **text))                              \
    REQUIRED(device_get_count, "cuDeviceGetCount", (int *count))                                                     \
    REQUIRED(device_get, "cuDeviceGet", (CUdevice *device, int ordinal))                                             \
    REQUIRED(device_get_name, "cuDeviceGetName", (char *name, int length, CUdevice device))                          \
    REQUIRED(device_get_uuid, "cuDeviceGetUuid_v2", (CUuuid *uuid, CUdevice device))                                 \
    REQUIRED(device_get_pci_bus_id, "cuDeviceGetPCIBusId", (char *id, int length, CUdevice device))                  \
    REQUIRED(device_total_mem, "cuDeviceTotalMem_v2", (size_t *bytes, CUdevice device))                              \
    REQUIRED(device_get_attribute, "cuDeviceGetAttribute", (int *value, CUdevice_attribute attribute, CUdevice device)) \
    REQUIRED(device_can_access_peer, "cuDeviceCanAccessPeer", (int *can, CUdevice device, CUdevice peer))            \
    REQUIRED(device_get_p2p_attribute, "cuDeviceGetP2PAttribute", (int *value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice destination)) \
    /* contexts */                                                                                                   \
    REQUIRED(primary_ctx_retain, "cuDevicePrimaryCtxRetain", (CUcontext *context, CUdevice device))                  \
    REQUIRED(primary_ctx_release, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                                 \
    REQUIRED(ctx_create, "cuCtxCreate_v2", (CUcontext *context, unsigned int flags, CUdevice device))                \
    REQUIRED(ctx_destroy, "cuCtxDestroy_v2", (CUcontext context))                                                    \
    REQUIRED(ctx_push_current, "cuCtxPushCurrent_v2", (CUcontext context))                                           \
    REQUIRED(ctx_pop_current, "cuCtxPopCurrent_v2", (CUcontext *context))                                            \
    REQUIRED(ctx_get_current, "cuCtxGetCurrent", (CUcontext *context))                                               \
    REQUIRED(ctx_set_current, "cuCtxSetCurrent", (CUcontext context))                                                \
    REQUIRED(ctx_synchronize, "cuCtxSynchronize", (void))                                                            \
    REQUIRED(ctx_enable_peer_access, "cuCtxEnablePeerAccess", (CUcontext peer, unsigned int flags))                  \
    /* streams and events */                                                                                         \
    REQUIRED(stream_create, "cuStreamCreate", (CUstream *stream, unsigned int flags))                                \
    REQUIRED(stream_destroy, "cuStreamDestroy_v2", (CUstream stream))                                                \
    REQUIRED(stream_query, "cuStreamQuery", (CUstream stream))                                                       \
    REQUIRED(stream_synchronize, "cuStreamSynchronize", (CUstream stream))                                           \
    REQUIRED(stream_wait_event, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned int flags))           \
    REQUIRED(event_create, "cuEventCreate", (CUevent *event, unsigned int flags))                                    \
    REQUIRED(event_destroy, "cuEventDestroy_v2", (CUevent event))                                                    \
    REQUIRED(event_record, "cuEventRecord", (CUevent event, CUstream stream))                                        \
    REQUIRED(event_query, "cuEventQuery", (CUevent event))                                                           \
    REQUIRED(event_synchronize, "cuEventSynchronize", (CUevent event))                                               \
    REQUIRED(event_elapsed_time, "cuEventElapsedTime", (float *milliseconds, CUevent start, CUevent end))            \
    OPTIONAL(stream_write_value32, "cuStreamWriteValue32_v2", (CUstream stream, CUdeviceptr address, unsigned int value, unsigned int flags)) /* 11.7 */ \
    /* memory */                                                                                                     \
    REQUIRED(mem_get_info, "cuMemGetInfo_v2", (size_t *free_bytes, size_t *total_bytes))                             \
    REQUIRED(mem_alloc, "cuMemAlloc_v2", (CUdeviceptr *pointer, size_t bytes))                                       \
    REQUIRED(mem_free, "cuMemFree_v2", (CUdeviceptr pointer))                                                        \
    REQUIRED(mem_host_alloc, "cuMemHostAlloc", (void **pointer, size_t bytes, unsigned int flags))                   \
    REQUIRED(mem_free_host, "cuMemFreeHost", (void *pointer))                                                        \
    REQUIRED(mem_host_register, "cuMemHostRegister_v2", (void *pointer, size_t bytes, unsigned int flags))           \
    REQUIRED(mem_host_unregister, "cuMemHostUnregister", (void *pointer))                                            \
    REQUIRED(mem_host_get_device_pointer, "cuMemHostGetDevicePointer_v2", (CUdeviceptr *pointer, void *host, unsigned int flags)) \
    REQUIRED(pointer_get_attribute, "cuPointerGetAttribute", (void *value, CUpointer_attribute attribute, CUdeviceptr pointer)) \
    REQUIRED(memcpy_htod, "cuMemcpyHtoD_v2", (CUdeviceptr destination, const void *source, size_t bytes))            \
    REQUIRED(memcpy_dtoh, "cuMemcpyDtoH_v2", (void *destination, CUdeviceptr source, size_t bytes))                  \
    REQUIRED(memcpy_htod_async, "cuMemcpyHtoDAsync_v2", (CUdeviceptr destination, const void *source, size_t bytes, CUstream stream)) \
    REQUIRED(memcpy_dtoh_async, "cuMemcpyDtoHAsync_v2", (void *destination, CUdeviceptr source, size_t bytes, CUstream stream)) \
    REQUIRED(memcpy_dtod_async, "cuMemcpyDtoDAsync_v2", (CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream)) \
    REQUIRED(memcpy_peer_async, "cuMemcpyPeerAsync", (CUdeviceptr destination, CUcontext destination_context, CUdeviceptr source, CUcontext source_context, size_t bytes, CUstream stream)) \
    REQUIRED(memcpy_2d_async, "cuMemcpy2DAsync_v2", (const CUDA_MEMCPY2D *copy, CUstream stream))                    \
    REQUIRED(memset_d8_async, "cuMemsetD8Async", (CUdeviceptr destination, unsigned char value, size_t count, CUstream stream)) \
    REQUIRED(memset_d16_async, "cuMemsetD16Async", (CUdeviceptr destination, unsigned short value, size_t count, CUstream stream)) \
    REQUIRED(memset_d2d8_async, "cuMemsetD2D8Async", (CUdeviceptr destination, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream)) \
    REQUIRED(memset_d32_async, "cuMemsetD32Async", (CUdeviceptr destination, unsigned int value, size_t count, CUstream stream)) \
    /* stream-ordered pools */                                                                                       \
    REQUIRED(mem_pool_create, "cuMemPoolCreate", (CUmemoryPool *pool, const CUmemPoolProps *properties))             \
    REQUIRED(mem_pool_destroy, "cuMemPoolDestroy", (CUmemoryPool pool))                                              \
    REQUIRED(mem_pool_set_attribute, "cuMemPoolSetAttribute", (CUmemoryPool pool, CUmemPool_attribute attribute, void *value)) \
    REQUIRED(mem_pool_get_attribute, "cuMemPoolGetAttribute", (CUmemoryPool pool, CUmemPool_attribute attribute, void *value)) \
    REQUIRED(mem_pool_set_access, "cuMemPoolSetAccess", (CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)) \
    REQUIRED(mem_pool_trim_to, "cuMemPoolTrimTo", (CUmemoryPool pool, size_t keep_bytes))                            \
    REQUIRED(mem_alloc_from_pool_async, "cuMemAllocFromPoolAsync", (CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)) \
    REQUIRED(mem_free_async, "cuMemFreeAsync", (CUdeviceptr pointer, CUstream stream))                               \
    /* modules, functions, linking */                                                                                \
    REQUIRED(module_load_data_ex, "cuModuleLoadDataEx", (CUmodule *module, const void *image, unsigned int options, CUjit_option *names, void **values)) \
    REQUIRED(module_unload, "cuModuleUnload", (CUmodule module))                                                     \
    REQUIRED(module_get_function, "cuModuleGetFunction", (CUfunction *function, CUmodule module, const char *name))  \
    REQUIRED(module_get_global, "cuModuleGetGlobal_v2", (CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name)) \
    REQUIRED(link_create, "cuLinkCreate_v2", (unsigned int options, CUjit_option *names, void **values, CUlinkState *state)) \
    REQUIRED(link_add_data, "cuLinkAddData_v2", (CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name, unsigned int options, CUjit_option *names, void **values)) \
    REQUIRED(link_complete, "cuLinkComplete", (CUlinkState state, void **cubin, size_t *bytes))                      \
    REQUIRED(link_destroy, "cuLinkDestroy", (CUlinkState state))                                                     \
    REQUIRED(func_get_attribute, "cuFuncGetAttribute", (int *value, CUfunction_attribute attribute, CUfunction function)) \
    REQUIRED(func_set_attribute, "cuFuncSetAttribute", (CUfunction function, CUfunction_attribute attribute, int value)) \
    OPTIONAL(module_get_function_count, "cuModuleGetFunctionCount", (unsigned int *count, CUmodule module))          \
    OPTIONAL(module_enumerate_functions, "cuModuleEnumerateFunctions", (CUfunction *functions, unsigned int count, CUmodule module)) \
    OPTIONAL(func_get_name, "cuFuncGetName", (const char **name, CUfunction function))                               \
    OPTIONAL(func_get_param_info, "cuFuncGetParamInfo", (CUfunction function, size_t index, size_t *offset, size_t *bytes)) \
    OPTIONAL(func_load, "cuFuncLoad", (CUfunction function))                                                         \
    /* launches and occupancy */                                                                                     \
    REQUIRED(launch_kernel, "cuLaunchKernel", (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)) \
    REQUIRED(launch_cooperative_kernel, "cuLaunchCooperativeKernel", (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters)) \
    OPTIONAL(launch_kernel_ex, "cuLaunchKernelEx", (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)) \
    REQUIRED(launch_host_func, "cuLaunchHostFunc", (CUstream stream, CUhostFn function, void *user))                 \
    REQUIRED(occupancy_max_active_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int *blocks, CUfunction function, int block_threads, size_t dynamic_shared_bytes)) \
    OPTIONAL(occupancy_max_active_clusters, "cuOccupancyMaxActiveClusters", (int *clusters, CUfunction function, const CUlaunchConfig *config)) \
    /* graphs and capture */                                                                                         \
    REQUIRED(graph_create, "cuGraphCreate", (CUgraph *graph, unsigned int flags))                                    \
    REQUIRED(graph_destroy, "cuGraphDestroy", (CUgraph graph))                                                       \
    REQUIRED(graph_add_kernel_node, "cuGraphAddKernelNode_v2", (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters)) \
    REQUIRED(graph_add_empty_node, "cuGraphAddEmptyNode", (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)) \
    OPTIONAL(graph_add_dependencies, "cuGraphAddDependencies_v2", (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t count)) \
    REQUIRED(graph_instantiate, "cuGraphInstantiateWithFlags", (CUgraphExec *exec, CUgraph graph, unsigned long long flags)) \
    REQUIRED(graph_exec_kernel_node_set_params, "cuGraphExecKernelNodeSetParams_v2", (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)) \
    REQUIRED(graph_kernel_node_set_params, "cuGraphKernelNodeSetParams_v2", (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)) \
    REQUIRED(graph_node_set_enabled, "cuGraphNodeSetEnabled", (CUgraphExec exec, CUgraphNode node, unsigned int enabled)) \
    REQUIRED(graph_exec_update, "cuGraphExecUpdate_v2", (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *result)) \
    REQUIRED(graph_upload, "cuGraphUpload", (CUgraphExec exec, CUstream stream))                                     \
    REQUIRED(graph_launch, "cuGraphLaunch", (CUgraphExec exec, CUstream stream))                                     \
    REQUIRED(graph_exec_destroy, "cuGraphExecDestroy", (CUgraphExec exec))                                           \
    REQUIRED(thread_exchange_stream_capture_mode, "cuThreadExchangeStreamCaptureMode", (CUstreamCaptureMode *mode)) \
    REQUIRED(stream_begin_capture, "cuStreamBeginCapture_v2", (CUstream stream, CUstreamCaptureMode mode))           \
    REQUIRED(stream_end_capture, "cuStreamEndCapture", (CUstream stream, CUgraph *graph))
/* clang-format on */

#endif
