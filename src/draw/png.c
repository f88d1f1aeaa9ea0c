/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures as PNG with a palette: title and counts, the cells, what their colours mean. */
#include "draw/draw.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

enum {
    BORDER = 8,
    SMALLEST_LINES = 6,
    PIXELS_A_SCALE = 384,
    LINE = EJKI_LETTER_ROWS + 3,
    MOST_LINES = 64
};

/* Places in the palette: the states come first. */
enum { PAPER = FULL + 1, GRID, ORDER, COLOURS };

static const png_byte palette[COLOURS][3] = {
    [EMPTY] = {0xff, 0xff, 0xff}, [PARTIAL] = {0xd9, 0x7f, 0x0c}, [FULL] = {0x2a, 0x6f, 0xb0},
    [PAPER] = {0xf4, 0xf4, 0xf1}, [GRID] = {0x8a, 0x8a, 0x8a},    [ORDER] = {0x11, 0x11, 0x11},
};

struct canvas {
    const ejki_picture *picture;
    int64_t side, width, height;
    int64_t top;      /* of the cells */
    int64_t scale;    /* pixels to one of a letter */
    png_byte *pixels; /* NULL while heights are found out */
};

static void fill(const struct canvas *canvas, int64_t x, int64_t y, int64_t width, int64_t height,
                 int colour) {
    for (int64_t i = y; i < y + height; i++)
        memset(canvas->pixels + i * canvas->width + x, colour, (size_t)width);
}

static int64_t edge(const struct canvas *canvas, int64_t cell) {
    return BORDER + cell * canvas->side;
}

static int64_t upper_edge(const struct canvas *canvas, int64_t cell) {
    return canvas->top + cell * canvas->side;
}

static void fill_cells(const struct canvas *canvas) {
    const ejki_picture *picture = canvas->picture;
    int64_t line = canvas->side >= SMALLEST_LINES ? 1 : 0, size = canvas->side - line;
    int64_t width = picture->cell_columns * canvas->side;
    int64_t height = picture->cell_rows * canvas->side;
    fill(canvas, BORDER - 1, canvas->top - 1, width + 2 - line, height + 2 - line, GRID);
    for (int64_t i = 0; i < picture->cell_rows; i++)
        for (int64_t j = 0; j < picture->cell_columns; j++)
            fill(canvas, edge(canvas, j), upper_edge(canvas, i), size, size,
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
        int64_t left[2] = {edge(canvas, first) + middle, upper_edge(canvas, i) + middle};
        int64_t right[2] = {edge(canvas, last) + middle, left[1]};
        draw_line(canvas, begun ? at : left, left);
        draw_line(canvas, left, right);
        if (!begun) draw_dot(canvas, left, dot + 1);
        begun = true;
        memcpy(at, right, sizeof at);
    }
    if (begun) fill(canvas, at[0] - dot, at[1] - dot, 2 * dot + 1, 2 * dot + 1, ORDER);
}

/* ---- Words ----------------------------------------------------------------------------------------- */

static void draw_letter(const struct canvas *canvas, unsigned char letter, int64_t x, int64_t y,
                        bool bold) {
    int64_t scale = canvas->scale, extra = bold ? scale / 2 : 0;
    for (int row = 0; row < EJKI_LETTER_ROWS; row++)
        for (int column = 0; column < EJKI_LETTER_STEP - 1; column++)
            if (ejki_letter_pixel(letter, row, column))
                fill(canvas, x + column * scale, y + row * scale, scale + extra, scale, ORDER);
}

static int64_t letters_of(const char *text) {
    unsigned char letter;
    int64_t count = 0;
    for (; *text != '\0'; count++) text = ejki_next_letter(text, &letter);
    return count;
}

/* How many letters go on a line of `most`: all, or up to the last space, or as many as fit. */
static int64_t letters_on_line(const char *text, int64_t most) {
    unsigned char letter;
    int64_t space = 0;
    for (int64_t n = 0; n <= most; n++) {
        if (*text == '\0') return n;
        text = ejki_next_letter(text, &letter);
        if (letter == ' ') space = n;
    }
    return space > 0 ? space : most;
}

/* Lines of a text from `y` on, MOST_LINES of them at most; where they end. */
static int64_t draw_text(const struct canvas *canvas, const char *text, int64_t y, bool bold) {
    int64_t step = EJKI_LETTER_STEP * canvas->scale;
    int64_t most = ejki_max(1, (canvas->width - 2 * BORDER) / step);
    for (int line = 0; *text != '\0' && line < MOST_LINES; line++, y += LINE * canvas->scale) {
        unsigned char letter;
        int64_t count = letters_on_line(text, most);
        for (int64_t n = 0; n < count; n++) {
            text = ejki_next_letter(text, &letter);
            if (canvas->pixels != NULL) draw_letter(canvas, letter, BORDER + n * step, y, bold);
        }
        while (*text == ' ') text++;
    }
    return y;
}

static int64_t draw_caption(const struct canvas *canvas, const char *title) {
    ejki_words name = ejki_name_words(canvas->picture), counts = ejki_counts_words(canvas->picture);
    int64_t y = draw_text(canvas, title != NULL ? title : name.text, BORDER, true);
    return draw_text(canvas, counts.text, y, false) + 2 * canvas->scale;
}

/* Squares of the colours, each with its word, as many beside each other as fit. */
static int64_t draw_keys(const struct canvas *canvas, int64_t y) {
    static const int order[] = {FULL, EMPTY, PARTIAL};
    int64_t step = EJKI_LETTER_STEP * canvas->scale, side = 7 * canvas->scale, x = BORDER;
    for (int i = 0; i < (ejki_shows_elements(canvas->picture) ? 2 : 3); i++) {
        const char *word = ejki_state_word(canvas->picture, order[i]);
        int64_t width = (2 + letters_of(word)) * step;
        if (x > BORDER && x + width > canvas->width - BORDER) {
            x = BORDER;
            y += LINE * canvas->scale;
        }
        if (canvas->pixels != NULL) {
            fill(canvas, x, y, side, side, GRID);
            fill(canvas, x + 1, y + 1, side - 2, side - 2, order[i]);
            unsigned char letter;
            for (int64_t at = x + 2 * step; *word != '\0' && at + step <= canvas->width;
                 at += step) {
                word = ejki_next_letter(word, &letter);
                draw_letter(canvas, letter, at, y, false);
            }
        }
        x += width + 2 * step;
    }
    return y + LINE * canvas->scale;
}

static int64_t draw_legend(const struct canvas *canvas, bool line) {
    int64_t y = upper_edge(canvas, canvas->picture->cell_rows) + 4 * canvas->scale;
    y = draw_keys(canvas, y);
    y = draw_text(canvas, ejki_axes_words(canvas->picture).text, y, false);
    return line ? draw_text(canvas, EJKI_ORDER_WORDS, y, false) : y;
}

/* ---- The picture ----------------------------------------------------------------------------------- */

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
    const ejk_mask_survey *survey = &picture->survey;
    bool line = drawing->order && survey->partial + survey->full > 0 &&
                !ejki_blocks_are_elements(picture) && side >= SMALLEST_LINES;
    struct canvas canvas = {.picture = picture,
                            .side = side,
                            .width = drawing->legend ? drawing->width : columns * side + 2 * BORDER,
                            .top = BORDER,
                            .scale = ejki_max(1, drawing->width / PIXELS_A_SCALE)};
    if (drawing->legend) canvas.top = draw_caption(&canvas, drawing->title);
    canvas.height = upper_edge(&canvas, rows) + BORDER;
    if (drawing->legend) canvas.height = draw_legend(&canvas, line) + BORDER;
    canvas.pixels = malloc((size_t)(canvas.width * canvas.height));
    if (canvas.pixels == NULL)
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT,
                      "memory for a picture of %lld x %lld pixels could not be had",
                      (long long)canvas.width, (long long)canvas.height);
    memset(canvas.pixels, PAPER, (size_t)(canvas.width * canvas.height));
    if (drawing->legend) (void)draw_caption(&canvas, drawing->title);
    fill_cells(&canvas);
    if (line) draw_order(&canvas);
    if (drawing->legend) (void)draw_legend(&canvas, line);
    ejk_status status = encode(out, &canvas);
    free(canvas.pixels);
    return status;
}
