/* The diagnostic line, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/diagnostic.h"

static mu_capability device(void) {
    return (mu_capability){.compute_major = 7,
                           .compute_minor = 5,
                           .native_sm = 75,
                           .cooperative_launch = true,
                           .max_threads_per_multiprocessor = 1024,
                           .max_blocks_per_multiprocessor = 16,
                           .multiprocessors = 40,
                           .max_threads_per_block = 1024,
                           .shared_bytes_optin = 65536};
}

static void expect(const mu_capability *capability, const mu_kernel_demand *demand, const char *line, bool ok) {
    char written[MU_DIAGNOSTIC_BYTES];
    memset(written, '!', sizeof written);
    assert_int_equal(mu_diagnostic_line(capability, demand, written), ok);
    assert_string_equal(written, line);
}

static mu_kernel_demand demand(void) {
    return (mu_kernel_demand){.kernel = "saxpy", .grid = {4, 2, 1}, .block = {128, 2, 1}, .occupancy = -1};
}

static void test_ok_line(void **state) {
    (void)state;
    mu_capability capability = device();
    mu_kernel_demand wanted = demand();
    wanted.required_sm = 75;
    expect(&capability, &wanted,
           "cuda-kernel-capability-v1|kernel=saxpy|status=ok|grid=[4, 2, 1]|block=[128, 2, 1]|grid_blocks=8|"
           "threads_per_block=256|dynamic_shared_bytes=0",
           true);
}

static void test_all_failures_are_listed_in_order(void **state) {
    (void)state;
    mu_capability capability = device();
    capability.compute_major = 6, capability.compute_minor = 1, capability.native_sm = 61;
    capability.cooperative_launch = false;
    mu_kernel_demand wanted = demand();
    wanted.required_sm = 90;
    wanted.block[0] = 1024;
    wanted.static_shared_bytes = 1024;
    wanted.dynamic_shared_bytes = 65536;
    wanted.cooperative = true;
    wanted.tensor_cores = true;
    expect(&capability, &wanted,
           "cuda-kernel-capability-v1|kernel=saxpy|status=blocked|fix=sm_version(required=90,actual=61),"
           "threads_per_block(requested=2048,max=1024),shared_memory(requested=66560,max=65536),cooperative_launch,"
           "tensor_cores|grid=[4, 2, 1]|block=[1024, 2, 1]|grid_blocks=8|threads_per_block=2048|"
           "dynamic_shared_bytes=65536|cooperative_resident_block_limit=0|"
           "cooperative_residency=blocked(required=8,limit=0)",
           false);
}

static void test_only_what_the_job_requires_is_listed(void **state) {
    (void)state;
    mu_capability capability = device();
    capability.compute_major = 6, capability.compute_minor = 0, capability.native_sm = 60;
    capability.cooperative_launch = false;
    mu_kernel_demand wanted = demand();
    expect(&capability, &wanted,
           "cuda-kernel-capability-v1|kernel=saxpy|status=ok|grid=[4, 2, 1]|block=[128, 2, 1]|grid_blocks=8|"
           "threads_per_block=256|dynamic_shared_bytes=0",
           true);
    wanted.tensor_cores = true;
    expect(&capability, &wanted,
           "cuda-kernel-capability-v1|kernel=saxpy|status=blocked|fix=tensor_cores|grid=[4, 2, 1]|block=[128, 2, 1]|"
           "grid_blocks=8|threads_per_block=256|dynamic_shared_bytes=0",
           false);
}

static void test_cooperative_limit_and_refusal(void **state) {
    (void)state;
    mu_capability capability = device();
    mu_kernel_demand wanted = demand();
    wanted.cooperative = true;
    wanted.grid[0] = 80;
    expect(&capability, &wanted,
           "cuda-kernel-capability-v1|kernel=saxpy|status=ok|grid=[80, 2, 1]|block=[128, 2, 1]|grid_blocks=160|"
           "threads_per_block=256|dynamic_shared_bytes=0|cooperative_resident_block_limit=160",
           true);
    wanted.grid[0] = 81;
    expect(&capability, &wanted,
           "cuda-kernel-capability-v1|kernel=saxpy|status=ok|grid=[81, 2, 1]|block=[128, 2, 1]|grid_blocks=162|"
           "threads_per_block=256|dynamic_shared_bytes=0|cooperative_resident_block_limit=160|"
           "cooperative_residency=blocked(required=162,limit=160)",
           false);
    /* The loaded function's own limit, once known. */
    wanted.grid[0] = 80;
    wanted.occupancy = 3;
    expect(&capability, &wanted,
           "cuda-kernel-capability-v1|kernel=saxpy|status=ok|grid=[80, 2, 1]|block=[128, 2, 1]|grid_blocks=160|"
           "threads_per_block=256|dynamic_shared_bytes=0|cooperative_resident_block_limit=120|"
           "cooperative_residency=blocked(required=160,limit=120)",
           false);
}

static void test_names_cannot_break_the_line(void **state) {
    (void)state;
    mu_capability capability = device();
    mu_kernel_demand wanted = demand();
    char line[MU_DIAGNOSTIC_BYTES], name[2000];
    wanted.kernel = "a|b,c\nd";
    mu_diagnostic_line(&capability, &wanted, line);
    assert_non_null(strstr(line, "|kernel=a_b_c_d|status=ok|"));
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    wanted.kernel = name;
    wanted.cooperative = true;
    wanted.grid[0] = wanted.grid[1] = wanted.grid[2] = UINT32_MAX;
    mu_diagnostic_line(&capability, &wanted, line);
    assert_non_null(strstr(line, "|grid_blocks=18446744073709551615|"));
    assert_non_null(strstr(line, "|cooperative_residency=blocked(required=18446744073709551615,limit=160)"));
    assert_true(strlen(line) < MU_DIAGNOSTIC_BYTES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ok_line),
        cmocka_unit_test(test_all_failures_are_listed_in_order),
        cmocka_unit_test(test_only_what_the_job_requires_is_listed),
        cmocka_unit_test(test_cooperative_limit_and_refusal),
        cmocka_unit_test(test_names_cannot_break_the_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
