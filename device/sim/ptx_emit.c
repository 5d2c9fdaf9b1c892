/* Operands, constants and the emission of decoded instructions. */
#include <string.h>

#include "base/alloc.h"
#include "device/sim/ptx_parse.h"

#define NAME(n) (int)((n).bytes > 80 ? 80 : (n).bytes), (n).text

/* ------------------------------------------------------------------------------------------------- constant pool -- */

enum { MAX_POOL_BYTES = 1 << 30 };

static void index_constants(ptx_parser *p) {
    uint32_t size = p->pool_index_size ? p->pool_index_size * 2 : 64;
    uint32_t *index = sim_ptx_scratch(p, size * sizeof *index);
    for (uint32_t i = 0; i < p->pool_index_size; i++) {
        uint32_t entry = p->pool_index[i];
        if (!entry) continue;
        uint64_t value = 0;
        memcpy(&value, p->module->pool + (entry & ~3u), (entry & 2) ? 8 : 4);
        uint32_t at = (uint32_t)((value * 0x9e3779b97f4a7c15u) >> 33) & (size - 1);
        while (index[at]) at = (at + 1) & (size - 1);
        index[at] = entry;
    }
    p->pool_index = index;
    p->pool_index_size = size;
}

/* An entry is the offset, a multiple of 128, | 1 (present) | 2 (64 bits wide). */
static uint32_t pool_constant(ptx_parser *p, uint64_t value, bool wide) {
    if (p->pool_entries * 2 >= p->pool_index_size) index_constants(p);
    uint32_t at = (uint32_t)((value * 0x9e3779b97f4a7c15u) >> 33) & (p->pool_index_size - 1);
    unsigned bytes = wide ? 8 : 4;
    for (; p->pool_index[at]; at = (at + 1) & (p->pool_index_size - 1)) {
        uint32_t entry = p->pool_index[at];
        if (((entry & 2) != 0) == wide && memcmp(p->module->pool + (entry & ~3u), &value, bytes) == 0)
            return PTX_POOL_BIT | (entry & ~3u);
    }
    uint32_t offset = p->module->pool_bytes;
    if (offset > MAX_POOL_BYTES)
        sim_ptx_error(p, p->line, "the module has more than %d constants", MAX_POOL_BYTES / 128);
    sim_ptx_room(p, &p->module->pool, &p->pool_capacity, offset + bytes * PTX_LANES, 1);
    for (unsigned lane = 0; lane < PTX_LANES; lane++) memcpy(p->module->pool + offset + lane * bytes, &value, bytes);
    p->module->pool_bytes = offset + bytes * PTX_LANES;
    p->pool_index[at] = offset | 1 | (wide ? 2 : 0);
    p->pool_entries++;
    return PTX_POOL_BIT | offset;
}

uint32_t sim_ptx_constant32(ptx_parser *p, uint32_t value) { return pool_constant(p, value, false); }
uint32_t sim_ptx_constant64(ptx_parser *p, uint64_t value) { return pool_constant(p, value, true); }

/* ------------------------------------------------------------------------------------------------------ emitting -- */

ptx_ins *sim_ptx_emit(ptx_parser *p, ptx_handler *run) {
    sim_module *module = p->module;
    uint32_t at = module->code_count;
    if (at >= 1u << 26) sim_ptx_error(p, p->line, "the module has more than %u instructions", 1u << 26);
    sim_ptx_room(p, &module->code, &p->code_capacity, at + 1, sizeof *module->code);
    sim_ptx_room(p, &p->meta, &p->meta_capacity, at + 1, sizeof *p->meta);
    const ptx_source *s = p->source;
    module->code[at] = (ptx_ins){.run = run};
    p->meta[at] =
        (ptx_meta){.guard = s ? s->guard : UINT32_MAX, .line = s ? s->line : p->line, .place = p->source_place};
    if (s && s->guard != UINT32_MAX) module->code[at].guard = s->guard_negated ? 3 : 2; /* the slot comes later */
    module->code_count++;
    return &module->code[at];
}

ptx_meta *sim_ptx_last_meta(ptx_parser *p) { return &p->meta[p->module->code_count - 1]; }

static ptx_ins *last(ptx_parser *p) { return &p->module->code[p->module->code_count - 1]; }

/* Emits an instruction that runs whatever the guard of the instruction being decoded. */
ptx_ins *sim_ptx_emit_unguarded(ptx_parser *p, ptx_handler *run) {
    ptx_ins *i = sim_ptx_emit(p, run);
    i->guard = 0;
    sim_ptx_last_meta(p)->guard = UINT32_MAX;
    return i;
}

void sim_ptx_emit_join(ptx_parser *p) {
    uint32_t count = p->module->code_count;
    if (count > sim_ptx_function(p, p->function_index)->start && p->module->code[count - 1].run == sim_ptx_join) return;
    sim_ptx_emit_unguarded(p, sim_ptx_join);
}

void sim_ptx_use(ptx_parser *p, int field, uint32_t value) {
    last(p)->field[field] = value;
    if (!(value & PTX_POOL_BIT)) sim_ptx_last_meta(p)->uses |= (uint8_t)(1u << field);
}

void sim_ptx_define(ptx_parser *p, int field, uint32_t value) {
    last(p)->field[field] = value;
    sim_ptx_last_meta(p)->defines |= (uint8_t)(1u << field);
}

static void list_add(ptx_parser *p, uint32_t value) {
    sim_module *module = p->module;
    if (module->list_count >= 1u << 28) sim_ptx_error(p, p->line, "the module's operand lists are too long");
    sim_ptx_room(p, &module->lists, &p->list_capacity, module->list_count + 1, sizeof *module->lists);
    module->lists[module->list_count++] = value;
}

uint32_t sim_ptx_list_begin(ptx_parser *p) {
    sim_ptx_last_meta(p)->list = p->module->list_count;
    return p->module->list_count;
}

void sim_ptx_list_define(ptx_parser *p, uint32_t value) {
    sim_ptx_last_meta(p)->list_defines++;
    list_add(p, value);
}

void sim_ptx_list_use(ptx_parser *p, uint32_t value) {
    sim_ptx_last_meta(p)->list_uses++;
    list_add(p, value);
}

void sim_ptx_list_number(ptx_parser *p, uint32_t value) { list_add(p, value); }

/* ---------------------------------------------------------------------------------------------- parsing operands -- */

static ptx_operand parse_address(ptx_parser *p) {
    ptx_operand o = {.kind = PTX_OPERAND_ADDRESS, .reg = UINT32_MAX};
    if (p->token.kind == PTX_TOKEN_NAME && !sim_ptx_name_is(p->token.name, "WARP_SZ")) {
        uint32_t line = p->token.line, vector;
        ptx_name name = p->token.name;
        sim_ptx_advance(p);
        if (!sim_ptx_find_register(p, name, &o.reg, &vector)) {
            o.reg = UINT32_MAX;
            o.symbol = sim_ptx_find(p, name);
            if (!o.symbol) sim_ptx_error(p, line, "'%.*s' is not declared", NAME(name));
        } else if (vector) {
            sim_ptx_error(p, line, "the vector register '%.*s' cannot be an address", NAME(name));
        }
        if (sim_ptx_is_sign(p, '+') || sim_ptx_is_sign(p, '-')) {
            bool negative = sim_ptx_is_sign(p, '-');
            sim_ptx_advance(p);
            ptx_constant offset = sim_ptx_constant(p);
            if (offset.is_float) sim_ptx_error(p, line, "the offset of an address must be an integer");
            o.integer = negative ? (int64_t)(0 - (uint64_t)offset.integer) : offset.integer;
        }
    } else {
        uint32_t line = p->token.line;
        ptx_constant address = sim_ptx_constant(p);
        if (address.is_float) sim_ptx_error(p, line, "an address must be an integer");
        o.integer = address.integer;
    }
    sim_ptx_expect(p, ']', "to close the address");
    return o;
}

static ptx_operand parse_elements(ptx_parser *p, ptx_operand_kind kind, char close) {
    ptx_operand o = {.kind = kind};
    ptx_operand elements[PTX_MAX_ELEMENTS];
    uint32_t line = p->token.line;
    if (!sim_ptx_is_sign(p, close)) {
        do {
            if (o.element_count == PTX_MAX_ELEMENTS)
                sim_ptx_error(p, line, "more than %d operands in one list", PTX_MAX_ELEMENTS);
            if (sim_ptx_is_sign(p, '{') || sim_ptx_is_sign(p, '[') ||
                (sim_ptx_is_sign(p, '(') && kind == PTX_OPERAND_LIST))
                sim_ptx_error(p, line, "operand lists do not nest");
            elements[o.element_count++] = sim_ptx_parse_operand(p);
        } while (sim_ptx_accept(p, ','));
    }
    sim_ptx_expect(p, close, "to close the operand list");
    o.elements = sim_ptx_scratch(p, (o.element_count + 1) * sizeof *o.elements);
    memcpy(o.elements, elements, o.element_count * sizeof *elements);
    return o;
}

/* A vector register used whole stands for {v.x, v.y, ...}. */
static ptx_operand whole_vector(ptx_parser *p, uint32_t first, uint32_t count) {
    ptx_operand o = {.kind = PTX_OPERAND_VECTOR, .element_count = count};
    o.elements = sim_ptx_scratch(p, count * sizeof *o.elements);
    for (uint32_t i = 0; i < count; i++) o.elements[i] = (ptx_operand){.kind = PTX_OPERAND_REGISTER, .reg = first + i};
    return o;
}

ptx_operand sim_ptx_parse_list(ptx_parser *p) { return parse_elements(p, PTX_OPERAND_LIST, ')'); }

static int vector_component(ptx_name name) {
    if (name.bytes != 1) return -1;
    switch (name.text[0]) {
        case 'x':
        case 'r': return 0;
        case 'y':
        case 'g': return 1;
        case 'z':
        case 'b': return 2;
        case 'w':
        case 'a': return 3;
        default: return -1;
    }
}

static ptx_operand parse_register(ptx_parser *p, ptx_name name, uint32_t reg, uint32_t vector, uint32_t line) {
    if (vector && p->token.kind == PTX_TOKEN_DOT) {
        int component = vector_component(p->token.name);
        if (component < 0 || (uint32_t)component >= vector)
            sim_ptx_error(p, line, "'%.*s' has no component '.%.*s'", NAME(name), NAME(p->token.name));
        sim_ptx_advance(p);
        return (ptx_operand){.kind = PTX_OPERAND_REGISTER, .reg = reg + (uint32_t)component};
    }
    if (vector) return whole_vector(p, reg, vector);
    return (ptx_operand){.kind = PTX_OPERAND_REGISTER, .reg = reg, .name = name};
}

static ptx_operand parse_named(ptx_parser *p) {
    ptx_name name = p->token.name;
    uint32_t line = p->token.line, reg, vector;
    sim_ptx_advance(p);
    if (sim_ptx_name_is(name, "_")) return (ptx_operand){.kind = PTX_OPERAND_SINK};
    if (sim_ptx_find_register(p, name, &reg, &vector)) return parse_register(p, name, reg, vector, line);
    ptx_symbol *symbol = sim_ptx_find(p, name);
    if (symbol) {
        ptx_operand o = {.kind = PTX_OPERAND_SYMBOL, .symbol = symbol, .name = name};
        if (symbol->kind != PTX_SYMBOL_FUNCTION && (sim_ptx_is_sign(p, '+') || sim_ptx_is_sign(p, '-'))) {
            bool negative = sim_ptx_is_sign(p, '-');
            sim_ptx_advance(p);
            ptx_constant offset = sim_ptx_constant(p);
            if (offset.is_float) sim_ptx_error(p, line, "the offset of an address must be an integer");
            o.integer = negative ? (int64_t)(0 - (uint64_t)offset.integer) : offset.integer;
        }
        return o;
    }
    if (name.text[0] == '%') {
        ptx_name component = {0};
        if (p->token.kind == PTX_TOKEN_DOT && p->token.name.bytes == 1) {
            component = p->token.name;
            sim_ptx_advance(p);
        }
        int special = sim_ptx_special(name, component);
        if (special >= 0) return (ptx_operand){.kind = PTX_OPERAND_SPECIAL, .integer = special, .name = name};
    }
    return (ptx_operand){.kind = PTX_OPERAND_LABEL, .name = name};
}

ptx_operand sim_ptx_parse_operand(ptx_parser *p) {
    if (sim_ptx_accept(p, '[')) return parse_address(p);
    if (sim_ptx_accept(p, '{')) return parse_elements(p, PTX_OPERAND_VECTOR, '}');
    bool negated = false;
    if (sim_ptx_is_sign(p, '!')) {
        sim_ptx_advance(p);
        if (p->token.kind != PTX_TOKEN_NAME) sim_ptx_error(p, p->token.line, "! needs a predicate");
        negated = true;
    }
    ptx_operand o;
    if (p->token.kind == PTX_TOKEN_NAME && !sim_ptx_name_is(p->token.name, "WARP_SZ")) {
        o = parse_named(p);
    } else {
        ptx_constant value = sim_ptx_constant(p);
        o = (ptx_operand){.kind = value.is_float ? PTX_OPERAND_FLOAT : PTX_OPERAND_INTEGER,
                          .integer = value.integer,
                          .number = value.number,
                          .bits = value.bits};
    }
    o.negated = negated;
    if (sim_ptx_is_sign(p, '|')) {
        sim_ptx_advance(p);
        ptx_operand second = sim_ptx_parse_operand(p);
        if (second.kind != PTX_OPERAND_REGISTER && second.kind != PTX_OPERAND_SINK)
            sim_ptx_error(p, p->token.line, "a register must follow |");
        o.has_second = true;
        o.second = second.kind == PTX_OPERAND_REGISTER ? second.reg : UINT32_MAX;
    }
    return o;
}

/* ------------------------------------------------------------------------------------------------ operand values -- */

#define HERE p->source->line
#define OP NAME(p->source->name)

static const char *kind_text(const ptx_operand *o) {
    switch (o->kind) {
        case PTX_OPERAND_REGISTER: return "a register";
        case PTX_OPERAND_INTEGER: return "an integer";
        case PTX_OPERAND_FLOAT: return "a floating-point number";
        case PTX_OPERAND_SYMBOL: return "a variable";
        case PTX_OPERAND_ADDRESS: return "an address";
        case PTX_OPERAND_VECTOR: return "a vector";
        case PTX_OPERAND_SPECIAL: return "a special register";
        case PTX_OPERAND_SINK: return "_";
        case PTX_OPERAND_LIST: return "a list";
        default: return "an undeclared name";
    }
}

static _Noreturn void mismatch(ptx_parser *p, const ptx_operand *o, ptx_type type) {
    if (o->kind == PTX_OPERAND_LABEL) sim_ptx_error(p, HERE, "%.*s: '%.*s' is not declared", OP, NAME(o->name));
    if (o->kind == PTX_OPERAND_REGISTER)
        sim_ptx_error(p, HERE, "%.*s: the register '%.*s' of type .%s stands where type .%s is needed", OP,
                      NAME(o->name), sim_ptx_type_name(p->registers[o->reg].type), sim_ptx_type_name(type));
    sim_ptx_error(p, HERE, "%.*s: %s stands where an operand of type .%s is needed", OP, kind_text(o),
                  sim_ptx_type_name(type));
}

static bool same_family(ptx_type reg, ptx_type type) {
    if (ptx_is_bits(reg) || ptx_is_bits(type)) return reg != PTX_PRED && type != PTX_PRED;
    if (ptx_is_integer(reg) && ptx_is_integer(type)) return true;
    if (type == PTX_U16X2 || type == PTX_S16X2) return ptx_is_integer(reg) || reg == type;
    return reg == type;
}

static bool compatible(const ptx_parser *p, uint32_t reg, ptx_type type) {
    const ptx_register *r = &p->registers[reg];
    return r->bits == sim_ptx_type_bits(type) && same_family(r->type, type);
}

unsigned sim_ptx_operand_bits(const ptx_parser *p, const ptx_operand *o) {
    return o->kind == PTX_OPERAND_REGISTER ? p->registers[o->reg].bits : 0;
}

static uint32_t float_constant(ptx_parser *p, const ptx_operand *o, ptx_type type) {
    unsigned bits = sim_ptx_type_bits(type);
    if (bits == 64) {
        uint64_t value;
        memcpy(&value, &o->number, sizeof value);
        return sim_ptx_constant64(p, o->bits == 64 ? (uint64_t)o->integer : value);
    }
    if (bits != 32 || type == PTX_F16X2 || type == PTX_BF16X2) mismatch(p, o, type);
    float single = (float)o->number;
    uint32_t value;
    memcpy(&value, &single, sizeof value);
    return sim_ptx_constant32(p, o->bits == 32 ? (uint32_t)o->integer : value);
}

static uint32_t integer_constant(ptx_parser *p, const ptx_operand *o, ptx_type type) {
    if (type == PTX_PRED) return o->integer ? PTX_POOL_TRUE : PTX_POOL_FALSE;
    if (type == PTX_F32 || type == PTX_F64 || type == PTX_B128) mismatch(p, o, type);
    unsigned bits = sim_ptx_type_bits(type);
    if (bits == 64) return sim_ptx_constant64(p, (uint64_t)o->integer);
    return sim_ptx_constant32(p, (uint32_t)o->integer);
}

/* ---- addresses of variables: computed by instructions of their own, but for shared ones of entries ---- */

static unsigned run_global_address(ptx_context *x, const ptx_ins *i, uint32_t m) {
    uint64_t address = x->instance_addresses[i->a] + (((uint64_t)i->c << 32) | i->b);
    lane_u64 *d = ptx_slot(x, i->d);
    PTX_EACH(m, d[l] = address);
    return PTX_NEXT;
}

static unsigned run_shared_address(ptx_context *x, const ptx_ins *i, uint32_t m) {
    uint64_t address = x->kernel->shared_offsets[i->a] + (uint64_t)(int64_t)(int32_t)i->b;
    lane_u64 *d = ptx_slot(x, i->d);
    PTX_EACH(m, d[l] = address);
    return PTX_NEXT;
}

static unsigned run_shared_address32(ptx_context *x, const ptx_ins *i, uint32_t m) {
    uint32_t address = x->kernel->shared_offsets[i->a] + i->b;
    lane_u32 *d = ptx_slot(x, i->d);
    PTX_EACH(m, d[l] = address);
    return PTX_NEXT;
}

static unsigned run_local_address(ptx_context *x, const ptx_ins *i, uint32_t m) {
    uint64_t address = (i->c ? PTX_LOCAL_WINDOW : 0) + x->local + (uint64_t)(int64_t)(int32_t)i->b;
    lane_u64 *d = ptx_slot(x, i->d);
    PTX_EACH(m, d[l] = address);
    return PTX_NEXT;
}

static unsigned run_local_address32(ptx_context *x, const ptx_ins *i, uint32_t m) {
    uint32_t address = x->local + i->b;
    lane_u32 *d = ptx_slot(x, i->d);
    PTX_EACH(m, d[l] = address);
    return PTX_NEXT;
}

static unsigned run_function_address(ptx_context *x, const ptx_ins *i, uint32_t m) {
    uint64_t address = PTX_FUNCTION_WINDOW + i->a;
    lane_u64 *d = ptx_slot(x, i->d);
    PTX_EACH(m, d[l] = address);
    return PTX_NEXT;
}

static unsigned run_narrow(ptx_context *x, const ptx_ins *i, uint32_t m) {
    lane_u32 *d = ptx_slot(x, i->d);
    const lane_u64 *a = ptx_slot(x, i->a);
    PTX_EACH(m, d[l] = (uint32_t)a[l]);
    return PTX_NEXT;
}

static int32_t address_offset(ptx_parser *p, int64_t offset) {
    if (offset < INT32_MIN || offset > INT32_MAX)
        sim_ptx_error(p, HERE, "%.*s: the offset %lld does not fit in 32 bits", OP, (long long)offset);
    return (int32_t)offset;
}

/* The address of symbol + offset in the symbol's own space, into a new register of 32 or 64 bits. */
static uint32_t symbol_address(ptx_parser *p, ptx_symbol *symbol, int64_t offset, unsigned bits) {
    bool wide = bits == 64;
    uint32_t reg = sim_ptx_new_register(p, wide ? PTX_B64 : PTX_B32);
    ptx_ins *i;
    switch (symbol->kind) {
        case PTX_SYMBOL_GLOBAL:
            if (!wide)
                sim_ptx_error(p, HERE, "%.*s: the address of '%.*s' needs 64 bits; use a .b64 register", OP,
                              NAME(symbol->name));
            i = sim_ptx_emit_unguarded(p, run_global_address);
            i->a = symbol->index;
            i->b = (uint32_t)(uint64_t)offset;
            i->c = (uint32_t)((uint64_t)offset >> 32);
            break;
        case PTX_SYMBOL_SHARED:
            i = sim_ptx_emit_unguarded(p, wide ? run_shared_address : run_shared_address32);
            i->a = symbol->index;
            i->b = (uint32_t)address_offset(p, offset);
            sim_ptx_note_shared(p, symbol->index);
            break;
        case PTX_SYMBOL_LOCAL:
            i = sim_ptx_emit_unguarded(p, wide ? run_local_address : run_local_address32);
            i->b = (uint32_t)address_offset(p, offset + symbol->index);
            i->c = symbol->parameter; /* addresses of parameters are generic, whatever function they belong to */
            if (symbol->parameter && !wide)
                sim_ptx_error(p, HERE, "%.*s: the address of a parameter needs 64 bits", OP);
            break;
        case PTX_SYMBOL_PARAMETER:
            if (!wide) sim_ptx_error(p, HERE, "%.*s: the address of a parameter needs 64 bits", OP);
            return sim_ptx_constant64(p, PTX_PARAM_WINDOW + symbol->index + (uint64_t)offset);
        case PTX_SYMBOL_FUNCTION:
            if (!wide) sim_ptx_error(p, HERE, "%.*s: the address of a function needs 64 bits", OP);
            sim_ptx_function(p, symbol->index)->address_taken = true;
            i = sim_ptx_emit_unguarded(p, run_function_address);
            i->a = symbol->index;
            break;
        default: sim_ptx_error(p, HERE, "%.*s: '%.*s' has no address", OP, NAME(symbol->name));
    }
    sim_ptx_define(p, PTX_D, reg);
    return reg;
}

static uint32_t special_value(ptx_parser *p, const ptx_operand *o, ptx_type type) {
    int special = (int)o->integer;
    ptx_type own = sim_ptx_special_type(special);
    unsigned have = sim_ptx_type_bits(own), want = sim_ptx_type_bits(type);
    if (type == PTX_PRED
            ? own != PTX_PRED
            : (own == PTX_PRED || ptx_is_float(type) || (want != have && want != 16 && want != 32 && want != 64)))
        mismatch(p, o, type);
    uint32_t reg = sim_ptx_new_register(p, own);
    sim_ptx_emit_special(p, reg, special, false);
    if (want > have) { /* mov.u64 of a 32-bit special register widens, as ptxas allows for old code */
        uint32_t wide = sim_ptx_new_register(p, PTX_B64);
        sim_ptx_emit_unguarded(p, sim_ptx_widen);
        sim_ptx_define(p, PTX_D, wide);
        sim_ptx_use(p, PTX_A, reg);
        reg = wide;
    } else if (have == 64 && want < 64) {
        uint32_t narrow = sim_ptx_new_register(p, PTX_B32);
        sim_ptx_emit_unguarded(p, run_narrow);
        sim_ptx_define(p, PTX_D, narrow);
        sim_ptx_use(p, PTX_A, reg);
        reg = narrow;
    }
    return reg;
}

static unsigned run_not_predicate(ptx_context *x, const ptx_ins *i, uint32_t m) {
    ptx_write_predicate(x, i->d, m, ~*(lane_u32 *)ptx_slot(x, i->a));
    return PTX_NEXT;
}

uint32_t sim_ptx_predicate(ptx_parser *p, const ptx_operand *o) {
    uint32_t value;
    if (o->kind == PTX_OPERAND_INTEGER)
        value = o->integer ? PTX_POOL_TRUE : PTX_POOL_FALSE;
    else if (o->kind == PTX_OPERAND_REGISTER && p->registers[o->reg].type == PTX_PRED)
        value = o->reg;
    else if (o->kind == PTX_OPERAND_SPECIAL)
        value = special_value(p, o, PTX_PRED);
    else
        mismatch(p, o, PTX_PRED);
    if (!o->negated) return value;
    uint32_t reg = sim_ptx_new_register(p, PTX_PRED);
    sim_ptx_emit_unguarded(p, run_not_predicate);
    sim_ptx_define(p, PTX_D, reg);
    sim_ptx_use(p, PTX_A, value);
    return reg;
}

uint32_t sim_ptx_value(ptx_parser *p, const ptx_operand *o, ptx_type type) {
    if (type == PTX_PRED) return sim_ptx_predicate(p, o);
    if (o->negated) sim_ptx_error(p, HERE, "%.*s: ! needs a predicate", OP);
    switch (o->kind) {
        case PTX_OPERAND_REGISTER:
            if (!compatible(p, o->reg, type)) mismatch(p, o, type);
            return o->reg;
        case PTX_OPERAND_INTEGER: return integer_constant(p, o, type);
        case PTX_OPERAND_FLOAT:
            if (!ptx_is_float(type) && !ptx_is_bits(type)) mismatch(p, o, type);
            return float_constant(p, o, type);
        case PTX_OPERAND_SYMBOL:
            if (ptx_is_float(type) || (sim_ptx_type_bits(type) != 64 && sim_ptx_type_bits(type) != 32))
                mismatch(p, o, type);
            return symbol_address(p, o->symbol, o->integer, sim_ptx_type_bits(type));
        case PTX_OPERAND_SPECIAL: return special_value(p, o, type);
        default: mismatch(p, o, type);
    }
}

uint32_t sim_ptx_relaxed_value(ptx_parser *p, const ptx_operand *o, ptx_type type) {
    if (o->kind != PTX_OPERAND_REGISTER || compatible(p, o->reg, type)) return sim_ptx_value(p, o, type);
    const ptx_register *r = &p->registers[o->reg];
    unsigned bits = sim_ptx_type_bits(type);
    if (r->type == PTX_PRED || r->bits < bits || r->bits > 64 || o->negated) mismatch(p, o, type);
    /* A floating-point type needs a register of exactly its size; an integer one may be read from any wider one. */
    if (ptx_is_float(type) && !ptx_is_bits(r->type)) mismatch(p, o, type);
    if (r->bits <= 32 || bits > 32) return o->reg;
    uint32_t narrow = sim_ptx_new_register(p, PTX_B32), reg = o->reg;
    sim_ptx_emit_unguarded(p, run_narrow);
    sim_ptx_define(p, PTX_D, narrow);
    sim_ptx_use(p, PTX_A, reg);
    return narrow;
}

uint32_t sim_ptx_destination(ptx_parser *p, const ptx_operand *o, ptx_type type) {
    if (o->kind == PTX_OPERAND_SINK) return sim_ptx_new_register(p, type);
    if (o->kind != PTX_OPERAND_REGISTER || o->negated)
        sim_ptx_error(p, HERE, "%.*s: the result must be a register, not %s", OP, kind_text(o));
    if (!compatible(p, o->reg, type)) mismatch(p, o, type);
    return o->reg;
}

int64_t sim_ptx_immediate(ptx_parser *p, const ptx_operand *o, int64_t low, int64_t high, const char *what) {
    if (o->kind != PTX_OPERAND_INTEGER || o->integer < low || o->integer > high)
        sim_ptx_error(p, HERE, "%.*s: %s must be an integer constant from %lld to %lld", OP, what, (long long)low,
                      (long long)high);
    return o->integer;
}

ptx_address sim_ptx_address(ptx_parser *p, const ptx_operand *o, ptx_space space, bool parameter_space) {
    if (o->kind != PTX_OPERAND_ADDRESS)
        sim_ptx_error(p, HERE, "%.*s: an address in [ ] is needed, not %s", OP, kind_text(o));
    ptx_address address = {.space = space, .wide = true, .base = PTX_POOL_FALSE};
    if (parameter_space) address.space = PTX_GENERIC; /* addresses of parameters are generic */
    if (o->reg != UINT32_MAX) {
        const ptx_register *r = &p->registers[o->reg];
        if ((r->bits != 32 && r->bits != 64) || ptx_is_float(r->type))
            sim_ptx_error(p, HERE, "%.*s: an address must be a 32-bit or 64-bit integer register", OP);
        address.base = o->reg;
        address.wide = r->bits == 64;
        address.offset = address_offset(p, o->integer);
        return address;
    }
    if (!o->symbol) {
        address.base = sim_ptx_constant64(p, (uint64_t)o->integer);
        return address;
    }
    ptx_symbol *symbol = o->symbol;
    static const ptx_space home[] = {[PTX_SYMBOL_GLOBAL] = PTX_GLOBAL,
                                     [PTX_SYMBOL_SHARED] = PTX_SHARED,
                                     [PTX_SYMBOL_LOCAL] = PTX_LOCAL,
                                     [PTX_SYMBOL_PARAMETER] = PTX_PARAM};
    if (symbol->kind < PTX_SYMBOL_GLOBAL || symbol->kind > PTX_SYMBOL_PARAMETER)
        sim_ptx_error(p, HERE, "%.*s: '%.*s' is not a variable", OP, NAME(symbol->name));
    bool is_parameter = symbol->kind == PTX_SYMBOL_PARAMETER || (symbol->kind == PTX_SYMBOL_LOCAL && symbol->parameter);
    bool fits = parameter_space                               ? is_parameter
                : space == PTX_CONST || space == PTX_GLOBAL   ? symbol->kind == PTX_SYMBOL_GLOBAL
                : space == PTX_SHARED || space == PTX_CLUSTER ? symbol->kind == PTX_SYMBOL_SHARED
                : space == PTX_LOCAL                          ? symbol->kind == PTX_SYMBOL_LOCAL && !symbol->parameter
                                                              : true;
    if (!fits)
        sim_ptx_error(p, HERE, "%.*s: '%.*s' does not lie in the state space of the instruction", OP,
                      NAME(symbol->name));
    address.space = space == PTX_CLUSTER ? PTX_CLUSTER : home[symbol->kind];
    if (symbol->kind == PTX_SYMBOL_PARAMETER) {
        address.direct = true;
        address.offset = address_offset(p, o->integer + symbol->index);
    } else if (symbol->kind == PTX_SYMBOL_LOCAL && is_parameter) {
        address.direct = true; /* relative to the activation */
        address.offset = address_offset(p, o->integer + symbol->index);
    } else if (symbol->kind == PTX_SYMBOL_LOCAL) {
        address.direct = true;
        address.offset = address_offset(p, o->integer + symbol->index);
    } else {
        address.base = symbol_address(p, symbol, o->integer, 64);
    }
    return address;
}

/* -------------------------------------------------------------------------------------- modifiers and plain form -- */

bool sim_ptx_take(ptx_source *s, const char *name) {
    for (unsigned i = 0; i < s->modifier_count; i++)
        if (!s->modifiers[i].taken && sim_ptx_name_is(s->modifiers[i].name, name)) return s->modifiers[i].taken = true;
    return false;
}

ptx_type sim_ptx_peek_type(const ptx_source *s) {
    for (unsigned i = 0; i < s->modifier_count; i++)
        if (!s->modifiers[i].taken && s->modifiers[i].type != PTX_NONE) return s->modifiers[i].type;
    return PTX_NONE;
}

ptx_type sim_ptx_take_type(ptx_source *s) {
    for (unsigned i = 0; i < s->modifier_count; i++)
        if (!s->modifiers[i].taken && s->modifiers[i].type != PTX_NONE) {
            s->modifiers[i].taken = true;
            return s->modifiers[i].type;
        }
    return PTX_NONE;
}

void sim_ptx_expect_operands(ptx_parser *p, const ptx_source *s, unsigned low, unsigned high) {
    if (s->operand_count < low || s->operand_count > high) {
        if (low == high)
            sim_ptx_error(p, s->line, "%.*s has %u operands but needs %u", NAME(s->name), s->operand_count, low);
        sim_ptx_error(p, s->line, "%.*s has %u operands but needs %u to %u", NAME(s->name), s->operand_count, low,
                      high);
    }
}

void sim_ptx_bad_type(ptx_parser *p, const ptx_source *s, ptx_type type) {
    if (type == PTX_NONE) sim_ptx_error(p, s->line, "%.*s needs a type", NAME(s->name));
    sim_ptx_error(p, s->line, "%.*s has no form for type .%s here", NAME(s->name), sim_ptx_type_name(type));
}

ptx_ins *sim_ptx_emit_plain(ptx_parser *p, ptx_source *s, ptx_handler *run, ptx_type d, ptx_type a, ptx_type b,
                            ptx_type c) {
    unsigned count = (d != PTX_NONE) + (a != PTX_NONE) + (b != PTX_NONE) + (c != PTX_NONE);
    sim_ptx_expect_operands(p, s, count, count);
    const ptx_operand *o = s->operands;
    uint32_t vd = d ? sim_ptx_destination(p, o++, d) : 0;
    uint32_t va = a ? sim_ptx_value(p, o++, a) : 0;
    uint32_t vb = b ? sim_ptx_value(p, o++, b) : 0;
    uint32_t vc = c ? sim_ptx_value(p, o++, c) : 0;
    sim_ptx_emit(p, run);
    if (d) sim_ptx_define(p, PTX_D, vd);
    if (a) sim_ptx_use(p, PTX_A, va);
    if (b) sim_ptx_use(p, PTX_B, vb);
    if (c) sim_ptx_use(p, PTX_C, vc);
    return last(p);
}
