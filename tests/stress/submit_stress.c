/* Many threads that build, submit, wait for and destroy many small graphs on one runtime, at once.
 *
 *     submit_stress [--threads T] [--graphs N] [--seconds S] [--devices D] [--seed X] [--driver sim|cuda]
 *
 * Without arguments: 8 threads with 150 graphs each (25 under a sanitizer) on 4 simulated devices, which is what a test
 * run does. The long mode is --seconds: every thread goes on until that time is over, whatever --graphs says; an hour
 * under ThreadSanitizer is `submit_stress --seconds 3600`. With --driver cuda it is skipped, visibly, where there is no
 * driver or no device.
 *
 * Each thread has buffers of its own, to which it applies maps that do not commute and which it models word by word; all
 * threads add to one shared buffer and read another, so that runs of different threads follow each other, and the sum of
 * what was added is known. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/sanitizer.h"
#include "tests/scheduler/fixture.h"

enum { MAX_THREADS = 64, WORDS = 48, OWN = 3, OUTSTANDING = 6, SHARED_WORDS = 16 };

static struct {
    uint32_t threads, graphs, devices;
    uint64_t seconds, seed;
    const char *driver;
} option = {.threads = 8, .graphs = MU_TSAN || MU_ASAN ? 25 : 150, .devices = 4, .seed = 1, .driver = "sim"};

typedef struct shared {
    fixture fixture;
    muster_kernel *affine;
    muster_buffer *sum, *table;
    uint32_t table_words[SHARED_WORDS];
    uint64_t end_ns; /* 0: by number of graphs */
    pthread_barrier_t start;
} shared;

typedef struct worker {
    shared *shared;
    uint64_t random;
    uint32_t index;
    muster_buffer *own[OWN];
    uint32_t model[OWN][WORDS];
    uint32_t added[SHARED_WORDS]; /* to the shared sum */
    muster_graph *again;          /* submitted again and again: own[0] = own[0] * 5 + argument */
    muster_run *outstanding[OUTSTANDING];
    uint64_t submitted;
    char failure[256];
} worker;

static uint32_t below(worker *self, uint32_t bound) {
    self->random = self->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(self->random >> 33) % bound;
}

static bool good(worker *self, const char *what, muster_status status, const muster_error *error) {
    if (status == MUSTER_OK) return true;
    if (!self->failure[0])
        snprintf(self->failure, sizeof self->failure, "thread %" PRIu32 ", graph %" PRIu64 ": %s: %.160s", self->index,
                 self->submitted, what, error->message);
    return false;
}

static muster_status add_affine(worker *self, muster_graph *graph, muster_buffer *buffer, uint32_t first,
                                uint32_t words, uint32_t factor, uint32_t term, muster_error *error) {
    muster_dispatch dispatch =
        fixture_dispatch(self->shared->affine, 1 + words / 32, 32,
                         ARGS(muster_range_arg(buffer, MUSTER_READ_WRITE, 4 * (uint64_t)first, 4 * (uint64_t)words),
                              muster_u32_arg(factor), muster_u32_arg(term), muster_u32_arg(words)));
    dispatch.pin_device = below(self, 3) == 0;
    dispatch.device =
        dispatch.pin_device ? (int)below(self, (uint32_t)muster_device_count(self->shared->fixture.runtime)) : 0;
    return muster_graph_dispatch(graph, &dispatch, NULL, error);
}

/* One random job and what it does to the model. */
static bool add_job(worker *self, muster_graph *graph) {
    muster_error error = {0};
    uint32_t b = below(self, OWN), other = (b + 1 + below(self, OWN - 1)) % OWN;
    uint32_t words = 1 + below(self, WORDS), first = below(self, WORDS - words + 1);
    uint32_t factor = 3 + 2 * below(self, 5), term = below(self, 1000), bin = below(self, SHARED_WORDS);
    uint32_t count = 1 + below(self, SHARED_WORDS - bin);
    switch (below(self, 6)) {
        case 0:
            for (uint32_t i = bin; i < bin + count; i++) self->added[i] += term;
            return good(self, "adding to the sum",
                        add_affine(self, graph, self->shared->sum, bin, count, 1, term, &error), &error);
        case 1:
            memcpy(self->model[b] + bin, self->shared->table_words + bin, 4 * (size_t)count);
            return good(self, "copying the table",
                        muster_graph_copy(graph, self->own[b], 4 * (uint64_t)bin, self->shared->table,
                                          4 * (uint64_t)bin, 4 * (uint64_t)count, NULL, &error),
                        &error);
        case 2:
            memcpy(self->model[b] + first, self->model[other] + first, 4 * (size_t)words);
            return good(self, "copying",
                        muster_graph_copy(graph, self->own[b], 4 * (uint64_t)first, self->own[other],
                                          4 * (uint64_t)first, 4 * (uint64_t)words, NULL, &error),
                        &error);
        case 3:
            for (uint32_t i = first; i < first + words; i++) self->model[b][i] = term;
            return good(
                self, "filling",
                muster_graph_fill(graph, self->own[b], 4 * (uint64_t)first, 4 * (uint64_t)words, term, 4, NULL, &error),
                &error);
        default:
            for (uint32_t i = first; i < first + words; i++) self->model[b][i] = self->model[b][i] * factor + term;
            return good(self, "adding a map", add_affine(self, graph, self->own[b], first, words, factor, term, &error),
                        &error);
    }
}

static bool submit(worker *self, muster_graph *graph) {
    muster_error error = {0};
    muster_run **slot = &self->outstanding[self->submitted % OUTSTANDING];
    if (*slot) {
        /* Some are waited for, some are let go. */
        if (below(self, 3) && !good(self, "waiting", muster_run_wait(*slot, fixture_wait_ns, &error), &error))
            return false;
        muster_run_destroy(*slot);
        *slot = NULL;
    }
    if (!good(self, "submitting", muster_submit(self->shared->fixture.runtime, graph, slot, &error), &error))
        return false;
    self->submitted++;
    return true;
}

static bool new_graph(worker *self) {
    muster_error error = {0};
    muster_graph *graph;
    if (!good(self, "creating a graph", muster_graph_create(self->shared->fixture.runtime, &graph, &error), &error))
        return false;
    bool ok = true;
    for (uint32_t jobs = 1 + below(self, 6); ok && jobs > 0; jobs--) ok = add_job(self, graph);
    ok = ok && submit(self, graph);
    muster_graph_destroy(graph); /* while its run goes on */
    return ok;
}

static bool same_graph_again(worker *self) {
    muster_error error = {0};
    uint32_t term = below(self, 1000);
    if (!good(self, "setting an argument", muster_graph_set_argument(self->again, 0, 2, &term, sizeof term, &error),
              &error))
        return false;
    for (uint32_t i = 0; i < WORDS; i++) self->model[0][i] = self->model[0][i] * 5 + term;
    return submit(self, self->again);
}

static bool look(worker *self, uint32_t b) {
    muster_error error = {0};
    void *pointer;
    if (!good(self, "acquiring",
              muster_buffer_acquire(self->own[b], 0, 4 * WORDS, MUSTER_READ_WRITE, fixture_wait_ns, &pointer, &error),
              &error))
        return false;
    bool same = memcmp(pointer, self->model[b], 4 * WORDS) == 0;
    uint32_t *words = pointer;
    words[b] += 7;
    self->model[b][b] += 7;
    if (!same && !self->failure[0])
        snprintf(self->failure, sizeof self->failure,
                 "thread %" PRIu32 ": own buffer %" PRIu32 " is wrong after %" PRIu64 " graphs", self->index, b,
                 self->submitted);
    return good(self, "releasing", muster_buffer_release(self->own[b], pointer, &error), &error) && same;
}

/* The old buffer is destroyed while runs may still use it. */
static bool replace_buffer(worker *self) {
    muster_error error = {0};
    uint32_t b = 1 + below(self, OWN - 1);
    muster_buffer_destroy(self->own[b]);
    memset(self->model[b], 0, sizeof self->model[b]);
    return good(self, "creating a buffer",
                muster_buffer_create(self->shared->fixture.runtime, 4 * WORDS, NULL, &self->own[b], &error), &error);
}

static bool prepare(worker *self) {
    muster_error error = {0};
    for (int b = 0; b < OWN; b++)
        if (!good(self, "creating a buffer",
                  muster_buffer_create(self->shared->fixture.runtime, 4 * WORDS, NULL, &self->own[b], &error), &error))
            return false;
    return good(self, "creating a graph", muster_graph_create(self->shared->fixture.runtime, &self->again, &error),
                &error) &&
           good(self, "adding a map", add_affine(self, self->again, self->own[0], 0, WORDS, 5, 0, &error), &error);
}

static void *work(void *argument) {
    worker *self = argument;
    bool ok = prepare(self);
    pthread_barrier_wait(&self->shared->start);
    for (uint32_t n = 0; ok && (self->shared->end_ns ? mu_now_ns() < self->shared->end_ns : n < option.graphs); n++) {
        uint32_t dice = below(self, 20);
        ok = dice < 12   ? new_graph(self)
             : dice < 17 ? same_graph_again(self)
             : dice < 19 ? look(self, below(self, OWN))
                         : replace_buffer(self);
    }
    for (uint32_t b = 0; ok && b < OWN; b++) ok = look(self, b);
    for (int i = 0; i < OUTSTANDING; i++) muster_run_destroy(self->outstanding[i]);
    muster_graph_destroy(self->again);
    for (int b = 0; b < OWN; b++) muster_buffer_destroy(self->own[b]);
    return NULL;
}

static muster_status open_shared(shared *shared) {
    static char spec[FIXTURE_SPEC_BYTES];
    muster_config config = {.struct_size = sizeof config, .driver = option.driver, .seed = option.seed};
    fixture_mixed_spec(option.devices, option.seed, spec);
    if (strcmp(option.driver, "sim") == 0) config.sim = spec;
    muster_status status = muster_runtime_create(&config, &shared->fixture.runtime, &reported);
    if (status != MUSTER_OK) return status;
    OK(muster_program_from_ptx(shared->fixture.runtime, test_kernels_ptx, 0, "kernels", &shared->fixture.program,
                               &reported));
    shared->affine = fixture_kernel(&shared->fixture, "affine");
    shared->sum = fixture_buffer(&shared->fixture, 4 * SHARED_WORDS, NULL);
    shared->table = fixture_buffer(&shared->fixture, 4 * SHARED_WORDS, NULL);
    for (uint32_t i = 0; i < SHARED_WORDS; i++) shared->table_words[i] = i * 2654435761u;
    fixture_write(shared->table, 0, 4 * SHARED_WORDS, shared->table_words);
    return MUSTER_OK;
}

static void threads_see_their_own_and_share_the_rest(void **state) {
    (void)state;
    static shared shared;
    static worker own[MAX_THREADS];
    pthread_t thread[MAX_THREADS];
    uint32_t expected[SHARED_WORDS] = {0}, words[SHARED_WORDS];
    uint64_t submitted = 0;
    bool ok = true;
    muster_status status = open_shared(&shared);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) {
        print_message("SKIPPED: %s\n", reported.message);
        skip();
    }
    OK(status);
    shared.end_ns = option.seconds ? mu_now_ns() + option.seconds * 1000000000u : 0;
    pthread_barrier_init(&shared.start, NULL, option.threads);
    for (uint32_t t = 0; t < option.threads; t++) {
        own[t] = (worker){.shared = &shared, .index = t, .random = option.seed * 1000003 + t};
        assert_int_equal(pthread_create(&thread[t], NULL, work, &own[t]), 0);
    }
    for (uint32_t t = 0; t < option.threads; t++) {
        pthread_join(thread[t], NULL);
        submitted += own[t].submitted;
        for (int i = 0; i < SHARED_WORDS; i++) expected[i] += own[t].added[i];
        if (own[t].failure[0]) print_error("%s\n", own[t].failure);
        ok = ok && !own[t].failure[0];
    }
    pthread_barrier_destroy(&shared.start);
    assert_true(ok);
    fixture_read(shared.sum, 0, sizeof words, words);
    assert_memory_equal(words, expected, sizeof words);
    fixture_read(shared.table, 0, sizeof words, words);
    assert_memory_equal(words, shared.table_words, sizeof words);
    print_message("%" PRIu64 " runs submitted by %" PRIu32 " threads\n", submitted, option.threads);
    fixture_close(&shared.fixture);
}

static bool parse(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) return false;
        char *end;
        uint64_t number = strtoull(argv[i + 1], &end, 10);
        bool numeric = argv[i + 1][0] && !*end;
        if (strcmp(argv[i], "--driver") == 0)
            option.driver = argv[i + 1];
        else if (!numeric)
            return false;
        else if (strcmp(argv[i], "--threads") == 0)
            option.threads = (uint32_t)number;
        else if (strcmp(argv[i], "--graphs") == 0)
            option.graphs = (uint32_t)number;
        else if (strcmp(argv[i], "--devices") == 0)
            option.devices = (uint32_t)number;
        else if (strcmp(argv[i], "--seconds") == 0)
            option.seconds = number;
        else if (strcmp(argv[i], "--seed") == 0)
            option.seed = number;
        else
            return false;
    }
    return option.threads >= 1 && option.threads <= MAX_THREADS && option.devices >= 1 && option.devices <= 32;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_see_their_own_and_share_the_rest)};
    if (!parse(argc, argv)) {
        fprintf(stderr,
                "usage: %s [--threads T] [--graphs N] [--seconds S] [--devices D] [--seed X] [--driver sim|cuda]\n",
                argv[0]);
        return 2;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
