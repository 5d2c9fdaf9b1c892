/* setp and set. */
#include "device/sim/ptx_ops.h"
#include "device/sim/ptx_parse.h"

/* ------------------------------------------------------------------------------------------------------ handlers -- */

enum { NEGATE = 1, COMBINE_AND = 2, COMBINE_OR = 4, COMBINE_XOR = 8, SECOND = 16 };

static uint32_t combine(unsigned flags, uint32_t r, uint32_t c) {
    if (flags & COMBINE_AND) return r & c;
    if (flags & COMBINE_OR) return r | c;
    return flags & COMBINE_XOR ? r ^ c : r;
}

/* Writes p and, when asked, q, the same of the negated comparison. */
static inline unsigned finish(ptx_context *x, const ptx_ins *i, uint32_t m, uint32_t result) {
    if (!i->flags) {
        ptx_write_predicate(x, i->d, m, result);
        return PTX_NEXT;
    }
    if (i->flags & NEGATE) result = ~result;
    uint32_t c = *(lane_u32 *)ptx_slot(x, i->c);
    uint32_t first = combine(i->flags, result, c), second = combine(i->flags, ~result, c);
    ptx_write_predicate(x, i->d, m, first);
    if (i->flags & SECOND) ptx_write_predicate(x, i->e, m, second);
    return PTX_NEXT;
}

#define COMPARE(NAME, SLOT, T, OPERATOR)                                                                               \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        const SLOT *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);                                                     \
        uint32_t r = 0;                                                                                                \
        PTX_EACH(m, r |= (0u - (uint32_t)((T)a[l] OPERATOR(T) b[l])) & sim_ptx_lane_bits[l]);                          \
        return finish(x, i, m, r);                                                                                     \
    }

enum { EQ, NE, LT, LE, GT, GE, NUM, COMPARISONS };

#define COMPARE_ALL(NAME, SLOT, T)                                                                                     \
    COMPARE(NAME##_eq, SLOT, T, ==)                                                                                    \
    COMPARE(NAME##_lt, SLOT, T, <)                                                                                     \
    COMPARE(NAME##_le, SLOT, T, <=)                                                                                    \
    COMPARE(NAME##_gt, SLOT, T, >)                                                                                     \
    COMPARE(NAME##_ge, SLOT, T, >=)

COMPARE_ALL(u16, lane_u32, uint16_t)
COMPARE_ALL(s16, lane_u32, int16_t)
COMPARE_ALL(u32, lane_u32, uint32_t)
COMPARE_ALL(s32, lane_u32, int32_t)
COMPARE_ALL(u64, lane_u64, uint64_t)
COMPARE_ALL(s64, lane_u64, int64_t)
COMPARE_ALL(f32, lane_f32, float)
COMPARE_ALL(f64, lane_f64, double)
COMPARE(u16_ne, lane_u32, uint16_t, !=)
COMPARE(u32_ne, lane_u32, uint32_t, !=)
COMPARE(u64_ne, lane_u64, uint64_t, !=)

#define ORDERED(NAME, SLOT, ...)                                                                                       \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        const SLOT *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);                                                     \
        uint32_t r = 0;                                                                                                \
        PTX_EACH(m, r |= (0u - (uint32_t)(__VA_ARGS__)) & sim_ptx_lane_bits[l]);                                       \
        return finish(x, i, m, r);                                                                                     \
    }
/* Not equal and neither is a NaN; neither is a NaN. */
ORDERED(f32_one, lane_f32, (a[l] < b[l]) | (a[l] > b[l]))
ORDERED(f64_one, lane_f64, (a[l] < b[l]) | (a[l] > b[l]))
ORDERED(f32_num, lane_f32, (a[l] == a[l]) & (b[l] == b[l]))
ORDERED(f64_num, lane_f64, (a[l] == a[l]) & (b[l] == b[l]))

#define INTEGER_ROW(NAME, NOT_EQUAL)                                                                                   \
    { NAME##_eq, NOT_EQUAL, NAME##_lt, NAME##_le, NAME##_gt, NAME##_ge, NULL }
#define FLOAT_ROW(NAME)                                                                                                \
    { NAME##_eq, NAME##_one, NAME##_lt, NAME##_le, NAME##_gt, NAME##_ge, NAME##_num }
static ptx_handler *const handlers[PTX_TYPES][COMPARISONS] = {
    [PTX_U16] = INTEGER_ROW(u16, u16_ne), [PTX_S16] = INTEGER_ROW(s16, u16_ne), [PTX_U32] = INTEGER_ROW(u32, u32_ne),
    [PTX_S32] = INTEGER_ROW(s32, u32_ne), [PTX_U64] = INTEGER_ROW(u64, u64_ne), [PTX_S64] = INTEGER_ROW(s64, u64_ne),
    [PTX_F32] = FLOAT_ROW(f32),           [PTX_F64] = FLOAT_ROW(f64),           [PTX_B16] = {u16_eq, u16_ne},
    [PTX_B32] = {u32_eq, u32_ne},         [PTX_B64] = {u64_eq, u64_ne}};

PTX_UNARY(flush32, lane_u32, lane_u32, uint32_t, A & 0x7f800000u ? A : A & 0x80000000u)

static unsigned choose(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    uint32_t p = *(lane_u32 *)ptx_slot(x, i->a), yes = i->e;
    PTX_EACH(m, d[l] = p & sim_ptx_lane_bits[l] ? yes : 0);
    return PTX_NEXT;
}

/* ------------------------------------------------------------------------------------------------------ decoding -- */

typedef struct comparison {
    const char *name;
    uint8_t index;
    bool negate, integer, floating;
    char sign; /* 'u': unsigned types only */
} comparison;

static const comparison comparisons[] = {
    {"eq", EQ, false, true, true, 0},    {"ne", NE, false, true, true, 0},    {"lt", LT, false, true, true, 0},
    {"le", LE, false, true, true, 0},    {"gt", GT, false, true, true, 0},    {"ge", GE, false, true, true, 0},
    {"lo", LT, false, true, false, 'u'}, {"ls", LE, false, true, false, 'u'}, {"hi", GT, false, true, false, 'u'},
    {"hs", GE, false, true, false, 'u'}, {"equ", NE, true, false, true, 0},   {"neu", EQ, true, false, true, 0},
    {"ltu", GE, true, false, true, 0},   {"leu", GT, true, false, true, 0},   {"gtu", LE, true, false, true, 0},
    {"geu", LT, true, false, true, 0},   {"num", NUM, false, false, true, 0}, {"nan", NUM, true, false, true, 0}};

static const comparison *take_comparison(ptx_parser *p, ptx_source *s) {
    for (size_t n = 0; n < sizeof comparisons / sizeof *comparisons; n++)
        if (sim_ptx_take(s, comparisons[n].name)) return &comparisons[n];
    sim_ptx_error(p, s->line, "%.*s needs a comparison such as .lt", (int)s->name.bytes, s->name.text);
}

static uint32_t flushed(ptx_parser *p, uint32_t value) {
    uint32_t reg = sim_ptx_new_register(p, PTX_F32);
    sim_ptx_emit_unguarded(p, flush32);
    sim_ptx_define(p, PTX_D, reg);
    sim_ptx_use(p, PTX_A, value);
    return reg;
}

/* Emits the comparison of operands first and first + 1 into predicate d (and q); a third operand joins by and, or,
 * xor. */
static void emit_comparison(ptx_parser *p, ptx_source *s, const comparison *c, unsigned combine_flags, bool ftz,
                            ptx_type type, uint32_t d, uint32_t q) {
    ptx_handler *run = handlers[type][c->index];
    bool fits = ptx_is_float(type) ? c->floating : c->integer && (c->sign != 'u' || ptx_is_unsigned(type));
    if (!run || !fits) sim_ptx_bad_type(p, s, type);
    if (ftz && type != PTX_F32) sim_ptx_error(p, s->line, ".ftz needs .f32");
    sim_ptx_expect_operands(p, s, combine_flags ? 4 : 3, combine_flags ? 4 : 3);
    uint32_t a = sim_ptx_value(p, &s->operands[1], type), b = sim_ptx_value(p, &s->operands[2], type);
    uint32_t third = combine_flags ? sim_ptx_predicate(p, &s->operands[3]) : PTX_POOL_FALSE;
    if (ftz) {
        a = flushed(p, a);
        b = flushed(p, b);
    }
    unsigned flags = combine_flags | (c->negate ? NEGATE : 0) | (q != UINT32_MAX ? SECOND : 0);
    sim_ptx_emit(p, run)->flags = (uint16_t)flags;
    sim_ptx_define(p, PTX_D, d);
    sim_ptx_use(p, PTX_A, a);
    sim_ptx_use(p, PTX_B, b);
    sim_ptx_use(p, PTX_C, third);
    if (q != UINT32_MAX) sim_ptx_define(p, PTX_E, q);
}

static unsigned take_combination(ptx_source *s) {
    return sim_ptx_take(s, "and")   ? COMBINE_AND
           : sim_ptx_take(s, "or")  ? COMBINE_OR
           : sim_ptx_take(s, "xor") ? COMBINE_XOR
                                    : 0;
}

static bool decode_setp(ptx_parser *p, ptx_source *s) {
    const comparison *c = take_comparison(p, s);
    unsigned flags = take_combination(s);
    bool ftz = sim_ptx_take(s, "ftz");
    ptx_type type = sim_ptx_take_type(s);
    const ptx_operand *o = &s->operands[0];
    if (s->operand_count == 0) sim_ptx_expect_operands(p, s, 3, 4);
    uint32_t d = sim_ptx_destination(p, o, PTX_PRED), q = UINT32_MAX;
    if (o->has_second) {
        q = o->second == UINT32_MAX ? sim_ptx_new_register(p, PTX_PRED) : o->second;
        if (p->registers[q].type != PTX_PRED)
            sim_ptx_error(p, s->line, "setp: the result behind | must be a predicate");
    }
    emit_comparison(p, s, c, flags, ftz, type, d, q);
    return true;
}

static bool decode_set(ptx_parser *p, ptx_source *s) {
    const comparison *c = take_comparison(p, s);
    unsigned flags = take_combination(s);
    bool ftz = sim_ptx_take(s, "ftz");
    ptx_type result = sim_ptx_take_type(s), type = sim_ptx_take_type(s);
    if (result != PTX_U32 && result != PTX_S32 && result != PTX_F32) sim_ptx_bad_type(p, s, result);
    if (s->operand_count == 0) sim_ptx_expect_operands(p, s, 3, 4);
    uint32_t d = sim_ptx_destination(p, &s->operands[0], result), truth = sim_ptx_new_register(p, PTX_PRED);
    emit_comparison(p, s, c, flags, ftz, type, truth, UINT32_MAX);
    sim_ptx_emit(p, choose)->e = result == PTX_F32 ? 0x3f800000u : UINT32_MAX;
    sim_ptx_define(p, PTX_D, d);
    sim_ptx_use(p, PTX_A, truth);
    return true;
}

const ptx_mnemonic sim_ptx_compare_mnemonics[] = {{"setp", decode_setp}, {"set", decode_set}, {NULL, NULL}};
