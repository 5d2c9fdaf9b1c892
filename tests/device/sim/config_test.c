/* Reading a simulated machine from JSON: what is understood, and that every mistake names its key. */
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/device/sim/fixture.h"

static void refuse(const char *spec, const char *named) {
    mu_driver *driver = NULL;
    muster_error error = {0};
    muster_status status = mu_sim_driver_create(spec, &driver, &error);
    if (status != MUSTER_INVALID_CONFIG)
        fail_msg("%s gives %s", spec ? spec : "MUSTER_SIM", muster_status_name(status));
    assert_null(driver);
    if (!strstr(error.message, named)) fail_msg("%s: \"%s\" does not name %s", spec, error.message, named);
}

static void test_mistakes_name_their_key(void **state) {
    (void)state;
    refuse("{", "the sim setting: line 1");
    refuse("[]", "the sim setting must be a JSON object");
    setenv("MUSTER_SIM", "{", 1);
    refuse(NULL, "MUSTER_SIM: line 1");
    unsetenv("MUSTER_SIM");
    refuse("{\"devices\": 2, \"devices\": 3}", "duplicate");
    refuse("{\"device\": 2}", "device");
    refuse("{\"devices\": 33}", "devices");
    refuse("{\"devices\": -1}", "devices");
    refuse("{\"devices\": 1.5}", "devices");
    refuse("{\"devices\": \"two\"}", "devices");
    refuse("{\"devices\": [{\"sm\": 2}]}", "devices[0].sm");
    refuse("{\"devices\": [{}, {\"sms\": 0}]}", "devices[1].sms");
    refuse("{\"devices\": [{\"preset\": \"H300\"}]}", "devices[0].preset");
    refuse("{\"devices\": [{\"count\": 40}]}", "devices[0].count");
    refuse("{\"devices\": [{\"count\": 20}, {\"count\": 20}]}", "devices[1].count");
    refuse("{\"devices\": [7]}", "devices[0]");
    refuse("{\"devices\": [{\"name\": \"\"}]}", "devices[0].name");
    refuse("{\"devices\": [{\"compute_capability\": \"nine\"}]}", "devices[0].compute_capability");
    refuse("{\"devices\": [{\"memory_bytes\": 10}]}", "devices[0].memory_bytes");
    refuse("{\"devices\": [{\"memory_bytes\": 67108863}]}", "devices[0].memory_bytes must be an integer from 67108864");
    refuse("{\"devices\": [{\"memory_bytes\": 67108864, \"other_bytes\": 67108865}]}", "devices[0].other_bytes");
    refuse("{\"devices\": [{\"shared_per_block\": 500000}]}", "devices[0].shared_per_block");
    refuse("{\"devices\": [{\"shared_per_sm\": 50000}]}", "devices[0].shared_per_sm");
    refuse("{\"devices\": [{\"registers_per_sm\": 4096}]}", "devices[0].registers_per_block");
    refuse("{\"devices\": [{\"upload_gbps\": 0}]}", "devices[0].upload_gbps");
    refuse("{\"devices\": [{\"cooperative\": 1}]}", "devices[0].cooperative");
    refuse("{\"preset\": \"nothing\"}", "preset");
    refuse("{\"peers\": \"some\"}", "peers");
    refuse("{\"devices\": 2, \"peers\": [[0, 2]]}", "peers");
    refuse("{\"devices\": 2, \"peers\": [[0]]}", "peers");
    refuse("{\"seed\": -1}", "seed");
    refuse("{\"seed\": \"x\"}", "seed");
    refuse("{\"workers\": 0}", "workers");
    refuse("{\"null\": 1}", "null");
    refuse("{\"virtual_time\": \"yes\"}", "virtual_time");
    refuse("{\"driver_version\": 5}", "driver_version");
    refuse("{\"faults\": {}}", "faults");
    refuse("{\"faults\": [3]}", "faults[0]");
    refuse("{\"faults\": [{\"entry\": \"launch\", \"code\": 2}]}", "faults[0].entry");
    refuse("{\"faults\": [{\"entry\": \"mem_alloc\"}]}", "faults[0].code");
    refuse("{\"faults\": [{\"code\": 2}]}", "faults[0].entry");
    refuse("{\"faults\": [{\"entry\": \"mem_alloc\", \"code\": \"NO_SUCH\"}]}", "faults[0].code");
    refuse("{\"faults\": [{\"entry\": \"mem_alloc\", \"code\": 0}]}", "faults[0].code");
    refuse("{\"faults\": [{\"entry\": \"mem_alloc\", \"code\": 2, \"nth\": 0}]}", "faults[0].nth");
    refuse("{\"faults\": [{\"entry\": \"mem_alloc\", \"code\": 2, \"device\": 1}]}", "faults[0].device");
    refuse("{\"faults\": [{\"entry\": \"mem_alloc\", \"code\": 2, \"repeat\": \"often\"}]}", "faults[0].repeat");
    refuse("{\"faults\": [{\"kind\": \"explode\"}]}", "faults[0].kind");
    refuse("{\"faults\": [{\"kind\": \"delay\", \"entry\": \"mem_alloc\", \"later\": 1}]}", "faults[0].later");
}

static void test_presets_and_overrides_reach_the_devices(void **state) {
    (void)state;
    mu_driver *driver = create_driver(
        "{\"preset\": \"A100\", \"driver_version\": 12040, \"devices\": [{}, {\"preset\": \"T4\", \"count\": 2},"
        " {\"preset\": \"L4\", \"name\": \"small\", \"sms\": 4, \"memory_bytes\": 67108864,"
        "  \"compute_capability\": \"8.6\"}, {\"preset\": \"RTX 4090\"}], \"peers\": [[0, 1]]}");
    int count = 0, value = 0, version = 0;
    char name[64];
    CUdevice devices[5];
    assert_success(driver->init(0));
    assert_success(driver->driver_get_version(&version));
    assert_int_equal(version, 12040);
    assert_success(driver->device_get_count(&count));
    assert_int_equal(count, 5);
    for (int i = 0; i < 5; i++) assert_success(driver->device_get(&devices[i], i));
    const char *names[] = {"NVIDIA A100-SXM4-80GB", "Tesla T4", "Tesla T4", "small", "NVIDIA GeForce RTX 4090"};
    const int capabilities[] = {80, 75, 75, 86, 89}, sms[] = {108, 40, 40, 4, 128};
    for (int i = 0; i < 5; i++) {
        int major = 0, minor = 0;
        assert_success(driver->device_get_name(name, sizeof name, devices[i]));
        assert_string_equal(name, names[i]);
        assert_success(driver->device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, devices[i]));
        assert_success(driver->device_get_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, devices[i]));
        assert_int_equal(major * 10 + minor, capabilities[i]);
        assert_success(driver->device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, devices[i]));
        assert_int_equal(value, sms[i]);
    }
    size_t bytes;
    assert_success(driver->device_total_mem(&bytes, devices[3]));
    assert_int_equal(bytes, 67108864);
    int can = -1;
    assert_success(driver->device_can_access_peer(&can, devices[0], devices[1]));
    assert_int_equal(can, 1);
    assert_success(driver->device_can_access_peer(&can, devices[1], devices[0]));
    assert_int_equal(can, 1);
    assert_success(driver->device_can_access_peer(&can, devices[0], devices[2]));
    assert_int_equal(can, 0);
    mu_driver_release(driver);
}

static void test_the_default_is_one_h200(void **state) {
    (void)state;
    unsetenv("MUSTER_SIM");
    mu_driver *driver = create_driver(NULL);
    int count = 0;
    char name[64];
    CUdevice device;
    assert_success(driver->init(0));
    assert_success(driver->device_get_count(&count));
    assert_int_equal(count, 1);
    assert_success(driver->device_get(&device, 0));
    assert_success(driver->device_get_name(name, sizeof name, device));
    assert_string_equal(name, "NVIDIA H200");
    mu_driver_release(driver);
}

static void expect_devices(const char *spec, int expected) {
    mu_driver *driver = create_driver(spec);
    int count = -1;
    CUresult code = driver->init(0);
    assert_code(code, expected ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE);
    if (expected) {
        assert_success(driver->device_get_count(&count));
        assert_int_equal(count, expected);
    }
    mu_driver_release(driver);
}

static void test_a_spec_may_be_text_a_file_or_the_environment(void **state) {
    (void)state;
    char path[] = "/tmp/muster_sim_config_XXXXXX", marked[64];
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, "{\"devices\": 3}", 14), 14);
    close(file);
    expect_devices(path, 3);
    snprintf(marked, sizeof marked, "@%s", path);
    expect_devices(marked, 3);
    setenv("MUSTER_SIM", "{\"devices\": 4}", 1);
    expect_devices(NULL, 4);
    setenv("MUSTER_SIM", path, 1);
    expect_devices(NULL, 3);
    unsetenv("MUSTER_SIM");
    unlink(path);
    expect_devices("{\"devices\": 0}", 0);
    mu_driver *driver = NULL;
    muster_error error;
    assert_int_equal(mu_sim_driver_create("/nonexistent/config.json", &driver, &error), MUSTER_FILE_UNREADABLE);
    assert_non_null(strstr(error.message, "/nonexistent/config.json"));
    assert_int_equal(mu_sim_driver_create("/", &driver, &error), MUSTER_FILE_UNREADABLE);
    assert_non_null(strstr(error.message, "directory"));
}

/* Every allocation in turn fails: an error, and nothing leaked (the sanitizers look). */
static void test_running_out_of_memory_while_creating(void **state) {
    (void)state;
    const char *spec = "{\"devices\": 2, \"faults\": [{\"kind\": \"fault\", \"nth\": 3}]}";
    for (uint64_t nth = 1;; nth++) {
        mu_driver *driver = NULL;
        mu_alloc_fail_at(nth, false);
        muster_status status = mu_sim_driver_create(spec, &driver, NULL);
        bool hit = mu_alloc_fail_hits() > 0;
        mu_alloc_fail_at(0, false);
        if (!hit) {
            assert_int_equal(status, MUSTER_OK);
            mu_driver_release(driver);
            assert_true(nth > 4);
            return;
        }
        assert_int_equal(status, MUSTER_OUT_OF_HOST_MEMORY);
        assert_null(driver);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mistakes_name_their_key),
        cmocka_unit_test(test_presets_and_overrides_reach_the_devices),
        cmocka_unit_test(test_the_default_is_one_h200),
        cmocka_unit_test(test_a_spec_may_be_text_a_file_or_the_environment),
        cmocka_unit_test(test_running_out_of_memory_while_creating),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
