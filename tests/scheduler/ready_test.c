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

/* Hands over as a worker does, with new tasks of the highest level always there. */
static void lower_priorities_get_a_turn_each(void **unused) {
    (void)unused;
    enum { LOW = 3, HANDED = 9 * MU_PRIORITY_PASSES_MAX };
    static const int8_t low[LOW] = {-7, 2, -7};
    actor = calloc(1, sizeof *actor);
    assert_non_null(actor);
    uint32_t at[LOW] = {0}, count = 0;
    for (uint32_t i = 0; i < LOW; i++) {
        tasks[i].priority = low[i];
        mu_ready_put(actor, &tasks[i]);
    }
    for (uint32_t i = LOW; i < LOW + 2; i++) {
        tasks[i].priority = 5;
        mu_ready_put(actor, &tasks[i]);
    }
    for (uint32_t handed = 1; handed <= HANDED && count < LOW; handed++) {
        bool planned = handed % 3 == 0;
        mu_task *planned_first = actor->ready.first;
        mu_ready_age(actor, planned);
        if (planned) assert_ptr_equal(actor->ready.first, planned_first);
        mu_task *task = mu_ready_take(actor);
        if (task >= &tasks[LOW])
            mu_ready_put(actor, task);
        else
            at[task - tasks] = handed, count++;
    }
    /* The level below first, then the lowest, whose older one comes first. */
    assert_int_equal(count, LOW);
    assert_in_range(at[1], MU_PRIORITY_PASSES_MAX, MU_PRIORITY_PASSES_MAX + 2);
    assert_in_range(at[0], 2 * MU_PRIORITY_PASSES_MAX, 2 * MU_PRIORITY_PASSES_MAX + 4);
    assert_in_range(at[2], 3 * MU_PRIORITY_PASSES_MAX, 3 * MU_PRIORITY_PASSES_MAX + 6);
    assert_int_equal(actor->ready.count, 2);
    assert_int_equal(actor->ready_levels.above, 0);
    free(actor);
}

/* The order of all others stays, and what is kept about levels stays right. */
static void promoting_moves_one_task(void **unused) {
    (void)unused;
    actor = calloc(1, sizeof *actor);
    assert_non_null(actor);
    model_count = 0;
    for (free_count = 0; free_count < TASKS; free_count++) free_tasks[free_count] = &tasks[free_count];
    for (uint32_t step = 0; step < STEPS / 10; step++) {
        if (free_count && draw(3)) {
            put_one(MUSTER_PRIORITY_HIGHEST);
        } else if (model_count > 1 && draw(2)) {
            mu_ready_promote(actor);
            mu_task *first = actor->ready.first;
            uint32_t from = 0;
            while (model[from] != first) from++;
            for (; from > 0; from--) model[from] = model[from - 1];
            model[0] = first;
            if (model_count > 1) assert_int_equal(first->priority, model[1]->priority);
        } else {
            mu_task *task = mu_ready_take(actor);
            assert_ptr_equal(task, model_take());
            if (task) free_tasks[free_count++] = task;
        }
        assert_equal_to_model();
    }
    free(actor);
}

int main(void) {
    const struct CMUnitTest all[] = {
        cmocka_unit_test(any_sequence_is_in_order),
        cmocka_unit_test(lower_priorities_get_a_turn_each),
        cmocka_unit_test(promoting_moves_one_task),
    };
    return cmocka_run_group_tests_name("ready", all, NULL, NULL);
}
