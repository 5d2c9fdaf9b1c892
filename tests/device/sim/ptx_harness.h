/* For tests of the PTX interpreter alone: device memory without a driver, and launching in one call. */
#ifndef MUSTER_TESTS_DEVICE_SIM_PTX_HARNESS_H
#define MUSTER_TESTS_DEVICE_SIM_PTX_HARNESS_H

#include "device/sim/exec.h"

enum { HARNESS_RANGES = 64, HARNESS_LOG = 1024 };

struct sim_memory {
    sim_range ranges[HARNESS_RANGES];
    unsigned count;
};

/* One loaded module with an instance and device memory. Everything fails the running test when it goes wrong. */
typedef struct harness {
    sim_memory memory;
    sim_module *module;
    sim_instance *instance;
    void *variables[HARNESS_RANGES];
    unsigned variable_count;
    void *owned[HARNESS_RANGES];
    unsigned owned_count;
    sim_fault fault;
    uint64_t instructions;
    sim_launch launch; /* defaults of the next launches: workers, seed, limits ... */
} harness;

/* Loads the text for sm_90 and binds its variables. */
void harness_load(harness *h, const char *text);
/* Loads a file of tests/device/sim/ptx_corpus. */
void harness_load_file(harness *h, const char *name);
void harness_free(harness *h);
char *harness_read(const char *path); /* whole file, NUL-terminated; free it */

/* Zeroed device memory. */
void *harness_alloc(harness *h, size_t bytes);
/* The same with a bitmap of what has been written: nothing, at first. */
void *harness_alloc_tracked(harness *h, size_t bytes);
void *harness_variable(harness *h, const char *name);

/* Launches; `parameters` are the kernel's parameter block. Returns the code; the fault is in h->fault. */
CUresult harness_run(harness *h, const char *kernel, uint32_t grid, uint32_t block, const void *parameters);
/* And asserts that it succeeds. */
void harness_ok(harness *h, const char *kernel, uint32_t grid, uint32_t block, const void *parameters);

/* Loads text that must be refused; returns the log (static storage). */
const char *harness_refused(const char *text, CUresult code);

/* Repeatable random numbers, edge values among them. */
uint32_t harness_random(uint64_t *state);
uint32_t harness_edge32(uint64_t *state); /* an integer, often at an edge */
uint64_t harness_edge64(uint64_t *state);
uint32_t harness_float32(uint64_t *state); /* bits of a float: any class */
uint64_t harness_float64(uint64_t *state);

#endif
