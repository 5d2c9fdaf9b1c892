/* Logic, shifts and everything else that works on bits. */
#include "device/sim/ptx_ops.h"
#include "device/sim/ptx_parse.h"

/* ------------------------------------------------------------------------------------------------------ handlers -- */

#define BOTH_WIDTHS(NAME, ...)                                                                                         \
    PTX_BINARY(NAME##_32, lane_u32, lane_u32, uint32_t, __VA_ARGS__)                                                   \
    PTX_BINARY(NAME##_64, lane_u64, lane_u64, uint64_t, __VA_ARGS__)

BOTH_WIDTHS(and, A &B)
BOTH_WIDTHS(or, A | B)
BOTH_WIDTHS(xor, A ^ B)
PTX_UNARY(not_32, lane_u32, lane_u32, uint32_t, ~A)
PTX_UNARY(not_64, lane_u64, lane_u64, uint64_t, ~A)
PTX_UNARY(cnot_16, lane_u32, lane_u32, uint16_t, A == 0)
PTX_UNARY(cnot_32, lane_u32, lane_u32, uint32_t, A == 0)
PTX_UNARY(cnot_64, lane_u64, lane_u64, uint64_t, A == 0)

/* Counts are not taken modulo the width: shifting by more gives zero, or the sign. */
PTX_SHIFT(shl_16, lane_u32, uint16_t, B > 15 ? 0 : (uint32_t)A << B)
PTX_SHIFT(shl_32, lane_u32, uint32_t, B > 31 ? 0 : A << B)
PTX_SHIFT(shl_64, lane_u64, uint64_t, B > 63 ? 0 : A << B)
PTX_SHIFT(shr_u16, lane_u32, uint16_t, B > 15 ? 0 : A >> B)
PTX_SHIFT(shr_u32, lane_u32, uint32_t, B > 31 ? 0 : A >> B)
PTX_SHIFT(shr_u64, lane_u64, uint64_t, B > 63 ? 0 : A >> B)
PTX_SHIFT(shr_s16, lane_u32, int16_t, (uint16_t)(A >> (B > 15 ? 15 : B)))
PTX_SHIFT(shr_s32, lane_u32, int32_t, A >> (B > 31 ? 31 : B))
PTX_SHIFT(shr_s64, lane_u64, int64_t, A >> (B > 63 ? 63 : B))

/* Funnel shifts: 64 bits made of b (high) and a (low); .l keeps the upper half of the result, .r the lower. */
#define PAIR64 ((uint64_t)B << 32 | A)
PTX_TERNARY(shf_l_clamp, lane_u32, lane_u32, uint32_t, uint32_t, (uint32_t)(PAIR64 << (C > 32 ? 32 : C) >> 32))
PTX_TERNARY(shf_l_wrap, lane_u32, lane_u32, uint32_t, uint32_t, (uint32_t)(PAIR64 << (C & 31) >> 32))
PTX_TERNARY(shf_r_clamp, lane_u32, lane_u32, uint32_t, uint32_t, (uint32_t)(PAIR64 >> (C > 32 ? 32 : C)))
PTX_TERNARY(shf_r_wrap, lane_u32, lane_u32, uint32_t, uint32_t, (uint32_t)(PAIR64 >> (C & 31)))

PTX_UNARY(popc_32, lane_u32, lane_u32, uint32_t, __builtin_popcount(A))
PTX_UNARY(popc_64, lane_u32, lane_u64, uint64_t, __builtin_popcountll(A))
PTX_UNARY(clz_32, lane_u32, lane_u32, uint32_t, A ? __builtin_clz(A) : 32)
PTX_UNARY(clz_64, lane_u32, lane_u64, uint64_t, A ? __builtin_clzll(A) : 64)

static inline uint32_t reverse32(uint32_t v) {
    v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
    v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
    v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(v);
}
PTX_UNARY(brev_32, lane_u32, lane_u32, uint32_t, reverse32(A))
PTX_UNARY(brev_64, lane_u64, lane_u64, uint64_t,
          (uint64_t)reverse32((uint32_t)A) << 32 | reverse32((uint32_t)(A >> 32)))

/* bfind: the most significant bit that differs from the sign; all ones when there is none. */
static inline uint32_t find32(uint32_t v) { return v ? 31u - (unsigned)__builtin_clz(v) : UINT32_MAX; }
static inline uint32_t find64(uint64_t v) { return v ? 63u - (unsigned)__builtin_clzll(v) : UINT32_MAX; }
static inline uint32_t distance(uint32_t found, uint32_t highest) {
    return found == UINT32_MAX ? found : highest - found;
}
PTX_UNARY(bfind_u32, lane_u32, lane_u32, uint32_t, find32(A))
PTX_UNARY(bfind_s32, lane_u32, lane_u32, int32_t, find32((uint32_t)(A < 0 ? ~A : A)))
PTX_UNARY(bfind_u64, lane_u32, lane_u64, uint64_t, find64(A))
PTX_UNARY(bfind_s64, lane_u32, lane_u64, int64_t, find64((uint64_t)(A < 0 ? ~A : A)))
PTX_UNARY(bfind_shift_u32, lane_u32, lane_u32, uint32_t, distance(find32(A), 31))
PTX_UNARY(bfind_shift_s32, lane_u32, lane_u32, int32_t, distance(find32((uint32_t)(A < 0 ? ~A : A)), 31))
PTX_UNARY(bfind_shift_u64, lane_u32, lane_u64, uint64_t, distance(find64(A), 63))
PTX_UNARY(bfind_shift_s64, lane_u32, lane_u64, int64_t, distance(find64((uint64_t)(A < 0 ? ~A : A)), 63))

/* Of position and length the 32-bit forms of bfe and bfi take the low 8 bits, as the manual says; the 64-bit forms take
 * all of them, as an H200 does. */
static inline uint32_t field_operand(uint32_t v, unsigned bits) { return bits == 32 ? v & 255 : v > 255 ? 255 : v; }

/* bfe: `length` bits from `position`; signed fields extend the top bit of the field, or bit 31/63 beyond the
 * register. */
static inline uint64_t extract(uint64_t a, uint32_t position, uint32_t length, unsigned bits, bool sign) {
    unsigned top = bits - 1;
    position = field_operand(position, bits), length = field_operand(length, bits);
    unsigned last = position + length - 1 < top ? position + length - 1 : top;
    uint64_t fill = sign && length ? 0 - (a >> last & 1) : 0;
    if (!length) return 0;
    if (position > top) return fill;
    uint64_t field = a >> position;
    return length >= 64 || position + length > top ? (field & (UINT64_MAX >> (63 - (top - position)))) |
                                                         (top - position == 63 ? 0 : fill << (top - position) << 1)
                                                   : (field & (((uint64_t)1 << length) - 1)) | fill << length;
}

#define EXTRACT(NAME, SLOT, BITS, SIGN)                                                                                \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        SLOT *d = ptx_slot(x, i->d);                                                                                   \
        const SLOT *a = ptx_slot(x, i->a);                                                                             \
        const lane_u32 *b = ptx_slot(x, i->b), *c = ptx_slot(x, i->c);                                                 \
        PTX_EACH(m, d[l] = (SLOT)extract(a[l], b[l], c[l], BITS, SIGN));                                               \
        return PTX_NEXT;                                                                                               \
    }
EXTRACT(bfe_u32, lane_u32, 32, false)
EXTRACT(bfe_s32, lane_u32, 32, true)
EXTRACT(bfe_u64, lane_u64, 64, false)
EXTRACT(bfe_s64, lane_u64, 64, true)

static inline uint64_t insert(uint64_t a, uint64_t b, uint32_t position, uint32_t length, unsigned bits) {
    position = field_operand(position, bits), length = field_operand(length, bits);
    if (position >= bits || !length) return b;
    uint64_t mask = length >= 64 ? UINT64_MAX : ((uint64_t)1 << length) - 1;
    mask <<= position;
    return (b & ~mask) | (a << position & mask);
}

#define INSERT(NAME, SLOT, BITS)                                                                                       \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        SLOT *d = ptx_slot(x, i->d);                                                                                   \
        const SLOT *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);                                                     \
        const lane_u32 *c = ptx_slot(x, i->c), *e = ptx_slot(x, i->e);                                                 \
        PTX_EACH(m, d[l] = (SLOT)insert(a[l], b[l], c[l], e[l], BITS));                                                \
        return PTX_NEXT;                                                                                               \
    }
INSERT(bfi_32, lane_u32, 32)
INSERT(bfi_64, lane_u64, 64)

static inline uint32_t bit_mask(uint32_t position, uint32_t length) {
    return position > 31 || !length ? 0 : (length > 31 ? UINT32_MAX : (1u << length) - 1) << position;
}
PTX_BINARY(bmsk_clamp, lane_u32, lane_u32, uint32_t, bit_mask(A, B))
PTX_BINARY(bmsk_wrap, lane_u32, lane_u32, uint32_t, bit_mask(A & 31, B & 31))

static inline uint32_t extend(uint32_t a, uint32_t bits, bool sign) {
    if (bits == 0) return 0;
    if (bits > 31) return a;
    uint32_t low = a & ((1u << bits) - 1);
    return sign && low >> (bits - 1) ? low | ~((1u << bits) - 1) : low;
}
PTX_BINARY(szext_clamp_u, lane_u32, lane_u32, uint32_t, extend(A, B, false))
PTX_BINARY(szext_clamp_s, lane_u32, lane_u32, uint32_t, extend(A, B, true))
PTX_BINARY(szext_wrap_u, lane_u32, lane_u32, uint32_t, extend(A, B & 31, false))
PTX_BINARY(szext_wrap_s, lane_u32, lane_u32, uint32_t, extend(A, B & 31, true))

/* fns: the n-th set bit of the mask from `base`, upwards for positive n, downwards for negative; n 0: base itself. */
static inline uint32_t find_nth(uint32_t mask, uint32_t base, int32_t n) {
    if (base > 31) return UINT32_MAX;
    if (n == 0) return mask >> base & 1 ? base : UINT32_MAX;
    int step = n > 0 ? 1 : -1;
    int64_t left = n > 0 ? n : -(int64_t)n;
    for (int at = (int)base; at >= 0 && at < 32; at += step)
        if (mask >> at & 1 && --left == 0) return (uint32_t)at;
    return UINT32_MAX;
}
PTX_TERNARY(fns, lane_u32, lane_u32, uint32_t, int32_t, find_nth(A, B, C))

/* lop3: the table has a bit for each of the eight combinations of a, b, c. */
static unsigned lop3(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    const lane_u32 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b), *c = ptx_slot(x, i->c);
    uint32_t t[8];
    for (unsigned n = 0; n < 8; n++) t[n] = i->e >> n & 1 ? UINT32_MAX : 0;
    PTX_EACH(m, uint32_t na = ~a[l]; uint32_t nb = ~b[l]; uint32_t nc = ~c[l];
             d[l] = (na & ((nb & ((nc & t[0]) | (c[l] & t[1]))) | (b[l] & ((nc & t[2]) | (c[l] & t[3]))))) |
                    (a[l] & ((nb & ((nc & t[4]) | (c[l] & t[5]))) | (b[l] & ((nc & t[6]) | (c[l] & t[7]))))));
    return PTX_NEXT;
}

enum { PRMT_INDEX, PRMT_F4E, PRMT_B4E, PRMT_RC8, PRMT_ECL, PRMT_ECR, PRMT_RC16 };

static inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selectors, unsigned mode) {
    static const uint16_t table[][4] = {
        [PRMT_F4E] = {0x3210, 0x4321, 0x5432, 0x6543}, [PRMT_B4E] = {0x5670, 0x6701, 0x7012, 0x0123},
        [PRMT_RC8] = {0x0000, 0x1111, 0x2222, 0x3333}, [PRMT_ECL] = {0x3210, 0x3211, 0x3222, 0x3333},
        [PRMT_ECR] = {0x0000, 0x1110, 0x2210, 0x3210}, [PRMT_RC16] = {0x1010, 0x3232, 0x1010, 0x3232}};
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    if (mode != PRMT_INDEX) selectors = table[mode][selectors & 3];
    for (unsigned n = 0; n < 4; n++) {
        unsigned selector = selectors >> 4 * n & 15;
        uint32_t byte = (uint32_t)(bytes >> 8 * (selector & 7)) & 0xff;
        if (selector & 8) byte = byte & 0x80 ? 0xff : 0; /* the sign, replicated */
        result |= byte << 8 * n;
    }
    return result;
}

static unsigned prmt(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    const lane_u32 *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b), *c = ptx_slot(x, i->c);
    unsigned mode = i->flags;
    PTX_EACH(m, d[l] = permute(a[l], b[l], c[l], mode));
    return PTX_NEXT;
}

/* ------------------------------------------------------------------------------------------------------ decoding -- */

static bool decode_logic(ptx_parser *p, ptx_source *s, ptx_handler *run32, ptx_handler *run64, unsigned sources) {
    ptx_type type = sim_ptx_peek_type(s);
    if (type != PTX_B16 && type != PTX_B32 && type != PTX_B64) return false;
    sim_ptx_take_type(s);
    sim_ptx_emit_plain(p, s, type == PTX_B64 ? run64 : run32, type, type, sources > 1 ? type : PTX_NONE, PTX_NONE);
    return true;
}

static bool decode_and(ptx_parser *p, ptx_source *s) { return decode_logic(p, s, and_32, and_64, 2); }
static bool decode_or(ptx_parser *p, ptx_source *s) { return decode_logic(p, s, or_32, or_64, 2); }
static bool decode_xor(ptx_parser *p, ptx_source *s) { return decode_logic(p, s, xor_32, xor_64, 2); }
static bool decode_not(ptx_parser *p, ptx_source *s) { return decode_logic(p, s, not_32, not_64, 1); }

static bool decode_cnot(ptx_parser *p, ptx_source *s) {
    return decode_logic(p, s, sim_ptx_peek_type(s) == PTX_B16 ? cnot_16 : cnot_32, cnot_64, 1);
}

static bool decode_shl(ptx_parser *p, ptx_source *s) {
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_B16 && type != PTX_B32 && type != PTX_B64) sim_ptx_bad_type(p, s, type);
    sim_ptx_emit_plain(p, s,
                       type == PTX_B16   ? shl_16
                       : type == PTX_B32 ? shl_32
                                         : shl_64,
                       type, type, PTX_U32, PTX_NONE);
    return true;
}

static bool decode_shr(ptx_parser *p, ptx_source *s) {
    ptx_type type = sim_ptx_take_type(s);
    ptx_handler *run;
    switch (type) {
        case PTX_B16:
        case PTX_U16: run = shr_u16; break;
        case PTX_B32:
        case PTX_U32: run = shr_u32; break;
        case PTX_B64:
        case PTX_U64: run = shr_u64; break;
        case PTX_S16: run = shr_s16; break;
        case PTX_S32: run = shr_s32; break;
        case PTX_S64: run = shr_s64; break;
        default: sim_ptx_bad_type(p, s, type);
    }
    sim_ptx_emit_plain(p, s, run, type, type, PTX_U32, PTX_NONE);
    return true;
}

static bool decode_shf(ptx_parser *p, ptx_source *s) {
    bool left = sim_ptx_take(s, "l");
    if (!left && !sim_ptx_take(s, "r")) sim_ptx_error(p, s->line, "shf needs .l or .r");
    bool clamp = sim_ptx_take(s, "clamp");
    if (!clamp && !sim_ptx_take(s, "wrap")) sim_ptx_error(p, s->line, "shf needs .clamp or .wrap");
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_B32) sim_ptx_bad_type(p, s, type);
    sim_ptx_emit_plain(p, s, left ? (clamp ? shf_l_clamp : shf_l_wrap) : (clamp ? shf_r_clamp : shf_r_wrap), type, type,
                       type, PTX_U32);
    return true;
}

static bool decode_count(ptx_parser *p, ptx_source *s, ptx_handler *run32, ptx_handler *run64, ptx_type result32,
                         bool result_wide) {
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_B32 && type != PTX_B64) sim_ptx_bad_type(p, s, type);
    sim_ptx_emit_plain(p, s, type == PTX_B32 ? run32 : run64, result_wide ? type : result32, type, PTX_NONE, PTX_NONE);
    return true;
}

static bool decode_popc(ptx_parser *p, ptx_source *s) { return decode_count(p, s, popc_32, popc_64, PTX_U32, false); }
static bool decode_clz(ptx_parser *p, ptx_source *s) { return decode_count(p, s, clz_32, clz_64, PTX_U32, false); }
static bool decode_brev(ptx_parser *p, ptx_source *s) { return decode_count(p, s, brev_32, brev_64, PTX_B32, true); }

static bool decode_bfind(ptx_parser *p, ptx_source *s) {
    bool shift = sim_ptx_take(s, "shiftamt");
    ptx_type type = sim_ptx_take_type(s);
    ptx_handler *run;
    switch (type) {
        case PTX_U32: run = shift ? bfind_shift_u32 : bfind_u32; break;
        case PTX_S32: run = shift ? bfind_shift_s32 : bfind_s32; break;
        case PTX_U64: run = shift ? bfind_shift_u64 : bfind_u64; break;
        case PTX_S64: run = shift ? bfind_shift_s64 : bfind_s64; break;
        default: sim_ptx_bad_type(p, s, type);
    }
    sim_ptx_emit_plain(p, s, run, PTX_U32, type, PTX_NONE, PTX_NONE);
    return true;
}

static bool decode_bfe(ptx_parser *p, ptx_source *s) {
    ptx_type type = sim_ptx_take_type(s);
    ptx_handler *run = type == PTX_U32   ? bfe_u32
                       : type == PTX_S32 ? bfe_s32
                       : type == PTX_U64 ? bfe_u64
                       : type == PTX_S64 ? bfe_s64
                                         : NULL;
    if (!run) sim_ptx_bad_type(p, s, type);
    sim_ptx_emit_plain(p, s, run, type, type, PTX_U32, PTX_U32);
    return true;
}

static bool decode_bfi(ptx_parser *p, ptx_source *s) {
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_B32 && type != PTX_B64) sim_ptx_bad_type(p, s, type);
    sim_ptx_expect_operands(p, s, 5, 5);
    uint32_t d = sim_ptx_destination(p, &s->operands[0], type);
    uint32_t a = sim_ptx_value(p, &s->operands[1], type), b = sim_ptx_value(p, &s->operands[2], type);
    uint32_t c = sim_ptx_value(p, &s->operands[3], PTX_U32), e = sim_ptx_value(p, &s->operands[4], PTX_U32);
    sim_ptx_emit(p, type == PTX_B32 ? bfi_32 : bfi_64);
    sim_ptx_define(p, PTX_D, d);
    sim_ptx_use(p, PTX_A, a);
    sim_ptx_use(p, PTX_B, b);
    sim_ptx_use(p, PTX_C, c);
    sim_ptx_use(p, PTX_E, e);
    return true;
}

static bool decode_bmsk(ptx_parser *p, ptx_source *s) {
    bool clamp = sim_ptx_take(s, "clamp");
    if (!clamp && !sim_ptx_take(s, "wrap")) sim_ptx_error(p, s->line, "bmsk needs .clamp or .wrap");
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_B32) sim_ptx_bad_type(p, s, type);
    sim_ptx_emit_plain(p, s, clamp ? bmsk_clamp : bmsk_wrap, type, PTX_U32, PTX_U32, PTX_NONE);
    return true;
}

static bool decode_szext(ptx_parser *p, ptx_source *s) {
    bool clamp = sim_ptx_take(s, "clamp");
    if (!clamp && !sim_ptx_take(s, "wrap")) sim_ptx_error(p, s->line, "szext needs .clamp or .wrap");
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_U32 && type != PTX_S32) sim_ptx_bad_type(p, s, type);
    bool sign = type == PTX_S32;
    sim_ptx_emit_plain(p, s, clamp ? (sign ? szext_clamp_s : szext_clamp_u) : (sign ? szext_wrap_s : szext_wrap_u),
                       type, type, PTX_U32, PTX_NONE);
    return true;
}

static bool decode_fns(ptx_parser *p, ptx_source *s) {
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_B32) sim_ptx_bad_type(p, s, type);
    sim_ptx_emit_plain(p, s, fns, type, type, type, PTX_S32);
    return true;
}

static bool decode_lop3(ptx_parser *p, ptx_source *s) {
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_B32) sim_ptx_bad_type(p, s, type);
    sim_ptx_expect_operands(p, s, 5, 5);
    uint32_t table = (uint32_t)sim_ptx_immediate(p, &s->operands[4], 0, 255, "the truth table");
    s->operand_count = 4;
    sim_ptx_emit_plain(p, s, lop3, type, type, type, type)->e = table;
    return true;
}

static bool decode_prmt(ptx_parser *p, ptx_source *s) {
    static const char *const modes[] = {[PRMT_F4E] = "f4e", [PRMT_B4E] = "b4e", [PRMT_RC8] = "rc8",
                                        [PRMT_ECL] = "ecl", [PRMT_ECR] = "ecr", [PRMT_RC16] = "rc16"};
    ptx_type type = sim_ptx_take_type(s);
    if (type != PTX_B32) sim_ptx_bad_type(p, s, type);
    unsigned mode = PRMT_INDEX;
    for (unsigned n = PRMT_F4E; n <= PRMT_RC16; n++)
        if (sim_ptx_take(s, modes[n])) mode = n;
    sim_ptx_emit_plain(p, s, prmt, type, type, type, type)->flags = (uint16_t)mode;
    return true;
}

const ptx_mnemonic sim_ptx_bits_mnemonics[] = {
    {"and", decode_and},   {"or", decode_or},     {"xor", decode_xor},   {"not", decode_not},
    {"cnot", decode_cnot}, {"shl", decode_shl},   {"shr", decode_shr},   {"shf", decode_shf},
    {"popc", decode_popc}, {"clz", decode_clz},   {"brev", decode_brev}, {"bfind", decode_bfind},
    {"bfe", decode_bfe},   {"bfi", decode_bfi},   {"bmsk", decode_bmsk}, {"szext", decode_szext},
    {"fns", decode_fns},   {"lop3", decode_lop3}, {"prmt", decode_prmt}, {NULL, NULL}};
