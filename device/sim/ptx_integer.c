/* Integer arithmetic. 16-bit values lie in 32-bit lanes whose upper half is not significant. */
#include "device/sim/ptx_ops.h"
#include "device/sim/ptx_parse.h"

/* ------------------------------------------------------------------------------------------------------ handlers -- */

/* One operation on all six types. Wrapping is wanted, so everything is computed unsigned where sign does not matter. */
#define ALL_TYPES(NAME, ...)                                                                                           \
    PTX_BINARY(NAME##_u16, lane_u32, lane_u32, uint16_t, (uint16_t)(__VA_ARGS__))                                      \
    PTX_BINARY(NAME##_s16, lane_u32, lane_u32, int16_t, (uint16_t)(__VA_ARGS__))                                       \
    PTX_BINARY(NAME##_u32, lane_u32, lane_u32, uint32_t, __VA_ARGS__)                                                  \
    PTX_BINARY(NAME##_s32, lane_u32, lane_u32, int32_t, __VA_ARGS__)                                                   \
    PTX_BINARY(NAME##_u64, lane_u64, lane_u64, uint64_t, __VA_ARGS__)                                                  \
    PTX_BINARY(NAME##_s64, lane_u64, lane_u64, int64_t, __VA_ARGS__)                                                   \
    static const ptx_by_type NAME = {{[PTX_U16] = NAME##_u16,                                                          \
                                      [PTX_S16] = NAME##_s16,                                                          \
                                      [PTX_U32] = NAME##_u32,                                                          \
                                      [PTX_S32] = NAME##_s32,                                                          \
                                      [PTX_U64] = NAME##_u64,                                                          \
                                      [PTX_S64] = NAME##_s64}};

/* Sign does not matter: signed types share the unsigned handlers. */
#define UNSIGNED_TYPES(NAME, ...)                                                                                      \
    PTX_BINARY(NAME##_16, lane_u32, lane_u32, uint16_t, (uint16_t)(__VA_ARGS__))                                       \
    PTX_BINARY(NAME##_32, lane_u32, lane_u32, uint32_t, __VA_ARGS__)                                                   \
    PTX_BINARY(NAME##_64, lane_u64, lane_u64, uint64_t, __VA_ARGS__)                                                   \
    static const ptx_by_type NAME = {{[PTX_U16] = NAME##_16,                                                           \
                                      [PTX_S16] = NAME##_16,                                                           \
                                      [PTX_U32] = NAME##_32,                                                           \
                                      [PTX_S32] = NAME##_32,                                                           \
                                      [PTX_U64] = NAME##_64,                                                           \
                                      [PTX_S64] = NAME##_64}};

UNSIGNED_TYPES(add, A + B)
UNSIGNED_TYPES(sub, A - B)
PTX_BINARY(mul_lo_16, lane_u32, lane_u32, uint16_t, (uint16_t)((uint32_t)A *B))
PTX_BINARY(mul_lo_32, lane_u32, lane_u32, uint32_t, A *B)
PTX_BINARY(mul_lo_64, lane_u64, lane_u64, uint64_t, A *B)
static const ptx_by_type mul_lo = {{[PTX_U16] = mul_lo_16,
                                    [PTX_S16] = mul_lo_16,
                                    [PTX_U32] = mul_lo_32,
                                    [PTX_S32] = mul_lo_32,
                                    [PTX_U64] = mul_lo_64,
                                    [PTX_S64] = mul_lo_64}};
ALL_TYPES(minimum, A < B ? A : B)
ALL_TYPES(maximum, A > B ? A : B)

static inline int32_t saturate(int64_t v) { return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v; }
static inline uint64_t high_u64(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
static inline uint64_t high_s64(int64_t a, int64_t b) { return (uint64_t)((__int128)a * b >> 64); }

PTX_BINARY(add_sat, lane_u32, lane_u32, int32_t, saturate((int64_t)A + B))
PTX_BINARY(sub_sat, lane_u32, lane_u32, int32_t, saturate((int64_t)A - B))

PTX_BINARY(mul_hi_u16, lane_u32, lane_u32, uint16_t, (uint32_t)A *B >> 16)
PTX_BINARY(mul_hi_s16, lane_u32, lane_u32, int16_t, (uint16_t)((int32_t)A *B >> 16))
PTX_BINARY(mul_hi_u32, lane_u32, lane_u32, uint32_t, (uint64_t)A *B >> 32)
PTX_BINARY(mul_hi_s32, lane_u32, lane_u32, int32_t, (int64_t)A *B >> 32)
PTX_BINARY(mul_hi_u64, lane_u64, lane_u64, uint64_t, high_u64(A, B))
PTX_BINARY(mul_hi_s64, lane_u64, lane_u64, int64_t, high_s64(A, B))
static const ptx_by_type mul_hi = {{[PTX_U16] = mul_hi_u16,
                                    [PTX_S16] = mul_hi_s16,
                                    [PTX_U32] = mul_hi_u32,
                                    [PTX_S32] = mul_hi_s32,
                                    [PTX_U64] = mul_hi_u64,
                                    [PTX_S64] = mul_hi_s64}};

PTX_BINARY(mul_wide_u16, lane_u32, lane_u32, uint16_t, (uint32_t)A *B)
PTX_BINARY(mul_wide_s16, lane_u32, lane_u32, int16_t, (int32_t)A *B)
PTX_BINARY(mul_wide_u32, lane_u64, lane_u32, uint32_t, (uint64_t)A *B)
PTX_BINARY(mul_wide_s32, lane_u64, lane_u32, int32_t, (int64_t)A *B)
static const ptx_by_type mul_wide = {
    {[PTX_U16] = mul_wide_u16, [PTX_S16] = mul_wide_s16, [PTX_U32] = mul_wide_u32, [PTX_S32] = mul_wide_s32}};

PTX_TERNARY(mad_lo_16, lane_u32, lane_u32, uint16_t, uint16_t, (uint16_t)((uint32_t)A *B + C))
PTX_TERNARY(mad_lo_32, lane_u32, lane_u32, uint32_t, uint32_t, A *B + C)
PTX_TERNARY(mad_lo_64, lane_u64, lane_u64, uint64_t, uint64_t, A *B + C)
static const ptx_by_type mad_lo = {{[PTX_U16] = mad_lo_16,
                                    [PTX_S16] = mad_lo_16,
                                    [PTX_U32] = mad_lo_32,
                                    [PTX_S32] = mad_lo_32,
                                    [PTX_U64] = mad_lo_64,
                                    [PTX_S64] = mad_lo_64}};

PTX_TERNARY(mad_hi_u16, lane_u32, lane_u32, uint16_t, uint16_t, (uint16_t)(((uint32_t)A * B >> 16) + C))
PTX_TERNARY(mad_hi_s16, lane_u32, lane_u32, int16_t, uint16_t, (uint16_t)(((int32_t)A * B >> 16) + C))
PTX_TERNARY(mad_hi_u32, lane_u32, lane_u32, uint32_t, uint32_t, (uint32_t)((uint64_t)A *B >> 32) + C)
PTX_TERNARY(mad_hi_s32, lane_u32, lane_u32, int32_t, uint32_t, (uint32_t)((int64_t)A *B >> 32) + C)
PTX_TERNARY(mad_hi_u64, lane_u64, lane_u64, uint64_t, uint64_t, high_u64(A, B) + C)
PTX_TERNARY(mad_hi_s64, lane_u64, lane_u64, int64_t, uint64_t, high_s64(A, B) + C)
static const ptx_by_type mad_hi = {{[PTX_U16] = mad_hi_u16,
                                    [PTX_S16] = mad_hi_s16,
                                    [PTX_U32] = mad_hi_u32,
                                    [PTX_S32] = mad_hi_s32,
                                    [PTX_U64] = mad_hi_u64,
                                    [PTX_S64] = mad_hi_s64}};
PTX_TERNARY(mad_hi_sat, lane_u32, lane_u32, int32_t, int32_t, saturate(((int64_t)A * B >> 32) + C))

PTX_TERNARY(mad_wide_u16, lane_u32, lane_u32, uint16_t, uint32_t, (uint32_t)A *B + C)
PTX_TERNARY(mad_wide_s16, lane_u32, lane_u32, int16_t, uint32_t, (uint32_t)((int32_t)A *B) + C)
PTX_TERNARY(mad_wide_u32, lane_u64, lane_u32, uint32_t, uint64_t, (uint64_t)A *B + C)
PTX_TERNARY(mad_wide_s32, lane_u64, lane_u32, int32_t, uint64_t, (uint64_t)((int64_t)A *B) + C)
static const ptx_by_type mad_wide = {
    {[PTX_U16] = mad_wide_u16, [PTX_S16] = mad_wide_s16, [PTX_U32] = mad_wide_u32, [PTX_S32] = mad_wide_s32}};

/* mul24: the low 24 bits of each operand; .hi takes bits 16..47 of the product, .lo bits 0..31. */
static inline int64_t sign24(int32_t v) { return (int64_t)((int32_t)((uint32_t)v << 8) >> 8); }
#define PRODUCT24_U ((uint64_t)(A & 0xffffffu) * (B & 0xffffffu))
#define PRODUCT24_S (sign24(A) * sign24(B))
PTX_BINARY(mul24_lo_u32, lane_u32, lane_u32, uint32_t, PRODUCT24_U)
PTX_BINARY(mul24_lo_s32, lane_u32, lane_u32, int32_t, PRODUCT24_S)
PTX_BINARY(mul24_hi_u32, lane_u32, lane_u32, uint32_t, PRODUCT24_U >> 16)
PTX_BINARY(mul24_hi_s32, lane_u32, lane_u32, int32_t, PRODUCT24_S >> 16)
PTX_TERNARY(mad24_lo_u32, lane_u32, lane_u32, uint32_t, uint32_t, (uint32_t)PRODUCT24_U + C)
PTX_TERNARY(mad24_lo_s32, lane_u32, lane_u32, int32_t, uint32_t, (uint32_t)PRODUCT24_S + C)
PTX_TERNARY(mad24_hi_u32, lane_u32, lane_u32, uint32_t, uint32_t, (uint32_t)(PRODUCT24_U >> 16) + C)
PTX_TERNARY(mad24_hi_s32, lane_u32, lane_u32, int32_t, uint32_t, (uint32_t)(PRODUCT24_S >> 16) + C)
PTX_TERNARY(mad24_hi_sat, lane_u32, lane_u32, int32_t, int32_t, saturate((int64_t)(int32_t)(PRODUCT24_S >> 16) + C))

PTX_TERNARY(sad_u16, lane_u32, lane_u32, uint16_t, uint16_t, (uint16_t)(C + (A < B ? B - A : A - B)))
PTX_TERNARY(sad_s16, lane_u32, lane_u32, int16_t, uint16_t, (uint16_t)(C + (A < B ? B - A : A - B)))
PTX_TERNARY(sad_u32, lane_u32, lane_u32, uint32_t, uint32_t, C + (A < B ? B - A : A - B))
PTX_TERNARY(sad_s32, lane_u32, lane_u32, int32_t, uint32_t,
            C + (A < B ? (uint32_t)B - (uint32_t)A : (uint32_t)A - (uint32_t)B))
PTX_TERNARY(sad_u64, lane_u64, lane_u64, uint64_t, uint64_t, C + (A < B ? B - A : A - B))
PTX_TERNARY(sad_s64, lane_u64, lane_u64, int64_t, uint64_t,
            C + (A < B ? (uint64_t)B - (uint64_t)A : (uint64_t)A - (uint64_t)B))
static const ptx_by_type sad = {{[PTX_U16] = sad_u16,
                                 [PTX_S16] = sad_s16,
                                 [PTX_U32] = sad_u32,
                                 [PTX_S32] = sad_s32,
                                 [PTX_U64] = sad_u64,
                                 [PTX_S64] = sad_s64}};

/* Division by zero is undefined in PTX; here quotient and remainder are all ones, as on an H200. */
#define DIVIDE_U(T) (B ? A / B : (T)-1)
#define DIVIDE_S(T, U) (B == 0 ? (T)-1 : B == -1 ? (T)(0 - (U)A) : A / B)
PTX_BINARY(div_u16, lane_u32, lane_u32, uint16_t, (uint16_t)DIVIDE_U(uint16_t))
PTX_BINARY(div_s16, lane_u32, lane_u32, int16_t, (uint16_t)DIVIDE_S(int16_t, uint16_t))
PTX_BINARY(div_u32, lane_u32, lane_u32, uint32_t, DIVIDE_U(uint32_t))
PTX_BINARY(div_s32, lane_u32, lane_u32, int32_t, DIVIDE_S(int32_t, uint32_t))
PTX_BINARY(div_u64, lane_u64, lane_u64, uint64_t, DIVIDE_U(uint64_t))
PTX_BINARY(div_s64, lane_u64, lane_u64, int64_t, DIVIDE_S(int64_t, uint64_t))
static const ptx_by_type divide = {{[PTX_U16] = div_u16,
                                    [PTX_S16] = div_s16,
                                    [PTX_U32] = div_u32,
                                    [PTX_S32] = div_s32,
                                    [PTX_U64] = div_u64,
                                    [PTX_S64] = div_s64}};

PTX_BINARY(rem_u16, lane_u32, lane_u32, uint16_t, (uint16_t)(B ? A % B : UINT16_MAX))
PTX_BINARY(rem_s16, lane_u32, lane_u32, int16_t, (uint16_t)(B == 0 ? -1 : B == -1 ? 0 : A % B))
PTX_BINARY(rem_u32, lane_u32, lane_u32, uint32_t, B ? A % B : UINT32_MAX)
PTX_BINARY(rem_s32, lane_u32, lane_u32, int32_t, B == 0 ? -1 : B == -1 ? 0 : A % B)
PTX_BINARY(rem_u64, lane_u64, lane_u64, uint64_t, B ? A % B : UINT64_MAX)
PTX_BINARY(rem_s64, lane_u64, lane_u64, int64_t, B == 0 ? -1 : B == -1 ? 0 : A % B)
static const ptx_by_type remainder_of = {{[PTX_U16] = rem_u16,
                                          [PTX_S16] = rem_s16,
                                          [PTX_U32] = rem_u32,
                                          [PTX_S32] = rem_s32,
                                          [PTX_U64] = rem_u64,
                                          [PTX_S64] = rem_s64}};

PTX_UNARY(abs_s16, lane_u32, lane_u32, int16_t, (uint16_t)(A < 0 ? -A : A))
PTX_UNARY(abs_s32, lane_u32, lane_u32, int32_t, A < 0 ? 0 - (uint32_t)A : (uint32_t)A)
PTX_UNARY(abs_s64, lane_u64, lane_u64, int64_t, A < 0 ? 0 - (uint64_t)A : (uint64_t)A)
static const ptx_by_type absolute = {{[PTX_S16] = abs_s16, [PTX_S32] = abs_s32, [PTX_S64] = abs_s64}};
PTX_UNARY(neg_s16, lane_u32, lane_u32, int16_t, (uint16_t)-A)
PTX_UNARY(neg_s32, lane_u32, lane_u32, uint32_t, 0 - A)
PTX_UNARY(neg_s64, lane_u64, lane_u64, uint64_t, 0 - A)
static const ptx_by_type negate = {{[PTX_S16] = neg_s16, [PTX_S32] = neg_s32, [PTX_S64] = neg_s64}};
PTX_UNARY(relu_s32, lane_u32, lane_u32, int32_t, A < 0 ? 0 : A)

/* Two 16-bit values in one register. */
#define LOW(v) ((v)&0xffffu)
#define HIGH(v) ((v) >> 16)
#define PAIR(low, high) ((uint32_t)(uint16_t)(low) | (uint32_t)(uint16_t)(high) << 16)
#define S16(v) ((int16_t)(uint16_t)(v))
PTX_BINARY(add_x2, lane_u32, lane_u32, uint32_t, PAIR(LOW(A) + LOW(B), HIGH(A) + HIGH(B)))
PTX_BINARY(min_u16x2, lane_u32, lane_u32, uint32_t,
           PAIR(LOW(A) < LOW(B) ? LOW(A) : LOW(B), HIGH(A) < HIGH(B) ? HIGH(A) : HIGH(B)))
PTX_BINARY(max_u16x2, lane_u32, lane_u32, uint32_t,
           PAIR(LOW(A) > LOW(B) ? LOW(A) : LOW(B), HIGH(A) > HIGH(B) ? HIGH(A) : HIGH(B)))
PTX_BINARY(min_s16x2, lane_u32, lane_u32, uint32_t,
           PAIR(S16(A) < S16(B) ? A : B, S16(HIGH(A)) < S16(HIGH(B)) ? HIGH(A) : HIGH(B)))
PTX_BINARY(max_s16x2, lane_u32, lane_u32, uint32_t,
           PAIR(S16(A) > S16(B) ? A : B, S16(HIGH(A)) > S16(HIGH(B)) ? HIGH(A) : HIGH(B)))
PTX_UNARY(relu_s16x2, lane_u32, lane_u32, uint32_t, PAIR(S16(A) < 0 ? 0 : A, S16(HIGH(A)) < 0 ? 0 : HIGH(A)))

/* ---- with carry: e is the carry predicate, in and out ---- */

enum { CARRY_IN = 1, CARRY_OUT = 2, CARRY_HIGH = 4, CARRY_SIGNED = 8 };

#define CARRY(NAME, SLOT, T, COMPUTE)                                                                                  \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        SLOT *d = ptx_slot(x, i->d);                                                                                   \
        const SLOT *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b), *c = ptx_slot(x, i->c);                             \
        uint32_t in = i->flags & CARRY_IN ? *(lane_u32 *)ptx_slot(x, i->e) : 0, out = 0;                               \
        for (uint32_t rest = m; rest; rest &= rest - 1) {                                                              \
            unsigned l = (unsigned)__builtin_ctz(rest);                                                                \
            T A = (T)a[l], B = (T)b[l], result, carry = in >> l & 1;                                                   \
            bool carried;                                                                                              \
            (void)c;                                                                                                   \
            COMPUTE;                                                                                                   \
            d[l] = result;                                                                                             \
            if (carried) out |= 1u << l;                                                                               \
        }                                                                                                              \
        if (i->flags & CARRY_OUT) ptx_write_predicate(x, i->e, m, out);                                                \
        return PTX_NEXT;                                                                                               \
    }

#define ADD_CARRY                                                                                                      \
    result = A + B;                                                                                                    \
    carried = result < A;                                                                                              \
    result += carry;                                                                                                   \
    carried = carried || result < carry
#define SUB_BORROW                                                                                                     \
    result = A - B;                                                                                                    \
    carried = A < B || (A == B && carry);                                                                              \
    result -= carry
#define PRODUCT32                                                                                                      \
    (i->flags & CARRY_HIGH ? (i->flags & CARRY_SIGNED ? (uint32_t)((int64_t)(int32_t)A * (int32_t)B >> 32)             \
                                                      : (uint32_t)((uint64_t)A * B >> 32))                             \
                           : A * B)
#define PRODUCT64                                                                                                      \
    (i->flags & CARRY_HIGH ? (i->flags & CARRY_SIGNED ? high_s64((int64_t)A, (int64_t)B) : high_u64(A, B)) : A * B)
CARRY(add_carry_32, lane_u32, uint32_t, ADD_CARRY)
CARRY(add_carry_64, lane_u64, uint64_t, ADD_CARRY)
CARRY(sub_carry_32, lane_u32, uint32_t, SUB_BORROW)
CARRY(sub_carry_64, lane_u64, uint64_t, SUB_BORROW)
CARRY(mad_carry_32, lane_u32, uint32_t, A = PRODUCT32; B = c[l]; ADD_CARRY)
CARRY(mad_carry_64, lane_u64, uint64_t, A = PRODUCT64; B = c[l]; ADD_CARRY)

/* ---- dot products ---- */

enum { A_SIGNED = 1, B_SIGNED = 2, DP2A_HIGH = 4 };

static inline int32_t byte_of(uint32_t v, unsigned n, bool sign) {
    return sign ? (int8_t)(v >> 8 * n) : (int32_t)(v >> 8 * n & 0xff);
}

static unsigned dp4a(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    const lane_u32 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b), *c = ptx_slot(x, i->c);
    bool as = i->flags & A_SIGNED, bs = i->flags & B_SIGNED;
    PTX_EACH(m, uint32_t sum = c[l];
             for (unsigned n = 0; n < 4; n++) sum += (uint32_t)(byte_of(a[l], n, as) * byte_of(b[l], n, bs));
             d[l] = sum);
    return PTX_NEXT;
}

static unsigned dp2a(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    const lane_u32 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b), *c = ptx_slot(x, i->c);
    bool as = i->flags & A_SIGNED, bs = i->flags & B_SIGNED;
    unsigned first = i->flags & DP2A_HIGH ? 2 : 0;
    PTX_EACH(
        m, uint32_t sum = c[l]; for (unsigned n = 0; n < 2; n++) {
            int32_t half = as ? (int16_t)(a[l] >> 16 * n) : (int32_t)(a[l] >> 16 * n & 0xffff);
            sum += (uint32_t)half * (uint32_t)byte_of(b[l], first + n, bs);
        } d[l] = sum);
    return PTX_NEXT;
}

/* ------------------------------------------------------------------------------------------------------ decoding -- */

/* The next type when it is an integer one; PTX_NONE otherwise, with nothing taken, for another family to look. */
static ptx_type integer_type(ptx_source *s) {
    ptx_type type = sim_ptx_peek_type(s);
    return ptx_is_integer(type) || type == PTX_U16X2 || type == PTX_S16X2 ? type : PTX_NONE;
}

static uint32_t carry_register(ptx_parser *p) {
    if (p->carry == UINT32_MAX) p->carry = sim_ptx_new_register(p, PTX_PRED);
    return p->carry;
}

static bool decode_carry(ptx_parser *p, ptx_source *s, ptx_type type, unsigned flags, ptx_handler *run32,
                         ptx_handler *run64) {
    bool mad = run32 == mad_carry_32, wide = sim_ptx_type_bits(type) == 64;
    if (sim_ptx_type_bits(type) < 32) sim_ptx_bad_type(p, s, type);
    if (ptx_is_signed(type)) flags |= CARRY_SIGNED;
    ptx_ins *i = sim_ptx_emit_plain(p, s, wide ? run64 : run32, type, type, type, mad ? type : PTX_NONE);
    i->flags = (uint16_t)flags;
    if (!mad) sim_ptx_use(p, PTX_C, PTX_POOL_FALSE);
    uint32_t carry = carry_register(p);
    if (flags & CARRY_IN) sim_ptx_use(p, PTX_E, carry);
    if (flags & CARRY_OUT) sim_ptx_define(p, PTX_E, carry);
    return true;
}

static bool emit_by_type(ptx_parser *p, ptx_source *s, const ptx_by_type *table, ptx_type type, unsigned sources) {
    ptx_handler *run = table->run[type];
    if (!run) sim_ptx_bad_type(p, s, type);
    sim_ptx_emit_plain(p, s, run, type, type, sources > 1 ? type : PTX_NONE, sources > 2 ? type : PTX_NONE);
    return true;
}

static bool decode_add_sub(ptx_parser *p, ptx_source *s, bool subtract, bool carry_in) {
    ptx_type type = integer_type(s);
    if (!type) return false;
    sim_ptx_take_type(s);
    unsigned flags = (carry_in ? CARRY_IN : 0) | (sim_ptx_take(s, "cc") ? CARRY_OUT : 0);
    if (flags)
        return decode_carry(p, s, type, flags, subtract ? sub_carry_32 : add_carry_32,
                            subtract ? sub_carry_64 : add_carry_64);
    if (type == PTX_U16X2 || type == PTX_S16X2) {
        if (subtract) sim_ptx_bad_type(p, s, type);
        sim_ptx_emit_plain(p, s, add_x2, type, type, type, PTX_NONE);
        return true;
    }
    if (sim_ptx_take(s, "sat")) {
        if (type != PTX_S32) sim_ptx_error(p, s->line, "%.*s.sat needs .s32", (int)s->name.bytes, s->name.text);
        sim_ptx_emit_plain(p, s, subtract ? sub_sat : add_sat, type, type, type, PTX_NONE);
        return true;
    }
    return emit_by_type(p, s, subtract ? &sub : &add, type, 2);
}

static bool decode_add(ptx_parser *p, ptx_source *s) { return decode_add_sub(p, s, false, false); }
static bool decode_addc(ptx_parser *p, ptx_source *s) { return decode_add_sub(p, s, false, true); }
static bool decode_sub(ptx_parser *p, ptx_source *s) { return decode_add_sub(p, s, true, false); }
static bool decode_subc(ptx_parser *p, ptx_source *s) { return decode_add_sub(p, s, true, true); }

static ptx_type widened(ptx_type type) {
    switch (type) {
        case PTX_U16: return PTX_U32;
        case PTX_S16: return PTX_S32;
        case PTX_U32: return PTX_U64;
        default: return PTX_S64;
    }
}

static bool decode_mul(ptx_parser *p, ptx_source *s) {
    ptx_type type = integer_type(s);
    if (!type) return false;
    sim_ptx_take_type(s);
    if (sim_ptx_take(s, "wide")) {
        if (!mul_wide.run[type]) sim_ptx_bad_type(p, s, type);
        sim_ptx_emit_plain(p, s, mul_wide.run[type], widened(type), type, type, PTX_NONE);
        return true;
    }
    if (sim_ptx_take(s, "hi")) return emit_by_type(p, s, &mul_hi, type, 2);
    if (!sim_ptx_take(s, "lo")) sim_ptx_error(p, s->line, "mul of integers needs .lo, .hi or .wide");
    return emit_by_type(p, s, &mul_lo, type, 2);
}

static bool decode_mad_family(ptx_parser *p, ptx_source *s, bool carry_in) {
    ptx_type type = integer_type(s);
    if (!type) return false;
    sim_ptx_take_type(s);
    if (sim_ptx_take(s, "wide")) {
        if (!mad_wide.run[type] || carry_in) sim_ptx_bad_type(p, s, type);
        sim_ptx_emit_plain(p, s, mad_wide.run[type], widened(type), type, type, widened(type));
        return true;
    }
    bool high = sim_ptx_take(s, "hi");
    if (!high && !sim_ptx_take(s, "lo")) sim_ptx_error(p, s->line, "mad of integers needs .lo, .hi or .wide");
    unsigned flags = (carry_in ? CARRY_IN : 0) | (sim_ptx_take(s, "cc") ? CARRY_OUT : 0);
    if (flags) return decode_carry(p, s, type, flags | (high ? CARRY_HIGH : 0), mad_carry_32, mad_carry_64);
    if (sim_ptx_take(s, "sat")) {
        if (type != PTX_S32 || !high) sim_ptx_error(p, s->line, "mad.sat needs .hi and .s32");
        sim_ptx_emit_plain(p, s, mad_hi_sat, type, type, type, type);
        return true;
    }
    return emit_by_type(p, s, high ? &mad_hi : &mad_lo, type, 3);
}

static bool decode_mad(ptx_parser *p, ptx_source *s) { return decode_mad_family(p, s, false); }
static bool decode_madc(ptx_parser *p, ptx_source *s) { return decode_mad_family(p, s, true); }

static bool decode_24(ptx_parser *p, ptx_source *s, bool mad) {
    bool high = sim_ptx_take(s, "hi");
    if (!high && !sim_ptx_take(s, "lo"))
        sim_ptx_error(p, s->line, "%.*s needs .lo or .hi", (int)s->name.bytes, s->name.text);
    bool sat = mad && sim_ptx_take(s, "sat");
    ptx_type type = sim_ptx_take_type(s);
    if ((type != PTX_U32 && type != PTX_S32) || (sat && (!high || type != PTX_S32))) sim_ptx_bad_type(p, s, type);
    bool sign = type == PTX_S32;
    ptx_handler *run = sat   ? mad24_hi_sat
                       : mad ? (high ? (sign ? mad24_hi_s32 : mad24_hi_u32) : (sign ? mad24_lo_s32 : mad24_lo_u32))
                             : (high ? (sign ? mul24_hi_s32 : mul24_hi_u32) : (sign ? mul24_lo_s32 : mul24_lo_u32));
    sim_ptx_emit_plain(p, s, run, type, type, type, mad ? type : PTX_NONE);
    return true;
}

static bool decode_mul24(ptx_parser *p, ptx_source *s) { return decode_24(p, s, false); }
static bool decode_mad24(ptx_parser *p, ptx_source *s) { return decode_24(p, s, true); }

static bool decode_table(ptx_parser *p, ptx_source *s, const ptx_by_type *table, unsigned sources) {
    ptx_type type = integer_type(s);
    if (!type) return false;
    sim_ptx_take_type(s);
    return emit_by_type(p, s, table, type, sources);
}

static bool decode_sad(ptx_parser *p, ptx_source *s) { return decode_table(p, s, &sad, 3); }
static bool decode_div(ptx_parser *p, ptx_source *s) { return decode_table(p, s, &divide, 2); }
static bool decode_rem(ptx_parser *p, ptx_source *s) { return decode_table(p, s, &remainder_of, 2); }
static bool decode_abs(ptx_parser *p, ptx_source *s) { return decode_table(p, s, &absolute, 1); }
static bool decode_neg(ptx_parser *p, ptx_source *s) { return decode_table(p, s, &negate, 1); }

static bool decode_min_max(ptx_parser *p, ptx_source *s, bool maximum_of) {
    ptx_type type = integer_type(s);
    if (!type) return false;
    sim_ptx_take_type(s);
    bool relu = sim_ptx_take(s, "relu");
    if (relu && type != PTX_S32 && type != PTX_S16X2) sim_ptx_bad_type(p, s, type);
    if (type == PTX_U16X2 || type == PTX_S16X2)
        sim_ptx_emit_plain(
            p, s, type == PTX_U16X2 ? (maximum_of ? max_u16x2 : min_u16x2) : (maximum_of ? max_s16x2 : min_s16x2), type,
            type, type, PTX_NONE);
    else
        emit_by_type(p, s, maximum_of ? &maximum : &minimum, type, 2);
    if (!relu) return true;
    uint32_t d = p->module->code[p->module->code_count - 1].d;
    sim_ptx_emit(p, type == PTX_S32 ? relu_s32 : relu_s16x2);
    sim_ptx_define(p, PTX_D, d);
    sim_ptx_use(p, PTX_A, d);
    return true;
}

static bool decode_min(ptx_parser *p, ptx_source *s) { return decode_min_max(p, s, false); }
static bool decode_max(ptx_parser *p, ptx_source *s) { return decode_min_max(p, s, true); }

static bool decode_dot(ptx_parser *p, ptx_source *s, bool two) {
    unsigned flags = 0;
    if (two) {
        if (sim_ptx_take(s, "hi"))
            flags = DP2A_HIGH;
        else if (!sim_ptx_take(s, "lo"))
            sim_ptx_error(p, s->line, "dp2a needs .lo or .hi");
    }
    ptx_type a = sim_ptx_take_type(s), b = sim_ptx_take_type(s);
    if (a != PTX_U32 && a != PTX_S32) sim_ptx_bad_type(p, s, a);
    if (b != PTX_U32 && b != PTX_S32) sim_ptx_bad_type(p, s, b);
    flags |= (a == PTX_S32 ? A_SIGNED : 0) | (b == PTX_S32 ? B_SIGNED : 0);
    sim_ptx_emit_plain(p, s, two ? dp2a : dp4a, PTX_B32, PTX_B32, PTX_B32, PTX_B32)->flags = (uint16_t)flags;
    return true;
}

static bool decode_dp4a(ptx_parser *p, ptx_source *s) { return decode_dot(p, s, false); }
static bool decode_dp2a(ptx_parser *p, ptx_source *s) { return decode_dot(p, s, true); }

const ptx_mnemonic sim_ptx_integer_mnemonics[] = {
    {"add", decode_add},     {"addc", decode_addc}, {"sub", decode_sub},   {"subc", decode_subc},
    {"mul", decode_mul},     {"mad", decode_mad},   {"madc", decode_madc}, {"mul24", decode_mul24},
    {"mad24", decode_mad24}, {"sad", decode_sad},   {"div", decode_div},   {"rem", decode_rem},
    {"abs", decode_abs},     {"neg", decode_neg},   {"min", decode_min},   {"max", decode_max},
    {"dp4a", decode_dp4a},   {"dp2a", decode_dp2a}, {NULL, NULL}};
