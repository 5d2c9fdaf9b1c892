/* Random graphs on random machines: every byte must be what the sequential model says.
 *
 *     random_graph_test [--seed S] [--graphs N] [--devices D] [--actors A] [--driver sim|cuda] [--bursts MODE] [--seconds T] [--verbose]
 *
 * By default N is 1300, which submits more than 2,000 graphs, or 60 under a sanitizer. Scenario number n of a call has seed
 * S + n, and everything about it follows from its seed and the number of devices, so `--seed S --graphs 1` repeats one. Without
 * --devices the seed also picks their number, 1 to 8 on the simulator. With --actors there are so many actors on each device,
 * which are devices to the scenarios. Host memory of buffers is pageable, pinned or registered; graphs are submitted, or added to open
 * runs; some runs have deadlines, are cancelled or too late, which nobody can foresee, so that the jobs themselves are asked
 * (scenario_stop.c). Runtimes take turns in how they send bursts, unless --bursts names one mode for all. Two
 * neighbouring seeds share a runtime, whose memory budget is drawn from what their largest job needs, by a computation of the test's own, to plenty. --seconds stops after that
 * time instead of a number of scenarios. A failing scenario is shrunk by leaving out steps, jobs and edges as long as it still
 * fails, and printed. With --driver cuda the test is skipped, visibly, where there is no driver or no device.
 *
 * At the end it prints what happened; a long call in which nothing waited for memory, was given up or overlapped fails. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
// cmocka.h needs those four first
#include <cmocka.h>

#include "base/clock.h"
#include "base/sanitizer.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/random_options.h"
#include "tests/scheduler/scenario.h"

enum { SEEDS_PER_RUNTIME = 2, SHRINK_RUNS = 400 };

static const uint64_t wait_ns = MU_TSAN || MU_ASAN ? 60000000000u : 30000000000u, shrink_ns = 60000000000u;

static random_options option = {.seed = 1, .actors = 1, .count = MU_TSAN || MU_ASAN ? 60 : 1300, .driver = "sim"};

static sc_counts counts;

/* The machine and configuration of a seed. */
typedef struct machine {
    uint32_t devices, largest_bytes;
    uint64_t budget_bytes; /* 0: no limit */
    bool steal_always;
    uint32_t burst_mode; /* of those that are drawn */
    muster_config config;
    char spec[FIXTURE_SPEC_BYTES];
} machine;

/* What devices hold that cannot be given up: the test's kernels, those that add partial sums, and instantiated graphs. Their
 * size is the driver's business, so it is asked once, of a runtime that has loaded everything. */
typedef struct fixed {
    bool known;
    uint32_t devices;
    uint64_t bytes;
} fixed;

/* Job 0 can run anywhere. */
static bool load_everything(const sc_executor *executor, muster_graph *graph, muster_buffer *buffer,
                            muster_error *error) {
    if (muster_graph_fill(graph, buffer, 0, 64, 0, 4, NULL, error) != MUSTER_OK) return false;
    for (sc_op op = SC_SUM_I32; op <= SC_SUM_F64; op++) {
        muster_arg sum = muster_sum_arg(buffer, (muster_type)(MUSTER_I32 + (op - SC_SUM_I32)));
        muster_arg in = muster_block_cut(muster_range_arg(buffer, MUSTER_READ, 64, 8), 4);
        sum.bytes = 8;
        muster_dispatch dispatch =
            fixture_dispatch(executor->kernel[op], 2, 1,
                             ARGS(sum, muster_u32_arg(1), in, muster_u32_arg(0), muster_shard_offset_arg(1, 2, 8),
                                  muster_shard_count_arg(1, 2, 8)));
        dispatch.flags = MUSTER_DISPATCH_SHARDED;
        dispatch.max_shards = 2;
        if (muster_graph_dispatch(graph, &dispatch, NULL, error) != MUSTER_OK) return false;
    }
    return true;
}

static muster_status measure_fixed(const muster_config *config, fixed *out, sc_failure *failure) {
    muster_error error = {.message = ""};
    muster_runtime *runtime;
    sc_counts counts = {0};
    sc_executor executor;
    muster_buffer *buffer;
    muster_graph *graph;
    muster_run *run = NULL;
    muster_status status = muster_runtime_create(config, &runtime, &error);
    if (status != MUSTER_OK) {
        snprintf(failure->text, sizeof failure->text, "creating the runtime: %s: %s", muster_status_name(status),
                 error.message);
        return status;
    }
    if (!sc_executor_open(runtime, wait_ns, &counts, &executor, failure)) {
        muster_runtime_destroy(runtime, wait_ns, NULL);
        return MUSTER_INTERNAL;
    }
    bool ok = (status = muster_buffer_create(runtime, 128, NULL, &buffer, &error)) == MUSTER_OK &&
              (status = muster_graph_create(runtime, &graph, &error)) == MUSTER_OK &&
              load_everything(&executor, graph, buffer, &error) &&
              (status = muster_submit(runtime, graph, &run, &error)) == MUSTER_OK &&
              (status = muster_run_wait(run, wait_ns, &error)) == MUSTER_OK;
    out->devices = (uint32_t)muster_device_count(runtime);
    for (uint32_t d = 0; ok && d < out->devices; d++) {
        muster_preflight_report report = {.struct_size = sizeof report};
        muster_device_info info = {.struct_size = sizeof info};
        ok = (status = muster_preflight(graph, 0, (int)d, MUSTER_PREFLIGHT_CHEAP, &report, &error)) == MUSTER_OK &&
             (status = muster_device_get_info(runtime, (int)d, &info, &error)) == MUSTER_OK;
        if (ok && info.budget_bytes - report.budget_bytes > out->bytes)
            out->bytes = info.budget_bytes - report.budget_bytes;
    }
    if (!ok) snprintf(failure->text, sizeof failure->text, "measuring what modules need: %s", error.message);
    out->known = ok;
    muster_runtime_destroy(runtime, wait_ns, NULL); /* and everything made from it */
    return ok ? MUSTER_OK : MUSTER_INTERNAL;
}

/* How much memory the runtime gets for the scenarios of its group: from what the largest job of them needs, and nothing more,
 * to everything. */
static uint64_t draw_budget(uint64_t group, uint64_t *state, const machine *machine, const fixed *fixed) {
    scenario *scenario = malloc(sizeof *scenario);
    uint64_t needed = 1, total = 1;
    assert_non_null(scenario);
    for (uint64_t seed = group * SEEDS_PER_RUNTIME; seed < (group + 1) * SEEDS_PER_RUNTIME; seed++) {
        scenario_generate(seed, machine->devices, machine->largest_bytes, scenario);
        uint64_t bytes = scenario_needed_bytes(scenario);
        if (bytes > needed) needed = bytes;
        bytes = scenario_total_bytes(scenario);
        if (bytes > total) total = bytes;
    }
    free(scenario);
    uint64_t slack = total > needed ? total - needed : 0, part = sc_below(state, 1000);
    switch (sc_below(state, 8)) {
        case 0: return 0;
        case 1:
        case 2:
        case 3: slack = 0; break;
        case 4:
        case 5: slack = slack * part / 8000; break;
        default: slack = slack * part / 1000; break;
    }
    return fixed->bytes + needed + slack;
}

/* Any answer at all, and a third of them wrong: nothing but where jobs run may depend on it. */
static int answer_anything(void *user, const muster_placement_request *request) {
    (void)user;
    uint64_t state = request->seed * 31 + request->turn;
    uint64_t drawn = sc_random(&state);
    return drawn % 3 ? (int)(drawn % request->device_count) : (int)(int32_t)(drawn >> 16);
}
static const muster_placement_policy anything = {sizeof anything, "anything", NULL,
                                                 MUSTER_PLACEMENT_TURN | MUSTER_PLACEMENT_DATA, answer_anything};

enum { BURST_MODES = 4 };

static void machine_of(uint64_t seed, const fixed *fixed, machine *out) {
    static const char *const placements[] = {"locality", "least-loaded", "round-robin", "random"};
    static const char *const bursts[BURST_MODES] = {"auto", "always", "random", "off"};
    const uint64_t group = seed / SEEDS_PER_RUNTIME;
    uint64_t mixed = group, state = sc_random(&mixed);
    memset(out, 0, sizeof *out);
    uint32_t drawn = 1 + sc_below(&state, 8);
    out->devices = option.devices ? option.devices : drawn;
    out->config.struct_size = sizeof out->config;
    out->config.driver = option.driver;
    out->config.placement = placements[sc_below(&state, 4)];
    out->config.seed = group;
    if (group % 6 == 5) out->config.policy = &anything;
    out->burst_mode = (uint32_t)(group / 2 % BURST_MODES);
    out->config.bursts = option.bursts ? option.bursts : bursts[out->burst_mode];
    out->config.actors_per_device = option.actors;
    out->config.flags = sc_below(&state, 8) == 0 ? MUSTER_RUNTIME_SERIAL : 0;
    if (sc_below(&state, 6) == 0) out->config.flags |= MUSTER_RUNTIME_OWN_CONTEXT;
    if (sc_below(&state, 3) == 0) out->config.spin_ns = 1;
    out->steal_always = group % 2 == 0;
    if (out->steal_always) out->config.enqueue_ahead_ns = 1;
    if (group % 10 == 0) out->config.flags |= MUSTER_RUNTIME_NO_STEALING;
    if (sc_below(&state, 3) == 0) out->largest_bytes = 1u << (18 + sc_below(&state, 5));
    if (strcmp(option.driver, "sim") == 0) {
        fixture_mixed_spec(out->devices, group, out->spec);
        out->config.sim = out->spec;
        out->devices *= option.actors;
    } else {
        out->devices = fixed->devices;
        out->config.device_count = option.devices;
    }
    if (fixed->known) out->config.budget_bytes = draw_budget(group, &state, out, fixed) * option.actors;
}

/* Machines of one device and of several differ in what they load, and ways to launch in the graphs they need for it. */
static muster_status fixed_of(uint64_t seed, fixed *out, sc_failure *failure) {
    static fixed known[2][BURST_MODES];
    machine machine;
    machine_of(seed, &(fixed){0}, &machine);
    fixed *one = &known[machine.devices != 1][machine.burst_mode];
    muster_config config = {.struct_size = sizeof config,
                            .driver = option.driver,
                            .bursts = machine.config.bursts,
                            .device_count = option.devices,
                            .actors_per_device = option.actors}; /* modules of a share are charged otherwise */
    if (strcmp(option.driver, "sim") == 0) {
        config.sim = machine.devices == 1 ? "{\"devices\": 1}" : "{\"devices\": 2}";
        config.device_count = 0;
    }
    muster_status status = one->known ? MUSTER_OK : measure_fixed(&config, one, failure);
    *out = *one;
    return status;
}

/* Opens the runtime of a seed. On a real machine the number of devices is what there is. */
static muster_status open_machine(uint64_t seed, machine *machine, sc_executor *executor, sc_failure *failure) {
    fixed fixed;
    muster_error error;
    muster_runtime *runtime;
    muster_status status = fixed_of(seed, &fixed, failure);
    if (status != MUSTER_OK) return status;
    machine_of(seed, &fixed, machine);
    status = muster_runtime_create(&machine->config, &runtime, &error);
    if (status != MUSTER_OK) {
        snprintf(failure->text, sizeof failure->text, "creating the runtime: %s: %s", muster_status_name(status),
                 error.message);
        return status;
    }
    if (machine->steal_always) fixture_steal_always(runtime);
    if (!sc_executor_open(runtime, wait_ns, &counts, executor, failure)) {
        muster_runtime_destroy(runtime, wait_ns, NULL);
        return MUSTER_INTERNAL;
    }
    return MUSTER_OK;
}

/* What the devices did, over all runtimes that were closed. */
static struct {
    uint64_t launches, bytes_moved, to_device, to_host, from_peer, within, peer_copies;
    uint64_t waits, evictions, write_backs, bursts, branch_bursts, burst_jobs, steals;
} did;

static bool add_stats(const muster_runtime *runtime, sc_failure *failure) {
    for (int d = 0; d < muster_device_count(runtime); d++) {
        muster_device_stats stats = {.struct_size = sizeof stats};
        muster_error error;
        if (muster_device_get_stats(runtime, d, &stats, &error) != MUSTER_OK) {
            snprintf(failure->text, sizeof failure->text, "asking for counters: %s", error.message);
            return false;
        }
        did.launches += stats.launches;
        did.to_device += stats.bytes_to_device;
        did.to_host += stats.bytes_to_host;
        did.from_peer += stats.bytes_from_peer;
        did.within += stats.bytes_within_device;
        did.peer_copies += stats.peer_copies;
        did.waits += stats.admission_waits;
        did.evictions += stats.evictions;
        did.write_backs += stats.write_backs;
        did.bursts += stats.bursts;
        did.branch_bursts += stats.branch_bursts;
        did.burst_jobs += stats.burst_jobs;
        did.steals += stats.steals;
        if (stats.refusals) {
            snprintf(failure->text, sizeof failure->text, "device %d refused %" PRIu64 " jobs", d, stats.refusals);
            return false;
        }
    }
    return true;
}

static bool close_machine(sc_executor *executor, sc_failure *failure) {
    muster_error error;
    muster_runtime *runtime = executor->runtime;
    bool ok = add_stats(runtime, failure);
    sc_executor_close(executor);
    if (muster_runtime_destroy(runtime, wait_ns, &error) == MUSTER_OK) return ok;
    snprintf(failure->text, sizeof failure->text, "destroying the runtime: %s", error.message);
    failure->hang = true;
    return false;
}

static bool run_scenario(const sc_executor *executor, const scenario *scenario, sc_failure *failure) {
    sc_expected expected;
    *failure = (sc_failure){.text = "out of memory"};
    if (!scenario_model(scenario, &expected)) return false;
    bool ok = scenario_execute(executor, scenario, &expected, failure);
    sc_expected_free(&expected);
    return ok;
}

/* ------------------------------------------------------------------------------------------------------- shrinking -- */

typedef struct shrinker {
    scenario *scenario;
    sc_failure failure; /* of the smallest scenario that failed */
    uint64_t deadline_ns;
    uint32_t runs;
    bool stopped;
} shrinker;

/* Whether it still fails, on a runtime of its own; a failure that depends on timing gets a second chance. */
static bool still_fails(shrinker *shrinker) {
    for (int attempt = 0; attempt < 3 && !shrinker->stopped; attempt++) {
        sc_failure failure = {.text = ""};
        sc_executor executor;
        machine machine;
        if (++shrinker->runs > SHRINK_RUNS || mu_now_ns() > shrinker->deadline_ns) break;
        if (open_machine(shrinker->scenario->seed, &machine, &executor, &failure) != MUSTER_OK) break;
        bool failed = !run_scenario(&executor, shrinker->scenario, &failure);
        sc_failure closing = {.text = ""};
        if (!failure.hang) close_machine(&executor, &closing);
        failure.hang |= closing.hang;
        if (failure.hang) shrinker->stopped = true; /* threads and memory stay behind: not many times */
        if (failed) shrinker->failure = failure;
        if (failed) return true;
    }
    return false;
}

static bool try_flag(shrinker *shrinker, bool *flag, bool value) {
    if (*flag == value || shrinker->stopped) return false;
    *flag = value;
    if (still_fails(shrinker)) return true;
    *flag = !value;
    return false;
}

/* Leaves out a step and what makes no sense without it. */
static bool try_step(shrinker *shrinker, uint32_t index) {
    scenario *scenario = shrinker->scenario;
    bool before[SC_MAX_STEPS];
    if (scenario->step[index].dropped || scenario->step[index].kind == SC_RELEASE || shrinker->stopped) return false;
    for (uint32_t s = 0; s < scenario->step_count; s++) {
        sc_step *step = &scenario->step[s];
        before[s] = step->dropped;
        bool depends = step->kind == SC_RELEASE || step->kind == SC_WAIT || step->kind == SC_TRY;
        if (s == index || (depends && step->of == index)) step->dropped = true;
    }
    if (still_fails(shrinker)) return true;
    for (uint32_t s = 0; s < scenario->step_count; s++) scenario->step[s].dropped = before[s];
    return false;
}

static void shrink(shrinker *shrinker) {
    scenario *scenario = shrinker->scenario;
    for (bool progress = true; progress && !shrinker->stopped;) {
        progress = false;
        for (uint32_t s = scenario->step_count; s-- > 0;) progress |= try_step(shrinker, s);
        for (uint32_t s = 0; s < scenario->step_count; s++)
            if (!scenario->step[s].dropped) progress |= try_flag(shrinker, &scenario->step[s].early, false);
        for (uint32_t g = 0; g < scenario->graph_count; g++) {
            sc_graph *graph = &scenario->graph[g];
            for (uint32_t j = graph->job_count; j-- > 0;) progress |= try_flag(shrinker, &graph->job[j].dropped, true);
            for (uint32_t e = 0; e < graph->edge_count; e++)
                progress |= try_flag(shrinker, &graph->edge[e].dropped, true);
        }
    }
}

/* A graph that no step submits any more is not part of the repro. */
static void drop_unused_graphs(scenario *scenario) {
    for (uint32_t g = 0; g < scenario->graph_count; g++) {
        bool used = false;
        for (uint32_t s = 0; s < scenario->step_count; s++)
            used |= (scenario->step[s].kind == SC_SUBMIT || scenario->step[s].kind == SC_STOP) &&
                    scenario->step[s].graph == g && !scenario->step[s].dropped;
        for (uint32_t j = 0; j < scenario->graph[g].job_count && !used; j++) scenario->graph[g].job[j].dropped = true;
        for (uint32_t e = 0; e < scenario->graph[g].edge_count && !used; e++) scenario->graph[g].edge[e].dropped = true;
    }
}

static void report(scenario *scenario, const sc_failure *failure) {
    shrinker shrinker = {.scenario = scenario, .failure = *failure, .deadline_ns = mu_now_ns() + shrink_ns};
    print_message("seed %" PRIu64 ": %s\n", scenario->seed, failure->text);
    print_message("repeat it with --driver %s --seed %" PRIu64 " --graphs 1 --devices %" PRIu32 " --actors %" PRIu32
                  "\n",
                  option.driver, scenario->seed, scenario->devices / option.actors, option.actors);
    shrinker.stopped = failure->hang;
    if (failure->hang) {
        print_message("something did not end in time, so it is not shrunk:\n");
    } else {
        shrink(&shrinker);
        drop_unused_graphs(scenario);
        print_message("after %" PRIu32 " runs, shrunk to what follows, which fails with: %s\n", shrinker.runs,
                      shrinker.failure.text);
    }
    scenario_print(scenario, stderr);
}

/* ------------------------------------------------------------------------------------------------------------ tests -- */

static void count_scenario(const scenario *scenario) {
    bool submitted[SC_MAX_GRAPHS] = {false};
    for (uint32_t s = 0; s < scenario->step_count; s++) {
        if (scenario->step[s].kind != SC_SUBMIT && scenario->step[s].kind != SC_STOP) continue;
        uint32_t graph = scenario->step[s].graph;
        counts.graphs += !submitted[graph];
        submitted[graph] = true;
        counts.jobs += scenario->graph[graph].job_count;
    }
}

static void print_counts(void) {
    print_message("%" PRIu64 " graphs in %" PRIu64 " runs of %" PRIu64 " jobs: %" PRIu64 " launches, %" PRIu64
                  " in %" PRIu64 " bursts, %" PRIu64 " with branches\n",
                  counts.graphs, counts.runs, counts.jobs, did.launches, did.burst_jobs, did.bursts, did.branch_bursts);
    print_message("MiB moved: %" PRIu64 " to devices, %" PRIu64 " to the host, %" PRIu64 " in %" PRIu64
                  " copies between devices, %" PRIu64 " within\n",
                  did.to_device >> 20, did.to_host >> 20, did.from_peer >> 20, did.peer_copies, did.within >> 20);
    print_message("stealing: %" PRIu64 " jobs went to another device than they were placed on\n", did.steals);
    print_message("memory: %" PRIu64 " jobs waited, %" PRIu64 " evictions, %" PRIu64 " of them with a write-back\n",
                  did.waits, did.evictions, did.write_backs);
    print_message(
        "host: %" PRIu64 " acquisitions, %" PRIu64 " attempts that timed out, %" PRIu64 " of %" PRIu64
        " tries got nothing; %" PRIu64 " steps beside others (%" PRIu64 " submits, %" PRIu64 " acquires); %" PRIu64
        " buffers destroyed in use; %" PRIu64 " host callbacks, %" PRIu64 " enqueue callbacks\n",
        counts.acquisitions, counts.timeouts, counts.refused, counts.tries, counts.early, counts.early_submits,
        counts.early_acquires, counts.destroyed_in_use, counts.host_calls, counts.enqueue_calls);
    print_message("runs: %" PRIu64 " graphs added to open ones, %" PRIu64 " refused by closed ones; %" PRIu64
                  " deadlines that did not pass; %" PRIu64 " ended early, %" PRIu64 " of them cut short, by %" PRIu64
                  " jobs; %" PRIu64 " buffers in pinned memory\n",
                  counts.open_parts, counts.late_parts, counts.limits, counts.stops, counts.cut_short, counts.lost,
                  counts.pinned);
}

/* A call that never waited for memory, or never gave anything up, has tested nothing of it. */
static void check_counts(void) {
    assert_true(did.waits > 20 && did.evictions > 50 && did.write_backs > 20);
    bool no_bursts = option.bursts && strcmp(option.bursts, "off") == 0;
    assert_true(no_bursts ? did.bursts == 0 : did.bursts > 20 && did.branch_bursts > 20);
    assert_true(did.to_device && did.to_host && did.within);
    assert_true(counts.timeouts > 10 && counts.refused > 10 && counts.tries > counts.refused);
    assert_true(counts.host_calls > 20 && counts.enqueue_calls > 20);
    assert_true(counts.pinned > 500 && counts.open_parts > 200 && counts.late_parts > 20 && counts.limits > 100);
    assert_true(counts.stops > 100 && counts.cut_short > 30 && counts.cut_short < counts.stops);
    assert_true(counts.early_submits > 10 && counts.early_acquires > 10 && counts.destroyed_in_use > 5);
    if (strcmp(option.driver, "sim") == 0 && option.devices != 1) assert_true(did.peer_copies > 20 && did.steals > 200);
}

static void every_byte_is_as_in_the_sequential_model(void **state) {
    (void)state;
    scenario *scenario = malloc(sizeof *scenario);
    sc_executor executor = {0};
    sc_failure failure = {.text = ""};
    machine machine;
    uint64_t begin_ns = mu_now_ns(), group = UINT64_MAX;
    uint32_t done = 0;
    assert_non_null(scenario);
    for (; random_goes_on(&option, begin_ns, done); done++) {
        uint64_t seed = option.seed + done;
        if (seed / SEEDS_PER_RUNTIME != group) {
            if (executor.runtime && !close_machine(&executor, &failure)) fail_msg("%s", failure.text);
            muster_status status = open_machine(seed, &machine, &executor, &failure);
            if (status == MUSTER_NO_DRIVER || status == MUSTER_NO_DEVICE) {
                print_message("SKIPPED: %s\n", failure.text);
                free(scenario);
                skip();
            }
            if (status != MUSTER_OK) fail_msg("seed %" PRIu64 ": %s", seed, failure.text);
            group = seed / SEEDS_PER_RUNTIME;
        }
        scenario_generate(seed, machine.devices, machine.largest_bytes, scenario);
        if (option.verbose) scenario_print(scenario, stderr);
        if (!run_scenario(&executor, scenario, &failure)) {
            sc_failure closing = {.text = ""};
            if (!failure.hang) close_machine(&executor, &closing);
            report(scenario, &failure);
            fail_msg("seed %" PRIu64 " differs from the model", seed);
        }
        count_scenario(scenario);
    }
    if (executor.runtime && !close_machine(&executor, &failure)) fail_msg("%s", failure.text);
    print_message("seeds %" PRIu64 " to %" PRIu64 "\n", option.seed, option.seed + done - 1);
    print_counts();
    if (counts.graphs >= 1000) check_counts();
    free(scenario);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_byte_is_as_in_the_sequential_model)};
    const unsigned has =
        RANDOM_DEVICES | RANDOM_ACTORS | RANDOM_DRIVER | RANDOM_BURSTS | RANDOM_SECONDS | RANDOM_VERBOSE;
    if (!random_options_read(argc, argv, "graphs", has, &option)) return 2;
    if (!option.actors) option.actors = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
