/* Epoch-based reclamation: readers of a lock-free structure enter a section, and what a writer removes is freed once no
 * section is left that could have seen it. A wrapper of ck_epoch that tells ThreadSanitizer what orders what.
 *
 * Threading: a reader belongs to one thread at a time. mu_reclaim_enter and mu_reclaim_leave write the reader's own cache
 * line only and take no lock. Everything else is called by one thread at a time: under the lock of the structure's
 * writers. Nothing blocks. */
#ifndef MUSTER_BASE_RECLAIM_H
#define MUSTER_BASE_RECLAIM_H

#include <ck_epoch.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/sanitizer.h"

typedef struct mu_reclaim_reader mu_reclaim_reader;
typedef struct mu_reclaim_entry mu_reclaim_entry;

typedef struct mu_reclaim {
    ck_epoch_t ck;
    mu_reclaim_reader *writer; /* the record that removals are queued on */
    mu_reclaim_reader *all;    /* every record, chained by `next`: ck_epoch cannot forget one */
    mu_reclaim_reader *idle;   /* those to be reused, chained by `next_idle` */
    uint64_t pending;          /* deferred and not yet run */
} mu_reclaim;

struct mu_reclaim_reader {
    ck_epoch_record_t record; /* first: its alignment is a cache line */
    mu_reclaim *domain;
    mu_reclaim_reader *next, *next_idle;
};

/* Embedded in what is reclaimed. */
struct mu_reclaim_entry {
    ck_epoch_entry_t ck;
    mu_reclaim *domain;
    void (*reclaim)(mu_reclaim_entry *entry);
};

/* False when host memory is short; then there is nothing to destroy. The domain must not move in memory. */
bool mu_reclaim_init(mu_reclaim *domain);
/* Runs what is deferred and frees every reader. Nobody is in a section. */
void mu_reclaim_destroy(mu_reclaim *domain);

/* NULL when host memory is short. Readers are reused, and freed with the domain. */
mu_reclaim_reader *mu_reclaim_reader_create(mu_reclaim *domain);
void mu_reclaim_reader_destroy(mu_reclaim_reader *reader); /* outside its sections; NULL is ignored */

/* Sections nest. What a reader finds inside one stays allocated until it has left the outermost. */
static inline void mu_reclaim_enter(mu_reclaim_reader *reader) { ck_epoch_begin(&reader->record, NULL); }

static inline void mu_reclaim_leave(mu_reclaim_reader *reader) {
    MU_TSAN_RELEASE(reader->domain); /* pairs with the acquire before an entry is reclaimed */
    ck_epoch_end(&reader->record, NULL);
}

/* Runs `reclaim(entry)`, from a later mu_reclaim_poll or mu_reclaim_destroy, once every section of now has ended. The
 * caller has already removed the object from the structure. */
void mu_reclaim_defer(mu_reclaim *domain, mu_reclaim_entry *entry, void (*reclaim)(mu_reclaim_entry *entry));

/* Reclaims what can be, and moves the epoch on. Two or three calls reclaim everything once no section is open; one that
 * stays open holds back what was removed since it began. */
void mu_reclaim_poll(mu_reclaim *domain);

#endif
