#include "base/epoch.h"

#include <string.h>

#include "base/alloc.h"
#include "base/tuning.h"

CK_EPOCH_CONTAINER(mu_epoch_entry, ck, entry_of)

/* A record never shares its cache lines: the hot path of one reader must not touch another's. */
static mu_epoch_reader *make_reader(mu_epoch *epoch) {
    size_t bytes = (sizeof(mu_epoch_reader) + MU_CACHE_LINE - 1) / MU_CACHE_LINE * MU_CACHE_LINE;
    mu_epoch_reader *reader = mu_alloc_aligned(MU_CACHE_LINE, bytes);
    if (!reader) return NULL;
    memset(reader, 0, bytes);
    reader->epoch = epoch;
    ck_epoch_register(&epoch->ck, &reader->record, NULL);
    reader->next = epoch->all;
    epoch->all = reader;
    return reader;
}

bool mu_epoch_init(mu_epoch *epoch) {
    memset(epoch, 0, sizeof *epoch);
    ck_epoch_init(&epoch->ck);
    epoch->writer = make_reader(epoch);
    return epoch->writer != NULL;
}

void mu_epoch_destroy(mu_epoch *epoch) {
    ck_epoch_reclaim(&epoch->writer->record);
    for (mu_epoch_reader *next, *reader = epoch->all; reader; reader = next) {
        next = reader->next;
        mu_free_aligned(reader);
    }
    memset(epoch, 0, sizeof *epoch);
}

mu_epoch_reader *mu_epoch_reader_create(mu_epoch *epoch) {
    mu_epoch_reader *reader = epoch->idle;
    if (!reader) return make_reader(epoch);
    epoch->idle = reader->next_idle;
    return reader;
}

/* The record stays registered: outside a section it holds nothing back. */
void mu_epoch_reader_destroy(mu_epoch_reader *reader) {
    if (!reader) return;
    reader->next_idle = reader->epoch->idle;
    reader->epoch->idle = reader;
}

static void run_entry(ck_epoch_entry_t *ck) {
    mu_epoch_entry *entry = entry_of(ck);
    entry->epoch->pending--;
    MU_TSAN_ACQUIRE(entry->epoch); /* pairs with the release of every mu_epoch_leave */
    entry->reclaim(entry);
}

void mu_epoch_defer(mu_epoch *epoch, mu_epoch_entry *entry, void (*reclaim)(mu_epoch_entry *entry)) {
    entry->epoch = epoch;
    entry->reclaim = reclaim;
    epoch->pending++;
    ck_epoch_call(&epoch->writer->record, &entry->ck, run_entry);
}

void mu_epoch_poll(mu_epoch *epoch) {
    if (epoch->pending) ck_epoch_poll(&epoch->writer->record);
}
