/* mov, selp, slct, cvta, isspacep, mapa, and the logic of predicates. */
#include "device/sim/ptx_parse.h"

#define UNARY(NAME, D, A, EXPRESSION)                                                                                  \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        D *d = ptx_slot(x, i->d);                                                                                      \
        const A *a = ptx_slot(x, i->a);                                                                                \
        PTX_EACH(m, d[l] = (D)(EXPRESSION));                                                                           \
        return PTX_NEXT;                                                                                               \
    }

UNARY(run_mov32, lane_u32, lane_u32, a[l])
UNARY(run_mov64, lane_u64, lane_u64, a[l])

unsigned sim_ptx_widen(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u64 *d = ptx_slot(x, i->d);
    const lane_u32 *a = ptx_slot(x, i->a);
    PTX_EACH(m, d[l] = a[l]);
    return PTX_NEXT;
}

unsigned sim_ptx_widen_signed(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_s64 *d = ptx_slot(x, i->d);
    const lane_s32 *a = ptx_slot(x, i->a);
    PTX_EACH(m, d[l] = a[l]);
    return PTX_NEXT;
}

static unsigned run_mov_predicate(ptx_context *x, const ptx_ins *i, uint32_t m) {
    ptx_write_predicate(x, i->d, m, *(lane_u32 *)ptx_slot(x, i->a));
    return PTX_NEXT;
}

#define PREDICATE(NAME, EXPRESSION)                                                                                    \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        uint32_t a = *(lane_u32 *)ptx_slot(x, i->a), b = *(lane_u32 *)ptx_slot(x, i->b);                               \
        ptx_write_predicate(x, i->d, m, EXPRESSION);                                                                   \
        return PTX_NEXT;                                                                                               \
    }

PREDICATE(run_and_predicate, a &b)
PREDICATE(run_or_predicate, a | b)
PREDICATE(run_xor_predicate, a ^ b)
PREDICATE(run_not_predicate, ((void)b, ~a))

#define SELECT(NAME, T)                                                                                                \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        T *d = ptx_slot(x, i->d);                                                                                      \
        const T *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);                                                        \
        uint32_t p = *(lane_u32 *)ptx_slot(x, i->c);                                                                   \
        PTX_EACH(m, d[l] = p & sim_ptx_lane_bits[l] ? a[l] : b[l]);                                                    \
        return PTX_NEXT;                                                                                               \
    }

SELECT(run_selp32, lane_u32)
SELECT(run_selp64, lane_u64)

#define SLCT(NAME, T, C, CONDITION)                                                                                    \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        T *d = ptx_slot(x, i->d);                                                                                      \
        const T *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);                                                        \
        const C *c = ptx_slot(x, i->c);                                                                                \
        PTX_EACH(m, d[l] = (CONDITION) ? a[l] : b[l]);                                                                 \
        return PTX_NEXT;                                                                                               \
    }

/* -0.0 and, with .ftz, negative subnormals count as >= 0; NaN selects b. */
SLCT(run_slct32_s32, lane_u32, lane_s32, c[l] >= 0)
SLCT(run_slct64_s32, lane_u64, lane_s32, c[l] >= 0)
SLCT(run_slct32_f32, lane_u32, lane_f32, c[l] >= 0.0f)
SLCT(run_slct64_f32, lane_u64, lane_f32, c[l] >= 0.0f)
SLCT(run_slct32_ftz, lane_u32, lane_f32, c[l] > -0x1p-126f)
SLCT(run_slct64_ftz, lane_u64, lane_f32, c[l] > -0x1p-126f)

/* ---- packing and unpacking: elements of 8, 16 or 32 bits in 32-bit slots, low element first ---- */

static unsigned run_pack(ptx_context *x, const ptx_ins *i, uint32_t m) {
    unsigned count = i->flags & 15, bits = i->flags >> 4;
    uint64_t value[PTX_LANES] = {0}, keep = ((uint64_t)1 << bits) - 1;
    for (unsigned e = 0; e < count; e++) {
        const lane_u32 *a = ptx_slot(x, x->module->lists[i->e + e]);
        unsigned shift = e * bits;
        PTX_EACH(m, value[l] |= (a[l] & keep) << shift);
    }
    if (count * bits > 32) {
        lane_u64 *d = ptx_slot(x, i->d);
        PTX_EACH(m, d[l] = value[l]);
    } else {
        lane_u32 *d = ptx_slot(x, i->d);
        PTX_EACH(m, d[l] = (uint32_t)value[l]);
    }
    return PTX_NEXT;
}

static unsigned run_unpack(ptx_context *x, const ptx_ins *i, uint32_t m) {
    unsigned count = i->flags & 15, bits = i->flags >> 4;
    uint64_t value[PTX_LANES] = {0}, keep = ((uint64_t)1 << bits) - 1;
    if (count * bits > 32) {
        const lane_u64 *a = ptx_slot(x, i->a);
        PTX_EACH(m, value[l] = a[l]);
    } else {
        const lane_u32 *a = ptx_slot(x, i->a);
        PTX_EACH(m, value[l] = a[l]);
    }
    for (unsigned e = 0; e < count; e++) {
        lane_u32 *d = ptx_slot(x, x->module->lists[i->e + e]);
        unsigned shift = e * bits;
        PTX_EACH(m, d[l] = (uint32_t)(value[l] >> shift & keep));
    }
    return PTX_NEXT;
}

/* ---- addresses ---- */

enum { TO = 1 };

static unsigned run_cvta(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u64 *d = ptx_slot(x, i->d);
    const lane_u64 *a = ptx_slot(x, i->a);
    uint64_t window = i->e ? (uint64_t)i->e << 56 : 0;
    if (i->flags & TO)
        PTX_EACH(m, d[l] = a[l] - window);
    else
        PTX_EACH(m, d[l] = a[l] + window);
    return PTX_NEXT;
}

static bool lies_in(ptx_context *x, uint64_t address, ptx_space space) {
    uint64_t window = address >> 56;
    switch (space) {
        case PTX_SHARED: return window == 1 && !((uint32_t)address >> PTX_CLUSTER_RANK_BITS);
        case PTX_CLUSTER: return window == 1;
        case PTX_LOCAL: return window == 2;
        case PTX_PARAM: return window == 3;
        default: break;
    }
    if (window) return false;
    if (space == PTX_GLOBAL) return true;
    /* .const: one of the module's constant variables */
    for (uint32_t v = 0; v < x->module->variable_count; v++) {
        const sim_variable *info = &x->module->variables[v].info;
        uint64_t low = x->instance_addresses[v];
        if (info->constant && address >= low && address - low < info->bytes) return true;
    }
    return false;
}

static unsigned run_isspacep(ptx_context *x, const ptx_ins *i, uint32_t m) {
    const lane_u64 *a = ptx_slot(x, i->a);
    uint32_t yes = 0;
    for (uint32_t rest = m; rest; rest &= rest - 1)
        if (lies_in(x, a[__builtin_ctz(rest)], (ptx_space)i->e)) yes |= rest & -rest;
    ptx_write_predicate(x, i->d, m, yes);
    return PTX_NEXT;
}

/* The same offset in the shared memory of the block with rank b. */
static unsigned run_mapa(ptx_context *x, const ptx_ins *i, uint32_t m) {
    const uint64_t offset = ((uint64_t)1 << PTX_CLUSTER_RANK_BITS) - 1;
    const lane_u32 *b = ptx_slot(x, i->b);
    if (i->flags) {
        lane_u64 *d = ptx_slot(x, i->d);
        const lane_u64 *a = ptx_slot(x, i->a);
        PTX_EACH(m, d[l] = (a[l] & ~(uint64_t)UINT32_MAX) | (a[l] & offset) |
                           ((uint64_t)(b[l] & 0x7f) + 1) << PTX_CLUSTER_RANK_BITS);
    } else {
        lane_u32 *d = ptx_slot(x, i->d);
        const lane_u32 *a = ptx_slot(x, i->a);
        PTX_EACH(m, d[l] = (a[l] & (uint32_t)offset) | ((b[l] & 0x7f) + 1) << PTX_CLUSTER_RANK_BITS);
    }
    return PTX_NEXT;
}

static unsigned run_getctarank(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        uint64_t a = i->flags ? ((const lane_u64 *)ptx_slot(x, i->a))[l] : ((const lane_u32 *)ptx_slot(x, i->a))[l];
        uint32_t rank = (uint32_t)a >> PTX_CLUSTER_RANK_BITS;
        d[l] = rank ? rank - 1 : x->block->cluster_rank;
    }
    return PTX_NEXT;
}

/* ------------------------------------------------------------------------------------------------------ decoding -- */

static bool decode_pack(ptx_parser *p, ptx_source *s, ptx_type type) {
    const ptx_operand *v = &s->operands[1];
    unsigned bits = sim_ptx_type_bits(type);
    if (v->element_count != 2 && v->element_count != 4)
        sim_ptx_error(p, s->line, "mov packs 2 or 4 elements, not %u", v->element_count);
    unsigned each = bits / v->element_count;
    ptx_type element = each == 32 ? PTX_B32 : each == 16 ? PTX_B16 : PTX_B8;
    if (each < 8 || bits > 64) sim_ptx_bad_type(p, s, type);
    uint32_t values[4];
    for (unsigned e = 0; e < v->element_count; e++)
        values[e] =
            each == 8 ? sim_ptx_relaxed_value(p, &v->elements[e], PTX_B8) : sim_ptx_value(p, &v->elements[e], element);
    uint32_t d = sim_ptx_destination(p, &s->operands[0], type);
    ptx_ins *i = sim_ptx_emit(p, run_pack);
    i->flags = (uint16_t)(v->element_count | each << 4);
    i->e = sim_ptx_list_begin(p);
    sim_ptx_define(p, PTX_D, d);
    for (unsigned e = 0; e < v->element_count; e++) sim_ptx_list_use(p, values[e]);
    return true;
}

static bool decode_unpack(ptx_parser *p, ptx_source *s, ptx_type type) {
    const ptx_operand *v = &s->operands[0];
    unsigned bits = sim_ptx_type_bits(type);
    if (v->element_count != 2 && v->element_count != 4)
        sim_ptx_error(p, s->line, "mov unpacks 2 or 4 elements, not %u", v->element_count);
    unsigned each = bits / v->element_count;
    ptx_type element = each == 32 ? PTX_B32 : each == 16 ? PTX_B16 : PTX_B8;
    if (each < 8 || bits > 64) sim_ptx_bad_type(p, s, type);
    uint32_t a = sim_ptx_value(p, &s->operands[1], type), d[4];
    for (unsigned e = 0; e < v->element_count; e++) {
        const ptx_operand *o = &v->elements[e];
        bool relaxed = each == 8 && o->kind == PTX_OPERAND_REGISTER && sim_ptx_operand_bits(p, o) <= 32 &&
                       p->registers[o->reg].type != PTX_PRED;
        d[e] = relaxed ? o->reg : sim_ptx_destination(p, o, element);
    }
    ptx_ins *i = sim_ptx_emit(p, run_unpack);
    i->flags = (uint16_t)(v->element_count | each << 4);
    i->e = sim_ptx_list_begin(p);
    sim_ptx_use(p, PTX_A, a);
    for (unsigned e = 0; e < v->element_count; e++) sim_ptx_list_define(p, d[e]);
    return true;
}

static bool decode_vector_mov(ptx_parser *p, ptx_source *s, ptx_type type) {
    ptx_operand d = s->operands[0], a = s->operands[1];
    if (d.kind != PTX_OPERAND_VECTOR || a.kind != PTX_OPERAND_VECTOR || d.element_count != a.element_count)
        sim_ptx_error(p, s->line, "mov needs two vectors of one length");
    uint32_t values[PTX_MAX_ELEMENTS];
    bool wide = sim_ptx_type_bits(type) == 64;
    for (unsigned e = 0; e < d.element_count; e++) { /* through temporaries: the two may overlap */
        uint32_t value = sim_ptx_value(p, &a.elements[e], type);
        values[e] = sim_ptx_new_register(p, type);
        sim_ptx_emit(p, wide ? run_mov64 : run_mov32);
        sim_ptx_define(p, PTX_D, values[e]);
        sim_ptx_use(p, PTX_A, value);
    }
    for (unsigned e = 0; e < d.element_count; e++) {
        uint32_t to = sim_ptx_destination(p, &d.elements[e], type);
        sim_ptx_emit(p, wide ? run_mov64 : run_mov32);
        sim_ptx_define(p, PTX_D, to);
        sim_ptx_use(p, PTX_A, values[e]);
    }
    return true;
}

static bool decode_mov(ptx_parser *p, ptx_source *s) {
    bool vector = sim_ptx_take(s, "v2") || sim_ptx_take(s, "v4");
    ptx_type type = sim_ptx_take_type(s);
    unsigned bits = sim_ptx_type_bits(type);
    sim_ptx_expect_operands(p, s, 2, 2);
    if (bits != 1 && bits != 16 && bits != 32 && bits != 64) sim_ptx_bad_type(p, s, type);
    if (vector) return decode_vector_mov(p, s, type);
    const ptx_operand *source = &s->operands[1];
    if (source->kind == PTX_OPERAND_SPECIAL && !source->negated &&
        sim_ptx_type_bits(sim_ptx_special_type((int)source->integer)) == bits && !ptx_is_float(type)) {
        sim_ptx_emit_special(p, sim_ptx_destination(p, &s->operands[0], type), (int)source->integer, true);
        return true;
    }
    if (s->operands[1].kind == PTX_OPERAND_VECTOR) return decode_pack(p, s, type);
    if (s->operands[0].kind == PTX_OPERAND_VECTOR) return decode_unpack(p, s, type);
    sim_ptx_emit_plain(p, s,
                       type == PTX_PRED ? run_mov_predicate
                       : bits == 64     ? run_mov64
                                        : run_mov32,
                       type, type, PTX_NONE, PTX_NONE);
    return true;
}

static bool decode_selp(ptx_parser *p, ptx_source *s) {
    ptx_type type = sim_ptx_take_type(s);
    unsigned bits = sim_ptx_type_bits(type);
    if (bits != 16 && bits != 32 && bits != 64) sim_ptx_bad_type(p, s, type);
    sim_ptx_emit_plain(p, s, bits == 64 ? run_selp64 : run_selp32, type, type, type, PTX_PRED);
    return true;
}

static bool decode_slct(ptx_parser *p, ptx_source *s) {
    bool ftz = sim_ptx_take(s, "ftz");
    ptx_type type = sim_ptx_take_type(s), condition = sim_ptx_take_type(s);
    unsigned bits = sim_ptx_type_bits(type);
    if (bits != 16 && bits != 32 && bits != 64) sim_ptx_bad_type(p, s, type);
    if (condition != PTX_S32 && condition != PTX_F32) sim_ptx_bad_type(p, s, condition);
    if (ftz && condition != PTX_F32) sim_ptx_error(p, s->line, "slct.ftz needs .f32");
    ptx_handler *run = condition == PTX_S32 ? (bits == 64 ? run_slct64_s32 : run_slct32_s32)
                       : ftz                ? (bits == 64 ? run_slct64_ftz : run_slct32_ftz)
                                            : (bits == 64 ? run_slct64_f32 : run_slct32_f32);
    sim_ptx_emit_plain(p, s, run, type, type, type, condition);
    return true;
}

static bool decode_cvta(ptx_parser *p, ptx_source *s) {
    bool to = sim_ptx_take(s, "to"), parameter;
    ptx_space space;
    if (!sim_ptx_take_space(p, s, &space, &parameter)) sim_ptx_error(p, s->line, "cvta needs a state space");
    if (sim_ptx_take_type(s) != PTX_U64) sim_ptx_error(p, s->line, "cvta needs .u64; addresses have 64 bits");
    ptx_ins *i = sim_ptx_emit_plain(p, s, run_cvta, PTX_U64, PTX_U64, PTX_NONE, PTX_NONE);
    i->flags = to ? TO : 0;
    /* Addresses of parameters are generic from the start. */
    i->e = parameter ? 0 : space == PTX_SHARED || space == PTX_CLUSTER ? 1 : space == PTX_LOCAL ? 2 : 0;
    return true;
}

static bool decode_isspacep(ptx_parser *p, ptx_source *s) {
    ptx_space space;
    bool parameter;
    if (!sim_ptx_take_space(p, s, &space, &parameter)) sim_ptx_error(p, s->line, "isspacep needs a state space");
    sim_ptx_emit_plain(p, s, run_isspacep, PTX_PRED, PTX_U64, PTX_NONE, PTX_NONE)->e = parameter ? PTX_PARAM : space;
    return true;
}

static bool decode_mapa(ptx_parser *p, ptx_source *s) {
    ptx_space space;
    bool parameter;
    sim_ptx_take_space(p, s, &space, &parameter);
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_U32 && type != PTX_U64) sim_ptx_bad_type(p, s, type);
    sim_ptx_emit_plain(p, s, run_mapa, type, type, PTX_U32, PTX_NONE)->flags = type == PTX_U64;
    return true;
}

static bool decode_getctarank(ptx_parser *p, ptx_source *s) {
    ptx_space space;
    bool parameter;
    sim_ptx_take_space(p, s, &space, &parameter);
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_U32 && type != PTX_U64) sim_ptx_bad_type(p, s, type);
    sim_ptx_emit_plain(p, s, run_getctarank, PTX_U32, type, PTX_NONE, PTX_NONE)->flags = type == PTX_U64;
    return true;
}

/* and, or, xor, not of predicates; integers are another family's. */
static bool decode_predicate(ptx_parser *p, ptx_source *s, ptx_handler *run) {
    if (sim_ptx_peek_type(s) != PTX_PRED) return false;
    sim_ptx_take_type(s);
    sim_ptx_emit_plain(p, s, run, PTX_PRED, PTX_PRED, run == run_not_predicate ? PTX_NONE : PTX_PRED, PTX_NONE);
    if (run == run_not_predicate) sim_ptx_use(p, PTX_B, PTX_POOL_FALSE);
    return true;
}

static bool decode_and(ptx_parser *p, ptx_source *s) { return decode_predicate(p, s, run_and_predicate); }
static bool decode_or(ptx_parser *p, ptx_source *s) { return decode_predicate(p, s, run_or_predicate); }
static bool decode_xor(ptx_parser *p, ptx_source *s) { return decode_predicate(p, s, run_xor_predicate); }
static bool decode_not(ptx_parser *p, ptx_source *s) { return decode_predicate(p, s, run_not_predicate); }

const ptx_mnemonic sim_ptx_move_mnemonics[] = {{"mov", decode_mov},
                                               {"selp", decode_selp},
                                               {"slct", decode_slct},
                                               {"cvta", decode_cvta},
                                               {"isspacep", decode_isspacep},
                                               {"mapa", decode_mapa},
                                               {"getctarank", decode_getctarank},
                                               {"and", decode_and},
                                               {"or", decode_or},
                                               {"xor", decode_xor},
                                               {"not", decode_not},
                                               {NULL, NULL}};
