#include "scheduler/actor/tally.h"

#include <string.h>

#include "device/burst.h"
#include "scheduler/actor/actor.h"

static void count(mu_actor *actor, mu_tally_shape *shape) {
    if (!shape->launches) return;
    mu_launch launch = {.function = shape->function};
    memcpy(launch.grid, shape->grid, sizeof launch.grid);
    memcpy(launch.block, shape->block, sizeof launch.block);
    mu_launch_account(actor->device, &launch, shape->launches, shape->occupancy);
    shape->launches = 0;
}

static bool is_of(const mu_tally_shape *shape, const mu_launch *launch) {
    return shape->function == launch->function && memcmp(shape->grid, launch->grid, sizeof shape->grid) == 0 &&
           memcmp(shape->block, launch->block, sizeof shape->block) == 0 &&
           shape->dynamic_shared_bytes == launch->dynamic_shared_bytes;
}

static int ask(mu_actor *actor, const mu_launch *launch) {
    int blocks;
    uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    return mu_occupancy_cache_get(actor->occupancy, launch->function, threads, launch->dynamic_shared_bytes, &blocks,
                                  NULL)
               ? -1
               : blocks;
}

static mu_tally_shape *find(mu_actor *actor, const mu_launch *launch) {
    mu_tally *tally = &actor->tally;
    uint32_t home = mu_launch_key(launch->function, launch->grid, launch->block, launch->dynamic_shared_bytes) / 2;
    mu_tally_shape *place = NULL;
    for (uint32_t i = 0; i < MU_TALLY_REACH; i++) {
        mu_tally_shape *shape = &tally->shapes[(home + i) % MU_TALLY_SHAPES];
        if (is_of(shape, launch)) return shape;
        if (!place && !shape->function) place = shape;
    }
    if (!place) place = &tally->shapes[home % MU_TALLY_SHAPES];
    count(actor, place);
    tally->last_tag = NULL; /* it may be that one */
    *place = (mu_tally_shape){.function = launch->function,
                              .dynamic_shared_bytes = launch->dynamic_shared_bytes,
                              .occupancy = ask(actor, launch)};
    memcpy(place->grid, launch->grid, sizeof place->grid);
    memcpy(place->block, launch->block, sizeof place->block);
    return place;
}

void mu_tally_add(mu_actor *actor, const mu_launch *launch, const void *tag) {
    mu_tally *tally = &actor->tally;
    if (!tag || tag != tally->last_tag) {
        tally->last = find(actor, launch);
        tally->last_tag = tag;
        size_t number = (size_t)(tally->last - tally->shapes);
        tally->pending[number / 64] |= UINT64_C(1) << number % 64;
    }
    tally->last->launches++;
}

int mu_tally_occupancy(mu_actor *actor, const mu_launch *launch) { return find(actor, launch)->occupancy; }

void mu_tally_flush(mu_actor *actor) {
    mu_tally *tally = &actor->tally;
    for (size_t word = 0; word < MU_TALLY_SHAPES / 64; word++)
        for (uint64_t *bits = &tally->pending[word]; *bits; *bits &= *bits - 1)
            count(actor, &tally->shapes[64 * word + (size_t)__builtin_ctzll(*bits)]);
    tally->last_tag = NULL;
}

void mu_tally_forget(mu_actor *actor, mu_function function) {
    mu_tally_flush(actor);
    for (int i = 0; i < MU_TALLY_SHAPES; i++)
        if (actor->tally.shapes[i].function == function) actor->tally.shapes[i].function = NULL;
}
