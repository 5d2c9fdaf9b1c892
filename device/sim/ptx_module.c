/* Loading: text to an immutable module; instances. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/sim/ptx_parse.h"

/* -------------------------------------------------------------------------------------------- finishing a module -- */

static int builtin_of(const char *name) {
    if (strcmp(name, "vprintf") == 0) return PTX_BUILTIN_VPRINTF;
    if (strcmp(name, "__assertfail") == 0) return PTX_BUILTIN_ASSERTFAIL;
    return PTX_BUILTIN_NONE;
}

/* Fills in what a call could not know before its callee was defined. */
static void link_call(ptx_parser *p, ptx_call *call) {
    if (call->function == UINT32_MAX) return;
    const sim_function *callee = sim_ptx_function(p, call->function);
    if (!callee->defined) {
        call->builtin = (uint32_t)builtin_of(callee->name);
        if (!call->builtin)
            sim_ptx_error(
                p, call->line,
                "the function '%s' is called but not defined in this module; the simulator does not link modules",
                callee->name);
        return;
    }
    for (uint32_t i = 0; i < call->argument_count; i++) {
        call->arguments[i].to = callee->formals[i].place;
        call->arguments[i].to_register = callee->formals[i].in_register;
    }
    for (uint32_t i = 0; i < call->result_count; i++) {
        call->results[i].from = callee->results[i].place;
        call->results[i].from_register = callee->results[i].in_register;
    }
}

/* Marks what `entry` can reach. `edges` are sorted by caller; `first[f]` is where those of f begin. */
static void mark_reachable(ptx_parser *p, uint32_t entry, const ptx_call_edge *edges, const uint32_t *first,
                           uint8_t *reached, uint32_t *stack) {
    uint32_t count = p->module->function_count, depth = 0;
    memset(reached, 0, count);
    reached[entry] = 1;
    stack[depth++] = entry;
    while (depth) {
        uint32_t f = stack[--depth];
        for (uint32_t e = first[f]; e < first[f + 1]; e++) {
            if (edges[e].callee == UINT32_MAX) {
                for (uint32_t t = 0; t < count; t++)
                    if (p->module->functions[t].address_taken && !reached[t]) reached[t] = 1, stack[depth++] = t;
            } else if (!reached[edges[e].callee]) {
                reached[edges[e].callee] = 1;
                stack[depth++] = edges[e].callee;
            }
        }
    }
}

static uint32_t align_up(uint32_t value, uint32_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }

/* Places the shared variables that the entry reaches. The dynamic ones all begin where the static ones end. */
static void place_shared(ptx_parser *p, sim_function *f, const uint8_t *reached) {
    sim_module *module = p->module;
    f->shared_offsets = sim_ptx_keep(p, (module->shared_count + 1) * sizeof *f->shared_offsets);
    uint8_t *used = sim_ptx_scratch(p, module->shared_count + 1);
    for (uint32_t u = 0; u < p->shared_use_count; u++)
        if (reached[p->shared_uses[u].function]) used[p->shared_uses[u].variable] = 1;
    uint64_t total = 0;
    uint32_t dynamic_alignment = 16;
    for (uint32_t v = 0; v < module->shared_count; v++) {
        const ptx_shared_variable *s = &module->shared[v];
        if (!used[v]) continue;
        if (s->dynamic) {
            if (s->alignment > dynamic_alignment) dynamic_alignment = s->alignment;
            continue;
        }
        total = align_up((uint32_t)total, s->alignment);
        f->shared_offsets[v] = (uint32_t)total;
        total += s->bytes;
        if (total > PTX_MAX_SHARED_BYTES)
            sim_ptx_error(p, p->line, "'%s' uses more than %d bytes of shared memory", f->name, PTX_MAX_SHARED_BYTES);
    }
    f->info.static_shared_bytes = total;
    f->dynamic_shared_offset = align_up((uint32_t)total, dynamic_alignment);
    for (uint32_t v = 0; v < module->shared_count; v++)
        if (used[v] && module->shared[v].dynamic) f->shared_offsets[v] = f->dynamic_shared_offset;
}

static void fill_info(ptx_parser *p, sim_function *f, const uint8_t *reached) {
    sim_function_info *info = &f->info;
    int registers = 0;
    size_t local = 0;
    for (uint32_t g = 0; g < p->module->function_count; g++) {
        if (!reached[g]) continue;
        local += p->module->functions[g].local_bytes;
        if (p->module->functions[g].live_registers > registers) registers = p->module->functions[g].live_registers;
    }
    registers = (registers + 2 + 7) & ~7; /* room for temporaries of the real code; allocated by eights */
    if (registers < 16) registers = 16;
    if (registers > 255) registers = 255;
    if (f->max_registers >= 16 && registers > f->max_registers) registers = f->max_registers;
    info->name = f->name;
    info->registers = registers;
    info->local_bytes = local;
    info->parameter_count = f->formal_count;
    size_t *offsets = sim_ptx_keep(p, (f->formal_count + 1) * sizeof *offsets),
           *bytes = sim_ptx_keep(p, (f->formal_count + 1) * sizeof *bytes);
    for (uint32_t i = 0; i < f->formal_count; i++) {
        offsets[i] = f->formals[i].place;
        bytes[i] = f->formals[i].bytes;
    }
    info->parameter_offsets = offsets;
    info->parameter_bytes = bytes;
}

static ptx_call_edge *sort_edges(ptx_parser *p, uint32_t **first_out) {
    uint32_t count = p->module->function_count;
    uint32_t *first = sim_ptx_scratch(p, (count + 2) * sizeof *first);
    ptx_call_edge *sorted = sim_ptx_scratch(p, (p->call_edge_count + 1) * sizeof *sorted);
    for (uint32_t e = 0; e < p->call_edge_count; e++) first[p->call_edges[e].caller + 2]++;
    for (uint32_t f = 1; f <= count; f++) first[f + 1] += first[f];
    for (uint32_t e = 0; e < p->call_edge_count; e++) sorted[first[p->call_edges[e].caller + 1]++] = p->call_edges[e];
    *first_out = first;
    return sorted;
}

void sim_ptx_finish_module(ptx_parser *p) {
    sim_module *module = p->module;
    for (uint32_t v = 0; v < module->variable_count; v++)
        if (p->external[v])
            sim_ptx_error(
                p, p->line,
                "the variable '%s' is .extern and not defined in this module; the simulator does not link modules",
                module->variables[v].info.name);
    for (uint32_t c = 0; c < module->call_count; c++) link_call(p, &module->calls[c]);
    uint32_t *first;
    ptx_call_edge *edges = sort_edges(p, &first);
    uint8_t *reached = sim_ptx_scratch(p, module->function_count + 1);
    uint32_t *stack = sim_ptx_scratch(p, (module->function_count + 1) * sizeof *stack);
    module->entries = sim_ptx_keep(p, (module->function_count + 1) * sizeof *module->entries);
    for (uint32_t n = 0; n < module->function_count; n++) {
        sim_function *f = &module->functions[n];
        if (!f->entry) continue;
        if (!f->defined) continue; /* declared only: not a kernel of this module */
        mark_reachable(p, n, edges, first, reached, stack);
        place_shared(p, f, reached);
        fill_info(p, f, reached);
        module->entries[module->entry_count++] = n;
    }
    module->lines = sim_ptx_keep(p, (module->code_count + 1) * sizeof *module->lines);
    module->places = sim_ptx_keep(p, (module->code_count + 1) * sizeof *module->places);
    for (uint32_t n = 0; n < module->code_count; n++) {
        module->lines[n] = p->meta[n].line;
        module->places[n] = p->meta[n].place;
    }
}

/* ------------------------------------------------------------------------------------------------------- loading -- */

static void free_parser(ptx_parser *p) {
    sim_ptx_arena_free(p->arena);
    mu_free(p->scopes);
    mu_free(p->scope_symbols);
    mu_free(p->scope_fixups);
    mu_free(p->scope_locals);
    mu_free(p->meta);
    mu_free(p->registers);
    mu_free(p->fixups);
    mu_free(p->shared_uses);
    mu_free(p->call_edges);
    mu_free(p->external);
    mu_free(p);
}

static void parse(ptx_parser *p) {
    if (setjmp(p->stop)) return;
    sim_module *module = p->module;
    sim_ptx_room(p, &module->pool, &p->pool_capacity, 4096, 1);
    memset(module->pool, 0, PTX_SLOT32_BYTES);
    memset(module->pool + (PTX_POOL_TRUE & ~PTX_POOL_BIT), 0xff, 4);
    module->pool_bytes = PTX_SLOT32_BYTES;
    sim_ptx_parse_module(p);
    sim_ptx_finish_module(p);
}

CUresult sim_module_load(const char *text, size_t bytes, int target_sm, sim_module **out, char *log, size_t log_bytes) {
    if (log && log_bytes) log[0] = '\0';
    if (!text || !out || bytes > UINT32_MAX / 2) return CUDA_ERROR_INVALID_VALUE;
    if (bytes && text[bytes - 1] == '\0') bytes--;
    ptx_parser *p = mu_alloc_zeroed(1, sizeof *p);
    sim_module *module = mu_alloc_zeroed(1, sizeof *module);
    char *copy = mu_alloc(bytes + 1);
    if (!p || !module || !copy) {
        mu_free(copy);
        mu_free(module);
        mu_free(p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    module->text = copy;
    module->text_bytes = bytes;
    p->module = module;
    p->log = log;
    p->log_bytes = log_bytes;
    p->target_sm = target_sm;
    p->cursor = copy;
    p->end = copy + bytes;
    parse(p);
    CUresult code = p->code;
    free_parser(p);
    if (code != CUDA_SUCCESS) {
        sim_module_free(module);
        return code;
    }
    *out = module;
    return CUDA_SUCCESS;
}

void sim_module_free(sim_module *module) {
    if (!module) return;
    mu_free(module->code);
    mu_free(module->pool);
    mu_free(module->lists);
    mu_free(module->calls);
    mu_free(module->functions);
    mu_free(module->variables);
    mu_free(module->shared);
    mu_free(module->relocations);
    sim_ptx_arena_free(module->arena);
    mu_free(module->text);
    mu_free(module);
}

size_t sim_module_function_count(const sim_module *module) { return module->entry_count; }

const sim_function *sim_module_function_at(const sim_module *module, size_t index) {
    return index < module->entry_count ? &module->functions[module->entries[index]] : NULL;
}

const sim_function *sim_module_find_function(const sim_module *module, const char *name) {
    for (uint32_t i = 0; i < module->entry_count; i++)
        if (strcmp(module->functions[module->entries[i]].name, name) == 0)
            return &module->functions[module->entries[i]];
    return NULL;
}

const sim_function_info *sim_function_get_info(const sim_function *function) { return &function->info; }

size_t sim_module_variable_count(const sim_module *module) { return module->variable_count; }

const sim_variable *sim_module_variable_at(const sim_module *module, size_t index) {
    return index < module->variable_count ? &module->variables[index].info : NULL;
}

/* ----------------------------------------------------------------------------------------------------- instances -- */

CUresult sim_instance_create(const sim_module *module, const uint64_t *addresses, sim_instance **out) {
    sim_instance *instance = mu_alloc(sizeof *instance + module->variable_count * sizeof *instance->addresses);
    if (!instance) return CUDA_ERROR_OUT_OF_MEMORY;
    instance->module = module;
    instance->addresses = (uint64_t *)(instance + 1);
    for (uint32_t v = 0; v < module->variable_count; v++) {
        const ptx_variable *variable = &module->variables[v];
        unsigned char *memory = (unsigned char *)(uintptr_t)addresses[v];
        instance->addresses[v] = addresses[v];
        if (variable->initial_bytes) memcpy(memory, variable->initial, variable->initial_bytes);
        if (variable->info.bytes > variable->initial_bytes)
            memset(memory + variable->initial_bytes, 0, variable->info.bytes - variable->initial_bytes);
    }
    for (uint32_t r = 0; r < module->relocation_count; r++) {
        const ptx_relocation *relocation = &module->relocations[r];
        uint64_t target =
            relocation->function ? PTX_FUNCTION_WINDOW + relocation->target : addresses[relocation->target];
        uint64_t value = (target + (uint64_t)relocation->addend) >> relocation->shift;
        memcpy((unsigned char *)(uintptr_t)addresses[relocation->variable] + relocation->offset, &value,
               relocation->bytes);
    }
    *out = instance;
    return CUDA_SUCCESS;
}

void sim_instance_free(sim_instance *instance) { mu_free(instance); }
