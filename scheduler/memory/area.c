#include "scheduler/memory/area.h"

uint32_t mu_area_find(const mu_area *area, uint64_t position) {
    if (position < area->high) return 0;
    if (area->rows == 1) return 1;
    uint64_t row = (position - area->high) / area->pitch + 1;
    return row < area->rows ? (uint32_t)row : area->rows;
}

static bool meets_range(const mu_area *area, uint64_t low, uint64_t high) {
    uint32_t row = mu_area_find(area, low);
    return row < area->rows && mu_area_row(area, row) < high;
}

/* Whether rows [from, from + count) of the one meet rows [0, rows) of the other. */
static bool rows_meet(__int128 from, uint32_t count, uint32_t rows) { return from < rows && 0 < from + count; }

/* Of one pitch: seen as a sheet of rows that long in which `a` begins at row 0, column 0. */
static bool meet_on_sheet(const mu_area *a, const mu_area *b) {
    __int128 away = (__int128)b->low - a->low, pitch = a->pitch;
    __int128 row = away / pitch, column = away % pitch;
    if (column < 0) column += pitch, row--;
    if (column < (__int128)mu_area_width(a) && rows_meet(row, b->rows, a->rows)) return true;
    /* What goes beyond the end of a row is in the beginning of the next. */
    return column + mu_area_width(b) > pitch && rows_meet(row + 1, b->rows, a->rows);
}

bool mu_areas_overlap(const mu_area *a, const mu_area *b) {
    if (mu_area_end(a) <= b->low || mu_area_end(b) <= a->low) return false;
    if (a->rows > 1 && b->rows > 1 && a->pitch == b->pitch) return meet_on_sheet(a, b);
    if (a->rows < b->rows) {
        const mu_area *fewer = a;
        a = b;
        b = fewer;
    }
    for (uint32_t row = 0; row < b->rows; row++) {
        uint64_t low = mu_area_row(b, row);
        if (meets_range(a, low, low + mu_area_width(b))) return true;
    }
    return false;
}
