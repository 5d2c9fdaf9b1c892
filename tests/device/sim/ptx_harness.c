#include "tests/device/sim/ptx_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ------------------------------------------------------------------------------------------------- device memory -- */

const sim_range *sim_memory_lookup(sim_memory *memory, uint64_t address) {
    for (unsigned r = 0; r < memory->count; r++)
        if (address >= memory->ranges[r].low && address < memory->ranges[r].high) return &memory->ranges[r];
    return NULL;
}

void sim_memory_describe(sim_memory *memory, uint64_t address, char *text, size_t bytes) {
    snprintf(text, bytes, "not in any of %u allocations (0x%llx)", memory->count, (unsigned long long)address);
}

static void add_range(harness *h, void *memory, size_t bytes, bool writable, uint8_t *initialised) {
    assert_true(h->memory.count < HARNESS_RANGES);
    h->memory.ranges[h->memory.count++] =
        (sim_range){(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)memory + bytes, writable, initialised};
}

static void *own(harness *h, size_t bytes) {
    assert_true(h->owned_count < HARNESS_RANGES);
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, 256, bytes ? bytes : 1), 0);
    memset(memory, 0, bytes);
    h->owned[h->owned_count++] = memory;
    return memory;
}

void *harness_alloc(harness *h, size_t bytes) {
    void *memory = own(h, bytes);
    add_range(h, memory, bytes, true, NULL);
    return memory;
}

void *harness_alloc_tracked(harness *h, size_t bytes) {
    void *memory = own(h, bytes);
    add_range(h, memory, bytes, true, own(h, bytes / 8 + 1));
    return memory;
}

/* ------------------------------------------------------------------------------------------------------- loading -- */

void harness_load(harness *h, const char *text) {
    char log[HARNESS_LOG];
    memset(h, 0, sizeof *h);
    CUresult code = sim_module_load(text, strlen(text), 90, &h->module, log, sizeof log);
    if (code != CUDA_SUCCESS) fail_msg("load failed (%d): %s", (int)code, log);
    uint64_t addresses[HARNESS_RANGES];
    h->variable_count = (unsigned)sim_module_variable_count(h->module);
    assert_true(h->variable_count <= HARNESS_RANGES / 2);
    for (unsigned v = 0; v < h->variable_count; v++) {
        const sim_variable *variable = sim_module_variable_at(h->module, v);
        h->variables[v] = own(h, variable->bytes);
        add_range(h, h->variables[v], variable->bytes, !variable->constant, NULL);
        addresses[v] = (uint64_t)(uintptr_t)h->variables[v];
    }
    assert_int_equal(sim_instance_create(h->module, addresses, &h->instance), CUDA_SUCCESS);
    h->launch = (sim_launch){.sm_count = 4, .warp_size = 32, .target_sm = 90, .max_instructions = UINT64_C(2000000000)};
}

char *harness_read(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    size_t capacity = 1 << 20, used = 0;
    char *text = malloc(capacity);
    assert_non_null(text);
    for (size_t got; (got = fread(text + used, 1, capacity - used - 1, file)) > 0;) {
        used += got;
        if (used + 1 == capacity) assert_non_null(text = realloc(text, capacity *= 2));
    }
    text[used] = '\0';
    fclose(file);
    return text;
}

void harness_load_file(harness *h, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "tests/device/sim/ptx_corpus/%s", name);
    char *text = harness_read(path);
    harness_load(h, text);
    free(text);
}

void harness_free(harness *h) {
    sim_instance_free(h->instance);
    sim_module_free(h->module);
    while (h->owned_count) free(h->owned[--h->owned_count]);
    memset(h, 0, sizeof *h);
}

void *harness_variable(harness *h, const char *name) {
    for (unsigned v = 0; v < h->variable_count; v++)
        if (strcmp(sim_module_variable_at(h->module, v)->name, name) == 0) return h->variables[v];
    fail_msg("no variable %s", name);
    return NULL;
}

const char *harness_refused(const char *text, CUresult code) {
    static char log[HARNESS_LOG];
    sim_module *module = NULL;
    CUresult got = sim_module_load(text, strlen(text), 90, &module, log, sizeof log);
    if (got != code) {
        sim_module_free(module);
        fail_msg("expected %d, got %d: %s", (int)code, (int)got, log);
    }
    assert_null(module);
    assert_true(log[0] != '\0');
    return log;
}

/* ----------------------------------------------------------------------------------------------------- launching -- */

CUresult harness_run(harness *h, const char *kernel, uint32_t grid, uint32_t block, const void *parameters) {
    sim_launch launch = h->launch;
    launch.function = sim_module_find_function(h->module, kernel);
    if (!launch.function) fail_msg("no kernel %s", kernel);
    launch.instance = h->instance;
    launch.memory = &h->memory;
    if (!launch.grid[0]) launch.grid[0] = grid;
    if (!launch.block[0]) launch.block[0] = block;
    for (unsigned d = 0; d < 3; d++) {
        if (!launch.grid[d]) launch.grid[d] = 1;
        if (!launch.block[d]) launch.block[d] = 1;
    }
    launch.parameters = parameters;
    h->fault = (sim_fault){0};
    h->instructions = 0;
    return sim_launch_run(&launch, &h->fault, &h->instructions);
}

void harness_ok(harness *h, const char *kernel, uint32_t grid, uint32_t block, const void *parameters) {
    CUresult code = harness_run(h, kernel, grid, block, parameters);
    if (code != CUDA_SUCCESS) fail_msg("%s: %d: %s", kernel, (int)code, h->fault.message);
}

/* ------------------------------------------------------------------------------------------------ random numbers -- */

uint32_t harness_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 32) ^ (uint32_t)(*state >> 18);
}

uint32_t harness_edge32(uint64_t *state) {
    static const uint32_t edges[] = {0,          1,           2,           31,          32,         33,
                                     0x7f,       0x80,        0xff,        0x100,       0x7fff,     0x8000,
                                     0xffff,     0x10000,     0x7fffff,    0x800000,    0xffffff,   0x7ffffffe,
                                     0x7fffffff, 0x80000000u, 0x80000001u, 0xfffffffeu, 0xffffffffu};
    uint32_t r = harness_random(state);
    switch (r & 3) {
        case 0: return edges[(r >> 8) % (sizeof edges / sizeof *edges)];
        case 1: return harness_random(state) >> (r >> 8 & 31);
        default: return harness_random(state);
    }
}

uint64_t harness_edge64(uint64_t *state) {
    static const uint64_t edges[] = {0,
                                     1,
                                     63,
                                     64,
                                     UINT64_C(0x7fffffff),
                                     UINT64_C(0x80000000),
                                     UINT64_C(0xffffffff),
                                     UINT64_C(0x100000000),
                                     INT64_MAX - 1,
                                     INT64_MAX,
                                     UINT64_C(1) << 63,
                                     (UINT64_C(1) << 63) + 1,
                                     UINT64_MAX - 1,
                                     UINT64_MAX};
    uint32_t r = harness_random(state);
    uint64_t v = (uint64_t)harness_random(state) << 32 | harness_random(state);
    switch (r & 3) {
        case 0: return edges[(r >> 8) % (sizeof edges / sizeof *edges)];
        case 1: return v >> (r >> 8 & 63);
        default: return v;
    }
}

uint32_t harness_float32(uint64_t *state) {
    static const uint32_t edges[] = {
        0,          0x80000000u, 0x3f800000, 0xbf800000u, 0x7f800000, 0xff800000u, 0x7fc00000, 0xffc12345u, 0x7f812345,
        1,          0x80000001u, 0x007fffff, 0x807fffffu, 0x00800000, 0x80800000u, 0x7f7fffff, 0xff7fffffu, 0x4b000000,
        0x4effffff, 0x4f000000,  0x4f800000, 0x5f000000,  0x3f000000, 0x3effffff,  0x40200000, 0x3fc00000};
    uint32_t r = harness_random(state);
    switch (r & 3) {
        case 0: return edges[(r >> 8) % (sizeof edges / sizeof *edges)];
        case 1:
            return (harness_random(state) & 0x807fffffu) | (120 + (r >> 8) % 16) << 23; /* near one: sums that cancel */
        default: return harness_random(state);
    }
}

uint64_t harness_float64(uint64_t *state) {
    static const uint64_t edges[] = {0,
                                     UINT64_C(1) << 63,
                                     UINT64_C(0x3ff0000000000000),
                                     UINT64_C(0xbff0000000000000),
                                     UINT64_C(0x7ff0000000000000),
                                     UINT64_C(0xfff0000000000000),
                                     1,
                                     UINT64_C(0x000fffffffffffff),
                                     UINT64_C(0x0010000000000000),
                                     UINT64_C(0x7fefffffffffffff),
                                     UINT64_C(0x4330000000000000),
                                     UINT64_C(0x43e0000000000000),
                                     UINT64_C(0x41dfffffffc00000)};
    uint32_t r = harness_random(state);
    uint64_t v = (uint64_t)harness_random(state) << 32 | harness_random(state);
    switch (r & 3) {
        case 0: return edges[(r >> 8) % (sizeof edges / sizeof *edges)];
        case 1: return (v & UINT64_C(0x800fffffffffffff)) | (uint64_t)(1016 + (r >> 8) % 16) << 52;
        default: return v;
    }
}
