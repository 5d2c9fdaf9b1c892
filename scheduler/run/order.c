#include "scheduler/run/order.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

void mu_order_init(mu_order *order, uint32_t device_count) {
    pthread_mutex_init(&order->lock, NULL);
    order->device_count = device_count;
}

void mu_order_destroy(mu_order *order) { pthread_mutex_destroy(&order->lock); }

size_t mu_order_entry_bytes(const mu_order *order, uint32_t use_count) {
    return use_count * sizeof(mu_order_use) + 2 * order->device_count * sizeof(uint64_t);
}

/* The epochs first, for they need no more than 8-byte alignment and neither do the uses. */
void mu_order_entry_place(const mu_order *order, mu_order_entry *entry, uint32_t use_count, void *memory) {
    uint64_t *block = memory;
    memset(entry, 0, sizeof *entry);
    memset(block, 0, mu_order_entry_bytes(order, use_count));
    entry->last = block;
    entry->gate = block + order->device_count;
    entry->uses = (mu_order_use *)(block + 2 * order->device_count);
    entry->use_count = use_count;
    for (uint32_t i = 0; i < use_count; i++) entry->uses[i].entry = entry;
}

muster_status mu_order_entry_init(mu_order *order, mu_order_entry *entry, uint32_t use_count, muster_error *error) {
    size_t bytes = mu_order_entry_bytes(order, use_count);
    void *memory = mu_alloc(bytes);
    if (!memory) return mu_fail_host_memory(error, "the order of a run", bytes);
    mu_order_entry_place(order, entry, use_count, memory);
    entry->owned = memory;
    return MUSTER_OK;
}

void mu_order_entry_destroy(mu_order_entry *entry) {
    mu_free(entry->owned);
    mu_free(entry->edges);
}

static void merge_gate(const mu_order *order, mu_order_entry *follower, const mu_order_entry *entry) {
    for (uint32_t d = 0; d < order->device_count; d++)
        if (entry->last[d] > follower->gate[d]) follower->gate[d] = entry->last[d];
}

/* Follows `before`: an edge while it has not passed, its epochs otherwise. */
static uint32_t follow(const mu_order *order, mu_order_entry *entry, mu_order_entry *before, uint32_t edge) {
    if (before->passed) {
        merge_gate(order, entry, before);
        return edge;
    }
    entry->edges[edge] = (mu_order_edge){entry, before->followers};
    before->followers = &entry->edges[edge];
    entry->pending++;
    return edge + 1;
}

/* Edges that entering now needs: one for each entry to follow that has not passed. */
static uint32_t count_edges(const mu_order_entry *entry) {
    uint32_t edges = 0;
    for (uint32_t i = 0; i < entry->use_count; i++) {
        const mu_order_state *state = entry->uses[i].state;
        if (state->writer) edges += !state->writer->passed;
        if (!entry->uses[i].writes) continue;
        for (const mu_order_use *reader = state->readers; reader; reader = reader->next)
            edges += !reader->entry->passed;
    }
    return edges;
}

static void enter_use(mu_order_use *use) {
    mu_order_state *state = use->state;
    if (use->writes) {
        /* What follows this writer comes after the readers too: forget them here. */
        while (state->readers) {
            mu_order_use *reader = state->readers;
            state->readers = reader->next;
            reader->linked = false;
        }
        state->writer = use->entry;
    } else {
        use->linked = true;
        use->previous = NULL;
        use->next = state->readers;
        if (state->readers) state->readers->previous = use;
        state->readers = use;
    }
}

static muster_status enter(mu_order *order, mu_order_entry *entry, bool only_if_free, muster_error *error) {
    /* The edges are allocated outside the lock, for as many as were needed a moment ago, and some more. */
    uint32_t capacity = 0, needed;
    pthread_mutex_lock(&order->lock);
    while ((needed = count_edges(entry)) > capacity && !only_if_free) {
        pthread_mutex_unlock(&order->lock);
        capacity = needed + 8;
        mu_free(entry->edges);
        entry->edges = mu_alloc(capacity * sizeof *entry->edges);
        if (!entry->edges) return mu_fail_host_memory(error, "the order of a run", capacity * sizeof *entry->edges);
        pthread_mutex_lock(&order->lock);
    }
    if (only_if_free && needed) {
        pthread_mutex_unlock(&order->lock);
        return mu_fail(error, MUSTER_BUSY, "%u earlier runs or acquisitions come first", needed);
    }
    entry->pending = 1;
    uint32_t edge = 0;
    for (uint32_t i = 0; i < entry->use_count; i++) {
        mu_order_use *use = &entry->uses[i];
        if (use->state->writer) edge = follow(order, entry, use->state->writer, edge);
        if (use->writes)
            for (mu_order_use *reader = use->state->readers; reader; reader = reader->next)
                edge = follow(order, entry, reader->entry, edge);
    }
    for (uint32_t i = 0; i < entry->use_count; i++) enter_use(&entry->uses[i]);
    bool ready = --entry->pending == 0;
    pthread_mutex_unlock(&order->lock);
    if (ready) entry->ready(entry);
    return MUSTER_OK;
}

muster_status mu_order_enter(mu_order *order, mu_order_entry *entry, muster_error *error) {
    return enter(order, entry, false, error);
}

muster_status mu_order_try_enter(mu_order *order, mu_order_entry *entry, muster_error *error) {
    return enter(order, entry, true, error);
}

/* What the mu_order_pass that this thread is in has yet to call, NULL outside. Entries that pass as soon as they are ready add their
 * followers here, rather than call them from within: else a long chain would take as much of the stack. */
static _Thread_local mu_order_edge **under_way;

void mu_order_pass(mu_order *order, mu_order_entry *entry) {
    /* Followers that become ready are collected through their edges, which nobody else touches any more. */
    mu_order_edge *own = NULL, **ready = under_way ? under_way : &own;
    pthread_mutex_lock(&order->lock);
    entry->passed = true;
    mu_order_edge *edge = entry->followers;
    entry->followers = NULL;
    while (edge) {
        mu_order_edge *next = edge->next;
        merge_gate(order, edge->follower, entry);
        if (--edge->follower->pending == 0) {
            edge->next = *ready;
            *ready = edge;
        }
        edge = next;
    }
    pthread_mutex_unlock(&order->lock);
    if (under_way) return;
    under_way = &own;
    while (own) {
        mu_order_entry *follower = own->follower;
        own = own->next; /* before the call: the follower may end and free its edges */
        follower->ready(follower);
    }
    under_way = NULL;
}

void mu_order_leave(mu_order *order, mu_order_entry *entry) {
    pthread_mutex_lock(&order->lock);
    for (uint32_t i = 0; i < entry->use_count; i++) {
        mu_order_use *use = &entry->uses[i];
        if (use->state->writer == entry) use->state->writer = NULL;
        if (!use->linked) continue;
        use->linked = false;
        if (use->previous)
            use->previous->next = use->next;
        else
            use->state->readers = use->next;
        if (use->next) use->next->previous = use->previous;
    }
    pthread_mutex_unlock(&order->lock);
}
