#include "device/diagnostic.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device/geometry.h"
#include "device/residency.h"

typedef struct line {
    char *text;
    size_t length;
    unsigned fixes;
} line;

__attribute__((format(printf, 2, 3))) static void put(line *to, const char *format, ...) {
    va_list arguments;
    size_t room = MU_DIAGNOSTIC_BYTES - to->length;
    va_start(arguments, format);
    int written = vsnprintf(to->text + to->length, room, format, arguments);
    va_end(arguments);
    if (written > 0) to->length += (size_t)written < room ? (size_t)written : room - 1;
}

/* Starts the next entry of the list of fixes. */
static void next_fix(line *to) { put(to, to->fixes++ ? "," : "|status=blocked|fix="); }

static void put_kernel(line *to, const char *kernel) {
    enum { MAX_NAME = 256 };
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s", kernel ? kernel : "");
    for (char *at = name; *at; at++)
        if (strchr("|,\n\r", *at)) *at = '_';
    put(to, "cuda-kernel-capability-v1|kernel=%s", name);
}

static uint64_t saturated(const uint32_t axes[3]) {
    uint64_t product;
    return mu_axis_product(axes, "", &product, NULL) == MUSTER_OK ? product : UINT64_MAX;
}

static void put_fixes(line *to, const mu_capability *capability, const mu_kernel_demand *demand, uint64_t threads) {
    uint64_t shared;
    if (__builtin_add_overflow(demand->static_shared_bytes, demand->dynamic_shared_bytes, &shared)) shared = UINT64_MAX;
    if (demand->required_sm > capability->native_sm) {
        next_fix(to);
        put(to, "sm_version(required=%d,actual=%d)", demand->required_sm, capability->native_sm);
    }
    if (threads > (uint64_t)capability->max_threads_per_block) {
        next_fix(to);
        put(to, "threads_per_block(requested=%" PRIu64 ",max=%d)", threads, capability->max_threads_per_block);
    }
    if (shared > (uint64_t)capability->shared_bytes_optin) {
        next_fix(to);
        put(to, "shared_memory(requested=%" PRIu64 ",max=%d)", shared, capability->shared_bytes_optin);
    }
    if (demand->cooperative && !mu_has_grid_sync(capability)) {
        next_fix(to);
        put(to, "cooperative_launch");
    }
    if (demand->tensor_cores && !mu_has_tensor_cores(capability)) {
        next_fix(to);
        put(to, "tensor_cores");
    }
    if (to->fixes == 0) put(to, "|status=ok");
}

bool mu_diagnostic_line(const mu_capability *capability, const mu_kernel_demand *demand,
                        char text[MU_DIAGNOSTIC_BYTES]) {
    line to = {.text = text};
    const uint32_t *grid = demand->grid, *block = demand->block;
    uint64_t blocks = saturated(grid), threads = saturated(block), limit;
    put_kernel(&to, demand->kernel);
    put_fixes(&to, capability, demand, threads);
    put(&to, "|grid=[%" PRIu32 ", %" PRIu32 ", %" PRIu32 "]|block=[%" PRIu32 ", %" PRIu32 ", %" PRIu32 "]", grid[0],
        grid[1], grid[2], block[0], block[1], block[2]);
    put(&to, "|grid_blocks=%" PRIu64 "|threads_per_block=%" PRIu64 "|dynamic_shared_bytes=%" PRIu64, blocks, threads,
        demand->dynamic_shared_bytes);
    if (!demand->cooperative) return to.fixes == 0;
    if (demand->occupancy < 0 || mu_resident_limit_of_function(capability, demand->occupancy, &limit, NULL))
        limit = mu_resident_limit_of_device(capability, threads);
    put(&to, "|cooperative_resident_block_limit=%" PRIu64, limit);
    if (mu_grid_is_resident(blocks, limit)) return to.fixes == 0;
    put(&to, "|cooperative_residency=blocked(required=%" PRIu64 ",limit=%" PRIu64 ")", blocks, limit);
    return false;
}
