/* What was learnt about kernels and devices, kept in the disk cache (cache/disk_cache.h) for the next runtime: so that it places right
 * the first time.
 *
 * Two kinds of entry, both a few lines of text: for each program and kind of device what its kernels take (scheduler/placement/estimate.h), and
 * for each device the rates of its copies. A program is known by its code, a kind of device by its name and what it consists of: not
 * by the driver's version, nor by which of several equal devices it is. An entry that is damaged, or that this version cannot
 * read, is a miss and is logged; where the cache is off or cannot be written, nothing is kept.
 *
 * With one device nothing is learnt (scheduler/placement/estimate.h), and nothing here does anything.
 *
 * Threading: each function says. Those that read or write files block as the file system does, and never run on a worker. */
#ifndef MUSTER_SCHEDULER_PLACEMENT_HISTORY_H
#define MUSTER_SCHEDULER_PLACEMENT_HISTORY_H

#include "scheduler/actor/actor.h"

typedef struct mu_history mu_history; /* of one program on one kind of device */

/* Reads what is known of a program's kernels, for each of its devices. By the thread that makes it, when it has its codes. Failing
 * to is no error: nothing is known then. */
void mu_history_load(muster_program *program);
/* Sets the paces of a kernel that nobody else knows yet to what was known. */
void mu_history_recall(muster_kernel *kernel);
/* Writes what has been learnt since, unless that is nothing or hardly differs; what others wrote meanwhile about other kernels of
 * the program stays. By the thread that destroys the program, which may still be in use by runs: what these learn is lost. */
void mu_history_save(muster_program *program);
void mu_history_free(muster_program *program); /* any thread; the program is being freed */

/* The same for the rates of copies. By the thread that creates the runtime, before its workers are asked for anything, and by the
 * one that destroys it, when nothing is unfinished. */
void mu_history_load_rates(muster_runtime *runtime);
void mu_history_save_rates(muster_runtime *runtime);

/* The keys of the entries, for tests and tools. `identity` is that of the program's code (mu_code). */
mu_key mu_history_program_key(const mu_key *identity, const mu_actor *actor);
mu_key mu_history_device_key(const mu_actor *actor);

#endif
