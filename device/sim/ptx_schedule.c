/* Running warps: groups of lanes that diverge and merge, calls, exits and barriers.
 *
 * Lanes that stand at one instruction with one frame form a group. The group with the deepest frame and then the lowest
 * program counter runs first, which makes lanes that took different ways meet again where the ways join; joins are
 * explicit instructions at every label and behind every conditional branch. A group that waited long runs a slice
 * whatever its place, so that a lane may spin until another lane of its warp lets it go. */
#include "device/sim/ptx_schedule.h"

#include <string.h>

#include "base/alloc.h"

enum {
    STARVING_STEPS = 8192, /* a runnable group waits at most so many warp instructions */
    STARVING_SLICE = 512,
};

const uint32_t sim_ptx_lane_bits[PTX_LANES] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

static uint32_t pc_of(const ptx_context *x, const ptx_ins *i) { return (uint32_t)(i - x->module->code); }

/* -------------------------------------------------------------------------------------------------------- groups -- */

static void count_steps(ptx_context *x) {
    x->warp->steps += (uint64_t)(x->slice_left - x->budget);
    x->slice_left = x->budget;
}

static void add_group(ptx_warp *w, ptx_group group) {
    group.since = w->steps;
    w->groups[w->group_count++] = group;
}

void sim_ptx_split(ptx_context *x, uint32_t m, uint32_t pc, ptx_state state, unsigned barrier) {
    count_steps(x);
    add_group(x->warp, (ptx_group){.pc = pc,
                                   .mask = m,
                                   .frame = x->frame,
                                   .local = x->local,
                                   .state = (uint8_t)state,
                                   .barrier = (uint8_t)barrier});
    x->mask &= ~m;
}

void sim_ptx_update_limit(ptx_context *x) {
    const ptx_warp *w = x->warp;
    x->limit = UINT32_MAX;
    for (unsigned g = 0; g < w->group_count; g++) {
        const ptx_group *other = &w->groups[g];
        if (other->state != PTX_READY || other->frame < x->frame) continue;
        if (other->frame > x->frame)
            x->limit = 0;
        else if (other->pc > x->pc && other->pc < x->limit)
            x->limit = other->pc;
    }
}

static bool before(const ptx_group *a, const ptx_group *b) {
    return a->frame != b->frame ? a->frame > b->frame : a->pc < b->pc;
}

static bool same_place(const ptx_group *a, const ptx_group *b) {
    return a->pc == b->pc && a->frame == b->frame && a->local == b->local;
}

static void take_group(ptx_warp *w, unsigned g) { w->groups[g] = w->groups[--w->group_count]; }

static void enter(ptx_context *x, const ptx_group *group) {
    x->pc = x->start = group->pc;
    x->mask = group->mask;
    x->frame = group->frame;
    x->local = group->local;
    x->base[0] = x->warp->registers + group->frame;
}

/* Makes a runnable group the running one. False when the warp has none. */
static bool pick(ptx_context *x) {
    ptx_warp *w = x->warp;
    count_steps(x);
    int best = -1, oldest = -1;
    for (unsigned g = 0; g < w->group_count; g++) {
        if (w->groups[g].state != PTX_READY) continue;
        if (best < 0 || before(&w->groups[g], &w->groups[best])) best = (int)g;
        if (oldest < 0 || w->groups[g].since < w->groups[oldest].since) oldest = (int)g;
    }
    if (best < 0) return false;
    bool starving = oldest != best && w->steps - w->groups[oldest].since > STARVING_STEPS;
    ptx_group group = w->groups[starving ? oldest : best];
    take_group(w, (unsigned)(starving ? oldest : best));
    for (unsigned g = 0; g < w->group_count;) {
        if (w->groups[g].state == PTX_READY && same_place(&w->groups[g], &group)) {
            group.mask |= w->groups[g].mask;
            take_group(w, g);
        } else {
            g++;
        }
    }
    enter(x, &group);
    if (starving) {
        x->limit = UINT32_MAX;
        if (x->budget > STARVING_SLICE) {
            x->slice_start -= x->budget - STARVING_SLICE;
            x->budget = x->slice_left = STARVING_SLICE;
        }
    } else {
        sim_ptx_update_limit(x);
    }
    return true;
}

ptx_slice sim_ptx_run_warp(ptx_context *x, ptx_block *block, ptx_warp *w, int64_t budget) {
    x->block = block;
    x->warp = w;
    x->budget = x->slice_left = x->slice_start = budget;
    if (!pick(x)) return PTX_SLICE_BLOCKED;
    const ptx_ins *const code = x->module->code;
    for (;;) {
        const ptx_ins *i = code + x->pc;
        const uint32_t mask = x->mask;
        unsigned event = PTX_NEXT;
        for (;;) {
            uint32_t m = mask;
            unsigned guard = i->guard;
            if (guard) {
                uint32_t p = *(const lane_u32 *)(const void *)(x->base[0] + (guard >> 1) * 4);
                m &= guard & 1 ? ~p : p;
                if (!m) {
                    i++;
                    continue;
                }
            }
            event = i->run(x, i, m);
            if (event != PTX_NEXT) break;
            i++;
        }
        if (event == PTX_JUMP) continue;
        if (event == PTX_FAULT) return PTX_SLICE_FAULT;
        if (event == PTX_YIELD) sim_ptx_split(x, x->mask, x->pc, PTX_READY, 0);
        if (x->budget <= 0 || !pick(x)) {
            count_steps(x);
            return w->alive ? PTX_SLICE_RAN : PTX_SLICE_DONE;
        }
    }
}

/* ------------------------------------------------------------------------------------------------------ branches -- */

unsigned sim_ptx_join(ptx_context *x, const ptx_ins *i, uint32_t m) {
    (void)m;
    uint32_t pc = pc_of(x, i);
    if (x->budget > 0 && pc < x->limit) return PTX_NEXT;
    ptx_account(x, i);
    x->pc = pc;
    return PTX_YIELD;
}

static unsigned jump(ptx_context *x, uint32_t pc) {
    x->pc = x->start = pc;
    return PTX_JUMP;
}

/* Another group now waits at `pc` in this frame. */
static void lower_limit(ptx_context *x, uint32_t pc) {
    if (pc < x->limit) x->limit = pc;
}

unsigned sim_ptx_bra(ptx_context *x, const ptx_ins *i, uint32_t m) {
    ptx_account(x, i);
    uint32_t next = pc_of(x, i) + 1, target = i->e;
    if (m == x->mask) return jump(x, target);
    if (target < next) {
        sim_ptx_split(x, x->mask & ~m, next, PTX_READY, 0);
        lower_limit(x, next);
        return jump(x, target);
    }
    sim_ptx_split(x, m, target, PTX_READY, 0);
    lower_limit(x, target);
    return jump(x, next);
}

unsigned sim_ptx_brx(ptx_context *x, const ptx_ins *i, uint32_t m) {
    ptx_account(x, i);
    const lane_u32 *a = ptx_slot(x, i->a);
    const uint32_t *targets = &x->module->lists[i->e];
    for (uint32_t rest = m; rest;) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        uint32_t same = 0, index = a[lane];
        if (index >= targets[0])
            return sim_ptx_fault(x, i, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "the index %u is not below the %u targets",
                                 index, targets[0]);
        for (uint32_t other = rest; other; other &= other - 1) {
            unsigned l = (unsigned)__builtin_ctz(other);
            if (a[l] == index) same |= 1u << l;
        }
        sim_ptx_split(x, same, targets[1 + index], PTX_READY, 0);
        rest &= ~same;
    }
    if (!x->mask) return PTX_SWITCH;
    sim_ptx_split(x, x->mask, pc_of(x, i) + 1, PTX_READY, 0);
    return PTX_SWITCH;
}

/* ---------------------------------------------------------------------------------------------------------- exit -- */

void sim_ptx_wake_sync(ptx_warp *w) {
    for (unsigned g = 0; g < w->group_count; g++)
        if (w->groups[g].state == PTX_AT_SYNC) w->groups[g].state = PTX_READY;
}

unsigned sim_ptx_exit(ptx_context *x, const ptx_ins *i, uint32_t m) {
    ptx_account(x, i);
    ptx_warp *w = x->warp;
    x->mask &= ~m;
    w->alive &= ~m;
    x->block->exited += (uint32_t)__builtin_popcount(m);
    sim_ptx_wake_sync(w);
    sim_ptx_recheck_barriers(x);
    sim_ptx_recheck_cluster(x, x->block);
    if (!x->mask) return PTX_SWITCH;
    x->pc = x->start = pc_of(x, i) + 1;
    sim_ptx_update_limit(x);
    return PTX_JUMP;
}

/* --------------------------------------------------------------------------------------------------------- calls -- */

static bool grow_registers(ptx_context *x, size_t needed) {
    ptx_warp *w = x->warp;
    if (needed <= w->register_bytes) return true;
    if (needed > PTX_MAX_FRAME_BYTES) return false;
    size_t bytes = w->register_bytes * 2;
    while (bytes < needed) bytes *= 2;
    unsigned char *grown = mu_alloc_aligned(MU_SLOT_ALIGNMENT, bytes);
    if (!grown) return false;
    memcpy(grown, w->registers, w->register_bytes);
    memset(grown + w->register_bytes, 0, bytes - w->register_bytes);
    if (w->owns_registers) mu_free_aligned(w->registers);
    w->registers = grown;
    w->register_bytes = bytes;
    w->owns_registers = true;
    return true;
}

static bool grow_local(ptx_context *x, size_t needed) {
    ptx_warp *w = x->warp;
    if (needed <= w->local_stride) return true;
    if (needed > PTX_MAX_LOCAL_BYTES) return false;
    size_t stride = w->local_stride ? w->local_stride * 2 : 256;
    while (stride < needed) stride *= 2;
    unsigned char *grown = mu_alloc_zeroed(PTX_LANES, stride);
    if (!grown) return false;
    for (unsigned l = 0; l < PTX_LANES && w->local_stride; l++)
        memcpy(grown + l * stride, w->local + l * w->local_stride, w->local_stride);
    mu_free(w->local);
    w->local = grown;
    w->local_stride = stride;
    return true;
}

static void *lane_place(const ptx_context *x, unsigned lane, bool in_register, uint32_t place, uint32_t bytes,
                        uint32_t frame, uint32_t local) {
    if (!in_register) return x->warp->local + lane * x->warp->local_stride + local + place;
    unsigned char *slot =
        place & PTX_POOL_BIT ? x->base[1] + (place & ~PTX_POOL_BIT) : x->warp->registers + frame + place;
    return slot + lane * (bytes > 4 ? 8 : 4);
}

/* Copies one argument or result for the lanes of `m`. Registers narrower than 32 bits still occupy a 32-bit lane. */
static void pass_value(ptx_context *x, const ptx_pass *pass, uint32_t from, uint32_t to, uint32_t m,
                       uint32_t from_frame, uint32_t from_local, uint32_t to_frame, uint32_t to_local) {
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        memcpy(lane_place(x, l, pass->to_register, to, pass->bytes, to_frame, to_local),
               lane_place(x, l, pass->from_register, from, pass->bytes, from_frame, from_local), pass->bytes);
    }
}

static uint32_t operand_of(const ptx_context *x, bool in_list, uint32_t value) {
    return in_list ? x->module->lists[value] : value;
}

/* The lanes of `m` whose callee is that of the first one; the others are split off to call again. */
static unsigned resolve_indirect(ptx_context *x, const ptx_ins *i, uint32_t *m, uint32_t *function) {
    const lane_u64 *a = ptx_slot(x, i->a);
    unsigned first = (unsigned)__builtin_ctz(*m);
    uint64_t target = a[first], index = target - PTX_FUNCTION_WINDOW;
    uint32_t same = 0;
    for (uint32_t rest = *m; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        if (a[l] == target) same |= 1u << l;
    }
    const ptx_call *call = &x->module->calls[i->e];
    const sim_function *f = index < x->module->function_count ? &x->module->functions[index] : NULL;
    if (!f || !f->defined || f->entry)
        return sim_ptx_fault(x, i, first, CUDA_ERROR_INVALID_PC, "0x%llx is not the address of a function",
                             (unsigned long long)target);
    if (f->formal_count != call->argument_count || f->result_count != call->result_count)
        return sim_ptx_fault(x, i, first, CUDA_ERROR_INVALID_PC,
                             "'%s' has %u parameters and %u results but is called with %u and %u", f->name,
                             f->formal_count, f->result_count, call->argument_count, call->result_count);
    if (same != *m) sim_ptx_split(x, *m & ~same, pc_of(x, i), PTX_READY, 0);
    *m = same;
    *function = (uint32_t)index;
    return PTX_NEXT;
}

unsigned sim_ptx_call(ptx_context *x, const ptx_ins *i, uint32_t m) {
    ptx_account(x, i);
    const sim_module *module = x->module;
    const ptx_call *call = &module->calls[i->e];
    uint32_t index = call->function, next = pc_of(x, i) + 1;
    if (index == UINT32_MAX && resolve_indirect(x, i, &m, &index) != PTX_NEXT) return PTX_FAULT;
    if (call->builtin) {
        unsigned event = sim_ptx_builtin(x, i, call, m);
        if (event != PTX_NEXT) return event;
        x->pc = x->start = next;
        return PTX_JUMP;
    }
    const sim_function *caller = &module->functions[i->b], *callee = &module->functions[index];
    uint32_t frame = x->frame + caller->frame_bytes, local = x->local + caller->local_bytes;
    if (!grow_registers(x, (size_t)frame + callee->frame_bytes) || !grow_local(x, (size_t)local + callee->local_bytes))
        return sim_ptx_fault(x, i, (unsigned)__builtin_ctz(m), CUDA_ERROR_ILLEGAL_ADDRESS,
                             "the call of '%s' overflows the stack; the recursion is too deep", callee->name);
    lane_u32 *header = (lane_u32 *)(void *)(x->warp->registers + frame);
    PTX_EACH(m, header[PTX_FRAME_RETURN / 4 + l] = next; header[PTX_FRAME_BASE / 4 + l] = x->frame;
             header[PTX_FRAME_LOCAL / 4 + l] = x->local);
    for (uint32_t n = 0; n < call->argument_count; n++) {
        ptx_pass pass = call->arguments[n];
        pass.to_register = callee->formals[n].in_register;
        pass_value(x, &pass, operand_of(x, pass.from_register, pass.from), callee->formals[n].place, m, x->frame,
                   x->local, frame, local);
    }
    if (m != x->mask) sim_ptx_split(x, x->mask & ~m, next, PTX_READY, 0);
    enter(x, &(ptx_group){.pc = callee->start, .mask = m, .frame = frame, .local = local});
    sim_ptx_update_limit(x);
    return PTX_JUMP;
}

unsigned sim_ptx_ret(ptx_context *x, const ptx_ins *i, uint32_t m) {
    if (x->frame == 0) return sim_ptx_exit(x, i, m);
    ptx_account(x, i);
    const sim_module *module = x->module;
    const lane_u32 *header = (const lane_u32 *)(const void *)x->base[0];
    const lane_u32 *pcs = header + PTX_FRAME_RETURN / 4, *frames = header + PTX_FRAME_BASE / 4,
                   *locals = header + PTX_FRAME_LOCAL / 4;
    unsigned first = (unsigned)__builtin_ctz(m);
    ptx_group back = {.pc = pcs[first], .frame = frames[first], .local = locals[first]};
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        if (pcs[l] == back.pc && frames[l] == back.frame && locals[l] == back.local) back.mask |= 1u << l;
    }
    const ptx_call *call = &module->calls[module->code[back.pc - 1].e];
    const sim_function *callee = &module->functions[i->b];
    for (uint32_t n = 0; n < call->result_count; n++) {
        ptx_pass pass = call->results[n];
        pass.from_register = callee->results[n].in_register;
        pass_value(x, &pass, callee->results[n].place, operand_of(x, pass.to_register, pass.to), back.mask, x->frame,
                   x->local, back.frame, back.local);
    }
    if (back.mask != m) sim_ptx_split(x, m & ~back.mask, pc_of(x, i), PTX_READY, 0);
    if (x->mask & ~back.mask) sim_ptx_split(x, x->mask & ~back.mask, pc_of(x, i) + 1, PTX_READY, 0);
    enter(x, &back);
    sim_ptx_update_limit(x);
    return PTX_JUMP;
}
