/* The ready queue against a model that sorts: any sequence of additions and removals. */
#include "scheduler/actor/ready.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { TASKS = 64, STEPS = 200000 };

static mu_actor *actor;
static mu_task tasks[TASKS];
static uint64_t state = 1;

static uint32_t draw(uint32_t below) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % below;
}

/* What is in the queue, in order. */
static mu_task *model[TASKS];
static uint32_t model_count;

static void model_insert(mu_task *task, bool first) {
    uint32_t at = 0;
    while (at < model_count && (first ? model[at]->priority > task->priority : model[at]->priority >= task->priority))
        at++;
    for (uint32_t i = model_count++; i > at; i--) model[i] = model[i - 1];
    model[at] = task;
}

static mu_task *model_take(void) {
    if (model_count == 0) return NULL;
    mu_task *task = model[0];
    for (uint32_t i = 1; i < model_count; i++) model[i - 1] = model[i];
    model_count--;
    return task;
}

static void assert_equal_to_model(void) {
    uint32_t at = 0;
    for (mu_task *task = actor->ready.first; task; task = (mu_task *)task->message.link.next) {
        assert_true(at < model_count);
        assert_ptr_equal(task, model[at++]);
    }
    assert_int_equal(at, model_count);
    assert_int_equal(actor->ready.count, model_count);
    assert_ptr_equal(actor->ready.last, model_count ? model[model_count - 1] : NULL);
}

static mu_task *free_tasks[TASKS];
static uint32_t free_count;

static void put_one(int spread) {
    mu_task *task = free_tasks[--free_count];
    task->priority = (int8_t)((int)draw(2 * (uint32_t)spread + 1) - spread);
    mu_ready_put(actor, task);
    model_insert(task, false);
}

/* Those that are put first together keep their order. */
static void put_some_first(int spread) {
    mu_task_list list = {NULL, NULL, 0};
    mu_task *added[TASKS];
    uint32_t count = 1 + draw(free_count < 5 ? free_count : 5);
    for (uint32_t i = 0; i < count; i++) {
        added[i] = free_tasks[--free_count];
        added[i]->priority = (int8_t)((int)draw(2 * (uint32_t)spread + 1) - spread);
        mu_task_list_append(&list, added[i]);
    }
    mu_ready_put_first(actor, &list);
    assert_null(list.first);
    for (uint32_t i = count; i-- > 0;) model_insert(added[i], true);
}

static void take_from_the_middle(void) {
    uint32_t at = 1 + draw(model_count - 1);
    free_tasks[free_count++] = model[at];
    mu_ready_take_after(actor, model[at - 1]);
    model_count--;
    for (uint32_t i = at; i < model_count; i++) model[i] = model[i + 1];
}

static void any_sequence_is_in_order(void **unused) {
    (void)unused;
    actor = calloc(1, sizeof *actor);
    assert_non_null(actor);
    for (free_count = 0; free_count < TASKS; free_count++) free_tasks[free_count] = &tasks[free_count];
    for (uint32_t step = 0; step < STEPS; step++) {
        /* All of one priority, a few, all. */
        int spread = (int[]){0, 1, MUSTER_PRIORITY_HIGHEST}[step / 1000 % 3];
        uint32_t what = draw(step / 100 % 2 ? 10 : 7);
        if (free_count && what < 3) {
            put_one(spread);
        } else if (free_count && what == 3) {
            put_some_first(spread);
        } else if (what == 4 && model_count > 1) {
            take_from_the_middle();
        } else {
            mu_task *task = mu_ready_take(actor);
            assert_ptr_equal(task, model_take());
            if (task) free_tasks[free_count++] = task;
        }
        assert_equal_to_model();
        if (model_count == 0) assert_int_equal(actor->ready_levels.above, 0);
    }
    free(actor);
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(any_sequence_is_in_order)};
    return cmocka_run_group_tests_name("ready", all, NULL, NULL);
}
