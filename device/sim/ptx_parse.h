/* The PTX front end: text to a sim_module. Included by the parser and by the files that decode a family of
 * instructions.
 *
 * A parser lives for one sim_module_load, on one thread. The first error ends it: sim_ptx_error writes the log and
 * jumps back to sim_module_load. So nothing here may hold memory outside the two arenas (the module's, and the
 * parser's own, freed when the load ends), and no function returns a failure. */
#ifndef MUSTER_DEVICE_SIM_PTX_PARSE_H
#define MUSTER_DEVICE_SIM_PTX_PARSE_H

#include <setjmp.h>

#include "device/sim/ptx_internal.h"

/* ---------------------------------------------------------------------------------------------------------- text -- */

typedef struct ptx_name {
    const char *text;
    uint32_t bytes;
} ptx_name;

typedef enum ptx_token_kind {
    PTX_TOKEN_END,
    PTX_TOKEN_NAME, /* an identifier, possibly beginning with % or $ */
    PTX_TOKEN_DOT,  /* .name, without its dot */
    PTX_TOKEN_INTEGER,
    PTX_TOKEN_FLOAT,
    PTX_TOKEN_STRING, /* without its quotes */
    PTX_TOKEN_SIGN,   /* one character, in `sign` */
} ptx_token_kind;

typedef struct ptx_token {
    ptx_token_kind kind;
    char sign;
    bool is_unsigned; /* integers: U suffix or above INT64_MAX */
    uint8_t bits;     /* floats: 32 for 0f, 64 for 0d, 0 for decimal */
    ptx_name name;
    uint64_t integer;
    double number;
    uint32_t line;
} ptx_token;

/* ------------------------------------------------------------------------------------------------------- symbols -- */

typedef enum ptx_symbol_kind {
    PTX_SYMBOL_REGISTER,
    PTX_SYMBOL_RANGE,     /* %r<10>: names %r0 .. %r9 */
    PTX_SYMBOL_GLOBAL,    /* .global and .const: index of the module's variable */
    PTX_SYMBOL_SHARED,    /* index of the module's shared variable */
    PTX_SYMBOL_LOCAL,     /* offset in the function's local memory; also .param of functions and calls */
    PTX_SYMBOL_PARAMETER, /* offset in the kernel's parameter block */
    PTX_SYMBOL_FUNCTION,
    PTX_SYMBOL_LABEL,
    PTX_SYMBOL_TARGETS,   /* .branchtargets: list index */
    PTX_SYMBOL_PROTOTYPE, /* .callprototype or .calltargets: index of prototype */
} ptx_symbol_kind;

typedef struct ptx_symbol ptx_symbol;
struct ptx_symbol {
    ptx_symbol *next_hash, *next_scope;
    ptx_name name;
    ptx_symbol_kind kind;
    uint32_t hash, scope;
    ptx_type type;
    uint32_t index; /* by kind */
    uint32_t count; /* of a range; vector elements of a register, 0 for scalar ones */
    uint32_t bytes;
    uint32_t *registers; /* of a range: virtual register + 1, 0 until used */
    bool parameter;      /* LOCAL: declared .param */
};

/* A register before slots are assigned. */
typedef struct ptx_register {
    ptx_type type;
    uint8_t bits;   /* 1 (predicate), 8, 16, 32, 64, 128 */
    bool pinned;    /* formal parameter or result: keeps a slot of its own */
    uint32_t place; /* byte offset in the frame, once assigned */
} ptx_register;

/* -------------------------------------------------------------------------------------------------- instructions -- */

typedef enum ptx_operand_kind {
    PTX_OPERAND_REGISTER,
    PTX_OPERAND_INTEGER,
    PTX_OPERAND_FLOAT,
    PTX_OPERAND_SYMBOL,  /* symbol + integer */
    PTX_OPERAND_ADDRESS, /* [register/symbol/nothing + integer] */
    PTX_OPERAND_VECTOR,  /* elements */
    PTX_OPERAND_SPECIAL, /* special register `integer` */
    PTX_OPERAND_LABEL,   /* a name that is not declared (yet) */
    PTX_OPERAND_SINK,    /* _ */
    PTX_OPERAND_LIST,    /* (a, b, c) of a call */
} ptx_operand_kind;

typedef struct ptx_operand ptx_operand;
struct ptx_operand {
    ptx_operand_kind kind;
    bool negated;    /* !p */
    bool has_second; /* d|p */
    uint8_t bits;    /* of a float literal */
    uint32_t reg;    /* virtual register; for an address its base, UINT32_MAX: none */
    uint32_t second; /* virtual register, UINT32_MAX: _ */
    ptx_symbol *symbol;
    ptx_name name;
    int64_t integer;
    double number;
    ptx_operand *elements;
    uint32_t element_count;
};

enum { PTX_MAX_MODIFIERS = 16, PTX_MAX_OPERANDS = 8, PTX_MAX_ELEMENTS = 64 };

typedef struct ptx_modifier {
    ptx_name name;
    ptx_type type; /* PTX_NONE when it is not a type */
    bool taken;
} ptx_modifier;

/* One instruction as written. */
typedef struct ptx_source {
    ptx_name name; /* "add" */
    ptx_modifier modifiers[PTX_MAX_MODIFIERS];
    unsigned modifier_count;
    ptx_operand operands[PTX_MAX_OPERANDS];
    unsigned operand_count;
    uint32_t guard; /* virtual register, UINT32_MAX: none */
    bool guard_negated;
    uint32_t line;
    uint32_t parameter_bytes; /* of the entry being defined, else 0 */
} ptx_source;

typedef enum ptx_flow { PTX_FLOW_NEXT, PTX_FLOW_BRANCH, PTX_FLOW_TABLE, PTX_FLOW_END } ptx_flow;

/* What register allocation must know of an emitted instruction. */
typedef struct ptx_meta {
    uint32_t guard;        /* virtual register, UINT32_MAX: none */
    uint8_t uses, defines; /* bit per field d, a, b, c, e that holds a virtual register */
    uint8_t flow;
    uint32_t list; /* first entry in the module's lists: `list_defines` results, then `list_uses` sources */
    uint16_t list_defines, list_uses;
    uint32_t line, place;
} ptx_meta;

enum { PTX_D, PTX_A, PTX_B, PTX_C, PTX_E };

/* A place that waits for a label. */
typedef struct ptx_fixup {
    ptx_name label;
    uint32_t scope, line;
    bool in_list; /* lists[index], else code[index].e */
    uint32_t index;
} ptx_fixup;

/* The function refers to the module's shared variable. */
typedef struct ptx_shared_use {
    uint32_t function, variable;
} ptx_shared_use;

typedef struct ptx_call_edge {
    uint32_t caller, callee; /* callee UINT32_MAX: any function whose address is taken */
    uint32_t line;
} ptx_call_edge;

typedef struct ptx_parser {
    jmp_buf stop;
    CUresult code;
    char *log;
    size_t log_bytes;
    int target_sm;

    const char *cursor, *end;
    uint32_t line;
    ptx_token token; /* the next one */

    sim_module *module;
    ptx_chunk *arena; /* freed when the load ends */

    ptx_symbol **buckets;
    uint32_t bucket_count, symbol_count;
    uint32_t *scopes;       /* stack of scope numbers */
    uint32_t *scope_locals; /* local_bytes when it was opened: variables of closed scopes share memory */
    size_t scope_local_capacity;
    ptx_symbol **scope_symbols;
    uint32_t *scope_fixups;
    size_t scope_capacity, scope_symbol_capacity, scope_fixup_capacity;
    uint32_t scope_depth, next_scope;

    size_t code_capacity, meta_capacity, list_capacity, call_capacity, function_capacity, variable_capacity,
        shared_capacity, relocation_capacity, register_capacity, fixup_capacity, shared_use_capacity, pool_capacity;
    ptx_meta *meta; /* beside module->code */
    ptx_register *registers;
    uint32_t register_count;
    ptx_fixup *fixups;
    uint32_t fixup_count;
    ptx_shared_use *shared_uses;
    uint32_t shared_use_count;
    ptx_call_edge *call_edges;
    size_t call_edge_capacity;
    uint32_t call_edge_count;
    bool *external; /* by module variable: declared .extern and not defined yet */
    size_t external_capacity;
    uint32_t *pool_index; /* open addressing: offset in the pool + 1 */
    uint32_t pool_index_size, pool_entries;

    uint32_t function_index;          /* being defined; UINT32_MAX: none */
    uint32_t carry;                   /* the function's condition code register, UINT32_MAX until used */
    uint32_t local_bytes, local_peak; /* of the function: now, and the most over its scopes */
    const ptx_source *source;         /* being decoded, for messages */
    uint32_t source_place;
} ptx_parser;

/* Ends the load: "line N: text". `code` is CUDA_ERROR_INVALID_PTX unless said otherwise. */
_Noreturn void sim_ptx_error(ptx_parser *p, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void sim_ptx_stop(ptx_parser *p, CUresult code, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Memory of the parser's arena, or of the module's. Zeroed; never NULL. */
void *sim_ptx_scratch(ptx_parser *p, size_t bytes);
void *sim_ptx_keep(ptx_parser *p, size_t bytes);
char *sim_ptx_keep_name(ptx_parser *p, ptx_name name);
/* Room for one more element in a growing array outside the arenas (freed by sim_module_load). */
void sim_ptx_room(ptx_parser *p, void *array_pointer, size_t *capacity, size_t needed, size_t size);
bool sim_ptx_arena_add(ptx_chunk **arena, size_t bytes, void **out);
void sim_ptx_arena_free(ptx_chunk *arena);

/* Lexer: p->token is always the next token. */
void sim_ptx_advance(ptx_parser *p);
void sim_ptx_skip_line(ptx_parser *p, uint32_t line); /* drops every token of the line */
bool sim_ptx_is_sign(const ptx_parser *p, char sign);
bool sim_ptx_accept(ptx_parser *p, char sign);
void sim_ptx_expect(ptx_parser *p, char sign, const char *where);
bool sim_ptx_is_dot(const ptx_parser *p, const char *name);
bool sim_ptx_accept_dot(ptx_parser *p, const char *name);
bool sim_ptx_name_is(ptx_name name, const char *text);
bool sim_ptx_same_name(ptx_name a, ptx_name b);
ptx_name sim_ptx_expect_name(ptx_parser *p, const char *what);
/* A constant expression; `number` is set instead when the expression is a floating-point literal. */
typedef struct ptx_constant {
    bool is_float;
    uint8_t bits;
    int64_t integer;
    double number;
} ptx_constant;
ptx_constant sim_ptx_constant(ptx_parser *p);
uint32_t sim_ptx_count(ptx_parser *p, uint32_t limit, const char *what); /* an integer 0..limit */

/* Types. */
ptx_type sim_ptx_type(ptx_name name); /* PTX_NONE when it is not one */
unsigned sim_ptx_type_bits(ptx_type type);
const char *sim_ptx_type_name(ptx_type type);
static inline bool ptx_is_float(ptx_type t) { return t >= PTX_F16 && t <= PTX_F64; }
static inline bool ptx_is_signed(ptx_type t) { return t >= PTX_S8 && t <= PTX_S64; }
static inline bool ptx_is_unsigned(ptx_type t) { return t >= PTX_U8 && t <= PTX_U64; }
static inline bool ptx_is_bits(ptx_type t) { return t >= PTX_B8 && t <= PTX_B128; }
static inline bool ptx_is_integer(ptx_type t) { return t >= PTX_U8 && t <= PTX_S64; }

/* Symbols and scopes. */
void sim_ptx_open_scope(ptx_parser *p);
void sim_ptx_close_scope(ptx_parser *p);
ptx_symbol *sim_ptx_declare(ptx_parser *p, ptx_name name, ptx_symbol_kind kind, uint32_t line);
ptx_symbol *sim_ptx_find(ptx_parser *p, ptx_name name); /* not through ranges; NULL when unknown */
/* The register of this name; false when it is none. *vector receives its elements (0: scalar). */
bool sim_ptx_find_register(ptx_parser *p, ptx_name name, uint32_t *reg, uint32_t *vector);
uint32_t sim_ptx_new_register(ptx_parser *p, ptx_type type);
/* A label here, for branches that were or will be written. Emits a join. */
void sim_ptx_define_label(ptx_parser *p, ptx_name name, uint32_t line);
void sim_ptx_reference_label(ptx_parser *p, ptx_name name, bool in_list, uint32_t index);

/* Operands of the instruction being decoded. Each checks the operand against the type, and ends the load otherwise. */
ptx_operand sim_ptx_parse_operand(ptx_parser *p);
ptx_operand sim_ptx_parse_list(ptx_parser *p); /* after its ( */
/* A source of `type`: a virtual register or a pool constant. May emit instructions that compute it. */
uint32_t sim_ptx_value(ptx_parser *p, const ptx_operand *o, ptx_type type);
/* The same with the relaxed rule of ld, st and cvt: the register may be wider; the result is as wide as `type`. */
uint32_t sim_ptx_relaxed_value(ptx_parser *p, const ptx_operand *o, ptx_type type);
uint32_t sim_ptx_destination(ptx_parser *p, const ptx_operand *o, ptx_type type);
/* Bits of the register an operand names, or 0 when it is none. */
unsigned sim_ptx_operand_bits(const ptx_parser *p, const ptx_operand *o);
uint32_t sim_ptx_constant32(ptx_parser *p, uint32_t value);
uint32_t sim_ptx_constant64(ptx_parser *p, uint64_t value);
uint32_t sim_ptx_predicate(ptx_parser *p, const ptx_operand *o); /* a predicate source, negation resolved */
int64_t sim_ptx_immediate(ptx_parser *p, const ptx_operand *o, int64_t low, int64_t high, const char *what);

/* Emitting. The guard of the instruction being decoded applies, except to what sim_ptx_value emits. */
ptx_ins *sim_ptx_emit(ptx_parser *p, ptx_handler *run); /* valid until the next emit */
ptx_ins *sim_ptx_emit_unguarded(ptx_parser *p, ptx_handler *run);
ptx_meta *sim_ptx_last_meta(ptx_parser *p);
void sim_ptx_use(ptx_parser *p, int field, uint32_t value);    /* field of the last instruction := source */
void sim_ptx_define(ptx_parser *p, int field, uint32_t value); /* field of the last instruction := destination */
/* Lists of operands: begin, add results, add sources, add plain numbers; belongs to the last emitted instruction. */
uint32_t sim_ptx_list_begin(ptx_parser *p);
void sim_ptx_list_define(ptx_parser *p, uint32_t value);
void sim_ptx_list_use(ptx_parser *p, uint32_t value);
void sim_ptx_list_number(ptx_parser *p, uint32_t value);
/* d, a, b, c with these types (PTX_NONE: absent), checking the number of operands. */
ptx_ins *sim_ptx_emit_plain(ptx_parser *p, ptx_source *s, ptx_handler *run, ptx_type d, ptx_type a, ptx_type b,
                            ptx_type c);
void sim_ptx_emit_join(ptx_parser *p);
/* The address operand: sets a, e and the space bits of flags of an instruction still to be emitted. */
typedef struct ptx_address {
    uint32_t base; /* virtual register or pool constant */
    bool direct, wide;
    int32_t offset;
    ptx_space space;
} ptx_address;
ptx_address sim_ptx_address(ptx_parser *p, const ptx_operand *o, ptx_space space, bool parameter_space);

/* Modifiers. take: true when present; each may be taken once. */
bool sim_ptx_take(ptx_source *s, const char *name);
ptx_type sim_ptx_take_type(ptx_source *s); /* the next type among the modifiers, PTX_NONE when there is none */
ptx_type sim_ptx_peek_type(const ptx_source *s);
void sim_ptx_expect_operands(ptx_parser *p, const ptx_source *s, unsigned low, unsigned high);
_Noreturn void sim_ptx_bad_type(ptx_parser *p, const ptx_source *s, ptx_type type);

/* State space, cache operators and scope, as memory instructions have them. */
bool sim_ptx_take_space(ptx_parser *p, ptx_source *s, ptx_space *space, bool *parameter);
bool sim_ptx_take_cache(ptx_source *s); /* true: a cache policy operand follows */
bool sim_ptx_take_scope(ptx_source *s);
uint16_t sim_ptx_address_flags(const ptx_address *address);

/* Families. A decoder returns false when the instruction's types are not of its family, before it took anything. */
typedef bool ptx_decoder(ptx_parser *p, ptx_source *s);
typedef struct ptx_mnemonic {
    const char *name;
    ptx_decoder *decode;
} ptx_mnemonic;
extern const ptx_mnemonic sim_ptx_integer_mnemonics[], sim_ptx_bits_mnemonics[], sim_ptx_float_mnemonics[],
    sim_ptx_convert_mnemonics[], sim_ptx_compare_mnemonics[], sim_ptx_move_mnemonics[], sim_ptx_memory_mnemonics[],
    sim_ptx_atomic_mnemonics[], sim_ptx_warp_mnemonics[], sim_ptx_barrier_mnemonics[], sim_ptx_control_mnemonics[];
void sim_ptx_decode(ptx_parser *p, ptx_source *s);

/* Module and function level. */
void sim_ptx_parse_module(ptx_parser *p);
void sim_ptx_parse_body(ptx_parser *p);                                     /* { ... } of p->function */
void sim_ptx_parse_variable(ptx_parser *p, ptx_space space, bool external); /* after its space directive */
/* One formal of a function, up to its , or ). */
ptx_formal sim_ptx_parse_formal(ptx_parser *p, bool entry, uint32_t *place);
void sim_ptx_parse_registers(ptx_parser *p); /* after .reg */
uint32_t sim_ptx_prototype(ptx_parser *p);   /* of an indirect call, after its directive: number of its results */
sim_function *sim_ptx_function(ptx_parser *p, uint32_t index); /* valid until a function is added */
void sim_ptx_note_shared(ptx_parser *p, uint32_t variable);    /* the current function uses it */
/* Slots, liveness and the register estimate of the function just parsed. */
void sim_ptx_assign_slots(ptx_parser *p);
/* Shared layouts, stack depths, relocations' targets: once the whole text is parsed. */
void sim_ptx_finish_module(ptx_parser *p);

/* Special registers. */
int sim_ptx_special(ptx_name name, ptx_name component); /* number, or -1 */
ptx_type sim_ptx_special_type(int special);
/* `guarded`: under the guard of the instruction being decoded. */
void sim_ptx_emit_special(ptx_parser *p, uint32_t destination, int special, bool guarded);

#endif
