/* The wave equation on a grid of cells that is cut over all devices: many steps, each of which needs its neighbours' edges. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/06_stencil/kernels_ptx.h"
#include "examples/06_stencil/scene.h"
#include "examples/common/example.h"
#include "muster.h"

enum { BLOCK = 128, DRIVE = 3 /* the argument that changes from step to step */ };

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])
#define TRY(call)                                                                                                      \
    if ((call) != MUSTER_OK) return example_complain("stencil", #call, &error), 1

typedef struct stencil {
    scene scene;
    uint64_t steps;
    const char *output;
    scene_cell *medium;     /* of each cell */
    float *check[2];        /* the CPU's waves */
    muster_buffer *wave[2]; /* of even and of odd steps */
    muster_graph *graph;    /* two steps: from wave[0] to wave[1], and back */
    muster_job jobs[2];
} stencil;

/* A step from wave[which]. A slice of every array is a row; of the one that is read, a shard has a row more on either side. */
static muster_status add_step(stencil *s, muster_kernel *kernel, muster_buffer *medium, int which,
                              muster_error *error) {
    uint64_t row_bytes = s->scene.width * sizeof(float);
    muster_arg now = muster_buffer_arg(s->wave[which], MUSTER_READ);
    muster_arg wave = muster_buffer_arg(s->wave[!which], MUSTER_READ_WRITE);
    muster_arg args[] = {muster_halo_cut(now, row_bytes, 1, 1),
                         muster_block_cut(wave, row_bytes),
                         muster_block_cut(muster_buffer_arg(medium, MUSTER_READ), 2 * row_bytes),
                         [DRIVE] = muster_f32_arg(0),
                         muster_u32_arg(s->scene.width),
                         muster_u32_arg(s->scene.height),
                         muster_shard_offset_arg(1, s->scene.height, 4)};
    muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                .kernel = kernel,
                                .grid = {(s->scene.width + BLOCK - 1) / BLOCK, s->scene.height, 1},
                                .block.x = BLOCK,
                                .flags = MUSTER_DISPATCH_SHARDED,
                                .shard_axis = 1,
                                .arg_count = LENGTH(args),
                                .args = args};
    return muster_graph_dispatch(s->graph, &dispatch, &s->jobs[which], error);
}

/* Submits the graph once more for steps `step` and `step` + 1, and does not wait: runs over the same buffers come one after the other. */
static int advance(muster_runtime *rt, const stencil *s, uint64_t step, muster_run **run) {
    muster_error error;
    for (int i = 0; i < 2; i++) {
        float drive = scene_drive(&s->scene, step + (uint64_t)i);
        TRY(muster_graph_set_argument(s->graph, s->jobs[i], DRIVE, &drive, sizeof drive, &error));
    }
    muster_run_destroy(*run); /* the one before goes on; if it fails, so does what comes after it */
    *run = NULL;
    TRY(muster_submit(rt, s->graph, run, &error));
    return 0;
}

/* Bytes that all devices together have got from elsewhere, and sent home. */
static int count_bytes(const muster_runtime *rt, uint64_t *from_host, uint64_t *from_peers, uint64_t *home) {
    muster_error error;
    *from_host = *from_peers = *home = 0;
    for (int d = 0; d < muster_device_count(rt); d++) {
        muster_device_stats stats = {.struct_size = sizeof stats};
        TRY(muster_device_get_stats(rt, d, &stats, &error));
        *from_host += stats.bytes_to_device;
        *from_peers += stats.bytes_from_peer;
        *home += stats.bytes_to_host;
    }
    return 0;
}

/* Runs all steps. The first two bring the cells to the devices, where they stay. */
static int simulate(muster_runtime *rt, const stencil *s) {
    muster_error error;
    muster_run *run = NULL;
    muster_job_result result = {.struct_size = sizeof result};
    uint64_t first[3], last[3], edges = 0;
    int before = MUSTER_ANY_DEVICE;
    if (advance(rt, s, 0, &run)) return 1;
    TRY(muster_run_wait(run, MUSTER_FOREVER, &error));
    TRY(muster_run_job_result(run, s->jobs[0], &result, &error));
    for (uint32_t i = 0; i < result.shards; i++) {
        muster_shard_result shard = {.struct_size = sizeof shard};
        TRY(muster_run_shard_result(run, s->jobs[0], i, &shard, &error));
        uint64_t blocks = (s->scene.width + BLOCK - 1) / BLOCK; /* of a row */
        edges += i > 0 && shard.device != before;
        before = shard.device;
        printf("rows %4" PRIu64 " to %4" PRIu64 " on device %d\n", shard.first_block / blocks,
               (shard.first_block + shard.blocks) / blocks - 1, shard.device);
    }
    if (count_bytes(rt, &first[0], &first[1], &first[2])) return 1;
    for (uint64_t step = 2; step < s->steps; step += 2)
        if (advance(rt, s, step, &run)) return 1;
    TRY(muster_run_wait(run, MUSTER_FOREVER, &error));
    muster_run_destroy(run);
    if (count_bytes(rt, &last[0], &last[1], &last[2])) return 1;

    /* A row each way where two devices meet. Those that cannot reach each other send it by way of the host. */
    uint64_t halos = 2 * edges * s->scene.width * sizeof(float), steps = s->steps - 2;
    printf("steps 1 and 2: %" PRIu64 " bytes from the host\n", first[0]);
    printf("each of the %" PRIu64 " after: %" PRIu64 " from the host, %" PRIu64 " from other devices, %" PRIu64
           " home; the halos are %" PRIu64 "\n",
           steps, (last[0] - first[0]) / steps, (last[1] - first[1]) / steps, (last[2] - first[2]) / steps, halos);
    return 0;
}

/* The same on the CPU, cell by cell; and the picture. */
static int check(const stencil *s) {
    muster_error error;
    void *memory;
    uint64_t cells = (uint64_t)s->scene.width * s->scene.height, wrong = 0;
    for (uint64_t step = 0; step < s->steps; step++)
        scene_step(&s->scene, s->check[step % 2], s->check[(step + 1) % 2], s->medium, scene_drive(&s->scene, step));
    TRY(muster_buffer_acquire(s->wave[0], 0, 0, MUSTER_READ, MUSTER_FOREVER, &memory, &error));
    for (uint64_t i = 0; i < cells; i++) wrong += memcmp((float *)memory + i, s->check[0] + i, sizeof(float)) != 0;
    int written = scene_write(&s->scene, memory, s->medium, s->output);
    if (!written) fprintf(stderr, "stencil: %s: %s\n", s->output, strerror(errno));
    TRY(muster_buffer_release(s->wave[0], memory, &error));
    printf("%" PRIu64 " of %" PRIu64 " cells differ from the CPU's\n", wrong, cells);
    return wrong || !written;
}

static int stencil_run(muster_runtime *rt, stencil *s) {
    muster_error error;
    muster_program *program;
    muster_kernel *kernel;
    muster_buffer *medium;
    uint64_t cells = (uint64_t)s->scene.width * s->scene.height;
    TRY(muster_program_from_ptx(rt, kernels_ptx, 0, "stencil", &program, &error));
    TRY(muster_program_kernel(program, "step", &kernel, &error));
    TRY(muster_buffer_create(rt, cells * sizeof *s->medium, s->medium, &medium, &error));
    for (int i = 0; i < 2; i++) TRY(muster_buffer_create(rt, cells * sizeof(float), NULL, &s->wave[i], &error));
    TRY(muster_graph_create(rt, &s->graph, &error));
    for (int i = 0; i < 2; i++) TRY(add_step(s, kernel, medium, i, &error));
    return simulate(rt, s) || check(s);
}

int main(int argc, char **argv) {
    uint64_t width = 384, height = 216;
    stencil s = {.steps = 600, .output = "wave.ppm"};
    const example_setting settings[] = {{"--width", 32, 65536, .number = &width},
                                        {"--height", 32, 65535, .number = &height},
                                        {"--steps", 4, UINT32_MAX, .number = &s.steps},
                                        {"--output", .text = &s.output}};
    example_options options = {.name = "stencil",
                               .usage =
                                   "  --width N, --height N   so many cells (384 and 216)\n"
                                   "  --steps N               so many steps, an even number (600)\n"
                                   "  --output FILE           where the picture goes, a PPM (wave.ppm)\n"};
    example_parse(&options, settings, LENGTH(settings), argc, argv);
    s.scene = (scene){(uint32_t)width, (uint32_t)height};
    s.steps += s.steps % 2;

    s.medium = malloc(width * height * sizeof *s.medium);
    for (int i = 0; i < 2; i++) s.check[i] = calloc(width * height, sizeof(float));
    int failed = !s.medium || !s.check[0] || !s.check[1];
    if (failed) fprintf(stderr, "stencil: out of memory\n");
    muster_runtime *rt = failed ? NULL : example_runtime_create(&options);
    if (rt) {
        scene_fill(&s.scene, s.medium);
        failed = stencil_run(rt, &s);
        failed |= example_runtime_destroy(&options, rt);
    }
    free(s.medium);
    free(s.check[0]);
    free(s.check[1]);
    return failed || !rt;
}
