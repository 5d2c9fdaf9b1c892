/* The built-in kernels of reductions: combining a copy with the range, destination[i] = destination[i] op source[i], and filling a copy
 * with the identity. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "scheduler/graph/shard.h"
#include "scheduler/memory/buffer.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

/* One thread per element, in steps of the grid. `body` works on element %rd7 of the destination and %rd8 of the source. */
#define EACH_ELEMENT(name, second, type, bytes_log2, body)                                                             \
    ".visible .entry " name "(.param .u64 destination, .param .u64 " second                                            \
    ", .param .u64 count)\n"                                                                                           \
    "{\n"                                                                                                              \
    "  .reg .pred %end;\n"                                                                                             \
    "  .reg .b32 %r<5>;\n"                                                                                             \
    "  .reg .b64 %rd<9>;\n"                                                                                            \
    "  .reg ." type                                                                                                    \
    " %a, %b;\n"                                                                                                       \
    "  ld.param.u64 %rd1, [destination];\n"                                                                            \
    "  ld.param.u64 %rd2, [" second                                                                                    \
    "];\n"                                                                                                             \
    "  ld.param.u64 %rd3, [count];\n"                                                                                  \
    "  cvta.to.global.u64 %rd1, %rd1;\n"                                                                               \
    "  mov.u32 %r1, %ctaid.x;\n"                                                                                       \
    "  mov.u32 %r2, %ntid.x;\n"                                                                                        \
    "  mov.u32 %r3, %tid.x;\n"                                                                                         \
    "  mov.u32 %r4, %nctaid.x;\n"                                                                                      \
    "  mul.wide.u32 %rd4, %r1, %r2;\n"                                                                                 \
    "  cvt.u64.u32 %rd5, %r3;\n"                                                                                       \
    "  add.u64 %rd4, %rd4, %rd5;\n"                                                                                    \
    "  mul.wide.u32 %rd6, %r4, %r2;\n"                                                                                 \
    "again:\n"                                                                                                         \
    "  setp.ge.u64 %end, %rd4, %rd3;\n"                                                                                \
    "  @%end bra finish;\n"                                                                                            \
    "  shl.b64 %rd5, %rd4, " bytes_log2                                                                                \
    ";\n"                                                                                                              \
    "  add.u64 %rd7, %rd1, %rd5;\n" body                                                                               \
    "  add.u64 %rd4, %rd4, %rd6;\n"                                                                                    \
    "  bra again;\n"                                                                                                   \
    "finish:\n"                                                                                                        \
    "  ret;\n"                                                                                                         \
    "}\n"

#define COMBINE(name, type, bytes_log2, operation)                                                                     \
    EACH_ELEMENT("muster_" name, "source", type, bytes_log2,                                                           \
                 "  cvta.to.global.u64 %rd8, %rd2;\n"                                                                  \
                 "  add.u64 %rd8, %rd8, %rd5;\n"                                                                       \
                 "  ld.global." type                                                                                   \
                 " %a, [%rd7];\n"                                                                                      \
                 "  ld.global." type                                                                                   \
                 " %b, [%rd8];\n"                                                                                      \
                 "  " operation                                                                                        \
                 " %a, %a, %b;\n"                                                                                      \
                 "  st.global." type " [%rd7], %a;\n")

/* The identity's low bytes are the element. */
#define FILL(name, type, bytes_log2)                                                                                   \
    EACH_ELEMENT("muster_" name, "identity", type, bytes_log2,                                                         \
                 "  cvt." type                                                                                         \
                 ".u64 %a, %rd2;\n"                                                                                    \
                 "  st.global." type " [%rd7], %a;\n")

static const char reduce_ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n" /* clang-format off */
    COMBINE("sum_u32", "u32", "2", "add.u32")
    COMBINE("sum_u64", "u64", "3", "add.u64")
    COMBINE("sum_f32", "f32", "2", "add.rn.f32")
    COMBINE("sum_f64", "f64", "3", "add.rn.f64")
    COMBINE("min_i32", "s32", "2", "min.s32")
    COMBINE("min_u32", "u32", "2", "min.u32")
    COMBINE("min_i64", "s64", "3", "min.s64")
    COMBINE("min_u64", "u64", "3", "min.u64")
    COMBINE("min_f32", "f32", "2", "min.f32")
    COMBINE("min_f64", "f64", "3", "min.f64")
    COMBINE("max_i32", "s32", "2", "max.s32")
    COMBINE("max_u32", "u32", "2", "max.u32")
    COMBINE("max_i64", "s64", "3", "max.s64")
    COMBINE("max_u64", "u64", "3", "max.u64")
    COMBINE("max_f32", "f32", "2", "max.f32")
    COMBINE("max_f64", "f64", "3", "max.f64")
    COMBINE("and_b32", "b32", "2", "and.b32")
    COMBINE("and_b64", "b64", "3", "and.b64")
    COMBINE("or_b32", "b32", "2", "or.b32")
    COMBINE("or_b64", "b64", "3", "or.b64")
    FILL("fill_u32", "u32", "2")
    FILL("fill_u64", "u64", "3"); /* clang-format on */

uint32_t mu_type_bytes(muster_type type) {
    switch (type) {
        case MUSTER_I32:
        case MUSTER_U32:
        case MUSTER_F32: return 4;
        case MUSTER_I64:
        case MUSTER_U64:
        case MUSTER_F64: return 8;
    }
    return 0;
}

muster_status mu_reduce_check(muster_type type, muster_reduction reduction, muster_error *error) {
    if (mu_type_bytes(type) == 0) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%d is not a type", (int)type);
    if (reduction < MUSTER_REDUCE_SUM || reduction > MUSTER_REDUCE_OR)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%d is not a reduction", (int)reduction);
    if (reduction >= MUSTER_REDUCE_AND && (type == MUSTER_F32 || type == MUSTER_F64))
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "floating point has no bitwise reduction; use an integer type");
    return MUSTER_OK;
}

/* The bits of the element that changes nothing. */
static uint64_t identity_of(muster_type type, muster_reduction reduction) {
    static const uint64_t smallest[] = {[MUSTER_I32] = UINT64_C(0x80000000),         [MUSTER_U32] = 0,
                                        [MUSTER_I64] = UINT64_C(0x8000000000000000), [MUSTER_U64] = 0,
                                        [MUSTER_F32] = UINT64_C(0xff800000), /* -infinity */
                                        [MUSTER_F64] = UINT64_C(0xfff0000000000000)};
    static const uint64_t largest[] = {[MUSTER_I32] = UINT64_C(0x7fffffff),         [MUSTER_U32] = UINT64_C(0xffffffff),
                                       [MUSTER_I64] = UINT64_C(0x7fffffffffffffff), [MUSTER_U64] = UINT64_MAX,
                                       [MUSTER_F32] = UINT64_C(0x7f800000), /* +infinity */
                                       [MUSTER_F64] = UINT64_C(0x7ff0000000000000)};
    switch (reduction) {
        case MUSTER_REDUCE_MIN: return largest[type];
        case MUSTER_REDUCE_MAX: return smallest[type];
        case MUSTER_REDUCE_AND: return UINT64_MAX;
        case MUSTER_REDUCE_SUM:
        case MUSTER_REDUCE_OR: break;
    }
    return 0;
}

/* Two's complement sums do not depend on the sign. */
static void name_kernel(muster_type type, muster_reduction reduction, char *name, size_t bytes) {
    static const char *const operations[] = {"sum", "min", "max", "and", "or"};
    static const char *const types[] = {[MUSTER_I32] = "i32", [MUSTER_U32] = "u32", [MUSTER_I64] = "i64",
                                        [MUSTER_U64] = "u64", [MUSTER_F32] = "f32", [MUSTER_F64] = "f64"};
    const char *of = types[type];
    if (reduction >= MUSTER_REDUCE_AND) of = mu_type_bytes(type) == 4 ? "b32" : "b64";
    if (reduction == MUSTER_REDUCE_SUM && type == MUSTER_I32) of = "u32";
    if (reduction == MUSTER_REDUCE_SUM && type == MUSTER_I64) of = "u64";
    snprintf(name, bytes, "muster_%s_%s", operations[reduction], of);
}

static muster_status find_kernel(muster_runtime *runtime, const char *name, muster_kernel **kernel,
                                 muster_error *error) {
    muster_status status = MUSTER_OK;
    pthread_mutex_lock(&runtime->reduce_lock);
    if (!runtime->reduce)
        status = muster_program_from_ptx(runtime, reduce_ptx, sizeof reduce_ptx - 1, "muster reductions",
                                         &runtime->reduce, error);
    if (!status) status = muster_program_kernel(runtime->reduce, name, kernel, error);
    pthread_mutex_unlock(&runtime->reduce_lock);
    return status;
}

/* A dispatch of ours over `count` elements; accesses and parameters are the caller's to add. */
static mu_node *add_built_in(muster_graph *graph, muster_job job, int pin, muster_kernel *kernel, uint64_t count) {
    uint64_t blocks = (count + 255) / 256;
    const mu_kernel_shape wanted = {
        .kernel = kernel, .grid = {blocks < 4096 ? (uint32_t)blocks : 4096, 1, 1}, .block = {256, 1, 1}};
    const mu_kernel_shape *shape = mu_graph_add_shape(graph, &wanted);
    mu_node *node = mu_graph_add_node(graph, MU_NODE_DISPATCH, job, pin);
    if (!node || !shape) return NULL;
    node->flags = MU_NODE_BUILT_IN;
    node->as.dispatch = shape;
    return node;
}

muster_status mu_reduce_add_fill(muster_graph *graph, muster_job job, int pin, const muster_arg *arg,
                                 muster_buffer *copy, muster_error *error) {
    uint64_t identity = identity_of(arg->type, arg->reduction), count = copy->bytes / mu_type_bytes(arg->type);
    bool wide = mu_type_bytes(arg->type) == 8;
    mu_node *node;
    /* The driver fills with up to four bytes, which most identities are made of. */
    if (!wide || identity >> 32 == (identity & UINT32_MAX)) {
        node = mu_graph_add_node(graph, MU_NODE_FILL, job, pin);
        if (node) {
            node->as.fill.pattern = (uint32_t)identity;
            node->as.fill.pattern_bytes = 4;
            node->flags = MU_NODE_SHARD;
        }
        if (node && mu_graph_add_access(graph, node, copy, MUSTER_WRITE, 0, copy->bytes, true)) return MUSTER_OK;
    } else {
        muster_kernel *kernel;
        muster_status status = find_kernel(graph->handle.runtime, "muster_fill_u64", &kernel, error);
        if (status) return status;
        node = add_built_in(graph, job, pin, kernel, count);
        if (node) node->flags |= MU_NODE_SHARD;
        if (node && mu_graph_add_access(graph, node, copy, MUSTER_WRITE, 0, copy->bytes, true) &&
            mu_graph_add_address(graph, node, 0, 0) &&
            mu_graph_add_value(graph, node, &identity, sizeof identity, true) &&
            mu_graph_add_value(graph, node, &count, sizeof count, true))
            return MUSTER_OK;
    }
    return mu_fail_host_memory(error, "a copy of a reduced argument", sizeof *node);
}

muster_status mu_reduce_add_combine(muster_graph *graph, muster_job job, const muster_arg *arg, muster_buffer *copy,
                                    muster_error *error) {
    char name[32];
    muster_kernel *kernel;
    name_kernel(arg->type, arg->reduction, name, sizeof name);
    muster_status status = find_kernel(graph->handle.runtime, name, &kernel, error);
    if (status) return status;
    uint64_t count = copy->bytes / mu_type_bytes(arg->type);
    mu_node *node = add_built_in(graph, job, MUSTER_ANY_DEVICE, kernel, count);
    if (node &&
        mu_graph_add_access(graph, node, arg->buffer, MUSTER_READ_WRITE, arg->offset_bytes,
                            arg->offset_bytes + copy->bytes, false) &&
        mu_graph_add_access(graph, node, copy, MUSTER_READ, 0, copy->bytes, true) &&
        mu_graph_add_address(graph, node, 0, 0) && mu_graph_add_address(graph, node, 1, 0) &&
        mu_graph_add_value(graph, node, &count, sizeof count, true))
        return MUSTER_OK;
    return mu_fail_host_memory(error, "the combination of reduced copies", sizeof *node);
}

void mu_reduce_destroy(muster_runtime *runtime) {
    muster_program_destroy(runtime->reduce);
    runtime->reduce = NULL;
}
