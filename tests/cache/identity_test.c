/* F1, F2: keys are stable, every field counts, nothing aliases, and an unchanged program is digested once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cache/identity.h"

static void assert_hex(mu_key key, const char *expected) {
    char text[MU_DIGEST_HEX_BYTES];
    mu_digest_hex(&key, text);
    assert_string_equal(text, expected);
}

static void assert_differ(mu_key a, mu_key b) { assert_false(mu_key_equal(&a, &b)); }
static void assert_same(mu_key a, mu_key b) { assert_true(mu_key_equal(&a, &b)); }

static const char ptx[] = ".version 8.0";
static const mu_source source = {.kind = MU_SOURCE_PTX, .content = ptx, .bytes = sizeof ptx - 1};

static mu_ptx_fields fields_of(const mu_key *identity) {
    return (mu_ptx_fields){.identity = *identity,
                           .policy = "policy",
                           .policy_bytes = 6,
                           .target_sm = 90,
                           .warp_size = 32,
                           .features = 0x1f};
}

/* Expected: Python's hashlib over the documented fields. Keys name files on disk: they must not change by accident. */
static void keys_are_stable(void **state) {
    (void)state;
    mu_key identity = mu_source_identity(&source);
    assert_hex(identity, "df36cf6ba1b814f07f373fba230d156ea747fcd4ac2fd329ca3ca0e62b51279e");
    mu_ptx_fields fields = fields_of(&identity);
    assert_hex(mu_ptx_key(&fields), "b62e7d88690afffd760f2f08704668e588402f1955a6c5283ddf2390b4709353");
    mu_key raw = mu_raw_ptx_key(ptx, sizeof ptx - 1);
    assert_hex(raw, "1942e33f2d1bd1da9744fab0fe83642d0a0afa529459f74557f29fc77367515e");
    assert_hex(mu_cubin_key(&raw, 90, 13000, "-O3"),
               "8f4899105322bed3182821cebf2f088806b8156f26e02c9c28e7b9de531da29d");
}

static void each_field_alone_changes_the_ptx_key(void **state) {
    (void)state;
    mu_key identity = mu_source_identity(&source);
    mu_ptx_fields fields = fields_of(&identity);
    mu_key key = mu_ptx_key(&fields);
    assert_same(key, mu_ptx_key(&fields));
#define CHANGED(change)                                                                                                \
    do {                                                                                                               \
        mu_ptx_fields other = fields;                                                                                  \
        change;                                                                                                        \
        assert_differ(key, mu_ptx_key(&other));                                                                        \
    } while (0)
    for (int bit = 0; bit < 256; bit++) CHANGED(other.identity.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8));
    CHANGED(other.policy = "policX");
    CHANGED(other.policy_bytes = 5);
    CHANGED((other.policy = NULL, other.policy_bytes = 0));
    CHANGED(other.target_sm = 89);
    CHANGED(other.warp_size = 64);
    for (int bit = 0; bit < 32; bit++) CHANGED(other.features ^= 1u << bit);
    /* the same numbers in neighbouring fields */
    CHANGED((other.target_sm = 32, other.warp_size = 90));
    CHANGED((other.warp_size = 0x1f, other.features = 32));
#undef CHANGED
}

static void each_field_alone_changes_the_identity(void **state) {
    (void)state;
    const char *options[] = {"-O3", "-DN=4"}, *swapped[] = {"-DN=4", "-O3"}, *joined[] = {"-O3-DN=4"};
    mu_source base = source;
    base.kind = MU_SOURCE_CUDA;
    base.options = options;
    base.option_count = 2;
    mu_key key = mu_source_identity(&base);
#define CHANGED(change)                                                                                                \
    do {                                                                                                               \
        mu_source other = base;                                                                                        \
        change;                                                                                                        \
        assert_differ(key, mu_source_identity(&other));                                                                \
        assert_false(mu_source_equal(&base, &other));                                                                  \
    } while (0)
    CHANGED(other.kind = MU_SOURCE_LOWERING);
    CHANGED(other.kind = MU_SOURCE_PTX);
    CHANGED(other.kind = MU_SOURCE_IMAGE);
    CHANGED(other.content = ".version 8.1");
    CHANGED(other.bytes -= 1);
    CHANGED(other.options = swapped);
    CHANGED((other.options = joined, other.option_count = 1));
    CHANGED(other.option_count = 1);
    CHANGED(other.required_features = 1);
#undef CHANGED
}

/* Content and option are neighbours: where one ends is part of the key. */
static void neighbouring_fields_cannot_alias(void **state) {
    (void)state;
    const char *b[] = {"b"}, *ab[] = {"ab"};
    mu_source one = {.kind = MU_SOURCE_CUDA, .content = "aa", .bytes = 2, .options = b, .option_count = 1};
    mu_source two = {.kind = MU_SOURCE_CUDA, .content = "a", .bytes = 1, .options = ab, .option_count = 1};
    assert_differ(mu_source_identity(&one), mu_source_identity(&two));
}

static void domains_never_collide(void **state) {
    (void)state;
    mu_key identity = mu_source_identity(&source);
    mu_key raw = mu_raw_ptx_key(ptx, sizeof ptx - 1);
    mu_ptx_fields fields = {.identity = raw};
    mu_key keys[] = {identity,
                     raw,
                     mu_ptx_key(&fields),
                     mu_raw_ptx_key(raw.bytes, sizeof raw.bytes),
                     mu_cubin_key(&raw, 0, 0, NULL),
                     mu_cubin_key(&raw, 0, 0, ""),
                     mu_cubin_key(&identity, 0, 0, NULL),
                     mu_cubin_key(&raw, 90, 0, NULL),
                     mu_cubin_key(&raw, 0, 90, NULL)};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        for (size_t j = 0; j < i; j++) assert_differ(keys[i], keys[j]);
}

static void unchanged_keys_from_the_program_without_a_digest(void **state) {
    (void)state;
    char copy[sizeof ptx];
    memcpy(copy, ptx, sizeof ptx);
    mu_source result = source; /* the same content in another place is the same program */
    result.content = copy;
    mu_key identity = mu_source_identity(&source);
    uint64_t before = mu_digest_thread_count();
    for (int i = 0; i < 1000; i++) assert_same(mu_identity_after_lowering(&source, &identity, &result, true), identity);
    assert_int_equal(mu_digest_thread_count() - before, 0);
}

static void a_rewrite_keys_from_the_result(void **state) {
    (void)state;
    mu_source result = source;
    result.content = ".version 8.3";
    mu_key identity = mu_source_identity(&source);
    uint64_t before = mu_digest_thread_count();
    mu_key key = mu_identity_after_lowering(&source, &identity, &result, false);
    assert_int_equal(mu_digest_thread_count() - before, 1);
    assert_same(key, mu_source_identity(&result));
    assert_differ(key, identity);
    /* one that says it rewrote and did not costs a digest and is right */
    assert_same(mu_identity_after_lowering(&source, &identity, &source, false), identity);
}

/* A false "unchanged" would serve the kernel of another program. */
static void every_compared_field_vetoes_alone(void **state) {
    (void)state;
    const char *options[] = {"-O3"}, *others[] = {"-O2"}, *none[] = {NULL};
    mu_source base = source;
    base.options = options;
    base.option_count = 1;
    mu_key identity = mu_source_identity(&base);
#define VETOED(change)                                                                                                 \
    do {                                                                                                               \
        mu_source result = base;                                                                                       \
        change;                                                                                                        \
        mu_key key = mu_identity_after_lowering(&base, &identity, &result, true);                                      \
        assert_same(key, mu_source_identity(&result));                                                                 \
        assert_differ(key, identity);                                                                                  \
    } while (0)
    VETOED(result.kind = MU_SOURCE_LOWERING);
    VETOED(result.content = ".version 8.9");
    VETOED(result.bytes--);
    VETOED(result.options = others);
    VETOED(result.options = none);
    VETOED(result.option_count = 0);
    VETOED(result.required_features = 4);
#undef VETOED
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_stable),
        cmocka_unit_test(each_field_alone_changes_the_ptx_key),
        cmocka_unit_test(each_field_alone_changes_the_identity),
        cmocka_unit_test(neighbouring_fields_cannot_alias),
        cmocka_unit_test(domains_never_collide),
        cmocka_unit_test(unchanged_keys_from_the_program_without_a_digest),
        cmocka_unit_test(a_rewrite_keys_from_the_result),
        cmocka_unit_test(every_compared_field_vetoes_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
