/* Programs on the real driver: every kind of source, constants, and what the next runtime compiles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "scheduler/runtime/runtime.h"
#include "tests/cache/scratch.h"
#include "tests/scheduler/fixture.h"

/* Stores `scale`, a constant, and the global `offset`. */
static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .const .align 4 .u32 scale = 3;\n"
    ".visible .global .align 4 .u32 offset = 40;\n.visible .entry show(.param .u64 out)\n{\n    .reg .b32 %r<3>;\n"
    "    .reg .b64 %rd<3>;\n    ld.param.u64 %rd1, [out];\n    cvta.to.global.u64 %rd2, %rd1;\n"
    "    ld.const.u32 %r1, [scale];\n    ld.global.u32 %r2, [offset];\n    st.global.u32 [%rd2], %r1;\n"
    "    st.global.u32 [%rd2+4], %r2;\n    ret;\n}\n";

static const char cuda[] =
    "__constant__ unsigned scale = 3;\n__device__ unsigned offset = 40;\n"
    "extern \"C\" __global__ void show(unsigned *out) { out[0] = scale; out[1] = offset; }\n";

static bool open_cuda(fixture *fixture, const char *directory) {
    muster_config config = {.struct_size = sizeof config, .driver = "cuda", .cache_dir = directory};
    fixture->program = NULL;
    muster_status status = muster_runtime_create(&config, &fixture->runtime, &reported);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) {
        print_message("skipped: %s\n", reported.message);
        return false;
    }
    if (status) print_error("%s\n", reported.message);
    assert_int_equal(status, MUSTER_OK);
    return true;
}

static void expect_everywhere(const fixture *fixture, uint32_t scale, uint32_t offset) {
    for (int device = 0; device < muster_device_count(fixture->runtime); device++) {
        muster_buffer *out = fixture_buffer(fixture, 8, NULL);
        muster_graph *graph = fixture_graph(fixture);
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(fixture, "show"), 1, 1, ARGS(muster_buffer_arg(out, MUSTER_WRITE)));
        dispatch.pin_device = 1;
        dispatch.device = device;
        fixture_add(graph, &dispatch);
        fixture_run(fixture, graph);
        assert_int_equal(fixture_word(out, 0), scale);
        assert_int_equal(fixture_word(out, 1), offset);
    }
}

/* The values a program starts with, then others. */
static void use(const fixture *fixture) {
    const uint32_t scale = 17, offset = 50;
    expect_everywhere(fixture, 3, 40);
    OK(muster_program_set_global(fixture->program, "scale", 0, &scale, 4, 0, &reported));
    OK(muster_program_set_global(fixture->program, "offset", 0, &offset, 4, 0, &reported));
    expect_everywhere(fixture, 17, 50);
    OK(muster_program_prepare(fixture->program, &reported));
}

static void ptx_is_compiled_once_for_all_devices(void **state) {
    (void)state;
    const char *path = scratch_make();
    for (int process = 0; process < 2; process++) {
        fixture fixture;
        if (!open_cuda(&fixture, path)) skip();
        OK(muster_program_from_ptx(fixture.runtime, ptx, 0, "ptx", &fixture.program, &reported));
        use(&fixture);
        muster_cache_stats stats = {.struct_size = sizeof stats};
        OK(muster_cache_get_stats(fixture.runtime, &stats, &reported));
        if (process == 0) assert_in_range(stats.compiles, 1, muster_device_count(fixture.runtime));
        if (process == 1) assert_int_equal(stats.compiles, 0);
        fixture_close(&fixture);
    }
    scratch_remove(path);
}

static void images_are_loaded_as_they_are(void **state) {
    (void)state;
    fixture fixture;
    if (!open_cuda(&fixture, "")) skip();
    void *cubin;
    size_t bytes;
    OK(mu_module_compile(fixture.runtime->actors[0].device, ptx, sizeof ptx - 1, "image", &cubin, &bytes, &reported));
    OK(muster_program_from_image(fixture.runtime, cubin, bytes, "image", &fixture.program, &reported));
    mu_free(cubin);
    use(&fixture);
    fixture_close(&fixture);
}

static void cuda_is_compiled_where_nvrtc_is(void **state) {
    (void)state;
    fixture fixture;
    if (!open_cuda(&fixture, "")) skip();
    muster_cuda_source source = {.struct_size = sizeof source, .text = cuda, .name = "show.cu"};
    muster_status status = muster_program_from_cuda(fixture.runtime, &source, &fixture.program, &reported);
    if (status == MUSTER_UNSUPPORTED) {
        print_message("skipped: %s\n", reported.message);
        fixture_close(&fixture);
        skip();
    }
    if (status) print_error("%s\n", reported.message);
    assert_int_equal(status, MUSTER_OK);
    use(&fixture);
    fixture_close(&fixture);
}

static void errors_carry_the_compiler_s_words(void **state) {
    (void)state;
    fixture fixture;
    muster_program *program;
    if (!open_cuda(&fixture, "")) skip();
    FAILS(MUSTER_PROGRAM_INVALID, "broken|frobnicate",
          muster_program_from_ptx(fixture.runtime,
                                  ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry f()\n{\n"
                                  "    frobnicate.u32 %r1, 7;\n    ret;\n}\n",
                                  0, "broken", &program, &reported));
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ptx_is_compiled_once_for_all_devices),
        cmocka_unit_test(images_are_loaded_as_they_are),
        cmocka_unit_test(cuda_is_compiled_where_nvrtc_is),
        cmocka_unit_test(errors_carry_the_compiler_s_words),
    };
    setenv("MUSTER_CACHE_DIR", "", 1); /* never the user's own */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
