/* Dispatches that are larger than all devices together: cut into waves, or refused with the reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/telemetry.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/fixture.h"

extern const char test_cut_kernels_ptx[];

enum { MIB = 1 << 20, THREADS = 32, SLICE_WORDS = 64 << 10, SLICE_BYTES = 4 * SLICE_WORDS };

typedef struct machine {
    fixture fixture;
    muster_kernel *stamp;
} machine;

static void open_machine(machine *m, uint32_t devices, uint64_t budget_bytes) {
    muster_program *program;
    fixture_open_with(&m->fixture, devices,
                      &(muster_config){.struct_size = sizeof(muster_config), .budget_bytes = budget_bytes});
    OK(muster_program_from_ptx(m->fixture.runtime, test_cut_kernels_ptx, 0, "cuts", &program, &reported));
    OK(muster_program_kernel(program, "stamp", &m->stamp, &reported));
}

static uint64_t waves_of(const machine *m) {
    uint64_t waves = 0;
    for (int d = 0; d < muster_device_count(m->fixture.runtime); d++)
        waves += atomic_load(&mu_device_get_counters(m->fixture.runtime->actors[d].device)->waves);
    return waves;
}

static uint64_t sent_home(const machine *m) {
    uint64_t bytes = 0;
    for (int d = 0; d < muster_device_count(m->fixture.runtime); d++)
        bytes += atomic_load(&mu_device_get_counters(m->fixture.runtime->actors[d].device)->bytes_to_host);
    return bytes;
}

static muster_dispatch stamp(const machine *m, muster_arg args[5], muster_buffer *out, muster_buffer *in,
                             muster_buffer *scale, uint32_t slices) {
    args[0] = muster_block_cut(muster_buffer_arg(out, MUSTER_READ_WRITE), SLICE_BYTES);
    args[1] = muster_block_cut(muster_buffer_arg(in, MUSTER_READ), SLICE_BYTES);
    args[2] = muster_buffer_arg(scale, MUSTER_READ);
    args[3] = muster_u64_arg(SLICE_WORDS);
    args[4] = muster_shard_offset_arg(1, slices, 8);
    muster_dispatch dispatch = fixture_dispatch(m->stamp, slices, THREADS, (fixture_args){.arg = args, .count = 5});
    dispatch.flags = MUSTER_DISPATCH_SHARDED;
    return dispatch;
}

/* Two dispatches over 384 MiB each with 64 MiB a device. */
static void check_waves(uint32_t devices) {
    enum { SLICES = 768 };
    machine m;
    open_machine(&m, devices, 64 * MIB);
    uint32_t *content = calloc(SLICES, SLICE_BYTES), factor = 3;
    assert_non_null(content);
    for (uint32_t s = 0; s < SLICES; s++)
        for (uint32_t i = 0; i < THREADS; i++) content[(uint64_t)(s + 1) * SLICE_WORDS - 1 - i] = s * 1000 + i;
    muster_buffer *in = fixture_buffer(&m.fixture, (uint64_t)SLICES * SLICE_BYTES, content);
    muster_buffer *out = fixture_buffer(&m.fixture, (uint64_t)SLICES * SLICE_BYTES, NULL);
    muster_buffer *scale = fixture_buffer(&m.fixture, 4, &factor);
    muster_graph *graph = fixture_graph(&m.fixture);
    muster_arg args[5];
    muster_dispatch dispatch = stamp(&m, args, out, in, scale, SLICES);
    muster_job job = fixture_add(graph, &dispatch);
    fixture_add(graph, &dispatch); /* each of its shards follows one of the first only */
    muster_run *run = fixture_submit(&m.fixture, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    /* At least as many as there are device memories in it, and each counted once. */
    uint32_t shards = fixture_result(run, job).shards;
    assert_true((uint64_t)shards * 64 * MIB >= 2 * (uint64_t)SLICES * SLICE_BYTES);
    assert_int_equal(waves_of(&m), 2 * shards);
    assert_true(sent_home(&m) <= 2 * (uint64_t)SLICES * SLICE_BYTES); /* once after each dispatch at most */
    for (uint32_t s = 0; s < SLICES; s++) {
        uint32_t words[THREADS];
        fixture_read(out, (uint64_t)s * SLICE_BYTES, sizeof words, words);
        for (uint32_t i = 0; i < THREADS; i++) assert_int_equal(words[i], 2 * (s * 1000 + i + s * factor));
    }
    fixture_close(&m.fixture);
    free(content);
}

static void a_dispatch_larger_than_all_devices_runs_in_waves(void **state) {
    (void)state;
    check_waves(1);
    check_waves(3);
}

/* Each device's waves are as long as its own memory allows, and one that has enough needs none. */
static void waves_follow_each_device_s_budget(void **state) {
    (void)state;
    enum { SLICES = 640 }; /* 160 MiB: with in and out 160 MiB for each device */
    machine m;
    muster_program *program;
    fixture_open_with(&m.fixture, 2,
                      &(muster_config){.struct_size = sizeof(muster_config),
                                       .sim = "{\"devices\": [{\"memory_bytes\": 104857600}, {\"memory_bytes\": "
                                              "1073741824}]}"});
    OK(muster_program_from_ptx(m.fixture.runtime, test_cut_kernels_ptx, 0, "cuts", &program, &reported));
    OK(muster_program_kernel(program, "stamp", &m.stamp, &reported));
    uint32_t factor = 3;
    muster_buffer *in = fixture_buffer(&m.fixture, (uint64_t)SLICES * SLICE_BYTES, NULL);
    muster_buffer *out = fixture_buffer(&m.fixture, (uint64_t)SLICES * SLICE_BYTES, NULL);
    muster_buffer *scale = fixture_buffer(&m.fixture, 4, &factor);
    muster_graph *graph = fixture_graph(&m.fixture);
    muster_arg args[5];
    muster_dispatch dispatch = stamp(&m, args, out, in, scale, SLICES);
    fixture_add(graph, &dispatch);
    uint32_t slices[2] = {0, 0}, shards[2] = {0, 0};
    for (size_t n = 0; n < graph->node_count; n++) {
        const mu_node *node = &graph->nodes[n];
        slices[node->pin] += node->as.dispatch->grid[0];
        shards[node->pin]++;
        /* Four of the smaller device's, of in and out, are there at once. */
        if (node->pin == 0) assert_true(node->as.dispatch->grid[0] * 2 * 4 * (uint64_t)SLICE_BYTES <= 94371840);
        assert_int_equal((node->flags & MU_NODE_WAVE) != 0, node->pin == 0);
    }
    assert_int_equal(slices[0], SLICES / 2);
    assert_int_equal(slices[1], SLICES / 2);
    assert_true(shards[0] >= 320 / 45 && shards[1] == 1);
    fixture_run(&m.fixture, graph);
    for (uint32_t s = 0; s < SLICES; s++) {
        uint32_t word;
        fixture_read(out, (uint64_t)s * SLICE_BYTES, 4, &word);
        assert_int_equal(word, s * factor);
    }
    fixture_close(&m.fixture);
}

/* Each wave would write the whole. */
static void a_written_replicated_argument_allows_no_waves(void **state) {
    (void)state;
    enum { SLICES = 512 };
    machine m;
    open_machine(&m, 1, 64 * MIB);
    muster_buffer *in = fixture_buffer(&m.fixture, (uint64_t)SLICES * SLICE_BYTES, NULL);
    muster_buffer *out = fixture_buffer(&m.fixture, (uint64_t)SLICES * SLICE_BYTES, NULL);
    muster_buffer *scale = fixture_buffer(&m.fixture, 4096, NULL);
    muster_graph *graph = fixture_graph(&m.fixture);
    muster_arg args[5];
    muster_dispatch dispatch = stamp(&m, args, out, in, scale, SLICES);
    args[2].access = MUSTER_WRITE;
    FAILS(MUSTER_UNCUTTABLE, "argument 2|waves|4096", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    dispatch.grid.x = 16; /* at once */
    args[4] = muster_shard_offset_arg(1, 16, 8);
    args[0].bytes = args[1].bytes = 16 * (uint64_t)SLICE_BYTES;
    OK(muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    fixture_close(&m.fixture);
}

static void what_fits_is_not_cut_further(void **state) {
    (void)state;
    enum { SLICES = 60 };
    machine m;
    open_machine(&m, 2, 64 * MIB);
    muster_buffer *in = fixture_buffer(&m.fixture, (uint64_t)SLICES * SLICE_BYTES, NULL);
    muster_buffer *out = fixture_buffer(&m.fixture, (uint64_t)SLICES * SLICE_BYTES, NULL);
    muster_buffer *scale = fixture_buffer(&m.fixture, 4, NULL);
    muster_graph *graph = fixture_graph(&m.fixture);
    muster_arg args[5];
    muster_dispatch dispatch = stamp(&m, args, out, in, scale, SLICES);
    muster_job job = fixture_add(graph, &dispatch);
    muster_run *run = fixture_submit(&m.fixture, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, job).shards, 2);
    assert_int_equal(waves_of(&m), 0);
    fixture_close(&m.fixture);
}

/* Every shard needs all of what is replicated, and of its scratch memory. */
static void what_cannot_be_cut_is_refused_with_numbers(void **state) {
    (void)state;
    enum { SLICES = 512 };
    machine m;
    open_machine(&m, 2, 64 * MIB);
    muster_buffer *in = fixture_buffer(&m.fixture, (uint64_t)SLICES * SLICE_BYTES, NULL);
    muster_buffer *out = fixture_buffer(&m.fixture, (uint64_t)SLICES * SLICE_BYTES, NULL);
    muster_buffer *scale = fixture_buffer(&m.fixture, 80 * MIB, NULL);
    muster_graph *graph = fixture_graph(&m.fixture);
    muster_arg args[5];
    muster_dispatch dispatch = stamp(&m, args, out, in, scale, SLICES);
    FAILS(MUSTER_UNCUTTABLE, "512 slices|83886080|replicated|raise the budget",
          muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    args[2] = muster_scratch_arg(80 * MIB);
    FAILS(MUSTER_UNCUTTABLE, "83886080|scratch", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    /* Nothing was added. */
    muster_job job;
    args[2] = muster_range_arg(scale, MUSTER_READ, 0, 4 * MIB);
    OK(muster_graph_dispatch(graph, &dispatch, &job, &reported));
    assert_int_equal(job, 0);
    fixture_run(&m.fixture, graph);
    fixture_close(&m.fixture);
}

/* Where a shard begins decides how much memory keeps it aligned as the buffer is: planned is the most. What fits as a whole is not
 * refused because two parts of it might not. */
static void what_just_fits_as_a_whole_is_left_whole(void **state) {
    (void)state;
    enum { BUFFER_BYTES = 16 << 10, FROM = 32, BYTES = 8, NEEDED = 64 + 8 };
    uint64_t fixed = 0;
    for (uint32_t devices = 0; devices <= 3;
         devices++) { /* the first time it is only looked how much the kernels take */
        fixture fixture;
        muster_config config = {.struct_size = sizeof config, .budget_bytes = devices ? fixed + NEEDED : 0};
        fixture_open_with(&fixture, devices ? devices : 1, &config);
        muster_buffer *out = fixture_buffer(&fixture, BUFFER_BYTES, NULL);
        muster_buffer *in = fixture_buffer(&fixture, BUFFER_BYTES, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "nothing"), 2, 1,
                             ARGS(muster_block_cut(muster_range_arg(out, MUSTER_WRITE, FROM, BYTES), BYTES / 2),
                                  muster_block_cut(muster_range_arg(in, MUSTER_READ, 0, BYTES), BYTES / 2)));
        dispatch.flags = MUSTER_DISPATCH_SHARDED;
        muster_job job = fixture_add(graph, &dispatch);
        muster_run *run = fixture_submit(&fixture, graph);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        if (devices) assert_int_equal(fixture_result(run, job).shards, 1);
        fixed = mu_ledger_read(mu_device_ledger(fixture.runtime->actors[0].device)).fixed;
        fixture_close(&fixture);
    }
}

/* The last shard has all slices of the input, its own and as halo, but needs nothing else of a buffer that would count as a whole. */
static void a_halo_may_be_all_of_the_range(void **state) {
    (void)state;
    enum { BUFFER_BYTES = 1500, SLICES = 5, NEEDED = 512 + 512 };
    uint64_t fixed = 0;
    for (uint32_t devices = 0; devices <= 3;
         devices++) { /* the first time it is only looked how much the kernels take */
        fixture fixture;
        muster_config config = {.struct_size = sizeof config,
                                .budget_bytes = devices ? fixed + NEEDED + NEEDED / (MU_CUT_RESERVE - 1) + 1 : 0};
        fixture_open_with(&fixture, devices ? devices : 1, &config);
        assert_true(!devices || fixture.runtime->whole_copy_bytes >= BUFFER_BYTES);
        muster_buffer *out = fixture_buffer(&fixture, BUFFER_BYTES, NULL);
        muster_buffer *in = fixture_buffer(&fixture, BUFFER_BYTES, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "nothing"), SLICES, 1,
                             ARGS(muster_block_cut(muster_range_arg(out, MUSTER_WRITE, 4, 4 * SLICES), 4),
                                  muster_halo_cut(muster_range_arg(in, MUSTER_READ, 4, 4 * SLICES), 4, SLICES - 1, 0)));
        dispatch.flags = MUSTER_DISPATCH_SHARDED;
        muster_job job = fixture_add(graph, &dispatch);
        muster_run *run = fixture_submit(&fixture, graph);
        OK(muster_run_wait(run, fixture_wait_ns, &reported));
        if (devices) assert_true(fixture_result(run, job).shards > 1);
        fixed = mu_ledger_read(mu_device_ledger(fixture.runtime->actors[0].device)).fixed;
        fixture_close(&fixture);
    }
}

/* Without host memory to write back to, what does not fit ends at once and says why; with the application's own it needs none. */
static void host_memory_is_bounded(void **state) {
    (void)state;
    machine m;
    fixture_open_with(
        &m.fixture, 1,
        &(muster_config){.struct_size = sizeof(muster_config), .budget_bytes = 64 * MIB, .host_budget_bytes = 6 * MIB});
    muster_buffer *small = fixture_buffer(&m.fixture, 4 * MIB, NULL),
                  *large = fixture_buffer(&m.fixture, 4 * MIB, NULL);
    void *pointer;
    OK(muster_buffer_acquire(small, 0, 0, MUSTER_WRITE, fixture_wait_ns, &pointer, &reported));
    OK(muster_buffer_release(small, pointer, &reported));
    FAILS(MUSTER_OUT_OF_HOST_MEMORY, "4194304|6291456|host_budget_bytes",
          muster_buffer_acquire(large, 0, 0, MUSTER_WRITE, fixture_wait_ns, &pointer, &reported));
    muster_buffer_destroy(small);
    OK(muster_buffer_acquire(large, 0, 0, MUSTER_WRITE, fixture_wait_ns, &pointer, &reported));
    OK(muster_buffer_release(large, pointer, &reported));
    muster_graph *first = fixture_graph(&m.fixture), *second = fixture_graph(&m.fixture);
    muster_buffer *one = fixture_buffer(&m.fixture, 40 * MIB, NULL),
                  *other = fixture_buffer(&m.fixture, 40 * MIB, NULL);
    OK(muster_graph_fill(first, one, 0, 40 * MIB, 1, 4, NULL, &reported));
    OK(muster_graph_fill(second, other, 0, 40 * MIB, 2, 4, NULL, &reported));
    fixture_run(&m.fixture, first);
    muster_run *run = fixture_submit(&m.fixture, second);
    FAILS(MUSTER_OUT_OF_HOST_MEMORY, "6291456|host_budget_bytes", muster_run_wait(run, fixture_wait_ns, &reported));
    muster_buffer_destroy(one);
    muster_graph_destroy(first);
    OK(muster_graph_fill(second = fixture_graph(&m.fixture), other, 0, 40 * MIB, 3, 4, NULL, &reported));
    fixture_run(&m.fixture, second);
    fixture_close(&m.fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dispatch_larger_than_all_devices_runs_in_waves),
        cmocka_unit_test(waves_follow_each_device_s_budget),
        cmocka_unit_test(a_written_replicated_argument_allows_no_waves),
        cmocka_unit_test(what_fits_is_not_cut_further),
        cmocka_unit_test(what_cannot_be_cut_is_refused_with_numbers),
        cmocka_unit_test(what_just_fits_as_a_whole_is_left_whole),
        cmocka_unit_test(a_halo_may_be_all_of_the_range),
        cmocka_unit_test(host_memory_is_bounded),
    };
    return cmocka_run_group_tests_name("waves", tests, NULL, NULL);
}
