/* Declarations: variables of every state space with their initial values, registers, formal parameters. */
#include <string.h>

#include "base/alloc.h"
#include "device/sim/ptx_parse.h"

#define NAME(n) (int)((n).bytes > 80 ? 80 : (n).bytes), (n).text
#define MAX_VARIABLE_BYTES ((uint64_t)1 << 40)

enum { MAX_DIMENSIONS = 8, MAX_INITIAL_BYTES = 1 << 28 };

/* What stands before the name: alignment, vector length, type. */
typedef struct declaration {
    uint32_t alignment; /* 0: not given */
    uint32_t vector;    /* 1, 2, 4 */
    ptx_type type;
    uint32_t line;
} declaration;

static void skip_parentheses(ptx_parser *p) {
    uint32_t line = p->token.line;
    sim_ptx_expect(p, '(', "after .attribute");
    while (!sim_ptx_accept(p, ')')) {
        if (p->token.kind == PTX_TOKEN_END) sim_ptx_error(p, line, "the attribute list is not closed");
        if (p->token.kind == PTX_TOKEN_DOT && !sim_ptx_is_dot(p, "managed"))
            sim_ptx_error(p, p->token.line, "unknown attribute '.%.*s'", NAME(p->token.name));
        sim_ptx_advance(p);
    }
}

static declaration parse_declaration(ptx_parser *p) {
    declaration d = {.vector = 1, .line = p->token.line};
    while (p->token.kind == PTX_TOKEN_DOT) {
        ptx_name name = p->token.name;
        uint32_t line = p->token.line;
        ptx_type type = sim_ptx_type(name);
        sim_ptx_advance(p);
        if (type != PTX_NONE) {
            d.type = type;
        } else if (sim_ptx_name_is(name, "align")) {
            d.alignment = sim_ptx_count(p, 1 << 20, ".align");
            if (!d.alignment || (d.alignment & (d.alignment - 1)))
                sim_ptx_error(p, line, ".align %u is not a power of two", d.alignment);
        } else if (sim_ptx_name_is(name, "v2")) {
            d.vector = 2;
        } else if (sim_ptx_name_is(name, "v4")) {
            d.vector = 4;
        } else if (sim_ptx_name_is(name, "attribute")) {
            skip_parentheses(p);
        } else if (sim_ptx_name_is(name, "ptr")) { /* .ptr .global .align 16: hints about what the pointer points to */
            for (const char *const *s = (const char *const[]){"global", "const", "shared", "local", NULL}; *s; s++)
                sim_ptx_accept_dot(p, *s);
            if (sim_ptx_accept_dot(p, "align")) sim_ptx_count(p, 1 << 20, ".align");
        } else {
            sim_ptx_error(p, line, "'.%.*s' is not a type or attribute that a declaration may have", NAME(name));
        }
    }
    if (d.type == PTX_NONE) sim_ptx_error(p, d.line, "the declaration has no type");
    return d;
}

static uint64_t element_bytes(ptx_parser *p, const declaration *d) {
    unsigned bits = sim_ptx_type_bits(d->type);
    if (bits < 8) sim_ptx_error(p, d->line, "predicates live in registers only");
    return (uint64_t)bits / 8 * d->vector;
}

static uint32_t natural_alignment(ptx_parser *p, const declaration *d) {
    uint64_t natural = element_bytes(p, d);
    return d->alignment ? d->alignment : (uint32_t)natural;
}

typedef struct dimensions {
    uint64_t count[MAX_DIMENSIONS];
    unsigned rank;
    bool open; /* the first is [] */
} dimensions;

static dimensions parse_dimensions(ptx_parser *p) {
    dimensions d = {0};
    while (sim_ptx_accept(p, '[')) {
        if (d.rank == MAX_DIMENSIONS) sim_ptx_error(p, p->token.line, "more than %d dimensions", MAX_DIMENSIONS);
        if (sim_ptx_accept(p, ']')) {
            if (d.rank) sim_ptx_error(p, p->token.line, "only the first dimension may be left open");
            d.open = true;
            d.count[d.rank++] = 0;
            continue;
        }
        uint32_t line = p->token.line;
        ptx_constant count = sim_ptx_constant(p);
        if (count.is_float || count.integer < 0 || (uint64_t)count.integer > MAX_VARIABLE_BYTES)
            sim_ptx_error(p, line, "a dimension must be an integer from 0 to 2^40");
        d.count[d.rank++] = (uint64_t)count.integer;
        sim_ptx_expect(p, ']', "to close the dimension");
    }
    return d;
}

static uint64_t total_elements(ptx_parser *p, const dimensions *d, uint64_t bytes, unsigned from) {
    uint64_t total = 1;
    for (unsigned i = from; i < d->rank; i++)
        if (__builtin_mul_overflow(total, d->count[i], &total) || total > MAX_VARIABLE_BYTES / bytes)
            sim_ptx_error(p, p->token.line, "the variable is larger than 2^40 bytes");
    return total;
}

/* ------------------------------------------------------------------------------------------------ initial values -- */

typedef struct initial {
    unsigned char *bytes; /* in the parser's arena */
    uint64_t size, used;
    ptx_type type;
    uint32_t variable;
} initial;

static unsigned char *initial_at(ptx_parser *p, initial *v, uint64_t offset, unsigned bytes) {
    if (offset + bytes > MAX_INITIAL_BYTES)
        sim_ptx_error(p, p->token.line, "initial values of more than %d bytes", MAX_INITIAL_BYTES);
    if (offset + bytes > v->size) {
        uint64_t size = v->size ? v->size * 2 : 64;
        while (size < offset + bytes) size *= 2;
        unsigned char *grown = sim_ptx_scratch(p, size);
        if (v->used) memcpy(grown, v->bytes, v->used);
        v->bytes = grown;
        v->size = size;
    }
    if (offset + bytes > v->used) v->used = offset + bytes;
    return v->bytes + offset;
}

/* name, generic(name), name+4: an address, stored when the module's variables have one. */
static void initial_address(ptx_parser *p, initial *v, uint64_t offset, uint64_t mask) {
    uint32_t line = p->token.line;
    ptx_name name = sim_ptx_expect_name(p, "a variable");
    bool closes = false;
    if (sim_ptx_name_is(name, "generic") && sim_ptx_accept(p, '(')) {
        name = sim_ptx_expect_name(p, "a variable");
        closes = true;
    }
    int64_t addend = 0;
    if (closes) sim_ptx_expect(p, ')', "after generic(");
    if (sim_ptx_is_sign(p, '+') || sim_ptx_is_sign(p, '-')) {
        bool negative = sim_ptx_is_sign(p, '-');
        sim_ptx_advance(p);
        ptx_constant c = sim_ptx_constant(p);
        if (c.is_float) sim_ptx_error(p, line, "the offset must be an integer");
        addend = negative ? (int64_t)(0 - (uint64_t)c.integer) : c.integer;
    }
    ptx_symbol *symbol = sim_ptx_find(p, name);
    if (!symbol) sim_ptx_error(p, line, "'%.*s' is not declared", NAME(name));
    if (symbol->kind != PTX_SYMBOL_GLOBAL && symbol->kind != PTX_SYMBOL_FUNCTION)
        sim_ptx_error(p, line, "only addresses of .global and .const variables and of functions can be initial values");
    if (symbol->kind == PTX_SYMBOL_FUNCTION) sim_ptx_function(p, symbol->index)->address_taken = true;
    unsigned bytes = sim_ptx_type_bits(v->type) / 8, shift = 0;
    if (mask) {
        shift = (unsigned)__builtin_ctzll(mask);
        if (mask >> shift != 0xff || shift % 8) sim_ptx_error(p, line, "the mask of an address must select one byte");
        bytes = 1;
    } else if (bytes != 8) {
        sim_ptx_error(p, line, "an address needs a 64-bit element, not .%s", sim_ptx_type_name(v->type));
    }
    sim_module *module = p->module;
    sim_ptx_room(p, &module->relocations, &p->relocation_capacity, module->relocation_count + 1,
                 sizeof *module->relocations);
    module->relocations[module->relocation_count++] = (ptx_relocation){.variable = v->variable,
                                                                       .offset = offset,
                                                                       .bytes = bytes,
                                                                       .shift = shift,
                                                                       .function = symbol->kind == PTX_SYMBOL_FUNCTION,
                                                                       .target = symbol->index,
                                                                       .addend = addend};
    initial_at(p, v, offset, sim_ptx_type_bits(v->type) / 8);
}

static void initial_element(ptx_parser *p, initial *v, uint64_t offset) {
    if (p->token.kind == PTX_TOKEN_NAME && !sim_ptx_name_is(p->token.name, "WARP_SZ")) {
        initial_address(p, v, offset, 0);
        return;
    }
    uint32_t line = p->token.line;
    ptx_constant c = sim_ptx_constant(p);
    if (!c.is_float && sim_ptx_accept(p, '(')) {
        initial_address(p, v, offset, (uint64_t)c.integer);
        sim_ptx_expect(p, ')', "after the masked address");
        return;
    }
    unsigned bytes = sim_ptx_type_bits(v->type) / 8;
    unsigned char *to = initial_at(p, v, offset, bytes);
    if (v->type == PTX_F32) {
        float value = c.is_float ? (float)c.number : (float)c.integer;
        if (c.bits == 32) {
            uint32_t bits = (uint32_t)c.integer;
            memcpy(&value, &bits, 4);
        }
        memcpy(to, &value, 4);
    } else if (v->type == PTX_F64) {
        double value = c.is_float ? c.number : (double)c.integer;
        memcpy(to, &value, 8);
    } else if (c.is_float) {
        if (c.bits != bytes * 8)
            sim_ptx_error(p, line, "a floating-point number cannot initialise .%s", sim_ptx_type_name(v->type));
        memcpy(to, &c.integer, bytes);
    } else {
        memcpy(to, &c.integer, bytes > 8 ? 8 : bytes);
    }
}

/* Elements of dimension `level`, the first at `offset`. Returns how many there are. */
static uint64_t initial_level(ptx_parser *p, initial *v, const dimensions *d, unsigned level, uint64_t offset,
                              uint64_t bytes) {
    uint64_t stride = bytes * total_elements(p, d, bytes, level + 1), count = 0;
    uint32_t line = p->token.line;
    sim_ptx_expect(p, '{', "to begin the initial values");
    if (sim_ptx_accept(p, '}')) return 0;
    do {
        if (!(d->open && level == 0) && count >= d->count[level])
            sim_ptx_error(p, line, "more initial values than the %llu elements of the dimension",
                          (unsigned long long)d->count[level]);
        if (sim_ptx_is_sign(p, '{')) {
            if (level + 1 >= d->rank)
                sim_ptx_error(p, line, "the initial values nest deeper than the variable's dimensions");
            initial_level(p, v, d, level + 1, offset + count * stride, bytes);
        } else if (level + 1 < d->rank) {
            sim_ptx_error(p, line, "the initial values of a dimension must stand in { }");
        } else {
            initial_element(p, v, offset + count * stride);
        }
        count++;
    } while (sim_ptx_accept(p, ','));
    sim_ptx_expect(p, '}', "to end the initial values");
    return count;
}

/* ----------------------------------------------------------------------------------------------------- variables -- */

/* Room in the function's local memory; its offset. */
static uint32_t local_place(ptx_parser *p, uint64_t bytes, uint32_t alignment, uint32_t line) {
    uint64_t place = ((uint64_t)p->local_bytes + alignment - 1) & ~(uint64_t)(alignment - 1);
    if (bytes > PTX_MAX_LOCAL_BYTES || place + bytes > PTX_MAX_LOCAL_BYTES)
        sim_ptx_error(p, line, "more than %d bytes of local memory", PTX_MAX_LOCAL_BYTES);
    p->local_bytes = (uint32_t)(place + bytes);
    if (p->local_bytes > p->local_peak) p->local_peak = p->local_bytes;
    return (uint32_t)place;
}

static void declare_local(ptx_parser *p, ptx_name name, const declaration *d, uint64_t bytes, bool parameter) {
    if (p->function_index == UINT32_MAX)
        sim_ptx_error(p, d->line, "'%.*s': .%s variables belong inside a function", NAME(name),
                      parameter ? "param" : "local");
    ptx_symbol *s = sim_ptx_declare(p, name, PTX_SYMBOL_LOCAL, d->line);
    s->index = local_place(p, bytes, natural_alignment(p, d), d->line);
    s->bytes = (uint32_t)bytes;
    s->type = d->type;
    s->parameter = parameter;
}

static void declare_shared(ptx_parser *p, ptx_name name, const declaration *d, uint64_t bytes, bool dynamic) {
    sim_module *module = p->module;
    if (bytes > PTX_MAX_SHARED_BYTES)
        sim_ptx_error(p, d->line, "'%.*s': %llu bytes exceed the %d of shared memory", NAME(name),
                      (unsigned long long)bytes, PTX_MAX_SHARED_BYTES);
    ptx_symbol *known = sim_ptx_find(p, name);
    if (known && known->kind == PTX_SYMBOL_SHARED && module->shared[known->index].dynamic && p->scope_depth == 1) {
        module->shared[known->index].dynamic = dynamic; /* declared .extern before */
        module->shared[known->index].bytes = (uint32_t)bytes;
        return;
    }
    sim_ptx_room(p, &module->shared, &p->shared_capacity, module->shared_count + 1, sizeof *module->shared);
    module->shared[module->shared_count] = (ptx_shared_variable){.name = sim_ptx_keep_name(p, name),
                                                                 .bytes = (uint32_t)bytes,
                                                                 .alignment = natural_alignment(p, d),
                                                                 .dynamic = dynamic};
    sim_ptx_declare(p, name, PTX_SYMBOL_SHARED, d->line)->index = module->shared_count++;
}

static ptx_symbol *declare_global(ptx_parser *p, ptx_name name, const declaration *d, bool constant, bool external) {
    sim_module *module = p->module;
    ptx_symbol *s = sim_ptx_find(p, name);
    if (s && s->kind == PTX_SYMBOL_GLOBAL && (p->external[s->index] || external)) {
        if (!external) p->external[s->index] = false;
        return s;
    }
    sim_ptx_room(p, &module->variables, &p->variable_capacity, module->variable_count + 1, sizeof *module->variables);
    sim_ptx_room(p, &p->external, &p->external_capacity, module->variable_count + 1, sizeof *p->external);
    s = sim_ptx_declare(p, name, PTX_SYMBOL_GLOBAL, d->line);
    s->index = module->variable_count++;
    module->variables[s->index] = (ptx_variable){.info.name = sim_ptx_keep_name(p, name), .info.constant = constant};
    p->external[s->index] = external;
    return s;
}

static void parse_global(ptx_parser *p, ptx_name name, const declaration *d, dimensions *size, bool constant,
                         bool external) {
    uint64_t bytes = element_bytes(p, d);
    ptx_symbol *s = declare_global(p, name, d, constant, external);
    initial v = {.type = d->type, .variable = s->index};
    if (sim_ptx_accept(p, '=')) {
        if (external) sim_ptx_error(p, d->line, "'%.*s' is .extern and cannot have a value", NAME(name));
        if (d->vector > 1) { /* a vector is one more dimension */
            if (size->rank == MAX_DIMENSIONS) sim_ptx_error(p, d->line, "more than %d dimensions", MAX_DIMENSIONS);
            size->count[size->rank++] = d->vector;
            bytes /= d->vector;
        }
        if (size->rank == 0) {
            initial_element(p, &v, 0);
        } else {
            uint64_t count = initial_level(p, &v, size, 0, 0, bytes);
            if (size->open) size->count[0] = count;
        }
    } else if (size->open && !external) {
        sim_ptx_error(p, d->line, "'%.*s' needs a size or initial values", NAME(name));
    }
    ptx_variable *variable = &p->module->variables[s->index];
    uint64_t total = bytes * total_elements(p, size, bytes, 0);
    if (v.used > total) total = v.used;
    variable->info.bytes = total;
    variable->info.alignment = natural_alignment(p, d);
    variable->initial_bytes = v.used;
    if (v.used) {
        variable->initial = sim_ptx_keep(p, v.used);
        memcpy(variable->initial, v.bytes, v.used);
    }
}

void sim_ptx_parse_variable(ptx_parser *p, ptx_space space, bool external) {
    declaration d = parse_declaration(p);
    do {
        ptx_name name = sim_ptx_expect_name(p, "the variable's name");
        dimensions size = parse_dimensions(p);
        if (space == PTX_GLOBAL || space == PTX_CONST) {
            parse_global(p, name, &d, &size, space == PTX_CONST, external);
            continue;
        }
        uint64_t bytes = element_bytes(p, &d);
        bytes *= total_elements(p, &size, bytes, 0);
        if (sim_ptx_is_sign(p, '='))
            sim_ptx_error(p, d.line, "'%.*s': only .global and .const can have initial values", NAME(name));
        if (space == PTX_SHARED)
            declare_shared(p, name, &d, bytes, external || size.open);
        else
            declare_local(p, name, &d, bytes, space == PTX_PARAM);
    } while (sim_ptx_accept(p, ','));
    sim_ptx_expect(p, ';', "after the declaration");
}

/* ----------------------------------------------------------------------------------------- registers and formals -- */

enum { MAX_REGISTERS = 1 << 20 };

void sim_ptx_parse_registers(ptx_parser *p) {
    declaration d = parse_declaration(p);
    if (d.type == PTX_B128)
        sim_ptx_error(p, d.line, "registers of .b128 are not known to the simulator; use two of .b64");
    do {
        uint32_t line = p->token.line;
        ptx_name name = sim_ptx_expect_name(p, "the register's name");
        if (sim_ptx_accept(p, '<')) {
            if (p->token.kind != PTX_TOKEN_INTEGER || p->token.integer > MAX_REGISTERS)
                sim_ptx_error(p, line, "the number of registers must be an integer from 0 to %d", MAX_REGISTERS);
            uint32_t count = (uint32_t)p->token.integer;
            sim_ptx_advance(p);
            sim_ptx_expect(p, '>', "after the number of registers");
            if (d.vector > 1) sim_ptx_error(p, line, "vector registers must be named one by one");
            ptx_symbol *s = sim_ptx_declare(p, name, PTX_SYMBOL_RANGE, line);
            s->type = d.type;
            s->count = count;
            s->registers = sim_ptx_scratch(p, ((size_t)count + 1) * sizeof *s->registers);
            continue;
        }
        ptx_symbol *s = sim_ptx_declare(p, name, PTX_SYMBOL_REGISTER, line);
        s->type = d.type;
        s->index = sim_ptx_new_register(p, d.type);
        for (uint32_t i = 1; i < d.vector; i++) sim_ptx_new_register(p, d.type);
        s->count = d.vector > 1 ? d.vector : 0;
    } while (sim_ptx_accept(p, ','));
    sim_ptx_expect(p, ';', "after the registers");
}

ptx_formal sim_ptx_parse_formal(ptx_parser *p, bool entry, uint32_t *place) {
    uint32_t line = p->token.line;
    bool in_register = !entry && sim_ptx_accept_dot(p, "reg");
    if (!in_register && !sim_ptx_accept_dot(p, "param"))
        sim_ptx_error(p, line, "a parameter begins with .param%s", entry ? "" : " or .reg");
    declaration d = parse_declaration(p);
    ptx_name name = sim_ptx_expect_name(p, "the parameter's name");
    dimensions size = parse_dimensions(p);
    ptx_formal formal = {.name = sim_ptx_keep_name(p, name), .type = d.type, .in_register = in_register};
    if (in_register) {
        if (d.type == PTX_B128 || d.type == PTX_PRED || d.vector > 1 || size.rank)
            sim_ptx_error(p, line, "a parameter in a register must be a scalar of up to 64 bits");
        ptx_symbol *s = sim_ptx_declare(p, name, PTX_SYMBOL_REGISTER, line);
        s->type = d.type;
        s->index = sim_ptx_new_register(p, d.type);
        p->registers[s->index].pinned = true;
        formal.place = s->index; /* a virtual register until slots are assigned */
        formal.bytes = (sim_ptx_type_bits(d.type) + 7) / 8;
        return formal;
    }
    uint64_t bytes = element_bytes(p, &d);
    bytes *= total_elements(p, &size, bytes, 0);
    formal.alignment = natural_alignment(p, &d);
    if (bytes > 1 << 16)
        sim_ptx_error(p, line, "the parameter '%.*s' of %llu bytes is too large", NAME(name),
                      (unsigned long long)bytes);
    formal.bytes = (uint32_t)bytes;
    if (!entry) {
        declare_local(p, name, &d, bytes, true);
        formal.place = sim_ptx_find(p, name)->index;
        return formal;
    }
    *place = (*place + formal.alignment - 1) & ~(formal.alignment - 1);
    ptx_symbol *s = sim_ptx_declare(p, name, PTX_SYMBOL_PARAMETER, line);
    s->index = formal.place = *place;
    s->bytes = formal.bytes;
    s->type = d.type;
    *place += formal.bytes;
    return formal;
}
