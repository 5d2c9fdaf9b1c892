/* Areas: the bytes of a buffer that somebody means. Mostly one range; of a matrix that is cut along its rows, as many ranges of one
 * length as there are rows, one pitch apart. Free of everything else; pure. */
#ifndef MUSTER_SCHEDULER_MEMORY_AREA_H
#define MUSTER_SCHEDULER_MEMORY_AREA_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mu_area {
    uint64_t low, high; /* the first row, not empty */
    uint64_t pitch;     /* from one row to the next, at least high - low; any value when there is one row */
    uint32_t rows;      /* at least 1; low + (rows - 1) * pitch + (high - low) does not overflow */
} mu_area;

static inline mu_area mu_area_of(uint64_t low, uint64_t high) { return (mu_area){low, high, 0, 1}; }
static inline uint64_t mu_area_width(const mu_area *area) { return area->high - area->low; }
static inline uint64_t mu_area_bytes(const mu_area *area) { return mu_area_width(area) * area->rows; }
static inline uint64_t mu_area_row(const mu_area *area, uint32_t row) { return area->low + row * area->pitch; }
/* Behind its last byte. */
static inline uint64_t mu_area_end(const mu_area *area) {
    return mu_area_row(area, area->rows - 1) + mu_area_width(area);
}
/* `count` of its rows, from `row` on. */
static inline mu_area mu_area_rows(const mu_area *area, uint32_t row, uint32_t count) {
    uint64_t low = mu_area_row(area, row);
    return (mu_area){low, low + mu_area_width(area), area->pitch, count};
}

/* The first row that ends behind `position`; area->rows: none does. */
uint32_t mu_area_find(const mu_area *area, uint64_t position);

/* Whether some byte is in both. */
bool mu_areas_overlap(const mu_area *a, const mu_area *b);

#endif
