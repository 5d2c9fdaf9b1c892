/* Four actors on one real GPU: content that goes from one to the next, and a dispatch that is cut over them, against the CPU.
 * Skipped, visibly, where there is no driver or device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/callbacks.h"

enum { ACTORS = 4, BUFFERS = 6, STEPS = 240, WORDS = 1 << 20, BYTES = 4 * WORDS };

static fixture the_fixture;

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    return *state ^= *state << 5;
}

static void the_actors_are_on_one_device(void **state) {
    (void)state;
    muster_device_info first = {.struct_size = sizeof first};
    OK(muster_device_get_info(the_fixture.runtime, 0, &first, &reported));
    assert_int_equal(muster_device_count(the_fixture.runtime), ACTORS);
    assert_true(first.budget_bytes <= first.memory_bytes * 9 / 10 / ACTORS);
    for (int d = 1; d < ACTORS; d++) {
        muster_device_info info = {.struct_size = sizeof info};
        OK(muster_device_get_info(the_fixture.runtime, d, &info, &reported));
        assert_memory_equal(info.uuid, first.uuid, 16);
        assert_int_equal(info.share_index, d);
        assert_int_equal(info.share_count, ACTORS);
    }
}

/* Random steps of several chains that meet: buffer a becomes a * 3 + t on some actor, or a copy of another. */
static void content_goes_from_actor_to_actor(void **state) {
    (void)state;
    fixture *f = &the_fixture;
    muster_buffer *buffers[BUFFERS];
    uint32_t expected[BUFFERS] = {0}, random = 7, *words = malloc(BYTES);
    muster_graph *graph = fixture_graph(f);
    assert_non_null(words);
    for (int b = 0; b < BUFFERS; b++) buffers[b] = fixture_buffer(f, BYTES, NULL);
    uint64_t copies = 0, home = 0;
    for (int d = 0; d < ACTORS; d++) home += stats_of(f, d).bytes_to_host;
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t b = next_random(&random) % BUFFERS, from = (b + 1) % BUFFERS;
        if (step % 8 == 7) {
            OK(muster_graph_copy(graph, buffers[b], 0, buffers[from], 0, BYTES, NULL, &reported));
            expected[b] = expected[from];
        } else {
            add_affine_on(f, graph, buffers[b], (int)(next_random(&random) % ACTORS), 3, step);
            expected[b] = 3 * expected[b] + step;
        }
    }
    fixture_run(f, graph);
    for (int d = 0; d < ACTORS; d++) {
        muster_device_stats stats = stats_of(f, d);
        assert_true(stats.launches > 0);
        copies += stats.peer_copies;
        home -= stats.bytes_to_host;
    }
    assert_true(copies > BUFFERS);
    assert_int_equal(home, 0); /* nothing went by way of the host */
    for (int b = 0; b < BUFFERS; b++) {
        fixture_read(buffers[b], 0, BYTES, words);
        for (uint32_t i = 0; i < WORDS; i++)
            if (words[i] != expected[b]) fail_msg("buffer %d word %u is %u, not %u", b, i, words[i], expected[b]);
        muster_buffer_destroy(buffers[b]);
    }
    muster_graph_destroy(graph);
    free(words);
}

/* Each round is cut over the actors, then one of them has the whole. */
static void a_cut_dispatch_meets_on_one_actor(void **state) {
    (void)state;
    enum { ROUNDS = 6, SLICE = 4 * 256 };
    fixture *f = &the_fixture;
    muster_buffer *buffer = fixture_buffer(f, BYTES, NULL);
    muster_graph *graph = fixture_graph(f);
    uint32_t expected = 0, *words = malloc(BYTES);
    assert_non_null(words);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(f, "affine"), WORDS / 256, 256,
                             ARGS(muster_block_cut(muster_buffer_arg(buffer, MUSTER_READ_WRITE), SLICE),
                                  muster_u32_arg(5), muster_u32_arg(round), muster_shard_count_arg(256, WORDS, 4)));
        dispatch.flags = MUSTER_DISPATCH_SHARDED;
        fixture_add(graph, &dispatch);
        add_affine_on(f, graph, buffer, (int)(round % ACTORS), 7, 1);
        expected = (expected * 5 + round) * 7 + 1;
    }
    muster_run *run = fixture_submit(f, graph);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, 0).shards, ACTORS);
    muster_run_destroy(run);
    fixture_read(buffer, 0, BYTES, words);
    for (uint32_t i = 0; i < WORDS; i++)
        if (words[i] != expected) fail_msg("word %u is %u, not %u", i, words[i], expected);
    muster_buffer_destroy(buffer);
    muster_graph_destroy(graph);
    free(words);
}

int main(void) {
    const muster_config config = {
        .struct_size = sizeof config, .driver = "cuda", .device_count = 1, .actors_per_device = ACTORS};
    muster_error error;
    muster_status status = muster_runtime_create(&config, &the_fixture.runtime, &error);
    if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) {
        fprintf(stderr, "SKIPPED: %s\n", error.message);
        return 0;
    }
    if (!status)
        status = muster_program_from_ptx(the_fixture.runtime, test_kernels_ptx, 0, "test kernels", &the_fixture.program,
                                         &error);
    if (status) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_actors_are_on_one_device),
        cmocka_unit_test(content_goes_from_actor_to_actor),
        cmocka_unit_test(a_cut_dispatch_meets_on_one_actor),
    };
    int failed = cmocka_run_group_tests_name("actors of one GPU", tests, NULL, NULL);
    return muster_runtime_destroy(the_fixture.runtime, fixture_wait_ns, NULL) ? 1 : failed;
}
