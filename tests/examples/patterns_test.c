/* The scan example's patterns and the method of its kernel, on the CPU: the automaton's matches against a naive search,
 * and the answers of chunks of every size, followed from chunk to chunk, against the greedy count by definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "examples/02_scan/patterns.h"

static uint64_t random_state;

static uint32_t random_below(uint32_t bound) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % bound);
}

static scan_plan make_plan(const char *pattern) {
    scan_plan plan;
    assert_true(scan_plan_create(&pattern, 1, 0, &plan));
    return plan;
}

static const uint32_t *rules_of(const scan_plan *plan, uint32_t i) {
    return (const uint32_t *)plan->patterns + plan->patterns[i].table;
}

/* Marks in starts[] where matches start in text, by the automaton. */
static void find(const scan_plan *plan, const char *text, size_t bytes, unsigned char *starts) {
    const uint32_t *rules = rules_of(plan, 0);
    uint32_t state = 0, length = plan->patterns[0].length;
    memset(starts, 0, bytes);
    for (size_t i = 0; i < bytes; i++) {
        while (state && (rules[state] & 255) != (unsigned char)text[i]) state = rules[state] >> 8;
        if ((rules[state] & 255) == (unsigned char)text[i]) state++;
        if (state != length) continue;
        starts[i + 1 - length] = 1;
        state = rules[state] >> 8;
    }
}

static uint64_t greedy(const char *pattern, const char *text, size_t bytes) {
    size_t length = strlen(pattern);
    uint64_t count = 0;
    for (size_t i = 0; i + length <= bytes;) {
        int match = memcmp(text + i, pattern, length) == 0;
        count += (uint64_t)match;
        i += match ? length : 1;
    }
    return count;
}

/* The answer for text[0, chunk) entered in `state`. */
static scan_answer pass(const unsigned char *starts, uint32_t chunk, uint32_t length, uint32_t state) {
    scan_answer answer = {0, 0};
    uint32_t position = state;
    while (position < chunk) {
        if (!starts[position++]) continue;
        answer.matches++;
        position += length - 1;
    }
    answer.state = position - chunk;
    return answer;
}

static void check(const char *pattern, const char *text, uint32_t bytes) {
    scan_plan plan = make_plan(pattern);
    uint32_t length = plan.patterns[0].length, states = plan.patterns[0].states;
    unsigned char *starts = malloc(bytes + 1);
    assert_non_null(starts);
    find(&plan, text, bytes, starts);
    for (uint32_t i = 0; i < bytes; i++)
        assert_int_equal(starts[i], i + length <= bytes && memcmp(text + i, pattern, length) == 0);

    for (uint32_t chunk = length; chunk <= bytes && chunk < length + 9; chunk++) {
        uint64_t total = 0;
        uint32_t state = 0;
        for (uint32_t at = 0; at < bytes; at += chunk) {
            uint32_t here = bytes - at < chunk ? bytes - at : chunk;
            scan_answer answer = pass(starts + at, here, length, state);
            if (here == chunk) assert_true(answer.state < length);
            total += answer.matches;
            /* One state for all is enough where matches cannot overlap. */
            state = states == 1 ? 0 : answer.state;
        }
        assert_int_equal(total, greedy(pattern, text, bytes));
    }
    free(starts);
    scan_plan_destroy(&plan);
}

static void test_rules(void **state) {
    (void)state;
    scan_plan plan = make_plan("abaab");
    static const uint32_t fallback[] = {0, 0, 0, 1, 1, 2};
    const uint32_t *rules = rules_of(&plan, 0);
    for (uint32_t i = 0; i <= 5; i++) {
        assert_int_equal(rules[i] >> 8, fallback[i]);
        if (i < 5) assert_int_equal(rules[i] & 255, "abaab"[i]);
    }
    assert_int_equal(plan.patterns[0].states, 5);
    scan_plan_destroy(&plan);

    static const struct {
        const char *pattern;
        uint32_t states;
    } overlaps[] = {{"a", 1}, {"ab", 1}, {"aa", 2}, {"aab", 1}, {"aba", 3}, {"abcabd", 1}, {"\xff\xff", 2}};
    for (size_t i = 0; i < sizeof overlaps / sizeof overlaps[0]; i++) {
        plan = make_plan(overlaps[i].pattern);
        assert_int_equal(plan.patterns[0].states, overlaps[i].states);
        scan_plan_destroy(&plan);
    }
}

static void test_random_texts(void **state) {
    (void)state;
    char text[300], pattern[40];
    for (int round = 0; round < 3000; round++) {
        uint32_t letters = 1 + random_below(3), bytes = 1 + random_below(sizeof text);
        for (uint32_t i = 0; i < bytes; i++) text[i] = (char)('a' + random_below(letters));
        uint32_t length = 1 + random_below(bytes < sizeof pattern ? bytes : sizeof pattern - 1);
        memcpy(pattern, text + random_below(bytes - length + 1), length);
        pattern[length] = '\0';
        check(pattern, text, bytes);
    }
}

static void test_repetitive_texts(void **state) {
    (void)state;
    char text[400], pattern[40];
    for (int round = 0; round < 3000; round++) {
        uint32_t period = 1 + random_below(9), length = 1 + random_below(sizeof pattern - 1);
        for (uint32_t i = 0; i < sizeof text; i++)
            text[i] = i < period ? (char)('a' + random_below(2)) : random_below(60) ? text[i - period] : 'b';
        memcpy(pattern, text + random_below(sizeof text - length), length);
        pattern[length] = '\0';
        check(pattern, text, sizeof text);
    }
}

static void test_plan(void **state) {
    (void)state;
    char *lengthy = malloc(131072);
    assert_non_null(lengthy);
    memset(lengthy, 'a', 131071);
    lengthy[131071] = '\0';
    const char *patterns[] = {"aa", "b", lengthy};
    for (uint32_t chunk = 0; chunk <= 256 << 10; chunk += 4097) {
        for (uint32_t count = 1; count <= 3; count++) {
            scan_plan plan;
            assert_true(scan_plan_create(patterns, count, chunk, &plan));
            uint32_t longest = count < 3 ? 2 : 131071, entry = 0, table = 5 * count;
            assert_true(plan.chunk_bytes >= chunk && plan.chunk_bytes >= longest);
            assert_true(plan.chunk_bytes <= 256 << 10 && plan.chunk_bytes % 32 == 0);
            assert_true(plan.tail_bytes >= longest - 1 && plan.tail_bytes % 32 == 0);
            assert_true(plan.threads % 32 == 0 && plan.threads >= 32 && plan.threads <= 256);
            for (uint32_t i = 0; i < count; i++) {
                assert_int_equal(plan.patterns[i].entry, entry);
                assert_int_equal(plan.patterns[i].table, table);
                assert_true(plan.patterns[i].span >= plan.patterns[i].length && plan.patterns[i].span % 32 == 0);
                entry += plan.patterns[i].states;
                table += plan.patterns[i].length + 1;
            }
            assert_int_equal(plan.entries, entry);
            assert_int_equal(plan.pattern_bytes, table * sizeof(uint32_t));
            scan_plan_destroy(&plan);
        }
    }
    free(lengthy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_repetitive_texts),
        cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
