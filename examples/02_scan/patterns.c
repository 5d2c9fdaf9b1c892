#include "examples/02_scan/patterns.h"

#include <stdlib.h>
#include <string.h>

/* A chunk is long enough that its answers are few against its text, and small enough that its marks (a bit a byte) fit
 * the shared memory of every device. Arguments of a program are below 128 KiB on Linux, and so are patterns. */
enum {
    MIN_CHUNK = 8 << 10,
    MAX_CHUNK = 256 << 10,
    CHUNK_PER_LENGTH = 32,
    MIN_SPAN = 128,
    MIN_THREADS = 32,
    MAX_THREADS = 256
};

static uint32_t round_up(uint32_t value, uint32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

static uint32_t clamp(uint32_t value, uint32_t low, uint32_t high) {
    return value < low ? low : value > high ? high : value;
}

static void make_rules(const unsigned char *text, uint32_t length, uint32_t *rules) {
    uint32_t border = 0;
    rules[0] = text[0];
    for (uint32_t state = 1; state <= length; state++) {
        uint32_t byte = state < length ? text[state] : 0;
        rules[state] = border << 8 | byte;
        if (state == length) break;
        while (border && text[border] != byte) border = rules[border] >> 8;
        if (text[border] == byte) border++;
    }
}

int scan_plan_create(const char *const *patterns, uint32_t count, uint32_t chunk_bytes, scan_plan *plan) {
    scan_plan made = {.count = count};
    size_t words = count * (sizeof(scan_pattern) / sizeof(uint32_t));
    uint32_t longest = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = (uint32_t)strlen(patterns[i]);
        words += length + 1;
        if (length > longest) longest = length;
    }
    made.pattern_bytes = words * sizeof(uint32_t);
    made.patterns = malloc(made.pattern_bytes);
    if (!made.patterns) return 0;

    uint32_t *all = (uint32_t *)made.patterns;
    uint32_t next = count * (sizeof(scan_pattern) / sizeof(uint32_t));
    for (uint32_t i = 0; i < count; i++) {
        scan_pattern *pattern = &made.patterns[i];
        pattern->length = (uint32_t)strlen(patterns[i]);
        pattern->table = next;
        make_rules((const unsigned char *)patterns[i], pattern->length, all + next);
        next += pattern->length + 1;
        pattern->states = all[next - 1] >> 8 ? pattern->length : 1;
        pattern->span = round_up(pattern->length > MIN_SPAN ? pattern->length : MIN_SPAN, 32);
        pattern->entry = made.entries;
        made.entries += pattern->states;
    }
    if (!chunk_bytes)
        chunk_bytes = clamp(longest, MIN_CHUNK / CHUNK_PER_LENGTH, MAX_CHUNK / CHUNK_PER_LENGTH) * CHUNK_PER_LENGTH;
    made.chunk_bytes = round_up(clamp(chunk_bytes, longest, MAX_CHUNK), 32);
    made.tail_bytes = round_up(longest - 1, 32);
    made.threads = clamp(round_up(made.chunk_bytes / MIN_SPAN, 32), MIN_THREADS, MAX_THREADS);
    *plan = made;
    return 1;
}

void scan_plan_destroy(scan_plan *plan) {
    free(plan->patterns);
    memset(plan, 0, sizeof *plan);
}
