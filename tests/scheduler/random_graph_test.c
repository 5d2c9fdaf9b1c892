/* Random graphs on random machines: every byte must be what the sequential model says.
 *
 *     random_graph_test [--seed S] [--graphs N] [--devices D] [--driver sim|cuda] [--seconds T] [--verbose]
 *
 * By default N is 500, or 60 under a sanitizer. Scenario number n of a call has seed S + n, and everything about it follows
 * from its seed and the number of devices, so `--seed S --graphs 1` repeats one. Without --devices the seed also picks
 * their number, 1 to 8 on the simulator. Eight neighbouring seeds share a runtime. --seconds stops after that time
 * instead of a number of scenarios. A failing scenario is shrunk by leaving out steps, jobs and edges as long as it still
 * fails, and printed. With --driver cuda the test is skipped, visibly, where there is no driver or no device. */
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
#include "tests/scheduler/scenario.h"

enum { SEEDS_PER_RUNTIME = 8, SHRINK_RUNS = 400 };

static const uint64_t wait_ns = 60000000000u, shrink_ns = 60000000000u;

static struct {
    uint64_t seed, seconds;
    uint32_t graphs, devices;
    const char *driver;
    bool verbose;
} option = {.seed = 1, .graphs = MU_TSAN || MU_ASAN ? 60 : 500, .driver = "sim"};

/* The machine and configuration of a seed. */
typedef struct machine {
    uint32_t devices;
    muster_config config;
    char spec[FIXTURE_SPEC_BYTES];
} machine;

static void machine_of(uint64_t seed, machine *out) {
    static const char *const placements[] = {"locality", "least-loaded", "round-robin", "random"};
    uint64_t group = seed / SEEDS_PER_RUNTIME, state = sc_random(&group);
    memset(out, 0, sizeof *out);
    uint32_t drawn = 1 + sc_below(&state, 8);
    out->devices = option.devices ? option.devices : drawn;
    out->config.struct_size = sizeof out->config;
    out->config.driver = option.driver;
    out->config.placement = placements[sc_below(&state, 4)];
    out->config.seed = seed / SEEDS_PER_RUNTIME;
    out->config.flags = sc_below(&state, 8) == 0 ? MUSTER_RUNTIME_SERIAL : 0;
    if (sc_below(&state, 6) == 0) out->config.flags |= MUSTER_RUNTIME_OWN_CONTEXT;
    if (sc_below(&state, 3) == 0) out->config.spin_ns = 1;
    if (strcmp(option.driver, "sim") == 0) {
        fixture_mixed_spec(out->devices, seed / SEEDS_PER_RUNTIME, out->spec);
        out->config.sim = out->spec;
    } else {
        out->config.device_count = option.devices;
    }
}

/* Opens the runtime of a seed. On a real machine the number of devices is what there is. */
static muster_status open_machine(uint64_t seed, machine *machine, sc_executor *executor, sc_failure *failure) {
    muster_error error;
    muster_runtime *runtime;
    machine_of(seed, machine);
    muster_status status = muster_runtime_create(&machine->config, &runtime, &error);
    if (status != MUSTER_OK) {
        snprintf(failure->text, sizeof failure->text, "creating the runtime: %s: %s", muster_status_name(status),
                 error.message);
        return status;
    }
    machine->devices = (uint32_t)muster_device_count(runtime);
    if (!sc_executor_open(runtime, wait_ns, executor, failure)) {
        muster_runtime_destroy(runtime, wait_ns, NULL);
        return MUSTER_INTERNAL;
    }
    return MUSTER_OK;
}

static bool close_machine(sc_executor *executor, sc_failure *failure) {
    muster_error error;
    muster_runtime *runtime = executor->runtime;
    sc_executor_close(executor);
    if (muster_runtime_destroy(runtime, wait_ns, &error) == MUSTER_OK) return true;
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
        if (!failure.hang) close_machine(&executor, &failure);
        if (failure.hang) shrinker->stopped = true; /* threads and memory stay behind: not many times */
        if (failed) shrinker->failure = failure;
        if (failed) return true;
    }
    return false;
}

static bool try_flag(shrinker *shrinker, bool *flag) {
    if (*flag || shrinker->stopped) return false;
    *flag = true;
    if (still_fails(shrinker)) return true;
    *flag = false;
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
        if (s == index || ((step->kind == SC_RELEASE || step->kind == SC_WAIT) && step->of == index))
            step->dropped = true;
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
        for (uint32_t g = 0; g < scenario->graph_count; g++) {
            sc_graph *graph = &scenario->graph[g];
            for (uint32_t j = graph->job_count; j-- > 0;) progress |= try_flag(shrinker, &graph->job[j].dropped);
            for (uint32_t e = 0; e < graph->edge_count; e++) progress |= try_flag(shrinker, &graph->edge[e].dropped);
        }
    }
}

/* A graph that no step submits any more is not part of the repro. */
static void drop_unused_graphs(scenario *scenario) {
    for (uint32_t g = 0; g < scenario->graph_count; g++) {
        bool used = false;
        for (uint32_t s = 0; s < scenario->step_count; s++)
            used |= scenario->step[s].kind == SC_SUBMIT && scenario->step[s].graph == g && !scenario->step[s].dropped;
        for (uint32_t j = 0; j < scenario->graph[g].job_count && !used; j++) scenario->graph[g].job[j].dropped = true;
        for (uint32_t e = 0; e < scenario->graph[g].edge_count && !used; e++) scenario->graph[g].edge[e].dropped = true;
    }
}

static void report(scenario *scenario, const sc_failure *failure) {
    shrinker shrinker = {.scenario = scenario, .failure = *failure, .deadline_ns = mu_now_ns() + shrink_ns};
    print_message("seed %" PRIu64 ": %s\n", scenario->seed, failure->text);
    print_message("repeat it with --driver %s --seed %" PRIu64 " --graphs 1 --devices %" PRIu32 "\n", option.driver,
                  scenario->seed, scenario->devices);
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

static void every_byte_is_as_in_the_sequential_model(void **state) {
    (void)state;
    scenario *scenario = malloc(sizeof *scenario);
    sc_executor executor = {0};
    sc_failure failure = {.text = ""};
    machine machine;
    uint64_t end_ns = option.seconds ? mu_now_ns() + option.seconds * 1000000000u : 0;
    uint64_t group = UINT64_MAX, jobs = 0, submits = 0;
    uint32_t done = 0;
    assert_non_null(scenario);
    for (; option.seconds ? mu_now_ns() < end_ns : done < option.graphs; done++) {
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
        scenario_generate(seed, machine.devices, scenario);
        if (option.verbose) scenario_print(scenario, stderr);
        if (!run_scenario(&executor, scenario, &failure)) {
            if (!failure.hang) close_machine(&executor, &failure);
            report(scenario, &failure);
            fail_msg("seed %" PRIu64 " differs from the model", seed);
        }
        for (uint32_t s = 0; s < scenario->step_count; s++)
            if (scenario->step[s].kind == SC_SUBMIT) {
                submits++;
                jobs += scenario->graph[scenario->step[s].graph].job_count;
            }
    }
    if (executor.runtime && !close_machine(&executor, &failure)) fail_msg("%s", failure.text);
    print_message("seeds %" PRIu64 " to %" PRIu64 ": %" PRIu64 " runs of %" PRIu64 " jobs\n", option.seed,
                  option.seed + done - 1, submits, jobs);
    free(scenario);
}

static bool parse(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--verbose") == 0) {
            option.verbose = true;
            continue;
        }
        if (i + 1 == argc) return false;
        const char *name = argv[i], *value = argv[++i];
        char *end = NULL;
        uint64_t number = strtoull(value, &end, 10);
        bool numeric = *value && !*end;
        if (strcmp(name, "--driver") == 0)
            option.driver = value;
        else if (!numeric)
            return false;
        else if (strcmp(name, "--seed") == 0)
            option.seed = number;
        else if (strcmp(name, "--graphs") == 0)
            option.graphs = (uint32_t)number;
        else if (strcmp(name, "--devices") == 0)
            option.devices = (uint32_t)number;
        else if (strcmp(name, "--seconds") == 0)
            option.seconds = number;
        else
            return false;
    }
    return option.graphs > 0 && (!strcmp(option.driver, "sim") || !strcmp(option.driver, "cuda"));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_byte_is_as_in_the_sequential_model)};
    if (!parse(argc, argv)) {
        fprintf(stderr,
                "usage: %s [--seed S] [--graphs N] [--devices D] [--driver sim|cuda] [--seconds T] [--verbose]\n",
                argv[0]);
        return 2;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
