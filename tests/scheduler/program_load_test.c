/* When programs are loaded, and variables that are set on every device. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>

#include "base/clock.h"
#include "device/sim/sim.h"
#include "tests/scheduler/fixture.h"

#define HEADER ".version 7.0\n.target sm_75\n.address_size 64\n"

/* Variables of both kinds, and a kernel that stores `scale` (constant), table[2] and `offset` in out[0..2]. */
static const char variables[] = HEADER
    ".visible .const .align 4 .u32 scale = 3;\n"
    ".visible .global .align 4 .b8 table[16];\n"
    ".visible .global .align 8 .u64 offset = 40;\n"
    ".visible .entry show(.param .u64 out)\n{\n    .reg .b32 %r<4>;\n    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [out];\n    ld.const.u32 %r1, [scale];\n    ld.global.u32 %r2, [table+8];\n"
    "    ld.global.u64 %rd2, [offset];\n    cvt.u32.u64 %r3, %rd2;\n    st.global.u32 [%rd1], %r1;\n"
    "    st.global.u32 [%rd1+4], %r2;\n    st.global.u32 [%rd1+8], %r3;\n    ret;\n}\n";

static muster_cache_stats stats_of(const fixture *fixture) {
    muster_cache_stats stats = {.struct_size = sizeof stats};
    OK(muster_cache_get_stats(fixture->runtime, &stats, &reported));
    return stats;
}

static muster_program *make(const fixture *fixture, unsigned number) {
    char ptx[200];
    muster_program *program;
    snprintf(ptx, sizeof ptx, HEADER ".visible .entry k%u()\n{\n    ret;\n}\n", number);
    OK(muster_program_from_ptx(fixture->runtime, ptx, 0, "numbered", &program, &reported));
    return program;
}

/* Looks until `loads` modules have been loaded. */
static void await_loads(const fixture *fixture, uint64_t loads) {
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    while (stats_of(fixture).module_loads < loads) {
        assert_true(mu_now_ns() < deadline);
        sched_yield();
    }
    assert_int_equal(stats_of(fixture).module_loads, loads);
}

/* A run that holds its devices busy until they are let go. */
static muster_run *keep_busy(const fixture *fixture, muster_buffer *buffer) {
    fixture_hold_all(fixture, true);
    muster_graph *graph = fixture_graph(fixture);
    for (int device = 0; device < muster_device_count(fixture->runtime); device++) {
        muster_dispatch dispatch = fixture_dispatch(fixture_kernel(fixture, "affine"), 1, 16,
                                                    ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE),
                                                         muster_u32_arg(1), muster_u32_arg(1), muster_u32_arg(16)));
        dispatch.pin_device = 1;
        dispatch.device = device;
        fixture_add(graph, &dispatch);
    }
    muster_run *run = fixture_submit(fixture, graph);
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    while (mu_sim_calls(fixture_driver(fixture), "launch_kernel") == 0) {
        assert_true(mu_now_ns() < deadline);
        sched_yield();
    }
    return run;
}

static void let_go(const fixture *fixture, muster_run *run) {
    fixture_hold_all(fixture, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
}

/* ------------------------------------------------------------------------------------------------------- loading -- */

static void a_busy_device_loads_when_it_is_idle(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
    uint64_t before = stats_of(&fixture).module_loads;
    muster_run *run = keep_busy(&fixture, buffer);
    muster_program *programs[3];
    for (unsigned i = 0; i < 3; i++) programs[i] = make(&fixture, i); /* compiled, and no more */
    assert_int_equal(stats_of(&fixture).compiles, 4);
    assert_int_equal(stats_of(&fixture).module_loads, before);
    muster_program_destroy(programs[1]); /* never loaded */
    let_go(&fixture, run);
    await_loads(&fixture, before + 2);
    assert_int_equal(stats_of(&fixture).load_stalls, 0);
    OK(muster_program_prepare(programs[0], &reported)); /* nothing to do */
    assert_int_equal(stats_of(&fixture).module_loads, before + 2);
    fixture_close(&fixture);
}

typedef struct preparing {
    muster_program *program;
    muster_status status;
} preparing;

static void *prepare(void *argument) {
    preparing *p = argument;
    p->status = muster_program_prepare(p->program, NULL);
    return NULL;
}

/* Preparing does not wait for an idle moment. What else waits is loaded behind the same stall. */
static void preparing_on_a_busy_device_is_one_stall(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
    uint64_t before = stats_of(&fixture).module_loads;
    uint64_t calls = mu_sim_calls(fixture_driver(&fixture), "module_load_data_ex");
    muster_run *run = keep_busy(&fixture, buffer);
    preparing p = {.program = make(&fixture, 1)};
    make(&fixture, 2);
    make(&fixture, 3);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, prepare, &p), 0);
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    while (mu_sim_calls(fixture_driver(&fixture), "module_load_data_ex") == calls) {
        assert_true(mu_now_ns() < deadline);
        sched_yield();
    }
    let_go(&fixture, run);
    pthread_join(thread, NULL);
    assert_int_equal(p.status, MUSTER_OK);
    await_loads(&fixture, before + 3);
    assert_int_equal(stats_of(&fixture).load_stalls, 1);
    fixture_close(&fixture);
}

/* Unused modules go when the device has nothing to do. */
static void idle_devices_unload(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 2);
    uint64_t before = mu_sim_calls(fixture_driver(&fixture), "module_unload");
    for (unsigned i = 0; i < 10; i++) muster_program_destroy(make(&fixture, i));
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    while (mu_sim_calls(fixture_driver(&fixture), "module_unload") < before + 20) {
        assert_true(mu_now_ns() < deadline);
        sched_yield();
    }
    fixture_close(&fixture);
}

/* Modules that a runtime loads for itself when it starts, on each device. */
static unsigned own_modules(void) {
    fixture fixture = {0};
    muster_config config = {.struct_size = sizeof config, .driver = "sim"};
    OK(muster_runtime_create(&config, &fixture.runtime, &reported));
    unsigned modules = (unsigned)mu_sim_calls(fixture_driver(&fixture), "module_load_data_ex");
    fixture_close(&fixture);
    return modules;
}

/* A machine whose last device runs out of memory at its program loads number `first` to `last`, counted from 1. Each
 * is tried twice. */
static void failing_spec(uint32_t devices, unsigned first, unsigned last, char spec[FIXTURE_SPEC_BYTES]) {
    char plan[200];
    snprintf(plan, sizeof plan,
             "[{\"kind\": \"fail\", \"entry\": \"module_load_data_ex\", \"device\": %u, \"nth\": %u, \"repeat\": %u, "
             "\"code\": \"OUT_OF_MEMORY\"}]",
             devices - 1, own_modules() + first, 2 * (last - first + 1));
    fixture_planned_spec(devices, plan, spec);
}

static void loading_that_fails_fails_the_program(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    failing_spec(2, 1, 1, spec);
    fixture fixture = {0};
    muster_config config = {.struct_size = sizeof config, .driver = "sim", .sim = spec};
    muster_program *program;
    OK(muster_runtime_create(&config, &fixture.runtime, &reported));
    FAILS(MUSTER_OUT_OF_DEVICE_MEMORY, "kernels",
          muster_program_from_ptx(fixture.runtime, test_kernels_ptx, 0, "kernels", &program, &reported));
    assert_int_equal(reported.device, 1);
    OK(muster_program_from_ptx(fixture.runtime, test_kernels_ptx, 0, "kernels", &program, &reported));
    assert_int_equal(stats_of(&fixture).compiles, 1);
    fixture_close(&fixture);
}

/* The driver's pool keeps what a buffer had, nearly all of the device; a large program is loaded all the same. */
static void a_program_is_loaded_where_a_freed_buffer_had_the_memory(void **state) {
    (void)state;
    enum { MIB = 1 << 20, BUFFER_BYTES = 224 * MIB, PROGRAM_BYTES = 40 * MIB };
    fixture fixture;
    muster_config config = {.struct_size = sizeof config,
                            .sim = "{\"devices\": [{\"preset\": \"T4\", \"memory_bytes\": 268435456}]}",
                            .budget_permille = 1000};
    muster_program *program;
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, BUFFER_BYTES, NULL);
    muster_graph *graph = fixture_graph(&fixture);
    OK(muster_graph_fill(graph, buffer, 0, BUFFER_BYTES, 1, 4, NULL, &reported));
    fixture_run(&fixture, graph);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
    char *ptx = malloc(PROGRAM_BYTES);
    assert_non_null(ptx);
    size_t used = strlen(test_kernels_ptx);
    memcpy(ptx, test_kernels_ptx, used);
    memset(ptx + used, '\n', PROGRAM_BYTES - used);
    OK(muster_program_from_ptx(fixture.runtime, ptx, PROGRAM_BYTES, "large", &program, &reported));
    free(ptx);
    fixture_close(&fixture);
}

/* A request that fails at an idle moment is told to whoever needs the program, who tries again. */
static void a_late_load_that_fails_is_tried_again(void **state) {
    (void)state;
    char spec[FIXTURE_SPEC_BYTES];
    failing_spec(1, 2, 3, spec);
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .sim = spec};
    fixture_open_with(&fixture, 1, &config);
    muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
    muster_run *run = keep_busy(&fixture, buffer);
    muster_program *program = make(&fixture, 1);
    muster_kernel *kernel;
    uint64_t before = mu_sim_calls(fixture_driver(&fixture), "module_load_data_ex");
    let_go(&fixture, run);
    uint64_t deadline = mu_deadline_ns(fixture_wait_ns);
    while (mu_sim_calls(fixture_driver(&fixture), "module_load_data_ex") == before) {
        assert_true(mu_now_ns() < deadline);
        sched_yield();
    }
    FAILS(MUSTER_OUT_OF_DEVICE_MEMORY, "numbered", muster_program_kernel(program, "k1", &kernel, &reported));
    OK(muster_program_kernel(program, "k1", &kernel, &reported));
    fixture_close(&fixture);
}

/* ----------------------------------------------------------------------------------------------------- variables -- */

typedef struct shown {
    uint32_t scale, table, offset;
} shown;

static muster_job add_show(const fixture *fixture, muster_graph *graph, muster_buffer *out, int device) {
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "show"), 1, 1, ARGS(muster_buffer_arg(out, MUSTER_WRITE)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    return fixture_add(graph, &dispatch);
}

static void expect_on(const fixture *fixture, int device, shown wanted) {
    muster_buffer *out = fixture_buffer(fixture, sizeof(shown), NULL);
    muster_graph *graph = fixture_graph(fixture);
    shown found;
    add_show(fixture, graph, out, device);
    fixture_run(fixture, graph);
    fixture_read(out, 0, sizeof found, &found);
    assert_int_equal(found.scale, wanted.scale);
    assert_int_equal(found.table, wanted.table);
    assert_int_equal(found.offset, wanted.offset);
    muster_graph_destroy(graph);
    muster_buffer_destroy(out);
}

static void open_variables(fixture *fixture, uint32_t devices) {
    fixture_open(fixture, devices);
    OK(muster_program_from_ptx(fixture->runtime, variables, 0, "variables", &fixture->program, &reported));
}

static void variables_are_set_on_every_device(void **state) {
    (void)state;
    fixture fixture;
    open_variables(&fixture, 3);
    const uint32_t entries[2] = {500, 600};
    const uint64_t offset = 41;
    for (int d = 0; d < 3; d++) expect_on(&fixture, d, (shown){3, 0, 40});
    OK(muster_program_set_global(fixture.program, "table", 4, entries, 8, MUSTER_FOREVER, &reported));
    OK(muster_program_set_global(fixture.program, "offset", 0, &offset, 8, 0, &reported));
    OK(muster_program_set_global(fixture.program, "offset", 8, &offset, 0, 0, &reported)); /* touches nothing */
    for (int d = 0; d < 3; d++) expect_on(&fixture, d, (shown){3, 600, 41});
    /* Another program of the same text has its own. */
    OK(muster_program_from_ptx(fixture.runtime, variables, 0, "again", &fixture.program, &reported));
    expect_on(&fixture, 1, (shown){3, 0, 40});
    fixture_close(&fixture);
}

static void constants_are_set_too(void **state) {
    (void)state;
    fixture fixture;
    open_variables(&fixture, 2);
    const uint32_t scale = 17;
    OK(muster_program_set_global(fixture.program, "scale", 0, &scale, 4, 0, &reported));
    for (int d = 0; d < 2; d++) expect_on(&fixture, d, (shown){17, 0, 40});
    fixture_close(&fixture);
}

static void a_new_program_starts_with_its_own_values(void **state) {
    (void)state;
    fixture fixture;
    open_variables(&fixture, 1);
    const uint64_t offset = 17;
    OK(muster_program_set_global(fixture.program, "offset", 0, &offset, 8, 0, &reported));
    expect_on(&fixture, 0, (shown){3, 0, 17});
    muster_program_destroy(fixture.program);
    OK(muster_program_from_ptx(fixture.runtime, variables, 0, "variables", &fixture.program, &reported));
    expect_on(&fixture, 0, (shown){3, 0, 40});
    fixture_close(&fixture);
}

static void wrong_ranges_and_names_are_refused(void **state) {
    (void)state;
    fixture fixture;
    open_variables(&fixture, 2);
    muster_program *program = fixture.program;
    uint32_t data[8] = {0};
    FAILS(MUSTER_ENTRY_NOT_FOUND, "shift|variables",
          muster_program_set_global(program, "shift", 0, data, 4, 0, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "table|16", muster_program_set_global(program, "table", 0, data, 17, 0, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "table|16", muster_program_set_global(program, "table", 15, data, 2, 0, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "table", muster_program_set_global(program, "table", 17, data, 0, 0, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "overflow",
          muster_program_set_global(program, "table", 8, data, UINT64_MAX, 0, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "name", muster_program_set_global(program, NULL, 0, data, 4, 0, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "data", muster_program_set_global(program, "table", 0, NULL, 4, 0, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "program", muster_program_set_global(NULL, "table", 0, data, 4, 0, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "program", muster_program_prepare(NULL, &reported));
    expect_on(&fixture, 1, (shown){3, 0, 40});
    fixture_close(&fixture);
}

/* Runs submitted before see the old value, also those that have not begun; a wait that is too short changes nothing. */
static void setting_waits_for_the_runs_before(void **state) {
    (void)state;
    fixture fixture;
    open_variables(&fixture, 2);
    muster_buffer *out[2] = {fixture_buffer(&fixture, sizeof(shown), NULL),
                             fixture_buffer(&fixture, sizeof(shown), NULL)};
    muster_graph *graph = fixture_graph(&fixture);
    fixture_kernel(&fixture, "show");
    for (int d = 0; d < 2; d++) add_show(&fixture, graph, out[d], d);
    const uint64_t offset = 17;
    fixture_hold_all(&fixture, true);
    muster_run *run = fixture_submit(&fixture, graph);
    FAILS(MUSTER_TIMEOUT, "1 runs|variables",
          muster_program_set_global(fixture.program, "offset", 0, &offset, 8, 1000000, &reported));
    fixture_hold_all(&fixture, false);
    OK(muster_program_set_global(fixture.program, "offset", 0, &offset, 8, fixture_wait_ns, &reported));
    OK(muster_run_wait(run, 0, &reported)); /* it has waited for it */
    for (int d = 0; d < 2; d++) {
        assert_int_equal(fixture_word(out[d], 2), 40);
        expect_on(&fixture, d, (shown){3, 0, 17});
    }
    fixture_close(&fixture);
}

/* Runs of other programs hold nobody up. */
static void runs_of_other_programs_do_not_matter(void **state) {
    (void)state;
    fixture fixture;
    fixture_open(&fixture, 1);
    muster_program *program;
    OK(muster_program_from_ptx(fixture.runtime, variables, 0, "variables", &program, &reported));
    muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
    void *pointer;
    OK(muster_buffer_acquire(buffer, 0, 0, MUSTER_WRITE, fixture_wait_ns, &pointer, &reported));
    muster_graph *graph = fixture_graph(&fixture);
    fixture_affine(&fixture, graph, buffer, 1, 1);
    muster_run *run = fixture_submit(&fixture, graph); /* cannot begin: the buffer is ours */
    const uint64_t offset = 5;
    OK(muster_program_set_global(program, "offset", 0, &offset, 8, 0, &reported));
    memset(pointer, 0, 64);
    OK(muster_buffer_release(buffer, pointer, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    fixture.program = program;
    expect_on(&fixture, 0, (shown){3, 0, 5});
    fixture_close(&fixture);
}

/* The device may be reading the caller's memory, which may be pinned, and nothing will say when it has done so: it is lost, and
 * drained, before the call returns. The other device has the value. */
static void a_copy_whose_end_cannot_be_seen_loses_the_device(void **state) {
    (void)state;
    static const char *const entries[] = {"event_record", "event_query"};
    for (int i = 0; i < 2; i++) {
        char plan[200], spec[FIXTURE_SPEC_BYTES];
        uint64_t nth = 0;
        for (int round = 0; round < 2; round++) {
            snprintf(plan, sizeof plan,
                     "[{\"entry\": \"%s\", \"device\": 0, \"nth\": %" PRIu64 ", \"code\": \"INVALID_VALUE\"}]",
                     entries[i], round ? nth : UINT32_MAX);
            fixture_planned_spec(1 + (uint32_t)round, plan, spec);
            const muster_config config = {.struct_size = sizeof config, .sim = spec};
            fixture fixture = {0};
            fixture_open_with(&fixture, 1 + (uint32_t)round, &config);
            OK(muster_program_from_ptx(fixture.runtime, variables, 0, "variables", &fixture.program, &reported));
            const uint64_t offset = 41;
            if (!round) nth = mu_sim_calls(fixture_driver(&fixture), entries[i]) + 1;
            OK(muster_program_set_global(fixture.program, "offset", 0, &offset, 8, 0, &reported));
            muster_buffer *buffer = fixture_buffer(&fixture, 64, NULL);
            muster_graph *graph = fixture_graph(&fixture);
            add_show(&fixture, graph, buffer, 0);
            muster_run *run = fixture_submit(&fixture, graph);
            muster_status status = muster_run_wait(run, fixture_wait_ns, &reported);
            assert_int_equal(status, round ? MUSTER_DEVICE_LOST : MUSTER_OK);
            if (round) expect_on(&fixture, 1, (shown){3, 0, 41});
            fixture_close(&fixture);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_busy_device_loads_when_it_is_idle),
        cmocka_unit_test(preparing_on_a_busy_device_is_one_stall),
        cmocka_unit_test(idle_devices_unload),
        cmocka_unit_test(loading_that_fails_fails_the_program),
        cmocka_unit_test(a_program_is_loaded_where_a_freed_buffer_had_the_memory),
        cmocka_unit_test(a_late_load_that_fails_is_tried_again),
        cmocka_unit_test(variables_are_set_on_every_device),
        cmocka_unit_test(constants_are_set_too),
        cmocka_unit_test(a_new_program_starts_with_its_own_values),
        cmocka_unit_test(wrong_ranges_and_names_are_refused),
        cmocka_unit_test(setting_waits_for_the_runs_before),
        cmocka_unit_test(a_copy_whose_end_cannot_be_seen_loses_the_device),
        cmocka_unit_test(runs_of_other_programs_do_not_matter),
    };
    setenv("MUSTER_CACHE_DIR", "", 1); /* never the user's own */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
