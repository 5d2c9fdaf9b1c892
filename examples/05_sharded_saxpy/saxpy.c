/* Two large dispatches over all devices: y = 2 x + y, and then the dot product of x and y. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "examples/05_sharded_saxpy/kernels_ptx.h"
#include "examples/common/example.h"
#include "muster.h"

enum { BLOCK = 256, SLICE_BYTES = BLOCK * sizeof(float) };

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])
#define TRY(call)                                                                                                      \
    if ((call) != MUSTER_OK) return example_complain("saxpy", #call, &error), 1

/* Whole numbers that are small enough for every result to be exact, so that a sum does not depend on its order. */
static float x_at(uint64_t i) { return (float)(i % 1000); }
static float y_at(uint64_t i) { return (float)(i % 77); }

/* Which elements of the arrays a job worked on, and where. */
static int print_shards(const muster_run *run, muster_job job, const char *name, uint64_t count) {
    muster_error error;
    muster_job_result result = {.struct_size = sizeof result};
    TRY(muster_run_job_result(run, job, &result, &error));
    for (uint32_t s = 0; s < result.shards; s++) {
        muster_shard_result shard = {.struct_size = sizeof shard};
        TRY(muster_run_shard_result(run, job, s, &shard, &error));
        uint64_t first = shard.first_block * BLOCK, end = first + shard.blocks * BLOCK;
        printf("%-5s elements %7" PRIu64 " to %7" PRIu64 " on device %d\n", name, first,
               (end < count ? end : count) - 1, shard.device);
    }
    return 0;
}

/* How many elements of y are not what the CPU computes, and the dot product. */
static int check(muster_buffer *y, uint64_t count, uint64_t *wrong, double *expected) {
    muster_error error;
    void *memory;
    TRY(muster_buffer_acquire(y, 0, 0, MUSTER_READ, MUSTER_FOREVER, &memory, &error));
    for (uint64_t i = 0; i < count; i++) {
        float value = 2 * x_at(i) + y_at(i);
        *wrong += ((float *)memory)[i] != value;
        *expected += (double)x_at(i) * value;
    }
    TRY(muster_buffer_release(y, memory, &error));
    return 0;
}

static int saxpy(muster_runtime *rt, float *host_x, float *host_y, uint64_t count) {
    muster_error error;
    muster_program *program;
    muster_kernel *saxpy, *dot;
    muster_buffer *x, *y, *sum;
    muster_graph *graph;
    muster_job saxpy_job, dot_job;
    muster_run *run;
    void *memory;

    TRY(muster_program_from_ptx(rt, kernels_ptx, 0, "saxpy", &program, &error));
    TRY(muster_program_kernel(program, "saxpy", &saxpy, &error));
    TRY(muster_program_kernel(program, "dot", &dot, &error));
    TRY(muster_buffer_create(rt, count * sizeof(float), host_x, &x, &error));
    TRY(muster_buffer_create(rt, count * sizeof(float), host_y, &y, &error));
    TRY(muster_buffer_create(rt, sizeof(double), NULL, &sum, &error)); /* starts as zero */

    /* One block of the grid owns BLOCK elements of the arrays; the last one fewer. Each shard is told its own count, and adds to a
     * sum of its own; the sums are added up in the end. */
    muster_arg elements = muster_shard_count_arg(BLOCK, count, 4);
    muster_arg x_in = muster_block_cut(muster_buffer_arg(x, MUSTER_READ), SLICE_BYTES);
    muster_arg y_in = muster_block_cut(muster_buffer_arg(y, MUSTER_READ), SLICE_BYTES);
    muster_arg y_in_out = muster_block_cut(muster_buffer_arg(y, MUSTER_READ_WRITE), SLICE_BYTES);
    muster_arg saxpy_args[] = {muster_f32_arg(2), x_in, y_in_out, elements};
    muster_arg dot_args[] = {x_in, y_in, muster_sum_arg(sum, MUSTER_F64), elements};
    muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                .kernel = saxpy,
                                .grid.x = (uint32_t)((count + BLOCK - 1) / BLOCK),
                                .block.x = BLOCK,
                                .flags = MUSTER_DISPATCH_SHARDED,
                                .arg_count = LENGTH(saxpy_args),
                                .args = saxpy_args};

    /* A shard of the second follows the shard of the first that wrote its part of y, and no other: it runs where that part is. */
    TRY(muster_graph_create(rt, &graph, &error));
    TRY(muster_graph_dispatch(graph, &dispatch, &saxpy_job, &error));
    dispatch.kernel = dot;
    dispatch.arg_count = LENGTH(dot_args);
    dispatch.args = dot_args;
    TRY(muster_graph_dispatch(graph, &dispatch, &dot_job, &error));
    TRY(muster_submit(rt, graph, &run, &error));
    TRY(muster_run_wait(run, MUSTER_FOREVER, &error));

    uint64_t wrong = 0;
    double expected = 0;
    if (print_shards(run, saxpy_job, "saxpy", count) || print_shards(run, dot_job, "dot", count)) return 1;
    if (check(y, count, &wrong, &expected)) return 1;
    TRY(muster_buffer_acquire(sum, 0, 0, MUSTER_READ, MUSTER_FOREVER, &memory, &error));
    double found = *(double *)memory;
    TRY(muster_buffer_release(sum, memory, &error));
    printf("x . y = %.0f, expected %.0f; %" PRIu64 " of %" PRIu64 " elements of y are wrong\n", found, expected, wrong,
           count);
    return wrong || found != expected;
}

int main(int argc, char **argv) {
    uint64_t count = 1000003; /* 3,906 whole blocks, and 67 elements in the last */
    const example_setting settings[] = {{"--count", 1, UINT32_MAX, .number = &count}};
    example_options options = {.name = "saxpy", .usage = "  --count N               so many elements (1000003)\n"};
    example_parse(&options, settings, LENGTH(settings), argc, argv);

    float *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y);
    for (uint64_t i = 0; x && y && i < count; i++) x[i] = x_at(i), y[i] = y_at(i);
    muster_runtime *rt = x && y ? example_runtime_create(&options) : NULL;
    int failed = rt ? saxpy(rt, x, y, count) : 1;
    if (rt) failed |= example_runtime_destroy(&options, rt);
    free(x);
    free(y);
    return failed;
}
