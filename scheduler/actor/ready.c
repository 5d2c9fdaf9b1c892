#include "scheduler/actor/ready.h"

static uint32_t level_of(const mu_task *task) { return (uint32_t)(task->priority - MUSTER_PRIORITY_LOWEST); }

/* The last task of a level above `level`, or of that itself if `own`; NULL: no task is in front of where the level begins. */
static mu_task *last_before(const mu_ready_levels *levels, uint32_t level, bool own) {
    uint32_t above = levels->above >> (own ? level : level + 1);
    if (!above) return NULL;
    return levels->last[(own ? level : level + 1) + (uint32_t)__builtin_ctz(above)];
}

/* The task is the last of its level, and others of lower levels are behind it. */
static void note_last(mu_ready_levels *levels, mu_task *task) {
    levels->above |= 1u << level_of(task);
    levels->last[level_of(task)] = task;
}

static void link_behind(mu_task_list *list, mu_task *before, mu_task *task) {
    struct mu_link *next = before ? before->message.link.next : &list->first->message.link;
    task->message.link.next = next;
    if (before)
        before->message.link.next = &task->message.link;
    else
        list->first = task;
    list->count++;
}

/* The list is not empty. Its last task's level is the lowest that is there, and the only one without a mark. */
static void insert(mu_actor *actor, mu_task *task, bool first) {
    mu_task_list *list = &actor->ready;
    mu_ready_levels *levels = &actor->ready_levels;
    mu_task *last = list->last;
    if (last->priority > task->priority) {
        note_last(levels, last);
        mu_task_list_append(list, task);
        return;
    }
    uint32_t level = level_of(task);
    link_behind(list, last_before(levels, level, !first), task);
    bool marked = levels->above >> level & 1;
    if (last->priority < task->priority && (!first || !marked)) note_last(levels, task);
}

void mu_ready_insert(mu_actor *actor, mu_task *task) { insert(actor, task, false); }

void mu_ready_put_first(mu_actor *actor, mu_task_list *tasks) {
    mu_task *newest = NULL;
    for (mu_task *task; (task = mu_task_list_take(tasks));) {
        task->message.link.next = newest ? &newest->message.link : NULL;
        newest = task;
    }
    while (newest) {
        mu_task *task = newest;
        newest = (mu_task *)task->message.link.next;
        if (actor->ready.first)
            insert(actor, task, true);
        else
            mu_task_list_append(&actor->ready, task);
    }
}

void mu_ready_forget(mu_actor *actor, const mu_task *task) {
    mu_ready_levels *levels = &actor->ready_levels;
    if (levels->last[level_of(task)] == task) levels->above &= ~(1u << level_of(task));
}

void mu_ready_promote(mu_actor *actor) {
    mu_ready_levels *levels = &actor->ready_levels;
    const mu_task *first = actor->ready.first;
    levels->passes = 0;
    uint32_t there = levels->above | 1u << level_of(actor->ready.last);
    uint32_t lower = there & ((1u << level_of(first)) - 1);
    if (!lower) return;
    uint32_t next = lower & ((1u << levels->turn) - 1);
    levels->turn = 31 - (uint32_t)__builtin_clz(next ? next : lower);
    mu_task *before = last_before(levels, levels->turn, false), *task = (mu_task *)before->message.link.next;
    mu_ready_take_after(actor, before);
    task->priority = first->priority;
    insert(actor, task, true);
}

void mu_ready_take_after(mu_actor *actor, mu_task *before) {
    mu_task_list *list = &actor->ready;
    mu_ready_levels *levels = &actor->ready_levels;
    mu_task *task = (mu_task *)before->message.link.next;
    before->message.link.next = task->message.link.next;
    list->count--;
    uint32_t level = level_of(task), own = level_of(before);
    if (levels->above >> level & 1 && levels->last[level] == task) {
        if (own == level)
            levels->last[level] = before;
        else
            levels->above &= ~(1u << level);
    }
    if (list->last != task) return;
    list->last = before; /* whose level is the lowest now */
    levels->above &= ~(1u << own);
}
