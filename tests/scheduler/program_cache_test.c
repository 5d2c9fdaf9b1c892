/* Programs and the caches: who compiles, how often, what the next process finds, and what a bad directory does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "device/sim/sim.h"
#include "tests/cache/scratch.h"
#include "tests/scheduler/fixture.h"

#define HEADER ".version 7.0\n.target sm_75\n.address_size 64\n"

static const char broken[] = HEADER ".visible .entry broken()\n{\n    frobnicate.u32 %r1, 7;\n    ret;\n}\n";

static muster_cache_stats stats_of(const fixture *fixture) {
    muster_cache_stats stats = {.struct_size = sizeof stats};
    OK(muster_cache_get_stats(fixture->runtime, &stats, &reported));
    assert_int_equal(stats.struct_size, sizeof stats);
    return stats;
}

/* A runtime without a program. */
static void open_bare(fixture *fixture, uint32_t devices, const char *sim, const char *directory) {
    char spec[FIXTURE_SPEC_BYTES];
    fixture_equal_spec(devices, spec);
    muster_config config = {
        .struct_size = sizeof config, .driver = "sim", .sim = sim ? sim : spec, .cache_dir = directory};
    fixture->program = NULL;
    OK(muster_runtime_create(&config, &fixture->runtime, &reported));
}

static muster_program *make(const fixture *fixture, unsigned number) {
    char ptx[200];
    muster_program *program;
    snprintf(ptx, sizeof ptx, HEADER ".visible .entry k%u()\n{\n    ret;\n}\n", number);
    OK(muster_program_from_ptx(fixture->runtime, ptx, 0, "numbered", &program, &reported));
    return program;
}

/* --------------------------------------------------------------------------------------------------- one compile -- */

enum { THREADS = 16 };

typedef struct crowd {
    const fixture *fixture;
    const char *ptx;
    muster_status wanted;
    const char *words;
    pthread_barrier_t start;
} crowd;

static void *join_crowd(void *argument) {
    crowd *crowd = argument;
    muster_program *program = NULL;
    muster_error error = {0};
    pthread_barrier_wait(&crowd->start);
    muster_status status = muster_program_from_ptx(crowd->fixture->runtime, crowd->ptx, 0, "crowd", &program, &error);
    bool right = status == crowd->wanted && (status ? strstr(error.message, crowd->words) != NULL : program != NULL);
    if (!right) fprintf(stderr, "%s: %s\n", muster_status_name(status), error.message);
    return (void *)(uintptr_t)right;
}

static void ask_all_at_once(const fixture *fixture, const char *ptx, muster_status wanted, const char *words) {
    pthread_t threads[THREADS];
    crowd crowd = {.fixture = fixture, .ptx = ptx, .wanted = wanted, .words = words};
    pthread_barrier_init(&crowd.start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, join_crowd, &crowd), 0);
    for (int i = 0; i < THREADS; i++) {
        void *right;
        pthread_join(threads[i], &right);
        assert_non_null(right);
    }
    pthread_barrier_destroy(&crowd.start);
}

static void sixteen_threads_and_four_devices_compile_once(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture, 4, NULL, "");
    ask_all_at_once(&fixture, test_kernels_ptx, MUSTER_OK, "");
    muster_cache_stats stats = stats_of(&fixture);
    assert_int_equal(stats.compiles, 1);
    assert_int_equal(stats.cubin_misses, 1);
    assert_int_equal(stats.cubin_joins + stats.cubin_hits, THREADS - 1);
    assert_int_equal(stats.cubin_entries, 1);
    fixture_close(&fixture);
}

static void a_compile_error_reaches_every_waiter(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture, 4, NULL, "");
    ask_all_at_once(&fixture, broken, MUSTER_PROGRAM_INVALID, "frobnicate");
    muster_cache_stats stats = stats_of(&fixture);
    assert_int_equal(stats.compiles, stats.cubin_failures);
    assert_int_equal(stats.cubin_failures + stats.cubin_joins, THREADS);
    assert_int_equal(stats.cubin_entries, 0);
    assert_int_equal(stats.module_loads, 0);
    fixture_close(&fixture);
}

static void each_architecture_compiles_once(void **state) {
    (void)state;
    fixture fixture;
    open_bare(
        &fixture, 0,
        "{\"devices\": [{\"preset\": \"H200\"}, {\"preset\": \"A100\"}, {\"preset\": \"H200\"}, {\"preset\": \"T4\"}, "
        "{\"preset\": \"A100\"}]}",
        "");
    muster_program *program;
    OK(muster_program_from_ptx(fixture.runtime, test_kernels_ptx, 0, "mixed", &program, &reported));
    muster_cache_stats stats = stats_of(&fixture);
    assert_int_equal(stats.compiles, 3);
    assert_int_equal(stats.module_loads, 5);
    fixture.program = program;
    fixture_kernel(&fixture, "affine");
    fixture_close(&fixture);
}

/* Text without variables: its modules are shared too. */
static void the_same_text_again_costs_nothing(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture, 2, NULL, "");
    for (int i = 0; i < 5; i++) make(&fixture, 1);
    muster_cache_stats stats = stats_of(&fixture);
    assert_int_equal(stats.compiles, 1);
    assert_int_equal(stats.module_loads, 2);
    assert_int_equal(stats.module_hits, 8);
    fixture_close(&fixture);
}

/* A kernel counts in a module-scope variable: two programs do not count together. */
static void programs_share_no_variables(void **state) {
    (void)state;
    static const char counting[] = HEADER
        ".visible .global .align 4 .u32 total;\n"
        ".visible .entry count_one(.param .u64 out)\n{\n    .reg .b32 %r<3>;\n    .reg .b64 %rd<2>;\n"
        "    ld.param.u64 %rd1, [out];\n    ld.global.u32 %r1, [total];\n    add.u32 %r2, %r1, 1;\n"
        "    st.global.u32 [total], %r2;\n    st.global.u32 [%rd1], %r2;\n    ret;\n}\n";
    fixture fixture;
    open_bare(&fixture, 1, NULL, "");
    for (int i = 0; i < 2; i++) {
        OK(muster_program_from_ptx(fixture.runtime, counting, 0, "counting", &fixture.program, &reported));
        muster_buffer *out = fixture_buffer(&fixture, 4, NULL);
        for (uint32_t n = 1; n <= 3; n++) {
            muster_graph *graph = fixture_graph(&fixture);
            muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&fixture, "count_one"), 1, 1,
                                                        ARGS(muster_buffer_arg(out, MUSTER_WRITE)));
            fixture_add(graph, &dispatch);
            fixture_run(&fixture, graph);
            assert_int_equal(fixture_word(out, 0), n);
        }
    }
    assert_int_equal(stats_of(&fixture).compiles, 1);
    fixture_close(&fixture);
}

/* ---------------------------------------------------------------------------------------------------- disk cache -- */

static void the_next_runtime_compiles_nothing(void **state) {
    (void)state;
    const char *path = scratch_make();
    for (int process = 0; process < 3; process++) {
        fixture fixture;
        open_bare(&fixture, 2, "{\"devices\": [{\"preset\": \"H200\"}, {\"preset\": \"T4\"}]}", path);
        OK(muster_program_from_ptx(fixture.runtime, test_kernels_ptx, 0, "kernels", &fixture.program, &reported));
        muster_buffer *buffer = fixture_buffer(&fixture, 256, NULL);
        muster_graph *graph = fixture_graph(&fixture);
        fixture_affine(&fixture, graph, buffer, 1, 5);
        fixture_run(&fixture, graph);
        assert_int_equal(fixture_word(buffer, 63), 5);
        muster_cache_stats stats = stats_of(&fixture);
        assert_int_equal(stats.compiles, process ? 0 : 2);
        assert_int_equal(stats.disk_hits, process ? 2 : 0);
        assert_int_equal(stats.disk_stores, process ? 0 : 2);
        fixture_close(&fixture);
    }
    scratch_remove(path);
}

/* Every file of the directory through `change`. */
static void for_each_file(const char *path, void (*change)(const char *file)) {
    DIR *stream = opendir(path);
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream));)
        if (entry->d_name[0] != '.') change(scratch_join(path, entry->d_name));
    closedir(stream);
}

static void cut(const char *file) { assert_int_equal(truncate(file, 100), 0); }

static void flip(const char *file) {
    unsigned char byte;
    int fd = open(file, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, 120), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, 120), 1);
    close(fd);
}

static void put_foreign(const char *file) {
    FILE *stream = fopen(file, "w");
    assert_non_null(stream);
    for (int i = 0; i < 300; i++) fprintf(stream, "not an entry at all\n");
    fclose(stream);
}

static void damaged_entries_are_replaced(void **state) {
    (void)state;
    static void (*const damages[])(const char *) = {cut, flip, put_foreign};
    const char *path = scratch_make();
    for (int round = 0; round < 7; round++) {
        fixture fixture;
        open_bare(&fixture, 1, NULL, path);
        make(&fixture, 1);
        muster_cache_stats stats = stats_of(&fixture);
        bool damaged = round % 2 == 1 || round == 0;
        assert_int_equal(stats.compiles, damaged);
        assert_int_equal(stats.disk_damaged, round % 2);
        fixture_close(&fixture);
        if (round % 2 == 0 && round < 6) for_each_file(path, damages[round / 2]);
    }
    scratch_remove(path);
}

/* Log lines at warning and above. */
static atomic_int warnings;
static char last_warning[512];

static void count_warnings(void *user, muster_log_level level, const char *line) {
    (void)user;
    if (level > MUSTER_LOG_WARNING) return;
    atomic_fetch_add(&warnings, 1);
    snprintf(last_warning, sizeof last_warning, "%s", line);
}

static void make_many_in(const char *directory, uint64_t *store_failures) {
    fixture fixture;
    muster_config config = {
        .struct_size = sizeof config, .driver = "sim", .cache_dir = directory, .log = count_warnings};
    atomic_store(&warnings, 0);
    OK(muster_runtime_create(&config, &fixture.runtime, &reported));
    for (unsigned i = 0; i < 8; i++) make(&fixture, i);
    muster_cache_stats stats = stats_of(&fixture);
    assert_int_equal(stats.compiles, 8);
    assert_int_equal(stats.disk_hits, 0);
    *store_failures = stats.disk_store_failures;
    fixture_close(&fixture);
}

static void a_directory_that_cannot_be_is_one_warning(void **state) {
    (void)state;
    const char *path = scratch_make();
    const char *file = scratch_join(path, "file");
    uint64_t failures;
    put_foreign(file);
    make_many_in(scratch_join(file, "cache"), &failures);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, "file/cache"));
    assert_int_equal(chmod(path, 0777), 0); /* everybody could put programs there */
    make_many_in(path, &failures);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, "other users"));
    scratch_remove(path);
}

/* No byte can be written, as on a full disk. */
static void a_full_disk_is_one_warning(void **state) {
    (void)state;
    const char *path = scratch_make();
    struct rlimit before, none;
    uint64_t failures;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 64; /* less than an entry's head: it breaks off in the middle of one */
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    make_many_in(path, &failures);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(failures, 8);
    assert_int_equal(warnings, 1);
    assert_int_equal(scratch_count_files(path), 0); /* nothing half written stays */
    make_many_in(path, &failures);
    assert_int_equal(failures, 0);
    assert_int_equal(warnings, 0);
    scratch_remove(path);
}

static void the_directory_is_bounded(void **state) {
    (void)state;
    const char *path = scratch_make();
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .driver = "sim", .cache_dir = path, .cache_bytes = 2000};
    OK(muster_runtime_create(&config, &fixture.runtime, &reported));
    for (unsigned i = 0; i < 40; i++) make(&fixture, i);
    muster_cache_stats stats = stats_of(&fixture);
    assert_int_equal(stats.compiles, 40);
    assert_true(stats.disk_evictions >= 25);
    assert_true(scratch_count_files(path) <= 12);
    fixture_close(&fixture);
    scratch_remove(path);
}

/* ------------------------------------------------------------------------------------------------- configuration -- */

static void settings_come_from_a_file_too(void **state) {
    (void)state;
    char directory[1000], file[1100];
    snprintf(directory, sizeof directory, "%s", scratch_make());
    snprintf(file, sizeof file, "%s/muster.json", directory);
    FILE *stream = fopen(file, "w");
    assert_non_null(stream);
    fprintf(stream,
            "{\"driver\": \"sim\", \"cache_dir\": \"%s/c\", \"cache_bytes\": 1000000, \"dump_ptx\": \"failing\","
            " \"dump_dir\": \"%s/d\"}",
            directory, directory);
    fclose(stream);
    fixture fixture;
    muster_config config = {.struct_size = sizeof config, .config_path = file};
    OK(muster_runtime_create(&config, &fixture.runtime, &reported));
    muster_program *program;
    make(&fixture, 1);
    FAILS(MUSTER_PROGRAM_INVALID, "frobnicate",
          muster_program_from_ptx(fixture.runtime, broken, 0, "broken", &program, &reported));
    fixture_close(&fixture);
    assert_int_equal(scratch_count_files(scratch_join(directory, "c")), 1);
    assert_int_equal(scratch_count_files(scratch_join(directory, "d")), 2); /* the text and the log */
    config.cache_dir = "";
    config.dump_ptx = "none";
    OK(muster_runtime_create(&config, &fixture.runtime, &reported)); /* code wins over the file */
    FAILS(MUSTER_PROGRAM_INVALID, "frobnicate",
          muster_program_from_ptx(fixture.runtime, broken, 0, "broken", &program, &reported));
    make(&fixture, 2);
    fixture_close(&fixture);
    assert_int_equal(scratch_count_files(scratch_join(directory, "c")), 1);
    assert_int_equal(scratch_count_files(scratch_join(directory, "d")), 2);
    config.dump_ptx = "sometimes";
    FAILS(MUSTER_INVALID_CONFIG, "sometimes|failing", muster_runtime_create(&config, &fixture.runtime, &reported));
    scratch_remove(directory);
}

static void statistics_fit_an_older_struct(void **state) {
    (void)state;
    fixture fixture;
    open_bare(&fixture, 1, NULL, "");
    make(&fixture, 1);
    muster_cache_stats stats;
    memset(&stats, 0x77, sizeof stats);
    stats.struct_size = offsetof(muster_cache_stats, ptx_hits);
    OK(muster_cache_get_stats(fixture.runtime, &stats, &reported));
    assert_int_equal(stats.struct_size, offsetof(muster_cache_stats, ptx_hits));
    assert_int_equal(stats.compiles, 1);
    assert_int_equal(stats.ptx_hits, 0x7777777777777777);
    stats.struct_size = 0;
    FAILS(MUSTER_INVALID_ARGUMENT, "struct_size", muster_cache_get_stats(fixture.runtime, &stats, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "stats", muster_cache_get_stats(fixture.runtime, NULL, &reported));
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_threads_and_four_devices_compile_once),
        cmocka_unit_test(a_compile_error_reaches_every_waiter),
        cmocka_unit_test(each_architecture_compiles_once),
        cmocka_unit_test(the_same_text_again_costs_nothing),
        cmocka_unit_test(programs_share_no_variables),
        cmocka_unit_test(the_next_runtime_compiles_nothing),
        cmocka_unit_test(damaged_entries_are_replaced),
        cmocka_unit_test(a_directory_that_cannot_be_is_one_warning),
        cmocka_unit_test(a_full_disk_is_one_warning),
        cmocka_unit_test(the_directory_is_bounded),
        cmocka_unit_test(settings_come_from_a_file_too),
        cmocka_unit_test(statistics_fit_an_older_struct),
    };
    setenv("MUSTER_CACHE_DIR", "", 1); /* never the user's own */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
