/* Control flow and what acts on the thread as a whole: branches, calls, exits, fences, special registers. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "device/sim/ptx_launch.h"
#include "device/sim/ptx_parse.h"
#include "device/sim/ptx_schedule.h"

/* ------------------------------------------------------------------------------------------------ small handlers -- */

unsigned sim_ptx_nop(ptx_context *x, const ptx_ins *i, uint32_t m) {
    (void)x, (void)i, (void)m;
    return PTX_NEXT;
}

unsigned sim_ptx_trap(ptx_context *x, const ptx_ins *i, uint32_t m) {
    return sim_ptx_fault(x, i, (unsigned)__builtin_ctz(m), CUDA_ERROR_LAUNCH_FAILED, "the kernel executed trap");
}

static unsigned run_fence(ptx_context *x, const ptx_ins *i, uint32_t m) {
    (void)x, (void)i, (void)m;
#if !MU_TSAN /* which does not model fences; every strong access of the simulator is acquire or release anyway */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
    return PTX_NEXT;
}

/* nanosleep ends the slice: whoever is waited for may run now. */
static unsigned run_nanosleep(ptx_context *x, const ptx_ins *i, uint32_t m) {
    (void)m;
    ptx_account(x, i);
    x->budget = 0;
    x->pc = (uint32_t)(i - x->module->code) + 1;
    return PTX_YIELD;
}

/* --------------------------------------------------------------------------------------------- special registers -- */

enum {
    TID_X,
    TID_Y,
    TID_Z,
    NTID_X,
    NTID_Y,
    NTID_Z,
    CTAID_X,
    CTAID_Y,
    CTAID_Z,
    NCTAID_X,
    NCTAID_Y,
    NCTAID_Z,
    LANEID,
    WARPID,
    NWARPID,
    SMID,
    NSMID,
    GRIDID,
    CLOCK,
    CLOCK_HI,
    CLOCK64,
    GLOBALTIMER,
    GLOBALTIMER_LO,
    GLOBALTIMER_HI,
    LANEMASK_EQ,
    LANEMASK_LE,
    LANEMASK_LT,
    LANEMASK_GE,
    LANEMASK_GT,
    DYNAMIC_SMEM,
    TOTAL_SMEM,
    AGGR_SMEM,
    CLUSTERID_X,
    CLUSTERID_Y,
    CLUSTERID_Z,
    NCLUSTERID_X,
    NCLUSTERID_Y,
    NCLUSTERID_Z,
    CLUSTER_CTAID_X,
    CLUSTER_CTAID_Y,
    CLUSTER_CTAID_Z,
    CLUSTER_NCTAID_X,
    CLUSTER_NCTAID_Y,
    CLUSTER_NCTAID_Z,
    CLUSTER_CTARANK,
    CLUSTER_NCTARANK,
    IS_EXPLICIT_CLUSTER,
    WORKSPACE_LOW,
    WORKSPACE_HIGH,
    ZERO
};

static const struct {
    const char *name;
    int number;
    bool vector; /* has .x .y .z; the number is that of .x */
    ptx_type type;
} specials[] = {
    {"%tid", TID_X, true, PTX_U32},
    {"%ntid", NTID_X, true, PTX_U32},
    {"%ctaid", CTAID_X, true, PTX_U32},
    {"%nctaid", NCTAID_X, true, PTX_U32},
    {"%laneid", LANEID, false, PTX_U32},
    {"%warpid", WARPID, false, PTX_U32},
    {"%nwarpid", NWARPID, false, PTX_U32},
    {"%smid", SMID, false, PTX_U32},
    {"%nsmid", NSMID, false, PTX_U32},
    {"%gridid", GRIDID, false, PTX_U64},
    {"%clock", CLOCK, false, PTX_U32},
    {"%clock_hi", CLOCK_HI, false, PTX_U32},
    {"%clock64", CLOCK64, false, PTX_U64},
    {"%globaltimer", GLOBALTIMER, false, PTX_U64},
    {"%globaltimer_lo", GLOBALTIMER_LO, false, PTX_U32},
    {"%globaltimer_hi", GLOBALTIMER_HI, false, PTX_U32},
    {"%lanemask_eq", LANEMASK_EQ, false, PTX_U32},
    {"%lanemask_le", LANEMASK_LE, false, PTX_U32},
    {"%lanemask_lt", LANEMASK_LT, false, PTX_U32},
    {"%lanemask_ge", LANEMASK_GE, false, PTX_U32},
    {"%lanemask_gt", LANEMASK_GT, false, PTX_U32},
    {"%dynamic_smem_size", DYNAMIC_SMEM, false, PTX_U32},
    {"%total_smem_size", TOTAL_SMEM, false, PTX_U32},
    {"%aggr_smem_size", AGGR_SMEM, false, PTX_U32},
    {"%clusterid", CLUSTERID_X, true, PTX_U32},
    {"%nclusterid", NCLUSTERID_X, true, PTX_U32},
    {"%cluster_ctaid", CLUSTER_CTAID_X, true, PTX_U32},
    {"%cluster_nctaid", CLUSTER_NCTAID_X, true, PTX_U32},
    {"%cluster_ctarank", CLUSTER_CTARANK, false, PTX_U32},
    {"%cluster_nctarank", CLUSTER_NCTARANK, false, PTX_U32},
    {"%is_explicit_cluster", IS_EXPLICIT_CLUSTER, false, PTX_PRED},
    {"%reserved_smem_offset_begin", ZERO, false, PTX_B32},
    {"%reserved_smem_offset_end", ZERO, false, PTX_B32},
    {"%reserved_smem_offset_cap", ZERO, false, PTX_B32},
    {"%envreg1", WORKSPACE_HIGH, false, PTX_B32},
    {"%envreg2", WORKSPACE_LOW, false, PTX_B32},
};

int sim_ptx_special(ptx_name name, ptx_name component) {
    for (size_t n = 0; n < sizeof specials / sizeof *specials; n++) {
        if (!sim_ptx_name_is(name, specials[n].name)) continue;
        if (!specials[n].vector) return component.bytes ? -1 : specials[n].number;
        if (component.bytes != 1) return -1;
        switch (component.text[0]) {
            case 'x':
            case 'r': return specials[n].number;
            case 'y':
            case 'g': return specials[n].number + 1;
            case 'z':
            case 'b': return specials[n].number + 2;
            case 'w':
            case 'a': return ZERO;
            default: return -1;
        }
    }
    /* Performance counters and the other environment registers exist and hold nothing. */
    bool counter = name.bytes == 4 && memcmp(name.text, "%pm", 3) == 0 && name.text[3] >= '0' && name.text[3] <= '7';
    bool environment = (name.bytes == 8 || name.bytes == 9) && memcmp(name.text, "%envreg", 7) == 0;
    return (counter || environment) && !component.bytes ? ZERO : -1;
}

ptx_type sim_ptx_special_type(int special) {
    for (size_t n = 0; n < sizeof specials / sizeof *specials; n++)
        if (specials[n].number == special) return specials[n].type;
    return PTX_U32;
}

static unsigned run_thread_index(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    const uint16_t *tid = x->warp->tid[i->e];
    PTX_EACH(m, d[l] = tid[l]);
    return PTX_NEXT;
}

static unsigned run_lane_special(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    switch (i->e) {
        case LANEID: PTX_EACH(m, d[l] = l); break;
        case LANEMASK_EQ: PTX_EACH(m, d[l] = sim_ptx_lane_bits[l]); break;
        case LANEMASK_LE: PTX_EACH(m, d[l] = sim_ptx_lane_bits[l] * 2 - 1); break;
        case LANEMASK_LT: PTX_EACH(m, d[l] = sim_ptx_lane_bits[l] - 1); break;
        case LANEMASK_GE: PTX_EACH(m, d[l] = ~(sim_ptx_lane_bits[l] - 1)); break;
        default: PTX_EACH(m, d[l] = ~(sim_ptx_lane_bits[l] * 2 - 1)); break;
    }
    return PTX_NEXT;
}

static uint64_t special_of_block(ptx_context *x, uint32_t special) {
    const sim_launch *launch = x->launch;
    const ptx_block *block = x->block;
    const uint32_t *cluster = x->grid->cluster;
    uint32_t linear = block->id[0] + launch->grid[0] * (block->id[1] + launch->grid[1] * block->id[2]);
    switch (special) {
        case NTID_X:
        case NTID_Y:
        case NTID_Z: return launch->block[special - NTID_X];
        case CTAID_X:
        case CTAID_Y:
        case CTAID_Z: return block->id[special - CTAID_X];
        case NCTAID_X:
        case NCTAID_Y:
        case NCTAID_Z: return launch->grid[special - NCTAID_X];
        case WARPID: return x->warp->index;
        case NWARPID: return 64;
        case SMID: return launch->sm_count > 0 ? linear % (uint32_t)launch->sm_count : 0;
        case NSMID: return launch->sm_count > 0 ? (uint32_t)launch->sm_count : 1;
        case GRIDID: return x->grid->id;
        case DYNAMIC_SMEM: return launch->dynamic_shared_bytes;
        case TOTAL_SMEM:
        case AGGR_SMEM: return block->shared_bytes;
        case CLUSTERID_X:
        case CLUSTERID_Y:
        case CLUSTERID_Z: return block->id[special - CLUSTERID_X] / cluster[special - CLUSTERID_X];
        case NCLUSTERID_X:
        case NCLUSTERID_Y:
        case NCLUSTERID_Z: return launch->grid[special - NCLUSTERID_X] / cluster[special - NCLUSTERID_X];
        case CLUSTER_CTAID_X:
        case CLUSTER_CTAID_Y:
        case CLUSTER_CTAID_Z: return block->id[special - CLUSTER_CTAID_X] % cluster[special - CLUSTER_CTAID_X];
        case CLUSTER_NCTAID_X:
        case CLUSTER_NCTAID_Y:
        case CLUSTER_NCTAID_Z: return cluster[special - CLUSTER_NCTAID_X];
        case CLUSTER_CTARANK:
            return block->id[0] % cluster[0] +
                   cluster[0] * (block->id[1] % cluster[1] + cluster[1] * (block->id[2] % cluster[2]));
        /* Where cooperative groups keeps the barrier of the grid; none when the grid is not cooperative. */
        case WORKSPACE_LOW: return launch->cooperative ? (uint32_t)(uintptr_t)x->grid->workspace : 0;
        case WORKSPACE_HIGH: return launch->cooperative ? (uint64_t)(uintptr_t)x->grid->workspace >> 32 : 0;
        case CLUSTER_NCTARANK: return cluster[0] * cluster[1] * cluster[2];
        default: return 0;
    }
}

static uint64_t special_clock(ptx_context *x, const ptx_ins *i) {
    /* A warp instruction counts as a cycle of the warp's SM. */
    uint64_t cycles = x->cycles + (uint64_t)(x->slice_start - x->budget) + ((uint32_t)(i - x->module->code) - x->start);
    switch (i->e) {
        case CLOCK: return (uint32_t)cycles;
        case CLOCK_HI: return cycles >> 32;
        case CLOCK64: return cycles;
        case GLOBALTIMER_LO: return (uint32_t)mu_now_ns();
        case GLOBALTIMER_HI: return mu_now_ns() >> 32;
        default: return mu_now_ns();
    }
}

static unsigned run_special(ptx_context *x, const ptx_ins *i, uint32_t m) {
    uint64_t value = i->e >= CLOCK && i->e <= GLOBALTIMER_HI ? special_clock(x, i) : special_of_block(x, i->e);
    if (i->flags) {
        lane_u64 *d = ptx_slot(x, i->d);
        PTX_EACH(m, d[l] = value);
    } else {
        lane_u32 *d = ptx_slot(x, i->d);
        PTX_EACH(m, d[l] = (uint32_t)value);
    }
    return PTX_NEXT;
}

static unsigned run_special_predicate(ptx_context *x, const ptx_ins *i, uint32_t m) {
    const uint32_t *cluster = x->grid->cluster;
    ptx_write_predicate(x, i->d, m, cluster[0] * cluster[1] * cluster[2] > 1 ? UINT32_MAX : 0);
    return PTX_NEXT;
}

void sim_ptx_emit_special(ptx_parser *p, uint32_t destination, int special, bool guarded) {
    ptx_handler *run = special <= TID_Z                                                          ? run_thread_index
                       : special == LANEID || (special >= LANEMASK_EQ && special <= LANEMASK_GT) ? run_lane_special
                       : special == IS_EXPLICIT_CLUSTER                                          ? run_special_predicate
                                                                                                 : run_special;
    ptx_ins *i = guarded ? sim_ptx_emit(p, run) : sim_ptx_emit_unguarded(p, run);
    i->e = (uint32_t)(special <= TID_Z ? special - TID_X : special);
    i->flags = sim_ptx_type_bits(sim_ptx_special_type(special)) == 64;
    sim_ptx_define(p, PTX_D, destination);
}

/* ------------------------------------------------------------------------------------------------------ built in -- */

/* Copies a NUL-terminated string of device memory, checked byte by byte. */
static void device_string(ptx_context *x, uint64_t address, char *text, size_t bytes) {
    size_t used = 0;
    while (used + 1 < bytes) {
        const sim_range *range = sim_memory_lookup(x->launch->memory, address + used);
        if (!range) break;
        char c = *(const char *)(uintptr_t)(address + used);
        if (!c) break;
        text[used++] = c;
    }
    text[used] = '\0';
}

static uint64_t argument(const ptx_context *x, const ptx_call *call, unsigned n, unsigned lane) {
    uint64_t value = 0;
    if (n >= call->argument_count) return 0;
    const ptx_pass *pass = &call->arguments[n];
    unsigned bytes = pass->bytes > 8 ? 8 : pass->bytes;
    const unsigned char *from =
        pass->from_register
            ? (const unsigned char *)ptx_slot(x, x->module->lists[pass->from]) + lane * (pass->bytes > 4 ? 8 : 4)
            : x->warp->local + lane * x->warp->local_stride + x->local + pass->from;
    memcpy(&value, from, bytes);
    return value;
}

unsigned sim_ptx_builtin(ptx_context *x, const ptx_ins *i, const ptx_call *call, uint32_t m) {
    unsigned lane = (unsigned)__builtin_ctz(m);
    if (call->builtin == PTX_BUILTIN_ASSERTFAIL) {
        char message[128], file[128];
        device_string(x, argument(x, call, 0, lane), message, sizeof message);
        device_string(x, argument(x, call, 1, lane), file, sizeof file);
        return sim_ptx_fault(x, i, lane, CUDA_ERROR_ASSERT, "%s:%u: assertion `%s' failed", file,
                             (unsigned)argument(x, call, 2, lane), message);
    }
    /* vprintf: nothing is printed by a library; the call succeeds. */
    if (call->result_count == 1 && !call->results[0].to_register)
        for (uint32_t rest = m; rest; rest &= rest - 1) {
            uint32_t zero = 0;
            memcpy(
                x->warp->local + (unsigned)__builtin_ctz(rest) * x->warp->local_stride + x->local + call->results[0].to,
                &zero, sizeof zero);
        }
    return PTX_NEXT;
}

/* ------------------------------------------------------------------------------------------------------ decoding -- */

static bool decode_bra(ptx_parser *p, ptx_source *s) {
    sim_ptx_take(s, "uni");
    sim_ptx_expect_operands(p, s, 1, 1);
    if (s->operands[0].kind != PTX_OPERAND_LABEL) sim_ptx_error(p, s->line, "bra needs a label");
    sim_ptx_emit(p, sim_ptx_bra);
    sim_ptx_last_meta(p)->flow = PTX_FLOW_BRANCH;
    sim_ptx_reference_label(p, s->operands[0].name, false, p->module->code_count - 1);
    if (s->guard != UINT32_MAX) sim_ptx_emit_join(p);
    return true;
}

static bool decode_brx(ptx_parser *p, ptx_source *s) {
    if (!sim_ptx_take(s, "idx")) sim_ptx_error(p, s->line, "brx needs .idx");
    sim_ptx_take(s, "uni");
    sim_ptx_expect_operands(p, s, 2, 2);
    const ptx_operand *table = &s->operands[1];
    if (table->kind != PTX_OPERAND_SYMBOL || table->symbol->kind != PTX_SYMBOL_TARGETS)
        sim_ptx_error(p, s->line, "brx.idx needs a list declared with .branchtargets before it");
    uint32_t index = sim_ptx_value(p, &s->operands[0], PTX_U32);
    sim_ptx_emit(p, sim_ptx_brx)->e = table->symbol->index;
    sim_ptx_use(p, PTX_A, index);
    sim_ptx_last_meta(p)->flow = PTX_FLOW_TABLE;
    if (s->guard != UINT32_MAX) sim_ptx_emit_join(p);
    return true;
}

static bool decode_end(ptx_parser *p, ptx_source *s, bool exit) {
    sim_ptx_take(s, "uni");
    sim_ptx_expect_operands(p, s, 0, 0);
    sim_ptx_emit(p, exit || sim_ptx_function(p, p->function_index)->entry ? sim_ptx_exit : sim_ptx_ret)->b =
        p->function_index;
    sim_ptx_last_meta(p)->flow = PTX_FLOW_END;
    if (s->guard != UINT32_MAX) sim_ptx_emit_join(p);
    return true;
}

static bool decode_ret(ptx_parser *p, ptx_source *s) { return decode_end(p, s, false); }
static bool decode_exit(ptx_parser *p, ptx_source *s) { return decode_end(p, s, true); }

static bool decode_trap(ptx_parser *p, ptx_source *s) {
    sim_ptx_expect_operands(p, s, 0, 0);
    sim_ptx_emit(p, sim_ptx_trap);
    return true;
}

/* brkpt without a debugger goes on; pmevent marks what nobody watches; setmaxnreg moves registers nobody counts. */
static bool decode_brkpt(ptx_parser *p, ptx_source *s) {
    sim_ptx_expect_operands(p, s, 0, 0);
    return true;
}

static bool decode_pmevent(ptx_parser *p, ptx_source *s) {
    sim_ptx_take(s, "mask");
    sim_ptx_expect_operands(p, s, 1, 1);
    sim_ptx_immediate(p, &s->operands[0], 0, 65535, "the event");
    return true;
}

/* membar and fence. Proxies other than .alias belong to copy engines that the simulator does not have. */
static bool decode_fence(ptx_parser *p, ptx_source *s) {
    if (sim_ptx_take(s, "proxy")) {
        if (!sim_ptx_take(s, "alias")) sim_ptx_error(p, s->line, "fence.proxy: only .alias is known to the simulator");
    } else {
        (void)(sim_ptx_take(s, "sc") || sim_ptx_take(s, "acq_rel") || sim_ptx_take(s, "acquire") ||
               sim_ptx_take(s, "release"));
        if (!sim_ptx_take(s, "gl")) sim_ptx_take_scope(s);
    }
    sim_ptx_expect_operands(p, s, 0, 0);
    sim_ptx_emit(p, run_fence);
    return true;
}

static bool decode_nanosleep(ptx_parser *p, ptx_source *s) {
    if (sim_ptx_take_type(s) != PTX_U32) sim_ptx_error(p, s->line, "nanosleep needs .u32");
    sim_ptx_expect_operands(p, s, 1, 1);
    uint32_t time = sim_ptx_value(p, &s->operands[0], PTX_U32);
    sim_ptx_emit(p, run_nanosleep);
    sim_ptx_use(p, PTX_A, time);
    sim_ptx_emit_join(p);
    return true;
}

/* ---- call ---- */

/* One actual argument or result: a .param variable, a register, or (arguments) a constant. */
static ptx_pass actual(ptx_parser *p, const ptx_source *s, const ptx_operand *o, const ptx_formal *formal) {
    ptx_pass pass = {.bytes = formal ? formal->bytes : 0};
    if (o->kind == PTX_OPERAND_SYMBOL && o->symbol->kind == PTX_SYMBOL_LOCAL && o->symbol->parameter &&
        o->integer == 0) {
        pass.from = o->symbol->index;
        if (!formal) pass.bytes = o->symbol->bytes;
        if (o->symbol->bytes < pass.bytes)
            sim_ptx_error(p, s->line, "call: '%.*s' has %u bytes where %u are passed", (int)o->name.bytes, o->name.text,
                          o->symbol->bytes, pass.bytes);
        return pass;
    }
    if (o->kind == PTX_OPERAND_SYMBOL || o->kind == PTX_OPERAND_LABEL || o->kind == PTX_OPERAND_ADDRESS ||
        o->kind == PTX_OPERAND_VECTOR)
        sim_ptx_error(p, s->line, "call: an argument or result must be a .param variable, a register or a constant");
    pass.from_register = true;
    if (!formal) pass.bytes = sim_ptx_operand_bits(p, o) == 64 ? 8 : 4;
    if (formal && formal->bytes > 8)
        sim_ptx_error(p, s->line, "call: a parameter of %u bytes needs a .param variable", formal->bytes);
    return pass;
}

static ptx_type formal_type(const ptx_formal *formal, const ptx_pass *pass) {
    if (!formal) return pass->bytes == 8 ? PTX_B64 : PTX_B32;
    return formal->bytes == 8 ? PTX_B64 : formal->bytes == 4 ? PTX_B32 : formal->bytes == 2 ? PTX_B16 : formal->type;
}

static uint32_t add_call(ptx_parser *p, ptx_call call) {
    sim_module *module = p->module;
    sim_ptx_room(p, &module->calls, &p->call_capacity, module->call_count + 1, sizeof *module->calls);
    module->calls[module->call_count] = call;
    return module->call_count++;
}

static void add_edge(ptx_parser *p, uint32_t callee, uint32_t line) {
    sim_ptx_room(p, &p->call_edges, &p->call_edge_capacity, p->call_edge_count + 1, sizeof *p->call_edges);
    p->call_edges[p->call_edge_count++] = (ptx_call_edge){p->function_index, callee, line};
}

static bool decode_call(ptx_parser *p, ptx_source *s) {
    sim_ptx_take(s, "uni");
    sim_ptx_expect_operands(p, s, 1, 4);
    const ptx_operand none = {.kind = PTX_OPERAND_LIST}, *o = s->operands, *end = o + s->operand_count;
    const ptx_operand *results = o->kind == PTX_OPERAND_LIST ? o++ : &none;
    if (o == end) sim_ptx_error(p, s->line, "call names no function");
    const ptx_operand *target = o++;
    const ptx_operand *arguments = o < end && o->kind == PTX_OPERAND_LIST ? o++ : &none;
    const ptx_operand *prototype = o < end ? o++ : NULL;
    ptx_call call = {.function = UINT32_MAX,
                     .argument_count = arguments->element_count,
                     .result_count = results->element_count,
                     .line = s->line};
    const sim_function *callee = NULL;
    uint32_t pointer = 0;
    if (o != end) sim_ptx_error(p, s->line, "call has too many operands");
    if (target->kind == PTX_OPERAND_SYMBOL && target->symbol->kind == PTX_SYMBOL_FUNCTION) {
        call.function = target->symbol->index;
        callee = sim_ptx_function(p, call.function);
        if (callee->entry) sim_ptx_error(p, s->line, "call: '%s' is a kernel; only .func can be called", callee->name);
        if (callee->formal_count != call.argument_count || callee->result_count != call.result_count)
            sim_ptx_error(p, s->line, "call: '%s' has %u parameters and %u results but is called with %u and %u",
                          callee->name, callee->formal_count, callee->result_count, call.argument_count,
                          call.result_count);
    } else if (target->kind == PTX_OPERAND_REGISTER) {
        if (!prototype || prototype->kind != PTX_OPERAND_SYMBOL || prototype->symbol->kind != PTX_SYMBOL_PROTOTYPE)
            sim_ptx_error(p, s->line,
                          "an indirect call needs a prototype declared with .callprototype or .calltargets before it");
        pointer = sim_ptx_value(p, target, PTX_B64);
    } else {
        sim_ptx_error(p, s->line, "call: '%.*s' is not a function", (int)target->name.bytes,
                      target->name.text ? target->name.text : "");
    }
    call.arguments = sim_ptx_keep(p, (call.argument_count + 1) * sizeof *call.arguments);
    call.results = sim_ptx_keep(p, (call.result_count + 1) * sizeof *call.results);
    uint32_t sources[PTX_MAX_ELEMENTS], targets[PTX_MAX_ELEMENTS];
    for (uint32_t n = 0; n < call.argument_count; n++) {
        const ptx_formal *formal = callee ? &callee->formals[n] : NULL;
        call.arguments[n] = actual(p, s, &arguments->elements[n], formal);
        if (call.arguments[n].from_register)
            sources[n] = sim_ptx_value(p, &arguments->elements[n], formal_type(formal, &call.arguments[n]));
    }
    for (uint32_t n = 0; n < call.result_count; n++) {
        const ptx_formal *formal = callee ? &callee->results[n] : NULL;
        ptx_pass pass = actual(p, s, &results->elements[n], formal);
        if (pass.from_register) targets[n] = sim_ptx_destination(p, &results->elements[n], formal_type(formal, &pass));
        call.results[n] = (ptx_pass){.to_register = pass.from_register, .to = pass.from, .bytes = pass.bytes};
    }
    add_edge(p, call.function, s->line);
    ptx_ins *i = sim_ptx_emit(p, sim_ptx_call);
    i->b = p->function_index;
    i->e = p->module->call_count;
    if (call.function == UINT32_MAX) sim_ptx_use(p, PTX_A, pointer);
    sim_ptx_list_begin(p);
    for (uint32_t n = 0; n < call.result_count; n++) {
        if (!call.results[n].to_register) continue;
        call.results[n].to = p->module->list_count;
        sim_ptx_list_define(p, targets[n]);
    }
    for (uint32_t n = 0; n < call.argument_count; n++) {
        if (!call.arguments[n].from_register) continue;
        call.arguments[n].from = p->module->list_count;
        sim_ptx_list_use(p, sources[n]);
    }
    add_call(p, call);
    sim_ptx_emit_join(p);
    return true;
}

const ptx_mnemonic sim_ptx_control_mnemonics[] = {
    {"bra", decode_bra},      {"brx", decode_brx},     {"call", decode_call},           {"ret", decode_ret},
    {"exit", decode_exit},    {"trap", decode_trap},   {"brkpt", decode_brkpt},         {"pmevent", decode_pmevent},
    {"membar", decode_fence}, {"fence", decode_fence}, {"nanosleep", decode_nanosleep}, {NULL, NULL}};
