/* Programs and kernels: code on every device, before any job uses it. What it is made of is scheduler/program/source.h. */
#ifndef MUSTER_SCHEDULER_PROGRAM_PROGRAM_H
#define MUSTER_SCHEDULER_PROGRAM_PROGRAM_H

#include <pthread.h>

#include "cache/module_cache.h"
#include "scheduler/actor/actor.h"
#include "scheduler/placement/history.h"
#include "scheduler/program/source.h"
#include "scheduler/runtime/handle.h"

struct muster_kernel {
    mu_handle handle; /* its references are the program's */
    muster_program *program;
    char *name;
    muster_kernel *next; /* of the program */
    atomic_uint_fast64_t
        *pace_ps; /* per device: estimated picoseconds a block; 0: never ran (scheduler/placement/estimate.h) */
    /* Likewise, of launches that were long and wide enough to compare devices by; without what a launch costs in itself. */
    atomic_uint_fast64_t *wide_pace_ps;
    uint64_t *noted;  /* per device, its worker only: the last epoch that the paces were learnt from */
    atomic_uint turn; /* of looks at devices that do not seem to be worth it (scheduler/placement/spread.h) */
    /* What every device agrees on: the strictest limits, and the parameters. */
    mu_function_info info;
    mu_function functions[]; /* per device; constant once the kernel is returned */
};

/* A program on one device. Its worker's own once the program is made. */
typedef struct mu_program_device {
    mu_call drop;              /* made beforehand: dropping the last reference cannot fail, nor wait */
    mu_module_request request; /* while loading waits for an idle moment */
    muster_program *program;
    mu_code *code;
    mu_module_entry *entry; /* NULL: not loaded */
    mu_history *history;    /* the program's, constant; NULL: none */
} mu_program_device;

struct muster_program {
    mu_handle handle;
    char *name;
    mu_code *codes; /* one for each kind of device */
    uint32_t code_count;
    pthread_mutex_t lock; /* the list of kernels; held while a kernel is looked up on the devices */
    muster_kernel *kernels;
    mu_history *histories; /* scheduler/placement/history.c's own */
    mu_program_device *devices;
    atomic_uint devices_left;    /* while it is unloaded */
    pthread_mutex_t global_lock; /* one muster_program_set_global at a time touches the devices */
};

void mu_program_retain(muster_program *program);
/* Drops one reference; the last unloads the program on every device, by messages. */
void mu_program_release(muster_program *program);

/* On the device's worker: loads the program if it is not loaded, now, and with it whatever else waits to be loaded. A
 * device that has work stalls. */
muster_status mu_program_load(mu_actor *actor, muster_program *program, muster_error *error);

#endif
