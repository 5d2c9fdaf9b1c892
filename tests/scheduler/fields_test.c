/* Every field of every descriptor, set alone to something odd: it is used, refused with a message that names it, or, where muster.h says
 * so, not looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/fixture.h"

/* A field of a valid descriptor becomes `value`, of its own width. */
typedef struct change {
    const char *name;
    size_t offset, bytes;
    uint64_t value;
    muster_status status;
    const char *words;
} change;
#define CHANGE(type, field, value, status, words)                                                                      \
    { #field, offsetof(type, field), sizeof(((type *)0)->field), (uint64_t)(value), status, words }
#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static void apply(void *descriptor, const change *c) {
    assert_in_range(c->bytes, 4, 8);
    memcpy((char *)descriptor + c->offset, &c->value, c->bytes); /* little-endian, as every host of the driver is */
}

/* `result` is that of a call with the changed descriptor; `reported` its error. */
static void judge(const char *what, const change *c, muster_status result) {
    char call[96];
    snprintf(call, sizeof call, "%s with %s = %lld", what, c->name, (long long)c->value);
    fixture_check(result, c->status, c->words, call, __FILE__, __LINE__);
    if (result) assert_true(muster_status_recovery(result) == MUSTER_RECOVERY_FIX_CALL);
}

/* ------------------------------------------------------------------------------------------------------- dispatches -- */

/* When one of these fails, a field was added: decide what becomes of it when it is set, and add it below. */
_Static_assert(sizeof(muster_dispatch) == 144, "every field of a dispatch is in the tables");
_Static_assert(sizeof(muster_enqueue_job) == 72, "every field of an enqueue job is in the table");
_Static_assert(sizeof(muster_host_job) == 56, "every field of a host job is in the table");
_Static_assert(sizeof(muster_arg) == 120, "every field of an argument is in the table");
_Static_assert(sizeof(muster_config) == 208, "every field of a configuration is in the table");

static const muster_job no_job = 0;
#define D(field, value, status, words) CHANGE(muster_dispatch, field, value, status, words)
#define BAD MUSTER_INVALID_ARGUMENT

static const change plain_dispatch[] = {
    D(struct_size, 0, BAD, "struct_size"),
    D(struct_size, sizeof(muster_dispatch) + 8, BAD, "struct_size"),
    D(kernel, 0, BAD, "kernel"),
    D(grid.x, 0, MUSTER_INVALID_GEOMETRY, "grid|0"),
    D(grid.y, 0, MUSTER_OK, ""),
    D(grid.z, 70000, MUSTER_INVALID_GEOMETRY, "70000 along z"),
    D(block.x, 0, MUSTER_INVALID_GEOMETRY, "block|0"),
    D(block.y, 0, MUSTER_OK, ""),
    D(block.z, 0, MUSTER_OK, ""),
    D(dynamic_shared_bytes, 1u << 30, MUSTER_INVALID_GEOMETRY, "1073741824"),
    D(flags, 1u << 3, BAD, "0x8"),
    D(flags, MUSTER_DISPATCH_ITERATED, BAD, "iterations"),
    D(shard_axis, 1, MUSTER_OK, ""), /* says how it would be cut, as the arguments do */
    D(shard_axis, 3, BAD, "shard_axis|3"),
    D(max_shards, 1, MUSTER_OK, ""),
    D(max_shards, 2, BAD, "max_shards is 2|MUSTER_DISPATCH_SHARDED"),
    D(pin_device, 1, MUSTER_OK, ""),
    D(pin_device, 2, BAD, "pin_device is 1 or 0, not 2"),
    D(pin_device, -1, BAD, "pin_device is 1 or 0, not -1"),
    D(device, 1, BAD, "device is 1|set pin_device to 1"),
    D(device, 77, BAD, "device is 77|pin_device"),
    D(device, -2, BAD, "device is -2"),
    D(device, MUSTER_ANY_DEVICE, MUSTER_OK, ""),
    D(arg_count, 0, MUSTER_ARGUMENT_MISMATCH, "2 parameters|0"),
    D(arg_count, 100000, MUSTER_LIMIT_REACHED, "100000"),
    D(args, 0, BAD, "args is NULL"),
    D(after_count, 1, BAD, "after is NULL"),
    D(cluster.x, 1, MUSTER_OK, ""),
    D(cluster.x, 3, MUSTER_INVALID_GEOMETRY, "multiple"),
    D(cluster.y, 1, BAD, "cluster of 0 x 1"),
    D(cluster.z, 2, BAD, "cluster of 0 x 0 x 2"),
    D(fallback, MUSTER_FALLBACK_CLAMP, BAD, "cooperative"),
    D(fallback, 9, BAD, "9 is not a fallback"),
    D(phase_count, 1, BAD, "1 phases without"),
    D(iterations, 2, BAD, "MUSTER_DISPATCH_ITERATED"),
    D(priority, 8, MUSTER_OUT_OF_RANGE, "8"),
    D(priority, -8, MUSTER_OUT_OF_RANGE, "-8"),
    D(priority, -7, MUSTER_OK, ""),
};

static const change sharded_dispatch[] = {
    D(shard_axis, 1, MUSTER_OK, ""),
    D(shard_axis, UINT32_MAX, BAD, "shard_axis"),
    D(max_shards, 2, MUSTER_OK, ""),
    D(max_shards, 65537, MUSTER_LIMIT_REACHED, "max_shards|65537"),
    D(pin_device, 1, BAD, "pinned"),
    D(device, 1, BAD, "device is 1"),
    D(flags, MUSTER_DISPATCH_SHARDED | MUSTER_DISPATCH_COOPERATIVE, MUSTER_UNCUTTABLE, "cooperative"),
    D(cluster.x, 2, MUSTER_UNCUTTABLE, "clusters"),
    D(iterations, 1, BAD, "MUSTER_DISPATCH_ITERATED"),
};

static void check_dispatches(const fixture *f, uint32_t flags, const change *changes, size_t count) {
    muster_buffer *buffer = fixture_buffer(f, 64, NULL);
    for (size_t i = 0; i < count; i++) {
        muster_graph *graph = fixture_graph(f);
        muster_arg args[2] = {muster_block_cut(muster_buffer_arg(buffer, MUSTER_READ), 8),
                              muster_buffer_arg(buffer, MUSTER_READ)};
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(f, "nothing"), 8, 1, (fixture_args){.arg = args, .count = 2});
        dispatch.flags = flags;
        apply(&dispatch, &changes[i]);
        muster_job job = 77;
        fixture_clear();
        judge(flags ? "a sharded dispatch" : "a dispatch", &changes[i],
              muster_graph_dispatch(graph, &dispatch, &job, &reported));
        assert_int_equal(job, changes[i].status ? 77 : 0);
        if (!changes[i].status) fixture_run(f, graph);
        muster_graph_destroy(graph);
    }
}

static void fields_of_a_dispatch(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, 2);
    check_dispatches(&f, 0, plain_dispatch, COUNT(plain_dispatch));
    check_dispatches(&f, MUSTER_DISPATCH_SHARDED, sharded_dispatch, COUNT(sharded_dispatch));
    /* The pointers of empty arrays are not looked at. */
    muster_graph *graph = fixture_graph(&f);
    muster_buffer *buffer = fixture_buffer(&f, 64, NULL);
    muster_kernel *const phases[1] = {NULL};
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&f, "nothing"), 1, 1,
                         ARGS(muster_buffer_arg(buffer, MUSTER_READ), muster_buffer_arg(buffer, MUSTER_READ)));
    dispatch.after = &no_job;
    dispatch.phases = phases;
    fixture_add(graph, &dispatch);
    dispatch.barrier_counter = "";
    FAILS(MUSTER_ENTRY_NOT_FOUND, "", muster_graph_dispatch(graph, &dispatch, NULL, &reported));
    fixture_close(&f);
}

/* -------------------------------------------------------------------------------------------------- callbacks' jobs -- */

static muster_status run_nothing(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)user, (void)pointers, (void)count, (void)error;
    return MUSTER_OK;
}
static muster_status enqueue_nothing(void *user, const muster_enqueue_context *context, muster_error *error) {
    (void)user, (void)context, (void)error;
    return MUSTER_OK;
}

static void fields_of_callback_jobs(void **state) {
    (void)state;
#define H(field, value, status, words) CHANGE(muster_host_job, field, value, status, words)
#define E(field, value, status, words) CHANGE(muster_enqueue_job, field, value, status, words)
    static const change hosts[] = {
        H(struct_size, 8, BAD, "struct_size"),
        H(run, 0, BAD, "no function"),
        H(user, 1, MUSTER_OK, ""),
        H(arg_count, 1, BAD, "args is NULL"),
        H(args, 8, MUSTER_OK, ""),
        H(after_count, 1, BAD, "after is NULL"),
        H(after, 4, MUSTER_OK, ""),
    };
    static const change enqueues[] = {
        E(struct_size, 8, BAD, "struct_size"),
        E(enqueue, 0, BAD, "no function"),
        E(user, 1, MUSTER_OK, ""),
        E(arg_count, 1, BAD, "args is NULL"),
        E(args, 8, MUSTER_OK, ""),
        E(pin_device, 1, MUSTER_OK, ""),
        E(pin_device, 256, BAD, "pin_device"),
        E(device, 1, BAD, "device is 1|pin_device"),
        E(device, MUSTER_ANY_DEVICE, MUSTER_OK, ""),
        E(after_count, 1, BAD, "after is NULL"),
        E(after, 4, MUSTER_OK, ""),
        E(priority, 9, MUSTER_OUT_OF_RANGE, "9"),
    };
    fixture f;
    fixture_open(&f, 2);
    for (size_t i = 0; i < COUNT(hosts); i++) {
        muster_graph *graph = fixture_graph(&f);
        muster_host_job host = {.struct_size = sizeof host, .run = run_nothing};
        apply(&host, &hosts[i]);
        fixture_clear();
        judge("a host job", &hosts[i], muster_graph_host(graph, &host, NULL, &reported));
        if (!hosts[i].status) fixture_run(&f, graph);
    }
    for (size_t i = 0; i < COUNT(enqueues); i++) {
        muster_graph *graph = fixture_graph(&f);
        muster_enqueue_job enqueue = {.struct_size = sizeof enqueue, .enqueue = enqueue_nothing};
        apply(&enqueue, &enqueues[i]);
        fixture_clear();
        judge("an enqueue job", &enqueues[i], muster_graph_enqueue(graph, &enqueue, NULL, &reported));
        if (!enqueues[i].status) fixture_run(&f, graph);
    }
    fixture_close(&f);
}

/* -------------------------------------------------------------------------------------------------------- arguments -- */

enum { PLAIN, BLOCK, REDUCED, HALO, VALUE, OFFSET, SCRATCH, CLASSES };
static const char *const class_names[] = {"a plain buffer", "a block cut", "a reduced buffer", "a halo",
                                          "a value",        "an offset",   "scratch"};

static muster_arg example(int class, muster_buffer *buffer) {
    const muster_arg plain = muster_buffer_arg(buffer, MUSTER_READ);
    switch (class) {
        case BLOCK: return muster_block_cut(plain, 8);
        case REDUCED: return muster_reduce_arg(buffer, MUSTER_U32, MUSTER_REDUCE_MIN);
        case HALO: return muster_halo_cut(plain, 8, 1, 1);
        case VALUE: return muster_u64_arg(7);
        case OFFSET: return muster_shard_offset_arg(1, 8, 8);
        case SCRATCH: return muster_scratch_arg(64);
        default: return plain;
    }
}

/* Which classes use a field, and a value that those which do may have. */
static const struct {
    change change;
    unsigned users;
} uses[] = {
#define A(field, value, users)                                                                                         \
    { CHANGE(muster_arg, field, value, BAD, #field), users }
#define BUFFERS (1u << PLAIN | 1u << BLOCK | 1u << REDUCED | 1u << HALO)
#define BLOCKS (1u << BLOCK | 1u << HALO)
    A(access, MUSTER_READ, BUFFERS & ~(1u << REDUCED)),
    A(access, MUSTER_READ_WRITE, 1u << PLAIN | 1u << BLOCK | 1u << REDUCED),
    A(type, MUSTER_I32, 1u << REDUCED),
    A(reduction, MUSTER_REDUCE_MAX, 1u << REDUCED),
    A(offset_bytes, 4, BUFFERS & ~BLOCKS),
    A(bytes, 60, BUFFERS | 1u << SCRATCH),
    A(slice_bytes, 8, BLOCKS),
    A(halo_before, 2, 1u << HALO),
    A(halo_after, 2, 1u << HALO),
    A(rows, 1, BLOCKS),
    A(pitch_bytes, 64, 0), /* without rows; the pitches have a test of their own */
    A(slice_elements, 2, 1u << OFFSET),
    A(total_elements, 7, 1u << OFFSET),
    A(value_bytes, 8, 1u << VALUE | 1u << OFFSET),
};

static void check_argument(const fixture *f, int class, const change *c, bool used, uint32_t flags) {
    muster_buffer *buffer = fixture_buffer(f, 64, NULL);
    muster_graph *graph = fixture_graph(f);
    muster_arg args[2] = {muster_buffer_arg(fixture_buffer(f, 64, NULL), MUSTER_READ), example(class, buffer)};
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(f, "nothing"), 8, 1, (fixture_args){.arg = args, .count = 2});
    /* The graph knows the shape then, and looks at the next of it less closely. */
    if (!flags) fixture_add(graph, &dispatch);
    if (c) apply(&args[1], c);
    dispatch.flags = flags;
    /* One shard may write what is replicated. */
    if (flags) dispatch.max_shards = 1;
    fixture_clear();
    muster_status status = muster_graph_dispatch(graph, &dispatch, NULL, &reported);
    if (used)
        fixture_check(status, MUSTER_OK, "", class_names[class], __FILE__, __LINE__);
    else
        judge(class_names[class], c, status);
    if (!status) fixture_run(f, graph);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
}

static void fields_of_arguments(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, 2);
    for (uint32_t flags = 0; flags <= MUSTER_DISPATCH_SHARDED; flags += MUSTER_DISPATCH_SHARDED)
        for (int class = 0; class < CLASSES; class ++) {
            check_argument(&f, class, NULL, true, flags);
            for (size_t i = 0; i < COUNT(uses); i++) {
                bool used = uses[i].users >> class & 1;
                /* Wrong for other reasons, or right only for some dispatches: other tests' concern. */
                bool elsewhere =
                    (uses[i].users == 0 && (1u << class & BLOCKS)) ||
                    (uses[i].change.offset == offsetof(muster_arg, access) && class <= HALO && !used) ||
                    (uses[i].change.offset == offsetof(muster_arg, offset_bytes) && (1u << class & BLOCKS));
                if (!elsewhere) check_argument(&f, class, &uses[i].change, used, flags);
            }
            const change cut = CHANGE(muster_arg, cut, 4, BAD, "argument 1|cut"),
                         kind = CHANGE(muster_arg, kind, 6, BAD, "argument 1: 6 is not a kind"),
                         pointer = CHANGE(muster_arg, buffer, 64, BAD, "argument 1|names a buffer");
            check_argument(&f, class, &cut, false, flags);
            check_argument(&f, class, &kind, false, flags);
            if (class > HALO) check_argument(&f, class, &pointer, false, flags);
        }
    fixture_close(&f);
}

/* What is described for shards is taken whole by everything else. */
static void cuts_are_ignored_where_nothing_is_cut(void **state) {
    (void)state;
    fixture f;
    fixture_open(&f, 2);
    muster_buffer *buffer = fixture_buffer(&f, 64, NULL);
    muster_graph *graph = fixture_graph(&f);
    muster_arg arg = muster_pitch_cut(muster_range_arg(buffer, MUSTER_READ, 0, 64), 3, 20, 3);
    muster_host_job host = {.struct_size = sizeof host, .run = run_nothing, .arg_count = 1, .args = &arg};
    muster_enqueue_job enqueue = {
        .struct_size = sizeof enqueue, .enqueue = enqueue_nothing, .arg_count = 1, .args = &arg};
    OK(muster_graph_host(graph, &host, NULL, &reported));
    OK(muster_graph_enqueue(graph, &enqueue, NULL, &reported));
    arg.cut = MUSTER_CUT_REPLICATE;
    FAILS(BAD, "argument 0|slice_bytes|3", muster_graph_host(graph, &host, NULL, &reported));
    FAILS(BAD, "argument 0|slice_bytes|3", muster_graph_enqueue(graph, &enqueue, NULL, &reported));
    fixture_run(&f, graph);
    fixture_close(&f);
}

/* ----------------------------------------------------------------------------------------------------- configuration -- */

static void fields_of_a_configuration(void **state) {
    (void)state;
#define C(field, value, status, words) CHANGE(muster_config, field, value, status, words)
    static const int twice[2] = {0, 0}, far[1] = {9};
    const change changes[] = {
        C(struct_size, 4, MUSTER_INVALID_CONFIG, "struct_size"),
        C(driver, (uintptr_t) "vulkan", MUSTER_INVALID_CONFIG, "vulkan|sim"),
        C(driver, (uintptr_t) "cuda", MUSTER_INVALID_CONFIG, "sim describes|driver"),
        C(sim, (uintptr_t) "{", MUSTER_INVALID_CONFIG, "sim"),
        C(config_path, (uintptr_t) "/nowhere", MUSTER_FILE_UNREADABLE, "/nowhere"),
        C(ordinals, (uintptr_t)twice, MUSTER_INVALID_CONFIG, "ordinals|device_count"),
        C(device_count, 3, MUSTER_OUT_OF_RANGE, "3"),
        C(device_count, 99, MUSTER_INVALID_CONFIG, "99"),
        C(device_count, 1, MUSTER_OK, ""),
        C(flags, 1u << 9, MUSTER_INVALID_CONFIG, "0x200"),
        C(budget_bytes, 1, MUSTER_OK, ""), /* no job fits; programs do */
        C(budget_permille, 1001, MUSTER_INVALID_CONFIG, "1001"),
        C(budget_permille, 1000, MUSTER_OK, ""),
        C(host_budget_bytes, 1, MUSTER_OK, ""),
        C(max_queued_jobs, 1, MUSTER_OK, ""),
        C(admission_wait_ns, UINT64_MAX, MUSTER_OK, ""),
        C(spin_ns, UINT64_MAX / 2, MUSTER_OK, ""),
        C(placement, (uintptr_t) "near", MUSTER_INVALID_CONFIG, "near|locality"),
        C(seed, UINT64_MAX, MUSTER_OK, ""),
        C(log_user, 8, MUSTER_OK, ""),
        C(log_level, 5, MUSTER_INVALID_CONFIG, "log_level|5"),
        C(log_level, 4, MUSTER_OK, ""),
        C(cache_dir, (uintptr_t) "", MUSTER_OK, ""),
        C(cache_bytes, 1, MUSTER_OK, ""),
        C(dump_ptx, (uintptr_t) "some", MUSTER_INVALID_CONFIG, "dump_ptx|some"),
        C(dump_dir, (uintptr_t) "", MUSTER_OK, ""),
        C(enqueue_limit_ns, 1, MUSTER_OK, ""),
        C(actors_per_device, 2, MUSTER_OK, ""),
        C(actors_per_device, 17, MUSTER_INVALID_CONFIG, "actors_per_device|17"),
        C(bursts, (uintptr_t) "", MUSTER_INVALID_CONFIG, "bursts"),
        C(enqueue_ahead_ns, UINT64_MAX, MUSTER_OK, ""),
    };
    for (size_t i = 0; i < COUNT(changes); i++) {
        muster_config config = {
            .struct_size = sizeof config, .driver = "sim", .sim = "{\"devices\": [{\"count\": 2}]}", .cache_dir = ""};
        apply(&config, &changes[i]);
        muster_runtime *runtime = NULL;
        fixture_clear();
        muster_status status = muster_runtime_create(&config, &runtime, &reported);
        judge("a configuration", &changes[i], status);
        if (!status) OK(muster_runtime_destroy(runtime, fixture_wait_ns, &reported));
    }
    muster_config config = {
        .struct_size = sizeof config, .driver = "sim", .cache_dir = "", .ordinals = twice, .device_count = 2};
    muster_runtime *runtime;
    FAILS(MUSTER_INVALID_CONFIG, "twice", muster_runtime_create(&config, &runtime, &reported));
    config.ordinals = far, config.device_count = 1;
    FAILS(MUSTER_OUT_OF_RANGE, "9", muster_runtime_create(&config, &runtime, &reported));
    /* A policy. */
    static int (*const place)(void *, const muster_placement_request *) = NULL;
    muster_placement_policy policy = {.struct_size = sizeof policy, .place = place};
    config.ordinals = NULL, config.policy = &policy;
    FAILS(MUSTER_INVALID_CONFIG, "place", muster_runtime_create(&config, &runtime, &reported));
    policy = *muster_placement_find("random");
    policy.flags |= 1u << 12;
    FAILS(MUSTER_INVALID_CONFIG, "flags 0x10", muster_runtime_create(&config, &runtime, &reported));
    policy.struct_size = 0;
    FAILS(MUSTER_INVALID_CONFIG, "struct_size", muster_runtime_create(&config, &runtime, &reported));
}

/* A file says the same in other words than the code, or contradicts itself. */
static void code_replaces_what_a_file_says_in_other_words(void **state) {
    (void)state;
    char path[] = "/tmp/muster_fields_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    assert_non_null(file);
    fputs(
        "{\"driver\": \"sim\", \"sim\": {\"devices\": [{\"count\": 3}]}, \"cache_dir\": \"\", \"ordinals\": [2, 1],"
        " \"budget_bytes\": 1073741824}",
        file);
    fclose(file);
    muster_config config = {.struct_size = sizeof config, .config_path = path};
    muster_runtime *runtime;
    OK(muster_runtime_create(&config, &runtime, &reported));
    muster_device_info info = {.struct_size = sizeof info};
    OK(muster_device_get_info(runtime, 0, &info, &reported));
    assert_int_equal(info.ordinal, 2);
    assert_int_equal(info.budget_bytes, 1073741824);
    OK(muster_runtime_destroy(runtime, fixture_wait_ns, &reported));
    config.device_count = 3;
    config.budget_permille = 500;
    OK(muster_runtime_create(&config, &runtime, &reported));
    assert_int_equal(muster_device_count(runtime), 3);
    OK(muster_device_get_info(runtime, 0, &info, &reported));
    assert_int_equal(info.ordinal, 0);
    assert_int_equal(info.budget_bytes, info.memory_bytes / 2);
    OK(muster_runtime_destroy(runtime, fixture_wait_ns, &reported));
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"driver\": \"sim\", \"ordinals\": [0], \"device_count\": 2}", file);
    fclose(file);
    FAILS(MUSTER_INVALID_CONFIG, "device_count|2|ordinals|1", muster_runtime_create(&config, &runtime, &reported));
    remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_of_a_dispatch),      cmocka_unit_test(fields_of_callback_jobs),
        cmocka_unit_test(fields_of_arguments),       cmocka_unit_test(cuts_are_ignored_where_nothing_is_cut),
        cmocka_unit_test(fields_of_a_configuration), cmocka_unit_test(code_replaces_what_a_file_says_in_other_words),
    };
    return cmocka_run_group_tests_name("fields", tests, NULL, NULL);
}
