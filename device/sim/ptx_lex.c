/* PTX text to tokens; constant expressions; the parser's memory and its one way to fail. */
#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "device/sim/ptx_parse.h"

/* -------------------------------------------------------------------------------------------------------- errors -- */

static _Noreturn void stop(ptx_parser *p, CUresult code, uint32_t line, const char *format, va_list arguments) {
    if (p->log && p->log_bytes) {
        int used = snprintf(p->log, p->log_bytes, "line %u: ", line);
        if (used > 0 && (size_t)used < p->log_bytes)
            vsnprintf(p->log + used, p->log_bytes - (size_t)used, format, arguments);
    }
    p->code = code;
    longjmp(p->stop, 1);
}

void sim_ptx_error(ptx_parser *p, uint32_t line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    stop(p, CUDA_ERROR_INVALID_PTX, line, format, arguments);
}

void sim_ptx_stop(ptx_parser *p, CUresult code, uint32_t line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    stop(p, code, line, format, arguments);
}

static _Noreturn void out_of_memory(ptx_parser *p, size_t bytes) {
    sim_ptx_stop(p, CUDA_ERROR_OUT_OF_MEMORY, p->line, "out of host memory for %zu bytes of the module", bytes);
}

/* -------------------------------------------------------------------------------------------------------- arenas -- */

enum { CHUNK_BYTES = 64 << 10 };

struct ptx_chunk {
    ptx_chunk *next;
    size_t used, bytes;
    _Alignas(16) unsigned char data[];
};

bool sim_ptx_arena_add(ptx_chunk **arena, size_t bytes, void **out) {
    if (bytes > (size_t)1 << 40) return false;
    bytes = (bytes + 15) & ~(size_t)15;
    ptx_chunk *chunk = *arena;
    if (!chunk || chunk->bytes - chunk->used < bytes) {
        size_t room = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        chunk = mu_alloc_zeroed(1, sizeof *chunk + room);
        if (!chunk) return false;
        chunk->bytes = room;
        if (*arena && bytes > CHUNK_BYTES) { /* keep filling the current chunk */
            chunk->next = (*arena)->next;
            (*arena)->next = chunk;
        } else {
            chunk->next = *arena;
            *arena = chunk;
        }
    }
    *out = chunk->data + chunk->used;
    chunk->used += bytes;
    return true;
}

void sim_ptx_arena_free(ptx_chunk *arena) {
    while (arena) {
        ptx_chunk *next = arena->next;
        mu_free(arena);
        arena = next;
    }
}

void *sim_ptx_scratch(ptx_parser *p, size_t bytes) {
    void *memory;
    if (!sim_ptx_arena_add(&p->arena, bytes, &memory)) out_of_memory(p, bytes);
    return memory;
}

void *sim_ptx_keep(ptx_parser *p, size_t bytes) {
    void *memory;
    if (!sim_ptx_arena_add(&p->module->arena, bytes, &memory)) out_of_memory(p, bytes);
    return memory;
}

char *sim_ptx_keep_name(ptx_parser *p, ptx_name name) {
    char *copy = sim_ptx_keep(p, (size_t)name.bytes + 1);
    memcpy(copy, name.text, name.bytes);
    return copy;
}

void sim_ptx_room(ptx_parser *p, void *array_pointer, size_t *capacity, size_t needed, size_t size) {
    if (needed <= *capacity) return;
    if (!mu_grow(array_pointer, capacity, needed, size)) out_of_memory(p, needed * size);
}

/* --------------------------------------------------------------------------------------------------------- lexer -- */

static bool name_begins(char c) { return isalpha((unsigned char)c) || c == '_' || c == '$' || c == '%'; }
static bool name_goes_on(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$'; }

static char look(const ptx_parser *p, size_t ahead) {
    return (size_t)(p->end - p->cursor) > ahead ? p->cursor[ahead] : '\0';
}

static void skip_space(ptx_parser *p) {
    while (p->cursor < p->end) {
        char c = *p->cursor;
        if (c == '\n') {
            p->line++;
            p->cursor++;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
            p->cursor++;
        } else if (c == '/' && look(p, 1) == '/') {
            while (p->cursor < p->end && *p->cursor != '\n') p->cursor++;
        } else if (c == '/' && look(p, 1) == '*') {
            uint32_t line = p->line;
            p->cursor += 2;
            while (p->cursor < p->end && !(*p->cursor == '*' && look(p, 1) == '/')) {
                if (*p->cursor == '\n') p->line++;
                p->cursor++;
            }
            if (p->cursor >= p->end) sim_ptx_error(p, line, "the comment is not closed; add */");
            p->cursor += 2;
        } else {
            return;
        }
    }
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return 99;
}

static void lex_float_bits(ptx_parser *p, ptx_token *t) {
    unsigned digits = look(p, 1) == 'f' || look(p, 1) == 'F' ? 8 : 16;
    const char *begin = p->cursor;
    p->cursor += 2;
    uint64_t bits = 0;
    unsigned count = 0;
    for (; count < digits && digit_value(look(p, 0)) < 16; count++)
        bits = bits << 4 | (unsigned)digit_value(*p->cursor++);
    if (count != digits || name_goes_on(look(p, 0)))
        sim_ptx_error(p, p->line, "'%.*s' needs exactly %u hexadecimal digits", (int)(p->cursor - begin), begin,
                      digits);
    t->kind = PTX_TOKEN_FLOAT;
    t->bits = digits == 8 ? 32 : 64;
    t->integer = bits;
    if (digits == 8) {
        uint32_t low = (uint32_t)bits;
        float single;
        memcpy(&single, &low, sizeof single);
        t->number = (double)single;
    } else {
        memcpy(&t->number, &bits, sizeof t->number);
    }
}

/* PTX has points, whatever the application's locale has. */
static double read_decimal(const char *text) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double number = plain ? strtod_l(text, NULL, plain) : strtod(text, NULL);
    if (plain) freelocale(plain);
    return number;
}

static void lex_decimal_float(ptx_parser *p, ptx_token *t, const char *begin, const char *end) {
    char copy[512];
    size_t bytes = (size_t)(end - begin);
    if (bytes >= sizeof copy) sim_ptx_error(p, p->line, "a number of %zu characters is too long", bytes);
    memcpy(copy, begin, bytes);
    copy[bytes] = '\0';
    t->kind = PTX_TOKEN_FLOAT;
    t->number = read_decimal(copy);
    t->bits = 0;
    p->cursor = end;
}

static void lex_number(ptx_parser *p, ptx_token *t) {
    char second = look(p, 1);
    if (look(p, 0) == '0' && (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
        lex_float_bits(p, t);
        return;
    }
    const char *begin = p->cursor, *scan = begin;
    while (scan < p->end && isdigit((unsigned char)*scan)) scan++;
    bool fraction = scan + 1 < p->end && *scan == '.' && isdigit((unsigned char)scan[1]);
    bool bare_point = scan < p->end && *scan == '.' && !(scan + 1 < p->end && (name_begins(scan[1])));
    bool exponent = scan + 1 < p->end && (*scan == 'e' || *scan == 'E') &&
                    (isdigit((unsigned char)scan[1]) || scan[1] == '-' || scan[1] == '+');
    if (fraction || bare_point || exponent) {
        if (*scan == '.') scan++;
        while (scan < p->end && isdigit((unsigned char)*scan)) scan++;
        if (scan < p->end && (*scan == 'e' || *scan == 'E')) {
            const char *power = scan + 1;
            if (power < p->end && (*power == '-' || *power == '+')) power++;
            if (power < p->end && isdigit((unsigned char)*power)) {
                while (power < p->end && isdigit((unsigned char)*power)) power++;
                scan = power;
            }
        }
        lex_decimal_float(p, t, begin, scan);
        return;
    }
    int base = 10;
    if (look(p, 0) == '0' && (second == 'x' || second == 'X')) {
        base = 16;
        p->cursor += 2;
    } else if (look(p, 0) == '0' && (second == 'b' || second == 'B')) {
        base = 2;
        p->cursor += 2;
    } else if (look(p, 0) == '0') {
        base = 8;
    }
    unsigned __int128 value = 0;
    const char *digits = p->cursor;
    while (digit_value(look(p, 0)) < base) {
        value = value * (unsigned)base + (unsigned)digit_value(*p->cursor++);
        if (value > UINT64_MAX) sim_ptx_error(p, p->line, "the integer does not fit in 64 bits");
    }
    if (p->cursor == digits) sim_ptx_error(p, p->line, "'%.*s' has no digits", (int)(p->cursor - begin), begin);
    t->kind = PTX_TOKEN_INTEGER;
    t->integer = (uint64_t)value;
    t->is_unsigned = value > INT64_MAX;
    if (look(p, 0) == 'U' || look(p, 0) == 'u') {
        t->is_unsigned = true;
        p->cursor++;
    }
    if (name_goes_on(look(p, 0)))
        sim_ptx_error(p, p->line, "'%.*s' is not a number", (int)(p->cursor - begin) + 1, begin);
}

void sim_ptx_advance(ptx_parser *p) {
    skip_space(p);
    ptx_token t = {.line = p->line};
    if (p->cursor >= p->end) {
        p->token = t;
        return;
    }
    char c = *p->cursor;
    const char *begin = p->cursor;
    bool remainder = c == '%' && !name_begins(look(p, 1)); /* an operator, not a register */
    if (name_begins(c) && !remainder) {
        do p->cursor++;
        while (name_goes_on(look(p, 0)));
        t.kind = PTX_TOKEN_NAME;
        t.name = (ptx_name){begin, (uint32_t)(p->cursor - begin)};
    } else if (c == '.' && (name_goes_on(look(p, 1)))) {
        p->cursor++;
        while (name_goes_on(look(p, 0)) || (look(p, 0) == ':' && look(p, 1) == ':' && name_goes_on(look(p, 2)))) {
            if (*p->cursor == ':') p->cursor++;
            p->cursor++;
        }
        t.kind = PTX_TOKEN_DOT;
        t.name = (ptx_name){begin + 1, (uint32_t)(p->cursor - begin - 1)};
    } else if (isdigit((unsigned char)c)) {
        lex_number(p, &t);
    } else if (c == '"') {
        p->cursor++;
        while (p->cursor < p->end && *p->cursor != '"' && *p->cursor != '\n') p->cursor++;
        if (look(p, 0) != '"') sim_ptx_error(p, p->line, "the string is not closed; add \"");
        t.kind = PTX_TOKEN_STRING;
        t.name = (ptx_name){begin + 1, (uint32_t)(p->cursor - begin - 1)};
        p->cursor++;
    } else {
        if (!strchr(",;:{}()[]<>@!|+-*/%&^~?=", c))
            sim_ptx_error(p, p->line, "unexpected character '%c' (0x%02x)", isprint((unsigned char)c) ? c : '?',
                          (unsigned)(unsigned char)c);
        t.kind = PTX_TOKEN_SIGN;
        t.sign = c;
        t.name = (ptx_name){begin, 1};
        p->cursor++;
    }
    p->token = t;
}

void sim_ptx_skip_line(ptx_parser *p, uint32_t line) {
    while (p->token.kind != PTX_TOKEN_END && p->token.line == line) {
        /* The rest of a debug line may hold anything, so characters are skipped, not tokens. */
        while (p->cursor < p->end && *p->cursor != '\n' && p->line == line) p->cursor++;
        sim_ptx_advance(p);
    }
}

bool sim_ptx_is_sign(const ptx_parser *p, char sign) {
    return p->token.kind == PTX_TOKEN_SIGN && p->token.sign == sign;
}

bool sim_ptx_accept(ptx_parser *p, char sign) {
    if (!sim_ptx_is_sign(p, sign)) return false;
    sim_ptx_advance(p);
    return true;
}

static _Noreturn void unexpected(ptx_parser *p, const char *wanted, const char *where) {
    if (p->token.kind == PTX_TOKEN_END)
        sim_ptx_error(p, p->token.line, "the text ends where %s was expected %s", wanted, where);
    if (p->token.kind == PTX_TOKEN_INTEGER || p->token.kind == PTX_TOKEN_FLOAT)
        sim_ptx_error(p, p->token.line, "a number stands where %s was expected %s", wanted, where);
    sim_ptx_error(p, p->token.line, "'%s%.*s' stands where %s was expected %s",
                  p->token.kind == PTX_TOKEN_DOT ? "." : "", (int)(p->token.name.bytes > 64 ? 64 : p->token.name.bytes),
                  p->token.name.text, wanted, where);
}

void sim_ptx_expect(ptx_parser *p, char sign, const char *where) {
    if (!sim_ptx_accept(p, sign)) unexpected(p, (char[]){'\'', sign, '\'', '\0'}, where);
}

bool sim_ptx_name_is(ptx_name name, const char *text) {
    return strlen(text) == name.bytes && memcmp(text, name.text, name.bytes) == 0;
}

bool sim_ptx_same_name(ptx_name a, ptx_name b) { return a.bytes == b.bytes && memcmp(a.text, b.text, a.bytes) == 0; }

bool sim_ptx_is_dot(const ptx_parser *p, const char *name) {
    return p->token.kind == PTX_TOKEN_DOT && sim_ptx_name_is(p->token.name, name);
}

bool sim_ptx_accept_dot(ptx_parser *p, const char *name) {
    if (!sim_ptx_is_dot(p, name)) return false;
    sim_ptx_advance(p);
    return true;
}

ptx_name sim_ptx_expect_name(ptx_parser *p, const char *what) {
    if (p->token.kind != PTX_TOKEN_NAME) unexpected(p, what, "here");
    ptx_name name = p->token.name;
    sim_ptx_advance(p);
    return name;
}

/* ------------------------------------------------------------------------------------------ constant expressions -- */

enum { MAX_NESTING = 64 };

static ptx_constant ternary(ptx_parser *p, unsigned depth);

static ptx_constant primary(ptx_parser *p, unsigned depth) {
    if (depth > MAX_NESTING) sim_ptx_error(p, p->token.line, "the expression nests deeper than %d", MAX_NESTING);
    ptx_token t = p->token;
    if (t.kind == PTX_TOKEN_INTEGER) {
        sim_ptx_advance(p);
        return (ptx_constant){.integer = (int64_t)t.integer};
    }
    if (t.kind == PTX_TOKEN_FLOAT) {
        sim_ptx_advance(p);
        return (ptx_constant){.is_float = true, .bits = t.bits, .number = t.number, .integer = (int64_t)t.integer};
    }
    if (t.kind == PTX_TOKEN_NAME && sim_ptx_name_is(t.name, "WARP_SZ")) {
        sim_ptx_advance(p);
        return (ptx_constant){.integer = PTX_LANES};
    }
    if (sim_ptx_accept(p, '(')) {
        if (sim_ptx_is_dot(p, "s64") || sim_ptx_is_dot(p, "u64")) { /* a cast changes nothing that we keep */
            sim_ptx_advance(p);
            sim_ptx_expect(p, ')', "after the cast");
            return primary(p, depth + 1);
        }
        ptx_constant inner = ternary(p, depth + 1);
        sim_ptx_expect(p, ')', "to close the expression");
        return inner;
    }
    if (sim_ptx_accept(p, '-')) {
        ptx_constant inner = primary(p, depth + 1);
        inner.number = -inner.number;
        if (!inner.is_float) inner.integer = (int64_t)(0 - (uint64_t)inner.integer);
        if (inner.is_float) inner.bits = 0;
        return inner;
    }
    if (sim_ptx_accept(p, '+')) return primary(p, depth + 1);
    if (sim_ptx_accept(p, '~')) {
        ptx_constant inner = primary(p, depth + 1);
        if (inner.is_float) sim_ptx_error(p, t.line, "~ needs an integer");
        inner.integer = ~inner.integer;
        return inner;
    }
    if (sim_ptx_accept(p, '!')) {
        ptx_constant inner = primary(p, depth + 1);
        if (inner.is_float) sim_ptx_error(p, t.line, "! needs an integer");
        inner.integer = !inner.integer;
        return inner;
    }
    unexpected(p, "a constant", "here");
}

/* The operator at the cursor and its precedence; 0 when there is none. Two-character operators use upper case. */
static int binary_operator(const ptx_parser *p, char *op, unsigned *characters) {
    if (p->token.kind != PTX_TOKEN_SIGN) return 0;
    char a = p->token.sign, b = look(p, 0);
    *characters = 1;
    *op = a;
    switch (a) {
        case '*':
        case '/':
        case '%': return 10;
        case '+':
        case '-': return 9;
        case '<':
            if (b == '<') return *op = 'L', *characters = 2, 8;
            if (b == '=') return *op = 'l', *characters = 2, 7;
            return 7;
        case '>':
            if (b == '>') return *op = 'R', *characters = 2, 8;
            if (b == '=') return *op = 'g', *characters = 2, 7;
            return 7;
        case '=': return b == '=' ? (*op = 'E', *characters = 2, 6) : 0;
        case '!': return b == '=' ? (*op = 'N', *characters = 2, 6) : 0;
        case '&': return b == '&' ? (*op = 'A', *characters = 2, 2) : 5;
        case '^': return 4;
        case '|': return b == '|' ? (*op = 'O', *characters = 2, 1) : 3;
        default: return 0;
    }
}

static int64_t apply(ptx_parser *p, char op, int64_t a, int64_t b, uint32_t line) {
    uint64_t ua = (uint64_t)a, ub = (uint64_t)b;
    switch (op) {
        case '*': return (int64_t)(ua * ub);
        case '+': return (int64_t)(ua + ub);
        case '-': return (int64_t)(ua - ub);
        case '/':
        case '%':
            if (b == 0) sim_ptx_error(p, line, "the constant expression divides by zero");
            if (b == -1) return op == '/' ? (int64_t)(0 - ua) : 0;
            return op == '/' ? a / b : a % b;
        case 'L': return ub < 64 ? (int64_t)(ua << ub) : 0;
        case 'R': return ub < 64 ? a >> ub : (a < 0 ? -1 : 0);
        case '<': return a < b;
        case '>': return a > b;
        case 'l': return a <= b;
        case 'g': return a >= b;
        case 'E': return a == b;
        case 'N': return a != b;
        case '&': return a & b;
        case '^': return a ^ b;
        case '|': return a | b;
        case 'A': return a && b;
        default: return a || b;
    }
}

static ptx_constant binary(ptx_parser *p, int lowest, unsigned depth) {
    ptx_constant left = primary(p, depth);
    char op;
    unsigned characters;
    int precedence;
    while ((precedence = binary_operator(p, &op, &characters)) >= lowest && precedence > 0) {
        uint32_t line = p->token.line;
        while (characters--) sim_ptx_advance(p);
        ptx_constant right = binary(p, precedence + 1, depth + 1);
        if (left.is_float || right.is_float) sim_ptx_error(p, line, "constant expressions combine integers only");
        left.integer = apply(p, op, left.integer, right.integer, line);
    }
    return left;
}

static ptx_constant ternary(ptx_parser *p, unsigned depth) {
    ptx_constant condition = binary(p, 1, depth);
    if (!sim_ptx_accept(p, '?')) return condition;
    ptx_constant yes = ternary(p, depth + 1);
    sim_ptx_expect(p, ':', "in the conditional expression");
    ptx_constant no = ternary(p, depth + 1);
    return condition.integer ? yes : no;
}

ptx_constant sim_ptx_constant(ptx_parser *p) { return ternary(p, 0); }

uint32_t sim_ptx_count(ptx_parser *p, uint32_t limit, const char *what) {
    uint32_t line = p->token.line;
    ptx_constant value = sim_ptx_constant(p);
    if (value.is_float || value.integer < 0 || value.integer > (int64_t)limit)
        sim_ptx_error(p, line, "%s must be an integer from 0 to %u", what, limit);
    return (uint32_t)value.integer;
}

/* --------------------------------------------------------------------------------------------------------- types -- */

static const struct {
    const char *name;
    uint8_t bits;
} types[PTX_TYPES] = {
    [PTX_NONE] = {"", 0},      [PTX_U8] = {"u8", 8},          [PTX_U16] = {"u16", 16},     [PTX_U32] = {"u32", 32},
    [PTX_U64] = {"u64", 64},   [PTX_S8] = {"s8", 8},          [PTX_S16] = {"s16", 16},     [PTX_S32] = {"s32", 32},
    [PTX_S64] = {"s64", 64},   [PTX_B8] = {"b8", 8},          [PTX_B16] = {"b16", 16},     [PTX_B32] = {"b32", 32},
    [PTX_B64] = {"b64", 64},   [PTX_B128] = {"b128", 128},    [PTX_F16] = {"f16", 16},     [PTX_F16X2] = {"f16x2", 32},
    [PTX_BF16] = {"bf16", 16}, [PTX_BF16X2] = {"bf16x2", 32}, [PTX_F32] = {"f32", 32},     [PTX_F64] = {"f64", 64},
    [PTX_PRED] = {"pred", 1},  [PTX_U16X2] = {"u16x2", 32},   [PTX_S16X2] = {"s16x2", 32},
};

ptx_type sim_ptx_type(ptx_name name) {
    for (ptx_type t = PTX_U8; t < PTX_TYPES; t++)
        if (sim_ptx_name_is(name, types[t].name)) return t;
    return PTX_NONE;
}

unsigned sim_ptx_type_bits(ptx_type type) { return types[type].bits; }
const char *sim_ptx_type_name(ptx_type type) { return types[type].name; }
