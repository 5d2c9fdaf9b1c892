#include "device/arguments.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* The largest alignment a kernel parameter has. */
enum { VALUE_ALIGNMENT = 16 };

void mu_arguments_free(mu_argument_table *table) {
    mu_free(table->slots);
    mu_free(table->values);
    *table = (mu_argument_table){0};
}

muster_status mu_arguments_begin(mu_argument_table *table, uint32_t expected, size_t value_bytes, muster_error *error) {
    size_t padding = (size_t)expected * VALUE_ALIGNMENT, bytes;
    if (__builtin_add_overflow(value_bytes, padding, &bytes))
        return mu_fail_host_memory(error, "the argument table of a launch", value_bytes);
    table->count = table->expected = 0;
    table->value_used = 0;
    if (!mu_grow(&table->slots, &table->slot_capacity, expected, sizeof *table->slots))
        return mu_fail_host_memory(error, "the argument table of a launch", expected * sizeof *table->slots);
    if (!mu_grow(&table->values, &table->value_capacity, bytes, 1))
        return mu_fail_host_memory(error, "the values of the argument table of a launch", bytes);
    table->expected = expected;
    return MUSTER_OK;
}

muster_status mu_arguments_value(mu_argument_table *table, const void *value, size_t bytes, muster_error *error) {
    size_t end;
    if (bytes == 0)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %" PRIu32 " has 0 bytes; give the parameter's size",
                       table->count);
    if (table->count == table->expected)
        return mu_fail(error, MUSTER_ARGUMENT_MISMATCH,
                       "one argument more than the %" PRIu32
                       " the argument table was made for; give one for each "
                       "parameter",
                       table->expected);
    if (__builtin_add_overflow(table->value_used, bytes, &end) || end > table->value_capacity)
        return mu_fail(error, MUSTER_ARGUMENT_MISMATCH,
                       "argument %" PRIu32 " of %zu bytes does not fit the %zu bytes the argument table was made for",
                       table->count, bytes, table->value_capacity);
    unsigned char *slot = table->values + table->value_used;
    memcpy(slot, value, bytes);
    table->slots[table->count++] = slot;
    end = (end + VALUE_ALIGNMENT - 1) & ~(size_t)(VALUE_ALIGNMENT - 1);
    table->value_used = end < table->value_capacity ? end : table->value_capacity;
    return MUSTER_OK;
}

muster_status mu_arguments_address(mu_argument_table *table, mu_address address, muster_error *error) {
    return mu_arguments_value(table, &address, sizeof address, error);
}

muster_status mu_arguments_finish(const mu_argument_table *table, mu_launch *launch, muster_error *error) {
    if (table->count != table->expected)
        return mu_fail(error, MUSTER_ARGUMENT_MISMATCH,
                       "%" PRIu32 " of %" PRIu32 " arguments were given; give one for each parameter, in order",
                       table->count, table->expected);
    launch->parameters = table->slots;
    launch->slot_count = table->count;
    launch->parameter_count = table->count;
    return MUSTER_OK;
}

muster_status mu_arguments_bindings(mu_argument_table *table, const mu_address *bindings, uint32_t count,
                                    mu_address parameter_block, mu_launch *launch, muster_error *error) {
    uint32_t slots;
    if (__builtin_add_overflow(count, parameter_block != 0, &slots))
        return mu_fail(error, MUSTER_LIMIT_REACHED, "%" PRIu32 " bindings and a parameter block are too many", count);
    muster_status status = mu_arguments_begin(table, slots, 0, error);
    for (uint32_t i = 0; !status && i < count; i++) status = mu_arguments_address(table, bindings[i], error);
    if (!status && parameter_block) status = mu_arguments_address(table, parameter_block, error);
    return status ? status : mu_arguments_finish(table, launch, error);
}
