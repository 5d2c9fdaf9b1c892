#include "scheduler/actor/steal.h"

#include "base/clock.h"
#include "scheduler/actor/loss.h"
#include "scheduler/actor/ready.h"
#include "scheduler/memory/arrivals.h"
#include "scheduler/placement/estimate.h"
#include "scheduler/placement/placement.h"
#include "scheduler/runtime/runtime.h"

static uint64_t queued_ns(const mu_actor *actor) {
    return atomic_load_explicit(&actor->queued_ns, memory_order_relaxed);
}

void mu_steal_init(mu_actor *actor) {
    actor->steal.state = MU_STEAL_REGISTERED;
    /* Until it has had work, and so all actors have started, it looks at no other. */
    actor->steal.asked_around = true;
    actor->steal.request.kind = MU_MAIL_STEAL;
}

/* ----------------------------------------------------------------------------------------------------------- giving -- */

/* Whether what the task follows on other lanes can be waited for by an event, wherever it goes. */
static bool is_recorded(const mu_actor *actor, muster_run *run, const mu_node *node) {
    for (uint32_t i = 0; i < node->pred_count; i++) {
        const mu_task *pred = mu_run_task(run, run->graph->preds[node->pred_first + i]);
        if (pred->device == MUSTER_ANY_DEVICE) continue; /* the host's, and over, or skipped */
        if (mu_timeline_closed(&actor->runtime->actors[pred->device].timeline) < pred->epoch) return false;
    }
    return true;
}

/* Whether it comes after what this device has not done: it cannot start before that. */
static bool waits_for(const mu_actor *actor, muster_run *run, const mu_node *node) {
    uint64_t done = mu_timeline_done(&actor->timeline);
    if (run->order.gate[actor->index] > done) return true;
    for (uint32_t i = 0; i < node->pred_count; i++) {
        const mu_task *pred = mu_run_task(run, run->graph->preds[node->pred_first + i]);
        if (pred->device == actor->index && pred->epoch > done) return true;
    }
    return false;
}

/* Iterations stay together, on the device of the first. */
static bool repeats(const muster_graph *graph, const mu_node *node, uint32_t index) {
    return node->flags & MU_NODE_REPEAT ||
           (index + 1 < graph->node_count && graph->nodes[index + 1].flags & MU_NODE_REPEAT);
}

static bool may_go(const mu_actor *actor, const mu_task *task, int thief) {
    muster_run *run = mu_run_at(actor->runtime, task->run);
    const muster_graph *graph = run->graph;
    const mu_node *node = &graph->nodes[task->node];
    if (task->held || task->stolen || node->kind == MU_NODE_JOIN) return false;
    if (node->pin != MUSTER_ANY_DEVICE && !(node->flags & MU_NODE_SHARD)) return false;
    if (repeats(graph, node, task->node)) return false;
    /* How large a grid may be where its blocks synchronise is known for sure only where it runs. */
    if (node->flags & MU_NODE_COOPERATIVE || (node->kind == MU_NODE_DISPATCH && node->as.dispatch->extra)) return false;
    if (mu_run_stopped(run)) return false;
    return is_recorded(actor, run, node) && !mu_arrival_of(actor, graph, node) &&
           mu_place_candidates(actor->runtime, graph, node) & MU_LOCATION_DEVICE(thief);
}

/* Jobs on their way to a thief. */
typedef struct loot {
    mu_task_list tasks;
    uint64_t copies_ns; /* which its upload lane gets, one after the other */
} loot;

/* Whether it ends sooner there than everything here. Its copies come while what was given before runs. */
static bool pays(const mu_actor *actor, const mu_task *task, int thief, loot *loot) {
    if (actor->runtime->steals_always) return true;
    muster_run *run = mu_run_at(actor->runtime, task->run);
    const mu_node *node = &run->graph->nodes[task->node];
    muster_placement_device devices[MU_MAX_DEVICES];
    mu_place_look(actor->runtime, run->graph, node, MU_LOCATION_DEVICE(actor->index) | MU_LOCATION_DEVICE(thief),
                  devices);
    const muster_placement_device *here = &devices[actor->index], *there = &devices[thief];
    /* What a shard moves is wanted back by the next one that is meant for the device. */
    uint64_t copy_ns = node->flags & MU_NODE_SHARD ? 2 * there->copy_ns : there->copy_ns;
    uint64_t copies = loot->copies_ns + copy_ns, start = there->queued_ns;
    if (waits_for(actor, run, node) && start < actor->ns_in_flight) start = actor->ns_in_flight;
    if (start < copies) start = copies;
    if (start + there->job_ns + there->hops * (uint64_t)MU_HOP_NS + MU_STEAL_GAIN_NS >=
        here->queued_ns + here->copy_ns + here->hops * (uint64_t)MU_HOP_NS)
        return false;
    loot->copies_ns = copies;
    return true;
}

/* Whether a job that needs no copies and takes no time would. */
static bool would_gain(const mu_actor *actor, const mu_actor *thief) {
    return queued_ns(thief) + MU_STEAL_GAIN_NS < queued_ns(actor) || actor->runtime->steals_always;
}

/* Takes what may go and pays out of the ready queue, all but the first, which the device gets next. */
static void pick(mu_actor *actor, mu_actor *thief, loot *loot) {
    uint32_t looked = 0;
    mu_task *before = actor->ready.first;
    while (before != actor->ready.last && looked++ < MU_STEAL_LOOKS && would_gain(actor, thief)) {
        mu_task *task = (mu_task *)before->message.link.next;
        if (!may_go(actor, task, thief->index) || !pays(actor, task, thief->index, loot)) {
            before = task;
            continue;
        }
        mu_ready_take_after(actor, before);
        task->stolen = true;
        mu_task_hand_over(actor->runtime, actor, task, thief->index);
        mu_task_list_append(&loot->tasks, task);
    }
}

/* Those of one run travel as one message, as long as they follow each other. */
static void send(mu_actor *thief, mu_task_list *tasks) {
    for (mu_task *first; (first = mu_task_list_take(tasks));) {
        mu_task *last = first;
        while (tasks->first && tasks->first->run == first->run) {
            last->next = tasks->first->node;
            last = mu_task_list_take(tasks);
        }
        last->next = MU_NONE;
        mu_actor_post_tasks(thief, first);
    }
}

static uint32_t give(mu_actor *actor, mu_actor *thief) {
    loot loot = {{NULL, NULL, 0}, 0};
    if (mu_loss_has(actor->runtime, thief->index)) return 0;
    pick(actor, thief, &loot);
    uint32_t count = loot.tasks.count;
    mu_device_counters *counters = mu_device_counters_mutable(actor->device);
    mu_count(counters, &counters->steals_given, count);
    send(thief, &loot.tasks);
    return count;
}

static void answer(mu_actor *thief, uint32_t count) {
    thief->steal.request.kind = MU_MAIL_STOLEN;
    thief->steal.request.weight = count;
    mu_mailbox_post(&thief->mailbox, &thief->steal.request);
}

/* It has tasks that the device cannot take now. */
static bool has_to_spare(const mu_actor *actor) {
    return !actor->lost && actor->ready.first != actor->ready.last && mu_actor_is_full(actor);
}

void mu_steal_asked(mu_actor *actor, mu_message *request) {
    const mu_actor *thief = (mu_actor *)((char *)request - offsetof(mu_actor, steal.request));
    actor->steal.asking |= MU_LOCATION_DEVICE(thief->index);
}

static void answer_requests(mu_actor *actor) {
    /* What is ready is about to be enqueued: it is known soon whether something is left. */
    if (!actor->lost && actor->ready.first && !mu_actor_is_full(actor)) return;
    bool spare = has_to_spare(actor);
    for (; actor->steal.asking; actor->steal.asking &= actor->steal.asking - 1) {
        mu_actor *thief = &actor->runtime->actors[__builtin_ctzll(actor->steal.asking)];
        answer(thief, spare ? give(actor, thief) : 0);
    }
}

/* Registered requests. One is taken before anything is given for it, and put back when there was nothing: only who has it may
 * answer. Release on putting it there pairs with acquire on taking it: the request itself is whole. */
static void answer_registered(mu_actor *actor) {
    atomic_uint_fast64_t *thieves = &actor->runtime->thieves;
    uint64_t there = atomic_load_explicit(thieves, memory_order_relaxed) & ~MU_LOCATION_DEVICE(actor->index);
    if (!there) return;
    uint64_t now = mu_now_ns();
    if (now - actor->steal.looked_ns < MU_STEAL_LOOK_NS && !actor->runtime->steals_always) return;
    actor->steal.looked_ns = now;
    for (; there; there &= there - 1) {
        mu_actor *thief = &actor->runtime->actors[__builtin_ctzll(there)];
        uint64_t bit = MU_LOCATION_DEVICE(thief->index);
        if (!would_gain(actor, thief)) continue;
        if (!(atomic_fetch_and_explicit(thieves, ~bit, memory_order_acq_rel) & bit)) continue;
        uint32_t count = give(actor, thief);
        if (count)
            answer(thief, count);
        else
            atomic_fetch_or_explicit(thieves, bit, memory_order_release);
    }
}

/* ----------------------------------------------------------------------------------------------------------- asking -- */

void mu_steal_answered(mu_actor *actor, const mu_message *request) {
    mu_steal *steal = &actor->steal;
    mu_device_counters *counters = mu_device_counters_mutable(actor->device);
    mu_count(counters, &counters->steals, request->weight);
    if (request->weight)
        steal->refused = 0;
    else
        steal->refused |= MU_LOCATION_DEVICE(steal->victim);
    steal->state = MU_STEAL_OWN;
}

/* The one with the longest queue that may have something, or NULL. */
static mu_actor *choose_victim(const mu_actor *actor) {
    mu_actor *victim = NULL;
    uint64_t longest = queued_ns(actor) + MU_STEAL_GAIN_NS,
             left_out = actor->steal.refused | mu_loss_devices(actor->runtime);
    for (uint32_t d = 0; d < actor->runtime->device_count; d++) {
        mu_actor *other = &actor->runtime->actors[d];
        if (other == actor || left_out & MU_LOCATION_DEVICE(d) || queued_ns(other) <= longest) continue;
        victim = other;
        longest = queued_ns(other);
    }
    return victim;
}

static void ask(mu_actor *actor) {
    mu_steal *steal = &actor->steal;
    mu_actor *victim = choose_victim(actor);
    if (!victim) {
        steal->refused = 0;
        steal->asked_around = true;
        steal->state = MU_STEAL_REGISTERED;
        atomic_fetch_or_explicit(&actor->runtime->thieves, MU_LOCATION_DEVICE(actor->index), memory_order_release);
        return;
    }
    mu_device_counters *counters = mu_device_counters_mutable(actor->device);
    mu_count(counters, &counters->steal_requests, 1);
    steal->victim = victim->index;
    steal->state = MU_STEAL_ASKED;
    steal->request.kind = MU_MAIL_STEAL;
    mu_mailbox_post(&victim->mailbox, &steal->request);
}

/* Its registered request, to ask the one with most work now, rather than wait until somebody looks. Somebody may have it already. */
static void take_back(mu_actor *actor) {
    uint64_t bit = MU_LOCATION_DEVICE(actor->index);
    actor->steal.asked_around = true;
    if (choose_victim(actor) && atomic_fetch_and_explicit(&actor->runtime->thieves, ~bit, memory_order_acq_rel) & bit)
        actor->steal.state = MU_STEAL_OWN;
}

/* What is left ends before anything that is asked for now can be here. What waits for memory would not get it sooner. */
static bool runs_out(const mu_actor *actor) {
    return !actor->ready.first && !actor->starved.first && queued_ns(actor) < MU_SOON_NS && !actor->lost &&
           !actor->stopping;
}

void mu_steal_step(mu_actor *actor) {
    if (actor->steal.asking) answer_requests(actor);
    if (has_to_spare(actor)) answer_registered(actor);
    if (!runs_out(actor)) {
        actor->steal.asked_around = false;
        return;
    }
    if (actor->steal.state == MU_STEAL_REGISTERED && !actor->steal.asked_around) take_back(actor);
    if (actor->steal.state == MU_STEAL_OWN) ask(actor);
}
