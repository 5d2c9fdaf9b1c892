/* Floating point: IEEE operations bit by bit in every rounding mode, conversions, comparisons; approximations within
 * a few units in the last place. The models compute with the host's rounding modes; what they say about NaN is what
 * an H200 does (every row of this file and of ptx_integer_test.c was compared with one). */
#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/sim/ptx_rows.h"

static float f32(uint64_t bits) {
    uint32_t low = (uint32_t)bits;
    float v;
    memcpy(&v, &low, 4);
    return v;
}
static double f64(uint64_t bits) {
    double v;
    memcpy(&v, &bits, 8);
    return v;
}
static uint64_t b32(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return isnan(v) ? 0x7fffffff : bits;
}
static uint64_t b64(double v) {
    uint64_t bits;
    memcpy(&bits, &v, 8);
    return bits;
}
static uint64_t ftz(uint64_t bits) { return bits & 0x7f800000 ? bits : bits & 0x80000000u; }
static uint64_t sat(uint64_t bits) {
    return isnan(f32(bits)) || signbit(f32(bits)) ? 0 : f32(bits) > 1.0f ? 0x3f800000 : bits;
}

/* One rounded operation: volatile keeps it between the two changes of the rounding mode. */
#define ROUNDED(T, MODE, ...)                                                                                          \
    ({                                                                                                                 \
        volatile T va_ = A, vb_ = B, vc_ = C, vr_;                                                                     \
        fesetround(MODE);                                                                                              \
        T A_ = va_, B_ = vb_, C_ = vc_;                                                                                \
        (void)A_, (void)B_, (void)C_;                                                                                  \
        vr_ = (__VA_ARGS__);                                                                                           \
        fesetround(FE_TONEAREST);                                                                                      \
        vr_;                                                                                                           \
    })

#define ROUNDINGS32(NAME, ...)                                                                                         \
    static uint64_t NAME(int mode, uint64_t a, uint64_t b, uint64_t c) {                                               \
        float A = f32(a), B = f32(b), C = f32(c);                                                                      \
        return b32(ROUNDED(float, mode, __VA_ARGS__));                                                                 \
    }                                                                                                                  \
    static uint64_t NAME##_rn(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                        \
        return (void)d, NAME(FE_TONEAREST, a, b, c);                                                                   \
    }                                                                                                                  \
    static uint64_t NAME##_rz(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                        \
        return (void)d, NAME(FE_TOWARDZERO, a, b, c);                                                                  \
    }                                                                                                                  \
    static uint64_t NAME##_rm(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                        \
        return (void)d, NAME(FE_DOWNWARD, a, b, c);                                                                    \
    }                                                                                                                  \
    static uint64_t NAME##_rp(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                        \
        return (void)d, NAME(FE_UPWARD, a, b, c);                                                                      \
    }                                                                                                                  \
    static uint64_t NAME##_ftz(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                       \
        return (void)d, ftz(NAME(FE_TONEAREST, ftz(a), ftz(b), ftz(c)));                                               \
    }                                                                                                                  \
    static uint64_t NAME##_rz_ftz(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                    \
        return (void)d, ftz(NAME(FE_TOWARDZERO, ftz(a), ftz(b), ftz(c)));                                              \
    }

#define ROUNDINGS64(NAME, ...)                                                                                         \
    static uint64_t NAME(int mode, uint64_t a, uint64_t b, uint64_t c) {                                               \
        double A = f64(a), B = f64(b), C = f64(c);                                                                     \
        return b64(ROUNDED(double, mode, __VA_ARGS__));                                                                \
    }                                                                                                                  \
    static uint64_t NAME##_rn(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                        \
        return (void)d, NAME(FE_TONEAREST, a, b, c);                                                                   \
    }                                                                                                                  \
    static uint64_t NAME##_rz(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                        \
        return (void)d, NAME(FE_TOWARDZERO, a, b, c);                                                                  \
    }                                                                                                                  \
    static uint64_t NAME##_rm(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                        \
        return (void)d, NAME(FE_DOWNWARD, a, b, c);                                                                    \
    }                                                                                                                  \
    static uint64_t NAME##_rp(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                        \
        return (void)d, NAME(FE_UPWARD, a, b, c);                                                                      \
    }

ROUNDINGS32(add32, A_ + B_)
ROUNDINGS32(sub32, A_ - B_)
ROUNDINGS32(mul32, A_ *B_)
ROUNDINGS32(fma32, fmaf(A_, B_, C_))
ROUNDINGS32(div32, A_ / B_)
ROUNDINGS32(rcp32, 1.0f / A_)
ROUNDINGS32(sqrt32, sqrtf(A_))
ROUNDINGS64(add64, A_ + B_)
ROUNDINGS64(sub64, A_ - B_)
ROUNDINGS64(mul64, A_ *B_)
ROUNDINGS64(fma64, fma(A_, B_, C_))
ROUNDINGS64(div64, A_ / B_)
ROUNDINGS64(rcp64, 1.0 / A_)
ROUNDINGS64(sqrt64, sqrt(A_))

static uint64_t add32_sat(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return sat(add32_rn(a, b, c, d)); }
static uint64_t mul32_ftz_sat(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return sat(mul32_ftz(a, b, c, d)); }
static uint64_t fma32_rz_sat(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return sat(fma32_rz(a, b, c, d)); }

#define ALL32(OP, NAME, KINDS)                                                                                         \
    {OP ".rn.f32", KINDS, NAME##_rn}, {OP ".rz.f32", KINDS, NAME##_rz}, {OP ".rm.f32", KINDS, NAME##_rm},              \
        {OP ".rp.f32", KINDS, NAME##_rp}, {OP ".rn.ftz.f32", KINDS, NAME##_ftz}, {                                     \
        OP ".rz.ftz.f32", KINDS, NAME##_rz_ftz                                                                         \
    }
#define ALL64(OP, NAME, KINDS)                                                                                         \
    {OP ".rn.f64", KINDS, NAME##_rn}, {OP ".rz.f64", KINDS, NAME##_rz}, {OP ".rm.f64", KINDS, NAME##_rm}, {            \
        OP ".rp.f64", KINDS, NAME##_rp                                                                                 \
    }

static void test_arithmetic(void **state) {
    (void)state;
    static const row rows[] = {ALL32("add", add32, "fff"),
                               ALL32("sub", sub32, "fff"),
                               ALL32("mul", mul32, "fff"),
                               ALL32("fma", fma32, "ffff"),
                               ALL32("mad", fma32, "ffff"),
                               ALL32("div", div32, "fff"),
                               ALL32("rcp", rcp32, "ff"),
                               ALL32("sqrt", sqrt32, "ff"),
                               {"add.f32", "fff", add32_rn},
                               {"sub.f32", "fff", sub32_rn},
                               {"mul.f32", "fff", mul32_rn},
                               {"mul.ftz.f32", "fff", mul32_ftz},
                               {"add.sat.f32", "fff", add32_sat},
                               {"mul.ftz.sat.f32", "fff", mul32_ftz_sat},
                               {"fma.rz.sat.f32", "ffff", fma32_rz_sat},
                               ALL64("add", add64, "ddd"),
                               ALL64("sub", sub64, "ddd"),
                               ALL64("mul", mul64, "ddd"),
                               ALL64("fma", fma64, "dddd"),
                               ALL64("div", div64, "ddd"),
                               ALL64("rcp", rcp64, "dd"),
                               ALL64("sqrt", sqrt64, "dd"),
                               {"add.f64", "ddd", add64_rn},
                               {"mul.f64", "ddd", mul64_rn}};
    check_rows(ROWS(rows));
}

#define MODEL32(NAME, ...)                                                                                             \
    static uint64_t NAME(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                             \
        float A = f32(a), B = f32(b), C = f32(c);                                                                      \
        (void)A, (void)B, (void)C, (void)d;                                                                            \
        return (uint64_t)(__VA_ARGS__);                                                                                \
    }
#define MODEL64(NAME, ...)                                                                                             \
    static uint64_t NAME(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                             \
        double A = f64(a), B = f64(b), C = f64(c);                                                                     \
        (void)A, (void)B, (void)C, (void)d;                                                                            \
        return (uint64_t)(__VA_ARGS__);                                                                                \
    }

/* The smaller of two, with -0 below +0; a NaN loses. */
static uint64_t smaller(uint64_t a, uint64_t b, bool larger) {
    float x = f32(a), y = f32(b);
    if (isnan(x) && isnan(y)) return 0x7fffffff;
    if (isnan(x)) return (uint32_t)b;
    if (isnan(y)) return (uint32_t)a;
    if (x == y) return (uint32_t)(signbit(x) != larger ? a : b);
    return (uint32_t)((x < y) != larger ? a : b);
}
MODEL32(min32, smaller(a, b, false))
MODEL32(max32, smaller(a, b, true))
MODEL32(min32_ftz, smaller(ftz(a), ftz(b), false))
MODEL32(max32_nan, isnan(A) || isnan(B) ? 0x7fffffff : smaller(a, b, true))
MODEL32(min32_xor,
        isnan(A) && isnan(B) ? 0x7fffffff : smaller(a & 0x7fffffff, b & 0x7fffffff, false) | ((a ^ b) & 0x80000000u))
MODEL64(min64, isnan(A) && isnan(B) ? UINT64_MAX >> 1
               : isnan(A)           ? b
               : isnan(B)           ? a
               : A == B             ? (signbit(A) ? a : b)
               : A < B              ? a
                                    : b)
MODEL64(max64, isnan(A) && isnan(B) ? UINT64_MAX >> 1
               : isnan(A)           ? b
               : isnan(B)           ? a
               : A == B             ? (signbit(A) ? b : a)
               : A > B              ? a
                                    : b)
MODEL32(abs32, isnan(A) ? 0x7fffffff : a & 0x7fffffff)
MODEL32(abs32_ftz, isnan(A) ? 0x7fffffff : ftz(a) & 0x7fffffff)
MODEL32(neg32, isnan(A) ? 0x7fffffff : a ^ 0x80000000u)
MODEL32(neg32_ftz, isnan(A) ? 0x7fffffff : ftz(a) ^ 0x80000000u)
MODEL64(abs64, a &(UINT64_MAX >> 1))
MODEL64(neg64, isnan(A) ? a | UINT64_C(1) << 51 : a ^ UINT64_C(1) << 63)
MODEL32(copysign32, (b & 0x7fffffff) | (a & 0x80000000u))
MODEL64(copysign64, (b & (UINT64_MAX >> 1)) | (a & UINT64_C(1) << 63))
MODEL32(finite32, isfinite(A))
MODEL32(infinite32, !!isinf(A))
MODEL32(number32, !isnan(A))
MODEL32(notanumber32, !!isnan(A))
MODEL32(normal32, A == 0 || isnormal(A)) /* an H200 counts zeros */
MODEL32(subnormal32, fpclassify(A) == FP_SUBNORMAL)
MODEL64(finite64, isfinite(A))
MODEL64(subnormal64, fpclassify(A) == FP_SUBNORMAL)

/* clang-format off */
#define COMPARISONS(M, NAME) \
    M(NAME##_eq, A == B) \
    M(NAME##_ne, A < B || A > B) \
    M(NAME##_lt, A < B) \
    M(NAME##_le, A <= B) \
    M(NAME##_gt, A > B) \
    M(NAME##_ge, A >= B) \
    M(NAME##_equ, A == B || isnan(A) || isnan(B)) \
    M(NAME##_neu, A != B) \
    M(NAME##_ltu, !(A >= B)) \
    M(NAME##_leu, !(A > B)) \
    M(NAME##_gtu, !(A <= B)) \
    M(NAME##_geu, !(A < B)) \
    M(NAME##_num, !isnan(A) && !isnan(B)) \
    M(NAME##_nan, isnan(A) || isnan(B))
/* clang-format on */
COMPARISONS(MODEL32, f32)
COMPARISONS(MODEL64, f64)
#define SETP(T, KINDS)                                                                                                 \
    {"setp.eq." #T, KINDS, T##_eq}, {"setp.ne." #T, KINDS, T##_ne}, {"setp.lt." #T, KINDS, T##_lt},                    \
        {"setp.le." #T, KINDS, T##_le}, {"setp.gt." #T, KINDS, T##_gt}, {"setp.ge." #T, KINDS, T##_ge},                \
        {"setp.equ." #T, KINDS, T##_equ}, {"setp.neu." #T, KINDS, T##_neu}, {"setp.ltu." #T, KINDS, T##_ltu},          \
        {"setp.leu." #T, KINDS, T##_leu}, {"setp.gtu." #T, KINDS, T##_gtu}, {"setp.geu." #T, KINDS, T##_geu},          \
        {"setp.num." #T, KINDS, T##_num}, {                                                                            \
        "setp.nan." #T, KINDS, T##_nan                                                                                 \
    }
MODEL32(lt_ftz, f32(ftz(a)) < f32(ftz(b)))
MODEL32(set_gtu, A <= B ? 0 : 0x3f800000)
MODEL64(set64, A == B ? UINT64_MAX : 0)
MODEL32(slct32, C >= 0 ? a : b)
MODEL32(slct32_ftz, f32(ftz(c)) >= 0 ? a : b)

static void test_signs_and_comparisons(void **state) {
    (void)state;
    static const row rows[] = {{"min.f32", "fff", min32},
                               {"max.f32", "fff", max32},
                               {"min.ftz.f32", "fff", min32_ftz},
                               {"max.NaN.f32", "fff", max32_nan},
                               {"min.xorsign.abs.f32", "fff", min32_xor},
                               {"min.f64", "ddd", min64},
                               {"max.f64", "ddd", max64},
                               {"abs.f32", "ff", abs32},
                               {"abs.ftz.f32", "ff", abs32_ftz},
                               {"neg.f32", "ff", neg32},
                               {"neg.ftz.f32", "ff", neg32_ftz},
                               {"abs.f64", "dd", abs64},
                               {"neg.f64", "dd", neg64},
                               {"copysign.f32", "fff", copysign32},
                               {"copysign.f64", "ddd", copysign64},
                               {"testp.finite.f32", "pf", finite32},
                               {"testp.infinite.f32", "pf", infinite32},
                               {"testp.number.f32", "pf", number32},
                               {"testp.notanumber.f32", "pf", notanumber32},
                               {"testp.normal.f32", "pf", normal32},
                               {"testp.subnormal.f32", "pf", subnormal32},
                               {"testp.finite.f64", "pd", finite64},
                               {"testp.subnormal.f64", "pd", subnormal64},
                               SETP(f32, "pff"),
                               SETP(f64, "pdd"),
                               {"setp.lt.ftz.f32", "pff", lt_ftz},
                               {"set.gtu.f32.f32", "fff", set_gtu},
                               {"set.eq.u32.f64", "rdd", set64},
                               {"slct.f32.f32", "ffff", slct32},
                               {"slct.ftz.f32.f32", "ffff", slct32_ftz}};
    check_rows(ROWS(rows));
}

/* ---- conversions ---- */

#define CONVERT(NAME, MODE, T, V, BITS)                                                                                \
    static uint64_t NAME(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                             \
        (void)b, (void)c, (void)d;                                                                                     \
        volatile V in = (V)(BITS);                                                                                     \
        fesetround(MODE);                                                                                              \
        volatile T out = (T)in;                                                                                        \
        fesetround(FE_TONEAREST);                                                                                      \
        return sizeof(T) == 4 ? b32((float)out) : b64((double)out);                                                    \
    }
#define CONVERT_ALL(NAME, T, V, BITS)                                                                                  \
    CONVERT(NAME##_rn, FE_TONEAREST, T, V, BITS)                                                                       \
    CONVERT(NAME##_rz, FE_TOWARDZERO, T, V, BITS)                                                                      \
    CONVERT(NAME##_rm, FE_DOWNWARD, T, V, BITS)                                                                        \
    CONVERT(NAME##_rp, FE_UPWARD, T, V, BITS)
CONVERT_ALL(s32_f32, float, int32_t, a)
CONVERT_ALL(u16_f32, float, uint16_t, a)
CONVERT_ALL(s64_f32, float, int64_t, a)
CONVERT_ALL(s64_f64, double, int64_t, a)
CONVERT_ALL(u32_f64, double, uint32_t, a)
CONVERT_ALL(f64_f32, float, double, f64(a))
/* Unsigned 64-bit values: in the x87's 64 bits of fraction they are exact, and one rounding follows. */
static uint64_t u64_to(int mode, uint64_t a, bool wide) {
    volatile long double in = a;
    fesetround(mode);
    volatile float narrow = (float)in;
    volatile double full = (double)in;
    fesetround(FE_TONEAREST);
    return wide ? b64(full) : b32(narrow);
}
#define U64(NAME, MODE)                                                                                                \
    static uint64_t u64_f32_##NAME(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                   \
        return (void)b, (void)c, (void)d, u64_to(MODE, a, false);                                                      \
    }                                                                                                                  \
    static uint64_t u64_f64_##NAME(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                   \
        return (void)b, (void)c, (void)d, u64_to(MODE, a, true);                                                       \
    }
U64(rn, FE_TONEAREST)
U64(rz, FE_TOWARDZERO)
U64(rm, FE_DOWNWARD)
U64(rp, FE_UPWARD)

/* Rounds to an integral value and clamps. */
static uint64_t to_integer(double v, int mode, double low, double high, uint64_t lowest, uint64_t highest,
                           uint64_t not_a_number) {
    if (isnan(v)) return not_a_number;
    fesetround(mode);
    volatile double in = v, r = nearbyint(in);
    fesetround(FE_TONEAREST);
    if (r <= low) return lowest;
    if (r >= high) return highest;
    return r < 0 ? 0 - (uint64_t)-r : (uint64_t)r;
}
#define S8(v, m, n) to_integer(v, m, -128, 127, (uint64_t)-128, 127, n)
#define U8(v, m, n) to_integer(v, m, 0, 255, 0, 255, n)
#define S16(v, m, n) to_integer(v, m, -32768, 32767, (uint64_t)-32768, 32767, n)
#define U16(v, m, n) to_integer(v, m, 0, 65535, 0, 65535, n)
#define S32(v, m, n) to_integer(v, m, -0x1p31, 0x1p31 - 1, 0x80000000u, INT32_MAX, n)
#define U32(v, m, n) to_integer(v, m, 0, 0x1p32 - 1, 0, UINT32_MAX, n)
#define S64(v, m, n) to_integer(v, m, -0x1p63, 0x1p63, UINT64_C(1) << 63, INT64_MAX, n)
#define U64I(v, m, n) to_integer(v, m, 0, 0x1p64, 0, UINT64_MAX, n)
#define SIGN64 (UINT64_C(1) << 63)
MODEL32(f32_s32_rni, S32((double)A, FE_TONEAREST, 0))
MODEL32(f32_s32_rzi, S32((double)A, FE_TOWARDZERO, 0))
MODEL32(f32_s32_rmi, S32((double)A, FE_DOWNWARD, 0))
MODEL32(f32_s32_rpi, S32((double)A, FE_UPWARD, 0))
MODEL32(f32_u32_rni, U32((double)A, FE_TONEAREST, 0))
MODEL32(f32_u32_rzi, U32((double)A, FE_TOWARDZERO, 0))
MODEL32(f32_u16_rzi, U16((double)A, FE_TOWARDZERO, 0))
MODEL32(f32_s16_rni, S16((double)A, FE_TONEAREST, 0))
MODEL32(f32_u8_rni, U8((double)A, FE_TONEAREST, 0))
MODEL32(f32_s8_rmi, S8((double)A, FE_DOWNWARD, 0))
MODEL32(f32_s64_rzi, S64((double)A, FE_TOWARDZERO, SIGN64))
MODEL32(f32_u64_rpi, U64I((double)A, FE_UPWARD, SIGN64))
MODEL32(f32_s32_ftz, S32((double)f32(ftz(a)), FE_UPWARD, 0))
MODEL64(f64_s32_rni, S32(A, FE_TONEAREST, 0x80000000u))
MODEL64(f64_s32_rzi, S32(A, FE_TOWARDZERO, 0x80000000u))
MODEL64(f64_u32_rmi, U32(A, FE_DOWNWARD, 0x80000000u))
MODEL64(f64_s64_rni, S64(A, FE_TONEAREST, SIGN64))
MODEL64(f64_s64_rzi, S64(A, FE_TOWARDZERO, SIGN64))
MODEL64(f64_u64_rzi, U64I(A, FE_TOWARDZERO, SIGN64))

#define INTEGRAL(NAME, MODE)                                                                                           \
    static uint64_t NAME##_32(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                        \
        (void)b, (void)c, (void)d;                                                                                     \
        fesetround(MODE);                                                                                              \
        volatile float in = f32(a), r = nearbyintf(in);                                                                \
        fesetround(FE_TONEAREST);                                                                                      \
        return b32(r);                                                                                                 \
    }
INTEGRAL(rni, FE_TONEAREST)
INTEGRAL(rzi, FE_TOWARDZERO)
INTEGRAL(rmi, FE_DOWNWARD)
INTEGRAL(rpi, FE_UPWARD)

MODEL32(widen, b64((double)A))
static uint64_t cut_ftz(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return ftz(f64_f32_rn(a, b, c, d)); }
static uint64_t cut_sat(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return sat(f64_f32_rz(a, b, c, d)); }
MODEL32(sat32, sat(a))

/* Half precision, from the definition: the nearest multiple of the unit of the value's binade. */
static uint64_t half_of(float v, int mode, int fraction, int lowest, float highest) {
    uint64_t sign = signbit(v) ? 0x8000 : 0;
    if (isnan(v)) return 0x7fff;
    uint64_t infinity = fraction == 10 ? 0x7c00 : 0x7f80;
    if (isinf(v)) return sign | infinity;
    int exponent = 0;
    frexp((double)fabsf(v), &exponent);
    if (exponent - 1 < lowest || v == 0) exponent = lowest + 1;
    double unit = ldexp(1.0, exponent - 1 - fraction);
    fesetround(mode);
    volatile double in = (double)v / unit, r = nearbyint(in);
    fesetround(FE_TONEAREST);
    double magnitude = fabs(r) * unit;
    if (magnitude > (double)highest)
        return sign | (mode == FE_TONEAREST || mode == (sign ? FE_DOWNWARD : FE_UPWARD) ? infinity : infinity - 1);
    if (magnitude == 0) return sign;
    frexp(magnitude, &exponent);
    if (exponent - 1 < lowest) return sign | (uint64_t)ldexp(magnitude, fraction - lowest);
    return sign | (uint64_t)(exponent - lowest) << fraction |
           ((uint64_t)ldexp(magnitude, fraction - exponent + 1) & ((1u << fraction) - 1));
}
#define HALF(v, mode) half_of(v, mode, 10, -14, 65504.0f)
#define BRAIN(v, mode) half_of(v, mode, 7, -126, 0x1.fep127f)
MODEL32(f32_f16_rn, HALF(A, FE_TONEAREST))
MODEL32(f32_f16_rz, HALF(A, FE_TOWARDZERO))
MODEL32(f32_f16_rm, HALF(A, FE_DOWNWARD))
MODEL32(f32_f16_rp, HALF(A, FE_UPWARD))
MODEL32(f32_bf16_rn, BRAIN(A, FE_TONEAREST))
MODEL32(f32_bf16_rz, BRAIN(A, FE_TOWARDZERO))
MODEL32(pair16, HALF(B, FE_TONEAREST) | HALF(A, FE_TONEAREST) << 16)
MODEL32(pair_bf16, BRAIN(B, FE_TOWARDZERO) | BRAIN(A, FE_TOWARDZERO) << 16)
MODEL32(relu16, isnan(A) ? 0x7fff : signbit(A) ? 0 : HALF(A, FE_TONEAREST))
static float half_value(uint64_t h) {
    int exponent = h >> 10 & 31;
    double fraction = (double)(h & 0x3ff), v = exponent == 31 ? (h & 0x3ff ? NAN : INFINITY)
                                               : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                                              : ldexp(fraction, -24);
    return (float)(h & 0x8000 ? -v : v);
}
MODEL32(f16_f32, b32(half_value(a)))
MODEL32(f16_s32, S32((double)half_value(a), FE_TOWARDZERO, 0))
MODEL32(s32_f16, HALF((float)(int16_t)a, FE_TONEAREST))
MODEL32(bf16_f32, (uint32_t)a << 16)

#define CUT(NAME, T, U)                                                                                                \
    static uint64_t NAME(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                             \
        return (void)b, (void)c, (void)d, (uint64_t)(U)(T)a;                                                           \
    }
CUT(s8_s32, int8_t, int32_t)
CUT(u8_u32, uint8_t, uint32_t)
CUT(s16_s64, int16_t, int64_t)
CUT(u16_u64, uint16_t, uint64_t)
CUT(s32_s64, int32_t, int64_t)
CUT(u32_u64, uint32_t, uint64_t)
CUT(to_u8, uint8_t, uint64_t)
CUT(to_s8, int8_t, int64_t)
CUT(to_32, uint32_t, uint64_t)
#define CLAMP(NAME, T, LOW, HIGH)                                                                                      \
    static uint64_t NAME(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                             \
        (void)b, (void)c, (void)d;                                                                                     \
        __int128 v = (T)a;                                                                                             \
        return (uint64_t)(v < LOW ? LOW : v > HIGH ? HIGH : v);                                                        \
    }
CLAMP(s32_u8_sat, int32_t, 0, 255)
CLAMP(s64_s32_sat, int64_t, INT32_MIN, INT32_MAX)
CLAMP(u64_s64_sat, uint64_t, INT64_MIN, INT64_MAX)
CLAMP(s32_u32_sat, int32_t, 0, UINT32_MAX)
CLAMP(u32_s16_sat, uint32_t, -32768, 32767)

#define FOUR(OP, TYPES, KINDS, NAME)                                                                                   \
    {OP ".rn." TYPES, KINDS, NAME##_rn}, {OP ".rz." TYPES, KINDS, NAME##_rz}, {OP ".rm." TYPES, KINDS, NAME##_rm}, {   \
        OP ".rp." TYPES, KINDS, NAME##_rp                                                                              \
    }

static void test_conversions(void **state) {
    (void)state;
    static const row rows[] = {FOUR("cvt", "f32.s32", "fr", s32_f32),
                               FOUR("cvt", "f32.u16", "fh", u16_f32),
                               FOUR("cvt", "f32.s64", "fl", s64_f32),
                               FOUR("cvt", "f64.s64", "dl", s64_f64),
                               FOUR("cvt", "f64.u32", "dr", u32_f64),
                               FOUR("cvt", "f32.u64", "fl", u64_f32),
                               FOUR("cvt", "f64.u64", "dl", u64_f64),
                               FOUR("cvt", "f32.f64", "fd", f64_f32),
                               {"cvt.rni.s32.f32", "rf", f32_s32_rni},
                               {"cvt.rzi.s32.f32", "rf", f32_s32_rzi},
                               {"cvt.rmi.s32.f32", "rf", f32_s32_rmi},
                               {"cvt.rpi.s32.f32", "rf", f32_s32_rpi},
                               {"cvt.rni.u32.f32", "rf", f32_u32_rni},
                               {"cvt.rzi.u32.f32", "rf", f32_u32_rzi},
                               {"cvt.rzi.u16.f32", "hf", f32_u16_rzi},
                               {"cvt.rni.s16.f32", "hf", f32_s16_rni},
                               {"cvt.rni.u8.f32", "rf", f32_u8_rni},
                               {"cvt.rmi.s8.f32", "rf", f32_s8_rmi},
                               {"cvt.rzi.s64.f32", "lf", f32_s64_rzi},
                               {"cvt.rpi.u64.f32", "lf", f32_u64_rpi},
                               {"cvt.rpi.ftz.s32.f32", "rf", f32_s32_ftz},
                               {"cvt.rni.s32.f64", "rd", f64_s32_rni},
                               {"cvt.rzi.s32.f64", "rd", f64_s32_rzi},
                               {"cvt.rmi.u32.f64", "rd", f64_u32_rmi},
                               {"cvt.rni.s64.f64", "ld", f64_s64_rni},
                               {"cvt.rzi.s64.f64", "ld", f64_s64_rzi},
                               {"cvt.rzi.u64.f64", "ld", f64_u64_rzi},
                               {"cvt.rni.f32.f32", "ff", rni_32},
                               {"cvt.rzi.f32.f32", "ff", rzi_32},
                               {"cvt.rmi.f32.f32", "ff", rmi_32},
                               {"cvt.rpi.f32.f32", "ff", rpi_32},
                               {"cvt.f64.f32", "df", widen},
                               {"cvt.rn.ftz.f32.f64", "fd", cut_ftz},
                               {"cvt.rz.sat.f32.f64", "fd", cut_sat},
                               {"cvt.sat.f32.f32", "ff", sat32},
                               {"cvt.rn.f16.f32", "hf", f32_f16_rn},
                               {"cvt.rz.f16.f32", "hf", f32_f16_rz},
                               {"cvt.rm.f16.f32", "hf", f32_f16_rm},
                               {"cvt.rp.f16.f32", "hf", f32_f16_rp},
                               {"cvt.rn.bf16.f32", "hf", f32_bf16_rn},
                               {"cvt.rz.bf16.f32", "hf", f32_bf16_rz},
                               {"cvt.rn.f16x2.f32", "rff", pair16},
                               {"cvt.rz.bf16x2.f32", "rff", pair_bf16},
                               {"cvt.rn.relu.f16.f32", "hf", relu16},
                               {"cvt.f32.f16", "fh", f16_f32},
                               {"cvt.rzi.s32.f16", "rh", f16_s32},
                               {"cvt.rn.f16.s16", "hh", s32_f16},
                               {"cvt.f32.bf16", "fh", bf16_f32},
                               {"cvt.s32.s8", "rr", s8_s32},
                               {"cvt.u32.u8", "rh", u8_u32},
                               {"cvt.s64.s16", "lh", s16_s64},
                               {"cvt.u64.u16", "lh", u16_u64},
                               {"cvt.s64.s32", "lr", s32_s64},
                               {"cvt.u64.u32", "lr", u32_u64},
                               {"cvt.u8.u32", "rr", to_u8},
                               {"cvt.s8.s64", "rl", to_s8},
                               {"cvt.u32.u64", "rl", to_32},
                               {"cvt.s8.s64", "ll", to_s8},
                               {"cvt.u8.s32", "lr", to_u8},
                               {"cvt.u64.u32", "ll", u32_u64},
                               {"cvt.s32.s64", "ll", s32_s64},
                               {"cvt.sat.u8.s32", "rr", s32_u8_sat},
                               {"cvt.sat.s32.s64", "rl", s64_s32_sat},
                               {"cvt.sat.s64.u64", "ll", u64_s64_sat},
                               {"cvt.sat.u32.s32", "rr", s32_u32_sat},
                               {"cvt.sat.s16.u32", "hr", u32_s16_sat}};
    check_rows(ROWS(rows));
}

/* ---- approximations: within twice the error that the manual documents ---- */

MODEL32(rcp_a, b32(1.0f / A))
MODEL32(sqrt_a, b32(sqrtf(A)))
MODEL32(rsqrt_a, b32((float)(1.0 / sqrt((double)A))))
MODEL32(lg2_a, b32((float)log2((double)A)))
MODEL32(ex2_a, b32((float)exp2((double)A)))
MODEL32(tanh_a, b32((float)tanh((double)A)))
MODEL32(div_full, b32(A / B))
MODEL32(sin_a, fabsf(A) > 100 ? 0 : b32((float)sin((double)A)))
MODEL32(div_a, fabsf(B) > 0x1p126f && isfinite(B)
                   ? (isinf(A) ? 0x7fffffff : (isnan(A) ? 0x7fffffff : (a ^ b) & 0x80000000u))
                   : b32(A / B))
static uint64_t rcp64_ftz(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    (void)b, (void)c, (void)d;
    uint64_t v = a & ~(uint64_t)UINT32_MAX;
    if (!(a >> 52 & 0x7ff)) v &= SIGN64;
    double r = 1.0 / f64(v);
    uint64_t bits = b64(r) & ~(uint64_t)UINT32_MAX;
    if (isnan(r)) return UINT64_C(0x7fffffff00000000);
    return bits >> 52 & 0x7ff ? bits : bits & SIGN64;
}

static void test_approximations(void **state) {
    (void)state;
    static const row rows[] = {{"rcp.approx.f32", "ff", rcp_a},     {"sqrt.approx.f32", "ff", sqrt_a},
                               {"rsqrt.approx.f32", "ff", rsqrt_a}, {"lg2.approx.f32", "ff", lg2_a},
                               {"ex2.approx.f32", "ff", ex2_a},     {"tanh.approx.f32", "ff", tanh_a},
                               {"div.full.f32", "fff", div_full},   {"div.approx.f32", "fff", div_a}};
    check_rows_near(ROWS(rows), 4, 0x1p-22);
    static const row trigonometric[] = {
        {"abs.f32 %f2, %f1; setp.gt.f32 %p1, %f2, 0f42C80000; sin.approx.f32 %f9, %f1; @%p1 mov.f32 %f9, 0f00000000; "
         "// $",
         "ff", sin_a}};
    check_rows_near(ROWS(trigonometric), 4, 0x1p-20);
    static const row wide[] = {{"rcp.approx.ftz.f64", "dd", rcp64_ftz}};
    check_rows(ROWS(wide));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_arithmetic), cmocka_unit_test(test_signs_and_comparisons),
                                       cmocka_unit_test(test_conversions), cmocka_unit_test(test_approximations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
