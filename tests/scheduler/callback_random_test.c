/* Random graphs in which the application's own code works between kernels: host and enqueue jobs, read-backs and prefetches beside
 * dispatches, copies and fills, over ranges of a few buffers. Several runs are under way at a time, host acquisitions come in
 * between, memory is short; every byte is compared with the same operations done one after the other in plain C.
 *
 *     callback_random_test [--seed N] [--graphs N]    one seed per graph, the first is N */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "device/driver.h"
#include "muster_cuda.h"
#include "tests/scheduler/callbacks.h"
#include "tests/scheduler/random_options.h"

enum { BUFFERS = 6, WORDS = 16384, BYTES = 4 * WORDS, OPS_MAX = 40 };

typedef enum kind {
    AFFINE,
    COPY,
    FILL,
    HOST_UPDATE,
    HOST_COPY,
    ENQUEUE_FILL,
    ENQUEUE_COPY,
    READ_BACK,
    PREFETCH,
    KINDS
} kind;

typedef struct op {
    kind kind;
    const mu_driver *driver;
    uint32_t to, from;         /* buffers */
    uint32_t at, source_at, n; /* words */
    uint32_t factor, term;
    int pin; /* device or MUSTER_ANY_DEVICE */
} op;

static random_options option = {.seed = 1800, .count = MU_TSAN || MU_ASAN ? 25 : 150};
static uint64_t random_state, write_backs;

static uint32_t below(uint32_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

/* ----------------------------------------------------------------------------------------------------------- operations -- */

static void draw_op(op *op, const fixture *fixture) {
    *op = (struct op){.kind = (kind)below(KINDS), .driver = fixture_driver(fixture), .to = below(BUFFERS)};
    op->n = below(3) ? 1 + below(WORDS / 4) : WORDS;
    op->at = below(WORDS - op->n + 1);
    op->factor = 2 * below(50) + 1;
    op->term = below(1000);
    op->pin = below(3) ? MUSTER_ANY_DEVICE : (int)below((uint32_t)muster_device_count(fixture->runtime));
    do op->from = below(BUFFERS);
    while (op->from == op->to);
    op->source_at = below(WORDS - op->n + 1);
}

static void model_op(uint32_t (*model)[WORDS], const op *op) {
    uint32_t *to = model[op->to] + op->at;
    const uint32_t *from = model[op->from] + op->source_at;
    for (uint32_t i = 0; i < op->n; i++) switch (op->kind) {
            case AFFINE:
            case HOST_UPDATE: to[i] = to[i] * op->factor + op->term; break;
            case FILL:
            case ENQUEUE_FILL: to[i] = op->term; break;
            case COPY:
            case ENQUEUE_COPY: to[i] = from[i]; break;
            case HOST_COPY: to[i] = from[i] ^ op->term; break;
            default: break;
        }
}

static muster_status on_host(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    (void)error;
    const op *self = user;
    uint32_t *to = pointers[0];
    for (uint32_t i = 0; i < self->n; i++)
        to[i] = count == 1 ? to[i] * self->factor + self->term : ((const uint32_t *)pointers[1])[i] ^ self->term;
    return MUSTER_OK;
}

static muster_status on_stream(void *user, const muster_enqueue_context *context, muster_error *error) {
    (void)error;
    const op *self = user;
    CUdeviceptr to = muster_cuda_address(context, 0);
    CUstream stream = muster_cuda_stream(context);
    CUresult code = context->count == 1
                        ? self->driver->memset_d32_async(to, self->term, self->n, stream)
                        : self->driver->memcpy_dtod_async(to, muster_cuda_address(context, 1), 4 * self->n, stream);
    return code == CUDA_SUCCESS ? MUSTER_OK : MUSTER_TRANSFER_FAILED;
}

static void add_op(const fixture *fixture, muster_graph *graph, muster_buffer *const *buffers, op *op) {
    muster_access access = op->kind == AFFINE || op->kind == HOST_UPDATE ? MUSTER_READ_WRITE : MUSTER_WRITE;
    const muster_arg args[2] = {muster_range_arg(buffers[op->to], access, 4 * op->at, 4 * op->n),
                                muster_range_arg(buffers[op->from], MUSTER_READ, 4 * op->source_at, 4 * op->n)};
    uint32_t count = op->kind == HOST_COPY || op->kind == ENQUEUE_COPY ? 2 : 1;
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(fixture, "affine"), (op->n + 255) / 256, 256,
                         ARGS(args[0], muster_u32_arg(op->factor), muster_u32_arg(op->term), muster_u32_arg(op->n)));
    dispatch.pin_device = op->pin != MUSTER_ANY_DEVICE;
    dispatch.device = op->pin;
    const muster_enqueue_job enqueue = {.struct_size = sizeof enqueue,
                                        .enqueue = on_stream,
                                        .user = op,
                                        .arg_count = count,
                                        .args = args,
                                        .pin_device = op->pin != MUSTER_ANY_DEVICE,
                                        .device = op->pin};
    switch (op->kind) {
        case AFFINE: fixture_add(graph, &dispatch); break;
        case COPY:
            OK(muster_graph_copy(graph, buffers[op->to], 4 * op->at, buffers[op->from], 4 * op->source_at, 4 * op->n,
                                 NULL, &reported));
            break;
        case FILL:
            OK(muster_graph_fill(graph, buffers[op->to], 4 * op->at, 4 * op->n, op->term, 4, NULL, &reported));
            break;
        case HOST_UPDATE:
        case HOST_COPY: add_host(graph, on_host, op, (fixture_args){args, count}); break;
        case ENQUEUE_FILL:
        case ENQUEUE_COPY: OK(muster_graph_enqueue(graph, &enqueue, NULL, &reported)); break;
        case READ_BACK:
            OK(muster_graph_read_back(graph, buffers[op->to], 4 * op->at, 4 * op->n, NULL, &reported));
            break;
        default:
            OK(muster_graph_prefetch(graph, buffers[op->to], 4 * op->at, 4 * op->n, op->pin < 0 ? 0 : op->pin, NULL,
                                     &reported));
            break;
    }
}

/* -------------------------------------------------------------------------------------------------------------- one graph -- */

static void compare(muster_buffer *buffer, uint32_t at, uint32_t n, const uint32_t *model, uint64_t seed, uint32_t b) {
    uint32_t *words;
    OK(muster_buffer_acquire(buffer, 4 * at, 4 * n, MUSTER_READ, fixture_wait_ns, (void **)&words, &reported));
    for (uint32_t i = 0; i < n; i++)
        if (words[i] != model[at + i])
            fail_msg("seed %llu: buffer %u word %u is %u, not %u", (unsigned long long)seed, b, at + i, words[i],
                     model[at + i]);
    OK(muster_buffer_release(buffer, words, &reported));
}

static void open_random(fixture *fixture, uint64_t seed) {
    static const char *const placements[] = {"locality", "least-loaded", "round-robin", "random"};
    char spec[FIXTURE_SPEC_BYTES];
    uint32_t devices = 1 + below(4);
    fixture_mixed_spec(devices, seed, spec);
    muster_config config = {.struct_size = sizeof config,
                            .sim = spec,
                            .placement = placements[below(4)],
                            .seed = seed,
                            .admission_wait_ns = fixture_wait_ns,
                            .flags = below(8) ? 0 : MUSTER_RUNTIME_SERIAL,
                            /* From all of the buffers to what two of them need, and the kernels. */
                            .budget_bytes = below(2) ? 0 : (3 + below(BUFFERS)) * BYTES};
    fixture_open_with(fixture, devices, &config);
}

static void one_graph(uint64_t seed) {
    static uint32_t model[BUFFERS][WORDS], host[BUFFERS][WORDS];
    static op ops[OPS_MAX];
    fixture fixture;
    random_state = seed * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 4; i++) below(2);
    open_random(&fixture, seed);
    muster_buffer *buffers[BUFFERS];
    memset(model, 0, sizeof model);
    for (uint32_t b = 0; b < BUFFERS; b++) {
        bool given = below(2);
        for (uint32_t w = 0; given && w < WORDS; w++) model[b][w] = host[b][w] = w * (b + 1);
        buffers[b] = fixture_buffer(&fixture, BYTES, given ? host[b] : NULL);
    }
    uint32_t op_count = 1 + below(OPS_MAX), runs = 1 + below(4);
    muster_graph *graph = fixture_graph(&fixture);
    for (uint32_t i = 0; i < op_count; i++) {
        draw_op(&ops[i], &fixture);
        add_op(&fixture, graph, buffers, &ops[i]);
    }
    muster_run *run[4];
    for (uint32_t r = 0; r < runs; r++) {
        run[r] = fixture_submit(&fixture, graph);
        for (uint32_t i = 0; i < op_count; i++) model_op(model, &ops[i]);
        uint32_t b = below(BUFFERS), n = 1 + below(WORDS), at = below(WORDS - n + 1);
        if (below(2)) compare(buffers[b], at, n, model[b], seed, b);
        if (below(3)) continue;
        for (uint32_t w = 0; w < n; w++) model[b][at + w] = below(1000000);
        fixture_write(buffers[b], 4 * at, 4 * n, model[b] + at);
    }
    for (uint32_t r = 0; r < runs; r++) {
        if (muster_run_wait(run[r], fixture_wait_ns, &reported))
            fail_msg("seed %llu: job %u: %s", (unsigned long long)seed, reported.job, reported.message);
        muster_run_destroy(run[r]);
    }
    for (uint32_t b = 0; b < BUFFERS; b++) compare(buffers[b], 0, WORDS, model[b], seed, b);
    for (int d = 0; d < muster_device_count(fixture.runtime); d++) write_backs += stats_of(&fixture, d).write_backs;
    fixture_close(&fixture);
}

static void every_word_is_as_in_the_sequential_model(void **state) {
    (void)state;
    for (uint32_t i = 0; i < option.count; i++) one_graph(option.seed + i);
    print_message("%u graphs, %llu write-backs\n", option.count, (unsigned long long)write_backs);
    if (option.count >= 25) assert_true(write_backs > 0); /* memory was short */
}

int main(int argc, char **argv) {
    if (!random_options_read(argc, argv, "graphs", 0, &option)) return 2;
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_word_is_as_in_the_sequential_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
