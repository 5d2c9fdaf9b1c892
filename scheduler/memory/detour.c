#include "scheduler/memory/detour.h"

#include "base/alloc.h"
#include "base/error.h"
#include "scheduler/actor/enqueue.h"
#include "scheduler/memory/fetch.h"
#include "scheduler/runtime/runtime.h"

struct mu_detour {
    mu_call call; /* from the worker that is done with the last copy to this actor's */
    mu_detour *next;
    mu_actor *actor;
    mu_fetch *fetch;
    muster_buffer *buffer; /* a reference is held */
    mu_task_list waiting;
};

/* The host has it now. */
static void end(mu_actor *actor, mu_call *call) {
    mu_detour *detour = (mu_detour *)call;
    mu_detour **link = &actor->detours;
    while (*link != detour) link = &(*link)->next;
    *link = detour->next;
    muster_error failure = detour->fetch->failure;
    if (!failure.status) mu_fetch_settle(detour->fetch, &failure);
    mu_fetch_destroy(detour->fetch);
    if (failure.status && !actor->lost)
        for (mu_task *task; (task = mu_task_list_take(&detour->waiting)); actor->held_tasks--)
            mu_enqueue_failed(actor, mu_run_at(actor->runtime, task->run), task, &failure);
    else
        mu_actor_take_up(actor, &detour->waiting);
    mu_buffer_release(detour->buffer);
    mu_free(detour);
}

static const uint64_t after_nothing[MU_MAX_DEVICES];

static void fetched(mu_fetch *fetch) {
    mu_detour *detour = fetch->user;
    mu_actor_post_call(detour->actor, &detour->call);
}

mu_detour *mu_detour_take(mu_actor *actor, muster_buffer *buffer, const mu_area *area, muster_error *error) {
    for (mu_detour *detour = actor->detours; detour; detour = detour->next)
        if (detour->buffer == buffer && mu_areas_overlap(&detour->fetch->ranges[0].area, area)) return detour;
    mu_detour *detour = mu_alloc_zeroed(1, sizeof *detour);
    if (!detour) {
        mu_fail_host_memory(error, "a copy by way of the host", sizeof *detour);
        return NULL;
    }
    if (mu_fetch_create(actor->runtime, 1, &detour->fetch, error)) goto free_detour;
    detour->fetch->ranges[0] = (mu_fetch_range){buffer, *area, MUSTER_READ};
    detour->fetch->after = after_nothing; /* but what each piece is stamped with */
    detour->fetch->done = fetched;
    detour->fetch->user = detour;
    mu_fetch_plan(detour->fetch);
    if (mu_error_copy(error, detour->fetch->failure.status ? &detour->fetch->failure : NULL)) goto free_fetch;
    mu_handle_retain(&buffer->handle);
    detour->call.run = end;
    detour->actor = actor;
    detour->buffer = buffer;
    detour->next = actor->detours;
    actor->detours = detour;
    if (!mu_fetch_start(detour->fetch)) mu_actor_post_call(actor, &detour->call);
    return detour;
free_fetch:
    mu_fetch_destroy(detour->fetch);
free_detour:
    mu_free(detour);
    return NULL;
}

void mu_detour_wait(mu_actor *actor, mu_detour *detour, mu_task *task) {
    mu_task_list_append(&detour->waiting, task);
    actor->held_tasks++;
}
