/* Programs from lowerings and images: identity, what callbacks may do wrong, and what is asked of them how often. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/digest.h"
#include "device/sim/sim.h"
#include "scheduler/program/source.h"
#include "tests/cache/scratch.h"
#include "tests/scheduler/fixture.h"

static const char mixed[] =
    "{\"devices\": [{\"preset\": \"H200\"}, {\"preset\": \"A100\"}, {\"preset\": \"H200\"}, {\"preset\": \"T4\"}]}";

static muster_cache_stats stats_of(const fixture *fixture) {
    muster_cache_stats stats = {.struct_size = sizeof stats};
    OK(muster_cache_get_stats(fixture->runtime, &stats, &reported));
    return stats;
}

static void open_bare(fixture *fixture, const char *sim, const char *directory) {
    muster_config config = {.struct_size = sizeof config, .driver = "sim", .sim = sim, .cache_dir = directory};
    fixture->program = NULL;
    OK(muster_runtime_create(&config, &fixture->runtime, &reported));
}

/* ---------------------------------------------------------------------------------------------------- a back end -- */

/* A language of one number: the kernel "store" writes it, and its target's SM behind it. */
typedef enum manner {
    HONEST,
    REWRITES,     /* prepare gives another number */
    LIES,         /* ... and reports that it is unchanged */
    FAILS_SAYING, /* lower fails with a message of two lines */
    FAILS_SILENT, /* ... with none, and a status that is none */
    FAILS_MEMORY,
    WRITES_NOTHING,
    WRITES_GARBAGE,
    WRITES_NUL,
    WRITES_ELF,
    WRITES_WRONG, /* PTX that does not compile */
    FAILS_PREPARING,
    PREPARES_GARBAGE,
    UNTERMINATED /* a message without an end */
} manner;

typedef struct back_end {
    manner manner;
    int prepares, lowers;
    uint32_t rewritten;
    muster_target last;
} back_end;

static muster_status prepare(void *user, const muster_lowering_source *given, const muster_target *target,
                             muster_lowering_source *result, int *unchanged, muster_error *error) {
    back_end *b = user;
    assert_int_equal(target->struct_size, sizeof *target);
    assert_memory_equal(result, given, sizeof *given);
    b->prepares++;
    *unchanged = 1;
    if (b->manner == FAILS_PREPARING) {
        snprintf(error->message, sizeof error->message, "no such operation");
        return MUSTER_UNSUPPORTED;
    }
    if (b->manner == PREPARES_GARBAGE) {
        result->content = NULL;
        return MUSTER_OK;
    }
    if (b->manner == REWRITES || b->manner == LIES) {
        result->content = &b->rewritten;
        result->bytes = sizeof b->rewritten;
        *unchanged = b->manner == LIES;
    }
    return MUSTER_OK;
}

static void append(muster_ptx *ptx, const char *text) { muster_ptx_append(ptx, text, strlen(text)); }

static muster_status lower(void *user, const muster_lowering_source *source, const muster_target *target,
                           muster_ptx *ptx, muster_error *error) {
    back_end *b = user;
    uint32_t number;
    char text[700];
    b->lowers++;
    b->last = *target;
    assert_int_equal(source->bytes, sizeof number);
    memcpy(&number, source->content, sizeof number);
    snprintf(
        text, sizeof text,
        ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry store(.param .u64 out)\n{\n"
        "    .reg .b32 %%r<3>;\n    .reg .b64 %%rd<2>;\n    ld.param.u64 %%rd1, [out];\n    mov.u32 %%r1, %u;\n"
        "    mov.u32 %%r2, %d;\n    st.global.u32 [%%rd1], %%r1;\n    st.global.u32 [%%rd1+4], %%r2;\n    ret;\n}\n",
        number, target->sm);
    switch (b->manner) {
        case FAILS_SAYING: strcpy(error->message, "line 3:\n\tnot a number"); return MUSTER_PROGRAM_INVALID;
        case FAILS_SILENT: return (muster_status)987654;
        case FAILS_MEMORY: return MUSTER_OUT_OF_HOST_MEMORY;
        case UNTERMINATED: memset(error->message, 'x', sizeof error->message); return MUSTER_INTERNAL;
        case WRITES_NOTHING: return MUSTER_OK;
        case WRITES_GARBAGE: append(ptx, "\x01\x02 what is this"); return MUSTER_OK;
        case WRITES_NUL: muster_ptx_append(ptx, ".version 7.0\n\0.target sm_75\n", 28); return MUSTER_OK;
        case WRITES_ELF:
            append(ptx,
                   "\x7f"
                   "ELF and so on");
            return MUSTER_OK;
        case WRITES_WRONG: append(ptx, ".version 7.0\n.target sm_75\n.address_size 64\nfrobnicate\n"); return MUSTER_OK;
        default: break;
    }
    for (const char *c = text; *c; c++) /* in pieces */
        if (muster_ptx_append(ptx, c, 1) != MUSTER_OK) break;
    return MUSTER_OK;
}

static muster_lowering lowering_of(back_end *b, const uint32_t *number) {
    return (muster_lowering){
        .struct_size = sizeof(muster_lowering),
        .name = "number",
        .source = {.struct_size = sizeof(muster_lowering_source), .content = number, .bytes = sizeof *number},
        .prepare = prepare,
        .lower = lower,
        .user = b,
        .policy = "numbers 1",
        .policy_bytes = 9,
    };
}

/* What the program stores on a device. */
static void expect_stored(const fixture *fixture, muster_program *program, int device, uint32_t number) {
    muster_device_info info = {.struct_size = sizeof info};
    OK(muster_device_get_info(fixture->runtime, device, &info, &reported));
    muster_kernel *kernel;
    OK(muster_program_kernel(program, "store", &kernel, &reported));
    muster_buffer *out = fixture_buffer(fixture, 8, NULL);
    muster_graph *graph = fixture_graph(fixture);
    muster_dispatch dispatch = fixture_dispatch(kernel, 1, 1, ARGS(muster_buffer_arg(out, MUSTER_WRITE)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    fixture_add(graph, &dispatch);
    fixture_run(fixture, graph);
    assert_int_equal(fixture_word(out, 0), number);
    assert_int_equal(fixture_word(out, 1), info.compute_major * 10 + info.compute_minor);
    muster_graph_destroy(graph);
    muster_buffer_destroy(out);
}

static muster_program *make(const fixture *fixture, back_end *b, uint32_t number) {
    muster_lowering lowering = lowering_of(b, &number);
    muster_program *program;
    OK(muster_program_from_lowering(fixture->runtime, &lowering, &program, &reported));
    return program;
}

/* ----------------------------------------------------------------------------------------------------- lowerings -- */

static void a_lowering_writes_for_each_architecture_once(void **state) {
    (void)state;
    fixture fixture;
    back_end b = {.manner = HONEST};
    open_bare(&fixture, mixed, "");
    muster_program *program = make(&fixture, &b, 77);
    assert_int_equal(b.lowers, 3);
    assert_int_equal(b.prepares, 3);
    assert_int_equal(b.last.warp_size, 32);
    assert_int_equal(b.last.sm, 75);
    for (int d = 0; d < 4; d++) expect_stored(&fixture, program, d, 77);
    make(&fixture, &b, 77);
    assert_int_equal(b.lowers, 3);
    make(&fixture, &b, 78);
    assert_int_equal(b.lowers, 6);
    assert_int_equal(stats_of(&fixture).lowerings, 6);
    fixture_close(&fixture);
}

/* F2: "unchanged" keys from the given source, whose digest is computed once; a rewritten one has a digest each time. */
static void digests_are_computed_once_for_what_is_unchanged(void **state) {
    (void)state;
    fixture fixture;
    back_end honest = {.manner = HONEST}, rewriting = {.manner = REWRITES, .rewritten = 5};
    open_bare(&fixture, mixed, "");
    make(&fixture, &honest, 5); /* everything warm */
    uint64_t start = mu_digest_thread_count();
    make(&fixture, &honest, 5);
    uint64_t unchanged = mu_digest_thread_count() - start;
    make(&fixture, &rewriting, 4);
    uint64_t rewritten = mu_digest_thread_count() - start - unchanged;
    assert_int_equal(rewritten, unchanged + 3); /* one for each architecture */
    assert_int_equal(rewriting.lowers, 0);      /* what it came to was known */
    fixture_close(&fixture);
}

static void a_rewritten_source_is_what_counts(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture, mixed, "");
    back_end b = {.manner = REWRITES, .rewritten = 1000};
    expect_stored(&fixture, make(&fixture, &b, 1), 0, 1000);
    assert_int_equal(b.lowers, 3);
    expect_stored(&fixture, make(&fixture, &b, 2), 1, 1000); /* the same in the end */
    assert_int_equal(b.lowers, 3);
    b.rewritten = 2000;
    expect_stored(&fixture, make(&fixture, &b, 1), 1, 2000);
    assert_int_equal(b.lowers, 6);
    fixture_close(&fixture);
}

/* Whoever says "unchanged" and gives something else is not believed. */
static void a_lie_serves_no_wrong_kernel(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture, mixed, "");
    back_end honest = {.manner = HONEST}, lying = {.manner = LIES, .rewritten = 9};
    expect_stored(&fixture, make(&fixture, &honest, 8), 0, 8);
    expect_stored(&fixture, make(&fixture, &lying, 8), 0, 9);
    expect_stored(&fixture, make(&fixture, &honest, 8), 0, 8);
    fixture_close(&fixture);
}

static muster_status no_prepare_lower(void *user, const muster_lowering_source *source, const muster_target *target,
                                      muster_ptx *ptx, muster_error *error) {
    return lower(user, source, target, ptx, error);
}

static void every_field_of_the_key_counts(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture, "{\"devices\": 2}", "");
    back_end b = {.manner = HONEST};
    const uint32_t number = 1;
    const char *const options[] = {"fast", "faster"};
    muster_lowering lowering = lowering_of(&b, &number);
    muster_program *program;
    lowering.prepare = NULL;
    lowering.lower = no_prepare_lower;
    for (int step = 0; step < 6; step++) {
        switch (step) {
            case 1: lowering.policy = "numbers 2"; break;
            case 2: lowering.source.options = options, lowering.source.option_count = 1; break;
            case 3: lowering.source.options = options + 1; break;
            case 4: lowering.source.required_features = MUSTER_FEATURE_F16; break;
            case 5: lowering.flags = MUSTER_LOWERING_TENSOR_CORES; break; /* the target's features change */
            default: break;
        }
        for (int i = 0; i < 2; i++) {
            OK(muster_program_from_lowering(fixture.runtime, &lowering, &program, &reported));
            assert_int_equal(b.lowers, step + 1);
        }
    }
    assert_true(b.last.features & MUSTER_FEATURE_TENSOR_CORES);
    fixture_close(&fixture);
}

static void texts_are_kept_on_disk_unless_volatile(void **state) {
    (void)state;
    const char *path = scratch_make();
    for (int process = 0; process < 2; process++) {
        fixture fixture;
        back_end kept = {.manner = HONEST}, not_kept = {.manner = HONEST};
        const uint32_t number = 6, other = 7;
        open_bare(&fixture, mixed, path);
        muster_program *program = make(&fixture, &kept, number);
        expect_stored(&fixture, program, 3, 6);
        assert_int_equal(kept.lowers, process ? 0 : 3);
        muster_lowering lowering = lowering_of(&not_kept, &other);
        lowering.flags = MUSTER_LOWERING_VOLATILE;
        for (int i = 0; i < 2; i++) {
            OK(muster_program_from_lowering(fixture.runtime, &lowering, &program, &reported));
            assert_int_equal(not_kept.lowers, 3); /* within a process it is */
        }
        assert_int_equal(stats_of(&fixture).compiles, process ? 0 : 6);
        fixture_close(&fixture);
    }
    scratch_remove(path);
}

static void what_callbacks_do_wrong_is_told(void **state) {
    (void)state;
    static const struct {
        manner manner;
        muster_status status;
        const char *words;
    } cases[] = {
        {FAILS_SAYING, MUSTER_PROGRAM_INVALID, "number|sm_|line 3:|not a number"},
        {FAILS_SILENT, MUSTER_PROGRAM_INVALID, "number|987654"},
        {FAILS_MEMORY, MUSTER_OUT_OF_HOST_MEMORY, "number"},
        {WRITES_NOTHING, MUSTER_PROGRAM_INVALID, "number|no PTX"},
        {WRITES_GARBAGE, MUSTER_PROGRAM_INVALID, "number"},
        {WRITES_NUL, MUSTER_PROGRAM_INVALID, "number|NUL"},
        {WRITES_ELF, MUSTER_PROGRAM_INVALID, "number"},
        {WRITES_WRONG, MUSTER_PROGRAM_INVALID, "number|line 4"},
        {FAILS_PREPARING, MUSTER_PROGRAM_INVALID, "preparing|number|no such operation"},
        {PREPARES_GARBAGE, MUSTER_PROGRAM_INVALID, "number|content is NULL"},
        {UNTERMINATED, MUSTER_PROGRAM_INVALID, "number|xxxx"},
    };
    const char *path = scratch_make();
    const uint32_t number = 3;
    fixture fixture;
    open_bare(&fixture, mixed, path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        back_end b = {.manner = cases[i].manner};
        muster_lowering lowering = lowering_of(&b, &number);
        muster_program *program;
        FAILS(cases[i].status, cases[i].words,
              muster_program_from_lowering(fixture.runtime, &lowering, &program, &reported));
    }
    /* None of it was kept: the next, who is right, is asked. */
    back_end right = {.manner = HONEST};
    expect_stored(&fixture, make(&fixture, &right, number), 1, number);
    assert_int_equal(right.lowers, 3);
    assert_int_equal(stats_of(&fixture).disk_damaged, 0);
    fixture_close(&fixture);
    scratch_remove(path);
}

static void a_device_that_lacks_a_feature_is_named(void **state) {
    (void)state;
    fixture fixture;
    back_end b = {.manner = HONEST};
    const uint32_t number = 3;
    muster_lowering lowering = lowering_of(&b, &number);
    muster_program *program;
    open_bare(&fixture, mixed, "");
    lowering.source.required_features = MUSTER_FEATURE_BF16 | MUSTER_FEATURE_F16;
    FAILS(MUSTER_CAPABILITY_MISSING, "bf16|T4|number",
          muster_program_from_lowering(fixture.runtime, &lowering, &program, &reported));
    assert_int_equal(reported.device, 3);
    assert_null(strstr(reported.message, " f16"));
    fixture_close(&fixture);
}

static void wrong_descriptors_are_refused(void **state) {
    (void)state;
    fixture fixture;
    back_end b = {.manner = HONEST};
    const uint32_t number = 3;
    const muster_lowering good = lowering_of(&b, &number);
    muster_lowering bad;
    muster_program *program;
    const char *const missing[] = {"a", NULL};
    open_bare(&fixture, NULL, "");
#define REFUSED(words, change)                                                                                         \
    bad = good;                                                                                                        \
    change;                                                                                                            \
    FAILS(MUSTER_INVALID_ARGUMENT, words, muster_program_from_lowering(fixture.runtime, &bad, &program, &reported))
    REFUSED("struct_size", bad.struct_size = 0);
    REFUSED("source.struct_size", bad.source.struct_size = 4);
    REFUSED("lower", bad.lower = NULL);
    REFUSED("policy", bad.policy = NULL);
    REFUSED("policy", bad.policy_bytes = 0); /* whose content is it? */
    REFUSED("flags", bad.flags = 64);
    REFUSED("content", bad.source.content = NULL);
    REFUSED("options", bad.source.option_count = 1);
    REFUSED("option", (bad.source.option_count = 2, bad.source.options = missing));
    REFUSED("required_features", bad.source.required_features = 1u << 20);
#undef REFUSED
    FAILS(MUSTER_INVALID_ARGUMENT, "lowering",
          muster_program_from_lowering(fixture.runtime, NULL, &program, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "program", muster_program_from_lowering(fixture.runtime, &good, NULL, &reported));
    assert_int_equal(muster_ptx_append(NULL, "x", 1), MUSTER_INVALID_ARGUMENT);
    fixture_close(&fixture);
}

/* -------------------------------------------------------------------------------------------------------- images -- */

static void images_are_checked(void **state) {
    (void)state;
    fixture fixture;
    muster_program *program;
    unsigned char elf[64] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
    const uint64_t fatbin[3] = {0x00100001ba55ed50u, 8, 0};
    open_bare(&fixture, NULL, "");
    FAILS(MUSTER_PROGRAM_INVALID, "muster_program_from_ptx",
          muster_program_from_image(fixture.runtime, test_kernels_ptx, strlen(test_kernels_ptx), "text", &program,
                                    &reported));
    FAILS(MUSTER_PROGRAM_INVALID, "no bytes",
          muster_program_from_image(fixture.runtime, elf, 0, "none", &program, &reported));
    FAILS(MUSTER_PROGRAM_INVALID, "short",
          muster_program_from_image(fixture.runtime, elf, 20, "cut", &program, &reported));
    FAILS(MUSTER_PROGRAM_INVALID, "machine",
          muster_program_from_image(fixture.runtime, elf, 64, "cut", &program, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "image",
          muster_program_from_image(fixture.runtime, NULL, 4, "null", &program, &reported));
    FAILS(MUSTER_PROGRAM_INVALID, "fat|simulator",
          muster_program_from_image(fixture.runtime, fatbin, sizeof fatbin, "fat", &program, &reported));
    FAILS(MUSTER_PROGRAM_INVALID, "muster_program_from_image",
          muster_program_from_ptx(fixture.runtime, (const char *)fatbin, sizeof fatbin, "fat", &program, &reported));
    fixture_close(&fixture);
}

/* ---------------------------------------------------------------------------------------------------- exhaustion -- */

static uint64_t next_failure; /* 0 after a round without one */

static muster_status everything_once(const char *path) {
    char spec[] = "{\"devices\": [{\"preset\": \"H200\"}, {\"preset\": \"T4\"}]}";
    muster_config config = {.struct_size = sizeof config, .driver = "sim", .sim = spec, .cache_dir = path};
    back_end b = {.manner = REWRITES, .rewritten = 4};
    const uint32_t number = 4;
    muster_lowering lowering = lowering_of(&b, &number);
    muster_runtime *runtime;
    muster_program *program;
    muster_kernel *kernel;
    muster_error error;
    mu_alloc_fail_at(0, false);
    muster_status status = muster_runtime_create(&config, &runtime, NULL);
    if (status) return status;
    mu_alloc_fail_at(next_failure, false);
    status = muster_program_from_lowering(runtime, &lowering, &program, &error);
    if (!status) status = muster_program_kernel(program, "store", &kernel, &error);
    if (!status) muster_program_destroy(program);
    bool hit = mu_alloc_fail_hits() > 0;
    mu_alloc_fail_at(0, false);
    if (!hit) next_failure = 0;
    assert_int_equal(muster_runtime_destroy(runtime, fixture_wait_ns, NULL), MUSTER_OK);
    return status;
}

/* Warm and cold, each allocation of making a program fails once: it is told, nothing is left, and the next one
 * works. */
static void every_allocation_of_a_program_may_fail(void **state) {
    (void)state;
    for (int warm = 0; warm < 2; warm++)
        for (uint64_t n = 1;; n++) {
            const char *path = scratch_make();
            next_failure = UINT64_MAX;
            if (warm) assert_int_equal(everything_once(path), MUSTER_OK);
            next_failure = n;
            fixture_count_memory();
            muster_status status = everything_once(path);
            assert_int_equal(fixture_live_blocks(), 0);
            scratch_remove(path);
            if (next_failure == 0) {
                assert_int_equal(status, MUSTER_OK);
                break;
            }
            /* The driver reports its own shortage in its own way, and some things are done without. */
            assert_true(status == MUSTER_OK || muster_status_recovery(status) == MUSTER_RECOVERY_TRY_LATER);
        }
}

static void declarations_of_variables_are_seen(void **state) {
    (void)state;
    static const char *const with[] = {
        ".global .align 4 .u32 count;",
        ".visible .global .u32 count;",
        "\n.const\t.f32 table[4];",
        ".global.align 4 .u32 count;",
        ".visible.global.align 4 .b8 counts[64];",
        ".extern.const .b8 table[];",
        "{ .reg .b32 %r<2>; }\n.global.texref image;",
        ".texref image;",
        ".global",
    };
    static const char *const without[] = {
        "",
        ".",
        "ld.global.u32 %r1, [%rd1];",
        "ld.const.u32 %r1, [table];\nst.volatile.global.u32 [%rd1], %r1;",
        ".param .u64 .ptr .global .align 16 input",
        ".param.u64.ptr.global.align 16 input",
        ".param .u64 .ptr\n.const input",
        "$L.global: add.f32 %f1, %f2, 0f00000000;",
        ".globally .constant .version 7.0",
        ".target sm_70, texmode_independent\n.reg.b32 %r;",
    };
    for (size_t i = 0; i < sizeof with / sizeof *with; i++)
        if (!mu_ptx_has_variables(with[i], strlen(with[i]))) fail_msg("\"%s\" declares a variable", with[i]);
    for (size_t i = 0; i < sizeof without / sizeof *without; i++)
        if (mu_ptx_has_variables(without[i], strlen(without[i]))) fail_msg("\"%s\" declares none", without[i]);
    assert_false(mu_ptx_has_variables(".global", 6)); /* no further than it reaches */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lowering_writes_for_each_architecture_once),
        cmocka_unit_test(digests_are_computed_once_for_what_is_unchanged),
        cmocka_unit_test(a_rewritten_source_is_what_counts),
        cmocka_unit_test(a_lie_serves_no_wrong_kernel),
        cmocka_unit_test(every_field_of_the_key_counts),
        cmocka_unit_test(texts_are_kept_on_disk_unless_volatile),
        cmocka_unit_test(what_callbacks_do_wrong_is_told),
        cmocka_unit_test(a_device_that_lacks_a_feature_is_named),
        cmocka_unit_test(wrong_descriptors_are_refused),
        cmocka_unit_test(images_are_checked),
        cmocka_unit_test(declarations_of_variables_are_seen),
        cmocka_unit_test(every_allocation_of_a_program_may_fail),
    };
    setenv("MUSTER_CACHE_DIR", "", 1); /* never the user's own */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
