/* From virtual registers to slots of the frame: liveness over the function's basic blocks, then linear scan. Compilers
 * emit a new register for nearly every value, so that without this a warp's registers would fill the cache. The most
 * 32-bit registers alive at once is also the estimate of what the real compiler would use. */
#include <string.h>

#include "base/alloc.h"
#include "device/sim/ptx_parse.h"

/* Liveness is skipped, and every register keeps a slot of its own, when its bit sets would have more words than
 * this. */
#define MAX_SET_WORDS ((uint64_t)32 << 20)

typedef struct block {
    uint32_t start, end;     /* instructions, relative to the function */
    uint32_t next[2];        /* blocks, UINT32_MAX: none */
    uint32_t table, targets; /* brx: first entry in the module's lists, number */
} block;

typedef struct liveness {
    ptx_parser *p;
    const sim_function *f;
    const ptx_ins *code;
    const ptx_meta *meta;
    uint32_t count; /* instructions */
    block *blocks;
    uint32_t block_count;
    uint32_t *block_of; /* by instruction */
    uint32_t words;     /* of a set */
    uint64_t *in, *use, *define;
    uint32_t *first, *last; /* by register: the interval, first > last when unused */
    uint32_t most;          /* 32-bit registers alive at once */
} liveness;

/* ----------------------------------------------------------------------------------------- operands of one place -- */

typedef void visitor(liveness *v, uint32_t reg, bool define, void *user);

static void visit(liveness *v, uint32_t n, visitor *call, void *user) {
    const ptx_meta *meta = &v->meta[n];
    const ptx_ins *i = &v->code[n];
    const uint32_t *list = v->p->module->lists + meta->list;
    for (unsigned field = 0; field < 5; field++)
        if (meta->defines >> field & 1) call(v, i->field[field], true, user);
    for (uint32_t e = 0; e < meta->list_defines; e++) call(v, list[e], true, user);
    for (unsigned field = 0; field < 5; field++)
        if (meta->uses >> field & 1) call(v, i->field[field], false, user);
    for (uint32_t e = 0; e < meta->list_uses; e++)
        if (!(list[meta->list_defines + e] & PTX_POOL_BIT)) call(v, list[meta->list_defines + e], false, user);
    if (meta->guard != UINT32_MAX) call(v, meta->guard, false, user);
}

static bool has(const uint64_t *set, uint32_t reg) { return set[reg / 64] >> (reg % 64) & 1; }
static void put(uint64_t *set, uint32_t reg) { set[reg / 64] |= (uint64_t)1 << (reg % 64); }
static void drop(uint64_t *set, uint32_t reg) { set[reg / 64] &= ~((uint64_t)1 << (reg % 64)); }

/* -------------------------------------------------------------------------------------------------- basic blocks -- */

static void find_blocks(liveness *v) {
    ptx_parser *p = v->p;
    uint8_t *leads = sim_ptx_scratch(p, v->count + 1);
    leads[0] = 1;
    for (uint32_t n = 0; n < v->count; n++) {
        const ptx_meta *meta = &v->meta[n];
        if (meta->flow == PTX_FLOW_NEXT) continue;
        leads[n + 1] = 1;
        if (meta->flow == PTX_FLOW_BRANCH) leads[v->code[n].e - v->f->start] = 1;
        const uint32_t *table = meta->flow == PTX_FLOW_TABLE ? &p->module->lists[v->code[n].e] : NULL;
        for (uint32_t t = 0; table && t < table[0]; t++) leads[table[1 + t] - v->f->start] = 1;
    }
    for (uint32_t n = 0; n < v->count; n++) v->block_count += leads[n];
    v->blocks = sim_ptx_scratch(p, v->block_count * sizeof *v->blocks);
    v->block_of = sim_ptx_scratch(p, v->count * sizeof *v->block_of);
    uint32_t b = UINT32_MAX;
    for (uint32_t n = 0; n < v->count; n++) {
        if (leads[n]) v->blocks[++b].start = n;
        v->block_of[n] = b;
        v->blocks[b].end = n + 1;
    }
}

static void link_blocks(liveness *v) {
    for (uint32_t b = 0; b < v->block_count; b++) {
        block *k = &v->blocks[b];
        uint32_t last = k->end - 1, next = b + 1 < v->block_count ? b + 1 : UINT32_MAX;
        bool guarded = v->meta[last].guard != UINT32_MAX;
        unsigned flow = v->meta[last].flow;
        k->next[0] = flow == PTX_FLOW_NEXT || guarded ? next : UINT32_MAX;
        k->next[1] = flow == PTX_FLOW_BRANCH ? v->block_of[v->code[last].e - v->f->start] : UINT32_MAX;
        if (flow == PTX_FLOW_TABLE) {
            k->table = v->code[last].e + 1;
            k->targets = v->p->module->lists[v->code[last].e];
        }
    }
}

/* ------------------------------------------------------------------------------------------------------ liveness -- */

typedef struct gather {
    uint64_t *use, *define;
    bool guarded;
} gather;

/* Uses count before definitions of the same instruction, so operands are visited in two passes. A guarded result leaves
 * the old value in some lanes, which counts as a use and does not end the old value's life. */
static void gather_uses(liveness *v, uint32_t reg, bool define, void *user) {
    (void)v;
    gather *g = user;
    if ((!define || g->guarded) && !has(g->define, reg)) put(g->use, reg);
}

static void gather_definitions(liveness *v, uint32_t reg, bool define, void *user) {
    (void)v;
    gather *g = user;
    if (define && !g->guarded) put(g->define, reg);
}

static void block_sets(liveness *v) {
    for (uint32_t b = 0; b < v->block_count; b++) {
        gather g = {.use = v->use + (size_t)b * v->words, .define = v->define + (size_t)b * v->words};
        for (uint32_t n = v->blocks[b].start; n < v->blocks[b].end; n++) {
            g.guarded = v->meta[n].guard != UINT32_MAX;
            visit(v, n, gather_uses, &g);
            visit(v, n, gather_definitions, &g);
        }
    }
}

static void add_successor(const liveness *v, uint32_t b, uint64_t *out) {
    const uint64_t *in = v->in + (size_t)b * v->words;
    for (uint32_t w = 0; w < v->words; w++) out[w] |= in[w];
}

static void live_out(const liveness *v, uint32_t b, uint64_t *out) {
    const block *k = &v->blocks[b];
    memset(out, 0, v->words * sizeof *out);
    for (unsigned s = 0; s < 2; s++)
        if (k->next[s] != UINT32_MAX) add_successor(v, k->next[s], out);
    for (uint32_t t = 0; t < k->targets; t++)
        add_successor(v, v->block_of[v->p->module->lists[k->table + t] - v->f->start], out);
}

static void solve(liveness *v) {
    uint64_t *out = sim_ptx_scratch(v->p, v->words * sizeof *out);
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t b = v->block_count; b-- > 0;) {
            live_out(v, b, out);
            uint64_t *in = v->in + (size_t)b * v->words;
            const uint64_t *use = v->use + (size_t)b * v->words, *define = v->define + (size_t)b * v->words;
            for (uint32_t w = 0; w < v->words; w++) {
                uint64_t now = use[w] | (out[w] & ~define[w]);
                changed = changed || now != in[w];
                in[w] = now;
            }
        }
    }
}

/* ----------------------------------------------------------------------------------------------------- intervals -- */

typedef struct walk {
    uint64_t *live;
    uint32_t at, alive; /* 32-bit registers alive */
    bool guarded, definitions;
} walk;

static uint32_t weight(const liveness *v, uint32_t reg) {
    unsigned bits = v->p->registers[reg].bits;
    return bits == 1 ? 0 : bits <= 32 ? 1 : 2;
}

static void extend(liveness *v, uint32_t reg, uint32_t at) {
    if (at < v->first[reg]) v->first[reg] = at;
    if (at > v->last[reg]) v->last[reg] = at;
}

static void walk_operand(liveness *v, uint32_t reg, bool define, void *user) {
    walk *w = user;
    extend(v, reg, w->at);
    bool ends = define && !w->guarded;
    if (ends != w->definitions) return;
    if (ends && has(w->live, reg)) {
        drop(w->live, reg);
        w->alive -= weight(v, reg);
    } else if (!ends && !has(w->live, reg)) {
        put(w->live, reg);
        w->alive += weight(v, reg);
    }
}

static void extend_set(liveness *v, const uint64_t *set, uint32_t at) {
    for (uint32_t word = 0; word < v->words; word++)
        for (uint64_t rest = set[word]; rest; rest &= rest - 1)
            extend(v, word * 64 + (uint32_t)__builtin_ctzll(rest), at);
}

static void find_intervals(liveness *v) {
    uint64_t *live = sim_ptx_scratch(v->p, v->words * sizeof *live);
    for (uint32_t b = v->block_count; b-- > 0;) {
        walk w = {.live = live};
        live_out(v, b, live);
        extend_set(v, live, v->blocks[b].end - 1);
        extend_set(v, v->in + (size_t)b * v->words, v->blocks[b].start);
        for (uint32_t word = 0; word < v->words; word++)
            for (uint64_t rest = live[word]; rest; rest &= rest - 1)
                w.alive += weight(v, word * 64 + (uint32_t)__builtin_ctzll(rest));
        for (uint32_t n = v->blocks[b].end; n-- > v->blocks[b].start;) {
            w.at = n;
            w.guarded = v->meta[n].guard != UINT32_MAX;
            if (w.alive > v->most) v->most = w.alive;
            w.definitions = true;
            visit(v, n, walk_operand, &w);
            w.definitions = false;
            visit(v, n, walk_operand, &w);
        }
        if (w.alive > v->most) v->most = w.alive;
    }
}

/* --------------------------------------------------------------------------------------------------- linear scan -- */

enum { CLASSES = 3 }; /* predicates, slots of 32 and of 64 bits */

typedef struct pool {
    uint32_t *free, *busy; /* slot numbers; busy ones in a heap by the end of their interval */
    uint32_t *ends;
    uint32_t free_count, busy_count, slots;
} pool;

static unsigned class_of(const ptx_register *r) { return r->bits == 1 ? 0 : r->bits <= 32 ? 1 : 2; }

static void heap_push(pool *k, uint32_t slot, uint32_t end) {
    uint32_t at = k->busy_count++;
    for (; at && k->ends[(at - 1) / 2] > end; at = (at - 1) / 2) {
        k->ends[at] = k->ends[(at - 1) / 2];
        k->busy[at] = k->busy[(at - 1) / 2];
    }
    k->ends[at] = end;
    k->busy[at] = slot;
}

static void heap_pop(pool *k) {
    uint32_t end = k->ends[--k->busy_count], slot = k->busy[k->busy_count], at = 0;
    for (uint32_t child; (child = 2 * at + 1) < k->busy_count; at = child) {
        if (child + 1 < k->busy_count && k->ends[child + 1] < k->ends[child]) child++;
        if (k->ends[child] >= end) break;
        k->ends[at] = k->ends[child];
        k->busy[at] = k->busy[child];
    }
    k->ends[at] = end;
    k->busy[at] = slot;
}

/* Registers in the order in which their intervals begin, by counting. */
static uint32_t *by_first(liveness *v) {
    uint32_t registers = v->p->register_count;
    uint32_t *starts = sim_ptx_scratch(v->p, ((size_t)v->count + 2) * sizeof *starts),
             *order = sim_ptx_scratch(v->p, ((size_t)registers + 1) * sizeof *order);
    for (uint32_t r = 0; r < registers; r++) starts[(v->first[r] > v->count ? v->count : v->first[r]) + 1]++;
    for (uint32_t n = 0; n <= v->count; n++) starts[n + 1] += starts[n];
    for (uint32_t r = 0; r < registers; r++) order[starts[v->first[r] > v->count ? v->count : v->first[r]]++] = r;
    return order;
}

/* Gives each register a slot number within its class; two share one only when their intervals do not even touch. */
static void scan(liveness *v, uint32_t slots[CLASSES]) {
    ptx_parser *p = v->p;
    uint32_t *order = by_first(v);
    pool pools[CLASSES] = {{0}};
    for (unsigned c = 0; c < CLASSES; c++) {
        pools[c].free = sim_ptx_scratch(p, ((size_t)p->register_count + 1) * sizeof(uint32_t));
        pools[c].busy = sim_ptx_scratch(p, ((size_t)p->register_count + 1) * sizeof(uint32_t));
        pools[c].ends = sim_ptx_scratch(p, ((size_t)p->register_count + 1) * sizeof(uint32_t));
    }
    for (uint32_t n = 0; n < p->register_count; n++) {
        uint32_t r = order[n];
        pool *k = &pools[class_of(&p->registers[r])];
        if (v->first[r] > v->last[r]) continue;
        while (k->busy_count && k->ends[0] < v->first[r]) {
            k->free[k->free_count++] = k->busy[0];
            heap_pop(k);
        }
        uint32_t slot = k->free_count ? k->free[--k->free_count] : k->slots++;
        p->registers[r].place = slot;
        heap_push(k, slot, v->last[r]);
    }
    for (unsigned c = 0; c < CLASSES; c++) slots[c] = pools[c].slots;
}

/* Every interval, or false when there would be too much to compute. */
static bool analyse(liveness *v) {
    ptx_parser *p = v->p;
    find_blocks(v);
    link_blocks(v);
    v->words = (p->register_count + 63) / 64;
    if ((uint64_t)v->block_count * v->words > MAX_SET_WORDS) return false;
    size_t bytes = (size_t)v->block_count * v->words * sizeof(uint64_t);
    v->in = sim_ptx_scratch(p, bytes);
    v->use = sim_ptx_scratch(p, bytes);
    v->define = sim_ptx_scratch(p, bytes);
    block_sets(v);
    solve(v);
    find_intervals(v);
    return true;
}

/* ----------------------------------------------------------------------------------------------------- the frame -- */

static uint32_t place_of(ptx_parser *p, uint32_t value) {
    return value & PTX_POOL_BIT ? value : p->registers[value].place;
}

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

/* Slot numbers to byte offsets: the header, predicates, 32-bit slots, 64-bit slots. */
static void lay_out(ptx_parser *p, sim_function *f, const uint32_t slots[CLASSES]) {
    const uint64_t narrow =
        PTX_FRAME_HEADER + (((uint64_t)slots[0] * 4 + PTX_SLOT32_BYTES - 1) & ~(uint64_t)(PTX_SLOT32_BYTES - 1));
    const uint64_t wide = narrow + (uint64_t)slots[1] * PTX_SLOT32_BYTES,
                   total = wide + (uint64_t)slots[2] * PTX_SLOT64_BYTES;
    if (narrow / 4 > 0x7fff)
        sim_ptx_error(p, p->line, "'%s' needs %u predicates at once; at most 32000 are possible", f->name, slots[0]);
    if (total > PTX_MAX_FRAME_BYTES)
        sim_ptx_error(p, p->line,
                      "'%s' needs %u registers of 32 and %u of 64 bits at once, more than the simulator has room for",
                      f->name, slots[1], slots[2]);
    const uint64_t base[CLASSES] = {PTX_FRAME_HEADER, narrow, wide},
                   size[CLASSES] = {4, PTX_SLOT32_BYTES, PTX_SLOT64_BYTES};
    for (uint32_t r = 0; r < p->register_count; r++) {
        unsigned c = class_of(&p->registers[r]);
        p->registers[r].place = (uint32_t)(base[c] + p->registers[r].place * size[c]);
    }
    f->frame_bytes = (uint32_t)total;
}

void sim_ptx_assign_slots(ptx_parser *p) {
    sim_function *f = sim_ptx_function(p, p->function_index);
    liveness v = {
        .p = p, .f = f, .code = p->module->code + f->start, .meta = p->meta + f->start, .count = f->end - f->start};
    v.first = sim_ptx_scratch(p, ((size_t)p->register_count + 1) * sizeof *v.first);
    v.last = sim_ptx_scratch(p, ((size_t)p->register_count + 1) * sizeof *v.last);
    memset(v.first, 0xff, p->register_count * sizeof *v.first);
    bool known = analyse(&v);
    if (!known) v.most = 255;
    for (uint32_t r = 0; r < p->register_count; r++) {
        if (known && !p->registers[r].pinned) continue;
        v.first[r] = 0;
        v.last[r] = v.count;
    }
    uint32_t slots[CLASSES];
    scan(&v, slots);
    lay_out(p, f, slots);
    f->live_registers = (int)(v.most > 255 ? 255 : v.most);
    rewrite(p, f);
    for (uint32_t n = 0; n < f->formal_count; n++)
        if (f->formals[n].in_register) f->formals[n].place = p->registers[f->formals[n].place].place;
    for (uint32_t n = 0; n < f->result_count; n++)
        if (f->results[n].in_register) f->results[n].place = p->registers[f->results[n].place].place;
}
