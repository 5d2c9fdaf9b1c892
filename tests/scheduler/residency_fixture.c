#include "tests/scheduler/residency_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/driver_entries.h"
#include "device/sim/sim.h"

static uint32_t input(uint32_t i) { return i * 2654435761u + 17; }

void residency_open(residency *r, const char *spec, const muster_config *config) {
    muster_config own = {.struct_size = sizeof own};
    if (config) own = *config;
    if (spec) own.sim = spec;
    fixture_open_with(&r->fixture, 1, &own);
    OK(muster_program_from_ptx(r->fixture.runtime, test_residency_kernels_ptx, 0, "residency", &r->program, &reported));
    OK(muster_program_kernel(r->program, "reverse", &r->reverse, &reported));
    OK(muster_program_kernel(r->program, "fill_tmp", &r->phases[0], &reported));
    OK(muster_program_kernel(r->program, "read_tmp", &r->phases[1], &reported));
    OK(muster_program_kernel(r->program, "arrive", &r->arrive, &reported));
    uint32_t *words = malloc(4 * RESIDENCY_COUNT);
    assert_non_null(words);
    for (uint32_t i = 0; i < RESIDENCY_COUNT; i++) words[i] = input(i);
    r->in = fixture_buffer(&r->fixture, 4 * RESIDENCY_COUNT, NULL);
    r->tmp = fixture_buffer(&r->fixture, 4 * RESIDENCY_COUNT, NULL);
    r->out = fixture_buffer(&r->fixture, 4 * RESIDENCY_COUNT, NULL);
    fixture_write(r->in, 0, 4 * RESIDENCY_COUNT, words);
    free(words);
    r->args[0] = muster_buffer_arg(r->out, MUSTER_READ_WRITE);
    r->args[1] = muster_buffer_arg(r->tmp, MUSTER_READ_WRITE);
    r->args[2] = muster_buffer_arg(r->in, MUSTER_READ);
    r->args[3] = muster_u32_arg(RESIDENCY_COUNT);
}

muster_dispatch residency_reverse(residency *r, uint32_t blocks, uint32_t shared_bytes) {
    muster_dispatch dispatch = {
        .struct_size = sizeof dispatch,
        .kernel = r->reverse,
        .grid.x = blocks,
        .block.x = RESIDENCY_THREADS,
        .dynamic_shared_bytes = shared_bytes,
        .flags = MUSTER_DISPATCH_COOPERATIVE,
        .arg_count = 4,
        .args = r->args,
        .barrier_counter = "arrived",
    };
    return dispatch;
}

void residency_declare(residency *r, muster_dispatch *dispatch, muster_fallback fallback) {
    dispatch->fallback = fallback;
    if (fallback != MUSTER_FALLBACK_SPLIT) return;
    dispatch->phases = r->phases;
    dispatch->phase_count = 2;
}

void residency_check(residency *r) {
    uint32_t *words = malloc(4 * RESIDENCY_COUNT);
    assert_non_null(words);
    fixture_read(r->out, 0, 4 * RESIDENCY_COUNT, words);
    for (uint32_t i = 0; i < RESIDENCY_COUNT; i++)
        if (words[i] != input(RESIDENCY_COUNT - 1 - i) * 3 + 8) fail_msg("word %u is %u", i, words[i]);
    free(words);
    residency_clear(r);
}

void residency_clear(residency *r) {
    uint32_t *words = calloc(RESIDENCY_COUNT, 4);
    assert_non_null(words);
    fixture_write(r->out, 0, 4 * RESIDENCY_COUNT, words);
    fixture_write(r->tmp, 0, 4 * RESIDENCY_COUNT, words);
    free(words);
}

muster_device_stats residency_stats(const residency *r) {
    muster_device_stats stats = {.struct_size = sizeof stats};
    OK(muster_device_get_stats(r->fixture.runtime, 0, &stats, &reported));
    return stats;
}

uint64_t residency_calls(const residency *r, const char *entry) {
    return mu_sim_calls(fixture_driver(&r->fixture), entry);
}

uint64_t residency_calls_but(const residency *r, const char *const *excluded) {
#define NAME(member, symbol, parameters) #member,
    static const char *const entries[] = {MU_DRIVER_ENTRIES(NAME, NAME)};
#undef NAME
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        const char *const *other = excluded;
        while (*other && strcmp(*other, entries[i]) != 0) other++;
        if (!*other) sum += residency_calls(r, entries[i]);
    }
    return sum;
}
