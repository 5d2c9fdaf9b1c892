/* Barriers of the block, of the cluster and of the warp; and gathering the lanes that a .sync instruction names. */
#include <string.h>

#include "device/sim/ptx_parse.h"
#include "device/sim/ptx_schedule.h"

static uint32_t pc_of(const ptx_context *x, const ptx_ins *i) { return (uint32_t)(i - x->module->code); }

/* Goes on behind `i` with the lanes that are left, if any. */
static unsigned leave(ptx_context *x, const ptx_ins *i) {
    if (!x->mask) return PTX_SWITCH;
    x->pc = x->start = pc_of(x, i) + 1;
    sim_ptx_update_limit(x);
    return PTX_JUMP;
}

/* ------------------------------------------------------------------------------------------------ named barriers -- */

enum {
    BAR_ARRIVE = 1,
    BAR_COUNT = 2,
    BAR_POPC = 4,
    BAR_AND = 8,
    BAR_OR = 16,
    BAR_REDUCE = BAR_POPC | BAR_AND | BAR_OR
};

static void write_reduction(const ptx_context *x, const ptx_warp *w, const ptx_group *group, const ptx_ins *i,
                            const ptx_barrier *barrier) {
    (void)x;
    lane_u32 *d = (lane_u32 *)(void *)(w->registers + group->frame + i->d);
    if (i->flags & BAR_POPC) {
        for (uint32_t rest = group->mask; rest; rest &= rest - 1) d[__builtin_ctz(rest)] = barrier->count;
        return;
    }
    bool value = i->flags & BAR_AND ? barrier->count == barrier->voters : barrier->count != 0;
    *d = value ? *d | group->mask : *d & ~group->mask;
}

static void release(ptx_context *x, unsigned id) {
    ptx_block *block = x->block;
    ptx_barrier *barrier = &block->barriers[id];
    for (uint32_t n = 0; n < block->warp_count; n++) {
        ptx_warp *w = &block->warps[n];
        for (unsigned g = 0; g < w->group_count; g++) {
            ptx_group *group = &w->groups[g];
            if (group->state != PTX_AT_BARRIER || group->barrier != id) continue;
            const ptx_ins *i = &x->module->code[group->pc];
            if (i->flags & BAR_REDUCE) write_reduction(x, w, group, i, barrier);
            group->pc++;
            group->state = PTX_READY;
            group->since = w->steps;
        }
    }
    *barrier = (ptx_barrier){0};
}

static void recheck(ptx_context *x, unsigned id) {
    const ptx_barrier *barrier = &x->block->barriers[id];
    if (!barrier->arrived) return;
    uint32_t arrived = barrier->arrived + (barrier->expected ? 0 : x->block->exited);
    if (arrived >= (barrier->expected ? barrier->expected : x->block->threads)) release(x, id);
}

void sim_ptx_recheck_barriers(ptx_context *x) {
    for (unsigned id = 0; id < PTX_BARRIERS; id++) recheck(x, id);
}

/* The lanes of `m` that name the same barrier and count as the first one; the others execute the instruction again. */
static uint32_t same_barrier(ptx_context *x, const ptx_ins *i, uint32_t m) {
    const lane_u32 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);
    unsigned first = (unsigned)__builtin_ctz(m);
    uint32_t same = 0;
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        if (a[l] == a[first] && (!(i->flags & BAR_COUNT) || b[l] == b[first])) same |= 1u << l;
    }
    return same;
}

static unsigned run_bar(ptx_context *x, const ptx_ins *i, uint32_t m) {
    uint32_t same = same_barrier(x, i, m);
    unsigned first = (unsigned)__builtin_ctz(m);
    uint32_t id = ((const lane_u32 *)ptx_slot(x, i->a))[first];
    uint32_t count = i->flags & BAR_COUNT ? ((const lane_u32 *)ptx_slot(x, i->b))[first] : 0;
    if (id >= PTX_BARRIERS)
        return sim_ptx_fault(x, i, first, CUDA_ERROR_ILLEGAL_INSTRUCTION, "barrier %u does not exist; there are %d", id,
                             PTX_BARRIERS);
    if (count % PTX_LANES || (i->flags & BAR_COUNT && !count))
        return sim_ptx_fault(x, i, first, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                             "the barrier's thread count %u is not a positive multiple of %d", count, PTX_LANES);
    ptx_account(x, i);
    if (same != m) sim_ptx_split(x, m & ~same, pc_of(x, i), PTX_READY, 0);
    ptx_block *block = x->block;
    if (count == ((block->threads + PTX_LANES - 1) & ~(uint32_t)(PTX_LANES - 1))) count = 0;
    ptx_barrier *barrier = &block->barriers[id];
    if (barrier->arrived && barrier->expected != count)
        return sim_ptx_fault(x, i, first, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                             "barrier %u is used with %u and with %u threads at once", id, barrier->expected, count);
    barrier->expected = count;
    barrier->arrived += (uint32_t)__builtin_popcount(same);
    if (i->flags & BAR_REDUCE) {
        barrier->count += (uint32_t)__builtin_popcount(*(lane_u32 *)ptx_slot(x, i->c) & same);
        barrier->voters += (uint32_t)__builtin_popcount(same);
    }
    if (!(i->flags & BAR_ARRIVE)) sim_ptx_split(x, same, pc_of(x, i), PTX_AT_BARRIER, id);
    recheck(x, id);
    return leave(x, i);
}

/* ----------------------------------------------------------------------------------------- lanes of a membermask -- */

static unsigned not_a_member(ptx_context *x, const ptx_ins *i, unsigned lane, uint32_t members) {
    return sim_ptx_fault(x, i, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                         "the membermask 0x%08x does not name the executing lane %u", members, lane);
}

unsigned sim_ptx_gather(ptx_context *x, const ptx_ins *i, uint32_t *m, uint32_t members) {
    ptx_warp *w = x->warp;
    const lane_u32 *named = ptx_slot(x, members);
    uint32_t differ = 0, first = named[__builtin_ctz(*m)];
    PTX_EACH(*m, differ |= named[l] ^ first);
    if (!differ && w->group_count == 0 && (first & w->alive) == *m) return PTX_NEXT;
    ptx_account(x, i);
    uint32_t pc = pc_of(x, i);
    for (unsigned g = 0; g < w->group_count;) {
        ptx_group *group = &w->groups[g];
        if (group->state == PTX_AT_SYNC && group->pc == pc && group->frame == x->frame && group->local == x->local) {
            *m |= group->mask;
            x->mask |= group->mask;
            *group = w->groups[--w->group_count];
        } else {
            g++;
        }
    }
    uint32_t ready = 0;
    for (uint32_t rest = *m; rest;) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        uint32_t same = 0;
        for (uint32_t other = rest; other; other &= other - 1) {
            unsigned l = (unsigned)__builtin_ctz(other);
            if (named[l] == named[lane]) same |= 1u << l;
        }
        if (same & ~named[lane]) return not_a_member(x, i, (unsigned)__builtin_ctz(same & ~named[lane]), named[lane]);
        if (!(named[lane] & w->alive & ~same)) ready |= same;
        rest &= ~same;
    }
    if (*m & ~ready) sim_ptx_split(x, *m & ~ready, pc, PTX_AT_SYNC, 0);
    if (!ready) return leave(x, i);
    *m = ready;
    x->gathered = true;
    return PTX_NEXT;
}

unsigned sim_ptx_gathered(ptx_context *x, const ptx_ins *i) {
    if (!x->gathered) return PTX_NEXT;
    x->gathered = false;
    return leave(x, i);
}

static unsigned run_warp_barrier(ptx_context *x, const ptx_ins *i, uint32_t m);

/* Lanes at any bar.warp.sync of the warp that `need` names go on. */
static void release_warp_barrier(ptx_context *x, uint32_t need) {
    ptx_warp *w = x->warp;
    for (unsigned g = 0, count = w->group_count; g < count; g++) {
        ptx_group *group = &w->groups[g];
        if (group->state != PTX_AT_SYNC || x->module->code[group->pc].run != run_warp_barrier || !(group->mask & need))
            continue;
        if (group->mask & ~need) {
            w->groups[w->group_count] = *group;
            w->groups[w->group_count++].mask = group->mask & ~need;
            group->mask &= need;
        }
        group->pc++;
        group->state = PTX_READY;
        group->since = w->steps;
    }
}

static unsigned run_warp_barrier(ptx_context *x, const ptx_ins *i, uint32_t m) {
    ptx_warp *w = x->warp;
    const lane_u32 *named = ptx_slot(x, i->a);
    unsigned lane = (unsigned)__builtin_ctz(m);
    uint32_t need = named[lane], same = 0, parked = 0;
    for (uint32_t rest = m; rest; rest &= rest - 1)
        if (named[__builtin_ctz(rest)] == need) same |= rest & -rest;
    if (same & ~need) return not_a_member(x, i, (unsigned)__builtin_ctz(same & ~need), need);
    need &= w->alive;
    if (same == m && same == x->mask && !(need & ~same)) return PTX_NEXT;
    ptx_account(x, i);
    for (unsigned g = 0; g < w->group_count; g++)
        if (w->groups[g].state == PTX_AT_SYNC && x->module->code[w->groups[g].pc].run == run_warp_barrier)
            parked |= w->groups[g].mask;
    if (same != m) sim_ptx_split(x, m & ~same, pc_of(x, i), PTX_READY, 0);
    if (need & ~(same | parked))
        sim_ptx_split(x, same, pc_of(x, i), PTX_AT_SYNC, 0);
    else
        release_warp_barrier(x, need);
    return leave(x, i);
}

/* ---------------------------------------------------------------------------------------------- cluster barriers -- */

enum { CLUSTER_ARRIVE = 1, CLUSTER_WAIT = 2 };

/* The phase of a cluster's barrier ends when every thread of its blocks that is left has arrived. */
void sim_ptx_recheck_cluster(ptx_context *x, ptx_block *block) {
    uint32_t count, arrived = 0, threads = 0;
    ptx_block *blocks = sim_ptx_cluster_blocks(x, block, &count);
    for (uint32_t b = 0; b < count; b++) {
        arrived += blocks[b].cluster_arrived + blocks[b].exited;
        threads += blocks[b].threads;
    }
    if (arrived < threads) return;
    for (uint32_t b = 0; b < count; b++) {
        blocks[b].cluster_arrived = 0;
        blocks[b].cluster_phase++;
        for (uint32_t n = 0; n < blocks[b].warp_count; n++) {
            ptx_warp *w = &blocks[b].warps[n];
            w->cluster_arrived = 0;
            for (unsigned g = 0; g < w->group_count; g++) {
                if (w->groups[g].state != PTX_AT_CLUSTER) continue;
                w->groups[g].state = PTX_READY;
                w->groups[g].since = w->steps;
                w->groups[g].pc++;
            }
        }
    }
}

static unsigned run_cluster_barrier(ptx_context *x, const ptx_ins *i, uint32_t m) {
    ptx_warp *w = x->warp;
    ptx_account(x, i);
    if (i->flags & CLUSTER_ARRIVE) {
        if (w->cluster_arrived & m)
            return sim_ptx_fault(x, i, (unsigned)__builtin_ctz(w->cluster_arrived & m), CUDA_ERROR_ILLEGAL_INSTRUCTION,
                                 "the thread arrives twice at one phase of the cluster's barrier");
        w->cluster_arrived |= m;
        x->block->cluster_arrived += (uint32_t)__builtin_popcount(m);
        sim_ptx_recheck_cluster(x, x->block);
        return leave(x, i);
    }
    /* Lanes that arrived in the current phase wait for its end; for the others it has ended already. */
    uint32_t wait = w->cluster_arrived & m;
    if (wait) sim_ptx_split(x, wait, pc_of(x, i), PTX_AT_CLUSTER, 0);
    return leave(x, i);
}

/* ------------------------------------------------------------------------------------------------------ decoding -- */

static bool decode_cluster_barrier(ptx_parser *p, ptx_source *s) {
    unsigned flags = sim_ptx_take(s, "arrive") ? CLUSTER_ARRIVE : sim_ptx_take(s, "wait") ? CLUSTER_WAIT : 0;
    if (!flags) sim_ptx_error(p, s->line, "barrier.cluster needs .arrive or .wait");
    sim_ptx_take(s, "release");
    sim_ptx_take(s, "relaxed");
    sim_ptx_take(s, "acquire");
    sim_ptx_take(s, "aligned");
    sim_ptx_expect_operands(p, s, 0, 0);
    sim_ptx_emit(p, run_cluster_barrier)->flags = (uint16_t)flags;
    sim_ptx_emit_join(p);
    return true;
}

static bool decode_bar(ptx_parser *p, ptx_source *s) {
    if (sim_ptx_take(s, "cluster")) return decode_cluster_barrier(p, s);
    if (sim_ptx_take(s, "warp")) {
        if (!sim_ptx_take(s, "sync")) sim_ptx_error(p, s->line, "bar.warp needs .sync");
        sim_ptx_expect_operands(p, s, 1, 1);
        uint32_t members = sim_ptx_value(p, &s->operands[0], PTX_B32);
        sim_ptx_emit(p, run_warp_barrier);
        sim_ptx_use(p, PTX_A, members);
        sim_ptx_emit_join(p);
        return true;
    }
    sim_ptx_take(s, "cta");
    unsigned flags = 0, first = 0;
    if (sim_ptx_take(s, "arrive"))
        flags = BAR_ARRIVE;
    else if (sim_ptx_take(s, "red"))
        flags = sim_ptx_take(s, "popc")  ? BAR_POPC
                : sim_ptx_take(s, "and") ? BAR_AND
                : sim_ptx_take(s, "or")  ? BAR_OR
                                         : 0;
    else if (!sim_ptx_take(s, "sync"))
        sim_ptx_error(p, s->line, "bar needs .sync, .arrive or .red");
    sim_ptx_take(s, "aligned");
    bool reduce = flags & BAR_REDUCE;
    ptx_type type = sim_ptx_take_type(s);
    if (reduce ? type != (flags & BAR_POPC ? PTX_U32 : PTX_PRED) : type != PTX_NONE) sim_ptx_bad_type(p, s, type);
    sim_ptx_expect_operands(p, s, reduce ? 3 : flags & BAR_ARRIVE ? 2 : 1, reduce ? 4 : 2);
    uint32_t d = 0, vote = 0, count = PTX_POOL_FALSE;
    if (reduce) {
        d = sim_ptx_destination(p, &s->operands[0], type);
        vote = sim_ptx_predicate(p, &s->operands[s->operand_count - 1]);
        first = 1;
    }
    uint32_t id = sim_ptx_value(p, &s->operands[first], PTX_B32);
    if (s->operand_count - first - reduce > 1) {
        flags |= BAR_COUNT;
        count = sim_ptx_value(p, &s->operands[first + 1], PTX_B32);
    }
    sim_ptx_emit(p, run_bar)->flags = (uint16_t)flags;
    sim_ptx_use(p, PTX_A, id);
    sim_ptx_use(p, PTX_B, count);
    if (reduce) {
        sim_ptx_define(p, PTX_D, d);
        sim_ptx_use(p, PTX_C, vote);
    }
    sim_ptx_emit_join(p);
    return true;
}

const ptx_mnemonic sim_ptx_barrier_mnemonics[] = {{"bar", decode_bar}, {"barrier", decode_bar}, {NULL, NULL}};
