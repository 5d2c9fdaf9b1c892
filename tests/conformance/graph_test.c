/* Graphs, executable graphs, and capture. */
#include "tests/conformance/conformance.h"

enum { CHAIN = 16 };

static CUdeviceptr words;

static int take_words(void **state) {
    (void)state;
    words = fresh_memory(4096);
    return 0;
}

static int give_words(void **state) {
    (void)state;
    release_memory(words);
    return 0;
}

static void clear_words(void) {
    assert_success(DRIVER->memset_d32_async(words, 0, 1024, DEVICE0->stream));
    assert_success(DRIVER->stream_synchronize(DEVICE0->stream));
}

/* What a node needs until the call that takes it has returned. */
typedef struct node_parameters {
    CUdeviceptr p;
    uint32_t v;
    void *pointers[2];
    CUDA_KERNEL_NODE_PARAMS parameters;
} node_parameters;

static CUDA_KERNEL_NODE_PARAMS *mix_node(node_parameters *node, CUdeviceptr p, uint32_t v) {
    memset(node, 0, sizeof *node);
    node->p = p;
    node->v = v;
    node->pointers[0] = &node->p;
    node->pointers[1] = &node->v;
    node->parameters.func = DEVICE0->mix;
    node->parameters.gridDimX = node->parameters.gridDimY = node->parameters.gridDimZ = 1;
    node->parameters.blockDimX = node->parameters.blockDimY = node->parameters.blockDimZ = 1;
    node->parameters.kernelParams = node->pointers;
    return &node->parameters;
}

typedef struct chain {
    CUgraph graph;
    CUgraphNode nodes[CHAIN];
    CUgraphExec exec;
} chain;

/* A chain of mix(words, i). */
static void make_chain(chain *made) {
    node_parameters node;
    assert_success(DRIVER->graph_create(&made->graph, 0));
    for (uint32_t i = 0; i < CHAIN; i++)
        assert_success(DRIVER->graph_add_kernel_node(&made->nodes[i], made->graph, i ? &made->nodes[i - 1] : NULL,
                                                     i ? 1 : 0, mix_node(&node, words, i)));
    assert_success(DRIVER->graph_instantiate(&made->exec, made->graph, 0));
    assert_success(DRIVER->graph_upload(made->exec, DEVICE0->stream));
}

static void end_chain(chain *made) {
    assert_success(DRIVER->graph_exec_destroy(made->exec));
    assert_success(DRIVER->graph_destroy(made->graph));
}

static void launch(CUgraphExec exec) { assert_success(DRIVER->graph_launch(exec, DEVICE0->stream)); }
static void settle(void) { assert_success(DRIVER->stream_synchronize(DEVICE0->stream)); }

static uint32_t mixed(uint32_t value, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) value = value * 3 + i;
    return value;
}

static void test_a_chain_runs_in_order(void **state) {
    (void)state;
    chain made;
    clear_words();
    make_chain(&made);
    launch(made.exec);
    launch(made.exec);
    settle();
    assert_int_equal(read_word(words), mixed(mixed(0, CHAIN), CHAIN));
    end_chain(&made);
}

static void test_updates_do_not_reach_launches_in_flight(void **state) {
    (void)state;
    enum { ROUNDS = 30 };
    chain made;
    node_parameters node;
    clear_words();
    make_chain(&made);
    gate *held = gate_close(DEVICE0->stream);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < CHAIN; i++)
            assert_success(DRIVER->graph_exec_kernel_node_set_params(
                made.exec, made.nodes[i], mix_node(&node, words + 4 * (round * CHAIN + i), round * 100 + i)));
        launch(made.exec);
    }
    gate_open(held);
    settle();
    uint32_t seen[ROUNDS * CHAIN];
    assert_success(DRIVER->memcpy_dtoh(seen, words, sizeof seen));
    for (uint32_t i = 0; i < ROUNDS * CHAIN; i++) assert_int_equal(seen[i], i / CHAIN * 100 + i % CHAIN);
    end_chain(&made);
}

static void test_a_node_can_change_its_function_and_shape(void **state) {
    (void)state;
    chain made;
    clear_words();
    make_chain(&made);
    uint32_t count = 50;
    CUdeviceptr target = words + 64;
    void *pointers[] = {&target, &count};
    CUDA_KERNEL_NODE_PARAMS number = {.func = DEVICE0->number,
                                      .gridDimX = 2,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 32,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = pointers};
    assert_success(DRIVER->graph_exec_kernel_node_set_params(made.exec, made.nodes[3], &number));
    launch(made.exec);
    settle();
    assert_int_equal(read_word(words + 64 + 4 * 49), 49);
    assert_int_equal(read_word(words + 64 + 4 * 50), 0);
    number.blockDimX = 2048;
    assert_code(DRIVER->graph_exec_kernel_node_set_params(made.exec, made.nodes[3], &number), CUDA_ERROR_INVALID_VALUE);
    end_chain(&made);
}

/* A graph that changes leaves alone what was made of it, and a second one is made of what it is then. */
static void test_an_executable_graph_keeps_what_it_was_made_of(void **state) {
    (void)state;
    chain made;
    CUgraphExec second;
    node_parameters node;
    clear_words();
    make_chain(&made);
    for (int i = 0; i < CHAIN; i++)
        assert_success(DRIVER->graph_kernel_node_set_params(made.nodes[i], mix_node(&node, words + 8, (uint32_t)i)));
    launch(made.exec);
    settle();
    assert_int_equal(read_word(words), mixed(0, CHAIN));
    assert_int_equal(read_word(words + 8), 0);
    assert_success(DRIVER->graph_instantiate(&second, made.graph, 0));
    launch(second);
    settle();
    assert_int_equal(read_word(words), mixed(0, CHAIN));
    assert_int_equal(read_word(words + 8), mixed(0, CHAIN));
    assert_success(DRIVER->graph_exec_destroy(second));
    end_chain(&made);
}

static void test_a_threads_capture_mode_is_exchanged(void **state) {
    (void)state;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    assert_success(DRIVER->thread_exchange_stream_capture_mode(&mode));
    assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    assert_success(DRIVER->thread_exchange_stream_capture_mode(&mode));
    assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    assert_success(DRIVER->thread_exchange_stream_capture_mode(&mode));
    assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

static void test_disabled_nodes_are_passed_over(void **state) {
    (void)state;
    chain made;
    clear_words();
    make_chain(&made);
    for (int i = 5; i < CHAIN; i++) assert_success(DRIVER->graph_node_set_enabled(made.exec, made.nodes[i], 0));
    launch(made.exec);
    settle();
    assert_int_equal(read_word(words), mixed(0, 5));
    for (int i = 5; i < CHAIN; i++) assert_success(DRIVER->graph_node_set_enabled(made.exec, made.nodes[i], 1));
    clear_words();
    launch(made.exec);
    settle();
    assert_int_equal(read_word(words), mixed(0, CHAIN));
    end_chain(&made);
}

/* One root, many branches of two, one end: each branch's second node sees its first. */
static void test_branches_join(void **state) {
    (void)state;
    enum { WIDTH = 20 };
    CUgraph graph;
    CUgraphNode root, first[WIDTH], second[WIDTH], end;
    CUgraphExec exec;
    node_parameters node;
    clear_words();
    assert_success(DRIVER->graph_create(&graph, 0));
    assert_success(DRIVER->graph_add_empty_node(&root, graph, NULL, 0));
    for (uint32_t i = 0; i < WIDTH; i++)
        assert_success(
            DRIVER->graph_add_kernel_node(&first[i], graph, &root, 1, mix_node(&node, words + 4 + 4 * i, i)));
    for (uint32_t i = 0; i < WIDTH; i++)
        assert_success(
            DRIVER->graph_add_kernel_node(&second[i], graph, &first[i], 1, mix_node(&node, words + 4 + 4 * i, 1)));
    assert_success(DRIVER->graph_add_kernel_node(&end, graph, second, WIDTH, mix_node(&node, words, 1)));
    assert_success(DRIVER->graph_instantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) launch(exec);
    settle();
    uint32_t seen[WIDTH + 1];
    assert_success(DRIVER->memcpy_dtoh(seen, words, sizeof seen));
    assert_int_equal(seen[0], 13);
    for (uint32_t i = 0; i < WIDTH; i++) {
        uint32_t value = 0;
        for (int round = 0; round < 3; round++) value = (value * 3 + i) * 3 + 1;
        assert_int_equal(seen[i + 1], value);
    }
    assert_success(DRIVER->graph_exec_destroy(exec));
    assert_success(DRIVER->graph_destroy(graph));
}

static void test_bad_dependencies_are_refused(void **state) {
    (void)state;
    CUgraph graph, other;
    CUgraphNode node, foreign, twice[2];
    assert_success(DRIVER->graph_create(&graph, 0));
    assert_success(DRIVER->graph_create(&other, 0));
    assert_success(DRIVER->graph_add_empty_node(&foreign, other, NULL, 0));
    assert_code(DRIVER->graph_add_empty_node(&node, graph, &foreign, 1), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->graph_add_empty_node(&node, graph, NULL, 1), CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->graph_add_empty_node(&twice[0], graph, NULL, 0));
    twice[1] = twice[0];
    assert_code(DRIVER->graph_add_empty_node(&node, graph, twice, 2), CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->graph_destroy(other));
    assert_success(DRIVER->graph_destroy(graph));
}

/* --------------------------------------------------------------------------------------------------------- edges -- */

static const CUgraphEdgeData launch_order = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER,
                                             .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};

/* Skips where the driver or the device does not have it. */
static void need_launch_order(void) {
    int major = 0;
    assert_success(DRIVER->device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, DEVICE0->device));
    if (DRIVER->graph_add_dependencies && major >= 9) return;
    printf("no programmatic dependencies here\n");
    skip();
}

static void test_edges_are_dependencies(void **state) {
    (void)state;
    chain made;
    node_parameters node;
    if (!DRIVER->graph_add_dependencies) skip();
    clear_words();
    assert_success(DRIVER->graph_create(&made.graph, 0));
    for (uint32_t i = 0; i < CHAIN; i++) /* the last one first */
        assert_success(DRIVER->graph_add_kernel_node(&made.nodes[CHAIN - 1 - i], made.graph, NULL, 0,
                                                     mix_node(&node, words, CHAIN - 1 - i)));
    assert_success(DRIVER->graph_add_dependencies(made.graph, &made.nodes[0], &made.nodes[1], NULL, CHAIN - 1));
    assert_success(DRIVER->graph_add_dependencies(made.graph, NULL, NULL, NULL, 0));
    assert_code(DRIVER->graph_add_dependencies(made.graph, &made.nodes[0], &made.nodes[1], NULL, 1),
                CUDA_ERROR_INVALID_VALUE); /* it is there */
    assert_success(DRIVER->graph_instantiate(&made.exec, made.graph, 0));
    launch(made.exec);
    settle();
    assert_int_equal(read_word(words), mixed(0, CHAIN));
    end_chain(&made);
}

static void test_a_cycle_is_not_instantiated(void **state) {
    (void)state;
    CUgraph graph;
    CUgraphNode nodes[2];
    CUgraphExec exec;
    node_parameters node;
    if (!DRIVER->graph_add_dependencies) skip();
    assert_success(DRIVER->graph_create(&graph, 0));
    for (uint32_t i = 0; i < 2; i++)
        assert_success(DRIVER->graph_add_kernel_node(&nodes[i], graph, nodes, i, mix_node(&node, words, i)));
    CUresult code = DRIVER->graph_add_dependencies(graph, &nodes[1], &nodes[0], NULL, 1);
    if (code == CUDA_SUCCESS) code = DRIVER->graph_instantiate(&exec, graph, 0);
    assert_code(code, CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->graph_destroy(graph));
}

/* Nodes in so many chains of launch order, by position and then by chain: node i is mix(words + i, i). */
typedef struct ordered {
    CUgraph graph;
    CUgraphNode nodes[64];
    CUgraphExec exec;
} ordered;

static void make_ordered(ordered *made, uint32_t count, uint32_t chains) {
    node_parameters node;
    assert_success(DRIVER->graph_create(&made->graph, 0));
    for (uint32_t i = 0; i < count; i++) {
        assert_success(
            DRIVER->graph_add_kernel_node(&made->nodes[i], made->graph, NULL, 0, mix_node(&node, words + 4 * i, i)));
        if (i >= chains)
            assert_success(DRIVER->graph_add_dependencies(made->graph, &made->nodes[i - chains], &made->nodes[i],
                                                          &launch_order, 1));
    }
    assert_success(DRIVER->graph_instantiate(&made->exec, made->graph, 0));
    assert_success(DRIVER->graph_upload(made->exec, DEVICE0->stream));
}

static void end_ordered(ordered *made) {
    assert_success(DRIVER->graph_exec_destroy(made->exec));
    assert_success(DRIVER->graph_destroy(made->graph));
}

/* Each launch of the graph comes after the one before as a whole, and what follows on the stream after all of its kernels. */
static void test_a_graph_of_launch_order_ends_after_all_its_kernels(void **state) {
    (void)state;
    enum { NODES = 64, ROUNDS = 20 };
    static const uint32_t chains[] = {1, 4, 8};
    need_launch_order();
    for (int c = 0; c < 3; c++) {
        ordered made;
        uint32_t seen[NODES];
        clear_words();
        make_ordered(&made, NODES, chains[c]);
        for (int round = 0; round < ROUNDS; round++) launch(made.exec);
        assert_success(launch_copy(DEVICE0, DEVICE0->stream, words + 4 * NODES, words + 4 * (NODES - 1)));
        settle();
        assert_success(DRIVER->memcpy_dtoh(seen, words, sizeof seen));
        for (uint32_t i = 0; i < NODES; i++) {
            uint32_t value = 0;
            for (int round = 0; round < ROUNDS; round++) value = value * 3 + i;
            assert_int_equal(seen[i], value);
        }
        assert_int_equal(read_word(words + 4 * NODES), seen[NODES - 1]);
        end_ordered(&made);
    }
}

/* The long one counts in its own word, for a millisecond on hardware; what follows on the stream copies that. */
static void test_a_long_kernel_among_short_ones_ends_too(void **state) {
    (void)state;
    enum { NODES = 32, COUNT = 2000 };
    need_launch_order();
    for (uint32_t at = 0; at < NODES; at += NODES / 4) {
        ordered made;
        clear_words();
        make_ordered(&made, NODES, 1);
        node_parameters node;
        mix_node(&node, words + 4 * at, COUNT)->func = DEVICE0->count;
        assert_success(DRIVER->graph_exec_kernel_node_set_params(made.exec, made.nodes[at], &node.parameters));
        launch(made.exec);
        assert_success(launch_copy(DEVICE0, DEVICE0->stream, words + 4 * NODES, words + 4 * at));
        settle();
        assert_int_equal(read_word(words + 4 * NODES), COUNT);
        end_ordered(&made);
    }
}

/* Kernels that do not begin the graph, on whatever multiprocessor, read what came before it, not what was there when they read it last. */
static void test_all_kernels_of_launch_order_see_what_came_before(void **state) {
    (void)state;
    enum { NODES = 64, ROUNDS = 200 };
    static const uint32_t chains[] = {1, 8};
    need_launch_order();
    for (int c = 0; c < 2; c++) {
        ordered made;
        uint32_t expected = 0, seen[NODES];
        clear_words();
        make_ordered(&made, NODES, chains[c]);
        for (uint32_t i = 0; i < NODES; i++) {
            CUdeviceptr to = words + 4 + 4 * i;
            void *pointers[] = {&to, &words};
            node_parameters node;
            mix_node(&node, words, 0)->func = DEVICE0->copy;
            node.parameters.kernelParams = pointers;
            assert_success(DRIVER->graph_exec_kernel_node_set_params(made.exec, made.nodes[i], &node.parameters));
        }
        for (uint32_t round = 0; round < ROUNDS; round++) {
            assert_success(launch_mix(DEVICE0, DEVICE0->stream, words, round));
            launch(made.exec);
            settle();
            expected = expected * 3 + round;
            assert_success(DRIVER->memcpy_dtoh(seen, words + 4, sizeof seen));
            for (uint32_t i = 0; i < NODES; i++) assert_int_equal(seen[i], expected);
        }
        end_ordered(&made);
    }
}

static void test_nodes_in_launch_order_can_be_changed(void **state) {
    (void)state;
    enum { NODES = 16, ROUNDS = 10 };
    ordered made;
    node_parameters node;
    need_launch_order();
    clear_words();
    make_ordered(&made, NODES, 2);
    gate *held = gate_close(DEVICE0->stream);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < NODES; i++)
            assert_success(DRIVER->graph_exec_kernel_node_set_params(
                made.exec, made.nodes[i], mix_node(&node, words + 4 * (round * NODES + i), round * 100 + i)));
        launch(made.exec);
    }
    gate_open(held);
    settle();
    uint32_t seen[ROUNDS * NODES];
    assert_success(DRIVER->memcpy_dtoh(seen, words, sizeof seen));
    for (uint32_t i = 0; i < ROUNDS * NODES; i++) assert_int_equal(seen[i], i / NODES * 100 + i % NODES);
    end_ordered(&made);
}

/* A kernel that is switched off is passed over, and the others still end before what follows. */
static void test_nodes_in_launch_order_can_be_switched_off(void **state) {
    (void)state;
    enum { NODES = 16 };
    ordered made;
    need_launch_order();
    for (uint32_t off = 0; off < NODES; off++) {
        uint32_t seen[NODES];
        clear_words();
        make_ordered(&made, NODES, 1);
        assert_success(DRIVER->graph_node_set_enabled(made.exec, made.nodes[off], 0));
        launch(made.exec);
        assert_success(DRIVER->graph_node_set_enabled(made.exec, made.nodes[off], 1));
        launch(made.exec);
        settle();
        assert_success(DRIVER->memcpy_dtoh(seen, words, sizeof seen));
        for (uint32_t i = 0; i < NODES; i++) assert_int_equal(seen[i], i == off ? i : i * 4);
        end_ordered(&made);
    }
}

static void test_bad_edges_are_refused(void **state) {
    (void)state;
    CUgraph graph, other;
    CUgraphNode nodes[2], empty, foreign;
    node_parameters node;
    need_launch_order();
    assert_success(DRIVER->graph_create(&graph, 0));
    assert_success(DRIVER->graph_create(&other, 0));
    for (uint32_t i = 0; i < 2; i++)
        assert_success(DRIVER->graph_add_kernel_node(&nodes[i], graph, NULL, 0, mix_node(&node, words, i)));
    assert_success(DRIVER->graph_add_empty_node(&empty, graph, NULL, 0));
    assert_success(DRIVER->graph_add_empty_node(&foreign, other, NULL, 0));
    CUgraphEdgeData bad[] = {launch_order, launch_order, launch_order, launch_order};
    bad[0].from_port = 3;
    bad[1].to_port = 1;
    bad[2].type = 2;
    bad[3].from_port = CU_GRAPH_KERNEL_NODE_PORT_DEFAULT;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_code(DRIVER->graph_add_dependencies(graph, &nodes[0], &nodes[1], &bad[i], 1), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->graph_add_dependencies(graph, &nodes[0], &empty, &launch_order, 1), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->graph_add_dependencies(graph, &empty, &nodes[0], &launch_order, 1), CUDA_ERROR_INVALID_VALUE);
    assert_code(DRIVER->graph_add_dependencies(graph, &foreign, &nodes[0], NULL, 1), CUDA_ERROR_INVALID_VALUE);
    assert_success(DRIVER->graph_add_dependencies(graph, &nodes[0], &nodes[1], &launch_order, 1));
    assert_success(DRIVER->graph_destroy(other));
    assert_success(DRIVER->graph_destroy(graph));
}

static void test_graphs_may_be_destroyed_while_they_run(void **state) {
    (void)state;
    chain made;
    clear_words();
    make_chain(&made);
    gate *held = gate_close(DEVICE0->stream);
    launch(made.exec);
    end_chain(&made);
    gate_open(held);
    settle();
    assert_int_equal(read_word(words), mixed(0, CHAIN));
}

/* ------------------------------------------------------------------------------------------------------- capture -- */

static CUgraph capture_mixes(uint32_t first, uint32_t count) {
    CUgraph graph = NULL;
    assert_success(DRIVER->stream_begin_capture(DEVICE0->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t i = 0; i < count; i++) assert_success(launch_mix(DEVICE0, DEVICE0->stream, words, first + i));
    assert_success(DRIVER->stream_end_capture(DEVICE0->stream, &graph));
    assert_non_null(graph);
    return graph;
}

static void test_capture_makes_a_graph_and_runs_nothing(void **state) {
    (void)state;
    CUgraphExec exec;
    clear_words();
    CUgraph graph = capture_mixes(0, CHAIN);
    settle();
    assert_int_equal(read_word(words), 0);
    assert_success(DRIVER->graph_instantiate(&exec, graph, 0));
    launch(exec);
    settle();
    assert_int_equal(read_word(words), mixed(0, CHAIN));
    assert_success(DRIVER->graph_exec_destroy(exec));
    assert_success(DRIVER->graph_destroy(graph));
}

static void test_an_update_takes_over_another_graph(void **state) {
    (void)state;
    CUgraphExec exec;
    CUgraphExecUpdateResultInfo result;
    clear_words();
    CUgraph first = capture_mixes(0, 4), second = capture_mixes(10, 4), longer = capture_mixes(0, 5);
    assert_success(DRIVER->graph_instantiate(&exec, first, 0));
    assert_success(DRIVER->graph_exec_update(exec, second, &result));
    assert_int_equal(result.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
    launch(exec);
    settle();
    uint32_t expected = 0;
    for (uint32_t i = 0; i < 4; i++) expected = expected * 3 + 10 + i;
    assert_int_equal(read_word(words), expected);
    assert_code(DRIVER->graph_exec_update(exec, longer, &result), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    assert_int_equal(result.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    clear_words();
    launch(exec); /* as it was before the failed update */
    settle();
    assert_int_equal(read_word(words), expected);
    assert_success(DRIVER->graph_exec_destroy(exec));
    assert_success(DRIVER->graph_destroy(first));
    assert_success(DRIVER->graph_destroy(second));
    assert_success(DRIVER->graph_destroy(longer));
}

static void test_events_fork_and_join_a_capture(void **state) {
    (void)state;
    CUstream second;
    CUevent fork, join;
    CUgraph graph;
    CUgraphExec exec;
    clear_words();
    assert_success(DRIVER->stream_create(&second, CU_STREAM_NON_BLOCKING));
    assert_success(DRIVER->event_create(&fork, CU_EVENT_DISABLE_TIMING));
    assert_success(DRIVER->event_create(&join, CU_EVENT_DISABLE_TIMING));
    assert_success(DRIVER->stream_begin_capture(DEVICE0->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    assert_success(launch_mix(DEVICE0, DEVICE0->stream, words, 1));
    assert_success(DRIVER->event_record(fork, DEVICE0->stream));
    assert_success(DRIVER->stream_wait_event(second, fork, 0));
    assert_success(launch_copy(DEVICE0, second, words + 4, words));
    assert_success(DRIVER->event_record(join, second));
    assert_success(DRIVER->stream_wait_event(DEVICE0->stream, join, 0));
    assert_success(launch_copy(DEVICE0, DEVICE0->stream, words + 8, words + 4));
    assert_success(DRIVER->stream_end_capture(DEVICE0->stream, &graph));
    assert_success(DRIVER->graph_instantiate(&exec, graph, 0));
    launch(exec);
    settle();
    assert_int_equal(read_word(words + 8), 1);
    assert_success(DRIVER->stream_synchronize(second)); /* it captures no more */
    assert_success(DRIVER->graph_exec_destroy(exec));
    assert_success(DRIVER->graph_destroy(graph));
    assert_success(DRIVER->event_destroy(fork));
    assert_success(DRIVER->event_destroy(join));
    assert_success(DRIVER->stream_destroy(second));
}

static void test_a_capture_refuses_what_would_wait(void **state) {
    (void)state;
    CUgraph graph = NULL;
    assert_code(DRIVER->stream_end_capture(DEVICE0->stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    assert_success(DRIVER->stream_begin_capture(DEVICE0->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    assert_code(DRIVER->stream_begin_capture(DEVICE0->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                CUDA_ERROR_ILLEGAL_STATE);
    assert_code(DRIVER->stream_synchronize(DEVICE0->stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_code(DRIVER->stream_end_capture(DEVICE0->stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_null(graph);
    settle(); /* the stream works again */
}

int run_graph_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_chain_runs_in_order),
        cmocka_unit_test(test_updates_do_not_reach_launches_in_flight),
        cmocka_unit_test(test_a_node_can_change_its_function_and_shape),
        cmocka_unit_test(test_an_executable_graph_keeps_what_it_was_made_of),
        cmocka_unit_test(test_a_threads_capture_mode_is_exchanged),
        cmocka_unit_test(test_disabled_nodes_are_passed_over),
        cmocka_unit_test(test_branches_join),
        cmocka_unit_test(test_bad_dependencies_are_refused),
        cmocka_unit_test(test_edges_are_dependencies),
        cmocka_unit_test(test_a_cycle_is_not_instantiated),
        cmocka_unit_test(test_a_graph_of_launch_order_ends_after_all_its_kernels),
        cmocka_unit_test(test_a_long_kernel_among_short_ones_ends_too),
        cmocka_unit_test(test_all_kernels_of_launch_order_see_what_came_before),
        cmocka_unit_test(test_nodes_in_launch_order_can_be_changed),
        cmocka_unit_test(test_nodes_in_launch_order_can_be_switched_off),
        cmocka_unit_test(test_bad_edges_are_refused),
        cmocka_unit_test(test_graphs_may_be_destroyed_while_they_run),
        cmocka_unit_test(test_capture_makes_a_graph_and_runs_nothing),
        cmocka_unit_test(test_an_update_takes_over_another_graph),
        cmocka_unit_test(test_events_fork_and_join_a_capture),
        cmocka_unit_test(test_a_capture_refuses_what_would_wait),
    };
    return cmocka_run_group_tests_name("graphs", tests, take_words, give_words);
}
