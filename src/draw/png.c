/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures as PNG with a palette. */
#include "draw/draw.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

enum { BORDER = 8, SMALLEST_LINES = 6 };

/* Places in the palette: the states come first. */
enum { PAPER = FULL + 1, GRID, ORDER, COLOURS };

static const png_byte palette[COLOURS][3] = {
    [EMPTY] = {0xff, 0xff, 0xff}, [PARTIAL] = {0xd9, 0x7f, 0x0c}, [FULL] = {0x2a, 0x6f, 0xb0},
    [PAPER] = {0xf4, 0xf4, 0xf1}, [GRID] = {0x8a, 0x8a, 0x8a},    [ORDER] = {0x11, 0x11, 0x11},
};

struct canvas {
    const ejki_picture *picture;
    int64_t side, width, height;
    png_byte *pixels;
};

static void fill(const struct canvas *canvas, int64_t x, int64_t y, int64_t width, int64_t height,
                 int colour) {
    for (int64_t i = y; i < y + height; i++)
        memset(canvas->pixels + i * canvas->width + x, colour, (size_t)width);
}

static int64_t edge(const struct canvas *canvas, int64_t cell) {
    return BORDER + cell * canvas->side;
}

static void fill_cells(const struct canvas *canvas) {
    const ejki_picture *picture = canvas->picture;
    int64_t line = canvas->side >= SMALLEST_LINES ? 1 : 0, size = canvas->side - line;
    int64_t width = picture->cell_columns * canvas->side;
    int64_t height = picture->cell_rows * canvas->side;
    fill(canvas, BORDER - 1, BORDER - 1, width + 2 - line, height + 2 - line, GRID);
    for (int64_t i = 0; i < picture->cell_rows; i++)
        for (int64_t j = 0; j < picture->cell_columns; j++)
            fill(canvas, edge(canvas, j), edge(canvas, i), size, size,
                 ejki_picture_row(picture, i)[j]);
}

/* From one point to another, a step at a time along the longer axis. */
static void draw_line(const struct canvas *canvas, const int64_t from[2], const int64_t to[2]) {
    int64_t dx = to[0] - from[0], dy = to[1] - from[1];
    int64_t steps = ejki_max(ejki_max(dx, -dx), ejki_max(ejki_max(dy, -dy), 1));
    int64_t thick = 1 + canvas->side / 24;
    for (int64_t n = 0; n <= steps; n++)
        fill(canvas, from[0] + dx * n / steps - thick / 2, from[1] + dy * n / steps - thick / 2,
             thick, thick, ORDER);
}

static void draw_dot(const struct canvas *canvas, const int64_t at[2], int64_t radius) {
    for (int64_t y = -radius; y <= radius; y++)
        for (int64_t x = -radius; x <= radius; x++)
            if (x * x + y * y <= radius * radius) fill(canvas, at[0] + x, at[1] + y, 1, 1, ORDER);
}

static void draw_order(const struct canvas *canvas) {
    int64_t first, last, at[2], middle = (canvas->side - 1) / 2, dot = canvas->side / 6;
    bool begun = false;
    for (int64_t i = 0; i < canvas->picture->cell_rows; i++) {
        if (!ejki_picture_visited(canvas->picture, i, &first, &last)) continue;
        int64_t left[2] = {edge(canvas, first) + middle, edge(canvas, i) + middle};
        int64_t right[2] = {edge(canvas, last) + middle, left[1]};
        draw_line(canvas, begun ? at : left, left);
        draw_line(canvas, left, right);
        if (!begun) draw_dot(canvas, left, dot + 1);
        begun = true;
        memcpy(at, right, sizeof at);
    }
    if (begun) fill(canvas, at[0] - dot, at[1] - dot, 2 * dot + 1, 2 * dot + 1, ORDER);
}

static ejk_status encode(FILE *out, const struct canvas *canvas) {
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)canvas->width,
                       .height = (png_uint_32)canvas->height,
                       .format = PNG_FORMAT_RGB_COLORMAP,
                       .colormap_entries = COLOURS};
    if (!png_image_write_to_stdio(&image, out, 0, canvas->pixels, 0, palette))
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "a PNG of %lld x %lld: %s",
                      (long long)canvas->width, (long long)canvas->height, image.message);
    return EJK_OK;
}

ejk_status ejki_draw_png(FILE *out, const ejki_picture *picture, const ejki_drawing *drawing) {
    int64_t rows = picture->cell_rows, columns = picture->cell_columns;
    int64_t side = ejki_max(1, (drawing->width - 2 * BORDER) / ejki_max(rows, columns));
    struct canvas canvas = {.picture = picture,
                            .side = side,
                            .width = columns * side + 2 * BORDER,
                            .height = rows * side + 2 * BORDER};
    canvas.pixels = malloc((size_t)(canvas.width * canvas.height));
    if (canvas.pixels == NULL)
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT,
                      "memory for a picture of %lld x %lld pixels could not be had",
                      (long long)canvas.width, (long long)canvas.height);
    memset(canvas.pixels, PAPER, (size_t)(canvas.width * canvas.height));
    fill_cells(&canvas);
    if (drawing->order && !ejki_blocks_are_elements(picture) && side >= SMALLEST_LINES)
        draw_order(&canvas);
    ejk_status status = encode(out, &canvas);
    free(canvas.pixels);
    return status;
}
