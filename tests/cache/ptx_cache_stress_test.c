/* 16 threads over a PTX cache far too small for their keys: lookups, lowerings, failures, evictions and loans at once.
 * A text that is freed or replaced too early is a wrong byte here, and a report under the sanitizers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/ptx_cache.h"

enum { THREADS = 16, KEYS = 64, ENTRIES = 24, STEPS = 4000, LOANS = 4 };

static mu_key keys[KEYS];
static atomic_uint running[KEYS], lowered[KEYS];
static atomic_uint overlaps, wrong, failures, successes;

static size_t text_bytes(size_t number) { return 20 + number * 7; }

static muster_status lower(void *user, const mu_key *key, char **text, size_t *bytes, muster_error *error) {
    size_t number = (size_t)(uintptr_t)user;
    if (atomic_fetch_add(&running[number], 1) != 0) atomic_fetch_add(&overlaps, 1);
    unsigned times = atomic_fetch_add(&lowered[number], 1);
    muster_status status = MUSTER_OK;
    if (times % 8 == 7) {
        status = mu_fail(error, MUSTER_PROGRAM_INVALID, "key %zu", number);
    } else {
        *bytes = text_bytes(number);
        *text = mu_alloc(*bytes + 1);
        for (size_t i = 0; i < *bytes; i++) (*text)[i] = (char)key->bytes[i % sizeof key->bytes];
        (*text)[*bytes] = '\0';
    }
    atomic_fetch_sub(&running[number], 1);
    return status;
}

typedef struct loan {
    mu_ptx_text text;
    size_t number;
} loan;

static void check_and_release(loan *loan) {
    const mu_ptx_text *text = &loan->text;
    bool right = text->bytes == text_bytes(loan->number) && text->text[text->bytes] == '\0';
    for (size_t i = 0; right && i < text->bytes; i++)
        right = text->text[i] == (char)keys[loan->number].bytes[i % sizeof keys[0].bytes];
    if (!right) atomic_fetch_add(&wrong, 1);
    mu_ptx_text_release(&loan->text);
}

static mu_ptx_cache *cache;

static void *worker(void *argument) {
    unsigned random = (unsigned)(uintptr_t)argument;
    mu_ptx_reader *reader;
    if (mu_ptx_reader_create(cache, &reader, NULL) != MUSTER_OK) return NULL;
    loan loans[LOANS] = {0};
    for (int step = 0; step < STEPS; step++) {
        loan *loan = &loans[step % LOANS];
        if (loan->text.entry) check_and_release(loan);
        if (step % 512 == 511) { /* all loans back: another reader */
            for (int i = 0; i < LOANS; i++)
                if (loans[i].text.entry) check_and_release(&loans[i]);
            mu_ptx_reader_destroy(reader);
            if (mu_ptx_reader_create(cache, &reader, NULL) != MUSTER_OK) return NULL;
        }
        loan->number = (size_t)rand_r(&random) % (rand_r(&random) % 4 ? KEYS / 4 : KEYS);
        muster_error error = {0};
        muster_status status = mu_ptx_cache_get(cache, rand_r(&random) % 8 ? reader : NULL, &keys[loan->number], lower,
                                                (void *)(uintptr_t)loan->number, &loan->text, &error);
        if (status == MUSTER_OK) {
            atomic_fetch_add(&successes, 1);
        } else {
            char expected[32];
            snprintf(expected, sizeof expected, "key %zu", loan->number);
            if (status != MUSTER_PROGRAM_INVALID || strcmp(error.message, expected) != 0) atomic_fetch_add(&wrong, 1);
            atomic_fetch_add(&failures, 1);
        }
    }
    for (int i = 0; i < LOANS; i++)
        if (loans[i].text.entry) check_and_release(&loans[i]);
    mu_ptx_reader_destroy(reader);
    return NULL;
}

static void everything_at_once(void **state) {
    (void)state;
    for (uint64_t i = 0; i < KEYS; i++) keys[i] = mu_raw_ptx_key(&i, sizeof i);
    mu_ptx_cache_options options = {.max_entries = ENTRIES, .max_bytes = 6000};
    assert_int_equal(mu_ptx_cache_create(&options, &cache, NULL), MUSTER_OK);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, worker, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);

    mu_ptx_cache_stats stats;
    mu_ptx_cache_get_stats(cache, &stats);
    uint64_t calls = 0;
    for (int i = 0; i < KEYS; i++) calls += atomic_load(&lowered[i]);
    assert_int_equal(overlaps, 0); /* never two lowerings of a key at a time */
    assert_int_equal(wrong, 0);
    assert_int_equal(successes + failures, THREADS * STEPS);
    assert_int_equal(stats.misses, calls);
    assert_int_equal(stats.hits + stats.misses + stats.joins, THREADS * STEPS); /* each get is one of the three */
    assert_true(stats.entries <= ENTRIES && stats.bytes <= 6000);
    assert_true(stats.evictions > 100);
    mu_ptx_cache_destroy(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
