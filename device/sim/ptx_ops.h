/* Shapes that handlers are generated from. In an expression A, B and C are the operands of the lane. */
#ifndef MUSTER_DEVICE_SIM_PTX_OPS_H
#define MUSTER_DEVICE_SIM_PTX_OPS_H

#include "device/sim/ptx_internal.h"

/* `SLOT` types are how the slots are laid out; `T` is what the operand is taken as, e.g. uint16_t out of a 32-bit
 * lane. */
#define PTX_UNARY(NAME, D, SLOT_A, T, ...)                                                                             \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        D *d = ptx_slot(x, i->d);                                                                                      \
        const SLOT_A *a = ptx_slot(x, i->a);                                                                           \
        PTX_EACH(m, T A = (T)a[l]; d[l] = (D)(__VA_ARGS__));                                                           \
        return PTX_NEXT;                                                                                               \
    }

#define PTX_BINARY(NAME, D, SLOT, T, ...)                                                                              \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        D *d = ptx_slot(x, i->d);                                                                                      \
        const SLOT *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);                                                     \
        PTX_EACH(m, T A = (T)a[l]; T B = (T)b[l]; d[l] = (D)(__VA_ARGS__));                                            \
        return PTX_NEXT;                                                                                               \
    }

/* The second operand is a 32-bit count. */
#define PTX_SHIFT(NAME, SLOT, T, ...)                                                                                  \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        SLOT *d = ptx_slot(x, i->d);                                                                                   \
        const SLOT *a = ptx_slot(x, i->a);                                                                             \
        const lane_u32 *b = ptx_slot(x, i->b);                                                                         \
        PTX_EACH(m, T A = (T)a[l]; uint32_t B = b[l]; d[l] = (SLOT)(__VA_ARGS__));                                     \
        return PTX_NEXT;                                                                                               \
    }

/* D and the third operand share a slot type: mad, mad.wide, sad. */
#define PTX_TERNARY(NAME, D, SLOT, T, TC, ...)                                                                         \
    static unsigned NAME(ptx_context *x, const ptx_ins *i, uint32_t m) {                                               \
        D *d = ptx_slot(x, i->d);                                                                                      \
        const SLOT *a = ptx_slot(x, i->a), *b = ptx_slot(x, i->b);                                                     \
        const D *c = ptx_slot(x, i->c);                                                                                \
        PTX_EACH(m, T A = (T)a[l]; T B = (T)b[l]; TC C = (TC)c[l]; d[l] = (D)(__VA_ARGS__));                           \
        return PTX_NEXT;                                                                                               \
    }

/* Handlers by type, all six integer ones. */
typedef struct ptx_by_type {
    ptx_handler *run[PTX_TYPES];
} ptx_by_type;

#endif
