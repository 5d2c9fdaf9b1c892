/* The driver table's entries once more, with the names of their arguments, which is what the simulator needs to pass a
 * call on from the table of one instance to the function that does the work for all of them (sim_entry.c).
 *
 * SIM_ENTRIES(X, VOID):
 *     X(member, device, (parameters), (arguments))   `device` is the CUdevice the call names, or -1
 *     VOID(member)                                   no parameters
 * A mismatch with device/driver_entries.h does not compile; a missing entry fails a static assertion. */
#ifndef MUSTER_DEVICE_SIM_SIM_ENTRIES_H
#define MUSTER_DEVICE_SIM_SIM_ENTRIES_H

/* clang-format off */
#define SIM_ENTRIES(X, VOID)                                                                                           \
    X(init, -1, (unsigned int flags), (flags))                                                                         \
    X(driver_get_version, -1, (int *version), (version))                                                               \
    X(get_error_name, -1, (CUresult error, const char **name), (error, name))                                          \
    X(get_error_string, -1, (CUresult error, const char **text), (error, text))                                        \
    X(device_get_count, -1, (int *count), (count))                                                                     \
    X(device_get, -1, (CUdevice *device, int ordinal), (device, ordinal))                                              \
    X(device_get_name, device, (char *name, int length, CUdevice device), (name, length, device))                      \
    X(device_get_uuid, device, (CUuuid *uuid, CUdevice device), (uuid, device))                                        \
    X(device_get_pci_bus_id, device, (char *id, int length, CUdevice device), (id, length, device))                    \
    X(device_total_mem, device, (size_t *bytes, CUdevice device), (bytes, device))                                     \
    X(device_get_attribute, device, (int *value, CUdevice_attribute attribute, CUdevice device), (value, attribute, device)) \
    X(device_can_access_peer, device, (int *can, CUdevice device, CUdevice peer), (can, device, peer))                 \
    X(device_get_p2p_attribute, -1, (int *value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice destination), (value, attribute, source, destination)) \
    X(primary_ctx_retain, device, (CUcontext *context, CUdevice device), (context, device))                            \
    X(primary_ctx_release, device, (CUdevice device), (device))                                                        \
    X(ctx_create, device, (CUcontext *context, unsigned int flags, CUdevice device), (context, flags, device))         \
    X(ctx_destroy, -1, (CUcontext context), (context))                                                                 \
    X(ctx_push_current, -1, (CUcontext context), (context))                                                            \
    X(ctx_pop_current, -1, (CUcontext *context), (context))                                                            \
    X(ctx_get_current, -1, (CUcontext *context), (context))                                                            \
    X(ctx_set_current, -1, (CUcontext context), (context))                                                             \
    VOID(ctx_synchronize)                                                                                              \
    X(ctx_enable_peer_access, -1, (CUcontext peer, unsigned int flags), (peer, flags))                                 \
    X(stream_create, -1, (CUstream *stream, unsigned int flags), (stream, flags))                                      \
    X(stream_destroy, -1, (CUstream stream), (stream))                                                                 \
    X(stream_query, -1, (CUstream stream), (stream))                                                                   \
    X(stream_synchronize, -1, (CUstream stream), (stream))                                                             \
    X(stream_wait_event, -1, (CUstream stream, CUevent event, unsigned int flags), (stream, event, flags))             \
    X(event_create, -1, (CUevent *event, unsigned int flags), (event, flags))                                          \
    X(event_destroy, -1, (CUevent event), (event))                                                                     \
    X(event_record, -1, (CUevent event, CUstream stream), (event, stream))                                             \
    X(event_query, -1, (CUevent event), (event))                                                                       \
    X(event_synchronize, -1, (CUevent event), (event))                                                                 \
    X(event_elapsed_time, -1, (float *milliseconds, CUevent start, CUevent end), (milliseconds, start, end))           \
    X(stream_write_value32, -1, (CUstream stream, CUdeviceptr address, unsigned int value, unsigned int flags), (stream, address, value, flags)) \
    X(mem_get_info, -1, (size_t *free_bytes, size_t *total_bytes), (free_bytes, total_bytes))                          \
    X(mem_alloc, -1, (CUdeviceptr *pointer, size_t bytes), (pointer, bytes))                                           \
    X(mem_free, -1, (CUdeviceptr pointer), (pointer))                                                                  \
    X(mem_host_alloc, -1, (void **pointer, size_t bytes, unsigned int flags), (pointer, bytes, flags))                 \
    X(mem_free_host, -1, (void *pointer), (pointer))                                                                   \
    X(mem_host_register, -1, (void *pointer, size_t bytes, unsigned int flags), (pointer, bytes, flags))               \
    X(mem_host_unregister, -1, (void *pointer), (pointer))                                                             \
    X(mem_host_get_device_pointer, -1, (CUdeviceptr *pointer, void *host, unsigned int flags), (pointer, host, flags)) \
    X(pointer_get_attribute, -1, (void *value, CUpointer_attribute attribute, CUdeviceptr pointer), (value, attribute, pointer)) \
    X(memcpy_htod, -1, (CUdeviceptr destination, const void *source, size_t bytes), (destination, source, bytes))      \
    X(memcpy_dtoh, -1, (void *destination, CUdeviceptr source, size_t bytes), (destination, source, bytes))            \
    X(memcpy_htod_async, -1, (CUdeviceptr destination, const void *source, size_t bytes, CUstream stream), (destination, source, bytes, stream)) \
    X(memcpy_dtoh_async, -1, (void *destination, CUdeviceptr source, size_t bytes, CUstream stream), (destination, source, bytes, stream)) \
    X(memcpy_dtod_async, -1, (CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream), (destination, source, bytes, stream)) \
    X(memcpy_peer_async, -1, (CUdeviceptr destination, CUcontext destination_context, CUdeviceptr source, CUcontext source_context, size_t bytes, CUstream stream), (destination, destination_context, source, source_context, bytes, stream)) \
    X(memcpy_2d_async, -1, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream))                               \
    X(memset_d8_async, -1, (CUdeviceptr destination, unsigned char value, size_t count, CUstream stream), (destination, value, count, stream)) \
    X(memset_d16_async, -1, (CUdeviceptr destination, unsigned short value, size_t count, CUstream stream), (destination, value, count, stream)) \
    X(memset_d2d8_async, -1, (CUdeviceptr destination, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream), (destination, pitch, value, width, height, stream)) \
    X(memset_d32_async, -1, (CUdeviceptr destination, unsigned int value, size_t count, CUstream stream), (destination, value, count, stream)) \
    X(mem_pool_create, -1, (CUmemoryPool *pool, const CUmemPoolProps *properties), (pool, properties))                 \
    X(mem_pool_destroy, -1, (CUmemoryPool pool), (pool))                                                               \
    X(mem_pool_set_attribute, -1, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value)) \
    X(mem_pool_get_attribute, -1, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value)) \
    X(mem_pool_set_access, -1, (CUmemoryPool pool, const CUmemAccessDesc *map, size_t count), (pool, map, count))      \
    X(mem_pool_trim_to, -1, (CUmemoryPool pool, size_t keep_bytes), (pool, keep_bytes))                                \
    X(mem_alloc_from_pool_async, -1, (CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream), (pointer, bytes, pool, stream)) \
    X(mem_free_async, -1, (CUdeviceptr pointer, CUstream stream), (pointer, stream))                                   \
    X(module_load_data_ex, -1, (CUmodule *module, const void *image, unsigned int options, CUjit_option *names, void **values), (module, image, options, names, values)) \
    X(module_unload, -1, (CUmodule module), (module))                                                                  \
    X(module_get_function, -1, (CUfunction *function, CUmodule module, const char *name), (function, module, name))    \
    X(module_get_global, -1, (CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name), (pointer, bytes, module, name)) \
    X(link_create, -1, (unsigned int options, CUjit_option *names, void **values, CUlinkState *state), (options, names, values, state)) \
    X(link_add_data, -1, (CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name, unsigned int options, CUjit_option *names, void **values), (state, type, data, bytes, name, options, names, values)) \
    X(link_complete, -1, (CUlinkState state, void **cubin, size_t *bytes), (state, cubin, bytes))                      \
    X(link_destroy, -1, (CUlinkState state), (state))                                                                  \
    X(func_get_attribute, -1, (int *value, CUfunction_attribute attribute, CUfunction function), (value, attribute, function)) \
    X(func_set_attribute, -1, (CUfunction function, CUfunction_attribute attribute, int value), (function, attribute, value)) \
    X(module_get_function_count, -1, (unsigned int *count, CUmodule module), (count, module))                          \
    X(module_enumerate_functions, -1, (CUfunction *functions, unsigned int count, CUmodule module), (functions, count, module)) \
    X(func_get_name, -1, (const char **name, CUfunction function), (name, function))                                   \
    X(func_get_param_info, -1, (CUfunction function, size_t index, size_t *offset, size_t *bytes), (function, index, offset, bytes)) \
    X(func_load, -1, (CUfunction function), (function))                                                                \
    X(launch_kernel, -1, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters, void **extra), (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra)) \
    X(launch_cooperative_kernel, -1, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters), (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters)) \
    X(launch_kernel_ex, -1, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra), (config, function, parameters, extra)) \
    X(launch_host_func, -1, (CUstream stream, CUhostFn function, void *user), (stream, function, user))                \
    X(occupancy_max_active_blocks, -1, (int *blocks, CUfunction function, int block_threads, size_t dynamic_shared_bytes), (blocks, function, block_threads, dynamic_shared_bytes)) \
    X(occupancy_max_active_clusters, -1, (int *clusters, CUfunction function, const CUlaunchConfig *config), (clusters, function, config)) \
    X(graph_create, -1, (CUgraph *graph, unsigned int flags), (graph, flags))                                          \
    X(graph_destroy, -1, (CUgraph graph), (graph))                                                                     \
    X(graph_add_kernel_node, -1, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters), (node, graph, dependencies, count, parameters)) \
    X(graph_add_empty_node, -1, (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count), (node, graph, dependencies, count)) \
    X(graph_add_dependencies, -1, (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t count), (graph, from, to, edges, count)) \
    X(graph_instantiate, -1, (CUgraphExec *exec, CUgraph graph, unsigned long long flags), (exec, graph, flags))       \
    X(graph_exec_kernel_node_set_params, -1, (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters), (exec, node, parameters)) \
    X(graph_kernel_node_set_params, -1, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters), (node, parameters)) \
    X(graph_node_set_enabled, -1, (CUgraphExec exec, CUgraphNode node, unsigned int enabled), (exec, node, enabled))   \
    X(graph_exec_update, -1, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *result), (exec, graph, result)) \
    X(graph_upload, -1, (CUgraphExec exec, CUstream stream), (exec, stream))                                           \
    X(graph_launch, -1, (CUgraphExec exec, CUstream stream), (exec, stream))                                           \
    X(graph_exec_destroy, -1, (CUgraphExec exec), (exec))                                                              \
    X(thread_exchange_stream_capture_mode, -1, (CUstreamCaptureMode *mode), (mode)) \
    X(stream_begin_capture, -1, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))                           \
    X(stream_end_capture, -1, (CUstream stream, CUgraph *graph), (stream, graph))
/* clang-format on */

#endif
