/* The built-in kernels that add partial results: destination[i] += source[i]. */
#include "base/error.h"
#include "scheduler/program.h"
#include "scheduler/runtime.h"
#include "scheduler/shard.h"

#define SUM_KERNEL(name, type, bytes_log2, add)                                                                        \
    ".visible .entry " name                                                                                            \
    "(.param .u64 destination, .param .u64 source, .param .u64 count)\n"                                               \
    "{\n"                                                                                                              \
    "  .reg .pred %end;\n"                                                                                             \
    "  .reg .b32 %r<5>;\n"                                                                                             \
    "  .reg .b64 %rd<9>;\n"                                                                                            \
    "  .reg ." type                                                                                                    \
    " %a, %b;\n"                                                                                                       \
    "  ld.param.u64 %rd1, [destination];\n"                                                                            \
    "  ld.param.u64 %rd2, [source];\n"                                                                                 \
    "  ld.param.u64 %rd3, [count];\n"                                                                                  \
    "  cvta.to.global.u64 %rd1, %rd1;\n"                                                                               \
    "  cvta.to.global.u64 %rd2, %rd2;\n"                                                                               \
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
    "  add.u64 %rd7, %rd1, %rd5;\n"                                                                                    \
    "  add.u64 %rd8, %rd2, %rd5;\n"                                                                                    \
    "  ld.global." type                                                                                                \
    " %a, [%rd7];\n"                                                                                                   \
    "  ld.global." type                                                                                                \
    " %b, [%rd8];\n"                                                                                                   \
    "  " add                                                                                                           \
    " %a, %a, %b;\n"                                                                                                   \
    "  st.global." type                                                                                                \
    " [%rd7], %a;\n"                                                                                                   \
    "  add.u64 %rd4, %rd4, %rd6;\n"                                                                                    \
    "  bra again;\n"                                                                                                   \
    "finish:\n"                                                                                                        \
    "  ret;\n"                                                                                                         \
    "}\n"

static const char reduce_ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n" /* clang-format off */
    SUM_KERNEL("muster_sum_u32", "u32", "2", "add.u32")
    SUM_KERNEL("muster_sum_u64", "u64", "3", "add.u64")
    SUM_KERNEL("muster_sum_f32", "f32", "2", "add.rn.f32")
    SUM_KERNEL("muster_sum_f64", "f64", "3", "add.rn.f64"); /* clang-format on */

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

/* Two's complement sums do not depend on the sign. */
static const char *kernel_name(muster_type type) {
    switch (type) {
        case MUSTER_I32:
        case MUSTER_U32: return "muster_sum_u32";
        case MUSTER_I64:
        case MUSTER_U64: return "muster_sum_u64";
        case MUSTER_F32: return "muster_sum_f32";
        case MUSTER_F64: return "muster_sum_f64";
    }
    return "";
}

muster_status mu_reduce_kernel(muster_runtime *runtime, muster_type type, muster_kernel **kernel, muster_error *error) {
    muster_status status = MUSTER_OK;
    pthread_mutex_lock(&runtime->reduce_lock);
    if (!runtime->reduce)
        status = muster_program_from_ptx(runtime, reduce_ptx, sizeof reduce_ptx - 1, "muster reductions",
                                         &runtime->reduce, error);
    if (!status) status = muster_program_kernel(runtime->reduce, kernel_name(type), kernel, error);
    pthread_mutex_unlock(&runtime->reduce_lock);
    return status;
}

void mu_reduce_destroy(muster_runtime *runtime) {
    muster_program_destroy(runtime->reduce);
    runtime->reduce = NULL;
}
