/* Names and their scopes, virtual registers, labels. */
#include <string.h>

#include "base/alloc.h"
#include "device/sim/ptx_parse.h"

static uint32_t hash_name(ptx_name name) {
    uint32_t hash = 2166136261u;
    for (uint32_t i = 0; i < name.bytes; i++) hash = (hash ^ (unsigned char)name.text[i]) * 16777619u;
    return hash ^ hash >> 15;
}

static void rehash(ptx_parser *p) {
    uint32_t count = p->bucket_count ? p->bucket_count * 4 : 256;
    ptx_symbol **buckets = sim_ptx_scratch(p, count * sizeof *buckets);
    /* Chains are newest first; walking each old chain backwards keeps that order. */
    for (uint32_t b = 0; b < p->bucket_count; b++) {
        ptx_symbol *reversed = NULL;
        for (ptx_symbol *s = p->buckets[b], *next; s; s = next) {
            next = s->next_hash;
            s->next_hash = reversed;
            reversed = s;
        }
        for (ptx_symbol *s = reversed, *next; s; s = next) {
            next = s->next_hash;
            s->next_hash = buckets[s->hash & (count - 1)];
            buckets[s->hash & (count - 1)] = s;
        }
    }
    p->buckets = buckets;
    p->bucket_count = count;
}

void sim_ptx_open_scope(ptx_parser *p) {
    if (p->scope_depth >= 1000) sim_ptx_error(p, p->line, "blocks nest deeper than 1000");
    sim_ptx_room(p, &p->scopes, &p->scope_capacity, p->scope_depth + 1, sizeof *p->scopes);
    sim_ptx_room(p, &p->scope_symbols, &p->scope_symbol_capacity, p->scope_depth + 1, sizeof *p->scope_symbols);
    sim_ptx_room(p, &p->scope_fixups, &p->scope_fixup_capacity, p->scope_depth + 1, sizeof *p->scope_fixups);
    sim_ptx_room(p, &p->scope_locals, &p->scope_local_capacity, p->scope_depth + 1, sizeof *p->scope_locals);
    p->scopes[p->scope_depth] = p->next_scope++;
    p->scope_locals[p->scope_depth] = p->local_bytes;
    p->scope_symbols[p->scope_depth] = NULL;
    p->scope_fixups[p->scope_depth] = p->fixup_count;
    p->scope_depth++;
}

static ptx_symbol *find_in(ptx_parser *p, ptx_name name, uint32_t scope, bool any_scope) {
    if (!p->bucket_count) return NULL;
    uint32_t hash = hash_name(name);
    for (ptx_symbol *s = p->buckets[hash & (p->bucket_count - 1)]; s; s = s->next_hash)
        if (s->hash == hash && (any_scope ? s->kind != PTX_SYMBOL_LABEL : s->scope == scope) &&
            sim_ptx_same_name(s->name, name))
            return s;
    return NULL;
}

ptx_symbol *sim_ptx_find(ptx_parser *p, ptx_name name) { return find_in(p, name, 0, true); }

/* Labels that were referenced in the scope: those it defines are known now, the others belong further out. */
static void resolve_labels(ptx_parser *p, uint32_t depth) {
    uint32_t scope = p->scopes[depth], kept = p->scope_fixups[depth];
    for (uint32_t i = kept; i < p->fixup_count; i++) {
        ptx_fixup fixup = p->fixups[i];
        ptx_symbol *label = find_in(p, fixup.label, scope, false);
        if (label && label->kind == PTX_SYMBOL_LABEL) {
            if (fixup.in_list)
                p->module->lists[fixup.index] = label->index;
            else
                p->module->code[fixup.index].e = label->index;
            continue;
        }
        if (depth <= 1)
            sim_ptx_error(p, fixup.line, "the label '%.*s' is not defined in this function", (int)fixup.label.bytes,
                          fixup.label.text);
        p->fixups[kept++] = fixup;
    }
    p->fixup_count = kept;
}

void sim_ptx_close_scope(ptx_parser *p) {
    uint32_t depth = p->scope_depth - 1;
    if (depth >= 1) resolve_labels(p, depth);
    for (ptx_symbol *s = p->scope_symbols[depth]; s; s = s->next_scope) {
        ptx_symbol **link = &p->buckets[s->hash & (p->bucket_count - 1)];
        while (*link != s) link = &(*link)->next_hash;
        *link = s->next_hash;
        p->symbol_count--;
    }
    p->local_bytes = p->scope_locals[depth];
    p->scope_depth = depth;
}

ptx_symbol *sim_ptx_declare(ptx_parser *p, ptx_name name, ptx_symbol_kind kind, uint32_t line) {
    uint32_t scope = p->scopes[p->scope_depth - 1];
    if (find_in(p, name, scope, false))
        sim_ptx_error(p, line, "'%.*s' is declared twice in one scope", (int)name.bytes, name.text);
    if (p->symbol_count >= p->bucket_count * 2) rehash(p);
    ptx_symbol *s = sim_ptx_scratch(p, sizeof *s);
    *s = (ptx_symbol){.name = name, .kind = kind, .hash = hash_name(name), .scope = scope};
    ptx_symbol **bucket = &p->buckets[s->hash & (p->bucket_count - 1)];
    s->next_hash = *bucket;
    *bucket = s;
    s->next_scope = p->scope_symbols[p->scope_depth - 1];
    p->scope_symbols[p->scope_depth - 1] = s;
    p->symbol_count++;
    return s;
}

/* ----------------------------------------------------------------------------------------------------- registers -- */

uint32_t sim_ptx_new_register(ptx_parser *p, ptx_type type) {
    sim_ptx_room(p, &p->registers, &p->register_capacity, p->register_count + 1, sizeof *p->registers);
    p->registers[p->register_count] = (ptx_register){.type = type, .bits = (uint8_t)sim_ptx_type_bits(type)};
    return p->register_count++;
}

static bool split_number(ptx_name name, ptx_name *prefix, uint32_t *number) {
    uint32_t digits = 0;
    while (digits < name.bytes && digits < 8 && name.text[name.bytes - 1 - digits] >= '0' &&
           name.text[name.bytes - 1 - digits] <= '9')
        digits++;
    if (digits == 0 || digits == name.bytes) return false;
    *prefix = (ptx_name){name.text, name.bytes - digits};
    *number = 0;
    for (uint32_t i = prefix->bytes; i < name.bytes; i++) *number = *number * 10 + (uint32_t)(name.text[i] - '0');
    return true;
}

/* %r12 of .reg .b32 %r<20>. The prefix may itself end in digits (%v1<4>), so every split is tried, longest number
 * last. */
static bool find_in_range(ptx_parser *p, ptx_name name, uint32_t *reg) {
    ptx_name prefix;
    uint32_t number;
    if (!split_number(name, &prefix, &number)) return false;
    for (; prefix.bytes < name.bytes; prefix.bytes++) {
        if (name.text[prefix.bytes] == '0' && prefix.bytes + 1 < name.bytes) continue; /* no leading zeros */
        ptx_symbol *s = sim_ptx_find(p, prefix);
        if (!s || s->kind != PTX_SYMBOL_RANGE) continue;
        number = 0;
        for (uint32_t i = prefix.bytes; i < name.bytes; i++) number = number * 10 + (uint32_t)(name.text[i] - '0');
        if (number >= s->count) continue;
        if (s->registers[number] == 0) s->registers[number] = sim_ptx_new_register(p, s->type) + 1;
        *reg = s->registers[number] - 1;
        return true;
    }
    return false;
}

bool sim_ptx_find_register(ptx_parser *p, ptx_name name, uint32_t *reg, uint32_t *vector) {
    ptx_symbol *s = sim_ptx_find(p, name);
    *vector = 0;
    if (!s) return find_in_range(p, name, reg);
    if (s->kind != PTX_SYMBOL_REGISTER) return false;
    *reg = s->index;
    *vector = s->count;
    return true;
}

/* -------------------------------------------------------------------------------------------------------- labels -- */

void sim_ptx_define_label(ptx_parser *p, ptx_name name, uint32_t line) {
    sim_ptx_emit_join(p);
    sim_ptx_declare(p, name, PTX_SYMBOL_LABEL, line)->index = p->module->code_count - 1;
}

void sim_ptx_reference_label(ptx_parser *p, ptx_name name, bool in_list, uint32_t index) {
    sim_ptx_room(p, &p->fixups, &p->fixup_capacity, p->fixup_count + 1, sizeof *p->fixups);
    p->fixups[p->fixup_count++] = (ptx_fixup){
        .label = name, .scope = p->scopes[p->scope_depth - 1], .line = p->line, .in_list = in_list, .index = index};
}
