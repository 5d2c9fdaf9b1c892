/* One dispatch over a table that is larger than the memory of all devices together: it runs in waves. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/07_out_of_core/kernels_ptx.h"
#include "examples/common/example.h"
#include "muster.h"

enum { BLOCK = 256, SLICE_WORDS = 8192, SLICE_BYTES = SLICE_WORDS * sizeof(uint64_t) };

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])
#define TRY(call)                                                                                                      \
    if ((call) != MUSTER_OK) return example_complain("out_of_core", #call, &error), 1

static uint64_t word_at(uint64_t i) { return i * 3; }

/* As the kernel does it. */
static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* What the waves were, and how much went each way. */
static int report(const muster_runtime *rt, uint64_t bytes, double seconds) {
    muster_error error;
    uint64_t up = 0, home = 0, waves = 0;
    for (int d = 0; d < muster_device_count(rt); d++) {
        muster_device_stats stats = {.struct_size = sizeof stats};
        TRY(muster_device_get_stats(rt, d, &stats, &error));
        up += stats.bytes_to_device, home += stats.bytes_to_host, waves += stats.waves;
        fprintf(stderr, "out_of_core: device %d: %" PRIu64 " waves, %" PRIu64 " MiB up, %" PRIu64 " MiB home\n", d,
                stats.waves, stats.bytes_to_device >> 20, stats.bytes_to_host >> 20);
    }
    printf("%" PRIu64 " waves; %" PRIu64 " MiB up and %" PRIu64 " MiB home\n", waves, up >> 20, home >> 20);
    fprintf(stderr, "out_of_core: %.2f s, %.1f GB/s each way\n", seconds, (double)bytes / seconds * 1e-9);
    return 0;
}

static int check(muster_buffer *table, muster_buffer *checksum, uint64_t count) {
    muster_error error;
    void *memory;
    uint64_t wrong = 0, expected = 0, found;
    TRY(muster_buffer_acquire(table, 0, 0, MUSTER_READ, MUSTER_FOREVER, &memory, &error));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t word = mixed(word_at(i) + i);
        wrong += ((uint64_t *)memory)[i] != word;
        expected += word;
    }
    TRY(muster_buffer_release(table, memory, &error));
    TRY(muster_buffer_acquire(checksum, 0, 0, MUSTER_READ, MUSTER_FOREVER, &memory, &error));
    found = *(uint64_t *)memory;
    TRY(muster_buffer_release(checksum, memory, &error));
    printf("checksum %016" PRIx64 ", expected %016" PRIx64 "; %" PRIu64 " of %" PRIu64 " words are wrong\n", found,
           expected, wrong, count);
    return wrong || found != expected;
}

static int out_of_core(muster_runtime *rt, uint64_t *words, uint64_t count, int pinned) {
    muster_error error;
    muster_program *program;
    muster_kernel *mix;
    muster_buffer *table, *checksum;
    muster_graph *graph;
    muster_run *run;
    uint64_t bytes = count * sizeof *words;

    if (pinned) TRY(muster_host_register(rt, words, bytes, &error));
    TRY(muster_program_from_ptx(rt, kernels_ptx, 0, "out_of_core", &program, &error));
    TRY(muster_program_kernel(program, "mix", &mix, &error));
    TRY(muster_buffer_create(rt, bytes, words, &table, &error));
    TRY(muster_buffer_create(rt, sizeof(uint64_t), NULL, &checksum, &error));

    /* Nothing here says that the table is too large: each wave is a shard like any other, and waves of one device share a sum. */
    muster_arg args[] = {muster_block_cut(muster_buffer_arg(table, MUSTER_READ_WRITE), SLICE_BYTES),
                         muster_shard_offset_arg(SLICE_WORDS, count, 8), muster_shard_count_arg(SLICE_WORDS, count, 8),
                         muster_sum_arg(checksum, MUSTER_U64)};
    muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                .kernel = mix,
                                .grid.x = (uint32_t)((count + SLICE_WORDS - 1) / SLICE_WORDS),
                                .block.x = BLOCK,
                                .flags = MUSTER_DISPATCH_SHARDED,
                                .arg_count = LENGTH(args),
                                .args = args};
    TRY(muster_graph_create(rt, &graph, &error));
    TRY(muster_graph_dispatch(graph, &dispatch, NULL, &error));
    TRY(muster_graph_read_back(graph, table, 0, 0, NULL, &error)); /* what the last waves left on the devices */

    double start = example_now();
    TRY(muster_submit(rt, graph, &run, &error));
    TRY(muster_run_wait(run, MUSTER_FOREVER, &error));
    if (report(rt, bytes, example_now() - start)) return 1;
    return check(table, checksum, count);
}

int main(int argc, char **argv) {
    uint64_t bytes = 256 << 20;
    const char *memory = "pageable";
    example_options options = {.name = "out_of_core",
                               .usage =
                                   "  --bytes N               the size of the table (256M)\n"
                                   "  --budget N              what each device may use of its memory (32M)\n"
                                   "  --memory pageable|pinned  of the table on the host (pageable)\n",
                               .budget_bytes = 32 << 20};
    const example_setting settings[] = {{"--bytes", 8, UINT64_C(1) << 46, .number = &bytes},
                                        {"--budget", 1, UINT64_C(1) << 46, .number = &options.budget_bytes},
                                        {"--memory", .text = &memory}};
    example_parse(&options, settings, LENGTH(settings), argc, argv);
    if (strcmp(memory, "pageable") != 0 && strcmp(memory, "pinned") != 0)
        return fprintf(stderr, "out_of_core: --memory %s: expected pageable or pinned\n", memory), 2;

    uint64_t count = bytes / sizeof(uint64_t), *words = malloc(bytes);
    if (!words) return fprintf(stderr, "out_of_core: no memory for the table\n"), 1;
    for (uint64_t i = 0; i < count; i++) words[i] = word_at(i);
    muster_runtime *rt = example_runtime_create(&options);
    int failed = !rt || out_of_core(rt, words, count, strcmp(memory, "pinned") == 0);
    if (rt) failed |= example_runtime_destroy(&options, rt);
    free(words);
    return failed;
}
