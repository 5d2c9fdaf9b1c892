/* Kernel faults and lost devices: everything ends, nothing hangs, and it is said what to do. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/sim/sim.h"
#include "tests/scheduler/fixture.h"

static muster_graph *affine_on(const fixture *fixture, muster_buffer *buffer, int device) {
    muster_graph *graph = fixture_graph(fixture);
    uint32_t words = (uint32_t)(muster_buffer_bytes(buffer) / 4);
    muster_dispatch dispatch = fixture_dispatch(fixture_kernel(fixture, "affine"), (words + 63) / 64, 64,
                                                ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(1),
                                                     muster_u32_arg(1), muster_u32_arg(words)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    fixture_add(graph, &dispatch);
    return graph;
}

static muster_graph *fault_on(const fixture *fixture, muster_buffer *buffer, int device, bool trap) {
    muster_graph *graph = fixture_graph(fixture);
    muster_dispatch dispatch =
        trap ? fixture_dispatch(fixture_kernel(fixture, "trapped"), 1, 1, (fixture_args){NULL, 0})
             : fixture_dispatch(fixture_kernel(fixture, "illegal"), 1, 1,
                                ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u64_arg(1ull << 40)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    fixture_add(graph, &dispatch);
    return graph;
}

/* Everything that may be asked of a runtime after a fault ends, and says that the process must be restarted. */
static void expect_latched(const fixture *fixture, muster_graph *graph, muster_buffer *buffer) {
    muster_run *run = (muster_run *)fixture;
    for (int i = 0; i < 3; i++)
        FAILS(MUSTER_KERNEL_FAULT, "process", muster_submit(fixture->runtime, graph, &run, &reported));
    assert_ptr_equal(run, fixture);
    muster_program *program;
    assert_int_equal(
        muster_status_recovery(muster_program_from_ptx(fixture->runtime, test_kernels_ptx, 0, "late", &program, NULL)),
        MUSTER_RECOVERY_DEVICE_LOST);
    /* Content that only the devices held is lost, whoever asks. */
    void *pointer;
    muster_status status = muster_buffer_acquire(buffer, 0, 4, MUSTER_READ, fixture_wait_ns, &pointer, NULL);
    assert_true(status == MUSTER_KERNEL_FAULT || status == MUSTER_DEVICE_LOST || status == MUSTER_DATA_UNDEFINED);
}

static void fault(bool trap, uint32_t devices) {
    fixture fixture;
    fixture_open(&fixture, devices);
    muster_buffer *buffer = fixture_buffer(&fixture, 4000, NULL), *other = fixture_buffer(&fixture, 4000, NULL);
    muster_buffer *victim = fixture_buffer(&fixture, 4000, NULL);
    muster_graph *good = affine_on(&fixture, buffer, 0);
    muster_graph *bad = fault_on(&fixture, other, (int)devices - 1, trap);
    muster_graph *later = affine_on(&fixture, victim, 0);
    fixture_run(&fixture, good); /* on the device, and not home yet */
    fixture_hold_all(&fixture, true);
    muster_run *run[3] = {fixture_submit(&fixture, good), fixture_submit(&fixture, bad),
                          fixture_submit(&fixture, later)};
    fixture_hold_all(&fixture, false);
    muster_status status = muster_run_wait(run[1], fixture_wait_ns, &reported);
    assert_true(status == MUSTER_KERNEL_FAULT || status == MUSTER_DEVICE_LOST);
    for (int i = 0; i < 3; i += 2) { /* either done before, or lost with the rest; not hanging */
        status = muster_run_wait(run[i], fixture_wait_ns, NULL);
        assert_true(status == MUSTER_OK || muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST);
        assert_int_equal(fixture_result(run[i], 0).status, status);
    }
    expect_latched(&fixture, good, other);
    fixture_close(&fixture);
}

static void an_illegal_address_ends_every_run(void **state) {
    (void)state;
    for (uint32_t devices = 1; devices <= 4; devices++) fault(false, devices);
}

static void a_trap_ends_every_run(void **state) {
    (void)state;
    for (uint32_t devices = 1; devices <= 4; devices += 3) fault(true, devices);
}

/* Bytes that were home before the fault stay: the application can save them. */
static void results_that_are_home_survive(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    uint32_t host[100] = {0};
    muster_buffer *buffer = fixture_buffer(&fixture, sizeof host, host), *other = fixture_buffer(&fixture, 4, NULL);
    fixture_run(&fixture, affine_on(&fixture, buffer, 0));
    assert_int_equal(fixture_word(buffer, 99), 1);
    muster_run *run = fixture_submit(&fixture, fault_on(&fixture, other, 1, false));
    assert_int_equal(muster_status_recovery(muster_run_wait(run, fixture_wait_ns, NULL)), MUSTER_RECOVERY_DEVICE_LOST);
    assert_int_equal(host[99], 1);
    fixture_close(&fixture);
}

/* What is logged of a fault: one line that names the device once. */
static void keep_line(void *user, muster_log_level level, const char *line) {
    char *kept = user;
    if (level == MUSTER_LOG_ERROR && strlen(kept) < 2000) strcat(strcat(kept, line), "\n");
}

static void the_log_names_the_device_once(void **state) {
    (void)state;
    static char kept[4096];
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .log = keep_line, .log_user = kept};
    kept[0] = 0;
    fixture_open_with(&fixture, 1, &config);
    muster_run *run = fixture_submit(&fixture, fault_on(&fixture, fixture_buffer(&fixture, 4000, NULL), 0, false));
    FAILS(MUSTER_KERNEL_FAULT, "device 0: |illegal", muster_run_wait(run, fixture_wait_ns, &reported));
    fixture_close(&fixture);
    const char *first = strstr(kept, "device 0: ");
    assert_non_null(first);
    assert_null(strstr(first + 1, "device 0: "));
    assert_non_null(strstr(kept, "illegal")); /* the kernel */
}

/* One synchronisation a job: the job that the error names is the one that faulted, and those before it succeeded. */
static void a_fault_in_serial_mode_names_its_job(void **state) {
    (void)state;
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .flags = MUSTER_RUNTIME_SERIAL};
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 1, 1);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&fixture, "illegal"), 1, 1,
                         ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u64_arg(1ull << 40)));
    muster_job bad = fixture_add(graph, &dispatch);
    fixture_affine(&fixture, graph, buffer, 1, 1);
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_KERNEL_FAULT, "", muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(reported.job, bad);
    assert_int_equal(fixture_result(run, 0).status, MUSTER_OK);
    assert_int_equal(fixture_result(run, 1).status, MUSTER_KERNEL_FAULT);
    assert_int_not_equal(fixture_result(run, 2).status, MUSTER_OK);
    fixture_close(&fixture);
}

/* Runs that pile up behind a fault end too, also those whose handles are gone and those that wait for another device. */
static void a_backlog_behind_a_fault_ends(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 3);
    muster_buffer *buffer[3], *bad = fixture_buffer(&fixture, 4, NULL);
    muster_run *run[60];
    for (int b = 0; b < 3; b++) buffer[b] = fixture_buffer(&fixture, 4000, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    for (int i = 0; i < 12; i++) {
        fixture_affine(&fixture, graph, buffer[i % 3], 3, 1);
        OK(muster_graph_copy(graph, buffer[(i + 1) % 3], 0, buffer[i % 3], 0, 2000, NULL, &reported));
    }
    fixture_hold_all(&fixture, true);
    muster_run_destroy(fixture_submit(&fixture, fault_on(&fixture, bad, 1, false)));
    for (int i = 0; i < 60; i++) run[i] = fixture_submit(&fixture, graph);
    for (int i = 0; i < 60; i += 2) muster_run_destroy(run[i]);
    fixture_hold_all(&fixture, false);
    for (int i = 1; i < 60; i += 2)
        assert_int_not_equal(muster_run_wait(run[i], fixture_wait_ns, NULL), MUSTER_TIMEOUT);
    expect_latched(&fixture, graph, buffer[0]);
    fixture_close(&fixture);
}

typedef struct waiter {
    muster_run *run;
    muster_status status;
} waiter;

static void *wait_for(void *argument) {
    waiter *self = argument;
    self->status = muster_run_wait(self->run, fixture_wait_ns, NULL);
    return NULL;
}

static void waiting_threads_are_woken(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 400, NULL), *bad = fixture_buffer(&fixture, 4, NULL);
    fixture_hold_all(&fixture, true);
    muster_run *fault_run = fixture_submit(&fixture, fault_on(&fixture, bad, 0, false));
    waiter own[2] = {{fixture_submit(&fixture, affine_on(&fixture, buffer, 0)), MUSTER_INTERNAL},
                     {fixture_submit(&fixture, affine_on(&fixture, buffer, 1)), MUSTER_INTERNAL}};
    pthread_t thread[2];
    for (int t = 0; t < 2; t++) assert_int_equal(pthread_create(&thread[t], NULL, wait_for, &own[t]), 0);
    fixture_hold_all(&fixture, false);
    for (int t = 0; t < 2; t++) pthread_join(thread[t], NULL);
    for (int t = 0; t < 2; t++) assert_int_not_equal(own[t].status, MUSTER_TIMEOUT);
    assert_int_not_equal(muster_run_wait(fault_run, fixture_wait_ns, NULL), MUSTER_OK);
    fixture_close(&fixture);
}

/* Another runtime, on other simulated hardware, is not concerned. */
static void other_runtimes_go_on(void **state) {
    (void)state;
    fixture faulty, healthy;
    fixture_open(&faulty, 1);
    fixture_open(&healthy, 1);
    muster_buffer *bad = fixture_buffer(&faulty, 4, NULL), *buffer = fixture_buffer(&healthy, 4, NULL);
    muster_run *run = fixture_submit(&faulty, fault_on(&faulty, bad, 0, false));
    assert_int_not_equal(muster_run_wait(run, fixture_wait_ns, NULL), MUSTER_OK);
    fixture_run(&healthy, affine_on(&healthy, buffer, 0));
    assert_int_equal(fixture_word(buffer, 0), 1);
    fixture_close(&faulty);
    fixture_close(&healthy);
}

/* A device that falls off while it has work: all work ends, what follows is refused, and destroying does not hang. */
static void a_lost_device_ends_the_work(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    muster_buffer *buffer = fixture_buffer(&fixture, 4000, NULL), *other = fixture_buffer(&fixture, 4000, NULL);
    muster_graph *lost = affine_on(&fixture, buffer, 1), *healthy = affine_on(&fixture, other, 0);
    fixture_hold(&fixture, 1, true);
    muster_run *run = fixture_submit(&fixture, lost);
    mu_sim_lose_device(fixture_driver(&fixture), 1);
    fixture_hold(&fixture, 1, false);
    muster_status status = muster_run_wait(run, fixture_wait_ns, NULL);
    assert_int_equal(muster_status_recovery(status), MUSTER_RECOVERY_DEVICE_LOST);
    for (int i = 0; i < 4; i++) {
        status = muster_submit(fixture.runtime, i % 2 ? lost : healthy, &run, NULL);
        if (status == MUSTER_OK) status = muster_run_wait(run, fixture_wait_ns, NULL);
        assert_true((status == MUSTER_OK && i % 2 == 0) ||
                    muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST);
    }
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_illegal_address_ends_every_run),
        cmocka_unit_test(a_trap_ends_every_run),
        cmocka_unit_test(results_that_are_home_survive),
        cmocka_unit_test(the_log_names_the_device_once),
        cmocka_unit_test(a_fault_in_serial_mode_names_its_job),
        cmocka_unit_test(a_backlog_behind_a_fault_ends),
        cmocka_unit_test(waiting_threads_are_woken),
        cmocka_unit_test(other_runtimes_go_on),
        cmocka_unit_test(a_lost_device_ends_the_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
