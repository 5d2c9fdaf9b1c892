#include "examples/06_stencil/scene.h"

#include <math.h>
#include <stdio.h>

static const float SPEED = 0.4f;
static const double PI = 3.141592653589793;

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* The slits are a third of the height apart, or rather their middles. */
static int is_wall(const scene *scene, uint32_t x, uint32_t y) {
    uint32_t from = scene->width / 4, thick = scene->width / 96 + 1, open = scene->height / 16;
    if (x < from || x >= from + thick) return 0;
    uint32_t centre = scene->height / 2, off = y < centre ? centre - y : y - centre;
    return off < scene->height / 8 - open / 2 || off >= scene->height / 8 + open / 2;
}

void scene_fill(const scene *scene, scene_cell *medium) {
    uint32_t sponge = scene->height / 8;
    for (uint32_t y = 0; y < scene->height; y++)
        for (uint32_t x = 0; x < scene->width; x++) {
            uint32_t edge = smaller(smaller(x, scene->width - 1 - x), smaller(y, scene->height - 1 - y));
            float deep = edge < sponge ? 1 - (float)edge / (float)sponge : 0;
            scene_cell *cell = &medium[(uint64_t)y * scene->width + x];
            cell->keep = 1 - 0.15f * deep * deep * deep;
            cell->speed = is_wall(scene, x, y) ? 0 : SPEED;
        }
}

float scene_drive(const scene *scene, uint64_t step) {
    double wavelength = scene->height / 22.0 > 8 ? scene->height / 22.0 : 8;
    double phase = 2 * PI * sqrt(SPEED) / wavelength * (double)step;
    return (float)(4 * PI * SPEED / wavelength * sin(phase) * fmin(1, phase / 20)); /* it starts softly */
}

void scene_step(const scene *scene, const float *now, float *wave, const scene_cell *medium, float drive) {
    uint32_t width = scene->width;
    for (uint32_t y = 1; y + 1 < scene->height; y++)
        for (uint32_t x = 1; x + 1 < width; x++) {
            uint64_t cell = (uint64_t)y * width + x;
            const float *at = now + cell;
            float around = (at[-(int64_t)width] + at[width]) + (at[-1] + at[1]);
            float next = at[0] + medium[cell].keep * (at[0] - wave[cell]) + medium[cell].speed * (around - 4 * at[0]);
            wave[cell] = x == width / 16 ? next + drive : next;
        }
}

/* Crests are warm and troughs cold, on a dark ground. */
static void colour(float value, unsigned char pixel[3]) {
    static const float warm[4][3] = {{10, 12, 24}, {150, 44, 20}, {250, 150, 40}, {255, 246, 214}};
    static const float cold[4][3] = {{10, 12, 24}, {18, 62, 130}, {40, 160, 220}, {226, 248, 255}};
    float along = 3 * (1 - expf(-fabsf(value)));
    int at = along < 1 ? 0 : along < 2 ? 1 : 2;
    for (int c = 0; c < 3; c++) {
        const float(*scale)[3] = value < 0 ? cold : warm;
        pixel[c] = (unsigned char)(scale[at][c] + (along - (float)at) * (scale[at + 1][c] - scale[at][c]));
    }
}

int scene_write(const scene *scene, const float *now, const scene_cell *medium, const char *path) {
    static const unsigned char wall[3] = {120, 124, 132};
    FILE *file = fopen(path, "wb");
    if (!file) return 0;
    fprintf(file, "P6\n%u %u\n255\n", scene->width, scene->height);
    for (uint64_t i = 0; i < (uint64_t)scene->width * scene->height; i++) {
        unsigned char pixel[3];
        colour(4 * now[i], pixel);
        fwrite(medium[i].speed == 0 ? wall : pixel, 1, 3, file);
    }
    int failed = ferror(file);
    return fclose(file) == 0 && !failed;
}
