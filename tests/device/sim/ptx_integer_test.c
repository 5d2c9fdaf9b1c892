/* Integer arithmetic, logic, shifts, comparisons and selections: each instruction against a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/device/sim/ptx_rows.h"

#define MODEL(NAME, T, ...)                                                                                            \
    static uint64_t NAME(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {                                             \
        T A = (T)a, B = (T)b, C = (T)c, D = (T)d;                                                                      \
        (void)A, (void)B, (void)C, (void)D;                                                                            \
        return (uint64_t)(__VA_ARGS__);                                                                                \
    }
typedef unsigned __int128 u128;
typedef __int128 s128;

/* Models in arithmetic wide enough that nothing overflows. */
#define SIX(NAME, ...)                                                                                                 \
    MODEL(NAME##_u16, uint16_t, (s128)(__VA_ARGS__))                                                                   \
    MODEL(NAME##_s16, int16_t, (s128)(__VA_ARGS__))                                                                    \
    MODEL(NAME##_u32, uint32_t, (s128)(__VA_ARGS__))                                                                   \
    MODEL(NAME##_s32, int32_t, (s128)(__VA_ARGS__))                                                                    \
    MODEL(NAME##_u64, uint64_t, (s128)(__VA_ARGS__))                                                                   \
    MODEL(NAME##_s64, int64_t, (s128)(__VA_ARGS__))
#define SIX_ROWS(OP, NAME, H, R, L)                                                                                    \
    {OP ".u16", H, NAME##_u16}, {OP ".s16", H, NAME##_s16}, {OP ".u32", R, NAME##_u32}, {OP ".s32", R, NAME##_s32},    \
        {OP ".u64", L, NAME##_u64}, {                                                                                  \
        OP ".s64", L, NAME##_s64                                                                                       \
    }
#define TWO(OP, NAME) SIX_ROWS(OP, NAME, "hhh", "rrr", "lll")
#define THREE(OP, NAME) SIX_ROWS(OP, NAME, "hhhh", "rrrr", "llll")

static s128 clamp32(s128 v) { return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v; }
static s128 magnitude(s128 v) { return v < 0 ? -v : v; }

SIX(add, (s128)A + B)
SIX(sub, (s128)A - B)
SIX(mul, (u128)(s128)A *(u128)(s128)B)
SIX(mad, (u128)(s128)A *(u128)(s128)B + (u128)(s128)C)
SIX(least, A < B ? A : B)
SIX(most, A > B ? A : B)
SIX(sad, magnitude((s128)A - B) + C)
SIX(quotient, B == 0 ? (s128)-1 : (s128)A / B)
SIX(rest, B == 0 ? (s128)-1 : (s128)A % B)
MODEL(mulhi_u16, uint16_t, (uint64_t)A *B >> 16)
MODEL(mulhi_s16, int16_t, (int64_t)A *B >> 16)
MODEL(mulhi_u32, uint32_t, (uint64_t)A *B >> 32)
MODEL(mulhi_s32, int32_t, (int64_t)A *B >> 32)
MODEL(mulhi_u64, uint64_t, (u128)A *B >> 64)
MODEL(mulhi_s64, int64_t, (s128)A *B >> 64)
MODEL(madhi_u16, uint16_t, ((uint64_t)A * B >> 16) + C)
MODEL(madhi_s16, int16_t, ((int64_t)A * B >> 16) + C)
MODEL(madhi_u32, uint32_t, ((uint64_t)A * B >> 32) + C)
MODEL(madhi_s32, int32_t, ((int64_t)A * B >> 32) + C)
MODEL(madhi_u64, uint64_t, (uint64_t)((u128)A *B >> 64) + C)
MODEL(madhi_s64, int64_t, (uint64_t)((s128)A *B >> 64) + (uint64_t)C)
MODEL(madhi_sat, int32_t, clamp32(((s128)A * B >> 32) + C))
MODEL(wide_u16, uint16_t, (uint64_t)A *B)
MODEL(wide_s16, int16_t, (int64_t)A *B)
MODEL(wide_u32, uint32_t, (uint64_t)A *B)
MODEL(wide_s32, int32_t, (int64_t)A *B)
MODEL(madwide_u16, uint16_t, (uint64_t)A *B + (uint32_t)c)
MODEL(madwide_s16, int16_t, (uint64_t)((int64_t)A *B) + c)
MODEL(madwide_u32, uint32_t, (uint64_t)A *B + c)
MODEL(madwide_s32, int32_t, (uint64_t)((int64_t)A *B) + c)
MODEL(add_sat, int32_t, clamp32((s128)A + B))
MODEL(sub_sat, int32_t, clamp32((s128)A - B))
static int64_t low24(int32_t v) { return (v & 0xffffff) - ((v & 0x800000) ? 0x1000000 : 0); }
MODEL(mul24lo_u, uint32_t, (uint64_t)(A & 0xffffff) * (B & 0xffffff))
MODEL(mul24lo_s, int32_t, low24(A) * low24(B))
MODEL(mul24hi_u, uint32_t, (uint64_t)(A & 0xffffff) * (B & 0xffffff) >> 16)
MODEL(mul24hi_s, int32_t, low24(A) * low24(B) >> 16)
MODEL(mad24lo_u, uint32_t, (uint64_t)(A & 0xffffff) * (B & 0xffffff) + C)
MODEL(mad24lo_s, int32_t, low24(A) * low24(B) + C)
MODEL(mad24hi_u, uint32_t, ((uint64_t)(A & 0xffffff) * (B & 0xffffff) >> 16) + C)
MODEL(mad24hi_s, int32_t, (low24(A) * low24(B) >> 16) + C)
MODEL(mad24hi_sat, int32_t, clamp32((s128)(int32_t)(low24(A) * low24(B) >> 16) + C))
MODEL(abs_s16, int16_t, magnitude(A))
MODEL(abs_s32, int32_t, magnitude(A))
MODEL(abs_s64, int64_t, magnitude(A))
MODEL(neg_s64, int64_t, -(s128)A)
MODEL(relu_min, int32_t, (A < B ? A : B) < 0 ? 0 : (A < B ? A : B))
MODEL(relu_max, int32_t, (A > B ? A : B) < 0 ? 0 : (A > B ? A : B))

static uint64_t halves(uint64_t low, uint64_t high) { return (low & 0xffff) | (high & 0xffff) << 16; }
MODEL(add_x2, uint32_t, halves(A + B, (A >> 16) + (B >> 16)))
#define X2(NAME, T, OPERATOR)                                                                                          \
    MODEL(NAME, uint32_t, halves((T)A OPERATOR(T) B ? A : B, (T)(A >> 16) OPERATOR(T)(B >> 16) ? A >> 16 : B >> 16))
X2(min_u16x2, uint16_t, <)
X2(max_u16x2, uint16_t, >)
X2(min_s16x2, int16_t, <)
X2(max_s16x2, int16_t, >)

static void test_arithmetic(void **state) {
    (void)state;
    static const row rows[] = {TWO("add", add),
                               TWO("sub", sub),
                               TWO("mul.lo", mul),
                               TWO("mul.hi", mulhi),
                               THREE("mad.lo", mad),
                               THREE("mad.hi", madhi),
                               TWO("min", least),
                               TWO("max", most),
                               THREE("sad", sad),
                               TWO("div", quotient),
                               TWO("rem", rest),
                               {"mul.wide.u16", "rhh", wide_u16},
                               {"mul.wide.s16", "rhh", wide_s16},
                               {"mul.wide.u32", "lrr", wide_u32},
                               {"mul.wide.s32", "lrr", wide_s32},
                               {"mad.wide.u16", "rhhr", madwide_u16},
                               {"mad.wide.s16", "rhhr", madwide_s16},
                               {"mad.wide.u32", "lrrl", madwide_u32},
                               {"mad.wide.s32", "lrrl", madwide_s32},
                               {"add.sat.s32", "rrr", add_sat},
                               {"sub.sat.s32", "rrr", sub_sat},
                               {"mad.hi.sat.s32", "rrrr", madhi_sat},
                               {"mul24.lo.u32", "rrr", mul24lo_u},
                               {"mul24.lo.s32", "rrr", mul24lo_s},
                               {"mul24.hi.u32", "rrr", mul24hi_u},
                               {"mul24.hi.s32", "rrr", mul24hi_s},
                               {"mad24.lo.u32", "rrrr", mad24lo_u},
                               {"mad24.lo.s32", "rrrr", mad24lo_s},
                               {"mad24.hi.u32", "rrrr", mad24hi_u},
                               {"mad24.hi.s32", "rrrr", mad24hi_s},
                               {"mad24.hi.sat.s32", "rrrr", mad24hi_sat},
                               {"abs.s16", "hh", abs_s16},
                               {"abs.s32", "rr", abs_s32},
                               {"abs.s64", "ll", abs_s64},
                               {"neg.s16", "hh", neg_s64},
                               {"neg.s32", "rr", neg_s64},
                               {"neg.s64", "ll", neg_s64},
                               {"min.relu.s32", "rrr", relu_min},
                               {"max.relu.s32", "rrr", relu_max},
                               {"add.u16x2", "rrr", add_x2},
                               {"add.s16x2", "rrr", add_x2},
                               {"min.u16x2", "rrr", min_u16x2},
                               {"max.u16x2", "rrr", max_u16x2},
                               {"min.s16x2", "rrr", min_s16x2},
                               {"max.s16x2", "rrr", max_s16x2}};
    check_rows(ROWS(rows));
}

/* Extended precision: two instructions that pass the carry. The result is the second one's. */
MODEL(carry_add, uint64_t, (uint32_t)(((u128)(uint32_t)a + (uint32_t)b) >> 32) + (uint32_t)c + (uint32_t)a)
MODEL(borrow_sub, uint64_t, (uint32_t)c - (uint32_t)a - ((uint32_t)a < (uint32_t)b))
MODEL(carry_add64, uint64_t, (uint64_t)(((u128)a + b) >> 64) + c + a)
MODEL(borrow_sub64, uint64_t, c - a - (a < b))
MODEL(carry_mad, uint64_t,
      (uint32_t)((uint64_t)(uint32_t)a *(uint32_t)b >> 32) + (uint32_t)a +
          (uint32_t)(((uint64_t)(uint32_t)((uint64_t)(uint32_t)a * (uint32_t)b) + (uint32_t)c) >> 32))
/* Three limbs: a carry that goes in and out of the middle one. */
static uint64_t three_limbs(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    (void)d;
    u128 x = (u128)(uint32_t)a | (u128)(uint32_t)b << 32 | (u128)(uint32_t)c << 64,
         y = (u128)(uint32_t)b | (u128)(uint32_t)c << 32 | (u128)(uint32_t)a << 64;
    return (uint64_t)((x + y) >> 64);
}
static uint64_t three_limbs_less(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    (void)d;
    u128 x = (u128)(uint32_t)a | (u128)(uint32_t)b << 32 | (u128)(uint32_t)c << 64,
         y = (u128)(uint32_t)b | (u128)(uint32_t)c << 32 | (u128)(uint32_t)a << 64;
    return (uint64_t)((x - y) >> 64);
}

static void test_carry(void **state) {
    (void)state;
    static const row rows[] = {
        {"add.cc.u32 %r8, %r1, %r2; addc.u32 %r9, %r3, %r1; // $", "rrrr", carry_add},
        {"sub.cc.u32 %r8, %r1, %r2; subc.u32 %r9, %r3, %r1; // $", "rrrr", borrow_sub},
        {"add.cc.u64 %l8, %l1, %l2; addc.u64 %l9, %l3, %l1; // $", "llll", carry_add64},
        {"sub.cc.s64 %l8, %l1, %l2; subc.s64 %l9, %l3, %l1; // $", "llll", borrow_sub64},
        {"mad.lo.cc.u32 %r8, %r1, %r2, %r3; madc.hi.u32 %r9, %r1, %r2, %r1; // $", "rrrr", carry_mad},
        {"add.cc.u32 %r8, %r1, %r2; addc.cc.u32 %r8, %r2, %r3; addc.u32 %r9, %r3, %r1; // $", "rrrr", three_limbs},
        {"sub.cc.u32 %r8, %r1, %r2; subc.cc.u32 %r8, %r2, %r3; subc.u32 %r9, %r3, %r1; // $", "rrrr",
         three_limbs_less}};
    check_rows(ROWS(rows));
}

/* ---- bits ---- */

MODEL(and_, uint64_t, A &B)
MODEL(or_, uint64_t, A | B)
MODEL(xor_, uint64_t, A ^ B)
MODEL(not_, uint64_t, ~A)
MODEL(cnot_, uint64_t, A == 0)
MODEL(pand, uint64_t, A &B & 1)
MODEL(pnot, uint64_t, !(A & 1))
#define SHIFTS(W, U, S)                                                                                                \
    MODEL(shl##W, U, b >= W ? 0 : (uint64_t)A << b)                                                                    \
    MODEL(shru##W, U, b >= W ? 0 : (uint64_t)A >> b)                                                                   \
    MODEL(shrs##W, S, b >= W ? (A < 0 ? -1 : 0) : (int64_t)A >> b)
SHIFTS(16, uint16_t, int16_t)
SHIFTS(32, uint32_t, int32_t)
SHIFTS(64, uint64_t, int64_t)
MODEL(shf_lw, uint32_t, ((u128)((uint64_t)B << 32 | A) << (C % 32)) >> 32)
MODEL(shf_lc, uint32_t, ((u128)((uint64_t)B << 32 | A) << (C > 32 ? 32 : C)) >> 32)
MODEL(shf_rw, uint32_t, ((uint64_t)B << 32 | A) >> (C % 32))
MODEL(shf_rc, uint32_t, ((uint64_t)B << 32 | A) >> (C > 32 ? 32 : C))
static uint64_t bit_count(uint64_t v) {
    uint64_t n = 0;
    for (; v; v >>= 1) n += v & 1;
    return n;
}
static uint64_t highest_bit(uint64_t v) {
    uint64_t n = UINT64_MAX;
    for (; v; v >>= 1) n++;
    return n;
}
MODEL(popc_, uint64_t, bit_count(A))
MODEL(clz32, uint32_t, 31 - highest_bit(A))
MODEL(clz64, uint64_t, 63 - highest_bit(A))
static uint64_t reversed(uint64_t v, unsigned bits) {
    uint64_t r = 0;
    for (unsigned i = 0; i < bits; i++) r |= (v >> i & 1) << (bits - 1 - i);
    return r;
}
MODEL(brev32, uint32_t, reversed(A, 32))
MODEL(brev64, uint64_t, reversed(A, 64))
MODEL(bfind_u, uint64_t, highest_bit(A))
MODEL(bfind_s32, int32_t, highest_bit((uint32_t)(A < 0 ? ~A : A)))
MODEL(bfind_s64, int64_t, highest_bit((uint64_t)(A < 0 ? ~A : A)))
MODEL(bfind_shift32, uint32_t, A ? 31 - highest_bit(A) : UINT64_MAX)
MODEL(bfind_shift64, uint64_t, A ? 63 - highest_bit(A) : UINT64_MAX)
MODEL(bfind_shift_s32, int32_t, (A < 0 ? ~A : A) ? 31 - highest_bit((uint32_t)(A < 0 ? ~A : A)) : UINT64_MAX)

/* The pseudo code of the PTX manual, bit by bit; but an H200 takes all bits of the 64-bit forms' positions and
 * lengths. */
static unsigned field(uint64_t v, unsigned width) {
    return width == 32 ? v & 0xff : (uint32_t)v > 1000 ? 1000 : (uint32_t)v;
}
static uint64_t extract(uint64_t a, uint64_t b, uint64_t c, unsigned width, int sign) {
    unsigned msb = width - 1, pos = field(b, width), len = field(c, width);
    uint64_t fill = !sign || len == 0 ? 0 : a >> (pos + len - 1 < msb ? pos + len - 1 : msb) & 1, d = 0;
    for (unsigned i = 0; i <= msb; i++) d |= (i < len && pos + i <= msb ? a >> (pos + i) & 1 : fill) << i;
    return d;
}
MODEL(bfe_u32, uint32_t, extract(A, b, c, 32, 0))
MODEL(bfe_s32, uint32_t, extract(A, b, c, 32, 1))
MODEL(bfe_u64, uint64_t, extract(A, b, c, 64, 0))
MODEL(bfe_s64, uint64_t, extract(A, b, c, 64, 1))
static uint64_t insert(uint64_t a, uint64_t f, uint64_t c, uint64_t d, unsigned width) {
    unsigned msb = width - 1, pos = field(c, width), len = field(d, width);
    for (unsigned i = 0; i < len && pos + i <= msb; i++)
        f = (f & ~((uint64_t)1 << (pos + i))) | (a >> i & 1) << (pos + i);
    return f;
}
MODEL(bfi32, uint32_t, insert(A, B, c, d, 32))
MODEL(bfi64, uint64_t, insert(A, B, c, d, 64))
static uint64_t ones(uint64_t start, uint64_t bits) {
    uint64_t r = 0;
    for (unsigned i = 0; i < 32; i++)
        if (i >= start && i - start < bits) r |= (uint64_t)1 << i;
    return r;
}
MODEL(bmsk_clamp, uint32_t, ones(A, B))
MODEL(bmsk_wrap, uint32_t, ones(A % 32, B % 32))
static uint64_t extended(uint32_t a, uint32_t n, int sign) {
    if (n == 0) return 0;
    if (n >= 32) return a;
    return sign && a >> (n - 1) & 1 ? a | UINT32_MAX << n : a & ~(UINT32_MAX << n);
}
MODEL(szext_cu, uint32_t, extended(A, B, 0))
MODEL(szext_cs, uint32_t, extended(A, B, 1))
MODEL(szext_wu, uint32_t, extended(A, B % 32, 0))
MODEL(szext_ws, uint32_t, extended(A, B % 32, 1))
static uint64_t nth_bit(uint32_t mask, uint32_t base, int32_t offset) {
    if (base > 31) return UINT32_MAX;
    if (offset == 0) return mask >> base & 1 ? base : UINT32_MAX;
    int pos = (int)base, inc = offset > 0 ? 1 : -1;
    int64_t count = offset > 0 ? (int64_t)offset - 1 : -(int64_t)offset - 1;
    for (; pos >= 0 && pos < 32; pos += inc)
        if (mask >> pos & 1 && count-- == 0) return (uint64_t)pos;
    return UINT32_MAX;
}
MODEL(fns_, uint32_t, nth_bit(A, B % 40, (int32_t)C % 20))
static uint64_t truth_table(uint32_t a, uint32_t b, uint32_t c, unsigned table) {
    uint64_t r = 0;
    for (unsigned i = 0; i < 32; i++)
        r |= (uint64_t)(table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i;
    return r;
}
MODEL(lop3_96, uint32_t, truth_table(A, B, C, 0x96))
MODEL(lop3_e8, uint32_t, truth_table(A, B, C, 0xe8))
MODEL(lop3_1c, uint32_t, truth_table(A, B, C, 0x1c))
static uint64_t permuted(uint32_t a, uint32_t b, uint32_t selectors) {
    uint64_t r = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned s = selectors >> 4 * i & 15, byte = (s & 7) < 4 ? a >> 8 * (s & 3) & 0xff : b >> 8 * (s & 3) & 0xff;
        r |= (uint64_t)(s & 8 ? (byte & 0x80 ? 0xff : 0) : byte) << 8 * i;
    }
    return r;
}
MODEL(prmt_, uint32_t, permuted(A, B, C))
MODEL(prmt_f4e, uint32_t, ((uint64_t)B << 32 | A) >> 8 * (C & 3))
MODEL(prmt_b4e, uint32_t,
      permuted(A, B,
               (C & 3) == 0   ? 0x5670
               : (C & 3) == 1 ? 0x6701
               : (C & 3) == 2 ? 0x7012
                              : 0x0123))
MODEL(prmt_rc8, uint32_t, (A >> 8 * (C & 3) & 0xff) * UINT64_C(0x01010101))
MODEL(prmt_ecl, uint32_t,
      permuted(A, B,
               (C & 3) == 0   ? 0x3210
               : (C & 3) == 1 ? 0x3211
               : (C & 3) == 2 ? 0x3222
                              : 0x3333))
MODEL(prmt_ecr, uint32_t,
      permuted(A, B,
               (C & 3) == 0   ? 0x0000
               : (C & 3) == 1 ? 0x1110
               : (C & 3) == 2 ? 0x2210
                              : 0x3210))
MODEL(prmt_rc16, uint32_t, (A >> 16 * (C & 1) & 0xffff) * UINT64_C(0x00010001))
static int64_t quarter(uint32_t v, unsigned n, int sign) {
    return sign ? (int8_t)(v >> 8 * n) : (int64_t)(uint8_t)(v >> 8 * n);
}
static uint64_t dot4(uint32_t a, uint32_t b, uint32_t c, int as, int bs) {
    int64_t sum = c;
    for (unsigned n = 0; n < 4; n++) sum += quarter(a, n, as) * quarter(b, n, bs);
    return (uint64_t)sum;
}
MODEL(dp4a_uu, uint32_t, dot4(A, B, C, 0, 0))
MODEL(dp4a_us, uint32_t, dot4(A, B, C, 0, 1))
MODEL(dp4a_su, uint32_t, dot4(A, B, C, 1, 0))
MODEL(dp4a_ss, uint32_t, dot4(A, B, C, 1, 1))
static uint64_t dot2(uint32_t a, uint32_t b, uint32_t c, int as, int bs, unsigned first) {
    int64_t sum = c;
    for (unsigned n = 0; n < 2; n++)
        sum += (as ? (int64_t)(int16_t)(a >> 16 * n) : (int64_t)(uint16_t)(a >> 16 * n)) * quarter(b, first + n, bs);
    return (uint64_t)sum;
}
MODEL(dp2a_lo_uu, uint32_t, dot2(A, B, C, 0, 0, 0))
MODEL(dp2a_lo_ss, uint32_t, dot2(A, B, C, 1, 1, 0))
MODEL(dp2a_hi_us, uint32_t, dot2(A, B, C, 0, 1, 2))
MODEL(dp2a_hi_su, uint32_t, dot2(A, B, C, 1, 0, 2))

static void test_bits(void **state) {
    (void)state;
    static const row rows[] = {{"and.b16", "hhh", and_},
                               {"and.b32", "rrr", and_},
                               {"and.b64", "lll", and_},
                               {"or.b16", "hhh", or_},
                               {"or.b32", "rrr", or_},
                               {"or.b64", "lll", or_},
                               {"xor.b16", "hhh", xor_},
                               {"xor.b32", "rrr", xor_},
                               {"xor.b64", "lll", xor_},
                               {"not.b16", "hh", not_},
                               {"not.b32", "rr", not_},
                               {"not.b64", "ll", not_},
                               {"cnot.b16", "hh", cnot_},
                               {"cnot.b32", "rr", cnot_},
                               {"cnot.b64", "ll", cnot_},
                               {"and.pred", "ppp", pand},
                               {"or.pred", "ppp", or_},
                               {"xor.pred", "ppp", xor_},
                               {"not.pred", "pp", pnot},
                               {"shl.b16", "hhr", shl16},
                               {"shl.b32", "rrr", shl32},
                               {"shl.b64", "llr", shl64},
                               {"shr.u16", "hhr", shru16},
                               {"shr.b32", "rrr", shru32},
                               {"shr.u64", "llr", shru64},
                               {"shr.s16", "hhr", shrs16},
                               {"shr.s32", "rrr", shrs32},
                               {"shr.s64", "llr", shrs64},
                               {"shf.l.wrap.b32", "rrrr", shf_lw},
                               {"shf.l.clamp.b32", "rrrr", shf_lc},
                               {"shf.r.wrap.b32", "rrrr", shf_rw},
                               {"shf.r.clamp.b32", "rrrr", shf_rc},
                               {"popc.b32", "rr", popc_},
                               {"popc.b64", "rl", popc_},
                               {"clz.b32", "rr", clz32},
                               {"clz.b64", "rl", clz64},
                               {"brev.b32", "rr", brev32},
                               {"brev.b64", "ll", brev64},
                               {"bfind.u32", "rr", bfind_u},
                               {"bfind.u64", "rl", bfind_u},
                               {"bfind.s32", "rr", bfind_s32},
                               {"bfind.s64", "rl", bfind_s64},
                               {"bfind.shiftamt.u32", "rr", bfind_shift32},
                               {"bfind.shiftamt.u64", "rl", bfind_shift64},
                               {"bfind.shiftamt.s32", "rr", bfind_shift_s32},
                               {"bfe.u32", "rrrr", bfe_u32},
                               {"bfe.s32", "rrrr", bfe_s32},
                               {"bfe.u64", "llrr", bfe_u64},
                               {"bfe.s64", "llrr", bfe_s64},
                               {"bfi.b32", "rrrrr", bfi32},
                               {"bfi.b64", "lllrr", bfi64},
                               {"bmsk.clamp.b32", "rrr", bmsk_clamp},
                               {"bmsk.wrap.b32", "rrr", bmsk_wrap},
                               {"szext.clamp.u32", "rrr", szext_cu},
                               {"szext.clamp.s32", "rrr", szext_cs},
                               {"szext.wrap.u32", "rrr", szext_wu},
                               {"szext.wrap.s32", "rrr", szext_ws},
                               {"rem.u32 %r2, %r2, 40; rem.s32 %r3, %r3, 20; fns.b32 $", "rrrr", fns_},
                               {"lop3.b32 $, 0x96", "rrrr", lop3_96},
                               {"lop3.b32 $, 0xe8", "rrrr", lop3_e8},
                               {"lop3.b32 $, 28", "rrrr", lop3_1c},
                               {"prmt.b32", "rrrr", prmt_},
                               {"prmt.b32.f4e", "rrrr", prmt_f4e},
                               {"prmt.b32.b4e", "rrrr", prmt_b4e},
                               {"prmt.b32.rc8", "rrrr", prmt_rc8},
                               {"prmt.b32.ecl", "rrrr", prmt_ecl},
                               {"prmt.b32.ecr", "rrrr", prmt_ecr},
                               {"prmt.b32.rc16", "rrrr", prmt_rc16},
                               {"dp4a.u32.u32", "rrrr", dp4a_uu},
                               {"dp4a.u32.s32", "rrrr", dp4a_us},
                               {"dp4a.s32.u32", "rrrr", dp4a_su},
                               {"dp4a.s32.s32", "rrrr", dp4a_ss},
                               {"dp2a.lo.u32.u32", "rrrr", dp2a_lo_uu},
                               {"dp2a.lo.s32.s32", "rrrr", dp2a_lo_ss},
                               {"dp2a.hi.u32.s32", "rrrr", dp2a_hi_us},
                               {"dp2a.hi.s32.u32", "rrrr", dp2a_hi_su}};
    check_rows(ROWS(rows));
}

/* ---- comparing and choosing ---- */

#define COMPARISONS(NAME, T)                                                                                           \
    MODEL(NAME##_eq, T, A == B)                                                                                        \
    MODEL(NAME##_ne, T, A != B)                                                                                        \
    MODEL(NAME##_lt, T, A < B) MODEL(NAME##_le, T, A <= B) MODEL(NAME##_gt, T, A > B) MODEL(NAME##_ge, T, A >= B)
COMPARISONS(u16, uint16_t)
COMPARISONS(s16, int16_t)
COMPARISONS(u32, uint32_t)
COMPARISONS(s32, int32_t)
COMPARISONS(u64, uint64_t)
COMPARISONS(s64, int64_t)
#define SETP(T, KINDS)                                                                                                 \
    {"setp.eq." #T, KINDS, T##_eq}, {"setp.ne." #T, KINDS, T##_ne}, {"setp.lt." #T, KINDS, T##_lt},                    \
        {"setp.le." #T, KINDS, T##_le}, {"setp.gt." #T, KINDS, T##_gt}, {                                              \
        "setp.ge." #T, KINDS, T##_ge                                                                                   \
    }
MODEL(setp_and, int32_t, (A < B) & (c & 1))
MODEL(setp_or, uint32_t, (A >= B) | (c & 1))
MODEL(setp_xor, uint64_t, (A != B) ^ (c & 1))
MODEL(setp_second, int32_t, (A >= B) & (c & 1))
MODEL(setp_negated, int32_t, (A < B) & !(c & 1))
MODEL(set_mask, uint32_t, A > B ? UINT64_MAX : 0)
MODEL(set_one, int32_t, A == B ? 0x3f800000 : 0)
MODEL(set_and, uint16_t, A != B && c & 1 ? UINT64_MAX : 0)
MODEL(chosen, uint64_t, c & 1 ? a : b)
MODEL(chosen_not, uint64_t, c & 1 ? b : a)
MODEL(slct_s32, uint64_t, (int32_t)c >= 0 ? a : b)
MODEL(pack2, uint64_t, (uint32_t)a | b << 32)
MODEL(pack4, uint64_t, (a & 0xffff) | (b & 0xffff) << 16 | (c & 0xffff) << 32 | d << 48)
MODEL(pack16, uint64_t, (a & 0xffff) | (b & 0xffff) << 16)
MODEL(unpack_high, uint64_t, a >> 32)
MODEL(unpack_swapped, uint64_t, (uint32_t)a >> 16 | (a & 0xffff) << 16)
MODEL(unpack_third, uint64_t, a >> 32 & 0xffff)
MODEL(vector_swap, uint64_t, a ^ (b << 1))
MODEL(guarded, uint32_t, c & 1 ? B : A)
MODEL(first, uint64_t, a)

static void test_choice(void **state) {
    (void)state;
    static const row rows[] = {SETP(u16, "phh"),
                               SETP(s16, "phh"),
                               SETP(u32, "prr"),
                               SETP(s32, "prr"),
                               SETP(u64, "pll"),
                               SETP(s64, "pll"),
                               {"setp.lo.u32", "prr", u32_lt},
                               {"setp.ls.u32", "prr", u32_le},
                               {"setp.hi.u64", "pll", u64_gt},
                               {"setp.hs.u16", "phh", u16_ge},
                               {"setp.eq.b16", "phh", u16_eq},
                               {"setp.ne.b32", "prr", u32_ne},
                               {"setp.eq.b64", "pll", u64_eq},
                               {"setp.lt.and.s32", "prrp", setp_and},
                               {"setp.ge.or.u32", "prrp", setp_or},
                               {"setp.ne.xor.u64", "pllp", setp_xor},
                               {"setp.lt.and.s32 %p8|%p9, %r1, %r2, %p3; // $", "prrp", setp_second},
                               {"setp.lt.and.s32 %p9|_, %r1, %r2, !%p3; // $", "prrp", setp_negated},
                               {"set.gt.u32.u32", "rrr", set_mask},
                               {"set.eq.f32.s32", "frr", set_one},
                               {"set.ne.and.s32.u16", "rhhp", set_and},
                               {"selp.b16", "hhhp", chosen},
                               {"selp.u32", "rrrp", chosen},
                               {"selp.s64", "lllp", chosen},
                               {"selp.f32", "fffp", chosen},
                               {"selp.f64", "dddp", chosen},
                               {"selp.b32 %r9, %r1, %r2, !%p3; // $", "rrrp", chosen_not},
                               {"slct.u16.s32", "hhhr", slct_s32},
                               {"slct.b32.s32", "rrrr", slct_s32},
                               {"slct.f64.s32", "dddr", slct_s32},
                               {"mov.b64 %l9, {%r1, %r2}; // $", "lrr", pack2},
                               {"mov.b64 %l9, {%h1, %h2, %h3, %h4}; // $", "lhhhh", pack4},
                               {"mov.b32 %r9, {%h1, %h2}; // $", "rhh", pack16},
                               {"mov.b64 {%r8, %r9}, %l1; // $", "rl", unpack_high},
                               {"mov.b64 {_, %r9}, %l1; // $", "rl", unpack_high},
                               {"mov.b32 {%h1, %h2}, %r1; mov.b32 %r9, {%h2, %h1}; // $", "rr", unpack_swapped},
                               {"mov.b64 {%h1, %h2, %h9, %h4}, %l1; // $", "hl", unpack_third},
                               {"{ .reg .v2 .b64 %v; mov.v2.b64 %v, {%l1, %l2}; mov.v2.b64 %v, {%v.y, %v.x}; shl.b64 "
                                "%l8, %v.x, 1; xor.b64 %l9, %v.y, %l8; } // $",
                                "lll", vector_swap},
                               {"mov.b32 %r9, %r1; @%p3 mov.b32 %r9, %r2; // $", "rrrp", guarded},
                               {"mov.u16", "hh", first},
                               {"mov.f32", "ff", first},
                               {"mov.b64", "ll", first},
                               {"mov.pred", "pp", first}};
    check_rows(ROWS(rows));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_arithmetic), cmocka_unit_test(test_carry),
                                       cmocka_unit_test(test_bits), cmocka_unit_test(test_choice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
