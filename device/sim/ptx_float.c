/* Floating-point arithmetic of f32 and f64. IEEE operations are the host's, with the host's rounding modes. A result
 * that is NaN is the canonical one for f32, and for f64 the operand's made quiet, as on an H200. The approximate
 * functions are computed in double and rounded once: at least as exact as a GPU's, not bit-identical to any. */
#include <fenv.h>
#include <math.h>
#include <string.h>

#include "device/sim/ptx_ops.h"
#include "device/sim/ptx_parse.h"

#define NAN32 0x7fffffffu
#define MU_NOINLINE __attribute__((noinline))

static inline uint32_t bits32(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static inline float float32(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline uint64_t bits64(double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static inline double float64(uint64_t bits) {
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline uint32_t canonical(float v) { return v == v ? bits32(v) : NAN32; }
static inline uint32_t flush(uint32_t bits) { return bits & 0x7f800000u ? bits : bits & 0x80000000u; }

/* -------------------------------------------------------------------------------- round to nearest, no modifiers -- */

#define FAST32_2(NAME, OPERATOR)                                                                                       \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        lane_u32 *d = ptx_slot(x, i->d);                                                                               \
        const lane_f32 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);                                                 \
        PTX_EACH(m, d[l] = canonical(a[l] OPERATOR b[l]));                                                             \
        return PTX_NEXT;                                                                                               \
    }
FAST32_2(add_f32, +)
FAST32_2(sub_f32, -)
FAST32_2(mul_f32, *)
FAST32_2(div_f32, /)

#define FAST64_2(NAME, OPERATOR)                                                                                       \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        lane_f64 *d = ptx_slot(x, i->d);                                                                               \
        const lane_f64 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);                                                 \
        PTX_EACH(m, d[l] = a[l] OPERATOR b[l]);                                                                        \
        return PTX_NEXT;                                                                                               \
    }
FAST64_2(add_f64, +)
FAST64_2(sub_f64, -)
FAST64_2(mul_f64, *)
FAST64_2(div_f64, /)

#define FMA(NAME, TARGET)                                                                                              \
    TARGET static unsigned NAME##_f32(ptx_context *x, const ptx_ins *i, uint32_t m) {                                  \
        lane_u32 *d = ptx_slot(x, i->d);                                                                               \
        const lane_f32 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b), *c = ptx_slot(x, i->c);                         \
        PTX_EACH(m, float r = __builtin_fmaf(a[l], b[l], c[l]); d[l] = r == r ? bits32(r) : NAN32);                    \
        return PTX_NEXT;                                                                                               \
    }                                                                                                                  \
    TARGET static unsigned NAME##_f64(ptx_context *x, const ptx_ins *i, uint32_t m) {                                  \
        lane_f64 *d = ptx_slot(x, i->d);                                                                               \
        const lane_f64 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b), *c = ptx_slot(x, i->c);                         \
        PTX_EACH(m, d[l] = __builtin_fma(a[l], b[l], c[l]));                                                           \
        return PTX_NEXT;                                                                                               \
    }

FMA(fma_portable, )
#if defined(__x86_64__)
FMA(fma_native, __attribute__((target("avx2,fma"))))
static bool has_fma(void) { return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"); }
#else /* elsewhere the compiler's own fma is the native one */
#define fma_native_f32 fma_portable_f32
#define fma_native_f64 fma_portable_f64
static bool has_fma(void) { return false; }
#endif

/* ----------------------------------------------------------------------- every rounding, flushing and saturation -- */

enum { OP_ADD, OP_SUB, OP_MUL, OP_FMA, OP_DIV, OP_RCP, OP_SQRT };
enum { ROUNDING = 7, FTZ = 8, SAT = 16 };

static int host_rounding(unsigned flags) {
    switch (flags & ROUNDING) {
        case PTX_RZ: return FE_TOWARDZERO;
        case PTX_RM: return FE_DOWNWARD;
        case PTX_RP: return FE_UPWARD;
        default: return FE_TONEAREST;
    }
}

/* All lanes, in the rounding mode that is set. Never inlined, so that no operation moves across fesetround. */
#define COMPUTE(NAME, T, FMA, SQRT)                                                                                    \
    MU_NOINLINE static void NAME(unsigned op, T *d, const T *a, const T *b, const T *c) {                              \
        for (unsigned l = 0; l < PTX_LANES; l++) {                                                                     \
            switch (op) {                                                                                              \
                case OP_ADD: d[l] = a[l] + b[l]; break;                                                                \
                case OP_SUB: d[l] = a[l] - b[l]; break;                                                                \
                case OP_MUL: d[l] = a[l] * b[l]; break;                                                                \
                case OP_FMA: d[l] = FMA(a[l], b[l], c[l]); break;                                                      \
                case OP_DIV: d[l] = a[l] / b[l]; break;                                                                \
                case OP_RCP: d[l] = 1 / a[l]; break;                                                                   \
                default: d[l] = SQRT(a[l]); break;                                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }
COMPUTE(compute32, float, fmaf, sqrtf)
COMPUTE(compute64, double, fma, sqrt)

static void gather32(const ptx_context *x, uint32_t operand, bool ftz, float out[PTX_LANES]) {
    const lane_u32 *from = ptx_slot(x, operand);
    for (unsigned l = 0; l < PTX_LANES; l++) out[l] = float32(ftz ? flush(from[l]) : from[l]);
}

static unsigned general_f32(ptx_context *x, const ptx_ins *i, uint32_t m) {
    float a[PTX_LANES], b[PTX_LANES], c[PTX_LANES], r[PTX_LANES];
    bool ftz = i->flags & FTZ;
    gather32(x, i->a, ftz, a);
    gather32(x, i->b, ftz, b);
    gather32(x, i->c, ftz, c);
    int rounding = host_rounding(i->flags);
    if (rounding != FE_TONEAREST) fesetround(rounding);
    compute32(i->e, r, a, b, c);
    if (rounding != FE_TONEAREST) fesetround(FE_TONEAREST);
    lane_u32 *d = ptx_slot(x, i->d);
    if (i->flags & SAT) PTX_EACH(m, r[l] = r[l] > 0.0f ? (r[l] < 1.0f ? r[l] : 1.0f) : 0.0f);
    if (ftz)
        PTX_EACH(m, d[l] = flush(canonical(r[l])));
    else
        PTX_EACH(m, d[l] = canonical(r[l]));
    return PTX_NEXT;
}

static unsigned general_f64(ptx_context *x, const ptx_ins *i, uint32_t m) {
    double r[PTX_LANES];
    int rounding = host_rounding(i->flags);
    if (rounding != FE_TONEAREST) fesetround(rounding);
    compute64(i->e, r, ptx_slot(x, i->a), ptx_slot(x, i->b), ptx_slot(x, i->c));
    if (rounding != FE_TONEAREST) fesetround(FE_TONEAREST);
    lane_f64 *d = ptx_slot(x, i->d);
    PTX_EACH(m, d[l] = r[l]);
    return PTX_NEXT;
}

/* ---------------------------------------------------------------------------------------- sign, minimum, maximum -- */

static inline bool is_nan32(uint32_t v) { return (v & 0x7fffffffu) > 0x7f800000u; }
static inline bool is_nan64(uint64_t v) { return (v & (uint64_t)INT64_MAX) > (uint64_t)0x7ff << 52; }

PTX_UNARY(abs_f32, lane_u32, lane_u32, uint32_t, is_nan32(A) ? NAN32 : A & 0x7fffffffu)
PTX_UNARY(abs_ftz, lane_u32, lane_u32, uint32_t, is_nan32(A) ? NAN32 : flush(A) & 0x7fffffffu)
PTX_UNARY(neg_f32, lane_u32, lane_u32, uint32_t, is_nan32(A) ? NAN32 : A ^ 0x80000000u)
PTX_UNARY(neg_ftz, lane_u32, lane_u32, uint32_t, is_nan32(A) ? NAN32 : flush(A) ^ 0x80000000u)
PTX_UNARY(abs_f64, lane_u64, lane_u64, uint64_t, A &INT64_MAX)
/* A NaN keeps its sign and payload and becomes quiet. */
PTX_UNARY(neg_f64, lane_u64, lane_u64, uint64_t, is_nan64(A) ? A | (uint64_t)1 << 51 : A ^ (uint64_t)1 << 63)
PTX_BINARY(copysign_f32, lane_u32, lane_u32, uint32_t, (B & 0x7fffffffu) | (A & 0x80000000u))
PTX_BINARY(copysign_f64, lane_u64, lane_u64, uint64_t, (B & (uint64_t)INT64_MAX) | (A & (uint64_t)1 << 63))

enum { MAXIMUM = 1, MM_FTZ = 2, MM_NAN = 4, MM_XORSIGN = 8 };

/* Orders all numbers, -0 before +0. */
static inline int32_t order32(uint32_t v) { return v & 0x80000000u ? (int32_t)(0x80000000u - v - 1) : (int32_t)v; }

static inline uint32_t min_max32(uint32_t a, uint32_t b, unsigned flags) {
    uint32_t sign = (a ^ b) & 0x80000000u;
    if (flags & MM_FTZ) a = flush(a), b = flush(b);
    if (flags & MM_XORSIGN) a &= 0x7fffffffu, b &= 0x7fffffffu;
    uint32_t r;
    if (is_nan32(a) || is_nan32(b)) {
        if (flags & MM_NAN || (is_nan32(a) && is_nan32(b))) return NAN32;
        r = is_nan32(a) ? b : a;
    } else {
        r = (order32(a) < order32(b)) != (bool)(flags & MAXIMUM) ? a : b;
    }
    return flags & MM_XORSIGN ? r | sign : r;
}

static unsigned min_max_f32(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    const lane_u32 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);
    unsigned flags = i->flags;
    PTX_EACH(m, d[l] = min_max32(a[l], b[l], flags));
    return PTX_NEXT;
}

static inline uint64_t min_max64(uint64_t a, uint64_t b, bool maximum) {
    double va = float64(a), vb = float64(b);
    if (va != va) return vb != vb ? PTX_NAN64 : b;
    if (vb != vb) return a;
    if (va == vb) return maximum ? a & b : a | b; /* the zeros; equal values are unchanged */
    return (va < vb) != maximum ? a : b;
}

static unsigned min_max_f64(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u64 *d = ptx_slot(x, i->d);
    const lane_u64 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);
    bool maximum = i->flags & MAXIMUM;
    PTX_EACH(m, d[l] = min_max64(a[l], b[l], maximum));
    return PTX_NEXT;
}

/* --------------------------------------------------------------------------------------------------------- testp -- */

enum { TEST_FINITE, TEST_INFINITE, TEST_NUMBER, TEST_NAN, TEST_NORMAL, TEST_SUBNORMAL };

static bool test(unsigned which, uint64_t exponent, uint64_t highest, uint64_t fraction) {
    switch (which) {
        case TEST_FINITE: return exponent != highest;
        case TEST_INFINITE: return exponent == highest && !fraction;
        case TEST_NUMBER: return exponent != highest || !fraction;
        case TEST_NAN: return exponent == highest && fraction;
        case TEST_NORMAL: return exponent != highest && (exponent || !fraction); /* zeros count, as on an H200 */
        default: return !exponent && fraction;
    }
}

static unsigned testp(ptx_context *x, const ptx_ins *i, uint32_t m) {
    uint32_t yes = 0;
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        bool result;
        if (i->flags) {
            uint64_t v = ((const lane_u64 *)ptx_slot(x, i->a))[l];
            result = test(i->e, v >> 52 & 0x7ff, 0x7ff, v << 12);
        } else {
            uint32_t v = ((const lane_u32 *)ptx_slot(x, i->a))[l];
            result = test(i->e, v >> 23 & 0xff, 0xff, (uint32_t)(v << 9));
        }
        if (result) yes |= 1u << l;
    }
    ptx_write_predicate(x, i->d, m, yes);
    return PTX_NEXT;
}

/* ------------------------------------------------------------------------------------------------ approximations -- */

enum { F_RCP, F_SQRT, F_RSQRT, F_SIN, F_COS, F_LG2, F_EX2, F_TANH, F_DIV, F_DIV_FULL };

static float approximate(unsigned function, float a, float b) {
    double v = (double)a;
    switch (function) {
        case F_RCP: return 1.0f / a;
        case F_SQRT: return sqrtf(a);
        case F_RSQRT: return (float)(1.0 / sqrt(v));
        case F_SIN: return (float)sin(v);
        case F_COS: return (float)cos(v);
        case F_LG2: return (float)log2(v);
        case F_EX2: return (float)exp2(v);
        case F_TANH: return (float)tanh(v);
        case F_DIV: /* a * (1 / b), and 1 / b underflows for the largest b */
            if (fabsf(b) > 0x1p126f && fabsf(b) <= 0x1.fffffep127f)
                return isfinite(a) ? copysignf(0.0f, a) * copysignf(1.0f, b) : NAN;
            return a / b;
        default: return a / b;
    }
}

static unsigned approximate_f32(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    const lane_u32 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);
    bool ftz = i->flags & FTZ;
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        uint32_t va = ftz ? flush(a[l]) : a[l], vb = ftz ? flush(b[l]) : b[l];
        uint32_t r = canonical(approximate(i->e, float32(va), float32(vb)));
        d[l] = ftz ? flush(r) : r;
    }
    return PTX_NEXT;
}

/* rcp and rsqrt.approx.ftz.f64: from the upper 32 bits of the operand, to 20 bits of fraction; the lower 32 are
 * zero. */
static unsigned approximate_f64(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u64 *d = ptx_slot(x, i->d);
    const lane_u64 *a = ptx_slot(x, i->a);
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        uint64_t v = a[l];
        if (i->flags & FTZ) {
            if (!(v >> 52 & 0x7ff)) v &= (uint64_t)1 << 63;
            v &= ~(uint64_t)UINT32_MAX;
        }
        double r = i->e == F_RCP ? 1.0 / float64(v) : 1.0 / sqrt(float64(v));
        uint64_t bits = r == r ? bits64(r) : PTX_NAN64;
        if (i->flags & FTZ) {
            bits = r == r ? bits & ~(uint64_t)UINT32_MAX : 0x7fffffff00000000u;
            if (!(bits >> 52 & 0x7ff)) bits &= (uint64_t)1 << 63;
        }
        d[l] = bits;
    }
    return PTX_NEXT;
}

/* ------------------------------------------------------------------------------------------------------ decoding -- */

static ptx_type float_type(const ptx_source *s) {
    ptx_type type = sim_ptx_peek_type(s);
    return type == PTX_F32 || type == PTX_F64 ? type : PTX_NONE;
}

static int take_rounding(ptx_source *s) {
    static const char *const names[] = {[PTX_RN] = "rn", [PTX_RZ] = "rz", [PTX_RM] = "rm", [PTX_RP] = "rp"};
    for (int n = 0; n < 4; n++)
        if (sim_ptx_take(s, names[n])) return n;
    return -1;
}

static unsigned take_flags(ptx_parser *p, ptx_source *s, ptx_type type, bool saturates) {
    unsigned flags = (sim_ptx_take(s, "ftz") ? FTZ : 0) | (saturates && sim_ptx_take(s, "sat") ? SAT : 0);
    if (flags && type != PTX_F32)
        sim_ptx_error(p, s->line, "%.*s: .ftz and .sat need .f32", (int)s->name.bytes, s->name.text);
    return flags;
}

static bool emit_arithmetic(ptx_parser *p, ptx_source *s, unsigned op, unsigned sources, ptx_handler *fast32,
                            ptx_handler *fast64, bool needs_rounding) {
    ptx_type type = float_type(s);
    if (!type) return false;
    sim_ptx_take_type(s);
    int rounding = take_rounding(s);
    if (rounding < 0 && needs_rounding)
        sim_ptx_error(p, s->line, "%.*s needs a rounding mode such as .rn", (int)s->name.bytes, s->name.text);
    unsigned flags = take_flags(p, s, type, op <= OP_FMA) | (unsigned)(rounding < 0 ? PTX_RN : rounding);
    bool fast = !flags && (type == PTX_F32 ? fast32 : fast64);
    ptx_handler *run = fast ? (type == PTX_F32 ? fast32 : fast64) : type == PTX_F32 ? general_f32 : general_f64;
    ptx_ins *i =
        sim_ptx_emit_plain(p, s, run, type, type, sources > 1 ? type : PTX_NONE, sources > 2 ? type : PTX_NONE);
    i->e = op;
    i->flags = (uint16_t)flags;
    uint32_t filler = type == PTX_F32 ? sim_ptx_constant32(p, 0) : sim_ptx_constant64(p, 0);
    if (sources < 2) sim_ptx_use(p, PTX_B, filler);
    if (sources < 3) sim_ptx_use(p, PTX_C, filler);
    return true;
}

static bool decode_add(ptx_parser *p, ptx_source *s) {
    return emit_arithmetic(p, s, OP_ADD, 2, add_f32, add_f64, false);
}
static bool decode_sub(ptx_parser *p, ptx_source *s) {
    return emit_arithmetic(p, s, OP_SUB, 2, sub_f32, sub_f64, false);
}
static bool decode_mul(ptx_parser *p, ptx_source *s) {
    return emit_arithmetic(p, s, OP_MUL, 2, mul_f32, mul_f64, false);
}

static bool decode_fma(ptx_parser *p, ptx_source *s) {
    bool native = has_fma();
    return emit_arithmetic(p, s, OP_FMA, 3, native ? fma_native_f32 : fma_portable_f32,
                           native ? fma_native_f64 : fma_portable_f64, sim_ptx_name_is(s->name, "fma"));
}

static bool emit_approximation(ptx_parser *p, ptx_source *s, unsigned function, unsigned sources) {
    ptx_type type = sim_ptx_take_type(s);
    bool f64 = type == PTX_F64 && (function == F_RCP || function == F_RSQRT);
    if (type != PTX_F32 && !f64) sim_ptx_bad_type(p, s, type);
    unsigned flags = sim_ptx_take(s, "ftz") ? FTZ : 0;
    ptx_ins *i = sim_ptx_emit_plain(p, s, f64 ? approximate_f64 : approximate_f32, type, type,
                                    sources > 1 ? type : PTX_NONE, PTX_NONE);
    i->e = function;
    i->flags = (uint16_t)flags;
    if (sources < 2) sim_ptx_use(p, PTX_B, sim_ptx_constant32(p, 0));
    return true;
}

static bool decode_div(ptx_parser *p, ptx_source *s) {
    if (!float_type(s)) return false;
    if (sim_ptx_take(s, "approx")) return emit_approximation(p, s, F_DIV, 2);
    if (sim_ptx_take(s, "full")) return emit_approximation(p, s, F_DIV_FULL, 2);
    return emit_arithmetic(p, s, OP_DIV, 2, div_f32, div_f64, true);
}

static bool decode_rcp(ptx_parser *p, ptx_source *s) {
    if (sim_ptx_take(s, "approx")) return emit_approximation(p, s, F_RCP, 1);
    return emit_arithmetic(p, s, OP_RCP, 1, NULL, NULL, true);
}

static bool decode_sqrt(ptx_parser *p, ptx_source *s) {
    if (sim_ptx_take(s, "approx")) return emit_approximation(p, s, F_SQRT, 1);
    return emit_arithmetic(p, s, OP_SQRT, 1, NULL, NULL, true);
}

static bool decode_function(ptx_parser *p, ptx_source *s) {
    static const struct {
        const char *name;
        unsigned function;
    } functions[] = {{"rsqrt", F_RSQRT}, {"sin", F_SIN}, {"cos", F_COS},
                     {"lg2", F_LG2},     {"ex2", F_EX2}, {"tanh", F_TANH}};
    if (!float_type(s)) return false;
    if (!sim_ptx_take(s, "approx")) sim_ptx_error(p, s->line, "%.*s needs .approx", (int)s->name.bytes, s->name.text);
    for (size_t n = 0; n < sizeof functions / sizeof *functions; n++)
        if (sim_ptx_name_is(s->name, functions[n].name)) return emit_approximation(p, s, functions[n].function, 1);
    return false;
}

static bool decode_sign(ptx_parser *p, ptx_source *s) {
    ptx_type type = float_type(s);
    if (!type) return false;
    sim_ptx_take_type(s);
    bool ftz = take_flags(p, s, type, false), absolute = sim_ptx_name_is(s->name, "abs");
    ptx_handler *run = type == PTX_F64 ? (absolute ? abs_f64 : neg_f64)
                       : ftz           ? (absolute ? abs_ftz : neg_ftz)
                                       : (absolute ? abs_f32 : neg_f32);
    sim_ptx_emit_plain(p, s, run, type, type, PTX_NONE, PTX_NONE);
    return true;
}

static bool decode_min_max(ptx_parser *p, ptx_source *s) {
    ptx_type type = float_type(s);
    if (!type) return false;
    sim_ptx_take_type(s);
    unsigned flags = (sim_ptx_name_is(s->name, "max") ? MAXIMUM : 0) | (take_flags(p, s, type, false) ? MM_FTZ : 0);
    if (type == PTX_F32 && sim_ptx_take(s, "NaN")) flags |= MM_NAN;
    if (type == PTX_F32 && sim_ptx_take(s, "xorsign")) {
        if (!sim_ptx_take(s, "abs")) sim_ptx_error(p, s->line, ".xorsign needs .abs");
        flags |= MM_XORSIGN;
    }
    sim_ptx_emit_plain(p, s, type == PTX_F32 ? min_max_f32 : min_max_f64, type, type, type, PTX_NONE)->flags =
        (uint16_t)flags;
    return true;
}

static bool decode_copysign(ptx_parser *p, ptx_source *s) {
    ptx_type type = float_type(s);
    if (!type) return false;
    sim_ptx_take_type(s);
    sim_ptx_emit_plain(p, s, type == PTX_F32 ? copysign_f32 : copysign_f64, type, type, type, PTX_NONE);
    return true;
}

static bool decode_testp(ptx_parser *p, ptx_source *s) {
    static const char *const names[] = {
        [TEST_FINITE] = "finite",  [TEST_INFINITE] = "infinite", [TEST_NUMBER] = "number",
        [TEST_NAN] = "notanumber", [TEST_NORMAL] = "normal",     [TEST_SUBNORMAL] = "subnormal"};
    ptx_type type = float_type(s);
    if (!type) return false;
    sim_ptx_take_type(s);
    for (unsigned n = 0; n < sizeof names / sizeof *names; n++) {
        if (!sim_ptx_take(s, names[n])) continue;
        ptx_ins *i = sim_ptx_emit_plain(p, s, testp, PTX_PRED, type, PTX_NONE, PTX_NONE);
        i->e = n;
        i->flags = type == PTX_F64;
        return true;
    }
    sim_ptx_error(p, s->line, "testp needs a property such as .finite");
}

const ptx_mnemonic sim_ptx_float_mnemonics[] = {
    {"add", decode_add},           {"sub", decode_sub},       {"mul", decode_mul},
    {"fma", decode_fma},           {"mad", decode_fma},       {"div", decode_div},
    {"rcp", decode_rcp},           {"sqrt", decode_sqrt},     {"rsqrt", decode_function},
    {"sin", decode_function},      {"cos", decode_function},  {"lg2", decode_function},
    {"ex2", decode_function},      {"tanh", decode_function}, {"abs", decode_sign},
    {"neg", decode_sign},          {"min", decode_min_max},   {"max", decode_min_max},
    {"copysign", decode_copysign}, {"testp", decode_testp},   {NULL, NULL}};
