/* The fault plan: what goes wrong, at which call, by count and thus the same every time. */
#include <string.h>
#include <time.h>

#include "device/sim/sim_queue.h"

typedef struct item_state {
    uint64_t seen; /* events that this item counts */
    bool over;
} item_state;

struct sim_plan {
    pthread_mutex_t lock;
    item_state *states; /* beside config.plan */
};

static bool is_call(const sim_plan_item *item) {
    return item->kind == SIM_PLAN_FAIL || item->kind == SIM_PLAN_SHRINK || item->kind == SIM_PLAN_DELAY ||
           (item->kind == SIM_PLAN_LOSE && item->entry >= 0);
}

static bool names(const sim_plan_item *item, sim_entry entry) {
    return item->entry == (int)entry || item->entry == SIM_ENTRY_COUNT;
}

bool sim_plan_init(sim_driver *driver) {
    if (!driver->config.plan_count) return true;
    struct sim_plan *plan = mu_alloc_zeroed(1, sizeof *plan);
    if (!plan) return false;
    plan->states = mu_alloc_zeroed(driver->config.plan_count, sizeof *plan->states);
    if (!plan->states) {
        mu_free(plan);
        return false;
    }
    pthread_mutex_init(&plan->lock, NULL);
    driver->plan = plan;
    for (size_t i = 0; i < driver->config.plan_count; i++)
        if (is_call(&driver->config.plan[i])) atomic_store_explicit(&driver->planned, true, memory_order_relaxed);
    return true;
}

void sim_plan_close(sim_driver *driver) {
    if (!driver->plan) return;
    pthread_mutex_destroy(&driver->plan->lock);
    mu_free(driver->plan->states);
    mu_free(driver->plan);
}

/* Counts one event for the item; whether it strikes now. */
static bool strikes(const sim_plan_item *item, item_state *state) {
    state->seen++;
    if (state->seen < item->nth) return false;
    if (item->repeat != UINT64_MAX && state->seen - item->nth >= item->repeat) {
        state->over = true;
        return false;
    }
    return true;
}

static bool concerns(const sim_plan_item *item, const item_state *state, int device) {
    return !state->over && (item->device < 0 || item->device == device);
}

CUresult sim_plan_call(sim_driver *driver, sim_entry entry, int device) {
    CUresult code = CUDA_SUCCESS;
    uint64_t delay_ns = 0;
    const sim_plan_item *lost = NULL;
    pthread_mutex_lock(&driver->plan->lock);
    for (size_t i = 0; i < driver->config.plan_count; i++) {
        const sim_plan_item *item = &driver->config.plan[i];
        item_state *state = &driver->plan->states[i];
        /* A device is lost by a call of its own. */
        if (item->kind == SIM_PLAN_LOSE && device < 0) continue;
        if (!is_call(item) || !names(item, entry) || !concerns(item, state, device) || !strikes(item, state)) continue;
        if (item->kind == SIM_PLAN_LOSE) lost = item;
        if (item->kind == SIM_PLAN_DELAY) delay_ns += item->delay_ns;
        if (item->kind == SIM_PLAN_FAIL && code == CUDA_SUCCESS) code = item->code;
        if (item->kind == SIM_PLAN_SHRINK) {
            int ordinal = item->device >= 0 ? item->device : device >= 0 ? device : 0;
            atomic_fetch_add_explicit(&driver->devices[ordinal].other_bytes, item->bytes, memory_order_relaxed);
        }
    }
    pthread_mutex_unlock(&driver->plan->lock);
    if (lost) {
        sim_fault_lose(&driver->devices[device], lost->code, "by the fault plan");
        sim_fault_settle(&driver->devices[device]);
        return lost->code;
    }
    if (delay_ns) nanosleep(&(struct timespec){(time_t)(delay_ns / 1000000000u), (long)(delay_ns % 1000000000u)}, NULL);
    return code;
}

CUresult sim_plan_kernel(sim_device *device) {
    sim_driver *driver = device->driver;
    if (!driver->plan) return CUDA_SUCCESS;
    CUresult code = CUDA_SUCCESS;
    pthread_mutex_lock(&driver->plan->lock);
    for (size_t i = 0; i < driver->config.plan_count; i++) {
        const sim_plan_item *item = &driver->config.plan[i];
        item_state *state = &driver->plan->states[i];
        if ((item->kind != SIM_PLAN_LOSE && item->kind != SIM_PLAN_FAULT) || is_call(item) ||
            !concerns(item, state, device->ordinal))
            continue;
        /* "lost after n launches": the n-th still runs, so the next one strikes. */
        if (item->kind == SIM_PLAN_FAULT && strikes(item, state)) code = item->code;
        if (item->kind == SIM_PLAN_LOSE && state->seen++ == item->nth) {
            state->over = true;
            sim_fault_lose(device, item->code, "by the fault plan");
            code = item->code;
        }
    }
    pthread_mutex_unlock(&driver->plan->lock);
    return code;
}

void sim_plan_copy(sim_device *device, void *destination, size_t bytes) {
    sim_driver *driver = device->driver;
    if (!driver->plan || !bytes) return;
    pthread_mutex_lock(&driver->plan->lock);
    for (size_t i = 0; i < driver->config.plan_count; i++) {
        const sim_plan_item *item = &driver->config.plan[i];
        item_state *state = &driver->plan->states[i];
        if (item->kind != SIM_PLAN_CORRUPT || !concerns(item, state, device->ordinal) || !strikes(item, state))
            continue;
        uint64_t bit = item->bit % (bytes * 8);
        ((unsigned char *)destination)[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    pthread_mutex_unlock(&driver->plan->lock);
}
