#include "scheduler/actor/burst_pool.h"

#include <string.h>

#include "base/error.h"
#include "scheduler/actor/actor.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

/* Chains first, by length. A launch of 3.3 us becomes a node of 0.65, and two of them sent together are through after 10 us rather
 * than 14; beyond 128 nothing more is gained. Then, for independent launches, what is of use in any case (the first of these to be made
 * finds out whether there is launch order), what is only with launch order, and what is only without. */
static const struct shape {
    uint16_t branches, length;
    uint8_t at_start, at_most;
} shapes[MU_BURST_KINDS] = {
    {1, 2, 1, 2},   {1, 4, 1, 2},  {1, 8, 1, 4},  {1, 16, 1, 4},  {1, 32, 1, 4}, {1, 64, 1, 4},
    {1, 128, 1, 8},                                                                             /* chains */
    {4, 8, 1, 4},   {4, 16, 1, 8}, {4, 32, 1, 8}, {8, 32, 1, 16},                               /* independent */
    {1, 2, 1, 2},   {1, 4, 1, 4},  {1, 8, 1, 8},  {1, 12, 1, 8},  {1, 16, 1, 8},                /* in launch order */
    {4, 4, 1, 2},   {2, 1, 0, 1},  {4, 1, 0, 1},  {8, 1, 0, 1},   {8, 2, 0, 1},  {16, 1, 0, 1}, /* without it */
    {16, 2, 0, 1},  {16, 4, 0, 1}, {32, 1, 0, 1}, {32, 2, 0, 1},  {32, 4, 0, 1}, {32, 8, 0, 1},
};
enum { CHAINS = 7, ORDER_BEGIN = 11, ORDER_END = 16 };

/* What launching costs the device and the worker (tests/bench/burst_bench.c). */
enum { GRAPH_NS = 2300, BRANCH_NS = 1200, NODE_NS = 530 };
/* The same in launch order: a kernel begins every 370 ns in one chain, every 233 in eight. */
enum { ORDER_GRAPH_NS = 1000, ORDER_BRANCH_NS = 700, ORDER_NODE_NS = 215, ORDER_ALONE_NS = 155 };
/* Kernels that run together at most, on every device of compute capability 9.0. */
enum { RESIDENT_KERNELS = 128 };
/* A launch by itself, and a node that is given the empty kernel. */
enum { LAUNCH_NS = 3300, EMPTYING_NS = 1500 };
/* Shorter branches cost the worker more than they give the device, unless kernels take long; so do shorter bursts in launch order, while
 * more launches follow. */
enum { SHORT_BRANCH = 4, SHORT_ORDER = 8 };
/* Two timed events cost as much as a launch and a half, and a chain may be the slower way: measured once in so many looks. With less than
 * so many tasks in flight the device may wait for the launch itself, for so long. In launch order that is not divided by the number of
 * kernels, and less is taken off: what decides there is whether they take tens of microseconds. */
enum { SAMPLE_EVERY = 256, SAMPLE_SOON = 16, BUSY_TASKS = 64, IDLE_LAUNCH_NS = 30000, IDLE_ORDER_NS = 10000 };
/* What is made beyond the start may take this part of the budget: a job that needs nearly all of it must still fit. */
enum { GROWTH_PART = 1024, GROWTH_STEP_BYTES = 8 << 20 };

static const struct shape *shape_of(const mu_burst_pool *pool, const mu_burst_kind *kind) {
    return &shapes[kind - pool->kinds];
}
static uint32_t capacity_of(const struct shape *shape) { return (uint32_t)shape->branches * shape->length; }

uint32_t mu_burst_kind_capacity(const mu_burst_pool *pool, const mu_burst_kind *kind) {
    return capacity_of(shape_of(pool, kind));
}
uint32_t mu_burst_kind_branches(const mu_burst_pool *pool, const mu_burst_kind *kind) {
    return shape_of(pool, kind)->branches;
}

/* Whether bursts of shape k are made, as far as is known. */
static bool is_of_use(const mu_burst_pool *pool, int k) {
    return k < ORDER_BEGIN || (k < ORDER_END) == pool->launch_order;
}

static uint32_t draw(mu_burst_pool *pool, uint32_t below) {
    pool->random = pool->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((pool->random >> 33) % below);
}

/* ---------------------------------------------------------------------------------------------------------- making -- */

static muster_status make(mu_actor *actor, mu_burst_kind *kind, muster_error *error) {
    mu_burst_pool *pool = &actor->bursts.pool;
    const struct shape *shape = shape_of(pool, kind);
    bool independent = kind - pool->kinds >= CHAINS;
    muster_error reason;
    muster_status status = mu_burst_create(actor->device, shape->branches, shape->length,
                                           independent ? MU_BURST_INDEPENDENT : MU_BURST_CHAINS,
                                           &kind->copies[kind->count].burst, &reason);
    if (!status) {
        kind->copies[kind->count++].sign = (mu_burst_sign){0};
        if (independent && !mu_burst_can_overlap(actor->device)) pool->launch_order = false;
        return MUSTER_OK;
    }
    pool->refused = true;
    if (status == MUSTER_OUT_OF_HOST_MEMORY || muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST)
        return mu_error_copy(error, &reason);
    mu_log_line(&actor->runtime->log, MUSTER_LOG_WARNING, "device %d: no bursts of %u x %u launches: %s", actor->index,
                shape->branches, shape->length, reason.message);
    return MUSTER_OK;
}

/* Where bursts are forced, there are some for the shortest backlogs too. */
static int made_at_start(const mu_actor *actor, const struct shape *shape) {
    bool forced = actor->runtime->config.bursts != MU_BURSTS_AUTO;
    return forced && capacity_of(shape) <= 8 ? 1 : shape->at_start;
}

muster_status mu_burst_pool_create(mu_actor *actor, muster_error *error) {
    mu_burst_pool *pool = &actor->bursts.pool;
    pool->random = actor->runtime->config.seed + (uint64_t)actor->index;
    pool->launch_order = mu_burst_can_overlap(actor->device);
    muster_status status = MUSTER_OK;
    for (int k = 0; k < MU_BURST_KINDS && !status && !pool->refused; k++)
        for (int i = 0; is_of_use(pool, k) && i < made_at_start(actor, &shapes[k]) && !status && !pool->refused; i++)
            status = make(actor, &pool->kinds[k], error);
    return status;
}

void mu_burst_pool_destroy(mu_actor *actor) {
    mu_burst_pool *pool = &actor->bursts.pool;
    for (int k = 0; k < MU_BURST_KINDS; k++)
        while (pool->kinds[k].count) mu_burst_destroy(pool->kinds[k].copies[--pool->kinds[k].count].burst);
    for (int i = 0; i < MU_BURST_SAMPLES; i++) {
        if (pool->samples[i].begin) mu_event_destroy(actor->device, pool->samples[i].begin);
        if (pool->samples[i].end) mu_event_destroy(actor->device, pool->samples[i].end);
        pool->samples[i].begin = pool->samples[i].end = NULL;
    }
}

static void note_growth(mu_actor *actor, const mu_ledger_view *before) {
    uint64_t fixed = mu_ledger_read(mu_device_ledger(actor->device)).fixed;
    if (fixed > before->fixed) actor->bursts.pool.grown_bytes += fixed - before->fixed;
}

bool mu_burst_pool_grow(mu_actor *actor) {
    mu_burst_pool *pool = &actor->bursts.pool;
    muster_error error;
    if (actor->lost || pool->refused) return false;
    mu_ledger_view before = mu_ledger_read(mu_device_ledger(actor->device));
    if (pool->grown_bytes + GROWTH_STEP_BYTES > before.budget / GROWTH_PART) return false;
    for (int k = 0; k < MU_BURST_KINDS; k++)
        for (uint32_t i = 0; i < pool->kinds[k].count; i++) {
            if (!mu_burst_renew(pool->kinds[k].copies[i].burst)) continue;
            note_growth(actor, &before);
            return true;
        }
    for (int k = 0; k < MU_BURST_KINDS; k++) {
        mu_burst_kind *kind = &pool->kinds[k];
        if (!kind->wanted) continue;
        kind->wanted = false;
        if (kind->count == shapes[k].at_most) continue;
        make(actor, kind, &error); /* else it goes on without; a loss shows at the next call */
        note_growth(actor, &before);
        return true;
    }
    return false;
}

muster_status mu_burst_pool_forget(mu_actor *actor, mu_function function, muster_error *error) {
    mu_burst_pool *pool = &actor->bursts.pool;
    muster_status status = MUSTER_OK;
    for (int k = 0; k < MU_BURST_KINDS; k++)
        for (uint32_t i = 0; i < pool->kinds[k].count && !status; i++)
            status = mu_burst_forget(pool->kinds[k].copies[i].burst, function, error);
    return status;
}

/* -------------------------------------------------------------------------------------------------------- choosing -- */

mu_burst_kind *mu_burst_pool_chain(mu_burst_pool *pool, uint32_t limit) {
    for (int k = CHAINS; k-- > 0;)
        if (pool->kinds[k].count && shapes[k].length <= limit) return &pool->kinds[k];
    return NULL;
}

/* Picoseconds a launch, so that small differences count. */
static uint64_t chain_cost_ps(const struct shape *shape, uint32_t ns, uint32_t fit) {
    uint32_t side_by_side = shape->branches < fit ? shape->branches : fit;
    uint64_t device_ns = (uint64_t)shape->length * (NODE_NS + (uint64_t)ns * shape->branches / side_by_side);
    return (GRAPH_NS + BRANCH_NS * (uint64_t)shape->branches + device_ns) * 1000 / capacity_of(shape);
}

/* So many of `launches` run one after the other in launch order. */
static uint32_t order_rounds(uint32_t launches, uint32_t fit) {
    uint32_t together = fit < RESIDENT_KERNELS ? fit : RESIDENT_KERNELS;
    return (launches + together - 1) / together;
}

/* Nanoseconds in launch order: kernels begin one after the other, as far as there is room, and the last one runs to its end. */
static uint64_t order_cost_ns(const struct shape *shape, uint32_t launches, uint32_t ns, uint32_t fit) {
    uint64_t graph_ns = ORDER_GRAPH_NS + ORDER_BRANCH_NS * (uint64_t)shape->branches;
    uint64_t begin_ns = (ORDER_NODE_NS + ORDER_ALONE_NS / shape->branches) * (uint64_t)capacity_of(shape);
    uint64_t room_ns = (order_rounds(launches, fit) - 1) * (uint64_t)ns;
    return graph_ns + (begin_ns > room_ns ? begin_ns : room_ns) + ns;
}

static uint64_t order_cost_ps(const struct shape *shape, uint32_t ns, uint32_t fit) {
    return order_cost_ns(shape, capacity_of(shape), ns, fit) * 1000 / capacity_of(shape);
}

/* Whether launching costs the worker too much, against what the kernels take. */
static bool is_too_short(const mu_burst_pool *pool, const struct shape *shape, uint32_t ns, bool more) {
    if (ns >= MU_BURST_LONG_NS) return false;
    return pool->launch_order ? more && capacity_of(shape) < SHORT_ORDER : shape->length < SHORT_BRANCH;
}

mu_burst_kind *mu_burst_pool_branches(mu_burst_pool *pool, uint32_t count, uint32_t ns, uint32_t fit, bool more) {
    const mu_burst_kind *chain = mu_burst_pool_chain(pool, more ? MU_BURST_LONGEST : count);
    /* Kernels beside each other share caches and memory, which is not in this reckoning: a little is no gain. */
    uint64_t best_ps = chain ? chain_cost_ps(shape_of(pool, chain), ns, fit) * 9 / 10 : UINT64_MAX;
    uint64_t missed_ps = best_ps;
    mu_burst_kind *best = NULL, *missed = NULL;
    for (int k = CHAINS; k < MU_BURST_KINDS; k++) {
        if (!is_of_use(pool, k) || capacity_of(&shapes[k]) > count || is_too_short(pool, &shapes[k], ns, more))
            continue;
        uint64_t ps = pool->launch_order ? order_cost_ps(&shapes[k], ns, fit) : chain_cost_ps(&shapes[k], ns, fit);
        if (ps < missed_ps) {
            missed_ps = ps;
            missed = &pool->kinds[k];
        }
        if (ps >= best_ps || !pool->kinds[k].count) continue;
        best_ps = ps;
        best = &pool->kinds[k];
    }
    if (missed != best) missed->wanted = true;
    return best;
}

/* As bursts that are full, the longest first. */
static uint64_t pieces_cost_ns(const mu_burst_pool *pool, uint32_t count, uint32_t ns, uint32_t fit) {
    uint64_t all_ns = 0;
    while (count) {
        const struct shape *longest = NULL;
        for (int k = CHAINS; k < MU_BURST_KINDS; k++)
            if (pool->kinds[k].count && capacity_of(&shapes[k]) <= count &&
                (!longest || capacity_of(&shapes[k]) > capacity_of(longest)))
                longest = &shapes[k];
        uint32_t launches = longest ? capacity_of(longest) : 1;
        all_ns += longest ? order_cost_ns(longest, launches, ns, fit) : LAUNCH_NS + ns;
        count -= launches;
    }
    return all_ns;
}

mu_burst_kind *mu_burst_pool_rounded(mu_burst_pool *pool, uint32_t count, uint32_t ns, uint32_t fit) {
    uint64_t best_ns = pieces_cost_ns(pool, count, ns, fit);
    mu_burst_kind *best = NULL;
    for (int k = CHAINS; k < MU_BURST_KINDS && pool->launch_order; k++) {
        uint32_t capacity = capacity_of(&shapes[k]);
        if (!pool->kinds[k].count || capacity <= count) continue;
        uint64_t all_ns = order_cost_ns(&shapes[k], count, ns, fit) + EMPTYING_NS * (uint64_t)(capacity - count);
        if (all_ns >= best_ns) continue;
        best_ns = all_ns;
        best = &pool->kinds[k];
    }
    return best;
}

mu_burst_kind *mu_burst_pool_any(mu_burst_pool *pool, uint32_t limit, bool independent) {
    mu_burst_kind *fitting[MU_BURST_KINDS];
    uint32_t count = 0;
    for (int k = independent ? CHAINS : 0; k < (independent ? MU_BURST_KINDS : CHAINS); k++) {
        if (capacity_of(&shapes[k]) > limit || !is_of_use(pool, k)) continue;
        if (pool->kinds[k].count)
            fitting[count++] = &pool->kinds[k];
        else
            pool->kinds[k].wanted = true;
    }
    return count ? fitting[draw(pool, count)] : NULL;
}

static bool was_seen(mu_burst_pool *pool, uint64_t number) {
    uint64_t *seen = &pool->seen[number % MU_BURST_SEEN];
    bool was = *seen == number;
    *seen = number;
    return was;
}

/* How well a copy that launched `last` serves what begins with `sign`. */
typedef enum fitness { NOT_ALIKE, SAME_KEY, UNUSED, SAME_TAG, SAME_CONTENT, SAME_BOTH } fitness;

static fitness fitness_of(const mu_burst_sign *last, const mu_burst_sign *sign) {
    if (!last->tag) return UNUSED;
    if (last->content == sign->content) return last->tag == sign->tag ? SAME_BOTH : SAME_CONTENT;
    if (last->tag == sign->tag) return SAME_TAG;
    return last->key == sign->key ? SAME_KEY : NOT_ALIKE;
}

mu_burst *mu_burst_pool_take(mu_burst_pool *pool, mu_burst_kind *kind, const mu_burst_sign *sign) {
    uint32_t chosen = 0, equal = 0;
    fitness best = NOT_ALIKE;
    for (uint32_t i = 0; i < kind->count; i++) {
        fitness fitness = fitness_of(&kind->copies[i].sign, sign);
        if (fitness > best) {
            best = fitness;
            equal = 0;
        }
        /* One of equals, at random: what comes in turns longer than there are copies finds some of them again. */
        if (fitness == best && draw(pool, ++equal) == 0) chosen = i;
    }
    bool tag_seen = was_seen(pool, sign->tag), content_seen = was_seen(pool, sign->content);
    kind->wanted |= (content_seen && best < SAME_CONTENT) || (tag_seen && best < SAME_TAG);
    kind->copies[chosen].sign = *sign;
    return kind->copies[chosen].burst;
}

/* ------------------------------------------------------------------------------------------------------- measuring -- */

static uint32_t fit_of(mu_actor *actor, const mu_node *node) {
    const uint32_t *block = node->as.dispatch->block;
    uint64_t blocks = mu_node_blocks(node);
    int each;
    if (mu_occupancy_cache_get(actor->occupancy, node->as.dispatch->kernel->functions[actor->index],
                               block[0] * block[1] * block[2], node->as.dispatch->dynamic_shared_bytes, &each, NULL))
        return 1;
    uint64_t resident = (uint64_t)each * (uint64_t)mu_device_capability(actor->device)->multiprocessors;
    if (blocks == 0 || resident <= blocks) return 1;
    return resident / blocks < MU_BURST_MAX ? (uint32_t)(resident / blocks) : MU_BURST_MAX;
}

mu_burst_known *mu_burst_pool_known(mu_actor *actor, const mu_node *node, uint32_t key) {
    mu_burst_known *known = &actor->bursts.pool.known[key / 2 % MU_BURST_KNOWN]; /* keys are odd */
    if (known->key != key) *known = (mu_burst_known){.key = key, .fit = fit_of(actor, node)};
    return known;
}

static mu_burst_known *find_known(mu_burst_pool *pool, uint32_t key) {
    mu_burst_known *known = &pool->known[key / 2 % MU_BURST_KNOWN];
    return key && known->key == key ? known : NULL;
}

uint32_t mu_burst_pool_ns(const mu_burst_pool *pool, uint32_t key) {
    const mu_burst_known *known = &pool->known[key / 2 % MU_BURST_KNOWN];
    return known->key == key ? known->ns : 0;
}

static mu_burst_sample *free_sample(mu_burst_pool *pool) {
    for (int i = 0; i < MU_BURST_SAMPLES; i++)
        if (!pool->samples[i].epoch) return &pool->samples[i];
    return NULL;
}

bool mu_burst_pool_is_due(mu_burst_pool *pool, mu_burst_known *known) {
    if (known->looks) known->looks--;
    return known->looks == 0 && free_sample(pool);
}

/* How much of the time between the events is no kernel's, and how many of them take their time one after the other. */
static void reckon(mu_burst_sample *sample, const struct shape *shape, bool chain, uint32_t count, uint32_t fit,
                   bool busy) {
    if (chain) {
        sample->launching_ns = GRAPH_NS + BRANCH_NS + (uint64_t)NODE_NS * count + (busy ? 0 : IDLE_LAUNCH_NS);
        sample->rounds = count;
    } else {
        sample->launching_ns = order_cost_ns(shape, count, 0, 1) + (busy ? 0 : IDLE_ORDER_NS);
        sample->rounds = order_rounds(count, fit);
    }
}

mu_burst_sample *mu_burst_pool_sample(mu_actor *actor, const mu_burst_kind *kind, uint32_t count,
                                      const uint32_t keys[4]) {
    mu_burst_pool *pool = &actor->bursts.pool;
    mu_burst_sample *sample = free_sample(pool);
    uint32_t fit = MU_BURST_MAX;
    bool due = false;
    for (int i = 0; i < 4; i++) {
        const mu_burst_known *known = find_known(pool, keys[i]);
        due |= known && known->looks == 0;
        if (known && known->fit < fit) fit = known->fit;
    }
    if (!due || !sample || count < MU_BURST_SAMPLED) return NULL;
    if (!sample->begin && mu_event_create_timed(actor->device, &sample->begin, NULL)) sample->begin = NULL;
    if (!sample->end && mu_event_create_timed(actor->device, &sample->end, NULL)) sample->end = NULL;
    if (!sample->begin || !sample->end || mu_event_record(actor->device, MU_LANE_DISPATCH, sample->begin, NULL))
        return NULL;
    memcpy(sample->keys, keys, sizeof sample->keys);
    reckon(sample, shape_of(pool, kind), kind - pool->kinds < CHAINS, count, fit,
           actor->tasks_in_flight >= count + BUSY_TASKS);
    return sample;
}

void mu_burst_pool_sampled(mu_actor *actor, mu_burst_sample *sample) {
    mu_burst_pool *pool = &actor->bursts.pool;
    if (!sample || mu_event_record(actor->device, MU_LANE_DISPATCH, sample->end, NULL)) return;
    sample->epoch = actor->timeline.open;
    for (int i = 0; i < 4; i++) {
        mu_burst_known *known = find_known(pool, sample->keys[i]);
        if (known) known->looks = SAMPLE_EVERY;
    }
}

/* What disturbs a measurement adds to it, so less is believed sooner than more; what is far from what was known is measured again soon. */
static void learn(mu_burst_known *known, const mu_burst_sample *sample, uint64_t elapsed_ns) {
    uint64_t each = elapsed_ns > sample->launching_ns ? (elapsed_ns - sample->launching_ns) / sample->rounds : 0;
    if (each > UINT32_MAX / 4) each = UINT32_MAX / 4;
    uint64_t before = known->ns, most = 3 * before + 1000;
    if ((each > 2 * before + 1000 || 2 * each + 1000 < before) && known->looks > SAMPLE_SOON)
        known->looks = SAMPLE_SOON;
    if (before) each = each < before ? (before + each) / 2 : before - before / 4 + (each < most ? each : most) / 4;
    known->ns = each ? (uint32_t)each : 1;
}

void mu_burst_pool_learn(mu_actor *actor) {
    mu_burst_pool *pool = &actor->bursts.pool;
    for (int i = 0; i < MU_BURST_SAMPLES; i++) {
        mu_burst_sample *sample = &pool->samples[i];
        uint64_t elapsed_ns;
        if (!sample->epoch || sample->epoch > actor->timeline.complete) continue;
        sample->epoch = 0;
        if (mu_event_elapsed(actor->device, sample->begin, sample->end, &elapsed_ns, NULL)) continue;
        for (int k = 0; k < 4; k++) {
            mu_burst_known *known = find_known(pool, sample->keys[k]);
            if (known) learn(known, sample, elapsed_ns);
        }
    }
}
