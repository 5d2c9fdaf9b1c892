/* Shared by the PTX front end and the interpreter (ptx_*.c); nobody else includes it.
 *
 * Registers are laid out by warp: a register is a *slot* of 32 lanes, 128 bytes for values of up to 32 bits and 256 for
 * 64 bits, so that an instruction is one loop over lanes that the compiler turns into vector code. A predicate is one
 * 32-bit word, a bit a lane. An instruction is decoded once to 32 bytes that hold its handler and the byte offsets of
 * its operands; constants are slots of a pool that all warps share. */
#ifndef MUSTER_DEVICE_SIM_PTX_INTERNAL_H
#define MUSTER_DEVICE_SIM_PTX_INTERNAL_H

#include "base/sanitizer.h"
#include "device/sim/exec.h"

enum {
    PTX_LANES = 32,
    PTX_FULL = -1,
    PTX_SLOT32_BYTES = 4 * PTX_LANES,
    PTX_SLOT64_BYTES = 8 * PTX_LANES,
    PTX_BARRIERS = 16,
    PTX_MAX_THREADS = 1024,
    PTX_MAX_WARPS = PTX_MAX_THREADS / PTX_LANES,
    /* Per warp and per thread: far above what real kernels use, low enough that endless recursion ends soon. */
    PTX_MAX_FRAME_BYTES = 8 << 20,
    PTX_MAX_LOCAL_BYTES = 512 << 10,
    PTX_MAX_SHARED_BYTES = 227 << 10,
    PTX_WORKSPACE_BYTES = 64, /* of a cooperative grid */
};

/* Windows of generic addresses that are not global memory. Device addresses are host addresses, below 2^47. */
#define PTX_WINDOW_BITS 40
#define PTX_SHARED_WINDOW ((uint64_t)1 << 56)
#define PTX_LOCAL_WINDOW ((uint64_t)2 << 56)
#define PTX_PARAM_WINDOW ((uint64_t)3 << 56)
#define PTX_FUNCTION_WINDOW ((uint64_t)4 << 56) /* addresses of functions: for calls only */

/* An address in shared::cluster: the offset, and above it the rank of its block in the cluster + 1 (0: the own
 * block). */
#define PTX_CLUSTER_RANK_BITS 24

/* What f64 instructions make of operands that are all NaN. */
#define PTX_NAN64 UINT64_C(0x7fffffffffffffff)

/* Register lanes are read as several types. */
typedef uint32_t __attribute__((may_alias)) lane_u32;
typedef int32_t __attribute__((may_alias)) lane_s32;
typedef uint64_t __attribute__((may_alias)) lane_u64;
typedef int64_t __attribute__((may_alias)) lane_s64;
typedef float __attribute__((may_alias)) lane_f32;
typedef double __attribute__((may_alias)) lane_f64;

typedef enum ptx_type {
    PTX_NONE,
    PTX_U8,
    PTX_U16,
    PTX_U32,
    PTX_U64,
    PTX_S8,
    PTX_S16,
    PTX_S32,
    PTX_S64,
    PTX_B8,
    PTX_B16,
    PTX_B32,
    PTX_B64,
    PTX_B128,
    PTX_F16,
    PTX_F16X2,
    PTX_BF16,
    PTX_BF16X2,
    PTX_F32,
    PTX_F64,
    PTX_PRED,
    PTX_U16X2,
    PTX_S16X2,
    PTX_TYPES
} ptx_type;

typedef enum ptx_space {
    PTX_GENERIC,
    PTX_GLOBAL,
    PTX_CONST,
    PTX_SHARED,
    PTX_LOCAL,
    PTX_PARAM,   /* the kernel's parameter block */
    PTX_CLUSTER, /* shared memory of the cluster's blocks */
} ptx_space;

typedef enum ptx_rounding { PTX_RN, PTX_RZ, PTX_RM, PTX_RP, PTX_RNA } ptx_rounding;

/* -------------------------------------------------------------------------------------------------- decoded code -- */

typedef struct ptx_context ptx_context;
typedef struct ptx_ins ptx_ins;

/* What a handler tells the warp's loop. */
enum {
    PTX_NEXT = 0, /* go on with the next instruction */
    PTX_JUMP,     /* go on at context->pc with context->mask (and frame) */
    PTX_SWITCH,   /* the group has gone (blocked, exited): pick another of the warp */
    PTX_YIELD,    /* the group stays runnable: put it back and pick again, or end the slice */
    PTX_FAULT,    /* context->fault is filled */
};

/* Executes one instruction for the lanes of `m`, never empty. */
typedef unsigned ptx_handler(ptx_context *x, const ptx_ins *i, uint32_t m);

struct ptx_ins {
    ptx_handler *run;
    union {
        struct {
            uint32_t d, a, b, c; /* operands: bit 31 set: byte offset in the constant pool, else in the frame */
            uint32_t e;          /* by handler: an operand, a branch target, an address offset, an index */
        };
        uint32_t field[5];
    };
    uint16_t guard; /* 0: always; else offset of the predicate word / 4 << 1 | negated */
    uint16_t flags; /* by handler */
};
_Static_assert(sizeof(ptx_ins) == 32, "two instructions a cache line");

#define PTX_POOL_BIT 0x80000000u
#define PTX_POOL_FALSE (PTX_POOL_BIT | 0u) /* the first words of every pool: predicate constants */
#define PTX_POOL_TRUE (PTX_POOL_BIT | 4u)

/* Flags of loads, stores, atomics and address operands. */
enum {
    PTX_MEM_SPACE = 0x0007,  /* ptx_space */
    PTX_MEM_WIDE = 0x0008,   /* the address operand is 64 bits */
    PTX_MEM_KIND = 0x00f0,   /* ptx_kind << 4 */
    PTX_MEM_COUNT = 0x0f00,  /* elements, 1 to 8, << 8 */
    PTX_MEM_STRONG = 0x1000, /* volatile, relaxed, acquire or release: a C11 atomic access */
    PTX_MEM_DIRECT = 0x2000, /* no address operand: the address is the offset alone */
};

/* How memory and a register slot correspond: the element's size and sign, and the slot's width. */
typedef enum ptx_kind {
    PTX_KIND_U8,
    PTX_KIND_S8,
    PTX_KIND_U16,
    PTX_KIND_S16,
    PTX_KIND_B32, /* to a 32-bit slot */
    PTX_KIND_U8W,
    PTX_KIND_S8W,
    PTX_KIND_U16W,
    PTX_KIND_S16W,
    PTX_KIND_U32W,
    PTX_KIND_S32W, /* to a 64-bit slot */
    PTX_KIND_B64,
} ptx_kind;

/* A call: how each actual argument reaches the callee's formal one, and results the way back. */
typedef struct ptx_pass {
    bool from_register, to_register;
    uint32_t from, to; /* operand, or offset in the frame's local memory */
    uint32_t bytes;
} ptx_pass;

typedef struct ptx_call {
    uint32_t function; /* index, or UINT32_MAX: through a register, operand i->a */
    uint32_t builtin;  /* ptx_builtin, 0: none */
    uint32_t argument_count, result_count;
    ptx_pass *arguments,
        *results;       /* `to` of an argument and `from` of a result are resolved from the callee's formals */
    const char *callee; /* name, for messages */
    uint32_t line;
} ptx_call;

typedef enum ptx_builtin { PTX_BUILTIN_NONE, PTX_BUILTIN_VPRINTF, PTX_BUILTIN_ASSERTFAIL } ptx_builtin;

typedef struct ptx_formal {
    const char *name;
    bool in_register;
    uint32_t place; /* frame byte offset, or offset in local memory */
    uint32_t bytes;
    uint32_t alignment;
    ptx_type type;
} ptx_formal;

struct sim_function {
    sim_module *module;
    const char *name;
    bool entry, defined;
    uint32_t index;
    uint32_t start, end;  /* instructions [start, end) of the module's code */
    uint32_t frame_bytes; /* registers of one activation, header included */
    uint32_t local_bytes; /* local memory of one activation */
    ptx_formal *results, *formals;
    uint32_t result_count, formal_count;
    /* Shared variables, per entry: byte offset of each of the module's shared variables, UINT32_MAX when not used. */
    uint32_t *shared_offsets;
    uint32_t dynamic_shared_offset;
    bool address_taken;
    int max_registers;  /* .maxnreg, 0: none */
    int live_registers; /* most 32-bit registers alive at once in this function */
    int required_cluster[3];
    sim_function_info info;
};

/* The frame's header, in bytes from its start: what a return restores. */
enum { PTX_FRAME_RETURN = 0, PTX_FRAME_BASE = 128, PTX_FRAME_LOCAL = 256, PTX_FRAME_HEADER = 384 };

typedef struct ptx_shared_variable {
    const char *name;
    uint32_t bytes, alignment;
    bool dynamic; /* extern: begins where the static ones end */
} ptx_shared_variable;

/* An initial value that is an address: stored when an instance is created. */
typedef struct ptx_relocation {
    uint32_t variable;
    size_t offset;
    unsigned bytes; /* of the store */
    unsigned shift; /* mask(): which byte of the address */
    bool function;  /* the target is a function, not a variable */
    uint32_t target;
    int64_t addend;
} ptx_relocation;

typedef struct ptx_variable {
    sim_variable info;
    unsigned char *initial; /* NULL: zero */
    size_t initial_bytes;
} ptx_variable;

typedef struct ptx_chunk ptx_chunk;

struct sim_module {
    ptx_chunk *arena;
    char *text;
    size_t text_bytes;
    int version, target;
    ptx_ins *code;
    uint32_t code_count;
    uint32_t *lines, *places; /* by instruction: source line, offset in text */
    unsigned char *pool;
    uint32_t pool_bytes;
    uint32_t *lists;
    uint32_t list_count;
    ptx_call *calls;
    uint32_t call_count;
    sim_function *functions;
    uint32_t function_count;
    uint32_t *entries; /* indices of the functions that are entries */
    uint32_t entry_count;
    ptx_variable *variables;
    uint32_t variable_count;
    ptx_shared_variable *shared;
    uint32_t shared_count;
    ptx_relocation *relocations;
    uint32_t relocation_count;
};

struct sim_instance {
    const sim_module *module;
    uint64_t *addresses;
};

/* ----------------------------------------------------------------------------------------------- execution state -- */

typedef enum ptx_state {
    PTX_READY,
    PTX_AT_BARRIER, /* named barrier of the block */
    PTX_AT_SYNC,    /* waits for the lanes of its membermask */
    PTX_AT_CLUSTER, /* cluster barrier */
} ptx_state;

/* Lanes of a warp that stand at the same instruction with the same frame. A warp has one group unless it diverged. */
typedef struct ptx_group {
    uint32_t pc, mask;
    uint32_t frame, local; /* byte offsets in the warp's registers and in each thread's local memory */
    uint64_t since;        /* warp steps when it last ran, so that no runnable group starves */
    uint8_t state, barrier;
} ptx_group;

typedef struct ptx_warp {
    unsigned char *registers;
    size_t register_bytes;
    bool owns_registers;  /* grown by calls; else they belong to the block */
    unsigned char *local; /* 32 threads' local memory, one after the other */
    size_t local_stride;
    uint32_t lanes, alive;
    uint32_t index;
    unsigned group_count;
    ptx_group groups[PTX_LANES + 1];
    uint64_t steps;
    uint32_t cluster_arrived; /* lanes that arrived in the current phase of the cluster's barrier */
    uint16_t tid[3][PTX_LANES];
} ptx_warp;

typedef struct ptx_barrier {
    uint32_t arrived, expected; /* threads; expected 0: all of the block */
    uint32_t count, voters;     /* bar.red: true predicates, threads */
} ptx_barrier;

typedef struct ptx_unit ptx_unit;

typedef struct ptx_block {
    ptx_unit *unit;
    uint32_t id[3];
    uint32_t rank; /* in its unit */
    unsigned char *shared;
    uint32_t shared_bytes;
    ptx_warp *warps;
    uint32_t warp_count;
    uint32_t threads, exited;
    ptx_barrier barriers[PTX_BARRIERS];
    uint32_t cluster_arrived, cluster_phase, cluster_rank;
    bool finished;
    uint32_t random;
} ptx_block;

typedef struct ptx_range {
    uint64_t low, high;
    bool writable;
    uint8_t *initialised;
} ptx_range;

enum { PTX_RANGE_CACHE = 4 };

typedef struct ptx_grid ptx_grid; /* ptx_launch.c */

/* One host thread executing warps. */
struct ptx_context {
    unsigned char *base[2]; /* the current frame's registers; the constant pool */
    uint32_t pc, mask;
    uint32_t frame, local;
    uint32_t limit;     /* at a join with pc >= limit another group of the warp may merge or must run first */
    uint32_t start;     /* first instruction not yet counted */
    int64_t budget;     /* warp instructions left of the slice */
    int64_t slice_left; /* budget when the warp's steps were last counted */
    ptx_warp *warp;
    ptx_block *block;
    const sim_module *module;
    const sim_function *kernel;
    const sim_launch *launch;
    const uint64_t *instance_addresses;
    ptx_grid *grid;
    uint64_t executed;              /* thread instructions */
    uint64_t cycles;                /* warp instructions of earlier slices: %clock */
    int64_t slice_start;            /* budget at its start */
    unsigned char *host[PTX_LANES]; /* where the lanes' addresses lie, from sim_ptx_resolve */
    uint64_t address[PTX_LANES];
    ptx_range ranges[PTX_RANGE_CACHE];
    unsigned next_range;
    bool gathered; /* the running .sync instruction changed the group: leave it by a jump */
    sim_fault fault;
};

static inline void *ptx_slot(const ptx_context *x, uint32_t operand) {
    return x->base[operand >> 31] + (operand & ~PTX_POOL_BIT);
}

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* some bodies have loops of their own and stay scalar */
#define PTX_VECTOR _Pragma("clang loop vectorize(assume_safety) interleave(disable)")
#else
#define PTX_VECTOR _Pragma("GCC ivdep")
#endif

/* `body` for every lane l of `m`. Slots are the same or disjoint, never overlapping, so all lanes at once is safe. */
#define PTX_EACH(m, ...)                                                                                               \
    do {                                                                                                               \
        if ((m) == (uint32_t)PTX_FULL) {                                                                               \
            PTX_VECTOR for (unsigned l = 0; l < PTX_LANES; l++) { __VA_ARGS__; }                                       \
        } else {                                                                                                       \
            for (uint32_t rest_ = (m); rest_; rest_ &= rest_ - 1) {                                                    \
                unsigned l = (unsigned)__builtin_ctz(rest_);                                                           \
                __VA_ARGS__;                                                                                           \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

extern const uint32_t sim_ptx_lane_bits[PTX_LANES]; /* 1 << lane: a vectorisable way to collect a predicate */

static inline void ptx_write_predicate(ptx_context *x, uint32_t operand, uint32_t m, uint32_t value) {
    lane_u32 *p = ptx_slot(x, operand);
    *p = (*p & ~m) | (value & m);
}

/* Ends the launch: the handler returns PTX_FAULT with it. The message names kernel, block, thread, line,
 * instruction. */
unsigned sim_ptx_fault(ptx_context *x, const ptx_ins *i, unsigned lane, CUresult code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Fills x->host for the lanes of `m` with where each address (operand i->a plus the offset i->e) lies, having checked
 * that `bytes` bytes there may be accessed. False: x->fault is filled. */
bool sim_ptx_resolve(ptx_context *x, const ptx_ins *i, uint32_t m, unsigned bytes, bool write);

/* The block of this rank in the running block's cluster, NULL when there is none. */
ptx_block *sim_ptx_cluster_block(ptx_context *x, uint64_t rank);

/* Moves the lanes of `m` out of the running group into one of their own. */
void sim_ptx_split(ptx_context *x, uint32_t m, uint32_t pc, ptx_state state, unsigned barrier);
/* Recomputes x->limit after the warp's groups changed. */
void sim_ptx_update_limit(ptx_context *x);
/* Counts the instructions since the last branch, up to and including `last`. */
static inline void ptx_account(ptx_context *x, const ptx_ins *last) {
    uint32_t next = (uint32_t)(last - x->module->code) + 1;
    uint32_t steps = next - x->start;
    x->budget -= steps;
    x->executed += (uint64_t)steps * (unsigned)__builtin_popcount(x->mask);
    x->start = next;
}

/* ------------------------------------------------------------------------------------------------ handler tables -- */

ptx_handler sim_ptx_join, sim_ptx_bra, sim_ptx_brx, sim_ptx_exit, sim_ptx_ret, sim_ptx_call, sim_ptx_trap, sim_ptx_nop,
    sim_ptx_widen, sim_ptx_widen_signed;

#endif
