#include "scheduler/actor/bursts.h"

#include <string.h>

#include "scheduler/actor/actor.h"
#include "scheduler/actor/enqueue.h"
#include "scheduler/actor/epoch.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

enum {
    SHORTEST = 2,       /* of all bursts */
    RAMP_SHORTEST = 16, /* a burst for an idle device, which waits while it is filled */
    LOOK_SHORTEST = 64, /* the same for long kernels, against which that is nothing */
    FULL_ENOUGH = 4,    /* full bursts that tell that longer ones would be full too */
    WIDE = 16           /* so many ready launches are as quick in launch order as in a chain, however short they are */
};

static mu_burst_mode mode_of(const mu_actor *actor) { return actor->runtime->config.bursts; }

muster_status mu_bursts_create(mu_actor *actor, muster_error *error) {
    mu_bursts *bursts = &actor->bursts;
    bursts->chain_reach.longest = bursts->plan_reach.longest = MU_BURST_LONGEST;
    if (actor->runtime->config.flags & MUSTER_RUNTIME_SERIAL || mode_of(actor) == MU_BURSTS_OFF) {
        bursts->pool.refused = true;
        return MUSTER_OK;
    }
    return mu_burst_pool_create(actor, error);
}

void mu_bursts_destroy(mu_actor *actor) { mu_burst_pool_destroy(actor); }

/* -------------------------------------------------------------------------------------------------------- sending -- */

/* The burst was refused as a whole: its launches go out one by one, so that a bad one fails alone. What depends on it was
 * counted as ready already, and is caught by its failed predecessor. */
static void launch_one_by_one(mu_actor *actor) {
    mu_bursts *bursts = &actor->bursts;
    for (uint32_t i = 0; i < bursts->count; i++) mu_enqueue_again(actor, bursts->tasks[i]);
}

/* Some of the keys of what the open burst holds. */
static void some_keys(const mu_bursts *bursts, uint32_t keys[4]) {
    uint32_t found = 0;
    memset(keys, 0, 4 * sizeof *keys);
    for (uint32_t i = 0; i < 8 && found < 4; i++) {
        uint32_t key = mu_burst_key(bursts->open, i * bursts->count / 8), k = 0;
        while (k < found && keys[k] != key) k++;
        if (k == found) keys[found++] = key;
    }
}

static void send(mu_actor *actor) {
    mu_bursts *bursts = &actor->bursts;
    mu_burst *burst = bursts->open;
    mu_burst_sample *sample = NULL;
    muster_error error;
    muster_status status = MUSTER_OK;
    uint64_t reshapes = mu_counter_read(&mu_device_get_counters(actor->device)->burst_reshapes) - bursts->reshapes;
    if (bursts->count) {
        uint32_t keys[4];
        some_keys(bursts, keys);
        if (!bursts->plan.count || mu_burst_overlaps(burst))
            sample = mu_burst_pool_sample(actor, bursts->kind, bursts->count, keys);
        mu_epoch_add_calls(actor, 1);
        status = mu_burst_launch(burst, &error);
        if (!status) mu_burst_pool_sampled(actor, sample);
    }
    bursts->open = NULL;
    if (reshapes > bursts->count / 8) bursts->kind->wanted = true;
    if (status) launch_one_by_one(actor);
    bursts->count = 0;
    bursts->plan.count = bursts->plan.at = 0;
    bursts->plan.current = false;
}

static mu_burst_reach *reach_of(mu_bursts *bursts) {
    return bursts->plan.count ? &bursts->plan_reach : &bursts->chain_reach;
}

void mu_bursts_flush(mu_actor *actor) {
    mu_bursts *bursts = &actor->bursts;
    bursts->singles = 0;
    if (!bursts->open) return;
    if (bursts->count) *reach_of(bursts) = (mu_burst_reach){bursts->count, 0};
    send(actor);
}

/* The burst is not cut short. Where there is none as long as they may be, several tell that longer ones would not be either. */
static void send_full(mu_actor *actor) {
    mu_bursts *bursts = &actor->bursts;
    uint32_t capacity = mu_burst_capacity(bursts->open);
    mu_burst_reach *reach = reach_of(bursts);
    uint32_t longest = reach->longest <= capacity ? 4 * capacity : reach->longest;
    if (++reach->full % FULL_ENOUGH == 0) longest *= 2;
    reach->longest = longest < MU_BURST_LONGEST ? longest : MU_BURST_LONGEST;
    send(actor);
}

static uint64_t mix(uint64_t hash, uint64_t more) {
    hash = (hash ^ more) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

/* Of what a dispatch is given: its buffers' ranges and its values, as far as these are numbers. */
static uint64_t content_of(const muster_run *run, const mu_node *node) {
    const muster_graph *graph = run->graph;
    uint64_t hash = node->parameter_count;
    for (uint32_t i = 0; i < node->access_count; i++) {
        const mu_access *access = &graph->accesses[node->access_first + i];
        hash = mix(mix(hash, (uintptr_t)graph->buffers[access->buffer].buffer), access->low);
    }
    for (uint32_t i = 0; i < node->parameter_count; i++) {
        const mu_parameter *p = &graph->parameters[node->parameter_first + i];
        uint64_t value = 0;
        if (p->bytes && p->bytes <= sizeof value) memcpy(&value, run->values->data + p->index, p->bytes);
        hash = mix(hash, value);
    }
    return hash;
}

static void open_burst(mu_actor *actor, mu_burst_kind *kind, const mu_task *first, uint32_t key) {
    mu_bursts *bursts = &actor->bursts;
    const muster_run *run = mu_run_at(actor->runtime, first->run);
    mu_burst_sign sign = {.tag = mix((uintptr_t)run->graph, first->node) | 1,
                          .content = content_of(run, &run->graph->nodes[first->node]),
                          .key = key};
    bursts->kind = kind;
    bursts->open = mu_burst_pool_take(&bursts->pool, kind, &sign);
    bursts->reshapes = mu_counter_read(&mu_device_get_counters(actor->device)->burst_reshapes);
}

/* ---------------------------------------------------------------------------------------------------------- chains -- */

/* The longest chain that will probably be filled, and that does not keep an idle device waiting for long. */
static mu_burst_kind *choose_chain(mu_actor *actor, uint32_t expected) {
    mu_bursts *bursts = &actor->bursts;
    uint32_t limit = expected;
    switch (mode_of(actor)) {
        case MU_BURSTS_OFF: return NULL;
        case MU_BURSTS_ALWAYS: return mu_burst_pool_chain(&bursts->pool, limit < SHORTEST ? SHORTEST : limit);
        case MU_BURSTS_RANDOM: return mu_burst_pool_any(&bursts->pool, MU_BURST_LONGEST, false);
        case MU_BURSTS_AUTO: break;
    }
    uint32_t *longest = &bursts->chain_reach.longest;
    if (bursts->singles >= SHORTEST && *longest < SHORTEST) *longest = SHORTEST;
    if (limit > *longest) limit = *longest;
    /* While the device does what is in flight, so much can be filled: giving a node new arguments takes about as long as running it. */
    uint32_t busy = actor->tasks_in_flight;
    if (busy < RAMP_SHORTEST / 2) busy = RAMP_SHORTEST / 2;
    if (limit > busy) limit = busy;
    if (bursts->probing && limit > 2 * MU_BURST_SAMPLED) limit = 2 * MU_BURST_SAMPLED;
    bursts->probing = false;
    return mu_burst_pool_chain(&bursts->pool, limit);
}

/* At random sizes, a chain also ends anywhere. */
static bool ends_here(mu_actor *actor) {
    mu_burst_pool *pool = &actor->bursts.pool;
    if (mode_of(actor) != MU_BURSTS_RANDOM) return false;
    pool->random = pool->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return pool->random >> 60 == 0;
}

muster_status mu_bursts_add(mu_actor *actor, const mu_task *task, const mu_launch *launch, uint32_t expected,
                            bool *taken, muster_error *error) {
    mu_bursts *bursts = &actor->bursts;
    *taken = false;
    if (!mu_burst_takes(launch)) return MUSTER_OK;
    if (!bursts->open) {
        mu_burst_kind *kind = choose_chain(actor, expected);
        if (!kind) {
            bursts->singles++;
            return MUSTER_OK;
        }
        uint32_t key = mu_launch_key(launch->function, launch->grid, launch->block, launch->dynamic_shared_bytes);
        open_burst(actor, kind, task, key);
    }
    uint32_t node = bursts->plan.current ? bursts->plan.nodes[bursts->plan.at - 1] : bursts->count;
    muster_status status = mu_burst_set(bursts->open, node, launch, error);
    if (status) {
        /* A node that cannot be updated is launched by itself; a bad launch fails there again, and alone. */
        return muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST ? status : MUSTER_OK;
    }
    bursts->tasks[bursts->count++] = mu_task_ref_of(task);
    bursts->took = *taken = true;
    return MUSTER_OK;
}

/* -------------------------------------------------------------------------------------------------------- planning -- */

static const mu_node *node_of(const mu_actor *actor, const mu_task *task) {
    return &mu_run_at(actor->runtime, task->run)->graph->nodes[task->node];
}

/* A launch that will be asked into a burst, if its shape is. */
static bool can_be_planned(const mu_node *node) {
    return node->kind == MU_NODE_DISPATCH && !(node->flags & (MU_NODE_COOPERATIVE | MU_NODE_SCRATCH));
}

/* 0: launches of the shape are not asked into bursts. */
static uint32_t key_of(const mu_actor *actor, const mu_kernel_shape *shape) {
    mu_function function = shape->kernel->functions[actor->index];
    if (shape->extra || !function) return 0;
    return mu_launch_key(function, shape->grid, shape->block, shape->dynamic_shared_bytes);
}

/* The queue's front, up to what is no plain launch or has another priority, with the keys. Returns how many. */
static uint32_t look_at_queue(mu_actor *actor, uint32_t limit, uint32_t *keys) {
    mu_bursts *bursts = &actor->bursts;
    uint32_t count = 0, key = 0;
    const mu_task *task = actor->ready.first;
    int8_t priority = task->priority;
    const muster_run *run = NULL;
    const mu_kernel_shape *shape = NULL; /* whose key that is */
    for (; task && count < limit; task = (const mu_task *)task->message.link.next) {
        if (!run || task->run != run->slot) run = mu_run_at(actor->runtime, task->run);
        const mu_node *node = &run->graph->nodes[task->node];
        if (task->priority != priority || !can_be_planned(node)) break;
        if (node->as.dispatch != shape && !(key = key_of(actor, node->as.dispatch))) break;
        shape = node->as.dispatch;
        bursts->plan.tasks[count] = task;
        keys[count++] = key;
    }
    return count;
}

/* What the launches of the plan take, as far as is known, and how many fit the device together: some of them speak for all. Whether it is time
 * to measure. */
static bool look_up(mu_actor *actor, uint32_t count, const uint32_t *keys, uint32_t *ns, uint32_t *fit) {
    mu_bursts *bursts = &actor->bursts;
    bool due = false;
    mu_burst_pool_learn(actor);
    *ns = 0;
    *fit = MU_BURST_MAX;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t which = i * count / 4;
        mu_burst_known *known = mu_burst_pool_known(actor, node_of(actor, bursts->plan.tasks[which]), keys[which]);
        *ns += known->ns / 4;
        if (known->fit < *fit) *fit = known->fit;
        if (i == 0 || keys[which] != keys[(i - 1) * count / 4])
            due |= count >= MU_BURST_SAMPLED && mu_burst_pool_is_due(&bursts->pool, known);
    }
    return due;
}

/* The kind that serves the first of `count` tasks of the plan, or some of them, best. */
static mu_burst_kind *choose_independent(mu_actor *actor, uint32_t count, const uint32_t *keys) {
    mu_bursts *bursts = &actor->bursts;
    mu_burst_pool *pool = &bursts->pool;
    mu_burst_mode mode = mode_of(actor);
    uint32_t ns, fit;
    if (mode == MU_BURSTS_ALWAYS || mode == MU_BURSTS_RANDOM)
        return mu_burst_pool_any(pool, mode == MU_BURSTS_RANDOM && pool->launch_order ? 2 * count : count, true);
    uint32_t longest = bursts->plan_reach.longest, limit = longest < count ? longest : count;
    const muster_run *run = mu_run_at(actor->runtime, bursts->plan.tasks[0]->run);
    bool more = atomic_load_explicit(&run->unenqueued, memory_order_relaxed) > MU_BURST_LONGEST;
    /* In launch order a full burst is right whatever they take; one that is not full, if they take long. */
    mu_burst_kind *kind = pool->launch_order ? mu_burst_pool_branches(pool, limit, 0, 1, more) : NULL;
    if (kind && mu_burst_kind_capacity(pool, kind) == count) return kind;
    bool due = look_up(actor, count, keys, &ns, &fit);
    mu_burst_kind *rounded = ns >= MU_BURST_LONG_NS ? mu_burst_pool_rounded(pool, count, ns, fit) : NULL;
    if (kind || rounded) return rounded ? rounded : kind;
    bursts->plan_after = 0;
    bursts->probing |= due;
    if (bursts->probing) return NULL;
    uint32_t busy = 2 * actor->tasks_in_flight < RAMP_SHORTEST ? RAMP_SHORTEST : 2 * actor->tasks_in_flight;
    if (ns < MU_BURST_LONG_NS && limit > busy) limit = busy;
    bursts->plan_after = limit; /* if there is none for so many */
    kind = mu_burst_pool_branches(pool, limit, ns, fit, more);
    /* What cut a burst short may be over: without another one nothing would tell. */
    if (!kind && limit == longest && limit < count) bursts->plan_reach.longest = 2 * longest;
    return kind;
}

/* Gives each of `count` launches one of the burst's first `count` nodes: of its key where there is one, else any. */
static void assign(const mu_burst *burst, const uint32_t *keys, uint32_t count, uint16_t *nodes) {
    enum { SLOTS = 2 * MU_BURST_LONGEST, NOBODY = UINT16_MAX };
    struct {
        uint32_t key;
        uint16_t first; /* node of that key that is free */
    } table[SLOTS];
    uint16_t next[MU_BURST_LONGEST];
    bool taken[MU_BURST_LONGEST] = {false};
    uint32_t free_node = 0;
    if (mu_burst_has_keys(burst, keys, count)) {
        for (uint32_t i = 0; i < count; i++) nodes[i] = (uint16_t)i;
        return;
    }
    memset(table, 0, sizeof table);
    for (uint32_t i = count; i-- > 0;) {
        uint32_t key = mu_burst_key(burst, i), slot = key / 2 % SLOTS;
        if (!key) continue;
        while (table[slot].key && table[slot].key != key) slot = (slot + 1) % SLOTS;
        next[i] = table[slot].key ? table[slot].first : NOBODY;
        table[slot].key = key;
        table[slot].first = (uint16_t)i;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = keys[i] / 2 % SLOTS;
        while (table[slot].key && table[slot].key != keys[i]) slot = (slot + 1) % SLOTS;
        nodes[i] = table[slot].key ? table[slot].first : NOBODY;
        if (nodes[i] == NOBODY) continue;
        taken[nodes[i]] = true;
        table[slot].first = next[nodes[i]];
    }
    for (uint32_t i = 0; i < count; i++) {
        if (nodes[i] != NOBODY) continue;
        while (taken[free_node]) free_node++;
        nodes[i] = (uint16_t)free_node++;
    }
}

/* Whether an open chain is better cut short for what is ready: one after the other there would take several times as long. */
static bool gives_way(const mu_actor *actor) {
    const mu_bursts *bursts = &actor->bursts;
    if (bursts->plan.count || !bursts->pool.launch_order || actor->ready.count < SHORTEST) return false;
    if (actor->ready.count >= WIDE) return true;
    const mu_node *node = node_of(actor, actor->ready.first);
    return can_be_planned(node) &&
           mu_burst_pool_ns(&bursts->pool, key_of(actor, node->as.dispatch)) >= MU_BURST_LONG_NS;
}

void mu_bursts_plan(mu_actor *actor) {
    mu_bursts *bursts = &actor->bursts;
    if (bursts->plan_after) {
        bursts->plan_after--;
        return;
    }
    if (bursts->open && !gives_way(actor)) return;
    bool forced = mode_of(actor) == MU_BURSTS_ALWAYS || mode_of(actor) == MU_BURSTS_RANDOM;
    if (bursts->pool.refused && !bursts->pool.kinds[0].count) return;
    if (actor->ready.count < SHORTEST) return;
    uint32_t keys[MU_BURST_LONGEST];
    /* No further than about what the device has to do lets a burst reach. */
    uint32_t limit = 2 * actor->tasks_in_flight < LOOK_SHORTEST ? LOOK_SHORTEST : 2 * actor->tasks_in_flight;
    uint32_t count = look_at_queue(actor, limit < MU_BURST_LONGEST ? limit : MU_BURST_LONGEST, keys);
    if (bursts->pool.launch_order && count == limit && mu_burst_pool_ns(&bursts->pool, keys[0]) >= MU_BURST_LONG_NS)
        count = look_at_queue(actor, MU_BURST_LONGEST, keys);
    bursts->plan_after = count;
    mu_burst_kind *kind = count < SHORTEST ? NULL : choose_independent(actor, count, keys);
    if (!kind || (forced && ends_here(actor))) return;
    bursts->plan_after = 0;
    if (bursts->open) mu_bursts_flush(actor); /* a chain that gives way */
    open_burst(actor, kind, bursts->plan.tasks[0], keys[0]);
    bursts->plan.count = mu_burst_capacity(bursts->open);
    if (bursts->plan.count > count) bursts->plan.count = count;
    bursts->plan.at = 0;
    assign(bursts->open, keys, bursts->plan.count, bursts->plan.nodes);
}

void mu_bursts_begin(mu_actor *actor, const mu_task *task) {
    mu_bursts *bursts = &actor->bursts;
    if (bursts->plan.count == 0) return;
    bursts->plan.current = task == bursts->plan.tasks[bursts->plan.at];
    if (bursts->plan.current)
        bursts->plan.at++;
    else
        mu_bursts_flush(actor);
}

void mu_bursts_end(mu_actor *actor) {
    mu_bursts *bursts = &actor->bursts;
    bursts->plan.current = false;
    if (!bursts->open || bursts->plan.at < bursts->plan.count) return;
    if (bursts->count == mu_burst_capacity(bursts->open) || (bursts->plan.count && bursts->count == bursts->plan.count))
        send_full(actor);
    else if (bursts->plan.count || ends_here(actor))
        mu_bursts_flush(actor);
}

void mu_bursts_end_plan(mu_actor *actor) {
    if (actor->bursts.plan.count) mu_bursts_flush(actor);
}

bool mu_bursts_grow(mu_actor *actor) {
    if (mode_of(actor) == MU_BURSTS_AUTO) mu_burst_pool_learn(actor);
    return mu_burst_pool_grow(actor);
}

muster_status mu_bursts_forget(mu_actor *actor, mu_function function, muster_error *error) {
    mu_tally_forget(actor, function);
    /* Another program may share the module, and have launches of it in there. */
    mu_bursts_flush(actor);
    return mu_burst_pool_forget(actor, function, error);
}
