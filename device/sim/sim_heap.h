/* Device memory: address space (sim_heap.c), the table that says what is mapped (sim_table.c), and blocks. */
#ifndef MUSTER_DEVICE_SIM_SIM_HEAP_H
#define MUSTER_DEVICE_SIM_SIM_HEAP_H

#include "device/sim/sim_internal.h"

typedef enum sim_block_kind {
    SIM_BLOCK_DEVICE,     /* cuMemAlloc and module variables: belongs to a context */
    SIM_BLOCK_POOLED,     /* belongs to a pool, thus to a device */
    SIM_BLOCK_PINNED,     /* cuMemHostAlloc */
    SIM_BLOCK_REGISTERED, /* cuMemHostRegister: the application's own memory */
} sim_block_kind;

typedef struct sim_pool sim_pool;

typedef struct sim_block {
    sim_range range; /* first: what the interpreter sees */
    sim_block_kind kind;
    sim_device *device;   /* NULL for host memory */
    sim_context *context; /* pooled: NULL */
    sim_pool *pool;
    bool variable;          /* of a module: cannot be freed by address */
    bool freeing;           /* pooled, locked: cuMemFreeAsync was called, the free has not run */
    size_t capacity;        /* of the address space behind it */
    int size_class;         /* -1: a mapping of its own */
    char order;             /* ThreadSanitizer: released by the free, acquired by who reuses the addresses */
    struct sim_block *next; /* quarantine */
} sim_block;

/* --------------------------------------------------------------------------------------------------------- table -- */

typedef struct sim_table sim_table;

sim_table *sim_table_create(void);
void sim_table_destroy(sim_table *table);
/* False when memory is short or the range overlaps another. */
bool sim_table_add(sim_table *table, sim_block *block);
void sim_table_remove(sim_table *table, sim_block *block);
/* The block that holds `address`, whoever may touch it. NULL when nothing is mapped there. The block stays valid until
 * well after it was freed (the heap's quarantine). */
sim_block *sim_table_find(sim_table *table, uint64_t address);
/* Any block that overlaps [low, high). */
sim_block *sim_table_overlap(sim_table *table, uint64_t low, uint64_t high);
/* The block after `low` (the first with range.low >= low), for walks over all. */
sim_block *sim_table_next(sim_table *table, uint64_t low);
/* Remembers a freed range, for fault messages only. */
void sim_table_remember(sim_table *table, const sim_block *block);

/* May kernels of `context` touch `block`? */
bool sim_block_visible(const sim_block *block, const sim_context *context);

/* ---------------------------------------------------------------------------------------------------------- heap -- */

typedef struct sim_heap sim_heap;

sim_heap *sim_heap_create(sim_driver *driver);
void sim_heap_destroy(sim_heap *heap); /* frees every block that is left, and the quarantine */

/* Maps `bytes` of fresh memory, enters it into the table, and charges nothing. NULL when host memory is short. */
sim_block *sim_block_create(sim_heap *heap, sim_block_kind kind, sim_device *device, sim_context *context,
                            size_t bytes);
/* Enters the application's memory. */
sim_block *sim_block_register(sim_heap *heap, sim_context *context, void *pointer, size_t bytes, bool writable);
/* Takes the block out of the table and poisons its memory; in the stream's order. Takes no lock that ThreadSanitizer
 * sees. */
void sim_block_unmap(sim_heap *heap, sim_block *block);
/* Puts an unmapped block into quarantine. */
void sim_block_retire(sim_heap *heap, sim_block *block);
/* Both. */
void sim_block_free(sim_heap *heap, sim_block *block);

/* Charges a device's memory. False, and nothing charged, when it has not that much left. */
bool sim_charge(sim_device *device, uint64_t bytes);
void sim_discharge(sim_device *device, uint64_t bytes);
uint64_t sim_free_bytes(const sim_device *device);

/* Marks bytes as written, as the interpreter does for kernels. */
void sim_block_mark_written(sim_block *block, uint64_t address, size_t bytes);
/* Copies what is known about bytes along with them; `from` NULL: all were written. */
void sim_block_copy_written(sim_block *to, uint64_t to_address, const sim_block *from, uint64_t from_address,
                            size_t bytes);

/* Device memory is charged in these steps. */
enum { SIM_CHARGE_STEP = 512 };
static inline uint64_t sim_charged(uint64_t bytes) {
    return (bytes + SIM_CHARGE_STEP - 1) / SIM_CHARGE_STEP * SIM_CHARGE_STEP;
}

#endif
