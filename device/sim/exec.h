/* Executing PTX on the CPU: what the simulated driver (device/sim/) asks of the PTX front end and interpreter
 * (device/sim/ptx_*.c).
 *
 * A module is parsed and decoded once (sim_module_load) and is immutable afterwards; an instance binds its global and
 * constant variables to device memory of one simulated context. sim_launch_run executes a whole grid. */
#ifndef MUSTER_DEVICE_SIM_EXEC_H
#define MUSTER_DEVICE_SIM_EXEC_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --------------------------------------------------------------------------------------------------- device memory --
 * Implemented by the simulated driver. A device address is the host address of the same byte, so that
 * ThreadSanitizer sees every access; what is mapped is decided by the allocation table alone. */

/* One live allocation (or a mapped host allocation, or a module variable). Constant while a launch runs: freed memory
 * is poisoned and unmapped from the table in stream order, never under a running grid of a correct program. */
typedef struct sim_range {
    uint64_t low, high; /* [low, high) */
    bool writable;
    uint8_t *initialised; /* one bit a byte, set by writes; NULL when uninitialised reads are not reported */
} sim_range;

typedef struct sim_memory sim_memory; /* one per simulated context */

/* The range that holds `address`, or NULL. Thread-safe; the interpreter caches the answer for the length of a launch. */
const sim_range *sim_memory_lookup(sim_memory *memory, uint64_t address);

/* Describes where `address` lies relative to the nearest allocations ("4 bytes past the end of a 1024-byte allocation
 * at 0x...", "inside freed memory ..."), for fault messages. */
void sim_memory_describe(sim_memory *memory, uint64_t address, char *text, size_t bytes);

/* --------------------------------------------------------------------------------------------------------- modules -- */

typedef struct sim_module sim_module;
typedef struct sim_function sim_function;
typedef struct sim_instance sim_instance;

typedef struct sim_variable {
    const char *name;
    size_t bytes, alignment;
    bool constant; /* .const: read-only to kernels */
} sim_variable;

typedef struct sim_function_info {
    const char *name;
    size_t parameter_count;
    const size_t *parameter_offsets; /* in the parameter block, naturally aligned as the ABI does */
    const size_t *parameter_bytes;
    size_t parameter_block_bytes;
    size_t static_shared_bytes;
    size_t local_bytes;      /* per thread */
    int registers;           /* per thread: 32-bit registers, an estimate like ptxas's, at least 16, at most 255 */
    int max_threads;         /* .maxntid when given, else 1024 */
    int required_threads[3]; /* .reqntid, 0 when not given */
} sim_function_info;

/* Parses and decodes PTX text (`bytes` includes no terminator; a trailing NUL is accepted). `target_sm` is the
 * simulated device's architecture, e.g. 90. On failure writes a compiler-like log (line, instruction, what to do) and
 * returns CUDA_ERROR_INVALID_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_NO_BINARY_FOR_GPU (a .target above the
 * device) or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult sim_module_load(const char *text, size_t bytes, int target_sm, sim_module **out, char *log, size_t log_bytes);
void sim_module_free(sim_module *module);

size_t sim_module_function_count(const sim_module *module); /* entries only */
const sim_function *sim_module_function_at(const sim_module *module, size_t index);
const sim_function *sim_module_find_function(const sim_module *module, const char *name); /* NULL when absent */
const sim_function_info *sim_function_get_info(const sim_function *function);
size_t sim_module_variable_count(const sim_module *module);
const sim_variable *sim_module_variable_at(const sim_module *module, size_t index);

/* Binds the variables: `addresses[i]` is device memory of variable i, which this call fills with its initial value. */
CUresult sim_instance_create(const sim_module *module, const uint64_t *addresses, sim_instance **out);
void sim_instance_free(sim_instance *instance);

/* --------------------------------------------------------------------------------------------------------- launches -- */

typedef struct sim_fault {
    CUresult
        code; /* CUDA_ERROR_ILLEGAL_ADDRESS, _MISALIGNED_ADDRESS, _ASSERT, _LAUNCH_FAILED (trap), _LAUNCH_TIMEOUT ... */
    char message[512]; /* kernel, block, thread, PTX line, address, nearest allocation */
} sim_fault;

typedef struct sim_launch {
    const sim_function *function;
    const sim_instance *instance;
    sim_memory *memory;
    uint32_t grid[3], block[3];
    uint32_t dynamic_shared_bytes;
    const void *parameters; /* the parameter block, parameter_block_bytes long */
    bool cooperative;       /* all blocks run concurrently; grid-wide barriers work */
    uint32_t cluster[3];    /* 0 or 1: none */
    int sm_count;           /* for %nsmid and %smid */
    int warp_size;          /* 32 */
    int target_sm;
    uint64_t seed;               /* interleaving of warps and order of blocks */
    uint64_t max_instructions;   /* per launch, over all threads; 0: no watchdog. Exceeded: CUDA_ERROR_LAUNCH_TIMEOUT */
    uint32_t workers;            /* blocks run on so many host threads; 0 or 1: on the caller only */
    const volatile bool *cancel; /* may become true at any time: end with CUDA_ERROR_LAUNCH_TIMEOUT soon; may be NULL */
} sim_launch;

/* Runs the grid to its end. CUDA_SUCCESS, or the fault's code with `fault` filled (other blocks are stopped). Thread
 * instructions executed are added to *instructions when not NULL. Host threads it uses are ordered after the caller's
 * past and before its return, so that ThreadSanitizer judges accesses by the simulated streams' and events' order. */
CUresult sim_launch_run(const sim_launch *launch, sim_fault *fault, uint64_t *instructions);

#endif
