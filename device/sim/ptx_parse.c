/* Modules, functions and statements. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "device/sim/ptx_parse.h"

#define NAME(n) (int)((n).bytes > 80 ? 80 : (n).bytes), (n).text

enum { MAX_PARAMETER_BYTES = 32764, MAX_FORMALS = 4096 };

sim_function *sim_ptx_function(ptx_parser *p, uint32_t index) { return &p->module->functions[index]; }

void sim_ptx_note_shared(ptx_parser *p, uint32_t variable) {
    for (uint32_t i = p->shared_use_count; i-- > 0 && p->shared_uses[i].function == p->function_index;)
        if (p->shared_uses[i].variable == variable) return;
    sim_ptx_room(p, &p->shared_uses, &p->shared_use_capacity, p->shared_use_count + 1, sizeof *p->shared_uses);
    p->shared_uses[p->shared_use_count++] = (ptx_shared_use){p->function_index, variable};
}

/* -------------------------------------------------------------------------------------------------- instructions -- */

static void parse_modifiers(ptx_parser *p, ptx_source *s) {
    while (p->token.kind == PTX_TOKEN_DOT) {
        if (s->modifier_count == PTX_MAX_MODIFIERS)
            sim_ptx_error(p, s->line, "%.*s has more than %d modifiers", NAME(s->name), PTX_MAX_MODIFIERS);
        s->modifiers[s->modifier_count++] = (ptx_modifier){.name = p->token.name, .type = sim_ptx_type(p->token.name)};
        sim_ptx_advance(p);
    }
}

static void parse_operands(ptx_parser *p, ptx_source *s) {
    bool call = sim_ptx_name_is(s->name, "call");
    if (sim_ptx_is_sign(p, ';')) return;
    do {
        if (s->operand_count == PTX_MAX_OPERANDS)
            sim_ptx_error(p, s->line, "%.*s has more than %d operands", NAME(s->name), PTX_MAX_OPERANDS);
        ptx_operand *o = &s->operands[s->operand_count++];
        if (call && sim_ptx_accept(p, '('))
            *o = sim_ptx_parse_list(p);
        else
            *o = sim_ptx_parse_operand(p);
    } while (sim_ptx_accept(p, ','));
}

static void parse_guard(ptx_parser *p, ptx_source *s) {
    s->guard = UINT32_MAX;
    if (!sim_ptx_accept(p, '@')) return;
    s->guard_negated = sim_ptx_accept(p, '!');
    uint32_t line = p->token.line, vector;
    ptx_name name = sim_ptx_expect_name(p, "a predicate");
    if (!sim_ptx_find_register(p, name, &s->guard, &vector) || vector || p->registers[s->guard].type != PTX_PRED)
        sim_ptx_error(p, line, "'%.*s' after @ is not a predicate register", NAME(name));
}

static void decode_instruction(ptx_parser *p, ptx_source *s) {
    p->source = s;
    s->parameter_bytes = (uint32_t)sim_ptx_function(p, p->function_index)->info.parameter_block_bytes;
    sim_ptx_decode(p, s);
    for (unsigned i = 0; i < s->modifier_count; i++)
        if (!s->modifiers[i].taken)
            sim_ptx_error(p, s->line,
                          "%.*s: the modifier '.%.*s' is not known here; the simulator does not have this form",
                          NAME(s->name), NAME(s->modifiers[i].name));
    p->source = NULL;
}

static void parse_instruction(ptx_parser *p, ptx_source *s) {
    s->line = p->token.line;
    s->name = sim_ptx_expect_name(p, "an instruction");
    p->source_place = (uint32_t)(s->name.text - p->module->text);
    parse_modifiers(p, s);
    p->source = s;
    parse_operands(p, s);
    if (!sim_ptx_is_sign(p, ';')) sim_ptx_expect(p, ';', "after the operands");
    decode_instruction(p, s);
    sim_ptx_advance(p);
}

/* ------------------------------------------------------------------------------------------- labelled directives -- */

/* name: .branchtargets L0, L1; the list holds the count and then the instructions. */
static void parse_branch_targets(ptx_parser *p, ptx_name name, uint32_t line) {
    ptx_name targets[1024];
    uint32_t count = 0;
    do {
        if (count == 1024) sim_ptx_error(p, line, "more than 1024 branch targets");
        targets[count++] = sim_ptx_expect_name(p, "a label");
    } while (sim_ptx_accept(p, ','));
    sim_ptx_expect(p, ';', "after the labels");
    ptx_symbol *s = sim_ptx_declare(p, name, PTX_SYMBOL_TARGETS, line);
    sim_module *module = p->module;
    s->index = module->list_count;
    sim_ptx_list_number(p, count);
    for (uint32_t i = 0; i < count; i++) {
        sim_ptx_list_number(p, 0);
        sim_ptx_reference_label(p, targets[i], true, module->list_count - 1);
    }
}

/* Skips ( ... ) of a prototype, counting what is declared in it. */
static uint32_t skip_formals(ptx_parser *p) {
    uint32_t count = 0, line = p->token.line;
    if (!sim_ptx_accept(p, '(')) return 0;
    while (!sim_ptx_accept(p, ')')) {
        if (p->token.kind == PTX_TOKEN_END) sim_ptx_error(p, line, "the parameter list is not closed");
        if (sim_ptx_is_dot(p, "param") || sim_ptx_is_dot(p, "reg")) count++;
        sim_ptx_advance(p);
    }
    return count;
}

static void parse_labelled(ptx_parser *p, ptx_name name, uint32_t line) {
    if (sim_ptx_accept_dot(p, "branchtargets")) {
        parse_branch_targets(p, name, line);
    } else if (sim_ptx_accept_dot(p, "callprototype")) {
        ptx_symbol *s = sim_ptx_declare(p, name, PTX_SYMBOL_PROTOTYPE, line);
        s->count = skip_formals(p);
        sim_ptx_expect_name(p, "_");
        s->index = skip_formals(p);
        while (p->token.kind == PTX_TOKEN_DOT) sim_ptx_advance(p); /* .noreturn, .abi_preserve */
        sim_ptx_expect(p, ';', "after the prototype");
    } else if (sim_ptx_accept_dot(p, "calltargets")) {
        ptx_symbol *s = sim_ptx_declare(p, name, PTX_SYMBOL_PROTOTYPE, line);
        s->index = UINT32_MAX;
        do sim_ptx_expect_name(p, "a function");
        while (sim_ptx_accept(p, ','));
        sim_ptx_expect(p, ';', "after the functions");
    } else {
        sim_ptx_define_label(p, name, line);
    }
}

/* ---------------------------------------------------------------------------------------------------- statements -- */

static bool parse_debug(ptx_parser *p) {
    uint32_t line = p->token.line;
    if (sim_ptx_is_dot(p, "loc") || sim_ptx_is_dot(p, "file")) {
        sim_ptx_skip_line(p, line);
        return true;
    }
    if (sim_ptx_accept_dot(p, "pragma")) {
        do {
            if (p->token.kind != PTX_TOKEN_STRING) sim_ptx_error(p, line, ".pragma needs a string");
            sim_ptx_advance(p);
        } while (sim_ptx_accept(p, ','));
        sim_ptx_expect(p, ';', "after the pragma");
        return true;
    }
    if (sim_ptx_accept_dot(p, "section")) { /* DWARF */
        while (!sim_ptx_accept(p, '{')) {
            if (p->token.kind == PTX_TOKEN_END) sim_ptx_error(p, line, "the section has no { }");
            sim_ptx_advance(p);
        }
        while (!sim_ptx_accept(p, '}')) {
            if (p->token.kind == PTX_TOKEN_END) sim_ptx_error(p, line, "the section is not closed");
            sim_ptx_advance(p);
        }
        return true;
    }
    return false;
}

static void parse_directive(ptx_parser *p) {
    if (parse_debug(p)) return;
    uint32_t line = p->token.line;
    ptx_name name = p->token.name;
    sim_ptx_advance(p);
    if (sim_ptx_name_is(name, "reg"))
        sim_ptx_parse_registers(p);
    else if (sim_ptx_name_is(name, "local"))
        sim_ptx_parse_variable(p, PTX_LOCAL, false);
    else if (sim_ptx_name_is(name, "param"))
        sim_ptx_parse_variable(p, PTX_PARAM, false);
    else if (sim_ptx_name_is(name, "shared"))
        sim_ptx_parse_variable(p, PTX_SHARED, false);
    else if (sim_ptx_name_is(name, "global"))
        sim_ptx_parse_variable(p, PTX_GLOBAL, false);
    else if (sim_ptx_name_is(name, "const"))
        sim_ptx_parse_variable(p, PTX_CONST, false);
    else if (sim_ptx_name_is(name, "extern") && sim_ptx_accept_dot(p, "shared"))
        sim_ptx_parse_variable(p, PTX_SHARED, true);
    else
        sim_ptx_error(p, line, "unknown directive '.%.*s' in a function", NAME(name));
}

static void parse_statement(ptx_parser *p) {
    if (p->token.kind == PTX_TOKEN_DOT) {
        parse_directive(p);
        return;
    }
    if (sim_ptx_accept(p, ';')) return;
    ptx_source source = {.guard = UINT32_MAX};
    if (sim_ptx_is_sign(p, '@')) {
        parse_guard(p, &source);
        parse_instruction(p, &source);
        return;
    }
    if (p->token.kind != PTX_TOKEN_NAME)
        sim_ptx_error(p, p->token.line, "an instruction, a label or a directive is needed here");
    ptx_token name = p->token;
    const char *after = p->cursor;
    while (after < p->end && (*after == ' ' || *after == '\t')) after++;
    if (after < p->end && *after == ':') {
        sim_ptx_advance(p);
        sim_ptx_advance(p);
        parse_labelled(p, name.name, name.line);
        return;
    }
    parse_instruction(p, &source);
}

void sim_ptx_parse_body(ptx_parser *p) {
    sim_ptx_expect(p, '{', "to begin the function");
    uint32_t outer = p->scope_depth;
    for (;;) {
        if (p->token.kind == PTX_TOKEN_END) sim_ptx_error(p, p->token.line, "the function is not closed; add }");
        if (sim_ptx_accept(p, '{')) {
            sim_ptx_open_scope(p);
        } else if (sim_ptx_accept(p, '}')) {
            if (p->scope_depth == outer) return;
            sim_ptx_close_scope(p);
        } else {
            parse_statement(p);
        }
    }
}

/* ----------------------------------------------------------------------------------------------------- functions -- */

typedef struct formals {
    ptx_formal *items;
    uint32_t count;
} formals;

static formals parse_formals(ptx_parser *p, bool entry, uint32_t *place) {
    formals list = {0};
    size_t capacity = 0;
    if (!sim_ptx_accept(p, '(')) return list;
    if (sim_ptx_accept(p, ')')) return list;
    do {
        if (list.count == capacity) {
            capacity = capacity ? capacity * 2 : 8;
            if (capacity > MAX_FORMALS) sim_ptx_error(p, p->token.line, "more than %d parameters", MAX_FORMALS / 2);
            ptx_formal *grown = sim_ptx_keep(p, capacity * sizeof *grown);
            if (list.count) memcpy(grown, list.items, list.count * sizeof *grown);
            list.items = grown;
        }
        list.items[list.count++] = sim_ptx_parse_formal(p, entry, place);
    } while (sim_ptx_accept(p, ','));
    sim_ptx_expect(p, ')', "after the parameters");
    return list;
}

/* The function of this name, new or declared before. */
static uint32_t find_function(ptx_parser *p, ptx_name name, bool entry, uint32_t line) {
    ptx_symbol *s = sim_ptx_find(p, name);
    if (s) {
        if (s->kind != PTX_SYMBOL_FUNCTION || sim_ptx_function(p, s->index)->entry != entry)
            sim_ptx_error(p, line, "'%.*s' was declared as something else before", NAME(name));
        return s->index;
    }
    sim_module *module = p->module;
    sim_ptx_room(p, &module->functions, &p->function_capacity, module->function_count + 1, sizeof *module->functions);
    s = sim_ptx_declare(p, name, PTX_SYMBOL_FUNCTION, line);
    s->index = module->function_count++;
    module->functions[s->index] = (sim_function){.module = module,
                                                 .name = sim_ptx_keep_name(p, name),
                                                 .entry = entry,
                                                 .index = s->index,
                                                 .info.max_threads = PTX_MAX_THREADS};
    return s->index;
}

static void parse_three(ptx_parser *p, int out[3], const char *what) {
    out[0] = out[1] = out[2] = 1;
    for (unsigned i = 0; i < 3; i++) {
        out[i] = (int)sim_ptx_count(p, 1 << 20, what);
        if (!sim_ptx_accept(p, ',')) break;
    }
}

static void parse_tuning(ptx_parser *p, uint32_t index) {
    while (p->token.kind == PTX_TOKEN_DOT) {
        uint32_t line = p->token.line;
        if (parse_debug(p)) continue;
        ptx_name name = p->token.name;
        sim_ptx_advance(p);
        sim_function *f = sim_ptx_function(p, index);
        int three[3];
        if (sim_ptx_name_is(name, "maxntid")) {
            parse_three(p, three, ".maxntid");
            int64_t threads = (int64_t)three[0] * three[1] * three[2];
            if (threads < 1 || threads > PTX_MAX_THREADS)
                sim_ptx_error(p, line, ".maxntid of %lld threads is not 1 to %d", (long long)threads, PTX_MAX_THREADS);
            f->info.max_threads = (int)threads;
        } else if (sim_ptx_name_is(name, "reqntid")) {
            parse_three(p, three, ".reqntid");
            int64_t threads = (int64_t)three[0] * three[1] * three[2];
            if (threads < 1 || threads > PTX_MAX_THREADS)
                sim_ptx_error(p, line, ".reqntid of %lld threads is not 1 to %d", (long long)threads, PTX_MAX_THREADS);
            memcpy(f->info.required_threads, three, sizeof three);
            f->info.max_threads = (int)threads;
        } else if (sim_ptx_name_is(name, "maxnreg")) {
            f->max_registers = (int)sim_ptx_count(p, 255, ".maxnreg");
        } else if (sim_ptx_name_is(name, "minnctapersm") || sim_ptx_name_is(name, "maxnctapersm") ||
                   sim_ptx_name_is(name, "maxclusterrank") || sim_ptx_name_is(name, "abi_preserve") ||
                   sim_ptx_name_is(name, "abi_preserve_control")) {
            sim_ptx_count(p, 1 << 20, "the value");
        } else if (sim_ptx_name_is(name, "reqnctapercluster")) {
            parse_three(p, f->required_cluster, ".reqnctapercluster");
        } else if (!sim_ptx_name_is(name, "noreturn") && !sim_ptx_name_is(name, "explicitcluster") &&
                   !sim_ptx_name_is(name, "blocksareclusters")) {
            sim_ptx_error(p, line, "unknown directive '.%.*s' of a function", NAME(name));
        }
    }
}

static void emit_end(ptx_parser *p, bool entry) {
    sim_ptx_emit_unguarded(p, entry ? sim_ptx_exit : sim_ptx_ret)->b = p->function_index;
    sim_ptx_last_meta(p)->flow = PTX_FLOW_END;
}

static void define_function(ptx_parser *p, uint32_t index, uint32_t line, ptx_name name) {
    sim_function *f = sim_ptx_function(p, index);
    if (f->defined) sim_ptx_error(p, line, "'%.*s' is defined twice", NAME(name));
    f->defined = true;
    f->start = p->module->code_count;
    p->source_place = (uint32_t)(name.text - p->module->text);
    sim_ptx_emit_join(p); /* groups may begin here again: a call or a loop to the start */
    sim_ptx_parse_body(p);
    emit_end(p, sim_ptx_function(p, index)->entry);
    sim_ptx_close_scope(p);
    f = sim_ptx_function(p, index);
    f->end = p->module->code_count;
    f->local_bytes = (p->local_peak + 15) & ~15u;
    sim_ptx_assign_slots(p);
}

static void parse_function(ptx_parser *p, bool entry) {
    uint32_t line = p->token.line, place = 0;
    p->register_count = 0;
    p->local_bytes = p->local_peak = 0;
    p->carry = UINT32_MAX;
    formals results = {0};
    while (sim_ptx_accept_dot(p, "noreturn") || sim_ptx_accept_dot(p, "attribute"))
        if (sim_ptx_is_sign(p, '(')) skip_formals(p);
    uint32_t depth = p->scope_depth;
    p->function_index = 0;
    sim_ptx_open_scope(p);
    if (!entry) results = parse_formals(p, false, &place);
    ptx_name name = sim_ptx_expect_name(p, "the function's name");
    /* Declaring in the module's scope from inside the function's: step out for a moment. */
    p->scope_depth = depth;
    uint32_t index = find_function(p, name, entry, line);
    p->scope_depth = depth + 1;
    p->function_index = index;
    formals parameters = parse_formals(p, entry, &place);
    if (place > MAX_PARAMETER_BYTES)
        sim_ptx_error(p, line, "'%.*s' has %u bytes of parameters; at most %d are possible", NAME(name), place,
                      MAX_PARAMETER_BYTES);
    parse_tuning(p, index);
    sim_function *f = sim_ptx_function(p, index);
    if (!f->formals && !f->defined) {
        f->results = results.items;
        f->result_count = results.count;
        f->formals = parameters.items;
        f->formal_count = parameters.count;
    } else if (f->result_count != results.count || f->formal_count != parameters.count) {
        sim_ptx_error(p, line, "'%.*s' has %u results and %u parameters here but was declared with %u and %u",
                      NAME(name), results.count, parameters.count, f->result_count, f->formal_count);
    }
    if (sim_ptx_accept(p, ';')) {
        sim_ptx_close_scope(p);
    } else {
        f->results = results.items;
        f->formals = parameters.items;
        f->info.parameter_block_bytes = entry ? place : 0;
        define_function(p, index, line, name);
    }
    p->function_index = UINT32_MAX;
}

/* -------------------------------------------------------------------------------------------------------- module -- */

static void parse_version(ptx_parser *p) {
    uint32_t line = p->token.line;
    if (!sim_ptx_accept_dot(p, "version")) sim_ptx_error(p, line, "PTX text begins with .version");
    if (p->token.kind != PTX_TOKEN_FLOAT || p->token.bits)
        sim_ptx_error(p, line, ".version needs a number such as 8.0");
    double number = p->token.number;
    if (!(number >= 1.0 && number < 10.0))
        sim_ptx_stop(p, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, line,
                     ".version %.1f is not one of 1.0 to 9.9, which the simulator accepts", number);
    p->module->version = (int)lround(number * 10);
    sim_ptx_advance(p);
}

static void parse_architecture(ptx_parser *p, ptx_name name, uint32_t line) {
    int sm = 0;
    uint32_t i = 3;
    for (; i < name.bytes && name.text[i] >= '0' && name.text[i] <= '9' && sm < 1000; i++)
        sm = sm * 10 + name.text[i] - '0';
    char suffix = i < name.bytes ? name.text[i++] : '\0';
    if (sm < 10 || i != name.bytes || (suffix && suffix != 'a' && suffix != 'f'))
        sim_ptx_error(p, line, "unknown target '%.*s'; use sm_NN", NAME(name));
    bool runs = suffix == 'a'   ? sm == p->target_sm
                : suffix == 'f' ? sm <= p->target_sm && sm / 10 == p->target_sm / 10
                                : sm <= p->target_sm;
    if (!runs)
        sim_ptx_stop(p, CUDA_ERROR_NO_BINARY_FOR_GPU, line,
                     ".target %.*s does not run on this sm_%d device; compile for sm_%d or lower", NAME(name),
                     p->target_sm, p->target_sm);
    p->module->target = sm;
}

static void parse_target(ptx_parser *p) {
    uint32_t line = p->token.line;
    if (!sim_ptx_accept_dot(p, "target")) sim_ptx_error(p, line, ".target follows .version");
    bool seen = false;
    do {
        ptx_name name = sim_ptx_expect_name(p, "a target such as sm_80");
        if (name.bytes > 3 && memcmp(name.text, "sm_", 3) == 0) {
            parse_architecture(p, name, line);
            seen = true;
        } else if (!sim_ptx_name_is(name, "texmode_unified") && !sim_ptx_name_is(name, "texmode_independent") &&
                   !sim_ptx_name_is(name, "debug")) {
            sim_ptx_error(p, line, "unknown target option '%.*s'", NAME(name));
        }
    } while (sim_ptx_accept(p, ','));
    if (!seen) sim_ptx_error(p, line, ".target names no architecture; add sm_NN");
}

static void parse_address_size(ptx_parser *p) {
    uint32_t line = p->token.line;
    if (sim_ptx_count(p, 64, ".address_size") != 64)
        sim_ptx_error(p, line, "only .address_size 64 can be simulated; compile for 64-bit addresses");
}

static void parse_top(ptx_parser *p) {
    uint32_t line = p->token.line;
    if (p->token.kind == PTX_TOKEN_SIGN && p->token.sign == '@') { /* @@DWARF lines of old compilers */
        sim_ptx_skip_line(p, line);
        return;
    }
    if (sim_ptx_accept(p, ';')) return;
    if (p->token.kind != PTX_TOKEN_DOT) sim_ptx_error(p, line, "a directive is needed here, such as .visible .entry");
    if (parse_debug(p)) return;
    if (sim_ptx_accept_dot(p, "address_size")) {
        parse_address_size(p);
        return;
    }
    bool external = false;
    for (;;) {
        if (sim_ptx_accept_dot(p, "extern"))
            external = true;
        else if (!sim_ptx_accept_dot(p, "visible") && !sim_ptx_accept_dot(p, "weak") &&
                 !sim_ptx_accept_dot(p, "common"))
            break;
    }
    ptx_name name = p->token.name;
    if (p->token.kind != PTX_TOKEN_DOT) sim_ptx_error(p, p->token.line, "a directive is needed here, such as .entry");
    sim_ptx_advance(p);
    if (sim_ptx_name_is(name, "entry"))
        parse_function(p, true);
    else if (sim_ptx_name_is(name, "func"))
        parse_function(p, false);
    else if (sim_ptx_name_is(name, "global"))
        sim_ptx_parse_variable(p, PTX_GLOBAL, external);
    else if (sim_ptx_name_is(name, "const"))
        sim_ptx_parse_variable(p, PTX_CONST, external);
    else if (sim_ptx_name_is(name, "shared"))
        sim_ptx_parse_variable(p, PTX_SHARED, external);
    else
        sim_ptx_error(p, line,
                      "unknown directive '.%.*s'; the simulator knows .entry, .func, .global, .const and .shared",
                      NAME(name));
}

void sim_ptx_parse_module(ptx_parser *p) {
    p->line = 1;
    p->function_index = UINT32_MAX;
    sim_ptx_open_scope(p);
    sim_ptx_advance(p);
    parse_version(p);
    parse_target(p);
    while (p->token.kind != PTX_TOKEN_END) parse_top(p);
}
