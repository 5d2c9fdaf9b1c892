/* Programs from CUDA C++.
 *
 *     program_cuda_test FAKE_NVRTC
 *
 * Most of it on the fake NVRTC, a shared library built beside this test; the last on the real one, where it is
 * installed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <unistd.h>

#include "tests/cache/scratch.h"
#include "tests/scheduler/fixture.h"

static const char mixed[] =
    "{\"devices\": [{\"preset\": \"H200\"}, {\"preset\": \"L4\"}, {\"preset\": \"H200\"}, {\"preset\": "
    "\"T4\"}]}";
static const int archs[] = {90, 80, 90, 75}; /* what the fake has for each */

static int *compiles; /* how often the fake was asked */
static char lines[8192];

static void keep_line(void *user, muster_log_level level, const char *line) {
    (void)user, (void)level;
    strncat(lines, line, sizeof lines - strlen(lines) - 2);
    strcat(lines, "\n");
}

static void open_bare(fixture *fixture, const char *sim, const char *directory) {
    muster_config config = {.struct_size = sizeof config,
                            .driver = "sim",
                            .sim = sim,
                            .cache_dir = directory,
                            .log = keep_line,
                            .log_level = MUSTER_LOG_INFO};
    fixture->program = NULL;
    lines[0] = '\0';
    OK(muster_runtime_create(&config, &fixture->runtime, &reported));
}

static muster_cuda_source source_of(const char *text) {
    return (muster_cuda_source){.struct_size = sizeof(muster_cuda_source), .text = text, .name = "a.cu"};
}

/* Makes the program and tells how often the compiler was asked. */
static int asked(fixture *fixture, const muster_cuda_source *source) {
    int before = *compiles;
    OK(muster_program_from_cuda(fixture->runtime, source, &fixture->program, &reported));
    return *compiles - before;
}

static void expect_answer(const fixture *fixture, int device, int arch, uint32_t value) {
    muster_buffer *out = fixture_buffer(fixture, 8, NULL);
    muster_graph *graph = fixture_graph(fixture);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "answer"), 1, 1, ARGS(muster_buffer_arg(out, MUSTER_WRITE)));
    dispatch.pin_device = 1;
    dispatch.device = device;
    fixture_add(graph, &dispatch);
    fixture_run(fixture, graph);
    assert_int_equal(fixture_word(out, 0), arch);
    assert_int_equal(fixture_word(out, 1), value);
}

static void put(const char *directory, const char *name, const char *text) {
    FILE *stream = fopen(scratch_join(directory, name), "w");
    assert_non_null(stream);
    fputs(text, stream);
    fclose(stream);
}

/* --------------------------------------------------------------------------------------------------- on the fake -- */

static void each_architecture_is_compiled_for_once(void **state) {
    (void)state;
    fixture fixture;
    muster_cuda_source source = source_of("some text");
    const char *const options[] = {"-DN=12"};
    source.options = options;
    source.option_count = 1;
    open_bare(&fixture, mixed, "");
    assert_int_equal(asked(&fixture, &source), 3);
    for (int d = 0; d < 4; d++) expect_answer(&fixture, d, archs[d], 12);
    assert_int_equal(asked(&fixture, &source), 0);
    fixture_close(&fixture);
}

static void all_of_a_source_identifies_it(void **state) {
    (void)state;
    fixture fixture;
    const char *path = scratch_make(), *other = "/nonexistent";
    const char *const names[] = {"h.h", "g.h"}, *const texts[] = {"one", "two"};
    const char *const options[] = {"-DN=1", "-DN=2"};
    muster_cuda_source source = source_of("#include \"x.h\"\n");
    open_bare(&fixture, NULL, "");
    put(path, "x.h", "#include <deep.h>\n");
    for (int step = 0; step < 12; step++) {
        switch (step) {
            case 1: source.text = "#include \"x.h\"\n "; break;
            case 2: source.name = "b.cu"; break;
            case 3: source.options = options, source.option_count = 1; break;
            case 4: source.options = options + 1; break;
            case 5: source.header_names = names, source.header_texts = texts, source.header_count = 1; break;
            case 6: source.header_names = names + 1; break;
            case 7: source.header_texts = texts + 1; break;
            case 8: source.include_paths = &other, source.include_path_count = 1; break;
            case 9: source.include_paths = &path; break;
            case 10: put(path, "deep.h", "int first;\n"); break;  /* it appears ... */
            case 11: put(path, "deep.h", "int second;\n"); break; /* ... and changes */
            default: break;
        }
        assert_int_equal(asked(&fixture, &source), 1);
        assert_int_equal(asked(&fixture, &source), 0);
    }
    source.text = "#define X <deep.h>\n#include X\n"; /* what it includes is not known: never found again */
    assert_int_equal(asked(&fixture, &source), 1);
    assert_int_equal(asked(&fixture, &source), 1);
    fixture_close(&fixture);
    scratch_remove(path);
}

static void the_next_process_compiles_nothing(void **state) {
    (void)state;
    const char *path = scratch_make();
    for (int process = 0; process < 2; process++) {
        fixture fixture;
        muster_cuda_source source = source_of("some text that is kept, and more bytes");
        source.bytes = strlen("some text that is kept");
        open_bare(&fixture, mixed, path);
        assert_int_equal(asked(&fixture, &source), process ? 0 : 3);
        expect_answer(&fixture, 3, 75, 0);
        muster_cache_stats stats = {.struct_size = sizeof stats};
        OK(muster_cache_get_stats(fixture.runtime, &stats, &reported));
        assert_int_equal(stats.compiles, process ? 0 : 3);
        assert_int_equal(stats.lowerings, process ? 0 : 3);
        fixture_close(&fixture);
    }
    scratch_remove(path);
}

static void the_error_has_the_log(void **state) {
    (void)state;
    fixture fixture;
    muster_program *program;
    muster_cuda_source source = source_of("a syntax error");
    open_bare(&fixture, NULL, "");
    FAILS(MUSTER_PROGRAM_INVALID, "a.cu|FAKE_ERROR_COMPILATION|a.cu(3): error: expected a \";\" 1 error",
          muster_program_from_cuda(fixture.runtime, &source, &program, &reported));
    assert_null(strstr(reported.message, "remark"));
    assert_non_null(strstr(lines, "a remark that comes first\n")); /* all of it, line by line */
    assert_non_null(strstr(lines, "1 error detected\n"));
    source.text = "empty";
    FAILS(MUSTER_PROGRAM_INVALID, "no PTX", muster_program_from_cuda(fixture.runtime, &source, &program, &reported));
    fixture_close(&fixture);
}

static void wrong_sources_are_refused(void **state) {
    (void)state;
    fixture fixture;
    muster_program *program;
    const char *const options[] = {"-O3", "--gpu-architecture=sm_90"}, *const none[] = {NULL};
    muster_cuda_source source = source_of("text");
    open_bare(&fixture, NULL, "");
#define REFUSED(status, words)                                                                                         \
    FAILS(status, words, muster_program_from_cuda(fixture.runtime, &source, &program, &reported));                     \
    source = source_of("text")
    source.struct_size = 3;
    REFUSED(MUSTER_INVALID_ARGUMENT, "struct_size");
    source.text = NULL;
    REFUSED(MUSTER_INVALID_ARGUMENT, "text");
    source.text = "te\0xt", source.bytes = 5;
    REFUSED(MUSTER_PROGRAM_INVALID, "NUL");
    source.options = options, source.option_count = 2;
    REFUSED(MUSTER_INVALID_ARGUMENT, "--gpu-architecture=sm_90");
    source.option_count = 1;
    REFUSED(MUSTER_INVALID_ARGUMENT, "options is NULL");
    source.include_path_count = 1, source.include_paths = none;
    REFUSED(MUSTER_INVALID_ARGUMENT, "include_paths[0]");
    source.header_count = 1, source.header_names = options;
    REFUSED(MUSTER_INVALID_ARGUMENT, "header_texts");
#undef REFUSED
    fixture_close(&fixture);
}

static void without_nvrtc_the_remedy_is_told(void **state) {
    (void)state;
    fixture fixture;
    muster_program *program;
    muster_cuda_source source = source_of("text");
    char *fake = strdup(getenv("MUSTER_LIBNVRTC"));
    open_bare(&fixture, NULL, "");
    setenv("MUSTER_LIBNVRTC", "/nonexistent/libnvrtc.so", 1);
    FAILS(MUSTER_UNSUPPORTED, "/nonexistent/libnvrtc.so|MUSTER_LIBNVRTC|PTX",
          muster_program_from_cuda(fixture.runtime, &source, &program, &reported));
    setenv("MUSTER_LIBNVRTC", "libm.so.6", 1);
    FAILS(MUSTER_UNSUPPORTED, "libm.so.6|nvrtcVersion|MUSTER_LIBNVRTC",
          muster_program_from_cuda(fixture.runtime, &source, &program, &reported));
    setenv("MUSTER_LIBNVRTC", fake, 1);
    OK(muster_program_from_cuda(fixture.runtime, &source, &program, &reported));
    free(fake);
    fixture_close(&fixture);
}

/* -------------------------------------------------------------------------------------------------- the real one -- */

static void real_nvrtc_compiles_for_the_simulator(void **state) {
    (void)state;
    static const char text[] =
        "#include \"scale.h\"\n"
        "__constant__ float offset = 0.5f;\n"
        "extern \"C\" __global__ void scale(float *data, int count) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < count) data[i] = SCALE * data[i] + offset;\n}\n";
    const char *name = "scale.h", *header = "#define SCALE 3.0f\n";
    muster_cuda_source source = source_of(text);
    source.header_names = &name;
    source.header_texts = &header;
    source.header_count = 1;
    fixture fixture;
    char *fake = strdup(getenv("MUSTER_LIBNVRTC"));
    unsetenv("MUSTER_LIBNVRTC");
    open_bare(&fixture, mixed, "");
    muster_status status = muster_program_from_cuda(fixture.runtime, &source, &fixture.program, &reported);
    if (status == MUSTER_UNSUPPORTED) {
        print_message("skipped: no NVRTC here: %s\n", reported.message);
    } else {
        if (status) print_error("%s\n", reported.message);
        assert_int_equal(status, MUSTER_OK);
        float data[100];
        for (int i = 0; i < 100; i++) data[i] = (float)i;
        muster_buffer *buffer = fixture_buffer(&fixture, sizeof data, data);
        muster_graph *graph = fixture_graph(&fixture);
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&fixture, "scale"), 4, 32,
                             ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_i32_arg(100)));
        fixture_add(graph, &dispatch);
        fixture_run(&fixture, graph);
        fixture_read(buffer, 0, sizeof data, data);
        for (int i = 0; i < 100; i++) assert_true(data[i] == 3.0f * (float)i + 0.5f);
        muster_program *program;
        source.text = "__global__ void f() { int x = ; }";
        FAILS(MUSTER_PROGRAM_INVALID, "error: expected an expression",
              muster_program_from_cuda(fixture.runtime, &source, &program, &reported));
    }
    setenv("MUSTER_LIBNVRTC", fake, 1);
    free(fake);
    fixture_close(&fixture);
    if (status == MUSTER_UNSUPPORTED) skip();
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_architecture_is_compiled_for_once),
        cmocka_unit_test(all_of_a_source_identifies_it),
        cmocka_unit_test(the_next_process_compiles_nothing),
        cmocka_unit_test(the_error_has_the_log),
        cmocka_unit_test(wrong_sources_are_refused),
        cmocka_unit_test(without_nvrtc_the_remedy_is_told),
        cmocka_unit_test(real_nvrtc_compiles_for_the_simulator),
    };
    char path[4096];
    if (argc < 2 || !realpath(argv[1], path)) {
        fprintf(stderr, "usage: program_cuda_test FAKE_NVRTC\n");
        return 2;
    }
    void *library = dlopen(path, RTLD_NOW);
    if (library) compiles = dlsym(library, "fake_nvrtc_compiles");
    if (!compiles) {
        fprintf(stderr, "%s is not the fake NVRTC: %s\n", path, dlerror());
        return 2;
    }
    setenv("MUSTER_LIBNVRTC", path, 1);
    setenv("MUSTER_CACHE_DIR", "", 1); /* never the user's own */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
