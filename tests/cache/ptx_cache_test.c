/* F3, F4 and the promises of cache/ptx_cache.h: one lowering per key, bounds, what eviction keeps, loans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/ptx_cache.h"

static mu_key key_of(uint64_t number) { return mu_raw_ptx_key(&number, sizeof number); }

/* A lowering whose text repeats the first bytes of its key, so that any text can be checked against the key. */
typedef struct lowering {
    size_t bytes; /* of the text; 0: 40 */
    bool fail;
    atomic_uint calls;
    sem_t *started, *proceed; /* gates, when not NULL */
} lowering;

static char letter(const mu_key *key, size_t i) { return (char)('a' + key->bytes[i % 8] % 26); }

static muster_status lower(void *user, const mu_key *key, char **text, size_t *bytes, muster_error *error) {
    lowering *self = user;
    atomic_fetch_add(&self->calls, 1);
    if (self->started) sem_post(self->started);
    if (self->proceed) sem_wait(self->proceed);
    if (self->fail) return mu_fail(error, MUSTER_PROGRAM_INVALID, "ptxas: line 7: syntax error near 'ad.s32'");
    size_t count = self->bytes ? self->bytes : 40;
    char *made = mu_alloc(count + 1);
    if (!made) return mu_fail_host_memory(error, "a text", count + 1);
    for (size_t i = 0; i < count; i++) made[i] = letter(key, i);
    made[count] = '\0';
    *text = made;
    *bytes = count;
    return MUSTER_OK;
}

static bool text_matches(const mu_ptx_text *text, const mu_key *key) {
    for (size_t i = 0; i < text->bytes; i++)
        if (text->text[i] != letter(key, i)) return false;
    return text->bytes > 0 && text->text[text->bytes] == '\0';
}

static mu_ptx_cache *make_cache(uint32_t entries, uint64_t bytes) {
    mu_ptx_cache *cache;
    mu_ptx_cache_options options = {.max_entries = entries, .max_bytes = bytes};
    assert_int_equal(mu_ptx_cache_create(&options, &cache, NULL), MUSTER_OK);
    return cache;
}

static mu_ptx_reader *make_reader(mu_ptx_cache *cache) {
    mu_ptx_reader *reader;
    assert_int_equal(mu_ptx_reader_create(cache, &reader, NULL), MUSTER_OK);
    return reader;
}

static mu_ptx_cache_stats stats_of(mu_ptx_cache *cache) {
    mu_ptx_cache_stats stats;
    mu_ptx_cache_get_stats(cache, &stats);
    return stats;
}

/* Gets, checks and gives back. */
static void use(mu_ptx_cache *cache, mu_ptx_reader *reader, uint64_t number, lowering *user) {
    mu_key key = key_of(number);
    mu_ptx_text text;
    assert_int_equal(mu_ptx_cache_get(cache, reader, &key, lower, user, &text, NULL), MUSTER_OK);
    assert_true(text_matches(&text, &key));
    mu_ptx_text_release(&text);
}

static bool holds(mu_ptx_cache *cache, uint64_t number) {
    mu_key key = key_of(number);
    return mu_ptx_cache_contains(cache, NULL, &key);
}

/* ------------------------------------------------------------------------------------------------- single thread -- */

static void lowers_once_and_counts_one_miss(void **state) {
    (void)state;
    mu_ptx_cache *cache = make_cache(0, 0);
    mu_ptx_reader *reader = make_reader(cache);
    lowering low = {0};
    mu_key key = key_of(1);
    assert_false(mu_ptx_cache_contains(cache, reader, &key));
    for (int i = 0; i < 10; i++) use(cache, i % 3 ? reader : NULL, 1, &low);
    assert_true(mu_ptx_cache_contains(cache, reader, &key));
    assert_true(mu_ptx_cache_contains(cache, NULL, &key));
    assert_int_equal(low.calls, 1);
    mu_ptx_cache_stats stats = stats_of(cache);
    assert_int_equal(stats.misses, 1);
    assert_int_equal(stats.hits, 9);
    assert_int_equal(stats.entries, 1);
    assert_int_equal(stats.bytes, 40);
    assert_int_equal(stats.joins + stats.failures + stats.evictions + stats.uncached, 0);
    mu_ptx_reader_destroy(reader);
    mu_ptx_cache_destroy(cache);
    mu_ptx_cache_destroy(NULL);
    mu_ptx_reader_destroy(NULL);
}

static void a_failure_carries_the_log_and_is_not_remembered(void **state) {
    (void)state;
    mu_ptx_cache *cache = make_cache(0, 0);
    mu_ptx_reader *reader = make_reader(cache);
    lowering low = {.fail = true};
    mu_key key = key_of(1);
    mu_ptx_text text = {.text = "untouched"}, before = text;
    muster_error error = {0};
    assert_int_equal(mu_ptx_cache_get(cache, reader, &key, lower, &low, &text, &error), MUSTER_PROGRAM_INVALID);
    assert_non_null(strstr(error.message, "syntax error near 'ad.s32'"));
    assert_memory_equal(&text, &before, sizeof text);
    assert_int_equal(mu_ptx_cache_get(cache, NULL, &key, lower, &low, &text, NULL), MUSTER_PROGRAM_INVALID);
    assert_int_equal(low.calls, 2);
    low.fail = false;
    use(cache, reader, 1, &low);
    mu_ptx_cache_stats stats = stats_of(cache);
    assert_int_equal(stats.misses, 3);
    assert_int_equal(stats.failures, 2);
    assert_int_equal(stats.entries, 1);
    mu_ptx_reader_destroy(reader);
    mu_ptx_cache_destroy(cache);
}

static muster_status lower_nothing(void *user, const mu_key *key, char **text, size_t *bytes, muster_error *error) {
    (void)user, (void)key, (void)text, (void)bytes, (void)error;
    return MUSTER_OK;
}

static void a_lowering_without_a_text_is_refused(void **state) {
    (void)state;
    mu_ptx_cache *cache = make_cache(0, 0);
    mu_key key = key_of(1);
    mu_ptx_text text;
    muster_error error = {0};
    assert_int_equal(mu_ptx_cache_get(cache, NULL, &key, lower_nothing, NULL, &text, &error), MUSTER_INTERNAL);
    assert_true(error.message[0] != '\0');
    mu_ptx_cache_destroy(cache);
}

typedef struct nested {
    mu_ptx_cache *cache;
    mu_ptx_reader *reader;
    mu_key inner;
    muster_status inner_status;
} nested;

static muster_status lower_nested(void *user, const mu_key *key, char **text, size_t *bytes, muster_error *error) {
    nested *self = user;
    lowering plain = {0};
    mu_ptx_text inner;
    self->inner_status = mu_ptx_cache_get(self->cache, self->reader, &self->inner, lower, &plain, &inner, error);
    if (self->inner_status != MUSTER_OK) return self->inner_status;
    mu_ptx_text_release(&inner);
    return lower(&plain, key, text, bytes, error);
}

static void a_lowering_may_ask_for_other_keys_but_not_its_own(void **state) {
    (void)state;
    for (int with_reader = 0; with_reader < 2; with_reader++) {
        mu_ptx_cache *cache = make_cache(0, 0);
        mu_ptx_reader *reader = make_reader(cache);
        nested user = {.cache = cache, .reader = with_reader ? reader : NULL, .inner = key_of(2)};
        mu_key key = key_of(1);
        mu_ptx_text text;
        muster_error error = {0};
        assert_int_equal(mu_ptx_cache_get(cache, reader, &key, lower_nested, &user, &text, &error), MUSTER_OK);
        mu_ptx_text_release(&text);
        key = user.inner = key_of(3);
        assert_int_equal(mu_ptx_cache_get(cache, reader, &key, lower_nested, &user, &text, &error),
                         MUSTER_INVALID_STATE);
        assert_int_equal(stats_of(cache).entries, 2);
        mu_ptx_reader_destroy(reader);
        mu_ptx_cache_destroy(cache);
    }
}

/* -------------------------------------------------------------------------------------------------------- bounds -- */

static void the_default_bounds_are_512_entries_and_256_mib(void **state) {
    (void)state;
    assert_int_equal(MU_PTX_CACHE_ENTRIES, 512);
    assert_true(MU_PTX_CACHE_BYTES == 256u << 20);
    mu_ptx_cache *cache;
    assert_int_equal(mu_ptx_cache_create(NULL, &cache, NULL), MUSTER_OK);
    lowering low = {0};
    for (uint64_t i = 0; i < 512; i++) use(cache, NULL, i, &low);
    assert_int_equal(stats_of(cache).entries, 512);
    assert_int_equal(stats_of(cache).evictions, 0);
    use(cache, NULL, 512, &low);
    assert_int_equal(stats_of(cache).entries, 512);
    assert_int_equal(stats_of(cache).evictions, 1);
    mu_ptx_cache_destroy(cache);
}

static void bytes_are_bounded(void **state) {
    (void)state;
    mu_ptx_cache *cache = make_cache(100, 1000);
    lowering low = {.bytes = 250};
    for (uint64_t i = 0; i < 4; i++) use(cache, NULL, i, &low);
    assert_int_equal(stats_of(cache).bytes, 1000); /* equality fits */
    assert_int_equal(stats_of(cache).evictions, 0);
    low.bytes = 1000;
    use(cache, NULL, 9, &low); /* the largest text there can be displaces all others */
    assert_int_equal(stats_of(cache).entries, 1);
    assert_int_equal(stats_of(cache).evictions, 4);
    assert_true(holds(cache, 9));
    mu_ptx_cache_destroy(cache);
}

static void a_text_above_the_byte_bound_is_served_uncached(void **state) {
    (void)state;
    mu_ptx_cache *cache = make_cache(100, 1000);
    lowering small = {.bytes = 10}, large = {.bytes = 1001};
    use(cache, NULL, 1, &small);
    for (int i = 0; i < 3; i++) use(cache, NULL, 2, &large);
    assert_int_equal(large.calls, 3);
    assert_false(holds(cache, 2));
    assert_true(holds(cache, 1)); /* and it evicts nothing */
    mu_ptx_cache_stats stats = stats_of(cache);
    assert_int_equal(stats.uncached, 3);
    assert_int_equal(stats.evictions, 0);
    assert_int_equal(stats.misses, 4);
    mu_ptx_cache_destroy(cache);
}

static void eviction_keeps_what_is_used_most(void **state) {
    (void)state;
    mu_ptx_cache *cache = make_cache(16, 0);
    mu_ptx_reader *readers[2] = {make_reader(cache), make_reader(cache)};
    lowering low = {0};
    for (uint64_t i = 0; i < 16; i++) use(cache, readers[0], i, &low);
    for (int round = 0; round < 100; round++) /* 0..7 are hot; each reader alone uses a hot one less than 8 is used */
        for (uint64_t i = 0; i < 8; i++) use(cache, readers[round % 2], i, &low);
    for (int round = 0; round < 60; round++) use(cache, readers[0], 8, &low);
    for (uint64_t i = 100; i < 107; i++) use(cache, readers[1], i, &low); /* displace 9..15, the never used */
    for (uint64_t i = 0; i <= 8; i++) assert_true(holds(cache, i));
    for (uint64_t i = 9; i < 16; i++) assert_false(holds(cache, i));
    assert_int_equal(stats_of(cache).evictions, 7);
    mu_ptx_reader_destroy(readers[0]); /* its counts stay: 0..7 still beat 8 */
    for (int round = 0; round < 70; round++)
        for (uint64_t i = 100; i < 107; i++) use(cache, readers[1], i, &low);
    use(cache, readers[1], 200, &low);
    assert_false(holds(cache, 8));
    for (uint64_t i = 0; i < 8; i++) assert_true(holds(cache, i));
    mu_ptx_reader_destroy(readers[1]);
    mu_ptx_cache_destroy(cache);
}

/* What was hot once and is no longer does not stay for ever: scores halve every max_entries insertions. */
static void old_uses_count_less(void **state) {
    (void)state;
    mu_ptx_cache *cache = make_cache(4, 0);
    lowering low = {0};
    for (int i = 0; i < 1000; i++) use(cache, NULL, 1, &low);
    uint64_t fresh = 100;
    int insertions = 0;
    for (; insertions < 200 && holds(cache, 1); insertions++, fresh++)
        for (int i = 0; i < 3; i++) use(cache, NULL, fresh, &low);
    assert_false(holds(cache, 1));
    assert_true(insertions > 8); /* but it stays for a while */
    mu_ptx_cache_destroy(cache);
}

/* An independent model of the policy, over random keys, sizes and uses. */
enum { MODEL_KEYS = 60, MODEL_ENTRIES = 12, MODEL_BYTES = 2000 };

typedef struct model {
    struct {
        bool in;
        size_t bytes;
        uint64_t score, inserted;
    } keys[MODEL_KEYS];
    uint64_t insertions, evictions, entries, bytes;
} model;

static void model_use(model *model, size_t key, size_t bytes) {
    if (model->keys[key].in) {
        model->keys[key].score++;
        return;
    }
    if (bytes > MODEL_BYTES) return;
    while (model->entries == MODEL_ENTRIES || model->bytes + bytes > MODEL_BYTES) {
        size_t least = MODEL_KEYS;
        for (size_t i = 0; i < MODEL_KEYS; i++)
            if (model->keys[i].in && (least == MODEL_KEYS || model->keys[i].score < model->keys[least].score ||
                                      (model->keys[i].score == model->keys[least].score &&
                                       model->keys[i].inserted < model->keys[least].inserted)))
                least = i;
        model->keys[least].in = false;
        model->entries--;
        model->bytes -= model->keys[least].bytes;
        model->evictions++;
    }
    model->keys[key].in = true;
    model->keys[key].bytes = bytes;
    model->keys[key].score = 0;
    model->keys[key].inserted = model->insertions++;
    model->entries++;
    model->bytes += bytes;
    if (model->insertions % MODEL_ENTRIES == 0)
        for (size_t i = 0; i < MODEL_KEYS; i++)
            if (model->keys[i].in) model->keys[i].score /= 2;
}

static void random_use_follows_the_model(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        mu_ptx_cache *cache = make_cache(MODEL_ENTRIES, MODEL_BYTES);
        mu_ptx_reader *readers[3] = {make_reader(cache), make_reader(cache), NULL};
        model model = {0};
        unsigned random = seed;
        for (int step = 0; step < 3000; step++) {
            size_t key = (size_t)rand_r(&random) % MODEL_KEYS;
            if (rand_r(&random) % 3) key %= 10; /* some are asked for more often */
            size_t bytes = 1 + (size_t)rand_r(&random) % (rand_r(&random) % 20 ? 300 : 2100);
            lowering low = {.bytes = bytes};
            use(cache, readers[rand_r(&random) % 3], key, &low);
            model_use(&model, key, bytes);
            if (step % 10) continue;
            for (size_t i = 0; i < MODEL_KEYS; i++) assert_int_equal(holds(cache, i), model.keys[i].in);
            mu_ptx_cache_stats stats = stats_of(cache);
            assert_int_equal(stats.entries, model.entries);
            assert_int_equal(stats.bytes, model.bytes);
            assert_int_equal(stats.evictions, model.evictions);
        }
        mu_ptx_cache_destroy(cache);
    }
}

/* --------------------------------------------------------------------------------------------------------- loans -- */

static void an_evicted_text_lives_until_it_is_released(void **state) {
    (void)state;
    mu_ptx_cache *cache = make_cache(2, 0);
    mu_ptx_reader *reader = make_reader(cache);
    lowering low = {.bytes = 5000};
    use(cache, reader, 1, &low);
    mu_key key = key_of(1);
    mu_ptx_text by_section, by_section_too, by_count;
    assert_int_equal(mu_ptx_cache_get(cache, reader, &key, lower, &low, &by_section, NULL), MUSTER_OK);
    assert_int_equal(mu_ptx_cache_get(cache, reader, &key, lower, &low, &by_section_too, NULL), MUSTER_OK);
    assert_int_equal(mu_ptx_cache_get(cache, NULL, &key, lower, &low, &by_count, NULL), MUSTER_OK);
    for (uint64_t i = 10; i < 20; i++)
        for (int j = 0; j < 10; j++) use(cache, NULL, i, &low);
    assert_false(holds(cache, 1));
    assert_true(text_matches(&by_section, &key));
    mu_ptx_text_release(&by_section); /* first taken, first released: any order will do */
    for (uint64_t i = 20; i < 30; i++) use(cache, NULL, i, &low);
    assert_true(text_matches(&by_section_too, &key));
    mu_ptx_text_release(&by_section_too);
    for (uint64_t i = 30; i < 40; i++) use(cache, NULL, i, &low);
    assert_true(text_matches(&by_count, &key));
    mu_ptx_text_release(&by_count);
    mu_ptx_text_release(&by_count); /* a released loan is zeroed and ignored */
    assert_null(by_count.text);
    mu_ptx_reader_destroy(reader);
    mu_ptx_cache_destroy(cache);
}

/* Only an open loan holds back what was removed. */
static void nothing_is_held_back_without_a_loan(void **state) {
    (void)state;
    mu_ptx_cache *cache = make_cache(4, 0);
    mu_ptx_reader *reader = make_reader(cache);
    lowering low = {0}, failing = {.fail = true};
    mu_ptx_text text;
    for (uint64_t i = 0; i < 50; i++) {
        mu_key key = key_of(1000 + i);
        use(cache, reader, i, &low);
        use(cache, reader, i, &low);
        assert_false(mu_ptx_cache_contains(cache, reader, &key));
        assert_int_equal(mu_ptx_cache_get(cache, reader, &key, lower, &failing, &text, NULL), MUSTER_PROGRAM_INVALID);
        assert_int_equal(stats_of(cache).retired, 0);
    }
    mu_key key = key_of(49);
    assert_int_equal(mu_ptx_cache_get(cache, reader, &key, lower, &low, &text, NULL), MUSTER_OK);
    for (uint64_t i = 100; i < 110; i++) use(cache, NULL, i, &low);
    assert_true(stats_of(cache).retired > 0);
    mu_ptx_text_release(&text);
    assert_int_equal(stats_of(cache).retired, 0);
    mu_ptx_reader_destroy(reader);
    mu_ptx_cache_destroy(cache);
}

/* What a hit writes: memory allocated for its reader, and nothing else of the cache. Every block the cache allocates is
 * recorded through the allocation hooks; hits must leave those not made for the reader as they were. */
enum { BLOCKS_MAX = 512 };

static struct {
    void *pointer[BLOCKS_MAX];
    size_t bytes[BLOCKS_MAX];
    unsigned char *copy[BLOCKS_MAX];
    int count;
} blocks;

static void *recording_reallocate(void *user, void *pointer, size_t bytes) {
    (void)user;
    assert_null(pointer); /* the cache reallocates nothing */
    assert_true(blocks.count < BLOCKS_MAX);
    void *made = malloc(bytes);
    blocks.pointer[blocks.count] = made;
    blocks.bytes[blocks.count++] = bytes;
    return made;
}

static void recording_release(void *user, void *pointer) {
    (void)user;
    for (int i = 0; i < blocks.count; i++)
        if (blocks.pointer[i] == pointer) blocks.pointer[i] = NULL;
    free(pointer);
}

static void a_hit_writes_only_its_readers_memory(void **state) {
    (void)state;
    static const muster_allocator recorder = {recording_reallocate, recording_release, NULL};
    blocks.count = 0;
    assert_int_equal(muster_set_allocator(&recorder, NULL), MUSTER_OK);
    mu_ptx_cache *cache = make_cache(64, 0);
    lowering low = {0};
    for (uint64_t i = 0; i < 32; i++) use(cache, NULL, i, &low);
    int first = blocks.count;
    mu_ptx_reader *reader = make_reader(cache);
    int last = blocks.count;
    assert_true(last > first);
    for (int i = 0; i < first; i++) {
        blocks.copy[i] = NULL;
        if (!blocks.pointer[i]) continue;
        blocks.copy[i] = malloc(blocks.bytes[i]);
        memcpy(blocks.copy[i], blocks.pointer[i], blocks.bytes[i]);
    }
    mu_ptx_text texts[32];
    for (uint64_t i = 0; i < 32; i++) {
        mu_key key = key_of(i);
        assert_int_equal(mu_ptx_cache_get(cache, reader, &key, lower, &low, &texts[i], NULL), MUSTER_OK);
    }
    for (int pass = 0; pass < 2; pass++) { /* while the texts are on loan, and after */
        for (int i = 0; i < first; i++)
            if (blocks.copy[i]) assert_memory_equal(blocks.pointer[i], blocks.copy[i], blocks.bytes[i]);
        for (int i = 0; i < 32; i++) mu_ptx_text_release(&texts[i]);
    }
    assert_int_equal(blocks.count, last); /* and a hit allocates nothing */
    assert_int_equal(stats_of(cache).hits, 32);
    for (int i = 0; i < first; i++) free(blocks.copy[i]);
    mu_ptx_reader_destroy(reader);
    mu_ptx_cache_destroy(cache);
    for (int i = 0; i < blocks.count; i++) assert_null(blocks.pointer[i]); /* nothing leaked */
    assert_int_equal(muster_set_allocator(NULL, NULL), MUSTER_OK);
}

/* ------------------------------------------------------------------------------------------------ failing memory -- */

static muster_status everything_once(void) {
    mu_ptx_cache *cache;
    mu_ptx_cache_options options = {.max_entries = 3, .max_bytes = 1000};
    muster_status status = mu_ptx_cache_create(&options, &cache, NULL);
    if (status != MUSTER_OK) return status;
    mu_ptx_reader *reader = NULL;
    status = mu_ptx_reader_create(cache, &reader, NULL);
    lowering low = {0};
    for (uint64_t i = 0; i < 40 && status == MUSTER_OK; i++) {
        mu_key key = key_of(i % 5);
        mu_ptx_text text;
        muster_error error = {0};
        low.bytes = i == 20 ? 2000 : 30;
        status = mu_ptx_cache_get(cache, i % 2 ? reader : NULL, &key, lower, &low, &text, &error);
        if (status == MUSTER_OK) {
            assert_true(text_matches(&text, &key));
            mu_ptx_text_release(&text);
        } else {
            assert_int_equal(error.status, status);
        }
    }
    mu_ptx_reader_destroy(reader);
    mu_ptx_cache_destroy(cache);
    return status;
}

static void every_allocation_failed_in_turn(void **state) {
    (void)state;
    uint64_t n = 1;
    for (;; n++) {
        mu_alloc_fail_at(n, false);
        muster_status status = everything_once();
        bool hit = mu_alloc_fail_hits() > 0;
        mu_alloc_fail_at(0, false);
        if (!hit) {
            assert_int_equal(status, MUSTER_OK);
            break;
        }
        assert_true(status == MUSTER_OUT_OF_HOST_MEMORY || status == MUSTER_OK); /* OK: served without being kept */
    }
    assert_true(n > 20);
}

/* -------------------------------------------------------------------------------------------------- many threads -- */

typedef struct asker {
    pthread_t thread;
    mu_ptx_cache *cache;
    lowering *low;
    pthread_barrier_t *barrier;
    uint64_t number;
    bool with_reader;
    muster_status status;
    muster_error error;
    bool matched;
} asker;

static void *ask(void *argument) {
    asker *self = argument;
    mu_ptx_reader *reader = NULL;
    if (self->with_reader && mu_ptx_reader_create(self->cache, &reader, NULL) != MUSTER_OK) return NULL;
    if (self->barrier) pthread_barrier_wait(self->barrier);
    mu_key key = key_of(self->number);
    mu_ptx_text text;
    self->status = mu_ptx_cache_get(self->cache, reader, &key, lower, self->low, &text, &self->error);
    if (self->status == MUSTER_OK) {
        self->matched = text_matches(&text, &key);
        mu_ptx_text_release(&text);
    }
    mu_ptx_reader_destroy(reader);
    return NULL;
}

static void wait_for_joins(mu_ptx_cache *cache, uint64_t joins) {
    while (stats_of(cache).joins < joins) sched_yield();
}

/* All but one of 16 threads wait for the first one's lowering, for certain, and get its result or its failure. */
static void waiters_share_one_result(bool fail, size_t bytes, uint64_t max_bytes) {
    enum { THREADS = 16 };
    mu_ptx_cache *cache = make_cache(0, max_bytes);
    sem_t started, proceed;
    sem_init(&started, 0, 0);
    sem_init(&proceed, 0, 0);
    lowering low = {.fail = fail, .bytes = bytes, .started = &started, .proceed = &proceed};
    asker askers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        askers[i] = (asker){.cache = cache, .low = &low, .number = 1, .with_reader = i % 2};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
    }
    sem_wait(&started);
    wait_for_joins(cache, THREADS - 1);
    sem_post(&proceed);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(askers[i].thread, NULL);
        assert_int_equal(askers[i].status, fail ? MUSTER_PROGRAM_INVALID : MUSTER_OK);
        if (fail)
            assert_string_equal(askers[i].error.message, "ptxas: line 7: syntax error near 'ad.s32'");
        else
            assert_true(askers[i].matched);
    }
    assert_int_equal(low.calls, 1);
    mu_ptx_cache_stats stats = stats_of(cache);
    assert_int_equal(stats.misses, 1);
    assert_int_equal(stats.failures, fail);
    assert_int_equal(stats.joins, THREADS - 1);
    sem_destroy(&started);
    sem_destroy(&proceed);
    mu_ptx_cache_destroy(cache);
}

static void waiters_get_the_same_text(void **state) { (void)state, waiters_share_one_result(false, 100, 0); }
static void waiters_get_the_same_failure(void **state) { (void)state, waiters_share_one_result(true, 100, 0); }
static void waiters_share_an_uncached_text(void **state) { (void)state, waiters_share_one_result(false, 100, 50); }

static void other_keys_are_not_held_up(void **state) {
    (void)state;
    mu_ptx_cache *cache = make_cache(0, 0);
    mu_ptx_reader *reader = make_reader(cache);
    sem_t started, proceed;
    sem_init(&started, 0, 0);
    sem_init(&proceed, 0, 0);
    lowering slow = {.started = &started, .proceed = &proceed}, quick = {0};
    use(cache, reader, 1, &quick);
    asker other = {.cache = cache, .low = &slow, .number = 2};
    assert_int_equal(pthread_create(&other.thread, NULL, ask, &other), 0);
    sem_wait(&started);
    use(cache, reader, 1, &quick); /* a hit */
    use(cache, NULL, 1, &quick);
    use(cache, reader, 3, &quick); /* another lowering */
    assert_int_equal(quick.calls, 2);
    sem_post(&proceed);
    pthread_join(other.thread, NULL);
    assert_true(other.matched);
    sem_destroy(&started);
    sem_destroy(&proceed);
    mu_ptx_reader_destroy(reader);
    mu_ptx_cache_destroy(cache);
}

/* A hit completes while another thread is inside the cache's lock: inserting a key allocates its record under it, and
 * that allocation is made to wait for the hit. */
static struct {
    atomic_bool armed;
    sem_t inside, hit_done;
} gate;

static void *gated_reallocate(void *user, void *pointer, size_t bytes) {
    (void)user;
    if (atomic_exchange(&gate.armed, false)) {
        sem_post(&gate.inside);
        sem_wait(&gate.hit_done);
    }
    return realloc(pointer, bytes);
}

static void gated_release(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

static void a_hit_takes_no_lock(void **state) {
    (void)state;
    static const muster_allocator gated = {gated_reallocate, gated_release, NULL};
    assert_int_equal(muster_set_allocator(&gated, NULL), MUSTER_OK);
    sem_init(&gate.inside, 0, 0);
    sem_init(&gate.hit_done, 0, 0);
    mu_ptx_cache *cache = make_cache(0, 0);
    mu_ptx_reader *reader = make_reader(cache);
    lowering low = {0};
    use(cache, reader, 1, &low);
    asker other = {.cache = cache, .low = &low, .number = 2};
    atomic_store(&gate.armed, true);
    assert_int_equal(pthread_create(&other.thread, NULL, ask, &other), 0);
    sem_wait(&gate.inside); /* the other thread is now inside the lock, and stays there */
    use(cache, reader, 1, &low);
    sem_post(&gate.hit_done);
    pthread_join(other.thread, NULL);
    assert_true(other.matched);
    mu_ptx_reader_destroy(reader);
    mu_ptx_cache_destroy(cache);
    sem_destroy(&gate.inside);
    sem_destroy(&gate.hit_done);
    assert_int_equal(muster_set_allocator(NULL, NULL), MUSTER_OK);
}

/* 16 threads for each of 4 devices want one cold program at once, again and again: no device is part of the key, so
 * there is exactly one compile each time. */
static void sixteen_threads_by_four_devices_compile_once(void **state) {
    (void)state;
    enum { THREADS = 16 * 4, ROUNDS = 20 };
    static asker askers[THREADS];
    mu_ptx_cache *cache = make_cache(0, 0);
    lowering low = {0};
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < THREADS; i++) {
            askers[i] =
                (asker){.cache = cache, .low = &low, .barrier = &barrier, .number = round, .with_reader = i % 4 != 0};
            assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(askers[i].thread, NULL);
            assert_int_equal(askers[i].status, MUSTER_OK);
            assert_true(askers[i].matched);
        }
        assert_int_equal(low.calls, round + 1);
    }
    mu_ptx_cache_stats stats = stats_of(cache);
    assert_int_equal(stats.misses, ROUNDS);
    assert_int_equal(stats.hits + stats.joins, ROUNDS * (THREADS - 1));
    pthread_barrier_destroy(&barrier);
    mu_ptx_cache_destroy(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lowers_once_and_counts_one_miss),
        cmocka_unit_test(a_failure_carries_the_log_and_is_not_remembered),
        cmocka_unit_test(a_lowering_without_a_text_is_refused),
        cmocka_unit_test(a_lowering_may_ask_for_other_keys_but_not_its_own),
        cmocka_unit_test(the_default_bounds_are_512_entries_and_256_mib),
        cmocka_unit_test(bytes_are_bounded),
        cmocka_unit_test(a_text_above_the_byte_bound_is_served_uncached),
        cmocka_unit_test(eviction_keeps_what_is_used_most),
        cmocka_unit_test(old_uses_count_less),
        cmocka_unit_test(random_use_follows_the_model),
        cmocka_unit_test(an_evicted_text_lives_until_it_is_released),
        cmocka_unit_test(nothing_is_held_back_without_a_loan),
        cmocka_unit_test(a_hit_writes_only_its_readers_memory),
        cmocka_unit_test(every_allocation_failed_in_turn),
        cmocka_unit_test(waiters_get_the_same_text),
        cmocka_unit_test(waiters_get_the_same_failure),
        cmocka_unit_test(waiters_share_an_uncached_text),
        cmocka_unit_test(other_keys_are_not_held_up),
        cmocka_unit_test(a_hit_takes_no_lock),
        cmocka_unit_test(sixteen_threads_by_four_devices_compile_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
