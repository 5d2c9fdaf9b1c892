/* Choosing a driver by name. */
#include <string.h>

#include "base/error.h"
#include "device/device.h"
#include "device/driver.h"
#include "device/sim/sim.h"

static muster_status open_simulated(const char *spec, mu_driver **driver, muster_error *error) {
    mu_driver *made;
    muster_status status = mu_sim_driver_create(spec, &made, error);
    if (status) return status;
    CUresult code = made->init(0);
    if (code == CUDA_SUCCESS) {
        *driver = made;
        return MUSTER_OK;
    }
    status = mu_driver_fail(made, code, error, "cuInit of the simulated driver");
    mu_driver_release(made);
    return status;
}

muster_status mu_driver_open(const char *name, const char *sim_spec, mu_driver **driver, muster_error *error) {
    if (strcmp(name, "cuda") == 0) return mu_cuda_driver_open(driver, error);
    if (strcmp(name, "sim") == 0) return open_simulated(sim_spec, driver, error);
    return mu_fail(error, MUSTER_INVALID_CONFIG, "there is no driver \"%.64s\"; choose \"cuda\" or \"sim\"", name);
}

bool mu_driver_last_fault(const mu_driver *driver, char *text, size_t bytes) {
    return driver->kind == MU_DRIVER_SIM && mu_sim_last_fault(driver, text, bytes) != CUDA_SUCCESS;
}
