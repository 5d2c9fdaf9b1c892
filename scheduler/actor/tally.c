#include "scheduler/actor/tally.h"

#include <string.h>

#include "scheduler/actor/actor.h"

static void count(mu_actor *actor, struct mu_tally_shape *shape) {
    mu_launch launch = {.function = shape->function};
    memcpy(launch.grid, shape->grid, sizeof launch.grid);
    memcpy(launch.block, shape->block, sizeof launch.block);
    mu_launch_account(actor->device, &launch, shape->launches, shape->occupancy);
    shape->launches = 0;
}

static bool is_of(const struct mu_tally_shape *shape, const mu_launch *launch) {
    const uint32_t *a = shape->grid, *b = launch->grid, *c = shape->block, *d = launch->block;
    return shape->function == launch->function && a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && c[0] == d[0] &&
           c[1] == d[1] && c[2] == d[2] && shape->dynamic_shared_bytes == launch->dynamic_shared_bytes;
}

static int ask(mu_actor *actor, const mu_launch *launch) {
    int blocks;
    uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    return mu_occupancy_cache_get(actor->occupancy, launch->function, threads, launch->dynamic_shared_bytes, &blocks,
                                  NULL)
               ? -1
               : blocks;
}

static struct mu_tally_shape *find(mu_actor *actor, const mu_launch *launch) {
    uint32_t index = (uint32_t)(((uintptr_t)launch->function * UINT64_C(0x9e3779b97f4a7c15)) >> 60);
    struct mu_tally_shape *shape = &actor->tally.shapes[index];
    if (is_of(shape, launch)) return shape;
    if (shape->launches) count(actor, shape);
    actor->tally.pending &= ~(1u << index);
    *shape = (struct mu_tally_shape){.function = launch->function,
                                     .dynamic_shared_bytes = launch->dynamic_shared_bytes,
                                     .occupancy = ask(actor, launch)};
    memcpy(shape->grid, launch->grid, sizeof shape->grid);
    memcpy(shape->block, launch->block, sizeof shape->block);
    return shape;
}

void mu_tally_add(mu_actor *actor, const mu_launch *launch) {
    struct mu_tally_shape *shape = find(actor, launch);
    shape->launches++;
    actor->tally.pending |= 1u << (shape - actor->tally.shapes);
}

int mu_tally_occupancy(mu_actor *actor, const mu_launch *launch) { return find(actor, launch)->occupancy; }

void mu_tally_flush(mu_actor *actor) {
    for (; actor->tally.pending; actor->tally.pending &= actor->tally.pending - 1)
        count(actor, &actor->tally.shapes[__builtin_ctz(actor->tally.pending)]);
}

void mu_tally_forget(mu_actor *actor, mu_function function) {
    mu_tally_flush(actor);
    for (int i = 0; i < MU_TALLY_SHAPES; i++)
        if (actor->tally.shapes[i].function == function) actor->tally.shapes[i].function = NULL;
}
