/* How does work scale over the devices of a machine, and what does crossing from one to another cost?
 *
 *     scaling_bench [--ms T] [--mib M] [--jobs N] [--hops H] [--rows R] [--width W] [--steps S] [options of bench.h]
 *
 * On all devices, against one and against the bare driver, which gets the same split by hand:
 *     compute    a sharded dispatch of T (20) ms of arithmetic, built each time
 *     transfer   a sharded dispatch over pinned host memory, M (256) and 4 M MiB for each device, that the host has just written
 *     uneven     the first with a background kernel on device 0, by turns: how close the shards' sizes come to the speeds
 *     jobs       N (20,000) empty jobs on each device: graphs that exist, all submitted by one thread, and built by a thread each
 *     copies     content of M MiB, 4 M MiB and 4 KiB from device 0 to each other one
 *     chain      H (1,000) empty jobs, each on the next device and after the one before
 *     stencil    S (50) steps over R x W (16384 x 16384) elements, cut in rows with a halo of one
 * Medians of wall clock over R runs. With fewer than two devices there is less to see; with --actors on one GPU everything runs, and
 * nothing is judged, for they share it. */
#include <stdio.h>

#include "tests/bench/scaling.h"

int main(int argc, char **argv) {
    bench bench = {.driver = "cuda"};
    scaling scaling = {.bench = &bench,
                       .milliseconds = 20,
                       .mib = 256,
                       .jobs = 20000,
                       .hops = 1000,
                       .rows = 16384,
                       .width = 16384,
                       .steps = 50};
    const bench_option options[] = {{"--ms", &scaling.milliseconds}, {"--mib", &scaling.mib},
                                    {"--jobs", &scaling.jobs},       {"--hops", &scaling.hops},
                                    {"--rows", &scaling.rows},       {"--width", &scaling.width},
                                    {"--steps", &scaling.steps}};
    bench_parse(&bench, argc, argv, 9, options, sizeof options / sizeof options[0]);
    if (bench.quick) {
        scaling.milliseconds = 1, scaling.mib = 1, scaling.jobs = 500, scaling.hops = 100;
        scaling.rows = scaling.width = 256, scaling.steps = 6;
    }
    scaling.steps += scaling.steps % 2; /* the content ends where it began */
    if (scaling.rows < 64) {
        fprintf(stderr, "--rows is at least 64\n");
        return 2;
    }
    bench_open(&bench, NULL, "scaling");
    if (bench.raw_count < 2 || bench.actors > 1) bench.report.unjudged = true;
    scaling_compute(&scaling);
    scaling_transfer(&scaling);
    scaling_uneven(&scaling);
    scaling_jobs(&scaling);
    scaling_copies(&scaling);
    scaling_chain(&scaling);
    scaling_stencil(&scaling);
    bench_close(&bench);
    return 0;
}
