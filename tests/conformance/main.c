/* Runs the suite: conformance_test [sim|cuda|all [group]]. "sim" is always there; "cuda" is skipped visibly where
 * libcuda does not open or sees no device. Without an argument MUSTER_CONFORMANCE_DRIVER says which, and then "all". */
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/sim/sim.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/kernels.h"

machine *under_test;
const char *driver_name;

mu_driver *conformance_open(const char *name) {
    mu_driver *driver = NULL;
    muster_error error;
    muster_status status =
        strcmp(name, "sim") == 0
            ? mu_sim_driver_create("{\"devices\": [{\"preset\": \"H200\", \"count\": 2}], \"seed\": 7}", &driver,
                                   &error)
            : mu_cuda_driver_open(&driver, &error);
    int count = 0;
    if (status != MUSTER_OK) {
        fprintf(stderr, "conformance: %s does not open: %s\n", name, error.message);
    } else if (driver->init(0) != CUDA_SUCCESS || driver->device_get_count(&count) != CUDA_SUCCESS || count == 0) {
        fprintf(stderr, "conformance: %s has no device\n", name);
        mu_driver_release(driver);
        driver = NULL;
    }
    return driver;
}

void check_code(CUresult code, CUresult expected, const char *what, const char *file, int line) {
    if (code == expected) return;
    print_error("%s: %s (%d), expected %s (%d)\n", what, mu_driver_error_name(DRIVER, code), (int)code,
                mu_driver_error_name(DRIVER, expected), (int)expected);
    _fail(file, line);
}

void need_two_devices(bool peers) {
    int reach = 0;
    if (under_test->device_count == 2)
        assert_success(DRIVER->device_can_access_peer(&reach, DEVICE0->device, DEVICE1->device));
    if (under_test->device_count == 2 && (reach || !peers)) return;
    print_message("skipped: needs two devices%s\n", peers ? " that reach each other" : "");
    skip();
}

/* ------------------------------------------------------------------------------------------------------- machine -- */

static void get_function(machine_device *on, const char *name, CUfunction *function) {
    assert_success(DRIVER->module_get_function(function, on->module, name));
}

static void open_device(int ordinal, machine_device *on) {
    assert_success(DRIVER->device_get(&on->device, ordinal));
    assert_success(DRIVER->primary_ctx_retain(&on->context, on->device));
    assert_success(DRIVER->ctx_set_current(on->context));
    assert_success(DRIVER->stream_create(&on->stream, CU_STREAM_NON_BLOCKING));
    assert_success(DRIVER->module_load_data_ex(&on->module, kernels_ptx, 0, NULL, NULL));
    get_function(on, "mix", &on->mix);
    get_function(on, "copy", &on->copy);
    get_function(on, "number", &on->number);
    get_function(on, "staged", &on->staged);
    get_function(on, "bounded", &on->bounded);
    get_function(on, "global", &on->global);
    get_function(on, "hold", &on->hold);
    get_function(on, "count", &on->count);
}

static int open_machine(void **state) {
    (void)state;
    int count;
    assert_success(DRIVER->device_get_count(&count));
    under_test->device_count = count < MAX_DEVICES ? count : MAX_DEVICES;
    for (int i = under_test->device_count; i-- > 0;) open_device(i, &under_test->devices[i]);
    return 0;
}

static int close_machine(void **state) {
    (void)state;
    for (int i = 0; i < under_test->device_count; i++) {
        machine_device *on = &under_test->devices[i];
        assert_success(DRIVER->ctx_set_current(on->context));
        assert_success(DRIVER->stream_destroy(on->stream));
        assert_success(DRIVER->module_unload(on->module));
        assert_success(DRIVER->ctx_set_current(NULL));
        assert_success(DRIVER->primary_ctx_release(on->device));
    }
    return 0;
}

CUresult launch_mix(machine_device *on, CUstream stream, CUdeviceptr p, uint32_t v) {
    void *parameters[] = {&p, &v};
    return DRIVER->launch_kernel(on->mix, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

CUresult launch_copy(machine_device *on, CUstream stream, CUdeviceptr to, CUdeviceptr from) {
    void *parameters[] = {&to, &from};
    return DRIVER->launch_kernel(on->copy, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

CUdeviceptr fresh_memory(size_t bytes) {
    CUdeviceptr pointer;
    assert_success(DRIVER->mem_alloc(&pointer, bytes));
    assert_success(DRIVER->memset_d8_async(pointer, 0, bytes, NULL));
    assert_success(DRIVER->stream_synchronize(NULL));
    return pointer;
}

void release_memory(CUdeviceptr pointer) { assert_success(DRIVER->mem_free(pointer)); }

uint32_t read_word(CUdeviceptr pointer) {
    uint32_t value = 0xdeadbeef;
    assert_success(DRIVER->memcpy_dtoh(&value, pointer, sizeof value));
    return value;
}

void write_word(CUdeviceptr pointer, uint32_t value) {
    assert_success(DRIVER->memcpy_htod(pointer, &value, sizeof value));
    /* The copy of a pageable word may return once it is staged. */
    assert_success(DRIVER->stream_synchronize(NULL));
}

/* ---------------------------------------------------------------------------------------------------------- gate -- */

struct gate {
    sem_t opened, passed;
    volatile uint32_t *flag; /* pinned; NULL for a host function */
    CUevent passed_event;
};

static void CUDA_CB wait_at_gate(void *user) {
    gate *held = user;
    while (sem_wait(&held->opened) != 0) {
    }
    sem_post(&held->passed);
}

gate *gate_close(CUstream stream) {
    gate *held = malloc(sizeof *held);
    assert_non_null(held);
    held->flag = NULL;
    sem_init(&held->opened, 0, 0);
    sem_init(&held->passed, 0, 0);
    assert_success(DRIVER->launch_host_func(stream, wait_at_gate, held));
    return held;
}

gate *gate_close_busy(machine_device *on, CUstream stream) {
    if (DRIVER->kind == MU_DRIVER_SIM) return gate_close(stream);
    gate *held = calloc(1, sizeof *held);
    void *flag;
    CUdeviceptr mapped;
    assert_non_null(held);
    assert_success(DRIVER->mem_host_alloc(&flag, sizeof(uint32_t), CU_MEMHOSTALLOC_DEVICEMAP));
    assert_success(DRIVER->mem_host_get_device_pointer(&mapped, flag, 0));
    held->flag = flag;
    *held->flag = 0;
    assert_success(DRIVER->event_create(&held->passed_event, CU_EVENT_DISABLE_TIMING));
    void *parameters[] = {&mapped};
    assert_success(DRIVER->launch_kernel(on->hold, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    assert_success(DRIVER->event_record(held->passed_event, stream));
    return held;
}

static void open_busy(gate *held) {
    *held->flag = 1;
    assert_success(DRIVER->event_synchronize(held->passed_event));
    assert_success(DRIVER->event_destroy(held->passed_event));
    assert_success(DRIVER->mem_free_host((void *)held->flag));
    free(held);
}

void gate_open(gate *held) {
    if (held->flag) {
        open_busy(held);
        return;
    }
    sem_post(&held->opened);
    while (sem_wait(&held->passed) != 0) {
    }
    sem_destroy(&held->opened);
    sem_destroy(&held->passed);
    free(held);
}

/* ------------------------------------------------------------------------------------------------------ children -- */

int in_child(const char *name, int (*body)(mu_driver *driver)) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        mu_driver *driver = conformance_open(name);
        _exit(driver ? body(driver) : 99);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) print_error("the child died of signal %d\n", WTERMSIG(status));
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* ---------------------------------------------------------------------------------------------------------- main -- */

static const struct {
    const char *name;
    int (*run)(void);
} groups[] = {
    {"order", run_order_tests},      {"memory", run_memory_tests},     {"pools", run_pool_tests},
    {"modules", run_module_tests},   {"launches", run_launch_tests},   {"graphs", run_graph_tests},
    {"contexts", run_context_tests}, {"blocking", run_blocking_tests},
};
enum { GROUPS = sizeof groups / sizeof groups[0] };
static const char *chosen_group; /* NULL: all */

static bool wanted(const char *group) { return !chosen_group || strcmp(chosen_group, group) == 0; }

static int run_groups(void) {
    int failed = 0;
    for (int i = 0; i < GROUPS; i++)
        if (wanted(groups[i].name)) failed += groups[i].run();
    return failed;
}

static int run_driver(const char *name) {
    static machine opened;
    memset(&opened, 0, sizeof opened);
    under_test = &opened;
    driver_name = name;
    printf("# conformance of %s\n", name);
    /* First, while this process has touched no driver: they fork. */
    int failed = wanted("faults") ? run_fault_tests() : 0;
    if (chosen_group && wanted("faults")) return failed;
    opened.driver = conformance_open(name);
    if (!opened.driver) return failed + 1;
    open_machine(NULL);
    failed += run_groups();
    close_machine(NULL);
    mu_driver_release(opened.driver);
    return failed;
}

/* Tried in a child, because a process that has initialised the real driver cannot fork for the fault tests. */
static bool opens(const char *name) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(conformance_open(name) ? 0 : 1);
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int count, char **arguments) {
    const char *chosen = count > 1 ? arguments[1] : getenv("MUSTER_CONFORMANCE_DRIVER");
    if (!chosen) chosen = "all";
    if (count > 2) chosen_group = arguments[2];
    bool all = strcmp(chosen, "all") == 0, sim = all || strcmp(chosen, "sim") == 0;
    bool cuda = all || strcmp(chosen, "cuda") == 0;
    if (!sim && !cuda) {
        fprintf(stderr, "usage: conformance_test [sim|cuda|all [group]]\n");
        return 2;
    }
    int failed = 0;
    if (cuda && opens("cuda"))
        failed += run_driver("cuda");
    else if (cuda)
        fprintf(stderr, "[  SKIPPED ] conformance of cuda: no usable driver and device here\n");
    if (sim) failed += run_driver("sim");
    return failed != 0;
}
