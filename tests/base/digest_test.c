/* Digests: known answers computed by another BLAKE2b, and what keeps two sequences of fields apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/digest.h"

static void assert_hex(mu_digest digest, const char *expected) {
    char text[MU_DIGEST_HEX_BYTES];
    mu_digest_hex(&digest, text);
    assert_string_equal(text, expected);
}

/* Expected: Python's hashlib.blake2b(digest_size=32) over tag, little-endian length and content of each field. */
static void known_answers(void **state) {
    (void)state;
    mu_digest_state digest;
    mu_digest_begin(&digest, "");
    assert_hex(mu_digest_end(&digest), "5c3cd7b696e23b2d800734e78972f333448955cdd73bedd7061bb3e8c6e4edd0");
    assert_hex(mu_digest_of("domain", "abc", 3), "d5a582e0c204a4faeef6d8d22ab1faf6b2a58971de7b641e84e8ba6a216b2fdb");

    unsigned char large[1000];
    for (int i = 0; i < 1000; i++) large[i] = (unsigned char)(i % 251);
    mu_digest_begin(&digest, "mixed");
    mu_digest_text(&digest, "text");
    mu_digest_text(&digest, NULL);
    mu_digest_u64(&digest, 0x0123456789abcdef);
    mu_digest_field(&digest, large, sizeof large);
    assert_hex(mu_digest_end(&digest), "43777de6f88efc6b77a7381b5ae0d961335a0e1780e32aaa0e43ea5b99f1fc40");
}

static mu_digest two_fields(const char *a, const char *b) {
    mu_digest_state digest;
    mu_digest_begin(&digest, "two");
    mu_digest_text(&digest, a);
    mu_digest_text(&digest, b);
    return mu_digest_end(&digest);
}

static void assert_differ(mu_digest a, mu_digest b) { assert_false(mu_digest_equal(&a, &b)); }

static void neighbours_do_not_alias(void **state) {
    (void)state;
    assert_differ(two_fields("ab", "c"), two_fields("a", "bc"));
    assert_differ(two_fields("", "abc"), two_fields("abc", ""));
    assert_differ(two_fields(NULL, "a"), two_fields("", "a"));
    assert_differ(mu_digest_of("d", "abc", 3), mu_digest_of("da", "bc", 2));

    mu_digest_state digest; /* a number is not the bytes it is made of */
    mu_digest_begin(&digest, "d");
    mu_digest_u64(&digest, 8);
    mu_digest number = mu_digest_end(&digest);
    uint64_t eight = 8;
    assert_differ(number, mu_digest_of("d", &eight, sizeof eight));
}

static void domains_are_apart(void **state) {
    (void)state;
    assert_differ(mu_digest_of("one", "same", 4), mu_digest_of("two", "same", 4));
}

/* The same state, begun again; and the bytes of a digest depend on the fields alone. */
static void states_are_reusable(void **state) {
    (void)state;
    mu_digest first = mu_digest_of("d", "x", 1);
    mu_digest_state digest;
    memset(&digest, 0xa5, sizeof digest);
    for (int i = 0; i < 2; i++) {
        mu_digest_begin(&digest, "d");
        mu_digest_field(&digest, "x", 1);
        mu_digest again = mu_digest_end(&digest);
        assert_true(mu_digest_equal(&first, &again));
    }
}

static void ended_digests_are_counted(void **state) {
    (void)state;
    uint64_t before = mu_digest_thread_count();
    mu_digest_of("d", NULL, 0);
    mu_digest_of("d", "x", 1);
    assert_int_equal(mu_digest_thread_count() - before, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(neighbours_do_not_alias),
        cmocka_unit_test(domains_are_apart),
        cmocka_unit_test(states_are_reusable),
        cmocka_unit_test(ended_digests_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
