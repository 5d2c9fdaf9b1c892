/* Table-driven tests of single instructions: a row is an instruction with the kinds of its operands and a model in
 * C.
 *
 * Operand kinds: 'h' 16-bit, 'r' 32-bit and 'l' 64-bit integers, 'f' f32, 'd' f64, 'p' predicate. The first kind is
 * the result's; the others are sources. Values travel as 64-bit integers; what lies above a kind's width is not
 * compared. */
#ifndef MUSTER_TESTS_DEVICE_SIM_PTX_ROWS_H
#define MUSTER_TESTS_DEVICE_SIM_PTX_ROWS_H

#include <stdint.h>

typedef uint64_t row_model(uint64_t a, uint64_t b, uint64_t c, uint64_t d);

typedef struct row {
    const char
        *instruction; /* "add.u32"; "$" stands for operands when they are not the usual list, e.g. "lop3.b32 $, 0x1c" */
    const char *kinds;
    row_model *model;
} row;

/* Runs every row on many operands, edge values among them, and compares bit by bit. */
void check_rows(const row *rows, unsigned count);
/* The same with a tolerance in units of the last place, and an absolute one for results near zero. */
void check_rows_near(const row *rows, unsigned count, double ulps, double absolute);

#define ROWS(rows) (rows), (unsigned)(sizeof(rows) / sizeof *(rows))

#endif
