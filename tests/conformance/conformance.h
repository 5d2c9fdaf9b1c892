/* What every driver table promises, as tests that know only device/driver.h. The program runs them on the simulator
 * and, where libcuda opens, on the real driver; see main.c. */
#ifndef MUSTER_TESTS_CONFORMANCE_CONFORMANCE_H
#define MUSTER_TESTS_CONFORMANCE_CONFORMANCE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/driver.h"

enum { MAX_DEVICES = 2 };

/* One device of the driver under test, with everything most tests need. Its context is current in the main thread for
 * device 0. */
typedef struct machine_device {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction mix, copy, number, staged, bounded, global, hold, count;
    CUstream stream; /* non-blocking, idle at the start of each test */
} machine_device;

typedef struct machine {
    mu_driver *driver;
    int device_count; /* opened: at most MAX_DEVICES */
    machine_device devices[MAX_DEVICES];
} machine;

/* The machine under test, set before the groups run. */
extern machine *under_test;
#define DRIVER (under_test->driver)
#define DEVICE0 (&under_test->devices[0])
#define DEVICE1 (&under_test->devices[1])

/* Opens "sim" or "cuda"; NULL with the reason on stderr when it cannot be. */
mu_driver *conformance_open(const char *name);

/* Fails the test with the codes' names. */
#define assert_code(expression, expected) check_code((expression), (expected), #expression, __FILE__, __LINE__)
#define assert_success(expression) assert_code(expression, CUDA_SUCCESS)
void check_code(CUresult code, CUresult expected, const char *what, const char *file, int line);

/* Skips the test, and says why, unless there are two devices that reach each other (pairs) or at all. */
void need_two_devices(bool peers);

/* Launches with one thread. */
CUresult launch_mix(machine_device *on, CUstream stream, CUdeviceptr p, uint32_t v);
CUresult launch_copy(machine_device *on, CUstream stream, CUdeviceptr to, CUdeviceptr from);

/* Device memory of the current context, zeroed; freed by release_memory. */
CUdeviceptr fresh_memory(size_t bytes);
void release_memory(CUdeviceptr pointer);
uint32_t read_word(CUdeviceptr pointer);
void write_word(CUdeviceptr pointer, uint32_t value);

/* A host function that holds a stream until the gate is opened: the way to build up a backlog on any driver. */
typedef struct gate gate;
gate *gate_close(CUstream stream);
void gate_open(gate *held); /* frees it once the stream has passed */

/* The same, but on hardware by a kernel that runs: a host function is queued in a way of its own. The simulator runs
 * one kernel at a time on a device, so that there it stays a host function, and other streams go on. */
gate *gate_close_busy(machine_device *on, CUstream stream);

/* Runs `body` in a child process that has not touched any driver; returns its exit code, and fails the test when it
 * died of a signal. */
int in_child(const char *driver_name, int (*body)(mu_driver *driver));
extern const char *driver_name;

/* The groups. */
int run_order_tests(void);
int run_memory_tests(void);
int run_pool_tests(void);
int run_module_tests(void);
int run_launch_tests(void);
int run_graph_tests(void);
int run_context_tests(void);
int run_blocking_tests(void);
int run_fault_tests(void);

#endif
