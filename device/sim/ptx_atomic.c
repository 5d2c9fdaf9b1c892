/* atom and red. Every operation is a sequentially consistent C11 atomic on the host memory, whatever order and scope
 * the instruction asks for, so that ThreadSanitizer sees what orders what. */
#include <string.h>

#include "device/sim/ptx_parse.h"

enum { OP_ADD, OP_MIN, OP_MAX, OP_SMIN, OP_SMAX, OP_INC, OP_DEC, OP_AND, OP_OR, OP_XOR, OP_EXCH, OP_CAS, OP_FADD };

typedef uint16_t __attribute__((may_alias)) lane_u16;

/* One operation on the memory at *to. Returns the old value. `b` is the new value of a cas and `a` what it compares. */
#define MODIFY(T, S, NAME)                                                                                             \
    static T NAME(T *to, unsigned op, T a, T b) {                                                                      \
        T old, new_value;                                                                                              \
        switch (op) {                                                                                                  \
            case OP_ADD: return __atomic_fetch_add(to, a, __ATOMIC_SEQ_CST);                                           \
            case OP_AND: return __atomic_fetch_and(to, a, __ATOMIC_SEQ_CST);                                           \
            case OP_OR: return __atomic_fetch_or(to, a, __ATOMIC_SEQ_CST);                                             \
            case OP_XOR: return __atomic_fetch_xor(to, a, __ATOMIC_SEQ_CST);                                           \
            case OP_EXCH: return __atomic_exchange_n(to, a, __ATOMIC_SEQ_CST);                                         \
            case OP_CAS:                                                                                               \
                __atomic_compare_exchange_n(to, &a, b, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                     \
                return a; /* on success what it was, on failure what it is */                                          \
            default: break;                                                                                            \
        }                                                                                                              \
        old = __atomic_load_n(to, __ATOMIC_SEQ_CST);                                                                   \
        do {                                                                                                           \
            switch (op) {                                                                                              \
                case OP_MIN: new_value = old < a ? old : a; break;                                                     \
                case OP_MAX: new_value = old > a ? old : a; break;                                                     \
                case OP_SMIN: new_value = (S)old < (S)a ? old : a; break;                                              \
                case OP_SMAX: new_value = (S)old > (S)a ? old : a; break;                                              \
                case OP_INC: new_value = old >= a ? 0 : (T)(old + 1); break;                                           \
                default: new_value = old == 0 || old > a ? a : (T)(old - 1); break;                                    \
            }                                                                                                          \
        } while (!__atomic_compare_exchange_n(to, &old, new_value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));         \
        return old;                                                                                                    \
    }

MODIFY(lane_u16, int16_t, modify16)
MODIFY(lane_u32, int32_t, modify32)
MODIFY(lane_u64, int64_t, modify64)

static uint32_t flush32(uint32_t bits) { return bits & 0x7f800000u ? bits : bits & 0x80000000u; }

/* On global memory subnormal operands and results count as zero; shared memory keeps them. */
static uint32_t add_f32(lane_u32 *to, uint32_t operand, bool flush) {
    uint32_t old = __atomic_load_n(to, __ATOMIC_SEQ_CST), sum_bits;
    do {
        uint32_t a_bits = flush ? flush32(old) : old, b_bits = flush ? flush32(operand) : operand;
        float a, b, sum;
        memcpy(&a, &a_bits, 4);
        memcpy(&b, &b_bits, 4);
        sum = a + b;
        memcpy(&sum_bits, &sum, 4);
        if (sum != sum) sum_bits = 0x7fffffffu;
        if (flush) sum_bits = flush32(sum_bits);
    } while (!__atomic_compare_exchange_n(to, &old, sum_bits, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}

static uint64_t add_f64(lane_u64 *to, uint64_t operand) {
    uint64_t old = __atomic_load_n(to, __ATOMIC_SEQ_CST), sum_bits;
    do {
        double a, b, sum;
        memcpy(&a, &old, 8);
        memcpy(&b, &operand, 8);
        sum = a + b;
        memcpy(&sum_bits, &sum, 8);
    } while (!__atomic_compare_exchange_n(to, &old, sum_bits, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}

/* The operation stands in the element-count bits of flags; results and operands are slots of the type's width. */
#define ATOM(NAME, BYTES, LANE, CELL, CALL)                                                                            \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        if (!sim_ptx_resolve(x, i, m, BYTES, true)) return PTX_FAULT;                                                  \
        LANE *d = ptx_slot(x, i->d);                                                                                   \
        const LANE *b = ptx_slot(x, i->b), *c = ptx_slot(x, i->c);                                                     \
        unsigned op = i->flags >> 8 & 15;                                                                              \
        for (uint32_t rest = m; rest; rest &= rest - 1) {                                                              \
            unsigned l = (unsigned)__builtin_ctz(rest);                                                                \
            CELL *to = (CELL *)(void *)x->host[l];                                                                     \
            d[l] = CALL;                                                                                               \
        }                                                                                                              \
        return PTX_NEXT;                                                                                               \
    }

static bool in_device_memory(const ptx_context *x, const ptx_ins *i, unsigned l) {
    ptx_space space = (ptx_space)(i->flags & PTX_MEM_SPACE);
    return space == PTX_GLOBAL || (space == PTX_GENERIC && !(x->address[l] >> 56));
}

ATOM(run_atom16, 2, lane_u32, lane_u16, modify16(to, op, (uint16_t)b[l], (uint16_t)c[l]))
ATOM(run_atom32, 4, lane_u32, lane_u32, modify32(to, op, b[l], c[l]))
ATOM(run_atom64, 8, lane_u64, lane_u64, modify64(to, op, b[l], c[l]))
ATOM(run_atom_f32, 4, lane_u32, lane_u32, ((void)op, (void)c, add_f32(to, b[l], in_device_memory(x, i, l))))
ATOM(run_atom_f64, 8, lane_u64, lane_u64, ((void)op, (void)c, add_f64(to, b[l])))

/* ------------------------------------------------------------------------------------------------------ decoding -- */

static int take_operation(ptx_source *s, ptx_type *type) {
    static const struct {
        const char *name;
        uint8_t op, signed_op;
    } ops[] = {{"and", OP_AND, OP_AND},  {"or", OP_OR, OP_OR},    {"xor", OP_XOR, OP_XOR}, {"exch", OP_EXCH, OP_EXCH},
               {"cas", OP_CAS, OP_CAS},  {"add", OP_ADD, OP_ADD}, {"inc", OP_INC, OP_INC}, {"dec", OP_DEC, OP_DEC},
               {"min", OP_MIN, OP_SMIN}, {"max", OP_MAX, OP_SMAX}};
    for (size_t n = 0; n < sizeof ops / sizeof *ops; n++) {
        if (!sim_ptx_take(s, ops[n].name)) continue;
        *type = sim_ptx_take_type(s);
        return ptx_is_signed(*type) ? ops[n].signed_op : ops[n].op;
    }
    return -1;
}

static bool type_fits(int op, ptx_type type) {
    switch (op) {
        case OP_AND:
        case OP_OR:
        case OP_XOR: return type == PTX_B32 || type == PTX_B64;
        case OP_EXCH: return type == PTX_B32 || type == PTX_B64;
        case OP_CAS: return type == PTX_B16 || type == PTX_B32 || type == PTX_B64;
        case OP_ADD: return type == PTX_U32 || type == PTX_S32 || type == PTX_U64 || type == PTX_F32 || type == PTX_F64;
        case OP_INC:
        case OP_DEC: return type == PTX_U32;
        default: return type == PTX_U32 || type == PTX_S32 || type == PTX_U64 || type == PTX_S64;
    }
}

static ptx_handler *handler_of(ptx_type type) {
    if (type == PTX_F32) return run_atom_f32;
    if (type == PTX_F64) return run_atom_f64;
    return sim_ptx_type_bits(type) == 16 ? run_atom16 : sim_ptx_type_bits(type) == 32 ? run_atom32 : run_atom64;
}

static bool decode(ptx_parser *p, ptx_source *s, bool result) {
    ptx_space space;
    bool parameter;
    (void)(sim_ptx_take(s, "relaxed") || sim_ptx_take(s, "acquire") || sim_ptx_take(s, "release") ||
           sim_ptx_take(s, "acq_rel"));
    sim_ptx_take_scope(s);
    sim_ptx_take_space(p, s, &space, &parameter);
    unsigned optional = sim_ptx_take_cache(s);
    ptx_type type = PTX_NONE;
    int op = take_operation(s, &type);
    if (op < 0) sim_ptx_error(p, s->line, "%.*s needs an operation such as .add", (int)s->name.bytes, s->name.text);
    if (!type_fits(op, type)) sim_ptx_bad_type(p, s, type);
    if (parameter || space == PTX_CONST || space == PTX_LOCAL)
        sim_ptx_error(p, s->line, "%.*s works on .global and .shared memory only", (int)s->name.bytes, s->name.text);
    unsigned count = 2u + result + (op == OP_CAS);
    sim_ptx_expect_operands(p, s, count, count + optional);
    const ptx_operand *o = s->operands;
    uint32_t d = result ? sim_ptx_destination(p, o++, type) : sim_ptx_new_register(p, type);
    ptx_address address = sim_ptx_address(p, o++, space, false);
    uint32_t b = sim_ptx_value(p, o++, type), c = op == OP_CAS ? sim_ptx_value(p, o++, type) : b;
    ptx_ins *i = sim_ptx_emit(p, handler_of(type));
    i->flags = (uint16_t)(sim_ptx_address_flags(&address) | op << 8);
    i->e = (uint32_t)address.offset;
    sim_ptx_define(p, PTX_D, d);
    if (!address.direct) sim_ptx_use(p, PTX_A, address.base);
    sim_ptx_use(p, PTX_B, b);
    sim_ptx_use(p, PTX_C, c);
    return true;
}

static bool decode_atom(ptx_parser *p, ptx_source *s) { return decode(p, s, true); }
static bool decode_red(ptx_parser *p, ptx_source *s) { return decode(p, s, false); }

const ptx_mnemonic sim_ptx_atomic_mnemonics[] = {{"atom", decode_atom}, {"red", decode_red}, {NULL, NULL}};
