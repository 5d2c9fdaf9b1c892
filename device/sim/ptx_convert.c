/* cvt: between all integer widths, f16, bf16, f32 and f64, with every rounding. */
#include <math.h>
#include <string.h>

#include "device/sim/ptx_ops.h"
#include "device/sim/ptx_parse.h"

/* ------------------------------------------------------------------------------------------------ number formats -- */

typedef struct format {
    unsigned fraction, exponent; /* bits */
    uint64_t nan;
} format;

static const format formats[PTX_TYPES] = {[PTX_F16] = {10, 5, 0x7fff},
                                          [PTX_BF16] = {7, 8, 0x7fff},
                                          [PTX_F32] = {23, 8, 0x7fffffff},
                                          [PTX_F64] = {52, 11, UINT64_C(0x7fffffffe0000000)}}; /* the widened f32 one */

/* A number apart: (negative ? -1 : 1) * magnitude * 2^scale. */
typedef struct number {
    enum { FINITE, INFINITE, NOT_A_NUMBER } kind;
    bool negative;
    uint64_t magnitude;
    int scale;
} number;

static number take_apart(uint64_t bits, ptx_type type) {
    const format *f = &formats[type];
    uint64_t fraction = bits & (((uint64_t)1 << f->fraction) - 1);
    int highest = (1 << f->exponent) - 1, exponent = (int)(bits >> f->fraction) & highest, bias = highest >> 1;
    number n = {.kind = FINITE,
                .negative = bits >> (f->fraction + f->exponent) & 1,
                .magnitude = fraction,
                .scale = 1 - bias - (int)f->fraction};
    if (exponent == highest) {
        n.kind = fraction ? NOT_A_NUMBER : INFINITE;
    } else if (exponent) {
        n.magnitude |= (uint64_t)1 << f->fraction;
        n.scale = exponent - bias - (int)f->fraction;
    }
    return n;
}

/* Whether a result cut off below `kept` (its last bit odd or not) is rounded away from zero. */
static bool rounds_up(ptx_rounding rounding, bool negative, bool odd, bool half, bool below_half) {
    switch (rounding) {
        case PTX_RZ: return false;
        case PTX_RM: return negative && (half || below_half);
        case PTX_RP: return !negative && (half || below_half);
        case PTX_RNA: return half;
        default: return half && (below_half || odd);
    }
}

/* magnitude >> shift, rounded. Shifts of 64 and more leave only the rounding. */
static uint64_t shift_rounded(uint64_t magnitude, unsigned shift, ptx_rounding rounding, bool negative) {
    if (shift == 0) return magnitude;
    uint64_t kept = shift < 64 ? magnitude >> shift : 0;
    bool half = shift <= 64 && (magnitude >> (shift - 1) & 1);
    bool below_half = shift > 64 ? magnitude != 0 : (magnitude & (((uint64_t)1 << (shift - 1)) - 1)) != 0;
    return kept + rounds_up(rounding, negative, kept & 1, half, below_half);
}

static uint64_t put_together(number n, ptx_type type, ptx_rounding rounding, bool finite_only) {
    const format *f = &formats[type];
    uint64_t sign = (uint64_t)n.negative << (f->fraction + f->exponent);
    int highest = (1 << f->exponent) - 1, bias = highest >> 1, lowest = 1 - bias - (int)f->fraction;
    uint64_t infinity = (uint64_t)highest << f->fraction;
    if (n.kind == NOT_A_NUMBER) return f->nan;
    if (n.kind == INFINITE) return sign | (finite_only ? infinity - 1 : infinity);
    if (!n.magnitude) return sign;
    /* The scale of the result's last bit: what keeps fraction + 1 bits, but not below that of subnormals. */
    int width = 64 - __builtin_clzll(n.magnitude), scale = n.scale + width - (int)f->fraction - 1;
    if (scale < lowest) scale = lowest;
    uint64_t kept = scale >= n.scale ? shift_rounded(n.magnitude, (unsigned)(scale - n.scale), rounding, n.negative)
                                     : n.magnitude << (n.scale - scale);
    if (kept >> (f->fraction + 1)) { /* rounded up to the next power of two */
        kept >>= 1;
        scale++;
    }
    uint64_t exponent = kept >> f->fraction ? (uint64_t)(scale - lowest + 1) : 0;
    if (exponent >= (uint64_t)highest) {
        bool away = rounding == PTX_RN || rounding == PTX_RNA || (rounding == PTX_RP && !n.negative) ||
                    (rounding == PTX_RM && n.negative);
        return sign | (away && !finite_only ? infinity : infinity - 1);
    }
    return sign | exponent << f->fraction | (kept & (((uint64_t)1 << f->fraction) - 1));
}

/* ------------------------------------------------------------------------------------------- the general handler -- */

/* flags: source type, result type, rounding, and these */
enum {
    FROM = 0x1f,
    TO = 0x3e0,
    TO_SHIFT = 5,
    ROUND = 0x1c00,
    ROUND_SHIFT = 10,
    SAT = 0x2000,
    FTZ = 0x4000,
    INTEGRAL = 0x8000
};

static uint64_t flush32(uint64_t bits) { return bits & 0x7f800000u ? bits : bits & 0x80000000u; }

/* An integer as 65 bits of sign and magnitude. */
static number from_integer(uint64_t bits, ptx_type type) {
    unsigned width = sim_ptx_type_bits(type);
    uint64_t keep = width == 64 ? UINT64_MAX : ((uint64_t)1 << width) - 1;
    number n = {.kind = FINITE, .magnitude = bits & keep};
    if (ptx_is_signed(type) && bits >> (width - 1) & 1) {
        n.negative = true;
        n.magnitude = (0 - bits) & keep;
    }
    return n;
}

static uint64_t lowest_of(ptx_type type) {
    return ptx_is_signed(type) ? UINT64_MAX << (sim_ptx_type_bits(type) - 1) : 0;
}

static uint64_t highest_of(ptx_type type) {
    unsigned width = sim_ptx_type_bits(type) - ptx_is_signed(type);
    return width == 64 ? UINT64_MAX : ((uint64_t)1 << width) - 1;
}

/* To an integer, clamped to the type's range and extended to 64 bits. */
static uint64_t clamp_integer(bool negative, uint64_t magnitude, ptx_type type) {
    if (!negative) return magnitude > highest_of(type) ? highest_of(type) : magnitude;
    if (!ptx_is_signed(type)) return 0;
    uint64_t lowest = lowest_of(type);
    return magnitude > 0 - lowest ? lowest : 0 - magnitude;
}

static uint64_t float_to_integer(number n, ptx_type from, ptx_type to, ptx_rounding rounding) {
    if (n.kind == NOT_A_NUMBER)
        return from == PTX_F64 || sim_ptx_type_bits(to) == 64 ? (uint64_t)1 << (sim_ptx_type_bits(to) - 1) : 0;
    if (n.kind == INFINITE) return clamp_integer(n.negative, UINT64_MAX, to);
    uint64_t magnitude;
    if (n.scale < 0)
        magnitude = shift_rounded(n.magnitude, (unsigned)-n.scale, rounding, n.negative);
    else
        magnitude = n.magnitude && n.scale > __builtin_clzll(n.magnitude) ? UINT64_MAX : n.magnitude << (n.scale & 63);
    return clamp_integer(n.negative, magnitude, to);
}

/* Integers to integers: the low bits, or with .sat the nearest value. */
static uint64_t integer_to_integer(uint64_t bits, ptx_type from, ptx_type to, bool saturate) {
    number n = from_integer(bits, from);
    if (saturate) return clamp_integer(n.negative, n.magnitude, to);
    uint64_t value = n.negative ? 0 - n.magnitude : n.magnitude;
    unsigned width = sim_ptx_type_bits(to);
    if (width == 64) return value;
    value &= ((uint64_t)1 << width) - 1;
    return ptx_is_signed(to) && value >> (width - 1) ? value | UINT64_MAX << width : value;
}

static uint64_t to_float(number n, unsigned flags, ptx_type to, ptx_rounding rounding) {
    if (flags & INTEGRAL && n.kind == FINITE && n.scale < 0) {
        n.magnitude = shift_rounded(n.magnitude, (unsigned)-n.scale, rounding, n.negative);
        n.scale = 0;
    }
    if (flags & SAT) {
        if (n.kind == NOT_A_NUMBER || n.negative) return 0;
        uint64_t one = (uint64_t)((1 << (formats[to].exponent - 1)) - 1) << formats[to].fraction;
        uint64_t value = put_together(n, to, rounding, false);
        return value > one ? one : value;
    }
    return put_together(n, to, rounding, false);
}

static uint64_t convert(uint64_t bits, unsigned flags) {
    ptx_type from = (ptx_type)(flags & FROM), to = (ptx_type)((flags & TO) >> TO_SHIFT);
    ptx_rounding rounding = (ptx_rounding)((flags & ROUND) >> ROUND_SHIFT);
    if (!ptx_is_float(from) && !ptx_is_float(to)) return integer_to_integer(bits, from, to, flags & SAT);
    if (!ptx_is_float(from)) return to_float(from_integer(bits, from), flags, to, rounding);
    if (from == PTX_F32 && flags & FTZ) bits = flush32(bits);
    if (from == PTX_BF16 && to == PTX_F32 && !(flags & SAT)) return bits << 16 & UINT32_MAX;
    number n = take_apart(bits, from);
    if (!ptx_is_float(to)) return float_to_integer(n, from, to, rounding);
    uint64_t result = to_float(n, flags, to, rounding);
    return to == PTX_F32 && flags & FTZ ? flush32(result) : result;
}

static unsigned run_cvt(ptx_context *x, const ptx_ins *i, uint32_t m) {
    bool wide_from = sim_ptx_type_bits((ptx_type)(i->flags & FROM)) == 64,
         wide_to = sim_ptx_type_bits((ptx_type)((i->flags & TO) >> TO_SHIFT)) == 64;
    const void *a = ptx_slot(x, i->a);
    void *d = ptx_slot(x, i->d);
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        uint64_t r = convert(wide_from ? ((const lane_u64 *)a)[l] : ((const lane_u32 *)a)[l], i->flags);
        if (wide_to)
            ((lane_u64 *)d)[l] = r;
        else
            ((lane_u32 *)d)[l] = (uint32_t)r;
    }
    return PTX_NEXT;
}

enum { PACK_ROUND = 7, PACK_RELU = 8, PACK_FINITE = 16, PACK_BF16 = 32 };

static uint32_t narrow16(uint32_t bits, unsigned flags) {
    ptx_type to = flags & PACK_BF16 ? PTX_BF16 : PTX_F16;
    number n = take_apart(bits, PTX_F32);
    if (flags & PACK_RELU && n.kind != NOT_A_NUMBER && n.negative) return 0;
    return (uint32_t)put_together(n, to, (ptx_rounding)(flags & PACK_ROUND), flags & PACK_FINITE);
}

/* Two f32 to one pair: a goes to the upper half. With one source, e is set and only the lower half is. */
static unsigned run_pack(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    const lane_u32 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);
    unsigned flags = i->flags;
    if (i->e)
        PTX_EACH(m, d[l] = narrow16(a[l], flags));
    else
        PTX_EACH(m, d[l] = narrow16(a[l], flags) << 16 | narrow16(b[l], flags));
    return PTX_NEXT;
}

/* f32 to tf32: 10 bits of fraction in an f32. */
static unsigned run_tf32(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    const lane_u32 *a = ptx_slot(x, i->a);
    unsigned flags = i->flags;
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        uint32_t v = a[l], magnitude = v & 0x7fffffffu;
        if (magnitude > 0x7f800000u)
            v = 0x7fffffffu;
        else if (flags & PACK_RELU && v >> 31)
            v = 0;
        else if (magnitude < 0x7f800000u)
            v = (v & 0x80000000u) | (uint32_t)shift_rounded(magnitude, 13, (ptx_rounding)(flags & PACK_ROUND), v >> 31)
                                        << 13;
        d[l] = v;
    }
    return PTX_NEXT;
}

/* --------------------------------------------------------------------------------------- fast common conversions -- */

#define TRUNCATE(T, SLOT)                                                                                              \
    PTX_UNARY(T##_to_u8, lane_u32, SLOT, T##_t, (uint8_t)A)                                                            \
    PTX_UNARY(T##_to_s8, lane_u32, SLOT, T##_t, (int8_t)A)                                                             \
    PTX_UNARY(T##_to_u16, lane_u32, SLOT, T##_t, (uint16_t)A)                                                          \
    PTX_UNARY(T##_to_s16, lane_u32, SLOT, T##_t, (int16_t)A)                                                           \
    PTX_UNARY(T##_to_32, lane_u32, SLOT, T##_t, (uint32_t)A)                                                           \
    PTX_UNARY(T##_to_64, lane_u64, SLOT, T##_t, A)

TRUNCATE(uint8, lane_u32)
TRUNCATE(int8, lane_u32)
TRUNCATE(uint16, lane_u32)
TRUNCATE(int16, lane_u32)
TRUNCATE(uint32, lane_u32)
TRUNCATE(int32, lane_u32)
TRUNCATE(uint64, lane_u64)
TRUNCATE(int64, lane_u64)

#define ROW(T)                                                                                                         \
    {                                                                                                                  \
        [PTX_U8] = T##_to_u8, [PTX_S8] = T##_to_s8, [PTX_U16] = T##_to_u16, [PTX_S16] = T##_to_s16,                    \
        [PTX_U32] = T##_to_32, [PTX_S32] = T##_to_32, [PTX_U64] = T##_to_64, [PTX_S64] = T##_to_64                     \
    }
static ptx_handler *const integer_handlers[PTX_TYPES][PTX_TYPES] = {
    [PTX_U8] = ROW(uint8),   [PTX_S8] = ROW(int8),   [PTX_U16] = ROW(uint16), [PTX_S16] = ROW(int16),
    [PTX_U32] = ROW(uint32), [PTX_S32] = ROW(int32), [PTX_U64] = ROW(uint64), [PTX_S64] = ROW(int64)};

/* To nearest even, as the host converts. */
PTX_UNARY(s32_to_f32, lane_f32, lane_u32, int32_t, (float)A)
PTX_UNARY(u32_to_f32, lane_f32, lane_u32, uint32_t, (float)A)
PTX_UNARY(s64_to_f32, lane_f32, lane_u64, int64_t, (float)A)
PTX_UNARY(u64_to_f32, lane_f32, lane_u64, uint64_t, (float)A)
PTX_UNARY(s32_to_f64, lane_f64, lane_u32, int32_t, (double)A)
PTX_UNARY(u32_to_f64, lane_f64, lane_u32, uint32_t, (double)A)
PTX_UNARY(s64_to_f64, lane_f64, lane_u64, int64_t, (double)A)
PTX_UNARY(u64_to_f64, lane_f64, lane_u64, uint64_t, (double)A)

static inline uint32_t narrow_float(double v) {
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return v == v ? bits : 0x7fffffffu;
}
PTX_UNARY(f32_to_f64, lane_f64, lane_f32, float, (double)A) /* NaN payloads included, as on an H200 */
PTX_UNARY(f64_to_f32, lane_u32, lane_f64, double, narrow_float(A))

/* Towards zero, clamped; NaN is zero. */
static inline int32_t truncate_s32(float v) {
    return v >= 0x1p31f ? INT32_MAX : v > -0x1p31f ? (int32_t)v : v == v ? INT32_MIN : 0;
}
static inline uint32_t truncate_u32(float v) { return v >= 0x1p32f ? UINT32_MAX : v > 0.0f ? (uint32_t)v : 0; }
PTX_UNARY(f32_to_s32, lane_u32, lane_f32, float, (uint32_t)truncate_s32(A))
PTX_UNARY(f32_to_u32, lane_u32, lane_f32, float, truncate_u32(A))

static ptx_handler *fast_handler(ptx_type from, ptx_type to, unsigned flags) {
    ptx_rounding rounding = (ptx_rounding)((flags & ROUND) >> ROUND_SHIFT);
    if (flags & (SAT | FTZ | INTEGRAL)) return NULL;
    if (integer_handlers[from][to]) return integer_handlers[from][to];
    if (from == PTX_F32 && to == PTX_F64) return f32_to_f64;
    if (rounding == PTX_RZ && from == PTX_F32 && to == PTX_S32) return f32_to_s32;
    if (rounding == PTX_RZ && from == PTX_F32 && to == PTX_U32) return f32_to_u32;
    if (rounding != PTX_RN) return NULL;
    if (from == PTX_F64 && to == PTX_F32) return f64_to_f32;
    if (to != PTX_F32 && to != PTX_F64) return NULL;
    bool wide = to == PTX_F64;
    switch (from) {
        case PTX_S32: return wide ? s32_to_f64 : s32_to_f32;
        case PTX_U32: return wide ? u32_to_f64 : u32_to_f32;
        case PTX_S64: return wide ? s64_to_f64 : s64_to_f32;
        case PTX_U64: return wide ? u64_to_f64 : u64_to_f32;
        default: return NULL;
    }
}

/* ------------------------------------------------------------------------------------------------------ decoding -- */

static int take_rounding(ptx_source *s, bool integral) {
    static const char *const plain[] = {
        [PTX_RN] = "rn", [PTX_RZ] = "rz", [PTX_RM] = "rm", [PTX_RP] = "rp", [PTX_RNA] = "rna"};
    static const char *const to_integer[] = {[PTX_RN] = "rni", [PTX_RZ] = "rzi", [PTX_RM] = "rmi", [PTX_RP] = "rpi"};
    for (int n = 0; n < (integral ? 4 : 5); n++)
        if (sim_ptx_take(s, (integral ? to_integer : plain)[n])) return n;
    return -1;
}

static bool is_number(ptx_type t) {
    return ptx_is_integer(t) || t == PTX_F16 || t == PTX_BF16 || t == PTX_F32 || t == PTX_F64;
}

/* cvt.rn.f16x2.f32 d, a, b; and the one-operand forms with .relu or .satfinite. */
static bool decode_packed(ptx_parser *p, ptx_source *s, ptx_type to, int rounding) {
    bool pair = to == PTX_F16X2 || to == PTX_BF16X2;
    unsigned flags = (unsigned)rounding | (sim_ptx_take(s, "relu") ? PACK_RELU : 0) |
                     (sim_ptx_take(s, "satfinite") ? PACK_FINITE : 0) |
                     (to == PTX_BF16 || to == PTX_BF16X2 ? PACK_BF16 : 0);
    if (rounding != PTX_RN && rounding != PTX_RZ)
        sim_ptx_error(p, s->line, "cvt to .%s needs .rn or .rz", sim_ptx_type_name(to));
    ptx_ins *i = sim_ptx_emit_plain(p, s, run_pack, to, PTX_F32, pair ? PTX_F32 : PTX_NONE, PTX_NONE);
    i->flags = (uint16_t)flags;
    i->e = !pair;
    if (!pair) sim_ptx_use(p, PTX_B, sim_ptx_constant32(p, 0));
    return true;
}

static bool decode_tf32(ptx_parser *p, ptx_source *s, int rounding) {
    if (sim_ptx_take_type(s) != PTX_F32) sim_ptx_error(p, s->line, "cvt to .tf32 is from .f32");
    if (rounding != PTX_RN && rounding != PTX_RZ && rounding != PTX_RNA)
        sim_ptx_error(p, s->line, "cvt to .tf32 needs .rna, .rn or .rz");
    unsigned flags = (unsigned)rounding | (sim_ptx_take(s, "relu") ? PACK_RELU : 0);
    sim_ptx_emit_plain(p, s, run_tf32, PTX_B32, PTX_F32, PTX_NONE, PTX_NONE)->flags = (uint16_t)flags;
    return true;
}

/* Whether the conversion needs, allows or forbids a rounding; the default where it may be left out. */
static unsigned rounding_flags(ptx_parser *p, const ptx_source *s, ptx_type to, ptx_type from, int rounding,
                               int integral) {
    bool from_float = ptx_is_float(from), to_float = ptx_is_float(to);
    if (from_float && !to_float) {
        if (integral < 0)
            sim_ptx_error(p, s->line, "cvt from .%s to .%s needs .rni, .rzi, .rmi or .rpi", sim_ptx_type_name(from),
                          sim_ptx_type_name(to));
        return (unsigned)integral << ROUND_SHIFT;
    }
    if (from_float && integral >= 0) {
        if (from != to) sim_ptx_error(p, s->line, "cvt with integer rounding needs two equal floating-point types");
        return (unsigned)integral << ROUND_SHIFT | INTEGRAL;
    }
    bool loses = to_float && (!from_float || sim_ptx_type_bits(from) > sim_ptx_type_bits(to));
    if (loses && rounding < 0)
        sim_ptx_error(p, s->line, "cvt from .%s to .%s needs a rounding mode such as .rn", sim_ptx_type_name(from),
                      sim_ptx_type_name(to));
    if (!to_float && (rounding >= 0 || integral >= 0))
        sim_ptx_error(p, s->line, "cvt between integers has no rounding");
    return (unsigned)(rounding < 0 ? PTX_RN : rounding) << ROUND_SHIFT;
}

static bool decode_cvt(ptx_parser *p, ptx_source *s) {
    if (sim_ptx_take(s, "pack")) sim_ptx_error(p, s->line, "cvt.pack is not known to the simulator");
    int integral = take_rounding(s, true), rounding = take_rounding(s, false);
    if (sim_ptx_take(s, "tf32")) return decode_tf32(p, s, rounding);
    bool ftz = sim_ptx_take(s, "ftz"), sat = sim_ptx_take(s, "sat");
    ptx_type to = sim_ptx_take_type(s), from = sim_ptx_take_type(s);
    if (from == PTX_F32 && (to == PTX_F16X2 || to == PTX_BF16X2)) return decode_packed(p, s, to, rounding);
    if (from == PTX_F32 && (to == PTX_F16 || to == PTX_BF16) && s->modifier_count > 3) {
        for (unsigned n = 0; n < s->modifier_count; n++)
            if (!s->modifiers[n].taken) return decode_packed(p, s, to, rounding);
    }
    if (!is_number(to)) sim_ptx_bad_type(p, s, to);
    if (!is_number(from)) sim_ptx_bad_type(p, s, from);
    sim_ptx_expect_operands(p, s, 2, 2);
    unsigned flags = (unsigned)from | (unsigned)to << TO_SHIFT | rounding_flags(p, s, to, from, rounding, integral) |
                     (ftz ? FTZ : 0) | (sat ? SAT : 0);
    if (ftz && from != PTX_F32 && to != PTX_F32) sim_ptx_error(p, s->line, "cvt.ftz needs .f32");
    /* Floating point to integer always clamps. */
    if (ptx_is_float(from) && !ptx_is_float(to)) flags &= ~(unsigned)SAT;
    uint32_t a = sim_ptx_relaxed_value(p, &s->operands[1], from);
    const ptx_operand *target = &s->operands[0];
    unsigned have = sim_ptx_operand_bits(p, target), bits = sim_ptx_type_bits(to);
    bool wider = ptx_is_integer(to) && have > bits, widen = wider && have == 64;
    if (wider && have > 64) sim_ptx_error(p, s->line, "cvt: the register is wider than 64 bits");
    if (wider && ptx_is_float(p->registers[target->reg].type)) sim_ptx_bad_type(p, s, to);
    uint32_t d = widen ? sim_ptx_new_register(p, PTX_B32) : wider ? target->reg : sim_ptx_destination(p, target, to);
    ptx_handler *fast = fast_handler(from, to, flags);
    sim_ptx_emit(p, fast ? fast : run_cvt)->flags = (uint16_t)flags;
    sim_ptx_define(p, PTX_D, d);
    sim_ptx_use(p, PTX_A, a);
    if (widen) {
        sim_ptx_emit(p, ptx_is_signed(to) ? sim_ptx_widen_signed : sim_ptx_widen);
        sim_ptx_define(p, PTX_D, target->reg);
        sim_ptx_use(p, PTX_A, d);
    }
    return true;
}

const ptx_mnemonic sim_ptx_convert_mnemonics[] = {{"cvt", decode_cvt}, {NULL, NULL}};
