/* One simulated driver with a context of device 0 current, for tests of what only the simulator promises. */
#ifndef MUSTER_TESTS_DEVICE_SIM_FIXTURE_H
#define MUSTER_TESTS_DEVICE_SIM_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/sim/sim.h"
#include "tests/conformance/kernels.h"

typedef struct fixture {
    mu_driver *driver;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction mix, copy, trap;
    CUstream stream;
} fixture;

#define assert_code(expression, expected) assert_int_equal((int)(expression), (int)(expected))
#define assert_success(expression) assert_code(expression, CUDA_SUCCESS)

static inline mu_driver *create_driver(const char *spec) {
    mu_driver *driver = NULL;
    muster_error error;
    if (mu_sim_driver_create(spec, &driver, &error) != MUSTER_OK)
        fail_msg("%s: %s", spec ? spec : "MUSTER_SIM", error.message);
    return driver;
}

/* Without the module, for plans that count calls. */
static inline fixture open_bare(const char *spec) {
    fixture f = {.driver = create_driver(spec)};
    assert_success(f.driver->init(0));
    assert_success(f.driver->device_get(&f.device, 0));
    assert_success(f.driver->primary_ctx_retain(&f.context, f.device));
    assert_success(f.driver->ctx_set_current(f.context));
    assert_success(f.driver->stream_create(&f.stream, CU_STREAM_NON_BLOCKING));
    return f;
}

static inline void load_kernels(fixture *f) {
    assert_success(f->driver->module_load_data_ex(&f->module, kernels_ptx, 0, NULL, NULL));
    assert_success(f->driver->module_get_function(&f->mix, f->module, "mix"));
    assert_success(f->driver->module_get_function(&f->copy, f->module, "copy"));
    assert_success(f->driver->module_get_function(&f->trap, f->module, "trap"));
}

static inline fixture open_fixture(const char *spec) {
    fixture f = open_bare(spec);
    load_kernels(&f);
    return f;
}

static inline CUresult launch_mix(const fixture *f, CUstream stream, CUdeviceptr p, uint32_t v) {
    void *parameters[] = {&p, &v};
    return f->driver->launch_kernel(f->mix, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static inline CUresult launch_copy(const fixture *f, CUstream stream, CUdeviceptr to, CUdeviceptr from) {
    void *parameters[] = {&to, &from};
    return f->driver->launch_kernel(f->copy, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static inline CUdeviceptr zeroed(const fixture *f, size_t bytes) {
    CUdeviceptr pointer = 0;
    assert_success(f->driver->mem_alloc(&pointer, bytes));
    assert_success(f->driver->memset_d8_async(pointer, 0, bytes, f->stream));
    assert_success(f->driver->stream_synchronize(f->stream));
    return pointer;
}

#endif
