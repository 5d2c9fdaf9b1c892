/* What tests of host and enqueue jobs share: adding them, and callbacks that stop at a gate. */
#ifndef MUSTER_TESTS_SCHEDULER_CALLBACKS_H
#define MUSTER_TESTS_SCHEDULER_CALLBACKS_H

#include <semaphore.h>
#include <stdatomic.h>

#include "tests/scheduler/fixture.h"

typedef muster_status (*host_fn)(void *user, void *const *pointers, uint32_t count, muster_error *error);

static inline muster_job add_host_after(muster_graph *graph, host_fn run, void *user, fixture_args args, uint32_t count,
                                        const muster_job *after) {
    muster_job job = MUSTER_NO_JOB;
    OK(muster_graph_host(graph,
                         &(muster_host_job){.struct_size = sizeof(muster_host_job),
                                            .run = run,
                                            .user = user,
                                            .arg_count = args.count,
                                            .args = args.arg,
                                            .after_count = count,
                                            .after = after},
                         &job, &reported));
    return job;
}

static inline muster_job add_host(muster_graph *graph, host_fn run, void *user, fixture_args args) {
    return add_host_after(graph, run, user, args, 0, NULL);
}

#define NO_ARGS ((fixture_args){NULL, 0})

/* Says that it has been called, then waits until it may return. */
typedef struct gate {
    sem_t called, open;
    atomic_uint calls;
} gate;

static inline void gate_init(gate *gate) {
    sem_init(&gate->called, 0, 0);
    sem_init(&gate->open, 0, 0);
    gate->calls = 0;
}
static inline void gate_destroy(gate *gate) {
    sem_destroy(&gate->called);
    sem_destroy(&gate->open);
}
static inline muster_status stop_at_gate(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)pointers, (void)count, (void)error;
    gate *self = user;
    atomic_fetch_add(&self->calls, 1);
    sem_post(&self->called);
    sem_wait(&self->open);
    return MUSTER_OK;
}

/* Counts its calls, and says so. */
static inline muster_status count_call(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)pointers, (void)count, (void)error;
    gate *self = user;
    atomic_fetch_add(&self->calls, 1);
    sem_post(&self->called);
    return MUSTER_OK;
}

/* affine on the device with that index. */
static inline muster_job add_affine_on(const fixture *fixture, muster_graph *graph, muster_buffer *buffer, int device,
                                       uint32_t factor, uint32_t term) {
    uint32_t words = (uint32_t)(muster_buffer_bytes(buffer) / 4);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "affine"), (words + 63) / 64, 64,
                         ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(factor),
                              muster_u32_arg(term), muster_u32_arg(words)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    return fixture_add(graph, &dispatch);
}

static inline muster_device_stats stats_of(const fixture *fixture, int device) {
    muster_device_stats stats = {.struct_size = sizeof stats};
    OK(muster_device_get_stats(fixture->runtime, device, &stats, &reported));
    return stats;
}

#endif
