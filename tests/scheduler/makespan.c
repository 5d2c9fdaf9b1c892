#include "tests/scheduler/makespan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/sim/sim.h"
#include "muster.h"
#include "scheduler/runtime/runtime.h"
#include "tests/scheduler/kernels.h"

const char *const makespan_shape_names[MAKESPAN_SHAPES] = {"uneven", "heavy", "growing", "shrinking", "equal"};

enum {
    THREADS = 64, /* of a block */
    MAX_BLOCKS = 100,
    INPUTS = 40,
    INPUT_BYTES = 256 << 10,
    LAUNCH_NS = 500,
    BYTES_PER_US = 1000, /* between devices */
    COPY_NS = 1000
};

/* Of the devices; a block takes some 10 us on the first. */
static const double speeds[MAKESPAN_DEVICES] = {1, 0.7, 0.4, 0.25};
/* Thread instructions a nanosecond, of the kernel that touches nothing and of the one that reads and writes. */
static double speed_of(int device, bool data) { return speeds[device] * (data ? 0.1 : 0.0064); }

static void describe_machine(bool data, char spec[1024]) {
    int used = snprintf(spec, 1024, "{\"devices\": [");
    for (int d = 0; d < MAKESPAN_DEVICES; d++)
        used += snprintf(spec + used, 1024 - (size_t)used,
                         "%s{\"name\": \"speed %g\", \"instructions_per_ns\": %g, "
                         "\"launch_ns\": %d, \"peer_gbps\": 1, \"upload_gbps\": 1}",
                         d ? ", " : "", speeds[d], speed_of(d, data), LAUNCH_NS);
    snprintf(spec + used, 1024 - (size_t)used, "]}");
}

static muster_error error;

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != MUSTER_OK) {                                                                                     \
            fprintf(stderr, "makespan: %s: %s\n", #call, error.message);                                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* -------------------------------------------------------------------------------------------------------- the jobs -- */

typedef struct work {
    uint32_t blocks, input;
    int device; /* where it was placed */
} work;

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int by_blocks(const void *a, const void *b) {
    const work *x = a, *y = b;
    return x->blocks < y->blocks ? -1 : x->blocks > y->blocks;
}

static uint32_t uneven(uint64_t *state) {
    double blocks = 1; /* 1.047^100 is about 100 */
    for (uint64_t steps = draw(state) % 101; steps > 0; steps--) blocks *= 1.0471285480509;
    return (uint32_t)(blocks + 0.5);
}

static void draw_jobs(const makespan_case *c, work jobs[MAKESPAN_JOBS]) {
    uint64_t state = c->seed * UINT64_C(0x9e3779b97f4a7c15) + 88172645463325252u;
    for (int j = 0; j < MAKESPAN_JOBS; j++) {
        uint32_t blocks = 20;
        if (c->shape == MAKESPAN_HEAVY)
            blocks = draw(&state) % 20 ? 1 + (uint32_t)(draw(&state) % 7) : 51 + (uint32_t)(draw(&state) % 50);
        else if (c->shape != MAKESPAN_EQUAL)
            blocks = uneven(&state);
        jobs[j] = (work){.blocks = blocks, .input = (uint32_t)(draw(&state) % INPUTS), .device = MUSTER_ANY_DEVICE};
    }
    if (c->shape != MAKESPAN_GROWING && c->shape != MAKESPAN_SHRINKING) return;
    qsort(jobs, MAKESPAN_JOBS, sizeof jobs[0], by_blocks);
    for (int j = 0; c->shape == MAKESPAN_SHRINKING && j < MAKESPAN_JOBS / 2; j++) {
        work other = jobs[j];
        jobs[j] = jobs[MAKESPAN_JOBS - 1 - j];
        jobs[MAKESPAN_JOBS - 1 - j] = other;
    }
}

static int home_of(uint32_t input) { return (int)(input % MAKESPAN_DEVICES); }

/* ------------------------------------------------------------------------------------------------------- the model -- */

/* What the jobs given to a device so far take. */
typedef struct load {
    double ns;
    bool has[INPUTS];
} load;

static void begin(load loads[MAKESPAN_DEVICES]) {
    memset(loads, 0, MAKESPAN_DEVICES * sizeof loads[0]);
    for (uint32_t i = 0; i < INPUTS; i++) loads[home_of(i)].has[i] = true;
}

static double job_ns(const work *job, int device, bool data, double instructions) {
    return LAUNCH_NS + job->blocks * instructions / speed_of(device, data);
}

static double end_on(const load *load, const work *job, int device, bool data, double instructions) {
    double copy = data && !load->has[job->input] ? COPY_NS + (double)INPUT_BYTES * 1000 / BYTES_PER_US : 0;
    return load->ns + copy + job_ns(job, device, data, instructions);
}

static void give(load *load, const work *job, int device, bool data, double instructions) {
    load->ns = end_on(load, job, device, data, instructions);
    load->has[job->input] = true;
}

static double longest_us(const load loads[MAKESPAN_DEVICES]) {
    double longest = 0;
    for (int d = 0; d < MAKESPAN_DEVICES; d++)
        if (loads[d].ns > longest) longest = loads[d].ns;
    return longest / 1000;
}

static double placed_us(const work jobs[MAKESPAN_JOBS], bool data, double instructions) {
    load loads[MAKESPAN_DEVICES];
    begin(loads);
    for (int j = 0; j < MAKESPAN_JOBS; j++) give(&loads[jobs[j].device], &jobs[j], jobs[j].device, data, instructions);
    return longest_us(loads);
}

static double best_us(const work jobs[MAKESPAN_JOBS], bool data, double instructions) {
    work sorted[MAKESPAN_JOBS];
    load loads[MAKESPAN_DEVICES];
    memcpy(sorted, jobs, sizeof sorted);
    qsort(sorted, MAKESPAN_JOBS, sizeof sorted[0], by_blocks);
    begin(loads);
    for (int j = MAKESPAN_JOBS; j-- > 0;) {
        int best = 0;
        for (int d = 1; d < MAKESPAN_DEVICES; d++)
            if (end_on(&loads[d], &sorted[j], d, data, instructions) <
                end_on(&loads[best], &sorted[j], best, data, instructions))
                best = d;
        give(&loads[best], &sorted[j], best, data, instructions);
    }
    return longest_us(loads);
}

static double bound_us(const work jobs[MAKESPAN_JOBS], bool data, double instructions) {
    double work = 0, speed = 0;
    for (int j = 0; j < MAKESPAN_JOBS; j++) work += jobs[j].blocks * instructions;
    for (int d = 0; d < MAKESPAN_DEVICES; d++) speed += speed_of(d, data);
    return work / speed / 1000;
}

/* ------------------------------------------------------------------------------------------------------ in Muster -- */

typedef struct stage {
    muster_runtime *runtime;
    muster_program *program;
    muster_kernel *alone, *reader; /* nothing, mix32 */
    muster_buffer *common;         /* on every device */
    muster_buffer *inputs[INPUTS]; /* on one each */
} stage;

/* Asks another policy, and remembers what it said of each job. */
typedef struct witness {
    const muster_placement_policy *policy;
    work *jobs; /* NULL: not yet */
} witness;

static int remember(void *user, const muster_placement_request *request) {
    witness *w = user;
    int device = w->policy->place(w->policy->user, request);
    if (w->jobs) w->jobs[request->job].device = device;
    return device;
}

static void open_stage(stage *s, witness *w, bool data, const char *cache) {
    char machine[1024];
    describe_machine(data, machine);
    muster_placement_policy policy = {sizeof policy, "witness", w, w->policy->flags, remember};
    muster_config config = {.struct_size = sizeof config,
                            .driver = "sim",
                            .sim = machine,
                            .cache_dir = cache,
                            .policy = &policy,
                            .seed = 1,
                            .flags = MUSTER_RUNTIME_NO_STEALING};
    MUST(muster_runtime_create(&config, &s->runtime, &error));
    MUST(muster_program_from_ptx(s->runtime, test_kernels_ptx, 0, "makespan", &s->program, &error));
    MUST(muster_program_kernel(s->program, "nothing", &s->alone, &error));
    MUST(muster_program_kernel(s->program, "mix32", &s->reader, &error));
}

static void close_stage(stage *s) { MUST(muster_runtime_destroy(s->runtime, MUSTER_FOREVER, &error)); }

static void finish(muster_runtime *runtime, muster_graph *graph) {
    muster_run *run;
    MUST(muster_submit(runtime, graph, &run, &error));
    MUST(muster_run_wait(run, MUSTER_FOREVER, &error));
    muster_run_destroy(run);
    muster_graph_destroy(graph);
}

static void add_job(const stage *s, muster_graph *graph, bool data, uint32_t blocks, uint32_t input, int device) {
    const uint32_t words = blocks * THREADS;
    muster_buffer *own = NULL;
    if (data) MUST(muster_buffer_create(s->runtime, 4 * (uint64_t)words, NULL, &own, &error));
    const muster_arg common = muster_buffer_arg(s->common, MUSTER_READ);
    const muster_arg alone[] = {common, common};
    const muster_arg reader[] = {muster_buffer_arg(own, MUSTER_WRITE), muster_buffer_arg(s->inputs[input], MUSTER_READ),
                                 muster_u32_arg(1), muster_u32_arg(0), muster_u32_arg(words)};
    const muster_dispatch dispatch = {.struct_size = sizeof dispatch,
                                      .kernel = data ? s->reader : s->alone,
                                      .grid = {blocks, 0, 0},
                                      .block = {THREADS, 0, 0},
                                      .arg_count = data ? 5 : 2,
                                      .args = data ? reader : alone,
                                      .pin_device = device >= 0,
                                      .device = device >= 0 ? device : 0};
    MUST(muster_graph_dispatch(graph, &dispatch, NULL, &error));
    muster_buffer_destroy(own); /* the graph keeps it */
}

static void spread_inputs(stage *s) {
    static uint32_t content[INPUT_BYTES / 4];
    muster_graph *graph;
    MUST(muster_graph_create(s->runtime, &graph, &error));
    MUST(muster_buffer_create(s->runtime, 4096, content, &s->common, &error));
    for (int d = 0; d < MAKESPAN_DEVICES; d++) MUST(muster_graph_prefetch(graph, s->common, 0, 0, d, NULL, &error));
    for (uint32_t i = 0; i < INPUTS; i++) {
        MUST(muster_buffer_create(s->runtime, INPUT_BYTES, content, &s->inputs[i], &error));
        MUST(muster_graph_prefetch(graph, s->inputs[i], 0, 0, home_of(i), NULL, &error));
    }
    finish(s->runtime, graph);
}

static uint64_t instructions_of(const stage *s, int device) {
    mu_sim_statistics statistics;
    mu_sim_get_statistics(s->runtime->driver, device, &statistics);
    return statistics.instructions;
}

/* A runtime in which each device has run the kernel once. What a block takes: counted by the simulator, not measured by Muster. */
static double rehearse(const makespan_case *c, const char *cache) {
    stage s;
    witness w = {muster_placement_find(c->placement), NULL};
    double instructions = 0;
    open_stage(&s, &w, c->data, cache);
    spread_inputs(&s);
    for (int d = 0; d < MAKESPAN_DEVICES; d++) {
        muster_graph *graph;
        uint64_t before = instructions_of(&s, d);
        MUST(muster_graph_create(s.runtime, &graph, &error));
        add_job(&s, graph, c->data, MAX_BLOCKS, (uint32_t)d, d);
        finish(s.runtime, graph);
        instructions = (double)(instructions_of(&s, d) - before) / MAX_BLOCKS;
        /* Copies are measured by this machine's clock, and by large ones only. */
        atomic_store(&s.runtime->actors[d].peer_bytes_per_us, BYTES_PER_US);
        atomic_store(&s.runtime->actors[d].host_bytes_per_us, BYTES_PER_US);
    }
    close_stage(&s);
    return instructions;
}

static void hold(const stage *s, bool held) {
    for (int d = 0; d < MAKESPAN_DEVICES; d++) mu_sim_hold(s->runtime->driver, d, held);
}

static void perform(const makespan_case *c, const char *cache, work jobs[MAKESPAN_JOBS]) {
    stage s;
    witness w = {muster_placement_find(c->placement), NULL};
    muster_graph *graph;
    muster_run *run;
    open_stage(&s, &w, c->data, cache);
    spread_inputs(&s);
    MUST(muster_graph_create(s.runtime, &graph, &error));
    for (int j = 0; j < MAKESPAN_JOBS; j++) add_job(&s, graph, c->data, jobs[j].blocks, jobs[j].input, -1);
    w.jobs = jobs;
    hold(&s, true);
    MUST(muster_submit(s.runtime, graph, &run, &error));
    w.jobs = NULL; /* all of them are ready at once, and have been placed */
    hold(&s, false);
    MUST(muster_run_wait(run, MUSTER_FOREVER, &error));
    close_stage(&s);
}

void makespan_run(const makespan_case *c, const char *directory, makespan *result) {
    work jobs[MAKESPAN_JOBS];
    memset(result, 0, sizeof *result);
    draw_jobs(c, jobs);
    double instructions = rehearse(c, directory);
    perform(c, c->learnt ? directory : "", jobs);
    for (int j = 0; j < MAKESPAN_JOBS; j++) {
        if (jobs[j].device < 0 || jobs[j].device >= MAKESPAN_DEVICES) {
            fprintf(stderr, "makespan: job %d was not placed by the policy\n", j);
            exit(1);
        }
        result->jobs[jobs[j].device]++;
    }
    result->placed_us = placed_us(jobs, c->data, instructions);
    result->best_us = best_us(jobs, c->data, instructions);
    result->bound_us = bound_us(jobs, c->data, instructions);
}
