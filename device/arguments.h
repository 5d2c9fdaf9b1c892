/* The argument table of a launch: one slot for each kernel parameter, each the address of its value.
 *
 * A table is filled again and again: begin, one call for each argument in order, finish. It keeps its memory, so that a
 * shape that was seen before allocates nothing. One thread at a time; free of CUDA types. */
#ifndef MUSTER_DEVICE_ARGUMENTS_H
#define MUSTER_DEVICE_ARGUMENTS_H

#include "device/device.h"

typedef struct mu_argument_table {
    void **slots;
    unsigned char *values; /* the values the slots point at, each aligned as the kernel's parameter is */
    size_t slot_capacity, value_capacity;
    size_t value_used;
    uint32_t count, expected;
} mu_argument_table;

/* Zero-initialise a table, and free it with this. */
void mu_arguments_free(mu_argument_table *table);

/* Empties the table for `expected` arguments whose values take `value_bytes` in all; values of up to 8 bytes each need
 * nothing beyond 16 bytes of it per argument. OUT_OF_HOST_MEMORY names the table. */
muster_status mu_arguments_begin(mu_argument_table *table, uint32_t expected, size_t value_bytes, muster_error *error);

/* The next binding: its 64-bit device address. */
muster_status mu_arguments_address(mu_argument_table *table, mu_address address, muster_error *error);
/* The next argument: any value, copied. INVALID_ARGUMENT for 0 bytes. */
muster_status mu_arguments_value(mu_argument_table *table, const void *value, size_t bytes, muster_error *error);
/* More arguments than expected, or more bytes: ARGUMENT_MISMATCH; the table is as it was. */

/* Checks that every argument was given, and enters the table in the launch; it must stay until the launch returned.
 * ARGUMENT_MISMATCH says how many are missing. */
muster_status mu_arguments_finish(const mu_argument_table *table, mu_launch *launch, muster_error *error);

/* The reference ABI in one call: one address for each binding in order, then, when `parameter_block` is not 0, the
 * address of the parameter block. */
muster_status mu_arguments_bindings(mu_argument_table *table, const mu_address *bindings, uint32_t count,
                                    mu_address parameter_block, mu_launch *launch, muster_error *error);

#endif
