/* Instructions among the lanes of a warp: shfl, vote, match, redux, activemask, elect. */
#include "device/sim/ptx_parse.h"
#include "device/sim/ptx_schedule.h"

enum { SYNC = 0x100, MODE = 0xff };
enum { UP, DOWN, BFLY, IDX };
enum { ALL, ANY, UNI, BALLOT };
enum { ADD, MIN, MAX, SMIN, SMAX, AND, OR, XOR };

/* The list of an instruction: {predicate result, membermask}. */
#define PREDICATE(x, i) ((x)->module->lists[(i)->e])
#define MEMBERS(x, i) ((x)->module->lists[(i)->e + 1])

#define GATHER(x, i, m)                                                                                                \
    if ((i)->flags & SYNC) {                                                                                           \
        unsigned event_ = sim_ptx_gather((x), (i), &(m), MEMBERS((x), (i)));                                           \
        if (event_ != PTX_NEXT) return event_;                                                                         \
    }

/* The lanes of `rest` that name the same members as its first: the set among which the instruction works. */
static uint32_t same_members(const ptx_context *x, const ptx_ins *i, uint32_t rest) {
    if (!(i->flags & SYNC)) return rest;
    const lane_u32 *named = ptx_slot(x, MEMBERS(x, i));
    uint32_t value = named[__builtin_ctz(rest)], same = 0;
    for (uint32_t other = rest; other; other &= other - 1)
        if (named[__builtin_ctz(other)] == value) same |= other & -other;
    return same;
}

static unsigned run_shfl(ptx_context *x, const ptx_ins *i, uint32_t m) {
    GATHER(x, i, m)
    const lane_u32 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b), *c = ptx_slot(x, i->c);
    uint32_t result[PTX_LANES], valid = 0;
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest), j, offset = (int)(b[lane] & 31), clamp = (int)(c[lane] & 31),
            segment = (int)(c[lane] >> 8 & 31);
        int highest = (lane & segment) | (clamp & ~segment), lowest = lane & segment;
        bool in;
        switch (i->flags & MODE) {
            case UP: j = lane - offset, in = j >= highest; break;
            case DOWN: j = lane + offset, in = j <= highest; break;
            case BFLY: j = lane ^ offset, in = j <= highest; break;
            default: j = lowest | (offset & ~segment), in = j <= highest; break;
        }
        if (!in) j = lane;
        if (in) valid |= 1u << lane;
        result[lane] = a[j];
    }
    lane_u32 *d = ptx_slot(x, i->d);
    PTX_EACH(m, d[l] = result[l]);
    ptx_write_predicate(x, PREDICATE(x, i), m, valid);
    return sim_ptx_gathered(x, i);
}

static unsigned run_vote(ptx_context *x, const ptx_ins *i, uint32_t m) {
    GATHER(x, i, m)
    uint32_t votes = *(lane_u32 *)ptx_slot(x, i->a);
    for (uint32_t rest = m; rest;) {
        uint32_t same = same_members(x, i, rest), yes = votes & same;
        rest &= ~same;
        if ((i->flags & MODE) == BALLOT) {
            lane_u32 *d = ptx_slot(x, i->d);
            PTX_EACH(same, d[l] = yes);
            continue;
        }
        bool value = (i->flags & MODE) == ALL   ? yes == same
                     : (i->flags & MODE) == ANY ? yes != 0
                                                : yes == same || yes == 0;
        ptx_write_predicate(x, i->d, same, value ? UINT32_MAX : 0);
    }
    return sim_ptx_gathered(x, i);
}

static uint64_t lane_value(const void *slot, bool wide, unsigned l) {
    return wide ? ((const lane_u64 *)slot)[l] : ((const lane_u32 *)slot)[l];
}

enum { MATCH_ANY, MATCH_ALL, MATCH_WIDE = 2 };

static unsigned run_match(ptx_context *x, const ptx_ins *i, uint32_t m) {
    GATHER(x, i, m)
    const void *a = ptx_slot(x, i->a);
    bool wide = i->flags & MATCH_WIDE;
    uint32_t result[PTX_LANES], all_equal = 0;
    for (uint32_t rest = m; rest;) {
        uint32_t same = same_members(x, i, rest);
        rest &= ~same;
        bool all = true;
        for (uint32_t outer = same; outer; outer &= outer - 1) {
            unsigned l = (unsigned)__builtin_ctz(outer);
            result[l] = 0;
            for (uint32_t inner = same; inner; inner &= inner - 1)
                if (lane_value(a, wide, (unsigned)__builtin_ctz(inner)) == lane_value(a, wide, l))
                    result[l] |= inner & -inner;
            all = all && result[l] == same;
        }
        if (all) all_equal |= same;
        if (i->flags & MATCH_ALL) PTX_EACH(same, result[l] = all ? same : 0);
    }
    lane_u32 *d = ptx_slot(x, i->d);
    PTX_EACH(m, d[l] = result[l]);
    ptx_write_predicate(x, PREDICATE(x, i), m, all_equal);
    return sim_ptx_gathered(x, i);
}

static uint32_t combine(unsigned op, uint32_t a, uint32_t b) {
    switch (op) {
        case ADD: return a + b;
        case MIN: return a < b ? a : b;
        case MAX: return a > b ? a : b;
        case SMIN: return (int32_t)a < (int32_t)b ? a : b;
        case SMAX: return (int32_t)a > (int32_t)b ? a : b;
        case AND: return a & b;
        case OR: return a | b;
        default: return a ^ b;
    }
}

static unsigned run_redux(ptx_context *x, const ptx_ins *i, uint32_t m) {
    GATHER(x, i, m)
    const lane_u32 *a = ptx_slot(x, i->a);
    uint32_t result[PTX_LANES];
    for (uint32_t rest = m; rest;) {
        uint32_t same = same_members(x, i, rest), total = a[__builtin_ctz(same)];
        rest &= ~same;
        for (uint32_t other = same & (same - 1); other; other &= other - 1)
            total = combine(i->flags & MODE, total, a[__builtin_ctz(other)]);
        PTX_EACH(same, result[l] = total);
    }
    lane_u32 *d = ptx_slot(x, i->d);
    PTX_EACH(m, d[l] = result[l]);
    return sim_ptx_gathered(x, i);
}

static unsigned run_elect(ptx_context *x, const ptx_ins *i, uint32_t m) {
    GATHER(x, i, m)
    lane_u32 *d = ptx_slot(x, i->d);
    uint32_t leaders = 0;
    for (uint32_t rest = m; rest;) {
        uint32_t same = same_members(x, i, rest), leader = (uint32_t)__builtin_ctz(same);
        rest &= ~same;
        leaders |= 1u << leader;
        PTX_EACH(same, d[l] = leader);
    }
    ptx_write_predicate(x, PREDICATE(x, i), m, leaders);
    return sim_ptx_gathered(x, i);
}

static unsigned run_activemask(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    PTX_EACH(m, d[l] = m);
    return PTX_NEXT;
}

/* ------------------------------------------------------------------------------------------------------ decoding -- */

static void emit_warp(ptx_parser *p, ptx_handler *run, unsigned flags, uint32_t members, uint32_t predicate) {
    ptx_ins *i = sim_ptx_emit(p, run);
    i->flags = (uint16_t)flags;
    i->e = sim_ptx_list_begin(p);
    sim_ptx_list_define(p, predicate);
    sim_ptx_list_use(p, members);
}

static uint32_t second_result(ptx_parser *p, const ptx_source *s) {
    const ptx_operand *o = &s->operands[0];
    if (!o->has_second || o->second == UINT32_MAX) return sim_ptx_new_register(p, PTX_PRED);
    if (p->registers[o->second].type != PTX_PRED)
        sim_ptx_error(p, s->line, "%.*s: the result behind | must be a predicate", (int)s->name.bytes, s->name.text);
    return o->second;
}

static bool decode_shfl(ptx_parser *p, ptx_source *s) {
    unsigned flags = sim_ptx_take(s, "sync") ? SYNC : 0;
    unsigned mode = sim_ptx_take(s, "up")     ? UP
                    : sim_ptx_take(s, "down") ? DOWN
                    : sim_ptx_take(s, "bfly") ? BFLY
                    : sim_ptx_take(s, "idx")  ? IDX
                                              : 99;
    if (mode == 99) sim_ptx_error(p, s->line, "shfl needs .up, .down, .bfly or .idx");
    ptx_type type = sim_ptx_take_type(s);
    if (sim_ptx_type_bits(type) != 32) sim_ptx_bad_type(p, s, type);
    unsigned count = flags ? 5 : 4;
    sim_ptx_expect_operands(p, s, count, count);
    uint32_t d = sim_ptx_destination(p, &s->operands[0], type), predicate = second_result(p, s);
    uint32_t a = sim_ptx_value(p, &s->operands[1], type), b = sim_ptx_value(p, &s->operands[2], PTX_B32),
             c = sim_ptx_value(p, &s->operands[3], PTX_B32);
    uint32_t members = flags ? sim_ptx_value(p, &s->operands[4], PTX_B32) : PTX_POOL_FALSE;
    emit_warp(p, run_shfl, flags | mode, members, predicate);
    sim_ptx_define(p, PTX_D, d);
    sim_ptx_use(p, PTX_A, a);
    sim_ptx_use(p, PTX_B, b);
    sim_ptx_use(p, PTX_C, c);
    if (flags) sim_ptx_emit_join(p);
    return true;
}

static bool decode_vote(ptx_parser *p, ptx_source *s) {
    unsigned flags = sim_ptx_take(s, "sync") ? SYNC : 0;
    unsigned mode = sim_ptx_take(s, "all")      ? ALL
                    : sim_ptx_take(s, "any")    ? ANY
                    : sim_ptx_take(s, "uni")    ? UNI
                    : sim_ptx_take(s, "ballot") ? BALLOT
                                                : 99;
    if (mode == 99) sim_ptx_error(p, s->line, "vote needs .all, .any, .uni or .ballot");
    ptx_type type = sim_ptx_take_type(s);
    if (type != (mode == BALLOT ? PTX_B32 : PTX_PRED)) sim_ptx_bad_type(p, s, type);
    unsigned count = flags ? 3 : 2;
    sim_ptx_expect_operands(p, s, count, count);
    uint32_t d = sim_ptx_destination(p, &s->operands[0], type), a = sim_ptx_predicate(p, &s->operands[1]);
    uint32_t members = flags ? sim_ptx_value(p, &s->operands[2], PTX_B32) : PTX_POOL_FALSE;
    emit_warp(p, run_vote, flags | mode, members, sim_ptx_new_register(p, PTX_PRED));
    sim_ptx_define(p, PTX_D, d);
    sim_ptx_use(p, PTX_A, a);
    if (flags) sim_ptx_emit_join(p);
    return true;
}

static bool decode_match(ptx_parser *p, ptx_source *s) {
    unsigned flags = SYNC;
    if (sim_ptx_take(s, "all"))
        flags |= MATCH_ALL;
    else if (!sim_ptx_take(s, "any"))
        sim_ptx_error(p, s->line, "match needs .any or .all");
    if (!sim_ptx_take(s, "sync")) sim_ptx_error(p, s->line, "match needs .sync");
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_B32 && type != PTX_B64) sim_ptx_bad_type(p, s, type);
    if (type == PTX_B64) flags |= MATCH_WIDE;
    sim_ptx_expect_operands(p, s, 3, 3);
    uint32_t d = sim_ptx_destination(p, &s->operands[0], PTX_B32), predicate = second_result(p, s);
    uint32_t a = sim_ptx_value(p, &s->operands[1], type), members = sim_ptx_value(p, &s->operands[2], PTX_B32);
    emit_warp(p, run_match, flags, members, predicate);
    sim_ptx_define(p, PTX_D, d);
    sim_ptx_use(p, PTX_A, a);
    sim_ptx_emit_join(p);
    return true;
}

static bool decode_redux(ptx_parser *p, ptx_source *s) {
    if (!sim_ptx_take(s, "sync")) sim_ptx_error(p, s->line, "redux needs .sync");
    static const struct {
        const char *name;
        unsigned op, signed_op;
        bool bits;
    } ops[] = {{"add", ADD, ADD, false}, {"min", MIN, SMIN, false}, {"max", MAX, SMAX, false},
               {"and", AND, AND, true},  {"or", OR, OR, true},      {"xor", XOR, XOR, true}};
    for (unsigned n = 0; n < sizeof ops / sizeof *ops; n++) {
        if (!sim_ptx_take(s, ops[n].name)) continue;
        ptx_type type = sim_ptx_take_type(s);
        if (ops[n].bits ? type != PTX_B32 : type != PTX_U32 && type != PTX_S32) sim_ptx_bad_type(p, s, type);
        sim_ptx_expect_operands(p, s, 3, 3);
        uint32_t d = sim_ptx_destination(p, &s->operands[0], type), a = sim_ptx_value(p, &s->operands[1], type);
        uint32_t members = sim_ptx_value(p, &s->operands[2], PTX_B32);
        emit_warp(p, run_redux, SYNC | (type == PTX_S32 ? ops[n].signed_op : ops[n].op), members,
                  sim_ptx_new_register(p, PTX_PRED));
        sim_ptx_define(p, PTX_D, d);
        sim_ptx_use(p, PTX_A, a);
        sim_ptx_emit_join(p);
        return true;
    }
    sim_ptx_error(p, s->line, "redux needs .add, .min, .max, .and, .or or .xor");
}

static bool decode_elect(ptx_parser *p, ptx_source *s) {
    if (!sim_ptx_take(s, "sync")) sim_ptx_error(p, s->line, "elect needs .sync");
    sim_ptx_expect_operands(p, s, 2, 2);
    uint32_t d = sim_ptx_destination(p, &s->operands[0], PTX_B32), predicate = second_result(p, s);
    uint32_t members = sim_ptx_value(p, &s->operands[1], PTX_B32);
    emit_warp(p, run_elect, SYNC, members, predicate);
    sim_ptx_define(p, PTX_D, d);
    sim_ptx_emit_join(p);
    return true;
}

static bool decode_activemask(ptx_parser *p, ptx_source *s) {
    if (sim_ptx_take_type(s) != PTX_B32) sim_ptx_error(p, s->line, "activemask needs .b32");
    sim_ptx_emit_plain(p, s, run_activemask, PTX_B32, PTX_NONE, PTX_NONE, PTX_NONE);
    return true;
}

const ptx_mnemonic sim_ptx_warp_mnemonics[] = {{"shfl", decode_shfl},
                                               {"vote", decode_vote},
                                               {"match", decode_match},
                                               {"redux", decode_redux},
                                               {"elect", decode_elect},
                                               {"activemask", decode_activemask},
                                               {NULL, NULL}};
