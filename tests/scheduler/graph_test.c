/* Building graphs: what is refused and how, and the order of jobs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/scheduler/fixture.h"

static fixture four;

static int open_four(void **state) {
    (void)state;
    fixture_open(&four, 4);
    return 0;
}

static int close_four(void **state) {
    (void)state;
    fixture_close(&four);
    return 0;
}

typedef struct subject {
    muster_graph *graph;
    muster_buffer *big, *small; /* 4096 and 100 bytes */
    muster_job next;
} subject;

static subject open_subject(void) {
    return (subject){fixture_graph(&four), fixture_buffer(&four, 4096, NULL), fixture_buffer(&four, 100, NULL), 0};
}

/* Every refused call must have left the graph as it was: the next job gets the next id, and in the end it runs. */
static void close_subject(subject *subject) {
    fixture_run(&four, subject->graph);
    muster_graph_destroy(subject->graph);
    muster_buffer_destroy(subject->big);
    muster_buffer_destroy(subject->small);
}

static void nothing_was_added(subject *subject) {
    muster_job job = MUSTER_NO_JOB;
    OK(muster_graph_fill(subject->graph, subject->small, 0, 4, 1, 4, &job, &reported));
    assert_int_equal(job, subject->next++);
}

static void refused(subject *subject, muster_status status, const char *words, const muster_dispatch *dispatch) {
    muster_job job = 1234567;
    FAILS(status, words, muster_graph_dispatch(subject->graph, dispatch, &job, &reported));
    assert_int_equal(job, 1234567);
    nothing_was_added(subject);
}

/* A dispatch that is right; the tests make one thing wrong in it. mix32(out, in0, scalar, offset, count). */
typedef struct right {
    muster_dispatch dispatch;
    muster_arg arg[5];
} right;

static void make_right(subject *subject, right *right) {
    right->arg[0] = muster_range_arg(subject->big, MUSTER_WRITE, 0, 1024);
    right->arg[1] = muster_range_arg(subject->big, MUSTER_READ, 2048, 1024);
    right->arg[2] = muster_u32_arg(7);
    right->arg[3] = muster_shard_offset_arg(64, 256, 4);
    right->arg[4] = muster_shard_count_arg(64, 256, 4);
    right->dispatch = fixture_dispatch(fixture_kernel(&four, "mix32"), 4, 64, (fixture_args){right->arg, 5});
}

static void the_right_one_is_accepted(void **state) {
    (void)state;
    subject subject = open_subject();
    right right;
    make_right(&subject, &right);
    assert_int_equal(fixture_add(subject.graph, &right.dispatch), 0);
    OK(muster_graph_dispatch(subject.graph, &right.dispatch, NULL, &reported)); /* nobody wants the id */
    close_subject(&subject);
}

static void geometry_is_checked_with_numbers(void **state) {
    (void)state;
    subject subject = open_subject();
    right right;
    muster_device_info info = {.struct_size = sizeof info};
    OK(muster_device_get_info(four.runtime, 0, &info, &reported));
    char words[64];
    make_right(&subject, &right);
    right.dispatch.grid.x = 0;
    refused(&subject, MUSTER_INVALID_GEOMETRY, "grid|0", &right.dispatch);
    make_right(&subject, &right);
    right.dispatch.block.x = 0;
    refused(&subject, MUSTER_INVALID_GEOMETRY, "block|0", &right.dispatch);
    make_right(&subject, &right);
    right.dispatch.block = (muster_dim3){65536, 65536, 2};
    refused(&subject, MUSTER_INVALID_GEOMETRY, "65536", &right.dispatch);
    make_right(&subject, &right);
    right.dispatch.block = (muster_dim3){(uint32_t)info.max_threads_per_block, 2, 1};
    snprintf(words, sizeof words, "%d|%d", 2 * info.max_threads_per_block, info.max_threads_per_block);
    refused(&subject, MUSTER_INVALID_GEOMETRY, words, &right.dispatch);
    make_right(&subject, &right);
    right.dispatch.block = (muster_dim3){1, 1, (uint32_t)info.max_block[2] + 1};
    snprintf(words, sizeof words, "%d|%d", info.max_block[2] + 1, info.max_block[2]);
    refused(&subject, MUSTER_INVALID_GEOMETRY, words, &right.dispatch);
    make_right(&subject, &right);
    right.dispatch.grid = (muster_dim3){1, (uint32_t)info.max_grid[1] + 1, 1};
    snprintf(words, sizeof words, "%d|%d", info.max_grid[1] + 1, info.max_grid[1]);
    refused(&subject, MUSTER_INVALID_GEOMETRY, words, &right.dispatch);
    make_right(&subject, &right);
    right.dispatch.dynamic_shared_bytes = (uint32_t)info.max_shared_optin_bytes + 1;
    snprintf(words, sizeof words, "%d|%d", info.max_shared_optin_bytes + 1, info.max_shared_optin_bytes);
    refused(&subject, MUSTER_INVALID_GEOMETRY, words, &right.dispatch);
    close_subject(&subject);
}

static void arguments_must_match_the_parameters(void **state) {
    (void)state;
    subject subject = open_subject();
    right right;
    make_right(&subject, &right);
    right.dispatch.arg_count = 4;
    refused(&subject, MUSTER_ARGUMENT_MISMATCH, "mix32|5|4", &right.dispatch);
    right.dispatch.arg_count = 0;
    refused(&subject, MUSTER_ARGUMENT_MISMATCH, "mix32|5|0", &right.dispatch);
    make_right(&subject, &right);
    right.arg[2] = muster_u64_arg(7);
    refused(&subject, MUSTER_ARGUMENT_MISMATCH, "mix32|2|4|8", &right.dispatch);
    make_right(&subject, &right);
    right.arg[4] = muster_shard_count_arg(64, 256, 8);
    refused(&subject, MUSTER_ARGUMENT_MISMATCH, "mix32|4|8", &right.dispatch);
    make_right(&subject, &right);
    right.arg[2] = muster_buffer_arg(subject.small, MUSTER_READ);
    refused(&subject, MUSTER_ARGUMENT_MISMATCH, "mix32|2|4|8", &right.dispatch);
    make_right(&subject, &right);
    right.arg[2].kind = (muster_arg_kind)9;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "2|9", &right.dispatch);
    make_right(&subject, &right);
    right.arg[0].access = (muster_access)7;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "0|7", &right.dispatch);
    make_right(&subject, &right);
    right.arg[4].value_bytes = 3;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "4|3", &right.dispatch);
    make_right(&subject, &right);
    right.arg[2].value_bytes = 0;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "2", &right.dispatch);
    close_subject(&subject);
}

static void ranges_must_lie_in_their_buffers(void **state) {
    (void)state;
    subject subject = open_subject();
    right right;
    make_right(&subject, &right);
    right.arg[0] = muster_range_arg(subject.big, MUSTER_WRITE, 4000, 97);
    refused(&subject, MUSTER_OUT_OF_RANGE, "0|4000|97|4096", &right.dispatch);
    right.arg[0] = muster_range_arg(subject.big, MUSTER_WRITE, UINT64_MAX - 1, 4);
    refused(&subject, MUSTER_OUT_OF_RANGE, "4096", &right.dispatch);
    right.arg[0] = muster_range_arg(subject.big, MUSTER_WRITE, 4, UINT64_MAX - 2);
    refused(&subject, MUSTER_OUT_OF_RANGE, "4096", &right.dispatch);
    right.arg[0] = muster_range_arg(subject.big, MUSTER_WRITE, 4096, 0); /* to the end: nothing */
    refused(&subject, MUSTER_OUT_OF_RANGE, "4096", &right.dispatch);
    close_subject(&subject);
}

static void written_ranges_of_a_job_must_not_overlap(void **state) {
    (void)state;
    subject subject = open_subject();
    right right;
    make_right(&subject, &right);
    right.arg[1] = muster_range_arg(subject.big, MUSTER_READ, 1020, 1024); /* four bytes of the output */
    refused(&subject, MUSTER_INVALID_ARGUMENT, "0|1", &right.dispatch);
    right.arg[1] = muster_range_arg(subject.big, MUSTER_READ, 1024, 1024); /* next to it */
    subject.next++;
    fixture_add(subject.graph, &right.dispatch);
    right.arg[0].access = MUSTER_READ; /* both only read: they may overlap */
    right.arg[1] = muster_range_arg(subject.big, MUSTER_READ, 0, 1024);
    OK(muster_graph_dispatch(subject.graph, &right.dispatch, NULL, &reported));
    close_subject(&subject);
}

static void the_descriptor_is_checked(void **state) {
    (void)state;
    subject subject = open_subject();
    right right;
    make_right(&subject, &right);
    right.dispatch.struct_size = 8;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "struct_size", &right.dispatch);
    make_right(&subject, &right);
    right.dispatch.flags = 1u << 17;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "flags", &right.dispatch);
    make_right(&subject, &right);
    right.dispatch.kernel = NULL;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "kernel", &right.dispatch);
    make_right(&subject, &right);
    right.dispatch.args = NULL;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "args", &right.dispatch);
    make_right(&subject, &right);
    right.dispatch.pin_device = 1;
    right.dispatch.device = 4;
    refused(&subject, MUSTER_OUT_OF_RANGE, "4", &right.dispatch);
    right.dispatch.device = -1;
    refused(&subject, MUSTER_OUT_OF_RANGE, "-1", &right.dispatch);
    make_right(&subject, &right);
    right.dispatch.after_count = 1;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "after", &right.dispatch);
    right.dispatch.after = (const muster_job[]){5000};
    refused(&subject, MUSTER_OUT_OF_RANGE, "5000", &right.dispatch);
    refused(&subject, MUSTER_INVALID_ARGUMENT, "dispatch", NULL);
    close_subject(&subject);
}

static void cuts_are_checked(void **state) {
    (void)state;
    subject subject = open_subject();
    right right;
    make_right(&subject, &right);
    right.dispatch.flags = MUSTER_DISPATCH_SHARDED;
    right.arg[1] = muster_block_cut(right.arg[1], 256);
    refused(&subject, MUSTER_UNCUTTABLE, "0|1024", &right.dispatch); /* the output is replicated */
    right.arg[0] = muster_block_cut(right.arg[0], 342);              /* 3 * 342 > 1024: the fourth slice is empty */
    refused(&subject, MUSTER_BUFFER_TOO_SMALL, "0|1024|4|342", &right.dispatch);
    right.arg[0] = muster_block_cut(right.arg[0], 0);
    refused(&subject, MUSTER_INVALID_ARGUMENT, "0|slice_bytes", &right.dispatch);
    right.arg[0] = muster_block_cut(right.arg[0], UINT64_MAX / 2);
    refused(&subject, MUSTER_BUFFER_TOO_SMALL, "0|1024", &right.dispatch);
    right.arg[0] = muster_block_cut(right.arg[0], 256);
    right.dispatch.shard_axis = 3;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "shard_axis|3", &right.dispatch);
    right.dispatch.shard_axis = 0;
    right.dispatch.pin_device = 1;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "pin", &right.dispatch);
    right.dispatch.pin_device = 0;
    right.dispatch.flags |= MUSTER_DISPATCH_COOPERATIVE;
    refused(&subject, MUSTER_UNCUTTABLE, "cooperative", &right.dispatch);
    right.dispatch.flags = MUSTER_DISPATCH_SHARDED;
    right.arg[0].cut = (muster_cut)5;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "0|5", &right.dispatch);
    right.arg[0].cut = MUSTER_CUT_REDUCE;
    right.arg[0].slice_bytes = 0;
    right.arg[0].access = MUSTER_READ_WRITE;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "0|type", &right.dispatch);
    right.arg[0].type = MUSTER_F64;
    right.arg[0].bytes = 1020;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "0|1020|8", &right.dispatch);
    right.arg[0].bytes = 1024;
    right.arg[0].access = MUSTER_WRITE;
    refused(&subject, MUSTER_INVALID_ARGUMENT, "0|READ_WRITE", &right.dispatch);
    close_subject(&subject);
}

static void a_cooperative_grid_must_be_resident(void **state) {
    (void)state;
    subject subject = open_subject();
    right right;
    make_right(&subject, &right);
    right.dispatch.flags = MUSTER_DISPATCH_COOPERATIVE;
    right.dispatch.grid.x = 1000000;
    refused(&subject, MUSTER_COOPERATIVE_TOO_LARGE, "1000000", &right.dispatch);
    right.dispatch.grid.x = 4;
    OK(muster_graph_dispatch(subject.graph, &right.dispatch, NULL, &reported));
    close_subject(&subject);
}

static void copies_are_checked(void **state) {
    (void)state;
    subject subject = open_subject();
    muster_job job = 77;
    FAILS(MUSTER_OUT_OF_RANGE, "4000|200|4096",
          muster_graph_copy(subject.graph, subject.big, 4000, subject.big, 0, 200, &job, &reported));
    nothing_was_added(&subject);
    FAILS(MUSTER_OUT_OF_RANGE, "50|60|100",
          muster_graph_copy(subject.graph, subject.big, 0, subject.small, 50, 60, &job, &reported));
    nothing_was_added(&subject);
    FAILS(MUSTER_OUT_OF_RANGE, "",
          muster_graph_copy(subject.graph, subject.big, UINT64_MAX, subject.small, 0, 2, &job, &reported));
    nothing_was_added(&subject);
    FAILS(MUSTER_INVALID_ARGUMENT, "overlap",
          muster_graph_copy(subject.graph, subject.big, 100, subject.big, 0, 101, &job, &reported));
    nothing_was_added(&subject);
    assert_int_equal(job, 77);
    OK(muster_graph_copy(subject.graph, subject.big, 100, subject.big, 0, 100, &job, &reported));
    assert_int_equal(job, subject.next++);
    OK(muster_graph_copy(subject.graph, subject.big, 0, subject.big, 0, 0, &job, &reported));
    assert_int_equal(job, subject.next++);
    OK(muster_graph_copy(subject.graph, subject.big, 4096, subject.small, 100, 0, &job, &reported));
    assert_int_equal(job, subject.next++);
    close_subject(&subject);
}

static void fills_are_checked(void **state) {
    (void)state;
    subject subject = open_subject();
    muster_job job = 77;
    FAILS(MUSTER_INVALID_ARGUMENT, "3", muster_graph_fill(subject.graph, subject.big, 0, 9, 0, 3, &job, &reported));
    nothing_was_added(&subject);
    FAILS(MUSTER_INVALID_ARGUMENT, "2|4", muster_graph_fill(subject.graph, subject.big, 2, 8, 0, 4, &job, &reported));
    nothing_was_added(&subject);
    FAILS(MUSTER_INVALID_ARGUMENT, "7|2", muster_graph_fill(subject.graph, subject.big, 2, 7, 0, 2, &job, &reported));
    nothing_was_added(&subject);
    FAILS(MUSTER_OUT_OF_RANGE, "96|8|100",
          muster_graph_fill(subject.graph, subject.small, 96, 8, 0, 4, &job, &reported));
    nothing_was_added(&subject);
    assert_int_equal(job, 77);
    close_subject(&subject);
}

static void an_odd_fill_writes_exactly_its_range(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&four, 64, NULL);
    muster_graph *graph = fixture_graph(&four);
    OK(muster_graph_fill(graph, buffer, 0, 64, 0x11, 1, NULL, &reported));
    OK(muster_graph_fill(graph, buffer, 3, 5, 0xab, 1, NULL, &reported));
    OK(muster_graph_fill(graph, buffer, 10, 6, 0xbbaa, 2, NULL, &reported));
    OK(muster_graph_fill(graph, buffer, 20, 8, 0x04030201, 4, NULL, &reported));
    fixture_run(&four, graph);
    uint8_t seen[64], expected[64];
    memset(expected, 0x11, sizeof expected);
    memset(expected + 3, 0xab, 5);
    memcpy(expected + 10, "\xaa\xbb\xaa\xbb\xaa\xbb", 6);
    memcpy(expected + 20, "\1\2\3\4\1\2\3\4", 8);
    fixture_read(buffer, 0, sizeof seen, seen);
    assert_memory_equal(seen, expected, sizeof seen);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
}

/* ----------------------------------------------------------------------------------------------------------- cycles -- */

static void a_cycle_is_found_at_submit_and_named(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&four, 400, NULL);
    muster_graph *graph = fixture_graph(&four);
    muster_run *run = (muster_run *)&four;
    for (uint32_t i = 0; i < 30; i++)
        OK(muster_graph_fill(graph, buffer, 4 * i, 4, i, 4, NULL, &reported)); /* independent */
    OK(muster_graph_after(graph, 24, 17, &reported));
    OK(muster_graph_after(graph, 17, 29, &reported));
    OK(muster_graph_after(graph, 29, 24, &reported));
    OK(muster_graph_after(graph, 5, 24, &reported)); /* behind the cycle, not on it */
    FAILS(MUSTER_GRAPH_CYCLE, "17|24|29", muster_submit(four.runtime, graph, &run, &reported));
    assert_ptr_equal(run, &four);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
}

static void a_cycle_through_an_inferred_dependency_is_found(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&four, 400, NULL);
    muster_graph *graph = fixture_graph(&four);
    muster_run *run;
    fixture_affine(&four, graph, buffer, 2, 1);
    fixture_affine(&four, graph, buffer, 3, 1); /* after the first: it reads what that one wrote */
    OK(muster_graph_after(graph, 0, 1, &reported));
    FAILS(MUSTER_GRAPH_CYCLE, "0|1", muster_submit(four.runtime, graph, &run, &reported));
    FAILS(MUSTER_GRAPH_CYCLE, "0|1", muster_submit(four.runtime, graph, &run, &reported)); /* and again */
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
}

static void a_job_cannot_follow_itself(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&four, 400, NULL);
    muster_graph *graph = fixture_graph(&four);
    muster_run *run;
    fixture_affine(&four, graph, buffer, 2, 1);
    muster_status status = muster_graph_after(graph, 0, 0, &reported);
    if (status == MUSTER_OK) status = muster_submit(four.runtime, graph, &run, &reported);
    assert_int_equal(status, MUSTER_GRAPH_CYCLE);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
}

static void edges_are_checked(void **state) {
    (void)state;
    subject subject = open_subject();
    nothing_was_added(&subject);
    nothing_was_added(&subject);
    FAILS(MUSTER_OUT_OF_RANGE, "2", muster_graph_after(subject.graph, 2, 0, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "9", muster_graph_after(subject.graph, 0, 9, &reported));
    OK(muster_graph_after(subject.graph, 1, 0, &reported));
    OK(muster_graph_after(subject.graph, 1, 0, &reported)); /* twice is once */
    close_subject(&subject);
}

static void a_submitted_graph_takes_no_more_jobs(void **state) {
    (void)state;
    subject subject = open_subject();
    right right;
    make_right(&subject, &right);
    nothing_was_added(&subject);
    fixture_run(&four, subject.graph);
    FAILS(MUSTER_INVALID_STATE, "", muster_graph_dispatch(subject.graph, &right.dispatch, NULL, &reported));
    FAILS(MUSTER_INVALID_STATE, "", muster_graph_fill(subject.graph, subject.big, 0, 4, 0, 4, NULL, &reported));
    FAILS(MUSTER_INVALID_STATE, "",
          muster_graph_copy(subject.graph, subject.big, 0, subject.small, 0, 4, NULL, &reported));
    FAILS(MUSTER_INVALID_STATE, "", muster_graph_after(subject.graph, 0, 0, &reported));
    close_subject(&subject);
}

static void set_argument_is_checked(void **state) {
    (void)state;
    subject subject = open_subject();
    right right;
    make_right(&subject, &right);
    muster_job job = fixture_add(subject.graph, &right.dispatch);
    subject.next++;
    uint64_t value = 1;
    FAILS(MUSTER_ARGUMENT_MISMATCH, "4|8", muster_graph_set_argument(subject.graph, job, 2, &value, 8, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "5", muster_graph_set_argument(subject.graph, job, 5, &value, 4, &reported));
    FAILS(MUSTER_OUT_OF_RANGE, "7", muster_graph_set_argument(subject.graph, 7, 2, &value, 4, &reported));
    FAILS(MUSTER_ARGUMENT_MISMATCH, "0|is a buffer",
          muster_graph_set_argument(subject.graph, job, 0, &value, 8, &reported));
    FAILS(MUSTER_ARGUMENT_MISMATCH, "0|is a buffer",
          muster_graph_set_argument(subject.graph, job, 0, &value, 0, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "3", muster_graph_set_argument(subject.graph, job, 3, &value, 4, &reported));
    FAILS(MUSTER_INVALID_ARGUMENT, "", muster_graph_set_argument(subject.graph, job, 2, NULL, 4, &reported));
    nothing_was_added(&subject);
    FAILS(MUSTER_INVALID_ARGUMENT, "1", muster_graph_set_argument(subject.graph, 1, 0, &value, 4, &reported));
    OK(muster_graph_set_argument(subject.graph, job, 2, &value, 4, &reported));
    /* A graph without any values, while a run of it is there. */
    muster_graph *without = fixture_graph(&four);
    muster_dispatch nothing = fixture_dispatch(
        fixture_kernel(&four, "nothing"), 1, 1,
        ARGS(muster_buffer_arg(subject.small, MUSTER_READ), muster_buffer_arg(subject.small, MUSTER_READ)));
    fixture_add(without, &nothing);
    muster_run *run = fixture_submit(&four, without);
    FAILS(MUSTER_ARGUMENT_MISMATCH, "a buffer", muster_graph_set_argument(without, 0, 0, &value, 4, &reported));
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    muster_graph_destroy(without);
    nothing.flags = MUSTER_DISPATCH_ITERATED;
    FAILS(MUSTER_INVALID_ARGUMENT, "iterations is 0|MUSTER_DISPATCH_ITERATED",
          muster_graph_dispatch(subject.graph, &nothing, NULL, &reported));
    right.arg[0] = muster_scratch_arg(4096);
    job = fixture_add(subject.graph, &right.dispatch);
    FAILS(MUSTER_ARGUMENT_MISMATCH, "0|is scratch memory",
          muster_graph_set_argument(subject.graph, job, 0, &value, 8, &reported));
    FAILS(MUSTER_ARGUMENT_MISMATCH, "0|is scratch memory",
          muster_graph_set_argument(subject.graph, job, 0, &value, 0, &reported));
    close_subject(&subject);
}

/* ------------------------------------------------------------------------------------------------------------ order -- */

static muster_job affine_on(muster_graph *graph, muster_buffer *buffer, uint32_t factor, uint32_t term, int device) {
    uint32_t words = (uint32_t)(muster_buffer_bytes(buffer) / 4);
    muster_dispatch dispatch =
        fixture_dispatch(fixture_kernel(&four, "affine"), (words + 63) / 64, 64,
                         ARGS(muster_buffer_arg(buffer, MUSTER_READ_WRITE), muster_u32_arg(factor),
                              muster_u32_arg(term), muster_u32_arg(words)));
    dispatch.pin_device = device >= 0;
    dispatch.device = device >= 0 ? device : 0;
    return fixture_add(graph, &dispatch);
}

/* Read after write and write after write: each link of a chain runs on another device than the last, and the links do
 * not commute. */
static void a_chain_over_devices_keeps_its_order(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&four, 4000, NULL);
    muster_graph *graph = fixture_graph(&four);
    uint32_t expected = 0;
    for (uint32_t i = 0; i < 60; i++) {
        affine_on(graph, buffer, 3 + i % 5, i, (int)(i * 7 % 4));
        expected = expected * (3 + i % 5) + i;
    }
    fixture_run(&four, graph);
    assert_int_equal(fixture_word(buffer, 0), expected);
    assert_int_equal(fixture_word(buffer, 999), expected);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
}

/* Write after read: many readers on all devices, then a writer, then readers again. */
static void a_writer_waits_for_all_readers(void **state) {
    (void)state;
    enum { READERS = 12, ROUNDS = 8 };
    muster_buffer *source = fixture_buffer(&four, 4000, NULL), *copy[READERS];
    muster_graph *graph = fixture_graph(&four);
    for (int r = 0; r < READERS; r++) copy[r] = fixture_buffer(&four, 4000, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        for (int r = 0; r < READERS; r++) {
            /* Reads the source on whatever device, behind work of its own. */
            muster_dispatch dispatch =
                fixture_dispatch(fixture_kernel(&four, "affine"), 16, 64,
                                 ARGS(muster_buffer_arg(copy[r], MUSTER_READ_WRITE), muster_u32_arg(10),
                                      muster_u32_arg(0), muster_u32_arg(1000)));
            dispatch.pin_device = 1;
            dispatch.device = r % 4;
            fixture_add(graph, &dispatch);
            OK(muster_graph_copy(graph, copy[r], 4 * (uint64_t)round, source, 4 * (uint64_t)round, 4, NULL, &reported));
        }
        affine_on(graph, source, 1, 1, round % 4);
    }
    fixture_run(&four, graph);
    for (int r = 0; r < READERS; r++)
        for (uint32_t word = 0; word < ROUNDS; word++) {
            /* Word `round` was copied in that round, when the source had grown so often, then multiplied in the rest. */
            uint32_t expected = word;
            for (uint32_t later = word + 1; later < ROUNDS; later++) expected *= 10;
            assert_int_equal(fixture_word(copy[r], word), expected);
        }
    muster_graph_destroy(graph);
    muster_buffer_destroy(source);
    for (int r = 0; r < READERS; r++) muster_buffer_destroy(copy[r]);
}

static bool has_ended(const muster_run *run, muster_job job) {
    muster_job_result result = {.struct_size = sizeof result};
    return muster_run_job_result(run, job, &result, NULL) == MUSTER_OK;
}

/* While device 0 is held, a job on device 1 that must follow a job of device 0 for no other reason than an explicit edge
 * has not run; one on device 2 has. (On device 1 itself an independent job may have got behind the waiting one.) */
static void explicit_edges(bool in_dispatch) {
    muster_buffer *buffer[3];
    muster_graph *graph = fixture_graph(&four);
    for (int b = 0; b < 3; b++) buffer[b] = fixture_buffer(&four, 64, NULL);
    muster_job held = affine_on(graph, buffer[0], 1, 1, 0), follower;
    muster_arg args[4] = {muster_buffer_arg(buffer[1], MUSTER_READ_WRITE), muster_u32_arg(1), muster_u32_arg(1),
                          muster_u32_arg(16)};
    muster_dispatch dispatch = fixture_dispatch(fixture_kernel(&four, "affine"), 1, 16, (fixture_args){args, 4});
    dispatch.pin_device = 1;
    dispatch.device = 1;
    if (in_dispatch) dispatch.after_count = 1;
    dispatch.after = &held;
    follower = fixture_add(graph, &dispatch);
    if (!in_dispatch) OK(muster_graph_after(graph, follower, held, &reported));
    muster_job free_job = affine_on(graph, buffer[2], 1, 1, 2);
    fixture_hold(&four, 0, true);
    muster_run *run = fixture_submit(&four, graph);
    while (!has_ended(run, free_job)) FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 1000000, &reported));
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 5000000, &reported));
    assert_false(has_ended(run, held));
    assert_false(has_ended(run, follower));
    fixture_hold(&four, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    assert_int_equal(fixture_result(run, held).device, 0);
    assert_int_equal(fixture_result(run, follower).device, 1);
    muster_run_destroy(run);
    muster_graph_destroy(graph);
    for (int b = 0; b < 3; b++) muster_buffer_destroy(buffer[b]);
}

static void after_orders_jobs_that_share_nothing(void **state) {
    (void)state;
    explicit_edges(false);
    explicit_edges(true);
}

/* Edges may also point against the order in which jobs were added. */
static void a_later_job_can_go_first(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&four, 64, NULL), *other = fixture_buffer(&four, 64, NULL);
    muster_graph *graph = fixture_graph(&four);
    muster_job early = affine_on(graph, buffer, 1, 1, 0), late = affine_on(graph, other, 1, 1, 1);
    OK(muster_graph_after(graph, early, late, &reported));
    fixture_hold(&four, 1, true);
    muster_run *run = fixture_submit(&four, graph);
    FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 5000000, &reported));
    assert_false(has_ended(run, early));
    fixture_hold(&four, 1, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    muster_run_destroy(run);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
    muster_buffer_destroy(other);
}

/* Disjoint halves of one buffer are independent: the half of a held device does not hold up the other. */
static void disjoint_ranges_are_independent(void **state) {
    (void)state;
    muster_buffer *buffer = fixture_buffer(&four, 8192, NULL);
    muster_graph *graph = fixture_graph(&four);
    muster_job job[2];
    for (int half = 0; half < 2; half++) {
        muster_dispatch dispatch =
            fixture_dispatch(fixture_kernel(&four, "affine"), 16, 64,
                             ARGS(muster_range_arg(buffer, MUSTER_READ_WRITE, 4096 * (uint64_t)half, 4096),
                                  muster_u32_arg(1), muster_u32_arg((uint32_t)half + 1), muster_u32_arg(1024)));
        dispatch.pin_device = 1;
        dispatch.device = half;
        job[half] = fixture_add(graph, &dispatch);
    }
    fixture_hold(&four, 0, true);
    muster_run *run = fixture_submit(&four, graph);
    while (!has_ended(run, job[1])) FAILS(MUSTER_TIMEOUT, "", muster_run_wait(run, 1000000, &reported));
    assert_false(has_ended(run, job[0]));
    fixture_hold(&four, 0, false);
    OK(muster_run_wait(run, fixture_wait_ns, &reported));
    uint32_t words[2048];
    fixture_read(buffer, 0, sizeof words, words);
    for (int i = 0; i < 2048; i++) assert_int_equal(words[i], i < 1024 ? 1 : 2);
    muster_run_destroy(run);
    muster_graph_destroy(graph);
    muster_buffer_destroy(buffer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_right_one_is_accepted),
        cmocka_unit_test(geometry_is_checked_with_numbers),
        cmocka_unit_test(arguments_must_match_the_parameters),
        cmocka_unit_test(ranges_must_lie_in_their_buffers),
        cmocka_unit_test(written_ranges_of_a_job_must_not_overlap),
        cmocka_unit_test(the_descriptor_is_checked),
        cmocka_unit_test(cuts_are_checked),
        cmocka_unit_test(a_cooperative_grid_must_be_resident),
        cmocka_unit_test(copies_are_checked),
        cmocka_unit_test(fills_are_checked),
        cmocka_unit_test(an_odd_fill_writes_exactly_its_range),
        cmocka_unit_test(a_cycle_is_found_at_submit_and_named),
        cmocka_unit_test(a_cycle_through_an_inferred_dependency_is_found),
        cmocka_unit_test(a_job_cannot_follow_itself),
        cmocka_unit_test(edges_are_checked),
        cmocka_unit_test(a_submitted_graph_takes_no_more_jobs),
        cmocka_unit_test(set_argument_is_checked),
        cmocka_unit_test(a_chain_over_devices_keeps_its_order),
        cmocka_unit_test(a_writer_waits_for_all_readers),
        cmocka_unit_test(after_orders_jobs_that_share_nothing),
        cmocka_unit_test(a_later_job_can_go_first),
        cmocka_unit_test(disjoint_ranges_are_independent),
    };
    return cmocka_run_group_tests(tests, open_four, close_four);
}
