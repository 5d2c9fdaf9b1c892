/* Addresses to host memory with every check; ld, st and their relatives. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device/sim/ptx_launch.h"
#include "device/sim/ptx_parse.h"

/* -------------------------------------------------------------------------------------------------------- faults -- */

/* The instruction's text, on one line and cut to what is useful. */
static void instruction_text(const ptx_context *x, const ptx_ins *i, char text[72]) {
    const sim_module *module = x->module;
    uint32_t place = module->places[i - module->code];
    size_t used = 0;
    bool space = false;
    while (place < module->text_bytes && used < 64 && module->text[place] != ';' && module->text[place] != '{') {
        char c = module->text[place++];
        bool blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
        if (blank && (space || used == 0)) continue;
        text[used++] = blank ? ' ' : c;
        space = blank;
    }
    text[used] = '\0';
}

unsigned sim_ptx_fault(ptx_context *x, const ptx_ins *i, unsigned lane, CUresult code, const char *format, ...) {
    char text[72];
    instruction_text(x, i, text);
    const ptx_block *block = x->block;
    const ptx_warp *w = x->warp;
    x->fault.code = code;
    size_t room = sizeof x->fault.message;
    int used = snprintf(x->fault.message, room,
                        "kernel %s, block (%u,%u,%u), thread (%u,%u,%u), PTX line %u '%s': ", x->kernel->name,
                        block->id[0], block->id[1], block->id[2], w->tid[0][lane], w->tid[1][lane], w->tid[2][lane],
                        x->module->lines[i - x->module->code], text);
    if (used > 0 && (size_t)used < room) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(x->fault.message + used, room - (size_t)used, format, arguments);
        va_end(arguments);
    }
    return PTX_FAULT;
}

/* ----------------------------------------------------------------------------------------------------- resolving -- */

static const ptx_range *find_range(ptx_context *x, uint64_t address) {
    for (unsigned r = 0; r < PTX_RANGE_CACHE; r++)
        if (address >= x->ranges[r].low && address < x->ranges[r].high) return &x->ranges[r];
    const sim_range *range = sim_memory_lookup(x->launch->memory, address);
    uint64_t workspace = (uint64_t)(uintptr_t)x->grid->workspace;
    sim_range own = {workspace, workspace + PTX_WORKSPACE_BYTES, true, NULL};
    if (!range && x->launch->cooperative && address >= own.low && address < own.high) range = &own;
    if (!range) return NULL;
    ptx_range *entry = &x->ranges[x->next_range++ % PTX_RANGE_CACHE];
    *entry = (ptx_range){range->low, range->high, range->writable, range->initialised};
    return entry;
}

static bool illegal(ptx_context *x, const ptx_ins *i, unsigned lane, uint64_t address, unsigned bytes, bool write,
                    const char *why) {
    char where[256] = "";
    sim_memory_describe(x->launch->memory, address, where, sizeof where);
    sim_ptx_fault(x, i, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "%s of %u bytes at 0x%llx%s: %s", write ? "write" : "read",
                  bytes, (unsigned long long)address, why, where);
    return false;
}

/* One bit a byte. Other workers set bits of the same byte, hence atomic; relaxed, as it orders nothing. */
static void mark_initialised(const ptx_range *r, uint64_t address, unsigned bytes) {
    for (uint64_t at = address - r->low; bytes--; at++) {
        uint8_t bit = (uint8_t)(1u << (at & 7));
        if (!(__atomic_load_n(&r->initialised[at >> 3], __ATOMIC_RELAXED) & bit))
            __atomic_fetch_or(&r->initialised[at >> 3], bit, __ATOMIC_RELAXED);
    }
}

static bool is_initialised(const ptx_range *r, uint64_t address, unsigned bytes) {
    for (uint64_t at = address - r->low; bytes--; at++)
        if (!(__atomic_load_n(&r->initialised[at >> 3], __ATOMIC_RELAXED) >> (at & 7) & 1)) return false;
    return true;
}

static bool global_lane(ptx_context *x, const ptx_ins *i, unsigned lane, uint64_t address, unsigned bytes, bool write) {
    const ptx_range *r = find_range(x, address);
    if (!r) return illegal(x, i, lane, address, bytes, write, "");
    if (bytes > r->high - address) return illegal(x, i, lane, address, bytes, write, " runs over the end");
    if (write && !r->writable) return illegal(x, i, lane, address, bytes, write, " goes to read-only memory");
    if (r->initialised) {
        if (write)
            mark_initialised(r, address, bytes);
        else if (!is_initialised(r, address, bytes))
            return illegal(x, i, lane, address, bytes, write, ", which nothing has written");
    }
    x->host[lane] = (unsigned char *)(uintptr_t)address;
    return true;
}

static bool outside(ptx_context *x, const ptx_ins *i, unsigned lane, const char *what, uint64_t address, unsigned bytes,
                    uint64_t size, bool write) {
    sim_ptx_fault(x, i, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "%s of %u bytes at offset 0x%llx of %s, which has %llu bytes",
                  write ? "write" : "read", bytes, (unsigned long long)address, what, (unsigned long long)size);
    return false;
}

static bool shared_lane(ptx_context *x, const ptx_ins *i, unsigned lane, uint64_t address, unsigned bytes, bool write,
                        bool cluster) {
    ptx_block *block = x->block;
    uint64_t offset = address;
    if (cluster && address >> PTX_CLUSTER_RANK_BITS) {
        uint64_t rank = (address >> PTX_CLUSTER_RANK_BITS) - 1;
        block = sim_ptx_cluster_block(x, rank);
        if (!block)
            return outside(x, i, lane, "shared memory of a block outside the cluster", address, bytes, 0, write);
        offset &= ((uint64_t)1 << PTX_CLUSTER_RANK_BITS) - 1;
    }
    if (offset > block->shared_bytes || bytes > block->shared_bytes - offset)
        return outside(x, i, lane, "the block's shared memory", offset, bytes, block->shared_bytes, write);
    x->host[lane] = block->shared + offset;
    return true;
}

static bool local_lane(ptx_context *x, const ptx_ins *i, unsigned lane, uint64_t address, unsigned bytes, bool write) {
    size_t size = x->warp->local_stride;
    if (address > size || bytes > size - address)
        return outside(x, i, lane, "the thread's local memory", address, bytes, size, write);
    x->host[lane] = x->warp->local + lane * size + address;
    return true;
}

static bool parameter_lane(ptx_context *x, const ptx_ins *i, unsigned lane, uint64_t address, unsigned bytes,
                           bool write) {
    size_t size = x->kernel->info.parameter_block_bytes;
    if (address > size || bytes > size - address)
        return outside(x, i, lane, "the kernel's parameters", address, bytes, size, write);
    if (write) {
        sim_ptx_fault(x, i, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "a kernel's parameters cannot be written");
        return false;
    }
    x->host[lane] = (unsigned char *)(uintptr_t)x->launch->parameters + address;
    return true;
}

static bool resolve_lane(ptx_context *x, const ptx_ins *i, unsigned lane, ptx_space space, unsigned bytes, bool write) {
    uint64_t address = x->address[lane];
    if (address & (bytes - 1)) {
        sim_ptx_fault(x, i, lane, CUDA_ERROR_MISALIGNED_ADDRESS,
                      "%s of %u bytes at 0x%llx, which is not a multiple of %u", write ? "write" : "read", bytes,
                      (unsigned long long)address, bytes);
        return false;
    }
    if (space == PTX_GENERIC && address >> 56) {
        uint64_t window = address & ~(PTX_SHARED_WINDOW - 1), offset = address & (PTX_SHARED_WINDOW - 1);
        if (window == PTX_SHARED_WINDOW) return shared_lane(x, i, lane, offset, bytes, write, true);
        if (window == PTX_LOCAL_WINDOW) return local_lane(x, i, lane, offset, bytes, write);
        if (window == PTX_PARAM_WINDOW) return parameter_lane(x, i, lane, offset, bytes, write);
    }
    switch (space) {
        case PTX_SHARED: return shared_lane(x, i, lane, address, bytes, write, false);
        case PTX_CLUSTER: return shared_lane(x, i, lane, address, bytes, write, true);
        case PTX_LOCAL: return local_lane(x, i, lane, address, bytes, write);
        case PTX_PARAM: return parameter_lane(x, i, lane, address, bytes, write);
        default: return global_lane(x, i, lane, address, bytes, write);
    }
}

static void compute_addresses(ptx_context *x, const ptx_ins *i, uint32_t m) {
    uint64_t *address = x->address;
    uint64_t offset = (uint64_t)(int64_t)(int32_t)i->e;
    if (i->flags & PTX_MEM_DIRECT) {
        if ((i->flags & PTX_MEM_SPACE) == PTX_LOCAL) offset += x->local;
        PTX_EACH(m, address[l] = offset);
    } else if (i->flags & PTX_MEM_WIDE) {
        const lane_u64 *a = ptx_slot(x, i->a);
        PTX_EACH(m, address[l] = a[l] + offset);
    } else {
        const lane_u32 *a = ptx_slot(x, i->a);
        PTX_EACH(m, address[l] = a[l] + offset);
    }
}

bool sim_ptx_resolve(ptx_context *x, const ptx_ins *i, uint32_t m, unsigned bytes, bool write) {
    compute_addresses(x, i, m);
    const uint64_t *address = x->address;
    uint64_t low = UINT64_MAX, high = 0, all = 0;
    PTX_EACH(m, all |= address[l]; low = address[l] < low ? address[l] : low;
             high = address[l] > high ? address[l] : high);
    ptx_space space = (ptx_space)(i->flags & PTX_MEM_SPACE);
    if (!(all & (bytes - 1))) {
        if (space <= PTX_CONST) {
            const ptx_range *r = find_range(x, low);
            if (r && high - r->low <= r->high - r->low - bytes && high < r->high && !r->initialised &&
                (!write || r->writable)) {
                PTX_EACH(m, x->host[l] = (unsigned char *)(uintptr_t)address[l]);
                return true;
            }
        } else if (space == PTX_SHARED && high < x->block->shared_bytes && bytes <= x->block->shared_bytes - high) {
            unsigned char *shared = x->block->shared;
            PTX_EACH(m, x->host[l] = shared + address[l]);
            return true;
        }
    }
    for (uint32_t rest = m; rest; rest &= rest - 1)
        if (!resolve_lane(x, i, (unsigned)__builtin_ctz(rest), space, bytes, write)) return false;
    return true;
}

/* ---------------------------------------------------------------------------------------------- loads and stores -- */

static const uint8_t kind_bytes[] = {[PTX_KIND_U8] = 1,   [PTX_KIND_S8] = 1,   [PTX_KIND_U16] = 2,  [PTX_KIND_S16] = 2,
                                     [PTX_KIND_B32] = 4,  [PTX_KIND_U8W] = 1,  [PTX_KIND_S8W] = 1,  [PTX_KIND_U16W] = 2,
                                     [PTX_KIND_S16W] = 2, [PTX_KIND_U32W] = 4, [PTX_KIND_S32W] = 4, [PTX_KIND_B64] = 8};

#define LOAD(D, T, S) PTX_EACH(m, ((D *)d)[l] = (D)(S) * (const T *)(const void *)(x->host[l] + offset))
#define LOAD_STRONG(D, T, S)                                                                                           \
    PTX_EACH(m, ((D *)d)[l] = (D)(S)__atomic_load_n((const T *)(const void *)(x->host[l] + offset), __ATOMIC_ACQUIRE))

typedef uint8_t __attribute__((may_alias)) byte8;
typedef uint16_t __attribute__((may_alias)) byte16;

#define LOAD_KINDS(LOAD)                                                                                               \
    case PTX_KIND_U8: LOAD(lane_u32, byte8, uint8_t); break;                                                           \
    case PTX_KIND_S8: LOAD(lane_u32, byte8, int8_t); break;                                                            \
    case PTX_KIND_U16: LOAD(lane_u32, byte16, uint16_t); break;                                                        \
    case PTX_KIND_S16: LOAD(lane_u32, byte16, int16_t); break;                                                         \
    case PTX_KIND_B32: LOAD(lane_u32, lane_u32, uint32_t); break;                                                      \
    case PTX_KIND_U8W: LOAD(lane_u64, byte8, uint8_t); break;                                                          \
    case PTX_KIND_S8W: LOAD(lane_u64, byte8, int8_t); break;                                                           \
    case PTX_KIND_U16W: LOAD(lane_u64, byte16, uint16_t); break;                                                       \
    case PTX_KIND_S16W: LOAD(lane_u64, byte16, int16_t); break;                                                        \
    case PTX_KIND_U32W: LOAD(lane_u64, lane_u32, uint32_t); break;                                                     \
    case PTX_KIND_S32W: LOAD(lane_u64, lane_u32, int32_t); break;                                                      \
    default: LOAD(lane_u64, lane_u64, uint64_t); break;

static void load_element(ptx_context *x, void *d, ptx_kind kind, unsigned offset, uint32_t m, bool strong) {
    if (strong) {
        switch (kind) { LOAD_KINDS(LOAD_STRONG) }
    } else {
        switch (kind) { LOAD_KINDS(LOAD) }
    }
}

/* Stores go lane by lane, so that the highest lane wins at one address. */
#define STORE(A, T)                                                                                                    \
    for (uint32_t rest = m; rest; rest &= rest - 1) {                                                                  \
        unsigned l = (unsigned)__builtin_ctz(rest);                                                                    \
        T *to = (T *)(void *)(x->host[l] + offset);                                                                    \
        T value = (T)((const A *)a)[l];                                                                                \
        if (strong)                                                                                                    \
            __atomic_store_n(to, value, __ATOMIC_RELEASE);                                                             \
        else                                                                                                           \
            *to = value;                                                                                               \
    }

static void store_element(ptx_context *x, const void *a, ptx_kind kind, unsigned offset, uint32_t m, bool strong) {
    switch (kind) {
        case PTX_KIND_U8:
        case PTX_KIND_S8: STORE(lane_u32, byte8) break;
        case PTX_KIND_U16:
        case PTX_KIND_S16: STORE(lane_u32, byte16) break;
        case PTX_KIND_B32: STORE(lane_u32, lane_u32) break;
        case PTX_KIND_U8W:
        case PTX_KIND_S8W: STORE(lane_u64, byte8) break;
        case PTX_KIND_U16W:
        case PTX_KIND_S16W: STORE(lane_u64, byte16) break;
        case PTX_KIND_U32W:
        case PTX_KIND_S32W: STORE(lane_u64, lane_u32) break;
        default: STORE(lane_u64, lane_u64) break;
    }
}

static unsigned run_ld(ptx_context *x, const ptx_ins *i, uint32_t m) {
    ptx_kind kind = (ptx_kind)((i->flags & PTX_MEM_KIND) >> 4);
    unsigned count = (i->flags & PTX_MEM_COUNT) >> 8, bytes = kind_bytes[kind];
    bool strong = i->flags & PTX_MEM_STRONG;
    if (!sim_ptx_resolve(x, i, m, bytes * count, false)) return PTX_FAULT;
    if (count == 1) {
        load_element(x, ptx_slot(x, i->d), kind, 0, m, strong);
        return PTX_NEXT;
    }
    for (unsigned e = 0; e < count; e++)
        load_element(x, ptx_slot(x, x->module->lists[i->d + e]), kind, e * bytes, m, strong);
    return PTX_NEXT;
}

static unsigned run_st(ptx_context *x, const ptx_ins *i, uint32_t m) {
    ptx_kind kind = (ptx_kind)((i->flags & PTX_MEM_KIND) >> 4);
    unsigned count = (i->flags & PTX_MEM_COUNT) >> 8, bytes = kind_bytes[kind];
    bool strong = i->flags & PTX_MEM_STRONG;
    if (!sim_ptx_resolve(x, i, m, bytes * count, true)) return PTX_FAULT;
    if (count == 1) {
        store_element(x, ptx_slot(x, i->b), kind, 0, m, strong);
        return PTX_NEXT;
    }
    for (unsigned e = 0; e < count; e++)
        store_element(x, ptx_slot(x, x->module->lists[i->d + e]), kind, e * bytes, m, strong);
    return PTX_NEXT;
}

/* ld.param of a kernel parameter, the commonest load of all: one value for all lanes, checked when it was decoded. */
static unsigned run_ld_parameter(ptx_context *x, const ptx_ins *i, uint32_t m) {
    const unsigned char *from = (const unsigned char *)x->launch->parameters + i->e;
    void *d = ptx_slot(x, i->d);
    if ((i->flags & PTX_MEM_KIND) >> 4 == PTX_KIND_B32) {
        uint32_t value;
        memcpy(&value, from, sizeof value);
        PTX_EACH(m, ((lane_u32 *)d)[l] = value);
    } else {
        uint64_t value;
        memcpy(&value, from, sizeof value);
        PTX_EACH(m, ((lane_u64 *)d)[l] = value);
    }
    return PTX_NEXT;
}

/* ------------------------------------------------------------------------------------------------------ decoding -- */

bool sim_ptx_take_space(ptx_parser *p, ptx_source *s, ptx_space *space, bool *parameter) {
    *parameter = false;
    *space = PTX_GENERIC;
    (void)p;
    if (sim_ptx_take(s, "global"))
        *space = PTX_GLOBAL;
    else if (sim_ptx_take(s, "const"))
        *space = PTX_CONST;
    else if (sim_ptx_take(s, "shared") || sim_ptx_take(s, "shared::cta"))
        *space = PTX_SHARED;
    else if (sim_ptx_take(s, "shared::cluster"))
        *space = PTX_CLUSTER;
    else if (sim_ptx_take(s, "local"))
        *space = PTX_LOCAL;
    else if (sim_ptx_take(s, "param") || sim_ptx_take(s, "param::entry") || sim_ptx_take(s, "param::func"))
        *parameter = true;
    else
        return false;
    return true;
}

/* Cache operators, eviction priorities, prefetch sizes: no effect here. True when a cache policy operand follows. */
bool sim_ptx_take_cache(ptx_source *s) {
    static const char *const ignored[] = {"ca",
                                          "cg",
                                          "cs",
                                          "lu",
                                          "cv",
                                          "wb",
                                          "wt",
                                          "nc",
                                          "L1::evict_normal",
                                          "L1::evict_unchanged",
                                          "L1::evict_first",
                                          "L1::evict_last",
                                          "L1::no_allocate",
                                          "L2::evict_normal",
                                          "L2::evict_first",
                                          "L2::evict_last",
                                          "L2::64B",
                                          "L2::128B",
                                          "L2::256B",
                                          "unified"};
    for (unsigned n = 0; n < sizeof ignored / sizeof *ignored; n++) sim_ptx_take(s, ignored[n]);
    return sim_ptx_take(s, "L2::cache_hint");
}

bool sim_ptx_take_scope(ptx_source *s) {
    return sim_ptx_take(s, "cta") || sim_ptx_take(s, "cluster") || sim_ptx_take(s, "gpu") || sim_ptx_take(s, "sys");
}

/* True for accesses that other threads may race with by right. */
static bool take_order(ptx_source *s) {
    bool strong = sim_ptx_take(s, "volatile");
    if (sim_ptx_take(s, "weak")) return false;
    if (sim_ptx_take(s, "relaxed") || sim_ptx_take(s, "acquire") || sim_ptx_take(s, "release") ||
        sim_ptx_take(s, "mmio")) {
        sim_ptx_take(s, "mmio");
        sim_ptx_take_scope(s);
        strong = true;
    }
    return strong;
}

static ptx_kind access_kind(ptx_parser *p, const ptx_source *s, ptx_type type, unsigned slot_bits) {
    bool wide = slot_bits == 64, sign = ptx_is_signed(type);
    switch (sim_ptx_type_bits(type)) {
        case 8: return wide ? (sign ? PTX_KIND_S8W : PTX_KIND_U8W) : (sign ? PTX_KIND_S8 : PTX_KIND_U8);
        case 16: return wide ? (sign ? PTX_KIND_S16W : PTX_KIND_U16W) : (sign ? PTX_KIND_S16 : PTX_KIND_U16);
        case 32: return wide ? (sign ? PTX_KIND_S32W : PTX_KIND_U32W) : PTX_KIND_B32;
        case 64: return PTX_KIND_B64;
        default: sim_ptx_bad_type(p, s, type);
    }
}

/* A register that receives a load: at least as wide as the type. */
static uint32_t load_register(ptx_parser *p, const ptx_source *s, const ptx_operand *o, ptx_type type,
                              unsigned *slot_bits) {
    unsigned bits = sim_ptx_type_bits(type);
    *slot_bits = bits == 64 ? 64 : 32;
    if (o->kind == PTX_OPERAND_SINK) return sim_ptx_new_register(p, bits == 64 ? PTX_B64 : PTX_B32);
    unsigned have = sim_ptx_operand_bits(p, o);
    if (have <= bits || ptx_is_float(type) || o->kind != PTX_OPERAND_REGISTER) return sim_ptx_destination(p, o, type);
    if (have > 64) sim_ptx_error(p, s->line, "ld: the register is wider than 64 bits");
    *slot_bits = have == 64 ? 64 : 32;
    return o->reg;
}

static unsigned take_vector(ptx_parser *p, ptx_source *s, ptx_type type) {
    unsigned count = sim_ptx_take(s, "v2") ? 2 : sim_ptx_take(s, "v4") ? 4 : sim_ptx_take(s, "v8") ? 8 : 1;
    if (count * sim_ptx_type_bits(type) > 256) sim_ptx_error(p, s->line, "an access of more than 32 bytes");
    return count;
}

static void check_vector(ptx_parser *p, const ptx_source *s, const ptx_operand *o, unsigned count) {
    if (count == 1 ? o->kind == PTX_OPERAND_VECTOR && o->element_count != 1
                   : o->kind != PTX_OPERAND_VECTOR || o->element_count != count)
        sim_ptx_error(p, s->line, "%.*s needs %u register%s", (int)s->name.bytes, s->name.text, count,
                      count > 1 ? "s in { }" : "");
}

uint16_t sim_ptx_address_flags(const ptx_address *address) {
    return (uint16_t)(address->space | (address->wide ? PTX_MEM_WIDE : 0) | (address->direct ? PTX_MEM_DIRECT : 0));
}

/* Operands of the access as slots of one width: mixed widths in one vector take the general path through
 * temporaries. */
static bool decode_ld(ptx_parser *p, ptx_source *s) {
    ptx_space space;
    bool parameter;
    bool strong = take_order(s);
    sim_ptx_take_space(p, s, &space, &parameter);
    unsigned optional = sim_ptx_take_cache(s);
    ptx_type type = sim_ptx_peek_type(s);
    unsigned count = take_vector(p, s, type);
    sim_ptx_take_type(s);
    if (type == PTX_NONE || type == PTX_PRED || sim_ptx_type_bits(type) > 64) sim_ptx_bad_type(p, s, type);
    sim_ptx_expect_operands(p, s, 2, 2 + optional);
    const ptx_operand *target = &s->operands[0];
    check_vector(p, s, target, count);
    ptx_address address = sim_ptx_address(p, &s->operands[1], space, parameter);
    if (count == 1) {
        unsigned slot_bits;
        if (target->kind == PTX_OPERAND_VECTOR) target = &target->elements[0];
        uint32_t d = load_register(p, s, target, type, &slot_bits);
        ptx_kind kind = access_kind(p, s, type, slot_bits);
        bool simple = address.space == PTX_PARAM && address.direct && (kind == PTX_KIND_B32 || kind == PTX_KIND_B64);
        uint64_t end = (uint64_t)(uint32_t)address.offset + kind_bytes[kind];
        simple = simple && address.offset >= 0 && address.offset % kind_bytes[kind] == 0 && end <= s->parameter_bytes;
        ptx_ins *i = sim_ptx_emit(p, simple ? run_ld_parameter : run_ld);
        i->flags = (uint16_t)(sim_ptx_address_flags(&address) | kind << 4 | 1 << 8 | (strong ? PTX_MEM_STRONG : 0));
        i->e = (uint32_t)address.offset;
        sim_ptx_define(p, PTX_D, d);
        if (!address.direct) sim_ptx_use(p, PTX_A, address.base);
        return true;
    }
    /* All elements in slots of the type's own width; wider registers are filled afterwards. */
    uint32_t d[8];
    unsigned slot_bits = sim_ptx_type_bits(type) == 64 ? 64 : 32;
    bool widen[8] = {false};
    uint32_t wide[8];
    for (unsigned e = 0; e < count; e++) {
        unsigned bits;
        d[e] = load_register(p, s, &target->elements[e], type, &bits);
        if (bits != slot_bits) {
            widen[e] = true;
            wide[e] = d[e];
            d[e] = sim_ptx_new_register(p, ptx_is_signed(type) ? PTX_S32 : PTX_U32);
        }
    }
    ptx_ins *i = sim_ptx_emit(p, run_ld);
    i->flags = (uint16_t)(sim_ptx_address_flags(&address) | access_kind(p, s, type, slot_bits) << 4 | count << 8 |
                          (strong ? PTX_MEM_STRONG : 0));
    i->e = (uint32_t)address.offset;
    if (!address.direct) sim_ptx_use(p, PTX_A, address.base);
    p->module->code[p->module->code_count - 1].d = sim_ptx_list_begin(p);
    for (unsigned e = 0; e < count; e++) sim_ptx_list_define(p, d[e]);
    for (unsigned e = 0; e < count; e++) {
        if (!widen[e]) continue;
        sim_ptx_emit(p, ptx_is_signed(type) ? sim_ptx_widen_signed : sim_ptx_widen);
        sim_ptx_define(p, PTX_D, wide[e]);
        sim_ptx_use(p, PTX_A, d[e]);
    }
    return true;
}

static bool decode_st(ptx_parser *p, ptx_source *s) {
    ptx_space space;
    bool parameter;
    bool strong = take_order(s);
    sim_ptx_take_space(p, s, &space, &parameter);
    unsigned optional = sim_ptx_take_cache(s);
    ptx_type type = sim_ptx_peek_type(s);
    unsigned count = take_vector(p, s, type);
    sim_ptx_take_type(s);
    if (type == PTX_NONE || type == PTX_PRED || sim_ptx_type_bits(type) > 64) sim_ptx_bad_type(p, s, type);
    if (space == PTX_CONST) sim_ptx_error(p, s->line, "st: .const memory cannot be written");
    sim_ptx_expect_operands(p, s, 2, 2 + optional);
    const ptx_operand *source = &s->operands[1];
    check_vector(p, s, source, count);
    if (source->kind == PTX_OPERAND_VECTOR && count == 1) source = &source->elements[0];
    ptx_type access = type;
    if (sim_ptx_type_bits(type) == 8) access = ptx_is_signed(type) ? PTX_S8 : PTX_U8;
    uint32_t values[8];
    for (unsigned e = 0; e < count; e++) {
        const ptx_operand *o = count == 1 ? source : &source->elements[e];
        values[e] = sim_ptx_relaxed_value(p, o, access);
    }
    ptx_address address = sim_ptx_address(p, &s->operands[0], space, parameter);
    if (address.space == PTX_PARAM) sim_ptx_error(p, s->line, "st: a kernel's parameters cannot be written");
    ptx_ins *i = sim_ptx_emit(p, run_st);
    i->flags = (uint16_t)(sim_ptx_address_flags(&address) |
                          access_kind(p, s, type, sim_ptx_type_bits(type) == 64 ? 64 : 32) << 4 | count << 8 |
                          (strong ? PTX_MEM_STRONG : 0));
    i->e = (uint32_t)address.offset;
    if (!address.direct) sim_ptx_use(p, PTX_A, address.base);
    if (count == 1) {
        sim_ptx_use(p, PTX_B, values[0]);
        return true;
    }
    p->module->code[p->module->code_count - 1].d = sim_ptx_list_begin(p);
    for (unsigned e = 0; e < count; e++) sim_ptx_list_use(p, values[e]);
    return true;
}

static bool decode_ldu(ptx_parser *p, ptx_source *s) { return decode_ld(p, s); }

/* prefetch, prefetchu, applypriority, discard: hints. The address is still parsed and its registers must exist. */
static bool decode_prefetch(ptx_parser *p, ptx_source *s) {
    ptx_space space;
    bool parameter;
    sim_ptx_take_space(p, s, &space, &parameter);
    static const char *const levels[] = {"L1", "L2", "L2::evict_last", "L2::evict_normal", "tensormap"};
    for (unsigned n = 0; n < sizeof levels / sizeof *levels; n++) sim_ptx_take(s, levels[n]);
    sim_ptx_expect_operands(p, s, 1, 2);
    sim_ptx_address(p, &s->operands[0], space, parameter);
    return true;
}

const ptx_mnemonic sim_ptx_memory_mnemonics[] = {{"ld", decode_ld},
                                                 {"st", decode_st},
                                                 {"ldu", decode_ldu},
                                                 {"prefetch", decode_prefetch},
                                                 {"prefetchu", decode_prefetch},
                                                 {NULL, NULL}};
