/* The smallest host application: x = 0, 1, 2, ...; y = 2 x + 1; and the sum of y, each over all devices. */
#include <stdio.h>

#include "examples/01_quickstart/quickstart_ptx.h"
#include "examples/common/example.h"
#include "muster.h"

enum { COUNT = 100000, BLOCK = 256, GRID = (COUNT + BLOCK - 1) / BLOCK, SLICE_BYTES = BLOCK * sizeof(float) };

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])
#define TRY(call)                                                                                                      \
    if ((call) != MUSTER_OK) return example_complain("quickstart", #call, &error), 1

/* Adds a dispatch of COUNT threads that is cut over all devices. */
static muster_status add_sharded(muster_graph *graph, muster_kernel *kernel, const muster_arg *args, uint32_t arg_count,
                                 muster_job *job, muster_error *error) {
    muster_dispatch dispatch = {
        .struct_size = sizeof dispatch,
        .kernel = kernel,
        .grid.x = GRID,
        .block.x = BLOCK,
        .flags = MUSTER_DISPATCH_SHARDED,
        .arg_count = arg_count,
        .args = args,
    };
    return muster_graph_dispatch(graph, &dispatch, job, error);
}

/* Everything made here belongs to the runtime and goes with it. */
static int quickstart(muster_runtime *rt) {
    muster_error error;
    muster_program *program;
    muster_kernel *iota, *saxpy, *total;
    muster_buffer *x, *y, *sum;
    muster_graph *graph;
    muster_run *run;
    muster_job jobs[4];
    void *memory;

    TRY(muster_program_from_ptx(rt, quickstart_ptx, 0, "quickstart", &program, &error));
    TRY(muster_program_kernel(program, "iota", &iota, &error));
    TRY(muster_program_kernel(program, "saxpy", &saxpy, &error));
    TRY(muster_program_kernel(program, "total", &total, &error));
    TRY(muster_buffer_create(rt, COUNT * sizeof(float), NULL, &x, &error));
    TRY(muster_buffer_create(rt, COUNT * sizeof(float), NULL, &y, &error));
    TRY(muster_buffer_create(rt, sizeof(double), NULL, &sum, &error)); /* starts as zeros, as every buffer does */

    /* What each kernel gets, and how that is cut: one block of the grid owns BLOCK elements, count is a shard's own
     * number of them, and each shard adds to a sum of its own. */
    muster_arg count = muster_shard_count_arg(BLOCK, COUNT, 4);
    muster_arg iota_args[] = {muster_block_cut(muster_buffer_arg(x, MUSTER_WRITE), SLICE_BYTES),
                              muster_shard_offset_arg(BLOCK, COUNT, 4), count};
    muster_arg saxpy_args[] = {muster_f32_arg(2), muster_block_cut(muster_buffer_arg(x, MUSTER_READ), SLICE_BYTES),
                               muster_block_cut(muster_buffer_arg(y, MUSTER_READ_WRITE), SLICE_BYTES), count};
    muster_arg total_args[] = {muster_block_cut(muster_buffer_arg(y, MUSTER_READ), SLICE_BYTES),
                               muster_sum_arg(sum, MUSTER_F64), count};

    /* y is filled, x counted up, saxpy needs both, total needs y: Muster sees that from the arguments. */
    TRY(muster_graph_create(rt, &graph, &error));
    TRY(muster_graph_fill(graph, y, 0, COUNT * sizeof(float), 0x3f800000 /* 1.0f */, 4, &jobs[0], &error));
    TRY(add_sharded(graph, iota, iota_args, LENGTH(iota_args), &jobs[1], &error));
    TRY(add_sharded(graph, saxpy, saxpy_args, LENGTH(saxpy_args), &jobs[2], &error));
    TRY(add_sharded(graph, total, total_args, LENGTH(total_args), &jobs[3], &error));

    TRY(muster_submit(rt, graph, &run, &error));
    TRY(muster_run_wait(run, MUSTER_FOREVER, &error));

    static const char *const what[] = {"fill y with 1", "x = 0, 1, 2, ...", "y = 2 x + y", "sum += y"};
    for (size_t i = 0; i < LENGTH(jobs); i++) {
        muster_job_result result = {.struct_size = sizeof result};
        TRY(muster_run_job_result(run, jobs[i], &result, &error));
        printf("job %u: %-16s  %u shard%s, from device %d\n", jobs[i], what[i], result.shards,
               result.shards == 1 ? "" : "s", result.device);
    }

    /* The CPU's answer: y[i] = 2 i + 1, and the first n odd numbers add up to n squared. */
    int wrong = 0;
    TRY(muster_buffer_acquire(y, 0, COUNT * sizeof(float), MUSTER_READ, MUSTER_FOREVER, &memory, &error));
    for (int i = 0; i < COUNT; i++) wrong += ((float *)memory)[i] != 2.0f * (float)i + 1.0f;
    TRY(muster_buffer_release(y, memory, &error));
    TRY(muster_buffer_acquire(sum, 0, sizeof(double), MUSTER_READ, MUSTER_FOREVER, &memory, &error));
    double value = *(double *)memory;
    TRY(muster_buffer_release(sum, memory, &error));

    printf("sum of y: %.0f, expected %.0f; %d of %d elements of y are wrong\n", value, (double)COUNT * COUNT, wrong,
           COUNT);
    return wrong || value != (double)COUNT * COUNT;
}

int main(int argc, char **argv) {
    example_options options = {.name = "quickstart"};
    for (int i = 1; i < argc; i++) {
        example_parsed parsed = example_option(&options, argc, argv, &i);
        if (parsed == EXAMPLE_NOT_MINE)
            fprintf(stderr,
                    "quickstart: unknown option %s\nusage: quickstart [--driver cuda|sim|auto] [--devices N] [--actors "
                    "N]\n",
                    argv[i]);
        if (parsed != EXAMPLE_TAKEN) return 2;
    }
    muster_runtime *rt = example_runtime_create(&options);
    if (!rt) return 1;
    int failed = quickstart(rt);
    muster_error error;
    if (muster_runtime_destroy(rt, MUSTER_FOREVER, &error) != MUSTER_OK)
        example_complain("quickstart", "cannot stop Muster", &error), failed = 1;
    return failed;
}
