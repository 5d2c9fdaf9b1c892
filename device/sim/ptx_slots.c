/* From virtual registers to slots of the frame. */
#include <string.h>

#include "base/alloc.h"
#include "device/sim/ptx_parse.h"

static uint32_t place_of(ptx_parser *p, uint32_t value) { return value & PTX_POOL_BIT ? value : p->registers[value].place; }

/* Rewrites the operands of the function's instructions from virtual registers to frame offsets. */
static void rewrite(ptx_parser *p, const sim_function *f) {
    sim_module *module = p->module;
    for (uint32_t n = f->start; n < f->end; n++) {
        ptx_ins *i = &module->code[n];
        const ptx_meta *meta = &p->meta[n];
        for (unsigned field = 0; field < 5; field++)
            if ((meta->uses | meta->defines) >> field & 1) i->field[field] = place_of(p, i->field[field]);
        for (uint32_t e = 0; e < (uint32_t)meta->list_defines + meta->list_uses; e++)
            module->lists[meta->list + e] = place_of(p, module->lists[meta->list + e]);
        if (meta->guard != UINT32_MAX) i->guard = (uint16_t)(p->registers[meta->guard].place / 4 << 1 | (i->guard & 1));
    }
}

void sim_ptx_assign_slots(ptx_parser *p) {
    sim_function *f = sim_ptx_function(p, p->function_index);
    uint32_t predicates = 0, narrow = 0, wide = 0;
    for (uint32_t r = 0; r < p->register_count; r++) {
        unsigned bits = p->registers[r].bits;
        *(bits == 1 ? &predicates : bits <= 32 ? &narrow : &wide) += 1;
    }
    uint64_t next_predicate = PTX_FRAME_HEADER, next_narrow = next_predicate + (((uint64_t)predicates * 4 + 127) & ~(uint64_t)127);
    uint64_t next_wide = next_narrow + (uint64_t)narrow * PTX_SLOT32_BYTES;
    uint64_t total = next_wide + (uint64_t)wide * PTX_SLOT64_BYTES;
    if (next_narrow / 4 > 0x7fff) sim_ptx_error(p, p->line, "'%s' uses %u predicates; at most 32000 are possible", f->name, predicates);
    if (total > PTX_MAX_FRAME_BYTES) sim_ptx_error(p, p->line, "'%s' uses %u registers, more than the simulator has room for", f->name, p->register_count);
    for (uint32_t r = 0; r < p->register_count; r++) {
        ptx_register *reg = &p->registers[r];
        uint64_t *next = reg->bits == 1 ? &next_predicate : reg->bits <= 32 ? &next_narrow : &next_wide;
        reg->place = (uint32_t)*next;
        *next += reg->bits == 1 ? 4 : reg->bits <= 32 ? PTX_SLOT32_BYTES : PTX_SLOT64_BYTES;
    }
    f->frame_bytes = (uint32_t)total;
    f->live_registers = (int)(narrow + 2 * wide > 255 ? 255 : narrow + 2 * wide);
    rewrite(p, f);
    for (uint32_t n = 0; n < f->formal_count; n++)
        if (f->formals[n].in_register) f->formals[n].place = p->registers[f->formals[n].place].place;
    for (uint32_t n = 0; n < f->result_count; n++)
        if (f->results[n].in_register) f->results[n].place = p->registers[f->results[n].place].place;
}
