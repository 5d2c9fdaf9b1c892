/* Which files a source is found to include, judged by what changes the digest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cache/includes.h"
#include "tests/cache/scratch.h"

static char root[4096];

static void put(const char *name, const char *text) {
    FILE *stream = fopen(scratch_join(root, name), "w");
    assert_non_null(stream);
    fputs(text, stream);
    fclose(stream);
}

static mu_digest digest_with(const char *text, const mu_include_search *search, bool complete) {
    mu_digest digest;
    bool found = !complete;
    assert_int_equal(mu_includes_digest(text, search, &digest, &found, NULL), MUSTER_OK);
    assert_int_equal(found, complete);
    return digest;
}

/* Whether changing `name` changes the digest of `text`. */
static bool depends_on(const char *text, const char *name) {
    char option[5000];
    snprintf(option, sizeof option, "-I%s", root);
    const char *options[] = {option};
    mu_include_search search = {.source_name = "program", .options = options, .option_count = 1};
    put(name, "int before;\n");
    mu_digest before = digest_with(text, &search, true);
    put(name, "int after;\n");
    mu_digest after = digest_with(text, &search, true);
    unlink(scratch_join(root, name));
    mu_digest without = digest_with(text, &search, true);
    bool depends = !mu_digest_equal(&before, &after);
    assert_int_equal(!mu_digest_equal(&without, &after), depends); /* that it is there at all counts as well */
    return depends;
}

static void directives_of_all_kinds_are_followed(void **state) {
    (void)state;
    assert_true(depends_on("#include <a.h>", "a.h"));
    assert_true(depends_on("#include \"a.h\"\nint x;", "a.h"));
    assert_true(depends_on("  #  include<a.h>\n", "a.h"));
    assert_true(depends_on("#include /* why */ <a.h>", "a.h"));
    assert_true(depends_on("/* first */ #include <a.h>", "a.h"));
    assert_true(depends_on("#include \\\n <a.h>", "a.h"));
    assert_true(depends_on("#include_next <a.h>", "a.h"));
    assert_true(depends_on("%:include <a.h>", "a.h"));
    assert_true(depends_on("#if __has_include(<a.h>)\n#endif", "a.h"));
    assert_true(depends_on("#if 0\n#include <a.h>\n#endif", "a.h")); /* nothing is preprocessed */
    assert_true(depends_on("#include <b.h>\n#include <a.h>", "a.h"));
    assert_false(depends_on("int includes; include(<a.h>);", "a.h"));
    assert_false(depends_on("#include <b.h>", "a.h"));
    assert_false(depends_on("", "a.h"));
}

static void files_are_followed_in_turn(void **state) {
    (void)state;
    assert_int_equal(mkdir(scratch_join(root, "sub"), 0700), 0);
    put("outer.h", "#pragma once\n#include \"sub/inner.h\"\n#include \"outer.h\"\n"); /* and itself: no loop */
    put("sub/inner.h", "#include \"beside.h\"\n");
    assert_true(depends_on("#include <outer.h>", "sub/beside.h"));
    assert_int_equal(symlink("outer.h", scratch_join(root, "link.h")), 0);
    assert_true(depends_on("#include <link.h>", "sub/beside.h"));
}

/* A file that comes earlier on the path is what the compiler takes from then on. */
static void every_directory_of_the_path_counts(void **state) {
    (void)state;
    char first[5000], second[5000];
    assert_int_equal(mkdir(scratch_join(root, "first"), 0700), 0);
    snprintf(first, sizeof first, "%s/first", root);
    snprintf(second, sizeof second, "--include-path=%s", root);
    const char *options[] = {"-I", first, second};
    mu_include_search search = {.source_name = "program", .options = options, .option_count = 3};
    put("a.h", "int x;\n");
    mu_digest alone = digest_with("#include <a.h>", &search, true);
    put("first/a.h", "int x;\n");
    mu_digest both = digest_with("#include <a.h>", &search, true);
    assert_false(mu_digest_equal(&alone, &both));
    put("a.h", "int y;\n");
    mu_digest changed = digest_with("#include <a.h>", &search, true);
    assert_false(mu_digest_equal(&both, &changed));
}

static void options_include_too(void **state) {
    (void)state;
    char path[5000];
    snprintf(path, sizeof path, "--pre-include=%s/pre.h", root);
    const char *options[] = {path};
    mu_include_search search = {.source_name = "program", .options = options, .option_count = 1};
    put("pre.h", "int one;\n");
    mu_digest one = digest_with("", &search, true);
    put("pre.h", "int two;\n");
    mu_digest two = digest_with("", &search, true);
    assert_false(mu_digest_equal(&one, &two));
}

static void headers_in_memory_are_searched(void **state) {
    (void)state;
    char name[5000];
    snprintf(name, sizeof name, "%s/source.cu", root);
    const char *header = "#include <a.h>\n";
    mu_include_search search = {.source_name = name, .header_texts = &header, .header_count = 1};
    put("a.h", "int one;\n");
    mu_digest one = digest_with("", &search, true);
    put("a.h", "int two;\n"); /* found beside the source */
    mu_digest two = digest_with("", &search, true);
    assert_false(mu_digest_equal(&one, &two));
}

static void what_cannot_be_known_is_told(void **state) {
    (void)state;
    const char *const opaque[] = {"--options-file=x"};
    mu_include_search search = {.source_name = "program"};
    digest_with("#define X <a.h>\n#include X\n", &search, false);
    digest_with("#if __has_include(X)\n#endif", &search, false);
    digest_with("#include \"a.h", &search, false);
    search.options = opaque;
    search.option_count = 1;
    digest_with("", &search, false);
}

static void allocations_may_fail(void **state) {
    (void)state;
    char name[5000];
    snprintf(name, sizeof name, "%s/source.cu", root);
    mu_include_search search = {.source_name = name};
    put("a.h", "#include \"b.h\"\n");
    put("b.h", "int b;\n");
    for (uint64_t n = 1;; n++) {
        mu_digest digest;
        bool complete;
        mu_alloc_fail_at(n, false);
        muster_status status = mu_includes_digest("#include \"a.h\"", &search, &digest, &complete, NULL);
        bool hit = mu_alloc_fail_hits() > 0;
        mu_alloc_fail_at(0, false);
        assert_int_equal(status, hit ? MUSTER_OUT_OF_HOST_MEMORY : MUSTER_OK);
        if (!hit) break;
    }
}

static int make_root(void **state) {
    (void)state;
    snprintf(root, sizeof root, "%s", scratch_make());
    return 0;
}

static int remove_root(void **state) {
    (void)state;
    scratch_remove(root);
    return 0;
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        TEST(directives_of_all_kinds_are_followed),
        TEST(files_are_followed_in_turn),
        TEST(every_directory_of_the_path_counts),
        TEST(options_include_too),
        TEST(headers_in_memory_are_searched),
        TEST(what_cannot_be_known_is_told),
        TEST(allocations_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
