/* What a fault does to the rest of the process, as measured on hardware:
 *
 * - An illegal address makes every later call in every context of every device return it.
 * - Another fault of a kernel (trap, assertion, misaligned address, time limit) does so in its own context at once, and
 *   in the others once somebody has seen it there.
 * - New contexts fail with it; destroying contexts works.
 * - A device that is lost fails alone. */
#include <stdio.h>
#include <string.h>

#include "device/sim/sim_queue.h"

/* All relaxed: a call that begins while a fault happens may come before or after it. `troubled` is set last, so that
 * who sees it finds the reason, except across processors for a moment, which is before. */

static void latch(atomic_int *code, CUresult value) {
    int none = CUDA_SUCCESS;
    atomic_compare_exchange_strong(code, &none, (int)value);
}

static int error_of(sim_context *context) {
    sim_driver *driver = context->driver;
    int code = atomic_load_explicit(&driver->fault, memory_order_relaxed);
    if (code != CUDA_SUCCESS) return code;
    code = atomic_load_explicit(&context->error, memory_order_relaxed);
    if (code != CUDA_SUCCESS) {
        latch(&driver->fault, (CUresult)code);
        return code;
    }
    return atomic_load_explicit(&context->device->error, memory_order_relaxed);
}

CUresult sim_fault_observe(sim_context *context) {
    int code = error_of(context);
    if (code != CUDA_SUCCESS) {
        MU_TSAN_ACQUIRE(&context->driver->fault_order); /* pairs with report's release */
        MU_TSAN_ACQUIRE(&context->device->order);       /* a device that has failed does no more than it did */
    }
    return (CUresult)code;
}

bool sim_fault_drops(const sim_context *context) {
    if (!atomic_load_explicit(&context->driver->troubled, memory_order_relaxed)) return false;
    return atomic_load_explicit(&context->driver->fault, memory_order_relaxed) != CUDA_SUCCESS ||
           atomic_load_explicit(&context->error, memory_order_relaxed) != CUDA_SUCCESS ||
           atomic_load_explicit(&context->device->error, memory_order_relaxed) != CUDA_SUCCESS;
}

CUresult sim_fault_new_context(const sim_device *device) {
    int code = atomic_load_explicit(&device->driver->fault, memory_order_relaxed);
    if (code == CUDA_SUCCESS) code = atomic_load_explicit(&device->error, memory_order_relaxed);
    if (code == CUDA_SUCCESS) code = atomic_load_explicit(&device->tainted, memory_order_relaxed);
    return (CUresult)code;
}

static void report(sim_driver *driver, CUresult code, const char *line) {
    pthread_mutex_lock(&driver->message_lock);
    snprintf(driver->last_fault, sizeof driver->last_fault, "%s", line);
    driver->last_fault_code = code;
    mu_sim_fault_fn function = driver->on_fault;
    void *user = driver->on_fault_user;
    pthread_mutex_unlock(&driver->message_lock);
    if (function) function(user, line);
    MU_TSAN_RELEASE(&driver->fault_order); /* who sees the fault sees what the callback did */
}

void sim_fault_kernel(sim_context *context, CUresult code, const char *message) {
    sim_driver *driver = context->driver;
    char line[sizeof driver->last_fault];
    const char *name = NULL;
    /* No host memory for a kernel that has begun: a context that has failed says so by a code that means that. */
    if (code == CUDA_ERROR_OUT_OF_MEMORY) code = CUDA_ERROR_LAUNCH_FAILED;
    sim_do_get_error_name(driver, code, &name);
    snprintf(line, sizeof line, "device %d: %s: %s", context->device->ordinal, name ? name : "fault", message);
    report(driver, code, line);
    latch(&context->error, code);
    latch(&context->device->tainted, code);
    if (code == CUDA_ERROR_ILLEGAL_ADDRESS) latch(&driver->fault, code);
    atomic_store_explicit(&driver->troubled, true, memory_order_relaxed);
}

void sim_fault_lose(sim_device *device, CUresult code, const char *why) {
    char line[160];
    snprintf(line, sizeof line, "device %d: lost: %s", device->ordinal, why);
    report(device->driver, code, line);
    latch(&device->error, code);
    atomic_store_explicit(&device->driver->troubled, true, memory_order_relaxed);
}

/* The device is gone: what it was doing must not go on touching memory that the caller takes for free now. Not for the device's own
 * executor. */
void sim_fault_settle(sim_device *device) {
    sim_driver *driver = device->driver;
    sim_lock(driver);
    sim_wake(driver);
    for (sim_stream *stream = device->streams; stream;) {
        if (!stream->running) {
            stream = stream->next;
            continue;
        }
        sim_wait(driver);
        stream = device->streams; /* they may be freed meanwhile */
    }
    sim_unlock(driver);
}

CUresult mu_sim_last_fault(const mu_driver *table, char *text, size_t bytes) {
    sim_driver *driver = table->instance;
    pthread_mutex_lock(&driver->message_lock);
    if (bytes) snprintf(text, bytes, "%s", driver->last_fault);
    CUresult code = driver->last_fault_code;
    pthread_mutex_unlock(&driver->message_lock);
    return code;
}

void mu_sim_on_fault(mu_driver *table, mu_sim_fault_fn function, void *user) {
    sim_driver *driver = table->instance;
    pthread_mutex_lock(&driver->message_lock);
    driver->on_fault = function;
    driver->on_fault_user = user;
    pthread_mutex_unlock(&driver->message_lock);
}

void mu_sim_lose_device(mu_driver *table, int ordinal) {
    sim_driver *driver = table->instance;
    if (ordinal < 0 || (uint32_t)ordinal >= driver->config.device_count) return;
    sim_fault_lose(&driver->devices[ordinal], SIM_LOSS_CODE, "on request");
    sim_fault_settle(&driver->devices[ordinal]);
}
