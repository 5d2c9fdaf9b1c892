/* Random scenarios. Ranges are drawn so that jobs meet often: few buffers, offsets at coarse places as well as anywhere. */
#include <string.h>

#include "tests/scheduler/scenario.h"

typedef struct generator {
    uint64_t state;
    uint32_t largest_bytes;
    bool destroyed[SC_MAX_BUFFERS];
    uint32_t stops;
    scenario *out;
} generator;

static uint32_t below(generator *gen, uint32_t bound) { return sc_below(&gen->state, bound); }
static bool chance(generator *gen, uint32_t percent) { return below(gen, 100) < percent; }
static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* 1 .. limit, small ones as likely as large ones. */
static uint32_t log_uniform(generator *gen, uint32_t limit) {
    uint32_t bits = 1;
    while (bits < 31 && 1u << bits <= limit) bits++;
    uint32_t value = 1 + below(gen, 1u << below(gen, bits + 1));
    return smaller(value, limit);
}

static bool is_sum(sc_op op) { return op >= SC_SUM_I32 && op <= SC_SUM_F64; }

/* The kind of buffer that an operation's written ranges must lie in. */
static sc_kind written_kind(sc_op op) {
    if (op == SC_SUM_F32 || op == SC_SETTLE_F32) return SC_F32;
    if (op == SC_SUM_F64 || op == SC_SETTLE_F64) return SC_F64;
    return SC_RAW;
}

static void generate_buffers(generator *gen) {
    scenario *out = gen->out;
    out->buffer_count = 2 + below(gen, SC_MAX_BUFFERS - 1);
    for (uint32_t b = 0; b < out->buffer_count; b++) {
        sc_buffer *buffer = &out->buffer[b];
        uint32_t kind = b == 0 ? 9 : below(gen, 8);
        buffer->kind = kind == 0 ? SC_F32 : kind == 1 ? SC_F64 : SC_RAW;
        buffer->bytes = log_uniform(gen, chance(gen, 10) ? 65536 : 6000);
        if (gen->largest_bytes && chance(gen, 50))
            buffer->bytes = gen->largest_bytes / 4 + below(gen, gen->largest_bytes / 4 * 3);
        if (b == 0 && buffer->bytes < 512) buffer->bytes += 512; /* room for any operation */
        if (buffer->kind != SC_RAW || !chance(gen, 15)) buffer->bytes = (buffer->bytes + 7) & ~7u;
        buffer->host = chance(gen, 60);
        if (buffer->host && chance(gen, 40)) buffer->memory = chance(gen, 70) ? SC_PINNED : SC_REGISTERED;
        buffer->seed = sc_random(&gen->state);
    }
}

/* A range of `elements` elements in `buffer`, aligned to an element. False when the buffer is too small. */
static bool place(generator *gen, uint32_t buffer, uint32_t elements, uint32_t width, sc_range *range) {
    uint32_t room = gen->out->buffer[buffer].bytes / width;
    if (elements > room) return false;
    uint32_t slack = room - elements, at = 0;
    switch (below(gen, 4)) {
        case 0: at = 0; break;
        case 1: at = slack; break;
        case 2: at = smaller(slack, room / 4 * below(gen, 4)); break;
        default: at = slack ? below(gen, slack + 1) : 0; break;
    }
    range->buffer = buffer;
    range->offset = at * width;
    range->bytes = elements * width;
    return true;
}

static bool overlap(const sc_range *one, const sc_range *other) {
    return one->buffer == other->buffer && one->bytes && other->bytes && one->offset < other->offset + other->bytes &&
           other->offset < one->offset + one->bytes;
}

static bool clash(const sc_range *one, const sc_range *other) {
    return ((one->access | other->access) & MUSTER_WRITE) && overlap(one, other);
}

bool sc_jobs_conflict(const sc_job *one, const sc_job *other) {
    for (uint32_t a = 0; a < one->range_count; a++)
        for (uint32_t b = 0; b < other->range_count; b++)
            if (clash(&one->range[a], &other->range[b])) return true;
    return false;
}

static bool ranges_disjoint(const sc_job *job) {
    for (uint32_t a = 0; a < job->range_count; a++)
        for (uint32_t b = a + 1; b < job->range_count; b++)
            if (clash(&job->range[a], &job->range[b])) return false;
    return true;
}

static bool pick_buffer(generator *gen, sc_kind kind, uint32_t *buffer) {
    for (int tries = 0; tries < 12; tries++) {
        *buffer = below(gen, gen->out->buffer_count);
        if (gen->out->buffer[*buffer].kind == kind) return true;
    }
    return false;
}

static bool add_range(generator *gen, sc_job *job, uint32_t buffer, uint32_t elements, uint32_t width,
                      muster_access access, muster_cut cut) {
    sc_range *range = &job->range[job->range_count++];
    range->access = access;
    range->cut = cut;
    return place(gen, buffer, elements, width, range);
}

static bool generate_copy(generator *gen, sc_job *job) {
    uint32_t destination = below(gen, gen->out->buffer_count), source;
    sc_kind kind = gen->out->buffer[destination].kind;
    if (kind == SC_RAW)
        source = below(gen, gen->out->buffer_count);
    else if (!pick_buffer(gen, kind, &source))
        return false;
    uint32_t width = kind == SC_F32 ? 4 : kind == SC_F64 ? 8 : chance(gen, 50) ? 4 : 1;
    uint32_t room = smaller(gen->out->buffer[destination].bytes, gen->out->buffer[source].bytes) / width;
    if (!room) return false;
    uint32_t elements = chance(gen, 4) ? 0 : chance(gen, 25) ? room : log_uniform(gen, room);
    return add_range(gen, job, destination, elements, width, MUSTER_WRITE, MUSTER_CUT_REPLICATE) &&
           add_range(gen, job, source, elements, width, MUSTER_READ, MUSTER_CUT_REPLICATE);
}

/* Any part of any buffer, which is read and not changed. */
static bool generate_visit(generator *gen, sc_job *job) {
    uint32_t buffer = below(gen, gen->out->buffer_count), room = gen->out->buffer[buffer].bytes;
    if (job->op == SC_PREFETCH) job->pin = (int)below(gen, gen->out->devices);
    return add_range(gen, job, buffer, chance(gen, 40) ? room : log_uniform(gen, room), 1, MUSTER_READ,
                     MUSTER_CUT_REPLICATE);
}

static bool generate_host(generator *gen, sc_job *job) {
    uint32_t written, source = below(gen, gen->out->buffer_count);
    if (!pick_buffer(gen, SC_RAW, &written)) return false;
    uint32_t room = smaller(gen->out->buffer[written].bytes, gen->out->buffer[source].bytes) / 4;
    if (!room) return false;
    job->count = log_uniform(gen, smaller(room, 2000));
    job->scalar = (uint32_t)sc_random(&gen->state);
    return add_range(gen, job, written, job->count, 4, MUSTER_READ_WRITE, MUSTER_CUT_REPLICATE) &&
           add_range(gen, job, source, job->count, 4, MUSTER_READ, MUSTER_CUT_REPLICATE);
}

static bool generate_fill(generator *gen, sc_job *job) {
    uint32_t buffer = below(gen, gen->out->buffer_count);
    sc_kind kind = gen->out->buffer[buffer].kind;
    float small = (float)below(gen, 256);
    job->pattern_bytes = kind == SC_RAW ? 1u << below(gen, 3) : 4;
    job->pattern = (uint32_t)sc_random(&gen->state);
    if (kind == SC_F32) memcpy(&job->pattern, &small, sizeof small);
    if (kind == SC_F64) job->pattern = 0;
    if (job->pattern_bytes < 4) job->pattern &= (1u << 8 * job->pattern_bytes) - 1;
    uint32_t width = kind == SC_F64 ? 8 : job->pattern_bytes, room = gen->out->buffer[buffer].bytes / width;
    if (!room) return false;
    return add_range(gen, job, buffer, chance(gen, 30) ? room : log_uniform(gen, room), width, MUSTER_WRITE,
                     MUSTER_CUT_REPLICATE);
}

/* Grid and block for job->count elements, and how the dispatch is cut. Slices of the cut axis hold the elements of all
 * blocks of the axes below it, and the axes above it are 1, so that a slice is contiguous. */
static void generate_geometry(generator *gen, sc_job *job) {
    static const muster_dim3 blocks[] = {{32, 0, 0}, {64, 1, 1}, {7, 3, 1}, {16, 2, 2}, {128, 0, 0},
                                         {1, 1, 1},  {33, 1, 1}, {4, 4, 4}, {256, 0, 1}};
    job->block = blocks[below(gen, job->count > 256 ? 5 : sizeof blocks / sizeof *blocks)];
    if (job->op == SC_STAGE)
        job->block = (muster_dim3){job->block.x, job->block.y ? job->block.y : 1, job->block.z ? job->block.z : 1};
    uint32_t threads = job->block.x * (job->block.y ? job->block.y : 1) * (job->block.z ? job->block.z : 1);
    uint32_t blocks_needed = (job->count + threads - 1) / threads;
    uint32_t size[3] = {1, 1, 1};
    job->axis = below(gen, 3);
    job->slice_elements = threads;
    for (uint32_t axis = 0; axis < job->axis; axis++) {
        size[axis] = 1 + below(gen, smaller(3, blocks_needed));
        job->slice_elements *= size[axis];
    }
    size[job->axis] = (job->count + job->slice_elements - 1) / job->slice_elements;
    if (!job->sharded && chance(gen, 20)) size[below(gen, 3)] += 1; /* threads with nothing to do */
    job->grid = (muster_dim3){size[0], size[1], size[2]};
    if (size[2] == 1 && chance(gen, 50)) job->grid.z = 0;
}

static bool generate_kernel(generator *gen, sc_job *job) {
    uint32_t width = sc_op_element_bytes(job->op), written, source = below(gen, gen->out->buffer_count), second = 0;
    if (!pick_buffer(gen, written_kind(job->op), &written)) return false;
    bool settles = job->op == SC_SETTLE_F32 || job->op == SC_SETTLE_F64;
    uint32_t in_width = is_sum(job->op) ? 4 : width;
    uint32_t room = gen->out->buffer[is_sum(job->op) ? source : written].bytes / in_width;
    if (!is_sum(job->op) && !settles && job->op != SC_TWIDDLE)
        room = smaller(room, gen->out->buffer[source].bytes / in_width);
    uint32_t limit = chance(gen, 5) ? 4096 : 400;
    if (!room) return false;
    job->count = chance(gen, 25) ? smaller(room, limit) : log_uniform(gen, smaller(room, limit));
    job->scalar = (uint32_t)sc_random(&gen->state);
    for (int k = 0; k < SC_WEIGHTS; k++) job->weights[k] = (uint32_t)sc_random(&gen->state);
    job->sharded = chance(gen, 30);
    if (job->sharded && chance(gen, 30)) job->max_shards = 1 + below(gen, 4);

    if (is_sum(job->op)) {
        uint32_t bins = gen->out->buffer[written].bytes / width;
        if (!bins) return false;
        job->extent = log_uniform(gen, smaller(bins, 64));
        return add_range(gen, job, written, job->extent, width, MUSTER_READ_WRITE, MUSTER_CUT_REDUCE) &&
               add_range(gen, job, source, job->count, 4, MUSTER_READ, MUSTER_CUT_BLOCK);
    }
    bool updates = settles || job->op == SC_TWIDDLE;
    if (!add_range(gen, job, written, job->count, width, updates ? MUSTER_READ_WRITE : MUSTER_WRITE, MUSTER_CUT_BLOCK))
        return false;
    if (job->op == SC_PAIR && (!pick_buffer(gen, SC_RAW, &second) ||
                               !add_range(gen, job, second, job->count, width, MUSTER_READ_WRITE, MUSTER_CUT_BLOCK)))
        return false;
    if (!updates && !add_range(gen, job, source, job->count, width, MUSTER_READ, MUSTER_CUT_BLOCK)) return false;
    if (job->op != SC_MIX && job->op != SC_TWIDDLE) return true;
    second = below(gen, gen->out->buffer_count);
    room = gen->out->buffer[second].bytes / 4;
    if (!room) return false;
    job->extent = log_uniform(gen, room);
    return add_range(gen, job, second, job->extent, 4, MUSTER_READ, MUSTER_CUT_REPLICATE);
}

static void generate_job(generator *gen, sc_job *job) {
    static const sc_op often[] = {SC_COPY,    SC_COPY,    SC_FILL, SC_MIX,   SC_MIX,   SC_MIX,  SC_MIX32,   SC_TWIDDLE,
                                  SC_TWIDDLE, SC_TWIDDLE, SC_PAIR, SC_BYTES, SC_STAGE, SC_HOST, SC_PREFETCH};
    for (int tries = 0; tries < 60; tries++) {
        memset(job, 0, sizeof *job);
        job->op = chance(gen, 60) ? often[below(gen, sizeof often / sizeof *often)] : (sc_op)below(gen, SC_OP_COUNT);
        job->pin = -1;
        bool made;
        switch (job->op) {
            case SC_COPY:
            case SC_ENQUEUE: made = generate_copy(gen, job); break;
            case SC_FILL: made = generate_fill(gen, job); break;
            case SC_HOST: made = generate_host(gen, job); break;
            case SC_PREFETCH:
            case SC_READ_BACK: made = generate_visit(gen, job); break;
            default: made = generate_kernel(gen, job);
        }
        if (!made || !ranges_disjoint(job) || (job->op == SC_ENQUEUE && !job->range[0].bytes)) continue;
        if (job->op == SC_ENQUEUE && chance(gen, 35)) job->pin = (int)below(gen, gen->out->devices);
        if (job->op == SC_PAIR && !job->sharded && chance(gen, 50)) {
            job->scratch_bytes = job->range[0].bytes;
            job->range[0] = (sc_range){.access = MUSTER_READ};
        }
        if (sc_op_entry(job->op)) generate_geometry(gen, job);
        if (sc_op_entry(job->op) && !job->sharded && chance(gen, 35)) job->pin = (int)below(gen, gen->out->devices);
        return;
    }
    memset(job, 0, sizeof *job); /* buffer 0 always has room for a fill */
    job->op = SC_FILL;
    job->pin = -1;
    job->range_count = 1;
    job->range[0] = (sc_range){.bytes = 4, .access = MUSTER_WRITE};
    job->pattern_bytes = 4;
}

/* ancestors[j] has bit i when job j must follow job i, by conflict or by an edge, directly or not. */
static void find_ancestors(const sc_graph *graph, uint64_t ancestors[SC_MAX_JOBS]) {
    memset(ancestors, 0, SC_MAX_JOBS * sizeof *ancestors);
    for (uint32_t j = 0; j < graph->job_count; j++) {
        for (uint32_t i = 0; i < j; i++)
            if (sc_jobs_conflict(&graph->job[i], &graph->job[j])) ancestors[j] |= UINT64_C(1) << i;
        for (uint32_t a = 0; a < graph->job[j].after_count; a++) ancestors[j] |= UINT64_C(1) << graph->job[j].after[a];
    }
    for (uint32_t e = 0; e < graph->edge_count; e++)
        ancestors[graph->edge[e].job] |= UINT64_C(1) << graph->edge[e].predecessor;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t j = 0; j < graph->job_count; j++)
            for (uint32_t i = 0; i < graph->job_count; i++)
                if (ancestors[j] >> i & 1 && (ancestors[i] & ~ancestors[j])) {
                    ancestors[j] |= ancestors[i];
                    changed = true;
                }
    }
}

static sc_range words_of(uint32_t buffer, uint32_t first, uint32_t count, muster_access access) {
    return (sc_range){buffer, 4 * first, 4 * count, access, MUSTER_CUT_BLOCK};
}

/* Layers of independent kernels, each over the other half of a buffer than the one before: what goes out side by side where there is
 * time to collect it, and in the wrong order if anything is wrong with that. */
static void generate_layers(generator *gen, sc_graph *graph) {
    uint32_t buffer;
    if (!pick_buffer(gen, SC_RAW, &buffer) || gen->out->buffer[buffer].bytes < 512) buffer = 0;
    uint32_t half = gen->out->buffer[buffer].bytes / 8, width = 6 + below(gen, SC_MAX_JOBS - 5);
    uint32_t part = half / width, step = 1 + below(gen, width);
    int pin = chance(gen, 60) ? (int)below(gen, gen->out->devices) : -1;
    graph->job_count = width * (1 + below(gen, SC_MAX_JOBS / width));
    for (uint32_t j = 0; j < graph->job_count; j++) {
        sc_job *job = &graph->job[j];
        uint32_t layer = j / width, to = layer % 2, from = (j * step + layer) % width;
        *job = (sc_job){.op = SC_MIX32, .pin = pin, .count = smaller(part, 400), .range_count = 2};
        job->scalar = (uint32_t)sc_random(&gen->state);
        job->range[0] = words_of(buffer, to * half + j % width * part, job->count, MUSTER_WRITE);
        job->range[1] = words_of(buffer, (1 - to) * half + from * part, job->count, MUSTER_READ);
        generate_geometry(gen, job);
    }
}

static void generate_graph(generator *gen, sc_graph *graph) {
    uint64_t ancestors[SC_MAX_JOBS];
    if (chance(gen, 15)) {
        generate_layers(gen, graph);
        return;
    }
    graph->job_count = log_uniform(gen, chance(gen, 15) ? SC_MAX_JOBS : 14);
    for (uint32_t j = 0; j < graph->job_count; j++) {
        sc_job *job = &graph->job[j];
        generate_job(gen, job);
        if (!sc_op_entry(job->op)) continue;
        while (j && job->after_count < SC_MAX_AFTER && chance(gen, 15)) job->after[job->after_count++] = below(gen, j);
    }
    /* Edges in any direction, also against the order in which the jobs were added, as long as no cycle comes of it. */
    uint32_t wanted = chance(gen, 50) ? below(gen, SC_MAX_EDGES) : 0;
    for (uint32_t e = 0; e < wanted && graph->job_count > 1; e++) {
        uint32_t job = below(gen, graph->job_count), predecessor = below(gen, graph->job_count);
        find_ancestors(graph, ancestors);
        if (job == predecessor || ancestors[predecessor] >> job & 1) continue;
        graph->edge[graph->edge_count++] = (sc_edge){.job = job, .predecessor = predecessor};
    }
}

static bool takes_value(const sc_job *job) {
    return sc_op_entry(job->op) && job->op != SC_SETTLE_F32 && job->op != SC_SETTLE_F64;
}

static sc_step *add_step(generator *gen, sc_step_kind kind) {
    scenario *out = gen->out;
    sc_step *step = &out->step[out->step_count++];
    *step = (sc_step){.kind = kind, .thread = below(gen, out->threads), .of = SC_NO_STEP};
    step->seed = sc_random(&gen->state);
    return step;
}

static void add_submit(generator *gen) {
    sc_step *step = add_step(gen, SC_SUBMIT);
    step->graph = below(gen, gen->out->graph_count);
    if (gen->out->open_count && chance(gen, 50))
        step->into = 1 + below(gen, gen->out->open_count);
    else if (chance(gen, 15))
        step->limit = (sc_limit)(SC_FAR + below(gen, 2));
}

static void add_close(generator *gen) {
    if (gen->out->open_count) add_step(gen, SC_CLOSE)->into = 1 + below(gen, gen->out->open_count);
}

static void add_set(generator *gen) {
    uint32_t graph = below(gen, gen->out->graph_count), job = below(gen, gen->out->graph[graph].job_count);
    if (!takes_value(&gen->out->graph[graph].job[job])) return;
    sc_step *step = add_step(gen, SC_SET);
    step->graph = graph;
    step->job = job;
}

/* Any part of any buffer that is still there. False: there is none. */
static bool choose_part_of(generator *gen, sc_step *step, uint32_t chosen) {
    step->buffer = chosen;
    if (gen->destroyed[step->buffer]) return false;
    const sc_buffer *buffer = &gen->out->buffer[step->buffer];
    uint32_t width = buffer->kind == SC_RAW ? 1 : buffer->kind == SC_F32 ? 4 : 8;
    uint32_t elements = chance(gen, 40) ? buffer->bytes / width : log_uniform(gen, buffer->bytes / width);
    sc_range range = {0};
    place(gen, step->buffer, elements, width, &range);
    step->offset = range.offset;
    step->bytes = range.bytes;
    return true;
}

static bool choose_part(generator *gen, sc_step *step) {
    return choose_part_of(gen, step, below(gen, gen->out->buffer_count));
}

/* The step added last is kept or taken back. */
static bool keep_step(generator *gen, bool keep) {
    if (!keep) gen->out->step_count--;
    return keep;
}

static void add_wait(generator *gen) {
    uint32_t of = below(gen, gen->out->step_count), index = gen->out->step_count;
    if (gen->out->step[of].kind != SC_SUBMIT) return;
    add_step(gen, SC_WAIT)->of = of;
    keep_step(gen, !sc_step_would_block(gen->out, index));
}

/* At any moment for reading; for writing only what must fail, for what it wrote would depend on the moment. */
static void add_try(generator *gen) {
    uint32_t index = gen->out->step_count, buffer = below(gen, gen->out->buffer_count);
    sc_step *step = add_step(gen, SC_TRY);
    step->access = (muster_access)(1 + below(gen, 3));
    /* Rather one that is in other hands. */
    for (uint32_t tries = 0; tries < 20 && sc_step_holder(gen->out, index, buffer, step->access) == SC_NO_STEP; tries++)
        buffer = below(gen, gen->out->buffer_count);
    if (!keep_step(gen, choose_part_of(gen, step, buffer))) return;
    step->of = sc_step_holder(gen->out, index, step->buffer, step->access);
    if (step->of == SC_NO_STEP) step->access = MUSTER_READ;
    step->of = sc_step_holder(gen->out, index, step->buffer, step->access);
}

/* Of a graph that writes to nothing which is destroyed: its content could not be replaced. */
static void add_stop(generator *gen) {
    uint32_t index = gen->out->step_count;
    uint8_t uses[SC_MAX_BUFFERS];
    if (gen->stops == SC_MAX_STOPS) return;
    sc_step *step = add_step(gen, SC_STOP);
    step->graph = below(gen, gen->out->graph_count);
    step->into = chance(gen, 30);
    step->by_deadline = chance(gen, 50);
    step->patience_ns = chance(gen, 30) ? 0 : below(gen, 1u << (10 + below(gen, 12)));
    sc_graph_uses(&gen->out->graph[step->graph], uses);
    bool whole = true;
    for (uint32_t b = 0; b < gen->out->buffer_count; b++) whole &= !gen->destroyed[b] || !(uses[b] & MUSTER_WRITE);
    if (keep_step(gen, whole && !sc_step_would_block(gen->out, index))) gen->stops++;
}

static void add_destroy(generator *gen) {
    uint32_t index = gen->out->step_count;
    sc_step *step = add_step(gen, SC_DESTROY);
    if (!keep_step(gen,
                   choose_part(gen, step) && sc_step_holder(gen->out, index, step->buffer, MUSTER_WRITE) == SC_NO_STEP))
        return;
    gen->destroyed[step->buffer] = true;
}

enum { ROOM_FOR_RELEASES = 6 };

static void add_steps(generator *gen, uint32_t depth);

static void add_acquisition(generator *gen, uint32_t depth) {
    uint32_t acquiring = gen->out->step_count;
    sc_step *step = add_step(gen, SC_ACQUIRE);
    step->access = (muster_access)(1 + below(gen, 3));
    if (!keep_step(gen, choose_part(gen, step) && !sc_step_would_block(gen->out, acquiring))) return;
    step->tries = below(gen, 3);
    if (chance(gen, 30)) step->patience_ns = UINT64_C(1) << below(gen, 18);
    uint32_t thread = step->thread;
    add_steps(gen, depth + 1);
    sc_step *release = add_step(gen, SC_RELEASE);
    release->of = acquiring;
    release->thread = thread;
}

static void add_any_step(generator *gen, uint32_t depth) {
    uint32_t dice = below(gen, 24);
    if (dice < 8)
        add_submit(gen);
    else if (dice < 11)
        add_set(gen);
    else if (dice < 16 && depth < 3)
        add_acquisition(gen, depth);
    else if (dice < 18)
        add_try(gen);
    else if (dice < 19)
        add_wait(gen);
    else if (dice < 20)
        chance(gen, 80) ? add_wait(gen) : add_destroy(gen);
    else if (dice < 22)
        add_stop(gen);
    else
        add_close(gen);
}

/* Between an acquire and its release. */
static void add_steps(generator *gen, uint32_t depth) {
    for (uint32_t left = below(gen, 5); left > 0 && gen->out->step_count < SC_MAX_STEPS - ROOM_FOR_RELEASES; left--)
        add_any_step(gen, depth);
}

static void generate_steps(generator *gen) {
    uint32_t wanted = 2 + log_uniform(gen, SC_MAX_STEPS - 2 * ROOM_FOR_RELEASES);
    add_submit(gen);
    while (gen->out->step_count < wanted) add_any_step(gen, 0);
    for (uint32_t s = 0; s < gen->out->step_count && gen->out->threads > 1; s++)
        gen->out->step[s].early = chance(gen, 60) && sc_step_may_be_early(gen->out, s);
}

void scenario_generate(uint64_t seed, uint32_t devices, uint32_t largest_bytes, scenario *out) {
    memset(out, 0, sizeof *out);
    /* Not the seed itself: neighbouring seeds must not give shifted sequences. */
    uint64_t mixed = seed * 16 + devices;
    generator gen = {.state = sc_random(&mixed), .largest_bytes = largest_bytes, .out = out};
    out->seed = seed;
    out->devices = devices;
    out->threads = chance(&gen, 50) ? 1 : 2 + below(&gen, SC_MAX_THREADS - 1);
    out->open_count = chance(&gen, 50) ? 1 + below(&gen, SC_MAX_OPEN) : 0;
    generate_buffers(&gen);
    out->graph_count = 1 + below(&gen, SC_MAX_GRAPHS);
    for (uint32_t g = 0; g < out->graph_count; g++) generate_graph(&gen, &out->graph[g]);
    generate_steps(&gen);
}

/* ---------------------------------------------------------------------------------------------------------- memory -- */

static uint64_t bucket(uint64_t bytes) {
    const uint64_t step = 2 << 20;
    uint64_t power = 1;
    if (bytes > step) return (bytes + step - 1) / step * step;
    while (power < bytes) power *= 2;
    return power;
}

/* What the ranges of one buffer take: the whole of it, or each a place of its own, if that is more. */
static uint64_t ranges_needed_bytes(const scenario *scenario, const sc_job *job, uint32_t buffer) {
    const uint64_t alignment = 256;
    uint64_t whole = bucket(scenario->buffer[buffer].bytes), apart = 0;
    uint32_t count = 0;
    for (uint32_t r = 0; r < job->range_count; r++) {
        if (job->range[r].buffer != buffer || !job->range[r].bytes) continue;
        apart += bucket(job->range[r].bytes + alignment);
        count++;
    }
    return count > 1 && apart > whole ? apart : whole;
}

static uint64_t job_needed_bytes(const scenario *scenario, const sc_job *job) {
    bool counted[SC_MAX_BUFFERS] = {false};
    uint64_t sum = job->scratch_bytes ? bucket(job->scratch_bytes) : 0;
    if (job->op == SC_HOST || job->op == SC_READ_BACK) return 0;
    for (uint32_t r = 0; r < job->range_count; r++) {
        const sc_range *range = &job->range[r];
        if (!range->bytes || (counted[range->buffer] && !job->sharded)) continue;
        counted[range->buffer] = true;
        sum += job->sharded ? bucket(scenario->buffer[range->buffer].bytes)
                            : ranges_needed_bytes(scenario, job, range->buffer);
        if (job->sharded && range->cut == MUSTER_CUT_REDUCE) sum += bucket(range->bytes);
    }
    return sum;
}

uint64_t scenario_needed_bytes(const scenario *scenario) {
    uint64_t largest = 0;
    for (uint32_t g = 0; g < scenario->graph_count; g++)
        for (uint32_t j = 0; j < scenario->graph[g].job_count; j++) {
            uint64_t needed = job_needed_bytes(scenario, &scenario->graph[g].job[j]);
            if (needed > largest) largest = needed;
        }
    for (uint32_t s = 0; s < scenario->step_count; s++) {
        const sc_step *step = &scenario->step[s];
        const sc_buffer *buffer = &scenario->buffer[step->buffer];
        if (step->kind == SC_DESTROY && buffer->host) largest += 2 * bucket(buffer->bytes); /* several parts */
    }
    return largest;
}

uint64_t scenario_total_bytes(const scenario *scenario) {
    uint64_t sum = 0;
    for (uint32_t b = 0; b < scenario->buffer_count; b++) sum += bucket(scenario->buffer[b].bytes);
    return sum;
}

/* ---------------------------------------------------------------------------------------------------------- checks -- */

static const char *check_job(const scenario *scenario, const sc_graph *graph, uint32_t index) {
    const sc_job *job = &graph->job[index];
    for (uint32_t r = 0; r < job->range_count; r++) {
        const sc_range *range = &job->range[r];
        if (range->buffer >= scenario->buffer_count) return "a range names no buffer";
        if ((uint64_t)range->offset + range->bytes > scenario->buffer[range->buffer].bytes)
            return "a range leaves its buffer";
        if ((range->access & MUSTER_WRITE) && scenario->buffer[range->buffer].kind != SC_RAW && job->op != SC_COPY &&
            job->op != SC_ENQUEUE && job->op != SC_FILL &&
            written_kind(job->op) != scenario->buffer[range->buffer].kind)
            return "raw bytes are written to a buffer of numbers";
    }
    if (!ranges_disjoint(job)) return "a written range overlaps another of its job";
    if (job->pin >= (int)scenario->devices) return "a pin names no device";
    for (uint32_t a = 0; a < job->after_count; a++)
        if (job->after[a] >= index) return "an after names no earlier job";
    if (!sc_op_entry(job->op)) return NULL;
    uint64_t threads = (uint64_t)job->block.x * (job->block.y ? job->block.y : 1) * (job->block.z ? job->block.z : 1) *
                       job->grid.x * (job->grid.y ? job->grid.y : 1) * (job->grid.z ? job->grid.z : 1);
    if (job->count == 0 || threads < job->count) return "a grid does not cover its elements";
    const uint32_t grid[3] = {job->grid.x, job->grid.y, job->grid.z};
    if (job->sharded && (uint64_t)(grid[job->axis] - (grid[job->axis] > 0)) * job->slice_elements >= job->count)
        return "the last slice of a cut is empty";
    return NULL;
}

const char *scenario_check(const scenario *scenario) {
    for (uint32_t g = 0; g < scenario->graph_count; g++) {
        const sc_graph *graph = &scenario->graph[g];
        uint64_t ancestors[SC_MAX_JOBS];
        for (uint32_t j = 0; j < graph->job_count; j++) {
            const char *wrong = check_job(scenario, graph, j);
            if (wrong) return wrong;
        }
        find_ancestors(graph, ancestors);
        for (uint32_t j = 0; j < graph->job_count; j++)
            if (ancestors[j] >> j & 1) return "a graph has a cycle";
    }
    return sc_steps_check(scenario);
}
