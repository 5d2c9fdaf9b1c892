/* Choosing a driver by name. */
#include <string.h>

#include "base/error.h"
#include "device/device.h"
#include "device/driver.h"
#include "device/sim/sim.h"

muster_status mu_driver_open(const char *name, const char *sim_spec, mu_driver **driver, muster_error *error) {
    if (strcmp(name, "cuda") == 0) return mu_cuda_driver_open(driver, error);
    if (strcmp(name, "sim") == 0) return mu_sim_driver_create(sim_spec, driver, error);
    return mu_fail(error, MUSTER_INVALID_CONFIG, "there is no driver \"%.64s\"; choose \"cuda\" or \"sim\"", name);
}
