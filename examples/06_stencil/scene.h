/* What the stencil computes: a plane wave that meets a wall with two slits; the same on the CPU; and a picture of it. */
#ifndef MUSTER_EXAMPLES_STENCIL_SCENE_H
#define MUSTER_EXAMPLES_STENCIL_SCENE_H

#include <stdint.h>

typedef struct scene {
    uint32_t width, height; /* at least 32 each */
} scene;

/* Of one cell: the square of the wave's speed, in cells a step (0: wall), and what is left of it after a step (below 1 at the edges,
 * which swallow it). */
typedef struct scene_cell {
    float speed, keep;
} scene_cell;

void scene_fill(const scene *scene, scene_cell *medium);

/* What is added to the cells of column width / 16 in a step: there the wave comes from. */
float scene_drive(const scene *scene, uint64_t step);

/* One step, as kernels.cu has it: from `now`, and `wave`, which holds the step before, to the next in `wave`. */
void scene_step(const scene *scene, const float *now, float *wave, const scene_cell *medium, float drive);

/* Writes a PPM. 0, with the reason in errno, on failure. */
int scene_write(const scene *scene, const float *now, const scene_cell *medium, const char *path);

#endif
