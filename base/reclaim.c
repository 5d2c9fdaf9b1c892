#include "base/reclaim.h"

#include <string.h>

#include "base/alloc.h"
#include "base/tuning.h"

CK_EPOCH_CONTAINER(mu_reclaim_entry, ck, entry_of)

/* A record never shares its cache lines: the hot path of one reader must not touch another's. */
static mu_reclaim_reader *make_reader(mu_reclaim *domain) {
    size_t bytes = (sizeof(mu_reclaim_reader) + MU_CACHE_LINE - 1) / MU_CACHE_LINE * MU_CACHE_LINE;
    mu_reclaim_reader *reader = mu_alloc_aligned(MU_CACHE_LINE, bytes);
    if (!reader) return NULL;
    memset(reader, 0, bytes);
    reader->domain = domain;
    ck_epoch_register(&domain->ck, &reader->record, NULL);
    reader->next = domain->all;
    domain->all = reader;
    return reader;
}

bool mu_reclaim_init(mu_reclaim *domain) {
    memset(domain, 0, sizeof *domain);
    ck_epoch_init(&domain->ck);
    domain->writer = make_reader(domain);
    return domain->writer != NULL;
}

void mu_reclaim_destroy(mu_reclaim *domain) {
    ck_epoch_reclaim(&domain->writer->record);
    for (mu_reclaim_reader *next, *reader = domain->all; reader; reader = next) {
        next = reader->next;
        mu_free_aligned(reader);
    }
    memset(domain, 0, sizeof *domain);
}

mu_reclaim_reader *mu_reclaim_reader_create(mu_reclaim *domain) {
    mu_reclaim_reader *reader = domain->idle;
    if (!reader) return make_reader(domain);
    domain->idle = reader->next_idle;
    return reader;
}

/* The record stays registered: outside a section it holds nothing back. */
void mu_reclaim_reader_destroy(mu_reclaim_reader *reader) {
    if (!reader) return;
    reader->next_idle = reader->domain->idle;
    reader->domain->idle = reader;
}

static void run_entry(ck_epoch_entry_t *ck) {
    mu_reclaim_entry *entry = entry_of(ck);
    entry->domain->pending--;
    MU_TSAN_ACQUIRE(entry->domain); /* pairs with the release of every mu_reclaim_leave */
    entry->reclaim(entry);
}

void mu_reclaim_defer(mu_reclaim *domain, mu_reclaim_entry *entry, void (*reclaim)(mu_reclaim_entry *entry)) {
    entry->domain = domain;
    entry->reclaim = reclaim;
    domain->pending++;
    ck_epoch_call(&domain->writer->record, &entry->ck, run_entry);
}

void mu_reclaim_poll(mu_reclaim *domain) {
    if (domain->pending) ck_epoch_poll(&domain->writer->record);
}
