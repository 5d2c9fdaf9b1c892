/* Programs and kernels: code loaded on every device, before any job uses it. */
#ifndef MUSTER_SCHEDULER_PROGRAM_H
#define MUSTER_SCHEDULER_PROGRAM_H

#include <pthread.h>

#include "cache/module_cache.h"
#include "scheduler/handle.h"

struct muster_kernel {
    mu_handle handle; /* its references are the program's */
    muster_program *program;
    char *name;
    muster_kernel *next; /* of the program */
    /* What every device agrees on: the strictest limits, and the parameters. */
    mu_function_info info;
    mu_function functions[]; /* per device; constant once the kernel is returned */
};

struct muster_program {
    mu_handle handle;
    char *name;
    char *image; /* PTX text, NUL-terminated */
    size_t image_bytes;
    mu_key key;
    pthread_mutex_t lock; /* the list of kernels; held while a kernel is looked up on the devices */
    muster_kernel *kernels;
    struct mu_program_device *devices; /* per device; used by its worker only */
    atomic_uint devices_left;          /* while it is unloaded */
};

void mu_program_retain(muster_program *program);
/* Drops one reference; the last unloads the program on every device, by messages. */
void mu_program_release(muster_program *program);

#endif
