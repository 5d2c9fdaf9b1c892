/* Faults of kernels end a process's use of its devices, so each test is a child process of its own. */
#include "tests/conformance/conformance.h"
#include "tests/conformance/kernels.h"

/* In a child: prints what is wrong and leaves. */
#define CHECK(expression, expected)                                                                                    \
    do {                                                                                                               \
        CUresult code_ = (expression);                                                                                 \
        if (code_ != (expected)) {                                                                                     \
            fprintf(stderr, "%s:%d: %s is %s, expected %s\n", __FILE__, __LINE__, #expression,                         \
                    mu_driver_error_name(driver, code_), mu_driver_error_name(driver, expected));                      \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)
#define OK(expression) CHECK(expression, CUDA_SUCCESS)
enum { SKIPPED = 77 };

typedef struct place {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction mix, copy, trap;
    CUstream stream;
    CUevent event;
    CUdeviceptr word;
} place;

static int open_place(mu_driver *driver, int ordinal, place *at) {
    OK(driver->device_get(&at->device, ordinal));
    OK(driver->primary_ctx_retain(&at->context, at->device));
    OK(driver->ctx_set_current(at->context));
    OK(driver->stream_create(&at->stream, CU_STREAM_NON_BLOCKING));
    OK(driver->event_create(&at->event, CU_EVENT_DISABLE_TIMING));
    OK(driver->module_load_data_ex(&at->module, kernels_ptx, 0, NULL, NULL));
    OK(driver->module_get_function(&at->mix, at->module, "mix"));
    OK(driver->module_get_function(&at->copy, at->module, "copy"));
    OK(driver->module_get_function(&at->trap, at->module, "trap"));
    OK(driver->mem_alloc(&at->word, 64));
    OK(driver->memset_d8_async(at->word, 0, 64, at->stream));
    OK(driver->stream_synchronize(at->stream));
    return 0;
}

static CUresult mix(mu_driver *driver, place *at, CUdeviceptr p) {
    uint32_t v = 1;
    void *parameters[] = {&p, &v};
    return driver->launch_kernel(at->mix, 1, 1, 1, 1, 1, 1, 0, at->stream, parameters, NULL);
}

static CUresult trap(mu_driver *driver, place *at) {
    return driver->launch_kernel(at->trap, 1, 1, 1, 1, 1, 1, 0, at->stream, NULL, NULL);
}

/* Every call returns `code` in the current context, which is `at`'s. */
static int check_dead(mu_driver *driver, place *at, CUresult code) {
    CUdeviceptr pointer;
    size_t free_bytes, total;
    CUstream stream;
    CHECK(mix(driver, at, at->word), code);
    CHECK(driver->stream_synchronize(at->stream), code);
    CHECK(driver->stream_query(at->stream), code);
    CHECK(driver->event_record(at->event, at->stream), code);
    CHECK(driver->event_query(at->event), code);
    CHECK(driver->mem_alloc(&pointer, 16), code);
    CHECK(driver->mem_get_info(&free_bytes, &total), code);
    CHECK(driver->stream_create(&stream, CU_STREAM_NON_BLOCKING), code);
    CHECK(driver->memcpy_htod(at->word, &code, 4), code);
    CHECK(driver->ctx_synchronize(), code);
    return 0;
}

static int illegal_address(mu_driver *driver) {
    place at;
    if (open_place(driver, 0, &at)) return 1;
    OK(mix(driver, &at, 16));
    CHECK(driver->stream_synchronize(at.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    return check_dead(driver, &at, CUDA_ERROR_ILLEGAL_ADDRESS);
}

static int trapped(mu_driver *driver) {
    place at;
    if (open_place(driver, 0, &at)) return 1;
    OK(trap(driver, &at));
    CHECK(driver->stream_synchronize(at.stream), CUDA_ERROR_LAUNCH_FAILED);
    return check_dead(driver, &at, CUDA_ERROR_LAUNCH_FAILED);
}

static int misaligned(mu_driver *driver) {
    place at;
    if (open_place(driver, 0, &at)) return 1;
    OK(mix(driver, &at, at.word + 1));
    CHECK(driver->stream_synchronize(at.stream), CUDA_ERROR_MISALIGNED_ADDRESS);
    return check_dead(driver, &at, CUDA_ERROR_MISALIGNED_ADDRESS);
}

static int new_context_fails(mu_driver *driver) {
    place at;
    CUcontext own, second;
    OK(driver->init(0));
    OK(driver->device_get(&at.device, 0));
    OK(driver->ctx_create(&own, 0, at.device));
    if (open_place(driver, 0, &at)) return 1;
    OK(mix(driver, &at, 16));
    CHECK(driver->stream_synchronize(at.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(driver->ctx_set_current(NULL));
    OK(driver->ctx_destroy(own)); /* ending works */
    CHECK(driver->ctx_create(&second, 0, at.device), CUDA_ERROR_ILLEGAL_ADDRESS);
    return 0;
}

static bool two_devices(mu_driver *driver) {
    int count = 0;
    return driver->device_get_count(&count) == CUDA_SUCCESS && count >= 2;
}

static int illegal_address_reaches_the_other_device(mu_driver *driver) {
    place first, second;
    if (!two_devices(driver)) return SKIPPED;
    if (open_place(driver, 0, &first) || open_place(driver, 1, &second)) return 1;
    OK(driver->ctx_set_current(first.context));
    OK(mix(driver, &first, 16));
    CHECK(driver->stream_synchronize(first.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(driver->ctx_set_current(second.context));
    return check_dead(driver, &second, CUDA_ERROR_ILLEGAL_ADDRESS);
}

static int a_trap_reaches_the_other_device_once_seen(mu_driver *driver) {
    place first, second;
    uint32_t value = 0;
    if (!two_devices(driver)) return SKIPPED;
    if (open_place(driver, 0, &first) || open_place(driver, 1, &second)) return 1;
    OK(driver->ctx_set_current(first.context));
    OK(trap(driver, &first));
    OK(driver->ctx_set_current(second.context));
    for (int i = 0; i < 100; i++) { /* nobody has looked at the first device yet */
        OK(mix(driver, &second, second.word));
        OK(driver->stream_synchronize(second.stream));
    }
    OK(driver->memcpy_dtoh(&value, second.word, 4));
    if (value == 0) return 1;
    OK(driver->ctx_set_current(first.context));
    CHECK(driver->stream_synchronize(first.stream), CUDA_ERROR_LAUNCH_FAILED);
    OK(driver->ctx_set_current(second.context));
    return check_dead(driver, &second, CUDA_ERROR_LAUNCH_FAILED);
}

/* Kernels may read pool memory of another device only after cuMemPoolSetAccess. */
static int a_peer_without_access_faults(mu_driver *driver) {
    place first, second;
    CUmemoryPool pool;
    CUdeviceptr there;
    int reach = 0;
    if (!two_devices(driver)) return SKIPPED;
    if (open_place(driver, 0, &first) || open_place(driver, 1, &second)) return 1;
    OK(driver->device_can_access_peer(&reach, first.device, second.device));
    if (!reach) return SKIPPED;
    CUmemPoolProps properties;
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = second.device;
    OK(driver->mem_pool_create(&pool, &properties));
    OK(driver->mem_alloc_from_pool_async(&there, 64, pool, second.stream));
    OK(driver->stream_synchronize(second.stream));
    OK(driver->ctx_set_current(first.context));
    OK(driver->ctx_enable_peer_access(second.context, 0)); /* not enough for pools */
    void *parameters[] = {&first.word, &there};
    OK(driver->launch_kernel(first.copy, 1, 1, 1, 1, 1, 1, 0, first.stream, parameters, NULL));
    CHECK(driver->stream_synchronize(first.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    return 0;
}

static int work_behind_a_fault_does_not_run(mu_driver *driver) {
    place at;
    uint32_t *host;
    void *pointer;
    if (open_place(driver, 0, &at)) return 1;
    OK(driver->mem_host_alloc(&pointer, 4, 0));
    host = pointer;
    *host = 0;
    OK(trap(driver, &at));
    /* May already return the error: what is behind the trap is lost either way. */
    CUresult code = driver->memset_d32_async((CUdeviceptr)(uintptr_t)host, 5, 1, at.stream);
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_LAUNCH_FAILED) return 1;
    CHECK(driver->stream_synchronize(at.stream), CUDA_ERROR_LAUNCH_FAILED);
    return *host == 0 ? 0 : 1;
}

static int run_child(const char *name, int (*body)(mu_driver *)) {
    int code = in_child(name, body);
    if (code == SKIPPED) {
        print_message("skipped: needs two devices that reach each other\n");
        skip();
    }
    return code;
}

#define CHILD_TEST(body)                                                                                               \
    static void test_##body(void **state) {                                                                            \
        (void)state;                                                                                                   \
        assert_int_equal(run_child(driver_name, body), 0);                                                             \
    }
CHILD_TEST(illegal_address)
CHILD_TEST(trapped)
CHILD_TEST(misaligned)
CHILD_TEST(new_context_fails)
CHILD_TEST(illegal_address_reaches_the_other_device)
CHILD_TEST(a_trap_reaches_the_other_device_once_seen)
CHILD_TEST(a_peer_without_access_faults)
CHILD_TEST(work_behind_a_fault_does_not_run)

int run_fault_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_illegal_address),
        cmocka_unit_test(test_trapped),
        cmocka_unit_test(test_misaligned),
        cmocka_unit_test(test_new_context_fails),
        cmocka_unit_test(test_illegal_address_reaches_the_other_device),
        cmocka_unit_test(test_a_trap_reaches_the_other_device_once_seen),
        cmocka_unit_test(test_a_peer_without_access_faults),
        cmocka_unit_test(test_work_behind_a_fault_does_not_run),
    };
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
