/* What a warm look-up in the PTX cache costs: get and release of one of 256 texts.
 *
 *     cache_lookup_bench [--millions M] [--json]
 *
 * With a reader per thread (1 and 8 of them), and by a caller that has none and takes the lock. `cpu_ns` is CPU time per
 * look-up of the threads that look up: were a hit to write a shared line, it would grow with the readers. Beside it, what
 * making a key costs. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "cache/ptx_cache.h"
#include "tests/bench/measure.h"

enum { KEYS = 256, READERS_MAX = 8 };

static mu_key keys[KEYS];
static mu_ptx_cache *cache;
static uint64_t rounds = 5000000;
static pthread_barrier_t barrier;

static muster_status lower(void *user, const mu_key *key, char **text, size_t *bytes, muster_error *error) {
    (void)user, (void)key;
    *text = mu_strdup(".version 8.0");
    if (!*text) return mu_fail_host_memory(error, "a text", 13);
    *bytes = strlen(*text);
    return MUSTER_OK;
}

static uint64_t thread_cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void look_up(mu_ptx_reader *reader, uint64_t count) {
    mu_ptx_text text;
    for (uint64_t i = 0; i < count; i++) {
        if (mu_ptx_cache_get(cache, reader, &keys[i * 37 % KEYS], lower, NULL, &text, NULL) != MUSTER_OK) abort();
        mu_ptx_text_release(&text);
    }
}

static void *run_reader(void *argument) {
    double *cpu_ns = argument;
    mu_ptx_reader *reader;
    if (mu_ptx_reader_create(cache, &reader, NULL) != MUSTER_OK) abort();
    look_up(reader, KEYS);
    pthread_barrier_wait(&barrier);
    uint64_t start = thread_cpu_ns();
    look_up(reader, rounds);
    *cpu_ns = (double)(thread_cpu_ns() - start) / (double)rounds;
    mu_ptx_reader_destroy(reader);
    return NULL;
}

static void row(measure_report *report, const char *name, double cpu_ns) {
    const measure_figure figure = {"cpu_ns", cpu_ns};
    measure_row(report, name, &figure, 1);
}

static double with_readers(unsigned readers) {
    pthread_t threads[READERS_MAX];
    double cpu_ns[READERS_MAX], sum = 0;
    pthread_barrier_init(&barrier, NULL, readers);
    for (unsigned i = 0; i < readers; i++)
        if (pthread_create(&threads[i], NULL, run_reader, &cpu_ns[i]) != 0) abort();
    for (unsigned i = 0; i < readers; i++) {
        pthread_join(threads[i], NULL);
        sum += cpu_ns[i];
    }
    pthread_barrier_destroy(&barrier);
    return sum / readers;
}

static double without_reader(void) {
    look_up(NULL, KEYS);
    uint64_t start = thread_cpu_ns();
    look_up(NULL, rounds);
    return (double)(thread_cpu_ns() - start) / (double)rounds;
}

static double making_a_key(void) {
    mu_ptx_fields fields = {.policy = "policy", .policy_bytes = 6, .target_sm = 90, .warp_size = 32};
    uint64_t count = rounds / 20 + 1, start = thread_cpu_ns();
    for (uint64_t i = 0; i < count; i++) {
        fields.features = (uint32_t)i;
        fields.identity = mu_ptx_key(&fields);
    }
    return (double)(thread_cpu_ns() - start) / (double)count;
}

int main(int argc, char **argv) {
    measure_report report = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            report.json = true;
        } else if (strcmp(argv[i], "--millions") == 0 && i + 1 < argc) {
            rounds = strtoull(argv[++i], NULL, 10) * 1000000;
        } else {
            fprintf(stderr, "usage: cache_lookup_bench [--millions M] [--json]\n");
            return 2;
        }
    }
    if (rounds == 0 || mu_ptx_cache_create(NULL, &cache, NULL) != MUSTER_OK) return 1;
    for (uint64_t i = 0; i < KEYS; i++) keys[i] = mu_raw_ptx_key(&i, sizeof i);
    measure_begin(&report, "warm look-up in the PTX cache");
    row(&report, "1 reader", with_readers(1));
    row(&report, "8 readers", with_readers(8));
    row(&report, "no reader", without_reader());
    row(&report, "making a PTX key", making_a_key());
    measure_end(&report);
    mu_ptx_cache_destroy(cache);
    return 0;
}
