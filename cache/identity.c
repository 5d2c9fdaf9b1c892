#include "cache/identity.h"

mu_key mu_source_identity(const mu_source *source) {
    mu_digest_state state;
    mu_digest_begin(&state, "muster program 1");
    mu_digest_u64(&state, source->kind);
    mu_digest_field(&state, source->content, source->bytes);
    mu_digest_u64(&state, source->option_count);
    for (uint32_t i = 0; i < source->option_count; i++) mu_digest_text(&state, source->options[i]);
    mu_digest_u64(&state, source->required_features);
    return mu_digest_end(&state);
}

static bool same_bytes(const void *a, const void *b, size_t bytes) {
    return a == b || bytes == 0 || (a && b && memcmp(a, b, bytes) == 0);
}

static bool same_text(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

bool mu_source_equal(const mu_source *a, const mu_source *b) {
    if (a->kind != b->kind || a->bytes != b->bytes || a->option_count != b->option_count ||
        a->required_features != b->required_features)
        return false;
    for (uint32_t i = 0; i < a->option_count; i++)
        if (!same_text(a->options[i], b->options[i])) return false;
    return same_bytes(a->content, b->content, a->bytes);
}

mu_key mu_identity_after_lowering(const mu_source *given, const mu_key *given_identity, const mu_source *result,
                                  bool reported_unchanged) {
    if (reported_unchanged && mu_source_equal(given, result)) return *given_identity;
    return mu_source_identity(result);
}

mu_key mu_ptx_key(const mu_ptx_fields *fields) {
    mu_digest_state state;
    mu_digest_begin(&state, "muster ptx 1");
    mu_digest_field(&state, fields->identity.bytes, sizeof fields->identity.bytes);
    mu_digest_field(&state, fields->policy, fields->policy_bytes);
    mu_digest_u64(&state, fields->target_sm);
    mu_digest_u64(&state, fields->warp_size);
    mu_digest_u64(&state, fields->features);
    return mu_digest_end(&state);
}

mu_key mu_raw_ptx_key(const void *text, size_t bytes) { return mu_digest_of("muster raw ptx 1", text, bytes); }

mu_key mu_cubin_key(const mu_key *raw, uint32_t target_sm, int driver_version, const char *options) {
    mu_digest_state state;
    mu_digest_begin(&state, "muster cubin 1");
    mu_digest_field(&state, raw->bytes, sizeof raw->bytes);
    mu_digest_u64(&state, target_sm);
    mu_digest_u64(&state, (uint64_t)(int64_t)driver_version);
    mu_digest_text(&state, options);
    return mu_digest_end(&state);
}
