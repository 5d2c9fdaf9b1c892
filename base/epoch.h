/* Epoch-based reclamation: readers of a lock-free structure enter a section, and what a writer removes is freed once no
 * section is left that could have seen it. A wrapper of ck_epoch that tells ThreadSanitizer what orders what.
 *
 * Threading: a reader belongs to one thread at a time. mu_epoch_enter and mu_epoch_leave write the reader's own cache
 * line only and take no lock. Everything else is called by one thread at a time: under the lock of the structure's
 * writers. Nothing blocks. */
#ifndef MUSTER_BASE_EPOCH_H
#define MUSTER_BASE_EPOCH_H

#include <ck_epoch.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/sanitizer.h"

typedef struct mu_epoch_reader mu_epoch_reader;
typedef struct mu_epoch_entry mu_epoch_entry;

typedef struct mu_epoch {
    ck_epoch_t ck;
    mu_epoch_reader *writer; /* the record that removals are queued on */
    mu_epoch_reader *all;    /* every record, chained by `next`: ck_epoch cannot forget one */
    mu_epoch_reader *idle;   /* those to be reused, chained by `next_idle` */
    uint64_t pending;        /* deferred and not yet run */
} mu_epoch;

struct mu_epoch_reader {
    ck_epoch_record_t record; /* first: its alignment is a cache line */
    mu_epoch *epoch;
    mu_epoch_reader *next, *next_idle;
};

/* Embedded in what is reclaimed. */
struct mu_epoch_entry {
    ck_epoch_entry_t ck;
    mu_epoch *epoch;
    void (*reclaim)(mu_epoch_entry *entry);
};

/* False when host memory is short; then there is nothing to destroy. The epoch must not move in memory. */
bool mu_epoch_init(mu_epoch *epoch);
/* Runs what is deferred and frees every reader. Nobody is in a section. */
void mu_epoch_destroy(mu_epoch *epoch);

/* NULL when host memory is short. Readers are reused, and freed with the epoch. */
mu_epoch_reader *mu_epoch_reader_create(mu_epoch *epoch);
void mu_epoch_reader_destroy(mu_epoch_reader *reader); /* outside its sections; NULL is ignored */

/* Sections nest. What a reader finds inside one stays allocated until it has left the outermost. */
static inline void mu_epoch_enter(mu_epoch_reader *reader) { ck_epoch_begin(&reader->record, NULL); }

static inline void mu_epoch_leave(mu_epoch_reader *reader) {
    MU_TSAN_RELEASE(reader->epoch); /* pairs with the acquire before an entry is reclaimed */
    ck_epoch_end(&reader->record, NULL);
}

/* Runs `reclaim(entry)`, from a later mu_epoch_poll or mu_epoch_destroy, once every section of now has ended. The
 * caller has already removed the object from the structure. */
void mu_epoch_defer(mu_epoch *epoch, mu_epoch_entry *entry, void (*reclaim)(mu_epoch_entry *entry));

/* Reclaims what can be, and moves the epoch on. Two or three calls reclaim everything once no section is open; one that
 * stays open holds back what was removed since it began. */
void mu_epoch_poll(mu_epoch *epoch);

#endif
